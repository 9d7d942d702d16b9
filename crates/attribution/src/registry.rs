//! Who was ever admitted: the entries that openings are looked up in.

use std::collections::BTreeMap;

use shoal_crypto::bls::G1;
use shoal_crypto::hash;
use shoal_wire::Reader;

use crate::tree::{self, Node};
use crate::{Error, Group, IssuerKey, JoinRequest, codec};

/// Most members a registry holds, so that a file can't make its reader allocate without end.
pub const MEMBERS_MAX: usize = 1 << 20;

const LABEL: &[u8] = b"shoal attribution registry file v1";

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

/// All members, past and present, in the order of joining. Public: openings are looked up in it.
///
/// Every entry was checked, either when it was added or by the issuer, who signs the file. Entries
/// are only added, so the hash tree that an epoch notice states stays the tree of the first
/// entries.
#[derive(Clone, Default)]
pub struct Registry {
    members: Vec<Member>,
    by_point: BTreeMap<[u8; 48], usize>,
    by_name: BTreeMap<String, usize>,
    /// By the half of the identity key that signs.
    by_identity: BTreeMap<[u8; 32], usize>,
}

impl Registry {
    /// A registry without members.
    pub fn new() -> Registry {
        Registry::default()
    }

    /// Registers the author of a valid request whose name, point and identity key are new. A
    /// revoked identity key can't come back under another name.
    pub fn add(&mut self, group: &Group, request: &JoinRequest) -> Result<(), Error> {
        request.verify(group)?;
        self.insert(Member { request: request.clone(), revoked_at: None })
    }

    fn insert(&mut self, member: Member) -> Result<(), Error> {
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

    /// Ends a membership from `epoch` on. A revocation can be brought forward, not put off.
    pub fn revoke(&mut self, name: &str, epoch: u32) -> Result<(), Error> {
        let at = *self.by_name.get(name).ok_or(Error::UnknownMember)?;
        let member = &mut self.members[at];
        if let Some(since) = member.revoked_at.filter(|since| *since <= epoch) {
            return Err(Error::Revoked(since));
        }
        member.revoked_at = Some(epoch);
        Ok(())
    }

    /// Every member in the order of joining.
    pub fn members(&self) -> impl ExactSizeIterator<Item = &Member> {
        self.members.iter()
    }

    /// The member that `point` names.
    pub fn find(&self, point: &G1) -> Option<&Member> {
        self.place(point).map(|at| &self.members[at])
    }

    /// Where in the order of joining the member that `point` names stands.
    pub(crate) fn place(&self, point: &G1) -> Option<usize> {
        self.by_point.get(&point.encode()).copied()
    }

    /// The hash tree's leaves of the first `count` members; none if there are fewer.
    pub(crate) fn leaves(&self, count: usize) -> Option<Vec<Node>> {
        let members = self.members.get(..count)?;
        Some(members.iter().map(|m| m.request.leaf()).collect())
    }

    /// The root of the hash tree over the first `count` members; none if there are fewer.
    pub fn root(&self, count: usize) -> Option<[u8; 32]> {
        Some(tree::root(&self.leaves(count)?))
    }

    /// The encoding (docs/attribution.md section 7), signed by the issuer.
    pub fn encode(&self, issuer: &IssuerKey, group: &Group) -> Vec<u8> {
        let mut out = b"SAR2".to_vec();
        out.extend_from_slice(&(self.members.len() as u32).to_be_bytes());
        for member in &self.members {
            // No epoch of a running group is the highest number.
            out.extend_from_slice(&member.revoked_at.unwrap_or(u32::MAX).to_be_bytes());
            member.request.put(&mut out);
        }
        let signature = issuer.notary().sign(&signed(group, &out));
        out.extend_from_slice(&signature);
        out
    }

    /// Reads an encoding that the issuer of `group` signed.
    pub fn decode(bytes: &[u8], group: &Group) -> Result<Registry, Error> {
        let mut reader = Reader::new(bytes);
        codec::magic(&mut reader, b"SAR2", "registry")?;
        let count = reader.u32("members")? as usize;
        let mut registry = Registry::new();
        for _ in 0..count {
            let at = reader.u32("revoked at")?;
            let revoked_at = (at != u32::MAX).then_some(at);
            registry.insert(Member { request: JoinRequest::read(&mut reader)?, revoked_at })?;
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
