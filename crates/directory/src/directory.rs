//! The list in force and its present members.

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use shoal_crypto::{PublicKey, hash};
use shoal_wire::{Address, Time};

use crate::mandate::{Mandate, MandateId};
use crate::names::NameNumbers;
use crate::reckoning::TrustedClock;
use crate::register::{Register, StepEffect, StepRejection};
use crate::supplement::Supplement;
use crate::{DoorEndpoint, List, ListContent, ListRejection, Member, Policy, fold};

/// Maximum time in seconds by which a list may seem to be issued in the future, since clocks
/// differ.
pub const CLOCK_SKEW_S: u64 = 600;

/// Freshness of the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Freshness {
    /// No list was accepted yet, so there are no members.
    Missing,
    /// The list is older than allowed, so there are no members.
    Stale,
    /// The list's members are in force unless they have expired.
    Fresh,
}

/// Identifies the newest accepted list. Stored, so that it survives a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListMark {
    pub version: u64,
    /// BLAKE3 of the list's bytes.
    pub digest: [u8; 32],
}

/// The newest list of an authority, and the registers of its mandates. [`List::open`] checks
/// signatures.
#[derive(Clone, Debug)]
pub struct Directory {
    staleness_max_s: u64,
    list: Option<List>,
    /// The newest list accepted, in this process or an earlier one.
    mark: Option<ListMark>,
    /// Versions of descriptors in force, so that a newer list can't bring back an older descriptor.
    versions: BTreeMap<PublicKey, u64>,
    /// Members admitted under the list's mandates.
    registers: BTreeMap<MandateId, Register>,
    /// Members of registers without a conflict with the list or another register.
    admitted: Vec<Arc<Member>>,
    /// Keys of members whose names differ from an earlier member's only in upper and lower case.
    nameless: BTreeSet<PublicKey>,
    /// Other names for members to which two registrars gave one name at once.
    aliases: BTreeMap<PublicKey, String>,
    reckoning: TrustedClock,
}

impl Directory {
    /// A directory without a list. A list counts until its age is `staleness_max`.
    pub fn new(staleness_max: Duration) -> Directory {
        Directory {
            staleness_max_s: staleness_max.as_secs(),
            list: None,
            mark: None,
            versions: BTreeMap::new(),
            registers: BTreeMap::new(),
            admitted: Vec::new(),
            nameless: BTreeSet::new(),
            aliases: BTreeMap::new(),
            reckoning: TrustedClock::NEW,
        }
    }

    /// Like [`Directory::new`], but lists older than that of `mark` are refused.
    pub fn resume(staleness_max: Duration, mark: Option<ListMark>) -> Directory {
        Directory { mark, ..Directory::new(staleness_max) }
    }

    pub fn mark(&self) -> Option<ListMark> {
        self.mark
    }

    /// Puts a list in force. Returns true if anything changed; the current list may come again.
    ///
    /// Errors: the list is older than one seen before, or from the future. The current list stays
    /// in force.
    pub fn accept(&mut self, now: Time, unix_s: u64, list: List) -> Result<bool, ListRejection> {
        let (found, issued) = (list.content().version, list.content().issued_unix_s);
        self.look(now, unix_s);
        let at = self.unix_s(now, unix_s);
        if issued > at.saturating_add(CLOCK_SKEW_S) {
            return Err(ListRejection::Future(issued - at));
        }
        let digest = hash(list.bytes());
        if let Some(known) = self.mark {
            if found < known.version {
                return Err(ListRejection::Older { found, known: known.version });
            }
            if found == known.version && known.digest != digest {
                return Err(ListRejection::Twin(found));
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
                    return Err(ListRejection::OlderMember { name, found, known });
                }
                _ => {}
            }
        }
        let versions = list.content().members.iter().map(|s| (s.member.key, s.member.version));
        self.versions = versions.collect();
        self.keep_registers(&list);
        self.list = Some(list);
        self.admit();
        self.mark = Some(ListMark { version: found, digest });
        self.reckoning.take_in(now, unix_s, issued, self.staleness_max_s);
        Ok(true)
    }

    /// Keeps one register for each mandate of the list, with the known steps.
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
        // Registrars made by others stay if the chains still say so.
        for (id, register) in older {
            self.registers.entry(id).or_insert(register);
        }
    }

    /// Ids of the list's own mandates.
    fn first_ids(&self) -> BTreeSet<MandateId> {
        let mandates = self.list.iter().flat_map(|list| &list.content().mandates);
        mandates.map(Mandate::id).collect()
    }

    /// Keeps one register for each mandate of the list, and for each registrar that one of these
    /// made. The list outranks: a revoked key, or the key of another mandate, makes no registrar.
    fn keep_delegated(&mut self) {
        let Some(content) = self.list.as_ref().map(List::content) else { return };
        let first = self.first_ids();
        let is_free = |key: &PublicKey| {
            let mut mandates = content.mandates.iter();
            !content.is_revoked(key) && !mandates.any(|mandate| mandate.key == *key)
        };
        let mut wanted: BTreeMap<MandateId, Mandate> = BTreeMap::new();
        for made in self.registers.values().filter(|r| first.contains(&r.id())) {
            for mandate in made.delegated().filter(|mandate| is_free(&mandate.key)) {
                wanted.entry(mandate.id()).or_insert_with(|| (**mandate).clone());
            }
        }
        self.registers.retain(|id, register| {
            first.contains(id)
                || wanted.get(id).is_some_and(|mandate| mandate == register.mandate())
        });
        for (id, mandate) in wanted {
            self.registers.entry(id).or_insert_with(|| Register::new(mandate));
        }
    }

    /// Applies a supplement of a registrar.
    ///
    /// Errors: the supplement has no effect; `Foreign` if the list lacks its mandate.
    pub fn supplement(
        &mut self,
        now: Time,
        unix_s: u64,
        supplement: &Supplement,
    ) -> Result<StepEffect, StepRejection> {
        let at = self.unix_s(now, unix_s);
        let register = self.registers.get_mut(&supplement.step().mandate);
        let applied = register.ok_or(StepRejection::Foreign)?.apply(at, supplement)?;
        if applied != StepEffect::Known {
            self.admit();
        }
        Ok(applied)
    }

    /// Applies steps of one mandate in order, up to the first without effect. Returns true if
    /// members may have changed, and the error of that step.
    pub fn supplements(
        &mut self,
        now: Time,
        unix_s: u64,
        steps: &[Supplement],
    ) -> (bool, Result<(), StepRejection>) {
        let at = self.unix_s(now, unix_s);
        let (mut changed, mut outcome) = (false, Ok(()));
        for step in steps {
            let register = self.registers.get_mut(&step.step().mandate);
            match register
                .ok_or(StepRejection::Foreign)
                .and_then(|register| register.apply(at, step))
            {
                Ok(applied) => changed |= applied != StepEffect::Known,
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

    /// Checks that [`Directory::supplement`] would accept this as the next step. Members don't
    /// change.
    ///
    /// Errors: the reason why not.
    pub fn check_supplement(
        &mut self,
        now: Time,
        unix_s: u64,
        supplement: &Supplement,
    ) -> Result<(), StepRejection> {
        let at = self.unix_s(now, unix_s);
        let register = self.registers.get_mut(&supplement.step().mandate);
        register.ok_or(StepRejection::Foreign)?.check(at, supplement)
    }

    /// Applies evidence of a fork: two steps of one mandate with one number.
    ///
    /// Errors: the steps are no such evidence.
    pub fn show_fork(&mut self, fork: [Supplement; 2]) -> Result<StepEffect, StepRejection> {
        let register = self.registers.get_mut(&fork[0].step().mandate);
        let applied = register.ok_or(StepRejection::Foreign)?.show_fork(fork)?;
        if applied != StepEffect::Known {
            self.admit();
        }
        Ok(applied)
    }

    /// Registers of the list's mandates, ascending by id.
    pub fn registers(&self) -> impl Iterator<Item = &Register> {
        self.registers.values()
    }

    /// The register of a mandate.
    pub fn register(&self, id: &MandateId) -> Option<&Register> {
        self.registers.get(id)
    }

    /// Computes the admitted members. The list takes precedence: a revoked key is no member, and
    /// names, keys, addresses and endpoints of the list are taken. Then come the registers of its
    /// mandates, and then those of registrars that others made; in each group the one with the
    /// smaller id. All nodes have the same order, whatever arrives first.
    fn admit(&mut self) {
        self.keep_delegated();
        self.admitted.clear();
        self.nameless.clear();
        let first = self.first_ids();
        let Some(content) = self.list.as_ref().map(List::content) else { return };
        let mut taken = UniqueClaims::default();
        for signed in &content.members {
            taken.reserve(&signed.member);
        }
        let (first, made): (Vec<_>, Vec<_>) =
            self.registers.values().partition(|register| first.contains(&register.id()));
        for member in first.into_iter().chain(made).flat_map(Register::members_by_age) {
            if !content.is_revoked(&member.key) && taken.take(member) {
                self.admitted.push(member.clone());
            }
        }
        self.aliases = aliases(content, &self.admitted);
        // The list has no order in time: its routers come first, then lower addresses.
        let mut all: Vec<&Member> = content.members.iter().map(|signed| &signed.member).collect();
        all.sort_by_key(|member| (!member.address.is_router(), member.address));
        let mut names = BTreeSet::new();
        for member in all.into_iter().chain(self.admitted.iter().map(|member| &**member)) {
            let shown = self.aliases.get(&member.key).unwrap_or(&member.name);
            if !names.insert(fold(shown)) {
                self.nameless.insert(member.key);
            }
        }
    }

    /// True if an earlier member has the name of this key's member, apart from case. The name then
    /// resolves to the earlier member only. Members of the list count as earlier than those of
    /// registers.
    pub fn is_nameless(&self, key: &PublicKey) -> bool {
        self.nameless.contains(key)
    }

    /// The name under which a member is shown: its own, or another one if an earlier member has
    /// exactly this name. Two registrars that give one name at once leave two such members.
    pub fn shown_name<'a>(&'a self, member: &'a Member) -> &'a str {
        self.aliases.get(&member.key).unwrap_or(&member.name)
    }

    /// The other name under which the member with this key is shown, if there is one.
    pub fn alias_of(&self, key: &PublicKey) -> Option<&str> {
        self.aliases.get(key).map(String::as_str)
    }

    /// The mandate whose registrar made the registrar with this mandate; `None` for a mandate of
    /// the list.
    pub fn parent_of(&self, id: &MandateId) -> Option<MandateId> {
        let is_first = self.first_ids().contains(id);
        let made = |r: &&Register| r.delegated().any(|mandate| mandate.id() == *id);
        self.registers().find(made).map(Register::id).filter(|_| !is_first)
    }

    /// True if the list itself has a member with this key, so that the authority vouches for its
    /// endpoint. Other members come from registrars.
    pub fn is_in_list(&self, key: &PublicKey) -> bool {
        self.versions.contains_key(key)
    }

    /// True if the address is one of the network's own: of hosts, or of networks behind them. No
    /// endpoint lies there, since packets to it would travel inside packets to it.
    pub fn is_inside(&self, ip: IpAddr) -> bool {
        let Some(content) = self.list.as_ref().map(List::content) else { return false };
        let ipv4 = content.mandates.iter().filter_map(|mandate| mandate.ipv4.as_ref());
        let behind = self.listed().flat_map(|member| &member.prefixes);
        content.overlay.iter().chain(ipv4).chain(behind).any(|prefix| prefix.holds(ip))
    }

    /// Endpoints of the registrar with this key, best first: the newest signed ones that lie
    /// outside the network. Empty if the list says none.
    pub fn door_of(&self, registrar: &PublicKey) -> Vec<DoorEndpoint> {
        let own = |register: &&Register| register.mandate().key == *registrar;
        let all = self.registers().find(own).map(Register::door).unwrap_or_default();
        let inside = |at: &DoorEndpoint| at.address().is_some_and(|at| self.is_inside(at.ip()));
        all.iter().filter(|at| !inside(at)).cloned().collect()
    }

    /// The last accepted list, fresh or not.
    pub fn list(&self) -> Option<&List> {
        self.list.as_ref()
    }

    /// Records the wall clock. Call this every few seconds: a clock that ran evenly for an hour is
    /// trusted, and setting it back makes nothing valid again.
    pub fn look(&mut self, now: Time, unix_s: u64) {
        self.reckoning.look(now, unix_s);
    }

    /// The time used for lists and members, in seconds since 1970.
    fn unix_s(&self, now: Time, unix_s: u64) -> u64 {
        self.reckoning.unix_s(now, unix_s)
    }

    /// Seconds by which the wall clock is behind the time used for lists and members.
    pub fn behind_s(&self, now: Time, unix_s: u64) -> u64 {
        self.unix_s(now, unix_s).saturating_sub(unix_s)
    }

    /// Age of the list in seconds.
    pub fn age_s(&self, now: Time, unix_s: u64) -> Option<u64> {
        let list = self.list.as_ref()?;
        Some(self.unix_s(now, unix_s).saturating_sub(list.content().issued_unix_s))
    }

    /// Freshness of the list.
    pub fn standing(&self, now: Time, unix_s: u64) -> Freshness {
        match self.age_s(now, unix_s) {
            None => Freshness::Missing,
            Some(age) if age >= self.staleness_max_s => Freshness::Stale,
            Some(_) => Freshness::Fresh,
        }
    }

    /// The members in force: the list's, then those of its mandates. Empty unless the list is
    /// fresh.
    pub fn members(&self, now: Time, unix_s: u64) -> impl Iterator<Item = &Member> {
        let fresh = self.standing(now, unix_s) == Freshness::Fresh;
        self.last_members(now, unix_s).filter(move |_| fresh)
    }

    /// Unexpired members of the newest list, even if the list is stale. A newer list may come from
    /// them. They have no other rights.
    pub fn last_members(&self, now: Time, unix_s: u64) -> impl Iterator<Item = &Member> {
        let at = self.unix_s(now, unix_s);
        let content = self.list.as_ref().map(List::content);
        let members = content.into_iter().flat_map(|content: &ListContent| &content.members);
        let members = members.filter(|signed| signed.unknown_critical().is_none());
        let members = members
            .map(|signed| &signed.member)
            .chain(self.admitted.iter().map(|member| &**member));
        members.filter(move |member| member.expires_unix_s > at)
    }

    /// All members of the newest list and its mandates, in force or not.
    pub fn listed(&self) -> impl Iterator<Item = &Member> {
        let content = self.list.as_ref().map(List::content);
        let members = content.into_iter().flat_map(|content: &ListContent| &content.members);
        members.map(|signed| &signed.member).chain(self.admitted.iter().map(|member| &**member))
    }

    /// Members that this version must ignore, since their descriptors have an unknown critical
    /// field; with the field's number.
    pub fn left_out(&self) -> impl Iterator<Item = (&Member, u16)> {
        let content = self.list.as_ref().map(List::content);
        let members = content.into_iter().flat_map(|content: &ListContent| &content.members);
        members.filter_map(|signed| Some((&signed.member, signed.unknown_critical()?)))
    }

    /// The policy in force; `None` unless the list is fresh.
    pub fn policy(&self, now: Time, unix_s: u64) -> Option<&Policy> {
        let fresh = self.standing(now, unix_s) == Freshness::Fresh;
        self.list.as_ref().filter(|_| fresh).map(List::policy)
    }

    /// Time until the members in force change, unless another list comes or the wall clock is set.
    pub fn next_change(&self, now: Time, unix_s: u64) -> Option<Duration> {
        if self.standing(now, unix_s) != Freshness::Fresh {
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

/// Other names for admitted members of which an earlier one has exactly the same name. A number is
/// appended, so that no look-up of a name leads to the later member by mistake.
fn aliases(content: &ListContent, admitted: &[Arc<Member>]) -> BTreeMap<PublicKey, String> {
    let mut names: BTreeSet<&str> = BTreeSet::new();
    let twins: Vec<_> = admitted.iter().filter(|member| !names.insert(&member.name)).collect();
    if twins.is_empty() {
        return BTreeMap::new();
    }
    let listed = content.members.iter().map(|signed| &signed.member);
    let all = listed.chain(admitted.iter().map(|member| &**member));
    let mut used: BTreeSet<String> = all.map(|member| fold(&member.name)).collect();
    let (mut aliases, mut numbers) = (BTreeMap::new(), NameNumbers::default());
    for twin in twins {
        if let Some(name) = numbers.number(&twin.name, |name| used.contains(&fold(name))) {
            used.insert(fold(&name));
            aliases.insert(twin.key, name);
        }
    }
    aliases
}

/// Keys, addresses and endpoints in use, and the names of the list.
#[derive(Default)]
struct UniqueClaims<'a> {
    names: BTreeSet<&'a str>,
    halves: BTreeSet<[u8; 32]>,
    addresses: BTreeSet<Address>,
    ipv4s: BTreeSet<Ipv4Addr>,
    endpoints: BTreeSet<SocketAddr>,
}

impl<'a> UniqueClaims<'a> {
    /// Reserves a member's key, addresses and endpoint. Returns false if one is already in use, or
    /// if a member of the list has the name.
    fn take(&mut self, member: &'a Member) -> bool {
        let Member { name, key, ipv4, endpoint, .. } = member;
        let has = self.names.contains(name.as_str())
            || self.halves.contains(&key.dh)
            || member.addresses().iter().any(|address| self.addresses.contains(&address))
            || ipv4.is_some_and(|ipv4| self.ipv4s.contains(&ipv4))
            || endpoint.is_some_and(|at| self.endpoints.contains(&at));
        if !has {
            self.reserve_rest(member);
        }
        !has
    }

    /// Reserves what a member has, even if some of it is in use: two members of the list may have
    /// one endpoint.
    fn reserve(&mut self, member: &'a Member) {
        self.names.insert(&member.name);
        self.reserve_rest(member);
    }

    fn reserve_rest(&mut self, member: &'a Member) {
        let Member { key, ipv4, endpoint, .. } = member;
        self.halves.insert(key.dh);
        self.addresses.extend(member.addresses().iter());
        self.ipv4s.extend(ipv4);
        self.endpoints.extend(endpoint);
    }
}

#[cfg(test)]
mod tests;
