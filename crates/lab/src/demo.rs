//! `shoal-lab demo`: starts a network, sends a file, cuts a link, and prints a table of figures.
//!
//! The demo starts nodes, `receive` and `send` as a user would. The demo follows them through the
//! control sockets and their JSON output, and acts only on links.

mod report;
mod screen;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use shoal_cli::interrupt::Interrupt;
use shoal_daemon::control::api;
use shoal_daemon::control::socket::ControlConnection;

use crate::executable::Executable;
use crate::files::{hash_file, make_file};
use crate::follow::Follower;
use crate::network::{Conditions, IpFamily, LinkCounter, LinkLoss, Network, NetworkKind};
use crate::process::ResourceUsage;
use crate::shaping::Rate;
use crate::site::RunningNetwork;
use crate::topology::Topology;
use crate::wiretap::Wiretap;
use crate::workspace::Workspace;

use crate::meter::GapMeter;
use crate::needs;
use screen::ProgressOutput;

pub use report::{DemoReport, LinkCut, NodeUse, WireStatistics, size};

/// Limit of the network's start-up time.
const START_PATIENCE: Duration = Duration::from_secs(30);
/// Longest time without progress of the transfer before the demo gives up.
const STALL_PATIENCE: Duration = Duration::from_secs(30);
/// Interval of looks at the transfer.
const LOOK: Duration = Duration::from_millis(10);
/// Name of the file that is sent.
const FILE: &str = "random.bin";
/// File bytes in one full cell (docs/design/wire/frame.md).
const SEGMENT_LEN: u64 = 1_366;

/// Network that the demo builds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DemoNetwork {
    /// Three fully meshed routers with two hosts each; h1 sends to h3.
    #[default]
    Paper,
    /// h1 - r1 - r2 - h2; h1 sends to h2. No second path exists, so no link can be cut.
    Chain,
}

/// Settings of a demo.
#[derive(Clone, Debug)]
pub struct DemoOptions {
    /// Program of the nodes; `None` for this process's own executable, as `shoal-lab` needs it.
    pub executable: Option<Executable>,
    /// Implementation of links; `None` for namespaces as root and forwarders otherwise.
    pub kind: Option<NetworkKind>,
    /// Address family of links.
    pub family: IpFamily,
    pub shape: DemoNetwork,
    /// Size of the file in bytes.
    pub size: u64,
    /// Rate of every link and direction; `None` for no limit.
    pub rate: Option<Rate>,
    /// Share of packets that every link loses in each direction, 0 to 1.
    pub loss: f64,
    /// Cut the link between routers that carries the file, half-way.
    pub cut: bool,
    /// Record the links of the sender's router, and test whether the traffic looks random. Needs
    /// namespaces.
    pub observe: bool,
    /// Path of a pcap file for the recorded traffic.
    pub capture: Option<PathBuf>,
    /// Keep the folder with configurations, keys and logs.
    pub keep: bool,
    /// Text for the end of every node's config.
    pub extra_config: String,
    /// Print no progress.
    pub quiet: bool,
}

impl Default for DemoOptions {
    fn default() -> DemoOptions {
        DemoOptions {
            executable: None,
            kind: None,
            family: IpFamily::Ipv4,
            shape: DemoNetwork::Paper,
            size: 500_000_000,
            rate: Some(Rate(1_000_000_000)),
            loss: 0.0,
            cut: true,
            observe: false,
            capture: None,
            keep: false,
            extra_config: String::new(),
            quiet: false,
        }
    }
}

/// Runs the demo, and removes everything it made, except a folder to be kept.
///
/// # Errors
/// The network does not come up, the transfer fails, or the hashes differ. The message says which,
/// with the log of the affected node.
pub fn run(options: &DemoOptions) -> Result<DemoReport> {
    ensure!((0.0..1.0).contains(&options.loss), "--loss: expected a fraction from 0 to below 1");
    ensure!(options.size > 0, "--size: expected 1 or more");
    Interrupt::catch()?;
    let mut screen = ProgressOutput::new(options.quiet);
    let workspace = Workspace::new(options.size * 2)?;
    screen.say(&format!("folder: {}", workspace.place));
    let result = Demo::start(options, workspace.path(), &mut screen)
        .and_then(|mut demo| demo.transfer(&mut screen));
    screen.end();
    if options.keep {
        screen.say(&format!("kept: {}", workspace.keep().display()));
    } else if result.is_err() {
        screen.say("pass --keep to keep the nodes' logs");
    }
    result
}

/// A network that is up, and a file to send.
struct Demo<'a> {
    options: &'a DemoOptions,
    site: RunningNetwork,
    from: usize,
    to: usize,
    hash: [u8; 32],
    wiretap: Option<Wiretap>,
}

impl Demo<'_> {
    fn start<'a>(
        o: &'a DemoOptions,
        folder: &Path,
        screen: &mut ProgressOutput,
    ) -> Result<Demo<'a>> {
        let (topology, to) = match o.shape {
            DemoNetwork::Paper => (Topology::paper(), "h3"),
            DemoNetwork::Chain => (Topology::chain(), "h2"),
        };
        let from = topology.find("h1").context("the topology has no h1")?;
        let to = topology.find(to).context("the topology has no receiver")?;
        let kind = o.kind.unwrap_or_else(|| available(o.rate, screen));
        let links = match kind {
            NetworkKind::Namespaces => {
                "veth pairs between network namespaces, shaped and cut by the kernel"
            }
            NetworkKind::Loopback => "UDP forwarders on the loopback",
        };
        screen.say(&format!("links: {}, {links}", o.family));
        let loss = LinkLoss::each(o.loss);
        let conditions = Conditions { rate: o.rate, loss, ..Conditions::default() };
        let network = Network::build(topology, kind.over(o.family), conditions)?;
        let wiretap = observe(o, &network, from)?;
        let executable = Executable::given_or_own(&o.executable)?;
        let mut site = RunningNetwork::start(network, &executable, folder, &o.extra_config)?;
        let hash = make_file(&site.folder(from).join(FILE), o.size)?;
        let begun = Instant::now();
        site.wait_until_up(START_PATIENCE)?;
        let name = site.network().topology().nodes[to].name.clone();
        site.wait(&format!("an echo from {name}"), START_PATIENCE, |site| {
            let ping = api::Command::Ping { host: name.clone(), timeout_ms: 500 };
            Ok(matches!(site.ask(from, ping)?, api::ControlReply::Pong { .. }).then_some(()))
        })?;
        let nodes = site.nodes().count();
        screen.say(&format!(
            "{nodes} nodes are up, every link has keys, {name} answers h1 ({:.1} s)",
            begun.elapsed().as_secs_f64()
        ));
        Ok(Demo { options: o, site, from, to, hash, wiretap })
    }

    /// Sends the file and follows the transfer.
    fn transfer(&mut self, screen: &mut ProgressOutput) -> Result<DemoReport> {
        let inbox = self.site.folder(self.to).join("inbox");
        std::fs::create_dir(&inbox)?;
        let before: Vec<ResourceUsage> = self.usage();
        let mut receive = self.start_receive()?;
        let mut cutter = Cutter::new(self)?;
        let meter = GapMeter::start(self.receiver_tap()?)?;
        let begun = Instant::now();
        let mut send = self.start_send()?;
        let (sent, received) = self.watch(&mut send, &mut receive, &mut cutter, screen)?;
        let command_seconds = begun.elapsed().as_secs_f64();
        let gap = meter.finish();
        screen.end();
        let mut nodes = self.used_since(&before);
        nodes.push(use_of("shoal send", sent));
        nodes.push(use_of("shoal receive", received));
        let arrived = hash_file(&inbox.join(FILE), self.options.size)?;
        ensure!(arrived == self.hash, "the received file has another hash");
        let mut report = self.report(&send, &receive)?;
        report.command_seconds = command_seconds;
        report.longest_gap_ms = gap.as_secs_f64() * 1e3;
        report.cut = cutter.result(self)?;
        report.nodes = nodes;
        report.hash_agrees = true;
        report.wire =
            self.wiretap.take().map(|tap| tap.finish()).transpose()?.map(WireStatistics::from);
        Ok(report)
    }

    fn start_receive(&mut self) -> Result<Follower> {
        let name = &self.site.network().topology().nodes[self.from].name;
        let arguments = [
            "receive",
            "--dir",
            "inbox",
            "--from",
            name,
            "--count",
            "1",
            "--max-size",
            "1000T",
            "--json",
        ];
        let command = self.site.command(self.to, &arguments);
        let mut receive = Follower::start("shoal receive", command, &self.site, self.to)?;
        self.site.wait("shoal receive", START_PATIENCE, |_| {
            Ok(match receive.look() {
                Ok(_) => receive.state.ready.then_some(Ok(())),
                Err(failed) => Some(Err(failed)),
            })
        })??;
        Ok(receive)
    }

    fn start_send(&self) -> Result<Follower> {
        let name = &self.site.network().topology().nodes[self.to].name;
        let command = self.site.command(self.from, &["send", FILE, name, "--json"]);
        Follower::start("shoal send", command, &self.site, self.from)
    }

    /// Follows both programs to their ends; returns their resource usage.
    fn watch(
        &mut self,
        send: &mut Follower,
        receive: &mut Follower,
        cutter: &mut Cutter,
        screen: &mut ProgressOutput,
    ) -> Result<(ResourceUsage, ResourceUsage)> {
        let (mut sent, mut received) = (ResourceUsage::default(), ResourceUsage::default());
        let mut moved = (Instant::now(), 0);
        loop {
            crate::interrupt::check()?;
            self.site.check_alive()?;
            // Read first: /proc has nothing about a program that has ended.
            let usage = (send.usage(), receive.usage());
            let (send_ended, receive_ended) = (send.look()?, receive.look()?);
            sent = if send_ended { sent } else { usage.0 };
            received = if receive_ended { received } else { usage.1 };
            let done = receive.state.bytes_done.max(send.state.bytes_done);
            cutter.look(self, screen)?;
            screen.progress(done, self.options.size, send.state.rate.max(receive.state.rate));
            if send_ended && receive_ended {
                return Ok((sent, received));
            }
            if done > moved.1 {
                moved = (Instant::now(), done);
            }
            if moved.0.elapsed() > STALL_PATIENCE {
                bail!("no progress for {} s, at byte {done}", STALL_PATIENCE.as_secs());
            }
            std::thread::sleep(LOOK);
        }
    }

    fn report(&self, send: &Follower, receive: &Follower) -> Result<DemoReport> {
        let o = self.options;
        let network = self.site.network();
        let name = |node: usize| network.topology().nodes[node].name.clone();
        let (s, r) = (&send.state, &receive.state);
        let accepted = s.accepted.context("shoal send did not report `accepted`")?;
        let done = r.done.context("shoal receive did not report the end of the file")?;
        let seconds = done.duration_since(accepted).as_secs_f64();
        let bytes_per_s = o.size as f64 / seconds;
        let (link_loss_seen, lost, cut) = self.loss_seen()?;
        Ok(DemoReport {
            links: match network.kind() {
                NetworkKind::Namespaces => "namespaces".into(),
                NetworkKind::Loopback => "loopback".into(),
            },
            family: network.family(),
            link_rate_bps: o.rate.map(|r| r.0),
            link_loss: o.loss,
            link_loss_seen,
            lost_bytes: lost * SEGMENT_LEN,
            cut_bytes: cut * SEGMENT_LEN,
            from: name(self.from),
            to: name(self.to),
            file_bytes: o.size,
            seconds,
            sync_ms: r.sync_ms,
            bytes_per_s,
            line_share: o.rate.map(|r| bytes_per_s * 8.0 / r.0 as f64),
            segment_loss: s.loss,
            retransmitted_bytes: s.retransmitted_bytes,
            longest_gap_node_ms: r.gap_ms,
            ..DemoReport::default()
        })
    }

    /// Returns the share of packets lost over all links and directions. Then, in the direction of
    /// the file, the packets lost and the packets that met a cut link. On each link the direction
    /// with more bytes counts as the file's.
    fn loss_seen(&self) -> Result<(f64, u64, u64)> {
        let network = self.site.network();
        let (mut lost, mut packets, mut file_lost, mut file_cut) = (0, 0, 0, 0);
        for (i, l) in network.topology().links.iter().enumerate() {
            let flows = [network.arrived(i, l.a)?, network.arrived(i, l.b)?];
            lost += flows.iter().map(|f| f.lost).sum::<u64>();
            packets += flows.iter().map(|f| f.packets).sum::<u64>();
            if let Some(with_file) = flows.iter().max_by_key(|f| f.bytes) {
                file_lost += with_file.lost;
                file_cut += with_file.cut;
            }
        }
        Ok((lost as f64 / packets.max(1) as f64, file_lost, file_cut))
    }

    fn receiver_tap(&self) -> Result<LinkCounter> {
        let network = self.site.network();
        let mut links = network.topology().links_of(self.to);
        let (link, _) = links.next().context("the receiver has no link")?;
        network.tap(link, self.to)
    }

    fn usage(&mut self) -> Vec<ResourceUsage> {
        self.site.nodes().map(|n| n.usage()).collect()
    }

    fn used_since(&mut self, before: &[ResourceUsage]) -> Vec<NodeUse> {
        let nodes = self.site.nodes().zip(before);
        nodes
            .map(|(node, before)| {
                let now = node.usage();
                let cpu_s = now.cpu_s - before.cpu_s;
                use_of(node.name(), ResourceUsage { cpu_s, ..now })
            })
            .collect()
    }
}

fn use_of(name: &str, usage: ResourceUsage) -> NodeUse {
    NodeUse { name: name.to_owned(), cpu_s: usage.cpu_s, memory_bytes: usage.memory_bytes }
}

/// Cuts the link that carries the file, and follows the routes afterwards.
struct Cutter {
    wanted: bool,
    monitor: ControlConnection,
    router: usize,
    target: u32,
    /// The receiver's access link, and its byte count before the file. The programs report progress
    /// too seldom to find the middle of a small file.
    tap: LinkCounter,
    carried_before: u64,
    cut: Option<(Instant, LinkCut)>,
}

impl Cutter {
    fn new(demo: &Demo) -> Result<Cutter> {
        let topology = demo.site.network().topology();
        let router = router_of(topology, demo.from)?;
        let mut monitor = demo.site.control(router)?;
        monitor.call(api::Command::Monitor, &[])?;
        let target = topology.nodes[demo.to].address.router;
        let mut tap = demo.receiver_tap()?;
        let carried_before = tap.bytes();
        let wanted = demo.options.cut;
        Ok(Cutter { wanted, monitor, router, target, tap, carried_before, cut: None })
    }

    /// Cuts the link half-way; then records the first new route.
    fn look(&mut self, demo: &Demo, screen: &mut ProgressOutput) -> Result<()> {
        if self.wanted && self.cut.is_none() {
            let packet_bytes = demo.options.family.packet_bytes();
            // The count falls to 0 if the link is gone.
            let carried = self.tap.bytes().saturating_sub(self.carried_before);
            let packets = carried / packet_bytes;
            let done = packets * SEGMENT_LEN;
            if done >= demo.options.size / 2 {
                self.cut_now(demo, done, screen)?;
            }
        }
        while let Some(event) = self.monitor.event(Some(Duration::ZERO))? {
            let api::ControlEvent::Route { router, new, .. } = event else { continue };
            if router != self.target {
                continue;
            }
            let Some((at, cut)) = &mut self.cut else { continue };
            let Some(hop) = new.filter(|n| n.peer != cut.next_hop_before) else { continue };
            if cut.route_change_ms.is_none() {
                let ms = at.elapsed().as_secs_f64() * 1e3;
                cut.route_change_ms = Some(ms);
                screen.say(&format!("the route now leads over {} ({ms:.0} ms later)", hop.peer));
            }
        }
        Ok(())
    }

    fn cut_now(&mut self, demo: &Demo, done: u64, screen: &mut ProgressOutput) -> Result<()> {
        let network = demo.site.network();
        let topology = network.topology();
        let hop = demo.site.next_hop(self.router, self.target)?.context("no route to cut")?;
        let neighbour = topology.find(&hop).context("the next hop is not in this network")?;
        let link = topology.link_between(self.router, neighbour).context("no such link")?;
        network.cut(link)?;
        let name = topology.link_name(link);
        screen.say(&format!("cut: {name}, which carries the file, at {}", size(done)));
        let cut =
            LinkCut { link: name, at_bytes: done, next_hop_before: hop, ..LinkCut::default() };
        self.cut = Some((Instant::now(), cut));
        Ok(())
    }

    fn result(mut self, demo: &Demo) -> Result<Option<LinkCut>> {
        if let Some((_, cut)) = &mut self.cut {
            cut.next_hop_after = demo.site.next_hop(self.router, self.target)?;
        }
        Ok(self.cut.map(|(_, cut)| cut))
    }
}

/// Namespaces if this machine has all requirements, else the loopback.
fn available(rate: Option<Rate>, screen: &mut ProgressOutput) -> NetworkKind {
    let tools = crate::shaping::check_tools(rate).err().map(|e| e.to_string());
    let namespaces =
        needs::Requirement::Namespaces.missing().map(|what| format!("missing: {what}"));
    match namespaces.or(tools) {
        None => NetworkKind::Namespaces,
        Some(missing) => {
            screen.say(&format!("NO NAMESPACES, so links go over the loopback; {missing}"));
            NetworkKind::Loopback
        }
    }
}

fn router_of(topology: &Topology, host: usize) -> Result<usize> {
    let (_, router) = topology.links_of(host).next().context("a host without a link")?;
    Ok(router)
}

/// Starts to record the sender's router, before the first handshake.
fn observe(o: &DemoOptions, network: &Network, from: usize) -> Result<Option<Wiretap>> {
    if !o.observe && o.capture.is_none() {
        return Ok(None);
    }
    let router = router_of(network.topology(), from)?;
    let namespace = network
        .namespace(router)
        .context("recording links needs namespaces; run as root, with `nft` and `tc`")?;
    Wiretap::start(namespace, o.capture.as_deref()).map(Some)
}
