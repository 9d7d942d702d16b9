use shoal_crypto::{Identity, Rng, SigningKey};
use shoal_directory::{MandateRights, NumberRange};

use super::*;
use crate::desk::members::tests::{Nowhere, START, desk_with, key, list, visit_from};
use crate::frame::Channel;
use crate::messages::{JOIN_LABEL, NameRequest, Request};
use crate::tokens::{Token, TokenTerms};

/// Rights to admit two routers with the numbers 2 and 3, of two families.
fn rights() -> MandateRights {
    MandateRights {
        routers: vec!["2-3".parse().unwrap()],
        numbers: Some(NumberRange { first: 7_000, last: 7_009 }),
        relay: true,
        routers_most: 2,
        families_most: 2,
        family: Some("acme".into()),
        ..MandateRights::default()
    }
}

fn endpoint(last: u8) -> SocketAddr {
    ([203, 0, 113, last], 7_400).into()
}

/// A visitor with a channel, under a clock of its own.
pub(in crate::desk) struct Visitor {
    pub(in crate::desk) own: Identity,
    pub(in crate::desk) channel: Channel,
    from: SocketAddr,
    rng: Rng,
}

pub(in crate::desk) struct Street {
    pub(in crate::desk) desk: Desk<Nowhere>,
    pub(in crate::desk) now: Time,
    visits: u8,
}

impl Street {
    pub(in crate::desk) fn new() -> Street {
        Street { desk: desk_with(rights()), now: Time::ZERO, visits: 0 }
    }

    pub(in crate::desk) fn at(&self) -> (Time, u64) {
        (self.now, START + self.now.since(Time::ZERO).as_secs())
    }

    pub(in crate::desk) fn invite(&mut self, kind: TokenKind) -> (Token, crate::TokenHash) {
        let unix_s = self.at().1;
        let (name, groups, expires_unix_s) = (None, Vec::new(), unix_s + 100_000);
        let terms = TokenTerms { uses: 9, expires_unix_s, name, groups, approve: false, kind };
        let (text, hash) = self.desk.invite(terms, unix_s).unwrap();
        (text.parse::<crate::Invite>().unwrap().token, hash)
    }

    /// Puts a list with these members of the authority in force.
    pub(in crate::desk) fn list(&mut self, members: &[Member]) {
        let authority = SigningKey::from_seed([42; 32]);
        let mut content = list(&authority, rights()).content().clone();
        (content.version, content.issued_unix_s) = (2, self.at().1);
        let signed = members.iter().map(|member| member.clone().sign(&authority).unwrap());
        content.members = signed.collect();
        let is_new = self.desk.set_list(content.sign(&authority).unwrap(), self.at());
        assert!(is_new.unwrap());
    }

    pub(in crate::desk) fn router(&mut self, family: Option<&str>, relay: bool) -> Token {
        let family = family.map(str::to_owned);
        self.invite(TokenKind::Router { family, relay }).0
    }

    pub(in crate::desk) fn visitor(&mut self, token: &Token, seed: u8) -> Visitor {
        self.visitor_at(token, seed, ([198, 51, 100, seed], 4_000).into())
    }

    fn visitor_at(&mut self, token: &Token, seed: u8, from: SocketAddr) -> Visitor {
        self.visits += 1;
        let (own, mut rng) = (key(seed), Rng::new([self.visits; 32]));
        let at = self.at();
        let channel = visit_from(&mut self.desk, (&own, token), (from, at), &mut rng);
        Visitor { own, channel, from, rng }
    }

    /// Sends a request. Returns the answer, and the nonce that went to an endpoint, with it.
    pub(in crate::desk) fn ask(
        &mut self,
        visitor: &mut Visitor,
        request: &Request,
    ) -> (Answer, Option<(SocketAddr, ReachNonce)>) {
        let lead = visitor.rng.array();
        let mut frame = visitor.channel.seal(lead, &request.encode()).unwrap();
        let asked = frame.len();
        self.desk.handle_datagram(self.at(), visitor.from, &mut frame).unwrap();
        let (mut answer, mut tried) = (None, None);
        while let Some(output) = self.desk.poll_output() {
            let (to, bytes, own_port) = match output {
                DeskOutput::Send(to, bytes) => (to, bytes, false),
                DeskOutput::Try(to, bytes) => (to, bytes, true),
                DeskOutput::Publish(_) => continue,
            };
            let message = Answer::parse(&visitor.channel.open(&bytes).unwrap()).unwrap();
            match message {
                Answer::Try(nonce) => {
                    assert!(own_port, "a firewall opens for answers of the door");
                    assert!(bytes.len() <= asked, "no more goes to an endpoint than came");
                    assert!(tried.replace((to, nonce)).is_none());
                }
                message => {
                    assert_eq!((to, own_port), (visitor.from, false));
                    answer = Some(message);
                }
            }
        }
        (answer.expect("an answer"), tried)
    }

    fn ask_router(
        &mut self,
        visitor: &mut Visitor,
        request: RouterRequest,
    ) -> (Answer, Option<(SocketAddr, ReachNonce)>) {
        let sign = visitor.own.public().sign;
        let said = router_said(visitor.channel.binding(), &request, &sign);
        let signature = visitor.own.sign(&said);
        self.ask(visitor, &Request::Router { request, sign, signature })
    }

    /// Joins as a router that receives at its endpoint.
    pub(in crate::desk) fn join(&mut self, token: &Token, seed: u8, last: u8) -> Answer {
        let mut visitor = self.visitor(token, seed);
        match self.ask_router(&mut visitor, request(last)) {
            (Answer::Trying, Some((to, nonce))) => {
                assert_eq!(to, endpoint(last));
                self.ask(&mut visitor, &Request::Reach(nonce)).0
            }
            (answer, None) => answer,
            other => panic!("{other:?}"),
        }
    }

    pub(in crate::desk) fn member(&self, seed: u8) -> Member {
        let members = self.desk.register().unwrap().members();
        members.into_iter().find(|member| member.key == key(seed).public()).unwrap().clone()
    }
}

fn request(last: u8) -> RouterRequest {
    let name = NameRequest { name: None, or_another: true };
    RouterRequest { name, endpoint: endpoint(last), relay: true, capacity: Some(100) }
}

#[track_caller]
pub(in crate::desk) fn granted(answer: &Answer) {
    assert!(matches!(answer, Answer::Granted(_)), "{answer:?}");
}

#[test]
fn a_router_is_signed_once_its_endpoint_is_proved() {
    let mut street = Street::new();
    let token = street.router(Some("friends"), true);
    granted(&street.join(&token, 20, 20));
    let router = street.member(20);
    assert_eq!((router.endpoint, router.interface), (Some(endpoint(20)), false));
    assert!(matches!(router.address.router, 2 | 3) && router.address.is_router());
    assert_eq!(router.name, format!("router-{}", router.address.router));
    assert!(router.groups.is_empty(), "no rights at hosts: {:?}", router.groups);
    let family = Some("friends".into());
    let carrier = CircuitRole { relay: true, family, ..CircuitRole::default() };
    assert_eq!(router.carrier, carrier);
    // The invite, the mandate and the machine must all want a relay.
    let no_relay = street.router(None, false);
    granted(&street.join(&no_relay, 21, 21));
    assert_eq!(street.member(21).carrier.family.as_deref(), Some("acme"));
    assert!(!street.member(21).carrier.relay);
    assert_ne!(street.member(20).address, street.member(21).address);
    assert_eq!(street.join(&token, 22, 22), Answer::Refused(Refusal::NoNumber));
}

/// A router of the authority.
pub(in crate::desk) fn listed(seed: u8, number: u32, capacity: Option<u32>) -> Member {
    let family = Some("authority".into());
    let carrier = CircuitRole { relay: true, family, capacity, ..CircuitRole::default() };
    let place = RouterPlace { endpoint: endpoint(seed), carrier };
    let named = (format!("r{seed}"), Address::new(number, 0));
    place.member(named, key(seed).public(), START + 900_000, Vec::new())
}

#[test]
fn a_capacity_counts_up_to_the_highest_one_of_another_member() {
    let mut street = Street::new();
    let token = street.router(None, true);
    granted(&street.join(&token, 20, 20));
    assert_eq!(street.member(20).carrier.capacity, None, "nobody else has one");
    street.list(&[listed(30, 30, Some(40)), listed(31, 31, Some(70))]);
    granted(&street.join(&token, 21, 21));
    assert_eq!(street.member(21).carrier.capacity, Some(70));
}

#[test]
fn a_router_whose_number_the_list_gave_to_another_key_gets_a_free_one_or_none() {
    for (others, want) in [(0, None), (1, Some(Refusal::NoNumber))] {
        let mut street = Street::new();
        let token = street.router(None, true);
        for seed in 20..=20 + others {
            granted(&street.join(&token, seed, seed));
        }
        let before = street.member(20).address;
        // The membership ends, and the authority has a router of its own at that number.
        street.now = street.now + Duration::from_secs(86_401);
        street.list(&[listed(30, before.router, None)]);
        let answer = street.join(&token, 20, 20);
        match want {
            Some(why) => assert_eq!(answer, Answer::Refused(why)),
            None => {
                granted(&answer);
                assert_ne!(street.member(20).address, before);
            }
        }
    }
}

#[test]
fn an_invite_for_relays_needs_a_mandate_that_allows_them() {
    let mut desk = desk_with(MandateRights { relay: false, ..rights() });
    let mut invite = |relay| {
        let kind = TokenKind::Router { family: None, relay };
        let (uses, name, groups, expires_unix_s) = (1, None, Vec::new(), START + 600);
        let terms = TokenTerms { uses, expires_unix_s, name, groups, approve: false, kind };
        desk.invite(terms, START).map(drop).map_err(|e| e.to_string())
    };
    assert!(invite(true).unwrap_err().contains("--right relay"));
    assert_eq!(invite(false), Ok(()));
}

#[test]
fn a_machine_that_asks_again_proves_nothing_again() {
    let mut street = Street::new();
    let token = street.router(None, true);
    granted(&street.join(&token, 20, 20));
    let mut again = street.visitor(&token, 20);
    let (answer, tried) = street.ask_router(&mut again, request(20));
    granted(&answer);
    assert_eq!((tried, street.desk.stats().joined), (None, 1));
}

#[test]
fn the_token_decides_about_the_kind_of_member() {
    let mut street = Street::new();
    let host = street.invite(TokenKind::Host).0;
    let mut visitor = street.visitor(&host, 20);
    let other_kind = Answer::Refused(Refusal::OtherKind);
    assert_eq!(street.ask_router(&mut visitor, request(20)), (other_kind.clone(), None));
    let router = street.router(None, true);
    let mut visitor = street.visitor(&router, 21);
    let signature = visitor.own.sign(&[JOIN_LABEL, visitor.channel.binding()].concat());
    let (sign, wish) = (visitor.own.public().sign, NameRequest::default());
    let join = Request::Join { wish, sign, signature };
    assert_eq!(street.ask(&mut visitor, &join), (other_kind, None));
    // A signature for a host is none for a router.
    let mut visitor = street.visitor(&router, 22);
    let request = Request::Router { request: request(22), sign, signature };
    assert_eq!(street.ask(&mut visitor, &request), (Answer::Refused(Refusal::Key), None));
    assert_eq!(street.desk.register().unwrap().admitted(), 0);
}

#[test]
fn endpoints_of_others_and_those_that_nobody_can_call_are_refused() {
    let mut street = Street::new();
    let token = street.router(None, true);
    granted(&street.join(&token, 20, 20));
    for at in [
        "203.0.113.20:7400",
        "192.0.2.1:7500",
        "127.0.0.1:7400",
        "[::1]:7400",
        "0.0.0.0:7400",
        "169.254.169.254:80",
        "203.0.113.9:0",
        "224.0.0.1:7400",
    ] {
        let mut visitor = street.visitor(&token, 21);
        let request = RouterRequest { endpoint: at.parse().unwrap(), ..request(21) };
        let refused = (Answer::Refused(Refusal::Endpoint), None);
        assert_eq!(street.ask_router(&mut visitor, request), refused, "{at}");
    }
}

#[test]
fn a_visitor_from_the_loopback_may_have_an_endpoint_there_by_a_socket_of_both_families() {
    let mut street = Street::new();
    let token = street.router(None, true);
    let at = "127.0.0.1:7400".parse().unwrap();
    for (seed, from) in [(20, "127.0.0.1:4000"), (21, "[::ffff:127.0.0.1]:4000")] {
        let mut visitor = street.visitor_at(&token, seed, from.parse().unwrap());
        let request = RouterRequest { endpoint: at, ..request(seed) };
        let (answer, tried) = street.ask_router(&mut visitor, request);
        assert_eq!((answer, tried.map(|(to, _)| to)), (Answer::Trying, Some(at)), "{from}");
    }
}

#[test]
fn an_endpoint_that_returns_nothing_is_no_router() {
    let mut street = Street::new();
    let token = street.router(None, true);
    let mut visitor = street.visitor(&token, 20);
    let mut sent = 0;
    let refused = loop {
        let (answer, tried) = street.ask_router(&mut visitor, request(20));
        sent += usize::from(tried.is_some());
        match answer {
            Answer::Trying => street.now = street.now + Duration::from_millis(50),
            answer => break answer,
        }
    };
    assert_eq!((refused, sent), (Answer::Refused(Refusal::Unreached), 8));
    assert!(street.now >= Time::ZERO + 7 * TRY_EVERY + LAST_CHANCE);
    // The visit stays closed, even for the nonce that was on its way.
    let (answer, _) = street.ask(&mut visitor, &Request::Reach([0; 8]));
    assert_eq!(answer, Answer::Trying);
    assert_eq!(street.desk.register().unwrap().admitted(), 0);
}

#[test]
fn only_the_nonce_of_the_claimed_endpoint_counts() {
    let mut street = Street::new();
    let token = street.router(None, true);
    let mut visitor = street.visitor(&token, 20);
    assert_eq!(street.ask(&mut visitor, &Request::Reach([0; 8])).0, Answer::Trying);
    let (_, first) = street.ask_router(&mut visitor, request(20));
    let (_, first) = first.unwrap();
    assert_eq!(street.ask(&mut visitor, &Request::Reach([0; 8])).0, Answer::Trying, "a guess");
    // A proof of one endpoint is none of the next one.
    street.now = street.now + TRY_EVERY;
    let (answer, second) = street.ask_router(&mut visitor, request(21));
    assert_eq!(answer, Answer::Trying);
    assert_ne!(second.unwrap().1, first);
    assert_eq!(street.ask(&mut visitor, &Request::Reach(first)).0, Answer::Trying);
    for last in 22..25 {
        street.now = street.now + TRY_EVERY;
        let (answer, tried) = street.ask_router(&mut visitor, request(last));
        let is_allowed = last == 22;
        assert_eq!((answer == Answer::Trying, tried.is_some()), (is_allowed, is_allowed));
    }
    // Another visit begins anew.
    granted(&street.join(&token, 20, 20));
}

#[test]
fn families_are_those_of_invites_and_limited() {
    let mut street = Street::new();
    let (one, acme) = (street.router(Some("one"), true), street.router(None, true));
    let other = street.router(Some("other"), true);
    granted(&street.join(&one, 20, 20));
    granted(&street.join(&acme, 21, 21));
    assert_eq!(street.join(&other, 22, 22), Answer::Refused(Refusal::Families));
    let terms = TokenTerms {
        uses: 1,
        expires_unix_s: START + 9,
        name: None,
        groups: Vec::new(),
        approve: false,
        kind: TokenKind::Router { family: Some("third".into()), relay: true },
    };
    let refused = street.desk.invite(terms, START).unwrap_err().to_string();
    assert!(refused.contains("admits 2 routers"), "{refused}");
    let mut none = desk_with(MandateRights::default());
    let terms = TokenTerms {
        uses: 1,
        expires_unix_s: START + 9,
        name: None,
        groups: Vec::new(),
        approve: false,
        kind: TokenKind::Router { family: None, relay: true },
    };
    assert!(none.invite(terms, START).unwrap_err().to_string().contains("admits 0 routers"));
}

#[test]
fn an_invite_is_withdrawn_with_all_that_joined_by_it() {
    let mut street = Street::new();
    let (kind, at) = (TokenKind::Router { family: None, relay: true }, street.at());
    let (token, hash) = street.invite(kind);
    granted(&street.join(&token, 20, 20));
    granted(&street.join(&token, 21, 21));
    let host = street.invite(TokenKind::Host).1;
    assert_eq!(street.desk.withdraw_all(&host, at).unwrap(), 0);
    assert_eq!(street.desk.withdraw_all(&hash, at).unwrap(), 2);
    let register = street.desk.register().unwrap();
    assert_eq!((register.members().count(), register.routers_given()), (0, 2));
    assert!(register.is_removed(&key(20).public()));
}
