//! The command line.

use std::path::PathBuf;

use clap::builder::NonEmptyStringValueParser;
use clap::{Parser, Subcommand};

use crate::manual::{Completions, Man};
use crate::moved::MovedArgs;
use crate::options;
use crate::reference::ReferenceArgs;
use crate::units::Bytes;

const EXAMPLES: &str = "\
Examples:
  shoal network create home                  make a network; prints an invite
  shoal up INVITE                            join it, on another machine
  shoal genkey -o node.key                   a key for a new node
  shoal pubkey node.key                      its public half, for hosts.toml
  shoal check -c node.toml                   check the configuration
  shoal run -c node.toml                     run a node
  shoal                                      show the node's state
  shoal receive --dir inbox --from alice     take files from alice
  shoal send report.pdf photos/ bob          send a file and a folder to bob

Exit codes:
  0  done
  1  failed
  2  wrong command line
  3  node or host unreachable, or no answer in time
  4  configuration, hosts file or key file wrong
  5  refused: by a file's receiver (it exists, no space, too large, nobody receives), or by the
     registrar
  130  stopped by Ctrl-C";

/// An anonymity network that people run themselves, at VPN speed.
#[derive(Parser, Debug)]
#[command(name = "shoal", version, after_help = EXAMPLES, after_long_help = EXAMPLES)]
#[command(max_term_width = 100, subcommand_help_heading = "Commands")]
#[command(args = options::all(), arg = options::colour())]
pub struct Args {
    #[command(subcommand)]
    pub(crate) verb: Option<ShoalCommand>,
}

#[derive(Subcommand, Debug)]
pub enum ShoalCommand {
    /// Run a node in the foreground until SIGTERM or Ctrl-C. SIGHUP reloads its configuration.
    #[command(after_help = "Example:\n  shoal run -c /etc/shoal/node.toml")]
    #[command(args = [options::config(), options::socket()])]
    Run,
    /// Check a configuration and the files it names: prints every fault, starts nothing.
    #[command(after_help = CHECK_EXAMPLES)]
    #[command(args = [options::config(), options::json()])]
    Check(CheckArgs),
    /// Make a node's private key, or with --network a network's secret.
    #[command(after_help = GENKEY_EXAMPLES)]
    #[command(arg = options::json())]
    Genkey(GenkeyArgs),
    /// Print the public half of a private key: the `key` in hosts.toml.
    #[command(after_help = "Examples:\n  shoal pubkey node.key\n  shoal genkey | shoal pubkey")]
    #[command(arg = options::json())]
    Pubkey(PubkeyArgs),
    /// Show the node's state in short (the default command).
    #[command(args = options::all())]
    Status,
    /// Show the node's neighbours.
    #[command(args = options::all())]
    Peers,
    /// Show the routing table: destination, next hop, cost, age.
    #[command(args = options::all())]
    Routes,
    /// Show this host's public address, and whether others can reach it through NAT.
    #[command(after_help = NETCHECK_EXAMPLES)]
    #[command(args = options::all())]
    Netcheck,
    /// List the network's members: name, address, presence, time last heard, and how each is
    /// reached.
    #[command(after_help = HOSTS_EXAMPLES)]
    #[command(args = options::all())]
    Hosts,
    /// List the circuits that this host begins: relays, age, and what they hide from whom.
    #[command(after_help = CIRCUITS_EXAMPLES)]
    #[command(args = options::all())]
    Circuits(CircuitsArgs),
    /// Show who learns what about the traffic with each host, and test what the preset promises.
    #[command(after_help = HIDDEN_EXAMPLES)]
    #[command(args = options::all())]
    Hidden(HiddenArgs),
    /// Print changes of routes and links until Ctrl-C.
    #[command(args = options::all())]
    Monitor,
    /// Watch the node live: rates, loss, round trips, drops. Keys sort and pause.
    #[command(after_help = TOP_EXAMPLES)]
    #[command(args = options::all())]
    Top(TopArgs),
    /// Measure the round trip to a host.
    #[command(after_help = PING_EXAMPLES)]
    #[command(args = options::all())]
    Ping(PingArgs),
    /// Send files and folders to a host.
    #[command(after_help = SEND_EXAMPLES)]
    #[command(args = options::all())]
    Send(SendArgs),
    /// Receive files from hosts into a folder.
    #[command(after_help = RECEIVE_EXAMPLES)]
    #[command(args = options::all())]
    Receive(ReceiveArgs),
    /// Print the node's counters as OpenMetrics text.
    #[command(args = options::all())]
    Metrics,
    /// Make the node read its configuration again, as SIGHUP does.
    #[command(args = options::all())]
    Reload,
    /// Sign packets as a member of a group, verify such packets, and find out who signed.
    #[command(arg = options::json().global(true))]
    Attribution(crate::attribution::AttributionArgs),
    /// Manage who belongs to a network and who may reach whom, with a key kept off the nodes.
    #[command(arg = options::json().global(true))]
    Authority(crate::authority::AuthorityArgs),
    /// Make a network.
    Network(crate::joining::NetworkArgs),
    /// Print an invite for a machine; list and withdraw invites; approve machines.
    Invite(crate::invite::InviteArgs),
    /// Join a network with an invite, and start this machine's node; on a network's first machine
    /// start node and registrar.
    #[command(after_help = UP_EXAMPLES, arg = options::json())]
    Up(crate::joining::UpArgs),
    /// Stop what `shoal up` starts: this machine's node, and its registrar if it has one.
    #[command(after_help = DOWN_EXAMPLES, arg = options::json())]
    Down(crate::joining::DownArgs),
    /// Replace this machine's key; the membership stays.
    #[command(after_help = REKEY_EXAMPLES, arg = options::json())]
    Rekey(crate::joining::RekeyArgs),
    /// Leave the network: the membership ends.
    #[command(after_help = "Example:\n  shoal leave", arg = options::json())]
    Leave(crate::joining::LeaveArgs),
    /// Run the process that admits machines with invites, and query it.
    Registrar(crate::registrar::RegistrarArgs),
    /// Print a completion script for a shell.
    #[command(after_help = "Example:\n  shoal completions bash > /etc/bash_completion.d/shoal")]
    Completions(Completions),
    /// Write the manual pages into a folder, or the first one to standard output.
    #[command(after_help = "Example:\n  shoal man | man -l -")]
    Man(Man),
    /// Print a page of docs/reference.
    #[command(hide = true)]
    Reference(ReferenceArgs),
    /// Moved: shoal-lab demo.
    #[command(hide = true, disable_help_flag = true, arg = options::json())]
    Demo(MovedArgs),
    /// Moved: shoal-lab run, list, report, compare and bench.
    #[command(hide = true, disable_help_flag = true, arg = options::json())]
    Lab(MovedArgs),
    /// Moved: shoal-lab bench.
    #[command(hide = true, disable_help_flag = true, arg = options::json())]
    Bench(MovedArgs),
    /// Moved: shoal-lab sim.
    #[command(hide = true, disable_help_flag = true, arg = options::json())]
    Sim(MovedArgs),
}

const REKEY_EXAMPLES: &str = "\
Example:
  shoal rekey

Name, overlay address, IPv4 address and groups stay; the IPv6 address follows from the key and
changes. The registrar that let this machine in signs the new key, and all nodes refuse the old one
from then on. Repeat the command if it was interrupted. Where systemd knows the unit shoal the
command restarts it; elsewhere restart the node. A member may replace its key once a week.";

const UP_EXAMPLES: &str = "\
Examples:
  shoal up -                          then paste what `shoal invite` printed, and press Ctrl-D
  shoal up --name bob - < invite.txt
  shoal up - --dir ~/shoal2           make a second node on this machine
  shoal up                            start what an earlier `shoal up` or `shoal network create`
                                      made

The invite may have other text around it, as in a mail. The machine makes its own key, and checks
all that the registrar sends against the invite. Repeat the command if it was interrupted: the
invite is used only once. Where systemd knows the units shoal and shoal-registrar the command
enables and starts those that this machine needs; elsewhere node and registrar run in the
foreground. Without units, processes that run already are left alone. `shoal down` is the opposite.

Exit codes:
  2  no invite or an unreadable one, a bad --name, or no root and no --dir
  3  no answer from the registrar
  4  the machine lacks something, its node would not start, or it is in another network
  5  the registrar refuses
  1  any other failure";

const DOWN_EXAMPLES: &str = "\
Examples:
  shoal down
  shoal down --dir ~/shoal2           stop the second node of this machine

Where systemd knows the units shoal and shoal-registrar the command stops and disables them, so that
they don't start with the machine either. Elsewhere it tells the processes to stop, and waits for
their end. Neighbours are told. All files stay: `shoal up` starts again.

Exit codes:
  4  this machine is in no network, or a configuration is wrong
  1  a process does not stop within 10 s (the command names it), or any other failure";

const NETCHECK_EXAMPLES: &str = "\
Examples:
  shoal netcheck
  shoal netcheck --json | jq -r .mapping

The command sends no queries: it prints what routers have told the node so far.";

const CHECK_EXAMPLES: &str = "\
Examples:
  shoal check -c node.toml && systemctl restart shoal
  shoal check -c node.toml --shift-probe";

#[derive(clap::Args, Debug)]
pub struct CheckArgs {
    /// Have the running node probe each neighbour whose [[link]] has `shift`: do addresses under
    /// the prefix of [shift] get through? Takes some seconds. Exits with 1 if one fails.
    #[arg(long)]
    pub shift_probe: bool,
    /// The former name of --shift-probe.
    #[arg(long, hide = true)]
    pub hop_probe: bool,
    /// Only point systemd-resolved to the responder of [names]. Root can do this for a node that
    /// runs as another user. Without [names] or systemd-resolved nothing happens.
    #[arg(long, conflicts_with = "shift_probe")]
    pub tell_resolved: bool,
}

const HOSTS_EXAMPLES: &str = "\
Examples:
  shoal hosts
  shoal hosts --json | jq -r '.hosts[] | select(.online) | .name'

The column `online` is what the node knows without asking: it has a link with the member, or heard
it within 30 s. A router also knows its own hosts, and the routers that it can reach. Other members
show \"?\"; `shoal ping NAME` asks.";

const CIRCUITS_EXAMPLES: &str = "\
Examples:
  shoal circuits
  shoal circuits --json | jq -r '.hosts[] | select(.warnings != []) | .host'
  shoal circuits --audit bob                  do relays mix as they should?
  shoal circuits forget bob                   speak with bob in the clear again

A circuit is in use, standby (takes over when the one in use ends or dies), building, ending, or
silent (in use without answers, and without a standby: another one is being built). Lines with
`not hidden:` say what this network can't hide. The output names hosts and relays: users who may
command this node see with whom it speaks. Routers begin no circuits, so their list is empty.";

const HIDDEN_EXAMPLES: &str = "\
Examples:
  shoal hidden
  shoal hidden bob || echo a promise does not hold
  shoal hidden --json | jq -r '.hidden.hosts[].remedy.command'

The command sends echoes over each circuit, and audits its relays if they mix. It names relays and
hosts, who vouches for each relay, pairs of routers that together know both hosts, and one command
that betters the protection most. Routers hide nothing of themselves; there the output says what
the router learns.

Exit codes:
  0  every promise of the preset holds, for all hosts shown; \"fast\" promises nothing
  1  a promise does not hold, or a preset is in force and no host was judged";

#[derive(clap::Args, Debug)]
pub struct HiddenArgs {
    /// Name of a host. Without it, all hosts with traffic or circuits.
    pub host: Option<String>,
    /// Number of echoes to each hop, up to 1000; 0 for no test.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(0..=1_000))]
    pub rounds: u32,
}

#[derive(clap::Args, Debug)]
pub struct CircuitsArgs {
    #[command(subcommand)]
    pub verb: Option<CircuitsCommand>,
    /// Send echoes to each relay of the circuit to this host, and compare their time in mixes with
    /// the agreed delays.
    #[arg(long, value_name = "HOST")]
    pub audit: Option<String>,
    /// Number of echoes to each hop, 3 to 1000.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(3..=1_000))]
    #[arg(requires = "audit")]
    pub rounds: u32,
}

const FORGET_EXAMPLES: &str = "\
Examples:
  shoal circuits forget bob
  shoal circuits forget --all --yes

Two hosts that once met over a circuit stay on circuits, also when nothing requires them any more.
Run the command at both hosts within ten minutes: in that time each refuses the other's circuits,
and afterwards a circuit binds both again. Where the list or node.toml requires circuits, end that
first. Without a running node the command changes its file, and a start applies that.";

#[derive(clap::Subcommand, Debug)]
pub enum CircuitsCommand {
    /// Speak with hosts in the clear again that are bound to circuits because they were met so.
    #[command(after_help = FORGET_EXAMPLES)]
    #[command(args = options::all())]
    Forget(crate::circuits::ForgetArgs),
}

const TOP_EXAMPLES: &str = "\
Examples:
  shoal top
  shoal top --json --count 10 --interval 0.5 | jq .top.total.bytes_in

Without a terminal each sample is printed as text. Rates per link need `per_peer = true` under
[metrics] in the node's configuration; hosts that talk over the node are never named.
After the first circuit the output has: circuits that begin here, all circuits as `shoal metrics`
counts them (rounded up to a multiple of 8, every 10 s), set-ups since the start, and cells per
second.";

#[derive(clap::Args, Debug)]
pub struct TopArgs {
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
pub struct GenkeyArgs {
    /// Write here (mode 600, never over an existing file) instead of to standard output.
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Make the secret that all nodes of one network share.
    #[arg(long)]
    pub network: bool,
}

#[derive(clap::Args, Debug)]
pub struct PubkeyArgs {
    /// Key file; standard input when absent or "-".
    pub file: Option<PathBuf>,
    /// Print the default UDP port of a node with this key, which counts if its configuration names
    /// none.
    #[arg(long)]
    pub port: bool,
}

const PING_EXAMPLES: &str = "\
Examples:
  shoal ping -n 5 bob
  shoal ping --hops bob                      the relays of the circuit to bob, and bob

With --hops each relay learns that the origin of the circuit asks; only the first relay knows which
host that is.";

#[derive(clap::Args, Debug)]
pub struct PingArgs {
    /// Name in hosts.toml.
    pub host: String,
    /// Ask each relay of the circuit to the host in turn, and then the host.
    #[arg(long)]
    pub hops: bool,
    /// Number of echoes [default: 4, with --hops 1]. `-c 3` means `-n 3`, as in ping(8), unless a
    /// file named 3 exists.
    #[arg(short = 'n', long, value_parser = clap::value_parser!(u32).range(1..))]
    pub count: Option<u32>,
    /// Seconds between echoes.
    #[arg(short, long, default_value_t = 1.0, value_parser = crate::units::seconds)]
    pub interval: f64,
    /// Seconds to wait for an answer; with --hops, for the circuit and all its hops together. The
    /// same time is allowed for a node that is just starting.
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
named. Files that can't be sent (the name is refused, or the file can't be read) are named too;
the rest is sent, and the command fails. Symbolic links named on the command line are followed.
Files that the receiver has already, with the same content, are not sent again. Standard input from
a program is first copied to a file without a name in TMPDIR (/tmp), to find its length.";

#[derive(clap::Args, Debug)]
pub struct SendArgs {
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
    /// Seconds to wait until the host receives files; asked again every second.
    #[arg(long, default_value_t = 0.0, value_name = "SECONDS")]
    #[arg(value_parser = crate::units::seconds)]
    pub wait: f64,
    /// Print failures only.
    #[arg(short, long)]
    pub quiet: bool,
    /// Print a line for every file, also when there are many.
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
restarted, and then continues.";

#[derive(clap::Args, Debug)]
pub struct ReceiveArgs {
    /// Folder for the files; names from the network can't lead out of it.
    #[arg(short, long, value_name = "DIR")]
    pub dir: PathBuf,
    /// Hosts whose files are accepted: names in hosts.toml, or "any".
    #[arg(short, long, required = true, value_name = "HOST", value_delimiter = ',')]
    pub from: Vec<String>,
    /// Make the folder if it is not there.
    #[arg(long)]
    pub create: bool,
    /// Largest file to accept, such as 500M, 2G, 1.5GiB. Files that don't fit on the disk are
    /// refused, too.
    #[arg(long, value_name = "SIZE", default_value = "16G")]
    pub max_size: Bytes,
    /// End after this many files.
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
    /// Print failures only.
    #[arg(short, long)]
    pub quiet: bool,
    /// Print a line for every file, also when there are many.
    #[arg(short, long, conflicts_with = "quiet")]
    pub verbose: bool,
}
