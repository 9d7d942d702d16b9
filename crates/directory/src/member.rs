//! A member's descriptor: what the authority says of one node (docs/authority.md section 2).
//!
//! ```text
//! "SHM1" | version 8 | name | key 64 | address 6 | expires 8 | endpoint | groups
//!        | security groups | prefixes | signature 64
//! name     = length 1, bytes            groups   = count 1, names ascending
//! endpoint = 0, or family 1, IP, port 2 prefixes = count 1, (family 1, bits 1, IP) ascending
//! ```

use std::net::SocketAddr;

use shoal_crypto::{PublicKey, SigningKey, VerifyKey};
use shoal_wire::{Address, ParseError, Reader};

use crate::codec::{
    endpoint, magic, name, names, prefix, put_endpoint, put_name, put_names, put_prefix,
};
use crate::{Error, Prefix, is_name};

/// Most groups, and most security groups, of one member.
pub const GROUPS_MAX: usize = 32;
/// Most prefixes of one member.
pub const PREFIXES_MAX: usize = 64;
/// Ties a signature to this use and version.
const LABEL: &[u8] = b"shoal member 1";
const MAGIC: &[u8; 4] = b"SHM1";
const SIGNATURE_LEN: usize = 64;

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
    /// Errors: as [`Member::checked`].
    pub fn sign(self, authority: &SigningKey) -> Result<Signed, Error> {
        let member = self.checked()?;
        let mut bytes = member.body();
        let signature = authority.sign(&labelled(&bytes));
        bytes.extend_from_slice(&signature);
        Ok(Signed { member, bytes })
    }

    fn body(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        out.extend_from_slice(&self.version.to_be_bytes());
        put_name(&mut out, &self.name);
        out.extend_from_slice(&self.key.to_bytes());
        out.extend_from_slice(&self.address.to_bytes());
        out.extend_from_slice(&self.expires_unix_s.to_be_bytes());
        put_endpoint(&mut out, self.endpoint);
        put_names(&mut out, &self.groups);
        put_names(&mut out, &self.security_groups);
        out.push(self.prefixes.len() as u8);
        self.prefixes.iter().for_each(|prefix| put_prefix(&mut out, prefix));
        out
    }
}

impl Signed {
    /// Decodes a descriptor and checks its signature.
    pub fn open(authority: &VerifyKey, bytes: &[u8]) -> Result<Signed, Error> {
        let signed = Signed::decode(bytes)?;
        let (body, signature) = bytes.split_at(bytes.len() - SIGNATURE_LEN);
        let signature = signature.first_chunk().ok_or(Error::Signature)?;
        if authority.verify(&labelled(body), signature) {
            Ok(signed)
        } else {
            Err(Error::Signature)
        }
    }

    /// Decodes a descriptor whose bytes are covered by another signature.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Signed, Error> {
        let mut reader = Reader::new(bytes);
        magic(&mut reader, MAGIC, "member's descriptor")?;
        let version = reader.u64("version")?;
        let name = name(&mut reader, "name of a member")?;
        let key = PublicKey::from_bytes(&reader.array("key")?);
        let address = Address::from_bytes(reader.array("address")?);
        let expires_unix_s = reader.u64("expiry")?;
        let endpoint = endpoint(&mut reader)?;
        let groups = names(&mut reader, GROUPS_MAX, "groups")?;
        let security_groups = names(&mut reader, GROUPS_MAX, "security groups")?;
        let count = usize::from(reader.u8("prefixes")?);
        if count > PREFIXES_MAX {
            let (what, max) = ("prefixes", PREFIXES_MAX);
            return Err(ParseError::TooLong { what, max, have: count }.into());
        }
        let mut prefixes: Vec<Prefix> = Vec::with_capacity(count);
        for _ in 0..count {
            let next = prefix(&mut reader)?;
            if prefixes.last().is_some_and(|last| *last >= next) {
                return Err(ParseError::Invalid { what: "prefixes" }.into());
            }
            prefixes.push(next);
        }
        reader.bytes("signature", SIGNATURE_LEN)?;
        reader.finish("descriptor")?;
        let member = Member {
            version,
            name,
            key,
            address,
            expires_unix_s,
            endpoint,
            groups,
            security_groups,
            prefixes,
        };
        Ok(Signed { member, bytes: bytes.to_vec() })
    }

    /// The bytes that stand in files, signature included.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

fn labelled(body: &[u8]) -> Vec<u8> {
    [LABEL, body].concat()
}

#[cfg(test)]
pub(crate) mod tests;
