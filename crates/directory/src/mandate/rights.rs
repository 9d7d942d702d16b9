//! Rights of a mandate beyond hosts behind named routers (docs/design/wire/join.md).
//!
//! ```text
//! rights = routers: count 1, (first 4, last 4) ascending | numbers: first 2, last 2 (0, 0: none)
//!        | bits 1: 1 relay, 2 mix, 4 cover, 8 named tiers, 16 endpoints, 32 registrars
//!        | routers most 2 | families most 1 | family: name, or length 0
//!        | with bit 8 tiers: count 1, names ascending
//!        | with bit 16 the registrar's first endpoints (`door.rs`) | with bit 32 registrars 1
//! ```
//!
//! A thief of the registrar's key can use these rights too. So the numbers of routers and of
//! families have limits of their own: each router of a family counts as one operator for paths.

use core::fmt;

use shoal_wire::{Address, ParseError, Reader};

use super::{RANGES_MAX, WHAT};
use crate::codec::{name, put_name, put_set, set};
use crate::cover::is_tier_name;
use crate::{DoorEndpoint, Error, TIERS_MAX, door, is_name};

/// Maximum number of routers that a mandate may ever admit.
pub const ROUTERS_MAX: u16 = 4_096;

const RELAY: u8 = 1;
const MIX: u8 = 2;
const COVER: u8 = 4;
const NAMED_TIERS: u8 = 8;
const DOOR: u8 = 16;
const REGISTRARS: u8 = 32;

/// A range of router numbers, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RouterRange {
    /// The first number, at least 1.
    pub first: u32,
    pub last: u32,
}

impl RouterRange {
    /// True if the router with this number is in the range.
    pub fn holds(&self, router: u32) -> bool {
        (self.first..=self.last).contains(&router)
    }

    pub(super) fn overlaps(&self, other: &RouterRange) -> bool {
        self.first <= other.last && other.first <= self.last
    }

    /// True if all numbers of `other` are in the range.
    pub(crate) fn covers(&self, other: &RouterRange) -> bool {
        self.first <= other.first && other.last <= self.last
    }

    fn count(&self) -> u64 {
        u64::from(self.last - self.first) + 1
    }
}

impl fmt::Display for RouterRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RouterRange { first, last } = self;
        write!(f, "{first}-{last}")
    }
}

impl core::str::FromStr for RouterRange {
    type Err = &'static str;

    /// Reads `2-999` or `2`.
    fn from_str(text: &str) -> Result<RouterRange, &'static str> {
        let wrong = "expected numbers of routers, such as 2-999";
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let first = first.parse().map_err(|_| wrong)?;
        let range = RouterRange { first, last: last.parse().map_err(|_| wrong)? };
        if range.first == 0 || range.first > range.last {
            return Err("expected numbers of routers in ascending order, from 1 on");
        }
        Ok(range)
    }
}

/// Host numbers that are free behind every router of the network, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NumberRange {
    /// The first host number, at least 1.
    pub first: u16,
    pub last: u16,
}

impl NumberRange {
    /// True if the host number is in the range.
    pub fn holds(&self, host: u16) -> bool {
        (self.first..=self.last).contains(&host)
    }

    /// True if all these host numbers are in the range.
    pub(crate) fn covers(&self, first: u16, last: u16) -> bool {
        self.first <= first && last <= self.last
    }

    pub(super) fn meets(&self, first: u16, last: u16) -> bool {
        self.first <= last && first <= self.last
    }
}

impl fmt::Display for NumberRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.first, self.last)
    }
}

impl core::str::FromStr for NumberRange {
    type Err = &'static str;

    /// Reads `100-999` or `100`.
    fn from_str(text: &str) -> Result<NumberRange, &'static str> {
        let wrong = "expected host numbers, such as 100-999";
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let first = first.parse().map_err(|_| wrong)?;
        let range = NumberRange { first, last: last.parse().map_err(|_| wrong)? };
        if range.first == 0 || range.first > range.last {
            return Err(
                "expected host numbers in ascending order, from 1 on: host 0 is the router",
            );
        }
        Ok(range)
    }
}

/// Rights beyond hosts behind named routers. The default is none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MandateRights {
    /// Numbers for routers; sorted and disjoint, at most [`RANGES_MAX`].
    pub routers: Vec<RouterRange>,
    /// Host numbers for members behind any router.
    pub numbers: Option<NumberRange>,
    /// True if routers may be relays of circuits.
    pub relay: bool,
    /// True if relays may have a mix of their own.
    pub mix: bool,
    /// True if hosts may have a tier of cover.
    pub cover: bool,
    /// The tiers that hosts may have; empty for every tier. Sorted, at most [`TIERS_MAX`], and only
    /// with `cover`.
    pub tiers: Vec<String>,
    /// Maximum number of router numbers ever given, former routers included.
    pub routers_most: u16,
    /// Maximum number of different families ever given.
    pub families_most: u8,
    /// Family of routers whose invite names none.
    pub family: Option<String>,
    /// First endpoints of the registrar, which it may replace by signed ones; at most
    /// [`crate::DOOR_ENDPOINTS_MAX`]. Empty if it may state none.
    pub door: Vec<DoorEndpoint>,
    /// Maximum number of registrars that this one may ever make, withdrawn ones included.
    pub registrars: u8,
}

impl MandateRights {
    /// True if the mandate needs the second format.
    pub fn is_none(&self) -> bool {
        *self == MandateRights::default()
    }

    /// True if a router may get this number.
    pub fn may_number(&self, router: u32) -> bool {
        self.routers.iter().any(|range| range.holds(router))
    }

    /// True if a host may get this tier of cover.
    pub fn may_cover(&self, tier: &str) -> bool {
        self.cover && (self.tiers.is_empty() || self.tiers.iter().any(|named| named == tier))
    }

    /// True if a host may get this address.
    pub(super) fn may_give(&self, address: Address) -> bool {
        self.numbers.is_some_and(|numbers| numbers.holds(address.host))
    }

    /// Sorts the ranges and checks the format's limits.
    pub(super) fn check(&mut self) -> Result<(), Error> {
        self.routers.sort();
        self.tiers.sort();
        self.tiers.dedup();
        let wrong = |why| Err(Error::Range(why));
        if self.routers.len() > RANGES_MAX {
            return wrong("a mandate has at most 16 ranges of routers");
        }
        if self.routers.iter().any(|range| range.first == 0 || range.first > range.last) {
            return wrong("a mandate's routers have numbers from 1 on, the first before the last");
        }
        if self.routers.windows(2).any(|two| two[0].overlaps(&two[1])) {
            return wrong("a mandate's ranges of routers overlap");
        }
        if self.numbers.is_some_and(|range| range.first == 0 || range.first > range.last) {
            return wrong("a mandate's host numbers are from 1 on, the first before the last");
        }
        let said = [self.routers_most > 0, self.families_most > 0, self.family.is_some()];
        if said != [!self.routers.is_empty(); 3] {
            return wrong(
                "a mandate with routers has a limit of routers, a limit of families and a family; \
                 a mandate without routers has none of them",
            );
        }
        let numbers: u64 = self.routers.iter().map(RouterRange::count).sum();
        if self.routers_most > ROUTERS_MAX || u64::from(self.routers_most) > numbers {
            return wrong("a mandate admits at most 4096 routers, and no more than it has numbers");
        }
        if self.routers.is_empty() && (self.relay || self.mix) {
            return wrong("a mandate without routers allows no relays and no mixes");
        }
        if self.tiers.len() > TIERS_MAX || !self.tiers.iter().all(|tier| is_tier_name(tier)) {
            return wrong("a mandate names at most 4 tiers of cover, each by 1 to 16 characters");
        }
        if !self.cover && !self.tiers.is_empty() {
            return wrong("a mandate names tiers of cover only if it allows hosts with a tier");
        }
        if self.family.as_deref().is_some_and(|family| !is_name(family)) {
            return wrong(
                "a family is 1 to 63 letters, digits, '-', '_' or '.', beginning with a letter or \
                 digit",
            );
        }
        if !self.door.is_empty() && !door::is_valid(&self.door) {
            return wrong("a registrar has 1 to 3 different endpoints that can be called");
        }
        Ok(())
    }

    pub(super) fn put(&self, out: &mut Vec<u8>) {
        out.push(self.routers.len() as u8);
        for range in &self.routers {
            out.extend_from_slice(&range.first.to_be_bytes());
            out.extend_from_slice(&range.last.to_be_bytes());
        }
        let (first, last) = self.numbers.map_or((0, 0), |range| (range.first, range.last));
        out.extend_from_slice(&first.to_be_bytes());
        out.extend_from_slice(&last.to_be_bytes());
        let (named, has_door) = (!self.tiers.is_empty(), !self.door.is_empty());
        let rights = [
            (self.relay, RELAY),
            (self.mix, MIX),
            (self.cover, COVER),
            (named, NAMED_TIERS),
            (has_door, DOOR),
            (self.registrars > 0, REGISTRARS),
        ];
        out.push(rights.iter().filter(|(has, _)| *has).map(|(_, bit)| bit).sum());
        out.extend_from_slice(&self.routers_most.to_be_bytes());
        out.push(self.families_most);
        put_name(out, self.family.as_deref().unwrap_or_default());
        if named {
            put_set(out, &self.tiers, |out, tier| put_name(out, tier));
        }
        if has_door {
            door::put_all(out, &self.door);
        }
        if self.registrars > 0 {
            out.push(self.registrars);
        }
    }

    pub(super) fn read(reader: &mut Reader<'_>) -> Result<MandateRights, Error> {
        let mut routers = Vec::new();
        for _ in 0..reader.u8(WHAT)? {
            routers.push(RouterRange { first: reader.u32(WHAT)?, last: reader.u32(WHAT)? });
        }
        let numbers = match (reader.u16(WHAT)?, reader.u16(WHAT)?) {
            (0, 0) => None,
            (first, last) => Some(NumberRange { first, last }),
        };
        let bits = reader.u8(WHAT)?;
        if bits & !(RELAY | MIX | COVER | NAMED_TIERS | DOOR | REGISTRARS) != 0 {
            return Err(ParseError::Invalid { what: WHAT }.into());
        }
        let (routers_most, families_most) = (reader.u16(WHAT)?, reader.u8(WHAT)?);
        let family = match reader.rest().first() {
            Some(0) => reader.u8(WHAT).map(|_| None)?,
            _ => Some(name(reader, WHAT)?),
        };
        let tiers = match bits & NAMED_TIERS {
            0 => Vec::new(),
            _ => set(reader, TIERS_MAX, WHAT, |reader| name(reader, WHAT))?,
        };
        Ok(MandateRights {
            routers,
            numbers,
            relay: bits & RELAY != 0,
            mix: bits & MIX != 0,
            cover: bits & COVER != 0,
            tiers,
            routers_most,
            families_most,
            family,
            door: if bits & DOOR == 0 { Vec::new() } else { door::read_all(reader)? },
            registrars: if bits & REGISTRARS == 0 { 0 } else { reader.u8(WHAT)? },
        })
    }
}
