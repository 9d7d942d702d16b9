//! A censor's view: which program do these datagrams come from?
//!
//! ```text
//! Conversation   what passed between two addresses, from a capture
//! features       numbers about some datagrams in a row: lengths, bytes, times, directions, headers
//! forest         a classifier of such numbers
//! recognise      how often it is right about captures that it did not learn from
//! ```
//!
//! Addresses and numbers of ports are no features: they tell nothing about a program on another
//! network.

mod features;
mod forest;

use core::fmt;

use serde::Serialize;

use crate::capture::{self, Malformed};
use crate::random::Draws;
pub use features::{Group, NAMES};
use forest::{Example, Forest};

/// Datagrams of an excerpt, unless said otherwise.
pub const DATAGRAMS: usize = 32;
/// Fewer datagrams than this say nothing of times.
const DATAGRAMS_MIN: usize = 3;
/// Excerpts of a capture.
const EXCERPTS: usize = 4;
/// Captures are divided into so many parts; each is judged by what the others taught.
const FOLDS: usize = 5;
/// Most captures, and most programs.
pub const CAPTURES_MAX: usize = 10_000;
const PROGRAMS_MAX: usize = 50;
/// The quantile of a normal law that bounds its middle 95%.
const Z: f64 = 1.96;

/// A datagram, as a censor sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct Seen {
    at_ns: u64,
    /// From who spoke first.
    up: bool,
    len: usize,
    /// The first bytes of its payload.
    head: Vec<u8>,
    ecn: u8,
    whole: bool,
    id: u16,
    ports: (u16, u16),
}

/// The datagrams between two addresses.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Conversation(Vec<Seen>);

impl Conversation {
    /// The longest one of a pcap file.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn read(file: &[u8]) -> Result<Conversation, Malformed> {
        let all = capture::datagrams(file)?;
        let pair = |d: &capture::Datagram<'_>| (d.from.0.min(d.to.0), d.from.0.max(d.to.0));
        let mut pairs: Vec<_> = all.iter().map(pair).collect();
        pairs.sort_unstable();
        let longest = pairs.chunk_by(|a, b| a == b).max_by_key(|same| same.len());
        let Some(&longest) = longest.and_then(<[_]>::first) else {
            return Ok(Conversation(Vec::new()));
        };
        let mut own: Vec<_> = all.iter().filter(|d| pair(d) == longest).collect();
        own.sort_by_key(|d| d.at_ns);
        let first = own[0].from.0;
        let seen = |d: &&capture::Datagram<'_>| {
            let up = d.from.0 == first;
            Seen {
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

    /// How many datagrams it has.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Features of excerpts of so many datagrams, the first one from the beginning on; one excerpt
    /// where there are fewer, and none where there are hardly any.
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
pub struct Sample {
    /// The program.
    pub program: String,
    /// What it did.
    pub activity: String,
    /// Features of excerpts, as [`Conversation::excerpts`] makes them.
    pub excerpts: Vec<Vec<f64>>,
}

/// Why nothing can be learnt. Nothing was computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    /// One program alone, or too many.
    #[error("expected captures of 2 to {PROGRAMS_MAX} programs")]
    Programs,
    /// What is learnt from a capture says nothing about that capture.
    #[error("expected 2 captures of each program at least, and {CAPTURES_MAX} in all at most")]
    Captures,
    /// Features of another version.
    #[error("expected {} features of each excerpt", NAMES.len())]
    Features,
}

/// A share of captures that were judged, and an interval around it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Share {
    /// The share of excerpts.
    pub value: f64,
    /// Lower end of the interval.
    pub low: f64,
    /// Its upper end.
    pub high: f64,
}

impl Share {
    /// By Wilson's formula. Captures count, not their excerpts: these are much alike.
    fn new(value: f64, captures: usize) -> Share {
        let n = captures.max(1) as f64;
        let middle = value + Z * Z / (2.0 * n);
        let half = Z * (value * (1.0 - value) / n + Z * Z / (4.0 * n * n)).max(0.0).sqrt();
        let scale = 1.0 + Z * Z / n;
        Share {
            value,
            low: ((middle - half) / scale).max(0.0),
            high: ((middle + half) / scale).min(1.0),
        }
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.3} ({:.3} to {:.3})", self.value, self.low, self.high)
    }
}

/// How well programs are told apart.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Recognised {
    /// The programs, in the order of their names.
    pub programs: Vec<String>,
    /// Captures of each.
    pub captures: Vec<usize>,
    /// Excerpts of each program (row) that were taken for each (column).
    pub confusion: Vec<Vec<usize>>,
    /// Excerpts that were taken for their own program: the mean over programs.
    pub accuracy: Share,
    /// The same for who guesses.
    pub guess: f64,
    /// By program: the share of its excerpts that were taken for it.
    pub found: Vec<Share>,
    /// By program: the share of the excerpts of others that were taken for it.
    pub alarms: Vec<Share>,
    /// By program and activity: the share of these excerpts that were taken for the program.
    pub activities: Vec<(String, String, Share)>,
    /// Negative control: the accuracy when captures got the programs of others.
    pub shuffled: f64,
    /// What each group of features is worth.
    pub groups: Vec<Worth>,
    /// Each feature's part of what the forest told classes apart by, together 1; the largest first.
    pub features: Vec<(String, f64)>,
}

/// What a group of features is worth.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Worth {
    /// The group.
    pub group: Group,
    /// Accuracy with this group alone.
    pub alone: f64,
    /// Accuracy with all other groups.
    pub without: f64,
    /// By program: found with this group alone.
    pub found_alone: Vec<f64>,
    /// By program: found with all other groups.
    pub found_without: Vec<f64>,
}

/// Tells programs apart, each capture by what other captures taught.
///
/// # Errors
/// [`Unfit`].
pub fn recognise(samples: &[Sample]) -> Result<Recognised, Unfit> {
    let all: Vec<usize> = (0..NAMES.len()).collect();
    let study = Study::new(samples)?;
    let judged = study.judge(&all, &study.classes);
    let mut draws = Draws::new(0, "recognise", 0);
    let order = draws.permutation(samples.len());
    let strangers: Vec<usize> = order.iter().map(|at| study.classes[*at]).collect();
    let of = |group: Group, within: bool| -> Vec<usize> {
        all.iter().copied().filter(|at| (NAMES[*at].0 == group) == within).collect()
    };
    let worth = |group: Group| {
        let alone = study.judge(&of(group, true), &study.classes);
        let without = study.judge(&of(group, false), &study.classes);
        Worth {
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
    Ok(Recognised {
        captures: study.captures(),
        accuracy: Share::new(judged.accuracy(), samples.len()),
        guess: 1.0 / study.programs.len() as f64,
        found: study.each(|class, own| Share::new(judged.found(class), own)),
        alarms: study.each(|class, own| Share::new(judged.alarms(class), samples.len() - own)),
        activities: study.activities(&judged),
        shuffled: study.judge(&all, &strangers).accuracy(),
        groups: Group::ALL.into_iter().map(worth).collect(),
        features,
        confusion: judged.confusion,
        programs: study.programs,
    })
}

/// Captures, and what they are of.
struct Study<'a> {
    samples: &'a [Sample],
    programs: Vec<String>,
    /// By capture: the place of its program.
    classes: Vec<usize>,
    /// By capture: the part in which it is judged.
    folds: Vec<usize>,
}

/// What became of excerpts.
struct Verdicts {
    confusion: Vec<Vec<usize>>,
    /// By capture: its excerpts, and those that were taken for their program.
    right: Vec<(usize, usize)>,
    /// By feature.
    gains: Vec<f64>,
}

impl<'a> Study<'a> {
    fn new(samples: &'a [Sample]) -> Result<Study<'a>, Unfit> {
        let mut programs: Vec<String> = samples.iter().map(|s| s.program.clone()).collect();
        programs.sort_unstable();
        programs.dedup();
        if !(2..=PROGRAMS_MAX).contains(&programs.len()) {
            return Err(Unfit::Programs);
        }
        let fits = |excerpt: &Vec<f64>| excerpt.len() == NAMES.len();
        if !samples.iter().flat_map(|sample| &sample.excerpts).all(fits) {
            return Err(Unfit::Features);
        }
        let class = |s: &Sample| programs.partition_point(|program| *program < s.program);
        let classes: Vec<usize> = samples.iter().map(class).collect();
        let mut seen = vec![0; programs.len()];
        let fold = |class: &usize| {
            seen[*class] += 1;
            seen[*class] % FOLDS
        };
        let folds = classes.iter().map(fold).collect();
        if seen.iter().any(|captures| *captures < 2) || samples.len() > CAPTURES_MAX {
            return Err(Unfit::Captures);
        }
        Ok(Study { samples, programs, classes, folds })
    }

    fn captures(&self) -> Vec<usize> {
        self.each(|_, own| own)
    }

    /// A value of each program and the number of its captures.
    fn each<T>(&self, of: impl Fn(usize, usize) -> T) -> Vec<T> {
        let own = |class: usize| self.classes.iter().filter(|c| **c == class).count();
        (0..self.programs.len()).map(|class| of(class, own(class))).collect()
    }

    /// Judges all captures by some of the features. `taught` is what is said of each while it
    /// teaches, and what it is measured by.
    fn judge(&self, features: &[usize], taught: &[usize]) -> Verdicts {
        let classes = self.programs.len();
        let mut verdicts = Verdicts {
            confusion: vec![vec![0; classes]; classes],
            right: vec![(0, 0); self.samples.len()],
            gains: vec![0.0; NAMES.len()],
        };
        for fold in 0..FOLDS {
            let numbered = || self.samples.iter().enumerate();
            let example = |(capture, sample): (usize, &'a Sample)| {
                let of =
                    move |values: &'a Vec<f64>| Example { class: taught[capture], capture, values };
                sample.excerpts.iter().map(of)
            };
            let lessons: Vec<Example<'_>> =
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

    fn activities(&self, verdicts: &Verdicts) -> Vec<(String, String, Share)> {
        let mut all: Vec<(&str, &str)> =
            self.samples.iter().map(|s| (s.program.as_str(), s.activity.as_str())).collect();
        all.sort_unstable();
        all.dedup();
        let share = |(program, activity): (&str, &str)| {
            let is = |s: &Sample| s.program == program && s.activity == activity;
            let own = self.samples.iter().zip(&verdicts.right).filter(|(s, _)| is(s));
            let own: Vec<(usize, usize)> = own.map(|(_, right)| *right).collect();
            let sums = own.iter().fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
            let value = sums.1 as f64 / sums.0.max(1) as f64;
            (program.to_owned(), activity.to_owned(), Share::new(value, own.len()))
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
