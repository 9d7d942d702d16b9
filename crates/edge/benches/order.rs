//! Cost of restoring the order of packets in memory, on one core. 17,000 and 84,000 packets a
//! second (200 and 1,000 Mbit/s) come through stop-and-go mixes of 5 ms, or in order for
//! comparison. Delivered packets are copied, as the interface does. The difference is the cost of
//! the order.

use core::time::Duration;
use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use shoal_crypto::Rng;
use shoal_edge::{HostId, OrderVerdict, PacketLabel, PacketReordering};
use shoal_wire::{CircuitId, SizeClass, Time, ip};

/// Mbit/s on the link, and packets per second.
const RATES: [(u32, f64); 2] = [(200, 17_000.0), (1_000, 84_000.0)];
const MEAN_MS: f64 = 5.0;
/// Longest delay, as a multiple of the mean.
const CAP: f64 = 5.0;
/// All numbers, so that the sequence wraps seamlessly.
const PACKETS: u32 = ip::NUMBERS;
/// Packets per turn of the node.
const TURN: usize = 20;
/// Turns per measurement.
const TURNS: usize = 100;
/// Bytes of a packet on a circuit with three relays, and of its cell.
const PACKET: usize = 1_314;
const CELL: usize = SizeClass::Full.frame_len();

const HOST: HostId = HostId::from_bits(1);
const CIRCUIT: CircuitId = CircuitId::from_bits(1);

/// Arrival times and numbers of packets, in the order of arrival.
fn arrivals(rate: f64, mixes: u32, loss_percent: u64) -> Vec<(Time, u32)> {
    let mut rng = Rng::new([1; 32]);
    let below = -(-CAP).exp_m1();
    let delay_ms = |rng: &mut Rng| {
        let uniform = (rng.u64() >> 11) as f64 / (1u64 << 53) as f64;
        -MEAN_MS * (-uniform * below).ln_1p()
    };
    let mut all = Vec::new();
    for number in 0..PACKETS {
        let sent_ms = f64::from(number) * 1_000.0 / rate;
        let came_ms = sent_ms + (0..mixes).map(|_| delay_ms(&mut rng)).sum::<f64>();
        if rng.below(100) >= loss_percent {
            all.push((Time((came_ms * 1e6) as u64), number));
        }
    }
    all.sort_unstable();
    all
}

/// An endless repetition of the packets, and the receiver's reordering.
struct OrderBench {
    rate: f64,
    all: Vec<(Time, u32)>,
    next: usize,
    /// Start of the present repetition.
    begun: Time,
    sequences: PacketReordering,
    steps: ip::SendSteps,
    cells: Vec<u8>,
    interface: Vec<u8>,
}

impl OrderBench {
    fn new(rate: f64, mixes: u32, loss_percent: u64) -> OrderBench {
        let mut sequences = PacketReordering::default();
        // The delay of the mixes that one packet of 10,000 exceeds, and a small allowance.
        let hold = Duration::from_millis([0, 28, 40, 52][mixes as usize]);
        sequences.set_hold(CIRCUIT, hold);
        let steps = ip::SendSteps::of(hold);
        let all = arrivals(rate, mixes, loss_percent);
        let (next, begun, cells) = (0, Time::ZERO, vec![7; TURN * CELL]);
        let interface = vec![0; 16 * PACKET];
        OrderBench { rate, all, next, begun, sequences, steps, cells, interface }
    }

    fn turn(&mut self) {
        let OrderBench { rate, all, next, begun, sequences, steps, cells, interface } = self;
        let mut now = *begun;
        let mut places = (0..16).map(|place| place * PACKET).cycle();
        let mut deliver = |packet: &[u8]| {
            let place = places.next().unwrap_or(0);
            interface[place..place + PACKET].copy_from_slice(packet);
        };
        for cell in cells.chunks_exact(CELL) {
            let (at, number) = all[*next];
            now = *begun + Duration::from_nanos(at.0);
            let sent = *begun + Duration::from_secs_f64(f64::from(number) / *rate);
            let flags = steps.at(sent).to_flags();
            let label = PacketLabel::new(ip::StreamNumber { stream: 1, number }, flags);
            let packet = &cell[64..64 + PACKET];
            if sequences.take(now, (HOST, CIRCUIT), label, packet, false) == OrderVerdict::Deliver {
                deliver(packet);
            }
            *next += 1;
            if *next == all.len() {
                *next = 0;
                *begun = *begun + Duration::from_secs_f64(f64::from(PACKETS) / *rate);
            }
        }
        if sequences.poll_timeout().is_some_and(|at| at <= now) {
            sequences.handle_timeout(now);
        }
        sequences.take_released(|arrivals, buf| {
            arrivals.iter().for_each(|arrival| deliver(&buf[arrival.at as usize..][..PACKET]));
        });
        black_box(interface);
    }
}

fn order(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("order");
    group.throughput(Throughput::Elements((TURN * TURNS) as u64));
    for (mbit, rate) in RATES {
        for (mixes, loss) in [(0, 0), (1, 0), (3, 0), (3, 1)] {
            let of = format!("{mbit} Mbit/s, {mixes} mixes");
            let mut receiver = None;
            group.bench_function(BenchmarkId::new(of, format!("{loss}% lost")), |bencher| {
                let receiver = receiver.get_or_insert_with(|| OrderBench::new(rate, mixes, loss));
                bencher.iter(|| (0..TURNS).for_each(|_| receiver.turn()));
            });
        }
    }
    group.finish();
}

criterion_group!(benches, order);
criterion_main!(benches);
