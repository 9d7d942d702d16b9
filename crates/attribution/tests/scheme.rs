//! The scheme as its users see it.
mod common;
use common::*;
use shoal_attribution::*;

#[test]
fn sign_verify_open_judge() {
    let mut world = World::new(3, 5);
    let alice = world.join("alice", 7);
    let bob = world.join("bob", 7);
    let m = Message { label: "test", bytes: b"hello" };
    for (signer, name) in [(&alice, "alice"), (&bob, "bob")] {
        let pre = signer.precompute(&mut world.rng);
        let signature = signer.sign(pre, &m);
        let checked = world.verifier.verify(7, &m, &signature).unwrap();
        assert_eq!(world.open(&checked, &[5, 1, 3]).unwrap(), name);
        assert!(matches!(world.open(&checked, &[5, 1]), Err(Error::TooFewShares { .. })));
        let other = Message { label: "test", bytes: b"hellp" };
        assert_eq!(world.verifier.verify(7, &other, &signature).err(), Some(Reject::Proof));
        assert_eq!(world.verifier.verify(8, &m, &signature).err(), Some(Reject::Epoch));
    }
}
