//! The member's part in joining: a secret that never leaves the member, a request, and the
//! credential.

use shoal_crypto::bls::{G1, G2, G2Lines, Scalar, pairing_product_is_one};
use shoal_crypto::{Identity, PublicKey, Rng};
use shoal_wire::Reader;

use crate::group::generators;
use crate::proof::LogProof;
use crate::tree::{self, TreeHash};
use crate::{EpochNotice, Error, Group, codec};

const LABEL_JOIN: &str = "shoal attribution join v1";
const LABEL_REQUEST: &[u8] = b"shoal attribution join request v1";

/// A member's secret `x`, known to nobody else. Wiped on drop.
#[derive(Clone)]
pub struct MemberSecret(Scalar);

impl MemberSecret {
    pub fn new(rng: &mut Rng) -> MemberSecret {
        MemberSecret(Scalar::random(rng))
    }

    /// The point `h^x`, which identifies the member in an opened signature.
    pub fn point(&self) -> G1 {
        generators().member.mul(&self.0)
    }

    /// Makes a join request, in which the holder of `identity` claims the point.
    pub fn request(
        &self,
        group: &Group,
        name: &str,
        identity: &Identity,
        rng: &mut Rng,
    ) -> Result<JoinRequest, Error> {
        codec::check_name(name, "member name")?;
        let point = self.point();
        let public = identity.public();
        let bound = bound(group, name, &public);
        let proof =
            LogProof::new(LABEL_JOIN, &[&bound], &[generators().member], &[point], &self.0, rng);
        let mut request = JoinRequest {
            name: name.to_owned(),
            identity: public,
            point,
            proof,
            signature: [0; 64],
        };
        request.signature = identity.sign(&request.signed(group));
        Ok(request)
    }

    pub(crate) fn scalar(&self) -> &Scalar {
        &self.0
    }

    /// The encoding; it is secret.
    pub fn encode(&self) -> [u8; 32] {
        self.0.encode()
    }

    pub fn decode(bytes: &[u8; 32]) -> Result<MemberSecret, Error> {
        let element = |why| Error::Element { what: "member secret", why };
        Ok(MemberSecret(Scalar::decode(bytes).map_err(element)?))
    }
}

impl core::fmt::Debug for MemberSecret {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("MemberSecret(hidden)")
    }
}

fn bound(group: &Group, name: &str, identity: &PublicKey) -> Vec<u8> {
    let mut out = group.id().0.to_vec();
    codec::put_name(&mut out, name);
    out.extend_from_slice(&identity.to_bytes());
    out
}

/// The first message of joining, and the public record that binds a name and an identity key to the
/// point that openings reveal. It proves that its author knew the secret. The identity key signs
/// it, so nobody can be registered under a point without having asked for it.
#[derive(Clone, PartialEq, Eq)]
pub struct JoinRequest {
    name: String,
    identity: PublicKey,
    point: G1,
    proof: LogProof,
    signature: [u8; 64],
}

impl JoinRequest {
    /// Maximum length of an encoding in bytes.
    pub const LEN_MAX: usize = 1 + codec::NAME_MAX + 64 + 48 + LogProof::LEN + 64;

    /// Checks identity key, proof and signature for `group`.
    pub fn verify(&self, group: &Group) -> Result<(), Error> {
        if self.identity.is_weak() {
            return Err(Error::WeakKey("the identity key"));
        }
        let bound = bound(group, &self.name, &self.identity);
        let bases = [generators().member];
        if !self.proof.verify(LABEL_JOIN, &[&bound], &bases, &[self.point]) {
            return Err(Error::Proof("the join request's proof"));
        }
        if !self.identity.verify(&self.signed(group), &self.signature) {
            return Err(Error::Proof("the join request's signature"));
        }
        Ok(())
    }

    /// The member's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The identity key that signed the request.
    pub fn identity(&self) -> &PublicKey {
        &self.identity
    }

    /// The point that openings reveal.
    pub fn point(&self) -> &G1 {
        &self.point
    }

    /// The leaf of the registry's hash tree.
    pub(crate) fn leaf(&self) -> TreeHash {
        let mut out = Vec::with_capacity(JoinRequest::LEN_MAX);
        self.put(&mut out);
        tree::leaf(&out)
    }

    fn signed(&self, group: &Group) -> Vec<u8> {
        let mut out = LABEL_REQUEST.to_vec();
        out.extend_from_slice(&group.id().0);
        self.put_unsigned(&mut out);
        out
    }

    fn put_unsigned(&self, out: &mut Vec<u8>) {
        codec::put_name(out, &self.name);
        out.extend_from_slice(&self.identity.to_bytes());
        out.extend_from_slice(&self.point.encode());
        self.proof.put(out);
    }

    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        self.put_unsigned(out);
        out.extend_from_slice(&self.signature);
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<JoinRequest, Error> {
        Ok(JoinRequest {
            name: codec::name(reader, "member name")?,
            identity: codec::public_key(reader, "identity key")?,
            point: codec::point(reader, "member point")?,
            proof: LogProof::read(reader)?,
            signature: reader.array("request signature")?,
        })
    }

    /// The encoding (docs/design/wire/attribution.md).
    pub fn encode(&self) -> Vec<u8> {
        let mut out = b"SAJ1".to_vec();
        self.put(&mut out);
        out
    }

    /// Decodes a request without checking its proof and signature.
    pub fn decode(bytes: &[u8]) -> Result<JoinRequest, Error> {
        codec::file(bytes, b"SAJ1", "join request", JoinRequest::read)
    }
}

impl core::fmt::Debug for JoinRequest {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("JoinRequest(hidden)")
    }
}

/// The issuer's signature `A = (g1 h_e^epoch h^x)^(1/(γ+e))`, valid for one epoch, with that
/// epoch's notice. It is useless without the member's secret, and need not be kept secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberCredential {
    pub(crate) notice: EpochNotice,
    pub(crate) a: G1,
    pub(crate) e: Scalar,
}

impl MemberCredential {
    /// Length of the encoding in bytes.
    pub const LEN: usize = 4 + EpochNotice::LEN + 48 + 32;

    pub fn epoch(&self) -> u32 {
        self.notice.epoch
    }

    /// The epoch's notice.
    pub fn notice(&self) -> &EpochNotice {
        &self.notice
    }

    /// Checks that the issuer of `group` signed the notice, and signed this secret for this epoch.
    pub fn verify(&self, group: &Group, secret: &MemberSecret) -> Result<(), Error> {
        self.notice.verify_signature(group)?;
        let bad = Error::Proof("the credential");
        let signed = group.epoch_base(self.epoch()).add(&secret.point());
        let key = group.issuer().plus_generated(&self.e).ok_or(bad.clone())?;
        let lines = [G2Lines::new(&key), G2Lines::new(&G2::generator())];
        if !pairing_product_is_one(&[(&self.a, &lines[0]), (&signed.neg(), &lines[1])]) {
            return Err(bad);
        }
        Ok(())
    }

    /// The encoding (docs/design/wire/attribution.md).
    pub fn encode(&self) -> Vec<u8> {
        let mut out = b"SAC2".to_vec();
        self.notice.put(&mut out);
        out.extend_from_slice(&self.a.encode());
        out.extend_from_slice(&self.e.encode());
        out
    }

    /// Decodes a credential without checking the issuer's signature.
    pub fn decode(bytes: &[u8]) -> Result<MemberCredential, Error> {
        let mut reader = Reader::new(bytes);
        codec::magic(&mut reader, b"SAC2", "credential")?;
        let credential = MemberCredential {
            notice: EpochNotice::read(&mut reader)?,
            a: codec::point(&mut reader, "credential")?,
            e: codec::scalar(&mut reader, "credential exponent")?,
        };
        reader.finish("credential")?;
        Ok(credential)
    }
}
