//! A machine that asks a registrar: to become a member, for a longer membership, for another key,
//! to leave (docs/joining.md section 2).
//!
//! ```text
//! hello, to all endpoints --> cookie --> knock, to the first that answers --> welcome --> request
//!   --> refused: the reason
//!   --> waiting: ask again until somebody decides
//!   --> granted: fetch list and chain, check --> joined
//! ```
//!
//! Driving it: hand over datagrams, call [`Newcomer::handle_timeout`] at
//! [`Newcomer::poll_timeout`], and take everything from [`Newcomer::poll_transmit`] and
//! [`Newcomer::poll_event`] after each call.
//!
//! Invariant: nothing that a registrar says counts unless the authority's list and the registrar's
//! mandate bear it out.

use core::net::SocketAddr;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use shoal_crypto::{Identity, PublicKey, Rng, VerifyKey};
use shoal_wire::Time;

use crate::door::{Hello, Knock};
use crate::frame::Channel;
use crate::invite::{DoorSecret, Invite};
use crate::joined::{Fault, Joined};
use crate::messages::{Answer, Grant, JOIN_LABEL, PART_MAX, Refusal, Request, Wish, rekey_said};
use crate::tokens::Token;
use crate::words::Words;

/// First gap between two tries, doubling.
const TRY_FIRST: Duration = Duration::from_millis(250);
/// Longest gap between two tries.
const TRY_MAX: Duration = Duration::from_secs(2);
/// Requests without an answer after which it says hello again: the registrar may have been
/// restarted. Knocks likewise.
const TRIES: u32 = 4;
/// Times that parts are asked for in vain, after which it says hello again.
const PART_TRIES: u32 = 6;
/// Welcomes in a row that count as something new.
const WELCOMES: u32 = 4;
/// Time without anything new after which it gives up.
const PATIENCE: Duration = Duration::from_secs(30);
/// Between two questions whether somebody has approved.
const AWAIT_EVERY: Duration = Duration::from_secs(2);
/// Parts asked for at once.
const PARTS_AT_ONCE: usize = 64;
/// A part that did not come by then is asked for again.
const PART_AGAIN: Duration = Duration::from_millis(400);
/// Longest list and chain that are fetched: the longest list, and 65,536 steps.
const BUNDLE_MAX: usize = shoal_directory::SIZE_MAX + 65_536 * 1_026;

/// What to ask for.
#[derive(Clone, Debug)]
pub enum Goal {
    /// To become a member.
    Join(Wish),
    /// A longer membership.
    Renew,
    /// To be the same member with this key in the place of the one that asks. Asked for again, by
    /// the same two keys, it is answered as the first time.
    Rekey(Identity),
    /// To be a member no more.
    Leave,
}

/// Whom to ask.
#[derive(Clone)]
pub struct Contact {
    /// Signs the network's list.
    pub authority: VerifyKey,
    /// The registrar.
    pub registrar: PublicKey,
    /// What its door is sealed with.
    pub door: DoorSecret,
    /// The token to show; none for members.
    pub token: Option<Token>,
    /// Where it listens.
    pub endpoints: Vec<SocketAddr>,
    /// How old the list may be that it gives.
    pub staleness_max: Duration,
}

impl Contact {
    /// Who gave out the invite; its list may be no older than `staleness_max`.
    pub fn new(invite: Invite, staleness_max: Duration) -> Contact {
        let Invite { authority, registrar, door, token, endpoints, .. } = invite;
        Contact { authority, registrar, door, token: Some(token), endpoints, staleness_max }
    }
}

/// What happened.
#[derive(Debug)]
pub enum Event {
    /// Nobody answers so far. The shell says so, since it knows how long a person waits.
    Unanswered,
    /// Somebody must approve first, and compares these words.
    Waiting(Words),
    /// So many bytes of the list and the chain are here, of so many.
    Fetched(usize, usize),
    /// It is a member, after [`Goal::Rekey`] with the new key. The last event.
    Joined(Box<Joined>),
    /// It is a member no more. The last event.
    Left,
    /// The registrar says no. The last event.
    Refused(Refusal),
    /// It came to nothing. The last event.
    Failed(Fault),
}

/// What it is doing.
enum State {
    /// No endpoint has answered yet.
    Calling,
    /// A knock waits for its answer; how often it was sent.
    Knocking(u32),
    /// A request waits for its answer; how often it was sent.
    Asking(u32),
    /// Somebody must approve.
    Waiting(u32),
    Fetching(Box<Fetch>),
    Done,
}

struct Fetch {
    grant: Grant,
    /// Parts that came, by their numbers.
    parts: BTreeMap<u32, Vec<u8>>,
    /// When a part was asked for.
    asked: BTreeMap<u32, Time>,
    /// All parts before this one are here.
    first: u32,
    have: usize,
    whole: usize,
    /// How often parts were asked for since the last one came.
    tries: u32,
}

/// See the module's documentation.
pub struct Newcomer {
    own: Identity,
    contact: Contact,
    goal: Goal,
    rng: Rng,
    hello: Option<Hello>,
    /// The endpoint that answered, and the knock for it.
    knock: Option<(SocketAddr, Knock)>,
    channel: Option<(SocketAddr, Channel)>,
    state: State,
    next: Time,
    gap: Duration,
    /// When something new was heard last.
    heard: Time,
    said_words: bool,
    /// Welcomes since the registrar did more than that.
    welcomes: u32,
    out: VecDeque<(SocketAddr, Vec<u8>)>,
    events: VecDeque<Event>,
}

impl Newcomer {
    /// A machine with these keys, which asks for `goal`.
    pub fn new(own: Identity, contact: Contact, goal: Goal, seed: [u8; 32], now: Time) -> Newcomer {
        Newcomer {
            own,
            contact,
            goal,
            rng: Rng::new(seed),
            hello: None,
            knock: None,
            channel: None,
            state: State::Calling,
            next: now,
            gap: TRY_FIRST,
            heard: now,
            said_words: false,
            welcomes: 0,
            out: VecDeque::new(),
            events: VecDeque::new(),
        }
    }

    /// When [`Newcomer::handle_timeout`] has something to do; never, once it is done.
    pub fn poll_timeout(&self) -> Option<Time> {
        match self.state {
            State::Done => None,
            _ => Some(self.next.min(self.gives_up())),
        }
    }

    /// The next datagram, and where it goes.
    pub fn poll_transmit(&mut self) -> Option<(SocketAddr, Vec<u8>)> {
        self.out.pop_front()
    }

    /// What happened next.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Whether the registrar has answered the knock in force.
    pub fn is_welcomed(&self) -> bool {
        self.channel.is_some()
    }

    fn gives_up(&self) -> Time {
        self.heard + PATIENCE
    }

    fn end(&mut self, event: Event) {
        self.state = State::Done;
        self.events.push_back(event);
    }

    /// Does what time asks for; `unix_s` is what this machine's clock shows.
    pub fn handle_timeout(&mut self, now: Time, unix_s: u64) {
        if matches!(self.state, State::Done) {
            return;
        }
        if now >= self.gives_up() {
            let welcomed = self.channel.is_some();
            return self.end(Event::Failed(Fault::Silent { welcomed }));
        }
        if now < self.next {
            return;
        }
        match &mut self.state {
            State::Done => {}
            State::Calling => self.call(now),
            State::Knocking(tries) | State::Asking(tries) | State::Waiting(tries)
                if *tries >= TRIES =>
            {
                self.begin_again(now);
            }
            State::Knocking(_) => self.knock(now),
            State::Asking(_) => self.ask(now),
            State::Waiting(tries) => {
                *tries += 1;
                self.next = now + AWAIT_EVERY;
                self.send(&Request::Await);
            }
            State::Fetching(fetch) if fetch.tries >= PART_TRIES => self.begin_again(now),
            State::Fetching(fetch) => {
                fetch.tries += 1;
                self.fetch(now, unix_s);
            }
        }
    }

    /// Notes that the registrar did something new.
    fn progress(&mut self, now: Time) {
        (self.heard, self.welcomes) = (now, 0);
    }

    /// Says hello anew: the registrar does not know the channel any more, or is elsewhere now.
    fn begin_again(&mut self, now: Time) {
        // Another channel has other words.
        (self.hello, self.knock, self.channel, self.said_words) = (None, None, None, false);
        (self.state, self.gap) = (State::Calling, TRY_FIRST);
        self.call(now);
    }

    /// When the next try is due.
    fn try_later(&mut self, now: Time) {
        self.next = now + self.gap;
        self.gap = (self.gap * 2).min(TRY_MAX);
    }

    fn call(&mut self, now: Time) {
        let Contact { registrar, door, endpoints, .. } = &self.contact;
        let hello = self.hello.get_or_insert_with(|| Hello::new(registrar, door, &mut self.rng));
        self.out.extend(endpoints.iter().map(|at| (*at, hello.frame.clone())));
        self.try_later(now);
    }

    /// Takes in the answer to a hello: from there the registrar is asked.
    fn begin_knock(&mut self, now: Time, from: SocketAddr, frame: &[u8]) {
        let Some(hello) = &self.hello else { return };
        let Ok(cookie) = hello.cookie(frame) else { return };
        let none = Token::new([0; Token::LEN]);
        let Contact { registrar, door, token, .. } = &self.contact;
        let what = (token.as_ref().unwrap_or(&none), &cookie);
        match Knock::new(&self.own, registrar, door, what, &mut self.rng) {
            Ok(knock) => self.knock = Some((from, knock)),
            Err(_) => return self.end(Event::Failed(Fault::Registrar)),
        }
        (self.state, self.gap) = (State::Knocking(0), TRY_FIRST);
        self.knock(now);
    }

    fn knock(&mut self, now: Time) {
        if let (State::Knocking(tries), Some((to, knock))) = (&mut self.state, &self.knock) {
            *tries += 1;
            self.out.extend(knock.frames.iter().map(|frame| (*to, frame.clone())));
        }
        self.try_later(now);
    }

    /// Takes in a part of the answer to a knock.
    fn take_welcome(&mut self, now: Time, from: SocketAddr, frame: &[u8]) {
        let Some((to, knock)) = &mut self.knock else { return };
        let taken = (*to == from).then(|| knock.take(frame));
        let Some(Ok(Some(welcome))) = taken else { return };
        self.welcomes += 1;
        if self.welcomes <= WELCOMES {
            self.heard = now;
        }
        if let Some(why) = welcome.refused {
            return self.end(Event::Refused(why));
        }
        (self.channel, self.gap) = (Some((from, welcome.channel)), TRY_FIRST);
        self.ask(now);
    }

    fn ask(&mut self, now: Time) {
        let request = match &self.goal {
            Goal::Renew => Request::Renew,
            Goal::Leave => Request::Leave,
            Goal::Rekey(new) => {
                let Some((_, channel)) = &self.channel else { return };
                let said = rekey_said(channel.binding(), &new.public());
                let signatures = [self.own.sign(&said), new.sign(&said)];
                Request::Rekey { key: new.public(), signatures }
            }
            Goal::Join(wish) => {
                let Some((_, channel)) = &self.channel else { return };
                let said = [JOIN_LABEL, channel.binding()].concat();
                let signature = self.own.sign(&said);
                Request::Join { wish: wish.clone(), sign: self.own.public().sign, signature }
            }
        };
        let tries = if let State::Asking(tries) = self.state { tries + 1 } else { 1 };
        self.state = State::Asking(tries);
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

    /// Takes in a datagram. What nobody but the registrar could have sent is all that counts.
    pub fn handle_datagram(&mut self, now: Time, unix_s: u64, from: SocketAddr, bytes: &[u8]) {
        if matches!(self.state, State::Done) {
            return;
        }
        match &self.state {
            State::Calling => return self.begin_knock(now, from, bytes),
            State::Knocking(_) => return self.take_welcome(now, from, bytes),
            _ => {}
        }
        let Some((to, channel)) = &mut self.channel else { return };
        let message = (*to == from).then(|| channel.open(bytes));
        let Some(Ok(message)) = message else { return };
        let Ok(answer) = Answer::parse(&message) else { return };
        self.take(now, unix_s, answer);
    }

    fn take(&mut self, now: Time, unix_s: u64, answer: Answer) {
        match (answer, &mut self.state) {
            (Answer::Refused(Refusal::Registrar), State::Fetching(_)) => {
                self.begin_again(now);
            }
            (Answer::Refused(why), _) => self.end(Event::Refused(why)),
            (Answer::Left, State::Asking(_)) if matches!(self.goal, Goal::Leave) => {
                self.end(Event::Left);
            }
            (Answer::Waiting, State::Asking(_) | State::Waiting(_)) => {
                self.state = State::Waiting(0);
                self.next = now + AWAIT_EVERY;
                self.progress(now);
                if let (false, Some((_, channel))) = (self.said_words, &self.channel) {
                    self.said_words = true;
                    self.events.push_back(Event::Waiting(channel.words()));
                }
            }
            (Answer::Granted(grant), State::Asking(_) | State::Waiting(_)) => {
                self.begin_fetch(now, unix_s, *grant);
            }
            (Answer::Part { offset, bytes }, State::Fetching(_)) => {
                self.take_part(now, unix_s, offset, &bytes);
            }
            // What comes twice, or late.
            _ => {}
        }
    }

    fn take_part(&mut self, now: Time, unix_s: u64, offset: u32, bytes: &[u8]) {
        let State::Fetching(fetch) = &mut self.state else { return };
        if !fetch.take(offset, bytes) {
            return;
        }
        fetch.tries = 0;
        self.events.push_back(Event::Fetched(fetch.have, fetch.whole));
        self.progress(now);
        self.fetch(now, unix_s);
    }

    fn begin_fetch(&mut self, now: Time, unix_s: u64, grant: Grant) {
        let whole = grant.list_len as usize + grant.chain_len as usize;
        if whole > BUNDLE_MAX || grant.list_len == 0 {
            return self.end(Event::Failed(Fault::TooLong(whole)));
        }
        let (parts, asked) = (BTreeMap::new(), BTreeMap::new());
        let (first, have, tries) = (0, 0, 0);
        let fetch = Fetch { grant, parts, asked, first, have, whole, tries };
        self.state = State::Fetching(Box::new(fetch));
        self.fetch(now, unix_s);
    }

    /// Asks for what is missing, or checks what is whole.
    fn fetch(&mut self, now: Time, unix_s: u64) {
        let State::Fetching(fetch) = &mut self.state else { return };
        if fetch.have == fetch.whole {
            let whole: Vec<u8> = fetch.parts.values().flatten().copied().collect();
            let own = if let Goal::Rekey(new) = &self.goal { new } else { &self.own };
            let joined = Joined::check(own, &self.contact, &fetch.grant, &whole, unix_s);
            let event = joined.map_or_else(Event::Failed, |joined| Event::Joined(Box::new(joined)));
            return self.end(event);
        }
        let wanted = fetch.wanted(now);
        self.next = now + PART_AGAIN;
        wanted.into_iter().for_each(|offset| self.send(&Request::Part { offset }));
    }
}

impl Fetch {
    fn count(&self) -> u32 {
        self.whole.div_ceil(PART_MAX) as u32
    }

    /// Takes in a part; whether it was missing.
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

    /// Offsets of parts to ask for now: as many as may be under way.
    fn wanted(&mut self, now: Time) -> Vec<u32> {
        self.asked.retain(|_, at| *at + PART_AGAIN > now);
        let room = PARTS_AT_ONCE.saturating_sub(self.asked.len());
        let missing = |n: &u32| !self.parts.contains_key(n) && !self.asked.contains_key(n);
        // Those in front come first, so what lies behind the first gaps is short.
        let wanted: Vec<u32> = (self.first..self.count()).filter(missing).take(room).collect();
        self.asked.extend(wanted.iter().map(|number| (*number, now)));
        wanted.into_iter().map(|number| number * PART_MAX as u32).collect()
    }
}
