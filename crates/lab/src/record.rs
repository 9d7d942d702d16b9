//! The data of a report, and its JSON form.

use serde::{Deserialize, Serialize};

/// Version of the JSON form: grows when a field changes its meaning or goes away.
pub const VERSION: u32 = 1;

/// Everything about a scenario's runs.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Report {
    /// Version of this form, [`VERSION`].
    pub version: u32,
    /// The scenario's name.
    pub name: String,
    /// Its title.
    pub title: String,
    /// What the scenario shows.
    pub about: String,
    /// When it was made, in seconds since 1970.
    pub made_unix_s: u64,
    /// Where.
    pub machine: Machine,
    /// How links were made.
    pub links: String,
    /// The network.
    pub drawing: Drawing,
    /// One per case.
    pub cases: Vec<Case>,
    /// A paper's figures beside ours.
    pub papers: Vec<PaperRow>,
    /// Figures over cases; reports that were written without it have none.
    #[serde(default)]
    pub plots: Vec<Plot>,
    /// Conditions on figures, and whether they held.
    pub holds: Vec<Outcome>,
    /// Tables and bars of experiments without a network.
    pub tables: Vec<Table>,
    /// Reasons to doubt the figures, such as a machine without idle time.
    pub doubts: Vec<String>,
}

impl Report {
    /// Whether all conditions held.
    pub fn holds(&self) -> bool {
        self.holds.iter().all(|h| h.holds)
    }
}

/// The machine that a report was made on.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Machine {
    /// Kernel release.
    pub kernel: String,
    /// Processor, as it calls itself.
    pub processor: String,
    /// How many of them.
    pub processors: usize,
}

/// A network to be drawn.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Drawing {
    /// Names, and whether each is a `router`, a `host` or `plain`.
    pub nodes: Vec<(String, String)>,
    /// Ends by their places in `nodes`, and what the link is like.
    pub links: Vec<(usize, usize, String)>,
}

/// One variation of the scenario.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Case {
    /// Its name.
    pub name: String,
    /// The curve over loss that it belongs to; empty for none.
    pub series: String,
    /// Loss over the first flow's path, 0 to 1.
    pub path_loss: f64,
    /// Every run.
    pub runs: Vec<Run>,
    /// Medians of the runs' figures.
    pub figures: Vec<Figure>,
}

/// One run.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Run {
    /// How long the traffic went on.
    pub seconds: f64,
    /// Idle share of the machine's processors.
    pub idle: f64,
    /// Times of the samples, in seconds after the start of the traffic.
    pub times: Vec<f64>,
    /// What was sampled.
    pub curves: Vec<Curve>,
    /// Events of links and nodes.
    pub events: Vec<Mark>,
    /// Changes of routes.
    pub routes: Vec<Mark>,
    /// What each node, program and the emulator used.
    pub nodes: Vec<NodeUse>,
    /// Its figures.
    pub figures: Vec<Figure>,
    /// Drops by node and reason.
    pub drops: Vec<(String, String, u64)>,
}

/// Something sampled over time.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Curve {
    /// Which plot it is part of: `goodput`, `cpu`, `queue` or `memory`.
    pub plot: String,
    /// Whose it is.
    pub name: String,
    /// One value per sample.
    pub values: Vec<f64>,
}

/// Something that happened at a time.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Mark {
    /// Seconds after the start of the traffic.
    pub at_s: f64,
    /// What.
    pub text: String,
}

/// What a process used.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct NodeUse {
    /// Its name.
    pub name: String,
    /// CPU seconds while the traffic went on.
    pub cpu_s: f64,
    /// Largest resident memory in bytes.
    pub memory_bytes: u64,
}

/// A figure.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// Which (docs/lab.md).
    pub name: String,
    /// Whose: a flow, a link, a node; empty for the whole run.
    pub of: String,
    /// The value; the median where there are several runs.
    pub value: f64,
    /// The smallest of several.
    pub low: f64,
    /// The largest of several.
    pub high: f64,
}

/// A paper's figure beside ours.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct PaperRow {
    /// What it is.
    pub what: String,
    /// Its unit.
    pub unit: String,
    /// What the paper says.
    pub paper: f64,
    /// Where it says so.
    pub place: String,
    /// What was found here.
    pub ours: Option<f64>,
}

/// A figure over a number that differs from case to case.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Plot {
    /// What it shows.
    pub title: String,
    /// What runs to the right, with its unit.
    pub x: String,
    /// What runs up, with its unit.
    pub y: String,
    /// Whether each doubling to the right is as wide as the next.
    pub doublings: bool,
    /// What is drawn.
    pub lines: Vec<Points>,
}

/// A line of a plot.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Points {
    /// Its name.
    pub name: String,
    /// The number, and the figure or value.
    pub points: Vec<(f64, f64)>,
    /// Whether these are values that were not measured.
    pub known: bool,
}

/// A condition, and whether it held.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Outcome {
    /// The condition.
    pub rule: String,
    /// The figure found.
    pub found: String,
    /// Whether it holds.
    pub holds: bool,
}

/// A table, drawn as bars too where it has a numeric column for it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Table {
    /// Its title.
    pub title: String,
    /// Names of the columns; the first names the rows.
    pub columns: Vec<String>,
    /// Rows: a name and one value per further column.
    pub rows: Vec<(String, Vec<Option<f64>>)>,
    /// What the values are.
    pub unit: String,
    /// Rows have units of their own, so that bars would compare nothing.
    #[serde(default)]
    pub mixed: bool,
}
