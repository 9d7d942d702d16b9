//! One node: the daemon's machines, composed as the daemon composes them, and what a crash leaves.

use core::time::Duration;
use std::collections::BTreeMap;
use std::net::SocketAddr;

use shoal_crypto::{Identity, NetworkSecret, PublicKey};
use shoal_edge::{Edge, HostConfig, HostId, Out};
use shoal_link::{EgressConfig, LivenessConfig};
use shoal_relay::{Incoming, LinkConfig, Relay};
use shoal_session::{Done, Role};
use shoal_transfer::TransferId;
use shoal_wire::{Address, DropReason, LinkId, Time};

use crate::disk::Disk;
use crate::options::seed_bytes;
use crate::plan::Plan;
use crate::wires::{Wires, socket};

/// The wall clock at virtual time zero, in milliseconds.
const UNIX_MS: u64 = 1_800_000_000_000;
/// As in the daemon: how long an edge without room is left alone.
const STUCK_WAIT: Duration = Duration::from_micros(250);

/// Handshake work on its way back.
pub(crate) enum JobDone {
    Link(Done<SocketAddr>),
    Host(Done<Address>),
}

/// A node of the network.
pub(crate) struct Node {
    pub(crate) address: Address,
    pub(crate) relay: Relay,
    pub(crate) edge: Edge,
    /// Counts starts.
    pub(crate) run: u32,
    pub(crate) alive: bool,
    pub(crate) disk: Disk,
    /// Files this node sends now, by number.
    pub(crate) sending: BTreeMap<TransferId, usize>,
    /// Files this node receives now, by identity.
    pub(crate) receiving: BTreeMap<TransferId, [u8; 16]>,
    /// Version of the table that was looked at last.
    pub(crate) seen_table: u64,
    pub(crate) drops: BTreeMap<DropReason, u64>,
    /// Drops of this run that `new_drops` told already.
    told_drops: [u64; DropReason::COUNT],
    links: Vec<(LinkId, usize)>,
    stuck_until: Option<Time>,
}

/// The edge's way out: straight into the relay.
struct Way<'a> {
    relay: &'a mut Relay,
    wires: &'a mut Wires,
    cells: u64,
}

impl Out for Way<'_> {
    fn cells(&mut self, now: Time, buf: &mut [u8], offsets: &[u32], len: usize) {
        self.cells += offsets.len() as u64;
        self.relay.send_cells(now, buf, offsets, len, self.wires);
    }

    fn room(&self, dst: Address) -> usize {
        self.relay.room(dst)
    }
}

fn identity(seed: u64, node: usize) -> Identity {
    Identity::from_seed(seed_bytes(seed, &format!("identity {node}")))
}

fn machines(plan: &Plan, seed: u64, at: usize, run: u32, now: Time) -> (Relay, Edge) {
    let address = plan.nodes[at];
    let me = identity(seed, at);
    let secret = || NetworkSecret(seed_bytes(seed, "network"));
    let own = |part: &str| seed_bytes(seed, &format!("{part} {at} run {run}"));
    let unix_ms = UNIX_MS + now.0 / 1_000_000;
    let liveness =
        LivenessConfig { keepalive: Some(Duration::from_secs(10)), ..LivenessConfig::default() };
    let relay = shoal_relay::Config {
        address,
        session: shoal_session::Config::new(Role::Link),
        liveness,
        egress: EgressConfig::default(),
        routing: shoal_routing::Config::default(),
        events_max: 1_024,
    };
    let routers = plan.nodes.iter().enumerate().filter(|(_, address)| address.is_router());
    let origins: Vec<(u32, PublicKey)> =
        routers.map(|(at, address)| (address.router, identity(seed, at).public())).collect();
    let relay = Relay::new(relay, me.clone(), secret(), origins, own("relay"), now, unix_ms);
    let edge = shoal_edge::Config {
        address,
        session: shoal_session::Config::new(Role::Edge),
        transfer: shoal_transfer::Config::default(),
        echo_max: 256,
        events_max: 1_024,
    };
    let edge = Edge::new(edge, me, secret(), own("edge"), now, unix_ms);
    (relay, edge)
}

impl Node {
    /// Starts the node for the first time.
    pub(crate) fn new(plan: &Plan, seed: u64, at: usize, now: Time) -> Node {
        let (relay, edge) = machines(plan, seed, at, 0, now);
        let mut node = Node {
            address: plan.nodes[at],
            relay,
            edge,
            run: 0,
            alive: true,
            disk: Disk::default(),
            sending: BTreeMap::new(),
            receiving: BTreeMap::new(),
            seen_table: 0,
            drops: BTreeMap::new(),
            told_drops: [0; DropReason::COUNT],
            links: Vec::new(),
            stuck_until: None,
        };
        node.configure(plan, seed, at, now);
        node
    }

    /// Everything but the disk is gone.
    pub(crate) fn crash(&mut self) {
        self.collect_drops();
        self.alive = false;
        self.sending.clear();
        self.receiving.clear();
        self.links.clear();
        self.stuck_until = None;
    }

    /// Starts again.
    pub(crate) fn restart(&mut self, plan: &Plan, seed: u64, at: usize, now: Time) {
        self.run += 1;
        (self.relay, self.edge) = machines(plan, seed, at, self.run, now);
        self.alive = true;
        self.seen_table = 0;
        self.told_drops = [0; DropReason::COUNT];
        self.configure(plan, seed, at, now);
    }

    fn configure(&mut self, plan: &Plan, seed: u64, at: usize, now: Time) {
        let wires = plan.wires.iter().filter(|wire| wire.0 == at || wire.1 == at);
        for &(caller, called) in wires {
            let far = if caller == at { called } else { caller };
            let config = LinkConfig {
                key: identity(seed, far).public(),
                address: plan.nodes[far],
                endpoint: (caller == at).then(|| socket(far)),
            };
            let link = self.relay.add_link(now, &config).expect("fewer links than the table holds");
            self.links.push((link, far));
        }
        for (other, &address) in plan.nodes.iter().enumerate().filter(|(other, _)| *other != at) {
            let host = HostConfig { key: identity(seed, other).public(), address };
            self.edge.add_host(&host).expect("fewer hosts than the table holds");
        }
    }

    /// The node at the far end of a link.
    pub(crate) fn neighbour(&self, link: LinkId) -> Option<usize> {
        self.links.iter().find(|(known, _)| *known == link).map(|(_, node)| *node)
    }

    /// Whether a cell that isn't for this node would be passed on, coming from there.
    pub(crate) fn takes_transit_from(&self, neighbour: Address) -> bool {
        let Some(view) = self.relay.links().find(|view| view.address == neighbour) else {
            return false;
        };
        self.relay.routing().is_none_or(|routing| routing.is_adjacent(view.link))
    }

    /// Number of another host here.
    pub(crate) fn host(&self, address: Address) -> Option<HostId> {
        self.edge.host_at(address)
    }

    /// Takes in what arrived at one instant.
    pub(crate) fn receive(
        &mut self,
        now: Time,
        buf: &mut [u8],
        incoming: &[Incoming],
        wires: &mut Wires,
    ) {
        let edge = &mut self.edge;
        let mut local = |buf: &mut [u8], offsets: &[u32], len: usize| {
            edge.handle_cells(now, buf, offsets, len);
        };
        self.relay.handle_batch(now, buf, incoming, wires, &mut local);
    }

    /// Does what time asks for.
    pub(crate) fn handle_timeout(&mut self, now: Time, wires: &mut Wires) {
        if self.relay.poll_timeout().is_some_and(|(at, _)| at <= now) {
            self.relay.handle_timeout(now, wires);
        }
        if self.edge.poll_timeout().is_some_and(|(at, _)| at <= now) {
            self.edge.handle_timeout(now);
        }
    }

    /// Sends what the edge has to send.
    pub(crate) fn drive(&mut self, now: Time, wires: &mut Wires) {
        let mut way = Way { relay: &mut self.relay, wires, cells: 0 };
        self.edge.drive(now, &mut way);
        let sent = way.cells > 0;
        for (reason, n) in self.edge.take_drops() {
            self.relay.count_drop(reason, n);
        }
        let due = self.edge.poll_timeout().is_some_and(|(at, _)| at <= now);
        self.stuck_until = (due && !sent).then(|| now + STUCK_WAIT);
    }

    /// When this node wants to be called, and why.
    pub(crate) fn poll_timeout(&self) -> Option<(Time, &'static str)> {
        if !self.alive {
            return None;
        }
        let held = |(at, why): (Time, &'static str)| match self.stuck_until {
            Some(until) => (at.max(until), why),
            None => (at, why),
        };
        let edge = self.edge.poll_timeout().map(held);
        [edge, self.relay.poll_timeout()].into_iter().flatten().min()
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

    /// Adds this run's drops to those of earlier runs.
    pub(crate) fn collect_drops(&mut self) {
        for (reason, n) in self.relay.counters().drops().filter(|(_, n)| *n > 0) {
            *self.drops.entry(reason).or_default() += n;
        }
    }
}
