//! One circuit from its set-up to its end, and the detection of its death.

use core::time::Duration;

use shoal_crypto::Rng;
use shoal_mix::AddedDelay;
use shoal_wire::{Address, CircuitId, MixStrategy, Time};

use super::PathWarning;
use super::loops::Loops;

/// Time since its last data for which a circuit counts as active.
pub(super) const ACTIVE: Duration = Duration::from_secs(1);
/// Shortest and longest gap between echoes: on an active circuit, on an idle one, and on an idle
/// one after an unanswered echo. Hops forget a circuit that is idle for a minute.
const GAP_ACTIVE: (Duration, Duration) = (Duration::from_millis(80), Duration::from_millis(140));
const GAP_IDLE: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(25));
const GAP_ASKED: (Duration, Duration) = (Duration::from_millis(500), Duration::from_millis(1_000));
/// Time after which an answer is late; one and a half round trips if that is longer. On an active
/// circuit the next echo follows about then. With short round trips it thus comes sooner than after
/// an answer.
const LATE: Duration = Duration::from_millis(50);
/// Unanswered echoes after which a circuit is dead, and the shortest wait for the last answer.
const MISSING: usize = 3;
/// Most unanswered echoes. Some follow before it counts as dead, since it may recover.
const ASKED_MAX: usize = 8;
const PATIENCE: Duration = Duration::from_millis(200);
/// Time for the hops of a dead circuit to answer, in addition to two round trips and the delay of
/// mixes. Under a backlog, answers come late.
const LOCATE: Duration = Duration::from_secs(1);
/// Echoes to a silent circuit whose late answers still count.
const LATE_MAX: usize = 16;
/// Time before its end at which a circuit is replaced, in thousandths of its life (shortest and
/// longest): a minute of ten.
const MARGIN: (u32, u32) = (75, 125);

/// A random time from `from` to `to`.
pub(super) fn between((from, to): (Duration, Duration), rng: &mut Rng) -> Duration {
    from + Duration::from_nanos(rng.below((to - from).as_nanos() as u64 + 1))
}

/// A circuit that is being set up.
pub(super) struct BuildingCircuit {
    /// None until the set-up has begun.
    pub(super) id: Option<CircuitId>,
    /// This host's address at which it begins.
    pub(super) home: Address,
    /// The relays, then the destination.
    pub(super) path: Vec<Address>,
    /// Strategy of each relay, and the delay that all add in one direction.
    pub(super) mixes: Vec<MixStrategy>,
    pub(super) added: AddedDelay,
    /// Number of hops that are set up.
    pub(super) hops: usize,
    pub(super) warnings: Vec<PathWarning>,
    /// True if relay 1 may stand in for another that was unreachable through no fault of its own.
    pub(super) is_doubtful: bool,
    pub(super) began: Time,
    pub(super) life: Duration,
}

/// A circuit with all its hops.
pub(super) struct LiveCircuit {
    pub(super) id: CircuitId,
    /// This host's address at which it begins.
    pub(super) home: Address,
    /// The relays, then the destination.
    pub(super) path: Vec<Address>,
    pub(super) mixes: Vec<MixStrategy>,
    pub(super) added: AddedDelay,
    pub(super) warnings: Vec<PathWarning>,
    pub(super) built: Time,
    /// Time from which it is replaced, if it is in use.
    pub(super) replace_at: Time,
    /// Time from which it is replaced, if it is the standby.
    pub(super) stale_at: Time,
    pub(super) ends: Time,
    pub(super) used: Time,
    pub(super) echo_at: Time,
    /// Unanswered echoes since the last answer.
    asked: Vec<(u64, Time)>,
    /// Earlier unanswered echoes, since it became silent: under a backlog, answers come late.
    late: Vec<(u64, Time)>,
    /// Time at which it became silent. A silent circuit stays in use if there is no other.
    pub(super) silent_since: Option<Time>,
    /// Echoes to all its hops, sent when it became silent.
    pub(super) probe: Option<HopEchoes>,
    /// Echoes to all its hops, sent when an answer became late.
    pub(super) scout: Option<HopEchoes>,
    /// Smoothed time from an echo to its answer.
    pub(super) rtt: Duration,
    /// Least time between two echoes, on covered links.
    pub(super) pace: Duration,
    pub(super) loops: Loops,
}

impl LiveCircuit {
    pub(super) fn new(
        now: Time,
        id: CircuitId,
        building: BuildingCircuit,
        rng: &mut Rng,
    ) -> LiveCircuit {
        let BuildingCircuit { home, path, mixes, added, warnings, is_doubtful, .. } = building;
        let (began, life) = (building.began, building.life);
        let ends = began + life;
        let replace_at = ends - between((life * MARGIN.0 / 1_000, life * MARGIN.1 / 1_000), rng);
        // A circuit that stands in for another is replaced at once, if the other can be reached.
        let soonest = if is_doubtful { now } else { ends };
        // Each hop took a round trip over those before it.
        let rtt = now.since(began) / path.len() as u32 * 2;
        LiveCircuit {
            id,
            home,
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

    /// Sets the warnings about its path. The warning about mixes stays.
    pub(super) fn note_warnings(&mut self, path: Vec<PathWarning>) {
        self.warnings.retain(|known| *known == PathWarning::Unmixed);
        self.warnings.splice(..0, path);
    }

    /// Moves the next echo forward when the circuit begins to carry data. Returns true if it did.
    pub(super) fn wake(&mut self, now: Time, rng: &mut Rng) -> bool {
        let gap = self.paced(GAP_ACTIVE);
        if self.echo_at <= now + gap.1 {
            return false;
        }
        self.echo_at = now + between(gap, rng);
        true
    }

    /// A gap that is at least as long as schedules require.
    fn paced(&self, gap: (Duration, Duration)) -> (Duration, Duration) {
        (gap.0.max(self.pace), gap.1.max(self.pace * 7 / 4))
    }

    /// Number of the echo that is due, if any.
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

    /// Gap after an unanswered echo on an active circuit.
    fn gap_missed(&self) -> (Duration, Duration) {
        let least = (self.rtt * 5 / 4 + self.waits()).clamp(LATE, GAP_ACTIVE.0);
        (least, least * 7 / 4)
    }

    /// Sends an echo at once, and further ones at the rate of an active circuit for a while.
    pub(super) fn hurry(&mut self, now: Time) {
        (self.used, self.echo_at) = (now, now);
    }

    /// Time at which its answer is late if none comes; none if no echo is open.
    fn late_at(&self) -> Option<Time> {
        let (_, first) = self.asked.first()?;
        Some(*first + LATE.max(self.rtt * 3 / 2) + self.waits())
    }

    /// True if an answer is late.
    pub(super) fn is_late(&self, now: Time) -> bool {
        self.silent_since.is_some() || self.late_at().is_some_and(|at| at <= now)
    }

    /// True if an answer is late, and all echoes were sent after which it counts as dead.
    pub(super) fn is_doubted(&self, now: Time) -> bool {
        self.silent_since.is_some() || (self.asked.len() >= MISSING && self.is_late(now))
    }

    /// Processes an answer of the destination. Returns false if no echo had this number.
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

    /// Notes that it became silent; it continues to send echoes.
    pub(super) fn note_silent(&mut self, now: Time, rng: &mut Rng) {
        self.silent_since.get_or_insert(now);
        self.late.append(&mut self.asked);
        self.late.drain(..self.late.len().saturating_sub(LATE_MAX));
        self.echo_at = now + between(GAP_ASKED, rng);
    }

    /// Prepares an echo to each of its hops.
    pub(super) fn ask_hops(&self, now: Time, rng: &mut Rng) -> HopEchoes {
        let asked = self.path.iter().map(|_| rng.u64().max(1)).collect();
        let over_at = now + LOCATE + self.rtt * 2 + self.waits();
        HopEchoes { asked, asked_at: now, answered: 0, over_at }
    }

    /// Prepares an echo to each of its hops, to see soon which ones answer.
    pub(super) fn scout(&mut self, now: Time, rng: &mut Rng) -> &HopEchoes {
        let over_at = now + LATE.max(self.rtt) + self.waits();
        self.scout.insert(HopEchoes { over_at, ..self.ask_hops(now, rng) })
    }

    /// Longest time that mixes add to an answer.
    pub(super) fn waits(&self) -> Duration {
        self.added.hold.duration() * 2
    }

    /// Time at which it counts as dead if nothing is heard.
    pub(super) fn dead_at(&self) -> Option<Time> {
        let (_, last) = self.asked.get(MISSING - 1)?;
        Some(*last + PATIENCE.max(self.rtt * 2) + self.waits())
    }

    /// Time of the next echo or deadline.
    pub(super) fn due(&self, now: Time) -> Time {
        let echo_at = (self.asked.len() < ASKED_MAX).then_some(self.echo_at);
        let late_at = self.late_at().filter(|at| *at > now);
        let all = [echo_at, late_at, self.dead_at(), self.loops_due()];
        all.into_iter().flatten().min().unwrap_or(self.ends)
    }
}

/// Hops of a silent circuit, each of which got one echo.
pub(super) struct HopEchoes {
    /// Number of each hop's echo.
    pub(super) asked: Vec<u64>,
    pub(super) asked_at: Time,
    /// Bit n: hop n answered.
    answered: u8,
    /// Time at which hops that have not answered count as silent.
    pub(super) over_at: Time,
}

impl HopEchoes {
    /// Processes an answer of a hop. Returns false if the hop was not asked for this number.
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
    /// next. None if it ends before relay 1, which the next set-up tests, or at the host.
    pub(super) fn broken(&self, path: &[Address]) -> Option<(Address, Address)> {
        let hop = self.silent()?;
        let (before, at) = (path.get(hop.checked_sub(2)?)?, path.get(hop - 1)?);
        at.is_router().then_some((*before, *at))
    }
}

/// A circuit that is not used any more and will be closed.
pub(super) struct EndingCircuit {
    pub(super) id: CircuitId,
    /// The relays, then the destination.
    pub(super) path: Vec<Address>,
    pub(super) built: Time,
    pub(super) close_at: Time,
    /// Echoes to all its hops, if it is dead.
    pub(super) probe: Option<HopEchoes>,
}
