//! Seals that are repeated, overlap, or belong to a removed flow; and wrong clocks.

use std::time::Duration;

use crate::common::World;
use shoal_attribution::*;
use shoal_wire::Time;

const FLOW: FlowId = FlowId(*b"flow of the test");
const SOURCE: u64 = 9;
const W: u64 = 1;

fn packet(seq: u64) -> Vec<u8> {
    seq.to_be_bytes().repeat(20)
}

/// A sender of numbered packets, which closes windows on demand.
struct Sender {
    pool: Pool,
    stamper: Stamper,
    next: u64,
}

impl Sender {
    /// Parts of a window of `count` packets. The seal is last; a large window's seal comes twice.
    fn window(&mut self, count: u64) -> Vec<Vec<u8>> {
        for seq in self.next..self.next + count {
            self.stamper.handle_packet(&packet(seq), &mut self.pool, W, Time::ZERO).unwrap();
        }
        self.next += count;
        self.stamper.flush(&mut self.pool, W, Time::ZERO).unwrap();
        core::iter::from_fn(|| self.stamper.poll_transmit()).collect()
    }
}

fn one_window(count: u64) -> (Sender, Vec<Vec<u8>>) {
    let signer = World::new(2, 3).join("alice", 7);
    let mut config = StamperConfig::new(FLOW);
    config.delay_max = Duration::from_secs(9);
    config.idle = Duration::from_secs(9);
    let pool = Pool::new(signer, 1, [count as u8; 32], W, Time::ZERO);
    let stamper = Stamper::new(config, [3; 32], Time::ZERO);
    let mut sender = Sender { pool, stamper, next: 0 };
    let parts = sender.window(count);
    (sender, parts)
}

fn verifier() -> Verifier {
    let group = World::new(2, 3).verifier;
    let mut verifier = Verifier::new(VerifierConfig::default(), group, [2; 32]);
    verifier.add_flow(FLOW, SOURCE, Time::ZERO).unwrap();
    verifier
}

/// Seals of large windows are sent twice; both copies may arrive before verification.
#[test]
fn a_seal_that_came_twice_is_verified_once() {
    let (_, parts) = one_window(1_024);
    let mut v = verifier();
    let (copy, first) = parts.split_last().unwrap();
    first.iter().for_each(|part| v.handle_part(SOURCE, part, Time::ZERO).unwrap());
    assert_eq!(Some(copy), first.last());
    assert_eq!(v.handle_part(SOURCE, copy, Time::ZERO), Err(StampRefusal::Replayed));
    assert_eq!(v.work(64), 1);
}

/// Two seals of one member, by two stampers of the same flow, wait at the same time.
#[test]
fn windows_that_overlap_are_not_both_believed() {
    let seal_from = |first| {
        let (mut sender, _) = one_window(first);
        sender.window(20).remove(0)
    };
    let mut v = verifier();
    // Packets 10 to 29, and 20 to 39.
    for first in [10, 20] {
        v.handle_part(SOURCE, &seal_from(first), Time::ZERO).unwrap();
    }
    v.work(64);
    assert_eq!(v.refused(StampRefusal::Replayed), 1);
    for seq in [15, 25, 35] {
        v.handle_packet(&FLOW, seq, &packet(seq), Time::ZERO).unwrap();
    }
    let events: Vec<VerifierEvent> = core::iter::from_fn(|| v.poll_event()).collect();
    let valid = |first| VerifierEvent::Valid { flow: FLOW, first, count: 1 };
    assert_eq!(events, [valid(15), valid(25)]);
    assert_eq!(v.waiting(&FLOW), 1);
}

#[test]
fn a_flow_that_is_added_again_goes_on_where_it_was() {
    let (mut sender, parts) = one_window(20);
    let mut v = verifier();
    let play = |v: &mut Verifier| {
        let taken = (0..20).filter(|n| v.handle_packet(&FLOW, *n, &packet(*n), Time::ZERO).is_ok());
        let taken = taken.count();
        let _ = v.handle_part(SOURCE, &parts[0], Time::ZERO);
        v.work(1);
        (taken, core::iter::from_fn(|| v.poll_event()).count())
    };
    assert_eq!(play(&mut v), (20, 1));
    v.remove_flow(&FLOW, Time::ZERO);
    v.add_flow(FLOW, SOURCE, Time::ZERO).unwrap();
    assert_eq!(play(&mut v), (0, 0));
    // The next packets are accepted.
    v.handle_packet(&FLOW, 20, &packet(20), Time::ZERO).unwrap();
    v.handle_part(SOURCE, &sender.window(1)[0], Time::ZERO).unwrap();
    v.work(1);
    assert_eq!(v.poll_event(), Some(VerifierEvent::Valid { flow: FLOW, first: 20, count: 1 }));
    // The table of removed flows' last packet numbers is bounded in size and in time.
    let mut v = verifier();
    for n in 0..5_000u64 {
        let flow = FlowId([n.to_be_bytes(), [7; 8]].concat().try_into().unwrap());
        v.add_flow(flow, SOURCE, Time::from_millis(n)).unwrap();
        v.remove_flow(&flow, Time::from_millis(n));
    }
    assert!(v.ended() <= 1_024, "{}", v.ended());
    v.remove_flow(&FLOW, Time::from_millis(1_000_000));
    assert_eq!(v.ended(), 1);
}

/// A seal of a removed flow waits for verification when a flow with the same id is added.
#[test]
fn a_waiting_seal_of_a_removed_flow_does_not_count_for_its_successor() {
    let (_, parts) = one_window(20);
    let mut v = verifier();
    v.handle_part(SOURCE, &parts[0], Time::ZERO).unwrap();
    v.remove_flow(&FLOW, Time::ZERO);
    v.add_flow(FLOW, SOURCE, Time::ZERO).unwrap();
    v.handle_part(SOURCE, &parts[0], Time::ZERO).unwrap();
    assert_eq!(v.work(1), 1);
    v.handle_packet(&FLOW, 3, &packet(3), Time::ZERO).unwrap();
    // The first verdict seals nothing in the new flow.
    assert_eq!(v.poll_event(), None);
    assert_eq!(v.work(1), 1);
    assert_eq!(v.poll_event(), Some(VerifierEvent::Valid { flow: FLOW, first: 3, count: 1 }));
}

#[test]
fn a_clock_that_was_wrong_can_be_set() {
    let (_, parts) = one_window(20);
    let hour = 3_600_000;
    let mut v = verifier();
    v.set_clock(hour);
    assert_eq!(v.handle_part(SOURCE, &parts[0], Time::ZERO), Err(StampRefusal::Time));
    v.set_clock(0);
    assert_eq!(v.handle_part(SOURCE, &parts[0], Time::ZERO), Ok(()));
    let (mut sender, _) = one_window(20);
    sender.stamper.set_clock(hour);
    let Ok(StampPart::Seal(seal)) = StampPart::decode(&sender.window(1)[0]) else {
        panic!("expected a seal")
    };
    assert_eq!(seal.time_ms, hour);
}
