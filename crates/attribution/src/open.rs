//! Opening: trustees decrypt the signer's identity, each with a proof, and anybody can judge the
//! result.

use shoal_crypto::Rng;
use shoal_crypto::bls::G1;
use shoal_wire::Reader;

use crate::group::generators;
use crate::proof::LogProof;
use crate::tree::{self, PATH_MAX, TreeHash};
use crate::trustee::interpolate;
use crate::verify::VerifiedSignature;
use crate::{
    EpochNotice, Error, Group, JoinRequest, ProvedPacket, Registry, TRUSTEES_MAX, TrusteeKey, codec,
};

const LABEL_SHARE: &str = "shoal attribution opening share v1";

/// One trustee's share of an opening: `D = C1^y_i`, and a proof of that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpeningShare {
    trustee: usize,
    point: G1,
    proof: LogProof,
}

impl OpeningShare {
    /// Length of the encoding in bytes.
    pub const LEN: usize = 1 + 48 + LogProof::LEN;

    /// Makes the share of the trustee with `key`. `checked` must be a verified signature: a trustee
    /// that decrypts anything else is an oracle.
    pub fn new(
        group: &Group,
        key: &TrusteeKey,
        checked: &VerifiedSignature,
        rng: &mut Rng,
    ) -> OpeningShare {
        let g = generators().g;
        let c1 = checked.encrypted[0];
        let point = c1.mul(key.share());
        let bound = bound(group, key.index());
        let points = [g.mul(key.share()), point];
        let proof = LogProof::new(LABEL_SHARE, &[&bound], &[g, c1], &points, key.share(), rng);
        OpeningShare { trustee: key.index(), point, proof }
    }

    /// Number of the trustee, from 1.
    pub fn trustee(&self) -> usize {
        self.trustee
    }

    fn holds(&self, group: &Group, checked: &VerifiedSignature) -> bool {
        let Some(public) = group.opener().trustee(self.trustee) else { return false };
        let bases = [generators().g, checked.encrypted[0]];
        let points = [*public, self.point];
        self.proof.verify(LABEL_SHARE, &[&bound(group, self.trustee)], &bases, &points)
    }

    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        out.push(self.trustee as u8);
        out.extend_from_slice(&self.point.encode());
        self.proof.put(out);
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<OpeningShare, Error> {
        let trustee = usize::from(reader.u8("trustee")?);
        if trustee == 0 || trustee > TRUSTEES_MAX {
            return Err(Error::Range("trustee"));
        }
        let point = codec::point(reader, "opening share")?;
        Ok(OpeningShare { trustee, point, proof: LogProof::read(reader)? })
    }

    /// The encoding (docs/design/wire/attribution.md).
    pub fn encode(&self) -> Vec<u8> {
        let mut out = b"SAS1".to_vec();
        self.put(&mut out);
        out
    }

    /// Decodes a share without checking its proof.
    pub fn decode(bytes: &[u8]) -> Result<OpeningShare, Error> {
        codec::file(bytes, b"SAS1", "opening share", OpeningShare::read)
    }
}

fn bound(group: &Group, trustee: usize) -> Vec<u8> {
    let mut out = group.id().0.to_vec();
    out.push(trustee as u8);
    out
}

/// The signer, with the proof for third parties. The proof has the shares of `t` trustees, the
/// signer's join request, and its position in the registry that the issuer stated for the epoch.
///
/// A join request alone proves nothing: a member can sign any number of them for its point, with
/// other names and identity keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opening {
    shares: Vec<OpeningShare>,
    notice: EpochNotice,
    /// Position in the registry; `path` leads from there to the root.
    place: u32,
    path: Vec<TreeHash>,
    member: JoinRequest,
}

impl Opening {
    /// Combines the shares of a signature, without the invalid ones, and looks up the signer.
    /// `notice` is that of the signature's epoch.
    pub fn new(
        group: &Group,
        registry: &Registry,
        notice: &EpochNotice,
        checked: &VerifiedSignature,
        shares: &[OpeningShare],
    ) -> Result<Opening, Error> {
        check_notice(group, notice, checked)?;
        let need = group.opener().threshold();
        let mut good: Vec<OpeningShare> = Vec::with_capacity(need);
        for share in shares {
            let known = good.iter().any(|g| g.trustee == share.trustee);
            if good.len() < need && !known && share.holds(group, checked) {
                good.push(share.clone());
            }
        }
        if good.len() < need {
            return Err(Error::TooFewShares { need, have: good.len() });
        }
        let point = decrypt(checked, &good);
        let leaves = registry.leaves(notice.members as usize);
        let leaves = leaves.filter(|leaves| tree::root(leaves) == notice.registry);
        let leaves = leaves.ok_or(Error::Proof("the registry of this epoch"))?;
        let place = registry.place(&point).filter(|at| *at < leaves.len());
        let (Some(place), Some(member)) = (place, registry.find(&point)) else {
            return Err(Error::UnknownSigner);
        };
        let path = tree::path(&leaves, place);
        let (notice, member) = (notice.clone(), member.request.clone());
        Ok(Opening { shares: good, notice, place: place as u32, path, member })
    }

    /// Judges an opening of the verified signature `checked`. It holds if the trustees decrypted
    /// correctly, the join request claims the resulting point, and exactly that request was
    /// registered when the epoch began.
    pub fn judge(&self, group: &Group, checked: &VerifiedSignature) -> Result<&JoinRequest, Error> {
        check_notice(group, &self.notice, checked)?;
        let need = group.opener().threshold();
        let distinct = |n: usize| {
            let share = &self.shares[n];
            self.shares[..n].iter().all(|s| s.trustee != share.trustee)
        };
        if self.shares.len() != need || !(0..need).all(distinct) {
            return Err(Error::TooFewShares { need, have: self.shares.len() });
        }
        if !self.shares.iter().all(|s| s.holds(group, checked)) {
            return Err(Error::Proof("an opening share"));
        }
        if decrypt(checked, &self.shares) != *self.member.point() {
            return Err(Error::Proof("the opening"));
        }
        let (leaf, place) = (self.member.leaf(), self.place as usize);
        let root = tree::root_from(&leaf, place, self.notice.members as usize, &self.path);
        if root != Some(self.notice.registry) {
            return Err(Error::Proof("the entry in the registry"));
        }
        self.member.verify(group)?;
        Ok(&self.member)
    }

    /// Judges an opening of the signature over a packet. The signer states the packet's time, which
    /// must be within the epoch.
    pub fn judge_packet(
        &self,
        group: &Group,
        proved: &ProvedPacket,
    ) -> Result<&JoinRequest, Error> {
        let member = self.judge(group, &proved.checked)?;
        if !self.notice.holds_time(proved.time_ms) {
            return Err(Error::OutsideEpoch(self.notice.epoch));
        }
        Ok(member)
    }

    /// The encoding (docs/design/wire/attribution.md).
    pub fn encode(&self) -> Vec<u8> {
        let mut out = b"SAO2".to_vec();
        out.push(self.shares.len() as u8);
        for share in &self.shares {
            share.put(&mut out);
        }
        self.notice.put(&mut out);
        out.extend_from_slice(&self.place.to_be_bytes());
        out.push(self.path.len() as u8);
        self.path.iter().for_each(|node| out.extend_from_slice(node));
        self.member.put(&mut out);
        out
    }

    /// Decodes an opening without judging it.
    pub fn decode(bytes: &[u8]) -> Result<Opening, Error> {
        let mut reader = Reader::new(bytes);
        codec::magic(&mut reader, b"SAO2", "opening")?;
        let count = usize::from(reader.u8("shares")?);
        if count == 0 || count > TRUSTEES_MAX {
            return Err(Error::Range("shares"));
        }
        let shares: Result<Vec<OpeningShare>, Error> =
            (0..count).map(|_| OpeningShare::read(&mut reader)).collect();
        let notice = EpochNotice::read(&mut reader)?;
        let place = reader.u32("place in the registry")?;
        let steps = usize::from(reader.u8("path")?);
        if steps > PATH_MAX {
            return Err(Error::Range("path"));
        }
        let mut path = Vec::with_capacity(steps);
        for _ in 0..steps {
            path.push(reader.array("path")?);
        }
        let member = JoinRequest::read(&mut reader)?;
        reader.finish("opening")?;
        Ok(Opening { shares: shares?, notice, place, path, member })
    }
}

/// Checks that the notice belongs to the signature's epoch.
fn check_notice(
    group: &Group,
    notice: &EpochNotice,
    checked: &VerifiedSignature,
) -> Result<(), Error> {
    notice.verify_signature(group)?;
    if notice.epoch == checked.epoch { Ok(()) } else { Err(Error::OtherEpoch) }
}

/// `C3 - y C1`, from the shares of distinct trustees.
fn decrypt(checked: &VerifiedSignature, shares: &[OpeningShare]) -> G1 {
    let indices: Vec<usize> = shares.iter().map(|s| s.trustee).collect();
    let points: Vec<G1> = shares.iter().map(|s| s.point).collect();
    checked.encrypted[1].sub(&interpolate(&indices, &points))
}
