//! Tests of single parts of the simulator.

use core::time::Duration;

use shoal_wire::Time;

use super::adaptive::AdaptiveThreshold;
use super::line::{BottleneckLine, ModelPacket};
use super::next_flush;
use super::receiver::RenoReceiver;
use super::resequencer::Resequencer;
use super::sender::RenoSender;

const MS: Duration = Duration::from_millis(1);

fn at(ms: u64) -> Time {
    Time::from_millis(ms)
}

/// All packets that the sender may send.
fn sent(sender: &mut RenoSender, now: Time) -> Vec<u64> {
    core::iter::from_fn(|| sender.poll_transmit(now)).collect()
}

/// A sender with a window of 8 that sent packets 7 to 14.
fn grown(dupthresh: u32) -> RenoSender {
    let mut sender = RenoSender::new(dupthresh, false);
    sent(&mut sender, at(0));
    for number in 1..=7 {
        sender.handle_ack(at(100), number);
        sent(&mut sender, at(100));
    }
    assert_eq!(sender.window(), 8.0);
    sender
}

#[test]
fn slow_start_adds_one_for_each_acknowledgement() {
    let mut sender = RenoSender::new(3, false);
    assert_eq!(sent(&mut sender, at(0)), [0]);
    sender.handle_ack(at(50), 1);
    assert_eq!(sent(&mut sender, at(50)), [1, 2]);
    sender.handle_ack(at(100), 2);
    sender.handle_ack(at(100), 3);
    assert_eq!(sent(&mut sender, at(100)), [3, 4, 5, 6]);
}

#[test]
fn the_threshold_of_duplicates_halves_the_window_once() {
    let mut sender = grown(3);
    sender.handle_ack(at(200), 7);
    sender.handle_ack(at(200), 7);
    assert_eq!(sent(&mut sender, at(200)), []);
    sender.handle_ack(at(200), 7);
    assert_eq!(sender.halved_window(), Some(8.0));
    assert_eq!(sent(&mut sender, at(200)), [7]);
    // Fast recovery: a window of 4 plus 3 duplicates admits no packet. Two more duplicates admit
    // one.
    sender.handle_ack(at(201), 7);
    assert_eq!(sent(&mut sender, at(201)), []);
    sender.handle_ack(at(201), 7);
    assert_eq!(sent(&mut sender, at(201)), [15]);
    sender.handle_ack(at(210), 8);
    assert_eq!(sender.window(), 4.0);
    // Duplicates for packets sent before the retransmission trigger no further one.
    for _ in 0..5 {
        sender.handle_ack(at(211), 8);
    }
    assert_eq!((sender.fast_retransmits(), sender.window()), (1, 4.0));
    // Congestion avoidance: each acknowledgement adds 1/window.
    sender.handle_ack(at(220), 9);
    assert_eq!(sender.window(), 4.25);
}

#[test]
fn old_acknowledgements_change_nothing() {
    let mut sender = grown(1);
    for number in 0..7 {
        sender.handle_ack(at(200), number);
    }
    assert_eq!((sender.fast_retransmits(), sender.window()), (0, 8.0));
}

#[test]
fn the_timeout_is_one_second_and_doubles() {
    let mut sender = grown(3);
    let due = sender.poll_timeout().unwrap();
    assert_eq!(due, at(1_100));
    sender.handle_timeout(at(1_099));
    assert_eq!((sender.timeouts(), sender.window()), (0, 8.0));
    sender.handle_timeout(due);
    assert_eq!((sender.timeouts(), sender.window()), (1, 1.0));
    assert_eq!(sent(&mut sender, due), [7]);
    assert_eq!(sender.poll_timeout(), Some(due + 2_000 * MS));
}

#[test]
fn a_threshold_follows_the_lengths_of_reordering() {
    let mut adaptive = AdaptiveThreshold::new(3);
    assert_eq!(adaptive.threshold(), 3);
    // Packets 1 to 10 overtake packet 0.
    for number in 1..=10 {
        assert_eq!(adaptive.arrived(0, number, false), None);
    }
    adaptive.advance(0, 11);
    assert_eq!(adaptive.threshold(), 11);
    // Two packets overtake each of 200 late ones. The threshold covers nine tenths of all lengths,
    // so the single length of 10 no longer counts.
    for round in 0..200 {
        let oldest = 11 + round * 3;
        adaptive.arrived(oldest, oldest + 1, false);
        adaptive.arrived(oldest, oldest + 2, false);
        adaptive.advance(oldest, oldest + 3);
    }
    assert_eq!(adaptive.threshold(), 3);
    // Each spurious retransmission raises the share of lengths that the threshold covers. In the
    // end it covers the longest. A timeout lowers the share.
    for number in 0..10 {
        adaptive.retransmitted(number, 8.0);
        assert_eq!(adaptive.arrived(700, number + 1, true), None, "another packet");
        assert_eq!(adaptive.arrived(700, number, true), Some(8.0));
    }
    assert_eq!(adaptive.threshold(), 11);
    adaptive.timed_out();
    assert_eq!(adaptive.threshold(), 3);
}

#[test]
fn a_needlessly_halved_window_grows_back_in_slow_start() {
    let mut sender = RenoSender::new(3, true);
    sent(&mut sender, at(0));
    for number in 1..=7 {
        sender.handle_sack(number - 1, false);
        sender.handle_ack(at(100), number);
        sent(&mut sender, at(100));
    }
    for number in [8, 9, 10] {
        sender.handle_sack(number, false);
        sender.handle_ack(at(200), 7);
    }
    assert_eq!((sender.halved_window(), sender.window()), (Some(8.0), 4.0));
    sender.handle_sack(7, false);
    sender.handle_ack(at(201), 11);
    sender.handle_sack(7, true);
    // Slow start: each acknowledgement adds 1, up to 8.
    for number in 12..=15 {
        sender.handle_sack(number - 1, false);
        sender.handle_ack(at(210), number);
    }
    assert_eq!(sender.window(), 8.0);
}

#[test]
fn a_receiver_awaits_the_first_missing_packet() {
    let mut receiver = RenoReceiver::default();
    let answers = [1, 2, 0, 0, 4, 3, 3].map(|number| receiver.handle_data(number));
    assert_eq!(answers, [0, 0, 3, 3, 3, 5, 5]);
    assert_eq!(receiver.delivered(), 5);
}

#[test]
fn a_line_sends_one_packet_after_the_other() {
    let mut line = BottleneckLine::new(2 * MS);
    assert_eq!(line.take(at(10)), (0, at(12)));
    assert_eq!(line.take(at(10)), (1, at(14)));
    assert_eq!(line.take(at(20)), (2, at(22)));
}

/// Packets that pass the resequencer, for a hold of 10 ms. Arrivals and results are pairs of a time
/// in milliseconds and a position.
fn resequenced(arrivals: &[(u64, u64)]) -> Vec<(u64, u64)> {
    let mut resequencer = Resequencer::new(10 * MS);
    let mut passed = Vec::new();
    let mut over = Vec::new();
    let end = arrivals.iter().map(|&(ms, _)| ms).max().unwrap_or(0) + 20;
    for ms in 0..=end {
        for &(_, order) in arrivals.iter().filter(|(when, _)| *when == ms) {
            let packet = ModelPacket { number: order, order, sent: at(0), cause: None };
            over.extend(resequencer.take(at(ms), packet));
            while let Some(packet) = resequencer.poll(at(ms)) {
                passed.push((ms, packet.order));
            }
        }
        if over.contains(&at(ms)) {
            while let Some(packet) = resequencer.poll(at(ms)) {
                passed.push((ms, packet.order));
            }
        }
    }
    passed
}

#[test]
fn order_is_restored_within_the_hold() {
    let passed = resequenced(&[(0, 1), (1, 3), (5, 0), (6, 2)]);
    assert_eq!(passed, [(5, 0), (5, 1), (6, 2), (6, 3)]);
}

#[test]
fn a_hold_ends_and_what_comes_late_passes_at_once() {
    let passed = resequenced(&[(0, 1), (2, 3), (15, 0), (16, 2), (17, 4)]);
    assert_eq!(passed, [(10, 1), (12, 3), (15, 0), (16, 2), (17, 4)]);
}

#[test]
fn flushes_keep_their_phase() {
    assert_eq!(next_flush(at(0), at(3), 10 * MS), at(3));
    assert_eq!(next_flush(at(3), at(3), 10 * MS), at(13));
    assert_eq!(next_flush(at(14), at(3), 10 * MS), at(23));
}
