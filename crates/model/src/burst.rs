//! Reordering of a single window by a mix.

use core::time::Duration;

use crate::case::{ModelError, TcpExperiment};
use crate::law::BatchingStrategy;
use crate::permutation::most_duplicates;
use crate::random::{permute, rng};

/// Largest window in packets, and largest number of trials.
const WINDOW_MAX: u32 = 10_000;
const TRIALS_MAX: u32 = 1_000_000;

/// Share of `trials` in which a window of `n` packets leaves one mix with at most D - 1 duplicate
/// acknowledgements. The case's line sends the window without a break.
///
/// Packets reach the mix one transmission time apart. In the paper they arrive at once.
///
/// # Errors If a bound of the case is broken. [`ModelError::Trials`] if `n` is above 10,000, or
/// `trials` is 0 or above a million.
pub fn calm_through_mix(
    case: &TcpExperiment,
    n: u32,
    trials: u32,
    seed: u64,
) -> Result<f64, ModelError> {
    case.check()?;
    if n > WINDOW_MAX || !(1..=TRIALS_MAX).contains(&trials) {
        return Err(ModelError::Trials);
    }
    let mut rng = rng(seed);
    let calm = (0..trials).filter(|_| {
        let mut order: Vec<usize> = (0..n as usize).collect();
        match case.law {
            BatchingStrategy::None => {}
            // The whole window leaves in one flush.
            BatchingStrategy::Timed { .. } => permute(&mut order, &mut rng),
            BatchingStrategy::StopAndGo { .. } => {
                let delay = |i| case.transmission() * i + case.law.draw(&mut rng);
                let leaves: Vec<Duration> = (0..n).map(delay).collect();
                order.sort_by_key(|&i| leaves[i]);
            }
        }
        most_duplicates(&order) < case.dupthresh
    });
    Ok(calm.count() as f64 / f64::from(trials))
}
