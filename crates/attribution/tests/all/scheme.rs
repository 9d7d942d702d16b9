//! The scheme as seen by users: valid values are accepted, slightly changed ones refused.

use crate::common;
use std::collections::BTreeSet;

use crate::common::World;
use shoal_attribution::*;
use shoal_crypto::bls::{BadElement, Scalar, SplitChallenge};
use shoal_crypto::{Identity, Rng};

const M: Message<'_> = Message { label: "test", bytes: b"hello" };

#[test]
fn opened_signatures_name_exactly_their_signer() {
    let mut world = World::new(3, 5);
    let names = ["alice", "bob", "carol", "dave"];
    let signers: Vec<Signer> = names.iter().map(|n| world.join(n, 7)).collect();
    for (signer, name) in signers.iter().zip(names).cycle().take(8) {
        let signature = world.sign(signer, b"m");
        let checked = world.verify(b"m", &signature).unwrap();
        assert_eq!(world.open(&checked, &[5, 1, 3]).unwrap(), name);
        assert_eq!(world.open(&checked, &[2, 3, 4, 1]).unwrap(), name);
    }
}

#[test]
fn fewer_trustees_than_the_threshold_open_nothing() {
    let mut world = World::new(3, 5);
    let alice = world.join("alice", 7);
    let signature = world.sign(&alice, b"m");
    let checked = world.verify(b"m", &signature).unwrap();
    for who in [&[1][..], &[1, 2], &[4, 4, 4, 4]] {
        let result = world.open(&checked, who);
        assert!(matches!(result, Err(Error::TooFewShares { need: 3, .. })), "{result:?}");
    }
}

#[test]
fn bad_shares_are_left_out_and_wrong_openings_judged_so() {
    let mut world = World::new(2, 3);
    let (alice, bob) = (world.join("alice", 7), world.join("bob", 7));
    let (one, two) = (world.sign(&alice, b"m"), world.sign(&bob, b"m"));
    let one = world.verify(b"m", &one).unwrap();
    let two = world.verify(b"m", &two).unwrap();
    let mut shares = world.shares(&one, &[1, 2, 3]);
    // A share of another signature, in the place of trustee 1.
    shares[0] = world.shares(&two, &[1]).remove(0);
    let opening = world.opening(&one, &shares).unwrap();
    assert_eq!(opening.judge(&world.group, &one).unwrap().name(), "alice");
    // An opening of one signature does not apply to another.
    assert!(opening.judge(&world.group, &two).is_err());
    // The end of an opening can't be replaced by another member's request.
    let good = opening.encode();
    let requests: Vec<Vec<u8>> =
        world.registry.members().map(|m| m.request.encode()[4..].to_vec()).collect();
    let stem = good.len() - requests[0].len();
    assert_eq!(good[stem..], requests[0]);
    let framed = [&good[..stem], &requests[1]].concat();
    let framed = Opening::decode(&framed).unwrap();
    assert_eq!(framed.judge(&world.group, &one), Err(Error::Proof("the opening")));
}

#[test]
fn every_changed_byte_of_a_signature_is_noticed() {
    let mut world = World::new(2, 3);
    let alice = world.join("alice", 7);
    let good = world.sign(&alice, b"m");
    let mut rng = Rng::new([1; 32]);
    for at in 0..SIGNATURE_LEN {
        let mut bad = good;
        bad.0[at] ^= 1 << rng.below(8);
        assert!(world.verify(b"m", &bad).is_err(), "byte {at}");
    }
    assert!(world.verify(b"m", &good).is_ok());
}

#[test]
fn other_encodings_of_the_same_numbers_are_refused() {
    let mut world = World::new(2, 3);
    let alice = world.join("alice", 7);
    let good = world.sign(&alice, b"m");
    // z + r still fits 32 bytes for most z.
    const R: [u8; 32] = [
        0x73, 0xed, 0xa7, 0x53, 0x29, 0x9d, 0x7d, 0x48, 0x33, 0x39, 0xd8, 0x08, 0x09, 0xa1, 0xd8,
        0x05, 0x53, 0xbd, 0xa4, 0x02, 0xff, 0xfe, 0x5b, 0xfe, 0xff, 0xff, 0xff, 0xff, 0x00, 0x00,
        0x00, 0x01,
    ];
    for at in (272..SIGNATURE_LEN).step_by(32) {
        let mut bad = good;
        let mut carry = 0;
        for n in (0..32).rev() {
            let sum = u16::from(bad.0[at + n]) + u16::from(R[n]) + carry;
            bad.0[at + n] = sum as u8;
            carry = sum >> 8;
        }
        let why = world.verify(b"m", &bad).unwrap_err();
        assert_eq!(why, SignatureError::Malformed(BadElement::ScalarRange));
    }
    for at in (0..240).step_by(48) {
        // The negative of a point, the neutral one, and a point outside the subgroup.
        let mut bad = good;
        bad.0[at] ^= 0x20;
        assert_eq!(world.verify(b"m", &bad).unwrap_err(), SignatureError::Proof);
        bad.0[at..at + 48].fill(0);
        bad.0[at] = 0xc0;
        let identity = SignatureError::Malformed(BadElement::Identity);
        assert_eq!(world.verify(b"m", &bad).unwrap_err(), identity);
        bad.0[at..at + 48].copy_from_slice(&common::outside_subgroup());
        // Without a credential a signature fails at the proof, whatever its points.
        assert_eq!(world.verify(b"m", &bad).unwrap_err(), SignatureError::Proof);
    }
}

#[test]
fn parts_of_two_signatures_do_not_mix() {
    let mut world = World::new(2, 3);
    let (alice, bob) = (world.join("alice", 7), world.join("bob", 7));
    let signatures = [world.sign(&alice, b"m"), world.sign(&alice, b"m"), world.sign(&bob, b"m")];
    let fields = [0..48, 48..96, 0..96, 96..240, 0..240, 240..272, 272..304, 336..400, 272..400];
    for (one, two) in [(0, 1), (0, 2), (2, 1)] {
        for field in fields.clone() {
            let mut mixed = signatures[one];
            mixed.0[field.clone()].copy_from_slice(&signatures[two].0[field]);
            assert!(world.verify(b"m", &mixed).is_err());
        }
    }
}

#[test]
fn other_message_label_epoch_and_group_are_refused() {
    let mut world = World::new(2, 3);
    world.verifier.accept_epoch(8);
    let alice = world.join("alice", 7);
    let signature = world.sign(&alice, b"m");
    let verify = |epoch, label, bytes| {
        world.verifier.verify(epoch, &Message { label, bytes }, &signature).err()
    };
    assert_eq!(verify(7, "test", b"m"), None);
    assert_eq!(verify(7, "test", b"n"), Some(SignatureError::Proof));
    assert_eq!(verify(7, "tesu", b"m"), Some(SignatureError::Proof));
    assert_eq!(verify(7, "testm", b""), Some(SignatureError::Proof));
    assert_eq!(verify(8, "test", b"m"), Some(SignatureError::Proof));
    assert_eq!(verify(9, "test", b"m"), Some(SignatureError::Epoch));
    let other = World::seeded(2, 3, 2);
    assert_eq!(other.verify(b"m", &signature).err(), Some(SignatureError::Proof));
    // Equal keys with another name are another group: the name separates networks.
    let opener = world.group.opener().clone();
    let renamed =
        Group::new("other net", *world.group.issuer(), *world.group.notary(), opener).unwrap();
    let mut verifier = GroupVerifier::new(&renamed);
    verifier.accept_epoch(7);
    let m = Message { label: "test", bytes: b"m" };
    assert_eq!(verifier.verify(7, &m, &signature).err(), Some(SignatureError::Proof));
}

#[test]
fn the_revoked_cannot_sign_in_the_next_epoch() {
    let mut world = World::new(2, 3);
    let alice = world.join("alice", 7);
    let (secret, request) = world.request("bob");
    world.registry.add(&world.group, &request).unwrap();
    world.registry.revoke("alice", 8).unwrap();
    assert_eq!(world.registry.revoke("alice", 9), Err(Error::Revoked(8)));
    assert_eq!(world.registry.revoke("zoe", 9), Err(Error::UnknownMember));
    let bytes = world.registry.encode(&world.issuer, &world.group);
    world.registry = Registry::decode(&bytes, &world.group).unwrap();
    let renewal = world.renew(8);
    assert_eq!(renewal.count(), 1);
    let credential = world.credential(&renewal, &secret);
    let bob = Signer::new(&world.group, secret, &credential).unwrap();
    world.verifier.accept_epoch(8);
    world.verifier.refuse_epoch(7);
    let signature = world.sign(&bob, b"m");
    let m = Message { label: "test", bytes: b"m" };
    let checked = world.verifier.verify(8, &m, &signature).unwrap();
    assert_eq!(world.open(&checked, &[1, 2]).unwrap(), "bob");
    let signature = world.sign(&alice, b"m");
    assert_eq!(world.verifier.verify(7, &m, &signature).err(), Some(SignatureError::Epoch));
    assert_eq!(world.verifier.verify(8, &m, &signature).err(), Some(SignatureError::Proof));
}

#[test]
fn join_requests_bind_group_name_and_identity() {
    let mut world = World::new(2, 3);
    let secret = MemberSecret::new(&mut world.rng);
    let identity = Identity::from_seed([1; 32]);
    let request = secret.request(&world.group, "alice", &identity, &mut world.rng).unwrap();
    request.verify(&world.group).unwrap();
    assert!(request.verify(&World::seeded(2, 3, 2).group).is_err());
    let good = request.encode();
    for at in 0..good.len() {
        let mut bad = good.clone();
        bad[at] ^= 1;
        let refused = match JoinRequest::decode(&bad) {
            Ok(request) => request.verify(&world.group).is_err(),
            Err(_) => true,
        };
        // Only half of the identity key signs; the signature covers the other half too.
        assert!(refused, "byte {at}");
    }
    world.registry.add(&world.group, &request).unwrap();
    let again = world.registry.add(&world.group, &request);
    assert_eq!(again, Err(Error::Duplicate("the member's point")));
    let (_, same_name) = world.request("alice");
    let again = world.registry.add(&world.group, &same_name);
    assert_eq!(again, Err(Error::Duplicate("the member's name")));
}

#[test]
fn dealers_cannot_cheat() {
    let mut rng = Rng::new([1; 32]);
    let a = Dealing::new(1, 2, 3, b"one", &mut rng).unwrap();
    let b = Dealing::new(2, 2, 3, b"one", &mut rng).unwrap();
    let elsewhere = Dealing::new(3, 2, 3, b"two", &mut rng).unwrap();
    let other_threshold = Dealing::new(3, 3, 3, b"one", &mut rng).unwrap();
    let new = |d: &[&Dealing]| {
        let publics: Vec<DealingPublic> = d.iter().map(|d| d.public.clone()).collect();
        OpenerPublic::new(&publics, 3, b"one").map(|_| ())
    };
    assert_eq!(new(&[&a, &b]), Ok(()));
    assert_eq!(new(&[&a, &a]), Err(Error::Duplicate("dealer")));
    assert_eq!(new(&[&a, &elsewhere]), Err(Error::Proof("dealing")));
    assert_eq!(new(&[&a, &other_threshold]), Err(Error::Proof("dealing")));
    let publics = [a.public.clone(), b.public.clone()];
    let share = |d: &Dealing, n| d.share(n).unwrap();
    let opener = OpenerPublic::new(&publics, 3, b"one").unwrap();
    let collect = |dealings: &[DealingPublic], shares: [Scalar; 2]| {
        TrusteeKey::new(1, &opener, b"one", dealings, &shares).map(|_| ())
    };
    assert_eq!(collect(&publics, [share(&a, 1), share(&b, 1)]), Ok(()));
    assert_eq!(collect(&publics, [share(&a, 1), share(&b, 2)]), Err(Error::Proof("share")));
    let again = DealingPublic::decode(&a.public.encode()).unwrap();
    assert_eq!(again, a.public);
    assert!(Dealing::new(1, 4, 3, b"one", &mut rng).is_err());
}

#[test]
fn debug_output_names_nobody() {
    let mut world = World::new(2, 3);
    let alice = world.join("alice the member", 7);
    let signature = world.sign(&alice, b"m");
    let checked = world.verify(b"m", &signature).unwrap();
    let shares = world.shares(&checked, &[1, 2]);
    let opening = world.opening(&checked, &shares).unwrap();
    let text = format!("{:?} {opening:?} {alice:?} {shares:?}", world.registry);
    assert!(!text.contains("alice"), "{text}");
}

/// A smoke test, no proof: over many signatures no bit distinguishes two members, and nothing
/// repeats.
#[test]
fn signatures_of_two_members_look_alike() {
    const ROUNDS: usize = 300;
    let mut world = World::new(2, 3);
    let signers = [world.join("alice", 7), world.join("bob", 7)];
    let mut ones = [[0i32; SIGNATURE_LEN * 8]; 2];
    let mut fields = BTreeSet::new();
    for (signer, ones) in signers.iter().zip(&mut ones) {
        for _ in 0..ROUNDS {
            let signature = world.sign(signer, M.bytes);
            for (bit, count) in ones.iter_mut().enumerate() {
                *count += i32::from(signature.0[bit / 8] >> (bit % 8) & 1);
            }
            for field in signature.0[..240].chunks(48).chain(signature.0[240..].chunks(32)) {
                assert!(fields.insert(field.to_vec()), "a field repeats");
            }
        }
    }
    // Six standard deviations of the difference of two binomial counts, at its widest.
    let bound = 6.0 * (ROUNDS as f64 / 2.0).sqrt();
    for (bit, (a, b)) in ones[0].iter().zip(&ones[1]).enumerate() {
        assert!(f64::from((a - b).abs()) < bound, "bit {bit}: {a} and {b}");
    }
}

/// All dealers use polynomials whose higher coefficients are zero: nominally 3 of 3, while every
/// share is the key.
#[test]
fn a_sharing_takes_as_many_trustees_as_it_says() {
    let bytes = World::new(1, 3).group.encode();
    let threshold = 4 + 1 + "test net".len() + 96 + 64;
    assert_eq!(bytes[threshold..threshold + 2], [1, 3]);
    for said in [2, 3] {
        let mut lie = bytes.clone();
        lie[threshold] = said;
        let wrong = Some(Error::Proof("the threshold of the opening key"));
        assert_eq!(Group::decode(&lie).err(), wrong);
    }
    let bytes = World::new(2, 3).group.encode();
    let mut lie = bytes.clone();
    lie[threshold] = 3;
    assert_eq!(Group::decode(&lie).err(), Some(Error::Proof("the threshold of the opening key")));
    assert!(Group::decode(&bytes).is_ok());
}

/// The party that runs `setup` replaces the trustees' dealings by its own, and knows the key.
#[test]
fn a_trustee_notices_that_its_dealing_was_swapped() {
    let mut rng = Rng::new([1; 32]);
    let mut deal = |dealer| Dealing::new(dealer, 2, 2, b"one", &mut rng).unwrap();
    let (own, other, swapped) = (deal(1), deal(2), deal(1));
    let public = |d: [&Dealing; 2]| d.map(|d| d.public.clone());
    let opener = OpenerPublic::new(&public([&swapped, &other]), 2, b"one").unwrap();
    let shares = [own.share(1).unwrap(), other.share(1).unwrap()];
    let collect = |dealings: [&Dealing; 2]| {
        TrusteeKey::new(1, &opener, b"one", &public(dealings), &shares).map(|_| ())
    };
    assert_eq!(collect([&own, &other]), Err(Error::OtherDealings));
    // With the group's public dealings, the trustee's own share is wrong.
    assert_eq!(collect([&swapped, &other]), Err(Error::Proof("share")));
}

/// A generator repeated after a restored snapshot, used for two statements.
#[test]
fn proofs_with_the_same_randomness_share_no_nonce() {
    let world = World::new(2, 3);
    let secret = MemberSecret::new(&mut Rng::new([1; 32]));
    let identity = Identity::from_seed([2; 32]);
    let proof = |name: &str| {
        let mut rng = Rng::new([3; 32]);
        let bytes = secret.request(&world.group, name, &identity, &mut rng).unwrap().encode();
        let part = |at: usize| -> [u8; 32] { bytes[at..at + 32].try_into().unwrap() };
        let at = 4 + 1 + name.len() + 64 + 48;
        let challenge = SplitChallenge::from_hash(&part(at)).scalar();
        (challenge, Scalar::decode(&part(at + 32)).unwrap())
    };
    let ((c1, z1), (c2, z2)) = (proof("alice"), proof("bob"));
    let x = z1.sub(&z2).mul(&c1.sub(&c2).invert());
    assert!(x.encode() != secret.encode(), "two proofs reveal the secret");
}
