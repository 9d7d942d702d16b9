//! Ordinary programs over virtual interfaces: ping, wget, and iperf3 with TCP and UDP.
//!
//! The programs run between `h1` and `h2` of the scenario's network, or between machines without a
//! node behind these hosts. Programs run one after the other, and must be in the search path. Each
//! case of the report is one workload.

mod iperf;
mod levels;
mod profile;
pub(crate) mod web;

use std::net::IpAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::executable::Executable;
use crate::figures::{self, figure};
use crate::gateways;
use crate::network::{Network, NetworkKind};
use crate::pings;
use crate::record::{CaseRecord, Figure, NodeUse, ReportTable, RunRecord, ScenarioReport};
use crate::run::RunOptions;
use crate::scenario::Scenario;
use crate::site::RunningNetwork;
use crate::stages;
use crate::workspace::Workspace;
pub(crate) use iperf::iperf;

/// The node of the clients, or the gateway of their machine.
const FROM: &str = "h1";
/// The node of the servers, or the gateway of their machine.
const TO: &str = "h2";
/// Limit of the network's start-up time, and of a program's time to start, or to end after its run.
const PATIENCE: Duration = Duration::from_secs(20);
/// Default length of each measurement, in seconds.
const SECONDS: f64 = 3.0;
/// Default UDP payload in bytes: a packet of nearly the MTU.
const PAYLOAD: u16 = 1_300;

/// Runs every program the requested number of times, and adds a case for each workload.
///
/// # Errors
/// Namespaces or a program are missing, or nothing gets through.
pub fn run(scenario: &Scenario, options: &RunOptions, report: &mut ScenarioReport) -> Result<()> {
    ensure!(
        NetworkKind::available() == NetworkKind::Namespaces,
        "virtual interfaces need namespaces; run as root"
    );
    let topology = scenario.network();
    let conditions = scenario.conditions(&topology, &scenario.all_cases()[0]);
    report.drawing = crate::run::drawing(&topology, &conditions);
    let workspace = Workspace::new(0)?;
    let network =
        Network::build_each(topology, NetworkKind::Namespaces.over(scenario.family), &conditions)?;
    report.links = network.manner();
    let executable = Executable::given_or_own(&options.executable)?;
    if !scenario.levels.is_empty() {
        drop(network);
        return levels::run(
            scenario,
            options,
            report,
            (&executable, workspace.path(), &conditions),
        );
    }
    let extra = format!("{}\n[interface]\n", scenario.node_config);
    let bench = ProgramBench::start(network, &executable, workspace.path(), &extra)?;
    let seconds = scenario.duration_s.unwrap_or(SECONDS);
    for workload in workloads(scenario).into_iter().filter(|w| options.wants(scenario, &w.name())) {
        let mut case = CaseRecord { name: workload.name(), ..CaseRecord::default() };
        for turn in 1..=options.repeat.unwrap_or(scenario.repeat) {
            options.say(&format!("{}: {} ({turn})", report.name, case.name));
            let run = bench.measure(workload, seconds, scenario.udp_mbit)?;
            for figure in run.figures.iter().filter(|f| !f.name.ends_with("_s")) {
                options.say(&format!("  {} {}", figure.name, figures::number(figure.value)));
            }
            case.runs.push(run);
        }
        let runs: Vec<&[Figure]> = case.runs.iter().map(|r| r.figures.as_slice()).collect();
        case.figures = figures::medians(&runs);
        if let Workload::Tcp(1) = workload {
            let table = profile::table(&case.figures, seconds, (FROM, TO), &stages::parts());
            report.tables.push(table);
        }
        report.cases.push(case);
    }
    if !scenario.payloads.is_empty() {
        report.tables.push(by_size(&scenario.payloads, &report.cases));
    }
    Ok(())
}

/// Names of a scenario's cases, in the order of their runs.
pub fn case_names(scenario: &Scenario) -> Vec<String> {
    match scenario.levels.as_slice() {
        [] => workloads(scenario).into_iter().map(Workload::name).collect(),
        levels => levels.to_vec(),
    }
}

fn workloads(scenario: &Scenario) -> Vec<Workload> {
    let sized = |sizes: &[u16]| sizes.iter().copied().map(Workload::Udp).collect::<Vec<_>>();
    if !scenario.payloads.is_empty() {
        return sized(&scenario.payloads);
    }
    let mut workloads = vec![
        Workload::Ping,
        Workload::Tcp(1),
        Workload::Tcp(10),
        Workload::Loaded(1),
        Workload::Loaded(10),
        Workload::Web,
    ];
    workloads.extend(sized(&[PAYLOAD]));
    workloads
}

/// UDP rates by payload.
fn by_size(payloads: &[u16], cases: &[CaseRecord]) -> ReportTable {
    let rows = payloads.iter().filter_map(|&payload| {
        let name = Workload::Udp(payload).name();
        let case = cases.iter().find(|case| case.name == name)?;
        let rate = case.figures.iter().find(|f| f.name == "udp_mbit").map(|f| f.value);
        let packets = rate.map(|mbit| mbit * 1e3 / 8.0 / f64::from(payload));
        Some((format!("{payload} bytes"), vec![rate, packets]))
    });
    ReportTable {
        mixed: false,
        title: "UDP by payload".into(),
        columns: ["payload", "Mbit/s", "thousand packets/s"].map(str::to_owned).into(),
        rows: rows.collect(),
        unit: "received payload".into(),
    }
}

/// A workload of programs.
#[derive(Clone, Copy)]
enum Workload {
    /// Pings alone.
    Ping,
    /// This number of concurrent TCP streams.
    Tcp(u32),
    /// Pings beside this number of TCP streams.
    Loaded(u32),
    /// A file from a web server.
    Web,
    /// Datagrams with this payload in bytes.
    Udp(u16),
}

impl Workload {
    fn name(self) -> String {
        match self {
            Workload::Ping => "ping".into(),
            Workload::Tcp(streams) => format!("TCP, streams: {streams}"),
            Workload::Loaded(1) => "ping beside TCP".into(),
            Workload::Loaded(streams) => format!("ping beside TCP, streams: {streams}"),
            Workload::Web => "wget".into(),
            Workload::Udp(payload) => format!("UDP, {payload} bytes"),
        }
    }
}

/// The running network and its two ends.
struct ProgramBench {
    site: RunningNetwork,
    from: usize,
    to: usize,
    far: IpAddr,
}

impl ProgramBench {
    fn start(
        network: Network,
        executable: &Executable,
        folder: &Path,
        extra: &str,
    ) -> Result<ProgramBench> {
        let end = |name| network.topology().find(name).context("the network needs h1 and h2");
        let (h1, h2) = (end(FROM)?, end(TO)?);
        let behind = gateways::behind(network.topology());
        let machine = |host| behind.iter().find(|(_, gateway)| *gateway == host).map(|m| m.0);
        let (from, to) = (machine(h1).unwrap_or(h1), machine(h2).unwrap_or(h2));
        let mut site =
            RunningNetwork::start_after(network, executable, folder, extra, gateways::prepare)?;
        site.wait_until_up(PATIENCE)?;
        let far = match machine(h2) {
            Some(machine) => site.network().ip_of(h2, machine)?,
            None => site.interface(h2)?,
        };
        levels::wait_for_direct(&mut site, h1, "h2")?;
        let bench = ProgramBench { site, from, to, far };
        let first = bench.ping(0.5)?;
        ensure!(first.is_finite(), "no answer over the interface:\n{}", bench.site.log_end(h1));
        Ok(bench)
    }

    fn measure(&self, workload: Workload, seconds: f64, udp_mbit: f64) -> Result<RunRecord> {
        let used = || self.site.nodes().map(|node| (node.cpu_s(), node.kernel_s()));
        let before: Vec<(f64, f64)> = used().collect();
        let mut figures = match workload {
            Workload::Ping => vec![figure("ping_ms", "", self.ping(seconds)?)],
            Workload::Tcp(streams) => {
                vec![figure("tcp_mbit", "", self.tcp(&streams.to_string(), seconds)?)]
            }
            Workload::Web => vec![figure("wget_mbit", "", self.wget(seconds)?)],
            Workload::Loaded(streams) => std::thread::scope(|scope| {
                let load = scope.spawn(move || self.tcp(&streams.to_string(), seconds + 1.0));
                std::thread::sleep(Duration::from_millis(700));
                let ping = self.ping(seconds - 0.5);
                let rate = load.join().map_err(|_| anyhow::anyhow!("the load panicked"))??;
                Ok::<_, anyhow::Error>(vec![
                    figure("ping_ms", "", ping?),
                    figure("tcp_mbit", "", rate),
                ])
            })?,
            Workload::Udp(payload) => self.udp(payload, seconds, udp_mbit)?,
        };
        let mut nodes = Vec::new();
        for ((node, after), before) in self.site.nodes().zip(used()).zip(&before) {
            let name = node.name().to_owned();
            let memory_bytes = node.usage().memory_bytes;
            let cpu_s = after.0 - before.0;
            figures.push(figure("cpu_s", &name, cpu_s));
            figures.push(figure("kernel_s", &name, after.1 - before.1));
            figures.push(figure("memory_mb", &name, memory_bytes as f64 / 1e6));
            nodes.push(NodeUse { name, cpu_s, memory_bytes });
        }
        Ok(RunRecord { seconds, nodes, figures, ..RunRecord::default() })
    }

    /// Mean round trip in milliseconds; NaN without answers.
    fn ping(&self, seconds: f64) -> Result<f64> {
        let words = pings::arguments(self.far, seconds);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        Ok(pings::mean_ms(&self.run("ping", &words)?))
    }

    /// Received payload in Mbit/s.
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

    /// Rate of a file over HTTP, in Mbit/s.
    fn wget(&self, seconds: f64) -> Result<f64> {
        let server = self.site.network().namespace(self.to).context("no namespace")?;
        let listener = server.enter(|| web::listen(self.far))?;
        let host = match self.far {
            IpAddr::V4(far) => far.to_string(),
            IpAddr::V6(far) => format!("[{far}]"),
        };
        let url = format!("http://{host}:{}/zeroes", web::PORT);
        let words = ["-q", "--tries=1", "--timeout=10", "--no-proxy", "-O", "/dev/null", &url];
        std::thread::scope(|scope| {
            let served = scope.spawn(|| web::serve(&listener, seconds));
            let text = self.run("wget", &words);
            let served = served.join().map_err(|_| anyhow::anyhow!("the server panicked"))?;
            text.context("is wget installed and in the search path?")?;
            Ok(served? * 8.0 / 1e6)
        })
    }

    fn iperf(&self, words: &[&str], seconds: f64) -> Result<Value> {
        let seconds = seconds.to_string();
        let words = [&["-t", &seconds], words].concat();
        iperf(self.site.network(), (self.from, self.to), self.far, &words)
    }

    /// Runs a program in the namespace of the first end; returns its output.
    fn run(&self, program: &str, words: &[&str]) -> Result<String> {
        run_at(self.site.network(), self.from, program, words)
    }
}

/// Runs a program at a node's machine; returns its output.
pub(crate) fn run_at(
    network: &Network,
    node: usize,
    program: &str,
    words: &[&str],
) -> Result<String> {
    let mut command = Command::new(program);
    command.args(words).stdin(Stdio::null());
    let namespace = network.namespace(node).context("no namespace")?;
    let output = namespace.enter(|| command.output().with_context(|| program.to_owned()))?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
