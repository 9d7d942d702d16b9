//! Circuits as people see them.

use core::time::Duration;

use shoal_wire::{Address, CircuitId, Strategy, Time};

use super::{Avoided, LastFailure, Pool, Verdict, Warning};

/// What a circuit is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CircuitState {
    /// It carries what goes to the host.
    InUse,
    /// As [`CircuitState::InUse`], since there is no other, though it answers no more.
    Silent,
    /// It takes over when the one in use ends or dies.
    Standby,
    /// It is being set up.
    Building,
    /// It is used no more, and closed soon.
    Ending,
}

impl CircuitState {
    /// In one word.
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
    /// What it is for.
    pub state: CircuitState,
    /// Its relays, in their order.
    pub relays: Vec<Address>,
    /// Since it was set up, or since its set-up began.
    pub age: Duration,
    /// Until its end, where that is known.
    pub left: Option<Duration>,
    /// From an echo to the destination's answer, where one was measured.
    pub rtt: Option<Duration>,
    /// What each relay does with cells.
    pub mixes: Vec<Strategy>,
    /// What the relays add so that cells are mixed, one way, in the mean.
    pub added: Duration,
}

/// Why there is no circuit, or no further one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Problem {
    /// No router of the list is a relay.
    NoRelays,
    /// Set-ups failed.
    Failed {
        /// So many in a row.
        times: u32,
        /// The last of them, where that is known.
        last: Option<LastFailure>,
        /// The next begins after this time.
        wait: Duration,
    },
    /// Nothing answers: this host's uplink or its router is at fault.
    Cut {
        /// Relay 1 of the last set-up.
        first: Address,
        /// The next begins after this time.
        wait: Duration,
    },
}

/// Circuits to one host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostView {
    /// Which.
    pub to: Address,
    /// The one in use first.
    pub circuits: Vec<CircuitView>,
    /// What the circuit in use, or the one that is being set up, does not hide.
    pub warnings: Vec<Warning>,
    /// What keeps circuits from being there.
    pub problem: Option<Problem>,
    /// What loops last showed of one of them, which gave way to another, and how long ago.
    pub verdict: Option<(Verdict, Duration)>,
}

/// Set-ups since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetUps {
    /// All hops were there.
    pub built: u64,
    /// They failed, or took too long.
    pub failed: u64,
}

impl Pool {
    /// What became of set-ups since the start.
    pub fn set_ups(&self) -> SetUps {
        self.set_ups
    }

    /// All circuits, by the hosts that they lead to.
    pub fn views(&self, now: Time) -> Vec<HostView> {
        let all = self.hosts.iter().map(|(to, host)| {
            let live = |state| {
                move |live: &super::Live| CircuitView {
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
                _ if host.has_no_relays => Some(Problem::NoRelays),
                _ if times == 0 => None,
                Some(last) if host.cut > 0 && self.blame.is_cut() => {
                    Some(Problem::Cut { first: last.node, wait })
                }
                last => Some(Problem::Failed { times, last, wait }),
            };
            let warnings = warnings.cloned().unwrap_or_default();
            let verdict = host.verdict.map(|(verdict, at)| (verdict, now.since(at)));
            HostView { to: *to, circuits, warnings, problem, verdict }
        });
        all.collect()
    }

    /// The circuit that carries what goes to a host, its relays, and the host behind them.
    pub fn in_use(&self, to: Address) -> Option<(CircuitId, &[Address])> {
        self.hosts.get(&to)?.in_use.as_ref().map(|live| (live.id, &live.path[..]))
    }

    /// Relays that failed lately, or may have.
    pub fn avoided(&self, now: Time) -> Vec<Avoided> {
        self.blame.avoided(now)
    }

    /// Circuits of this pool, of all kinds.
    pub fn len(&self) -> usize {
        self.by_id.len()
    }

    /// True when there is none.
    pub fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }
}
