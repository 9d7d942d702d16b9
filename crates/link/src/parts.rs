//! Splits full frames for a path that carries only medium ones: three parts before sealing,
//! reassembled after opening.
//!
//! ```text
//! full:    | header 8 | kind, body: 1,416 bytes                  | tag 16 |
//! medium:  | header 8 | kind 3 | number 4 | place 1 | 472 bytes | zeroes | tag 16 |    three
//! ```
//!
//! Each part is sealed with its own counter. So only the neighbour can make a part, and no part
//! counts twice. The number of incomplete frames is bounded, and the oldest is dropped first.

use std::collections::VecDeque;

use shoal_wire::{DropReason, SizeClass, TAG_LEN, link};

const FULL: usize = SizeClass::Full.frame_len();
const MEDIUM: usize = SizeClass::Medium.frame_len();

/// Number of parts of a full frame.
pub const PARTS: usize = link::PARTS;
/// Maximum number of incomplete frames: 23 kB. Only a path that reorders by more frames needs more.
pub const WAITING_MAX: usize = 16;

/// Cuts the unsealed full frame at the start of `frame`, and appends its parts to `out` as unsealed
/// medium frames. `number` must differ from the numbers of recent frames.
pub fn cut(frame: &[u8], number: u32, out: &mut Vec<u8>) {
    let plain = &frame[link::KIND_AT..FULL - TAG_LEN];
    for (place, bytes) in plain.chunks_exact(link::PART_LEN).enumerate() {
        let start = out.len();
        out.resize(start + MEDIUM, 0);
        let part = &mut out[start..];
        part[link::KIND_AT] = shoal_wire::LinkKind::Part as u8;
        part[link::PART_NUMBER_AT..link::PART_PLACE_AT].copy_from_slice(&number.to_be_bytes());
        part[link::PART_PLACE_AT] = place as u8;
        part[link::PART_AT..link::PART_AT + link::PART_LEN].copy_from_slice(bytes);
    }
}

struct PartialFrame {
    number: u32,
    have: u8,
    frame: Box<[u8; FULL]>,
}

/// Incomplete frames of one neighbour.
#[derive(Default)]
pub struct FrameAssembly {
    waiting: VecDeque<PartialFrame>,
}

impl FrameAssembly {
    /// Adds an opened medium frame of kind part. If it completes a frame, that frame is appended to
    /// `out`, opened, with zeroes as header and tag.
    ///
    /// # Errors
    ///
    /// `malformed`: nothing has changed. `too_old`: the part is added, and the oldest incomplete
    /// frame is dropped.
    pub fn take(&mut self, part: &[u8], out: &mut Vec<u8>) -> Result<(), DropReason> {
        let number = part.get(link::PART_NUMBER_AT..).and_then(|b| b.first_chunk());
        let number = u32::from_be_bytes(*number.ok_or(DropReason::Malformed)?);
        let place = usize::from(*part.get(link::PART_PLACE_AT).ok_or(DropReason::Malformed)?);
        let bytes = part.get(link::PART_AT..link::PART_AT + link::PART_LEN);
        let bytes = bytes.filter(|_| place < PARTS).ok_or(DropReason::Malformed)?;
        let mut result = Ok(());
        let at = match self.waiting.iter().position(|w| w.number == number) {
            Some(at) => at,
            None => {
                if self.waiting.len() >= WAITING_MAX {
                    self.waiting.pop_front();
                    result = Err(DropReason::TooOld);
                }
                let frame = Box::new([0; FULL]);
                self.waiting.push_back(PartialFrame { number, have: 0, frame });
                self.waiting.len() - 1
            }
        };
        let waiting = &mut self.waiting[at];
        let start = link::KIND_AT + place * link::PART_LEN;
        waiting.frame[start..start + link::PART_LEN].copy_from_slice(bytes);
        waiting.have |= 1 << place;
        if waiting.have.count_ones() as usize == PARTS
            && let Some(whole) = self.waiting.remove(at)
        {
            out.extend_from_slice(&whole.frame[..]);
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn full(fill: u8) -> Vec<u8> {
        let mut frame: Vec<u8> = (0..FULL).map(|i| (i as u8).wrapping_mul(fill)).collect();
        frame[..link::KIND_AT].fill(0);
        frame[FULL - TAG_LEN..].fill(0);
        frame
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Frames come out unchanged and once, under any order, loss and duplication. A frame comes
        /// out if all its parts arrive while few others are incomplete.
        #[test]
        fn frames_come_out_as_they_went_in(
            frames in prop::collection::vec(any::<u8>(), 1..8),
            order in prop::collection::vec((0usize..8, 0usize..PARTS), 0..60),
        ) {
            let mut cuts = Vec::new();
            for (number, fill) in (0u32..).zip(&frames) {
                let mut parts = Vec::new();
                cut(&full(*fill), number, &mut parts);
                prop_assert_eq!(parts.len(), PARTS * MEDIUM);
                cuts.push(parts);
            }
            let mut assembly = FrameAssembly::default();
            let mut seen = vec![0u8; frames.len()];
            for (frame, place) in order {
                let frame = frame % frames.len();
                let part = &cuts[frame][place * MEDIUM..][..MEDIUM];
                let mut out = Vec::new();
                prop_assert_eq!(assembly.take(part, &mut out), Ok(()));
                seen[frame] |= 1 << place;
                if seen[frame].count_ones() as usize == PARTS {
                    prop_assert!(out == full(frames[frame]));
                    seen[frame] = 0;
                } else {
                    prop_assert!(out.is_empty());
                }
            }
        }

        #[test]
        fn any_sequence_of_parts_keeps_memory_bounded(
            parts in prop::collection::vec((any::<u32>(), any::<u8>(), 0usize..600), 0..200),
        ) {
            let mut assembly = FrameAssembly::default();
            for (number, place, len) in parts {
                let mut part = vec![1; len];
                if let Some(head) = part.get_mut(link::PART_NUMBER_AT..=link::PART_PLACE_AT) {
                    head[..4].copy_from_slice(&number.to_be_bytes());
                    head[4] = place;
                }
                let _refused = assembly.take(&part, &mut Vec::new());
                prop_assert!(assembly.waiting.len() <= WAITING_MAX);
            }
        }
    }
}
