//! A member's part in circuits: whether it relays them, and properties for the choice of paths
//! (docs/design/circuits.md).

use shoal_wire::{Address, ParseError};

use crate::codec::{name, put_name};
use crate::fields::{FieldKind, Fields};
use crate::mixes::{self, is_mix_name};
use crate::{Error, Field, is_name};

/// Maximum capacity in Mbit/s.
pub const CAPACITY_MAX: u32 = 10_000_000;

// A node that ignores these fields makes no circuits.
const RELAY: FieldKind = FieldKind { number: 6, is_critical: false, what: "relay" };
const EXIT: FieldKind = FieldKind { number: 7, is_critical: false, what: "exit" };
const FAMILY: FieldKind = FieldKind { number: 8, is_critical: false, what: "family" };
const CAPACITY: FieldKind = FieldKind { number: 9, is_critical: false, what: "capacity" };
const NEAR: FieldKind = FieldKind { number: 10, is_critical: false, what: "near" };
// A relay that ignores this field would forward cells that the authority wants delayed.
const MIX: FieldKind = FieldKind { number: 11, is_critical: true, what: "mix" };

/// The fields of a descriptor about circuits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CircuitRole {
    /// True if circuits may lead through the member; routers only.
    pub relay: bool,
    /// True if the member may be an exit from the network. No node uses this yet.
    pub exit: bool,
    /// Name of the operator. A member without a family is a family of its own.
    pub family: Option<String>,
    /// Capacity in Mbit/s, from 1 to [`CAPACITY_MAX`].
    pub capacity: Option<u32>,
    /// Approximate location, as a name for people.
    pub near: Option<String>,
    /// Name of the member's mix, from the network's [`crate::Mixes`], for the cells of all circuits
    /// through it. Relays only. Without it each circuit chooses a mix.
    pub mix: Option<String>,
}

impl CircuitRole {
    /// Checks the fields for the member at `address`.
    ///
    /// Errors: the invalid key, and the reason.
    pub fn check(&self, address: Address) -> Result<(), (&'static str, &'static str)> {
        if self.relay && !address.is_router() {
            let why = "only a router (an address with host number 0) can be a relay of circuits";
            return Err(("relay", why));
        }
        if self.mix.is_some() && !self.relay {
            let why =
                "only a relay of circuits has a mix of its own: make it a relay, or remove the mix";
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

    pub(crate) fn take(fields: &mut Fields<'_>) -> Result<CircuitRole, Error> {
        let nothing = |_: &mut _| Ok(());
        Ok(CircuitRole {
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

    fn read(all: Vec<Field>) -> Result<CircuitRole, Error> {
        let mut bytes = Vec::new();
        fields::put(&mut bytes, all).unwrap();
        let mut fields = Fields::read(&mut Reader::new(&bytes))?;
        let carrier = CircuitRole::take(&mut fields)?;
        assert!(fields.unknown().is_empty());
        Ok(carrier)
    }

    #[test]
    fn what_is_not_said_has_no_field_and_no_value_is_out_of_its_range() {
        assert_eq!(read(Vec::new()), Ok(CircuitRole::default()));
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
