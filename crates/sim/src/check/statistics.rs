//! Tests of random samples. The bounds hold for any number of samples; a correct run violates one
//! of them with probability 10^-9.

/// ln(2 * 10^9).
pub(crate) const RARE: f64 = 21.42;
/// Smallest numbers of samples and groups that are tested.
const SAMPLES_MIN: usize = 200;
const GROUPS_MIN: u64 = 100;
/// Largest number of cells of a group that is compared, and of which ranks are counted.
const COMPARED_MAX: usize = 256;
const RANKS: usize = 6;

/// Tests whether samples are uniform between 0 and 1 (Kolmogorov and Smirnov, with the bound of
/// Dvoretzky, Kiefer, Wolfowitz and Massart). Passes if there are too few samples.
pub(crate) fn uniform(samples: &[f64]) -> Result<(), String> {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let n = sorted.len() as f64;
    let gap = |(i, x): (usize, &f64)| (x - i as f64 / n).max((i + 1) as f64 / n - x);
    let far = sorted.iter().enumerate().map(gap).fold(0.0, f64::max);
    let most = (RARE / (2.0 * n)).sqrt();
    match sorted.len() < SAMPLES_MIN || far <= most {
        true => Ok(()),
        false => Err(format!("distance {far:.4} from the law, at most {most:.4}, for {n} cells")),
    }
}

/// Departure orders of groups that may leave in any order.
#[derive(Default)]
pub(crate) struct DepartureOrders {
    groups: u64,
    /// Number of inverted pairs above half of all pairs, and its variance.
    inverted: f64,
    variance: f64,
    /// By group size, up to [`RANKS`] members: number of groups, and counts of departure rank by
    /// arrival rank.
    ranks: [(u64, [[u64; RANKS]; RANKS]); RANKS + 1],
}

impl DepartureOrders {
    /// Records a group: arrival numbers of its members, in the order of departure.
    pub(crate) fn note(&mut self, group: &[u64]) {
        let group = &group[..group.len().min(COMPARED_MAX)];
        if group.len() < 2 {
            return;
        }
        self.groups += 1;
        let n = group.len() as f64;
        let behind = |(i, first): (usize, &u64)| group[i..].iter().filter(|x| *x < first).count();
        let inverted: usize = group.iter().enumerate().map(behind).sum();
        self.inverted += inverted as f64 - n * (n - 1.0) / 4.0;
        self.variance += n * (n - 1.0) * (2.0 * n + 5.0) / 72.0;
        self.note_ranks(group);
    }

    /// Counts the ranks of members at equal distances in the order of arrival. Their departure
    /// order is as random as that of the whole group.
    fn note_ranks(&mut self, group: &[u64]) {
        let mut came = group.to_vec();
        came.sort_unstable();
        let size = group.len().min(RANKS);
        let picked: Vec<u64> = (0..size).map(|i| came[i * group.len() / size]).collect();
        let (count, ranks) = &mut self.ranks[size];
        *count += 1;
        let left = group.iter().filter_map(|member| picked.iter().position(|one| one == member));
        left.enumerate().for_each(|(left, came)| ranks[came][left] += 1);
    }

    /// Tests whether the orders are uniformly random.
    pub(crate) fn check(&self) -> Result<(), String> {
        if self.groups < GROUPS_MIN {
            return Ok(());
        }
        // The number of inverted pairs is a sum of independent uniform variables.
        let (off, most) = (self.inverted.abs(), (2.0 * RARE * self.variance).sqrt());
        if off > most {
            let what = if self.inverted < 0.0 { "few" } else { "many" };
            return Err(format!(
                "too {what} pairs are inverted, by {off:.0}, at most {most:.0}, in {} groups",
                self.groups
            ));
        }
        self.ranks.iter().enumerate().try_for_each(|(size, of)| check_ranks(size, of))
    }
}

/// Chi-square test of permutation matrices, with the bound of Laurent and Massart.
fn check_ranks(size: usize, (count, ranks): &(u64, [[u64; RANKS]; RANKS])) -> Result<(), String> {
    if *count < GROUPS_MIN {
        return Ok(());
    }
    let (n, count) = (size as f64, *count as f64);
    let cells = ranks[..size].iter().flat_map(|row| &row[..size]);
    let sum: f64 = cells.map(|seen| (*seen as f64 - count / n).powi(2)).sum();
    let (far, freedom) = (sum * (n - 1.0) / count, (n - 1.0).powi(2));
    let most = freedom + 2.0 * (freedom * RARE).sqrt() + 2.0 * RARE;
    match far <= most {
        true => Ok(()),
        false => Err(format!(
            "places of {size} are not equally probable: {far:.0}, at most {most:.0}, in {count} \
             groups"
        )),
    }
}

#[cfg(test)]
mod tests {
    use shoal_crypto::Rng;

    use super::*;

    fn draw(rng: &mut Rng) -> f64 {
        (rng.u64() >> 11) as f64 / (1_u64 << 53) as f64
    }

    #[test]
    fn a_law_that_is_a_twentieth_off_is_seen() {
        let mut rng = Rng::new([1; 32]);
        let good: Vec<f64> = (0..20_000).map(|_| draw(&mut rng)).collect();
        assert_eq!(uniform(&good), Ok(()));
        let bad: Vec<f64> = good.iter().map(|x| x.powf(1.2)).collect();
        assert!(uniform(&bad).is_err());
        assert_eq!(uniform(&bad[..SAMPLES_MIN - 1]), Ok(()), "too few samples");
    }

    fn turns(spoil: impl Fn(usize, &mut Vec<u64>)) -> Result<(), String> {
        let (mut rng, mut turns) = (Rng::new([2; 32]), DepartureOrders::default());
        for group in 0..2_000 {
            let mut order: Vec<u64> = (0..2 + rng.below(12)).collect();
            for i in (1..order.len()).rev() {
                order.swap(i, rng.below(i as u64 + 1) as usize);
            }
            spoil(group, &mut order);
            turns.note(&order);
        }
        turns.check()
    }

    #[test]
    fn orders_that_are_not_random_are_seen() {
        assert_eq!(turns(|_, _| ()), Ok(()));
        assert!(turns(|_, order| order.sort_unstable()).is_err());
        assert!(turns(|_, order| order.reverse()).is_ok());
        assert!(turns(|_, order| order.sort_unstable_by_key(|x| u64::MAX - x)).is_err());
        // In one group of four, the first to come is the first to leave.
        let first = |group: usize, order: &mut Vec<u64>| {
            let at = order.iter().position(|x| *x == 0).unwrap_or(0);
            if group.is_multiple_of(4) {
                order[..=at].rotate_right(1);
            }
        };
        assert!(turns(first).is_err());
        // All places are equally probable.
        let turned = |_: usize, order: &mut Vec<u64>| {
            let by = order[0] as usize;
            order.sort_unstable();
            order.rotate_left(by);
        };
        assert!(turns(turned).is_err());
    }
}
