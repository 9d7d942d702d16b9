//! The figures of a run, and the conditions on them.

use crate::record::{self, CaseRecord, ConditionOutcome, Figure, PaperRow};
use crate::scenario::{FigureCondition, PlotLineSettings, PlotSettings, Scenario};

/// Every figure: name, unit and description.
pub const KNOWN: &[(&str, &str, &str)] = &[
    ("rate_mbit", "Mbit/s", "file bits per second, from acceptance to the last confirmation"),
    ("share", "", "`rate_mbit` as a share of what the path can carry"),
    ("steady_share", "", "`share` from 1.5 s after the start to shortly before the end"),
    ("startup_s", "s", "from acceptance to 90% of what the path can carry, over 200 ms"),
    ("fair_share", "", "goodput as a share of an equal part, while all flows run"),
    ("jain", "", "Jain's index of the flows' goodput, from 3 s after the last start"),
    ("resent_over_lost", "", "file bytes sent again, per file byte that the links lost"),
    ("gap_ms", "ms", "longest silence on a receiver's link, or at the interface for UDP and TCP"),
    ("reroute_ms", "ms", "from a cut to the first new route"),
    ("return_per_million", "", "frames from the receiver per million segments"),
    ("queue_ms", "ms", "99th percentile of the wait in a link's queue, after start-up"),
    ("queue_mean_ms", "ms", "mean wait in a link's queue, after start-up"),
    ("queue_max_ms", "ms", "longest wait in a link's queue"),
    ("tcp_mbit", "Mbit/s", "payload of a TCP flow"),
    ("tcp_sum_mbit", "Mbit/s", "payload of all TCP flows, while all of them run"),
    ("ping_ms", "ms", "mean round trip of ping over the virtual interface"),
    ("ping_min_ms", "ms", "shortest of these round trips"),
    ("ping_max_ms", "ms", "longest of these round trips"),
    ("ping_p999_ms", "ms", "99.9th percentile of the round trips of ping"),
    ("ping_lost", "", "share of pings without an answer"),
    ("wget_mbit", "Mbit/s", "bytes that wget fetched over the virtual interface"),
    (
        "tcp_resent",
        "",
        "TCP segments sent again over the virtual interface, from 1.5 s after the start",
    ),
    ("tcp_lost", "", "TCP segments sent again that had not arrived"),
    (
        "tcp_disordered",
        "",
        "TCP segments that arrived at the virtual interface before an earlier one",
    ),
    ("udp_mbit", "Mbit/s", "UDP payload that arrived over the virtual interface"),
    ("udp_lost", "", "share of UDP datagrams that did not arrive at the virtual interface"),
    ("udp_missing", "", "UDP datagrams that did not arrive at the virtual interface"),
    ("udp_disordered", "", "UDP datagrams that arrived at the virtual interface after a later one"),
    ("udp_delay_ms", "ms", "mean time of UDP datagrams from one interface to the other"),
    ("udp_delay_p99_ms", "ms", "99th percentile of these times"),
    ("udp_jitter_ms", "ms", "mean of iperf3's UDP jitters, one each tenth of a second (RFC 3550)"),
    ("rotations", "", "number of times that the first flow moved to another circuit"),
    ("seen", "", "datagrams that wiretaps recorded"),
    ("odd_sizes", "", "recorded datagrams that have none of the three sizes"),
    ("uneven", "", "byte positions of recorded datagrams that do not look random"),
    ("on_two_wires", "", "recorded datagrams that share 16 bytes in a row with another wire"),
    ("in_clear", "", "recorded datagrams that hold content or addresses of hosts"),
    ("flood_per_s", "/s", "packets per second that a flood really sent"),
    ("handshake_cpu", "", "share of a core that a flood's target spent on handshakes"),
    ("links_lost", "", "links that routers lost, without those to a flood's origin"),
    ("explained", "", "drops counted at the target per packet of the flood that reached it"),
    ("files", "", "files that arrived"),
    ("broken", "", "files that had to be resumed"),
    (
        "attack_auc",
        "",
        "probability that an attacker on access links scores a true pair above a wrong one",
    ),
    ("attack_auc_low", "", "lower end of the 95% interval of `attack_auc`"),
    ("attack_auc_high", "", "upper end of the 95% interval of `attack_auc`"),
    ("attack_top1", "", "share of rows in which the true pair has the highest score"),
    ("attack_guess", "", "`attack_top1` of a random guess"),
    ("attack_shuffled", "", "`attack_auc` with randomly drawn true pairs"),
    ("attack_shuffled_low", "", "lower end of the 95% interval of `attack_shuffled`"),
    ("attack_shuffled_high", "", "upper end of the 95% interval of `attack_shuffled`"),
    ("attack_frames_per_s", "/s", "full frames on an access link, both directions"),
    ("shifts", "", "address shifts made on all links"),
    ("shifts_failed", "", "shifts after which a link fell back to its fixed endpoint"),
    ("cpu_share", "", "share of a core that the first gateway used during a test"),
    ("kernel_share", "", "share of that processor time spent in the kernel"),
    ("frames_per_send", "", "frames per send call, at a relay under a TCP stream"),
    ("frames_per_message", "", "frames per message that the relay receives"),
    ("relay_ns", "ns", "processor time of a relay per frame"),
    (
        "shift_frames",
        "",
        "frames of both ends per shift on idle links, beyond those with fixed addresses",
    ),
    ("shift_bytes", "B", "bytes of UDP payload of `shift_frames`"),
    ("up_again_s", "s", "from the start of a killed node to its first answer"),
    ("neighbours", "", "addresses of a node in the neighbour table of the router before it"),
    ("near_shifts_lost", "", "share of UDP lost within 50 ms of shifts, minus `random_lost`"),
    ("linked_addresses", "", "share of shifts that an observer links by addresses alone"),
    ("linked_over", "", "`linked_addresses` minus a random guess and three standard deviations"),
    ("linked_times", "", "share of shifts that an observer links by times and volumes"),
    (
        "linked_phases",
        "",
        "share of shifts that an observer links by the phase of a shift 20 intervals earlier",
    ),
    (
        "linked_phases_over",
        "",
        "`linked_phases` minus a random guess and three standard deviations",
    ),
    ("linked_shuffled", "", "share of shifts that a random guess links"),
    ("linked_shifts", "", "shifts that the observer saw"),
    ("scanned", "", "datagrams that a scanner sent to former addresses"),
    ("scan_bytes", "B", "bytes that the scanner received"),
    ("scan_stale", "", "share of the scanner's datagrams that nodes counted as `stale_address`"),
    ("scan_echoes", "", "share of pings to former addresses that the kernel answered"),
    ("random_lost", "", "share of UDP lost in random windows"),
    ("direct_share", "", "share of runs in which two hosts got a direct link"),
    (
        "timely_share",
        "",
        "share of direct links made within one routed and three direct round trips plus 50 ms",
    ),
    ("soon_share", "", "share of runs with a direct link within a second"),
    ("reached_share", "", "share of runs in which the hosts reached each other"),
    ("setup_ms", "ms", "from the first cell between two hosts to their direct link"),
    ("setup_p95_ms", "ms", "95th percentile of `setup_ms`"),
    ("first_ms", "ms", "from the first echo request to its answer, including the hosts' handshake"),
    ("first_p95_ms", "ms", "95th percentile of `first_ms`"),
    ("memory_mb", "MB", "largest resident memory of a node"),
    (
        "memory_growth",
        "",
        "resident memory at the end, divided by that after a quarter of the time",
    ),
    ("cpu_s", "s", "processor time of a node"),
    ("late_share", "", "share of a node's mixed cells that left more than 0.5 ms late"),
    ("kernel_s", "s", "part of `cpu_s` spent in the kernel"),
    ("idle", "", "unused share of the machine"),
];

/// True if a figure of this name exists.
pub fn is_known(name: &str) -> bool {
    KNOWN.iter().any(|(known, _, _)| *known == name)
}

/// All names, for messages.
pub fn names() -> String {
    KNOWN.iter().map(|(name, _, _)| *name).collect::<Vec<_>>().join(", ")
}

/// The unit of a figure; empty for shares and counts.
pub fn unit(name: &str) -> &'static str {
    KNOWN.iter().find(|(known, _, _)| *known == name).map_or("", |(_, unit, _)| unit)
}

/// A figure of one run.
pub fn figure(name: &str, of: impl Into<String>, value: f64) -> Figure {
    debug_assert!(is_known(name), "{name}");
    Figure { name: name.into(), of: of.into(), value, low: value, high: value }
}

/// Value of the metric whose line starts with `begins`, in the text of a node's metrics.
pub fn metric(text: &str, begins: &str) -> Option<f64> {
    text.lines().find_map(|line| line.strip_prefix(begins)?.trim().parse().ok())
}

/// Jain's index of n values: 1 if all are equal, 1/n if one has everything. `None` without values.
pub fn jain(values: &[f64]) -> Option<f64> {
    let sum: f64 = values.iter().sum();
    let squares: f64 = values.iter().map(|v| v * v).sum();
    (squares > 0.0).then(|| sum * sum / (values.len() as f64 * squares))
}

/// Medians and spreads of the figures of several runs.
pub fn medians(runs: &[&[Figure]]) -> Vec<Figure> {
    let mut all: Vec<Figure> = Vec::new();
    for figure in runs.iter().flat_map(|run| run.iter()) {
        if all.iter().any(|f| f.name == figure.name && f.of == figure.of) {
            continue;
        }
        let same = runs.iter().flat_map(|run| run.iter());
        let same = same.filter(|f| f.name == figure.name && f.of == figure.of);
        let mut values: Vec<f64> = same.map(|f| f.value).collect();
        let value = middle(&mut values);
        let (low, high) = (values[0], values[values.len() - 1]);
        all.push(Figure { value, low, high, ..figure.clone() });
    }
    all
}

/// The median of several runs: the middle value, or the mean of the two middle values. Unlike
/// [`shoal_crypto::quantile::median`], it need not be one of the values. NaN without values. Sorts
/// the values.
pub(crate) fn middle(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    let at = |at: usize| values.get(at).copied().unwrap_or(f64::NAN);
    (at(values.len().saturating_sub(1) / 2) + at(values.len() / 2)) / 2.0
}

/// Compares a figure in two cases by `compare`. The result is the median over turns, since the
/// machine's speed changes between turns. If a turn lacks the figure in either case, the two
/// medians are compared instead.
fn beside(
    case: &CaseRecord,
    other: &CaseRecord,
    figure: &Figure,
    compare: impl Fn(f64, f64) -> f64,
) -> f64 {
    let find = |figures: &[Figure]| {
        let found = figures.iter().find(|f| f.name == figure.name && f.of == figure.of);
        found.map(|found| found.value)
    };
    let each =
        |case: &CaseRecord| case.runs.iter().map(|run| find(&run.figures)).collect::<Option<_>>();
    let both: Option<(Vec<f64>, Vec<f64>)> = each(case).zip(each(other));
    if let Some((own, others)) = both
        && own.len() == others.len()
        && !own.is_empty()
    {
        let mut pairs: Vec<f64> =
            own.into_iter().zip(others).map(|(own, other)| compare(own, other)).collect();
        return middle(&mut pairs);
    }
    find(&other.figures).map_or(f64::NAN, |other| compare(figure.value, other))
}

/// Checks the condition `hold` on the figures of `cases`: one outcome per matching figure.
pub fn judge(hold: &FigureCondition, cases: &[CaseRecord]) -> Vec<ConditionOutcome> {
    let fits = |f: &&Figure| f.name == hold.figure && hold.of.as_ref().is_none_or(|of| *of == f.of);
    let nothing = CaseRecord::default();
    let named = |name: &str| cases.iter().find(|c| c.name == name).unwrap_or(&nothing);
    let mut outcomes = Vec::new();
    for case in cases.iter().filter(|c| hold.case.as_ref().is_none_or(|name| c.name == *name)) {
        for figure in case.figures.iter().filter(fits) {
            let mut value = figure.value;
            let mut what = format!("{} of {}", figure.name, shown(&figure.of));
            if let Some(other) = &hold.against {
                value = beside(case, named(other), figure, |own, other| own / other);
                what += &format!(", divided by that of case {other:?},");
            }
            if let Some(other) = &hold.minus {
                value = beside(case, named(other), figure, |own, other| own - other);
                what += &format!(", minus that of case {other:?},");
            }
            // A ratio has no unit.
            let unit = if hold.against.is_some() { "" } else { unit(&figure.name) };
            outcomes.push(outcome(hold, &case.name, &what, value, unit));
        }
    }
    if outcomes.is_empty() {
        let rule = format!("{} is known", hold.figure);
        outcomes.push(ConditionOutcome {
            rule,
            found: "no such figure was measured".into(),
            holds: false,
        });
    }
    outcomes
}

fn outcome(
    hold: &FigureCondition,
    case: &str,
    what: &str,
    value: f64,
    unit: &str,
) -> ConditionOutcome {
    let with_unit = |text: String| format!("{text} {unit}").trim_end().to_owned();
    let mut rule = format!("{case}: {what} is");
    let mut holds = true;
    if let Some(low) = hold.at_least {
        rule += &with_unit(format!(" at least {low}"));
        // `>=` instead of `!(<)`: NaN must fail.
        holds &= value >= low;
    }
    if let Some(high) = hold.at_most {
        let and = if hold.at_least.is_some() { " and" } else { "" };
        rule += &with_unit(format!("{and} at most {high}"));
        holds &= value <= high;
    }
    let found = if value.is_finite() { with_unit(number(value)) } else { number(value) };
    ConditionOutcome { rule, found, holds }
}

/// A paper's figures, with ours where measured.
pub fn papers(scenario: &Scenario, cases: &[CaseRecord]) -> Vec<PaperRow> {
    let ours = |paper: &crate::scenario::PaperFigure| {
        let name = paper.figure.as_ref()?;
        let case = match &paper.case {
            Some(case) => cases.iter().find(|c| c.name == *case)?,
            None => cases.first()?,
        };
        let of = |f: &&Figure| paper.of.as_ref().is_none_or(|of| *of == f.of);
        Some(case.figures.iter().filter(|f| f.name == *name).find(of)?.value)
    };
    let row = |paper: &crate::scenario::PaperFigure| PaperRow {
        what: paper.what.clone(),
        unit: paper.unit.clone(),
        paper: paper.value,
        place: paper.place.clone(),
        ours: ours(paper),
    };
    scenario.papers.iter().map(row).collect()
}

/// The scenario's plots, with the cases that were run. A plot without such cases is left out.
pub fn plots(scenario: &Scenario, cases: &[CaseRecord]) -> Vec<record::RecordedPlot> {
    let plots = scenario.plots.iter().map(|plot| over_cases(plot, cases));
    plots.filter(|plot| plot.lines.iter().any(|line| !line.known)).collect()
}

fn over_cases(plot: &PlotSettings, cases: &[CaseRecord]) -> record::RecordedPlot {
    let value = |case: &str, of: Option<&String>| {
        let case = cases.iter().find(|c| c.name == case)?;
        let fits = |f: &&Figure| f.name == plot.figure && of.is_none_or(|of| *of == f.of);
        Some(case.figures.iter().find(fits)?.value)
    };
    let measured = |case: &str, of: Option<&String>| {
        let divisor = plot.against.as_ref().map_or(Some(1.0), |other| value(other, of))?;
        // Division by a case in which nothing arrived gives no value.
        Some(value(case, of)? / divisor).filter(|value| value.is_finite())
    };
    let line = |line: &PlotLineSettings| {
        let of = line.of.as_ref().or(plot.of.as_ref());
        let cases = line.cases.iter().filter_map(|(x, case)| Some((*x, measured(case, of)?)));
        record::PlotPoints {
            name: line.name.clone(),
            points: cases.chain(line.values.iter().copied()).collect(),
            known: line.cases.is_empty(),
        }
    };
    let y = match &plot.against {
        Some(case) => format!("{} divided by that of case {case:?}", plot.figure),
        None => format!("{} {}", plot.figure, unit(&plot.figure)).trim_end().into(),
    };
    record::RecordedPlot {
        title: plot.title.clone(),
        x: plot.x.clone(),
        y,
        doublings: plot.doublings,
        lines: plot.lines.iter().map(line).filter(|line| !line.points.is_empty()).collect(),
    }
}

fn shown(of: &str) -> &str {
    if of.is_empty() { "the run" } else { of }
}

/// Formats a number with a useful number of digits.
pub fn number(value: f64) -> String {
    match value.abs() {
        v if !v.is_finite() => "none".into(),
        v if v >= 1_000.0 => format!("{value:.0}"),
        v if v >= 100.0 => format!("{value:.1}"),
        v if v >= 10.0 => format!("{value:.2}"),
        0.0 => "0".into(),
        v if v >= 0.01 => format!("{value:.3}"),
        _ => format!("{value:.2e}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hold(at_least: Option<f64>, at_most: Option<f64>) -> FigureCondition {
        let (of, case, against, minus) = (None, None, None, None);
        FigureCondition { figure: "share".into(), of, case, against, minus, at_least, at_most }
    }

    fn case(name: &str, value: f64) -> CaseRecord {
        let figures = vec![figure("share", "a", value)];
        CaseRecord { name: name.into(), figures, ..CaseRecord::default() }
    }

    #[test]
    fn jain_is_one_for_equals_and_small_for_one_that_has_all() {
        assert_eq!(jain(&[3.0, 3.0, 3.0]), Some(1.0));
        assert_eq!(jain(&[1.0, 0.0, 0.0, 0.0]), Some(0.25));
        assert_eq!(jain(&[0.0]), None);
        assert_eq!(jain(&[]), None);
    }

    #[test]
    fn medians_keep_their_spread() {
        let runs: Vec<_> = [3.0, 1.0, 2.0].map(|v| vec![figure("share", "a", v)]).into();
        let runs: Vec<&[Figure]> = runs.iter().map(Vec::as_slice).collect();
        let middle = medians(&runs);
        assert_eq!(middle.len(), 1);
        assert_eq!((middle[0].low, middle[0].value, middle[0].high), (1.0, 2.0, 3.0));
    }

    #[test]
    fn cases_are_compared_turn_by_turn() {
        // The machine's speed doubles in both cases; in one turn only one case is disturbed.
        let of = |name: &str, values: [f64; 3]| {
            let run = |value| record::RunRecord {
                figures: vec![figure("share", "a", value)],
                ..record::RunRecord::default()
            };
            let runs: Vec<record::RunRecord> = values.map(run).into();
            let each: Vec<&[Figure]> = runs.iter().map(|run| run.figures.as_slice()).collect();
            CaseRecord { name: name.into(), figures: medians(&each), runs, ..CaseRecord::default() }
        };
        let cases = [of("x", [10.0, 20.0, 21.0]), of("y", [10.0, 12.0, 21.0])];
        let case = Some("y".to_owned());
        let against = FigureCondition {
            case: case.clone(),
            against: Some("x".into()),
            ..hold(Some(1.0), None)
        };
        assert_eq!(judge(&against, &cases)[0].found, "1.000", "medians would say 0.6");
        let minus = FigureCondition { case, minus: Some("x".into()), ..hold(Some(0.0), None) };
        assert_eq!(judge(&minus, &cases)[0].found, "0");
        // One turn is missing.
        let mut short = cases.clone();
        short[1].runs.pop();
        assert_eq!(judge(&against, &short)[0].found, "0.600");
        assert!(!judge(&against, &cases[1..])[0].holds, "there is nothing to compare with");
    }

    #[test]
    fn rules_and_what_was_found_have_units() {
        let rate = vec![figure("rate_mbit", "file", 512.25)];
        let cases = [CaseRecord { name: "x".into(), figures: rate, ..CaseRecord::default() }];
        let rule = FigureCondition { figure: "rate_mbit".into(), ..hold(Some(500.0), Some(900.0)) };
        let judged = &judge(&rule, &cases)[0];
        let said = "x: rate_mbit of file is at least 500 Mbit/s and at most 900 Mbit/s";
        assert_eq!((judged.rule.as_str(), judged.found.as_str()), (said, "512.2 Mbit/s"));
        let ratio = FigureCondition { against: Some("x".into()), ..rule };
        assert_eq!(judge(&ratio, &cases)[0].found, "1.000");
    }

    #[test]
    fn a_plot_has_the_cases_that_were_run() {
        let line = |name: &str, cases: &[(f64, &str)], values: &[(f64, f64)]| PlotLineSettings {
            name: name.into(),
            of: None,
            cases: cases.iter().map(|(x, case)| (*x, (*case).to_owned())).collect(),
            values: values.to_vec(),
        };
        let plot = |against: Option<&str>| PlotSettings {
            title: "t".into(),
            x: "relays".into(),
            doublings: false,
            figure: "share".into(),
            of: Some("a".into()),
            against: against.map(str::to_owned),
            lines: vec![
                line("seen", &[(1.0, "x"), (3.0, "y"), (5.0, "not run")], &[]),
                line("not run", &[(5.0, "not run")], &[]),
                line("model", &[], &[(1.0, 0.25)]),
            ],
        };
        let cases = [case("x", 0.8), case("y", 0.2), case("nothing", 0.0)];
        let drawn = over_cases(&plot(None), &cases);
        assert_eq!(drawn.y, "share");
        assert_eq!(drawn.lines.len(), 2, "a line without points is left out");
        assert_eq!(drawn.lines[0].points, [(1.0, 0.8), (3.0, 0.2)]);
        assert!(!drawn.lines[0].known && drawn.lines[1].known);
        let shares = over_cases(&plot(Some("x")), &cases);
        assert_eq!(shares.lines[0].points, [(1.0, 1.0), (3.0, 0.25)]);
        assert_eq!(shares.lines[1].points, [(1.0, 0.25)], "a value is a share already");
        assert_eq!(shares.y, "share divided by that of case \"x\"");
        // Division by a zero, or by a case that was not run.
        for against in ["nothing", "not run"] {
            assert!(over_cases(&plot(Some(against)), &cases).lines.iter().all(|line| line.known));
        }
        let mut other = plot(None);
        other.lines[0].of = Some("b".into());
        assert!(over_cases(&other, &cases).lines.iter().all(|line| line.known));
    }

    #[test]
    fn holds_judge_every_case_and_fail_without_a_figure() {
        let cases = [case("x", 0.9), case("y", 0.5)];
        let judged = judge(&hold(Some(0.8), Some(1.0)), &cases);
        assert_eq!(judged.iter().map(|o| o.holds).collect::<Vec<_>>(), [true, false]);
        let ratio = FigureCondition {
            case: Some("y".into()),
            against: Some("x".into()),
            ..hold(Some(0.5), None)
        };
        assert!(judge(&ratio, &cases)[0].holds);
        let less = FigureCondition { minus: Some("y".into()), ..hold(Some(0.39), Some(0.41)) };
        assert_eq!(judge(&less, &cases).iter().map(|o| o.holds).collect::<Vec<_>>(), [true, false]);
        assert!(!judge(&hold(Some(0.0), None), &[])[0].holds);
        assert!(!judge(&hold(Some(0.0), None), &[case("x", f64::NAN)])[0].holds);
    }
}
