//! Tests of the signature pool: its size is bounded, each precomputed signature is used once, and
//! a forked process can't sign.

use std::collections::BTreeSet;

use crate::common::World;
use shoal_attribution::*;
use shoal_wire::Time;

const M: Message<'_> = Message { label: "test", bytes: b"m" };

#[test]
fn signs_from_stock_and_makes_more_when_out_of_it() {
    let mut world = World::new(1, 1);
    let alice = world.join("alice", 7);
    let mut pool = Pool::new(alice, 2, [1; 32], 5, Time::ZERO);
    assert!(pool.fill(5).unwrap() && pool.fill(5).unwrap());
    assert!(!pool.fill(5).unwrap());
    let mut seen = BTreeSet::new();
    for left in [1, 0, 0, 0] {
        let signature = pool.sign(&M, 5).unwrap();
        assert!(world.verify(M.bytes, &signature).is_ok());
        assert!(seen.insert(signature.0.to_vec()), "no two are alike");
        assert_eq!(pool.len(), left);
    }
    assert_eq!(pool.made_late(), 2);
}

#[test]
fn a_copy_of_the_process_signs_nothing() {
    let mut world = World::new(1, 1);
    let alice = world.join("alice", 7);
    let mut pool = Pool::new(alice, 4, [1; 32], 5, Time::ZERO);
    pool.fill(5).unwrap();
    assert_eq!(pool.sign(&M, 6), Err(Error::Forked));
    assert!(pool.is_empty());
    // The pool was wiped, so the old fork witness does not restore it.
    assert_eq!(pool.fill(5), Err(Error::Forked));
    assert_eq!(pool.sign(&M, 5), Err(Error::Forked));
    pool.reseed([2; 32], 6, Time::ZERO);
    let signature = pool.sign(&M, 6).unwrap();
    assert!(world.verify(M.bytes, &signature).is_ok());
}

/// A seed repeated after a crash (a poor generator, a restored image) gives different nonces.
#[test]
fn time_and_witness_go_into_the_nonces() {
    let mut world = World::new(1, 1);
    let alice = world.join("alice", 7);
    let mut points = BTreeSet::new();
    for (witness, now) in [(5, 0), (5, 1), (6, 0), (6, 1)] {
        let mut pool = Pool::new(alice.clone(), 1, [1; 32], witness, Time(now));
        let signature = pool.sign(&M, witness).unwrap();
        assert!(points.insert(signature.0[96..144].to_vec()), "randomness was repeated");
    }
}
