//! Facts that a node hides, and from whom.

use serde::{Deserialize, Serialize};

/// Summary of a node's protection, with a report for each host that it speaks with.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HiddenStatus {
    /// Name of the answering node.
    pub this_node: String,
    /// `router` or `host`.
    pub role: String,
    /// Preset in force: `fast`, `balanced` or `hidden`. Routers follow `fast`.
    pub preset: String,
    /// Source of the list of members.
    pub members: MembershipSource,
    /// Hosts with traffic or circuits, those with broken promises first; or the one asked for.
    pub hosts: Vec<HostProtection>,
    /// Hosts that were too many for one answer, and were not judged.
    #[serde(default)]
    pub not_judged: u32,
    /// Parties that vouch for the list's relays, the one with most relays first.
    pub vouchers: Vec<RelayVoucher>,
    /// Sentences about the whole network: one party that vouches for all relays, or what a router
    /// learns.
    pub notes: Vec<String>,
}

/// Source of the list of members, which decides how a relay is added.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MembershipSource {
    /// A hosts file that people edit.
    #[default]
    HostsFile,
    /// An authority that signs each member.
    Authority,
    /// An authority with a mandate for a registrar, which invites members.
    Registrar,
}

/// Count of hosts for which the preset's promises hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HiddenCount {
    /// Hosts with a report.
    pub hosts: u32,
    /// Hosts for which every promise holds, as far as the node knows without a test.
    pub held: u32,
}

/// A party that vouches for relays.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RelayVoucher {
    /// The party in words, such as `registrar of mandate "home"`.
    pub party: String,
    /// True if the party is a registrar, which names families of routers by invites.
    pub is_registrar: bool,
    /// Relays for which it vouches.
    pub relays: u32,
    /// Families among them. A relay without a family counts as one.
    pub families: u32,
}

/// Report about one host.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HostProtection {
    pub host: String,
    /// Relays of the circuit in use, in their order; empty without one.
    pub relays: Vec<String>,
    /// Promises of the preset or of a requirement of circuits, in the order in which they are
    /// mended. Empty if neither promises anything.
    pub promises: Vec<HiddenPromise>,
    /// Parties on the way, with what each learns.
    pub observers: Vec<PathObserver>,
    /// Pairs of routers that together know both hosts.
    pub colluding: Vec<[String; 2]>,
    /// Cells that left for this host outside circuits since circuits are required with it.
    pub clear_cells: u64,
    /// Cells that left outside circuits before, since the node started.
    pub clear_before: u64,
    /// Sentences about facts that no promise covers.
    pub notes: Vec<String>,
    /// The command that betters the protection most; none if no command does.
    pub remedy: Option<HiddenRemedy>,
}

/// A promise, and whether it holds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HiddenPromise {
    /// Kind of promise, for programs: see [`PromiseKind`].
    pub kind: PromiseKind,
    /// True if it holds.
    pub holds: bool,
    /// Reason in words.
    pub why: String,
}

/// Kinds of promises, in the order in which a breach is mended.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum PromiseKind {
    /// A circuit leads to the host.
    #[default]
    Circuit,
    /// Nothing leaves for the host outside circuits.
    CircuitsOnly,
    /// No direct link leads to the host.
    NoDirectLink,
    /// The circuit has as many relays as the preset promises.
    Relays,
    /// No router knows both hosts, or can guess them.
    Apart,
    /// No family has routers near both hosts: their own ones, relay 1, and the last relay.
    Families,
    /// Relays delay cells as the list says.
    Mixes,
    /// Frames on this host's line leave by a schedule.
    CoverHere,
    /// The list gives the other host the same tier of cover.
    CoverThere,
    /// Echoes over the circuit are answered.
    Echo,
    /// Relays delay echoes as agreed.
    Audit,
}

/// A party on the way to a host.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PathObserver {
    /// Position, such as `own router` or `relay 2`.
    pub place: String,
    /// Name of the node; none for a wire.
    pub node: Option<String>,
    /// Facts that it learns, in words.
    pub learns: String,
    /// True if it learns or can guess both hosts.
    pub knows_both: bool,
    /// Reason in words.
    pub why: String,
    /// Party that vouches for the node; none for a wire.
    pub voucher: Option<String>,
}

/// A command, and what it betters.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HiddenRemedy {
    /// Command line of `shoal`.
    pub command: String,
    /// Effect in words.
    pub effect: String,
}

impl HostProtection {
    /// True if every promise holds.
    pub fn holds(&self) -> bool {
        self.promises.iter().all(|promise| promise.holds)
    }
}
