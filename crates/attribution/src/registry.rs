//! The registry of all members ever admitted, in which openings are looked up.

use std::collections::BTreeMap;

use shoal_crypto::bls::G1;
use shoal_crypto::hash;
use shoal_wire::Reader;

use crate::tree::{self, TreeHash};
use crate::{Error, Group, IssuerKey, JoinRequest, codec};

/// Maximum number of members, so that a file can't make its reader allocate without bound.
pub const MEMBERS_MAX: usize = 1 << 20;

const LABEL: &[u8] = b"shoal attribution registry file v1";

/// A member's entry.
#[derive(Clone, Debug)]
pub struct RegistryEntry {
    /// The join request, in which the member claims its point.
    pub request: JoinRequest,
    /// First epoch without the member, if revoked.
    pub revoked_at: Option<u32>,
}

impl RegistryEntry {
    /// True if the member is revoked in `epoch`.
    pub fn revoked(&self, epoch: u32) -> bool {
        self.revoked_at.is_some_and(|at| at <= epoch)
    }
}

/// All present and former members, in the order of joining. The registry is public: openings are
/// looked up in it.
///
/// Every entry was checked when it was added, or by the issuer, who signs the file. Entries are
/// only added, so the hash tree in an epoch notice stays the tree of the first entries.
#[derive(Clone, Default)]
pub struct Registry {
    members: Vec<RegistryEntry>,
    by_point: BTreeMap<[u8; 48], usize>,
    by_name: BTreeMap<String, usize>,
    /// By the signing half of the identity key.
    by_identity: BTreeMap<[u8; 32], usize>,
}

impl Registry {
    pub fn new() -> Registry {
        Registry::default()
    }

    /// Registers the author of a valid request if name, point and identity key are new. A revoked
    /// identity key can't return under another name.
    pub fn add(&mut self, group: &Group, request: &JoinRequest) -> Result<(), Error> {
        request.verify(group)?;
        self.insert(RegistryEntry { request: request.clone(), revoked_at: None })
    }

    fn insert(&mut self, member: RegistryEntry) -> Result<(), Error> {
        let point = member.request.point().encode();
        let name = member.request.name().to_owned();
        let identity = member.request.identity().sign;
        if self.members.len() >= MEMBERS_MAX {
            return Err(Error::Full("the registry"));
        }
        if self.by_point.contains_key(&point) {
            return Err(Error::Duplicate("the member's point"));
        }
        if self.by_name.contains_key(&name) {
            return Err(Error::Duplicate("the member's name"));
        }
        if let Some(at) = self.by_identity.get(&identity) {
            let since = self.members[*at].revoked_at;
            let duplicate = Error::Duplicate("the member's identity key");
            return Err(since.map_or(duplicate, Error::Revoked));
        }
        self.by_point.insert(point, self.members.len());
        self.by_name.insert(name, self.members.len());
        self.by_identity.insert(identity, self.members.len());
        self.members.push(member);
        Ok(())
    }

    /// Ends a membership from `epoch` on. A revocation can be moved forward, not delayed.
    pub fn revoke(&mut self, name: &str, epoch: u32) -> Result<(), Error> {
        let at = *self.by_name.get(name).ok_or(Error::UnknownMember)?;
        let member = &mut self.members[at];
        if let Some(since) = member.revoked_at.filter(|since| *since <= epoch) {
            return Err(Error::Revoked(since));
        }
        member.revoked_at = Some(epoch);
        Ok(())
    }

    /// All members in the order of joining.
    pub fn members(&self) -> impl ExactSizeIterator<Item = &RegistryEntry> {
        self.members.iter()
    }

    /// The member with this point.
    pub fn find(&self, point: &G1) -> Option<&RegistryEntry> {
        self.place(point).map(|at| &self.members[at])
    }

    /// Position of the member with this point in the order of joining.
    pub(crate) fn place(&self, point: &G1) -> Option<usize> {
        self.by_point.get(&point.encode()).copied()
    }

    /// The leaves of the hash tree for the first `count` members; `None` if there are fewer.
    pub(crate) fn leaves(&self, count: usize) -> Option<Vec<TreeHash>> {
        let members = self.members.get(..count)?;
        Some(members.iter().map(|m| m.request.leaf()).collect())
    }

    /// The root of the hash tree over the first `count` members; `None` if there are fewer.
    pub fn root(&self, count: usize) -> Option<[u8; 32]> {
        Some(tree::root(&self.leaves(count)?))
    }

    /// The encoding (docs/design/wire/attribution.md), signed by the issuer.
    pub fn encode(&self, issuer: &IssuerKey, group: &Group) -> Vec<u8> {
        let mut out = b"SAR2".to_vec();
        out.extend_from_slice(&(self.members.len() as u32).to_be_bytes());
        for member in &self.members {
            // No running group reaches the highest epoch number.
            out.extend_from_slice(&member.revoked_at.unwrap_or(u32::MAX).to_be_bytes());
            member.request.put(&mut out);
        }
        let signature = issuer.notary().sign(&signed(group, &out));
        out.extend_from_slice(&signature);
        out
    }

    /// Decodes a registry and checks the issuer's signature.
    pub fn decode(bytes: &[u8], group: &Group) -> Result<Registry, Error> {
        let mut reader = Reader::new(bytes);
        codec::magic(&mut reader, b"SAR2", "registry")?;
        let count = reader.u32("members")? as usize;
        let mut registry = Registry::new();
        for _ in 0..count {
            let at = reader.u32("revoked at")?;
            let revoked_at = (at != u32::MAX).then_some(at);
            registry
                .insert(RegistryEntry { request: JoinRequest::read(&mut reader)?, revoked_at })?;
        }
        let signature = reader.array("registry signature")?;
        reader.finish("registry")?;
        let body = &bytes[..bytes.len() - 64];
        if !group.notary().verify(&signed(group, body), &signature) {
            return Err(Error::Proof("the registry's signature"));
        }
        Ok(registry)
    }
}

fn signed(group: &Group, body: &[u8]) -> Vec<u8> {
    [LABEL, &group.id().0, &hash(body)].concat()
}

impl core::fmt::Debug for Registry {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Registry({} members)", self.members.len())
    }
}
