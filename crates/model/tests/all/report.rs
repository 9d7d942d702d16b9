//! Tests of the output of `shoal-lab model`.

use shoal_model::{FIGURES, ModelError, ModelReport, RunParameters, figure, render, windows};

const SHORT: RunParameters = RunParameters { seconds: 4, seeds: 1, seed: 1 };

/// The line of `text` that begins with `begin`, without leading blanks.
fn line<'a>(text: &'a str, begin: &str) -> &'a str {
    let found = text.lines().find(|line| line.trim_start().starts_with(begin));
    found.unwrap_or_else(|| panic!("no line begins with {begin:?}:\n{text}"))
}

fn cells(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

#[test]
fn one_figure_puts_the_numbers_side_by_side() {
    let text = render(&ModelReport::one(6, &SHORT).unwrap());
    assert!(text.starts_with("Figure 6: window when it is halved, packets\n"), "{text}");
    assert_eq!(cells(line(&text, "3 "))[..5], ["3", "8.27", "8.76", "5.17", "5.36"]);
    assert!(text.contains("The printed formula (10) sums to 5.17; 8.27 is not its value."));
    assert!(text.ends_with("same seeds give the same text\n"));
}

#[test]
fn everything_is_there_fits_and_repeats() {
    let text = render(&ModelReport::all(&SHORT).unwrap());
    assert_eq!(text, render(&ModelReport::all(&SHORT).unwrap()));
    for number in FIGURES {
        assert!(text.contains(&format!("\nFigure {number}: ")), "{number}");
    }
    for number in 1..=7 {
        assert!(text.contains(&format!("\n{number}. ")), "finding {number}");
    }
    assert!(text.lines().all(|line| line.chars().count() <= 100 && line == line.trim_end()));
    assert_eq!(cells(line(&text, "192 ")), ["192", "-", "200.9", "209.4", "3609.5"]);
    assert!(text.contains("31.23 needs 199 ms"));
    assert!(
        line(&text, "here:  0.750").ends_with("0.750 0.550 0.383 0.240 0.147, and so E(W) 5.36")
    );
    assert!(line(&text, "none ").split_whitespace().count() == 3, "the table of holds");
}

#[test]
fn json_has_the_same_numbers() {
    let report = ModelReport::one(12, &SHORT).unwrap();
    let json = serde_json::to_value(&report).unwrap();
    let row = &json["figures"][0]["rows"][0];
    assert_eq!(json["figures"][0]["number"], 12);
    assert_eq!((&row["x"], &row["paper_theory"]), (&3.0.into(), &8.27.into()));
    assert_eq!(row["simulated"].as_f64(), report.figures[0].rows[0].simulated);
    assert_eq!(json["runs"]["seconds"], 4);
}

#[test]
fn every_figure_has_rows_and_every_row_a_number() {
    for number in FIGURES {
        let figure = figure(number, &SHORT).unwrap();
        assert_eq!(figure.rows.is_empty(), number == 15, "{number}");
        assert_eq!(figure.fills.is_empty(), number != 15, "{number}");
        assert!(!figure.why.is_empty(), "{number}");
        let told = |row: &shoal_model::FigureRow| row.corrected.or(row.simulated).is_some();
        assert!(figure.rows.iter().all(told), "{number}");
        assert!(figure.rows.windows(2).all(|pair| pair[0].x < pair[1].x), "{number}");
    }
}

#[test]
fn what_the_paper_plots_over_time_has_a_course() {
    for number in FIGURES {
        let figure = figure(number, &SHORT).unwrap();
        let expected = if number == 15 { 3 } else { usize::from(number < 8) };
        assert_eq!(figure.courses.len(), expected, "{number}");
        for course in &figure.courses {
            assert_eq!(course.points.len(), 200);
            assert!(course.points.windows(2).all(|pair| pair[0].0 < pair[1].0));
            assert!(course.points.iter().all(|(_, value)| value.is_finite() && *value >= 0.0));
        }
    }
    // Figure 5: each row is a mean over a tenth of a second, as are the points of the time series.
    let start = figure(5, &SHORT).unwrap();
    for (row, point) in start.rows.iter().zip(start.courses[0].points.iter().skip(19).step_by(20)) {
        assert!((row.x - point.0).abs() < 1e-9);
        assert!((row.simulated.unwrap() - point.1).abs() < 1e-6, "{row:?} {point:?}");
    }
}

#[test]
fn wrong_requests_are_refused() {
    assert_eq!(figure(3, &SHORT), Err(ModelError::Figure));
    assert_eq!(figure(16, &SHORT), Err(ModelError::Figure));
    for runs in [RunParameters { seconds: 0, ..SHORT }, RunParameters { seeds: 0, ..SHORT }] {
        assert_eq!(ModelReport::all(&runs).map(|_| ()), Err(ModelError::Runs));
    }
    assert_eq!(windows().len(), 8);
}
