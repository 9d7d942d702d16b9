//! The table of hosts follows the list, whatever of it changes places.

use proptest::prelude::*;
use shoal_crypto::{Identity, NetworkSecret, PublicKey};
use shoal_edge::{Config, Edge, HostConfig};
use shoal_wire::{Address, Time};

const HOSTS: u16 = 6;

fn key(host: u16) -> PublicKey {
    Identity::from_seed([host as u8 + 1; 32]).public()
}

fn address(place: u16) -> Address {
    Address::new(1, place + 1)
}

fn edge() -> Edge {
    let config = Config {
        address: Address::new(9, 1),
        session: shoal_session::Config::new(shoal_session::Role::Edge),
        transfer: shoal_transfer::Config::default(),
        echo_max: 16,
        direct: None,
        ip: false,
        events_max: 64,
    };
    let (identity, secret) = (Identity::from_seed([99; 32]), NetworkSecret([1; 32]));
    Edge::new(config, identity, secret, [3; 32], Time::from_millis(1_000), 1_800_000_000_000)
}

/// Takes in a list as a node does: who left is removed, then all that it has are added.
fn take(edge: &mut Edge, older: &[(u16, u16)], newer: &[(u16, u16)]) {
    let now = Time::from_millis(2_000);
    for &(host, place) in older {
        if newer.iter().all(|entry| entry.0 != host) {
            let id = edge.host_at(address(place)).expect("it was listed");
            edge.remove_host(now, id);
        }
    }
    for &(host, place) in newer {
        edge.add_host(&HostConfig { key: key(host), address: address(place) }).expect("room");
    }
}

/// Lists of hosts, each with its place; no two hosts have one place.
fn lists() -> impl Strategy<Value = Vec<Vec<(u16, u16)>>> {
    let places = Just((0..HOSTS).collect::<Vec<u16>>()).prop_shuffle();
    let order = Just((0..HOSTS).collect::<Vec<u16>>()).prop_shuffle();
    let list = (places, order, 1..=HOSTS as usize)
        .prop_map(|(places, order, len)| order.into_iter().zip(places).take(len).collect());
    prop::collection::vec(list, 2..5)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]
    #[test]
    fn every_host_is_where_the_newest_list_has_it(lists in lists()) {
        let mut edge = edge();
        let mut older: &[(u16, u16)] = &[];
        for newer in &lists {
            take(&mut edge, older, newer);
            for place in 0..HOSTS {
                let found = edge.host_at(address(place));
                let listed = newer.iter().find(|entry| entry.1 == place);
                prop_assert_eq!(found.is_some(), listed.is_some(), "place {}", place);
                if let (Some(id), Some(&(host, _))) = (found, listed) {
                    prop_assert_eq!(edge.address_of(id), Some(address(place)));
                    let known = edge.sessions().peer_by_key(&key(host));
                    prop_assert_eq!(known.map(|peer| peer.0), Some(id.0));
                }
            }
            older = newer;
        }
    }
}

#[test]
fn two_hosts_that_exchange_their_addresses_keep_both() {
    let mut edge = edge();
    take(&mut edge, &[], &[(0, 0), (1, 1)]);
    let [a, b] = [0, 1].map(|place| edge.host_at(address(place)));
    take(&mut edge, &[(0, 0), (1, 1)], &[(0, 1), (1, 0)]);
    assert_eq!([0, 1].map(|place| edge.host_at(address(place))), [b, a]);
}
