//! The circuits that a node begins.

use serde::{Deserialize, Serialize};

use super::Covered;

/// Circuits of the node that answers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Circuits {
    /// Hosts that circuits lead to, or with whom they are required.
    pub hosts: Vec<CircuitsTo>,
    /// Relays that failed lately, or may have.
    pub avoided: Vec<Avoided>,
    /// Circuits that end here or go through here, rounded up to a multiple of 8.
    pub open: u64,
    /// What was done for the order of packets that came over circuits.
    #[serde(default)]
    pub order: Order,
    /// What became of loops, if they are sent.
    #[serde(default)]
    pub loops: Option<Loops>,
    /// Links whose frames leave by a schedule, if there are any.
    #[serde(default)]
    pub cover: Option<Covered>,
    /// What is required otherwise than it was meant, in words.
    #[serde(default)]
    pub warnings: Vec<String>,
}

/// All circuits of a node together; counters count since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CircuitTotals {
    /// Circuits that this node begins.
    pub own: u64,
    /// As [`Circuits::open`].
    pub open: u64,
    /// Set-ups of own circuits that ended well.
    pub built: u64,
    /// Set-ups of own circuits that failed.
    pub failed: u64,
    /// Cells of circuits that came in or began here.
    pub cells: u64,
    /// How many of them were dropped.
    pub dropped: u64,
}

/// What was done for the order of packets that came over circuits, since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Order {
    /// Packets that waited for others before them.
    pub held: u64,
    /// Packets that came early in a fast stream, and were kept until they had taken longer.
    pub kept: u64,
    /// Gaps that were given up, since what was waited for did not come in time.
    pub given_up: u64,
    /// Packets that came after others behind them were delivered.
    pub late: u64,
    /// Times that packets of a stream were released early, since too many waited.
    pub overflowed: u64,
    /// Packets delivered without regard to their order, for want of room.
    pub unordered: u64,
}

/// What became of loops, cells that went along circuits and back, since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Loops {
    /// They came back in time.
    pub back: u64,
    /// They came back later than mixes may keep them.
    pub late: u64,
    /// They did not come back.
    pub lost: u64,
    /// Circuits that lost more than the others did, and gave way.
    pub lossy: u64,
    /// Circuits that were late more often than the others, and gave way.
    pub held: u64,
}

/// Circuits to one host.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CircuitsTo {
    /// Its name.
    pub host: String,
    /// Nothing leaves for it outside a circuit, since the list or this node's file says so.
    pub required: bool,
    /// The one in use first.
    pub circuits: Vec<Circuit>,
    /// Who knows what of the two hosts, in words; none without a circuit.
    pub known: Option<String>,
    /// What is not hidden, in words.
    pub warnings: Vec<String>,
    /// Why there is no circuit, or no further one, in words.
    pub problem: Option<String>,
    /// What loops last showed of one of its circuits, in words.
    #[serde(default)]
    pub found: Option<String>,
}

/// One circuit.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Circuit {
    /// `in use`, `silent` (in use, but it answers no more), `standby`, `building` or `ending`.
    pub state: String,
    /// Names of its relays, in their order.
    pub relays: Vec<String>,
    /// Seconds since it was set up, or since its set-up began.
    pub age_s: f64,
    /// Seconds until its end, where that is known.
    pub ends_in_s: Option<f64>,
    /// From an echo to the other host's answer, in microseconds.
    pub rtt_us: Option<u64>,
    /// What each relay does with cells, in their order, in words; empty where none delays any.
    pub mixes: Vec<String>,
    /// What the relays add to a cell's way so that cells are mixed, one way, in the mean, in
    /// microseconds.
    pub added_us: u64,
}

/// A relay that failed, or may have failed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Avoided {
    /// Its name.
    pub relay: String,
    /// It failed, and is left out where others fit. Else it or a relay beside it failed, and it is
    /// left out of the middle of paths where others fit.
    pub failed: bool,
    /// A path leads through it all the same: none that keeps the rules does without.
    pub needed: bool,
    /// For so many seconds more.
    pub for_s: f64,
}

/// What the hops of a circuit answered.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Hops {
    /// Name of the host that the circuit leads to.
    pub host: String,
    /// The relays in their order, and the host behind them.
    pub hops: Vec<Hop>,
}

/// One hop.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Hop {
    /// Its name.
    pub node: String,
    /// Round trip in microseconds. None of the first hop that did not answer, nor of those behind
    /// it, which were not asked.
    pub rtt_us: Option<u64>,
    /// How much of it question and answer were to wait in mixes, in microseconds, as this host and
    /// the relays agreed. None where that depends on the clock of a relay.
    pub mixed_us: Option<u64>,
    /// How long question and answer may have waited for turns of covered links, in microseconds.
    #[serde(default)]
    pub turns_us: u64,
}
