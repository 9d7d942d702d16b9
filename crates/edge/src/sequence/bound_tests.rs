//! Bounds of the reordering: streams, hosts and memory, and which streams are forgotten.

use super::known::{STREAMS_HOST_MAX, STREAMS_MAX};
use super::*;

const MIXED: CircuitId = CircuitId::from_bits(1);
const HOLD: Duration = Duration::from_millis(50);

fn host(number: u32) -> HostId {
    HostId::from_bits(number)
}

fn at(ms: u64) -> Time {
    Time::from_millis(ms)
}

fn sequences() -> PacketReordering {
    let mut sequences = PacketReordering::default();
    sequences.set_hold(MIXED, HOLD);
    sequences
}

/// A full packet of a host's stream.
fn take(
    sequences: &mut PacketReordering,
    ms: u64,
    from: u32,
    stream: u16,
    number: u32,
) -> OrderVerdict {
    let known = &sequences.known;
    let is_it = |at: u16| known.streams[usize::from(at)].stream == stream;
    let is_known = known.streams_of(host(from)).any(is_it);
    let flags = if is_known { 0 } else { ip::FIRST };
    let label = PacketLabel::new(ip::StreamNumber { stream, number }, flags);
    sequences.take(at(ms), (host(from), MIXED), label, &[7; SLOT], false)
}

/// Number of released packets of each of the first `hosts` hosts.
fn released(sequences: &mut PacketReordering, hosts: u32) -> Vec<usize> {
    let mut counts = vec![0; hosts as usize];
    sequences.take_released(|all, _| {
        all.iter().for_each(|arrival| counts[arrival.host.bits() as usize] += 1);
    });
    counts
}

/// Checks that all counts and lists agree.
fn check(sequences: &PacketReordering) {
    let all: Vec<u16> = sequences.known.all().collect();
    let stream = |at: &u16| &sequences.known.streams[usize::from(*at)];
    assert_eq!(all.iter().map(|at| stream(at).held as usize).sum::<usize>(), sequences.held);
    let waiting = all.iter().filter(|at| stream(at).held > 0).count();
    assert_eq!(sequences.deadlines.len(), waiting);
    let slots = all.iter().map(|at| stream(at).held + stream(at).released);
    assert_eq!(slots.sum::<u32>() as usize, sequences.pool.count());
    assert!(sequences.held <= HELD_MAX && sequences.pool.len() <= 32 << 20);
    assert!(all.len() <= STREAMS_MAX);
}

#[test]
fn streams_wait_for_their_own_packets_alone() {
    let mut sequences = sequences();
    for stream in [0, 1, 2] {
        assert_eq!(take(&mut sequences, 0, 0, stream, 5), OrderVerdict::Deliver);
    }
    assert_eq!(take(&mut sequences, 1, 0, 1, 7), OrderVerdict::Held);
    assert_eq!(take(&mut sequences, 1, 0, 2, 6), OrderVerdict::Deliver);
    assert_eq!(take(&mut sequences, 1, 1, 1, 7), OrderVerdict::Deliver, "stream of another host");
    assert_eq!(take(&mut sequences, 1, 0, 0, 9), OrderVerdict::Deliver, "stream 0 has no order");
    assert_eq!(take(&mut sequences, 1, 0, 0, 8), OrderVerdict::Deliver);
    assert_eq!(take(&mut sequences, 2, 0, 1, 7), OrderVerdict::Duplicate);
    assert_eq!(sequences.poll_timeout(), Some(at(51)));
    check(&sequences);
}

#[test]
fn a_host_takes_the_places_of_its_own_streams_alone() {
    let mut sequences = sequences();
    take(&mut sequences, 0, 1, 1, 0);
    take(&mut sequences, 0, 0, 1, 0);
    // The first stream stays, since it is used again and again.
    for stream in 2..ip::STREAMS as u16 {
        assert_eq!(take(&mut sequences, 1, 0, stream, 0), OrderVerdict::Deliver);
        assert_eq!(take(&mut sequences, 1, 0, 1, u32::from(stream) - 1), OrderVerdict::Deliver);
    }
    let first = sequences.known.find(host(0), ip::StreamNumber { stream: 1, number: 0 }, 0);
    let first = &sequences.known.streams[usize::from(first.expect("known"))];
    assert_eq!(
        first.due,
        u64::from(ip::NUMBERS) + ip::STREAMS as u64 - 1,
        "the stream never began anew"
    );
    assert_eq!(sequences.known.all().count(), usize::from(STREAMS_HOST_MAX) + 1);
    assert_eq!(sequences.known.streams_of(host(0)).count(), usize::from(STREAMS_HOST_MAX));
    assert_eq!(
        take(&mut sequences, 2, 1, 1, 2),
        OrderVerdict::Held,
        "the other host's stream is known"
    );
    assert_eq!(take(&mut sequences, 2, 0, 1, 9_000), OrderVerdict::Held);
    assert_eq!(
        take(&mut sequences, 2, 0, 2, 9_000),
        OrderVerdict::Deliver,
        "the stream begins anew"
    );
    check(&sequences);
}

#[test]
fn where_all_streams_are_known_a_new_host_gets_one_of_the_host_with_most() {
    let mut sequences = sequences();
    for from in 0..4 {
        for stream in 1..=STREAMS_HOST_MAX - from {
            take(&mut sequences, 0, from.into(), stream, 0);
        }
    }
    for stream in 1..=6 {
        take(&mut sequences, 0, 9, stream, 0);
    }
    let count = |from| sequences.known.streams_of(host(from)).count();
    assert_eq!([0, 1, 2, 3, 9].map(count), [256, 255, 254, 253, 6]);
    for stream in 1..=2 {
        take(&mut sequences, 0, 10, stream, 0);
    }
    let count = |from| sequences.known.streams_of(host(from)).count();
    assert_eq!(
        [0, 1, 2, 3, 9, 10].map(count),
        [255, 255, 254, 253, 6, 1],
        "then one of its own streams"
    );
    check(&sequences);
    for from in [0, 1, 2, 3, 9, 10] {
        sequences.forget(host(from));
        check(&sequences);
    }
    assert_eq!(sequences.known.all().count(), 0);
}

#[test]
fn streams_that_hold_something_are_not_forgotten() {
    let mut sequences = sequences();
    for stream in 1..=STREAMS_HOST_MAX {
        take(&mut sequences, 0, 0, stream, 0);
        assert_eq!(take(&mut sequences, 0, 0, stream, 2), OrderVerdict::Held);
    }
    assert_eq!(take(&mut sequences, 1, 0, 300, 0), OrderVerdict::Deliver);
    assert_eq!(take(&mut sequences, 1, 0, 300, 2), OrderVerdict::Deliver, "no room for its stream");
    assert_eq!(sequences.stats().unordered, 2);
    sequences.handle_timeout(at(50));
    assert_eq!(released(&mut sequences, 1), [usize::from(STREAMS_HOST_MAX)]);
    take(&mut sequences, 51, 0, 300, 3);
    assert_eq!(take(&mut sequences, 51, 0, 300, 5), OrderVerdict::Held);
    check(&sequences);
}

#[test]
fn where_too_much_waits_the_host_with_most_gives_way_in_order() {
    let mut sequences = sequences();
    for (from, stream) in [(0, 1), (0, 2), (1, 1), (2, 1)] {
        take(&mut sequences, 0, from, stream, 0);
    }
    let mut hold = |from, stream, numbers: core::ops::Range<u32>| {
        for number in numbers {
            assert_eq!(take(&mut sequences, 1, from, stream, number), OrderVerdict::Held);
        }
    };
    hold(1, 1, 2..8_002);
    hold(2, 1, 2..2_002);
    hold(0, 2, 2..3_002);
    hold(0, 1, 2..HELD_MAX as u32 - 13_000 + 2);
    assert_eq!(released(&mut sequences, 3), [0, 0, 0]);
    // The first host has most waiting packets, most of them in its first stream.
    assert_eq!(take(&mut sequences, 2, 2, 1, 2_002), OrderVerdict::Held);
    assert_eq!(sequences.stats().overflowed, 1);
    check(&sequences);
    assert_eq!(released(&mut sequences, 3), [HELD_MAX - 13_000, 0, 0]);
    check(&sequences);
}

#[test]
fn a_stream_with_numbers_too_far_apart_gives_up_what_it_must() {
    let mut sequences = sequences();
    take(&mut sequences, 0, 0, 1, 0);
    for number in (2..SPAN as u32 + 100).step_by(2) {
        assert_eq!(take(&mut sequences, 1, 0, 1, number), OrderVerdict::Held, "{number}");
    }
    // Packets 1 to 97 were given up.
    let OrderStats { given_up, overflowed, .. } = sequences.stats();
    assert_eq!((sequences.held, given_up, overflowed), (SPAN as usize / 2, 49, 49));
    assert_eq!(released(&mut sequences, 1), [49]);
    check(&sequences);
}

#[test]
fn what_1_gbit_brings_in_the_longest_delay_of_50_ms_may_wait() {
    let mut sequences = sequences();
    take(&mut sequences, 0, 0, 1, 0);
    for number in 2..21_000 {
        assert_eq!(take(&mut sequences, 1, 0, 1, number), OrderVerdict::Held, "{number}");
    }
    assert_eq!(take(&mut sequences, 2, 0, 1, 1), OrderVerdict::Held);
    assert_eq!(released(&mut sequences, 1), [20_999]);
    assert_eq!(sequences.stats().overflowed + sequences.stats().given_up, 0);
    check(&sequences);
}

#[test]
fn packets_far_apart_take_little_memory() {
    let mut sequences = sequences();
    for from in 0..4 {
        for stream in 1..=STREAMS_HOST_MAX {
            take(&mut sequences, 0, from, stream, 0);
            take(&mut sequences, 0, from, stream, SPAN as u32 - 1);
        }
    }
    let streams = sequences.known.all().map(|at| &sequences.known.streams[usize::from(at)]);
    let places: usize = streams.map(|stream| stream.ring.len()).sum();
    assert!(places <= (1 << 18) + STREAMS_MAX * 64, "{places}");
    assert!(sequences.stats().unordered > 0);
    check(&sequences);
    sequences.handle_timeout(at(50));
    released(&mut sequences, 4);
    assert_eq!(sequences.poll_timeout(), None);
    check(&sequences);
}

#[test]
fn memory_is_given_back_when_nothing_waits() {
    let mut sequences = sequences();
    take(&mut sequences, 0, 0, 1, 0);
    for number in 2..5_000 {
        take(&mut sequences, 1, 0, 1, number);
    }
    assert!(sequences.pool.len() >= 4_998 * SLOT);
    assert_eq!(take(&mut sequences, 2, 0, 1, 1), OrderVerdict::Held);
    assert_eq!(released(&mut sequences, 1), [4_999]);
    assert_eq!(sequences.pool.len(), 0);
    check(&sequences);
}

#[test]
fn packets_gather_while_many_wait_for_a_part_of_the_hold() {
    let mut sequences = sequences();
    take(&mut sequences, 0, 0, 1, 0);
    for number in 2..2 + GATHER_FROM as u32 {
        assert_eq!(sequences.gathers(), None, "{number}");
        take(&mut sequences, 1, 0, 1, number);
    }
    assert_eq!(sequences.gathers(), Some(GATHER_MAX));
    take(&mut sequences, 2, 0, 1, 1);
    assert_eq!((released(&mut sequences, 1), sequences.gathers()), (vec![GATHER_FROM + 1], None));
    // A shorter hold makes them gather for less time, and a circuit without mixes not at all.
    for (hold, gathers) in [(8, Some(Duration::from_micros(250))), (0, None)] {
        sequences.set_hold(MIXED, Duration::from_millis(hold));
        (0..2).for_each(|number| _ = take(&mut sequences, 3, 1, 1, number));
        sequences.held += GATHER_FROM;
        assert_eq!(sequences.gathers(), gathers);
        sequences.held -= GATHER_FROM;
    }
}

#[test]
fn who_was_away_takes_in_first_what_came_meanwhile() {
    let mut sequences = sequences();
    take(&mut sequences, 0, 0, 1, 0);
    take(&mut sequences, 10, 0, 1, 2);
    assert_eq!(sequences.poll_timeout(), Some(at(60)));
    // The node is away from 40 to 90 ms. Packet 1 has been in the socket since 55 ms.
    sequences.handle_timeout(at(40));
    take(&mut sequences, 90, 0, 2, 0);
    sequences.handle_timeout(at(90));
    assert_eq!(sequences.poll_timeout(), Some(at(140)));
    assert_eq!(
        take(&mut sequences, 91, 0, 1, 1),
        OrderVerdict::Held,
        "packet 2 follows it directly"
    );
    assert_eq!(released(&mut sequences, 1), [2]);
    // The extension ends after a while.
    take(&mut sequences, 92, 0, 1, 4);
    for ms in [102, 112, 122, 132, 145, 151, 157] {
        sequences.handle_timeout(at(ms));
        assert_eq!(released(&mut sequences, 1), [0]);
    }
    assert_eq!(
        sequences.poll_timeout(),
        Some(at(158)),
        "13 ms after 145, as long as the pause since 132"
    );
    sequences.handle_timeout(at(165));
    assert_eq!((released(&mut sequences, 1), sequences.stats().late), (vec![1], 0));
}

/// An attacker within the network may send any stream and any number on any circuit.
#[test]
fn whatever_comes_all_counts_agree_and_all_is_released() {
    let mut rng = shoal_crypto::Rng::new([7; 32]);
    for round in 0..24u64 {
        let mut sequences = sequences();
        let (mut now, mut taken, mut given) = (Time::ZERO, 0, 0);
        let hosts = 1 + rng.below(6);
        let streams = [1, 3, 300, 4_095][round as usize % 4];
        for step in 0..6_000 {
            let longest = 1 << rng.below(16);
            now = now + Duration::from_micros(rng.below(longest));
            let circuit = CircuitId::from_bits(1 + rng.below(3) as u32);
            match rng.below(400) {
                0 => sequences.circuit_ended(circuit),
                1 => sequences.set_hold(circuit, HOLD * rng.below(3) as u32),
                2..12 => sequences.handle_timeout(now),
                12..40 => {
                    sequences.take_released(|all, _| given += all.len());
                    check(&sequences);
                }
                _ => {
                    let far = rng.below(21);
                    let number = step / 4 + rng.below(1 << far) as u32;
                    let stream = 1 + rng.below(streams) as u16;
                    let number = ip::StreamNumber { stream, number: number % ip::NUMBERS };
                    let host = host(rng.below(hosts) as u32);
                    let label = PacketLabel::new(number, rng.u32() as u8);
                    let verdict = sequences.take(now, (host, circuit), label, &[1; 60], false);
                    taken += usize::from(verdict != OrderVerdict::Duplicate);
                    given += usize::from(verdict == OrderVerdict::Deliver);
                }
            }
            assert!(sequences.poll_timeout().is_some() || sequences.held == 0);
        }
        while let Some(over) = sequences.poll_timeout() {
            now = now.max(over);
            sequences.handle_timeout(now);
            sequences.take_released(|all, _| given += all.len());
            check(&sequences);
        }
        assert_eq!((taken, sequences.held, sequences.pool.count()), (given, 0, 0));
    }
}

/// Makes streams of a host wait for a packet that is 1,000 numbers before another. Returns the
/// number of packets that wait.
fn spread(sequences: &mut PacketReordering, ms: u64, from: u32, streams: u16) -> usize {
    let mut held = 0;
    for stream in 1..=streams {
        take(sequences, ms, from, stream, 0);
        held += usize::from(take(sequences, ms, from, stream, 1_000) == OrderVerdict::Held);
    }
    held
}

#[test]
fn a_host_that_leaves_gaps_takes_no_places_of_others() {
    let mut sequences = sequences();
    let held = spread(&mut sequences, 0, 0, STREAMS_HOST_MAX);
    assert!((60..=80).contains(&held), "held {held}: a quarter of the places");
    assert_eq!(spread(&mut sequences, 0, 1, 60), 60);
    assert_eq!(spread(&mut sequences, 0, 2, 60), 60);
    check(&sequences);
}

#[test]
fn idle_streams_give_their_places_to_those_that_need_them() {
    let mut sequences = sequences();
    for from in 0..4 {
        assert_eq!(spread(&mut sequences, 0, from, 64), 64);
    }
    sequences.handle_timeout(at(500));
    sequences.handle_timeout(at(1_000));
    assert_eq!(released(&mut sequences, 4), [64; 4]);
    for from in 4..6 {
        take(&mut sequences, 1_000, from, 1, 0);
        assert_eq!(take(&mut sequences, 1_000, from, 1, 30_000), OrderVerdict::Held);
    }
    check(&sequences);
}

#[test]
fn idle_streams_of_a_host_give_their_places_to_its_others() {
    let mut sequences = sequences();
    for part in 0..8 {
        let ms = part * 1_000;
        for stream in 1..=12 {
            let stream = part as u16 * 12 + stream;
            take(&mut sequences, ms, 0, stream, 0);
            assert_eq!(take(&mut sequences, ms, 0, stream, 1_000), OrderVerdict::Held, "{stream}");
        }
        sequences.handle_timeout(at(ms + 500));
        sequences.handle_timeout(at(ms + 900));
        assert_eq!(released(&mut sequences, 1), [12]);
    }
    take(&mut sequences, 9_000, 0, 200, 0);
    assert_eq!(take(&mut sequences, 9_000, 0, 200, 30_000), OrderVerdict::Held);
    check(&sequences);
}
