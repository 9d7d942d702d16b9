//! When a cell leaves.

use core::fmt;
use core::time::Duration;

use shoal_crypto::MaskKey;
use shoal_wire::{Strategy, Time};

/// Mixed cells leave at multiples of this time on the node's clock: at 1 Gbit/s, 21 full cells at
/// once.
pub const QUANTUM: Duration = Duration::from_nanos(QUANTUM_NS);
pub(crate) const QUANTUM_NS: u64 = 250_000;

/// The departure times under one strategy and key.
///
/// The delay of stop-and-go follows from the key and the cell's number. So a run repeats, and
/// whoever knows the key can compare how long a cell took with how long it should have taken. The
/// key is expanded, to a quarter of a KiB: worth it only for circuits that carry cells.
#[derive(Clone)]
pub struct Delays(Law);

#[derive(Clone)]
enum Law {
    Pass,
    Timed {
        every_ns: u64,
    },
    StopAndGo {
        mean_ns: f64,
        most_ns: u64,
        /// The part of all exponential times that is not above `most_ns`.
        kept: f64,
        key: Box<MaskKey>,
    },
}

impl Delays {
    /// Departure times under a strategy. `key` is a secret of this use alone.
    pub fn new(strategy: Strategy, key: &[u8; 32]) -> Delays {
        Delays(match strategy {
            Strategy::Timed { every } if strategy.is_valid() => {
                Law::Timed { every_ns: every.duration().as_nanos() as u64 }
            }
            Strategy::StopAndGo { mean, most } if strategy.is_valid() => {
                let (mean_ns, most_ns) = (mean.duration().as_nanos(), most.duration().as_nanos());
                let kept = -f64::exp_m1(-(most_ns as f64) / mean_ns as f64);
                let key = Box::new(MaskKey::new(key));
                Law::StopAndGo { mean_ns: mean_ns as f64, most_ns: most_ns as u64, kept, key }
            }
            _ => Law::Pass,
        })
    }

    /// The quantum in which a cell that comes now leaves: the one nearest to the time that the
    /// strategy gives, so that delays are right in the mean. It may thus lie 125 us before that
    /// time, and it never lies before `now`.
    ///
    /// `number` is the cell's, which no other cell of its direction and lane has.
    pub fn due(&self, now: Time, direction: u8, lane: u8, number: u64) -> Time {
        match &self.0 {
            Law::Pass => now,
            Law::Timed { every_ns } => {
                let next = (now.0 / every_ns + 1).saturating_mul(*every_ns);
                Time(nearest(next).max(first(now.0 + 1)))
            }
            Law::StopAndGo { .. } => {
                let at = now + self.delay(direction, lane, number);
                Time(nearest(at.0).max(first(now.0)))
            }
        }
    }

    /// How long stop-and-go keeps a cell, before that is rounded to quanta. Zero under a strategy
    /// that draws no times.
    ///
    /// A time above the longest is drawn again, says the law. That is the exponential distribution
    /// cut off there, which this inverts: one draw is enough.
    pub fn delay(&self, direction: u8, lane: u8, number: u64) -> Duration {
        let Law::StopAndGo { mean_ns, most_ns, kept, key } = &self.0 else {
            return Duration::ZERO;
        };
        let mut block = [0; 16];
        block[..8].copy_from_slice(&number.to_be_bytes());
        (block[8], block[9]) = (direction, lane);
        let drawn = u128::from_be_bytes(key.mask(&block)) >> 75;
        // 53 bits: uniform in (0, 1), never either of them.
        let uniform = (drawn as f64 + 0.5) / (1_u64 << 53) as f64;
        let ns = -mean_ns * (1.0 - uniform * kept).ln();
        Duration::from_nanos((ns as u64).min(*most_ns))
    }
}

impl fmt::Debug for Delays {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Delays(hidden)")
    }
}

/// The quantum nearest to a time.
fn nearest(at: u64) -> u64 {
    at.saturating_add(QUANTUM_NS / 2) / QUANTUM_NS * QUANTUM_NS
}

/// The first quantum that does not lie before a time.
fn first(at: u64) -> u64 {
    at.div_ceil(QUANTUM_NS).saturating_mul(QUANTUM_NS)
}
