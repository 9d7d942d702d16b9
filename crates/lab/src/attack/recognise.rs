//! A censor's classifier, which separates Shoal from other programs that use UDP.
//!
//! Inputs: captures with the names of their programs, made by [`record`] or listed in a file:
//!
//! ```toml
//! [[capture]]
//! file = "shoal-file-1.pcap"       # relative to this file
//! program = "shoal"
//! activity = "file"                # the program's task; captures with covered links may be added
//! ```
//!
//! Output: a [`RecognitionReport`] on the accuracy. Only the longest conversation of each file
//! counts.

mod programs;
mod record;

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use shoal_attack::recognise::{
    CAPTURES_MAX, ClassificationReport, Conversation, DATAGRAMS, NAMES, ProgramCapture, recognise,
};

pub use record::{CAPTURES_EACH, RecordedCaptures, record};

/// The program that a censor looks for.
pub const OURS: &str = "shoal";
/// Lengths of excerpts for the curve, in datagrams.
const LENGTHS: [usize; 5] = [3, 8, 16, 32, 128];
/// Limit of a capture's size in bytes.
const FILE_MAX: u64 = 256 << 20;

/// Result of the classification.
#[derive(Clone, Debug, Serialize)]
pub struct RecognitionReport {
    /// Number of datagrams in each excerpt.
    pub datagrams: usize,
    /// Accuracy per program.
    pub recognised: ClassificationReport,
    /// Accuracy by length of excerpts in datagrams.
    pub curve: Vec<AccuracyPoint>,
    /// Programs that were left out, with the reason.
    pub missing: Vec<String>,
}

/// Accuracy for excerpts of one length.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct AccuracyPoint {
    /// Length of an excerpt in datagrams.
    pub datagrams: usize,
    /// Share of excerpts that were assigned to their own program, as mean over programs.
    pub accuracy: f64,
    /// Share of Shoal's excerpts that were recognised as Shoal.
    pub found: f64,
    /// Share of other programs' excerpts that were mistaken for Shoal.
    pub alarms: f64,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Captures {
    pub capture: Vec<Capture>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Capture {
    /// Path of the pcap file.
    pub file: PathBuf,
    /// Program that the capture shows.
    pub program: String,
    /// Task of the program.
    #[serde(default)]
    pub activity: String,
}

impl Captures {
    /// Reads a list of captures.
    ///
    /// # Errors
    /// The file can't be read, or has a wrong value; the error names line and key.
    pub fn load(file: &Path) -> Result<Captures> {
        let named = || file.display().to_string();
        let text = fs::read_to_string(file).with_context(named)?;
        toml::from_str(&text).with_context(named)
    }
}

/// Classifies the captures of a list. File names are relative to `folder`.
///
/// # Errors
/// A file can't be read, or the list has too few captures.
pub fn judge(captures: &Captures, folder: &Path, missing: Vec<String>) -> Result<Classification> {
    ensure!(captures.capture.len() <= CAPTURES_MAX, "at most {CAPTURES_MAX} captures");
    let read = |capture: &Capture| -> Result<Conversation> {
        let file = folder.join(&capture.file);
        let named = || file.display().to_string();
        let len = fs::metadata(&file).with_context(named)?.len();
        ensure!(len <= FILE_MAX, "{}: larger than 256 MiB; expected a part of it", named());
        Conversation::read(&fs::read(&file).with_context(named)?).with_context(named)
    };
    let all: Vec<Conversation> = captures.capture.iter().map(read).collect::<Result<_>>()?;
    let samples = |datagrams: usize| -> Vec<ProgramCapture> {
        let sample = |(capture, conversation): (&Capture, &Conversation)| ProgramCapture {
            program: capture.program.clone(),
            activity: capture.activity.clone(),
            excerpts: conversation.excerpts(datagrams),
        };
        captures.capture.iter().zip(&all).map(sample).collect()
    };
    let mut curve = Vec::new();
    for datagrams in LENGTHS {
        let found = recognise(&samples(datagrams))?;
        let of = |all: &[shoal_attack::recognise::AccuracyShare]| {
            let ours = found.programs.iter().position(|program| program == OURS);
            ours.map_or(f64::NAN, |at| all[at].value)
        };
        curve.push(AccuracyPoint {
            datagrams,
            accuracy: found.accuracy.value,
            found: of(&found.found),
            alarms: of(&found.alarms),
        });
    }
    let samples = samples(DATAGRAMS);
    let report = RecognitionReport {
        datagrams: DATAGRAMS,
        recognised: recognise(&samples)?,
        curve,
        missing,
    };
    Ok(Classification { report, features: table(&samples) })
}

/// A report, and the features it is based on.
#[derive(Clone, Debug)]
pub struct Classification {
    pub report: RecognitionReport,
    /// Features of all excerpts, as comma-separated values.
    pub features: String,
}

/// Makes one line per excerpt: program, activity, number of the capture, features.
fn table(samples: &[ProgramCapture]) -> String {
    let names: Vec<&str> = NAMES.iter().map(|(_, name)| *name).collect();
    let mut text = format!("program,activity,capture,{}\n", names.join(","));
    for (number, sample) in samples.iter().enumerate() {
        for excerpt in &sample.excerpts {
            let _ = write!(text, "{},{},{number}", sample.program, sample.activity);
            for value in excerpt {
                // Three decimals are enough.
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
        assert!(format!("{error:#}").contains("not a pcap or pcapng file"), "{error:#}");
        fs::write(&file, one.replace("program", "name")).unwrap();
        assert!(format!("{:#}", Captures::load(&file).unwrap_err()).contains("name"));
    }
}
