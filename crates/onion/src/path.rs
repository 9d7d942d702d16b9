//! Choice of a circuit's relays (docs/design/circuits.md).
//!
//! Input is the routers of the network's list, the two hosts, and the relays that this host stays
//! with. Output is the relays in order, and warnings about what the path does not hide. All
//! randomness comes from the caller's generator.
//!
//! ```text
//! host -- own router -- relay 1 -- middles -- last relay -- their router -- host
//!         knows the host                                    knows the other host
//! ```
//!
//! **The site rule.** Relay 1 learns this host, so it should be a node that knows it anyway: the
//! host's own router. But relay 2 learns relay 1, and a router with few hosts almost reveals the
//! host. Relay 1 is therefore the own router if it has at least [`SITE`] hosts. Otherwise it is a
//! relay elsewhere that stays for months (the guard). The last relay is chosen by an equal rule at
//! the other host's side.
//!
//! **Failures.** An attacker who can make set-ups fail must not be able to steer the path. A path's
//! length and the rules that it keeps therefore follow only from the list and the request. Relays
//! that failed are left out if a path of that kind exists without them. At the ends of its paths a
//! host keeps to a few relays, and draws new ones slowly ([`Vanguards`]).
//!
//! Invariants: no router is in a path twice. No two relays of a path, and no relay and end router,
//! are of one family, unless a warning says so. If no path keeps that, the relays of a path still
//! differ among themselves, where the list allows it. Failures change neither a path's length nor
//! the rules that it keeps.

mod kept;
mod needs;
mod search;

use core::fmt;
use std::collections::BTreeMap;

use shoal_crypto::Rng;
use shoal_wire::{Address, MixStrategy};

pub use kept::{BuiltCircuit, Vanguards, VanguardsError};
pub use needs::{RelayCount, RelayNeeds};
use search::{DOUBTFUL, LEAST, PathRules, RULES, SPARINGS};

/// Number of hosts that makes a site large, so that its router does not reveal which host is meant.
pub const SITE: u32 = 8;

/// A router of the list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListedRouter {
    /// True if circuits may lead through it.
    pub relay: bool,
    /// Operator of the router. A router without a family counts as a family of its own.
    pub family: Option<String>,
    /// Capacity in Mbit/s.
    pub capacity: Option<u32>,
    /// Number of hosts behind it.
    pub hosts: u32,
    /// Mix strategy that the router uses for the cells of all circuits. None if it uses the one
    /// that each circuit's origin names.
    pub mix: Option<MixStrategy>,
}

/// The network's routers by address, relays or not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RouterList {
    routers: BTreeMap<Address, ListedRouter>,
}

impl RouterList {
    /// The routers of a list. Addresses of hosts are left out.
    pub fn new(routers: impl IntoIterator<Item = (Address, ListedRouter)>) -> RouterList {
        RouterList { routers: routers.into_iter().filter(|(at, _)| at.is_router()).collect() }
    }

    /// Number of routers, relays or not.
    pub fn len(&self) -> usize {
        self.routers.len()
    }

    /// True if no router is known.
    pub fn is_empty(&self) -> bool {
        self.routers.is_empty()
    }

    /// True if circuits may lead through `at`.
    pub fn is_relay(&self, at: Address) -> bool {
        self.routers.get(&at).is_some_and(|router| router.relay)
    }

    /// Own strategy of the relay at `at`, if it has one.
    pub fn mix(&self, at: Address) -> Option<MixStrategy> {
        self.routers.get(&at)?.mix
    }

    /// Routers that carry circuits.
    pub fn relays(&self) -> impl Iterator<Item = Address> {
        self.routers.iter().filter(|(_, router)| router.relay).map(|(at, _)| *at)
    }

    /// True if many hosts are behind `at`.
    fn is_large(&self, at: Address) -> bool {
        self.routers.get(&at).is_some_and(|router| router.hosts >= SITE)
    }

    /// True if two routers are of one family.
    fn are_related(&self, a: Address, b: Address) -> bool {
        let family = |at: Address| self.routers.get(&at).and_then(|r| r.family.as_deref());
        a == b || family(a).is_some_and(|of_a| family(b) == Some(of_a))
    }

    /// Weight of each relay, proportional to its capacity. No relay has a probability above 2/R,
    /// where R is the number of relays in the list. A relay without a capacity counts as the
    /// smallest known one.
    fn weights(&self) -> Vec<(Address, u64)> {
        let carrying = || self.routers.iter().filter(|(_, router)| router.relay);
        let least = carrying().filter_map(|(_, router)| router.capacity).min().unwrap_or(1);
        let weight = |router: &ListedRouter| u64::from(router.capacity.unwrap_or(least).max(1));
        let mut weights: Vec<_> = carrying().map(|(at, r)| (*at, weight(r))).collect();
        let limit = clip(weights.iter().map(|(_, weight)| *weight).collect());
        weights.iter_mut().for_each(|(_, weight)| *weight = (*weight).min(limit));
        weights
    }
}

/// The maximum weight of a relay. With larger ones cut to it, none has more than 2/R of the sum of
/// all R weights.
fn clip(mut weights: Vec<u64>) -> u64 {
    weights.sort_unstable_by(|a, b| b.cmp(a));
    let count = weights.len() as u64;
    let mut rest: u64 = weights.iter().sum();
    for (cut, weight) in (0..).zip(&weights) {
        // This limit is 2/R of the sum in which the first `cut` weights are cut to it.
        let Some(others) = count.checked_sub(2 * cut).filter(|others| *others > 0) else { break };
        let limit = (2 * rest / others).max(1);
        if *weight <= limit {
            return limit;
        }
        rest -= weight;
    }
    weights.last().copied().unwrap_or(1).max(1)
}

/// A request for a path.
#[derive(Clone, Copy, Debug)]
pub struct PathRequest<'a> {
    /// This host.
    pub from: Address,
    /// The other host.
    pub to: Address,
    /// Number of relays, 1 to 5.
    pub relays: u8,
    /// The time, in seconds since 1970.
    pub unix_s: u64,
    /// Relays that failed lately, each once, the oldest failure first. They are used in this order
    /// if no path of that kind exists without them. The two hosts' own routers may still be at the
    /// ends, since there is no other path to the hosts.
    pub failed: &'a [Address],
    /// Relays to avoid in the middle if others fit: those of another circuit to that host, which
    /// should not fail together with this one.
    pub beside: &'a [Address],
    /// Relays that may have failed. In the middle of a path, a relay that did fail is tried before
    /// them, since it may work again. If the set-up then gets further, one of these was at fault.
    pub doubtful: &'a [Address],
    /// Routers of the two hosts, of which each host may have two. Those of `from` and `to` may be
    /// the relays at their ends; the others are no relays of the path. A relay of one of their
    /// families is used only if the rules for families are relaxed.
    pub also: &'a [Address],
}

impl PathRequest<'_> {
    /// The routers of this host and of the other.
    fn routers(&self) -> [Address; 2] {
        [Address::new(self.from.router, 0), Address::new(self.to.router, 0)]
    }
}

/// A chosen path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RelayPath {
    /// The relays in their order, at least one.
    pub relays: Vec<Address>,
    /// Warnings about what it does not hide.
    pub warnings: Vec<PathWarning>,
}

/// Warning: what a network or path can't hide. `Display` gives text for users.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PathWarning {
    /// This number of routers is so small that they can work out which hosts speak with each other.
    FewRouters(u8),
    /// Both hosts are behind one router.
    SameRouter,
    /// The path has one relay.
    OneRelay,
    /// The path has two relays.
    TwoRelays,
    /// The path has fewer relays than were asked for.
    Short {
        /// Number of relays that were asked for.
        asked: u8,
        /// Number of relays in the path.
        have: u8,
    },
    /// Two routers of one family are on both sides: one is next to this host or is relay 1, the
    /// other is next to the other host or is the last relay.
    Families,
    /// Relay 1 is the router of this host's small site.
    SmallSiteHere,
    /// The last relay is the router of the other host's small site.
    SmallSiteThere,
    /// The network offers mixes, but all add more delay than this host allows.
    Unmixed,
}

impl fmt::Display for PathWarning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PathWarning::FewRouters(1) => f.write_str("one router: nobody is hidden from it"),
            PathWarning::FewRouters(2) => f.write_str("two routers: nobody is hidden from them"),
            PathWarning::FewRouters(n) => {
                write!(f, "{n} routers with few hosts each: nobody is hidden from them")
            }
            PathWarning::SameRouter => f.write_str(
                "both hosts are behind one router, which sees the traffic of both ends at once",
            ),
            PathWarning::OneRelay => f.write_str("one relay: it knows both hosts"),
            PathWarning::TwoRelays => f.write_str(
                "two relays: together they know both hosts, while three relays would also have to \
                 compare the times of cells",
            ),
            PathWarning::Short { asked, have } => write!(
                f,
                "{have} of {asked} relays: the network's list has no more that fit (sign one with \
                 `shoal authority sign --dir DIR ROUTER --relay`)"
            ),
            PathWarning::Families => f.write_str(
                "one operator (family) runs routers near both hosts, and may learn both",
            ),
            PathWarning::SmallSiteHere => f.write_str(
                "relay 1 is this host's own router with few hosts behind it: relay 2 can tell who \
                 begins",
            ),
            PathWarning::SmallSiteThere => f.write_str(
                "the last relay is the other host's own router with few hosts behind it: the relay \
                 before it can tell who is reached",
            ),
            PathWarning::Unmixed => f.write_str(
                "the times of cells: each mix of the network's list adds more delay than \
                 max_added_ms in [circuits] allows, so relays forward cells at once",
            ),
        }
    }
}

/// Error: no relay exists for a circuit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoRelays;

impl fmt::Display for NoRelays {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "no router of the network's list is a relay: sign one with `shoal authority sign \
             --dir DIR ROUTER --relay`, or write relay = true into the hosts file",
        )
    }
}

impl std::error::Error for NoRelays {}

/// Chooses relays. The path has the requested length, or the longest possible one. If the list has
/// no path that keeps all rules, they are dropped in this order: different families, then the site
/// rule. Failed relays, and those of another circuit, are left out only if a path of that length
/// and with those rules exists without them.
///
/// `kept` records the relays drawn for the ends, so that only few are ever tried. This host stays
/// with those over which a circuit was built ([`Vanguards::note_built`]).
///
/// # Errors
///
/// The list has no relay.
pub fn choose(
    routers: &RouterList,
    ask: &PathRequest<'_>,
    kept: &mut Vanguards,
    rng: &mut Rng,
) -> Result<RelayPath, NoRelays> {
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
            return Ok(RelayPath { relays: path, warnings });
        }
    }
    Err(NoRelays)
}

/// Lengths of paths and rules for `relays` relays, the best first.
fn kinds(ask: &PathRequest<'_>, relays: usize) -> impl Iterator<Item = (usize, PathRules)> {
    let most = usize::from(ask.relays.clamp(1, shoal_wire::leg::RELAYS_MAX)).min(relays);
    (1..=most).rev().flat_map(|len| RULES.map(|rules| (len, rules)))
}

/// True if `end` is no guard or last relay. Also true if an equally good path uses it at its end
/// and avoids all relays in `ask.doubtful`.
pub(crate) fn leads_past(
    routers: &RouterList,
    ask: &PathRequest<'_>,
    kept: &Vanguards,
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

/// Warnings about what a path does not hide.
pub(crate) fn warnings(
    routers: &RouterList,
    ask: &PathRequest<'_>,
    path: &[Address],
) -> Vec<PathWarning> {
    let mut all = Vec::new();
    let [here, there] = ask.routers();
    let is_small = |at: Address| !routers.is_large(at);
    let count = routers.len();
    if count <= 2 || (count == 3 && (is_small(here) || is_small(there))) {
        all.push(PathWarning::FewRouters(count as u8));
    }
    if here == there {
        all.push(PathWarning::SameRouter);
    }
    match path.len() {
        1 => all.push(PathWarning::OneRelay),
        // With two routers, the first warning already says that nobody is hidden from them.
        2 if count > 2 => all.push(PathWarning::TwoRelays),
        _ => {}
    }
    if path.len() < usize::from(ask.relays) {
        all.push(PathWarning::Short { asked: ask.relays, have: path.len() as u8 });
    }
    let ends = [path.first().copied(), path.last().copied()];
    let [near, far] = [here, there].map(Some);
    let sides = [[near, ends[0]], [far, ends[1]]].map(|side| side.into_iter().flatten());
    let [near, far] = sides;
    let is_related = |a: Address, b: Address| a != b && routers.are_related(a, b);
    let meets = near.clone().any(|a| far.clone().any(|b| is_related(a, b)));
    // Second routers of both hosts.
    let also = || ask.also.iter().filter(|own| **own != here && **own != there);
    let is_own = |at: Address| also().any(|own| is_related(*own, at));
    if meets || ends.into_iter().flatten().any(is_own) {
        all.push(PathWarning::Families);
    }
    if path.len() > 1 && path[0] == here && is_small(here) {
        all.push(PathWarning::SmallSiteHere);
    }
    if path.len() > 1 && path.last() == Some(&there) && is_small(there) {
        all.push(PathWarning::SmallSiteThere);
    }
    all
}

#[cfg(test)]
mod tests;
