//! The authority's list in this node: who is a member now, and what each may begin.
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
    Access, Carrier, CircuitMode, Directory, Exchange, List, Mark, Member, Policy, Prefix, Refused,
    Rights as Right,
};
use shoal_edge::HostId;
use shoal_wire::Time;

use crate::config::{Config, LinkPeer, Links, keys};
use crate::control::api::LedgerEnd;
use crate::control::journal;
use crate::membership::chains::{ChainFile, Supplements};
use crate::membership::hosts::{Host, Hosts};
use crate::membership::known;
use crate::membership::ledger_end::LedgerMemory;
use crate::membership::secrets::{SecretFiles, Secrets};
use crate::membership::seen::Seen;
use crate::membership::staleness::{self, Age, Reminder};
use crate::membership::watch::{self, Kept, News, Stamp, Watcher};
use crate::tun::interface::Interface;
use crate::tun::names::Names;
use crate::worker::clock::unix_ms;
use crate::worker::wake::Outlet;

/// The wall clock may be set at any time, so it is looked at this often.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// A list of the authority, read at the start.
pub struct Reading {
    /// The authority's key.
    pub key: VerifyKey,
    /// Where the list is.
    pub file: PathBuf,
    /// State of the file when it was read.
    pub stamp: Option<Stamp>,
    /// What it said.
    pub list: List,
    /// What this node keeps for its next start.
    pub kept: Kept,
    /// The newest list that was seen before.
    pub mark: Option<Mark>,
    /// The list is one that a neighbour passed on in an earlier run.
    pub from_neighbour: bool,
    /// Why a list that was kept from a neighbour can't be read, if there is one.
    pub fault: Option<String>,
    /// Registrars' supplements that were kept, in the order of their chains; nothing about them is
    /// known.
    pub steps: Vec<Vec<u8>>,
    /// Why not all that was kept of them can be read.
    pub steps_fault: Option<String>,
    /// Secrets of the network that were kept, and why they can't be read.
    pub secrets: (Vec<NetworkSecret>, Option<String>),
}

impl Reading {
    /// Reads the list that `config` names; none without an authority. `user` as for
    /// [`keys::load_identity_for`].
    pub fn load(config: &Config, user: Option<u32>) -> Option<Result<Reading, String>> {
        let section = config.authority.as_ref()?;
        let (key, file) = (section.key?.0, section.list_file.as_ref()?);
        let file = config.path(file);
        let stamp = Stamp::of(&file);
        let seen = Seen::new(config.path(&section.seen_file), key);
        let chains = ChainFile::new(config.path(&section.chains_file()));
        let secrets = SecretFiles {
            kept: config.path(&section.secrets_file()),
            next: keys::next_key_file(&config.path(&config.node.network_secret_file)),
        };
        let kept = Kept { seen, file: config.path(&section.kept_file()), chains, secrets };
        let reading = kept.seen.read().and_then(|mark| {
            let list = watch::read(&file, &key)?;
            let (from_neighbour, fault) = (false, None);
            let (steps, steps_fault) = kept.chains.read();
            let secrets = known::read_kept(&kept.secrets.kept, user);
            let reading = Reading {
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

    /// Takes the list that was kept from a neighbour instead, if that is the newer one.
    fn or_kept(mut self) -> Reading {
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

    /// The file that the list is from.
    pub fn source(&self) -> &Path {
        if self.from_neighbour { &self.kept.file } else { &self.file }
    }
}

/// The authority as this node knows it.
pub struct Authority {
    pub(crate) directory: Directory,
    key: VerifyKey,
    file: PathBuf,
    stamp: Option<Stamp>,
    pub(super) me: Host,
    /// Every `[[link]]` of the configuration, including those to nodes that are no members in
    /// force.
    pub(super) links: Vec<LinkPeer>,
    /// Which neighbours follow from the list.
    pub(super) accept: Links,
    /// Version of the list; how many members are in force; how many nodes have links that carry
    /// nothing but lists.
    pub(super) in_force: (u64, usize, usize),
    reminder: Reminder,
    look_at: Time,
    pub(crate) refused: Option<String>,
    /// How many lists were refused.
    pub(crate) refusals: u64,
    pub(super) max_staleness_s: u64,
    /// The list in force came from a neighbour.
    pub(super) from_neighbour: bool,
    /// Passes lists on, if this node does.
    pub(crate) exchange: Option<Exchange>,
    /// What came from a neighbour and waits for the thread that checks it.
    pub(crate) unchecked: Option<Vec<u8>>,
    /// Refused lists from neighbours that are not yet counted as drops.
    pub(crate) bad: u64,
    kept: Kept,
    /// The kept files are not yet those of the list in force.
    unsaved: bool,
    /// Why the list that was kept can't be read.
    pub(super) fault: Option<String>,
    /// What registrars signed, and how it passes on.
    pub(crate) supplements: Supplements,
    /// The network's secrets.
    pub(crate) secrets: Secrets,
    /// The end of the ledger of the registrar beside this node.
    pub(crate) ledger: LedgerMemory,
    /// The thread that watches the list's file as long as this lives.
    pub(crate) watcher: Option<Watcher>,
}

pub(crate) fn unix_s() -> u64 {
    unix_ms() / 1_000
}

impl Authority {
    /// Takes in the list that was read at the start.
    ///
    /// Errors: it is refused (see [`Directory::accept`]).
    pub fn new(
        config: &Config,
        (key, secret): (PublicKey, NetworkSecret),
        reading: Reading,
        now: Time,
    ) -> Result<Authority, Refused> {
        let section = config.authority.as_ref();
        let max_staleness_s = section.map_or(0, |section| section.max_staleness_s);
        let pass_on = section.is_some_and(|section| section.pass_on);
        let ledger = section.map(|section| config.path(&section.ledger_end_file()));
        let ledger = ledger.unwrap_or_default();
        let mark = reading.mark;
        let mut directory = Directory::resume(Duration::from_secs(max_staleness_s), mark);
        directory.accept(now, unix_s(), reading.list)?;
        let steps = (reading.steps, reading.steps_fault);
        let secrets = Secrets::new(secret, reading.secrets, pass_on);
        let supplements = Supplements::load(&mut directory, (now, unix_s()), steps, pass_on);
        let me = Host {
            name: config.node.name.clone(),
            address: config.address(),
            key,
            endpoint: None,
            interface: config.interface.is_some(),
            ipv4: None,
            prefixes: Vec::new(),
            cover: None,
            security_groups: Vec::new(),
            carrier: Carrier::default(),
        };
        let mut authority = Authority {
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
            exchange: pass_on.then(Exchange::new),
            unchecked: None,
            bad: 0,
            unsaved: directory.mark() != mark,
            kept: reading.kept,
            fault: reading.fault,
            supplements,
            secrets,
            ledger: LedgerMemory::open(ledger),
            watcher: None,
            directory,
        };
        authority.look(now);
        authority.tell(now);
        Ok(authority)
    }

    /// Starts to watch the list's file; what is read goes to `outlet`.
    pub fn watch(&mut self, outlet: Outlet<News>) -> std::io::Result<()> {
        let (file, kept) = (self.file.clone(), self.kept.clone());
        let watcher = Watcher::start(file, self.key, self.stamp, kept, outlet)?;
        self.watcher = Some(watcher);
        self.save();
        Ok(())
    }

    /// Has the watcher's thread keep the newest list for after a restart.
    fn save(&mut self) {
        if let (true, Some(watcher), Some(mark)) =
            (self.unsaved, &self.watcher, self.directory.mark())
        {
            let list = self.directory.list().filter(|_| self.from_neighbour);
            self.unsaved = !watcher.keep(mark, list.map(List::shared));
        }
        self.save_steps();
    }

    /// Keeps the end of the registrar's ledger, also for after a restart. False if the thread that
    /// writes it is busy.
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

    /// Reads the list at once, as for a reload.
    ///
    /// Errors: it can't be read or is refused; the one in force stays.
    pub fn reread(&mut self, now: Time) -> anyhow::Result<()> {
        let read = watch::read(&self.file, &self.key);
        let known = self.directory.list().map_or(0, |list| list.content().version);
        if self.from_neighbour && read.as_ref().is_ok_and(|list| list.content().version < known) {
            // The file is older than the list in force, which neighbours passed on: no fault.
            return Ok(());
        }
        self.take(now, News::File(read));
        match &self.refused {
            Some(why) => anyhow::bail!("{why}"),
            None => Ok(()),
        }
    }

    /// Puts a list in force unless it is refused; says whether members may have changed.
    pub fn take(&mut self, now: Time, news: News) -> bool {
        let read = match news {
            News::File(read) => read,
            News::Neighbour(read) => return self.take_passed_on(now, read),
            News::Steps(checked) => {
                self.take_steps(now, checked);
                return self.is_apply_due(now);
            }
            News::KeptSecrets { new, is_written } => {
                self.take_kept_secret(now, new, is_written);
                return false;
            }
            News::NextSecret(read) => {
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
                let what = "the authority's list in force stays";
                let faults = std::slice::from_ref(&why);
                tracing::error!("{}", journal::unnamed(what, journal::STATUS, faults));
                self.refused = Some(why);
                self.refusals += 1;
                false
            }
        }
    }

    /// Notes a list that was accepted; says whether members may have changed.
    pub(crate) fn put_in_force(&mut self, now: Time, new: bool, from_neighbour: bool) -> bool {
        if new {
            (self.unsaved, self.from_neighbour) = (true, from_neighbour);
            self.tell(now);
            self.supplements.changed(now, &self.directory);
        }
        let looked = self.look(now);
        new || looked
    }

    /// Looks whether memberships began or ended; says whether members may have changed.
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
        // A deadline in whole seconds may be met a little early: then the next look finds it.
        self.look_at = now + next.clamp(Duration::from_millis(100), LOOK_EVERY);
        std::mem::replace(&mut self.in_force, in_force) != in_force
    }

    /// When [`Authority::look`] should be called.
    pub fn poll_timeout(&self) -> Time {
        self.look_at
    }

    /// Whether the newest list, or a registrar by it, has this node, in force or not.
    pub(crate) fn has_me(&self) -> bool {
        self.directory.listed().any(|member| self.is_own(member))
    }

    pub(super) fn is_own(&self, member: &Member) -> bool {
        let Host { name, address, key, .. } = &self.me;
        member.name == *name && member.key == *key && member.address == *address
    }

    pub(super) fn own<'a>(
        &self,
        mut members: impl Iterator<Item = &'a Member>,
    ) -> Option<&'a Member> {
        members.find(|member| self.is_own(member))
    }

    /// Whether this node itself is a member in force.
    pub fn is_member(&self, now: Time) -> bool {
        self.own(self.directory.members(now, unix_s())).is_some()
    }

    /// Logs that the list grows old.
    fn remind(&mut self, now: Time) {
        let max_s = self.max_staleness_s;
        let Some(age_s) = self.directory.age_s(now, unix_s()) else { return };
        let age = Age::of(age_s, max_s);
        let words = staleness::words(age_s, max_s);
        // Before the watcher runs, the start logs it as a warning.
        let is_due = self.reminder.is_due(now, age, max_s) && self.watcher.is_some();
        if let (true, Some(words)) = (is_due, words) {
            match age {
                Age::Stale => tracing::error!("{words}"),
                _ => tracing::warn!("{words}"),
            }
        }
    }

    /// Neighbours whose links carry nothing but lists: members of the last list, while it is too
    /// old or this node's membership in it has expired. None while links lead to members in force,
    /// and where the last list does not have this node.
    pub fn linked(&self, now: Time) -> Option<Hosts> {
        if self.is_member(now) || !self.has_me() {
            return None;
        }
        let called: BTreeSet<&str> = self.links.iter().map(|link| link.peer.as_str()).collect();
        let members = self.directory.last_members(now, unix_s());
        let linked = members.filter(|member| {
            called.contains(member.name.as_str())
                || self.accept.admits(self.me.address, member.address)
        });
        let tiers = self.directory.list().map(|list| list.policy().tiers().clone());
        // With itself, since a schedule follows from both ends of a link, and goes on meanwhile.
        let me = self.own(self.directory.listed());
        let nodes = linked.chain(me).map(host);
        Some(Hosts::from_checked(nodes).with_tiers(tiers.unwrap_or_default()))
    }

    /// Why programs can reach nobody now, if the list's age is the reason.
    pub fn closed(&self, now: Time) -> Option<String> {
        let age_s = self.directory.age_s(now, unix_s())?;
        let is_stale = Age::of(age_s, self.max_staleness_s) == Age::Stale;
        is_stale.then(|| staleness::words(age_s, self.max_staleness_s))?
    }

    /// Whom this node may know: the members in force, if it is one of them, else itself.
    pub fn hosts(&self, now: Time) -> Hosts {
        let members = || self.directory.members(now, unix_s());
        if self.own(members()).is_none() {
            return Hosts::from_checked([self.me.clone()]);
        }
        let policy = self.directory.policy(now, unix_s());
        let mixes = policy.map(Policy::mixes).cloned().unwrap_or_default();
        let tiers = policy.map(Policy::tiers).cloned().unwrap_or_default();
        let members = members().map(|m| (host(m), !self.directory.is_nameless(&m.key)));
        Hosts::from_members(members).with_mixes(mixes).with_tiers(tiers)
    }

    /// Notes the links of a configuration that was read again; returns those before.
    pub fn set_links(&mut self, links: Vec<LinkPeer>, accept: Links) -> (Vec<LinkPeer>, Links) {
        let before = std::mem::replace(&mut self.links, links);
        (before, std::mem::replace(&mut self.accept, accept))
    }

    /// `config` with the links that lead to `hosts` and that this node may have (`misplaced`).
    pub fn effective(&self, config: &Config, hosts: &Hosts) -> Config {
        let leads = |link: &&LinkPeer| {
            let peer = hosts.by_name(&link.peer);
            peer.is_some_and(|peer| crate::config::misplaced(config, peer).is_none())
        };
        let links: Vec<_> = self.links.iter().filter(leads).cloned().collect();
        Config { links: config.all_links(&links, hosts), ..config.clone() }
    }

    /// What members and this node may begin with each other.
    pub fn rights(&self, now: Time, names: &Names) -> Rights {
        let mut rights = Rights::default();
        let members = || self.directory.members(now, unix_s());
        let (Some(policy), Some(me)) = (self.directory.policy(now, unix_s()), self.own(members()))
        else {
            return rights;
        };
        // Members with the same groups have the same rights.
        let mut known = BTreeMap::new();
        for member in members() {
            let Some(id) = names.host_id(&member.name) else { continue };
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

    /// That prefix, as interfaces have it.
    pub fn network(&self) -> Option<shoal_ip::Prefix> {
        match self.overlay()?.ip() {
            IpAddr::V6(address) => Some(shoal_ip::network_prefix(address)),
            IpAddr::V4(_) => None,
        }
    }

    /// This node's IPv4 address by the newest list, in force or not: a node that starts with a list
    /// that is too old gives it to its interface, since it can't later.
    pub fn own_ipv4(&self) -> Option<Ipv4Addr> {
        self.own(self.directory.listed())?.ipv4
    }

    /// What the list says of addresses that the interface did not start with.
    pub(crate) fn readdressed(&self, interface: &Interface) -> Option<String> {
        let prefix = interface.prefix();
        let ours = Prefix::new(prefix.address.into(), prefix.bits);
        let moved = self.overlay().is_some() && self.overlay() != ours;
        (moved || self.own_ipv4() != interface.listed_ipv4()).then(|| {
            "the authority's list gives this node another address than its interface has: restart \
             the node"
                .to_owned()
        })
    }

    /// Names of the hosts with which policy requires circuits.
    pub fn hidden(&self, now: Time) -> BTreeSet<String> {
        let members = || self.directory.members(now, unix_s());
        let (Some(policy), Some(me)) = (self.directory.policy(now, unix_s()), self.own(members()))
        else {
            return BTreeSet::new();
        };
        let hidden = members().filter(|other| policy.circuits(me, other) == CircuitMode::Require);
        hidden.map(|other| other.name.clone()).collect()
    }

    /// Whether the last list has a host of this name, in force or not.
    pub fn has_host(&self, name: &str) -> bool {
        self.directory.listed().any(|member| member.name == name && !member.address.is_router())
    }
}

/// A member as an entry of a list of hosts.
fn host(member: &Member) -> Host {
    Host {
        name: member.name.clone(),
        address: member.address,
        key: member.key,
        endpoint: member.endpoint,
        interface: member.interface,
        ipv4: member.ipv4,
        prefixes: member.prefixes.clone(),
        cover: member.cover.clone(),
        security_groups: member.security_groups.clone(),
        carrier: member.carrier.clone(),
    }
}

/// What hosts may begin with this node, and this node with them.
#[derive(Debug, Default)]
pub struct Rights {
    to_us: BTreeMap<HostId, Arc<Access>>,
    from_us: BTreeMap<HostId, Arc<Access>>,
}

impl Rights {
    /// What each host may begin.
    pub fn to_us(&self) -> &BTreeMap<HostId, Arc<Access>> {
        &self.to_us
    }

    /// The hosts that may begin anything with this node, or this node with them.
    pub fn partners(&self) -> impl Iterator<Item = HostId> {
        let all = self.to_us.iter().chain(&self.from_us);
        all.filter(|(_, access)| !access.is_nothing()).map(|(id, _)| *id)
    }

    /// Whether `host` may begin what `right` covers with this node.
    pub fn may_they(&self, host: HostId, right: Right) -> bool {
        self.to_us.get(&host).is_some_and(|access| access.has(right))
    }

    /// Whether this node may begin what `right` covers with `host`.
    pub fn may_we(&self, host: HostId, right: Right) -> bool {
        self.from_us.get(&host).is_some_and(|access| access.has(right))
    }
}
