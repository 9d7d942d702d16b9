//! Comparison of shifting addresses with fixed addresses, with no Shoal, and with wireguard-go.
//! Includes a paper's tests, the cost of shifts, losses near shifts, and an observer that links
//! shifts.
//!
//! ```text
//! a - r1 - ... - rN - b      a and b know nothing of Shoal; r1 and rN are their gateways
//! ```
//!
//! Each variant has its own network. All networks are up at once, and are measured in turn.

mod cost;
mod losses;
mod observe;
mod paper;
mod place;
mod programs;
mod wireguard;

use std::path::Path;

use anyhow::{Context, Result, ensure};

use crate::executable::Executable;
use crate::figures;
use crate::network::{IpFamily, NetworkKind};
use crate::record::{CaseRecord, Figure, RunRecord, ScenarioReport};
use crate::run::RunOptions;
use crate::scenario::{Scenario, ShiftTestKind, ShiftTests};
use crate::workspace::Workspace;
use place::{ForwardingVariant, VariantNetwork};

/// Names of a scenario's cases, in the order of their runs.
pub fn case_names(scenario: &Scenario) -> Vec<String> {
    let Some(moving) = &scenario.moving else { return Vec::new() };
    ways(moving.tests).iter().map(|way| way.name().to_owned()).collect()
}

/// Variants that a test compares.
fn ways(tests: ShiftTestKind) -> &'static [ForwardingVariant] {
    match tests {
        ShiftTestKind::Paper => &[
            ForwardingVariant::Bridged,
            ForwardingVariant::Fixed,
            ForwardingVariant::Shift10,
            ForwardingVariant::Shift1,
            ForwardingVariant::Wireguard,
        ],
        ShiftTestKind::Cost => {
            &[ForwardingVariant::Fixed, ForwardingVariant::Shift10, ForwardingVariant::Shift1]
        }
        ShiftTestKind::Segment => &[ForwardingVariant::Shift10, ForwardingVariant::Shift1],
        ShiftTestKind::Losses | ShiftTestKind::Observer => &[ForwardingVariant::Shift1],
    }
}

/// Settings of the measurement.
struct ShiftBench<'a> {
    scenario: &'a Scenario,
    moving: &'a ShiftTests,
    options: &'a RunOptions,
    executable: Executable,
}

impl ShiftBench<'_> {
    /// Number of runs of each case.
    fn repeat(&self) -> u32 {
        self.options.repeat.unwrap_or(self.scenario.repeat)
    }

    /// Makes the networks of all selected variants, in an order that starts at number `first` of
    /// [`ways`]. The result has the order of [`ways`]. If wireguard-go is missing, its variant is
    /// left out, and the report says so.
    fn places(
        &self,
        folder: &Path,
        first: usize,
        report: &mut ScenarioReport,
    ) -> Result<Vec<VariantNetwork>> {
        let mut places = Vec::new();
        let order = ways(self.moving.tests);
        for &way in order.iter().cycle().skip(first).take(order.len()) {
            if !self.options.wants(self.scenario, way.name()) {
                continue;
            }
            let folder = folder.join(way.folder());
            std::fs::create_dir(&folder)?;
            match VariantNetwork::make(self.scenario, way, &self.executable, &folder) {
                Ok(place) => places.push(place),
                Err(e) if way == ForwardingVariant::Wireguard => {
                    let text = format!("{}: left out: {e:#}", way.name());
                    self.options.say(&text);
                    report.about += &format!("\n{text}");
                }
                Err(e) => return Err(e.context(format!("the case {:?}", way.name()))),
            }
        }
        places.sort_by_key(|place| order.iter().position(|way| *way == place.way));
        Ok(places)
    }
}

/// Runs the tests of a scenario.
///
/// # Errors
/// Namespaces or a program are missing, or nothing gets through.
pub fn run(scenario: &Scenario, options: &RunOptions, report: &mut ScenarioReport) -> Result<()> {
    ensure!(
        NetworkKind::available() == NetworkKind::Namespaces,
        "address shifts need namespaces; run as root"
    );
    ensure!(scenario.family == IpFamily::Ipv6, "address shifts need family = \"ipv6\"");
    let moving = scenario.moving.as_ref().context("the scenario has no section [moving]")?;
    let topology = scenario.network();
    let conditions = scenario.conditions(&topology, &crate::scenario::ScenarioCase::default());
    report.drawing = crate::run::drawing(&topology, &conditions);
    let workspace = Workspace::new(0)?;
    let executable = Executable::given_or_own(&options.executable)?;
    let bench = ShiftBench { scenario, moving, options, executable };
    match moving.tests {
        ShiftTestKind::Paper => paper::run(&bench, workspace.path(), report),
        ShiftTestKind::Cost => cost::run(&bench, workspace.path(), report),
        ShiftTestKind::Losses | ShiftTestKind::Segment => {
            losses::run(&bench, workspace.path(), report)
        }
        ShiftTestKind::Observer => observe::run(&bench, workspace.path(), report),
    }
}

/// A case of the report, with the medians of its runs.
fn case(way: ForwardingVariant, runs: Vec<RunRecord>) -> CaseRecord {
    let each: Vec<&[Figure]> = runs.iter().map(|run| run.figures.as_slice()).collect();
    CaseRecord {
        name: way.name().into(),
        figures: figures::medians(&each),
        runs,
        ..CaseRecord::default()
    }
}

/// A figure of a case, if measured.
fn value(cases: &[CaseRecord], way: ForwardingVariant, name: &str, of: &str) -> Option<f64> {
    let case = cases.iter().find(|case| case.name == way.name())?;
    let figure = case.figures.iter().find(|figure| figure.name == name && figure.of == of)?;
    Some(figure.value).filter(|value| value.is_finite())
}
