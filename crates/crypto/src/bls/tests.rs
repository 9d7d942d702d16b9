//! The two ways of multiplying agree, decoders refuse, and the pairing is bilinear.

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
