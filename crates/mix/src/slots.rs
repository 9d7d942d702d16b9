//! Memory for waiting cells.

use shoal_wire::{Address, LinkId, SizeClass};

/// Marks the end of a list of slots.
pub(crate) const NONE: u32 = u32::MAX;

const SLOT_LEN: usize = SizeClass::Full.frame_len();
/// Slots allocated at a time: 92 kB. One growing buffer would copy all waiting cells whenever it
/// grows, and use up to twice the memory.
const SLAB: usize = 64;

/// Metadata of a waiting cell.
#[derive(Clone, Copy)]
pub(crate) struct CellSlot {
    /// The next slot of its list, or [`NONE`].
    pub(crate) next: u32,
    pub(crate) link: LinkId,
    /// The node that sent the cell here. None if the cell leaves in order of arrival.
    pub(crate) from: Option<Address>,
    pub(crate) class: SizeClass,
}

/// Slots for cells of all classes, each as long as a full frame.
pub(crate) struct CellSlab {
    held: Vec<CellSlot>,
    slabs: Vec<Box<[u8]>>,
    /// Head of the free list. The slot freed last comes first, since it is still in the cache.
    free: u32,
    used: usize,
}

impl CellSlot {
    const EMPTY: CellSlot =
        CellSlot { next: NONE, link: LinkId::from_bits(0), from: None, class: SizeClass::Full };
}

impl Default for CellSlab {
    fn default() -> CellSlab {
        CellSlab { held: Vec::new(), slabs: Vec::new(), free: NONE, used: 0 }
    }
}

impl CellSlab {
    /// Number of slots in use.
    pub(crate) fn used(&self) -> usize {
        self.used
    }

    pub(crate) fn get(&self, slot: u32) -> &CellSlot {
        &self.held[slot as usize]
    }

    pub(crate) fn get_mut(&mut self, slot: u32) -> &mut CellSlot {
        &mut self.held[slot as usize]
    }

    /// Copies a cell into a slot. The caller must then set the slot's metadata.
    pub(crate) fn store(&mut self, cell: &[u8]) -> u32 {
        let slot = match self.free {
            NONE => {
                self.held.push(CellSlot::EMPTY);
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

    /// Frees a slot. When no slot is in use, this frees all slabs but one.
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

    /// Bytes allocated.
    pub(crate) fn bytes(&self) -> usize {
        self.slabs.len() * SLAB * SLOT_LEN + self.held.capacity() * size_of::<CellSlot>()
    }
}

/// The slab of a slot, and the slot's offset there.
fn place(slot: u32) -> (usize, usize) {
    (slot as usize / SLAB, slot as usize % SLAB * SLOT_LEN)
}
