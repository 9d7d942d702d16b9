//! The traffic of a run: files by `shoal send` and `receive`, TCP and UDP of the kernel, pings.

use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, bail};

use crate::executable::Executable;
use crate::figures::figure;
use crate::flood::Flood;
use crate::follow::Follower;
use crate::network::{Conditions, LinkCounter, Network, NetworkKind};
use crate::pings::Pings;
use crate::process::ResourceUsage;
use crate::record::Figure;
use crate::scenario::{FlowKind, ProgramShape, Scenario, ScenarioCase, ScenarioFlow, TcpPath};
use crate::shapes::ShapedFlow;
use crate::site::RunningNetwork;
use crate::tcp::{TcpCounters, TcpFlow};
use crate::topology::Topology;
use crate::udp::UdpFlow;
use crate::{circuits, files, shifts};

/// File bytes in one full cell (docs/design/wire/frame.md), and in a cell of a circuit with three
/// relays.
const SEGMENT_BYTES: f64 = 1_366.0;
const UNIT_BYTES: f64 = 1_308.0;
/// Seconds between a failed file and its next attempt.
const AGAIN_S: f64 = 1.0;

/// The flows of `case`.
pub fn of_case<'a>(
    scenario: &'a Scenario,
    case: &'a ScenarioCase,
) -> impl Iterator<Item = &'a ScenarioFlow> {
    let wanted =
        |f: &&ScenarioFlow| case.flows.as_ref().is_none_or(|names| names.contains(&f.name));
    scenario.flows.iter().filter(wanted)
}

/// Cross traffic of a case: each host of its flows reads pages from a host that no flow uses. That
/// host is behind another router.
pub fn across(scenario: &Scenario, case: &ScenarioCase, topology: &Topology) -> Vec<ScenarioFlow> {
    let Some(attack) = scenario.attack.as_ref().filter(|_| case.attack.cross) else {
        return Vec::new();
    };
    let router = |name: &str| topology.find(name).map(|at| topology.nodes[at].address.router);
    let mut all = Vec::new();
    for flow in of_case(scenario, case) {
        for host in [&flow.from, &flow.to] {
            let others = attack.cross.iter().filter(|other| router(other) != router(host));
            // Hosts take turns, so that no host behind the far end's router serves all.
            let Some(to) = others.clone().nth(all.len() % others.count().max(1)) else { continue };
            all.push(ScenarioFlow {
                name: format!("across-{host}"),
                kind: FlowKind::Shape,
                shape: Some(ProgramShape::Web),
                from: host.clone(),
                to: to.clone(),
                seconds: scenario.duration_s,
                ..flow.clone()
            });
        }
    }
    all
}

/// Disk space for all files in bytes, at both ends.
pub fn room(scenario: &Scenario, case: &ScenarioCase) -> u64 {
    let files = of_case(scenario, case).filter(|f| f.kind == FlowKind::File);
    files.map(|f| 2 * bytes(f)).sum()
}

/// Size of a flow's file in bytes.
pub fn bytes(flow: &ScenarioFlow) -> u64 {
    (flow.size_mb * 1e6) as u64
}

/// Loss over the first flow's path, 0 to 1.
pub fn path_loss(
    scenario: &Scenario,
    case: &ScenarioCase,
    topology: &Topology,
    conditions: &[Conditions],
) -> f64 {
    let ends = of_case(scenario, case)
        .next()
        .and_then(|f| topology.find(&f.from).zip(topology.find(&f.to)));
    let path = ends.and_then(|(from, to)| topology.path(from, to, |_| true)).unwrap_or_default();
    1.0 - path.iter().map(|&(link, _)| 1.0 - conditions[link].loss.share).product::<f64>()
}

/// Builds the network of `case` and starts its nodes. `before` is called between the two.
pub fn site(
    scenario: &Scenario,
    case: &ScenarioCase,
    conditions: &[Conditions],
    executable: &Option<Executable>,
    folder: &Path,
    before: impl FnOnce(&Network) -> Result<()>,
) -> Result<RunningNetwork> {
    let ground = NetworkKind::available().over(scenario.family);
    let network = Network::build_each(scenario.network(), ground, conditions)?;
    let all = || of_case(scenario, case);
    if all().any(|f| f.is_over_links()) {
        network.route_ip()?;
    }
    let mut extra = scenario.node_config.clone();
    if all().any(ScenarioFlow::needs_interface) {
        extra += "\n[interface]\n";
    }
    let executable = Executable::given_or_own(executable)?.with(circuits::arguments(case))?;
    RunningNetwork::start_after(network, &executable, folder, &extra, |network, folder| {
        circuits::prepare(scenario, case, network, folder)?;
        shifts::prepare(network, conditions, folder)?;
        before(network)
    })
}

/// Processor time that a node has spent on handshakes, in seconds.
pub fn handshakes_s(site: &RunningNetwork, node: usize) -> f64 {
    site.process(node).map_or(0.0, |process| process.thread_cpu_s("shoal-keys"))
}

/// One flow of a run.
pub struct ActiveFlow {
    /// Definition in the scenario.
    pub spec: ScenarioFlow,
    /// Sending node.
    pub from: usize,
    /// Receiving node.
    pub to: usize,
    /// Counter of the receiver's link.
    tap: LinkCounter,
    tap_before: u64,
    /// File bytes in one full cell of the flow.
    pub segment_bytes: f64,
    /// Bytes of a packet with a full frame on that link.
    packet_bytes: f64,
    /// True if no other flow ends at this receiver: the link's bytes are then this flow's.
    pub alone: bool,
    send: Option<Follower>,
    tcp: Option<TcpFlow>,
    /// TCP counters at the end of the start-up, when TCP has learnt the longest packet.
    counts_before: Option<TcpCounters>,
    udp: Option<UdpFlow>,
    shaped: Option<ShapedFlow>,
    pings: Option<Pings>,
    flood: Option<Flood>,
    /// Figures of ended traffic that reports its own.
    pub figures: Vec<Figure>,
    /// Node whose frames a flood replays.
    pub victim: usize,
    /// Processor time of the target's handshakes at the start of a flood, in seconds.
    pub handshakes_before_s: f64,
    /// Packets that a flood has sent, and seconds since its start.
    pub flooded: (u64, f64),
    next_start: f64,
    is_started: bool,
    /// Time of the flow's end, in seconds.
    pub ended: Option<f64>,
    /// Time at which the first file was accepted, in seconds.
    pub accepted: Option<f64>,
    /// Time at which the first file was confirmed, in seconds.
    pub done: Option<f64>,
    /// Number of files that arrived.
    pub files: u64,
    /// Number of failed transfers.
    pub broken: u64,
    /// Bytes sent again, in files that have ended.
    pub resent: u64,
    /// Resource usage of the sending command.
    pub usage: ResourceUsage,
    bytes_before: u64,
    hash: [u8; 32],
}

impl ActiveFlow {
    /// Prepares the flow `spec`, and makes its file.
    pub fn new(
        spec: &ScenarioFlow,
        site: &RunningNetwork,
        alone: bool,
        over_circuit: bool,
    ) -> Result<ActiveFlow> {
        let network = site.network();
        let find = |name: &str| network.topology().find(name).context("no such node");
        let (from, to) = (find(&spec.from)?, find(&spec.to)?);
        let way = network.topology().path(from, to, |_| true).context("no path")?;
        let (link, _) = *way.last().context("no path")?;
        let mut hash = [0; 32];
        if spec.kind == FlowKind::File {
            let file = site.folder(from).join(format!("{}.bin", spec.name));
            hash = files::make_file(&file, bytes(spec))?;
        }
        Ok(ActiveFlow {
            spec: spec.clone(),
            from,
            to,
            tap: network.tap(link, to)?,
            tap_before: 0,
            segment_bytes: if over_circuit { UNIT_BYTES } else { SEGMENT_BYTES },
            packet_bytes: network.family().packet_bytes() as f64,
            alone,
            send: None,
            tcp: None,
            counts_before: None,
            udp: None,
            shaped: None,
            pings: None,
            flood: None,
            figures: Vec::new(),
            victim: from,
            handshakes_before_s: 0.0,
            flooded: (0, 0.0),
            next_start: spec.start_s,
            is_started: false,
            ended: None,
            accepted: None,
            done: None,
            files: 0,
            broken: 0,
            resent: 0,
            usage: ResourceUsage::default(),
            bytes_before: 0,
            hash,
        })
    }

    /// True if the run must wait for this flow.
    pub fn is_pending(&self) -> bool {
        self.spec.kind == FlowKind::File && !self.spec.again && self.ended.is_none()
    }

    /// True if Shoal carries the flow.
    pub fn is_through_shoal(&self) -> bool {
        self.spec.kind == FlowKind::File || self.spec.needs_interface()
    }

    /// Starts what is due, and reads the flow's progress. `now` counts from `begun`.
    pub fn look(&mut self, site: &RunningNetwork, begun: Instant, now: f64) -> Result<()> {
        if self.ended.is_some() {
            return Ok(());
        }
        if self.spec.kind == FlowKind::File {
            return self.look_file(site, begun, now);
        }
        if !self.is_started && now >= self.spec.start_s {
            self.is_started = true;
            self.start(site)?;
        }
        if self.counts_before.is_none() && now >= self.spec.start_s + self.spec.settle_s {
            self.counts_before = self.tcp.as_ref().and_then(TcpFlow::counts);
        }
        if let Some(pings) = &mut self.pings {
            if let Some(mean) = pings.look()? {
                self.figures.push(figure("ping_ms", &self.spec.name, mean));
                self.end(now);
            }
        } else if self.spec.seconds.is_some_and(|s| now >= self.spec.start_s + s) {
            self.end(now);
        }
        Ok(())
    }

    /// Starts traffic other than files.
    fn start(&mut self, site: &RunningNetwork) -> Result<()> {
        let (network, spec, from, to) = (site.network(), &self.spec, self.from, self.to);
        match spec.kind {
            FlowKind::File => {}
            FlowKind::Tcp => {
                let far = match spec.over {
                    TcpPath::Links => network.ip_of(from, to)?,
                    TcpPath::Interface => site.interface(to)?,
                };
                let congestion = &spec.congestion;
                self.tcp = Some(TcpFlow::start(network, (from, to), far, congestion, spec.mbit)?);
            }
            FlowKind::Udp => {
                let (far, mbit) = (site.interface(to)?, spec.mbit.unwrap_or_default());
                self.udp = Some(UdpFlow::start(network, (from, to), far, mbit, spec.payload)?);
            }
            FlowKind::Shape => {
                let shape = spec.shape.context("a shaped flow without a shape")?.into();
                let (ends, far) = ([from, to], [site.interface(from)?, site.interface(to)?]);
                let what = (spec.seconds.unwrap_or_default(), spec.name.as_str());
                self.shaped = Some(ShapedFlow::start(network, ends, far, shape, what)?);
            }
            FlowKind::Ping => {
                let seconds = spec.seconds.unwrap_or_default();
                self.pings = Some(Pings::start(network, from, site.interface(to)?, seconds)?);
            }
            FlowKind::Flood => {
                self.handshakes_before_s = handshakes_s(site, to);
                self.flood = Some(Flood::start(site, spec, from, to, self.victim)?);
            }
        }
        Ok(())
    }

    fn look_file(&mut self, site: &RunningNetwork, begun: Instant, now: f64) -> Result<()> {
        let Some(send) = &mut self.send else {
            // A sender whose node is down waits for the node.
            if now >= self.next_start && site.process(self.from).is_some() {
                if self.files + self.broken == 0 {
                    self.tap_before = self.tap.bytes();
                }
                let to = &site.network().topology().nodes[self.to].name;
                let file = format!("{}.bin", self.spec.name);
                let command = site.command(self.from, &["send", &file, to, "--json"]);
                self.send = Some(Follower::start("shoal send", command, site, self.from)?);
            }
            return Ok(());
        };
        let usage = send.usage();
        let result = send.look();
        let since = |at: Instant| at.saturating_duration_since(begun).as_secs_f64();
        self.accepted = self.accepted.or(send.state.accepted.map(since));
        match result {
            Ok(false) => {
                self.usage = usage;
                return Ok(());
            }
            Ok(true) => {
                self.done = self.done.or(send.state.done.map(since));
                self.files += 1;
                self.bytes_before += bytes(&self.spec);
            }
            Err(_) if self.spec.again => {
                self.broken += 1;
                self.next_start = now + AGAIN_S;
            }
            Err(e) => return Err(e.context(format!("flow {:?}", self.spec.name))),
        }
        self.resent += send.state.retransmitted_bytes;
        self.send = None;
        if !self.spec.again {
            self.ended = Some(now);
        }
        Ok(())
    }

    /// Ends the flow, if it still runs.
    pub fn end(&mut self, now: f64) {
        if self.ended.is_none() {
            self.ended = Some(now);
        }
        if let Some(send) = self.send.take() {
            self.resent += send.state.retransmitted_bytes;
        }
        if let Some(flood) = self.flood.take() {
            self.flooded = flood.figures();
        }
        let name = self.spec.name.as_str();
        if let Some(tcp) = self.tcp.take() {
            self.bytes_before += tcp.received();
            if let (TcpPath::Interface, Some(counts)) = (self.spec.over, tcp.counts()) {
                let counts = counts.since(self.counts_before.unwrap_or_default());
                let counts = [
                    ("tcp_resent", counts.resent),
                    ("tcp_lost", counts.resent.saturating_sub(counts.duplicates)),
                    ("tcp_disordered", counts.disordered),
                ];
                self.figures.extend(counts.map(|(what, n)| figure(what, name, n.into())));
                self.figures.push(figure("gap_ms", name, tcp.gap_ms()));
            }
        }
        if let Some(shaped) = self.shaped.take() {
            self.bytes_before += shaped.arrived();
        }
        if let Some(udp) = self.udp.take() {
            let crate::udp::UdpOutcome { seen, delays, sent, seconds, .. } = udp.finish();
            self.bytes_before += seen.bytes;
            let missing = sent.saturating_sub(seen.count) as f64;
            self.figures.extend([
                figure("udp_mbit", name, seen.bytes as f64 * 8e-6 / seconds.max(1e-3)),
                figure("udp_lost", name, missing / sent.max(1) as f64),
                figure("udp_missing", name, missing),
                figure("udp_disordered", name, seen.disordered as f64),
                figure("udp_delay_ms", name, delays.mean_ms()),
                figure("udp_delay_p99_ms", name, delays.p99_ms()),
                figure("gap_ms", name, seen.gap.as_secs_f64() * 1e3),
            ]);
        }
    }

    /// Payload bytes received so far.
    pub fn arrived(&mut self) -> f64 {
        if let Some(tcp) = &self.tcp {
            return (self.bytes_before + tcp.received()) as f64;
        }
        if let Some(shaped) = &self.shaped {
            return (self.bytes_before + shaped.arrived()) as f64;
        }
        if let Some(udp) = &self.udp {
            return (self.bytes_before + udp.seen().bytes) as f64;
        }
        if self.spec.kind == FlowKind::File && self.alone {
            if self.send.is_none() && self.files == 0 {
                return 0.0;
            }
            let wire = self.tap.bytes().saturating_sub(self.tap_before) as f64;
            return wire / self.packet_bytes * self.segment_bytes;
        }
        let now = self.send.as_ref().map_or(0, |s| s.state.bytes_done);
        (self.bytes_before + now) as f64
    }

    /// Fails unless the received file equals the sent file.
    pub fn check(&self, inbox: &Path) -> Result<()> {
        if self.spec.kind != FlowKind::File || self.spec.again {
            return Ok(());
        }
        let file = inbox.join(format!("{}.bin", self.spec.name));
        if files::hash_file(&file, bytes(&self.spec))? != self.hash {
            bail!("flow {:?}: the received file has another hash", self.spec.name);
        }
        Ok(())
    }
}
