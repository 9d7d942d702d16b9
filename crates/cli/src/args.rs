//! The command line.

use std::path::PathBuf;

use clap::builder::NonEmptyStringValueParser;
use clap::{Parser, Subcommand, ValueEnum};
use clap_complete::Shell;

use crate::options;
use crate::units::Bytes;

const EXAMPLES: &str = "\
Examples:
  shoal demo                                 nine nodes on this machine, a file, a cut link
  shoal genkey -o node.key                   a key for a new node
  shoal pubkey node.key                      its public half, for hosts.toml
  shoal check -c node.toml                   is everything in order?
  shoal run -c node.toml                     be a node
  shoal                                      how is the node?
  shoal receive --dir inbox --from alice     take files from alice
  shoal send report.pdf photos/ bob          send a file and a folder to bob

Exit codes:
  0  done
  1  failed
  2  wrong command line
  3  node or host unreachable, or no answer in time
  4  configuration, hosts file or key file wrong
  5  the receiver refused a file (it exists, no space, too large, nobody receives)
  130  stopped by Ctrl-C";

/// An anonymity network that people run themselves, at VPN speed.
#[derive(Parser, Debug)]
#[command(name = "shoal", version, after_help = EXAMPLES, after_long_help = EXAMPLES)]
#[command(max_term_width = 100, subcommand_help_heading = "Commands")]
#[command(args = options::all())]
pub struct Args {
    /// When to use colours.
    #[arg(long = "color", value_enum, default_value = "auto", global = true, value_name = "WHEN")]
    pub colour: Colour,
    #[command(subcommand)]
    pub verb: Option<Verb>,
}

/// When to use colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Colour {
    /// On a terminal, unless NO_COLOR is set.
    Auto,
    Always,
    Never,
}

#[derive(Subcommand, Debug)]
pub enum Verb {
    /// Be a node, in the foreground, until SIGTERM or Ctrl-C. SIGHUP reloads.
    #[command(after_help = "Example:\n  shoal run -c /etc/shoal/node.toml")]
    #[command(args = [options::config(), options::socket()])]
    Run,
    /// Check a configuration and all that it names; says every fault, starts nothing.
    #[command(after_help = "Example:\n  shoal check -c node.toml && systemctl restart shoal")]
    #[command(args = [options::config(), options::json()])]
    Check,
    /// Make a private key, or with --network a network's secret.
    #[command(after_help = GENKEY_EXAMPLES)]
    #[command(arg = options::json())]
    Genkey(Genkey),
    /// Print the public half of a private key: the `key` in hosts.toml.
    #[command(after_help = "Examples:\n  shoal pubkey node.key\n  shoal genkey | shoal pubkey")]
    #[command(arg = options::json())]
    Pubkey(Pubkey),
    /// The node in short (the default command).
    #[command(args = options::all())]
    Status,
    /// The node's neighbours.
    #[command(args = options::all())]
    Peers,
    /// The routing table: destination, next hop, cost, age.
    #[command(args = options::all())]
    Routes,
    /// The network's members: names, addresses, who is there, when they were heard last.
    #[command(after_help = HOSTS_EXAMPLES)]
    #[command(args = options::all())]
    Hosts,
    /// Stream changes of routes and links until Ctrl-C.
    #[command(args = options::all())]
    Monitor,
    /// The node live: rates, loss, round trips, drops. Keys sort and pause.
    #[command(after_help = TOP_EXAMPLES)]
    #[command(args = options::all())]
    Top(Top),
    /// Measure the round trip to a host.
    #[command(after_help = "Example:\n  shoal ping -n 5 bob")]
    #[command(args = options::all())]
    Ping(Ping),
    /// Send files and folders to a host.
    #[command(after_help = SEND_EXAMPLES)]
    #[command(args = options::all())]
    Send(Send),
    /// Take files from hosts into a folder.
    #[command(after_help = RECEIVE_EXAMPLES)]
    #[command(args = options::all())]
    Receive(Receive),
    /// The node's counters as Prometheus text.
    #[command(args = options::all())]
    Metrics,
    /// Let the node read its configuration again, as SIGHUP does.
    #[command(args = options::all())]
    Reload,
    /// A whole network on this machine: three routers, six hosts, a file, a cut link.
    #[command(after_help = DEMO_EXAMPLES)]
    #[command(arg = options::json())]
    Demo(Demo),
    /// Whole networks under a virtual clock, with losses, cuts and crashes chosen by a seed.
    #[command(after_help = SIM_EXAMPLES)]
    #[command(arg = options::json())]
    Sim(Sim),
    /// Experiments on networks of this machine: run, report, compare.
    #[command(arg = options::json().global(true))]
    Lab(crate::lab::Lab),
    /// Sign packets as a member of a group, verify such packets, and open who signed.
    #[command(arg = options::json().global(true))]
    Attribution(crate::attribution::AttributionArgs),
    /// Say who belongs to a network and who may reach whom, with a key kept off the nodes.
    #[command(arg = options::json().global(true))]
    Authority(crate::authority::AuthorityArgs),
    /// Print a completion script for a shell.
    #[command(after_help = "Example:\n  shoal completions bash > /etc/bash_completion.d/shoal")]
    Completions(Completions),
    /// Write the manual pages into a folder, or the first one to standard output.
    #[command(after_help = "Example:\n  shoal man | man -l -")]
    Man(Man),
}

const HOSTS_EXAMPLES: &str = "\
Examples:
  shoal hosts
  shoal hosts --json | jq -r '.hosts[] | select(.online) | .name'

A node knows who is there without asking: its neighbours, whom it has heard within half a minute,
and, on a router, the routers that it has a route to and the hosts beside it. Of others it says
\"?\"; `shoal ping NAME` asks.";

const TOP_EXAMPLES: &str = "\
Examples:
  shoal top
  shoal top --json --count 10 --interval 0.5 | jq .top.total.bytes_in

Without a terminal each sample is printed as text. Rates per link need `per_peer = true` under
[metrics] in the node's configuration; hosts that talk over the node are never named.";

#[derive(clap::Args, Debug)]
pub struct Top {
    /// Seconds between samples.
    #[arg(short, long, default_value_t = 1.0, value_name = "SECONDS")]
    #[arg(value_parser = crate::units::interval)]
    pub interval: f64,
    /// End after this many samples.
    #[arg(short = 'n', long, value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
}

const GENKEY_EXAMPLES: &str = "\
Examples:
  shoal genkey -o node.key
  shoal genkey --network -o network.key
  umask 077; shoal genkey > node.key";

#[derive(clap::Args, Debug)]
pub struct Genkey {
    /// Write here (mode 600, never over an existing file) instead of to standard output.
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Make the secret that all nodes of one network share.
    #[arg(long)]
    pub network: bool,
}

#[derive(clap::Args, Debug)]
pub struct Pubkey {
    /// Key file; standard input when absent or "-".
    pub file: Option<PathBuf>,
    /// Print the UDP port of a node with this key whose configuration names none.
    #[arg(long)]
    pub port: bool,
}

#[derive(clap::Args, Debug)]
pub struct Ping {
    /// Name in hosts.toml.
    pub host: String,
    /// How many echoes.
    #[arg(short = 'n', long, default_value_t = 4)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pub count: u32,
    /// Seconds between echoes.
    #[arg(short, long, default_value_t = 1.0, value_parser = crate::units::seconds)]
    pub interval: f64,
    /// Seconds to wait for an answer.
    #[arg(short = 'W', long, default_value_t = 5.0, value_parser = crate::units::seconds)]
    pub timeout: f64,
}

const SEND_EXAMPLES: &str = "\
Examples:
  shoal send report.pdf bob
  shoal send photos/ notes.txt bob
  shoal send -c node.toml backup.tar bob      without a running node: be one while sending

An interrupted transfer resumes when the same file is sent again. Folders are sent with everything
beneath them; symbolic links, special files and empty folders in them are skipped, and each is
named. What can't be sent (a name that no receiver takes, a file that can't be read) is named too;
the rest is sent, and the command fails. Symbolic links named on the command line are followed.
Files that the receiver has already, with the same content, are not sent again.";

#[derive(clap::Args, Debug)]
pub struct Send {
    /// Files or folders.
    #[arg(required = true, num_args = 1.., value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Name of a host in hosts.toml.
    #[arg(value_name = "HOST", value_parser = NonEmptyStringValueParser::new())]
    pub host: String,
    /// Files on the way at the same time.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u8).range(1..=32))]
    pub parallel: u8,
    /// Seconds that a receiver may take to appear, asked again every second.
    #[arg(long, default_value_t = 0.0, value_name = "SECONDS")]
    #[arg(value_parser = crate::units::seconds)]
    pub wait: f64,
    /// Say nothing but failures.
    #[arg(short, long)]
    pub quiet: bool,
    /// Name every file, also when there are many.
    #[arg(short, long, conflicts_with = "quiet")]
    pub verbose: bool,
}

const RECEIVE_EXAMPLES: &str = "\
Examples:
  shoal receive --dir inbox --from alice --from bob
  shoal receive --dir inbox --from any --max-size 2G
  shoal receive -c node.toml --dir . --from alice --once

A file is written as .NAME-TAG.shoal-part (TAG stands for the sender), and gets its name when it is
whole, checked and synced. An existing file is refused unless its content is the same or --overwrite
or --rename is given. An interrupted transfer resumes.";

#[derive(clap::Args, Debug)]
pub struct Receive {
    /// The folder that files go into; names from the network never leave it.
    #[arg(short, long, value_name = "DIR")]
    pub dir: PathBuf,
    /// Whose files to take: names in hosts.toml, or "any".
    #[arg(short, long, required = true, value_name = "HOST", value_delimiter = ',')]
    pub from: Vec<String>,
    /// Make the folder if it is not there.
    #[arg(long)]
    pub create: bool,
    /// Refuse larger files (such as 500M, 2G, 1.5GiB), and what the disk has no room for.
    #[arg(long, value_name = "SIZE", default_value = "16G")]
    pub max_size: Bytes,
    /// End after so many files.
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
    /// End after one file.
    #[arg(long, conflicts_with = "count")]
    pub once: bool,
    /// Replace files that exist.
    #[arg(long, conflicts_with = "rename")]
    pub overwrite: bool,
    /// Give a new file a number when its name is taken: report.1.pdf.
    #[arg(long)]
    pub rename: bool,
    /// Say nothing but failures.
    #[arg(short, long)]
    pub quiet: bool,
    /// Name every file, also when there are many.
    #[arg(short, long, conflicts_with = "quiet")]
    pub verbose: bool,
}

const SIM_EXAMPLES: &str = "Examples:
  shoal sim --seed 123
  shoal sim --seed 1 --runs 100
  shoal sim --replay sim-failure-123.json
  shoal sim --nodes 1000 --hosts 10
  shoal sim --hours 24
  shoal sim --speed";
const DEMO_EXAMPLES: &str = "\
Examples:
  shoal demo
  shoal demo --size 50M --no-cut
  shoal demo --loss 0.0717 --rate 1gbit       20% loss over three links
  shoal demo --size 100M --observe            does what passes look random?";

#[derive(clap::Args, Debug)]
pub struct Demo {
    /// Bytes to transfer.
    #[arg(long, default_value = "500M", value_parser = crate::units::some_bytes)]
    pub size: Bytes,
    /// Rate of each link, such as 1gbit or 200mbit, or none.
    #[arg(long, default_value = "1gbit", value_parser = link_rate)]
    pub rate: LinkRate,
    /// Share of datagrams that each link loses, 0 to 0.9.
    #[arg(long, default_value_t = 0.0, value_parser = crate::units::fraction)]
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
pub struct Completions {
    pub shell: Shell,
}

#[derive(clap::Args, Debug)]
pub struct Man {
    /// Folder for all pages (shoal.1, shoal-send.1, ...).
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
}

/// Rate of a link; none for no bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkRate(pub Option<shoal_lab::Rate>);

pub fn link_rate(text: &str) -> Result<LinkRate, String> {
    match text {
        "none" => Ok(LinkRate(None)),
        text => text.parse().map(|rate| LinkRate(Some(rate))),
    }
}
