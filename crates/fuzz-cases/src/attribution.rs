//! Decoders of `shoal-attribution`: decoded values must encode to the same bytes, nothing panics,
//! and no input is a valid signature.

use std::sync::OnceLock;

use shoal_attribution::{
    Dealing, DealingPublic, EpochNotice, Evidence, EvidenceRing, FlowId, Group, GroupId,
    GroupVerifier, IssuerKey, JoinRequest, MemberCredential, Message, NoticeMemory, OpenerPublic,
    Opening, OpeningShare, Registry, Renewal, SIGNATURE_LEN, Signature, StampPart, TrusteeKey,
    Verifier, VerifierConfig,
};
use shoal_crypto::Rng;
use shoal_crypto::bls::{G1, G2, Scalar};
use shoal_wire::Time;

fn group() -> &'static Group {
    static CELL: OnceLock<Group> = OnceLock::new();
    CELL.get_or_init(|| {
        let mut rng = Rng::new([1; 32]);
        let dealing = Dealing::new(1, 1, 1, b"fuzz", &mut rng).expect("one of one");
        let public = core::slice::from_ref(&dealing.public);
        let opener = OpenerPublic::new(public, 1, b"fuzz").expect("a good dealing");
        let issuer = issuer();
        Group::new("fuzz", issuer.public(), issuer.notary().public(), opener).expect("a good name")
    })
}

fn issuer() -> IssuerKey {
    IssuerKey::from_seed([2; 32])
}

fn group_verifier() -> &'static GroupVerifier {
    static CELL: OnceLock<GroupVerifier> = OnceLock::new();
    CELL.get_or_init(|| {
        let mut verifier = GroupVerifier::new(group());
        verifier.accept_epoch(0);
        verifier
    })
}

/// A scalar, a point of G1 or a point of G2: the longest for which the input has enough bytes.
pub fn elements(data: &[u8]) {
    if let Some(bytes) = data.first_chunk::<96>() {
        if let Ok(point) = G2::decode(bytes) {
            assert_eq!(point.encode(), *bytes);
        }
    } else if let Some(bytes) = data.first_chunk::<48>() {
        if let Ok(point) = G1::decode(bytes) {
            assert_eq!(point.encode(), *bytes);
            let minus_one = Scalar::from_u64(1).neg();
            assert!(point.mul(&minus_one).add(&point).is_identity(), "outside the subgroup");
        }
    } else if let Some(bytes) = data.first_chunk::<32>()
        && let Ok(scalar) = Scalar::decode(bytes)
    {
        assert_eq!(scalar.encode(), *bytes);
    }
}

/// Every kind of file, by its first four bytes.
pub fn files(data: &[u8]) {
    let again = match data.first_chunk::<4>() {
        Some(b"SAG1") => Group::decode(data).map(|v| v.encode()),
        Some(b"SAT1") => TrusteeKey::decode(data).map(|v| v.encode()),
        Some(b"SAD1") => DealingPublic::decode(data).map(|v| v.encode()),
        Some(b"SAJ1") => JoinRequest::decode(data).map(|v| v.encode()),
        Some(b"SAC2") => MemberCredential::decode(data).map(|v| v.encode()),
        Some(b"SAR2") => {
            let (issuer, group) = (issuer(), group());
            Registry::decode(data, group).map(|v| v.encode(&issuer, group))
        }
        Some(b"SAP1") => NoticeMemory::decode(data).map(|v| v.encode()),
        Some(b"SAE2") => EpochNotice::decode(data).map(|v| v.encode()),
        Some(b"SAS1") => OpeningShare::decode(data).map(|v| v.encode()),
        Some(b"SAO2") => Opening::decode(data).map(|v| v.encode()),
        Some(b"SAV1") => Evidence::decode(data).map(|v| v.encode()),
        Some(b"SAK1") => {
            // Any group id is well-formed.
            let id = data.get(4..36).and_then(|id| id.try_into().ok());
            let id = GroupId(id.unwrap_or_default());
            EvidenceRing::decode(data, id, usize::MAX).map(|v| v.encode(id))
        }
        Some(b"SAN1") => {
            let renewal = issuer().renew(group(), &Registry::new(), 0, 0..=0);
            let _ = Renewal::pick(data, renewal.notice(), &G1::hash(b"somebody", b"fuzz"));
            return;
        }
        _ => return,
    };
    if let Ok(again) = again {
        assert_eq!(again, data);
    }
}

/// A signature over an empty message that nobody signed.
pub fn signature(data: &[u8]) {
    let verifier = group_verifier();
    let mut bytes = [0; SIGNATURE_LEN];
    let len = data.len().min(SIGNATURE_LEN);
    bytes[..len].copy_from_slice(&data[..len]);
    let message = Message { label: "fuzz", bytes: b"" };
    assert!(verifier.check(0, &message, &Signature(bytes)).is_err(), "a forged proof holds");
}

/// One stamp part.
pub fn parts(data: &[u8]) {
    if let Ok(part) = StampPart::decode(data) {
        let again = match &part {
            StampPart::Seal(seal) => seal.encode(),
            StampPart::Chunk(chunk) => chunk.encode(),
            StampPart::Request(request) => request.encode(),
        };
        assert_eq!(again, data);
    }
}

/// Stamp parts, each preceded by its length, for a verifier that knows their flows.
pub fn stamps(data: &[u8]) {
    let mut rest = data;
    let group = group_verifier().clone();
    let mut verifier = Verifier::new(VerifierConfig::default(), group, [3; 32]);
    let mut now = Time::ZERO;
    while let Some((head, tail)) = rest.split_first_chunk::<2>() {
        let len = usize::from(u16::from_be_bytes(*head)).min(tail.len());
        let (bytes, tail) = tail.split_at(len);
        rest = tail;
        now = Time(now.0 + 50_000_000);
        parts(bytes);
        if let Some(flow) = bytes.get(1..17).and_then(|f| f.try_into().ok()) {
            let flow = FlowId(flow);
            let _ = verifier.add_flow(flow, 1, now);
            let seq = bytes.get(17..25).and_then(|s| s.try_into().ok()).map(u64::from_be_bytes);
            let _ = verifier.handle_packet(&flow, seq.unwrap_or(0), bytes, now);
        }
        let _ = verifier.handle_part(1, bytes, now);
        verifier.work(1);
        verifier.handle_timeout(now);
        while verifier.poll_event().is_some() || verifier.poll_transmit().is_some() {}
    }
}
