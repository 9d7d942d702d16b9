//! What workers hand to each other: frames in parcels, orders, notes.
//!
//! Frames are copied once into a parcel, which travels by pointer through a bounded channel and
//! comes back to the worker that filled it. Each worker has so many parcels and no more: with none
//! left a ring is full, and the frame is dropped and counted as `other_worker`. Orders are never
//! dropped: the first worker waits until there is room. The others wait for nobody.

use std::sync::Arc;
use std::sync::mpsc::{Receiver as ChannelReceiver, SyncSender, sync_channel};
use std::time::Duration;

use shoal_crypto::AeadKey;
use shoal_edge::{HostId, Others};
use shoal_ip::{Gate, READ_MAX};
use shoal_relay::{Counters, FrameAt, Handed, Handoff, Incoming, Note, Order, Unfinished};
use shoal_wire::{LinkId, SizeClass};

use crate::net::receive::ReceiveCounters;
use crate::net::send::SendCounters;
use crate::tun::queue::QueueCounters;
use crate::worker::wake::Outlet;

/// Parcels of one worker, of 66 kB each: 46 ms at 1 Gbit/s of frames for others.
const PARCELS: usize = 96;
/// How soon it is looked whether parcels came back, which they do without a sound.
pub const LADEN_WAIT: Duration = Duration::from_micros(250);
/// Parcels that frames which nobody knows may take: they are what a flood consists of.
const UNKNOWN: usize = PARCELS / 8;
/// Bytes of a parcel: as many full frames as one message brings.
const PARCEL_BYTES: usize = 46 * SizeClass::Full.frame_len();
const _: () = assert!(READ_MAX <= PARCEL_BYTES);
/// Stands where no link is told of.
const NO_LINK: LinkId = LinkId(u32::MAX);
/// Orders, notes and parcels that may wait for a worker. Parcels of all workers fit beside the
/// rest.
pub const RING: usize = 16 * PARCELS + 256;

/// What the frames of a parcel are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// As they came; the runs say from where.
    Raw,
    /// The same, of no session that the worker knows.
    Unknown,
    /// Opened at the link: for the first worker, or with a seal that the worker opens.
    Opened,
    /// Opened by the worker that holds the lane of its host, whose number stands for the link; no
    /// packet of a program, so for the first one.
    Plain,
    /// To leave over a link, not yet sealed and past no hold.
    Leaving,
    /// The same, past the hold of the worker that hands them over.
    Released,
    /// As the interface gave them, for the first worker to send.
    Read,
    /// Sealed; the kernel had no room.
    Sealed,
}

/// Frames on their way from worker to worker.
pub struct Parcel {
    /// Who filled it.
    pub by: u8,
    /// What they are.
    pub kind: Kind,
    /// The frames, back to back.
    pub buffer: Box<[u8]>,
    /// Where raw frames are and came from.
    pub runs: Vec<Incoming>,
    /// Where the others are, and their links.
    pub frames: Vec<Handed>,
    used: usize,
    count: u64,
    home: SyncSender<Box<Parcel>>,
}

impl Parcel {
    /// Gives it back to the worker that filled it.
    pub fn back(self: Box<Self>) {
        let home = self.home.clone();
        // There is room for every parcel; a worker that is gone needs none.
        let _gone = home.try_send(self);
    }

    fn add(&mut self, frame: &[u8]) -> u32 {
        let at = self.used;
        self.buffer[at..at + frame.len()].copy_from_slice(frame);
        self.used += frame.len();
        self.count += 1;
        at as u32
    }

    fn add_raw(&mut self, from: &Incoming, frame: &[u8]) {
        let (offset, len) = (self.add(frame), frame.len() as u32);
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

/// What a worker told of itself.
#[derive(Clone, Debug, Default)]
pub struct Told {
    /// What it counted since it last told.
    pub counters: Counters,
    /// What its sockets received and sent since the start.
    pub received: ReceiveCounters,
    /// The same, sent.
    pub sent: SendCounters,
    /// What its queue of the interface brought and took since the start.
    pub packets: QueueCounters,
}

/// What goes from worker to worker.
pub enum Message {
    /// Frames.
    Parcel(Box<Parcel>),
    /// From the first worker.
    Order(Order<AeadKey>),
    /// From the first worker, about hosts.
    HostOrder(shoal_edge::Order<AeadKey>),
    /// From the first worker: who may be spoken with over the interface.
    Gate(Arc<Gate>),
    /// To the first worker.
    Note(Note),
    /// To the first worker, about hosts.
    HostNote(shoal_edge::Note),
    /// To the first worker, by whom, once in a while.
    Told(u8, Box<Told>),
    /// The end.
    Stop,
}

/// A worker's way to the others.
pub struct Outbox {
    worker: u8,
    /// By worker; its own is never used.
    outlets: Vec<Outlet<Message>>,
    home: SyncSender<Box<Parcel>>,
    empty: ChannelReceiver<Box<Parcel>>,
    made: usize,
    /// Parcels with unknown frames that did not come back yet, as far as was looked.
    unknown: usize,
    #[expect(clippy::vec_box, reason = "parcels travel by pointer")]
    idle: Vec<Box<Parcel>>,
    /// Parcels that are being filled, with the worker they are for.
    open: Vec<(u8, Box<Parcel>)>,
}

impl Outbox {
    /// The way from `worker` to those at the other end of `outlets`.
    pub fn new(worker: u8, outlets: Vec<Outlet<Message>>) -> Outbox {
        let (home, empty) = sync_channel(PARCELS);
        let (idle, open) = (Vec::new(), Vec::new());
        Outbox { worker, outlets, home, empty, made: 0, unknown: 0, idle, open }
    }

    /// An empty parcel, if there is one.
    fn fresh(&mut self, kind: Kind) -> Option<Box<Parcel>> {
        self.away();
        if kind == Kind::Unknown && self.unknown >= UNKNOWN {
            return None;
        }
        self.unknown += usize::from(kind == Kind::Unknown);
        if let Some(mut parcel) = self.idle.pop() {
            (parcel.kind, parcel.used, parcel.count) = (kind, 0, 0);
            parcel.runs.clear();
            parcel.frames.clear();
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
            used: 0,
            count: 0,
            home: self.home.clone(),
        }))
    }

    /// A parcel for `worker` with room for `len` bytes; none when the ring is full.
    fn parcel(&mut self, worker: u8, kind: Kind, len: usize) -> Option<&mut Parcel> {
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
        let sent = self.outlets[usize::from(to)].try_send(Message::Parcel(parcel));
        if let Err(Message::Parcel(parcel)) = sent {
            // The channel holds all parcels that exist: only a worker that is gone refuses.
            parcel.back();
        }
    }

    /// Sends the parcels that are being filled.
    pub fn flush(&mut self) {
        while let Some((to, parcel)) = self.open.pop() {
            self.send(to, parcel);
        }
    }

    /// Hands over a message if there is room.
    pub fn try_tell(&self, worker: u8, message: Message) -> bool {
        self.outlets[usize::from(worker)].try_send(message).is_ok()
    }

    /// Hands over a message, waiting for room; false when the worker is gone.
    pub fn tell(&self, worker: u8, message: Message) -> bool {
        self.outlets[usize::from(worker)].send(message).is_ok()
    }

    /// Whether a quarter of the parcels is on its way: what programs want sent had better wait.
    pub fn is_laden(&mut self) -> bool {
        self.away() >= PARCELS / 4
    }

    /// Whether half of them are: what arrives had better wait in the sockets' buffers, which hold
    /// more. What comes from other workers is still taken, so that no two wait for each other: the
    /// other half is for that.
    pub fn is_full(&mut self) -> bool {
        self.away() >= PARCELS / 2
    }

    /// Parcels that others have.
    fn away(&mut self) -> usize {
        while let Ok(parcel) = self.empty.try_recv() {
            self.take_home(parcel);
        }
        self.made - self.idle.len() - self.open.len()
    }

    fn take_home(&mut self, parcel: Box<Parcel>) {
        self.unknown -= usize::from(parcel.kind == Kind::Unknown);
        self.idle.push(parcel);
    }

    /// Takes a read of the interface, for the first worker.
    pub fn read(&mut self, read: &[u8]) -> bool {
        self.hand(0, Kind::Read, NO_LINK, false, read)
    }

    fn raw(&mut self, worker: u8, kind: Kind, from: &Incoming, frame: &[u8]) -> bool {
        if worker == self.worker {
            return false;
        }
        let parcel = self.parcel(worker, kind, frame.len());
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
        if worker == self.worker {
            return false;
        }
        let Some(parcel) = self.parcel(worker, kind, frame.len()) else { return false };
        let (at, len) = (parcel.add(frame), frame.len() as u32);
        parcel.frames.push(Handed { link, at, len, congested });
        true
    }
}

impl Handoff for Outbox {
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

impl Others for Outbox {
    fn cell(&mut self, worker: u8, from: Option<LinkId>, frame: &[u8]) -> bool {
        self.hand(worker, Kind::Opened, from.unwrap_or(NO_LINK), false, frame)
    }

    fn plain(&mut self, host: HostId, frame: &[u8]) -> bool {
        self.hand(0, Kind::Plain, LinkId(host.bits()), false, frame)
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;
    use crate::worker::wake::{Bell, channel};

    fn run(port: u16) -> Incoming {
        let from = SocketAddr::from(([10, 0, 0, 1], port));
        Incoming { from, offset: 0, len: 192, stride: 192, congested: false }
    }

    #[test]
    fn a_flood_of_unknown_frames_leaves_room_for_the_others() {
        let bell = Bell::new().expect("an event descriptor");
        let (outlet, mut inbox) = channel::<Message>(RING, &bell);
        let mut outbox = Outbox::new(1, vec![outlet.clone(), outlet]);
        for round in 0..3 {
            let mut taken = 0;
            while outbox.raw(0, Kind::Unknown, &run(1), &[0; 1_440]) {
                taken += 1;
            }
            assert_eq!(taken, 46 * UNKNOWN, "round {round}");
            assert!(outbox.hand(0, Kind::Opened, LinkId(0), false, &[0; 192]));
            outbox.flush();
            while let Some(Message::Parcel(parcel)) = inbox.take() {
                parcel.back();
            }
        }
    }

    #[test]
    fn frames_arrive_as_they_were_and_a_full_ring_says_so() {
        let bell = Bell::new().expect("an event descriptor");
        let (outlet, mut inbox) = channel::<Message>(RING, &bell);
        let mut outbox = Outbox::new(0, vec![outlet.clone(), outlet]);
        assert!(!outbox.raw(0, Kind::Raw, &run(1), &[0; 192]), "nobody hands to himself");
        let mut taken = 0u64;
        while outbox.raw(1, Kind::Raw, &run((taken / 100) as u16), &[taken as u8; 192]) {
            taken += 1;
        }
        // 345 small frames fit a parcel.
        assert_eq!(taken, 345 * PARCELS as u64);
        outbox.flush();
        let mut seen = 0u64;
        while let Some(Message::Parcel(parcel)) = inbox.take() {
            assert_eq!((parcel.by, parcel.kind), (0, Kind::Raw));
            for run in &parcel.runs {
                for at in (run.offset..run.offset + run.len).step_by(192) {
                    assert_eq!(run.from.port(), (seen / 100) as u16);
                    let frame = &parcel.buffer[at as usize..at as usize + 192];
                    assert!(frame.iter().all(|&b| b == seen as u8));
                    seen += 1;
                }
            }
            parcel.back();
        }
        assert_eq!(seen, taken);
        assert!(outbox.raw(1, Kind::Raw, &run(1), &[0; 1_440]), "parcels come back");
        assert_eq!(outbox.made, PARCELS);
    }
    #[test]
    fn with_parcels_away_less_is_begun_until_they_are_back() {
        let bell = Bell::new().expect("an event descriptor");
        let (outlet, mut inbox) = channel::<Message>(RING, &bell);
        let mut outbox = Outbox::new(1, vec![outlet.clone(), outlet]);
        let mut seen = Vec::new();
        for _ in 0..PARCELS {
            assert!(outbox.read(&[0; READ_MAX]), "one read fills a parcel");
            outbox.flush();
            seen.push((outbox.is_laden(), outbox.is_full()));
        }
        assert_eq!(seen.iter().filter(|(laden, _)| !laden).count(), PARCELS / 4 - 1);
        assert_eq!(seen.iter().filter(|(_, full)| *full).count(), PARCELS / 2 + 1);
        assert!(!outbox.plain(HostId::from_bits(3), &[0; 192]), "none is left");
        while let Some(Message::Parcel(parcel)) = inbox.take() {
            assert_eq!((parcel.kind, parcel.frames.len()), (Kind::Read, 1));
            parcel.back();
        }
        assert!(!outbox.is_laden() && !outbox.is_full());
        assert!(outbox.plain(HostId::from_bits(3), &[0; 192]));
        let from = Some(LinkId(9));
        assert!(outbox.cell(0, from, &[1; 192]) && !outbox.cell(1, from, &[1; 192]));
        outbox.flush();
        let kinds = |inbox: &mut crate::worker::wake::Inbox<Message>| match inbox.take() {
            Some(Message::Parcel(parcel)) => (parcel.kind, parcel.frames[0].link),
            _ => panic!("a parcel"),
        };
        let mut got = [kinds(&mut inbox), kinds(&mut inbox)];
        got.sort_by_key(|(_, link)| link.0);
        assert_eq!(got, [(Kind::Plain, LinkId(3)), (Kind::Opened, LinkId(9))]);
    }
}
