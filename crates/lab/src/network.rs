//! Builds a topology: namespaces or addresses for nodes, and the links between them.

mod family;
mod middle;
mod namespaces;
mod routes;
mod tap;
mod tunnel;

use std::fs::File;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};

use crate::emulator::EmulatorCounters;
use crate::forward::{self, Forwarder, ForwarderConfig};
use crate::namespace::Namespace;
use crate::needs::Requirement;
use crate::shaping::{DroppedPackets, Rate};
use crate::topology::{LinkSpec, Topology};
use crate::veth;
pub use family::IpFamily;
use family::{Block, COUNT_MAX};
pub use middle::LinkMiddle;
use namespaces::Namespaces;
pub use tap::LinkCounter;

/// Conditions of a link, in each direction.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Conditions {
    /// Rate; `None` for no limit.
    pub rate: Option<Rate>,
    pub delay: Duration,
    /// Spread of the delay to both sides of `delay`, evenly distributed.
    pub jitter: Duration,
    pub loss: LinkLoss,
    /// Bound of the queue as time at its rate; `None` for 20 ms.
    pub queue: Option<Duration>,
    /// True for the lab's emulator even if the kernel could shape the link: the emulator measures
    /// its queue.
    pub emulate: bool,
    /// Machines between the ends.
    pub through: LinkMiddle,
    /// Interval of address shifts at both ends; `None` without shifts.
    pub shift: Option<Duration>,
}

/// Losses of a link.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkLoss {
    /// Share of packets lost, 0 to 1.
    pub share: f64,
    /// Mean number of consecutive losses; 1 makes losses independent.
    pub burst: f64,
}

impl Default for LinkLoss {
    fn default() -> LinkLoss {
        LinkLoss::each(0.0)
    }
}

impl LinkLoss {
    /// Independent losses of this share.
    pub fn each(share: f64) -> LinkLoss {
        LinkLoss { share, burst: 1.0 }
    }
}

/// Implementation of a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetworkKind {
    /// Network namespaces joined by veth links; needs root.
    Namespaces,
    /// Loopback addresses joined by forwarders; needs nothing.
    Loopback,
}

impl NetworkKind {
    /// Namespaces if this process may make them, else the loopback.
    pub fn available() -> NetworkKind {
        match Requirement::Namespaces.missing() {
            None => NetworkKind::Namespaces,
            Some(_) => NetworkKind::Loopback,
        }
    }

    pub fn over(self, family: IpFamily) -> NetworkBasis {
        NetworkBasis { kind: self, family }
    }
}

/// Implementation of a network's links, and the family of their addresses. A [`NetworkKind`] alone
/// means IPv4.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NetworkBasis {
    pub kind: NetworkKind,
    pub family: IpFamily,
}

impl From<NetworkKind> for NetworkBasis {
    fn from(kind: NetworkKind) -> NetworkBasis {
        kind.over(IpFamily::Ipv4)
    }
}

/// Counters of one direction of a link, since the start.
#[derive(Clone, Copy, Debug, Default)]
pub struct LinkTraffic {
    /// Bytes that reached the receiving end.
    pub bytes: u64,
    /// Packets that reached the receiving end, or were lost by the configured loss.
    pub packets: u64,
    /// Packets lost by the configured loss.
    pub lost: u64,
    /// Packets lost to a cut link.
    pub cut: u64,
}

/// A network that exists until it is dropped.
#[derive(Debug)]
pub struct Network {
    topology: Topology,
    family: IpFamily,
    rates: Vec<Option<Rate>>,
    links: LinkImplementation,
}

#[derive(Debug)]
enum LinkImplementation {
    Namespaces(Namespaces),
    Loopback { block: Block, forwarders: Vec<Forwarder> },
}

impl Network {
    /// Makes `topology` with all links under the same `conditions`.
    ///
    /// # Errors
    /// Rights or tools are missing. The message says which, and nothing is left behind.
    pub fn build(
        topology: Topology,
        ground: impl Into<NetworkBasis>,
        conditions: Conditions,
    ) -> Result<Network> {
        let each = vec![conditions; topology.links.len()];
        Network::build_each(topology, ground, &each)
    }

    /// Makes `topology` with one entry of `conditions` per link.
    ///
    /// # Errors
    /// See [`Network::build`]. Also fails if the conditions of a loopback network need
    /// namespaces.
    pub fn build_each(
        topology: Topology,
        ground: impl Into<NetworkBasis>,
        conditions: &[Conditions],
    ) -> Result<Network> {
        let NetworkBasis { kind, family } = ground.into();
        if topology.nodes.len().max(topology.links.len()) > COUNT_MAX {
            bail!("a network has at most {COUNT_MAX} nodes and links");
        }
        let links = match kind {
            NetworkKind::Namespaces => {
                LinkImplementation::Namespaces(Namespaces::build(&topology, family, conditions)?)
            }
            NetworkKind::Loopback => loopback(&topology, family, conditions)?,
        };
        let rates = conditions.iter().map(|c| c.rate).collect();
        Ok(Network { topology, family, rates, links })
    }

    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    pub fn kind(&self) -> NetworkKind {
        match self.links {
            LinkImplementation::Namespaces(_) => NetworkKind::Namespaces,
            LinkImplementation::Loopback { .. } => NetworkKind::Loopback,
        }
    }

    /// The family of the links' addresses.
    pub fn family(&self) -> IpFamily {
        self.family
    }

    pub fn rate(&self, link: usize) -> Option<Rate> {
        self.rates[link]
    }

    /// Description of the links' implementation, for reports.
    pub fn manner(&self) -> String {
        let links = match &self.links {
            LinkImplementation::Namespaces(all) => all.manner(),
            LinkImplementation::Loopback { .. } => "forwarders on the loopback".into(),
        };
        format!("{}: {links}", self.family)
    }

    /// The namespace for `node`'s processes; `None` without namespaces.
    pub fn namespace_fd(&self, node: usize) -> Option<RawFd> {
        self.namespace(node).map(Namespace::raw_fd)
    }

    /// The namespace of `node`; `None` without namespaces.
    pub fn namespace(&self, node: usize) -> Option<&Namespace> {
        match &self.links {
            LinkImplementation::Namespaces(all) => all.nodes.get(node),
            LinkImplementation::Loopback { .. } => None,
        }
    }

    /// Address at which `node` listens.
    pub fn listen(&self, node: usize) -> SocketAddr {
        match &self.links {
            LinkImplementation::Namespaces(_) => self.family.anywhere(),
            LinkImplementation::Loopback { block, .. } => block.node(node),
        }
    }

    /// Address of the node at the other end of `link`, as seen from `node`.
    pub fn endpoint(&self, link: usize, node: usize) -> SocketAddr {
        let end = self.end_of(link, node);
        match &self.links {
            LinkImplementation::Namespaces(_) => self.family.at(link, 1 - end),
            LinkImplementation::Loopback { block, .. } => block.facing(link, end),
        }
    }

    /// Makes the nodes' kernels forward IP packets between all links, for traffic outside Shoal.
    ///
    /// # Errors
    /// Namespaces are missing.
    pub fn route_ip(&self) -> Result<()> {
        match &self.links {
            LinkImplementation::Namespaces(all) => all.route_ip(&self.topology),
            LinkImplementation::Loopback { .. } => {
                bail!("traffic outside Shoal needs namespaces; run as root")
            }
        }
    }

    /// Gives the kernel of `node` a default route to its neighbour `via`, and turns off its source
    /// address filter.
    ///
    /// # Errors
    /// Namespaces are missing, or the two are not neighbours.
    pub fn default_route(&self, node: usize, via: usize) -> Result<()> {
        match &self.links {
            LinkImplementation::Namespaces(all) => all.default_route(&self.topology, node, via),
            LinkImplementation::Loopback { .. } => {
                bail!("traffic outside Shoal needs namespaces; run as root")
            }
        }
    }

    /// Makes the kernel of `node` forward packets.
    ///
    /// # Errors
    /// Namespaces are missing.
    pub fn forward_ip(&self, node: usize) -> Result<()> {
        match &self.links {
            LinkImplementation::Namespaces(all) => all.forward_ip(node),
            LinkImplementation::Loopback { .. } => {
                bail!("traffic outside Shoal needs namespaces; run as root")
            }
        }
    }

    /// Splits all packets from `node` to its neighbour `to` into wire packets, even on a link that
    /// accepts aggregates.
    ///
    /// # Errors
    /// Namespaces are missing.
    pub fn single_packets(&self, node: usize, to: usize) -> Result<()> {
        match &self.links {
            LinkImplementation::Namespaces(all) => all.single_packets(&self.topology, node, to),
            LinkImplementation::Loopback { .. } => {
                bail!("splitting packets needs namespaces; run as root")
            }
        }
    }

    /// The IP address of `to` on the path from `from`.
    pub fn ip_of(&self, from: usize, to: usize) -> Result<IpAddr> {
        let way = self.topology.path(from, to, |_| true).context("no path between the nodes")?;
        let (link, _) = *way.last().context("a path needs two different nodes")?;
        Ok(self.family.address(link, self.end_of(link, to)))
    }

    /// Routes `prefix` to the node `to`, an end of `link`, at the far end and all machines between
    /// the ends.
    ///
    /// # Errors
    /// Namespaces are missing.
    pub fn route_to(&self, link: usize, to: usize, prefix: (IpAddr, u8)) -> Result<()> {
        match &self.links {
            LinkImplementation::Namespaces(all) => all.route_to(&self.topology, link, to, prefix),
            LinkImplementation::Loopback { .. } => {
                bail!("routed prefixes need namespaces; run as root")
            }
        }
    }

    /// Routes `prefix` over one of `node`'s interfaces.
    ///
    /// # Errors
    /// Namespaces or the interface are missing.
    pub fn route_by(&self, node: usize, interface: &str, prefix: (IpAddr, u8)) -> Result<()> {
        let space = self.namespace(node).context("routes need namespaces; run as root")?;
        let route =
            routes::KernelRoute { to: Some(prefix), via: routes::KernelNextHop::On(interface) };
        routes::add(space, &[route])
    }

    /// Gives `node` an address in the prefix of its segment, on its end of `link`.
    ///
    /// # Errors
    /// Namespaces are missing.
    pub fn join_segment(&self, link: usize, node: usize, at: IpAddr, prefix_len: u8) -> Result<()> {
        let space = self.namespace(node).context("segments need namespaces; run as root")?;
        let l = self.topology.links[link];
        veth::address(space, &self.interface(node, l.a + l.b - node), at, prefix_len)
    }

    /// The namespace between the ends of `link` that is next to `node`, if one exists.
    pub fn beside(&self, link: usize, node: usize) -> Option<&Namespace> {
        match &self.links {
            LinkImplementation::Namespaces(all) => all.beside(link, self.end_of(link, node)),
            LinkImplementation::Loopback { .. } => None,
        }
    }

    /// Name of that machine's interface towards `node`.
    pub fn beside_interface(&self, link: usize, node: usize) -> String {
        middle::towards(self.end_of(link, node))
    }

    /// Cuts `link` in both directions. Neither end is notified.
    pub fn cut(&self, link: usize) -> Result<()> {
        match &self.links {
            LinkImplementation::Namespaces(all) => {
                all.change(&self.topology, link, |s| s.cut = true)
            }
            LinkImplementation::Loopback { forwarders, .. } => {
                forwarders[link].set_cut(true);
                Ok(())
            }
        }
    }

    /// Mends `link`.
    pub fn restore(&self, link: usize) -> Result<()> {
        match &self.links {
            LinkImplementation::Namespaces(all) => {
                all.change(&self.topology, link, |s| s.cut = false)
            }
            LinkImplementation::Loopback { forwarders, .. } => {
                forwarders[link].set_cut(false);
                Ok(())
            }
        }
    }

    /// Loses all packets that `node` sends on `link`, or stops losing them.
    ///
    /// # Errors
    /// The link is not emulated.
    pub fn lose_from(&self, link: usize, node: usize, lost: bool) -> Result<()> {
        match &self.links {
            LinkImplementation::Namespaces(all) => {
                all.lose_from(link, self.end_of(link, node), lost)
            }
            LinkImplementation::Loopback { .. } => {
                bail!("cutting one direction needs namespaces; run as root")
            }
        }
    }

    /// Holds back all packets that `node` sends on `link`, or releases them.
    ///
    /// # Errors
    /// The link is not emulated.
    pub fn keep_from(&self, link: usize, node: usize, kept: bool) -> Result<()> {
        match &self.links {
            LinkImplementation::Namespaces(all) => {
                all.keep_from(link, self.end_of(link, node), kept)
            }
            LinkImplementation::Loopback { .. } => {
                bail!("holding back one direction needs namespaces; run as root")
            }
        }
    }

    /// Changes the loss of `link`.
    pub fn set_loss(&self, link: usize, loss: LinkLoss) -> Result<()> {
        match &self.links {
            LinkImplementation::Namespaces(all) => {
                all.change(&self.topology, link, |s| s.loss = loss)
            }
            LinkImplementation::Loopback { forwarders, .. } => {
                forwarders[link].set_loss(loss.share);
                Ok(())
            }
        }
    }

    /// Traffic that `link` has carried towards `node`. Loss is exact; bytes include headers from
    /// Ethernet's on.
    pub fn arrived(&self, link: usize, node: usize) -> Result<LinkTraffic> {
        match &self.links {
            LinkImplementation::Namespaces(all) => {
                let (bytes, packets) = self.tap(link, node)?.counts();
                let DroppedPackets { lost, cut } = all.taken(&self.topology, link, node)?;
                // The kernel loses packets after the interface counted them, the emulator before
                // that.
                let emulated = all.counters(link, 1 - self.end_of(link, node)).is_some();
                Ok(LinkTraffic {
                    bytes,
                    packets: packets + if emulated { lost } else { 0 },
                    lost,
                    cut,
                })
            }
            LinkImplementation::Loopback { forwarders, .. } => {
                let c = &forwarders[link].counters()[self.end_of(link, node)];
                Ok(LinkTraffic {
                    bytes: c.delivered_bytes.load(Relaxed),
                    packets: c.sent.load(Relaxed),
                    lost: c.lost.load(Relaxed),
                    cut: c.cut.load(Relaxed),
                })
            }
        }
    }

    /// The emulator's counters of `link` towards `node`; `None` if the link is not emulated.
    pub fn emulated(&self, link: usize, node: usize) -> Option<Arc<EmulatorCounters>> {
        match &self.links {
            LinkImplementation::Namespaces(all) => all.counters(link, 1 - self.end_of(link, node)),
            LinkImplementation::Loopback { .. } => None,
        }
    }

    /// CPU seconds of the emulator; `None` without an emulator.
    pub fn emulator_cpu_s(&self) -> Option<f64> {
        match &self.links {
            LinkImplementation::Namespaces(all) => all.emulator_cpu_s(),
            LinkImplementation::Loopback { .. } => None,
        }
    }

    /// A counter of the bytes that `link` carries towards `node`, cheap to read.
    pub fn tap(&self, link: usize, node: usize) -> Result<LinkCounter> {
        match &self.links {
            LinkImplementation::Namespaces(all) => {
                let l = self.topology.links[link];
                let interface = self.interface(node, l.a + l.b - node);
                // The file shows the namespace in which it was opened, wherever it is read.
                let open = || File::open("/proc/thread-self/net/dev").context("net/dev");
                Ok(LinkCounter::interface(all.nodes[node].enter(open)?, interface))
            }
            LinkImplementation::Loopback { forwarders, .. } => {
                Ok(LinkCounter::forwarder(forwarders[link].counters(), self.end_of(link, node)))
            }
        }
    }

    /// Name of `node`'s interface towards `neighbour`.
    pub fn interface(&self, node: usize, neighbour: usize) -> String {
        debug_assert_ne!(node, neighbour);
        namespaces::interface_to(&self.topology, neighbour)
    }

    fn end_of(&self, link: usize, node: usize) -> usize {
        usize::from(self.topology.links[link].b == node)
    }
}

fn loopback(
    topology: &Topology,
    family: IpFamily,
    conditions: &[Conditions],
) -> Result<LinkImplementation> {
    let needs_root = |c: &Conditions| {
        let between = c.through != LinkMiddle::Nothing || c.shift.is_some();
        let late = !c.delay.is_zero() || !c.jitter.is_zero() || c.loss.burst > 1.0;
        late || c.emulate || between
    };
    if conditions.iter().any(needs_root) {
        bail!(
            "delay, jitter, bursts, measured queues, machines between ends and address shifts \
             need namespaces; run as root"
        );
    }

    // Loopback addresses and ports are not assigned by anybody: the first free block is used. If
    // another run takes the block at the same time, forwarders can't bind its addresses, and the
    // next block is tried.
    let (nodes, links) = (topology.nodes.len(), topology.links.len());
    let mut failed = None;
    for block in family.blocks().filter(|block| block.all(nodes, links).all(forward::is_free)) {
        match forwarders(block, topology, family, conditions) {
            Ok(forwarders) => return Ok(LinkImplementation::Loopback { block, forwarders }),
            Err(e) => failed = Some(e),
        }
    }
    Err(failed.unwrap_or_else(|| anyhow!("no free block of loopback addresses; end other runs")))
}

/// Starts a forwarder for each link, in a block of addresses.
fn forwarders(
    block: Block,
    topology: &Topology,
    family: IpFamily,
    conditions: &[Conditions],
) -> Result<Vec<Forwarder>> {
    let start = |(i, (l, c)): (usize, (&LinkSpec, &Conditions))| {
        Forwarder::start(ForwarderConfig {
            nodes: [block.node(l.a), block.node(l.b)],
            facing: [block.facing(i, 0), block.facing(i, 1)],
            headers_bytes: family.headers_bytes(),
            rate: c.rate,
            loss: c.loss.share,
            seed: shoal_daemon::config::keys::os_random()?,
        })
    };
    topology.links.iter().zip(conditions).enumerate().map(start).collect()
}
