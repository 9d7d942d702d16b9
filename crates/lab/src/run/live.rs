//! One run of one case: a network that is up, its traffic and its events.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use shoal_daemon::control::api;
use shoal_daemon::control::socket::ControlConnection;

use super::curves::{Curves, round};
use super::flows::{self, ActiveFlow};
use super::{RunOptions, sum};
use crate::attack::live::LiveAttack;
use crate::circuits::{self, Rotations};
use crate::follow::Follower;
use crate::interrupt;
use crate::meter::GapMeter;
use crate::network::{Conditions, LinkLoss, Network};
use crate::observe::Observers;
use crate::process::ResourceUsage;
use crate::record::{NodeUse, RunRecord, TimedEvent};
use crate::scenario::{
    CircuitUse, EventAction, FlowKind, STARTUP_S, Scenario, ScenarioCase, ScenarioEvent,
};
use crate::shifts;
use crate::site::RunningNetwork;

/// Limit of the network's start-up time.
const START_PATIENCE: Duration = Duration::from_secs(60);
/// Time between two turns of the loop.
const LOOK: Duration = Duration::from_millis(10);

/// An event to come.
struct PendingEvent {
    event: ScenarioEvent,
    at: Option<f64>,
}

/// A network with traffic.
pub struct LiveRun<'a> {
    pub scenario: &'a Scenario,
    /// Conditions of links at the start.
    pub conditions: &'a [Conditions],
    pub flows: Vec<ActiveFlow>,
    pub curves: Curves,
    pub record: RunRecord,
    receivers: BTreeMap<usize, Follower>,
    monitors: Vec<(usize, ControlConnection)>,
    pending: Vec<PendingEvent>,
    /// Changes of the first flow's circuit; `None` without circuits.
    pub rotations: Option<Rotations>,
    /// Number of links that routers lost, without those to a flood's origin.
    pub links_lost: u64,
    /// Time of the cut of the first file's link, the observed router, and its destination.
    cut: Option<(f64, usize, u32)>,
    /// Time from the cut to the first new route, in milliseconds.
    pub reroute_ms: Option<f64>,
    /// Frames that each receiver of a file had sent when the traffic began.
    pub returned: BTreeMap<usize, u64>,
    /// Histograms of waits at the end of the first file's start-up.
    pub waits_before: Option<Vec<Vec<u64>>>,
    case: &'a ScenarioCase,
    /// Number of the scenario's flows; cross traffic follows them in `flows`.
    pairs: usize,
    /// Folder of captures for an attacker.
    captures: PathBuf,
    /// The nodes. Last field, so that the site is dropped after everything that runs on it.
    pub site: RunningNetwork,
}

impl<'a> LiveRun<'a> {
    /// Builds the network and waits until it is up.
    pub fn start(
        scenario: &'a Scenario,
        case: &'a ScenarioCase,
        conditions: &'a [Conditions],
        options: &RunOptions,
        folder: &Path,
    ) -> Result<LiveRun<'a>> {
        LiveRun::start_after(scenario, case, conditions, options, folder, |_| Ok(()))
    }

    /// Like [`LiveRun::start`]; calls `before` before the nodes run.
    pub fn start_after(
        scenario: &'a Scenario,
        case: &'a ScenarioCase,
        conditions: &'a [Conditions],
        options: &RunOptions,
        folder: &Path,
        before: impl FnOnce(&Network) -> Result<()>,
    ) -> Result<LiveRun<'a>> {
        let executable = &options.executable;
        let mut site = flows::site(scenario, case, conditions, executable, folder, before)?;
        site.wait_until_up(START_PATIENCE)?;
        shifts::wait(&mut site, conditions)?;
        let mut all = Vec::new();
        for spec in flows::of_case(scenario, case) {
            let same = |f: &&crate::scenario::ScenarioFlow| f.to == spec.to;
            let alone = flows::of_case(scenario, case).filter(same).count() == 1;
            all.push(ActiveFlow::new(spec, &site, alone, case.circuits == CircuitUse::Require)?);
        }
        let pairs = all.len();
        for spec in flows::across(scenario, case, site.network().topology()) {
            all.push(ActiveFlow::new(&spec, &site, false, case.circuits == CircuitUse::Require)?);
        }
        let victim = all.iter().find(|f| f.spec.kind == FlowKind::File).map(|f| f.from);
        for flood in all.iter_mut().filter(|f| f.spec.kind == FlowKind::Flood) {
            // Answers to spoofed addresses leave by a default route, as on a real network.
            site.network().default_route(flood.to, flood.from)?;
            flood.victim = victim.unwrap_or(flood.from);
        }
        let events = scenario.events.iter().filter(|event| {
            case.events && event.case.as_ref().is_none_or(|name| *name == case.name)
        });
        let pending = events.map(|e| PendingEvent { event: e.clone(), at: e.at_s }).collect();
        let curves = Curves::new(&site, all.len());
        let mut live = LiveRun {
            scenario,
            conditions,
            flows: all,
            curves,
            record: RunRecord::default(),
            receivers: BTreeMap::new(),
            monitors: Vec::new(),
            pending,
            rotations: (case.circuits == CircuitUse::Require).then(Rotations::default),
            links_lost: 0,
            cut: None,
            reroute_ms: None,
            returned: BTreeMap::new(),
            waits_before: None,
            case,
            pairs,
            captures: captures(options, case, folder),
            site,
        };
        live.greet()?;
        Ok(live)
    }

    /// Description of the links' implementation.
    pub fn manner(&self) -> String {
        self.site.network().manner()
    }

    /// Makes the sessions of all pairs of hosts with traffic, and starts receivers.
    fn greet(&mut self) -> Result<()> {
        let through = self.flows.iter().filter(|f| f.is_through_shoal());
        let through: Vec<_> = through.map(|f| (f.from, f.to, f.spec.kind)).collect();
        for (from, to, kind) in through {
            let name = self.site.network().topology().nodes[to].name.clone();
            self.site.wait(&format!("an echo from {name}"), START_PATIENCE, |site| {
                let ping = api::Command::Ping { host: name.clone(), timeout_ms: 1_000 };
                Ok(matches!(site.ask(from, ping)?, api::ControlReply::Pong { .. }).then_some(()))
            })?;
            if self.rotations.is_some() {
                circuits::wait(&mut self.site, from, to)?;
            }
            if kind == FlowKind::File && !self.receivers.contains_key(&to) {
                std::fs::create_dir_all(self.site.folder(to).join("inbox"))?;
                self.receive(to)?;
            }
        }
        let routers: Vec<usize> = self.site.network().topology().routers().collect();
        for router in routers {
            let mut monitor = self.site.control(router)?;
            monitor.call(api::Command::Monitor, &[])?;
            self.monitors.push((router, monitor));
        }
        Ok(())
    }

    fn files(&self) -> impl Iterator<Item = &ActiveFlow> {
        self.flows.iter().filter(|f| f.spec.kind == FlowKind::File)
    }

    fn receive(&mut self, node: usize) -> Result<()> {
        let words = [
            "receive",
            "--dir",
            "inbox",
            "--from",
            "any",
            "--overwrite",
            "--max-size",
            "1000T",
            "--json",
        ];
        let command = self.site.command(node, &words);
        let mut receive = Follower::start("shoal receive", command, &self.site, node)?;
        self.site.wait("shoal receive", START_PATIENCE, |_| {
            Ok(match receive.look() {
                Ok(false) => receive.state.ready.then_some(Ok(())),
                Ok(true) => Some(Err(anyhow::anyhow!("shoal receive ended by itself"))),
                Err(failed) => Some(Err(failed)),
            })
        })??;
        self.receivers.insert(node, receive);
        Ok(())
    }

    /// Runs traffic and events to their end.
    pub fn run(&mut self) -> Result<RunRecord> {
        for to in self.files().map(|f| f.to).collect::<Vec<_>>() {
            let sent = self.frames_out(to)?;
            self.returned.insert(to, sent);
        }
        let before = self.usage();
        let meter = self.meter()?;
        let emulator_before = self.site.network().emulator_cpu_s();
        let stat = machine_time();
        let drops_before = sum::drops_at(&self.site);
        let span = self.scenario.observe_s.map(Duration::from_secs_f64);
        let observers = span.map(|span| Observers::start(self.site.network(), span)).transpose()?;
        let mut watch = self.watch()?;
        let begun = Instant::now();
        let now = || begun.elapsed().as_secs_f64();
        let mut next_sample = 0.0;
        loop {
            interrupt::check()?;
            self.site.check_alive()?;
            for flow in &mut self.flows {
                flow.look(&self.site, begun, now())?;
            }
            self.happen(now())?;
            if let Some(watch) = &mut watch {
                watch.act(self.site.network(), now())?;
            }
            self.hear(now());
            self.revive_receivers()?;
            if self.waits_before.is_none() && self.is_settled(now()) {
                self.waits_before = Some(self.curves.waits());
            }
            if now() >= next_sample {
                self.curves.sample(now(), &self.site, &mut self.flows);
                self.see_circuits();
                next_sample += self.scenario.sample_ms as f64 / 1e3;
            }
            if self.is_over(now())? {
                break;
            }
            std::thread::sleep(LOOK);
        }
        self.record.seconds = round(now());
        self.record.idle = round(idle_since(stat));
        // Two samples close together would give a meaningless rate.
        if now() > next_sample - self.scenario.sample_ms as f64 / 2e3 {
            self.curves.sample(now(), &self.site, &mut self.flows);
        }
        self.flows.iter_mut().for_each(|f| f.end(begun.elapsed().as_secs_f64()));
        let gap = meter.map(GapMeter::finish);
        self.use_since(&before, emulator_before);
        for flow in &self.flows {
            flow.check(&self.site.folder(flow.to).join("inbox"))?;
        }
        sum::up(self, gap, &drops_before)?;
        if let Some(watch) = watch {
            let (figures, chosen) = watch.finish()?;
            self.record.figures.extend(figures);
            self.record.events.extend(chosen);
        }
        if let (Some(observers), Some(first)) = (observers, self.flows.first()) {
            let seen = observers.finish(&self.site, (first.from, first.to))?;
            self.record.figures.extend(seen);
        }
        Ok(std::mem::take(&mut self.record))
    }

    /// Starts to record the access links of all flows' hosts, if the scenario has an attacker.
    fn watch(&self) -> Result<Option<LiveAttack>> {
        let Some(attack) = &self.scenario.attack else { return Ok(None) };
        let pairs: Vec<(usize, usize)> =
            self.flows[..self.pairs].iter().map(|f| (f.from, f.to)).collect();
        let what = (pairs.as_slice(), self.captures.as_path());
        let network = self.site.network();
        LiveAttack::start(attack, self.case, network, self.conditions, what).map(Some)
    }

    /// Records which circuit the first flow uses.
    fn see_circuits(&mut self) {
        if let (Some(rotations), Some(flow)) = (&mut self.rotations, self.flows.first())
            // A busy node answers a later query.
            && let Ok(circuits) = circuits::of(&self.site, flow.from, flow.to)
        {
            rotations.see(&circuits);
        }
    }

    /// True if the first file's start-up is over.
    fn is_settled(&self, now: f64) -> bool {
        let first = self.files().next().and_then(|f| f.accepted);
        first.is_some_and(|at| now > at + STARTUP_S)
    }

    fn is_over(&self, now: f64) -> Result<bool> {
        if let Some(duration) = self.scenario.duration_s
            && now >= duration
        {
            return Ok(true);
        }
        if now > self.scenario.limit_s && self.scenario.duration_s.is_none() {
            bail!("not done after {} s (limit_s)", self.scenario.limit_s);
        }
        let pending = self.flows.iter().any(ActiveFlow::is_pending);
        let timed = |f: &ActiveFlow| f.spec.seconds.is_some() && f.ended.is_none();
        Ok(self.scenario.duration_s.is_none() && !pending && !self.flows.iter().any(timed))
    }

    /// Frames that `node` has sent since its start.
    pub fn frames_out(&self, node: usize) -> Result<u64> {
        Ok(self.site.status(node)?.traffic.frames_out)
    }

    fn meter(&self) -> Result<Option<GapMeter>> {
        let Some(first) = self.files().next() else { return Ok(None) };
        let network = self.site.network();
        let mut links = network.topology().links_of(first.to);
        let (link, _) = links.next().context("a receiver without a link")?;
        Ok(Some(GapMeter::start(network.tap(link, first.to)?)?))
    }

    fn usage(&self) -> Vec<ResourceUsage> {
        let nodes = 0..self.site.network().topology().nodes.len();
        nodes.map(|n| self.site.process(n).map(|p| p.usage()).unwrap_or_default()).collect()
    }

    fn use_since(&mut self, before: &[ResourceUsage], emulator_before: Option<f64>) {
        let after = self.usage();
        let topology = self.site.network().topology();
        for (node, (now, before)) in after.iter().zip(before).enumerate() {
            if !topology.nodes[node].plain {
                // A restarted node counts from its restart.
                let cpu_s =
                    if now.cpu_s >= before.cpu_s { now.cpu_s - before.cpu_s } else { now.cpu_s };
                let name = topology.nodes[node].name.clone();
                self.record.nodes.push(NodeUse { name, cpu_s, memory_bytes: now.memory_bytes });
            }
        }
        for flow in self.flows.iter().filter(|f| f.spec.kind == FlowKind::File) {
            let name = format!("send {}", flow.spec.name);
            let ResourceUsage { cpu_s, memory_bytes, .. } = flow.usage;
            self.record.nodes.push(NodeUse { name, cpu_s, memory_bytes });
        }
        let emulator = self.site.network().emulator_cpu_s().zip(emulator_before);
        if let Some((now, before)) = emulator {
            let (name, cpu_s) = ("link emulator".into(), now - before);
            self.record.nodes.push(NodeUse { name, cpu_s, memory_bytes: 0 });
        }
    }

    /// Performs the events that are due.
    fn happen(&mut self, now: f64) -> Result<()> {
        for i in 0..self.pending.len() {
            let at = self.pending[i].at;
            let event = self.pending[i].event.clone();
            let due = match (at, event.at_share) {
                (Some(at), _) => now >= at,
                (None, Some(share)) => self.first_share() >= share,
                _ => false,
            };
            if due {
                self.pending[i].at = match event.every_s {
                    Some(every) => Some(at.unwrap_or(now) + every),
                    None => Some(f64::INFINITY),
                };
                self.act(&event, now)?;
            }
        }
        Ok(())
    }

    /// Share of the first file that has arrived, 0 to 1.
    fn first_share(&mut self) -> f64 {
        let first = self.flows.iter_mut().find(|f| f.spec.kind == FlowKind::File);
        first.map_or(0.0, |f| f.arrived() / (f.spec.size_mb * 1e6))
    }

    fn act(&mut self, event: &ScenarioEvent, now: f64) -> Result<()> {
        let network = self.site.network();
        let topology = network.topology();
        let node = match (&event.node, event.deed) {
            (None, EventAction::Kill) => {
                let first = self.flows.first().context("a kill without a node needs a flow")?;
                Some(circuits::second_relay(&self.site, first.from, first.to)?)
            }
            (named, _) => named.clone(),
        };
        let link = match &event.link {
            Some([a, b]) => {
                let ends = topology.find(a).zip(topology.find(b));
                ends.and_then(|(a, b)| topology.link_between(a, b))
            }
            None if event.deed == EventAction::Cut => Some(self.used_link()?),
            None => None,
        };
        let what = match (link, &node) {
            (Some(link), _) => topology.link_name(link),
            (None, Some(node)) => node.clone(),
            (None, None) => String::new(),
        };
        match (event.deed, link) {
            (EventAction::Cut, Some(link)) => {
                network.cut(link)?;
                self.watch_reroute(now);
            }
            (EventAction::Restore, Some(link)) => network.restore(link)?,
            (EventAction::Loss, Some(link)) => {
                let share = event.loss.unwrap_or(0.0);
                network.set_loss(link, LinkLoss { share, burst: event.burst.unwrap_or(1.0) })?;
            }
            (EventAction::Kill, _) => {
                let node = node.as_ref().and_then(|n| topology.find(n));
                self.site.kill(node.context("no such node")?);
            }
            (EventAction::Start, _) => {
                let node = node.as_ref().and_then(|n| topology.find(n));
                self.site.revive(node.context("no such node")?)?;
            }
            _ => bail!("{} needs a link", event.deed.word()),
        }
        let loss = event.loss.map_or(String::new(), |l| format!(" {}%", l * 100.0));
        let text = format!("{}{loss}: {what}", event.deed.word());
        self.record.events.push(TimedEvent { at_s: round(now), text });
        Ok(())
    }

    /// The link between routers that carries the first file.
    fn used_link(&self) -> Result<usize> {
        let topology = self.site.network().topology();
        let (router, target) = self.first_routers()?;
        let hop = self.site.next_hop(router, target)?.context("no route to cut")?;
        let neighbour = topology.find(&hop).context("the next hop is not in this network")?;
        topology.link_between(router, neighbour).context("no such link")
    }

    /// The sender's router, and the receiver's router number, of the first file.
    fn first_routers(&self) -> Result<(usize, u32)> {
        let topology = self.site.network().topology();
        let first = self.files().next().context("a cut without a link needs a file")?;
        let (_, router) = topology.links_of(first.from).next().context("a host without a link")?;
        Ok((router, topology.nodes[first.to].address.router))
    }

    fn watch_reroute(&mut self, now: f64) {
        // Without a file no route is observed.
        if self.cut.is_none()
            && let Ok((router, target)) = self.first_routers()
        {
            self.cut = Some((now, router, target));
        }
    }

    /// Records changes of routes and links that the routers report.
    fn hear(&mut self, now: f64) {
        let topology = self.site.network().topology();
        let floods = self.flows.iter().filter(|f| f.spec.kind == FlowKind::Flood);
        let floods: Vec<String> = floods.map(|f| f.spec.from.clone()).collect();
        let mut lost = Vec::new();
        for (i, (router, monitor)) in self.monitors.iter_mut().enumerate() {
            let name = &topology.nodes[*router].name;
            loop {
                match monitor.event(Some(Duration::ZERO)) {
                    Ok(None) => break,
                    Ok(Some(api::ControlEvent::Route { router: to, old, new, .. })) => {
                        let peer =
                            |hop: &Option<api::NextHop>| hop.as_ref().map(|h| h.peer.clone());
                        if peer(&old) == peer(&new) {
                            continue;
                        }
                        if let Some((at, from, target)) = self.cut
                            && self.reroute_ms.is_none()
                            && (from, target) == (*router, to)
                            && new.is_some()
                        {
                            self.reroute_ms = Some((now - at) * 1e3);
                        }
                        let via = peer(&new).unwrap_or_else(|| "nobody".into());
                        let text = format!("{name}: router {to} by {via}");
                        self.record.routes.push(TimedEvent { at_s: round(now), text });
                    }
                    Ok(Some(api::ControlEvent::Link { peer, state, .. })) if state != "up" => {
                        let text = format!("{name}: link to {peer} {state}");
                        self.record.routes.push(TimedEvent { at_s: round(now), text });
                        self.links_lost += u64::from(!floods.contains(&peer));
                    }
                    Ok(Some(_)) => {}
                    Err(_) => {
                        lost.push(i);
                        break;
                    }
                }
            }
        }
        for i in lost.into_iter().rev() {
            // The node was killed, so its monitor is dropped.
            let (router, _) = self.monitors.remove(i);
            self.record.routes.push(TimedEvent {
                at_s: round(now),
                text: format!("{}: silent", self.site.network().topology().nodes[router].name),
            });
        }
    }

    /// A receiving command ends with its node. Restarts it after the node is back.
    fn revive_receivers(&mut self) -> Result<()> {
        let ended = |(node, receive): (&usize, &mut Follower)| match receive.look() {
            Ok(false) => None,
            _ => Some(*node),
        };
        let ended: Vec<usize> = self.receivers.iter_mut().filter_map(ended).collect();
        for node in ended {
            if self.site.process(node).is_some()
                && self.site.ask(node, api::Command::Status).is_ok()
            {
                self.receive(node)?;
            }
        }
        Ok(())
    }
}

/// Folder of a case's captures: below the folder of the options, or deleted with the run.
fn captures(options: &RunOptions, case: &ScenarioCase, folder: &Path) -> PathBuf {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
    let name: String = case.name.chars().map(plain).collect();
    options.captures.as_deref().unwrap_or(folder).join(name)
}

/// Idle and total time of the machine's processors, in ticks.
fn machine_time() -> (f64, f64) {
    let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let line = stat.lines().next().unwrap_or_default();
    let ticks: Vec<f64> = line.split_whitespace().skip(1).flat_map(str::parse).collect();
    // proc(5): user, nice, system, idle, iowait, irq, softirq, steal.
    let idle = ticks.iter().skip(3).take(2).sum();
    (idle, ticks.iter().take(8).sum())
}

fn idle_since(before: (f64, f64)) -> f64 {
    let now = machine_time();
    (now.0 - before.0) / (now.1 - before.1).max(1.0)
}
