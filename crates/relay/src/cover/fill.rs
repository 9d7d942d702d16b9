//! Contents of a slot's frames.

use shoal_link::{Egress, parts};
use shoal_wire::{LinkKind, SizeClass, TAG_LEN, link};

const LEN: usize = SizeClass::Full.frame_len();

/// Consecutive frames of one class in a buffer.
#[derive(Clone, Copy, Debug)]
pub(super) struct FrameGroup {
    pub(super) class: SizeClass,
    pub(super) count: usize,
    /// Number of cover frames among them.
    pub(super) cover: usize,
    pub(super) sealed: bool,
}

/// The frames that fill slots.
#[derive(Clone, Copy, Debug)]
pub(super) struct SlotContents {
    pub(super) shape: FrameGroup,
    /// Number of full frames that it replaces.
    pub(super) uses: usize,
    /// Number of medium cover frames that must follow to fill the last slot.
    pub(super) pad: usize,
    /// Number of frames with data or control.
    pub(super) filled: usize,
    /// Number of dropped sealed frames of a length that slots don't have. They were queued before
    /// the slots began.
    pub(super) forgotten: usize,
}

/// True if a sealed frame of this class may leave in a slot. Full frames may; on a path that needs
/// parts, so may the parts of handshakes.
pub(super) fn fits(class: SizeClass, small: bool) -> bool {
    class == SizeClass::Full || (small && class == SizeClass::Medium)
}

/// Moves queued frames to `buf`, to fill at most `max` full frames. Sealed frames come first and
/// alone. Otherwise unsealed frames are widened to full frames, and cover fills up to `max`.
pub(super) fn fill(egress: &mut Egress, buf: &mut [u8], max: usize, small: bool) -> SlotContents {
    let mut forgotten = 0;
    while let Some(class) = egress.sealed_class() {
        let each = if class == SizeClass::Full { 1 } else { parts::PARTS };
        let Some(run) = egress.take_run(buf, max * each) else { break };
        if fits(class, small) {
            let uses = run.count.div_ceil(each);
            let shape = FrameGroup { class, count: run.count, cover: 0, sealed: true };
            let pad = uses * each - run.count;
            return SlotContents { shape, uses, pad, filled: uses, forgotten };
        }
        forgotten += run.count;
    }
    let mut filled = 0;
    for _ in 0..max {
        // A turn of a peer without a cell becomes cover, even if other peers have cells.
        if let Some(run) = egress.take_turn(&mut buf[filled * LEN..(filled + 1) * LEN]) {
            widen(&mut buf[filled * LEN..(filled + 1) * LEN], run.class);
            filled += 1;
        }
    }
    empty(&mut buf[filled * LEN..max * LEN], LEN);
    let shape =
        FrameGroup { class: SizeClass::Full, count: max, cover: max - filled, sealed: false };
    SlotContents { shape, uses: max, pad: 0, filled, forgotten }
}

/// Writes this number of medium cover frames to `buf`, as many as fit.
pub(super) fn cover_frames(buf: &mut [u8], count: usize) -> FrameGroup {
    let class = SizeClass::Medium;
    let count = count.min(buf.len() / class.frame_len());
    empty(&mut buf[..count * class.frame_len()], class.frame_len());
    FrameGroup { class, count, cover: count, sealed: false }
}

fn empty(frames: &mut [u8], len: usize) {
    for frame in frames.chunks_exact_mut(len) {
        frame.fill(0);
        frame[link::KIND_AT] = LinkKind::Cover as u8;
    }
}

/// Widens a shorter frame to a full one and zeroes the rest. A cell's kind encodes its original
/// length.
fn widen(frame: &mut [u8], class: SizeClass) {
    if class == SizeClass::Full {
        return;
    }
    if frame[link::KIND_AT] == LinkKind::Cell as u8 {
        let small = class == SizeClass::Small;
        let kind = if small { LinkKind::SmallCell } else { LinkKind::MediumCell };
        frame[link::KIND_AT] = kind as u8;
    }
    frame[class.frame_len() - TAG_LEN..].fill(0);
}
