//! Search for a path that keeps given rules.

use shoal_crypto::Rng;
use shoal_wire::Address;

use super::kept::Vanguards;
use super::{PathRequest, RouterList};

/// Most relays tried for one path, so that a list without a fitting path costs little.
const STEPS: u32 = 2_000;

/// Rule for the relays at the ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum EndRule {
    /// The site rule holds.
    Kept,
    /// The own routers of small sites are allowed too.
    OwnRouters,
    /// Any relay is allowed.
    Any,
}

/// Rule for the operators of the relays.
#[derive(Clone, Copy, PartialEq, Eq)]
enum FamilyRule {
    /// No two of the relays and end routers are of one family.
    Path,
    /// No family is on both sides: among the routers and the relay next to one host, and among
    /// those next to the other.
    Sides,
    /// Families don't matter.
    Any,
}

/// Rules that a path must keep. The list alone decides which rules can be kept.
#[derive(Clone, Copy)]
pub(super) struct PathRules {
    sites: EndRule,
    families: FamilyRule,
}

const fn rules(sites: EndRule, families: FamilyRule) -> PathRules {
    PathRules { sites, families }
}

/// Sets of rules, from the strictest on.
pub(super) const RULES: [PathRules; 9] = [
    rules(EndRule::Kept, FamilyRule::Path),
    rules(EndRule::Kept, FamilyRule::Sides),
    rules(EndRule::Kept, FamilyRule::Any),
    rules(EndRule::OwnRouters, FamilyRule::Path),
    rules(EndRule::OwnRouters, FamilyRule::Sides),
    rules(EndRule::OwnRouters, FamilyRule::Any),
    rules(EndRule::Any, FamilyRule::Path),
    rules(EndRule::Any, FamilyRule::Sides),
    rules(EndRule::Any, FamilyRule::Any),
];

/// Relays to leave out, among the paths that keep equal rules.
#[derive(Clone, Copy)]
pub(super) struct RelayExclusion {
    /// True if failed relays are left out; otherwise they are tried last.
    failed: bool,
    /// True if relays that may have failed are left out of the middle.
    doubtful: bool,
    /// True if relays of another circuit are left out of the middle.
    beside: bool,
    /// True if ends may be drawn sooner than usual, since none of this host's ends fits.
    is_free: bool,
}

impl RelayExclusion {
    /// True if it leaves out relays that a later set does not.
    pub(super) fn counts(&self, ask: &PathRequest<'_>) -> bool {
        self.failed || !self.doubtful || !ask.doubtful.is_empty()
    }
}

const NOTHING: RelayExclusion =
    RelayExclusion { failed: false, doubtful: false, beside: false, is_free: false };

/// Sets in the order in which they are tried, beginning with the largest.
pub(super) const SPARINGS: [RelayExclusion; 5] = [
    RelayExclusion { failed: true, doubtful: true, beside: true, ..NOTHING },
    // This comes before the next: a relay that failed is used in the middle before an end changes.
    DOUBTFUL,
    RelayExclusion { failed: true, ..NOTHING },
    NOTHING,
    LEAST,
];
/// Only relays that may have failed are left out of the middle.
pub(super) const DOUBTFUL: RelayExclusion = RelayExclusion { doubtful: true, ..NOTHING };
/// The smallest set.
pub(super) const LEAST: RelayExclusion = RelayExclusion { is_free: true, ..NOTHING };

struct Search<'a> {
    routers: &'a RouterList,
    ask: &'a PathRequest<'a>,
    kept: &'a Vanguards,
    weights: &'a [(Address, u64)],
    rules: PathRules,
    sparing: RelayExclusion,
    path: Vec<Option<Address>>,
    steps: u32,
}

/// A path of `len` relays that keeps the rules and leaves out the relays of `sparing`, if one
/// exists. `fixed` is a relay with its position.
pub(super) fn path(
    routers: &RouterList,
    ask: &PathRequest<'_>,
    (kept, weights): (&Vanguards, &[(Address, u64)]),
    rng: &mut Rng,
    (rules, sparing): (PathRules, RelayExclusion),
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

/// Relays in the order in which they are tried. First come those that this host stays with, then
/// others at random by weight. Then come those kept at the other end, and last the failed ones, the
/// oldest failure first.
struct RelayCandidates {
    kept: std::vec::IntoIter<Address>,
    rest: Vec<(Address, u64)>,
    last: std::vec::IntoIter<Address>,
}

impl RelayCandidates {
    fn next(&mut self, rng: &mut Rng) -> Option<Address> {
        if let Some(kept) = self.kept.next() {
            self.rest.retain(|(at, _)| *at != kept);
            return Some(kept);
        }
        draw(&mut self.rest, rng).or_else(|| self.last.next())
    }
}

/// Removes one of `rest` at random by weight; none if it is empty.
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
    /// The position that is filled in step `turn`: both ends first.
    fn slot(&self, turn: usize) -> usize {
        match turn {
            0 => 0,
            1 => self.path.len() - 1,
            turn => turn - 1,
        }
    }

    /// Fills the positions from step `turn` on. Returns false if that is impossible.
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

    fn candidates(&self, rng: &mut Rng, slot: usize) -> RelayCandidates {
        let [here, there] = self.ask.routers();
        let RelayExclusion { failed: spare_failed, is_free, .. } = self.sparing;
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
            // No failure elsewhere moves the end away from the own router.
            (kept, may_draw) = (Vec::new(), false);
        }
        let is_usable = |at: &Address| !self.ask.failed.contains(at) && self.fits(slot, *at);
        if self.sparing.doubtful && kept.iter().any(is_usable) {
            // Relays in the middle that may have failed can't change an end.
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
        RelayCandidates { kept: kept.into_iter(), rest, last: last.into_iter() }
    }

    /// True if a site's router should be the relay at its end.
    fn is_end(&self, router: Address) -> bool {
        let [here, there] = self.ask.routers();
        let is_wanted = match self.rules.sites {
            EndRule::Kept => here != there && self.routers.is_large(router),
            EndRule::OwnRouters => true,
            EndRule::Any => false,
        };
        is_wanted && self.routers.is_relay(router)
    }

    /// Routers that learn the host at the other side from the relay at this position; none for a
    /// middle. Second routers of both hosts count, whoever's they are.
    fn opposite(&self, slot: usize) -> impl Iterator<Item = Address> {
        let [here, there] = self.ask.routers();
        let last = self.path.len() - 1;
        let of = |end: usize, router: Address| [self.path[end], Some(router)];
        let near = if slot == 0 { of(last, there) } else { [None, None] };
        let far = if slot == last { of(0, here) } else { [None, None] };
        let is_end = slot == 0 || slot == last;
        let seconds = self.ask.also.iter().copied();
        let also = seconds.filter(move |at| is_end && *at != here && *at != there);
        near.into_iter().chain(far).flatten().chain(also)
    }

    /// True if `at` may have this position.
    fn fits(&self, slot: usize, at: Address) -> bool {
        let Search { routers, ask, rules, sparing, .. } = self;
        let others = || self.path.iter().flatten().copied();
        if !routers.is_relay(at) || others().any(|other| other == at) {
            return false;
        }
        let [here, there] = ask.routers();
        let is_own = at == here || at == there;
        let is_last = slot + 1 == self.path.len();
        let is_other = !is_own && ask.also.contains(&at);
        if is_other && rules.sites != EndRule::Any && self.path.len() > 1 {
            return false;
        }
        // The only relay of a path knows both hosts, wherever it is.
        if is_own && rules.sites != EndRule::Any && self.path.len() > 1 {
            let first = slot == 0 && at == here && self.is_end(here);
            let last = is_last && at == there && self.is_end(there);
            if !(first || last) {
                return false;
            }
        }
        let is_related = |other: Address| other != at && routers.are_related(at, other);
        let own = [here, there].into_iter().chain(ask.also.iter().copied());
        let is_doubled = match rules.families {
            FamilyRule::Path => others().chain(own).any(is_related),
            FamilyRule::Sides => self.opposite(slot).any(is_related),
            FamilyRule::Any => false,
        };
        if is_doubled {
            return false;
        }
        let is_middle = slot > 0 && !is_last;
        // A host can reach others only through its own router.
        let is_spared = (sparing.failed && !is_own && ask.failed.contains(&at))
            || (sparing.doubtful && is_middle && ask.doubtful.contains(&at))
            || (sparing.beside && is_middle && ask.beside.contains(&at));
        !is_spared
    }
}
