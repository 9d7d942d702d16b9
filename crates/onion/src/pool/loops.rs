//! Loops: echoes to the end of a circuit and back at random times, which show relays that drop or
//! hold some of its cells (Piotrowska et al., "The Loopix Anonymity System", section 4.1.3).
//!
//! Echoes of [`super::live`] find out that a circuit is dead: one answer in three is enough for
//! them. Loops find out that some cells are missing or late. They leave at the times of a Poisson
//! process whatever the circuit carries, over the one in use and the standby.
//!
//! A circuit is compared with the others of this host, most of all with its standby, which crosses
//! the same lines and the same ends: what lines lose is lost by both. Losses in a row count once,
//! since a line that is down for a while loses them together.
//!
//! ```text
//! of a circuit's last 64 loops: k rows of losses        of all others': a share q was lost
//! lossy, if P(Binomial(n, max(q, FLOOR)) >= k) < ALARM; held likewise, of those that came late
//! ```
//!
//! A circuit that is found so gives way to another over other relays, as far as there are any.
//! Which relay is at fault can't be told, and none is blamed.

use core::time::Duration;
use std::collections::VecDeque;

use shoal_crypto::Rng;
use shoal_wire::{Address, CircuitId, Time};

use super::live::Live;
use super::{Host, Pool};

/// Between two loops of a circuit, in the mean: a circuit that loses a fifth of its cells is found
/// after two to five minutes of its ten.
const GAP: Duration = Duration::from_secs(2);
/// Loops of a circuit on their way at most.
const FLIGHT_MAX: usize = 16;
/// Loops that are looked at.
const LAST: u32 = 64;
/// A circuit, and all others together, are judged from so many on.
const LEAST: u32 = 32;
/// A loop without an answer is lost after this, beside two round trips and what mixes add.
const LOST_AFTER: Duration = Duration::from_secs(2);
/// An answer is late after this, beside half a round trip more than the least and what mixes add at
/// most: more than queues of this network's links hold.
const LATE_AFTER: Duration = Duration::from_millis(250);
/// Others are taken to lose this share at least: a few losses more are chance, or a busy line.
const FLOOR: f64 = 0.03;
/// How probable it may be that a circuit which is as good as the others is found worse, each time
/// one of its loops is over. About 300 are, in its life, with windows that overlap: one circuit of
/// 3,000 is replaced for nothing.
const ALARM: f64 = 1e-5;

/// What became of a loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Back,
    Late,
    Lost,
}

/// What loops showed of a circuit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It loses more than the others do.
    Lossy,
    /// It keeps more cells back than its mixes say.
    Held,
}

impl Verdict {
    /// In one word.
    pub const fn as_str(self) -> &'static str {
        match self {
            Verdict::Lossy => "lossy",
            Verdict::Held => "held",
        }
    }
}

/// Loops of all circuits since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoopTotals {
    /// They came back in time.
    pub back: u64,
    /// They came back late.
    pub late: u64,
    /// They did not come back.
    pub lost: u64,
    /// Circuits that were found lossy.
    pub lossy: u64,
    /// Circuits that were found to hold cells.
    pub held: u64,
}

impl LoopTotals {
    pub(super) fn count(&mut self, outcome: Outcome) {
        let count = match outcome {
            Outcome::Back => &mut self.back,
            Outcome::Late => &mut self.late,
            Outcome::Lost => &mut self.lost,
        };
        *count += 1;
    }
}

/// The loops of one circuit.
#[derive(Debug, Default)]
pub(super) struct Loops {
    /// None before the first is planned.
    next_at: Option<Time>,
    /// Numbers of those on their way, and when they were sent.
    asked: VecDeque<(u64, Time)>,
    /// The least time that one took.
    least: Option<Duration>,
    /// What became of the last ones, the newest in bit 0.
    lost: u64,
    late: u64,
    /// How many of the bits count.
    over: u32,
}

/// Outcomes of some loops.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    over: u32,
    lost: u32,
    late: u32,
}

impl Loops {
    fn note(&mut self, outcome: Outcome) {
        self.lost = self.lost << 1 | u64::from(outcome == Outcome::Lost);
        self.late = self.late << 1 | u64::from(outcome == Outcome::Late);
        self.over = (self.over + 1).min(LAST);
    }

    /// Losses and late answers, each one counted.
    fn counts(&self) -> Counts {
        let (lost, late) = (self.lost.count_ones(), self.late.count_ones());
        Counts { over: self.over, lost, late }
    }

    /// Those in a row counted once.
    fn rows(&self) -> Counts {
        let rows = |bits: u64| (bits & !(bits << 1)).count_ones();
        Counts { over: self.over, lost: rows(self.lost), late: rows(self.late) }
    }

    /// The number of a loop to send, if one is due.
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

    fn answered(&mut self, now: Time, number: u64, waits: Duration) -> Option<Outcome> {
        let at = self.asked.iter().position(|(asked, _)| *asked == number)?;
        let (_, sent) = self.asked.remove(at)?;
        let took = now.since(sent);
        let least = self.least.map_or(took, |least| least.min(took));
        self.least = Some(least);
        let late = took > least + least / 2 + waits + LATE_AFTER;
        let outcome = if late { Outcome::Late } else { Outcome::Back };
        self.note(outcome);
        Some(outcome)
    }

    /// When the first of those on their way counts as lost.
    fn lost_at(&self, waits: Duration) -> Option<Time> {
        let (_, sent) = self.asked.front()?;
        Some(*sent + LOST_AFTER + self.least.unwrap_or_default() * 2 + waits)
    }

    /// Whether the first of those on their way is lost: it is given up.
    fn give_up(&mut self, now: Time, waits: Duration) -> bool {
        let lost = self.lost_at(waits).is_some_and(|at| at <= now);
        if lost {
            self.asked.pop_front();
            self.note(Outcome::Lost);
        }
        lost
    }

    pub(super) fn due(&self, waits: Duration) -> Option<Time> {
        let next_at = self.next_at.filter(|_| self.asked.len() < FLIGHT_MAX);
        next_at.into_iter().chain(self.lost_at(waits)).min()
    }

    /// What they show beside those of `others`.
    fn verdict(&self, others: Counts) -> Option<Verdict> {
        if self.over < LEAST || others.over < LEAST {
            return None;
        }
        let rows = self.rows();
        let is_worse = |mine: u32, theirs: u32| {
            let share = f64::from(theirs + 1) / f64::from(others.over + 1);
            at_least(mine, rows.over, share.max(FLOOR)) < ALARM
        };
        if is_worse(rows.lost, others.lost) {
            return Some(Verdict::Lossy);
        }
        is_worse(rows.late, others.late).then_some(Verdict::Held)
    }
}

/// An exponential wait.
fn wait(rng: &mut Rng) -> Duration {
    let u = ((rng.u64() >> 11) + 1) as f64 / (1u64 << 53) as f64;
    GAP.mul_f64(-u.ln())
}

/// The probability that at least `k` of `n` independent things happen, each with probability `p`.
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

impl Live {
    /// Takes an answer of the destination in; none if no loop has this number.
    pub(super) fn loop_answered(&mut self, now: Time, number: u64) -> Option<Outcome> {
        let waits = self.waits();
        self.loops.answered(now, number, waits)
    }

    /// When something is due as far as loops go.
    pub(super) fn loops_due(&self) -> Option<Time> {
        self.loops.due(self.waits())
    }
}

impl Host {
    fn looped(&self) -> impl Iterator<Item = &Live> {
        self.in_use.iter().chain(&self.standby)
    }
}

impl Pool {
    /// Has loops sent from now on, or no longer.
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

    /// Whether loops are sent.
    pub fn has_loops(&self) -> bool {
        self.has_loops
    }

    /// What became of loops since the start.
    pub fn loop_totals(&self) -> LoopTotals {
        self.loop_totals
    }

    /// Sends the loops of a host's circuits that are due, gives up those that are lost, and has a
    /// circuit replaced that is worse than the others.
    pub(super) fn settle_loops(&mut self, now: Time, to: Address) {
        if !self.has_loops {
            return;
        }
        let has_room = self.has_room_for_echoes();
        let Pool { hosts, rng, loop_totals, echoes, .. } = self;
        let Some(host) = hosts.get_mut(&to) else { return };
        for live in host.in_use.iter_mut().chain(&mut host.standby) {
            let waits = live.waits();
            while live.loops.give_up(now, waits) {
                loop_totals.count(Outcome::Lost);
            }
            // One that is silent is asked enough.
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

    /// A circuit to a host that is worse than all others of this one.
    fn worse_circuit(&self, to: Address) -> Option<(CircuitId, Verdict)> {
        let host = self.hosts.get(&to)?;
        let judged = |live: &&Live| live.loops.over >= LEAST;
        host.looped().filter(judged).find_map(|live| {
            let others = self.hosts.values().flat_map(Host::looped);
            let others = others.filter(|other| other.id != live.id);
            let add = |all: Counts, other: &Live| {
                let counts = other.loops.counts();
                let Counts { over, lost, late } = all;
                let (over, lost) = (over + counts.over, lost + counts.lost);
                Counts { over, lost, late: late + counts.late }
            };
            let verdict = live.loops.verdict(others.fold(Counts::default(), add))?;
            Some((live.id, verdict))
        })
    }

    /// Has a circuit give way to another over other relays.
    fn give_way(&mut self, now: Time, to: Address, id: CircuitId, verdict: Verdict) {
        match verdict {
            Verdict::Lossy => self.loop_totals.lossy += 1,
            Verdict::Held => self.loop_totals.held += 1,
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
        // Of 10 with 1/2: 11 of 1,024 have at least 9.
        assert!((at_least(9, 10, 0.5) - 11.0 / 1_024.0).abs() < 1e-12);
        assert!((at_least(0, 64, 0.03) - 1.0).abs() < 1e-12);
        assert!((at_least(64, 64, 0.5) - 0.5f64.powi(64)).abs() < 1e-12);
        assert_eq!(at_least(3, 64, 1.0), 1.0);
        // Where others lose nothing, 11 rows of 64 are too many, and 10 are not.
        assert!(at_least(11, 64, FLOOR) < ALARM && at_least(10, 64, FLOOR) > ALARM);
    }

    #[test]
    fn losses_in_a_row_count_once() {
        let mut loops = Loops::default();
        for lost in [false, true, true, true, false, true, false, false, true, true] {
            loops.note(if lost { Outcome::Lost } else { Outcome::Back });
        }
        assert_eq!(loops.counts(), Counts { over: 10, lost: 6, late: 0 });
        assert_eq!(loops.rows(), Counts { over: 10, lost: 3, late: 0 });
    }
}
