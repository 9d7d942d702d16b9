//! Primitives, each as Shoal uses it. Run: `cargo bench -p shoal-crypto`.
#![allow(missing_docs)]

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use shoal_crypto::{
    AeadKey, DhSecret, Identity, KemSecret, MaskKey, Rng, Suite, hash, kdf, kem_encapsulate,
};

/// Plaintext of a full frame: all but header and tag.
const BODY: usize = 1_440 - 8 - 16;

fn aead(c: &mut Criterion) {
    for suite in Suite::ALL {
        let mut group = c.benchmark_group(suite.name());
        group.throughput(Throughput::Bytes(BODY as u64));
        let key = AeadKey::new(suite, &[1; 32]);
        let (mut body, mut tag) = (vec![0; BODY], [0; 16]);
        let mut counter = 0;
        group.bench_function("seal a full frame", |bench| {
            bench.iter(|| {
                counter += 1;
                key.seal(counter, &[], black_box(&mut body), &mut tag);
            });
        });
        key.seal(0, &[], &mut body, &mut tag);
        let sealed = [&body[..], &tag].concat();
        let mut copy = sealed.clone();
        group.bench_function("copy and open a full frame", |bench| {
            bench.iter(|| {
                copy.copy_from_slice(&sealed);
                key.open(0, &[], black_box(&mut copy))
            });
        });
        group.finish();
    }
}

fn masks(c: &mut Criterion) {
    let key = MaskKey::new(&[2; 32]);
    let mut samples = vec![[3; 16]; 44];
    let mut group = c.benchmark_group("masks");
    group.throughput(Throughput::Elements(44));
    group.bench_function("44 at a time", |bench| {
        bench.iter(|| key.mask_batch(black_box(&mut samples)));
    });
    group.finish();
}

fn small(c: &mut Criterion) {
    let mut group = c.benchmark_group("small");
    group.bench_function("kdf", |bench| {
        bench.iter(|| kdf(black_box(&[4; 32]), "shoal benchmark", &[b"a part"]));
    });
    let file = vec![9; 1 << 20];
    group.bench_function("BLAKE3 of 1 MiB", |bench| bench.iter(|| hash(black_box(&file))));
    let mut rng = Rng::new([5; 32]);
    group.bench_function("rng, 32 bytes", |bench| bench.iter(|| rng.array::<32>()));
    group.finish();
}

fn public_key(c: &mut Criterion) {
    let mut group = c.benchmark_group("public key");
    let (a, b) = (DhSecret::new(&[6; 32]), DhSecret::new(&[7; 32]));
    group.bench_function("x25519", |bench| bench.iter(|| a.agree(black_box(b.public()))));
    group.bench_function("x25519 key pair", |bench| {
        bench.iter(|| DhSecret::new(black_box(&[6; 32])));
    });
    group.bench_function("ml-kem-768 key pair", |bench| bench.iter(KemSecret::generate));
    let (secret, public) = KemSecret::generate().expect("the library makes keys");
    group.bench_function("ml-kem-768 encapsulate", |bench| {
        bench.iter(|| kem_encapsulate(black_box(&public[..])));
    });
    let (ciphertext, _) = kem_encapsulate(&public[..]).expect("a good key");
    group.bench_function("ml-kem-768 decapsulate", |bench| {
        bench.iter(|| secret.decapsulate(black_box(&ciphertext[..])));
    });
    let identity = Identity::from_seed([8; 32]);
    let signature = identity.sign(b"a route");
    group.bench_function("ed25519 sign", |bench| bench.iter(|| identity.sign(b"a route")));
    let key = identity.public();
    group.bench_function("ed25519 verify", |bench| {
        bench.iter(|| key.verify(b"a route", black_box(&signature)));
    });
    group.finish();
}

criterion_group!(benches, aead, masks, small, public_key);
criterion_main!(benches);
