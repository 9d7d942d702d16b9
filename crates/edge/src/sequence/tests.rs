//! Circuits that keep their order, and bounds.

use super::*;

const HOST: HostId = HostId::from_bits(1);

fn circuit(n: u32) -> CircuitId {
    CircuitId::from_bits(n)
}

fn at(ms: u64) -> Time {
    Time::from_millis(ms)
}

/// Takes packets in and notes in which order they are delivered.
#[derive(Default)]
struct Edge {
    sequences: Sequences,
    delivered: Vec<u32>,
    again: usize,
}

impl Edge {
    fn take(&mut self, ms: u64, on: u32, number: u32) -> Verdict {
        let bytes = number.to_be_bytes();
        let place = ip::StreamNumber { stream: 1, number };
        let verdict = self.sequences.take(at(ms), (HOST, circuit(on)), place, &bytes, false);
        match verdict {
            Verdict::Deliver => self.delivered.push(number),
            Verdict::Held => {}
            Verdict::Duplicate => self.again += 1,
        }
        verdict
    }

    fn released(&mut self) {
        let delivered = &mut self.delivered;
        self.sequences.take_released(|arrivals, buf| {
            for Arrival { host, at, len, .. } in arrivals {
                assert_eq!((*host, *len), (HOST, 4));
                let bytes = buf[*at as usize..][..4].try_into().expect("four bytes");
                delivered.push(u32::from_be_bytes(bytes));
            }
        });
    }

    fn memory(&self) -> usize {
        self.sequences.pool.len()
    }
}

#[test]
fn in_order_nothing_is_copied_and_losses_hold_nothing_up() {
    let mut edge = Edge::default();
    for number in (0..1_000).filter(|n| n % 7 != 0) {
        assert_eq!(edge.take(1, 1, number), Verdict::Deliver);
    }
    for number in 1_000..2_000 {
        assert_eq!(edge.take(1, 2, number), Verdict::Deliver, "a change without a gap");
    }
    assert_eq!((edge.memory(), edge.sequences.poll_timeout()), (0, None));
    assert!(edge.delivered.is_sorted());
    // What seemed lost came late, once.
    assert_eq!(edge.take(2, 1, 994), Verdict::Deliver);
    assert_eq!(edge.sequences.stats(), OrderStats { late: 1, ..OrderStats::default() });
}

#[test]
fn what_overtakes_on_a_new_circuit_waits_for_the_old_one() {
    let mut edge = Edge::default();
    (0..10).for_each(|n| assert_eq!(edge.take(0, 1, n), Verdict::Deliver));
    (14..20).for_each(|n| assert_eq!(edge.take(1, 2, n), Verdict::Held));
    edge.released();
    assert_eq!(edge.delivered.len(), 10);
    // 10 and 12 were lost: circuit 1 keeps its order.
    assert_eq!((edge.take(5, 1, 11), edge.take(5, 1, 13)), (Verdict::Deliver, Verdict::Deliver));
    // What comes before the released ones are taken stays behind them.
    assert_eq!(edge.take(5, 2, 20), Verdict::Held);
    assert_eq!(edge.sequences.poll_timeout(), Some(Time::ZERO));
    edge.released();
    assert_eq!(edge.take(6, 2, 21), Verdict::Deliver);
    let all: Vec<u32> = (0..22).filter(|n| ![10, 12].contains(n)).collect();
    assert_eq!((edge.delivered, edge.sequences.poll_timeout()), (all, None));
    assert_eq!(edge.sequences.pool.count(), 0, "the slots are given back");
}

#[test]
fn where_any_order_will_do_nothing_waits() {
    let mut edge = Edge::default();
    edge.sequences.is_off = true;
    for (on, number) in [(1, 0), (2, 5), (1, 1)] {
        assert_eq!(edge.take(0, on, number), Verdict::Deliver);
    }
    assert_eq!((edge.delivered, edge.sequences.poll_timeout()), (vec![0, 5, 1], None));
}

#[test]
fn what_is_missing_is_given_up_in_time_or_with_its_circuit() {
    for ends in [false, true] {
        let mut edge = Edge::default();
        edge.take(0, 1, 0);
        edge.take(1, 2, 5);
        edge.take(200, 2, 9);
        assert_eq!(edge.sequences.poll_timeout(), Some(at(301)));
        edge.sequences.handle_timeout(at(300));
        edge.released();
        assert_eq!(edge.delivered, [0]);
        match ends {
            true => edge.sequences.circuit_ended(circuit(1)),
            false => edge.sequences.handle_timeout(at(301)),
        }
        edge.released();
        assert_eq!(edge.delivered, [0, 5, 9]);
        assert_eq!(edge.take(400, 1, 3), Verdict::Deliver);
        assert_eq!(edge.sequences.poll_timeout(), None);
    }
}

#[test]
fn a_restarted_sender_is_followed_and_numbers_wrap() {
    let mut edge = Edge::default();
    let last = ip::NUMBERS - 1;
    edge.take(0, 1, last - 1);
    edge.take(0, 2, 1);
    edge.take(0, 1, last);
    edge.take(0, 1, 0);
    edge.released();
    assert_eq!(edge.delivered, [last - 1, last, 0, 1]);
    edge.take(1, 2, 3);
    edge.take(1, 3, 9);
    for number in [500_000, 500_001] {
        edge.take(2, 3, number);
    }
    edge.released();
    assert_eq!(edge.delivered[4..], [3, 9, 500_000, 500_001]);
    assert_eq!(edge.take(3, 3, 500_002), Verdict::Deliver);
    assert_eq!(edge.take(3, 3, 400_000), Verdict::Deliver, "far before");
    assert_eq!(edge.take(3, 3, 400_001), Verdict::Deliver);
    assert_eq!(edge.sequences.stats().late, 0);
}

#[test]
fn memory_is_bounded_and_a_forgotten_host_leaves_none() {
    let mut edge = Edge::default();
    let bytes = [0; SLOT];
    let mut held = 0;
    for host in 0..8 {
        let host = HostId::from_bits(host);
        for number in (0..SPAN as u32).filter(|n| *n != 1) {
            let (on, place) = (circuit(number.min(1)), ip::StreamNumber { stream: 1, number });
            let verdict = edge.sequences.take(at(0), (host, on), place, &bytes, false);
            held += usize::from(verdict == Verdict::Held);
        }
    }
    assert!(edge.memory() <= 32 << 20, "{}", edge.memory());
    assert_eq!(held, SLOTS_MAX);
    edge.sequences.handle_timeout(at(300));
    edge.sequences.take_released(|arrivals, _| assert!(arrivals.len() <= SLOTS_MAX));
    assert_eq!(edge.memory(), 0);
    edge.take(500, 1, 0);
    edge.take(500, 2, 2);
    edge.sequences.forget(HOST);
    assert_eq!(edge.sequences.pool.count(), 0);
    assert_eq!(edge.sequences.poll_timeout(), None);
}

#[test]
fn any_order_on_two_circuits_delivers_each_once_and_those_of_one_circuit_in_order() {
    let mut rng = shoal_crypto::Rng::new([8; 32]);
    for _ in 0..200 {
        let mut edge = Edge::default();
        // Circuits change every so many numbers, and each carries its own in order.
        let mut lines: Vec<std::collections::VecDeque<u32>> = vec![Default::default(); 2];
        for number in 0..400u32 {
            lines[(number / 40) as usize % 2].push_back(number);
        }
        edge.take(0, 0, 0);
        lines[0].pop_front();
        let mut ms = 0;
        while lines.iter().any(|line| !line.is_empty()) {
            let line = rng.below(2) as usize;
            let Some(number) = lines[line].pop_front() else { continue };
            ms += 1;
            edge.sequences.handle_timeout(at(ms));
            edge.take(ms, line as u32, number);
            if rng.below(4) == 0 {
                edge.released();
            }
        }
        edge.sequences.handle_timeout(at(ms + 300));
        edge.released();
        let mut sorted = edge.delivered.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (0..400).collect::<Vec<_>>());
        assert_eq!(edge.again, 0);
    }
}
