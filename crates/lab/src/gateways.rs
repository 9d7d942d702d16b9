//! Machines without a node, behind hosts that are their gateways.
//!
//! The list grants each gateway the network of the machine behind it, and the gateway serves that
//! network. Every gateway accepts the others' networks, and kernels forward packets.

use std::path::Path;

use anyhow::{Context, Result};

use crate::network::Network;
use crate::site::insert;
use crate::topology::Topology;

/// Each machine without a node whose only neighbour runs a node, with that neighbour.
pub fn behind(topology: &Topology) -> Vec<(usize, usize)> {
    let only = |node: usize| {
        let mut neighbours = topology.links_of(node).map(|(_, neighbour)| neighbour);
        let first = neighbours.next().filter(|_| neighbours.next().is_none());
        first.filter(|gateway| !topology.nodes[*gateway].plain)
    };
    let plain = (0..topology.nodes.len()).filter(|node| topology.nodes[*node].plain);
    plain.filter_map(|node| Some((node, only(node)?))).collect()
}

/// Makes the neighbours of machines without a node gateways. Nodes must have an `[interface]` and
/// must not have been started yet.
///
/// # Errors
/// Namespaces or files are missing.
pub fn prepare(network: &Network, folder: &Path) -> Result<()> {
    let topology = network.topology();
    for (node, gateway) in behind(topology) {
        let name = &topology.nodes[gateway].name;
        network.default_route(node, gateway)?;
        network.forward_ip(gateway)?;
        let link = topology.link_between(node, gateway).context("no link to its gateway")?;
        let (first, bits) = (network.family().prefix(link), network.family().prefix_len());
        let prefixes = format!("prefixes = [\"{first}/{bits}\"]\n");
        insert(&folder.join("hosts.toml"), &format!("name = \"{name}\"\n"), &prefixes)?;
        let section = prefixes + "accept_prefixes = [\"all\"]\n";
        insert(&folder.join(name).join("node.toml"), "[interface]\n", &section)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::{LinkSpec, NodeSpec};
    use shoal_wire::Address;

    #[test]
    fn a_machine_with_two_neighbours_is_behind_none() {
        let mut topology = Topology::chain();
        for name in ["a", "b"] {
            let address = Address::new(0, 0);
            topology.nodes.push(NodeSpec { name: name.into(), address, plain: true });
        }
        let [a, b, h1, h2] = ["a", "b", "h1", "h2"].map(|name| topology.find(name).unwrap());
        for (one, other) in [(a, h1), (b, h1), (b, h2)] {
            topology.links.push(LinkSpec { a: one, b: other });
        }
        assert_eq!(behind(&topology), [(a, h1)]);
    }
}
