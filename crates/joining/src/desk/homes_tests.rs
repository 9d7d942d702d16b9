use std::time::Duration;

use shoal_crypto::SigningKey;
use shoal_directory::{HostRange, NetworkPreset};

use super::*;
use crate::desk::members::tests::{START, key, list};
use crate::desk::moves::tests::{join, move_from, remove};
use crate::desk::routers::tests::{Street, granted, listed};
use crate::messages::{Request, rekey_said};
use crate::tokens::{Token, TokenKind};

/// The authority's router 1, which holds hosts 1.100 to 1.199 of the mandate.
fn first_router() -> Member {
    listed(50, 1, None)
}

/// Two routers of the family `acme` by invite, and an invite for hosts.
fn street() -> (Street, Token) {
    let mut street = Street::new();
    let routers = street.router(None, true);
    for seed in [20, 21] {
        granted(&street.join(&routers, seed, seed));
    }
    let hosts = street.invite(TokenKind::Host).0;
    (street, hosts)
}

fn follow(street: &mut Street) -> usize {
    let at = street.at();
    let done = street.desk.follow_routers(at).unwrap();
    while street.desk.poll_output().is_some() {}
    done
}

/// Numbers of the routers of a host, the first one first.
fn routers(street: &Street, seed: u8) -> Vec<u32> {
    street.member(seed).addresses().iter().map(|address| address.router).collect()
}

#[test]
fn a_new_host_gets_two_routers_of_different_families() {
    let (mut street, hosts) = street();
    street.list(&[first_router()]);
    let mandate = street.desk.register().unwrap().mandate().clone();
    for seed in 30..36 {
        granted(&join(&mut street, &hosts, seed).1);
        let both = routers(&street, seed);
        // Routers 2 and 3 have one family.
        assert!(both.len() == 2 && both.contains(&1), "{both:?}");
        let host = street.member(seed);
        assert!(host.addresses().iter().all(|address| mandate.may_give(address)));
    }
    let is_at = |seed: u8, number: u32| routers(&street, seed).contains(&number);
    let behind = [2, 3].map(|number| (30..36).filter(|seed| is_at(*seed, number)).count());
    assert_eq!(behind, [3, 3], "evenly spread");
}

#[test]
fn a_network_of_one_family_gives_any_other_router_and_one_router_no_second() {
    let mut street = Street::new();
    let (routers_by, hosts) = (street.router(None, true), street.invite(TokenKind::Host).0);
    granted(&street.join(&routers_by, 20, 20));
    granted(&join(&mut street, &hosts, 30).1);
    assert_eq!(routers(&street, 30).len(), 1);
    assert_eq!(follow(&mut street), 0);
    granted(&street.join(&routers_by, 21, 21));
    granted(&join(&mut street, &hosts, 31).1);
    let mut both = routers(&street, 31);
    both.sort_unstable();
    assert_eq!(both, [2, 3]);
}

#[test]
fn hosts_that_joined_before_get_a_second_router_once_some_at_a_time() {
    let mut street = Street::new();
    let (routers_by, hosts) = (street.router(None, true), street.invite(TokenKind::Host).0);
    granted(&street.join(&routers_by, 20, 20));
    for seed in 30..35 {
        granted(&join(&mut street, &hosts, seed).1);
    }
    granted(&street.join(&routers_by, 21, 21));
    let steps = street.desk.register().unwrap().len();
    assert_eq!([follow(&mut street), follow(&mut street), follow(&mut street)], [4, 1, 0]);
    assert_eq!(street.desk.register().unwrap().len(), steps + 2);
    let mut seconds = BTreeSet::new();
    for seed in 30..35 {
        let host = street.member(seed);
        assert_eq!(host.version, 2);
        seconds.extend(host.second);
    }
    assert_eq!(seconds.len(), 5, "no address twice");
}

#[test]
fn a_second_router_is_replaced_only_if_it_is_no_member_any_more() {
    let (mut street, hosts) = street();
    for seed in 30..35 {
        granted(&join(&mut street, &hosts, seed).1);
    }
    assert_eq!(follow(&mut street), 0);
    let gone = street.member(20).address.router;
    let before: Vec<Vec<u32>> = (30..35).map(|seed| routers(&street, seed)).collect();
    remove(&mut street, 20);
    assert_eq!(follow(&mut street), 0, "there is no other router");
    street.list(&[first_router()]);
    let due = before.iter().filter(|both| both[1] == gone).count();
    assert!((1..5).contains(&due), "some hosts have their second address there");
    assert_eq!((follow(&mut street), follow(&mut street)), (due, 0));
    for (seed, before) in (30..35).zip(before) {
        let second = if before[1] == gone { 1 } else { before[1] };
        assert_eq!(routers(&street, seed), [before[0], second], "a first address stays");
    }
}

#[test]
fn a_renewal_and_another_key_keep_the_second_address() {
    let (mut street, hosts) = street();
    granted(&join(&mut street, &hosts, 30).1);
    let first = street.member(30);
    street.now = street.now + Duration::from_secs(50_000);
    let mut visitor = street.visitor(&hosts, 30);
    granted(&street.ask(&mut visitor, &Request::Renew).0);
    let renewed = street.member(30);
    assert!(renewed.expires_unix_s > first.expires_unix_s && first.second.is_some());
    assert_eq!(renewed.addresses(), first.addresses());
    let new = key(90);
    let said = rekey_said(visitor.channel.binding(), &new.public());
    let signatures = [visitor.own.sign(&said), new.sign(&said)];
    let request = Request::Rekey { key: new.public(), signatures };
    granted(&street.ask(&mut visitor, &request).0);
    assert_eq!(street.member(90).addresses(), first.addresses());
}

#[test]
fn a_move_keeps_the_second_address_and_swaps_both_where_no_other_router_is() {
    let (mut street, hosts) = street();
    let (mut visitor, answer) = join(&mut street, &hosts, 30);
    granted(&answer);
    let before = street.member(30);
    granted(&move_from(&mut street, &mut visitor, before.address.router));
    let swapped = street.member(30);
    let both = (swapped.address, swapped.second);
    assert_eq!(both, (before.second.unwrap(), Some(before.address)));
    street.list(&[first_router()]);
    granted(&move_from(&mut street, &mut visitor, swapped.address.router));
    let moved = street.member(30);
    assert_eq!((moved.address.router, moved.second), (1, swapped.second));
    assert_eq!(follow(&mut street), 0);
}

#[test]
fn an_adopted_host_gets_no_second_address() {
    let mut street = Street::new();
    let (routers_by, hosts) = (street.router(None, true), street.invite(TokenKind::Host).0);
    granted(&street.join(&routers_by, 20, 20));
    granted(&join(&mut street, &hosts, 30).1);
    granted(&street.join(&routers_by, 21, 21));
    let host = street.member(30);
    street.list(&[host]);
    assert_eq!(follow(&mut street), 0);
}

#[test]
fn a_network_with_a_preset_and_few_relays_gives_no_second_router() {
    for (relays, count) in [(4, 1), (5, 2)] {
        let (mut street, hosts) = street();
        let authority = SigningKey::from_seed([42; 32]);
        let rights = street.desk.register().unwrap().mandate().rights.clone();
        let mut content = list(&authority, rights).content().clone();
        (content.version, content.issued_unix_s) = (2, START);
        let relays = (0..relays).map(|n| listed(50 + n, 40 + u32::from(n), None));
        content.members = relays.map(|relay| relay.sign(&authority).unwrap()).collect();
        let level = shoal_directory::Preset::Balanced;
        content.preset = Some(NetworkPreset { level, tier: None, router_tier: None });
        let at = street.at();
        assert!(street.desk.set_list(content.sign(&authority).unwrap(), at).unwrap());
        granted(&join(&mut street, &hosts, 30).1);
        // Two relays joined by invites.
        assert_eq!(routers(&street, 30).len(), count);
        assert_eq!(follow(&mut street), 0);
    }
}

#[test]
fn routers_without_room_are_passed_over() {
    let list = list(&SigningKey::from_seed([42; 32]), Default::default());
    let mandate = list.content().mandates[0].clone();
    let router = |number, family: Option<&str>, is_ipv4, load| HostRouter {
        number,
        family: family.map(str::to_owned),
        is_ipv4,
        is_open: true,
        load,
        family_load: load,
        left: 0,
        firsts: 0,
    };
    let hosts = ["1.1-1.9", "2.1-2.2", "3.1-3.1", "4.1-4.9"];
    let hosts = hosts.map(|range| range.parse::<HostRange>().unwrap()).to_vec();
    let register = Register::new(Mandate { hosts, ..mandate });
    let routers = vec![
        router(1, Some("a"), true, 0),
        router(2, Some("a"), true, 0),
        router(3, Some("b"), true, 7),
        router(4, Some("c"), false, 0),
    ];
    let taken = BTreeSet::from([Address::new(2, 1)]);
    let mut seconds = SecondAddresses { register: &register, routers, taken };
    let (mut rng, first) = (Rng::new([1; 32]), Address::new(1, 1));
    let mut next = || seconds.choose(first, &mut rng).map(|address| address.to_string());
    assert_eq!(next().as_deref(), Some("3.1"), "another family, the same IP version");
    assert_eq!(next().as_deref(), Some("4.1"), "another family");
    for _ in 0..8 {
        assert!(next().unwrap().starts_with("4."));
    }
    assert_eq!(next().as_deref(), Some("2.2"), "one family is better than none");
    assert_eq!(next(), None);
}
