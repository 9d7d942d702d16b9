//! Machines that wait for approval.
//!
//! The holder of an invite can wait under any number of keys, so the places per invite are limited.
//! When all are taken, a newcomer replaces a machine that stopped asking, or else one of the source
//! address that holds the most places.

use std::collections::BTreeMap;
use std::time::Duration;

use shoal_crypto::PublicKey;
use shoal_wire::Time;

use super::sources::{SourcePrefix, most_frequent};
use super::{PendingApproval, WAITING_MAX};
use crate::messages::Refusal;
use crate::tokens::TokenHash;

/// Maximum number of places per token.
pub(super) const OF_TOKEN_MAX: usize = 32;
/// A machine that did not ask for this long may be replaced. A waiting machine asks every 2 s.
const AWAY: Duration = Duration::from_secs(60);

struct WaitingSlot {
    token: TokenHash,
    source: SourcePrefix,
    asked: Time,
    waiting: PendingApproval,
}

/// Waiting machines, by key.
#[derive(Default)]
pub(super) struct WaitingRoom(BTreeMap<PublicKey, WaitingSlot>);

impl WaitingRoom {
    pub(super) fn all(&self) -> impl Iterator<Item = &PendingApproval> {
        self.0.values().map(|place| &place.waiting)
    }

    pub(super) fn token(&self, key: &PublicKey) -> Option<TokenHash> {
        self.0.get(key).map(|place| place.token)
    }

    pub(super) fn name(&self, key: &PublicKey) -> Option<String> {
        self.0.get(key).and_then(|place| place.waiting.name.clone())
    }

    /// True if this machine waits and shows these words.
    pub(super) fn shows(&self, key: &PublicKey, words: &str) -> bool {
        self.0.get(key).is_some_and(|place| place.waiting.words.to_string() == words)
    }

    pub(super) fn remove(&mut self, key: &PublicKey) {
        self.0.remove(key);
    }

    /// Adds a waiting machine, or records that it asked again. The name stays the same as long as
    /// the words do: so whoever compared the words approves the name shown beside them.
    ///
    /// Errors: `crowded`.
    pub(super) fn put(
        &mut self,
        now: Time,
        token: TokenHash,
        source: SourcePrefix,
        mut waiting: PendingApproval,
    ) -> Result<(), Refusal> {
        let before = self.0.get(&waiting.key).map(|place| &place.waiting);
        if let Some(before) = before.filter(|before| before.words == waiting.words) {
            waiting.name.clone_from(&before.name);
        }
        if !self.0.contains_key(&waiting.key) {
            let of_token = self.0.values().filter(|place| place.token == token).count();
            if of_token >= OF_TOKEN_MAX {
                self.make_room(now, source, |place| place.token == token)?;
            } else if self.0.len() >= WAITING_MAX {
                self.make_room(now, source, |_| true)?;
            }
        }
        self.0.insert(waiting.key, WaitingSlot { token, source, asked: now, waiting });
        Ok(())
    }

    /// Frees a place. The machine that asked longest ago loses it, if it stopped asking. Otherwise
    /// the address with the most places loses one, if it has at least two more than `source`.
    fn make_room(
        &mut self,
        now: Time,
        source: SourcePrefix,
        of: impl Fn(&WaitingSlot) -> bool,
    ) -> Result<(), Refusal> {
        let its = || self.0.iter().filter(|(_, place)| of(place));
        let oldest = its().min_by_key(|(_, place)| place.asked);
        let away = oldest.filter(|(_, place)| place.asked + AWAY <= now).map(|(key, _)| *key);
        let count = |source| its().filter(|(_, place)| place.source == source).count();
        let most = most_frequent(its().map(|(_, place)| place.source));
        let most = most.filter(|most| count(*most) >= count(source) + 2);
        let crowding = most.and_then(|most| {
            let all = its().filter(|(_, place)| place.source == most);
            all.max_by_key(|(_, place)| place.asked).map(|(key, _)| *key)
        });
        self.0.remove(&away.or(crowding).ok_or(Refusal::Crowded)?);
        Ok(())
    }
}
