//! A host at two routers: cells leave over the router of their source, and change over when a
//! router dies.

use core::time::Duration;

use shoal_relay::{CallContext, LinkConfig};
use shoal_wire::{Address, DropReason, LinkKind};

use crate::support::{FULL, Net, frames, identity, socket};

const H1: usize = 0;
const R1: usize = 1;
const R2: usize = 2;
const R3: usize = 3;
const H2: usize = 4;
const FIRST: Address = Address::new(1, 1);
const SECOND: Address = Address::new(2, 9);
const FAR: Address = Address::new(3, 1);

/// A triangle of routers. `H1` is at `R1` and `R2`, `H2` at `R3`.
fn net() -> Net {
    net_with(|_| {})
}

fn net_with(change: impl Fn(&mut shoal_relay::RelayConfig)) -> Net {
    let addresses = [FIRST, Address::new(1, 0), Address::new(2, 0), Address::new(3, 0), FAR];
    let links = [(H1, R1), (R1, R2), (R1, R3), (R2, R3), (H2, R3)];
    let mut net = Net::with(&addresses, &links, |config| {
        config.liveness.keepalive = Some(Duration::from_secs(10));
        change(config);
    });
    let now = net.now;
    let endpoint = Some(socket(R2));
    let up = LinkConfig { key: identity(R2).public(), address: addresses[R2], endpoint };
    let down = LinkConfig { key: identity(H1).public(), address: SECOND, endpoint: None };
    net.nodes[H1].relay.set_second(Some(SECOND));
    net.nodes[H1].relay.add_link(now, &up).expect("room");
    net.nodes[R2].relay.add_link(now, &down).expect("room");
    net.run(Duration::from_secs(3));
    net
}

fn dropped(net: &Net, node: usize, reason: DropReason) -> u64 {
    net.nodes[node].relay.counters().dropped(reason)
}

/// Sources of the cells that a node got, and forgets them.
fn take_sources(net: &mut Net, node: usize) -> Vec<Address> {
    std::mem::take(&mut net.nodes[node].cells).into_iter().map(|(source, _)| source).collect()
}

#[test]
fn cells_leave_with_the_source_of_the_router_in_use() {
    let mut net = net();
    assert_eq!(net.nodes[H1].relay.home(), FIRST);
    net.send(H1, FAR, 3, 1);
    net.run(Duration::from_millis(5));
    assert_eq!(take_sources(&mut net, H2), [FIRST; 3]);
    for at in [FIRST, SECOND] {
        net.send(H2, at, 2, 2);
        net.run(Duration::from_millis(5));
        assert_eq!(take_sources(&mut net, H1), [FAR; 2], "both addresses lead to the host");
    }
}

#[test]
fn a_dead_router_is_left_within_200_ms_and_its_return_changes_nothing() {
    let mut net = net();
    for _ in 0..300 {
        net.send(H1, FAR, 1, 1);
        net.run(Duration::from_millis(1));
    }
    net.cut.push((H1, R1));
    let mut silent_ms = 0;
    take_sources(&mut net, H2);
    while !take_sources(&mut net, H2).contains(&SECOND) {
        net.send(H1, FAR, 1, 1);
        net.run(Duration::from_millis(1));
        silent_ms += 1;
        assert!(silent_ms < 200, "no cell came over the other router");
    }
    assert_eq!(net.nodes[H1].relay.home(), SECOND);
    net.cut.clear();
    net.run(Duration::from_secs(5));
    assert!(net.nodes[H1].relay.links().all(|link| link.up_since.is_some()));
    assert_eq!(net.nodes[H1].relay.home(), SECOND);
    assert_eq!([R1, R2].map(|at| dropped(&net, at, DropReason::BadSource)), [0; 2]);
}

#[test]
fn a_host_without_a_router_changes_over_only_to_one_that_answers() {
    let mut net = net();
    let cut = |net: &mut Net, router: usize| {
        net.cut.push((H1, router));
        for _ in 0..1_000 {
            net.send(H1, FAR, 1, 1);
            net.run(Duration::from_millis(1));
        }
    };
    cut(&mut net, R1);
    assert_eq!(net.nodes[H1].relay.home(), SECOND);
    cut(&mut net, R2);
    assert!(net.nodes[H1].relay.links().all(|link| link.up_since.is_none()));
    assert_eq!(net.nodes[H1].relay.home(), SECOND, "no change that peers can't be told of");
    net.cut.retain(|wire| *wire != (H1, R1));
    net.run(Duration::from_secs(20));
    assert_eq!(net.nodes[H1].relay.home(), FIRST);
}

#[test]
fn a_host_that_only_receives_notices_within_a_second() {
    let mut net = net();
    for _ in 0..300 {
        net.send(H2, FIRST, 1, 1);
        net.run(Duration::from_millis(1));
    }
    net.cut.push((H1, R1));
    let mut silent_ms = 0;
    while net.nodes[H1].relay.home() != SECOND {
        net.run(Duration::from_millis(1));
        silent_ms += 1;
        assert!(silent_ms < 700, "the dead router is still in use");
    }
}

#[test]
fn a_cell_of_the_other_address_goes_over_its_own_router() {
    let mut net = net();
    let mut send = |src: Address| {
        let mut buf = frames(FAR, src, 1, 3);
        net.wire.from = Some(socket(H1));
        let mut turn = CallContext { now: net.now, sink: &mut net.wire, hand: &mut () };
        net.nodes[H1].relay.send_cells(&mut turn, LinkKind::Leg, &mut buf, &[0], FULL);
        net.run(Duration::from_millis(5));
    };
    send(SECOND);
    send(FIRST);
    send(Address::new(7, 7));
    let legs = std::mem::take(&mut net.nodes[H2].legs.seen);
    assert_eq!(legs.into_iter().map(|(source, _)| source).collect::<Vec<_>>(), [SECOND, FIRST]);
    assert_eq!(dropped(&net, H1, DropReason::NoRoute), 1);
}

#[test]
fn a_router_still_refuses_the_address_at_the_other() {
    let mut net = net();
    net.nodes[H1].relay.set_second(None);
    let mut buf = frames(FAR, SECOND, 1, 3);
    net.wire.from = Some(socket(H1));
    let mut turn = CallContext { now: net.now, sink: &mut net.wire, hand: &mut () };
    net.nodes[H1].relay.send_cells(&mut turn, LinkKind::Cell, &mut buf, &[0], FULL);
    net.run(Duration::from_millis(5));
    assert_eq!(dropped(&net, R1, DropReason::BadSource), 1);
    assert!(net.nodes[H2].cells.is_empty());
}

#[test]
fn all_workers_use_the_same_router() {
    let mut net = net_with(|config| {
        config.session.workers = 2;
        config.session.lanes = 4;
    });
    for round in 0..400 {
        net.send(H1, FAR, 1, 1);
        net.run(Duration::from_millis(1));
        if round == 200 {
            net.cut.push((H1, R1));
        }
    }
    take_sources(&mut net, H2);
    net.send(H1, FAR, 1, 1);
    net.send(H1, FAR, 1, 1);
    net.run(Duration::from_millis(5));
    assert_eq!(take_sources(&mut net, H2), [SECOND; 2]);
    assert_eq!([R1, R2].map(|at| dropped(&net, at, DropReason::BadSource)), [0; 2]);
}
