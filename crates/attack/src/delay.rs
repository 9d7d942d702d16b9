//! Distribution of the delays of a path, as the attacker knows it.

use shoal_mix::DepartureTimes;
use shoal_wire::Time;

use crate::cover::CoverSchedule;
use crate::network::Scene;
use crate::random::Draws;

/// Steps in which the distribution of a path is computed.
const STEP_NS: u64 = 500_000;
/// Number of delays drawn from each distribution.
const DRAWN: u64 = 65_536;
/// The finest steps in which the distribution is used, and the number of steps per standard
/// deviation.
const BIN_MIN_NS: u64 = 1_000_000;
const BINS_PER_DEVIATION: f64 = 8.0;

/// Probability density of the time from access link to access link, lines included.
#[derive(Clone, Debug, PartialEq)]
pub struct DelayDensity {
    /// Length of a step.
    pub bin_ns: u64,
    /// Probability of each step; their sum is 1.
    pub steps: Vec<f64>,
    /// Mean in nanoseconds.
    pub mean_ns: f64,
    /// Standard deviation in nanoseconds.
    pub deviation_ns: f64,
}

impl DelayDensity {
    /// Distribution for the paths of a scene. Delays of one mix are drawn as a relay draws them;
    /// those of several are a numeric convolution. A timed mix, whose flushes are unknown, counts
    /// as a uniform time up to its period.
    pub fn of(scene: &Scene) -> DelayDensity {
        let mut draws = Draws::new(0, "density", 0);
        let lines: Vec<u64> = (0..DRAWN / 16)
            .map(|_| (0..=scene.mixes).fold(0, |at, _| scene.line.pass(at, &mut draws)))
            .collect();
        let mut law = DelayDensity::drawn(&lines, STEP_NS);
        if scene.mixes > 0 && scene.strategy.holds() {
            let mut delays = DepartureTimes::new(scene.strategy, &draws.key());
            let one: Vec<u64> = (0..DRAWN)
                .map(|number| {
                    let at = (draws.uniform() * 1e9) as u64;
                    delays.due(Time(at), 0, 0, number).0 - at
                })
                .collect();
            let one = DelayDensity::drawn(&one, STEP_NS);
            law = (0..scene.mixes).fold(law, |law, _| law.then(&one));
        }
        if scene.cover.scheduled() {
            let distance = 1e9 / scene.cover.per_s();
            let wait = |draws: &mut Draws| match scene.cover {
                CoverSchedule::Poisson { .. } => draws.exponential(distance),
                _ => draws.uniform() * distance,
            };
            let one: Vec<u64> = (0..DRAWN / 16).map(|_| wait(&mut draws) as u64).collect();
            let one = DelayDensity::drawn(&one, STEP_NS);
            law = law.then(&one).then(&one);
        }
        let bin_ns = (law.deviation_ns / BINS_PER_DEVIATION) as u64 / STEP_NS * STEP_NS;
        law.in_bins(bin_ns.max(BIN_MIN_NS)).smooth()
    }

    /// Distribution of observed delays.
    pub fn drawn(delays_ns: &[u64], bin_ns: u64) -> DelayDensity {
        let mut steps = Vec::new();
        for delay in delays_ns {
            let step = ((delay + bin_ns / 2) / bin_ns) as usize;
            if steps.len() <= step {
                steps.resize(step + 1, 0.0);
            }
            steps[step] += 1.0 / delays_ns.len() as f64;
        }
        DelayDensity::new(bin_ns, steps)
    }

    fn new(bin_ns: u64, steps: Vec<f64>) -> DelayDensity {
        let moment = |power: i32| -> f64 {
            (0..).zip(&steps).map(|(i, p)| p * (f64::from(i) * bin_ns as f64).powi(power)).sum()
        };
        let mean_ns = moment(1);
        let deviation_ns = (moment(2) - mean_ns * mean_ns).max(0.0).sqrt();
        DelayDensity { bin_ns, steps, mean_ns, deviation_ns }
    }

    /// Distribution of the sum of both times, in steps of the same length.
    pub fn then(&self, other: &DelayDensity) -> DelayDensity {
        let mut steps = vec![0.0; (self.steps.len() + other.steps.len()).saturating_sub(1)];
        for (i, p) in self.steps.iter().enumerate().filter(|(_, p)| **p > 0.0) {
            for (sum, q) in steps[i..].iter_mut().zip(&other.steps) {
                *sum += p * q;
            }
        }
        DelayDensity::new(self.bin_ns, steps)
    }

    /// The distribution in steps of another length.
    pub fn in_bins(&self, bin_ns: u64) -> DelayDensity {
        let mut steps = vec![0.0; self.steps.len() * self.bin_ns as usize / bin_ns as usize + 2];
        for (i, p) in self.steps.iter().enumerate() {
            let at = (i as u64 * self.bin_ns) as f64 / bin_ns as f64;
            let (low, share) = (at as usize, at.fract());
            steps[low] += p * (1.0 - share);
            steps[low + 1] += p * share;
        }
        DelayDensity::new(bin_ns, steps)
    }

    /// Spreads each step over its neighbours, since times fall into steps by chance.
    fn smooth(&self) -> DelayDensity {
        let of = |i: Option<usize>| i.and_then(|i| self.steps.get(i)).copied().unwrap_or(0.0);
        let step =
            |i: usize| 0.25 * of(i.checked_sub(1)) + 0.5 * of(Some(i)) + 0.25 * of(Some(i + 1));
        DelayDensity::new(self.bin_ns, (0..=self.steps.len()).map(step).collect())
    }

    /// Expected number of frames in each step at the other end, if `entered` went in.
    pub fn spread(&self, entered: &[f32]) -> Vec<f32> {
        let mut out = vec![0.0; entered.len()];
        let steps: Vec<f32> = self.steps.iter().map(|p| *p as f32).collect();
        for (i, count) in entered.iter().enumerate().filter(|(_, count)| **count > 0.0) {
            for (sum, p) in out[i..].iter_mut().zip(&steps) {
                *sum += count * p;
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_of_times_are_convolutions() {
        let die = DelayDensity::new(1, vec![0.0, 0.25, 0.25, 0.25, 0.25]);
        let two = die.then(&die);
        assert_eq!(two.steps[2..6], [1.0 / 16.0, 2.0 / 16.0, 3.0 / 16.0, 4.0 / 16.0]);
        assert!((two.mean_ns - 5.0).abs() < 1e-12);
        assert!((two.deviation_ns.powi(2) - 2.5).abs() < 1e-12);
        let wide = two.in_bins(2);
        assert!(
            (wide.mean_ns - 5.0).abs() < 1e-12 && (wide.steps.iter().sum::<f64>() - 1.0) < 1e-9
        );
        assert_eq!(die.spread(&[0.0, 4.0, 0.0, 0.0, 0.0, 0.0]), [0.0, 0.0, 1.0, 1.0, 1.0, 1.0]);
        let seen = DelayDensity::drawn(&[10, 10, 20, 14], 10);
        assert_eq!(seen.steps, [0.0, 0.75, 0.25]);
    }
}
