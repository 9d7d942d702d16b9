//! One node: the same value that the daemon drives, the work of its shell, and the state that
//! survives a crash.

use core::time::Duration;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;

use shoal_crypto::{Ciphers, Identity, NetworkSecret, PublicKey};
use shoal_directory::Access;
use shoal_edge::{HostConfig, HostId};
use shoal_ip::{AddressGate, overlay_address, overlay_prefix};
use shoal_link::{EgressConfig, LivenessConfig};
use shoal_mix::MixLimits;
use shoal_node::{Control, HandshakeDone, InterfaceQueue, Parcel, Seeds, Worker, WorkerMessage};
use shoal_relay::{DropCounters, HoldConfig, LinkConfig, ReceivedRun};
use shoal_session::SessionRole;
use shoal_transfer::TransferId;
use shoal_wire::{Address, DropReason, Id, LinkId, Time};

use crate::ciphers::{self, mix};
use crate::clock::NodeClock;
use crate::disk::SimulatedDisk;
use crate::mixes::{self, MixList};
use crate::options::{SimulationOptions, seed_bytes};
use crate::plan::NetworkPlan;
use crate::plant::InjectedFault;
use crate::programs::{MTU, SimulatedInterface};
use crate::reach::{self, DirectRecord};
use crate::rings::NodeRings;
use crate::shell::{FirewallTable, SimulatedShell};
use crate::wires::{self, Wires};

/// Up to this many nodes, every hosts file names all nodes.
const KNOW_ALL_MAX: usize = 64;
const WORKERS_MAX: u8 = 4;
/// Largest number of route changes that a node may cause in one call.
const EVENTS_MAX: usize = 1 << 16;

/// Inputs from which all nodes are made.
pub(crate) struct NetworkInputs {
    pub(crate) options: SimulationOptions,
    pub(crate) plan: NetworkPlan,
    pub(crate) keys: Vec<PublicKey>,
    /// Endpoint of each node within its own network.
    pub(crate) own: Vec<SocketAddr>,
    /// Hosts that each node knows.
    pub(crate) knows: Vec<Vec<usize>>,
    /// Lists with the mixing strategies of relays, by time.
    pub(crate) lists: Vec<MixList>,
}

impl NetworkInputs {
    pub(crate) fn new(options: SimulationOptions, pings: &[(usize, usize)]) -> Rc<NetworkInputs> {
        let plan = NetworkPlan::new(&options);
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
        let lists = mixes::lists(&options, plan.routers);
        let nats = wires::nats(&options, &plan);
        let own = (0..plan.nodes.len()).map(|node| nats.own(node)).collect();
        Rc::new(NetworkInputs { options, plan, keys, own, knows, lists })
    }
}

pub(crate) struct SimulatedNode<C: Ciphers> {
    pub(crate) control: Control<SimulatedShell<C>>,
    workers: Vec<Worker<SimulatedShell<C>>>,
    rings: Rc<RefCell<NodeRings<C>>>,
    pub(crate) clock: NodeClock,
    /// Number of restarts.
    pub(crate) run: u32,
    pub(crate) alive: bool,
    /// True while the node is paused: it is neither called nor does it receive.
    pub(crate) paused: bool,
    pub(crate) disk: SimulatedDisk,
    /// Files that the node is sending, by number.
    pub(crate) sending: BTreeMap<TransferId, usize>,
    /// Files that the node is receiving, by identity.
    pub(crate) receiving: BTreeMap<TransferId, [u8; 16]>,
    /// Links on which routes flowed at the last look.
    pub(crate) seen_adjacent: Vec<LinkId>,
    pub(crate) seen_control: u64,
    /// Time at which the world will call this node.
    pub(crate) armed: Option<Time>,
    /// True if cells waited for links at the end of the last step. `resumed` is the end of the last
    /// pause, by the node's clock.
    pub(crate) was_busy: bool,
    pub(crate) resumed: Time,
    /// Number of steps at the present instant.
    pub(crate) steps: (Time, u32),
    /// Frames handed to the node in this run, and frames that the wires took from it in earlier
    /// runs.
    pub(crate) delivered: u64,
    pub(crate) taken_before: u64,
    pub(crate) drops: BTreeMap<DropReason, u64>,
    /// Cells held and marked in earlier runs.
    pub(crate) cells: [u64; 2],
    /// Drops of this run that `new_drops` has returned already.
    told_drops: [u64; DropReason::COUNT],
    links: Vec<(LinkId, usize)>,
    far: BTreeMap<usize, LinkId>,
    pub(crate) direct: DirectRecord,
    pub(crate) at: usize,
    /// Number of changes of its prefix.
    pub(crate) moves: u8,
    pub(crate) makings: Rc<NetworkInputs>,
}

fn identity(seed: u64, node: usize) -> Identity {
    Identity::from_seed(seed_bytes(seed, &format!("identity {node}")))
}

fn transfer(options: &SimulationOptions) -> shoal_transfer::TransferConfig {
    let defaults = shoal_transfer::TransferConfig::default();
    let law = match options.fixed_rate_bps {
        0 => defaults.law,
        bps => shoal_transfer::LawChoice::Fixed { rate: bps / 8 },
    };
    shoal_transfer::TransferConfig { law, ..defaults }
}

pub(crate) fn egress() -> EgressConfig {
    EgressConfig::default()
}

pub(crate) fn hold(options: &SimulationOptions, address: Address) -> HoldConfig {
    let hold_us = if address.is_router() { options.hold_us } else { options.host_hold_us };
    let link_delay = Some(Duration::from_micros(hold_us)).filter(|delay| !delay.is_zero());
    let limits = match options.mix_cells as usize {
        0 => MixLimits::default(),
        per_link => MixLimits { per_link, ..MixLimits::default() },
    };
    HoldConfig { link_delay, limits }
}

/// True if the programs of a node may be reached by another node with any packet.
pub(crate) fn allows(options: &SimulationOptions, at: usize, other: usize) -> bool {
    !mix(options.seed ^ (at as u64) << 20 ^ (other as u64) << 40).is_multiple_of(4)
}

pub(crate) fn interface(makings: &NetworkInputs, at: usize) -> Ipv6Addr {
    let secret = NetworkSecret(seed_bytes(makings.options.seed, "network"));
    overlay_address(&overlay_prefix(&secret), &makings.keys[at])
}

fn config(options: &SimulationOptions, at: usize, address: Address) -> shoal_node::NodeSettings {
    let workers = options.workers.clamp(1, WORKERS_MAX as u32) as u8;
    // Enough lanes that each worker can seal on lanes of each worker at the far end.
    let lanes = workers * workers;
    let liveness =
        LivenessConfig { keepalive: Some(Duration::from_secs(10)), ..LivenessConfig::default() };
    let relay = shoal_relay::RelayConfig {
        address,
        session: shoal_session::SessionConfig {
            workers,
            lanes,
            ..shoal_session::SessionConfig::new(SessionRole::Link)
        },
        liveness,
        egress: egress(),
        hold: hold(options, address),
        routing: shoal_routing::Config::default(),
        events_max: EVENTS_MAX,
    };
    let ip = options.flows > 0 && !address.is_router();
    let (workers, lanes) = if ip { (workers, lanes) } else { (1, 1) };
    let edge = shoal_edge::EdgeConfig {
        address,
        session: shoal_session::SessionConfig {
            workers,
            lanes,
            ..shoal_session::SessionConfig::new(SessionRole::Edge)
        },
        transfer: transfer(options),
        echo_max: 256,
        direct: reach::direct(options, at, address),
        ip,
        events_max: 1_024,
    };
    shoal_node::NodeSettings { relay, edge }
}

type NodeParts<C> =
    (Control<SimulatedShell<C>>, Vec<Worker<SimulatedShell<C>>>, Rc<RefCell<NodeRings<C>>>);

fn machine<C: Ciphers>(
    makings: &NetworkInputs,
    clock: &NodeClock,
    at: usize,
    run: u32,
    now: Time,
) -> NodeParts<C> {
    let (plan, options) = (&makings.plan, &makings.options);
    let (seed, address) = (options.seed, plan.nodes[at]);
    let own = |part: &str| seed_bytes(seed, &format!("{part} {at} run {run}"));
    let unix_ms = clock.wall_ms(options, at, run, now);
    // A host takes no part in routing, so it needs no keys of routers.
    let routers = if address.is_router() { plan.routers } else { 0 };
    let origins = (0..routers).map(|n| (plan.nodes[n].router, makings.keys[n]));
    let config = config(options, at, address);
    let workers = config.relay.session.workers;
    let secret = NetworkSecret(seed_bytes(seed, "network"));
    let seeds = Seeds { relay: own("relay"), edge: own("edge"), circuits: own("circuits") };
    let (me, now) = (identity(seed, at), clock.read(now));
    let (gate, flows) =
        (Arc::new(AddressGate::new(vec![interface(makings, at)], MTU)), FirewallTable::default());
    let queue =
        |_| InterfaceQueue::new(SimulatedInterface::default(), Arc::clone(&gate), flows.clone());
    let mut queues: Vec<_> = (0..if config.edge.ip { workers } else { 0 }).map(queue).collect();
    let queue = (!queues.is_empty()).then(|| queues.remove(0));
    let mut control = Control::new(config, me, secret, origins, queue, &seeds, now, unix_ms);
    let (rings, ends) = NodeRings::new(workers, own("rings"), options.plant);
    let workers = control.split(ends, queues);
    (control, workers, rings)
}

impl<C: Ciphers> SimulatedNode<C> {
    pub(crate) fn new(makings: &Rc<NetworkInputs>, at: usize, now: Time) -> SimulatedNode<C> {
        let clock = NodeClock::new(&makings.options, at);
        let (control, workers, rings) = machine(makings, &clock, at, 0, now);
        let mut node = SimulatedNode {
            control,
            workers,
            rings,
            clock,
            run: 0,
            alive: true,
            paused: false,
            disk: SimulatedDisk::default(),
            sending: BTreeMap::new(),
            receiving: BTreeMap::new(),
            seen_adjacent: Vec::new(),
            seen_control: 0,
            armed: None,
            was_busy: false,
            resumed: Time::ZERO,
            steps: (now, 0),
            delivered: 0,
            taken_before: 0,
            drops: BTreeMap::new(),
            cells: [0; 2],
            told_drops: [0; DropReason::COUNT],
            links: Vec::new(),
            far: BTreeMap::new(),
            direct: DirectRecord::default(),
            at,
            moves: 0,
            makings: Rc::clone(makings),
        };
        node.configure(now);
        node
    }

    /// Node at the other end of a planned link.
    pub(crate) fn far_end(&self, link: LinkId) -> Option<usize> {
        self.links.iter().find(|(known, _)| *known == link).map(|&(_, far)| far)
    }

    /// Stops the node and discards all its state except the disk.
    pub(crate) fn crash(&mut self) {
        self.collect_drops();
        (self.direct.up_before, self.direct.made) = (self.direct_up(), 0);
        self.alive = false;
        self.paused = false;
        self.sending.clear();
        self.receiving.clear();
    }

    pub(crate) fn restart(&mut self, now: Time, taken: u64) {
        self.run += 1;
        let makings = Rc::clone(&self.makings);
        (self.control, self.workers, self.rings) =
            machine(&makings, &self.clock, self.at, self.run, now);
        self.alive = true;
        self.seen_adjacent.clear();
        self.seen_control = 0;
        (self.delivered, self.taken_before) = (0, taken);
        self.told_drops = [0; DropReason::COUNT];
        self.configure(now);
    }

    fn configure(&mut self, now: Time) {
        let makings = Rc::clone(&self.makings);
        let (plan, at, network_now) = (&makings.plan, self.at, now);
        let now = self.read_clock(now);
        self.links.clear();
        self.far.clear();
        let wires = plan.wires[..plan.links].iter().filter(|wire| wire.0 == at || wire.1 == at);
        for &(caller, called) in wires {
            let far = if caller == at { called } else { caller };
            let config = LinkConfig {
                key: makings.keys[far],
                address: plan.address_at(far, at),
                endpoint: self.endpoint_of(far).filter(|_| caller == at),
            };
            let link = self.control.relay.add_link(now, &config);
            let link = link.expect("fewer links than the table holds");
            self.links.push((link, far));
            if plan.nodes[at].is_router() != plan.nodes[far].is_router() {
                self.control.relay.set_cover(now, link, makings.options.tier());
            }
            self.far.insert(far, link);
        }
        self.configure_shifts(now);
        self.apply_bans(network_now);
        for &other in &makings.knows[at] {
            let host = HostConfig { key: makings.keys[other], address: plan.nodes[other] };
            self.control.edge.add_host(&host).expect("fewer hosts than the table holds");
        }
        self.configure_uplinks();
        if self.control.edge.direct_stats().is_some() && !makings.options.translators.is_empty() {
            self.configure_reach(now);
        }
        if self.control.queue().is_some() {
            self.configure_interface();
        }
        if makings.options.circuits > 0 {
            self.configure_circuits(network_now);
        }
    }

    /// Configures which hosts may be reached over the interface, and what they may begin.
    fn configure_interface(&mut self) {
        let makings = Rc::clone(&self.makings);
        let mut gate = AddressGate::new(vec![interface(&makings, self.at)], MTU);
        let mut rights = BTreeMap::new();
        let all_pass = makings.options.plant == Some(InjectedFault::PacketAllowed);
        for &other in &makings.knows[self.at] {
            let Some(host) = self.host(makings.plan.nodes[other]) else { continue };
            gate.add(host.bits(), interface(&makings, other)).expect("keys differ");
            let access = match all_pass || allows(&makings.options, self.at, other) {
                true => Access::everything(),
                false => Access::without_packets(),
            };
            rights.insert(host, Arc::new(access));
        }
        self.control.set_gate(Arc::new(gate));
        let partners: Vec<HostId> = rights.keys().copied().collect();
        self.control.set_rights(&rights, partners.into_iter());
    }

    /// Reads the node's clock. All further actions of the node happen at that time.
    pub(crate) fn read_clock(&self, now: Time) -> Time {
        let shown = self.clock.read(now);
        ciphers::set_shown(shown);
        shown
    }

    /// Interface queue for the packets of a flow.
    pub(crate) fn tap(&mut self, flow: u32) -> Option<&mut SimulatedInterface> {
        let all = 1 + self.workers.len();
        let queue = match (flow as usize % all).checked_sub(1) {
            None => self.control.queue_mut(),
            Some(at) => self.workers[at].queue_mut(),
        };
        queue.map(InterfaceQueue::device_mut)
    }

    /// Packets that programs were given since the last call.
    pub(crate) fn take_given(&mut self) -> Vec<Vec<u8>> {
        let queues = self.workers.iter_mut().filter_map(Worker::queue_mut);
        let queues = queues.chain(self.control.queue_mut());
        queues.flat_map(|queue| queue.device_mut().take_given()).collect()
    }

    /// Makes the workers read packets of programs, unless earlier ones still wait.
    fn read_packets(&mut self, now: Time, wires: &mut Wires) {
        match self.control.queue().map(|queue| queue.device().is_readable()) {
            Some(true) if !self.control.packets_wait() => self.control.handle_packets(now, wires),
            Some(true) | None => {}
            Some(false) => self.control.note_no_packets(),
        }
        for worker in &mut self.workers {
            match worker.queue().map(|queue| queue.device().is_readable()) {
                Some(true) if !worker.packets_wait() => worker.handle_packets(now, wires),
                Some(true) | None => {}
                Some(false) => worker.note_no_packets(),
            }
        }
    }

    /// True if a worker can read packets of programs, and no earlier ones wait.
    fn has_packets(&mut self) -> bool {
        let own = self.control.queue().is_some_and(|queue| queue.device().is_readable());
        let ready = |worker: &mut Worker<SimulatedShell<C>>| {
            let waits = worker.packets_wait();
            !waits && worker.queue().is_some_and(|queue| queue.device().is_readable())
        };
        own && !self.control.packets_wait() || self.workers.iter_mut().any(ready)
    }

    /// Links and the nodes at their far ends.
    pub(crate) fn links(&self) -> &[(LinkId, usize)] {
        &self.links
    }

    pub(crate) fn neighbour(&self, link: LinkId) -> Option<usize> {
        // Links are numbered in the order in which they were added.
        let entry = self.links.get(link.number()).filter(|(known, _)| *known == link);
        entry.map(|(_, node)| *node)
    }

    /// True if a cell from that node would be forwarded.
    pub(crate) fn takes_transit_from(&self, far: usize) -> bool {
        let Some(&link) = self.far.get(&far) else { return false };
        self.control.relay.routing().is_none_or(|routing| routing.is_adjacent(link))
    }

    /// This node's id of another host.
    pub(crate) fn host(&self, address: Address) -> Option<HostId> {
        self.control.edge.host_at(address)
    }

    /// True if the node can be called.
    pub(crate) fn runs(&self) -> bool {
        self.alive && !self.paused
    }

    /// Handles frames that arrived at one instant. All frames from one endpoint go to one worker,
    /// as with the kernel's sockets.
    pub(crate) fn receive(
        &mut self,
        now: Time,
        buf: &mut [u8],
        incoming: &[ReceivedRun],
        wires: &mut Wires,
    ) {
        self.rings.borrow_mut().set_now(now);
        let now = self.read_clock(now);
        let (seed, all) = (self.makings.options.seed, 1 + self.workers.len() as u64);
        if all == 1 {
            return self.control.handle_datagrams(now, wires, buf, incoming);
        }
        let worker = |run: &ReceivedRun| match run.from.remote.ip() {
            IpAddr::V4(ip) => mix(seed ^ u64::from(ip.to_bits()) << 16 ^ self.at as u64) % all,
            // A shifting address leads to any worker, depending on its number.
            IpAddr::V6(_) => mix(seed ^ wires.shift_number(run.from.local)) % all,
        };
        let by: Vec<u64> = incoming.iter().map(worker).collect();
        for number in 0..all {
            let runs = incoming.iter().zip(&by).filter(|(_, by)| **by == number);
            let mine: Vec<ReceivedRun> = runs.map(|(run, _)| *run).collect();
            match (number as usize).checked_sub(1) {
                _ if mine.is_empty() => {}
                None => self.control.handle_datagrams(now, wires, buf, &mine),
                Some(at) => self.workers[at].handle_datagrams(now, wires, buf, &mine),
            }
        }
    }

    /// Handles timers, and messages that workers handed over.
    pub(crate) fn handle_timeout(&mut self, now: Time, wires: &mut Wires) {
        self.rings.borrow_mut().set_now(now);
        let now = self.read_clock(now);
        loop {
            let Some((to, message)) = self.rings.borrow_mut().take() else { break };
            match usize::from(to).checked_sub(1) {
                None => self.control.handle_message(now, wires, message),
                Some(at) => self.workers[at].handle_message(now, wires, message),
            }
        }
        self.control.handle_timeout(now, wires);
        self.workers.iter_mut().for_each(|worker| worker.handle_timeout(now, wires));
        self.read_packets(now, wires);
    }

    /// Handles the result of handshake work.
    pub(crate) fn handle_done(&mut self, now: Time, done: HandshakeDone, wires: &mut Wires) {
        self.rings.borrow_mut().set_now(now);
        let now = self.read_clock(now);
        self.control.handle_done(now, wires, done);
    }

    /// Sends the output of the edge and the messages between workers.
    pub(crate) fn drive(&mut self, now: Time, wires: &mut Wires) {
        self.rings.borrow_mut().set_now(now);
        let now = self.read_clock(now);
        self.control.drive(now, wires);
        self.control.give_orders();
        for worker in &mut self.workers {
            worker.drive(now, || ());
        }
    }

    /// Network time of the next event, and its reason.
    pub(crate) fn poll_timeout(&mut self) -> Option<(Time, &'static str)> {
        if !self.runs() {
            return None;
        }
        let packets = self.has_packets().then_some((Time::ZERO, "packets of programs"));
        let workers = self.workers.iter_mut().filter_map(Worker::poll_timeout);
        let first = workers.chain(packets).chain(self.control.poll_timeout()).min();
        let first = first.map(|(at, why)| (self.clock.when(at), why));
        let message = self.rings.borrow().due().map(|at| (at, "a message of another worker"));
        [first, message].into_iter().flatten().min()
    }

    /// Counters of all workers, including reports in transit.
    pub(crate) fn counters(&self) -> DropCounters {
        let mut all = self.control.relay.counters().clone();
        self.workers.iter().for_each(|worker| all.add(worker.counters()));
        for (_, message) in self.rings.borrow().waiting() {
            if let WorkerMessage::Report(_, told) = message {
                all.add(&told.counters);
            }
        }
        all
    }

    /// True if cells wait for one of the node's links.
    pub(crate) fn is_busy(&self) -> bool {
        self.control.relay.links().any(|link| link.waiting > 0)
    }

    /// Number of cells in the node's holds.
    pub(crate) fn holding(&self) -> u64 {
        let relay = &self.control.relay;
        let own: usize = relay.links().map(|link| relay.held(link.link)).sum();
        (own + self.workers.iter().map(Worker::held).sum::<usize>()) as u64
    }

    /// Received frames in transit to the worker that handles them.
    pub(crate) fn coming(&self) -> u64 {
        self.between_workers(Parcel::coming)
    }

    /// Frames that a worker could not send, in transit to the first worker.
    pub(crate) fn going(&self) -> u64 {
        self.between_workers(|parcel, _| parcel.going())
    }

    fn between_workers(&self, frames: impl Fn(&Parcel, u8) -> u64) -> u64 {
        let rings = self.rings.borrow();
        let parcels = rings.waiting().filter_map(|(to, message)| match message {
            WorkerMessage::Parcel(parcel) => Some(frames(parcel, to)),
            _ => None,
        });
        parcels.sum()
    }

    /// Workers that handled all orders and still differ from control's state.
    pub(crate) fn misled(&self) -> Vec<u8> {
        let rings = self.rings.borrow();
        let told = |worker: &&Worker<_>| rings.waiting().all(|(to, _)| to != worker.number());
        let told = self.workers.iter().filter(told);
        let misled = told.filter(|worker| !self.control.is_known_to(worker));
        misled.map(Worker::number).collect()
    }

    /// Plants a fault: gives a worker an old view again.
    pub(crate) fn tell_old_view(&mut self) {
        self.rings.borrow_mut().tell_old_view();
    }

    /// Number of direct links that came up, over all runs of the node.
    pub(crate) fn direct_up(&self) -> u64 {
        let stats = self.control.edge.direct_stats().filter(|_| self.alive);
        self.direct.up_before + stats.map_or(0, |stats| stats.up)
    }

    pub(crate) fn new_drops(&mut self) -> Vec<(DropReason, u64)> {
        let mut new = Vec::new();
        for ((reason, count), told) in self.counters().drops().zip(&mut self.told_drops) {
            if count > *told {
                new.push((reason, count - *told));
                *told = count;
            }
        }
        new
    }

    /// Adds the counts of this run to those of earlier runs.
    pub(crate) fn collect_drops(&mut self) {
        let counters = self.counters();
        self.cells[0] += counters.traffic.cells_held;
        self.cells[1] += counters.traffic.cells_marked;
        for (reason, n) in counters.drops().filter(|(_, n)| *n > 0) {
            *self.drops.entry(reason).or_default() += n;
        }
    }
}
