//! Translators of addresses (NAT), in the terms of RFC 4787, and the hosts behind them.
//!
//! ```text
//! host -- translator -- (translator) -- the public network -- (translator) -- translator -- host
//!   \_ out: a mapping is made or refreshed             in: filtered, led to the mapping's owner _/
//! ```
//!
//! Outgoing frames are translated when they are sent, incoming ones are filtered when they arrive.
//! Frames that cross therefore meet the mappings of that moment. Hosts behind different translators
//! may have the same private addresses.

use core::time::Duration;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use serde::{Deserialize, Serialize};
use shoal_crypto::Rng;
use shoal_wire::Time;

/// Port of every node at its own address.
pub(crate) const PORT: u16 = 7_400;
/// Lowest port that a translator assigns; lower ports are for its own services.
const PORT_MIN: u16 = 1_024;
/// Largest number of mappings per translator, as in a home router.
const MAPPINGS_MAX: usize = 2_048;
/// Largest number of remote endpoints that one mapping lets in.
const PERMITS_MAX: usize = 256;
/// Largest number of translators in a row.
const NESTED_MAX: usize = 4;

/// The part of the remote endpoint on which a mapping or filter depends, beside the inner endpoint
/// (RFC 4787 sections 4.1 and 5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NatDependence {
    /// Endpoint-independent.
    Nothing,
    /// Address-dependent.
    Address,
    /// Address- and port-dependent.
    AddressAndPort,
}

impl NatDependence {
    /// The part of a remote endpoint that counts.
    fn of(self, far: SocketAddr) -> (Option<IpAddr>, u16) {
        match self {
            NatDependence::Nothing => (None, 0),
            NatDependence::Address => (Some(far.ip()), 0),
            NatDependence::AddressAndPort => (Some(far.ip()), far.port()),
        }
    }
}

/// Choice of the outer port of a mapping (RFC 4787 section 4.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PortAssignment {
    /// The inner port if it is free, else a random one.
    Preserving,
    /// The port after the last one.
    Sequential,
    /// A random port.
    Random,
}

/// Behaviour of a translator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NatRules {
    pub mapping: NatDependence,
    pub filtering: NatDependence,
    pub ports: PortAssignment,
    /// True if frames from inside to an outer endpoint of the same translator come back in (section
    /// 6).
    pub hairpin: bool,
    /// Lifetime of a mapping, and of each permission in it, after the last outgoing frame, in
    /// milliseconds (section 4.3). Incoming frames refresh nothing.
    pub timeout_ms: u64,
    /// Number of the translator behind which this one is.
    pub behind: Option<u32>,
}

impl NatRules {
    /// A typical home router: endpoint-independent mappings, and only endpoints that were called
    /// are let in.
    pub const EASY: NatRules = NatRules {
        mapping: NatDependence::Nothing,
        filtering: NatDependence::AddressAndPort,
        ports: PortAssignment::Preserving,
        hairpin: false,
        timeout_ms: 120_000,
        behind: None,
    };
    /// A translator with address- and port-dependent mappings at random ports.
    pub const HARD: NatRules = NatRules {
        mapping: NatDependence::AddressAndPort,
        ports: PortAssignment::Random,
        ..NatRules::EASY
    };
}

/// Reason why a translator drops a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum NatRefusal {
    /// No mapping has this outer port.
    Unmapped,
    /// The mapping does not let this remote endpoint in.
    Filtered,
    /// The table of mappings is full.
    Full,
    /// The frame goes from inside to the translator itself, which does not hairpin.
    Hairpin,
    /// No node has the address.
    Nobody,
}

/// Key of a mapping: inner endpoint, and the part of the remote endpoint that counts.
type MappingKey = (SocketAddr, (Option<IpAddr>, u16));

#[derive(Debug)]
struct NatMapping {
    key: MappingKey,
    used: Time,
    /// Remote endpoints that were called, and the time of the last frame to each. Only the parts
    /// that the filter compares are stored.
    permits: BTreeMap<(Option<IpAddr>, u16), Time>,
}

/// A running translator.
#[derive(Debug)]
pub(crate) struct NatDevice {
    rules: NatRules,
    outer: IpAddr,
    ports: BTreeMap<MappingKey, u16>,
    mapped: BTreeMap<u16, NatMapping>,
    last: u16,
    rng: Rng,
}

impl NatDevice {
    pub(crate) fn new(rules: NatRules, outer: IpAddr, seed: [u8; 32]) -> NatDevice {
        let mut rng = Rng::new(seed);
        let last = PORT_MIN + rng.below(u64::from(u16::MAX - PORT_MIN)) as u16;
        NatDevice { rules, outer, ports: BTreeMap::new(), mapped: BTreeMap::new(), last, rng }
    }

    fn is_over(&self, now: Time, used: Time) -> bool {
        now.since(used) >= Duration::from_millis(self.rules.timeout_ms)
    }

    /// Removes expired mappings.
    fn expire(&mut self, now: Time) {
        let over = self.mapped.iter().filter(|(_, mapped)| self.is_over(now, mapped.used));
        for port in over.map(|(port, _)| *port).collect::<Vec<_>>() {
            if let Some(gone) = self.mapped.remove(&port) {
                self.ports.remove(&gone.key);
            }
        }
    }

    fn free_port(&mut self, wanted: u16) -> u16 {
        if self.rules.ports == PortAssignment::Preserving && !self.mapped.contains_key(&wanted) {
            return wanted;
        }
        let span = u64::from(u16::MAX - PORT_MIN) + 1;
        // There are fewer mappings than ports, so one is free.
        loop {
            self.last = match self.rules.ports {
                PortAssignment::Sequential => self.last.checked_add(1).unwrap_or(PORT_MIN),
                PortAssignment::Preserving | PortAssignment::Random => {
                    PORT_MIN + self.rng.below(span) as u16
                }
            };
            if !self.mapped.contains_key(&self.last) {
                return self.last;
            }
        }
    }

    /// Translates an outgoing frame; returns its outer source.
    pub(crate) fn go_out(
        &mut self,
        now: Time,
        from: SocketAddr,
        to: SocketAddr,
    ) -> Result<SocketAddr, NatRefusal> {
        self.expire(now);
        let key = (from, self.rules.mapping.of(to));
        let port = match self.ports.get(&key) {
            Some(&port) => port,
            None if self.mapped.len() >= MAPPINGS_MAX => return Err(NatRefusal::Full),
            None => {
                let port = self.free_port(from.port());
                self.ports.insert(key, port);
                self.mapped.insert(port, NatMapping { key, used: now, permits: BTreeMap::new() });
                port
            }
        };
        let permit = self.rules.filtering.of(to);
        if let Some(mapped) = self.mapped.get_mut(&port) {
            mapped.used = now;
            if mapped.permits.len() >= PERMITS_MAX && !mapped.permits.contains_key(&permit) {
                let oldest = mapped.permits.iter().min_by_key(|(_, at)| **at);
                let oldest = oldest.map(|(permit, _)| *permit);
                oldest.map(|oldest| mapped.permits.remove(&oldest));
            }
            mapped.permits.insert(permit, now);
        }
        Ok(SocketAddr::new(self.outer, port))
    }

    /// Inner endpoint that owns an outer port.
    fn owner(&self, now: Time, port: u16) -> Option<SocketAddr> {
        let mapped = self.mapped.get(&port)?;
        (!self.is_over(now, mapped.used)).then_some(mapped.key.0)
    }

    /// Filters an incoming frame; returns its inner destination.
    pub(crate) fn come_in(
        &mut self,
        now: Time,
        from: SocketAddr,
        port: u16,
    ) -> Result<SocketAddr, NatRefusal> {
        self.expire(now);
        let mapped = self.mapped.get(&port).ok_or(NatRefusal::Unmapped)?;
        let permit = self.rules.filtering.of(from);
        let spoken = mapped.permits.get(&permit).is_some_and(|at| !self.is_over(now, *at));
        match self.rules.filtering == NatDependence::Nothing || spoken {
            true => Ok(mapped.key.0),
            false => Err(NatRefusal::Filtered),
        }
    }
}

/// Next stop of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NextStop {
    Node(usize),
    /// Outer side of this translator, at its own address and this port.
    Door(usize, u16),
}

/// All translators, and the positions of nodes.
#[derive(Debug)]
pub(crate) struct NatDevices {
    nats: Vec<NatDevice>,
    /// For each node, the translator that it is behind, and its address.
    nodes: Vec<(Option<usize>, SocketAddr)>,
    /// Nodes and translators by their network (inside which translator) and address.
    addresses: BTreeMap<(Option<usize>, IpAddr), NextStop>,
    /// Dropped frames by reason.
    pub(crate) refused: BTreeMap<NatRefusal, u64>,
}

/// Address of a node in the public network.
pub(crate) fn public(node: usize) -> SocketAddr {
    let [_, a, b, c] = (node as u32).to_be_bytes();
    SocketAddr::from(([10, a, b, c], PORT))
}

impl NatDevices {
    /// Builds all translators. `behind` names for each node the translator that it is behind.
    /// Numbers of unknown translators count as None, and so do numbers not below the translator
    /// that names them.
    pub(crate) fn new(
        translators: &[NatRules],
        behind: &[Option<u32>],
        seed: [u8; 32],
    ) -> NatDevices {
        let mut seeds = Rng::new(seed);
        let mut addresses = BTreeMap::new();
        let mut inside = vec![0_u16; translators.len()];
        let known = |number: Option<u32>, below: usize| {
            number.map(|number| number as usize).filter(|number| *number < below)
        };
        let nats = translators.iter().enumerate().map(|(number, rules)| {
            let outside = known(rules.behind, number);
            let outer = match outside {
                None => Ipv4Addr::new(198, 51, (100 + number / 256) as u8, number as u8),
                Some(outside) => {
                    inside[outside] += 1;
                    let [high, low] = inside[outside].to_be_bytes();
                    Ipv4Addr::new(100, 64, high, low)
                }
            };
            addresses.insert((outside, outer.into()), NextStop::Door(number, 0));
            let rules = NatRules { behind: outside.map(|at| at as u32), ..*rules };
            NatDevice::new(rules, outer.into(), seeds.array())
        });
        let nats: Vec<NatDevice> = nats.collect();
        let nodes = behind.iter().enumerate().map(|(node, number)| {
            let number = known(*number, nats.len());
            let at = match number {
                None => public(node),
                Some(number) => {
                    inside[number] += 1;
                    let [high, low] = inside[number].to_be_bytes();
                    SocketAddr::from(([192, 168, high, low], PORT))
                }
            };
            addresses.insert((number, at.ip()), NextStop::Node(node));
            (number, at)
        });
        let nodes = nodes.collect();
        NatDevices { nats, nodes, addresses, refused: BTreeMap::new() }
    }

    /// Endpoint of a node within its own network.
    pub(crate) fn own(&self, node: usize) -> SocketAddr {
        self.nodes[node].1
    }

    fn at(&self, stands: Option<usize>, to: SocketAddr) -> Option<NextStop> {
        match *self.addresses.get(&(stands, to.ip()))? {
            NextStop::Node(node) => (to.port() == PORT).then_some(NextStop::Node(node)),
            NextStop::Door(number, _) => Some(NextStop::Door(number, to.port())),
        }
    }

    /// Handles a frame that a node sends; returns the source that it shows outside, and its next
    /// stop.
    pub(crate) fn leave(
        &mut self,
        now: Time,
        node: usize,
        to: SocketAddr,
    ) -> Result<(SocketAddr, NextStop), NatRefusal> {
        let (mut stands, mut from) = self.nodes[node];
        for _ in 0..=NESTED_MAX {
            if let Some(next) = self.at(stands, to) {
                return Ok((from, next));
            }
            let number = stands.ok_or(NatRefusal::Nobody)?;
            let nat = &mut self.nats[number];
            let to_itself = to.ip() == nat.outer;
            if to_itself && !nat.rules.hairpin {
                return Err(NatRefusal::Hairpin);
            }
            from = nat.go_out(now, from, to)?;
            if to_itself {
                return Ok((from, NextStop::Door(number, to.port())));
            }
            stands = nat.rules.behind.map(|behind| behind as usize);
        }
        Err(NatRefusal::Nobody)
    }

    /// Node that owns an outer port of a translator, regardless of filtering.
    pub(crate) fn owner(&self, now: Time, door: usize, port: u16) -> Option<usize> {
        let (mut door, mut port) = (door, port);
        for _ in 0..=NESTED_MAX {
            match self.at(Some(door), self.nats[door].owner(now, port)?)? {
                NextStop::Node(node) => return Some(node),
                NextStop::Door(inner, at) => (door, port) = (inner, at),
            }
        }
        None
    }

    /// Handles a frame at the outer side of a translator; returns the node that gets it.
    pub(crate) fn enter(
        &mut self,
        now: Time,
        from: SocketAddr,
        door: usize,
        port: u16,
    ) -> Result<usize, NatRefusal> {
        let (mut door, mut port) = (door, port);
        for _ in 0..=NESTED_MAX {
            let inner = self.nats[door].come_in(now, from, port)?;
            match self.at(Some(door), inner).ok_or(NatRefusal::Nobody)? {
                NextStop::Node(node) => return Ok(node),
                NextStop::Door(inner, at) => (door, port) = (inner, at),
            }
        }
        Err(NatRefusal::Nobody)
    }

    /// Counts dropped frames.
    pub(crate) fn count(&mut self, why: NatRefusal, frames: u64) {
        *self.refused.entry(why).or_default() += frames;
    }
}

#[cfg(test)]
mod tests;
