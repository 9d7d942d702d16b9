//! Relays that a host stays with, for weeks and months.
//!
//! ```text
//! guard 3.0 1800000000      relay 1 for a host of a small site, and until when
//! last 5.0 1800000000       the last relay towards hosts of small sites
//! middle 4.0 1790000000
//! ```
//!
//! A host that draws new relays for each circuit will some day draw two that collude. A host that
//! stays with few is as safe on every day as on the first.
//!
//! **How an end is drawn.** A relay that is drawn for an end is on trial until a circuit was built
//! over it. Then it is kept to the end of its time, and no other displaces it. Failures can make
//! the host draw others, but slowly: at most [`DRAWS_MAX`] besides the first in [`DRAWS_S`], and at
//! most [`EACH_MAX`] at once. Relays that have left the list don't count.
//!
//! **The clock.** A relay's time ends only when a circuit is built. If the host's clock is wrong,
//! the first relay refuses its set-ups, so that nothing is forgotten.

use core::fmt;
use core::fmt::Write;

use shoal_crypto::Rng;
use shoal_wire::Address;

use super::{PathRequest, RouterList};

const DAY_S: u64 = 86_400;
/// Time for which a relay stays at an end of this host's circuits.
const END_S: u64 = 120 * DAY_S;
/// Shortest and longest time for which a relay stays in the middle.
const MIDDLE_S: (u64, u64) = (DAY_S, 12 * DAY_S);
/// Most relays of each kind. One is enough unless it fails, or does not fit a destination.
const EACH_MAX: usize = 4;
/// Most ends of one kind that are drawn besides the first, and the time for which they count.
const DRAWS_MAX: usize = 2;
const DRAWS_S: u64 = 30 * DAY_S;
/// Time for which a relay without a built circuit is on trial.
const TRIAL_S: u64 = DAY_S;
/// Longest text in bytes: 12 lines.
const TEXT_MAX: usize = 1_024;

/// A relay, and the time until which this host stays with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RelayStay {
    at: Address,
    until_s: u64,
}

/// Relays at one end of circuits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct EndRelays {
    /// Relays over which circuits were built.
    kept: Vec<RelayStay>,
    /// Relays on trial. They are not written to the file.
    drawn: Vec<RelayStay>,
}

/// Relays that a host stays with. They reveal where its circuits begin, so other nodes must not
/// read their text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Vanguards {
    guards: EndRelays,
    lasts: EndRelays,
    middles: Vec<RelayStay>,
}

/// A circuit with all its hops.
#[derive(Clone, Copy, Debug)]
pub struct BuiltCircuit<'a> {
    /// The origin host.
    pub from: Address,
    /// The destination host.
    pub to: Address,
    pub relays: &'a [Address],
    /// The time, in seconds since 1970.
    pub unix_s: u64,
    /// True if its ends may stand in for others that were unreachable through no fault of their
    /// own. They stay on trial if there are other ends.
    pub is_doubtful: bool,
}

/// Error of a text of [`Vanguards`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VanguardsError {
    /// The text is longer than 1,024 bytes.
    TooLong,
    /// Number of the wrong line, counted from 1.
    Line(usize),
}

impl fmt::Display for VanguardsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            VanguardsError::TooLong => write!(f, "longer than {TEXT_MAX} bytes"),
            VanguardsError::Line(line) => write!(
                f,
                "line {line}: expected guard, last or middle, an address and a time, once each"
            ),
        }
    }
}

impl std::error::Error for VanguardsError {}

impl Vanguards {
    /// Reads the text of [`Vanguards::text`].
    ///
    /// # Errors
    ///
    /// The text is too long, or a line is wrong. A line may have an unknown kind, an address that
    /// is no router, a repeated router, or a fifth relay of one kind.
    pub fn parse(text: &str) -> Result<Vanguards, VanguardsError> {
        let mut kept = Vanguards::default();
        if text.len() > TEXT_MAX {
            return Err(VanguardsError::TooLong);
        }
        for (line, text) in (1..).zip(text.lines()) {
            let wrong = VanguardsError::Line(line);
            let words: Vec<&str> = text.split_whitespace().collect();
            let [kind, at, until] = words[..] else { return Err(wrong) };
            let (Ok(at), Ok(until_s)) = (at.parse::<Address>(), until.parse()) else {
                return Err(wrong);
            };
            let all = match kind {
                "guard" => &mut kept.guards.kept,
                "last" => &mut kept.lasts.kept,
                "middle" => &mut kept.middles,
                _ => return Err(wrong),
            };
            if !at.is_router() || all.len() == EACH_MAX || all.iter().any(|stay| stay.at == at) {
                return Err(wrong);
            }
            all.push(RelayStay { at, until_s });
        }
        Ok(kept)
    }

    /// The relays as lines of text, without those on trial.
    pub fn text(&self) -> String {
        let mut text = String::new();
        let kinds =
            [("guard", &self.guards.kept), ("last", &self.lasts.kept), ("middle", &self.middles)];
        for (kind, all) in kinds {
            for RelayStay { at, until_s } in all {
                // Writing to a String can't fail.
                let _ = writeln!(text, "{kind} {at} {until_s}");
            }
        }
        text
    }

    /// True if the text is of this format, though parts of it may be wrong or missing.
    pub fn is_like(text: &str) -> bool {
        let first = text.split_whitespace().next().unwrap_or("guard");
        text.len() <= TEXT_MAX && ["guard", "last", "middle"].contains(&first)
    }

    /// All relays in its text.
    pub fn relays(&self) -> impl Iterator<Item = Address> {
        let all = [&self.guards.kept, &self.lasts.kept, &self.middles];
        all.into_iter().flatten().map(|stay| stay.at)
    }

    /// Relays for the first position instead of the own router, in order, and true if others may be
    /// drawn. `is_free` is true if none of these fits.
    pub(super) fn firsts(&self, routers: &RouterList, unix_s: u64, is_free: bool) -> Candidates {
        self.guards.candidates(routers, unix_s, is_free)
    }

    /// Relays for the last position instead of the other host's router.
    pub(super) fn lasts(&self, routers: &RouterList, unix_s: u64, is_free: bool) -> Candidates {
        self.lasts.candidates(routers, unix_s, is_free)
    }

    /// Relays for either end, including those on trial.
    pub(crate) fn ends(&self) -> [Vec<Address>; 2] {
        [&self.guards, &self.lasts]
            .map(|EndRelays { kept, drawn }| kept.iter().chain(drawn).map(|stay| stay.at).collect())
    }

    /// Relays for the middle, in random order.
    pub(super) fn middles(&self, rng: &mut Rng) -> Vec<Address> {
        let mut middles: Vec<Address> = self.middles.iter().map(|stay| stay.at).collect();
        for at in (1..middles.len()).rev() {
            middles.swap(at, rng.below(at as u64 + 1) as usize);
        }
        middles
    }

    /// Forgets relays whose trial is over.
    pub(super) fn forget_drawn(&mut self, routers: &RouterList, unix_s: u64) {
        for EndRelays { drawn, .. } in [&mut self.guards, &mut self.lasts] {
            // Setting back the clock does not extend a trial.
            let trial = unix_s.saturating_add(1)..=unix_s.saturating_add(TRIAL_S);
            drawn.retain(|stay| trial.contains(&stay.until_s) && routers.is_relay(stay.at));
        }
    }

    /// Puts the ends of a path on trial.
    pub(super) fn note_drawn(&mut self, ask: &PathRequest<'_>, path: &[Address]) {
        let [here, there] = ask.routers();
        let (Some(&first), Some(&last)) = (path.first(), path.last()) else { return };
        let until_s = ask.unix_s.saturating_add(TRIAL_S);
        if first != here || path.len() == 1 {
            self.guards.note_drawn(RelayStay { at: first, until_s });
        }
        if last != there && path.len() > 1 {
            self.lasts.note_drawn(RelayStay { at: last, until_s });
        }
    }

    /// Records the relays of a built circuit: this host stays with its ends and its middles, and
    /// draws one more middle. Forgets relays whose time is over.
    pub fn note_built(&mut self, routers: &RouterList, built: &BuiltCircuit<'_>, rng: &mut Rng) {
        let BuiltCircuit { from, to, relays, unix_s, is_doubtful } = *built;
        let [here, there] = [from, to].map(|host| Address::new(host.router, 0));
        let (Some(&first), Some(&last)) = (relays.first(), relays.last()) else { return };
        let guard = (first != here || relays.len() == 1).then_some(first);
        let last = (last != there && relays.len() > 1).then_some(last);
        for (ends, at) in [(&mut self.guards, guard), (&mut self.lasts, last)] {
            let new = at.filter(|at| ends.kept.iter().all(|stay| stay.at != *at));
            forget_old(&mut ends.kept, unix_s, END_S);
            ends.note_built(routers, new, unix_s, is_doubtful);
        }
        let between = relays.get(1..relays.len() - 1).unwrap_or_default();
        let fresh = |at: &&Address| self.middles.iter().all(|stay| stay.at != **at);
        let fresh: Vec<Address> = between.iter().filter(fresh).copied().collect();
        forget_old(&mut self.middles, unix_s, MIDDLE_S.1);
        fresh.into_iter().for_each(|at| self.stay_between(routers, at, unix_s, rng));
        let wanted = (between.len() + 1).clamp(2, EACH_MAX);
        if between.is_empty() || self.middles.len() >= wanted {
            return;
        }
        let mut rest = routers.weights();
        rest.retain(|(at, _)| {
            let is_free = *at != here && !relays.contains(at);
            is_free && !self.middles.iter().any(|stay| stay.at == *at)
        });
        if let Some(at) = super::search::draw(&mut rest, rng) {
            self.stay_between(routers, at, unix_s, rng);
        }
    }

    /// Stays with a relay in the middle for a random time.
    fn stay_between(&mut self, routers: &RouterList, at: Address, unix_s: u64, rng: &mut Rng) {
        let span_s = MIDDLE_S.0 + rng.below(MIDDLE_S.1 - MIDDLE_S.0);
        stay(&mut self.middles, routers, RelayStay { at, until_s: unix_s.saturating_add(span_s) });
    }
}

/// Relays in the order in which they are tried, and true if others may be drawn after them.
type Candidates = (Vec<Address>, bool);

impl EndRelays {
    fn candidates(&self, routers: &RouterList, unix_s: u64, is_free: bool) -> Candidates {
        let is_listed = |stay: &&RelayStay| routers.is_relay(stay.at);
        let kept: Vec<&RelayStay> = self.kept.iter().filter(is_listed).collect();
        let drawn = self.drawn.iter().filter(|stay| kept.iter().all(|kept| kept.at != stay.at));
        let all: Vec<&RelayStay> = kept.iter().copied().chain(drawn).collect();
        // A kept relay was drawn when its time began.
        let is_late = |stay: &&&RelayStay| stay.until_s.saturating_sub(END_S) + DRAWS_S > unix_s;
        let on_trial = all.len() - kept.len();
        let late = match kept.split_first() {
            Some((_, others)) => others.iter().filter(is_late).count() + on_trial,
            None => on_trial.saturating_sub(1),
        };
        let may_draw = all.is_empty() || (all.len() < EACH_MAX && (is_free || late < DRAWS_MAX));
        (all.iter().map(|stay| stay.at).collect(), may_draw)
    }

    fn note_drawn(&mut self, new: RelayStay) {
        let mut all = self.kept.iter().chain(&self.drawn);
        if all.any(|stay| stay.at == new.at) {
            return;
        }
        if self.drawn.len() >= EACH_MAX {
            self.drawn.remove(0);
        }
        self.drawn.push(new);
    }

    /// Stays with the end `new` over which a circuit was built, if there is one.
    fn note_built(
        &mut self,
        routers: &RouterList,
        new: Option<Address>,
        unix_s: u64,
        is_doubtful: bool,
    ) {
        let Some(at) = new else { return };
        if is_doubtful && self.kept.iter().any(|stay| routers.is_relay(stay.at)) {
            return;
        }
        if stay(&mut self.kept, routers, RelayStay { at, until_s: unix_s.saturating_add(END_S) }) {
            self.drawn.retain(|stay| stay.at != at);
        }
    }
}

/// Forgets relays whose time is over. A relay that has left the list stays until then: a late list
/// must not cause a new draw of all relays.
fn forget_old(all: &mut Vec<RelayStay>, unix_s: u64, most_s: u64) {
    all.retain(|stay| stay.until_s > unix_s);
    // A clock that was far ahead can't make a relay stay forever.
    let most_s = unix_s.saturating_add(most_s);
    all.iter_mut().for_each(|stay| stay.until_s = stay.until_s.min(most_s));
}

/// Stays with `new`; returns true if it does. If there is no room, it replaces a relay that has
/// left the list, if there is one.
fn stay(all: &mut Vec<RelayStay>, routers: &RouterList, new: RelayStay) -> bool {
    let unlisted = all.iter().position(|stay| !routers.is_relay(stay.at));
    match (all.len() < EACH_MAX, unlisted) {
        (true, _) => {}
        (false, Some(unlisted)) => drop(all.remove(unlisted)),
        (false, None) => return false,
    }
    all.push(new);
    true
}
