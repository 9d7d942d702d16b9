//! Attacks: each scores how much two traces look like the two ends of one flow.
//!
//! ```text
//! likelihood   probability of the egress, given the ingress and the distribution of delays
//! windows      Pearson, Spearman, cosine of counts in windows, at the best lag
//! shapes       cumulative counts; starts and stops; mutual information
//! spectrum     likelihood in frequency, with known phases
//! detect       the marks of an active attacker
//! ```
//!
//! All compare two directions: traffic from callers to the called, and back. A score has no unit;
//! only comparisons count.

mod detect;
mod likelihood;
mod shapes;
mod spectrum;
mod windows;

use core::fmt;

use crate::delay::DelayDensity;
use crate::mark::MarkCode;
use crate::matrix::Matrix;
use crate::network::{AccessTraces, ObservedNetwork};
use crate::trace::{LineTrace, Span};

pub use likelihood::likelihood;
pub use shapes::{cumulative, information, onsets};
pub use spectrum::spectra;
pub(crate) use windows::product;
pub use windows::{Measure, correlation, ranks};

/// Length of the steps in which cells are counted; all windows are whole multiples.
pub const COUNT_NS: u64 = 20_000_000;
/// Windows of counts, in milliseconds.
pub const WINDOWS_MS: [u64; 4] = [20, 100, 500, 1_000];

/// Method of comparing two traces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttackMethod {
    /// Matched filter: log likelihood under the known distribution of delays, less that of an even
    /// stream.
    Likelihood,
    /// Matched filter in frequency: the spectrum of the egress, given that of the ingress and the
    /// distribution of delays.
    Spectrum,
    /// Correlation of counts in windows of so many milliseconds, at the best lag.
    Windows(Measure, u64),
    /// Distance between cumulative numbers of frames.
    Cumulative,
    /// Number of pauses that begin and end together.
    Onsets,
    /// Mutual information of binned counts.
    Information,
    /// The attacker's own mark.
    Mark,
    /// All of these together, weighted by training on other networks.
    Fusion,
}

impl AttackMethod {
    /// Attacks that change nothing on the wire, without their fusion.
    pub fn passive() -> Vec<AttackMethod> {
        let windows = |w| Measure::ALL.map(|measure| AttackMethod::Windows(measure, w));
        let mut all: Vec<AttackMethod> = WINDOWS_MS.into_iter().flat_map(windows).collect();
        all.extend([AttackMethod::Cumulative, AttackMethod::Onsets, AttackMethod::Information]);
        all.splice(0..0, [AttackMethod::Likelihood, AttackMethod::Spectrum]);
        all
    }
}

impl fmt::Display for AttackMethod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AttackMethod::Likelihood => f.write_str("matched filter"),
            AttackMethod::Spectrum => f.write_str("matched filter in frequency"),
            AttackMethod::Windows(measure, ms) => write!(f, "{measure} over {ms} ms"),
            AttackMethod::Cumulative => f.write_str("cumulative counts"),
            AttackMethod::Onsets => f.write_str("starts and stops"),
            AttackMethod::Information => f.write_str("mutual information"),
            AttackMethod::Mark => f.write_str("mark"),
            AttackMethod::Fusion => f.write_str("fusion"),
        }
    }
}

/// Prior knowledge of an attacker about a network.
#[derive(Clone, Debug, PartialEq)]
pub struct PriorKnowledge {
    /// Distribution of delays from end to end.
    pub delay: DelayDensity,
    /// Share of a link's frames that belong to the flow, 0 to 1.
    pub share: f64,
}

/// Vantage point of the attacker at the far end. At the near end it always observes the wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum VantagePoint {
    /// A wire: cells and dummies look alike.
    #[default]
    Wire,
    /// The far host's router, which knows which frames are cells.
    Router,
    /// The lines between routers that lead to the far host's router.
    Lines,
    /// No wire: members that send questions to hosts. Each peer has its own turns on a covered
    /// link.
    Members,
    /// Members that send questions while all peers share one queue: a planted fault.
    MembersInLine,
}

impl VantagePoint {
    fn callers(self, network: &ObservedNetwork) -> &[AccessTraces] {
        if self == VantagePoint::Router { &network.callers_cells } else { &network.callers }
    }

    fn called(self, network: &ObservedNetwork) -> &[AccessTraces] {
        match self {
            VantagePoint::Router => &network.called_cells,
            VantagePoint::Lines => &network.called_lines,
            VantagePoint::Wire | VantagePoint::Members | VantagePoint::MembersInLine => {
                &network.called
            }
        }
    }
}

/// A network under attack, with the counts that all attacks share.
pub struct Scorer<'a> {
    forth: FlowTraces<'a>,
    back: FlowTraces<'a>,
    known: &'a PriorKnowledge,
    span: Span,
}

impl<'a> Scorer<'a> {
    /// Counts the frames of a span.
    pub fn new(
        network: &'a ObservedNetwork,
        view: VantagePoint,
        known: &'a PriorKnowledge,
        span: Span,
    ) -> Scorer<'a> {
        let way = |near: &'a [AccessTraces], far: &'a [AccessTraces], codes: &'a [MarkCode]| {
            let ingress: Vec<&LineTrace> = near.iter().map(|link| &link.up).collect();
            let egress: Vec<&LineTrace> = far.iter().map(|link| &link.down).collect();
            let counted = |traces: &[&LineTrace]| -> Vec<Vec<f32>> {
                traces.iter().map(|trace| trace.binned(span, COUNT_NS)).collect()
            };
            FlowTraces {
                entered: counted(&ingress),
                left: counted(&egress),
                ingress,
                egress,
                codes,
            }
        };
        Scorer {
            forth: way(&network.callers, view.called(network), &network.codes[0]),
            back: way(&network.called, view.callers(network), &network.codes[1]),
            known,
            span,
        }
    }

    /// Scores of all pairs under one attack; rows are callers, columns the called. Fusion combines
    /// the other attacks and scores nothing by itself.
    pub fn scores(&self, attack: AttackMethod) -> Matrix {
        let [forth, back] =
            [&self.forth, &self.back].map(|way| way.scores(attack, self.known, self.span));
        forth.plus_transposed(&back).standardised()
    }
}

/// One direction of all flows.
struct FlowTraces<'a> {
    ingress: Vec<&'a LineTrace>,
    egress: Vec<&'a LineTrace>,
    codes: &'a [MarkCode],
    /// Counts of cells in steps of [`COUNT_NS`].
    entered: Vec<Vec<f32>>,
    left: Vec<Vec<f32>>,
}

impl FlowTraces<'_> {
    fn scores(&self, attack: AttackMethod, known: &PriorKnowledge, span: Span) -> Matrix {
        let (entered, left, delay) = (&self.entered, &self.left, &known.delay);
        match attack {
            AttackMethod::Likelihood => likelihood(&self.ingress, &self.egress, known, span),
            AttackMethod::Spectrum => spectra(entered, left, delay),
            AttackMethod::Windows(measure, ms) => {
                correlation(measure, entered, left, ms * 1_000_000, delay.mean_ns)
            }
            AttackMethod::Cumulative => cumulative(entered, left, delay.mean_ns),
            AttackMethod::Onsets => onsets(&self.ingress, &self.egress, delay, span),
            AttackMethod::Information => information(entered, left, delay.mean_ns),
            AttackMethod::Mark => detect::marks(self.codes, &self.egress, delay, span),
            AttackMethod::Fusion => Matrix::new(entered.len(), |_, _| 0.0),
        }
    }
}
