//! The data of a report, and its JSON form.

use serde::{Deserialize, Serialize};

/// Version of the JSON form. Grows when a field changes its meaning or is removed.
pub const VERSION: u32 = 1;

/// Results of a scenario's runs.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ScenarioReport {
    /// Version of the JSON form, [`VERSION`].
    pub version: u32,
    /// Name of the scenario.
    pub name: String,
    /// Title of the scenario.
    pub title: String,
    /// Purpose of the scenario.
    pub about: String,
    /// Time of creation, in seconds since 1970.
    pub made_unix_s: u64,
    pub machine: Machine,
    /// Description of the links' implementation.
    pub links: String,
    pub drawing: Drawing,
    /// One entry per case.
    pub cases: Vec<CaseRecord>,
    /// A paper's figures beside ours.
    pub papers: Vec<PaperRow>,
    /// Plots of figures over cases. Missing in older reports.
    #[serde(default)]
    pub plots: Vec<RecordedPlot>,
    /// Conditions on figures, with their outcomes.
    pub holds: Vec<ConditionOutcome>,
    /// Tables and bars of experiments without a network.
    pub tables: Vec<ReportTable>,
    /// Reasons to doubt the figures, such as a machine without idle time.
    pub doubts: Vec<String>,
}

impl ScenarioReport {
    /// True if all conditions hold.
    pub fn holds(&self) -> bool {
        self.holds.iter().all(|h| h.holds)
    }
}

/// The machine that produced a report.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Machine {
    /// Kernel release.
    pub kernel: String,
    /// Model name of the processor.
    pub processor: String,
    /// Number of processors.
    pub processors: usize,
}

/// A network to draw.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Drawing {
    /// Name and kind of each node: `router`, `host` or `plain`.
    pub nodes: Vec<(String, String)>,
    /// Indices of both ends in `nodes`, and the link's conditions as text.
    pub links: Vec<(usize, usize, String)>,
}

/// One variation of the scenario.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct CaseRecord {
    pub name: String,
    /// Curve over loss that the case belongs to; empty for none.
    pub series: String,
    /// Loss over the first flow's path, 0 to 1.
    pub path_loss: f64,
    pub runs: Vec<RunRecord>,
    /// Medians of the runs' figures.
    pub figures: Vec<Figure>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct RunRecord {
    /// Length of the traffic in seconds.
    pub seconds: f64,
    /// Idle share of the machine's processors.
    pub idle: f64,
    /// Times of the samples, in seconds after the start of the traffic.
    pub times: Vec<f64>,
    /// Sampled values.
    pub curves: Vec<Curve>,
    /// Events of links and nodes.
    pub events: Vec<TimedEvent>,
    pub routes: Vec<TimedEvent>,
    /// Resource usage of each node, program and the emulator.
    pub nodes: Vec<NodeUse>,
    pub figures: Vec<Figure>,
    /// Node, reason and number of drops.
    pub drops: Vec<(String, String, u64)>,
}

/// A value sampled over time.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Curve {
    /// Plot of the curve: `goodput`, `cpu`, `queue` or `memory`.
    pub plot: String,
    /// Flow, node or link of the curve.
    pub name: String,
    /// One value per sample.
    pub values: Vec<f64>,
}

/// An event with its time.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct TimedEvent {
    /// Seconds after the start of the traffic.
    pub at_s: f64,
    pub text: String,
}

/// Resource usage of a process.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct NodeUse {
    pub name: String,
    /// CPU seconds during the traffic.
    pub cpu_s: f64,
    /// Largest resident memory in bytes.
    pub memory_bytes: u64,
}

/// A figure.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// Name of the figure (docs/reference/figures.md).
    pub name: String,
    /// Subject: a flow, a link or a node; empty for the whole run.
    pub of: String,
    /// The value; the median of several runs.
    pub value: f64,
    /// The smallest value of several runs.
    pub low: f64,
    /// The largest value of several runs.
    pub high: f64,
}

/// A paper's figure beside ours.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct PaperRow {
    /// Name of the figure.
    pub what: String,
    pub unit: String,
    /// Value in the paper.
    pub paper: f64,
    /// Section, figure or table of the paper.
    pub place: String,
    /// Our value, if measured.
    pub ours: Option<f64>,
}

/// A plot of a figure over a number that differs from case to case.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct RecordedPlot {
    pub title: String,
    /// Label of the x axis, with its unit.
    pub x: String,
    /// Label of the y axis, with its unit.
    pub y: String,
    /// True if the x axis is logarithmic.
    pub doublings: bool,
    pub lines: Vec<PlotPoints>,
}

/// A line of a plot.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct PlotPoints {
    pub name: String,
    /// Values of x and y.
    pub points: Vec<(f64, f64)>,
    /// True if the values were not measured.
    pub known: bool,
}

/// A condition and its outcome.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ConditionOutcome {
    pub rule: String,
    /// The measured figure.
    pub found: String,
    /// True if the condition holds.
    pub holds: bool,
}

/// A table. Also drawn as bars, unless `mixed`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ReportTable {
    pub title: String,
    /// Names of the columns; the first column has the names of the rows.
    pub columns: Vec<String>,
    /// Rows: a name, and one value per further column.
    pub rows: Vec<(String, Vec<Option<f64>>)>,
    /// Unit of the values.
    pub unit: String,
    /// True if rows have different units, so that bars would be meaningless.
    #[serde(default)]
    pub mixed: bool,
}
