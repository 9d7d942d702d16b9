use super::*;
use crate::record::{Curve, Drawing, PaperRow};

/// A report with everything in it that a page can show.
pub fn full() -> Report {
    let curve = |plot: &str, name: &str| Curve {
        plot: plot.into(),
        name: name.into(),
        values: (0..50).map(|i| f64::from(i * i % 97)).collect(),
    };
    let run = Run {
        seconds: 5.0,
        idle: 0.5,
        times: (0..50).map(|i| f64::from(i) / 10.0).collect(),
        curves: ["goodput", "queue", "cpu", "memory"].map(|p| curve(p, "<a>")).into(),
        events: vec![Mark { at_s: 2.5, text: "cut: r1 - r2".into() }],
        routes: vec![Mark { at_s: 2.6, text: "r1: router 2 by r3".into() }],
        drops: vec![("r1".into(), "replay".into(), 7)],
        ..Run::default()
    };
    let figures = vec![figures::figure("rate_mbit", "a", 900.0)];
    let case = |loss: f64| Case {
        name: format!("loss {loss}"),
        series: "RTT 10 ms".into(),
        path_loss: loss,
        runs: vec![run.clone(), run.clone()],
        figures: figures.clone(),
    };
    let node = |name: &str, kind: &str| (name.to_owned(), kind.to_owned());
    Report {
        version: crate::record::VERSION,
        title: "A & B <script>".into(),
        made_unix_s: 1_000_000_000,
        drawing: Drawing {
            nodes: vec![node("r1", "router"), node("h1", "host")],
            links: vec![(0, 1, "1 Gbit/s".into())],
        },
        cases: vec![case(0.0), case(0.1), case(0.3)],
        papers: vec![PaperRow { what: "rate".into(), paper: 320.0, ..PaperRow::default() }],
        tables: vec![Table {
            title: "Stages".into(),
            columns: vec!["stage".into(), "ns".into()],
            rows: vec![("seal".into(), vec![Some(216.0)])],
            unit: "ns".into(),
        }],
        ..Report::default()
    }
}

#[test]
fn a_page_has_every_plot_and_fetches_nothing() {
    let page = page(&full());
    // Network, stages, loss and goodput, and four over time for each of three cases.
    assert_eq!(page.matches("class=\"plot\"").count(), 1 + 1 + 1 + 3 * 4);
    assert!(!page.contains("<script") && !page.contains("src=") && !page.contains("http"));
    assert!(page.contains("A &amp; B &lt;script&gt;") && page.contains("&lt;a&gt;"));
    assert!(page.contains("2001-09-09 01:46 UTC"));
    assert!(!page.contains("NaN") && !page.contains("inf"));
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
