//! The command line.

use std::path::PathBuf;

use clap::{Parser, Subcommand, ValueEnum};
use shoal_cli::commands::{ReceiveArgs, SendArgs};
use shoal_cli::manual::{Completions, Man};
use shoal_cli::options;
use shoal_cli::units::Bytes;
use shoal_lab::Rate;
use shoal_lab::attack::recognise::CAPTURES_EACH;

const EXAMPLES: &str = "\
Examples:
  shoal-lab demo                             nine nodes on this machine, a file, a cut link
  shoal-lab list                             the shipped experiments
  shoal-lab run dynamic-routing              one experiment, and its report
  shoal-lab sim --seed 123                   a network under a virtual clock
  shoal-lab model --figure 6                 cost of mixes for TCP
  shoal-lab attack --quick                   anonymity with mixes and cover

Demo and experiments start their nodes themselves. As root they build networks of namespaces;
without root they use forwarders on the loopback, and experiments with delay, TCP or floods don't
run.

Exit codes:
  0  done
  1  failed, or a condition failed
  2  wrong command line
  4  scenario wrong
  130  stopped by Ctrl-C";

/// Networks of Shoal nodes on this machine, real and simulated: the demo, experiments, the
/// simulator.
#[derive(Parser, Debug)]
#[command(name = "shoal-lab", version, after_help = EXAMPLES, after_long_help = EXAMPLES)]
#[command(max_term_width = 100, subcommand_help_heading = "Commands")]
#[command(arg = options::json(), arg = options::colour())]
pub struct LabArgs {
    #[command(subcommand)]
    pub verb: LabCommand,
}

#[derive(Subcommand, Debug)]
pub enum LabCommand {
    /// Run a whole network on this machine: three routers, six hosts, a file, a cut link.
    #[command(after_help = DEMO_EXAMPLES)]
    #[command(arg = options::json())]
    Demo(Demo),
    /// List the shipped scenarios and their cases.
    #[command(arg = options::json())]
    List,
    /// Run a scenario; write report.json and report.html. Fails if a condition fails.
    #[command(after_help = RUN_EXAMPLES)]
    #[command(arg = options::json())]
    Run(RunArgs),
    /// Write the HTML page of a report.json again, and print its figures.
    #[command(after_help = "Example:\n  shoal-lab report lab-reports/max-performance")]
    #[command(arg = options::json())]
    Report(ReportArgs),
    /// Compare two reports.
    #[command(after_help = "Example:\n  shoal-lab compare lab-reports/before lab-reports/after")]
    #[command(arg = options::json())]
    Compare(Compare),
    /// Compare Shoal, TCP, scp, UFTP and wireguard-go on the same links, as far as installed.
    #[command(after_help = "Example:\n  shoal-lab bench --rate 1gbit --loss 0.01")]
    #[command(arg = options::json())]
    Bench(BenchArgs),
    /// Simulate whole networks under a virtual clock, with losses, cuts and crashes chosen by a
    /// seed.
    #[command(after_help = SIM_EXAMPLES)]
    #[command(arg = options::json())]
    Sim(Sim),
    /// Show the cost of mixes for TCP: a paper's numbers, its formulas, corrected formulas,
    /// simulated runs.
    #[command(after_help = MODEL_EXAMPLES)]
    #[command(arg = options::json())]
    Model(Model),
    /// Measure anonymity with mixes and cover: attackers compare access links, in virtual time.
    #[command(after_help = ATTACK_EXAMPLES)]
    #[command(arg = options::json())]
    Attack(AttackArgs),
    /// Print a completion script for a shell.
    #[command(after_help = COMPLETIONS_EXAMPLE)]
    Completions(Completions),
    /// Write the manual pages into a folder, or the first one to standard output.
    #[command(after_help = "Example:\n  shoal-lab man | man -l -")]
    Man(Man),
    /// Run a node of a network that this program builds, like `shoal run`.
    #[command(hide = true, args = [options::config(), options::socket()])]
    Node(NodeArgs),
    /// Send a file beside such a node, like `shoal send`.
    #[command(hide = true, args = options::all())]
    Send(SendArgs),
    /// Receive files beside such a node, like `shoal receive`.
    #[command(hide = true, args = options::all())]
    Receive(ReceiveArgs),
}

const COMPLETIONS_EXAMPLE: &str =
    "Example:\n  shoal-lab completions bash > /etc/bash_completion.d/shoal-lab";

const RUN_EXAMPLES: &str = "\
Examples:
  shoal-lab run max-performance
  shoal-lab run my.toml --repeat 5
  shoal-lab run loss-sweep --case '80 ms'";

const SIM_EXAMPLES: &str = "Examples:
  shoal-lab sim --seed 123
  shoal-lab sim --seed 1 --runs 100
  shoal-lab sim --replay sim-failure-123.json
  shoal-lab sim --nodes 1000 --hosts 10
  shoal-lab sim --hours 24
  shoal-lab sim --speed";
const MODEL_EXAMPLES: &str = "\
Examples:
  shoal-lab model                            all errors, tables and figures of the paper
  shoal-lab model --figure 12 --seconds 300
  shoal-lab model --out model.html           all, as a page with plots";
const ATTACK_EXAMPLES: &str = "\
Examples:
  shoal-lab attack                           everything; some minutes
  shoal-lab attack cover active
  shoal-lab attack --quick                   small networks, rough figures
  shoal-lab attack --recognise               which program is it? as root; some minutes";
const DEMO_EXAMPLES: &str = "\
Examples:
  shoal-lab demo
  shoal-lab demo --size 50M --no-cut
  shoal-lab demo --loss 0.0717 --rate 1gbit       20% loss over three links
  shoal-lab demo --size 100M --observe            does the traffic look random?";

#[derive(clap::Args, Debug)]
pub struct Demo {
    /// Size of the file in bytes.
    #[arg(long, default_value = "500M", value_parser = some_bytes)]
    pub size: Bytes,
    /// Rate of each link, such as 1gbit or 200mbit, or none.
    #[arg(long, default_value = "1gbit", value_parser = link_rate)]
    pub rate: LinkRate,
    /// Share of datagrams that each link loses, 0 to 0.9.
    #[arg(long, default_value_t = 0.0, value_parser = fraction)]
    pub loss: f64,
    /// Don't cut the link that carries the file.
    #[arg(long)]
    pub no_cut: bool,
    /// Network: the paper's three routers and six hosts, or h1 - r1 - r2 - h2.
    #[arg(long, value_enum, default_value = "paper")]
    pub topology: DemoTopology,
    /// Implementation of links; auto means namespaces as root, and forwarders otherwise.
    #[arg(long, value_enum, default_value = "auto")]
    pub links: DemoLinks,
    /// Use IPv6 addresses for links.
    #[arg(long)]
    pub ipv6: bool,
    /// Record the links of the sender's router, and test whether the traffic looks random; needs
    /// root.
    #[arg(long)]
    pub observe: bool,
    /// Write the recorded traffic to this file, for tcpdump or Wireshark; needs root.
    #[arg(long, value_name = "FILE.pcap")]
    pub capture: Option<PathBuf>,
    /// Keep the folder with configurations, keys and logs.
    #[arg(long)]
    pub keep: bool,
    /// Print nothing but the result.
    #[arg(short, long)]
    pub quiet: bool,
}

/// Network of a demo.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DemoTopology {
    Paper,
    Chain,
}

/// Implementation of a demo's links.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DemoLinks {
    Auto,
    Namespaces,
    Loopback,
}

#[derive(clap::Args, Debug)]
pub struct Sim {
    /// Seed of all random numbers: equal seeds give equal runs.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Number of seeds to run, counting up.
    #[arg(long, default_value_t = 1,
          value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub runs: u64,
    /// Simulate the paper's network without faults, instead of a network chosen by the seed.
    #[arg(long)]
    pub calm: bool,
    /// Give some hosts wires between them, for direct links.
    #[arg(long, conflicts_with_all = ["calm", "replay", "nodes", "hours", "speed"])]
    pub direct: bool,
    /// Let half of all pairs of hosts use circuits only.
    #[arg(long, conflicts_with_all = ["calm", "direct", "replay", "nodes", "hours", "speed"])]
    pub circuits: bool,
    /// Like --circuits, with mixing relays. Delays of cells follow from keys, not from the seed, so
    /// runs don't repeat cell by cell.
    #[arg(long, conflicts_with_all = ["calm", "direct", "circuits", "replay", "nodes", "hours",
          "speed"])]
    pub mixes: bool,
    /// Cover the links of all hosts; with odd seeds hosts also use circuits.
    #[arg(long, conflicts_with_all = ["calm", "direct", "circuits", "mixes", "replay", "nodes",
          "hours", "speed"])]
    pub cover: bool,
    /// Shift the addresses of all links. With --hours, shift those of two routers and three hosts,
    /// from once per second to once per hour.
    #[arg(long, conflicts_with_all = ["calm", "direct", "circuits", "mixes", "cover", "replay",
          "nodes", "speed"])]
    pub shift: bool,
    /// The former name of --shift.
    #[arg(long, hide = true)]
    pub hop: bool,
    /// Workers of each node; the default is chosen by the seed.
    #[arg(long, conflicts_with = "replay", value_parser = clap::value_parser!(u32).range(1..=4))]
    pub workers: Option<u32>,
    /// Run the scenario of a file: a kept failure, or a regression.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["seed", "runs", "calm"])]
    pub replay: Option<PathBuf>,
    /// Simulate a big network instead: routers in a random graph with about three wires each.
    #[arg(long, value_name = "ROUTERS", conflicts_with_all = ["calm", "replay"],
          value_parser = clap::value_parser!(u32).range(1..=20_000))]
    pub nodes: Option<u32>,
    /// Number of hosts of the big network.
    #[arg(long, default_value_t = 10, requires = "nodes",
          value_parser = clap::value_parser!(u32).range(0..=20_000))]
    pub hosts: u32,
    /// Length in hours of virtual time. Without --nodes, simulates the paper's network with a few
    /// files, cuts and crashes every hour.
    #[arg(long, conflicts_with_all = ["calm", "replay"],
          value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub hours: Option<u32>,
    /// Measure how many frames per second one core passes from node to node, with cheap ciphers and
    /// with the real ciphers.
    #[arg(long, conflicts_with_all = ["calm", "replay", "nodes", "hours"])]
    pub speed: bool,
    /// Keep a failing run as it is, instead of searching for a small run with the same failure.
    #[arg(long)]
    pub no_shrink: bool,
    /// Folder for failing runs, made small, for --replay.
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub keep: PathBuf,
}

#[derive(clap::Args, Debug)]
pub struct Model {
    /// Show only one figure of the paper, 4 to 15.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(4..=15))]
    pub figure: Option<u32>,
    /// Simulated seconds of each run.
    #[arg(long, value_name = "S", default_value_t = 60,
          value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub seconds: u32,
    /// Number of runs of each case, with seeds that count up from 1; figures are means.
    #[arg(long, value_name = "K", default_value_t = 3,
          value_parser = clap::value_parser!(u32).range(1..=100))]
    pub seeds: u32,
    /// File for a page with plots; without it, no page is written.
    #[arg(short, long, value_name = "FILE")]
    pub out: Option<PathBuf>,
}

#[derive(clap::Args, Debug)]
pub struct AttackArgs {
    /// Scenarios to run; all by default.
    #[arg(value_enum, value_name = "SCENARIO")]
    pub scenarios: Vec<AttackTarget>,
    /// Attack recorded links instead. The file names captures and describes their network, or with
    /// --recognise names their programs (docs/evidence/anonymity.md).
    #[arg(long, value_name = "FILE.toml", conflicts_with_all = ["scenarios", "quick"])]
    pub capture: Option<PathBuf>,
    /// Test a censor instead: which program sent a datagram? Records Shoal and other programs;
    /// needs root.
    #[arg(long, conflicts_with_all = ["scenarios", "quick"])]
    pub recognise: bool,
    /// Number of captures of each activity of each program.
    #[arg(long, value_name = "N", default_value_t = CAPTURES_EACH, requires = "recognise",
          conflicts_with = "capture", value_parser = clap::value_parser!(u32).range(2..=100))]
    pub each: u32,
    /// Use small networks: the figures are rough.
    #[arg(long)]
    pub quick: bool,
    /// Folder for report.html and report.json.
    #[arg(short, long, value_name = "DIR", default_value = "lab-reports/attack")]
    pub out: PathBuf,
    /// Print no progress.
    #[arg(short, long)]
    pub quiet: bool,
}

/// Target of an attack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum AttackTarget {
    /// Relays that pass cells on at once.
    None,
    /// Timed mixes of 5 ms.
    Timed,
    /// Stop-and-go mixes of 5 ms.
    StopAndGo,
    /// Constant rate on all access links.
    Cover,
    /// All targets above, by an attacker who marks flows.
    Active,
    /// Members who query covered hosts, and compare response times.
    Members,
    /// Success over added latency.
    Latency,
    /// Success over observed time.
    Time,
}

#[derive(clap::Args, Debug)]
pub struct RunArgs {
    /// Name of a shipped scenario, or a TOML file.
    pub scenario: String,
    /// Run only the case with this name. If no case has it, run the cases whose names begin with
    /// it.
    #[arg(long, value_name = "NAME")]
    pub case: Option<String>,
    /// Number of runs of each case; figures are medians.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    pub repeat: Option<u32>,
    /// Run this `shoal` as nodes, instead of the one in this program: to compare two versions.
    #[arg(long, value_name = "FILE")]
    pub shoal: Option<PathBuf>,
    /// Folder for the report; the default is lab-reports/NAME.
    #[arg(short, long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Print no progress.
    #[arg(short, long)]
    pub quiet: bool,
}

/// Settings of a node that an experiment changes, and that no configuration has.
#[derive(clap::Args, Debug)]
pub struct NodeArgs {
    /// Life of each circuit, in milliseconds.
    #[arg(long)]
    pub circuit_life_ms: Option<u64>,
    /// Deliver packets in the order in which circuits bring them.
    #[arg(long)]
    pub any_order: bool,
}

#[derive(clap::Args, Debug)]
pub struct ReportArgs {
    /// Path of a report.json, or its folder.
    pub report: PathBuf,
}

#[derive(clap::Args, Debug)]
pub struct Compare {
    /// Path of a report.json, or its folder.
    pub a: PathBuf,
    /// Path of the other report.json, or its folder.
    pub b: PathBuf,
    /// File for the page.
    #[arg(short, long, value_name = "FILE", default_value = "compare.html")]
    pub out: PathBuf,
}

#[derive(clap::Args, Debug)]
pub struct BenchArgs {
    /// Rate of every link, such as 1gbit, or none.
    #[arg(long, default_value = "1gbit", value_parser = rate)]
    pub rate: String,
    /// Share of packets that every link loses, 0 to 0.9.
    #[arg(long, default_value_t = 0.0, value_parser = fraction)]
    pub loss: f64,
    /// One-way delay between the routers, in milliseconds.
    #[arg(long, default_value_t = 0.0)]
    pub delay_ms: f64,
    /// Size of the file in millions of bytes.
    #[arg(long, default_value_t = 200.0)]
    pub size_mb: f64,
    /// Number of runs of each program; figures are medians.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub repeat: u32,
    /// Folder for the report.
    #[arg(short, long, value_name = "DIR", default_value = "lab-reports/bench")]
    pub out: PathBuf,
}

/// Rate of a link; `None` for no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkRate(pub Option<Rate>);

fn link_rate(text: &str) -> Result<LinkRate, String> {
    match text {
        "none" => Ok(LinkRate(None)),
        text => text.parse().map(|rate| LinkRate(Some(rate))),
    }
}

/// Checks a rate, and returns it unchanged.
fn rate(text: &str) -> Result<String, String> {
    link_rate(text).map(|_| text.to_string())
}

/// Parses a number of bytes above 0.
fn some_bytes(text: &str) -> Result<Bytes, String> {
    match text.parse::<Bytes>()? {
        Bytes(0) => Err("expected 1 or more bytes".into()),
        bytes => Ok(bytes),
    }
}

/// Parses a share from 0 to 0.9.
fn fraction(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(f) if (0.0..=0.9).contains(&f) => Ok(f),
        _ => Err("expected a fraction from 0 to 0.9, such as 0.01 for 1%".into()),
    }
}
