//! Addresses that hop, beside fixed ones, no Shoal at all, and wireguard-go: the tests of a paper,
//! what hops cost, what is lost near them, and who links them again.
//!
//! ```text
//! a - r1 - ... - rN - b      a and b know nothing of Shoal; r1 and rN are their gateways
//! ```
//!
//! Each way has a network of its own; all are up at once, and are measured in turn.

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
use crate::network::{Family, Kind};
use crate::record::{Case, Figure, Report, Run};
use crate::run::Options;
use crate::scenario::{Moving, Scenario, Tests};
use crate::workspace::Workspace;
use place::{Place, Way};

/// Names of a scenario's cases, in the order in which they run.
pub fn case_names(scenario: &Scenario) -> Vec<String> {
    let Some(moving) = &scenario.moving else { return Vec::new() };
    ways(moving.tests).iter().map(|way| way.name().to_owned()).collect()
}

/// Which ways are compared.
fn ways(tests: Tests) -> &'static [Way] {
    match tests {
        Tests::Paper => &[Way::Bridged, Way::Fixed, Way::Hop10, Way::Hop1, Way::Wireguard],
        Tests::Cost => &[Way::Fixed, Way::Hop10, Way::Hop1],
        Tests::Segment => &[Way::Hop10, Way::Hop1],
        Tests::Losses | Tests::Observer => &[Way::Hop1],
    }
}

/// What is measured, and with which means.
struct Bench<'a> {
    scenario: &'a Scenario,
    moving: &'a Moving,
    options: &'a Options,
    executable: Executable,
}

impl Bench<'_> {
    /// How often each case is run.
    fn repeat(&self) -> u32 {
        self.options.repeat.unwrap_or(self.scenario.repeat)
    }

    /// Makes the networks of all ways that are asked for, and begins with the one at place `first`
    /// of [`ways`], whose order they come back in. Without wireguard-go there is none of it, and
    /// the report says so.
    fn places(&self, folder: &Path, first: usize, report: &mut Report) -> Result<Vec<Place>> {
        let mut places = Vec::new();
        let order = ways(self.moving.tests);
        for &way in order.iter().cycle().skip(first).take(order.len()) {
            if !self.options.wants(self.scenario, way.name()) {
                continue;
            }
            let folder = folder.join(way.folder());
            std::fs::create_dir(&folder)?;
            match Place::make(self.scenario, way, &self.executable, &folder) {
                Ok(place) => places.push(place),
                Err(e) if way == Way::Wireguard => {
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
/// Without namespaces or a program, or when nothing gets through.
pub fn run(scenario: &Scenario, options: &Options, report: &mut Report) -> Result<()> {
    ensure!(Kind::available() == Kind::Namespaces, "addresses that hop need root");
    ensure!(scenario.family == Family::Ipv6, "addresses that hop need family = \"ipv6\"");
    let moving = scenario.moving.as_ref().context("there is no section [moving]")?;
    let topology = scenario.network();
    let conditions = scenario.conditions(&topology, &crate::scenario::Case::default());
    report.drawing = crate::run::drawing(&topology, &conditions);
    let workspace = Workspace::new(0)?;
    let executable = Executable::given_or_own(&options.executable)?;
    let bench = Bench { scenario, moving, options, executable };
    match moving.tests {
        Tests::Paper => paper::run(&bench, workspace.path(), report),
        Tests::Cost => cost::run(&bench, workspace.path(), report),
        Tests::Losses | Tests::Segment => losses::run(&bench, workspace.path(), report),
        Tests::Observer => observe::run(&bench, workspace.path(), report),
    }
}

/// A case of the report, with the medians of its runs.
fn case(way: Way, runs: Vec<Run>) -> Case {
    let each: Vec<&[Figure]> = runs.iter().map(|run| run.figures.as_slice()).collect();
    Case { name: way.name().into(), figures: figures::medians(&each), runs, ..Case::default() }
}

/// A figure of a case, if it was measured.
fn value(cases: &[Case], way: Way, name: &str, of: &str) -> Option<f64> {
    let case = cases.iter().find(|case| case.name == way.name())?;
    let figure = case.figures.iter().find(|figure| figure.name == name && figure.of == of)?;
    Some(figure.value).filter(|value| value.is_finite())
}
