//! The authority's list in this node: the current members, and what each may begin.
//!
//! ```text
//! watch, neighbours -> take -> Directory -> hosts: names, keys, addresses   -> links and sessions
//!                            -> rights: policy between members  -> firewall, pings, files
//! ```
//!
//! Invariant: only what the authority signed counts. Without a fresh list that has this node as a
//! member, the node knows nobody but itself.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use shoal_crypto::{NetworkSecret, PublicKey, VerifyKey};
use shoal_directory::{
    Access, CircuitMode, CircuitRole, Directory, List, ListExchange, ListMark, ListRejection,
    Member, NetworkPreset, Policy, Prefix, TrafficKind as Right,
};
use shoal_edge::HostId;
use shoal_wire::Time;

use crate::config::{LinkPeer, LinksConfig, NodeConfig, keys};
use crate::control::api::LedgerEnd;
use crate::control::journal;
use crate::membership::chains::{ChainFile, Supplements};
use crate::membership::hosts::{HostList, ListedHost};
use crate::membership::known;
use crate::membership::ledger_end::LedgerMemory;
use crate::membership::removed::RemovalLog;
use crate::membership::secrets::{SecretFiles, SecretStore};
use crate::membership::seen::ListMarkFile;
use crate::membership::staleness::{self, ListAge, Reminder};
use crate::membership::watch::{self, FileStamp, StateFiles, Watcher, WatcherEvent};
use crate::tun::interface::VirtualInterface;
use crate::tun::names::NodeNames;
use crate::worker::clock::unix_ms;
use crate::worker::wake::WakingOutlet;

/// Longest time between two checks. The wall clock may be set at any time.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// A list of the authority, read at the start.
pub struct StartupList {
    pub key: VerifyKey,
    pub file: PathBuf,
    /// State of the file when it was read.
    pub stamp: Option<FileStamp>,
    pub list: List,
    /// Files in which this node stores state for its next start.
    pub kept: StateFiles,
    /// The newest list that an earlier run accepted.
    pub mark: Option<ListMark>,
    /// True if a neighbour passed this list on in an earlier run.
    pub from_neighbour: bool,
    /// Reason why a stored list of a neighbour can't be read.
    pub fault: Option<String>,
    /// Stored supplements of registrars, in the order of their chains. Nothing about them is
    /// checked.
    pub steps: Vec<Vec<u8>>,
    /// Reason why some stored supplements can't be read.
    pub steps_fault: Option<String>,
    /// Stored secrets of the network, and the reason if they can't be read.
    pub secrets: (Vec<NetworkSecret>, Option<String>),
}

impl StartupList {
    /// Reads the list that `config` names; none without an authority. `user` is passed to
    /// [`keys::load_identity_for`].
    pub fn load(config: &NodeConfig, user: Option<u32>) -> Option<Result<StartupList, String>> {
        let section = config.authority.as_ref()?;
        let (key, file) = (section.key?.0, section.list_file.as_ref()?);
        let file = config.path(file);
        let stamp = FileStamp::of(&file);
        let seen = ListMarkFile::new(config.path(&section.seen_file), key);
        let chains = ChainFile::new(config.path(&section.chains_file()));
        let secrets = SecretFiles {
            kept: config.path(&section.secrets_file()),
            next: keys::next_key_file(&config.path(&config.node.network_secret_file)),
        };
        let kept = StateFiles { seen, file: config.path(&section.kept_file()), chains, secrets };
        let reading = kept.seen.read().and_then(|mark| {
            let list = watch::read(&file, &key)?;
            let (from_neighbour, fault) = (false, None);
            let (steps, steps_fault) = kept.chains.read();
            let secrets = known::read_kept(&kept.secrets.kept, user);
            let reading = StartupList {
                key,
                file,
                stamp,
                list,
                kept,
                mark,
                from_neighbour,
                fault,
                steps,
                steps_fault,
                secrets,
            };
            Ok(reading.or_kept())
        });
        Some(reading)
    }

    /// Replaces the list by the stored one of a neighbour, if that is newer.
    fn or_kept(mut self) -> StartupList {
        if !self.kept.file.exists() || self.kept.file == self.file {
            return self;
        }
        match watch::read(&self.kept.file, &self.key) {
            Ok(list) if list.content().version > self.list.content().version => {
                (self.list, self.from_neighbour) = (list, true);
            }
            Ok(_) => {}
            // The reason may name members, and faults found at the start are logged.
            Err(why) => {
                tracing::debug!("{why}");
                self.fault = Some(format!(
                    "{}: the list that was kept there does not count: remove the file",
                    self.kept.file.display()
                ));
            }
        }
        self
    }

    /// The file from which the list was read.
    pub fn source(&self) -> &Path {
        if self.from_neighbour { &self.kept.file } else { &self.file }
    }
}

/// The authority as this node knows it.
pub struct AuthorityState {
    pub(crate) directory: Directory,
    key: VerifyKey,
    file: PathBuf,
    stamp: Option<FileStamp>,
    pub(super) me: ListedHost,
    /// Every `[[link]]` of the configuration, including links to nodes that are no members in
    /// force.
    pub(super) links: Vec<LinkPeer>,
    /// Neighbours that the list adds to the links of the configuration.
    pub(super) accept: LinksConfig,
    /// Version of the list, number of members in force, and number of nodes whose links carry only
    /// lists.
    pub(super) in_force: (u64, usize, usize),
    reminder: Reminder,
    look_at: Time,
    pub(crate) refused: Option<String>,
    pub(crate) refusals: u64,
    pub(super) max_staleness_s: u64,
    /// True if the list in force came from a neighbour.
    pub(super) from_neighbour: bool,
    /// Exchange of lists with neighbours; none if this node passes no lists on.
    pub(crate) exchange: Option<ListExchange>,
    /// Bytes of a neighbour's list that wait for the checking thread.
    pub(crate) unchecked: Option<Vec<u8>>,
    /// Refused lists from neighbours that are not yet counted as drops.
    pub(crate) bad: u64,
    kept: StateFiles,
    /// True if the list in force is newer than the stored files.
    unsaved: bool,
    /// Reason why the stored list can't be read.
    pub(super) fault: Option<String>,
    /// Registrars' supplements, and their exchange with neighbours.
    pub(crate) supplements: Supplements,
    pub(crate) secrets: SecretStore,
    /// Members that have vanished.
    pub(super) removals: RemovalLog,
    /// End of the ledger of the registrar on this machine.
    pub(crate) ledger: LedgerMemory,
    /// Thread that watches the list's file until this value is dropped.
    pub(crate) watcher: Option<Watcher>,
}

pub(crate) fn unix_s() -> u64 {
    unix_ms() / 1_000
}

impl AuthorityState {
    /// Takes the list that was read at the start.
    ///
    /// Errors: the list is refused (see [`Directory::accept`]).
    pub fn new(
        config: &NodeConfig,
        (key, secret): (PublicKey, NetworkSecret),
        reading: StartupList,
        now: Time,
    ) -> Result<AuthorityState, ListRejection> {
        let section = config.authority.as_ref();
        let max_staleness_s = section.map_or(0, |section| section.max_staleness_s);
        let pass_on = section.is_some_and(|section| section.pass_on);
        let ledger = section.map(|section| config.path(&section.ledger_end_file()));
        let ledger = ledger.unwrap_or_default();
        let mark = reading.mark;
        let mut directory = Directory::resume(Duration::from_secs(max_staleness_s), mark);
        directory.accept(now, unix_s(), reading.list)?;
        let steps = (reading.steps, reading.steps_fault);
        let secrets = SecretStore::new(secret, reading.secrets, pass_on);
        let supplements = Supplements::load(&mut directory, (now, unix_s()), steps, pass_on);
        let me = ListedHost {
            name: config.node.name.clone(),
            address: config.address(),
            second: None,
            key,
            endpoint: None,
            interface: config.interface.is_some(),
            ipv4: None,
            prefixes: Vec::new(),
            cover: None,
            security_groups: Vec::new(),
            carrier: CircuitRole::default(),
            by_registrar: false,
        };
        let mut authority = AuthorityState {
            key: reading.key,
            file: reading.file,
            stamp: reading.stamp,
            me,
            links: config.links.clone(),
            accept: config.accept.clone(),
            in_force: (0, 0, 0),
            reminder: Reminder::default(),
            look_at: now,
            refused: None,
            refusals: 0,
            max_staleness_s,
            from_neighbour: reading.from_neighbour,
            exchange: pass_on.then(ListExchange::new),
            unchecked: None,
            bad: 0,
            unsaved: directory.mark() != mark,
            kept: reading.kept,
            fault: reading.fault,
            supplements,
            secrets,
            removals: RemovalLog::default(),
            ledger: LedgerMemory::open(ledger),
            watcher: None,
            directory,
        };
        authority.look(now);
        authority.tell(now);
        Ok(authority)
    }

    /// Starts to watch the list's file. New content goes to `outlet`.
    pub fn watch(&mut self, outlet: WakingOutlet<WatcherEvent>) -> std::io::Result<()> {
        let (file, kept) = (self.file.clone(), self.kept.clone());
        let watcher = Watcher::start(file, self.key, self.stamp, kept, outlet)?;
        self.watcher = Some(watcher);
        self.save();
        Ok(())
    }

    /// Asks the watcher's thread to store the newest list for the next start.
    fn save(&mut self) {
        if let (true, Some(watcher), Some(mark)) =
            (self.unsaved, &self.watcher, self.directory.mark())
        {
            let list = self.directory.list().filter(|_| self.from_neighbour);
            self.unsaved = !watcher.keep(mark, list.map(List::shared));
        }
        self.save_steps();
    }

    /// Remembers the end of the registrar's ledger, and stores it for the next start. False if the
    /// thread that writes it is busy.
    ///
    /// Errors: the end is damaged.
    pub(crate) fn keep_ledger(&mut self, end: &LedgerEnd) -> Result<bool, String> {
        let Some(text) = self.ledger.check(end)? else { return Ok(true) };
        let watcher = self.watcher.as_ref();
        let kept = watcher.is_some_and(|watcher| watcher.keep_ledger(self.ledger.file(), text));
        if kept {
            self.ledger.set(end.clone());
        }
        Ok(kept)
    }

    /// Reads the list's file at once, for a reload.
    ///
    /// Errors: the file can't be read, or its list is refused. The list in force stays.
    pub fn reread(&mut self, now: Time) -> anyhow::Result<()> {
        let read = watch::read(&self.file, &self.key);
        let known = self.directory.list().map_or(0, |list| list.content().version);
        if self.from_neighbour && read.as_ref().is_ok_and(|list| list.content().version < known) {
            // Neighbours passed on a newer list than the file holds: no fault.
            return Ok(());
        }
        self.take(now, WatcherEvent::File(read));
        match &self.refused {
            Some(why) => anyhow::bail!("{why}"),
            None => Ok(()),
        }
    }

    /// Puts a list in force unless it is refused. True if members may have changed.
    pub fn take(&mut self, now: Time, news: WatcherEvent) -> bool {
        let read = match news {
            WatcherEvent::File(read) => read,
            WatcherEvent::Neighbour(read) => return self.take_passed_on(now, read),
            WatcherEvent::Steps(checked) => {
                self.take_steps(now, checked);
                return self.is_apply_due(now);
            }
            WatcherEvent::KeptSecrets { new, is_written } => {
                self.take_kept_secret(now, new, is_written);
                return false;
            }
            WatcherEvent::NextSecret(read) => {
                self.take_offered_secret(now, read);
                return false;
            }
        };
        let taken = read.and_then(|list| {
            let taken = self.directory.accept(now, unix_s(), list);
            taken.map_err(|refused| format!("{}: {refused}", self.file.display()))
        });
        match taken {
            Ok(new) => {
                self.refused = None;
                self.put_in_force(now, new, false)
            }
            Err(why) => {
                let what = "the authority's new list is refused, and the list in force stays";
                let faults = std::slice::from_ref(&why);
                tracing::error!("{}", journal::unnamed(what, journal::STATUS, faults));
                self.refused = Some(why);
                self.refusals += 1;
                false
            }
        }
    }

    /// Notes a list that was accepted. True if members may have changed.
    pub(crate) fn put_in_force(&mut self, now: Time, new: bool, from_neighbour: bool) -> bool {
        if new {
            (self.unsaved, self.from_neighbour) = (true, from_neighbour);
            self.tell(now);
            self.supplements.changed(now, &self.directory);
        }
        let looked = self.look(now);
        new || looked
    }

    /// Checks whether memberships began or ended. True if members may have changed.
    pub fn look(&mut self, now: Time) -> bool {
        self.save();
        let unix_s = unix_s();
        self.directory.look(now, unix_s);
        let version = self.directory.list().map_or(0, |list| list.content().version);
        let members = self.directory.members(now, unix_s).count();
        let in_force = (version, members, self.linked(now).map_or(0, |linked| linked.len()));
        self.look_at_secrets(now);
        self.remind(now);
        let next = self.directory.next_change(now, unix_s).unwrap_or(LOOK_EVERY);
        // A deadline in whole seconds may be met a little early: the next check finds the change.
        self.look_at = now + next.clamp(Duration::from_millis(100), LOOK_EVERY);
        std::mem::replace(&mut self.in_force, in_force) != in_force
    }

    /// Time of the next call of [`AuthorityState::look`].
    pub fn poll_timeout(&self) -> Time {
        self.look_at
    }

    /// True if the newest list, or a registrar's supplement under it, names this node, even if the
    /// membership is not in force.
    pub(crate) fn has_me(&self) -> bool {
        self.directory.listed().any(|member| self.is_own(member))
    }

    pub(super) fn is_own(&self, member: &Member) -> bool {
        let ListedHost { name, address, key, .. } = &self.me;
        member.name == *name && member.key == *key && member.address == *address
    }

    pub(super) fn own<'a>(
        &self,
        mut members: impl Iterator<Item = &'a Member>,
    ) -> Option<&'a Member> {
        members.find(|member| self.is_own(member))
    }

    /// True if this node is a member in force.
    pub fn is_member(&self, now: Time) -> bool {
        self.own(self.directory.members(now, unix_s())).is_some()
    }

    /// Logs the age of a list that is half as old as allowed, or older.
    fn remind(&mut self, now: Time) {
        let max_s = self.max_staleness_s;
        let Some(age_s) = self.directory.age_s(now, unix_s()) else { return };
        let age = ListAge::of(age_s, max_s);
        let words = staleness::words(age_s, max_s);
        // Until the watcher runs, the age is logged with the warnings of the start.
        let is_due = self.reminder.is_due(now, age, max_s) && self.watcher.is_some();
        if let (true, Some(words)) = (is_due, words) {
            match age {
                ListAge::Stale => tracing::error!("{words}"),
                _ => tracing::warn!("{words}"),
            }
        }
    }

    /// Neighbours whose links carry only lists. While the last list is too old, or this node's
    /// membership in it has expired, these are members of that list. None while links lead to
    /// members in force, and if the last list does not name this node.
    pub fn linked(&self, now: Time) -> Option<HostList> {
        if self.is_member(now) || !self.has_me() {
            return None;
        }
        let called: BTreeSet<&str> = self.links.iter().map(|link| link.peer.as_str()).collect();
        let members = || self.directory.last_members(now, unix_s());
        let me = self.own(self.directory.listed());
        let mine = me.map_or(self.me.addresses(), Member::addresses);
        let near = self.accept.near_routers(mine.first, members().map(|m| m.address));
        let linked = members().filter(|member| {
            called.contains(self.shown_name(member))
                || self.accept.admits(mine, member.addresses(), &near)
        });
        let tiers = self.directory.list().map(|list| list.policy().tiers().clone());
        // This node is included: a link's cover schedule depends on both ends, and must continue
        // meanwhile.
        let nodes = linked.chain(me).map(|member| self.host(member));
        let linked = HostList::from_checked(nodes).with_tiers(tiers.unwrap_or_default());
        Some(linked.with_preset(self.preset()))
    }

    /// Reason why programs can reach nobody, if the list is too old.
    pub fn closed(&self, now: Time) -> Option<String> {
        let age_s = self.directory.age_s(now, unix_s())?;
        let is_stale = ListAge::of(age_s, self.max_staleness_s) == ListAge::Stale;
        is_stale.then(|| staleness::words(age_s, self.max_staleness_s))?
    }

    /// Nodes that this node may know: the members in force if this node is one of them, otherwise
    /// only itself.
    pub fn hosts(&self, now: Time) -> HostList {
        let members = || self.directory.members(now, unix_s());
        if self.own(members()).is_none() {
            return HostList::from_checked([self.me.clone()]).with_preset(self.preset());
        }
        let policy = self.directory.policy(now, unix_s());
        let mixes = policy.map(Policy::mixes).cloned().unwrap_or_default();
        let tiers = policy.map(Policy::tiers).cloned().unwrap_or_default();
        let members = members().map(|m| (self.host(m), !self.directory.is_nameless(&m.key)));
        let hosts = HostList::from_members(members).with_mixes(mixes).with_tiers(tiers);
        hosts.with_preset(self.preset())
    }

    /// The preset of the newest list. A list that is too old lowers nothing.
    pub fn preset(&self) -> Option<NetworkPreset> {
        self.directory.list()?.content().preset.clone()
    }

    /// Stores the links of a reloaded configuration, and returns the previous ones.
    pub fn set_links(
        &mut self,
        links: Vec<LinkPeer>,
        accept: LinksConfig,
    ) -> (Vec<LinkPeer>, LinksConfig) {
        let before = std::mem::replace(&mut self.links, links);
        (before, std::mem::replace(&mut self.accept, accept))
    }

    /// A copy of `config` whose links lead to `hosts` and fit this node's role (`misplaced`).
    pub fn effective(&self, config: &NodeConfig, hosts: &HostList) -> NodeConfig {
        let me = config.addresses(hosts);
        let leads = |link: &&LinkPeer| {
            let peer = hosts.by_name(&link.peer);
            peer.is_some_and(|peer| crate::config::misplaced(me, peer).is_none())
        };
        let links: Vec<_> = self.links.iter().filter(leads).cloned().collect();
        NodeConfig { links: config.all_links(&links, hosts), ..config.clone() }
    }

    /// Rights between the members and this node.
    pub fn rights(&self, now: Time, names: &NodeNames) -> HostRights {
        let mut rights = HostRights::default();
        let members = || self.directory.members(now, unix_s());
        let (Some(policy), Some(me)) = (self.directory.policy(now, unix_s()), self.own(members()))
        else {
            return rights;
        };
        // Members with equal groups have equal rights.
        let mut known = BTreeMap::new();
        for member in members() {
            let Some(id) = names.host_id(self.shown_name(member)) else { continue };
            let (to_us, from_us) = known.entry(&member.groups).or_insert_with(|| {
                (Arc::new(policy.access(member, me)), Arc::new(policy.access(me, member)))
            });
            rights.to_us.insert(id, to_us.clone());
            rights.from_us.insert(id, from_us.clone());
        }
        rights
    }

    /// The prefix of all hosts' IPv6 addresses, if the newest list states it.
    pub fn overlay(&self) -> Option<Prefix> {
        self.directory.list()?.content().overlay
    }

    /// The overlay prefix in the type that interfaces use.
    pub fn network(&self) -> Option<shoal_ip::Prefix> {
        match self.overlay()?.ip() {
            IpAddr::V6(address) => Some(shoal_ip::network_prefix(address)),
            IpAddr::V4(_) => None,
        }
    }

    /// This node's IPv4 address in the newest list, even if that list is too old. The interface
    /// gets its address only at the start, so a stale list counts there.
    pub fn own_ipv4(&self) -> Option<Ipv4Addr> {
        self.own(self.directory.listed())?.ipv4
    }

    /// Warning if the list gives this node other addresses than its interface got at the start.
    pub(crate) fn readdressed(&self, interface: &VirtualInterface) -> Option<String> {
        let prefix = interface.prefix();
        let ours = Prefix::new(prefix.address.into(), prefix.bits);
        let moved = self.overlay().is_some() && self.overlay() != ours;
        (moved || self.own_ipv4() != interface.listed_ipv4()).then(|| {
            "the authority's list gives this node another address than its interface has: restart \
             the node"
                .to_owned()
        })
    }

    /// Names of the hosts with which the policy requires circuits.
    pub fn hidden(&self, now: Time) -> BTreeSet<String> {
        let members = || self.directory.members(now, unix_s());
        let (Some(policy), Some(me)) = (self.directory.policy(now, unix_s()), self.own(members()))
        else {
            return BTreeSet::new();
        };
        let hidden = members().filter(|other| policy.circuits(me, other) == CircuitMode::Require);
        hidden.map(|other| self.shown_name(other).to_owned()).collect()
    }

    /// Converts a member to an entry of a list of hosts.
    fn host(&self, member: &Member) -> ListedHost {
        ListedHost {
            name: self.shown_name(member).to_owned(),
            address: member.address,
            second: member.second,
            key: member.key,
            endpoint: member.endpoint,
            interface: member.interface,
            ipv4: member.ipv4,
            prefixes: member.prefixes.clone(),
            cover: member.cover.clone(),
            security_groups: member.security_groups.clone(),
            carrier: member.carrier.clone(),
            by_registrar: !self.directory.is_in_list(&member.key),
        }
    }

    /// True if the last list has a host of this name, in force or not.
    pub fn has_host(&self, name: &str) -> bool {
        let is_it = |member: &Member| self.shown_name(member) == name;
        self.directory.listed().any(|member| is_it(member) && !member.address.is_router())
    }
}

/// Rights of hosts toward this node, and of this node toward them.
#[derive(Debug, Default)]
pub struct HostRights {
    to_us: BTreeMap<HostId, Arc<Access>>,
    from_us: BTreeMap<HostId, Arc<Access>>,
}

impl HostRights {
    /// Rights of each host toward this node.
    pub fn to_us(&self) -> &BTreeMap<HostId, Arc<Access>> {
        &self.to_us
    }

    /// The hosts that may begin anything with this node, or this node with them.
    pub fn partners(&self) -> impl Iterator<Item = HostId> {
        let all = self.to_us.iter().chain(&self.from_us);
        all.filter(|(_, access)| !access.is_nothing()).map(|(id, _)| *id)
    }

    /// True if `host` may use `right` with this node.
    pub fn may_they(&self, host: HostId, right: Right) -> bool {
        self.to_us.get(&host).is_some_and(|access| access.has(right))
    }

    /// True if this node may use `right` with `host`.
    pub fn may_we(&self, host: HostId, right: Right) -> bool {
        self.from_us.get(&host).is_some_and(|access| access.has(right))
    }
}
