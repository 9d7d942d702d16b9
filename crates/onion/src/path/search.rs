//! Looks for a path that keeps given rules.

use shoal_crypto::Rng;
use shoal_wire::Address;

use super::kept::Kept;
use super::{Ask, Relays};

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

/// Rules that a path must keep.
#[derive(Clone, Copy)]
pub(super) struct Rules {
    sites: Sites,
    families: bool,
    /// Relays that failed are left out.
    failed: bool,
    /// So are those of another circuit.
    beside: bool,
}

impl Rules {
    /// These rules, with relays that failed left out.
    pub(super) fn without_failed(self) -> Rules {
        Rules { failed: true, ..self }
    }
}

const fn rules(sites: Sites, families: bool, failed: bool, beside: bool) -> Rules {
    Rules { sites, families, failed, beside }
}

/// From the strictest on.
pub(super) const RULES: [Rules; 8] = [
    rules(Sites::Kept, true, true, true),
    rules(Sites::Kept, true, true, false),
    rules(Sites::Kept, true, false, false),
    rules(Sites::Kept, false, false, false),
    rules(Sites::OwnRouters, true, false, false),
    rules(Sites::OwnRouters, false, false, false),
    rules(Sites::Any, true, false, false),
    rules(Sites::Any, false, false, false),
];

struct Search<'a> {
    relays: &'a Relays,
    ask: &'a Ask<'a>,
    kept: &'a Kept,
    weights: &'a [(Address, u64)],
    rules: Rules,
    path: Vec<Option<Address>>,
    steps: u32,
}

/// A path of `len` relays that keeps `rules`, if one is found.
pub(super) fn path(
    relays: &Relays,
    ask: &Ask<'_>,
    kept: &Kept,
    weights: &[(Address, u64)],
    rng: &mut Rng,
    rules: Rules,
    len: usize,
) -> Option<Vec<Address>> {
    let path = vec![None; len];
    let mut search = Search { relays, ask, kept, weights, rules, path, steps: STEPS };
    search.fill(rng, 0).then(|| search.path.into_iter().flatten().collect())
}

/// Relays in the order in which they are tried: those that this host stays with, then others at
/// random by weight.
struct Candidates {
    kept: std::vec::IntoIter<Address>,
    rest: Vec<(Address, u64)>,
}

impl Candidates {
    fn next(&mut self, rng: &mut Rng) -> Option<Address> {
        if let Some(kept) = self.kept.next() {
            self.rest.retain(|(at, _)| *at != kept);
            return Some(kept);
        }
        draw(&mut self.rest, rng)
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
        let is_first = slot == 0;
        let is_last = slot + 1 == self.path.len();
        let own = |at: Address| vec![at];
        let kept = match (is_first, is_last) {
            (true, true) => self.kept.guards(),
            (true, false) if self.is_end(here) => own(here),
            (true, false) => self.kept.guards(),
            (false, true) if self.is_end(there) => own(there),
            (false, true) => self.kept.lasts(),
            (false, false) => {
                let mut middles = self.kept.middles();
                for at in (1..middles.len()).rev() {
                    middles.swap(at, rng.below(at as u64 + 1) as usize);
                }
                middles
            }
        };
        Candidates { kept: kept.into_iter(), rest: self.weights.to_vec() }
    }

    /// Whether the router of a site is to be the relay at that end.
    fn is_end(&self, router: Address) -> bool {
        let [here, there] = self.ask.routers();
        let is_wanted = match self.rules.sites {
            Sites::Kept => here != there && self.relays.is_large(router),
            Sites::OwnRouters => true,
            Sites::Any => false,
        };
        is_wanted && self.relays.is_relay(router)
    }

    /// Whether `at` may stand in this place.
    fn fits(&self, slot: usize, at: Address) -> bool {
        let Search { relays, ask, rules, .. } = self;
        let others = || self.path.iter().flatten().copied();
        if !relays.is_relay(at) || others().any(|other| other == at) {
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
        let is_related = |other: Address| other != at && relays.are_related(at, other);
        if rules.families && others().chain([here, there]).any(is_related) {
            return false;
        }
        let is_middle = slot > 0 && !is_last;
        // A host has no other way than over its own router.
        let is_spared = (rules.failed && !is_own && ask.failed.contains(&at))
            || (rules.beside && is_middle && ask.beside.contains(&at));
        !is_spared
    }
}
