//! `shoal attribution`: groups whose members sign anonymously, and trustees who can find the
//! signer.
//!
//! All files are binary, with four bytes that name their kind (docs/design/wire/attribution.md).
//! Secret files are made with mode 600, and refused if other users can read them.

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

use crate::options::CommonOptions;

#[derive(Args, Debug)]
pub struct AttributionArgs {
    #[command(subcommand)]
    verb: AttributionCommand,
}

#[derive(Subcommand, Debug)]
enum AttributionCommand {
    /// Make a group: the issuer's key and the trustees' keys.
    Setup(GroupSetupArgs),
    /// As a future trustee, deal shares of a part of the opening key to all trustees.
    Deal(DealArgs),
    /// As a trustee, add up the shares that were dealt to you.
    Collect(CollectArgs),
    /// Ask to join a group, or take your credential of an epoch.
    Join(GroupJoinArgs),
    /// As the issuer, register the author of a join request; a member from the next epoch on.
    Issue(IssueArgs),
    /// As the issuer, end a membership; starts the next epoch.
    Revoke(GroupRevokeArgs),
    /// As the issuer, start the next epoch with new credentials for all members.
    Renew(GroupRenewArgs),
    /// Stamp a file as a stream of packets.
    Sign(StampArgs),
    /// Check a stamped file: did members of the group send every packet?
    Verify(VerifyArgs),
    /// Export the proof of one packet, of a stamped file or of what a receiver kept.
    Evidence(EvidenceArgs),
    /// As a trustee, make your share of an opening; or put shares together.
    Open(OpeningArgs),
    /// Check an opening: who sent the packet?
    Judge(JudgeArgs),
    /// Measure this machine, beside the figures of Clue (2011).
    Bench(AttributionBenchArgs),
}

#[derive(Args, Debug)]
struct GroupSetupArgs {
    /// Folder for the group's files; it is made, and must not hold a group.
    #[arg(long)]
    dir: PathBuf,
    /// Name of the group, with that of its network.
    #[arg(long)]
    name: String,
    /// Number of trustees.
    #[arg(long, default_value_t = 3, value_parser = up_to(TRUSTEES_MAX))]
    trustees: usize,
    /// Number of trustees needed to open a signature.
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
struct DealArgs {
    /// Name of the group that is being made.
    #[arg(long)]
    name: String,
    /// Your trustee number, from 1.
    #[arg(long)]
    index: u8,
    /// Number of trustees.
    #[arg(long, default_value_t = 3, value_parser = up_to(TRUSTEES_MAX))]
    trustees: usize,
    /// Number of trustees needed to open a signature.
    #[arg(long, default_value_t = 2, value_parser = up_to(TRUSTEES_MAX))]
    threshold: usize,
    /// Folder for `dealing-INDEX`, for everybody, and `share-INDEX-N.key`, for trustee N alone.
    #[arg(long)]
    dir: PathBuf,
}

#[derive(Args, Debug)]
struct CollectArgs {
    /// Your trustee number, from 1.
    #[arg(long)]
    index: usize,
    /// The group's public file: its opening key has to be the sum of the dealings.
    #[arg(long)]
    group: PathBuf,
    /// Public dealings of all trustees; for your own dealing, the file that you made.
    #[arg(long, value_name = "FILE", required = true)]
    dealing: Vec<PathBuf>,
    /// Shares dealt to you, in the order of the dealings.
    #[arg(long, value_name = "FILE", required = true)]
    share: Vec<PathBuf>,
    /// File for your key.
    #[arg(long)]
    out: PathBuf,
}

#[derive(Args, Debug)]
struct GroupJoinArgs {
    /// The group's public file.
    #[arg(long)]
    group: PathBuf,
    /// Your member key; made if it doesn't exist.
    #[arg(long)]
    key: PathBuf,
    /// Your name in the registry.
    #[arg(long, required_unless_present = "accept")]
    name: Option<String>,
    /// Your node's key file: its identity signs the request. Without it an identity is made for
    /// this request alone.
    #[arg(long)]
    identity: Option<PathBuf>,
    /// File for the request.
    #[arg(long, required_unless_present = "accept")]
    out: Option<PathBuf>,
    /// The issuer's credentials of an epoch: checks yours and writes it to --credential.
    #[arg(long, value_name = "FILE", requires_all = ["credential", "epoch"])]
    accept: Option<PathBuf>,
    /// The issuer's notice of that epoch, which states the credentials there are.
    #[arg(long, value_name = "FILE")]
    epoch: Option<PathBuf>,
    /// File for your credential.
    #[arg(long)]
    credential: Option<PathBuf>,
    /// File of the newest notices you accepted; KEY.seen by default. Older notices are refused, and
    /// a second notice for the same epoch.
    #[arg(long, value_name = "FILE")]
    seen: Option<PathBuf>,
}

#[derive(Args, Debug)]
struct IssueArgs {
    /// The group's folder, with the issuer's key.
    #[arg(long)]
    dir: PathBuf,
    /// The join request.
    request: PathBuf,
}

#[derive(Args, Debug)]
struct GroupRevokeArgs {
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
struct GroupRenewArgs {
    /// The group's folder, with the issuer's key.
    #[arg(long)]
    dir: PathBuf,
    /// Length of the epoch that starts, in hours.
    #[arg(long, default_value_t = 24,
        value_parser = clap::value_parser!(u64).range(1..=87_600))]
    epoch_hours: u64,
}

#[derive(Args, Debug)]
struct StampArgs {
    /// The group's public file.
    #[arg(long)]
    group: PathBuf,
    /// Your member key.
    #[arg(long)]
    key: PathBuf,
    /// Your credential.
    #[arg(long)]
    credential: PathBuf,
    /// File of the newest notices you accepted; KEY.seen by default.
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
    /// File for the stamps; FILE.stamps by default.
    #[arg(long)]
    out: Option<PathBuf>,
}

#[derive(Args, Debug)]
struct StampedFileArgs {
    /// The stamped file.
    file: PathBuf,
    /// Stamps of the file; FILE.stamps by default.
    #[arg(long)]
    stamps: Option<PathBuf>,
    /// The group's public file.
    #[arg(long)]
    group: PathBuf,
}

#[derive(Args, Debug)]
struct VerifyArgs {
    #[command(flatten)]
    stamped: StampedFileArgs,
    /// The issuer's notice of the current epoch: signatures of other epochs are refused.
    #[arg(long)]
    epoch: PathBuf,
    /// File of the newest notices seen; GROUP.seen by default. Older notices are refused.
    #[arg(long, value_name = "FILE")]
    seen: Option<PathBuf>,
    /// Keep the proofs in this file, beside those of earlier runs; a full file loses the oldest.
    #[arg(long, value_name = "FILE")]
    keep: Option<PathBuf>,
    /// Maximum number of packets whose proofs are kept, in whole windows.
    #[arg(long, default_value_t = 65_536, requires = "keep",
        value_parser = clap::value_parser!(u32).range(1..))]
    keep_packets: u32,
}

#[derive(Args, Debug)]
struct EvidenceArgs {
    /// The stamped file.
    #[arg(required_unless_present = "kept", conflicts_with_all = ["kept", "flow"])]
    file: Option<PathBuf>,
    /// Stamps of the file; FILE.stamps by default.
    #[arg(long, requires = "file")]
    stamps: Option<PathBuf>,
    /// The group's public file.
    #[arg(long)]
    group: PathBuf,
    /// Proofs that a receiver kept (see `verify --keep`). Packets and stamps are not needed then.
    #[arg(long, value_name = "FILE")]
    kept: Option<PathBuf>,
    /// Flow of the packet, in hex, if proofs of several flows were kept.
    #[arg(long, value_name = "HEX", requires = "kept")]
    flow: Option<String>,
    /// The packet's number, from 0.
    #[arg(long)]
    packet: u64,
    /// File for the evidence.
    #[arg(long)]
    out: PathBuf,
}

#[derive(Args, Debug)]
struct OpeningArgs {
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
    /// File for the share or the opening.
    #[arg(long)]
    out: PathBuf,
}

#[derive(Args, Debug)]
struct JudgeArgs {
    /// The group's public file.
    #[arg(long)]
    group: PathBuf,
    /// The evidence.
    evidence: PathBuf,
    /// The opening.
    opening: PathBuf,
    /// The packet's bytes; also checks that the evidence is about them.
    #[arg(long)]
    packet: Option<PathBuf>,
}

#[derive(Args, Debug)]
struct AttributionBenchArgs {
    /// Rounds of each measurement; the best counts.
    #[arg(long, default_value_t = 5,
        value_parser = clap::value_parser!(u32).range(1..=1_000))]
    rounds: u32,
}

/// Reads a number from 1 to `most`.
fn up_to(most: usize) -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(1..=most as u64)
}

pub fn run(common: &CommonOptions, args: &AttributionArgs) -> Result<()> {
    let json = common.json;
    match &args.verb {
        AttributionCommand::Setup(verb) => ceremony::setup(json, verb),
        AttributionCommand::Deal(verb) => ceremony::deal(json, verb),
        AttributionCommand::Collect(verb) => ceremony::collect(json, verb),
        AttributionCommand::Join(verb) => ceremony::join(json, verb),
        AttributionCommand::Issue(verb) => ceremony::issue(json, verb),
        AttributionCommand::Revoke(verb) => ceremony::revoke(json, verb),
        AttributionCommand::Renew(verb) => ceremony::renew(json, verb),
        AttributionCommand::Sign(verb) => stream::sign(json, verb),
        AttributionCommand::Verify(verb) => stream::verify(json, verb),
        AttributionCommand::Evidence(verb) => stream::evidence(json, verb),
        AttributionCommand::Open(verb) => opening::open(json, verb),
        AttributionCommand::Judge(verb) => opening::judge(json, verb),
        AttributionCommand::Bench(verb) => bench::run(json, verb),
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
