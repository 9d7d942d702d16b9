//! The prefixes of the two ends' addresses, while one end's prefix changes.
//!
//! ```text
//! end whose prefix changed                 neighbour
//!   data, from the former prefix -------->
//!   announcement, also from the new one ->   challenges the new place: its firewall is open
//!   sends from the new one, answers  <----
//!            ---------------------------->   sends there
//! ```
//!
//! A stateful firewall drops frames from the new prefix until the neighbour has sent there. It
//! drops the neighbour's challenge until this end has sent from there. The announcement from the
//! new prefix opens one firewall, and the challenge the other. Steps of a shift go between all
//! prefixes meanwhile. So both firewalls know each prefix that an end may use afterwards.

use core::time::Duration;

use shoal_wire::{PathToken, ShiftAnnouncement, Time};

use super::budget::FrameBudget;
use super::link::ShiftAddresses;
use crate::shifts::FORMER_KEPT;

/// Times after a move at which it is announced again, if the neighbour's frames don't arrive there.
const TELLS: [Duration; 4] = [
    Duration::from_millis(200),
    Duration::from_secs(1),
    Duration::from_secs(3),
    Duration::from_secs(10),
];
/// Time for which a neighbour's announced prefix is valid.
const CLAIM_KEPT: Duration = Duration::from_secs(60);
/// Time after the end of a former prefix in which a neighbour that did not follow may still send
/// there. Failed shifts then lead it elsewhere.
const LATE: Duration = Duration::from_secs(10);
/// Minimum time between challenges to an announced place.
const ASK_AGAIN: Duration = Duration::from_millis(100);
/// Time for which an answer is valid.
const ANSWER_KEPT: Duration = Duration::from_secs(5);
/// Time in which a neighbour that was followed may still send from its former prefix.
const LEFT_KEPT: Duration = Duration::from_secs(10);
/// Maximum number of frames per [`FrameBudget`] period to a prefix that only the neighbour's
/// announcement supports.
pub(super) const CLAIMED_MAX: u32 = 32;
/// Lower maximum for calls that only open this end's firewall, and for frames of probes.
pub(super) const OPENS_MAX: u32 = 16;
/// Maximum number of frames per [`FrameBudget`] period to a proven former prefix.
const LEFT_MAX: u32 = 96;

/// This end's prefixes.
pub(super) struct LocalPrefixes {
    place: ShiftAnnouncement,
    left: Option<Box<LeftPrefix>>,
    /// When the prefix changed, if the neighbour has not sent there since.
    moved: Option<Time>,
    /// True if the place must be announced.
    tells: bool,
    /// True if the announcement may have been lost and must be repeated.
    again: bool,
    /// True if it must also be announced from the new prefix.
    opens: bool,
}

/// A former prefix of this end.
struct LeftPrefix {
    prefix: [u8; 8],
    /// Time until which this machine still has it.
    until: Time,
    since: Time,
    /// Number of repeated announcements.
    told: usize,
    /// True if data still leaves from there.
    sends: bool,
    /// True if the neighbour's newest frame arrived at the new prefix.
    seen: bool,
}

impl LocalPrefixes {
    pub(super) fn new(place: ShiftAnnouncement) -> LocalPrefixes {
        LocalPrefixes { place, left: None, moved: None, tells: false, again: false, opens: false }
    }

    pub(super) fn place(&self) -> ShiftAnnouncement {
        self.place
    }

    /// Source of data.
    pub(super) fn source(&self) -> ShiftAnnouncement {
        let left = self.left.as_ref().filter(|left| left.sends);
        left.map_or(self.place, |left| ShiftAnnouncement { prefix: left.prefix, ..self.place })
    }

    /// Sources of steps: the source of data first.
    pub(super) fn sources(&self) -> impl Iterator<Item = ShiftAnnouncement> + use<> {
        let source = self.source();
        let left = self.left.as_ref().map(|left| left.prefix);
        let all = [Some(self.place.prefix), left].into_iter().flatten();
        let others = all.filter(move |prefix| *prefix != source.prefix);
        core::iter::once(source)
            .chain(others.map(move |prefix| ShiftAnnouncement { prefix, ..source }))
    }

    /// Sets the prefix. Data keeps its source until the neighbour has proved that it sends to the
    /// new prefix.
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
        self.left =
            Some(Box::new(LeftPrefix { prefix, until, since: now, told: 0, sends, seen: false }));
        (self.tells, self.opens) = (true, sends);
        self.moved = Some(now);
    }

    /// True if the neighbour may send to the former prefix: it was left recently, and the neighbour
    /// is not known to have followed.
    pub(super) fn is_new(&self, now: Time) -> bool {
        self.moved.is_some_and(|at| now < at + FORMER_KEPT + LATE)
    }

    /// Notes that data no longer uses shifting addresses.
    pub(super) fn fall(&mut self) {
        self.opens = false;
    }

    /// True if the destination of the neighbour's frames must be watched.
    pub(super) fn is_moving(&self) -> bool {
        self.left.is_some()
    }

    /// Handles a frame of the neighbour to this prefix. `there` is true if it used the very
    /// addresses that data from the new prefix would use. Then data leaves from the new prefix.
    /// Returns true if that is a change.
    pub(super) fn came(&mut self, prefix: [u8; 8], there: bool) -> bool {
        let Some(left) = &mut self.left else { return false };
        left.seen = prefix == self.place.prefix;
        self.moved.take_if(|_| there);
        there && core::mem::take(&mut left.sends)
    }

    /// Requests an announcement to the neighbour.
    pub(super) fn tell(&mut self) {
        self.tells = true;
    }

    /// Requests another announcement to the neighbour.
    pub(super) fn tell_again(&mut self) {
        self.again = true;
    }

    /// Takes the request for another announcement.
    pub(super) fn poll_again(&mut self) -> bool {
        core::mem::take(&mut self.again)
    }

    /// Takes the place if it must be announced.
    pub(super) fn poll_tell(&mut self) -> Option<ShiftAnnouncement> {
        core::mem::take(&mut self.tells).then_some(self.place)
    }

    /// True if it must also be announced from the new prefix. Clears the request.
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

/// The neighbour's prefixes besides the current one.
#[derive(Default)]
pub(super) struct RemotePrefixes {
    /// The announced place, and until when it is valid.
    claim: Option<(ShiftAnnouncement, Time)>,
    /// True if the announced place must be challenged.
    asks: bool,
    /// The last challenge: token, addresses and time.
    asked: Option<(PathToken, ShiftAddresses, Time)>,
    /// The former prefix, and until when frames from there are accepted.
    left: Option<([u8; 8], Time)>,
    /// True if the neighbour was proven to be at the former prefix.
    left_known: bool,
    /// The shift in progress when this end followed the neighbour from there.
    left_in: Option<ShiftAddresses>,
    /// The prefix at which it was reached or seen while it announced a different one, as behind a
    /// translator of prefixes.
    seen: Option<[u8; 8]>,
    /// Budget for frames to the former prefix.
    to_left: FrameBudget,
}

/// Result of an answer to a challenge of an announced place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChallengeResult {
    /// The neighbour is at this place.
    Here(ShiftAnnouncement),
    /// The answer is outdated: its addresses are no longer in use, or the move was already proved.
    Late,
}

impl RemotePrefixes {
    /// Notes the announced place, which must be challenged.
    pub(super) fn claim(&mut self, now: Time, place: ShiftAnnouncement) {
        self.asked.take_if(|_| self.claim.is_none_or(|(known, _)| known != place));
        self.claim = Some((place, now + CLAIM_KEPT));
        self.asks = true;
    }

    /// Drops the announcement.
    pub(super) fn forget(&mut self) {
        (self.claim, self.asks) = (None, false);
    }

    /// The announced place.
    pub(super) fn claimed(&self, now: Time) -> Option<ShiftAnnouncement> {
        self.claim.filter(|(_, until)| now < *until).map(|(place, _)| place)
    }

    /// Notes that this end followed the neighbour from this prefix, perhaps during a shift. `known`
    /// is true if it was proven to be there.
    pub(super) fn leave(
        &mut self,
        now: Time,
        prefix: [u8; 8],
        known: bool,
        during: Option<ShiftAddresses>,
    ) {
        self.forget();
        (self.left_known, self.left_in) = (known, during);
        self.left = Some((prefix, now + LEFT_KEPT));
    }

    /// Notes that the neighbour is not (yet) at its announced place.
    pub(super) fn stay(&mut self, now: Time, said: ShiftAnnouncement) {
        self.left = None;
        self.claim(now, said);
    }

    /// Notes the prefix at which it was seen while it announced a different one.
    pub(super) fn see(&mut self, prefix: Option<[u8; 8]>) {
        self.seen = prefix;
    }

    /// The prefix at which it was seen while it announced a different one.
    pub(super) fn seen(&self) -> Option<[u8; 8]> {
        self.seen
    }

    /// True if the neighbour was followed during this shift.
    pub(super) fn left_in(&self, spot: ShiftAddresses) -> bool {
        self.left_in == Some(spot)
    }

    /// True if it was at this prefix until recently.
    pub(super) fn has_left(&self, now: Time, prefix: [u8; 8]) -> bool {
        self.left.is_some_and(|(left, until)| left == prefix && now < until)
    }

    /// The second prefix at which the neighbour may be: the announced one, else the former one.
    pub(super) fn other(&self, now: Time) -> Option<[u8; 8]> {
        let claimed = self.claimed(now).map(|place| place.prefix);
        claimed.or_else(|| self.left.filter(|(_, until)| now < *until).map(|(prefix, _)| prefix))
    }

    /// The second prefix, if it differs from `used` and the budget allows a frame there. `unproven`
    /// is the budget for unproven places, limited to `most`.
    pub(super) fn copy(
        &mut self,
        now: Time,
        used: [u8; 8],
        unproven: &mut FrameBudget,
        most: u32,
    ) -> Option<[u8; 8]> {
        let other = self.other(now).filter(|other| *other != used)?;
        let is_known = self.left_known && self.claimed(now).is_none();
        let (budget, most) =
            if is_known { (&mut self.to_left, LEFT_MAX) } else { (unproven, most) };
        budget.spend(now, 1, most).then_some(other)
    }

    /// Takes the number of frames to the former prefix that were held back.
    pub(super) fn take_held_back(&mut self) -> u32 {
        self.to_left.take_held_back()
    }

    /// Takes the announced place if it must be challenged at the addresses of `at`, by this number
    /// of frames.
    pub(super) fn ask(
        &mut self,
        now: Time,
        at: ShiftAddresses,
        frames: u32,
        token: PathToken,
        unproven: &mut FrameBudget,
    ) -> Option<(ShiftAnnouncement, PathToken)> {
        let asks = core::mem::take(&mut self.asks);
        let place = self.claimed(now).filter(|_| asks)?;
        let lately =
            |(_, spot, when): (_, ShiftAddresses, Time)| spot == at && now < when + ASK_AGAIN;
        if self.asked.is_some_and(lately) || !unproven.spend(now, frames, CLAIMED_MAX) {
            return None;
        }
        // An answer to the previous challenge may be in transit, so its token is kept.
        let known = self.asked.filter(|(_, spot, when)| *spot == at && now < *when + ANSWER_KEPT);
        let token = known.map_or(token, |(token, ..)| token);
        self.asked = Some((token, at, now));
        Some((place, token))
    }

    /// Handles the answer to a challenge of an announced place. None if it matches none.
    pub(super) fn answered(
        &mut self,
        now: Time,
        at: Option<ShiftAddresses>,
        token: PathToken,
    ) -> Option<ChallengeResult> {
        let is_it = |(known, _, when): &mut (PathToken, ShiftAddresses, Time)| {
            *known == token && now < *when + ANSWER_KEPT
        };
        let (_, spot, _) = self.asked.take_if(is_it)?;
        let Some(place) = self.claimed(now) else { return Some(ChallengeResult::Late) };
        if at != Some(spot) {
            // Firewalls may not know the current addresses.
            self.asks = true;
            return Some(ChallengeResult::Late);
        }
        Some(ChallengeResult::Here(place))
    }

    /// Drops expired state. Returns true if none is left.
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
