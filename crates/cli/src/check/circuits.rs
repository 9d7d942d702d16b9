//! The part of `shoal check` about circuits.

use std::collections::BTreeMap;

use serde::Serialize;
use shoal_daemon::config::NodeSetup;
use shoal_daemon::membership::circuits::{self, MetHostsFile, RequiredHosts};

use super::mixes::{self, MixingReport};
use crate::circuits::met_lines;
use crate::units::counted;

/// Settings of circuits, if the node carries them or must use them.
#[derive(Serialize)]
pub struct CircuitsReport {
    /// Hosts with which they are required, by name.
    required: Vec<String>,
    /// Hosts that are bound to circuits only because they were met so.
    bound: Vec<BoundHost>,
    /// Relays of each circuit.
    relays: u8,
    /// Relays in the list.
    listed: usize,
    /// True if circuits of others may lead through this node.
    carries: bool,
    /// Mixes of relays, if the network has any.
    pub mixing: Option<MixingReport>,
}

/// A host that was met over a circuit.
#[derive(Serialize)]
struct BoundHost {
    /// Name in the list, or the first letters of the key of a host that left it.
    host: String,
    /// Day of the first circuit, if known.
    since: Option<String>,
}

/// Hosts that are bound to circuits only because they were met so. A file that can't be read gives
/// none; another part of the check reports it.
fn bound(setup: &NodeSetup) -> Vec<BoundHost> {
    let (config, hosts) = (&setup.config, &setup.hosts);
    let met = MetHostsFile::read(config, &mut Vec::new()).unwrap_or_default();
    let (authority, now) = (setup.authority.as_ref(), setup.clock.now());
    let required = RequiredHosts::new(config, hosts, authority, now);
    let bound = required
        .only_met(hosts, &met)
        .map(|met| BoundHost { host: met.shown(), since: met.since.map(|day| day.to_string()) });
    bound.collect()
}

/// Settings of circuits, and warnings about what this network can't hide. None without circuits and
/// mixes.
pub fn circuits(setup: &NodeSetup) -> (Option<CircuitsReport>, Vec<String>) {
    let (config, hosts) = (&setup.config, &setup.hosts);
    let now = setup.clock.now();
    let required = circuits::hidden(config, hosts, setup.authority.as_ref(), now);
    let carries = setup.me().carrier.relay;
    let (mixing, bound) = (mixes::mixing(config, hosts), bound(setup));
    if required.is_empty() && bound.is_empty() && !carries && mixing.is_none() {
        return (None, Vec::new());
    }
    let routers = circuits::routers(hosts);
    let mut said = BTreeMap::<String, Vec<&str>>::new();
    for host in required.iter().filter_map(|name| hosts.by_name(name)) {
        let words = circuits::unhidden(config, hosts, &routers, host.address);
        words.into_iter().for_each(|text| said.entry(text).or_default().push(&host.name));
    }
    let warnings = said.into_iter().map(|(text, names)| match &names[..] {
        [name] => format!("circuits to {name}: {text}"),
        names => format!("circuits to {} hosts: {text}", names.len()),
    });
    let (relays, listed) = (circuits::relays(config, hosts), routers.relays().count());
    let warnings = warnings.collect();
    let required = required.into_iter().collect();
    (Some(CircuitsReport { required, bound, relays, listed, carries, mixing }), warnings)
}

impl CircuitsReport {
    /// Lines about hosts that were met over circuits.
    pub fn bound(&self) -> Vec<String> {
        let bound = self.bound.iter().map(|met| (met.host.as_str(), met.since.as_deref()));
        met_lines(&bound.collect::<Vec<_>>())
    }

    /// One line, without mixes.
    pub fn text(&self) -> String {
        let CircuitsReport { required, relays, listed, carries, .. } = self;
        let of_list = format!("{} in the list", counted(*listed, "relay"));
        let carried = if *carries { "; others' circuits lead through this node" } else { "" };
        match required.len() {
            0 => format!("  circuits: {of_list}{carried}"),
            n => {
                let hosts = counted(n, "host");
                format!("  circuits over {relays} relays required with {hosts}; {of_list}{carried}")
            }
        }
    }
}
