//! The token bucket that paces segments.

use core::time::Duration;

use shoal_wire::Time;

use crate::control::constants::{CATCH_UP_MAX, CATCH_UP_S, QUANTUM_MAX, QUANTUM_S};

/// Segments in the largest burst: one GSO send of full cells.
pub(crate) const BURST_MAX: usize = 44;

/// Paces segments; one token is one segment.
#[derive(Debug)]
pub(crate) struct Pacer {
    tokens: f64,
    updated: Time,
    overflowed: bool,
}

impl Pacer {
    pub(crate) fn new(now: Time) -> Pacer {
        Pacer { tokens: 0.0, updated: now, overflowed: false }
    }

    fn quantum(rate: f64) -> f64 {
        (rate * QUANTUM_S).floor().clamp(1.0, QUANTUM_MAX)
    }

    fn cap(rate: f64) -> f64 {
        (rate * CATCH_UP_S).clamp(Self::quantum(rate) + 1.0, CATCH_UP_MAX)
    }

    /// Adds the tokens of the time that passed, at `rate` segments per second.
    pub(crate) fn refill(&mut self, now: Time, rate: f64) {
        let dt = now.since(self.updated).as_secs_f64();
        self.updated = self.updated.max(now);
        self.tokens += dt * rate;
        let cap = Self::cap(rate);
        if self.tokens > cap {
            self.tokens = cap;
            self.overflowed = true;
        }
    }

    /// Segments that may leave now; 0 until a whole quantum may leave.
    pub(crate) fn ready(&self, rate: f64) -> usize {
        if self.tokens < Self::quantum(rate) { 0 } else { self.tokens as usize }
    }

    /// Takes the tokens of `count` segments.
    pub(crate) fn take(&mut self, count: usize) {
        self.tokens -= count as f64;
    }

    /// Time at which the next quantum may leave at `rate`.
    pub(crate) fn next(&self, rate: f64) -> Time {
        let missing = (Self::quantum(rate) - self.tokens).max(0.0);
        // One microsecond is added, so that rounding never wakes the shell too early.
        self.updated + Duration::from_nanos((missing / rate.max(1.0) * 1e9) as u64 + 1_000)
    }

    /// True if tokens were lost since the last call because nothing was sent.
    pub(crate) fn take_overflowed(&mut self) -> bool {
        core::mem::take(&mut self.overflowed)
    }
}
