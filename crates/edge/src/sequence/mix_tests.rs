//! Simulated circuits with mixes: each packet gets its own delay.

use shoal_crypto::Rng;

use super::*;

const HOST: HostId = HostId::from_bits(1);
const CIRCUIT: CircuitId = CircuitId::from_bits(7);
const MEAN_MS: f64 = 5.0;

/// Parameters of the sender and the mixes.
#[derive(Clone, Copy)]
struct MixCase {
    /// Packets per second, evenly spaced or at random times.
    rate: f64,
    even: bool,
    packets: u32,
    /// Number of stop-and-go mixes, their mean delay, and (`cap`) the longest delay of each, as a
    /// multiple of the mean.
    mixes: u32,
    mean_ms: f64,
    cap: f64,
    /// Packets lost out of 10,000.
    loss: u64,
    hold_ms: u64,
}

/// Measurements at the receiver.
#[derive(Debug, Default)]
struct DelayMeasurement {
    /// Delay of packets that came in their order, from sending to delivery.
    mean_ms: f64,
    p99_ms: f64,
    /// Mean delay if each packet were delivered as soon as it and all earlier ones have come.
    ideal_ms: f64,
    delivered: u32,
    lost: u32,
    late: u32,
    /// Largest number of waiting packets, and the average number that an arriving packet found.
    held: usize,
    held_mean: f64,
    stats: OrderStats,
}

fn uniform(rng: &mut Rng) -> f64 {
    (rng.u64() >> 11) as f64 / (1u64 << 53) as f64
}

/// Delay of several mixes in a row. Each delay is exponential and drawn again above the cap.
fn delay_ms(rng: &mut Rng, case: &MixCase) -> f64 {
    let below = -(-case.cap).exp_m1();
    let one = |rng: &mut Rng| -case.mean_ms * (-uniform(rng) * below).ln_1p();
    (0..case.mixes).map(|_| one(rng)).sum()
}

fn time(ms: f64) -> Time {
    Time((ms * 1e6) as u64)
}

/// Label of a packet. The sender's stream begins with number 0, its clock differs, and the hold of
/// its circuit is 36 ms.
fn label(number: u32, sent: Time) -> PacketLabel {
    label_in(ip::SendSteps::of(Duration::from_millis(36)), number, sent)
}

fn label_in(steps: ip::SendSteps, number: u32, sent: Time) -> PacketLabel {
    let first = if number == 0 { ip::FIRST } else { 0 };
    let sent = steps.at(sent + Duration::from_millis(12_345));
    let number = ip::StreamNumber { stream: 9, number: number % ip::NUMBERS };
    PacketLabel::new(number, first | sent.to_flags())
}

/// Arrivals: time, packet number, time of sending in milliseconds.
fn arrivals(rng: &mut Rng, case: &MixCase, seen: &mut DelayMeasurement) -> Vec<(Time, u32, f64)> {
    let mut all = Vec::new();
    let mut sent_ms = 1_000.0;
    for number in 0..case.packets {
        let gap = if case.even { 1.0 } else { -(1.0 - uniform(rng)).ln() };
        sent_ms += gap * 1_000.0 / case.rate;
        // The first packet is not delayed, since the stream is unknown before it.
        let delay = if number > 0 { delay_ms(rng, case) } else { 0.0 };
        match number > 0 && rng.below(10_000) < case.loss {
            true => seen.lost += 1,
            false => all.push((time(sent_ms + delay), number, sent_ms)),
        }
    }
    let mut newest = Time::ZERO;
    for (at, _, sent_ms) in &all {
        newest = newest.max(*at);
        seen.ideal_ms += newest.0 as f64 / 1e6 - sent_ms;
    }
    seen.ideal_ms /= all.len() as f64;
    all.sort_unstable_by_key(|(at, number, _)| (*at, *number));
    all
}

fn take_released(sequences: &mut PacketReordering, mut deliver: impl FnMut(u32)) {
    sequences.take_released(|all, buf| {
        for arrival in all {
            let number = buf[arrival.at as usize..].first_chunk().expect("four bytes");
            deliver(u32::from_be_bytes(*number));
        }
    });
}

fn play(seed: u8, case: MixCase) -> DelayMeasurement {
    let mut sequences = PacketReordering::default();
    sequences.set_hold(CIRCUIT, Duration::from_millis(case.hold_ms));
    play_on(&mut sequences, seed, case)
}

fn play_on(sequences: &mut PacketReordering, seed: u8, case: MixCase) -> DelayMeasurement {
    let mut rng = Rng::new([seed; 32]);
    let mut seen = DelayMeasurement::default();
    let all = arrivals(&mut rng, &case, &mut seen);
    let mut sent_ms = vec![0.0; case.packets as usize];
    all.iter().for_each(|(_, number, ms)| sent_ms[*number as usize] = *ms);
    let (mut delays, mut next) = (Vec::new(), 0);
    let mut deliver = |seen: &mut DelayMeasurement, now: Time, number: u32| {
        seen.delivered += 1;
        seen.late += u32::from(number < next);
        next = next.max(number + 1);
        delays.push(now.0 as f64 / 1e6 - sent_ms[number as usize]);
    };
    let end = [(Time::FAR, 0, 0.0)];
    for (at, number, sent_ms) in all.into_iter().chain(end) {
        // Deadlines that pass before the packet comes.
        while let Some(over) = sequences.poll_timeout().filter(|over| *over <= at) {
            let before = sequences.stats();
            sequences.handle_timeout(over);
            let more = sequences.poll_timeout().is_none_or(|next| next != over);
            assert!(more || sequences.stats() != before, "no deadline had passed");
            take_released(sequences, |number| deliver(&mut seen, over, number));
        }
        if at == Time::FAR {
            break;
        }
        let bytes = number.to_be_bytes();
        let label = label_in(sequences.paths.steps(CIRCUIT), number, time(sent_ms));
        match sequences.take(at, (HOST, CIRCUIT), label, &bytes, false) {
            OrderVerdict::Deliver => deliver(&mut seen, at, number),
            OrderVerdict::Held => {}
            OrderVerdict::Duplicate => panic!("packet {number} is held already"),
        }
        seen.held = seen.held.max(sequences.held);
        seen.held_mean += sequences.held as f64 / f64::from(case.packets - seen.lost);
        take_released(sequences, |number| deliver(&mut seen, at, number));
    }
    assert_eq!((sequences.held, sequences.pool.count(), sequences.poll_timeout()), (0, 0, None));
    seen.mean_ms = delays.iter().sum::<f64>() / delays.len() as f64;
    delays.sort_unstable_by(f64::total_cmp);
    seen.p99_ms = delays[delays.len() * 99 / 100];
    seen.stats = sequences.stats();
    seen
}

/// Packets per second: 30 Mbit/s, as in the paper, and 1 Gbit/s.
const SLOW: f64 = 2_441.0;
const FAST: f64 = 84_000.0;
/// Packets per second of an interactive session.
const TYPED: f64 = 50.0;
const FREE: f64 = 60.0;

/// One line of the table of costs: packets per second, mixes, their mean in milliseconds, their cap
/// as a multiple of the mean. Then the mean and 99th percentile of the delay in milliseconds, and
/// the packets held at the edge.
type CostRow = (f64, u32, f64, f64, f64, f64, f64);

#[test]
fn without_losses_order_costs_what_the_law_says_and_nothing_comes_late() {
    let bytes_18m = 18e6 / pool::SLOT as f64;
    let lines: [CostRow; 5] = [
        (SLOW, 1, 5.0, FREE, 15.8, 36.0, 26.0),
        (SLOW, 3, 5.0, FREE, 33.9, 58.0, 46.0),
        (FAST, 1, 5.0, FREE, 33.0, 54.0, 28.0 * 84.0),
        (FAST, 1, 50.0, 4.0, 193.0, 199.0, bytes_18m),
        (TYPED, 1, 5.0, FREE, 5.1, 23.0, 0.0),
    ];
    for (rate, mixes, mean, cap, mean_ms, p99_ms, held) in lines {
        let hold_ms = if mean > MEAN_MS { 320 } else { 150 };
        // A long run, so that its beginning is a small part of it.
        let packets = if mean > MEAN_MS { 400_000 } else { 150_000 };
        let case = MixCase {
            rate,
            even: rate == TYPED,
            packets,
            mixes,
            mean_ms: mean,
            cap,
            loss: 0,
            hold_ms,
        };
        let seen = play(1, case);
        println!("{rate}/s, {mixes} x {mean} ms: {seen:?}");
        assert!((seen.mean_ms / mean_ms - 1.0).abs() < 0.1, "{seen:?}");
        assert!((seen.p99_ms / p99_ms - 1.0).abs() < 0.1, "{seen:?}");
        assert!((seen.held_mean - held).abs() < held * 0.1 + 0.1, "{held} {seen:?}");
        // Packets that come early are held by the pace.
        assert!((1.0..1.03).contains(&(seen.mean_ms / seen.ideal_ms)), "{seen:?}");
        assert_eq!((seen.late, seen.delivered, seen.stats.given_up), (0, packets, 0));
        assert_eq!(seen.stats.overflowed, 0, "{seen:?}");
    }
}

#[test]
fn a_lost_packet_holds_the_others_up_for_the_hold_and_no_longer() {
    for (rate, mixes, hold_ms) in [(SLOW, 1, 25), (FAST, 1, 25), (SLOW, 3, 60), (FAST, 3, 60)] {
        let case = MixCase {
            rate,
            even: false,
            packets: 150_000,
            mixes,
            mean_ms: MEAN_MS,
            cap: 5.0,
            loss: 100,
            hold_ms,
        };
        let seen = play(2, case);
        let longest = hold_ms as f64 + MEAN_MS * 5.0 * f64::from(mixes);
        assert!(seen.lost > 1_300 && seen.delivered == 150_000 - seen.lost, "{seen:?}");
        assert!(seen.late == 0 && seen.stats.late == 0, "{seen:?}");
        assert!(seen.mean_ms > seen.ideal_ms && seen.p99_ms < longest, "{seen:?}");
        let gaps = seen.stats.given_up as f64 / f64::from(seen.lost);
        assert!((0.97..=1.0).contains(&gaps), "adjacent losses form one gap: {seen:?}");
        assert!(seen.held < 6_000 && seen.stats.overflowed == 0, "{seen:?}");
    }
}

#[test]
fn a_hold_that_is_too_short_shows() {
    let case = MixCase {
        rate: SLOW,
        even: false,
        packets: 50_000,
        mixes: 1,
        mean_ms: MEAN_MS,
        cap: 5.0,
        loss: 0,
        hold_ms: 10,
    };
    let seen = play(3, case);
    assert!(seen.late > 1_000 && seen.stats.late >= u64::from(seen.late), "{seen:?}");
}

/// Hold of the circuit in milliseconds.
fn hold_ms(sequences: &PacketReordering) -> f64 {
    sequences.paths.hold(CIRCUIT).as_secs_f64() * 1e3
}

/// Hold in milliseconds after the packets of `case`, on a circuit for which the node set
/// `given_ms`.
fn hold_after(seed: u8, case: MixCase, given_ms: u64) -> (f64, DelayMeasurement) {
    let mut sequences = PacketReordering::default();
    sequences.set_hold(CIRCUIT, Duration::from_millis(given_ms));
    let seen = play_on(&mut sequences, seed, case);
    (hold_ms(&sequences), seen)
}

#[test]
fn a_hold_that_is_longer_than_packets_are_late_is_cut_and_no_further_than_that() {
    let (rate, packets) = (10_000.0, 300_000);
    let case = MixCase {
        rate,
        even: false,
        packets,
        mixes: 1,
        mean_ms: MEAN_MS,
        cap: 5.0,
        loss: 10,
        hold_ms: 0,
    };
    // No packet is later than 25 ms.
    let (hold_ms, seen) = hold_after(1, case, 36);
    assert!((29.0..31.3).contains(&hold_ms) && seen.late == 0, "{hold_ms} {seen:?}");
    let (hold_ms, seen) = hold_after(2, case, 100);
    assert!(hold_ms == 75.0 && seen.late == 0, "at least three quarters: {hold_ms} {seen:?}");
    let (hold_ms, seen) = hold_after(3, case, 26);
    assert!(hold_ms == 26.0 && seen.late == 0, "{hold_ms} {seen:?}");
    let (hold_ms, seen) = hold_after(4, MixCase { packets: 60_000, ..case }, 100);
    assert!(hold_ms == 100.0 && seen.late == 0, "too few packets to judge: {hold_ms} {seen:?}");
}

#[test]
fn a_late_packet_gives_a_hold_that_was_cut_back() {
    let mut paths = MixedCircuits::default();
    let (given, ms) = (Duration::from_millis(40), Duration::from_millis(1));
    assert!(paths.set(CIRCUIT, given) && !paths.set(CIRCUIT, given));
    let come = |paths: &mut MixedCircuits, from_s: u64| {
        let cut = (0..200_000u64).filter(|n| {
            let changed = paths.come(Time(from_s * 1_000_000_000 + n * 200_000), CIRCUIT);
            paths.note(10 * ms);
            changed
        });
        cut.count()
    };
    // At first there is no earlier period to compare with.
    assert_eq!((come(&mut paths, 0), paths.hold(CIRCUIT)), (1, 30 * ms));
    assert!(paths.note_late(CIRCUIT));
    assert_eq!(paths.hold(CIRCUIT), given);
    assert!(!paths.note_late(CIRCUIT), "the hold is already the given one");
    assert_eq!((come(&mut paths, 100), paths.hold(CIRCUIT)), (1, 30 * ms));
}

#[test]
fn a_packet_that_comes_after_it_was_given_up_counts_as_late() {
    let (rate, packets) = (10_000.0, 250_000);
    let case = MixCase {
        rate,
        even: false,
        packets,
        mixes: 1,
        mean_ms: MEAN_MS,
        cap: 5.0,
        loss: 0,
        hold_ms: 0,
    };
    let mut sequences = PacketReordering::default();
    sequences.set_hold(CIRCUIT, Duration::from_millis(36));
    play_on(&mut sequences, 5, case);
    let mut take = |ms, more| {
        let at = Time::from_millis(ms);
        sequences.take(at, (HOST, CIRCUIT), label(packets + more, at), &[], false)
    };
    assert_eq!(take(50_000, 1), OrderVerdict::Held);
    // The next gap shows how long the previous packet was waited for.
    let waits = sequences.poll_timeout().expect("packet waits").0 - Time::from_millis(50_000).0;
    assert!((29_000_000..32_000_000).contains(&waits), "{waits}");
    sequences.handle_timeout(Time::from_millis(50_032));
    take_released(&mut sequences, |_| ());
    let at = Time::from_millis(50_032);
    let late = sequences.take(at, (HOST, CIRCUIT), label(packets, at), &[], false);
    assert_eq!((late, hold_ms(&sequences)), (OrderVerdict::Deliver, 36.0));
}

#[test]
fn packets_show_how_long_they_take_however_long_that_may_be() {
    for (hold_ms, steps_ms) in [(43, 1.05), (195, 4.2), (380, 8.4), (1_505, 33.6)] {
        let (mut paths, mut rng) = (MixedCircuits::default(), Rng::new([7; 32]));
        paths.set(CIRCUIT, Duration::from_millis(hold_ms));
        let mut most = Duration::ZERO;
        for packet in 0..5_000 {
            let now = Time::from_millis(5_000 + 9 * packet);
            paths.come(now, CIRCUIT);
            let took = if packet > 0 { rng.below(hold_ms) } else { 0 };
            let told = paths.steps(CIRCUIT).at(Time(now.0 - took * 1_000_000));
            let seen = now.since(paths.sent(now, told));
            let off = seen.abs_diff(Duration::from_millis(took));
            most = most.max(off);
        }
        assert!((0.5..1.0).contains(&(most.as_secs_f64() * 1e3 / steps_ms)), "{hold_ms} {most:?}");
    }
}

/// Delay until delivery of a packet that comes on an idle stream at `ms`, `age_ms` after it was
/// sent.
fn takes(sequences: &mut PacketReordering, number: u32, ms: f64, age_ms: f64) -> f64 {
    let label = label_in(sequences.steps(CIRCUIT), number, time(ms - age_ms));
    let at = time(ms);
    let mut over = at;
    if sequences.take(at, (HOST, CIRCUIT), label, &number.to_be_bytes(), false)
        == OrderVerdict::Held
    {
        over = sequences.poll_timeout().expect("it waits");
        sequences.handle_timeout(over);
        take_released(sequences, |released| assert_eq!(released, number));
    }
    over.0 as f64 / 1e6 - ms + age_ms
}

#[test]
fn packets_of_a_fast_stream_that_becomes_slow_go_on_taking_as_long_for_seconds() {
    for (rate, is_fast) in [(2_000.0, true), (100.0, false)] {
        let packets = rate as u32 * 8;
        let case = MixCase {
            rate,
            even: false,
            packets,
            mixes: 3,
            mean_ms: MEAN_MS,
            cap: 5.0,
            loss: 100,
            hold_ms: 0,
        };
        let mut sequences = PacketReordering::default();
        sequences.set_hold(CIRCUIT, Duration::from_millis(80));
        let seen = play_on(&mut sequences, 8, case);
        let end = 9_200.0;
        for (number, ms) in (packets..).zip([0.0, 100.0, 400.0, 1_700.0]) {
            let took = takes(&mut sequences, number, end + ms, 4.0);
            let least = if is_fast { seen.mean_ms * 0.5 } else { 4.0 };
            assert!((least..seen.mean_ms * 0.75).contains(&took.max(4.0)), "{took} {seen:?}");
            assert_eq!(took > 8.0, is_fast, "{took}");
        }
        let took = takes(&mut sequences, packets + 4, end + 20_000.0, 4.0);
        assert!((took - 4.0).abs() < 1e-6, "{took}");
        assert_eq!(sequences.stats().late, 0);
    }
}

#[test]
fn what_a_stream_begins_with_is_known_by_its_flag_and_else_waited_for() {
    let take = |sequences: &mut PacketReordering, ms, number, is_first| {
        let number = ip::StreamNumber { stream: 3, number };
        let label = PacketLabel::new(number, if is_first { ip::FIRST } else { 0 });
        sequences.take(Time::from_millis(ms), (HOST, CIRCUIT), label, &[7; 4], false)
    };
    let released = |sequences: &mut PacketReordering| {
        let mut count = 0;
        sequences.take_released(|all, _| count = all.len());
        count
    };
    let mut sequences = PacketReordering::default();
    sequences.set_hold(CIRCUIT, Duration::from_millis(50));
    // Packets 101 and 103 overtook the first one.
    assert_eq!(take(&mut sequences, 0, 101, false), OrderVerdict::Held);
    assert_eq!(take(&mut sequences, 1, 103, false), OrderVerdict::Held);
    assert_eq!(
        take(&mut sequences, 2, 100, true),
        OrderVerdict::Held,
        "packet 101 follows it directly"
    );
    assert_eq!(released(&mut sequences), 2);
    assert_eq!(
        sequences.poll_timeout(),
        Some(Time::from_millis(51)),
        "packet 102 has been missing since 1 ms"
    );
    // After a break, packets sent before it are not waited for.
    assert_eq!(take(&mut sequences, 30, 110, true), OrderVerdict::Held, "behind packet 103");
    assert_eq!(released(&mut sequences), 2);
    // The sender begins anew with a slightly lower number.
    assert_eq!(take(&mut sequences, 60, 90, true), OrderVerdict::Deliver);
    assert_eq!(take(&mut sequences, 61, 92, false), OrderVerdict::Held);
    assert_eq!(take(&mut sequences, 62, 91, false), OrderVerdict::Held);
    assert_eq!(released(&mut sequences), 2);
    assert_eq!((sequences.stats().late, sequences.poll_timeout()), (0, None));
    // The very first packet is lost.
    sequences.forget(HOST);
    assert_eq!(take(&mut sequences, 100, 501, false), OrderVerdict::Held);
    assert_eq!(take(&mut sequences, 101, 500, false), OrderVerdict::Held);
    assert_eq!(sequences.poll_timeout(), Some(Time::from_millis(150)));
    sequences.handle_timeout(Time::from_millis(150));
    assert_eq!(released(&mut sequences), 2);
    assert_eq!(take(&mut sequences, 151, 502, false), OrderVerdict::Deliver);
}

/// A circuit ends just when the pace's turn is over. The pace would hold the packets that are given
/// up, but all waiting packets must be released.
#[test]
fn a_circuit_that_ends_when_a_turn_is_over_lets_all_go() {
    let mut sequences = PacketReordering::default();
    sequences.set_hold(CIRCUIT, Duration::from_millis(1_505));
    let take = |sequences: &mut PacketReordering, ms: f64, number: u32, sent_ms: f64| {
        let label = label_in(sequences.steps(CIRCUIT), number, time(sent_ms));
        sequences.take(time(ms), (HOST, CIRCUIT), label, &number.to_be_bytes(), false)
    };
    assert_eq!(take(&mut sequences, 10_000.0, 0, 10_000.0), OrderVerdict::Deliver);
    for number in 1..2_000 {
        let ms = 10_000.0 + f64::from(number) / 20.0;
        take(&mut sequences, ms, number, ms - 1_400.0);
    }
    // From here on, packets take almost a second.
    take(&mut sequences, 11_001.0, 2_000, 9_601.0);
    assert_eq!(take(&mut sequences, 11_900.0, 2_002, 11_900.0), OrderVerdict::Held);
    sequences.handle_timeout(time(12_002.0));
    let before = sequences.stats().given_up;
    sequences.circuit_ended(CIRCUIT);
    let mut last = 0;
    take_released(&mut sequences, |released| last = released);
    assert_eq!((last, sequences.stats().given_up - before), (2_002, 1));
    assert_eq!(sequences.poll_timeout(), None);
}
