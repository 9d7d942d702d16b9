//! Running a scenario: each case as often as asked, and one report about all of it.

mod curves;
pub(crate) mod flows;
mod live;
mod sum;

use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};

use crate::executable::Executable;
use crate::network::Conditions;
use crate::record::{self, Drawing, Figure, Machine, Report};
use crate::scenario::{Case, Hold, Kind, Scenario};
use crate::topology::Topology;
use crate::workspace::Workspace;
use crate::{figures, interrupt};
pub(crate) use live::Live;

/// A run whose machine was idle for less than this proves nothing.
const IDLE_MIN: f64 = 0.10;

/// Options of a run.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// What nodes run; none for this process's own executable, as `shoal-lab` wants it.
    pub executable: Option<Executable>,
    /// Only the case of this name, or those whose name begins with this if there is none.
    pub case: Option<String>,
    /// Runs of each case, in place of the scenario's number.
    pub repeat: Option<u32>,
    /// Say nothing while it goes on.
    pub quiet: bool,
    /// Where captures of an attacker are kept, a folder for each case; none to forget them.
    pub captures: Option<PathBuf>,
}

impl Options {
    /// Whether the case of this name is to run.
    pub fn wants(&self, scenario: &Scenario, name: &str) -> bool {
        let Some(wanted) = &self.case else { return true };
        let exact = scenario.case_names().contains(wanted);
        if exact { name == wanted } else { name.starts_with(wanted) }
    }

    /// Tells the user something, unless it is to be quiet.
    pub fn say(&self, text: &str) {
        if !self.quiet {
            eprintln!("{text}");
        }
    }
}

/// Runs `scenario`. Everything it made is gone when this returns.
///
/// # Errors
/// When the network does not come up, or required traffic does not arrive. A condition that does
/// not hold is no error here; the report has it.
pub fn run(name: &str, scenario: &Scenario, options: &Options) -> Result<Report> {
    interrupt::notice()?;
    let names = scenario.case_names();
    ensure!(
        names.iter().any(|case| options.wants(scenario, case)),
        "no case of {name} begins so; it has: {}",
        names.join("; ")
    );
    let mut report = empty(name, scenario);
    match scenario.kind {
        Kind::Network => network(scenario, options, &mut report)?,
        Kind::LatencyBreakup => crate::stages::latency(options, &mut report)?,
        Kind::ReadWriteMethods => crate::stages::methods(options, &mut report)?,
        Kind::Programs => crate::programs::run(scenario, options, &mut report)?,
        Kind::Moving => crate::moving::run(scenario, options, &mut report)?,
        Kind::Translators => crate::translators::run(scenario, options, &mut report)?,
    }
    report.papers = figures::papers(scenario, &report.cases);
    report.plots = figures::plots(scenario, &report.cases);
    let ran = |name: &Option<String>| {
        name.as_ref().is_none_or(|name| report.cases.iter().any(|case| case.name == *name))
    };
    let known = |h: &Hold| {
        let mut figures = report.cases.iter().flat_map(|case| &case.figures);
        figures.any(|figure| figure.name == h.figure)
    };
    // Conditions on cases that were not run can't be judged.
    let judged = |h: &&Hold| {
        options.case.is_none() || (ran(&h.case) && ran(&h.against) && ran(&h.minus) && known(h))
    };
    let holds = scenario.holds.iter().filter(judged);
    report.holds = holds.flat_map(|h| figures::judge(h, &report.cases)).collect();
    Ok(report)
}

/// A report of `scenario` without results.
pub(crate) fn empty(name: &str, scenario: &Scenario) -> Report {
    Report {
        version: record::VERSION,
        name: name.into(),
        title: scenario.title.clone(),
        about: scenario.about.trim().into(),
        made_unix_s: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs()),
        machine: machine(),
        ..Report::default()
    }
}

fn network(scenario: &Scenario, options: &Options, report: &mut Report) -> Result<()> {
    let topology = scenario.network();
    let wanted = |c: &Case| options.wants(scenario, &c.name);
    let cases: Vec<Case> = scenario.all_cases().into_iter().filter(wanted).collect();
    report.drawing = drawing(&topology, &scenario.conditions(&topology, &cases[0]));
    let repeat = options.repeat.unwrap_or(scenario.repeat);
    let each: Vec<Vec<Conditions>> =
        cases.iter().map(|case| scenario.conditions(&topology, case)).collect();
    report.cases = cases
        .iter()
        .zip(&each)
        .map(|(case, conditions)| record::Case {
            name: case.name.clone(),
            series: case.series.clone(),
            path_loss: flows::path_loss(scenario, case, &topology, conditions),
            ..record::Case::default()
        })
        .collect();
    // In turn: the machine's speed changes from minute to minute.
    for turn in 1..=repeat {
        for (i, (case, conditions)) in cases.iter().zip(&each).enumerate() {
            options.say(&format!("{}: {} ({turn} of {repeat})", report.name, case.name));
            let run = once(scenario, case, conditions, options, report)
                .with_context(|| format!("case {:?}", case.name))?;
            if scenario.needs_idle && run.idle < IDLE_MIN {
                let idle = run.idle * 100.0;
                let text = format!("{}, run {turn}: INVALID, only {idle:.0}% idle", case.name);
                options.say(&text);
                report.doubts.push(text);
            }
            report.cases[i].runs.push(run);
        }
    }
    for case in &mut report.cases {
        let runs: Vec<_> = case.runs.iter().map(|r| r.figures.as_slice()).collect();
        case.figures = figures::medians(&runs);
    }
    Ok(())
}

fn once(
    scenario: &Scenario,
    case: &Case,
    conditions: &[Conditions],
    options: &Options,
    report: &mut Report,
) -> Result<record::Run> {
    let workspace = Workspace::new(flows::room(scenario, case))?;
    let mut live = Live::start(scenario, case, conditions, options, workspace.path())?;
    report.links = live.manner();
    let run = live.run()?;
    for figure in run.figures.iter().filter(|f| is_said(f)) {
        options.say(&format!("  {} {} {}", figure.name, figure.of, figures::number(figure.value)));
    }
    Ok(run)
}

/// Whether a figure is said while the scenario goes on.
fn is_said(figure: &Figure) -> bool {
    let of_flows = [
        "share",
        "tcp_mbit",
        "udp_mbit",
        "udp_lost",
        "ping_ms",
        "gap_ms",
        "attack_auc",
        "attack_top1",
    ];
    figure.of.is_empty() || of_flows.contains(&figure.name.as_str())
}

fn machine() -> Machine {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let cpu = read("/proc/cpuinfo");
    let model = cpu.lines().find_map(|l| l.strip_prefix("model name")?.split_once(": "));
    Machine {
        kernel: read("/proc/sys/kernel/osrelease").trim().into(),
        processor: model.map_or("unknown", |(_, name)| name).into(),
        processors: std::thread::available_parallelism().map_or(1, |n| n.get()),
    }
}

pub(crate) fn drawing(topology: &Topology, conditions: &[Conditions]) -> Drawing {
    let kind = |n: &crate::topology::NodeSpec| match (n.plain, n.address.is_router()) {
        (true, _) => "plain",
        (_, true) => "router",
        _ => "host",
    };
    let nodes = topology.nodes.iter().map(|n| (n.name.clone(), kind(n).to_owned())).collect();
    let links = topology.links.iter().zip(conditions);
    Drawing { nodes, links: links.map(|(l, c)| (l.a, l.b, words(c))).collect() }
}

/// What a link is like, in few words.
fn words(c: &Conditions) -> String {
    let mut parts = Vec::new();
    parts.extend(c.rate.map(|r| r.to_string()));
    if !c.delay.is_zero() {
        parts.push(format!("{} ms", c.delay.as_secs_f64() * 1e3));
    }
    if c.loss.share > 0.0 {
        parts.push(format!("{}% loss", (c.loss.share * 1e5).round() / 1e3));
    }
    parts.join(", ")
}
