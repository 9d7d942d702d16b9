use super::*;

fn identity(n: usize) -> Vec<usize> {
    (0..n).collect()
}

#[test]
fn known_scores_have_known_rates() {
    // True pairs score 3, 1 and 2. Two wrong ones are above 1, and one is above 2.
    let scores = [[3.0, 0.0, 0.5], [1.5, 1.0, 0.0], [2.5, 0.0, 2.0]];
    let matrix = Matrix::new(3, |r, c| scores[r][c]);
    let rates = measure(&[(&matrix, identity(3))], 1.0, 1);
    assert_eq!((rates.pairs, rates.wrong), (3, 6));
    assert!((rates.auc.value - (6.0 + 4.0 + 5.0) / 18.0).abs() < 1e-12);
    assert!((rates.top1.value - 1.0 / 3.0).abs() < 1e-12);
    assert!((rates.guess - 1.0 / 3.0).abs() < 1e-12);
    assert_eq!(rates.assigned, 1.0);
    // Only the score 3 is above all wrong ones.
    assert!((rates.at_1_in_100.value - 1.0 / 3.0).abs() < 1e-12);
    assert_eq!(rates.curve.last(), Some(&(1.0, 1.0)));
    assert!((rates.curve[0].1 - 1.0 / 3.0).abs() < 1e-12);
}

#[test]
fn certainty_and_ignorance() {
    let sure = Matrix::new(40, |r, c| if r == c { 9.0 } else { 0.0 });
    let judged = [(&sure, identity(40))];
    assert_eq!(factor(&judged), 8.0);
    let rates = measure(&judged, 8.0, 1);
    assert_eq!((rates.auc.low, rates.top1.low, rates.at_1_in_1000.low), (1.0, 1.0, 1.0));
    assert!((rates.bits - 40.0_f64.log2()).abs() < 1e-6);
    let blank = Matrix::new(40, |_, _| 0.0);
    let judged = [(&blank, identity(40))];
    assert_eq!(measure(&judged, 1.0, 1).auc.value, 0.5);
    assert!((measure(&judged, 1.0, 1).top1.value - 0.025).abs() < 1e-12);
    assert!(measure(&judged, 1.0, 1).bits.abs() < 1e-9);
    assert_eq!(measure(&judged, 1.0, 1).at_1_in_100.value, 0.0);
}

#[test]
fn noise_is_guessed_and_intervals_hold_a_half() {
    let mut draws = Draws::new(5, "noise", 0);
    let mut held = 0;
    for _ in 0..40 {
        let all: Vec<Matrix> =
            (0..5).map(|_| Matrix::new(20, |_, _| draws.between(0.0, 1.0))).collect();
        let judged: Vec<LabelledScores> = all.iter().map(|m| (m, identity(20))).collect();
        let rates = measure(&judged, factor(&judged), 1);
        held += usize::from((rates.auc.low..=rates.auc.high).contains(&0.5));
        assert!(rates.auc.high - rates.auc.low < 0.25, "{:?}", rates.auc);
    }
    assert!(held >= 34, "{held} of 40");
}
