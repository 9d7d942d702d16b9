//! A censor, which classifies datagrams by the program that sent them.
//!
//! ```text
//! Conversation   datagrams between two addresses, from a capture
//! features       numbers about some datagrams in a row: lengths, bytes, times, directions, headers
//! forest         a classifier of such numbers
//! recognise      how often it is right about captures that it did not learn from
//! ```
//!
//! Addresses and port numbers are no features: they say nothing about a program on another network.

mod features;
mod forest;

use core::fmt;

use serde::Serialize;

use crate::capture::{self, PcapError};
use crate::random::Draws;
pub use features::{FeatureGroup, NAMES};
use forest::{Forest, LabelledExcerpt};

/// Default number of datagrams in an excerpt.
pub const DATAGRAMS: usize = 32;
/// Fewest datagrams of an excerpt: fewer say nothing about times.
const DATAGRAMS_MIN: usize = 3;
/// Maximum number of excerpts of a capture.
const EXCERPTS: usize = 4;
/// Folds of the cross-validation: each is judged by a forest that learnt from the others.
const FOLDS: usize = 5;
/// Maximum number of captures.
pub const CAPTURES_MAX: usize = 10_000;
/// Maximum number of programs.
const PROGRAMS_MAX: usize = 50;
/// Quantile of the normal distribution that bounds its middle 95%.
const Z: f64 = 1.96;

/// A datagram, as a censor sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct ObservedDatagram {
    at_ns: u64,
    /// True if it comes from the end that sent first.
    up: bool,
    len: usize,
    /// First bytes of the payload.
    head: Vec<u8>,
    ecn: u8,
    whole: bool,
    id: u16,
    ports: (u16, u16),
}

/// The datagrams between two addresses.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Conversation(Vec<ObservedDatagram>);

impl Conversation {
    /// The longest conversation of a pcap file.
    ///
    /// # Errors
    /// [`PcapError`].
    pub fn read(file: &[u8]) -> Result<Conversation, PcapError> {
        let all = capture::datagrams(file)?;
        let pair = |d: &capture::RecordedDatagram<'_>| (d.from.0.min(d.to.0), d.from.0.max(d.to.0));
        let mut pairs: Vec<_> = all.iter().map(pair).collect();
        pairs.sort_unstable();
        let longest = pairs.chunk_by(|a, b| a == b).max_by_key(|same| same.len());
        let Some(&longest) = longest.and_then(<[_]>::first) else {
            return Ok(Conversation(Vec::new()));
        };
        let mut own: Vec<_> = all.iter().filter(|d| pair(d) == longest).collect();
        own.sort_by_key(|d| d.at_ns);
        let first = own[0].from.0;
        let seen = |d: &&capture::RecordedDatagram<'_>| {
            let up = d.from.0 == first;
            ObservedDatagram {
                at_ns: d.at_ns,
                up,
                len: d.len,
                head: d.payload[..d.payload.len().min(features::HEAD)].to_vec(),
                ecn: d.ecn,
                whole: d.whole,
                id: d.id,
                ports: if up { (d.from.1, d.to.1) } else { (d.to.1, d.from.1) },
            }
        };
        Ok(Conversation(own.iter().map(seen).collect()))
    }

    /// Number of datagrams.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// True if there are no datagrams.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Features of excerpts of `datagrams` datagrams each, the first one from the beginning. A
    /// shorter conversation gives one excerpt, or none if it has hardly any datagrams.
    pub fn excerpts(&self, datagrams: usize) -> Vec<Vec<f64>> {
        let len = datagrams.min(self.0.len());
        if len < DATAGRAMS_MIN {
            return Vec::new();
        }
        let count = (self.0.len() / len).clamp(1, EXCERPTS);
        let step = (self.0.len() - len) / (count - 1).max(1);
        (0..count).map(|i| features::of(&self.0[i * step..][..len])).collect()
    }
}

/// A capture of one program.
#[derive(Clone, Debug, PartialEq)]
pub struct ProgramCapture {
    pub program: String,
    /// Activity of the program.
    pub activity: String,
    /// Features of excerpts, as [`Conversation::excerpts`] makes them.
    pub excerpts: Vec<Vec<f64>>,
}

/// Reason why nothing can be learnt. Nothing was computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TrainingError {
    /// Only one program, or too many.
    #[error("expected captures of 2 to {PROGRAMS_MAX} programs")]
    Programs,
    /// Too few captures to judge each by a forest that did not learn from it, or too many in all.
    #[error("expected 2 captures of each program at least, and {CAPTURES_MAX} in all at most")]
    Captures,
    /// Features of another version.
    #[error("expected {} features of each excerpt", NAMES.len())]
    Features,
}

/// A share of the judged captures, with an interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct AccuracyShare {
    /// Share of excerpts.
    pub value: f64,
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end of the interval.
    pub high: f64,
}

impl AccuracyShare {
    /// Wilson's interval. Captures count, not their excerpts, which are much alike.
    fn new(value: f64, captures: usize) -> AccuracyShare {
        let n = captures.max(1) as f64;
        let middle = value + Z * Z / (2.0 * n);
        let half = Z * (value * (1.0 - value) / n + Z * Z / (4.0 * n * n)).max(0.0).sqrt();
        let scale = 1.0 + Z * Z / n;
        AccuracyShare {
            value,
            low: ((middle - half) / scale).max(0.0),
            high: ((middle + half) / scale).min(1.0),
        }
    }
}

impl fmt::Display for AccuracyShare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.3} ({:.3} to {:.3})", self.value, self.low, self.high)
    }
}

/// Results of the classification of programs.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ClassificationReport {
    /// Programs in the order of their names.
    pub programs: Vec<String>,
    /// Number of captures of each.
    pub captures: Vec<usize>,
    /// Excerpts of each program (row) that were classified as each program (column).
    pub confusion: Vec<Vec<usize>>,
    /// Share of excerpts classified as their own program: the mean over programs.
    pub accuracy: AccuracyShare,
    /// Accuracy of a guess.
    pub guess: f64,
    /// By program: share of its excerpts that were classified as it.
    pub found: Vec<AccuracyShare>,
    /// By program: share of other programs' excerpts that were classified as it.
    pub alarms: Vec<AccuracyShare>,
    /// By program and activity: share of these excerpts that were classified as the program.
    pub activities: Vec<(String, String, AccuracyShare)>,
    /// Negative control: accuracy with shuffled labels of captures.
    pub shuffled: f64,
    /// Contribution of each group of features.
    pub groups: Vec<FeatureGroupScore>,
    /// Contribution of each feature to the forest's splits, normalised to the sum 1; largest first.
    pub features: Vec<(String, f64)>,
}

/// Contribution of a group of features.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FeatureGroupScore {
    pub group: FeatureGroup,
    /// Accuracy with this group alone.
    pub alone: f64,
    /// Accuracy with all other groups.
    pub without: f64,
    /// By program: `found` with this group alone.
    pub found_alone: Vec<f64>,
    /// By program: `found` with all other groups.
    pub found_without: Vec<f64>,
}

/// Classifies each capture by a forest that learnt from other captures.
///
/// # Errors
/// [`TrainingError`].
pub fn recognise(samples: &[ProgramCapture]) -> Result<ClassificationReport, TrainingError> {
    let all: Vec<usize> = (0..NAMES.len()).collect();
    let study = CrossValidation::new(samples)?;
    let judged = study.judge(&all, &study.classes);
    let mut draws = Draws::new(0, "recognise", 0);
    let order = draws.permutation(samples.len());
    let strangers: Vec<usize> = order.iter().map(|at| study.classes[*at]).collect();
    let of = |group: FeatureGroup, within: bool| -> Vec<usize> {
        all.iter().copied().filter(|at| (NAMES[*at].0 == group) == within).collect()
    };
    let worth = |group: FeatureGroup| {
        let alone = study.judge(&of(group, true), &study.classes);
        let without = study.judge(&of(group, false), &study.classes);
        FeatureGroupScore {
            group,
            alone: alone.accuracy(),
            without: without.accuracy(),
            found_alone: study.each(|class, _| alone.found(class)),
            found_without: study.each(|class, _| without.found(class)),
        }
    };
    let mut features: Vec<(String, f64)> = NAMES
        .iter()
        .zip(&judged.gains)
        .map(|((_, name), gain)| ((*name).to_owned(), *gain))
        .collect();
    features.sort_by(|a, b| b.1.total_cmp(&a.1));
    Ok(ClassificationReport {
        captures: study.captures(),
        accuracy: AccuracyShare::new(judged.accuracy(), samples.len()),
        guess: 1.0 / study.programs.len() as f64,
        found: study.each(|class, own| AccuracyShare::new(judged.found(class), own)),
        alarms: study
            .each(|class, own| AccuracyShare::new(judged.alarms(class), samples.len() - own)),
        activities: study.activities(&judged),
        shuffled: study.judge(&all, &strangers).accuracy(),
        groups: FeatureGroup::ALL.into_iter().map(worth).collect(),
        features,
        confusion: judged.confusion,
        programs: study.programs,
    })
}

/// Captures with their programs.
struct CrossValidation<'a> {
    samples: &'a [ProgramCapture],
    programs: Vec<String>,
    /// Index of its program, by capture.
    classes: Vec<usize>,
    /// Fold in which it is judged, by capture.
    folds: Vec<usize>,
}

/// Results over excerpts.
struct Verdicts {
    confusion: Vec<Vec<usize>>,
    /// By capture: number of excerpts, and of those classified rightly.
    right: Vec<(usize, usize)>,
    /// Gain of each feature.
    gains: Vec<f64>,
}

impl<'a> CrossValidation<'a> {
    fn new(samples: &'a [ProgramCapture]) -> Result<CrossValidation<'a>, TrainingError> {
        let mut programs: Vec<String> = samples.iter().map(|s| s.program.clone()).collect();
        programs.sort_unstable();
        programs.dedup();
        if !(2..=PROGRAMS_MAX).contains(&programs.len()) {
            return Err(TrainingError::Programs);
        }
        let fits = |excerpt: &Vec<f64>| excerpt.len() == NAMES.len();
        if !samples.iter().flat_map(|sample| &sample.excerpts).all(fits) {
            return Err(TrainingError::Features);
        }
        let class = |s: &ProgramCapture| programs.partition_point(|program| *program < s.program);
        let classes: Vec<usize> = samples.iter().map(class).collect();
        let mut seen = vec![0; programs.len()];
        let fold = |class: &usize| {
            seen[*class] += 1;
            seen[*class] % FOLDS
        };
        let folds = classes.iter().map(fold).collect();
        if seen.iter().any(|captures| *captures < 2) || samples.len() > CAPTURES_MAX {
            return Err(TrainingError::Captures);
        }
        Ok(CrossValidation { samples, programs, classes, folds })
    }

    fn captures(&self) -> Vec<usize> {
        self.each(|_, own| own)
    }

    /// A value for each program, from its index and the number of its captures.
    fn each<T>(&self, of: impl Fn(usize, usize) -> T) -> Vec<T> {
        let own = |class: usize| self.classes.iter().filter(|c| **c == class).count();
        (0..self.programs.len()).map(|class| of(class, own(class))).collect()
    }

    /// Judges all captures by some of the features. `taught` has the label of each capture, for
    /// training and for the comparison.
    fn judge(&self, features: &[usize], taught: &[usize]) -> Verdicts {
        let classes = self.programs.len();
        let mut verdicts = Verdicts {
            confusion: vec![vec![0; classes]; classes],
            right: vec![(0, 0); self.samples.len()],
            gains: vec![0.0; NAMES.len()],
        };
        for fold in 0..FOLDS {
            let numbered = || self.samples.iter().enumerate();
            let example = |(capture, sample): (usize, &'a ProgramCapture)| {
                let of = move |values: &'a Vec<f64>| LabelledExcerpt {
                    class: taught[capture],
                    capture,
                    values,
                };
                sample.excerpts.iter().map(of)
            };
            let lessons: Vec<LabelledExcerpt<'_>> =
                numbered().filter(|(i, _)| self.folds[*i] != fold).flat_map(example).collect();
            let forest = Forest::grow(&lessons, classes, features, fold as u64);
            verdicts
                .gains
                .iter_mut()
                .zip(forest.gains())
                .for_each(|(sum, gain)| *sum += gain / FOLDS as f64);
            for (i, sample) in numbered().filter(|(i, _)| self.folds[*i] == fold) {
                for excerpt in &sample.excerpts {
                    let said = forest.class(excerpt);
                    verdicts.confusion[taught[i]][said] += 1;
                    verdicts.right[i].0 += 1;
                    verdicts.right[i].1 += usize::from(said == taught[i]);
                }
            }
        }
        verdicts
    }

    fn activities(&self, verdicts: &Verdicts) -> Vec<(String, String, AccuracyShare)> {
        let mut all: Vec<(&str, &str)> =
            self.samples.iter().map(|s| (s.program.as_str(), s.activity.as_str())).collect();
        all.sort_unstable();
        all.dedup();
        let share = |(program, activity): (&str, &str)| {
            let is = |s: &ProgramCapture| s.program == program && s.activity == activity;
            let own = self.samples.iter().zip(&verdicts.right).filter(|(s, _)| is(s));
            let own: Vec<(usize, usize)> = own.map(|(_, right)| *right).collect();
            let sums = own.iter().fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
            let value = sums.1 as f64 / sums.0.max(1) as f64;
            (program.to_owned(), activity.to_owned(), AccuracyShare::new(value, own.len()))
        };
        all.into_iter().map(share).collect()
    }
}

impl Verdicts {
    fn found(&self, class: usize) -> f64 {
        let row = &self.confusion[class];
        row[class] as f64 / row.iter().sum::<usize>().max(1) as f64
    }

    fn alarms(&self, class: usize) -> f64 {
        let others = || self.confusion.iter().enumerate().filter(|(row, _)| *row != class);
        let taken: usize = others().map(|(_, row)| row[class]).sum();
        taken as f64
            / others().map(|(_, row)| row.iter().sum::<usize>()).sum::<usize>().max(1) as f64
    }

    fn accuracy(&self) -> f64 {
        let classes = self.confusion.len();
        (0..classes).map(|class| self.found(class)).sum::<f64>() / classes.max(1) as f64
    }
}

#[cfg(test)]
mod tests;
