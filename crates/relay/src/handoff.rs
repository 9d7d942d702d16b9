//! The interface between a node's workers: frames that one worker can't finish.

use shoal_wire::{DropReason, LinkId, SizeClass, Time};

use crate::batch::OutgoingRun;
use crate::{MixedCell, ReceivedRun};

/// The origin of frames at a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArrivalSource {
    /// The worker's own socket.
    Socket,
    /// The worker of this number, which could not open them.
    Worker(u8),
}

/// A frame in a buffer. A receiver copies it or remembers its position.
#[derive(Clone, Copy, Debug)]
pub struct FrameAt<'a> {
    pub buf: &'a [u8],
    /// Start of the frame.
    pub at: u32,
    /// Length in bytes.
    pub len: u32,
}

impl<'a> FrameAt<'a> {
    pub fn bytes(&self) -> &'a [u8] {
        &self.buf[self.at as usize..(self.at + self.len) as usize]
    }
}

/// A frame that a worker can't finish, and the step that is missing.
#[derive(Clone, Copy, Debug)]
pub enum HandoffKind<'a> {
    /// A raw frame that another worker opens.
    Raw {
        /// Number of that worker.
        worker: u8,
        /// Source of the frame.
        from: &'a ReceivedRun,
    },
    /// A raw frame without a session known to this worker. The first worker may know it. Anybody
    /// can send such frames, so they must not use the capacity for other frames.
    Unknown {
        /// Source of the frame.
        from: &'a ReceivedRun,
    },
    /// An opened frame for the first worker.
    Opened {
        /// The neighbour that sent it.
        link: LinkId,
        /// True if it met congestion, as in [`ReceivedRun`].
        congested: bool,
    },
    /// A cell of this node, before any hold, that another worker sends.
    Leaving {
        /// Number of that worker.
        worker: u8,
        /// The neighbour that gets it.
        link: LinkId,
    },
    /// A cell after its hold that may not leave here. It waits in the egress, or the first worker
    /// sends it.
    Released {
        /// The neighbour that gets it.
        link: LinkId,
    },
    /// A sealed frame for which the kernel had no room. The first worker stores it.
    Sealed {
        /// The neighbour that gets it.
        link: LinkId,
    },
}

/// Accepts frames that a worker can't finish.
pub trait Handoff {
    /// Accepts a frame. Returns false if there is no room, and the caller drops the frame.
    fn take(&mut self, what: HandoffKind<'_>, frame: FrameAt<'_>) -> bool;
}

/// For a single worker, which never hands over.
impl Handoff for () {
    fn take(&mut self, _: HandoffKind<'_>, _: FrameAt<'_>) -> bool {
        false
    }
}

/// For a node that may have no other workers.
impl<H: Handoff> Handoff for Option<H> {
    fn take(&mut self, what: HandoffKind<'_>, frame: FrameAt<'_>) -> bool {
        self.as_mut().is_some_and(|others| others.take(what, frame))
    }
}

/// The context of a call: time, socket, other workers.
#[derive(Debug)]
pub struct CallContext<'a, S, H> {
    pub now: Time,
    /// Receives the frames to send.
    pub sink: &'a mut S,
    /// Receives the frames that other workers must finish. `()` if there are no others.
    pub hand: &'a mut H,
}

/// A frame that was handed over, with its position in the accompanying buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HandoffFrame {
    /// The neighbour that sent it or gets it.
    pub link: LinkId,
    /// Start in the buffer.
    pub at: u32,
    /// Length in bytes.
    pub len: u32,
    /// True if it met congestion, as in [`ReceivedRun`].
    pub congested: bool,
}

impl HandoffFrame {
    pub(crate) fn class(&self) -> Option<SizeClass> {
        SizeClass::of_frame(self.len as usize)
    }
}

/// Opened cells for this node, in a batch's buffer.
#[derive(Debug)]
pub struct LocalCells<'a> {
    /// Starts of the frames of hosts' cells.
    pub offsets: &'a [u32],
    /// The neighbour that sent each of them.
    pub from: &'a [LinkId],
    /// Starts of the frames of leg cells: full frames, only on the first worker.
    pub legs: &'a [u32],
    /// Output: leg cells whose routed header was rewritten for the next node of their circuit. They
    /// leave with the batch's cells in transit.
    pub onward: &'a mut Vec<u32>,
    /// Output: leg cells among them that leave later.
    pub mixed: &'a mut Vec<MixedCell>,
    /// Length of each frame in bytes.
    pub len: usize,
}

impl LocalCells<'_> {
    /// Number of cells.
    pub fn count(&self) -> u64 {
        (self.offsets.len() + self.legs.len()) as u64
    }
}

/// Hands over a received frame. A frame that is not accepted is dropped.
pub(crate) fn hand_on(
    hand: &mut impl Handoff,
    what: HandoffKind<'_>,
    frame: FrameAt<'_>,
) -> Result<(), DropReason> {
    hand.take(what, frame).then_some(()).ok_or(DropReason::OtherWorker)
}

/// Hands cells to another worker. Returns how many it accepted, from the first on.
pub(crate) fn hand_over(
    what: HandoffKind<'_>,
    run: &OutgoingRun<'_>,
    hand: &mut impl Handoff,
) -> usize {
    let took = |at: &&u32| hand.take(what, run.frame(**at));
    run.offsets.iter().take_while(took).count()
}
