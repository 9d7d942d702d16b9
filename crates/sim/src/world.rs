//! The loop: what happens next, at whom, and whether all rules still hold.
//!
//! Nodes, batches of frames, disks and faults stand in one heap of events. A node is in it once,
//! for the time it asked for; an entry that was overtaken by an earlier one is passed over when it
//! comes up.

mod calls;
mod checks;
mod circuits;
mod cover;
mod faults;
mod hops;
mod mixes;
mod packets;
pub(crate) mod secrets;
mod transfers;

use core::time::Duration;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::rc::Rc;

use shoal_crypto::{Ciphers, Rng};
use shoal_edge::HostId;
use shoal_node::{Event, HandshakeDone};
use shoal_wire::{DropReason, Time};

use crate::check::Violation;
use crate::check::files::Watch;
use crate::check::order::{self, Order};
use crate::check::streams::Streams;
use crate::ciphers;
use crate::disk::Work;
use crate::node::{Makings, Node};
use crate::options::{Options, seed_bytes};
use crate::outcome::{FileOutcome, Outcome, Step};
use crate::plan::{Fault, START};
use crate::plant::Plant;
use crate::programs;
use crate::secrets::Turn;
use crate::wires::Wires;

/// How long the handshake thread takes.
const JOB_TIME: Duration = Duration::from_micros(300);
/// Steps of one node at one instant that are no longer work but a machine that is never satisfied.
const STEPS_AT_ONCE_MAX: u32 = 20_000;
/// How often tables, queues and accounts are looked at.
const AUDIT_EVERY: Duration = Duration::from_millis(250);
/// The same in runs that are longer than ...
const AUDIT_SELDOM: Duration = Duration::from_secs(1);
/// ... this.
const AUDIT_OFTEN: Duration = Duration::from_secs(3_600);
/// When, before the end, every pair of hosts is tried.
const PINGS_BEFORE_END: Duration = Duration::from_secs(15);
/// When, before that, one host begins to call others, which do nothing but answer: a host that is
/// idle must stay reachable.
const FIRST_PINGS_BEFORE_END: Duration = Duration::from_secs(30);
/// When a planted fault that isn't one of the wires strikes, before the end.
const PLANT_BEFORE_END: Duration = Duration::from_secs(5);

enum What {
    /// A node asked to be called now.
    Wake(usize),
    /// A batch of frames arrives.
    Arrive(u32),
    Fault(u32),
    /// The trouble is over: all is mended.
    Calm,
    /// Hosts call each other, as they do all the time.
    Pulse,
    /// One host calls another until it is answered.
    Call,
    /// An attacker sends something to an address that hops.
    Forge,
    /// Look whether files are due.
    Files,
    Pings,
    /// Nodes look at lists and secrets of the network.
    Secrets,
    /// A node may have a newer list.
    List(usize),
    /// Programs write packets.
    Programs,
    Audit,
    JobDone(usize, u32, Box<HandshakeDone>),
    DiskDone(usize, u32, Box<Work>),
}

struct Entry {
    at: Time,
    order: u64,
    what: What,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Entry) -> bool {
        (self.at, self.order) == (other.at, other.order)
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Entry) -> Option<core::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    /// The earliest is the greatest, as the heap wants it.
    fn cmp(&self, other: &Entry) -> core::cmp::Ordering {
        (other.at, other.order).cmp(&(self.at, self.order))
    }
}

/// A running network.
pub(crate) struct World<C: Ciphers> {
    now: Time,
    makings: Rc<Makings>,
    faults: Vec<Fault>,
    nodes: Vec<Node<C>>,
    wires: Wires,
    files: Vec<Watch>,
    /// What programs send.
    flows: Vec<programs::Watch>,
    programs_rng: Rng,
    /// The order of what came over circuits with mixes, and by node, by its clock, until when it
    /// may be another; and what that depends on.
    streams: Streams,
    excused: Vec<(Time, [u64; 3])>,
    /// Packets and super-frames that programs were given.
    given: u64,
    events: BinaryHeap<Entry>,
    order: u64,
    violations: Vec<Violation>,
    log: VecDeque<Step>,
    delivered: u64,
    /// Frames that arrived where nobody was, or nobody woke.
    missed: u64,
    route_changes: u64,
    links_down: u64,
    converged: Option<Time>,
    idle_checked: bool,
    /// Pairs of hosts to be tried, in the order of the first.
    pairs: Vec<(usize, usize)>,
    /// Who called whom, and whether it was answered.
    pings: BTreeMap<(usize, HostId), bool>,
    pulses: hops::Pulses,
    /// The one call that is watched.
    call: Option<calls::Call>,
    /// By node, where the network's secret changes.
    turns: Vec<Turn>,
    steps: u64,
}

/// Pairs of hosts that are tried at the end: all, or as many as the options allow.
fn pairs(options: &Options) -> Vec<(usize, usize)> {
    // The last host is removed where the secret changes.
    let hosts = options.hosts as usize - usize::from(options.rotation);
    let routers = options.routers.max(1) as usize;
    let most = (options.pings_max as usize).max(1);
    // Where one call is watched, nothing else is to make its session.
    if hosts < 2 || options.call_ms > 0 {
        return Vec::new();
    }
    let all = hosts * (hosts - 1);
    // A stride that is prime to their number visits pairs of all kinds.
    let stride = if all <= most { 1 } else { (all / most) | 1 };
    let pair = |number: usize| {
        let (from, to) = (number / (hosts - 1), number % (hosts - 1));
        (routers + from, routers + to + usize::from(to >= from))
    };
    (0..all).step_by(stride).take(most).map(pair).collect()
}

impl<C: Ciphers> World<C> {
    pub(crate) fn new(options: Options) -> World<C> {
        // In big networks and where speed is measured the watch costs too much.
        // With several workers what one of them handed over may lie in a ring while the way opens
        // for the next: packets of a flow may then pass each other within a parcel.
        let ordered = !options.cheap_ciphers && (options.workers == 1 || options.flows == 0);
        let order = ordered.then(|| Order::new(options.cover > 0));
        ciphers::begin(order, options.plant.and_then(Plant::flaw));
        let pairs = pairs(&options);
        let makings = Makings::new(options, &pairs);
        let (options, plan) = (&makings.options, &makings.plan);
        let mut world = World {
            now: START,
            wires: Wires::new(&makings),
            files: plan.files.iter().cloned().map(Watch::new).collect(),
            flows: packets::flows(&makings),
            streams: mixes::streams(&makings),
            excused: vec![(Time::ZERO, [0; 3]); plan.nodes.len()],
            programs_rng: Rng::new(seed_bytes(options.seed, "writes")),
            given: 0,
            faults: plan.faults.iter().map(|(_, fault)| fault.clone()).collect(),
            nodes: (0..plan.nodes.len()).map(|at| Node::new(&makings, at, START)).collect(),
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
            pulses: hops::Pulses::new(&makings, START),
            call: calls::Call::new(&makings),
            turns: Vec::new(),
            steps: 0,
        };
        for (a, b) in crate::circuits::hidden_pairs(&makings) {
            ciphers::hide(a, b);
        }
        crate::circuits::watch(&makings);
        for (number, (at, _)) in plan.faults.iter().enumerate() {
            world.push(*at, What::Fault(number as u32));
        }
        world.push(plan.calm_from, What::Calm);
        world.push(START + AUDIT_EVERY, What::Audit);
        for file in &plan.files {
            world.push(file.at, What::Files);
        }
        world.push(plan.end - FIRST_PINGS_BEFORE_END, What::Pings);
        world.begin_programs();
        world.begin_lists();
        world.begin_hops();
        world.begin_call();
        world.begin_secrets();
        world
    }

    fn push(&mut self, at: Time, what: What) {
        self.order += 1;
        self.events.push(Entry { at, order: self.order, what });
    }

    fn plants(&self, plant: Plant) -> bool {
        self.makings.options.plant == Some(plant)
            && self.now + PLANT_BEFORE_END >= self.makings.plan.end
    }

    fn logs(&self) -> bool {
        self.makings.options.log_len > 0
    }

    /// Notes what happened, at a node or to the network, in the trace and for the report.
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
        self.log.push_back(Step { at_ns: self.now.0, node, text: text.to_string() });
    }

    fn broken(&mut self, rule: &'static str, seen: String) {
        self.violations.push(Violation { rule, at_ns: self.now.0, seen });
    }

    fn hold(&mut self, rule: &'static str, result: Result<(), String>) {
        if let Err(seen) = result {
            self.broken(rule, seen);
        }
    }

    /// Runs to the end of the plan, or to the first broken rule, or until a call has shown what it
    /// is to show.
    pub(crate) fn run(mut self) -> Outcome {
        for at in 0..self.nodes.len() {
            self.finish_step(at);
        }
        while self.violations.is_empty() && !self.call_is_over() && self.step() {}
        if self.violations.is_empty() && !self.call_is_over() {
            self.check_end();
        }
        self.outcome()
    }

    /// Does the next thing; false when the plan is over.
    fn step(&mut self) -> bool {
        let Some(entry) = self.events.pop().filter(|e| e.at <= self.makings.plan.end) else {
            return false;
        };
        self.now = self.now.max(entry.at);
        match entry.what {
            What::Wake(n) => self.wake(n, entry.at),
            What::Arrive(batch) => self.arrive(batch),
            What::Fault(number) => self.fault(self.faults[number as usize].clone()),
            What::Calm => self.calm_down(),
            What::Files => self.send_files(),
            What::Pulse => self.pulse(),
            What::Call => self.call_again(),
            What::Forge => self.forge(),
            What::Pings => self.ping_everybody(),
            What::List(n) => self.take_list(n),
            What::Secrets => self.pass_secrets(),
            What::Programs => self.write_packets(),
            What::Audit => {
                self.audit();
                let long = self.makings.options.trouble() > AUDIT_OFTEN;
                let every = if long { AUDIT_SELDOM } else { AUDIT_EVERY };
                self.push(self.now + every, What::Audit);
            }
            What::JobDone(n, run, done) => self.job_done(n, run, done),
            What::DiskDone(n, run, work) => self.disk_done(n, run, *work),
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

    /// Delivers frames that arrive now.
    fn arrive(&mut self, number: u32) {
        let mut batch = self.wires.take_batch(number);
        let (n, run) = (batch.to, self.nodes[batch.to].run);
        self.wires.admit(self.now, &mut batch);
        if self.nodes[n].runs() && batch.replayed_in.is_none_or(|seen| seen == run) {
            self.wires.overhear(self.now, &batch, run);
            self.delivered += batch.frames();
            self.nodes[n].delivered += batch.frames();
            if self.plants(Plant::Vanish) {
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
            return self.push(self.now + JOB_TIME, What::JobDone(n, run, done));
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

    /// Frames for a node that stands still wait until it goes on.
    fn waits(&self, n: usize, run: u32) -> bool {
        self.nodes[n].paused && self.nodes[n].run == run
    }

    /// What a shell does after every call: jobs, events, output; then the checks.
    fn finish_step(&mut self, n: usize) {
        self.steps += 1;
        self.wires.sender(self.now, n);
        let (now, run) = (self.now, self.nodes[n].run);
        let done_at = now + JOB_TIME;
        while let Some(job) = self.nodes[n].control.poll_job() {
            self.push(done_at, What::JobDone(n, run, Box::new(job.run())));
        }
        let shown = self.nodes[n].read_clock(now);
        loop {
            let known = self.nodes[n].control.direct_links();
            match self.nodes[n].control.poll_event(shown) {
                Some(Event::Relay(event)) => self.handle_relay(n, &event),
                Some(Event::Edge(event)) => self.handle_edge(n, event),
                Some(Event::Direct(event, _)) => self.handle_direct(n, event, known),
                Some(Event::Circuit(event)) => self.handle_circuit(n, &event),
                None => break,
            }
        }
        self.nodes[n].drive(now, &mut self.wires);
        self.note_opened(n);
        self.take_packets(n);
        self.check_adjacent(n);
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

    /// Schedules the batches that were begun.
    fn schedule(&mut self) {
        while let Some(number) = self.wires.fresh.pop() {
            let at = self.wires.batches[number as usize].at.max(self.now);
            self.push(at, What::Arrive(number));
        }
    }

    /// Sees to it that the node is called when it wants to be.
    fn arm(&mut self, n: usize) {
        let node = &mut self.nodes[n];
        let Some((due, _)) = node.poll_timeout() else { return };
        let due = due.max(self.now);
        if node.armed.is_none_or(|armed| due < armed) {
            node.armed = Some(due);
            self.push(due, What::Wake(n));
        }
    }

    fn count_step(&mut self, n: usize) {
        let node = &mut self.nodes[n];
        let same = node.steps.0 == self.now;
        node.steps = (self.now, if same { node.steps.1 + 1 } else { 1 });
        let many = node.steps.1 > STEPS_AT_ONCE_MAX || self.plants(Plant::Busy);
        if many {
            let why = format!("node {n}: {:?}", self.nodes[n].poll_timeout());
            self.broken("a machine that was called has nothing due", why);
        }
    }

    /// Puts new drops into the log, not into the trace: whether noise looks like an index depends
    /// on bytes that don't replay.
    fn log_drops(&mut self, n: usize) {
        for (reason, count) in self.nodes[n].new_drops() {
            if reason != DropReason::Replayed {
                self.remember(Some(n), &format!("dropped {count} as {}", reason.label()));
            }
        }
    }

    fn outcome(mut self) -> Outcome {
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
        let file = |watch: &Watch| {
            let began = watch.began.unwrap_or(self.now);
            FileOutcome {
                from: name(watch.plan.from),
                to: name(watch.plan.to),
                size: watch.plan.content.len() as u64,
                attempts: watch.attempts,
                finished: watch.stage == crate::check::files::Stage::Finished,
                failure: watch.failure.clone(),
                took_ms: watch.ended.unwrap_or(self.now).since(began).as_millis() as u64,
            }
        };
        let wire = |&(a, b): &(usize, usize)| format!("{a} ({}) -- {b} ({})", name(a), name(b));
        let (keys, seals) = ciphers::used();
        Outcome {
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
            addresses: self.wires.hops.as_ref().map_or(0, |hops| hops.addresses.count()),
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
            packets_there: self.flows.iter().map(programs::Watch::there).sum(),
            packets_overtaken: self.flows.iter().map(|watch| watch.overtaken).sum(),
            direct_links: self.nodes.iter().map(Node::direct_up).sum(),
            relayed: self.nodes.iter().flat_map(Node::relayed).collect(),
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
