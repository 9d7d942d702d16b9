//! How long packets of a circuit with mixes are waited for.
//!
//! The node says how long a packet may take longer than another: the quantile of the law of the
//! circuit's mixes that one of 10,000 exceeds, and an allowance for lines. Where packets are late
//! by less than that, what is lost is given up sooner, so that it holds up the others for less.

use core::time::Duration;
use std::collections::BTreeMap;

use shoal_wire::{CircuitId, Time, ip::SendSteps, ip::SendTime};

/// A longest lateness counts when it is that of so many packets, and of so long a time: of as many
/// one would be later.
const PACKETS: u32 = 1 << 16;
const TIME: Duration = Duration::from_secs(10);
/// Longest hold.
const HOLD_MAX: Duration = Duration::from_secs(60);
/// Packets that come are noted in lots of so many.
const NOTED: u32 = 4_096;

/// By how much the clock of a circuit's sender differs, as far as its packets show; nanoseconds,
/// since each packet is measured.
#[derive(Clone, Copy, Debug)]
struct Clock {
    steps: SendSteps,
    /// How long the fastest packet of late took and was sent before, by the two clocks, in a round.
    least: Option<u64>,
    /// By how much the fastest one since `since` took longer.
    more: u64,
    since: Time,
}

impl Clock {
    fn new(steps: SendSteps) -> Clock {
        Clock { steps, least: None, more: u64::MAX, since: Time::ZERO }
    }

    /// How much longer than the fastest a packet took that comes now.
    #[inline]
    fn age(&mut self, now: Time, sent: SendTime) -> u64 {
        let lag = self.steps.ns_before(sent, now);
        let least = *self.least.get_or_insert(lag);
        let mut age = lag.wrapping_sub(least) & (self.steps.round() - 1);
        if age > self.steps.age_max() {
            (self.least, age) = (Some(lag), 0);
        }
        self.more = self.more.min(age);
        if now >= self.since + TIME {
            // Paths change, and clocks drift.
            let least = Some((least + self.more) & (self.steps.round() - 1));
            *self = Clock { least, since: now, ..Clock::new(self.steps) };
        }
        age
    }
}

/// The hold of a circuit.
#[derive(Clone, Copy, Debug)]
struct Path {
    /// What the node said.
    given: Duration,
    /// What counts.
    hold: Duration,
    /// The longest lateness since `since`, of so many packets, and that of the time before.
    longest: Duration,
    packets: u32,
    since: Time,
    before: Duration,
    clock: Clock,
}

impl Path {
    fn new(given: Duration) -> Path {
        let (longest, since) = (Duration::ZERO, Time::FAR);
        // Nothing is known of the time before: as if there had been the longest.
        let clock = Clock::new(SendSteps::of(given));
        Path { given, hold: given, longest, packets: 0, since, before: given, clock }
    }

    /// Notes that so many packets came, and how late the latest was.
    fn note(&mut self, now: Time, packets: u32, longest: Duration) {
        self.since = self.since.min(now);
        self.longest = self.longest.max(longest);
        self.packets = self.packets.saturating_add(packets);
        if self.packets < PACKETS || now < self.since + TIME {
            return;
        }
        // A quarter more than was seen. Not below three quarters of what was said: who sends more
        // packets sees later ones, and a hold that is too short costs far more than one too long.
        let seen = self.longest.max(self.before) * 5 / 4;
        let hold = seen.clamp(self.given * 3 / 4, self.given);
        *self = Path { hold, before: self.longest, clock: self.clock, ..Path::new(self.given) };
    }
}

/// The circuits with mixes.
#[derive(Default)]
pub(crate) struct Paths {
    all: BTreeMap<CircuitId, Path>,
    /// The circuit on which packets come now,
    on: Option<CircuitId>,
    /// its hold,
    hold: Duration,
    /// how many came since it was last noted, and how late the latest was.
    packets: u32,
    longest: Duration,
    /// and its sender's clock; None for one that keeps its order.
    clock: Option<Clock>,
}

impl Paths {
    /// Sets what the node says of a circuit. Returns whether its hold changed.
    pub(crate) fn set(&mut self, circuit: CircuitId, given: Duration) -> bool {
        let given = given.min(HOLD_MAX);
        if self.all.get(&circuit).map_or(Duration::ZERO, |path| path.given) == given {
            return false;
        }
        match given.is_zero() {
            true => self.all.remove(&circuit),
            false => self.all.insert(circuit, Path::new(given)),
        };
        self.on = None;
        true
    }

    /// How long packets of a circuit wait for others; zero for one without mixes.
    pub(crate) fn hold(&self, circuit: CircuitId) -> Duration {
        if self.on == Some(circuit) {
            return self.hold;
        }
        self.all.get(&circuit).map_or(Duration::ZERO, |path| path.hold)
    }

    /// As [`Paths::hold`], of the circuit on which packets come now.
    pub(crate) fn hold_now(&self) -> Duration {
        self.hold
    }

    /// Notes that a packet comes on a circuit. Returns whether the hold of a circuit changed.
    #[inline]
    pub(crate) fn come(&mut self, now: Time, circuit: CircuitId) -> bool {
        self.packets += 1;
        (self.on != Some(circuit) || self.packets >= NOTED) && self.turn_to(now, circuit)
    }

    fn turn_to(&mut self, now: Time, circuit: CircuitId) -> bool {
        let mut changed = false;
        if let Some(path) = self.on.and_then(|on| self.all.get_mut(&on)) {
            path.clock = self.clock.unwrap_or(path.clock);
            path.note(now, self.packets, self.longest);
            changed = path.hold != self.hold;
        }
        let path = self.all.get(&circuit);
        self.on = Some(circuit);
        self.hold = path.map_or(Duration::ZERO, |path| path.hold);
        self.clock = path.map(|path| path.clock);
        (self.packets, self.longest) = (0, Duration::ZERO);
        changed
    }

    /// In which steps packets say when they were sent.
    pub(crate) fn steps(&self, circuit: CircuitId) -> SendSteps {
        SendSteps::of(self.all.get(&circuit).map_or(Duration::ZERO, |path| path.given))
    }

    /// When a packet was sent that comes now on the circuit of which this was said last: so that
    /// the fastest took no time. Zero says that nobody knows.
    #[inline]
    pub(crate) fn sent(&mut self, now: Time, sent: SendTime) -> Time {
        match &mut self.clock {
            Some(clock) => Time(now.0.saturating_sub(clock.age(now, sent))),
            None => Time::ZERO,
        }
    }

    /// Notes how late a packet is that comes now.
    pub(crate) fn note(&mut self, late: Duration) {
        self.longest = self.longest.max(late);
    }

    /// A packet came on a circuit after it was given up. Returns whether the circuit's hold
    /// changed.
    pub(crate) fn note_late(&mut self, circuit: CircuitId) -> bool {
        let Some(path) = self.all.get_mut(&circuit) else { return false };
        let changed = path.hold != path.given;
        *path = Path { clock: path.clock, ..Path::new(path.given) };
        self.on = None;
        changed
    }
}
