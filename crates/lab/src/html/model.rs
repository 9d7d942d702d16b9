//! The page of `shoal-lab model`: each figure of the paper with its published values beside ours.

use std::fmt::Write;

use shoal_model::{
    FigureRow, FigureTable, FillRow, HoldRow, ModelReport, PaperError, TcpExperiment, WindowRow,
};

use super::plot::{LineStyle, PlotFrame, PlotLine};
use super::{escape, scroll, section, wrap};
use crate::figures::number;

const TITLE: &str = "Cost of mixes for TCP";
const ABOUT: &str = "The figures of X. Fu, W. Yu, S. Jiang, S. Graham and Y. Guan, \"TCP \
                     Performance in Flow-Based Mix Networks: Modeling and Analysis\": its formulas \
                     as printed, the same formulas corrected, and runs of a small simulator. \
                     Crosses are the values that the paper's text names.";
/// Axes with a logarithmic scale.
const DOUBLINGS: [&str; 2] = ["dupthresh", "Mbit/s"];

/// A column of a figure: name, drawing style, and value of a row.
type Column = (&'static str, LineStyle, fn(&FigureRow) -> Option<f64>);

const COLUMNS: [Column; 5] = [
    ("in runs", LineStyle::Dotted, |row| row.simulated),
    ("formula, corrected", LineStyle::Dotted, |row| row.corrected),
    ("formula, as printed", LineStyle::Dotted, |row| row.printed),
    ("the paper: theory", LineStyle::Crosses, |row| row.paper_theory),
    ("the paper: seen", LineStyle::Crosses, |row| row.paper_seen),
];

/// The page of the model of TCP over mixes. Equal reports give equal pages.
pub fn model(report: &ModelReport) -> String {
    let runs = report.runs;
    let mut body = format!(
        "<h1>{TITLE}</h1><p>{}</p><p class=\"dim\">In runs: means of {} runs of {} s, seeds from \
         {}.</p>",
        escape(ABOUT),
        runs.seeds,
        runs.seconds,
        runs.seed
    );
    if !report.findings.is_empty() {
        section(&mut body, "Errors in the paper", &findings(&report.findings));
    }
    if !report.windows.is_empty() {
        section(&mut body, "E(W), the mean window when it is halved", &windows(&report.windows));
    }
    for figure in &report.figures {
        let title = format!("Figure {}: {}", figure.number, figure.title);
        let why = escape(figure.why);
        let numbers = if figure.fills.is_empty() { rows(figure) } else { fills(&figure.fills) };
        section(&mut body, &title, &format!("{}<p>{why}</p>{numbers}", draw(figure)));
    }
    if !report.holds.is_empty() {
        section(&mut body, "Order restored in front of TCP", &holds(&report.holds));
    }
    wrap(TITLE, &body)
}

/// The plot of a figure. In a plot over time, a value that the paper gives without a time is drawn
/// as a level.
fn draw(figure: &FigureTable) -> String {
    let courses = figure.courses.iter().map(|course| PlotLine {
        name: course.name.into(),
        points: course.points.clone(),
        drawn: LineStyle::Curve,
    });
    let ends = figure.courses.first().and_then(|course| course.points.last());
    let is_level = ends.is_some() && figure.axis != "seconds";
    let column = |(name, drawn, value): &Column| {
        let points: Vec<_> =
            figure.rows.iter().filter_map(|row| Some((row.x, value(row)?))).collect();
        let levels = |(_, y): (f64, f64)| [(0.0, y), (ends.map_or(0.0, |end| end.0), y)];
        match is_level {
            true => PlotLine {
                name: format!("mean: {name}"),
                points: points.into_iter().flat_map(levels).collect(),
                drawn: LineStyle::Curve,
            },
            false => PlotLine { name: (*name).into(), points, drawn: *drawn },
        }
    };
    // A course has the values of the column of runs, and more.
    let columns = COLUMNS.iter().skip(usize::from(ends.is_some() && !is_level)).map(column);
    let fills = figure.fills.iter().map(|row| PlotLine {
        name: format!("the paper: {}", row.sender),
        points: vec![(row.paper_s, TcpExperiment::paper().line_pps())],
        drawn: LineStyle::Crosses,
    });
    let lines: Vec<PlotLine> =
        courses.chain(fills).chain(columns).filter(|line| !line.points.is_empty()).collect();
    let (title, y) = figure.title.rsplit_once(", ").unwrap_or((figure.title, ""));
    let x = if ends.is_some() { "seconds" } else { figure.axis };
    // Times range from tenths of a second to minutes.
    let doublings = DOUBLINGS.contains(&x) || !figure.fills.is_empty();
    PlotFrame { title, x, y, marks: &[], doublings }.draw(&lines)
}

fn rows(figure: &FigureTable) -> String {
    let mut heading = vec![figure.axis];
    heading.extend(COLUMNS.iter().map(|(name, _, _)| *name));
    let cells = |row: &FigureRow| {
        let values = COLUMNS.iter().map(|(_, _, value)| value(row));
        [Some(row.x)].into_iter().chain(values).map(shown).collect()
    };
    table(&heading, figure.rows.iter().map(cells))
}

fn fills(all: &[FillRow]) -> String {
    let cells =
        |row: &FillRow| vec![row.sender.to_string(), number(row.paper_s), shown(row.here_s)];
    table(&["seconds until the line is full", "the paper", "here"], all.iter().map(cells))
}

fn findings(all: &[PaperError]) -> String {
    let cells = |finding: &PaperError| {
        let why = finding.why.to_string();
        vec![finding.about.to_string(), finding.paper.clone(), finding.ours.clone(), why]
    };
    table(&["about", "the paper", "here", "why"], all.iter().map(cells))
}

fn windows(all: &[WindowRow]) -> String {
    let heading =
        ["dupthresh", "the paper", "(42) summed", "all orders counted", "Theorem 2: at most"];
    let cells = |row: &WindowRow| {
        let values = [row.paper, Some(row.printed), Some(row.corrected), Some(row.bound)];
        let values = values.map(shown);
        [vec![row.dupthresh.to_string()], values.to_vec()].concat()
    };
    table(&heading, all.iter().map(cells)) + "<p class=\"dim\">packets</p>"
}

fn holds(all: &[HoldRow]) -> String {
    let line = |name: &str, value: fn(&HoldRow) -> f64| PlotLine {
        name: name.into(),
        points: all.iter().map(|row| (row.hold_ms as f64, value(row))).collect(),
        drawn: LineStyle::Dotted,
    };
    let lines = [
        line("delays without a cap", |row| row.uncapped_pps),
        line("delays of at most 25 ms", |row| row.capped_pps),
    ];
    let (title, x) = ("throughput over the hold, dupthresh 3", "ms of hold");
    let plot = PlotFrame { title, x, y: "packets/s", marks: &[], doublings: false };
    let cells = |row: &HoldRow| {
        vec![row.hold_ms.to_string(), number(row.uncapped_pps), number(row.capped_pps)]
    };
    let heading = ["ms of hold, 0 for none", "without a cap", "at most 25 ms"];
    plot.draw(&lines) + &table(&heading, all.iter().map(cells))
}

fn shown(value: Option<f64>) -> String {
    value.map_or(String::new(), number)
}

fn table(heading: &[&str], rows: impl Iterator<Item = Vec<String>>) -> String {
    let mut text = String::from("<table><tr>");
    for cell in heading {
        let _ = write!(text, "<th>{}</th>", escape(cell));
    }
    text += "</tr>";
    for row in rows {
        text += "<tr>";
        for cell in row {
            let _ = write!(text, "<td>{}</td>", escape(&cell));
        }
        text += "</tr>";
    }
    scroll(&(text + "</table>"))
}
