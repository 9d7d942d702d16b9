//! Attacks that need private parts of the crate.

use shoal_crypto::bls::{BadElement, G1, G1Unchecked, Scalar, SplitChallenge};
use shoal_crypto::{Identity, Rng};

use crate::{
    Dealing, EpochNotice, Group, GroupVerifier, IssuerKey, MemberCredential, MemberSecret, Message,
    OpenerPublic, Registry, Renewal, Signature, SignatureError, Signer,
};

const EPOCH: u32 = 7;
const M: Message<'_> = Message { label: "test", bytes: b"m" };

struct World {
    rng: Rng,
    group: Group,
    issuer: IssuerKey,
    verifier: GroupVerifier,
}

fn world() -> World {
    let mut rng = Rng::new([9; 32]);
    let dealing = Dealing::new(1, 1, 1, b"t", &mut rng).unwrap();
    let opener = OpenerPublic::new(core::slice::from_ref(&dealing.public), 1, b"t").unwrap();
    let issuer = IssuerKey::from_seed([8; 32]);
    let group = Group::new("inside", issuer.public(), issuer.notary().public(), opener).unwrap();
    let mut verifier = GroupVerifier::new(&group);
    verifier.accept_epoch(EPOCH);
    World { rng, group, issuer, verifier }
}

impl World {
    fn member(&mut self, name: &str) -> (MemberSecret, MemberCredential) {
        let secret = MemberSecret::new(&mut self.rng);
        let identity = Identity::from_seed(self.rng.array());
        let request = secret.request(&self.group, name, &identity, &mut self.rng).unwrap();
        let mut registry = Registry::new();
        registry.add(&self.group, &request).unwrap();
        let renewal = self.issuer.renew(&self.group, &registry, EPOCH, 0..=u64::MAX);
        let found = Renewal::pick(renewal.encode(), renewal.notice(), request.point());
        (secret, found.unwrap().unwrap())
    }

    /// The notice of an epoch without members.
    fn notice(&self, epoch: u32) -> EpochNotice {
        self.issuer.renew(&self.group, &Registry::new(), epoch, 0..=0).notice().clone()
    }

    fn sign(&mut self, signer: &Signer) -> Signature {
        let presignature = signer.precompute(&mut self.rng);
        signer.sign(presignature, &M)
    }

    /// A signature with a valid proof over a credential that nobody issued.
    fn self_issued(&mut self) -> Signature {
        let secret = MemberSecret::new(&mut self.rng);
        let a = G1::hash(&self.rng.array::<8>(), b"any point");
        let notice = self.notice(EPOCH);
        let credential = MemberCredential { notice, a, e: Scalar::random(&mut self.rng) };
        assert!(credential.verify(&self.group, &secret).is_err());
        let signer = Signer::assemble(&self.group, secret, &credential).unwrap();
        self.sign(&signer)
    }
}

#[test]
fn a_self_issued_credential_fails_at_the_pairing() {
    let mut world = world();
    let forged = world.self_issued();
    assert!(world.verifier.check(EPOCH, &M, &forged).is_ok());
    assert_eq!(world.verifier.verify(EPOCH, &M, &forged).err(), Some(SignatureError::Credential));
}

#[test]
fn bisection_finds_every_bad_one_in_a_batch() {
    let mut world = world();
    let (secret, credential) = world.member("alice");
    let signer = Signer::new(&world.group, secret, &credential).unwrap();
    for bad in [vec![], vec![0], vec![15], vec![3, 4, 11], (0..16).collect()] {
        let signatures: Vec<Signature> = (0..16)
            .map(|n| if bad.contains(&n) { world.self_issued() } else { world.sign(&signer) })
            .collect();
        let checked: Vec<_> =
            signatures.iter().map(|s| world.verifier.check(EPOCH, &M, s).unwrap()).collect();
        let verdicts = world.verifier.verify_batch(&checked, &mut world.rng);
        let verdicts: Vec<bool> = verdicts.iter().map(Result::is_ok).collect();
        let want: Vec<bool> = (0..16).map(|n| !bad.contains(&n)).collect();
        assert_eq!(verdicts, want);
    }
}

/// Two bad signatures whose errors cancel in a sum without coefficients.
#[test]
fn errors_cannot_cancel_in_a_batch() {
    let mut world = world();
    let (secret, credential) = world.member("alice");
    let signer = Signer::new(&world.group, secret, &credential).unwrap();
    let signature = world.sign(&signer);
    let good = world.verifier.check(EPOCH, &M, &signature).unwrap();
    let slip = G1::hash(b"slip", b"any point");
    let pair = [good.slipped(0, &slip), good.slipped(0, &slip.neg())];
    let verdicts = world.verifier.verify_batch(&pair, &mut world.rng);
    let verdicts: Vec<_> = verdicts.iter().map(|v| v.as_ref().err()).collect();
    assert_eq!(verdicts, [Some(&SignatureError::Credential); 2]);
}

/// A point of order 3, outside the subgroup: a third of the curve's order times a point. One point
/// in three gives the neutral element instead. blst does not decode such a point, but adds with it.
fn of_order_three() -> G1 {
    const THIRD: [u8; 48] = [
        0x08, 0xab, 0x05, 0xf8, 0xbd, 0xd5, 0x4c, 0xde, 0x19, 0x09, 0x37, 0xe7, 0x6b, 0xc3, 0xe4,
        0x47, 0xcc, 0x27, 0xc3, 0xd6, 0xfb, 0xd7, 0x06, 0x3f, 0xcd, 0x10, 0x46, 0x35, 0xa7, 0x90,
        0x52, 0x0c, 0x0a, 0x39, 0x55, 0x54, 0xe5, 0xc6, 0xaa, 0xaa, 0xd9, 0x55, 0x55, 0x55, 0x55,
        0x55, 0x8e, 0x39,
    ];
    let bits = THIRD.iter().flat_map(|byte| (0..8).rev().map(move |bit| byte >> bit & 1 == 1));
    let candidates = (1..=u8::MAX).filter_map(|n| {
        let mut bytes = [n; 48];
        bytes[0] = 0x80;
        let point = G1Unchecked::decode(&bytes).ok()?.unproved();
        let step = |sum: G1, bit| if bit { sum.double().add(&point) } else { sum.double() };
        Some(bits.clone().fold(G1::identity(), step))
    });
    let mut points = candidates.filter(|point| !point.is_identity());
    let point = points.next().expect("a point of order 3");
    assert!(point.double().add(&point).is_identity());
    point
}

/// A member can make a valid proof over a point outside the subgroup, by trying until the challenge
/// does not reveal it. If such a signature were accepted, openings would fail.
#[test]
fn a_member_who_leaves_the_subgroup_is_refused_alone_and_in_a_batch() {
    let outside = Some(SignatureError::Malformed(BadElement::NotInSubgroup));
    let mut world = world();
    let (secret, credential) = world.member("mallory");
    let honest = Signer::new(&world.group, secret.clone(), &credential).unwrap();
    let mut signer = honest.clone();
    signer.claim(secret.point().add(&of_order_three()));
    let mut tries = 0;
    let bad = loop {
        tries += 1;
        assert!(tries < 60, "a third of all tries should do");
        let signature = world.sign(&signer);
        if world.verifier.check(EPOCH, &M, &signature).is_ok() {
            break signature;
        }
    };
    assert_eq!(world.verifier.verify(EPOCH, &M, &bad).err(), outside);
    for count in [1, 2, 16, 17, 40] {
        for at in [0, count / 2, count - 1] {
            let mut batch: Vec<_> = (0..count).map(|_| world.sign(&honest)).collect();
            batch[at] = bad;
            let candidates: Vec<_> =
                batch.iter().map(|s| world.verifier.check(EPOCH, &M, s).unwrap()).collect();
            let verdicts = world.verifier.verify_batch(&candidates, &mut world.rng);
            for (n, verdict) in verdicts.iter().enumerate() {
                assert_eq!(verdict.as_ref().err().copied(), outside.filter(|_| n == at));
            }
        }
    }
}

/// Errors of small order in one point of two signatures of a batch, which cancel in sums.
#[test]
fn errors_of_small_order_cannot_cancel_in_a_batch() {
    let mut world = world();
    let (secret, credential) = world.member("alice");
    let signer = Signer::new(&world.group, secret, &credential).unwrap();
    let slip = of_order_three();
    for point in 0..5 {
        let sign = |world: &mut World| {
            let signature = world.sign(&signer);
            world.verifier.check(EPOCH, &M, &signature).unwrap()
        };
        let mut batch: Vec<_> = (0..20).map(|_| sign(&mut world)).collect();
        batch[3] = batch[3].slipped(point, &slip);
        batch[11] = batch[11].slipped(point, &slip.neg());
        let verdicts = world.verifier.verify_batch(&batch, &mut world.rng);
        let bad: Vec<usize> = (0..20).filter(|n| verdicts[*n].is_err()).collect();
        assert_eq!(bad, [3, 11], "point {point}");
    }
}

#[test]
fn nobody_is_framed_without_the_secret() {
    let mut world = world();
    let (alice, _) = world.member("alice");
    let (mallory, credential) = world.member("mallory");
    // Mallory has a valid credential and knows alice's point, as issuer and trustees may.
    let mut signer = Signer::new(&world.group, mallory, &credential).unwrap();
    signer.claim(alice.point());
    let framed = world.sign(&signer);
    assert_eq!(world.verifier.verify(EPOCH, &M, &framed).err(), Some(SignatureError::Proof));
}

#[test]
fn an_old_credential_is_none_for_a_new_epoch() {
    let mut world = world();
    world.verifier.accept_epoch(EPOCH + 1);
    let (secret, credential) = world.member("alice");
    let moved = MemberCredential { notice: world.notice(EPOCH + 1), ..credential };
    assert!(Signer::new(&world.group, secret.clone(), &moved).is_err());
    let signer = Signer::assemble(&world.group, secret, &moved).unwrap();
    let signature = world.sign(&signer);
    let verdict = world.verifier.verify(EPOCH + 1, &M, &signature).err();
    assert_eq!(verdict, Some(SignatureError::Credential));
}

/// The reason for guarding nonces: two signatures from one presignature reveal the secret.
#[test]
fn a_nonce_used_twice_reveals_the_secret() {
    let mut world = world();
    let (secret, credential) = world.member("alice");
    let signer = Signer::new(&world.group, secret.clone(), &credential).unwrap();
    let presignature = signer.precompute(&mut world.rng);
    let copy = presignature.copy();
    let one = signer.sign(presignature, &M);
    let two = signer.sign(copy, &Message { label: "test", bytes: b"n" });
    let part = |s: &Signature, at: usize| {
        let mut out = [0; 32];
        out.copy_from_slice(&s.0[at..at + 32]);
        out
    };
    let c = |s: &Signature| SplitChallenge::from_hash(&part(s, 240)).scalar();
    let z = |s: &Signature| Scalar::decode(&part(s, 272 + 64)).unwrap();
    let x = z(&one).sub(&z(&two)).mul(&c(&one).sub(&c(&two)).invert());
    assert_eq!(x.encode(), secret.encode());
}
