//! Signing, with precomputation of everything that doesn't depend on the message
//! (docs/design/attribution.md has the formulas).

use std::sync::Arc;

use shoal_crypto::Rng;
use shoal_crypto::bls::{G1, G1Table, Scalar, SplitChallenge, encode_all};

use crate::group::generators;
use crate::proof::Transcript;
use crate::{Error, Group, MemberCredential, MemberSecret};

/// Length of a signature in bytes: five points, the challenge's hash, four responses.
pub const SIGNATURE_LEN: usize = 5 * 48 + 32 + 4 * 32;

const LABEL: &str = "shoal attribution signature v1";

/// The message to sign. The label separates uses: a signature for one use is invalid for another.
#[derive(Clone, Copy, Debug)]
pub struct Message<'a> {
    /// Label of the use, a constant of the caller.
    pub label: &'static str,
    pub bytes: &'a [u8],
}

/// Starts the challenge of a signature: all parts before the message.
pub(crate) fn transcript(
    group: &[u8; 32],
    epoch: u32,
    elements: &[[u8; 48]; 5],
    commitments: &[[u8; 48]; 4],
) -> Transcript {
    let mut out = Transcript::new(LABEL);
    out.part(group);
    out.part(&epoch.to_be_bytes());
    out.points(elements);
    out.points(commitments);
    out
}

/// Ends the challenge with the message.
pub(crate) fn finish(mut transcript: Transcript, message: &Message<'_>) -> [u8; 32] {
    transcript.part(message.label.as_bytes());
    transcript.part(message.bytes);
    transcript.hash()
}

/// Tables for the points of one group that every signer multiplies. Signers of one process share
/// them.
struct GroupTables {
    member: G1Table,
    g: G1Table,
    g_hat: G1Table,
    opener: G1Table,
}

/// A member's signing state for one epoch.
#[derive(Clone)]
pub struct Signer {
    group: [u8; 32],
    epoch: u32,
    secret: MemberSecret,
    e: Scalar,
    point: G1,
    /// `A`, and `A^γ`, which is `B A^-e`.
    credential: [G1Table; 2],
    tables: Arc<GroupTables>,
}

impl Signer {
    /// Checks the credential and prepares its tables (about 5 ms).
    pub fn new(
        group: &Group,
        secret: MemberSecret,
        credential: &MemberCredential,
    ) -> Result<Signer, Error> {
        credential.verify(group, &secret)?;
        Signer::assemble(group, secret, credential)
    }

    /// A signer with an unchecked credential.
    pub(crate) fn assemble(
        group: &Group,
        secret: MemberSecret,
        credential: &MemberCredential,
    ) -> Result<Signer, Error> {
        let g = generators();
        let point = secret.point();
        let signed = group.epoch_base(credential.epoch()).add(&point);
        let raised = signed.sub(&credential.a.mul(&credential.e));
        if raised.is_identity() {
            // This happens for γ = 0 only.
            return Err(Error::Proof("the credential"));
        }
        Ok(Signer {
            group: group.id().0,
            epoch: credential.epoch(),
            secret,
            e: credential.e.clone(),
            point,
            credential: [G1Table::new(&credential.a), G1Table::new(&raised)],
            tables: Arc::new(GroupTables {
                member: G1Table::new(&g.member),
                g: G1Table::new(&g.g),
                g_hat: G1Table::new(&g.g_hat),
                opener: G1Table::new(group.opener().key()),
            }),
        })
    }

    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    /// Id of the group.
    pub fn group(&self) -> &[u8; 32] {
        &self.group
    }

    /// Claims another member's point, as a framer would.
    #[cfg(test)]
    pub(crate) fn claim(&mut self, point: G1) {
        self.point = point;
    }

    pub(crate) fn secret_bytes(&self) -> [u8; 32] {
        self.secret.encode()
    }

    /// Computes the message-independent part of one signature.
    pub fn precompute(&self, rng: &mut Rng) -> Presignature {
        let t = &self.tables;
        let [a, raised] = &self.credential;
        let rho = Scalar::random(rng);
        let k = Scalar::random(rng);
        let nonces: [Scalar; 4] = core::array::from_fn(|_| Scalar::random(rng));
        let [n_rho, n_e, n_x, n_k] = &nonces;
        let r = rho.invert();
        let elements = encode_all(&[
            a.mul(&r),
            raised.mul(&r),
            t.g.mul(&k),
            t.g_hat.mul(&k),
            t.opener.mul(&k).add(&self.point),
        ]);
        let first = raised.mul(&r.mul(n_rho)).add(&a.mul(&r.mul(n_e)));
        let member = t.member.mul(n_x);
        let commitments = encode_all(&[
            first.sub(&member),
            t.g.mul(n_k),
            t.g_hat.mul(n_k),
            t.opener.mul(n_k).add(&member),
        ]);
        let transcript = transcript(&self.group, self.epoch, &elements, &commitments);
        let e = self.e.mul(&rho);
        Presignature { elements, transcript, nonces, rho, e, k }
    }

    /// Signs with a presignature, which is consumed. A presignature of another signer gives an
    /// invalid signature.
    pub fn sign(&self, presignature: Presignature, message: &Message<'_>) -> Signature {
        let Presignature { elements, transcript, nonces, rho, e, k } = presignature;
        let hash = finish(transcript, message);
        let c = SplitChallenge::from_hash(&hash).scalar();
        let secrets = [&rho, &e, self.secret.scalar(), &k];
        let mut out = [0; SIGNATURE_LEN];
        for (to, from) in out.chunks_exact_mut(48).zip(&elements) {
            to.copy_from_slice(from);
        }
        out[240..272].copy_from_slice(&hash);
        for ((to, nonce), secret) in out[272..].chunks_exact_mut(32).zip(&nonces).zip(secrets) {
            to.copy_from_slice(&nonce.add(&c.mul(secret)).encode());
        }
        Signature(out)
    }
}

impl core::fmt::Debug for Signer {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Signer(epoch {}, hidden)", self.epoch)
    }
}

/// The message-independent part of one signature.
///
/// A presignature contains nonces whose second use would reveal the member's secret. So it can't be
/// copied or stored, [`Signer::sign`] takes it by value, and its numbers are wiped on drop.
///
/// ```compile_fail
/// fn twice(signer: &shoal_attribution::Signer, pre: shoal_attribution::Presignature) {
///     let message = shoal_attribution::Message { label: "doc", bytes: b"" };
///     signer.sign(pre, &message);
///     signer.sign(pre, &message);
/// }
/// ```
///
/// ```compile_fail
/// fn copy(pre: &shoal_attribution::Presignature) -> shoal_attribution::Presignature {
///     pre.clone()
/// }
/// ```
pub struct Presignature {
    elements: [[u8; 48]; 5],
    transcript: Transcript,
    nonces: [Scalar; 4],
    rho: Scalar,
    e: Scalar,
    k: Scalar,
}

#[cfg(test)]
impl Presignature {
    /// A copy, which only the test of a reused nonce may make.
    pub(crate) fn copy(&self) -> Presignature {
        Presignature {
            elements: self.elements,
            transcript: self.transcript.copy(),
            nonces: self.nonces.clone(),
            rho: self.rho.clone(),
            e: self.e.clone(),
            k: self.k.clone(),
        }
    }
}

impl core::fmt::Debug for Presignature {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Presignature(hidden)")
    }
}

/// An encoded signature (docs/design/wire/attribution.md); unchecked.
///
/// ```text
///  0    48   96   144  192  240    272    304   336   368   400
/// +----+----+----+----+----+------+------+-----+-----+-----+
/// | A' | B' | C1 | C2 | C3 | hash | z_ρ  | z_e | z_x | z_k |
/// +----+----+----+----+----+------+------+-----+-----+-----+
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signature(pub [u8; SIGNATURE_LEN]);
