//! Builds a topology: places for nodes and the links between them, in one of two ways.

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

use crate::emulator::Counters;
use crate::forward::{self, Forwarder, Wire};
use crate::namespace::Namespace;
use crate::needs::Need;
use crate::shaping::{Rate, Taken};
use crate::topology::{LinkSpec, Topology};
use crate::veth;
pub use family::Family;
use family::{Block, COUNT_MAX};
pub use middle::Through;
use namespaces::Namespaces;
pub use tap::Tap;

/// Conditions of a link, in each direction.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Conditions {
    /// Its rate; none for as fast as the machine can.
    pub rate: Option<Rate>,
    /// One-way delay.
    pub delay: Duration,
    /// Delays spread evenly this far around `delay`.
    pub jitter: Duration,
    /// Its losses.
    pub loss: Loss,
    /// Bound of the queue as time at its rate; None for 20 ms.
    pub queue: Option<Duration>,
    /// Through the lab's emulator even where the kernel could do it: the queue is measured then.
    pub emulate: bool,
    /// What is between its ends.
    pub through: Through,
    /// How often the addresses of the nodes at its ends change, if they do.
    pub hop: Option<Duration>,
}

/// Losses of a link.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Loss {
    /// Share of packets, 0 to 1.
    pub share: f64,
    /// Mean number of packets lost in a row; 1 means each on its own.
    pub burst: f64,
}

impl Default for Loss {
    fn default() -> Loss {
        Loss::each(0.0)
    }
}

impl Loss {
    /// A share of the packets, each on its own.
    pub fn each(share: f64) -> Loss {
        Loss { share, burst: 1.0 }
    }
}

/// How a network is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Network namespaces joined by veth links; needs root.
    Namespaces,
    /// Loopback addresses joined by forwarders; needs nothing.
    Loopback,
}

impl Kind {
    /// Namespaces if this process may make them, else the loopback.
    pub fn available() -> Kind {
        match Need::Namespaces.missing() {
            None => Kind::Namespaces,
            Some(_) => Kind::Loopback,
        }
    }

    /// This kind with addresses of `family`.
    pub fn over(self, family: Family) -> Ground {
        Ground { kind: self, family }
    }
}

/// How a network's links are made, and the family of their addresses. A [`Kind`] alone means IPv4.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ground {
    /// How links are made.
    pub kind: Kind,
    /// Which addresses they have.
    pub family: Family,
}

impl From<Kind> for Ground {
    fn from(kind: Kind) -> Ground {
        kind.over(Family::Ipv4)
    }
}

/// Figures of one direction of a link, since the start.
#[derive(Clone, Copy, Debug, Default)]
pub struct Flow {
    /// Bytes that reached the receiving end.
    pub bytes: u64,
    /// Packets that reached it or were lost on purpose.
    pub packets: u64,
    /// Packets lost on purpose.
    pub lost: u64,
    /// Packets that met a cut link.
    pub cut: u64,
}

/// A network that exists until it is dropped.
#[derive(Debug)]
pub struct Network {
    topology: Topology,
    family: Family,
    rates: Vec<Option<Rate>>,
    links: Links,
}

#[derive(Debug)]
enum Links {
    Namespaces(Namespaces),
    Loopback { block: Block, forwarders: Vec<Forwarder> },
}

impl Network {
    /// Makes `topology` with all links under the same `conditions`.
    ///
    /// # Errors
    /// When rights or tools are missing; the message says which, and nothing is left behind.
    pub fn build(
        topology: Topology,
        ground: impl Into<Ground>,
        conditions: Conditions,
    ) -> Result<Network> {
        let each = vec![conditions; topology.links.len()];
        Network::build_each(topology, ground, &each)
    }

    /// Makes `topology` with one entry of `conditions` per link.
    ///
    /// # Errors
    /// As [`Network::build`]; also when forwarders are asked for what only namespaces have.
    pub fn build_each(
        topology: Topology,
        ground: impl Into<Ground>,
        conditions: &[Conditions],
    ) -> Result<Network> {
        let Ground { kind, family } = ground.into();
        if topology.nodes.len().max(topology.links.len()) > COUNT_MAX {
            bail!("at most {COUNT_MAX} nodes and links");
        }
        let links = match kind {
            Kind::Namespaces => {
                Links::Namespaces(Namespaces::build(&topology, family, conditions)?)
            }
            Kind::Loopback => loopback(&topology, family, conditions)?,
        };
        let rates = conditions.iter().map(|c| c.rate).collect();
        Ok(Network { topology, family, rates, links })
    }

    /// The topology that was built.
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// How its links were made.
    pub fn kind(&self) -> Kind {
        match self.links {
            Links::Namespaces(_) => Kind::Namespaces,
            Links::Loopback { .. } => Kind::Loopback,
        }
    }

    /// The family of its links' addresses.
    pub fn family(&self) -> Family {
        self.family
    }

    /// The rate of a link, if it has one.
    pub fn rate(&self, link: usize) -> Option<Rate> {
        self.rates[link]
    }

    /// How its links are made, in words.
    pub fn manner(&self) -> String {
        let links = match &self.links {
            Links::Namespaces(all) => all.manner(),
            Links::Loopback { .. } => "forwarders on the loopback".into(),
        };
        format!("{}: {links}", self.family)
    }

    /// The namespace that `node`'s processes belong in, if it has one.
    pub fn namespace_fd(&self, node: usize) -> Option<RawFd> {
        self.namespace(node).map(Namespace::raw_fd)
    }

    /// The namespace of `node`, if it has one.
    pub fn namespace(&self, node: usize) -> Option<&Namespace> {
        match &self.links {
            Links::Namespaces(all) => all.nodes.get(node),
            Links::Loopback { .. } => None,
        }
    }

    /// Where `node` listens.
    pub fn listen(&self, node: usize) -> SocketAddr {
        match &self.links {
            Links::Namespaces(_) => self.family.anywhere(),
            Links::Loopback { block, .. } => block.node(node),
        }
    }

    /// Where the node at the other end of `link` is reached from `node`.
    pub fn endpoint(&self, link: usize, node: usize) -> SocketAddr {
        let end = self.end_of(link, node);
        match &self.links {
            Links::Namespaces(_) => self.family.at(link, 1 - end),
            Links::Loopback { block, .. } => block.facing(link, end),
        }
    }

    /// Lets the kernels of the nodes forward IP packets between all links, for traffic that is not
    /// Shoal's.
    ///
    /// # Errors
    /// Without namespaces.
    pub fn route_ip(&self) -> Result<()> {
        match &self.links {
            Links::Namespaces(all) => all.route_ip(&self.topology),
            Links::Loopback { .. } => bail!("other traffic than Shoal's needs namespaces: root"),
        }
    }

    /// Gives the kernel of `node` a default route to its neighbour `via`, and lets it take packets
    /// from any address.
    ///
    /// # Errors
    /// Without namespaces, or when the two are no neighbours.
    pub fn default_route(&self, node: usize, via: usize) -> Result<()> {
        match &self.links {
            Links::Namespaces(all) => all.default_route(&self.topology, node, via),
            Links::Loopback { .. } => bail!("other traffic than Shoal's needs namespaces: root"),
        }
    }

    /// Lets the kernel of `node` pass on packets that are not its own.
    ///
    /// # Errors
    /// Without namespaces.
    pub fn forward_ip(&self, node: usize) -> Result<()> {
        match &self.links {
            Links::Namespaces(all) => all.forward_ip(node),
            Links::Loopback { .. } => bail!("other traffic than Shoal's needs namespaces: root"),
        }
    }

    /// Splits all that leaves `node` for its neighbour `to` into wire packets, also on a link that
    /// takes aggregates.
    ///
    /// # Errors
    /// Without namespaces.
    pub fn single_packets(&self, node: usize, to: usize) -> Result<()> {
        match &self.links {
            Links::Namespaces(all) => all.single_packets(&self.topology, node, to),
            Links::Loopback { .. } => bail!("packets can be split in namespaces only: root"),
        }
    }

    /// The address under which `to` is reached from `from` by IP.
    pub fn ip_of(&self, from: usize, to: usize) -> Result<IpAddr> {
        let way = self.topology.path(from, to, |_| true).context("no way between them")?;
        let (link, _) = *way.last().context("a node and itself")?;
        Ok(self.family.address(link, self.end_of(link, to)))
    }

    /// Has all that is between the ends of `link`, and its far end, send what is for `prefix` to
    /// the node `to`, one of its ends.
    ///
    /// # Errors
    /// Without namespaces.
    pub fn route_to(&self, link: usize, to: usize, prefix: (IpAddr, u8)) -> Result<()> {
        match &self.links {
            Links::Namespaces(all) => all.route_to(&self.topology, link, to, prefix),
            Links::Loopback { .. } => bail!("prefixes are routed in namespaces only: root"),
        }
    }

    /// Has `node` send what is for `prefix` over one of its interfaces.
    ///
    /// # Errors
    /// Without namespaces, or without the interface.
    pub fn route_by(&self, node: usize, interface: &str, prefix: (IpAddr, u8)) -> Result<()> {
        let space = self.namespace(node).context("routes need namespaces: root")?;
        let route = routes::Route { to: Some(prefix), via: routes::Way::On(interface) };
        routes::add(space, &[route])
    }

    /// Gives `node` an address under a prefix that its segment has, on its end of `link`.
    ///
    /// # Errors
    /// Without namespaces.
    pub fn join_segment(&self, link: usize, node: usize, at: IpAddr, prefix_len: u8) -> Result<()> {
        let space = self.namespace(node).context("segments need namespaces: root")?;
        let l = self.topology.links[link];
        veth::address(space, &self.interface(node, l.a + l.b - node), at, prefix_len)
    }

    /// The namespace between the ends of `link` that is next to `node`, if there is one.
    pub fn beside(&self, link: usize, node: usize) -> Option<&Namespace> {
        match &self.links {
            Links::Namespaces(all) => all.beside(link, self.end_of(link, node)),
            Links::Loopback { .. } => None,
        }
    }

    /// The interface of that machine towards `node`.
    pub fn beside_interface(&self, link: usize, node: usize) -> String {
        middle::towards(self.end_of(link, node))
    }

    /// Cuts `link` in both directions. Neither end is told.
    pub fn cut(&self, link: usize) -> Result<()> {
        match &self.links {
            Links::Namespaces(all) => all.change(&self.topology, link, |s| s.cut = true),
            Links::Loopback { forwarders, .. } => {
                forwarders[link].set_cut(true);
                Ok(())
            }
        }
    }

    /// `link` passes packets again.
    pub fn restore(&self, link: usize) -> Result<()> {
        match &self.links {
            Links::Namespaces(all) => all.change(&self.topology, link, |s| s.cut = false),
            Links::Loopback { forwarders, .. } => {
                forwarders[link].set_cut(false);
                Ok(())
            }
        }
    }

    /// From now on, all that `node` sends on `link` is lost, or passes again.
    ///
    /// # Errors
    /// On a link that is not emulated.
    pub fn lose_from(&self, link: usize, node: usize, lost: bool) -> Result<()> {
        match &self.links {
            Links::Namespaces(all) => all.lose_from(link, self.end_of(link, node), lost),
            Links::Loopback { .. } => bail!("one direction can be cut in namespaces only: root"),
        }
    }

    /// From now on, all that `node` sends on `link` is kept back, or leaves at once.
    ///
    /// # Errors
    /// On a link that is not emulated.
    pub fn keep_from(&self, link: usize, node: usize, kept: bool) -> Result<()> {
        match &self.links {
            Links::Namespaces(all) => all.keep_from(link, self.end_of(link, node), kept),
            Links::Loopback { .. } => {
                bail!("one direction can be held up in namespaces only: root")
            }
        }
    }

    /// From now on `link` loses another share.
    pub fn set_loss(&self, link: usize, loss: Loss) -> Result<()> {
        match &self.links {
            Links::Namespaces(all) => all.change(&self.topology, link, |s| s.loss = loss),
            Links::Loopback { forwarders, .. } => {
                forwarders[link].set_loss(loss.share);
                Ok(())
            }
        }
    }

    /// What `link` has carried towards `node`. Loss is exact; bytes include headers down
    /// to Ethernet's.
    pub fn arrived(&self, link: usize, node: usize) -> Result<Flow> {
        match &self.links {
            Links::Namespaces(all) => {
                let (bytes, packets) = self.tap(link, node)?.counts();
                let Taken { lost, cut } = all.taken(&self.topology, link, node)?;
                // The kernel loses behind the interface's counter, the emulator in front of it.
                let emulated = all.counters(link, 1 - self.end_of(link, node)).is_some();
                Ok(Flow { bytes, packets: packets + if emulated { lost } else { 0 }, lost, cut })
            }
            Links::Loopback { forwarders, .. } => {
                let c = &forwarders[link].counters()[self.end_of(link, node)];
                Ok(Flow {
                    bytes: c.delivered_bytes.load(Relaxed),
                    packets: c.sent.load(Relaxed),
                    lost: c.lost.load(Relaxed),
                    cut: c.cut.load(Relaxed),
                })
            }
        }
    }

    /// The emulator's figures of `link` in the direction towards `node`, if it is emulated.
    pub fn emulated(&self, link: usize, node: usize) -> Option<Arc<Counters>> {
        match &self.links {
            Links::Namespaces(all) => all.counters(link, 1 - self.end_of(link, node)),
            Links::Loopback { .. } => None,
        }
    }

    /// CPU seconds of the emulator, if there is one.
    pub fn emulator_cpu_s(&self) -> Option<f64> {
        match &self.links {
            Links::Namespaces(all) => all.emulator_cpu_s(),
            Links::Loopback { .. } => None,
        }
    }

    /// A counter of the bytes that `link` carries towards `node`, cheap enough to read often.
    pub fn tap(&self, link: usize, node: usize) -> Result<Tap> {
        match &self.links {
            Links::Namespaces(all) => {
                let l = self.topology.links[link];
                let interface = self.interface(node, l.a + l.b - node);
                // The file shows the namespace that it was opened in, wherever it is read.
                let open = || File::open("/proc/thread-self/net/dev").context("net/dev");
                Ok(Tap::interface(all.nodes[node].enter(open)?, interface))
            }
            Links::Loopback { forwarders, .. } => {
                Ok(Tap::forwarder(forwarders[link].counters(), self.end_of(link, node)))
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

fn loopback(topology: &Topology, family: Family, conditions: &[Conditions]) -> Result<Links> {
    let needs_root = |c: &Conditions| {
        let between = c.through != Through::Nothing || c.hop.is_some();
        let late = !c.delay.is_zero() || !c.jitter.is_zero() || c.loss.burst > 1.0;
        late || c.emulate || between
    };
    if conditions.iter().any(needs_root) {
        bail!(
            "delay, jitter, bursts, measured queues, machines between ends and addresses that hop \
             need namespaces: root"
        );
    }

    // Nobody assigns loopback addresses and ports: the first free block is taken. Where another run
    // takes it at the same time, forwarders can't bind its addresses, and the next one is tried.
    let (nodes, links) = (topology.nodes.len(), topology.links.len());
    let mut failed = None;
    for block in family.blocks().filter(|block| block.all(nodes, links).all(forward::is_free)) {
        match forwarders(block, topology, family, conditions) {
            Ok(forwarders) => return Ok(Links::Loopback { block, forwarders }),
            Err(e) => failed = Some(e),
        }
    }
    Err(failed.unwrap_or_else(|| anyhow!("no free block of addresses: too many runs")))
}

/// Starts a forwarder for each link, in a block of addresses.
fn forwarders(
    block: Block,
    topology: &Topology,
    family: Family,
    conditions: &[Conditions],
) -> Result<Vec<Forwarder>> {
    let start = |(i, (l, c)): (usize, (&LinkSpec, &Conditions))| {
        Forwarder::start(Wire {
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
