//! The attacker's experiments, on all cores.
//!
//! Inputs: scenarios of `shoal-attack` and a size. Output: a [`AttackReport`] with one row per
//! case. The experiments run in virtual time: they need neither network nor root, and equal sizes
//! give equal figures. [`capture`] attacks recorded links instead. [`recognise`] tests which
//! program recorded links carry.

pub mod capture;
pub(crate) mod live;
pub mod recognise;

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde::Serialize;
use shoal_attack::scenarios::{AttackCase, AttackScenario, ConditionResult, Size};
use shoal_attack::{AttackResult, SceneError, experiment};

/// Results of the attacks.
#[derive(Clone, Debug, Serialize)]
pub struct AttackReport {
    /// Number of flows and seeds.
    pub size: Size,
    /// All cases, in the order of the scenarios.
    pub rows: Vec<AttackRow>,
}

/// Result of one case.
#[derive(Clone, Debug, Serialize)]
pub struct AttackRow {
    pub scenario: AttackScenario,
    /// Name of the case.
    pub case: String,
    /// Curve that the case is a point of.
    pub series: Option<String>,
    /// Pairs of hosts in each network.
    pub flows: usize,
    /// Number of networks.
    pub networks: u64,
    /// Time that the attacker observes, in seconds.
    pub seconds: u32,
    pub outcome: AttackResult,
    /// Conditions on the outcome.
    pub checks: Vec<ConditionResult>,
}

impl AttackReport {
    pub fn of(&self, scenario: AttackScenario) -> impl Iterator<Item = &AttackRow> {
        self.rows.iter().filter(move |row| row.scenario == scenario)
    }

    /// All conditions, each with its row.
    pub fn checks(&self) -> impl Iterator<Item = (&AttackRow, &ConditionResult)> {
        self.rows.iter().flat_map(|row| row.checks.iter().map(move |check| (row, check)))
    }
}

/// Runs all cases of these scenarios. `progress` gets the number of the case that begins, the
/// number of all cases, and its name; worker threads call it.
///
/// # Errors
/// A case is out of bounds.
pub fn run(
    scenarios: &[AttackScenario],
    size: Size,
    progress: &(dyn Fn(usize, usize, &str) + Sync),
) -> Result<AttackReport, SceneError> {
    let of =
        |s: &AttackScenario| s.cases(size).into_iter().map(|case| (*s, case)).collect::<Vec<_>>();
    let cases: Vec<(AttackScenario, AttackCase)> = scenarios.iter().flat_map(of).collect();
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
    Ok(AttackReport { size, rows: rows.into_iter().flatten().collect::<Result<_, _>>()? })
}

fn row(scenario: AttackScenario, case: &AttackCase) -> Result<AttackRow, SceneError> {
    let outcome = experiment(&case.setup)?;
    let setup = &case.setup;
    Ok(AttackRow {
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
