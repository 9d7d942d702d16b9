//! The order in which one window leaves a mix.

use core::time::Duration;

use crate::case::{Case, Wrong};
use crate::law::Law;
use crate::permutation::most_duplicates;
use crate::random::{permute, rng};

/// Most packets of the window, and most trials.
const WINDOW_MAX: u32 = 10_000;
const TRIALS_MAX: u32 = 1_000_000;

/// The share of `trials` in which a window of `n` packets that the case's line sends without a
/// break leaves one mix with at most D - 1 duplicate acknowledgements.
///
/// Its packets reach the mix one transmission apart. The paper has them arrive at once.
///
/// # Errors
/// When a bound of the case is broken; [`Wrong::Trials`] when `n` is above 10,000, or `trials` is 0
/// or above a million.
pub fn calm_through_mix(case: &Case, n: u32, trials: u32, seed: u64) -> Result<f64, Wrong> {
    case.check()?;
    if n > WINDOW_MAX || !(1..=TRIALS_MAX).contains(&trials) {
        return Err(Wrong::Trials);
    }
    let mut rng = rng(seed);
    let calm = (0..trials).filter(|_| {
        let mut order: Vec<usize> = (0..n as usize).collect();
        match case.law {
            Law::None => {}
            // The whole window meets one flush.
            Law::Timed { .. } => permute(&mut order, &mut rng),
            Law::StopAndGo { .. } => {
                let delay = |i| case.transmission() * i + case.law.draw(&mut rng);
                let leaves: Vec<Duration> = (0..n).map(delay).collect();
                order.sort_by_key(|&i| leaves[i]);
            }
        }
        most_duplicates(&order) < case.dupthresh
    });
    Ok(calm.count() as f64 / f64::from(trials))
}
