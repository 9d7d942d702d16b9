//! An attacker without a key copies frames, challenges and answers, and is faster than the
//! originals.

use core::time::Duration;
use std::net::SocketAddr;

use crate::support::{FULL, Net, Race, socket};
use shoal_wire::{Address, SizeClass};

const H1: usize = 0;
const R1: usize = 1;
const R2: usize = 2;
const H2: usize = 3;

const SMALL: usize = SizeClass::Small.frame_len();
/// Cells per millisecond from h2 to h1.
const RATE: usize = 4;

fn at(node: usize) -> Address {
    [Address::new(1, 1), Address::new(1, 0), Address::new(2, 0), Address::new(2, 1)][node]
}

/// A host and its router, a second router and its host.
fn net(workers: u8) -> Net {
    let links = [(H1, R1), (R1, R2), (H2, R2)];
    let change = |config: &mut shoal_relay::RelayConfig| {
        (config.session.workers, config.session.lanes) = (workers, 6);
    };
    let mut net = Net::with(&[at(H1), at(R1), at(R2), at(H2)], &links, change);
    net.run(Duration::from_secs(5));
    net
}

fn endpoint(net: &Net, here: usize, there: usize) -> Option<SocketAddr> {
    let mut links = net.nodes[here].relay.links();
    links.find(|link| link.address == at(there)).expect("a link").endpoint
}

fn is_up(net: &Net, here: usize, there: usize) -> bool {
    net.nodes[here].relay.links().any(|l| l.address == at(there) && l.up_since.is_some())
}

/// Both hosts send for this many milliseconds. Returns the share of the cells that reached h1, and
/// the milliseconds during which the link from `here` to `there` was down.
fn talk(net: &mut Net, millis: usize, (here, there): (usize, usize)) -> (f64, usize) {
    net.nodes[H1].cells.clear();
    let mut down = 0;
    for _ in 0..millis {
        net.send(H1, at(H2), 1, 1);
        net.send(H2, at(H1), RATE, 2);
        net.run(Duration::from_millis(1));
        down += usize::from(!is_up(net, here, there));
        net.nodes[H2].cells.clear();
    }
    (net.nodes[H1].cells.len() as f64 / (millis * RATE) as f64, down)
}

#[test]
fn copied_challenges_and_answers_turn_no_traffic_to_a_third_machine() {
    let victim = socket(77);
    for (workers, pair) in [(1, (H1, R1)), (3, (H1, R1)), (1, (R1, R2)), (3, (R1, R2))] {
        let mut net = net(workers);
        net.race = Some(Race::new(pair, victim));
        let (share, down) = talk(&mut net, 5_000, (pair.1, pair.0));
        let bytes = net.race.as_ref().map_or(0, |race| race.bytes);
        let sent = 5_000 * RATE * FULL;
        println!(
            "{workers} workers, {pair:?}: {bytes} of {sent} bytes to the victim; {:.1}% of the \
             cells got through; down for {down} ms",
            share * 100.0
        );
        assert!(bytes < 100_000, "{bytes}");
        assert!(share > 0.98 && down == 0, "{share} {down}");
        assert_eq!(endpoint(&net, pair.1, pair.0), Some(socket(pair.0)));
    }
}

#[test]
fn an_endpoint_that_carries_only_small_frames_is_abandoned() {
    let victim = socket(77);
    for (workers, pair) in [(1, (H1, R1)), (3, (R1, R2))] {
        let mut net = net(workers);
        // Only reports can reveal the attack, since challenges to the former endpoint are lost.
        let race = Race::new(pair, victim);
        net.race = Some(Race { copies_all: true, loses_small: true, ..race });
        let _moved = talk(&mut net, 400, (pair.1, pair.0));
        let relayed = net.race.as_ref().map_or(0, |race| race.bytes);
        net.race.iter_mut().for_each(|race| race.copies_all = false);
        let _left = talk(&mut net, 5_000, (pair.1, pair.0));
        let bytes = net.race.as_ref().map_or(0, |race| race.bytes) - relayed;
        let sent = 5_000 * RATE * FULL;
        println!(
            "{workers} workers, {pair:?}: {relayed} bytes were passed on, {bytes} of {sent} lost"
        );
        assert!(bytes < sent / 8, "{bytes}");
    }
}

#[test]
fn a_neighbour_that_moves_has_the_full_speed_after_a_moment() {
    for workers in [1, 3] {
        let mut net = net(workers);
        let _before = talk(&mut net, 200, (R1, H1));
        net.nodes[H1].at = socket(50);
        let (share, down) = talk(&mut net, 1_000, (R1, H1));
        println!("{workers} workers: {:.1}% in the first second", share * 100.0);
        assert_eq!(down, 0);
        assert_eq!(endpoint(&net, R1, H1), Some(socket(50)));
        let (share, down) = talk(&mut net, 1_000, (R1, H1));
        assert!(share > 0.999 && down == 0, "{share} {down}");
    }
}

#[test]
fn a_neighbour_that_moves_after_an_attack_is_followed_within_a_second() {
    let mut net = net(1);
    net.race = Some(Race::new((H1, R1), socket(77)));
    let _attack = talk(&mut net, 1_000, (R1, H1));
    net.race = None;
    let _rest = talk(&mut net, 100, (R1, H1));
    net.nodes[H1].at = socket(50);
    let mut waited = 0;
    while endpoint(&net, R1, H1) != Some(socket(50)) && waited < 3_000 {
        let _talk = talk(&mut net, 10, (R1, H1));
        waited += 10;
    }
    println!("followed after {waited} ms");
    assert!(waited <= 1_000);
}

#[test]
fn after_one_noticed_race_a_victim_gets_only_small_frames() {
    let victim = socket(77);
    let mut net = net(1);
    net.race = Some(Race::new((H1, R1), victim));
    let _first = talk(&mut net, 500, (R1, H1));
    let before = net.race.as_ref().map_or(0, |race| race.bytes);
    let _later = talk(&mut net, 2_000, (R1, H1));
    let bytes = net.race.as_ref().map_or(0, |race| race.bytes) - before;
    println!("{before} bytes at first, then {bytes} in two seconds");
    assert!(bytes <= 20 * SMALL, "{bytes}");
}

#[test]
fn a_copied_handshake_turns_no_traffic_to_a_third_machine() {
    let victim = socket(77);
    for (workers, pair) in [(1, (H1, R1)), (3, (H1, R1)), (1, (R1, R2))] {
        let mut net = net(workers);
        let race = Race::new(pair, victim);
        net.race = Some(Race { copies_all: true, ..race });
        net.rekey_all(pair.0);
        let _carried = talk(&mut net, 30, (pair.1, pair.0));
        net.race.iter_mut().for_each(|race| race.copies_all = false);
        let carried = net.race.as_ref().map_or(0, |race| race.bytes);
        let (share, down) = talk(&mut net, 3_000, (pair.1, pair.0));
        let bytes = net.race.as_ref().map_or(0, |race| race.bytes) - carried;
        println!(
            "{workers} workers, {pair:?}: {carried} bytes were carried, then {bytes} to the \
             victim; {:.1}% of the cells got through; down for {down} ms",
            share * 100.0
        );
        assert!(bytes < 100_000, "{bytes}");
        assert!(share > 0.98 && down == 0, "{share} {down}");
    }
}
