//! How long packets of a circuit with mixes are waited for.
//!
//! The node says how long a packet may take longer than another: the quantile of the law of the
//! circuit's mixes that one of 10,000 exceeds, and an allowance for lines. Where packets are late
//! by less than that, what is lost is given up sooner, so that it holds up the others for less.

use core::time::Duration;
use std::collections::BTreeMap;

use shoal_wire::{CircuitId, Time};

/// A longest lateness counts when it is that of so many packets, and of so long a time: of as many
/// one would be later.
const PACKETS: u32 = 1 << 16;
const TIME: Duration = Duration::from_secs(10);
/// Longest hold.
const HOLD_MAX: Duration = Duration::from_secs(60);
/// Packets that come are noted in lots of so many.
const NOTED: u32 = 4_096;

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
}

impl Path {
    fn new(given: Duration) -> Path {
        let (longest, since) = (Duration::ZERO, Time::FAR);
        // Nothing is known of the time before: as if there had been the longest.
        Path { given, hold: given, longest, packets: 0, since, before: given }
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
        *self = Path { hold, before: self.longest, ..Path::new(self.given) };
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

    /// Notes that a packet comes on a circuit. Returns whether the hold of a circuit changed.
    #[inline]
    pub(crate) fn come(&mut self, now: Time, circuit: CircuitId) -> bool {
        self.packets += 1;
        (self.on != Some(circuit) || self.packets >= NOTED) && self.turn_to(now, circuit)
    }

    fn turn_to(&mut self, now: Time, circuit: CircuitId) -> bool {
        let mut changed = false;
        if let Some(path) = self.on.and_then(|on| self.all.get_mut(&on)) {
            path.note(now, self.packets, self.longest);
            changed = path.hold != self.hold;
        }
        let hold = self.all.get(&circuit).map_or(Duration::ZERO, |path| path.hold);
        (self.on, self.hold) = (Some(circuit), hold);
        (self.packets, self.longest) = (0, Duration::ZERO);
        changed
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
        *path = Path::new(path.given);
        self.on = None;
        changed
    }
}
