//! The table of hosts follows the list, even if hosts exchange their addresses.

use proptest::prelude::*;
use shoal_crypto::{Identity, NetworkSecret, PublicKey};
use shoal_edge::{
    DirectConfig, Edge, EdgeConfig, EdgeNote, EdgeOutput, HostConfig, HostId, HostTraffic,
    PacketFlow,
};
use shoal_wire::{
    Address, CircuitId, DropReason, EdgeKind, Id, Level, RoutedHeader, SizeClass, Time,
    TrafficClass, edge, link,
};
use zerocopy::IntoBytes;

const HOSTS: u16 = 6;

fn key(host: u16) -> PublicKey {
    Identity::from_seed([host as u8 + 1; 32]).public()
}

fn address(place: u16) -> Address {
    Address::new(1, place + 1)
}

fn edge() -> Edge {
    let config = EdgeConfig {
        address: Address::new(9, 1),
        session: shoal_session::SessionConfig::new(shoal_session::SessionRole::Edge),
        transfer: shoal_transfer::TransferConfig::default(),
        echo_max: 16,
        direct: Some(DirectConfig {
            proactive: false,
            endpoint: None,
            weakest: Level::Encrypt,
            groups: Vec::new(),
            idle: core::time::Duration::from_secs(60),
            links_max: 4,
        }),
        ip: false,
        events_max: 64,
    };
    let (identity, secret) = (Identity::from_seed([99; 32]), NetworkSecret([1; 32]));
    Edge::new(config, identity, secret, [3; 32], Time::from_millis(1_000), 1_800_000_000_000)
}

/// Applies a list as a node does: removes the hosts that left, then adds all hosts of the list.
fn take(edge: &mut Edge, older: &[(u16, u16)], newer: &[(u16, u16)]) {
    let now = Time::from_millis(2_000);
    for &(host, place) in older {
        if newer.iter().all(|entry| entry.0 != host) {
            let id = edge.host_at(address(place)).expect("host in the older list");
            edge.remove_host(now, id);
        }
    }
    for &(host, place) in newer {
        edge.add_host(&HostConfig { key: key(host), address: address(place) }).expect("room");
    }
}

/// Lists of hosts with distinct places.
fn lists() -> impl Strategy<Value = Vec<Vec<(u16, u16)>>> {
    let places = Just((0..HOSTS).collect::<Vec<u16>>()).prop_shuffle();
    let order = Just((0..HOSTS).collect::<Vec<u16>>()).prop_shuffle();
    let list = (places, order, 1..=HOSTS as usize)
        .prop_map(|(places, order, len)| order.into_iter().zip(places).take(len).collect());
    prop::collection::vec(list, 2..5)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200.min(ProptestConfig::default().cases)))]
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
                    prop_assert_eq!(known.map(HostId::from), Some(id));
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

/// A host and its successor, with the same number and address.
fn successors(edge: &mut Edge) -> [HostId; 2] {
    take(edge, &[], &[(0, 0)]);
    let old = edge.host_at(address(0)).expect("listed");
    take(edge, &[(0, 0)], &[(1, 0)]);
    let new = edge.host_at(address(0)).expect("listed");
    let known = edge.sessions().peer_by_key(&key(1)).expect("listed");
    assert_eq!((old.number(), old == new, known), (new.number(), false, new.into()));
    [old, new]
}

#[test]
fn notes_of_an_earlier_owner_of_a_number_say_nothing_of_the_next() {
    let (mut edge, now) = (edge(), Time::from_millis(3_000));
    let [old, new] = successors(&mut edge);
    let note = |edge: &mut Edge, host| {
        for what in
            [HostTraffic::Routed, HostTraffic::Direct, HostTraffic::Heard, HostTraffic::Unsealed]
        {
            edge.handle_note(now, &EdgeNote::Host { host, what });
        }
    };
    note(&mut edge, old);
    assert_eq!((edge.last_heard(old), edge.last_heard(new)), (None, None));
    assert_eq!(edge.direct_stats().expect("direct links are configured").asked, 0);
    assert!(edge.poll_job().is_none(), "no handshake begins");
    note(&mut edge, new);
    assert_eq!((edge.last_heard(old), edge.last_heard(new)), (None, Some(now)));
    assert_eq!(edge.direct_stats().expect("direct links are configured").asked, 1);
    assert!(edge.poll_job().is_some());
}

#[test]
fn commands_and_cells_of_an_earlier_owner_of_a_number_are_refused() {
    let (mut edge, now) = (edge(), Time::from_millis(3_000));
    let [old, new] = successors(&mut edge);
    assert_eq!((edge.address_of(old), edge.address_of(new)), (None, Some(address(0))));
    assert_eq!(edge.ping(old, 1, 1), Err(DropReason::NoEndpoint));
    let offer = || shoal_transfer::OfferInfo {
        name: "file".into(),
        size: 1,
        modified_ns: 1,
        file_id: [1; 16],
        executable: false,
        segment: shoal_transfer::SegmentLen::FULL,
    };
    assert_eq!(edge.offer(now, old, offer()), Err(DropReason::NoEndpoint));
    assert!(edge.offer(now, new, offer()).is_ok());
    // A cell from a ring, opened before the first host was removed.
    let mut frame = [0; SizeClass::Small.frame_len()];
    let header = RoutedHeader::new(Address::new(9, 1), address(0), TrafficClass::Control);
    frame[link::ROUTED_AT..link::CELL_AT].copy_from_slice(header.as_bytes());
    frame[link::CELL_AT + edge::KIND_AT] = EdgeKind::Keepalive as u8;
    assert_eq!(edge.handle_opened(now, old, &mut frame), Err(DropReason::BadSource));
    assert_eq!(edge.handle_opened(now, new, &mut frame), Ok(()));
    // A second removal of the old host must not remove the new one.
    edge.remove_host(now, old);
    assert_eq!(edge.address_of(new), Some(address(0)));
}

/// An output on which every host has a direct link.
#[derive(Default)]
struct AllDirectOutput(usize);

impl EdgeOutput for AllDirectOutput {
    fn cells(&mut self, _: Time, _: &mut [u8], _: &[u32], _: usize) {
        unreachable!("there is no session")
    }

    fn room(&self, _: Address) -> usize {
        512
    }

    fn is_congested(&self, _: Address) -> bool {
        false
    }

    fn may_go_direct(&self, _: Address) -> bool {
        true
    }

    fn direct(&mut self, _: Time, _: &mut [u8], offsets: &[u32], _: usize) {
        self.0 += offsets.len();
    }

    fn unit(&mut self, _: Time, _: CircuitId, _: &mut [u8], _: &[u32]) {
        unreachable!("there is no circuit")
    }

    fn hidden_handshake(&mut self, _: Time, _: CircuitId, _: &[u8]) {
        unreachable!("there is no circuit")
    }

    fn circuit_room(&self, _: CircuitId) -> usize {
        0
    }

    fn circuit_is_congested(&self, _: CircuitId) -> bool {
        false
    }
}

#[test]
fn packets_under_construction_never_reach_the_next_owner_of_a_number() {
    let (mut edge, mut out, now) = (edge(), AllDirectOutput::default(), Time::from_millis(1_500));
    take(&mut edge, &[], &[(0, 0)]);
    let host = edge.host_at(address(0)).expect("listed");
    let send = |edge: &mut Edge, host, out: &mut AllDirectOutput| {
        edge.send_packet(now, PacketFlow { host, number: 1, stream: 0 }, 100, out, |plain| {
            plain.fill(4)
        });
    };
    send(&mut edge, host, &mut out);
    take(&mut edge, &[(0, 0)], &[(1, 0)]);
    edge.drive(now, &mut out);
    assert_eq!(out.0, 0);
    assert_eq!(edge.take_drops().collect::<Vec<_>>(), [(DropReason::NoEndpoint, 1)]);
    let host = edge.host_at(address(0)).expect("listed");
    send(&mut edge, host, &mut out);
    edge.drive(now, &mut out);
    assert_eq!(out.0, 1);
}
