//! Departure times of cells under a strategy.

use core::fmt;
use core::time::Duration;

use shoal_crypto::MaskKey;
use shoal_wire::{MixStrategy, Time};

/// Mixed cells leave at multiples of this time on the node's clock. At 1 Gbit/s, 21 full cells
/// leave together.
pub const QUANTUM: Duration = Duration::from_nanos(QUANTUM_NS);
pub(crate) const QUANTUM_NS: u64 = 250_000;
/// Delays computed in one batch. A single AES block takes longer than eight: it waits for the bytes
/// that were just written.
const AT_ONCE: usize = 16;
/// Maximum number of delays computed ahead: the cells of two runs.
const AHEAD_MAX: usize = 128;

/// Departure times under one strategy and key.
///
/// A stop-and-go delay is a function of the key and the cell's number. Runs are therefore
/// reproducible, and a holder of the key can check how long a cell should have waited. The expanded
/// key and the delays of a run take up to 2 KiB, so only circuits that carry cells get them.
#[derive(Clone)]
pub struct DepartureTimes(DepartureLaw);

#[derive(Clone)]
enum DepartureLaw {
    Pass,
    Timed { every_ns: u64 },
    StopAndGo(Box<TruncatedExponential>),
}

/// The exponential distribution, cut off at the longest time.
#[derive(Clone)]
struct TruncatedExponential {
    mean_ns: f64,
    most_ns: u64,
    /// Probability that an uncut exponential time is at most the longest.
    kept: f64,
    key: MaskKey,
    ahead: DelayCache,
}

/// Precomputed delays of cells that are about to come.
#[derive(Clone, Default)]
struct DelayCache {
    /// Direction and lane of the cells.
    of: (u8, u8),
    /// Numbers and delays, in the order in which the cells come.
    drawn: Vec<(u64, u64)>,
    /// Number of entries of `drawn` that were used or passed over.
    gone: usize,
}

impl DepartureTimes {
    /// Departure times under a strategy. `key` must be a secret that serves no other purpose.
    pub fn new(strategy: MixStrategy, key: &[u8; 32]) -> DepartureTimes {
        DepartureTimes(match strategy {
            MixStrategy::Timed { every } if strategy.is_valid() => {
                DepartureLaw::Timed { every_ns: every.duration().as_nanos() as u64 }
            }
            MixStrategy::StopAndGo { mean, most } if strategy.is_valid() => {
                let [mean_ns, most_ns] = [mean, most].map(|time| time.duration().as_nanos());
                DepartureLaw::StopAndGo(Box::new(TruncatedExponential {
                    mean_ns: mean_ns as f64,
                    most_ns: most_ns as u64,
                    kept: -f64::exp_m1(-(most_ns as f64) / mean_ns as f64),
                    key: MaskKey::new(key),
                    ahead: DelayCache::default(),
                }))
            }
            _ => DepartureLaw::Pass,
        })
    }

    /// Computes the delays of cells for which [`DepartureTimes::due`] will be called in this order.
    /// In a batch, a delay costs a quarter as much. Only the first 128 numbers are used.
    pub fn foresee(&mut self, direction: u8, lane: u8, numbers: impl Iterator<Item = u64>) {
        if let DepartureLaw::StopAndGo(law) = &mut self.0 {
            law.foresee(direction, lane, numbers.take(AHEAD_MAX));
        }
    }

    /// The quantum in which a cell that arrives at `now` leaves.
    ///
    /// This is the quantum nearest to the strategy's time, so delays have the right mean. The
    /// quantum may begin up to 125 us before that time, but never before `now`.
    ///
    /// `number` must be unique among the cells of one direction and lane.
    pub fn due(&mut self, now: Time, direction: u8, lane: u8, number: u64) -> Time {
        match &mut self.0 {
            DepartureLaw::Pass => now,
            DepartureLaw::Timed { every_ns } => {
                let next = (now.0 / *every_ns + 1).saturating_mul(*every_ns);
                Time(nearest(next).max(first(now.0.saturating_add(1))))
            }
            DepartureLaw::StopAndGo(law) => {
                let at = now.0.saturating_add(law.next_ns(direction, lane, number));
                Time(nearest(at).max(first(now.0)))
            }
        }
    }

    /// The stop-and-go delay of a cell, before rounding to quanta. Zero under other strategies.
    ///
    /// The strategy draws again if a time is above the longest. That yields the exponential
    /// distribution cut off there. This function inverts it, so one draw is enough.
    pub fn delay(&self, direction: u8, lane: u8, number: u64) -> Duration {
        let DepartureLaw::StopAndGo(law) = &self.0 else { return Duration::ZERO };
        Duration::from_nanos(law.delay_ns(&law.key.mask(&block(direction, lane, number))))
    }
}

impl TruncatedExponential {
    fn foresee(&mut self, direction: u8, lane: u8, numbers: impl Iterator<Item = u64>) {
        let mut drawn = core::mem::take(&mut self.ahead.drawn);
        drawn.clear();
        drawn.extend(numbers.map(|number| (number, 0)));
        for part in drawn.chunks_mut(AT_ONCE) {
            let mut blocks = [[0; 16]; AT_ONCE];
            for (drawn, (number, _)) in blocks.iter_mut().zip(&*part) {
                *drawn = block(direction, lane, *number);
            }
            self.key.mask_batch(&mut blocks[..part.len()]);
            for ((_, ns), drawn) in part.iter_mut().zip(&blocks) {
                *ns = self.delay_ns(drawn);
            }
        }
        self.ahead = DelayCache { of: (direction, lane), drawn, gone: 0 };
    }

    /// [`DepartureTimes::delay`] in nanoseconds, taken from the precomputed delays if the cell is
    /// among them.
    fn next_ns(&mut self, direction: u8, lane: u8, number: u64) -> u64 {
        let ahead = &mut self.ahead;
        let rest = ahead.drawn.get(ahead.gone..).filter(|_| ahead.of == (direction, lane));
        // Skips precomputed delays of cells that were dropped meanwhile.
        let found = rest.into_iter().flatten().position(|(of, _)| *of == number);
        let Some(passed) = found else {
            return self.delay_ns(&self.key.mask(&block(direction, lane, number)));
        };
        ahead.gone += passed + 1;
        ahead.drawn[ahead.gone - 1].1
    }

    /// The delay that a block of random bytes yields.
    fn delay_ns(&self, drawn: &[u8; 16]) -> u64 {
        let [a, b, c, d, e, f, g, h, ..] = *drawn;
        let bits = u64::from_be_bytes([a, b, c, d, e, f, g, h]) >> 11;
        // 53 bits, uniform in the open interval (0, 1).
        let uniform = (bits as f64 + 0.5) / (1_u64 << 53) as f64;
        let ns = -self.mean_ns * (1.0 - uniform * self.kept).ln();
        (ns as u64).min(self.most_ns)
    }
}

/// The plaintext block for a cell: number, direction, lane, zeros.
fn block(direction: u8, lane: u8, number: u64) -> [u8; 16] {
    let about = u64::from(direction) << 56 | u64::from(lane) << 48;
    u128::to_be_bytes(u128::from(number) << 64 | u128::from(about))
}

impl fmt::Debug for DepartureTimes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Delays(hidden)")
    }
}

/// The quantum nearest to a time.
fn nearest(at: u64) -> u64 {
    at.saturating_add(QUANTUM_NS / 2) / QUANTUM_NS * QUANTUM_NS
}

/// The first quantum that is not before a time.
fn first(at: u64) -> u64 {
    at.div_ceil(QUANTUM_NS).saturating_mul(QUANTUM_NS)
}
