//! A topology made real: nodes' places and the links between them, in one of two ways.

use std::fs::File;
use std::io::{Read, Seek};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use anyhow::{Context, Result, bail};

use crate::forward::{self, Counters, Forwarder, Wire};
use crate::namespace::Namespace;
use crate::shaping::{self, Rate};
use crate::topology::Topology;
use crate::veth::{self, End};

/// Port that every node listens on.
const PORT: u16 = 7400;
/// Most runs of the loopback kind side by side, and most nodes or links of one: both are an octet.
const OCTET_MAX: usize = 99;

/// What every link of a network is like.
#[derive(Clone, Copy, Debug, Default)]
pub struct Conditions {
    /// Rate of each direction; none for as fast as the machine can.
    pub rate: Option<Rate>,
    /// Share of packets that each direction loses, 0 to 1.
    pub loss: f64,
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
    /// The better one that this process may use.
    pub fn available() -> Kind {
        if nix::unistd::geteuid().is_root() && Namespace::new().is_ok() {
            Kind::Namespaces
        } else {
            Kind::Loopback
        }
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
}

/// A network that exists until it is dropped.
#[derive(Debug)]
pub struct Network {
    topology: Topology,
    links: Links,
}

#[derive(Debug)]
enum Links {
    Namespaces(Vec<Namespace>),
    Loopback { run: u8, forwarders: Vec<Forwarder> },
}

impl Network {
    /// Makes `topology` with links under `conditions`.
    ///
    /// # Errors
    /// When rights or tools are missing; the message says which, and nothing is left behind.
    pub fn build(topology: Topology, kind: Kind, conditions: Conditions) -> Result<Network> {
        if topology.nodes.len().max(topology.links.len()) > OCTET_MAX {
            bail!("at most {OCTET_MAX} nodes and links");
        }
        let links = match kind {
            Kind::Namespaces => Links::Namespaces(namespaces(&topology, conditions)?),
            Kind::Loopback => loopback(&topology, conditions)?,
        };
        Ok(Network { topology, links })
    }

    /// What was built.
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// How it was built.
    pub fn kind(&self) -> Kind {
        match self.links {
            Links::Namespaces(_) => Kind::Namespaces,
            Links::Loopback { .. } => Kind::Loopback,
        }
    }

    /// The namespace that `node`'s processes belong in, if it has one.
    pub fn namespace_fd(&self, node: usize) -> Option<RawFd> {
        self.namespace(node).map(Namespace::raw_fd)
    }

    /// The namespace of `node`, if it has one.
    pub fn namespace(&self, node: usize) -> Option<&Namespace> {
        match &self.links {
            Links::Namespaces(all) => all.get(node),
            Links::Loopback { .. } => None,
        }
    }

    /// Where `node` listens.
    pub fn listen(&self, node: usize) -> SocketAddr {
        match self.links {
            Links::Namespaces(_) => SocketAddr::from((Ipv4Addr::UNSPECIFIED, PORT)),
            Links::Loopback { run, .. } => node_at(run, node).into(),
        }
    }

    /// Where the node at the other end of `link` is reached from `node`.
    pub fn endpoint(&self, link: usize, node: usize) -> SocketAddr {
        let end = self.end_of(link, node);
        match self.links {
            Links::Namespaces(_) => (link_address(link, 1 - end), PORT).into(),
            Links::Loopback { run, .. } => facing_at(run, link, end).into(),
        }
    }

    /// From now on nothing passes `link`, in either direction. No end is told.
    pub fn cut(&self, link: usize) -> Result<()> {
        match &self.links {
            Links::Namespaces(all) => {
                let l = self.topology.links[link];
                shaping::cut(&all[l.a], &self.interface(l.a, l.b))?;
                shaping::cut(&all[l.b], &self.interface(l.b, l.a))
            }
            Links::Loopback { forwarders, .. } => {
                forwarders[link].cut();
                Ok(())
            }
        }
    }

    /// What `link` has carried towards `node`. Loss is exact; bytes include headers down
    /// to Ethernet's.
    pub fn arrived(&self, link: usize, node: usize) -> Result<Flow> {
        match &self.links {
            Links::Namespaces(all) => {
                let l = self.topology.links[link];
                let interface = self.interface(node, l.a + l.b - node);
                let mut table = self.tap(link, node)?;
                let (bytes, packets) = table.counts();
                let lost = shaping::lost(&all[node], &interface)?;
                Ok(Flow { bytes, packets, lost })
            }
            Links::Loopback { forwarders, .. } => {
                let c = &forwarders[link].counters()[self.end_of(link, node)];
                Ok(Flow {
                    bytes: c.delivered_bytes.load(Relaxed),
                    packets: c.sent.load(Relaxed),
                    lost: c.lost.load(Relaxed),
                })
            }
        }
    }

    /// A view of the bytes that `link` carries towards `node`, cheap enough to look at often.
    pub fn tap(&self, link: usize, node: usize) -> Result<Tap> {
        match &self.links {
            Links::Namespaces(all) => {
                let l = self.topology.links[link];
                let interface = self.interface(node, l.a + l.b - node);
                // The file shows the namespace that it was opened in, wherever it is read.
                let open = || File::open("/proc/thread-self/net/dev").context("net/dev");
                Ok(Tap(Source::Interface { table: all[node].enter(open)?, interface }))
            }
            Links::Loopback { forwarders, .. } => {
                let end = self.end_of(link, node);
                Ok(Tap(Source::Forwarder { counters: forwarders[link].counters(), end }))
            }
        }
    }

    /// Name of `node`'s interface towards `neighbour`.
    pub fn interface(&self, node: usize, neighbour: usize) -> String {
        debug_assert_ne!(node, neighbour);
        interface_to(&self.topology, neighbour)
    }

    fn end_of(&self, link: usize, node: usize) -> usize {
        usize::from(self.topology.links[link].b == node)
    }
}

/// Where bytes are counted.
#[derive(Debug)]
pub struct Tap(Source);

#[derive(Debug)]
enum Source {
    Interface { table: File, interface: String },
    Forwarder { counters: Arc<[Counters; 2]>, end: usize },
}

impl Tap {
    /// Bytes carried since the start.
    pub fn bytes(&mut self) -> u64 {
        self.counts().0
    }

    /// Bytes and packets since the start.
    fn counts(&mut self) -> (u64, u64) {
        match &mut self.0 {
            Source::Interface { table, interface } => {
                let mut text = String::new();
                // A table that can't be read any more counts nothing more: the link is gone.
                let _ = table.rewind().and_then(|()| table.read_to_string(&mut text));
                let named = |l: &str| Some(l.trim().strip_prefix(&*interface)?.to_owned());
                let line = text.lines().filter_map(named).find(|l| l.starts_with(':'));
                let line = line.unwrap_or_default();
                let mut fields = line[1.min(line.len())..].split_whitespace().flat_map(str::parse);
                (fields.next().unwrap_or(0), fields.next().unwrap_or(0))
            }
            Source::Forwarder { counters, end } => {
                let c = &counters[*end];
                (c.delivered_bytes.load(Relaxed), c.sent.load(Relaxed))
            }
        }
    }
}

fn interface_to(topology: &Topology, neighbour: usize) -> String {
    format!("to_{}", topology.nodes[neighbour].name)
}

/// Address of one end (0 or 1) of a link between namespaces.
fn link_address(link: usize, end: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 77, link as u8, 1 + end as u8)
}

fn namespaces(topology: &Topology, conditions: Conditions) -> Result<Vec<Namespace>> {
    shaping::check_tools(conditions.rate)?;
    let all: Vec<_> = topology.nodes.iter().map(|_| Namespace::new()).collect::<Result<_>>()?;
    for namespace in &all {
        shaping::prepare(namespace)?;
    }
    // Aggregates pass an unshaped and lossless link as one packet, as through a fast network card.
    let aggregates = conditions.rate.is_none() && conditions.loss == 0.0;
    for (i, l) in topology.links.iter().enumerate() {
        let (to_a, to_b) = (interface_to(topology, l.a), interface_to(topology, l.b));
        let at = |node: usize, interface, end| End {
            namespace: &all[node],
            interface,
            address: link_address(i, end),
        };
        let ends = [at(l.a, to_b.as_str(), 0), at(l.b, to_a.as_str(), 1)];
        veth::connect(ends[0], ends[1], aggregates)?;
        for end in ends {
            if let Some(rate) = conditions.rate {
                shaping::limit(end.namespace, end.interface, rate)?;
            }
            if conditions.loss > 0.0 {
                shaping::lose(end.namespace, end.interface, conditions.loss)?;
            }
        }
    }
    Ok(all)
}

/// Address of a node of the loopback kind.
fn node_at(run: u8, node: usize) -> SocketAddrV4 {
    SocketAddrV4::new(Ipv4Addr::new(127, 77, run, 1 + node as u8), PORT)
}

/// Address of a forwarder where it faces one end (0 or 1) of its link.
fn facing_at(run: u8, link: usize, end: usize) -> SocketAddrV4 {
    SocketAddrV4::new(Ipv4Addr::new(127, 77, run, 101 + link as u8), PORT + end as u16)
}

fn loopback(topology: &Topology, conditions: Conditions) -> Result<Links> {
    // Loopback addresses aren't handed out by anybody: the first free block is ours.
    let mut runs = 0..OCTET_MAX as u8;
    let free = |run: &u8| forward::is_free(facing_at(*run, 0, 0).into());
    let run = runs.find(free).context("no free block of loopback addresses: too many runs")?;
    let mut forwarders = Vec::new();
    for (i, l) in topology.links.iter().enumerate() {
        forwarders.push(Forwarder::start(Wire {
            nodes: [node_at(run, l.a), node_at(run, l.b)],
            facing: [facing_at(run, i, 0), facing_at(run, i, 1)],
            rate: conditions.rate,
            loss: conditions.loss,
            seed: shoal_node::keys::os_random()?,
        })?);
    }
    Ok(Links::Loopback { run, forwarders })
}
