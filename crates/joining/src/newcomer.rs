//! A machine that asks a registrar to join, renew its membership, replace its key or leave
//! (docs/design/membership.md).
//!
//! ```text
//! hello, to all endpoints --> cookie --> knock, to the first that answers --> welcome --> request
//!   --> refused: the reason
//!   --> waiting: ask again until somebody decides
//!   --> granted: fetch list and chain, check --> joined
//! ```
//!
//! Driving it: pass it datagrams, call [`Newcomer::handle_timeout`] at [`Newcomer::poll_timeout`],
//! and drain [`Newcomer::poll_transmit`] and [`Newcomer::poll_event`] after each call.
//!
//! Invariant: the registrar's statements count only if the authority's list and the registrar's
//! mandate confirm them.

use core::net::SocketAddr;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use shoal_crypto::{Identity, PublicKey, Rng, VerifyKey};
use shoal_directory::DoorEndpoint;
use shoal_wire::Time;

use crate::door::{Hello, Knock};
use crate::frame::Channel;
use crate::invite::{DoorSecret, Invite};
use crate::joined::{JoinError, NewMembership};
use crate::messages::{
    Answer, Grant, JOIN_LABEL, NameRequest, NewRegistrarRequest, PART_MAX, Refusal, Request,
    RouterRequest, VisitorKind, registrar_said, rekey_said, router_said,
};
use crate::tokens::Token;
use crate::words::Words;

/// First interval between two tries; it doubles each time.
const TRY_FIRST: Duration = Duration::from_millis(250);
/// Longest interval between two tries.
const TRY_MAX: Duration = Duration::from_secs(2);
/// Number of knocks or requests without an answer after which the newcomer says hello again: the
/// registrar may have restarted.
const TRIES: u32 = 4;
/// Number of fetches without a new part after which the newcomer says hello again.
const PART_TRIES: u32 = 6;
/// Consecutive welcomes that count as progress.
const WELCOMES: u32 = 4;
/// Time without progress after which the newcomer gives up.
const PATIENCE: Duration = Duration::from_secs(30);
/// Interval between two requests for approval.
const AWAIT_EVERY: Duration = Duration::from_secs(2);
/// Time after which a router asks for another nonce at its endpoint.
const ENDPOINT_AGAIN: Duration = Duration::from_secs(1);
/// Maximum number of addresses that are called.
const CALLED_MAX: usize = 48;
/// Maximum number of parts requested at once.
const PARTS_AT_ONCE: usize = 64;
/// Time after which a missing part is requested again.
const PART_AGAIN: Duration = Duration::from_millis(400);
/// Maximum length of list and chains in bytes: the longest list, and 65,536 supplements each of the
/// registrar and of the one that made it.
const BUNDLE_MAX: usize = shoal_directory::SIZE_MAX + 2 * 65_536 * 1_026;

/// A request to a registrar.
#[derive(Clone, Debug)]
pub enum JoinGoal {
    /// Become a host.
    Join(NameRequest),
    /// Become a router. The socket that the machine asks from must receive at its endpoint.
    Router(RouterRequest),
    /// Become a router with a registrar that has this key, and is called at this endpoint. As for
    /// [`JoinGoal::Router`].
    Registrar(RouterRequest, Identity, DoorEndpoint),
    /// Renew the membership.
    Renew,
    /// Replace the own key with this one. A repetition by the same two keys gets the same answer.
    Rekey(Identity),
    /// Move behind another router than the one with this number.
    Move(u32),
    /// End the membership.
    Leave,
}

/// A registrar, and the data needed to reach it.
#[derive(Clone)]
pub struct Contact {
    /// The authority's key, which signs the network's list.
    pub authority: VerifyKey,
    /// The registrar's key.
    pub registrar: PublicKey,
    /// The secret of the registrar's door.
    pub door: DoorSecret,
    /// The token; `None` for members.
    pub token: Option<Token>,
    /// The registrar's endpoints. The shell resolves names, and passes the addresses to
    /// [`Newcomer::add_endpoints`].
    pub endpoints: Vec<DoorEndpoint>,
    /// Maximum age of the registrar's list.
    pub staleness_max: Duration,
}

impl Contact {
    /// The registrar of an invite, whose list may be at most `staleness_max` old.
    pub fn new(invite: Invite, staleness_max: Duration) -> Contact {
        let Invite { authority, registrar, door, token, endpoints, .. } = invite;
        Contact { authority, registrar, door, token: Some(token), endpoints, staleness_max }
    }
}

/// A report to the shell.
#[derive(Debug)]
pub enum JoinEvent {
    /// No endpoint has answered yet. The shell creates this event, since it knows how long a person
    /// waits.
    Unanswered,
    /// The registrar's owner must approve the machine, and compares these words.
    Waiting(Words),
    /// Number of bytes of list and chain received, and their total.
    Fetched(usize, usize),
    /// The machine is a member; after [`JoinGoal::Rekey`] with the new key. The last event.
    Joined(Box<NewMembership>),
    /// The membership has ended. The last event.
    Left,
    /// The registrar refused the request. The last event.
    Refused(Refusal),
    /// The request failed. The last event.
    Failed(JoinError),
}

enum JoinState {
    /// No endpoint has answered yet.
    Calling,
    /// A knock waits for its answer; the number of times it was sent.
    Knocking(u32),
    /// A request waits for its answer; the number of times it was sent.
    Asking(u32),
    /// The registrar's owner must approve; the number of requests since the last answer.
    Waiting(u32),
    Fetching(Box<BundleFetch>),
    Done,
}

struct BundleFetch {
    grant: Grant,
    /// Received parts, by number.
    parts: BTreeMap<u32, Vec<u8>>,
    /// Time of the last request for each missing part.
    asked: BTreeMap<u32, Time>,
    /// Number of the first missing part.
    first: u32,
    have: usize,
    whole: usize,
    /// Number of fetches since the last new part.
    tries: u32,
}

pub struct Newcomer {
    own: Identity,
    contact: Contact,
    /// Addresses to call.
    endpoints: Vec<SocketAddr>,
    goal: JoinGoal,
    rng: Rng,
    hello: Option<Hello>,
    /// The endpoint that answered, and the knock sent to it.
    knock: Option<(SocketAddr, Knock)>,
    channel: Option<(SocketAddr, Channel)>,
    state: JoinState,
    next: Time,
    gap: Duration,
    /// Time of the last progress.
    heard: Time,
    said_words: bool,
    /// Welcomes since the last other progress.
    welcomes: u32,
    out: VecDeque<(SocketAddr, Vec<u8>)>,
    events: VecDeque<JoinEvent>,
}

impl Newcomer {
    /// A newcomer with these keys, which asks for `goal`.
    pub fn new(
        own: Identity,
        contact: Contact,
        goal: JoinGoal,
        seed: [u8; 32],
        now: Time,
    ) -> Newcomer {
        let endpoints = contact.endpoints.iter().filter_map(DoorEndpoint::address).collect();
        Newcomer {
            own,
            contact,
            endpoints,
            goal,
            rng: Rng::new(seed),
            hello: None,
            knock: None,
            channel: None,
            state: JoinState::Calling,
            next: now,
            gap: TRY_FIRST,
            heard: now,
            said_words: false,
            welcomes: 0,
            out: VecDeque::new(),
            events: VecDeque::new(),
        }
    }

    /// The time for the next [`Newcomer::handle_timeout`]; `None` when done.
    pub fn poll_timeout(&self) -> Option<Time> {
        match self.state {
            JoinState::Done => None,
            _ => Some(self.next.min(self.gives_up())),
        }
    }

    /// The next datagram, and its destination.
    pub fn poll_transmit(&mut self) -> Option<(SocketAddr, Vec<u8>)> {
        self.out.pop_front()
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<JoinEvent> {
        self.events.pop_front()
    }

    /// Adds addresses of the registrar, and calls them if no endpoint has answered yet.
    pub fn add_endpoints(&mut self, now: Time, all: impl IntoIterator<Item = SocketAddr>) {
        let known = self.endpoints.len();
        for at in all {
            if self.endpoints.len() < CALLED_MAX && !self.endpoints.contains(&at) {
                self.endpoints.push(at);
            }
        }
        if matches!(self.state, JoinState::Calling) && self.endpoints.len() > known {
            (self.next, self.gap) = (now, TRY_FIRST);
        }
    }

    /// True if the registrar has answered the current knock.
    pub fn is_welcomed(&self) -> bool {
        self.channel.is_some()
    }

    fn gives_up(&self) -> Time {
        self.heard + PATIENCE
    }

    fn end(&mut self, event: JoinEvent) {
        self.state = JoinState::Done;
        self.events.push_back(event);
    }

    /// Does what is due at `now`; `unix_s` is this machine's clock.
    pub fn handle_timeout(&mut self, now: Time, unix_s: u64) {
        if matches!(self.state, JoinState::Done) {
            return;
        }
        if now >= self.gives_up() {
            let welcomed = self.channel.is_some();
            return self.end(JoinEvent::Failed(JoinError::Silent { welcomed }));
        }
        if now < self.next {
            return;
        }
        match &mut self.state {
            JoinState::Done => {}
            JoinState::Calling => self.call(now),
            JoinState::Knocking(tries) | JoinState::Asking(tries) | JoinState::Waiting(tries)
                if *tries >= TRIES =>
            {
                self.begin_again(now);
            }
            JoinState::Knocking(_) => self.knock(now),
            JoinState::Asking(_) => self.ask(now),
            JoinState::Waiting(tries) => {
                *tries += 1;
                self.next = now + AWAIT_EVERY;
                self.send(&Request::Await);
            }
            JoinState::Fetching(fetch) if fetch.tries >= PART_TRIES => self.begin_again(now),
            JoinState::Fetching(fetch) => {
                fetch.tries += 1;
                self.fetch(now, unix_s);
            }
        }
    }

    /// Records progress.
    fn progress(&mut self, now: Time) {
        (self.heard, self.welcomes) = (now, 0);
    }

    /// Starts again with a hello: the registrar has forgotten the channel or has moved.
    fn begin_again(&mut self, now: Time) {
        // A new channel has other words.
        (self.hello, self.knock, self.channel, self.said_words) = (None, None, None, false);
        (self.state, self.gap) = (JoinState::Calling, TRY_FIRST);
        self.call(now);
    }

    /// Schedules the next try.
    fn try_later(&mut self, now: Time) {
        self.next = now + self.gap;
        self.gap = (self.gap * 2).min(TRY_MAX);
    }

    fn call(&mut self, now: Time) {
        let Contact { registrar, door, .. } = &self.contact;
        let hello = self.hello.get_or_insert_with(|| Hello::new(registrar, door, &mut self.rng));
        self.out.extend(self.endpoints.iter().map(|at| (*at, hello.frame.clone())));
        self.try_later(now);
    }

    /// Handles the answer to a hello, and knocks at the endpoint that sent it.
    fn begin_knock(&mut self, now: Time, from: SocketAddr, frame: &[u8]) {
        let Some(hello) = &self.hello else { return };
        let Ok(cookie) = hello.cookie(frame) else { return };
        let none = Token::new([0; Token::LEN]);
        let Contact { registrar, door, token, .. } = &self.contact;
        let what = (token.as_ref().unwrap_or(&none), &cookie);
        match Knock::new(&self.own, registrar, door, what, &mut self.rng) {
            Ok(knock) => self.knock = Some((from, knock)),
            Err(_) => return self.end(JoinEvent::Failed(JoinError::Registrar)),
        }
        (self.state, self.gap) = (JoinState::Knocking(0), TRY_FIRST);
        self.knock(now);
    }

    fn knock(&mut self, now: Time) {
        if let (JoinState::Knocking(tries), Some((to, knock))) = (&mut self.state, &self.knock) {
            *tries += 1;
            self.out.extend(knock.frames.iter().map(|frame| (*to, frame.clone())));
        }
        self.try_later(now);
    }

    /// Handles a part of the answer to a knock.
    fn take_welcome(&mut self, now: Time, from: SocketAddr, frame: &[u8]) {
        let Some((to, knock)) = &mut self.knock else { return };
        let taken = (*to == from).then(|| knock.take(frame));
        let Some(Ok(Some(welcome))) = taken else { return };
        self.welcomes += 1;
        if self.welcomes <= WELCOMES {
            self.heard = now;
        }
        if let Some(why) = welcome.refused {
            return self.end(JoinEvent::Refused(why));
        }
        match (&self.goal, welcome.kind) {
            (JoinGoal::Join(_), VisitorKind::Router | VisitorKind::Registrar) => {
                return self.end(JoinEvent::Failed(JoinError::ForRouter));
            }
            (JoinGoal::Router(_) | JoinGoal::Registrar(..), VisitorKind::Host) => {
                return self.end(JoinEvent::Failed(JoinError::ForHost));
            }
            (JoinGoal::Router(_), VisitorKind::Registrar) => {
                return self.end(JoinEvent::Failed(JoinError::ForRegistrar));
            }
            _ => {}
        }
        (self.channel, self.gap) = (Some((from, welcome.channel)), TRY_FIRST);
        self.ask(now);
    }

    fn ask(&mut self, now: Time) {
        let request = match &self.goal {
            JoinGoal::Renew => Request::Renew,
            JoinGoal::Leave => Request::Leave,
            JoinGoal::Move(router) => Request::Move { router: *router },
            JoinGoal::Rekey(new) => {
                let Some((_, channel)) = &self.channel else { return };
                let said = rekey_said(channel.binding(), &new.public());
                let signatures = [self.own.sign(&said), new.sign(&said)];
                Request::Rekey { key: new.public(), signatures }
            }
            JoinGoal::Router(request) => {
                let Some((_, channel)) = &self.channel else { return };
                let sign = self.own.public().sign;
                let signature = self.own.sign(&router_said(channel.binding(), request, &sign));
                Request::Router { request: request.clone(), sign, signature }
            }
            JoinGoal::Registrar(router, own, door) => {
                let Some((_, channel)) = &self.channel else { return };
                let sign = self.own.public().sign;
                let (router, key, door) = (router.clone(), own.public(), door.clone());
                let request = Box::new(NewRegistrarRequest { router, key, door });
                let said = registrar_said(channel.binding(), &request, &sign);
                let signatures = [self.own.sign(&said), own.sign(&said)];
                Request::Registrar { request, sign, signatures }
            }
            JoinGoal::Join(wish) => {
                let Some((_, channel)) = &self.channel else { return };
                let said = [JOIN_LABEL, channel.binding()].concat();
                let signature = self.own.sign(&said);
                Request::Join { wish: wish.clone(), sign: self.own.public().sign, signature }
            }
        };
        let tries = if let JoinState::Asking(tries) = self.state { tries + 1 } else { 1 };
        self.state = JoinState::Asking(tries);
        self.try_later(now);
        self.send(&request);
    }

    fn send(&mut self, request: &Request) {
        let lead = self.rng.array();
        if let Some((to, channel)) = &mut self.channel
            && let Some(frame) = channel.seal(lead, &request.encode())
        {
            self.out.push_back((*to, frame));
        }
    }

    /// Handles a datagram. A datagram that the registrar did not seal has no effect.
    pub fn handle_datagram(&mut self, now: Time, unix_s: u64, from: SocketAddr, bytes: &[u8]) {
        if matches!(self.state, JoinState::Done) {
            return;
        }
        match &self.state {
            JoinState::Calling => return self.begin_knock(now, from, bytes),
            JoinState::Knocking(_) => return self.take_welcome(now, from, bytes),
            _ => {}
        }
        let Some((to, channel)) = &mut self.channel else { return };
        // The nonce for a router's endpoint comes from another port, and maybe another address.
        let is_router = matches!(self.goal, JoinGoal::Router(_) | JoinGoal::Registrar(..));
        let may_come = *to == from || is_router;
        let message = may_come.then(|| channel.open(bytes));
        let Some(Ok(message)) = message else { return };
        let Ok(answer) = Answer::parse(&message) else { return };
        self.take(now, unix_s, answer);
    }

    fn take(&mut self, now: Time, unix_s: u64, answer: Answer) {
        match (answer, &mut self.state) {
            (Answer::Refused(Refusal::Registrar), JoinState::Fetching(_)) => {
                self.begin_again(now);
            }
            (Answer::Refused(why), _) => self.end(JoinEvent::Refused(why)),
            (Answer::Left, JoinState::Asking(_)) if matches!(self.goal, JoinGoal::Leave) => {
                self.end(JoinEvent::Left);
            }
            (Answer::Try(nonce), JoinState::Asking(_) | JoinState::Waiting(_)) => {
                self.send(&Request::Reach(nonce));
            }
            (Answer::Trying, JoinState::Asking(_)) => {
                // The registrar counts the requests, and gives up before this machine does.
                (self.state, self.next) = (JoinState::Asking(0), now + ENDPOINT_AGAIN);
                self.progress(now);
            }
            (Answer::Waiting, JoinState::Asking(_) | JoinState::Waiting(_)) => {
                self.state = JoinState::Waiting(0);
                self.next = now + AWAIT_EVERY;
                self.progress(now);
                if let (false, Some((_, channel))) = (self.said_words, &self.channel) {
                    self.said_words = true;
                    self.events.push_back(JoinEvent::Waiting(channel.words()));
                }
            }
            (Answer::Granted(grant), JoinState::Asking(_) | JoinState::Waiting(_)) => {
                self.begin_fetch(now, unix_s, *grant);
            }
            (Answer::Part { offset, bytes }, JoinState::Fetching(_)) => {
                self.take_part(now, unix_s, offset, &bytes);
            }
            // Repeated or late answers.
            _ => {}
        }
    }

    fn take_part(&mut self, now: Time, unix_s: u64, offset: u32, bytes: &[u8]) {
        let JoinState::Fetching(fetch) = &mut self.state else { return };
        if !fetch.take(offset, bytes) {
            return;
        }
        fetch.tries = 0;
        self.events.push_back(JoinEvent::Fetched(fetch.have, fetch.whole));
        self.progress(now);
        self.fetch(now, unix_s);
    }

    fn begin_fetch(&mut self, now: Time, unix_s: u64, grant: Grant) {
        let whole = grant.list_len as usize + grant.chain_len as usize;
        if whole > BUNDLE_MAX || grant.list_len == 0 {
            return self.end(JoinEvent::Failed(JoinError::TooLong(whole)));
        }
        let (parts, asked) = (BTreeMap::new(), BTreeMap::new());
        let (first, have, tries) = (0, 0, 0);
        let fetch = BundleFetch { grant, parts, asked, first, have, whole, tries };
        self.state = JoinState::Fetching(Box::new(fetch));
        self.fetch(now, unix_s);
    }

    /// Requests missing parts, or checks list and chain when they are complete.
    fn fetch(&mut self, now: Time, unix_s: u64) {
        let JoinState::Fetching(fetch) = &mut self.state else { return };
        if fetch.have == fetch.whole {
            let whole: Vec<u8> = fetch.parts.values().flatten().copied().collect();
            let own = if let JoinGoal::Rekey(new) = &self.goal { new } else { &self.own };
            let of = (own, &self.contact, &self.goal);
            let joined = NewMembership::check(of, &fetch.grant, &whole, unix_s);
            let event =
                joined.map_or_else(JoinEvent::Failed, |joined| JoinEvent::Joined(Box::new(joined)));
            return self.end(event);
        }
        let wanted = fetch.wanted(now);
        self.next = now + PART_AGAIN;
        wanted.into_iter().for_each(|offset| self.send(&Request::Part { offset }));
    }
}

impl BundleFetch {
    fn count(&self) -> u32 {
        self.whole.div_ceil(PART_MAX) as u32
    }

    /// Adds a part. Returns true if it was missing.
    fn take(&mut self, offset: u32, bytes: &[u8]) -> bool {
        let (number, at) = (offset / PART_MAX as u32, offset as usize);
        let fits = at.is_multiple_of(PART_MAX)
            && at < self.whole
            && bytes.len() == PART_MAX.min(self.whole - at);
        if !fits || self.parts.contains_key(&number) {
            return false;
        }
        self.asked.remove(&number);
        self.have += bytes.len();
        self.parts.insert(number, bytes.to_vec());
        while self.parts.contains_key(&self.first) {
            self.first += 1;
        }
        true
    }

    /// Offsets of the parts to request now, up to the limit.
    fn wanted(&mut self, now: Time) -> Vec<u32> {
        self.asked.retain(|_, at| *at + PART_AGAIN > now);
        let room = PARTS_AT_ONCE.saturating_sub(self.asked.len());
        let missing = |n: &u32| !self.parts.contains_key(n) && !self.asked.contains_key(n);
        // Lower parts come first, so few parts lie behind the first gap.
        let wanted: Vec<u32> = (self.first..self.count()).filter(missing).take(room).collect();
        self.asked.extend(wanted.iter().map(|number| (*number, now)));
        wanted.into_iter().map(|number| number * PART_MAX as u32).collect()
    }
}
