//! The attacker's experiments, on all cores.
//!
//! In: scenarios of `shoal-attack` and a size. Out: a [`Report`], one row for each case. These are
//! in virtual time: they need no network and no root, and the same size gives the same figures.
//! [`capture`] attacks recorded links instead, and [`recognise`] asks which program they carry.

pub mod capture;
pub(crate) mod live;
pub mod recognise;

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde::Serialize;
use shoal_attack::scenarios::{Case, Checked, Scenario, Size};
use shoal_attack::{Outcome, Wrong, experiment};

/// What the attacker achieved.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Flows and seeds.
    pub size: Size,
    /// All cases, in the order of the scenarios.
    pub rows: Vec<Row>,
}

/// One case.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Whose case it is.
    pub scenario: Scenario,
    /// What it is, in a few words.
    pub case: String,
    /// The curve that it is a point of.
    pub series: Option<String>,
    /// Pairs of hosts in each network.
    pub flows: usize,
    /// Networks.
    pub networks: u64,
    /// How long they are watched.
    pub seconds: u32,
    /// What was found.
    pub outcome: Outcome,
    /// Conditions on it.
    pub checks: Vec<Checked>,
}

impl Report {
    /// The rows of a scenario.
    pub fn of(&self, scenario: Scenario) -> impl Iterator<Item = &Row> {
        self.rows.iter().filter(move |row| row.scenario == scenario)
    }

    /// All conditions, with the cases that they are about.
    pub fn checks(&self) -> impl Iterator<Item = (&Row, &Checked)> {
        self.rows.iter().flat_map(|row| row.checks.iter().map(move |check| (row, check)))
    }
}

/// Runs all cases of these scenarios. `progress` is told what begins, and how far it is; threads
/// call it.
///
/// # Errors
/// A case that is out of bounds.
pub fn run(
    scenarios: &[Scenario],
    size: Size,
    progress: &(dyn Fn(usize, usize, &str) + Sync),
) -> Result<Report, Wrong> {
    let of = |s: &Scenario| s.cases(size).into_iter().map(|case| (*s, case)).collect::<Vec<_>>();
    let cases: Vec<(Scenario, Case)> = scenarios.iter().flat_map(of).collect();
    let next = AtomicUsize::new(0);
    let done = Mutex::new(vec![None; cases.len()]);
    let work = || {
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some((scenario, case)) = cases.get(at) else { return };
            progress(at + 1, cases.len(), &format!("{scenario}: {}", case.name));
            let row = row(*scenario, case);
            done.lock().unwrap_or_else(|e| e.into_inner())[at] = Some(row);
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(work);
        }
    });
    let rows = done.into_inner().unwrap_or_else(|e| e.into_inner());
    Ok(Report { size, rows: rows.into_iter().flatten().collect::<Result<_, _>>()? })
}

fn row(scenario: Scenario, case: &Case) -> Result<Row, Wrong> {
    let outcome = experiment(&case.setup)?;
    let setup = &case.setup;
    Ok(Row {
        scenario,
        case: case.name.clone(),
        series: case.series.clone(),
        flows: setup.scene.flows,
        networks: setup.seeds.end - setup.seeds.start,
        seconds: setup.scene.seconds,
        checks: case.musts.iter().map(|must| must.check(&outcome)).collect(),
        outcome,
    })
}
