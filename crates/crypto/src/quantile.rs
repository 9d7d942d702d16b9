//! Medians and quantiles of measured values.
//!
//! The crate has nothing to do with statistics; it is the lowest one that all users depend on.

/// The median, always a value of the list. For an even count it is the larger of the two middle
/// values, not their mean. `None` without values.
pub fn median(values: &[f64]) -> Option<f64> {
    sorted(values).get(values.len() / 2).copied()
}

/// The smallest value that is at least as large as this share of the values (nearest rank). A share
/// of 0 gives the least value, and 1 the largest. `None` without values.
pub fn quantile(values: &[f64], share: f64) -> Option<f64> {
    let rank = (values.len() as f64 * share).ceil() as usize;
    sorted(values).get(rank.saturating_sub(1)).copied()
}

fn sorted(values: &[f64]) -> Vec<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    sorted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_even_count_gives_the_larger_middle_value() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[4.0]), Some(4.0));
        assert_eq!(median(&[4.0, 1.0]), Some(4.0));
        assert_eq!(median(&[9.0, 1.0, 4.0]), Some(4.0));
        assert_eq!(median(&[9.0, 1.0, 4.0, 5.0]), Some(5.0));
    }

    #[test]
    fn quantiles_are_values_of_the_list() {
        let values: Vec<f64> = (1..=200).rev().map(f64::from).collect();
        let at = |share| quantile(&values, share).unwrap();
        assert_eq!(
            [at(0.0), at(0.5), at(0.95), at(0.99), at(1.0)],
            [1.0, 100.0, 190.0, 198.0, 200.0]
        );
        assert_eq!(quantile(&values[..3], 0.99), Some(200.0));
        assert_eq!(quantile(&[], 0.5), None);
    }
}
