//! The addresses of one link's two ends: the ones in use, the ones at which frames are accepted,
//! and lossless moves to the next ones.
//!
//! ```text
//! leading end                                     following end
//!   epoch begins -- Call, between new addresses -->    already accepts frames there
//!   moves        <- Answer, the same way back ------
//!                -- Done ------------------------->    moves
//! ```
//!
//! An end moves its data only when it knows that frames pass both ways between the new addresses.
//! The proof is a step that returns a token which this end sent there (`link/steps.rs`). Until then
//! it uses the old addresses, which the other end accepts for one epoch more.
//!
//! Both ends fall back to the fixed endpoint if a step was sent eight times. They also do so if the
//! proof is missing after three quarters of the new epoch. The leading end tries again at once, for
//! the next epoch if half of this one has passed. If that fails too, it pauses first.
//!
//! A stateful firewall at the following end blocks the first call. If no call arrives within an
//! eighth of an epoch, the following end sends one itself. That opens its own firewall, as the
//! leading end's call has opened the other one.
//!
//! Each end counts epochs by its own clock, from the time at which it agreed on the session. The
//! two counts differ by a trip of the handshake's answer. So each end also accepts the epochs
//! before and after its own.

mod moves;
mod steps;

use core::time::Duration;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;

use shoal_crypto::Secret;
use shoal_session::Endpoints;
use shoal_wire::{PathToken, ShiftAnnouncement, ShiftStage, ShiftStep, Time};

use super::budget::FrameBudget;
use super::prefixes::{LocalPrefixes, RemotePrefixes};
use super::schedule::{ShiftRole, ShiftSchedule};

pub use moves::PrefixChange;

/// Maximum delay before a step is repeated. Usually an eighth of the interval.
const RETRY_MAX: Duration = Duration::from_secs(1);
/// Maximum number of steps that wait to be sent.
const STEPS_MAX: usize = 4;
/// Maximum number of times a step is sent.
const TRIES: u32 = 8;
/// Number of calls by which the following end opens its firewall.
const OPENS: u32 = 3;
/// Minimum time between these calls from the fixed endpoint, since the leading end may pause for
/// long.
const OPENS_AFTER: Duration = Duration::from_secs(10);
/// Pause after two failed shifts. It doubles with each further failure.
const PAUSE: Duration = Duration::from_secs(10);
/// Maximum number of doublings.
const DOUBLINGS_MAX: u32 = 6;
/// Maximum number of schedules: the newest, the one before, and those in use.
const SCHEDULES_MAX: usize = 8;
/// Maximum number of further schedules that the neighbour may still use because last steps were
/// lost.
const RECENT_MAX: usize = 3;

/// The token field of a step without a token.
const NO_TOKEN: PathToken = [0; size_of::<PathToken>()];

/// A lane number that no link has.
const SPARE_LANE: u8 = u8::MAX;

/// A pair of addresses: its schedule and epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ShiftAddresses {
    tag: [u8; 4],
    epoch: u32,
}

/// A schedule, and the start of its epoch 0.
struct ScheduleStart {
    schedule: ShiftSchedule,
    since: Time,
}

/// A shift in progress.
struct ShiftAttempt {
    to: ShiftAddresses,
    /// When its step is sent next.
    again: Time,
    /// Number of times the step was sent.
    tries: u32,
    /// The token of the newest call, which an answer of the following end returns.
    echo: PathToken,
}

/// Result of the last shift.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShiftOutcome {
    /// There was no shift.
    None,
    /// Both ends moved.
    Moved,
    /// The new addresses did not answer: both ends fell back to the fixed endpoint.
    Failed,
}

/// State of a link's address shifts, for status output. It contains no addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShiftView {
    /// Time for which an address is used: the longer of both ends' intervals.
    pub interval: Duration,
    /// True if the neighbour announced that its addresses shift too.
    pub agreed: bool,
    /// True if the link's data uses shifting addresses.
    pub shifting: bool,
    /// Number of completed shifts.
    pub made: u64,
    /// Number of failed shifts, after which both ends fell back.
    pub failed: u64,
    /// Time and result of the last shift.
    pub last: (Time, ShiftOutcome),
    /// True if handshakes begin at rendezvous addresses ([`super::Rendezvous`]).
    pub meets: bool,
    /// Latest start of the next shift after the link came up or fell back, unless more shifts fail.
    pub begins_by: Time,
}

/// The address shifts of one link.
pub struct ShiftState {
    end: ShiftRole,
    /// Key for the tokens in this end's steps.
    key: Arc<Secret<32>>,
    own: LocalPrefixes,
    peer: Option<ShiftAnnouncement>,
    /// The neighbour's last announcement.
    said: Option<ShiftAnnouncement>,
    /// The neighbour's other prefixes. None for most links.
    far: Option<Box<RemotePrefixes>>,
    /// Budget for frames to places where the neighbour is not yet proven.
    unproven: FrameBudget,
    /// Schedules, the newest first.
    runs: Vec<ScheduleStart>,
    /// Current addresses of data. None while data uses the fixed endpoint.
    at: Option<ShiftAddresses>,
    /// Previous addresses of data, and until when frames are accepted there.
    before: Option<(ShiftAddresses, Time)>,
    next: Option<ShiftAttempt>,
    /// The call by which the following end opened its firewall, and its repeats.
    opened: Option<ShiftAttempt>,
    /// Steps to send, each with the token that it returns.
    steps: VecDeque<(ShiftAddresses, ShiftStage, PathToken)>,
    /// The step in progress: the addresses of each copy that is still to be sent.
    copies: Vec<(Endpoints, ShiftStep)>,
    /// Number of steps that found no room since they were last taken.
    crowded: u32,
    /// No shift begins before this time.
    paused: Time,
    faults: u32,
    made: u64,
    failed: u64,
    last: (Time, ShiftOutcome),
    /// Value of [`ShiftView::begins_by`].
    begins_by: Time,
    /// Identifiers that this end must not use, sorted.
    left_out: Arc<[u64]>,
}

impl ShiftState {
    /// Creates the state of a link whose local addresses are at `own`. Each is used for the longer
    /// of both ends' intervals. The end with the smaller public key leads. `key` must be secret,
    /// since it authenticates returned tokens. Links may share it.
    pub fn new(own: ShiftAnnouncement, leads: bool, key: Arc<Secret<32>>) -> ShiftState {
        ShiftState {
            end: if leads { ShiftRole::Leading } else { ShiftRole::Following },
            key,
            own: LocalPrefixes::new(own),
            peer: None,
            said: None,
            far: None,
            unproven: FrameBudget::default(),
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
            last: (Time::ZERO, ShiftOutcome::None),
            begins_by: Time::ZERO,
            left_out: Arc::default(),
        }
    }

    /// Sets the identifiers that this end must not use, sorted: those of machines behind it. An
    /// epoch with such an identifier (probability 2^-64 each) is skipped. The link falls back for
    /// that time, as after any failed shift.
    pub fn leave_out(&mut self, identifiers: Arc<[u64]>) {
        self.left_out = identifiers;
    }

    /// This end's place and preferred interval.
    pub fn own(&self) -> ShiftAnnouncement {
        self.own.place()
    }

    /// True if the neighbour may still send to this end's former prefix.
    pub(crate) fn has_moved(&self, now: Time) -> bool {
        self.own.is_new(now)
    }

    /// Key for the tokens in this end's steps.
    pub(crate) fn key(&self) -> Arc<Secret<32>> {
        Arc::clone(&self.key)
    }

    /// The neighbour's last announcement.
    pub(crate) fn said(&self) -> Option<ShiftAnnouncement> {
        self.said
    }

    /// The neighbour's place, if its addresses shift too.
    pub(crate) fn peer(&self) -> Option<ShiftAnnouncement> {
        self.peer
    }

    /// An identifier of this end that no epoch uses, different for each number. None before the
    /// first session.
    pub(crate) fn spare(&self, number: u32) -> Option<u64> {
        let newest = self.runs.first()?;
        Some(newest.schedule.identifier(self.end, number, SPARE_LANE))
    }

    fn interval(&self) -> Duration {
        let peer = self.peer.map_or(Duration::ZERO, |peer| peer.interval());
        self.own().interval().max(peer)
    }

    fn run(&self, tag: [u8; 4]) -> Option<&ScheduleStart> {
        self.runs.iter().find(|run| run.schedule.tag() == tag)
    }

    fn epoch(&self, now: Time, run: &ScheduleStart) -> u32 {
        run.schedule.epoch(run.since, now, self.interval())
    }

    /// When an epoch begins.
    fn begins(&self, epoch: u32, run: &ScheduleStart) -> Time {
        run.since + run.schedule.begins(epoch, self.interval())
    }

    /// Length of an epoch.
    fn length(&self, epoch: u32, run: &ScheduleStart) -> Duration {
        self.begins(epoch.saturating_add(1), run).since(self.begins(epoch, run))
    }

    /// True in the second half of the current epoch.
    fn is_late(&self, now: Time, run: &ScheduleStart) -> bool {
        let epoch = self.epoch(now, run);
        now.since(self.begins(epoch, run)) >= self.length(epoch, run) / 2
    }

    fn ends(&self, spot: ShiftAddresses) -> Option<Endpoints> {
        self.between(spot, self.own.source(), self.peer?)
    }

    /// The addresses of a spot under these prefixes.
    fn between(
        &self,
        spot: ShiftAddresses,
        near: ShiftAnnouncement,
        far: ShiftAnnouncement,
    ) -> Option<Endpoints> {
        let run = self.run(spot.tag)?;
        let id = |end| run.schedule.identifier(end, spot.epoch, 0);
        let own = id(self.end);
        if self.left_out.binary_search(&own).is_ok() {
            return None;
        }
        let local = Some(near.endpoint(own));
        Some(Endpoints { local, remote: far.endpoint(id(self.end.other())) })
    }

    /// Source and destination of the link's data. None while data uses the fixed endpoint.
    pub fn place(&self) -> Option<Endpoints> {
        self.at.and_then(|at| self.ends(at))
    }

    /// Handles a session that was agreed at `since` with this secret. This end's place must be
    /// announced again, since the neighbour may have restarted.
    pub fn session(&mut self, now: Time, secret: &[u8; 32], since: Time) {
        self.own.tell();
        let schedule = ShiftSchedule::new(secret);
        if self.run(schedule.tag()).is_some() {
            return;
        }
        self.runs.insert(0, ScheduleStart { schedule, since });
        self.forget_runs(now);
    }

    /// Drops unused schedules. It keeps the newest two, and those replaced so recently that the
    /// neighbour may still use them.
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

    /// Moves data to the fixed endpoint, because a handshake proved it or the link went down.
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

    /// The neighbour's announced place.
    fn claim(&self, now: Time) -> Option<ShiftAnnouncement> {
        self.far.as_ref().and_then(|far| far.claimed(now))
    }

    fn forget_claim(&mut self) {
        if let Some(far) = &mut self.far {
            far.forget();
        }
    }

    /// Handles a link that is up again, or a neighbour that moved. Earlier failures say little
    /// about the next shift. So it waits no longer than after two failures.
    pub fn back(&mut self, now: Time) {
        self.paused = self.paused.min(now + PAUSE);
        self.faults = self.faults.min(1);
        self.expect(now);
    }

    /// Sets `begins_by`: the end of the other end's possible pause, or the start of the epoch after
    /// it.
    fn expect(&mut self, now: Time) {
        let paused = now + PAUSE;
        let late = |run: &&ScheduleStart| self.is_late(paused, run);
        let next =
            |run: &ScheduleStart| self.begins(self.epoch(paused, run).saturating_add(1), run);
        self.begins_by = self.runs.first().filter(late).map_or(paused, next);
    }

    /// True if a datagram from this source uses a scheduled address of the neighbour.
    pub fn knows(&self, now: Time, remote: SocketAddr) -> bool {
        let Some((prefix, id)) = ShiftAnnouncement::split(remote) else { return false };
        let is_there =
            |peer: &ShiftAnnouncement| peer.prefix == prefix && peer.port == remote.port();
        self.peer.as_ref().is_some_and(is_there) && self.spots(now).any(|spot| self.is(spot, id))
    }

    /// True if an address is under the neighbour's prefix, in any epoch.
    pub fn is_under_prefix(&self, remote: SocketAddr) -> bool {
        let prefix = ShiftAnnouncement::split(remote).map(|(prefix, _)| prefix);
        self.peer.is_some_and(|peer| prefix == Some(peer.prefix))
    }

    fn is(&self, spot: ShiftAddresses, identifier: u64) -> bool {
        let other = self.end.other();
        let run = self.run(spot.tag);
        run.is_some_and(|run| run.schedule.identifier(other, spot.epoch, 0) == identifier)
    }

    /// All addresses at which frames are accepted, with possible duplicates.
    fn spots(&self, now: Time) -> impl Iterator<Item = ShiftAddresses> + '_ {
        let before = self.before.filter(|(_, until)| now < *until).map(|(spot, _)| spot);
        let next = self.next.as_ref().map(|next| next.to);
        let near = self.runs.iter().flat_map(move |run| {
            let (tag, epoch) = (run.schedule.tag(), self.epoch(now, run));
            let about = epoch.saturating_sub(1)..=epoch.saturating_add(1);
            about.map(move |epoch| ShiftAddresses { tag, epoch })
        });
        [self.at, before, next].into_iter().flatten().chain(near).filter(|_| self.peer.is_some())
    }

    /// Appends this end's interface identifiers at which frames are accepted.
    pub fn accepted(&self, now: Time, out: &mut Vec<u64>) {
        let id = |spot: ShiftAddresses| {
            Some(self.run(spot.tag)?.schedule.identifier(self.end, spot.epoch, 0))
        };
        let may = |id: &u64| self.left_out.binary_search(id).is_err();
        out.extend(self.spots(now).filter_map(id).filter(may));
    }

    /// The addresses that the link should use: the current epoch's under the schedule in use, or
    /// after its end those of the newest schedule.
    fn target(&self, now: Time) -> Option<(ShiftAddresses, &ScheduleStart)> {
        self.peer?;
        let newest = self.runs.first()?;
        let at = self.at.and_then(|at| Some((at, self.run(at.tag)?)));
        let lasts = at.filter(|(at, run)| self.epoch(now, run) <= at.epoch);
        let tag = newest.schedule.tag();
        Some(lasts.unwrap_or((ShiftAddresses { tag, epoch: self.epoch(now, newest) }, newest)))
    }

    /// The addresses for a call, if this end must begin a shift.
    fn wanted(&self, now: Time) -> Option<ShiftAddresses> {
        if self.end == ShiftRole::Following || self.next.is_some() || now < self.paused {
            return None;
        }
        let (to, run) = self.target(now).filter(|(to, _)| self.at != Some(*to))?;
        // A shift from the fixed endpoint must end within its epoch. Otherwise its deadline is that
        // of the addresses in use.
        (self.at.is_some() || !self.is_late(now, run)).then_some(to)
    }

    /// Time and addresses for a call of the following end that opens its own firewall for the
    /// leading end's call.
    fn opens(&self, now: Time) -> Option<(Time, ShiftAddresses)> {
        if self.end == ShiftRole::Leading || self.next.is_some() || now < self.paused {
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
        // From the fixed endpoint, no shift begins later in the epoch.
        (self.at.is_some() || due < began + self.length(to.epoch, run) / 2).then_some((due, to))
    }

    fn open(&mut self, now: Time) {
        let Some((_, to)) = self.opens(now).filter(|(due, _)| *due <= now) else { return };
        let before = self.opened.take().filter(|opened| opened.to == to);
        let tries = before.map_or(0, |opened| opened.tries) + 1;
        let after = if self.at.is_some() { self.retry() } else { self.retry().max(OPENS_AFTER) };
        self.opened = Some(ShiftAttempt { to, again: now + after, tries, echo: NO_TOKEN });
        self.push(to, ShiftStage::Call, NO_TOKEN);
        if self.at.is_none() {
            // The leading end may not have heard this end's place, and would then not call.
            self.own.tell_again();
        }
    }

    fn retry(&self) -> Duration {
        RETRY_MAX.min(self.interval() / 8)
    }

    fn fail(&mut self, now: Time) {
        let shifted = self.at.is_some();
        self.fall(now);
        if !shifted {
            self.try_elsewhere();
        }
        // The neighbour may not have heard this end's place, and would then not answer steps.
        self.own.tell_again();
        // No pause after the first failure: its steps may have been lost by chance.
        let pause = |more: u32| PAUSE * (1 << more.min(DOUBLINGS_MAX));
        self.paused = now + self.faults.checked_sub(1).map_or(Duration::ZERO, pause);
        self.faults += 1;
        self.failed += 1;
        self.last = (now, ShiftOutcome::Failed);
    }

    /// Deadline for leaving the current addresses, or for ending the shift in progress.
    fn deadline(&self) -> Option<Time> {
        let at = self.at.or(self.next.as_ref().map(|next| next.to))?;
        let run = self.run(at.tag)?;
        let epoch = at.epoch.saturating_add(u32::from(self.at.is_some()));
        let lasts = self.length(epoch, run).min(self.interval());
        Some(self.begins(epoch, run) + lasts * 3 / 4)
    }

    /// Handles all timers that are due.
    pub fn handle_timeout(&mut self, now: Time) {
        self.before.take_if(|(_, until)| *until <= now);
        self.own.handle_timeout(now);
        self.far.take_if(|far| far.handle_timeout(now));
        let in_vain = |next: &ShiftAttempt| next.again <= now && next.tries == TRIES;
        let late = self.deadline().is_some_and(|at| at <= now);
        if late || self.next.as_ref().is_some_and(in_vain) {
            self.fail(now);
        }
        let wanted = self.wanted(now);
        let retry = self.retry();
        let leads = self.end == ShiftRole::Leading;
        match &mut self.next {
            Some(next) if next.again <= now => {
                next.tries += 1;
                next.again = now + retry;
                let (to, stage) =
                    (next.to, if leads { ShiftStage::Call } else { ShiftStage::Answer });
                let echo = next.echo;
                self.push(to, stage, echo);
            }
            Some(_) => {}
            None => {
                if let Some(to) = wanted {
                    self.next =
                        Some(ShiftAttempt { to, again: now + retry, tries: 1, echo: NO_TOKEN });
                    self.push(to, ShiftStage::Call, NO_TOKEN);
                }
                self.open(now);
            }
        }
    }

    /// Time of the next call: shifts to begin, steps to repeat, deadlines, and starts of epochs,
    /// which change the accepted addresses.
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
        let begin = |run: &ScheduleStart| self.begins(self.epoch(now, run).saturating_add(1), run);
        let begins = self.runs.iter().map(begin).min();
        let again = self.next.as_ref().map(|next| next.again);
        let paused = Some(self.paused).filter(|at| now < *at);
        let before = self.before.map(|(_, until)| until);
        let opens = self.opens(now).map(|(due, _)| due);
        let all = [begins, again, self.deadline(), paused, before, opens, prefixes];
        all.into_iter().flatten().min()
    }

    /// State of the link's shifts.
    pub fn view(&self) -> ShiftView {
        ShiftView {
            interval: self.interval(),
            agreed: self.peer.is_some(),
            shifting: self.at.is_some(),
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

    /// The other end may pause after failed shifts, and shifts begin in an epoch's first half.
    #[test]
    fn a_shift_is_not_expected_before_the_other_end_may_begin_it() {
        let by = |interval_ms: u32, up: u64| {
            let place = ShiftAnnouncement { prefix: [0x20; 8], port: 7, interval_ms };
            let mut shift = ShiftState::new(place, true, Arc::new(Secret::new([1; 32])));
            shift.session(Time::ZERO, &[2; 32], Time::ZERO);
            shift.back(Time::from_millis(up));
            let next = Time::ZERO + shift.runs[0].schedule.begins(1, shift.interval());
            (shift.view().begins_by, next)
        };
        // The pause ends in the second half of the epoch, at any interval.
        for (interval, up) in [(14_000, 0), (3_600_000, 2_400_000)] {
            let (begins, next) = by(interval, up);
            assert_eq!(begins, next, "{interval} {up}");
        }
        for interval in [30_000, 3_600_000] {
            assert_eq!(by(interval, 0).0, Time::from_millis(10_000), "{interval}");
        }
    }
}
