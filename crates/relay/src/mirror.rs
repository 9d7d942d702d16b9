//! Observations of this node's public address, from its routers and from mirrors. Mirrors are
//! routers without a link to this host. Two observers show how a translator of addresses on the
//! path behaves.
//!
//! ```text
//! host --- link ------------ its router:    Seen, after handshakes and moves
//!      \\-- sealed request -> other router:  sealed answer, of as many bytes
//! ```
//!
//! A mirror stores no data about its callers. It remembers answered requests until their date
//! expires, so a replayed request gets no answer.

use core::time::Duration;
use std::collections::{BTreeSet, VecDeque};
use std::net::SocketAddr;

use shoal_crypto::{Ciphers, NetworkSecret, NetworkSecrets, PublicKey, Rng};
use shoal_session::outer::{Lead, OuterSeal, OuterSeals};
use shoal_session::{EndpointOrigin, EndpointRules, Endpoints};
use shoal_wire::{
    CONTROL_SEEN, DropReason, LinkId, MIRROR_LEN, Mapping, MirrorAnswer, MirrorRequest, ParseError,
    SizeClass, TAG_LEN, Time, place_bytes, shake,
};

use crate::stun::StunClient;
use crate::{FrameSink, Relay, RelayEvent, SendPath};

/// The role in the key derivation of requests and answers.
const ROLE: &[u8] = b"mirror";
/// Maximum difference between a request's date and the mirror's clock, in seconds.
const DATE_OFF_S: u32 = 60;
/// Answers per second.
const ANSWERS_PER_S: u32 = 8;
/// Maximum burst of answers after a pause.
const ANSWERS_BURST: u32 = 32;
/// Number of remembered requests: all that can be answered while their date is valid.
const TAKEN_MAX: usize = (2 * DATE_OFF_S * ANSWERS_PER_S + ANSWERS_BURST) as usize;
/// Maximum number of mirrors to ask.
const MIRRORS_MAX: usize = 2;
/// Delays between requests to a mirror that does not answer. After the last one it is given up.
const AGAIN: [Duration; 5] = [
    Duration::from_millis(400),
    Duration::from_millis(800),
    Duration::from_millis(1_600),
    Duration::from_millis(3_200),
    Duration::from_millis(6_400),
];
/// Delays between repeats of the message that tells a host its address. It is never acknowledged.
const TELL_AGAIN: [Duration; 3] =
    [Duration::from_millis(250), Duration::from_millis(750), Duration::from_millis(1_500)];
/// Maximum number of hosts in each repeat queue. Further hosts are told once.
const TELL_AGAIN_MAX: usize = 4_096;

/// Hosts to be told their public address.
#[derive(Default)]
pub(crate) struct AddressReports {
    /// Hosts to be told at once.
    now: Vec<LinkId>,
    /// Hosts to be told again, by number of repeats. Each queue is in order of time.
    again: [VecDeque<(Time, LinkId)>; TELL_AGAIN.len()],
}

impl AddressReports {
    fn list(&mut self, link: LinkId) {
        if !self.now.contains(&link) {
            self.now.push(link);
        }
    }

    /// Takes the hosts to be told now, and queues each for a repeat.
    fn take(&mut self, now: Time) -> Vec<LinkId> {
        let mut all = core::mem::take(&mut self.now);
        for &link in &all {
            self.tell_later(now, link, 0);
        }
        for number in 0..self.again.len() {
            while let Some((_, link)) = self.again[number].pop_front_if(|(at, _)| *at <= now) {
                self.tell_later(now, link, number + 1);
                all.push(link);
            }
        }
        all
    }

    fn tell_later(&mut self, now: Time, link: LinkId, number: usize) {
        if let Some((queue, after)) = self.again.get_mut(number).zip(TELL_AGAIN.get(number))
            && queue.len() < TELL_AGAIN_MAX
        {
            queue.push_back((now + *after, link));
        }
    }

    fn next(&self) -> Option<Time> {
        let first = (!self.now.is_empty()).then_some(Time::ZERO);
        let again = self.again.iter().filter_map(|queue| Some(queue.front()?.0));
        first.into_iter().chain(again).min()
    }
}

/// A mirror that is being asked.
struct MirrorRequestState {
    at: SocketAddr,
    seal: OuterSeal,
    /// The first bytes of the requests that were sent.
    leads: Vec<Lead>,
    due: Time,
}

/// The state of mirrors, as client and as server.
pub(crate) struct Mirrors {
    /// Network secrets. Requests use the first.
    secrets: NetworkSecrets,
    /// This node's key. None on hosts, which answer no requests.
    me: Option<PublicKey>,
    /// Seals for requests to this node.
    own: Option<OuterSeals>,
    rng: Rng,
    /// Wall clock at this node's start. Older requests may already have been answered by a previous
    /// process.
    started_s: u32,
    taken: BTreeSet<Lead>,
    order: VecDeque<Lead>,
    /// When the next answer would be due at an even rate.
    answer_at: Time,
    known: Vec<(PublicKey, SocketAddr)>,
    asks: Vec<MirrorRequestState>,
    /// Mirrors, and the address that each of them reported.
    views: Vec<(SocketAddr, SocketAddr)>,
    /// Public STUN servers that are also asked.
    pub(crate) stun: StunClient,
}

fn reason(error: ParseError) -> DropReason {
    match error {
        ParseError::Unknown { what: "version", .. } => DropReason::BadVersion,
        _ => DropReason::Malformed,
    }
}

/// Writes plaintext to the start of `body`.
fn put(body: &mut [u8], bytes: &[u8]) {
    body[..bytes.len()].copy_from_slice(bytes);
}

impl Mirrors {
    /// Creates the state. `me` is this node's key if it is a router.
    pub(crate) fn new(
        secret: NetworkSecret,
        me: Option<PublicKey>,
        seed: [u8; 32],
        unix_ms: u64,
    ) -> Mirrors {
        let mut rng = Rng::new(seed);
        let secrets = NetworkSecrets::from(secret);
        Mirrors {
            stun: StunClient::new(rng.array()),
            own: me.map(|me| OuterSeals::new(ROLE, &secrets, &me)),
            me,
            secrets,
            rng,
            started_s: (unix_ms / 1_000) as u32,
            taken: BTreeSet::new(),
            order: VecDeque::new(),
            answer_at: Time::ZERO,
            known: Vec::new(),
            asks: Vec::new(),
            views: Vec::new(),
        }
    }

    /// Replaces the secrets: requests use the first, and answers accept both.
    fn set_secrets(&mut self, secrets: NetworkSecrets) {
        self.own = self.me.map(|me| OuterSeals::new(ROLE, &secrets, &me));
        self.secrets = secrets;
    }

    /// Asks all known mirrors again, except neighbours, which see this node's frames anyway.
    fn ask(&mut self, now: Time, neighbours: &[SocketAddr]) {
        self.views.clear();
        let others = self.known.iter().filter(|(_, at)| !neighbours.contains(at));
        let ask = |(key, at): &(PublicKey, SocketAddr)| MirrorRequestState {
            at: *at,
            seal: OuterSeal::new(ROLE, &self.secrets.first, key),
            leads: Vec::new(),
            due: now,
        };
        self.asks = others.take(MIRRORS_MAX).map(ask).collect();
    }

    /// Takes the next request that is due, with its destination.
    fn poll_request(&mut self, now: Time, shown_s: u32) -> Option<(SocketAddr, [u8; MIRROR_LEN])> {
        self.asks.retain(|ask| ask.due > now || ask.leads.len() < AGAIN.len());
        let ask = self.asks.iter_mut().find(|ask| ask.due <= now)?;
        let lead: Lead = self.rng.array();
        ask.due = now + AGAIN[ask.leads.len()];
        ask.leads.push(lead);
        let mut frame = [0; MIRROR_LEN];
        put(&mut frame[shake::REQUEST_AT..], &MirrorRequest { shown_s }.to_bytes());
        ask.seal.seal_request(&lead, &mut frame);
        Some((ask.at, frame))
    }

    fn next(&self) -> Option<Time> {
        self.asks.iter().map(|ask| ask.due).min()
    }

    fn may_answer(&mut self, now: Time) -> bool {
        let every = Duration::from_secs(1) / ANSWERS_PER_S;
        let at = self.answer_at.max(now);
        let may = at < now + every * ANSWERS_BURST;
        if may {
            self.answer_at = at + every;
        }
        may
    }

    /// Answers a request.
    ///
    /// Errors: `unknown_index` if the request is not sealed for this router. `wrong_clock`,
    /// `replayed_handshake`, `handshake_budget`, `bad_version` and `malformed` also cause no
    /// answer.
    fn answer(
        &mut self,
        now: Time,
        now_s: u32,
        from: SocketAddr,
        frame: &mut [u8],
    ) -> Result<[u8; MIRROR_LEN], DropReason> {
        let own = self.own.as_ref().ok_or(DropReason::UnknownIndex)?;
        let opened = own.open_request(frame).map_err(|_| DropReason::UnknownIndex);
        let (lead, body, opener) = opened?;
        let request = MirrorRequest::parse(body).map_err(reason)?;
        let since_start = request.shown_s.wrapping_sub(self.started_s).cast_signed();
        let off = request.shown_s.wrapping_sub(now_s).cast_signed().unsigned_abs();
        if since_start < 0 || off > DATE_OFF_S {
            return Err(DropReason::WrongClock);
        }
        if self.taken.contains(&lead) {
            return Err(DropReason::ReplayedHandshake);
        }
        if !self.may_answer(now) {
            return Err(DropReason::HandshakeBudget);
        }
        self.taken.insert(lead);
        self.order.push_back(lead);
        let oldest = if self.order.len() > TAKEN_MAX { self.order.pop_front() } else { None };
        oldest.map(|oldest| self.taken.remove(&oldest));
        let mut out = [0; MIRROR_LEN];
        let salt = self.rng.array();
        put(&mut out[shake::REPLY_AT..], &MirrorAnswer { seen: from }.to_bytes());
        opener.seal_reply(&lead, &salt, None, &mut out);
        Ok(out)
    }

    /// True if a frame may be the answer to a request.
    fn awaits(&self, token: &Lead) -> bool {
        let fits =
            |ask: &MirrorRequestState| ask.leads.iter().any(|lead| ask.seal.token(lead) == *token);
        self.asks.iter().any(fits)
    }

    /// Handles an answer.
    fn take_answer(
        &mut self,
        from: SocketAddr,
        frame: &mut [u8],
        rules: &EndpointRules,
    ) -> Result<(), DropReason> {
        let token = *frame.first_chunk::<{ shake::LEAD_LEN }>().ok_or(DropReason::BadSize)?;
        let fits =
            |ask: &MirrorRequestState| ask.leads.iter().any(|lead| ask.seal.token(lead) == token);
        let at = self.asks.iter().position(|ask| ask.at == from && fits(ask));
        let ask = &self.asks[at.ok_or(DropReason::UnexpectedReply)?];
        let lead = ask.leads.iter().find(|lead| ask.seal.token(lead) == token);
        let lead = lead.ok_or(DropReason::UnexpectedReply)?;
        let body = ask.seal.open_reply(lead, None, frame)?;
        let seen = MirrorAnswer::parse(body).map_err(reason)?.seen;
        self.asks.retain(|ask| ask.at != from);
        rules.check(seen, EndpointOrigin::View)?;
        self.views.push((from, seen));
        Ok(())
    }
}

const _: () = assert!(shake::REPLY_AT + MirrorAnswer::LEN + TAG_LEN <= MIRROR_LEN);
const _: () = assert!(MIRROR_LEN == SizeClass::Small.frame_len());

impl<C: Ciphers> Relay<C> {
    /// Sets the routers that may be asked for this node's public address, with their keys and
    /// endpoints from the list.
    ///
    /// Two of them are asked whenever a router of this node sees a new address. Initially there are
    /// none.
    pub fn set_mirrors(&mut self, now: Time, mut mirrors: Vec<(PublicKey, SocketAddr)>) {
        mirrors.retain(|(_, at)| self.rules.check(*at, EndpointOrigin::Told).is_ok());
        if self.mirrors.known != mirrors {
            self.mirrors.known = mirrors;
            if self.neighbours.iter().any(|(_, neighbour)| neighbour.seen.is_some()) {
                self.ask_mirrors(now);
            }
        }
    }

    /// Sets the network secrets. Handshakes and requests to mirrors use the first, and both are
    /// accepted. Links stay as they are.
    pub fn set_secrets(&mut self, secrets: NetworkSecrets) {
        self.sessions.set_secrets(secrets.clone());
        self.mirrors.set_secrets(secrets);
        self.renew_meetings();
    }

    fn ask_mirrors(&mut self, now: Time) {
        let there = self.neighbours.iter().filter(|(_, neighbour)| neighbour.address.is_router());
        let there = there.filter_map(|(link, _)| self.told_endpoint(link));
        let there: Vec<SocketAddr> = there.map(|ends| ends.remote).collect();
        self.mirrors.ask(now, &there);
        self.mirrors.stun.ask(now);
    }

    /// Observations of this node's public address: each observer and the address. Observers are its
    /// routers, mirrors and STUN servers.
    pub fn seen(&self) -> impl Iterator<Item = (SocketAddr, SocketAddr)> + '_ {
        let routers = self
            .neighbours
            .iter()
            .filter_map(|(link, known)| Some((self.told_endpoint(link)?.remote, known.seen?)));
        let asked = [&self.mirrors.views, &self.mirrors.stun.views].into_iter().flatten();
        routers.chain(asked.copied())
    }

    /// Behaviour of a translator on this node's path, as the observations show.
    pub fn mapping(&self) -> Mapping {
        let mut mapping = Mapping::Unknown;
        let views: Vec<_> = self.seen().collect();
        for (number, (by, seen)) in views.iter().enumerate() {
            for (other, again) in &views[number + 1..] {
                if by == other || seen.is_ipv4() != again.is_ipv4() {
                    continue;
                }
                if seen != again {
                    return Mapping::Hard;
                }
                mapping = Mapping::Easy;
            }
        }
        mapping
    }

    /// Queues a host to be told its public address.
    pub(crate) fn list_seen(&mut self, link: LinkId) {
        let host = self.neighbours.get(link).is_some_and(|n| !n.address.is_router());
        if host && self.config.address.is_router() {
            self.seen_to_tell.list(link);
        }
    }

    /// Tells hosts their public addresses. Returns true if there were any to tell.
    pub(crate) fn tell_seen(&mut self, now: Time, sink: &mut impl FrameSink) -> bool {
        let listed = self.seen_to_tell.take(now);
        for &link in &listed {
            let neighbour = self.neighbours.get(link).filter(|neighbour| neighbour.established);
            if let Some(at) = neighbour.and_then(|_| self.told_endpoint(link)) {
                let body = place_bytes(Some(at.remote));
                self.send_control(now, link, &[(CONTROL_SEEN, &body)], sink);
            }
        }
        !listed.is_empty()
    }

    /// Handles a router's report of this node's public address.
    ///
    /// Errors: `not_allowed` if the neighbour is no router or this node is a router.
    pub(crate) fn hear_seen(
        &mut self,
        now: Time,
        from: LinkId,
        at: SocketAddr,
    ) -> Result<(), DropReason> {
        let neighbour = self.neighbours.get_mut(from).ok_or(DropReason::UnknownPeer)?;
        if !neighbour.address.is_router() || self.config.address.is_router() {
            return Err(DropReason::NotAllowed);
        }
        self.rules.check(at, EndpointOrigin::View)?;
        if neighbour.seen.replace(at) != Some(at) {
            self.ask_mirrors(now);
            self.event(RelayEvent::Seen);
        }
        Ok(())
    }

    /// Handles a frame outside of sessions that is no handshake. None if it may be a handshake.
    pub(crate) fn handle_stray(
        &mut self,
        now: Time,
        from: Endpoints,
        frame: &mut [u8],
        sink: &mut impl FrameSink,
    ) -> Option<Result<(), DropReason>> {
        let token =
            frame.first_chunk::<{ shake::LEAD_LEN }>().filter(|_| frame.len() == MIRROR_LEN)?;
        if self.mirrors.awaits(token) {
            let taken = self.mirrors.take_answer(from.remote, frame, &self.rules);
            if taken.is_ok() {
                self.event(RelayEvent::Seen);
            }
            return Some(taken);
        }
        if self.is_probe(token) {
            return Some(self.handle_probe(now, from, frame, sink));
        }
        if self.sessions.awaits(token) || self.mirrors.own.is_none() {
            return None;
        }
        let now_s = self.unix_s(now);
        let answer = self.mirrors.answer(now, now_s, from.remote, frame);
        // A covered host sends no requests. The source is forged, and an answer would be a frame
        // outside of the schedule.
        if answer.is_ok() && self.is_of_covered(from) {
            return Some(Err(DropReason::NotAllowed));
        }
        Some(answer.map(|answer| self.send_stray(from, &answer, sink)))
    }

    /// True if a covered neighbour has this endpoint.
    fn is_of_covered(&self, from: Endpoints) -> bool {
        let mut covered = self.neighbours.iter().filter(|(_, near)| near.is_covered());
        covered.any(|(_, near)| near.endpoint.is_some_and(|ends| ends.remote == from.remote))
    }

    fn unix_s(&self, now: Time) -> u32 {
        let (at, unix_ms) = self.wall;
        (unix_ms.saturating_add(now.since(at).as_millis() as u64) / 1_000) as u32
    }

    /// Sends requests to mirrors and STUN servers that are due.
    pub(crate) fn drive_mirrors(&mut self, now: Time, sink: &mut impl FrameSink) {
        let shown_s = self.unix_s(now);
        while let Some((to, frame)) = self.mirrors.poll_request(now, shown_s) {
            self.send_stray(to.into(), &frame, sink);
        }
        while let Some((to, request)) = self.mirrors.stun.poll_request(now) {
            self.send_stray(to.into(), &request, sink);
        }
    }

    pub(crate) fn mirrors_due(&self) -> Option<(Time, &'static str)> {
        let told = self.seen_to_tell.next();
        let due = [self.mirrors.next(), self.mirrors.stun.next(), told].into_iter().flatten().min();
        due.map(|at| (at, "public address"))
    }

    /// Sends a frame outside of sessions. If the kernel refuses it, it is lost.
    pub(crate) fn send_stray(&mut self, to: Endpoints, frame: &[u8], sink: &mut impl FrameSink) {
        let path = SendPath { link: None, ends: to };
        let outcome = self.own.send_outside(sink, path, (frame, &[0], frame.len()));
        let traffic = &mut self.own.counters.traffic;
        traffic.frames_out += outcome.sent as u64;
        traffic.handshakes_out += outcome.sent as u64;
        traffic.bytes_out += (outcome.sent * frame.len()) as u64;
        if let Some(stop) = outcome.stop {
            self.own.counters.drop(stop.reason(), 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_report_is_repeated_three_times_while_there_is_room() {
        let (mut hosts, at) = (AddressReports::default(), Time::from_millis);
        let link = LinkId::from_bits(7);
        assert_eq!(hosts.next(), None);
        (0..2).for_each(|_| hosts.list(link));
        assert_eq!((hosts.next(), hosts.take(at(5))), (Some(Time::ZERO), vec![link]));
        for due in [255, 1_005, 2_505] {
            assert_eq!((hosts.next(), hosts.take(at(due - 1))), (Some(at(due)), vec![]));
            assert_eq!(hosts.take(at(due)), [link]);
        }
        assert_eq!((hosts.next(), hosts.take(at(60_000))), (None, vec![]));
        let many = (0..TELL_AGAIN_MAX + 9).map(|n| LinkId::from_bits(n as u32));
        many.for_each(|link| hosts.list(link));
        assert_eq!(hosts.take(at(60_000)).len(), TELL_AGAIN_MAX + 9, "all of them once");
        assert_eq!(hosts.take(at(61_000)).len(), TELL_AGAIN_MAX);
    }
}
