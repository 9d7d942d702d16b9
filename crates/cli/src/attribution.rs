//! `shoal attribution`: groups whose members sign without a name, and the trustees who can find it.
//!
//! All files are binary, with four bytes that name their kind (docs/attribution.md section 7).
//! Secret ones are made with mode 600 and refused when others can read them.

mod bench;
mod ceremony;
mod files;
mod guard;
mod opening;
mod stream;

use std::path::PathBuf;

use anyhow::Result;
use clap::builder::RangedU64ValueParser;
use clap::{Args, Subcommand};
use shoal_attribution::TRUSTEES_MAX;

use crate::options::Common;

/// The arguments of `shoal attribution`.
#[derive(Args, Debug)]
pub struct AttributionArgs {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand, Debug)]
enum Verb {
    /// Make a group: the issuer's key and the trustees' keys.
    Setup(Setup),
    /// As a future trustee, deal shares of a part of the opening key to all trustees.
    Deal(Deal),
    /// As a trustee, add up the shares that were dealt to you.
    Collect(Collect),
    /// Ask to join a group, or take your credential of an epoch.
    Join(Join),
    /// As the issuer, register the author of a join request; a member from the next epoch on.
    Issue(Issue),
    /// As the issuer, end a membership; starts the next epoch.
    Revoke(Revoke),
    /// As the issuer, start the next epoch with new credentials for all members.
    Renew(Renew),
    /// Stamp a file as a stream of packets.
    Sign(Sign),
    /// Check a stamped file: did members of the group send every packet?
    Verify(Verify),
    /// Export the proof of one packet, of a stamped file or of what a receiver kept.
    Evidence(EvidenceArgs),
    /// As a trustee, make your share of an opening; or put shares together.
    Open(Open),
    /// Check an opening: who sent the packet?
    Judge(Judge),
    /// Measure this machine, beside the figures of Clue (2011).
    Bench(Bench),
}

#[derive(Args, Debug)]
struct Setup {
    /// Folder for the group's files; it is made, and must not hold a group.
    #[arg(long)]
    dir: PathBuf,
    /// Name of the group, with that of its network.
    #[arg(long)]
    name: String,
    /// Number of trustees.
    #[arg(long, default_value_t = 3, value_parser = up_to(TRUSTEES_MAX))]
    trustees: usize,
    /// Trustees that it takes to open a signature.
    #[arg(long, default_value_t = 2, value_parser = up_to(TRUSTEES_MAX))]
    threshold: usize,
    /// Public dealings of the trustees (see `deal`). Without them this command deals, and knows
    /// the opening key until it ends.
    #[arg(long, value_name = "FILE")]
    dealing: Vec<PathBuf>,
    /// Length of an epoch in hours.
    #[arg(long, default_value_t = 24,
        value_parser = clap::value_parser!(u64).range(1..=87_600))]
    epoch_hours: u64,
}

#[derive(Args, Debug)]
struct Deal {
    /// Name of the group that is being made.
    #[arg(long)]
    name: String,
    /// Your number, from 1.
    #[arg(long)]
    index: u8,
    /// Number of trustees.
    #[arg(long, default_value_t = 3, value_parser = up_to(TRUSTEES_MAX))]
    trustees: usize,
    /// Trustees that it takes to open a signature.
    #[arg(long, default_value_t = 2, value_parser = up_to(TRUSTEES_MAX))]
    threshold: usize,
    /// Folder for `dealing-INDEX`, for everybody, and `share-INDEX-N.key`, for trustee N alone.
    #[arg(long)]
    dir: PathBuf,
}

#[derive(Args, Debug)]
struct Collect {
    /// Your number, from 1.
    #[arg(long)]
    index: usize,
    /// The group's public file: its opening key has to be the sum of the dealings.
    #[arg(long)]
    group: PathBuf,
    /// Public dealings of all trustees, your own as you made it.
    #[arg(long, value_name = "FILE", required = true)]
    dealing: Vec<PathBuf>,
    /// The shares they dealt to you, in the same order.
    #[arg(long, value_name = "FILE", required = true)]
    share: Vec<PathBuf>,
    /// Where to write your key.
    #[arg(long)]
    out: PathBuf,
}

#[derive(Args, Debug)]
struct Join {
    /// The group's public file.
    #[arg(long)]
    group: PathBuf,
    /// Your member key; made if it doesn't exist.
    #[arg(long)]
    key: PathBuf,
    /// Your name in the registry.
    #[arg(long, required_unless_present = "accept")]
    name: Option<String>,
    /// Your node's key file, whose identity signs the request; else one is made for this alone.
    #[arg(long)]
    identity: Option<PathBuf>,
    /// Where to write the request.
    #[arg(long, required_unless_present = "accept")]
    out: Option<PathBuf>,
    /// The issuer's credentials of an epoch: checks yours and writes it to --credential.
    #[arg(long, value_name = "FILE", requires_all = ["credential", "epoch"])]
    accept: Option<PathBuf>,
    /// The issuer's notice of that epoch, which states which credentials there are.
    #[arg(long, value_name = "FILE")]
    epoch: Option<PathBuf>,
    /// Where to write your credential.
    #[arg(long)]
    credential: Option<PathBuf>,
    /// The newest notices you took; KEY.seen by default. Older ones are refused, and a second one
    /// for the same epoch.
    #[arg(long, value_name = "FILE")]
    seen: Option<PathBuf>,
}

#[derive(Args, Debug)]
struct Issue {
    /// The group's folder, with the issuer's key.
    #[arg(long)]
    dir: PathBuf,
    /// The join request.
    request: PathBuf,
}

#[derive(Args, Debug)]
struct Revoke {
    /// The group's folder, with the issuer's key.
    #[arg(long)]
    dir: PathBuf,
    /// The member's name.
    name: String,
    /// Length of the epoch that starts, in hours.
    #[arg(long, default_value_t = 24,
        value_parser = clap::value_parser!(u64).range(1..=87_600))]
    epoch_hours: u64,
}

#[derive(Args, Debug)]
struct Renew {
    /// The group's folder, with the issuer's key.
    #[arg(long)]
    dir: PathBuf,
    /// Length of the epoch that starts, in hours.
    #[arg(long, default_value_t = 24,
        value_parser = clap::value_parser!(u64).range(1..=87_600))]
    epoch_hours: u64,
}

#[derive(Args, Debug)]
struct Sign {
    /// The group's public file.
    #[arg(long)]
    group: PathBuf,
    /// Your member key.
    #[arg(long)]
    key: PathBuf,
    /// Your credential.
    #[arg(long)]
    credential: PathBuf,
    /// The newest notices you took; KEY.seen by default.
    #[arg(long, value_name = "FILE")]
    seen: Option<PathBuf>,
    /// Bytes of one packet.
    #[arg(long, default_value_t = 1_400,
        value_parser = clap::value_parser!(u32).range(1..))]
    packet: u32,
    /// Packets of one window, at most 4096.
    #[arg(long, default_value_t = 4_096, value_parser = up_to(4_096))]
    window: usize,
    /// The file to stamp.
    file: PathBuf,
    /// Where to write the stamps; FILE.stamps by default.
    #[arg(long)]
    out: Option<PathBuf>,
}

#[derive(Args, Debug)]
struct Stamped {
    /// The stamped file.
    file: PathBuf,
    /// Its stamps; FILE.stamps by default.
    #[arg(long)]
    stamps: Option<PathBuf>,
    /// The group's public file.
    #[arg(long)]
    group: PathBuf,
}

#[derive(Args, Debug)]
struct Verify {
    #[command(flatten)]
    stamped: Stamped,
    /// The issuer's notice of the current epoch: signatures of other epochs are refused.
    #[arg(long)]
    epoch: PathBuf,
    /// The newest notice you were shown; GROUP.seen by default. Older ones are refused.
    #[arg(long, value_name = "FILE")]
    seen: Option<PathBuf>,
    /// Keep the proofs in this file, beside those of earlier runs; the oldest go when it is full.
    #[arg(long, value_name = "FILE")]
    keep: Option<PathBuf>,
    /// Packets whose proofs are kept at most, in whole windows.
    #[arg(long, default_value_t = 65_536, requires = "keep",
        value_parser = clap::value_parser!(u32).range(1..))]
    keep_packets: u32,
}

#[derive(Args, Debug)]
struct EvidenceArgs {
    /// The stamped file.
    #[arg(required_unless_present = "kept", conflicts_with_all = ["kept", "flow"])]
    file: Option<PathBuf>,
    /// Its stamps; FILE.stamps by default.
    #[arg(long, requires = "file")]
    stamps: Option<PathBuf>,
    /// The group's public file.
    #[arg(long)]
    group: PathBuf,
    /// What a receiver kept (see `verify --keep`); neither packets nor stamps are needed then.
    #[arg(long, value_name = "FILE")]
    kept: Option<PathBuf>,
    /// The packet's flow, in hex, where proofs of several flows were kept.
    #[arg(long, value_name = "HEX", requires = "kept")]
    flow: Option<String>,
    /// The packet's number, from 0.
    #[arg(long)]
    packet: u64,
    /// Where to write the evidence.
    #[arg(long)]
    out: PathBuf,
}

#[derive(Args, Debug)]
struct Open {
    /// The group's public file.
    #[arg(long)]
    group: PathBuf,
    /// The evidence.
    evidence: PathBuf,
    /// Your trustee key: makes a share.
    #[arg(long, conflicts_with_all = ["share", "members", "epoch"])]
    key: Option<PathBuf>,
    /// Shares of enough trustees: makes an opening.
    #[arg(long, requires_all = ["members", "epoch"])]
    share: Vec<PathBuf>,
    /// The group's registry.
    #[arg(long)]
    members: Option<PathBuf>,
    /// The issuer's notice of the signature's epoch, kept in the group's folder as `epoch-NUMBER`.
    #[arg(long, value_name = "FILE")]
    epoch: Option<PathBuf>,
    /// Where to write the share or opening.
    #[arg(long)]
    out: PathBuf,
}

#[derive(Args, Debug)]
struct Judge {
    /// The group's public file.
    #[arg(long)]
    group: PathBuf,
    /// The evidence.
    evidence: PathBuf,
    /// The opening.
    opening: PathBuf,
    /// The packet's bytes: also checks that the evidence is about them.
    #[arg(long)]
    packet: Option<PathBuf>,
}

#[derive(Args, Debug)]
struct Bench {
    /// Rounds of each measurement; the best counts.
    #[arg(long, default_value_t = 5,
        value_parser = clap::value_parser!(u32).range(1..=1_000))]
    rounds: u32,
}

/// Reads a number from 1 to `most`.
fn up_to(most: usize) -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(1..=most as u64)
}

/// Runs a command of `shoal attribution`.
pub fn run(common: &Common, args: &AttributionArgs) -> Result<()> {
    let json = common.json;
    match &args.verb {
        Verb::Setup(verb) => ceremony::setup(json, verb),
        Verb::Deal(verb) => ceremony::deal(json, verb),
        Verb::Collect(verb) => ceremony::collect(json, verb),
        Verb::Join(verb) => ceremony::join(json, verb),
        Verb::Issue(verb) => ceremony::issue(json, verb),
        Verb::Revoke(verb) => ceremony::revoke(json, verb),
        Verb::Renew(verb) => ceremony::renew(json, verb),
        Verb::Sign(verb) => stream::sign(json, verb),
        Verb::Verify(verb) => stream::verify(json, verb),
        Verb::Evidence(verb) => stream::evidence(json, verb),
        Verb::Open(verb) => opening::open(json, verb),
        Verb::Judge(verb) => opening::judge(json, verb),
        Verb::Bench(verb) => bench::run(json, verb),
    }
}

/// Prints what was done: a line for people, or an object for programs.
fn done(json: bool, text: &str, value: &serde_json::Value) -> Result<()> {
    if json {
        crate::output::json("attribution", value)?
    } else {
        crate::output::line(text)?
    }
    Ok(())
}
