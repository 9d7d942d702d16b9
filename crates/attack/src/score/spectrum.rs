//! The matched filter in frequency.
//!
//! The egress has the spectrum of the ingress, multiplied by that of the distribution of delays.
//! The phase of the latter depends on the delay. Each frequency is divided by its strength over all
//! links. A rhythm that all links share, such as that of TCP or of a schedule, thus counts less
//! than the frames of a single flow.

use core::f64::consts::TAU;

use crate::delay::DelayDensity;
use crate::matrix::Matrix;
use crate::score::COUNT_NS;
use crate::score::windows::product;

/// Steps of counts in a segment: 2.56 s. Segments overlap by half.
const SEGMENT: usize = 128;

/// Similarity of the spectra over all segments: 1 is perfect, 0 is none. Counts are in steps of
/// [`COUNT_NS`].
pub fn spectra(entered: &[Vec<f32>], left: &[Vec<f32>], delay: &DelayDensity) -> Matrix {
    let lag = (delay.mean_ns / COUNT_NS as f64) as usize;
    let later: Vec<&[f32]> = left.iter().map(|row| row.get(lag..).unwrap_or_default()).collect();
    let steps = later.iter().map(|row| row.len()).min().unwrap_or(0);
    let length = SEGMENT.min(steps);
    let turns = FourierBasis::new(length);
    let law = turns.law(delay, lag);
    let spectrum = |row: &[f32]| turns.spectrum(&row[..steps]);
    let entered: Vec<Vec<(f32, f32)>> =
        entered.iter().map(|row| through(&spectrum(row), &law)).collect();
    let left: Vec<Vec<(f32, f32)>> = later.iter().map(|row| spectrum(row)).collect();
    let common = common(&left, law.len());
    let [entered, left] = [entered, left].map(|all| -> Vec<Vec<f32>> {
        all.iter().map(|spectrum| unit(spectrum, &common)).collect()
    });
    Matrix::new(entered.len(), |row, column| f64::from(product(&entered[row], &left[column])))
}

/// Sines and cosines of all frequencies of a segment but zero.
struct FourierBasis {
    length: usize,
    window: Vec<f32>,
    /// Values by frequency, then by step.
    waves: Vec<Vec<(f32, f32)>>,
}

impl FourierBasis {
    fn new(length: usize) -> FourierBasis {
        let turn = |part: f64| (TAU * part).sin_cos();
        let of = |k: usize, n: usize| {
            let (sin, cos) = turn((k * n) as f64 / length as f64);
            (cos as f32, -sin as f32)
        };
        let hann = |n: usize| 0.5 - 0.5 * turn((n as f64 + 0.5) / length as f64).1;
        FourierBasis {
            length,
            window: (0..length).map(|n| hann(n) as f32).collect(),
            waves: (1..=length / 2).map(|k| (0..length).map(|n| of(k, n)).collect()).collect(),
        }
    }

    /// Spectra of all segments, concatenated.
    fn spectrum(&self, counts: &[f32]) -> Vec<(f32, f32)> {
        let step = (self.length / 2).max(1);
        let segments = counts.windows(self.length.max(1)).step_by(step);
        segments.flat_map(|segment| self.segment(segment)).collect()
    }

    fn segment(&self, counts: &[f32]) -> Vec<(f32, f32)> {
        let mean = counts.iter().sum::<f32>() / self.length as f32;
        let windowed: Vec<f32> = counts
            .iter()
            .zip(&self.window)
            .map(|(count, weight)| (count - mean) * weight)
            .collect();
        let at = |wave: &Vec<(f32, f32)>| {
            let add = |sum: (f32, f32), (x, turn): (&f32, &(f32, f32))| {
                (sum.0 + x * turn.0, sum.1 + x * turn.1)
            };
            windowed.iter().zip(wave).fold((0.0, 0.0), add)
        };
        self.waves.iter().map(at).collect()
    }

    /// Effect of the distribution of delays on each frequency, after a shift by `lag` steps.
    fn law(&self, delay: &DelayDensity, lag: usize) -> Vec<(f32, f32)> {
        let at = |k: usize| {
            let per_ns = k as f64 / (self.length as f64 * COUNT_NS as f64);
            let mut sum = (0.0, 0.0);
            for (i, p) in delay.steps.iter().enumerate() {
                let late = i as f64 * delay.bin_ns as f64 - lag as f64 * COUNT_NS as f64;
                let (sin, cos) = (TAU * per_ns * late).sin_cos();
                sum = (sum.0 + p * cos, sum.1 - p * sin);
            }
            (sum.0 as f32, sum.1 as f32)
        };
        (1..=self.length / 2).map(at).collect()
    }
}

/// A spectrum multiplied by the effect of the delays, `law`.
fn through(spectrum: &[(f32, f32)], law: &[(f32, f32)]) -> Vec<(f32, f32)> {
    let turned =
        |(a, b): (&(f32, f32), &(f32, f32))| (a.0 * b.0 - a.1 * b.1, a.0 * b.1 + a.1 * b.0);
    spectrum.iter().zip(law.iter().cycle()).map(turned).collect()
}

/// Sum of the power of each frequency over all links.
fn common(all: &[Vec<(f32, f32)>], frequencies: usize) -> Vec<f32> {
    let mut sums = vec![1e-6_f32; frequencies];
    for spectrum in all {
        for (i, (x, y)) in spectrum.iter().enumerate() {
            sums[i % frequencies] += x * x + y * y;
        }
    }
    sums
}

/// Spectrum as a vector of length 1, each frequency relative to the common power.
fn unit(spectrum: &[(f32, f32)], common: &[f32]) -> Vec<f32> {
    let whole = common.iter().cycle().map(|strength| strength.sqrt());
    let row: Vec<f32> = spectrum.iter().zip(whole).flat_map(|((x, y), s)| [x / s, y / s]).collect();
    let length = row.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
    let scale = if length > 1e-9 { 1.0 / length } else { 0.0 };
    row.into_iter().map(|x| x * scale as f32).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Draws;
    use crate::trace::{LineTrace, Span};

    const MS: u64 = 1_000_000;

    fn counted(times: &[u64], late_ms: u64) -> Vec<f32> {
        LineTrace::full(times.iter().map(|at| at + late_ms * MS))
            .binned(Span::seconds(10), COUNT_NS)
    }

    #[test]
    fn a_flow_is_found_at_a_delay_between_steps_and_at_no_other() {
        let mut draws = Draws::new(1, "spectrum", 0);
        let mut flow =
            || -> Vec<u64> { (0..500).map(|_| (draws.uniform() * 9.5e9) as u64).collect() };
        let flows = [flow(), flow(), flow()];
        let entered: Vec<Vec<f32>> = flows.iter().map(|flow| counted(flow, 0)).collect();
        for late in [0, 30, 50, 230] {
            let left: Vec<Vec<f32>> = flows.iter().map(|flow| counted(flow, late)).collect();
            let found = spectra(&entered, &left, &DelayDensity::drawn(&[late * MS], MS));
            let wrong = found.at(0, 1).max(found.at(1, 2)).max(found.at(2, 0));
            assert!(found.at(0, 0) > 0.55 && wrong < 0.2, "{late} ms: {found:?}");
            // A wrong delay loses the flow, since the phase decides.
            let missed = spectra(&entered, &left, &DelayDensity::drawn(&[(late + 35) * MS], MS));
            assert!(missed.at(0, 0) < 0.5, "{late} ms: {missed:?}");
        }
    }

    #[test]
    fn what_all_links_have_in_common_counts_little() {
        // A strong beat on all links, and a few frames of each flow.
        let mut draws = Draws::new(2, "spectrum", 0);
        let mut flow = |_: usize| -> Vec<u64> {
            let own = (0..60).map(|_| (draws.uniform() * 10e9) as u64);
            own.chain((0..50).flat_map(|i| [200 * i * MS; 6])).collect()
        };
        let flows: Vec<Vec<u64>> = (0..4).map(&mut flow).collect();
        let counts: Vec<Vec<f32>> = flows.iter().map(|flow| counted(flow, 0)).collect();
        let found = spectra(&counts, &counts, &DelayDensity::drawn(&[0], MS));
        assert!(found.at(0, 1) < 0.5 && found.at(0, 0) > 0.99, "{found:?}");
    }

    #[test]
    fn links_without_frames_fit_nothing() {
        let none = vec![vec![0.0; 50], vec![0.0; 50]];
        assert_eq!(spectra(&none, &none, &DelayDensity::drawn(&[0], MS)).at(0, 1), 0.0);
        let short = vec![vec![1.0; 2]; 2];
        assert_eq!(spectra(&short, &short, &DelayDensity::drawn(&[900 * MS], MS)).at(0, 0), 0.0);
    }
}
