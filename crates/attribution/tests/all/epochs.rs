//! Guarantees for members and verifiers: one notice and one registry per epoch, credentials of one
//! group only, and effective revocations.

use crate::common::World;
use shoal_attribution::*;
use shoal_crypto::Identity;

const M: Message<'_> = Message { label: "test", bytes: b"m" };

/// A member signs another join request for its point, with a name and identity key of its choice.
#[test]
fn one_signature_has_one_opening() {
    let mut world = World::new(2, 3);
    world.join("bob", 7);
    let (secret, request) = world.request("alice");
    world.registry.add(&world.group, &request).unwrap();
    let renewal = world.renew(7);
    let credential = world.credential(&renewal, &secret);
    let alice = Signer::new(&world.group, secret.clone(), &credential).unwrap();
    let signature = world.sign(&alice, b"m");
    let checked = world.verify(b"m", &signature).unwrap();
    let shares = world.shares(&checked, &[1, 2]);
    let opening = world.opening(&checked, &shares).unwrap();
    assert_eq!(opening.judge(&world.group, &checked).unwrap(), &request);
    let good = opening.encode();
    let stem = good.len() - (request.encode().len() - 4);
    assert_eq!(good[stem..], request.encode()[4..]);
    let identity = Identity::from_seed([2; 32]);
    let other = secret.request(&world.group, "bob", &identity, &mut world.rng).unwrap();
    other.verify(&world.group).unwrap();
    let framed = Opening::decode(&[&good[..stem], &other.encode()[4..]].concat()).unwrap();
    let verdict = framed.judge(&world.group, &checked).map(JoinRequest::name);
    assert_eq!(verdict, Err(Error::Proof("the entry in the registry")));
    // A registry made by the member does not help either.
    let mut registry = Registry::new();
    registry.add(&world.group, &other).unwrap();
    let opening = Opening::new(&world.group, &registry, &world.notice, &checked, &shares);
    assert_eq!(opening, Err(Error::Proof("the registry of this epoch")));
}

#[test]
fn an_opening_takes_the_notice_of_the_signatures_epoch() {
    let mut world = World::new(2, 3);
    let alice = world.join("alice", 7);
    let then = world.notice.clone();
    let signature = world.sign(&alice, b"m");
    let checked = world.verify(b"m", &signature).unwrap();
    let shares = world.shares(&checked, &[1, 2]);
    for n in 0..5 {
        world.join(&format!("member {n}"), 8);
    }
    assert_eq!(world.opening(&checked, &shares), Err(Error::OtherEpoch));
    // The registry has grown, and still proves its former state.
    world.notice = then;
    let opening = world.opening(&checked, &shares).unwrap();
    assert_eq!(opening.judge(&world.group, &checked).unwrap().name(), "alice");
    // Later members were no members then.
    let mut forged = world.notice.clone();
    forged.members = 6;
    assert_eq!(
        forged.verify_signature(&world.group),
        Err(Error::Proof("the epoch notice's signature"))
    );
}

#[test]
fn a_credential_is_good_in_its_own_group_only() {
    let mut world = World::new(2, 3);
    let (secret, request) = world.request("alice");
    world.registry.add(&world.group, &request).unwrap();
    let renewal = world.renew(7);
    let here = world.credential(&renewal, &secret);
    // A group of another network with the same issuer and trustees, and no members.
    let opener = world.group.opener().clone();
    let other =
        Group::new("other net", *world.group.issuer(), *world.group.notary(), opener).unwrap();
    let there = world.issuer.renew(&other, &Registry::new(), 7, 0..=u64::MAX);
    let notice = there.notice().encode();
    // The first group's credential with the other group's notice.
    let mut bytes = here.encode();
    bytes[4..notice.len()].copy_from_slice(&notice[4..]);
    let moved = MemberCredential::decode(&bytes).unwrap();
    assert_eq!(moved.verify(&other, &secret), Err(Error::Proof("the credential")));
    assert_eq!(here.verify(&other, &secret), Err(Error::OtherGroup));
    assert_eq!(here.verify(&world.group, &secret), Ok(()));
}

#[test]
fn notices_are_the_issuers_and_in_time() {
    let world = World::new(2, 3);
    let renewal = world.issuer.renew(&world.group, &world.registry, 7, 1_000..=2_000);
    let notice = EpochNotice::decode(&renewal.notice().encode()).unwrap();
    assert_eq!(notice.verify(&world.group, 1_500), Ok(()));
    assert!(notice.verify(&world.group, 999).is_err());
    assert!(notice.verify(&world.group, 2_001).is_err());
    assert_eq!(notice.verify(&World::seeded(2, 3, 2).group, 1_500), Err(Error::OtherGroup));
    let bytes = notice.encode();
    for at in 4..bytes.len() {
        let mut bad = bytes.clone();
        bad[at] ^= 1;
        let bad = EpochNotice::decode(&bad).unwrap();
        assert!(bad.verify_signature(&world.group).is_err(), "byte {at}");
    }
}

/// The issuer gives two members two renewals of one epoch: both notices together prove it.
#[test]
fn an_epoch_has_one_notice_and_one_renewal() {
    let mut world = World::new(2, 3);
    let (alice, request) = world.request("alice");
    world.registry.add(&world.group, &request).unwrap();
    let alone = world.renew(8);
    world.join("bob", 7);
    let both = world.renew(8);
    assert_eq!((alone.notice().credentials, both.notice().credentials), (1, 2));
    let mut seen = NoticeMemory::new();
    assert_eq!(seen.take(&world.group, both.notice(), 1), Ok(true));
    assert_eq!(seen.take(&world.group, both.notice(), 1), Ok(false));
    assert_eq!(seen.take(&world.group, alone.notice(), 1), Err(Error::TwoNotices(8)));
    // Credentials without the hash in the notice are refused.
    let hash = Error::Proof("the notice's hash of the credentials");
    let pick = |bytes: &[u8]| Renewal::pick(bytes, both.notice(), &alice.point());
    assert_eq!(pick(alone.encode()), Err(hash.clone()));
    assert!(pick(both.encode()).unwrap().is_some());
    let mut other_epoch = both.encode().to_vec();
    other_epoch[7] ^= 1;
    assert_eq!(pick(&other_epoch), Err(hash));
    // One member appears twice, so that the group looks larger.
    let entry = &alone.encode()[12..];
    let padded = [&alone.encode()[..8], &[0, 0, 0, 2], entry, entry].concat();
    assert_eq!(pick(&padded), Err(Error::Range("the order of credentials")));
}

#[test]
fn a_notice_is_refused_once_a_later_one_was_seen() {
    let world = World::new(2, 3);
    let notice = |epoch, seconds| {
        world.issuer.renew(&world.group, &world.registry, epoch, seconds).notice().clone()
    };
    // The second epoch begins early, as after a revocation.
    let (first, second) = (notice(7, 1_000..=2_000), notice(8, 1_500..=2_500));
    let mut seen = NoticeMemory::new();
    seen.take(&world.group, &first, 1_600).unwrap();
    seen.take(&world.group, &second, 1_600).unwrap();
    let mut seen = NoticeMemory::decode(&seen.encode()).unwrap();
    assert_eq!(seen.take(&world.group, &first, 1_600), Err(Error::EpochOver(8)));
    assert_eq!(seen.newest(&world.group.id()), Some(&second));
    assert!(seen.take(&world.group, &notice(9, 2_000..=3_000), 1_600).is_err());
    // Groups are independent.
    let other = World::seeded(2, 3, 2);
    let third = other.issuer.renew(&other.group, &other.registry, 1, 1_000..=2_000);
    assert_eq!(seen.take(&other.group, third.notice(), 1_600), Ok(true));
    assert_eq!(seen.newest(&world.group.id()), Some(&second));
    let seen = NoticeMemory::decode(&seen.encode()).unwrap();
    assert_eq!(seen.newest(&other.group.id()), Some(third.notice()));
}

#[test]
fn a_revocation_can_be_brought_forward_and_not_put_off() {
    let mut world = World::new(2, 3);
    world.join("alice", 7);
    world.registry.revoke("alice", 20).unwrap();
    assert_eq!(world.registry.revoke("alice", 21), Err(Error::Revoked(20)));
    assert_eq!(world.registry.revoke("alice", 8), Ok(()));
    assert_eq!(world.renew(8).count(), 0);
    assert_eq!(world.registry.revoke("alice", 20), Err(Error::Revoked(8)));
}

#[test]
fn a_revoked_identity_does_not_come_back_under_another_name() {
    let mut world = World::new(2, 3);
    let identity = Identity::from_seed([1; 32]);
    let ask = |world: &mut World, name: &str| {
        let secret = MemberSecret::new(&mut world.rng);
        let request = secret.request(&world.group, name, &identity, &mut world.rng).unwrap();
        world.registry.add(&world.group, &request)
    };
    ask(&mut world, "alice").unwrap();
    let twice = Err(Error::Duplicate("the member's identity key"));
    assert_eq!(ask(&mut world, "malice"), twice);
    world.registry.revoke("alice", 8).unwrap();
    assert_eq!(ask(&mut world, "malice"), Err(Error::Revoked(8)));
}

/// Write access to the file is not enough to register somebody who never asked.
#[test]
fn a_registry_is_the_issuers() {
    let mut world = World::new(2, 3);
    world.join("alice", 7);
    world.join("bob", 7);
    world.registry.revoke("alice", 8).unwrap();
    let good = world.registry.encode(&world.issuer, &world.group);
    assert_eq!(Registry::decode(&good, &world.group).unwrap().members().len(), 2);
    for at in 8..good.len() {
        let mut bad = good.clone();
        bad[at] ^= 1;
        assert!(Registry::decode(&bad, &world.group).is_err(), "byte {at}");
    }
    // One entry added or removed.
    let (_, request) = world.request("zoe");
    let entry = [&[0xff; 4], &request.encode()[4..]].concat();
    let end = good.len() - 64;
    let mut more = [&good[..end], &entry, &good[end..]].concat();
    more[7] = 3;
    let unsigned = Some(Error::Proof("the registry's signature"));
    assert_eq!(Registry::decode(&more, &world.group).err(), unsigned);
    let other = World::seeded(2, 3, 2);
    let elsewhere = world.registry.encode(&other.issuer, &other.group);
    assert_eq!(Registry::decode(&elsewhere, &world.group).err(), unsigned);
    // Entries are only added: a registry without one does not match the notice.
    world.renew(9);
    assert_eq!(world.notice.verify_registry(&world.registry), Ok(()));
    world.registry.add(&world.group, &request).unwrap();
    assert_eq!(world.notice.verify_registry(&world.registry), Ok(()));
    let mut shorter = Registry::new();
    shorter.add(&world.group, &request).unwrap();
    assert!(world.notice.verify_registry(&shorter).is_err());
}

/// Signatures under a key of small order verify for everything, so such a request was signed by
/// nobody.
#[test]
fn identity_keys_of_small_order_are_refused() {
    let mut world = World::new(2, 3);
    let (_, request) = world.request("alice");
    let mut bytes = request.encode();
    let sign_at = 4 + 1 + "alice".len() + 32;
    bytes[sign_at..sign_at + 32].fill(0);
    bytes[sign_at] = 1;
    let weak = JoinRequest::decode(&bytes).unwrap();
    let refused = Err(Error::WeakKey("the identity key"));
    assert_eq!(weak.verify(&world.group), refused);
    assert_eq!(world.registry.add(&world.group, &weak), refused);
    let opener = world.group.opener().clone();
    let group = Group::new("weak", *world.group.issuer(), *weak.identity(), opener);
    assert_eq!(group.err(), Some(Error::WeakKey("the issuer's identity key")));
}

/// The old credential still signs in the old epoch, but a stamp can't state a time outside it.
#[test]
fn a_stamp_is_judged_by_its_epochs_time() {
    let mut world = World::new(2, 3);
    let (secret, request) = world.request("alice");
    world.registry.add(&world.group, &request).unwrap();
    let renewal = world.issuer.renew(&world.group, &world.registry, 7, 1_000..=2_000);
    world.notice = renewal.notice().clone();
    let credential = world.credential(&renewal, &secret);
    let signer = Signer::new(&world.group, secret, &credential).unwrap();
    let outside = Err(Error::OutsideEpoch(7));
    for (seconds, want) in
        [(900, outside.clone()), (1_000, Ok("alice")), (2_000, Ok("alice")), (2_100, outside)]
    {
        let mut seal = Seal {
            flow: FlowId([1; 16]),
            first: 0,
            count: 1,
            epoch: 7,
            time_ms: seconds * 1_000,
            salt: [2; 16],
            chunks: vec![],
            tail: vec![packet_digest(&[2; 16], &packet_hash(&FlowId([1; 16]), 0, b"x"))],
            signature: Signature([0; SIGNATURE_LEN]),
        };
        let presignature = signer.precompute(&mut world.rng);
        seal.signature = signer.sign(presignature, &Seal::message(&seal.signed_bytes()));
        let hash = packet_hash(&seal.flow, 0, b"x");
        let evidence = Evidence::new(0, hash, &seal.encode(), None);
        let proved = evidence.verify(&world.verifier).unwrap();
        let shares = world.shares(&proved.checked, &[1, 2]);
        let opening = world.opening(&proved.checked, &shares).unwrap();
        let verdict = opening.judge_packet(&world.group, &proved).map(JoinRequest::name);
        assert_eq!(verdict, want, "{seconds}");
    }
    let signature = world.sign(&signer, M.bytes);
    assert!(world.verify(M.bytes, &signature).is_ok());
}
