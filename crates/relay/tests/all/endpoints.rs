//! Endpoint rules, and neighbours with several candidate endpoints.

use core::time::Duration;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use crate::support::{FULL, Net, PathRecorder, socket};
use shoal_session::{EndpointRules, NodeNetworks};
use shoal_wire::{Address, DropReason, LinkId};

const H1: usize = 0;
const R1: usize = 1;
const SECOND: Duration = Duration::from_secs(1);
const INSIDE: SocketAddr =
    SocketAddr::new(IpAddr::V4(std::net::Ipv4Addr::new(10, 98, 0, 7)), 7_400);

/// A host and its router. For the router, 10.98.0.0/16 is inside its own interface.
fn net() -> Net {
    let mut net = Net::new(&[Address::new(1, 1), Address::new(1, 0)], &[(H1, R1)]);
    let inside = vec![(INSIDE.ip(), 16)];
    let rules = EndpointRules::new(&NodeNetworks { inside, ..NodeNetworks::default() });
    net.nodes[R1].relay.set_endpoint_rules(Arc::new(rules));
    net
}

fn up_since(net: &Net, node: usize) -> Option<shoal_wire::Time> {
    net.nodes[node].relay.links().next().and_then(|link| link.up_since)
}

fn dropped(net: &Net, node: usize) -> u64 {
    net.nodes[node].relay.counters().dropped(DropReason::EndpointInside)
}

fn watch(net: &mut Net, to: SocketAddr) {
    net.watches[0] = Some(PathRecorder { from: None, to, seen: Vec::new(), at: Vec::new() });
}

/// Number of frames recorded by the watch.
fn seen(net: &mut Net) -> usize {
    net.watches[0].take().map_or(0, |watch| watch.seen.len())
}

#[test]
fn frames_from_inside_the_network_are_dropped_before_a_key_is_touched() {
    let mut net = net();
    net.run(3 * SECOND);
    assert!(up_since(&net, R1).is_some());
    watch(&mut net, INSIDE);
    net.deliver(R1, INSIDE, &mut [7; FULL]);
    assert_eq!(dropped(&net, R1), 1);
    // The newest frames arrive from inside the network, so the host would appear to be there.
    let at = core::mem::replace(&mut net.nodes[H1].at, INSIDE);
    net.send(H1, Address::new(1, 0), 3, 1);
    net.run(SECOND);
    net.nodes[H1].at = at;
    assert!(dropped(&net, R1) > 1);
    net.run(5 * SECOND);
    assert_eq!(seen(&mut net), 0, "frames into the own interface");
    assert_eq!(net.nodes[R1].relay.links().next().unwrap().endpoint, Some(socket(H1)));
}

#[test]
fn nothing_leaves_for_an_endpoint_inside_the_network_whoever_named_it() {
    let mut net = net();
    net.run(3 * SECOND);
    watch(&mut net, INSIDE);
    let now = net.now;
    net.nodes[R1].relay.set_endpoint(now, LinkId::from_bits(0), Some(INSIDE));
    net.run(10 * SECOND);
    assert_eq!(seen(&mut net), 0, "frames into the own interface");
    assert!(dropped(&net, R1) > 0);
    assert!(up_since(&net, R1).is_some(), "the link stays where it is");
}

#[test]
fn all_places_of_a_neighbour_are_called_within_seconds() {
    for dead in 0..7 {
        let mut net = net();
        let mut places: Vec<_> = (0..dead).map(|n| socket(100 + n)).collect();
        places.push(socket(R1));
        let (now, link) = (net.now, LinkId::from_bits(0));
        net.nodes[H1].relay.set_endpoints(now, link, &places);
        net.run(3 * SECOND);
        let since = up_since(&net, H1).unwrap_or_else(|| panic!("{dead} dead places: no link"));
        println!("{dead} dead places: up after {:?}", since.since(now));
        // A new session, and a link that was down, begin at the endpoint that answered.
        watch(&mut net, socket(100));
        net.cut.push((H1, R1));
        net.run(2 * SECOND);
        net.cut.clear();
        net.run(5 * SECOND);
        assert!(up_since(&net, H1).is_some(), "{dead}");
    }
}
