//! The issuer: who may join, and who is no longer a member.
//!
//! Revocation is by epoch. A credential is good for one epoch; at its end the issuer makes new ones
//! for all members but the revoked. Signers and verifiers do nothing per revoked member.

use std::collections::BTreeMap;

use shoal_crypto::bls::{G1, G2, Scalar};
use shoal_crypto::{Identity, Rng, Secret, kdf};
use shoal_wire::Reader;
use zeroize::Zeroize;

use crate::group::epoch_base;
use crate::{Credential, Error, Group, GroupId, JoinRequest, codec};

/// Most members a registry holds, so that a file can't make its reader allocate without end.
pub const MEMBERS_MAX: usize = 1 << 20;

const LABEL_NOTICE: &[u8] = b"shoal attribution epoch notice v1";

/// The issuer's keys: for credentials (`γ`) and for notices. Wiped on drop.
pub struct IssuerKey {
    seed: Secret<32>,
    gamma: Scalar,
    exponents: Secret<32>,
    notary: Identity,
}

impl IssuerKey {
    /// The keys that follow from a 32-byte seed of the operating system's randomness.
    pub fn from_seed(seed: [u8; 32]) -> IssuerKey {
        let mut rng = Rng::new(kdf(&seed, "shoal attribution issuer v1", &[]));
        IssuerKey {
            gamma: Scalar::random(&mut rng),
            exponents: Secret::new(kdf(&seed, "shoal attribution exponents v1", &[])),
            notary: Identity::from_seed(kdf(&seed, "shoal attribution notary v1", &[])),
            seed: Secret::new(seed),
        }
    }

    /// The seed, for writing the key file.
    pub fn seed(&self) -> &Secret<32> {
        &self.seed
    }

    /// The public key for credentials: `W = γ G2`.
    pub fn public(&self) -> G2 {
        G2::generate(&self.gamma)
    }

    /// The key for notices.
    pub fn notary(&self) -> &Identity {
        &self.notary
    }

    /// Signs `point` for `epoch`. The same inputs give the same credential, so that nobody gains by
    /// asking twice.
    fn credential(&self, group: &Group, epoch: u32, base: &G1, point: &G1) -> Credential {
        let parts: [&[u8]; 3] = [&group.id().0, &epoch.to_be_bytes(), &point.encode()];
        let mut wide = [0; 64];
        for (n, half) in wide.chunks_exact_mut(32).enumerate() {
            let label = ["exponent high", "exponent low"][n];
            half.copy_from_slice(&kdf(self.exponents.expose(), label, &parts));
        }
        let e = Scalar::from_wide(&wide);
        wide.zeroize();
        let a = base.add(point).mul(&self.gamma.add(&e).invert());
        Credential { epoch, a, e }
    }

    /// Answers a join request: registers the member and makes its first credential.
    pub fn issue(
        &self,
        group: &Group,
        registry: &mut Registry,
        request: &JoinRequest,
        epoch: u32,
    ) -> Result<Credential, Error> {
        registry.add(group, request)?;
        Ok(self.credential(group, epoch, &epoch_base(epoch), request.point()))
    }

    /// The credentials of `epoch` for every member who is not revoked by then.
    pub fn renew(&self, group: &Group, registry: &Registry, epoch: u32) -> Renewal {
        let base = epoch_base(epoch);
        let mut entries = BTreeMap::new();
        for entry in registry.members().filter(|m| !m.revoked(epoch)) {
            let point = entry.request.point();
            entries.insert(point.encode(), self.credential(group, epoch, &base, point));
        }
        Renewal { epoch, entries }
    }

    /// States that `epoch` is the current one from `not_before` to `not_after` (Unix seconds).
    pub fn notice(
        &self,
        group: &Group,
        epoch: u32,
        not_before: u64,
        not_after: u64,
    ) -> EpochNotice {
        let mut notice =
            EpochNotice { group: group.id(), epoch, not_before, not_after, signature: [0; 64] };
        notice.signature = self.notary.sign(&notice.signed());
        notice
    }
}

impl core::fmt::Debug for IssuerKey {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("IssuerKey(hidden)")
    }
}

/// One member in the registry.
#[derive(Clone, Debug)]
pub struct Member {
    /// The join request, by which the member itself claims its point.
    pub request: JoinRequest,
    /// First epoch without the member.
    pub revoked_at: Option<u32>,
}

impl Member {
    /// Whether the member is out in `epoch`.
    pub fn revoked(&self, epoch: u32) -> bool {
        self.revoked_at.is_some_and(|at| at <= epoch)
    }
}

/// All members, past and present. Public: openings are looked up in it.
#[derive(Clone, Default)]
pub struct Registry {
    members: Vec<Member>,
    by_point: BTreeMap<[u8; 48], usize>,
    by_name: BTreeMap<String, usize>,
}

impl Registry {
    /// Nobody.
    pub fn new() -> Registry {
        Registry::default()
    }

    /// Registers the author of a valid request whose name and point are new.
    pub fn add(&mut self, group: &Group, request: &JoinRequest) -> Result<(), Error> {
        request.verify(group)?;
        self.insert(Member { request: request.clone(), revoked_at: None })
    }

    fn insert(&mut self, member: Member) -> Result<(), Error> {
        let point = member.request.point().encode();
        let name = member.request.name().to_owned();
        if self.members.len() >= MEMBERS_MAX {
            return Err(Error::Full("the registry"));
        }
        if self.by_point.contains_key(&point) {
            return Err(Error::Duplicate("the member's point"));
        }
        if self.by_name.contains_key(&name) {
            return Err(Error::Duplicate("the member's name"));
        }
        self.by_point.insert(point, self.members.len());
        self.by_name.insert(name, self.members.len());
        self.members.push(member);
        Ok(())
    }

    /// Ends a membership from `epoch` on.
    pub fn revoke(&mut self, name: &str, epoch: u32) -> Result<(), Error> {
        let at = *self.by_name.get(name).ok_or(Error::UnknownMember)?;
        let member = &mut self.members[at];
        if let Some(since) = member.revoked_at {
            return Err(Error::Revoked(since));
        }
        member.revoked_at = Some(epoch);
        Ok(())
    }

    /// Every member in the order of joining.
    pub fn members(&self) -> impl Iterator<Item = &Member> {
        self.members.iter()
    }

    /// The member that `point` names.
    pub fn find(&self, point: &G1) -> Option<&Member> {
        self.by_point.get(&point.encode()).map(|at| &self.members[*at])
    }

    /// The encoding (docs/attribution.md section 7).
    pub fn encode(&self) -> Vec<u8> {
        let mut out = b"SAR1".to_vec();
        out.extend_from_slice(&(self.members.len() as u32).to_be_bytes());
        for member in &self.members {
            // No epoch of a running group is the highest number.
            out.extend_from_slice(&member.revoked_at.unwrap_or(u32::MAX).to_be_bytes());
            member.request.put(&mut out);
        }
        out
    }

    /// Reads an encoding. Whoever relies on an entry checks its request.
    pub fn decode(bytes: &[u8]) -> Result<Registry, Error> {
        let mut reader = Reader::new(bytes);
        codec::magic(&mut reader, b"SAR1", "registry")?;
        let count = reader.u32("members")? as usize;
        let mut registry = Registry::new();
        for _ in 0..count {
            let at = reader.u32("revoked at")?;
            let revoked_at = (at != u32::MAX).then_some(at);
            registry.insert(Member { request: JoinRequest::read(&mut reader)?, revoked_at })?;
        }
        reader.finish("registry")?;
        Ok(registry)
    }
}

/// The credentials of one epoch, for everybody to download whole, so that nobody tells by fetching
/// who he is.
#[derive(Clone, PartialEq, Eq)]
pub struct Renewal {
    epoch: u32,
    entries: BTreeMap<[u8; 48], Credential>,
}

impl Renewal {
    /// The epoch the credentials are good for.
    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    /// How many members got one.
    pub fn count(&self) -> usize {
        self.entries.len()
    }

    /// The credential of the member with this point, if it isn't revoked.
    pub fn find(&self, point: &G1) -> Option<&Credential> {
        self.entries.get(&point.encode())
    }

    /// The encoding (docs/attribution.md section 7): 128 bytes for each member.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = b"SAN1".to_vec();
        out.extend_from_slice(&self.epoch.to_be_bytes());
        out.extend_from_slice(&(self.entries.len() as u32).to_be_bytes());
        for (point, credential) in &self.entries {
            out.extend_from_slice(point);
            out.extend_from_slice(&credential.a.encode());
            out.extend_from_slice(&credential.e.encode());
        }
        out
    }

    /// Finds the credential of `point` in an encoding, decoding no other entry.
    pub fn pick(bytes: &[u8], point: &G1) -> Result<Option<Credential>, Error> {
        let mut reader = Reader::new(bytes);
        codec::magic(&mut reader, b"SAN1", "credentials")?;
        let epoch = reader.u32("epoch")?;
        let count = reader.u32("credentials")?;
        let want = point.encode();
        let mut found = None;
        for _ in 0..count {
            let name: [u8; 48] = reader.array("member point")?;
            let mut entry = Reader::new(reader.bytes("credential", 80)?);
            if name == want && found.is_none() {
                let a = codec::point(&mut entry, "credential")?;
                let e = codec::scalar(&mut entry, "credential exponent")?;
                found = Some(Credential { epoch, a, e });
            }
        }
        reader.finish("renewal")?;
        Ok(found)
    }
}

impl core::fmt::Debug for Registry {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Registry({} members)", self.members.len())
    }
}

impl core::fmt::Debug for Renewal {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Renewal(epoch {}, {} members)", self.epoch, self.entries.len())
    }
}

/// The issuer's word on which epoch it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EpochNotice {
    group: GroupId,
    /// The epoch.
    pub epoch: u32,
    /// First second of it (Unix time).
    pub not_before: u64,
    /// Last second of it (Unix time).
    pub not_after: u64,
    signature: [u8; 64],
}

impl EpochNotice {
    /// Checks that the group's issuer says so, and that `now` (Unix seconds) is inside.
    pub fn verify(&self, group: &Group, now: u64) -> Result<(), Error> {
        if self.group != group.id() {
            return Err(Error::OtherGroup);
        }
        if !group.notary().verify(&self.signed(), &self.signature) {
            return Err(Error::Proof("the epoch notice's signature"));
        }
        if now < self.not_before || now > self.not_after {
            return Err(Error::Range("the time of the epoch notice"));
        }
        Ok(())
    }

    fn signed(&self) -> Vec<u8> {
        let mut out = LABEL_NOTICE.to_vec();
        self.put_unsigned(&mut out);
        out
    }

    fn put_unsigned(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.group.0);
        out.extend_from_slice(&self.epoch.to_be_bytes());
        out.extend_from_slice(&self.not_before.to_be_bytes());
        out.extend_from_slice(&self.not_after.to_be_bytes());
    }

    /// The encoding (docs/attribution.md section 7).
    pub fn encode(&self) -> Vec<u8> {
        let mut out = b"SAE1".to_vec();
        self.put_unsigned(&mut out);
        out.extend_from_slice(&self.signature);
        out
    }

    /// Reads an encoding; the signature is still to be checked.
    pub fn decode(bytes: &[u8]) -> Result<EpochNotice, Error> {
        let mut reader = Reader::new(bytes);
        codec::magic(&mut reader, b"SAE1", "epoch notice")?;
        let notice = EpochNotice {
            group: GroupId(reader.array("group id")?),
            epoch: reader.u32("epoch")?,
            not_before: reader.u64("not before")?,
            not_after: reader.u64("not after")?,
            signature: reader.array("notice signature")?,
        };
        reader.finish("epoch notice")?;
        Ok(notice)
    }
}
