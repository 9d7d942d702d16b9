//! Circuits that keep their order, and bounds.

use super::*;

const HOST: HostId = HostId::from_bits(1);

fn circuit(n: u32) -> CircuitId {
    CircuitId::from_bits(n)
}

fn at(ms: u64) -> Time {
    Time::from_millis(ms)
}

/// Handles packets and records the order in which they are delivered.
#[derive(Default)]
struct OrderRig {
    sequences: PacketReordering,
    delivered: Vec<u32>,
    again: usize,
}

impl OrderRig {
    fn take(&mut self, ms: u64, on: u32, number: u32) -> OrderVerdict {
        let bytes = number.to_be_bytes();
        let is_new = self.sequences.known.all().next().is_none();
        let flags = if is_new { ip::FIRST } else { 0 };
        let label = PacketLabel::new(ip::StreamNumber { stream: 1, number }, flags);
        let verdict = self.sequences.take(at(ms), (HOST, circuit(on)), label, &bytes, false);
        match verdict {
            OrderVerdict::Deliver => self.delivered.push(number),
            OrderVerdict::Held => {}
            OrderVerdict::Duplicate => self.again += 1,
        }
        verdict
    }

    fn released(&mut self) {
        let delivered = &mut self.delivered;
        self.sequences.take_released(|arrivals, buf| {
            for PacketArrival { host, at, len, .. } in arrivals {
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
    let mut edge = OrderRig::default();
    for number in (0..1_000).filter(|n| n % 7 != 0) {
        assert_eq!(edge.take(1, 1, number), OrderVerdict::Deliver);
    }
    for number in 1_000..2_000 {
        assert_eq!(
            edge.take(1, 2, number),
            OrderVerdict::Deliver,
            "a change of circuits without a gap"
        );
    }
    assert_eq!((edge.memory(), edge.sequences.poll_timeout()), (0, None));
    assert!(edge.delivered.is_sorted());
    // A packet that seemed lost came late, once.
    assert_eq!(edge.take(2, 1, 994), OrderVerdict::Deliver);
    assert_eq!(edge.sequences.stats(), OrderStats { late: 1, ..OrderStats::default() });
}

#[test]
fn what_overtakes_on_a_new_circuit_waits_for_the_old_one() {
    let mut edge = OrderRig::default();
    (0..10).for_each(|n| assert_eq!(edge.take(0, 1, n), OrderVerdict::Deliver));
    (14..20).for_each(|n| assert_eq!(edge.take(1, 2, n), OrderVerdict::Held));
    edge.released();
    assert_eq!(edge.delivered.len(), 10);
    // Packets 10 and 12 were lost, since circuit 1 keeps its order. Packet 13 has those of circuit
    // 2 right behind it.
    assert_eq!(
        (edge.take(5, 1, 11), edge.take(5, 1, 13)),
        (OrderVerdict::Deliver, OrderVerdict::Held)
    );
    // A packet that comes before the released ones are taken stays behind them.
    assert_eq!(edge.take(5, 2, 20), OrderVerdict::Held);
    assert_eq!(edge.sequences.poll_timeout(), Some(Time::ZERO));
    edge.released();
    assert_eq!(edge.take(6, 2, 21), OrderVerdict::Deliver);
    let all: Vec<u32> = (0..22).filter(|n| ![10, 12].contains(n)).collect();
    assert_eq!((edge.delivered, edge.sequences.poll_timeout()), (all, None));
    assert_eq!(edge.sequences.pool.count(), 0, "all slots are free again");
}

#[test]
fn where_any_order_will_do_nothing_waits() {
    let mut edge = OrderRig::default();
    edge.sequences.is_off = true;
    for (on, number) in [(1, 0), (2, 5), (1, 1)] {
        assert_eq!(edge.take(0, on, number), OrderVerdict::Deliver);
    }
    assert_eq!((edge.delivered, edge.sequences.poll_timeout()), (vec![0, 5, 1], None));
}

#[test]
fn what_is_missing_is_given_up_in_time_or_with_its_circuit() {
    for ends in [false, true] {
        let mut edge = OrderRig::default();
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
        assert_eq!(edge.take(400, 1, 3), OrderVerdict::Deliver);
        assert_eq!(edge.sequences.poll_timeout(), None);
    }
}

#[test]
fn a_restarted_sender_is_followed_and_numbers_wrap() {
    let mut edge = OrderRig::default();
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
    assert_eq!(edge.take(3, 3, 500_002), OrderVerdict::Deliver);
    assert_eq!(edge.take(3, 3, 400_000), OrderVerdict::Deliver, "far before");
    assert_eq!(edge.take(3, 3, 400_001), OrderVerdict::Deliver);
    assert_eq!(edge.sequences.stats().late, 0);
    assert_eq!(edge.take(4, 5, 400_003), OrderVerdict::Held, "the numbers continue from here");
}

#[test]
fn the_first_of_those_that_wait_is_known_though_it_came_last() {
    let mut edge = OrderRig::default();
    edge.take(0, 1, 0);
    assert_eq!(edge.take(1, 2, 10), OrderVerdict::Held);
    assert_eq!(edge.take(2, 1, 3), OrderVerdict::Deliver, "before the waiting packet");
    assert_eq!(edge.take(3, 2, 7), OrderVerdict::Held);
    assert_eq!(edge.take(4, 1, 8), OrderVerdict::Held, "another packet before it is missing");
    edge.sequences.handle_timeout(at(301));
    edge.released();
    assert_eq!(edge.delivered, [0, 3, 7, 8, 10]);
}

#[test]
fn memory_is_bounded_and_a_forgotten_host_leaves_none() {
    let mut edge = OrderRig::default();
    let bytes = [0; SLOT];
    let mut held = 0;
    for host in 0..8 {
        let host = HostId::from_bits(host);
        for number in (0..SPAN as u32).filter(|n| *n != 1) {
            let on = circuit(number.min(1));
            let label = PacketLabel::new(ip::StreamNumber { stream: 1, number }, 0);
            let verdict = edge.sequences.take(at(0), (host, on), label, &bytes, false);
            held += usize::from(verdict == OrderVerdict::Held);
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
        let mut edge = OrderRig::default();
        // The circuit changes after every 40 numbers. Each circuit keeps its order.
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

const HOLD: Duration = Duration::from_millis(20);

/// Reference model of one stream: sets of numbers, without rings, records or slots.
#[derive(Default)]
struct StreamModel {
    came: std::collections::BTreeMap<u32, u64>,
    gone: std::collections::BTreeSet<u32>,
}

impl StreamModel {
    /// Time since when a number is missed: the arrival of the first packet behind it.
    fn missed_since(&self, number: u32) -> Option<u64> {
        self.came.range(number + 1..).map(|(_, ms)| *ms).min()
    }

    /// Records a delivery. No earlier packet that may still come may be missing.
    fn delivered(&mut self, ms: u64, number: u32) {
        assert!(self.gone.insert(number), "packet {number} twice");
        let missing = (0..number).filter(|before| !self.gone.contains(before));
        for before in missing {
            let since = self.missed_since(before).expect("a later packet came");
            assert!(ms >= since + 20, "{before} was given up {} ms after {since}", ms - since);
        }
    }

    /// Checks that every waiting packet waits for a missing one.
    fn check_waiting(&self, ms: u64) {
        let Some(first) = self.came.keys().find(|number| !self.gone.contains(number)) else {
            return;
        };
        let is_missed = |before: u32| {
            let late = self.came.contains_key(&before);
            !late && self.missed_since(before).is_some_and(|since| ms < since + 20 + 1)
        };
        assert!((0..*first).any(is_missed), "packet {first} waits for nothing at {ms}");
    }
}

/// Packets in random order with losses, on a circuit with mixes. Real mixes reorder less.
#[test]
fn each_gap_is_waited_for_as_long_as_it_should_be_and_no_longer() {
    let mut rng = shoal_crypto::Rng::new([6; 32]);
    for round in 0..300 {
        let (mut edge, mut model) = (OrderRig::default(), StreamModel::default());
        edge.sequences.set_hold(circuit(1), HOLD);
        let spread = [3, 15, 40, 60][round % 4];
        let gap = [1, 3, 30][round % 3];
        let mut arrivals = vec![(0, 0)];
        for number in 1..200 {
            let sent = u64::from(number) * gap / 4;
            if rng.below(8) != 0 {
                arrivals.push((sent + rng.below(spread), number));
            }
        }
        arrivals.sort_unstable();
        let mut arrivals = arrivals.into_iter().peekable();
        for ms in 0..2_000 {
            let mut shown = edge.delivered.len();
            while let Some((_, number)) = arrivals.next_if(|(at, _)| *at == ms) {
                model.came.insert(number, ms);
                edge.take(ms, 1, number);
            }
            if rng.below(3) != 0 {
                edge.released();
            }
            if edge.sequences.poll_timeout().is_some_and(|over| over <= at(ms)) {
                edge.sequences.handle_timeout(at(ms));
                edge.released();
            }
            while let Some(number) = edge.delivered.get(shown) {
                model.delivered(ms, *number);
                shown += 1;
            }
            model.check_waiting(ms);
        }
        assert_eq!(model.gone.len(), model.came.len());
        assert_eq!((edge.sequences.held, edge.sequences.pool.count()), (0, 0));
        assert_eq!(edge.sequences.poll_timeout(), None);
        let inverted = edge.delivered.windows(2).any(|two| two[1] < two[0]);
        assert_eq!(inverted, edge.sequences.stats().late > 0);
    }
}

#[test]
fn where_circuits_of_mixes_change_the_new_one_waits_and_the_old_one_tells_what_is_lost() {
    let mut edge = OrderRig::default();
    edge.sequences.set_hold(circuit(1), HOLD);
    edge.sequences.set_hold(circuit(2), HOLD);
    edge.take(0, 1, 0);
    // Packets 1 to 9 go over the first circuit, 10 to 19 over the second. Packets 3, 8 and 12 are
    // lost.
    for number in [11, 10, 15, 13, 14] {
        assert_eq!(edge.take(1, 2, number), OrderVerdict::Held);
    }
    assert_eq!(edge.sequences.poll_timeout(), Some(at(321)), "300 ms plus a hold");
    edge.take(5, 1, 1);
    edge.take(6, 1, 4);
    assert_eq!(
        edge.sequences.poll_timeout(),
        Some(at(26)),
        "packet 2 is given up by the first circuit's hold"
    );
    edge.take(7, 1, 2);
    edge.released();
    edge.take(9, 1, 9);
    edge.take(9, 1, 6);
    edge.take(9, 1, 7);
    edge.take(10, 1, 5);
    edge.sequences.handle_timeout(at(25));
    edge.released();
    assert_eq!(edge.delivered, [0, 1, 2]);
    edge.sequences.handle_timeout(at(26));
    edge.released();
    assert_eq!(edge.delivered, [0, 1, 2, 4, 5, 6, 7]);
    assert_eq!(edge.sequences.poll_timeout(), Some(at(29)));
    edge.sequences.handle_timeout(at(29));
    edge.released();
    // On the second circuit, packet 12 has been missing since the beginning, so its time is over,
    // too.
    assert_eq!(edge.delivered[7..], [9, 10, 11, 13, 14, 15]);
    assert_eq!((edge.sequences.poll_timeout(), edge.sequences.stats().late), (None, 0));
}

#[test]
fn a_circuit_that_ends_takes_with_it_what_is_missing_on_it_alone() {
    let mut edge = OrderRig::default();
    for on in [1, 2] {
        edge.sequences.set_hold(circuit(on), HOLD);
    }
    edge.take(0, 1, 0);
    edge.take(1, 1, 2);
    edge.take(1, 2, 4);
    edge.take(1, 2, 7);
    edge.take(1, 2, 6);
    edge.sequences.circuit_ended(circuit(1));
    edge.released();
    assert_eq!(edge.delivered, [0, 2, 4], "packet 5 may still come on the second circuit");
    assert_eq!(edge.sequences.poll_timeout(), Some(at(21)));
    edge.take(2, 2, 5);
    edge.released();
    assert_eq!(edge.delivered[3..], [5, 6, 7]);
    edge.sequences.circuit_ended(circuit(2));
    assert_eq!(edge.take(3, 3, 9), OrderVerdict::Deliver, "no circuit can bring packet 8");
}
