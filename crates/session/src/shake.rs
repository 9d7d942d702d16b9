//! Steps of a handshake that the machine decides.
//!
//! 1. `connect` or a session's age puts a peer on the list of starts; `poll_job` makes it a job.
//! 2. The job returns a request, which is sent, and repeated until an answer comes.
//! 3. At the other end the request passes the outer seal and, under load, the cookie check. A job
//!    reads and answers it. Then the tables decide if the answer is sent.
//! 4. The reply finds its attempt by the token, and a job ends the handshake. The initiator seals
//!    under the new keys at once, the responder after the first frame that opens under them.

use core::time::Duration;
use std::sync::Arc;

use shoal_crypto::{Ciphers, Secret};
use shoal_wire::{DropReason, HandshakeReply, HandshakeRequest, Time, shake};

use crate::config::{Endpoint, PeerId, SessionEvent, SessionRole};
use crate::cookie::{COOKIE_AGE, Cookie};
use crate::job::{
    AttemptId, FinishJob, HandshakeTaskOutcome, HandshakeTaskResult, HandshakeWork, IndexGrant,
    RequestJob, RequestOrigin, RequestResult, RequestVerdict, ResponseJob,
};
use crate::outer::Lead;
use crate::parts;
use crate::peer::{ATTEMPTS_OPEN, Dial, HandshakeAttempt, REPLIES_MAX};
use crate::seen;
use crate::sessions::Sessions;

/// Most difference between a request's date and this node's clock.
const DATE_OFF: Duration = Duration::from_secs(86_400);
/// Like [`DATE_OFF`], under load.
const DATE_OFF_LOADED: Duration = Duration::from_secs(600);
/// Most waiting requests of one source under load.
const PER_SOURCE: usize = 8;
/// Time for which cookies are required after the queue was half full, as in WireGuard. Otherwise a
/// flood would get every free place, and with it the whole budget of public-key work.
const LOAD_HOLD: Duration = Duration::from_secs(1);
/// Most replies that may wait to be opened.
const FINISHES_MAX: usize = 1_024;

pub(crate) fn parse_reason(error: shoal_wire::ParseError) -> DropReason {
    match error {
        shoal_wire::ParseError::Unknown { what: "version", .. } => DropReason::BadVersion,
        _ => DropReason::Malformed,
    }
}

impl<E: Endpoint, C: Ciphers> Sessions<E, C> {
    /// Asks for a session: begins a handshake, unless a session is live or either end's handshake
    /// is open. Does nothing without an endpoint. Cheap: call it whenever there is data to send and
    /// no session.
    pub fn connect(&mut self, now: Time, peer: PeerId) {
        if !self.is_live(now, peer) {
            self.reconnect(now, peer);
        }
    }

    /// Begins a handshake even if a session is live: for an owner with reason to think that the
    /// peer has lost it. The live session stays in use until the new one is ready.
    pub fn reconnect(&mut self, now: Time, peer: PeerId) {
        self.now = self.now.max(now);
        let wait = self.config.retry_first;
        let Some(found) = self.peer_mut(peer) else { return };
        if let Some(dial) = &mut found.dial {
            // Somebody waits for this handshake from here on.
            dial.look = false;
            return;
        }
        if found.resume_at.is_some() {
            return;
        }
        if let Some(answered) = found.next.last().filter(|next| now.since(next.since) < wait) {
            // The peer's handshake was just answered and may make a session within a round trip. It
            // may also be a replay, so this node waits for it only once.
            found.resume_at = Some(answered.since + wait);
            return self.refresh_timer(peer);
        }
        self.begin(peer);
    }

    /// Begins a handshake, unless one is open or the peer has no endpoint.
    pub(crate) fn begin(&mut self, peer: PeerId) {
        let wait = self.config.retry_first;
        let Some(found) = self.peer_mut(peer) else { return };
        if found.dial.is_some() {
            return;
        }
        if found.target(1).is_none() {
            return self.need_circuit(peer);
        }
        found.dial = Some(Dial {
            attempts: Vec::new(),
            sent: 0,
            turn: 0,
            hurries: 0,
            hurried: false,
            wait,
            retry_at: None,
            making: None,
            look: false,
            home_first: false,
            eager: false,
            removed: false,
        });
        self.starts.push_back(peer);
    }

    pub(crate) fn next_work(&mut self) -> Option<HandshakeWork<E>> {
        if let Some(finish) = self.finishes.pop_front() {
            return Some(HandshakeWork::Finish(finish));
        }
        while let Some(peer) = self.starts.pop_front() {
            if let Some(start) = self.make_start(peer) {
                return Some(HandshakeWork::Start(start));
            }
        }
        let answer = self.answers.pop_front()?;
        self.answering += 1;
        Some(HandshakeWork::Answer(answer))
    }

    fn make_start(&mut self, peer: PeerId) -> Option<RequestJob> {
        let now = self.now;
        let number = self.numbers + 1;
        let waits = |dial: &Dial| dial.retry_at.is_none() && dial.making.is_none();
        let machine = self.config.role;
        let found = self.peer_mut(peer)?;
        let responder = found.key;
        let dial = found.dial.as_mut().filter(|dial| waits(dial))?;
        dial.making = Some(number);
        dial.turn += u8::from(!dial.hurried);
        let turn = dial.turn;
        // Other members can forge cookies, so some requests go without one.
        let with_cookie = dial.hurried || dial.turn % 2 == 1;
        let role = found.target(turn).map_or(machine, |to| to.role(machine));
        let cookie = found.cookie.filter(|c| with_cookie && now.since(c.1) < COOKIE_AGE);
        let cookie = cookie.map_or(Cookie::default(), |c| c.0);
        let Some(grant) = self.grant() else {
            self.count_drop(DropReason::TableFull);
            self.fail_dial(now, peer);
            return None;
        };
        self.numbers = number;
        Some(RequestJob {
            attempt: AttemptId { peer, number },
            role,
            responder,
            turn,
            grant,
            incarnation: self.incarnation,
            timestamp: self.timestamp(),
            cookie,
            lead: self.rng.array(),
            ephemeral: Secret::new(self.rng.array()),
            weakest: self.weakest(peer),
        })
    }

    /// Reserves an index and adds its mask key.
    fn grant(&mut self) -> Option<IndexGrant> {
        let index = self.slots.reserve()?;
        let (epoch, mask) = self.masks.grant(self.now);
        if self.told_epoch.replace(epoch) != Some(epoch) {
            self.slots.tell_masks(&self.masks);
        }
        Some(IndexGrant { index, epoch, mask })
    }

    /// Processes a frame that belongs to no session. Cheap: Diffie-Hellman work becomes a job.
    ///
    /// # Errors
    ///
    /// The frame is dropped. [`DropReason::CookieRequired`] means that its sender was asked to
    /// repeat it with a cookie. The frame's bytes are undefined after the call in every case.
    pub fn handle_handshake(
        &mut self,
        now: Time,
        from: E,
        frame: &mut [u8],
    ) -> Result<(), DropReason> {
        self.now = self.now.max(now);
        if parts::may_be_part(self.config.role, frame.len()) {
            return self.handle_part(now, from, frame);
        }
        self.handle_whole(now, from, frame, false)
    }

    fn handle_part(&mut self, now: Time, from: E, frame: &mut [u8]) -> Result<(), DropReason> {
        let common = Arc::clone(&self.common);
        let (name, part) = parts::open(common.outer(self.config.role), frame)?;
        if self.parts.seen.insert(name) {
            self.parts.races.note(now, name, from);
        } else if !self.parts.races.may_be_true(now, &name, from) {
            return Err(DropReason::ReplayedHandshake);
        }
        let (whole, gave_up) = self.parts.take(from, &part);
        if gave_up {
            self.count_drop(DropReason::HandshakeBudget);
        }
        match whole {
            Some(mut frame) => self.handle_whole(now, from, &mut frame, true),
            None => Ok(()),
        }
    }

    fn handle_whole(
        &mut self,
        now: Time,
        from: E,
        frame: &mut [u8],
        small: bool,
    ) -> Result<(), DropReason> {
        let role = self.config.role;
        let full = frame.len() == role.handshake_len();
        if !full && frame.len() != role.cookie_len() {
            return Err(DropReason::UnknownIndex);
        }
        let lead: Lead = *frame.first_chunk().ok_or(DropReason::BadSize)?;
        if let Some(&attempt) = self.tokens.get(&lead) {
            return self.handle_reply(now, from, attempt, frame, small);
        }
        if !full {
            return Err(DropReason::UnknownIndex);
        }
        if self.leads.contains(&lead) {
            return Err(DropReason::Reflected);
        }
        self.handle_request(now, from, frame, small)
    }

    fn handle_request(
        &mut self,
        now: Time,
        from: E,
        frame: &mut [u8],
        small: bool,
    ) -> Result<(), DropReason> {
        let common = Arc::clone(&self.common);
        let role = from.role(common.role);
        let (lead, body, opener) = common.outer(role).open_request(frame)?;
        let request = HandshakeRequest::parse(body).map_err(parse_reason)?;
        let (shown_s, name) = (request.shown_s, seen::name(&lead, body));
        let (off, dated_before) = self.date(shown_s);
        if off > DATE_OFF {
            return Err(DropReason::WrongClock);
        }
        // If a copy from elsewhere was turned away, the true request's cookie is still valid.
        let holds = self.cookies.holds(now, &from, &request.cookie);
        if self.taken.contains(&name) || !holds && self.turned_away.contains(&name) {
            return self.handle_copy(now, from, (&lead, &opener), &name);
        }
        let queue = self.config.handshake_queue.max(4);
        // A request from before this node's start may have been answered by an earlier process.
        // Such requests get a quarter of the queue, and no cookie.
        if dated_before && self.dated_before >= queue / 4 {
            return Err(DropReason::HandshakeBudget);
        }
        let recent = off <= DATE_OFF_LOADED;
        if recent && !dated_before {
            self.races.note(now, name, from);
        }
        let waiting = self.answers.len() + self.answering;
        let loaded = self.is_loaded(now, waiting, queue);
        if loaded && !recent {
            return Err(DropReason::WrongClock);
        }
        // A cookie in a request must be valid: a copy from elsewhere has the true sender's cookie.
        // An old request gets no cookie, since its record may have been dropped from the memory.
        let shows = request.cookie != Cookie::default() && recent;
        if (loaded || shows) && !holds {
            return self.ask_for_cookie(now, from, (&lead, &opener), name);
        }
        let same = self.sources.get(&from.source()).copied().unwrap_or(0);
        if loaded && (waiting >= queue || same >= PER_SOURCE) {
            return Err(DropReason::HandshakeBudget);
        }
        let (cookie, noise) = (request.cookie, Box::new(*request.noise));
        let asked = RequestOrigin { from, name, small, dated_before, age: self.age };
        // A captured request may come from anywhere, so only a recent one is answered.
        let tells = recent && !dated_before && !loaded && role == SessionRole::Link;
        let grant = self.grant().ok_or(DropReason::TableFull)?;
        let (salt, ephemeral) = (self.rng.array(), Secret::new(self.rng.array()));
        self.join_queue(&asked);
        self.answers.push_back(ResponseJob {
            asked,
            lead,
            opener,
            cookie,
            shown_s,
            noise,
            grant,
            salt,
            ephemeral,
            levels: Arc::clone(&self.levels),
            former: Arc::clone(&self.former),
            tells,
        });
        Ok(())
    }

    fn handle_reply(
        &mut self,
        now: Time,
        from: E,
        id: AttemptId,
        frame: &mut [u8],
        small: bool,
    ) -> Result<(), DropReason> {
        let machine = self.config.role;
        let peer = self.peers.get_mut(id.peer);
        let peer = peer.ok_or(DropReason::UnexpectedReply)?;
        let attempt = peer.attempt_mut(id.number).ok_or(DropReason::UnexpectedReply)?;
        if from.role(machine) != attempt.role {
            return Err(DropReason::CircuitRequired);
        }
        let (role, full) = (attempt.role, frame.len() == machine.handshake_len());
        let salt = *frame[shake::LEAD_LEN..].first_chunk().ok_or(DropReason::BadSize)?;
        let shared = full.then_some(&attempt.response_key);
        let body = attempt.outer.open_reply(&attempt.lead, shared, frame)?;
        match (HandshakeReply::parse(body).map_err(parse_reason)?, full) {
            (HandshakeReply::Response(noise), true) => {
                if attempt.replies.contains(&salt) {
                    return Err(DropReason::ReplayedHandshake);
                }
                if attempt.replies.len() >= REPLIES_MAX || self.finishes.len() >= FINISHES_MAX {
                    return Err(DropReason::HandshakeBudget);
                }
                attempt.replies.push(salt);
                let initiator = Arc::clone(&attempt.initiator);
                let noise = Box::new(*noise);
                self.finishes.push_back(FinishJob { attempt: id, role, small, initiator, noise });
            }
            (HandshakeReply::Removed(removal), true) if role == SessionRole::Link => {
                self.take_removal(id, &salt, removal)?;
            }
            (HandshakeReply::Cookie(cookie), false) => self.take_cookie(now, id, cookie),
            _ => return Err(DropReason::Malformed),
        }
        Ok(())
    }

    /// Processes the result of [`crate::HandshakeTask::run`].
    pub fn handle_done(&mut self, now: Time, done: HandshakeTaskResult<E>) {
        self.now = self.now.max(now);
        self.running = self.running.saturating_sub(1);
        if let Some(fresh) = &done.fresh {
            self.freshen(fresh.expose());
        }
        match done.outcome {
            HandshakeTaskOutcome::Start(started) => self.started(now, *started),
            HandshakeTaskOutcome::Answer { asked, grant, result } => {
                self.leave_queue(&asked);
                let index = grant.index;
                if asked.age != self.age {
                    return self.slots.release(index);
                }
                let answered = result.and_then(|verdict| match verdict {
                    RequestVerdict::Response(made) => self.answered(now, asked, grant, *made),
                    RequestVerdict::Removed(told) => Err(self.tell_removed(now, &asked, *told)),
                });
                if let Err(reason) = answered {
                    self.races.end(&asked.name);
                    self.stats.refused += 1;
                    self.count_drop(reason);
                    self.slots.release(index);
                }
            }
            HandshakeTaskOutcome::Finish { attempt, small, result } => match result {
                // The peer may not choose a level that this node did not offer.
                Ok(finished) if finished.said.level > self.weakest(attempt.peer) => {
                    self.count_drop(DropReason::BadVersion);
                }
                Ok(finished) => self.finished(now, (attempt, small), *finished),
                Err(reason) => self.count_drop(reason),
            },
        }
    }

    /// True while requests need a cookie.
    fn is_loaded(&mut self, now: Time, waiting: usize, queue: usize) -> bool {
        if waiting >= queue / 2 {
            self.loaded_until = now + LOAD_HOLD;
        }
        now < self.loaded_until
    }

    /// Takes the queue places of a request.
    fn join_queue(&mut self, asked: &RequestOrigin<E>) {
        self.taken.insert(asked.name);
        *self.sources.entry(asked.from.source()).or_default() += 1;
        self.dated_before += usize::from(asked.dated_before);
    }

    /// Releases the queue places of a request.
    fn leave_queue(&mut self, asked: &RequestOrigin<E>) {
        self.answering = self.answering.saturating_sub(1);
        self.dated_before -= usize::from(asked.dated_before);
        let source = asked.from.source();
        if let Some(count) = self.sources.get_mut(&source) {
            *count -= 1;
            if *count == 0 {
                self.sources.remove(&source);
            }
        }
    }

    fn started(&mut self, now: Time, started: RequestResult) {
        let AttemptId { peer, number } = started.attempt;
        let index = started.grant.index;
        let spread = self.rng.below(1 << 16) as u32;
        let retry_max = self.config.retry_max;
        let turn = self.peer(peer).and_then(|p| p.dial.as_ref()).map_or(1, |dial| dial.turn);
        let (role, machine) = (started.role, self.config.role);
        let retry_even = self.config.even_waits(role);
        let endpoint = self.peer(peer).and_then(|p| p.target(turn));
        let endpoint = endpoint.filter(|to| to.role(machine) == role);
        let found = self.peers.get_mut(peer);
        let dial = found.and_then(|p| p.dial.as_mut()).filter(|d| d.making == Some(number));
        let Some(dial) = dial else {
            self.slots.release(index);
            return;
        };
        let (Some((initiator, response_key, frame)), Some(to)) = (started.made, endpoint) else {
            self.slots.release(index);
            self.fail_dial(now, peer);
            return;
        };
        dial.making = None;
        dial.sent += 1;
        let hurried = core::mem::take(&mut dial.hurried);
        // A quarter of jitter, so that two ends that began together don't stay in step.
        dial.retry_at = Some(now + dial.wait + dial.wait * spread / (4 << 16));
        if !dial.look && !dial.eager && dial.turn > retry_even {
            dial.wait = (dial.wait * 2).min(retry_max);
        }
        let RequestResult { lead, token, outer, cookie, .. } = started;
        let secret = outer.secret().clone();
        let epoch = started.grant.epoch;
        let initiator = Arc::new(initiator);
        dial.attempts.push(HandshakeAttempt {
            number,
            role,
            lead,
            token,
            outer,
            index,
            epoch,
            cookie,
            hurried,
            hurries: 0,
            initiator,
            response_key,
            replies: Vec::new(),
        });
        let oldest = (dial.attempts.len() > ATTEMPTS_OPEN).then(|| dial.attempts.remove(0));
        if let Some(oldest) = oldest {
            self.forget(oldest, true);
        }
        self.tokens.insert(token, AttemptId { peer, number });
        self.leads.insert(lead);
        self.stats.requests_sent += 1;
        self.note_called(peer, index, to);
        let small = self.peer(peer).is_some_and(|p| p.is_small(turn));
        self.push_handshake(peer, to, frame, small.then_some(&secret));
        self.refresh_timer(peer);
    }

    pub(crate) fn forget(&mut self, attempt: HandshakeAttempt, release: bool) {
        self.tokens.remove(&attempt.token);
        self.leads.remove(&attempt.lead);
        if release {
            self.slots.release(attempt.index);
        }
    }

    /// Ends this node's own handshake with the peer, whatever its state.
    pub(crate) fn drop_dial(&mut self, peer: PeerId) {
        let dial = self.peer_mut(peer).and_then(|p| p.dial.take());
        for attempt in dial.into_iter().flat_map(|d| d.attempts) {
            self.forget(attempt, true);
        }
    }

    pub(crate) fn fail_dial(&mut self, now: Time, peer: PeerId) {
        self.drop_dial(peer);
        let again = now + self.config.retry_max;
        if let Some(peer) = self.peer_mut(peer) {
            peer.dial_again = again;
        }
        self.stats.failed += 1;
        self.events.push_back(SessionEvent::Failed { peer });
        self.refresh_timer(peer);
    }
}
