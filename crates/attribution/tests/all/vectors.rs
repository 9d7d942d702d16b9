//! Golden vectors (docs/design/wire/attribution.md): made by this code from fixed seeds, so that no
//! change of a byte goes unnoticed. Each one decodes, and encodes to the same bytes.
//!
//! `SHOAL_WRITE_VECTORS=1 cargo test -p shoal-attribution --test all vectors::` writes new ones. A
//! change means a new version of the format.

use std::path::Path;
use std::sync::OnceLock;

use crate::common::World;
use shoal_attribution::*;
use shoal_crypto::encoding::hex;
use shoal_crypto::{Identity, Rng};
use shoal_wire::Time;

/// Name, bytes, and a function that decodes and encodes again.
type GoldenVector = (&'static str, Vec<u8>, fn(&[u8]) -> Option<Vec<u8>>);

fn part(bytes: &[u8]) -> Option<Vec<u8>> {
    Some(match StampPart::decode(bytes).ok()? {
        StampPart::Seal(seal) => seal.encode(),
        StampPart::Chunk(chunk) => chunk.encode(),
        StampPart::Request(request) => request.encode(),
    })
}

fn issuer() -> &'static (IssuerKey, Group) {
    static CELL: OnceLock<(IssuerKey, Group)> = OnceLock::new();
    CELL.get_or_init(|| {
        let world = World::new(2, 3);
        (world.issuer, world.group)
    })
}

/// The stamp of a window of 90 packets: a chunk and the seal.
fn stamp(flow: FlowId, signer: Signer) -> [Vec<u8>; 2] {
    let mut pool = Pool::new(signer, 1, [44; 32], 1, Time::ZERO);
    let mut config = StamperConfig::new(flow);
    config.unix_ms_at_zero = 1_800_000_000_000;
    let mut stamper = Stamper::new(config, [45; 32], Time::ZERO);
    for n in 0..90u8 {
        stamper.handle_packet(&[n; 100], &mut pool, 1, Time::ZERO).unwrap();
    }
    stamper.flush(&mut pool, 1, Time::ZERO).unwrap();
    core::array::from_fn(|_| stamper.poll_transmit().unwrap())
}

fn vectors() -> Vec<GoldenVector> {
    let mut world = World::new(2, 3);
    let mut rng = Rng::new([42; 32]);
    let secret = MemberSecret::new(&mut rng);
    let identity = Identity::from_seed([43; 32]);
    let request = secret.request(&world.group, "alice", &identity, &mut rng).unwrap();
    world.registry.add(&world.group, &request).unwrap();
    // Further members, so that the registry's tree has a path.
    world.join("bob", 0);
    world.join("carol", 0);
    let seconds = 1_799_999_000..=1_800_001_000;
    let renewal = world.issuer.renew(&world.group, &world.registry, 7, seconds);
    world.notice = renewal.notice().clone();
    let credential = world.credential(&renewal, &secret);
    let mut seen = NoticeMemory::new();
    seen.take(&world.group, &world.notice, 1_800_000_000).unwrap();
    let signer = Signer::new(&world.group, secret, &credential).unwrap();
    let flow = FlowId(*b"flow of vectors.");
    let [chunk, seal] = stamp(flow, signer);
    let evidence = Evidence::new(3, packet_hash(&flow, 3, &[3; 100]), &seal, Some(&chunk));
    let mut receiver = Verifier::new(
        VerifierConfig { unix_ms_at_zero: 1_800_000_000_000, ..VerifierConfig::default() },
        world.verifier.clone(),
        [47; 32],
    );
    receiver.add_flow(flow, 1, Time::ZERO).unwrap();
    for n in [0u8, 3, 81, 82, 89] {
        receiver.handle_packet(&flow, u64::from(n), &[n; 100], Time::ZERO).unwrap();
    }
    receiver.handle_part(1, &chunk, Time::ZERO).unwrap();
    receiver.handle_part(1, &seal, Time::ZERO).unwrap();
    receiver.work(1);
    let kept = receiver.kept().encode(world.group.id());
    let proved = evidence.verify(&world.verifier).unwrap();
    let shares = world.shares(&proved.checked, &[1, 3]);
    let opening = world.opening(&proved.checked, &shares).unwrap();
    opening.judge_packet(&world.group, &proved).unwrap();
    let registry = world.registry.encode(&world.issuer, &world.group);
    let missing = PartRequest { flow, seq: 5, missing: PartRequest::SEAL | 1 };
    vec![
        ("group", world.group.encode(), |b| Some(Group::decode(b).ok()?.encode())),
        ("join_request", request.encode(), |b| Some(JoinRequest::decode(b).ok()?.encode())),
        ("credential", credential.encode(), |b| Some(MemberCredential::decode(b).ok()?.encode())),
        ("registry", registry, |b| {
            let (issuer, group) = issuer();
            Some(Registry::decode(b, group).ok()?.encode(issuer, group))
        }),
        ("epoch_notice", world.notice.encode(), |b| Some(EpochNotice::decode(b).ok()?.encode())),
        ("renewal", renewal.encode().to_vec(), |b| {
            let point = JoinRequest::decode(&vector("join_request")).ok()?;
            let notice = EpochNotice::decode(&vector("epoch_notice")).ok()?;
            Renewal::pick(b, &notice, point.point()).ok()?.map(|_| b.to_vec())
        }),
        ("seen", seen.encode(), |b| Some(NoticeMemory::decode(b).ok()?.encode())),
        ("seal", seal, part),
        ("chunk", chunk, part),
        ("request", missing.encode(), part),
        ("evidence", evidence.encode(), |b| Some(Evidence::decode(b).ok()?.encode())),
        ("kept", kept, |b| {
            let group = Group::decode(&vector("group")).ok()?.id();
            Some(EvidenceRing::decode(b, group, 1_000).ok()?.encode(group))
        }),
        ("opening_share", shares[0].encode(), |b| Some(OpeningShare::decode(b).ok()?.encode())),
        ("opening", opening.encode(), |b| Some(Opening::decode(b).ok()?.encode())),
    ]
}

fn file(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("vectors/{name}.hex"))
}

fn vector(name: &str) -> Vec<u8> {
    let text = std::fs::read_to_string(file(name)).unwrap_or_default();
    let digits: Vec<u8> =
        text.lines().filter(|l| !l.starts_with('#')).flat_map(str::bytes).collect();
    let digit = |d: u8| char::from(d).to_digit(16).expect("a hex digit") as u8;
    digits.chunks_exact(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect()
}

#[test]
fn bytes_are_as_they_were() {
    let write = std::env::var_os("SHOAL_WRITE_VECTORS").is_some();
    for (name, bytes, again) in vectors() {
        if write {
            let lines: Vec<String> = bytes.chunks(48).map(hex).collect();
            let head = format!("# {name}: from the seeds in tests/vectors.rs; version 2");
            std::fs::write(file(name), format!("{head}\n{}\n", lines.join("\n"))).unwrap();
        }
        assert_eq!(vector(name), bytes, "{name}");
        assert_eq!(again(&bytes), Some(bytes), "{name}");
    }
}

#[test]
fn no_vector_decodes_when_cut_or_prolonged() {
    for (name, bytes, again) in vectors() {
        for len in 0..bytes.len() {
            // A truncated seal or registry is never another valid one: counts come first.
            assert_eq!(again(&bytes[..len]), None, "{name} cut to {len}");
        }
        assert_eq!(again(&[&bytes[..], &[0]].concat()), None, "{name} with a byte more");
    }
}

/// Changed bytes never make a decoder panic. If they decode, they encode to the same bytes.
#[test]
fn changed_vectors_decode_to_themselves_or_not_at_all() {
    let mut rng = Rng::new([46; 32]);
    for (name, bytes, again) in vectors() {
        for _ in 0..100 {
            let mut changed = bytes.clone();
            changed[rng.below(bytes.len() as u64) as usize] = rng.u32() as u8;
            if let Some(encoded) = again(&changed) {
                assert_eq!(encoded, changed, "{name}");
            }
        }
    }
}
