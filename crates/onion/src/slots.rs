//! Table of circuits at a node, and the indexes that name them on legs.
//!
//! ```text
//! index:  generation 8 | lane 4 | slot 20
//! ```
//!
//! Bit 3 of the lane marks the control lane. A circuit has one index, which both of its neighbours
//! get. Each gets a leg key of its own, so it can't read the indexes of cells that the other sends.

use std::collections::{BTreeMap, VecDeque};

use shoal_crypto::{Secret, kdf};
use shoal_wire::leg::{CONTROL_LANE, LegGrant};
use shoal_wire::{Address, CircuitId, Id};

use crate::leg::{LegKey, LegLane};

const SLOT_BITS: u32 = 20;
const GENERATION_SHIFT: u32 = 24;

/// Id of the circuit in a slot, which is its index for lane 0.
fn id_of(slot: usize, generation: u8) -> CircuitId {
    CircuitId::from_bits((u32::from(generation) << GENERATION_SHIFT) | slot as u32)
}

/// `index` for a lane.
pub(crate) fn for_lane(index: u32, lane: LegLane) -> u32 {
    match lane {
        LegLane::Data => index,
        LegLane::Control => index | CONTROL_LANE,
    }
}

struct CircuitSlot<T> {
    generation: u8,
    content: Option<T>,
}

struct LegNeighbour {
    key: LegKey,
    /// Number of grants that this node has.
    circuits: usize,
}

/// Circuits by index.
pub(crate) struct CircuitSlots<T> {
    key: Secret<32>,
    neighbours: BTreeMap<Address, LegNeighbour>,
    slots: Vec<CircuitSlot<T>>,
    free: VecDeque<u32>,
    limit: usize,
    len: usize,
}

impl<T> CircuitSlots<T> {
    /// A table of at most `limit` circuits. The keys of legs follow from `key`.
    pub(crate) fn new(key: Secret<32>, limit: usize) -> CircuitSlots<T> {
        CircuitSlots {
            key,
            neighbours: BTreeMap::new(),
            slots: Vec::new(),
            free: VecDeque::new(),
            limit: limit.min(1 << SLOT_BITS),
            len: 0,
        }
    }

    /// Number of circuits in the table.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Number of circuits that `node` was told of.
    #[cfg(test)]
    pub(crate) fn of(&self, node: Address) -> usize {
        self.neighbours.get(&node).map_or(0, |neighbour| neighbour.circuits)
    }

    /// Adds a circuit if there is room.
    pub(crate) fn insert(&mut self, content: T) -> Option<CircuitId> {
        let slot = match self.free.pop_front() {
            Some(slot) => slot as usize,
            None if self.slots.len() < self.limit => {
                self.slots.push(CircuitSlot { generation: 0, content: None });
                self.slots.len() - 1
            }
            None => return None,
        };
        self.len += 1;
        self.slots[slot].content = Some(content);
        Some(id_of(slot, self.slots[slot].generation))
    }

    fn leg_key(&self, node: Address) -> Secret<32> {
        Secret::new(kdf(self.key.expose(), "shoal v1 leg", &[&node.to_bytes()]))
    }

    /// Grant that `node` needs to send cells of a circuit here. Each call must be undone once with
    /// [`CircuitSlots::forget`].
    pub(crate) fn grant(&mut self, id: CircuitId, node: Address) -> LegGrant {
        let raw = self.leg_key(node);
        let entry = self.neighbours.entry(node);
        let new = || LegNeighbour { key: LegKey::new(raw.expose()), circuits: 0 };
        entry.or_insert_with(new).circuits += 1;
        self.granted(id, node)
    }

    /// The grant that [`CircuitSlots::grant`] gave.
    pub(crate) fn granted(&self, id: CircuitId, node: Address) -> LegGrant {
        LegGrant { index: id.bits(), key: *self.leg_key(node).expose() }
    }

    /// Undoes one call of [`CircuitSlots::grant`].
    pub(crate) fn forget(&mut self, node: Address) {
        if let Some(neighbour) = self.neighbours.get_mut(&node) {
            neighbour.circuits -= 1;
            if neighbour.circuits == 0 {
                self.neighbours.remove(&node);
            }
        }
    }

    /// Key of the cells that `from` sends, if it has a grant.
    pub(crate) fn key_of(&self, from: Address) -> Option<&LegKey> {
        self.neighbours.get(&from).map(|neighbour| &neighbour.key)
    }

    /// The circuit and lane that an index names.
    pub(crate) fn find(&self, index: u32) -> Option<(CircuitId, LegLane)> {
        let lane = if index & CONTROL_LANE == 0 { LegLane::Data } else { LegLane::Control };
        let id = CircuitId::from_bits(index & !CONTROL_LANE);
        self.get(id).map(|_| (id, lane))
    }

    pub(crate) fn get(&self, id: CircuitId) -> Option<&T> {
        let slot = self.slots.get(id.number())?;
        // No id has a lane other than 0.
        slot.content.as_ref().filter(|_| id_of(id.number(), slot.generation) == id)
    }

    pub(crate) fn get_mut(&mut self, id: CircuitId) -> Option<&mut T> {
        self.get(id)?;
        self.slots[id.number()].content.as_mut()
    }

    /// Removes a circuit. After that its index means nothing.
    pub(crate) fn remove(&mut self, id: CircuitId) -> Option<T> {
        self.get(id)?;
        let slot = &mut self.slots[id.number()];
        slot.generation = slot.generation.wrapping_add(1);
        self.len -= 1;
        self.free.push_back(id.number() as u32);
        slot.content.take()
    }

    /// All circuits, mutable.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.slots.iter_mut().filter_map(|slot| slot.content.as_mut())
    }

    /// All circuits.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (CircuitId, &T)> {
        (0..).zip(&self.slots).filter_map(|(at, slot)| {
            slot.content.as_ref().map(|content| (id_of(at, slot.generation), content))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Address = Address::new(1, 0);
    const B: Address = Address::new(2, 0);

    #[test]
    fn an_index_means_something_as_long_as_the_circuit_lives() {
        let mut slots = CircuitSlots::new(Secret::new([3; 32]), 2);
        let id = slots.insert('a').unwrap();
        let (for_a, for_b) = (slots.grant(id, A), slots.grant(id, B));
        assert!(for_a.index == for_b.index && for_a.key != for_b.key);
        for lane in [LegLane::Data, LegLane::Control] {
            assert_eq!(slots.find(for_lane(for_a.index, lane)), Some((id, lane)));
        }
        assert_eq!(slots.find(for_a.index | 1 << 20), None, "a lane that nobody has");
        slots.forget(A);
        assert!(slots.key_of(A).is_none() && slots.key_of(B).is_some());
        assert_eq!(slots.remove(id), Some('a'));
        assert_eq!((slots.remove(id), slots.len()), (None, 0));
        assert_eq!(slots.find(for_b.index), None);
    }

    #[test]
    fn slots_are_bounded_and_come_again_under_another_name() {
        let mut slots = CircuitSlots::new(Secret::new([3; 32]), 2);
        let (a, b) = (slots.insert(1).unwrap(), slots.insert(2).unwrap());
        assert_eq!(slots.insert(3), None);
        slots.remove(a);
        let c = slots.insert(3).unwrap();
        assert!(c != a && c.number() == a.number());
        assert_eq!((slots.get(a), slots.get(b), slots.get(c)), (None, Some(&2), Some(&3)));
    }
}
