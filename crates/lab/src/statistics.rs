//! Tests of whether bytes on the wire look random: lengths, and frequencies of values at each
//! position.

use std::collections::BTreeMap;
use std::fmt;

use shoal_wire::SizeClass;

/// Number of values of a byte.
const VALUES: usize = 256;
/// Minimum number of payloads of a class for a test of each position: five expected per value, the
/// usual rule for chi-square.
pub const COUNT_MIN: u64 = 5 * VALUES as u64;
/// Largest accepted deviation in standard deviations. With about 2,200 tested positions, random
/// bytes exceed it once in many millions of runs.
pub const SIGMA_MAX: f64 = 7.0;

#[derive(Clone, Debug, Default)]
pub struct PayloadStatistics {
    classes: BTreeMap<SizeClass, PositionCounts>,
    /// Number of payloads outside the size classes, by length.
    pub odd_sizes: BTreeMap<usize, u64>,
}

#[derive(Clone, Debug, Default)]
struct PositionCounts {
    count: u64,
    values: Vec<[u32; VALUES]>,
}

/// A deviation from random bytes in the size classes.
#[derive(Clone, Debug, PartialEq)]
pub enum Anomaly {
    /// A length outside the size classes.
    Size {
        /// Length in bytes.
        len: usize,
        /// Number of payloads with this length.
        count: u64,
    },
    /// The values at one position are not uniform.
    Position {
        /// Class of the payloads.
        class: SizeClass,
        /// Index of the byte, counted from 0.
        at: usize,
        /// Most frequent value.
        value: u8,
        /// Deviation of chi-square from its mean, in standard deviations.
        sigma: f64,
    },
    /// The values over all positions of a class are not uniform.
    Class {
        /// Class of the payloads.
        class: SizeClass,
        /// Deviation of chi-square from its mean, in standard deviations.
        sigma: f64,
    },
}

impl fmt::Display for Anomaly {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Anomaly::Size { len, count } => write!(f, "{count} payloads of {len} bytes"),
            Anomaly::Position { class, at, value, sigma } => write!(
                f,
                "byte {at} of {class:?} frames is not uniform: {value:#04x} stands out, chi-square \
                 is off by {sigma:.1} standard deviations"
            ),
            Anomaly::Class { class, sigma } => write!(
                f,
                "bytes of {class:?} frames are not uniform: chi-square is off by {sigma:.1} \
                 standard deviations"
            ),
        }
    }
}

impl PayloadStatistics {
    /// Counts one payload.
    pub fn see(&mut self, payload: &[u8]) {
        let Some(class) = SizeClass::of_frame(payload.len()) else {
            *self.odd_sizes.entry(payload.len()).or_default() += 1;
            return;
        };
        let positions = self.classes.entry(class).or_default();
        positions.count += 1;
        positions.values.resize(class.frame_len(), [0; VALUES]);
        for (values, byte) in positions.values.iter_mut().zip(payload) {
            values[usize::from(*byte)] += 1;
        }
    }

    /// Number of counted payloads of `class`.
    pub fn count(&self, class: SizeClass) -> u64 {
        self.classes.get(&class).map_or(0, |p| p.count)
    }

    /// Everything that does not look random. Positions of a class are tested one by one if enough
    /// payloads were counted, otherwise only together.
    pub fn anomalies(&self) -> Vec<Anomaly> {
        let sizes = self.odd_sizes.iter().map(|(&len, &count)| Anomaly::Size { len, count });
        let mut found: Vec<Anomaly> = sizes.collect();
        for (&class, positions) in &self.classes {
            let mut all = [0; VALUES];
            for (at, values) in positions.values.iter().enumerate() {
                all.iter_mut().zip(values).for_each(|(sum, n)| *sum += n);
                let sigma = chi_square_sigma(values);
                if positions.count >= COUNT_MIN && sigma.abs() > SIGMA_MAX {
                    let value = (0..VALUES).max_by_key(|&v| values[v]).unwrap_or(0) as u8;
                    found.push(Anomaly::Position { class, at, value, sigma });
                }
            }
            let sigma = chi_square_sigma(&all);
            if sigma.abs() > SIGMA_MAX {
                found.push(Anomaly::Class { class, sigma });
            }
        }
        found
    }
}

/// Deviation of chi-square of the counts from uniform values, in standard deviations. With 255
/// degrees of freedom, chi-square has mean 255 and variance 510.
fn chi_square_sigma(counts: &[u32; VALUES]) -> f64 {
    let total: f64 = counts.iter().map(|&n| f64::from(n)).sum();
    if total == 0.0 {
        return 0.0;
    }
    let expected = total / VALUES as f64;
    let sum: f64 = counts.iter().map(|&n| (f64::from(n) - expected).powi(2) / expected).sum();
    let freedom = (VALUES - 1) as f64;
    (sum - freedom) / (2.0 * freedom).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;
    use shoal_crypto::Rng;

    fn random(count: usize, change: impl Fn(usize, &mut [u8])) -> PayloadStatistics {
        let mut rng = Rng::new([7; 32]);
        let mut statistics = PayloadStatistics::default();
        for i in 0..count {
            let mut frame = [0; 192];
            rng.fill(&mut frame);
            change(i, &mut frame);
            statistics.see(&frame);
        }
        statistics
    }

    #[test]
    fn random_frames_pass() {
        assert_eq!(random(3_000, |_, _| ()).anomalies(), []);
        assert_eq!(random(20, |_, _| ()).anomalies(), []);
    }

    #[test]
    fn a_constant_a_counter_and_a_lost_bit_are_found() {
        let at = |statistics: PayloadStatistics| {
            let found = statistics.anomalies();
            found.iter().find_map(|a| match a {
                Anomaly::Position { at, .. } => Some(*at),
                _ => None,
            })
        };
        assert_eq!(at(random(3_000, |_, f| f[5] = 1)), Some(5));
        assert_eq!(at(random(3_000, |i, f| f[7] = i as u8)), Some(7));
        assert_eq!(at(random(3_000, |_, f| f[9] &= 0x7f)), Some(9));
        // A few frames are enough to find padding in the clear.
        assert!(!random(20, |_, f| f[100..].fill(0)).anomalies().is_empty());
    }

    #[test]
    fn sizes_outside_the_classes_are_found() {
        let mut statistics = PayloadStatistics::default();
        statistics.see(&[0; 100]);
        assert_eq!(statistics.anomalies(), [Anomaly::Size { len: 100, count: 1 }]);
    }
}
