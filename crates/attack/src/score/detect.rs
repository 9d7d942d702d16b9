//! Search of an active attacker for its marks.

use crate::delay::DelayDensity;
use crate::mark::MarkCode;
use crate::matrix::Matrix;
use crate::score::windows::{Measure, product};
use crate::trace::{LineTrace, Span};

/// Bins of the search for a rate mark.
const BIN_NS: u64 = 50_000_000;

/// Similarity of each egress with the mark of each ingress.
pub(super) fn marks(
    codes: &[MarkCode],
    egress: &[&LineTrace],
    delay: &DelayDensity,
    span: Span,
) -> Matrix {
    let n = egress.len();
    let Some(first) = codes.first() else { return Matrix::new(n, |_, _| 0.0) };
    if first.delayed.is_empty() {
        rates(codes, egress, delay, span)
    } else {
        walks(codes, egress, span)
    }
}

/// Correlation of counts with the code as blurred by the mixes, at the best of three lags.
fn rates(codes: &[MarkCode], egress: &[&LineTrace], delay: &DelayDensity, span: Span) -> Matrix {
    let bins = (span.ns() / BIN_NS) as usize;
    let delay = delay.in_bins(BIN_NS);
    let expected: Vec<Vec<f32>> = codes
        .iter()
        .map(|code| {
            let template = code.template(span.from.0, bins, BIN_NS);
            Measure::Pearson.unit(&delay.spread(&template))
        })
        .collect();
    let seen: Vec<Vec<f32>> =
        egress.iter().map(|trace| Measure::Pearson.unit(&trace.binned(span, BIN_NS))).collect();
    Matrix::new(egress.len(), |row, column| {
        let (code, counts) = (&expected[row], &seen[column]);
        let late = product(code, counts.get(1..).unwrap_or_default());
        let early = product(code.get(1..).unwrap_or_default(), counts);
        f64::from(product(code, counts).max(late).max(early))
    })
}

/// Correlation of the distances between frames with those of the random walk, frame by frame
/// (RAINBOW, Houmansadr et al.).
fn walks(codes: &[MarkCode], egress: &[&LineTrace], span: Span) -> Matrix {
    let left: Vec<Vec<u64>> = egress.iter().map(|trace| trace.cells(span).collect()).collect();
    let within = |code: &MarkCode| -> Vec<(u64, u64)> {
        let seen = |&&(came, kept): &&(u64, u64)| (span.from.0..span.to.0).contains(&(came + kept));
        code.delayed.iter().filter(seen).copied().collect()
    };
    let entered: Vec<Vec<(u64, u64)>> = codes.iter().map(within).collect();
    Matrix::new(egress.len(), |row, column| {
        let (code, left) = (&entered[row], &left[column]);
        let steps = code.windows(2).zip(left.windows(2));
        let (mut sum, mut own, mut seen) = (0.0, 0.0, 0.0);
        for (code, left) in steps {
            let step = code[1].1 as f64 - code[0].1 as f64;
            let change = (left[1] - left[0]) as f64 - (code[1].0 - code[0].0) as f64;
            sum += step * change;
            own += step * step;
            seen += change * change;
        }
        if own * seen > 0.0 { sum / (own * seen).sqrt() } else { 0.0 }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cover::{FrameContent, LineFrame, trace};
    use crate::mark::MarkKind;
    use crate::random::Draws;
    use shoal_wire::SizeClass;

    #[test]
    fn each_mark_is_found_in_the_stream_that_bears_it() {
        let delay = DelayDensity::drawn(&[0], 1_000_000);
        for mark in MarkKind::ALL {
            let marked = |number: u64| {
                let mut draws = Draws::new(3, "detect", number);
                let mut code = MarkCode::new(mark, 20, &mut draws);
                let what = FrameContent::Dummy;
                let sent = |i: u64| LineFrame { at: i * 10_000_000, class: SizeClass::Full, what };
                let mut frames = (0..2_000).map(sent).collect();
                code.apply(mark, &mut frames, &mut draws);
                (code, trace(&frames))
            };
            let [(a, left_a), (b, left_b)] = [marked(0), marked(1)];
            let found = marks(&[a, b], &[&left_a, &left_b], &delay, Span::seconds(20));
            let right = found.at(0, 0).min(found.at(1, 1));
            let wrong = found.at(0, 1).max(found.at(1, 0));
            assert!(right > 0.5 && wrong < 0.35, "{mark:?} {found:?}");
            // No frame is lost and the order stays, so the walk is found exactly.
            assert!(mark != MarkKind::Rainbow || right > 0.999, "{found:?}");
        }
    }
}
