//! Machines that wait for somebody's approval.
//!
//! Whoever has an invite can wait under as many keys as he makes. So one invite has few places, and
//! where there is none left, a machine that asks no more gives its place up, or else one of the
//! address that has most.

use std::collections::BTreeMap;
use std::time::Duration;

use shoal_crypto::PublicKey;
use shoal_wire::Time;

use super::sources::{Source, most_frequent};
use super::{WAITING_MAX, Waiting};
use crate::messages::Refusal;
use crate::tokens::TokenHash;

/// Places of one token.
pub(super) const OF_TOKEN_MAX: usize = 32;
/// A machine that did not ask for so long gives way; one that waits asks every 2 s.
const AWAY: Duration = Duration::from_secs(60);

struct Place {
    token: TokenHash,
    source: Source,
    asked: Time,
    waiting: Waiting,
}

/// Who waits, by key.
#[derive(Default)]
pub(super) struct WaitingRoom(BTreeMap<PublicKey, Place>);

impl WaitingRoom {
    pub(super) fn all(&self) -> impl Iterator<Item = &Waiting> {
        self.0.values().map(|place| &place.waiting)
    }

    /// The token with which this machine waits.
    pub(super) fn token(&self, key: &PublicKey) -> Option<TokenHash> {
        self.0.get(key).map(|place| place.token)
    }

    /// The name under which this machine waits.
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

    /// Lets a machine wait, or notes that it still does. Its name stays as long as its words do, so
    /// who has compared the words approves the name beside them.
    ///
    /// Errors: `crowded`.
    pub(super) fn put(
        &mut self,
        now: Time,
        token: TokenHash,
        source: Source,
        mut waiting: Waiting,
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
        self.0.insert(waiting.key, Place { token, source, asked: now, waiting });
        Ok(())
    }

    /// Takes a place from the machine that asked longest ago, if it is away; else from the address
    /// that has most places, if it has at least two more than this one.
    fn make_room(
        &mut self,
        now: Time,
        source: Source,
        of: impl Fn(&Place) -> bool,
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
