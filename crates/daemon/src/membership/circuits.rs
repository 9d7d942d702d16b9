//! Circuit settings from lists of hosts: relays that circuits may use, and hosts that this host
//! reaches only over circuits.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use shoal_crypto::{PublicKey, Rng};
use shoal_directory::{CircuitMode, Mix, Mixes, fold};
use shoal_onion::path::{self, ListedRouter, PathRequest, RouterList, Vanguards};
use shoal_onion::pool::mixes;
use shoal_wire::{Address, Time};

use crate::config::{CircuitPolicy, NodeConfig, Preset, RELAYS_MIN};
use crate::control::circuits::RoundedCount;
use crate::control::journal;
use crate::files::reading;
use crate::membership::anonymity;
use crate::membership::authority::AuthorityState;
use crate::membership::cover;
use crate::membership::hosts::{HostList, ListedHost};
use crate::worker::clock::unix_ms;
use crate::worker::first::{FirstWorker, WorkerParts};

mod bound;
mod keeper;
mod met;

pub use bound::{BoundBy, MetName, RequiredHosts, day_unix_s, left_the_list};
use keeper::FileWriter;
pub use met::MetHostsFile;

/// Consequence of a guard file that can't be used.
const ANEW: &str = "this host chooses its guard anew";
/// Names in one warning.
const NAMED_MAX: usize = 8;
/// Longest guard file that is read, in bytes.
const GUARD_MAX: u64 = 4_096;

/// The routers of a list, with the properties by which paths are chosen.
pub fn routers(hosts: &HostList) -> RouterList {
    let mut behind = BTreeMap::<u32, u32>::new();
    for host in hosts.iter().filter(|host| !host.address.is_router()) {
        for address in host.addresses().iter() {
            *behind.entry(address.router).or_default() += 1;
        }
    }
    RouterList::new(hosts.iter().filter(|host| host.address.is_router()).map(|host| {
        let ListedHost { address, carrier, .. } = host;
        let router = ListedRouter {
            relay: carrier.relay,
            // Registrars count families folded, so another spelling is no other operator.
            family: carrier.family.as_deref().map(fold),
            capacity: carrier.capacity,
            hosts: behind.get(&address.router).copied().unwrap_or(0),
            mix: hosts.mix_of(host),
        };
        (*address, router)
    }))
}

/// Number of relays in each circuit of `config`'s node. A preset of the network outranks a file
/// that asks for fewer.
pub fn relays(config: &NodeConfig, hosts: &HostList) -> u8 {
    let least = match anonymity::in_force(config, hosts) {
        Preset::Fast => 1,
        Preset::Balanced | Preset::Hidden => RELAYS_MIN,
    };
    config.circuits.relays.max(least)
}

/// Limit for the mean delay that the relays of a circuit add, one way. With a preset there is none.
pub fn max_added(config: &NodeConfig, hosts: &HostList) -> Option<Duration> {
    let is_free = anonymity::in_force(config, hosts) == Preset::Fast;
    config.circuits.max_added().filter(|_| is_free)
}

/// Warnings about circuits from `config`'s node to a host: what they can't hide among these
/// routers. The path is not stored: any path shows what the network offers.
pub fn unhidden(
    config: &NodeConfig,
    hosts: &HostList,
    routers: &RouterList,
    to: Address,
) -> Vec<String> {
    let ask = PathRequest {
        from: config.address(),
        to,
        relays: relays(config, hosts),
        unix_s: unix_ms() / 1_000,
        failed: &[],
        beside: &[],
        doubtful: &[],
        also: &[],
    };
    match path::choose(routers, &ask, &mut Vanguards::default(), &mut Rng::new([0; 32])) {
        Ok(path) => path.warnings.iter().map(ToString::to_string).collect(),
        Err(none) => vec![none.to_string()],
    }
}

/// The nodes to which circuits may lead: relays and hosts.
fn nodes(hosts: &HostList) -> BTreeMap<Address, PublicKey> {
    let may = |host: &&ListedHost| !host.address.is_router() || host.carrier.relay;
    let all = |host: &ListedHost| {
        let key = host.key;
        host.addresses().iter().map(move |at| (at, key))
    };
    hosts.iter().filter(may).flat_map(all).collect()
}

/// Names of the hosts that `config`'s node reaches only over circuits: the stricter of the
/// network's list and the node's own file, each with its preset. While a name of the file is
/// [`unlisted`], all hosts count, since any of them may be the host meant.
pub fn hidden(
    config: &NodeConfig,
    hosts: &HostList,
    authority: Option<&AuthorityState>,
    now: Time,
) -> BTreeSet<String> {
    let is_everyone = !unlisted(config, hosts, authority).is_empty()
        || anonymity::in_force(config, hosts) != Preset::Fast;
    let asked = others(config, hosts)
        .filter(|host| is_everyone || config.circuits.mode(&host.name) == CircuitMode::Require);
    let asked = asked.map(|host| host.name.clone());
    listed(config, hosts, authority, now).into_iter().chain(asked).collect()
}

/// Names of the hosts with which the network's list requires circuits, by a rule or by its preset.
fn listed(
    config: &NodeConfig,
    hosts: &HostList,
    authority: Option<&AuthorityState>,
    now: Time,
) -> BTreeSet<String> {
    let listed = authority.map(|authority| authority.hidden(now));
    let me = hosts.by_name(&config.node.name);
    let is_listed = |host: &&ListedHost| match (&listed, me) {
        _ if hosts.preset() != Preset::Fast => true,
        (Some(listed), _) => listed.contains(&host.name),
        (None, Some(me)) => hosts.circuits().mode(me.party(), host.party()) == CircuitMode::Require,
        (None, None) => false,
    };
    others(config, hosts).filter(is_listed).map(|host| host.name.clone()).collect()
}

/// The other hosts. A router begins no circuits, so it has none.
fn others<'a>(config: &'a NodeConfig, hosts: &'a HostList) -> impl Iterator<Item = &'a ListedHost> {
    let is_other = |host: &&ListedHost| !host.address.is_router() && host.name != config.node.name;
    hosts.iter().filter(is_other).filter(|_| !config.is_router())
}

/// Names in `config` that require circuits but that no host of the list has: the host was renamed
/// or is no member. Members whose time is over, or has not come, are in the list.
pub fn unlisted<'a>(
    config: &'a NodeConfig,
    hosts: &HostList,
    authority: Option<&AuthorityState>,
) -> Vec<&'a str> {
    let section = &config.circuits;
    if config.is_router() || section.policy != CircuitPolicy::Require {
        return Vec::new();
    }
    let is_host = |name: &str| match authority {
        Some(authority) => authority.has_host(name),
        None => hosts.by_name(name).is_some_and(|host| !host.address.is_router()),
    };
    let names = section.peers.iter().flatten().map(String::as_str);
    names.filter(|name| !is_host(name)).collect()
}

/// Warning about names that are [`unlisted`].
pub fn unlisted_words(names: &[impl AsRef<str>]) -> Option<String> {
    let named: Vec<&str> = names.iter().take(NAMED_MAX).map(AsRef::as_ref).collect();
    let more = match names.len() - named.len() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    (!named.is_empty()).then(|| {
        format!(
            "[circuits] peers: no host in the list is called {}{more}: circuits are required with \
             everyone; correct peers and restart",
            named.join(" or ")
        )
    })
}

/// Warning that circuits of `config`'s node use no mixes, since each mix of the network adds more
/// delay than the node's file allows. A limit of 0 means that no mixes are wanted, and gives no
/// warning.
pub fn unmixed(config: &NodeConfig, offered: &Mixes) -> Option<String> {
    let section = &config.circuits;
    let most_ms = section.max_added_ms.filter(|ms| *ms > 0 && !config.is_router())?;
    let own = vec![None; section.relays.into()];
    let (_, warning) = mixes::choose(&own, &offered.offer(), section.max_added());
    warning?;
    let added = |mix: &Mix| mixes::mean(&vec![mix.strategy; section.relays.into()]);
    let least = offered.iter().min_by_key(|mix| added(mix))?;
    Some(format!(
        "[circuits] max_added_ms = {most_ms}: circuits of this host go without mixes, since over \
         {} relays each of the network's mixes adds more: set it to {} or more ({:?}), or to 0 for \
         no mixes",
        section.relays,
        added(least).as_nanos().div_ceil(1_000_000),
        least.name
    ))
}

/// Warning about settings of `[circuits]` in `config` that have no effect.
pub fn without_effect(config: &NodeConfig) -> Option<String> {
    let section = &config.circuits;
    let is_asked = section.policy == CircuitPolicy::Require;
    let text = match (config.is_router(), is_asked, &section.peers) {
        (true, true, _) => "policy: this node is a router, and circuits begin at hosts",
        (true, ..) if section.max_added_ms.is_some() => {
            "max_added_ms: this node is a router, and circuits begin at hosts"
        }
        (false, false, Some(_)) => {
            "peers: circuits with them are not required while policy is \"off\": write policy = \
             \"require\", or take peers out"
        }
        _ => return None,
    };
    Some(format!("[circuits] {text}"))
}

/// A node's state about circuits, beside its state machine.
pub struct CircuitRecords {
    /// Hosts with which circuits are required.
    pub(crate) required: RequiredHosts,
    /// Warning that circuits use no mixes (see [`unmixed`]).
    unmixed: Option<String>,
    /// True if nothing leaves, since the network can't hold its preset.
    pub(crate) is_closed: bool,
    /// The network's preset when the list was last applied.
    preset: Preset,
    /// Number of open circuits, in the precision shown to users.
    pub(crate) open: RoundedCount,
    /// Hosts that were met over circuits.
    pub(crate) met: MetHostsFile,
    /// Threads that write the guard's file and the file of met hosts; none on a router.
    keepers: Option<[FileWriter; 2]>,
}

impl CircuitRecords {
    /// Reads the guard's file. On a host, starts the threads that write it and the file of met
    /// hosts. Returns the guard and the keys of met hosts, oldest first. Faults of the file or the
    /// configuration are added to `warnings`.
    ///
    /// # Errors
    /// [`GuardFile::read`] fails, or a thread can't be started.
    pub fn start(
        config: &NodeConfig,
        hosts: &HostList,
        met: MetHostsFile,
        warnings: &mut Vec<String>,
    ) -> Result<(CircuitRecords, (Vanguards, Vec<PublicKey>))> {
        warnings.extend(without_effect(config));
        let kept = GuardFile::read(config, hosts, warnings)?;
        let start = |(name, file, lost)| {
            let keeper = FileWriter::start(name, config.path(file), lost);
            keeper.context("can't start the thread that writes a file of circuits")
        };
        let keepers = match config.is_router() {
            true => None,
            false => Some([
                start(("shoal-guard", &config.circuits.guard_file, GuardFile::LOST))?,
                start(("shoal-met", &config.circuits.met_file(), met::LOST))?,
            ]),
        };
        let (required, unmixed, is_closed) = (RequiredHosts::default(), None, false);
        let preset = hosts.preset();
        let (open, known) =
            (RoundedCount::default(), (kept, met.hosts().iter().map(|host| host.key).collect()));
        Ok((CircuitRecords { required, unmixed, is_closed, preset, open, met, keepers }, known))
    }

    /// Reason why a host is reached only over circuits. Ask for no other hosts.
    pub(crate) fn bound_by(&self, host: &ListedHost) -> BoundBy {
        let met = || BoundBy::Met(self.met.find(&host.key).and_then(|met| met.since));
        self.required.by(&host.name).unwrap_or_else(met)
    }

    /// Takes hosts out of the file of met hosts, and waits for the disk: only the owner's rare
    /// command calls this. Returns the reason if the file can't be written.
    pub(crate) fn forget(&mut self, keys: &[PublicKey]) -> Option<String> {
        let is_changed = self.met.forget(keys) > 0;
        let [_, keeper] = self.keepers.as_mut()?;
        // After a fault the file may still have hosts that were forgotten before.
        let is_needed = is_changed || keeper.fault().is_some();
        if is_needed { keeper.write_now(self.met.text()) } else { None }
    }

    /// Keys of the hosts that stay hidden without the network's former preset: circuits with them
    /// are required, or their own files asked for circuits, so that they are in the file of met
    /// hosts. Keys count, since hosts may have left the list or changed their names meanwhile.
    fn kept(&self, newer: &RequiredHosts, hosts: &HostList) -> Vec<PublicKey> {
        let required = newer.hidden.iter().filter_map(|name| hosts.by_name(name));
        let met = self.met.hosts().iter().map(|host| host.key);
        required.map(|host| host.key).chain(met).collect()
    }

    /// True if a host that was met just now is written to the file of met hosts. Hosts with which
    /// the list requires circuits are not. `host` is none for one that the list lacks.
    fn is_noted(&self, host: Option<&ListedHost>) -> bool {
        let is_listed = host.is_some_and(|host| self.required.listed.contains(&host.name));
        self.preset == Preset::Fast && !is_listed
    }

    /// Warnings for the operator: this node's file and the list do not fit each other, or too many
    /// hosts were met.
    pub(crate) fn warnings(&self) -> impl Iterator<Item = String> {
        unlisted_words(&self.required.unlisted)
            .into_iter()
            .chain(self.unmixed.clone())
            .chain(self.met.warning())
    }

    /// Errors of writing the guard's file or the file of met hosts.
    pub fn faults(&self) -> impl Iterator<Item = String> {
        self.keepers.iter().flatten().filter_map(FileWriter::fault)
    }
}

/// The file in which a host stores its guard.
pub struct GuardFile;

impl GuardFile {
    /// Consequence of a file that can't be written, and what to do.
    const LOST: &str = "a restart chooses another guard, and each choice is a chance for an \
                        attacker who runs a relay; set [circuits] guard_file to a place that this \
                        node's user may write";

    /// Reads the file of a host. If it is missing or damaged, the host chooses a new guard. Faults
    /// are added to `warnings`.
    ///
    /// # Errors
    /// The file has other content, which the guard must not overwrite.
    pub fn read(
        config: &NodeConfig,
        hosts: &HostList,
        warnings: &mut Vec<String>,
    ) -> Result<Vanguards> {
        let file = config.path(&config.circuits.guard_file);
        if config.is_router() || !file.exists() {
            return Ok(Vanguards::default());
        }
        let mut warn = |why: String| warnings.push(format!("{}: {why}", file.display()));
        let bytes = match reading::read(&file, GUARD_MAX) {
            Ok(bytes) => bytes,
            Err(e) => {
                warn(format!("can't be read: {e}: {ANEW}; set [circuits] guard_file to another"));
                return Ok(Vanguards::default());
            }
        };
        let Some(text) = String::from_utf8(bytes).ok().filter(|text| Vanguards::is_like(text))
        else {
            let file = file.display();
            bail!("{file}: is no guard file: remove it, or set [circuits] guard_file to another");
        };
        let mode = std::fs::metadata(&file).map_or(0, |meta| meta.permissions().mode() & 0o777);
        let fix = format!("fix: chmod 600 {}", file.display());
        if mode & 0o022 != 0 {
            warn(format!("mode {mode:04o} lets others choose the guard: {ANEW}; {fix}"));
            return Ok(Vanguards::default());
        }
        if mode & 0o044 != 0 {
            warn(format!("mode {mode:04o} lets others read where circuits begin; {fix}"));
        }
        let kept = Vanguards::parse(&text).unwrap_or_else(|e| {
            warn(format!("{e}: {ANEW}"));
            Vanguards::default()
        });
        let is_listed = |at: Address| hosts.by_address(at).is_some();
        let is_any = kept.relays().next().is_some() && !hosts.is_empty();
        if is_any && !kept.relays().any(is_listed) {
            warn(format!(
                "the network's list has none of its relays (is it from another network?): \
                          {ANEW}"
            ));
            return Ok(Vanguards::default());
        }
        Ok(kept)
    }
}

impl FirstWorker {
    /// Applies the current list's settings of circuits.
    pub(crate) fn apply_circuits(&mut self, now: Time) {
        let WorkerParts { node, names, config, authority, circuits, .. } = &mut self.parts;
        let hosts = names.hosts();
        node.set_mixes(now, hosts.mixes().offer());
        let seconds = hosts.iter().filter_map(|host| Some((host.address, host.second?)));
        node.set_seconds(seconds.collect());
        node.set_circuit_demands(now, relays(config, hosts), max_added(config, hosts));
        let is_closed = anonymity::is_closed(config, hosts);
        // Without relays no circuit is built, and all hosts are reached over circuits only.
        let usable = if is_closed { RouterList::default() } else { routers(hosts) };
        if is_closed && !circuits.is_closed {
            node.close_circuits(now);
        }
        // An answer on a circuit of another host would show this host to the network, too.
        node.circuits.onion.set_closed(is_closed);
        circuits.is_closed = is_closed;
        node.set_circuit_nodes(now, usable, nodes(hosts));
        node.set_loops(now, cover::has_loops(config, hosts));
        let tiers = hosts.iter().flat_map(|host| {
            let tier = hosts.cover_of(host);
            host.addresses().iter().filter_map(move |at| Some((at, tier?)))
        });
        node.set_tiers(cover::own(config, hosts), tiers.collect());
        let is_free = anonymity::in_force(config, hosts) == Preset::Fast;
        circuits.unmixed = unmixed(config, hosts.mixes()).filter(|_| is_free);
        let required = RequiredHosts::new(config, hosts, authority.as_ref(), now);
        let before = std::mem::replace(&mut circuits.preset, hosts.preset());
        if before > Preset::Fast && circuits.preset == Preset::Fast {
            node.release_hosts(now, &circuits.kept(&required, hosts));
        }
        let unlisted = &required.unlisted;
        if !unlisted.is_empty() && *unlisted != circuits.required.unlisted {
            let what =
                "circuits are required with everyone: [circuits] peers does not fit the list";
            let why: Vec<String> = unlisted_words(unlisted).into_iter().collect();
            tracing::error!("{}", journal::unnamed(what, journal::STATUS, &why));
        }
        let hidden = &required.hidden;
        node.set_hidden(&hidden.iter().filter_map(|name| names.host_id(name)).collect());
        circuits.required = required;
    }

    /// Stores the relays that this host uses and the hosts that it met over circuits, when they
    /// changed.
    ///
    /// Hosts with which the list requires circuits are not stored. If the authority removes that
    /// rule, both hosts may restart and speak in the clear. Call this before another list comes
    /// into force, too.
    pub(crate) fn keep_circuits(&mut self) {
        let WorkerParts { node, names, circuits, .. } = &mut self.parts;
        if circuits.keepers.is_none() {
            return;
        }
        let host = |key: &PublicKey| names.hosts().by_key(key);
        let mut is_new = false;
        while let Some(key) = node.edge.poll_met() {
            if circuits.is_noted(host(&key)) {
                let since = Some(bound::today());
                is_new |= circuits.met.note(key, since, |key| host(key).is_some());
            }
        }
        let CircuitRecords { met, keepers: Some([guard, keeper]), .. } = circuits else { return };
        guard.keep(node.poll_kept().map(Vanguards::text));
        keeper.keep(is_new.then(|| met.text()));
    }
}

#[cfg(test)]
mod tests;
