//! Frames that the first worker's data path can't finish. They stay in the batch's buffer, where
//! the relay finishes them after the batch.

use shoal_session::Endpoints;

use crate::{FrameAt, Handoff, HandoffFrame, HandoffKind, LocalCells};

/// Positions of frames in the buffer of the current batch.
#[derive(Default)]
pub(crate) struct DeferredFrames {
    /// Frames without a session, such as handshakes: sender, start, length in bytes.
    pub(crate) unknown: Vec<(Endpoints, u32, u32)>,
    /// Control frames, keepalives and parts.
    pub(crate) opened: Vec<HandoffFrame>,
    /// Cells that left the hold, for links that the data path may not use.
    pub(crate) released: Vec<HandoffFrame>,
    /// Sealed frames that the kernel refused.
    pub(crate) sealed: Vec<HandoffFrame>,
}

impl DeferredFrames {
    pub(crate) fn clear(&mut self) {
        self.unknown.clear();
        self.opened.clear();
        self.released.clear();
        self.sealed.clear();
    }
}

/// Keeps frames for the relay, and hands the rest to other workers.
pub(crate) struct DeferringHandoff<'a, H> {
    pub(crate) kept: &'a mut DeferredFrames,
    pub(crate) others: &'a mut H,
}

impl<H: Handoff> Handoff for DeferringHandoff<'_, H> {
    fn take(&mut self, what: HandoffKind<'_>, frame: FrameAt<'_>) -> bool {
        let at = |link, congested| HandoffFrame { link, at: frame.at, len: frame.len, congested };
        match what {
            HandoffKind::Raw { .. } | HandoffKind::Leaving { .. } => {
                return self.others.take(what, frame);
            }
            HandoffKind::Released { link } => self.kept.released.push(at(link, false)),
            HandoffKind::Unknown { from } => {
                self.kept.unknown.push((from.from, frame.at, frame.len));
            }
            HandoffKind::Opened { link, congested } => self.kept.opened.push(at(link, congested)),
            HandoffKind::Sealed { link } => self.kept.sealed.push(at(link, false)),
        }
        true
    }
}

/// Adapts a consumer of cells for this node to the first worker's data path.
pub(crate) fn lend<H>(
    local: &mut impl FnMut(&mut [u8], LocalCells<'_>, &mut H) -> u64,
) -> impl FnMut(&mut [u8], LocalCells<'_>, &mut DeferringHandoff<'_, H>) -> u64 {
    |buf, cells, hand| local(buf, cells, hand.others)
}
