//! Hole punching: two hosts, neither of which can be called, find a path by probes.
//!
//! ```text
//! both ends, to each candidate:  0, 50, 150, 350, 750, 1,550, 3,000 ms
//! a probe arrives                the end that did not ask: answers, 3 times per source, 7 in all
//!                                the end that asked: calls the source
//! ```
//!
//! A probe begins with a token that only the two ends can compute and that counts once. So a
//! stranger's frame costs one table look-up. An endpoint that was named maliciously gets nothing
//! but probes, at most [`PROBES_MAX`] per attempt, and can't provoke an answer.

use core::time::Duration;
use std::collections::BTreeMap;
use std::net::SocketAddr;

use shoal_crypto::{AeadKey, Ciphers, Secret, Suite, kdf};
use shoal_session::outer::Lead;
use shoal_session::{Endpoint, EndpointOrigin, Endpoints, PeerId};
use shoal_wire::{
    DropReason, LinkId, Meeting, MeetingId, PROBE_BODY, PROBE_LEN, PROBES_MAX, TAG_LEN, Time, shake,
};

use crate::{FrameSink, Relay, RelayEvent};

/// Times of the probes to a candidate endpoint, after it was named.
const SCHEDULE: [Duration; 7] = [
    Duration::ZERO,
    Duration::from_millis(50),
    Duration::from_millis(150),
    Duration::from_millis(350),
    Duration::from_millis(750),
    Duration::from_millis(1_550),
    Duration::from_millis(3_000),
];
/// Maximum number of candidates per attempt.
const PLACES_MAX: usize = Meeting::CANDIDATES_MAX;
/// Maximum number of answers to one source. An answer may be lost, and it may be the only way in.
const ANSWERS_MAX: usize = 3;
/// Time for which an attempt waits for probes.
const KEPT: Duration = Duration::from_secs(5);
/// Maximum number of simultaneous attempts.
const ATTEMPTS_MAX: usize = 16;
/// Minimum time before the asking end calls a different source of probes.
const CALL_AGAIN: Duration = Duration::from_secs(1);
/// First wait for an answer to that call. The direct path is short, and one lost frame would
/// otherwise cost half of the time it saves.
const CALL_WAIT: Duration = Duration::from_millis(150);

const _: () = assert!(PLACES_MAX * (SCHEDULE.len() + 1) == PROBES_MAX);
const _: () = assert!(shake::LEAD_LEN + PROBE_BODY.len() + TAG_LEN <= PROBE_LEN);

/// A candidate endpoint, the start of its probes, and their number so far.
type CandidateProbe = (SocketAddr, Time, usize);

/// One attempt of two hosts.
struct PunchAttempt {
    link: LinkId,
    id: MeetingId,
    /// True if this end asked, so that it calls.
    asker: bool,
    key: Secret<32>,
    places: Vec<CandidateProbe>,
    /// Sources that were answered, once for each answer.
    answered: Vec<SocketAddr>,
    /// Number of the next probe.
    next: usize,
    until: Time,
    /// Time and endpoint of the last call to the other end.
    called: Option<(Time, SocketAddr)>,
}

/// All attempts, and the tokens of expected probes.
#[derive(Default)]
pub(crate) struct PunchAttempts {
    attempts: Vec<PunchAttempt>,
    tokens: BTreeMap<Lead, (MeetingId, u8)>,
}

/// The identity of a probe: its sender and its number.
fn name(from_asker: bool, number: u8) -> [u8; 2] {
    [u8::from(from_asker), number]
}

impl PunchAttempt {
    fn token(&self, from_asker: bool, number: u8) -> Lead {
        let long = kdf(self.key.expose(), "shoal v1 probe token", &[&name(from_asker, number)]);
        let mut token = Lead::default();
        token.copy_from_slice(&long[..shake::LEAD_LEN]);
        token
    }

    /// The key that seals a probe. Each key seals one frame.
    fn seal_key(&self, from_asker: bool, number: u8) -> AeadKey {
        let name = name(from_asker, number);
        let key = Secret::new(kdf(self.key.expose(), "shoal v1 probe seal", &[&name]));
        AeadKey::new(Suite::Aes256Gcm, key.expose())
    }

    /// The next probe, up to [`PROBES_MAX`].
    fn probe(&mut self) -> Option<[u8; PROBE_LEN]> {
        let number = u8::try_from(self.next).ok().filter(|_| self.next < PROBES_MAX)?;
        self.next += 1;
        let mut frame = [0; PROBE_LEN];
        let (token, rest) = frame.split_at_mut(shake::LEAD_LEN);
        let (body, tag_at) = rest.split_at_mut(PROBE_LEN - shake::LEAD_LEN - TAG_LEN);
        token.copy_from_slice(&self.token(self.asker, number));
        body[..PROBE_BODY.len()].copy_from_slice(&PROBE_BODY);
        let mut tag = [0; TAG_LEN];
        self.seal_key(self.asker, number).seal(0, &[], body, &mut tag);
        tag_at.copy_from_slice(&tag);
        Some(frame)
    }

    /// Opens a probe of the other end.
    fn open(&self, number: u8, frame: &mut [u8]) -> Result<(), DropReason> {
        let sealed = &mut frame[shake::LEAD_LEN..];
        let key = self.seal_key(!self.asker, number);
        key.open(0, &[], sealed).map_err(|_| DropReason::BadHandshake)?;
        let body = &sealed[..sealed.len() - TAG_LEN];
        let (head, zeroes) = body.split_at(PROBE_BODY.len());
        match head == PROBE_BODY && zeroes.iter().all(|&byte| byte == 0) {
            true => Ok(()),
            false => Err(DropReason::Malformed),
        }
    }

    /// Adds candidate endpoints, to be probed from now on.
    fn add(&mut self, now: Time, places: &[SocketAddr]) {
        for &at in places {
            let known = self.places.iter().any(|(known, ..)| *known == at);
            if !known && self.places.len() < PLACES_MAX {
                self.places.push((at, now, 0));
            }
        }
    }

    fn due(place: &CandidateProbe) -> Option<Time> {
        let (_, since, sent) = *place;
        SCHEDULE.get(sent).map(|&after| since + after)
    }

    /// Takes the next candidate whose probe is due.
    fn take_due(&mut self, now: Time) -> Option<SocketAddr> {
        let due =
            |place: &&mut CandidateProbe| PunchAttempt::due(place).is_some_and(|at| at <= now);
        let place = self.places.iter_mut().find(due)?;
        place.2 += 1;
        Some(place.0)
    }

    fn next_time(&self) -> Time {
        self.places.iter().filter_map(PunchAttempt::due).fold(self.until, Time::min)
    }
}

impl PunchAttempts {
    /// Begins an attempt, or adds candidates to it.
    ///
    /// Errors: `table_full`.
    fn meet(
        &mut self,
        now: Time,
        link: LinkId,
        (id, asker): (MeetingId, bool),
        places: &[SocketAddr],
    ) -> Result<(), DropReason> {
        if let Some(known) = self.attempts.iter_mut().find(|known| known.id == id) {
            known.add(now, places);
            return Ok(());
        }
        if self.attempts.len() >= ATTEMPTS_MAX {
            return Err(DropReason::TableFull);
        }
        let key = Secret::new(kdf(&[0; 32], "shoal v1 probe", &[&id]));
        let until = now + KEPT;
        let (places_tried, answered) = (Vec::new(), Vec::new());
        let mut attempt = PunchAttempt {
            link,
            id,
            asker,
            key,
            places: places_tried,
            answered,
            next: 0,
            until,
            called: None,
        };
        attempt.add(now, places);
        for number in 0..PROBES_MAX as u8 {
            self.tokens.insert(attempt.token(!asker, number), (id, number));
        }
        self.attempts.push(attempt);
        Ok(())
    }

    /// Ends the attempts for which `over` returns true.
    fn end(&mut self, over: impl Fn(&PunchAttempt) -> bool) {
        let gone: Vec<MeetingId> =
            self.attempts.extract_if(.., |attempt| over(attempt)).map(|gone| gone.id).collect();
        if !gone.is_empty() {
            self.tokens.retain(|_, (id, _)| !gone.contains(id));
        }
    }
}

impl<C: Ciphers> Relay<C> {
    /// Begins an attempt: sends probes to candidate endpoints of a direct link's other end, and
    /// accepts its probes. For a known attempt it adds these candidates. The end that asked calls
    /// the source of the first probe.
    ///
    /// Errors: `table_full` for too many attempts; `unknown_peer`.
    pub fn meet(
        &mut self,
        now: Time,
        link: LinkId,
        meeting: (MeetingId, bool),
        places: &[SocketAddr],
    ) -> Result<(), DropReason> {
        if self.neighbours.get(link).is_none_or(|neighbour| neighbour.address.is_router()) {
            return Err(DropReason::UnknownPeer);
        }
        let places: Vec<SocketAddr> =
            places.iter().copied().filter(|at| self.may_learn(*at, EndpointOrigin::Near)).collect();
        self.probes.meet(now, link, meeting, &places)
    }

    /// True if a frame may be an expected probe.
    pub(crate) fn is_probe(&self, token: &Lead) -> bool {
        self.probes.tokens.contains_key(token)
    }

    /// Handles a probe. Its token then expires.
    pub(crate) fn handle_probe(
        &mut self,
        now: Time,
        from: Endpoints,
        frame: &mut [u8],
        sink: &mut impl FrameSink,
    ) -> Result<(), DropReason> {
        let token = *frame.first_chunk::<{ shake::LEAD_LEN }>().ok_or(DropReason::BadSize)?;
        let known = self.probes.tokens.get(&token).copied();
        let (id, number) = known.ok_or(DropReason::UnknownIndex)?;
        let found = self.probes.attempts.iter_mut().find(|attempt| attempt.id == id);
        let attempt = found.ok_or(DropReason::UnknownIndex)?;
        attempt.open(number, frame)?;
        self.probes.tokens.remove(&token);
        let (link, asker) = (attempt.link, attempt.asker);
        if asker {
            let soon =
                |(at, place): (Time, SocketAddr)| place == from.remote || now < at + CALL_AGAIN;
            if !attempt.called.is_some_and(soon) {
                attempt.called = Some((now, from.remote));
                self.set_endpoint(now, link, Some(from.remote));
                self.sessions.hurry(PeerId::from(link), CALL_WAIT);
                self.event(RelayEvent::Met(link));
            }
            return Ok(());
        }
        let is_same = |known: &&SocketAddr| from.is_same_place(&(**known).into());
        let before = attempt.answered.iter().filter(is_same).count();
        if before < ANSWERS_MAX && attempt.answered.len() < PLACES_MAX {
            attempt.answered.push(from.remote);
            if let Some(answer) = attempt.probe() {
                self.send_stray(from, &answer, sink);
            }
        }
        Ok(())
    }

    /// Ends the attempts of a link that is established or gone.
    pub(crate) fn end_probes(&mut self, link: LinkId) {
        self.probes.end(|attempt| attempt.link == link);
    }

    /// Sends the probes that are due.
    pub(crate) fn drive_probes(&mut self, now: Time, sink: &mut impl FrameSink) {
        let mut due = Vec::new();
        for attempt in &mut self.probes.attempts {
            while let Some(place) = attempt.take_due(now) {
                due.extend(attempt.probe().map(|frame| (place, frame)));
            }
        }
        for (place, frame) in due {
            self.send_stray(place.into(), &frame, sink);
        }
        self.probes.end(|attempt| attempt.until <= now);
    }

    pub(crate) fn probes_due(&self) -> Option<(Time, &'static str)> {
        let times = self.probes.attempts.iter().map(PunchAttempt::next_time);
        times.min().map(|at| (at, "probe"))
    }
}
