//! Index mask keys that a node gives to its peers: the current key, and the previous one.

use core::time::Duration;

use shoal_crypto::{MaskKey, Rng, Secret};
use shoal_wire::Time;

/// Time for which peers get one key.
const HAND_OUT: Duration = Duration::from_secs(600);

struct IndexMaskKey {
    epoch: u32,
    raw: Secret<32>,
    expanded: MaskKey,
}

impl IndexMaskKey {
    fn new(epoch: u32, rng: &mut Rng) -> IndexMaskKey {
        let raw = Secret::new(rng.array());
        let expanded = MaskKey::new(raw.expose());
        IndexMaskKey { epoch, raw, expanded }
    }
}

/// Both keys.
pub(crate) struct IndexMasks {
    current: IndexMaskKey,
    /// Previous key, and the time at which the last session that uses it has ended.
    previous: Option<(IndexMaskKey, Time)>,
    since: Time,
    /// Longest time from giving a key out to the end of a session that uses it.
    keep: Duration,
    rng: Rng,
}

impl IndexMasks {
    pub(crate) fn new(seed: [u8; 32], now: Time, keep: Duration) -> IndexMasks {
        let mut rng = Rng::new(seed);
        let current = IndexMaskKey::new(0, &mut rng);
        IndexMasks { current, previous: None, since: now, keep, rng }
    }

    /// Masks under a given key, for recorded frames.
    #[cfg(test)]
    pub(crate) fn with_key(raw: [u8; 32]) -> IndexMasks {
        let mut masks = IndexMasks::new([0; 32], Time::ZERO, HAND_OUT);
        let expanded = MaskKey::new(&raw);
        masks.current = IndexMaskKey { epoch: 0, raw: Secret::new(raw), expanded };
        masks
    }

    /// The key to give out, with its epoch. Replaces the key if it is old enough and the previous
    /// one is out of use.
    pub(crate) fn grant(&mut self, now: Time) -> (u32, Secret<32>) {
        self.expire(now);
        if now.since(self.since) >= HAND_OUT && self.previous.is_none() {
            let fresh = IndexMaskKey::new(self.current.epoch.wrapping_add(1), &mut self.rng);
            let old = core::mem::replace(&mut self.current, fresh);
            self.previous = Some((old, now + self.keep));
            self.since = now;
        }
        (self.current.epoch, self.current.raw.clone())
    }

    /// Draws later keys from another seed.
    pub(crate) fn freshen(&mut self, seed: [u8; 32]) {
        self.rng = Rng::new(seed);
    }

    fn expire(&mut self, now: Time) {
        if self.previous.as_ref().is_some_and(|(_, until)| *until <= now) {
            self.previous = None;
        }
    }

    /// The key that new sessions use.
    pub(crate) fn current(&self) -> (u32, &MaskKey) {
        (self.current.epoch, &self.current.expanded)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_change_and_the_old_one_stays_for_its_sessions() {
        let keep = Duration::from_secs(300);
        let mut masks = IndexMasks::new([1; 32], Time::ZERO, keep);
        let first = masks.grant(Time::ZERO);
        let late = Time::ZERO + HAND_OUT;
        assert_eq!(masks.grant(late - Duration::from_secs(1)), first);
        let second = masks.grant(late);
        assert_ne!(second, first);
        let before_end = late + keep - Duration::from_nanos(1);
        masks.since = Time::ZERO;
        assert_eq!(masks.grant(before_end), second, "the first is in use");
        assert_ne!(masks.grant(late + keep), second);
    }
}
