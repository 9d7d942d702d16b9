//! Hosts behind NATs: which pairs get a direct link, how soon, and why other pairs get none.
//!
//! All cells of a scenario are in one network, each with its own hosts and NATs. The cells run at
//! the same time, the requested number of times. Hosts restart for each run, at new ports, so that
//! no NAT remembers them.

mod ground;
mod watch;

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use shoal_crypto::quantile::{median, quantile};
use shoal_daemon::control::api;

use crate::executable::Executable;
use crate::figures::{self, figure, number};
use crate::network::NetworkKind;
use crate::record::{CaseRecord, Figure, ReportTable, RunRecord, ScenarioReport, TimedEvent};
use crate::run::RunOptions;
use crate::scenario::{NatPair, Scenario};
use crate::site::RunningNetwork;
use crate::workspace::Workspace;
use ground::NatNetwork;
use watch::PairOutcome;

/// Limit of the time until routers have reported the hosts' outer endpoints.
const PATIENCE: Duration = Duration::from_secs(30);
/// Wait for a second router's report, which may never come if packets are lost.
const SECOND_VIEW: Duration = Duration::from_secs(8);
/// Name of the case that sums up all cells with an expected direct link.
pub const ALL: &str = "all that can be direct";

/// Runs every cell the requested number of times, and adds a case for each.
///
/// # Errors
/// Namespaces are missing, or hosts do not reach each other at all.
pub fn run(scenario: &Scenario, options: &RunOptions, report: &mut ScenarioReport) -> Result<()> {
    ensure!(
        NetworkKind::available() == NetworkKind::Namespaces,
        "NATs need namespaces; run as root"
    );
    let wanted = scenario.cells.iter().filter(|cell| {
        options.wants(scenario, &cell.name()) || options.case.as_deref() == Some(ALL)
    });
    let cells: Vec<NatPair> = wanted.cloned().collect();
    let ground = NatNetwork::plan(scenario, &cells)?;
    report.drawing = crate::run::drawing(&ground.topology, &ground.conditions);
    let workspace = Workspace::new(0)?;
    let network = ground.build(scenario.family)?;
    report.links = format!("{}; NATs by nftables", network.manner());
    let executable = Executable::given_or_own(&options.executable)?;
    let prepare = |network: &_, folder: &_| ground.prepare(network, folder);
    let mut site = RunningNetwork::start_after(
        network,
        &executable,
        workspace.path(),
        &scenario.node_config,
        prepare,
    )?;
    let mut found: Vec<Vec<PairOutcome>> = cells.iter().map(|_| Vec::new()).collect();
    let repeat = options.repeat.unwrap_or(scenario.repeat);
    for turn in 0..repeat {
        if turn > 0 {
            ground.write_hosts(site.network(), workspace.path(), turn)?;
            site.restart_all(&ground.hosts())?;
        }
        wait_until_seen(&mut site, &ground)?;
        options.say(&format!("{}: run {} of {repeat}", report.name, turn + 1));
        for (cell, (all, one)) in
            cells.iter().zip(found.iter_mut().zip(watch::all(&site, &ground)?))
        {
            options.say(&format!("  {}: {}", cell.name(), one.words()));
            all.push(one);
        }
    }
    report.cases = cells.iter().zip(&found).map(|(cell, all)| case(cell.name(), all)).collect();
    let counted = cells.iter().zip(&found).filter(|(cell, _)| cell.counts());
    let counted: Vec<PairOutcome> = counted.flat_map(|(_, all)| all.iter().cloned()).collect();
    if !counted.is_empty() {
        report.cases.push(case(ALL.into(), &counted));
    }
    report.tables.push(table(&cells, &found));
    Ok(())
}

/// Waits until every host has its link and knows its outer endpoint.
fn wait_until_seen(site: &mut RunningNetwork, ground: &NatNetwork) -> Result<()> {
    let since = Instant::now();
    for host in ground.hosts() {
        let name = site.network().topology().nodes[host].name.clone();
        let what = format!("the outer endpoint of {name}");
        site.wait(&what, PATIENCE, |site| {
            let status = site.status(host)?;
            let api::ControlReply::Netcheck(net) = site.ask(host, api::Command::Netcheck)? else {
                bail!("the node answered `netcheck` with another reply");
            };
            let late = since.elapsed() >= SECOND_VIEW && !net.seen.is_empty();
            let known = net.mapping != "unknown" || net.endpoint.is_some();
            let seen = known || late || net.direct == "off";
            Ok((status.links_up >= 1 && seen).then_some(()))
        })
        .with_context(|| format!("end of its log:\n{}", site.log_end(host)))?;
    }
    Ok(())
}

fn case(name: String, all: &[PairOutcome]) -> CaseRecord {
    let runs: Vec<RunRecord> = all.iter().map(PairOutcome::run).collect();
    let each: Vec<&[Figure]> = runs.iter().map(|run| run.figures.as_slice()).collect();
    let mut figures = figures::medians(&each);
    let count = |is: fn(&PairOutcome) -> bool| all.iter().filter(|one| is(one)).count() as f64;
    let share = |of: f64| of / all.len() as f64;
    let direct = count(|one| one.setup.is_some());
    figures.push(figure("direct_share", "", share(direct)));
    figures.push(figure("soon_share", "", share(count(PairOutcome::is_soon))));
    figures.push(figure("reached_share", "", share(count(|one| one.first_ms.is_some()))));
    if direct > 0.0 {
        figures.push(figure("timely_share", "", count(PairOutcome::is_timely) / direct));
    }
    let most = |value: fn(&PairOutcome) -> Option<f64>| {
        quantile(&all.iter().filter_map(value).collect::<Vec<_>>(), 0.95)
    };
    figures.extend(most(|one| one.setup).map(|ms| figure("setup_p95_ms", "", ms)));
    figures.extend(most(|one| one.first_ms).map(|ms| figure("first_p95_ms", "", ms)));
    CaseRecord { name, runs, figures, ..CaseRecord::default() }
}

fn table(cells: &[NatPair], found: &[Vec<PairOutcome>]) -> ReportTable {
    let rows = cells.iter().zip(found).map(|(cell, all)| {
        let count =
            |is: fn(&PairOutcome) -> bool| Some(all.iter().filter(|one| is(one)).count() as f64);
        let values = |value: fn(&PairOutcome) -> Option<f64>| -> Vec<f64> {
            all.iter().filter_map(value).collect()
        };
        let middle = |value| median(&values(value));
        let most = |value| quantile(&values(value), 0.95);
        let why = all.iter().find_map(|one| one.why.as_deref());
        let name = match why {
            Some(why) => format!("{}: routers, {why}", cell.name()),
            None => cell.name(),
        };
        let row = vec![
            count(|one| one.setup.is_some()),
            Some(all.len() as f64),
            middle(|one| one.setup),
            most(|one| one.setup),
            middle(PairOutcome::bound_ms),
            count(PairOutcome::is_soon),
            middle(|one| one.first_ms),
            most(|one| one.first_ms),
            middle(|one| one.routed_ms),
            middle(|one| one.direct_ms),
        ];
        (name, row)
    });
    let columns = [
        "hosts",
        "direct",
        "runs",
        "set up",
        "95%",
        "bound",
        "in 1 s",
        "first answer",
        "95%",
        "routed",
        "direct",
    ];
    ReportTable {
        mixed: false,
        title: "Pairs of hosts".into(),
        columns: columns.map(str::to_owned).into(),
        rows: rows.collect(),
        unit: "runs, and medians and 95th percentiles in ms".into(),
    }
}

impl PairOutcome {
    /// Description of the run, for progress output.
    fn words(&self) -> String {
        let of = |ms: Option<f64>| number(ms.unwrap_or(f64::NAN));
        let (first, routed) = (of(self.first_ms), of(self.routed_ms));
        let way = match (self.setup, &self.why) {
            (Some(setup), _) => {
                let bound = self.bound_ms().unwrap_or(f64::NAN);
                let late = if self.is_timely() { "" } else { " LATE" };
                format!("direct after {} ms of {}{late}", number(setup), number(bound))
            }
            (None, Some(why)) => format!("relayed: {why}"),
            (None, None) if self.first_ms.is_none() => "NOT REACHED".into(),
            (None, None) => "relayed".into(),
        };
        format!("{way}; first answer {first} ms, routed {routed} ms")
    }

    fn run(&self) -> RunRecord {
        let mut figures: Vec<Figure> = Vec::new();
        figures.extend(self.first_ms.map(|ms| figure("first_ms", "", ms)));
        figures.extend(self.setup.map(|ms| figure("setup_ms", "", ms)));
        let events = self.why.iter().map(|why| TimedEvent { at_s: 0.0, text: why.clone() });
        RunRecord { figures, events: events.collect(), idle: 1.0, ..RunRecord::default() }
    }
}
