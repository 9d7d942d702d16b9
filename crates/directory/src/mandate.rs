//! Mandates: limits, signed by the authority, for the members that a registrar may add
//! (docs/design/membership.md).
//!
//! ```text
//! mandate = name | serial 4 | key 64 | groups: count 1, names ascending
//!         | hosts: count 1, (router 4, first 2, last 2) ascending
//!         | IPv4: bits 1, IP 4 unless bits are 0 | most 4 | longest 4 | until 8
//! ```
//!
//! Mandates with rights beyond hosts behind named routers have these rights behind them
//! (`rights.rs`), and a critical field of their own: a node that ignored it would stop at the first
//! router of a chain and miss every later removal.
//!
//! The authority's key stays off all machines that admit newcomers. A registrar's key is on such a
//! machine and can be stolen. A thief can then add and remove members of that mandate, and nothing
//! else: every node checks supplements against the mandate.

mod rights;

use core::fmt;
use std::collections::BTreeSet;

use shoal_crypto::encoding::hex;
use shoal_crypto::{PublicKey, kdf};
use shoal_wire::{Address, ParseError, Reader};

use crate::codec::{name, put_name};
use crate::{Error, GROUPS_MAX, Prefix, door, is_name};
pub use rights::{MandateRights, NumberRange, ROUTERS_MAX, RouterRange};

/// Maximum number of mandates in a list.
pub const MANDATES_MAX: usize = 16;
/// Maximum number of host ranges in a mandate.
pub const RANGES_MAX: usize = 16;
/// Maximum number of keys that a mandate may ever admit.
pub const ADMITTED_MAX: u32 = 65_536;
const WHAT: &str = "mandate";

/// Identifies a mandate: a hash of its registrar's key and serial number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct MandateId(pub [u8; 32]);

impl fmt::Debug for MandateId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Two bytes suffice to tell a network's few mandates apart.
        write!(f, "MandateId({})", hex(&self.0[..2]))
    }
}

/// All 64 hex digits, for programs.
impl fmt::Display for MandateId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex(&self.0))
    }
}

/// A range of host numbers behind one router, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HostRange {
    pub router: u32,
    /// The first host number, at least 1.
    pub first: u16,
    pub last: u16,
}

impl HostRange {
    /// True if `address` is in the range.
    pub fn holds(&self, address: Address) -> bool {
        address.router == self.router && (self.first..=self.last).contains(&address.host)
    }

    /// True if all addresses of `other` are in the range.
    pub(crate) fn covers(&self, other: &HostRange) -> bool {
        self.router == other.router && self.first <= other.first && other.last <= self.last
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

/// Limits for a registrar.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mandate {
    /// Name for people, unique in the list.
    pub name: String,
    /// Serial number. A different serial makes a different mandate with a new chain.
    pub serial: u32,
    /// The registrar's key.
    pub key: PublicKey,
    /// Groups that members may be in; sorted, at most [`GROUPS_MAX`].
    pub groups: Vec<String>,
    /// Addresses for members; sorted and disjoint, at most [`RANGES_MAX`].
    pub hosts: Vec<HostRange>,
    /// Prefix of IPv4 addresses for members.
    pub ipv4: Option<Prefix>,
    /// Maximum number of keys ever admitted, former members included: 1 to [`ADMITTED_MAX`].
    pub most: u32,
    /// Maximum duration of a membership, in seconds after its signature.
    pub longest_s: u32,
    /// End of the mandate in seconds since 1970; no membership lasts longer.
    pub until_unix_s: u64,
    /// Rights beyond hosts behind named routers.
    pub rights: MandateRights,
}

impl Mandate {
    pub fn id(&self) -> MandateId {
        let parts = [&self.key.to_bytes()[..], &self.serial.to_be_bytes()];
        MandateId(kdf(&[0; 32], "shoal mandate 1", &parts))
    }

    /// Sorts the sets and checks the format's limits.
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
        let least = usize::from(self.rights.numbers.is_none());
        if !(least..=RANGES_MAX).contains(&self.hosts.len()) {
            return wrong("a mandate has 1 to 16 ranges of hosts");
        }
        if self.hosts.iter().any(|range| range.first == 0 || range.first > range.last) {
            return wrong("a mandate's hosts have numbers from 1 on, the first before the last");
        }
        if self.hosts.windows(2).any(|two| two[0].overlaps(&two[1])) {
            return wrong("a mandate's ranges of hosts overlap");
        }
        if self.ipv4.is_some_and(|prefix| !prefix.ip().is_ipv4() || prefix.bits() == 0) {
            return wrong("a mandate's IPv4 addresses must be a network such as 10.9.0.0/24");
        }
        if !(1..=ADMITTED_MAX).contains(&self.most) || self.longest_s == 0 {
            return wrong("a mandate admits 1 to 65536 keys, for at least one second");
        }
        if self.key.is_weak() {
            return wrong("a mandate's key is invalid");
        }
        self.rights.check()?;
        let inside = |ip| self.ipv4.is_some_and(|prefix| prefix.holds(ip));
        if door::is_any_inside(&self.rights.door, inside) {
            return wrong("a registrar's endpoint is outside the network's IPv4 addresses");
        }
        Ok(self)
    }

    /// True if members may get this address.
    pub fn may_give(&self, address: Address) -> bool {
        if address.is_router() {
            return self.rights.may_number(address.router);
        }
        self.rights.may_give(address) || self.hosts.iter().any(|range| range.holds(address))
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

    /// Appends the mandate with its rights, as one registrar gives it to another.
    pub(crate) fn put_delegated(&self, out: &mut Vec<u8>) {
        self.put(out);
        self.rights.put(out);
    }

    /// Reads a mandate that one registrar gives to another.
    pub(crate) fn read_delegated(reader: &mut Reader<'_>) -> Result<Mandate, Error> {
        Mandate::read(reader, MandateFormat::Second)
    }

    fn read(reader: &mut Reader<'_>, format: MandateFormat) -> Result<Mandate, Error> {
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
            rights: match format {
                MandateFormat::First => MandateRights::default(),
                MandateFormat::Second => MandateRights::read(reader)?,
            },
        };
        // Each content has one encoding.
        match mandate.clone().checked() {
            Ok(checked) if checked == mandate => Ok(mandate),
            _ => Err(invalid()),
        }
    }
}

/// The format of a list's mandates. A list uses the second one if any mandate has more rights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MandateFormat {
    First,
    Second,
}

impl MandateFormat {
    /// The format that these mandates need.
    pub(crate) fn of(all: &[Mandate]) -> MandateFormat {
        match all.iter().all(|mandate| mandate.rights.is_none()) {
            true => MandateFormat::First,
            false => MandateFormat::Second,
        }
    }
}

/// Reads the mandates of a list, which must ascend by id.
pub(crate) fn read_all(
    reader: &mut Reader<'_>,
    format: MandateFormat,
) -> Result<Vec<Mandate>, Error> {
    let count = usize::from(reader.u8(WHAT)?);
    if !(1..=MANDATES_MAX).contains(&count) {
        return Err(ParseError::Invalid { what: WHAT }.into());
    }
    let mut all: Vec<Mandate> = Vec::with_capacity(count);
    for _ in 0..count {
        let next = Mandate::read(reader, format)?;
        if all.last().is_some_and(|last| last.id() >= next.id()) {
            return Err(ParseError::Invalid { what: WHAT }.into());
        }
        all.push(next);
    }
    // Each content has one encoding.
    if MandateFormat::of(&all) != format {
        return Err(ParseError::Invalid { what: WHAT }.into());
    }
    Ok(all)
}

pub(crate) fn put_all(out: &mut Vec<u8>, all: &[Mandate]) {
    let format = MandateFormat::of(all);
    out.push(all.len() as u8);
    for mandate in all {
        mandate.put(out);
        if format == MandateFormat::Second {
            mandate.rights.put(out);
        }
    }
}

/// Checks the mandates of a list against each other: names, keys, hosts, routers and IPv4
/// addresses must differ.
pub(crate) fn check_all(all: &[Mandate]) -> Result<(), Error> {
    if all.len() > MANDATES_MAX {
        return Err(Error::Range("a list has at most 16 mandates"));
    }
    let made: usize = all.iter().map(|mandate| usize::from(mandate.rights.registrars)).sum();
    if all.len() + made > MANDATES_MAX {
        return Err(Error::Range(
            "mandates, and the registrars that they may make, are at most 16 together",
        ));
    }
    let (mut names, mut keys) = (BTreeSet::new(), BTreeSet::new());
    for (i, mandate) in all.iter().enumerate() {
        let wrong = |why| Err(Error::Mandate { name: mandate.name.clone(), why });
        if !names.insert(&mandate.name) {
            return wrong("two mandates have this name");
        }
        if !keys.insert(mandate.key) {
            return wrong("the key is also that of another mandate");
        }
        if let Some(why) = all[..i].iter().find_map(|other| overlap(mandate, other)) {
            return wrong(why);
        }
    }
    Ok(())
}

/// The addresses that two mandates share, in words; `None` if they share none.
pub(crate) fn overlap(mandate: &Mandate, other: &Mandate) -> Option<&'static str> {
    let both = |range: &HostRange| other.hosts.iter().any(|theirs| range.overlaps(theirs));
    if mandate.hosts.iter().any(both)
        || meets_numbers(mandate, other)
        || meets_numbers(other, mandate)
    {
        return Some("the hosts overlap another mandate's");
    }
    let shared = |range: &RouterRange| {
        let inside = |hosts: &HostRange| range.holds(hosts.router);
        other.rights.routers.iter().any(|theirs| range.overlaps(theirs))
            || other.hosts.iter().any(inside)
    };
    let theirs = |hosts: &HostRange| other.rights.may_number(hosts.router);
    if mandate.rights.routers.iter().any(shared) || mandate.hosts.iter().any(theirs) {
        return Some("the routers overlap another mandate's routers or hosts");
    }
    let (ours, theirs) = mandate.ipv4.zip(other.ipv4)?;
    let is_shared = ours.covers(&theirs) || theirs.covers(&ours);
    is_shared.then_some("the IPv4 addresses overlap another mandate's")
}

/// True if hosts of the second mandate may get a host number of the first one.
fn meets_numbers(mandate: &Mandate, other: &Mandate) -> bool {
    let Some(numbers) = mandate.rights.numbers else { return false };
    let others = other.hosts.iter().map(|range| (range.first, range.last));
    let all = other.rights.numbers.map(|range| (range.first, range.last));
    others.chain(all).any(|(first, last)| numbers.meets(first, last))
}

#[cfg(test)]
pub(crate) mod tests;
