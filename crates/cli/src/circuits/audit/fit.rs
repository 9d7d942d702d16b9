//! Regression of round trips on agreed delays: the share of each agreed delay that was kept.
//!
//! ```text
//! round trip = line of its hop + share x delay + ... + noise         one share per relay and way
//! ```
//!
//! A relay that delays as agreed has the share 1, one that sends at once or draws its own delays
//! has 0, and one that holds cells twice as long has 2. Queues and turns are noise: they don't know
//! the agreed delays, so they can't move a share on average.
//!
//! Early echoes count in full, late ones at most as 1.5 deviations (P. Huber, "Robust estimation
//! of a location parameter", 1964): queues and stalls make echoes late, and nothing makes them
//! early but a relay that sends too soon.
//!
//! **Periods.** On a covered link with a constant schedule an answer comes in a turn of its peer.
//! Turns come at equal times, so the wait for one is not independent of the delays: within a
//! period it makes up for them. [`DelayShare::lock`] bounds this error by the Fourier series of a
//! sawtooth of that period, with any phase at each hop.

use std::f64::consts::{PI, TAU};

/// Deviations beyond which an echo's weight falls: of late echoes, and of early ones.
const LATE: f64 = 1.5;
const EARLY: f64 = 8.0;
/// Least deviation of delays that can be judged, in milliseconds: relays release cells in quanta
/// of 0.25 ms.
const SPREAD_MIN_MS: f64 = 0.5;
/// Least noise that is assumed, in milliseconds.
const NOISE_MIN_MS: f64 = 0.05;
/// Fewest echoes beyond the number of unknown values.
const FREE_MIN: usize = 10;
/// Rounds of weighting.
const ROUNDS: usize = 40;
/// Growth of errors where a share rests on few samples: theirs is not known well.
const FEW: f64 = 8.0;
/// Terms of the sawtooth's series.
const TERMS: usize = 3;

/// One answered echo.
#[derive(Clone, Debug, Default)]
pub struct EchoSample {
    /// Number of the hop that answered, from 0.
    pub hop: usize,
    pub rtt_ms: f64,
    /// Agreed delays in milliseconds, by column: there and back at each relay.
    pub delays: Vec<f64>,
}

/// Share of an agreed delay that round trips contain.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DelayShare {
    pub share: f64,
    /// Standard error of the share.
    pub error: f64,
    /// Largest error that turns of covered links can cause.
    pub lock: f64,
}

/// Shares of all columns. None for a column whose delays differ too little, or without enough
/// echoes. `periods` are the periods of turns at each hop, in milliseconds.
pub fn fit(
    samples: &[EchoSample],
    columns: usize,
    periods: &[Vec<f64>],
) -> Vec<Option<DelayShare>> {
    let hops = samples.iter().map(|sample| sample.hop + 1).max().unwrap_or(0);
    let used: Vec<usize> =
        (0..columns).filter(|column| spread(samples, hops, *column) >= SPREAD_MIN_MS).collect();
    let mut shares = vec![None; columns];
    if samples.len() < used.len() + hops + FREE_MIN || used.is_empty() {
        return shares;
    }
    let mut model = Regression::new(samples, &used, hops);
    model.solve();
    for (at, found) in model.shares(periods).into_iter().enumerate() {
        shares[used[at]] = found;
    }
    shares
}

/// Deviation of a column within hops, in milliseconds.
fn spread(samples: &[EchoSample], hops: usize, column: usize) -> f64 {
    let (mut squares, mut count) = (0.0, 0);
    for hop in 0..hops {
        let values = samples.iter().filter(|s| s.hop == hop).map(|s| s.delays[column]);
        let values: Vec<f64> = values.collect();
        let mean = values.iter().sum::<f64>() / values.len().max(1) as f64;
        let here: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
        // Hops without this delay say nothing about its spread.
        if here > 0.0 {
            (squares, count) = (squares + here, count + values.len());
        }
    }
    (squares / f64::from(count.max(1) as u32)).sqrt()
}

/// A weighted least-squares problem with a constant for each hop.
struct Regression<'a> {
    samples: &'a [EchoSample],
    used: &'a [usize],
    hops: usize,
    shares: Vec<f64>,
    weights: Vec<f64>,
    /// Noise of each hop, in milliseconds.
    noise: Vec<f64>,
    /// Residual of each sample, in deviations of its hop.
    rest: Vec<f64>,
    /// Delays of each sample less their weighted mean at its hop, divided by the hop's noise.
    centred: Vec<Vec<f64>>,
}

impl<'a> Regression<'a> {
    fn new(samples: &'a [EchoSample], used: &'a [usize], hops: usize) -> Regression<'a> {
        Regression {
            samples,
            used,
            hops,
            shares: vec![1.0; used.len()],
            weights: vec![1.0; samples.len()],
            noise: vec![1.0; hops],
            rest: vec![0.0; samples.len()],
            centred: Vec::new(),
        }
    }

    fn solve(&mut self) {
        for _ in 0..ROUNDS {
            let round_trips = self.centre();
            let rows = self.centred.iter().zip(&self.weights).zip(&round_trips);
            let (mut matrix, mut right) = (square(self.used.len()), vec![0.0; self.used.len()]);
            for ((row, weight), round_trip) in rows {
                add_outer(&mut matrix, row, *weight);
                right.iter_mut().zip(row).for_each(|(sum, x)| *sum += weight * x * round_trip);
            }
            let Some(inverse) = inverse(matrix) else { return };
            self.shares = inverse.iter().map(|row| dot(row, &right)).collect();
            self.weigh(&round_trips);
        }
    }

    /// Centres delays, and returns the centred round trips. Both are in deviations of their hop.
    fn centre(&mut self) -> Vec<f64> {
        let width = self.used.len() + 1;
        let mut means = vec![vec![0.0; width]; self.hops];
        let mut sums = vec![0.0; self.hops];
        for (sample, weight) in self.samples.iter().zip(&self.weights) {
            sums[sample.hop] += weight;
            let mean = &mut means[sample.hop];
            for (at, column) in self.used.iter().enumerate() {
                mean[at] += weight * sample.delays[*column];
            }
            mean[width - 1] += weight * sample.rtt_ms;
        }
        for (mean, sum) in means.iter_mut().zip(&sums) {
            mean.iter_mut().for_each(|value| *value /= sum.max(f64::MIN_POSITIVE));
        }
        let row = |sample: &EchoSample| {
            let (mean, noise) = (&means[sample.hop], self.noise[sample.hop]);
            let columns = self.used.iter().enumerate();
            columns.map(|(at, column)| (sample.delays[*column] - mean[at]) / noise).collect()
        };
        let centred = self.samples.iter().map(row).collect();
        let round_trip = |sample: &EchoSample| {
            (sample.rtt_ms - means[sample.hop][width - 1]) / self.noise[sample.hop]
        };
        let round_trips = self.samples.iter().map(round_trip).collect();
        self.centred = centred;
        round_trips
    }

    /// Computes residuals, the noise of each hop, and the weight of each sample.
    fn weigh(&mut self, round_trips: &[f64]) {
        for (at, round_trip) in round_trips.iter().enumerate() {
            self.rest[at] = round_trip - dot(&self.centred[at], &self.shares);
        }
        for hop in 0..self.hops {
            let here = |at: &usize| self.samples[*at].hop == hop;
            let at: Vec<usize> = (0..self.samples.len()).filter(here).collect();
            let scale = deviation(at.iter().map(|at| self.rest[*at]).collect());
            let noise = (scale * self.noise[hop]).max(NOISE_MIN_MS);
            for at in at {
                self.rest[at] *= self.noise[hop] / noise;
                self.weights[at] = match self.rest[at] {
                    rest if rest > LATE => LATE / rest,
                    rest if rest < -EARLY => EARLY / -rest,
                    _ => 1.0,
                };
            }
            self.noise[hop] = noise;
        }
    }

    /// Shares with their errors: the larger one of the usual error and of one that allows each
    /// sample its own noise.
    fn shares(&mut self, periods: &[Vec<f64>]) -> Vec<Option<DelayShare>> {
        self.centre();
        let width = self.used.len();
        let (mut all, mut inside, mut squares) = (square(width), square(width), square(width));
        let (mut score, mut kept) = (0.0, 0.0);
        for (at, row) in self.centred.iter().enumerate() {
            let (rest, weight) = (self.rest[at], self.weights[at]);
            let is_kept = f64::from(u8::from(weight >= 1.0));
            add_outer(&mut all, row, 1.0);
            add_outer(&mut inside, row, is_kept);
            add_outer(&mut squares, row, (rest * weight).powi(2));
            (score, kept) = (score + (rest * weight).powi(2), kept + is_kept);
        }
        let count = self.samples.len() as f64;
        let free = count / (count - (width + self.hops) as f64).max(1.0);
        let (Some(all), Some(inside)) = (inverse(all), inverse(inside)) else {
            return vec![None; width];
        };
        let usual = score / count / (kept / count).powi(2);
        let share = |at: usize| {
            let own = quadratic(&squares, &inside[at]);
            let few = 1.0 + FEW / self.informed(at).max(1.0);
            let error = few * (free * own.max(usual * all[at][at])).sqrt();
            Some(DelayShare {
                share: self.shares[at],
                error,
                lock: self.lock(&inside[at], periods),
            })
        };
        (0..width).map(share).collect()
    }

    /// Number of samples that a column's share rests on: those of hops where it differs.
    fn informed(&self, column: usize) -> f64 {
        let differs = |hop: &usize| {
            let here = self.samples.iter().zip(&self.centred).filter(|(s, _)| s.hop == *hop);
            here.map(|(_, row)| row[column].abs()).fold(0.0, f64::max) > 0.0
        };
        let hops: Vec<usize> = (0..self.hops).filter(differs).collect();
        self.samples.iter().filter(|sample| hops.contains(&sample.hop)).count() as f64
    }

    /// Largest error of a share that waits for turns can cause. `row` is the share's row of the
    /// inverse matrix.
    fn lock(&self, row: &[f64], periods: &[Vec<f64>]) -> f64 {
        let mut sum = 0.0;
        for hop in 0..self.hops {
            let here = |at: &usize| self.samples[*at].hop == hop;
            let at: Vec<usize> = (0..self.samples.len()).filter(here).collect();
            // Each sample's part in the share, per millisecond of its round trip.
            let parts: Vec<(f64, f64)> = at
                .iter()
                .filter(|at| self.weights[**at] >= 1.0)
                .map(|at| {
                    let part = dot(row, &self.centred[*at]) / self.noise[hop];
                    (part, self.samples[*at].delays.iter().sum())
                })
                .collect();
            let of_hop = periods.get(hop).into_iter().flatten();
            // A peer's turns may be twice as far apart, where others hold those between.
            sum += of_hop.map(|p| sawtooth(&parts, *p).max(sawtooth(&parts, 2.0 * p))).sum::<f64>();
        }
        sum
    }
}

/// Largest weighted sum of a sawtooth of this period at these times, over all phases, less what
/// chance causes: that is part of the standard error.
fn sawtooth(parts: &[(f64, f64)], period: f64) -> f64 {
    let chance = parts.iter().map(|(part, _)| part * part).sum::<f64>().sqrt();
    let term = |n: usize| {
        let n = n as f64;
        let turn = |part: f64, time: f64| {
            let angle = TAU * n * time / period;
            (part * angle.cos(), part * angle.sin())
        };
        let all = parts.iter().map(|(part, time)| turn(*part, *time));
        let (x, y) = all.fold((0.0, 0.0), |(x, y), (dx, dy)| (x + dx, y + dy));
        period / (PI * n) * (x.hypot(y) - chance / 2.0).max(0.0)
    };
    (1..=TERMS).map(term).sum()
}

/// Deviation from the median, as far as the middle half shows it.
fn deviation(mut values: Vec<f64>) -> f64 {
    if values.is_empty() {
        return 0.0;
    }
    values.sort_by(f64::total_cmp);
    let middle = values[values.len() / 2];
    let mut away: Vec<f64> = values.iter().map(|value| (value - middle).abs()).collect();
    away.sort_by(f64::total_cmp);
    1.4826 * away[away.len() / 2]
}

fn square(width: usize) -> Vec<Vec<f64>> {
    vec![vec![0.0; width]; width]
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn quadratic(matrix: &[Vec<f64>], row: &[f64]) -> f64 {
    matrix.iter().zip(row).map(|(line, x)| x * dot(line, row)).sum()
}

fn add_outer(matrix: &mut [Vec<f64>], row: &[f64], weight: f64) {
    for (line, x) in matrix.iter_mut().zip(row) {
        line.iter_mut().zip(row).for_each(|(sum, y)| *sum += weight * x * y);
    }
}

/// The inverse of a symmetric positive matrix, by elimination. None if it has none.
fn inverse(mut matrix: Vec<Vec<f64>>) -> Option<Vec<Vec<f64>>> {
    let width = matrix.len();
    let mut inverse = square(width);
    (0..width).for_each(|at| inverse[at][at] = 1.0);
    for at in 0..width {
        let best = (at..width).max_by(|a, b| matrix[*a][at].abs().total_cmp(&matrix[*b][at].abs()));
        let best = best?;
        matrix.swap(at, best);
        inverse.swap(at, best);
        let pivot = matrix[at][at];
        if pivot.abs() < 1e-12 {
            return None;
        }
        for table in [&mut matrix, &mut inverse] {
            table[at].iter_mut().for_each(|value| *value /= pivot);
        }
        for line in (0..width).filter(|line| *line != at) {
            let factor = matrix[line][at];
            for table in [&mut matrix, &mut inverse] {
                let (from, to) = pair(table, at, line);
                to.iter_mut().zip(from).for_each(|(to, from)| *to -= factor * *from);
            }
        }
    }
    Some(inverse)
}

/// Two different lines of a matrix; the second one mutable.
fn pair(table: &mut [Vec<f64>], from: usize, to: usize) -> (&[f64], &mut [f64]) {
    let (low, high) = table.split_at_mut(from.max(to));
    match from < to {
        true => (&low[from], &mut high[0]),
        false => (&high[0], &mut low[to]),
    }
}
