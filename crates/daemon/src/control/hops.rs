//! Programs that want each hop of a circuit asked, and wait for the answers.
//!
//! A hop is asked when the one before it has answered. Hops answer what they are asked and say
//! nothing else, with a cell of the circuit's that looks as all others do.

use std::time::Duration;

use shoal_onion::Event;
use shoal_onion::pool::Problem;
use shoal_wire::{Address, CircuitId, CoverTier, Time};

use crate::control::api::{ErrorCode, Hop, Hops, Reply};
use crate::control::circuits;
use crate::control::socket::{ClientId, Pending};
use crate::membership::cover;
use crate::worker::first::Parts;

/// Programs that may wait at once.
const PROBES_MAX: usize = 16;
/// Between two echoes, whoever asked for them.
const GAP: Duration = Duration::from_millis(50);
/// An unanswered echo is repeated this often: one lost cell is no reason to fail.
const REPEAT: Duration = Duration::from_millis(500);
/// Echoes of one hop whose answer is still taken; more than repeats in the longest time-out.
const ASKED_MAX: usize = 128;
/// Longest time-out.
const TIMEOUT_MAX: Duration = Duration::from_secs(60);

struct Probe {
    pending: Pending,
    to: Address,
    /// None as long as there is no circuit.
    circuit: Option<CircuitId>,
    /// Its relays, and the host behind them.
    path: Vec<Address>,
    /// Round trips of the hops that answered, in their order, and how much of each was agreed on as
    /// waiting in mixes.
    answered: Vec<(Duration, Option<Duration>)>,
    /// Echoes of the next hop, and when they left.
    asked: Vec<(u64, Time)>,
    ask_at: Time,
    deadline: Time,
}

/// All programs that wait.
#[derive(Default)]
pub struct Probes {
    all: Vec<Probe>,
    /// No echo leaves earlier.
    free_at: Time,
}

impl Probes {
    /// Asks the hops of the circuit to `to`, a host that is spoken with over circuits alone. The
    /// answer goes to `pending`, at the latest after `timeout_ms` for the set-up of a circuit and
    /// all hops together.
    pub fn start(
        &mut self,
        now: Time,
        parts: &mut Parts,
        to: Address,
        timeout_ms: u32,
        pending: Pending,
    ) {
        if self.all.len() >= PROBES_MAX {
            let text = "too many programs ask hops at once";
            return pending.reply(Reply::error(ErrorCode::Busy, text));
        }
        let timeout = Duration::from_millis(u64::from(timeout_ms.max(1))).min(TIMEOUT_MAX);
        self.all.push(Probe {
            pending,
            to,
            circuit: None,
            path: Vec::new(),
            answered: Vec::new(),
            asked: Vec::new(),
            ask_at: now,
            deadline: now + timeout,
        });
        self.handle_timeout(now, parts);
    }

    /// A circuit was built, or a hop answered.
    pub fn handle_event(&mut self, now: Time, event: &Event, parts: &mut Parts) {
        if let Event::Echoed(id, hop, number, waits) = *event {
            for probe in self.all.iter_mut().filter(|probe| probe.circuit == Some(id)) {
                probe.note(now, (hop, number), waits);
            }
        }
        self.handle_timeout(now, parts);
    }

    /// A program is gone.
    pub fn client_closed(&mut self, client: ClientId) {
        self.all.retain(|probe| probe.pending.client() != client);
    }

    /// When [`Probes::handle_timeout`] has something to do.
    pub fn poll_timeout(&self) -> Option<Time> {
        let due = |probe: &Probe| match probe.circuit {
            Some(_) => probe.ask_at.max(self.free_at).min(probe.deadline),
            None => probe.deadline,
        };
        self.all.iter().map(due).min()
    }

    /// Asks the hops whose turn it is, and answers those who have waited long enough.
    pub fn handle_timeout(&mut self, now: Time, parts: &mut Parts) {
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

impl Probe {
    /// Does what is due; says whether it is done.
    fn drive(&mut self, now: Time, free_at: &mut Time, parts: &mut Parts) -> bool {
        if self.circuit.is_none() {
            let Some(pool) = parts.node.pool() else { return true };
            let Some((id, path)) = pool.in_use(self.to) else {
                let problem = circuits::problem(parts, now, self.to);
                return self.deadline <= now || problem == Some(Problem::NoRelays);
            };
            (self.circuit, self.path) = (Some(id), path.to_vec());
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
            (self.ask_at, *free_at) = (now + REPEAT, now + GAP);
        }
        self.deadline <= now
    }

    /// Takes in an answer of a hop of its circuit.
    fn note(&mut self, now: Time, (hop, number): (u8, u64), waits: Option<Duration>) {
        let is_next = usize::from(hop) == self.answered.len() + 1;
        let asked = self.asked.iter().find(|(asked, _)| *asked == number).filter(|_| is_next);
        if let Some((_, at)) = asked {
            self.answered.push((now.since(*at), waits));
            self.asked.clear();
            self.ask_at = now;
        }
    }

    fn reply(&self, parts: &Parts) -> Reply {
        let host = circuits::name(parts, self.to);
        if self.circuit.is_none() {
            let text = circuits::missing_words(parts, parts.clock.now(), self.to);
            return Reply::error(ErrorCode::Unreachable, text);
        }
        let us = |time: Duration| time.as_micros() as u64;
        // There and back, over this host's link, and for the last hop over that host's.
        let wait = |tier: CoverTier| us(tier.turn_wait()) * 2;
        let hosts = parts.names.hosts();
        let own = cover::own(&parts.config, hosts).map_or(0, wait);
        let far = |at: &Address| hosts.by_address(*at).and_then(|host| hosts.cover_of(host));
        let answers = self.answered.iter().map(Some).chain(std::iter::repeat(None));
        let hops = self.path.iter().zip(answers).map(|(at, answer)| Hop {
            node: circuits::name(parts, *at),
            rtt_us: answer.map(|(rtt, _)| us(*rtt)),
            mixed_us: answer.and_then(|(_, waits)| waits.map(us)),
            turns_us: own + far(at).map_or(0, wait),
        });
        Reply::Hops(Hops { host, hops: hops.collect() })
    }
}
