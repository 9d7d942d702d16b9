//! What a node's owner may see of its circuits, to check that they keep their rules.

use std::collections::BTreeMap;

use shoal_crypto::Ciphers;
use shoal_wire::Address;

use super::queue::WAITING_MAX;
use super::{Entry, Onion, QUEUE_MAX};
use crate::hop::Next;
use crate::room::{HALF_OPEN_MAX, HALF_OPEN_SHARE, OF_SENDER};

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
        // Of each neighbour: all, and those that are half open.
        let mut asked: BTreeMap<Address, (usize, usize)> = BTreeMap::new();
        for (_, entry) in self.slots.iter() {
            if let Entry::Hop(hop) = entry {
                let has = asked.entry(hop.prev.node).or_default();
                has.0 += 1;
                has.1 += usize::from(!hop.confirmed);
            }
        }
        for asker in self.waiting.values().filter_map(|waiting| waiting.asker) {
            asked.entry(asker).or_default().1 += 1;
        }
        let of_most = |is_router| {
            let all = asked.iter().filter(|(at, _)| at.is_router() == is_router);
            all.map(|(_, has)| has.0).max().unwrap_or(0)
        };
        let limits = self.config.limits;
        let (others, half_open) =
            asked.values().fold((0, 0), |sum, has| (sum.0 + has.0, sum.1 + has.1));
        let half_open_most = asked.values().map(|has| has.1).max().unwrap_or(0);
        let (own, answers) = self.queue.waiting();
        let seen = self.seen.fill();
        vec![
            ("circuits that this node began", self.slots.len() - others, limits.own),
            ("circuits of others", others, limits.others),
            ("circuits of others that are counted", self.room.len(), others),
            ("circuits of a relay", of_most(true), limits.of_relay),
            ("circuits of a host", of_most(false), limits.of_host),
            ("circuits of a sender", self.room.of_sender(), OF_SENDER),
            ("half-open circuits", half_open, HALF_OPEN_MAX),
            ("half-open circuits of a neighbour", half_open_most, HALF_OPEN_SHARE),
            ("half-open circuits that are counted", self.room.half_open(), half_open),
            ("set-up work of own circuits", own, WAITING_MAX),
            ("create cells without an answer", answers, WAITING_MAX),
            ("leg cells to send", self.transmits.len(), QUEUE_MAX),
            ("events of circuits", self.events.len(), QUEUE_MAX),
            ("handshakes of circuits", self.handshakes.len(), QUEUE_MAX),
            ("create cells that were seen", seen.0, seen.1),
        ]
    }
}
