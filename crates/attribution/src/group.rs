//! A group's public data.

use std::sync::OnceLock;

use shoal_crypto::bls::{G1, G2, Scalar, encode_all};
use shoal_crypto::{Hasher, PublicKey};
use shoal_wire::Reader;

use crate::{Error, OpenerPublic, codec};

/// Domain separation of the hash to the generators (RFC 9380 section 3.1).
const DST: &[u8] = b"SHOAL-ATTRIBUTION-V1-BLS12381G1_XMD:SHA-256_SSWU_RO_";

/// Points of G1 with unknown relations.
pub(crate) struct Generators {
    /// Base of the member's secret: `h`.
    pub member: G1,
    /// Base of the epoch: `h_e`.
    pub epoch: G1,
    /// Base of the encryption: `g`.
    pub g: G1,
    /// Base of the encryption's consistency proof: `ĝ`.
    pub g_hat: G1,
}

/// The generators, common to all groups.
pub(crate) fn generators() -> &'static Generators {
    static CELL: OnceLock<Generators> = OnceLock::new();
    CELL.get_or_init(|| Generators {
        member: G1::hash(b"member", DST),
        epoch: G1::hash(b"epoch", DST),
        g: G1::hash(b"g", DST),
        g_hat: G1::hash(b"g hat", DST),
    })
}

/// Identifies a group: a hash of all its public data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct GroupId(pub [u8; 32]);

/// A group's public keys: the issuer's and the opening trustees'.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    name: String,
    issuer: G2,
    notary: PublicKey,
    opener: OpenerPublic,
    id: GroupId,
    /// The group-specific part that every credential signs: `g1` of the formulas.
    base: G1,
}

impl Group {
    /// Builds a group. `name` should also name the network: groups with equal keys and different
    /// names are different groups.
    pub fn new(
        name: &str,
        issuer: G2,
        notary: PublicKey,
        opener: OpenerPublic,
    ) -> Result<Group, Error> {
        codec::check_name(name, "group name")?;
        if notary.is_weak() {
            return Err(Error::WeakKey("the issuer's identity key"));
        }
        let (id, base) = (GroupId([0; 32]), G1::identity());
        let mut group = Group { name: name.to_owned(), issuer, notary, opener, id, base };
        let mut hasher = Hasher::new();
        hasher.update(b"shoal attribution group id v2");
        let g = generators();
        for point in encode_all(&[g.member, g.epoch, g.g, g.g_hat]) {
            hasher.update(&point);
        }
        hasher.update(&group.encode());
        group.id = GroupId(hasher.finalize());
        group.base = G1::hash(&[b"base", &group.id.0[..]].concat(), DST);
        Ok(group)
    }

    /// The part that all credentials of one epoch sign, beside the member's secret: `g1 h_e^epoch`.
    pub(crate) fn epoch_base(&self, epoch: u32) -> G1 {
        self.base.add(&generators().epoch.mul(&Scalar::from_u64(u64::from(epoch))))
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn id(&self) -> GroupId {
        self.id
    }

    /// The issuer's key for credentials: `W`.
    pub fn issuer(&self) -> &G2 {
        &self.issuer
    }

    /// The issuer's key for notices.
    pub fn notary(&self) -> &PublicKey {
        &self.notary
    }

    /// The trustees' keys.
    pub fn opener(&self) -> &OpenerPublic {
        &self.opener
    }

    /// The encoding (docs/design/wire/attribution.md).
    pub fn encode(&self) -> Vec<u8> {
        let mut out = b"SAG1".to_vec();
        codec::put_name(&mut out, &self.name);
        out.extend_from_slice(&self.issuer.encode());
        out.extend_from_slice(&self.notary.to_bytes());
        self.opener.put(&mut out);
        out
    }

    pub fn decode(bytes: &[u8]) -> Result<Group, Error> {
        let mut reader = Reader::new(bytes);
        codec::magic(&mut reader, b"SAG1", "group")?;
        let name = codec::name(&mut reader, "group name")?;
        let issuer = G2::decode(&reader.array("issuer key")?)
            .map_err(|why| Error::Element { what: "issuer key", why })?;
        let notary = codec::public_key(&mut reader, "notary key")?;
        let opener = OpenerPublic::read(&mut reader)?;
        reader.finish("group")?;
        Group::new(&name, issuer, notary, opener)
    }
}
