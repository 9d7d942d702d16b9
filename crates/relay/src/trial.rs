//! Trial of one neighbour's new endpoint: challenges before frames go there, and supervision for a
//! while afterwards.
//!
//! ```text
//! newest frame from elsewhere ----> challenges: there, and to the former endpoint
//! answer through it --------------> moved, limited:  a few frames; the rest to the former endpoint
//!   former silent, reports -------> moved, open:     all frames
//!     5 s ------------------------> settled:         the former endpoint is forgotten
//! former answers, reports of loss, or the link goes down: back to the former endpoint
//! ```
//!
//! An answer alone does not prove where the neighbour is. An attacker who is faster than its frames
//! may carry the challenge to it and return the answer. Unless the attacker also silences the
//! former endpoint, this gains no more than the first few frames. The same holds for a handshake
//! that the neighbour began. Naming the destination in the challenge would not help. Behind a NAT,
//! a neighbour does not know its own public address.

use core::time::Duration;

use shoal_session::{Endpoint, Endpoints};
use shoal_wire::{LaneReport, PathToken, SizeClass, Time};

/// Minimum time between two challenges to one endpoint while frames arrive from it.
const AGAIN: Duration = Duration::from_millis(250);
/// Upper bound of that time. It doubles each time the neighbour proves to be at its former
/// endpoint. Some neighbours always send from one endpoint and receive at another.
const AGAIN_MAX: Duration = Duration::from_secs(2);
/// Minimum time between challenges to different endpoints. Sources that change with every frame
/// must not cost a challenge each.
const ANOTHER: Duration = Duration::from_millis(20);
/// Minimum time between challenges to the former endpoint.
const FORMER_AGAIN: Duration = Duration::from_millis(40);
/// Upper bound of that time while the link's data uses shifting addresses. It doubles each time.
const ASIDE_GAP_MAX: Duration = Duration::from_secs(1);
/// Time for which the answer to a challenge is valid: longer than any round trip.
const ANSWER_KEPT: Duration = Duration::from_secs(5);
/// Number of unanswered challenges that count as silence of the former endpoint.
const SILENT_ASKS: u32 = 3;
/// Minimum duration of that silence, besides two round trips.
const SILENT_FOR: Duration = Duration::from_millis(100);
/// Required silence of the former endpoint before a move, if a move was undone within
/// [`CONTESTED_FOR`]. It doubles with each further move that is undone.
const PATIENCE: Duration = Duration::from_millis(500);
/// Maximum number of doublings.
const DOUBLINGS_MAX: u32 = 6;
/// Time for which an undone move delays further moves.
const CONTESTED_FOR: Duration = Duration::from_secs(60);
/// Time for which the former endpoint is challenged and remembered.
const FORMER_KEPT: Duration = Duration::from_secs(5);
/// Bytes of cells that an endpoint may get before it is proven: one burst.
const BURST: usize = 32 * SizeClass::Full.frame_len();
/// Additional bytes per batch that arrives from there: three times the minimum length of a batch.
const CREDIT: usize = 3 * SizeClass::Small.frame_len();
/// Minimum number of sent frames for which a report shows losses.
const SAMPLE: u32 = 32;
/// At least one in this many sent frames must arrive.
const OF_SENT: u64 = 8;
/// Time, besides two round trips, for which frames to the former endpoint may still be reported.
const MIXED_FOR: Duration = Duration::from_millis(50);
/// Maximum number of the neighbour's challenges that wait for answers: for its candidate, its
/// former endpoint, and earlier candidates.
const ANSWERS_MAX: usize = 4;

/// The source of a neighbour's newest frames, if it is not its endpoint.
#[derive(Debug)]
struct CandidateEndpoint {
    at: Endpoints,
    /// None if the neighbour has since proved to be at its former endpoint.
    challenge: Option<PathToken>,
    since: Time,
    asked: Option<Time>,
    again: Duration,
    answered: bool,
}

/// The last proven endpoint of the neighbour.
#[derive(Debug)]
struct FormerEndpoint {
    at: Endpoints,
    challenge: PathToken,
    first: Time,
    asked: Option<Time>,
    asks: u32,
    due: bool,
}

/// The current endpoint answered a challenge but may still be wrong.
#[derive(Debug)]
struct EndpointMove {
    since: Time,
    /// Bytes of cells that may go there. No limit once it is open.
    left: usize,
    open: Option<Time>,
    /// Frames received and highest counter in the report that starts the next loss sample.
    base: Option<(u64, u32)>,
}

/// Result of a neighbour's frame, answer or report for its endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TrialVerdict {
    /// No change.
    Stay,
    /// The endpoint is proven: all frames go there.
    Open,
    /// The endpoint changes.
    Go(Endpoints),
    /// Frames go to this endpoint until the neighbour is located. It is called at its last proven
    /// endpoint.
    Fall(Endpoints),
}

/// Trial of a neighbour's endpoint.
///
/// There is at most one candidate. A newer frame from elsewhere replaces it. A frame from the
/// endpoint itself ends it, so a frame overtaken on another lane moves nothing back.
#[derive(Debug, Default)]
pub(crate) struct EndpointTrial {
    candidate: Option<CandidateEndpoint>,
    former: Option<FormerEndpoint>,
    moved: Option<EndpointMove>,
    /// Endpoint of the last handshake, if the neighbour has moved since.
    shaken: Option<Endpoints>,
    /// When a move was last undone, or would have been.
    contested: Option<Time>,
    /// Number of undone moves since the last move that was not contested.
    taken_back: u32,
    /// When a challenge last left for a candidate.
    asked: Option<Time>,
    /// True if the candidate's challenge must leave now.
    due: bool,
    /// The neighbour's challenges that must be answered now.
    answers: Vec<PathToken>,
}

/// An unsettled move, set aside when the link's data began to use shifting addresses. The former
/// endpoint is challenged meanwhile. If it does not answer by `until`, the new endpoint is
/// accepted.
pub(crate) struct SuspendedTrial {
    /// The new endpoint.
    at: Endpoints,
    former: FormerEndpoint,
    moved: EndpointMove,
    shaken: Option<Endpoints>,
    /// When the former endpoint is challenged next, and the gap to the challenge after that.
    ask_at: Time,
    gap: Duration,
    /// End of the unsettled time.
    until: Time,
}

impl SuspendedTrial {
    /// True if the move to this endpoint is still unsettled.
    pub(crate) fn counts(&self, now: Time, endpoint: Option<Endpoints>) -> bool {
        now < self.until && is_at(endpoint, &self.at)
    }

    /// Takes the challenge to the former endpoint, if one is due.
    pub(crate) fn poll_ask(&mut self, now: Time) -> Option<(Endpoints, PathToken)> {
        if now < self.ask_at || self.until <= now {
            return None;
        }
        (self.ask_at, self.gap) = (now + self.gap, (self.gap * 2).min(ASIDE_GAP_MAX));
        Some((self.former.at, self.former.challenge))
    }

    /// When the next challenge is due, or the move is settled.
    pub(crate) fn poll_timeout(&self) -> Time {
        self.ask_at.min(self.until)
    }

    /// The former endpoint, if this is its answer. Then the neighbour is still there.
    pub(crate) fn answered(&self, token: PathToken) -> Option<Endpoints> {
        (self.former.challenge == token).then_some(self.former.at)
    }
}

impl FormerEndpoint {
    fn new(now: Time, at: Endpoints, challenge: PathToken) -> FormerEndpoint {
        FormerEndpoint { at, challenge, first: now, asked: None, asks: 0, due: false }
    }

    fn ask(&mut self, now: Time) -> bool {
        let due = self.asked.is_none_or(|at| at + FORMER_AGAIN <= now);
        if due {
            self.asked = Some(now);
            self.asks += 1;
        }
        self.due |= due;
        due
    }

    fn is_silent(&self, now: Time, since: Time, span: Duration) -> bool {
        self.asks >= SILENT_ASKS && since.max(self.first) + span <= now
    }
}

/// True if this is the neighbour's current endpoint.
fn is_at(endpoint: Option<Endpoints>, place: &Endpoints) -> bool {
    endpoint.is_some_and(|endpoint| endpoint.is_same_place(place))
}

impl EndpointTrial {
    /// Ends the trial, because a handshake that this node began proved the endpoint. Returns false,
    /// since no challenge must leave.
    pub(crate) fn end(&mut self) -> bool {
        (self.candidate, self.former, self.moved, self.shaken) = (None, None, None, None);
        false
    }

    /// Handles a handshake that the neighbour began. It proves the endpoint unless an attacker
    /// relayed it, so the former endpoint is challenged. Returns true if a challenge must leave.
    pub(crate) fn called(
        &mut self,
        now: Time,
        from: Option<Endpoints>,
        endpoint: Option<Endpoints>,
        token: PathToken,
    ) -> bool {
        let former = self.former.take().filter(|_| self.moved.is_some()).map(|former| former.at);
        let _asks = self.end();
        let Some(at) = former.or(endpoint).filter(|at| !is_at(from, at)) else { return false };
        let mut former = FormerEndpoint::new(now, at, token);
        let asks = former.ask(now);
        self.former = Some(former);
        let left = if self.is_contested(now) { 0 } else { BURST };
        self.moved = Some(EndpointMove { since: now, left, open: None, base: None });
        asks
    }

    /// Handles a frame from an endpoint that the neighbour itself announced, which nobody can
    /// forge. An answer from the former endpoint then means nothing. A trial of a different move
    /// continues, since the neighbour may not be reachable there.
    pub(crate) fn announced(&mut self) {
        if self.moved.is_none() {
            (self.former, self.contested) = (None, None);
        }
    }

    /// The candidate endpoint.
    pub(crate) fn tried(&self) -> Option<Endpoints> {
        self.candidate.as_ref().map(|candidate| candidate.at)
    }

    /// Ends the trial, and returns the unsettled move, if there is one.
    pub(crate) fn put_aside(
        &mut self,
        now: Time,
        endpoint: Option<Endpoints>,
    ) -> Option<Box<SuspendedTrial>> {
        let (former, moved, shaken) = (self.former.take(), self.moved.take(), self.shaken.take());
        self.end();
        let (former, moved, at) = (former?, moved?, endpoint?);
        if moved.open.is_some() && moved.since + FORMER_KEPT <= now {
            return None;
        }
        let (until, gap) = (now + FORMER_KEPT, FORMER_AGAIN);
        Some(Box::new(SuspendedTrial { at, former, moved, shaken, ask_at: now, gap, until }))
    }

    /// Resumes the trial of an unsettled move, because frames use that endpoint again.
    pub(crate) fn resume(&mut self, now: Time, aside: SuspendedTrial) {
        let SuspendedTrial { former, moved, shaken, .. } = aside;
        self.candidate = None;
        self.former = Some(FormerEndpoint::new(now, former.at, former.challenge));
        self.moved = Some(EndpointMove { since: now, open: None, base: None, ..moved });
        self.shaken = shaken;
    }

    /// Notes that the former endpoint has answered and is the endpoint again.
    pub(crate) fn take_back(&mut self, now: Time) {
        self.contested = Some(now);
        self.taken_back += 1;
    }

    fn is_contested(&self, now: Time) -> bool {
        self.contested.is_some_and(|at| now < at + CONTESTED_FOR)
    }

    /// True if only a part of the frames goes to the endpoint.
    pub(crate) fn is_limited(&self) -> bool {
        self.moved.as_ref().is_some_and(|moved| moved.open.is_none())
    }

    /// Chooses the destination of `bytes` of frames for `endpoint`. Cells beyond the limit of a
    /// move go to the former endpoint. Frames that keep the link alive are few and always go to the
    /// new one.
    pub(crate) fn place(&mut self, endpoint: Endpoints, cells: bool, bytes: usize) -> Endpoints {
        match (&mut self.moved, &self.former) {
            (Some(moved), Some(former)) if cells && moved.open.is_none() => {
                if moved.left < bytes {
                    return former.at;
                }
                moved.left -= bytes;
                endpoint
            }
            _ => endpoint,
        }
    }

    /// Notes the source of the newest frame. Returns true if a challenge must leave.
    pub(crate) fn note(
        &mut self,
        now: Time,
        from: Endpoints,
        endpoint: Option<Endpoints>,
        mut token: impl FnMut() -> PathToken,
    ) -> bool {
        let Some(moved) = &mut self.moved else {
            if is_at(endpoint, &from) {
                (self.candidate, self.former) = (None, None);
                return false;
            }
            return self.note_elsewhere(now, from, endpoint, token);
        };
        if is_at(endpoint, &from) {
            moved.left = moved.left.saturating_add(CREDIT);
            let settled = moved.open.is_some() && moved.since + FORMER_KEPT <= now;
            self.candidate = None;
            if settled {
                (self.former, self.moved) = (None, None);
            }
        } else if self.former.as_ref().is_none_or(|former| !former.at.is_same_place(&from)) {
            return self.note_elsewhere(now, from, endpoint, &mut token);
        }
        self.former.as_mut().is_some_and(|former| former.ask(now))
    }

    fn note_elsewhere(
        &mut self,
        now: Time,
        from: Endpoints,
        endpoint: Option<Endpoints>,
        mut token: impl FnMut() -> PathToken,
    ) -> bool {
        let same = |known: &CandidateEndpoint| {
            known.at.is_same_place(&from) && now < known.since + ANSWER_KEPT
        };
        let new = || CandidateEndpoint {
            at: from,
            challenge: None,
            since: now,
            asked: None,
            again: AGAIN,
            answered: false,
        };
        let mut candidate = self.candidate.take().filter(same).unwrap_or_else(new);
        let passed = |asked: Option<Time>, gap| asked.is_none_or(|at| at + gap <= now);
        let due = passed(candidate.asked, candidate.again) && passed(self.asked, ANOTHER);
        if due {
            (candidate.asked, self.asked) = (Some(now), Some(now));
            candidate.challenge.get_or_insert_with(&mut token);
        }
        let tried = candidate.challenge.is_some();
        self.candidate = Some(candidate);
        self.due |= due;
        if let (None, Some(at)) = (&self.former, endpoint.filter(|_| tried)) {
            self.former = Some(FormerEndpoint::new(now, at, token()));
        }
        let asks = tried && self.former.as_mut().is_some_and(|former| former.ask(now));
        due || asks
    }

    /// Handles the answer to a challenge. None if no challenge matches. `shifts` returns true for
    /// endpoints of the neighbour's shift schedule while the link's data does not use it.
    pub(crate) fn answered(
        &mut self,
        now: Time,
        token: PathToken,
        shifts: impl Fn(Endpoints) -> bool,
    ) -> Option<TrialVerdict> {
        if self.former.as_ref().is_some_and(|former| former.challenge == token) {
            return Some(self.back(now));
        }
        let candidate = self.candidate.as_mut()?;
        if candidate.challenge != Some(token) || now >= candidate.since + ANSWER_KEPT {
            return None;
        }
        candidate.answered = true;
        Some(self.advance(now, shifts))
    }

    /// Moves to the candidate, if it has answered and the former endpoint need not be awaited. A
    /// scheduled address proves only the prefix, not the endpoint.
    pub(crate) fn advance(
        &mut self,
        now: Time,
        shifts: impl Fn(Endpoints) -> bool,
    ) -> TrialVerdict {
        if self.candidate.as_ref().is_none_or(|candidate| !candidate.answered) {
            return TrialVerdict::Stay;
        }
        let contested = self.is_contested(now);
        if !contested {
            self.taken_back = 0;
        }
        let patience = PATIENCE * (1 << self.taken_back.saturating_sub(1).min(DOUBLINGS_MAX));
        let waits =
            |former: &FormerEndpoint| contested && !former.is_silent(now, Time::ZERO, patience);
        if self.former.as_ref().is_some_and(waits) {
            return TrialVerdict::Stay;
        }
        let Some(candidate) = self.candidate.take() else { return TrialVerdict::Stay };
        if shifts(candidate.at) {
            self.former.take_if(|_| self.moved.is_none());
        } else if let Some(former) = &self.former {
            self.shaken.get_or_insert(former.at);
            let left = self.moved.as_ref().map_or(BURST, |moved| moved.left);
            self.moved = Some(EndpointMove { since: now, left, open: None, base: None });
        }
        TrialVerdict::Go(candidate.at)
    }

    /// Undoes a move: the neighbour is at its former endpoint.
    fn back(&mut self, now: Time) -> TrialVerdict {
        self.contested = Some(now);
        if let Some(candidate) = &mut self.candidate {
            (candidate.challenge, candidate.answered, candidate.since) = (None, false, now);
            candidate.again = AGAIN_MAX.min(candidate.again * 2);
        }
        match (self.former.take(), self.moved.take()) {
            (Some(former), Some(_)) => {
                self.taken_back += 1;
                self.shaken.take_if(|shaken| shaken.is_same_place(&former.at));
                TrialVerdict::Go(former.at)
            }
            _ => TrialVerdict::Stay,
        }
    }

    /// Handles a report. `progress` is true if it counts more frames than the report before.
    pub(crate) fn reported(
        &mut self,
        now: Time,
        report: &LaneReport,
        rtt: Duration,
        progress: bool,
    ) -> TrialVerdict {
        let (Some(moved), Some(former)) = (&mut self.moved, &self.former) else {
            return TrialVerdict::Stay;
        };
        let Some(open) = moved.open else {
            if progress && former.is_silent(now, moved.since, SILENT_FOR + 2 * rtt) {
                moved.open = Some(now);
                return TrialVerdict::Open;
            }
            return TrialVerdict::Stay;
        };
        if now < open + MIXED_FOR + 2 * rtt {
            return TrialVerdict::Stay;
        }
        let fresh = (report.received, report.highest);
        let anew = |known: &(u64, u32)| report.received < known.0 || report.highest < known.1;
        let base = *moved.base.take_if(|known| !anew(known)).get_or_insert(fresh);
        let (arrived, sent) = (fresh.0 - base.0, fresh.1 - base.1);
        if sent >= SAMPLE && arrived * OF_SENT < u64::from(sent) {
            return self.back(now);
        }
        moved.base = Some(if sent >= SAMPLE { fresh } else { base });
        TrialVerdict::Stay
    }

    /// Handles the loss of the link. Endpoints that no handshake proved are given up.
    pub(crate) fn lost(&mut self, now: Time) -> TrialVerdict {
        let verdict = if self.moved.is_some() { self.back(now) } else { TrialVerdict::Stay };
        (self.candidate, self.former) = (None, None);
        match self.shaken.take() {
            Some(at) if verdict == TrialVerdict::Stay => TrialVerdict::Fall(at),
            _ => verdict,
        }
    }

    /// Takes the challenges that must leave now.
    pub(crate) fn take_due(&mut self) -> [Option<(Endpoints, PathToken)>; 2] {
        let due = core::mem::take(&mut self.due);
        let candidate = self.candidate.as_ref().filter(|_| due);
        let former = self.former.as_mut();
        let asks = former.and_then(|f| core::mem::take(&mut f.due).then_some((f.at, f.challenge)));
        [candidate.and_then(|c| Some((c.at, c.challenge?))), asks]
    }

    /// Stores a challenge of the neighbour for an answer. Beyond the maximum the oldest is dropped.
    pub(crate) fn answer(&mut self, token: PathToken) {
        if self.answers.contains(&token) {
            return;
        }
        if self.answers.len() >= ANSWERS_MAX {
            self.answers.remove(0);
        }
        self.answers.push(token);
    }

    /// Takes the challenges that must be answered now.
    pub(crate) fn take_answers(&mut self) -> Vec<PathToken> {
        core::mem::take(&mut self.answers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Time = Time::from_millis(7_000);
    /// No endpoint belongs to the schedule.
    const NOWHERE: fn(Endpoints) -> bool = |_| false;

    fn at(last: u8) -> Endpoints {
        Endpoints { local: None, remote: ([192, 0, 2, last], 7_400).into() }
    }

    /// A contested trial: the former endpoint has answered once and is challenged again.
    fn contested() -> EndpointTrial {
        let (mut trial, mut tokens) = (EndpointTrial::default(), 1..);
        let mut token = || [tokens.next().unwrap(); 8];
        assert!(trial.note(NOW, at(2), Some(at(1)), &mut token));
        let [_, former] = trial.take_due();
        assert_eq!(trial.answered(NOW, former.unwrap().1, NOWHERE), Some(TrialVerdict::Stay));
        assert!(trial.note(NOW + AGAIN_MAX, at(2), Some(at(1)), token));
        trial
    }

    fn answer(trial: &mut EndpointTrial) -> Option<TrialVerdict> {
        let [candidate, _] = trial.take_due();
        trial.answered(NOW + AGAIN_MAX, candidate.unwrap().1, NOWHERE)
    }

    #[test]
    fn an_announced_endpoint_is_used_before_the_former_one_is_silent() {
        assert_eq!(answer(&mut contested()), Some(TrialVerdict::Stay));
        let mut trial = contested();
        trial.announced();
        assert_eq!(answer(&mut trial), Some(TrialVerdict::Go(at(2))));
        assert!(!trial.is_limited());
    }

    #[test]
    fn an_announcement_leaves_the_trial_of_another_endpoint_open() {
        let mut trial = EndpointTrial::default();
        let mut numbers = 1..;
        assert!(trial.note(NOW, at(2), Some(at(1)), || [numbers.next().unwrap(); 8]));
        let tokens = trial.take_due().map(|due| due.unwrap().1);
        assert_eq!(trial.answered(NOW, tokens[0], NOWHERE), Some(TrialVerdict::Go(at(2))));
        trial.announced();
        assert!(trial.is_limited());
        assert_eq!(trial.answered(NOW, tokens[1], NOWHERE), Some(TrialVerdict::Go(at(1))), "back");
    }

    #[test]
    fn a_trial_set_aside_is_settled_meanwhile_or_resumed() {
        let mut trial = EndpointTrial::default();
        assert!(trial.put_aside(NOW, Some(at(2))).is_none());
        let mut numbers = 1..;
        assert!(trial.note(NOW, at(2), Some(at(1)), || [numbers.next().unwrap(); 8]));
        let tokens = trial.take_due().map(|due| due.unwrap().1);
        assert_eq!(trial.answered(NOW, tokens[0], NOWHERE), Some(TrialVerdict::Go(at(2))));
        let mut aside = trial.put_aside(NOW, Some(at(2))).unwrap();
        assert!(!trial.is_limited());
        assert_eq!(trial.answered(NOW, tokens[1], NOWHERE), None);
        let (mut now, mut asked) = (NOW, Vec::new());
        while aside.poll_timeout() < aside.until {
            now = aside.poll_timeout();
            assert_eq!(aside.poll_ask(now), Some((at(1), tokens[1])));
            asked.push(now.since(NOW).as_millis());
        }
        assert_eq!(asked, [0, 40, 120, 280, 600, 1_240, 2_240, 3_240, 4_240]);
        assert_eq!(aside.poll_ask(aside.until), None);
        assert_eq!((aside.answered(tokens[0]), aside.answered(tokens[1])), (None, Some(at(1))));
        assert!(aside.counts(now, Some(at(2))) && !aside.counts(now, Some(at(3))));
        assert!(!aside.counts(NOW + FORMER_KEPT, Some(at(2))));
        trial.resume(now, *aside);
        assert!(trial.is_limited());
        assert_eq!(trial.answered(now, tokens[1], NOWHERE), Some(TrialVerdict::Go(at(1))), "back");
    }

    #[test]
    fn an_answer_from_a_place_of_the_schedule_leaves_the_endpoint_on_trial() {
        let mut trial = EndpointTrial::default();
        let mut numbers = 1..;
        let mut token = || [numbers.next().unwrap(); 8];
        assert!(trial.note(NOW, at(2), Some(at(1)), &mut token));
        let [candidate, former] = trial.take_due().map(|due| due.unwrap().1);
        assert_eq!(trial.answered(NOW, candidate, NOWHERE), Some(TrialVerdict::Go(at(2))));
        trial.note(NOW + AGAIN, at(3), Some(at(2)), token);
        let other = trial.take_due()[0].unwrap().1;
        let before = format!("{:?} {:?}", trial.moved, trial.shaken);
        let shifts = |place| place == at(3);
        assert_eq!(trial.answered(NOW + AGAIN, other, shifts), Some(TrialVerdict::Go(at(3))));
        assert_eq!(format!("{:?} {:?}", trial.moved, trial.shaken), before);
        assert_eq!(trial.answered(NOW + AGAIN, former, shifts), Some(TrialVerdict::Go(at(1))));
    }
}
