//! What workers hand to each other: frames in parcels, orders, notes.
//!
//! Frames are copied once into a parcel, which travels by pointer through a bounded channel and
//! comes back to the worker that filled it. Each worker has [`PARCELS`] of them: with none left a
//! frame is dropped and counted as `other_worker`. Orders are never dropped: the first worker waits
//! until there is room. The others wait for nobody.

use core::ops::Range;
use core::time::Duration;
use std::sync::Arc;

use shoal_crypto::Ciphers;
use shoal_edge::{HostId, Others};
use shoal_ip::{Gate, READ_MAX};
use shoal_relay::{Counters, FrameAt, Handed, Handoff, Incoming, Note, Order, Unfinished};
use shoal_wire::{LinkId, SizeClass};

use crate::queue::QueueCounters;
use crate::shell::{Rings, Shell};

/// Parcels of one worker, of 66 kB each: frames for others of 51 ms at 1 Gbit/s.
pub const PARCELS: usize = 96;
/// How soon a worker looks again whether parcels came back: one that comes back wakes nobody.
pub(crate) const LADEN_WAIT: Duration = Duration::from_micros(250);
/// Parcels that may hold frames of no known session: a flood consists of such frames.
const UNKNOWN: usize = PARCELS / 8;
/// Bytes of a parcel: as many full frames as one message brings.
const PARCEL_BYTES: usize = 46 * SizeClass::Full.frame_len();
const _: () = assert!(READ_MAX <= PARCEL_BYTES);
/// Stands for the link of a frame that has none.
const NO_LINK: LinkId = LinkId::from_bits(u32::MAX);
/// Messages that may wait for a worker: all parcels of 16 workers, and 256 orders, notes and
/// others.
pub const RING: usize = 16 * PARCELS + 256;

/// What the frames of a parcel are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// As they came; the runs say from where.
    Raw,
    /// As they came, of no session that the worker knows.
    Unknown,
    /// Opened at the link: for the first worker, or cells whose end-to-end seal the receiver opens.
    Opened,
    /// Cells whose end-to-end seal the sender opened, with something else than packets of programs:
    /// for the first worker.
    Plain,
    /// Cells to leave over a link, not sealed and not yet past a hold.
    Leaving,
    /// Cells to leave over a link, not sealed, past the hold of the worker that hands them over.
    Released,
    /// Packets as the interface gave them, for the first worker to send.
    Read,
    /// Sealed; the kernel had no room.
    Sealed,
}

/// Frames on their way from worker to worker.
#[derive(Clone)]
pub struct Parcel {
    /// Who filled it.
    pub by: u8,
    /// What they are.
    pub(crate) kind: Kind,
    /// The frames, back to back.
    pub(crate) buffer: Box<[u8]>,
    /// Where raw frames are and came from.
    pub(crate) runs: Vec<Incoming>,
    /// Where opened, leaving, released and sealed frames are, and their links.
    pub(crate) frames: Vec<Handed>,
    /// Where plain cells are, and the host that each came from.
    pub(crate) plain: Vec<(HostId, Range<u32>)>,
    /// Where reads of the interface are.
    pub(crate) reads: Vec<Range<u32>>,
    used: usize,
}

impl Parcel {
    /// How many of its frames came in and were neither handled nor dropped, if it is for worker
    /// `to`: those that must be opened yet, and those that control alone handles. A cell for this
    /// node, or one to be sent, was counted by the worker that hands it over.
    pub fn coming(&self, to: u8) -> u64 {
        let raw = |run: &Incoming| u64::from(run.len / run.stride.max(1));
        match self.kind {
            Kind::Raw | Kind::Unknown => self.runs.iter().map(raw).sum(),
            Kind::Opened if to == 0 => self.frames.len() as u64,
            Kind::Opened | Kind::Plain | Kind::Leaving => 0,
            Kind::Released | Kind::Read | Kind::Sealed => 0,
        }
    }

    /// How many of its frames were to leave, were refused by the kernel, and wait to be sent again
    /// by the first worker.
    pub fn going(&self) -> u64 {
        if self.kind == Kind::Sealed { self.frames.len() as u64 } else { 0 }
    }

    fn add(&mut self, frame: &[u8]) -> Range<u32> {
        let at = self.used;
        self.used += frame.len();
        self.buffer[at..self.used].copy_from_slice(frame);
        at as u32..self.used as u32
    }

    fn add_raw(&mut self, from: &Incoming, frame: &[u8]) {
        let (offset, len) = (self.add(frame).start, frame.len() as u32);
        let same = |run: &&mut Incoming| {
            run.from == from.from && run.stride == len && run.congested == from.congested
        };
        match self.runs.last_mut().filter(same) {
            Some(run) => run.len += len,
            None => self.runs.push(Incoming {
                from: from.from,
                offset,
                len,
                stride: len,
                congested: from.congested,
            }),
        }
    }
}

/// What a worker told of itself; `T` is what the shell counts of its sockets.
#[derive(Clone, Debug, Default)]
pub struct WorkerReport<T> {
    /// What it counted since it last told.
    pub counters: Counters,
    /// What its sockets did since the start.
    pub sockets: T,
    /// Packets of its queue of the interface since the start.
    pub packets: QueueCounters,
}

/// The type of keys that a shell's ciphers have.
type Keys<S> = <<S as Shell>::Ciphers as Ciphers>::Aead;

/// What goes from worker to worker.
pub enum Message<S: Shell> {
    /// Frames.
    Parcel(Box<Parcel>),
    /// From control.
    Order(Order<Keys<S>>),
    /// From control, about hosts.
    HostOrder(shoal_edge::Order<Keys<S>>),
    /// From control: who may be spoken with over the interface.
    Gate(Arc<Gate>),
    /// To control.
    Note(Note),
    /// To control, about hosts.
    HostNote(shoal_edge::Note),
    /// To control, every 20 ms while there is traffic: the worker's number, and its report.
    Report(u8, Box<WorkerReport<S::Sockets>>),
}

/// A worker's parcels, and its way to the others.
pub(crate) struct Outbox<S: Shell> {
    worker: u8,
    rings: S::Rings,
    made: usize,
    /// Parcels with unknown frames that were not yet seen to come back.
    unknown: usize,
    #[expect(clippy::vec_box, reason = "parcels travel by pointer")]
    idle: Vec<Box<Parcel>>,
    /// Parcels that are being filled, with the worker they are for.
    open: Vec<(u8, Box<Parcel>)>,
}

impl<S: Shell> Outbox<S> {
    /// The outbox of `worker`.
    pub(crate) fn new(worker: u8, rings: S::Rings) -> Outbox<S> {
        let (idle, open) = (Vec::new(), Vec::new());
        Outbox { worker, rings, made: 0, unknown: 0, idle, open }
    }

    /// An empty parcel, if there is one.
    fn fresh(&mut self, kind: Kind) -> Option<Box<Parcel>> {
        self.away();
        if kind == Kind::Unknown && self.unknown >= UNKNOWN {
            return None;
        }
        self.unknown += usize::from(kind == Kind::Unknown);
        if let Some(mut parcel) = self.idle.pop() {
            (parcel.kind, parcel.used) = (kind, 0);
            parcel.runs.clear();
            parcel.frames.clear();
            parcel.plain.clear();
            parcel.reads.clear();
            return Some(parcel);
        }
        if self.made >= PARCELS {
            self.unknown -= usize::from(kind == Kind::Unknown);
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

    /// A parcel for another worker with room for `len` bytes; none when no parcel is left.
    fn parcel_for(&mut self, worker: u8, kind: Kind, len: usize) -> Option<&mut Parcel> {
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
        if let Some(Message::Parcel(parcel)) = self.rings.try_send(to, Message::Parcel(parcel)) {
            // Only a worker that is gone refuses, and the node ends soon after it.
            self.take_home(parcel);
        }
    }

    /// Sends the parcels that are being filled.
    pub(crate) fn flush(&mut self) {
        while let Some((to, parcel)) = self.open.pop() {
            self.send(to, parcel);
        }
    }

    /// Hands over a message if there is room.
    pub(crate) fn try_tell(&mut self, worker: u8, message: Message<S>) -> bool {
        self.rings.try_send(worker, message).is_none()
    }

    /// Hands over a message, waiting for room; false when the worker is gone.
    pub(crate) fn tell(&mut self, worker: u8, message: Message<S>) -> bool {
        self.rings.send(worker, message)
    }

    /// Gives a parcel back to the worker that filled it.
    pub(crate) fn give_back(&mut self, parcel: Box<Parcel>) {
        self.rings.give_back(parcel);
    }

    /// Whether a quarter of the parcels is with others: packets of programs had better wait.
    pub(crate) fn is_laden(&mut self) -> bool {
        self.away() >= PARCELS / 4
    }

    /// Whether half of the parcels are with others: datagrams had better wait in the sockets'
    /// buffers, which hold more. Messages of other workers are still taken, so that no two workers
    /// wait for each other: the other half is for that.
    pub(crate) fn is_full(&mut self) -> bool {
        self.away() >= PARCELS / 2
    }

    /// How many parcels others have, after those that came back are taken in.
    fn away(&mut self) -> usize {
        while let Some(parcel) = self.rings.take_back() {
            self.take_home(parcel);
        }
        self.made - self.idle.len() - self.open.len()
    }

    fn take_home(&mut self, parcel: Box<Parcel>) {
        self.unknown -= usize::from(parcel.kind == Kind::Unknown);
        self.idle.push(parcel);
    }

    /// Takes a read of the interface, for the first worker.
    pub(crate) fn read(&mut self, read: &[u8]) -> bool {
        let Some(parcel) = self.parcel_for(0, Kind::Read, read.len()) else { return false };
        let place = parcel.add(read);
        parcel.reads.push(place);
        true
    }

    fn raw(&mut self, worker: u8, kind: Kind, from: &Incoming, frame: &[u8]) -> bool {
        let parcel = self.parcel_for(worker, kind, frame.len());
        parcel.map(|parcel| parcel.add_raw(from, frame)).is_some()
    }

    fn hand(
        &mut self,
        worker: u8,
        kind: Kind,
        link: LinkId,
        congested: bool,
        frame: &[u8],
    ) -> bool {
        let Some(parcel) = self.parcel_for(worker, kind, frame.len()) else { return false };
        let (at, len) = (parcel.add(frame).start, frame.len() as u32);
        parcel.frames.push(Handed { link, at, len, congested });
        true
    }
}

impl<S: Shell> Handoff for Outbox<S> {
    fn take(&mut self, what: Unfinished<'_>, frame: FrameAt<'_>) -> bool {
        let frame = frame.bytes();
        match what {
            Unfinished::Raw { worker, from } => self.raw(worker, Kind::Raw, from, frame),
            Unfinished::Unknown { from } => self.raw(0, Kind::Unknown, from, frame),
            Unfinished::Opened { link, congested } => {
                self.hand(0, Kind::Opened, link, congested, frame)
            }
            Unfinished::Leaving { worker, link } => {
                self.hand(worker, Kind::Leaving, link, false, frame)
            }
            Unfinished::Released { link } => self.hand(0, Kind::Released, link, false, frame),
            Unfinished::Sealed { link } => self.hand(0, Kind::Sealed, link, false, frame),
        }
    }
}

impl<S: Shell> Others for Outbox<S> {
    fn cell(&mut self, worker: u8, from: Option<LinkId>, frame: &[u8]) -> bool {
        self.hand(worker, Kind::Opened, from.unwrap_or(NO_LINK), false, frame)
    }

    fn plain(&mut self, host: HostId, frame: &[u8]) -> bool {
        let Some(parcel) = self.parcel_for(0, Kind::Plain, frame.len()) else { return false };
        let place = parcel.add(frame);
        parcel.plain.push((host, place));
        true
    }
}

#[cfg(test)]
mod tests;
