//! What only an attacker would do, from inside.

use shoal_crypto::bls::{G1, Scalar, SplitChallenge};
use shoal_crypto::{Identity, Rng};

use crate::{
    Credential, Dealing, Group, GroupVerifier, IssuerKey, MemberSecret, Message, OpenerPublic,
    Registry, Reject, Signature, Signer,
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
    fn member(&mut self, name: &str) -> (MemberSecret, Credential) {
        let secret = MemberSecret::new(&mut self.rng);
        let identity = Identity::from_seed(self.rng.array());
        let request = secret.request(&self.group, name, &identity, &mut self.rng).unwrap();
        let mut registry = Registry::new();
        let credential = self.issuer.issue(&self.group, &mut registry, &request, EPOCH).unwrap();
        (secret, credential)
    }

    fn sign(&mut self, signer: &Signer) -> Signature {
        let presignature = signer.precompute(&mut self.rng);
        signer.sign(presignature, &M)
    }

    /// A signature with a proof that holds over a credential that nobody issued.
    fn self_issued(&mut self) -> Signature {
        let secret = MemberSecret::new(&mut self.rng);
        let a = G1::hash(&self.rng.array::<8>(), b"any point");
        let credential = Credential { epoch: EPOCH, a, e: Scalar::random(&mut self.rng) };
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
    assert_eq!(world.verifier.verify(EPOCH, &M, &forged).err(), Some(Reject::Credential));
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
        let verdicts = world.verifier.verify_credentials(&checked, &mut world.rng);
        let want: Vec<bool> = (0..16).map(|n| !bad.contains(&n)).collect();
        assert_eq!(verdicts, want);
    }
}

/// Two bad signatures whose errors cancel out in a sum without coefficients.
#[test]
fn errors_cannot_cancel_in_a_batch() {
    let mut world = world();
    let (secret, credential) = world.member("alice");
    let signer = Signer::new(&world.group, secret, &credential).unwrap();
    let signature = world.sign(&signer);
    let good = world.verifier.check(EPOCH, &M, &signature).unwrap();
    let slip = G1::hash(b"slip", b"any point");
    let pair = [good.slipped(&slip), good.slipped(&slip.neg())];
    let verdicts = world.verifier.verify_credentials(&pair, &mut world.rng);
    assert_eq!(verdicts, [false, false]);
}

#[test]
fn nobody_is_framed_without_the_secret() {
    let mut world = world();
    let (alice, _) = world.member("alice");
    let (mallory, credential) = world.member("mallory");
    // Mallory holds a good credential and knows alice's point, and so may issuer and trustees.
    let mut signer = Signer::new(&world.group, mallory, &credential).unwrap();
    signer.claim(alice.point());
    let framed = world.sign(&signer);
    assert_eq!(world.verifier.verify(EPOCH, &M, &framed).err(), Some(Reject::Proof));
}

#[test]
fn an_old_credential_is_none_for_a_new_epoch() {
    let mut world = world();
    world.verifier.accept_epoch(EPOCH + 1);
    let (secret, credential) = world.member("alice");
    let moved = Credential { epoch: EPOCH + 1, ..credential };
    assert!(Signer::new(&world.group, secret.clone(), &moved).is_err());
    let signer = Signer::assemble(&world.group, secret, &moved).unwrap();
    let signature = world.sign(&signer);
    let verdict = world.verifier.verify(EPOCH + 1, &M, &signature).err();
    assert_eq!(verdict, Some(Reject::Credential));
}

/// Why nonces are guarded: whoever sees two signatures over one presignature has the secret.
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
