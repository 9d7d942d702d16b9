//! Errors of the paper, each with the paper's number and ours.

use core::time::Duration;

use serde::Serialize;

use crate::burst::calm_through_mix;
use crate::case::{ModelError, TcpExperiment};
use crate::figures::{RunParameters, throughput};
use crate::permutation::CalmProbabilities;
use crate::{formulas, permutation, window};

/// Number of trials for the share of calm windows. The standard error is below 0.002.
const TRIALS: u32 = 100_000;
/// A hold that only one of 10^6 delays of a 5 ms mix exceeds.
const HOLD: Duration = Duration::from_millis(70);

/// A statement of the paper, and our result.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PaperError {
    /// Subject of the statement.
    pub about: &'static str,
    /// The paper's statement.
    pub paper: String,
    /// Our computed or simulated result.
    pub ours: String,
    /// Reason for the difference, in one sentence.
    pub why: &'static str,
}

/// All findings. Those that need simulations use `runs`.
///
/// # Errors
/// Those of [`crate::figure`].
pub fn findings(runs: &RunParameters) -> Result<Vec<PaperError>, ModelError> {
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

fn sum_of_ten() -> PaperError {
    PaperError {
        about: "E(W) at dupthresh 3, Theorem 1",
        paper: "8.27".into(),
        ours: format!("{:.2}", window::mean_window(3).value),
        why: "8.27 is not the value of the paper's own formula (10); its terms sum to ours.",
    }
}

fn lemma_one() -> PaperError {
    let list = |chances: Vec<f64>| {
        let words: Vec<String> = chances.iter().map(|c| format!("{c:.3}")).collect();
        words.join(" ")
    };
    let exact = permutation::mean_window(3).value;
    let counted = list(CalmProbabilities::new(3).skip(3).take(5).collect());
    PaperError {
        about: "chance of no retransmit in a window of 4 to 8, (8)",
        paper: list((4..=8).map(window::calm_at_three).collect()),
        ours: format!("{counted}, and so E(W) {exact:.2}"),
        why: "A late packet does no harm while the receiver waits for an earlier one; Lemma 1 \
              demands more than necessary, and Lemma 2 takes this as the only possibility.",
    }
}

fn equation_58() -> PaperError {
    let (n, d) = (6, 3);
    PaperError {
        about: "g(6, 4), (58)",
        paper: format!("{:.3}", window::g_next_as_printed(n, d)),
        ours: format!("{:.3}", window::g_next(n, d)),
        why: "The base of the power must be D + 1, not D; E(W) rises with D nevertheless.",
    }
}

fn throughput_rises() -> PaperError {
    let case = TcpExperiment { dupthresh: 192, ..TcpExperiment::paper() };
    let w = permutation::mean_window(case.dupthresh).value;
    let unbounded = formulas::mean_throughput_pps(w, &case);
    let line = case.line_pps();
    PaperError {
        about: "throughput rises with dupthresh, Theorem 3",
        paper: "throughput follows from the window".into(),
        ours: format!("not so: at 192, (14) allows {unbounded:.0}/s, the line {line:.0}/s"),
        why: "The formula is an upper bound; a higher bound does not imply higher throughput.",
    }
}

fn any_law(runs: &RunParameters) -> Result<PaperError, ModelError> {
    let n = 8;
    let through = calm_through_mix(&TcpExperiment::paper(), n, TRIALS, runs.seed)?;
    let uniform = CalmProbabilities::new(3).nth(n as usize - 1).expect("the chances have no end");
    Ok(PaperError {
        about: "a window of 8 at 10 Mbit/s through a stop-and-go mix of 5 ms: no retransmit",
        paper: format!("{:.3}, as for any random order", window::calm_at_three(n)),
        ours: format!("{through:.3}; a uniform order {uniform:.3}"),
        why: "The line spaces packets, so early ones tend to leave first: the order isn't uniform.",
    })
}

fn resequencing(runs: &RunParameters) -> Result<PaperError, ModelError> {
    let without = throughput(&TcpExperiment::paper(), runs)?;
    let with = throughput(&TcpExperiment { hold: Some(HOLD), ..TcpExperiment::paper() }, runs)?;
    Ok(PaperError {
        about: "a buffer that restores order in front of TCP",
        paper: "redundant".into(),
        ours: format!("{without:.0} packets/s without it, {with:.0} with a hold of 70 ms"),
        why: "TCP's own buffer sends a duplicate acknowledgement for each packet that it holds; a \
              buffer in front of TCP sends none.",
    })
}

fn throughput_of_one_mix() -> PaperError {
    let case = TcpExperiment::paper();
    let rtt_ms = formulas::round_trip_for(8.27, 31.23) * 1e3;
    let ours = formulas::mean_throughput_pps(8.27, &case);
    let trip_ms = case.round_trip().mean_s * 1e3;
    PaperError {
        about: "throughput through one mix",
        paper: "31.23 packets/s seen, below what (3) allows".into(),
        ours: format!("8.27 and {trip_ms:.0} ms give {ours:.0}; 31.23 needs {rtt_ms:.0} ms"),
        why: "The paper doesn't state its round trip; none that fits Figures 5 and 6 gives 31.23.",
    }
}
