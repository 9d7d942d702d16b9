//! What the first worker's data path can't finish. The frames stay where they lie, and the relay
//! finishes them after the batch, in the same buffer.

use shoal_session::Endpoints;

use crate::{FrameAt, Handed, Handoff, LocalCells, Unfinished};

/// Places of frames in the buffer of the present batch.
#[derive(Default)]
pub(crate) struct Kept {
    /// Frames of no session, such as handshakes: who sent them, where they start, bytes.
    pub(crate) unknown: Vec<(Endpoints, u32, u32)>,
    /// Control, keepalives, parts.
    pub(crate) opened: Vec<Handed>,
    /// Cells past the hold, to leave over links that the data path may not use.
    pub(crate) released: Vec<Handed>,
    /// Sealed, and refused by the kernel.
    pub(crate) sealed: Vec<Handed>,
}

impl Kept {
    pub(crate) fn clear(&mut self) {
        self.unknown.clear();
        self.opened.clear();
        self.released.clear();
        self.sealed.clear();
    }
}

/// Keeps what the first worker finishes, and hands over what others do.
pub(crate) struct Keeping<'a, H> {
    pub(crate) kept: &'a mut Kept,
    pub(crate) others: &'a mut H,
}

impl<H: Handoff> Handoff for Keeping<'_, H> {
    fn take(&mut self, what: Unfinished<'_>, frame: FrameAt<'_>) -> bool {
        let at = |link, congested| Handed { link, at: frame.at, len: frame.len, congested };
        match what {
            Unfinished::Raw { .. } | Unfinished::Leaving { .. } => {
                return self.others.take(what, frame);
            }
            Unfinished::Released { link } => self.kept.released.push(at(link, false)),
            Unfinished::Unknown { from } => {
                self.kept.unknown.push((from.from, frame.at, frame.len));
            }
            Unfinished::Opened { link, congested } => self.kept.opened.push(at(link, congested)),
            Unfinished::Sealed { link } => self.kept.sealed.push(at(link, false)),
        }
        true
    }
}

/// What takes cells for this node, as the first worker's data path calls it.
pub(crate) fn lend<H>(
    local: &mut impl FnMut(&mut [u8], LocalCells<'_>, &mut H) -> u64,
) -> impl FnMut(&mut [u8], LocalCells<'_>, &mut Keeping<'_, H>) -> u64 {
    |buf, cells, hand| local(buf, cells, hand.others)
}
