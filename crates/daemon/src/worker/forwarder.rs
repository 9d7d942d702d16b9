//! A worker after the first: a thread with sockets of its own on the node's ports, among which the
//! kernel spreads what arrives, and a queue of its own of the interface, if there is one.
//!
//! Each turn: take in what other workers handed over, receive one batch per socket and run it to
//! completion, send what programs want sent and held cells whose time has come, hand on what others
//! must finish, tell the first worker what came and went. Nothing in a turn blocks.

use std::time::Duration;

use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;
use shoal_crypto::Standard;
use shoal_edge::{Cells, EdgeWorker, Flow, HostId, Out};
use shoal_relay::{Arrival, Forwarder, Incoming, LocalCells, Turn};
use shoal_session::SessionShard;
use shoal_wire::{Address, LinkId, LinkKind, Time};

use crate::net::ports::{Ports, sum_received, sum_sent};
use crate::net::receive::Receiver;
use crate::tun::queue::{Onward, Queue};
use crate::worker::clock::Clock;
use crate::worker::rings::{Kind, LADEN_WAIT, Message, Outbox, Parcel, Told};
use crate::worker::wake::Inbox;

/// How often counters are told while there is traffic.
const TELL_EVERY: Duration = Duration::from_millis(20);
/// How soon what the first worker had no room to hear is told again.
const TELL_AGAIN: Duration = Duration::from_millis(1);
/// Turns without looking at anything but the sockets while every receive comes back full.
const HURRIED_TURNS: u32 = 4;
/// Messages taken in per turn.
const TAKEN_MAX: usize = 64;

/// The thread's state.
pub struct Forwarding {
    number: u8,
    clock: Clock,
    shard: SessionShard,
    forwarder: Forwarder,
    ports: Ports,
    receivers: Vec<Receiver>,
    inbox: Inbox<Message>,
    outbox: Outbox,
    hurried: u32,
    told_at: Time,
    all_told: bool,
    stop: bool,
    programs: Option<Programs>,
}

/// What a wait found.
#[derive(Default)]
struct Ready {
    readable: u32,
    errors: u32,
    bell: bool,
    interface: bool,
    /// It was asked, and nothing waits there.
    drained: bool,
}

/// What serves programs: the lanes of hosts that this worker holds, and its queue.
struct Programs {
    shard: SessionShard,
    edge: EdgeWorker,
    queue: Queue,
    /// Cells of one parcel, and the links that they came on.
    offsets: Vec<u32>,
    from: Vec<LinkId>,
}

impl Programs {
    /// Whether what programs send had better wait in the interface: its way is full.
    fn wait(&self, forwarder: &Forwarder) -> bool {
        let to = self.queue.last().and_then(|host| self.edge.address_of(host));
        to.is_some_and(|to| forwarder.is_marking(to))
    }

    /// Takes in cells for this host; returns how many are not the first worker's.
    fn take(&mut self, now: Time, cells: Cells<'_>, outbox: &mut Outbox) -> u64 {
        let Cells { buf, offsets, frame_len, from, by } = cells;
        let cells = Cells { buf: &mut *buf, offsets, frame_len, from, by };
        let kept = self.edge.handle_cells(now, &mut self.shard, cells, outbox);
        self.queue.deliver(now, self.edge.arrivals(), buf);
        kept
    }
}

/// Takes in one batch, with the cells for this host in it.
fn take_batch(
    way: Way<'_>,
    programs: &mut Option<Programs>,
    now: Time,
    buf: &mut [u8],
    incoming: &[Incoming],
    arrival: Arrival,
) {
    let Way { shard, forwarder, ports, outbox } = way;
    let mut local = programs.as_mut().map(|programs| {
        move |buf: &mut [u8], cells: LocalCells<'_>, outbox: &mut Outbox| {
            let LocalCells { offsets, from, len: frame_len } = cells;
            programs.take(now, Cells { buf, offsets, frame_len, from, by: None }, outbox)
        }
    });
    let mut turn = Turn { now, sink: ports, hand: outbox };
    forwarder.handle_batch(shard, &mut turn, buf, incoming, arrival, local.as_mut());
}

/// The way of a worker's cells: on lanes of its own, or to who holds them.
struct Way<'a> {
    shard: &'a mut SessionShard,
    forwarder: &'a mut Forwarder,
    ports: &'a mut Ports,
    outbox: &'a mut Outbox,
}

impl Way<'_> {
    fn send(&mut self, now: Time, kind: LinkKind, buf: &mut [u8], offsets: &[u32], len: usize) {
        let mut turn = Turn { now, sink: self.ports, hand: self.outbox };
        self.forwarder.send_cells(self.shard, &mut turn, kind, buf, offsets, len);
    }
}

impl Out for Way<'_> {
    fn cells(&mut self, now: Time, buf: &mut [u8], offsets: &[u32], len: usize) {
        self.send(now, LinkKind::Cell, buf, offsets, len);
    }

    fn room(&self, _: Address) -> usize {
        // Only files ask, which the first worker sends.
        0
    }

    fn is_congested(&self, dst: Address) -> bool {
        self.forwarder.is_marking(dst)
    }

    fn may_go_direct(&self, dst: Address) -> bool {
        self.forwarder.may_go_direct(dst)
    }

    fn direct(&mut self, now: Time, buf: &mut [u8], offsets: &[u32], len: usize) {
        self.send(now, LinkKind::Direct, buf, offsets, len);
    }
}

/// What a worker's queue sends through.
struct FromQueue<'a, 'b> {
    edge: &'a mut EdgeWorker,
    turn: shoal_edge::Turn<'a, Standard, Way<'b>>,
}

impl Onward for FromQueue<'_, '_> {
    fn is_congested(&self, host: HostId) -> bool {
        self.edge.is_congested(host, self.turn.out)
    }

    fn reaches(&self, _: Time, host: HostId) -> bool {
        self.edge.reaches(&self.turn, host)
    }

    fn send(&mut self, _: Time, flow: Flow, len: usize, write: impl FnOnce(&mut [u8])) {
        self.edge.send_packet(&mut self.turn, flow, len, write);
    }

    fn hand(&mut self, read: &[u8]) -> bool {
        self.turn.out.outbox.read(read)
    }
}

impl Forwarding {
    /// Ready to run as worker `number`.
    pub fn new(
        number: u8,
        clock: Clock,
        (shard, forwarder): (SessionShard, Forwarder),
        (ports, receivers): (Ports, Vec<Receiver>),
        inbox: Inbox<Message>,
        outbox: Outbox,
    ) -> Forwarding {
        Forwarding {
            number,
            clock,
            shard,
            forwarder,
            ports,
            receivers,
            inbox,
            outbox,
            hurried: 0,
            told_at: Time::ZERO,
            all_told: true,
            stop: false,
            programs: None,
        }
    }

    /// Serves programs through a queue of the interface, too.
    pub fn serve(&mut self, (shard, edge): (SessionShard, EdgeWorker), queue: Queue) {
        let (offsets, from) = (Vec::new(), Vec::new());
        self.programs = Some(Programs { shard, edge, queue, offsets, from });
    }

    /// Runs until the first worker says stop.
    pub fn run(mut self) {
        while !self.stop {
            let Some(ready) = self.wait() else { return };
            if self.inbox.bell().answer(ready.bell) {
                self.take_in();
            }
            let mut more = false;
            for index in 0..self.receivers.len() {
                if ready.errors & (1 << index) != 0 {
                    self.ports.drain_errors(index);
                }
                if ready.readable & (1 << index) != 0 && !self.outbox.is_full() {
                    more |= self.receive(index);
                }
            }
            self.read(&ready);
            self.handle_timeout();
            self.hurried = if more { self.hurried + 1 } else { 0 };
            self.outbox.flush();
            self.tell();
        }
    }

    /// Which sockets have something, which of them errors, and whether bell and interface have.
    fn wait(&mut self) -> Option<Ready> {
        let all = (1u32 << self.receivers.len()) - 1;
        if self.hurried > 0 && !self.hurried.is_multiple_of(HURRIED_TURNS) {
            let readable = all;
            return Some(Ready { readable, interface: true, ..Ready::default() });
        }
        let (laden, full) = (self.outbox.is_laden(), self.outbox.is_full());
        let waits = laden || self.programs.as_ref().is_some_and(|p| p.wait(&self.forwarder));
        let sleep = match (self.hurried > 0, self.all_told, self.forwarder.has_counted()) {
            (true, _, _) => Some(Duration::ZERO),
            _ if laden => Some(LADEN_WAIT),
            (_, false, _) => Some(TELL_AGAIN),
            (_, _, true) => Some(TELL_EVERY),
            _ => None,
        };
        let timer = self.forwarder.poll_timeout().map(|(at, _)| at.since(self.clock.now()));
        let sleep = [sleep, timer].into_iter().flatten().min();
        let arrivals = if full { PollFlags::empty() } else { PollFlags::POLLIN };
        let mut fds: Vec<PollFd<'_>> = (0..self.ports.count())
            .map(|index| PollFd::new(self.ports.poll_on(index).0, arrivals))
            .collect();
        fds.push(PollFd::new(self.inbox.bell().fd(), PollFlags::POLLIN));
        if let Some(programs) = self.programs.as_ref().filter(|_| !waits) {
            fds.push(PollFd::new(programs.queue.fd(), PollFlags::POLLIN));
        }
        match ppoll(&mut fds, sleep.map(TimeSpec::from), None) {
            Ok(_) | Err(nix::Error::EINTR) => {}
            Err(error) => {
                tracing::error!("waiting for the sockets failed: {error}");
                return None;
            }
        }
        let has = |fd: &PollFd<'_>, flag| fd.revents().is_some_and(|found| found.intersects(flag));
        let bits = |flag| {
            let set = fds.iter().enumerate().filter(|(_, fd)| has(fd, flag));
            set.fold(0u32, |bits, (at, _)| bits | 1 << at)
        };
        let readable = bits(PollFlags::POLLIN | PollFlags::POLLERR);
        let bell = 1 << self.ports.count();
        let interface = readable & bell << 1 != 0;
        Some(Ready {
            readable: readable & all,
            errors: bits(PollFlags::POLLERR) & all,
            bell: readable & bell != 0,
            interface,
            drained: fds.len() > self.ports.count() + 1 && !interface,
        })
    }

    /// Sends on the held cells whose time has come.
    fn handle_timeout(&mut self) {
        let now = self.clock.now();
        if self.forwarder.poll_timeout().is_some_and(|(at, _)| at <= now) {
            self.ports.set_now(now);
            let mut turn = Turn { now, sink: &mut self.ports, hand: &mut self.outbox };
            self.forwarder.handle_timeout(&mut self.shard, &mut turn);
        }
    }

    /// Takes in what programs sent.
    fn read(&mut self, ready: &Ready) {
        let Some(Programs { shard, edge, queue, .. }) = &mut self.programs else { return };
        if ready.drained {
            queue.note_empty();
        }
        if !ready.interface || self.outbox.is_laden() {
            return;
        }
        let now = self.clock.now();
        self.ports.set_now(now);
        let Forwarding { shard: links, forwarder, ports, outbox, .. } = self;
        let mut way = Way { shard: links, forwarder, ports, outbox };
        let turn = shoal_edge::Turn { now, shard, out: &mut way };
        let mut onward = FromQueue { edge, turn };
        queue.read(now, &mut onward);
        onward.edge.flush(&mut onward.turn);
    }

    /// What other workers handed over.
    fn take_in(&mut self) {
        for _ in 0..TAKEN_MAX {
            match self.inbox.take() {
                None => return,
                Some(Message::Order(order)) => {
                    self.forwarder.handle_order(&mut self.shard, order);
                }
                Some(Message::HostOrder(order)) => {
                    if let Some(Programs { shard, edge, .. }) = &mut self.programs {
                        edge.handle_order(shard, order);
                    }
                }
                Some(Message::Gate(gate)) => {
                    if let Some(programs) = &mut self.programs {
                        programs.queue.set_gate(gate);
                    }
                }
                Some(Message::Parcel(mut parcel)) => {
                    self.handle_parcel(&mut parcel);
                    parcel.back();
                }
                Some(Message::Stop) => self.stop = true,
                // For the first worker only.
                Some(Message::Note(_) | Message::HostNote(_) | Message::Told(..)) => {}
            }
        }
        self.inbox.bell().ring();
    }

    /// Frames that another worker handed over.
    fn handle_parcel(&mut self, parcel: &mut Parcel) {
        let now = self.clock.now();
        self.ports.set_now(now);
        let Parcel { kind, buffer, runs, frames, by, .. } = parcel;
        let Forwarding { shard, forwarder, ports, outbox, programs, .. } = self;
        match kind {
            Kind::Raw => {
                let way = Way { shard, forwarder, ports, outbox };
                take_batch(way, programs, now, buffer, runs, Arrival::Worker(*by));
            }
            Kind::Leaving => {
                let mut turn = Turn { now, sink: ports, hand: outbox };
                forwarder.handle_leaving(shard, &mut turn, buffer, frames);
            }
            Kind::Opened => {
                let Some(programs) = programs else { return };
                let mut offsets = std::mem::take(&mut programs.offsets);
                let mut from = std::mem::take(&mut programs.from);
                for equal in frames.chunk_by(|a, b| a.len == b.len) {
                    offsets.clear();
                    from.clear();
                    offsets.extend(equal.iter().map(|cell| cell.at));
                    from.extend(equal.iter().map(|cell| cell.link));
                    let (frame_len, by) = (equal[0].len as usize, Some(*by));
                    let (offsets, from) = (&offsets[..], &from[..]);
                    // Whoever handed them over has counted them.
                    programs.take(now, Cells { buf: buffer, offsets, frame_len, from, by }, outbox);
                }
                (programs.offsets, programs.from) = (offsets, from);
            }
            Kind::Unknown | Kind::Plain | Kind::Released | Kind::Sealed | Kind::Read => {
                debug_assert!(false, "the rest is for the first worker");
            }
        }
    }

    /// Receives one batch and runs it to completion; says whether more may wait.
    fn receive(&mut self, index: usize) -> bool {
        let receiver = &mut self.receivers[index];
        let full = match self.ports.receive(index, receiver) {
            Ok(full) => full,
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => return false,
            Err(_) => return true,
        };
        let now = self.clock.now();
        self.ports.set_now(now);
        for (reason, n) in receiver.take_drops() {
            self.forwarder.count_drop(reason, n);
        }
        let (buffer, incoming) = receiver.batch();
        let Forwarding { shard, forwarder, ports, outbox, programs, .. } = self;
        let way = Way { shard, forwarder, ports, outbox };
        take_batch(way, programs, now, buffer, incoming, Arrival::Socket);
        full
    }

    /// Tells the first worker what came and went.
    fn tell(&mut self) {
        let outbox = &self.outbox;
        let note = |note| outbox.try_tell(0, Message::Note(note));
        self.all_told = self.forwarder.tell(&mut self.shard, note);
        if let Some(Programs { shard, edge, queue, .. }) = &mut self.programs {
            self.all_told &= edge.tell(shard, |note| outbox.try_tell(0, Message::HostNote(note)));
            for (reason, n) in edge.take_drops().chain(queue.take_drops()) {
                self.forwarder.count_drop(reason, n);
            }
        }
        let now = self.clock.now();
        if !self.forwarder.has_counted() || now.since(self.told_at) < TELL_EVERY {
            return;
        }
        let received = sum_received(&self.receivers);
        let counters = self.forwarder.take_counters();
        let sent = sum_sent(&self.ports);
        let packets = self.programs.as_ref().map(|p| p.queue.counters()).unwrap_or_default();
        let told = Box::new(Told { counters, received, sent, packets });
        self.told_at = now;
        // Not lost where there is no room: told with what comes later.
        if !self.outbox.try_tell(0, Message::Told(self.number, told.clone())) {
            self.forwarder.put_back(&told.counters);
        }
    }
}
