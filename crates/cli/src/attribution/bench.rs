//! Measures this machine, beside the paper's table.

use std::hint::black_box;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::json;
use shoal_attribution::{
    Dealing, FlowId, Group, GroupVerifier, IssuerKey, MemberSecret, Message, OpenerPublic,
    ProofChecked, Registry, Renewal, Signature, Signer, StampTrial, packet_hash,
};
use shoal_crypto::bls::{BadElement, G1};
use shoal_crypto::{Identity, Rng};

use super::files;
use crate::output::{TextTable, plain};

const PACKET: usize = 1_400;
const EPOCH: u32 = 1;
const FLOW: FlowId = FlowId(*b"a flow to bench.");

struct BenchRow {
    what: &'static str,
    paper: &'static str,
    want: &'static str,
    value: f64,
    unit: &'static str,
}

struct BenchGroup {
    group: Group,
    issuer: IssuerKey,
    signer: Signer,
    rng: Rng,
}

fn world() -> Result<BenchGroup> {
    let mut rng = files::rng()?;
    let dealing = Dealing::new(0, 2, 3, b"bench", &mut rng)?;
    let opener = OpenerPublic::new(core::slice::from_ref(&dealing.public), 3, b"bench")?;
    let issuer = IssuerKey::from_seed(rng.array());
    let group = Group::new("bench", issuer.public(), issuer.notary().public(), opener)?;
    let secret = MemberSecret::new(&mut rng);
    let identity = Identity::from_seed(rng.array());
    let request = secret.request(&group, "bench", &identity, &mut rng)?;
    let mut registry = Registry::new();
    registry.add(&group, &request)?;
    let renewal = issuer.renew(&group, &registry, EPOCH, 0..=u64::MAX);
    let found = Renewal::pick(renewal.encode(), renewal.notice(), request.point())?;
    let credential = found.context("the only member has no credential")?;
    let signer = Signer::new(&group, secret, &credential)?;
    Ok(BenchGroup { group, issuer, signer, rng })
}

/// Best time of one call, in milliseconds. A sample is a run of `per_round` calls, so short that
/// other programs disturb few samples.
fn best(rounds: u32, per_round: u32, mut call: impl FnMut()) -> f64 {
    let sample = |call: &mut dyn FnMut()| {
        let start = Instant::now();
        (0..per_round).for_each(|_| call());
        start.elapsed().as_secs_f64() * 1_000.0 / f64::from(per_round)
    };
    (0..rounds * 20).map(|_| sample(&mut call)).fold(f64::MAX, f64::min)
}

fn message(bytes: &[u8]) -> Message<'_> {
    Message { label: "bench", bytes }
}

fn signing(world: &mut BenchGroup, rounds: u32, rows: &mut Vec<BenchRow>) {
    let signer = world.signer.clone();
    let rng = &mut world.rng;
    let value = best(rounds, 2, || {
        black_box(signer.precompute(rng));
    });
    let row = |what, paper, want, value| BenchRow { what, paper, want, value, unit: "ms" };
    rows.push(row("sign, precomputed part", "6.14", "1.0", value));
    for (packets, what, paper, want) in [
        (1u64, "sign with precomputed values, 1 packet", "0.022", "0.005"),
        (8, "sign with precomputed values, 8 packets", "0.058", "0.012"),
    ] {
        let data = vec![7u8; PACKET];
        let mut value = f64::MAX;
        for _ in 0..rounds * 40 {
            let presignature = signer.precompute(rng);
            let start = Instant::now();
            let hashes: Vec<[u8; 32]> =
                (0..packets).map(|n| packet_hash(&FLOW, n, black_box(&data))).collect();
            black_box(signer.sign(presignature, &message(hashes.as_flattened())));
            value = value.min(start.elapsed().as_secs_f64() * 1_000.0);
        }
        rows.push(row(what, paper, want, value));
    }
}

fn verifying(world: &mut BenchGroup, rounds: u32, rows: &mut Vec<BenchRow>) {
    let mut verifier = GroupVerifier::new(&world.group);
    verifier.accept_epoch(EPOCH);
    let mut sign = || {
        let presignature = world.signer.precompute(&mut world.rng);
        world.signer.sign(presignature, &message(b"m"))
    };
    let batch: Vec<Signature> = (0..64).map(|_| sign()).collect();
    let good = batch[0];
    let row = |what, paper, want, value| BenchRow { what, paper, want, value, unit: "ms" };
    let value = best(rounds, 1, || {
        assert!(verifier.verify(EPOCH, &message(b"m"), black_box(&good)).is_ok());
    });
    rows.push(row("verify", "15.7", "1.5", value));
    let mut rng = Rng::new(world.rng.fork("batch"));
    let value = best(rounds, 1, || {
        let check = |s| verifier.check(EPOCH, &message(b"m"), black_box(s)).ok();
        let candidates: Vec<ProofChecked> = batch.iter().filter_map(check).collect();
        let verdicts = verifier.verify_batch(&candidates, &mut rng);
        assert!(verdicts.iter().filter(|v| v.is_ok()).count() == batch.len());
    });
    rows.push(row("verify, batch of 64, each", "none", "0.7", value / batch.len() as f64));
    let value = best(rounds, 1, || {
        assert!(verifier.verify(EPOCH, &message(b"n"), black_box(&good)).is_err());
    });
    rows.push(row("reject a corrupted signature", "4.85", "0.7", value));
    let mut malformed = good;
    // The last point loses its compression flag. The decoder finds that after all its other work.
    malformed.0[4 * 48] ^= 0x80;
    let value = best(rounds, 1, || {
        assert!(verifier.verify(EPOCH, &message(b"m"), black_box(&malformed)).is_err());
    });
    rows.push(row("reject a malformed signature", "", "0.1", value));
    malformed.0[4 * 48..5 * 48].copy_from_slice(&refused_as(BadElement::NotOnCurve));
    let value = best(rounds, 1, || {
        assert!(verifier.verify(EPOCH, &message(b"m"), black_box(&malformed)).is_err());
    });
    rows.push(row("reject a last point not on the curve", "", "0.1", value));
    malformed.0[4 * 48..5 * 48].copy_from_slice(&refused_as(BadElement::NotInSubgroup));
    let value = best(rounds, 1, || {
        assert!(verifier.verify(EPOCH, &message(b"m"), black_box(&malformed)).is_err());
    });
    rows.push(row("reject a last point outside the subgroup", "", "0.7", value));
}

/// Bytes that decode to no point of G1, for this reason.
fn refused_as(why: BadElement) -> [u8; 48] {
    // x = 0 is refused early, as its y is known.
    let mut candidates = (1..=u8::MAX).map(|n| {
        let mut bytes = [n; 48];
        bytes[0] = 0x80;
        bytes
    });
    candidates.find(|bytes| G1::decode(bytes) == Err(why)).unwrap_or([0; 48])
}

/// The result of one stream.
struct StreamFigures {
    gbits: f64,
    bytes_per_packet: f64,
    frames_per_packet: f64,
}

/// Stamps and verifies two windows, `rounds` times, on this thread. `loss` is in thousandths. The
/// best round counts.
fn stream(
    world: &mut BenchGroup,
    window: usize,
    rounds: usize,
    loss: u64,
) -> Result<StreamFigures> {
    let mut group = GroupVerifier::new(&world.group);
    group.accept_epoch(EPOCH);
    let mut trial = StampTrial::new(world.signer.clone(), group, window, PACKET, loss)?;
    let mut best = f64::MAX;
    for _ in 0..rounds {
        let start = cpu_time()?;
        let delivered = trial.run(2)?;
        best = best.min((cpu_time()? - start).as_secs_f64() / delivered.max(1) as f64);
    }
    Ok(StreamFigures {
        gbits: PACKET as f64 * 8.0 / best / 1e9,
        bytes_per_packet: trial.bytes_per_packet(),
        frames_per_packet: trial.frame_bytes_per_packet(),
    })
}

/// CPU time of this thread. Wall time would be wrong: other programs run during a window.
fn cpu_time() -> Result<Duration> {
    Ok(nix::time::clock_gettime(nix::time::ClockId::CLOCK_THREAD_CPUTIME_ID)?.into())
}

fn streaming(world: &mut BenchGroup, rounds: u32, rows: &mut Vec<BenchRow>) -> Result<()> {
    let windows = rounds as usize * 2;
    let row = |what, paper, want, value, unit| BenchRow { what, paper, want, value, unit };
    let clean = stream(world, 4_096, windows, 0)?;
    let lossy = stream(world, 4_096, windows, 50)?;
    let small = stream(world, 256, windows * 4, 0)?;
    let small_lossy = stream(world, 256, windows * 4, 50)?;
    let what = "stream, window 4096, sign + verify, 0% loss";
    rows.push(row(what, "0.0175", "4", clean.gbits, "Gbit/s"));
    let what = "stream, window 4096, sign + verify, 5% loss";
    rows.push(row(what, "", "3", lossy.gbits, "Gbit/s"));
    for (window, want, clean, lossy) in
        [("256", "24", small, small_lossy), ("4096", "20", clean, lossy)]
    {
        let is_small = window == "256";
        let name = |a, b| if is_small { a } else { b };
        let what = name("bytes per packet, window 256", "bytes per packet, window 4096");
        rows.push(row(what, "", want, clean.bytes_per_packet, "B"));
        let what = name("  the same as whole frames", "  the same as whole frames ");
        rows.push(row(what, "", "", clean.frames_per_packet, "B"));
        let what =
            name("  with 5% loss, resends and requests", "  with 5% loss, resends, requests");
        rows.push(row(what, "", want, lossy.bytes_per_packet, "B"));
    }
    Ok(())
}

/// The cost of revocation with epochs, and what verifier-local lists would cost.
fn revocation(world: &mut BenchGroup, rounds: u32, rows: &mut Vec<BenchRow>) -> Result<()> {
    const MEMBERS: usize = 32;
    let mut registry = Registry::new();
    for n in 0..MEMBERS {
        let secret = MemberSecret::new(&mut world.rng);
        let identity = Identity::from_seed(world.rng.array());
        let name = format!("member {n}");
        let request = secret.request(&world.group, &name, &identity, &mut world.rng)?;
        registry.add(&world.group, &request)?;
    }
    let renew = best(rounds, 1, || {
        black_box(world.issuer.renew(&world.group, &registry, EPOCH + 1, 0..=u64::MAX));
    }) / MEMBERS as f64;
    let token = shoal_crypto::bls::Scalar::random(&mut world.rng);
    let base = G1::hash(b"a signature's base", b"bench");
    let check = best(rounds, 1, || {
        black_box(base.mul(&token));
    });
    let row = |what, value| BenchRow { what, paper: "", want: "", value, unit: "ms" };
    rows.push(row("revocation by epoch: issuer, for each remaining member", renew));
    rows.push(row("  signer and verifier, 10 or 100,000 revoked", 0.0));
    rows.push(row("verifier-local list: each signature, 10 revoked", check * 10.0));
    rows.push(row("  1,000 revoked", check * 1_000.0));
    rows.push(row("  100,000 revoked", check * 100_000.0));
    Ok(())
}

/// Measures, and prints the table.
pub fn run(json: bool, args: &super::AttributionBenchArgs) -> Result<()> {
    let mut world = world()?;
    let mut rows = Vec::new();
    let rounds = args.rounds.clamp(1, 100);
    signing(&mut world, rounds, &mut rows);
    verifying(&mut world, rounds, &mut rows);
    streaming(&mut world, rounds, &mut rows)?;
    revocation(&mut world, rounds, &mut rows)?;
    if json {
        let rows: Vec<_> = rows
            .iter()
            .map(|r| {
                json!({ "what": r.what.trim(), "value": r.value, "unit": r.unit,
                    "goal": r.want, "clue_2011": r.paper })
            })
            .collect();
        crate::output::json("bench", &rows)?;
        return Ok(());
    }
    let mut table =
        TextTable::new(&["one core, best of many", ">Clue 2011", ">goal", ">here", "unit"]);
    for row in rows {
        let value = format!("{:.4}", row.value);
        let cells = [row.what, row.paper, row.want, &value, row.unit].map(str::to_owned);
        table.row(plain(cells));
    }
    table.print()?;
    Ok(())
}
