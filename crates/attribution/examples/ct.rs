//! A statistical test for operations whose time depends on a secret, after dudect (Reparaz,
//! Balasch, Verbauwhede: "Dude, is my code constant time?", DATE 2017).
//!
//! `cargo run --release -p shoal-attribution --example ct [measurements]`
//!
//! Each operation is timed with a fixed secret and with random ones, in random order. The fixed
//! secret is the number 1, all of whose digits but one are zero. Welch's t-test compares the two
//! sets of times, whole and without the slowest. |t| above 10 is a leak; below 4.5 there is no sign
//! of one. The last rows are operations on public numbers whose time depends on them: they show
//! that the test can detect a leak.
//!
//! Exit code 1 if a secret leaks or a control row shows no leak.
#![allow(missing_docs, clippy::disallowed_methods, clippy::disallowed_types)]

use std::hint::black_box;
use std::time::Instant;

use shoal_attribution::*;
use shoal_crypto::bls::{G1, G1PublicTable, G1Table, Scalar};
use shoal_crypto::quantile::median;
use shoal_crypto::{Identity, Rng};

/// Number of inputs prepared before each run, so that preparing them disturbs no cache during it.
const RUN: usize = 128;
/// Value of |t| from which on a difference is not due to chance.
const LEAK: f64 = 10.0;
const SIGNERS: usize = 8;

fn main() {
    let wanted = std::env::args().nth(1).and_then(|n| n.parse().ok());
    let mut test = Test { count: wanted.unwrap_or(20_000), rng: Rng::new([1; 32]), failed: false };
    println!("{:44} {:>9} {:>9} {:>7}", "operation", "fixed us", "random us", "max |t|");
    signing(&mut test);
    multiplying(&mut test);
    opening(&mut test);
    controls(&mut test);
    if test.failed {
        println!("a secret leaks, or the test is blind");
        std::process::exit(1);
    }
}

struct Test {
    count: usize,
    rng: Rng,
    failed: bool,
}

impl Test {
    /// Times `run` on inputs that `prepare` makes from a fixed secret (true) or a random one
    /// (false).
    fn row<I, O>(
        &mut self,
        name: &str,
        leaks: bool,
        mut prepare: impl FnMut(bool, &mut Rng) -> I,
        mut run: impl FnMut(I) -> O,
    ) {
        let mut times: [Vec<f64>; 2] = [Vec::new(), Vec::new()];
        // The first run warms up caches and predictors, and is discarded.
        for round in 0..=self.count.div_ceil(RUN) {
            let inputs: Vec<(bool, I)> = (0..RUN)
                .map(|_| {
                    let fixed = self.rng.below(2) == 0;
                    (fixed, prepare(fixed, &mut self.rng))
                })
                .collect();
            for (fixed, input) in inputs {
                let input = black_box(input);
                let start = Instant::now();
                let output = run(input);
                let time = start.elapsed().as_secs_f64() * 1e6;
                black_box(output);
                if round > 0 {
                    times[usize::from(fixed)].push(time);
                }
            }
        }
        let t = largest_t(&times);
        let verdict = match (leaks, t < 4.5, t < LEAK) {
            (true, _, false) => "public: leak found, as expected",
            (true, _, true) => "PUBLIC, BUT NO LEAK FOUND",
            (false, true, _) => "",
            (false, false, true) => "repeat the test",
            (false, false, false) => "LEAKS",
        };
        self.failed |= leaks == (t < LEAK);
        let [random, fixed] = times.map(|times| median(&times).expect("measured times"));
        println!("{name:44} {fixed:9.3} {random:9.3} {t:7.1} {verdict}");
    }
}

/// The largest |t| over all cuts: interrupts cause a long tail that hides small differences.
fn largest_t(times: &[Vec<f64>; 2]) -> f64 {
    let mut all: Vec<f64> = times.concat();
    all.sort_by(f64::total_cmp);
    let cuts = [0.5, 0.75, 0.9, 0.95, 0.99, 1.0];
    let at = |cut: f64| all[((all.len() - 1) as f64 * cut) as usize];
    cuts.into_iter().map(|cut| welch(times, at(cut)).abs()).fold(0.0, f64::max)
}

/// Welch's t of the times up to `most`.
fn welch(times: &[Vec<f64>; 2], most: f64) -> f64 {
    let [a, b] = [0, 1].map(|n| {
        let kept: Vec<f64> = times[n].iter().copied().filter(|t| *t <= most).collect();
        let count = kept.len().max(2) as f64;
        let mean = kept.iter().sum::<f64>() / count;
        let variance = kept.iter().map(|t| (t - mean).powi(2)).sum::<f64>() / (count - 1.0);
        (mean, variance / count)
    });
    let spread = (a.1 + b.1).sqrt();
    if spread > 0.0 { (a.0 - b.0) / spread } else { 0.0 }
}

fn secret(fixed: bool, rng: &mut Rng) -> Scalar {
    if fixed { Scalar::from_u64(1) } else { Scalar::random(rng) }
}

struct World {
    group: Group,
    issuer: IssuerKey,
}

fn world(rng: &mut Rng) -> World {
    let dealing = Dealing::new(1, 1, 1, b"ct", rng).expect("one of one");
    let opener = OpenerPublic::new(core::slice::from_ref(&dealing.public), 1, b"ct");
    let opener = opener.expect("a good dealing");
    let issuer = IssuerKey::from_seed(rng.array());
    let group = Group::new("ct", issuer.public(), issuer.notary().public(), opener);
    World { group: group.expect("a good name"), issuer }
}

impl World {
    fn signer(&self, x: &Scalar, rng: &mut Rng) -> Signer {
        let secret = MemberSecret::decode(&x.encode()).expect("a scalar");
        let identity = Identity::from_seed(rng.array());
        let request = secret.request(&self.group, "ct", &identity, rng).expect("a good name");
        let mut registry = Registry::new();
        registry.add(&self.group, &request).expect("a good request");
        let renewal = self.issuer.renew(&self.group, &registry, 1, 0..=1);
        let found = Renewal::pick(renewal.encode(), renewal.notice(), request.point());
        let credential = found.expect("a good renewal").expect("the only member");
        Signer::new(&self.group, secret, &credential).expect("its own")
    }
}

fn signing(test: &mut Test) {
    let mut rng = Rng::new([2; 32]);
    let world = world(&mut rng);
    let signers = [false, true].map(|fixed| -> Vec<Signer> {
        let signer = |rng: &mut Rng| {
            let x = secret(fixed, rng);
            world.signer(&x, rng)
        };
        (0..SIGNERS).map(|_| signer(&mut rng)).collect()
    });
    let message = Message { label: "ct", bytes: &[7; 32] };
    // Each measurement uses its own copy, dropped outside of it. With few signers used again and
    // again, the test would detect their memory addresses.
    test.row(
        "sign, online part: the member's secret",
        false,
        |fixed, rng| {
            let signer = signers[usize::from(fixed)][rng.below(SIGNERS as u64) as usize].clone();
            let presignature = signer.precompute(rng);
            (signer, presignature)
        },
        |(signer, presignature)| {
            let signature = signer.sign(presignature, &message);
            (signer, signature)
        },
    );
    let signer = &signers[0][0];
    test.row(
        "sign, precomputed part: its randomness",
        false,
        |fixed, rng| Rng::new(if fixed { [0; 32] } else { rng.array() }),
        |mut rng| signer.precompute(&mut rng),
    );
}

fn multiplying(test: &mut Test) {
    let table = G1Table::new(&G1::hash(b"base", b"ct"));
    test.row("fixed point times a secret (nonces)", false, secret, |k| table.mul(&k));
    test.row(
        "the member's point h^x",
        false,
        |fixed, rng| MemberSecret::decode(&secret(fixed, rng).encode()).expect("a scalar"),
        |x| x.point(),
    );
    test.row("inversion of a secret (rho)", false, secret, |k| k.invert());
    let factor = Scalar::random(&mut test.rng);
    test.row("product of secrets", false, secret, |k| k.mul(&factor));
}

fn opening(test: &mut Test) {
    let mut rng = Rng::new([3; 32]);
    let world = world(&mut rng);
    let x = Scalar::random(&mut rng);
    let signer = world.signer(&x, &mut rng);
    let message = Message { label: "ct", bytes: b"m" };
    let signature = signer.sign(signer.precompute(&mut rng), &message);
    let mut verifier = GroupVerifier::new(&world.group);
    verifier.accept_epoch(1);
    let checked = verifier.verify(1, &message, &signature).expect("a good signature");
    test.row(
        "a trustee's share of an opening",
        false,
        |fixed, rng| {
            let mut bytes = b"SAT1\x01".to_vec();
            bytes.extend_from_slice(&secret(fixed, rng).encode());
            (TrusteeKey::decode(&bytes).expect("a key"), Rng::new(rng.array()))
        },
        |(key, mut rng)| OpeningShare::new(&world.group, &key, &checked, &mut rng),
    );
}

fn controls(test: &mut Test) {
    let base = G1::hash(b"base", b"ct");
    let table = G1PublicTable::new(&base);
    test.row("control: fixed point times a public number", true, secret, |k| table.mul(&k));
    test.row(
        "control: comparing 32 bytes one by one",
        true,
        |fixed, rng| if fixed { [0; 32] } else { rng.array::<32>() },
        |bytes| bytes.iter().position(|b| black_box(*b) != 0),
    );
}
