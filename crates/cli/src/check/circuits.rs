//! What `shoal check` says of circuits.

use std::collections::BTreeMap;

use serde::Serialize;
use shoal_daemon::config::Setup;
use shoal_daemon::membership::circuits;

use super::mixes::{self, Mixing};
use crate::units::counted;

/// Circuits, where a node carries them or must use them.
#[derive(Serialize)]
pub struct Circuits {
    /// Hosts with which they are required, by name.
    required: Vec<String>,
    /// Relays that each is to have.
    relays: u8,
    /// Relays in the list.
    listed: usize,
    /// Whether circuits of others may lead through this node.
    carries: bool,
    /// What relays do with cells, if the network has mixes.
    pub mixing: Option<Mixing>,
}

/// What is in force for circuits, and what this network can't hide; none where nothing is.
pub fn circuits(setup: &Setup) -> (Option<Circuits>, Vec<String>) {
    let (config, hosts) = (&setup.config, &setup.hosts);
    let now = setup.clock.now();
    let required = circuits::hidden(config, hosts, setup.authority.as_ref(), now);
    let carries = setup.me().carrier.relay;
    let mixing = mixes::mixing(config, hosts);
    if required.is_empty() && !carries && mixing.is_none() {
        return (None, Vec::new());
    }
    let routers = circuits::routers(hosts);
    let mut said = BTreeMap::<String, Vec<&str>>::new();
    for host in required.iter().filter_map(|name| hosts.by_name(name)) {
        let words = circuits::unhidden(config, &routers, host.address);
        words.into_iter().for_each(|text| said.entry(text).or_default().push(&host.name));
    }
    let warnings = said.into_iter().map(|(text, names)| match &names[..] {
        [name] => format!("circuits to {name}: {text}"),
        names => format!("circuits to {} hosts: {text}", names.len()),
    });
    let (relays, listed) = (config.circuits.relays, routers.relays().count());
    let warnings = warnings.collect();
    let required = required.into_iter().collect();
    (Some(Circuits { required, relays, listed, carries, mixing }), warnings)
}

impl Circuits {
    /// In one line, without mixes.
    pub fn text(&self) -> String {
        let Circuits { required, relays, listed, carries, .. } = self;
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
