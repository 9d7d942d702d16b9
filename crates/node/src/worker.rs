//! A worker after the first. It forwards on its own lanes and, if it has a queue of the interface,
//! serves programs. It hands frames that it can't finish to other workers.
//!
//! In a turn, its shell calls [`Worker::handle_message`] for messages of other workers and
//! [`Worker::handle_datagrams`] for each batch. After packets of programs it calls
//! [`Worker::handle_packets`], and at the end [`Worker::drive`].

use core::time::Duration;

use shoal_edge::{Edge, EdgeOutput, EdgeWorker, HostId, InboundCells, PacketFlow};
use shoal_relay::{
    ArrivalSource, CallContext, DropCounters, Forwarder, LocalCells, ReceivedRun, Relay,
};
use shoal_session::SessionShard;
use shoal_wire::{Address, CircuitId, DropReason, LinkId, LinkKind, Time, ip};

use crate::queue::{InterfaceQueue, PacketOutput};
use crate::rings::{LADEN_WAIT, Outbox, Parcel, ParcelKind, WorkerMessage, WorkerReport};
use crate::shell::{NodeQueue, Shell};

/// Period of counter reports while there is traffic.
const TELL_EVERY: Duration = Duration::from_millis(20);
/// Delay before notes that found no room in control's ring are sent again.
const TELL_AGAIN: Duration = Duration::from_millis(1);

/// A worker after the first.
pub struct Worker<S: Shell> {
    number: u8,
    shard: SessionShard<S::Ciphers>,
    forwarder: Forwarder,
    outbox: Outbox<S>,
    programs: Option<ProgramService<S>>,
    /// Times of the last drive and of the last counter report.
    driven_at: Time,
    told_at: Time,
    /// True if control has accepted all notes.
    all_told: bool,
}

/// The part that serves programs: lanes of hosts, and a queue of the interface.
struct ProgramService<S: Shell> {
    shard: SessionShard<S::Ciphers>,
    edge: EdgeWorker,
    queue: NodeQueue<S>,
    /// Cells of one parcel, and the links on which they arrived.
    offsets: Vec<u32>,
    from: Vec<LinkId>,
}

impl<S: Shell> ProgramService<S> {
    /// Handles cells for this host. Returns the number of cells not left to the first worker.
    fn take(&mut self, now: Time, cells: InboundCells<'_>, outbox: &mut Outbox<S>) -> u64 {
        let InboundCells { buf, offsets, frame_len, from, by } = cells;
        let cells = InboundCells { buf: &mut *buf, offsets, frame_len, from, by };
        let kept = self.edge.handle_cells(now, &mut self.shard, cells, outbox);
        self.queue.deliver(now, self.edge.arrivals(), buf);
        kept
    }

    /// Handles cells for this host that another worker opened and counted.
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
            self.take(now, InboundCells { buf, offsets, frame_len, from, by }, outbox);
        }
        (self.offsets, self.from) = (offsets, from);
    }
}

/// A worker's output: its own lanes, or the worker that owns a cell's lane.
struct WorkerOutput<'a, S: Shell> {
    shard: &'a mut SessionShard<S::Ciphers>,
    forwarder: &'a mut Forwarder,
    sink: &'a mut S::Sink,
    outbox: &'a mut Outbox<S>,
}

impl<S: Shell> WorkerOutput<'_, S> {
    fn send(&mut self, now: Time, kind: LinkKind, buf: &mut [u8], offsets: &[u32], len: usize) {
        let mut turn = CallContext { now, sink: self.sink, hand: self.outbox };
        self.forwarder.send_cells(self.shard, &mut turn, kind, buf, offsets, len);
    }
}

impl<S: Shell> EdgeOutput for WorkerOutput<'_, S> {
    fn cells(&mut self, now: Time, buf: &mut [u8], offsets: &[u32], len: usize) {
        self.send(now, LinkKind::Cell, buf, offsets, len);
    }

    fn source(&self, dst: Address) -> Option<Address> {
        self.forwarder.source(dst)
    }

    fn room(&self, _: Address) -> usize {
        // Only files ask, and the first worker sends them.
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

    // Only control has circuits.
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

/// The output of a worker's queue: the worker's part of the edge.
struct QueueOutput<'a, 'b, S: Shell> {
    edge: &'a mut EdgeWorker,
    turn: shoal_edge::EdgeTurn<'a, S::Ciphers, WorkerOutput<'b, S>>,
}

impl<S: Shell> PacketOutput for QueueOutput<'_, '_, S> {
    fn is_congested(&self, host: HostId) -> bool {
        self.edge.is_congested(host, self.turn.out)
    }

    fn packet_len(&self, _: HostId) -> usize {
        // Control handles hosts with shorter packets.
        ip::PACKET_MAX
    }

    fn reaches(&self, _: Time, host: HostId) -> bool {
        self.edge.reaches(&self.turn, host)
    }

    fn send(&mut self, _: Time, flow: PacketFlow, len: usize, write: impl FnOnce(&mut [u8])) {
        self.edge.send_packet(&mut self.turn, flow, len, write);
    }

    fn hand(&mut self, read: &[u8]) -> bool {
        self.turn.out.outbox.read(read)
    }
}

impl<S: Shell> Worker<S> {
    /// Worker `number`. It serves programs if `programs` is given.
    pub(crate) fn new(
        number: u8,
        (shard, forwarder): (SessionShard<S::Ciphers>, Forwarder),
        outbox: Outbox<S>,
        programs: Option<ProgramParts<S>>,
    ) -> Worker<S> {
        let programs = programs.map(|((shard, edge), queue)| {
            let (offsets, from) = (Vec::new(), Vec::new());
            ProgramService { shard, edge, queue, offsets, from }
        });
        let (driven_at, told_at) = (Time::ZERO, Time::ZERO);
        Worker { number, shard, forwarder, outbox, programs, driven_at, told_at, all_told: true }
    }

    /// Number of the worker. Control is worker 0.
    pub fn number(&self) -> u8 {
        self.number
    }

    pub fn queue(&self) -> Option<&NodeQueue<S>> {
        self.programs.as_ref().map(|programs| &programs.queue)
    }

    pub fn queue_mut(&mut self) -> Option<&mut NodeQueue<S>> {
        self.programs.as_mut().map(|programs| &mut programs.queue)
    }

    /// True if the worker has this view, these hosts and this gate.
    pub(crate) fn knows(
        &self,
        relay: &Relay<S::Ciphers>,
        edge: &Edge<S::Ciphers>,
        queue: Option<&NodeQueue<S>>,
    ) -> bool {
        let programs = self.programs.as_ref();
        let hosts = programs.is_none_or(|programs| edge.is_known_to(&programs.edge));
        let gate = |(ours, theirs): (&InterfaceQueue<_, _>, &ProgramService<S>)| {
            ours.has_gate_of(&theirs.queue)
        };
        relay.is_known_to(&self.forwarder) && hosts && queue.zip(programs).is_none_or(gate)
    }

    /// Counters not yet reported to control.
    pub fn counters(&self) -> &DropCounters {
        self.forwarder.counters()
    }

    /// Number of cells held.
    pub fn held(&self) -> usize {
        self.forwarder.held()
    }

    /// Counts drops outside of this crate, such as receive overflows.
    pub fn count_drop(&mut self, reason: DropReason, n: u64) {
        self.forwarder.count_drop(reason, n);
    }

    /// True if so many of this worker's parcels are with others that no datagrams should be
    /// received. Messages must be handled nevertheless.
    pub fn is_full(&mut self) -> bool {
        self.outbox.is_full()
    }

    /// True if packets of programs should wait in the interface. Either too many parcels are with
    /// others, or the backlog on the last packet's path is so long that cells are marked.
    pub fn packets_wait(&mut self) -> bool {
        let last = self.programs.as_ref().and_then(|p| p.edge.address_of(p.queue.last()?));
        self.outbox.is_laden() || last.is_some_and(|to| self.forwarder.is_marking(to))
    }

    /// Handles one batch of datagrams. `incoming` gives their positions in `buf`.
    pub fn handle_datagrams(
        &mut self,
        now: Time,
        sink: &mut S::Sink,
        buf: &mut [u8],
        incoming: &[ReceivedRun],
    ) {
        self.take_batch(now, sink, buf, incoming, ArrivalSource::Socket);
    }

    /// Handles one batch, including cells for this host.
    fn take_batch(
        &mut self,
        now: Time,
        sink: &mut S::Sink,
        buf: &mut [u8],
        incoming: &[ReceivedRun],
        arrival: ArrivalSource,
    ) {
        let Worker { shard, forwarder, outbox, programs, .. } = self;
        let mut local = programs.as_mut().map(|programs| {
            move |buf: &mut [u8], cells: LocalCells<'_>, outbox: &mut Outbox<S>| {
                let LocalCells { offsets, from, len: frame_len, .. } = cells;
                programs.take(now, InboundCells { buf, offsets, frame_len, from, by: None }, outbox)
            }
        });
        let mut turn = CallContext { now, sink, hand: outbox };
        forwarder.handle_batch(shard, &mut turn, buf, incoming, arrival, local.as_mut());
    }

    /// Handles packets of programs, unless too many parcels are with others.
    pub fn handle_packets(&mut self, now: Time, sink: &mut S::Sink) {
        let Worker { shard: links, forwarder, outbox, programs, .. } = self;
        let Some(ProgramService { shard, edge, queue, .. }) = programs else { return };
        if outbox.is_laden() {
            return;
        }
        let mut way = WorkerOutput { shard: links, forwarder, sink, outbox };
        let turn = shoal_edge::EdgeTurn { now, shard, out: &mut way };
        let mut onward = QueueOutput { edge, turn };
        queue.read(now, &mut onward);
        onward.edge.flush(&mut onward.turn);
    }

    /// Notes that the worker's queue of the interface is empty.
    pub fn note_no_packets(&mut self) {
        if let Some(programs) = &mut self.programs {
            programs.queue.note_empty();
        }
    }

    /// Handles a message of another worker.
    pub fn handle_message(&mut self, now: Time, sink: &mut S::Sink, message: WorkerMessage<S>) {
        match message {
            WorkerMessage::Order(order) => self.forwarder.handle_order(&mut self.shard, order),
            WorkerMessage::HostOrder(order) => {
                if let Some(ProgramService { shard, edge, .. }) = &mut self.programs {
                    edge.handle_order(shard, order);
                }
            }
            WorkerMessage::Gate(gate) => {
                if let Some(programs) = &mut self.programs {
                    programs.queue.set_gate(gate);
                }
            }
            WorkerMessage::Parcel(mut parcel) => {
                self.handle_parcel(now, sink, &mut parcel);
                self.outbox.give_back(parcel);
            }
            // Only control handles these.
            WorkerMessage::Note(_) | WorkerMessage::HostNote(_) | WorkerMessage::Report(..) => {}
        }
    }

    /// Handles frames that another worker handed over.
    fn handle_parcel(&mut self, now: Time, sink: &mut S::Sink, parcel: &mut Parcel) {
        match parcel.kind {
            ParcelKind::Raw => {
                let (by, runs) = (ArrivalSource::Worker(parcel.by), &parcel.runs);
                self.take_batch(now, sink, &mut parcel.buffer, runs, by);
            }
            ParcelKind::Leaving => {
                let mut turn = CallContext { now, sink, hand: &mut self.outbox };
                let (shard, buffer) = (&mut self.shard, &mut parcel.buffer);
                self.forwarder.handle_leaving(shard, &mut turn, buffer, &parcel.frames);
            }
            ParcelKind::Opened => {
                if let Some(programs) = &mut self.programs {
                    programs.take_parcel(now, parcel, &mut self.outbox);
                }
            }
            ParcelKind::Unknown
            | ParcelKind::Plain
            | ParcelKind::Released
            | ParcelKind::Sealed
            | ParcelKind::Read => {
                debug_assert!(false, "the rest is for the first worker");
            }
        }
    }

    /// Sends the held cells that are due.
    pub fn handle_timeout(&mut self, now: Time, sink: &mut S::Sink) {
        if self.forwarder.poll_timeout().is_some_and(|(at, _)| at <= now) {
            let mut turn = CallContext { now, sink, hand: &mut self.outbox };
            self.forwarder.handle_timeout(&mut self.shard, &mut turn);
        }
    }

    /// Flushes parcels, and sends notes and counters to control. `sockets` returns the socket
    /// counters since the start.
    pub fn drive(&mut self, now: Time, sockets: impl FnOnce() -> S::Sockets) {
        self.driven_at = now;
        let Worker { outbox, shard, forwarder, programs, .. } = self;
        outbox.flush();
        self.all_told = forwarder.tell(shard, |note| outbox.try_tell(0, WorkerMessage::Note(note)));
        if let Some(ProgramService { shard, edge, queue, .. }) = programs {
            self.all_told &=
                edge.tell(shard, |note| outbox.try_tell(0, WorkerMessage::HostNote(note)));
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
        // Without room, the counters are kept for the next report.
        if !outbox.try_tell(0, WorkerMessage::Report(self.number, report.clone())) {
            forwarder.put_back(&report.counters);
        }
    }

    /// Time and reason of the next call of [`Self::handle_timeout`] and [`Self::drive`] if no other
    /// event happens.
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

/// Everything that a worker needs to serve programs.
type ProgramParts<S> = ((SessionShard<<S as Shell>::Ciphers>, EdgeWorker), NodeQueue<S>);
