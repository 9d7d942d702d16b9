//! Verification of one signature, or of a batch that shares the pairings.

use std::collections::BTreeMap;
use std::sync::Arc;

use shoal_crypto::Rng;
use shoal_crypto::bls::{
    BadElement, G1, G1PublicTable, G1Unchecked, G2, G2Lines, PublicBase, Scalar, SplitChallenge,
    all_in_subgroup, encode_all, mul_public, pairing_product_is_one, sum_of_products,
    sum_of_short_products,
};

use crate::group::generators;
use crate::sign::{finish, transcript};
use crate::{Group, GroupId, Message, Signature, SignatureError};

/// Maximum number of accepted epochs: the current one, its neighbours, and one being phased out.
pub const EPOCHS_MAX: usize = 4;

/// A group's public key, prepared for verification: 1.5 MiB of tables, made in about 15 ms. Clones
/// share the tables and have their own epochs.
#[derive(Clone)]
pub struct GroupVerifier {
    group: Arc<Group>,
    tables: Arc<Tables>,
    epochs: BTreeMap<u32, PublicBase>,
}

struct Tables {
    member: G1PublicTable,
    g: G1PublicTable,
    g_hat: G1PublicTable,
    opener: G1PublicTable,
    issuer: G2Lines,
    generator: G2Lines,
}

/// A signature with a valid proof. Its points and credential are not checked yet: points must be in
/// the subgroup, the credential the issuer's. These checks are cheapest for many signatures at
/// once.
#[derive(Clone, Copy)]
pub struct ProofChecked {
    epoch: u32,
    /// `A'`, `B'`, `C1`, `C2`, `C3`.
    points: [G1Unchecked; 5],
}

impl core::fmt::Debug for ProofChecked {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Candidate(hidden)")
    }
}

/// A verified signature.
#[derive(Clone, Copy, Debug)]
pub struct VerifiedSignature {
    pub(crate) epoch: u32,
    a: G1,
    b: G1,
    /// The encryption of the signer's point: `C1`, `C3`.
    pub(crate) encrypted: [G1; 2],
}

#[cfg(test)]
impl ProofChecked {
    /// The candidate with an error in one of its points.
    pub(crate) fn slipped(&self, at: usize, by: &G1) -> ProofChecked {
        let mut out = *self;
        let moved = self.points[at].unproved().add(by).encode();
        out.points[at] = G1Unchecked::decode(&moved).expect("a point of the curve");
        out
    }
}

impl ProofChecked {
    fn into_subgroup(self) -> Result<VerifiedSignature, SignatureError> {
        for point in &self.points {
            point.check().map_err(SignatureError::Malformed)?;
        }
        Ok(self.assume_subgroup())
    }

    fn assume_subgroup(self) -> VerifiedSignature {
        let [a, b, c1, _, c3] = self.points.map(|p| p.unproved());
        VerifiedSignature { epoch: self.epoch, a, b, encrypted: [c1, c3] }
    }
}

impl GroupVerifier {
    /// Prepares the tables. No epoch is accepted yet.
    pub fn new(group: &Group) -> GroupVerifier {
        let g = generators();
        let tables = Tables {
            member: G1PublicTable::new(&g.member),
            g: G1PublicTable::new(&g.g),
            g_hat: G1PublicTable::new(&g.g_hat),
            opener: G1PublicTable::new(group.opener().key()),
            issuer: G2Lines::new(group.issuer()),
            generator: G2Lines::new(&G2::generator()),
        };
        let group = Arc::new(group.clone());
        GroupVerifier { group, tables: Arc::new(tables), epochs: BTreeMap::new() }
    }

    /// Id of the group.
    pub fn group(&self) -> GroupId {
        self.group.id()
    }

    /// Accepts signatures of `epoch`. If more than [`EPOCHS_MAX`] are accepted, the lowest is
    /// dropped.
    pub fn accept_epoch(&mut self, epoch: u32) {
        self.epochs.entry(epoch).or_insert_with(|| PublicBase::new(&self.group.epoch_base(epoch)));
        if self.epochs.len() > EPOCHS_MAX {
            self.epochs.pop_first();
        }
    }

    /// Refuses signatures of `epoch`.
    pub fn refuse_epoch(&mut self, epoch: u32) {
        self.epochs.remove(&epoch);
    }

    /// True if signatures of `epoch` are accepted.
    pub fn accepts_epoch(&self, epoch: u32) -> bool {
        self.epochs.contains_key(&epoch)
    }

    /// Checks everything that a batch doesn't share: encodings, curve, proof.
    ///
    /// The proof comes before the subgroup, though it costs a little more than five membership
    /// tests. A signature that was damaged, or made for something else, fails at the proof and
    /// costs no more. The order does not stop an attacker who wants to cause all the work. Such an
    /// attacker can choose numbers and solve the proof's equation for `B'`; only the pairing
    /// distinguishes this `B'` from a member's. Values computed from points outside the subgroup
    /// are hashed and discarded.
    pub fn check(
        &self,
        epoch: u32,
        message: &Message<'_>,
        signature: &Signature,
    ) -> Result<ProofChecked, SignatureError> {
        let base = self.epochs.get(&epoch).ok_or(SignatureError::Epoch)?;
        let bytes = &signature.0;
        let mut hash = [0; 32];
        hash.copy_from_slice(&bytes[240..272]);
        let [z_rho, z_e, z_x, z_k] = decode_scalars(bytes)?;
        let (encoded, points) = decode_points(bytes)?;
        let [a, b, c1, c2, c3] = points.map(|p| p.unproved());
        let c = SplitChallenge::from_hash(&hash);
        let tables = &*self.tables;
        let member = tables.member.mul(&z_x);
        let commitments = encode_all(&[
            sum_of_products(&[(&b, &z_rho), (&a, &z_e)], base, c).sub(&member),
            tables.g.mul(&z_k).sub(&mul_public(&c1, c)),
            tables.g_hat.mul(&z_k).sub(&mul_public(&c2, c)),
            tables.opener.mul(&z_k).add(&member).sub(&mul_public(&c3, c)),
        ]);
        let transcript = transcript(&self.group.id().0, epoch, &encoded, &commitments);
        if finish(transcript, message) != hash {
            return Err(SignatureError::Proof);
        }
        Ok(ProofChecked { epoch, points })
    }

    /// Verifies one signature.
    pub fn verify(
        &self,
        epoch: u32,
        message: &Message<'_>,
        signature: &Signature,
    ) -> Result<VerifiedSignature, SignatureError> {
        let checked = self.check(epoch, message, signature)?.into_subgroup()?;
        if self.pairing_holds(&checked.a, &checked.b) {
            Ok(checked)
        } else {
            Err(SignatureError::Credential)
        }
    }

    /// Verifies the rest of signatures with valid proofs; a batch is cheaper.
    ///
    /// The first check is that all points are in the subgroup. It uses random combinations, which
    /// are wrong with probability 2^-80. Then one pairing equation checks all credentials (Bellare,
    /// Garay and Rabin 1998, with random coefficients of 128 bits). If it fails, bisection finds
    /// the bad ones, in about `2 log2(n)` equations for each. The output of `rng` must be
    /// unpredictable.
    ///
    /// A signature accepted by this function must not be opened. Openings start from
    /// [`GroupVerifier::verify`], which tests each point, since a trustee's secret is applied to
    /// one.
    pub fn verify_batch(
        &self,
        candidates: &[ProofChecked],
        rng: &mut Rng,
    ) -> Vec<Result<(), SignatureError>> {
        let points: Vec<G1Unchecked> = candidates.iter().flat_map(|c| c.points).collect();
        let all_inside = all_in_subgroup(&points, rng);
        let inside =
            |c: &ProofChecked| if all_inside { Ok(c.assume_subgroup()) } else { c.into_subgroup() };
        let verdicts: Vec<Result<VerifiedSignature, SignatureError>> =
            candidates.iter().map(inside).collect();
        let checked: Vec<VerifiedSignature> = verdicts.iter().filter_map(|v| v.ok()).collect();
        let mut good = self.credentials_hold(&checked, rng).into_iter();
        let mut credential =
            |_| if good.next() == Some(true) { Ok(()) } else { Err(SignatureError::Credential) };
        verdicts.into_iter().map(|v| v.and_then(&mut credential)).collect()
    }

    /// For each signature, true if it has a credential of the issuer.
    fn credentials_hold(&self, checked: &[VerifiedSignature], rng: &mut Rng) -> Vec<bool> {
        let mut verdicts = vec![true; checked.len()];
        let mut open = Vec::from([(0, checked.len())]);
        while let Some((start, end)) = open.pop() {
            if start == end || self.batch_holds(&checked[start..end], rng) {
                continue;
            }
            if end - start == 1 {
                verdicts[start] = false;
                continue;
            }
            let middle = start.midpoint(end);
            open.push((start, middle));
            open.push((middle, end));
        }
        verdicts
    }

    fn batch_holds(&self, checked: &[VerifiedSignature], rng: &mut Rng) -> bool {
        if let [one] = checked {
            return self.pairing_holds(&one.a, &one.b);
        }
        let coefficients: Vec<[u8; 16]> = checked.iter().map(|_| rng.array()).collect();
        let a: Vec<G1> = checked.iter().map(|c| c.a).collect();
        let b: Vec<G1> = checked.iter().map(|c| c.b).collect();
        let a = sum_of_short_products(&a, &coefficients);
        let b = sum_of_short_products(&b, &coefficients);
        self.pairing_holds(&a, &b)
    }

    /// Checks `e(A', W) = e(B', G2)`: B' is A' raised to the issuer's secret. The neutral point
    /// satisfies that too, and is refused.
    fn pairing_holds(&self, a: &G1, b: &G1) -> bool {
        let tables = &*self.tables;
        let sides = [(a, &tables.issuer), (&b.neg(), &tables.generator)];
        !a.is_identity() && pairing_product_is_one(&sides)
    }
}

impl core::fmt::Debug for GroupVerifier {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("GroupVerifier").field("epochs", &self.epochs.keys()).finish()
    }
}

fn decode_scalars(bytes: &[u8; crate::SIGNATURE_LEN]) -> Result<[Scalar; 4], SignatureError> {
    let mut out = [const { None }; 4];
    for (slot, chunk) in out.iter_mut().zip(bytes[272..].chunks_exact(32)) {
        let mut scalar = [0; 32];
        scalar.copy_from_slice(chunk);
        *slot = Some(Scalar::decode(&scalar).map_err(SignatureError::Malformed)?);
    }
    let [Some(rho), Some(e), Some(x), Some(k)] = out else {
        return Err(SignatureError::Malformed(BadElement::Encoding));
    };
    Ok([rho, e, x, k])
}

type Points = ([[u8; 48]; 5], [G1Unchecked; 5]);

/// Decodes all points; they are on the curve then.
fn decode_points(bytes: &[u8; crate::SIGNATURE_LEN]) -> Result<Points, SignatureError> {
    let mut encoded = [[0; 48]; 5];
    for (to, chunk) in encoded.iter_mut().zip(bytes.chunks_exact(48)) {
        to.copy_from_slice(chunk);
    }
    let mut points = [const { None }; 5];
    for (slot, bytes) in points.iter_mut().zip(&encoded) {
        *slot = Some(G1Unchecked::decode(bytes).map_err(SignatureError::Malformed)?);
    }
    let [Some(a), Some(b), Some(c1), Some(c2), Some(c3)] = points else {
        return Err(SignatureError::Malformed(BadElement::Encoding));
    };
    Ok((encoded, [a, b, c1, c2, c3]))
}
