//! Attacks on real links: pcap files, and a description of the recorded network.
//!
//! ```toml
//! seconds = 60                     # observed, from the start of the file that starts last
//! mixes = 3                        # relays of each circuit
//! mix = { kind = "stop-and-go", mean_ms = 5 }    # or "timed" with every_ms; without it none
//! line_ms = 5                      # one way, between two nodes
//! jitter_ms = 0.1
//! cover_per_s = 174                # frames a second in each direction, if links are covered
//! begin_unix_ns = 1700000000000000000    # start of the observation, if not that file's
//! mark = { kind = "gaps", seed = 7 }     # "gaps": frames of hosts were held for 200 ms in each
//!                                  # second; "drops": lost for 100 ms. The seed gives the codes
//!                                  # (`shoal_attack::MarkKind`) of each pair in order: first the
//!                                  # caller's code, then the called's
//!
//! [[pair]]                         # the true pairs, two at least
//! caller = { file = "h1.pcap", host = "10.77.0.2" }
//! called = { file = "h4.pcap", host = "10.77.0.14" }
//! ```
//!
//! File names are relative to the description. The attacker trains in virtual time, on networks of
//! this description, and never sees which pairs are true.

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};
use shoal_attack::scenarios::AttackScenario;
use shoal_attack::{
    AccessTraces, CoverSchedule, ExperimentSetup, Leak, LineDelay, LineTrace, MarkCode, MarkKind,
    ObservedFrame, ObservedNetwork, ProgramKind, Scene, TrainedAttacker, VantagePoint, capture,
};
use shoal_wire::{MixStrategy, MixTime, Time};

use super::{AttackReport, AttackRow};
use crate::scenario::LiveMark;
use shoal_attack::scenarios::Size;

/// Limit of a capture's size in bytes: a capture is read as a whole.
const FILE_MAX: u64 = 4 << 30;
/// Number of networks in virtual time on which the attacker trains and selects an attack, and
/// number of their flows.
const TRAINING: u64 = 6;
const TRAINING_FLOWS: usize = 40;
/// Default of `most_ms` in means: longer times are drawn again.
const MOST_MEANS: f64 = 5.0;

/// Description of a recorded network.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CaptureDescription {
    /// Observed time in seconds.
    pub seconds: u32,
    /// Number of relays of each circuit.
    #[serde(default)]
    pub mixes: u32,
    /// One-way delay between two nodes.
    #[serde(default = "five")]
    pub line_ms: f64,
    /// Spread of `line_ms`.
    #[serde(default = "tenth")]
    pub jitter_ms: f64,
    /// Frames per second in each direction of covered links.
    pub cover_per_s: Option<f64>,
    /// Start of the observation, in nanoseconds since 1970.
    pub begin_unix_ns: Option<u64>,
    /// Mark that an active attacker put on the frames that hosts sent.
    pub mark: Option<RecordedMark>,
    /// Mix strategy of the relays; `None` for no mix.
    pub mix: Option<RecordedMix>,
    pub pair: Vec<RecordedPair>,
}

/// Mix strategy of the relays.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", tag = "kind")]
pub enum RecordedMix {
    /// All waiting cells leave together at intervals.
    Timed {
        /// Interval between two departures.
        every_ms: f64,
    },
    /// Each cell waits for a random time of its own.
    StopAndGo {
        /// Mean of the times before the cut at `most_ms`.
        mean_ms: f64,
        /// Longest time.
        most_ms: Option<f64>,
    },
}

/// A mark that was put on links.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecordedMark {
    pub kind: LiveMark,
    /// Seed of the codes.
    pub seed: u64,
}

/// Two hosts that communicate.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecordedPair {
    /// Host that begins.
    pub caller: AccessCapture,
    /// Host that answers.
    pub called: AccessCapture,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AccessCapture {
    /// Capture of the link.
    pub file: PathBuf,
    /// Address of the host in the capture.
    pub host: IpAddr,
}

fn five() -> f64 {
    5.0
}

fn tenth() -> f64 {
    0.1
}

impl CaptureDescription {
    /// Reads a description.
    ///
    /// # Errors
    /// The file can't be read, or has a wrong value; the error names line and key.
    pub fn load(file: &Path) -> Result<CaptureDescription> {
        let named = || file.display().to_string();
        let text = fs::read_to_string(file).with_context(named)?;
        toml::from_str(&text).with_context(named)
    }

    fn strategy(&self) -> Result<MixStrategy> {
        let strategy = match &self.mix {
            None => MixStrategy::Pass,
            Some(RecordedMix::Timed { every_ms }) => MixStrategy::Timed { every: time(*every_ms)? },
            Some(RecordedMix::StopAndGo { mean_ms, most_ms }) => MixStrategy::StopAndGo {
                mean: time(*mean_ms)?,
                most: time(most_ms.unwrap_or(MOST_MEANS * mean_ms))?,
            },
        };
        ensure!(
            strategy.is_valid(),
            "mix: times are above 0, and the longest is no less than the mean"
        );
        Ok(strategy)
    }

    /// The networks on which the attacker trains.
    fn setup(&self) -> Result<ExperimentSetup> {
        let cover =
            self.cover_per_s.map_or(CoverSchedule::None, |per_s| CoverSchedule::Constant { per_s });
        let line = LineDelay { delay: span(self.line_ms)?, jitter: span(self.jitter_ms)? };
        let scene = Scene {
            traffic: ProgramKind::Mixed,
            cross: None,
            strategy: self.strategy()?,
            mixes: self.mixes,
            line,
            cover,
            core: CoverSchedule::None,
            leak: Leak::None,
            flows: self.pair.len().max(TRAINING_FLOWS),
            seconds: self.seconds,
        };
        let seeds = TRAINING..TRAINING + 1;
        let mark = self.mark.map(|mark| mark.kind.into());
        let setup =
            ExperimentSetup { scene, mark, view: VantagePoint::Wire, training: 0..TRAINING, seeds };
        setup.check()?;
        Ok(setup)
    }

    fn network(&self, folder: &Path) -> Result<ObservedNetwork> {
        let read = |link: &AccessCapture| -> Result<Vec<u8>> {
            let file = folder.join(&link.file);
            let named = || file.display().to_string();
            let len = fs::metadata(&file).with_context(named)?.len();
            if len > FILE_MAX {
                bail!("{}: larger than 4 GiB; expected a shorter capture", file.display());
            }
            fs::read(&file).with_context(named)
        };
        let named = |link: &AccessCapture| link.file.display().to_string();
        let links = || self.pair.iter().flat_map(|pair| [&pair.caller, &pair.called]);
        let mut start = self.begin_unix_ns.unwrap_or(0);
        for link in links().filter(|_| self.begin_unix_ns.is_none()) {
            let begins = capture::begins(&read(link)?).with_context(|| named(link))?;
            start = start.max(begins.with_context(|| format!("{}: no packet", named(link)))?);
        }
        let access = |link: &AccessCapture| -> Result<AccessTraces> {
            capture::access(&read(link)?, link.host, start).with_context(|| named(link))
        };
        // A capture shows a host's frames before the attacker delayed or dropped any.
        let passed = |host: usize, mut access: AccessTraces| {
            if let Some(code) = self.code(host) {
                let left = |frame: &ObservedFrame| {
                    let at = Time(code.left(frame.at.0)?);
                    Some(ObservedFrame { at, ..*frame })
                };
                access.up = LineTrace::new(access.up.frames().iter().filter_map(left).collect());
            }
            access
        };
        let side =
            |side: usize, of: fn(&RecordedPair) -> &AccessCapture| -> Result<Vec<AccessTraces>> {
                let pairs = self.pair.iter().enumerate();
                pairs.map(|(i, pair)| Ok(passed(2 * i + side, access(of(pair))?))).collect()
            };
        let callers = side(0, |pair| &pair.caller)?;
        let called = side(1, |pair| &pair.called)?;
        let mut network = ObservedNetwork::recorded(callers, called, self.seconds)?;
        if self.mark.is_some() {
            network.codes = [0, 1].map(|side| {
                (0..self.pair.len()).filter_map(|pair| self.code(2 * pair + side)).collect()
            });
        }
        Ok(network)
    }

    /// Attacks the recorded network. `file` is the path of the description.
    ///
    /// # Errors
    /// A value is out of bounds, or a capture can't be read.
    pub fn attack(&self, file: &Path) -> Result<AttackReport> {
        let setup = self.setup()?;
        let network = self.network(file.parent().unwrap_or(Path::new(".")))?;
        let trained = TrainedAttacker::new(&setup)?;
        let mut measured = trained.begin();
        measured.see(&network);
        let flows = self.pair.len();
        let row = AttackRow {
            scenario: AttackScenario::Capture,
            case: file.display().to_string(),
            series: None,
            flows,
            networks: 1,
            seconds: self.seconds,
            outcome: measured.outcome(0),
            checks: Vec::new(),
        };
        let size = Size { flows, seeds: 1, small_flows: flows, small_seeds: 1, training: TRAINING };
        Ok(AttackReport { size, rows: vec![row] })
    }

    /// The code that an active attacker applies to a host's frames. Hosts are numbered in the order
    /// of pairs, the caller before the called.
    pub fn code(&self, host: usize) -> Option<MarkCode> {
        let RecordedMark { kind, seed } = self.mark?;
        Some(MarkKind::from(kind).code(self.seconds, seed, host as u64))
    }
}

/// Attacks the network of a description.
///
/// # Errors
/// The description is wrong, or a capture can't be read.
pub fn run(file: &Path) -> Result<AttackReport> {
    let description = CaptureDescription::load(file)?;
    description.attack(file)
}

fn span(ms: f64) -> Result<Duration> {
    ensure!((0.0..=1_000.0).contains(&ms), "{ms} ms: expected 0 to 1000");
    Ok(Duration::from_secs_f64(ms / 1e3))
}

fn time(ms: f64) -> Result<MixTime> {
    MixTime::from_duration(span(ms)?).context("a mix time: expected at most 1000 ms")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    /// Writes a capture of full frames: sender, and time in microseconds.
    fn pcap(folder: &Path, name: &str, frames: &[(u8, u64)]) {
        let mut file = fs::File::create(folder.join(name)).unwrap();
        let mut words = |words: &[u32]| {
            words.iter().for_each(|word| file.write_all(&word.to_le_bytes()).unwrap());
        };
        words(&[0xa1b2_c3d4, 0x0004_0002, 0, 0, 65_535, 101]);
        for (from, us) in frames {
            // The first 20 bytes of an IPv4 packet of 1,468 bytes.
            words(&[(us / 1_000_000) as u32, (us % 1_000_000) as u32, 20, 1_468]);
            let source = u32::from_le_bytes([10, 0, 0, *from]);
            let length = u32::from_le_bytes([0x45, 0, 0x05, 0xbc]);
            words(&[length, 0, u32::from_le_bytes([64, 17, 0, 0]), source, 0]);
        }
    }

    #[test]
    fn a_description_that_is_written_reads_the_same() {
        let text = "seconds = 5\nline_ms = 1\nbegin_unix_ns = 1795460679785955715\n\
                    mark = { kind = \"drops\", seed = 7 }\n\
                    mixes = 3\nmix = { kind = \"stop-and-go\", mean_ms = 5 }\n[[pair]]\n\
                    caller = { file = \"a\", host = \"10.0.0.1\" }\n\
                    called = { file = \"b\", host = \"fd77::2\" }\n";
        let read: CaptureDescription = toml::from_str(text).unwrap();
        let again: CaptureDescription = toml::from_str(&toml::to_string(&read).unwrap()).unwrap();
        assert_eq!(format!("{read:?}"), format!("{again:?}"));
        let [caller, called] = [0, 1].map(|host| read.code(host).unwrap());
        assert_eq!(Some(&caller), again.code(0).as_ref());
        assert_ne!(caller, called);
        assert_eq!(caller.holes().count(), 5);
        assert!(caller.holes().all(|(from, to)| to - from == 100_000_000));
    }

    #[test]
    fn pairs_are_found_in_captures() {
        let folder = tempfile::tempdir().unwrap();
        let mut text = "seconds = 5\nline_ms = 1\n".to_string();
        for flow in 0..8_u64 {
            // Each flow has its own times; all arrive a millisecond later.
            let times = (0..250).map(|i| i * 20_000 + (i * i * (flow + 3) + 977 * flow) % 17_000);
            let sent: Vec<(u8, u64)> = times.map(|us| (1, us)).collect();
            let came: Vec<(u8, u64)> = sent.iter().map(|(from, us)| (*from, us + 1_000)).collect();
            let first = [(1, 0)];
            pcap(folder.path(), &format!("a{flow}"), &[&first, sent.as_slice()].concat());
            pcap(folder.path(), &format!("b{flow}"), &[&first, came.as_slice()].concat());
            text += &format!(
                "[[pair]]\ncaller = {{ file = \"a{flow}\", host = \"10.0.0.1\" }}\n\
                 called = {{ file = \"b{flow}\", host = \"10.0.0.2\" }}\n"
            );
        }
        let file = folder.path().join("network.toml");
        fs::write(&file, &text).unwrap();
        let report = run(&file).unwrap();
        let rates = &report.rows[0].outcome.rates;
        assert!(rates.top1.value > 0.9, "{rates:?}");
        fs::write(&file, text.replace("line_ms", "lines_ms")).unwrap();
        assert!(format!("{:#}", run(&file).unwrap_err()).contains("lines_ms"));
        fs::write(&file, text.replace("\"a3\"", "\"a9\"")).unwrap();
        assert!(format!("{:#}", run(&file).unwrap_err()).contains("a9"));
    }
}
