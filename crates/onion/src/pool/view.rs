//! State of circuits, for display.

use core::time::Duration;

use shoal_wire::{Address, CircuitId, MixStrategy, Time};

use super::{CircuitPool, LastFailure, LoopVerdict, PathWarning, SuspectedRelay};

/// Use of a circuit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CircuitState {
    /// The circuit carries the data to its host.
    InUse,
    /// Like [`CircuitState::InUse`], but it does not answer any more. It is used because there is
    /// no other.
    Silent,
    /// Replaces the circuit in use when that one ends or dies.
    Standby,
    /// The circuit is being set up.
    Building,
    /// The circuit is not used any more, and will be closed soon.
    Ending,
}

impl CircuitState {
    /// The state in words.
    pub const fn as_str(self) -> &'static str {
        match self {
            CircuitState::InUse => "in use",
            CircuitState::Silent => "silent",
            CircuitState::Standby => "standby",
            CircuitState::Building => "building",
            CircuitState::Ending => "ending",
        }
    }
}

/// One circuit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CircuitView {
    pub state: CircuitState,
    pub relays: Vec<Address>,
    /// Time since it was set up, or since its set-up began.
    pub age: Duration,
    /// Time until its end, if known.
    pub left: Option<Duration>,
    /// Time from an echo to the destination's answer, if measured.
    pub rtt: Option<Duration>,
    /// Strategy of each relay.
    pub mixes: Vec<MixStrategy>,
    /// Mean delay that the relays' mixes add in one direction.
    pub added: Duration,
}

/// Reason why there is no circuit, or no further one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CircuitProblem {
    /// No router of the list is a relay.
    NoRelays,
    /// Set-ups failed.
    Failed {
        /// Number of failures in a row.
        times: u32,
        /// The last failure, if known.
        last: Option<LastFailure>,
        /// Time until the next set-up.
        wait: Duration,
    },
    /// Nothing answers: this host's uplink or its router is at fault.
    Cut {
        /// Relay 1 of the last set-up.
        first: Address,
        /// Time until the next set-up.
        wait: Duration,
    },
}

/// Circuits to one host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostView {
    pub to: Address,
    /// The circuit in use comes first.
    pub circuits: Vec<CircuitView>,
    /// Warnings about the circuit in use, or about the one that is being set up.
    pub warnings: Vec<PathWarning>,
    /// Problem that prevents circuits, if any.
    pub problem: Option<CircuitProblem>,
    /// Last verdict of loops on one of them, which was replaced, and its age.
    pub verdict: Option<(LoopVerdict, Duration)>,
}

/// Set-ups since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetupCounts {
    /// Set-ups that completed.
    pub built: u64,
    /// Set-ups that failed or took too long.
    pub failed: u64,
}

impl CircuitPool {
    /// Results of all set-ups since the start.
    pub fn set_ups(&self) -> SetupCounts {
        self.set_ups
    }

    /// All circuits, by destination host.
    pub fn views(&self, now: Time) -> Vec<HostView> {
        let all = self.hosts.iter().map(|(to, host)| {
            let live = |state| {
                move |live: &super::LiveCircuit| CircuitView {
                    state,
                    relays: live.relays().to_vec(),
                    age: now.since(live.built),
                    left: Some(live.ends.since(now)),
                    rtt: Some(live.rtt),
                    mixes: live.mixes.clone(),
                    added: super::mixes::mean(&live.mixes),
                }
            };
            let unused = |state, path: &[Address], since: Time| CircuitView {
                state,
                relays: path[..path.len() - 1].to_vec(),
                age: now.since(since),
                left: None,
                rtt: None,
                mixes: Vec::new(),
                added: Duration::ZERO,
            };
            let mut circuits: Vec<CircuitView> = Vec::new();
            let is_silent = host.in_use.as_ref().is_some_and(|live| live.silent_since.is_some());
            let state = if is_silent { CircuitState::Silent } else { CircuitState::InUse };
            circuits.extend(host.in_use.as_ref().map(live(state)));
            let standby = host.standby.iter().chain(&host.tries.live);
            circuits.extend(standby.map(live(CircuitState::Standby)));
            let building = host.building.as_ref();
            let all = host.building.iter().chain(&host.tries.building);
            circuits.extend(all.map(|b| unused(CircuitState::Building, &b.path, b.began)));
            let ending = host.ending.iter();
            circuits.extend(ending.map(|e| unused(CircuitState::Ending, &e.path, e.built)));
            let warnings = host.in_use.as_ref().map(|live| &live.warnings);
            let warnings = warnings.or(building.map(|building| &building.warnings));
            let wait = host.retry_at.since(now);
            let times = host.failures.saturating_add(host.cut);
            let problem = match host.last {
                _ if host.has_no_relays => Some(CircuitProblem::NoRelays),
                _ if times == 0 => None,
                Some(last) if host.cut > 0 && self.blame.is_cut() => {
                    Some(CircuitProblem::Cut { first: last.node, wait })
                }
                last => Some(CircuitProblem::Failed { times, last, wait }),
            };
            let warnings = warnings.cloned().unwrap_or_default();
            let verdict = host.verdict.map(|(verdict, at)| (verdict, now.since(at)));
            HostView { to: *to, circuits, warnings, problem, verdict }
        });
        all.collect()
    }

    /// The circuit in use to a host, its relays, and the host itself.
    pub fn in_use(&self, to: Address) -> Option<(CircuitId, &[Address])> {
        self.hosts.get(&to)?.in_use.as_ref().map(|live| (live.id, &live.path[..]))
    }

    /// Relays that failed lately, or may have.
    pub fn avoided(&self, now: Time) -> Vec<SuspectedRelay> {
        self.blame.avoided(now)
    }

    /// Number of circuits of this pool, of all kinds.
    pub fn len(&self) -> usize {
        self.by_id.len()
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }
}
