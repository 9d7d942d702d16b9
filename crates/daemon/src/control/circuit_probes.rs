//! Programs that wait for the answers of all hops of a circuit.
//!
//! A hop is asked after the one before it has answered. Hops only answer questions. Their answers
//! are cells of the circuit that look like all others.

use std::time::Duration;

use shoal_onion::pool::CircuitProblem;
use shoal_onion::{EchoDelays, OnionEvent};
use shoal_wire::{Address, CircuitId, CoverKind, CoverTier, Time};

use crate::control::api::{CircuitProbe, ControlReply, ErrorCode, HopAnswer};
use crate::control::circuits;
use crate::control::socket::{ClientId, PendingReply};
use crate::membership::cover;
use crate::worker::first::WorkerParts;

/// Most programs that may wait at once.
const PROBES_MAX: usize = 16;
/// Least time between two echoes of all programs.
const GAP: Duration = Duration::from_millis(50);
/// Shortest and longest interval at which an unanswered echo is repeated: one lost cell must not
/// fail the request.
const REPEAT: Duration = Duration::from_millis(500);
const REPEAT_MAX: Duration = Duration::from_secs(5);
/// Most unanswered echoes of one hop; more than repeats in the longest time-out.
const ASKED_MAX: usize = 128;
/// Longest time-out.
const TIMEOUT_MAX: Duration = Duration::from_secs(60);

struct HopQuery {
    pending: PendingReply,
    to: Address,
    /// None while there is no circuit.
    circuit: Option<CircuitId>,
    /// Relays of the circuit, and the host behind them.
    path: Vec<Address>,
    /// Round trips of the hops that answered, in their order, with the agreed delays in mixes.
    answered: Vec<(Duration, EchoDelays)>,
    /// Echoes sent to the next hop, with the time at which each left.
    asked: Vec<(u64, Time)>,
    ask_at: Time,
    /// Interval at which an unanswered echo is repeated. A repeat before the answer can come would
    /// prefer echoes with short delays, and so falsify an audit.
    repeat: Duration,
    deadline: Time,
}

/// All programs that wait.
#[derive(Default)]
pub struct HopQueries {
    all: Vec<HopQuery>,
    /// Time before which no echo may leave.
    free_at: Time,
}

impl HopQueries {
    /// Asks the hops of the circuit to `to`, a host that is reached over circuits only. The answer
    /// goes to `pending`, after `timeout_ms` at the latest. This time covers the set-up of a
    /// circuit and all hops.
    pub fn start(
        &mut self,
        now: Time,
        parts: &mut WorkerParts,
        to: Address,
        timeout_ms: u32,
        pending: PendingReply,
    ) {
        if self.all.len() >= PROBES_MAX {
            let text = "too many programs ask hops at once";
            return pending.reply(ControlReply::error(ErrorCode::Busy, text));
        }
        let timeout = Duration::from_millis(u64::from(timeout_ms.max(1))).min(TIMEOUT_MAX);
        self.all.push(HopQuery {
            pending,
            to,
            circuit: None,
            path: Vec::new(),
            answered: Vec::new(),
            asked: Vec::new(),
            ask_at: now,
            repeat: REPEAT,
            deadline: now + timeout,
        });
        self.handle_timeout(now, parts);
    }

    /// Handles a circuit that was built, or the answer of a hop.
    pub fn handle_event(&mut self, now: Time, event: &OnionEvent, parts: &mut WorkerParts) {
        if let OnionEvent::Echoed(id, hop, number, delays) = *event {
            for probe in self.all.iter_mut().filter(|probe| probe.circuit == Some(id)) {
                probe.note(now, (hop, number), delays);
            }
        }
        self.handle_timeout(now, parts);
    }

    /// Forgets a program that is gone.
    pub fn client_closed(&mut self, client: ClientId) {
        self.all.retain(|probe| probe.pending.client() != client);
    }

    /// Time at which [`HopQueries::handle_timeout`] is due.
    pub fn poll_timeout(&self) -> Option<Time> {
        let due = |probe: &HopQuery| match probe.circuit {
            Some(_) => probe.ask_at.max(self.free_at).min(probe.deadline),
            None => probe.deadline,
        };
        self.all.iter().map(due).min()
    }

    /// Asks the hops that are due, and answers programs whose time has run out.
    pub fn handle_timeout(&mut self, now: Time, parts: &mut WorkerParts) {
        let mut at = 0;
        while at < self.all.len() {
            let probe = &mut self.all[at];
            if probe.drive(now, &mut self.free_at, parts) {
                let probe = self.all.swap_remove(at);
                let reply = probe.reply(parts);
                probe.pending.reply(reply);
            } else {
                at += 1;
            }
        }
    }
}

impl HopQuery {
    /// Sends an echo if one is due. True if the program can be answered.
    fn drive(&mut self, now: Time, free_at: &mut Time, parts: &mut WorkerParts) -> bool {
        if self.circuit.is_none() {
            let Some(pool) = parts.node.pool() else { return true };
            let Some((id, path)) = pool.in_use(self.to) else {
                let problem = circuits::problem(parts, now, self.to);
                return self.deadline <= now || problem == Some(CircuitProblem::NoRelays);
            };
            let patience = pool.patience(id).unwrap_or_default();
            (self.circuit, self.path) = (Some(id), path.to_vec());
            let turns = tiers_on_way(parts, &self.to).map(CoverTier::turn_wait).sum::<Duration>();
            self.repeat = (patience + turns * 2).clamp(REPEAT, REPEAT_MAX);
        }
        let (Some(id), false) = (self.circuit, self.answered.len() == self.path.len()) else {
            return true;
        };
        let is_time = self.ask_at <= now && *free_at <= now && self.asked.len() < ASKED_MAX;
        if is_time && self.deadline > now {
            let Some(number) = parts.node.ask_hop(id, self.answered.len() as u8 + 1) else {
                return true;
            };
            self.asked.push((number, now));
            (self.ask_at, *free_at) = (now + self.repeat, now + GAP);
        }
        self.deadline <= now
    }

    /// Notes an answer of a hop of this circuit.
    fn note(&mut self, now: Time, (hop, number): (u8, u64), delays: EchoDelays) {
        let is_next = usize::from(hop) == self.answered.len() + 1;
        let asked = self.asked.iter().find(|(asked, _)| *asked == number).filter(|_| is_next);
        if let Some((_, at)) = asked {
            self.answered.push((now.since(*at), delays));
            self.asked.clear();
            self.ask_at = now;
        }
    }

    fn reply(&self, parts: &WorkerParts) -> ControlReply {
        let host = circuits::name(parts, self.to);
        if self.circuit.is_none() {
            let text = circuits::missing_words(parts, parts.clock.now(), self.to);
            return ControlReply::error(ErrorCode::Unreachable, text);
        }
        let answers = self.answered.iter().map(Some).chain(std::iter::repeat(None));
        let hops = (1..).zip(self.path.iter().zip(answers)).map(|(number, (at, answer))| {
            // Waits in both directions: on this host's link, and for the last hop also on the
            // other host's.
            let turns = tiers_on_way(parts, at).map(|tier| us(tier.turn_wait()) * 2);
            let delays = answer.map(|(_, delays)| *delays);
            HopAnswer {
                node: circuits::name(parts, *at),
                rtt_us: answer.map(|(rtt, _)| us(*rtt)),
                mixed_us: delays.and_then(|delays| delays.total().map(us)),
                turns_us: turns.sum(),
                delays_us: delays.map_or_else(Vec::new, |delays| {
                    (1..=number).map(|hop| delays.at(hop).map(|both| both.map(us))).collect()
                }),
                periods_us: periods(parts, at).map(us).collect(),
            }
        });
        ControlReply::Hops(CircuitProbe { host, hops: hops.collect() })
    }
}

fn us(time: Duration) -> u64 {
    time.as_micros() as u64
}

/// Tiers of the covered links of hosts on the way to a node: this host's, and the node's own.
fn tiers_on_way(parts: &WorkerParts, at: &Address) -> impl Iterator<Item = CoverTier> {
    let hosts = parts.names.hosts();
    let far = hosts.by_address(*at).and_then(|host| hosts.cover_of(host));
    cover::own(&parts.config, hosts).into_iter().chain(far)
}

/// Time between two turns of a peer on each covered link that may lie on the way to a node. Routers
/// don't say which of their links are covered. Tiers that no host has are taken for theirs.
fn periods(parts: &WorkerParts, at: &Address) -> impl Iterator<Item = Duration> {
    let hosts = parts.names.hosts();
    let is_of_host = |name: &String| hosts.iter().any(|host| host.cover.as_ref() == Some(name));
    let of_routers = hosts.tiers().iter().filter(|tier| !is_of_host(&tier.name));
    let of_routers: Vec<CoverTier> = of_routers.map(|tier| tier.schedule).collect();
    let all = tiers_on_way(parts, at).chain(of_routers);
    all.filter(|tier| tier.kind() == CoverKind::Constant).map(CoverTier::turn_wait)
}
