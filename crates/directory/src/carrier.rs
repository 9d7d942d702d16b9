//! What a member is to circuits: whether it carries them, and what paths are chosen by
//! (docs/circuits.md).

use shoal_wire::{Address, ParseError};

use crate::codec::{name, put_name};
use crate::fields::{Fields, Kind};
use crate::mixes::{self, is_mix_name};
use crate::{Error, Field, is_name};

/// Greatest capacity in Mbit/s.
pub const CAPACITY_MAX: u32 = 10_000_000;

// A node that ignores these makes no circuits.
const RELAY: Kind = Kind { number: 6, is_critical: false, what: "relay" };
const EXIT: Kind = Kind { number: 7, is_critical: false, what: "exit" };
const FAMILY: Kind = Kind { number: 8, is_critical: false, what: "family" };
const CAPACITY: Kind = Kind { number: 9, is_critical: false, what: "capacity" };
const NEAR: Kind = Kind { number: 10, is_critical: false, what: "near" };
// A relay that ignores its own would let cells pass that the authority wants held back.
const MIX: Kind = Kind { number: 11, is_critical: true, what: "mix" };

/// What is said of a member's part in circuits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Carrier {
    /// Whether circuits may lead through it; routers only.
    pub relay: bool,
    /// Whether it may lead others out of the network. No node uses this yet.
    pub exit: bool,
    /// Who operates it, as a name. A member without a family is one of its own.
    pub family: Option<String>,
    /// What it can carry, in Mbit/s, from 1 to [`CAPACITY_MAX`].
    pub capacity: Option<u32>,
    /// Roughly where it is, as a name: for people.
    pub near: Option<String>,
    /// What it does with the cells of all circuits that it carries, as the network's
    /// [`crate::Mixes`] call it. Relays only; without it circuits name what they want.
    pub mix: Option<String>,
}

impl Carrier {
    /// Checks what is said of the member at `address`.
    ///
    /// Errors: the key that is wrong, and why.
    pub fn check(&self, address: Address) -> Result<(), (&'static str, &'static str)> {
        if self.relay && !address.is_router() {
            let why = "only a router (an address with host number 0) can be a relay of circuits";
            return Err(("relay", why));
        }
        if self.mix.is_some() && !self.relay {
            let why =
                "only a relay of circuits has a mix of its own: make it one, or take the mix out";
            return Err(("mix", why));
        }
        if self.mix.as_deref().is_some_and(|mix| !is_mix_name(mix)) {
            return Err(("mix", mixes::NAME_RULE));
        }
        if self.family.as_deref().is_some_and(|family| !is_name(family)) {
            let why = "a family is 1 to 63 letters, digits, '-', '_' or '.', beginning with a \
                       letter or digit";
            return Err(("family", why));
        }
        if self.near.as_deref().is_some_and(|near| !is_name(near)) {
            let why = "a place is 1 to 63 letters, digits, '-', '_' or '.', beginning with a \
                       letter or digit";
            return Err(("near", why));
        }
        if self.capacity.is_some_and(|capacity| !(1..=CAPACITY_MAX).contains(&capacity)) {
            return Err(("capacity", "a capacity is 1 to 10000000 Mbit/s"));
        }
        Ok(())
    }

    pub(crate) fn put(&self, all: &mut Vec<Field>) {
        all.extend(self.relay.then(|| RELAY.field(|_| {})));
        all.extend(self.exit.then(|| EXIT.field(|_| {})));
        let names = [(&FAMILY, &self.family), (&NEAR, &self.near), (&MIX, &self.mix)];
        for (kind, name) in names {
            all.extend(name.as_ref().map(|name| kind.field(|out| put_name(out, name))));
        }
        let capacity = |n: u32| CAPACITY.field(|out| out.extend_from_slice(&n.to_be_bytes()));
        all.extend(self.capacity.map(capacity));
    }

    pub(crate) fn take(fields: &mut Fields<'_>) -> Result<Carrier, Error> {
        let nothing = |_: &mut _| Ok(());
        Ok(Carrier {
            relay: fields.take(&RELAY, nothing)?.is_some(),
            exit: fields.take(&EXIT, nothing)?.is_some(),
            family: fields.take(&FAMILY, |reader| name(reader, FAMILY.what))?,
            capacity: fields.take(&CAPACITY, |reader| match reader.u32(CAPACITY.what)? {
                n @ 1..=CAPACITY_MAX => Ok(n),
                _ => Err(ParseError::Invalid { what: CAPACITY.what }.into()),
            })?,
            near: fields.take(&NEAR, |reader| name(reader, NEAR.what))?,
            mix: fields.take(&MIX, |reader| name(reader, MIX.what))?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fields;
    use shoal_wire::Reader;

    fn read(all: Vec<Field>) -> Result<Carrier, Error> {
        let mut bytes = Vec::new();
        fields::put(&mut bytes, all).unwrap();
        let mut fields = Fields::read(&mut Reader::new(&bytes))?;
        let carrier = Carrier::take(&mut fields)?;
        assert!(fields.unknown().is_empty());
        Ok(carrier)
    }

    #[test]
    fn what_is_not_said_has_no_field_and_no_value_is_out_of_its_range() {
        assert_eq!(read(Vec::new()), Ok(Carrier::default()));
        let capacity = |n: u32| read(vec![CAPACITY.field(|out| out.extend(n.to_be_bytes()))]);
        assert_eq!(capacity(CAPACITY_MAX).unwrap().capacity, Some(CAPACITY_MAX));
        for n in [0, CAPACITY_MAX + 1] {
            assert_eq!(capacity(n), Err(ParseError::Invalid { what: "capacity" }.into()));
        }
        for kind in [FAMILY, NEAR, MIX] {
            let error = read(vec![kind.field(|out| put_name(out, ""))]);
            assert_eq!(error, Err(ParseError::Invalid { what: kind.what }.into()));
        }
        assert!(read(vec![RELAY.field(|out| out.push(1))]).is_err(), "a flag has no value");
    }
}
