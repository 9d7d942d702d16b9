//! Hosts behind translators of addresses: which pairs get a link of their own, how soon, and why
//! the others have none.
//!
//! All cells of a scenario are in one network, each with hosts and translators of its own, and are
//! run at once, as often as asked. Hosts start anew for each run, at ports of their own, so that no
//! translator remembers them.

mod ground;
mod watch;

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use shoal_daemon::control::api;

use crate::executable::Executable;
use crate::figures::{self, figure, number};
use crate::network::Kind;
use crate::record::{Case, Figure, Mark, Report, Run, Table};
use crate::run::Options;
use crate::scenario::{Cell, Scenario};
use crate::site::Site;
use crate::workspace::Workspace;
use ground::Ground;
use watch::Found;

/// How long hosts may take until routers have said where they are seen.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long they are waited for until a second one has, too, which may never come where packets
/// are lost.
const SECOND_VIEW: Duration = Duration::from_secs(8);
/// Name of the case that sums up all cells that can be direct.
pub const ALL: &str = "all that can be direct";

/// Runs every cell as often as asked, and adds a case for each.
///
/// # Errors
/// Without namespaces, or when hosts do not reach each other at all.
pub fn run(scenario: &Scenario, options: &Options, report: &mut Report) -> Result<()> {
    ensure!(Kind::available() == Kind::Namespaces, "translators of addresses need root");
    let wanted = scenario.cells.iter().filter(|cell| {
        options.wants(scenario, &cell.name()) || options.case.as_deref() == Some(ALL)
    });
    let cells: Vec<Cell> = wanted.cloned().collect();
    let ground = Ground::plan(scenario, &cells)?;
    report.drawing = crate::run::drawing(&ground.topology, &ground.conditions);
    let workspace = Workspace::new(0)?;
    let network = ground.build(scenario.family)?;
    report.links = format!("{}; translators by nftables", network.manner());
    let executable = Executable::given_or_own(&options.executable)?;
    let prepare = |network: &_, folder: &_| ground.prepare(network, folder);
    let mut site =
        Site::start_after(network, &executable, workspace.path(), &scenario.node_config, prepare)?;
    let mut found: Vec<Vec<Found>> = cells.iter().map(|_| Vec::new()).collect();
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
    let counted: Vec<Found> = counted.flat_map(|(_, all)| all.iter().cloned()).collect();
    if !counted.is_empty() {
        report.cases.push(case(ALL.into(), &counted));
    }
    report.tables.push(table(&cells, &found));
    Ok(())
}

/// Waits until every host has its link and knows where it is seen.
fn wait_until_seen(site: &mut Site, ground: &Ground) -> Result<()> {
    let since = Instant::now();
    for host in ground.hosts() {
        let name = site.network().topology().nodes[host].name.clone();
        let what = format!("{name} to be seen");
        site.wait(&what, PATIENCE, |site| {
            let status = site.status(host)?;
            let api::Reply::Netcheck(net) = site.ask(host, api::Command::Netcheck)? else {
                bail!("unexpected answer to a question for what is seen");
            };
            let late = since.elapsed() >= SECOND_VIEW && !net.seen.is_empty();
            let known = net.mapping != "unknown" || net.endpoint.is_some();
            let seen = known || late || net.direct == "off";
            Ok((status.links_up >= 1 && seen).then_some(()))
        })
        .with_context(|| format!("its log ends:\n{}", site.log_end(host)))?;
    }
    Ok(())
}

fn case(name: String, all: &[Found]) -> Case {
    let runs: Vec<Run> = all.iter().map(Found::run).collect();
    let each: Vec<&[Figure]> = runs.iter().map(|run| run.figures.as_slice()).collect();
    let mut figures = figures::medians(&each);
    let count = |is: fn(&Found) -> bool| all.iter().filter(|one| is(one)).count() as f64;
    let share = |of: f64| of / all.len() as f64;
    let direct = count(|one| one.setup.is_some());
    figures.push(figure("direct_share", "", share(direct)));
    figures.push(figure("soon_share", "", share(count(Found::is_soon))));
    figures.push(figure("reached_share", "", share(count(|one| one.first_ms.is_some()))));
    if direct > 0.0 {
        figures.push(figure("timely_share", "", count(Found::is_timely) / direct));
    }
    let most = |value: fn(&Found) -> Option<f64>| most(all.iter().filter_map(value).collect());
    figures.extend(most(|one| one.setup).map(|ms| figure("setup_p95_ms", "", ms)));
    figures.extend(most(|one| one.first_ms).map(|ms| figure("first_p95_ms", "", ms)));
    Case { name, runs, figures, ..Case::default() }
}

fn table(cells: &[Cell], found: &[Vec<Found>]) -> Table {
    let rows = cells.iter().zip(found).map(|(cell, all)| {
        let count = |is: fn(&Found) -> bool| Some(all.iter().filter(|one| is(one)).count() as f64);
        let values = |value: fn(&Found) -> Option<f64>| all.iter().filter_map(value).collect();
        let why = all.iter().find_map(|one| one.why.as_deref());
        let name = match why {
            Some(why) => format!("{}: routers, {why}", cell.name()),
            None => cell.name(),
        };
        let row = vec![
            count(|one| one.setup.is_some()),
            Some(all.len() as f64),
            median(values(|one| one.setup)),
            most(values(|one| one.setup)),
            median(values(Found::bound_ms)),
            count(Found::is_soon),
            median(values(|one| one.first_ms)),
            most(values(|one| one.first_ms)),
            median(values(|one| one.routed_ms)),
            median(values(|one| one.direct_ms)),
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
    Table {
        mixed: false,
        title: "Pairs of hosts".into(),
        columns: columns.map(str::to_owned).into(),
        rows: rows.collect(),
        unit: "runs, and medians in ms, with what 95% of runs do not exceed".into(),
    }
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

/// What 95% of the values do not exceed.
fn most(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get((values.len() * 19).div_ceil(20).checked_sub(1)?).copied()
}

impl Found {
    /// What is said of it.
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

    fn run(&self) -> Run {
        let mut figures: Vec<Figure> = Vec::new();
        figures.extend(self.first_ms.map(|ms| figure("first_ms", "", ms)));
        figures.extend(self.setup.map(|ms| figure("setup_ms", "", ms)));
        let events = self.why.iter().map(|why| Mark { at_s: 0.0, text: why.clone() });
        Run { figures, events: events.collect(), idle: 1.0, ..Run::default() }
    }
}
