//! The addresses of one link's two ends: which are in use, which are taken in, and how both ends
//! move to the next ones without losing a frame.
//!
//! ```text
//! leading end                                     following end
//!   epoch begins -- Call, between new addresses -->    takes in frames there already
//!   moves        <- Answer, the same way back ------
//!                -- Done ------------------------->    moves
//! ```
//!
//! An end moves its data only when it knows that frames pass both ways between the new addresses:
//! the step for which it moves returns a token that it sent there (`link/steps.rs`). Until then the
//! old ones are used, which the other end takes in for one epoch more. If three quarters of the new
//! epoch pass without that, or a step was sent eight times, both ends fall back to the fixed
//! endpoint, where the link was before. The leading end tries again at once, for the next epoch if
//! half of this one has passed, and after a pause if that fails, too.
//!
//! A firewall that lets in only what answers keeps the first call from the following end. If no
//! call has come after an eighth of an epoch, the following end sends one itself: that opens its
//! own firewall, as the leading end's call has opened the other.
//!
//! Two clocks tell the epoch, from the moment at which each end agreed on the session. They differ
//! by a trip of the handshake's answer, so that each end takes in the epochs before and after its
//! own.

mod moves;
mod steps;

use core::time::Duration;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;

use shoal_crypto::Secret;
use shoal_session::Endpoints;
use shoal_wire::{HopPlace, HopStage, HopStep, PathToken, Time};

use super::budget::Budget;
use super::prefixes::{Far, Own};
use super::schedule::{End, Schedule};

pub use moves::Followed;

/// After how long a step is repeated at most; else an eighth of the interval.
const RETRY_MAX: Duration = Duration::from_secs(1);
/// Steps that wait to be sent.
const STEPS_MAX: usize = 4;
/// How often a step is sent.
const TRIES: u32 = 8;
/// How often the following end opens the way for a call ...
const OPENS: u32 = 3;
/// ... and, from the fixed endpoint, at least how long after the last time: the leading end may
/// pause for long.
const OPENS_AFTER: Duration = Duration::from_secs(10);
/// How long no hop is tried after two that failed; twice as long after each further one, ...
const PAUSE: Duration = Duration::from_secs(10);
/// ... doubled so often at most.
const DOUBLINGS_MAX: u32 = 6;
/// Schedules kept: the newest, the one before, those of addresses in use, ...
const SCHEDULES_MAX: usize = 8;
/// ... and so many that the neighbour may still use, whose last steps got lost.
const RECENT_MAX: usize = 3;

/// What a step has that brings or returns no token.
const NO_TOKEN: PathToken = [0; size_of::<PathToken>()];

/// A lane that no link has.
const SPARE_LANE: u8 = u8::MAX;

/// Addresses: of which schedule, and of which epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Spot {
    tag: [u8; 4],
    epoch: u32,
}

/// A schedule, and when its epoch 0 began.
struct Run {
    schedule: Schedule,
    since: Time,
}

/// A hop that is under way.
struct Attempt {
    to: Spot,
    /// When its step is sent next.
    again: Time,
    /// How often it was.
    tries: u32,
    /// What an answer of the following end returns: the newest call's token.
    echo: PathToken,
}

/// What became of the last hop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// There was none.
    None,
    /// Both ends moved.
    Moved,
    /// Nothing came back from the new addresses: both ends fell back to the fixed endpoint.
    Failed,
}

/// What is known of a link's hops, for people. It says nothing of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HopView {
    /// How long an address is used: the longer of what both ends ask for.
    pub interval: Duration,
    /// The neighbour said that its addresses hop, too.
    pub agreed: bool,
    /// The link's data is between addresses that hop.
    pub hopping: bool,
    /// Hops that were made.
    pub made: u64,
    /// Hops after which both ends fell back.
    pub failed: u64,
    /// When the last one ended, and how.
    pub last: (Time, Outcome),
    /// Handshakes begin at addresses that follow from the time ([`super::Rendezvous`]).
    pub meets: bool,
    /// When the hop after the link came up, or fell back, begins at the latest, unless more fail.
    pub begins_by: Time,
}

/// The hops of one link.
pub struct Hop {
    end: End,
    /// From which the tokens in this end's steps are derived.
    key: Arc<Secret<32>>,
    own: Own,
    peer: Option<HopPlace>,
    /// What the neighbour said last of itself.
    said: Option<HopPlace>,
    /// Its other prefixes; most links have none.
    far: Option<Box<Far>>,
    /// Frames that went lately to where it was not reached yet.
    unproven: Budget,
    /// The newest first.
    runs: Vec<Run>,
    /// Where data goes; none while that is the fixed endpoint.
    at: Option<Spot>,
    /// Where data went before, and until when frames may come there.
    before: Option<(Spot, Time)>,
    next: Option<Attempt>,
    /// Where the following end waits for a call, and called itself.
    opened: Option<Attempt>,
    /// With what each returns.
    steps: VecDeque<(Spot, HopStage, PathToken)>,
    /// The same, of a step that is being sent: between which addresses each copy of it goes.
    copies: Vec<(Endpoints, HopStep)>,
    /// Steps that there was no room for, since they were taken last.
    crowded: u32,
    /// Until then no hop is begun.
    paused: Time,
    faults: u32,
    made: u64,
    failed: u64,
    last: (Time, Outcome),
    /// What [`HopView::begins_by`] says.
    begins_by: Time,
    /// Identifiers that this end must not use, sorted.
    left_out: Arc<[u64]>,
}

impl Hop {
    /// This end's addresses are at `own`, each used for its interval or the neighbour's, whichever
    /// is longer. The end with the smaller key leads. Nobody else may know `key`, by which this
    /// end knows what the neighbour returns; links may share it.
    pub fn new(own: HopPlace, leads: bool, key: Arc<Secret<32>>) -> Hop {
        Hop {
            end: if leads { End::Leading } else { End::Following },
            key,
            own: Own::new(own),
            peer: None,
            said: None,
            far: None,
            unproven: Budget::default(),
            runs: Vec::new(),
            at: None,
            before: None,
            next: None,
            opened: None,
            steps: VecDeque::new(),
            copies: Vec::new(),
            crowded: 0,
            paused: Time::ZERO,
            faults: 0,
            made: 0,
            failed: 0,
            last: (Time::ZERO, Outcome::None),
            begins_by: Time::ZERO,
            left_out: Arc::default(),
        }
    }

    /// Says which identifiers this end must not use, given sorted: those of machines behind it. An
    /// epoch that has one, of 2^64, is left out: the link falls back for so long, as after any hop
    /// that fails.
    pub fn leave_out(&mut self, identifiers: Arc<[u64]>) {
        self.left_out = identifiers;
    }

    /// Where this end's addresses are, and how long it wants to use one.
    pub fn own(&self) -> HopPlace {
        self.own.place()
    }

    /// Whether the neighbour may still send to where this end's addresses were before.
    pub(crate) fn has_moved(&self, now: Time) -> bool {
        self.own.is_new(now)
    }

    /// From which the tokens in this end's steps are derived.
    pub(crate) fn key(&self) -> Arc<Secret<32>> {
        Arc::clone(&self.key)
    }

    /// What the neighbour said last of where its addresses are.
    pub(crate) fn said(&self) -> Option<HopPlace> {
        self.said
    }

    /// Where the neighbour's addresses are, if they hop, too.
    pub(crate) fn peer(&self) -> Option<HopPlace> {
        self.peer
    }

    /// An identifier of this end's that no epoch has; another for each number. None before the
    /// first session.
    pub(crate) fn spare(&self, number: u32) -> Option<u64> {
        let newest = self.runs.first()?;
        Some(newest.schedule.identifier(self.end, number, SPARE_LANE))
    }

    fn interval(&self) -> Duration {
        let peer = self.peer.map_or(Duration::ZERO, |peer| peer.interval());
        self.own().interval().max(peer)
    }

    fn run(&self, tag: [u8; 4]) -> Option<&Run> {
        self.runs.iter().find(|run| run.schedule.tag() == tag)
    }

    fn epoch(&self, now: Time, run: &Run) -> u32 {
        run.schedule.epoch(run.since, now, self.interval())
    }

    /// When an epoch begins.
    fn begins(&self, epoch: u32, run: &Run) -> Time {
        run.since + run.schedule.begins(epoch, self.interval())
    }

    /// How long an epoch lasts.
    fn length(&self, epoch: u32, run: &Run) -> Duration {
        self.begins(epoch.saturating_add(1), run).since(self.begins(epoch, run))
    }

    /// True in the second half of the present epoch.
    fn is_late(&self, now: Time, run: &Run) -> bool {
        let epoch = self.epoch(now, run);
        now.since(self.begins(epoch, run)) >= self.length(epoch, run) / 2
    }

    fn ends(&self, spot: Spot) -> Option<Endpoints> {
        self.between(spot, self.own.source(), self.peer?)
    }

    /// The addresses of a spot under these prefixes.
    fn between(&self, spot: Spot, near: HopPlace, far: HopPlace) -> Option<Endpoints> {
        let run = self.run(spot.tag)?;
        let id = |end| run.schedule.identifier(end, spot.epoch, 0);
        let own = id(self.end);
        if self.left_out.binary_search(&own).is_ok() {
            return None;
        }
        let local = Some(near.endpoint(own));
        Some(Endpoints { local, remote: far.endpoint(id(self.end.other())) })
    }

    /// From where to where the link's data goes; none while that is the fixed endpoint.
    pub fn place(&self) -> Option<Endpoints> {
        self.at.and_then(|at| self.ends(at))
    }

    /// A session was agreed at `since`, with this secret. The neighbour is to be told this end's
    /// place again, since it may have started anew.
    pub fn session(&mut self, now: Time, secret: &[u8; 32], since: Time) {
        self.own.tell();
        let schedule = Schedule::new(secret);
        if self.run(schedule.tag()).is_some() {
            return;
        }
        self.runs.insert(0, Run { schedule, since });
        self.forget_runs(now);
    }

    /// Forgets schedules of which no address is in use, but for the newest two, and those that were
    /// replaced so lately that the neighbour may be at one of their addresses.
    fn forget_runs(&mut self, now: Time) {
        let before = self.before.filter(|(_, until)| now < *until).map(|(spot, _)| spot);
        let next = self.next.as_ref().map(|next| next.to);
        let used = [self.at, before, next].map(|spot| spot.map(|spot| spot.tag));
        let lasts = self.interval() * 5 / 2;
        let (mut place, mut recent, mut replaced) = (0, 0, now);
        self.runs.retain(|run| {
            place += 1;
            let is_recent = now < replaced + lasts && recent < RECENT_MAX;
            replaced = run.since;
            let is_used = place <= 2 || used.contains(&Some(run.schedule.tag()));
            recent += usize::from(is_recent && !is_used);
            is_used || is_recent
        });
        debug_assert!(self.runs.len() <= SCHEDULES_MAX);
    }

    /// The link's data goes to the fixed endpoint: a handshake showed it, or the link went down.
    pub fn fall(&mut self, now: Time) {
        let at = self.at.take();
        if let Some(at) = at {
            self.before = Some((at, now + self.interval()));
            self.expect(now);
        }
        if let (Some(claimed), Some(before)) = (self.claim(now), self.peer) {
            self.peer = Some(claimed);
            let far = self.far.get_or_insert_default();
            far.leave(now, before.prefix, at.is_some(), None);
            far.see(Some(before.prefix));
        }
        self.forget_claim();
        self.own.fall();
        self.next = None;
        self.drop_steps();
    }

    /// Where the neighbour says its addresses to be from now on.
    fn claim(&self, now: Time) -> Option<HopPlace> {
        self.far.as_ref().and_then(|far| far.claimed(now))
    }

    fn forget_claim(&mut self) {
        if let Some(far) = &mut self.far {
            far.forget();
        }
    }

    /// The link is up after it was down, or the neighbour is elsewhere. That hops failed before
    /// says little of the next one, which waits no longer than after two that failed.
    pub fn back(&mut self, now: Time) {
        self.paused = self.paused.min(now + PAUSE);
        self.faults = self.faults.min(1);
        self.expect(now);
    }

    /// The next hop begins after the pause that the other end may make, or with the epoch after.
    fn expect(&mut self, now: Time) {
        let paused = now + PAUSE;
        let late = |run: &&Run| self.is_late(paused, run);
        let next = |run: &Run| self.begins(self.epoch(paused, run).saturating_add(1), run);
        self.begins_by = self.runs.first().filter(late).map_or(paused, next);
    }

    /// Whether a datagram from there is the neighbour's by its schedule.
    pub fn knows(&self, now: Time, remote: SocketAddr) -> bool {
        let Some((prefix, id)) = HopPlace::split(remote) else { return false };
        let is_there = |peer: &HopPlace| peer.prefix == prefix && peer.port == remote.port();
        self.peer.as_ref().is_some_and(is_there) && self.spots(now).any(|spot| self.is(spot, id))
    }

    /// Whether an address is under the neighbour's prefix, of whatever epoch.
    pub fn is_under_prefix(&self, remote: SocketAddr) -> bool {
        let prefix = HopPlace::split(remote).map(|(prefix, _)| prefix);
        self.peer.is_some_and(|peer| prefix == Some(peer.prefix))
    }

    fn is(&self, spot: Spot, identifier: u64) -> bool {
        let other = self.end.other();
        let run = self.run(spot.tag);
        run.is_some_and(|run| run.schedule.identifier(other, spot.epoch, 0) == identifier)
    }

    /// All addresses at which frames may come now; some may stand there twice.
    fn spots(&self, now: Time) -> impl Iterator<Item = Spot> + '_ {
        let before = self.before.filter(|(_, until)| now < *until).map(|(spot, _)| spot);
        let next = self.next.as_ref().map(|next| next.to);
        let near = self.runs.iter().flat_map(move |run| {
            let (tag, epoch) = (run.schedule.tag(), self.epoch(now, run));
            let about = epoch.saturating_sub(1)..=epoch.saturating_add(1);
            about.map(move |epoch| Spot { tag, epoch })
        });
        [self.at, before, next].into_iter().flatten().chain(near).filter(|_| self.peer.is_some())
    }

    /// Adds the interface identifiers of this end at which frames may come now.
    pub fn accepted(&self, now: Time, out: &mut Vec<u64>) {
        let id =
            |spot: Spot| Some(self.run(spot.tag)?.schedule.identifier(self.end, spot.epoch, 0));
        let may = |id: &u64| self.left_out.binary_search(id).is_err();
        out.extend(self.spots(now).filter_map(id).filter(may));
    }

    /// Where the link should be: at the epoch's address of the schedule in use, and from its end on
    /// at the newest schedule's.
    fn target(&self, now: Time) -> Option<(Spot, &Run)> {
        self.peer?;
        let newest = self.runs.first()?;
        let at = self.at.and_then(|at| Some((at, self.run(at.tag)?)));
        let lasts = at.filter(|(at, run)| self.epoch(now, run) <= at.epoch);
        let tag = newest.schedule.tag();
        Some(lasts.unwrap_or((Spot { tag, epoch: self.epoch(now, newest) }, newest)))
    }

    /// To where this end is to call the neighbour now, if it is to begin a hop.
    fn wanted(&self, now: Time) -> Option<Spot> {
        if self.end == End::Following || self.next.is_some() || now < self.paused {
            return None;
        }
        let (to, run) = self.target(now).filter(|(to, _)| self.at != Some(*to))?;
        // From the fixed endpoint a hop ends with the epoch that it leads to; else its deadline is
        // that of the addresses in use.
        (self.at.is_some() || !self.is_late(now, run)).then_some(to)
    }

    /// When the following end is to call, and to where, so that its own firewall lets the leading
    /// end's call in.
    fn opens(&self, now: Time) -> Option<(Time, Spot)> {
        if self.end == End::Leading || self.next.is_some() || now < self.paused {
            return None;
        }
        let (to, run) = self.target(now).filter(|(to, _)| self.at != Some(*to))?;
        let began = self.begins(to.epoch, run);
        let due = match &self.opened {
            Some(opened) if opened.to == to && self.at.is_some() && opened.tries >= OPENS => {
                return None;
            }
            Some(opened) if opened.to == to => opened.again,
            _ => began + self.retry(),
        };
        // From the fixed endpoint no hop begins later.
        (self.at.is_some() || due < began + self.length(to.epoch, run) / 2).then_some((due, to))
    }

    fn open(&mut self, now: Time) {
        let Some((_, to)) = self.opens(now).filter(|(due, _)| *due <= now) else { return };
        let before = self.opened.take().filter(|opened| opened.to == to);
        let tries = before.map_or(0, |opened| opened.tries) + 1;
        let after = if self.at.is_some() { self.retry() } else { self.retry().max(OPENS_AFTER) };
        self.opened = Some(Attempt { to, again: now + after, tries, echo: NO_TOKEN });
        self.push(to, HopStage::Call, NO_TOKEN);
        if self.at.is_none() {
            // Nor would the leading end call that has not heard it.
            self.own.tell_again();
        }
    }

    fn retry(&self) -> Duration {
        RETRY_MAX.min(self.interval() / 8)
    }

    fn fail(&mut self, now: Time) {
        let hopped = self.at.is_some();
        self.fall(now);
        if !hopped {
            self.try_elsewhere();
        }
        // The neighbour may not have heard where this end is, and answers no step then.
        self.own.tell_again();
        // Steps may have got lost for once.
        let pause = |more: u32| PAUSE * (1 << more.min(DOUBLINGS_MAX));
        self.paused = now + self.faults.checked_sub(1).map_or(Duration::ZERO, pause);
        self.faults += 1;
        self.failed += 1;
        self.last = (now, Outcome::Failed);
    }

    /// When data must have left the addresses in use, or the hop that is under way have ended.
    fn deadline(&self) -> Option<Time> {
        let at = self.at.or(self.next.as_ref().map(|next| next.to))?;
        let run = self.run(at.tag)?;
        let epoch = at.epoch.saturating_add(u32::from(self.at.is_some()));
        let lasts = self.length(epoch, run).min(self.interval());
        Some(self.begins(epoch, run) + lasts * 3 / 4)
    }

    /// Does what time asks for.
    pub fn handle_timeout(&mut self, now: Time) {
        self.before.take_if(|(_, until)| *until <= now);
        self.own.handle_timeout(now);
        self.far.take_if(|far| far.handle_timeout(now));
        let in_vain = |next: &Attempt| next.again <= now && next.tries == TRIES;
        let late = self.deadline().is_some_and(|at| at <= now);
        if late || self.next.as_ref().is_some_and(in_vain) {
            self.fail(now);
        }
        let wanted = self.wanted(now);
        let retry = self.retry();
        let leads = self.end == End::Leading;
        match &mut self.next {
            Some(next) if next.again <= now => {
                next.tries += 1;
                next.again = now + retry;
                let (to, stage) = (next.to, if leads { HopStage::Call } else { HopStage::Answer });
                let echo = next.echo;
                self.push(to, stage, echo);
            }
            Some(_) => {}
            None => {
                if let Some(to) = wanted {
                    self.next = Some(Attempt { to, again: now + retry, tries: 1, echo: NO_TOKEN });
                    self.push(to, HopStage::Call, NO_TOKEN);
                }
                self.open(now);
            }
        }
    }

    /// When to call next: at hops to be begun, steps to be repeated, deadlines, and whenever an
    /// epoch begins, since other addresses are taken in from then on.
    pub fn poll_timeout(&self, now: Time) -> Option<Time> {
        let prefixes =
            [self.own.poll_timeout(), self.far.as_ref().and_then(|far| far.poll_timeout())];
        let prefixes = prefixes.into_iter().flatten().min();
        if !self.steps.is_empty() || !self.copies.is_empty() {
            return Some(Time::ZERO);
        }
        if self.wanted(now).is_some() {
            return Some(prefixes.map_or(now, |at| at.min(now)));
        }
        if self.peer.is_none() {
            return prefixes;
        }
        let begin = |run: &Run| self.begins(self.epoch(now, run).saturating_add(1), run);
        let begins = self.runs.iter().map(begin).min();
        let again = self.next.as_ref().map(|next| next.again);
        let paused = Some(self.paused).filter(|at| now < *at);
        let before = self.before.map(|(_, until)| until);
        let opens = self.opens(now).map(|(due, _)| due);
        let all = [begins, again, self.deadline(), paused, before, opens, prefixes];
        all.into_iter().flatten().min()
    }

    /// What is known of its hops.
    pub fn view(&self) -> HopView {
        HopView {
            interval: self.interval(),
            agreed: self.peer.is_some(),
            hopping: self.at.is_some(),
            made: self.made,
            failed: self.failed,
            last: self.last,
            meets: false,
            begins_by: self.begins_by,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The other end may pause after hops that failed, and hops begin in an epoch's first half.
    #[test]
    fn a_hop_is_not_expected_before_the_other_end_may_begin_it() {
        let by = |interval_ms: u32, up: u64| {
            let place = HopPlace { prefix: [0x20; 8], port: 7, interval_ms };
            let mut hop = Hop::new(place, true, Arc::new(Secret::new([1; 32])));
            hop.session(Time::ZERO, &[2; 32], Time::ZERO);
            hop.back(Time::from_millis(up));
            let next = Time::ZERO + hop.runs[0].schedule.begins(1, hop.interval());
            (hop.view().begins_by, next)
        };
        // The pause ends in the second half of the epoch, whatever its length.
        for (interval, up) in [(14_000, 0), (3_600_000, 2_400_000)] {
            let (begins, next) = by(interval, up);
            assert_eq!(begins, next, "{interval} {up}");
        }
        for interval in [30_000, 3_600_000] {
            assert_eq!(by(interval, 0).0, Time::from_millis(10_000), "{interval}");
        }
    }
}
