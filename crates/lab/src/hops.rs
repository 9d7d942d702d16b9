//! Addresses that hop in networks of the lab: files that ask for them, routes of their prefixes,
//! and what nodes say of their hops.

use std::net::{IpAddr, Ipv6Addr};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use shoal_daemon::control::api::HopPeer;

use crate::network::{Conditions, Family, Network, Through};
use crate::site::{Site, insert};

/// Length of the prefixes under which addresses hop.
pub const PREFIX_LEN: u8 = 64;
/// How long nodes may take until the addresses of all links hop.
const PATIENCE: Duration = Duration::from_secs(30);

/// The last word of a node's address that stays, under the prefix of its segment.
const STAYS: u128 = 1;

/// The prefix under which the addresses of a node hop.
pub fn prefix(node: usize) -> Ipv6Addr {
    Ipv6Addr::new(0xfd78, 0, 0, node as u16, 0, 0, 0, 0)
}

/// Lets the addresses of links hop whose conditions say so, in the files of nodes that have not
/// been started yet, and routes the nodes' prefixes to them over these links. Where the way is
/// through segments, a node's segment has its prefix, and the node one address of it.
///
/// # Errors
/// Over IPv4, without the files, or where a node has a segment and another link that hops.
pub fn prepare(network: &Network, conditions: &[Conditions], folder: &Path) -> Result<()> {
    prepare_at(network, conditions, folder, prefix)
}

/// As [`prepare`], with a choice of each node's prefix.
pub fn prepare_at(
    network: &Network,
    conditions: &[Conditions],
    folder: &Path,
    prefix: impl Fn(usize) -> Ipv6Addr,
) -> Result<()> {
    let topology = network.topology();
    for node in 0..topology.nodes.len() {
        let mut links = topology.neighbours_of(node).collect::<Vec<_>>();
        links.retain(|(link, _)| conditions[*link].hop.is_some());
        if links.is_empty() || topology.nodes[node].plain {
            continue;
        }
        ensure!(network.family() == Family::Ipv6, "addresses that hop need family = \"ipv6\"");
        let file = folder.join(&topology.nodes[node].name).join("node.toml");
        for &(link, neighbour) in &links {
            let Some(every) = conditions[link].hop else { continue };
            let name = &topology.nodes[neighbour].name;
            let hop = format!("hop = \"{}s\"\n", every.as_secs());
            insert(&file, &format!("peer = \"{name}\"\n"), &hop)?;
            network.route_to(link, node, (prefix(node).into(), PREFIX_LEN))?;
            if conditions[link].through == Through::Segments {
                ensure!(links.len() == 1, "{node}: one link that hops: it has a segment");
                let stays = Ipv6Addr::from(u128::from(prefix(node)) | STAYS);
                network.join_segment(link, node, stays.into(), PREFIX_LEN)?;
            }
        }
        let text = std::fs::read_to_string(&file)?;
        let own = format!("\n[hop]\nprefix = \"{}/{PREFIX_LEN}\"\n", prefix(node));
        std::fs::write(&file, text + &own)?;
    }
    Ok(())
}

/// What a node says of the hops of its link with another; none where the link does not hop.
///
/// # Errors
/// When it does not answer.
pub fn of(site: &Site, node: usize, neighbour: usize) -> Result<Option<HopPeer>> {
    let peers = site.peers(node)?;
    let name = &site.network().topology().nodes[neighbour].name;
    Ok(peers.into_iter().find(|peer| peer.name == *name).and_then(|peer| peer.hop))
}

/// Ends of links that hop: a node and its neighbour.
pub fn ends(site: &Site, conditions: &[Conditions]) -> Vec<(usize, usize)> {
    let topology = site.network().topology();
    let all = (0..topology.nodes.len()).filter(|node| !topology.nodes[*node].plain);
    let of = |node| topology.neighbours_of(node).map(move |(link, peer)| (link, node, peer));
    let hop = all.flat_map(of).filter(|(link, ..)| conditions[*link].hop.is_some());
    hop.map(|(_, node, peer)| (node, peer)).collect()
}

/// Waits until the addresses of all links that shall hop do.
///
/// # Errors
/// When they don't.
pub fn wait(site: &mut Site, conditions: &[Conditions]) -> Result<()> {
    for (node, neighbour) in ends(site, conditions) {
        let names = [node, neighbour].map(|n| site.network().topology().nodes[n].name.clone());
        let what = format!("addresses of {} that hop with {}", names[0], names[1]);
        site.wait(&what, PATIENCE, |site| {
            let hop = of(site, node, neighbour)?;
            Ok(hop.filter(|hop| hop.state == "hopping").map(drop))
        })?;
    }
    Ok(())
}

/// Hops that were made and that failed, counted at one end of each link that hops.
///
/// # Errors
/// When a node does not answer.
pub fn counts(site: &Site, conditions: &[Conditions]) -> Result<Option<(u64, u64)>> {
    let ends = ends(site, conditions);
    if ends.is_empty() {
        return Ok(None);
    }
    let (mut made, mut failed) = (0, 0);
    for (node, neighbour) in ends.into_iter().filter(|(node, peer)| node < peer) {
        let hop = of(site, node, neighbour)?.unwrap_or_default();
        (made, failed) = (made + hop.made, failed + hop.failed);
    }
    Ok(Some((made, failed)))
}

/// Addresses of `node` that the router before it has in its table of neighbours, but for those of a
/// link alone.
///
/// # Errors
/// Without a router there.
pub fn neighbour_entries(network: &Network, link: usize, node: usize) -> Result<usize> {
    let space = network.beside(link, node).context("no machine between the ends")?;
    let interface = network.beside_interface(link, node);
    let mut command = std::process::Command::new("ip");
    command.args(["-6", "neigh", "show", "dev", &interface]);
    let output = space.enter(|| command.output().context("ip (package iproute2)"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    Ok(entries(&text))
}

/// Counts addresses in what `ip neigh show` printed that are not of a link alone.
fn entries(text: &str) -> usize {
    let addresses = text.lines().filter_map(|line| line.split_whitespace().next());
    let of_link = |ip: &IpAddr| matches!(ip, IpAddr::V6(v6) if v6.is_unicast_link_local());
    addresses.filter_map(|word| word.parse().ok()).filter(|ip| !of_link(ip)).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_counted_without_those_of_a_link_alone() {
        let text = "fd77::1 lladdr 02:00:00:00:00:01 REACHABLE\n\
                    fe80::1 lladdr 02:00:00:00:00:01 STALE\n\
                    fd78::5 FAILED\n";
        assert_eq!((entries(text), entries("")), (2, 0));
    }
}
