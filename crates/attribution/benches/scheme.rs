//! The costs of docs/attribution.md section 10. Run with
//! `cargo bench -p shoal-attribution --bench scheme`.
#![allow(missing_docs)]

#[path = "../tests/common/mod.rs"]
mod common;

use common::World;
use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use shoal_attribution::*;
use shoal_crypto::Rng;

fn message(bytes: &[u8]) -> Message<'_> {
    Message { label: "test", bytes }
}

fn signing(c: &mut Criterion) {
    let mut world = World::new(3, 5);
    let signer = world.join("alice", 7);
    let mut rng = Rng::new([3; 32]);
    c.bench_function("sign: precomputed part", |b| b.iter(|| signer.precompute(&mut rng)));
    c.bench_function("sign: with precomputed values, 32 bytes", |b| {
        b.iter_batched(
            || signer.precompute(&mut rng),
            |pre| signer.sign(pre, &message(&[1; 32])),
            BatchSize::SmallInput,
        );
    });
}

fn verifying(c: &mut Criterion) {
    let mut world = World::new(3, 5);
    let signer = world.join("alice", 7);
    let good = world.sign(&signer, b"m");
    c.bench_function("verify", |b| b.iter(|| world.verify(b"m", &good).unwrap()));
    let batch: Vec<Signature> = (0..64).map(|_| world.sign(&signer, b"m")).collect();
    let mut rng = Rng::new([4; 32]);
    c.bench_function("verify: batch of 64", |b| {
        b.iter(|| {
            let checked: Vec<Checked> =
                batch.iter().map(|s| world.verifier.check(7, &message(b"m"), s).unwrap()).collect();
            let verdicts = world.verifier.verify_credentials(&checked, &mut rng);
            assert!(verdicts.iter().all(|v| *v));
        });
    });
    c.bench_function("reject: corrupted", |b| {
        b.iter(|| world.verify(b"n", &good).unwrap_err());
    });
    let mut malformed = good;
    malformed.0[48 * 4] ^= 0x80;
    c.bench_function("reject: malformed, the last point", |b| {
        b.iter(|| world.verify(b"m", &malformed).unwrap_err());
    });
}

/// One window of 1,400-byte packets, stamped and verified on one core.
fn streaming(c: &mut Criterion) {
    let mut world = World::new(3, 5);
    let signer = world.join("alice", 7);
    let flow = FlowId([1; 16]);
    let (now, source) = (shoal_wire::Time::ZERO, 1);
    let data = vec![7; 1_400 * WINDOW_MAX];
    let mut pool = Pool::new(signer, 1, [5; 32], 0, now);
    let mut stamper = Stamper::new(StamperConfig::new(flow), [6; 32], now);
    let mut verifier = Verifier::new(VerifierConfig::default(), world.verifier, [7; 32]);
    verifier.add_flow(flow, source, now).unwrap();
    let mut group = c.benchmark_group("stream");
    group.throughput(Throughput::Bytes(data.len() as u64));
    group.bench_function("window of 4096, stamped and verified", |b| {
        b.iter(|| {
            pool.fill(0).unwrap();
            for packet in data.chunks(1_400) {
                let seq = stamper.handle_packet(packet, &mut pool, 0, now).unwrap();
                verifier.handle_packet(&flow, seq, packet, now).unwrap();
            }
            while let Some(part) = stamper.poll_transmit() {
                let _ = verifier.handle_part(source, &part, now);
            }
            verifier.work(64);
            while verifier.poll_event().is_some() {}
            assert_eq!(verifier.waiting(&flow), 0);
        });
    });
}

criterion_group!(benches, signing, verifying, streaming);
criterion_main!(benches);
