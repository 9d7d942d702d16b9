//! The table of circuits at a node, and the indexes that name them on legs.
//!
//! ```text
//! index:  generation 8 | lane 4 | slot 20
//! ```
//!
//! Bit 3 of the lane says that a cell is of the control lane. A circuit has one index, which both
//! of its neighbours are told, each with a leg key of its own: one of them can't read the indexes
//! of cells that others send.

use std::collections::{BTreeMap, VecDeque};

use shoal_crypto::{Secret, kdf};
use shoal_wire::leg::{CONTROL_LANE, Grant};
use shoal_wire::{Address, CircuitId, Id};

use crate::leg::{Lane, LegKey};

const SLOT_BITS: u32 = 20;
const GENERATION_SHIFT: u32 = 24;

/// The id of the circuit in a slot, which is its index for lane 0.
fn id_of(slot: usize, generation: u8) -> CircuitId {
    CircuitId::from_bits((u32::from(generation) << GENERATION_SHIFT) | slot as u32)
}

/// `index` for a lane.
pub(crate) fn for_lane(index: u32, lane: Lane) -> u32 {
    match lane {
        Lane::Data => index,
        Lane::Control => index | CONTROL_LANE,
    }
}

struct Slot<T> {
    generation: u8,
    content: Option<T>,
}

struct Neighbour {
    key: LegKey,
    /// Circuits that were told to this node.
    circuits: usize,
}

/// Circuits by index.
pub(crate) struct Slots<T> {
    key: Secret<32>,
    neighbours: BTreeMap<Address, Neighbour>,
    slots: Vec<Slot<T>>,
    free: VecDeque<u32>,
    limit: usize,
    len: usize,
}

impl<T> Slots<T> {
    /// A table of at most `limit` circuits. `key` makes the keys of legs.
    pub(crate) fn new(key: Secret<32>, limit: usize) -> Slots<T> {
        Slots {
            key,
            neighbours: BTreeMap::new(),
            slots: Vec::new(),
            free: VecDeque::new(),
            limit: limit.min(1 << SLOT_BITS),
            len: 0,
        }
    }

    /// Circuits in the table.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Circuits that `node` was told of.
    #[cfg(test)]
    pub(crate) fn of(&self, node: Address) -> usize {
        self.neighbours.get(&node).map_or(0, |neighbour| neighbour.circuits)
    }

    /// Adds a circuit if there is room.
    pub(crate) fn insert(&mut self, content: T) -> Option<CircuitId> {
        let slot = match self.free.pop_front() {
            Some(slot) => slot as usize,
            None if self.slots.len() < self.limit => {
                self.slots.push(Slot { generation: 0, content: None });
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

    /// What `node` needs to send cells of a circuit here. To be taken back with
    /// [`Slots::forget`], once for each time.
    pub(crate) fn grant(&mut self, id: CircuitId, node: Address) -> Grant {
        let raw = self.leg_key(node);
        let entry = self.neighbours.entry(node);
        let new = || Neighbour { key: LegKey::new(raw.expose()), circuits: 0 };
        entry.or_insert_with(new).circuits += 1;
        self.granted(id, node)
    }

    /// What [`Slots::grant`] gave.
    pub(crate) fn granted(&self, id: CircuitId, node: Address) -> Grant {
        Grant { index: id.bits(), key: *self.leg_key(node).expose() }
    }

    /// Ends what [`Slots::grant`] began.
    pub(crate) fn forget(&mut self, node: Address) {
        if let Some(neighbour) = self.neighbours.get_mut(&node) {
            neighbour.circuits -= 1;
            if neighbour.circuits == 0 {
                self.neighbours.remove(&node);
            }
        }
    }

    /// The key of cells that `from` sends, if it was told any circuit.
    pub(crate) fn key_of(&self, from: Address) -> Option<&LegKey> {
        self.neighbours.get(&from).map(|neighbour| &neighbour.key)
    }

    /// The circuit and lane that an index names.
    pub(crate) fn find(&self, index: u32) -> Option<(CircuitId, Lane)> {
        let lane = if index & CONTROL_LANE == 0 { Lane::Data } else { Lane::Control };
        let id = CircuitId::from_bits(index & !CONTROL_LANE);
        self.get(id).map(|_| (id, lane))
    }

    /// A circuit.
    pub(crate) fn get(&self, id: CircuitId) -> Option<&T> {
        let slot = self.slots.get(id.number())?;
        // A lane other than 0 is in nobody's id.
        slot.content.as_ref().filter(|_| id_of(id.number(), slot.generation) == id)
    }

    /// A circuit, to be changed.
    pub(crate) fn get_mut(&mut self, id: CircuitId) -> Option<&mut T> {
        self.get(id)?;
        self.slots[id.number()].content.as_mut()
    }

    /// Removes a circuit; its index means nothing from now on.
    pub(crate) fn remove(&mut self, id: CircuitId) -> Option<T> {
        self.get(id)?;
        let slot = &mut self.slots[id.number()];
        slot.generation = slot.generation.wrapping_add(1);
        self.len -= 1;
        self.free.push_back(id.number() as u32);
        slot.content.take()
    }

    /// All circuits, to be changed.
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
        let mut slots = Slots::new(Secret::new([3; 32]), 2);
        let id = slots.insert('a').unwrap();
        let (for_a, for_b) = (slots.grant(id, A), slots.grant(id, B));
        assert!(for_a.index == for_b.index && for_a.key != for_b.key);
        for lane in [Lane::Data, Lane::Control] {
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
        let mut slots = Slots::new(Secret::new([3; 32]), 2);
        let (a, b) = (slots.insert(1).unwrap(), slots.insert(2).unwrap());
        assert_eq!(slots.insert(3), None);
        slots.remove(a);
        let c = slots.insert(3).unwrap();
        assert!(c != a && c.number() == a.number());
        assert_eq!((slots.get(a), slots.get(b), slots.get(c)), (None, Some(&2), Some(&3)));
    }
}
