//! The relays that a host stays with, for weeks and months.
//!
//! ```text
//! guard 3.0 1800000000      relay 1 for a host of a small site, and until when
//! last 5.0 1800000000       the last relay towards hosts of small sites
//! middle 4.0 1790000000
//! ```
//!
//! Whoever draws relays anew for each circuit draws a colluding pair some day. Who stays with few
//! is safe with the same probability as on the first day.
//!
//! **How an end is drawn.** A relay that is drawn for an end is on trial until a circuit was built
//! over it; then it is kept to the end of its time, and nothing pushes it out. What fails can make
//! the host draw others, but slowly: [`DRAWS_MAX`] beside the first in [`DRAWS_S`], and
//! [`EACH_MAX`] at once. Relays that are no more in the list don't count.
//!
//! **The clock.** That a relay's time is over counts only once a circuit was built: first relays
//! refuse a host whose clock is wrong.

use core::fmt;
use core::fmt::Write;

use shoal_crypto::Rng;
use shoal_wire::Address;

use super::{Ask, Routers};

const DAY_S: u64 = 86_400;
/// How long a relay stays at an end of this host's circuits.
const END_S: u64 = 120 * DAY_S;
/// Shortest and longest time for which a relay stays in the middle.
const MIDDLE_S: (u64, u64) = (DAY_S, 12 * DAY_S);
/// Relays of each kind at most: one is enough unless it fails, or does not fit a destination.
const EACH_MAX: usize = 4;
/// Ends of one kind that are drawn beside the first at most, and in which time.
const DRAWS_MAX: usize = 2;
const DRAWS_S: u64 = 30 * DAY_S;
/// A relay over which no circuit was built is on trial for so long.
const TRIAL_S: u64 = DAY_S;
/// Longest text in bytes: 12 lines.
const TEXT_MAX: usize = 1_024;

/// A relay, and until when this host stays with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stay {
    at: Address,
    until_s: u64,
}

/// Relays at one end of circuits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Ends {
    /// Circuits were built over these.
    kept: Vec<Stay>,
    /// These are on trial. They are not written down.
    drawn: Vec<Stay>,
}

/// The relays that a host stays with. Where its circuits begin follows from them, so that their
/// text is kept from others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    guards: Ends,
    lasts: Ends,
    middles: Vec<Stay>,
}

/// A circuit whose hops are all there.
#[derive(Clone, Copy, Debug)]
pub struct Built<'a> {
    /// The host that it begins at.
    pub from: Address,
    /// The host that it leads to.
    pub to: Address,
    /// Its relays.
    pub relays: &'a [Address],
    /// The time, in seconds since 1970.
    pub unix_s: u64,
    /// Its ends may stand in for others that could not be reached, through no fault of theirs: they
    /// stay on trial where there are others.
    pub is_doubtful: bool,
}

/// What is wrong with a text of [`Kept`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeptError {
    /// It is longer than 1,024 bytes.
    TooLong,
    /// This line, counted from 1.
    Line(usize),
}

impl fmt::Display for KeptError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KeptError::TooLong => write!(f, "longer than {TEXT_MAX} bytes"),
            KeptError::Line(line) => write!(
                f,
                "line {line}: expected guard, last or middle, an address and a time, once each"
            ),
        }
    }
}

impl std::error::Error for KeptError {}

impl Kept {
    /// Reads what [`Kept::text`] wrote.
    ///
    /// # Errors
    ///
    /// It is too long, or a line is none of the three kinds, names no router, names one twice or
    /// more than four of a kind.
    pub fn parse(text: &str) -> Result<Kept, KeptError> {
        let mut kept = Kept::default();
        if text.len() > TEXT_MAX {
            return Err(KeptError::TooLong);
        }
        for (line, text) in (1..).zip(text.lines()) {
            let wrong = KeptError::Line(line);
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
            all.push(Stay { at, until_s });
        }
        Ok(kept)
    }

    /// As lines of text. Relays on trial are not in it.
    pub fn text(&self) -> String {
        let mut text = String::new();
        let kinds =
            [("guard", &self.guards.kept), ("last", &self.lasts.kept), ("middle", &self.middles)];
        for (kind, all) in kinds {
            for Stay { at, until_s } in all {
                // Writing to a String can't fail.
                let _ = writeln!(text, "{kind} {at} {until_s}");
            }
        }
        text
    }

    /// Whether it is a text of this kind, though parts of it may be wrong or missing.
    pub fn is_like(text: &str) -> bool {
        let first = text.split_whitespace().next().unwrap_or("guard");
        text.len() <= TEXT_MAX && ["guard", "last", "middle"].contains(&first)
    }

    /// All relays in its text.
    pub fn relays(&self) -> impl Iterator<Item = Address> {
        let all = [&self.guards.kept, &self.lasts.kept, &self.middles];
        all.into_iter().flatten().map(|stay| stay.at)
    }

    /// What may stand first where the own router does not: in this order, and whether others may be
    /// drawn. `is_free`: none of these fits.
    pub(super) fn firsts(&self, routers: &Routers, unix_s: u64, is_free: bool) -> Candidates {
        self.guards.candidates(routers, unix_s, is_free)
    }

    /// What may stand last where the other host's router does not.
    pub(super) fn lasts(&self, routers: &Routers, unix_s: u64, is_free: bool) -> Candidates {
        self.lasts.candidates(routers, unix_s, is_free)
    }

    /// All that may stand at either end, those on trial, too.
    pub(crate) fn ends(&self) -> [Vec<Address>; 2] {
        [&self.guards, &self.lasts]
            .map(|Ends { kept, drawn }| kept.iter().chain(drawn).map(|stay| stay.at).collect())
    }

    /// What stands between them, in any order.
    pub(super) fn middles(&self, rng: &mut Rng) -> Vec<Address> {
        let mut middles: Vec<Address> = self.middles.iter().map(|stay| stay.at).collect();
        for at in (1..middles.len()).rev() {
            middles.swap(at, rng.below(at as u64 + 1) as usize);
        }
        middles
    }

    /// Forgets relays whose trial is over.
    pub(super) fn forget_drawn(&mut self, routers: &Routers, unix_s: u64) {
        for Ends { drawn, .. } in [&mut self.guards, &mut self.lasts] {
            // A clock that was set back makes no trial longer.
            let trial = unix_s.saturating_add(1)..=unix_s.saturating_add(TRIAL_S);
            drawn.retain(|stay| trial.contains(&stay.until_s) && routers.is_relay(stay.at));
        }
    }

    /// Puts the ends of a path on trial.
    pub(super) fn note_drawn(&mut self, ask: &Ask<'_>, path: &[Address]) {
        let [here, there] = ask.routers();
        let (Some(&first), Some(&last)) = (path.first(), path.last()) else { return };
        let until_s = ask.unix_s.saturating_add(TRIAL_S);
        if first != here || path.len() == 1 {
            self.guards.note_drawn(Stay { at: first, until_s });
        }
        if last != there && path.len() > 1 {
            self.lasts.note_drawn(Stay { at: last, until_s });
        }
    }

    /// Notes over which relays a circuit was built: this host stays with its ends, and with its
    /// middles, of which it draws one more. Forgets relays whose time is over.
    pub fn note_built(&mut self, routers: &Routers, built: &Built<'_>, rng: &mut Rng) {
        let Built { from, to, relays, unix_s, is_doubtful } = *built;
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

    /// Stays with a relay in the middle for a while.
    fn stay_between(&mut self, routers: &Routers, at: Address, unix_s: u64, rng: &mut Rng) {
        let span_s = MIDDLE_S.0 + rng.below(MIDDLE_S.1 - MIDDLE_S.0);
        stay(&mut self.middles, routers, Stay { at, until_s: unix_s.saturating_add(span_s) });
    }
}

/// Relays in the order in which they are tried, and whether others may be drawn behind them.
type Candidates = (Vec<Address>, bool);

impl Ends {
    fn candidates(&self, routers: &Routers, unix_s: u64, is_free: bool) -> Candidates {
        let is_listed = |stay: &&Stay| routers.is_relay(stay.at);
        let kept: Vec<&Stay> = self.kept.iter().filter(is_listed).collect();
        let drawn = self.drawn.iter().filter(|stay| kept.iter().all(|kept| kept.at != stay.at));
        let all: Vec<&Stay> = kept.iter().copied().chain(drawn).collect();
        // A relay that is kept was drawn when its time began.
        let is_late = |stay: &&&Stay| stay.until_s.saturating_sub(END_S) + DRAWS_S > unix_s;
        let on_trial = all.len() - kept.len();
        let late = match kept.split_first() {
            Some((_, others)) => others.iter().filter(is_late).count() + on_trial,
            None => on_trial.saturating_sub(1),
        };
        let may_draw = all.is_empty() || (all.len() < EACH_MAX && (is_free || late < DRAWS_MAX));
        (all.iter().map(|stay| stay.at).collect(), may_draw)
    }

    fn note_drawn(&mut self, new: Stay) {
        let mut all = self.kept.iter().chain(&self.drawn);
        if all.any(|stay| stay.at == new.at) {
            return;
        }
        if self.drawn.len() >= EACH_MAX {
            self.drawn.remove(0);
        }
        self.drawn.push(new);
    }

    /// Stays with an end over which a circuit was built, if it is `new`.
    fn note_built(
        &mut self,
        routers: &Routers,
        new: Option<Address>,
        unix_s: u64,
        is_doubtful: bool,
    ) {
        let Some(at) = new else { return };
        if is_doubtful && self.kept.iter().any(|stay| routers.is_relay(stay.at)) {
            return;
        }
        if stay(&mut self.kept, routers, Stay { at, until_s: unix_s.saturating_add(END_S) }) {
            self.drawn.retain(|stay| stay.at != at);
        }
    }
}

/// Forgets what is over. A relay that is no more in the list stays until then: a list that comes
/// late must not draw all anew.
fn forget_old(all: &mut Vec<Stay>, unix_s: u64, most_s: u64) {
    all.retain(|stay| stay.until_s > unix_s);
    // A clock that was far ahead makes nothing stay for ever.
    let most_s = unix_s.saturating_add(most_s);
    all.iter_mut().for_each(|stay| stay.until_s = stay.until_s.min(most_s));
}

/// Stays with `new`; says whether it does. Where there is no room it takes the place of one that is
/// no more in the list, if there is one.
fn stay(all: &mut Vec<Stay>, routers: &Routers, new: Stay) -> bool {
    let unlisted = all.iter().position(|stay| !routers.is_relay(stay.at));
    match (all.len() < EACH_MAX, unlisted) {
        (true, _) => {}
        (false, Some(unlisted)) => drop(all.remove(unlisted)),
        (false, None) => return false,
    }
    all.push(new);
    true
}
