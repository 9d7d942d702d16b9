//! One node: the very value that the daemon drives, what its shell does for it, and what a crash
//! leaves.

use core::time::Duration;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;

use shoal_crypto::{Ciphers, Identity, NetworkSecret, PublicKey};
use shoal_directory::Access;
use shoal_edge::{HostConfig, HostId};
use shoal_ip::{Gate, overlay_address, overlay_prefix};
use shoal_link::{EgressConfig, LivenessConfig};
use shoal_mix::Limits;
use shoal_node::{Control, HandshakeDone, Message, Parcel, Queue, Seeds, Worker};
use shoal_relay::{Counters, HoldConfig, Incoming, LinkConfig};
use shoal_session::Role;
use shoal_transfer::TransferId;
use shoal_wire::{Address, DropReason, Id, LinkId, Time};

use crate::ciphers::{self, mix};
use crate::clock::Clock;
use crate::disk::Disk;
use crate::mixes::{self, List};
use crate::options::{Options, seed_bytes};
use crate::plan::Plan;
use crate::plant::Plant;
use crate::programs::{MTU, Tap};
use crate::reach;
use crate::rings::Bundle;
use crate::shell::{Played, Table};
use crate::wires::{self, Wires};

/// Up to this many nodes, everybody's hosts file names everybody.
const KNOW_ALL_MAX: usize = 64;
/// Workers of a node at most.
const WORKERS_MAX: u8 = 4;
/// Route changes that a node may cause in one call.
const EVENTS_MAX: usize = 1 << 16;

/// What all nodes are made from.
pub(crate) struct Makings {
    pub(crate) options: Options,
    pub(crate) plan: Plan,
    pub(crate) keys: Vec<PublicKey>,
    /// The endpoint that each node has where it stands.
    pub(crate) own: Vec<SocketAddr>,
    /// Hosts that a node knows, where it doesn't know all.
    pub(crate) knows: Vec<Vec<usize>>,
    /// How relays mix, from when on.
    pub(crate) lists: Vec<List>,
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
        let lists = mixes::lists(&options, plan.routers);
        let nats = wires::nats(&options, &plan);
        let own = (0..plan.nodes.len()).map(|node| nats.own(node)).collect();
        Rc::new(Makings { options, plan, keys, own, knows, lists })
    }
}

/// A node of the network.
pub(crate) struct Node<C: Ciphers> {
    pub(crate) control: Control<Played<C>>,
    workers: Vec<Worker<Played<C>>>,
    rings: Rc<RefCell<Bundle<C>>>,
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
    /// Links on which routes flowed when this was looked at last.
    pub(crate) seen_adjacent: Vec<LinkId>,
    pub(crate) seen_control: u64,
    /// When the world will call this node.
    pub(crate) armed: Option<Time>,
    /// Whether cells waited for links at the end of the last step; when it stood still for the last
    /// time, by its own clock.
    pub(crate) was_busy: bool,
    pub(crate) resumed: Time,
    /// Steps at the present instant.
    pub(crate) steps: (Time, u32),
    /// Frames handed to this run, and frames that the wires took before it.
    pub(crate) delivered: u64,
    pub(crate) taken_before: u64,
    pub(crate) drops: BTreeMap<DropReason, u64>,
    /// Cells held and marked in earlier runs.
    pub(crate) cells: [u64; 2],
    /// Drops of this run that `new_drops` told already.
    told_drops: [u64; DropReason::COUNT],
    links: Vec<(LinkId, usize)>,
    far: BTreeMap<usize, LinkId>,
    /// Direct links made since the node's start, and those that came up before that.
    pub(crate) direct_made: usize,
    direct_up_before: u64,
    pub(crate) at: usize,
    /// How often its prefix changed.
    pub(crate) moves: u8,
    pub(crate) makings: Rc<Makings>,
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
    let link_delay = Some(Duration::from_micros(hold_us)).filter(|delay| !delay.is_zero());
    let limits = match options.mix_cells as usize {
        0 => Limits::default(),
        per_link => Limits { per_link, ..Limits::default() },
    };
    HoldConfig { link_delay, limits }
}

/// Whether programs at a node may be reached by another's, by whatever packets.
pub(crate) fn allows(options: &Options, at: usize, other: usize) -> bool {
    !mix(options.seed ^ (at as u64) << 20 ^ (other as u64) << 40).is_multiple_of(4)
}

/// The address of a node's interface.
pub(crate) fn interface(makings: &Makings, at: usize) -> Ipv6Addr {
    let secret = NetworkSecret(seed_bytes(makings.options.seed, "network"));
    overlay_address(&overlay_prefix(&secret), &makings.keys[at])
}

fn config(options: &Options, at: usize, address: Address) -> shoal_node::Config {
    let workers = options.workers.clamp(1, WORKERS_MAX as u32) as u8;
    // As many lanes as let every worker seal on lanes that each of the far end's opens.
    let lanes = workers * workers;
    let liveness =
        LivenessConfig { keepalive: Some(Duration::from_secs(10)), ..LivenessConfig::default() };
    let relay = shoal_relay::Config {
        address,
        session: shoal_session::Config { workers, lanes, ..shoal_session::Config::new(Role::Link) },
        liveness,
        egress: egress(),
        hold: hold(options, address),
        routing: shoal_routing::Config::default(),
        events_max: EVENTS_MAX,
    };
    let ip = options.flows > 0 && !address.is_router();
    let (workers, lanes) = if ip { (workers, lanes) } else { (1, 1) };
    let edge = shoal_edge::Config {
        address,
        session: shoal_session::Config { workers, lanes, ..shoal_session::Config::new(Role::Edge) },
        transfer: transfer(options),
        echo_max: 256,
        direct: reach::direct(options, at, address),
        ip,
        events_max: 1_024,
    };
    shoal_node::Config { relay, edge }
}

/// A node's control, its other workers, and the rings between them.
type Machine<C> = (Control<Played<C>>, Vec<Worker<Played<C>>>, Rc<RefCell<Bundle<C>>>);

fn machine<C: Ciphers>(
    makings: &Makings,
    clock: &Clock,
    at: usize,
    run: u32,
    now: Time,
) -> Machine<C> {
    let (plan, options) = (&makings.plan, &makings.options);
    let (seed, address) = (options.seed, plan.nodes[at]);
    let own = |part: &str| seed_bytes(seed, &format!("{part} {at} run {run}"));
    let unix_ms = clock.wall_ms(options, at, run, now);
    // A host takes part in no routing: it needs nobody's key for it.
    let routers = if address.is_router() { plan.routers } else { 0 };
    let origins = (0..routers).map(|n| (plan.nodes[n].router, makings.keys[n]));
    let config = config(options, at, address);
    let workers = config.relay.session.workers;
    let secret = NetworkSecret(seed_bytes(seed, "network"));
    let seeds = Seeds { relay: own("relay"), edge: own("edge"), circuits: own("circuits") };
    let (me, now) = (identity(seed, at), clock.read(now));
    let (gate, flows) = (Arc::new(Gate::new(vec![interface(makings, at)], MTU)), Table::default());
    let queue = |_| Queue::new(Tap::default(), Arc::clone(&gate), flows.clone());
    let mut queues: Vec<_> = (0..if config.edge.ip { workers } else { 0 }).map(queue).collect();
    let queue = (!queues.is_empty()).then(|| queues.remove(0));
    let mut control = Control::new(config, me, secret, origins, queue, &seeds, now, unix_ms);
    let (rings, ends) = Bundle::new(workers, own("rings"), options.plant);
    let workers = control.split(ends, queues);
    (control, workers, rings)
}

impl<C: Ciphers> Node<C> {
    /// Starts the node for the first time.
    pub(crate) fn new(makings: &Rc<Makings>, at: usize, now: Time) -> Node<C> {
        let clock = Clock::new(&makings.options, at);
        let (control, workers, rings) = machine(makings, &clock, at, 0, now);
        let mut node = Node {
            control,
            workers,
            rings,
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
            direct_made: 0,
            direct_up_before: 0,
            at,
            moves: 0,
            makings: Rc::clone(makings),
        };
        node.configure(now);
        node
    }

    /// The node at the other end of a link that the plan has.
    pub(crate) fn far_end(&self, link: LinkId) -> Option<usize> {
        self.links.iter().find(|(known, _)| *known == link).map(|&(_, far)| far)
    }

    /// Everything but the disk is gone.
    pub(crate) fn crash(&mut self) {
        self.collect_drops();
        self.direct_up_before = self.direct_up();
        self.direct_made = 0;
        self.alive = false;
        self.paused = false;
        self.sending.clear();
        self.receiving.clear();
    }

    /// Starts again.
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
                address: plan.nodes[far],
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
        self.configure_hops(now);
        for &other in &makings.knows[at] {
            let host = HostConfig { key: makings.keys[other], address: plan.nodes[other] };
            self.control.edge.add_host(&host).expect("fewer hosts than the table holds");
        }
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

    /// Says who may be spoken with over the interface, and what they may begin.
    fn configure_interface(&mut self) {
        let makings = Rc::clone(&self.makings);
        let mut gate = Gate::new(vec![interface(&makings, self.at)], MTU);
        let mut rights = BTreeMap::new();
        let all_pass = makings.options.plant == Some(Plant::PacketAllowed);
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

    /// What the clock says, which is the time of all that the node does from now on.
    pub(crate) fn read_clock(&self, now: Time) -> Time {
        let shown = self.clock.read(now);
        ciphers::set_shown(shown);
        shown
    }

    /// The queue of the interface that the packets of a flow go through.
    pub(crate) fn tap(&mut self, flow: u32) -> Option<&mut Tap> {
        let all = 1 + self.workers.len();
        let queue = match (flow as usize % all).checked_sub(1) {
            None => self.control.queue_mut(),
            Some(at) => self.workers[at].queue_mut(),
        };
        queue.map(Queue::device_mut)
    }

    /// What programs were given since the last call.
    pub(crate) fn take_given(&mut self) -> Vec<Vec<u8>> {
        let queues = self.workers.iter_mut().filter_map(Worker::queue_mut);
        let queues = queues.chain(self.control.queue_mut());
        queues.flat_map(|queue| queue.device_mut().take_given()).collect()
    }

    /// Has the workers read what programs wrote, where its way is free.
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

    /// Whether there is something to read, and its way is free.
    fn has_packets(&mut self) -> bool {
        let own = self.control.queue().is_some_and(|queue| queue.device().is_readable());
        let ready = |worker: &mut Worker<Played<C>>| {
            let waits = worker.packets_wait();
            !waits && worker.queue().is_some_and(|queue| queue.device().is_readable())
        };
        own && !self.control.packets_wait() || self.workers.iter_mut().any(ready)
    }

    /// The links, and the nodes at their far ends.
    pub(crate) fn links(&self) -> &[(LinkId, usize)] {
        &self.links
    }

    /// The node at the far end of a link.
    pub(crate) fn neighbour(&self, link: LinkId) -> Option<usize> {
        // Links are numbered in the order in which they were added.
        let entry = self.links.get(link.number()).filter(|(known, _)| *known == link);
        entry.map(|(_, node)| *node)
    }

    /// Whether a cell that isn't for this node would be passed on, coming from that node.
    pub(crate) fn takes_transit_from(&self, far: usize) -> bool {
        let Some(&link) = self.far.get(&far) else { return false };
        self.control.relay.routing().is_none_or(|routing| routing.is_adjacent(link))
    }

    /// Number of another host here.
    pub(crate) fn host(&self, address: Address) -> Option<HostId> {
        self.control.edge.host_at(address)
    }

    /// Whether it can be called now.
    pub(crate) fn runs(&self) -> bool {
        self.alive && !self.paused
    }

    /// Takes in what arrived at one instant. As the kernel does it, all that comes from one place
    /// goes to one worker.
    pub(crate) fn receive(
        &mut self,
        now: Time,
        buf: &mut [u8],
        incoming: &[Incoming],
        wires: &mut Wires,
    ) {
        self.rings.borrow_mut().set_now(now);
        let now = self.read_clock(now);
        let (seed, all) = (self.makings.options.seed, 1 + self.workers.len() as u64);
        if all == 1 {
            return self.control.handle_datagrams(now, wires, buf, incoming);
        }
        let worker = |run: &Incoming| match run.from.remote.ip() {
            IpAddr::V4(ip) => mix(seed ^ u64::from(ip.to_bits()) << 16 ^ self.at as u64) % all,
            // Addresses that hop lead to any worker, by the order of their first use.
            IpAddr::V6(_) => mix(seed ^ wires.hop_number(run.from.local)) % all,
        };
        let by: Vec<u64> = incoming.iter().map(worker).collect();
        for number in 0..all {
            let runs = incoming.iter().zip(&by).filter(|(_, by)| **by == number);
            let mine: Vec<Incoming> = runs.map(|(run, _)| *run).collect();
            match (number as usize).checked_sub(1) {
                _ if mine.is_empty() => {}
                None => self.control.handle_datagrams(now, wires, buf, &mine),
                Some(at) => self.workers[at].handle_datagrams(now, wires, buf, &mine),
            }
        }
    }

    /// Does what time asks for, and takes in what workers handed over.
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

    /// Takes in handshake work that was done elsewhere.
    pub(crate) fn handle_done(&mut self, now: Time, done: HandshakeDone, wires: &mut Wires) {
        self.rings.borrow_mut().set_now(now);
        let now = self.read_clock(now);
        self.control.handle_done(now, wires, done);
    }

    /// Sends what the edge has to send, and what workers have for each other.
    pub(crate) fn drive(&mut self, now: Time, wires: &mut Wires) {
        self.rings.borrow_mut().set_now(now);
        let now = self.read_clock(now);
        self.control.drive(now, wires);
        self.control.give_orders();
        for worker in &mut self.workers {
            worker.drive(now, || ());
        }
    }

    /// When this node wants to be called, by the network's time, and why.
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

    /// What all workers counted, wherever it is.
    pub(crate) fn counters(&self) -> Counters {
        let mut all = self.control.relay.counters().clone();
        self.workers.iter().for_each(|worker| all.add(worker.counters()));
        for (_, message) in self.rings.borrow().waiting() {
            if let Message::Report(_, told) = message {
                all.add(&told.counters);
            }
        }
        all
    }

    /// Whether cells wait for one of its links.
    pub(crate) fn is_busy(&self) -> bool {
        self.control.relay.links().any(|link| link.waiting > 0)
    }

    /// Cells that its holds keep back.
    pub(crate) fn holding(&self) -> u64 {
        let relay = &self.control.relay;
        let own: usize = relay.links().map(|link| relay.held(link.link)).sum();
        (own + self.workers.iter().map(Worker::held).sum::<usize>()) as u64
    }

    /// Frames that came in and are on their way to the worker that takes them.
    pub(crate) fn coming(&self) -> u64 {
        self.between_workers(Parcel::coming)
    }

    /// Frames that one worker could not send, on their way to the first one.
    pub(crate) fn going(&self) -> u64 {
        self.between_workers(|parcel, _| parcel.going())
    }

    fn between_workers(&self, frames: impl Fn(&Parcel, u8) -> u64) -> u64 {
        let rings = self.rings.borrow();
        let parcels = rings.waiting().filter_map(|(to, message)| match message {
            Message::Parcel(parcel) => Some(frames(parcel, to)),
            _ => None,
        });
        parcels.sum()
    }

    /// Workers that took in all orders and still differ from what control knows.
    pub(crate) fn misled(&self) -> Vec<u8> {
        let rings = self.rings.borrow();
        let told = |worker: &&Worker<_>| rings.waiting().all(|(to, _)| to != worker.number());
        let told = self.workers.iter().filter(told);
        let misled = told.filter(|worker| !self.control.is_known_to(worker));
        misled.map(Worker::number).collect()
    }

    /// Plants a fault: a worker is given an old view again.
    pub(crate) fn tell_old_view(&mut self) {
        self.rings.borrow_mut().tell_old_view();
    }

    /// How many direct links came up, over all starts.
    pub(crate) fn direct_up(&self) -> u64 {
        let stats = self.control.edge.direct_stats().filter(|_| self.alive);
        self.direct_up_before + stats.map_or(0, |stats| stats.up)
    }

    /// Drops since the last call.
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

    /// Adds what this run has counted to what earlier runs have.
    pub(crate) fn collect_drops(&mut self) {
        let counters = self.counters();
        self.cells[0] += counters.traffic.cells_held;
        self.cells[1] += counters.traffic.cells_marked;
        for (reason, n) in counters.drops().filter(|(_, n)| *n > 0) {
            *self.drops.entry(reason).or_default() += n;
        }
    }
}
