//! No cell of a hidden host is sent, answered or accepted outside circuits.

use std::collections::BTreeMap;

use proptest::prelude::*;
use shoal_crypto::Identity;
use shoal_edge::{FORGOTTEN_FOR, HostConfig, RELEASED_FOR};
use shoal_wire::{Address, CircuitId, DropReason, RoutedHeader, SizeClass, TrafficClass, link};
use zerocopy::IntoBytes;

use super::{AT, Pair, SentCell, is_hidden, shape};

/// Two hosts with a session outside circuits; the first one must then hide the other.
fn met_in_the_clear() -> Pair {
    let mut pair = Pair::plain();
    pair.ping(0, 0);
    pair.ping(1, 0);
    pair.run(50);
    assert!(pair.hosts.iter().all(|host| host.echoes == [0] && host.established == 1));
    pair
}

#[test]
fn nothing_of_a_hidden_host_leaves_or_enters_in_the_clear() {
    let mut pair = met_in_the_clear();
    for host in &mut pair.hosts {
        // Behaves as if there were a direct link between the two.
        host.way.may_go_direct = true;
    }
    pair.ping(1, 1);
    pair.hosts[1].work(pair.now);
    pair.hosts[1].way.may_go_direct = false;
    pair.ping(1, 2);
    pair.hosts[1].work(pair.now);
    let before: Vec<SentCell> = pair.hosts[1].way.sent.drain(..).collect();
    assert!(before.iter().any(|sent| matches!(sent, SentCell::Direct(_))));
    // Three things are pending: packets of an unfinished run, an echo and a keepalive.
    pair.hosts[0].send_packet(pair.now, 100, 1);
    pair.ping(0, 1);
    pair.hide(0, 3);
    for sent in before {
        pair.hosts[0].take(pair.now, (CircuitId::from_bits(0), shape(3)), sent.clone());
        let drops: Vec<_> = pair.hosts[0].edge.take_drops().collect();
        assert_eq!(drops, [(DropReason::CircuitRequired, 1)], "{sent:?}");
    }
    pair.hosts[0].work(pair.now);
    assert_eq!(pair.hosts[0].dropped(DropReason::CircuitRequired), 1, "one packet of this host");
    let now = pair.now;
    pair.hosts[0].edge.want_all_direct(now);
    pair.hosts[0].send_packet(now, 100, 2);
    pair.run_with(100, |from, sent| {
        assert!(from == 1 || is_hidden(sent), "outside circuits: {sent:?}");
        true
    });
    let [a, b] = &pair.hosts;
    assert_eq!((&a.echoes[..], b.numbers()), (&[0, 1][..], vec![2]));
    assert!(b.edge.is_hidden(b.peer));
    // Host B has learnt that it must use circuits, whatever existed before.
    pair.ping(1, 3);
    pair.hosts[1].way.may_go_direct = true;
    let now = pair.now;
    pair.hosts[1].edge.want_all_direct(now);
    pair.hosts[1].send_packet(now, 100, 3);
    pair.run_with(5_000, |_, sent| {
        assert!(is_hidden(sent), "outside circuits: {sent:?}");
        true
    });
    assert_eq!(pair.hosts[1].echoes.last(), Some(&3));
}

#[test]
fn cells_outside_circuits_are_counted_until_the_host_is_hidden() {
    let mut pair = met_in_the_clear();
    let clear = |pair: &Pair| pair.hosts[0].edge.clear_cells(pair.hosts[0].peer);
    let met = clear(&pair);
    assert!(met.before >= 2 && met.since_hidden == 0, "{met:?}");
    pair.ping(0, 1);
    pair.run(50);
    let before = clear(&pair);
    assert!(before.before > met.before, "{before:?}");
    pair.hide(0, 3);
    pair.ping(0, 2);
    pair.run(100);
    assert_eq!((clear(&pair), pair.hosts[0].echoes.last()), (before, Some(&2)));
}

#[test]
fn no_handshake_of_a_hidden_host_is_answered_in_the_clear() {
    // A handshake from its own address is refused unread. From another address it is refused once
    // its sender is known, before an answer leaves.
    for from in [AT[1], Address::new(7, 7)] {
        let mut pair = Pair::plain();
        pair.makes = false;
        pair.hide(0, 3);
        pair.ping(1, 0);
        let mut requests = Vec::new();
        pair.run_with(2_000, |host, sent| {
            assert_eq!(host, 1, "an answer");
            requests.push(sent.clone());
            false
        });
        assert!(requests.len() > 2);
        for sent in &mut requests {
            let SentCell::Cell(frame) = sent else { panic!("no request: {sent:?}") };
            let header = RoutedHeader::new(AT[0], from, TrafficClass::Control);
            frame[link::ROUTED_AT..link::CELL_AT].copy_from_slice(header.as_bytes());
        }
        let all = requests.len() as u64;
        for sent in requests {
            pair.hosts[0].take(pair.now, (CircuitId::from_bits(0), shape(3)), sent);
        }
        pair.run_with(100, |host, _| {
            assert_eq!(host, 1, "an answer");
            false
        });
        let a = &pair.hosts[0];
        assert_eq!(a.dropped(DropReason::CircuitRequired), all);
        // A handshake from its own address draws no cookie either, since it is not read.
        let at_once = a.drops.get(&DropReason::CircuitRequired).copied().unwrap_or(0);
        assert_eq!(at_once, if from == AT[1] { all } else { 0 });
        assert_eq!(a.edge.sessions().session_count(), 0);
    }
}

#[test]
fn a_cookie_for_a_hidden_host_that_waits_to_leave_stays() {
    let mut pair = Pair::plain();
    pair.ping(1, 0);
    (0..2).for_each(|_| pair.hosts[1].work(pair.now));
    let request = pair.hosts[1].way.sent.pop_front().expect("a request");
    // A copy from another address overtook the original request, which is asked for a cookie.
    for from in [Address::new(7, 7), AT[1]] {
        let SentCell::Cell(mut frame) = request.clone() else { panic!("no request: {request:?}") };
        let header = RoutedHeader::new(AT[0], from, TrafficClass::Control);
        frame[link::ROUTED_AT..link::CELL_AT].copy_from_slice(header.as_bytes());
        pair.hosts[0].take(pair.now, (CircuitId::from_bits(0), shape(3)), SentCell::Cell(frame));
    }
    assert_eq!(pair.hosts[0].edge.sessions().stats().cookies_sent, 1);
    pair.hide(0, 3);
    pair.hosts[0].work(pair.now);
    assert!(pair.hosts[0].way.sent.is_empty(), "{:?}", pair.hosts[0].way.sent);
    assert_eq!(pair.hosts[0].dropped(DropReason::CircuitRequired), 2, "cookie and answer");
}

#[test]
fn what_another_worker_opened_in_the_clear_is_refused() {
    let mut pair = Pair::hidden();
    let mut frame = [0; SizeClass::Small.frame_len()];
    let header = RoutedHeader::new(AT[0], AT[1], TrafficClass::Control);
    frame[link::ROUTED_AT..link::CELL_AT].copy_from_slice(header.as_bytes());
    let (now, a) = (pair.now, &mut pair.hosts[0]);
    let opened = a.edge.handle_opened(now, a.peer, &mut frame);
    assert_eq!(opened, Err(DropReason::CircuitRequired));
}

#[test]
fn policy_that_ends_shows_a_host_that_was_never_met() {
    let mut pair = Pair::hidden();
    pair.hosts[0].edge.set_hidden(&BTreeMap::new());
    pair.ping(0, 0);
    pair.run_with(50, |_, sent| !is_hidden(sent));
    assert_eq!((pair.hosts[0].echoes.len(), pair.hosts[0].asked), (1, 0));

    let mut pair = Pair::hidden();
    pair.ping(0, 0);
    pair.run(50);
    pair.hosts[0].edge.set_hidden(&BTreeMap::new());
    pair.ping(0, 1);
    pair.run_with(50, |_, sent| is_hidden(sent));
    assert_eq!(pair.hosts[0].echoes, [0, 1]);
}

#[test]
fn a_host_that_moves_or_goes_stays_hidden_or_is_forgotten() {
    let mut pair = Pair::hidden();
    let key = Identity::from_seed([2; 32]).public();
    let (now, a) = (pair.now, &mut pair.hosts[0]);
    let moved = HostConfig { key, address: Address::new(5, 5) };
    assert_eq!(a.edge.add_host(&moved), Ok(a.peer));
    assert!(a.edge.is_hidden(a.peer));
    assert_eq!(a.edge.sessions().endpoint(a.peer.into()), None, "no route outside circuits");
    a.edge.ping(a.peer, 1, 1).expect("room");
    a.work(now);
    assert!(a.way.sent.is_empty() && a.asked == 1, "{:?}", a.way.sent);
    a.edge.remove_host(now, a.peer);
    let again = a.edge.add_host(&moved).expect("room");
    assert!(!a.edge.is_hidden(again) && a.edge.poll_timeout().is_none_or(|(at, _)| at > now));
}

/// An attacker may withhold lists from a node until it has forgotten all hosts. The next list has
/// the hosts again.
#[test]
fn a_host_that_was_met_over_a_circuit_is_hidden_when_it_comes_again() {
    let mut pair = Pair::hidden();
    pair.ping(0, 0);
    pair.run(50);
    assert_eq!(pair.hosts[0].echoes, [0]);
    let first = HostConfig { key: Identity::from_seed([1; 32]).public(), address: AT[0] };
    for seq in 1..3 {
        let (now, b) = (pair.now, &mut pair.hosts[1]);
        b.edge.remove_host(now, b.peer);
        b.work(now);
        b.peer = b.edge.add_host(&first).expect("room");
        // The host's own policy requires no circuits.
        b.edge.set_hidden(&BTreeMap::new());
        assert!(b.edge.is_hidden(b.peer));
        b.edge.want_all_direct(now);
        b.send_packet(now, 100, seq);
        pair.ping(1, seq);
        pair.run_with(200, |_, sent| {
            assert!(is_hidden(sent), "outside circuits: {sent:?}");
            true
        });
        assert_eq!(pair.hosts[1].echoes.last(), Some(&seq));
    }
    assert_eq!(pair.hosts[0].numbers(), [1, 2]);
}

/// The second host learns from the first one's circuit that the two are hidden. It is then replaced
/// by an instance without sessions, which calls the first host.
#[test]
fn a_host_that_was_met_before_a_restart_is_called_over_a_circuit() {
    let mut pair = Pair::hidden();
    pair.ping(0, 0);
    pair.run(50);
    let met: Vec<_> = std::iter::from_fn(|| pair.hosts[1].edge.poll_met()).collect();
    assert!(met == [Identity::from_seed([1; 32]).public()], "told once: {}", met.len());
    pair.ping(0, 1);
    pair.run(50);
    assert!(pair.hosts[1].edge.poll_met().is_none(), "told again");

    let mut again = Pair::plain();
    let first = HostConfig { key: met[0], address: AT[0] };
    let (now, b) = (again.now, &mut again.hosts[1]);
    b.edge.remove_host(now, b.peer);
    b.edge.remember_met(&met);
    b.peer = b.edge.add_host(&first).expect("room");
    b.edge.set_hidden(&BTreeMap::new());
    again.ping(1, 0);
    again.run_with(200, |from, sent| {
        assert!(from == 0 || is_hidden(sent), "outside circuits: {sent:?}");
        true
    });
    let [a, b] = &mut again.hosts;
    assert_eq!((&b.echoes[..], b.asked), (&[0][..], 1));
    assert!(b.edge.poll_met().is_none(), "the host is already written to disk");
    assert!(a.edge.poll_met().is_some(), "the other host learnt it");
}

#[test]
fn a_file_that_was_offered_in_the_clear_ends_where_its_host_is_hidden() {
    let mut pair = met_in_the_clear();
    let now = pair.now;
    pair.hosts[0].offer(now, 30_000_000);
    pair.run(20);
    pair.hide(0, 3);
    pair.run_with(2_000, |from, sent| from == 1 || is_hidden(sent));
    let [a, b] = &pair.hosts;
    assert_eq!((a.failed, b.failed, a.whole, b.whole), (1, 1, 0, 0));
    let now = pair.now;
    pair.hosts[0].offer(now, 1_000_000);
    pair.run(2_000);
    let [a, b] = &pair.hosts;
    assert_eq!((a.failed, b.failed, a.whole, b.whole), (1, 1, 1, 1));
    assert!(a.file == b.file);
}

/// Files pass between hosts whose circuits have different numbers of tag places. Segments fit the
/// circuits of both hosts. Segments that were offered before the other host's circuit was seen are
/// lost while there is only that circuit. The transfer goes on nevertheless.
#[test]
fn hosts_whose_circuits_differ_exchange_files() {
    let segment = |pair: &Pair, at: usize| {
        let host = &pair.hosts[at];
        host.edge.segment_len(host.peer).get()
    };
    for (tags, met) in [([3, 5], true), ([5, 3], true), ([3, 5], false), ([5, 3], false)] {
        let mut pair = Pair::plain();
        pair.makes = false;
        let circuits = [0, 1].map(|at| {
            pair.hide(at, tags[at]);
            pair.make(at, tags[at])
        });
        let alone = if tags[0] == 3 { 1_308 } else { 1_276 };
        assert_eq!(segment(&pair, 0), alone);
        if met {
            pair.ping(0, 0);
            pair.run(50);
            assert_eq!([0, 1].map(|at| segment(&pair, at)), [1_276; 2]);
        }
        let now = pair.now;
        pair.hosts[0].offer(now, 30_000_000);
        pair.run(20);
        assert!(pair.hosts[0].whole == 0, "transfer not complete yet");
        // For a while there is only the other host's circuit.
        pair.end(circuits[0]);
        pair.run(100);
        pair.make(0, tags[0]);
        pair.run(4_000);
        let [a, b] = &pair.hosts;
        assert_eq!((a.whole, b.whole, a.failed, b.failed), (1, 1, 0, 0), "{tags:?} {met}");
        assert!(a.file == b.file);
        for host in [a, b] {
            assert_eq!(host.dropped(DropReason::IpTooBig), 0);
        }
    }
}

/// A host that learns from the other's circuit that it is hidden has built no circuit yet. Its own
/// circuits may have the largest number of tag places.
#[test]
fn who_has_built_no_circuit_offers_the_shortest_segments() {
    let mut pair = Pair::hidden();
    pair.ping(0, 0);
    pair.run(50);
    let host = &pair.hosts[1];
    assert!(host.edge.is_hidden(host.peer) && pair.circuits.len() == 1);
    assert_eq!(host.edge.segment_len(host.peer).get(), 1_276);
    pair.make(1, 3);
    let host = &pair.hosts[1];
    assert_eq!(host.edge.segment_len(host.peer).get(), 1_308);
}

/// Forgets that a host met the other one; its policy requires no circuits.
fn forget(pair: &mut Pair, at: usize) {
    let key = Identity::from_seed([2 - at as u8; 32]).public();
    let (now, host) = (pair.now, &mut pair.hosts[at]);
    assert_eq!(host.edge.forget_met(now, &[key]), [host.peer]);
    host.edge.set_hidden(&BTreeMap::new());
    assert!(!host.edge.is_hidden(host.peer));
}

/// Two hosts that met over a circuit, whose policies require none any more.
fn met_without_policy() -> Pair {
    let mut pair = Pair::hidden();
    pair.ping(0, 0);
    pair.run(50);
    pair.hosts[0].edge.set_hidden(&BTreeMap::new());
    for host in &pair.hosts {
        assert!(host.edge.is_hidden(host.peer), "met over a circuit");
    }
    pair
}

#[test]
fn hosts_that_forget_each_other_speak_in_the_clear_whoever_is_first() {
    for first in [0, 1] {
        let mut pair = met_without_policy();
        forget(&mut pair, first);
        let (other, before) = (1 - first, pair.hosts[first].edge.sessions().session_count());
        assert_eq!(before, 0, "the session over the circuit ended");
        // The other host still calls over circuits, which must not hide the first one again.
        for _ in 0..10 {
            pair.ping(other, 1);
            pair.run_with(2_000, |from, sent| {
                assert!(from == first || is_hidden(sent), "outside circuits: {sent:?}");
                true
            });
        }
        assert!(pair.hosts[first].dropped(DropReason::NotAllowed) > 0);
        assert!(!pair.hosts[first].edge.is_hidden(pair.hosts[first].peer));
        forget(&mut pair, other);
        for (from, seq) in [(0, 2), (1, 3)] {
            pair.ping(from, seq);
            pair.run_with(6_000, |_, sent| {
                assert!(!is_hidden(sent), "over a circuit: {sent:?}");
                true
            });
            assert_eq!(pair.hosts[from].echoes.last(), Some(&seq), "{first} {from}");
        }
        for host in &mut pair.hosts {
            let (now, key) = (pair.now, Identity::from_seed([9; 32]).public());
            assert!(host.edge.forget_met(now, &[key]).is_empty(), "an unknown key");
            assert!(!host.edge.is_hidden(host.peer));
        }
    }
}

#[test]
fn a_circuit_after_the_time_for_both_commands_hides_both_again() {
    let mut pair = met_without_policy();
    forget(&mut pair, 0);
    while pair.hosts[0].edge.poll_met().is_some() {}
    pair.now = pair.now + FORGOTTEN_FOR;
    pair.ping(1, 1);
    pair.run_with(6_000, |_, sent| is_hidden(sent));
    assert_eq!(pair.hosts[1].echoes.last(), Some(&1));
    let a = &mut pair.hosts[0];
    assert!(a.edge.is_hidden(a.peer));
    assert!(a.edge.poll_met().is_some(), "written to disk again");
}

#[test]
fn a_host_that_a_lower_preset_shows_takes_circuits_again_soon() {
    let mut pair = met_without_policy();
    let (now, a) = (pair.now, &mut pair.hosts[0]);
    assert_eq!(a.edge.release_hosts(now, &[]), [a.peer]);
    assert!(!a.edge.is_hidden(a.peer));
    // The other host wants to stay hidden. Until then it can't hide this one again.
    for _ in 0..10 {
        pair.ping(1, 1);
        pair.run_with(2_000, |_, sent| is_hidden(sent));
    }
    let a = &mut pair.hosts[0];
    assert!(a.dropped(DropReason::NotAllowed) > 0);
    assert!(!a.edge.is_hidden(a.peer));
    pair.now = pair.now + RELEASED_FOR;
    // The other host tries ever more rarely.
    for _ in 0..15 {
        pair.ping(1, 2);
        pair.run_with(2_000, |_, sent| is_hidden(sent));
    }
    assert_eq!(pair.hosts[1].echoes.last(), Some(&2));
    let a = &mut pair.hosts[0];
    assert!(a.edge.is_hidden(a.peer));
}

/// While a list is too old, its hosts are gone. The preset may fall before they come again.
#[test]
fn a_lower_preset_shows_hosts_that_were_away_but_none_that_is_kept() {
    for is_away in [false, true] {
        for is_kept in [false, true] {
            let mut pair = met_without_policy();
            let key = Identity::from_seed([2; 32]).public();
            let (now, a) = (pair.now, &mut pair.hosts[0]);
            if is_away {
                a.edge.remove_host(now, a.peer);
            }
            let kept = if is_kept { vec![key] } else { Vec::new() };
            let shown = a.edge.release_hosts(now, &kept);
            assert_eq!(shown.len(), usize::from(!is_away && !is_kept));
            let again = a.edge.add_host(&HostConfig { key, address: AT[1] }).expect("room");
            assert_eq!(a.edge.is_hidden(again), is_kept, "{is_away}");
            assert_eq!(a.edge.poll_met().is_some(), is_kept, "written to disk");
        }
    }
}

#[test]
fn policy_outlives_the_command_and_keeps_its_circuits() {
    let mut pair = met_without_policy();
    let key = Identity::from_seed([2; 32]).public();
    let (now, a) = (pair.now, &mut pair.hosts[0]);
    a.edge.forget_met(now, &[key]);
    pair.hide(0, 3);
    for (from, seq) in [(0, 1), (1, 2)] {
        pair.ping(from, seq);
        pair.run_with(6_000, |_, sent| {
            assert!(is_hidden(sent), "outside circuits: {sent:?}");
            true
        });
        assert_eq!(pair.hosts[from].echoes.last(), Some(&seq));
    }
}

/// A host that left the list is forgotten, too: it comes back in the clear.
#[test]
fn a_host_that_is_in_no_list_is_forgotten() {
    let mut pair = met_without_policy();
    let key = Identity::from_seed([2; 32]).public();
    let (now, a) = (pair.now, &mut pair.hosts[0]);
    a.edge.remove_host(now, a.peer);
    assert!(a.edge.forget_met(now, &[key]).is_empty());
    assert!(a.edge.poll_met().is_none(), "not written after that");
    let again = a.edge.add_host(&HostConfig { key, address: AT[1] }).expect("room");
    assert!(!a.edge.is_hidden(again));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]
    /// The second host always calls over circuits. Whatever happens at the first one, the second is
    /// hidden there if policy says so, or if it was met since the last command to forget it.
    #[test]
    fn a_host_is_hidden_by_policy_or_since_it_was_met(
        steps in proptest::collection::vec(0_u8..6, 1..8),
    ) {
        let (mut pair, mut seq) = (Pair::plain(), 0);
        pair.hide(1, 3);
        let key = Identity::from_seed([2; 32]).public();
        let (mut policy, mut met, mut refused) = (false, false, false);
        for step in steps {
            let (now, a) = (pair.now, &mut pair.hosts[0]);
            match step {
                0 => {
                    (policy, refused) = (true, false);
                    pair.hide(0, 3);
                }
                1 => {
                    policy = false;
                    a.edge.set_hidden(&BTreeMap::new());
                }
                2 => {
                    let was = a.edge.is_hidden(a.peer);
                    prop_assert_eq!(a.edge.forget_met(now, &[key]).len(), usize::from(was));
                    (met, refused) = (false, was && !policy);
                    match policy {
                        true => pair.hide(0, 3),
                        false => a.edge.set_hidden(&BTreeMap::new()),
                    }
                }
                3 => {
                    a.edge.remove_host(now, a.peer);
                    a.peer = a.edge.add_host(&HostConfig { key, address: AT[1] }).expect("room");
                    refused = false;
                    if policy {
                        pair.hide(0, 3);
                    }
                }
                _ => {
                    seq += 1;
                    pair.ping(1, seq);
                    pair.run(12_000);
                    met |= !refused;
                }
            }
            let a = &pair.hosts[0];
            prop_assert_eq!(a.edge.is_hidden(a.peer), policy || met, "{} {}", step, refused);
        }
    }
}
