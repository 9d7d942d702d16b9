//! One circuit from its set-up to its end, and how its death is noticed.

use core::time::Duration;

use shoal_crypto::Rng;
use shoal_mix::Added;
use shoal_wire::{Address, CircuitId, Strategy, Time};

use super::Warning;
use super::loops::Loops;

/// A circuit that carried something so lately is in use.
pub(super) const ACTIVE: Duration = Duration::from_secs(1);
/// Gaps between echoes, from and to: on a circuit that is in use, on one that is not, and on that
/// one after an echo that is not answered yet. Hops forget a circuit that is idle for a minute.
const GAP_ACTIVE: (Duration, Duration) = (Duration::from_millis(80), Duration::from_millis(140));
const GAP_IDLE: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(25));
const GAP_ASKED: (Duration, Duration) = (Duration::from_millis(500), Duration::from_millis(1_000));
/// An answer is late after this, or after one and a half round trips where they are longer. In use,
/// the next echo is sent about then: with short round trips sooner than after an answer.
const LATE: Duration = Duration::from_millis(50);
/// Echoes without an answer after which a circuit is dead, and the least wait for the last answer.
const MISSING: usize = 3;
/// Echoes without an answer at most: some follow until it counts as dead, since it may be back.
const ASKED_MAX: usize = 8;
const PATIENCE: Duration = Duration::from_millis(200);
/// The hops of a dead circuit have so long to answer, beside two round trips and what mixes add:
/// under a backlog answers come late.
const LOCATE: Duration = Duration::from_secs(1);
/// Echoes that a circuit which answers no more was sent, and whose late answers count.
const LATE_MAX: usize = 16;
/// A circuit gives way before its end by so many parts in a thousand of its life, from and to: a
/// minute of ten.
const MARGIN: (u32, u32) = (75, 125);

/// A time from `from` to `to`.
pub(super) fn between((from, to): (Duration, Duration), rng: &mut Rng) -> Duration {
    from + Duration::from_nanos(rng.below((to - from).as_nanos() as u64 + 1))
}

/// A circuit that is being set up.
pub(super) struct Building {
    /// None until the set-up has begun.
    pub(super) id: Option<CircuitId>,
    /// The relays, and the destination.
    pub(super) path: Vec<Address>,
    /// What each relay does with cells, and what all add one way.
    pub(super) mixes: Vec<Strategy>,
    pub(super) added: Added,
    /// How many of them are there.
    pub(super) hops: usize,
    pub(super) warnings: Vec<Warning>,
    /// Relay 1 may stand in for another that could not be reached, through no fault of its own.
    pub(super) is_doubtful: bool,
    pub(super) began: Time,
    pub(super) life: Duration,
}

/// A circuit whose hops are all there.
pub(super) struct Live {
    pub(super) id: CircuitId,
    /// The relays, and the destination.
    pub(super) path: Vec<Address>,
    pub(super) mixes: Vec<Strategy>,
    pub(super) added: Added,
    pub(super) warnings: Vec<Warning>,
    pub(super) built: Time,
    /// In use, it gives way to another from here on.
    pub(super) replace_at: Time,
    /// As a standby, it gives way to a new one from here on.
    pub(super) stale_at: Time,
    pub(super) ends: Time,
    pub(super) used: Time,
    pub(super) echo_at: Time,
    /// Echoes without an answer since the last answer.
    asked: Vec<(u64, Time)>,
    /// Those before them, since it answers no more: under a backlog answers come late.
    late: Vec<(u64, Time)>,
    /// Since when it answers no more, though it stays in use where there is no other.
    pub(super) silent_since: Option<Time>,
    /// Its hops were asked since then.
    pub(super) probe: Option<Probe>,
    /// Its hops were asked since an answer is late.
    pub(super) scout: Option<Probe>,
    /// Smoothed time from an echo to its answer.
    pub(super) rtt: Duration,
    /// Between two echoes at least, where links are covered.
    pub(super) pace: Duration,
    pub(super) loops: Loops,
}

impl Live {
    pub(super) fn new(now: Time, id: CircuitId, building: Building, rng: &mut Rng) -> Live {
        let Building { path, mixes, added, warnings, is_doubtful, began, life, .. } = building;
        let ends = began + life;
        let replace_at = ends - between((life * MARGIN.0 / 1_000, life * MARGIN.1 / 1_000), rng);
        // One that stands in for another gives way at once, if that one can be reached now.
        let soonest = if is_doubtful { now } else { ends };
        // Each hop took a round trip over those before it.
        let rtt = now.since(began) / path.len() as u32 * 2;
        Live {
            id,
            path,
            mixes,
            added,
            warnings,
            built: now,
            replace_at: replace_at.min(soonest),
            stale_at: (began + life / 2).min(soonest),
            ends,
            used: now,
            echo_at: now + between(GAP_ACTIVE, rng),
            asked: Vec::new(),
            late: Vec::new(),
            silent_since: None,
            probe: None,
            scout: None,
            rtt,
            pace: Duration::ZERO,
            loops: Loops::default(),
        }
    }

    pub(super) fn relays(&self) -> &[Address] {
        &self.path[..self.path.len() - 1]
    }

    /// Notes what its path does not hide. Whether its cells are mixed stays as it was.
    pub(super) fn note_warnings(&mut self, path: Vec<Warning>) {
        self.warnings.retain(|known| *known == Warning::Unmixed);
        self.warnings.splice(..0, path);
    }

    /// Brings the next echo forward when the circuit begins to carry something; says whether it
    /// did.
    pub(super) fn wake(&mut self, now: Time, rng: &mut Rng) -> bool {
        let gap = self.paced(GAP_ACTIVE);
        if self.echo_at <= now + gap.1 {
            return false;
        }
        self.echo_at = now + between(gap, rng);
        true
    }

    /// A gap that is as long as schedules ask for.
    fn paced(&self, gap: (Duration, Duration)) -> (Duration, Duration) {
        (gap.0.max(self.pace), gap.1.max(self.pace * 7 / 4))
    }

    /// The number of the echo that is due, if one is.
    pub(super) fn ask(&mut self, now: Time, rng: &mut Rng) -> Option<u64> {
        if now < self.echo_at || self.asked.len() >= ASKED_MAX {
            return None;
        }
        let number = rng.u64().max(1);
        self.asked.push((number, now));
        let gap = if self.is_active(now) { self.gap_missed() } else { GAP_ASKED };
        let gap = self.paced(gap);
        self.echo_at = now + between(gap, rng);
        Some(number)
    }

    /// The gap behind an echo that is not answered yet, in use.
    fn gap_missed(&self) -> (Duration, Duration) {
        let least = (self.rtt * 5 / 4 + self.waits()).clamp(LATE, GAP_ACTIVE.0);
        (least, least * 7 / 4)
    }

    /// Has it asked at once, and as often as one in use for a while.
    pub(super) fn hurry(&mut self, now: Time) {
        (self.used, self.echo_at) = (now, now);
    }

    /// When its answer is late, if none comes until then; none while none is missing.
    fn late_at(&self) -> Option<Time> {
        let (_, first) = self.asked.first()?;
        Some(*first + LATE.max(self.rtt * 3 / 2) + self.waits())
    }

    /// Whether an answer is late.
    pub(super) fn is_late(&self, now: Time) -> bool {
        self.silent_since.is_some() || self.late_at().is_some_and(|at| at <= now)
    }

    /// Whether an answer is late, and all echoes are sent after which it counts as dead.
    pub(super) fn is_doubted(&self, now: Time) -> bool {
        self.silent_since.is_some() || (self.asked.len() >= MISSING && self.is_late(now))
    }

    /// Takes an answer of the destination in; false if it was not asked for this number.
    pub(super) fn answered(&mut self, now: Time, number: u64, rng: &mut Rng) -> bool {
        let mut all = self.asked.iter().chain(&self.late);
        let Some((_, at)) = all.find(|(asked, _)| *asked == number) else { return false };
        self.rtt = (self.rtt * 7 + now.since(*at)) / 8;
        self.asked.clear();
        self.late.clear();
        (self.silent_since, self.probe, self.scout) = (None, None, None);
        let gap = if self.is_active(now) { GAP_ACTIVE } else { GAP_IDLE };
        self.echo_at = now + between(self.paced(gap), rng);
        true
    }

    pub(super) fn is_active(&self, now: Time) -> bool {
        now < self.used + ACTIVE
    }

    /// Notes that it answers no more, and goes on to ask.
    pub(super) fn note_silent(&mut self, now: Time, rng: &mut Rng) {
        self.silent_since.get_or_insert(now);
        self.late.append(&mut self.asked);
        self.late.drain(..self.late.len().saturating_sub(LATE_MAX));
        self.echo_at = now + between(GAP_ASKED, rng);
    }

    /// Has all its hops asked; says for which numbers.
    pub(super) fn ask_hops(&self, now: Time, rng: &mut Rng) -> Probe {
        let asked = self.path.iter().map(|_| rng.u64().max(1)).collect();
        let over_at = now + LOCATE + self.rtt * 2 + self.waits();
        Probe { asked, asked_at: now, answered: 0, over_at }
    }

    /// Has all its hops asked, to see soon which of them answer.
    pub(super) fn scout(&mut self, now: Time, rng: &mut Rng) -> &Probe {
        let over_at = now + LATE.max(self.rtt) + self.waits();
        self.scout.insert(Probe { over_at, ..self.ask_hops(now, rng) })
    }

    /// How much longer than lines an answer may wait in mixes.
    pub(super) fn waits(&self) -> Duration {
        self.added.hold.duration() * 2
    }

    /// When it counts as dead, if nothing is heard until then.
    pub(super) fn dead_at(&self) -> Option<Time> {
        let (_, last) = self.asked.get(MISSING - 1)?;
        Some(*last + PATIENCE.max(self.rtt * 2) + self.waits())
    }

    /// When something is due as far as echoes go.
    pub(super) fn due(&self, now: Time) -> Time {
        let echo_at = (self.asked.len() < ASKED_MAX).then_some(self.echo_at);
        let late_at = self.late_at().filter(|at| *at > now);
        let all = [echo_at, late_at, self.dead_at(), self.loops_due()];
        all.into_iter().flatten().min().unwrap_or(self.ends)
    }
}

/// The hops of a circuit that answers no more, each of which was asked once.
pub(super) struct Probe {
    /// The number that each was asked for.
    pub(super) asked: Vec<u64>,
    pub(super) asked_at: Time,
    /// Bit n: hop n answered.
    answered: u8,
    /// Who did not answer until then is silent.
    pub(super) over_at: Time,
}

impl Probe {
    /// Takes an answer of a hop in; false if it was not asked for this number.
    pub(super) fn note_answer(&mut self, hop: u8, number: u64) -> bool {
        let asked = usize::from(hop).checked_sub(1).and_then(|at| self.asked.get(at));
        let is_asked = asked == Some(&number);
        self.answered |= u8::from(is_asked).checked_shl(hop.into()).unwrap_or(0);
        is_asked
    }

    /// The first hop that did not answer, counted from 1.
    pub(super) fn silent(&self) -> Option<usize> {
        (1..=self.asked.len()).find(|hop| self.answered & (1 << hop) == 0)
    }

    /// The two relays between which a circuit over `path` ends: the last that answered, and the
    /// next. None where it ends before relay 1, whose turn comes with the next set-up, or at the
    /// host.
    pub(super) fn broken(&self, path: &[Address]) -> Option<(Address, Address)> {
        let hop = self.silent()?;
        let (before, at) = (path.get(hop.checked_sub(2)?)?, path.get(hop - 1)?);
        at.is_router().then_some((*before, *at))
    }
}

/// A circuit that is used no more and will be closed.
pub(super) struct Ending {
    pub(super) id: CircuitId,
    /// The relays, and the destination.
    pub(super) path: Vec<Address>,
    pub(super) built: Time,
    pub(super) close_at: Time,
    /// It is dead: its hops were asked.
    pub(super) probe: Option<Probe>,
}
