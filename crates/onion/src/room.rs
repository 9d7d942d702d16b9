//! Room for the circuits that others set up here: how many each neighbour may have, and which of
//! them end when there is no room.
//!
//! Whoever sets circuits up pays for each once, and keeps it with an echo a minute. So a circuit
//! that never carried anything gives way to a new one, the oldest first: those of who only takes
//! places stand in that order before those of who uses them.

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use shoal_wire::{Address, CircuitId, DropReason, Time};

/// Circuits of a node at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// That it begins. Those of others never take their places.
    pub own: usize,
    /// That others set up here.
    pub others: usize,
    /// Of these, circuits of one neighbour that is a router. None that is no relay sets any up.
    pub of_relay: usize,
    /// Of these, circuits of one neighbour that is a host.
    pub of_host: usize,
}

impl Limits {
    /// Of a host. One relay may be the last one of all circuits that lead to it.
    pub const HOST: Limits = Limits { own: 64, others: 256, of_relay: 256, of_host: 16 };
    /// Of a router. A host has as many places here as it may begin circuits.
    pub const ROUTER: Limits = Limits { own: 64, others: 16_384, of_relay: 4_096, of_host: 64 };

    /// Of the node with this address.
    pub const fn of(node: Address) -> Limits {
        if node.is_router() { Limits::ROUTER } else { Limits::HOST }
    }
}

/// Circuits of others that wait for their first cell, or for their next hop, at most.
pub(crate) const HALF_OPEN_MAX: usize = 1_024;
/// Of these, circuits of one neighbour.
pub(crate) const HALF_OPEN_SHARE: usize = HALF_OPEN_MAX / 8;
/// A circuit has so long to carry something before it gives way to another.
const GRACE: Duration = Duration::from_secs(10);
/// Circuits of one host that keep their places at its peer: one in use, one that stands by, some
/// that end.
pub(crate) const OF_SENDER: usize = 8;

/// What a circuit of others has carried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Carried {
    /// Set-up and echoes at most.
    Nothing,
    /// At a router: a cell of the data lane.
    Data,
    /// At its end: what this host sealed, as its number says.
    Of(u32),
}

/// What the place of a circuit depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tenant {
    pub(crate) id: CircuitId,
    /// The node that asked for it.
    pub(crate) from: Address,
    pub(crate) born: Time,
}

#[derive(Default)]
struct Neighbour {
    circuits: usize,
    half_open: usize,
}

/// The circuits of others.
pub(crate) struct Room {
    limits: Limits,
    len: usize,
    half_open: usize,
    neighbours: BTreeMap<Address, Neighbour>,
    /// Circuits that carried nothing, the oldest first.
    unused: BTreeSet<(Time, CircuitId)>,
    /// The same by neighbour.
    unused_of: BTreeSet<(Address, Time, CircuitId)>,
    /// Circuits that carried what a host sealed, by that host, in the order in which they did.
    senders: BTreeMap<u32, VecDeque<CircuitId>>,
}

impl Room {
    pub(crate) fn new(limits: Limits) -> Room {
        Room {
            limits,
            len: 0,
            half_open: 0,
            neighbours: BTreeMap::new(),
            unused: BTreeSet::new(),
            unused_of: BTreeSet::new(),
            senders: BTreeMap::new(),
        }
    }

    /// Circuits of others.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// How many of them are half open.
    pub(crate) fn half_open(&self) -> usize {
        self.half_open
    }

    /// Circuits of one host that keep their places because they brought what it sealed, at most.
    pub(crate) fn of_sender(&self) -> usize {
        self.senders.values().map(VecDeque::len).max().unwrap_or(0)
    }

    /// Counts a half-open circuit of `from`.
    pub(crate) fn open_half(&mut self, from: Address) {
        self.half_open += 1;
        self.neighbours.entry(from).or_default().half_open += 1;
    }

    /// Ends what [`Room::open_half`] began.
    pub(crate) fn close_half(&mut self, from: Address) {
        self.half_open -= 1;
        self.change(from, |neighbour| neighbour.half_open -= 1);
    }

    fn change(&mut self, from: Address, change: impl FnOnce(&mut Neighbour)) {
        let neighbour = self.neighbours.entry(from).or_default();
        change(neighbour);
        if neighbour.circuits + neighbour.half_open == 0 {
            self.neighbours.remove(&from);
        }
    }

    /// Whether one more circuit of `from` may be half open, beside `others` that will be.
    pub(crate) fn may_open_half(&self, from: Address, others: usize) -> bool {
        let own = self.neighbours.get(&from).map_or(0, |neighbour| neighbour.half_open);
        self.half_open + others < HALF_OPEN_MAX && own < HALF_OPEN_SHARE
    }

    /// Which circuit must end so that there is room for one more of `from`; none if there is room.
    ///
    /// # Errors
    ///
    /// `circuit_limit`: none may end.
    pub(crate) fn gives_way(
        &self,
        now: Time,
        from: Address,
    ) -> Result<Option<CircuitId>, DropReason> {
        let share = if from.is_router() { self.limits.of_relay } else { self.limits.of_host };
        let has = self.neighbours.get(&from).map_or(0, |neighbour| neighbour.circuits);
        let oldest = if has >= share {
            let all = self.unused_of.range((from, Time::ZERO, CircuitId::from_bits(0))..);
            all.take_while(|(of, ..)| *of == from).map(|(_, born, id)| (*born, *id)).next()
        } else if self.len >= self.limits.others {
            self.unused.first().copied()
        } else {
            return Ok(None);
        };
        let old = oldest.filter(|(born, _)| *born + GRACE <= now);
        old.map(|(_, id)| Some(id)).ok_or(DropReason::CircuitLimit)
    }

    /// Adds a circuit that carried nothing yet.
    pub(crate) fn add(&mut self, tenant: Tenant) {
        self.len += 1;
        self.change(tenant.from, |neighbour| neighbour.circuits += 1);
        self.put_back(tenant);
    }

    /// Removes a circuit.
    pub(crate) fn remove(&mut self, tenant: Tenant, carried: Carried) {
        self.len -= 1;
        self.change(tenant.from, |neighbour| neighbour.circuits -= 1);
        match carried {
            Carried::Nothing => self.note_used(tenant),
            Carried::Data => {}
            Carried::Of(sender) => {
                if let Some(all) = self.senders.get_mut(&sender) {
                    all.retain(|id| *id != tenant.id);
                    if all.is_empty() {
                        self.senders.remove(&sender);
                    }
                }
            }
        }
    }

    /// From now on the circuit gives way to none.
    pub(crate) fn note_used(&mut self, Tenant { id, from, born }: Tenant) {
        self.unused.remove(&(born, id));
        self.unused_of.remove(&(from, born, id));
    }

    /// Notes that a circuit brought what `sender` sealed, who is not the one of before. Returns
    /// another circuit of the same sender, to be put back: it has too many.
    pub(crate) fn note_sender(&mut self, tenant: Tenant, sender: u32) -> Option<CircuitId> {
        self.note_used(tenant);
        let all = self.senders.entry(sender).or_default();
        all.push_back(tenant.id);
        if all.len() > OF_SENDER { all.pop_front() } else { None }
    }

    /// Has a circuit give way again as one that carried nothing.
    pub(crate) fn put_back(&mut self, Tenant { id, from, born }: Tenant) {
        self.unused.insert((born, id));
        self.unused_of.insert((from, born, id));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RELAY: Address = Address::new(1, 0);
    const LIMITS: Limits = Limits { own: 1, others: 4, of_relay: 4, of_host: 2 };

    fn tenant(n: u32, from: Address, born_s: u64) -> Tenant {
        let born = Time::ZERO + Duration::from_secs(born_s);
        Tenant { id: CircuitId::from_bits(n), from, born }
    }

    fn at(s: u64) -> Time {
        Time::ZERO + Duration::from_secs(s)
    }

    #[test]
    fn who_is_at_its_share_makes_room_itself() {
        let (mut room, host) = (Room::new(LIMITS), Address::new(1, 1));
        room.add(tenant(9, RELAY, 0));
        room.add(tenant(1, host, 1));
        room.add(tenant(2, host, 2));
        let gives_way = |room: &Room, s| room.gives_way(at(s), host);
        assert_eq!(gives_way(&room, 10), Err(DropReason::CircuitLimit), "they are young");
        assert_eq!(gives_way(&room, 11), Ok(Some(CircuitId::from_bits(1))));
        room.note_used(tenant(1, host, 1));
        assert_eq!(gives_way(&room, 12), Ok(Some(CircuitId::from_bits(2))));
        room.note_used(tenant(2, host, 2));
        assert_eq!(gives_way(&room, 99), Err(DropReason::CircuitLimit), "all are used");
        assert_eq!(room.gives_way(at(99), RELAY), Ok(None));
        room.remove(tenant(1, host, 1), Carried::Data);
        assert_eq!(gives_way(&room, 99), Ok(None));
    }

    #[test]
    fn a_full_table_gives_up_what_was_never_used() {
        let mut room = Room::new(LIMITS);
        (0..4).for_each(|n| room.add(tenant(n, Address::new(n + 1, 0), n.into())));
        let gives_way = |room: &Room, s| room.gives_way(at(s), Address::new(9, 0));
        assert_eq!(gives_way(&room, 9), Err(DropReason::CircuitLimit));
        assert_eq!(gives_way(&room, 10), Ok(Some(CircuitId::from_bits(0))));
        room.remove(tenant(0, RELAY, 0), Carried::Nothing);
        assert_eq!((gives_way(&room, 10), room.unused.len()), (Ok(None), 3));
    }

    #[test]
    fn one_sender_keeps_a_few_circuits() {
        let mut room = Room::new(Limits::HOST);
        let all: Vec<Tenant> = (0..10).map(|n| tenant(n, RELAY, n.into())).collect();
        all.iter().for_each(|tenant| room.add(*tenant));
        let out: Vec<_> = all.iter().filter_map(|t| room.note_sender(*t, 5)).collect();
        assert_eq!(out, [0, 1].map(CircuitId::from_bits));
        assert!(room.unused.is_empty());
        room.put_back(all[0]);
        assert_eq!((room.unused.len(), room.unused_of.len()), (1, 1));
        room.remove(all[0], Carried::Nothing);
        all[2..].iter().for_each(|tenant| room.remove(*tenant, Carried::Of(5)));
        room.remove(all[1], Carried::Nothing);
        assert!(room.senders.is_empty() && room.unused_of.is_empty());
        assert!(room.neighbours.is_empty() && room.len() == 0);
    }

    #[test]
    fn one_neighbour_has_a_share_of_the_half_open_places() {
        let mut room = Room::new(Limits::ROUTER);
        let mut opened = 0;
        for n in 1..=20 {
            let from = Address::new(n, 0);
            while room.may_open_half(from, 0) {
                room.open_half(from);
                opened += 1;
            }
            assert_eq!(opened, HALF_OPEN_MAX.min(n as usize * HALF_OPEN_SHARE));
        }
        assert!(!room.may_open_half(Address::new(99, 0), 0));
        room.close_half(RELAY);
        assert!(room.may_open_half(Address::new(99, 0), 0));
        assert!(!room.may_open_half(Address::new(99, 0), 1));
    }
}
