//! Links between namespaces, shaped by the kernel's rules, by netem or by the lab's emulator.

use std::net::IpAddr;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result, bail};

use super::middle::{LinkMiddle, MiddleMachines};
use super::routes::{self, KernelNextHop, KernelRoute};
use super::{Conditions, IpFamily, LinkLoss};
use crate::emulator::{EmulatedLink, Emulator, EmulatorCounters, Settings};
use crate::namespace::Namespace;
use crate::shaping::{self, DroppedPackets};
use crate::topology::Topology;
use crate::veth::{self, VethEnd};

/// Default bound of a queue, in nanoseconds.
const QUEUE_NS: u64 = 20_000_000;

/// Mechanism that emulates a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LinkShaper {
    /// A token bucket at the sending end, rules at the receiving end.
    Rules,
    /// netem at the sending end, rules at the receiving end.
    Netem,
    /// The lab's emulator in the middle, with the link's number in the emulator.
    Own(usize),
}

impl LinkShaper {
    fn is_own(&self) -> bool {
        matches!(self, LinkShaper::Own(_))
    }
}

/// Changeable state of a link.
#[derive(Clone, Copy, Debug)]
pub struct LinkState {
    /// True if nothing passes.
    pub cut: bool,
    pub loss: LinkLoss,
}

/// Namespaces and the links between them.
#[derive(Debug)]
pub struct Namespaces {
    /// One namespace per node.
    pub nodes: Vec<Namespace>,
    family: IpFamily,
    means: Vec<LinkShaper>,
    states: Mutex<Vec<LinkState>>,
    /// Machines between the ends of each link.
    middles: Vec<MiddleMachines>,
    /// Dropped before its namespace.
    emulator: Option<Emulator>,
    _middle: Option<Namespace>,
}

/// Name of a node's interface towards `neighbour`.
pub fn interface_to(topology: &Topology, neighbour: usize) -> String {
    format!("to_{}", topology.nodes[neighbour].name)
}

impl Namespaces {
    /// Makes the namespaces and links.
    pub fn build(
        topology: &Topology,
        family: IpFamily,
        conditions: &[Conditions],
    ) -> Result<Namespaces> {
        shaping::check_tools(conditions.iter().find_map(|c| c.rate))?;
        let nodes: Vec<_> =
            topology.nodes.iter().map(|_| Namespace::new()).collect::<Result<_>>()?;
        for namespace in &nodes {
            shaping::prepare(namespace)?;
            if family == IpFamily::Ipv6 {
                veth::prepare_ipv6(namespace)?;
            }
        }
        let means = means(conditions)?;
        let own = means.iter().any(LinkShaper::is_own);
        let middle = if own { Some(Namespace::new()?) } else { None };
        let (mut wires, mut middles) = (Vec::new(), Vec::new());
        for (link, (means, c)) in means.iter().zip(conditions).enumerate() {
            let l = topology.links[link];
            let names = [interface_to(topology, l.b), interface_to(topology, l.a)];
            let end = |end: usize, node: usize| VethEnd {
                namespace: &nodes[node],
                interface: &names[end],
                address: family.address(link, end),
                prefix_len: family.prefix_len(),
            };
            let ends = [end(0, l.a), end(1, l.b)];
            if means.is_own() && c.through != LinkMiddle::Nothing {
                bail!("a link with a machine between its ends can't be emulated as well");
            }
            match (means, &middle) {
                (LinkShaper::Own(number), Some(middle)) => {
                    middles.push(MiddleMachines::default());
                    let far = [0, 1].map(|end| format!("e{number}_{end}"));
                    for (near, far) in ends.into_iter().zip(&far) {
                        veth::connect_through(near, middle, far, false)?;
                    }
                    wires.push(EmulatedLink { interfaces: far, settings: settings(c) });
                }
                _ => middles.push(shaped(ends, *means, c, link)?),
            }
        }
        let emulator = match &middle {
            Some(middle) => Some(Emulator::start(middle, &wires)?),
            None => None,
        };
        let state = |c: &Conditions| LinkState { cut: false, loss: c.loss };
        let states = Mutex::new(conditions.iter().map(state).collect());
        Ok(Namespaces { nodes, family, means, states, middles, emulator, _middle: middle })
    }

    /// Description for reports.
    pub fn manner(&self) -> String {
        let has = |wanted: fn(&LinkShaper) -> bool| self.means.iter().any(wanted);
        let mut parts = Vec::new();
        if has(|m| *m == LinkShaper::Rules) {
            parts.push("the kernel's token buckets and rules");
        }
        if has(|m| *m == LinkShaper::Netem) {
            parts.push("netem");
        }
        if has(LinkShaper::is_own) {
            parts.push("the lab's emulator");
        }
        parts.extend(self.middles.iter().find_map(MiddleMachines::words));
        format!("namespaces and veth pairs; {}", parts.join(", "))
    }

    /// Changes the state of a link in both directions.
    pub fn change(
        &self,
        topology: &Topology,
        link: usize,
        change: impl FnOnce(&mut LinkState),
    ) -> Result<()> {
        let mut states = self.states.lock().unwrap_or_else(PoisonError::into_inner);
        let state = &mut states[link];
        change(state);
        if let (LinkShaper::Own(number), Some(emulator)) = (self.means[link], &self.emulator) {
            for end in [0, 1] {
                emulator.change(number, end, |s| {
                    s.cut = state.cut;
                    s.loss = state.loss.share;
                    s.burst = state.loss.burst;
                });
            }
            return Ok(());
        }
        if state.loss.burst > 1.0 {
            bail!("bursts of losses need `emulate = true` on the link from the start");
        }
        let l = topology.links[link];
        for (node, other) in [(l.a, l.b), (l.b, l.a)] {
            let interface = interface_to(topology, other);
            shaping::set(&self.nodes[node], &interface, state.loss.share, state.cut)?;
        }
        Ok(())
    }

    /// Cuts or mends one direction of an emulated link.
    pub fn lose_from(&self, link: usize, end: usize, lost: bool) -> Result<()> {
        self.change_from(link, end, |settings| settings.cut = lost)
    }

    /// Holds back or releases packets in one direction of an emulated link.
    pub fn keep_from(&self, link: usize, end: usize, kept: bool) -> Result<()> {
        self.change_from(link, end, |settings| settings.kept = kept)
    }

    fn change_from(&self, link: usize, end: usize, set: impl FnOnce(&mut Settings)) -> Result<()> {
        match (self.means[link], &self.emulator) {
            (LinkShaper::Own(number), Some(emulator)) => {
                emulator.change(number, end, set);
                Ok(())
            }
            _ => bail!("to change one direction, a link needs `emulate = true`"),
        }
    }

    /// Numbers of packets lost and cut on the way to `node`.
    pub fn taken(&self, topology: &Topology, link: usize, node: usize) -> Result<DroppedPackets> {
        let l = topology.links[link];
        let from = usize::from(l.a == node);
        match self.counters(link, from) {
            Some(counters) => {
                let (lost, cut) = (counters.lost.load(Relaxed), counters.cut.load(Relaxed));
                Ok(DroppedPackets { lost, cut })
            }
            None => shaping::taken(&self.nodes[node], &interface_to(topology, l.a + l.b - node)),
        }
    }

    /// The emulator's counters of the direction from `end` of `link`; `None` if the link is not
    /// emulated.
    pub fn counters(&self, link: usize, end: usize) -> Option<Arc<EmulatorCounters>> {
        match (self.means[link], &self.emulator) {
            (LinkShaper::Own(number), Some(emulator)) => Some(emulator.counters(number, end)),
            _ => None,
        }
    }

    /// CPU seconds of the emulator.
    pub fn emulator_cpu_s(&self) -> Option<f64> {
        self.emulator.as_ref().map(Emulator::cpu_s)
    }

    /// Gives `node` a default route to its neighbour `via`.
    pub fn default_route(&self, topology: &Topology, node: usize, via: usize) -> Result<()> {
        let link = topology.link_between(node, via).context("no link to the neighbour")?;
        let end = usize::from(topology.links[link].b == via);
        let interface = interface_to(topology, via);
        let space = &self.nodes[node];
        if self.family == IpFamily::Ipv4 {
            // IPv6 has no such filter.
            for which in ["all", &interface] {
                routes::set_option(space, &format!("net/ipv4/conf/{which}/rp_filter"), "0")?;
            }
        }
        let via = KernelNextHop::By(self.family.address(link, end));
        routes::add(space, &[KernelRoute { to: None, via }])
    }

    /// Splits all packets from `node` to `neighbour` into wire packets.
    pub fn single_packets(&self, topology: &Topology, node: usize, neighbour: usize) -> Result<()> {
        veth::split(&self.nodes[node], &interface_to(topology, neighbour))
    }

    /// Routes every link's addresses from every node along shortest paths.
    pub fn route_ip(&self, topology: &Topology) -> Result<()> {
        for (node, namespace) in self.nodes.iter().enumerate() {
            self.forward_ip(node)?;
            let mut routes = Vec::new();
            for (link, l) in topology.links.iter().enumerate() {
                if l.a == node || l.b == node {
                    continue;
                }
                let ways = [l.a, l.b].map(|end| topology.path(node, end, |_| true));
                let way = ways.into_iter().flatten().min_by_key(Vec::len);
                let Some(&(first, next)) = way.as_ref().and_then(|w| w.first()) else { continue };
                let end = usize::from(topology.links[first].b == next);
                let to = Some((self.family.prefix(link), self.family.prefix_len()));
                routes.push(KernelRoute {
                    to,
                    via: KernelNextHop::By(self.family.address(first, end)),
                });
            }
            routes::add(namespace, &routes)?;
        }
        Ok(())
    }

    /// Routes `prefix` to `to`, at all machines of `link`.
    pub fn route_to(
        &self,
        topology: &Topology,
        link: usize,
        to: usize,
        prefix: (IpAddr, u8),
    ) -> Result<()> {
        let l = topology.links[link];
        let end = usize::from(l.b == to);
        let middle = &self.middles[link];
        middle.route_to(self.family, link, end, prefix)?;
        let via = middle.next(self.family, link, 1 - end);
        routes::add(
            &self.nodes[l.a + l.b - to],
            &[KernelRoute { to: Some(prefix), via: KernelNextHop::By(via) }],
        )
    }

    /// The machine between the ends of `link` next to `end`.
    pub fn beside(&self, link: usize, end: usize) -> Option<&Namespace> {
        self.middles[link].beside(end)
    }

    /// Makes the kernel of `node` forward packets.
    pub fn forward_ip(&self, node: usize) -> Result<()> {
        let option = match self.family {
            IpFamily::Ipv4 => "net/ipv4/ip_forward",
            IpFamily::Ipv6 => "net/ipv6/conf/all/forwarding",
        };
        routes::set_option(&self.nodes[node], option, "1")
    }
}

/// The mechanism of each link. Delays and bursts need netem or the emulator; a measured queue needs
/// the emulator.
fn means(conditions: &[Conditions]) -> Result<Vec<LinkShaper>> {
    let late = |c: &Conditions| !c.delay.is_zero() || !c.jitter.is_zero() || c.loss.burst > 1.0;
    let netem = conditions.iter().any(|c| late(c) && !c.emulate) && shaping::has_netem()?;
    let mut own = 0;
    Ok(conditions
        .iter()
        .map(|c| match () {
            () if c.emulate || (late(c) && !netem) => {
                own += 1;
                LinkShaper::Own(own - 1)
            }
            () if late(c) => LinkShaper::Netem,
            () => LinkShaper::Rules,
        })
        .collect())
}

fn settings(c: &Conditions) -> Settings {
    Settings {
        rate: c.rate.map_or(0, |r| r.0),
        delay: c.delay.as_nanos() as u64,
        jitter: c.jitter.as_nanos() as u64,
        queue: c.queue.map_or(QUEUE_NS, |q| q.as_nanos() as u64),
        loss: c.loss.share,
        burst: c.loss.burst,
        kept: false,
        cut: false,
    }
}

/// Makes a link in the kernel, with the machines between its ends.
fn shaped(
    ends: [VethEnd<'_>; 2],
    means: LinkShaper,
    c: &Conditions,
    link: usize,
) -> Result<MiddleMachines> {
    // On a link without shaping and loss, aggregates pass as one packet, as in a fast network card.
    let aggregates = c.rate.is_none() && c.loss.share == 0.0 && means == LinkShaper::Rules;
    let middle = MiddleMachines::connect(c.through, ends, link, aggregates)?;
    for end in ends {
        match (means, c.rate) {
            (LinkShaper::Netem, _) => shaping::netem(end.namespace, end.interface, c)?,
            (_, Some(rate)) => shaping::limit(end.namespace, end.interface, rate, c.queue)?,
            _ => {}
        }
        // netem loses bursts; the rules behind the queue lose single packets.
        let share = if c.loss.burst > 1.0 { 0.0 } else { c.loss.share };
        shaping::set(end.namespace, end.interface, share, false)?;
    }
    Ok(middle)
}
