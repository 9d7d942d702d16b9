//! What a node's owner may see of its circuits, to check that they keep their rules.

use std::collections::BTreeMap;

use shoal_crypto::{Aead, Ciphers};
use shoal_mix::Delays;
use shoal_wire::{Address, Strategy, Time};

use super::queue::WAITING_MAX;
use super::{Entry, HALF_OPEN, IDLE, Onion, QUEUE_MAX, SWEEP};
use crate::hop::{Hop, Next};
use crate::leg::Direction;
use crate::room::{HALF_OPEN_MAX, HALF_OPEN_SHARE, OF_SENDER};

/// A table or a queue: what it holds, how much, and the most that it may.
pub type Fill = (&'static str, usize, usize);

/// How cells wait that this node opens or seals with one key of a circuit.
#[derive(Clone, Debug)]
pub struct Waits {
    /// The node that they come from; none before the circuit goes on from here.
    pub from: Option<Address>,
    /// What they wait for.
    pub strategy: Strategy,
    /// How long each waits.
    pub delays: Delays,
    /// Their direction and lane, as the delays count them; lane 1 is that of control cells.
    pub way: (u8, u8),
    /// Where the part of a leg cell starts that is opened or sealed.
    pub start: usize,
}

impl<A: Aead> Hop<A> {
    fn waits_under(&self, key: &[u8; 32]) -> Option<Waits> {
        let (direction, lane) = self.layer.use_of(key)?;
        let from = match (direction, &self.next) {
            (Direction::Forward, _) => Some(self.prev.node),
            (Direction::Backward, Next::Leg(next)) => Some(next.node),
            (Direction::Backward, Next::End | Next::Asked { .. }) => None,
        };
        let (strategy, delays) = self.layer.waits();
        let way = (direction as u8, lane as u8);
        Some(Waits { from, strategy, delays, way, start: self.layer.start(lane) })
    }
}

impl<C: Ciphers> Onion<C> {
    /// How cells wait that this node opens or seals with a key, if it is one of a circuit that it
    /// carries on for others. Whoever has the key can so check how long they waited.
    pub fn waits_under(&self, key: &[u8; 32]) -> Option<Waits> {
        self.slots.iter().find_map(|(_, entry)| match entry {
            Entry::Hop(hop) => hop.waits_under(key),
            Entry::Origin(_) => None,
        })
    }

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

    /// Circuits that should have been forgotten two seconds ago: whose lifetime is over, that were
    /// idle for too long, or that nobody used since they were set up.
    pub fn overdue(&self, now: Time) -> usize {
        let over = |entry: &Entry<C::Aead>| {
            let (used, until, is_used) = match entry {
                Entry::Origin(circuit) => (circuit.used, circuit.until, circuit.is_built()),
                Entry::Hop(hop) => (hop.used, hop.until, hop.confirmed),
            };
            let idle = if is_used { IDLE } else { HALF_OPEN };
            until.min(used + idle) + 2 * SWEEP < now
        };
        self.slots.iter().filter(|(_, entry)| over(entry)).count()
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
