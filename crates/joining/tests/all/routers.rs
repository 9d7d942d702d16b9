//! Machines that join as routers, over a network that loses, repeats and reorders datagrams.

use std::net::SocketAddr;

use shoal_joining::{
    JoinError, JoinEvent, JoinGoal, NameRequest, Refusal, RouterRequest, TokenKind, TokenTerms,
};

use crate::world::{World, router, terms};

fn endpoint(last: u8) -> SocketAddr {
    ([203, 0, 113, last], 7_400).into()
}

fn of_router(uses: u32, family: Option<&str>) -> TokenTerms {
    let kind = TokenKind::Router { family: family.map(str::to_owned), relay: true };
    TokenTerms { kind, ..terms(uses) }
}

fn goal(last: u8) -> JoinGoal {
    let name = NameRequest { name: Some(format!("r{last}")), or_another: false };
    JoinGoal::Router(RouterRequest { name, endpoint: endpoint(last), relay: true, capacity: None })
}

#[test]
fn machines_join_as_routers_over_a_bad_network_and_through_crashes() {
    let mut world = World::new(1);
    (world.loss, world.twice) = (40, 40);
    world.crashes = vec![20, 45, 70];
    let contact = world.invite(of_router(9, Some("friends")));
    let mut all = Vec::new();
    for last in 20..24 {
        let n = world.ask(last, &contact, goal(last));
        world.endpoints.insert(endpoint(last), n);
        all.push(n);
    }
    world.run(60_000);
    let mut numbers = Vec::new();
    for (n, last) in all.into_iter().zip(20..) {
        let joined = world.joined(n);
        assert_eq!(joined.member.name, format!("r{last}"));
        assert_eq!(joined.member.endpoint, Some(endpoint(last)));
        assert_eq!(joined.member.carrier.family.as_deref(), Some("friends"));
        assert!(joined.member.carrier.relay && !joined.member.interface);
        assert_eq!(joined.router, router().endpoint, "the router with the smallest number");
        numbers.push(joined.member.address.router);
    }
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!((numbers.len(), world.members()), (4, 4));
}

#[test]
fn a_machine_hears_that_its_invite_is_for_another_kind_and_spends_nothing() {
    let mut world = World::new(2);
    let (router, host) = (world.invite(of_router(1, None)), world.invite(terms(1)));
    let as_host = world.join(20, &router);
    let as_router = world.ask(21, &host, goal(21));
    world.run(2_000);
    let failed = |n: usize| match &world.ends[n] {
        Some(JoinEvent::Failed(why)) => why.clone(),
        other => panic!("{other:?}"),
    };
    assert_eq!((failed(as_host), failed(as_router)), (JoinError::ForRouter, JoinError::ForHost));
    assert_eq!(world.members(), 0);
    let n = world.ask(20, &router, goal(20));
    world.endpoints.insert(endpoint(20), n);
    world.run(5_000);
    assert_eq!(world.joined(n).member.carrier.family.as_deref(), Some("acme"));
}

#[test]
fn a_machine_that_nobody_reaches_hears_so_within_half_a_minute() {
    let mut world = World::new(3);
    let contact = world.invite(of_router(1, None));
    // Nonces go to an address at which another machine receives.
    let (n, victim) = (world.ask(20, &contact, goal(20)), world.join(21, &contact));
    world.endpoints.insert(endpoint(20), victim);
    world.run(30_000);
    assert_eq!((world.refused(n), world.members()), (Refusal::Unreached, 0));
}

#[test]
fn a_router_waits_for_approval_when_it_has_proved_its_endpoint() {
    let mut world = World::new(4);
    let contact = world.invite(TokenTerms { approve: true, ..of_router(1, None) });
    let n = world.ask(20, &contact, goal(20));
    world.run(1_000);
    assert_eq!(world.desk.waiting().count(), 0, "nobody is asked about an unproved endpoint");
    world.endpoints.insert(endpoint(20), n);
    world.run(5_000);
    let waiting: Vec<_> = world.desk.waiting().cloned().collect();
    assert_eq!(waiting.len(), 1);
    world.desk.approve(&waiting[0].key, None, true).unwrap();
    world.run(5_000);
    assert!(world.joined(n).member.address.is_router());
}
