//! Best one-to-one assignment of rows to columns.

use crate::matrix::Matrix;

/// The column of each row, without repetition, with the highest sum of scores.
///
/// This is the Hungarian method with potentials: one shortest augmenting path per row. The time
/// grows with the third power of the number of rows.
pub fn assign(scores: &Matrix) -> Vec<usize> {
    let n = scores.len();
    // Rows and columns count from 1; 0 stands for none.
    let mut row_potential = vec![0.0; n + 1];
    let mut column_potential = vec![0.0; n + 1];
    let mut row_of = vec![0; n + 1];
    let mut before = vec![0; n + 1];
    for row in 1..=n {
        row_of[0] = row;
        let mut column = 0;
        let mut least = vec![f64::INFINITY; n + 1];
        let mut done = vec![false; n + 1];
        while row_of[column] != 0 {
            done[column] = true;
            let from = row_of[column];
            let (mut step, mut next) = (f64::INFINITY, 0);
            for to in (1..=n).filter(|to| !done[*to]) {
                let cost = -scores.at(from - 1, to - 1);
                let reduced = cost - row_potential[from] - column_potential[to];
                if reduced < least[to] {
                    (least[to], before[to]) = (reduced, column);
                }
                if least[to] < step {
                    (step, next) = (least[to], to);
                }
            }
            for at in 0..=n {
                if done[at] {
                    row_potential[row_of[at]] += step;
                    column_potential[at] -= step;
                } else {
                    least[at] -= step;
                }
            }
            column = next;
        }
        while column != 0 {
            row_of[column] = row_of[before[column]];
            column = before[column];
        }
    }
    let mut columns = vec![0; n];
    (1..=n).for_each(|column| columns[row_of[column] - 1] = column - 1);
    columns
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Draws;

    #[test]
    fn the_best_of_all_permutations_is_found() {
        let scores = [[5.0, 9.0, 1.0], [10.0, 9.0, 2.0], [8.0, 7.0, 4.0]];
        assert_eq!(assign(&Matrix::new(3, |r, c| scores[r][c])), [1, 0, 2]);
        let mut draws = Draws::new(1, "assign", 0);
        for _ in 0..50 {
            let scores = Matrix::new(6, |_, _| draws.between(-1.0, 1.0));
            let sum = |columns: &[usize]| -> f64 {
                columns.iter().enumerate().map(|(r, c)| scores.at(r, *c)).sum()
            };
            let mut best = f64::NEG_INFINITY;
            every(&mut (0..6).collect(), 0, &mut |order| best = best.max(sum(order)));
            assert!((sum(&assign(&scores)) - best).abs() < 1e-9);
        }
    }

    fn every(order: &mut Vec<usize>, from: usize, visit: &mut impl FnMut(&[usize])) {
        if from == order.len() {
            return visit(order);
        }
        for i in from..order.len() {
            order.swap(from, i);
            every(order, from + 1, visit);
            order.swap(from, i);
        }
    }
}
