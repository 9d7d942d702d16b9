//! Attacks: each says how much two traces look like the two ends of one flow.
//!
//! ```text
//! likelihood   how probable what left is, given what entered and the law of delays
//! windows      Pearson, Spearman, cosine of counts in windows, at the best lag
//! shapes       cumulative counts; starts and stops; mutual information
//! spectrum     how probable it is in frequency: the phase of each is known
//! detect       the marks of an active attacker
//! ```
//!
//! All compare two directions: what callers send with what the called get, and back. A score has no
//! unit; only comparisons count.

mod detect;
mod likelihood;
mod shapes;
mod spectrum;
mod windows;

use core::fmt;

use crate::delay::Density;
use crate::mark::Code;
use crate::matrix::Matrix;
use crate::network::{Access, Network};
use crate::trace::{Span, Trace};

pub use likelihood::likelihood;
pub use shapes::{cumulative, information, onsets};
pub use spectrum::spectra;
pub(crate) use windows::product;
pub use windows::{Measure, correlation, ranks};

/// Steps of counts; all windows are whole numbers of them.
pub const COUNT_NS: u64 = 20_000_000;
/// Windows of counts, in milliseconds.
pub const WINDOWS_MS: [u64; 4] = [20, 100, 500, 1_000];

/// A way to compare two traces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attack {
    /// Matched filter: the logarithm of the likelihood under the known law of delays, against that
    /// of an even stream.
    Likelihood,
    /// Matched filter in frequency: the spectrum of what left, given that of what entered and the
    /// law of delays.
    Spectrum,
    /// Correlation of counts in windows of so many milliseconds, at the best lag.
    Windows(Measure, u64),
    /// How far the numbers of frames so far are apart.
    Cumulative,
    /// How many pauses begin and end together.
    Onsets,
    /// Mutual information of binned counts.
    Information,
    /// The attacker's own mark.
    Mark,
    /// All of these together, weighed by what other networks taught.
    Fusion,
}

impl Attack {
    /// Attacks that change nothing on the wire, without their fusion.
    pub fn passive() -> Vec<Attack> {
        let windows = |w| Measure::ALL.map(|measure| Attack::Windows(measure, w));
        let mut all: Vec<Attack> = WINDOWS_MS.into_iter().flat_map(windows).collect();
        all.extend([Attack::Cumulative, Attack::Onsets, Attack::Information]);
        all.splice(0..0, [Attack::Likelihood, Attack::Spectrum]);
        all
    }
}

impl fmt::Display for Attack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Attack::Likelihood => f.write_str("matched filter"),
            Attack::Spectrum => f.write_str("matched filter in frequency"),
            Attack::Windows(measure, ms) => write!(f, "{measure} over {ms} ms"),
            Attack::Cumulative => f.write_str("cumulative counts"),
            Attack::Onsets => f.write_str("starts and stops"),
            Attack::Information => f.write_str("mutual information"),
            Attack::Mark => f.write_str("mark"),
            Attack::Fusion => f.write_str("fusion"),
        }
    }
}

/// What an attacker knows of a network beforehand.
#[derive(Clone, Debug, PartialEq)]
pub struct Known {
    /// The law of delays from end to end.
    pub delay: Density,
    /// How many of the frames on a link belong to the flow that is looked for, 0 to 1.
    pub share: f64,
}

/// Whose eyes the attacker has at the far end. At the near end it always reads the wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum View {
    /// A wire: cells and dummies look alike.
    #[default]
    Wire,
    /// The far host's router: it knows which frames are cells.
    Router,
    /// The lines between routers over which cells come to the far host's router.
    Lines,
    /// No wire: members who ask hosts for answers, while each peer has turns of its own on a
    /// covered link.
    Members,
    /// Members who ask hosts while all peers wait in one line: a planted fault.
    MembersInLine,
}

impl View {
    fn callers(self, network: &Network) -> &[Access] {
        if self == View::Router { &network.callers_cells } else { &network.callers }
    }

    fn called(self, network: &Network) -> &[Access] {
        match self {
            View::Router => &network.called_cells,
            View::Lines => &network.called_lines,
            View::Wire | View::Members | View::MembersInLine => &network.called,
        }
    }
}

/// A network while it is attacked: what is counted once for all attacks.
pub struct Scorer<'a> {
    forth: Way<'a>,
    back: Way<'a>,
    known: &'a Known,
    span: Span,
}

impl<'a> Scorer<'a> {
    /// Counts what passes in a span.
    pub fn new(network: &'a Network, view: View, known: &'a Known, span: Span) -> Scorer<'a> {
        let way = |near: &'a [Access], far: &'a [Access], codes: &'a [Code]| {
            let ingress: Vec<&Trace> = near.iter().map(|link| &link.up).collect();
            let egress: Vec<&Trace> = far.iter().map(|link| &link.down).collect();
            let counted = |traces: &[&Trace]| -> Vec<Vec<f32>> {
                traces.iter().map(|trace| trace.binned(span, COUNT_NS)).collect()
            };
            Way { entered: counted(&ingress), left: counted(&egress), ingress, egress, codes }
        };
        Scorer {
            forth: way(&network.callers, view.called(network), &network.codes[0]),
            back: way(&network.called, view.callers(network), &network.codes[1]),
            known,
            span,
        }
    }

    /// The scores of all pairs under one attack; rows are callers, columns the called. Fusion is
    /// made of the other attacks and scores nothing by itself.
    pub fn scores(&self, attack: Attack) -> Matrix {
        let [forth, back] =
            [&self.forth, &self.back].map(|way| way.scores(attack, self.known, self.span));
        forth.plus_transposed(&back).standardised()
    }
}

/// One direction of all flows.
struct Way<'a> {
    ingress: Vec<&'a Trace>,
    egress: Vec<&'a Trace>,
    codes: &'a [Code],
    /// Cells in steps of [`COUNT_NS`].
    entered: Vec<Vec<f32>>,
    left: Vec<Vec<f32>>,
}

impl Way<'_> {
    fn scores(&self, attack: Attack, known: &Known, span: Span) -> Matrix {
        let (entered, left, delay) = (&self.entered, &self.left, &known.delay);
        match attack {
            Attack::Likelihood => likelihood(&self.ingress, &self.egress, known, span),
            Attack::Spectrum => spectra(entered, left, delay),
            Attack::Windows(measure, ms) => {
                correlation(measure, entered, left, ms * 1_000_000, delay.mean_ns)
            }
            Attack::Cumulative => cumulative(entered, left, delay.mean_ns),
            Attack::Onsets => onsets(&self.ingress, &self.egress, delay, span),
            Attack::Information => information(entered, left, delay.mean_ns),
            Attack::Mark => detect::marks(self.codes, &self.egress, delay, span),
            Attack::Fusion => Matrix::new(entered.len(), |_, _| 0.0),
        }
    }
}
