//! `shoal check`: checks a node's configuration.

mod circuits;
mod cover;
mod mixes;
mod shift;

use std::collections::BTreeSet;
use std::path::PathBuf;

use anyhow::Result;
use circuits::CircuitsReport;
use cover::CoverCheckReport;
use mixes::MixingReport;
use serde::Serialize;
use shoal_crypto::Suite;
use shoal_daemon::config::{ListenAddresses, NodeConfig, NodeSetup, spell_place};
use shoal_daemon::membership::anonymity;
use shoal_daemon::membership::levels;
use shoal_daemon::preflight::{self, Refusals};
use shoal_daemon::tun::dns::tell_resolved;
use shoal_daemon::tun::subnets::SubnetPlan;
use shoal_wire::Level;

use crate::args::CheckArgs;
use crate::failure::{self, ExitError};
use crate::options::CommonOptions;
use crate::output;
use crate::target;

/// Most names of hosts in one line.
const HOSTS_SHOWN: usize = 8;

#[derive(Serialize)]
struct CheckReport {
    name: String,
    address: String,
    role: &'static str,
    public_key: String,
    listen: Vec<String>,
    /// True if the port follows from the key.
    own_port: bool,
    control_socket: String,
    hosts: usize,
    links: Vec<LinkReport>,
    interface: Option<InterfaceReport>,
    direct: Option<DirectReport>,
    circuits: Option<CircuitsReport>,
    /// Preset in force for circuits, mixes and cover; none on a router.
    preset: Option<&'static str>,
    /// Source of the preset, unless it is "fast": the file, the network's list, or both.
    preset_by: Option<String>,
    cover: Option<CoverCheckReport>,
    /// Class of the processor, by its AES instructions.
    processor: &'static str,
    /// Suites that sessions may have, the fastest on this processor first.
    suites: Vec<&'static str>,
    warnings: Vec<String>,
}

#[derive(Serialize)]
struct LinkReport {
    peer: String,
    address: String,
    endpoint: Option<String>,
    /// Prefix and port under which both ends meet, at addresses that follow from the time of day.
    rendezvous: Option<String>,
}

impl LinkReport {
    fn text(&self) -> String {
        let LinkReport { peer, address, .. } = self;
        let at = match (&self.rendezvous, self.endpoint.as_deref()) {
            (None, known) => format!("at {}", known.unwrap_or("any address it calls from")),
            (Some(at), None) => format!(
                "at addresses under {at} that follow from the time of day; the peer has no \
                 endpoint, so clocks over ten minutes apart delay or prevent a session"
            ),
            (Some(at), Some(known)) => format!(
                "at addresses under {at} that follow from the time of day; if nobody answers, at \
                 {known}, which an observer then sees"
            ),
        };
        format!("link to {peer} ({address}) {at}")
    }
}

impl CheckReport {
    /// The preset in force and its source; none for "fast".
    fn preset_line(&self) -> Option<String> {
        let preset = self.preset.filter(|preset| *preset != "fast")?;
        let by = self.preset_by.as_deref().unwrap_or_default();
        Some(format!("  preset {preset} (by the {by}): see docs/start/choose.md for what it hides"))
    }
}

/// Direct links.
#[derive(Serialize)]
struct DirectReport {
    mode: &'static str,
    /// Address at which others may call this host, if any.
    endpoint: Option<String>,
    level: &'static str,
    /// Groups of the list and of the file.
    security_groups: Vec<String>,
    /// Hosts in the list that `encrypt_with` selects.
    encrypt_with: Vec<String>,
    idle_s: u64,
    max_links: u32,
}

#[derive(Serialize)]
struct InterfaceReport {
    name: String,
    address: String,
    mtu: u32,
    /// Queues of the interface: one per worker, if the kernel has as many.
    queues: u8,
    /// Names and IP addresses of all nodes in the list that have an interface.
    addresses: Vec<(String, String)>,
    /// Networks behind this node.
    serves: Vec<String>,
    /// Networks behind other nodes that programs will reach, with the names of these nodes.
    reaches: Vec<(String, String)>,
}

/// Fails with the present name of a former option.
fn refuse_former(args: &CheckArgs) -> Result<()> {
    match args.hop_probe {
        true => Err(ExitError::of(failure::USAGE, "--hop-probe is called --shift-probe")),
        false => Ok(()),
    }
}

/// Reads everything that a start would read, and prints the result.
pub fn run(common: &CommonOptions, args: &CheckArgs) -> Result<()> {
    refuse_former(args)?;
    let file = needed_config(common)?;
    if args.tell_resolved {
        let config = NodeConfig::load(&file);
        let config = config.map_err(|e| ExitError::of(failure::CONFIG, e.to_string()))?;
        return tell_resolved(&config).map_err(|why| ExitError::of(failure::FAILED, why));
    }
    let setup = load(&file)?;
    if args.shift_probe {
        return shift::probe(common, &setup);
    }
    let Refusals { faults, rights, warnings, unmet } = preflight::refusals(&setup);
    for (what, why) in
        [("would fail", faults), ("would not hide what the configuration demands", unmet)]
    {
        if !why.is_empty() {
            let text = format!("{}: a start {what}:\n  {}", file.display(), why.join("\n  "));
            return Err(ExitError::of(failure::CONFIG, text));
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
    let CheckReport { processor, suites, .. } = &summary;
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
        circuits.bound().iter().try_for_each(|line| output::line(&format!("  {line}")))?;
        let mixing = circuits.mixing.iter().flat_map(MixingReport::lines);
        mixing.into_iter().try_for_each(|line| output::line(&line))?;
    }
    summary.preset_line().iter().try_for_each(|line| output::line(line))?;
    let cover = summary.cover.iter().flat_map(CoverCheckReport::lines);
    cover.into_iter().try_for_each(|line| output::line(&line))?;
    let reloadable = shoal_daemon::config::reloadable().join(", ");
    output::line(&format!(
        "  `shoal reload` applies changes of {reloadable}; others wait for a restart"
    ))?;
    for warning in &summary.warnings {
        output::line(&format!("  warning: {warning}"))?;
    }
    Ok(())
}

/// Finds the configuration, for a command that needs one.
pub fn needed_config(common: &CommonOptions) -> Result<PathBuf> {
    let [here, there] = target::PLACES;
    let text =
        format!("no configuration found: name it (-c FILE); neither {here} nor {there} exists");
    target::config(common).ok_or_else(|| ExitError::of(failure::USAGE, text))
}

/// Loads the configuration and the files it names.
pub fn load(file: &std::path::Path) -> Result<NodeSetup> {
    NodeSetup::load(file).map_err(|e| ExitError::of(failure::CONFIG, e.to_string()))
}

fn summary(setup: &NodeSetup) -> CheckReport {
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
        LinkReport {
            peer: link.peer.clone(),
            address: host.map(|h| h.address.to_string()).unwrap_or_default(),
            endpoint: link.place().map(spell_place).or(known),
            rendezvous: link.rendezvous.as_deref().map(ToString::to_string),
        }
    });
    let means = config.session.means();
    CheckReport {
        name: config.node.name.clone(),
        address: config.address().to_string(),
        role: if config.is_router() { "router" } else { "host" },
        public_key: setup.identity.public().to_string(),
        listen: setup.listen.addresses().iter().map(ToString::to_string).collect(),
        own_port: matches!(setup.listen, ListenAddresses::Own(_)),
        control_socket: config.control_socket().display().to_string(),
        hosts: setup.hosts.len(),
        links: links.collect(),
        interface: interface(setup, &subnets),
        direct: direct(setup),
        circuits,
        preset: (!config.is_router()).then(|| anonymity::in_force(config, &setup.hosts).as_str()),
        preset_by: {
            let linked = setup.linked.as_ref().unwrap_or(&setup.hosts);
            anonymity::status(config, &setup.hosts, linked).map(|preset| preset.by)
        },
        cover,
        processor: means.processor.name(),
        suites: means.by_cost().into_iter().map(Suite::name).collect(),
        warnings,
    }
}

fn interface(setup: &NodeSetup, subnets: &SubnetPlan) -> Option<InterfaceReport> {
    let config = setup.config.interface.as_ref()?;
    let address = |key| setup.ip_address(key).to_string();
    let addresses = setup.hosts.iter().filter(|host| host.interface).flat_map(|host| {
        let ipv4 = host.ipv4.map(|ipv4| (host.name.clone(), ipv4.to_string()));
        std::iter::once((host.name.clone(), address(&host.key))).chain(ipv4)
    });
    Some(InterfaceReport {
        name: config.name.as_str().into(),
        address: address(&setup.identity.public()),
        mtu: config.mtu,
        queues: setup.config.data.workers,
        addresses: addresses.collect(),
        serves: subnets.served.iter().map(ToString::to_string).collect(),
        reaches: subnets.reached.iter().map(|(p, name)| (p.to_string(), name.clone())).collect(),
    })
}

/// Settings of direct links; none if this node has no direct links.
fn direct(setup: &NodeSetup) -> Option<DirectReport> {
    let section = &setup.config.direct;
    if anonymity::direct_refusal(&setup.config, &setup.hosts).is_some() {
        return None;
    }
    let listed = setup.me().security_groups;
    let groups: BTreeSet<String> = listed.iter().chain(&section.security_groups).cloned().collect();
    let overlay = setup.overlay();
    let encrypted = levels::encrypted(&setup.config, &setup.hosts, &overlay);
    Some(DirectReport {
        mode: section.mode.as_str(),
        endpoint: section.endpoint().or(setup.me().endpoint).map(|at| at.to_string()),
        level: Level::from(section.level).name(),
        security_groups: groups.into_iter().collect(),
        encrypt_with: encrypted.map(String::from).collect(),
        idle_s: section.idle_s,
        max_links: section.max_links,
    })
}

impl InterfaceReport {
    fn lines(&self) -> Vec<String> {
        let InterfaceReport { name, address, mtu, queues, addresses, serves, reaches } = self;
        let queues = match queues {
            1 => String::new(),
            n => format!(", a queue for each of {n} workers"),
        };
        let mut lines = vec![format!("  interface {name} has the address {address}{queues}")];
        lines.extend(addresses.iter().map(|(name, address)| format!("    {address} {name}")));
        lines.extend(serves.iter().map(|prefix| format!("    {prefix} behind this node")));
        if !serves.is_empty() {
            lines.push(format!(
                "    to avoid fragmentation, announce the MTU {mtu} there in router advertisements"
            ));
        }
        lines.extend(reaches.iter().map(|(prefix, name)| format!("    {prefix} behind {name}")));
        lines
    }
}

impl DirectReport {
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
        let DirectReport { mode, level, idle_s, max_links, .. } = self;
        let end = match *mode {
            "proactive" => String::new(),
            _ => format!(", idle ones end after {idle_s} s"),
        };
        format!(
            "  direct links {mode}, {at}; level {level}{groups}{with}; {max_links} at most{end}"
        )
    }
}
