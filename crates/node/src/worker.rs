//! A worker after the first: it forwards on lanes of its own and, with a queue of the interface,
//! serves programs. What it can't finish it hands to the worker that can.
//!
//! A turn of its shell: [`Worker::handle_message`] for what others handed over,
//! [`Worker::handle_datagrams`] for each batch, [`Worker::handle_packets`] when programs sent
//! something, and [`Worker::drive`] at the end.

use core::time::Duration;

use shoal_edge::{Cells, Edge, EdgeWorker, Flow, HostId, Out};
use shoal_relay::{Arrival, Counters, Forwarder, Incoming, LocalCells, Relay, Turn};
use shoal_session::SessionShard;
use shoal_wire::{Address, CircuitId, DropReason, LinkId, LinkKind, Time, ip};

use crate::queue::{Onward, Queue};
use crate::rings::{Kind, LADEN_WAIT, Message, Outbox, Parcel, WorkerReport};
use crate::shell::Shell;

/// How often counters are told while there is traffic.
const TELL_EVERY: Duration = Duration::from_millis(20);
/// How soon notes that found no room in control's ring are told again.
const TELL_AGAIN: Duration = Duration::from_millis(1);

/// See the module's documentation.
pub struct Worker<S: Shell> {
    number: u8,
    shard: SessionShard<S::Ciphers>,
    forwarder: Forwarder,
    outbox: Outbox<S>,
    programs: Option<Programs<S>>,
    /// When it was driven last, and when it told its counters last.
    driven_at: Time,
    told_at: Time,
    /// Whether control has taken all notes.
    all_told: bool,
}

/// What serves programs: the lanes of hosts that this worker holds, and its queue.
struct Programs<S: Shell> {
    shard: SessionShard<S::Ciphers>,
    edge: EdgeWorker,
    queue: Queue<S::Device, S::Flows>,
    /// Cells of one parcel, and the links that they came on.
    offsets: Vec<u32>,
    from: Vec<LinkId>,
}

impl<S: Shell> Programs<S> {
    /// Takes in cells for this host; returns how many of them were not left to the first worker.
    fn take(&mut self, now: Time, cells: Cells<'_>, outbox: &mut Outbox<S>) -> u64 {
        let Cells { buf, offsets, frame_len, from, by } = cells;
        let cells = Cells { buf: &mut *buf, offsets, frame_len, from, by };
        let kept = self.edge.handle_cells(now, &mut self.shard, cells, outbox);
        self.queue.deliver(now, self.edge.arrivals(), buf);
        kept
    }

    /// Takes in cells for this host that another worker opened at the link, and counted.
    fn take_parcel(&mut self, now: Time, parcel: &mut Parcel, outbox: &mut Outbox<S>) {
        let mut offsets = core::mem::take(&mut self.offsets);
        let mut from = core::mem::take(&mut self.from);
        let by = Some(parcel.by);
        for equal in parcel.frames.chunk_by(|a, b| a.len == b.len) {
            offsets.clear();
            from.clear();
            offsets.extend(equal.iter().map(|cell| cell.at));
            from.extend(equal.iter().map(|cell| cell.link));
            let frame_len = equal[0].len as usize;
            let (buf, offsets, from) = (&mut parcel.buffer[..], &offsets[..], &from[..]);
            self.take(now, Cells { buf, offsets, frame_len, from, by }, outbox);
        }
        (self.offsets, self.from) = (offsets, from);
    }
}

/// The way of a worker's cells: on lanes of its own, or to the worker that holds their lane.
struct WorkerOut<'a, S: Shell> {
    shard: &'a mut SessionShard<S::Ciphers>,
    forwarder: &'a mut Forwarder,
    sink: &'a mut S::Sink,
    outbox: &'a mut Outbox<S>,
}

impl<S: Shell> WorkerOut<'_, S> {
    fn send(&mut self, now: Time, kind: LinkKind, buf: &mut [u8], offsets: &[u32], len: usize) {
        let mut turn = Turn { now, sink: self.sink, hand: self.outbox };
        self.forwarder.send_cells(self.shard, &mut turn, kind, buf, offsets, len);
    }
}

impl<S: Shell> Out for WorkerOut<'_, S> {
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

    // Circuits are control's.
    fn unit(&mut self, _: Time, _: CircuitId, _: &mut [u8], offsets: &[u32]) {
        self.forwarder.count_drop(DropReason::UnknownCircuit, offsets.len() as u64);
    }

    fn hidden_handshake(&mut self, _: Time, _: CircuitId, _: &[u8]) {
        self.forwarder.count_drop(DropReason::UnknownCircuit, 1);
    }

    fn circuit_room(&self, _: CircuitId) -> usize {
        0
    }

    fn circuit_is_congested(&self, _: CircuitId) -> bool {
        false
    }
}

/// What a worker's queue sends through: the worker's part of the edge.
struct FromQueue<'a, 'b, S: Shell> {
    edge: &'a mut EdgeWorker,
    turn: shoal_edge::Turn<'a, S::Ciphers, WorkerOut<'b, S>>,
}

impl<S: Shell> Onward for FromQueue<'_, '_, S> {
    fn is_congested(&self, host: HostId) -> bool {
        self.edge.is_congested(host, self.turn.out)
    }

    fn packet_len(&self, _: HostId) -> usize {
        // Hosts with less are control's.
        ip::PACKET_MAX
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

impl<S: Shell> Worker<S> {
    /// Worker `number`, which serves programs if `programs` says with what.
    pub(crate) fn new(
        number: u8,
        (shard, forwarder): (SessionShard<S::Ciphers>, Forwarder),
        outbox: Outbox<S>,
        programs: Option<HostsAndQueue<S>>,
    ) -> Worker<S> {
        let programs = programs.map(|((shard, edge), queue)| {
            let (offsets, from) = (Vec::new(), Vec::new());
            Programs { shard, edge, queue, offsets, from }
        });
        let (driven_at, told_at) = (Time::ZERO, Time::ZERO);
        Worker { number, shard, forwarder, outbox, programs, driven_at, told_at, all_told: true }
    }

    /// Its number; control is worker 0.
    pub fn number(&self) -> u8 {
        self.number
    }

    /// Its queue of the interface, if it has one.
    pub fn queue(&self) -> Option<&Queue<S::Device, S::Flows>> {
        self.programs.as_ref().map(|programs| &programs.queue)
    }

    /// Its queue of the interface, if it has one, to be changed.
    pub fn queue_mut(&mut self) -> Option<&mut Queue<S::Device, S::Flows>> {
        self.programs.as_mut().map(|programs| &mut programs.queue)
    }

    /// Whether it knows the neighbours, routes, hosts and gate that these know.
    pub(crate) fn knows(
        &self,
        relay: &Relay<S::Ciphers>,
        edge: &Edge<S::Ciphers>,
        queue: Option<&Queue<S::Device, S::Flows>>,
    ) -> bool {
        let programs = self.programs.as_ref();
        let hosts = programs.is_none_or(|programs| edge.is_known_to(&programs.edge));
        let gate = |(ours, theirs): (&Queue<_, _>, &Programs<S>)| ours.has_gate_of(&theirs.queue);
        relay.is_known_to(&self.forwarder) && hosts && queue.zip(programs).is_none_or(gate)
    }

    /// What it counted and did not tell control yet.
    pub fn counters(&self) -> &Counters {
        self.forwarder.counters()
    }

    /// Cells that it holds.
    pub fn held(&self) -> usize {
        self.forwarder.held()
    }

    /// Counts drops that the shell saw, such as receive overflows.
    pub fn count_drop(&mut self, reason: DropReason, n: u64) {
        self.forwarder.count_drop(reason, n);
    }

    /// Whether others have so many of this worker's parcels that nothing more should be received.
    /// Messages are to be taken in all the same.
    pub fn is_full(&mut self) -> bool {
        self.outbox.is_full()
    }

    /// Whether packets of programs had better wait in the interface: too many parcels are with
    /// others, or the backlog on the way of the last packet is so long that cells are marked.
    pub fn packets_wait(&mut self) -> bool {
        let last = self.programs.as_ref().and_then(|p| p.edge.address_of(p.queue.last()?));
        self.outbox.is_laden() || last.is_some_and(|to| self.forwarder.is_marking(to))
    }

    /// Takes in one batch of datagrams: `incoming` says where in `buf` they lie.
    pub fn handle_datagrams(
        &mut self,
        now: Time,
        sink: &mut S::Sink,
        buf: &mut [u8],
        incoming: &[Incoming],
    ) {
        self.take_batch(now, sink, buf, incoming, Arrival::Socket);
    }

    /// Takes in one batch, with the cells for this host in it.
    fn take_batch(
        &mut self,
        now: Time,
        sink: &mut S::Sink,
        buf: &mut [u8],
        incoming: &[Incoming],
        arrival: Arrival,
    ) {
        let Worker { shard, forwarder, outbox, programs, .. } = self;
        let mut local = programs.as_mut().map(|programs| {
            move |buf: &mut [u8], cells: LocalCells<'_>, outbox: &mut Outbox<S>| {
                let LocalCells { offsets, from, len: frame_len, .. } = cells;
                programs.take(now, Cells { buf, offsets, frame_len, from, by: None }, outbox)
            }
        });
        let mut turn = Turn { now, sink, hand: outbox };
        forwarder.handle_batch(shard, &mut turn, buf, incoming, arrival, local.as_mut());
    }

    /// Takes in packets of programs, unless too many parcels are with others.
    pub fn handle_packets(&mut self, now: Time, sink: &mut S::Sink) {
        let Worker { shard: links, forwarder, outbox, programs, .. } = self;
        let Some(Programs { shard, edge, queue, .. }) = programs else { return };
        if outbox.is_laden() {
            return;
        }
        let mut way = WorkerOut { shard: links, forwarder, sink, outbox };
        let turn = shoal_edge::Turn { now, shard, out: &mut way };
        let mut onward = FromQueue { edge, turn };
        queue.read(now, &mut onward);
        onward.edge.flush(&mut onward.turn);
    }

    /// Says that its queue of the interface is empty.
    pub fn note_no_packets(&mut self) {
        if let Some(programs) = &mut self.programs {
            programs.queue.note_empty();
        }
    }

    /// Takes in what another worker says.
    pub fn handle_message(&mut self, now: Time, sink: &mut S::Sink, message: Message<S>) {
        match message {
            Message::Order(order) => self.forwarder.handle_order(&mut self.shard, order),
            Message::HostOrder(order) => {
                if let Some(Programs { shard, edge, .. }) = &mut self.programs {
                    edge.handle_order(shard, order);
                }
            }
            Message::Gate(gate) => {
                if let Some(programs) = &mut self.programs {
                    programs.queue.set_gate(gate);
                }
            }
            Message::Parcel(mut parcel) => {
                self.handle_parcel(now, sink, &mut parcel);
                self.outbox.give_back(parcel);
            }
            // For control only.
            Message::Note(_) | Message::HostNote(_) | Message::Report(..) => {}
        }
    }

    /// Takes in frames that another worker handed over.
    fn handle_parcel(&mut self, now: Time, sink: &mut S::Sink, parcel: &mut Parcel) {
        match parcel.kind {
            Kind::Raw => {
                let (by, runs) = (Arrival::Worker(parcel.by), &parcel.runs);
                self.take_batch(now, sink, &mut parcel.buffer, runs, by);
            }
            Kind::Leaving => {
                let mut turn = Turn { now, sink, hand: &mut self.outbox };
                let (shard, buffer) = (&mut self.shard, &mut parcel.buffer);
                self.forwarder.handle_leaving(shard, &mut turn, buffer, &parcel.frames);
            }
            Kind::Opened => {
                if let Some(programs) = &mut self.programs {
                    programs.take_parcel(now, parcel, &mut self.outbox);
                }
            }
            Kind::Unknown | Kind::Plain | Kind::Released | Kind::Sealed | Kind::Read => {
                debug_assert!(false, "the rest is for the first worker");
            }
        }
    }

    /// Sends on the held cells whose time has come.
    pub fn handle_timeout(&mut self, now: Time, sink: &mut S::Sink) {
        if self.forwarder.poll_timeout().is_some_and(|(at, _)| at <= now) {
            let mut turn = Turn { now, sink, hand: &mut self.outbox };
            self.forwarder.handle_timeout(&mut self.shard, &mut turn);
        }
    }

    /// Hands on what others must finish, and tells control what came and went. `sockets` returns
    /// what the worker's sockets did since the start.
    pub fn drive(&mut self, now: Time, sockets: impl FnOnce() -> S::Sockets) {
        self.driven_at = now;
        let Worker { outbox, shard, forwarder, programs, .. } = self;
        outbox.flush();
        self.all_told = forwarder.tell(shard, |note| outbox.try_tell(0, Message::Note(note)));
        if let Some(Programs { shard, edge, queue, .. }) = programs {
            self.all_told &= edge.tell(shard, |note| outbox.try_tell(0, Message::HostNote(note)));
            for (reason, n) in edge.take_drops().chain(queue.take_drops(now)) {
                forwarder.count_drop(reason, n);
            }
        }
        if !forwarder.has_counted() || now.since(self.told_at) < TELL_EVERY {
            return;
        }
        let counters = forwarder.take_counters();
        let packets = programs.as_ref().map(|p| p.queue.counters()).unwrap_or_default();
        let report = Box::new(WorkerReport { counters, sockets: sockets(), packets });
        self.told_at = now;
        // Where there is no room, the counters are kept and told with later ones.
        if !outbox.try_tell(0, Message::Report(self.number, report.clone())) {
            forwarder.put_back(&report.counters);
        }
    }

    /// When [`Self::handle_timeout`] and [`Self::drive`] should be called next though nothing else
    /// happened, and why.
    pub fn poll_timeout(&mut self) -> Option<(Time, &'static str)> {
        let rings = if self.outbox.is_laden() {
            Some((self.driven_at + LADEN_WAIT, "parcels may have come back"))
        } else if !self.all_told {
            Some((self.driven_at + TELL_AGAIN, "notes for control"))
        } else {
            let due = (self.told_at + TELL_EVERY, "counters for control");
            self.forwarder.has_counted().then_some(due)
        };
        [rings, self.forwarder.poll_timeout()].into_iter().flatten().min()
    }
}

/// What a worker needs to serve programs.
type HostsAndQueue<S> = (
    (SessionShard<<S as Shell>::Ciphers>, EdgeWorker),
    Queue<<S as Shell>::Device, <S as Shell>::Flows>,
);
