//! Which list is in force, and who its members are now.

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::sync::Arc;

use shoal_crypto::{PublicKey, hash};
use shoal_wire::{Address, Time};

use crate::mandate::MandateId;
use crate::reckoning::Reckoning;
use crate::register::{Applied, Register, Unapplied};
use crate::supplement::Supplement;
use crate::{Content, List, Member, Policy, Refused, fold};

/// How far in the future a list may have been issued: clocks of two machines differ.
pub const CLOCK_SKEW_S: u64 = 600;

/// Whether a list is in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// No list was accepted yet: nobody is a member.
    Missing,
    /// The list is older than allowed: nobody is a member.
    Stale,
    /// The list's members are in force, as far as they have not expired.
    Fresh,
}

/// Names the newest list that was accepted; kept over a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// Its version.
    pub version: u64,
    /// BLAKE3 of its bytes.
    pub digest: [u8; 32],
}

/// The lists of one authority, the newest in force. Their signatures are checked by
/// [`List::open`].
#[derive(Clone, Debug)]
pub struct Directory {
    staleness_max_s: u64,
    list: Option<List>,
    /// The newest list that was accepted, by this machine or before it.
    mark: Option<Mark>,
    /// Versions of descriptors in force, so that no newer list brings back an older one.
    versions: BTreeMap<PublicKey, u64>,
    /// Whom the list's mandates admit.
    registers: BTreeMap<MandateId, Register>,
    /// Those of them who clash with no member of the list, nor with one of another register.
    admitted: Vec<Arc<Member>>,
    /// Keys of members whose names differ from an earlier member's by capitals alone.
    nameless: BTreeSet<PublicKey>,
    reckoning: Reckoning,
}

impl Directory {
    /// A directory without a list. A list counts until it is `staleness_max` old.
    pub fn new(staleness_max: Duration) -> Directory {
        Directory {
            staleness_max_s: staleness_max.as_secs(),
            list: None,
            mark: None,
            versions: BTreeMap::new(),
            registers: BTreeMap::new(),
            admitted: Vec::new(),
            nameless: BTreeSet::new(),
            reckoning: Reckoning::NEW,
        }
    }

    /// As [`Directory::new`], but lists older than the one of this mark are refused.
    pub fn resume(staleness_max: Duration, mark: Option<Mark>) -> Directory {
        Directory { mark, ..Directory::new(staleness_max) }
    }

    /// The newest list that was accepted.
    pub fn mark(&self) -> Option<Mark> {
        self.mark
    }

    /// Puts a list in force; says whether anything changed. The one in force may come again, and
    /// changes nothing.
    ///
    /// Errors: it is older than what was seen, or from the future; the list in force stays.
    pub fn accept(&mut self, now: Time, unix_s: u64, list: List) -> Result<bool, Refused> {
        let (found, issued) = (list.content().version, list.content().issued_unix_s);
        self.look(now, unix_s);
        let at = self.unix_s(now, unix_s);
        if issued > at.saturating_add(CLOCK_SKEW_S) {
            return Err(Refused::Future(issued - at));
        }
        let digest = hash(list.bytes());
        if let Some(known) = self.mark {
            if found < known.version {
                return Err(Refused::Older { found, known: known.version });
            }
            if found == known.version && known.digest != digest {
                return Err(Refused::Twin(found));
            }
            if found == known.version && self.list.is_some() {
                return Ok(false);
            }
        }
        for signed in &list.content().members {
            let Member { key, version, name, .. } = &signed.member;
            match self.versions.get(key) {
                Some(known) if known > version => {
                    let (name, found, known) = (name.clone(), *version, *known);
                    return Err(Refused::OlderMember { name, found, known });
                }
                _ => {}
            }
        }
        let versions = list.content().members.iter().map(|s| (s.member.key, s.member.version));
        self.versions = versions.collect();
        self.keep_registers(&list);
        self.list = Some(list);
        self.admit();
        self.mark = Some(Mark { version: found, digest });
        self.reckoning.take_in(now, unix_s, issued, self.staleness_max_s);
        Ok(true)
    }

    /// Has a register for each mandate of the list, with the steps that are known of it.
    fn keep_registers(&mut self, list: &List) {
        let mut older = core::mem::take(&mut self.registers);
        for mandate in &list.content().mandates {
            let id = mandate.id();
            let register = match older.remove(&id) {
                Some(same) if same.mandate() == mandate => same,
                Some(changed) => changed.under(mandate.clone()),
                None => Register::new(mandate.clone()),
            };
            self.registers.insert(id, register);
        }
    }

    /// Takes in what the registrar of one of the list's mandates signed.
    ///
    /// Errors: it has no effect; `Foreign` where the list has no such mandate.
    pub fn supplement(
        &mut self,
        now: Time,
        unix_s: u64,
        supplement: &Supplement,
    ) -> Result<Applied, Unapplied> {
        let at = self.unix_s(now, unix_s);
        let register = self.registers.get_mut(&supplement.step().mandate);
        let applied = register.ok_or(Unapplied::Foreign)?.apply(at, supplement)?;
        if applied != Applied::Known {
            self.admit();
        }
        Ok(applied)
    }

    /// Takes in steps of one mandate in their order, up to the first that has no effect. Says
    /// whether members may have changed, and why that one has none.
    pub fn supplements(
        &mut self,
        now: Time,
        unix_s: u64,
        steps: &[Supplement],
    ) -> (bool, Result<(), Unapplied>) {
        let at = self.unix_s(now, unix_s);
        let (mut changed, mut outcome) = (false, Ok(()));
        for step in steps {
            let register = self.registers.get_mut(&step.step().mandate);
            match register.ok_or(Unapplied::Foreign).and_then(|register| register.apply(at, step)) {
                Ok(applied) => changed |= applied != Applied::Known,
                Err(why) => {
                    outcome = Err(why);
                    break;
                }
            }
        }
        if changed {
            self.admit();
        }
        (changed, outcome)
    }

    /// Whether [`Directory::supplement`] would take this in as the next step; nothing changes.
    ///
    /// Errors: what it would say.
    pub fn check_supplement(
        &mut self,
        now: Time,
        unix_s: u64,
        supplement: &Supplement,
    ) -> Result<(), Unapplied> {
        let at = self.unix_s(now, unix_s);
        let register = self.registers.get_mut(&supplement.step().mandate);
        register.ok_or(Unapplied::Foreign)?.check(at, supplement)
    }

    /// Takes in two steps of one mandate with one number.
    ///
    /// Errors: they have no effect.
    pub fn show_fork(&mut self, fork: [Supplement; 2]) -> Result<Applied, Unapplied> {
        let register = self.registers.get_mut(&fork[0].step().mandate);
        let applied = register.ok_or(Unapplied::Foreign)?.show_fork(fork)?;
        if applied != Applied::Known {
            self.admit();
        }
        Ok(applied)
    }

    /// What is known of the list's mandates, ascending by their ids.
    pub fn registers(&self) -> impl Iterator<Item = &Register> {
        self.registers.values()
    }

    /// What is known of one mandate.
    pub fn register(&self, id: &MandateId) -> Option<&Register> {
        self.registers.get(id)
    }

    /// Finds who of the registers' members is one of the network. The authority's word counts more:
    /// a revoked key, or a name, key or address of the list, is nobody else's. Of two registers the
    /// one with the smaller id counts more.
    fn admit(&mut self) {
        self.admitted.clear();
        self.nameless.clear();
        let Some(content) = self.list.as_ref().map(List::content) else { return };
        let mut taken = Taken::default();
        for signed in &content.members {
            taken.take(&signed.member);
        }
        for member in self.registers.values().flat_map(Register::members_by_age) {
            if !content.is_revoked(&member.key) && taken.take(member) {
                self.admitted.push(member.clone());
            }
        }
        // The list has no order in time, so of its own members the routers and the lower addresses
        // come first.
        let mut all: Vec<&Member> = content.members.iter().map(|signed| &signed.member).collect();
        all.sort_by_key(|member| (!member.address.is_router(), member.address));
        let mut names = BTreeSet::new();
        for member in all.into_iter().chain(self.admitted.iter().map(|member| &**member)) {
            if !names.insert(fold(&member.name)) {
                self.nameless.insert(member.key);
            }
        }
    }

    /// Whether an earlier member has this one's name, in other capitals: the name leads to that
    /// member alone. Of the list and a register the list's member counts as the earlier one.
    pub fn is_nameless(&self, key: &PublicKey) -> bool {
        self.nameless.contains(key)
    }

    /// The list that was accepted last, whether it is fresh or not.
    pub fn list(&self) -> Option<&List> {
        self.list.as_ref()
    }

    /// Notes what the wall clock shows. To be called every few seconds, so that a clock that ran
    /// evenly for an hour is believed, and setting it back makes nothing valid again.
    pub fn look(&mut self, now: Time, unix_s: u64) {
        self.reckoning.look(now, unix_s);
    }

    /// The time that counts for lists and members, in seconds since 1970.
    fn unix_s(&self, now: Time, unix_s: u64) -> u64 {
        self.reckoning.unix_s(now, unix_s)
    }

    /// How many seconds the wall clock is behind the time that counts for lists and members.
    pub fn behind_s(&self, now: Time, unix_s: u64) -> u64 {
        self.unix_s(now, unix_s).saturating_sub(unix_s)
    }

    /// Age of the list in seconds.
    pub fn age_s(&self, now: Time, unix_s: u64) -> Option<u64> {
        let list = self.list.as_ref()?;
        Some(self.unix_s(now, unix_s).saturating_sub(list.content().issued_unix_s))
    }

    /// Whether a list is in force.
    pub fn standing(&self, now: Time, unix_s: u64) -> Standing {
        match self.age_s(now, unix_s) {
            None => Standing::Missing,
            Some(age) if age >= self.staleness_max_s => Standing::Stale,
            Some(_) => Standing::Fresh,
        }
    }

    /// The members in force, those of the list before those of its mandates: none unless the list
    /// is fresh.
    pub fn members(&self, now: Time, unix_s: u64) -> impl Iterator<Item = &Member> {
        let fresh = self.standing(now, unix_s) == Standing::Fresh;
        self.last_members(now, unix_s).filter(move |_| fresh)
    }

    /// The members of the newest list that have not expired, however old the list is: those from
    /// whom a newer one may come. They have no rights by that.
    pub fn last_members(&self, now: Time, unix_s: u64) -> impl Iterator<Item = &Member> {
        let at = self.unix_s(now, unix_s);
        let content = self.list.as_ref().map(List::content);
        let members = content.into_iter().flat_map(|content: &Content| &content.members);
        let members = members.filter(|signed| signed.unknown_critical().is_none());
        let members = members
            .map(|signed| &signed.member)
            .chain(self.admitted.iter().map(|member| &**member));
        members.filter(move |member| member.expires_unix_s > at)
    }

    /// All of whom the newest list or its mandates speak, in force or not.
    pub fn listed(&self) -> impl Iterator<Item = &Member> {
        let content = self.list.as_ref().map(List::content);
        let members = content.into_iter().flat_map(|content: &Content| &content.members);
        members.map(|signed| &signed.member).chain(self.admitted.iter().map(|member| &**member))
    }

    /// Members of the newest list that are left out here, since their descriptors have a critical
    /// field that this version does not know; with the field's number.
    pub fn left_out(&self) -> impl Iterator<Item = (&Member, u16)> {
        let content = self.list.as_ref().map(List::content);
        let members = content.into_iter().flat_map(|content: &Content| &content.members);
        members.filter_map(|signed| Some((&signed.member, signed.unknown_critical()?)))
    }

    /// The policy in force: none unless the list is fresh.
    pub fn policy(&self, now: Time, unix_s: u64) -> Option<&Policy> {
        let fresh = self.standing(now, unix_s) == Standing::Fresh;
        self.list.as_ref().filter(|_| fresh).map(List::policy)
    }

    /// How long from now the members in force stay the same, if no other list comes and the wall
    /// clock is not set.
    pub fn next_change(&self, now: Time, unix_s: u64) -> Option<Duration> {
        if self.standing(now, unix_s) != Standing::Fresh {
            return None;
        }
        let at = self.unix_s(now, unix_s);
        let issued = self.list.as_ref()?.content().issued_unix_s;
        let expiries = self.members(now, unix_s).map(|member| member.expires_unix_s);
        let first = expiries.min().unwrap_or(u64::MAX);
        let next = first.min(issued.saturating_add(self.staleness_max_s));
        Some(Duration::from_secs(next.saturating_sub(at)))
    }
}

/// Names, keys and addresses that have somebody.
#[derive(Default)]
struct Taken<'a> {
    names: BTreeSet<&'a str>,
    halves: BTreeSet<[u8; 32]>,
    addresses: BTreeSet<Address>,
    ipv4s: BTreeSet<Ipv4Addr>,
}

impl<'a> Taken<'a> {
    /// Takes all of a member's, if nobody has any of them.
    fn take(&mut self, member: &'a Member) -> bool {
        let Member { name, key, address, ipv4, .. } = member;
        let has = self.names.contains(name.as_str())
            || self.halves.contains(&key.dh)
            || self.addresses.contains(address)
            || ipv4.is_some_and(|ipv4| self.ipv4s.contains(&ipv4));
        if !has {
            self.names.insert(name);
            self.halves.insert(key.dh);
            self.addresses.insert(*address);
            self.ipv4s.extend(ipv4);
        }
        !has
    }
}

#[cfg(test)]
mod tests;
