//! The page of the attacker's experiments.

use std::fmt::Write;

use shoal_attack::scenarios::AttackScenario;
use shoal_attack::{AttackResult, Interval};

use super::plot::{LineStyle, PlotFrame, PlotLine};
use super::{escape, scroll, section, wrap};
use crate::attack::{AttackReport, AttackRow};

const ABOUT: &str = "An attacker observes the access links of all hosts in both directions, and \
    pairs them: which host talks with which. The attacker knows the strategy with its parameters, \
    and the mean rates. Everything but captures runs in virtual time. The reported attack was \
    selected on other networks than the measured ones. Intervals cover the middle 95% of a \
    figure's values when networks, and flows in each, are drawn again 400 times. A logistic \
    fusion with votes over parts of the time replaces correlation by neural networks.";

/// The page of one report: conditions, curves, and a table for each scenario.
pub fn page(report: &AttackReport) -> String {
    let size = report.size;
    let mut body = format!(
        "<h1>Anonymity with mixes and cover</h1><p>{}</p><p class=\"dim\">{} flows in each of {} \
         networks with conditions, {} in each of {} elsewhere; {} further networks to \
         train.</p>",
        escape(ABOUT),
        size.flows,
        size.seeds,
        size.small_flows,
        size.small_seeds,
        size.training
    );
    holds(&mut body, report);
    latency(&mut body, report);
    time(&mut body, report);
    for scenario in AttackScenario::ALL.into_iter().chain([AttackScenario::Capture]) {
        let rows: Vec<&AttackRow> = report.of(scenario).collect();
        if !rows.is_empty() {
            let curves = if rows.iter().any(|row| row.series.is_some()) {
                String::new()
            } else {
                rates(&rows)
            };
            section(&mut body, &format!("Scenario: {scenario}"), &(curves + &table(&rows)));
        }
    }
    wrap("Anonymity with mixes and cover", &body)
}

fn holds(body: &mut String, report: &AttackReport) {
    let mut rows = String::new();
    for (row, check) in report.checks() {
        let (class, word) = if check.holds { ("good", "holds") } else { ("bad", "FAILS") };
        let _ = write!(
            rows,
            "<tr><td class=\"{class}\">{word}</td><td>{}: {}</td><td>{}</td><td>{}</td></tr>",
            row.scenario,
            escape(&row.case),
            escape(&check.rule),
            escape(&check.found)
        );
    }
    if !rows.is_empty() {
        let head = "<tr><th></th><th>case</th><th>condition</th><th>found</th></tr>";
        section(body, "Conditions", &scroll(&format!("<table>{head}{rows}</table>")));
    }
}

/// The curves of a scenario: one line per series.
fn lines(
    rows: &[&AttackRow],
    x: impl Fn(&AttackRow) -> f64,
    y: impl Fn(&AttackResult) -> f64,
) -> Vec<PlotLine> {
    let mut lines: Vec<PlotLine> = Vec::new();
    for row in rows {
        let Some(name) = &row.series else { continue };
        let point = (x(row), y(&row.outcome));
        match lines.iter_mut().find(|line| line.name == *name) {
            Some(line) => line.points.push(point),
            None => {
                let drawn = LineStyle::Dotted;
                lines.push(PlotLine { name: name.clone(), points: vec![point], drawn });
            }
        }
    }
    // Sorted by x, since latencies are measured.
    lines.iter_mut().for_each(|line| line.points.sort_by(|a, b| a.0.total_cmp(&b.0)));
    lines
}

/// Plots of success over added latency, one for each observed time and figure.
fn latency_plots(
    report: &AttackReport,
    mut take: impl FnMut(&str, u32, &PlotFrame<'_>, &[PlotLine]),
) {
    let rows: Vec<&AttackRow> = report.of(AttackScenario::Latency).collect();
    let mut times: Vec<u32> = rows.iter().map(|row| row.seconds).collect();
    times.dedup();
    for seconds in times {
        let rows: Vec<&AttackRow> =
            rows.iter().copied().filter(|row| row.seconds == seconds).collect();
        let x = |row: &AttackRow| row.outcome.cost.added_ms;
        for (name, what, y) in FIGURES {
            let title = format!("{what}, {seconds} s observed");
            let plot = PlotFrame {
                title: &title,
                x: "added latency in ms, one way",
                y: "share",
                marks: &[],
                doublings: false,
            };
            take(name, seconds, &plot, &lines(&rows, x, y));
        }
    }
}

fn latency(body: &mut String, report: &AttackReport) {
    let mut text = String::new();
    latency_plots(report, |_, _, plot, lines| text += &plot.draw(lines));
    if !text.is_empty() {
        section(body, "Success over added latency", &text);
    }
}

type Of = fn(&AttackResult) -> f64;

/// Figures drawn over latency and time: part of the file name, title, and value.
const FIGURES: [(&str, &str, Of); 2] = [
    ("first", "True pair ranked first", |outcome| outcome.rates.top1.value),
    ("one-in-100", "True pairs found at one wrong in 100", |outcome| {
        outcome.rates.at_1_in_100.value
    }),
];

/// Plots of success over observed time, one for each figure.
fn time_plots(report: &AttackReport, mut take: impl FnMut(&str, &PlotFrame<'_>, &[PlotLine])) {
    let rows: Vec<&AttackRow> = report.of(AttackScenario::Time).collect();
    if rows.is_empty() {
        return;
    }
    for (name, what, y) in FIGURES {
        let plot = PlotFrame {
            title: what,
            x: "seconds observed",
            y: "share",
            marks: &[],
            doublings: false,
        };
        take(name, &plot, &lines(&rows, |row| f64::from(row.seconds), y));
    }
}

fn time(body: &mut String, report: &AttackReport) {
    let mut text = String::new();
    time_plots(report, |_, plot, lines| text += &plot.draw(lines));
    if !text.is_empty() {
        section(body, "Success over observed time", &text);
    }
}

/// The plots of a report as separate pictures: file name and SVG.
pub fn pictures(report: &AttackReport) -> Vec<(String, String)> {
    let mut all = Vec::new();
    latency_plots(report, |name, seconds, plot, lines| {
        all.push((format!("latency-{seconds}s-{name}.svg"), plot.picture(lines)));
    });
    time_plots(report, |name, plot, lines| {
        all.push((format!("time-{name}.svg"), plot.picture(lines)));
    });
    all
}

/// ROC curves of the first cases.
fn rates(rows: &[&AttackRow]) -> String {
    let line = |row: &&AttackRow| PlotLine {
        name: row.case.clone(),
        points: row.outcome.rates.curve.clone(),
        drawn: LineStyle::Curve,
    };
    let lines: Vec<PlotLine> = rows.iter().take(super::CURVES_MAX).map(line).collect();
    let plot = PlotFrame {
        title: "True pairs over wrong pairs that pass a threshold",
        x: "share of wrong pairs",
        y: "share of true pairs",
        marks: &[],
        doublings: false,
    };
    plot.draw(&lines)
}

fn table(rows: &[&AttackRow]) -> String {
    let interval = |i: Interval| {
        let text = format!("{:.3}", i.value);
        format!("<td>{text} <span class=\"dim\">{:.3} to {:.3}</span></td>", i.low, i.high)
    };
    let mut text = String::from(
        "<table><tr><th>case</th><th>attack</th><th>cells/s of a flow</th><th>frames/s of a \
         link</th><th>added ms</th><th>area under the curve</th><th>top-1</th><th>guess</th>\
         <th>one to one</th><th>bits</th><th>true at 1% wrong</th><th>at 0.1%</th>\
         <th>labels shuffled</th></tr>",
    );
    for row in rows {
        let (outcome, rates) = (&row.outcome, &row.outcome.rates);
        let _ = write!(
            text,
            "<tr><td>{}</td><td>{}</td><td>{:.0}</td><td>{:.0}</td><td>{:.1}</td>",
            escape(&row.case),
            escape(&outcome.attack),
            outcome.cost.cells_per_s,
            outcome.cost.frames_per_s,
            outcome.cost.added_ms
        );
        text += &interval(rates.auc);
        text += &interval(rates.top1);
        let (guess, assigned, bits) = (rates.guess, rates.assigned, rates.bits);
        let _ = write!(text, "<td>{guess:.3}</td><td>{assigned:.3}</td><td>{bits:.2}</td>");
        text += &interval(rates.at_1_in_100);
        text += &interval(rates.at_1_in_1000);
        text += &interval(outcome.shuffled);
        text += "</tr>";
    }
    scroll(&(text + "</table>"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attack::run;
    use shoal_attack::scenarios::Size;

    #[test]
    fn a_page_has_curves_and_figures() {
        let size = Size { flows: 4, seeds: 1, small_flows: 4, small_seeds: 1, training: 2 };
        let report =
            run(&[AttackScenario::None, AttackScenario::Latency], size, &|_, _, _| {}).unwrap();
        let page = page(&report);
        assert!(page.contains("Success over added latency") && page.contains("<svg"));
        assert!(page.contains("constant rate, 10 s") && page.contains("all programs, 10 s"));
        assert!(!page.contains("Success over observed time") && !page.contains("NaN"));
        assert_eq!(report.checks().count(), 2);
        let pictures = pictures(&report);
        assert_eq!(pictures.len(), 4);
        let (name, picture) = &pictures[2];
        assert_eq!(name, "latency-10s-first.svg");
        assert!(picture.starts_with("<svg xmlns=") && picture.trim_end().ends_with("</svg>"));
        assert!(picture.contains("True pair ranked first, 10 s observed"));
        assert_eq!(picture.matches("class=\"curve").count(), 2 * 4, "curves and their keys");
    }
}
