//! Machines that wait for somebody's approval.
//!
//! Whoever has an invite can wait under as many keys as he makes. So one invite has few places, and
//! a machine that asks no more gives way where there is no other place.

use std::collections::BTreeMap;
use std::time::Duration;

use shoal_crypto::PublicKey;
use shoal_wire::Time;

use super::{WAITING_MAX, Waiting};
use crate::messages::Refusal;
use crate::tokens::TokenHash;

/// Places of one token.
pub(super) const OF_TOKEN_MAX: usize = 32;
/// A machine that did not ask for so long gives way; one that waits asks every 2 s.
const AWAY: Duration = Duration::from_secs(60);

struct Place {
    token: TokenHash,
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
    /// Errors: `full`.
    pub(super) fn put(
        &mut self,
        now: Time,
        token: TokenHash,
        mut waiting: Waiting,
    ) -> Result<(), Refusal> {
        let before = self.0.get(&waiting.key).map(|place| &place.waiting);
        if let Some(before) = before.filter(|before| before.words == waiting.words) {
            waiting.name.clone_from(&before.name);
        }
        if !self.0.contains_key(&waiting.key) {
            let of_token = self.0.values().filter(|place| place.token == token).count();
            if of_token >= OF_TOKEN_MAX {
                self.make_room(now, |place| place.token == token)?;
            } else if self.0.len() >= WAITING_MAX {
                self.make_room(now, |_| true)?;
            }
        }
        self.0.insert(waiting.key, Place { token, asked: now, waiting });
        Ok(())
    }

    /// Of these, the one that asked longest ago goes, if it is away.
    fn make_room(&mut self, now: Time, of: impl Fn(&Place) -> bool) -> Result<(), Refusal> {
        let oldest = self.0.iter().filter(|(_, place)| of(place)).min_by_key(|(_, p)| p.asked);
        let away = oldest.filter(|(_, place)| place.asked + AWAY <= now).map(|(key, _)| *key);
        self.0.remove(&away.ok_or(Refusal::Full)?);
        Ok(())
    }
}
