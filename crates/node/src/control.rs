//! Control: the relay and the edge of one node with the first worker's data path, what passes
//! between them, and what the other workers are told.
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
//! After every call [`Control::drive`] sends what the edge has to send, [`Control::poll_event`] and
//! [`Control::poll_job`] are emptied, and [`Control::give_orders`] comes last.

use core::ops::Range;
use core::time::Duration;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use shoal_crypto::{Ciphers, Identity, NetworkSecret, NetworkSecrets, PublicKey, Rng, Standard};
use shoal_directory::{Access, Rights as Right};
use shoal_edge::{Cells, DirectEvent, Edge, Flow, HostId};
use shoal_ip::{Gate, Packet, StreamKey};
use shoal_relay::{Arrival, Counters, Incoming, LocalCells, Relay, Traffic, Turn};
use shoal_session::{Done, Endpoints, Job, Via};
use shoal_wire::{LinkId, Time};

use crate::circuits::Circuits;
use crate::out::EdgeOut;
use crate::queue::{Onward, Queue};
use crate::rings::{Kind, Message, Outbox, Parcel, WorkerReport};
use crate::shell::Shell;
use crate::worker::Worker;

/// What a node is made of.
#[derive(Clone, Debug)]
pub struct Config {
    /// The node among its neighbours; its sessions say how many workers there are.
    pub relay: shoal_relay::Config,
    /// The node as a host; its sessions say how many workers serve programs.
    pub edge: shoal_edge::Config,
}

/// Randomness of a node's machines.
#[derive(Clone, Debug)]
pub struct Seeds {
    /// The relay's.
    pub relay: [u8; 32],
    /// The edge's.
    pub edge: [u8; 32],
    /// That of its circuits.
    pub circuits: [u8; 32],
}

/// What the owner of a node may want to hear.
#[derive(Debug)]
pub enum Event {
    /// An event of the relay: about neighbours and routes.
    Relay(shoal_relay::Event),
    /// An event of the edge: about hosts and files.
    Edge(shoal_edge::Event),
    /// A direct link was made, changed or ended as the edge wanted; the link, where there is one.
    /// The relay's events about a link that ended come after this one.
    Direct(DirectEvent, Option<LinkId>),
    /// About a circuit of this node.
    Circuit(shoal_onion::Event),
}

/// Control, and the first worker.
pub struct Control<S: Shell> {
    /// The node among its neighbours.
    pub relay: Relay<S::Ciphers>,
    /// The node as a host.
    pub edge: Edge<S::Ciphers>,
    /// The node on circuits.
    pub circuits: Circuits<S::Ciphers>,
    /// The first worker's queue of the interface, if there is one.
    pub(crate) queue: Option<Queue<S::Device, S::Flows>>,
    /// By which flows to hidden hosts get their streams.
    stream_key: StreamKey,
    /// Whether the other workers must yet be told of the gate in force.
    gate_is_new: bool,
    /// Direct links, by the host at their other end.
    pub(crate) direct: BTreeMap<HostId, LinkId>,
    /// Where this node takes datagrams at its machine.
    pub(crate) locals: Vec<SocketAddr>,
    /// Where a translator keeps a port open for this node.
    pub(crate) mapped: Option<SocketAddr>,
    /// The way to the other workers, if there are several.
    pub(crate) outbox: Option<Outbox<S>>,
    /// What each other worker has counted since the start, from worker 1 on.
    others: Vec<WorkerReport<S::Sockets>>,
    /// Whether one of the other workers is gone.
    broken: bool,
    /// Until when the edge is left alone, since it has something to send and no room for it.
    stuck_until: Option<Time>,
}

/// Handshake work of a machine.
pub enum HandshakeJob<C = Standard> {
    /// With a neighbour.
    Link(Job<Endpoints, C>),
    /// With a host.
    Host(Job<Via, C>),
    /// With a hop of a circuit.
    Circuit(shoal_onion::Job<C>),
}

/// The result of a [`HandshakeJob`].
pub enum HandshakeDone {
    /// With a neighbour.
    Link(Done<Endpoints>),
    /// With a host.
    Host(Done<Via>),
    /// With a hop of a circuit.
    Circuit(shoal_onion::Done),
}

impl<C: Ciphers> HandshakeJob<C> {
    /// Does the work; any thread may.
    pub fn run(self) -> HandshakeDone {
        match self {
            HandshakeJob::Link(job) => HandshakeDone::Link(job.run()),
            HandshakeJob::Host(job) => HandshakeDone::Host(job.run()),
            HandshakeJob::Circuit(job) => HandshakeDone::Circuit(job.run()),
        }
    }

    /// Adds randomness to the machine's own.
    pub fn freshen(&mut self, fresh: &[u8; 32]) {
        match self {
            HandshakeJob::Link(job) => job.freshen(fresh),
            HandshakeJob::Host(job) => job.freshen(fresh),
            HandshakeJob::Circuit(job) => job.freshen(fresh),
        }
    }
}

/// How long an edge that has something to send and no room for it is left alone. The relay tries a
/// full queue again every half millisecond.
const STUCK_WAIT: Duration = Duration::from_micros(250);

impl<S: Shell> Control<S> {
    /// A node with no neighbours and hosts yet. `origins` are the routers whose keys are known,
    /// `queue` is the interface's, if there is one; `unix_ms` is the wall clock that goes with
    /// `now`.
    #[expect(clippy::too_many_arguments, reason = "what a node needs from its start to its end")]
    pub fn new(
        config: Config,
        identity: Identity,
        secret: NetworkSecret,
        origins: impl IntoIterator<Item = (u32, PublicKey)>,
        queue: Option<Queue<S::Device, S::Flows>>,
        seeds: &Seeds,
        now: Time,
        unix_ms: u64,
    ) -> Control<S> {
        let (id, net) = (identity.clone(), secret.clone());
        let circuits = Circuits::new(&config.relay, id, net, seeds.circuits, now, unix_ms);
        let (id, net) = (identity.clone(), secret.clone());
        let relay = Relay::with_ciphers(config.relay, id, net, origins, seeds.relay, now, unix_ms);
        let edge = Edge::with_ciphers(config.edge, identity, secret, seeds.edge, now, unix_ms);
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
        }
    }

    /// Makes the workers after the first. `rings` has one entry for each worker, the first
    /// included. `queues` are the interface's queues beside control's: each worker takes one, as
    /// far as they go.
    pub fn split(
        &mut self,
        rings: impl IntoIterator<Item = S::Rings>,
        queues: Vec<Queue<S::Device, S::Flows>>,
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

    /// The first worker's queue of the interface, if there is one.
    pub fn queue(&self) -> Option<&Queue<S::Device, S::Flows>> {
        self.queue.as_ref()
    }

    /// The first worker's queue of the interface, if there is one, to be changed.
    pub fn queue_mut(&mut self) -> Option<&mut Queue<S::Device, S::Flows>> {
        self.queue.as_mut()
    }

    /// What each of the other workers has done, from worker 1 on.
    pub fn others(&self) -> &[WorkerReport<S::Sockets>] {
        &self.others
    }

    /// Whether `worker` knows what control knows: neighbours, routes, hosts, and whose packets the
    /// gate lets pass. It does once it has taken in all messages.
    pub fn is_known_to(&self, worker: &Worker<S>) -> bool {
        worker.knows(&self.relay, &self.edge, self.queue.as_ref())
    }

    /// The node's traffic, with the frames received, frames sent and cells in transit of the first
    /// worker alone.
    pub fn own_traffic(&self) -> Traffic {
        let mut own = self.relay.counters().traffic;
        for WorkerReport { counters: Counters { traffic, .. }, .. } in &self.others {
            own.frames_in -= traffic.frames_in;
            own.frames_out -= traffic.frames_out;
            own.cells_transit -= traffic.cells_transit;
        }
        own
    }

    /// Whether a worker is gone, and with it the lanes that it held.
    pub fn is_broken(&self) -> bool {
        self.broken
    }

    /// As [`Relay::set_secrets`], for handshakes of all kinds. Sessions and circuits go on.
    pub fn set_secrets(&mut self, secrets: NetworkSecrets) {
        self.relay.set_secrets(secrets.clone());
        self.edge.set_secrets(secrets.clone());
        self.circuits.onion.set_secrets(secrets);
    }

    /// Puts another gate in force, which says whose packets pass; nothing happens without a queue.
    pub fn set_gate(&mut self, gate: Arc<Gate>) {
        if let Some(queue) = &mut self.queue {
            queue.set_gate(gate);
            self.gate_is_new = true;
        }
    }

    /// Forgets a host.
    pub fn remove_host(&mut self, now: Time, host: HostId) {
        self.edge.remove_host(now, host);
        if let Some(queue) = &self.queue {
            queue.firewall().forget(host);
        }
    }

    /// Puts into force what hosts may begin with this node, and with whom there may be direct
    /// links; from then on everything else is refused.
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

    /// Takes in packets of programs. Call [`Self::drive`] afterwards.
    pub fn handle_packets(&mut self, now: Time, sink: &mut S::Sink) {
        self.with_queue(sink, |queue, onward| queue.read(now, onward));
    }

    /// Says that the first worker's queue of the interface is empty.
    pub fn note_no_packets(&mut self) {
        if let Some(queue) = &mut self.queue {
            queue.note_empty();
        }
    }

    /// Lets the interface's queue send something.
    fn with_queue(
        &mut self,
        sink: &mut S::Sink,
        send: impl FnOnce(&mut Queue<S::Device, S::Flows>, &mut FromFirst<'_, S>),
    ) {
        let Some(queue) = &mut self.queue else { return };
        let Control { relay, circuits, outbox, .. } = self;
        let way = EdgeOut { relay, circuits, sink, outbox, cells: 0 };
        let (edge, stream_key) = (&mut self.edge, &self.stream_key);
        send(queue, &mut FromFirst { edge, stream_key, way });
    }

    /// Whether packets of programs had better wait in the interface: the backlog on the way of the
    /// last one is so long that cells are marked.
    pub fn packets_wait(&self) -> bool {
        let last = self.queue.as_ref().and_then(Queue::last);
        let to = last.and_then(|host| self.edge.address_of(host));
        to.is_some_and(|to| self.relay.is_marking(to))
    }

    /// Whether other workers have so many of this one's parcels that nothing more should be
    /// received.
    pub fn is_full(&mut self) -> bool {
        self.outbox.as_mut().is_some_and(Outbox::is_full)
    }

    /// Takes in one batch of datagrams: `incoming` says where in `buf` they lie.
    pub fn handle_datagrams(
        &mut self,
        now: Time,
        sink: &mut S::Sink,
        buf: &mut [u8],
        incoming: &[Incoming],
    ) {
        let Control { relay, edge, circuits, queue, outbox, .. } = self;
        let mut local = |buf: &mut [u8], cells: LocalCells<'_>, outbox: &mut _| {
            take_cells(now, (&mut *edge, &mut *circuits), queue, outbox, buf, cells)
        };
        let mut turn = Turn { now, sink, hand: outbox };
        relay.handle_batch(&mut turn, buf, incoming, Arrival::Socket, &mut local);
    }

    /// Takes in what another worker says.
    pub fn handle_message(&mut self, now: Time, sink: &mut S::Sink, message: Message<S>) {
        match message {
            Message::Parcel(mut parcel) => {
                self.handle_parcel(now, sink, &mut parcel);
                if let Some(outbox) = &mut self.outbox {
                    outbox.give_back(parcel);
                }
            }
            Message::Note(note) => self.relay.handle_note(now, &note, sink),
            Message::HostNote(note) => self.edge.handle_note(now, &note),
            Message::Report(worker, report) => {
                self.relay.add_counters(&report.counters);
                if let Some(known) = self.others.get_mut(usize::from(worker).wrapping_sub(1)) {
                    known.counters.add(&report.counters);
                    (known.sockets, known.packets) = (report.sockets, report.packets);
                }
            }
            // Control sends these to the other workers, and gets none.
            Message::Order(_) | Message::HostOrder(_) | Message::Gate(_) => {}
        }
    }

    /// Takes in frames that another worker handed over.
    fn handle_parcel(&mut self, now: Time, sink: &mut S::Sink, parcel: &mut Parcel) {
        let Control { relay, edge, circuits, queue, outbox, .. } = self;
        let mut local = |buf: &mut [u8], cells: LocalCells<'_>, outbox: &mut _| {
            take_cells(now, (&mut *edge, &mut *circuits), queue, outbox, buf, cells)
        };
        let Parcel { kind, buffer, runs, frames, plain, reads, by, .. } = parcel;
        match kind {
            Kind::Raw | Kind::Unknown => {
                let mut turn = Turn { now, sink, hand: outbox };
                relay.handle_batch(&mut turn, buffer, runs, Arrival::Worker(*by), &mut local);
            }
            Kind::Opened => {
                let mut turn = Turn { now, sink, hand: outbox };
                relay.handle_opened(&mut turn, buffer, frames, &mut local);
            }
            Kind::Leaving => {
                let mut turn = Turn { now, sink, hand: outbox };
                relay.handle_leaving(&mut turn, buffer, frames);
            }
            Kind::Released => relay.handle_released(now, buffer, frames, sink),
            Kind::Sealed => relay.handle_sealed(now, buffer, frames),
            Kind::Plain => self.handle_plain(now, buffer, plain),
            Kind::Read => self.with_queue(sink, |queue, onward| {
                for read in reads {
                    let bytes = &buffer[read.start as usize..read.end as usize];
                    queue.pass(now, bytes, Duration::ZERO, onward);
                }
            }),
        }
    }

    /// Takes in cells of hosts that another worker opened.
    fn handle_plain(&mut self, now: Time, buffer: &mut [u8], cells: &[(HostId, Range<u32>)]) {
        for (host, cell) in cells {
            let frame = &mut buffer[cell.start as usize..cell.end as usize];
            let taken = self.edge.handle_opened(now, *host, frame);
            if let Err(reason) = taken {
                self.relay.count_drop(reason, 1);
            }
        }
    }

    /// Does what time asks for.
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

    /// Sends what the edge has to send. To be called after everything else.
    pub fn drive(&mut self, now: Time, sink: &mut S::Sink) {
        while let Some(circuit) = self.circuits.poll_gone() {
            self.tell_edge(now, shoal_onion::Event::Ended(circuit));
        }
        self.drive_pool(now);
        let Control { relay, edge, circuits, outbox, .. } = self;
        let mut way = EdgeOut { relay, circuits, sink: &mut *sink, outbox, cells: 0 };
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

    /// When [`Self::handle_timeout`] and [`Self::drive`] should be called next, and why.
    pub fn poll_timeout(&self) -> Option<(Time, &'static str)> {
        let edge = self.edge.poll_timeout();
        let edge = edge.map(|(at, why)| (self.stuck_until.map_or(at, |until| at.max(until)), why));
        [edge, self.relay.poll_timeout(), self.circuits.poll_timeout()].into_iter().flatten().min()
    }

    /// Gives the orders that are due, then the frames. To be called at the end of every turn.
    pub fn give_orders(&mut self) {
        let Control { relay, edge, queue, outbox, broken, .. } = self;
        let Some(outbox) = outbox else { return };
        // The gate first: a host off the list passes no more, even while workers have its keys.
        if let Some(queue) = queue.as_ref().filter(|_| core::mem::take(&mut self.gate_is_new)) {
            for worker in 1..=self.others.len() as u8 {
                *broken |= !outbox.tell(worker, Message::Gate(queue.gate()));
            }
        }
        while let Some((worker, order)) = edge.poll_order() {
            *broken |= !outbox.tell(worker, Message::HostOrder(order));
        }
        while let Some((worker, order)) = relay.poll_order() {
            *broken |= !outbox.tell(worker, Message::Order(order));
        }
        outbox.flush();
    }

    /// Takes the next event. On the way it makes and ends direct links as the edge wants.
    pub fn poll_event(&mut self, now: Time) -> Option<Event> {
        if let Some(event) = self.relay.poll_event() {
            self.note_link(now, &event);
            if matches!(event, shoal_relay::Event::Seen) {
                self.gather();
            }
            return Some(Event::Relay(event));
        }
        while let Some(event) = self.circuits.onion.poll_event() {
            if let Some(event) = self.tell_edge(now, event) {
                return Some(Event::Circuit(event));
            }
        }
        match self.edge.poll_event()? {
            shoal_edge::Event::Direct(event) => {
                let link = self.handle_direct(now, event.clone());
                Some(Event::Direct(event, link))
            }
            event => {
                if let shoal_edge::Event::NeedCircuit(host) = event {
                    self.want_circuit(now, host);
                }
                Some(Event::Edge(event))
            }
        }
    }

    /// Tells the machines what the wall clock says.
    pub fn set_unix_time(&mut self, now: Time, unix_ms: u64) {
        self.relay.set_unix_time(now, unix_ms);
        self.edge.set_unix_time(now, unix_ms);
        self.circuits.onion.set_unix_time(now, unix_ms);
        if let Some(pool) = &mut self.circuits.pool {
            pool.set_unix_time(now, unix_ms);
        }
    }

    /// Forgets all keys and makes new ones, with this randomness.
    pub fn rekey_all(&mut self, now: Time, sink: &mut S::Sink, fresh: &mut Rng) {
        self.relay.rekey_all(now, &fresh.array(), sink);
        self.edge.rekey_all(now, &fresh.array());
        self.circuits.onion.forget_all(now, &fresh.array());
    }

    /// The next piece of handshake work: neighbours first, since nothing else works without them;
    /// circuits last, since everybody may ask for them.
    pub fn poll_job(&mut self) -> Option<HandshakeJob<S::Ciphers>> {
        let link = self.relay.poll_job().map(HandshakeJob::Link);
        let host = || self.edge.poll_job().map(HandshakeJob::Host);
        link.or_else(host).or_else(|| self.circuits.onion.poll_job().map(HandshakeJob::Circuit))
    }

    /// Takes in the result of a piece of handshake work.
    pub fn handle_done(&mut self, now: Time, sink: &mut S::Sink, done: HandshakeDone) {
        match done {
            HandshakeDone::Link(done) => self.relay.handle_done(now, done, sink),
            HandshakeDone::Host(done) => self.edge.handle_done(now, done),
            HandshakeDone::Circuit(done) => self.circuits.handle_done(now, done),
        }
    }
}

/// Takes cells for this node: the edge opens them, or hands them to the worker that can; the queue
/// writes packets to the interface. Leg cells go on, or give their units to the edge.
fn take_cells<S: Shell>(
    now: Time,
    (edge, circuits): (&mut Edge<S::Ciphers>, &mut Circuits<S::Ciphers>),
    queue: &mut Option<Queue<S::Device, S::Flows>>,
    outbox: &mut Option<Outbox<S>>,
    buf: &mut [u8],
    found: LocalCells<'_>,
) -> u64 {
    let count = found.count();
    if !found.legs.is_empty() {
        let unit = |buf: &mut [u8], run: &[u32], way| {
            let from = edge.handle_units(now, way, Cells::new(&mut *buf, run, found.len));
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
    let cells = Cells::new(buf, found.offsets, found.len);
    match outbox {
        Some(outbox) => edge.handle_cells(now, cells, outbox),
        None => edge.handle_cells(now, cells, &mut ()),
    }
    if let Some(queue) = queue {
        queue.deliver(now, edge.arrivals(), buf);
    }
    count
}

/// What the first worker's queue sends through: the edge.
struct FromFirst<'a, S: Shell> {
    edge: &'a mut Edge<S::Ciphers>,
    stream_key: &'a StreamKey,
    way: EdgeOut<'a, S>,
}

impl<S: Shell> Onward for FromFirst<'_, S> {
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
        // The first worker's edge makes sessions, and lets packets wait for them.
        true
    }

    fn send(&mut self, now: Time, flow: Flow, len: usize, write: impl FnOnce(&mut [u8])) {
        self.edge.send_packet(now, flow, len, &mut self.way, write);
    }

    fn hand(&mut self, _: &[u8]) -> bool {
        false
    }
}

fn due(timeout: Option<(Time, &'static str)>, now: Time) -> bool {
    timeout.is_some_and(|(at, _)| at <= now)
}
