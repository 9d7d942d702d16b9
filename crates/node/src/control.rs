//! Control: the relay and edge of one node with the first worker's data path, and the orders to the
//! other workers.
//!
//! ```text
//! handle_datagrams -> relay -> (cells for us) edge -> interface
//!                           -> (leg cells)    onion -> relay, edge
//!                           -> (transit)      sink
//! handle_packets   -> interface -> edge --+
//! drive            -> edge ---------------+-> EdgeOut -> relay -> sink
//! give_orders      -> orders, frames -> rings
//! ```
//!
//! After every call, call [`Control::drive`] to send the edge's output. Then empty
//! [`Control::poll_event`] and [`Control::poll_job`], and call [`Control::give_orders`] last.

use core::ops::Range;
use core::time::Duration;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use shoal_crypto::{
    Ciphers, Identity, NetworkSecret, NetworkSecrets, PublicKey, Rng, StandardCiphers,
};
use shoal_directory::{Access, TrafficKind as Right};
use shoal_edge::{DirectEvent, Edge, HostId, InboundCells, PacketFlow};
use shoal_ip::{AddressGate, Packet, StreamKey};
use shoal_relay::{
    ArrivalSource, CallContext, DropCounters, LocalCells, ReceivedRun, Relay, TrafficCounters,
};
use shoal_session::{Endpoints, HandshakeTask, HandshakeTaskResult, HostPath};
use shoal_wire::{Address, LinkId, Time};

use crate::circuits::NodeCircuits;
use crate::out::ControlOutput;
use crate::queue::{InterfaceQueue, PacketOutput};
use crate::rings::{Outbox, Parcel, ParcelKind, WorkerMessage, WorkerReport};
use crate::shell::{NodeQueue, Shell};
use crate::worker::Worker;

#[derive(Clone, Debug)]
pub struct NodeSettings {
    /// The relay's settings. Its sessions define the number of workers.
    pub relay: shoal_relay::RelayConfig,
    /// The edge's settings. Its sessions define how many workers serve programs.
    pub edge: shoal_edge::EdgeConfig,
}

/// Random seeds of a node's parts.
#[derive(Clone, Debug)]
pub struct Seeds {
    pub relay: [u8; 32],
    pub edge: [u8; 32],
    pub circuits: [u8; 32],
}

/// An event for a node's owner.
#[derive(Debug)]
pub enum NodeEvent {
    /// A relay event, about neighbours and routes.
    Relay(shoal_relay::RelayEvent),
    /// An edge event, about hosts and files.
    Edge(shoal_edge::EdgeEvent),
    /// A direct link was made, changed or ended, with the link if there is one. Relay events about
    /// an ended link come later.
    Direct(DirectEvent, Option<LinkId>),
    /// An event of a circuit of this node.
    Circuit(shoal_onion::OnionEvent),
}

/// Control of a node, including the first worker.
pub struct Control<S: Shell> {
    /// The node's forwarding part.
    pub relay: Relay<S::Ciphers>,
    /// The node's host part.
    pub edge: Edge<S::Ciphers>,
    /// The node's circuits.
    pub circuits: NodeCircuits<S::Ciphers>,
    /// The first worker's queue of the interface, if there is an interface.
    pub(crate) queue: Option<NodeQueue<S>>,
    /// The key that assigns flows to hidden hosts to streams.
    stream_key: StreamKey,
    /// True if the other workers have not been told of the current gate.
    gate_is_new: bool,
    /// Direct links by remote host.
    pub(crate) direct: BTreeMap<HostId, LinkId>,
    /// This machine's endpoints at which the node receives datagrams.
    pub(crate) locals: Vec<SocketAddr>,
    /// The public endpoint that a translator keeps open for this node.
    pub(crate) mapped: Option<SocketAddr>,
    /// The connection to the other workers, if there are any.
    pub(crate) outbox: Option<Outbox<S>>,
    /// Totals of each other worker since the start, from worker 1 on.
    others: Vec<WorkerReport<S::Sockets>>,
    /// True if a worker is gone.
    broken: bool,
    /// Time until which the edge is not driven, because it has data but no room to send.
    stuck_until: Option<Time>,
    /// Address from which the edge's cells left at the last drive.
    pub(crate) home: Address,
}

/// A handshake job.
pub enum HandshakeJob<C = StandardCiphers> {
    /// A handshake with a neighbour.
    Link(HandshakeTask<Endpoints, C>),
    /// A handshake with a host.
    Host(HandshakeTask<HostPath, C>),
    /// A handshake with a hop of a circuit.
    Circuit(shoal_onion::SetupJob<C>),
}

/// The result of a [`HandshakeJob`].
pub enum HandshakeDone {
    Link(HandshakeTaskResult<Endpoints>),
    Host(HandshakeTaskResult<HostPath>),
    Circuit(shoal_onion::SetupJobResult),
}

impl<C: Ciphers> HandshakeJob<C> {
    /// Runs the job. Any thread may do so.
    pub fn run(self) -> HandshakeDone {
        match self {
            HandshakeJob::Link(job) => HandshakeDone::Link(job.run()),
            HandshakeJob::Host(job) => HandshakeDone::Host(job.run()),
            HandshakeJob::Circuit(job) => HandshakeDone::Circuit(job.run()),
        }
    }

    /// Mixes fresh randomness into the job's own.
    pub fn freshen(&mut self, fresh: &[u8; 32]) {
        match self {
            HandshakeJob::Link(job) => job.freshen(fresh),
            HandshakeJob::Host(job) => job.freshen(fresh),
            HandshakeJob::Circuit(job) => job.freshen(fresh),
        }
    }
}

/// Delay before an edge without room to send is driven again. The relay retries a full queue every
/// 0.5 ms.
const STUCK_WAIT: Duration = Duration::from_micros(250);

impl<S: Shell> Control<S> {
    /// A node without neighbours and hosts. `origins` are the routers whose keys are known. `queue`
    /// belongs to the interface, if there is one. `unix_ms` is the wall-clock time at `now`.
    #[expect(clippy::too_many_arguments, reason = "the parts of a node")]
    pub fn new(
        config: NodeSettings,
        identity: Identity,
        secret: NetworkSecret,
        origins: impl IntoIterator<Item = (u32, PublicKey)>,
        queue: Option<NodeQueue<S>>,
        seeds: &Seeds,
        now: Time,
        unix_ms: u64,
    ) -> Control<S> {
        let (id, net) = (identity.clone(), secret.clone());
        let circuits = NodeCircuits::new(&config.relay, id, net, seeds.circuits, now, unix_ms);
        let (id, net) = (identity.clone(), secret.clone());
        let relay = Relay::with_ciphers(config.relay, id, net, origins, seeds.relay, now, unix_ms);
        let edge = Edge::with_ciphers(config.edge, identity, secret, seeds.edge, now, unix_ms);
        let home = relay.home();
        Control {
            relay,
            edge,
            circuits,
            queue,
            stream_key: StreamKey::new(&seeds.edge),
            gate_is_new: false,
            direct: BTreeMap::new(),
            locals: Vec::new(),
            mapped: None,
            outbox: None,
            others: Vec::new(),
            broken: false,
            stuck_until: None,
            home,
        }
    }

    /// Makes the workers after the first. `rings` has one entry for each worker, including the
    /// first. `queues` are the interface's other queues, one for each worker as far as they go.
    pub fn split(
        &mut self,
        rings: impl IntoIterator<Item = S::WorkerRings>,
        queues: Vec<NodeQueue<S>>,
    ) -> Vec<Worker<S>> {
        let mut queues = queues.into_iter();
        let mut outboxes = (0..).zip(rings).map(|(number, rings)| Outbox::new(number, rings));
        let own = outboxes.next();
        let others: Vec<_> = (1..)
            .zip(outboxes)
            .map(|(number, outbox)| {
                let programs = queues.next().map(|queue| (self.edge.worker(number), queue));
                Worker::new(number, self.relay.forwarder(number), outbox, programs)
            })
            .collect();
        self.outbox = own.filter(|_| !others.is_empty());
        self.others = vec![WorkerReport::default(); others.len()];
        others
    }

    pub fn queue(&self) -> Option<&NodeQueue<S>> {
        self.queue.as_ref()
    }

    pub fn queue_mut(&mut self) -> Option<&mut NodeQueue<S>> {
        self.queue.as_mut()
    }

    /// Reports of the other workers, from worker 1 on.
    pub fn others(&self) -> &[WorkerReport<S::Sockets>] {
        &self.others
    }

    /// True if `worker` has control's current view, hosts and gate. This is so once it has handled
    /// all messages.
    pub fn is_known_to(&self, worker: &Worker<S>) -> bool {
        worker.knows(&self.relay, &self.edge, self.queue.as_ref())
    }

    /// The node's traffic, except that received frames, sent frames and cells in transit are the
    /// first worker's only.
    pub fn own_traffic(&self) -> TrafficCounters {
        let mut own = self.relay.counters().traffic;
        for WorkerReport { counters: DropCounters { traffic, .. }, .. } in &self.others {
            own.frames_in -= traffic.frames_in;
            own.frames_out -= traffic.frames_out;
            own.cells_transit -= traffic.cells_transit;
        }
        own
    }

    /// True if a worker is gone, and with it its lanes.
    pub fn is_broken(&self) -> bool {
        self.broken
    }

    /// Sets the network secrets for handshakes of all kinds, as [`Relay::set_secrets`]. Sessions
    /// and circuits continue.
    pub fn set_secrets(&mut self, secrets: NetworkSecrets) {
        self.relay.set_secrets(secrets.clone());
        self.edge.set_secrets(secrets.clone());
        self.circuits.onion.set_secrets(secrets);
    }

    /// Replaces the gate, which decides whose packets pass. No effect without a queue.
    pub fn set_gate(&mut self, gate: Arc<AddressGate>) {
        if let Some(queue) = &mut self.queue {
            queue.set_gate(gate);
            self.gate_is_new = true;
        }
    }

    pub fn remove_host(&mut self, now: Time, host: HostId) {
        self.edge.remove_host(now, host);
        if let Some(queue) = &self.queue {
            queue.firewall().forget(host);
        }
    }

    /// Sets the rights of hosts to begin traffic with this node, and the hosts that may have direct
    /// links. From then on all other traffic is refused.
    pub fn set_rights(
        &mut self,
        to_us: &BTreeMap<HostId, Arc<Access>>,
        partners: impl Iterator<Item = HostId>,
    ) {
        let may_ping = to_us.iter().filter(|(_, access)| access.has(Right::Ping));
        self.edge.set_answered(may_ping.map(|(id, _)| *id).collect());
        self.edge.set_partners(partners.collect());
        if let Some(queue) = &self.queue {
            queue.firewall().set_rights(to_us);
        }
    }

    /// Handles packets of programs. Call [`Self::drive`] afterwards.
    pub fn handle_packets(&mut self, now: Time, sink: &mut S::Sink) {
        self.with_queue(sink, |queue, onward| queue.read(now, onward));
    }

    /// Notes that the first worker's queue of the interface is empty.
    pub fn note_no_packets(&mut self) {
        if let Some(queue) = &mut self.queue {
            queue.note_empty();
        }
    }

    /// Calls `send` with the first worker's queue and its output.
    fn with_queue(
        &mut self,
        sink: &mut S::Sink,
        send: impl FnOnce(&mut NodeQueue<S>, &mut FirstWorkerOutput<'_, S>),
    ) {
        let Some(queue) = &mut self.queue else { return };
        let Control { relay, circuits, outbox, .. } = self;
        let way = ControlOutput { relay, circuits, sink, outbox, cells: 0 };
        let (edge, stream_key) = (&mut self.edge, &self.stream_key);
        send(queue, &mut FirstWorkerOutput { edge, stream_key, way });
    }

    /// True if packets of programs should wait in the interface, because the backlog on the last
    /// packet's path is so long that cells are marked.
    pub fn packets_wait(&self) -> bool {
        let last = self.queue.as_ref().and_then(InterfaceQueue::last);
        let to = last.and_then(|host| self.edge.address_of(host));
        to.is_some_and(|to| self.relay.is_marking(to))
    }

    /// True if so many of this worker's parcels are with other workers that no datagrams should be
    /// received.
    pub fn is_full(&mut self) -> bool {
        self.outbox.as_mut().is_some_and(Outbox::is_full)
    }

    /// Handles one batch of datagrams. `incoming` gives their positions in `buf`.
    pub fn handle_datagrams(
        &mut self,
        now: Time,
        sink: &mut S::Sink,
        buf: &mut [u8],
        incoming: &[ReceivedRun],
    ) {
        let Control { relay, edge, circuits, queue, outbox, .. } = self;
        let mut local = |buf: &mut [u8], cells: LocalCells<'_>, outbox: &mut _| {
            take_cells(now, (&mut *edge, &mut *circuits), queue, outbox, buf, cells)
        };
        let mut turn = CallContext { now, sink, hand: outbox };
        relay.handle_batch(&mut turn, buf, incoming, ArrivalSource::Socket, &mut local);
    }

    /// Handles a message of another worker.
    pub fn handle_message(&mut self, now: Time, sink: &mut S::Sink, message: WorkerMessage<S>) {
        match message {
            WorkerMessage::Parcel(mut parcel) => {
                self.handle_parcel(now, sink, &mut parcel);
                if let Some(outbox) = &mut self.outbox {
                    outbox.give_back(parcel);
                }
            }
            WorkerMessage::Note(note) => self.relay.handle_note(now, &note, sink),
            WorkerMessage::HostNote(note) => self.edge.handle_note(now, &note),
            WorkerMessage::Report(worker, report) => {
                self.relay.add_counters(&report.counters);
                if let Some(known) = self.others.get_mut(usize::from(worker).wrapping_sub(1)) {
                    known.counters.add(&report.counters);
                    (known.sockets, known.packets) = (report.sockets, report.packets);
                }
            }
            // Only control sends these.
            WorkerMessage::Order(_) | WorkerMessage::HostOrder(_) | WorkerMessage::Gate(_) => {}
        }
    }

    /// Handles frames that another worker handed over.
    fn handle_parcel(&mut self, now: Time, sink: &mut S::Sink, parcel: &mut Parcel) {
        let Control { relay, edge, circuits, queue, outbox, .. } = self;
        let mut local = |buf: &mut [u8], cells: LocalCells<'_>, outbox: &mut _| {
            take_cells(now, (&mut *edge, &mut *circuits), queue, outbox, buf, cells)
        };
        let Parcel { kind, buffer, runs, frames, plain, reads, by, .. } = parcel;
        match kind {
            ParcelKind::Raw | ParcelKind::Unknown => {
                let mut turn = CallContext { now, sink, hand: outbox };
                relay.handle_batch(&mut turn, buffer, runs, ArrivalSource::Worker(*by), &mut local);
            }
            ParcelKind::Opened => {
                let mut turn = CallContext { now, sink, hand: outbox };
                relay.handle_opened(&mut turn, buffer, frames, &mut local);
            }
            ParcelKind::Leaving => {
                let mut turn = CallContext { now, sink, hand: outbox };
                relay.handle_leaving(&mut turn, buffer, frames);
            }
            ParcelKind::Released => relay.handle_released(now, buffer, frames, sink),
            ParcelKind::Sealed => relay.handle_sealed(now, buffer, frames),
            ParcelKind::Plain => self.handle_plain(now, buffer, plain),
            ParcelKind::Read => self.with_queue(sink, |queue, onward| {
                for read in reads {
                    let bytes = &buffer[read.start as usize..read.end as usize];
                    queue.pass(now, bytes, Duration::ZERO, onward);
                }
            }),
        }
    }

    /// Handles cells of hosts that another worker opened.
    fn handle_plain(&mut self, now: Time, buffer: &mut [u8], cells: &[(HostId, Range<u32>)]) {
        for (host, cell) in cells {
            let frame = &mut buffer[cell.start as usize..cell.end as usize];
            let taken = self.edge.handle_opened(now, *host, frame);
            if let Err(reason) = taken {
                self.relay.count_drop(reason, 1);
            }
        }
    }

    /// Handles all timers that are due.
    pub fn handle_timeout(&mut self, now: Time, sink: &mut S::Sink) {
        if due(self.relay.poll_timeout(), now) {
            self.relay.handle_timeout(now, sink);
        }
        if due(self.edge.poll_timeout(), now) {
            self.edge.handle_timeout(now);
        }
        if due(self.circuits.poll_timeout(), now) {
            self.circuits.onion.handle_timeout(now);
        }
    }

    /// Sends the edge's output. Call this after all other calls.
    pub fn drive(&mut self, now: Time, sink: &mut S::Sink) {
        while let Some(circuit) = self.circuits.poll_gone() {
            self.tell_edge(now, shoal_onion::OnionEvent::Ended(circuit));
        }
        self.follow_uplink(now);
        self.drive_pool(now);
        let Control { relay, edge, circuits, outbox, .. } = self;
        let mut way = ControlOutput { relay, circuits, sink: &mut *sink, outbox, cells: 0 };
        edge.drive(now, &mut way);
        let sent = way.cells;
        self.deliver_released(now);
        self.send_own_legs(now, sink);
        let drops = self.edge.take_drops().chain(self.circuits.take_drops());
        for (reason, n) in drops.chain(self.queue.iter_mut().flat_map(|q| q.take_drops(now))) {
            self.relay.count_drop(reason, n);
        }
        let stuck = sent == 0 && due(self.edge.poll_timeout(), now);
        self.stuck_until = stuck.then(|| now + STUCK_WAIT);
    }

    /// Time and reason of the next call of [`Self::handle_timeout`] and [`Self::drive`].
    pub fn poll_timeout(&self) -> Option<(Time, &'static str)> {
        let edge = self.edge.poll_timeout();
        let edge = edge.map(|(at, why)| (self.stuck_until.map_or(at, |until| at.max(until)), why));
        [edge, self.relay.poll_timeout(), self.circuits.poll_timeout()].into_iter().flatten().min()
    }

    /// Sends due orders to the workers, then frames. Call this at the end of every turn.
    pub fn give_orders(&mut self) {
        let Control { relay, edge, queue, outbox, broken, .. } = self;
        let Some(outbox) = outbox else { return };
        // The gate goes first: packets of a removed host must not pass while workers still have its
        // keys.
        if let Some(queue) = queue.as_ref().filter(|_| core::mem::take(&mut self.gate_is_new)) {
            for worker in 1..=self.others.len() as u8 {
                *broken |= !outbox.tell(worker, WorkerMessage::Gate(queue.gate()));
            }
        }
        while let Some((worker, order)) = edge.poll_order() {
            *broken |= !outbox.tell(worker, WorkerMessage::HostOrder(order));
        }
        while let Some((worker, order)) = relay.poll_order() {
            *broken |= !outbox.tell(worker, WorkerMessage::Order(order));
        }
        outbox.flush();
    }

    /// Takes the next event. This also makes and ends direct links as the edge requests.
    pub fn poll_event(&mut self, now: Time) -> Option<NodeEvent> {
        if let Some(event) = self.relay.poll_event() {
            self.note_link(now, &event);
            if matches!(event, shoal_relay::RelayEvent::Seen) {
                self.gather();
            }
            return Some(NodeEvent::Relay(event));
        }
        while let Some(event) = self.circuits.onion.poll_event() {
            if let Some(event) = self.tell_edge(now, event) {
                return Some(NodeEvent::Circuit(event));
            }
        }
        match self.edge.poll_event()? {
            shoal_edge::EdgeEvent::Direct(event) => {
                let link = self.handle_direct(now, event.clone());
                Some(NodeEvent::Direct(event, link))
            }
            event => {
                if let shoal_edge::EdgeEvent::NeedCircuit(host) = event {
                    self.want_circuit(now, host);
                }
                Some(NodeEvent::Edge(event))
            }
        }
    }

    /// Sets the wall-clock time of all parts.
    pub fn set_unix_time(&mut self, now: Time, unix_ms: u64) {
        self.relay.set_unix_time(now, unix_ms);
        self.edge.set_unix_time(now, unix_ms);
        self.circuits.onion.set_unix_time(now, unix_ms);
        if let Some(pool) = &mut self.circuits.pool {
            pool.set_unix_time(now, unix_ms);
        }
    }

    /// Drops all keys and makes new ones, with this randomness.
    pub fn rekey_all(&mut self, now: Time, sink: &mut S::Sink, fresh: &mut Rng) {
        self.relay.rekey_all(now, &fresh.array(), sink);
        self.edge.rekey_all(now, &fresh.array());
        self.circuits.onion.forget_all(now, &fresh.array());
    }

    /// Takes the next handshake job. Neighbours come first, since all else depends on them.
    /// Circuits come last, since anybody may request them.
    pub fn poll_job(&mut self) -> Option<HandshakeJob<S::Ciphers>> {
        let link = self.relay.poll_job().map(HandshakeJob::Link);
        let host = || self.edge.poll_job().map(HandshakeJob::Host);
        link.or_else(host).or_else(|| self.circuits.onion.poll_job().map(HandshakeJob::Circuit))
    }

    /// Handles the result of a handshake job.
    pub fn handle_done(&mut self, now: Time, sink: &mut S::Sink, done: HandshakeDone) {
        match done {
            HandshakeDone::Link(done) => self.relay.handle_done(now, done, sink),
            HandshakeDone::Host(done) => self.edge.handle_done(now, done),
            HandshakeDone::Circuit(done) => self.circuits.handle_done(now, done),
        }
    }
}

/// Handles cells for this node. The edge opens them or hands them to the right worker, and the
/// queue writes packets to the interface. Leg cells continue, or their units go to the edge.
fn take_cells<S: Shell>(
    now: Time,
    (edge, circuits): (&mut Edge<S::Ciphers>, &mut NodeCircuits<S::Ciphers>),
    queue: &mut Option<NodeQueue<S>>,
    outbox: &mut Option<Outbox<S>>,
    buf: &mut [u8],
    found: LocalCells<'_>,
) -> u64 {
    let count = found.count();
    if !found.legs.is_empty() {
        let unit = |buf: &mut [u8], run: &[u32], way| {
            let from = edge.handle_units(now, way, InboundCells::new(&mut *buf, run, found.len));
            if let Some(queue) = &mut *queue {
                queue.deliver(now, edge.arrivals(), buf);
            }
            from
        };
        circuits.handle_legs(now, buf, found.legs, (found.onward, found.mixed), unit);
    }
    if found.offsets.is_empty() {
        return count;
    }
    let cells = InboundCells::new(buf, found.offsets, found.len);
    match outbox {
        Some(outbox) => edge.handle_cells(now, cells, outbox),
        None => edge.handle_cells(now, cells, &mut ()),
    }
    if let Some(queue) = queue {
        queue.deliver(now, edge.arrivals(), buf);
    }
    count
}

/// The output of the first worker's queue: the edge.
struct FirstWorkerOutput<'a, S: Shell> {
    edge: &'a mut Edge<S::Ciphers>,
    stream_key: &'a StreamKey,
    way: ControlOutput<'a, S>,
}

impl<S: Shell> PacketOutput for FirstWorkerOutput<'_, S> {
    fn is_congested(&self, host: HostId) -> bool {
        self.edge.is_congested(host, &self.way)
    }

    fn packet_len(&self, host: HostId) -> usize {
        self.edge.packet_len(host)
    }

    fn answers_later(&self, host: HostId) -> Duration {
        self.edge.answers_later(host)
    }

    fn stream(&self, host: HostId, packet: &Packet, bytes: &[u8]) -> u16 {
        let is_hidden = self.edge.is_hidden(host);
        if is_hidden { packet.stream(self.stream_key, bytes) } else { 0 }
    }

    fn reaches(&self, _: Time, _: HostId) -> bool {
        // The first worker's edge makes sessions, and packets wait for them there.
        true
    }

    fn send(&mut self, now: Time, flow: PacketFlow, len: usize, write: impl FnOnce(&mut [u8])) {
        self.edge.send_packet(now, flow, len, &mut self.way, write);
    }

    fn hand(&mut self, _: &[u8]) -> bool {
        false
    }
}

fn due(timeout: Option<(Time, &'static str)>, now: Time) -> bool {
    timeout.is_some_and(|(at, _)| at <= now)
}
