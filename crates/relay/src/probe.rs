//! Probes: how two hosts of which nobody can call the other find a way between them.
//!
//! ```text
//! both ends, to each place:   0, 50, 150, 350, 750, 1,550, 3,000 ms
//! a probe comes in            the end that did not ask: answers it, 3 times per source, 7 in all
//!                             the end that asked: calls where it came from
//! ```
//!
//! A probe begins with a token that both ends can compute and nobody else, and that counts once. So
//! a frame of a stranger costs a look into a table. The names of others as places get nothing but
//! probes, at most [`PROBES_MAX`] of one attempt, and draw no answer.

use core::time::Duration;
use std::collections::BTreeMap;
use std::net::SocketAddr;

use shoal_crypto::{AeadKey, Ciphers, Secret, Suite, kdf};
use shoal_session::outer::Lead;
use shoal_session::{Endpoint, EndpointOrigin, Endpoints, PeerId};
use shoal_wire::{
    DropReason, LinkId, Meeting, MeetingId, PROBE_BODY, PROBE_LEN, PROBES_MAX, TAG_LEN, Time, shake,
};

use crate::{Event, Relay, Sink};

/// When a place gets probes, since it was named.
const SCHEDULE: [Duration; 7] = [
    Duration::ZERO,
    Duration::from_millis(50),
    Duration::from_millis(150),
    Duration::from_millis(350),
    Duration::from_millis(750),
    Duration::from_millis(1_550),
    Duration::from_millis(3_000),
];
/// Places of one attempt.
const PLACES_MAX: usize = Meeting::CANDIDATES_MAX;
/// Answers to one source: an answer may be lost, and it may be the only way in.
const ANSWERS_MAX: usize = 3;
/// How long an attempt waits for probes.
const KEPT: Duration = Duration::from_secs(5);
/// Attempts at once.
const ATTEMPTS_MAX: usize = 16;
/// How soon the end that asked calls another place from which a probe came.
const CALL_AGAIN: Duration = Duration::from_secs(1);
/// First wait for an answer to that call: the way is short, and half of what it saves is lost when
/// one frame is.
const CALL_WAIT: Duration = Duration::from_millis(150);

const _: () = assert!(PLACES_MAX * (SCHEDULE.len() + 1) == PROBES_MAX);
const _: () = assert!(shake::LEAD_LEN + PROBE_BODY.len() + TAG_LEN <= PROBE_LEN);

/// A place, since when it is tried, and how often it was.
type Tried = (SocketAddr, Time, usize);

/// One attempt of two hosts.
struct Attempt {
    link: LinkId,
    id: MeetingId,
    /// This end asked, so it calls.
    asker: bool,
    key: Secret<32>,
    places: Vec<Tried>,
    /// Sources that were answered, each as often as it was.
    answered: Vec<SocketAddr>,
    /// Number of the next probe.
    next: usize,
    until: Time,
    /// When, and where, the other end was called last.
    called: Option<(Time, SocketAddr)>,
}

/// All attempts, and the tokens of probes that may come.
#[derive(Default)]
pub(crate) struct Probes {
    attempts: Vec<Attempt>,
    tokens: BTreeMap<Lead, (MeetingId, u8)>,
}

/// What identifies a probe: who sent it, and its number.
fn name(from_asker: bool, number: u8) -> [u8; 2] {
    [u8::from(from_asker), number]
}

impl Attempt {
    /// The token of a probe.
    fn token(&self, from_asker: bool, number: u8) -> Lead {
        let long = kdf(self.key.expose(), "shoal v1 probe token", &[&name(from_asker, number)]);
        let mut token = Lead::default();
        token.copy_from_slice(&long[..shake::LEAD_LEN]);
        token
    }

    /// Under what a probe is sealed. Each key seals one frame.
    fn seal_key(&self, from_asker: bool, number: u8) -> AeadKey {
        let name = name(from_asker, number);
        let key = Secret::new(kdf(self.key.expose(), "shoal v1 probe seal", &[&name]));
        AeadKey::new(Suite::Aes256Gcm, key.expose())
    }

    /// The next probe, while there is one.
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

    /// Adds places to be tried from now on.
    fn add(&mut self, now: Time, places: &[SocketAddr]) {
        for &at in places {
            let known = self.places.iter().any(|(known, ..)| *known == at);
            if !known && self.places.len() < PLACES_MAX {
                self.places.push((at, now, 0));
            }
        }
    }

    fn due(place: &Tried) -> Option<Time> {
        let (_, since, sent) = *place;
        SCHEDULE.get(sent).map(|&after| since + after)
    }

    /// The next place that is due.
    fn take_due(&mut self, now: Time) -> Option<SocketAddr> {
        let due = |place: &&mut Tried| Attempt::due(place).is_some_and(|at| at <= now);
        let place = self.places.iter_mut().find(due)?;
        place.2 += 1;
        Some(place.0)
    }

    fn next_time(&self) -> Time {
        self.places.iter().filter_map(Attempt::due).fold(self.until, Time::min)
    }
}

impl Probes {
    /// Begins an attempt, or adds places to it.
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
        let mut attempt = Attempt {
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

    /// Ends the attempts that `over` names.
    fn end(&mut self, over: impl Fn(&Attempt) -> bool) {
        let gone: Vec<MeetingId> =
            self.attempts.extract_if(.., |attempt| over(attempt)).map(|gone| gone.id).collect();
        if !gone.is_empty() {
            self.tokens.retain(|_, (id, _)| !gone.contains(id));
        }
    }
}

impl<C: Ciphers> Relay<C> {
    /// Sends probes to places where the other end of a direct link may be, and takes those of the
    /// other end; with an attempt that is known already, to these places, too. The end that asked
    /// calls where the first one comes from.
    ///
    /// Errors: `table_full` where too many attempts are under way; `unknown_peer`.
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

    /// Whether a frame may be a probe that this node waits for.
    pub(crate) fn is_probe(&self, token: &Lead) -> bool {
        self.probes.tokens.contains_key(token)
    }

    /// Takes a probe. Its token counts no more.
    pub(crate) fn handle_probe(
        &mut self,
        now: Time,
        from: Endpoints,
        frame: &mut [u8],
        sink: &mut impl Sink,
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
                self.event(Event::Met(link));
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

    /// Ends the attempts of a link that stands, or is gone.
    pub(crate) fn end_probes(&mut self, link: LinkId) {
        self.probes.end(|attempt| attempt.link == link);
    }

    /// Sends the probes that are due.
    pub(crate) fn drive_probes(&mut self, now: Time, sink: &mut impl Sink) {
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
        let times = self.probes.attempts.iter().map(Attempt::next_time);
        times.min().map(|at| (at, "probe"))
    }
}
