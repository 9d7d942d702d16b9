//! Runs a scenario: each case the requested number of times, with one report.

mod curves;
pub(crate) mod flows;
mod live;
mod sum;

use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use shoal_cli::interrupt::Interrupt;

use crate::executable::Executable;
use crate::figures;
use crate::network::Conditions;
use crate::record::{self, Drawing, Figure, Machine, ScenarioReport};
use crate::scenario::{ExperimentKind, FigureCondition, Scenario, ScenarioCase};
use crate::topology::Topology;
use crate::workspace::Workspace;
pub(crate) use live::LiveRun;

/// Minimum idle share of the machine: with less, a run proves nothing.
const IDLE_MIN: f64 = 0.10;

/// Options of a run.
#[derive(Clone, Debug, Default)]
pub struct RunOptions {
    /// Program of the nodes; `None` for this process's own executable, as `shoal-lab` needs it.
    pub executable: Option<Executable>,
    /// Only the case with this name. If no case has it, the cases whose names begin with it.
    pub case: Option<String>,
    /// Number of runs of each case; overrides the scenario's.
    pub repeat: Option<u32>,
    /// Print no progress.
    pub quiet: bool,
    /// Folder for an attacker's captures, with a folder per case; `None` to delete captures.
    pub captures: Option<PathBuf>,
}

impl RunOptions {
    /// True if the case of this name is selected.
    pub fn wants(&self, scenario: &Scenario, name: &str) -> bool {
        let Some(wanted) = &self.case else { return true };
        let exact = scenario.case_names().contains(wanted);
        if exact { name == wanted } else { name.starts_with(wanted) }
    }

    /// Prints a line to standard error, unless quiet.
    pub fn say(&self, text: &str) {
        if !self.quiet {
            eprintln!("{text}");
        }
    }
}

/// Runs `scenario`, and removes everything that it made.
///
/// # Errors
/// The network does not come up, or required traffic does not arrive. A condition that fails is not
/// an error; the report has it.
pub fn run(name: &str, scenario: &Scenario, options: &RunOptions) -> Result<ScenarioReport> {
    Interrupt::catch()?;
    let names = scenario.case_names();
    ensure!(
        names.iter().any(|case| options.wants(scenario, case)),
        "no case of {name} has this name or beginning; its cases: {}",
        names.join("; ")
    );
    let mut report = empty(name, scenario);
    match scenario.kind {
        ExperimentKind::Network => network(scenario, options, &mut report)?,
        ExperimentKind::LatencyBreakup => crate::stages::latency(options, &mut report)?,
        ExperimentKind::ReadWriteMethods => crate::stages::methods(options, &mut report)?,
        ExperimentKind::Programs => crate::programs::run(scenario, options, &mut report)?,
        ExperimentKind::Moving => crate::moving::run(scenario, options, &mut report)?,
        ExperimentKind::Translators => crate::translators::run(scenario, options, &mut report)?,
    }
    report.papers = figures::papers(scenario, &report.cases);
    report.plots = figures::plots(scenario, &report.cases);
    let ran = |name: &Option<String>| {
        name.as_ref().is_none_or(|name| report.cases.iter().any(|case| case.name == *name))
    };
    let known = |h: &FigureCondition| {
        let mut figures = report.cases.iter().flat_map(|case| &case.figures);
        figures.any(|figure| figure.name == h.figure)
    };
    // Conditions on cases that were not run can't be checked.
    let judged = |h: &&FigureCondition| {
        options.case.is_none() || (ran(&h.case) && ran(&h.against) && ran(&h.minus) && known(h))
    };
    let holds = scenario.holds.iter().filter(judged);
    report.holds = holds.flat_map(|h| figures::judge(h, &report.cases)).collect();
    Ok(report)
}

/// A report of `scenario` without results.
pub(crate) fn empty(name: &str, scenario: &Scenario) -> ScenarioReport {
    ScenarioReport {
        version: record::VERSION,
        name: name.into(),
        title: scenario.title.clone(),
        about: scenario.about.trim().into(),
        made_unix_s: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs()),
        machine: machine(),
        ..ScenarioReport::default()
    }
}

fn network(scenario: &Scenario, options: &RunOptions, report: &mut ScenarioReport) -> Result<()> {
    let topology = scenario.network();
    let wanted = |c: &ScenarioCase| options.wants(scenario, &c.name);
    let cases: Vec<ScenarioCase> = scenario.all_cases().into_iter().filter(wanted).collect();
    report.drawing = drawing(&topology, &scenario.conditions(&topology, &cases[0]));
    let repeat = options.repeat.unwrap_or(scenario.repeat);
    let each: Vec<Vec<Conditions>> =
        cases.iter().map(|case| scenario.conditions(&topology, case)).collect();
    report.cases = cases
        .iter()
        .zip(&each)
        .map(|(case, conditions)| record::CaseRecord {
            name: case.name.clone(),
            series: case.series.clone(),
            path_loss: flows::path_loss(scenario, case, &topology, conditions),
            ..record::CaseRecord::default()
        })
        .collect();
    // Cases take turns, since the machine's speed changes from minute to minute.
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
    case: &ScenarioCase,
    conditions: &[Conditions],
    options: &RunOptions,
    report: &mut ScenarioReport,
) -> Result<record::RunRecord> {
    let workspace = Workspace::new(flows::room(scenario, case))?;
    let mut live = LiveRun::start(scenario, case, conditions, options, workspace.path())?;
    report.links = live.manner();
    let run = live.run()?;
    for figure in run.figures.iter().filter(|f| is_said(f)) {
        options.say(&format!("  {} {} {}", figure.name, figure.of, figures::number(figure.value)));
    }
    Ok(run)
}

/// True if a figure is printed during the run.
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

/// Short description of a link's conditions.
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
