//! Circuits and cover in networks of the lab: configuration of nodes, and queries to hosts.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use shoal_daemon::control::api;

use crate::network::Network;
use crate::scenario::{self, Scenario, ScenarioCase};
use crate::site::{RunningNetwork, insert};
use crate::topology::Topology;

/// Limit of the time until a circuit and a standby are ready.
const PATIENCE: Duration = Duration::from_secs(30);

/// Configures circuits and cover if `case` asks for them. The list then names relays, a mix and a
/// tier, and hosts require circuits. Nodes must not have been started yet.
///
/// # Errors
/// A file is missing.
pub fn prepare(
    scenario: &Scenario,
    case: &ScenarioCase,
    network: &Network,
    folder: &Path,
) -> Result<()> {
    set_kernels(case, network)?;
    if let Some(cover) = case.cover {
        let file = folder.join("hosts.toml");
        for host in hosts(network.topology()) {
            insert(&file, &format!("name = \"{host}\"\n"), "cover = \"lab\"\n")?;
        }
        let text = std::fs::read_to_string(&file).with_context(|| file.display().to_string())?;
        std::fs::write(&file, format!("{text}\n{cover}"))?;
    }
    if case.circuits == scenario::CircuitUse::Off {
        return Ok(());
    }
    let topology = network.topology();
    for relay in relays(scenario, topology) {
        let family = format!("relay = true\nfamily = \"{relay}\"\n");
        insert(&folder.join("hosts.toml"), &format!("name = \"{relay}\"\n"), &family)?;
    }
    for host in hosts(topology) {
        let file = folder.join(host).join("node.toml");
        let text = std::fs::read_to_string(&file).with_context(|| file.display().to_string())?;
        let relays = case.circuit_relays.map(|relays| format!("relays = {relays}\n"));
        let circuits =
            format!("\n[circuits]\npolicy = \"require\"\n{}", relays.unwrap_or_default());
        std::fs::write(&file, text + &circuits)?;
    }
    if let Some(mix) = &case.mix {
        let file = folder.join("hosts.toml");
        let text = std::fs::read_to_string(&file).with_context(|| file.display().to_string())?;
        std::fs::write(&file, format!("{text}\n{mix}"))?;
    }
    Ok(())
}

fn hosts(topology: &Topology) -> impl Iterator<Item = &str> {
    let all = topology.nodes.iter().filter(|node| !node.plain && !node.address.is_router());
    all.map(|node| node.name.as_str())
}

/// Sets the kernel parameters of a case on its hosts.
fn set_kernels(case: &ScenarioCase, network: &Network) -> Result<()> {
    let topology = network.topology();
    let hosts = (0..topology.nodes.len()).filter(|&node| !topology.nodes[node].address.is_router());
    for space in hosts.filter_map(|host| network.namespace(host)) {
        space.enter(|| {
            for (key, value) in &case.kernel {
                let file = Path::new("/proc/sys/net/ipv4").join(key);
                std::fs::write(&file, value)
                    .with_context(|| format!("{} of the case {:?}", file.display(), case.name))?;
            }
            Ok(())
        })?;
    }
    Ok(())
}

/// Arguments of `shoal-lab node` for settings that no configuration has.
pub fn arguments(case: &ScenarioCase) -> Vec<String> {
    let life = case.circuit_life_s.map(|life| format!("--circuit-life-ms={}", life * 1e3));
    let any_order = (!case.keep_order).then(|| "--any-order".to_owned());
    life.into_iter().chain(any_order).collect()
}

/// Names of the routers that carry circuits.
fn relays(scenario: &Scenario, topology: &Topology) -> Vec<String> {
    match scenario.relays.as_slice() {
        [] => topology.routers().map(|node| topology.nodes[node].name.clone()).collect(),
        named => named.to_vec(),
    }
}

/// The circuits from one host to another, the circuit in use first.
///
/// # Errors
/// The node does not answer.
pub fn of(site: &RunningNetwork, from: usize, to: usize) -> Result<Vec<api::CircuitStatus>> {
    let api::ControlReply::Circuits(all) = site.ask(from, api::Command::Circuits)? else {
        anyhow::bail!("the node answered `circuits` with another reply");
    };
    let name = &site.network().topology().nodes[to].name;
    let found = all.hosts.into_iter().find(|host| host.host == *name);
    Ok(found.map(|host| host.circuits).unwrap_or_default())
}

/// Waits until a host has a circuit to another host, and a standby.
///
/// # Errors
/// The circuits are not ready in time.
pub fn wait(site: &mut RunningNetwork, from: usize, to: usize) -> Result<()> {
    site.wait("a circuit and a standby", PATIENCE, |site| {
        let circuits = of(site, from, to)?;
        let has = |state: &str| circuits.iter().any(|circuit| circuit.state == state);
        Ok((has("in use") && has("standby")).then_some(()))
    })
}

/// The second relay of the circuit in use from one host to another.
///
/// # Errors
/// No circuit is in use, or the circuit has only one relay.
pub fn second_relay(site: &RunningNetwork, from: usize, to: usize) -> Result<String> {
    let circuits = of(site, from, to)?;
    let used = circuits.into_iter().find(|circuit| circuit.state == "in use");
    let relays = used.context("no circuit is in use")?.relays;
    ensure!(relays.len() > 1, "the circuit has no second relay");
    Ok(relays[1].clone())
}

/// Counts replacements of the circuit in use from one host to another.
#[derive(Debug, Default)]
pub struct Rotations {
    /// Age and relays of the circuit in use at the last look.
    last: Option<(f64, Vec<String>)>,
    /// Number of replacements.
    pub count: u64,
}

impl Rotations {
    /// Examines the current circuits. A replacement is younger than its predecessor, or has other
    /// relays.
    pub fn see(&mut self, circuits: &[api::CircuitStatus]) {
        let used = circuits.iter().find(|circuit| circuit.state == "in use");
        let Some(api::CircuitStatus { age_s, relays, .. }) = used else { return };
        let is_another = |(age, before): &(f64, Vec<String>)| age_s < age || before != relays;
        self.count += u64::from(self.last.as_ref().is_some_and(is_another));
        self.last = Some((*age_s, relays.clone()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_circuit_that_is_younger_or_of_other_relays_is_another() {
        let circuit = |state: &str, age_s, relay: &str| {
            let (state, relays) = (state.to_owned(), vec![relay.to_owned()]);
            api::CircuitStatus { state, relays, age_s, ..api::CircuitStatus::default() }
        };
        let mut rotations = Rotations::default();
        rotations.see(&[]);
        rotations.see(&[circuit("building", 0.1, "a")]);
        let seen = [(1.0, "a", 0), (1.5, "a", 0), (1.4, "a", 1), (1.5, "a", 1), (1.6, "b", 2)];
        for (age_s, relay, count) in seen {
            rotations.see(&[circuit("in use", age_s, relay), circuit("standby", 0.2, "c")]);
            assert_eq!(rotations.count, count, "{age_s}");
        }
    }
}
