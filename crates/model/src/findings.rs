//! What is wrong in the paper, each time with its number and ours.

use core::time::Duration;

use serde::Serialize;

use crate::burst::calm_through_mix;
use crate::case::{Case, Wrong};
use crate::figures::{Runs, throughput};
use crate::permutation::Exact;
use crate::{formulas, permutation, window};

/// Trials for the share of calm windows; their standard error is below 0.002.
const TRIALS: u32 = 100_000;
/// A hold that next to no delay of a mix of 5 ms exceeds: one in 10^6.
const HOLD: Duration = Duration::from_millis(70);

/// One thing that the paper says, and what is so.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Finding {
    /// What the statement is about.
    pub about: &'static str,
    /// What the paper says.
    pub paper: String,
    /// What we computed or ran.
    pub ours: String,
    /// Why they differ, in one plain sentence.
    pub why: &'static str,
}

/// All findings; those that need runs use `runs`.
///
/// # Errors
/// Those of [`crate::figure`].
pub fn findings(runs: &Runs) -> Result<Vec<Finding>, Wrong> {
    Ok(vec![
        sum_of_ten(),
        lemma_one(),
        equation_58(),
        throughput_rises(),
        any_law(runs)?,
        resequencing(runs)?,
        throughput_of_one_mix(),
    ])
}

fn sum_of_ten() -> Finding {
    Finding {
        about: "E(W) at dupthresh 3, Theorem 1",
        paper: "8.27".into(),
        ours: format!("{:.2}", window::mean_window(3).value),
        why: "8.27 is not the value of the paper's own formula (10); its terms sum to ours.",
    }
}

fn lemma_one() -> Finding {
    let list = |chances: Vec<f64>| {
        let words: Vec<String> = chances.iter().map(|c| format!("{c:.3}")).collect();
        words.join(" ")
    };
    let exact = permutation::mean_window(3).value;
    let counted = list(Exact::new(3).skip(3).take(5).collect());
    Finding {
        about: "chance of no retransmit in a window of 4 to 8, (8)",
        paper: list((4..=8).map(window::calm_at_three).collect()),
        ours: format!("{counted}, and so E(W) {exact:.2}"),
        why: "A packet that comes late does no harm while an earlier one is awaited; Lemma 1 asks \
              more of the order than is needed, and Lemma 2 takes it as the only way.",
    }
}

fn equation_58() -> Finding {
    let (n, d) = (6, 3);
    Finding {
        about: "g(6, 4), (58)",
        paper: format!("{:.3}", window::g_next_as_printed(n, d)),
        ours: format!("{:.3}", window::g_next(n, d)),
        why: "The base under the power must be D + 1 and not D; E(W) rises with D all the same.",
    }
}

fn throughput_rises() -> Finding {
    let case = Case { dupthresh: 192, ..Case::paper() };
    let w = permutation::mean_window(case.dupthresh).value;
    let unbounded = formulas::mean_throughput_pps(w, &case);
    let line = case.line_pps();
    Finding {
        about: "throughput rises with dupthresh, Theorem 3",
        paper: "it follows from the window".into(),
        ours: format!("it doesn't: at 192 (14) allows {unbounded:.0}/s, the line {line:.0}/s"),
        why: "The formula is an upper bound, and a bound that rises lifts nothing by itself.",
    }
}

fn any_law(runs: &Runs) -> Result<Finding, Wrong> {
    let n = 8;
    let through = calm_through_mix(&Case::paper(), n, TRIALS, runs.seed)?;
    let uniform = Exact::new(3).nth(n as usize - 1).expect("the chances have no end");
    Ok(Finding {
        about: "a window of 8 at 10 Mbit/s through a stop-and-go mix of 5 ms: no retransmit",
        paper: format!("{:.3}, as of any random order", window::calm_at_three(n)),
        ours: format!("{through:.3}; a uniform order {uniform:.3}"),
        why: "The line spaces packets, and early ones tend to leave first: no uniform order.",
    })
}

fn resequencing(runs: &Runs) -> Result<Finding, Wrong> {
    let without = throughput(&Case::paper(), runs)?;
    let with = throughput(&Case { hold: Some(HOLD), ..Case::paper() }, runs)?;
    Ok(Finding {
        about: "a buffer that restores order in front of TCP",
        paper: "redundant".into(),
        ours: format!("{without:.0} packets/s without it, {with:.0} with a hold of 70 ms"),
        why: "TCP's own buffer sends a duplicate acknowledgement for each packet that it keeps; a \
              buffer in front of TCP sends none.",
    })
}

fn throughput_of_one_mix() -> Finding {
    let case = Case::paper();
    let rtt_ms = formulas::round_trip_for(8.27, 31.23) * 1e3;
    let ours = formulas::mean_throughput_pps(8.27, &case);
    let trip_ms = case.round_trip().mean_s * 1e3;
    Finding {
        about: "throughput through one mix",
        paper: "31.23 packets/s seen, below what (3) allows".into(),
        ours: format!("8.27 and {trip_ms:.0} ms give {ours:.0}; 31.23 needs {rtt_ms:.0} ms"),
        why: "The paper doesn't state its round trip; none that fits Figures 5 and 6 gives 31.23.",
    }
}
