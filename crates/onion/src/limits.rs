//! Rate at which a node lets others set up circuits, and the create cells that it accepted.

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use shoal_crypto::hash;
use shoal_wire::{Address, Time};

/// Most nodes that are remembered. A further one is refused until another's share has grown back.
const NODES_MAX: usize = 4_096;

/// A rate limit: `burst` requests at once, and one more after each `every`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RateLimit {
    pub(crate) burst: u32,
    pub(crate) every: Duration,
}

/// Rate of a host: 8 circuits a second.
const HOST: RateLimit = RateLimit { burst: 32, every: Duration::from_millis(125) };
/// Rate of a relay, which asks for many hosts: 200 a second.
const RELAY: RateLimit = RateLimit { burst: 400, every: Duration::from_millis(5) };

/// Rate limits of the nodes that asked for circuits.
#[derive(Default)]
pub(crate) struct SetupRates {
    /// Time at which each node's share is full again.
    full_at: BTreeMap<Address, Time>,
}

impl SetupRates {
    /// True if `from` may set up one more circuit at `now`. Counts it if so.
    pub(crate) fn take(&mut self, now: Time, from: Address) -> bool {
        let RateLimit { burst, every } = if from.is_router() { RELAY } else { HOST };
        let full_at = self.full_at.get(&from).copied().unwrap_or(now).max(now);
        if full_at + every > now + every * burst {
            return false;
        }
        if self.full_at.len() >= NODES_MAX && !self.full_at.contains_key(&from) {
            self.full_at.retain(|_, full_at| *full_at > now);
            if self.full_at.len() >= NODES_MAX {
                return false;
            }
        }
        self.full_at.insert(from, full_at + every);
        true
    }
}

/// Create cells that are remembered.
const SEEN_MAX: usize = 8_192;

/// The newest accepted create cells, by a hash of their Noise message.
#[derive(Default)]
pub(crate) struct CreateReplayCache {
    hashes: BTreeSet<[u8; 32]>,
    order: VecDeque<[u8; 32]>,
}

impl CreateReplayCache {
    /// Messages that are remembered, and the limit.
    pub(crate) fn fill(&self) -> (usize, usize) {
        (self.hashes.len().max(self.order.len()), SEEN_MAX)
    }

    /// True if this message was accepted before.
    pub(crate) fn contains(&self, name: &[u8; 32]) -> bool {
        self.hashes.contains(name)
    }

    /// Records a message by its [`CreateReplayCache::name`].
    pub(crate) fn insert(&mut self, name: [u8; 32]) {
        if self.hashes.insert(name) {
            self.order.push_back(name);
        }
        if self.order.len() > SEEN_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.hashes.remove(&oldest);
        }
    }

    pub(crate) fn name(message: &[u8]) -> [u8; 32] {
        hash(message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_node_has_a_share_that_grows_back() {
        let mut asked = SetupRates::default();
        let (host, relay) = (Address::new(1, 1), Address::new(1, 0));
        let taken = |asked: &mut SetupRates, now, who, n: u32| {
            (0..n).filter(|_| asked.take(now, who)).count()
        };
        assert_eq!(taken(&mut asked, Time::ZERO, host, 100), 32);
        assert_eq!(taken(&mut asked, Time::ZERO, relay, 1_000), 400);
        let later = Time::ZERO + Duration::from_secs(1);
        assert_eq!(taken(&mut asked, later, host, 100), 8);
        assert_eq!(taken(&mut asked, later, relay, 1_000), 200);
    }

    #[test]
    fn memory_is_bounded() {
        let mut asked = SetupRates::default();
        for router in 1..=NODES_MAX as u32 {
            assert!(asked.take(Time::ZERO, Address::new(router, 0)));
        }
        assert!(!asked.take(Time::ZERO, Address::new(9_999, 0)));
        assert!(asked.take(Time::ZERO + Duration::from_secs(1), Address::new(9_999, 0)));
        assert_eq!(asked.full_at.len(), 1);
    }
}
