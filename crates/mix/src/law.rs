//! When a cell leaves.

use core::fmt;
use core::time::Duration;

use shoal_crypto::MaskKey;
use shoal_wire::{Strategy, Time};

/// Mixed cells leave at multiples of this time on the node's clock: at 1 Gbit/s, 21 full cells at
/// once.
pub const QUANTUM: Duration = Duration::from_nanos(QUANTUM_NS);
pub(crate) const QUANTUM_NS: u64 = 250_000;
/// Delays that are computed at once. A single block of AES takes longer than eight, since it waits
/// for the bytes that were just written.
const AT_ONCE: usize = 16;
/// Delays that are computed ahead: as many cells as a run has, twice.
const AHEAD_MAX: usize = 128;

/// The departure times under one strategy and key.
///
/// The delay of stop-and-go follows from the key and the cell's number. So a run repeats, and
/// whoever knows the key can compare how long a cell took with how long it should have taken. The
/// key is expanded, and the delays of a run of cells are computed at once, in at most 2 KiB: worth
/// it only for circuits that carry cells.
#[derive(Clone)]
pub struct Delays(Law);

#[derive(Clone)]
enum Law {
    Pass,
    Timed { every_ns: u64 },
    StopAndGo(Box<Capped>),
}

/// The exponential distribution without what is above the longest time.
#[derive(Clone)]
struct Capped {
    mean_ns: f64,
    most_ns: u64,
    /// The part that is not above it.
    kept: f64,
    key: MaskKey,
    ahead: Ahead,
}

/// The delays of cells that are about to come.
#[derive(Clone, Default)]
struct Ahead {
    /// Direction and lane.
    of: (u8, u8),
    /// Numbers and delays, in the order in which the cells come.
    drawn: Vec<(u64, u64)>,
    /// How many of them have come.
    gone: usize,
}

impl Delays {
    /// Departure times under a strategy. `key` is a secret of this use alone.
    pub fn new(strategy: Strategy, key: &[u8; 32]) -> Delays {
        Delays(match strategy {
            Strategy::Timed { every } if strategy.is_valid() => {
                Law::Timed { every_ns: every.duration().as_nanos() as u64 }
            }
            Strategy::StopAndGo { mean, most } if strategy.is_valid() => {
                let [mean_ns, most_ns] = [mean, most].map(|time| time.duration().as_nanos());
                Law::StopAndGo(Box::new(Capped {
                    mean_ns: mean_ns as f64,
                    most_ns: most_ns as u64,
                    kept: -f64::exp_m1(-(most_ns as f64) / mean_ns as f64),
                    key: MaskKey::new(key),
                    ahead: Ahead::default(),
                }))
            }
            _ => Law::Pass,
        })
    }

    /// Computes the delays of cells for which [`Delays::due`] is about to be asked, in this order:
    /// many at once cost a quarter of as many single ones. Of more than 128, the first.
    pub fn foresee(&mut self, direction: u8, lane: u8, numbers: impl Iterator<Item = u64>) {
        if let Law::StopAndGo(law) = &mut self.0 {
            law.foresee(direction, lane, numbers.take(AHEAD_MAX));
        }
    }

    /// The quantum in which a cell that comes now leaves: the one nearest to the time that the
    /// strategy gives, so that delays are right in the mean. It may thus lie 125 us before that
    /// time, and it never lies before `now`.
    ///
    /// `number` is the cell's, which no other cell of its direction and lane has.
    pub fn due(&mut self, now: Time, direction: u8, lane: u8, number: u64) -> Time {
        match &mut self.0 {
            Law::Pass => now,
            Law::Timed { every_ns } => {
                let next = (now.0 / *every_ns + 1).saturating_mul(*every_ns);
                Time(nearest(next).max(first(now.0.saturating_add(1))))
            }
            Law::StopAndGo(law) => {
                let at = now.0.saturating_add(law.next_ns(direction, lane, number));
                Time(nearest(at).max(first(now.0)))
            }
        }
    }

    /// How long stop-and-go keeps a cell, before that is rounded to quanta. Zero under a strategy
    /// that draws no times.
    ///
    /// A time above the longest is drawn again, says the law. That is the exponential distribution
    /// cut off there, which this inverts: one draw is enough.
    pub fn delay(&self, direction: u8, lane: u8, number: u64) -> Duration {
        let Law::StopAndGo(law) = &self.0 else { return Duration::ZERO };
        Duration::from_nanos(law.delay_ns(&law.key.mask(&block(direction, lane, number))))
    }
}

impl Capped {
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
        self.ahead = Ahead { of: (direction, lane), drawn, gone: 0 };
    }

    /// As [`Delays::delay`], of what was computed ahead if it is there.
    fn next_ns(&mut self, direction: u8, lane: u8, number: u64) -> u64 {
        let ahead = &mut self.ahead;
        let rest = ahead.drawn.get(ahead.gone..).filter(|_| ahead.of == (direction, lane));
        // Those of cells that were dropped meanwhile are passed over.
        let found = rest.into_iter().flatten().position(|(of, _)| *of == number);
        let Some(passed) = found else {
            return self.delay_ns(&self.key.mask(&block(direction, lane, number)));
        };
        ahead.gone += passed + 1;
        ahead.drawn[ahead.gone - 1].1
    }

    /// The time that a block of random bytes stands for.
    fn delay_ns(&self, drawn: &[u8; 16]) -> u64 {
        let [a, b, c, d, e, f, g, h, ..] = *drawn;
        let bits = u64::from_be_bytes([a, b, c, d, e, f, g, h]) >> 11;
        // 53 bits: uniform in (0, 1), never either of them.
        let uniform = (bits as f64 + 0.5) / (1_u64 << 53) as f64;
        let ns = -self.mean_ns * (1.0 - uniform * self.kept).ln();
        (ns as u64).min(self.most_ns)
    }
}

/// What is encrypted for a cell: its number, direction and lane, and zeros.
fn block(direction: u8, lane: u8, number: u64) -> [u8; 16] {
    let about = u64::from(direction) << 56 | u64::from(lane) << 48;
    u128::to_be_bytes(u128::from(number) << 64 | u128::from(about))
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
