//! The command line.

use std::path::PathBuf;

use clap::builder::NonEmptyStringValueParser;
use clap::{Parser, Subcommand};

use crate::manual::{Completions, Man};
use crate::moved::Moved;
use crate::options;
use crate::units::Bytes;

const EXAMPLES: &str = "\
Examples:
  shoal network create home                  make a network; prints an invite
  shoal up INVITE                            join it, on another machine
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
#[command(args = options::all(), arg = options::colour())]
pub struct Args {
    #[command(subcommand)]
    pub(crate) verb: Option<Verb>,
}

#[derive(Subcommand, Debug)]
pub enum Verb {
    /// Be a node, in the foreground, until SIGTERM or Ctrl-C. SIGHUP reloads.
    #[command(after_help = "Example:\n  shoal run -c /etc/shoal/node.toml")]
    #[command(args = [options::config(), options::socket()])]
    Run,
    /// Check a configuration and all that it names; says every fault, starts nothing.
    #[command(after_help = CHECK_EXAMPLES)]
    #[command(args = [options::config(), options::json()])]
    Check(Check),
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
    /// Where this host is seen, and whether others can find it behind translators of addresses.
    #[command(after_help = NETCHECK_EXAMPLES)]
    #[command(args = options::all())]
    Netcheck,
    /// The network's members: names, addresses, who is there, when they were heard last, and how
    /// they are reached.
    #[command(after_help = HOSTS_EXAMPLES)]
    #[command(args = options::all())]
    Hosts,
    /// The circuits that this host begins: relays, age, and what they hide from whom.
    #[command(after_help = CIRCUITS_EXAMPLES)]
    #[command(args = options::all())]
    Circuits(Circuits),
    /// Stream changes of routes and links until Ctrl-C.
    #[command(args = options::all())]
    Monitor,
    /// The node live: rates, loss, round trips, drops. Keys sort and pause.
    #[command(after_help = TOP_EXAMPLES)]
    #[command(args = options::all())]
    Top(Top),
    /// Measure the round trip to a host.
    #[command(after_help = PING_EXAMPLES)]
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
    /// Sign packets as a member of a group, verify such packets, and open who signed.
    #[command(arg = options::json().global(true))]
    Attribution(crate::attribution::AttributionArgs),
    /// Say who belongs to a network and who may reach whom, with a key kept off the nodes.
    #[command(arg = options::json().global(true))]
    Authority(crate::authority::AuthorityArgs),
    /// Make a network.
    Network(crate::joining::NetworkArgs),
    /// Print an invite, by which a machine joins; list and withdraw invites, approve machines.
    Invite(crate::invite::InviteArgs),
    /// Become a member of a network by an invite, and start the node.
    #[command(after_help = UP_EXAMPLES, arg = options::json())]
    Up(crate::joining::Up),
    /// Replace this machine's key by a new one, and stay the same member.
    #[command(after_help = REKEY_EXAMPLES, arg = options::json())]
    Rekey(crate::joining::Rekey),
    /// Be a member no more.
    #[command(after_help = "Example:\n  shoal leave", arg = options::json())]
    Leave(crate::joining::Leave),
    /// The process that lets machines in by invites: run it, and ask it.
    Registrar(crate::registrar::RegistrarArgs),
    /// Print a completion script for a shell.
    #[command(after_help = "Example:\n  shoal completions bash > /etc/bash_completion.d/shoal")]
    Completions(Completions),
    /// Write the manual pages into a folder, or the first one to standard output.
    #[command(after_help = "Example:\n  shoal man | man -l -")]
    Man(Man),
    /// Moved: shoal-lab demo.
    #[command(hide = true, disable_help_flag = true, arg = options::json())]
    Demo(Moved),
    /// Moved: shoal-lab run, list, report, compare and bench.
    #[command(hide = true, disable_help_flag = true, arg = options::json())]
    Lab(Moved),
    /// Moved: shoal-lab bench.
    #[command(hide = true, disable_help_flag = true, arg = options::json())]
    Bench(Moved),
    /// Moved: shoal-lab sim.
    #[command(hide = true, disable_help_flag = true, arg = options::json())]
    Sim(Moved),
}

const REKEY_EXAMPLES: &str = "\
Example:
  shoal rekey

Name, overlay address, IPv4 address and groups stay; the IPv6 address follows from the key and
changes. The registrar that let this machine in signs the new key, and all nodes refuse the old one
from then on. Repeat the command if it was interrupted. Where systemd knows the unit shoal the
command restarts it; elsewhere restart the node. A member may do so once a week.";

const UP_EXAMPLES: &str = "\
Examples:
  shoal up -                          then paste what `shoal invite` printed, and press Ctrl-D
  shoal up --name bob - < invite.txt
  shoal up - --dir ~/shoal2           make a second node on this machine
  shoal up                            start the node of an earlier `shoal up`

The invite may have other text around it, as in a mail. The machine makes its own key, and checks
all that the registrar gives against the invite. Repeat the command if it was interrupted: it
spends the invite once. Where systemd knows the unit shoal the command enables and starts it;
elsewhere the node runs in the foreground.";

const NETCHECK_EXAMPLES: &str = "\
Examples:
  shoal netcheck
  shoal netcheck --json | jq -r .mapping

The node asks nobody anew: it says what its routers and the routers that it asked have told it.";

const CHECK_EXAMPLES: &str = "\
Examples:
  shoal check -c node.toml && systemctl restart shoal
  shoal check -c node.toml --hop-probe";

#[derive(clap::Args, Debug)]
pub struct Check {
    /// Ask the running node whether addresses under [hop] prefix can be used with each neighbour
    /// whose [[link]] has `hop`; some seconds. Exits with 1 where they can't.
    #[arg(long)]
    pub hop_probe: bool,
    /// Only tell systemd-resolved to ask the responder of [names], which root may do for a node
    /// that runs as another user. Without [names] or systemd-resolved nothing happens.
    #[arg(long, conflicts_with = "hop_probe")]
    pub tell_resolved: bool,
}

const HOSTS_EXAMPLES: &str = "\
Examples:
  shoal hosts
  shoal hosts --json | jq -r '.hosts[] | select(.online) | .name'

A node knows who is there without asking: its neighbours, whom it has heard within half a minute,
and, on a router, the routers that it has a route to and the hosts beside it. Of others it says
\"?\"; `shoal ping NAME` asks.";

const CIRCUITS_EXAMPLES: &str = "\
Examples:
  shoal circuits
  shoal circuits --json | jq -r '.hosts[] | select(.warnings != []) | .host'
  shoal circuits --audit bob                  do relays mix as they should?

A circuit is in use, standby (it takes over when that one ends or dies), building, ending, or silent
(in use, but it has stopped answering and none stands by: another is being built). Lines with
`not hidden:` say what this network can't hide. Hosts and relays are named: whoever may command
this node sees with whom it speaks. At routers, which begin no circuits, the list is empty.";

#[derive(clap::Args, Debug)]
pub struct Circuits {
    /// Ask each relay of the circuit to this host for echoes, and compare how long they waited in
    /// mixes with what was agreed on.
    #[arg(long, value_name = "HOST")]
    pub audit: Option<String>,
    /// How many echoes to each hop, 3 to 1000.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(3..=1_000))]
    #[arg(requires = "audit")]
    pub rounds: u32,
}

const TOP_EXAMPLES: &str = "\
Examples:
  shoal top
  shoal top --json --count 10 --interval 0.5 | jq .top.total.bytes_in

Without a terminal each sample is printed as text. Rates per link need `per_peer = true` under
[metrics] in the node's configuration; hosts that talk over the node are never named.
Circuits are shown once there were any: those that begin here, all of them as `shoal metrics` counts
them (rounded up to a multiple of 8, every ten seconds), set-ups since the start, cells per
second.";

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

const PING_EXAMPLES: &str = "\
Examples:
  shoal ping -n 5 bob
  shoal ping --hops bob                      the relays of the circuit to bob, and bob

With --hops each relay that is asked learns that the host which began this circuit asks; only the
first relay knows which host that is.";

#[derive(clap::Args, Debug)]
pub struct Ping {
    /// Name in hosts.toml.
    pub host: String,
    /// Ask each relay of the circuit to the host, one after the other, and then the host.
    #[arg(long)]
    pub hops: bool,
    /// Number of echoes [default: 4, with --hops 1]. `-c 3` means `-n 3`, as in ping(8), unless
    /// there is a file with the name 3.
    #[arg(short = 'n', long, value_parser = clap::value_parser!(u32).range(1..))]
    pub count: Option<u32>,
    /// Seconds between echoes.
    #[arg(short, long, default_value_t = 1.0, value_parser = crate::units::seconds)]
    pub interval: f64,
    /// Seconds to wait for an answer; with --hops for the circuit and all its hops together. A node
    /// that is just starting is waited for as long.
    #[arg(short = 'W', long, default_value_t = 5.0, value_parser = crate::units::seconds)]
    pub timeout: f64,
}

const SEND_EXAMPLES: &str = "\
Examples:
  shoal send report.pdf bob
  shoal send photos/ notes.txt bob
  tar c photos | shoal send --name photos.tar - bob
  shoal send -c node.toml backup.tar bob      without a running node: be one while sending

An interrupted transfer resumes when the same file is sent again. Folders are sent with everything
beneath them; symbolic links, special files and empty folders in them are skipped, and each is
named. What can't be sent (a name that no receiver takes, a file that can't be read) is named too;
the rest is sent, and the command fails. Symbolic links named on the command line are followed.
Files that the receiver has already, with the same content, are not sent again. Standard input from
a program is first copied to a file without a name in TMPDIR (/tmp), to find its length.";

/// What stands behind `send`.
#[derive(clap::Args, Debug)]
pub struct Send {
    /// Files or folders; "-" is standard input.
    #[arg(required = true, num_args = 1.., value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Name that the file gets at the receiver; for a single file.
    #[arg(long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    pub name: Option<String>,
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
or --rename is given. An interrupted transfer resumes. The command waits while its node is
restarted, and then goes on.";

/// What stands behind `receive`.
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
