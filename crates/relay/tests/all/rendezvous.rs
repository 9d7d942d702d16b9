//! Links whose two ends meet at time-dependent rendezvous addresses, between complete relays.

use core::time::Duration;
use std::collections::BTreeSet;
use std::net::SocketAddr;

use crate::support::{Net, identity, shift_prefix, shifter, socket};
use shoal_crypto::{NetworkSecret, NetworkSecrets};
use shoal_relay::LinkConfig;
use shoal_wire::{Address, DropReason, LinkId, Time};

const R1: usize = 0;
const R2: usize = 1;
const H1: usize = 2;
const SECOND: Duration = Duration::from_secs(1);
const UNIX_MS: u64 = 1_800_000_000_000;

const ADDRESSES: [Address; 3] = [Address::new(1, 0), Address::new(2, 0), Address::new(1, 1)];

/// Two routers and a host of the first, not yet started.
fn none_started() -> Net {
    let mut net = Net::new(&ADDRESSES, &[]);
    net.wire.paths = Some(Vec::new());
    net
}

/// Starts a node whose clock is `ahead_s` seconds fast, with addresses that shift every `shift`.
/// With `fallback` it has an endpoint to call.
fn begin(net: &mut Net, node: usize, shift: Duration, ahead_s: i64, fallback: bool) {
    let (now, relay) = (net.now, &mut net.nodes[node].relay);
    relay.set_shift_place(Some((shift_prefix(node), 7_400)));
    let unix_ms = UNIX_MS + now.as_micros() / 1_000;
    relay.set_unix_time(now, unix_ms.saturating_add_signed(ahead_s * 1_000));
    let neighbours: &[usize] = if node == R1 { &[R2, H1] } else { &[R1] };
    for &far in neighbours {
        let endpoint = (fallback && far != H1).then(|| socket(far));
        let config = LinkConfig { key: identity(far).public(), address: ADDRESSES[far], endpoint };
        let link = relay.add_link(now, &config).expect("room");
        relay.set_shift(now, link, Some(shift));
        relay.set_rendezvous(now, link, Some((shift_prefix(far), 7_400)));
    }
}

/// All three nodes, with clocks `ahead_s` seconds fast. With `fallback`, one end of each link has
/// an endpoint to call.
fn net(shift: Duration, ahead_s: [i64; 3], fallback: bool) -> Net {
    let mut net = none_started();
    for (node, ahead_s) in ahead_s.into_iter().enumerate() {
        begin(&mut net, node, shift, ahead_s, fallback);
    }
    net
}

/// Lets time pass in longer steps than [`Net::run`].
fn wait(net: &mut Net, span: Duration) {
    let end = net.now + span;
    while net.now < end {
        net.step();
        net.now = net.now + Duration::from_millis(20);
    }
}

fn all_shift(net: &Net) -> bool {
    let shifts = |node: &crate::support::Node| {
        node.relay.links().all(|link| link.shift.is_some_and(|shift| shift.shifting && shift.meets))
    };
    net.nodes.iter().all(shifts)
}

fn all_up(net: &Net) -> bool {
    net.nodes.iter().all(|node| node.relay.links().all(|link| link.up_since.is_some()))
}

/// Sends cells from the host to a router and back; all arrive. If clocks differ by hours, routers
/// don't accept each other's routes. The host's own router serves the host all the same.
fn traffic(net: &mut Net, router: usize, span: Duration) {
    let at = net.nodes[router].relay.address();
    let before = [router, H1].map(|node| net.nodes[node].cells.len());
    let rounds = span.as_millis() / 20;
    for _ in 0..rounds {
        net.send(H1, at, 3, 1);
        net.send(router, Address::new(1, 1), 2, 2);
        net.run(Duration::from_millis(20));
    }
    net.run(Duration::from_millis(50));
    let now = [router, H1].map(|node| net.nodes[node].cells.len());
    let cells = rounds as usize;
    assert_eq!([now[0] - before[0], now[1] - before[1]], [3 * cells, 2 * cells]);
}

/// True if all frames since the last call used addresses of the prefixes.
fn hidden(net: &mut Net) -> bool {
    let paths = net.wire.paths.replace(Vec::new()).unwrap_or_default();
    let is_one = |at: Option<SocketAddr>| at.is_some_and(|at| shifter(at).is_some());
    !paths.is_empty()
        && paths.iter().all(|path| is_one(path.ends.local) && is_one(Some(path.ends.remote)))
}

#[test]
fn ends_without_an_endpoint_meet_shift_and_show_no_address_that_stays() {
    let mut net = net(SECOND, [0; 3], false);
    net.run(SECOND);
    assert!(all_up(&net));
    net.run(7 * SECOND);
    assert!(all_shift(&net));
    traffic(&mut net, R2, 5 * SECOND);
    assert!(hidden(&mut net));
    for node in &net.nodes {
        assert_eq!(node.relay.counters().dropped(DropReason::StaleAddress), 0);
        // The rendezvous is not revealed, neither in status output nor to neighbours.
        assert!(node.relay.links().all(|link| link.endpoint.is_none() && link.local.is_none()));
        assert_eq!(node.relay.seen().count(), 0);
    }
}

#[test]
fn clocks_wrong_by_nine_minutes_meet_within_a_second_and_by_an_hour_at_the_fallback() {
    for ahead_s in [[0, 540, -540], [540, 0, -600], [1_100, 0, 0]] {
        let mut net = net(SECOND, ahead_s, false);
        net.run(5 * SECOND);
        assert!(all_up(&net) && hidden(&mut net), "{ahead_s:?}");
        net.run(5 * SECOND);
        assert!(all_shift(&net) && hidden(&mut net), "{ahead_s:?}");
    }
    let mut far = net(SECOND, [0, 3_600, -3_600], false);
    wait(&mut far, 40 * SECOND);
    assert!(far.nodes.iter().all(|node| node.relay.links().all(|link| link.up_since.is_none())));
    assert!(hidden(&mut far));
    let stale = |net: &Net| net.nodes[R1].relay.counters().dropped(DropReason::StaleAddress);
    assert!(stale(&far) > 4, "{}", stale(&far));

    let mut far = net(SECOND, [0, 3_600, -3_600], true);
    far.run(SECOND);
    assert!(!all_up(&far) && hidden(&mut far), "the fixed endpoint is the last that is tried");
    far.run(9 * SECOND);
    assert!(all_up(&far));
    far.run(5 * SECOND);
    assert!(all_shift(&far));
    traffic(&mut far, R1, 3 * SECOND);
}

#[test]
fn a_clock_that_is_set_while_a_link_is_up_loses_nothing() {
    let mut net = net(SECOND, [0; 3], false);
    net.run(8 * SECOND);
    let now = net.now;
    net.nodes[R1].relay.set_unix_time(now, UNIX_MS + 7_200_000);
    traffic(&mut net, R1, 5 * SECOND);
    assert!(all_shift(&net));
    // All keys are dropped, as the shell does after a jump of its clock. Both ends meet at the
    // addresses that they would use without the jump.
    for node in [R1, R2, H1, R1] {
        net.rekey_all(node);
        net.run(2 * SECOND);
        assert!(all_up(&net) && all_shift(&net) && hidden(&mut net), "{node}");
    }
    traffic(&mut net, R1, 5 * SECOND);
}

/// The second router starts at any later time, with a clock wrong by up to nine minutes. The link
/// is up within 2.5 s and shifts at once.
#[test]
fn a_node_that_starts_later_with_a_wrong_clock_is_met_soon() {
    for (late, other) in [(R2, R1), (R1, R2)] {
        for ahead_s in [0, 540, -540] {
            for tenths in [0, 2, 6, 11, 19, 27, 44] {
                let mut net = none_started();
                begin(&mut net, other, 3_600 * SECOND, 0, false);
                wait(&mut net, tenths * SECOND / 10);
                begin(&mut net, late, 3_600 * SECOND, ahead_s, false);
                net.run(5 * SECOND / 2);
                let view = |node: usize| net.nodes[node].relay.view(LinkId::from_bits(0)).unwrap();
                let shifts = |node: usize| view(node).shift.is_some_and(|shift| shift.shifting);
                let is_up = |node: usize| view(node).up_since.is_some();
                let what = format!("{late} is {tenths} tenths late, its clock {ahead_s} s ahead");
                assert!([R1, R2].into_iter().all(is_up), "{what}");
                assert!([R1, R2].into_iter().all(shifts), "{what}");
            }
        }
    }
}

/// A router without an endpoint of a host, and with a clock an hour off, calls the host at its last
/// source. So the host need not notice by itself that its keys are gone.
#[test]
fn an_end_that_was_called_at_an_endpoint_calls_back_there() {
    let mut net = net(SECOND, [0, 3_600, -3_600], true);
    net.run(15 * SECOND);
    assert!(all_shift(&net));
    for node in [R1, H1, R2] {
        net.rekey_all(node);
        net.run(4 * SECOND);
        assert!(all_up(&net) && all_shift(&net), "{node}");
    }
    traffic(&mut net, R1, 3 * SECOND);
}

/// Addresses of the node that were used as source or destination.
fn used(net: &mut Net, node: usize) -> BTreeSet<SocketAddr> {
    let paths = net.wire.paths.replace(Vec::new()).unwrap_or_default();
    let ends = paths.iter().flat_map(|path| [path.ends.local, Some(path.ends.remote)]);
    ends.flatten().filter(|at| shifter(*at) == Some(node)).collect()
}

#[test]
fn a_link_whose_shifts_fail_falls_back_to_where_both_meet_now() {
    let mut net = net(3_600 * SECOND, [0; 3], false);
    net.run(8 * SECOND);
    assert!(all_shift(&net));
    let first = used(&mut net, R2);
    // Enough time passes that calls use none of the first epochs. Then frames are lost for a while.
    wait(&mut net, 1_500 * SECOND);
    let _shifting = used(&mut net, R2);
    net.cut = vec![(R1, R2)];
    wait(&mut net, 30 * SECOND);
    assert!(net.nodes[R2].relay.links().all(|link| link.up_since.is_none()));
    net.cut.clear();
    let _calls = used(&mut net, R2);
    net.run(8 * SECOND);
    assert!(all_up(&net) && all_shift(&net));
    let again = used(&mut net, R2);
    assert!(again.is_disjoint(&first), "the first rendezvous has expired");
}

#[test]
fn ends_with_different_secrets_of_the_network_meet_while_one_is_replaced() {
    let secrets = |first: u8, other: Option<u8>| NetworkSecrets {
        first: NetworkSecret([first; 32]),
        other: other.map(|other| NetworkSecret([other; 32])),
    };
    for (here, there) in [
        (secrets(7, Some(8)), secrets(7, None)),
        (secrets(8, Some(7)), secrets(7, None)),
        (secrets(7, Some(8)), secrets(8, None)),
    ] {
        for (a, b) in [(R1, R2), (R2, R1)] {
            let mut net = net(SECOND, [0; 3], false);
            net.nodes[a].relay.set_secrets(here.clone());
            net.nodes[b].relay.set_secrets(there.clone());
            net.run(4 * SECOND);
            let link = |net: &Net| net.nodes[R2].relay.links().next().map(|link| link.up_since);
            assert!(link(&net).flatten().is_some(), "{a} calls {b}");
            assert!(hidden(&mut net));
        }
    }
}

#[test]
fn frames_to_an_expired_rendezvous_address_are_dropped_before_any_key() {
    let mut net = net(SECOND, [0; 3], false);
    net.run(SECOND);
    let met = used(&mut net, R2).into_iter().next().expect("a call arrived");
    wait(&mut net, 1_300 * SECOND);
    let counted = |net: &Net| net.nodes[R2].relay.counters().dropped(DropReason::StaleAddress);
    let before = counted(&net);
    net.local = Some(met);
    net.deliver(R2, socket(50), &mut [7; crate::support::FULL]);
    assert_eq!(counted(&net), before + 1);
}

#[test]
fn an_endpoint_is_taken_up_and_left_by_a_change_of_files() {
    let mut net = net(SECOND, [0, 3_600, 0], false);
    net.run(5 * SECOND);
    let up = |net: &Net| net.nodes[R2].relay.view(LinkId::from_bits(0)).unwrap().up_since;
    assert!(up(&net).is_none());
    let now = net.now;
    net.nodes[R2].relay.set_endpoint(now, LinkId::from_bits(0), Some(socket(R1)));
    wait(&mut net, 25 * SECOND);
    assert!(up(&net).is_some_and(|since| since > Time::ZERO));
    let now = net.now;
    net.nodes[R2].relay.set_rendezvous(now, LinkId::from_bits(0), None);
    net.run(5 * SECOND);
    assert!(up(&net).is_some());
    let view = net.nodes[R2].relay.view(LinkId::from_bits(0)).unwrap();
    assert_eq!(view.endpoint, Some(socket(R1)));
    assert!(view.shift.is_some_and(|shift| !shift.meets));
}
