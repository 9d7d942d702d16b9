//! A member's descriptor: what the authority says of one node (docs/authority.md section 2).
//!
//! ```text
//! "SHM2" | version 8 | name | key 64 | address 6 | expires 8 | fields | signature 64
//! name   = length 1, bytes
//! fields = count 1, then each, ascending by number: number 2, length 2, value
//!          1 endpoint: family 1, IP, port 2       4! security groups: count 1, names ascending
//!          2 groups: count 1, names ascending     5 no interface: empty
//!          3 prefixes: count 1, (family 1, bits 1, IP) ascending
//!          6 relay: empty   7 exit: empty   8 family: name   9 capacity 4   10 near: name
//!          11! mix: name   12! cover: name   13 ipv4: IP 4
//!                                                                                ! critical
//! ```

use std::net::{Ipv4Addr, SocketAddr};

use shoal_crypto::{PublicKey, SigningKey, VerifyKey};
use shoal_wire::{Address, ParseError, Reader};

use crate::codec::{
    endpoint, magic, name, prefix, put_endpoint, put_name, put_prefix, put_set, set,
};
use crate::cover::check_cover;
use crate::fields::{self, Fields, Kind};
use crate::{Carrier, Error, Field, Prefix, is_name};

/// Most groups, and most security groups, of one member.
pub const GROUPS_MAX: usize = 32;
/// Most prefixes of one member.
pub const PREFIXES_MAX: usize = 64;
/// Longest descriptor in bytes.
pub const DESCRIPTOR_LEN_MAX: usize = 16 << 10;
/// Ties a signature to this use and version.
const LABEL: &[u8] = b"shoal member 2";
const MAGIC: &[u8; 4] = b"SHM2";
const SIGNATURE_LEN: usize = 64;

// A field is critical where a node that ignores it would allow more, or protect less, than the
// authority says.
const ENDPOINT: Kind = Kind { number: 1, is_critical: false, what: "endpoint" };
const GROUPS: Kind = Kind { number: 2, is_critical: false, what: "groups" };
const PREFIXES: Kind = Kind { number: 3, is_critical: false, what: "prefixes" };
const SECURITY_GROUPS: Kind = Kind { number: 4, is_critical: true, what: "security groups" };
const NO_INTERFACE: Kind = Kind { number: 5, is_critical: false, what: "no interface" };
const COVER: Kind = Kind { number: 12, is_critical: true, what: "cover" };
const IPV4: Kind = Kind { number: 13, is_critical: false, what: "IPv4 address" };

/// What is said of a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Of two descriptors of one member the greater version counts.
    pub version: u64,
    /// What people call it; one member per name.
    pub name: String,
    /// Who it is.
    pub key: PublicKey,
    /// Where it is in the overlay.
    pub address: Address,
    /// From this time on, in seconds since 1970, it is no member any more.
    pub expires_unix_s: u64,
    /// Where it listens, if others may call it.
    pub endpoint: Option<SocketAddr>,
    /// What policy knows it by; ascending, at most [`GROUPS_MAX`].
    pub groups: Vec<String>,
    /// Whom it must encrypt with on direct links; ascending, at most [`GROUPS_MAX`].
    pub security_groups: Vec<String>,
    /// IP addresses beside its own that it may speak for; ascending, at most [`PREFIXES_MAX`].
    pub prefixes: Vec<Prefix>,
    /// Whether it has a virtual interface; without one it has no prefixes.
    pub interface: bool,
    /// Its IPv4 address on virtual interfaces, beside the IPv6 address that follows from its key;
    /// one member per address. Without an interface it has none.
    pub ipv4: Option<Ipv4Addr>,
    /// The schedule of its link with its router, as the network's [`crate::Tiers`] call it. Hosts
    /// only.
    pub cover: Option<String>,
    /// What it is to circuits.
    pub carrier: Carrier,
    /// What newer versions say of it; ascending by number.
    pub unknown: Vec<Field>,
}

/// A descriptor with the authority's signature, as it stands in files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signed {
    /// What it says.
    pub member: Member,
    bytes: Vec<u8>,
}

impl Member {
    /// Sorts its sets, and checks what the format limits.
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
            return Err(Error::Range("a member's IPv4 address is that of a host"));
        }
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

    /// Signs it.
    ///
    /// Errors: as [`Member::checked`], and where it is too much for a descriptor.
    pub fn sign(self, authority: &SigningKey) -> Result<Signed, Error> {
        self.checked()?.seal(authority)
    }

    fn seal(self, authority: &SigningKey) -> Result<Signed, Error> {
        let mut bytes = self.body()?;
        let signature = authority.sign(&labelled(&bytes));
        bytes.extend_from_slice(&signature);
        let signed = Signed::decode(&bytes)?;
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

    /// Reads what stands before the signature.
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
        let carrier = Carrier::take(&mut fields)?;
        Ok(Member {
            version,
            name,
            key,
            address,
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
        if let Some(cover) = &self.cover {
            all.push(COVER.field(|out| put_name(out, cover)));
        }
        self.carrier.put(&mut all);
        all
    }
}

impl Signed {
    /// Decodes a descriptor and checks its signature.
    ///
    /// Errors: it is none, not the authority's, or has a critical field that is not known here.
    pub fn open(authority: &VerifyKey, bytes: &[u8]) -> Result<Signed, Error> {
        let signed = Signed::decode(bytes)?;
        let (body, signature) = bytes.split_at(bytes.len() - SIGNATURE_LEN);
        let signature = signature.first_chunk().ok_or(Error::Signature)?;
        if !authority.verify(&labelled(body), signature) {
            return Err(Error::Signature);
        }
        fields::refuse_critical(&signed.member.unknown)?;
        Ok(signed)
    }

    /// Decodes a descriptor whose bytes are covered by another signature.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Signed, Error> {
        let (max, have) = (DESCRIPTOR_LEN_MAX, bytes.len());
        if have > max {
            return Err(ParseError::TooLong { what: "descriptor", max, have }.into());
        }
        let mut reader = Reader::new(bytes);
        let member = Member::read(&mut reader)?;
        reader.bytes("signature", SIGNATURE_LEN)?;
        reader.finish("descriptor")?;
        Ok(Signed { member, bytes: bytes.to_vec() })
    }

    /// The critical field that this version does not know, if there is one: then this is no member
    /// here, though all rules between members hold for it.
    pub fn unknown_critical(&self) -> Option<u16> {
        fields::first_critical(&self.member.unknown)
    }

    /// The bytes that stand in files, signature included.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

/// Whether a machine may have this address.
pub fn is_host(address: &Ipv4Addr) -> bool {
    let special = address.is_unspecified() || address.is_loopback() || address.is_broadcast();
    !special && !address.is_multicast() && !address.is_link_local()
}

fn names(reader: &mut Reader<'_>, kind: &Kind) -> Result<Vec<String>, Error> {
    set(reader, GROUPS_MAX, kind.what, |reader| name(reader, kind.what))
}

fn labelled(body: &[u8]) -> Vec<u8> {
    [LABEL, body].concat()
}

#[cfg(test)]
pub(crate) mod tests;
