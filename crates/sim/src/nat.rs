//! Translators of addresses (NAT) in the words of RFC 4787, and which hosts stand behind which.
//!
//! ```text
//! host -- translator -- (translator) -- the public network -- (translator) -- translator -- host
//!   \_ out: a mapping is made or refreshed        in: filtered, and led to who made the mapping _/
//! ```
//!
//! What goes out is translated as it is sent; what comes in is filtered when it arrives, so that
//! frames that cross meet the mappings of that moment. Private addresses are those of hosts behind
//! other translators, too.

use core::time::Duration;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use serde::{Deserialize, Serialize};
use shoal_crypto::Rng;
use shoal_wire::Time;

/// The port of every node, at its own address.
pub(crate) const PORT: u16 = 7_400;
/// The lowest port that a translator gives out: below are those of its own services.
const PORT_MIN: u16 = 1_024;
/// Mappings of one translator; a home router has so many.
const MAPPINGS_MAX: usize = 2_048;
/// Places that one mapping lets in.
const PERMITS_MAX: usize = 256;
/// Translators one behind another at most.
const NESTED_MAX: usize = 4;

/// On what a mapping, or a filter, depends beside the inner endpoint (RFC 4787 sections 4.1 and 5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Depends {
    /// On nothing else: endpoint-independent.
    Nothing,
    /// On the far address.
    Address,
    /// On the far address and port.
    AddressAndPort,
}

impl Depends {
    /// The part of a far endpoint that counts.
    fn of(self, far: SocketAddr) -> (Option<IpAddr>, u16) {
        match self {
            Depends::Nothing => (None, 0),
            Depends::Address => (Some(far.ip()), 0),
            Depends::AddressAndPort => (Some(far.ip()), far.port()),
        }
    }
}

/// Which outer port a mapping gets (RFC 4787 section 4.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ports {
    /// The inner port if it is free, else any.
    Preserving,
    /// The one after the last.
    Sequential,
    /// Any.
    Random,
}

/// How a translator behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Translator {
    /// On what mappings depend.
    pub mapping: Depends,
    /// On what it depends whether a frame is let in.
    pub filtering: Depends,
    /// Which ports mappings get.
    pub ports: Ports,
    /// Frames from inside to an outer endpoint of the translator itself come back in (section 6).
    pub hairpin: bool,
    /// How long a mapping, and each permission in it, lives after the last frame out, in
    /// milliseconds (section 4.3; frames in refresh nothing).
    pub timeout_ms: u64,
    /// The translator behind which this one stands, by its number.
    pub behind: Option<u32>,
}

impl Translator {
    /// A usual home router: mappings depend on nothing, and only who was spoken to is let in.
    pub const EASY: Translator = Translator {
        mapping: Depends::Nothing,
        filtering: Depends::AddressAndPort,
        ports: Ports::Preserving,
        hairpin: false,
        timeout_ms: 120_000,
        behind: None,
    };
    /// A translator whose mappings depend on everything, at ports that nobody can guess.
    pub const HARD: Translator =
        Translator { mapping: Depends::AddressAndPort, ports: Ports::Random, ..Translator::EASY };
}

/// Why a translator passes a frame not on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Refused {
    /// No mapping has this outer port.
    Unmapped,
    /// The mapping lets nobody in from there.
    Filtered,
    /// There is no room for another mapping.
    Full,
    /// From inside to itself, and it does not hairpin.
    Hairpin,
    /// The address is nobody's.
    Nobody,
}

/// What one inner endpoint, and what counts of the far one, has as its outer port.
type Key = (SocketAddr, (Option<IpAddr>, u16));

#[derive(Debug)]
struct Mapped {
    key: Key,
    used: Time,
    /// Who was spoken to, as far as filtering looks, and when last.
    permits: BTreeMap<(Option<IpAddr>, u16), Time>,
}

/// One translator at work.
#[derive(Debug)]
pub(crate) struct Nat {
    rules: Translator,
    outer: IpAddr,
    ports: BTreeMap<Key, u16>,
    mapped: BTreeMap<u16, Mapped>,
    last: u16,
    rng: Rng,
}

impl Nat {
    pub(crate) fn new(rules: Translator, outer: IpAddr, seed: [u8; 32]) -> Nat {
        let mut rng = Rng::new(seed);
        let last = PORT_MIN + rng.below(u64::from(u16::MAX - PORT_MIN)) as u16;
        Nat { rules, outer, ports: BTreeMap::new(), mapped: BTreeMap::new(), last, rng }
    }

    fn is_over(&self, now: Time, used: Time) -> bool {
        now.since(used) >= Duration::from_millis(self.rules.timeout_ms)
    }

    /// Forgets mappings that nobody used for too long.
    fn expire(&mut self, now: Time) {
        let over = self.mapped.iter().filter(|(_, mapped)| self.is_over(now, mapped.used));
        for port in over.map(|(port, _)| *port).collect::<Vec<_>>() {
            if let Some(gone) = self.mapped.remove(&port) {
                self.ports.remove(&gone.key);
            }
        }
    }

    fn free_port(&mut self, wanted: u16) -> u16 {
        if self.rules.ports == Ports::Preserving && !self.mapped.contains_key(&wanted) {
            return wanted;
        }
        let span = u64::from(u16::MAX - PORT_MIN) + 1;
        // Fewer mappings than ports: one is free.
        loop {
            self.last = match self.rules.ports {
                Ports::Sequential => self.last.checked_add(1).unwrap_or(PORT_MIN),
                Ports::Preserving | Ports::Random => PORT_MIN + self.rng.below(span) as u16,
            };
            if !self.mapped.contains_key(&self.last) {
                return self.last;
            }
        }
    }

    /// A frame from inside goes out; returns its outer source.
    pub(crate) fn go_out(
        &mut self,
        now: Time,
        from: SocketAddr,
        to: SocketAddr,
    ) -> Result<SocketAddr, Refused> {
        self.expire(now);
        let key = (from, self.rules.mapping.of(to));
        let port = match self.ports.get(&key) {
            Some(&port) => port,
            None if self.mapped.len() >= MAPPINGS_MAX => return Err(Refused::Full),
            None => {
                let port = self.free_port(from.port());
                self.ports.insert(key, port);
                self.mapped.insert(port, Mapped { key, used: now, permits: BTreeMap::new() });
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

    /// The inner endpoint that has an outer port.
    fn owner(&self, now: Time, port: u16) -> Option<SocketAddr> {
        let mapped = self.mapped.get(&port)?;
        (!self.is_over(now, mapped.used)).then_some(mapped.key.0)
    }

    /// A frame comes in from outside; returns its inner destination.
    pub(crate) fn come_in(
        &mut self,
        now: Time,
        from: SocketAddr,
        port: u16,
    ) -> Result<SocketAddr, Refused> {
        self.expire(now);
        let mapped = self.mapped.get(&port).ok_or(Refused::Unmapped)?;
        let permit = self.rules.filtering.of(from);
        let spoken = mapped.permits.get(&permit).is_some_and(|at| !self.is_over(now, *at));
        match self.rules.filtering == Depends::Nothing || spoken {
            true => Ok(mapped.key.0),
            false => Err(Refused::Filtered),
        }
    }
}

/// What a frame reaches next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    Node(usize),
    /// The outer side of this translator, at its own address and this port.
    Door(usize, u16),
}

/// All translators, and where nodes stand.
#[derive(Debug)]
pub(crate) struct Nats {
    nats: Vec<Nat>,
    /// Behind which translator each node stands, and its address.
    nodes: Vec<(Option<usize>, SocketAddr)>,
    /// By where they stand, the addresses of nodes and translators.
    addresses: BTreeMap<(Option<usize>, IpAddr), Next>,
    /// Frames not passed on.
    pub(crate) refused: BTreeMap<Refused, u64>,
}

/// Address of a node in the public network.
pub(crate) fn public(node: usize) -> SocketAddr {
    let [_, a, b, c] = (node as u32).to_be_bytes();
    SocketAddr::from(([10, a, b, c], PORT))
}

impl Nats {
    /// `behind` says for each node behind which translator it stands, if behind any. Numbers of
    /// translators that are not there, or don't come before the one that names them, say none.
    pub(crate) fn new(translators: &[Translator], behind: &[Option<u32>], seed: [u8; 32]) -> Nats {
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
            addresses.insert((outside, outer.into()), Next::Door(number, 0));
            let rules = Translator { behind: outside.map(|at| at as u32), ..*rules };
            Nat::new(rules, outer.into(), seeds.array())
        });
        let nats: Vec<Nat> = nats.collect();
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
            addresses.insert((number, at.ip()), Next::Node(node));
            (number, at)
        });
        let nodes = nodes.collect();
        Nats { nats, nodes, addresses, refused: BTreeMap::new() }
    }

    /// The endpoint that a node has where it stands.
    pub(crate) fn own(&self, node: usize) -> SocketAddr {
        self.nodes[node].1
    }

    fn at(&self, stands: Option<usize>, to: SocketAddr) -> Option<Next> {
        match *self.addresses.get(&(stands, to.ip()))? {
            Next::Node(node) => (to.port() == PORT).then_some(Next::Node(node)),
            Next::Door(number, _) => Some(Next::Door(number, to.port())),
        }
    }

    /// A node sends a frame; returns the source that it shows, and where it goes from there.
    pub(crate) fn leave(
        &mut self,
        now: Time,
        node: usize,
        to: SocketAddr,
    ) -> Result<(SocketAddr, Next), Refused> {
        let (mut stands, mut from) = self.nodes[node];
        for _ in 0..=NESTED_MAX {
            if let Some(next) = self.at(stands, to) {
                return Ok((from, next));
            }
            let number = stands.ok_or(Refused::Nobody)?;
            let nat = &mut self.nats[number];
            let to_itself = to.ip() == nat.outer;
            if to_itself && !nat.rules.hairpin {
                return Err(Refused::Hairpin);
            }
            from = nat.go_out(now, from, to)?;
            if to_itself {
                return Ok((from, Next::Door(number, to.port())));
            }
            stands = nat.rules.behind.map(|behind| behind as usize);
        }
        Err(Refused::Nobody)
    }

    /// The node that has the outer port of a translator now, whoever it lets in.
    pub(crate) fn owner(&self, now: Time, door: usize, port: u16) -> Option<usize> {
        let (mut door, mut port) = (door, port);
        for _ in 0..=NESTED_MAX {
            match self.at(Some(door), self.nats[door].owner(now, port)?)? {
                Next::Node(node) => return Some(node),
                Next::Door(inner, at) => (door, port) = (inner, at),
            }
        }
        None
    }

    /// A frame reaches the outer side of a translator; returns the node that gets it.
    pub(crate) fn enter(
        &mut self,
        now: Time,
        from: SocketAddr,
        door: usize,
        port: u16,
    ) -> Result<usize, Refused> {
        let (mut door, mut port) = (door, port);
        for _ in 0..=NESTED_MAX {
            let inner = self.nats[door].come_in(now, from, port)?;
            match self.at(Some(door), inner).ok_or(Refused::Nobody)? {
                Next::Node(node) => return Ok(node),
                Next::Door(inner, at) => (door, port) = (inner, at),
            }
        }
        Err(Refused::Nobody)
    }

    /// Counts frames that are not passed on.
    pub(crate) fn count(&mut self, why: Refused, frames: u64) {
        *self.refused.entry(why).or_default() += frames;
    }
}

#[cfg(test)]
mod tests;
