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

use core::fmt;
use core::fmt::Write;

use shoal_crypto::Rng;
use shoal_wire::Address;

use super::{Ask, Relays};

const DAY_S: u64 = 86_400;
/// How long a relay stays at an end of this host's circuits.
const END_S: u64 = 120 * DAY_S;
/// Shortest and longest time for which a relay stays in the middle.
const MIDDLE_S: (u64, u64) = (DAY_S, 12 * DAY_S);
/// Relays of each kind at most: one is enough unless it fails, or does not fit a destination.
const EACH_MAX: usize = 4;
/// Longest text in bytes: 12 lines.
const TEXT_MAX: usize = 1_024;

/// A relay, and until when this host stays with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stay {
    at: Address,
    until_s: u64,
}

/// The relays that a host stays with. Where its circuits begin follows from them, so that their
/// text is kept from others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    guards: Vec<Stay>,
    lasts: Vec<Stay>,
    middles: Vec<Stay>,
}

/// What is wrong with a text of [`Kept`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptError {
    /// The line, counted from 1.
    pub line: usize,
}

impl fmt::Display for KeptError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let line = self.line;
        write!(f, "line {line}: expected guard, last or middle, an address and a time, once each")
    }
}

impl std::error::Error for KeptError {}

impl Kept {
    /// Reads what [`Kept::text`] wrote.
    pub fn parse(text: &str) -> Result<Kept, KeptError> {
        let mut kept = Kept::default();
        if text.len() > TEXT_MAX {
            return Err(KeptError { line: 1 });
        }
        for (line, text) in (1..).zip(text.lines()) {
            let wrong = KeptError { line };
            let words: Vec<&str> = text.split_whitespace().collect();
            let [kind, at, until] = words[..] else { return Err(wrong) };
            let (Ok(at), Ok(until_s)) = (at.parse::<Address>(), until.parse()) else {
                return Err(wrong);
            };
            let all = match kind {
                "guard" => &mut kept.guards,
                "last" => &mut kept.lasts,
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

    /// As lines of text.
    pub fn text(&self) -> String {
        let mut text = String::new();
        let kinds = [("guard", &self.guards), ("last", &self.lasts), ("middle", &self.middles)];
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

    /// All relays in it.
    pub fn relays(&self) -> impl Iterator<Item = Address> {
        [&self.guards, &self.lasts, &self.middles].into_iter().flatten().map(|stay| stay.at)
    }

    pub(super) fn guards(&self) -> Vec<Address> {
        self.guards.iter().map(|stay| stay.at).collect()
    }

    pub(super) fn lasts(&self) -> Vec<Address> {
        self.lasts.iter().map(|stay| stay.at).collect()
    }

    pub(super) fn middles(&self) -> Vec<Address> {
        self.middles.iter().map(|stay| stay.at).collect()
    }

    /// Forgets relays whose time is over. A relay that is no more in the list stays until then: a
    /// list that comes late must not draw all anew.
    pub(super) fn forget_old(&mut self, unix_s: u64) {
        for (all, most) in
            [(&mut self.guards, END_S), (&mut self.lasts, END_S), (&mut self.middles, MIDDLE_S.1)]
        {
            all.retain(|stay| stay.until_s > unix_s);
            // A clock that was far ahead makes nothing stay for ever.
            all.iter_mut().for_each(|stay| stay.until_s = stay.until_s.min(unix_s + most));
        }
    }

    /// Notes the relays of a path that was chosen, and draws the middles of later ones.
    pub(super) fn note(&mut self, relays: &Relays, ask: &Ask<'_>, path: &[Address], rng: &mut Rng) {
        let [here, there] = ask.routers();
        let [first, between @ .., last] = path else { return self.note_guard(ask, path) };
        if *first != here {
            stay(&mut self.guards, *first, ask.unix_s + END_S);
        }
        if *last != there {
            stay(&mut self.lasts, *last, ask.unix_s + END_S);
        }
        let mut until = || ask.unix_s + MIDDLE_S.0 + rng.below(MIDDLE_S.1 - MIDDLE_S.0);
        for middle in between {
            stay(&mut self.middles, *middle, until());
        }
        let wanted = (between.len() + 1).clamp(2, EACH_MAX);
        if between.is_empty() || self.middles.len() >= wanted {
            return;
        }
        let mut rest = relays.weights();
        rest.retain(|(at, _)| {
            let is_free = *at != here && !path.contains(at);
            is_free && !self.middles.iter().any(|stay| stay.at == *at)
        });
        if let Some(at) = super::search::draw(&mut rest, rng) {
            let until_s = ask.unix_s + MIDDLE_S.0 + rng.below(MIDDLE_S.1 - MIDDLE_S.0);
            stay(&mut self.middles, at, until_s);
        }
    }

    /// The one relay of a path counts as its guard.
    fn note_guard(&mut self, ask: &Ask<'_>, path: &[Address]) {
        if let [only] = path {
            stay(&mut self.guards, *only, ask.unix_s + END_S);
        }
    }
}

/// Stays with `at` if that is new; where there is no room, instead of the one whose time is over
/// first.
fn stay(all: &mut Vec<Stay>, at: Address, until_s: u64) {
    if all.iter().any(|stay| stay.at == at) {
        return;
    }
    let soonest = (0..all.len()).min_by_key(|i| all[*i].until_s);
    if let Some(soonest) = soonest.filter(|_| all.len() >= EACH_MAX) {
        all.remove(soonest);
    }
    all.push(Stay { at, until_s });
}
