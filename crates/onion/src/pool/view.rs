//! Circuits as people see them.

use core::time::Duration;

use shoal_wire::{Address, CircuitId, Time};

use super::{Pool, Warning};

/// What a circuit is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It carries what goes to the host.
    InUse,
    /// It takes over when the one in use ends or dies.
    Standby,
    /// It is being set up.
    Building,
    /// It is used no more, and closed soon.
    Ending,
}

impl Role {
    /// In one word.
    pub const fn as_str(self) -> &'static str {
        match self {
            Role::InUse => "in use",
            Role::Standby => "standby",
            Role::Building => "building",
            Role::Ending => "ending",
        }
    }
}

/// One circuit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CircuitView {
    /// What it is for.
    pub role: Role,
    /// Its relays, in their order.
    pub relays: Vec<Address>,
    /// Since it was set up, or since its set-up began.
    pub age: Duration,
    /// Until its end, where that is known.
    pub left: Option<Duration>,
    /// From an echo to the destination's answer, where one was measured.
    pub rtt: Option<Duration>,
}

/// Why there is no circuit, or no further one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Problem {
    /// No router of the list is a relay.
    NoRelays,
    /// Set-ups failed, so many in a row; the next begins after this time.
    Failed(u32, Duration),
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
            let live = |role| {
                move |live: &super::Live| CircuitView {
                    role,
                    relays: live.relays().to_vec(),
                    age: now.since(live.built),
                    left: Some(live.ends.since(now)),
                    rtt: Some(live.rtt),
                }
            };
            let unused = |role, path: &[Address], since: Time| CircuitView {
                role,
                relays: path[..path.len() - 1].to_vec(),
                age: now.since(since),
                left: None,
                rtt: None,
            };
            let mut circuits: Vec<CircuitView> = Vec::new();
            circuits.extend(host.in_use.as_ref().map(live(Role::InUse)));
            circuits.extend(host.standby.as_ref().map(live(Role::Standby)));
            let building = host.building.as_ref();
            circuits.extend(building.map(|b| unused(Role::Building, &b.path, b.began)));
            let ending = host.ending.iter();
            circuits.extend(ending.map(|e| unused(Role::Ending, &e.path, e.built)));
            let warnings = host.in_use.as_ref().map(|live| &live.warnings);
            let warnings = warnings.or(building.map(|building| &building.warnings));
            let problem = match host.failures {
                _ if host.has_no_relays => Some(Problem::NoRelays),
                0 => None,
                n => Some(Problem::Failed(n, host.retry_at.since(now))),
            };
            let warnings = warnings.cloned().unwrap_or_default();
            HostView { to: *to, circuits, warnings, problem }
        });
        all.collect()
    }

    /// The circuit that carries what goes to a host, its relays, and the host behind them.
    pub fn in_use(&self, to: Address) -> Option<(CircuitId, &[Address])> {
        self.hosts.get(&to)?.in_use.as_ref().map(|live| (live.id, &live.path[..]))
    }

    /// Relays that failed lately, and for how long they are avoided.
    pub fn avoided(&self, now: Time) -> impl Iterator<Item = (Address, Duration)> {
        self.avoided.iter().map(move |(at, until)| (*at, until.since(now)))
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
