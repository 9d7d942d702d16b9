//! The list: all statements of the authority under one signature (docs/design/wire/join.md).
//!
//! ```text
//! "SHL2" | version 8 | issued 8 | revoked: count 4, (digest 32, name) ascending
//!        | policy: length 4, UTF-8 | fields | members: count 4, digest 32 | signature 64
//! then for each member, ascending by key: length 2, descriptor
//! ```
//!
//! The signature covers the head, and the digest in the head covers the members. So one signature
//! check covers any number of members, and two lists can't be mixed.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use shoal_crypto::{PublicKey, SigningKey, VerifyKey, hash};
use shoal_wire::{ParseError, Reader};

use crate::codec::{magic, name, put_name};
use crate::fields::{self, FieldKind, Fields};
use crate::mandate::{self, Mandate, MandateFormat};
use crate::preset::{NetworkPreset, PRESET};
use crate::secrets::SECRETS;
use crate::{Error, Field, Member, Policy, Prefix, SecretNames, SignedMember};

/// Maximum number of members of a network.
pub const MEMBERS_MAX: usize = 65_536;
/// Maximum number of revoked keys in a list.
pub const REVOKED_MAX: usize = 65_536;
/// Maximum length of a policy in bytes.
pub const POLICY_MAX: usize = 64 << 10;
/// Maximum length of a list in bytes; a longer file need not be read.
pub const SIZE_MAX: usize = shoal_wire::LIST_LEN_MAX;
/// Domain separation of signatures.
const LABEL: &[u8] = b"shoal list 2";
const MAGIC: &[u8; 4] = b"SHL2";
/// Length of the prefix common to all hosts of a network, in bits.
const OVERLAY_BITS: u8 = 48;

/// A node that ignores mandates knows fewer members.
const MANDATES: FieldKind = FieldKind { number: 3, is_critical: false, what: "mandates" };
/// A node that ignored the rights of mandates would refuse a chain from its first router on, and so
/// miss later removals.
const MANDATES_2: FieldKind = FieldKind { number: 5, is_critical: true, what: "mandates" };
/// A node that ignores the prefix computes wrong addresses of hosts; it allows nothing more.
const OVERLAY: FieldKind = FieldKind { number: 1, is_critical: false, what: "overlay prefix" };

/// A key that must never be a member again.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RevokedKey {
    /// BLAKE3 of the public key's 64 bytes.
    pub digest: [u8; 32],
    /// Name of the former member, for people.
    pub name: String,
}

impl RevokedKey {
    /// Revokes `key`.
    pub fn new(name: &str, key: &PublicKey) -> RevokedKey {
        RevokedKey { digest: hash(&key.to_bytes()), name: name.to_owned() }
    }
}

/// The content of a list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListContent {
    /// Version. The list with the greater version counts.
    pub version: u64,
    /// Time of the signature in seconds since 1970.
    pub issued_unix_s: u64,
    /// Revoked keys.
    pub revoked: Vec<RevokedKey>,
    /// The policy, as TOML.
    pub policy: String,
    /// The first 48 bits of the IPv6 addresses of all hosts; see [`is_overlay`]. If absent, they
    /// are derived from the network secret.
    pub overlay: Option<Prefix>,
    /// Names of the network secrets that count; `None` if the authority never named any.
    pub secrets: Option<SecretNames>,
    /// Mandates of registrars, ascending by id.
    pub mandates: Vec<Mandate>,
    /// Preset of all hosts; `None` leaves the choice to each host.
    pub preset: Option<NetworkPreset>,
    /// Unknown fields of the list's head, ascending by number.
    pub unknown: Vec<Field>,
    /// The members.
    pub members: Vec<SignedMember>,
}

/// A list with the authority's signature.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct List {
    content: ListContent,
    policy: Policy,
    bytes: Arc<[u8]>,
}

/// True if `prefix` can be an overlay prefix: 48 bits, within fd00::/8 (RFC 4193).
pub fn is_overlay(prefix: &Prefix) -> bool {
    match prefix.ip() {
        IpAddr::V6(ip) => prefix.bits() == OVERLAY_BITS && ip.octets()[0] == 0xfd,
        IpAddr::V4(_) => false,
    }
}

fn overlay(reader: &mut Reader<'_>) -> Result<Prefix, Error> {
    let mut ip = [0; 16];
    ip[..6].copy_from_slice(&reader.array::<6>(OVERLAY.what)?);
    let prefix = Prefix::new(Ipv6Addr::from(ip).into(), OVERLAY_BITS).filter(is_overlay);
    prefix.ok_or(ParseError::Invalid { what: OVERLAY.what }.into())
}

fn put_overlay(out: &mut Vec<u8>, prefix: &Prefix) {
    if let IpAddr::V6(ip) = prefix.ip() {
        out.extend_from_slice(&ip.octets()[..6]);
    }
}

impl ListContent {
    /// Signs the content.
    ///
    /// Errors: a limit is exceeded; two members share name, key or address; a member's key is
    /// revoked. Also: the policy is invalid, a member or the preset names an undefined mix or tier,
    /// or an unknown field is critical.
    pub fn sign(mut self, authority: &SigningKey) -> Result<List, Error> {
        self.revoked.sort();
        self.revoked.dedup_by(|a, b| a.digest == b.digest);
        self.members.sort_by_key(|signed| signed.member.key);
        let mandates = core::mem::take(&mut self.mandates).into_iter().map(Mandate::checked);
        self.mandates = mandates.collect::<Result<_, _>>()?;
        self.mandates.sort_by_key(Mandate::id);
        self.unknown.sort_by_key(|field| field.number);
        let policy = self.check()?;
        let mut tail = Vec::new();
        for member in &self.members {
            tail.extend_from_slice(&(member.bytes().len() as u16).to_be_bytes());
            tail.extend_from_slice(member.bytes());
        }
        let mut bytes = self.head(&tail)?;
        let signature = authority.sign(&[LABEL, &bytes].concat());
        bytes.extend_from_slice(&signature);
        bytes.extend_from_slice(&tail);
        if bytes.len() > SIZE_MAX {
            return Err(Error::Range("a list has at most 64 MiB"));
        }
        Ok(List { content: self, policy, bytes: bytes.into() })
    }

    fn head(&self, tail: &[u8]) -> Result<Vec<u8>, Error> {
        let mut out = MAGIC.to_vec();
        out.extend_from_slice(&self.version.to_be_bytes());
        out.extend_from_slice(&self.issued_unix_s.to_be_bytes());
        out.extend_from_slice(&(self.revoked.len() as u32).to_be_bytes());
        for revoked in &self.revoked {
            out.extend_from_slice(&revoked.digest);
            put_name(&mut out, &revoked.name);
        }
        out.extend_from_slice(&(self.policy.len() as u32).to_be_bytes());
        out.extend_from_slice(self.policy.as_bytes());
        let mut all = self.unknown.clone();
        all.extend(self.overlay.map(|prefix| OVERLAY.field(|out| put_overlay(out, &prefix))));
        all.extend(self.secrets.map(|names| SECRETS.field(|out| names.put(out))));
        if !self.mandates.is_empty() {
            let kind = match MandateFormat::of(&self.mandates) {
                MandateFormat::First => &MANDATES,
                MandateFormat::Second => &MANDATES_2,
            };
            all.push(kind.field(|out| mandate::put_all(out, &self.mandates)));
        }
        all.extend(self.preset.as_ref().map(|preset| PRESET.field(|out| preset.put(out))));
        fields::put(&mut out, all)?;
        out.extend_from_slice(&(self.members.len() as u32).to_be_bytes());
        out.extend_from_slice(&hash(tail));
        Ok(out)
    }

    /// True if this key is revoked.
    pub fn is_revoked(&self, key: &PublicKey) -> bool {
        let digest = hash(&key.to_bytes());
        self.revoked.binary_search_by(|revoked| revoked.digest.cmp(&digest)).is_ok()
    }

    /// Parses the policy, and checks the preset against it.
    fn checked_policy(&self) -> Result<Policy, Error> {
        let policy = Policy::parse(&self.policy)?;
        self.preset.as_ref().map_or(Ok(()), |preset| preset.check(&policy))?;
        Ok(policy)
    }

    /// Checks the parts against each other. They must be sorted.
    fn check(&self) -> Result<Policy, Error> {
        fields::refuse_critical(&self.unknown)?;
        if self.members.len() > MEMBERS_MAX || self.revoked.len() > REVOKED_MAX {
            return Err(Error::Range("a list has at most 65536 members and as many revoked keys"));
        }
        if self.policy.len() > POLICY_MAX {
            return Err(Error::Range("a policy has at most 65536 bytes"));
        }
        if self.overlay.is_some_and(|prefix| !is_overlay(&prefix)) {
            return Err(Error::Range("the hosts' prefix must have 48 bits and be in fd00::/8"));
        }
        self.secrets.as_ref().map_or(Ok(()), SecretNames::check)?;
        mandate::check_all(&self.mandates)?;
        for mandate in &self.mandates {
            if self.is_revoked(&mandate.key) {
                let (name, why) = (mandate.name.clone(), "the key is revoked");
                return Err(Error::Mandate { name, why });
            }
        }
        let mut names = BTreeSet::new();
        let mut addresses = BTreeMap::new();
        let (mut prefixes, mut ipv4s) = (BTreeMap::new(), BTreeMap::new());
        let mut last: Option<&Member> = None;
        for SignedMember { member, .. } in &self.members {
            let wrong = |why| Err(Error::Member { name: member.name.clone(), why });
            // Sessions identify a peer by the first half of its key.
            let shared = |other: &str, what: String| {
                Err(Error::Shared { name: member.name.clone(), other: other.into(), what })
            };
            if let Some(before) = last.replace(member)
                && before.key.dh >= member.key.dh
            {
                return shared(&before.name, "key".into());
            }
            if !names.insert(member.name.as_str()) {
                return wrong("two members have this name");
            }
            for address in member.addresses().iter() {
                if let Some(other) = addresses.insert(address, &member.name) {
                    return shared(other, format!("address {address}"));
                }
            }
            if let Some(ipv4) = member.ipv4
                && let Some(other) = ipv4s.insert(ipv4, &member.name)
            {
                return shared(other, format!("address {ipv4}"));
            }
            for prefix in &member.prefixes {
                if let Some(other) = prefixes.insert(prefix, &member.name) {
                    return shared(other, format!("prefix {prefix}"));
                }
            }
            if self.is_revoked(&member.key) {
                return wrong("the key is revoked");
            }
        }
        let policy = self.checked_policy()?;
        for SignedMember { member, .. } in &self.members {
            let unknown = |why| Err(Error::Unknown { name: member.name.clone(), why });
            let mix = member.carrier.mix.as_deref();
            if let Some(mix) = mix.filter(|mix| policy.mixes().by_name(mix).is_none()) {
                return unknown(policy.mixes().unknown(mix));
            }
            let tier = member.cover.as_deref();
            if let Some(tier) = tier.filter(|tier| policy.tiers().by_name(tier).is_none()) {
                return unknown(policy.tiers().unknown(tier));
            }
        }
        Ok(policy)
    }
}

impl List {
    /// Decodes a list and checks it. The signature is checked before members are read.
    pub fn open(authority: &VerifyKey, bytes: &[u8]) -> Result<List, Error> {
        if bytes.len() > SIZE_MAX {
            return Err(Error::Range("a list has at most 64 MiB"));
        }
        let mut reader = Reader::new(bytes);
        magic(&mut reader, MAGIC, "list of an authority")?;
        let version = reader.u64("version")?;
        let issued_unix_s = reader.u64("time of issue")?;
        let revoked = read_revoked(&mut reader)?;
        let len = reader.u32("length of the policy")? as usize;
        if len > POLICY_MAX {
            return Err(ParseError::TooLong { what: "policy", max: POLICY_MAX, have: len }.into());
        }
        let policy = core::str::from_utf8(reader.bytes("policy", len)?);
        let policy = policy.map_err(|_| ParseError::Invalid { what: "policy" })?.to_owned();
        let mut fields = Fields::read(&mut reader)?;
        let count = reader.u32("count of members")? as usize;
        if count > MEMBERS_MAX {
            let (what, max) = ("members", MEMBERS_MAX);
            return Err(ParseError::TooLong { what, max, have: count }.into());
        }
        let digest: [u8; 32] = reader.array("digest of the members")?;
        let head = &bytes[..bytes.len() - reader.rest().len()];
        let signature = reader.array("signature")?;
        if !authority.verify(&[LABEL, head].concat(), &signature) || hash(reader.rest()) != digest {
            return Err(Error::Signature);
        }
        let overlay = fields.take(&OVERLAY, overlay)?;
        let mandates = mandates(&mut fields)?;
        let secrets = fields.take(&SECRETS, SecretNames::read)?;
        let preset = fields.take(&PRESET, NetworkPreset::read)?;
        let unknown = fields.unknown();
        // A critical field may change the meaning of the rest, so nothing more is read.
        fields::refuse_critical(&unknown)?;
        let members = read_members(reader, count)?;
        let content = ListContent {
            version,
            issued_unix_s,
            revoked,
            policy,
            overlay,
            secrets,
            mandates,
            preset,
            unknown,
            members,
        };
        let policy = content.check()?;
        Ok(List { content, policy, bytes: bytes.into() })
    }

    pub fn content(&self) -> &ListContent {
        &self.content
    }

    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// The encoded list, with signature.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Like [`List::bytes`], with shared ownership.
    pub fn shared(&self) -> Arc<[u8]> {
        self.bytes.clone()
    }
}

/// Takes the mandates, which have one field or the other.
fn mandates(fields: &mut Fields<'_>) -> Result<Vec<Mandate>, Error> {
    use MandateFormat::{First, Second};
    let first = fields.take(&MANDATES, |reader| mandate::read_all(reader, First))?;
    let second = fields.take(&MANDATES_2, |reader| mandate::read_all(reader, Second))?;
    match (first, second) {
        (Some(_), Some(_)) => Err(ParseError::Invalid { what: MANDATES.what }.into()),
        (first, second) => Ok(first.or(second).unwrap_or_default()),
    }
}

fn read_revoked(reader: &mut Reader<'_>) -> Result<Vec<RevokedKey>, Error> {
    let what = "revoked keys";
    let count = reader.u32(what)? as usize;
    if count > REVOKED_MAX {
        return Err(ParseError::TooLong { what, max: REVOKED_MAX, have: count }.into());
    }
    // No memory is reserved for a count that no signature covers yet.
    let mut out: Vec<RevokedKey> = Vec::new();
    for _ in 0..count {
        let next = RevokedKey { digest: reader.array(what)?, name: name(reader, what)? };
        if out.last().is_some_and(|last| last.digest >= next.digest) {
            return Err(ParseError::Invalid { what }.into());
        }
        out.push(next);
    }
    Ok(out)
}

fn read_members(mut reader: Reader<'_>, count: usize) -> Result<Vec<SignedMember>, Error> {
    let mut out = Vec::with_capacity(count);
    for _ in 0..count {
        let len = usize::from(reader.u16("length of a descriptor")?);
        out.push(SignedMember::decode(reader.bytes("descriptor", len)?)?);
    }
    reader.finish("list")?;
    Ok(out)
}

#[cfg(test)]
mod tests;
