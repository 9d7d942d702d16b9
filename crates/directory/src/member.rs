//! A member's descriptor: the authority's statement about one node (docs/design/wire/join.md).
//!
//! ```text
//! "SHM2" | version 8 | name | key 64 | address 6 | expires 8 | fields | signature 64
//! name   = length 1, bytes
//! fields = count 1, then each, ascending by number: number 2, length 2, value
//!          1 endpoint: family 1, IP, port 2       4! security groups: count 1, names ascending
//!          2 groups: count 1, names ascending     5 no interface: empty
//!          3 prefixes: count 1, (family 1, bits 1, IP) ascending
//!          6 relay: empty   7 exit: empty   8 family: name   9 capacity 4   10 near: name
//!          11! mix: name   12! cover: name   13 ipv4: IP 4   14 second address 6
//!                                                                                ! critical
//! ```

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use shoal_crypto::{PublicKey, SigningKey, VerifyKey};
use shoal_wire::{Address, NodeAddresses, ParseError, Reader};

use crate::codec::{
    endpoint, magic, name, prefix, put_endpoint, put_name, put_prefix, put_set, set,
};
use crate::cover::check_cover;
use crate::fields::{self, FieldKind, Fields};
use crate::{CircuitRole, Error, Field, Prefix, is_name};

/// Maximum number of groups, and of security groups, per member.
pub const GROUPS_MAX: usize = 32;
/// Maximum number of prefixes per member.
pub const PREFIXES_MAX: usize = 64;
/// Maximum length of a descriptor in bytes.
pub const DESCRIPTOR_LEN_MAX: usize = 16 << 10;
/// Domain separation of signatures.
const LABEL: &[u8] = b"shoal member 2";
const MAGIC: &[u8; 4] = b"SHM2";
const SIGNATURE_LEN: usize = 64;

// A field is critical if a node that ignores it would allow more, or protect less, than the
// authority says.
const ENDPOINT: FieldKind = FieldKind { number: 1, is_critical: false, what: "endpoint" };
const GROUPS: FieldKind = FieldKind { number: 2, is_critical: false, what: "groups" };
const PREFIXES: FieldKind = FieldKind { number: 3, is_critical: false, what: "prefixes" };
const SECURITY_GROUPS: FieldKind =
    FieldKind { number: 4, is_critical: true, what: "security groups" };
const NO_INTERFACE: FieldKind = FieldKind { number: 5, is_critical: false, what: "no interface" };
const COVER: FieldKind = FieldKind { number: 12, is_critical: true, what: "cover" };
const IPV4: FieldKind = FieldKind { number: 13, is_critical: false, what: "IPv4 address" };
/// A node that ignores it drops cells from there, and allows nothing more.
const SECOND: FieldKind = FieldKind { number: 14, is_critical: false, what: "second address" };

/// The content of a descriptor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Version. The descriptor with the greater version counts.
    pub version: u64,
    /// Name for people, unique in the list.
    pub name: String,
    /// The member's public key.
    pub key: PublicKey,
    /// Overlay address.
    pub address: Address,
    /// Overlay address of the same host at another router. Unique among all addresses.
    pub second: Option<Address>,
    /// End of the membership in seconds since 1970.
    pub expires_unix_s: u64,
    /// Endpoint at which others may call the member.
    pub endpoint: Option<SocketAddr>,
    /// Groups, as the policy names them; sorted, at most [`GROUPS_MAX`].
    pub groups: Vec<String>,
    /// Security groups: direct links to members of the same one must be encrypted. Sorted, at most
    /// [`GROUPS_MAX`].
    pub security_groups: Vec<String>,
    /// Prefixes of further IP addresses that the member may use as source; sorted, at most
    /// [`PREFIXES_MAX`].
    pub prefixes: Vec<Prefix>,
    /// True if the member has a virtual interface; without one it has no prefixes.
    pub interface: bool,
    /// IPv4 address on virtual interfaces, in addition to the IPv6 address, which follows from the
    /// key. Unique; requires an interface.
    pub ipv4: Option<Ipv4Addr>,
    /// Name of the tier of cover on the link to the member's router, from the network's
    /// [`crate::Tiers`]. Hosts only.
    pub cover: Option<String>,
    /// The member's part in circuits.
    pub carrier: CircuitRole,
    /// Unknown fields, ascending by number.
    pub unknown: Vec<Field>,
}

/// A descriptor with the authority's signature.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignedMember {
    pub member: Member,
    bytes: Vec<u8>,
}

impl Member {
    /// Sorts the sets and checks the format's limits.
    pub fn checked(mut self) -> Result<Member, Error> {
        for set in [&mut self.groups, &mut self.security_groups] {
            set.sort();
            set.dedup();
            if set.len() > GROUPS_MAX {
                return Err(Error::Range("a member has at most 32 groups"));
            }
            if !set.iter().all(|group| is_name(group)) {
                return Err(Error::Range(
                    "a group is 1 to 63 letters, digits, '-', '_' or '.', beginning with a \
                     letter or digit",
                ));
            }
        }
        self.prefixes.sort();
        self.prefixes.dedup();
        if self.prefixes.len() > PREFIXES_MAX {
            return Err(Error::Range("a member has at most 64 prefixes"));
        }
        if let Some(why) = self.prefixes.iter().find_map(Prefix::misuse) {
            return Err(Error::Range(why));
        }
        if !self.interface && !self.prefixes.is_empty() {
            return Err(Error::Range("a member without an interface has no prefixes"));
        }
        if !self.interface && self.ipv4.is_some() {
            return Err(Error::Range("a member without an interface has no IPv4 address"));
        }
        if self.ipv4.is_some_and(|ipv4| !is_host(&ipv4)) {
            return Err(Error::Range(
                "a member's IPv4 address must be a unicast address of a host",
            ));
        }
        self.addresses().check().map_err(Error::Range)?;
        check_cover(self.cover.as_deref(), self.address).map_err(Error::Range)?;
        self.carrier.check(self.address).map_err(|(_, why)| Error::Range(why))?;
        self.unknown.sort_by_key(|field| field.number);
        fields::refuse_critical(&self.unknown)?;
        if !is_name(&self.name) {
            return Err(Error::Range(
                "a member's name is 1 to 63 letters, digits, '-', '_' or '.', beginning with a \
                 letter or digit",
            ));
        }
        Ok(self)
    }

    /// Both overlay addresses.
    pub fn addresses(&self) -> NodeAddresses {
        NodeAddresses { first: self.address, second: self.second }
    }

    /// Signs the descriptor.
    ///
    /// Errors: as [`Member::checked`], or the descriptor would be too long.
    pub fn sign(self, authority: &SigningKey) -> Result<SignedMember, Error> {
        self.checked()?.seal(authority)
    }

    fn seal(self, authority: &SigningKey) -> Result<SignedMember, Error> {
        let mut bytes = self.body()?;
        let signature = authority.sign(&labelled(&bytes));
        bytes.extend_from_slice(&signature);
        let signed = SignedMember::decode(&bytes)?;
        if signed.member == self {
            Ok(signed)
        } else {
            Err(Error::Range("an unknown field has the number of a known one"))
        }
    }

    pub(crate) fn body(&self) -> Result<Vec<u8>, Error> {
        let mut out = MAGIC.to_vec();
        out.extend_from_slice(&self.version.to_be_bytes());
        put_name(&mut out, &self.name);
        out.extend_from_slice(&self.key.to_bytes());
        out.extend_from_slice(&self.address.to_bytes());
        out.extend_from_slice(&self.expires_unix_s.to_be_bytes());
        fields::put(&mut out, self.fields())?;
        Ok(out)
    }

    /// Decodes a descriptor up to its signature.
    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<Member, Error> {
        magic(reader, MAGIC, "member's descriptor")?;
        let version = reader.u64("version")?;
        let name = name(reader, "name of a member")?;
        let key = PublicKey::from_bytes(&reader.array("key")?);
        let address = Address::from_bytes(reader.array("address")?);
        let expires_unix_s = reader.u64("expiry")?;
        let mut fields = Fields::read(reader)?;
        let endpoint = fields.take(&ENDPOINT, endpoint)?;
        let groups = fields.take(&GROUPS, |reader| names(reader, &GROUPS))?;
        let prefixes =
            fields.take(&PREFIXES, |reader| set(reader, PREFIXES_MAX, PREFIXES.what, prefix))?;
        let security_groups =
            fields.take(&SECURITY_GROUPS, |reader| names(reader, &SECURITY_GROUPS))?;
        let no_interface = fields.take(&NO_INTERFACE, |_| Ok(()))?;
        let cover = fields.take(&COVER, |reader| self::name(reader, COVER.what))?;
        let ipv4 = fields.take(&IPV4, |reader| Ok(Ipv4Addr::from(reader.array(IPV4.what)?)))?;
        let second =
            fields.take(&SECOND, |reader| Ok(Address::from_bytes(reader.array(SECOND.what)?)))?;
        let carrier = CircuitRole::take(&mut fields)?;
        Ok(Member {
            version,
            name,
            key,
            address,
            second,
            expires_unix_s,
            endpoint,
            groups: groups.unwrap_or_default(),
            security_groups: security_groups.unwrap_or_default(),
            prefixes: prefixes.unwrap_or_default(),
            interface: no_interface.is_none(),
            ipv4,
            cover,
            carrier,
            unknown: fields.unknown(),
        })
    }

    fn fields(&self) -> Vec<Field> {
        let mut all = self.unknown.clone();
        let names = |out: &mut Vec<u8>, names| {
            put_set(out, names, |out, name: &String| put_name(out, name))
        };
        if let Some(endpoint) = self.endpoint {
            all.push(ENDPOINT.field(|out| put_endpoint(out, endpoint)));
        }
        if !self.groups.is_empty() {
            all.push(GROUPS.field(|out| names(out, &self.groups)));
        }
        if !self.prefixes.is_empty() {
            all.push(PREFIXES.field(|out| put_set(out, &self.prefixes, put_prefix)));
        }
        if !self.security_groups.is_empty() {
            all.push(SECURITY_GROUPS.field(|out| names(out, &self.security_groups)));
        }
        if !self.interface {
            all.push(NO_INTERFACE.field(|_| {}));
        }
        if let Some(ipv4) = self.ipv4 {
            all.push(IPV4.field(|out| out.extend_from_slice(&ipv4.octets())));
        }
        if let Some(second) = self.second {
            all.push(SECOND.field(|out| out.extend_from_slice(&second.to_bytes())));
        }
        if let Some(cover) = &self.cover {
            all.push(COVER.field(|out| put_name(out, cover)));
        }
        self.carrier.put(&mut all);
        all
    }
}

impl SignedMember {
    /// Decodes a descriptor and checks its signature.
    ///
    /// Errors: the bytes are no descriptor, the signature is wrong, or an unknown field is
    /// critical.
    pub fn open(authority: &VerifyKey, bytes: &[u8]) -> Result<SignedMember, Error> {
        let signed = SignedMember::decode(bytes)?;
        let (body, signature) = bytes.split_at(bytes.len() - SIGNATURE_LEN);
        let signature = signature.first_chunk().ok_or(Error::Signature)?;
        if !authority.verify(&labelled(body), signature) {
            return Err(Error::Signature);
        }
        fields::refuse_critical(&signed.member.unknown)?;
        Ok(signed)
    }

    /// Decodes a descriptor whose bytes are covered by another signature.
    pub(crate) fn decode(bytes: &[u8]) -> Result<SignedMember, Error> {
        let (max, have) = (DESCRIPTOR_LEN_MAX, bytes.len());
        if have > max {
            return Err(ParseError::TooLong { what: "descriptor", max, have }.into());
        }
        let mut reader = Reader::new(bytes);
        let member = Member::read(&mut reader)?;
        reader.bytes("signature", SIGNATURE_LEN)?;
        reader.finish("descriptor")?;
        Ok(SignedMember { member, bytes: bytes.to_vec() })
    }

    /// The unknown critical field, if there is one. Then the node is no member for this version,
    /// though all rules between members apply to it.
    pub fn unknown_critical(&self) -> Option<u16> {
        fields::first_critical(&self.member.unknown)
    }

    /// The encoded descriptor, with signature.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

/// True if a machine may have this address.
pub fn is_host(address: &Ipv4Addr) -> bool {
    let special = address.is_unspecified() || address.is_loopback() || address.is_broadcast();
    !special && !address.is_multicast() && !address.is_link_local()
}

/// True if others can call a router of a mandate at this endpoint. Loopback counts: a whole network
/// may run on one machine.
pub fn is_callable(at: &SocketAddr) -> bool {
    let special = match at.ip() {
        IpAddr::V4(ip) => {
            ip.is_unspecified() || ip.is_broadcast() || ip.is_multicast() || ip.is_link_local()
        }
        IpAddr::V6(ip) => {
            let mapped = ip.to_ipv4_mapped().is_some();
            ip.is_unspecified() || mapped || ip.is_multicast() || ip.is_unicast_link_local()
        }
    };
    !special && at.port() != 0
}

fn names(reader: &mut Reader<'_>, kind: &FieldKind) -> Result<Vec<String>, Error> {
    set(reader, GROUPS_MAX, kind.what, |reader| name(reader, kind.what))
}

fn labelled(body: &[u8]) -> Vec<u8> {
    [LABEL, body].concat()
}

#[cfg(test)]
pub(crate) mod tests;
