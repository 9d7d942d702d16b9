//! Programs that know nothing of Shoal, over virtual interfaces: ping, and iperf3 with TCP and UDP.
//!
//! They run between `h1` and `h2` of the scenario's network, or between machines without a node
//! behind these, one after the other, and are found in the search path. Each case of the report is
//! one way of using them.

use std::net::IpAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use shoal_node::api;

use crate::figures::{self, figure};
use crate::gateways;
use crate::network::{Kind, Network};
use crate::process::Process;
use crate::record::{Case, Figure, NodeUse, Report, Run};
use crate::run::Options;
use crate::scenario::Scenario;
use crate::site::Site;
use crate::workspace::Workspace;

/// How long the network may take to come up, and a program to begin or to end after its time.
const PATIENCE: Duration = Duration::from_secs(20);
/// Tries to reach a server that has just been started.
const TRIES: u32 = 20;
/// Seconds of each measurement, if the scenario does not say.
const SECONDS: f64 = 3.0;
/// Payload of UDP where no sizes are listed: a packet of nearly the MTU.
const PAYLOAD: u16 = 1_300;

/// Runs every program as often as asked and adds a case for each way of using it.
///
/// # Errors
/// Without namespaces or a program, or when nothing gets through.
pub fn run(scenario: &Scenario, options: &Options, report: &mut Report) -> Result<()> {
    ensure!(Kind::available() == Kind::Namespaces, "virtual interfaces need root");
    let topology = scenario.network();
    let conditions = scenario.conditions(&topology, &scenario.all_cases()[0]);
    report.drawing = crate::run::drawing(&topology, &conditions);
    let workspace = Workspace::new(0)?;
    let network = Network::build_each(topology, Kind::Namespaces, &conditions)?;
    report.links = network.manner();
    let program = match &options.program {
        Some(program) => program.clone(),
        None => std::env::current_exe().context("the program that is running")?,
    };
    let extra = format!("{}\n[interface]\n", scenario.node_config);
    let bench = Bench::start(network, &program, workspace.path(), &extra)?;
    let seconds = scenario.duration_s.unwrap_or(SECONDS);
    let sizes = match scenario.payloads.as_slice() {
        [] => vec![PAYLOAD],
        sizes => sizes.to_vec(),
    };
    let mut ways = vec![Way::Ping, Way::Tcp(1), Way::Tcp(10), Way::Loaded];
    if !scenario.payloads.is_empty() {
        ways.clear();
    }
    ways.extend(sizes.into_iter().map(Way::Udp));
    for way in ways {
        let mut case = Case { name: way.name(), ..Case::default() };
        for turn in 1..=options.repeat.unwrap_or(scenario.repeat) {
            options.say(&format!("{}: {} ({turn})", report.name, case.name));
            let run = bench.measure(way, seconds, scenario.udp_mbit)?;
            for figure in run.figures.iter().filter(|f| f.name != "cpu_s") {
                options.say(&format!("  {} {}", figure.name, figures::number(figure.value)));
            }
            case.runs.push(run);
        }
        let runs: Vec<&[Figure]> = case.runs.iter().map(|r| r.figures.as_slice()).collect();
        case.figures = figures::medians(&runs);
        report.cases.push(case);
    }
    Ok(())
}

/// A way of using the network.
#[derive(Clone, Copy)]
enum Way {
    /// Pings, nothing else.
    Ping,
    /// So many TCP streams at once.
    Tcp(u32),
    /// Pings beside one TCP stream.
    Loaded,
    /// Datagrams with so many bytes of payload.
    Udp(u16),
}

impl Way {
    fn name(self) -> String {
        match self {
            Way::Ping => "ping".into(),
            Way::Tcp(streams) => format!("TCP, streams: {streams}"),
            Way::Loaded => "ping beside TCP".into(),
            Way::Udp(payload) => format!("UDP, {payload} bytes"),
        }
    }
}

fn interface_of(site: &Site, node: usize) -> Result<IpAddr> {
    let api::Reply::Status(status) = site.ask(node, api::Command::Status)? else {
        bail!("unexpected answer to a question for the status");
    };
    Ok(status.interface.context("the node has no interface")?.address.parse()?)
}

/// The running network and its two ends.
struct Bench {
    site: Site,
    from: usize,
    to: usize,
    far: IpAddr,
}

impl Bench {
    fn start(network: Network, program: &Path, folder: &Path, extra: &str) -> Result<Bench> {
        let end = |name| network.topology().find(name).context("the network needs h1 and h2");
        let (h1, h2) = (end("h1")?, end("h2")?);
        let behind = gateways::behind(network.topology());
        let machine = |host| behind.iter().find(|(_, gateway)| *gateway == host).map(|m| m.0);
        let (from, to) = (machine(h1).unwrap_or(h1), machine(h2).unwrap_or(h2));
        let mut site = Site::start_after(network, program, folder, extra, gateways::prepare)?;
        site.wait_until_up(PATIENCE)?;
        let far = match machine(h2) {
            Some(machine) => site.network().ip_of(h2, machine)?.into(),
            None => interface_of(&site, h2)?,
        };
        let bench = Bench { site, from, to, far };
        let first = bench.ping(0.5)?;
        ensure!(first.is_finite(), "no answer over the interface:\n{}", bench.site.log_end(h1));
        Ok(bench)
    }

    fn measure(&self, way: Way, seconds: f64, udp_mbit: f64) -> Result<Run> {
        let before: Vec<f64> = self.site.nodes().map(Process::cpu_s).collect();
        let mut figures = match way {
            Way::Ping => vec![figure("ping_ms", "", self.ping(seconds)?)],
            Way::Tcp(streams) => {
                vec![figure("tcp_mbit", "", self.tcp(&streams.to_string(), seconds)?)]
            }
            Way::Loaded => std::thread::scope(|scope| {
                let load = scope.spawn(|| self.tcp("1", seconds + 1.0));
                std::thread::sleep(Duration::from_millis(700));
                let ping = self.ping(seconds - 0.5);
                let rate = load.join().map_err(|_| anyhow::anyhow!("the load panicked"))??;
                Ok::<_, anyhow::Error>(vec![
                    figure("ping_ms", "", ping?),
                    figure("tcp_mbit", "", rate),
                ])
            })?,
            Way::Udp(payload) => self.udp(payload, seconds, udp_mbit)?,
        };
        let used = self.site.nodes().zip(&before);
        let nodes: Vec<NodeUse> = used
            .map(|(node, before)| NodeUse {
                name: node.name().to_owned(),
                cpu_s: node.cpu_s() - before,
                memory_bytes: node.usage().memory_bytes,
            })
            .collect();
        for node in &nodes {
            figures.push(figure("cpu_s", &node.name, node.cpu_s));
            figures.push(figure("memory_mb", &node.name, node.memory_bytes as f64 / 1e6));
        }
        Ok(Run { seconds, nodes, figures, ..Run::default() })
    }

    /// Mean round trip in milliseconds; no number when nothing came back.
    fn ping(&self, seconds: f64) -> Result<f64> {
        let count = (seconds * 50.0).max(5.0).to_string();
        let far = self.far.to_string();
        let text = self.run("ping", &["-q", "-i", "0.02", "-W", "5", "-c", &count, &far])?;
        // "rtt min/avg/max/mdev = 0.1/0.2/0.3/0.1 ms"
        let mean = text.split("mdev = ").nth(1).and_then(|rest| rest.split('/').nth(1));
        Ok(mean.and_then(|mean| mean.parse().ok()).unwrap_or(f64::NAN))
    }

    /// Payload that arrived, in Mbit/s.
    fn tcp(&self, streams: &str, seconds: f64) -> Result<f64> {
        let found = self.iperf(&["-P", streams, "-C", "cubic"], seconds)?;
        let rate = found["end"]["sum_received"]["bits_per_second"].as_f64();
        Ok(rate.context("iperf3 reports no rate")? / 1e6)
    }

    fn udp(&self, payload: u16, seconds: f64, mbit: f64) -> Result<Vec<Figure>> {
        let (payload, rate) = (payload.to_string(), format!("{mbit}M"));
        let found = self.iperf(&["-u", "-w", "2M", "-l", &payload, "-b", &rate], seconds)?;
        let sum = &found["end"]["sum"];
        let number = |name: &str| sum[name].as_f64().context("iperf3 reports no loss");
        let lost = number("lost_percent")? / 100.0;
        Ok(vec![
            figure("udp_mbit", "", number("bits_per_second")? * (1.0 - lost) / 1e6),
            figure("udp_lost", "", lost),
        ])
    }

    /// What a client found against a server of its own.
    fn iperf(&self, words: &[&str], seconds: f64) -> Result<Value> {
        let mut server = Command::new("iperf3");
        server.args(["-s", "-1"]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let namespace = self.site.network().namespace_fd(self.to);
        let mut server = Process::start("iperf3", server, namespace)
            .context("is iperf3 installed and in the search path?")?;
        let (far, seconds) = (self.far.to_string(), seconds.to_string());
        let fixed = ["-c", &far, "-t", &seconds, "-J", "--connect-timeout", "5000"];
        let words = [&fixed, words].concat();
        let mut error = String::new();
        for _ in 0..TRIES {
            let found: Value = serde_json::from_str(&self.run("iperf3", &words)?)
                .context("iperf3 did not print JSON")?;
            let Some(text) = found["error"].as_str() else { return Ok(found) };
            error = text.to_owned();
            if server.poll()?.is_some() {
                break;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        bail!("iperf3: {error}")
    }

    /// What a program prints in the namespace of the first end.
    fn run(&self, program: &str, words: &[&str]) -> Result<String> {
        let mut command = Command::new(program);
        command.args(words).stdin(Stdio::null());
        let namespace = self.site.network().namespace(self.from).context("no namespace")?;
        let output = namespace.enter(|| command.output().with_context(|| program.to_owned()))?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}
