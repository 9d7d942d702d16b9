//! The cost of each level of protection on a direct link.

use std::path::Path;

use anyhow::{Result, ensure};

use super::{PATIENCE, ProgramBench, SECONDS, Workload};
use crate::executable::Executable;
use crate::figures::{self, number};
use crate::network::{Conditions, Network, NetworkKind};
use crate::record::{CaseRecord, Figure, ScenarioReport};
use crate::run::RunOptions;
use crate::scenario::Scenario;
use crate::site::RunningNetwork;

/// Measures one TCP stream at each level, in turn, so that a slowdown of the machine affects all
/// levels alike. Each level has its own network; the other networks are idle.
///
/// # Errors
/// A link has the wrong level, or nothing gets through.
pub fn run(
    scenario: &Scenario,
    options: &RunOptions,
    report: &mut ScenarioReport,
    (executable, folder, conditions): (&Executable, &Path, &[Conditions]),
) -> Result<()> {
    let mut benches = Vec::new();
    for level in scenario.levels.iter().filter(|level| options.wants(scenario, level)) {
        let ground = NetworkKind::Namespaces.over(scenario.family);
        let network = Network::build_each(scenario.network(), ground, conditions)?;
        let direct = format!("[direct]\nmode = \"proactive\"\nlevel = \"{level}\"\n");
        let extra = format!("{}\n[interface]\n{direct}", scenario.node_config);
        let folder = folder.join(level);
        std::fs::create_dir(&folder)?;
        let mut bench = ProgramBench::start(network, executable, &folder, &extra)?;
        let found = wait_for_direct(&mut bench.site, bench.from, "h2")?;
        ensure!(found.as_ref() == Some(level), "the link has level {found:?}; expected {level:?}");
        benches.push((bench, CaseRecord { name: level.clone(), ..CaseRecord::default() }));
    }
    let seconds = scenario.duration_s.unwrap_or(SECONDS);
    for turn in 1..=options.repeat.unwrap_or(scenario.repeat) {
        for (bench, case) in &mut benches {
            options.say(&format!("{}: {} ({turn})", report.name, case.name));
            let run = bench.measure(Workload::Tcp(1), seconds, scenario.udp_mbit)?;
            for figure in run.figures.iter().filter(|f| f.name == "tcp_mbit") {
                options.say(&format!("  {} {}", figure.name, number(figure.value)));
            }
            case.runs.push(run);
        }
    }
    report.cases.extend(benches.into_iter().map(|(_, mut case)| {
        let runs: Vec<&[Figure]> = case.runs.iter().map(|r| r.figures.as_slice()).collect();
        case.figures = figures::medians(&runs);
        case
    }));
    Ok(())
}

/// Waits for a direct link between two hosts, if `node` uses direct links and the two have a wire.
/// Returns the level of the link.
pub fn wait_for_direct(
    site: &mut RunningNetwork,
    node: usize,
    other: &str,
) -> Result<Option<String>> {
    let status = site.status(node)?;
    if status.direct.is_none() || site.network().topology().direct_link_of(node).is_none() {
        return Ok(None);
    }
    let level = site.wait("a direct link", PATIENCE, |site| {
        let peers = site.peers(node)?;
        let up = peers.into_iter().find(|peer| peer.name == other && peer.state == "up");
        Ok(up.and_then(|peer| peer.direct).map(|direct| direct.level))
    })?;
    Ok(Some(level))
}
