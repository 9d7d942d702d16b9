//! What lists of hosts say of circuits: through which routers they may lead, and with whom this
//! host speaks over them alone.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::PermissionsExt;

use anyhow::{Context, Result, bail};
use shoal_crypto::{PublicKey, Rng};
use shoal_directory::{CircuitMode, Mix, Mixes};
use shoal_onion::path::{self, Ask, Kept, Router, Routers};
use shoal_onion::pool::mixes;
use shoal_wire::{Address, Time};

use crate::config::{CircuitPolicy, Config};
use crate::control::circuits::Count;
use crate::control::journal;
use crate::files::reading;
use crate::membership::authority::Authority;
use crate::membership::cover;
use crate::membership::hosts::{Host, Hosts};
use crate::worker::clock::unix_ms;
use crate::worker::first::{Parts, Worker};

mod keeper;
mod met;

use keeper::Keeper;
pub use met::Met;

/// What follows from a guard file that is of no use.
const ANEW: &str = "this host chooses its guard anew";
/// Names in one warning.
const NAMED_MAX: usize = 8;
/// Longest guard file that is read, in bytes.
const GUARD_MAX: u64 = 4_096;

/// The routers of a list, with what paths are chosen by.
pub fn routers(hosts: &Hosts) -> Routers {
    let mut behind = BTreeMap::<u32, u32>::new();
    for host in hosts.iter().filter(|host| !host.address.is_router()) {
        *behind.entry(host.address.router).or_default() += 1;
    }
    Routers::new(hosts.iter().filter(|host| host.address.is_router()).map(|host| {
        let Host { address, carrier, .. } = host;
        let router = Router {
            relay: carrier.relay,
            family: carrier.family.clone(),
            capacity: carrier.capacity,
            hosts: behind.get(&address.router).copied().unwrap_or(0),
            mix: hosts.mix_of(host),
        };
        (*address, router)
    }))
}

/// What circuits from `config`'s node to a host can't hide among these routers, in words.
/// The host keeps no relay by it: any path shows what the network can give.
pub fn unhidden(config: &Config, routers: &Routers, to: Address) -> Vec<String> {
    let ask = Ask {
        from: config.address(),
        to,
        relays: config.circuits.relays,
        unix_s: unix_ms() / 1_000,
        failed: &[],
        beside: &[],
        doubtful: &[],
    };
    match path::choose(routers, &ask, &mut Kept::default(), &mut Rng::new([0; 32])) {
        Ok(path) => path.warnings.iter().map(ToString::to_string).collect(),
        Err(none) => vec![none.to_string()],
    }
}

/// The nodes to which circuits may lead: relays and hosts.
fn nodes(hosts: &Hosts) -> BTreeMap<Address, PublicKey> {
    let may = |host: &&Host| !host.address.is_router() || host.carrier.relay;
    hosts.iter().filter(may).map(|host| (host.address, host.key)).collect()
}

/// Names of the hosts that `config`'s node speaks with over circuits alone: the stricter of what
/// the network's list and its own file say. While a name of its file is [`unlisted`], they are all
/// hosts: one of them may be the host that is meant.
pub fn hidden(
    config: &Config,
    hosts: &Hosts,
    authority: Option<&Authority>,
    now: Time,
) -> BTreeSet<String> {
    let is_everyone = !unlisted(config, hosts, authority).is_empty();
    let asked = others(config, hosts)
        .filter(|host| is_everyone || config.circuits.mode(&host.name) == CircuitMode::Require);
    let asked = asked.map(|host| host.name.clone());
    listed(config, hosts, authority, now).into_iter().chain(asked).collect()
}

/// Names of those with which the network's list requires it.
fn listed(
    config: &Config,
    hosts: &Hosts,
    authority: Option<&Authority>,
    now: Time,
) -> BTreeSet<String> {
    let listed = authority.map(|authority| authority.hidden(now));
    let me = hosts.by_name(&config.node.name);
    let is_listed = |host: &&Host| match (&listed, me) {
        (Some(listed), _) => listed.contains(&host.name),
        (None, Some(me)) => hosts.circuits().mode(me.party(), host.party()) == CircuitMode::Require,
        (None, None) => false,
    };
    others(config, hosts).filter(is_listed).map(|host| host.name.clone()).collect()
}

/// The other hosts; a router speaks with none.
fn others<'a>(config: &'a Config, hosts: &'a Hosts) -> impl Iterator<Item = &'a Host> {
    let is_other = |host: &&Host| !host.address.is_router() && host.name != config.node.name;
    hosts.iter().filter(is_other).filter(|_| !config.is_router())
}

/// Names of hosts with which `config` requires circuits and that the list does not have: a host was
/// renamed, or is no member any more. Members whose time is over, or has not come, are in the list.
pub fn unlisted<'a>(
    config: &'a Config,
    hosts: &Hosts,
    authority: Option<&Authority>,
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

/// What follows from names that are [`unlisted`], in words.
pub fn unlisted_words(names: &[impl AsRef<str>]) -> Option<String> {
    let named: Vec<&str> = names.iter().take(NAMED_MAX).map(AsRef::as_ref).collect();
    let more = match names.len() - named.len() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    (!named.is_empty()).then(|| {
        format!(
            "[circuits] peers: no host in the list is called {}{more}: circuits are required with \
             everyone; mend peers and restart",
            named.join(" or ")
        )
    })
}

/// Why circuits of `config`'s node go without mixes, in words: the network offers some, and none
/// adds as little as the node's own file wants. Who wants none gets no word.
pub fn unmixed(config: &Config, offered: &Mixes) -> Option<String> {
    let section = &config.circuits;
    let most_ms = section.max_added_ms.filter(|ms| *ms > 0 && !config.is_router())?;
    let own = vec![None; section.relays.into()];
    let (_, warning) = mixes::choose(&own, &offered.offer(), section.max_added());
    warning?;
    let added = |mix: &Mix| mixes::mean(&vec![mix.strategy; section.relays.into()]);
    let least = offered.iter().min_by_key(|mix| added(mix))?;
    Some(format!(
        "[circuits] max_added_ms = {most_ms}: circuits of this host go without mixes, since over \
         {} relays none of the network's adds so little: set it to {} or more ({:?}), or to 0 if \
         that is meant",
        section.relays,
        added(least).as_nanos().div_ceil(1_000_000),
        least.name
    ))
}

/// What `config` says of circuits that changes nothing.
pub fn without_effect(config: &Config) -> Option<String> {
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

/// What a node keeps about circuits beside its machine.
pub struct Circuits {
    /// Hosts that are spoken with over circuits alone, by name.
    pub(crate) hidden: BTreeSet<String>,
    /// Those of them with which the list requires it.
    listed: BTreeSet<String>,
    /// Names of this node's file that are [`unlisted`].
    pub(crate) unlisted: Vec<String>,
    /// Why its circuits go without mixes, if they are [`unmixed`].
    unmixed: Option<String>,
    /// Open circuits, as others may see them.
    pub(crate) open: Count,
    /// Hosts that were met over circuits.
    met: Met,
    /// Who writes down the guard, and who was met; none on a router, which begins no circuits.
    keepers: Option<[Keeper; 2]>,
}

impl Circuits {
    /// Reads the file of the guard, which it returns with the keys of hosts that were met, the one
    /// that was met first at the front; and starts the threads that write both files, on a host.
    /// What is wrong with the file or the configuration is added to `warnings`.
    ///
    /// # Errors
    /// As [`Guard::read`]; or a thread can't be started.
    pub fn start(
        config: &Config,
        hosts: &Hosts,
        met: Met,
        warnings: &mut Vec<String>,
    ) -> Result<(Circuits, (Kept, Vec<PublicKey>))> {
        warnings.extend(without_effect(config));
        let kept = Guard::read(config, hosts, warnings)?;
        let start = |(name, file, lost)| {
            let keeper = Keeper::start(name, config.path(file), lost);
            keeper.context("can't start the thread that writes a file of circuits")
        };
        let keepers = match config.is_router() {
            true => None,
            false => Some([
                start(("shoal-guard", &config.circuits.guard_file, Guard::LOST))?,
                start(("shoal-met", &config.circuits.met_file(), met::LOST))?,
            ]),
        };
        let (hidden, listed, unlisted) = (BTreeSet::new(), BTreeSet::new(), Vec::new());
        let (unmixed, open) = (None, Count::default());
        let known = (kept, met.keys().to_vec());
        Ok((Circuits { hidden, listed, unlisted, unmixed, open, met, keepers }, known))
    }

    /// What the operator should know: this node's file and the list do not fit each other, or hosts
    /// that were met are too many.
    pub(crate) fn warnings(&self) -> impl Iterator<Item = String> {
        unlisted_words(&self.unlisted)
            .into_iter()
            .chain(self.unmixed.clone())
            .chain(self.met.warning())
    }

    /// Why the relays that this host stays with, or hosts that it met, are not written down.
    pub fn faults(&self) -> impl Iterator<Item = String> {
        self.keepers.iter().flatten().filter_map(Keeper::fault)
    }
}

/// The file in which a host keeps its guard.
pub struct Guard;

impl Guard {
    /// What follows from a file that can't be written, and what to do.
    const LOST: &str = "a restart chooses another guard, and each choice is a chance for whoever \
                        runs a relay; set [circuits] guard_file to a place that this node's user \
                        may write";

    /// Reads the file of a host; where there is none, or a damaged one, it chooses anew. What is
    /// wrong is added to `warnings`.
    ///
    /// # Errors
    /// The file is something else, which the guard must not replace.
    pub fn read(config: &Config, hosts: &Hosts, warnings: &mut Vec<String>) -> Result<Kept> {
        let file = config.path(&config.circuits.guard_file);
        if config.is_router() || !file.exists() {
            return Ok(Kept::default());
        }
        let mut warn = |why: String| warnings.push(format!("{}: {why}", file.display()));
        let bytes = match reading::read(&file, GUARD_MAX) {
            Ok(bytes) => bytes,
            Err(e) => {
                warn(format!("can't be read: {e}: {ANEW}; set [circuits] guard_file to another"));
                return Ok(Kept::default());
            }
        };
        let Some(text) = String::from_utf8(bytes).ok().filter(|text| Kept::is_like(text)) else {
            let file = file.display();
            bail!("{file}: is no guard file: remove it, or set [circuits] guard_file to another");
        };
        let mode = std::fs::metadata(&file).map_or(0, |meta| meta.permissions().mode() & 0o777);
        let fix = format!("fix: chmod 600 {}", file.display());
        if mode & 0o022 != 0 {
            warn(format!("mode {mode:04o} lets others choose the guard: {ANEW}; {fix}"));
            return Ok(Kept::default());
        }
        if mode & 0o044 != 0 {
            warn(format!("mode {mode:04o} lets others read where circuits begin; {fix}"));
        }
        let kept = Kept::parse(&text).unwrap_or_else(|e| {
            warn(format!("{e}: {ANEW}"));
            Kept::default()
        });
        let is_listed = |at: Address| hosts.by_address(at).is_some();
        let is_any = kept.relays().next().is_some() && !hosts.is_empty();
        if is_any && !kept.relays().any(is_listed) {
            warn(format!("the list has none of its relays: of another network? {ANEW}"));
            return Ok(Kept::default());
        }
        Ok(kept)
    }
}

impl Worker {
    /// Puts in force what the list of the moment says of circuits.
    pub(crate) fn apply_circuits(&mut self, now: Time) {
        let Parts { node, names, config, authority, circuits, .. } = &mut self.parts;
        let hosts = names.hosts();
        node.set_mixes(now, hosts.mixes().offer());
        node.set_circuit_nodes(now, routers(hosts), nodes(hosts));
        node.set_loops(now, cover::has_loops(config, hosts));
        let tiers = hosts.iter().filter_map(|host| Some((host.address, hosts.cover_of(host)?)));
        node.set_tiers(cover::own(config, hosts), tiers.collect());
        circuits.unmixed = unmixed(config, hosts.mixes());
        circuits.listed = self::listed(config, hosts, authority.as_ref(), now);
        circuits.hidden = self::hidden(config, hosts, authority.as_ref(), now);
        let unlisted = self::unlisted(config, hosts, authority.as_ref());
        if !unlisted.is_empty() && unlisted != circuits.unlisted {
            let what =
                "circuits are required with everyone: [circuits] peers does not fit the list";
            let why: Vec<String> = unlisted_words(&unlisted).into_iter().collect();
            tracing::error!("{}", journal::unnamed(what, journal::STATUS, &why));
        }
        circuits.unlisted = unlisted.into_iter().map(String::from).collect();
        let hidden = &circuits.hidden;
        node.set_hidden(&hidden.iter().filter_map(|name| names.host_id(name)).collect());
    }

    /// Writes down the relays that this host stays with, and hosts that it met over circuits, when
    /// they changed.
    ///
    /// With whom the list requires circuits stands there: who ends a rule of the list can have both
    /// hosts restart and speak in the clear.
    pub(crate) fn keep_circuits(&mut self) {
        let Parts { node, names, circuits, .. } = &mut self.parts;
        let Circuits { listed, met, keepers: Some([guard, keeper]), .. } = circuits else { return };
        guard.keep(node.poll_kept().map(Kept::text));
        let host = |key: &PublicKey| names.hosts().by_key(key);
        let mut is_new = false;
        while let Some(key) = node.edge.poll_met() {
            if !host(&key).is_some_and(|host| listed.contains(&host.name)) {
                is_new |= met.note(key, |key| host(key).is_some());
            }
        }
        keeper.keep(is_new.then(|| met.text()));
    }
}

#[cfg(test)]
mod tests;
