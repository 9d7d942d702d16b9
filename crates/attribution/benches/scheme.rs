//! Every cost of attribution in docs/evidence/proof.md. Run with
//! `cargo bench -p shoal-attribution --bench scheme`.
#![allow(missing_docs)]
// Some rows time parts of a round.
#![allow(clippy::disallowed_methods)]

#[path = "../tests/common/mod.rs"]
mod common;

use std::hint::black_box;
use std::time::Duration;

use common::World;
use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use shoal_attribution::*;
use shoal_crypto::Rng;

const PACKET: usize = 1_400;
const BATCH: usize = 64;

fn message(bytes: &[u8]) -> Message<'_> {
    Message { label: "test", bytes }
}

fn signing(c: &mut Criterion) {
    let mut world = World::new(3, 5);
    let signer = world.join("alice", 7);
    let mut rng = Rng::new([3; 32]);
    c.bench_function("sign: precomputed part", |b| b.iter(|| signer.precompute(&mut rng)));
    let flow = FlowId([1; 16]);
    let data = vec![7; PACKET];
    for packets in [1, 8] {
        let name = format!("sign: with precomputed values, packets of 1,400 bytes: {packets}");
        c.bench_function(&name, |b| {
            b.iter_batched(
                || signer.precompute(&mut rng),
                |pre| {
                    let hashes: Vec<[u8; 32]> =
                        (0..packets).map(|n| packet_hash(&flow, n, black_box(&data))).collect();
                    signer.sign(pre, &message(hashes.as_flattened()))
                },
                BatchSize::SmallInput,
            );
        });
    }
}

fn verifying(c: &mut Criterion) {
    let mut world = World::new(3, 5);
    let signer = world.join("alice", 7);
    let good = world.sign(&signer, b"m");
    c.bench_function("verify", |b| b.iter(|| world.verify(b"m", &good).unwrap()));
    let batch: Vec<Signature> = (0..BATCH).map(|_| world.sign(&signer, b"m")).collect();
    let mut rng = Rng::new([4; 32]);
    c.bench_function("verify: batch of 64, the time of each", |b| {
        b.iter_custom(|rounds| {
            let start = std::time::Instant::now();
            for _ in 0..rounds {
                let candidates: Vec<ProofChecked> = batch
                    .iter()
                    .map(|s| world.verifier.check(7, &message(b"m"), s).unwrap())
                    .collect();
                let verdicts = world.verifier.verify_batch(&candidates, &mut rng);
                assert!(verdicts.iter().all(Result::is_ok));
            }
            start.elapsed() / BATCH as u32
        });
    });
}

fn rejecting(c: &mut Criterion) {
    let mut world = World::new(3, 5);
    let signer = world.join("alice", 7);
    let good = world.sign(&signer, b"m");
    c.bench_function("reject: corrupted", |b| {
        b.iter(|| world.verify(b"n", &good).unwrap_err());
    });
    let last = 4 * 48;
    let mut reject = |name: &str, change: &dyn Fn(&mut Signature)| {
        let mut bad = good;
        change(&mut bad);
        c.bench_function(name, |b| b.iter(|| world.verify(b"m", &bad).unwrap_err()));
    };
    reject("reject: malformed, a scalar", &|s| s.0[272..304].fill(0xff));
    reject("reject: malformed, the last point's encoding", &|s| s.0[last] ^= 0x80);
    reject("reject: malformed, the last point not on the curve", &|s| {
        s.0[last..last + 48].copy_from_slice(&common::off_curve());
    });
    reject("reject: corrupted, the last point outside the subgroup", &|s| {
        s.0[last..last + 48].copy_from_slice(&common::outside_subgroup());
    });
}

/// Windows of 1,400-byte packets, stamped and verified on one core, with verdicts for two windows
/// at a time. The time is per window's worth of arrived packets.
fn streaming(c: &mut Criterion) {
    let mut world = World::new(3, 5);
    let signer = world.join("alice", 7);
    let mut group = c.benchmark_group("stream");
    group.throughput(Throughput::Bytes((PACKET * WINDOW_MAX) as u64));
    group.measurement_time(Duration::from_secs(4));
    for (loss, name) in [(0, "0% loss"), (50, "5% loss")] {
        let verifier = world.verifier.clone();
        let mut trial =
            StampTrial::new(signer.clone(), verifier, WINDOW_MAX, PACKET, loss).unwrap();
        group.bench_function(format!("window of 4096, stamped and verified, {name}"), |b| {
            b.iter_custom(|rounds| {
                let start = std::time::Instant::now();
                let arrived: u64 = (0..rounds.div_ceil(2)).map(|_| trial.run(2).unwrap()).sum();
                start.elapsed().mul_f64(rounds as f64 * WINDOW_MAX as f64 / arrived as f64)
            });
        });
    }
    group.finish();
}

/// A count of bytes, printed so that one command shows the whole table.
/// `overhead_with_losses_stays_within_its_budget` in tests/all/stream.rs checks the bounds.
fn bytes(_: &mut Criterion) {
    let mut world = World::new(3, 5);
    let signer = world.join("alice", 7);
    for window in [256, WINDOW_MAX] {
        for (loss, name) in [(0, "0% loss"), (50, "5% loss, resends and requests")] {
            let verifier = world.verifier.clone();
            let mut trial = StampTrial::new(signer.clone(), verifier, window, 64, loss).unwrap();
            for _ in 0..64 * 256 / window {
                trial.run(1).unwrap();
            }
            let (bytes, frames) = (trial.bytes_per_packet(), trial.frame_bytes_per_packet());
            println!(
                "bytes per packet, window {window}, {name}: {bytes:.1} ({frames:.1} as frames)"
            );
        }
    }
}

criterion_group!(benches, signing, verifying, rejecting, streaming, bytes);
criterion_main!(benches);
