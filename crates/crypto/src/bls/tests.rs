//! Both kinds of multiplication agree, decoders refuse bad input, and the pairing is bilinear.

use super::*;
use crate::Rng;

fn rng() -> Rng {
    Rng::new([5; 32])
}

#[test]
fn all_multiplications_agree() {
    let mut rng = rng();
    let base = G1::hash(b"base", b"test");
    let (table, public) = (G1Table::new(&base), G1PublicTable::new(&base));
    let minus_one = Scalar::from_u64(1).neg();
    let mut scalars = vec![Scalar::from_u64(0), Scalar::from_u64(1), minus_one];
    scalars.extend([15, 16, 17, 31, 32, 127, 128, 129, 255].map(Scalar::from_u64));
    scalars.extend((0..20).map(|_| Scalar::random(&mut rng)));
    for k in &scalars {
        let want = base.mul(k);
        assert_eq!(table.mul(k), want);
        assert_eq!(public.mul(k), want);
        let other = G1::hash(b"other", b"test");
        let c = SplitChallenge::from_hash(&rng.array());
        let prepared = PublicBase::new(&other);
        let sum = sum_of_products(&[(&base, k), (&other, k)], &prepared, c);
        assert_eq!(sum, want.add(&other.mul(k)).sub(&other.mul(&c.scalar())));
        assert_eq!(mul_public(&other, c), other.mul(&c.scalar()));
    }
    let max = SplitChallenge { low: u64::MAX, high: u64::MAX };
    assert_eq!(mul_public(&base, max), base.mul(&max.scalar()));
}

#[test]
fn short_sums_agree() {
    let mut rng = rng();
    for n in [1usize, 2, 7, 33] {
        let points: Vec<G1> = (0..n).map(|i| G1::hash(&[i as u8], b"t")).collect();
        let coefficients: Vec<[u8; 16]> = (0..n).map(|_| rng.array()).collect();
        let mut want = G1::identity();
        for (p, c) in points.iter().zip(&coefficients) {
            let mut wide = [0; 64];
            for (to, from) in wide[48..].iter_mut().zip(c.iter().rev()) {
                *to = *from;
            }
            want = want.add(&p.mul(&Scalar::from_wide(&wide)));
        }
        assert_eq!(sum_of_short_products(&points, &coefficients), want);
    }
}

/// A neutral sum would make every forged batch pass.
#[test]
fn a_neutral_point_does_not_swallow_a_short_sum() {
    let mut rng = rng();
    let point = G1::hash(b"p", b"t");
    let coefficients: [[u8; 16]; 3] = core::array::from_fn(|_| rng.array());
    let alone = sum_of_short_products(&[point], &coefficients[1..2]);
    let points = [G1::identity(), point, G1::identity()];
    assert_eq!(sum_of_short_products(&points, &coefficients), alone);
    assert!(!alone.is_identity());
    assert!(sum_of_short_products(&points[..1], &coefficients[..1]).is_identity());
}

#[test]
fn scalars_are_a_field() {
    let mut rng = rng();
    for _ in 0..50 {
        let (a, b) = (Scalar::random(&mut rng), Scalar::random(&mut rng));
        assert_eq!(a.mul(&a.invert()), Scalar::from_u64(1));
        assert_eq!(a.add(&b).sub(&b), a);
        assert!(a.add(&a.neg()).is_zero());
        assert_eq!(Scalar::decode(&a.encode()), Ok(a));
    }
    assert_eq!(Scalar::decode(&[0xff; 32]), Err(BadElement::ScalarRange));
    let mut r = Scalar::from_u64(1).neg().encode();
    r[31] += 1;
    assert_eq!(Scalar::decode(&r), Err(BadElement::ScalarRange));
}

#[test]
fn decoding_refuses_everything_but_the_one_encoding() {
    let point = G1::hash(b"p", b"test");
    let good = point.encode();
    assert_eq!(G1::decode(&good), Ok(point));
    assert_eq!(encode_all(&[point, G1::identity()])[0], good);
    assert_eq!(encode_all(&[point, point.double()])[0], good);
    let mut infinity = [0; 48];
    infinity[0] = 0xc0;
    assert_eq!(G1::decode(&infinity), Err(BadElement::Identity));
    infinity[47] = 1;
    assert_eq!(G1::decode(&infinity), Err(BadElement::Encoding));
    assert_eq!(G1::decode(&[0; 48]), Err(BadElement::Encoding));
    assert_eq!(G1::decode(&[0xff; 48]), Err(BadElement::Encoding));
    let mut seen = [0u32; 2];
    for n in 0..=255u8 {
        let mut bytes = [n; 48];
        bytes[0] = 0x80 | (n & 0x0f);
        match G1::decode(&bytes) {
            Err(BadElement::NotOnCurve) => seen[0] += 1,
            Err(BadElement::NotInSubgroup) => seen[1] += 1,
            Ok(p) => assert_eq!(p.encode(), bytes),
            Err(_) => {}
        }
    }
    assert!(seen.iter().all(|n| *n > 50), "{seen:?}");
    let key = G2::generate(&Scalar::from_u64(7));
    assert_eq!(G2::decode(&key.encode()), Ok(key));
    assert_eq!(G2::decode(&[0; 96]), Err(BadElement::Encoding));
}

/// Points of the curve outside the subgroup, each the sum of a point in it and one of small order.
fn outside(count: usize) -> Vec<G1Unchecked> {
    let candidates = (1..=u8::MAX).filter_map(|n| {
        let mut bytes = [n; 48];
        bytes[0] = 0x80;
        let point = G1Unchecked::decode(&bytes).ok()?;
        (point.check() == Err(BadElement::NotInSubgroup)).then_some(point)
    });
    candidates.take(count).collect()
}

/// A point of order 3, outside the subgroup: a third of the curve's order times a point. One
/// candidate in three gives the neutral element instead. blst refuses to decode such a point, but
/// decodes sums with it.
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

fn moved(point: &G1Unchecked, by: &G1) -> G1Unchecked {
    G1Unchecked::decode(&point.unproved().add(by).encode()).unwrap()
}

#[test]
fn membership_of_many_is_that_of_each() {
    let mut rng = rng();
    let inside = |n: usize| {
        let point = G1::hash(&n.to_be_bytes(), b"t").encode();
        G1Unchecked::decode(&point).unwrap()
    };
    for count in [0, 1, 80, 81, 82, 83, 320] {
        let good: Vec<G1Unchecked> = (0..count).map(inside).collect();
        assert!(all_in_subgroup(&good, &mut rng), "{count}");
        for at in [0, count / 2, count.saturating_sub(1)].into_iter().filter(|at| *at < count) {
            for slip in outside(2).iter().map(|p| p.unproved()).chain([of_order_three()]) {
                let mut points = good.clone();
                points[at] = moved(&points[at], &slip);
                assert!(!all_in_subgroup(&points, &mut rng), "{at} of {count}");
            }
        }
    }
    // Points outside the subgroup whose sum is inside, in one group and across groups.
    let slip = of_order_three();
    for other in [1, 99] {
        let mut points: Vec<G1Unchecked> = (0..100).map(inside).collect();
        points[0] = moved(&points[0], &slip);
        points[other] = moved(&points[other], &slip.neg());
        assert!(!all_in_subgroup(&points, &mut rng));
    }
    // One point repeated, so that all differences are neutral.
    assert!(all_in_subgroup(&[inside(1); 100], &mut rng));
    assert!(!all_in_subgroup(&[moved(&inside(1), &slip); 100], &mut rng));
}

/// The pairing equation can't replace the membership test.
#[test]
fn pairing_is_blind_to_small_orders() {
    let one = G2Lines::new(&G2::generator());
    let slip = of_order_three();
    let point = G1::hash(b"p", b"test");
    assert!(pairing_product_is_one(&[(&point.add(&slip), &one), (&point.neg(), &one)]));
}

#[test]
fn pairing_is_bilinear() {
    let mut rng = rng();
    let (a, b) = (Scalar::random(&mut rng), Scalar::random(&mut rng));
    let p = G1::hash(b"p", b"test");
    let (one, key) = (G2Lines::new(&G2::generator()), G2Lines::new(&G2::generate(&a)));
    let left = p.mul(&b);
    let right = p.mul(&a.mul(&b));
    assert!(pairing_product_is_one(&[(&left, &key), (&right.neg(), &one)]));
    assert!(!pairing_product_is_one(&[(&left, &key), (&right, &one)]));
    let sum = G2::generate(&a).plus_generated(&b);
    assert_eq!(sum, Some(G2::generate(&a.add(&b))));
    assert_eq!(G2::generate(&a).plus_generated(&a.neg()), None);
}
