//! `shoal authority`: who belongs to a network, and who may reach whom (docs/authority.md).
//!
//! The authority is a folder with two files: `authority.key`, which stays there, and
//! `network.list`, which every node needs for its first start, and one node after each change.
//! Every command but `list` writes a newer list in one step; one that fails changes nothing.

pub(crate) mod folder;
mod mandates;
mod rotate;
mod show;
mod verbs;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use anyhow::Result;
use clap::{Args, Subcommand};
use shoal_crypto::{PublicKey, VerifyKey};
use shoal_directory::{HostRange, Prefix};
use shoal_wire::Address;

use crate::options::{self, Common};
pub(crate) use verbs::drawn_overlay;

/// The arguments of `shoal authority`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct AuthorityArgs {
    #[command(subcommand)]
    verb: Verb,
}

const EXAMPLES: &str = "\
Examples:
  shoal authority init --dir net                     once; prints the key for every node.toml
  shoal authority sign --dir net r1 --key KEY --address 1.0 --endpoint 192.0.2.1:23871
  shoal authority sign --dir net bob --key KEY --address 1.2 --group staff
  shoal authority policy --dir net policy.toml       who may reach whom
  shoal authority revoke --dir net bob
  shoal authority mandate --dir net desk --key KEY --hosts 1.100-1.999 --group staff
  shoal authority rotate announce --dir net          another secret for the network
  shoal authority list net/network.list              what a node would read
  shoal authority renew --dir net                    the same again, before it is too old

Then copy net/network.list to one node: it takes the list up within seconds and passes it on. A new
node needs a copy for its first start. The key stays here.";

#[derive(Subcommand, Debug)]
enum Verb {
    /// Make an authority: its key, and a list without members.
    #[command(after_help = "Example:\n  shoal authority init --dir net")]
    Init(Init),
    /// Make a node a member, or change what is said of one. What is not given stays as it is.
    #[command(after_help = SIGN_EXAMPLES)]
    Sign(Box<Sign>),
    /// End a membership for good: the key can't come back, the name and address can.
    #[command(after_help = REVOKE_EXAMPLES)]
    Revoke(Revoke),
    /// Sign the list again, so that nodes don't take it for too old.
    #[command(after_help = "Example:\n  shoal authority renew --dir net   (from a timer, say)")]
    Renew(Folder),
    /// Put a policy into the list, or print the one that is there.
    #[command(after_help = POLICY_EXAMPLES)]
    Policy(Policy),
    /// Say in which /48 all hosts have their IPv6 addresses, or print it.
    #[command(after_help = OVERLAY_EXAMPLES)]
    Overlay(Overlay),
    /// Let a registrar make members within limits, change that, or take it back.
    #[command(after_help = MANDATE_EXAMPLES)]
    Mandate(Box<MandateArgs>),
    /// Make the members whom a registrar took in the authority's own.
    #[command(after_help = ADOPT_EXAMPLES, args = [options::config(), options::socket()])]
    #[command(override_usage = "shoal authority adopt [OPTIONS] --dir <DIR> <NAME> [FILE]")]
    Adopt(Adopt),
    /// Give the network another secret, in three lists, or say how far that is.
    #[command(after_help = ROTATE_EXAMPLES)]
    Rotate(RotateArgs),
    /// Show a list: members, revoked keys, policy.
    #[command(after_help = LIST_EXAMPLES, arg = options::config())]
    #[command(override_usage = "shoal authority list [OPTIONS] [FILE | --dir <DIR>]")]
    List(List),
}

const REVOKE_EXAMPLES: &str = "\
Examples:
  shoal authority revoke --dir net bob
  shoal authority revoke --dir net carol --key KEY    whom a registrar made a member

The registrar's own members end with `shoal authority mandate NAME --remove`, too.";

const SIGN_EXAMPLES: &str = "\
Examples:
  shoal authority sign --dir net bob --key \"$(cat bob.pub)\" --address 1.2 --group staff
  shoal authority sign --dir net bob --group staff --group admins      other groups
  shoal authority sign --dir net bob --days 365                        a later end
  shoal authority sign --dir net bob --ipv4 10.9.0.7                   an IPv4 address, too
  shoal authority sign --dir net gw --prefix 10.1.0.0/16               it speaks for a subnet
  shoal authority sign --dir net r1 --no-interface                     its name has no address
  shoal authority sign --dir net r1 --relay --family acme --capacity 1000   carries circuits
  shoal authority sign --dir net r1 --mix slow                         a mix for all of them
  shoal authority sign --dir net bob --cover home                      frames by a schedule";

const POLICY_EXAMPLES: &str = "\
Examples:
  shoal authority policy --dir net policy.toml
  shoal authority policy --dir net > policy.toml

A policy is a list of rules; members that share a group need none:
  [[allow]]
  from = \"staff\"
  to = \"servers\"
  proto = \"tcp\"             # tcp, udp, icmp, ping, files or any
  ports = [22, \"8000-8080\"]

Between whom everything goes over circuits (docs/circuits.md):
  [[circuits]]
  between = [\"staff\", \"*\"]  # two groups, or members = [\"alice\", \"bob\"]
  mode = \"require\"          # or \"off\"

What relays do with cells of circuits, at most four; circuits use the first:
  [[mix]]
  name = \"slow\"
  kind = \"stop-and-go\"      # each cell waits; or \"timed\" with every_ms: all leave together
  mean_ms = 5
  most_ms = 25              # absent: five times the mean

Schedules of links between hosts and their routers, at most four (docs/cover.md):
  [[cover]]
  name = \"home\"
  mbit = 10                 # in each direction, whatever there is to send
  schedule = \"constant\"     # or \"poisson\"";

const OVERLAY_EXAMPLES: &str = "\
Examples:
  shoal authority overlay --dir net                       what the list says
  shoal authority overlay --dir net fd12:3456:789a::/48   every node has another address then

A new authority has drawn one. An older list says none, and the prefix follows from the network's
secret: state the one that `shoal check` shows before that secret changes. Nodes take another
prefix up when they start.";

const MANDATE_EXAMPLES: &str = "\
Examples:
  shoal authority mandate --dir net desk --key KEY --hosts 1.100-1.999 --group staff
  shoal authority mandate --dir net desk --key KEY --hosts 1.100-1.999 --hosts 2.100-2.199 \\
      --ipv4 10.9.0.0/24 --max 200 --days 90 --until 2027-12-31
  shoal authority mandate --dir net desk --until 2028-12-31   what is not given stays
  shoal authority mandate --dir net desk --anew               another chain: after a frozen one
  shoal authority mandate --dir net desk --remove             its members are none any more

Every node holds the registrar to these limits. `shoal authority adopt` takes its members over
before the mandate ends, is taken back, or begins anew.";

const ADOPT_EXAMPLES: &str = "\
Examples:
  shoal authority adopt --dir net desk                   asks the node that runs here
  shoal authority adopt --dir net desk network.chains    the file that a node keeps
  shoal authority adopt --dir net desk --remove          and takes the mandate back

Names, groups, addresses and ends stay as the registrar gave them.";

const ROTATE_EXAMPLES: &str = "\
Examples:
  shoal authority rotate announce --dir net --secret network.key   the first time
  shoal authority rotate announce --dir net     makes net/network.key.next: copy it to one node
  shoal authority rotate switch --dir net       once `shoal status` of all nodes has the next one
  shoal authority rotate retire --dir net       ends the old one before its time
  shoal authority rotate --dir net              how far it is

Each step is a list: copy it to one node. Revoke members before the first one, since members in
force are given the next secret. A member who was away all the time gets
net/network.key and the list by hand, or joins anew: `shoal leave`, and `shoal up` with an invite.";

const LIST_EXAMPLES: &str = "\
Examples:
  shoal authority list                          the list that a start of the node here would read
  shoal authority list -c /etc/shoal/node.toml  of another node
  shoal authority list --dir net
  shoal authority list net/network.list
  shoal authority list network.list --authority KEY --json";

#[derive(Args, Debug)]
struct Folder {
    /// The authority's folder.
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
}

#[derive(Args, Debug)]
struct Init {
    /// Folder to make; it must not hold an authority.
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
}

#[derive(Args, Debug)]
struct Sign {
    #[command(flatten)]
    folder: Folder,
    /// Its name.
    name: String,
    /// Its public key, as `shoal pubkey` prints it.
    #[arg(long, value_name = "KEY")]
    key: Option<PublicKey>,
    /// Its overlay address, ROUTER.HOST; host 0 is a router.
    #[arg(long, value_name = "ADDRESS")]
    address: Option<Address>,
    /// Where it listens, if others may call it.
    #[arg(long, value_name = "IP:PORT", value_parser = crate::units::endpoint)]
    endpoint: Option<SocketAddr>,
    /// A group that it is in; may be repeated. A new member without any is in "members".
    #[arg(long, value_name = "NAME")]
    group: Vec<String>,
    /// A group of members that must encrypt among each other on direct links; may be repeated.
    #[arg(long, value_name = "NAME")]
    security_group: Vec<String>,
    /// IP addresses or subnets that it may speak for; may be repeated.
    #[arg(long, value_name = "PREFIX")]
    prefix: Vec<Prefix>,
    /// It speaks for no addresses but its own any more.
    #[arg(long, conflicts_with = "prefix")]
    no_prefixes: bool,
    /// Its IPv4 address on virtual interfaces, beside the IPv6 address that follows from its key.
    #[arg(long, value_name = "IP")]
    ipv4: Option<Ipv4Addr>,
    /// It has no IPv4 address any more.
    #[arg(long, conflicts_with = "ipv4")]
    no_ipv4: bool,
    /// It has no virtual interface: its name has no address.
    #[arg(long, conflicts_with_all = ["prefix", "interface", "ipv4"])]
    no_interface: bool,
    /// It has a virtual interface, as every new member.
    #[arg(long)]
    interface: bool,
    /// Circuits may lead through it, a router (docs/circuits.md).
    #[arg(long, conflicts_with = "no_relay")]
    relay: bool,
    /// Circuits may lead through it no more.
    #[arg(long)]
    no_relay: bool,
    /// It is meant to lead others out of the network; no node uses that yet.
    #[arg(long, conflicts_with = "no_exit")]
    exit: bool,
    /// It is not meant to.
    #[arg(long)]
    no_exit: bool,
    /// Who operates it: circuits avoid two routers of one family. "" for nobody named.
    #[arg(long, value_name = "NAME")]
    family: Option<String>,
    /// What it can carry, in Mbit/s: paths are chosen by it. 0 for not known.
    #[arg(long, value_name = "MBIT")]
    capacity: Option<u32>,
    /// Roughly where it is, for people. "" for nowhere named.
    #[arg(long, value_name = "PLACE")]
    near: Option<String>,
    /// What it does with the cells of all circuits, whatever they ask for: the name of a [[mix]] of
    /// the policy. "" for what each circuit asks for; so does --no-relay.
    #[arg(long, value_name = "NAME")]
    mix: Option<String>,
    /// By which schedule frames leave its link with its router: the name of a [[cover]] of the
    /// policy, for a host (docs/cover.md). "" for none: frames leave as they come.
    #[arg(long, value_name = "NAME")]
    cover: Option<String>,
    /// Days from now until the membership ends by itself; 365 for a new member.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=36_500))]
    days: Option<u64>,
    /// Write the signed descriptor into this file too.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

#[derive(Args, Debug)]
struct Revoke {
    #[command(flatten)]
    folder: Folder,
    /// Whose.
    name: String,
    /// Its public key, if a registrar made it a member.
    #[arg(long, value_name = "KEY")]
    key: Option<PublicKey>,
}

#[derive(Args, Debug)]
struct Policy {
    #[command(flatten)]
    folder: Folder,
    /// The new policy; without it the present one is printed.
    file: Option<PathBuf>,
}

#[derive(Args, Debug)]
struct Overlay {
    #[command(flatten)]
    folder: Folder,
    /// 48 bits in fd00::/8; without it the present prefix is printed.
    prefix: Option<Prefix>,
}

#[derive(Args, Debug)]
struct MandateArgs {
    #[command(flatten)]
    folder: Folder,
    /// What it is called.
    name: String,
    /// The registrar's public key. Another one than before begins another chain.
    #[arg(long, value_name = "KEY")]
    key: Option<PublicKey>,
    /// A group into which it may put members; may be repeated. Without any they are in none.
    #[arg(long, value_name = "NAME")]
    group: Vec<String>,
    /// Addresses that it may give, such as 1.100-1.999; may be repeated.
    #[arg(long, value_name = "RANGE")]
    hosts: Vec<HostRange>,
    /// IPv4 addresses that it may give, too.
    #[arg(long, value_name = "PREFIX")]
    ipv4: Option<Prefix>,
    /// It may give no IPv4 addresses any more.
    #[arg(long, conflicts_with = "ipv4")]
    no_ipv4: bool,
    /// Keys that it may ever admit, those included that leave; 250 for a new one.
    #[arg(long, value_name = "N")]
    max: Option<u32>,
    /// Days that a membership lasts at most, from when it is signed; 90 for a new mandate.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=36_500))]
    days: Option<u64>,
    /// The day, in UTC, at whose beginning it ends, with all its memberships; a year from now for a
    /// new one.
    #[arg(long, value_name = "DATE", value_parser = crate::units::date)]
    until: Option<u64>,
    /// Begin another chain: the members so far are none any more unless they were adopted.
    #[arg(long)]
    anew: bool,
    /// Take it back.
    #[arg(long, conflicts_with_all = ["key", "group", "hosts", "ipv4", "no_ipv4", "max", "days",
        "until", "anew"])]
    remove: bool,
}

/// A step of a change of the network's secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum RotateStep {
    /// Make the next secret, and name it: neighbours hand it on.
    Announce,
    /// Have handshakes begin with it; the old one is taken for a while.
    Switch,
    /// End the old one now.
    Retire,
    /// Take back what was announced.
    Cancel,
}

#[derive(Args, Debug)]
struct RotateArgs {
    #[command(flatten)]
    folder: Folder,
    /// Which step; without it, how far it is.
    step: Option<RotateStep>,
    /// The network's present secret, a node's network.key: for the first announcement.
    #[arg(long, value_name = "FILE")]
    secret: Option<PathBuf>,
    /// Days for which the old secret is taken after the switch.
    #[arg(long, value_name = "DAYS", default_value_t = 7)]
    #[arg(value_parser = clap::value_parser!(u64).range(0..=3_650))]
    grace: u64,
}

#[derive(Args, Debug)]
struct Adopt {
    #[command(flatten)]
    folder: Folder,
    /// Name of the mandate.
    name: String,
    /// A node's chains_file; without it the running node is asked.
    file: Option<PathBuf>,
    /// Take the mandate back, too.
    #[arg(long)]
    remove: bool,
}

#[derive(Args, Debug)]
struct List {
    /// The list, or the authority's folder; without it the list of the node is shown.
    file: Option<PathBuf>,
    /// The authority's folder, as the other commands have it.
    #[arg(long, value_name = "DIR", conflicts_with = "file")]
    dir: Option<PathBuf>,
    /// The authority's public key; without it the key beside the list is asked, else the node's
    /// configuration.
    #[arg(long, value_name = "KEY")]
    authority: Option<VerifyKey>,
}

/// Runs a command of `shoal authority`.
pub fn run(common: &Common, args: &AuthorityArgs) -> Result<()> {
    let json = common.json;
    match &args.verb {
        Verb::Init(verb) => verbs::init(json, verb),
        Verb::Sign(verb) => verbs::sign(json, verb),
        Verb::Revoke(verb) => verbs::revoke(json, verb),
        Verb::Renew(verb) => verbs::renew(json, verb),
        Verb::Policy(verb) => verbs::policy(json, verb),
        Verb::Overlay(verb) => verbs::overlay(json, verb),
        Verb::Mandate(verb) => mandates::mandate(json, verb),
        Verb::Adopt(verb) => mandates::adopt(common, verb),
        Verb::Rotate(verb) => rotate::rotate(json, verb),
        Verb::List(verb) => show::list(common, verb),
    }
}
