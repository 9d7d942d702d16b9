//! Where one neighbour is: an endpoint, here called a place, is tried before frames go there, and
//! watched for a while after they do.
//!
//! ```text
//! newest frame from elsewhere ----> challenges: there, and to the former place
//! answer through it --------------> moved, limited:  a few frames; the others go where they went
//!   former place silent, reports -> moved, open:     all frames
//!     5 s ------------------------> settled:         the former place is forgotten
//! former place answers, reports of loss, or the link goes down: back to the former place
//! ```
//!
//! An answer alone does not say where the neighbour is: an attacker who is faster than its frames
//! may carry the challenge to it and bring the answer. Unless he also keeps the former place from
//! answering, he gains no more than the first few frames. The same holds for a handshake that the
//! neighbour began. A challenge that names where it was sent would not help: behind a NAT a
//! neighbour does not know under which address others see it.

use core::time::Duration;

use shoal_session::{Endpoint, Endpoints};
use shoal_wire::{PathToken, Report, SizeClass, Time};

/// How soon one address is challenged again while frames come from it.
const AGAIN: Duration = Duration::from_millis(250);
/// The longest that [`AGAIN`] gets: it doubles whenever the neighbour shows to be where it was, as
/// a neighbour does that always sends from one place and receives at another.
const AGAIN_MAX: Duration = Duration::from_secs(2);
/// How soon another address is challenged: sources that change with every frame must not cost a
/// challenge each.
const ANOTHER: Duration = Duration::from_millis(20);
/// How soon the former place is asked again.
const FORMER_AGAIN: Duration = Duration::from_millis(40);
/// The longest that [`FORMER_AGAIN`] gets while the link's data hops: it doubles each time.
const ASIDE_GAP_MAX: Duration = Duration::from_secs(1);
/// For how long an answer to a challenge counts: longer than any round trip.
const ANSWER_KEPT: Duration = Duration::from_secs(5);
/// The former place counts as silent when it left so many challenges unanswered ...
const SILENT_ASKS: u32 = 3;
/// ... for so long, besides two round trips.
const SILENT_FOR: Duration = Duration::from_millis(100);
/// How long the former place must be silent before a move, if a move was taken back within
/// [`CONTESTED_FOR`]; twice as long for each further move that was taken back, ...
const PATIENCE: Duration = Duration::from_millis(500);
/// ... doubled so often at most.
const DOUBLINGS_MAX: u32 = 6;
/// For how long a move that was taken back makes further moves wait.
const CONTESTED_FOR: Duration = Duration::from_secs(60);
/// For how long the former place is asked and remembered.
const FORMER_KEPT: Duration = Duration::from_secs(5);
/// Bytes of cells that a place may get before it proved itself: one burst, ...
const BURST: usize = 32 * SizeClass::Full.frame_len();
/// ... and for each batch that came from there three times the least that a batch holds.
const CREDIT: usize = 3 * SizeClass::Small.frame_len();
/// Frames sent that make a report say something of losses.
const SAMPLE: u32 = 32;
/// Of so many sent one must arrive.
const OF_SENT: u64 = 8;
/// How long, besides two round trips, frames that went elsewhere before may still be reported.
const MIXED_FOR: Duration = Duration::from_millis(50);
/// Challenges of a neighbour that wait for their answer at once: its candidate's, its former
/// place's, and those of candidates before.
const ANSWERS_MAX: usize = 4;

/// An address that a neighbour's newest frames came from, and that is not its endpoint.
#[derive(Debug)]
struct Candidate {
    at: Endpoints,
    /// None when the neighbour has shown since to be where it was.
    challenge: Option<PathToken>,
    since: Time,
    asked: Option<Time>,
    again: Duration,
    answered: bool,
}

/// Where the neighbour was, as far as is proven.
#[derive(Debug)]
struct Former {
    at: Endpoints,
    challenge: PathToken,
    first: Time,
    asked: Option<Time>,
    asks: u32,
    due: bool,
}

/// The endpoint is where a challenge was answered, and may yet be wrong.
#[derive(Debug)]
struct Move {
    since: Time,
    /// Bytes of cells that may go there; no limit counts once it is open.
    left: usize,
    open: Option<Time>,
    /// Frames received and highest counter in the report by which losses are judged next.
    base: Option<(u64, u32)>,
}

/// What a neighbour's frame, answer or report says of its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Nothing new.
    Stay,
    /// The place is good: all frames go there.
    Open,
    /// The endpoint is another.
    Go(Endpoints),
    /// Frames go there until it is known where the neighbour is; it is called where it was last.
    Fall(Endpoints),
}

/// What is under way about a neighbour's address. One candidate at a time: a newer frame from
/// elsewhere puts another in its place, and one from the endpoint itself ends it, so that a frame
/// that was overtaken on another lane moves nothing back.
#[derive(Debug, Default)]
pub(crate) struct Trial {
    candidate: Option<Candidate>,
    former: Option<Former>,
    moved: Option<Move>,
    /// Where the last handshake was, if the neighbour has moved since without one.
    shaken: Option<Endpoints>,
    /// When a move was last taken back, or would have been.
    contested: Option<Time>,
    /// Moves taken back since moves were last above suspicion.
    taken_back: u32,
    /// When a challenge last left for a candidate.
    asked: Option<Time>,
    /// The candidate's challenge is to leave now.
    due: bool,
    /// The neighbour's challenges, to be answered now.
    answers: Vec<PathToken>,
}

/// A move that was not settled when the link's data began to hop. The former place is asked until
/// it is: with no answer by then the endpoint is good.
pub(crate) struct Aside {
    /// The endpoint.
    at: Endpoints,
    former: Former,
    moved: Move,
    shaken: Option<Endpoints>,
    /// When the former place is asked next, and how long after that once more.
    ask_at: Time,
    gap: Duration,
    /// Until then it is not settled.
    until: Time,
}

impl Aside {
    /// Whether it is not settled where the endpoint is, which is still this one.
    pub(crate) fn counts(&self, now: Time, endpoint: Option<Endpoints>) -> bool {
        now < self.until && is_at(endpoint, &self.at)
    }

    /// Takes the challenge of the former place, if one is to leave.
    pub(crate) fn poll_ask(&mut self, now: Time) -> Option<(Endpoints, PathToken)> {
        if now < self.ask_at || self.until <= now {
            return None;
        }
        (self.ask_at, self.gap) = (now + self.gap, (self.gap * 2).min(ASIDE_GAP_MAX));
        Some((self.former.at, self.former.challenge))
    }

    /// When a challenge is to leave, or all is settled.
    pub(crate) fn poll_timeout(&self) -> Time {
        self.ask_at.min(self.until)
    }

    /// The former place, if this is its answer: the neighbour is there.
    pub(crate) fn answered(&self, token: PathToken) -> Option<Endpoints> {
        (self.former.challenge == token).then_some(self.former.at)
    }
}

impl Former {
    fn new(now: Time, at: Endpoints, challenge: PathToken) -> Former {
        Former { at, challenge, first: now, asked: None, asks: 0, due: false }
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

/// Whether an endpoint, if there is one, is this place of the neighbour.
fn is_at(endpoint: Option<Endpoints>, place: &Endpoints) -> bool {
    endpoint.is_some_and(|endpoint| endpoint.is_same_place(place))
}

impl Trial {
    /// A handshake that this node began shows the endpoint: forgets all places. Returns false,
    /// since no challenge is to leave.
    pub(crate) fn end(&mut self) -> bool {
        (self.candidate, self.former, self.moved, self.shaken) = (None, None, None, None);
        false
    }

    /// A handshake that the neighbour began shows the endpoint, too, unless an attacker carried it:
    /// so the former place is challenged. Says whether a challenge is to leave.
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
        let mut former = Former::new(now, at, token);
        let asks = former.ask(now);
        self.former = Some(former);
        let left = if self.is_contested(now) { 0 } else { BURST };
        self.moved = Some(Move { since: now, left, open: None, base: None });
        asks
    }

    /// A frame came from where the neighbour said itself that it goes, and nobody can say so in its
    /// place. That its former place answers, too, then means nothing. A move to somewhere else that
    /// is on trial stays so, since the neighbour may not be reached there.
    pub(crate) fn announced(&mut self) {
        if self.moved.is_none() {
            (self.former, self.contested) = (None, None);
        }
    }

    /// Another place than the endpoint that is being tried.
    pub(crate) fn tried(&self) -> Option<Endpoints> {
        self.candidate.as_ref().map(|candidate| candidate.at)
    }

    /// Forgets all places, too, but gives those of a move to the endpoint that is not settled.
    pub(crate) fn put_aside(
        &mut self,
        now: Time,
        endpoint: Option<Endpoints>,
    ) -> Option<Box<Aside>> {
        let (former, moved, shaken) = (self.former.take(), self.moved.take(), self.shaken.take());
        self.end();
        let (former, moved, at) = (former?, moved?, endpoint?);
        if moved.open.is_some() && moved.since + FORMER_KEPT <= now {
            return None;
        }
        let (until, gap) = (now + FORMER_KEPT, FORMER_AGAIN);
        Some(Box::new(Aside { at, former, moved, shaken, ask_at: now, gap, until }))
    }

    /// Frames go to the endpoint again before that was settled: it is on trial anew.
    pub(crate) fn resume(&mut self, now: Time, aside: Aside) {
        let Aside { former, moved, shaken, .. } = aside;
        self.candidate = None;
        self.former = Some(Former::new(now, former.at, former.challenge));
        self.moved = Some(Move { since: now, open: None, base: None, ..moved });
        self.shaken = shaken;
    }

    /// The former place has answered, and is the endpoint again.
    pub(crate) fn take_back(&mut self, now: Time) {
        self.contested = Some(now);
        self.taken_back += 1;
    }

    fn is_contested(&self, now: Time) -> bool {
        self.contested.is_some_and(|at| now < at + CONTESTED_FOR)
    }

    /// Whether only part of what is sent goes to the endpoint.
    pub(crate) fn is_limited(&self) -> bool {
        self.moved.as_ref().is_some_and(|moved| moved.open.is_none())
    }

    /// Where `bytes` of frames go that are to go to `endpoint`: cells beyond the limit of a move go
    /// to the former place. Frames that keep the link alive are few, and always go to the new one.
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

    /// Takes note of where the newest frame came from; says whether a challenge is to leave.
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
        let same =
            |known: &Candidate| known.at.is_same_place(&from) && now < known.since + ANSWER_KEPT;
        let new = || Candidate {
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
            self.former = Some(Former::new(now, at, token()));
        }
        let asks = tried && self.former.as_mut().is_some_and(|former| former.ask(now));
        due || asks
    }

    /// Takes the answer to a challenge; says where the neighbour is. None if no challenge fits it.
    /// `hops`: whether a place is one of the neighbour's schedule, and the link does not hop.
    pub(crate) fn answered(
        &mut self,
        now: Time,
        token: PathToken,
        hops: impl Fn(Endpoints) -> bool,
    ) -> Option<Verdict> {
        if self.former.as_ref().is_some_and(|former| former.challenge == token) {
            return Some(self.back(now));
        }
        let candidate = self.candidate.as_mut()?;
        if candidate.challenge != Some(token) || now >= candidate.since + ANSWER_KEPT {
            return None;
        }
        candidate.answered = true;
        Some(self.advance(now, hops))
    }

    /// Moves to the candidate, if it has answered and the former place need not be waited for. A
    /// place of the schedule says under which prefix that is, and nothing of the endpoint.
    pub(crate) fn advance(&mut self, now: Time, hops: impl Fn(Endpoints) -> bool) -> Verdict {
        if self.candidate.as_ref().is_none_or(|candidate| !candidate.answered) {
            return Verdict::Stay;
        }
        let contested = self.is_contested(now);
        if !contested {
            self.taken_back = 0;
        }
        let patience = PATIENCE * (1 << self.taken_back.saturating_sub(1).min(DOUBLINGS_MAX));
        let waits = |former: &Former| contested && !former.is_silent(now, Time::ZERO, patience);
        if self.former.as_ref().is_some_and(waits) {
            return Verdict::Stay;
        }
        let Some(candidate) = self.candidate.take() else { return Verdict::Stay };
        if hops(candidate.at) {
            self.former.take_if(|_| self.moved.is_none());
        } else if let Some(former) = &self.former {
            self.shaken.get_or_insert(former.at);
            let left = self.moved.as_ref().map_or(BURST, |moved| moved.left);
            self.moved = Some(Move { since: now, left, open: None, base: None });
        }
        Verdict::Go(candidate.at)
    }

    /// The neighbour is where it was: takes the move back.
    fn back(&mut self, now: Time) -> Verdict {
        self.contested = Some(now);
        if let Some(candidate) = &mut self.candidate {
            (candidate.challenge, candidate.answered, candidate.since) = (None, false, now);
            candidate.again = AGAIN_MAX.min(candidate.again * 2);
        }
        match (self.former.take(), self.moved.take()) {
            (Some(former), Some(_)) => {
                self.taken_back += 1;
                self.shaken.take_if(|shaken| shaken.is_same_place(&former.at));
                Verdict::Go(former.at)
            }
            _ => Verdict::Stay,
        }
    }

    /// The neighbour reported: what it received so far, and whether that is more than before.
    pub(crate) fn reported(
        &mut self,
        now: Time,
        report: &Report,
        rtt: Duration,
        progress: bool,
    ) -> Verdict {
        let (Some(moved), Some(former)) = (&mut self.moved, &self.former) else {
            return Verdict::Stay;
        };
        let Some(open) = moved.open else {
            if progress && former.is_silent(now, moved.since, SILENT_FOR + 2 * rtt) {
                moved.open = Some(now);
                return Verdict::Open;
            }
            return Verdict::Stay;
        };
        if now < open + MIXED_FOR + 2 * rtt {
            return Verdict::Stay;
        }
        let fresh = (report.received, report.highest);
        let anew = |known: &(u64, u32)| report.received < known.0 || report.highest < known.1;
        let base = *moved.base.take_if(|known| !anew(known)).get_or_insert(fresh);
        let (arrived, sent) = (fresh.0 - base.0, fresh.1 - base.1);
        if sent >= SAMPLE && arrived * OF_SENT < u64::from(sent) {
            return self.back(now);
        }
        moved.base = Some(if sent >= SAMPLE { fresh } else { base });
        Verdict::Stay
    }

    /// The link went down. A place that no handshake has shown is left.
    pub(crate) fn lost(&mut self, now: Time) -> Verdict {
        let verdict = if self.moved.is_some() { self.back(now) } else { Verdict::Stay };
        (self.candidate, self.former) = (None, None);
        match self.shaken.take() {
            Some(at) if verdict == Verdict::Stay => Verdict::Fall(at),
            _ => verdict,
        }
    }

    /// The challenges that are to leave now.
    pub(crate) fn take_due(&mut self) -> [Option<(Endpoints, PathToken)>; 2] {
        let due = core::mem::take(&mut self.due);
        let candidate = self.candidate.as_ref().filter(|_| due);
        let former = self.former.as_mut();
        let asks = former.and_then(|f| core::mem::take(&mut f.due).then_some((f.at, f.challenge)));
        [candidate.and_then(|c| Some((c.at, c.challenge?))), asks]
    }

    /// Keeps a challenge of the neighbour, to be answered. Of too many the oldest is forgotten.
    pub(crate) fn answer(&mut self, token: PathToken) {
        if self.answers.contains(&token) {
            return;
        }
        if self.answers.len() >= ANSWERS_MAX {
            self.answers.remove(0);
        }
        self.answers.push(token);
    }

    /// Challenges to be answered now.
    pub(crate) fn take_answers(&mut self) -> Vec<PathToken> {
        core::mem::take(&mut self.answers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Time = Time::from_millis(7_000);
    /// No place is one of the schedule's.
    const NOWHERE: fn(Endpoints) -> bool = |_| false;

    fn at(last: u8) -> Endpoints {
        Endpoints { local: None, remote: ([192, 0, 2, last], 7_400).into() }
    }

    /// A trial of another place, whose former place has answered once and is asked again.
    fn contested() -> Trial {
        let (mut trial, mut tokens) = (Trial::default(), 1..);
        let mut token = || [tokens.next().unwrap(); 8];
        assert!(trial.note(NOW, at(2), Some(at(1)), &mut token));
        let [_, former] = trial.take_due();
        assert_eq!(trial.answered(NOW, former.unwrap().1, NOWHERE), Some(Verdict::Stay));
        assert!(trial.note(NOW + AGAIN_MAX, at(2), Some(at(1)), token));
        trial
    }

    fn answer(trial: &mut Trial) -> Option<Verdict> {
        let [candidate, _] = trial.take_due();
        trial.answered(NOW + AGAIN_MAX, candidate.unwrap().1, NOWHERE)
    }

    #[test]
    fn a_place_that_was_announced_waits_for_no_silence_of_the_former_one() {
        assert_eq!(answer(&mut contested()), Some(Verdict::Stay));
        let mut trial = contested();
        trial.announced();
        assert_eq!(answer(&mut trial), Some(Verdict::Go(at(2))));
        assert!(!trial.is_limited());
    }

    #[test]
    fn what_is_on_trial_elsewhere_stays_so_when_another_place_was_announced() {
        let mut trial = Trial::default();
        let mut numbers = 1..;
        assert!(trial.note(NOW, at(2), Some(at(1)), || [numbers.next().unwrap(); 8]));
        let tokens = trial.take_due().map(|due| due.unwrap().1);
        assert_eq!(trial.answered(NOW, tokens[0], NOWHERE), Some(Verdict::Go(at(2))));
        trial.announced();
        assert!(trial.is_limited());
        assert_eq!(trial.answered(NOW, tokens[1], NOWHERE), Some(Verdict::Go(at(1))), "back");
    }

    #[test]
    fn what_was_put_aside_is_settled_meanwhile_or_on_trial_anew() {
        let mut trial = Trial::default();
        assert!(trial.put_aside(NOW, Some(at(2))).is_none());
        let mut numbers = 1..;
        assert!(trial.note(NOW, at(2), Some(at(1)), || [numbers.next().unwrap(); 8]));
        let tokens = trial.take_due().map(|due| due.unwrap().1);
        assert_eq!(trial.answered(NOW, tokens[0], NOWHERE), Some(Verdict::Go(at(2))));
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
        assert_eq!(trial.answered(now, tokens[1], NOWHERE), Some(Verdict::Go(at(1))), "back");
    }

    #[test]
    fn an_answer_from_a_place_of_the_schedule_leaves_the_endpoint_on_trial() {
        let mut trial = Trial::default();
        let mut numbers = 1..;
        let mut token = || [numbers.next().unwrap(); 8];
        assert!(trial.note(NOW, at(2), Some(at(1)), &mut token));
        let [candidate, former] = trial.take_due().map(|due| due.unwrap().1);
        assert_eq!(trial.answered(NOW, candidate, NOWHERE), Some(Verdict::Go(at(2))));
        trial.note(NOW + AGAIN, at(3), Some(at(2)), token);
        let other = trial.take_due()[0].unwrap().1;
        let before = format!("{:?} {:?}", trial.moved, trial.shaken);
        let hops = |place| place == at(3);
        assert_eq!(trial.answered(NOW + AGAIN, other, hops), Some(Verdict::Go(at(3))));
        assert_eq!(format!("{:?} {:?}", trial.moved, trial.shaken), before);
        assert_eq!(trial.answered(NOW + AGAIN, former, hops), Some(Verdict::Go(at(1))));
    }
}
