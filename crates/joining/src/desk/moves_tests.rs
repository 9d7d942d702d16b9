use shoal_directory::MandateId;
use shoal_wire::Address;

use super::*;
use crate::desk::members::tests::{START, key};
use crate::desk::routers::tests::{Street, Visitor, granted, listed};
use crate::messages::{JOIN_LABEL, NameRequest, Request};
use crate::tokens::{Token, TokenKind};

/// Two routers by invite, and an invite for hosts.
fn street() -> (Street, Token) {
    let mut street = Street::new();
    let routers = street.router(None, true);
    for seed in [20, 21] {
        granted(&street.join(&routers, seed, seed));
    }
    let hosts = street.invite(TokenKind::Host).0;
    (street, hosts)
}

pub(in crate::desk) fn join(street: &mut Street, token: &Token, seed: u8) -> (Visitor, Answer) {
    let mut visitor = street.visitor(token, seed);
    let said = [JOIN_LABEL, visitor.channel.binding()].concat();
    let (sign, signature) = (visitor.own.public().sign, visitor.own.sign(&said));
    let wish = NameRequest { name: None, or_another: true };
    let answer = street.ask(&mut visitor, &Request::Join { wish, sign, signature }).0;
    (visitor, answer)
}

pub(in crate::desk) fn remove(street: &mut Street, seed: u8) {
    let (name, at) = (street.member(seed).name, street.at());
    street.desk.remove(&name, at).unwrap();
    while street.desk.poll_output().is_some() {}
}

pub(in crate::desk) fn move_from(
    street: &mut Street,
    visitor: &mut Visitor,
    router: u32,
) -> Answer {
    street.ask(visitor, &Request::Move { router }).0
}

#[test]
fn hosts_are_spread_over_the_routers_that_the_mandate_may_use() {
    let (mut street, hosts) = street();
    let mut behind = BTreeMap::<u32, u32>::new();
    for seed in 30..34 {
        granted(&join(&mut street, &hosts, seed).1);
        let address = street.member(seed).address;
        assert!(address.host >= 7_000, "a number that is free behind every router: {address}");
        *behind.entry(address.router).or_default() += 1;
    }
    assert_eq!(behind, BTreeMap::from([(2, 2), (3, 2)]));
    // A router that left gets no more hosts, and the other one takes them all.
    remove(&mut street, 20);
    let left = street.member(21).address.router;
    granted(&join(&mut street, &hosts, 34).1);
    assert_eq!(street.member(34).address.router, left);
}

#[test]
fn a_network_of_one_router_gives_the_mandates_first_addresses() {
    let mut street = Street::new();
    let hosts = street.invite(TokenKind::Host).0;
    for (seed, host) in [(30, 100), (31, 101)] {
        granted(&join(&mut street, &hosts, seed).1);
        assert_eq!(street.member(seed).address, Address::new(1, host));
    }
}

#[test]
fn a_router_of_the_authority_outside_the_ranges_gets_no_host() {
    let (mut street, hosts) = street();
    street.list(&[listed(50, 50, None)]);
    for seed in 30..34 {
        granted(&join(&mut street, &hosts, seed).1);
        assert_ne!(street.member(seed).address.router, 50);
    }
}

#[test]
fn a_host_leaves_a_router_and_a_repeated_request_changes_nothing() {
    let (mut street, hosts) = street();
    let (mut visitor, answer) = join(&mut street, &hosts, 30);
    granted(&answer);
    let first = street.member(30).address.router;
    let other = 5 - first;
    granted(&move_from(&mut street, &mut visitor, first));
    let moved = street.member(30);
    assert_eq!((moved.address.router, moved.version), (other, 2));
    let steps = street.desk.register().unwrap().len();
    granted(&move_from(&mut street, &mut visitor, first));
    assert_eq!(street.desk.register().unwrap().len(), steps, "a repetition signs nothing");
    granted(&move_from(&mut street, &mut visitor, other));
    granted(&move_from(&mut street, &mut visitor, first));
    let refused = move_from(&mut street, &mut visitor, other);
    assert_eq!(refused, Answer::Refused(Refusal::Moved), "three moves within a week");
    assert_eq!(street.desk.stats().moved, 3);
}

#[test]
fn a_router_that_hosts_left_is_not_the_emptiest_one() {
    let (mut street, hosts) = street();
    street.list(&[listed(50, 1, None)]);
    let (mut visitor, answer) = join(&mut street, &hosts, 30);
    granted(&answer);
    let dead = street.member(30).address.router;
    granted(&move_from(&mut street, &mut visitor, dead));
    let now = street.member(30).address.router;
    let third = 1 + 2 + 3 - dead - now;
    let mandate = street.desk.register().unwrap().mandate().clone();
    let first = |street: &mut Street| {
        let at = street.at();
        let routers = street.desk.host_routers(&mandate, at);
        street.desk.in_order(&routers, HostRouter::rank)[0]
    };
    for _ in 0..16 {
        assert_eq!(first(&mut street), third);
    }
    granted(&move_from(&mut street, &mut visitor, now));
    assert_eq!(street.member(30).address.router, third, "a move leads to no router left before");
}

#[test]
fn only_a_host_moves_and_only_to_a_router_that_is_there() {
    let (mut street, hosts) = street();
    let (mut visitor, answer) = join(&mut street, &hosts, 30);
    granted(&answer);
    let own = street.member(30).address.router;
    for seed in [20, 21] {
        if street.member(seed).address.router != own {
            remove(&mut street, seed);
        }
    }
    let refused = move_from(&mut street, &mut visitor, own);
    assert_eq!(refused, Answer::Refused(Refusal::NoRouter));
    let mut stranger = street.visitor(&hosts, 40);
    let refused = move_from(&mut street, &mut stranger, own);
    assert_eq!(refused, Answer::Refused(Refusal::Key), "a stranger is no member");
}

#[test]
fn moves_of_a_week_are_counted_by_key() {
    let (mut log, one) = (MoveLog::default(), key(1).public());
    for day in 0..3 {
        assert!(!log.is_full(&one.dh, START + day * 86_400));
        log.note(&one, 2, START + day * 86_400);
    }
    assert!(log.is_full(&one.dh, START + MOVES_WITHIN_S - 1));
    assert!(!log.is_full(&one.dh, START + MOVES_WITHIN_S), "the first one is a week old");
    assert_eq!([0, 1].map(|s| log.left(START + MOVES_WITHIN_S - s).count()), [2, 3]);
    assert!(!log.is_full(&key(2).public().dh, START));
}

#[test]
fn another_key_gives_no_more_moves() {
    let (mut log, [before, after]) = (MoveLog::default(), [1, 2].map(|seed| key(seed).public()));
    (0..3).for_each(|day| log.note(&before, 2, START + day));
    let new = Member { address: Address::new(1, 9), ..listed(2, 9, None) };
    assert_eq!(new.key, after);
    let step = Step {
        mandate: MandateId([1; 32]),
        number: 1,
        previous: [0; 32],
        issued_unix_s: START + 3,
        entries: vec![StepEntry::remove(&before), StepEntry::Member(Box::new(new))],
    };
    log.rekeyed(&before, &step);
    assert!(log.is_full(&after.dh, START + 4) && !log.is_full(&before.dh, START + 4));
}
