//! What the frames of a slot hold.

use shoal_link::{Egress, parts};
use shoal_wire::{LinkKind, SizeClass, TAG_LEN, link};

const LEN: usize = SizeClass::Full.frame_len();

/// Frames of one class that lie one behind the other.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) class: SizeClass,
    pub(super) count: usize,
    /// How many of them hold nothing.
    pub(super) cover: usize,
    pub(super) sealed: bool,
}

/// What slots were filled with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Filled {
    pub(super) shape: Shape,
    /// Of how many full frames it takes the place.
    pub(super) uses: usize,
    /// Medium frames of cover that are to leave behind it, so that it does.
    pub(super) pad: usize,
    /// Frames that carry something.
    pub(super) filled: usize,
    /// Sealed frames of a length that slots don't have: they waited when the slots began.
    pub(super) forgotten: usize,
}

/// Whether a sealed frame of this class may leave in a slot: a full one, and a part of a handshake
/// where frames leave in parts.
pub(super) fn fits(class: SizeClass, small: bool) -> bool {
    class == SizeClass::Full || (small && class == SizeClass::Medium)
}

/// Moves what waits in the egress to `buf`, to take the place of at most `max` full frames: what is
/// sealed; or else the rest, as full frames, and behind them cover, so that there are `max`.
pub(super) fn fill(egress: &mut Egress, buf: &mut [u8], max: usize, small: bool) -> Filled {
    let mut forgotten = 0;
    while let Some(class) = egress.sealed_class() {
        let each = if class == SizeClass::Full { 1 } else { parts::PARTS };
        let Some(run) = egress.take_run(buf, max * each) else { break };
        if fits(class, small) {
            let uses = run.count.div_ceil(each);
            let shape = Shape { class, count: run.count, cover: 0, sealed: true };
            let pad = uses * each - run.count;
            return Filled { shape, uses, pad, filled: uses, forgotten };
        }
        forgotten += run.count;
    }
    let mut filled = 0;
    for _ in 0..max {
        // A turn of a peer without a cell is cover, whatever others have.
        if let Some(run) = egress.take_turn(&mut buf[filled * LEN..(filled + 1) * LEN]) {
            widen(&mut buf[filled * LEN..(filled + 1) * LEN], run.class);
            filled += 1;
        }
    }
    empty(&mut buf[filled * LEN..max * LEN], LEN);
    let shape = Shape { class: SizeClass::Full, count: max, cover: max - filled, sealed: false };
    Filled { shape, uses: max, pad: 0, filled, forgotten }
}

/// Fills `buf` with so many medium frames that hold nothing, or as many as it has room for.
pub(super) fn cover_frames(buf: &mut [u8], count: usize) -> Shape {
    let class = SizeClass::Medium;
    let count = count.min(buf.len() / class.frame_len());
    empty(&mut buf[..count * class.frame_len()], class.frame_len());
    Shape { class, count, cover: count, sealed: false }
}

fn empty(frames: &mut [u8], len: usize) {
    for frame in frames.chunks_exact_mut(len) {
        frame.fill(0);
        frame[link::KIND_AT] = LinkKind::Cover as u8;
    }
}

/// Has a frame of a shorter class fill a full one, whose bytes behind it are zeroed. A cell says by
/// its kind how long it was.
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
