//! The network of one variant: how packets get from a to b.

use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::wireguard::Wireguard;
use crate::executable::Executable;
use crate::network::{Conditions, Network, NetworkKind};
use crate::scenario::{Scenario, ScenarioCase};
use crate::site::RunningNetwork;
use crate::{gateways, pings, programs, shifts};

/// Limit of a network's start-up time.
const PATIENCE: Duration = Duration::from_secs(30);

/// Variants of forwarding from one end to the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForwardingVariant {
    /// Forwarded by kernels only.
    Bridged,
    /// Through Shoal, with fixed addresses.
    Fixed,
    /// Through Shoal, with a shift every ten seconds.
    Shift10,
    /// Through Shoal, with a shift every second.
    Shift1,
    /// Through wireguard-go.
    Wireguard,
}

impl ForwardingVariant {
    /// Name in reports.
    pub fn name(self) -> &'static str {
        match self {
            ForwardingVariant::Bridged => "bridged",
            ForwardingVariant::Fixed => "fixed",
            ForwardingVariant::Shift10 => "shift 10 s",
            ForwardingVariant::Shift1 => "shift 1 s",
            ForwardingVariant::Wireguard => "wireguard-go",
        }
    }

    /// Short name for paths.
    pub fn folder(self) -> &'static str {
        match self {
            ForwardingVariant::Bridged => "b",
            ForwardingVariant::Fixed => "f",
            ForwardingVariant::Shift10 => "s10",
            ForwardingVariant::Shift1 => "s1",
            ForwardingVariant::Wireguard => "wg",
        }
    }

    /// Interval of address shifts; `None` without shifts.
    pub fn shift(self) -> Option<Duration> {
        match self {
            ForwardingVariant::Shift10 => Some(Duration::from_secs(10)),
            ForwardingVariant::Shift1 => Some(Duration::from_secs(1)),
            ForwardingVariant::Bridged
            | ForwardingVariant::Fixed
            | ForwardingVariant::Wireguard => None,
        }
    }
}

/// Programs on the machines.
enum VariantProcesses {
    Bare(Network),
    Nodes(Box<RunningNetwork>),
    /// Dropped in this order.
    Wireguard(Wireguard, Network),
}

/// A network that is up.
pub struct VariantNetwork {
    pub way: ForwardingVariant,
    /// Conditions of each link.
    pub conditions: Vec<Conditions>,
    /// Node of the programs that begin.
    pub from: usize,
    /// Node of the programs that answer.
    pub to: usize,
    /// Address of `to`.
    pub far: IpAddr,
    base: VariantProcesses,
}

/// The machines without a node, and their gateways.
struct GatewayPair {
    machines: [usize; 2],
    gateways: [usize; 2],
}

impl GatewayPair {
    fn of(network: &Network) -> Result<GatewayPair> {
        let topology = network.topology();
        let [from, to] = ["a", "b"].map(|name| topology.find(name));
        let machines = [from.context("no machine a")?, to.context("no machine b")?];
        let behind = gateways::behind(topology);
        let gateway = |machine| {
            let found = behind.iter().find(|(known, _)| *known == machine);
            found.map(|found| found.1).context("a and b need a gateway each")
        };
        Ok(GatewayPair { machines, gateways: [gateway(machines[0])?, gateway(machines[1])?] })
    }
}

impl VariantNetwork {
    /// Makes the network of a scenario for one variant, and waits until it is up.
    ///
    /// # Errors
    /// The network does not come up, or a program is missing.
    pub fn make(
        scenario: &Scenario,
        way: ForwardingVariant,
        executable: &Executable,
        folder: &Path,
    ) -> Result<VariantNetwork> {
        let topology = scenario.network();
        let mut conditions = scenario.conditions(&topology, &ScenarioCase::default());
        for (c, link) in conditions.iter_mut().zip(&topology.links) {
            let between = [link.a, link.b].iter().all(|node| !topology.nodes[*node].plain);
            c.shift = way.shift().filter(|_| between);
        }
        let ground = NetworkKind::Namespaces.over(scenario.family);
        let network = Network::build_each(topology, ground, &conditions)?;
        let GatewayPair { machines: [from, to], gateways } = GatewayPair::of(&network)?;
        let far = network.ip_of(gateways[1], to)?;
        let base = match way {
            ForwardingVariant::Bridged => {
                forward(&network, &gateways, [from, to])?;
                VariantProcesses::Bare(network)
            }
            ForwardingVariant::Wireguard => {
                let wireguard = Wireguard::start(&network, gateways, [from, to], folder)?;
                VariantProcesses::Wireguard(wireguard, network)
            }
            ForwardingVariant::Fixed | ForwardingVariant::Shift10 | ForwardingVariant::Shift1 => {
                let extra = format!("{}\n[interface]\n", scenario.node_config);
                let prepare = |network: &Network, folder: &Path| {
                    gateways::prepare(network, folder)?;
                    shifts::prepare(network, &conditions, folder)
                };
                let mut site =
                    RunningNetwork::start_after(network, executable, folder, &extra, prepare)?;
                site.wait_until_up(PATIENCE)?;
                shifts::wait(&mut site, &conditions)?;
                VariantProcesses::Nodes(Box::new(site))
            }
        };
        let place = VariantNetwork { way, conditions, from, to, far, base };
        place.wait()?;
        Ok(place)
    }

    /// Waits until packets get through.
    fn wait(&self) -> Result<()> {
        let until = std::time::Instant::now() + PATIENCE;
        let far = self.far.to_string();
        let words = ["-q", "-c", "1", "-W", "0.2", &far];
        while pings::mean_ms(&self.run("ping", &words)?).is_nan() {
            ensure!(std::time::Instant::now() < until, "machine b does not answer");
            crate::interrupt::check()?;
        }
        Ok(())
    }

    pub fn network(&self) -> &Network {
        match &self.base {
            VariantProcesses::Bare(network) | VariantProcesses::Wireguard(_, network) => network,
            VariantProcesses::Nodes(site) => site.network(),
        }
    }

    /// The nodes, if Shoal runs in this variant.
    pub fn site(&self) -> Option<&RunningNetwork> {
        match &self.base {
            VariantProcesses::Nodes(site) => Some(site),
            VariantProcesses::Bare(_) | VariantProcesses::Wireguard(..) => None,
        }
    }

    /// Like [`VariantNetwork::site`], to stop and start nodes.
    pub fn site_mut(&mut self) -> Option<&mut RunningNetwork> {
        match &mut self.base {
            VariantProcesses::Nodes(site) => Some(site),
            VariantProcesses::Bare(_) | VariantProcesses::Wireguard(..) => None,
        }
    }

    /// Processor seconds of the first gateway's process, the part of them spent in the kernel, and
    /// its resident memory in bytes. `None` without a process.
    pub fn usage(&self) -> Option<(f64, f64, u64)> {
        let process = match &self.base {
            VariantProcesses::Bare(_) => None,
            VariantProcesses::Wireguard(wireguard, _) => Some(wireguard.first()),
            VariantProcesses::Nodes(site) => site.process(site.network().topology().find("r1")?),
        }?;
        Some((process.cpu_s(), process.kernel_s(), process.usage().resident_bytes))
    }

    /// Runs a program at `from`; returns its output.
    pub fn run(&self, program: &str, words: &[&str]) -> Result<String> {
        programs::run_at(self.network(), self.from, program, words)
    }
}

/// Makes kernels forward packets along the whole path between the machines behind two gateways.
fn forward(network: &Network, gateways: &[usize; 2], machines: [usize; 2]) -> Result<()> {
    let topology = network.topology();
    for end in [0, 1] {
        network.default_route(machines[end], gateways[end])?;
        network.forward_ip(gateways[end])?;
        let behind = topology.link_between(machines[end], gateways[end]).context("no link")?;
        let prefix = (network.family().prefix(behind), network.family().prefix_len());
        let path = topology.path(gateways[1 - end], gateways[end], |_| true).context("no way")?;
        for (link, next) in path {
            network.forward_ip(next)?;
            network.route_to(link, next, prefix)?;
        }
    }
    Ok(())
}
