//! Where this node is seen: its routers say so, and mirrors do, which are other routers that a host
//! has no link with. Two of them tell what a translator of addresses on the way does.
//!
//! ```text
//! host --- link ------------ its router:    Seen, after handshakes and moves
//!      \-- sealed request -> other router:  sealed answer, of as many bytes
//! ```
//!
//! A mirror keeps nothing of who asks. It remembers what it answered for as long as the date in a
//! request holds, so that a copy of a request draws no byte.

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

use crate::stun::Stun;
use crate::{Event, Path, Relay, Sink};

/// The role in the keys of requests and answers.
const ROLE: &[u8] = b"mirror";
/// How far the date of a request may be from the mirror's clock, in seconds.
const DATE_OFF_S: u32 = 60;
/// Answers per second, ...
const ANSWERS_PER_S: u32 = 8;
/// ... and at once after a pause.
const ANSWERS_BURST: u32 = 32;
/// Requests remembered: all that are answered while their date holds.
const TAKEN_MAX: usize = (2 * DATE_OFF_S * ANSWERS_PER_S + ANSWERS_BURST) as usize;
/// Mirrors that are asked.
const MIRRORS_MAX: usize = 2;
/// When a mirror that does not answer is asked again, since it was asked last; then it is given up.
const AGAIN: [Duration; 5] = [
    Duration::from_millis(400),
    Duration::from_millis(800),
    Duration::from_millis(1_600),
    Duration::from_millis(3_200),
    Duration::from_millis(6_400),
];
/// When a host is told once more where it is seen, since it was told last: nobody answers that.
const TELL_AGAIN: [Duration; 3] =
    [Duration::from_millis(250), Duration::from_millis(750), Duration::from_millis(1_500)];
/// Hosts that wait to be told once more, for each of these times. Others are told once.
const TELL_AGAIN_MAX: usize = 4_096;

/// Hosts that are told where they are seen.
#[derive(Default)]
pub(crate) struct SeenToTell {
    /// Those that are told at once.
    now: Vec<LinkId>,
    /// Those that are told once more, by how often they were: each queue in the order of its times.
    again: [VecDeque<(Time, LinkId)>; TELL_AGAIN.len()],
}

impl SeenToTell {
    fn list(&mut self, link: LinkId) {
        if !self.now.contains(&link) {
            self.now.push(link);
        }
    }

    /// Takes who is to be told now, and lists each to be told once more.
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

/// A mirror that is asked.
struct Ask {
    at: SocketAddr,
    seal: OuterSeal,
    /// What led the requests that were sent.
    leads: Vec<Lead>,
    due: Time,
}

/// Both sides of mirrors.
pub(crate) struct Mirrors {
    /// Others are asked under the first.
    secrets: NetworkSecrets,
    /// This node's key; none on hosts, which answer nobody.
    me: Option<PublicKey>,
    /// Under what requests to this node are sealed.
    own: Option<OuterSeals>,
    rng: Rng,
    /// The wall clock at this node's start: it may have answered what is older.
    started_s: u32,
    taken: BTreeSet<Lead>,
    order: VecDeque<Lead>,
    /// When the next answer would be due if answers came evenly.
    answer_at: Time,
    known: Vec<(PublicKey, SocketAddr)>,
    asks: Vec<Ask>,
    /// What mirrors saw.
    views: Vec<(SocketAddr, SocketAddr)>,
    /// Public servers that are asked beside them.
    pub(crate) stun: Stun,
}

fn reason(error: ParseError) -> DropReason {
    match error {
        ParseError::Unknown { what: "version", .. } => DropReason::BadVersion,
        _ => DropReason::Malformed,
    }
}

/// Writes what stands under a seal to the start of `body`.
fn put(body: &mut [u8], bytes: &[u8]) {
    body[..bytes.len()].copy_from_slice(bytes);
}

impl Mirrors {
    /// `me` is this node's key if it is a router.
    pub(crate) fn new(
        secret: NetworkSecret,
        me: Option<PublicKey>,
        seed: [u8; 32],
        unix_ms: u64,
    ) -> Mirrors {
        let mut rng = Rng::new(seed);
        let secrets = NetworkSecrets::from(secret);
        Mirrors {
            stun: Stun::new(rng.array()),
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

    /// Asks under the first of these secrets, and answers under both.
    fn set_secrets(&mut self, secrets: NetworkSecrets) {
        self.own = self.me.map(|me| OuterSeals::new(ROLE, &secrets, &me));
        self.secrets = secrets;
    }

    /// Asks anew, all but those that see this node's frames anyway.
    fn ask(&mut self, now: Time, neighbours: &[SocketAddr]) {
        self.views.clear();
        let others = self.known.iter().filter(|(_, at)| !neighbours.contains(at));
        let ask = |(key, at): &(PublicKey, SocketAddr)| Ask {
            at: *at,
            seal: OuterSeal::new(ROLE, &self.secrets.first, key),
            leads: Vec::new(),
            due: now,
        };
        self.asks = others.take(MIRRORS_MAX).map(ask).collect();
    }

    /// The next request that is due, and where it goes.
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

    /// Answers a request, in its place.
    ///
    /// Errors: `unknown_index` for whatever is not sealed for this router; `wrong_clock`,
    /// `replayed_handshake`, `handshake_budget`, `bad_version` and `malformed` draw nothing either.
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

    /// Whether a frame may be the answer to a request.
    fn awaits(&self, token: &Lead) -> bool {
        let fits = |ask: &Ask| ask.leads.iter().any(|lead| ask.seal.token(lead) == *token);
        self.asks.iter().any(fits)
    }

    /// Takes an answer.
    fn take_answer(
        &mut self,
        from: SocketAddr,
        frame: &mut [u8],
        rules: &EndpointRules,
    ) -> Result<(), DropReason> {
        let token = *frame.first_chunk::<{ shake::LEAD_LEN }>().ok_or(DropReason::BadSize)?;
        let fits = |ask: &Ask| ask.leads.iter().any(|lead| ask.seal.token(lead) == token);
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
    /// Says which routers may be asked where they see this node, with the keys and endpoints under
    /// which the list has them. Two of them are asked whenever a router of this node sees it
    /// somewhere else than before. At first there are none, and nobody is asked.
    pub fn set_mirrors(&mut self, now: Time, mut mirrors: Vec<(PublicKey, SocketAddr)>) {
        mirrors.retain(|(_, at)| self.rules.check(*at, EndpointOrigin::Told).is_ok());
        if self.mirrors.known != mirrors {
            self.mirrors.known = mirrors;
            if self.neighbours.iter().any(|(_, neighbour)| neighbour.seen.is_some()) {
                self.ask_mirrors(now);
            }
        }
    }

    /// Has handshakes, and questions to mirrors, begin with the first of these secrets, and takes
    /// those under both. Links stay as they are.
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

    /// Where this node is seen, and by whom: by its routers, by mirrors, by STUN's servers.
    pub fn seen(&self) -> impl Iterator<Item = (SocketAddr, SocketAddr)> + '_ {
        let routers = self
            .neighbours
            .iter()
            .filter_map(|(link, known)| Some((self.told_endpoint(link)?.remote, known.seen?)));
        let asked = [&self.mirrors.views, &self.mirrors.stun.views].into_iter().flatten();
        routers.chain(asked.copied())
    }

    /// What a translator on this node's way out does, as far as those who see this node tell.
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

    /// Has a host told where it is seen.
    pub(crate) fn list_seen(&mut self, link: LinkId) {
        let host = self.neighbours.get(link).is_some_and(|n| !n.address.is_router());
        if host && self.config.address.is_router() {
            self.seen_to_tell.list(link);
        }
    }

    /// Tells hosts where they are seen; says whether there were any to be told.
    pub(crate) fn tell_seen(&mut self, now: Time, sink: &mut impl Sink) -> bool {
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

    /// A router says where it sees this node.
    ///
    /// Errors: `not_allowed` for a neighbour that is no router, and on routers.
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
            self.event(Event::Seen);
        }
        Ok(())
    }

    /// Takes a frame outside of sessions that is no handshake; none if it may be one.
    pub(crate) fn handle_stray(
        &mut self,
        now: Time,
        from: Endpoints,
        frame: &mut [u8],
        sink: &mut impl Sink,
    ) -> Option<Result<(), DropReason>> {
        let token =
            frame.first_chunk::<{ shake::LEAD_LEN }>().filter(|_| frame.len() == MIRROR_LEN)?;
        if self.mirrors.awaits(token) {
            let taken = self.mirrors.take_answer(from.remote, frame, &self.rules);
            if taken.is_ok() {
                self.event(Event::Seen);
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
        // A covered host asks nobody: the answer would be somebody else's, beside the schedule.
        if answer.is_ok() && self.is_of_covered(from) {
            return Some(Err(DropReason::NotAllowed));
        }
        Some(answer.map(|answer| self.send_stray(from, &answer, sink)))
    }

    /// Whether a covered neighbour is there.
    fn is_of_covered(&self, from: Endpoints) -> bool {
        let mut covered = self.neighbours.iter().filter(|(_, near)| near.is_covered());
        covered.any(|(_, near)| near.endpoint.is_some_and(|ends| ends.remote == from.remote))
    }

    fn unix_s(&self, now: Time) -> u32 {
        let (at, unix_ms) = self.wall;
        (unix_ms.saturating_add(now.since(at).as_millis() as u64) / 1_000) as u32
    }

    /// Sends what is due to mirrors.
    pub(crate) fn drive_mirrors(&mut self, now: Time, sink: &mut impl Sink) {
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
        due.map(|at| (at, "where it is seen"))
    }

    /// Sends a frame outside of sessions. One that is not taken is lost.
    pub(crate) fn send_stray(&mut self, to: Endpoints, frame: &[u8], sink: &mut impl Sink) {
        let path = Path { link: None, ends: to };
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
    fn who_is_told_is_told_again_three_times_as_long_as_there_is_room() {
        let (mut hosts, at) = (SeenToTell::default(), Time::from_millis);
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
        assert_eq!(hosts.take(at(60_000)).len(), TELL_AGAIN_MAX + 9, "once, all of them");
        assert_eq!(hosts.take(at(61_000)).len(), TELL_AGAIN_MAX);
    }
}
