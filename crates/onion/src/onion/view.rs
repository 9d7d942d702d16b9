//! State of a node's circuits that its owner may see, to check the circuits' rules.

use std::collections::BTreeMap;

use shoal_crypto::{Aead, Ciphers};
use shoal_mix::DepartureTimes;
use shoal_wire::{Address, MixStrategy, Time};

use super::queue::WAITING_MAX;
use super::{CircuitEntry, HALF_OPEN, IDLE, Onion, QUEUE_MAX, SWEEP};
use crate::hop::{CircuitHop, CircuitNext};
use crate::leg::Direction;
use crate::room::{HALF_OPEN_MAX, HALF_OPEN_SHARE, OF_SENDER};

/// Fill of a table or queue: its name, its size, and its limit.
pub type TableFill = (&'static str, usize, usize);

/// Delays of the cells that this node opens or seals with one key of a circuit.
#[derive(Clone, Debug)]
pub struct KeyDelays {
    /// Node that the cells come from; none while the circuit has no next hop.
    pub from: Option<Address>,
    /// Strategy that delays them.
    pub strategy: MixStrategy,
    /// Delay of each cell.
    pub delays: DepartureTimes,
    /// Direction and lane of the cells, as the delays count them. Lane 1 is the control lane.
    pub way: (u8, u8),
    /// Start of the opened or sealed part of a leg cell.
    pub start: usize,
}

impl<A: Aead> CircuitHop<A> {
    fn waits_under(&self, key: &[u8; 32]) -> Option<KeyDelays> {
        let (direction, lane) = self.layer.use_of(key)?;
        let from = match (direction, &self.next) {
            (Direction::Forward, _) => Some(self.prev.node),
            (Direction::Backward, CircuitNext::Leg(next)) => Some(next.node),
            (Direction::Backward, CircuitNext::End | CircuitNext::Asked { .. }) => None,
        };
        let (strategy, delays) = self.layer.waits();
        let way = (direction as u8, lane as u8);
        Some(KeyDelays { from, strategy, delays, way, start: self.layer.start(lane) })
    }
}

impl<C: Ciphers> Onion<C> {
    /// Delays of the cells that this node opens or seals with a key, if the key belongs to a
    /// circuit that it carries for others. A holder of the key can check how long cells waited.
    pub fn waits_under(&self, key: &[u8; 32]) -> Option<KeyDelays> {
        self.slots.iter().find_map(|(_, entry)| match entry {
            CircuitEntry::Hop(hop) => hop.waits_under(key),
            CircuitEntry::Origin(_) => None,
        })
    }

    /// The previous and next node on each circuit that it carries for others.
    pub fn carried(&self) -> impl Iterator<Item = (Address, Address)> + '_ {
        self.slots.iter().filter_map(|(_, entry)| match entry {
            CircuitEntry::Hop(hop) => match &hop.next {
                CircuitNext::Leg(next) => Some((hop.prev.node, next.node)),
                CircuitNext::End | CircuitNext::Asked { .. } => None,
            },
            CircuitEntry::Origin(_) => None,
        })
    }

    /// Number of circuits that should have been forgotten two seconds ago: expired, idle for too
    /// long, or unused since their set-up.
    pub fn overdue(&self, now: Time) -> usize {
        let over = |entry: &CircuitEntry<C::Aead>| {
            let (used, until, is_used) = match entry {
                CircuitEntry::Origin(circuit) => (circuit.used, circuit.until, circuit.is_built()),
                CircuitEntry::Hop(hop) => (hop.used, hop.until, hop.confirmed),
            };
            let idle = if is_used { IDLE } else { HALF_OPEN };
            until.min(used + idle) + 2 * SWEEP < now
        };
        self.slots.iter().filter(|(_, entry)| over(entry)).count()
    }

    /// Fill of all tables and queues.
    pub fn fills(&self) -> Vec<TableFill> {
        // Per neighbour: all its circuits, and its half-open ones.
        let mut asked: BTreeMap<Address, (usize, usize)> = BTreeMap::new();
        for (_, entry) in self.slots.iter() {
            if let CircuitEntry::Hop(hop) = entry {
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
