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
//! **The site rule.** Relay 1 learns this host, so it should be a node that knows it anyway: its
//! own router. But relay 2 learns relay 1, and a router with few hosts behind it as good as names
//! the host. So relay 1 is the own router if [`SITE`] hosts or more are behind it, else a relay
//! elsewhere that stays for months (the guard). The last relay is chosen by the same rule at the
//! other host's side.
//!
//! **Failures.** Whoever can make set-ups fail must not choose the path by it. How long a path is
//! and which rules it keeps follow from the list and from what is asked for alone; relays that
//! failed are left out as far as a path of that kind is found without them. At the ends a host has
//! only the few relays that it stays with, and draws others slowly ([`Kept`]).
//!
//! Invariants: no router stands twice in a path; no two relays of a path, and none and one of the
//! two routers at its ends, are of one family, unless a warning says so; failures change neither a
//! path's length nor the rules that it keeps.

mod kept;
mod search;

use core::fmt;
use std::collections::{BTreeMap, BTreeSet};

use shoal_crypto::Rng;
use shoal_wire::{Address, Strategy};

pub use kept::{Built, Kept, KeptError};
use search::{DOUBTFUL, LEAST, RULES, Rules, SPARINGS};

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
    /// What it does with the cells of all circuits that it carries, if it does not do with each
    /// what its origin names.
    pub mix: Option<Strategy>,
}

/// The routers of the network, by their addresses: relays and others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Routers {
    routers: BTreeMap<Address, Router>,
}

impl Routers {
    /// The routers of a list. Addresses of hosts are left out.
    pub fn new(routers: impl IntoIterator<Item = (Address, Router)>) -> Routers {
        Routers { routers: routers.into_iter().filter(|(at, _)| at.is_router()).collect() }
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

    /// What the relay at `at` does with the cells of all circuits, if it has a strategy of its own.
    pub fn mix(&self, at: Address) -> Option<Strategy> {
        self.routers.get(&at)?.mix
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

    /// How often each relay is to be taken: in proportion to its capacity, but with a probability
    /// of at most 2/R, where R is the number of relays in the list. One without a capacity counts
    /// as the smallest that is known.
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
    /// Relays that failed lately, each once, the oldest failure first. They are taken in this order
    /// where no path of the same kind does without. The two hosts' own routers at their ends are
    /// taken all the same: there is no other way to the hosts.
    pub failed: &'a [Address],
    /// Relays that are better not in the middle where others fit: those of another circuit to that
    /// host, which had better not fail together with this one.
    pub beside: &'a [Address],
    /// Those that may have failed. In the middle one that failed is tried before them: it may be
    /// back, and if a set-up gets further over it, it is known who is at fault.
    pub doubtful: &'a [Address],
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
    /// The path has two relays.
    TwoRelays,
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
    /// The network offers mixes, and all add more delay than this host allows.
    Unmixed,
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
            Warning::TwoRelays => f.write_str(
                "two relays, of which each knows one host and the other relay: if they work \
                 together they know both hosts at once, where with three they would have to \
                 compare times",
            ),
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
            Warning::Unmixed => f.write_str(
                "when cells pass: all mixes of the network's list add more than max_added_ms in \
                 [circuits], so relays pass them on at once",
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

/// Chooses relays. The path is as long as was asked for, or as can be. Where the list does not let
/// it keep all rules they yield in this order: families differ, the site rule. Only then, within
/// that length and those rules, relays that failed and those of another circuit are spared.
///
/// `kept` notes which relays were drawn for the ends, so that only few are ever tried; this host
/// stays with those over which a circuit was built ([`Kept::note_built`]).
///
/// # Errors
///
/// There is no relay.
pub fn choose(
    routers: &Routers,
    ask: &Ask<'_>,
    kept: &mut Kept,
    rng: &mut Rng,
) -> Result<Path, NoRelays> {
    kept.forget_drawn(routers, ask.unix_s);
    let weights = routers.weights();
    if weights.is_empty() {
        return Err(NoRelays);
    }
    for (len, rules) in kinds(ask, weights.len()) {
        let found = SPARINGS.iter().filter(|sparing| sparing.counts(ask)).find_map(|sparing| {
            search::path(routers, ask, (kept, &weights), rng, (rules, *sparing), len, None)
        });
        if let Some(path) = found {
            let warnings = warnings(routers, ask, &path);
            kept.note_drawn(ask, &path);
            return Ok(Path { relays: path, warnings });
        }
    }
    Err(NoRelays)
}

/// Lengths of paths among `relays` relays, and rules, the best first.
fn kinds(ask: &Ask<'_>, relays: usize) -> impl Iterator<Item = (usize, Rules)> {
    let most = usize::from(ask.relays.clamp(1, shoal_wire::leg::RELAYS_MAX)).min(relays);
    (1..=most).rev().flat_map(|len| RULES.map(|rules| (len, rules)))
}

/// True if `end` is no guard or last relay, or if a path as good as others leads over it at that
/// end and past all relays in `ask.doubtful`.
pub(crate) fn leads_past(
    routers: &Routers,
    ask: &Ask<'_>,
    kept: &Kept,
    rng: &mut Rng,
    end: Address,
) -> bool {
    let weights = routers.weights();
    let mut search = |(len, rules), sparing, fixed| {
        search::path(routers, ask, (kept, &weights), rng, (rules, sparing), len, fixed).is_some()
    };
    let best = kinds(ask, weights.len()).find(|kind| search(*kind, LEAST, None));
    let Some((len, rules)) = best else { return true };
    let ends = kept.ends().into_iter().zip([0, len - 1]);
    let slots: Vec<usize> = ends.filter(|(all, _)| all.contains(&end)).map(|(_, n)| n).collect();
    slots.is_empty() || slots.into_iter().any(|n| search((len, rules), DOUBTFUL, Some((n, end))))
}

/// What a path does not hide.
pub(crate) fn warnings(routers: &Routers, ask: &Ask<'_>, path: &[Address]) -> Vec<Warning> {
    let mut all = Vec::new();
    let [here, there] = ask.routers();
    let is_small = |at: Address| !routers.is_large(at);
    let count = routers.len();
    if count <= 2 || (count == 3 && (is_small(here) || is_small(there))) {
        all.push(Warning::FewRouters(count as u8));
    }
    if here == there {
        all.push(Warning::SameRouter);
    }
    match path.len() {
        1 => all.push(Warning::OneRelay),
        // Of two routers it is said that nobody is hidden from them.
        2 if count > 2 => all.push(Warning::TwoRelays),
        _ => {}
    }
    if path.len() < usize::from(ask.relays) {
        all.push(Warning::Short { asked: ask.relays, have: path.len() as u8 });
    }
    let nodes: BTreeSet<Address> = path.iter().copied().chain([here, there]).collect();
    let mut pairs = nodes.iter().flat_map(|a| nodes.range(a..).skip(1).map(move |b| (*a, *b)));
    if pairs.any(|(a, b)| routers.are_related(a, b)) {
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
