//! The event loop of the simulator, with the check of all rules.
//!
//! Nodes, batches of frames, disks and faults are entries in one heap of events. A node has one
//! valid entry, at the time that it asked for. An entry that was superseded by an earlier one is
//! skipped.

mod calls;
mod checks;
mod circuits;
mod cover;
mod faults;
mod mixes;
mod packets;
pub(crate) mod secrets;
mod shifts;
mod transfers;

use core::time::Duration;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::rc::Rc;

use shoal_crypto::{Ciphers, Rng};
use shoal_edge::HostId;
use shoal_node::{HandshakeDone, NodeEvent};
use shoal_wire::{DropReason, Time};

use crate::check::Violation;
use crate::check::files::WatchedFile;
use crate::check::order::{self, OrderChecker};
use crate::check::streams::FlowOrders;
use crate::ciphers;
use crate::disk::DiskWork;
use crate::node::{NetworkInputs, SimulatedNode};
use crate::options::{SimulationOptions, seed_bytes};
use crate::outcome::{FileOutcome, LogEntry, SimulationOutcome};
use crate::plan::{PlannedFault, START};
use crate::plant::InjectedFault;
use crate::programs;
use crate::secrets::NodeRotation;
use crate::wires::Wires;

/// Duration of handshake work in its thread.
const JOB_TIME: Duration = Duration::from_micros(300);
/// Number of steps of a node at one instant above which its machine counts as never satisfied.
const STEPS_AT_ONCE_MAX: u32 = 20_000;
/// Interval of the checks of tables, queues and accounts.
const AUDIT_EVERY: Duration = Duration::from_millis(250);
/// Interval of these checks in runs that are longer than [`AUDIT_OFTEN`].
const AUDIT_SELDOM: Duration = Duration::from_secs(1);
const AUDIT_OFTEN: Duration = Duration::from_secs(3_600);
/// Time before the end from which each pair of hosts is tested.
const PINGS_BEFORE_END: Duration = Duration::from_secs(15);
/// Time before the end from which one host calls others, which do nothing but answer: an idle host
/// must stay reachable.
const FIRST_PINGS_BEFORE_END: Duration = Duration::from_secs(30);
/// Time before the end at which a planted fault strikes, unless it is one of the wires.
const PLANT_BEFORE_END: Duration = Duration::from_secs(5);

enum WorldEvent {
    /// A node asked to be called.
    Wake(usize),
    Arrive(u32),
    Fault(u32),
    /// End of the faults: all of them are repaired.
    Calm,
    /// Regular calls between hosts.
    Pulse,
    /// One host calls another until there is an answer.
    Call,
    /// An attacker sends a frame to a shifting address.
    Forge,
    /// Checks if files are due.
    Files,
    Pings,
    /// Lists and secrets of the network pass between nodes.
    Secrets,
    /// A node may have a newer list of mixes.
    List(usize),
    Programs,
    Audit,
    JobDone(usize, u32, Box<HandshakeDone>),
    DiskDone(usize, u32, Box<DiskWork>),
}

struct ScheduledEvent {
    at: Time,
    order: u64,
    what: WorldEvent,
}

impl PartialEq for ScheduledEvent {
    fn eq(&self, other: &ScheduledEvent) -> bool {
        (self.at, self.order) == (other.at, other.order)
    }
}

impl Eq for ScheduledEvent {}

impl PartialOrd for ScheduledEvent {
    fn partial_cmp(&self, other: &ScheduledEvent) -> Option<core::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for ScheduledEvent {
    /// Reverse order, so that the heap returns the earliest event.
    fn cmp(&self, other: &ScheduledEvent) -> core::cmp::Ordering {
        (other.at, other.order).cmp(&(self.at, self.order))
    }
}

pub(crate) struct SimulatedWorld<C: Ciphers> {
    now: Time,
    makings: Rc<NetworkInputs>,
    faults: Vec<PlannedFault>,
    nodes: Vec<SimulatedNode<C>>,
    wires: Wires,
    files: Vec<WatchedFile>,
    /// Flows of packets between programs.
    flows: Vec<programs::WatchedFlow>,
    programs_rng: Rng,
    /// Order of packets from circuits with mixes. `excused` holds for each node the time by its
    /// clock until which the order may differ, and the counters on which that depends.
    streams: FlowOrders,
    excused: Vec<(Time, [u64; 3])>,
    /// Number of packets and super-frames that programs were given.
    given: u64,
    events: BinaryHeap<ScheduledEvent>,
    order: u64,
    violations: Vec<Violation>,
    log: VecDeque<LogEntry>,
    delivered: u64,
    /// Frames that arrived at a node that was down or paused.
    missed: u64,
    route_changes: u64,
    links_down: u64,
    converged: Option<Time>,
    idle_checked: bool,
    /// Pairs of hosts to be tested, ordered by the first host.
    pairs: Vec<(usize, usize)>,
    /// For each call, caller and called host, true if it was answered.
    pings: BTreeMap<(usize, HostId), bool>,
    pulses: shifts::RegularCalls,
    /// The single call that is measured.
    call: Option<calls::MeasuredCall>,
    /// State of each node for a change of the network's secret.
    turns: Vec<NodeRotation>,
    steps: u64,
}

/// Pairs of hosts that are tested at the end: all, or as many as the options allow.
fn pairs(options: &SimulationOptions) -> Vec<(usize, usize)> {
    // The last host is removed if the secret changes.
    let hosts = options.hosts as usize - usize::from(options.rotation);
    let routers = options.routers.max(1) as usize;
    let most = (options.pings_max as usize).max(1);
    // If one call is measured, nothing else may make its session.
    if hosts < 2 || options.call_ms > 0 {
        return Vec::new();
    }
    let all = hosts * (hosts - 1);
    // An odd stride visits pairs of all kinds.
    let stride = if all <= most { 1 } else { (all / most) | 1 };
    let pair = |number: usize| {
        let (from, to) = (number / (hosts - 1), number % (hosts - 1));
        (routers + from, routers + to + usize::from(to >= from))
    };
    (0..all).step_by(stride).take(most).map(pair).collect()
}

impl<C: Ciphers> SimulatedWorld<C> {
    pub(crate) fn new(options: SimulationOptions) -> SimulatedWorld<C> {
        // Watching the order costs too much in big networks and in speed measurements. With several
        // workers and flows, a parcel may still be in a ring when a later packet may already leave.
        // Packets of a flow may then overtake each other.
        let ordered = !options.cheap_ciphers && (options.workers == 1 || options.flows == 0);
        let order = ordered.then(|| OrderChecker::new(options.cover > 0));
        ciphers::begin(order, options.plant.and_then(InjectedFault::flaw));
        let pairs = pairs(&options);
        let makings = NetworkInputs::new(options, &pairs);
        let (options, plan) = (&makings.options, &makings.plan);
        let mut world = SimulatedWorld {
            now: START,
            wires: Wires::new(&makings),
            files: plan.files.iter().cloned().map(WatchedFile::new).collect(),
            flows: packets::flows(&makings),
            streams: mixes::streams(&makings),
            excused: vec![(Time::ZERO, [0; 3]); plan.nodes.len()],
            programs_rng: Rng::new(seed_bytes(options.seed, "writes")),
            given: 0,
            faults: plan.faults.iter().map(|(_, fault)| fault.clone()).collect(),
            nodes: (0..plan.nodes.len())
                .map(|at| SimulatedNode::new(&makings, at, START))
                .collect(),
            makings: Rc::clone(&makings),
            events: BinaryHeap::new(),
            order: 0,
            violations: Vec::new(),
            log: VecDeque::new(),
            delivered: 0,
            missed: 0,
            route_changes: 0,
            links_down: 0,
            converged: None,
            idle_checked: false,
            pairs,
            pings: BTreeMap::new(),
            pulses: shifts::RegularCalls::new(&makings, START),
            call: calls::MeasuredCall::new(&makings),
            turns: Vec::new(),
            steps: 0,
        };
        for (a, b) in crate::circuits::hidden_pairs(&makings) {
            ciphers::hide(a, b);
        }
        crate::circuits::watch(&makings);
        for (number, (at, _)) in plan.faults.iter().enumerate() {
            world.push(*at, WorldEvent::Fault(number as u32));
        }
        world.push(plan.calm_from, WorldEvent::Calm);
        world.push(START + AUDIT_EVERY, WorldEvent::Audit);
        for file in &plan.files {
            world.push(file.at, WorldEvent::Files);
        }
        world.push(plan.end - FIRST_PINGS_BEFORE_END, WorldEvent::Pings);
        world.begin_programs();
        world.begin_lists();
        world.begin_shifts();
        world.begin_call();
        world.begin_secrets();
        world
    }

    fn push(&mut self, at: Time, what: WorldEvent) {
        self.order += 1;
        self.events.push(ScheduledEvent { at, order: self.order, what });
    }

    fn plants(&self, plant: InjectedFault) -> bool {
        self.makings.options.plant == Some(plant)
            && self.now + PLANT_BEFORE_END >= self.makings.plan.end
    }

    fn logs(&self) -> bool {
        self.makings.options.log_len > 0
    }

    /// Adds an event of a node or of the network to the trace and to the log.
    fn note(&mut self, node: Option<usize>, text: &str) {
        self.wires.trace.add(self.now.0);
        self.wires.trace.add(node.map_or(u64::MAX, |n| n as u64));
        self.wires.trace.add_text(text);
        self.remember(node, text);
    }

    fn remember(&mut self, node: Option<usize>, text: &str) {
        if !self.logs() {
            return;
        }
        if self.log.len() >= self.makings.options.log_len {
            self.log.pop_front();
        }
        self.log.push_back(LogEntry { at_ns: self.now.0, node, text: text.to_string() });
    }

    fn broken(&mut self, rule: &'static str, seen: String) {
        self.violations.push(Violation { rule, at_ns: self.now.0, seen });
    }

    fn hold(&mut self, rule: &'static str, result: Result<(), String>) {
        if let Err(seen) = result {
            self.broken(rule, seen);
        }
    }

    /// Runs to the end of the plan, to the first broken rule, or until the measured call is over.
    pub(crate) fn run(mut self) -> SimulationOutcome {
        for at in 0..self.nodes.len() {
            self.finish_step(at);
        }
        while self.violations.is_empty() && !self.call_is_over() && self.step() {}
        if self.violations.is_empty() && !self.call_is_over() {
            self.check_end();
        }
        self.outcome()
    }

    /// Handles the next event. Returns false after the end of the plan.
    fn step(&mut self) -> bool {
        let Some(entry) = self.events.pop().filter(|e| e.at <= self.makings.plan.end) else {
            return false;
        };
        self.now = self.now.max(entry.at);
        match entry.what {
            WorldEvent::Wake(n) => self.wake(n, entry.at),
            WorldEvent::Arrive(batch) => self.arrive(batch),
            WorldEvent::Fault(number) => self.fault(self.faults[number as usize].clone()),
            WorldEvent::Calm => self.calm_down(),
            WorldEvent::Files => self.send_files(),
            WorldEvent::Pulse => self.pulse(),
            WorldEvent::Call => self.call_again(),
            WorldEvent::Forge => self.forge(),
            WorldEvent::Pings => self.ping_everybody(),
            WorldEvent::List(n) => self.take_list(n),
            WorldEvent::Secrets => self.pass_secrets(),
            WorldEvent::Programs => self.write_packets(),
            WorldEvent::Audit => {
                self.audit();
                let long = self.makings.options.trouble() > AUDIT_OFTEN;
                let every = if long { AUDIT_SELDOM } else { AUDIT_EVERY };
                self.push(self.now + every, WorldEvent::Audit);
            }
            WorldEvent::JobDone(n, run, done) => self.job_done(n, run, done),
            WorldEvent::DiskDone(n, run, work) => self.disk_done(n, run, *work),
        }
        true
    }

    fn wake(&mut self, n: usize, at: Time) {
        if self.nodes[n].armed != Some(at) {
            return;
        }
        self.nodes[n].armed = None;
        if self.nodes[n].poll_timeout().is_some_and(|(due, _)| due <= self.now) {
            self.wires.sender(self.now, n);
            self.nodes[n].handle_timeout(self.now, &mut self.wires);
            return self.finish_step(n);
        }
        self.arm(n);
    }

    /// Delivers a batch of frames.
    fn arrive(&mut self, number: u32) {
        let mut batch = self.wires.take_batch(number);
        let (n, run) = (batch.to, self.nodes[batch.to].run);
        self.wires.admit(self.now, &mut batch);
        if self.nodes[n].runs() && batch.replayed_in.is_none_or(|seen| seen == run) {
            self.wires.overhear(self.now, &batch, run);
            self.delivered += batch.frames();
            self.nodes[n].delivered += batch.frames();
            if self.plants(InjectedFault::Vanish) {
                batch.incoming.pop();
            }
            self.wires.sender(self.now, n);
            self.receive(&mut batch);
            self.finish_step(n);
        } else {
            self.missed += batch.frames();
        }
        self.wires.recycle(number, batch);
    }

    fn job_done(&mut self, n: usize, run: u32, done: Box<HandshakeDone>) {
        if self.waits(n, run) {
            return self.push(self.now + JOB_TIME, WorldEvent::JobDone(n, run, done));
        }
        if self.is_run(n, run) {
            self.wires.sender(self.now, n);
            self.nodes[n].handle_done(self.now, *done, &mut self.wires);
            self.finish_step(n);
        }
    }

    fn is_run(&self, n: usize, run: u32) -> bool {
        self.nodes[n].runs() && self.nodes[n].run == run
    }

    /// True if work for a node must wait because the node is paused.
    fn waits(&self, n: usize, run: u32) -> bool {
        self.nodes[n].paused && self.nodes[n].run == run
    }

    /// Completes a call of a node as a shell does: jobs, events, output. Then runs the checks.
    fn finish_step(&mut self, n: usize) {
        self.steps += 1;
        self.wires.sender(self.now, n);
        let (now, run) = (self.now, self.nodes[n].run);
        let done_at = now + JOB_TIME;
        while let Some(job) = self.nodes[n].control.poll_job() {
            self.push(done_at, WorldEvent::JobDone(n, run, Box::new(job.run())));
        }
        let shown = self.nodes[n].read_clock(now);
        loop {
            let known = self.nodes[n].control.direct_links();
            match self.nodes[n].control.poll_event(shown) {
                Some(NodeEvent::Relay(event)) => self.handle_relay(n, &event),
                Some(NodeEvent::Edge(event)) => self.handle_edge(n, event),
                Some(NodeEvent::Direct(event, _)) => self.handle_direct(n, event, known),
                Some(NodeEvent::Circuit(event)) => self.handle_circuit(n, &event),
                None => break,
            }
        }
        self.nodes[n].drive(now, &mut self.wires);
        self.note_opened(n);
        self.take_packets(n);
        self.check_adjacent(n);
        let result = self.nodes[n].check_bans(shown);
        self.hold("a host that may have no direct links ends them", result);
        self.schedule();
        if let Some(broken) = self.wires.broken.take() {
            self.violations.push(broken);
        }
        if let Some(reuse) = ciphers::reuse() {
            let seen = format!("node {n}: {reuse:?}");
            self.broken("a counter seals once under a key", seen);
        }
        if let Some(seen) = ciphers::passed() {
            self.broken(order::RULE, seen);
        }
        self.check_views();
        self.check_spoilt(n);
        self.check_mixes(n);
        self.check_cover(n);
        if self.logs() {
            self.log_drops(n);
        }
        self.count_step(n);
        self.arm(n);
    }

    /// Schedules the new batches.
    fn schedule(&mut self) {
        while let Some(number) = self.wires.fresh.pop() {
            let at = self.wires.batches[number as usize].at.max(self.now);
            self.push(at, WorldEvent::Arrive(number));
        }
    }

    /// Schedules the node's next call.
    fn arm(&mut self, n: usize) {
        let node = &mut self.nodes[n];
        let Some((due, _)) = node.poll_timeout() else { return };
        let due = due.max(self.now);
        if node.armed.is_none_or(|armed| due < armed) {
            node.armed = Some(due);
            self.push(due, WorldEvent::Wake(n));
        }
    }

    fn count_step(&mut self, n: usize) {
        let node = &mut self.nodes[n];
        let same = node.steps.0 == self.now;
        node.steps = (self.now, if same { node.steps.1 + 1 } else { 1 });
        let many = node.steps.1 > STEPS_AT_ONCE_MAX || self.plants(InjectedFault::Busy);
        if many {
            let why = format!("node {n}: {:?}", self.nodes[n].poll_timeout());
            self.broken("a machine that was called has nothing due", why);
        }
    }

    /// Adds new drops to the log but not to the trace: whether noise looks like an index depends on
    /// bytes that don't replay.
    fn log_drops(&mut self, n: usize) {
        for (reason, count) in self.nodes[n].new_drops() {
            if reason != DropReason::Replayed {
                self.remember(Some(n), &format!("dropped {count} as {}", reason.label()));
            }
        }
    }

    fn outcome(mut self) -> SimulationOutcome {
        let mut drops = BTreeMap::new();
        for node in &mut self.nodes {
            if node.alive {
                node.collect_drops();
            }
            for (reason, n) in &node.drops {
                *drops.entry(reason.label()).or_default() += n;
            }
        }
        let plan = &self.makings.plan;
        let name = |n: usize| plan.nodes[n].to_string();
        let file = |watch: &WatchedFile| {
            let began = watch.began.unwrap_or(self.now);
            FileOutcome {
                from: name(watch.plan.from),
                to: name(watch.plan.to),
                size: watch.plan.content.len() as u64,
                attempts: watch.attempts,
                finished: watch.stage == crate::check::files::FileStage::Finished,
                failure: watch.failure.clone(),
                took_ms: watch.ended.unwrap_or(self.now).since(began).as_millis() as u64,
            }
        };
        let wire = |&(a, b): &(usize, usize)| format!("{a} ({}) -- {b} ({})", name(a), name(b));
        let (keys, seals) = ciphers::used();
        SimulationOutcome {
            seed: self.makings.options.seed,
            trace: self.wires.trace.hex(),
            virtual_time: self.now.since(START),
            frames_sent: self.wires.sent,
            frames_lost: self.wires.lost,
            frames_refused: self.wires.nats.refused.values().sum(),
            frames_delivered: self.delivered,
            cells_held: self.nodes.iter().map(|node| node.cells[0]).sum(),
            cells_marked: self.nodes.iter().map(|node| node.cells[1]).sum(),
            links_down: self.links_down,
            down: self.pulses.down(),
            addresses: self.wires.shifts.as_ref().map_or(0, |shifts| shifts.addresses.count()),
            cells_mixed: ciphers::with_mixes(|mixes| mixes.left).unwrap_or(0),
            mixed: ciphers::with_mixes(|mixes| mixes.mixed()).unwrap_or_default(),
            cells_spoilt: ciphers::with_spoilt(|spoilt| spoilt.arrived).unwrap_or(0),
            steps: self.steps,
            keys: keys as u64,
            seals,
            route_changes: self.route_changes,
            converged_ms: self.converged.map(|at| at.since(START).as_millis() as u64),
            pings: self.pings.len() as u64,
            pongs: self.pings.values().filter(|answered| **answered).count() as u64,
            packets_sent: self.flows.iter().map(|watch| u64::from(watch.next())).sum(),
            packets_there: self.flows.iter().map(programs::WatchedFlow::there).sum(),
            packets_overtaken: self.flows.iter().map(|watch| watch.overtaken).sum(),
            direct_links: self.nodes.iter().map(SimulatedNode::direct_up).sum(),
            relayed: self.nodes.iter().flat_map(SimulatedNode::relayed).collect(),
            called: self.called(),
            files: self.files.iter().map(file).collect(),
            faults: plan.faults.iter().map(|(at, fault)| format!("{at} {fault:?}")).collect(),
            faults_drawn: plan.faults_drawn,
            drops,
            log: self.log.into(),
            packets: self.wires.packets.iter().copied().collect(),
            nodes: plan.nodes.iter().map(ToString::to_string).collect(),
            topology: plan.wires.iter().map(wire).collect(),
            violations: self.violations,
        }
    }
}
