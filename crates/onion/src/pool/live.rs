//! One circuit from its set-up to its end, and how its death is noticed.

use core::time::Duration;

use shoal_crypto::Rng;
use shoal_wire::{Address, CircuitId, Time};

use super::Warning;

/// A circuit that carried something so lately is in use.
pub(super) const ACTIVE: Duration = Duration::from_secs(1);
/// Gaps between echoes, from and to: on a circuit that is in use, on one that is not, and after an
/// echo that is not answered yet. Hops forget a circuit that is idle for a minute.
const GAP_ACTIVE: (Duration, Duration) = (Duration::from_millis(80), Duration::from_millis(140));
const GAP_IDLE: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(25));
const GAP_ASKED: (Duration, Duration) = (Duration::from_millis(500), Duration::from_millis(1_000));
/// Echoes without an answer after which a circuit is dead, and the least wait for the last answer.
const MISSING: usize = 3;
const PATIENCE: Duration = Duration::from_millis(200);
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
    /// How many of them are there.
    pub(super) hops: usize,
    pub(super) warnings: Vec<Warning>,
    pub(super) began: Time,
    pub(super) life: Duration,
}

/// A circuit whose hops are all there.
pub(super) struct Live {
    pub(super) id: CircuitId,
    /// The relays, and the destination.
    pub(super) path: Vec<Address>,
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
    /// Since when it answers no more, though it stays in use where there is no other.
    pub(super) silent_since: Option<Time>,
    /// Smoothed time from an echo to its answer.
    pub(super) rtt: Duration,
}

impl Live {
    pub(super) fn new(now: Time, id: CircuitId, building: Building, rng: &mut Rng) -> Live {
        let Building { path, warnings, began, life, .. } = building;
        let ends = began + life;
        // Each hop took a round trip over those before it.
        let rtt = now.since(began) / path.len() as u32 * 2;
        Live {
            id,
            path,
            warnings,
            built: now,
            replace_at: ends - between((life * MARGIN.0 / 1_000, life * MARGIN.1 / 1_000), rng),
            stale_at: began + life / 2,
            ends,
            used: now,
            echo_at: now + between(GAP_ACTIVE, rng),
            asked: Vec::new(),
            silent_since: None,
            rtt,
        }
    }

    pub(super) fn relays(&self) -> &[Address] {
        &self.path[..self.path.len() - 1]
    }

    /// Brings the next echo forward when the circuit begins to carry something; says whether it
    /// did.
    pub(super) fn wake(&mut self, now: Time, rng: &mut Rng) -> bool {
        if self.echo_at <= now + GAP_ACTIVE.1 {
            return false;
        }
        self.echo_at = now + between(GAP_ACTIVE, rng);
        true
    }

    /// The number of the echo that is due, if one is.
    pub(super) fn ask(&mut self, now: Time, rng: &mut Rng) -> Option<u64> {
        if now < self.echo_at || self.asked.len() >= MISSING {
            return None;
        }
        let number = rng.u64().max(1);
        self.asked.push((number, now));
        self.echo_at = now + between(if self.is_active(now) { GAP_ACTIVE } else { GAP_ASKED }, rng);
        Some(number)
    }

    /// Takes an answer of the destination in.
    pub(super) fn answered(&mut self, now: Time, number: u64, rng: &mut Rng) {
        if let Some((_, at)) = self.asked.iter().find(|(asked, _)| *asked == number) {
            self.rtt = (self.rtt * 7 + now.since(*at)) / 8;
        }
        self.asked.clear();
        self.silent_since = None;
        self.echo_at = now + between(if self.is_active(now) { GAP_ACTIVE } else { GAP_IDLE }, rng);
    }

    fn is_active(&self, now: Time) -> bool {
        now < self.used + ACTIVE
    }

    /// Notes that it answers no more, and goes on to ask.
    pub(super) fn note_silent(&mut self, now: Time, rng: &mut Rng) {
        self.silent_since.get_or_insert(now);
        self.asked.clear();
        self.echo_at = now + between(GAP_ASKED, rng);
    }

    /// When it counts as dead, if nothing is heard until then.
    pub(super) fn dead_at(&self) -> Option<Time> {
        let (_, last) = self.asked.get(MISSING - 1)?;
        Some(*last + PATIENCE.max(self.rtt * 2))
    }

    /// When something is due as far as echoes go.
    pub(super) fn due(&self) -> Time {
        self.dead_at().unwrap_or(self.echo_at)
    }
}

/// A circuit that is used no more and will be closed.
pub(super) struct Ending {
    pub(super) id: CircuitId,
    /// The relays, and the destination.
    pub(super) path: Vec<Address>,
    pub(super) built: Time,
    pub(super) close_at: Time,
    /// It is dead: its hops were asked one by one.
    pub(super) is_dead: bool,
    /// Bit n: hop n answered.
    pub(super) answered: u8,
}

impl Ending {
    /// The first relay that did not answer, if the circuit is dead.
    pub(super) fn suspect(&self) -> Option<Address> {
        let is_silent = |hop: &usize| self.answered & (1 << hop) == 0;
        let hop = (1..=self.path.len()).find(is_silent).filter(|_| self.is_dead)?;
        self.path.get(hop - 1).copied().filter(|at| at.is_router())
    }
}
