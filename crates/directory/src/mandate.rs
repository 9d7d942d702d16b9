//! Mandates: whom a registrar may make members, within what the authority signed (docs/authority.md
//! section 6).
//!
//! ```text
//! mandate = name | serial 4 | key 64 | groups: count 1, names ascending
//!         | hosts: count 1, (router 4, first 2, last 2) ascending
//!         | IPv4: bits 1, IP 4 unless bits are 0 | most 4 | longest 4 | until 8
//! ```
//!
//! The authority's key stays off every machine that takes newcomers in. A registrar's key is on
//! one, so it can be stolen: then it makes and removes members of its own mandate, and nothing
//! else, since every node compares what it signs with the mandate.

use core::fmt;
use std::collections::BTreeSet;

use shoal_crypto::{PublicKey, kdf};
use shoal_wire::{Address, ParseError, Reader};

use crate::codec::{name, put_name};
use crate::{Error, GROUPS_MAX, Prefix, is_name};

/// Most mandates of one list.
pub const MANDATES_MAX: usize = 16;
/// Most ranges of hosts in one mandate.
pub const RANGES_MAX: usize = 16;
/// Most keys that one mandate may ever admit.
pub const ADMITTED_MAX: u32 = 65_536;
const WHAT: &str = "mandate";

/// Names a mandate: a hash of its registrar's key and its serial number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct MandateId(pub [u8; 32]);

impl fmt::Debug for MandateId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Two bytes tell a network's few mandates apart, and no more.
        write!(f, "MandateId({:02x}{:02x})", self.0[0], self.0[1])
    }
}

/// As programs are told of it: 64 letters and digits, as hex.
impl fmt::Display for MandateId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Host numbers behind one router, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HostRange {
    /// The router's number.
    pub router: u32,
    /// The first host, 1 or more.
    pub first: u16,
    /// The last one.
    pub last: u16,
}

impl HostRange {
    /// Whether the node at `address` is one of these hosts.
    pub fn holds(&self, address: Address) -> bool {
        address.router == self.router && (self.first..=self.last).contains(&address.host)
    }

    fn overlaps(&self, other: &HostRange) -> bool {
        self.router == other.router && self.first <= other.last && other.first <= self.last
    }
}

impl fmt::Display for HostRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let HostRange { router, first, last } = self;
        write!(f, "{router}.{first}-{router}.{last}")
    }
}

impl core::str::FromStr for HostRange {
    type Err = &'static str;

    /// Reads `1.100-1.999`, `1.100-999` or `1.100`.
    fn from_str(text: &str) -> Result<HostRange, &'static str> {
        let wrong = "expected hosts behind one router, such as 1.100-1.999";
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let first: Address = first.parse().map_err(|_| wrong)?;
        let last = match last.parse::<Address>() {
            Ok(last) if last.router == first.router => last.host,
            Ok(_) => return Err(wrong),
            Err(_) => last.parse().map_err(|_| wrong)?,
        };
        let range = HostRange { router: first.router, first: first.host, last };
        if range.first == 0 || range.first > range.last {
            return Err("expected hosts in ascending order, from 1 on: host 0 is the router");
        }
        Ok(range)
    }
}

/// What a registrar may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mandate {
    /// What people call it; one mandate per name.
    pub name: String,
    /// Another serial makes another mandate, whose chain of supplements begins anew.
    pub serial: u32,
    /// The registrar's key.
    pub key: PublicKey,
    /// Groups that it may put members into; ascending, at most [`GROUPS_MAX`].
    pub groups: Vec<String>,
    /// Addresses that it may give; ascending and disjoint, 1 to [`RANGES_MAX`].
    pub hosts: Vec<HostRange>,
    /// IPv4 addresses that it may give.
    pub ipv4: Option<Prefix>,
    /// Keys that it may ever admit, those included that are no members any more: 1 to
    /// [`ADMITTED_MAX`].
    pub most: u32,
    /// Longest membership, in seconds from the time at which it is signed.
    pub longest_s: u32,
    /// In seconds since 1970: no membership that it gives lasts longer.
    pub until_unix_s: u64,
}

impl Mandate {
    /// What names it.
    pub fn id(&self) -> MandateId {
        let parts = [&self.key.to_bytes()[..], &self.serial.to_be_bytes()];
        MandateId(kdf(&[0; 32], "shoal mandate 1", &parts))
    }

    /// Sorts its sets, and checks what the format limits.
    pub fn checked(mut self) -> Result<Mandate, Error> {
        self.groups.sort();
        self.groups.dedup();
        self.hosts.sort();
        let wrong = |why| Err(Error::Range(why));
        if !is_name(&self.name) || !self.groups.iter().all(|group| is_name(group)) {
            return wrong(
                "a mandate and its groups have names of 1 to 63 letters, digits, '-', '_' or '.', \
                 beginning with a letter or digit",
            );
        }
        if self.groups.len() > GROUPS_MAX {
            return wrong("a mandate has at most 32 groups");
        }
        if !(1..=RANGES_MAX).contains(&self.hosts.len()) {
            return wrong("a mandate has 1 to 16 ranges of hosts");
        }
        if self.hosts.iter().any(|range| range.first == 0 || range.first > range.last) {
            return wrong("a mandate's hosts have numbers from 1 on, the first before the last");
        }
        if self.hosts.windows(2).any(|two| two[0].overlaps(&two[1])) {
            return wrong("a mandate's ranges of hosts overlap");
        }
        if self.ipv4.is_some_and(|prefix| !prefix.ip().is_ipv4() || prefix.bits() == 0) {
            return wrong("a mandate's IPv4 addresses are a network such as 10.9.0.0/24");
        }
        if !(1..=ADMITTED_MAX).contains(&self.most) || self.longest_s == 0 {
            return wrong("a mandate admits 1 to 65536 keys, for a second or more");
        }
        if self.key.is_weak() {
            return wrong("a mandate's key is no key");
        }
        Ok(self)
    }

    /// Whether it may give this address.
    pub fn may_give(&self, address: Address) -> bool {
        self.hosts.iter().any(|range| range.holds(address))
    }

    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        put_name(out, &self.name);
        out.extend_from_slice(&self.serial.to_be_bytes());
        out.extend_from_slice(&self.key.to_bytes());
        out.push(self.groups.len() as u8);
        self.groups.iter().for_each(|group| put_name(out, group));
        out.push(self.hosts.len() as u8);
        for range in &self.hosts {
            out.extend_from_slice(&range.router.to_be_bytes());
            out.extend_from_slice(&range.first.to_be_bytes());
            out.extend_from_slice(&range.last.to_be_bytes());
        }
        out.push(self.ipv4.map_or(0, |prefix| prefix.bits()));
        if let Some(std::net::IpAddr::V4(ip)) = self.ipv4.map(|prefix| prefix.ip()) {
            out.extend_from_slice(&ip.octets());
        }
        out.extend_from_slice(&self.most.to_be_bytes());
        out.extend_from_slice(&self.longest_s.to_be_bytes());
        out.extend_from_slice(&self.until_unix_s.to_be_bytes());
    }

    fn read(reader: &mut Reader<'_>) -> Result<Mandate, Error> {
        let invalid = || Error::from(ParseError::Invalid { what: WHAT });
        let own_name = name(reader, WHAT)?;
        let serial = reader.u32(WHAT)?;
        let key = PublicKey::from_bytes(&reader.array(WHAT)?);
        let mut groups = Vec::new();
        for _ in 0..reader.u8(WHAT)? {
            groups.push(name(reader, WHAT)?);
        }
        let mut hosts = Vec::new();
        for _ in 0..reader.u8(WHAT)? {
            let router = reader.u32(WHAT)?;
            hosts.push(HostRange { router, first: reader.u16(WHAT)?, last: reader.u16(WHAT)? });
        }
        let ipv4 = match reader.u8(WHAT)? {
            0 => None,
            bits => {
                let ip = std::net::Ipv4Addr::from(reader.array::<4>(WHAT)?);
                Some(Prefix::new(ip.into(), bits).ok_or_else(invalid)?)
            }
        };
        let mandate = Mandate {
            name: own_name,
            serial,
            key,
            groups,
            hosts,
            ipv4,
            most: reader.u32(WHAT)?,
            longest_s: reader.u32(WHAT)?,
            until_unix_s: reader.u64(WHAT)?,
        };
        // One content has one encoding.
        match mandate.clone().checked() {
            Ok(checked) if checked == mandate => Ok(mandate),
            _ => Err(invalid()),
        }
    }
}

/// Reads the mandates of a list, which are ascending by id.
pub(crate) fn read_all(reader: &mut Reader<'_>) -> Result<Vec<Mandate>, Error> {
    let count = usize::from(reader.u8(WHAT)?);
    if !(1..=MANDATES_MAX).contains(&count) {
        return Err(ParseError::Invalid { what: WHAT }.into());
    }
    let mut all: Vec<Mandate> = Vec::with_capacity(count);
    for _ in 0..count {
        let next = Mandate::read(reader)?;
        if all.last().is_some_and(|last| last.id() >= next.id()) {
            return Err(ParseError::Invalid { what: WHAT }.into());
        }
        all.push(next);
    }
    Ok(all)
}

pub(crate) fn put_all(out: &mut Vec<u8>, all: &[Mandate]) {
    out.push(all.len() as u8);
    all.iter().for_each(|mandate| mandate.put(out));
}

/// The rules between the mandates of a list: their names, keys, hosts and IPv4 addresses differ.
pub(crate) fn check_all(all: &[Mandate]) -> Result<(), Error> {
    if all.len() > MANDATES_MAX {
        return Err(Error::Range("a list has at most 16 mandates"));
    }
    let (mut names, mut keys) = (BTreeSet::new(), BTreeSet::new());
    for (i, mandate) in all.iter().enumerate() {
        let wrong = |why| Err(Error::Mandate { name: mandate.name.clone(), why });
        if !names.insert(&mandate.name) {
            return wrong("two mandates have this name");
        }
        if !keys.insert(mandate.key) {
            return wrong("its key is that of another mandate");
        }
        for other in &all[..i] {
            let both = |range: &HostRange| other.hosts.iter().any(|theirs| range.overlaps(theirs));
            if mandate.hosts.iter().any(both) {
                return wrong("its hosts are those of another mandate, too");
            }
            if let (Some(ours), Some(theirs)) = (mandate.ipv4, other.ipv4)
                && (ours.covers(&theirs) || theirs.covers(&ours))
            {
                return wrong("its IPv4 addresses are those of another mandate, too");
            }
        }
    }
    Ok(())
}

#[cfg(test)]
pub(crate) mod tests;
