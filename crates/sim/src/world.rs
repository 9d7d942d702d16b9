//! The loop: what happens next, at whom, and whether all rules still hold.

use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};

use shoal_edge::HostId;
use shoal_relay::Incoming;
use shoal_transfer::{Event as FileEvent, OfferInfo, Role, TransferId};
use shoal_wire::{DropReason, Time};

use crate::Options;
use crate::check::files::{Stage, Watch};
use crate::check::{Violation, routes};
use crate::disk::{DISK_TIME, Work};
use crate::node::{JobDone, Node};
use crate::outcome::{FileOutcome, Outcome};
use crate::plan::{ATTEMPTS_MAX, Fault, Plan, START, TRY_AGAIN};
use crate::wires::{Flight, Wires};

/// How long the handshake thread takes.
const JOB_TIME: Duration = Duration::from_micros(300);
/// Steps at one instant that are no longer work but a machine that is never satisfied.
const STEPS_AT_ONCE_MAX: u32 = 20_000;
/// When, before the end, every host calls every other.
const PINGS_BEFORE_END: Duration = Duration::from_secs(15);
/// When, before that, one host begins to call all others, which do nothing but answer: a host that
/// is idle must stay reachable.
const FIRST_PINGS_BEFORE_END: Duration = Duration::from_secs(30);
/// Identifies our pings.
const PING_ID: u32 = 77;

enum What {
    Fault(Fault),
    /// The trouble is over: all is mended.
    Calm,
    /// Look whether files are due.
    Files,
    Pings,
    JobDone(usize, u32, JobDone),
    DiskDone(usize, u32, Work),
}

/// A running network.
pub(crate) struct World {
    now: Time,
    options: Options,
    plan: Plan,
    nodes: Vec<Node>,
    wires: Wires,
    files: Vec<Watch>,
    events: BTreeMap<(Time, u64), What>,
    flights: BTreeMap<(Time, u64), Flight>,
    order: u64,
    steps_at_once: u32,
    violations: Vec<Violation>,
    log: VecDeque<(Time, String)>,
    delivered: u64,
    route_changes: u64,
    idle_checked: bool,
    /// Who called whom, and whether it was answered.
    pings: BTreeMap<(usize, HostId), bool>,
}

impl World {
    pub(crate) fn new(options: Options) -> World {
        let plan = Plan::new(&options);
        let seed = options.seed;
        let nodes = (0..plan.nodes.len()).map(|at| Node::new(&plan, seed, at, START)).collect();
        let mut world = World {
            now: START,
            wires: Wires::new(seed, options.faults, &plan.wires),
            files: plan.files.iter().cloned().map(Watch::new).collect(),
            options,
            nodes,
            events: BTreeMap::new(),
            flights: BTreeMap::new(),
            order: 0,
            steps_at_once: 0,
            violations: Vec::new(),
            log: VecDeque::new(),
            delivered: 0,
            route_changes: 0,
            idle_checked: false,
            pings: BTreeMap::new(),
            plan,
        };
        for (at, fault) in world.plan.faults.clone() {
            world.push(at, What::Fault(fault));
        }
        world.push(world.plan.calm_from, What::Calm);
        for file in 0..world.files.len() {
            world.push(world.plan.files[file].at, What::Files);
        }
        world.push(world.plan.end - FIRST_PINGS_BEFORE_END, What::Pings);
        world
    }

    fn push(&mut self, at: Time, what: What) {
        self.order += 1;
        self.events.insert((at, self.order), what);
    }

    fn note(&mut self, text: String) {
        self.wires.trace.update(&self.now.0.to_be_bytes());
        self.wires.trace.update(text.as_bytes());
        self.remember(text);
    }

    fn remember(&mut self, text: String) {
        if self.log.len() >= self.options.log_len {
            self.log.pop_front();
        }
        self.log.push_back((self.now, text));
    }

    fn broken(&mut self, rule: &'static str, seen: String) {
        self.violations.push(Violation { rule, at_ns: self.now.0, seen });
    }

    /// Runs to the end of the plan, or to the first broken rule.
    pub(crate) fn run(mut self) -> Outcome {
        for at in 0..self.nodes.len() {
            self.finish_step(at);
        }
        while self.violations.is_empty() && self.step() {}
        if self.violations.is_empty() {
            self.check_end();
        }
        self.outcome()
    }

    /// Does the next thing; false when the plan is over.
    fn step(&mut self) -> bool {
        let event = self.events.keys().next().map(|key| key.0);
        let flight = self.flights.keys().next().map(|key| key.0);
        let timers = self.nodes.iter().enumerate();
        let timer = timers.filter_map(|(n, node)| Some((node.poll_timeout()?.0, n))).min();
        let next = [event, flight, timer.map(|timer| timer.0)].into_iter().flatten().min();
        let Some(next) = next.filter(|next| *next <= self.plan.end) else { return false };
        if next > self.now {
            (self.now, self.steps_at_once) = (next, 0);
        }
        self.steps_at_once += 1;
        if self.steps_at_once > STEPS_AT_ONCE_MAX {
            let why = timer.and_then(|(_, n)| Some((n, self.nodes[n].poll_timeout()?.1)));
            self.broken("a machine that was called has nothing due", format!("{why:?}"));
            return false;
        }
        if flight.is_some_and(|at| at <= self.now) {
            self.arrive();
        } else if event.is_some_and(|at| at <= self.now) {
            if let Some((_, what)) = self.events.pop_first() {
                self.happen(what);
            }
        } else if let Some((_, n)) = timer {
            self.wires.sender(self.now, n);
            self.nodes[n].handle_timeout(self.now, &mut self.wires);
            self.finish_step(n);
        }
        true
    }

    /// Delivers every frame that arrives now, one batch per node.
    fn arrive(&mut self) {
        let mut batches: BTreeMap<usize, Vec<Flight>> = BTreeMap::new();
        while let Some(entry) = self.flights.first_entry().filter(|e| e.key().0 <= self.now) {
            let flight = entry.remove();
            batches.entry(flight.to).or_default().push(flight);
        }
        for (n, flights) in batches {
            if !self.nodes[n].alive {
                continue;
            }
            let (mut buf, mut incoming) = (Vec::new(), Vec::new());
            for flight in &flights {
                let run = self.nodes[n].run;
                if flight.replayed_in.is_some_and(|seen| seen != run) {
                    continue;
                }
                self.wires.overhear(self.now, flight, run);
                let len = flight.bytes.len() as u32;
                incoming.push(Incoming {
                    from: flight.from,
                    offset: buf.len() as u32,
                    len,
                    stride: len,
                    congested: false,
                });
                buf.extend_from_slice(&flight.bytes);
            }
            self.delivered += incoming.len() as u64;
            self.wires.sender(self.now, n);
            self.nodes[n].receive(self.now, &mut buf, &incoming, &mut self.wires);
            self.finish_step(n);
        }
    }

    fn happen(&mut self, what: What) {
        match what {
            What::Fault(fault) => self.fault(fault),
            What::Calm => self.calm_down(),
            What::Files => self.send_files(),
            What::Pings => self.ping_everybody(),
            What::JobDone(n, run, done) if self.is_run(n, run) => {
                self.wires.sender(self.now, n);
                let node = &mut self.nodes[n];
                match done {
                    JobDone::Link(done) => {
                        node.relay.handle_done(self.now, done, &mut self.wires);
                    }
                    JobDone::Host(done) => node.edge.handle_done(self.now, done),
                }
                self.finish_step(n);
            }
            What::DiskDone(n, run, work) if self.is_run(n, run) => {
                self.disk_done(n, work);
                self.finish_step(n);
            }
            What::JobDone(..) | What::DiskDone(..) => {}
        }
    }

    fn is_run(&self, n: usize, run: u32) -> bool {
        self.nodes[n].alive && self.nodes[n].run == run
    }

    fn fault(&mut self, fault: Fault) {
        self.note(format!("{fault:?}"));
        match fault {
            Fault::Cut(wire) => self.wires.set_cut(wire, true),
            Fault::Mend(wire) => self.wires.set_cut(wire, false),
            Fault::Crash(n) => self.nodes[n].crash(),
            Fault::Restart(n) if !self.nodes[n].alive => {
                self.nodes[n].restart(&self.plan, self.options.seed, n, self.now);
                let again = self.now + TRY_AGAIN;
                for watch in self.files.iter_mut().filter(|watch| watch.plan.from == n) {
                    if watch.stage == Stage::Running {
                        watch.stage = Stage::Due(again);
                    }
                }
                self.push(again, What::Files);
                self.finish_step(n);
            }
            Fault::Restart(_) => {}
        }
    }

    fn calm_down(&mut self) {
        self.wires.make_perfect();
        for n in 0..self.nodes.len() {
            self.fault(Fault::Restart(n));
        }
    }

    /// Offers the files whose time has come.
    fn send_files(&mut self) {
        for number in 0..self.files.len() {
            let watch = &mut self.files[number];
            if !matches!(watch.stage, Stage::Due(at) if at <= self.now) {
                continue;
            }
            let (from, to) = (watch.plan.from, self.plan.nodes[watch.plan.to]);
            let info = OfferInfo {
                name: format!("file-{number}"),
                size: watch.plan.content.len() as u64,
                modified_ns: 0,
                file_id: watch.plan.file_id,
                executable: false,
            };
            let node = &mut self.nodes[from];
            let host = node.host(to).filter(|_| node.alive);
            let offered = host.and_then(|host| node.edge.offer(self.now, host, info).ok());
            watch.began.get_or_insert(self.now);
            let Some(id) = offered else {
                watch.stage = Stage::Due(self.now + TRY_AGAIN);
                self.push(self.now + TRY_AGAIN, What::Files);
                continue;
            };
            watch.stage = Stage::Running;
            watch.attempts += 1;
            node.sending.insert(id, number);
            self.note(format!("node {from} offers file {number}"));
            self.finish_step(from);
        }
    }

    /// Every host calls every other that didn't answer yet, as `shoal ping` does: once a second.
    fn ping_everybody(&mut self) {
        let is_host = |n: &usize| !self.plan.nodes[*n].is_router();
        let hosts: Vec<usize> = (0..self.nodes.len()).filter(is_host).collect();
        let everybody = self.now >= self.plan.end - PINGS_BEFORE_END;
        if everybody && !self.idle_checked {
            self.idle_checked = true;
            self.check_pings("after the trouble every idle host can be reached");
        }
        let callers = if everybody { hosts.len() } else { 1 };
        for &from in hosts.iter().take(callers) {
            for &to in hosts.iter().filter(|to| **to != from) {
                let address = self.plan.nodes[to];
                let node = &mut self.nodes[from];
                let Some(host) = node.host(address) else { continue };
                let answered = self.pings.entry((from, host)).or_insert(false);
                if !*answered {
                    let _ = node.edge.ping(host, PING_ID, to as u32);
                }
            }
            self.finish_step(from);
        }
        self.push(self.now + Duration::from_secs(1), What::Pings);
    }

    /// What a shell does after every call: jobs, events, output; then the checks.
    fn finish_step(&mut self, n: usize) {
        self.wires.sender(self.now, n);
        let (now, run) = (self.now, self.nodes[n].run);
        let done_at = now + JOB_TIME;
        while let Some(job) = self.nodes[n].relay.poll_job() {
            self.push(done_at, What::JobDone(n, run, JobDone::Link(job.run())));
        }
        while let Some(job) = self.nodes[n].edge.poll_job() {
            self.push(done_at, What::JobDone(n, run, JobDone::Host(job.run())));
        }
        while let Some(event) = self.nodes[n].relay.poll_event() {
            if let shoal_relay::Event::Route(_) = event {
                self.route_changes += 1;
            }
            self.note(format!("node {n}: {event:?}"));
        }
        while let Some(event) = self.nodes[n].edge.poll_event() {
            self.handle_edge(n, event);
        }
        self.nodes[n].drive(now, &mut self.wires);
        while let Some(flight) = self.wires.flights.pop_front() {
            self.order += 1;
            self.flights.insert((flight.at.max(now), self.order), flight);
        }
        if let Some(broken) = self.wires.broken.take() {
            self.violations.push(broken);
        }
        self.log_drops(n);
        self.check_routes(n);
    }

    /// Puts new drops into the log, not into the trace: whether noise looks like an index depends
    /// on bytes that don't replay.
    fn log_drops(&mut self, n: usize) {
        for (reason, count) in self.nodes[n].new_drops() {
            if reason != DropReason::Replayed {
                self.remember(format!("node {n}: dropped {count} as {}", reason.label()));
            }
        }
    }

    fn handle_edge(&mut self, n: usize, event: shoal_edge::Event) {
        match event {
            shoal_edge::Event::Transfer(event) => self.handle_file(n, event),
            shoal_edge::Event::Echo { host, .. } => {
                self.pings.insert((n, host), true);
            }
            shoal_edge::Event::Established(host) => self.note(format!("node {n}: host {host:?}")),
            shoal_edge::Event::Unreachable(host) => {
                self.note(format!("node {n}: host {host:?} unreachable"));
            }
        }
    }

    fn handle_file(&mut self, n: usize, event: FileEvent) {
        self.note(format!("node {n}: {event:?}"));
        let run = self.nodes[n].run;
        let work = match event {
            FileEvent::Read { id, index, buffer, .. } => Work::Read { id, index, buffer },
            FileEvent::Write { id, index, offset, len, data } => {
                Work::Write { id, index, offset, len, data }
            }
            FileEvent::HashWanted { id } => Work::Hash { id },
            FileEvent::Accepted { .. } => return,
            FileEvent::Offered { id, info, .. } => {
                let node = &mut self.nodes[n];
                let have = node.disk.open(&info);
                node.receiving.insert(id, info.file_id);
                return node.edge.transfers().accept(self.now, id, &have);
            }
            FileEvent::Complete { id, .. } => return self.complete(n, id),
            FileEvent::Finished { id, .. } => return self.finished(n, id),
            FileEvent::Failed { id, why } => return self.failed(n, id, &why.to_string()),
        };
        self.push(self.now + DISK_TIME, What::DiskDone(n, run, work));
    }

    fn disk_done(&mut self, n: usize, work: Work) {
        let now = self.now;
        let node = &mut self.nodes[n];
        let content = |node: &Node, id| Some(&self.files[*node.sending.get(&id)?].plan.content);
        match work {
            Work::Read { id, index, mut buffer } => {
                let start = index as usize * buffer.len();
                if let Some(content) = content(node, id) {
                    let part = &content[start.min(content.len())..];
                    let part = &part[..part.len().min(buffer.len())];
                    buffer[..part.len()].copy_from_slice(part);
                }
                node.edge.transfers().chunk_read(now, id, index, buffer);
            }
            Work::Write { id, index, offset, len, data } => {
                if let Some(file) = node.receiving.get(&id) {
                    node.disk.write(file, index, offset, &data[..len]);
                }
                node.edge.transfers().chunk_written(now, id, index, data);
            }
            Work::Hash { id } if id.role() == Role::Sender => {
                if let Some(content) = content(node, id) {
                    let hash = shoal_crypto::hash(content);
                    node.edge.transfers().source_hash(now, id, hash);
                }
            }
            Work::Hash { id } => {
                let stored = node.receiving.get(&id).and_then(|file| node.disk.stored.get(file));
                let hash = stored.map(|stored| shoal_crypto::hash(&stored.data));
                if let Some(hash) = hash {
                    node.edge.transfers().sink_hash(now, id, hash);
                }
            }
        }
    }

    fn complete(&mut self, n: usize, id: TransferId) {
        let node = &mut self.nodes[n];
        let Some(file) = node.receiving.remove(&id) else { return };
        let watch = self.files.iter_mut().find(|watch| watch.plan.file_id == file);
        let (Some(watch), Some(stored)) = (watch, node.disk.stored.get_mut(&file)) else { return };
        stored.named = true;
        let result = watch.complete(&stored.data);
        node.edge.transfers().confirm(self.now, id);
        self.hold("a file arrives bit-identical", result);
    }

    fn finished(&mut self, n: usize, id: TransferId) {
        let Some(number) = self.nodes[n].sending.remove(&id) else { return };
        let result = self.files[number].finish(self.now);
        self.hold("a sender is told the truth", result);
    }

    fn failed(&mut self, n: usize, id: TransferId, why: &str) {
        self.nodes[n].receiving.remove(&id);
        let Some(number) = self.nodes[n].sending.remove(&id) else { return };
        let watch = &mut self.files[number];
        watch.failure = Some(why.to_string());
        if watch.attempts >= ATTEMPTS_MAX {
            watch.stage = Stage::Failed;
            watch.ended = Some(self.now);
        } else {
            let again = self.now + TRY_AGAIN;
            watch.stage = Stage::Due(again);
            self.push(again, What::Files);
        }
    }

    fn hold(&mut self, rule: &'static str, result: Result<(), String>) {
        if let Err(seen) = result {
            self.broken(rule, seen);
        }
    }

    fn check_routes(&mut self, n: usize) {
        let Some(routing) = self.nodes[n].relay.routing() else { return };
        let version = routing.table().version();
        if !self.nodes[n].alive || version == self.nodes[n].seen_table {
            return;
        }
        self.nodes[n].seen_table = version;
        for to in 1..=self.options.routers.max(1) {
            if let routes::Path::Circles(path) = routes::follow(&self.nodes, n, to) {
                self.broken("no route goes in a circle", format!("to router {to}: {path:?}"));
            }
        }
    }

    fn check_end(&mut self) {
        let routers = self.options.routers.max(1);
        for n in 0..routers as usize {
            for to in 1..=routers {
                if !matches!(routes::follow(&self.nodes, n, to), routes::Path::Arrives) {
                    let seen = format!("none from node {n} to router {to}");
                    self.broken("after the trouble every router has a route to every other", seen);
                }
            }
        }
        let results: Vec<_> = self.files.iter().map(Watch::end).collect();
        for result in results {
            self.hold("a file arrives or its sender learns that it doesn't", result);
        }
        self.check_pings("after the trouble every host reaches every other");
    }

    fn check_pings(&mut self, rule: &'static str) {
        let deaf = self.pings.iter().filter(|(_, answered)| !**answered);
        let deaf: Vec<_> = deaf.map(|((from, host), _)| (*from, *host)).collect();
        if !deaf.is_empty() {
            self.broken(rule, format!("no answer to (node, host) {deaf:?}"));
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
        let name = |n: usize| self.plan.nodes[n].to_string();
        let file = |watch: &Watch| {
            let began = watch.began.unwrap_or(self.now);
            FileOutcome {
                from: name(watch.plan.from),
                to: name(watch.plan.to),
                size: watch.plan.content.len() as u64,
                attempts: watch.attempts,
                finished: watch.stage == Stage::Finished,
                failure: watch.failure.clone(),
                took_ms: watch.ended.unwrap_or(self.now).since(began).as_millis() as u64,
            }
        };
        let wire = |&(a, b): &(usize, usize)| format!("{a} ({}) -- {b} ({})", name(a), name(b));
        let hex = |hash: [u8; 32]| hash.iter().map(|byte| format!("{byte:02x}")).collect();
        Outcome {
            seed: self.options.seed,
            trace: hex(self.wires.trace.finalize()),
            virtual_time: self.now.since(START),
            frames_sent: self.wires.sent,
            frames_delivered: self.delivered,
            route_changes: self.route_changes,
            pings: self.pings.len() as u64,
            pongs: self.pings.values().filter(|answered| **answered).count() as u64,
            files: self.files.iter().map(file).collect(),
            drops,
            log: self.log.iter().map(|(at, text)| format!("{at} {text}")).collect(),
            topology: self.plan.wires.iter().map(wire).collect(),
            violations: self.violations,
        }
    }
}
