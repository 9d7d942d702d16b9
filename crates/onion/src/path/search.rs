//! Looks for a path that keeps given rules.

use shoal_crypto::Rng;
use shoal_wire::Address;

use super::kept::Kept;
use super::{Ask, Routers};

/// Relays that are tried for one path at most, so that a list in which nothing fits costs little.
const STEPS: u32 = 2_000;

/// Which relays stand at the ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sites {
    /// As the site rule says.
    Kept,
    /// The own routers of small sites, too.
    OwnRouters,
    /// Any.
    Any,
}

/// Rules that a path must keep: which can be kept depends on the list alone.
#[derive(Clone, Copy)]
pub(super) struct Rules {
    sites: Sites,
    families: bool,
}

const fn rules(sites: Sites, families: bool) -> Rules {
    Rules { sites, families }
}

/// From the strictest on.
pub(super) const RULES: [Rules; 6] = [
    rules(Sites::Kept, true),
    rules(Sites::Kept, false),
    rules(Sites::OwnRouters, true),
    rules(Sites::OwnRouters, false),
    rules(Sites::Any, true),
    rules(Sites::Any, false),
];

/// What is left out among the paths that keep the same rules.
#[derive(Clone, Copy)]
pub(super) struct Sparing {
    /// Relays that failed are left out; else they come last.
    failed: bool,
    /// Those that may have failed are left out of the middle.
    doubtful: bool,
    /// Those of another circuit are left out of the middle.
    beside: bool,
    /// Ends may be drawn sooner than usual, since none that this host has fits.
    is_free: bool,
}

impl Sparing {
    /// Whether it leaves out anything that a later one does not.
    pub(super) fn counts(&self, ask: &Ask<'_>) -> bool {
        self.failed || !self.doubtful || !ask.doubtful.is_empty()
    }
}

const NOTHING: Sparing = Sparing { failed: false, doubtful: false, beside: false, is_free: false };

/// From the most that is left out on.
pub(super) const SPARINGS: [Sparing; 5] = [
    Sparing { failed: true, doubtful: true, beside: true, ..NOTHING },
    // Before the next: one that failed stands in the middle sooner than that an end moves.
    DOUBTFUL,
    Sparing { failed: true, ..NOTHING },
    NOTHING,
    LEAST,
];
/// Only those that may have failed are left out of the middle.
pub(super) const DOUBTFUL: Sparing = Sparing { doubtful: true, ..NOTHING };
/// The least that is left out.
pub(super) const LEAST: Sparing = Sparing { is_free: true, ..NOTHING };

struct Search<'a> {
    routers: &'a Routers,
    ask: &'a Ask<'a>,
    kept: &'a Kept,
    weights: &'a [(Address, u64)],
    rules: Rules,
    sparing: Sparing,
    path: Vec<Option<Address>>,
    steps: u32,
}

/// A path of `len` relays that keeps the rules, without what is to be spared, if there is one; with
/// a relay in the place that `fixed` says.
pub(super) fn path(
    routers: &Routers,
    ask: &Ask<'_>,
    (kept, weights): (&Kept, &[(Address, u64)]),
    rng: &mut Rng,
    (rules, sparing): (Rules, Sparing),
    len: usize,
    fixed: Option<(usize, Address)>,
) -> Option<Vec<Address>> {
    let mut path = vec![None; len];
    if let Some((slot, at)) = fixed {
        *path.get_mut(slot)? = Some(at);
    }
    let mut search = Search { routers, ask, kept, weights, rules, sparing, path, steps: STEPS };
    search.fill(rng, 0).then(|| search.path.into_iter().flatten().collect())
}

/// Relays in the order in which they are tried: those that this host stays with, others at random
/// by weight, those that are kept at the other end, and then those that failed, the oldest failure
/// first.
struct Candidates {
    kept: std::vec::IntoIter<Address>,
    rest: Vec<(Address, u64)>,
    last: std::vec::IntoIter<Address>,
}

impl Candidates {
    fn next(&mut self, rng: &mut Rng) -> Option<Address> {
        if let Some(kept) = self.kept.next() {
            self.rest.retain(|(at, _)| *at != kept);
            return Some(kept);
        }
        draw(&mut self.rest, rng).or_else(|| self.last.next())
    }
}

/// Takes one of `rest` at random by weight; none if it is empty.
pub(super) fn draw(rest: &mut Vec<(Address, u64)>, rng: &mut Rng) -> Option<Address> {
    let all = rest.iter().map(|(_, weight)| weight).sum();
    let mut drawn = rng.below(all);
    let at = rest.iter().position(|(_, weight)| {
        let is_here = drawn < *weight;
        drawn = drawn.saturating_sub(*weight);
        is_here
    });
    at.map(|at| rest.swap_remove(at).0)
}

impl Search<'_> {
    /// The place in the path that is filled as the `turn`th: both ends first.
    fn slot(&self, turn: usize) -> usize {
        match turn {
            0 => 0,
            1 => self.path.len() - 1,
            turn => turn - 1,
        }
    }

    /// Fills the places from `turn` on; false if that can't be.
    fn fill(&mut self, rng: &mut Rng, turn: usize) -> bool {
        if turn == self.path.len() {
            return true;
        }
        let slot = self.slot(turn);
        if self.path[slot].is_some() {
            return self.fill(rng, turn + 1);
        }
        let mut candidates = self.candidates(rng, slot);
        while let Some(next) = candidates.next(rng) {
            let Some(left) = self.steps.checked_sub(1) else { return false };
            self.steps = left;
            if !self.fits(slot, next) {
                continue;
            }
            self.path[slot] = Some(next);
            if self.fill(rng, turn + 1) {
                return true;
            }
            self.path[slot] = None;
        }
        false
    }

    fn candidates(&self, rng: &mut Rng, slot: usize) -> Candidates {
        let [here, there] = self.ask.routers();
        let Sparing { failed: spare_failed, is_free, .. } = self.sparing;
        let (is_first, is_last) = (slot == 0, slot + 1 == self.path.len());
        let (mut kept, mut may_draw) = match (is_first, is_last) {
            (true, _) => self.kept.firsts(self.routers, self.ask.unix_s, is_free),
            (false, true) => self.kept.lasts(self.routers, self.ask.unix_s, is_free),
            (false, false) => (self.kept.middles(rng), true),
        };
        let own = match (is_first, is_last) {
            (true, false) if self.is_end(here) => Some(here),
            (false, true) if self.is_end(there) => Some(there),
            _ => None,
        };
        if spare_failed && own.is_some() {
            // No failure elsewhere moves the end away from there.
            (kept, may_draw) = (Vec::new(), false);
        }
        let is_usable = |at: &Address| !self.ask.failed.contains(at) && self.fits(slot, *at);
        if self.sparing.doubtful && kept.iter().any(is_usable) {
            // Relays that may have failed in the middle move no end.
            may_draw = false;
        }
        let mut rest = if may_draw { self.weights.to_vec() } else { Vec::new() };
        let mut failed = self.ask.failed.to_vec();
        failed.retain(|at| kept.contains(at) || rest.iter().any(|(other, _)| other == at));
        kept.retain(|at| !failed.contains(at));
        rest.retain(|(at, _)| !failed.contains(at));
        // A relay that is drawn for one end and kept at the other would know both hosts.
        let [firsts, lasts] = self.kept.ends();
        let is_both =
            |at: &Address| (is_first && lasts.contains(at)) || (is_last && firsts.contains(at));
        let both = rest.extract_if(.., |(at, _)| is_both(at)).map(|(at, _)| at);
        let last: Vec<Address> = both.chain(failed).collect();
        let kept: Vec<Address> = own.into_iter().chain(kept).collect();
        Candidates { kept: kept.into_iter(), rest, last: last.into_iter() }
    }

    /// Whether the router of a site is to be the relay at that end.
    fn is_end(&self, router: Address) -> bool {
        let [here, there] = self.ask.routers();
        let is_wanted = match self.rules.sites {
            Sites::Kept => here != there && self.routers.is_large(router),
            Sites::OwnRouters => true,
            Sites::Any => false,
        };
        is_wanted && self.routers.is_relay(router)
    }

    /// Whether `at` may stand in this place.
    fn fits(&self, slot: usize, at: Address) -> bool {
        let Search { routers, ask, rules, sparing, .. } = self;
        let others = || self.path.iter().flatten().copied();
        if !routers.is_relay(at) || others().any(|other| other == at) {
            return false;
        }
        let [here, there] = ask.routers();
        let is_own = at == here || at == there;
        let is_last = slot + 1 == self.path.len();
        // The one relay of a path knows both hosts, wherever it is.
        if is_own && rules.sites != Sites::Any && self.path.len() > 1 {
            let first = slot == 0 && at == here && self.is_end(here);
            let last = is_last && at == there && self.is_end(there);
            if !(first || last) {
                return false;
            }
        }
        let is_related = |other: Address| other != at && routers.are_related(at, other);
        if rules.families && others().chain([here, there]).any(is_related) {
            return false;
        }
        let is_middle = slot > 0 && !is_last;
        // A host has no other way than over its own router.
        let is_spared = (sparing.failed && !is_own && ask.failed.contains(&at))
            || (sparing.doubtful && is_middle && ask.doubtful.contains(&at))
            || (sparing.beside && is_middle && ask.beside.contains(&at));
        !is_spared
    }
}
