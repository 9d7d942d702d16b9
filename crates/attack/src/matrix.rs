//! Scores of all pairs of links.

/// Similarity of each link with the other end of each link: row by column.
#[derive(Clone, Debug, PartialEq)]
pub struct Matrix {
    n: usize,
    values: Vec<f64>,
}

impl Matrix {
    pub fn new(n: usize, mut score: impl FnMut(usize, usize) -> f64) -> Matrix {
        let values = (0..n * n).map(|at| score(at / n, at % n)).collect();
        Matrix { n, values }
    }

    /// Number of rows.
    pub fn len(&self) -> usize {
        self.n
    }

    /// True if the matrix has no rows.
    pub fn is_empty(&self) -> bool {
        self.n == 0
    }

    pub fn at(&self, row: usize, column: usize) -> f64 {
        self.values[row * self.n + column]
    }

    pub fn row(&self, row: usize) -> &[f64] {
        &self.values[row * self.n..][..self.n]
    }

    /// Sum of this matrix and the transpose of another.
    pub fn plus_transposed(&self, other: &Matrix) -> Matrix {
        Matrix::new(self.n, |row, column| self.at(row, column) + other.at(column, row))
    }

    /// Each score relative to its row and column: without their means, and in units of their
    /// spread. An attacker that watches all links knows these.
    pub fn standardised(&self) -> Matrix {
        let n = self.n;
        let mean = |of: &dyn Fn(usize) -> f64| (0..n).map(of).sum::<f64>() / n as f64;
        let rows: Vec<f64> = (0..n).map(|r| mean(&|c| self.at(r, c))).collect();
        let columns: Vec<f64> = (0..n).map(|c| mean(&|r| self.at(r, c))).collect();
        let all = mean(&|r| rows[r]);
        let centred = Matrix::new(n, |r, c| self.at(r, c) - rows[r] - columns[c] + all);
        let spread = |of: &dyn Fn(usize) -> f64| mean(&|i| of(i) * of(i)).sqrt();
        let rows: Vec<f64> = (0..n).map(|r| spread(&|c| centred.at(r, c))).collect();
        let columns: Vec<f64> = (0..n).map(|c| spread(&|r| centred.at(r, c))).collect();
        // A spread from rounding alone counts as none.
        let scale = |r: usize, c: usize| (rows[r] * columns[c]).sqrt();
        let least = 1e-9 * (1.0 + all.abs());
        let score = |r, c| if scale(r, c) > least { centred.at(r, c) / scale(r, c) } else { 0.0 };
        Matrix::new(n, score)
    }

    /// Distance of each score from its best rivals: the highest other ones of its row and of its
    /// column. Each link has one other end, so a rival that fits well speaks against a pair.
    pub fn against_rivals(&self) -> Matrix {
        let rows = (0..self.n).map(|row| TopTwo::of(self.row(row).iter().copied()));
        let rows: Vec<TopTwo> = rows.collect();
        let column = |column: usize| TopTwo::of((0..self.n).map(|row| self.at(row, column)));
        let columns: Vec<TopTwo> = (0..self.n).map(column).collect();
        Matrix::new(self.n, |row, column| {
            let rivals = rows[row].without(column) + columns[column].without(row);
            2.0 * self.at(row, column) - rivals
        })
    }
}

/// The two highest scores of a row or column.
#[derive(Clone, Copy)]
struct TopTwo {
    at: usize,
    first: f64,
    second: f64,
}

impl TopTwo {
    fn of(scores: impl Iterator<Item = f64>) -> TopTwo {
        let none = TopTwo { at: 0, first: f64::MIN, second: f64::MIN };
        scores.enumerate().fold(none, |highest, (at, score)| {
            if score > highest.first {
                TopTwo { at, first: score, second: highest.first }
            } else {
                TopTwo { second: highest.second.max(score), ..highest }
            }
        })
    }

    fn without(self, at: usize) -> f64 {
        if at == self.at { self.second } else { self.first }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn standardised_scores_have_no_effects_of_rows_and_columns() {
        let effects = Matrix::new(4, |r, c| 3.0 * r as f64 - c as f64);
        assert_eq!(effects.standardised(), Matrix::new(4, |_, _| 0.0));
        let pairs = Matrix::new(4, |r, c| r as f64 + if r == c { 10.0 } else { 0.0 });
        let found = pairs.standardised();
        for row in 0..4 {
            assert!((0..4).all(|c| c == row || found.at(row, c) < found.at(row, row)));
            assert!((found.at(row, row) - found.at(0, 0)).abs() < 1e-12);
        }
    }

    #[test]
    fn rivals_stand_in_the_same_row_or_column() {
        let scores = [[5.0, 4.0, 1.0], [2.0, 3.0, 3.0], [0.0, 6.0, 2.0]];
        let found = Matrix::new(3, |r, c| scores[r][c]).against_rivals();
        assert_eq!(found.row(0), [10.0 - 4.0 - 2.0, 8.0 - 5.0 - 6.0, 2.0 - 5.0 - 3.0]);
        assert_eq!(found.row(1), [4.0 - 3.0 - 5.0, 6.0 - 3.0 - 6.0, 6.0 - 3.0 - 2.0]);
    }
}
