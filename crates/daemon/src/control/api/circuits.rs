//! The circuits that a node begins.

use serde::{Deserialize, Serialize};

use super::CoverSummary;

/// Circuits of the answering node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CircuitsStatus {
    /// Hosts with circuits, or with whom circuits are required.
    pub hosts: Vec<HostCircuits>,
    /// Relays that failed recently, or may have failed.
    pub avoided: Vec<AvoidedRelay>,
    /// Circuits that end here or go through here, rounded up to a multiple of 8.
    pub open: u64,
    /// Counters of the reordering of packets that came over circuits.
    #[serde(default)]
    pub order: ReorderCounters,
    /// Results of loops, if they are sent.
    #[serde(default)]
    pub loops: Option<LoopCounters>,
    /// Links whose frames leave by a schedule, if there are any.
    #[serde(default)]
    pub cover: Option<CoverSummary>,
    /// Warnings about requirements that differ from what was meant.
    #[serde(default)]
    pub warnings: Vec<String>,
}

/// Totals over all circuits of a node; counters count since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CircuitTotals {
    /// Circuits that this node begins.
    pub own: u64,
    /// See [`CircuitsStatus::open`].
    pub open: u64,
    /// Set-ups of own circuits that succeeded.
    pub built: u64,
    /// Set-ups of own circuits that failed.
    pub failed: u64,
    /// Cells of circuits that came in or were sent from here.
    pub cells: u64,
    /// Cells of these that were dropped.
    pub dropped: u64,
    /// Hosts in the list that are reached only over circuits.
    #[serde(default)]
    pub bound: u64,
    /// Hosts that are bound to circuits only because they were met so, whether the list has them or
    /// not.
    #[serde(default)]
    pub met: u64,
    /// Day on which the first of these was met, as seconds since 1970; none if it is not known.
    #[serde(default)]
    pub met_since_unix_s: Option<u64>,
}

/// Reason why a host is reached only over circuits.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct BoundReason {
    /// `list` (the network's list requires it), `file` (the node's file does), `unlisted` (the
    /// node's file names a host that the list lacks), or `met` (the two once met over a circuit).
    pub by: String,
    /// Day on which the two first met over a circuit, as YYYY-MM-DD, if that is the reason and the
    /// day is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<String>,
}

impl BoundReason {
    pub const LIST: &str = "list";
    pub const FILE: &str = "file";
    pub const UNLISTED: &str = "unlisted";
    pub const MET: &str = "met";

    /// True if nothing but an earlier meeting binds the two hosts to circuits.
    pub fn is_met(&self) -> bool {
        self.by == BoundReason::MET
    }

    /// The reason in words; for an earlier meeting with the command that ends it.
    pub fn words(&self, host: &str) -> String {
        let since = self.since.as_ref().map_or(String::new(), |day| format!(" since {day}"));
        match self.by.as_str() {
            BoundReason::MET => format!(
                "bound to circuits{since}, because it was met so: `shoal circuits forget {host}` \
                 ends that"
            ),
            BoundReason::LIST => "required by the network's list".into(),
            BoundReason::UNLISTED => "required with everyone, since [circuits] peers in node.toml \
                                      names a host that the list lacks"
                .into(),
            _ => "required by [circuits] or [anonymity] in node.toml".into(),
        }
    }
}

/// Hosts that are no longer bound to circuits.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ForgottenHosts {
    /// Number of them.
    pub count: u64,
    /// Names of the first [`ForgottenHosts::NAMED_MAX`]; the key of a host that left the list.
    pub hosts: Vec<String>,
    /// Number of hosts with which circuits are still required, by the list or the node's file.
    pub required: u64,
    /// Time in seconds during which the node refuses circuits of these hosts; 0 if it does not run.
    pub refused_s: u64,
    /// Name of the answering node.
    pub this_node: String,
    /// Reason why the file of met hosts can't be written, if so. After a restart the hosts are
    /// bound again.
    #[serde(default)]
    pub unwritten: Option<String>,
}

impl ForgottenHosts {
    pub const NAMED_MAX: usize = 32;
}

/// Counters of the reordering of packets that came over circuits, since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ReorderCounters {
    /// Packets that waited for packets before them.
    pub held: u64,
    /// Packets that came early in a fast stream, and were held until a longer transit time had
    /// passed.
    pub kept: u64,
    /// Gaps that were given up, since the missing packets did not come in time.
    pub given_up: u64,
    /// Packets that came after packets behind them were delivered.
    pub late: u64,
    /// Times that packets of a stream were released early, since too many waited.
    pub overflowed: u64,
    /// Packets delivered without regard to their order, for lack of memory.
    pub unordered: u64,
}

/// Results of loops since the start. A loop is a cell that goes along a circuit and back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LoopCounters {
    /// Loops that came back in time.
    pub back: u64,
    /// Loops that came back later than mixes may hold them.
    pub late: u64,
    /// Loops that did not come back.
    pub lost: u64,
    /// Circuits that were replaced, since they lost more loops than the others.
    pub lossy: u64,
    /// Circuits that were replaced, since their loops were late more often than those of the
    /// others.
    pub held: u64,
}

/// Circuits to one host.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HostCircuits {
    pub host: String,
    /// True if nothing may be sent to this host outside a circuit.
    pub required: bool,
    /// Reason why the host is reached only over circuits, if it is.
    #[serde(default)]
    pub bound: Option<BoundReason>,
    /// Circuits, the one in use first.
    pub circuits: Vec<CircuitStatus>,
    /// Summary of which routers know which of the two hosts; none without a circuit.
    pub known: Option<String>,
    /// Facts that the circuit does not hide, in words.
    pub warnings: Vec<String>,
    /// Reason why there is no circuit, or no further one, in words.
    pub problem: Option<String>,
    /// Fault that loops last showed in one of the circuits, in words.
    #[serde(default)]
    pub found: Option<String>,
}

/// One circuit.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CircuitStatus {
    /// `in use`, `silent` (in use, but without answers), `standby`, `building` or `ending`.
    pub state: String,
    /// Names of the relays, in their order.
    pub relays: Vec<String>,
    /// Seconds since the circuit was set up, or since its set-up began.
    pub age_s: f64,
    /// Seconds until the circuit ends, where that is known.
    pub ends_in_s: Option<f64>,
    /// Round trip of an echo to the other host, in microseconds.
    pub rtt_us: Option<u64>,
    /// Mix of each relay in words, in their order; empty if none delays cells.
    pub mixes: Vec<String>,
    /// Mean delay in microseconds, one way, that the mixes of all relays add.
    pub added_us: u64,
}

/// A relay that paths avoid, since it failed or may have failed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AvoidedRelay {
    pub relay: String,
    /// True if this relay itself failed: paths then leave it out. False if it or a relay beside it
    /// failed: paths then leave it out of their middle. Both hold only where other relays fit.
    pub failed: bool,
    /// True if a path still leads through it: no path without it satisfies the rules.
    pub needed: bool,
    /// Seconds until paths may use it again.
    pub for_s: f64,
}

/// Answers of the hops of a circuit.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CircuitProbe {
    /// Name of the host that the circuit leads to.
    pub host: String,
    /// The relays in their order, and the host behind them.
    pub hops: Vec<HopAnswer>,
}

/// A hop of a circuit.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HopAnswer {
    pub node: String,
    /// Round trip in microseconds. None for the first hop that did not answer; later hops were not
    /// asked.
    pub rtt_us: Option<u64>,
    /// Part of the round trip that the cells waited in mixes, in microseconds, as this host and the
    /// relays agreed. None where it depends on a relay's clock.
    pub mixed_us: Option<u64>,
    /// Longest time that question and answer may have waited for turns of covered links, in
    /// microseconds.
    #[serde(default)]
    pub turns_us: u64,
    /// Agreed delays of question and answer at each relay up to this hop, in microseconds. None
    /// where they follow the relay's clock.
    #[serde(default)]
    pub delays_us: Vec<Option<[u64; 2]>>,
    /// Time between two turns of a peer on each covered link that may lie on the way, in
    /// microseconds. Links with a Poisson schedule are left out: their turns keep no period.
    #[serde(default)]
    pub periods_us: Vec<u64>,
}
