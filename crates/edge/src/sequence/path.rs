//! The hold of a circuit with mixes: how long its packets wait for earlier ones.
//!
//! The node sets the hold to the delay of the circuit's mixes that one packet of 10,000 exceeds,
//! plus an allowance for the links. If packets turn out less late, the hold shrinks. Lost packets
//! are then given up sooner and delay the others less.

use core::time::Duration;
use std::collections::BTreeMap;

use shoal_wire::{CircuitId, Time, ip::SendSteps, ip::SendTime};

/// The hold is adapted after this many packets and this much time. If the mixes are as slow as the
/// node assumed, about seven of so many packets are later than the hold that it set.
const PACKETS: u32 = 1 << 16;
const TIME: Duration = Duration::from_secs(10);
const HOLD_MAX: Duration = Duration::from_secs(60);
/// Number of packets that are counted together before the path is updated.
const NOTED: u32 = 4_096;

/// Difference between the clock of a circuit's sender and this host's, as far as packets show it.
/// Nanoseconds in integers, since each packet is measured.
#[derive(Clone, Copy, Debug)]
struct CircuitClock {
    steps: SendSteps,
    /// Smallest recent lag of a packet: travel time plus clock difference, modulo the sender's
    /// round.
    least: Option<u64>,
    /// Smallest lag above `least` since `since`.
    more: u64,
    since: Time,
}

impl CircuitClock {
    fn new(steps: SendSteps) -> CircuitClock {
        CircuitClock { steps, least: None, more: u64::MAX, since: Time::ZERO }
    }

    /// Time that a packet took beyond the fastest one.
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
            // Paths change and clocks drift.
            let least = Some((least + self.more) & (self.steps.round() - 1));
            *self = CircuitClock { least, since: now, ..CircuitClock::new(self.steps) };
        }
        age
    }
}

/// State of a circuit with mixes.
#[derive(Clone, Copy, Debug)]
struct MixedCircuit {
    /// The hold that the node set.
    given: Duration,
    /// The hold in use.
    hold: Duration,
    /// Longest lateness of `packets` packets since `since`, and (`before`) in the period before.
    longest: Duration,
    packets: u32,
    since: Time,
    before: Duration,
    clock: CircuitClock,
}

impl MixedCircuit {
    fn new(given: Duration) -> MixedCircuit {
        let (longest, since) = (Duration::ZERO, Time::FAR);
        // There is no earlier period: the hold that the node set is taken as its lateness.
        let clock = CircuitClock::new(SendSteps::of(given));
        MixedCircuit { given, hold: given, longest, packets: 0, since, before: given, clock }
    }

    /// Notes the arrival of `packets` packets, and the longest lateness among them.
    fn note(&mut self, now: Time, packets: u32, longest: Duration) {
        self.since = self.since.min(now);
        self.longest = self.longest.max(longest);
        self.packets = self.packets.saturating_add(packets);
        if self.packets < PACKETS || now < self.since + TIME {
            return;
        }
        // The hold is a quarter longer than the lateness seen, but at least three quarters of what
        // the node set. Among more packets, some are later still. Too short a hold costs far more
        // than too long a one.
        let seen = self.longest.max(self.before) * 5 / 4;
        let hold = seen.clamp(self.given * 3 / 4, self.given);
        *self = MixedCircuit {
            hold,
            before: self.longest,
            clock: self.clock,
            ..MixedCircuit::new(self.given)
        };
    }
}

/// The circuits with mixes, and a cache of the one in use.
#[derive(Default)]
pub(crate) struct MixedCircuits {
    all: BTreeMap<CircuitId, MixedCircuit>,
    /// The circuit on which packets arrive at present.
    on: Option<CircuitId>,
    /// Hold of that circuit.
    hold: Duration,
    /// Packets since the circuit's state was last updated, and (`longest`) their longest lateness.
    packets: u32,
    longest: Duration,
    /// Clock of that circuit's sender. None for a circuit that keeps its order.
    clock: Option<CircuitClock>,
}

impl MixedCircuits {
    /// Sets the hold that the node computed for a circuit. Returns true if it changed.
    pub(crate) fn set(&mut self, circuit: CircuitId, given: Duration) -> bool {
        let given = given.min(HOLD_MAX);
        if self.all.get(&circuit).map_or(Duration::ZERO, |path| path.given) == given {
            return false;
        }
        match given.is_zero() {
            true => self.all.remove(&circuit),
            false => self.all.insert(circuit, MixedCircuit::new(given)),
        };
        self.on = None;
        true
    }

    /// Time for which packets of a circuit wait for earlier ones. Zero for a circuit without mixes.
    pub(crate) fn hold(&self, circuit: CircuitId) -> Duration {
        if self.on == Some(circuit) {
            return self.hold;
        }
        self.all.get(&circuit).map_or(Duration::ZERO, |path| path.hold)
    }

    /// Hold of the circuit on which packets arrive at present.
    pub(crate) fn hold_now(&self) -> Duration {
        self.hold
    }

    /// Notes that a packet arrives on a circuit. Returns true if the hold of a circuit changed.
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

    /// Unit of time in which packets on the circuit state when they were sent.
    pub(crate) fn steps(&self, circuit: CircuitId) -> SendSteps {
        SendSteps::of(self.all.get(&circuit).map_or(Duration::ZERO, |path| path.given))
    }

    /// Time at which an arriving packet was sent, on the scale on which the fastest packet took no
    /// time. The packet came on the circuit of the last [`MixedCircuits::come`]. Zero means
    /// unknown.
    #[inline]
    pub(crate) fn sent(&mut self, now: Time, sent: SendTime) -> Time {
        match &mut self.clock {
            Some(clock) => Time(now.0.saturating_sub(clock.age(now, sent))),
            None => Time::ZERO,
        }
    }

    /// Notes the lateness of an arriving packet.
    pub(crate) fn note(&mut self, late: Duration) {
        self.longest = self.longest.max(late);
    }

    /// Notes that a packet came on a circuit after it was given up. Returns true if the circuit's
    /// hold changed.
    pub(crate) fn note_late(&mut self, circuit: CircuitId) -> bool {
        let Some(path) = self.all.get_mut(&circuit) else { return false };
        let changed = path.hold != path.given;
        *path = MixedCircuit { clock: path.clock, ..MixedCircuit::new(path.given) };
        self.on = None;
        changed
    }
}
