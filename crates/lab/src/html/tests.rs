use std::sync::LazyLock;

use super::*;
use crate::record::{Curve, Drawing, PaperRow};

/// A report with everything that a page can show.
pub fn full() -> ScenarioReport {
    let curve = |plot: &str, name: &str| Curve {
        plot: plot.into(),
        name: name.into(),
        values: (0..50).map(|i| f64::from(i * i % 97)).collect(),
    };
    let run = RunRecord {
        seconds: 5.0,
        idle: 0.5,
        times: (0..50).map(|i| f64::from(i) / 10.0).collect(),
        curves: ["goodput", "queue", "cpu", "memory"].map(|p| curve(p, "<a>")).into(),
        events: vec![TimedEvent { at_s: 2.5, text: "cut: r1 - r2".into() }],
        routes: vec![TimedEvent { at_s: 2.6, text: "r1: router 2 by r3".into() }],
        drops: vec![("r1".into(), "replay".into(), 7)],
        ..RunRecord::default()
    };
    let figures = vec![figures::figure("rate_mbit", "a", 900.0)];
    let case = |loss: f64| CaseRecord {
        name: format!("loss {loss}"),
        series: "RTT 10 ms".into(),
        path_loss: loss,
        runs: vec![run.clone(), run.clone()],
        figures: figures.clone(),
    };
    let node = |name: &str, kind: &str| (name.to_owned(), kind.to_owned());
    ScenarioReport {
        version: crate::record::VERSION,
        title: "A & B <script>".into(),
        made_unix_s: 1_000_000_000,
        drawing: Drawing {
            nodes: vec![node("r1", "router"), node("h1", "host")],
            links: vec![(0, 1, "1 Gbit/s".into())],
        },
        cases: vec![case(0.0), case(0.1), case(0.3)],
        papers: vec![PaperRow { what: "rate".into(), paper: 320.0, ..PaperRow::default() }],
        plots: vec![record::RecordedPlot {
            title: "Rate & loss".into(),
            x: "dupthresh".into(),
            y: "rate_mbit Mbit/s".into(),
            doublings: true,
            lines: [("<seen>", false), ("model", true)]
                .map(|(name, known)| PlotPoints {
                    name: name.into(),
                    points: vec![(3.0, 1.0), (192.0, 9.0)],
                    known,
                })
                .into(),
        }],
        tables: vec![ReportTable {
            mixed: false,
            title: "Stages".into(),
            columns: vec!["stage".into(), "ns".into()],
            rows: vec![("seal".into(), vec![Some(216.0)])],
            unit: "ns".into(),
        }],
        ..ScenarioReport::default()
    }
}

/// The paper's figures, from runs as short as possible.
pub static PAPER: LazyLock<shoal_model::ModelReport> = LazyLock::new(|| {
    let runs = shoal_model::RunParameters {
        seconds: 2,
        seeds: 1,
        ..shoal_model::RunParameters::default()
    };
    shoal_model::ModelReport::all(&runs).unwrap()
});

/// Panics unless every element of a page ends in its parent.
fn assert_nested(page: &str) {
    let mut open = Vec::new();
    for tag in page.split('<').skip(1) {
        let (tag, _) = tag.split_once('>').expect("a tag ends");
        let name = tag.split([' ', '/']).next().unwrap();
        match tag.strip_prefix('/') {
            Some(name) => assert_eq!(open.pop(), Some(name), "{tag}"),
            None if tag.ends_with('/') || ["!doctype", "meta", "link"].contains(&name) => {}
            None => open.push(name),
        }
    }
    assert_eq!(open, Vec::<&str>::new());
}

#[test]
fn the_models_page_has_every_figure_and_repeats() {
    let report = &*PAPER;
    let page = model(report);
    assert_eq!(page, model(report));
    assert_nested(&page);
    for figure in &report.figures {
        let (begin, title) = (format!("<h2>Figure {}: ", figure.number), escape(figure.title));
        let (_, rest) = page.split_once(&format!("{begin}{title}</h2>")).expect(figure.title);
        let (section, _) = rest.split_once("</section>").unwrap();
        assert_eq!(section.matches("class=\"plot\"").count(), 1, "{}", figure.number);
        assert!(section.contains(&format!("<figcaption>{title}</figcaption>")));
        let heading = if figure.number == 15 { ">here</th>" } else { ">in runs</th>" };
        assert!(section.contains(heading) && section.contains(&escape(figure.why)));
    }
    // Plus the plot of holds.
    assert_eq!(page.matches("class=\"plot\"").count(), report.figures.len() + 1);
    for finding in &report.findings {
        assert!(page.contains(&escape(finding.why)), "{}", finding.about);
    }
    // Crosses: Figures 5 (two), 8, 9 (two), 11, 12 (two), 13 (three), 14 and 15 (three).
    assert_eq!(page.matches("class=\"cross\" style=\"stroke").count(), 15);
    assert!(page.contains("mean: the paper: seen") && page.contains(">31.23</td>"));
    assert!(!page.contains("<script") && !page.contains("src=") && !page.contains("http"));
    assert!(!page.contains("NaN") && !page.contains("inf"));
}

#[test]
fn doublings_are_equally_wide() {
    let line = |drawn| PlotLine {
        name: "a".into(),
        points: vec![(3.0, 1.0), (24.0, 2.0), (192.0, 3.0)],
        drawn,
    };
    let plot = PlotFrame { title: "t", x: "x", y: "y", marks: &[], doublings: true };
    let drawn = plot.draw(&[line(LineStyle::Dotted)]);
    for place in ["cx=\"56.0\"", "cx=\"382.0\"", "cx=\"708.0\"", ">96</text>", ">192</text>"] {
        assert!(drawn.contains(place), "{place}: {drawn}");
    }
    let crossed = plot.draw(&[line(LineStyle::Crosses)]);
    assert!(!crossed.contains("<circle") && !crossed.contains("class=\"curve"));
    assert_eq!(crossed.matches("class=\"cross\" style=\"stroke").count(), 3);
}

#[test]
fn a_page_has_every_plot_and_fetches_nothing() {
    let page = page(&full());
    assert_nested(&page);
    // Network, over cases, stages, loss and goodput, and four plots over time for each of three
    // cases.
    assert_eq!(page.matches("class=\"plot\"").count(), 1 + 1 + 1 + 1 + 3 * 4);
    assert!(page.contains("<figcaption>Rate &amp; loss, rate_mbit Mbit/s</figcaption>"));
    assert!(page.contains("&lt;seen&gt;") && page.contains("Crosses are values that were not"));
    assert_eq!(page.matches("class=\"cross\" style=\"stroke").count(), 2);
    assert!(!page.contains("<script") && !page.contains("src=") && !page.contains("http"));
    assert!(page.contains("A &amp; B &lt;script&gt;") && page.contains("&lt;a&gt;"));
    assert!(page.contains("2001-09-09 01:46 UTC"));
    assert!(!page.contains("NaN") && !page.contains("inf"));
}

#[test]
fn a_report_that_was_written_without_plots_is_read() {
    let mut json = serde_json::to_value(full()).unwrap();
    json.as_object_mut().unwrap().remove("plots").unwrap();
    let report: ScenarioReport = serde_json::from_value(json).unwrap();
    assert!(report.plots.is_empty() && !page(&report).contains("Over cases"));
}

#[test]
fn two_reports_are_compared_where_both_have_a_figure() {
    let (a, mut b) = (full(), full());
    b.cases.remove(0);
    b.cases[0].figures[0].value = 450.0;
    let rows = rows_of_both(&a, &b);
    assert_eq!(rows.len(), 2);
    assert_eq!(rows[0].ratio, 0.5);
    assert!(compare(&a, &b).contains("class=\"differs\""));
}

#[test]
fn what_speaks_against_a_comparison_is_said() {
    let (mut a, mut b) = (full(), full());
    (a.doubts, a.holds) = (Vec::new(), Vec::new());
    (b.doubts, b.holds) = (Vec::new(), Vec::new());
    assert_eq!(remarks(&a, &b), Vec::<String>::new());
    b.name = "other".into();
    b.machine.kernel = "0.1".into();
    let gone = b.cases.remove(0);
    a.doubts.push("run 1: INVALID".into());
    let said = remarks(&a, &b);
    assert!(said[0].contains("different scenarios") && said[1].contains("different machines"));
    let only = format!("only in A: {} {}", gone.name, gone.figures[0].name);
    assert!(said[2].starts_with(&only), "{said:?}");
    assert_eq!(said[3], "A: run 1: INVALID");
    assert!(compare(&a, &b).contains("different scenarios"));
}
