//! Legs: two nodes of a circuit that follow each other. The leg's keys hide which circuit a cell is
//! of and how many went before, and refuse what somebody else made.
//!
//! ```text
//! sample = bytes 10 to 26                       ciphertext of a layer, or filler
//! index   XOR  AES(index mask key, sample)      the receiver's key for this sender
//! counter XOR  AES(leg mask key, sample)        low 20 bits
//! check   =    28 bits of AES(leg check key, AES(leg check key, sample) XOR (index | counter))
//! ```
//!
//! The check is CBC-MAC over two blocks, a pseudo-random function for messages of one length. A
//! forged cell passes it with probability 2^-28.

use shoal_crypto::{MaskKey, Secret, kdf};
use shoal_session::replay::{Refused, Window};
use shoal_wire::DropReason;
use shoal_wire::leg::{BODY_AT, CHECK_BITS, COUNTER_AT, COUNTER_BITS, SAMPLE_AT};

/// The farthest that a counter may be ahead of the newest: this many cells in a row may get lost.
const JUMP_MAX: u64 = 1 << 17;
/// Cells of a circuit in one direction and lane at most.
pub(crate) const CELLS_MAX: u64 = 1 << 28;

/// Which way a cell goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// From the origin on.
    Forward = 0,
    /// Back to the origin.
    Backward = 1,
}

/// What a cell is part of: each has counters, windows and layer keys of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lane {
    /// What two hosts exchange.
    Data = 0,
    /// What the origin and one hop say to each other.
    Control = 1,
}

/// The keys of one direction of a leg.
pub(crate) struct LegKeys {
    mask: MaskKey,
    check: MaskKey,
}

/// Buffers that live as long as the machine, so that no cell allocates.
#[derive(Default)]
pub(crate) struct Scratch {
    samples: Vec<[u8; 16]>,
    masks: Vec<[u8; 16]>,
    checks: Vec<[u8; 16]>,
    /// What [`LegKeys::read_run`] found, one for each cell.
    pub(crate) numbers: Vec<Result<u64, DropReason>>,
    /// Cells that go on: where they start, and their numbers.
    pub(crate) live: Vec<(u32, u64)>,
    /// For fillers.
    pub(crate) blocks: Vec<[u8; 16]>,
}

fn word(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0, |acc, &b| (acc << 8) | u32::from(b))
}

/// The first six bytes, as a number.
fn six(bytes: &[u8]) -> u64 {
    (u64::from(word(&bytes[..2])) << 32) | u64::from(word(&bytes[2..6]))
}

fn take_samples(samples: &mut Vec<[u8; 16]>, buf: &[u8], starts: impl Iterator<Item = u32>) {
    samples.clear();
    samples.extend(starts.map(|start| {
        let at = start as usize + SAMPLE_AT;
        let mut sample = [0; 16];
        sample.copy_from_slice(&buf[at..at + 16]);
        sample
    }));
}

/// The indexes that cells show under `mask`.
pub(crate) fn indexes(
    mask: &MaskKey,
    buf: &[u8],
    offsets: &[u32],
    scratch: &mut Scratch,
    out: &mut Vec<u32>,
) {
    take_samples(&mut scratch.samples, buf, offsets.iter().copied());
    mask.mask_batch(&mut scratch.samples);
    out.clear();
    out.extend(offsets.iter().zip(&scratch.samples).map(|(&start, mask)| {
        word(&buf[start as usize..start as usize + COUNTER_AT]) ^ word(&mask[..4])
    }));
}

impl LegKeys {
    pub(crate) fn new(secret: &Secret<32>, direction: Direction) -> LegKeys {
        let key = |label| MaskKey::new(&kdf(secret.expose(), label, &[&[direction as u8]]));
        LegKeys { mask: key("shoal v1 leg mask"), check: key("shoal v1 leg check") }
    }

    /// Makes the blocks in `checks`, which are samples encrypted once, into checks. `numbers` are
    /// those of the cells.
    fn finish_checks(
        &self,
        index: u32,
        numbers: impl Iterator<Item = u64>,
        checks: &mut [[u8; 16]],
    ) {
        for (block, number) in checks.iter_mut().zip(numbers) {
            for (byte, with) in block.iter_mut().zip(index.to_be_bytes()) {
                *byte ^= with;
            }
            for (byte, with) in block[4..].iter_mut().zip(number.to_be_bytes()) {
                *byte ^= with;
            }
        }
        self.check.mask_batch(checks);
    }

    /// Writes index, counter and check of cells whose bodies are done. `cells` are where they start
    /// and their numbers; `index` holds the lane.
    pub(crate) fn write_run(
        &self,
        index_mask: &MaskKey,
        index: u32,
        buf: &mut [u8],
        cells: &[(u32, u64)],
        scratch: &mut Scratch,
    ) {
        let Scratch { samples, masks, checks, .. } = scratch;
        take_samples(samples, buf, cells.iter().map(|&(start, _)| start));
        masks.clone_from(samples);
        checks.clone_from(samples);
        index_mask.mask_batch(samples);
        self.mask.mask_batch(masks);
        self.check.mask_batch(checks);
        self.finish_checks(index, cells.iter().map(|&(_, number)| number), checks);
        let hidden = samples.iter().zip(&*masks).zip(&*checks);
        for (&(start, number), ((index_mask, mask), check)) in cells.iter().zip(hidden) {
            let cell = &mut buf[start as usize..start as usize + BODY_AT];
            let shown = index ^ word(&index_mask[..4]);
            cell[..COUNTER_AT].copy_from_slice(&shown.to_be_bytes());
            let low = number & ((1 << COUNTER_BITS) - 1);
            let both = (low << CHECK_BITS | shorten(check)) ^ six(mask);
            cell[COUNTER_AT..].copy_from_slice(&both.to_be_bytes()[2..]);
        }
    }

    /// Finds the numbers of cells with this index that are new, one result for each in
    /// `scratch.numbers`. The window does not change: of two cells with one number both are found.
    ///
    /// Results: `bad_leg`, `replayed`, `too_old`.
    pub(crate) fn read_run(
        &self,
        index: u32,
        window: &Window,
        buf: &[u8],
        offsets: &[u32],
        scratch: &mut Scratch,
    ) {
        let Scratch { samples, masks, checks, numbers, .. } = scratch;
        take_samples(samples, buf, offsets.iter().copied());
        masks.clone_from(samples);
        checks.clone_from(samples);
        self.mask.mask_batch(masks);
        self.check.mask_batch(checks);
        let expected = u64::from(window.next());
        numbers.clear();
        // The check stands beside the low bits until it is compared.
        samples.iter_mut().zip(offsets).zip(&*masks).for_each(|((sample, &start), mask)| {
            let at = start as usize + COUNTER_AT;
            let both = six(&buf[at..at + 6]) ^ six(mask);
            sample[..8].copy_from_slice(&both.to_be_bytes());
            numbers.push(Ok(nearest(expected, both >> CHECK_BITS)));
        });
        self.finish_checks(index, numbers.iter().map(|number| number.unwrap_or(0)), checks);
        for ((number, sample), check) in numbers.iter_mut().zip(&*samples).zip(&*checks) {
            let Ok(found) = *number else { continue };
            let shown = six(&sample[2..8]) & ((1 << CHECK_BITS) - 1);
            let near = found < expected + JUMP_MAX && found < CELLS_MAX;
            if !near || shorten(check) != shown {
                *number = Err(DropReason::BadLeg);
            } else if let Err(reason) = is_new(window, found) {
                *number = Err(reason);
            }
        }
    }
}

/// Whether a number was not accepted yet.
///
/// Errors: `replayed`, `too_old`.
pub(crate) fn is_new(window: &Window, number: u64) -> Result<(), DropReason> {
    window.check(number as u32).map_err(|refused| match refused {
        Refused::Seen => DropReason::Replayed,
        Refused::Old => DropReason::TooOld,
    })
}

/// The first 28 bits of a MAC.
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

    impl LegKeys {
        fn write(&self, mask: &MaskKey, index: u32, number: u64, cell: &mut [u8]) {
            self.write_run(mask, index, cell, &[(0, number)], &mut Scratch::default());
        }

        fn read(&self, index: u32, window: &Window, cell: &[u8]) -> Result<u64, DropReason> {
            let mut scratch = Scratch::default();
            self.read_run(index, window, cell, &[0], &mut scratch);
            scratch.numbers[0]
        }
    }

    fn index(mask: &MaskKey, cell: &[u8]) -> u32 {
        let mut out = Vec::new();
        indexes(mask, cell, &[0], &mut Scratch::default(), &mut out);
        out[0]
    }

    fn keys() -> (LegKeys, MaskKey) {
        (LegKeys::new(&Secret::new([1; 32]), Direction::Forward), MaskKey::new(&[2; 32]))
    }

    proptest! {
        #[test]
        fn counters_come_back(next in 0_u64..CELLS_MAX - JUMP_MAX, ahead in 0_u64..JUMP_MAX) {
            let (keys, mask) = keys();
            let mut window = Window::new(64);
            if next > 0 {
                window.accept(next as u32 - 1);
            }
            let mut cell = [7; 64];
            keys.write(&mask, 0xab80_0003, next + ahead, &mut cell);
            prop_assert_eq!(index(&mask, &cell), 0xab80_0003);
            prop_assert_eq!(keys.read(0xab80_0003, &window, &cell), Ok(next + ahead));
            prop_assert_eq!(keys.read(0xab80_0004, &window, &cell), Err(DropReason::BadLeg));
        }

        #[test]
        fn a_changed_cell_fails_its_check(bit in 32_usize..26 * 8) {
            let (keys, mask) = keys();
            let mut cell = [7; 64];
            keys.write(&mask, 3, 40, &mut cell);
            cell[bit / 8] ^= 1 << (bit % 8);
            let read = keys.read(3, &Window::new(64), &cell);
            prop_assert_eq!(read, Err(DropReason::BadLeg));
        }
    }

    #[test]
    fn a_run_is_what_its_cells_are_one_by_one() {
        let (keys, mask) = keys();
        let mut buf: Vec<u8> = (0..64 * 40_u32).map(|n| (n * n / 7) as u8).collect();
        let mut one_by_one = buf.clone();
        let offsets: Vec<u32> = (0..40).map(|n| n * 64).collect();
        let cells: Vec<(u32, u64)> = offsets.iter().map(|&o| (o, 70 + u64::from(o))).collect();
        keys.write_run(&mask, 3, &mut buf, &cells, &mut Scratch::default());
        for &(start, number) in &cells {
            keys.write(&mask, 3, number, &mut one_by_one[start as usize..][..64]);
        }
        assert_eq!(buf, one_by_one);
        let mut scratch = Scratch::default();
        keys.read_run(3, &Window::new(64), &buf, &offsets, &mut scratch);
        let want: Vec<_> = cells.iter().map(|&(_, number)| Ok(number)).collect();
        assert_eq!(scratch.numbers, want);
    }

    #[test]
    fn what_jumps_too_far_is_refused() {
        let (keys, mask) = keys();
        let mut cell = [7; 64];
        for (counter, want) in
            [(JUMP_MAX - 1, Ok(JUMP_MAX - 1)), (JUMP_MAX, Err(DropReason::BadLeg))]
        {
            keys.write(&mask, 3, counter, &mut cell);
            assert_eq!(keys.read(3, &Window::new(64), &cell), want);
        }
    }

    #[test]
    fn a_counter_counts_once() {
        let (keys, mask) = keys();
        let mut window = Window::new(64);
        let mut cell = [7; 64];
        keys.write(&mask, 3, 9, &mut cell);
        assert_eq!(keys.read(3, &window, &cell), Ok(9));
        window.accept(9);
        assert_eq!(keys.read(3, &window, &cell), Err(DropReason::Replayed));
        window.accept(90_000);
        assert_eq!(keys.read(3, &window, &cell), Err(DropReason::TooOld));
    }

    #[test]
    fn directions_have_keys_of_their_own() {
        let (keys, mask) = keys();
        let back = LegKeys::new(&Secret::new([1; 32]), Direction::Backward);
        let mut cell = [7; 64];
        keys.write(&mask, 3, 9, &mut cell);
        assert_eq!(back.read(3, &Window::new(64), &cell), Err(DropReason::BadLeg));
    }
}
