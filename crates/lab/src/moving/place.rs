//! A network for one way of getting from a to b.

use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::wireguard::Wireguard;
use crate::executable::Executable;
use crate::network::{Conditions, Kind, Network};
use crate::scenario::{Case, Scenario};
use crate::site::Site;
use crate::{gateways, hops, pings, programs};

/// How long a network may take to come up.
const PATIENCE: Duration = Duration::from_secs(30);

/// How packets get from one end to the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Kernels forward them, and nothing else.
    Bridged,
    /// By Shoal, between addresses that stay.
    Fixed,
    /// By Shoal, between addresses that change each ten seconds.
    Hop10,
    /// ... each second.
    Hop1,
    /// By wireguard-go.
    Wireguard,
}

impl Way {
    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Way::Bridged => "bridged",
            Way::Fixed => "fixed",
            Way::Hop10 => "hop 10 s",
            Way::Hop1 => "hop 1 s",
            Way::Wireguard => "wireguard-go",
        }
    }

    /// A short one for paths.
    pub fn folder(self) -> &'static str {
        match self {
            Way::Bridged => "b",
            Way::Fixed => "f",
            Way::Hop10 => "h10",
            Way::Hop1 => "h1",
            Way::Wireguard => "wg",
        }
    }

    /// How often addresses change, if they do.
    pub fn hop(self) -> Option<Duration> {
        match self {
            Way::Hop10 => Some(Duration::from_secs(10)),
            Way::Hop1 => Some(Duration::from_secs(1)),
            Way::Bridged | Way::Fixed | Way::Wireguard => None,
        }
    }
}

/// What runs on the machines.
enum Base {
    Bare(Network),
    Nodes(Box<Site>),
    /// Dropped in this order.
    Wireguard(Wireguard, Network),
}

/// A network that is up.
pub struct Place {
    /// How packets pass it.
    pub way: Way,
    /// Conditions of its links.
    pub conditions: Vec<Conditions>,
    /// Where programs run that ask.
    pub from: usize,
    /// Where those run that answer, ...
    pub to: usize,
    /// ... at this address.
    pub far: IpAddr,
    base: Base,
}

/// The machines without a node, and their gateways.
struct Ends {
    machines: [usize; 2],
    gateways: [usize; 2],
}

impl Ends {
    fn of(network: &Network) -> Result<Ends> {
        let topology = network.topology();
        let [from, to] = ["a", "b"].map(|name| topology.find(name));
        let machines = [from.context("no machine a")?, to.context("no machine b")?];
        let behind = gateways::behind(topology);
        let gateway = |machine| {
            let found = behind.iter().find(|(known, _)| *known == machine);
            found.map(|found| found.1).context("a and b need a gateway each")
        };
        Ok(Ends { machines, gateways: [gateway(machines[0])?, gateway(machines[1])?] })
    }
}

impl Place {
    /// Makes the network of a scenario for one way, and waits until it is up.
    ///
    /// # Errors
    /// When it does not come up, or a program is missing.
    pub fn make(
        scenario: &Scenario,
        way: Way,
        executable: &Executable,
        folder: &Path,
    ) -> Result<Place> {
        let topology = scenario.network();
        let mut conditions = scenario.conditions(&topology, &Case::default());
        for (c, link) in conditions.iter_mut().zip(&topology.links) {
            let between = [link.a, link.b].iter().all(|node| !topology.nodes[*node].plain);
            c.hop = way.hop().filter(|_| between);
        }
        let ground = Kind::Namespaces.over(scenario.family);
        let network = Network::build_each(topology, ground, &conditions)?;
        let Ends { machines: [from, to], gateways } = Ends::of(&network)?;
        let far = network.ip_of(gateways[1], to)?;
        let base = match way {
            Way::Bridged => {
                forward(&network, &gateways, [from, to])?;
                Base::Bare(network)
            }
            Way::Wireguard => {
                let wireguard = Wireguard::start(&network, gateways, [from, to], folder)?;
                Base::Wireguard(wireguard, network)
            }
            Way::Fixed | Way::Hop10 | Way::Hop1 => {
                let extra = format!("{}\n[interface]\n", scenario.node_config);
                let prepare = |network: &Network, folder: &Path| {
                    gateways::prepare(network, folder)?;
                    hops::prepare(network, &conditions, folder)
                };
                let mut site = Site::start_after(network, executable, folder, &extra, prepare)?;
                site.wait_until_up(PATIENCE)?;
                hops::wait(&mut site, &conditions)?;
                Base::Nodes(Box::new(site))
            }
        };
        let place = Place { way, conditions, from, to, far, base };
        place.wait()?;
        Ok(place)
    }

    /// Waits until packets get through.
    fn wait(&self) -> Result<()> {
        let until = std::time::Instant::now() + PATIENCE;
        let far = self.far.to_string();
        let words = ["-q", "-c", "1", "-W", "0.2", &far];
        while pings::mean_ms(&self.run("ping", &words)?).is_nan() {
            ensure!(std::time::Instant::now() < until, "no answer from b");
            crate::interrupt::check()?;
        }
        Ok(())
    }

    /// Its network.
    pub fn network(&self) -> &Network {
        match &self.base {
            Base::Bare(network) | Base::Wireguard(_, network) => network,
            Base::Nodes(site) => site.network(),
        }
    }

    /// Its nodes, if Shoal runs there.
    pub fn site(&self) -> Option<&Site> {
        match &self.base {
            Base::Nodes(site) => Some(site),
            Base::Bare(_) | Base::Wireguard(..) => None,
        }
    }

    /// As [`Place::site`], to stop and start them.
    pub fn site_mut(&mut self) -> Option<&mut Site> {
        match &mut self.base {
            Base::Nodes(site) => Some(site),
            Base::Bare(_) | Base::Wireguard(..) => None,
        }
    }

    /// Processor time of the first gateway's process, and how much of it was spent in the kernel,
    /// in seconds; and its resident memory in bytes. None without a process.
    pub fn usage(&self) -> Option<(f64, f64, u64)> {
        let process = match &self.base {
            Base::Bare(_) => None,
            Base::Wireguard(wireguard, _) => Some(wireguard.first()),
            Base::Nodes(site) => site.process(site.network().topology().find("r1")?),
        }?;
        Some((process.cpu_s(), process.kernel_s(), process.usage().resident_bytes))
    }

    /// Runs a program at the asking end; returns its output.
    pub fn run(&self, program: &str, words: &[&str]) -> Result<String> {
        programs::run_at(self.network(), self.from, program, words)
    }
}

/// Has kernels forward packets between the machines behind two gateways, all along the way.
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
