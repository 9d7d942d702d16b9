//! Address shifts in networks of the lab: configuration of nodes, routes of their prefixes, and
//! reports of nodes on their shifts.

use std::net::{IpAddr, Ipv6Addr};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use shoal_daemon::control::api::LinkShiftStatus;

use crate::network::{Conditions, IpFamily, LinkMiddle, Network};
use crate::site::{RunningNetwork, insert};

/// Length of the prefixes in which addresses shift.
pub const PREFIX_LEN: u8 = 64;
/// Limit of the time until the addresses of all links shift.
const PATIENCE: Duration = Duration::from_secs(30);

/// Interface identifier of a node's fixed address, in the prefix of its segment.
const STAYS: u128 = 1;

/// The prefix in which the addresses of a node shift.
pub fn prefix(node: usize) -> Ipv6Addr {
    Ipv6Addr::new(0xfd78, 0, 0, node as u16, 0, 0, 0, 0)
}

/// Configures address shifts for links whose conditions ask for them, and routes the nodes'
/// prefixes over these links. Nodes must not have been started yet. If the path is through
/// segments, a node's segment has its prefix, and the node has one address of it.
///
/// # Errors
/// The network is IPv4, a file is missing, or a node has a segment and another link that shifts.
pub fn prepare(network: &Network, conditions: &[Conditions], folder: &Path) -> Result<()> {
    prepare_at(network, conditions, folder, prefix)
}

/// Like [`prepare`], with a choice of each node's prefix.
pub fn prepare_at(
    network: &Network,
    conditions: &[Conditions],
    folder: &Path,
    prefix: impl Fn(usize) -> Ipv6Addr,
) -> Result<()> {
    let topology = network.topology();
    for node in 0..topology.nodes.len() {
        let mut links = topology.neighbours_of(node).collect::<Vec<_>>();
        links.retain(|(link, _)| conditions[*link].shift.is_some());
        if links.is_empty() || topology.nodes[node].plain {
            continue;
        }
        ensure!(network.family() == IpFamily::Ipv6, "a link with `shift` needs family = \"ipv6\"");
        let file = folder.join(&topology.nodes[node].name).join("node.toml");
        for &(link, neighbour) in &links {
            let Some(every) = conditions[link].shift else { continue };
            let name = &topology.nodes[neighbour].name;
            let shift = format!("shift = \"{}s\"\n", every.as_secs());
            insert(&file, &format!("peer = \"{name}\"\n"), &shift)?;
            network.route_to(link, node, (prefix(node).into(), PREFIX_LEN))?;
            if conditions[link].through == LinkMiddle::Segments {
                ensure!(
                    links.len() == 1,
                    "{node}: a node with a segment can have only one link with `shift`"
                );
                let stays = Ipv6Addr::from(u128::from(prefix(node)) | STAYS);
                network.join_segment(link, node, stays.into(), PREFIX_LEN)?;
            }
        }
        let text = std::fs::read_to_string(&file)?;
        let own = format!("\n[shift]\nprefix = \"{}/{PREFIX_LEN}\"\n", prefix(node));
        std::fs::write(&file, text + &own)?;
    }
    Ok(())
}

/// A node's report on the shifts of its link with `neighbour`; `None` if the link does not shift.
///
/// # Errors
/// The node does not answer.
pub fn of(site: &RunningNetwork, node: usize, neighbour: usize) -> Result<Option<LinkShiftStatus>> {
    let peers = site.peers(node)?;
    let name = &site.network().topology().nodes[neighbour].name;
    Ok(peers.into_iter().find(|peer| peer.name == *name).and_then(|peer| peer.shift))
}

/// Ends of links that shift: a node and its neighbour.
pub fn ends(site: &RunningNetwork, conditions: &[Conditions]) -> Vec<(usize, usize)> {
    let topology = site.network().topology();
    let all = (0..topology.nodes.len()).filter(|node| !topology.nodes[*node].plain);
    let of = |node| topology.neighbours_of(node).map(move |(link, peer)| (link, node, peer));
    let shift = all.flat_map(of).filter(|(link, ..)| conditions[*link].shift.is_some());
    shift.map(|(_, node, peer)| (node, peer)).collect()
}

/// Waits until the addresses of all configured links shift.
///
/// # Errors
/// The time limit passed.
pub fn wait(site: &mut RunningNetwork, conditions: &[Conditions]) -> Result<()> {
    for (node, neighbour) in ends(site, conditions) {
        let names = [node, neighbour].map(|n| site.network().topology().nodes[n].name.clone());
        let what = format!("addresses of {} that shift with {}", names[0], names[1]);
        site.wait(&what, PATIENCE, |site| {
            let shift = of(site, node, neighbour)?;
            Ok(shift.filter(|shift| shift.state == "shifting").map(drop))
        })?;
    }
    Ok(())
}

/// Numbers of shifts made and failed, counted at one end of each link that shifts.
///
/// # Errors
/// A node does not answer.
pub fn counts(site: &RunningNetwork, conditions: &[Conditions]) -> Result<Option<(u64, u64)>> {
    let ends = ends(site, conditions);
    if ends.is_empty() {
        return Ok(None);
    }
    let (mut made, mut failed) = (0, 0);
    for (node, neighbour) in ends.into_iter().filter(|(node, peer)| node < peer) {
        let shift = of(site, node, neighbour)?.unwrap_or_default();
        (made, failed) = (made + shift.made, failed + shift.failed);
    }
    Ok(Some((made, failed)))
}

/// Number of addresses of `node` in the neighbour table of the router before it, without link-local
/// addresses.
///
/// # Errors
/// No router is between the ends.
pub fn neighbour_entries(network: &Network, link: usize, node: usize) -> Result<usize> {
    let space = network.beside(link, node).context("no machine between the ends")?;
    let interface = network.beside_interface(link, node);
    let mut command = std::process::Command::new("ip");
    command.args(["-6", "neigh", "show", "dev", &interface]);
    let output = space.enter(|| command.output().context("ip (package iproute2)"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    Ok(entries(&text))
}

/// Counts the addresses in the output of `ip neigh show` that are not link-local.
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
