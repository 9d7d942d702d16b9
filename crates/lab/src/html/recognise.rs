//! The page of the censor's classifier.

use std::fmt::Write;

use super::plot::{LineStyle, PlotFrame, PlotLine};
use super::{escape, scroll, section, wrap};
use crate::attack::recognise::{OURS, RecognitionReport};

const ABOUT: &str = "A censor sees a few consecutive datagrams between two addresses and asks \
    which program sent them. A decision forest of 60 trees is trained on captures, and \
    classifies other captures. Addresses and ports don't count. Intervals are Wilson's for 95%. \
    They count captures, not excerpts, since excerpts of one capture are much alike.";

/// Limit of listed features.
const FEATURES: usize = 15;

/// The page of one report.
pub fn page(report: &RecognitionReport) -> String {
    let found = &report.recognised;
    let mut body = format!(
        "<h1>Recognition of programs</h1><p>{}</p><p class=\"dim\">{} captures, excerpts of {} \
         datagrams. Accuracy {}; a guess {:.3}; programs shuffled {:.3}.</p>",
        escape(ABOUT),
        found.captures.iter().sum::<usize>(),
        report.datagrams,
        found.accuracy,
        found.guess,
        found.shuffled
    );
    for what in &report.missing {
        let _ = write!(body, "<p class=\"bad\">Left out: {}</p>", escape(what));
    }
    section(&mut body, "Confusion matrix", &confusion(report));
    section(&mut body, "Activities of programs", &activities(report));
    section(&mut body, "Over the datagrams seen", &curve(report));
    section(&mut body, "Features that tell programs apart", &(groups(report) + &features(report)));
    wrap("Recognition of programs", &body)
}

fn confusion(report: &RecognitionReport) -> String {
    let found = &report.recognised;
    let mut text = String::from("<table><tr><th>excerpts of</th><th>captures</th>");
    for program in &found.programs {
        let _ = write!(text, "<th>taken for {}</th>", escape(program));
    }
    text += "<th>found</th><th>others taken for it</th></tr>";
    for (i, program) in found.programs.iter().enumerate() {
        let _ = write!(text, "<tr><td>{}</td><td>{}</td>", escape(program), found.captures[i]);
        for count in &found.confusion[i] {
            let _ = write!(text, "<td>{count}</td>");
        }
        let _ = write!(text, "<td>{}</td><td>{}</td></tr>", found.found[i], found.alarms[i]);
    }
    scroll(&(text + "</table>"))
}

fn activities(report: &RecognitionReport) -> String {
    let mut text = String::from("<table><tr><th>program</th><th>did</th><th>found</th></tr>");
    for (program, activity, share) in &report.recognised.activities {
        let (program, activity) = (escape(program), escape(activity));
        let _ = write!(text, "<tr><td>{program}</td><td>{activity}</td><td>{share}</td></tr>");
    }
    scroll(&(text + "</table>"))
}

fn curve(report: &RecognitionReport) -> String {
    let line = |name: &str, y: fn(&crate::attack::recognise::AccuracyPoint) -> f64| PlotLine {
        name: name.into(),
        points: report.curve.iter().map(|p| (p.datagrams as f64, y(p))).collect(),
        drawn: LineStyle::Dotted,
    };
    let mut lines = vec![line("all programs, on average", |p| p.accuracy)];
    if report.recognised.programs.iter().any(|program| program == OURS) {
        lines.push(line("Shoal, taken for Shoal", |p| p.found));
        lines.push(line("others, taken for Shoal", |p| p.alarms));
    }
    let plot = PlotFrame {
        title: "Excerpts that were taken for a program",
        x: "datagrams of an excerpt",
        y: "share",
        marks: &[],
        doublings: true,
    };
    plot.draw(&lines)
}

fn groups(report: &RecognitionReport) -> String {
    let found = &report.recognised;
    let ours = found.programs.iter().position(|program| program == OURS);
    let mut text = String::from(
        "<table><tr><th>features</th><th>accuracy with these alone</th><th>without these</th>\
         <th>Shoal found with these alone</th><th>without these</th></tr>",
    );
    for worth in &found.groups {
        let own = |found: &[f64]| ours.map_or(String::new(), |at| format!("{:.3}", found[at]));
        let (with, without) = (own(&worth.found_alone), own(&worth.found_without));
        let _ = write!(
            text,
            "<tr><td>{}</td><td>{:.3}</td><td>{:.3}</td><td>{with}</td><td>{without}</td></tr>",
            worth.group, worth.alone, worth.without
        );
    }
    scroll(&(text + "</table>"))
}

fn features(report: &RecognitionReport) -> String {
    let mut text =
        String::from("<table><tr><th>feature</th><th>part of all that was told apart</th></tr>");
    for (name, part) in report.recognised.features.iter().take(FEATURES) {
        let _ = write!(text, "<tr><td>{}</td><td>{part:.3}</td></tr>", escape(name));
    }
    scroll(&(text + "</table>"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attack::recognise::AccuracyPoint;
    use shoal_attack::recognise::{NAMES, ProgramCapture, recognise};

    #[test]
    fn a_page_has_all_tables_and_says_what_was_left_out() {
        let sample = |i: usize| ProgramCapture {
            program: if i.is_multiple_of(2) { OURS.into() } else { "a & b".into() },
            activity: "file".into(),
            excerpts: vec![NAMES.iter().map(|_| (i % 2) as f64).collect()],
        };
        let samples: Vec<ProgramCapture> = (0..8).map(sample).collect();
        let report = RecognitionReport {
            datagrams: 32,
            recognised: recognise(&samples).unwrap(),
            curve: vec![AccuracyPoint { datagrams: 3, accuracy: 1.0, found: 1.0, alarms: 0.0 }],
            missing: vec!["quic: <nothing>".into()],
        };
        let page = page(&report);
        assert!(page.contains("taken for a &amp; b") && page.contains("&lt;nothing&gt;"));
        assert!(page.contains("<svg") && page.contains("lengths") && !page.contains("NaN"));
    }
}
