//! A censor's view: is this Shoal, or another program that speaks UDP?
//!
//! In: captures with the names of their programs, made here ([`record`]) or listed in a file:
//!
//! ```toml
//! [[capture]]
//! file = "shoal-file-1.pcap"       # relative to this file
//! program = "shoal"
//! activity = "file"                # what it did; captures with covered links may be added
//! ```
//!
//! Out: a [`Report`] on how well they are told apart. The longest conversation of each file counts.

mod programs;
mod record;

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use shoal_attack::recognise::{
    CAPTURES_MAX, Conversation, DATAGRAMS, NAMES, Recognised, Sample, recognise,
};

pub use record::{CAPTURES_EACH, Recorded, record};

/// The program that a censor looks for.
pub const OURS: &str = "shoal";
/// Lengths of excerpts, in datagrams, for the curve.
const LENGTHS: [usize; 5] = [3, 8, 16, 32, 128];
/// Largest file that is read, in bytes.
const FILE_MAX: u64 = 256 << 20;

/// What a censor achieves.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Datagrams of each excerpt.
    pub datagrams: usize,
    /// How well programs are told apart.
    pub recognised: Recognised,
    /// By length of excerpts in datagrams.
    pub curve: Vec<Point>,
    /// Programs that were left out, and why.
    pub missing: Vec<String>,
}

/// What excerpts of one length show.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Point {
    /// Datagrams.
    pub datagrams: usize,
    /// Excerpts that were taken for their program, in the mean over programs.
    pub accuracy: f64,
    /// Those of Shoal that were taken for Shoal.
    pub found: f64,
    /// Those of others that were.
    pub alarms: f64,
}

/// A list of captures.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Captures {
    /// The captures.
    pub capture: Vec<Capture>,
}

/// A capture and its program.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Capture {
    /// The pcap file.
    pub file: PathBuf,
    /// The program.
    pub program: String,
    /// What it did.
    #[serde(default)]
    pub activity: String,
}

impl Captures {
    /// Reads a list.
    ///
    /// # Errors
    /// With line and key.
    pub fn load(file: &Path) -> Result<Captures> {
        let named = || file.display().to_string();
        let text = fs::read_to_string(file).with_context(named)?;
        toml::from_str(&text).with_context(named)
    }
}

/// Judges the captures of a list. Names of files are relative to `folder`.
///
/// # Errors
/// Files that can't be read, or too few of them.
pub fn judge(captures: &Captures, folder: &Path, missing: Vec<String>) -> Result<Judged> {
    ensure!(captures.capture.len() <= CAPTURES_MAX, "at most {CAPTURES_MAX} captures");
    let read = |capture: &Capture| -> Result<Conversation> {
        let file = folder.join(&capture.file);
        let named = || file.display().to_string();
        let len = fs::metadata(&file).with_context(named)?.len();
        ensure!(len <= FILE_MAX, "{}: larger than 256 MiB; expected a part of it", named());
        Conversation::read(&fs::read(&file).with_context(named)?).with_context(named)
    };
    let all: Vec<Conversation> = captures.capture.iter().map(read).collect::<Result<_>>()?;
    let samples = |datagrams: usize| -> Vec<Sample> {
        let sample = |(capture, conversation): (&Capture, &Conversation)| Sample {
            program: capture.program.clone(),
            activity: capture.activity.clone(),
            excerpts: conversation.excerpts(datagrams),
        };
        captures.capture.iter().zip(&all).map(sample).collect()
    };
    let mut curve = Vec::new();
    for datagrams in LENGTHS {
        let found = recognise(&samples(datagrams))?;
        let of = |all: &[shoal_attack::recognise::Share]| {
            let ours = found.programs.iter().position(|program| program == OURS);
            ours.map_or(f64::NAN, |at| all[at].value)
        };
        curve.push(Point {
            datagrams,
            accuracy: found.accuracy.value,
            found: of(&found.found),
            alarms: of(&found.alarms),
        });
    }
    let samples = samples(DATAGRAMS);
    let report = Report { datagrams: DATAGRAMS, recognised: recognise(&samples)?, curve, missing };
    Ok(Judged { report, features: table(&samples) })
}

/// A report, and what it is made of.
#[derive(Clone, Debug)]
pub struct Judged {
    /// The report.
    pub report: Report,
    /// The features of all excerpts, separated by commas.
    pub features: String,
}

/// A line for each excerpt: program, activity, number of the capture, features.
fn table(samples: &[Sample]) -> String {
    let names: Vec<&str> = NAMES.iter().map(|(_, name)| *name).collect();
    let mut text = format!("program,activity,capture,{}\n", names.join(","));
    for (number, sample) in samples.iter().enumerate() {
        for excerpt in &sample.excerpts {
            let _ = write!(text, "{},{},{number}", sample.program, sample.activity);
            for value in excerpt {
                // As many digits as matter, and no more.
                let _ = write!(text, ",{}", (value * 1e3).round() / 1e3);
            }
            text.push('\n');
        }
    }
    text.replace(",-0,", ",0,")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_captures_is_read_and_files_are_named_in_errors() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("captures.toml");
        let one = "[[capture]]\nfile = \"a.pcap\"\nprogram = \"shoal\"\nactivity = \"file\"\n";
        fs::write(&file, one).unwrap();
        let captures = Captures::load(&file).unwrap();
        assert_eq!(captures.capture[0].activity, "file");
        let error = judge(&captures, folder.path(), Vec::new()).unwrap_err();
        assert!(format!("{error:#}").contains("a.pcap"));
        fs::write(folder.path().join("a.pcap"), [7; 40]).unwrap();
        let error = judge(&captures, folder.path(), Vec::new()).unwrap_err();
        assert!(format!("{error:#}").contains("not a classic pcap file"), "{error:#}");
        fs::write(&file, one.replace("program", "name")).unwrap();
        assert!(format!("{:#}", Captures::load(&file).unwrap_err()).contains("name"));
    }
}
