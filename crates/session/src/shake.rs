//! Handshakes, as far as they are decided in the machine.
//!
//! 1. `connect` or a session's age puts a peer on the list of starts; `poll_job` makes it a job.
//! 2. The job comes back as a request, which is sent, and again until something answers.
//! 3. At the other end the request passes the outer seal and, under load, the cookie; a job reads
//!    and answers it; then the tables decide whether the answer is sent.
//! 4. The reply finds its attempt by the token; a job ends the handshake; both ends have keys. The
//!    initiator seals under them at once, the responder from the first frame that opens under them.

use core::time::Duration;
use std::sync::Arc;

use shoal_crypto::{Ciphers, Secret};
use shoal_wire::{DropReason, Reply, Request, Time, shake};

use crate::config::{Endpoint, Event, PeerId, Role};
use crate::cookie::{COOKIE_AGE, Cookie};
use crate::job::{Answer, Answered, Asked, AttemptId, Done, Finish, Finished, Grant, Outcome};
use crate::job::{Start, Started, Work};
use crate::keys::{Session, Terms};
use crate::outer::Lead;
use crate::parts;
use crate::peer::{ATTEMPTS_OPEN, Attempt, Dial, REPLIES_MAX, Recheck, Unconfirmed};
use crate::seen;
use crate::sessions::Sessions;
use crate::slots::Index;

/// How far a request's date may be from our clock.
const DATE_OFF: Duration = Duration::from_secs(86_400);
/// As [`DATE_OFF`], under load.
const DATE_OFF_LOADED: Duration = Duration::from_secs(600);
/// Requests of one source that may wait under load.
const PER_SOURCE: usize = 8;
/// Cookies are asked for this long after the queue was half full, as in WireGuard: without it, a
/// flood would get every place that comes free, and the whole budget of public-key work with it.
const LOAD_HOLD: Duration = Duration::from_secs(1);
/// Replies that may wait to be opened.
const FINISHES_MAX: usize = 1_024;

pub(crate) fn parse_reason(error: shoal_wire::ParseError) -> DropReason {
    match error {
        shoal_wire::ParseError::Unknown { what: "version", .. } => DropReason::BadVersion,
        _ => DropReason::Malformed,
    }
}

impl<E: Endpoint, C: Ciphers> Sessions<E, C> {
    /// Asks for a session: begins a handshake unless a session lives or a handshake is under way,
    /// either way round. Without an endpoint nothing happens. Cheap; call it whenever there is
    /// something to send and no session.
    pub fn connect(&mut self, now: Time, peer: PeerId) {
        if !self.is_live(now, peer) {
            self.reconnect(now, peer);
        }
    }

    /// Begins a handshake even if a session lives: for an owner who has reason to think that the
    /// peer has lost it. The live session stays in use until the new one stands.
    pub fn reconnect(&mut self, now: Time, peer: PeerId) {
        self.now = self.now.max(now);
        let wait = self.config.retry_first;
        let Some(found) = self.peer_mut(peer) else { return };
        if let Some(dial) = &mut found.dial {
            // From now on somebody waits for it.
            dial.look = false;
            return;
        }
        if found.resume_at.is_some() {
            return;
        }
        if let Some(answered) = found.next.last().filter(|next| now.since(next.since) < wait) {
            // The peer's handshake, answered just before, may make a session within a round trip.
            // It may also be a replay: ours waits for it once, and for no later one.
            found.resume_at = Some(answered.since + wait);
            return self.refresh_timer(peer);
        }
        self.begin(peer);
    }

    /// Begins a handshake, unless one is under way or nobody knows where the peer is.
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
        });
        self.starts.push_back(peer);
    }

    pub(crate) fn next_work(&mut self) -> Option<Work<E>> {
        if let Some(finish) = self.finishes.pop_front() {
            return Some(Work::Finish(finish));
        }
        while let Some(peer) = self.starts.pop_front() {
            if let Some(start) = self.make_start(peer) {
                return Some(Work::Start(start));
            }
        }
        let answer = self.answers.pop_front()?;
        self.answering += 1;
        Some(Work::Answer(answer))
    }

    fn make_start(&mut self, peer: PeerId) -> Option<Start> {
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
        // Others of the network can forge cookies: some requests go without one.
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
        Some(Start {
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

    /// Reserves an index and adds the mask key that goes with it.
    fn grant(&mut self) -> Option<Grant> {
        let index = self.slots.reserve()?;
        let (epoch, mask) = self.masks.grant(self.now);
        if self.told_epoch.replace(epoch) != Some(epoch) {
            self.slots.tell_masks(&self.masks);
        }
        Some(Grant { index, epoch, mask })
    }

    /// Takes a frame that no session knew. Cheap: what costs Diffie-Hellman becomes a job.
    ///
    /// # Errors
    ///
    /// The frame goes no further; [`DropReason::CookieRequired`] means that its sender was told to
    /// ask again. The frame's bytes are undefined after the call either way.
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
        let (lead, body, opener) = common.outer(from.role(common.role)).open_request(frame)?;
        let request = Request::parse(body).map_err(parse_reason)?;
        let (shown_s, name) = (request.shown_s, seen::name(&lead, body));
        let (off, dated_before) = self.date(shown_s);
        if off > DATE_OFF {
            return Err(DropReason::WrongClock);
        }
        // Where a copy from elsewhere was turned away, the true request's cookie still holds.
        let holds = self.cookies.holds(now, &from, &request.cookie);
        if self.taken.contains(&name) || !holds && self.turned_away.contains(&name) {
            return self.handle_copy(now, from, (&lead, &opener), &name);
        }
        let queue = self.config.handshake_queue.max(4);
        // An earlier run of this node may have answered what is from before our start: it gets a
        // part of the queue, and no cookie.
        if dated_before && self.dated_before >= queue / 4 {
            return Err(DropReason::HandshakeBudget);
        }
        let recent = off <= DATE_OFF_LOADED;
        if recent && !dated_before {
            self.races.note(now, name, from);
        }
        let waiting = self.answers.len() + self.answering;
        if waiting >= queue / 2 {
            self.loaded_until = now + LOAD_HOLD;
        }
        let loaded = now < self.loaded_until;
        if loaded && !recent {
            return Err(DropReason::WrongClock);
        }
        // A cookie that is shown must hold: a copy from elsewhere shows that of the true sender.
        // But an old request may have been pushed out of those remembered, and draws no cookie.
        let shows = request.cookie != Cookie::default() && recent;
        if (loaded || shows) && !holds {
            return self.ask_for_cookie(now, from, (&lead, &opener), name);
        }
        if loaded {
            let same = self.sources.get(&from.source()).copied().unwrap_or(0);
            if waiting >= queue || same >= PER_SOURCE {
                return Err(DropReason::HandshakeBudget);
            }
        }
        let (cookie, noise) = (request.cookie, Box::new(*request.noise));
        let grant = self.grant().ok_or(DropReason::TableFull)?;
        let (salt, ephemeral) = (self.rng.array(), Secret::new(self.rng.array()));
        self.taken.insert(name);
        *self.sources.entry(from.source()).or_default() += 1;
        self.dated_before += usize::from(dated_before);
        self.answers.push_back(Answer {
            asked: Asked { from, name, small, dated_before, age: self.age },
            lead,
            opener,
            cookie,
            shown_s,
            noise,
            grant,
            salt,
            ephemeral,
            levels: Arc::clone(&self.levels),
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
        match (Reply::parse(body).map_err(parse_reason)?, full) {
            (Reply::Response(noise), true) => {
                if attempt.replies.contains(&salt) {
                    return Err(DropReason::ReplayedHandshake);
                }
                if attempt.replies.len() >= REPLIES_MAX || self.finishes.len() >= FINISHES_MAX {
                    return Err(DropReason::HandshakeBudget);
                }
                attempt.replies.push(salt);
                let initiator = Arc::clone(&attempt.initiator);
                let noise = Box::new(*noise);
                self.finishes.push_back(Finish { attempt: id, role, small, initiator, noise });
            }
            (Reply::Cookie(cookie), false) => self.take_cookie(now, id, cookie),
            _ => return Err(DropReason::Malformed),
        }
        Ok(())
    }

    /// Takes back what [`crate::Job::run`] made.
    pub fn handle_done(&mut self, now: Time, done: Done<E>) {
        self.now = self.now.max(now);
        self.running = self.running.saturating_sub(1);
        if let Some(fresh) = &done.fresh {
            self.freshen(fresh.expose());
        }
        match done.outcome {
            Outcome::Start(started) => self.started(now, *started),
            Outcome::Answer { asked, grant, result } => {
                self.leave_queue(&asked);
                let index = grant.index;
                if asked.age != self.age {
                    return self.slots.release(index);
                }
                let answered =
                    result.and_then(|answered| self.answered(now, asked, grant, *answered));
                if let Err(reason) = answered {
                    self.races.end(&asked.name);
                    self.stats.refused += 1;
                    self.count_drop(reason);
                    self.slots.release(index);
                }
            }
            Outcome::Finish { attempt, small, result } => match result {
                // The peer may not choose what we did not offer.
                Ok(finished) if finished.said.level > self.weakest(attempt.peer) => {
                    self.count_drop(DropReason::BadVersion);
                }
                Ok(finished) => self.finished(now, (attempt, small), *finished),
                Err(reason) => self.count_drop(reason),
            },
        }
    }

    /// Gives back the places that a request had.
    fn leave_queue(&mut self, asked: &Asked<E>) {
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

    fn started(&mut self, now: Time, started: Started) {
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
        // A quarter of jitter, so that two who began together don't stay together.
        dial.retry_at = Some(now + dial.wait + dial.wait * spread / (4 << 16));
        if !dial.look && !dial.eager && dial.turn > retry_even {
            dial.wait = (dial.wait * 2).min(retry_max);
        }
        let Started { lead, token, outer, cookie, .. } = started;
        let secret = outer.secret().clone();
        let epoch = started.grant.epoch;
        let initiator = Arc::new(initiator);
        dial.attempts.push(Attempt {
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
        self.note_reached(peer, index, to);
        let small = self.peer(peer).is_some_and(|p| p.is_small(turn));
        self.push_handshake(peer, to, frame, small.then_some(&secret));
        self.refresh_timer(peer);
    }

    fn forget(&mut self, attempt: Attempt, release: bool) {
        self.tokens.remove(&attempt.token);
        self.leads.remove(&attempt.lead);
        if release {
            self.slots.release(attempt.index);
        }
    }

    /// Ends our own handshake with the peer, whatever its state.
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
        self.events.push_back(Event::Failed { peer });
        self.refresh_timer(peer);
    }

    fn answered(
        &mut self,
        now: Time,
        Asked { from, name, small, .. }: Asked<E>,
        grant: Grant,
        answered: Answered,
    ) -> Result<(), DropReason> {
        let Answered { said, suite, level, lanes, split, frame, secret, .. } = answered;
        let peer = self.peer_by_dh(&answered.peer).ok_or(DropReason::UnknownPeer)?;
        if level > self.weakest(peer) {
            // The level was allowed when the request came, and is not any more.
            return Err(DropReason::BadVersion);
        }
        let own = self.common.identity.public();
        let rekey_age = self.rekey_age(false);
        let (role, window) = (from.role(self.config.role), self.config.window);
        if self.is_hidden(peer) && role != Role::Onion {
            return Err(DropReason::CircuitRequired);
        }
        let alone = if self.config.even_waits(role) == 0 { 2 } else { 3 };
        let found = self.peer_mut(peer).ok_or(DropReason::UnknownPeer)?;
        if !found.records.is_fresh(said.incarnation, said.timestamp) {
            return Err(DropReason::ReplayedHandshake);
        }
        // Both began at once: the smaller key's request is the one that counts, unless nothing
        // comes back for it within 0.9 s.
        let crossed = found.dial.as_ref().is_some_and(|dial| dial.sent <= alone);
        if crossed && own.dh < found.key.dh {
            return Err(DropReason::CrossedHandshake);
        }
        let (room, gone) = found.make_room(now, said.timestamp);
        if !room {
            return Err(DropReason::HandshakeBudget);
        }
        let (index, timestamp, incarnation) = (grant.index, said.timestamp, said.incarnation);
        found.next.push(Unconfirmed { index, since: now, timestamp, incarnation, name });
        let terms = Terms {
            role,
            peer,
            suite,
            lanes,
            level,
            initiator: false,
            rekey_age,
            small,
            epoch: grant.epoch,
            peer_index: said.index,
            peer_mask: Secret::new(said.mask_key),
            window,
        };
        self.slots.fill(now, grant.index, &split, &terms);
        if let Some(index) = gone {
            self.slots.release(index);
        }
        self.note_reached(peer, grant.index, from);
        self.stats.responses_sent += 1;
        self.push_handshake(peer, from, frame, small.then_some(&secret));
        self.refresh_timer(peer);
        Ok(())
    }

    fn finished(&mut self, now: Time, (id, small): (AttemptId, bool), finished: Finished) {
        let AttemptId { peer, number } = id;
        let rekey_age = self.rekey_age(true);
        let window = self.config.window;
        let dial = self.peer_mut(peer).and_then(|p| p.dial.take_if(|d| has(d, number)));
        let Some(dial) = dial else {
            self.count_drop(DropReason::UnexpectedReply);
            return;
        };
        let mut made = None;
        for attempt in dial.attempts {
            let chosen = attempt.number == number;
            if chosen {
                made = Some((attempt.index, attempt.epoch, attempt.role));
            }
            self.forget(attempt, !chosen);
        }
        let Some((index, epoch, role)) = made else { return };
        let Finished { said, suite, split } = finished;
        let terms = Terms {
            role,
            peer,
            suite,
            lanes: said.lanes,
            level: said.level,
            initiator: true,
            rekey_age,
            small,
            epoch,
            peer_index: said.index,
            peer_mask: Secret::new(said.mask_key),
            window,
        };
        self.slots.fill(now, index, &split, &terms);
        self.promote(now, peer, index);
    }

    /// Makes a session the one that seals; the one before goes on opening. The endpoint is from
    /// now on where its handshake went: the peer got what was sent there.
    pub(crate) fn promote(&mut self, now: Time, peer: PeerId, index: Index) {
        let Some(session) = self.slots.get(index) else { return };
        let Session { initiator, suite, level, created, role, .. } = *session;
        let (new, small) = (!self.is_live(now, peer), session.small);
        if let Some(found) = self.peer_mut(peer) {
            found.hidden |= role == Role::Onion;
            found.small = small;
            found.endpoint = found.take_reached(index).or(found.endpoint);
            if !small {
                (found.refused, found.recheck) = (false, Recheck::default());
            }
        }
        if small && initiator {
            self.plan_recheck(now, peer);
        }
        self.replace_current(now, peer, index, initiator, created);
        self.drop_others(peer);
        self.stats.established += 1;
        self.events.push_back(Event::Established { peer, initiator, suite, level, new });
        self.events.push_back(Event::NeedKeepalive { peer });
        self.refresh_timer(peer);
    }
}

fn has(dial: &Dial, number: u64) -> bool {
    dial.attempts.iter().any(|a| a.number == number)
}
