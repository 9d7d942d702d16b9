//! Formats a report as text.

use core::fmt::Write;

use crate::figures::{FigureRow, FigureTable};
use crate::filling::FillRow;
use crate::findings::PaperError;
use crate::report::{HoldRow, ModelReport, WindowRow};

/// Longest line of an explanation, in characters.
const LINE_CHARS: usize = 92;
/// Gap between columns.
const GAP: &str = "  ";

/// Formats a report with at most 100 characters per line and a line break at the end.
pub fn render(report: &ModelReport) -> String {
    let mut parts = Vec::new();
    if !report.findings.is_empty() {
        parts.push(findings(&report.findings));
    }
    if !report.windows.is_empty() {
        parts.push(windows(&report.windows));
    }
    if !report.holds.is_empty() {
        parts.push(holds(&report.holds));
    }
    parts.extend(report.figures.iter().map(figure));
    let runs = report.runs;
    parts.push(format!(
        "simulated: means of {} runs of {} s, seeds from {}; the same seeds give the same text\n",
        runs.seeds, runs.seconds, runs.seed
    ));
    parts.join("\n")
}

fn findings(all: &[PaperError]) -> String {
    let mut out = String::from("Statements of the paper, and our results\n");
    for (i, finding) in all.iter().enumerate() {
        // Writing to a string does not fail.
        let _ = writeln!(out, "\n{}. {}", i + 1, finding.about);
        let _ = writeln!(out, "   paper: {}", finding.paper);
        let _ = writeln!(out, "   here:  {}", finding.ours);
        wrap(&mut out, "   ", finding.why);
    }
    out
}

fn windows(all: &[WindowRow]) -> String {
    let heading = ["dupthresh", "paper", "(42) summed", "all orders counted", "Theorem 2: at most"];
    let cells = |row: &WindowRow| {
        let numbers = [row.paper, Some(row.printed), Some(row.corrected), Some(row.bound)];
        let numbers = numbers.map(number);
        [vec![row.dupthresh.to_string()], numbers.to_vec()].concat()
    };
    let rows: Vec<_> = all.iter().map(cells).collect();
    format!("E(W), the mean window when it is halved, packets\n{}", table(&heading, &rows))
}

fn holds(all: &[HoldRow]) -> String {
    let heading = ["hold, ms", "no cap", "cap of 25 ms"];
    let cells = |row: &HoldRow| {
        let hold = if row.hold_ms == 0 { "none".into() } else { row.hold_ms.to_string() };
        vec![hold, number(Some(row.uncapped_pps)), number(Some(row.capped_pps))]
    };
    let rows: Vec<_> = all.iter().map(cells).collect();
    let mut out = String::from("Order restored in front of TCP, dupthresh 3, packets/s\n");
    out.push_str(&table(&heading, &rows));
    let why = "A hold shorter than the longest delay still lets packets through out of order, and \
               throughput stays low. A cap on delays makes a short hold enough.";
    wrap(&mut out, "", why);
    out
}

fn figure(figure: &FigureTable) -> String {
    let heading =
        [figure.axis, "paper: theory", "paper: seen", "as printed", "corrected", "simulated"];
    let cells = |row: &FigureRow| {
        let x = format!("{:.1}", row.x);
        let x = x.strip_suffix(".0").unwrap_or(&x).to_string();
        let numbers = [row.paper_theory, row.paper_seen, row.printed, row.corrected, row.simulated];
        [vec![x], numbers.map(number).to_vec()].concat()
    };
    let rows: Vec<_> = figure.rows.iter().map(cells).collect();
    let mut out = format!("Figure {}: {}\n", figure.number, figure.title);
    if !rows.is_empty() {
        out.push_str(&table(&heading, &rows));
    }
    if !figure.fills.is_empty() {
        out.push_str(&fills(&figure.fills));
    }
    wrap(&mut out, "", figure.why);
    out
}

fn fills(all: &[FillRow]) -> String {
    let heading = ["seconds until the line is full", "paper", "simulated"];
    let cells =
        |row: &FillRow| vec![row.sender.into(), number(Some(row.paper_s)), number(row.here_s)];
    table(&heading, &all.iter().map(cells).collect::<Vec<_>>())
}

/// A number with about four digits, or a dash.
fn number(value: Option<f64>) -> String {
    match value {
        None => "-".into(),
        Some(value) if value >= 100.0 => format!("{value:.1}"),
        Some(value) => format!("{value:.2}"),
    }
}

/// Formats a table with columns as wide as necessary, numbers aligned to the right.
fn table(heading: &[&str], rows: &[Vec<String>]) -> String {
    let width = |i: usize| {
        let cells = rows.iter().map(|row| row[i].len());
        cells.chain([heading[i].len()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..heading.len()).map(width).collect();
    let line = |cells: Vec<&str>| {
        let cells = cells.iter().zip(&widths).map(|(cell, &width)| format!("{cell:>width$}"));
        cells.collect::<Vec<_>>().join(GAP) + "\n"
    };
    let mut out = line(heading.to_vec());
    for row in rows {
        out.push_str(&line(row.iter().map(String::as_str).collect()));
    }
    out
}

/// Appends `text`, wrapped into lines that begin with `indent`.
fn wrap(out: &mut String, indent: &str, text: &str) {
    let mut line = indent.to_string();
    for word in text.split_whitespace() {
        if line.len() + word.len() > LINE_CHARS && line.len() > indent.len() {
            out.push_str(line.trim_end());
            out.push('\n');
            line = indent.to_string();
        }
        line.push_str(word);
        line.push(' ');
    }
    out.push_str(line.trim_end());
    out.push('\n');
}
