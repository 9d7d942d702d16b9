//! One node: the daemon's machines, composed as the daemon composes them, and what a crash leaves.

use core::time::Duration;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;

use shoal_crypto::{Ciphers, Identity, NetworkSecret, PublicKey};
use shoal_edge::{Cells, Edge, HostConfig, HostId, Out};
use shoal_link::{EgressConfig, HoldConfig, LivenessConfig, Strategy};
use shoal_relay::{Arrival, Incoming, LinkConfig, LocalCells, Relay, Turn};
use shoal_session::{Done, Role};
use shoal_transfer::TransferId;
use shoal_wire::{Address, DropReason, LinkId, LinkKind, Time};

use crate::clock::Clock;
use crate::direct::{self, DirectLinks};
use crate::disk::Disk;
use crate::options::{Options, seed_bytes};
use crate::plan::Plan;
use crate::wires::{Wires, socket};

/// As in the daemon: how long an edge without room is left alone.
const STUCK_WAIT: Duration = Duration::from_micros(250);
/// Up to this many nodes, everybody's hosts file names everybody.
const KNOW_ALL_MAX: usize = 64;
/// Route changes that a node may cause in one call.
const EVENTS_MAX: usize = 1 << 16;

/// Handshake work on its way back.
pub(crate) enum JobDone {
    Link(Done<SocketAddr>),
    Host(Done<Address>),
}

/// What all nodes are made from.
pub(crate) struct Makings {
    pub(crate) options: Options,
    pub(crate) plan: Plan,
    pub(crate) keys: Vec<PublicKey>,
    /// Hosts that a node knows, where it doesn't know all.
    knows: Vec<Vec<usize>>,
}

impl Makings {
    pub(crate) fn new(options: Options, pings: &[(usize, usize)]) -> Rc<Makings> {
        let plan = Plan::new(&options);
        let keys = (0..plan.nodes.len()).map(|n| identity(options.seed, n).public()).collect();
        let mut knows = vec![Vec::new(); plan.nodes.len()];
        if plan.nodes.len() > KNOW_ALL_MAX {
            let files = plan.files.iter().map(|file| (file.from, file.to));
            for (a, b) in files.chain(pings.iter().copied()) {
                knows[a].push(b);
                knows[b].push(a);
            }
        } else {
            let all = 0..plan.nodes.len();
            let others = |me: usize| all.clone().filter(move |n| *n != me).collect();
            knows = all.clone().map(others).collect();
        }
        knows.iter_mut().for_each(|list| {
            list.sort_unstable();
            list.dedup();
        });
        Rc::new(Makings { options, plan, keys, knows })
    }
}

/// A node of the network.
pub(crate) struct Node<C: Ciphers> {
    pub(crate) relay: Relay<C>,
    pub(crate) edge: Edge<C>,
    pub(crate) clock: Clock,
    /// Counts starts.
    pub(crate) run: u32,
    pub(crate) alive: bool,
    /// Stands still: neither called nor heard.
    pub(crate) paused: bool,
    pub(crate) disk: Disk,
    /// Files this node sends now, by number.
    pub(crate) sending: BTreeMap<TransferId, usize>,
    /// Files this node receives now, by identity.
    pub(crate) receiving: BTreeMap<TransferId, [u8; 16]>,
    /// Links on which routes flow, when it was looked at last.
    pub(crate) seen_adjacent: Vec<LinkId>,
    pub(crate) seen_control: u64,
    /// When the world will call this node.
    pub(crate) armed: Option<Time>,
    /// Steps at the present instant.
    pub(crate) steps: (Time, u32),
    /// Frames handed to this run, and taken by its wires before it.
    pub(crate) delivered: u64,
    pub(crate) taken_before: u64,
    pub(crate) drops: BTreeMap<DropReason, u64>,
    /// Cells held and marked in earlier runs.
    pub(crate) cells: [u64; 2],
    /// Drops of this run that `new_drops` told already.
    told_drops: [u64; DropReason::COUNT],
    links: Vec<(LinkId, usize)>,
    far: BTreeMap<usize, LinkId>,
    stuck_until: Option<Time>,
    pub(crate) direct: DirectLinks,
    pub(crate) at: usize,
    pub(crate) makings: Rc<Makings>,
}

/// The edge's way out: straight into the relay.
struct Way<'a, C: Ciphers> {
    relay: &'a mut Relay<C>,
    wires: &'a mut Wires,
    cells: u64,
}

impl<C: Ciphers> Out for Way<'_, C> {
    fn cells(&mut self, now: Time, buf: &mut [u8], offsets: &[u32], len: usize) {
        self.cells += offsets.len() as u64;
        let mut turn = Turn { now, sink: self.wires, hand: &mut () };
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
        let mut turn = Turn { now, sink: self.wires, hand: &mut () };
        self.relay.send_cells(&mut turn, LinkKind::Direct, buf, offsets, len);
    }
}

fn identity(seed: u64, node: usize) -> Identity {
    Identity::from_seed(seed_bytes(seed, &format!("identity {node}")))
}

fn transfer(options: &Options) -> shoal_transfer::Config {
    let defaults = shoal_transfer::Config::default();
    let law = match options.fixed_rate_bps {
        0 => defaults.law,
        bps => shoal_transfer::Law::Fixed { rate: bps / 8 },
    };
    shoal_transfer::Config { law, ..defaults }
}

pub(crate) fn egress() -> EgressConfig {
    EgressConfig::default()
}

pub(crate) fn hold(options: &Options, address: Address) -> HoldConfig {
    let hold_us = if address.is_router() { options.hold_us } else { options.host_hold_us };
    let strategy = match hold_us {
        0 => Strategy::Pass,
        us => Strategy::Delay(Duration::from_micros(us)),
    };
    HoldConfig { strategy, ..HoldConfig::default() }
}

fn machines<C: Ciphers>(
    makings: &Makings,
    clock: &Clock,
    at: usize,
    run: u32,
    now: Time,
) -> (Relay<C>, Edge<C>) {
    let (plan, seed) = (&makings.plan, makings.options.seed);
    let address = plan.nodes[at];
    let me = identity(seed, at);
    let secret = || NetworkSecret(seed_bytes(seed, "network"));
    let own = |part: &str| seed_bytes(seed, &format!("{part} {at} run {run}"));
    let unix_ms = clock.wall_ms(&makings.options, at, run, now);
    let now = clock.read(now);
    let liveness =
        LivenessConfig { keepalive: Some(Duration::from_secs(10)), ..LivenessConfig::default() };
    let relay = shoal_relay::Config {
        address,
        session: shoal_session::Config::new(Role::Link),
        liveness,
        egress: egress(),
        hold: hold(&makings.options, address),
        routing: shoal_routing::Config::default(),
        events_max: EVENTS_MAX,
    };
    // A host takes part in no routing: it needs nobody's key for it.
    let routers = if address.is_router() { plan.routers } else { 0 };
    let origins = (0..routers).map(|n| (plan.nodes[n].router, makings.keys[n]));
    let relay =
        Relay::with_ciphers(relay, me.clone(), secret(), origins, own("relay"), now, unix_ms);
    let edge = shoal_edge::Config {
        address,
        session: shoal_session::Config::new(Role::Edge),
        transfer: transfer(&makings.options),
        echo_max: 256,
        direct: direct::config(&makings.options, at, address),
        ip: false,
        events_max: 1_024,
    };
    let edge = Edge::with_ciphers(edge, me, secret(), own("edge"), now, unix_ms);
    (relay, edge)
}

impl<C: Ciphers> Node<C> {
    /// Starts the node for the first time.
    pub(crate) fn new(makings: &Rc<Makings>, at: usize, now: Time) -> Node<C> {
        let clock = Clock::new(&makings.options, at);
        let (relay, edge) = machines(makings, &clock, at, 0, now);
        let mut node = Node {
            relay,
            edge,
            clock,
            run: 0,
            alive: true,
            paused: false,
            disk: Disk::default(),
            sending: BTreeMap::new(),
            receiving: BTreeMap::new(),
            seen_adjacent: Vec::new(),
            seen_control: 0,
            armed: None,
            steps: (now, 0),
            delivered: 0,
            taken_before: 0,
            drops: BTreeMap::new(),
            cells: [0; 2],
            told_drops: [0; DropReason::COUNT],
            links: Vec::new(),
            far: BTreeMap::new(),
            stuck_until: None,
            direct: DirectLinks::default(),
            at,
            makings: Rc::clone(makings),
        };
        node.configure(now);
        node
    }

    /// Everything but the disk is gone.
    pub(crate) fn crash(&mut self) {
        self.collect_drops();
        self.forget_direct();
        self.alive = false;
        self.paused = false;
        self.sending.clear();
        self.receiving.clear();
        self.stuck_until = None;
    }

    /// Starts again.
    pub(crate) fn restart(&mut self, now: Time, taken: u64) {
        self.run += 1;
        let makings = Rc::clone(&self.makings);
        (self.relay, self.edge) = machines(&makings, &self.clock, self.at, self.run, now);
        self.alive = true;
        self.seen_adjacent.clear();
        self.seen_control = 0;
        (self.delivered, self.taken_before) = (0, taken);
        self.told_drops = [0; DropReason::COUNT];
        self.configure(now);
    }

    fn configure(&mut self, now: Time) {
        let makings = Rc::clone(&self.makings);
        let (plan, at, now) = (&makings.plan, self.at, self.clock.read(now));
        self.links.clear();
        self.far.clear();
        let wires = plan.wires[..plan.links].iter().filter(|wire| wire.0 == at || wire.1 == at);
        for &(caller, called) in wires {
            let far = if caller == at { called } else { caller };
            let config = LinkConfig {
                key: makings.keys[far],
                address: plan.nodes[far],
                endpoint: (caller == at).then(|| socket(far)),
            };
            let link = self.relay.add_link(now, &config).expect("fewer links than the table holds");
            self.links.push((link, far));
            self.far.insert(far, link);
        }
        for &other in &makings.knows[at] {
            let host = HostConfig { key: makings.keys[other], address: plan.nodes[other] };
            self.edge.add_host(&host).expect("fewer hosts than the table holds");
        }
    }

    /// The links, and the nodes at their far ends.
    pub(crate) fn links(&self) -> &[(LinkId, usize)] {
        &self.links
    }

    /// The node at the far end of a link.
    pub(crate) fn neighbour(&self, link: LinkId) -> Option<usize> {
        // Links are numbered in the order in which they were added.
        let entry = self.links.get(link.0 as usize).filter(|(known, _)| *known == link);
        entry.map(|(_, node)| *node)
    }

    /// Whether a cell that isn't for this node would be passed on, coming from that node.
    pub(crate) fn takes_transit_from(&self, far: usize) -> bool {
        let Some(&link) = self.far.get(&far) else { return false };
        self.relay.routing().is_none_or(|routing| routing.is_adjacent(link))
    }

    /// Number of another host here.
    pub(crate) fn host(&self, address: Address) -> Option<HostId> {
        self.edge.host_at(address)
    }

    /// Whether it can be called now.
    pub(crate) fn runs(&self) -> bool {
        self.alive && !self.paused
    }

    /// Takes in what arrived at one instant.
    pub(crate) fn receive(
        &mut self,
        now: Time,
        buf: &mut [u8],
        incoming: &[Incoming],
        wires: &mut Wires,
    ) {
        let now = self.clock.read(now);
        let edge = &mut self.edge;
        let mut local = |buf: &mut [u8], cells: LocalCells<'_>, _: &mut ()| {
            edge.handle_cells(now, Cells::new(buf, cells.offsets, cells.len), &mut ());
            cells.count()
        };
        let mut turn = Turn { now, sink: wires, hand: &mut () };
        self.relay.handle_batch(&mut turn, buf, incoming, Arrival::Socket, &mut local);
    }

    /// Does what time asks for.
    pub(crate) fn handle_timeout(&mut self, now: Time, wires: &mut Wires) {
        let now = self.clock.read(now);
        if self.relay.poll_timeout().is_some_and(|(at, _)| at <= now) {
            self.relay.handle_timeout(now, wires);
        }
        if self.edge.poll_timeout().is_some_and(|(at, _)| at <= now) {
            self.edge.handle_timeout(now);
        }
    }

    /// Takes in handshake work that was done elsewhere.
    pub(crate) fn handle_done(&mut self, now: Time, done: JobDone, wires: &mut Wires) {
        let now = self.clock.read(now);
        match done {
            JobDone::Link(done) => self.relay.handle_done(now, done, wires),
            JobDone::Host(done) => self.edge.handle_done(now, done),
        }
    }

    /// Sends what the edge has to send.
    pub(crate) fn drive(&mut self, now: Time, wires: &mut Wires) {
        let now = self.clock.read(now);
        let mut way = Way { relay: &mut self.relay, wires, cells: 0 };
        self.edge.drive(now, &mut way);
        let sent = way.cells > 0;
        for (reason, n) in self.edge.take_drops() {
            self.relay.count_drop(reason, n);
        }
        let due = self.edge.poll_timeout().is_some_and(|(at, _)| at <= now);
        self.stuck_until = (due && !sent).then(|| now + STUCK_WAIT);
    }

    /// When this node wants to be called, by the network's time, and why.
    pub(crate) fn poll_timeout(&self) -> Option<(Time, &'static str)> {
        if !self.runs() {
            return None;
        }
        let held = |(at, why): (Time, &'static str)| match self.stuck_until {
            Some(until) => (at.max(until), why),
            None => (at, why),
        };
        let edge = self.edge.poll_timeout().map(held);
        let first = [edge, self.relay.poll_timeout()].into_iter().flatten().min();
        first.map(|(at, why)| (self.clock.when(at), why))
    }

    /// Drops since the last call.
    pub(crate) fn new_drops(&mut self) -> Vec<(DropReason, u64)> {
        let mut new = Vec::new();
        for ((reason, count), told) in self.relay.counters().drops().zip(&mut self.told_drops) {
            if count > *told {
                new.push((reason, count - *told));
                *told = count;
            }
        }
        new
    }

    /// Adds what this run has counted to what earlier runs have.
    pub(crate) fn collect_drops(&mut self) {
        let traffic = &self.relay.counters().traffic;
        self.cells[0] += traffic.cells_held;
        self.cells[1] += traffic.cells_marked;
        for (reason, n) in self.relay.counters().drops().filter(|(_, n)| *n > 0) {
            *self.drops.entry(reason).or_default() += n;
        }
    }
}
