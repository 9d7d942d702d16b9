//! `shoal authority`: who belongs to a network, and who may reach whom (docs/guide/authority.md).
//!
//! The authority is a folder with two files. `authority.key` stays there. Every node needs
//! `network.list` for its first start, and one node needs it after each change. Commands that
//! change it write a newer list in one step; a failed command changes nothing.

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
use shoal_directory::{DoorEndpoint, HostRange, NumberRange, Prefix, RouterRange};
use shoal_wire::Address;

use crate::options::{self, CommonOptions};
pub(crate) use verbs::{done, drawn_overlay, usage};

#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct AuthorityArgs {
    #[command(subcommand)]
    verb: AuthorityCommand,
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
  shoal authority renew --dir net                    sign it again before it is too old

Then copy net/network.list to one node: the node loads it within seconds and passes it on. A new
node needs a copy for its first start. The key stays here.";

#[derive(Subcommand, Debug)]
enum AuthorityCommand {
    /// Make an authority: its key, and a list without members.
    #[command(after_help = "Example:\n  shoal authority init --dir net")]
    Init(InitArgs),
    /// Make a node a member, or change a member. Options that are not given keep their values.
    #[command(after_help = SIGN_EXAMPLES)]
    Sign(Box<SignArgs>),
    /// End a membership for good: the key can't come back, the name and address can.
    #[command(after_help = REVOKE_EXAMPLES)]
    Revoke(RevokeArgs),
    /// Sign the list again, before nodes consider it too old.
    #[command(after_help = "Example:\n  shoal authority renew --dir net   (from a timer, say)")]
    Renew(FolderArgs),
    /// Put a policy into the list, or print the present one.
    #[command(after_help = POLICY_EXAMPLES)]
    Policy(PolicyArgs),
    /// Set the /48 in which all hosts have their IPv6 addresses, or print it.
    #[command(after_help = OVERLAY_EXAMPLES)]
    Overlay(OverlayArgs),
    /// Let a registrar admit members within limits, change the limits, or withdraw the mandate.
    #[command(after_help = MANDATE_EXAMPLES)]
    Mandate(Box<MandateArgs>),
    /// Make a registrar's members the authority's own.
    #[command(after_help = ADOPT_EXAMPLES, args = [options::config(), options::socket()])]
    #[command(override_usage = "shoal authority adopt [OPTIONS] --dir <DIR> <NAME> [FILE]")]
    Adopt(AdoptArgs),
    /// Replace the network's secret, in three lists, or show the progress.
    #[command(after_help = ROTATE_EXAMPLES)]
    Rotate(RotateArgs),
    /// Show a list: members, revoked keys, policy.
    #[command(after_help = LIST_EXAMPLES, arg = options::config())]
    #[command(override_usage = "shoal authority list [OPTIONS] [FILE | --dir <DIR>]")]
    List(ListArgs),
}

const REVOKE_EXAMPLES: &str = "\
Examples:
  shoal authority revoke --dir net bob
  shoal authority revoke --dir net carol --key KEY    whom a registrar made a member

Memberships by a registrar also end with `shoal authority mandate --dir net NAME --remove`.";

const SIGN_EXAMPLES: &str = "\
Examples:
  shoal authority sign --dir net bob --key \"$(cat bob.pub)\" --address 1.2 --group staff
  shoal authority sign --dir net bob --group staff --group admins      other groups
  shoal authority sign --dir net bob --days 365                        a later end
  shoal authority sign --dir net bob --second 2.7                      another router, too
  shoal authority sign --dir net bob --ipv4 10.9.0.7                   an IPv4 address, too
  shoal authority sign --dir net gw --prefix 10.1.0.0/16               a subnet behind the node
  shoal authority sign --dir net r1 --no-interface                     no interface, no IP address
  shoal authority sign --dir net r1 --relay --family acme --capacity 1000   carries circuits
  shoal authority sign --dir net r1 --mix slow                         one mix for all circuits
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

Pairs whose traffic all goes over circuits (docs/guide/circuits.md):
  [[circuits]]
  between = [\"staff\", \"*\"]  # two groups, or members = [\"alice\", \"bob\"]
  mode = \"require\"          # or \"off\"

Mixes of relays for cells of circuits, at most four; circuits use the first:
  [[mix]]
  name = \"slow\"
  kind = \"stop-and-go\"      # each cell waits; or \"timed\" with every_ms: all leave together
  mean_ms = 5
  most_ms = 25              # absent: five times the mean

Schedules of links between hosts and their routers, at most four (docs/guide/mixes-cover.md):
  [[cover]]
  name = \"home\"
  mbit = 10                 # in each direction, at all times
  schedule = \"constant\"     # or \"poisson\"";

const OVERLAY_EXAMPLES: &str = "\
Examples:
  shoal authority overlay --dir net                       print the prefix
  shoal authority overlay --dir net fd12:3456:789a::/48   changes every node's address

A new authority has drawn a prefix. An older list has none: the prefix then follows from the
network's secret. Before that secret changes, set the prefix that `shoal check` shows. Nodes use a
new prefix after a restart.";

const MANDATE_EXAMPLES: &str = "\
Examples:
  shoal authority mandate --dir net desk --key KEY --hosts 1.100-1.999 --group staff
  shoal authority mandate --dir net desk --key KEY --hosts 1.100-1.999 --hosts 2.100-2.199 \\
      --ipv4 10.9.0.0/24 --max 200 --days 90 --until 2027-12-31
  shoal authority mandate --dir net desk --until 2028-12-31   other limits stay
  shoal authority mandate --dir net desk --anew               a new chain, after a frozen one
  shoal authority mandate --dir net desk --remove             its memberships end

Every node enforces these limits. If members are to stay, run `shoal authority adopt --dir net desk`
before the mandate ends, is removed or begins a new chain.";

const ADOPT_EXAMPLES: &str = "\
Examples:
  shoal authority adopt --dir net desk                   asks the node that runs here
  shoal authority adopt --dir net desk network.chains    the file that a node keeps
  shoal authority adopt --dir net desk --remove          and withdraw the mandate

Names, groups, addresses and ends stay as the registrar gave them.";

const ROTATE_EXAMPLES: &str = "\
Examples:
  shoal authority rotate announce --dir net --secret network.key   the first time
  shoal authority rotate announce --dir net     makes net/network.key.next: copy it to one node
  shoal authority rotate switch --dir net       once `shoal status` on all nodes shows it
  shoal authority rotate retire --dir net       end the old secret early
  shoal authority rotate --dir net              show the progress

Each step writes a list: copy it to one node. Revoke members before the first step, since members in
force receive the next secret. A member that was offline throughout gets net/network.key and the
list by hand, or joins anew: `shoal leave`, and `shoal up` with an invite.";

const LIST_EXAMPLES: &str = "\
Examples:
  shoal authority list                          the list that the node here reads at its start
  shoal authority list -c /etc/shoal/node.toml  of another node
  shoal authority list --dir net
  shoal authority list net/network.list
  shoal authority list network.list --authority KEY --json";

#[derive(Args, Debug)]
struct FolderArgs {
    /// The authority's folder.
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
}

#[derive(Args, Debug)]
struct InitArgs {
    /// Folder to make; it must not hold an authority.
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
}

#[derive(Args, Debug)]
struct SignArgs {
    #[command(flatten)]
    folder: FolderArgs,
    /// Name of the node.
    name: String,
    /// The node's public key, as `shoal pubkey` prints it.
    #[arg(long, value_name = "KEY")]
    key: Option<PublicKey>,
    /// Overlay address, ROUTER.HOST; host 0 is a router.
    #[arg(long, value_name = "ADDRESS")]
    address: Option<Address>,
    /// Overlay address of the same host at another router. The host keeps links to both routers,
    /// and uses the other one when one dies.
    #[arg(long, value_name = "ADDRESS")]
    second: Option<Address>,
    /// Remove the host's second address.
    #[arg(long, conflicts_with = "second")]
    no_second: bool,
    /// Address and UDP port at which others may call the node.
    #[arg(long, value_name = "IP:PORT", value_parser = crate::units::endpoint)]
    endpoint: Option<SocketAddr>,
    /// Group of the member; may be repeated. A new member without a group is in "members".
    #[arg(long, value_name = "NAME")]
    group: Vec<String>,
    /// Security group: its members must encrypt direct links among each other; may be repeated.
    #[arg(long, value_name = "NAME")]
    security_group: Vec<String>,
    /// IP addresses or subnets behind the node, for which it may send and receive; may be repeated.
    #[arg(long, value_name = "PREFIX")]
    prefix: Vec<Prefix>,
    /// Remove all prefixes of the node.
    #[arg(long, conflicts_with = "prefix")]
    no_prefixes: bool,
    /// IPv4 address on virtual interfaces, beside the IPv6 address that follows from the key.
    #[arg(long, value_name = "IP")]
    ipv4: Option<Ipv4Addr>,
    /// Remove the node's IPv4 address.
    #[arg(long, conflicts_with = "ipv4")]
    no_ipv4: bool,
    /// The node has no virtual interface, so its name has no IP address.
    #[arg(long, conflicts_with_all = ["prefix", "interface", "ipv4"])]
    no_interface: bool,
    /// The node has a virtual interface, as every new member.
    #[arg(long)]
    interface: bool,
    /// Circuits may lead through this router (docs/guide/circuits.md).
    #[arg(long, conflicts_with = "no_relay")]
    relay: bool,
    /// Circuits may not lead through this router.
    #[arg(long)]
    no_relay: bool,
    /// Mark the node as an exit from the network; no node uses the mark yet.
    #[arg(long, conflicts_with = "no_exit")]
    exit: bool,
    /// Remove the mark of an exit.
    #[arg(long)]
    no_exit: bool,
    /// Operator of the router: circuits avoid two routers of one family. "" removes the name.
    #[arg(long, value_name = "NAME")]
    family: Option<String>,
    /// Capacity in Mbit/s, by which paths are chosen. 0 means unknown.
    #[arg(long, value_name = "MBIT")]
    capacity: Option<u32>,
    /// Rough location, for people. "" removes it.
    #[arg(long, value_name = "PLACE")]
    near: Option<String>,
    /// Mix for the cells of all circuits, instead of what each circuit asks for: name of a [[mix]]
    /// in the policy. "" or --no-relay removes it.
    #[arg(long, value_name = "NAME")]
    mix: Option<String>,
    /// Schedule of frames on the host's link with its router: name of a [[cover]] in the policy
    /// (docs/guide/mixes-cover.md). "" removes it: frames then leave as they come.
    #[arg(long, value_name = "NAME")]
    cover: Option<String>,
    /// Days from now until the membership ends by itself; 365 for a new member.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=36_500))]
    days: Option<u64>,
    /// Also write the signed descriptor into this file.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

#[derive(Args, Debug)]
struct RevokeArgs {
    #[command(flatten)]
    folder: FolderArgs,
    /// Name of the member.
    name: String,
    /// The member's public key, if a registrar admitted it.
    #[arg(long, value_name = "KEY")]
    key: Option<PublicKey>,
}

#[derive(Args, Debug)]
struct PolicyArgs {
    #[command(flatten)]
    folder: FolderArgs,
    /// The new policy; without it the present policy is printed.
    file: Option<PathBuf>,
}

#[derive(Args, Debug)]
struct OverlayArgs {
    #[command(flatten)]
    folder: FolderArgs,
    /// A prefix of 48 bits in fd00::/8; without it the present prefix is printed.
    prefix: Option<Prefix>,
}

#[derive(Args, Debug)]
struct MandateArgs {
    #[command(flatten)]
    folder: FolderArgs,
    /// Name of the mandate.
    name: String,
    /// The registrar's public key. A different key begins a new chain.
    #[arg(long, value_name = "KEY")]
    key: Option<PublicKey>,
    /// Group into which the registrar may put members; may be repeated. Without it they are in
    /// none.
    #[arg(long, value_name = "NAME")]
    group: Vec<String>,
    /// Addresses that the registrar may assign, such as 1.100-1.999; may be repeated.
    #[arg(long, value_name = "RANGE")]
    hosts: Vec<HostRange>,
    /// Host numbers that the registrar may assign behind every router, such as 100-999. It then
    /// spreads hosts over its routers.
    #[arg(long, value_name = "RANGE")]
    numbers: Option<NumberRange>,
    /// The registrar may assign the addresses of --hosts alone.
    #[arg(long, conflicts_with = "numbers")]
    no_numbers: bool,
    /// IPv4 addresses that the registrar may assign.
    #[arg(long, value_name = "PREFIX")]
    ipv4: Option<Prefix>,
    /// The registrar may assign no IPv4 addresses.
    #[arg(long, conflicts_with = "ipv4")]
    no_ipv4: bool,
    /// Keys that the registrar may ever admit, including those that left; 250 for a new mandate.
    #[arg(long, value_name = "N")]
    max: Option<u32>,
    /// Longest membership in days, counted from its signature; 90 for a new mandate.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=36_500))]
    days: Option<u64>,
    /// Day on which the mandate and all its memberships end, at 00:00 UTC; a year from now for a
    /// new mandate.
    #[arg(long, value_name = "DATE", value_parser = crate::units::date)]
    until: Option<u64>,
    /// Numbers of routers that the registrar may admit, such as 2-999; may be repeated.
    #[arg(long, value_name = "RANGE")]
    routers: Vec<RouterRange>,
    /// Routers that the registrar may ever admit, including those that left; 64 for a new mandate
    /// with routers.
    #[arg(long, value_name = "N")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=4_096))]
    router_max: Option<u16>,
    /// Operators that the registrar's routers may ever name; 16 for a new mandate with routers. A
    /// thief of the registrar's key can pretend to be as many.
    #[arg(long, value_name = "N")]
    #[arg(value_parser = clap::value_parser!(u8).range(1..=255))]
    family_max: Option<u8>,
    /// Operator of routers whose invite names none; the mandate's name for a new mandate.
    #[arg(long, value_name = "NAME")]
    family: Option<String>,
    /// Right beyond plain hosts and routers; may be repeated.
    #[arg(long, value_name = "RIGHT")]
    right: Vec<MandateRight>,
    /// Tier of cover that the registrar may give to hosts, with --right cover; may be repeated.
    /// Without it the registrar may give every tier of the policy.
    #[arg(long, value_name = "NAME")]
    tier: Vec<String>,
    /// Endpoint at which the registrar is called first, IP:PORT or NAME:PORT; may be repeated, at
    /// most three times. With it the registrar may sign other endpoints when it moves.
    #[arg(long, value_name = "IP|NAME:PORT")]
    door: Vec<DoorEndpoint>,
    /// Registrars that this one may ever make by `shoal invite --registrar`, withdrawn ones
    /// included.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(0..=15))]
    registrars: Option<u8>,
    /// Begin a new chain: members of the old one lose their membership unless they were adopted.
    #[arg(long)]
    anew: bool,
    /// Withdraw the mandate: its memberships end.
    #[arg(long, conflicts_with_all = ["key", "group", "hosts", "ipv4", "no_ipv4", "max", "days",
        "until", "anew", "numbers", "no_numbers", "routers", "router_max", "family_max", "family",
        "right", "tier", "door", "registrars"])]
    remove: bool,
}

/// A right of a registrar beyond plain hosts and routers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum MandateRight {
    /// Routers may be relays of circuits.
    Relay,
    /// Relays may have a mix of their own.
    Mix,
    /// Hosts may have a tier of cover.
    Cover,
}

/// A step of a change of the network's secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum RotateStep {
    /// Make the next secret and name it in the list; neighbours hand it on.
    Announce,
    /// Have handshakes begin with the next secret; nodes accept the old one for a while.
    Switch,
    /// End the old secret now.
    Retire,
    /// Withdraw the announced secret.
    Cancel,
}

#[derive(Args, Debug)]
struct RotateArgs {
    #[command(flatten)]
    folder: FolderArgs,
    /// Step to take; without it the progress is shown.
    step: Option<RotateStep>,
    /// The network's present secret, a node's network.key; needed for the first announcement.
    #[arg(long, value_name = "FILE")]
    secret: Option<PathBuf>,
    /// Days for which nodes accept the old secret after the switch.
    #[arg(long, value_name = "DAYS", default_value_t = 7)]
    #[arg(value_parser = clap::value_parser!(u64).range(0..=3_650))]
    grace: u64,
}

#[derive(Args, Debug)]
struct AdoptArgs {
    #[command(flatten)]
    folder: FolderArgs,
    /// Name of the mandate.
    name: String,
    /// A node's chains_file; without it the running node is asked.
    file: Option<PathBuf>,
    /// Also withdraw the mandate.
    #[arg(long)]
    remove: bool,
}

#[derive(Args, Debug)]
struct ListArgs {
    /// The list, or the authority's folder; without it the list of the node is shown.
    file: Option<PathBuf>,
    /// The authority's folder.
    #[arg(long, value_name = "DIR", conflicts_with = "file")]
    dir: Option<PathBuf>,
    /// The authority's public key; by default that of the key file beside the list, else that in
    /// the node's configuration.
    #[arg(long, value_name = "KEY")]
    authority: Option<VerifyKey>,
}

pub fn run(common: &CommonOptions, args: &AuthorityArgs) -> Result<()> {
    let json = common.json;
    match &args.verb {
        AuthorityCommand::Init(verb) => verbs::init(json, verb),
        AuthorityCommand::Sign(verb) => verbs::sign(json, verb),
        AuthorityCommand::Revoke(verb) => verbs::revoke(json, verb),
        AuthorityCommand::Renew(verb) => verbs::renew(json, verb),
        AuthorityCommand::Policy(verb) => verbs::policy(json, verb),
        AuthorityCommand::Overlay(verb) => verbs::overlay(json, verb),
        AuthorityCommand::Mandate(verb) => mandates::mandate(json, verb),
        AuthorityCommand::Adopt(verb) => mandates::adopt(common, verb),
        AuthorityCommand::Rotate(verb) => rotate::rotate(json, verb),
        AuthorityCommand::List(verb) => show::list(common, verb),
    }
}
