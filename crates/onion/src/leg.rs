//! Legs: the protection of cells that one node sends to another. The key of a leg hides a cell's
//! circuit and counter. It also makes forged cells detectable.
//!
//! ```text
//! sample = bytes 10 to 25                            ciphertext of a layer, or filler
//! X      = AES(leg key, sample)                      nobody else's to know
//! index, counter, check  XOR  AES(leg key, X)        10 bytes; of the counter the low 20 bits
//! check  = 28 bits of AES(leg key, X XOR (index | counter | 1))
//! ```
//!
//! X and the check are CBC-MACs of two blocks, a pseudo-random function for messages of one length.
//! A forged cell passes its check with probability 2^-28.
//!
//! The receiver chooses one key for each sending node, and tells it with each index. A batch of
//! cells from one node is therefore read at once, whatever circuits they belong to. A sender stores
//! the key per circuit, since a restarted receiver tells a new one.

use std::collections::BTreeMap;

use shoal_crypto::{MaskKey, kdf};
use shoal_session::replay::{ReplayError, ReplayWindow};
use shoal_wire::leg::{BODY_AT, CHECK_BITS, COUNTER_AT, COUNTER_BITS, LegGrant, SAMPLE_AT};
use shoal_wire::{Address, DropReason};

use crate::layer::FillerParts;
use crate::slots::for_lane;

/// Most by which a counter may be ahead of the newest: so many cells in a row may be lost.
const JUMP_MAX: u64 = 1 << 17;
/// Most cells of a circuit in one direction and lane.
pub(crate) const CELLS_MAX: u64 = 1 << 28;

/// Direction of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// From the origin.
    Forward = 0,
    /// To the origin.
    Backward = 1,
}

/// Lane of a cell. Each lane has its own counters, windows and layer keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LegLane {
    /// Units between the two hosts.
    Data = 0,
    /// Messages between the origin and one hop.
    Control = 1,
}

/// Key of the cells from one node to another.
pub(crate) struct LegKey(MaskKey);

/// Head of a cell, with its mask removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CellHead {
    /// Index with the lane.
    pub(crate) index: u32,
    /// Counter and check.
    both: u64,
}

/// A cell that is complete except for its head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OutboundCell {
    pub(crate) start: u32,
    /// Index with the lane.
    pub(crate) index: u32,
    pub(crate) number: u64,
    pub(crate) key: KeyId,
}

/// Buffers for the life of the machine, so that no cell allocates.
#[derive(Default)]
pub(crate) struct Scratch {
    pub(crate) blocks: Vec<[u8; 16]>,
    masks: Vec<[u8; 16]>,
    /// Heads of a batch, as [`LegKey::read`] found them.
    pub(crate) heads: Vec<CellHead>,
    /// Numbers of a batch's cells. A replay window may still refuse them.
    pub(crate) numbers: Vec<Result<u64, DropReason>>,
    /// Cells of a batch that leave again.
    pub(crate) going: Vec<OutboundCell>,
    /// Parts to be filled.
    pub(crate) fill: FillerParts,
}

impl Scratch {
    /// Like [`LegKey::read`] and [`LegKey::check`] without a key: no cell is recognized.
    pub(crate) fn read_nothing(&mut self, count: usize) {
        self.heads.clear();
        // No valid index has all bits of its lane set.
        self.heads.resize(count, CellHead { index: u32::MAX, both: 0 });
        self.numbers.clear();
        self.numbers.resize(count, Err(DropReason::UnknownCircuit));
    }
}

fn word(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0, |acc, &b| (acc << 8) | u32::from(b))
}

fn sample(buf: &[u8], start: u32) -> [u8; 16] {
    let at = start as usize + SAMPLE_AT;
    buf[at..at + 16].try_into().expect("sixteen bytes")
}

/// Value XORed into X for the check. It is never zero, since zero gives the mask.
fn about(index: u32, number: u64) -> u128 {
    u128::from(index) << 96 | u128::from(number) << 32 | 1
}

/// XORs a value into a block.
fn mix(block: &mut [u8; 16], with: u128) {
    *block = (u128::from_be_bytes(*block) ^ with).to_be_bytes();
}

/// Index, and counter with check, from the first ten bytes of a block.
fn ten(block: &[u8]) -> (u32, u64) {
    (word(&block[..4]), u64::from(word(&block[4..6])) << 32 | u64::from(word(&block[6..10])))
}

/// Encrypts blocks. If at least half of a load of the widest instructions is left over, a padded
/// full load costs less than single blocks.
pub(crate) fn encrypt(key: &MaskKey, blocks: &mut Vec<[u8; 16]>) {
    const WIDE: usize = 64;
    let count = blocks.len();
    if count % WIDE >= WIDE / 2 {
        blocks.resize(count.next_multiple_of(WIDE), [0; 16]);
    }
    key.mask_batch(blocks);
    blocks.truncate(count);
}

impl LegKey {
    pub(crate) fn new(secret: &[u8; 32]) -> LegKey {
        LegKey(MaskKey::new(secret))
    }

    /// Reads the heads of a batch's cells into `scratch.heads`.
    pub(crate) fn read(&self, buf: &[u8], offsets: &[u32], scratch: &mut Scratch) {
        let Scratch { blocks, masks, heads, .. } = scratch;
        blocks.clear();
        blocks.extend(offsets.iter().map(|&start| sample(buf, start)));
        encrypt(&self.0, blocks);
        masks.clone_from(blocks);
        encrypt(&self.0, masks);
        heads.clear();
        heads.extend(offsets.iter().zip(masks).map(|(&start, mask)| {
            let start = start as usize;
            let (shown, mask) = (ten(&buf[start..start + BODY_AT]), ten(&mask[..]));
            CellHead { index: shown.0 ^ mask.0, both: shown.1 ^ mask.1 }
        }));
    }

    /// Finds the numbers of the cells that [`LegKey::read`] has read, one result each in
    /// `scratch.numbers`. `next` returns the expected number of an index, or none if the index is
    /// unknown.
    ///
    /// Results: `unknown_circuit`, `bad_leg`.
    pub(crate) fn check(&self, scratch: &mut Scratch, next: impl Fn(u32) -> Option<u64>) {
        let Scratch { blocks, heads, numbers, .. } = scratch;
        numbers.clear();
        for run in heads.chunk_by(|a, b| a.index == b.index) {
            let expected = next(run[0].index);
            numbers.extend(run.iter().map(|head| {
                let expected = expected.ok_or(DropReason::UnknownCircuit)?;
                let number = nearest(expected, head.both >> CHECK_BITS);
                let near = number < expected + JUMP_MAX && number < CELLS_MAX;
                near.then_some(number).ok_or(DropReason::BadLeg)
            }));
        }
        for ((block, head), number) in blocks.iter_mut().zip(&*heads).zip(&*numbers) {
            mix(block, about(head.index, number.unwrap_or(0)));
        }
        encrypt(&self.0, blocks);
        for ((block, head), number) in blocks.iter().zip(&*heads).zip(numbers) {
            if number.is_ok() && shorten(block) != head.both & ((1 << CHECK_BITS) - 1) {
                *number = Err(DropReason::BadLeg);
            }
        }
    }

    /// Writes the heads of cells with finished bodies.
    pub(crate) fn write(&self, buf: &mut [u8], cells: &[OutboundCell], blocks: &mut Vec<[u8; 16]>) {
        blocks.clear();
        blocks.extend(cells.iter().map(|cell| sample(buf, cell.start)));
        encrypt(&self.0, blocks);
        // The blocks for the masks come first, the blocks for the checks after them.
        blocks.extend_from_within(..);
        for (check, cell) in blocks[cells.len()..].iter_mut().zip(cells) {
            mix(check, about(cell.index, cell.number));
        }
        encrypt(&self.0, blocks);
        let (masks, checks) = blocks.split_at(cells.len());
        for ((cell, mask), check) in cells.iter().zip(masks).zip(checks) {
            let low = cell.number & ((1 << COUNTER_BITS) - 1);
            let (mask, both) = (ten(mask), low << CHECK_BITS | shorten(check));
            let head = &mut buf[cell.start as usize..cell.start as usize + BODY_AT];
            head[..COUNTER_AT].copy_from_slice(&(cell.index ^ mask.0).to_be_bytes());
            head[COUNTER_AT..].copy_from_slice(&(both ^ mask.1).to_be_bytes()[2..]);
        }
    }
}

/// Names a key under which this node sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct KeyId(u32);

struct SendKeyEntry {
    name: (Address, [u8; 32]),
    key: LegKey,
    uses: usize,
}

/// Keys under which this node sends: one for each key that another node told it.
#[derive(Default)]
pub(crate) struct SendKeys {
    keys: Vec<Option<SendKeyEntry>>,
    ids: BTreeMap<(Address, [u8; 32]), KeyId>,
    free: Vec<KeyId>,
    /// Keys whose last leg has ended since [`SendKeys::forget`].
    unused: Vec<KeyId>,
}

impl SendKeys {
    /// Registers a use of the key that `node` told. Each use must be given back once.
    pub(crate) fn take(&mut self, node: Address, secret: &[u8; 32]) -> KeyId {
        let name = (node, kdf(secret, "shoal v1 leg key name", &[]));
        let Self { keys, ids, free, .. } = self;
        let id = *ids.entry(name).or_insert_with(|| {
            let kept = Some(SendKeyEntry { name, key: LegKey::new(secret), uses: 0 });
            match free.pop() {
                Some(id) => {
                    keys[id.0 as usize] = kept;
                    id
                }
                None => {
                    keys.push(kept);
                    KeyId(keys.len() as u32 - 1)
                }
            }
        });
        if let Some(kept) = &mut keys[id.0 as usize] {
            kept.uses += 1;
        }
        id
    }

    /// Ends one use of a key. Cells that are leaving may use it until [`SendKeys::forget`].
    pub(crate) fn give_back(&mut self, id: KeyId) {
        if let Some(kept) = &mut self.keys[id.0 as usize] {
            kept.uses -= 1;
            if kept.uses == 0 {
                self.unused.push(id);
            }
        }
    }

    /// Forgets the keys that no leg uses.
    pub(crate) fn forget(&mut self) {
        for id in self.unused.drain(..) {
            let slot = &mut self.keys[id.0 as usize];
            if let Some(kept) = slot.take_if(|kept| kept.uses == 0) {
                self.ids.remove(&kept.name);
                self.free.push(id);
            }
        }
    }

    /// Writes the heads of cells that leave under any keys.
    pub(crate) fn write(
        &self,
        buf: &mut [u8],
        cells: &mut [OutboundCell],
        blocks: &mut Vec<[u8; 16]>,
    ) {
        if cells.windows(2).any(|pair| pair[0].key > pair[1].key) {
            cells.sort_unstable_by_key(|cell| cell.key);
        }
        for run in cells.chunk_by(|a, b| a.key == b.key) {
            if let Some(kept) = &self.keys[run[0].key.0 as usize] {
                kept.key.write(buf, run, blocks);
            }
        }
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.ids.len()
    }
}

/// Data for sending over a leg.
#[derive(Clone, Copy)]
pub(crate) struct Leg {
    /// The node at the other end.
    pub(crate) node: Address,
    index: u32,
    /// A use of the key that belongs to this leg; given back once.
    pub(crate) key: KeyId,
}

impl Leg {
    pub(crate) fn new(node: Address, grant: &LegGrant, keys: &mut SendKeys) -> Leg {
        Leg { node, index: grant.index, key: keys.take(node, &grant.key) }
    }

    /// A cell that leaves over this leg.
    pub(crate) fn going(&self, lane: LegLane, start: u32, number: u64) -> OutboundCell {
        OutboundCell { start, index: for_lane(self.index, lane), number, key: self.key }
    }
}

/// Checks that a number was not accepted before.
///
/// Errors: `replayed`, `too_old`.
pub(crate) fn is_new(window: &ReplayWindow, number: u64) -> Result<(), DropReason> {
    window.check(number as u32).map_err(|refused| match refused {
        ReplayError::Seen => DropReason::Replayed,
        ReplayError::Old => DropReason::TooOld,
    })
}

/// First 28 bits of a MAC.
fn shorten(mac: &[u8; 16]) -> u64 {
    u64::from(word(&mac[..4])) >> (32 - CHECK_BITS)
}

/// The counter nearest to `expected` whose low bits are `low`.
fn nearest(expected: u64, low: u64) -> u64 {
    const SPAN: u64 = 1 << COUNTER_BITS;
    let candidate = (expected & !(SPAN - 1)) | low;
    if candidate > expected + SPAN / 2 && candidate >= SPAN {
        candidate - SPAN
    } else if candidate + SPAN / 2 < expected {
        candidate + SPAN
    } else {
        candidate
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn write(secret: u8, index: u32, number: u64, cell: &mut [u8]) {
        let going = OutboundCell { start: 0, index, number, key: KeyId(0) };
        LegKey::new(&[secret; 32]).write(cell, &[going], &mut Vec::new());
    }

    /// The index in a cell's head, and its number if `index` is the expected one.
    fn read(secret: u8, index: u32, next: u64, cell: &[u8]) -> (u32, Result<u64, DropReason>) {
        let (key, mut scratch) = (LegKey::new(&[secret; 32]), Scratch::default());
        key.read(cell, &[0], &mut scratch);
        key.check(&mut scratch, |found| (found == index).then_some(next));
        (scratch.heads[0].index, scratch.numbers[0])
    }

    proptest! {
        #[test]
        fn counters_come_back(next in 0_u64..CELLS_MAX - JUMP_MAX, ahead in 0_u64..JUMP_MAX) {
            let mut cell = [7; 64];
            write(1, 0xab80_0003, next + ahead, &mut cell);
            let found = read(1, 0xab80_0003, next, &cell);
            prop_assert_eq!(found, (0xab80_0003, Ok(next + ahead)));
        }

        #[test]
        fn a_changed_cell_fails_its_check(bit in 32_usize..26 * 8) {
            let mut cell = [7; 64];
            write(1, 3, 40, &mut cell);
            cell[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(read(1, 3, 0, &cell).1.is_err());
        }

        #[test]
        fn a_changed_index_fails_its_check(bit in 0_usize..32) {
            let mut cell = [7; 64];
            write(1, 3, 40, &mut cell);
            cell[bit / 8] ^= 1 << (bit % 8);
            let changed = 3 ^ u32::from_be_bytes(core::array::from_fn(|at| {
                if at == bit / 8 { 1 << (bit % 8) } else { 0 }
            }));
            prop_assert_eq!(read(1, changed, 0, &cell), (changed, Err(DropReason::BadLeg)));
        }
    }

    #[test]
    fn a_batch_is_what_its_cells_are_one_by_one() {
        let mut keys = SendKeys::default();
        let grants = [1, 2].map(|n| LegGrant { index: n * 5, key: [n as u8; 32] });
        let legs = [0, 1].map(|n| Leg::new(Address::new(1, 0), &grants[n], &mut keys));
        let mut buf: Vec<u8> = (0..64 * 90_u32).map(|n| (n * n / 7) as u8).collect();
        let mut one_by_one = buf.clone();
        let mut cells: Vec<OutboundCell> = (0..90)
            .map(|n| legs[n as usize % 2].going(LegLane::Control, n * 64, 70 + u64::from(n)))
            .collect();
        for cell in &cells {
            let n = (cell.start / 64 % 2) as u8 + 1;
            let bytes = &mut one_by_one[cell.start as usize..][..64];
            write(n, cell.index, cell.number, bytes);
        }
        keys.write(&mut buf, &mut cells, &mut Vec::new());
        assert!(buf == one_by_one);
        let (key, mut scratch) = (LegKey::new(&[2; 32]), Scratch::default());
        let offsets: Vec<u32> = (0..45).map(|n| n * 128 + 64).collect();
        key.read(&buf, &offsets, &mut scratch);
        key.check(&mut scratch, |index| (index == for_lane(10, LegLane::Control)).then_some(0));
        let want: Vec<_> = (0..45).map(|n| Ok(71 + 2 * n)).collect();
        assert_eq!(scratch.numbers, want);
    }

    #[test]
    fn a_key_is_kept_as_long_as_a_leg_has_it() {
        let mut keys = SendKeys::default();
        let mut leg = |node, n| {
            let leg =
                Leg::new(Address::new(node, 0), &LegGrant { index: 1, key: [n; 32] }, &mut keys);
            leg.key
        };
        let [a, b, c, d] = [leg(1, 1), leg(1, 1), leg(1, 2), leg(2, 1)];
        assert!(a == b && a != c && a != d && c != d);
        [a, c, d].into_iter().for_each(|id| keys.give_back(id));
        assert_eq!(keys.len(), 3, "cells may be going under them");
        keys.forget();
        assert_eq!(keys.len(), 1);
        keys.give_back(b);
        // Used again before it was forgotten.
        let again = keys.take(Address::new(1, 0), &[1; 32]);
        keys.forget();
        assert_eq!((again, keys.len()), (b, 1));
        keys.give_back(again);
        keys.forget();
        assert_eq!(keys.len(), 0);
    }

    #[test]
    fn what_jumps_too_far_is_refused() {
        let mut cell = [7; 64];
        for (counter, want) in
            [(JUMP_MAX - 1, Ok(JUMP_MAX - 1)), (JUMP_MAX, Err(DropReason::BadLeg))]
        {
            write(1, 3, counter, &mut cell);
            assert_eq!(read(1, 3, 0, &cell), (3, want));
        }
    }

    #[test]
    fn nodes_have_keys_of_their_own() {
        let mut cell = [7; 64];
        write(1, 3, 9, &mut cell);
        assert_ne!(read(2, 3, 0, &cell).0, 3);
        assert_eq!(read(1, 4, 0, &cell), (3, Err(DropReason::UnknownCircuit)));
    }
}
