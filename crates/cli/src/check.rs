//! `shoal check`: is a node's configuration in order?

mod circuits;
mod cover;
mod hop;
mod mixes;

use std::collections::BTreeSet;
use std::path::PathBuf;

use anyhow::Result;
use circuits::Circuits;
use cover::Cover;
use mixes::Mixing;
use serde::Serialize;
use shoal_crypto::Suite;
use shoal_daemon::config::{Config, DirectMode, Listen, Setup, spell_place};
use shoal_daemon::membership::cover::own;
use shoal_daemon::membership::levels;
use shoal_daemon::preflight::{self, Refusals};
use shoal_daemon::tun::dns::tell_resolved;
use shoal_daemon::tun::subnets::Plan;
use shoal_wire::Level;

use crate::args::Check;
use crate::failure::{self, Failure};
use crate::options::Common;
use crate::output;
use crate::target;

/// Names of hosts in one line at most.
const HOSTS_SHOWN: usize = 8;

#[derive(Serialize)]
struct Summary {
    name: String,
    address: String,
    role: &'static str,
    public_key: String,
    listen: Vec<String>,
    /// Whether the port follows from the key.
    own_port: bool,
    control_socket: String,
    hosts: usize,
    links: Vec<Link>,
    interface: Option<Interface>,
    direct: Option<Direct>,
    circuits: Option<Circuits>,
    /// What this host's file asks of circuits, mixes and cover; none on a router.
    preset: Option<&'static str>,
    cover: Option<Cover>,
    /// Class of the processor, by its AES instructions.
    processor: &'static str,
    /// Suites that sessions may have, the fastest on this processor first.
    suites: Vec<&'static str>,
    warnings: Vec<String>,
}

#[derive(Serialize)]
struct Link {
    peer: String,
    address: String,
    endpoint: Option<String>,
    /// Where both ends meet, if at addresses that follow from the time: prefix and port.
    rendezvous: Option<String>,
}

impl Link {
    fn text(&self) -> String {
        let Link { peer, address, .. } = self;
        let at = match (&self.rendezvous, self.endpoint.as_deref()) {
            (None, known) => format!("at {}", known.unwrap_or("wherever it calls from")),
            (Some(at), None) => format!(
                "where both meet under {at}, by the time of day: with clocks that differ by more \
                 than ten minutes, slowly or not at all, as it has no endpoint"
            ),
            (Some(at), Some(known)) => format!(
                "where both meet under {at}, by the time of day; if nobody answers there at \
                 {known}, which an observer then sees"
            ),
        };
        format!("link to {peer} ({address}) {at}")
    }
}

/// Direct links.
#[derive(Serialize)]
struct Direct {
    mode: &'static str,
    /// Where others may call this host, if anywhere.
    endpoint: Option<String>,
    level: &'static str,
    /// Those of the list and those of the file.
    security_groups: Vec<String>,
    /// Hosts of the list that `encrypt_with` has now.
    encrypt_with: Vec<String>,
    idle_s: u64,
    max_links: u32,
}

#[derive(Serialize)]
struct Interface {
    name: String,
    address: String,
    mtu: u32,
    /// Queues of the interface: one per worker, if the kernel has so many.
    queues: u8,
    /// Of every node in the list; a node answers there if it has an interface.
    addresses: Vec<(String, String)>,
    /// Networks behind this node.
    serves: Vec<String>,
    /// Networks behind others that programs will reach, with the names of those.
    reaches: Vec<(String, String)>,
}

/// Reads everything that a start would read, and prints what it would mean.
pub fn run(common: &Common, args: &Check) -> Result<()> {
    let file = needed_config(common)?;
    if args.tell_resolved {
        let config = Config::load(&file);
        let config = config.map_err(|e| Failure::of(failure::CONFIG, e.to_string()))?;
        return tell_resolved(&config).map_err(|why| Failure::of(failure::FAILED, why));
    }
    let setup = load(&file)?;
    if args.hop_probe {
        return hop::probe(common, &setup);
    }
    let Refusals { faults, rights, warnings, unmet } = preflight::refusals(&setup);
    for (what, why) in [("would fail", faults), ("would not hide what it is to hide", unmet)] {
        if !why.is_empty() {
            let text = format!("{}: a start {what}:\n  {}", file.display(), why.join("\n  "));
            return Err(Failure::of(failure::CONFIG, text));
        }
    }
    let mut summary = summary(&setup);
    summary.warnings.extend(warnings);
    let by_this_user = |text| format!("a start by this user would fail: {text}");
    summary.warnings.extend(rights.into_iter().map(by_this_user));
    if common.json {
        output::json("check", &summary)?;
        return Ok(());
    }
    output::line(&format!("{}: in order", file.display()))?;
    output::line(&format!(
        "  {} {} at {}, one of {} nodes in the list",
        summary.role, summary.name, summary.address, summary.hosts
    ))?;
    output::line(&format!("  public key {}", summary.public_key))?;
    let why = if summary.own_port { " (the port follows from the key)" } else { "" };
    output::line(&format!("  listens on {}{why}", summary.listen.join(", ")))?;
    output::line(&format!("  control socket {}", summary.control_socket))?;
    let Summary { processor, suites, .. } = &summary;
    let suites = suites.join(", ");
    output::line(&format!("  processor with {processor}; suites, fastest first: {suites}"))?;
    for link in &summary.links {
        output::line(&format!("  {}", link.text()))?;
    }
    if let Some(interface) = &summary.interface {
        interface.lines().into_iter().try_for_each(|line| output::line(&line))?;
    }
    if let Some(direct) = &summary.direct {
        output::line(&direct.text())?;
    }
    if let Some(circuits) = &summary.circuits {
        output::line(&circuits.text())?;
        let mixing = circuits.mixing.iter().flat_map(Mixing::lines);
        mixing.into_iter().try_for_each(|line| output::line(&line))?;
    }
    if let Some(preset) = summary.preset.filter(|preset| *preset != "fast") {
        output::line(&format!("  preset {preset}: see docs/cover.md for what it hides"))?;
    }
    summary.cover.iter().flat_map(Cover::lines).try_for_each(|line| output::line(&line))?;
    let reloadable = shoal_daemon::config::reloadable().join(", ");
    output::line(&format!(
        "  `shoal reload` applies changes of {reloadable}; others wait for a restart"
    ))?;
    for warning in &summary.warnings {
        output::line(&format!("  warning: {warning}"))?;
    }
    Ok(())
}

/// The configuration, for a command that needs one.
pub fn needed_config(common: &Common) -> Result<PathBuf> {
    let [here, there] = target::PLACES;
    let text =
        format!("which configuration? Name it (-c FILE); there is no {here} here, nor {there}");
    target::config(common).ok_or_else(|| Failure::of(failure::USAGE, text))
}

/// The configuration with all that it names.
pub fn load(file: &std::path::Path) -> Result<Setup> {
    Setup::load(file).map_err(|e| Failure::of(failure::CONFIG, e.to_string()))
}

fn summary(setup: &Setup) -> Summary {
    let config = &setup.config;
    let mut warnings = setup.warnings();
    let subnets = setup.subnets();
    warnings.extend(subnets.warnings.iter().cloned());
    let (circuits, unhidden) = circuits::circuits(setup);
    warnings.extend(unhidden);
    let (cover, of_cover) = cover::cover(setup);
    warnings.extend(of_cover);
    let links = config.links.iter().map(|link| {
        let host = setup.linked.as_ref().unwrap_or(&setup.hosts).by_name(&link.peer);
        let listed = host.and_then(|h| h.endpoint).filter(|_| link.rendezvous.is_none());
        let known = link.endpoint().or(listed);
        let known = known.map(|e| e.to_string());
        Link {
            peer: link.peer.clone(),
            address: host.map(|h| h.address.to_string()).unwrap_or_default(),
            endpoint: link.place().map(spell_place).or(known),
            rendezvous: link.rendezvous.as_deref().map(ToString::to_string),
        }
    });
    let means = config.session.means();
    Summary {
        name: config.node.name.clone(),
        address: config.address().to_string(),
        role: if config.is_router() { "router" } else { "host" },
        public_key: setup.identity.public().to_string(),
        listen: setup.listen.addresses().iter().map(ToString::to_string).collect(),
        own_port: matches!(setup.listen, Listen::Own(_)),
        control_socket: config.control_socket().display().to_string(),
        hosts: setup.hosts.len(),
        links: links.collect(),
        interface: interface(setup, &subnets),
        direct: direct(setup),
        circuits,
        preset: (!config.is_router()).then(|| config.anonymity.preset.as_str()),
        cover,
        processor: means.processor.name(),
        suites: means.by_cost().into_iter().map(Suite::name).collect(),
        warnings,
    }
}

fn interface(setup: &Setup, subnets: &Plan) -> Option<Interface> {
    let config = setup.config.interface.as_ref()?;
    let address = |key| setup.ip_address(key).to_string();
    let addresses = setup.hosts.iter().filter(|host| host.interface).flat_map(|host| {
        let ipv4 = host.ipv4.map(|ipv4| (host.name.clone(), ipv4.to_string()));
        std::iter::once((host.name.clone(), address(&host.key))).chain(ipv4)
    });
    Some(Interface {
        name: config.name.as_str().into(),
        address: address(&setup.identity.public()),
        mtu: config.mtu,
        queues: setup.config.data.workers,
        addresses: addresses.collect(),
        serves: subnets.served.iter().map(ToString::to_string).collect(),
        reaches: subnets.reached.iter().map(|(p, name)| (p.to_string(), name.clone())).collect(),
    })
}

/// Settings of direct links; None where they are off, and for routers.
fn direct(setup: &Setup) -> Option<Direct> {
    let section = &setup.config.direct;
    let covered = own(&setup.config, &setup.hosts).is_some();
    if section.mode == DirectMode::Off || setup.config.is_router() || covered {
        return None;
    }
    let listed = setup.me().security_groups;
    let groups: BTreeSet<String> = listed.iter().chain(&section.security_groups).cloned().collect();
    let overlay = setup.overlay();
    let encrypted = levels::encrypted(&setup.config, &setup.hosts, &overlay);
    Some(Direct {
        mode: section.mode.as_str(),
        endpoint: section.endpoint().or(setup.me().endpoint).map(|at| at.to_string()),
        level: Level::from(section.level).name(),
        security_groups: groups.into_iter().collect(),
        encrypt_with: encrypted.map(String::from).collect(),
        idle_s: section.idle_s,
        max_links: section.max_links,
    })
}

impl Interface {
    fn lines(&self) -> Vec<String> {
        let Interface { name, address, mtu, queues, addresses, serves, reaches } = self;
        let queues = match queues {
            1 => String::new(),
            n => format!(", a queue for each of {n} workers"),
        };
        let mut lines = vec![format!("  interface {name} has the address {address}{queues}")];
        lines.extend(addresses.iter().map(|(name, address)| format!("    {address} {name}")));
        lines.extend(serves.iter().map(|prefix| format!("    {prefix} behind this node")));
        if !serves.is_empty() {
            lines.push(format!(
                "    machines there have an MTU of {mtu} to others: routers there may announce it"
            ));
        }
        lines.extend(reaches.iter().map(|(prefix, name)| format!("    {prefix} behind {name}")));
        lines
    }
}

impl Direct {
    fn text(&self) -> String {
        let at = match &self.endpoint {
            Some(at) => format!("others call {at}"),
            None => "with hosts that can be called".into(),
        };
        let groups = match self.security_groups.as_slice() {
            [] => String::new(),
            groups => format!(", security groups {}", groups.join(", ")),
        };
        let with = match (self.encrypt_with.as_slice(), self.level) {
            ([], _) | (_, "encrypt") => String::new(),
            (hosts, _) if hosts.len() > HOSTS_SHOWN => {
                format!(", encrypted with {} hosts", hosts.len())
            }
            (hosts, _) => format!(", encrypted with {}", hosts.join(", ")),
        };
        let Direct { mode, level, idle_s, max_links, .. } = self;
        let end = match *mode {
            "proactive" => String::new(),
            _ => format!(", idle ones end after {idle_s} s"),
        };
        format!(
            "  direct links {mode}, {at}; level {level}{groups}{with}; {max_links} at most{end}"
        )
    }
}
