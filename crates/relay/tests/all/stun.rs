//! Public STUN servers report a host's address.

use core::time::Duration;
use std::net::SocketAddr;

use crate::support::{Net, socket};
use shoal_relay::RelayConfig;
use shoal_wire::{Address, DropReason, Mapping, stun_id};

const H1: usize = 0;
const R1: usize = 1;
/// Number of an address without a node.
const SERVER: usize = 77;

/// A host with its router, and the requests that it sent to a server.
fn asked() -> (Net, Vec<Vec<u8>>) {
    let mut net = Net::new(&[Address::new(1, 1), Address::new(1, 0)], &[(H1, R1)]);
    net.nodes[H1].relay.set_stun(net.now, vec![socket(SERVER)]);
    net.wire.seen = Some(Vec::new());
    net.run(Duration::from_secs(8));
    let all = net.wire.seen.take().unwrap_or_default();
    (net, all.into_iter().filter(|frame| frame.len() == 20).collect())
}

/// The server's answer to a request of a host with this address.
fn answer(request: &[u8], seen: SocketAddr) -> Vec<u8> {
    let SocketAddr::V4(seen) = seen else { panic!("IPv4") };
    let mut out = vec![1, 1, 0, 12];
    out.extend(&request[4..20]);
    out.extend([0, 0x20, 0, 8, 0, 1]);
    out.extend((seen.port() ^ 0x2112).to_be_bytes());
    out.extend(seen.ip().octets().iter().zip([0x21, 0x12, 0xa4, 0x42]).map(|(a, b)| a ^ b));
    out
}

fn views(net: &Net) -> usize {
    net.nodes[H1].relay.seen().count()
}

#[test]
fn a_silent_server_is_asked_three_times_with_other_names() {
    let (net, requests) = asked();
    assert_eq!(requests.len(), 3);
    let ids: std::collections::BTreeSet<_> = requests.iter().map(|r| stun_id(r)).collect();
    assert!(ids.len() == 3 && !ids.contains(&None));
    assert_eq!(views(&net), 1, "the router's");
}

#[test]
fn servers_that_are_named_later_are_asked_at_once_and_not_after_they_are_taken_away() {
    let mut net = Net::new(&[Address::new(1, 1), Address::new(1, 0)], &[(H1, R1)]);
    net.run(Duration::from_secs(8));
    let asked = |net: &mut Net, for_ms: u64| {
        net.wire.seen = Some(Vec::new());
        net.run(Duration::from_millis(for_ms));
        net.wire.seen.take().unwrap_or_default().iter().filter(|frame| frame.len() == 20).count()
    };
    let named = vec![socket(SERVER)];
    net.nodes[H1].relay.set_stun(net.now, named.clone());
    assert_eq!(asked(&mut net, 100), 1);
    // Servers that stay are no reason to ask.
    net.nodes[H1].relay.set_stun(net.now, named);
    assert_eq!(asked(&mut net, 100), 0);
    net.nodes[H1].relay.set_stun(net.now, Vec::new());
    assert_eq!(asked(&mut net, 10_000), 0);
}

#[test]
fn an_answer_counts_once_and_only_from_the_server() {
    counts_once(1);
}

/// The answer may arrive at any worker.
#[test]
fn an_answer_counts_once_with_any_number_of_workers() {
    (2..=8).for_each(counts_once);
}

fn counts_once(workers: u8) {
    let change = |config: &mut RelayConfig| {
        (config.session.workers, config.session.lanes) = (workers, workers);
    };
    let mut net = Net::with(&[Address::new(1, 1), Address::new(1, 0)], &[(H1, R1)], change);
    net.nodes[H1].relay.set_stun(net.now, vec![socket(SERVER)]);
    net.wire.seen = Some(Vec::new());
    let mut request = None;
    while request.is_none() {
        net.run(Duration::from_millis(1));
        let seen = net.wire.seen.as_ref().expect("frames are recorded");
        request = seen.iter().find(|frame| frame.len() == 20).cloned();
        assert!(net.now < shoal_wire::Time::from_millis(10_000), "no server was asked");
    }
    let request = request.expect("a request");
    let good = answer(&request, socket(H1));
    let dropped = |net: &Net, reason| net.nodes[H1].relay.counters().dropped(reason);

    net.deliver(H1, socket(SERVER + 1), &mut good.clone());
    let mut other = good.clone();
    other[10] ^= 1;
    net.deliver(H1, socket(SERVER), &mut other);
    assert_eq!((views(&net), dropped(&net, DropReason::BadSize)), (1, 2));

    let mut error = good.clone();
    error[1] = 0x11;
    net.deliver(H1, socket(SERVER), &mut error);
    assert_eq!((views(&net), dropped(&net, DropReason::Malformed)), (1, 1));

    net.deliver(H1, socket(SERVER), &mut good.clone());
    assert_eq!(views(&net), 2);
    assert_eq!(net.nodes[H1].relay.mapping(), Mapping::Easy);
    net.deliver(H1, socket(SERVER), &mut good.clone());
    assert_eq!((views(&net), dropped(&net, DropReason::BadSize)), (2, 3));
}
