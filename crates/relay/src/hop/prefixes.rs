//! Under which prefixes the two ends' addresses are, while one end's becomes another one.
//!
//! ```text
//! end whose prefix is another              neighbour
//!   data, from the former one ----------->
//!   tells it, also from the new one ----->   challenges the new place: its firewall is open
//!   sends from the new one, answers  <----
//!            ---------------------------->   sends there
//! ```
//!
//! A firewall that lets in only what answers drops what comes from the new prefix before the
//! neighbour has sent there, and the neighbour's challenge before this end has. What is told from
//! the new prefix opens the one, and the challenge the other. Steps of a hop go between all
//! prefixes meanwhile, so that whichever an end uses afterwards, both firewalls know it.

use core::time::Duration;

use shoal_wire::{HopPlace, PathToken, Time};

use super::budget::Budget;
use super::link::Spot;
use crate::hops::FORMER_KEPT;

/// How long after a move the neighbour is told of it again, if its frames don't come there.
const TELLS: [Duration; 4] = [
    Duration::from_millis(200),
    Duration::from_secs(1),
    Duration::from_secs(3),
    Duration::from_secs(10),
];
/// For how long counts what a neighbour said of its prefix.
const CLAIM_KEPT: Duration = Duration::from_secs(60);
/// For how long after its former prefix is gone a neighbour that did not follow may still send
/// there: until hops that fail lead it elsewhere.
const LATE: Duration = Duration::from_secs(10);
/// How soon a claimed place is challenged again.
const ASK_AGAIN: Duration = Duration::from_millis(100);
/// For how long an answer counts.
const ANSWER_KEPT: Duration = Duration::from_secs(5);
/// For how long a neighbour that was followed may still send from where it was.
const LEFT_KEPT: Duration = Duration::from_secs(10);
/// Frames to a prefix that only the neighbour says to be its own, ...
pub(super) const CLAIMED_MAX: u32 = 32;
/// ... a call that only opens this end's firewall, and what a probe asks for, while fewer than so
/// many were spent, ...
pub(super) const OPENS_MAX: u32 = 16;
/// ... and to one that was its own, while a [`Budget`] counts them.
const LEFT_MAX: u32 = 96;

/// This end's prefixes.
pub(super) struct Own {
    place: HopPlace,
    left: Option<Box<Left>>,
    /// When the place's prefix became this one, if the neighbour has not sent there since.
    moved: Option<Time>,
    /// The place is to be told.
    tells: bool,
    /// It may not have been heard, and is to be told again.
    again: bool,
    /// It is to be told from there, too.
    opens: bool,
}

/// A prefix of this end's before the one of its place.
struct Left {
    prefix: [u8; 8],
    /// Until then it is this machine's.
    until: Time,
    since: Time,
    /// How often the neighbour was told again.
    told: usize,
    /// Data still leaves from there.
    sends: bool,
    /// The neighbour's newest frame came to the new one.
    seen: bool,
}

impl Own {
    pub(super) fn new(place: HopPlace) -> Own {
        Own { place, left: None, moved: None, tells: false, again: false, opens: false }
    }

    pub(super) fn place(&self) -> HopPlace {
        self.place
    }

    /// From where data leaves.
    pub(super) fn source(&self) -> HopPlace {
        let left = self.left.as_ref().filter(|left| left.sends);
        left.map_or(self.place, |left| HopPlace { prefix: left.prefix, ..self.place })
    }

    /// From where steps leave: the source of data at first.
    pub(super) fn sources(&self) -> impl Iterator<Item = HopPlace> + use<> {
        let source = self.source();
        let left = self.left.as_ref().map(|left| left.prefix);
        let all = [Some(self.place.prefix), left].into_iter().flatten();
        let others = all.filter(move |prefix| *prefix != source.prefix);
        core::iter::once(source).chain(others.map(move |prefix| HopPlace { prefix, ..source }))
    }

    /// It is under this prefix from now on. Data leaves from where it did until the neighbour has
    /// shown that it sends to the new one.
    pub(super) fn move_to(&mut self, now: Time, prefix: [u8; 8]) {
        if prefix == self.place.prefix {
            return;
        }
        let source = self.source().prefix;
        let known = self.left.take().filter(|left| left.sends).map(|left| left.until);
        let former = core::mem::replace(&mut self.place.prefix, prefix);
        let sends = source != prefix;
        let kept = now + FORMER_KEPT;
        let (prefix, until) = match sends {
            true => (source, known.unwrap_or(kept)),
            false => (former, kept),
        };
        self.left = Some(Box::new(Left { prefix, until, since: now, told: 0, sends, seen: false }));
        (self.tells, self.opens) = (true, sends);
        self.moved = Some(now);
    }

    /// Whether the neighbour may send to the prefix before this one: it was left lately, and
    /// nothing shows that the neighbour followed.
    pub(super) fn is_new(&self, now: Time) -> bool {
        self.moved.is_some_and(|at| now < at + FORMER_KEPT + LATE)
    }

    /// Data does not hop any more.
    pub(super) fn fall(&mut self) {
        self.opens = false;
    }

    /// Whether it matters where the neighbour's frames come to.
    pub(super) fn is_moving(&self) -> bool {
        self.left.is_some()
    }

    /// A frame of the neighbour's came to this prefix, and `there`: between the very addresses that
    /// data would use if it left from the new one. It does so from then on; says whether that is
    /// new.
    pub(super) fn came(&mut self, prefix: [u8; 8], there: bool) -> bool {
        let Some(left) = &mut self.left else { return false };
        left.seen = prefix == self.place.prefix;
        self.moved.take_if(|_| there);
        there && core::mem::take(&mut left.sends)
    }

    /// Has the neighbour told.
    pub(super) fn tell(&mut self) {
        self.tells = true;
    }

    /// Has the neighbour told once more.
    pub(super) fn tell_again(&mut self) {
        self.again = true;
    }

    /// Whether it is to be told once more.
    pub(super) fn poll_again(&mut self) -> bool {
        core::mem::take(&mut self.again)
    }

    /// Takes the place, if it is to be told.
    pub(super) fn poll_tell(&mut self) -> Option<HopPlace> {
        core::mem::take(&mut self.tells).then_some(self.place)
    }

    /// Whether it is to be told from there, too.
    pub(super) fn poll_open(&mut self) -> bool {
        core::mem::take(&mut self.opens)
    }

    pub(super) fn handle_timeout(&mut self, now: Time) {
        self.left.take_if(|left| left.until <= now);
        let Some(left) = &mut self.left else { return };
        while TELLS.get(left.told).is_some_and(|after| left.since + *after <= now) {
            left.told += 1;
            if !left.seen {
                (self.tells, self.opens) = (true, left.sends);
            }
        }
    }

    pub(super) fn poll_timeout(&self) -> Option<Time> {
        if self.tells || self.opens || self.again {
            return Some(Time::ZERO);
        }
        let left = self.left.as_ref()?;
        let again = TELLS.get(left.told).map(|after| left.since + *after);
        Some(again.unwrap_or(left.until).min(left.until))
    }
}

/// The neighbour's prefixes besides the one in use.
#[derive(Default)]
pub(super) struct Far {
    /// Where it says to be from now on, and until when that counts.
    claim: Option<(HopPlace, Time)>,
    /// The claimed place is to be challenged.
    asks: bool,
    /// It was: how, at which addresses, and when.
    asked: Option<(PathToken, Spot, Time)>,
    /// Where it was, and until when its frames may come from there.
    left: Option<([u8; 8], Time)>,
    /// It was reached there.
    left_known: bool,
    /// The hop that was under way when it was followed from there.
    left_in: Option<Spot>,
    /// Where it was reached, or seen, while it said to be elsewhere, as behind a translator of
    /// prefixes.
    seen: Option<[u8; 8]>,
    /// Of frames to where it was.
    to_left: Budget,
}

/// What an answer to a challenge of a claimed place says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answered {
    /// The neighbour is there.
    Here(HopPlace),
    /// It was, at addresses that are not in use any more; or somebody else found out before.
    Late,
}

impl Far {
    /// It says to be at this place from now on, which is to be challenged.
    pub(super) fn claim(&mut self, now: Time, place: HopPlace) {
        self.asked.take_if(|_| self.claim.is_none_or(|(known, _)| known != place));
        self.claim = Some((place, now + CLAIM_KEPT));
        self.asks = true;
    }

    /// Nothing counts that it said.
    pub(super) fn forget(&mut self) {
        (self.claim, self.asks) = (None, false);
    }

    /// The place that it says to be at.
    pub(super) fn claimed(&self, now: Time) -> Option<HopPlace> {
        self.claim.filter(|(_, until)| now < *until).map(|(place, _)| place)
    }

    /// It is followed from this prefix to another one, perhaps during a hop. `known`: it was
    /// reached there.
    pub(super) fn leave(&mut self, now: Time, prefix: [u8; 8], known: bool, during: Option<Spot>) {
        self.forget();
        (self.left_known, self.left_in) = (known, during);
        self.left = Some((prefix, now + LEFT_KEPT));
    }

    /// It is not where it says to be, at least not yet.
    pub(super) fn stay(&mut self, now: Time, said: HopPlace) {
        self.left = None;
        self.claim(now, said);
    }

    /// Remembers where it was seen, though it says to be elsewhere.
    pub(super) fn see(&mut self, prefix: Option<[u8; 8]>) {
        self.seen = prefix;
    }

    /// Where it was seen while it said to be elsewhere.
    pub(super) fn seen(&self) -> Option<[u8; 8]> {
        self.seen
    }

    /// Whether it was followed during this hop.
    pub(super) fn left_in(&self, spot: Spot) -> bool {
        self.left_in == Some(spot)
    }

    /// Whether it was at this prefix until lately.
    pub(super) fn has_left(&self, now: Time, prefix: [u8; 8]) -> bool {
        self.left.is_some_and(|(left, until)| left == prefix && now < until)
    }

    /// The prefix besides the one in use where the neighbour may be: where it says that it is,
    /// before where it was.
    pub(super) fn other(&self, now: Time) -> Option<[u8; 8]> {
        let claimed = self.claimed(now).map(|place| place.prefix);
        claimed.or_else(|| self.left.filter(|(_, until)| now < *until).map(|(prefix, _)| prefix))
    }

    /// The same, other than `used`, if a frame may be sent there now. `unproven` counts what goes
    /// to places where the neighbour was not reached: `most`.
    pub(super) fn copy(
        &mut self,
        now: Time,
        used: [u8; 8],
        unproven: &mut Budget,
        most: u32,
    ) -> Option<[u8; 8]> {
        let other = self.other(now).filter(|other| *other != used)?;
        let is_known = self.left_known && self.claimed(now).is_none();
        let (budget, most) =
            if is_known { (&mut self.to_left, LEFT_MAX) } else { (unproven, most) };
        budget.spend(now, 1, most).then_some(other)
    }

    /// Takes how many frames to where it was were held back.
    pub(super) fn take_held_back(&mut self) -> u32 {
        self.to_left.take_held_back()
    }

    /// Takes the place that is to be challenged at the addresses of `at`, if one is, by so many
    /// frames.
    pub(super) fn ask(
        &mut self,
        now: Time,
        at: Spot,
        frames: u32,
        token: PathToken,
        unproven: &mut Budget,
    ) -> Option<(HopPlace, PathToken)> {
        let asks = core::mem::take(&mut self.asks);
        let place = self.claimed(now).filter(|_| asks)?;
        let lately = |(_, spot, when): (_, Spot, Time)| spot == at && now < when + ASK_AGAIN;
        if self.asked.is_some_and(lately) || !unproven.spend(now, frames, CLAIMED_MAX) {
            return None;
        }
        // An answer to the one before may be under way.
        let known = self.asked.filter(|(_, spot, when)| *spot == at && now < *when + ANSWER_KEPT);
        let token = known.map_or(token, |(token, ..)| token);
        self.asked = Some((token, at, now));
        Some((place, token))
    }

    /// Takes the answer to a challenge, if it is one of a claimed place's.
    pub(super) fn answered(
        &mut self,
        now: Time,
        at: Option<Spot>,
        token: PathToken,
    ) -> Option<Answered> {
        let is_it = |(known, _, when): &mut (PathToken, Spot, Time)| {
            *known == token && now < *when + ANSWER_KEPT
        };
        let (_, spot, _) = self.asked.take_if(is_it)?;
        let Some(place) = self.claimed(now) else { return Some(Answered::Late) };
        if at != Some(spot) {
            // Firewalls may not know the addresses in use now.
            self.asks = true;
            return Some(Answered::Late);
        }
        Some(Answered::Here(place))
    }

    /// Says whether there is nothing left to be known.
    pub(super) fn handle_timeout(&mut self, now: Time) -> bool {
        self.claim.take_if(|(_, until)| *until <= now);
        self.left.take_if(|(_, until)| *until <= now);
        self.asked.take_if(|(.., when)| *when + ANSWER_KEPT <= now);
        let counts = self.claim.is_some() || self.asked.is_some() || self.left.is_some();
        let counts = counts || self.seen.is_some() || self.to_left.is_spent(now);
        !counts
    }

    pub(super) fn poll_timeout(&self) -> Option<Time> {
        if self.asks {
            return Some(Time::ZERO);
        }
        let claim = self.claim.map(|(_, until)| until);
        let left = self.left.map(|(_, until)| until);
        [claim, left].into_iter().flatten().min()
    }
}
