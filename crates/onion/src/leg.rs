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

fn sample(cell: &[u8]) -> [u8; 16] {
    let mut sample = [0; 16];
    sample.copy_from_slice(&cell[SAMPLE_AT..SAMPLE_AT + 16]);
    sample
}

fn word(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0, |acc, &b| (acc << 8) | u32::from(b))
}

/// The index that a cell shows under `mask`.
pub(crate) fn index(mask: &MaskKey, cell: &[u8]) -> u32 {
    word(&cell[..COUNTER_AT]) ^ word(&mask.mask(&sample(cell))[..4])
}

impl LegKeys {
    pub(crate) fn new(secret: &Secret<32>, direction: Direction) -> LegKeys {
        let key = |label| MaskKey::new(&kdf(secret.expose(), label, &[&[direction as u8]]));
        LegKeys { mask: key("shoal v1 leg mask"), check: key("shoal v1 leg check") }
    }

    fn check(&self, sample: &[u8; 16], index: u32, counter: u64) -> u64 {
        let mut block = self.check.mask(sample);
        for (byte, with) in block.iter_mut().zip(index.to_be_bytes()) {
            *byte ^= with;
        }
        for (byte, with) in block[4..].iter_mut().zip(counter.to_be_bytes()) {
            *byte ^= with;
        }
        let mac = self.check.mask(&block);
        (u64::from(word(&mac[..4])) << 32 | u64::from(word(&mac[4..8]))) >> (64 - CHECK_BITS)
    }

    fn counter_mask(&self, sample: &[u8; 16]) -> u64 {
        let mask = self.mask.mask(sample);
        (u64::from(word(&mask[..4])) << 16) | u64::from(word(&mask[4..6]))
    }

    /// Writes index, counter and check of a cell whose body is done. `index` holds the lane.
    pub(crate) fn write(&self, index_mask: &MaskKey, index: u32, counter: u64, cell: &mut [u8]) {
        let sample = sample(cell);
        let shown = index ^ word(&index_mask.mask(&sample)[..4]);
        cell[..COUNTER_AT].copy_from_slice(&shown.to_be_bytes());
        let low = counter & ((1 << COUNTER_BITS) - 1);
        let both =
            (low << CHECK_BITS | self.check(&sample, index, counter)) ^ self.counter_mask(&sample);
        cell[COUNTER_AT..BODY_AT].copy_from_slice(&both.to_be_bytes()[2..]);
    }

    /// The counter of a cell with this index, when it is new. The window does not change.
    ///
    /// # Errors
    ///
    /// `bad_leg`, `replayed`, `too_old`.
    pub(crate) fn read(&self, index: u32, window: &Window, cell: &[u8]) -> Result<u64, DropReason> {
        let sample = sample(cell);
        let shown = (u64::from(word(&cell[COUNTER_AT..COUNTER_AT + 2])) << 32)
            | u64::from(word(&cell[COUNTER_AT + 2..BODY_AT]));
        let both = shown ^ self.counter_mask(&sample);
        let counter = nearest(u64::from(window.next()), both >> CHECK_BITS);
        let check = both & ((1 << CHECK_BITS) - 1);
        let near = counter < u64::from(window.next()) + JUMP_MAX && counter < CELLS_MAX;
        if !near || self.check(&sample, index, counter) != check {
            return Err(DropReason::BadLeg);
        }
        window.check(counter as u32).map_err(|refused| match refused {
            Refused::Seen => DropReason::Replayed,
            Refused::Old => DropReason::TooOld,
        })?;
        Ok(counter)
    }
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
