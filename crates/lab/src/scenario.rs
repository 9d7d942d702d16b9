//! A scenario: a TOML file with a network, its traffic and events, and conditions on the results.
//!
//! Input: text. Output: a [`Scenario`] in which all names exist, or an error with file, line and
//! key. docs/reference/scenarios.md describes the format; [`library`] has the shipped scenarios.

mod check;
pub mod library;
mod moving;
mod nat;
mod plot;
mod traffic;

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Deserializer};
use shoal_daemon::config::{ConfigError, ConfigSource, read_text};
use shoal_wire::{CoverKind, CoverTier};

use crate::network::{Conditions, IpFamily, LinkLoss, LinkMiddle};
use crate::shaping::Rate;
use crate::topology::Topology;
pub use moving::{ShiftTestKind, ShiftTests};
pub use nat::{NatKind, NatPair, NatPortMapping, PUBLIC, UnsolicitedInput};
pub use plot::{PlotLineSettings, PlotSettings};
pub use traffic::{
    AttackSettings, CaseAttack, EventAction, FloodDatagrams, FlowKind, LiveMark, ProgramShape,
    STARTUP_S, ScenarioEvent, ScenarioFlow, TcpPath,
};

/// Kind of an experiment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ExperimentKind {
    /// Nodes, links, flows and events.
    #[default]
    Network,
    /// Time per stage for one segment, in memory and with the kernel.
    LatencyBreakup,
    /// Ways of reading and writing a file.
    ReadWriteMethods,
    /// Programs over virtual interfaces, between the nodes `h1` and `h2`.
    Programs,
    /// Pairs of hosts behind NATs.
    Translators,
    /// Links with shifting addresses, compared with others.
    Moving,
}

/// A scenario.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// Title in one line.
    pub title: String,
    /// A paragraph on the purpose and method.
    pub about: String,
    #[serde(default)]
    pub kind: ExperimentKind,
    /// A predefined network: `paper`, `chain`, `pairs` or `sites`. `[[node]]` and `[[link]]` add to
    /// it.
    #[serde(default)]
    pub topology: BaseTopology,
    /// Number of hosts at each of the two routers of `pairs`, or of the three of `sites`.
    #[serde(default = "two")]
    pub pairs: u16,
    /// Address family of links.
    #[serde(default)]
    pub family: IpFamily,
    /// Conditions of every link.
    #[serde(default)]
    pub links: LinkSettings,
    /// Additional nodes.
    #[serde(default, rename = "node")]
    pub nodes: Vec<ScenarioNode>,
    /// Additional links, or other conditions of existing links.
    #[serde(default, rename = "link")]
    pub link: Vec<ScenarioLink>,
    /// Kinds of NATs.
    #[serde(default, rename = "nat")]
    pub nats: Vec<NatKind>,
    /// Pairs of hosts behind NATs.
    #[serde(default, rename = "cell")]
    pub cells: Vec<NatPair>,
    /// Tests of address shifts.
    pub moving: Option<ShiftTests>,
    /// Routers that carry circuits; empty for all.
    #[serde(default)]
    pub relays: Vec<String>,
    #[serde(default, rename = "flow")]
    pub flows: Vec<ScenarioFlow>,
    /// Events of links and nodes.
    #[serde(default, rename = "event")]
    pub events: Vec<ScenarioEvent>,
    /// Variations, run one after the other; empty for one case.
    #[serde(default, rename = "case")]
    pub cases: Vec<ScenarioCase>,
    /// Cases that differ in loss and round trip.
    pub sweep: Option<Sweep>,
    /// Conditions on figures.
    #[serde(default, rename = "hold")]
    pub holds: Vec<FigureCondition>,
    /// Figures of a paper to show beside ours.
    #[serde(default, rename = "paper")]
    pub papers: Vec<PaperFigure>,
    /// Plots of figures over cases.
    #[serde(default, rename = "plot")]
    pub plots: Vec<PlotSettings>,
    /// Number of runs of each case; figures are medians.
    #[serde(default = "one")]
    pub repeat: u32,
    /// Length of the traffic in seconds; `None` to run until every file has arrived.
    pub duration_s: Option<f64>,
    /// Time limit of a run, in seconds.
    #[serde(default = "limit")]
    pub limit_s: f64,
    /// Time between two samples, in milliseconds.
    #[serde(default = "sample")]
    pub sample_ms: u64,
    /// Seconds from the start of the traffic for which all wires are observed.
    pub observe_s: Option<f64>,
    /// An attacker during the run.
    pub attack: Option<AttackSettings>,
    /// True if a run on a machine without idle time is invalid. False for scenarios that fill the
    /// machine on purpose.
    #[serde(default = "yes")]
    pub needs_idle: bool,
    /// For programs: UDP payloads in bytes, one case each, without other programs. Empty for all
    /// programs, with one UDP payload.
    #[serde(default)]
    pub payloads: Vec<u16>,
    /// For programs: levels of the direct link of h1 and h2, one case each, with one TCP stream and
    /// no other program.
    #[serde(default)]
    pub levels: Vec<String>,
    /// For programs: the UDP rate, in Mbit/s of payload.
    #[serde(default = "udp_mbit")]
    pub udp_mbit: f64,
    /// Text for the end of every node's configuration.
    #[serde(default)]
    pub node_config: String,
}

fn one() -> u32 {
    1
}

fn two() -> u16 {
    2
}

fn limit() -> f64 {
    120.0
}

fn sample() -> u64 {
    100
}

fn udp_mbit() -> f64 {
    100.0
}

/// Predefined networks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BaseTopology {
    /// No node: the file lists all.
    #[default]
    None,
    /// Three fully meshed routers with two hosts each.
    Paper,
    /// h1 - r1 - r2 - h2.
    Chain,
    /// Two routers with `pairs` hosts each: h1 to hN, and hN+1 to h2N.
    Pairs,
    /// Three fully meshed routers with `pairs` hosts each: h1 to hN, hN+1 to h2N, h2N+1 to h3N.
    Sites,
}

/// An additional node.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScenarioNode {
    pub name: String,
    /// Overlay address, `router.host`. `None` for a machine outside the overlay, which can only be
    /// an end of TCP flows and floods.
    pub address: Option<String>,
}

/// An additional link, or other conditions of an existing link.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScenarioLink {
    /// Names of the ends. A host precedes the router that it calls.
    pub between: [String; 2],
    /// Conditions that differ from `[links]`.
    #[serde(flatten)]
    pub line: LinkSettings,
}

/// Conditions of a link; missing values are inherited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkSettings {
    /// Rate such as "1gbit"; "none" for no limit.
    #[serde(default, deserialize_with = "rate")]
    pub rate: Option<Option<Rate>>,
    /// One-way delay in milliseconds.
    pub delay_ms: Option<f64>,
    /// Spread of the delay to both sides of `delay_ms`, evenly distributed; packets stay in order.
    pub jitter_ms: Option<f64>,
    /// Share of packets lost in each direction, 0 to 1.
    pub loss: Option<f64>,
    /// Mean number of consecutive losses (Gilbert); 1 makes losses independent.
    pub burst: Option<f64>,
    /// Bound of the queue, as milliseconds at the link's rate.
    pub queue_ms: Option<f64>,
    /// True for the lab's emulator even if the kernel could shape the link: the emulator measures
    /// its queue.
    pub emulate: Option<bool>,
    /// Machines between the ends.
    pub through: Option<LinkMiddle>,
    /// Interval of address shifts at both ends, in seconds; 0 for no shifts.
    pub shift_s: Option<u32>,
}

fn rate<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Option<Rate>>, D::Error> {
    let text = String::deserialize(from)?;
    match text.as_str() {
        "none" => Ok(Some(None)),
        text => text.parse().map(|r| Some(Some(r))).map_err(serde::de::Error::custom),
    }
}

impl LinkSettings {
    /// `self`, with missing values from `base`.
    pub fn or(self, base: LinkSettings) -> LinkSettings {
        LinkSettings {
            rate: self.rate.or(base.rate),
            delay_ms: self.delay_ms.or(base.delay_ms),
            jitter_ms: self.jitter_ms.or(base.jitter_ms),
            loss: self.loss.or(base.loss),
            burst: self.burst.or(base.burst),
            queue_ms: self.queue_ms.or(base.queue_ms),
            emulate: self.emulate.or(base.emulate),
            through: self.through.or(base.through),
            shift_s: self.shift_s.or(base.shift_s),
        }
    }

    /// The network's conditions, with defaults for missing values.
    pub fn conditions(&self) -> Conditions {
        let ms = |value: Option<f64>| Duration::from_secs_f64(value.unwrap_or(0.0) / 1e3);
        Conditions {
            rate: self.rate.flatten(),
            delay: ms(self.delay_ms),
            jitter: ms(self.jitter_ms),
            loss: LinkLoss { share: self.loss.unwrap_or(0.0), burst: self.burst.unwrap_or(1.0) },
            queue: self.queue_ms.map(|q| ms(Some(q))),
            emulate: self.emulate.unwrap_or(false),
            through: self.through.unwrap_or_default(),
            shift: self.shift_s.filter(|s| *s > 0).map(|s| Duration::from_secs(s.into())),
        }
    }
}

/// One variation.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScenarioCase {
    pub name: String,
    /// Conditions of links that differ.
    #[serde(default)]
    pub links: LinkSettings,
    /// The only link that `links` applies to; `None` for all.
    pub link: Option<[String; 2]>,
    /// Names of the flows that run; `None` for all.
    pub flows: Option<Vec<String>>,
    /// True if events happen.
    #[serde(default = "yes")]
    pub events: bool,
    #[serde(default)]
    pub circuits: CircuitUse,
    /// Life of each circuit in seconds; overrides the product's.
    pub circuit_life_s: Option<f64>,
    /// Number of relays of each circuit; overrides the product's.
    pub circuit_relays: Option<u8>,
    /// Mix strategy of the relays; `None` for no mix.
    pub mix: Option<MixSettings>,
    /// Schedule of covered access links; `None` for no cover.
    pub cover: Option<CoverSettings>,
    /// True if hosts restore the order of packets behind mixes and across a change of circuits.
    #[serde(default = "yes")]
    pub keep_order: bool,
    /// Additional actions of the attacker in this case.
    #[serde(default)]
    pub attack: CaseAttack,
    /// Values of `net.ipv4.` settings of the hosts' kernels, by name without that prefix.
    #[serde(default)]
    pub kernel: BTreeMap<String, String>,
    /// Curve of the case in plots over loss.
    #[serde(default)]
    pub series: String,
}

fn yes() -> bool {
    true
}

/// A mix strategy, as in a hosts file.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MixSettings {
    pub kind: MixKind,
    /// Stop-and-go: mean of the times before the cut at `most_ms`.
    pub mean_ms: Option<f64>,
    /// Stop-and-go: longest time; `None` for the product's.
    pub most_ms: Option<f64>,
    /// Timed: interval between two departures.
    pub every_ms: Option<f64>,
}

/// Kinds of mix strategies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MixKind {
    /// Each cell waits for a random time of its own.
    StopAndGo,
    /// All waiting cells leave together at intervals.
    Timed,
}

impl fmt::Display for MixSettings {
    /// Writes the strategy as in a hosts file.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            MixKind::StopAndGo => "stop-and-go",
            MixKind::Timed => "timed",
        };
        writeln!(f, "[[mix]]\nname = \"lab\"\nkind = \"{kind}\"")?;
        let times =
            [("mean_ms", self.mean_ms), ("most_ms", self.most_ms), ("every_ms", self.every_ms)];
        for (key, ms) in times.into_iter().filter_map(|(key, ms)| Some((key, ms?))) {
            writeln!(f, "{key} = {ms}")?;
        }
        Ok(())
    }
}

/// A tier of cover, as in a hosts file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CoverSettings {
    /// Rate of the frames in each direction, in Mbit/s.
    pub mbit: u16,
    /// Distribution of the gaps between frames.
    #[serde(default)]
    pub schedule: Schedule,
}

/// Schedules of cover.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Schedule {
    /// One slot in each gap.
    #[default]
    Constant,
    /// Random gaps of a Poisson process.
    Poisson,
}

impl CoverSettings {
    /// The tier; `None` for an unsupported rate.
    pub fn tier(self) -> Option<CoverTier> {
        let kind = match self.schedule {
            Schedule::Constant => CoverKind::Constant,
            Schedule::Poisson => CoverKind::Poisson,
        };
        CoverTier::new(self.mbit, kind)
    }
}

impl fmt::Display for CoverSettings {
    /// Writes the tier as in a hosts file.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let schedule = match self.schedule {
            Schedule::Constant => "constant",
            Schedule::Poisson => "poisson",
        };
        let mbit = self.mbit;
        writeln!(f, "[[cover]]\nname = \"lab\"\nmbit = {mbit}\nschedule = \"{schedule}\"")
    }
}

/// Use of circuits between hosts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CircuitUse {
    /// No circuits: cells follow the routers' routes.
    #[default]
    Off,
    /// Circuits only.
    Require,
}

/// Cases for every pair of a loss and a round trip, both on one link.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sweep {
    /// Names of the ends of the link with loss and delay.
    pub link: [String; 2],
    /// Shares lost in each direction.
    pub loss: Vec<f64>,
    /// Round trips in milliseconds.
    pub rtt_ms: Vec<f64>,
}

/// A condition on a figure.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FigureCondition {
    /// Name of the figure (docs/reference/figures.md lists them).
    pub figure: String,
    /// Flow, link or node; `None` for all with the figure.
    pub of: Option<String>,
    /// Case; `None` for every case.
    pub case: Option<String>,
    /// Case by whose figure the figure is divided.
    pub against: Option<String>,
    /// Case whose figure is subtracted.
    pub minus: Option<String>,
    /// Lower bound.
    pub at_least: Option<f64>,
    /// Upper bound.
    pub at_most: Option<f64>,
}

/// A figure of a paper.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PaperFigure {
    /// Name of the figure.
    pub what: String,
    pub value: f64,
    pub unit: String,
    /// Section, figure or table of the paper.
    pub place: String,
    /// Our figure to show beside it.
    pub figure: Option<String>,
    /// Flow, link or node of our figure.
    pub of: Option<String>,
    /// Case of our figure; `None` for the first.
    pub case: Option<String>,
}

impl Scenario {
    /// Reads and checks `file`.
    ///
    /// # Errors
    /// The file can't be read, or has a wrong value; the error names file, line and key.
    pub fn load(file: &Path) -> Result<Scenario, ConfigError> {
        let text = read_text(file).map_err(|e| ConfigError::unreadable(file, &e))?;
        Scenario::parse(file, &text)
    }

    /// Checks `text` as the content of `file`.
    ///
    /// # Errors
    /// A value is wrong; the error names file, line and key.
    pub fn parse(file: &Path, text: &str) -> Result<Scenario, ConfigError> {
        let source = ConfigSource::new(file, text);
        let scenario: Scenario = toml::from_str(text).map_err(|e| source.syntax(&e))?;
        check::check(&scenario, &source)?;
        Ok(scenario)
    }

    pub fn network(&self) -> Topology {
        check::topology(self)
    }

    /// All cases; at least one.
    pub fn all_cases(&self) -> Vec<ScenarioCase> {
        let mut cases = self.cases.clone();
        if let Some(sweep) = &self.sweep {
            for rtt in &sweep.rtt_ms {
                for loss in &sweep.loss {
                    cases.push(ScenarioCase {
                        name: format!("{rtt} ms, {}%", (loss * 1e6).round() / 1e4),
                        links: LinkSettings {
                            loss: Some(*loss),
                            delay_ms: Some(rtt / 2.0),
                            emulate: Some(true),
                            ..LinkSettings::default()
                        },
                        link: Some(sweep.link.clone()),
                        events: true,
                        keep_order: true,
                        series: format!("RTT {rtt} ms"),
                        ..ScenarioCase::default()
                    });
                }
            }
        }
        if cases.is_empty() {
            cases.push(ScenarioCase {
                name: "all".into(),
                events: true,
                keep_order: true,
                ..ScenarioCase::default()
            });
        }
        cases
    }

    /// Names of the cases, in the order of their runs.
    pub fn case_names(&self) -> Vec<String> {
        match self.kind {
            ExperimentKind::Programs => crate::programs::case_names(self),
            ExperimentKind::Moving => crate::moving::case_names(self),
            ExperimentKind::Translators => {
                let cells = self.cells.iter().map(NatPair::name);
                cells.chain([crate::translators::ALL.to_owned()]).collect()
            }
            _ => self.all_cases().into_iter().map(|case| case.name).collect(),
        }
    }

    /// Conditions of each link in `case`, in the topology's order.
    pub fn conditions(&self, topology: &Topology, case: &ScenarioCase) -> Vec<Conditions> {
        let is = |link: usize, names: &[String; 2]| {
            let l = topology.links[link];
            let ends = [&topology.nodes[l.a].name, &topology.nodes[l.b].name];
            ends == [&names[0], &names[1]] || ends == [&names[1], &names[0]]
        };
        (0..topology.links.len())
            .map(|link| {
                let own = self.link.iter().rfind(|l| is(link, &l.between));
                let mut line = own.map_or(LinkSettings::default(), |l| l.line).or(self.links);
                if case.link.as_ref().is_none_or(|names| is(link, names)) {
                    line = case.links.or(line);
                }
                line.conditions()
            })
            .collect()
    }
}

#[cfg(test)]
mod tests;
