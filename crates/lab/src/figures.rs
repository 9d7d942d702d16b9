//! The figures of a run, and the conditions on them.

use crate::record::{self, Case, Figure, Outcome, PaperRow};
use crate::scenario::{Hold, Plot, Points, Scenario};

/// Every figure: its name, its unit, and what it is.
pub const KNOWN: &[(&str, &str, &str)] = &[
    ("rate_mbit", "Mbit/s", "file bits per second, from acceptance to the last confirmation"),
    ("share", "", "that rate as a share of what the path can carry"),
    ("steady_share", "", "the same from 1.5 s after the start to shortly before the end"),
    ("startup_s", "s", "from acceptance to 90% of what the path can carry, over 200 ms"),
    ("fair_share", "", "goodput as a share of an equal part, while all flows run"),
    ("jain", "", "Jain's index of the flows' goodput, from 3 s after the last start"),
    ("resent_over_lost", "", "file bytes sent again, per file byte that the links lost"),
    (
        "gap_ms",
        "ms",
        "longest silence on a receiver's link; of UDP and TCP between interfaces, there",
    ),
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
    ("ping_p999_ms", "ms", "what 99.9% of these round trips do not exceed"),
    ("ping_lost", "", "share of pings without an answer"),
    ("wget_mbit", "Mbit/s", "bytes that wget fetched over the virtual interface"),
    (
        "tcp_resent",
        "",
        "TCP segments sent again over the virtual interface, from 1.5 s after the start",
    ),
    ("tcp_lost", "", "of those, how many had not arrived"),
    ("tcp_disordered", "", "TCP segments that arrived there before an earlier one"),
    ("udp_mbit", "Mbit/s", "UDP payload that arrived over the virtual interface"),
    ("udp_lost", "", "share of UDP datagrams that did not arrive there"),
    ("udp_missing", "", "UDP datagrams that did not arrive there"),
    ("udp_disordered", "", "UDP datagrams that arrived there after a later one"),
    ("udp_delay_ms", "ms", "mean time of UDP datagrams from one interface to the other"),
    ("udp_delay_p99_ms", "ms", "what 99% of these times do not exceed"),
    (
        "udp_jitter_ms",
        "ms",
        "mean of the jitters of UDP that iperf3 reckons each tenth of a second (RFC 3550)",
    ),
    ("rotations", "", "how often the first flow moved to another circuit"),
    ("seen", "", "datagrams that observers of the wires kept"),
    ("odd_sizes", "", "of those, how many have none of the three sizes"),
    ("uneven", "", "places at which their bytes do not look random"),
    ("on_two_wires", "", "of those, how many share 16 bytes in a row with another wire"),
    ("in_clear", "", "of those, how many hold content or addresses of hosts"),
    ("flood_per_s", "/s", "packets per second that a flood really sent"),
    ("handshake_cpu", "", "share of a core that a flood's target spent on handshakes"),
    ("links_lost", "", "links that routers lost, but for those to a flood's origin"),
    ("explained", "", "drops counted at the target per packet of the flood that reached it"),
    ("files", "", "files that arrived"),
    ("broken", "", "files that had to be sent again from where they were"),
    (
        "attack_auc",
        "",
        "how often an attacker on access links scores a true pair above a wrong one",
    ),
    ("attack_auc_low", "", "lower end of the 95% interval of that"),
    ("attack_auc_high", "", "its upper end"),
    ("attack_top1", "", "how often the true pair has the highest score of its row"),
    ("attack_guess", "", "the same for who guesses"),
    ("attack_shuffled", "", "`attack_auc` when it is drawn at random which pairs are true"),
    ("attack_shuffled_low", "", "lower end of the 95% interval of that"),
    ("attack_shuffled_high", "", "its upper end"),
    ("attack_frames_per_s", "/s", "full frames on an access link, both directions"),
    ("hops", "", "hops of all links' addresses that were made"),
    ("hops_failed", "", "hops after which a link fell back to its fixed endpoint"),
    ("cpu_share", "", "share of a core that the first gateway used during a test"),
    ("kernel_share", "", "share of that time spent in the kernel"),
    ("frames_per_send", "", "frames per call that sends, at a relay under a TCP stream"),
    ("frames_per_message", "", "frames per message that it receives"),
    ("relay_ns", "ns", "processor time of a relay per frame"),
    (
        "hop_frames",
        "",
        "frames of both ends per hop, on idle links, beyond those of fixed addresses",
    ),
    ("hop_bytes", "B", "the same in bytes of UDP payload"),
    ("up_again_s", "s", "from the start of a node that was killed to the first answer"),
    ("neighbours", "", "addresses of a node in the table of the router before it"),
    ("near_hops_lost", "", "share of UDP lost within 50 ms of hops, less that in random windows"),
    ("linked_addresses", "", "how often an observer links a hop again by addresses alone"),
    ("linked_over", "", "that, less what who guesses reaches with three standard deviations more"),
    ("linked_times", "", "how often he does by times and volumes"),
    (
        "linked_phases",
        "",
        "how often the observer names the link by the phase of a shift 20 intervals before",
    ),
    (
        "linked_phases_over",
        "",
        "`linked_phases` less the share of a guess and three standard deviations of it",
    ),
    ("linked_shuffled", "", "how often one that is drawn is the right one"),
    ("linked_hops", "", "hops that he saw"),
    ("scanned", "", "datagrams that a scanner sent to addresses of before"),
    ("scan_bytes", "B", "bytes that came back"),
    ("scan_stale", "", "share of them that nodes counted as `stale_address`"),
    ("scan_echoes", "", "share of pings to such addresses that the kernel answered"),
    ("random_lost", "", "share of UDP lost in random windows"),
    ("direct_share", "", "runs in which two hosts got a link of their own, of all"),
    (
        "timely_share",
        "",
        "of those, how many had it after a routed and three direct round trips and 50 ms",
    ),
    ("soon_share", "", "runs in which they had it within a second, of all"),
    ("reached_share", "", "runs in which they reached each other, of all"),
    ("setup_ms", "ms", "from the first cell between two hosts to their direct link"),
    ("setup_p95_ms", "ms", "what 95% of these times do not exceed"),
    (
        "first_ms",
        "ms",
        "from the first request for an echo to its answer, with the hosts' handshake",
    ),
    ("first_p95_ms", "ms", "what 95% of these times do not exceed"),
    ("memory_mb", "MB", "largest resident memory of a node"),
    ("memory_growth", "", "resident memory at the end, per that after a quarter of the time"),
    ("cpu_s", "s", "processor time of a node"),
    (
        "late_share",
        "",
        "share of the cells of a node's mixes that left more than 0.5 ms after their time",
    ),
    ("kernel_s", "s", "how much of that was spent in the kernel"),
    ("idle", "", "share of the machine that nobody used"),
];

/// Whether there is such a figure.
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

/// The value of the metric whose line begins so, in the text of a node's.
pub fn metric(text: &str, begins: &str) -> Option<f64> {
    text.lines().find_map(|line| line.strip_prefix(begins)?.trim().parse().ok())
}

/// Jain's index of n values: 1 when all are equal, 1/n when one has all. None without values.
pub fn jain(values: &[f64]) -> Option<f64> {
    let sum: f64 = values.iter().sum();
    let squares: f64 = values.iter().map(|v| v * v).sum();
    (squares > 0.0).then(|| sum * sum / (values.len() as f64 * squares))
}

/// Medians, and the spread around them, of the figures of several runs.
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

/// The median; NaN of none. Sorts the values.
fn middle(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    let at = |at: usize| values.get(at).copied().unwrap_or(f64::NAN);
    (at(values.len().saturating_sub(1) / 2) + at(values.len() / 2)) / 2.0
}

/// What `compare` says of a figure in two cases: the median over their runs, each beside the other
/// case's of the same turn, since the machine's speed changes between turns. Where the figure was
/// not measured in each turn of both, of the two medians.
fn beside(case: &Case, other: &Case, figure: &Figure, compare: impl Fn(f64, f64) -> f64) -> f64 {
    let find = |figures: &[Figure]| {
        let found = figures.iter().find(|f| f.name == figure.name && f.of == figure.of);
        found.map(|found| found.value)
    };
    let each = |case: &Case| case.runs.iter().map(|run| find(&run.figures)).collect::<Option<_>>();
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

/// Whether `hold` is true of the figures of `cases`, one outcome each.
pub fn judge(hold: &Hold, cases: &[Case]) -> Vec<Outcome> {
    let fits = |f: &&Figure| f.name == hold.figure && hold.of.as_ref().is_none_or(|of| *of == f.of);
    let nothing = Case::default();
    let named = |name: &str| cases.iter().find(|c| c.name == name).unwrap_or(&nothing);
    let mut outcomes = Vec::new();
    for case in cases.iter().filter(|c| hold.case.as_ref().is_none_or(|name| c.name == *name)) {
        for figure in case.figures.iter().filter(fits) {
            let mut value = figure.value;
            let mut what = format!("{} of {}", figure.name, shown(&figure.of));
            if let Some(other) = &hold.against {
                value = beside(case, named(other), figure, |own, other| own / other);
                what += &format!(", against case {other:?},");
            }
            if let Some(other) = &hold.minus {
                value = beside(case, named(other), figure, |own, other| own - other);
                what += &format!(", without that of case {other:?},");
            }
            // A ratio has no unit.
            let unit = if hold.against.is_some() { "" } else { unit(&figure.name) };
            outcomes.push(outcome(hold, &case.name, &what, value, unit));
        }
    }
    if outcomes.is_empty() {
        let rule = format!("{} is known", hold.figure);
        outcomes.push(Outcome { rule, found: "no such figure was found".into(), holds: false });
    }
    outcomes
}

fn outcome(hold: &Hold, case: &str, what: &str, value: f64, unit: &str) -> Outcome {
    let with_unit = |text: String| format!("{text} {unit}").trim_end().to_owned();
    let mut rule = format!("{case}: {what} is");
    let mut holds = true;
    if let Some(low) = hold.at_least {
        rule += &with_unit(format!(" at least {low}"));
        // `>=` and not `!(<)`: NaN must not pass.
        holds &= value >= low;
    }
    if let Some(high) = hold.at_most {
        let and = if hold.at_least.is_some() { " and" } else { "" };
        rule += &with_unit(format!("{and} at most {high}"));
        holds &= value <= high;
    }
    let found = if value.is_finite() { with_unit(number(value)) } else { number(value) };
    Outcome { rule, found, holds }
}

/// A paper's figures, with ours where there is one.
pub fn papers(scenario: &Scenario, cases: &[Case]) -> Vec<PaperRow> {
    let ours = |paper: &crate::scenario::Paper| {
        let name = paper.figure.as_ref()?;
        let case = match &paper.case {
            Some(case) => cases.iter().find(|c| c.name == *case)?,
            None => cases.first()?,
        };
        let of = |f: &&Figure| paper.of.as_ref().is_none_or(|of| *of == f.of);
        Some(case.figures.iter().filter(|f| f.name == *name).find(of)?.value)
    };
    let row = |paper: &crate::scenario::Paper| PaperRow {
        what: paper.what.clone(),
        unit: paper.unit.clone(),
        paper: paper.value,
        place: paper.place.clone(),
        ours: ours(paper),
    };
    scenario.papers.iter().map(row).collect()
}

/// The scenario's plots, with the cases that were run; a plot without any is left out.
pub fn plots(scenario: &Scenario, cases: &[Case]) -> Vec<record::Plot> {
    let plots = scenario.plots.iter().map(|plot| over_cases(plot, cases));
    plots.filter(|plot| plot.lines.iter().any(|line| !line.known)).collect()
}

fn over_cases(plot: &Plot, cases: &[Case]) -> record::Plot {
    let value = |case: &str, of: Option<&String>| {
        let case = cases.iter().find(|c| c.name == case)?;
        let fits = |f: &&Figure| f.name == plot.figure && of.is_none_or(|of| *of == f.of);
        Some(case.figures.iter().find(fits)?.value)
    };
    let measured = |case: &str, of: Option<&String>| {
        let divisor = plot.against.as_ref().map_or(Some(1.0), |other| value(other, of))?;
        // A case in which nothing arrived divides nothing.
        Some(value(case, of)? / divisor).filter(|value| value.is_finite())
    };
    let line = |line: &Points| {
        let of = line.of.as_ref().or(plot.of.as_ref());
        let cases = line.cases.iter().filter_map(|(x, case)| Some((*x, measured(case, of)?)));
        record::Points {
            name: line.name.clone(),
            points: cases.chain(line.values.iter().copied()).collect(),
            known: line.cases.is_empty(),
        }
    };
    let y = match &plot.against {
        Some(case) => format!("{} as a share of that in the case {case:?}", plot.figure),
        None => format!("{} {}", plot.figure, unit(&plot.figure)).trim_end().into(),
    };
    record::Plot {
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

/// A number with as many digits as are useful.
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

    fn hold(at_least: Option<f64>, at_most: Option<f64>) -> Hold {
        let (of, case, against, minus) = (None, None, None, None);
        Hold { figure: "share".into(), of, case, against, minus, at_least, at_most }
    }

    fn case(name: &str, value: f64) -> Case {
        let figures = vec![figure("share", "a", value)];
        Case { name: name.into(), figures, ..Case::default() }
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
        // The machine's speed doubles, in both cases; in one turn only one of them is disturbed.
        let of = |name: &str, values: [f64; 3]| {
            let run = |value| record::Run {
                figures: vec![figure("share", "a", value)],
                ..record::Run::default()
            };
            let runs: Vec<record::Run> = values.map(run).into();
            let each: Vec<&[Figure]> = runs.iter().map(|run| run.figures.as_slice()).collect();
            Case { name: name.into(), figures: medians(&each), runs, ..Case::default() }
        };
        let cases = [of("x", [10.0, 20.0, 21.0]), of("y", [10.0, 12.0, 21.0])];
        let case = Some("y".to_owned());
        let against =
            Hold { case: case.clone(), against: Some("x".into()), ..hold(Some(1.0), None) };
        assert_eq!(judge(&against, &cases)[0].found, "1.000", "medians would say 0.6");
        let minus = Hold { case, minus: Some("x".into()), ..hold(Some(0.0), None) };
        assert_eq!(judge(&minus, &cases)[0].found, "0");
        // A turn is missing.
        let mut short = cases.clone();
        short[1].runs.pop();
        assert_eq!(judge(&against, &short)[0].found, "0.600");
        assert!(!judge(&against, &cases[1..])[0].holds, "there is nothing to compare with");
    }

    #[test]
    fn rules_and_what_was_found_have_units() {
        let rate = vec![figure("rate_mbit", "file", 512.25)];
        let cases = [Case { name: "x".into(), figures: rate, ..Case::default() }];
        let rule = Hold { figure: "rate_mbit".into(), ..hold(Some(500.0), Some(900.0)) };
        let judged = &judge(&rule, &cases)[0];
        let said = "x: rate_mbit of file is at least 500 Mbit/s and at most 900 Mbit/s";
        assert_eq!((judged.rule.as_str(), judged.found.as_str()), (said, "512.2 Mbit/s"));
        let ratio = Hold { against: Some("x".into()), ..rule };
        assert_eq!(judge(&ratio, &cases)[0].found, "1.000");
    }

    #[test]
    fn a_plot_has_the_cases_that_were_run() {
        let line = |name: &str, cases: &[(f64, &str)], values: &[(f64, f64)]| Points {
            name: name.into(),
            of: None,
            cases: cases.iter().map(|(x, case)| (*x, (*case).to_owned())).collect(),
            values: values.to_vec(),
        };
        let plot = |against: Option<&str>| Plot {
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
        assert_eq!(shares.y, "share as a share of that in the case \"x\"");
        // Nothing to divide by.
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
        let ratio =
            Hold { case: Some("y".into()), against: Some("x".into()), ..hold(Some(0.5), None) };
        assert!(judge(&ratio, &cases)[0].holds);
        let less = Hold { minus: Some("y".into()), ..hold(Some(0.39), Some(0.41)) };
        assert_eq!(judge(&less, &cases).iter().map(|o| o.holds).collect::<Vec<_>>(), [true, false]);
        assert!(!judge(&hold(Some(0.0), None), &[])[0].holds);
        assert!(!judge(&hold(Some(0.0), None), &[case("x", f64::NAN)])[0].holds);
    }
}
