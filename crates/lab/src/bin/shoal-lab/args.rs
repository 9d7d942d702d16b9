//! The command line.

use std::path::PathBuf;

use clap::{Parser, Subcommand, ValueEnum};
use shoal_cli::commands::{Receive, Send};
use shoal_cli::manual::{Completions, Man};
use shoal_cli::options;
use shoal_cli::units::Bytes;
use shoal_lab::Rate;
use shoal_lab::attack::recognise::CAPTURES_EACH;

const EXAMPLES: &str = "\
Examples:
  shoal-lab demo                             nine nodes on this machine, a file, a cut link
  shoal-lab list                             the experiments that come with the program
  shoal-lab run dynamic-routing              one of them, and its report
  shoal-lab sim --seed 123                   a network under a virtual clock
  shoal-lab model --figure 6                 what mixes cost TCP
  shoal-lab attack --quick                   what mixes and cover hide

Demo and experiments start their nodes themselves. As root they build networks of namespaces;
without root they use forwarders on the loopback, and experiments with delay, TCP or floods don't
run.

Exit codes:
  0  done
  1  failed, or something does not hold
  2  wrong command line
  4  scenario wrong
  130  stopped by Ctrl-C";

/// Networks of Shoal nodes on this machine, real and simulated: the demo, experiments, the
/// simulator.
#[derive(Parser, Debug)]
#[command(name = "shoal-lab", version, after_help = EXAMPLES, after_long_help = EXAMPLES)]
#[command(max_term_width = 100, subcommand_help_heading = "Commands")]
#[command(arg = options::json(), arg = options::colour())]
pub struct Args {
    #[command(subcommand)]
    pub verb: Verb,
}

#[derive(Subcommand, Debug)]
pub enum Verb {
    /// A whole network on this machine: three routers, six hosts, a file, a cut link.
    #[command(after_help = DEMO_EXAMPLES)]
    #[command(arg = options::json())]
    Demo(Demo),
    /// List the scenarios that come with the program, and their cases.
    #[command(arg = options::json())]
    List,
    /// Run a scenario; write report.json and report.html. Fails if something does not hold.
    #[command(after_help = RUN_EXAMPLES)]
    #[command(arg = options::json())]
    Run(Run),
    /// Write the HTML page of a report.json again, and print its figures.
    #[command(after_help = "Example:\n  shoal-lab report lab-reports/max-performance")]
    #[command(arg = options::json())]
    Report(Page),
    /// Put two reports side by side.
    #[command(after_help = "Example:\n  shoal-lab compare lab-reports/before lab-reports/after")]
    #[command(arg = options::json())]
    Compare(Compare),
    /// Shoal, TCP, scp, UFTP and wireguard-go on the same links, as far as they are installed.
    #[command(after_help = "Example:\n  shoal-lab bench --rate 1gbit --loss 0.01")]
    #[command(arg = options::json())]
    Bench(Bench),
    /// Whole networks under a virtual clock, with losses, cuts and crashes chosen by a seed.
    #[command(after_help = SIM_EXAMPLES)]
    #[command(arg = options::json())]
    Sim(Sim),
    /// What mixes cost TCP: a paper's numbers, its formulas, the corrected ones, simulated runs.
    #[command(after_help = MODEL_EXAMPLES)]
    #[command(arg = options::json())]
    Model(Model),
    /// What mixes and cover hide: attackers compare access links, in virtual time.
    #[command(after_help = ATTACK_EXAMPLES)]
    #[command(arg = options::json())]
    Attack(Attack),
    /// Print a completion script for a shell.
    #[command(after_help = COMPLETIONS_EXAMPLE)]
    Completions(Completions),
    /// Write the manual pages into a folder, or the first one to standard output.
    #[command(after_help = "Example:\n  shoal-lab man | man -l -")]
    Man(Man),
    /// What `shoal run` does: be a node of a network that this program builds.
    #[command(hide = true, args = [options::config(), options::socket()])]
    Node(Node),
    /// What `shoal send` does, beside such a node.
    #[command(hide = true, args = options::all())]
    Send(Send),
    /// What `shoal receive` does, beside such a node.
    #[command(hide = true, args = options::all())]
    Receive(Receive),
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
  shoal-lab model                            all that is wrong, all tables, all figures
  shoal-lab model --figure 12 --seconds 300
  shoal-lab model --out model.html           the same with plots";
const ATTACK_EXAMPLES: &str = "\
Examples:
  shoal-lab attack                           everything; some minutes
  shoal-lab attack cover active
  shoal-lab attack --quick                   small networks, for a first look
  shoal-lab attack --recognise               is it Shoal? as root; some minutes";
const DEMO_EXAMPLES: &str = "\
Examples:
  shoal-lab demo
  shoal-lab demo --size 50M --no-cut
  shoal-lab demo --loss 0.0717 --rate 1gbit       20% loss over three links
  shoal-lab demo --size 100M --observe            does what passes look random?";

#[derive(clap::Args, Debug)]
pub struct Demo {
    /// Bytes to transfer.
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
    /// Which network: the paper's three routers and six hosts, or h1 - r1 - r2 - h2.
    #[arg(long, value_enum, default_value = "paper")]
    pub topology: Topology,
    /// How the links are made; auto means namespaces as root, and forwarders otherwise.
    #[arg(long, value_enum, default_value = "auto")]
    pub links: Links,
    /// Links have IPv6 addresses.
    #[arg(long)]
    pub ipv6: bool,
    /// Watch the links of the sender's router and test whether what passes looks random; as root.
    #[arg(long)]
    pub observe: bool,
    /// Write what passes there to this file, for tcpdump or Wireshark; as root.
    #[arg(long, value_name = "FILE.pcap")]
    pub capture: Option<PathBuf>,
    /// Leave the folder with configurations, keys and logs in place.
    #[arg(long)]
    pub keep: bool,
    /// Print nothing but the result.
    #[arg(short, long)]
    pub quiet: bool,
}

/// Which network a demo builds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Topology {
    Paper,
    Chain,
}

/// How a demo's links are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Links {
    Auto,
    Namespaces,
    Loopback,
}

#[derive(clap::Args, Debug)]
pub struct Sim {
    /// Everything follows from it: the same seed gives the same run.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// How many seeds to run, counting up.
    #[arg(long, default_value_t = 1,
          value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub runs: u64,
    /// The paper's network without faults instead of one that the seed chooses.
    #[arg(long)]
    pub calm: bool,
    /// Some hosts have wires of their own, and make direct links over them.
    #[arg(long, conflicts_with_all = ["calm", "replay", "nodes", "hours", "speed"])]
    pub direct: bool,
    /// Half of all pairs of hosts speak over circuits alone.
    #[arg(long, conflicts_with_all = ["calm", "direct", "replay", "nodes", "hours", "speed"])]
    pub circuits: bool,
    /// The same, and relays mix. How long cells wait follows from keys and not from the seed: a run
    /// does not repeat cell by cell.
    #[arg(long, conflicts_with_all = ["calm", "direct", "circuits", "replay", "nodes", "hours",
          "speed"])]
    pub mixes: bool,
    /// The links of all hosts are covered; with odd seeds hosts speak over circuits, too.
    #[arg(long, conflicts_with_all = ["calm", "direct", "circuits", "mixes", "replay", "nodes",
          "hours", "speed"])]
    pub cover: bool,
    /// The addresses of all links hop; with --hours those of two routers and three hosts, from once
    /// a second to once an hour.
    #[arg(long, conflicts_with_all = ["calm", "direct", "circuits", "mixes", "cover", "replay",
          "nodes", "speed"])]
    pub hop: bool,
    /// Workers of each node; without it the seed chooses.
    #[arg(long, conflicts_with = "replay", value_parser = clap::value_parser!(u32).range(1..=4))]
    pub workers: Option<u32>,
    /// Run what a file says: a failure that was kept, or a regression.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["seed", "runs", "calm"])]
    pub replay: Option<PathBuf>,
    /// A big network instead: routers in a random graph of about three wires each.
    #[arg(long, value_name = "ROUTERS", conflicts_with_all = ["calm", "replay"],
          value_parser = clap::value_parser!(u32).range(1..=20_000))]
    pub nodes: Option<u32>,
    /// Hosts of the big network.
    #[arg(long, default_value_t = 10, requires = "nodes",
          value_parser = clap::value_parser!(u32).range(0..=20_000))]
    pub hosts: u32,
    /// How long it lasts, in hours of virtual time. Without --nodes: the paper's network, with a
    /// few files, cuts and crashes every hour.
    #[arg(long, conflicts_with_all = ["calm", "replay"],
          value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub hours: Option<u32>,
    /// Measure how many frames the simulator passes from node to node in a second of one core,
    /// sealed with cheap ciphers and with the real ones.
    #[arg(long, conflicts_with_all = ["calm", "replay", "nodes", "hours"])]
    pub speed: bool,
    /// Leave a failing run as it is instead of looking for a small one that fails in the same way.
    #[arg(long)]
    pub no_shrink: bool,
    /// Where to write failing runs, made small, for --replay.
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub keep: PathBuf,
}

#[derive(clap::Args, Debug)]
pub struct Model {
    /// One figure of the paper alone, 4 to 15.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(4..=15))]
    pub figure: Option<u32>,
    /// Simulated seconds of each run.
    #[arg(long, value_name = "S", default_value_t = 60,
          value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub seconds: u32,
    /// Runs of each case, with seeds that count up from 1; figures are means.
    #[arg(long, value_name = "K", default_value_t = 3,
          value_parser = clap::value_parser!(u32).range(1..=100))]
    pub seeds: u32,
    /// Where a page with plots goes; none without it.
    #[arg(short, long, value_name = "FILE")]
    pub out: Option<PathBuf>,
}

#[derive(clap::Args, Debug)]
pub struct Attack {
    /// Which scenarios; all, if none is named.
    #[arg(value_enum, value_name = "SCENARIO")]
    pub scenarios: Vec<AttackOn>,
    /// Recorded links instead: a file that names captures and describes their network, or with
    /// --recognise names their programs (docs/anonymity.md).
    #[arg(long, value_name = "FILE.toml", conflicts_with_all = ["scenarios", "quick"])]
    pub capture: Option<PathBuf>,
    /// A censor instead: which program do datagrams come from? Records Shoal and other programs, as
    /// root.
    #[arg(long, conflicts_with_all = ["scenarios", "quick"])]
    pub recognise: bool,
    /// Captures of each activity of each program.
    #[arg(long, value_name = "N", default_value_t = CAPTURES_EACH, requires = "recognise",
          conflicts_with = "capture", value_parser = clap::value_parser!(u32).range(2..=100))]
    pub each: u32,
    /// Small networks: the figures are rough.
    #[arg(long)]
    pub quick: bool,
    /// Where report.html and report.json go.
    #[arg(short, long, value_name = "DIR", default_value = "lab-reports/attack")]
    pub out: PathBuf,
    /// Say nothing while it goes on.
    #[arg(short, long)]
    pub quiet: bool,
}

/// What is attacked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum AttackOn {
    /// Relays that pass cells on at once.
    None,
    /// Timed mixes of 5 ms.
    Timed,
    /// Stop-and-go mixes of 5 ms.
    StopAndGo,
    /// Constant rate on all access links.
    Cover,
    /// All of these, by an attacker who marks flows.
    Active,
    /// Members who ask covered hosts for answers, and compare how long these take.
    Members,
    /// Success over added latency.
    Latency,
    /// Success over the time watched.
    Time,
}

#[derive(clap::Args, Debug)]
pub struct Run {
    /// Name of a shipped scenario, or a TOML file.
    pub scenario: String,
    /// Only the case of this name, or those whose name begins so.
    #[arg(long, value_name = "NAME")]
    pub case: Option<String>,
    /// Runs of each case; figures are medians.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    pub repeat: Option<u32>,
    /// The nodes run this `shoal`, in place of the one in this program: to compare two versions.
    #[arg(long, value_name = "FILE")]
    pub shoal: Option<PathBuf>,
    /// Where the report goes; the default is lab-reports/NAME.
    #[arg(short, long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Say nothing while it goes on.
    #[arg(short, long)]
    pub quiet: bool,
}

/// What an experiment changes of a node, and no configuration does.
#[derive(clap::Args, Debug)]
pub struct Node {
    /// How long each circuit lives, in milliseconds.
    #[arg(long)]
    pub circuit_life_ms: Option<u64>,
    /// Leave packets in any order in which circuits bring them.
    #[arg(long)]
    pub any_order: bool,
}

#[derive(clap::Args, Debug)]
pub struct Page {
    /// A report.json, or its folder.
    pub report: PathBuf,
}

#[derive(clap::Args, Debug)]
pub struct Compare {
    /// A report.json, or its folder.
    pub a: PathBuf,
    /// Another one.
    pub b: PathBuf,
    /// Where the page goes.
    #[arg(short, long, value_name = "FILE", default_value = "compare.html")]
    pub out: PathBuf,
}

#[derive(clap::Args, Debug)]
pub struct Bench {
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
    /// Runs of each; figures are medians.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub repeat: u32,
    /// Where the report goes.
    #[arg(short, long, value_name = "DIR", default_value = "lab-reports/bench")]
    pub out: PathBuf,
}

/// Rate of a link; none for no bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkRate(pub Option<Rate>);

fn link_rate(text: &str) -> Result<LinkRate, String> {
    match text {
        "none" => Ok(LinkRate(None)),
        text => text.parse().map(|rate| LinkRate(Some(rate))),
    }
}

/// A rate as it is written, if it is one.
fn rate(text: &str) -> Result<String, String> {
    link_rate(text).map(|_| text.to_string())
}

/// Reads a number of bytes that is not 0.
fn some_bytes(text: &str) -> Result<Bytes, String> {
    match text.parse::<Bytes>()? {
        Bytes(0) => Err("nothing is not a size: expected 1 or more".into()),
        bytes => Ok(bytes),
    }
}

/// Reads a share from 0 to 0.9.
fn fraction(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(f) if (0.0..=0.9).contains(&f) => Ok(f),
        _ => Err("expected a fraction from 0 to 0.9, such as 0.01 for 1%".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_shares_and_sizes_are_read() {
        assert_eq!(link_rate("none"), Ok(LinkRate(None)));
        assert_eq!(link_rate("1gbit"), Ok(LinkRate(Some(Rate(1_000_000_000)))));
        assert_eq!(fraction("0.07"), Ok(0.07));
        assert_eq!(some_bytes("50M"), Ok(Bytes(50_000_000)));
        assert!(link_rate("fast").is_err() && fraction("1.5").is_err() && some_bytes("0").is_err());
    }
}
