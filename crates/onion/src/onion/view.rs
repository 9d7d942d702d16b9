//! What a node's owner may see of its circuits, to check that they keep their rules.

use std::collections::BTreeMap;

use shoal_crypto::Ciphers;
use shoal_wire::Address;

use super::queue::WAITING_MAX;
use super::{Entry, HALF_OPEN_MAX, Onion, QUEUE_MAX, SHARE};
use crate::hop::Next;

/// A table or a queue: what it holds, how much, and the most that it may.
pub type Fill = (&'static str, usize, usize);

impl<C: Ciphers> Onion<C> {
    /// The nodes before and behind this one on each circuit that it carries on for others.
    pub fn carried(&self) -> impl Iterator<Item = (Address, Address)> + '_ {
        self.slots.iter().filter_map(|(_, entry)| match entry {
            Entry::Hop(hop) => match &hop.next {
                Next::Leg(next) => Some((hop.prev.node, next.node)),
                Next::End | Next::Asked { .. } => None,
            },
            Entry::Origin(_) => None,
        })
    }

    /// How full all tables and queues are.
    pub fn fills(&self) -> Vec<Fill> {
        let mut asked: BTreeMap<Address, usize> = BTreeMap::new();
        let mut half_open = self.waiting.len();
        for (_, entry) in self.slots.iter() {
            if let Entry::Hop(hop) = entry {
                *asked.entry(hop.prev.node).or_default() += 1;
                half_open += usize::from(!hop.confirmed);
            }
        }
        let share = self.config.circuits_max / SHARE;
        let (own, answers) = self.queue.waiting();
        let (asked_most, seen) = (asked.into_values().max().unwrap_or(0), self.seen.fill());
        vec![
            ("circuits", self.slots.len(), self.config.circuits_max),
            ("circuits of a neighbour", asked_most, share),
            ("half-open circuits", half_open, HALF_OPEN_MAX),
            ("half-open circuits that are counted", self.half_open, half_open),
            ("set-up work of own circuits", own, WAITING_MAX),
            ("create cells without an answer", answers, WAITING_MAX),
            ("leg cells to send", self.transmits.len(), QUEUE_MAX),
            ("events of circuits", self.events.len(), QUEUE_MAX),
            ("create cells that were seen", seen.0, seen.1),
        ]
    }
}
