//! The edge of one host.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;

use shoal_crypto::{
    Ciphers, Identity, NetworkSecret, NetworkSecrets, PublicKey, Rng, StandardCiphers,
};
use shoal_session::{
    EndpointRules, HandshakeTask, HandshakeTaskResult, HostPath, IdTable, SessionEvent, Sessions,
};
use shoal_transfer::{PeerKey, Transfers};
use shoal_wire::{Address, CircuitId, DropReason, SizeClass, Time, TrafficClass};

use crate::book::HostId;
use crate::building::CellBatch;
use crate::cells::{CELL_AT, CellLayout, PLAIN_AT, address_cell, plain};
use crate::circuits::HiddenHosts;
use crate::clear::ClearCells;
use crate::direct::{DirectConfig, DirectEvent, DirectMachine};
use crate::echo::Echo;
use crate::hosts::MetHosts;
use crate::numbers::PacketNumbers;
use crate::packets::WaitingPackets;
use crate::roam::Announcement;
use crate::worker::{EdgeOrder, EdgeTurn, EdgeWorker};

pub(crate) const FULL: usize = SizeClass::Full.frame_len();
/// Layout of the longest cell, in which messages are written.
const WHOLE: CellLayout = CellLayout::cell(SizeClass::Full);
/// Segments in one burst: as many as one GSO send of the relay holds.
pub(crate) const BURST_MAX: usize = 44;
/// Bursts per call of [`Edge::drive`], so that the node returns to its socket in time.
const BURSTS_MAX: usize = 8;
/// Messages that may wait for sessions. One more is dropped as `no_session`; its sender repeats it
/// later.
pub(crate) const UNSENT_MAX: usize = 64;
/// Rounds of control output per call of [`Edge::drive`]. The rest is due at once.
const ROUNDS_MAX: usize = 64;

/// Configuration of an edge.
#[derive(Clone, Debug)]
pub struct EdgeConfig {
    pub address: Address,
    pub session: shoal_session::SessionConfig,
    pub transfer: shoal_transfer::TransferConfig,
    /// Echo replies that may wait to be sent; further requests are dropped.
    pub echo_max: usize,
    /// True if there is an interface for IP packets. Without one, packets are dropped.
    pub ip: bool,
    /// None: no direct links.
    pub direct: Option<DirectConfig>,
    /// Events that may wait to be polled; one more displaces the oldest. File events don't count,
    /// since transfers bound them.
    pub events_max: usize,
}

/// Output of the edge, towards the relay.
pub trait EdgeOutput {
    /// Sends cells: frames of `len` bytes at `offsets` of `buf`, with routed header and sealed
    /// payload in place. All cells have one destination and one class.
    fn cells(&mut self, now: Time, buf: &mut [u8], offsets: &[u32], len: usize);
    /// Source address of cells to `dst`. None for the host's only address. A host at two routers
    /// has two, and the next cells leave over the router of this one.
    fn source(&self, _dst: Address) -> Option<Address> {
        None
    }
    /// Number of full frames towards `dst` that would leave without waiting.
    fn room(&self, dst: Address) -> usize;
    /// True if the backlog towards `dst` is so long that programs' packets should wait.
    fn is_congested(&self, dst: Address) -> bool;
    /// True if cells for `dst` may leave over a direct link, without an end-to-end seal.
    fn may_go_direct(&self, dst: Address) -> bool;
    /// Sends cells as `cells` does, over a direct link. Requires that `may_go_direct` is true.
    fn direct(&mut self, now: Time, buf: &mut [u8], offsets: &[u32], len: usize);
    /// Sends units on a circuit: full frames at `offsets` of `buf`, each with a sealed unit at its
    /// place in a leg cell. All other bytes of the frames must be overwritten.
    fn unit(&mut self, now: Time, circuit: CircuitId, buf: &mut [u8], offsets: &[u32]);
    /// Sends a handshake cell over a circuit, on the circuit's control lane.
    fn hidden_handshake(&mut self, now: Time, circuit: CircuitId, cell: &[u8]);
    /// Number of full frames on a circuit that would leave without waiting.
    fn circuit_room(&self, circuit: CircuitId) -> usize;
    /// True if the backlog towards a circuit's next node is so long that programs' packets should
    /// wait.
    fn circuit_is_congested(&self, circuit: CircuitId) -> bool;
}

/// Events for the owner of the node.
#[derive(Debug)]
pub enum EdgeEvent {
    Transfer(shoal_transfer::FileTransferEvent),
    /// An answer to [`Edge::ping`].
    Echo {
        host: HostId,
        /// The value passed to `ping`.
        id: u32,
        /// The value passed to `ping`.
        seq: u32,
    },
    /// A session with a host was established.
    Established(HostId),
    /// A host could not be reached.
    Unreachable(HostId),
    /// The owner of the links must take this action.
    Direct(DirectEvent),
    /// A hidden host has packets or messages waiting and no circuit; see [`Edge::set_circuit`].
    NeedCircuit(HostId),
}

/// The edge of one host: its control, and the first worker's data path. `C` selects the ciphers.
pub struct Edge<C: Ciphers = StandardCiphers> {
    pub(crate) config: EdgeConfig,
    /// Sessions, with the first worker's lanes.
    pub(crate) sessions: Sessions<HostPath, C>,
    /// The first worker's data path, with the book of hosts and the drop counters.
    pub(crate) own: EdgeWorker,
    pub(crate) transfers: Transfers,
    pub(crate) echoes: VecDeque<(HostId, Echo)>,
    /// Messages to hosts whose session is not established yet; at most [`UNSENT_MAX`].
    pub(crate) unsent: VecDeque<(HostId, Vec<u8>)>,
    events: VecDeque<EdgeEvent>,
    /// Hosts whose echo requests are answered; None means all.
    pub(crate) answered: Option<BTreeSet<HostId>>,
    pub(crate) waiting: WaitingPackets,
    pub(crate) circuits: HiddenHosts,
    /// Removed hosts that must be hidden if they are added again.
    pub(crate) met: MetHosts,
    pub(crate) direct: Option<DirectMachine>,
    /// Hosts with which there may be direct links; None means all.
    pub(crate) partners: Option<BTreeSet<HostId>>,
    /// Endpoints of hosts, from the list of hosts.
    pub(crate) listed: BTreeMap<HostId, SocketAddr>,
    /// Rules for the endpoints that hosts may name as their own.
    pub(crate) rules: Arc<EndpointRules>,
    /// Time at which the last cell of each host was opened.
    pub(crate) heard: IdTable<HostId, Time>,
    /// Cells that left for each host outside circuits.
    pub(crate) clear: IdTable<HostId, ClearCells>,
    /// Cells that tell other hosts of this host's new address.
    pub(crate) announcement: Option<Announcement>,
    /// True if this host's cells ever left from another address than before.
    pub(crate) has_moved: bool,
    /// True if the other workers must get a new book of hosts.
    pub(crate) book_stale: bool,
    pub(crate) orders: VecDeque<(u8, EdgeOrder<C::Aead>)>,
    out: Vec<u8>,
}

impl Edge {
    /// An edge without any host. `unix_ms` is the wall clock at `now`, in milliseconds.
    pub fn new(
        config: EdgeConfig,
        identity: Identity,
        secret: NetworkSecret,
        seed: [u8; 32],
        now: Time,
        unix_ms: u64,
    ) -> Edge {
        Edge::with_ciphers(config, identity, secret, seed, now, unix_ms)
    }
}

impl<C: Ciphers> Edge<C> {
    /// Same as `new`, with other ciphers.
    pub fn with_ciphers(
        config: EdgeConfig,
        identity: Identity,
        secret: NetworkSecret,
        seed: [u8; 32],
        now: Time,
        unix_ms: u64,
    ) -> Edge<C> {
        let mut seeds = Rng::new(seed);
        let session_seed = seeds.fork("sessions");
        let sessions = Sessions::with_ciphers(
            config.session.clone(),
            identity,
            secret,
            session_seed,
            now,
            unix_ms,
        );
        let transfers = Transfers::new(config.transfer.clone(), seeds.fork("transfers"), now);
        let mut own = EdgeWorker::new(&config);
        own.numbers = PacketNumbers::new(seeds.fork("packet numbers"));
        Edge {
            sessions,
            own,
            transfers,
            echoes: VecDeque::new(),
            unsent: VecDeque::new(),
            events: VecDeque::new(),
            answered: None,
            waiting: WaitingPackets::default(),
            circuits: HiddenHosts::default(),
            met: MetHosts::new(config.session.max_peers),
            direct: config
                .direct
                .clone()
                .map(|direct| DirectMachine::new(direct, seeds.fork("direct"))),
            partners: None,
            listed: BTreeMap::new(),
            rules: Arc::default(),
            heard: IdTable::default(),
            clear: IdTable::default(),
            announcement: None,
            has_moved: false,
            book_stale: true,
            orders: VecDeque::new(),
            out: Vec::new(),
            config,
        }
    }

    /// Limits echo replies to these hosts. Requests of others are dropped as `policy_denied`.
    pub fn set_answered(&mut self, hosts: BTreeSet<HostId>) {
        self.answered = Some(hosts);
    }

    /// The host at an address.
    pub fn host_at(&self, address: Address) -> Option<HostId> {
        self.own.book.host(address)
    }

    /// Address of a host.
    pub fn address_of(&self, host: HostId) -> Option<Address> {
        self.own.address_of(host)
    }

    /// Public key and address of a host.
    pub fn identity_of(&self, host: HostId) -> Option<(PublicKey, Address)> {
        let key = *self.sessions.peer_key(self.own.book.peer(host)?)?;
        Some((key, self.address_of(host)?))
    }

    /// True if the backlog towards the host is so long that programs' packets should wait.
    pub fn is_congested(&self, host: HostId, out: &impl EdgeOutput) -> bool {
        self.own.is_congested(host, out)
    }

    /// Time at which the host's last cell arrived, over a session or a direct link.
    pub fn last_heard(&self, host: HostId) -> Option<Time> {
        self.heard.get(host).copied()
    }

    pub(crate) fn note_heard(&mut self, now: Time, host: HostId) {
        if self.address_of(host).is_some() {
            self.heard.put(host, now);
        }
    }

    /// True if there is a session with the host.
    pub fn is_live(&self, now: Time, host: HostId) -> bool {
        self.own.book.peer(host).is_some_and(|peer| self.sessions.is_live(now, peer))
    }

    /// Begins a handshake with the host unless there is a session. For a hidden host without a
    /// circuit, asks for a circuit instead.
    pub(crate) fn connect(&mut self, now: Time, host: HostId) {
        let Some(peer) = self.own.book.peer(host) else { return };
        match self.lacks_circuit(host) {
            true => self.need_circuit(now, host),
            false => self.sessions.connect(now, peer),
        }
    }

    /// Drops everything that waits for an unreachable host.
    pub(crate) fn fail(&mut self, now: Time, host: HostId) {
        self.echoes.retain(|(to, _)| *to != host);
        self.unsent.retain(|(to, _)| *to != host);
        self.waiting.forget(host);
        self.transfers.peer_lost(now, host.into());
        self.event(EdgeEvent::Unreachable(host));
    }

    /// The file transfers, for commands; call [`Self::drive`] afterwards.
    pub fn transfers(&mut self) -> &mut Transfers {
        &mut self.transfers
    }

    /// Sets the network secrets: handshakes begin with the first one, and both are accepted.
    pub fn set_secrets(&mut self, secrets: NetworkSecrets) {
        self.sessions.set_secrets(secrets);
    }

    /// The sessions with other hosts.
    pub fn sessions(&self) -> &Sessions<HostPath, C> {
        &self.sessions
    }

    /// Sends an echo request to a host; [`EdgeEvent::Echo`] reports the answer. Call
    /// [`Self::drive`] afterwards.
    ///
    /// Errors: `queue_full`, or `no_endpoint` for a removed host; nothing is sent then.
    pub fn ping(&mut self, host: HostId, id: u32, seq: u32) -> Result<(), DropReason> {
        self.address_of(host).ok_or(DropReason::NoEndpoint)?;
        self.queue_echo(host, Echo { reply: false, id, seq })
    }

    /// Offers a file to a host, with or without a session. Call [`Self::drive`] afterwards.
    ///
    /// The segments must have the length [`Self::segment_len`]; longer ones end the transfer.
    ///
    /// Errors: as [`Transfers::offer`]; `no_endpoint` for a removed host.
    pub fn offer(
        &mut self,
        now: Time,
        host: HostId,
        offer: shoal_transfer::OfferInfo,
    ) -> Result<shoal_transfer::TransferId, DropReason> {
        self.address_of(host).ok_or(DropReason::NoEndpoint)?;
        self.connect(now, host);
        self.transfers.offer(now, host.into(), offer)
    }

    pub(crate) fn queue_echo(&mut self, host: HostId, echo: Echo) -> Result<(), DropReason> {
        if self.echoes.len() >= self.config.echo_max {
            return Err(DropReason::QueueFull);
        }
        self.echoes.push_back((host, echo));
        Ok(())
    }

    /// Sends everything that is due: handshakes, messages, echoes, then as many segments as pacing
    /// and [`EdgeOutput::room`] allow. Call it after every `handle_*` and every command.
    pub fn drive(&mut self, now: Time, out: &mut impl EdgeOutput) {
        let mut buf = core::mem::take(&mut self.out);
        buf.resize(BURST_MAX * FULL, 0);
        self.flush_packets(now, out);
        self.use_circuits(now, &mut buf, out);
        for _ in 0..ROUNDS_MAX {
            let mut silent = !self.handle_sessions(now, &mut buf, out);
            silent &= !self.send_handshakes(now, &mut buf, out);
            silent &= !self.send_messages(now, &mut buf, out);
            silent &= !self.send_direct_messages(now, &mut buf, out);
            silent &= !self.send_announcement(now, &mut buf, out);
            if silent {
                break;
            }
        }
        self.flush_packets(now, out);
        self.send_echoes(now, &mut buf, out);
        self.send_segments(now, &mut buf, out);
        self.out = buf;
    }

    fn handle_sessions(&mut self, now: Time, buf: &mut [u8], out: &mut impl EdgeOutput) -> bool {
        let mut any = false;
        while let Some(event) = self.sessions.poll_event() {
            any = true;
            let Some(host) = self.own.book.of_peer(event.peer()) else { continue };
            match event {
                SessionEvent::Established { .. } => {
                    self.note_heard(now, host);
                    self.note_session(host);
                    self.follow_session(host);
                    self.send_unsent(now, host, buf, out);
                    self.send_waiting(now, host, out);
                    self.event(EdgeEvent::Established(host));
                }
                SessionEvent::NeedKeepalive { .. } => self.send_keepalive(now, host, buf, out),
                // Hosts don't tell each other of removals.
                SessionEvent::Removed { .. }
                | SessionEvent::Expired { .. }
                | SessionEvent::OtherProcess { .. } => {}
                SessionEvent::Failed { .. } => self.fail(now, host),
                SessionEvent::NeedCircuit { .. } => self.need_circuit(now, host),
            }
        }
        any
    }

    fn send_handshakes(&mut self, now: Time, buf: &mut [u8], out: &mut impl EdgeOutput) -> bool {
        let mut any = false;
        let cell_len = SizeClass::Full.cell_len();
        while let Some((_, to, len)) =
            self.sessions.poll_transmit(now, &mut buf[CELL_AT..CELL_AT + cell_len])
        {
            any = true;
            let to = match to {
                HostPath::Circuit(circuit) => {
                    out.hidden_handshake(now, circuit, &buf[CELL_AT..CELL_AT + len]);
                    continue;
                }
                HostPath::Routed(to) => to,
            };
            if self.own.book.host(to).is_some_and(|host| self.is_hidden(host)) {
                self.count(DropReason::CircuitRequired);
                continue;
            }
            // A cookie reply fits a small cell; every other handshake cell is a full one.
            let fits = |class: &SizeClass| class.cell_len() == len;
            let Some(class) = SizeClass::ALL.into_iter().find(fits) else { continue };
            let from = out.source(to).unwrap_or(self.config.address);
            address_cell(buf, 0, to, from, TrafficClass::Control);
            out.cells(now, &mut buf[..class.frame_len()], &[0], class.frame_len());
            if let Some(host) = self.own.book.host(to) {
                self.own.note_clear(host, 1);
            }
        }
        any
    }

    fn send_messages(&mut self, now: Time, buf: &mut [u8], out: &mut impl EdgeOutput) -> bool {
        let mut any = false;
        while let Some((peer, len)) = self.transfers.poll_message(now, plain(buf, 0, WHOLE)) {
            any = true;
            self.send_or_keep(now, peer.into(), buf, len, out);
        }
        any
    }

    /// Sends the message of `len` bytes in the first frame of `buf`, or stores it until there is a
    /// session.
    pub(crate) fn send_or_keep(
        &mut self,
        now: Time,
        host: HostId,
        buf: &mut [u8],
        len: usize,
        out: &mut impl EdgeOutput,
    ) {
        if self.reaches(now, host, out) {
            return self.send_message(now, host, buf, len, out);
        }
        self.connect(now, host);
        if self.unsent.len() < UNSENT_MAX {
            self.unsent.push_back((host, plain(buf, 0, WHOLE)[..len].into()));
        } else {
            self.count(DropReason::NoSession);
        }
    }

    /// Sends the message of `len` bytes in the first frame of `buf`.
    fn send_message(
        &mut self,
        now: Time,
        host: HostId,
        buf: &mut [u8],
        len: usize,
        out: &mut impl EdgeOutput,
    ) {
        let form = match self.own.form(host, len) {
            Ok(form) => form,
            Err(reason) => return self.count(reason),
        };
        if form.is_unit() {
            buf.copy_within(PLAIN_AT..PLAIN_AT + len, form.plain_at());
        }
        plain(buf, 0, form)[len..].fill(0);
        self.send_plain(now, host, buf, form, out);
    }

    /// Sends the messages that waited for a session with `host`.
    pub(crate) fn send_unsent(
        &mut self,
        now: Time,
        host: HostId,
        buf: &mut [u8],
        out: &mut impl EdgeOutput,
    ) {
        for _ in 0..self.unsent.len() {
            let Some((to, message)) = self.unsent.pop_front() else { return };
            if to != host {
                self.unsent.push_back((to, message));
                continue;
            }
            plain(buf, 0, WHOLE)[..message.len()].copy_from_slice(&message);
            self.send_message(now, host, buf, message.len(), out);
        }
    }

    fn send_echoes(&mut self, now: Time, buf: &mut [u8], out: &mut impl EdgeOutput) {
        // Echoes to hosts without a session wait until there is one.
        for _ in 0..self.echoes.len() {
            let Some((host, echo)) = self.echoes.pop_front() else { return };
            let form = self.own.form(host, Echo::LEN).ok();
            let Some(form) = form.filter(|_| self.reaches(now, host, out)) else {
                self.connect(now, host);
                self.echoes.push_back((host, echo));
                continue;
            };
            let body = plain(buf, 0, form);
            body.fill(0);
            body[..Echo::LEN].copy_from_slice(&echo.to_bytes());
            self.send_plain(now, host, buf, form, out);
        }
    }

    fn send_segments(&mut self, now: Time, buf: &mut [u8], out: &mut impl EdgeOutput) {
        for _ in 0..BURSTS_MAX {
            let Edge { own, sessions, transfers, circuits, .. } = self;
            let turn = EdgeTurn { now, shard: sessions.shard(), out: &mut *out };
            let mut blocked = |key: PeerKey| {
                let host = key.into();
                own.room(host, turn.out) < BURST_MAX || !own.reaches(&turn, host)
            };
            let Some(burst) = transfers.poll_burst(now, BURST_MAX, &mut blocked) else {
                return;
            };
            let (host, count) = (burst.peer.into(), burst.count.min(BURST_MAX));
            let Ok(form) = own.form(host, burst.plain_len) else {
                if !circuits.may_fit(host, burst.plain_len) {
                    transfers.give_up(&burst);
                }
                continue;
            };
            for i in 0..count {
                transfers.write_segment(&burst, i, plain(buf, i * FULL, form));
            }
            let run = CellBatch::segments(host, form);
            self.send_run(now, run, &mut buf[..count * FULL], out);
        }
    }

    /// Passes the wall clock to the sessions.
    pub fn set_unix_time(&mut self, now: Time, unix_ms: u64) {
        self.sessions.set_unix_time(now, unix_ms);
    }

    /// Drops the keys of all hosts and makes new sessions with those that had one: see
    /// [`Sessions::rekey_all`]. Call [`Self::drive`] afterwards.
    pub fn rekey_all(&mut self, now: Time, fresh: &[u8; 32]) {
        self.sessions.rekey_all(now, fresh);
    }

    /// Handles all expired timers; call [`Self::drive`] afterwards.
    pub fn handle_timeout(&mut self, now: Time) {
        if self.sessions.poll_timeout().is_some_and(|(at, _)| at <= now) {
            self.sessions.handle_timeout(now);
        }
        if self.transfers.poll_timeout().is_some_and(|(at, _)| at <= now) {
            self.transfers.handle_timeout(now);
        }
        if let Some(direct) = &mut self.direct {
            direct.handle_timeout(now);
        }
        self.give_up_circuits(now);
        self.own.sequences.handle_timeout(now);
    }

    /// Time at which [`Self::handle_timeout`] and [`Self::drive`] are due, and the reason.
    pub fn poll_timeout(&self) -> Option<(Time, &'static str)> {
        let leave = (Time::ZERO, "IP packets leave");
        let packets = (!self.own.building.is_empty()).then_some(leave);
        let direct = self.direct.as_ref().and_then(DirectMachine::poll_timeout);
        let files = self.transfers.poll_timeout();
        let orders = (!self.orders.is_empty()).then_some((Time::ZERO, "order for a worker"));
        let circuits = self.circuits.poll_timeout();
        let held = self.own.sequences.poll_timeout().map(|at| (at, "packet that waits for others"));
        let said = self.announcement.as_ref().map(Announcement::due);
        let sessions = self.sessions.poll_timeout();
        let machines = [sessions, files, packets, direct, orders, circuits, held, said];
        machines.into_iter().flatten().min()
    }

    /// Takes the next piece of handshake work. It may run on any thread; pass its result to
    /// [`Self::handle_done`].
    pub fn poll_job(&mut self) -> Option<HandshakeTask<HostPath, C>> {
        self.sessions.poll_job()
    }

    /// Handles the result of a job; call [`Self::drive`] afterwards.
    pub fn handle_done(&mut self, now: Time, done: HandshakeTaskResult<HostPath>) {
        self.sessions.handle_done(now, done);
    }

    /// Takes the oldest event.
    pub fn poll_event(&mut self) -> Option<EdgeEvent> {
        let direct = || self.direct.as_mut()?.poll_event().map(EdgeEvent::Direct);
        let first = self.events.pop_front().or_else(direct);
        first.or_else(|| self.transfers.poll_event().map(EdgeEvent::Transfer))
    }

    /// Drops counted since the last call, for the node's counters.
    pub fn take_drops(&mut self) -> impl Iterator<Item = (DropReason, u64)> + '_ {
        self.own.take_drops()
    }

    pub(crate) fn count(&mut self, reason: DropReason) {
        self.own.count(reason, 1);
    }

    pub(crate) fn event(&mut self, event: EdgeEvent) {
        if self.events.len() >= self.config.events_max {
            self.events.pop_front();
        }
        self.events.push_back(event);
    }
}

const _: () = assert!(PLAIN_AT + SizeClass::Full.edge_len() + 2 * shoal_wire::TAG_LEN == FULL);
