//! A report as one HTML page without scripts or external files; plots are inline SVG.
//!
//! Input: a [`ScenarioReport`]. Output: text. The page follows the reader's light or dark mode, and
//! fits the width of a phone.

mod attack;
mod model;
mod plot;
mod recognise;
mod topology;

use std::fmt::Write;

use shoal_cli::units::utc;

use crate::figures::{self, number};
use crate::record::{
    self, CaseRecord, Figure, PlotPoints, ReportTable, RunRecord, ScenarioReport, TimedEvent,
};
pub use attack::{page as attack_page, pictures as attack_pictures};
pub use model::model;
use plot::{LineStyle, PlotFrame, PlotLine};
pub use recognise::page as recognise_page;

/// With more cases than this, cases are folded until the reader opens them.
const OPEN_MAX: usize = 2;
/// Limit of curves in one plot: more can't be told apart.
const CURVES_MAX: usize = 12;

const STYLE: &str = include_str!("html/style.css");

/// The page of one report.
pub fn page(report: &ScenarioReport) -> String {
    let mut body = head(report);
    verdict(&mut body, report);
    papers(&mut body, report);
    over_cases(&mut body, report);
    if !report.drawing.nodes.is_empty() {
        section(&mut body, "Network", &topology::draw(&report.drawing, "Network"));
    }
    for table in &report.tables {
        let bars = if table.mixed { String::new() } else { plot::bars(table) };
        section(&mut body, &table.title, &(bars + &table_of(table)));
    }
    if let Some(text) = loss_plot(report) {
        section(&mut body, "Loss and goodput", &text);
    }
    if report.cases.len() > OPEN_MAX {
        section(&mut body, "All cases", &overview(report));
    }
    for case in &report.cases {
        case_section(&mut body, case, report.cases.len() <= OPEN_MAX);
    }
    wrap(&report.title, &body)
}

/// The page that compares two reports side by side.
pub fn compare(a: &ScenarioReport, b: &ScenarioReport) -> String {
    let mut body = format!("<h1>{} and {}</h1>", escape(&a.title), escape(&b.title));
    let made =
        |r: &ScenarioReport| format!("{}, {}", utc(r.made_unix_s), escape(&r.machine.kernel));
    let _ = write!(body, "<p>A: {}. B: {}.</p>", made(a), made(b));
    for remark in remarks(a, b) {
        let _ = write!(body, "<p class=\"bad\">{}</p>", escape(&remark));
    }
    let mut rows = String::new();
    for row in rows_of_both(a, b) {
        let class = if (row.ratio - 1.0).abs() > 0.05 { " class=\"differs\"" } else { "" };
        let _ = write!(
            rows,
            "<tr{class}><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
            escape(&row.case),
            escape(&row.name),
            number(row.a),
            number(row.b),
            number(row.ratio)
        );
    }
    let head = "<tr><th>case</th><th>figure</th><th>A</th><th>B</th><th>B / A</th></tr>";
    section(&mut body, "Figures", &scroll(&format!("<table>{head}{rows}</table>")));
    let mut sides = String::new();
    for (name, report) in [("A", a), ("B", b)] {
        let _ = write!(sides, "<div><h3>{name}</h3>");
        for case in &report.cases {
            let _ = write!(sides, "<h4>{}</h4>{}", escape(&case.name), plots(case));
        }
        sides += "</div>";
    }
    section(&mut body, "Over time", &format!("<div class=\"sides\">{sides}</div>"));
    wrap("Two runs", &body)
}

/// Limit of listed figures that only one report has.
const ALONE: usize = 8;

/// A figure of two reports.
#[derive(Clone, Debug)]
pub struct ComparedFigure {
    pub case: String,
    /// Name of the figure, and its subject.
    pub name: String,
    /// Value in the first report.
    pub a: f64,
    /// Value in the second report.
    pub b: f64,
    /// The second divided by the first.
    pub ratio: f64,
}

/// Reasons to doubt a comparison of two reports.
pub fn remarks(a: &ScenarioReport, b: &ScenarioReport) -> Vec<String> {
    let mut out = Vec::new();
    if a.name != b.name {
        out.push(format!("different scenarios: A is of {:?}, B of {:?}", a.name, b.name));
    }
    if a.machine.kernel != b.machine.kernel || a.machine.processor != b.machine.processor {
        out.push("A and B are of different machines or kernels".into());
    }
    for (side, one, other) in [("A", a, b), ("B", b, a)] {
        let alone = alone(one, other);
        let named = alone.iter().take(ALONE).cloned().collect::<Vec<_>>().join(", ");
        match alone.len().checked_sub(ALONE) {
            None if alone.is_empty() => {}
            None | Some(0) => out.push(format!("only in {side}: {named}")),
            Some(more) => out.push(format!("only in {side}: {named} and {more} more")),
        }
        out.extend(one.doubts.iter().map(|doubt| format!("{side}: {doubt}")));
        let failed = one.holds.iter().filter(|hold| !hold.holds);
        out.extend(failed.map(|hold| format!("{side}: fails: {}: {}", hold.rule, hold.found)));
    }
    out
}

/// Figures of `one` that `other` lacks.
fn alone(one: &ScenarioReport, other: &ScenarioReport) -> Vec<String> {
    let mut out = Vec::new();
    for case in &one.cases {
        let beside = other.cases.iter().find(|c| c.name == case.name);
        for figure in &case.figures {
            let same = |f: &Figure| f.name == figure.name && f.of == figure.of;
            if !beside.is_some_and(|case| case.figures.iter().any(same)) {
                out.push(format!("{} {} {}", case.name, figure.name, figure.of));
            }
        }
    }
    out
}

/// All figures that both reports have.
pub fn rows_of_both(a: &ScenarioReport, b: &ScenarioReport) -> Vec<ComparedFigure> {
    let mut rows = Vec::new();
    for case in &a.cases {
        let Some(other) = b.cases.iter().find(|c| c.name == case.name) else { continue };
        for figure in &case.figures {
            let same = |f: &&Figure| f.name == figure.name && f.of == figure.of;
            let Some(found) = other.figures.iter().find(same) else { continue };
            rows.push(ComparedFigure {
                case: case.name.clone(),
                name: format!("{} {}", figure.name, figure.of),
                a: figure.value,
                b: found.value,
                ratio: found.value / figure.value,
            });
        }
    }
    rows
}

fn wrap(title: &str, body: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <meta name=\"color-scheme\" content=\"light dark\">\
         <link rel=\"icon\" href=\"data:,\">\
         <title>{}</title><style>{STYLE}</style></head><body><main>{body}</main></body></html>\n",
        escape(title)
    )
}

fn head(report: &ScenarioReport) -> String {
    let m = &report.machine;
    let mut text = format!("<h1>{}</h1><p>{}</p>", escape(&report.title), escape(&report.about));
    let _ = write!(
        text,
        "<p class=\"dim\">{} · {} · {} × {} · Linux {}{}{}</p>",
        escape(&report.name),
        utc(report.made_unix_s),
        m.processors,
        escape(&m.processor),
        escape(&m.kernel),
        if report.links.is_empty() { "" } else { " · " },
        escape(&report.links)
    );
    text
}

fn verdict(body: &mut String, report: &ScenarioReport) {
    for doubt in &report.doubts {
        let _ = write!(body, "<p class=\"bad\">{}</p>", escape(doubt));
    }
    if report.holds.is_empty() {
        return;
    }
    let mut rows = String::new();
    for outcome in &report.holds {
        let (class, word) = if outcome.holds { ("good", "holds") } else { ("bad", "FAILS") };
        let _ = write!(
            rows,
            "<tr><td class=\"{class}\">{word}</td><td>{}</td><td>{}</td></tr>",
            escape(&outcome.rule),
            escape(&outcome.found)
        );
    }
    let head = "<tr><th></th><th>condition</th><th>found</th></tr>";
    section(body, "Conditions", &scroll(&format!("<table>{head}{rows}</table>")));
}

fn papers(body: &mut String, report: &ScenarioReport) {
    if report.papers.is_empty() {
        return;
    }
    let mut rows = String::new();
    for row in &report.papers {
        let _ = write!(
            rows,
            "<tr><td>{} <span class=\"dim\">({})</span></td><td>{} {u}</td><td>{} {u}</td></tr>",
            escape(&row.what),
            escape(&row.place),
            number(row.paper),
            row.ours.map_or("not measured".into(), number),
            u = escape(&row.unit)
        );
    }
    let head = "<tr><th>what</th><th>the paper</th><th>here</th></tr>";
    let table = scroll(&format!("<table>{head}{rows}</table>"));
    section(body, "The paper and Shoal", &table);
}

fn over_cases(body: &mut String, report: &ScenarioReport) {
    if report.plots.is_empty() {
        return;
    }
    let line = |line: &PlotPoints| {
        let drawn = if line.known { LineStyle::Crosses } else { LineStyle::Dotted };
        PlotLine { name: line.name.clone(), points: line.points.clone(), drawn }
    };
    let mut text = String::new();
    for record::RecordedPlot { title, x, y, doublings, lines } in &report.plots {
        let plot = PlotFrame { title, x, y, marks: &[], doublings: *doublings };
        text += &plot.draw(&lines.iter().map(line).collect::<Vec<_>>());
    }
    if report.plots.iter().flat_map(|plot| &plot.lines).any(|line| line.known) {
        text += "<p class=\"dim\">Crosses are values that were not measured here.</p>";
    }
    section(body, "Over cases", &text);
}

fn loss_plot(report: &ScenarioReport) -> Option<String> {
    let mut names: Vec<&str> = report.cases.iter().map(|c| c.series.as_str()).collect();
    names.retain(|n| !n.is_empty());
    names.dedup();
    if names.is_empty() {
        return None;
    }
    let value = |c: &CaseRecord| c.figures.iter().find(|f| f.name == "rate_mbit").map(|f| f.value);
    let line = |name: &&str| {
        let cases = report.cases.iter().filter(|c| c.series == *name);
        let points = cases.filter_map(|c| Some((c.path_loss * 100.0, value(c)?))).collect();
        PlotLine { name: (*name).into(), points, drawn: LineStyle::Dotted }
    };
    let lines: Vec<PlotLine> = names.iter().map(line).collect();
    let (x, y) = ("loss in %", "Mbit/s of file");
    let plot = PlotFrame { title: "Goodput", x, y, marks: &[], doublings: false };
    Some(plot.draw(&lines))
}

fn overview(report: &ScenarioReport) -> String {
    let mut columns: Vec<(&str, &str)> = Vec::new();
    for figure in report.cases.iter().flat_map(|c| &c.figures) {
        let key = (figure.name.as_str(), figure.of.as_str());
        let per_node = ["cpu_s", "kernel_s", "memory_mb", "memory_growth"].contains(&key.0);
        if !per_node && !columns.contains(&key) {
            columns.push(key);
        }
    }
    columns.truncate(CURVES_MAX);
    let mut text = String::from("<table><tr><th>case</th>");
    for (name, of) in &columns {
        let _ = write!(text, "<th>{} {}</th>", escape(name), escape(of));
    }
    text += "</tr>";
    for case in &report.cases {
        let _ = write!(text, "<tr><td>{}</td>", escape(&case.name));
        for (name, of) in &columns {
            let found = case.figures.iter().find(|f| f.name == *name && f.of == *of);
            let _ = write!(text, "<td>{}</td>", found.map_or("".into(), |f| number(f.value)));
        }
        text += "</tr>";
    }
    scroll(&(text + "</table>"))
}

fn case_section(body: &mut String, case: &CaseRecord, open: bool) {
    let open = if open { " open" } else { "" };
    let _ = write!(body, "<details{open}><summary>Case: {}</summary>", escape(&case.name));
    *body += &plots(case);
    let mut rows = String::new();
    for f in &case.figures {
        let spread = match case.runs.len() {
            0 | 1 => String::new(),
            _ => format!("{} to {}", number(f.low), number(f.high)),
        };
        let _ = write!(
            rows,
            "<tr><td>{}</td><td>{}</td><td>{} {}</td><td>{spread}</td></tr>",
            escape(&f.name),
            escape(&f.of),
            number(f.value),
            figures::unit(&f.name),
        );
    }
    let head = "<tr><th>figure</th><th>of</th><th>median</th><th>spread</th></tr>";
    *body += &scroll(&format!("<table>{head}{rows}</table>"));
    if let Some(run) = case.runs.first() {
        marks(body, "Events", &run.events);
        marks(body, "Changes of routes", &run.routes);
        drops(body, run);
    }
    *body += "</details>";
}

/// All curves over time, of the first run.
fn plots(case: &CaseRecord) -> String {
    let Some(run) = case.runs.first() else { return String::new() };
    let mut text = String::new();
    let kinds = [
        ("goodput", "Goodput", "Mbit/s of payload"),
        ("queue", "Longest wait in emulated queues", "ms"),
        ("cpu", "Processor time", "% of one processor"),
        ("memory", "Resident memory", "MB"),
    ];
    for (kind, title, y) in kinds {
        let mut lines: Vec<PlotLine> = run
            .curves
            .iter()
            .filter(|c| c.plot == kind)
            .map(|c| PlotLine {
                name: c.name.clone(),
                points: run.times.iter().copied().zip(c.values.iter().copied()).collect(),
                drawn: LineStyle::Curve,
            })
            .collect();
        let most = |l: &PlotLine| l.points.iter().map(|p| p.1).fold(0.0, f64::max);
        lines.sort_by(|x, y| most(y).total_cmp(&most(x)));
        lines.truncate(CURVES_MAX);
        lines.sort_by(|x, y| x.name.cmp(&y.name));
        if !lines.is_empty() {
            let plot = PlotFrame { title, x: "seconds", y, marks: &run.events, doublings: false };
            text += &plot.draw(&lines);
        }
    }
    text
}

fn marks(body: &mut String, title: &str, marks: &[TimedEvent]) {
    if marks.is_empty() {
        return;
    }
    let _ = write!(body, "<h3>{title}</h3><ul>");
    for mark in marks.iter().take(200) {
        let _ = write!(body, "<li>{:.2} s: {}</li>", mark.at_s, escape(&mark.text));
    }
    if marks.len() > 200 {
        let _ = write!(body, "<li>and {} more</li>", marks.len() - 200);
    }
    *body += "</ul>";
}

fn drops(body: &mut String, run: &RunRecord) {
    if run.drops.is_empty() {
        return;
    }
    let row = |(node, reason, count): &(String, String, u64)| {
        format!("<tr><td>{}</td><td>{}</td><td>{count}</td></tr>", escape(node), escape(reason))
    };
    let rows: String = run.drops.iter().map(row).collect();
    let head = "<tr><th>node</th><th>reason</th><th>count</th></tr>";
    let table = scroll(&format!("<table>{head}{rows}</table>"));
    let _ = write!(body, "<h3>Drops since the nodes' start</h3>{table}");
}

fn table_of(table: &ReportTable) -> String {
    let mut text = String::from("<table><tr>");
    for column in &table.columns {
        let _ = write!(text, "<th>{}</th>", escape(column));
    }
    text += "</tr>";
    for (name, values) in &table.rows {
        let _ = write!(text, "<tr><td>{}</td>", escape(name));
        for value in values {
            let _ = write!(text, "<td>{}</td>", value.map_or("".into(), number));
        }
        text += "</tr>";
    }
    let _ = write!(text, "</table><p class=\"dim\">{}</p>", escape(&table.unit));
    scroll(&text)
}

fn section(body: &mut String, title: &str, content: &str) {
    let _ = write!(body, "<section><h2>{}</h2>{content}</section>", escape(title));
}

/// Wraps a table so that it scrolls by itself on a narrow screen.
fn scroll(table: &str) -> String {
    format!("<div class=\"scroll\">{table}</div>")
}

/// Escapes text for HTML.
fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out += "&amp;",
            '<' => out += "&lt;",
            '>' => out += "&gt;",
            '"' => out += "&quot;",
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod browser_tests;
#[cfg(test)]
mod tests;
