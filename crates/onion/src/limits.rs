//! How fast a node lets others set circuits up, and which create cells it took.

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use shoal_crypto::hash;
use shoal_wire::{Address, Time};

/// Nodes that are remembered at most. One more is refused until another's share has grown back.
const NODES_MAX: usize = 4_096;

/// A share of what may be asked for: so many at once, and one more each so often.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Share {
    pub(crate) burst: u32,
    pub(crate) every: Duration,
}

/// Of a host: 8 circuits a second.
const HOST: Share = Share { burst: 32, every: Duration::from_millis(125) };
/// Of a relay, which asks for many hosts: 200 a second.
const RELAY: Share = Share { burst: 400, every: Duration::from_millis(5) };

/// Who asked for circuits lately.
#[derive(Default)]
pub(crate) struct Asked {
    /// When the share of each will have grown back whole.
    full_at: BTreeMap<Address, Time>,
}

impl Asked {
    /// Whether `from` may have one more circuit set up now; counts it if so.
    pub(crate) fn take(&mut self, now: Time, from: Address) -> bool {
        let Share { burst, every } = if from.is_router() { RELAY } else { HOST };
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

/// The newest create cells that were taken, by a hash of their Noise message.
#[derive(Default)]
pub(crate) struct Seen {
    hashes: BTreeSet<[u8; 32]>,
    order: VecDeque<[u8; 32]>,
}

impl Seen {
    /// Messages that are remembered, and the most.
    pub(crate) fn fill(&self) -> (usize, usize) {
        (self.hashes.len().max(self.order.len()), SEEN_MAX)
    }

    /// Whether this message was taken.
    pub(crate) fn contains(&self, name: &[u8; 32]) -> bool {
        self.hashes.contains(name)
    }

    /// Remembers a message by its [`Seen::name`].
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

    /// Names a message.
    pub(crate) fn name(message: &[u8]) -> [u8; 32] {
        hash(message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_node_has_a_share_that_grows_back() {
        let mut asked = Asked::default();
        let (host, relay) = (Address::new(1, 1), Address::new(1, 0));
        let taken =
            |asked: &mut Asked, now, who, n: u32| (0..n).filter(|_| asked.take(now, who)).count();
        assert_eq!(taken(&mut asked, Time::ZERO, host, 100), 32);
        assert_eq!(taken(&mut asked, Time::ZERO, relay, 1_000), 400);
        let later = Time::ZERO + Duration::from_secs(1);
        assert_eq!(taken(&mut asked, later, host, 100), 8);
        assert_eq!(taken(&mut asked, later, relay, 1_000), 200);
    }

    #[test]
    fn memory_is_bounded() {
        let mut asked = Asked::default();
        for router in 1..=NODES_MAX as u32 {
            assert!(asked.take(Time::ZERO, Address::new(router, 0)));
        }
        assert!(!asked.take(Time::ZERO, Address::new(9_999, 0)));
        assert!(asked.take(Time::ZERO + Duration::from_secs(1), Address::new(9_999, 0)));
        assert_eq!(asked.full_at.len(), 1);
    }
}
