//! Which relays a circuit takes (docs/circuits.md).
//!
//! In: the routers of the network's list, the two hosts, what this host stays with. Out: relays in
//! their order, and what this network can't hide. Nothing is random but by the generator that is
//! lent.
//!
//! ```text
//! host -- own router -- relay 1 -- middles -- last relay -- their router -- host
//!         knows the host                                    knows the other host
//! ```
//!
//! **The site rule.** A host's own router always knows it. As relay 1 it adds nobody who does; but
//! relay 2 then learns the router, which stands for the host where few others live behind it. So
//! relay 1 is the own router of a site with many hosts, else a relay elsewhere that stays for
//! months (the guard); and likewise the last relay at the other side.
//!
//! Invariants: no router stands twice in a path; no two relays of a path, and none and one of the
//! two routers at its ends, are of one family, unless a warning says so.

mod kept;
mod search;

use core::fmt;
use std::collections::{BTreeMap, BTreeSet};

use shoal_crypto::Rng;
use shoal_wire::Address;

pub use kept::{Kept, KeptError};

/// Hosts that make a site large: its router tells nothing of one of them.
pub const SITE: u32 = 8;

/// A router of the list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Router {
    /// Whether circuits may lead through it.
    pub relay: bool,
    /// Who operates it. A router without a family is one of its own.
    pub family: Option<String>,
    /// What it can carry, in Mbit/s.
    pub capacity: Option<u32>,
    /// Hosts behind it.
    pub hosts: u32,
}

/// The routers of the network, by their addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Relays {
    routers: BTreeMap<Address, Router>,
}

impl Relays {
    /// The routers of a list. Addresses of hosts are left out.
    pub fn new(routers: impl IntoIterator<Item = (Address, Router)>) -> Relays {
        Relays { routers: routers.into_iter().filter(|(at, _)| at.is_router()).collect() }
    }

    /// Routers, whether they carry circuits or not.
    pub fn len(&self) -> usize {
        self.routers.len()
    }

    /// True when no router is known.
    pub fn is_empty(&self) -> bool {
        self.routers.is_empty()
    }

    /// Whether circuits may lead through `at`.
    pub fn is_relay(&self, at: Address) -> bool {
        self.routers.get(&at).is_some_and(|router| router.relay)
    }

    /// Those that carry circuits.
    pub fn relays(&self) -> impl Iterator<Item = Address> {
        self.routers.iter().filter(|(_, router)| router.relay).map(|(at, _)| *at)
    }

    /// Whether many hosts are behind `at`.
    fn is_large(&self, at: Address) -> bool {
        self.routers.get(&at).is_some_and(|router| router.hosts >= SITE)
    }

    /// Whether two routers are of one family.
    fn are_related(&self, a: Address, b: Address) -> bool {
        let family = |at: Address| self.routers.get(&at).and_then(|r| r.family.as_deref());
        a == b || family(a).is_some_and(|of_a| family(b) == Some(of_a))
    }

    /// How often each relay is to be taken: by its capacity, but none more often than two in as
    /// many as there are. One without a capacity counts as the smallest that is known.
    fn weights(&self) -> Vec<(Address, u64)> {
        let carrying = || self.routers.iter().filter(|(_, router)| router.relay);
        let least = carrying().filter_map(|(_, router)| router.capacity).min().unwrap_or(1);
        let weight = |router: &Router| u64::from(router.capacity.unwrap_or(least).max(1));
        let mut weights: Vec<_> = carrying().map(|(at, r)| (*at, weight(r))).collect();
        let limit = clip(weights.iter().map(|(_, weight)| *weight).collect());
        weights.iter_mut().for_each(|(_, weight)| *weight = (*weight).min(limit));
        weights
    }
}

/// The weight above which others must be cut so that none has more than 2/R of all that is left.
fn clip(mut weights: Vec<u64>) -> u64 {
    weights.sort_unstable_by(|a, b| b.cmp(a));
    let count = weights.len() as u64;
    let mut rest: u64 = weights.iter().sum();
    for (cut, weight) in (0..).zip(&weights) {
        // With the first `cut` at this limit, it is 2/R of all.
        let Some(others) = count.checked_sub(2 * cut).filter(|others| *others > 0) else { break };
        let limit = (2 * rest / others).max(1);
        if *weight <= limit {
            return limit;
        }
        rest -= weight;
    }
    weights.last().copied().unwrap_or(1).max(1)
}

/// A path that is wanted.
#[derive(Clone, Copy, Debug)]
pub struct Ask<'a> {
    /// This host.
    pub from: Address,
    /// The other host.
    pub to: Address,
    /// Relays, 1 to 5.
    pub relays: u8,
    /// The time, in seconds since 1970.
    pub unix_s: u64,
    /// Relays that failed lately: taken only where there are no others.
    pub failed: &'a BTreeSet<Address>,
    /// So many paths failed in a row that `failed` are left out even where the path gets shorter or
    /// breaks the site rule for it.
    pub is_pressed: bool,
    /// Relays of another circuit to that host, which had better not fail together with this one.
    pub beside: &'a [Address],
}

impl Ask<'_> {
    /// This host's router, and the other's.
    fn routers(&self) -> [Address; 2] {
        [Address::new(self.from.router, 0), Address::new(self.to.router, 0)]
    }
}

/// A path that was chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Path {
    /// The relays in their order, at least one.
    pub relays: Vec<Address>,
    /// What it does not hide.
    pub warnings: Vec<Warning>,
}

/// What a network, or a path, can't hide. Displayed in words for users.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Warning {
    /// So few routers, this many, that they can work out who speaks with whom.
    FewRouters(u8),
    /// Both hosts are behind one router.
    SameRouter,
    /// The path has one relay.
    OneRelay,
    /// The path has fewer relays than were asked for.
    Short {
        /// Relays that were asked for.
        asked: u8,
        /// Relays that it has.
        have: u8,
    },
    /// Two routers of the path are of one family.
    Families,
    /// Relay 1 is the router of this host's small site.
    SmallSiteHere,
    /// The last relay is the router of the other host's small site.
    SmallSiteThere,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Warning::FewRouters(1) => f.write_str("one router: nobody is hidden from it"),
            Warning::FewRouters(2) => f.write_str("two routers: nobody is hidden from them"),
            Warning::FewRouters(n) => {
                write!(f, "{n} routers with few hosts each: nobody is hidden from them")
            }
            Warning::SameRouter => f.write_str(
                "both hosts are behind one router, which sees what comes from one and what goes to \
                 the other at the same time",
            ),
            Warning::OneRelay => f.write_str("one relay: it knows both hosts"),
            Warning::Short { asked, have } => write!(
                f,
                "{have} of {asked} relays: the network's list has no more that fit (`shoal \
                 authority sign ROUTER --relay`)"
            ),
            Warning::Families => f.write_str(
                "families repeat: one operator runs two routers of the path, and may know both \
                 hosts",
            ),
            Warning::SmallSiteHere => f.write_str(
                "relay 1 is this host's own router with few hosts behind it: relay 2 can tell who \
                 begins",
            ),
            Warning::SmallSiteThere => f.write_str(
                "the last relay is the other host's own router with few hosts behind it: the relay \
                 before it can tell who is reached",
            ),
        }
    }
}

/// There is no relay that a circuit could lead through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoRelays;

impl fmt::Display for NoRelays {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "no router of the network's list is a relay: sign one with `shoal authority sign \
             ROUTER --relay`, or write relay = true into the hosts file",
        )
    }
}

impl std::error::Error for NoRelays {}

/// Chooses relays, and notes in `kept` those that this host stays with. The path is as long as was
/// asked for, or as can be. Where the rules can't all be kept they yield in this order: relays of
/// another circuit are spared, relays that failed, families differ, the site rule.
///
/// # Errors
///
/// There is no relay. `kept` may have lost what was too old.
pub fn choose(
    relays: &Relays,
    ask: &Ask<'_>,
    kept: &mut Kept,
    rng: &mut Rng,
) -> Result<Path, NoRelays> {
    kept.forget_old(ask.unix_s);
    let weights = relays.weights();
    if weights.is_empty() {
        return Err(NoRelays);
    }
    let most = usize::from(ask.relays.clamp(1, shoal_wire::leg::RELAYS_MAX)).min(weights.len());
    let usual = (1..=most).rev().flat_map(|len| search::RULES.map(|rules| (len, rules)));
    let pressed = usual.clone().filter(|_| ask.is_pressed);
    let pressed = pressed.map(|(len, rules)| (len, rules.without_failed()));
    for (len, rules) in pressed.chain(usual) {
        if let Some(path) = search::path(relays, ask, kept, &weights, rng, rules, len) {
            let warnings = warnings(relays, ask, &path);
            kept.note(relays, ask, &path, rng);
            return Ok(Path { relays: path, warnings });
        }
    }
    Err(NoRelays)
}

/// What a path does not hide.
fn warnings(relays: &Relays, ask: &Ask<'_>, path: &[Address]) -> Vec<Warning> {
    let mut all = Vec::new();
    let [here, there] = ask.routers();
    let is_small = |at: Address| !relays.is_large(at);
    let routers = relays.len();
    if routers <= 2 || (routers == 3 && (is_small(here) || is_small(there))) {
        all.push(Warning::FewRouters(routers as u8));
    }
    if here == there {
        all.push(Warning::SameRouter);
    }
    if path.len() == 1 {
        all.push(Warning::OneRelay);
    }
    if path.len() < usize::from(ask.relays) {
        all.push(Warning::Short { asked: ask.relays, have: path.len() as u8 });
    }
    let nodes: BTreeSet<Address> = path.iter().copied().chain([here, there]).collect();
    let mut pairs = nodes.iter().flat_map(|a| nodes.range(a..).skip(1).map(move |b| (*a, *b)));
    if pairs.any(|(a, b)| relays.are_related(a, b)) {
        all.push(Warning::Families);
    }
    if path.len() > 1 && path[0] == here && is_small(here) {
        all.push(Warning::SmallSiteHere);
    }
    if path.len() > 1 && path.last() == Some(&there) && is_small(there) {
        all.push(Warning::SmallSiteThere);
    }
    all
}

#[cfg(test)]
mod tests;
