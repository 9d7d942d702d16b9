//! The relay and the edge of one node, and what passes between them.
//!
//! ```text
//! Ports -> relay.handle_batch -> (cells for us) edge.handle_cells
//!                             -> (transit)      Ports
//! edge.drive -> Way -> relay.send_cells -> Ports
//! ```

use shoal_crypto::Rng;
use shoal_directory::Rights as Right;
use shoal_edge::{Cells, Edge, Flow, HostId, Out};
use shoal_relay::{Arrival, Handed, Incoming, LocalCells, Note, Relay, Turn};
use shoal_session::{Done, Job};
use shoal_wire::{Address, LinkId, LinkKind, Time};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use crate::config::Config;
use crate::config::keys::os_random;
use crate::membership::authority::Rights;
use crate::net::ports::Ports;
use crate::tun::interface::Interface;
use crate::tun::names::Names;
use crate::tun::queue::{Onward, Queue};
use crate::worker::rings::{Kind, Outbox, Parcel};

/// Both machines of a node.
pub struct Machines {
    /// The node among its neighbours.
    pub relay: Relay,
    /// The node as a host.
    pub edge: Edge,
    /// The sockets.
    pub ports: Ports,
    /// The virtual interface, if there is one.
    pub interface: Option<Interface>,
    /// Links with other hosts past the routers.
    pub direct: BTreeMap<HostId, LinkId>,
    /// The way to the other workers, if there are several.
    pub outbox: Option<Outbox>,
    stuck: bool,
}

/// Handshake work of either machine.
pub enum HandshakeJob {
    /// With a neighbour.
    Link(Job<SocketAddr>),
    /// With a host.
    Host(Job<Address>),
}

/// Its result.
pub enum HandshakeDone {
    /// With a neighbour.
    Link(Done<SocketAddr>),
    /// With a host.
    Host(Done<Address>),
}

impl HandshakeJob {
    /// Does the work; any thread may. Fresh randomness goes into each piece: the generators of the
    /// machines may have been copied, with all the rest, by a snapshot.
    pub fn run(mut self) -> HandshakeDone {
        if let Ok(fresh) = os_random() {
            self.freshen(&fresh);
        }
        match self {
            HandshakeJob::Link(job) => HandshakeDone::Link(job.run()),
            HandshakeJob::Host(job) => HandshakeDone::Host(job.run()),
        }
    }

    fn freshen(&mut self, fresh: &[u8; 32]) {
        match self {
            HandshakeJob::Link(job) => job.freshen(fresh),
            HandshakeJob::Host(job) => job.freshen(fresh),
        }
    }
}

/// The edge's way out: straight into the relay.
struct Way<'a> {
    relay: &'a mut Relay,
    ports: &'a mut Ports,
    outbox: &'a mut Option<Outbox>,
    cells: u64,
}

impl Out for Way<'_> {
    fn cells(&mut self, now: Time, buf: &mut [u8], offsets: &[u32], len: usize) {
        self.cells += offsets.len() as u64;
        let mut turn = Turn { now, sink: self.ports, hand: self.outbox };
        self.relay.send_cells(&mut turn, LinkKind::Cell, buf, offsets, len);
    }

    fn room(&self, dst: Address) -> usize {
        self.relay.room(dst)
    }

    fn is_congested(&self, dst: Address) -> bool {
        self.relay.is_marking(dst)
    }

    fn may_go_direct(&self, dst: Address) -> bool {
        self.relay.may_go_direct(dst)
    }

    fn direct(&mut self, now: Time, buf: &mut [u8], offsets: &[u32], len: usize) {
        self.cells += offsets.len() as u64;
        let mut turn = Turn { now, sink: self.ports, hand: self.outbox };
        self.relay.send_cells(&mut turn, LinkKind::Direct, buf, offsets, len);
    }
}

/// How long an edge that has something to send and no room for it is left alone. The relay tries a
/// full queue again every half millisecond.
const STUCK_WAIT: Duration = Duration::from_micros(250);

impl Machines {
    /// Both machines and the sockets they use.
    pub fn new(relay: Relay, edge: Edge, ports: Ports, interface: Option<Interface>) -> Machines {
        Machines {
            relay,
            edge,
            ports,
            interface,
            direct: BTreeMap::new(),
            outbox: None,
            stuck: false,
        }
    }

    /// Puts the list of hosts into force at the interface.
    ///
    /// Errors: two of them have one address.
    pub fn set_interface_hosts(&mut self, config: &Config, names: &Names) -> anyhow::Result<()> {
        self.interface.as_mut().map_or(Ok(()), |interface| interface.set_hosts(config, names))
    }

    /// Forgets a host.
    pub fn remove_host(&mut self, now: Time, host: HostId) {
        self.edge.remove_host(now, host);
        if let Some(interface) = &mut self.interface {
            interface.forget(host);
        }
    }

    /// Puts into force what hosts may begin with this node.
    pub fn set_rights(&mut self, rights: &Rights) {
        let may_ping = rights.to_us().filter(|(_, access)| access.has(Right::Ping));
        self.edge.set_answered(may_ping.map(|(id, _)| id).collect());
        self.edge.set_partners(rights.partners().collect());
        if let Some(interface) = &mut self.interface {
            interface.set_rights(rights);
        }
    }

    /// Takes in what programs sent. Call [`Self::drive`] afterwards.
    pub fn handle_interface(&mut self, now: Time) {
        self.with_queue(now, |queue, onward| queue.read(now, onward));
    }

    /// Lets the interface's queue send something.
    fn with_queue(&mut self, now: Time, send: impl FnOnce(&mut Queue, &mut FromFirst<'_>)) {
        let Some(interface) = &mut self.interface else { return };
        self.ports.set_now(now);
        let (relay, ports, outbox) = (&mut self.relay, &mut self.ports, &mut self.outbox);
        let way = Way { relay, ports, outbox, cells: 0 };
        send(&mut interface.queue, &mut FromFirst { edge: &mut self.edge, way });
    }

    /// Whether what programs send had better wait in the interface: its way is full.
    pub fn interface_waits(&self) -> bool {
        let last = self.interface.as_ref().and_then(|interface| interface.queue.last());
        let to = last.and_then(|host| self.edge.address_of(host));
        to.is_some_and(|to| self.relay.is_marking(to))
    }

    /// Takes in one batch of datagrams.
    pub fn handle_batch(&mut self, now: Time, buf: &mut [u8], incoming: &[Incoming]) {
        let Machines { relay, edge, ports, interface, outbox, .. } = self;
        let mut local = |buf: &mut [u8], cells: LocalCells<'_>, outbox: &mut Option<Outbox>| {
            take_cells(now, (edge, interface, outbox), buf, cells)
        };
        ports.set_now(now);
        let mut turn = Turn { now, sink: ports, hand: outbox };
        relay.handle_batch(&mut turn, buf, incoming, Arrival::Socket, &mut local);
    }

    /// Takes in frames that another worker handed over.
    pub fn handle_parcel(&mut self, now: Time, parcel: &mut Parcel) {
        let Machines { relay, edge, ports, interface, outbox, .. } = self;
        let mut local = |buf: &mut [u8], cells: LocalCells<'_>, outbox: &mut Option<Outbox>| {
            take_cells(now, (edge, interface, outbox), buf, cells)
        };
        ports.set_now(now);
        let Parcel { kind, buffer, runs, frames, by, .. } = parcel;
        match kind {
            Kind::Raw | Kind::Unknown => {
                let mut turn = Turn { now, sink: ports, hand: outbox };
                relay.handle_batch(&mut turn, buffer, runs, Arrival::Worker(*by), &mut local);
            }
            Kind::Opened => {
                let mut turn = Turn { now, sink: ports, hand: outbox };
                relay.handle_opened(&mut turn, buffer, frames, &mut local);
            }
            Kind::Leaving => {
                let mut turn = Turn { now, sink: ports, hand: outbox };
                relay.handle_leaving(&mut turn, buffer, frames);
            }
            Kind::Released => relay.handle_released(now, buffer, frames, ports),
            Kind::Sealed => relay.handle_sealed(now, buffer, frames),
            Kind::Plain => self.handle_plain(now, buffer, frames),
            Kind::Read => self.with_queue(now, |queue, onward| {
                for read in frames {
                    let bytes = &buffer[read.at as usize..(read.at + read.len) as usize];
                    queue.pass(now, bytes, false, onward);
                }
            }),
        }
    }

    /// Takes in cells of hosts that another worker opened.
    fn handle_plain(&mut self, now: Time, buffer: &mut [u8], frames: &[Handed]) {
        for cell in frames {
            let frame = &mut buffer[cell.at as usize..(cell.at + cell.len) as usize];
            let taken = self.edge.handle_opened(now, HostId::from_bits(cell.link.0), frame);
            if let Err(reason) = taken {
                self.relay.count_drop(reason, 1);
            }
        }
    }

    /// Tells every neighbour that this node stops.
    pub fn say_goodbye(&mut self, now: Time) {
        self.ports.set_now(now);
        self.relay.say_goodbye(now, &mut self.ports);
    }

    /// Takes in what another worker tells.
    pub fn handle_note(&mut self, now: Time, note: &Note) {
        self.ports.set_now(now);
        self.relay.handle_note(now, note, &mut self.ports);
    }

    /// The same, of hosts. Call [`Self::drive`] afterwards.
    pub fn handle_host_note(&mut self, now: Time, note: &shoal_edge::Note) {
        self.edge.handle_note(now, note);
    }

    /// Tries again what a full send buffer held back.
    pub fn handle_writable(&mut self, now: Time) {
        self.ports.set_now(now);
        self.relay.handle_writable(now, &mut self.ports);
    }

    /// Does what time asks for.
    pub fn handle_timeout(&mut self, now: Time) {
        self.ports.set_now(now);
        if due(self.relay.poll_timeout(), now) {
            self.relay.handle_timeout(now, &mut self.ports);
        }
        if due(self.edge.poll_timeout(), now) {
            self.edge.handle_timeout(now);
        }
    }

    /// Sends what the edge has to send. To be called after everything else.
    pub fn drive(&mut self, now: Time) {
        self.ports.set_now(now);
        let (relay, ports, outbox) = (&mut self.relay, &mut self.ports, &mut self.outbox);
        let mut way = Way { relay, ports, outbox, cells: 0 };
        self.edge.drive(now, &mut way);
        let sent = way.cells;
        for (reason, n) in self.edge.take_drops() {
            self.relay.count_drop(reason, n);
        }
        for (reason, n) in self.interface.iter_mut().flat_map(|i| i.queue.take_drops()) {
            self.relay.count_drop(reason, n);
        }
        self.stuck = sent == 0 && due(self.edge.poll_timeout(), now);
    }

    /// When [`Self::handle_timeout`] and [`Self::drive`] should be called next.
    pub fn poll_timeout(&self, now: Time) -> Option<Time> {
        let edge = self
            .edge
            .poll_timeout()
            .map(|(at, _)| if self.stuck { at.max(now + STUCK_WAIT) } else { at });
        let relay = self.relay.poll_timeout().map(|(at, _)| at);
        [edge, relay].into_iter().flatten().min()
    }

    /// Tells the machines what the wall clock says.
    pub fn set_unix_time(&mut self, now: Time, unix_ms: u64) {
        self.relay.set_unix_time(now, unix_ms);
        self.edge.set_unix_time(now, unix_ms);
    }

    /// Forgets all keys and makes new ones, with this randomness.
    pub fn rekey_all(&mut self, now: Time, fresh: &mut Rng) {
        self.ports.set_now(now);
        self.relay.rekey_all(now, &fresh.array(), &mut self.ports);
        self.edge.rekey_all(now, &fresh.array());
    }

    /// The next piece of handshake work: neighbours first, since nothing else works without them.
    pub fn poll_job(&mut self) -> Option<HandshakeJob> {
        let link = self.relay.poll_job().map(HandshakeJob::Link);
        link.or_else(|| self.edge.poll_job().map(HandshakeJob::Host))
    }

    /// Takes in the result of a piece of handshake work.
    pub fn handle_done(&mut self, now: Time, done: HandshakeDone) {
        self.ports.set_now(now);
        match done {
            HandshakeDone::Link(done) => self.relay.handle_done(now, done, &mut self.ports),
            HandshakeDone::Host(done) => self.edge.handle_done(now, done),
        }
    }
}

/// Cells for this node: opened by the edge, written to the interface, or another worker's to open.
fn take_cells(
    now: Time,
    (edge, interface, outbox): (&mut Edge, &mut Option<Interface>, &mut Option<Outbox>),
    buf: &mut [u8],
    found: LocalCells<'_>,
) -> u64 {
    let cells = Cells::new(buf, found.offsets, found.len);
    match outbox {
        Some(outbox) => edge.handle_cells(now, cells, outbox),
        None => edge.handle_cells(now, cells, &mut ()),
    }
    if let Some(interface) = interface {
        interface.queue.deliver(now, edge.arrivals(), buf);
    }
    found.count()
}

/// What the first worker's queue sends through: the edge.
struct FromFirst<'a> {
    edge: &'a mut Edge,
    way: Way<'a>,
}

impl Onward for FromFirst<'_> {
    fn is_congested(&self, host: HostId) -> bool {
        self.edge.is_congested(host, &self.way)
    }

    fn reaches(&self, _: Time, _: HostId) -> bool {
        // It makes sessions, and lets packets wait for them.
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
