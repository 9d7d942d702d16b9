//! The seam between the workers of a node: where frames go that one of them can't finish.

use shoal_wire::{LinkId, SizeClass, Time};

use crate::{Incoming, MixedCell};

/// How frames reached a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// From its own socket.
    Socket,
    /// From the worker of this number, which could not open them.
    Worker(u8),
}

/// A frame in its buffer. Who takes it copies it, or remembers the place.
#[derive(Clone, Copy, Debug)]
pub struct FrameAt<'a> {
    /// The buffer.
    pub buf: &'a [u8],
    /// Where the frame starts.
    pub at: u32,
    /// Bytes.
    pub len: u32,
}

impl<'a> FrameAt<'a> {
    /// The frame itself.
    pub fn bytes(&self) -> &'a [u8] {
        &self.buf[self.at as usize..(self.at + self.len) as usize]
    }
}

/// What is to become of a frame that a worker can't finish.
#[derive(Clone, Copy, Debug)]
pub enum Unfinished<'a> {
    /// It is as it came, untouched, and another worker opens it.
    Raw {
        /// Which worker.
        worker: u8,
        /// Where it came from.
        from: &'a Incoming,
    },
    /// It is as it came, of no session that this worker knows; the first worker may know it.
    /// Anybody can send such frames, so they must not take the room of others.
    Unknown {
        /// Where it came from.
        from: &'a Incoming,
    },
    /// It is open, and the first worker takes it.
    Opened {
        /// The neighbour that it came from.
        link: LinkId,
        /// As in [`Incoming`].
        congested: bool,
    },
    /// It is a cell that has met no hold, and another worker is to send it.
    Leaving {
        /// Which worker.
        worker: u8,
        /// The neighbour that it goes to.
        link: LinkId,
    },
    /// It is a cell, past the hold, that may not leave from here: it waits in the egress, or the
    /// first worker sends it.
    Released {
        /// The neighbour that it goes to.
        link: LinkId,
    },
    /// It is sealed, and the kernel had no room for it; the first worker keeps it.
    Sealed {
        /// The neighbour that it goes to.
        link: LinkId,
    },
}

/// Takes what a worker can't finish.
pub trait Handoff {
    /// Takes a frame; says whether there was room for it. What is not taken is dropped.
    fn take(&mut self, what: Unfinished<'_>, frame: FrameAt<'_>) -> bool;
}

/// A worker alone: nothing is ever handed over.
impl Handoff for () {
    fn take(&mut self, _: Unfinished<'_>, _: FrameAt<'_>) -> bool {
        false
    }
}

/// The others, if there are any.
impl<H: Handoff> Handoff for Option<H> {
    fn take(&mut self, what: Unfinished<'_>, frame: FrameAt<'_>) -> bool {
        self.as_mut().is_some_and(|others| others.take(what, frame))
    }
}

/// What a call works with: the time, the sockets, the way to the other workers.
#[derive(Debug)]
pub struct Turn<'a, S, H> {
    /// Now.
    pub now: Time,
    /// Takes what is sent.
    pub sink: &'a mut S,
    /// Takes what others must finish; `()` where there are none.
    pub hand: &'a mut H,
}

/// A frame that was handed over, in the buffer that comes with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handed {
    /// The neighbour that it came from or goes to.
    pub link: LinkId,
    /// Where it starts in the buffer.
    pub at: u32,
    /// Bytes.
    pub len: u32,
    /// As in [`Incoming`].
    pub congested: bool,
}

impl Handed {
    pub(crate) fn class(&self) -> Option<SizeClass> {
        SizeClass::of_frame(self.len as usize)
    }
}

/// Cells for this node in a batch's buffer, opened at the link.
#[derive(Debug)]
pub struct LocalCells<'a> {
    /// Where the frames of hosts' cells start.
    pub offsets: &'a [u32],
    /// The neighbour that each of these came from.
    pub from: &'a [LinkId],
    /// Where the frames of leg cells start: full frames, and for the first worker alone.
    pub legs: &'a [u32],
    /// Takes the frames of leg cells whose routed header was written anew for the next node of
    /// their circuit: they leave with the cells of the batch that are in transit.
    pub onward: &'a mut Vec<u32>,
    /// Takes those of them that leave later.
    pub mixed: &'a mut Vec<MixedCell>,
    /// Bytes of each frame.
    pub len: usize,
}

impl LocalCells<'_> {
    /// How many there are.
    pub fn count(&self) -> u64 {
        (self.offsets.len() + self.legs.len()) as u64
    }
}
