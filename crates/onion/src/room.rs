//! Room for circuits of other nodes: limits per neighbour, and the circuits that are closed when
//! there is no room.
//!
//! A circuit costs its origin one set-up, and one echo a minute to keep. When there is no room, the
//! oldest circuit that never carried data is closed first. An attacker who only occupies places
//! thus loses them before honest users do.

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use shoal_wire::{Address, CircuitId, DropReason, Time};

/// Most circuits of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CircuitLimits {
    /// Circuits that it begins. Circuits of others never use their places.
    pub own: usize,
    /// Circuits that other nodes set up through or to this node.
    pub others: usize,
    /// Circuits that one neighbouring relay may set up, counted within `others`. Routers that are
    /// not relays may set up none.
    pub of_relay: usize,
    /// Circuits that one neighbouring host may set up, counted within `others`.
    pub of_host: usize,
}

impl CircuitLimits {
    /// Limits of a host. All circuits that lead to it may have one last relay.
    pub const HOST: CircuitLimits =
        CircuitLimits { own: 64, others: 256, of_relay: 256, of_host: 16 };
    /// Limits of a router. A host has as many places here as it may begin circuits.
    pub const ROUTER: CircuitLimits =
        CircuitLimits { own: 64, others: 16_384, of_relay: 4_096, of_host: 64 };

    /// Limits of the node with this address.
    pub const fn of(node: Address) -> CircuitLimits {
        if node.is_router() { CircuitLimits::ROUTER } else { CircuitLimits::HOST }
    }
}

/// Most circuits of others that wait for their first cell, or for their next hop.
pub(crate) const HALF_OPEN_MAX: usize = 1_024;
/// Most of these from one neighbour.
pub(crate) const HALF_OPEN_SHARE: usize = HALF_OPEN_MAX / 8;
/// Time for a circuit to carry data before it may be closed for another.
const GRACE: Duration = Duration::from_secs(10);
/// Circuits of one host that keep their places at its peer: one in use, one standby, some that end.
pub(crate) const OF_SENDER: usize = 8;

/// Use of another node's circuit so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TenantUse {
    /// Only set-up and echoes.
    Nothing,
    /// At a router: a cell of the data lane.
    Data,
    /// At the circuit's end: a unit that the host of this number sealed.
    Of(u32),
}

/// Facts that decide a circuit's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CircuitTenant {
    pub(crate) id: CircuitId,
    /// Neighbour that asked for it.
    pub(crate) from: Address,
    pub(crate) born: Time,
}

#[derive(Default)]
struct NeighbourCounts {
    circuits: usize,
    half_open: usize,
}

/// Places of other nodes' circuits.
pub(crate) struct CircuitRoom {
    limits: CircuitLimits,
    /// True if there is no room at all.
    is_closed: bool,
    len: usize,
    half_open: usize,
    neighbours: BTreeMap<Address, NeighbourCounts>,
    /// Circuits that carried nothing, the oldest first.
    unused: BTreeSet<(Time, CircuitId)>,
    /// Circuits that carried nothing, by neighbour.
    unused_of: BTreeSet<(Address, Time, CircuitId)>,
    /// Circuits with units of a host, by that host, in the order of their first unit.
    senders: BTreeMap<u32, VecDeque<CircuitId>>,
}

impl CircuitRoom {
    pub(crate) fn new(limits: CircuitLimits) -> CircuitRoom {
        CircuitRoom {
            limits,
            is_closed: false,
            len: 0,
            half_open: 0,
            neighbours: BTreeMap::new(),
            unused: BTreeSet::new(),
            unused_of: BTreeSet::new(),
            senders: BTreeMap::new(),
        }
    }

    /// Number of circuits of other nodes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Number of half-open circuits.
    pub(crate) fn half_open(&self) -> usize {
        self.half_open
    }

    /// Largest number of circuits that keep their places because of units of one host.
    pub(crate) fn of_sender(&self) -> usize {
        self.senders.values().map(VecDeque::len).max().unwrap_or(0)
    }

    /// Counts a half-open circuit of `from`.
    pub(crate) fn open_half(&mut self, from: Address) {
        self.half_open += 1;
        self.neighbours.entry(from).or_default().half_open += 1;
    }

    /// Counts the end of a half-open circuit of `from`, see [`CircuitRoom::open_half`].
    pub(crate) fn close_half(&mut self, from: Address) {
        self.half_open -= 1;
        self.change(from, |neighbour| neighbour.half_open -= 1);
    }

    fn change(&mut self, from: Address, change: impl FnOnce(&mut NeighbourCounts)) {
        let neighbour = self.neighbours.entry(from).or_default();
        change(neighbour);
        if neighbour.circuits + neighbour.half_open == 0 {
            self.neighbours.remove(&from);
        }
    }

    /// Ends or begins a time in which there is no room for any circuit.
    pub(crate) fn set_closed(&mut self, closed: bool) {
        self.is_closed = closed;
    }

    /// True if `from` may have one more half-open circuit, besides `others` that are coming.
    pub(crate) fn may_open_half(&self, from: Address, others: usize) -> bool {
        if self.is_closed {
            return false;
        }
        let own = self.neighbours.get(&from).map_or(0, |neighbour| neighbour.half_open);
        self.half_open + others < HALF_OPEN_MAX && own < HALF_OPEN_SHARE
    }

    /// The circuit that must end so that `from` may have one more; none if there is room.
    ///
    /// # Errors
    ///
    /// `circuit_limit`: no circuit may end.
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

    /// Adds a circuit that has carried nothing yet.
    pub(crate) fn add(&mut self, tenant: CircuitTenant) {
        self.len += 1;
        self.change(tenant.from, |neighbour| neighbour.circuits += 1);
        self.put_back(tenant);
    }

    /// Removes a circuit.
    pub(crate) fn remove(&mut self, tenant: CircuitTenant, carried: TenantUse) {
        self.len -= 1;
        self.change(tenant.from, |neighbour| neighbour.circuits -= 1);
        match carried {
            TenantUse::Nothing => self.note_used(tenant),
            TenantUse::Data => {}
            TenantUse::Of(sender) => {
                if let Some(all) = self.senders.get_mut(&sender) {
                    all.retain(|id| *id != tenant.id);
                    if all.is_empty() {
                        self.senders.remove(&sender);
                    }
                }
            }
        }
    }

    /// Marks a circuit as used: it keeps its place.
    pub(crate) fn note_used(&mut self, CircuitTenant { id, from, born }: CircuitTenant) {
        self.unused.remove(&(born, id));
        self.unused_of.remove(&(from, born, id));
    }

    /// Notes that a circuit brought a unit that `sender` sealed, for the first time. Returns
    /// another circuit of this sender, which has too many. The caller must put it back.
    pub(crate) fn note_sender(&mut self, tenant: CircuitTenant, sender: u32) -> Option<CircuitId> {
        self.note_used(tenant);
        let all = self.senders.entry(sender).or_default();
        all.push_back(tenant.id);
        if all.len() > OF_SENDER { all.pop_front() } else { None }
    }

    /// Marks a circuit as unused again, so that it may be closed for another.
    pub(crate) fn put_back(&mut self, CircuitTenant { id, from, born }: CircuitTenant) {
        self.unused.insert((born, id));
        self.unused_of.insert((from, born, id));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RELAY: Address = Address::new(1, 0);
    const LIMITS: CircuitLimits = CircuitLimits { own: 1, others: 4, of_relay: 4, of_host: 2 };

    fn tenant(n: u32, from: Address, born_s: u64) -> CircuitTenant {
        let born = Time::ZERO + Duration::from_secs(born_s);
        CircuitTenant { id: CircuitId::from_bits(n), from, born }
    }

    fn at(s: u64) -> Time {
        Time::ZERO + Duration::from_secs(s)
    }

    #[test]
    fn who_is_at_its_share_makes_room_itself() {
        let (mut room, host) = (CircuitRoom::new(LIMITS), Address::new(1, 1));
        room.add(tenant(9, RELAY, 0));
        room.add(tenant(1, host, 1));
        room.add(tenant(2, host, 2));
        let gives_way = |room: &CircuitRoom, s| room.gives_way(at(s), host);
        assert_eq!(
            gives_way(&room, 10),
            Err(DropReason::CircuitLimit),
            "the circuits are too young"
        );
        assert_eq!(gives_way(&room, 11), Ok(Some(CircuitId::from_bits(1))));
        room.note_used(tenant(1, host, 1));
        assert_eq!(gives_way(&room, 12), Ok(Some(CircuitId::from_bits(2))));
        room.note_used(tenant(2, host, 2));
        assert_eq!(gives_way(&room, 99), Err(DropReason::CircuitLimit), "all are used");
        assert_eq!(room.gives_way(at(99), RELAY), Ok(None));
        room.remove(tenant(1, host, 1), TenantUse::Data);
        assert_eq!(gives_way(&room, 99), Ok(None));
    }

    #[test]
    fn a_full_table_gives_up_what_was_never_used() {
        let mut room = CircuitRoom::new(LIMITS);
        (0..4).for_each(|n| room.add(tenant(n, Address::new(n + 1, 0), n.into())));
        let gives_way = |room: &CircuitRoom, s| room.gives_way(at(s), Address::new(9, 0));
        assert_eq!(gives_way(&room, 9), Err(DropReason::CircuitLimit));
        assert_eq!(gives_way(&room, 10), Ok(Some(CircuitId::from_bits(0))));
        room.remove(tenant(0, RELAY, 0), TenantUse::Nothing);
        assert_eq!((gives_way(&room, 10), room.unused.len()), (Ok(None), 3));
    }

    #[test]
    fn one_sender_keeps_a_few_circuits() {
        let mut room = CircuitRoom::new(CircuitLimits::HOST);
        let all: Vec<CircuitTenant> = (0..10).map(|n| tenant(n, RELAY, n.into())).collect();
        all.iter().for_each(|tenant| room.add(*tenant));
        let out: Vec<_> = all.iter().filter_map(|t| room.note_sender(*t, 5)).collect();
        assert_eq!(out, [0, 1].map(CircuitId::from_bits));
        assert!(room.unused.is_empty());
        room.put_back(all[0]);
        assert_eq!((room.unused.len(), room.unused_of.len()), (1, 1));
        room.remove(all[0], TenantUse::Nothing);
        all[2..].iter().for_each(|tenant| room.remove(*tenant, TenantUse::Of(5)));
        room.remove(all[1], TenantUse::Nothing);
        assert!(room.senders.is_empty() && room.unused_of.is_empty());
        assert!(room.neighbours.is_empty() && room.len() == 0);
    }

    #[test]
    fn one_neighbour_has_a_share_of_the_half_open_places() {
        let mut room = CircuitRoom::new(CircuitLimits::ROUTER);
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
