//! Requests, and parts, that came before, told by the random bytes that lead them.
//!
//! A replay is found here without public-key work and before anybody is asked for a cookie, so that
//! whoever replays gets no byte and fills no queue. What is pushed out of here is still refused by
//! its timestamp, after the public-key work (see `peer.rs`).

use std::collections::{BTreeSet, VecDeque};

use crate::gate::Lead;

/// Requests remembered: those of ten minutes at a router with 1,600 busy neighbours.
const SEEN_MAX: usize = 8_192;

/// The last requests, oldest first.
#[derive(Default)]
pub(crate) struct Seen {
    order: VecDeque<Lead>,
    leads: BTreeSet<Lead>,
}

impl Seen {
    /// Whether this request is remembered.
    pub(crate) fn contains(&self, lead: &Lead) -> bool {
        self.leads.contains(lead)
    }

    /// Remembers a request; the oldest one goes if need be.
    pub(crate) fn insert(&mut self, lead: Lead) {
        if !self.leads.insert(lead) {
            return;
        }
        self.order.push_back(lead);
        let oldest = if self.order.len() > SEEN_MAX { self.order.pop_front() } else { None };
        if let Some(oldest) = oldest {
            self.leads.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_are_remembered_and_no_more() {
        let lead = |n: usize| (n as u128).to_be_bytes();
        let mut seen = Seen::default();
        for n in 0..2 * SEEN_MAX {
            seen.insert(lead(n));
            seen.insert(lead(n));
        }
        assert!(!seen.contains(&lead(SEEN_MAX - 1)));
        assert!((SEEN_MAX..2 * SEEN_MAX).all(|n| seen.contains(&lead(n))));
        assert_eq!((seen.order.len(), seen.leads.len()), (SEEN_MAX, SEEN_MAX));
    }
}
