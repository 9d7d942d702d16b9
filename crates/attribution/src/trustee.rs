//! The opening key, shared among trustees: `t` of `n` can open, and fewer learn nothing.
//!
//! Each of one or more dealers shares its own secret (Feldman 1987) and proves knowledge of it. So
//! no dealer can choose its secret after the others' (Komlo and Goldberg 2020, FROST's key
//! generation). The opening key is the sum of the dealers' secrets. If every trustee is a dealer,
//! nobody ever has the key; a single dealer has it until it is deleted.

use shoal_crypto::Rng;
use shoal_crypto::bls::{G1, Scalar};
use shoal_wire::Reader;

use crate::group::generators;
use crate::proof::LogProof;
use crate::{Error, codec};

/// Maximum number of trustees in a group.
pub const TRUSTEES_MAX: usize = 64;

const LABEL_DEALING: &str = "shoal attribution dealing v1";

/// The public part of a dealing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DealingPublic {
    dealer: u8,
    commitments: Vec<G1>,
    proof: LogProof,
}

/// A dealer's contribution: a public part, and one secret share for each trustee.
pub struct Dealing {
    pub public: DealingPublic,
    shares: Vec<Scalar>,
}

impl Dealing {
    /// Deals a fresh secret to `count` trustees, `threshold` of whom can open. `context` names the
    /// ceremony, so that a dealing can't be used in another one.
    pub fn new(
        dealer: u8,
        threshold: usize,
        count: usize,
        context: &[u8],
        rng: &mut Rng,
    ) -> Result<Dealing, Error> {
        if count == 0 || count > TRUSTEES_MAX || threshold == 0 || threshold > count {
            return Err(Error::Range("threshold"));
        }
        let g = generators().g;
        let polynomial: Vec<Scalar> = (0..threshold).map(|_| Scalar::random(rng)).collect();
        let commitments: Vec<G1> = polynomial.iter().map(|a| g.mul(a)).collect();
        let bound: [&[u8]; 2] = [context, &[dealer]];
        let proof =
            LogProof::new(LABEL_DEALING, &bound, &[g], &[commitments[0]], &polynomial[0], rng);
        let shares = (1..=count as u64).map(|at| {
            let at = Scalar::from_u64(at);
            let step = |sum: Scalar, a: &Scalar| sum.mul(&at).add(a);
            polynomial.iter().rev().fold(Scalar::from_u64(0), step)
        });
        let shares = shares.collect();
        Ok(Dealing { public: DealingPublic { dealer, commitments, proof }, shares })
    }

    /// The share of trustee `index` (from 1), for that trustee only.
    pub fn share(&self, index: usize) -> Option<Scalar> {
        self.shares.get(index.checked_sub(1)?).cloned()
    }
}

impl DealingPublic {
    /// True if the dealer proved knowledge of its secret in this ceremony.
    fn holds(&self, context: &[u8]) -> bool {
        let bound: [&[u8]; 2] = [context, &[self.dealer]];
        let secret = self.commitments[0];
        self.proof.verify(LABEL_DEALING, &bound, &[generators().g], &[secret])
    }

    /// Number of shares needed.
    pub fn threshold(&self) -> usize {
        self.commitments.len()
    }

    /// The encoding (docs/design/wire/attribution.md).
    pub fn encode(&self) -> Vec<u8> {
        let mut out = b"SAD1".to_vec();
        out.extend_from_slice(&[self.dealer, self.commitments.len() as u8]);
        self.commitments.iter().for_each(|c| out.extend_from_slice(&c.encode()));
        self.proof.put(&mut out);
        out
    }

    /// Decodes a dealing without checking its proof.
    pub fn decode(bytes: &[u8]) -> Result<DealingPublic, Error> {
        let mut reader = Reader::new(bytes);
        codec::magic(&mut reader, b"SAD1", "dealing")?;
        let dealer = reader.u8("dealer")?;
        let count = usize::from(reader.u8("threshold")?);
        if count == 0 || count > TRUSTEES_MAX {
            return Err(Error::Range("threshold"));
        }
        let commitments: Result<Vec<G1>, Error> =
            (0..count).map(|_| codec::point(&mut reader, "commitment")).collect();
        let dealing = DealingPublic {
            dealer,
            commitments: commitments?,
            proof: LogProof::read(&mut reader)?,
        };
        reader.finish("dealing")?;
        Ok(dealing)
    }

    /// `g` to the share of trustee `index`.
    fn share_public(&self, index: usize) -> G1 {
        let at = Scalar::from_u64(index as u64);
        let step = |sum: G1, a: &G1| sum.mul(&at).add(a);
        self.commitments.iter().rev().fold(G1::identity(), step)
    }
}

/// The public side of the opening key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenerPublic {
    threshold: usize,
    key: G1,
    trustees: Vec<G1>,
}

impl OpenerPublic {
    /// Adds up the dealings of one ceremony, each from a different dealer.
    pub fn new(
        dealings: &[DealingPublic],
        count: usize,
        context: &[u8],
    ) -> Result<OpenerPublic, Error> {
        let threshold = dealings.first().map_or(0, |d| d.commitments.len());
        if count == 0 || count > TRUSTEES_MAX || threshold == 0 || threshold > count {
            return Err(Error::Range("threshold"));
        }
        for (n, dealing) in dealings.iter().enumerate() {
            if dealings[..n].iter().any(|d| d.dealer == dealing.dealer) {
                return Err(Error::Duplicate("dealer"));
            }
            if dealing.commitments.len() != threshold || !dealing.holds(context) {
                return Err(Error::Proof("dealing"));
            }
        }
        let sum = |part: &dyn Fn(&DealingPublic) -> G1| {
            dealings.iter().fold(G1::identity(), |sum, d| sum.add(&part(d)))
        };
        let key = sum(&|d| d.commitments[0]);
        let trustees: Vec<G1> = (1..=count).map(|n| sum(&|d| d.share_public(n))).collect();
        if key.is_identity() || trustees.iter().any(G1::is_identity) {
            return Err(Error::Range("opening key"));
        }
        let opener = OpenerPublic { threshold, key, trustees };
        opener.takes_threshold()?;
        Ok(opener)
    }

    /// Checks that fewer shares than the threshold don't give the key. They do if and only if the
    /// highest coefficient of the shared polynomial is zero. If all coefficients but the lowest are
    /// zero, every share is the key itself.
    fn takes_threshold(&self) -> Result<(), Error> {
        let indices: Vec<usize> = (1..=self.threshold).collect();
        let points = &self.trustees[..self.threshold];
        let mut highest = G1::identity();
        for (point, weight) in points.iter().zip(weights(&indices)) {
            highest = highest.add(&point.mul(&weight));
        }
        if highest.is_identity() {
            return Err(Error::Proof("the threshold of the opening key"));
        }
        Ok(())
    }

    /// Number of trustees needed.
    pub fn threshold(&self) -> usize {
        self.threshold
    }

    /// Number of trustees.
    pub fn count(&self) -> usize {
        self.trustees.len()
    }

    /// The key that signatures encrypt to: `Y`.
    pub(crate) fn key(&self) -> &G1 {
        &self.key
    }

    /// The public share of trustee `index`, from 1.
    pub(crate) fn trustee(&self, index: usize) -> Option<&G1> {
        self.trustees.get(index.checked_sub(1)?)
    }

    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&[self.threshold as u8, self.trustees.len() as u8]);
        out.extend_from_slice(&self.key.encode());
        for trustee in &self.trustees {
            out.extend_from_slice(&trustee.encode());
        }
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<OpenerPublic, Error> {
        let threshold = usize::from(reader.u8("threshold")?);
        let count = usize::from(reader.u8("trustees")?);
        if count == 0 || count > TRUSTEES_MAX || threshold == 0 || threshold > count {
            return Err(Error::Range("threshold"));
        }
        let key = codec::point(reader, "opening key")?;
        let trustees: Result<Vec<G1>, Error> =
            (0..count).map(|_| codec::point(reader, "trustee key")).collect();
        let opener = OpenerPublic { threshold, key, trustees: trustees? };
        // Any t public shares must interpolate to the key; otherwise some openings would be wrong.
        for start in 0..=count - threshold {
            let indices: Vec<usize> = (start + 1..=start + threshold).collect();
            let points: Vec<G1> = indices.iter().map(|n| opener.trustees[n - 1]).collect();
            if interpolate(&indices, &points) != opener.key {
                return Err(Error::Proof("sharing of the opening key"));
            }
        }
        opener.takes_threshold()?;
        Ok(opener)
    }
}

/// The value at zero of the polynomial in the exponent with the values `points` at `indices`.
pub(crate) fn interpolate(indices: &[usize], points: &[G1]) -> G1 {
    let product = |all: Scalar, at: &usize| all.mul(&Scalar::from_u64(*at as u64).neg());
    let all = indices.iter().fold(Scalar::from_u64(1), product);
    let mut sum = G1::identity();
    for ((i, point), weight) in indices.iter().zip(points).zip(weights(indices)) {
        let own = Scalar::from_u64(*i as u64).neg();
        sum = sum.add(&point.mul(&all.mul(&own.invert()).mul(&weight)));
    }
    sum
}

/// `1 / ∏(i - j)` over the other indices `j`, for each index `i`: the barycentric weights. With
/// them, values at the indices give the highest coefficient of their polynomial.
fn weights(indices: &[usize]) -> Vec<Scalar> {
    let number = |n: usize| Scalar::from_u64(n as u64);
    let weight = |i: &usize| {
        let others = indices.iter().filter(|j| *j != i);
        let step = |all: Scalar, j: &usize| all.mul(&number(*i).sub(&number(*j)));
        others.fold(Scalar::from_u64(1), step).invert()
    };
    indices.iter().map(weight).collect()
}

/// One trustee's share of the opening key. Wiped on drop.
pub struct TrusteeKey {
    index: usize,
    share: Scalar,
}

impl TrusteeKey {
    /// Adds up the dealers' shares for trustee `index`, in the order of `dealings`, and checks each
    /// against its dealer's public part.
    ///
    /// `opener` is the group's, and must be the sum of these dealings. With other dealings, whoever
    /// made the group would know the opening key, and this share would open nothing.
    pub fn new(
        index: usize,
        opener: &OpenerPublic,
        context: &[u8],
        dealings: &[DealingPublic],
        shares: &[Scalar],
    ) -> Result<TrusteeKey, Error> {
        if dealings.len() != shares.len() || index == 0 || index > opener.count() {
            return Err(Error::Range("shares"));
        }
        if OpenerPublic::new(dealings, opener.count(), context)? != *opener {
            return Err(Error::OtherDealings);
        }
        let mut sum = Scalar::from_u64(0);
        for (dealing, share) in dealings.iter().zip(shares) {
            if generators().g.mul(share) != dealing.share_public(index) {
                return Err(Error::Proof("share"));
            }
            sum = sum.add(share);
        }
        Ok(TrusteeKey { index, share: sum })
    }

    /// Number of the trustee, from 1.
    pub fn index(&self) -> usize {
        self.index
    }

    pub(crate) fn share(&self) -> &Scalar {
        &self.share
    }

    /// The encoding; it is secret.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = b"SAT1".to_vec();
        out.push(self.index as u8);
        out.extend_from_slice(&self.share.encode());
        out
    }

    pub fn decode(bytes: &[u8]) -> Result<TrusteeKey, Error> {
        let mut reader = Reader::new(bytes);
        codec::magic(&mut reader, b"SAT1", "trustee key")?;
        let index = usize::from(reader.u8("trustee")?);
        let share = codec::scalar(&mut reader, "share")?;
        reader.finish("trustee key")?;
        if index == 0 || index > TRUSTEES_MAX {
            return Err(Error::Range("trustee"));
        }
        Ok(TrusteeKey { index, share })
    }
}

impl core::fmt::Debug for TrusteeKey {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "TrusteeKey({}, hidden)", self.index)
    }
}
