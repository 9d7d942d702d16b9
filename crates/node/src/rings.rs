//! Messages between workers: frames in parcels, orders, notes.
//!
//! Frames are copied once into a parcel. The parcel travels by pointer through a bounded channel
//! and returns to the worker that filled it. Each worker has [`PARCELS`] of them. If none is left,
//! a frame is dropped and counted as `other_worker`. Orders are never dropped: the first worker
//! waits for room. The other workers never wait.

use core::ops::Range;
use core::time::Duration;
use std::sync::Arc;

use shoal_crypto::Ciphers;
use shoal_edge::{CellHandoff, HostId};
use shoal_ip::{AddressGate, READ_MAX};
use shoal_relay::{
    DropCounters, FrameAt, Handoff, HandoffFrame, HandoffKind, ReceivedRun, WorkerNote, WorkerOrder,
};
use shoal_wire::{LinkId, SizeClass};

use crate::queue::QueueCounters;
use crate::shell::{Shell, WorkerRings};

/// Parcels per worker, of 66 kB each: frames of 51 ms at 1 Gbit/s.
pub const PARCELS: usize = 96;
/// Delay before a worker checks again for returned parcels, since a return wakes nobody.
pub(crate) const LADEN_WAIT: Duration = Duration::from_micros(250);
/// Maximum number of parcels with frames of no known session, since a flood consists of such
/// frames.
const UNKNOWN: usize = PARCELS / 8;
/// Bytes of a parcel: as many full frames as one message carries.
const PARCEL_BYTES: usize = 46 * SizeClass::Full.frame_len();
const _: () = assert!(READ_MAX <= PARCEL_BYTES);
/// Placeholder for frames without a link.
const NO_LINK: LinkId = LinkId::from_bits(u32::MAX);
/// Capacity of a worker's ring: all parcels of 16 workers, and 256 orders, notes and other
/// messages.
pub const RING: usize = 16 * PARCELS + 256;

/// The kind of a parcel's frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ParcelKind {
    /// Received frames; the runs contain their sources.
    Raw,
    /// Received frames of no session known to the worker.
    Unknown,
    /// Opened frames: for the first worker, or cells whose end-to-end seal the receiver opens.
    Opened,
    /// Cells for the first worker whose end-to-end seal the sender opened. They contain no packets
    /// of programs.
    Plain,
    /// Unsealed cells to send over a link, before any hold.
    Leaving,
    /// Unsealed cells to send over a link, after the sender's hold.
    Released,
    /// Packets read from the interface, for the first worker to send.
    Read,
    /// Sealed frames for which the kernel had no room.
    Sealed,
}

/// Frames in transit between workers.
#[derive(Clone)]
pub struct Parcel {
    /// Number of the worker that filled it.
    pub by: u8,
    /// The kind of its frames.
    pub(crate) kind: ParcelKind,
    /// The frames, one after the other.
    pub(crate) buffer: Box<[u8]>,
    /// Positions and sources of raw frames.
    pub(crate) runs: Vec<ReceivedRun>,
    /// Positions and links of opened, leaving, released and sealed frames.
    pub(crate) frames: Vec<HandoffFrame>,
    /// Positions of plain cells, each with the host that sent it.
    pub(crate) plain: Vec<(HostId, Range<u32>)>,
    /// Positions of packets from the interface.
    pub(crate) reads: Vec<Range<u32>>,
    used: usize,
}

impl Parcel {
    /// Number of received frames that are neither handled nor dropped yet, if the parcel is for
    /// worker `to`. These are the frames still to open, and those that only control handles. The
    /// sending worker has already counted cells for this node, and cells to send.
    pub fn coming(&self, to: u8) -> u64 {
        let raw = |run: &ReceivedRun| u64::from(run.len / run.stride.max(1));
        match self.kind {
            ParcelKind::Raw | ParcelKind::Unknown => self.runs.iter().map(raw).sum(),
            ParcelKind::Opened if to == 0 => self.frames.len() as u64,
            ParcelKind::Opened | ParcelKind::Plain | ParcelKind::Leaving => 0,
            ParcelKind::Released | ParcelKind::Read | ParcelKind::Sealed => 0,
        }
    }

    /// Number of outgoing frames that the kernel refused and the first worker must send again.
    pub fn going(&self) -> u64 {
        if self.kind == ParcelKind::Sealed { self.frames.len() as u64 } else { 0 }
    }

    fn add(&mut self, frame: &[u8]) -> Range<u32> {
        let at = self.used;
        self.used += frame.len();
        self.buffer[at..self.used].copy_from_slice(frame);
        at as u32..self.used as u32
    }

    fn add_raw(&mut self, from: &ReceivedRun, frame: &[u8]) {
        let (offset, len) = (self.add(frame).start, frame.len() as u32);
        let same = |run: &&mut ReceivedRun| {
            run.from == from.from && run.stride == len && run.congested == from.congested
        };
        match self.runs.last_mut().filter(same) {
            Some(run) => run.len += len,
            None => self.runs.push(ReceivedRun {
                from: from.from,
                offset,
                len,
                stride: len,
                congested: from.congested,
            }),
        }
    }
}

/// A worker's report. `T` is the shell's type of socket counters.
#[derive(Clone, Debug, Default)]
pub struct WorkerReport<T> {
    /// Counters since the last report.
    pub counters: DropCounters,
    /// Socket counters since the start.
    pub sockets: T,
    /// Packets of its interface queue since the start.
    pub packets: QueueCounters,
}

/// The type of keys of a shell's ciphers.
type AeadOf<S> = <<S as Shell>::Ciphers as Ciphers>::Aead;

/// A message between workers.
pub enum WorkerMessage<S: Shell> {
    Parcel(Box<Parcel>),
    /// An order of control.
    Order(WorkerOrder<AeadOf<S>>),
    /// An order of control about hosts.
    HostOrder(shoal_edge::EdgeOrder<AeadOf<S>>),
    /// A new gate from control. It decides which packets pass the interface.
    Gate(Arc<AddressGate>),
    /// A note for control.
    Note(WorkerNote),
    /// A note for control about hosts.
    HostNote(shoal_edge::EdgeNote),
    /// A worker's number and report for control, every 20 ms while there is traffic.
    Report(u8, Box<WorkerReport<S::Sockets>>),
}

/// A worker's parcels, and its connection to the others.
pub(crate) struct Outbox<S: Shell> {
    worker: u8,
    rings: S::WorkerRings,
    made: usize,
    /// Parcels with unknown frames that have not returned yet.
    unknown: usize,
    #[expect(clippy::vec_box, reason = "parcels travel by pointer")]
    idle: Vec<Box<Parcel>>,
    /// Parcels being filled, each with its destination worker.
    open: Vec<(u8, Box<Parcel>)>,
}

impl<S: Shell> Outbox<S> {
    pub(crate) fn new(worker: u8, rings: S::WorkerRings) -> Outbox<S> {
        let (idle, open) = (Vec::new(), Vec::new());
        Outbox { worker, rings, made: 0, unknown: 0, idle, open }
    }

    /// Takes an empty parcel. None if all are in use.
    fn fresh(&mut self, kind: ParcelKind) -> Option<Box<Parcel>> {
        self.away();
        if kind == ParcelKind::Unknown && self.unknown >= UNKNOWN {
            return None;
        }
        self.unknown += usize::from(kind == ParcelKind::Unknown);
        if let Some(mut parcel) = self.idle.pop() {
            (parcel.kind, parcel.used) = (kind, 0);
            parcel.runs.clear();
            parcel.frames.clear();
            parcel.plain.clear();
            parcel.reads.clear();
            return Some(parcel);
        }
        if self.made >= PARCELS {
            self.unknown -= usize::from(kind == ParcelKind::Unknown);
            return None;
        }
        self.made += 1;
        Some(Box::new(Parcel {
            by: self.worker,
            kind,
            buffer: vec![0; PARCEL_BYTES].into_boxed_slice(),
            runs: Vec::new(),
            frames: Vec::new(),
            plain: Vec::new(),
            reads: Vec::new(),
            used: 0,
        }))
    }

    /// The open parcel for another worker with room for `len` bytes. None if no parcel is left.
    fn parcel_for(&mut self, worker: u8, kind: ParcelKind, len: usize) -> Option<&mut Parcel> {
        if worker == self.worker {
            return None;
        }
        let same = |(to, parcel): &(u8, Box<Parcel>)| (*to, parcel.kind) == (worker, kind);
        let mut at = self.open.iter().position(same);
        if let Some(full) = at.filter(|&at| self.open[at].1.used + len > PARCEL_BYTES) {
            let (to, parcel) = self.open.swap_remove(full);
            self.send(to, parcel);
            at = None;
        }
        let at = match at {
            Some(at) => at,
            None => {
                let fresh = self.fresh(kind)?;
                self.open.push((worker, fresh));
                self.open.len() - 1
            }
        };
        Some(&mut self.open[at].1)
    }

    fn send(&mut self, to: u8, parcel: Box<Parcel>) {
        if let Some(WorkerMessage::Parcel(parcel)) =
            self.rings.try_send(to, WorkerMessage::Parcel(parcel))
        {
            // Only a worker that is gone refuses a parcel, and then the node ends soon.
            self.take_home(parcel);
        }
    }

    /// Sends the parcels that are being filled.
    pub(crate) fn flush(&mut self) {
        while let Some((to, parcel)) = self.open.pop() {
            self.send(to, parcel);
        }
    }

    /// Sends a message if there is room. Returns false otherwise.
    pub(crate) fn try_tell(&mut self, worker: u8, message: WorkerMessage<S>) -> bool {
        self.rings.try_send(worker, message).is_none()
    }

    /// Sends a message and waits for room. Returns false if the worker is gone.
    pub(crate) fn tell(&mut self, worker: u8, message: WorkerMessage<S>) -> bool {
        self.rings.send(worker, message)
    }

    /// Returns a parcel to the worker that filled it.
    pub(crate) fn give_back(&mut self, parcel: Box<Parcel>) {
        self.rings.give_back(parcel);
    }

    /// True if a quarter of the parcels is with other workers. Packets of programs should then
    /// wait.
    pub(crate) fn is_laden(&mut self) -> bool {
        self.away() >= PARCELS / 4
    }

    /// True if half of the parcels are with other workers. Datagrams should then wait in the
    /// sockets' buffers, which hold more. Messages are still handled, so that no two workers wait
    /// for each other. The other half of the parcels serves that purpose.
    pub(crate) fn is_full(&mut self) -> bool {
        self.away() >= PARCELS / 2
    }

    /// Number of parcels with other workers, after collecting returned ones.
    fn away(&mut self) -> usize {
        while let Some(parcel) = self.rings.take_back() {
            self.take_home(parcel);
        }
        self.made - self.idle.len() - self.open.len()
    }

    fn take_home(&mut self, parcel: Box<Parcel>) {
        self.unknown -= usize::from(parcel.kind == ParcelKind::Unknown);
        self.idle.push(parcel);
    }

    /// Adds a packet from the interface to a parcel for the first worker.
    pub(crate) fn read(&mut self, read: &[u8]) -> bool {
        let Some(parcel) = self.parcel_for(0, ParcelKind::Read, read.len()) else { return false };
        let place = parcel.add(read);
        parcel.reads.push(place);
        true
    }

    fn raw(&mut self, worker: u8, kind: ParcelKind, from: &ReceivedRun, frame: &[u8]) -> bool {
        let parcel = self.parcel_for(worker, kind, frame.len());
        parcel.map(|parcel| parcel.add_raw(from, frame)).is_some()
    }

    fn hand(
        &mut self,
        worker: u8,
        kind: ParcelKind,
        link: LinkId,
        congested: bool,
        frame: &[u8],
    ) -> bool {
        let Some(parcel) = self.parcel_for(worker, kind, frame.len()) else { return false };
        let (at, len) = (parcel.add(frame).start, frame.len() as u32);
        parcel.frames.push(HandoffFrame { link, at, len, congested });
        true
    }
}

impl<S: Shell> Handoff for Outbox<S> {
    fn take(&mut self, what: HandoffKind<'_>, frame: FrameAt<'_>) -> bool {
        let frame = frame.bytes();
        match what {
            HandoffKind::Raw { worker, from } => self.raw(worker, ParcelKind::Raw, from, frame),
            HandoffKind::Unknown { from } => self.raw(0, ParcelKind::Unknown, from, frame),
            HandoffKind::Opened { link, congested } => {
                self.hand(0, ParcelKind::Opened, link, congested, frame)
            }
            HandoffKind::Leaving { worker, link } => {
                self.hand(worker, ParcelKind::Leaving, link, false, frame)
            }
            HandoffKind::Released { link } => {
                self.hand(0, ParcelKind::Released, link, false, frame)
            }
            HandoffKind::Sealed { link } => self.hand(0, ParcelKind::Sealed, link, false, frame),
        }
    }
}

impl<S: Shell> CellHandoff for Outbox<S> {
    fn cell(&mut self, worker: u8, from: Option<LinkId>, frame: &[u8]) -> bool {
        self.hand(worker, ParcelKind::Opened, from.unwrap_or(NO_LINK), false, frame)
    }

    fn plain(&mut self, host: HostId, frame: &[u8]) -> bool {
        let Some(parcel) = self.parcel_for(0, ParcelKind::Plain, frame.len()) else { return false };
        let place = parcel.add(frame);
        parcel.plain.push((host, place));
        true
    }
}

#[cfg(test)]
mod tests;
