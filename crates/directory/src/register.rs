//! The register of a mandate: whom its registrar made members, step by step (docs/authority.md
//! section 6).
//!
//! ```text
//! Supplement --> next in the chain? --> each entry within the mandate? --> members
//!                  | another step with this number        | no
//!                  v                                      v
//!                frozen                                refused, nothing changed
//! ```
//!
//! Invariant: the members follow from the mandate and the steps alone, never from when a node heard
//! of them, so nodes that have the same steps have the same members. What a mandate rules out is no
//! member, whatever its registrar signs.

mod table;

use core::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use shoal_crypto::PublicKey;

use crate::directory::CLOCK_SKEW_S;
use crate::mandate::{Mandate, MandateId};
use crate::span::span;
use crate::supplement::{Entry, Step, Supplement};
use crate::{Carrier, Member, is_host};
use table::Table;

/// Most steps of one chain. Then the authority adopts the members and signs another mandate.
pub const STEPS_MAX: usize = 65_536;

/// What a supplement did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Applied {
    /// Members may have changed.
    Changed,
    /// It was there already.
    Known,
    /// It shows that the registrar signed two steps with one number: from there on nothing counts.
    Frozen,
}

/// Why a supplement has no effect. Nothing has changed then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unapplied {
    /// It is another mandate's.
    #[error("it is of another mandate")]
    Foreign,
    /// Steps before it are missing, from this number on.
    #[error("steps from {0} on are missing")]
    Missing(u64),
    /// The chain is frozen before it.
    #[error("the registrar signed two different steps with the number {0}")]
    Frozen(u64),
    /// It names another step before it than the one that is here.
    #[error("it does not follow from the step before it")]
    Unchained,
    /// The chain has no room.
    #[error("a mandate has at most 65536 steps: let the authority adopt its members")]
    Full,
    /// It was signed later than now.
    #[error("it was signed {} in the future: is this machine's clock right?", span(*.0))]
    Future(u64),
    /// The mandate does not allow it.
    #[error("{0}")]
    Bad(BadMandate),
}

/// What a registrar's mandate does not allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadMandate {
    /// It was signed after the mandate's end.
    Over,
    /// It was signed before the step that it follows.
    Backwards,
    /// The member's address is not one of the mandate's hosts.
    Address,
    /// Its IPv4 address is not one of the mandate's.
    Ipv4,
    /// It is in a group that the mandate does not have.
    Group,
    /// Its membership lasts longer than the mandate allows.
    TooLong,
    /// It says what only the authority may say of a member.
    Beyond,
    /// Its descriptor is none.
    Descriptor,
    /// Its version is not greater than the one before.
    Version,
    /// Its key was removed.
    Returned,
    /// Another member has its name.
    Name,
    /// Another member has its address.
    Taken,
    /// Another member has its IPv4 address.
    TakenIpv4,
    /// The mandate has admitted as many keys as it may.
    Most,
    /// Nobody whom the mandate admitted is to be removed.
    Stranger,
}

impl fmt::Display for BadMandate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            BadMandate::Over => "it was signed after the mandate's end",
            BadMandate::Backwards => "it was signed before the step that it follows",
            BadMandate::Address => "a member's address is not one of the mandate's hosts",
            BadMandate::Ipv4 => "a member's IPv4 address is not one of the mandate's",
            BadMandate::Group => "a member is in a group that the mandate does not have",
            BadMandate::TooLong => "a membership lasts longer than the mandate allows",
            BadMandate::Beyond => "it says what only the authority may say of a member",
            BadMandate::Descriptor => "a descriptor is none",
            BadMandate::Version => "a descriptor is not newer than the one before",
            BadMandate::Returned => "a key comes back that was removed",
            BadMandate::Name => "two members have one name",
            BadMandate::Taken => "two members have one address",
            BadMandate::TakenIpv4 => "two members have one IPv4 address",
            BadMandate::Most => "the mandate has admitted as many keys as it may",
            BadMandate::Stranger => "a key is removed that is no member of this mandate",
        })
    }
}

/// The members of one mandate.
#[derive(Clone, Debug)]
pub struct Register {
    mandate: Mandate,
    id: MandateId,
    steps: Vec<Supplement>,
    /// Two steps with one number, the first that counts no more.
    fork: Option<Box<[Supplement; 2]>>,
    table: Table,
}

impl Register {
    /// Of a mandate without members.
    pub fn new(mandate: Mandate) -> Register {
        Register {
            id: mandate.id(),
            mandate,
            steps: Vec::new(),
            fork: None,
            table: Table::default(),
        }
    }

    /// Its mandate.
    pub fn mandate(&self) -> &Mandate {
        &self.mandate
    }

    /// The mandate's id.
    pub fn id(&self) -> MandateId {
        self.id
    }

    /// The same chain under what a newer list says of the mandate. Steps that it no longer allows,
    /// and those behind them, are gone.
    ///
    /// Panics if the mandate has another id.
    pub fn under(&self, mandate: Mandate) -> Register {
        let mut newer = Register::new(mandate);
        assert_eq!(newer.id, self.id, "a chain is of one mandate");
        newer.fork.clone_from(&self.fork);
        for step in &self.steps {
            if newer.take(step).is_err() {
                break;
            }
        }
        newer
    }

    /// How many steps count.
    pub fn len(&self) -> u64 {
        self.steps.len() as u64
    }

    /// Whether the registrar has said nothing yet.
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// What the next step names as its `previous`.
    pub fn head(&self) -> [u8; 32] {
        self.steps.last().map_or(self.id.0, Supplement::digest)
    }

    /// The steps that count, the first one first.
    pub fn steps(&self) -> &[Supplement] {
        &self.steps
    }

    /// The step with this number, from 1 on.
    pub fn step(&self, number: u64) -> Option<&Supplement> {
        self.steps.get(usize::try_from(number.checked_sub(1)?).ok()?)
    }

    /// Two steps with one number, if the registrar signed such: nothing from that number on counts.
    pub fn fork(&self) -> Option<&[Supplement; 2]> {
        self.fork.as_deref()
    }

    /// How many keys were ever admitted.
    pub fn admitted(&self) -> usize {
        self.table.admitted()
    }

    /// Whether this key was admitted and then removed.
    pub fn is_removed(&self, key: &PublicKey) -> bool {
        self.table.is_removed(key)
    }

    /// The members, those included whose membership has expired.
    pub fn members(&self) -> impl Iterator<Item = &Member> {
        self.table.holders().map(|holder| &*holder.member)
    }

    /// The members of [`Register::members`], those first who had their names first.
    pub fn members_by_age(&self) -> Vec<&Arc<Member>> {
        let mut holders: Vec<_> = self.table.holders().collect();
        holders.sort_by_key(|holder| holder.named);
        holders.into_iter().map(|holder| &holder.member).collect()
    }

    /// Takes in what the registrar signed, as [`Supplement::open`] found; `unix_s` is the time now.
    ///
    /// Errors: it has no effect.
    pub fn apply(&mut self, unix_s: u64, supplement: &Supplement) -> Result<Applied, Unapplied> {
        let step = supplement.step();
        if step.mandate != self.id {
            return Err(Unapplied::Foreign);
        }
        if let Some(known) = self.step(step.number) {
            if known.digest() == supplement.digest() {
                return Ok(Applied::Known);
            }
            let fork = [known.clone(), supplement.clone()];
            return Ok(self.freeze(fork));
        }
        self.look_at(unix_s, step)?;
        self.take(supplement)?;
        Ok(Applied::Changed)
    }

    /// Whether [`Register::apply`] would take this in as the next step. Nothing changes.
    ///
    /// Errors: what it would say.
    pub fn check(&mut self, unix_s: u64, supplement: &Supplement) -> Result<(), Unapplied> {
        self.look_at(unix_s, supplement.step())?;
        self.look_behind(supplement.step())?;
        let entered = self.enter(supplement.step());
        self.table.undo();
        entered.map_err(Unapplied::Bad)
    }

    /// Takes in that the registrar signed two steps with one number, of which this node may have
    /// neither.
    ///
    /// Errors: they show nothing of this mandate, or an earlier fork is known.
    pub fn show_fork(&mut self, fork: [Supplement; 2]) -> Result<Applied, Unapplied> {
        let [one, other] = [fork[0].step(), fork[1].step()];
        if one.mandate != self.id || other.mandate != self.id {
            return Err(Unapplied::Foreign);
        }
        if one.number != other.number || fork[0].digest() == fork[1].digest() {
            return Err(Unapplied::Unchained);
        }
        match self.frozen_at() {
            Some(at) if at < one.number => Err(Unapplied::Frozen(at)),
            Some(at) if at == one.number => Ok(Applied::Known),
            _ => Ok(self.freeze(fork)),
        }
    }

    /// Whether a step may count now, wherever it stands in the chain.
    fn look_at(&self, unix_s: u64, step: &Step) -> Result<(), Unapplied> {
        if step.mandate != self.id {
            return Err(Unapplied::Foreign);
        }
        if let Some(at) = self.frozen_at().filter(|at| step.number >= *at) {
            return Err(Unapplied::Frozen(at));
        }
        if step.issued_unix_s > unix_s.saturating_add(CLOCK_SKEW_S) {
            return Err(Unapplied::Future(step.issued_unix_s - unix_s));
        }
        Ok(())
    }

    /// Whether a step follows from the one before it.
    fn look_behind(&self, step: &Step) -> Result<(), Unapplied> {
        let next = self.len() + 1;
        if step.number > next {
            return Err(Unapplied::Missing(next));
        }
        if step.number < next || step.previous != self.head() {
            return Err(Unapplied::Unchained);
        }
        if self.steps.len() >= STEPS_MAX {
            return Err(Unapplied::Full);
        }
        Ok(())
    }

    fn frozen_at(&self) -> Option<u64> {
        self.fork.as_ref().map(|fork| fork[0].step().number)
    }

    /// Nothing from the number of these two steps on counts.
    fn freeze(&mut self, fork: [Supplement; 2]) -> Applied {
        let before = (fork[0].step().number - 1) as usize;
        let mut older = Register::new(self.mandate.clone());
        for step in self.steps.iter().take(before) {
            // They were taken in this order before.
            let _ = older.take(step);
        }
        *self = Register { fork: Some(Box::new(fork)), ..older };
        Applied::Frozen
    }

    /// Takes in the next step of the chain, all of it or nothing.
    fn take(&mut self, supplement: &Supplement) -> Result<(), Unapplied> {
        let step = supplement.step();
        self.look_behind(step)?;
        if let Err(why) = self.enter(step) {
            self.table.undo();
            return Err(Unapplied::Bad(why));
        }
        self.table.keep();
        self.steps.push(supplement.clone());
        Ok(())
    }

    /// Takes in the entries of a step.
    ///
    /// Errors: one is not allowed; those before it have changed the table.
    fn enter(&mut self, step: &Step) -> Result<(), BadMandate> {
        let at = step.issued_unix_s;
        if at >= self.mandate.until_unix_s {
            return Err(BadMandate::Over);
        }
        if at < self.steps.last().map_or(0, |last| last.step().issued_unix_s) {
            return Err(BadMandate::Backwards);
        }
        for entry in &step.entries {
            match entry {
                Entry::Removed(digest) => self.table.remove(*digest)?,
                Entry::Member(member) => {
                    self.permits(member, at)?;
                    self.table.put(member, at, self.mandate.most as usize)?;
                }
            }
        }
        Ok(())
    }

    /// Whether the mandate lets anybody be this member, signed at this time.
    fn permits(&self, member: &Member, issued_unix_s: u64) -> Result<(), BadMandate> {
        let mandate = &self.mandate;
        if member.clone().checked().as_ref() != Ok(member) || member.key.is_weak() {
            return Err(BadMandate::Descriptor);
        }
        let beyond = member.endpoint.is_some()
            || !member.security_groups.is_empty()
            || !member.prefixes.is_empty()
            || member.cover.is_some()
            || member.carrier != Carrier::default()
            || !member.unknown.is_empty()
            || member.key == mandate.key;
        if beyond {
            return Err(BadMandate::Beyond);
        }
        if member.address.is_router() || !mandate.may_give(member.address) {
            return Err(BadMandate::Address);
        }
        let may_give = |ip: IpAddr| mandate.ipv4.is_some_and(|prefix| prefix.holds(ip));
        if member.ipv4.is_some_and(|ipv4| !is_host(&ipv4) || !may_give(ipv4.into())) {
            return Err(BadMandate::Ipv4);
        }
        if !member.groups.iter().all(|group| mandate.groups.contains(group)) {
            return Err(BadMandate::Group);
        }
        let longest = issued_unix_s.saturating_add(mandate.longest_s.into());
        if member.expires_unix_s > longest.min(mandate.until_unix_s) {
            return Err(BadMandate::TooLong);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
