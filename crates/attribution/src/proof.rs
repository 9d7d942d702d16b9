//! Challenges of the Fiat-Shamir proofs, and short proofs of one secret.

use shoal_crypto::bls::{G1, Scalar, SplitChallenge, encode_all};
use shoal_crypto::{Hasher, Rng, Secret, kdf};
use shoal_wire::Reader;
use zeroize::Zeroize;

use crate::{Error, codec};

/// A hash for challenges. The label comes first, and each part is preceded by its length.
pub(crate) struct Transcript(Hasher);

impl Transcript {
    pub fn new(label: &str) -> Transcript {
        let mut out = Transcript(Hasher::new());
        out.part(label.as_bytes());
        out
    }

    pub fn part(&mut self, bytes: &[u8]) {
        self.0.update(&(bytes.len() as u64).to_be_bytes());
        self.0.update(bytes);
    }

    pub fn points(&mut self, points: &[[u8; 48]]) {
        for point in points {
            self.0.update(point);
        }
    }

    #[cfg(test)]
    pub fn copy(&self) -> Transcript {
        Transcript(self.0.clone())
    }

    pub fn hash(&self) -> [u8; 32] {
        self.0.finalize()
    }
}

/// A proof that one secret number is the logarithm of one or two points (Schnorr 1991, Chaum and
/// Pedersen 1992). The transcript makes it non-interactive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LogProof {
    hash: [u8; 32],
    response: Scalar,
}

impl LogProof {
    /// Length of the encoding in bytes.
    pub const LEN: usize = 64;

    /// Proves knowledge of `secret` with `points = secret * bases`.
    ///
    /// The nonce is derived from the secret, the statement and fresh randomness. So a repeated
    /// generator, as in a restored snapshot, still gives two statements different nonces. With a
    /// poor generator, only a holder of the secret can guess a nonce.
    pub fn new<const N: usize>(
        label: &str,
        context: &[&[u8]],
        bases: &[G1; N],
        points: &[G1; N],
        secret: &Scalar,
        rng: &mut Rng,
    ) -> LogProof {
        let mut statement = Self::statement(label, context, bases, points);
        let nonce = nonce(secret, &statement.hash(), rng);
        statement.points(&encode_all(&bases.map(|base| base.mul(&nonce))));
        let hash = statement.hash();
        let c = SplitChallenge::from_hash(&hash).scalar();
        LogProof { hash, response: nonce.add(&c.mul(secret)) }
    }

    /// True if the proof is valid.
    pub fn verify<const N: usize>(
        &self,
        label: &str,
        context: &[&[u8]],
        bases: &[G1; N],
        points: &[G1; N],
    ) -> bool {
        let c = SplitChallenge::from_hash(&self.hash).scalar();
        let mut commitments = *bases;
        for (commitment, point) in commitments.iter_mut().zip(points) {
            *commitment = commitment.mul(&self.response).sub(&point.mul(&c));
        }
        let mut statement = Self::statement(label, context, bases, points);
        statement.points(&encode_all(&commitments));
        statement.hash() == self.hash
    }

    /// The challenge's transcript up to the commitments.
    fn statement<const N: usize>(
        label: &str,
        context: &[&[u8]],
        bases: &[G1; N],
        points: &[G1; N],
    ) -> Transcript {
        let mut transcript = Transcript::new(label);
        for part in context {
            transcript.part(part);
        }
        transcript.points(&encode_all(bases));
        transcript.points(&encode_all(points));
        transcript
    }

    pub fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.hash);
        out.extend_from_slice(&self.response.encode());
    }

    pub fn read(reader: &mut Reader<'_>) -> Result<LogProof, Error> {
        let hash = reader.array("proof challenge")?;
        Ok(LogProof { hash, response: codec::scalar(reader, "proof response")? })
    }
}

/// A uniform number other than zero, unless a hash is zero modulo r (once in 2^255).
fn nonce(secret: &Scalar, statement: &[u8; 32], rng: &mut Rng) -> Scalar {
    let key = Secret::new(secret.encode());
    let fresh: Secret<32> = Secret::new(rng.array());
    let half = |label| kdf(key.expose(), label, &[statement, fresh.expose()]);
    let mut wide = [0; 64];
    wide[..32].copy_from_slice(&half("shoal attribution proof nonce high"));
    wide[32..].copy_from_slice(&half("shoal attribution proof nonce low"));
    let out = Scalar::from_wide(&wide);
    wide.zeroize();
    out
}
