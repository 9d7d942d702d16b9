//! Networks of this node and its machine, on which the rules for endpoints depend.

use std::net::{IpAddr, SocketAddr};

use shoal_session::{EndpointRules, NodeNetworks};

use crate::config::{NodeConfig, Registrar};
use crate::tun::interface::VirtualInterface;
use crate::tun::names::NodeNames;
use crate::tun::subnets;
use crate::worker::first::{FirstWorker, WorkerParts};

/// The rules for endpoints of a node with this configuration and interface.
pub fn rules(
    config: &NodeConfig,
    names: &NodeNames,
    interface: Option<&VirtualInterface>,
) -> EndpointRules {
    let overlay = names.overlay();
    let inside = interface.into_iter().flat_map(VirtualInterface::inside);
    let own = interface.map_or("", VirtualInterface::name);
    let called = config.links.iter().filter_map(|link| {
        let peer = names.linked().by_name(&link.peer);
        // Only an endpoint that the authority or this node's file names is trusted.
        let router = peer.filter(|peer| peer.address.is_router() && !peer.by_registrar);
        link.endpoint().or(router.and_then(|router| router.endpoint))
    });
    // A member whose registrar is on this machine is in a network of this machine alone.
    let registrar = config.registrar.iter().flat_map(Registrar::endpoints);
    let registrar = registrar.filter_map(|at| at.address()).filter(|at| at.ip().is_loopback());
    let configured = config.listen().into_iter().chain(called).chain(config.direct.endpoint());
    let configured = configured.chain(registrar);
    EndpointRules::new(&NodeNetworks {
        inside: inside.chain([(IpAddr::from(overlay.address), overlay.bits)]).collect(),
        served: interface.into_iter().flat_map(VirtualInterface::served).collect(),
        connected: subnets::addresses(own),
        nested: subnets::of_other_nodes(own),
        configured: configured.map(|at: SocketAddr| at.ip()).collect(),
    })
}

/// Warning about addresses in `[node] listen` that no interface has.
pub fn missing(parts: &WorkerParts) -> Vec<String> {
    let listen = parts.config.listen();
    let bound = listen.iter().filter(|at| !at.ip().is_unspecified());
    let bound: Vec<_> = bound.filter(|at| !at.ip().is_loopback()).collect();
    if bound.is_empty() {
        return Vec::new();
    }
    let here = subnets::addresses("");
    let is_here = |at: &SocketAddr| here.iter().any(|(ip, _)| *ip == at.ip());
    let missing = bound.into_iter().filter(|at| !is_here(at));
    let said = |at: &SocketAddr| {
        format!(
            "[node] listen: no interface has the address {}: nothing arrives or leaves there until \
             one has it; correct the address if it is not this machine's",
            at.ip()
        )
    };
    missing.map(said).collect()
}

impl FirstWorker {
    /// Updates the rules after changes of this machine's networks.
    pub(crate) fn look_at_networks(&mut self) {
        let WorkerParts { node, interface, config, names, .. } = &mut self.parts;
        node.set_endpoint_rules(rules(config, names, interface.as_ref()));
    }
}
