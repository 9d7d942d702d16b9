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
const AHEAD: usize = 16;

/// The departure times under one strategy and key.
///
/// The delay of stop-and-go follows from the key and the cell's number. So a run repeats, and
/// whoever knows the key can compare how long a cell took with how long it should have taken. The
/// key is expanded, and some delays are computed ahead, in half a KiB: worth it only for circuits
/// that carry cells.
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
    /// By direction.
    ahead: [Ahead; 2],
}

/// The delays of cells in a row that are about to come.
#[derive(Clone, Default)]
struct Ahead {
    /// Direction, lane, and the numbers divided by [`AHEAD`].
    of: Option<(u8, u8, u64)>,
    delays_ns: [u64; AHEAD],
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
                    ahead: Default::default(),
                }))
            }
            _ => Law::Pass,
        })
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
    /// As [`Delays::delay`], for cells in a row.
    fn next_ns(&mut self, direction: u8, lane: u8, number: u64) -> u64 {
        let (row, place) = (number / AHEAD as u64, (number % AHEAD as u64) as usize);
        let at = usize::from(direction % 2);
        let of = Some((direction, lane, row));
        if self.ahead[at].of != of {
            let first = row * AHEAD as u64;
            let mut blocks: [_; AHEAD] =
                core::array::from_fn(|i| block(direction, lane, first + i as u64));
            self.key.mask_batch(&mut blocks);
            self.ahead[at] = Ahead { of, delays_ns: blocks.map(|drawn| self.delay_ns(&drawn)) };
        }
        self.ahead[at].delays_ns[place]
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
