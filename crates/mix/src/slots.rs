//! Memory for cells that wait.

use shoal_wire::{Address, LinkId, SizeClass};

/// No slot.
pub(crate) const NONE: u32 = u32::MAX;

const SLOT_LEN: usize = SizeClass::Full.frame_len();
/// Slots that are taken from the system at once: 92 kB. One growing buffer would copy all that
/// waits whenever it grows, and hold up to twice as much as needed.
const SLAB: usize = 64;

/// What is known of a cell that waits.
#[derive(Clone, Copy)]
pub(crate) struct Held {
    /// The next slot of the same list.
    pub(crate) next: u32,
    pub(crate) link: LinkId,
    /// The node that it came from; none for one that leaves in the order in which it came.
    pub(crate) from: Option<Address>,
    pub(crate) class: SizeClass,
}

/// Slots for cells of all classes, each with the room of a full frame.
pub(crate) struct Slots {
    held: Vec<Held>,
    slabs: Vec<Box<[u8]>>,
    /// The first of those that were used and are free. The one that was freed last comes first: it
    /// is still in the cache.
    free: u32,
    used: usize,
}

impl Held {
    const EMPTY: Held =
        Held { next: NONE, link: LinkId::from_bits(0), from: None, class: SizeClass::Full };
}

impl Default for Slots {
    fn default() -> Slots {
        Slots { held: Vec::new(), slabs: Vec::new(), free: NONE, used: 0 }
    }
}

impl Slots {
    /// Slots in use.
    pub(crate) fn used(&self) -> usize {
        self.used
    }

    pub(crate) fn get(&self, slot: u32) -> &Held {
        &self.held[slot as usize]
    }

    pub(crate) fn get_mut(&mut self, slot: u32) -> &mut Held {
        &mut self.held[slot as usize]
    }

    /// Copies a cell into a slot. What is known of it is to be written there.
    pub(crate) fn store(&mut self, cell: &[u8]) -> u32 {
        let slot = match self.free {
            NONE => {
                self.held.push(Held::EMPTY);
                self.held.len() as u32 - 1
            }
            slot => {
                self.free = self.get(slot).next;
                slot
            }
        };
        let (slab, at) = place(slot);
        if slab == self.slabs.len() {
            self.slabs.push(vec![0; SLAB * SLOT_LEN].into());
        }
        self.slabs[slab][at..at + cell.len()].copy_from_slice(cell);
        self.used += 1;
        slot
    }

    /// Copies the first bytes of a slot to `cell`.
    pub(crate) fn copy(&self, slot: u32, cell: &mut [u8]) {
        let (slab, at) = place(slot);
        cell.copy_from_slice(&self.slabs[slab][at..at + cell.len()]);
    }

    /// Frees a slot. With the last one in use, all memory but one slab goes back.
    pub(crate) fn free(&mut self, slot: u32) {
        self.get_mut(slot).next = self.free;
        self.free = slot;
        self.used -= 1;
        if self.used == 0 {
            self.free = NONE;
            self.held.clear();
            self.held.shrink_to(SLAB);
            self.slabs.truncate(1);
        }
    }

    /// Bytes that are taken from the system.
    pub(crate) fn bytes(&self) -> usize {
        self.slabs.len() * SLAB * SLOT_LEN + self.held.capacity() * size_of::<Held>()
    }
}

/// The slab of a slot, and where it starts there.
fn place(slot: u32) -> (usize, usize) {
    (slot as usize / SLAB, slot as usize % SLAB * SLOT_LEN)
}
