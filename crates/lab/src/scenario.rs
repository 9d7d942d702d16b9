//! A scenario: a TOML file that says which network, what happens on it when, and what must hold.
//!
//! In: text. Out: a [`Scenario`] whose names all exist, or an error with file, line and key. The
//! format is described in docs/lab.md; the shipped scenarios are in [`library`].

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
use shoal_daemon::config::{ConfigError, Source, read_text};
use shoal_wire::{CoverKind, CoverTier};

use crate::network::{Conditions, Family, Loss, Through};
use crate::shaping::Rate;
use crate::topology::Topology;
pub use moving::{Moving, Tests};
pub use nat::{Cell, Input, Nat, PUBLIC, Ports};
pub use plot::{Plot, Points};
pub use traffic::{
    Attack, Attacked, Deed, Event, Flow, LiveMark, Malice, Over, STARTUP_S, Shape, Traffic,
};

/// What kind of experiment a scenario is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Nodes, links, flows, events.
    #[default]
    Network,
    /// Time per stage for one segment, in memory and with the kernel.
    LatencyBreakup,
    /// Ways of reading and writing a file.
    ReadWriteMethods,
    /// Programs over virtual interfaces, between the nodes `h1` and `h2`.
    Programs,
    /// Pairs of hosts behind translators of addresses.
    Translators,
    /// Links with addresses that hop, beside others.
    Moving,
}

/// Everything that a run needs to know.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// One line.
    pub title: String,
    /// A paragraph on what it shows, and how.
    pub about: String,
    /// What kind it is.
    #[serde(default)]
    pub kind: Kind,
    /// A network that exists already: `paper`, `chain`, `pairs` or `sites`; `[[node]]` and
    /// `[[link]]` add to it.
    #[serde(default)]
    pub topology: Base,
    /// Hosts at each of the two routers of `pairs`, or of the three of `sites`.
    #[serde(default = "two")]
    pub pairs: u16,
    /// Which addresses links have.
    #[serde(default)]
    pub family: Family,
    /// Conditions of every link.
    #[serde(default)]
    pub links: Line,
    /// More nodes.
    #[serde(default, rename = "node")]
    pub nodes: Vec<Node>,
    /// More links, or other conditions of links that exist.
    #[serde(default, rename = "link")]
    pub link: Vec<Link>,
    /// Kinds of translators of addresses.
    #[serde(default, rename = "nat")]
    pub nats: Vec<Nat>,
    /// Pairs of hosts behind them.
    #[serde(default, rename = "cell")]
    pub cells: Vec<Cell>,
    /// Tests of addresses that hop.
    pub moving: Option<Moving>,
    /// Routers that carry circuits; all, if none is named.
    #[serde(default)]
    pub relays: Vec<String>,
    /// Traffic.
    #[serde(default, rename = "flow")]
    pub flows: Vec<Flow>,
    /// Events of links and nodes.
    #[serde(default, rename = "event")]
    pub events: Vec<Event>,
    /// Variations, run one after the other; none means one case.
    #[serde(default, rename = "case")]
    pub cases: Vec<Case>,
    /// Cases that differ in loss and round trip.
    pub sweep: Option<Sweep>,
    /// Conditions on figures.
    #[serde(default, rename = "hold")]
    pub holds: Vec<Hold>,
    /// Figures of a paper to put beside ours.
    #[serde(default, rename = "paper")]
    pub papers: Vec<Paper>,
    /// Plots of figures over cases.
    #[serde(default, rename = "plot")]
    pub plots: Vec<Plot>,
    /// How often each case is run; figures are medians.
    #[serde(default = "one")]
    pub repeat: u32,
    /// How long the traffic goes on; none means until every file has arrived.
    pub duration_s: Option<f64>,
    /// Time after which a run fails, in seconds.
    #[serde(default = "limit")]
    pub limit_s: f64,
    /// Time between two samples.
    #[serde(default = "sample")]
    pub sample_ms: u64,
    /// For so many seconds from the start of the traffic, all wires are observed.
    pub observe_s: Option<f64>,
    /// An attacker beside the run.
    pub attack: Option<Attack>,
    /// Whether a run on a machine without idle time is invalid; false for scenarios that fill the
    /// machine on purpose.
    #[serde(default = "yes")]
    pub needs_idle: bool,
    /// For programs: payloads of UDP in bytes, one case each, and no other program; none means all
    /// programs, and UDP of one size.
    #[serde(default)]
    pub payloads: Vec<u16>,
    /// For programs: levels of the direct link of h1 and h2, one case each, with one TCP stream and
    /// no other program.
    #[serde(default)]
    pub levels: Vec<String>,
    /// For programs: the rate of UDP, in Mbit/s of payload.
    #[serde(default = "udp_mbit")]
    pub udp_mbit: f64,
    /// Appended to every node's configuration.
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

/// Networks that need no `[[node]]`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Base {
    /// Nothing: the file lists all.
    #[default]
    None,
    /// Three routers fully meshed, two hosts each.
    Paper,
    /// h1 - r1 - r2 - h2.
    Chain,
    /// Two routers and `pairs` hosts at each: h1 to hN, and hN+1 to h2N.
    Pairs,
    /// Three routers fully meshed, and `pairs` hosts at each: h1 to hN, hN+1 to h2N, h2N+1 to h3N.
    Sites,
}

/// A node to add.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Node {
    /// Its name.
    pub name: String,
    /// Its overlay address, `router.host`; none for a machine that is no node of the network, only
    /// an end of TCP flows and floods.
    pub address: Option<String>,
}

/// A link to add, or other conditions of an existing one.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Link {
    /// Its ends. A host that calls its router stands first.
    pub between: [String; 2],
    /// What it is like, where that differs from `[links]`.
    #[serde(flatten)]
    pub line: Line,
}

/// Conditions of a link, as far as they are given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Line {
    /// Such as "1gbit"; "none" for no limit.
    #[serde(default, deserialize_with = "rate")]
    pub rate: Option<Option<Rate>>,
    /// One-way delay.
    pub delay_ms: Option<f64>,
    /// Delays spread evenly this far around `delay_ms`; packets stay in order.
    pub jitter_ms: Option<f64>,
    /// Share of packets lost in each direction, 0 to 1.
    pub loss: Option<f64>,
    /// Packets lost in a row on average (Gilbert); 1 means each on its own.
    pub burst: Option<f64>,
    /// Bound of the queue as time at the link's rate.
    pub queue_ms: Option<f64>,
    /// Pass through the lab's emulator even where the kernel could do it: its queue is measured.
    pub emulate: Option<bool>,
    /// What is between its ends.
    pub through: Option<Through>,
    /// How often the addresses of its ends change, in seconds; 0 for never.
    pub hop_s: Option<u32>,
}

fn rate<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Option<Rate>>, D::Error> {
    let text = String::deserialize(from)?;
    match text.as_str() {
        "none" => Ok(Some(None)),
        text => text.parse().map(|r| Some(Some(r))).map_err(serde::de::Error::custom),
    }
}

impl Line {
    /// `self`, with the values of `base` where it has none.
    pub fn or(self, base: Line) -> Line {
        Line {
            rate: self.rate.or(base.rate),
            delay_ms: self.delay_ms.or(base.delay_ms),
            jitter_ms: self.jitter_ms.or(base.jitter_ms),
            loss: self.loss.or(base.loss),
            burst: self.burst.or(base.burst),
            queue_ms: self.queue_ms.or(base.queue_ms),
            emulate: self.emulate.or(base.emulate),
            through: self.through.or(base.through),
            hop_s: self.hop_s.or(base.hop_s),
        }
    }

    /// The conditions for the network, with defaults.
    pub fn conditions(&self) -> Conditions {
        let ms = |value: Option<f64>| Duration::from_secs_f64(value.unwrap_or(0.0) / 1e3);
        Conditions {
            rate: self.rate.flatten(),
            delay: ms(self.delay_ms),
            jitter: ms(self.jitter_ms),
            loss: Loss { share: self.loss.unwrap_or(0.0), burst: self.burst.unwrap_or(1.0) },
            queue: self.queue_ms.map(|q| ms(Some(q))),
            emulate: self.emulate.unwrap_or(false),
            through: self.through.unwrap_or_default(),
            hop: self.hop_s.filter(|s| *s > 0).map(|s| Duration::from_secs(s.into())),
        }
    }
}

/// One variation.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Case {
    /// Its name.
    pub name: String,
    /// Other conditions of links.
    #[serde(default)]
    pub links: Line,
    /// The only link that `links` concerns; none for all.
    pub link: Option<[String; 2]>,
    /// Names of the flows that run; none for all.
    pub flows: Option<Vec<String>>,
    /// Whether events happen.
    #[serde(default = "yes")]
    pub events: bool,
    /// How hosts speak with each other.
    #[serde(default)]
    pub circuits: Circuits,
    /// Life of each circuit in seconds, in place of the product's.
    pub circuit_life_s: Option<f64>,
    /// Relays of each circuit, in place of the product's.
    pub circuit_relays: Option<u8>,
    /// What relays do with the cells of circuits; none for nothing.
    pub mix: Option<Mix>,
    /// By which schedule frames leave the links between hosts and routers; none for none.
    pub cover: Option<Cover>,
    /// Whether hosts keep the order of packets behind mixes and across a change of circuits.
    #[serde(default = "yes")]
    pub keep_order: bool,
    /// What the attacker does here, besides looking.
    #[serde(default)]
    pub attack: Attacked,
    /// Values of `net.ipv4.` settings of the hosts' kernels, by their names behind it.
    #[serde(default)]
    pub kernel: BTreeMap<String, String>,
    /// The curve it belongs to, in plots over loss.
    #[serde(default)]
    pub series: String,
}

fn yes() -> bool {
    true
}

/// A strategy as it stands in a hosts file.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mix {
    /// Its kind.
    pub kind: MixKind,
    /// Of stop-and-go: the mean of times that are not cut off.
    pub mean_ms: Option<f64>,
    /// Of stop-and-go: the longest time, if not the product's.
    pub most_ms: Option<f64>,
    /// Of timed: between two departures.
    pub every_ms: Option<f64>,
}

/// Kinds of strategies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MixKind {
    /// Each cell waits for a time of its own.
    StopAndGo,
    /// All that came leaves from time to time.
    Timed,
}

impl fmt::Display for Mix {
    /// As in a hosts file.
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

/// A tier of cover as it stands in a hosts file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cover {
    /// Frames of so many Mbit/s leave in each direction.
    pub mbit: u16,
    /// How far apart they are.
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
    /// As the events of a Poisson process.
    Poisson,
}

impl Cover {
    /// The schedule; none for a rate that there is not.
    pub fn tier(self) -> Option<CoverTier> {
        let kind = match self.schedule {
            Schedule::Constant => CoverKind::Constant,
            Schedule::Poisson => CoverKind::Poisson,
        };
        CoverTier::new(self.mbit, kind)
    }
}

impl fmt::Display for Cover {
    /// As in a hosts file.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let schedule = match self.schedule {
            Schedule::Constant => "constant",
            Schedule::Poisson => "poisson",
        };
        let mbit = self.mbit;
        writeln!(f, "[[cover]]\nname = \"lab\"\nmbit = {mbit}\nschedule = \"{schedule}\"")
    }
}

/// How hosts speak with each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Circuits {
    /// Routers carry their cells as routes go.
    #[default]
    Off,
    /// Over circuits alone.
    Require,
}

/// Cases for every pair of a loss and a round trip, both on one link.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sweep {
    /// The link that loses and delays.
    pub link: [String; 2],
    /// Shares lost in each direction.
    pub loss: Vec<f64>,
    /// Round trips.
    pub rtt_ms: Vec<f64>,
}

/// A condition on a figure.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hold {
    /// Which figure (docs/lab.md lists them).
    pub figure: String,
    /// Whose: a flow, link or node; none for all that have it.
    pub of: Option<String>,
    /// In which case; none for every one.
    pub case: Option<String>,
    /// Divide by the figure of this case.
    pub against: Option<String>,
    /// Take the figure of this case away.
    pub minus: Option<String>,
    /// Lower bound.
    pub at_least: Option<f64>,
    /// Upper bound.
    pub at_most: Option<f64>,
}

/// A figure of a paper.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Paper {
    /// What it is.
    pub what: String,
    /// The figure.
    pub value: f64,
    /// Its unit.
    pub unit: String,
    /// Where it stands.
    pub place: String,
    /// Our figure to put beside it.
    pub figure: Option<String>,
    /// Whose.
    pub of: Option<String>,
    /// In which case; none for the first.
    pub case: Option<String>,
}

impl Scenario {
    /// Reads `file`.
    ///
    /// # Errors
    /// With file, line and key.
    pub fn load(file: &Path) -> Result<Scenario, ConfigError> {
        let text = read_text(file).map_err(|e| ConfigError::unreadable(file, &e))?;
        Scenario::parse(file, &text)
    }

    /// Checks `text` as the content of `file`.
    ///
    /// # Errors
    /// With file, line and key.
    pub fn parse(file: &Path, text: &str) -> Result<Scenario, ConfigError> {
        let source = Source::new(file, text);
        let scenario: Scenario = toml::from_str(text).map_err(|e| source.syntax(&e))?;
        check::check(&scenario, &source)?;
        Ok(scenario)
    }

    /// The topology.
    pub fn network(&self) -> Topology {
        check::topology(self)
    }

    /// All its cases; at least one.
    pub fn all_cases(&self) -> Vec<Case> {
        let mut cases = self.cases.clone();
        if let Some(sweep) = &self.sweep {
            for rtt in &sweep.rtt_ms {
                for loss in &sweep.loss {
                    cases.push(Case {
                        name: format!("{rtt} ms, {}%", (loss * 1e6).round() / 1e4),
                        links: Line {
                            loss: Some(*loss),
                            delay_ms: Some(rtt / 2.0),
                            emulate: Some(true),
                            ..Line::default()
                        },
                        link: Some(sweep.link.clone()),
                        events: true,
                        keep_order: true,
                        series: format!("RTT {rtt} ms"),
                        ..Case::default()
                    });
                }
            }
        }
        if cases.is_empty() {
            cases.push(Case {
                name: "all".into(),
                events: true,
                keep_order: true,
                ..Case::default()
            });
        }
        cases
    }

    /// Names of its cases, in the order in which they run.
    pub fn case_names(&self) -> Vec<String> {
        match self.kind {
            Kind::Programs => crate::programs::case_names(self),
            Kind::Moving => crate::moving::case_names(self),
            Kind::Translators => {
                let cells = self.cells.iter().map(Cell::name);
                cells.chain([crate::translators::ALL.to_owned()]).collect()
            }
            _ => self.all_cases().into_iter().map(|case| case.name).collect(),
        }
    }

    /// Conditions of each link in `case`, in the topology's order.
    pub fn conditions(&self, topology: &Topology, case: &Case) -> Vec<Conditions> {
        let is = |link: usize, names: &[String; 2]| {
            let l = topology.links[link];
            let ends = [&topology.nodes[l.a].name, &topology.nodes[l.b].name];
            ends == [&names[0], &names[1]] || ends == [&names[1], &names[0]]
        };
        (0..topology.links.len())
            .map(|link| {
                let own = self.link.iter().rfind(|l| is(link, &l.between));
                let mut line = own.map_or(Line::default(), |l| l.line).or(self.links);
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
