//! Loops: echoes to the end of a circuit and back at random times. They reveal relays that drop or
//! hold some of its cells (Piotrowska et al., "The Loopix Anonymity System", section 4.1.3).
//!
//! The echoes of [`super::live`] only detect a dead circuit: one answer in three is enough for
//! them. Loops detect missing or late cells. They are sent as a Poisson process, whatever the
//! circuit carries, over the circuit in use and the standby.
//!
//! A circuit is compared with the other circuits of this host, above all with its standby, which
//! has equal lines and ends. Losses on those lines affect both. Losses in a row count once, since a
//! line that fails for a while loses them together.
//!
//! ```text
//! of a circuit's last 64 loops: k rows of losses        of all others': a share q was lost
//! lossy, if P(Binomial(n, max(q, FLOOR)) >= k) < ALARM; held likewise, of those that came late
//! ```
//!
//! Such a circuit is replaced by one over other relays, if there are any. The relay at fault can't
//! be told, so none is blamed.

use core::time::Duration;
use std::collections::VecDeque;

use shoal_crypto::Rng;
use shoal_wire::{Address, CircuitId, Time};

use super::live::LiveCircuit;
use super::{CircuitPool, DestinationCircuits};

/// Mean time between two loops of a circuit. A circuit that loses a fifth of its cells is found
/// after two to five minutes of its ten.
const GAP: Duration = Duration::from_secs(2);
/// Most open loops of a circuit.
const FLIGHT_MAX: usize = 16;
/// Number of last loops that are judged.
const LAST: u32 = 64;
/// Fewest loops, of a circuit and of all others together, for a verdict.
const LEAST: u32 = 32;
/// Time after which an unanswered loop is lost, in addition to two round trips and the delay of
/// mixes.
const LOST_AFTER: Duration = Duration::from_secs(2);
/// Time after which an answer is late, in addition to one and a half times the least round trip and
/// the longest delay of mixes. Queues of this network's links hold less.
const LATE_AFTER: Duration = Duration::from_millis(250);
/// Least share of losses assumed for other circuits: a few more losses are chance, or a busy line.
const FLOOR: f64 = 0.03;
/// Probability that a good circuit is found worse, each time that one of its loops is over. A
/// circuit has about 300 loops in its life, and their windows overlap. Thus one good circuit of
/// 3,000 is replaced.
const ALARM: f64 = 1e-5;

/// Result of a loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LoopResult {
    Back,
    Late,
    Lost,
}

/// Verdict of loops on a circuit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoopVerdict {
    /// The circuit loses more than the others do.
    Lossy,
    /// The circuit delays more cells than its mixes should.
    Held,
}

impl LoopVerdict {
    /// The verdict in one word.
    pub const fn as_str(self) -> &'static str {
        match self {
            LoopVerdict::Lossy => "lossy",
            LoopVerdict::Held => "held",
        }
    }
}

/// Loops of all circuits since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoopTotals {
    /// Loops that came back in time.
    pub back: u64,
    /// Loops that came back late.
    pub late: u64,
    /// Loops that did not come back.
    pub lost: u64,
    /// Circuits that were found lossy.
    pub lossy: u64,
    /// Circuits that were found to hold cells.
    pub held: u64,
}

impl LoopTotals {
    pub(super) fn count(&mut self, outcome: LoopResult) {
        let count = match outcome {
            LoopResult::Back => &mut self.back,
            LoopResult::Late => &mut self.late,
            LoopResult::Lost => &mut self.lost,
        };
        *count += 1;
    }
}

/// The loops of one circuit.
#[derive(Debug, Default)]
pub(super) struct Loops {
    /// Time of the next loop; none before the first is planned.
    next_at: Option<Time>,
    /// Numbers of open loops, and their times of sending.
    asked: VecDeque<(u64, Time)>,
    /// Least time of a loop.
    least: Option<Duration>,
    /// Results of the last loops, the newest in bit 0.
    lost: u64,
    late: u64,
    /// Number of bits that count.
    over: u32,
}

/// Counts of loops, by result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct LoopCounts {
    over: u32,
    lost: u32,
    late: u32,
}

impl Loops {
    fn note(&mut self, outcome: LoopResult) {
        self.lost = self.lost << 1 | u64::from(outcome == LoopResult::Lost);
        self.late = self.late << 1 | u64::from(outcome == LoopResult::Late);
        self.over = (self.over + 1).min(LAST);
    }

    /// Losses and late answers, counted singly.
    fn counts(&self) -> LoopCounts {
        let (lost, late) = (self.lost.count_ones(), self.late.count_ones());
        LoopCounts { over: self.over, lost, late }
    }

    /// Losses and late answers; a row counts once.
    fn rows(&self) -> LoopCounts {
        let rows = |bits: u64| (bits & !(bits << 1)).count_ones();
        LoopCounts { over: self.over, lost: rows(self.lost), late: rows(self.late) }
    }

    /// Number of a loop to send, if one is due.
    fn send(&mut self, now: Time, rng: &mut Rng) -> Option<u64> {
        let next_at = *self.next_at.get_or_insert_with(|| now + wait(rng));
        if now < next_at || self.asked.len() >= FLIGHT_MAX {
            return None;
        }
        self.next_at = Some(now + wait(rng));
        let number = rng.u64().max(1);
        self.asked.push_back((number, now));
        Some(number)
    }

    fn answered(&mut self, now: Time, number: u64, waits: Duration) -> Option<LoopResult> {
        let at = self.asked.iter().position(|(asked, _)| *asked == number)?;
        let (_, sent) = self.asked.remove(at)?;
        let took = now.since(sent);
        let least = self.least.map_or(took, |least| least.min(took));
        self.least = Some(least);
        let late = took > least + least / 2 + waits + LATE_AFTER;
        let outcome = if late { LoopResult::Late } else { LoopResult::Back };
        self.note(outcome);
        Some(outcome)
    }

    /// Time at which the oldest open loop counts as lost.
    fn lost_at(&self, waits: Duration) -> Option<Time> {
        let (_, sent) = self.asked.front()?;
        Some(*sent + LOST_AFTER + self.least.unwrap_or_default() * 2 + waits)
    }

    /// Gives up the oldest open loop if it is lost; returns true if so.
    fn give_up(&mut self, now: Time, waits: Duration) -> bool {
        let lost = self.lost_at(waits).is_some_and(|at| at <= now);
        if lost {
            self.asked.pop_front();
            self.note(LoopResult::Lost);
        }
        lost
    }

    pub(super) fn due(&self, waits: Duration) -> Option<Time> {
        let next_at = self.next_at.filter(|_| self.asked.len() < FLIGHT_MAX);
        next_at.into_iter().chain(self.lost_at(waits)).min()
    }

    /// Verdict in comparison with the loops of `others`.
    fn verdict(&self, others: LoopCounts) -> Option<LoopVerdict> {
        if self.over < LEAST || others.over < LEAST {
            return None;
        }
        let rows = self.rows();
        let is_worse = |mine: u32, theirs: u32| {
            let share = f64::from(theirs + 1) / f64::from(others.over + 1);
            at_least(mine, rows.over, share.max(FLOOR)) < ALARM
        };
        if is_worse(rows.lost, others.lost) {
            return Some(LoopVerdict::Lossy);
        }
        is_worse(rows.late, others.late).then_some(LoopVerdict::Held)
    }
}

/// A random wait with an exponential distribution.
fn wait(rng: &mut Rng) -> Duration {
    let u = ((rng.u64() >> 11) + 1) as f64 / (1u64 << 53) as f64;
    GAP.mul_f64(-u.ln())
}

/// Probability of at least `k` successes in `n` independent trials, each with probability `p`.
fn at_least(k: u32, n: u32, p: f64) -> f64 {
    if p >= 1.0 {
        return 1.0;
    }
    let odds = p / (1.0 - p);
    let mut term = (1.0 - p).powi(n as i32);
    let mut below = 0.0;
    for i in 0..k.min(n + 1) {
        below += term;
        term *= odds * f64::from(n - i) / f64::from(i + 1);
    }
    (1.0 - below).max(0.0)
}

impl LiveCircuit {
    /// Processes an answer of the destination. None if no loop has this number.
    pub(super) fn loop_answered(&mut self, now: Time, number: u64) -> Option<LoopResult> {
        let waits = self.waits();
        self.loops.answered(now, number, waits)
    }

    /// Time of the next loop or deadline.
    pub(super) fn loops_due(&self) -> Option<Time> {
        self.loops.due(self.waits())
    }
}

impl DestinationCircuits {
    fn looped(&self) -> impl Iterator<Item = &LiveCircuit> {
        self.in_use.iter().chain(&self.standby)
    }
}

impl CircuitPool {
    /// Sets if loops are sent.
    pub fn set_loops(&mut self, now: Time, on: bool) {
        if self.has_loops == on {
            return;
        }
        self.has_loops = on;
        for host in self.hosts.values_mut() {
            let both = host.in_use.iter_mut().chain(&mut host.standby);
            both.for_each(|live| live.loops = Loops::default());
        }
        self.settle(now);
    }

    /// True if loops are sent.
    pub fn has_loops(&self) -> bool {
        self.has_loops
    }

    /// Results of all loops since the start.
    pub fn loop_totals(&self) -> LoopTotals {
        self.loop_totals
    }

    /// Sends the due loops of a host's circuits, gives up lost ones, and replaces a circuit that is
    /// worse than the others.
    pub(super) fn settle_loops(&mut self, now: Time, to: Address) {
        if !self.has_loops {
            return;
        }
        let has_room = self.has_room_for_echoes();
        let CircuitPool { hosts, rng, loop_totals, echoes, .. } = self;
        let Some(host) = hosts.get_mut(&to) else { return };
        for live in host.in_use.iter_mut().chain(&mut host.standby) {
            let waits = live.waits();
            while live.loops.give_up(now, waits) {
                loop_totals.count(LoopResult::Lost);
            }
            // A silent circuit already gets enough echoes.
            let may_send = has_room && live.silent_since.is_none();
            if let Some(number) = may_send.then(|| live.loops.send(now, rng)).flatten() {
                echoes.push_back((live.id, live.path.len() as u8, number));
            }
        }
        let worse = self.worse_circuit(to);
        if let Some((id, verdict)) = worse {
            self.give_way(now, to, id, verdict);
        }
    }

    /// A circuit to a host that is worse than all other circuits of this host.
    fn worse_circuit(&self, to: Address) -> Option<(CircuitId, LoopVerdict)> {
        let host = self.hosts.get(&to)?;
        let judged = |live: &&LiveCircuit| live.loops.over >= LEAST;
        host.looped().filter(judged).find_map(|live| {
            let others = self.hosts.values().flat_map(DestinationCircuits::looped);
            let others = others.filter(|other| other.id != live.id);
            let add = |all: LoopCounts, other: &LiveCircuit| {
                let counts = other.loops.counts();
                let LoopCounts { over, lost, late } = all;
                let (over, lost) = (over + counts.over, lost + counts.lost);
                LoopCounts { over, lost, late: late + counts.late }
            };
            let verdict = live.loops.verdict(others.fold(LoopCounts::default(), add))?;
            Some((live.id, verdict))
        })
    }

    /// Replaces a circuit by one over other relays.
    fn give_way(&mut self, now: Time, to: Address, id: CircuitId, verdict: LoopVerdict) {
        match verdict {
            LoopVerdict::Lossy => self.loop_totals.lossy += 1,
            LoopVerdict::Held => self.loop_totals.held += 1,
        }
        let Some(host) = self.hosts.get_mut(&to) else { return };
        host.verdict = Some((verdict, now));
        let mut both = host.in_use.iter_mut().chain(&mut host.standby);
        if let Some(live) = both.find(|live| live.id == id) {
            live.loops = Loops::default();
            (live.replace_at, live.stale_at) = (now, now);
            host.spared = live.relays().to_vec();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tail_of_a_binomial_is_right() {
        // 10 trials with probability 1/2: 11 of 1,024 outcomes have at least 9 successes.
        assert!((at_least(9, 10, 0.5) - 11.0 / 1_024.0).abs() < 1e-12);
        assert!((at_least(0, 64, 0.03) - 1.0).abs() < 1e-12);
        assert!((at_least(64, 64, 0.5) - 0.5f64.powi(64)).abs() < 1e-12);
        assert_eq!(at_least(3, 64, 1.0), 1.0);
        // If others lose nothing, 11 rows of 64 are too many, and 10 are not.
        assert!(at_least(11, 64, FLOOR) < ALARM && at_least(10, 64, FLOOR) > ALARM);
    }

    #[test]
    fn losses_in_a_row_count_once() {
        let mut loops = Loops::default();
        for lost in [false, true, true, true, false, true, false, false, true, true] {
            loops.note(if lost { LoopResult::Lost } else { LoopResult::Back });
        }
        assert_eq!(loops.counts(), LoopCounts { over: 10, lost: 6, late: 0 });
        assert_eq!(loops.rows(), LoopCounts { over: 10, lost: 3, late: 0 });
    }
}
