//! The network of the cells: a machine in the middle as the Internet, three routers, and two hosts
//! with their NATs for each cell.
//!
//! ```text
//! host - NAT - (NAT) - net - r1, r2, r3
//! ```

use std::fmt::Write;
use std::net::SocketAddr;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use shoal_wire::Address;

use crate::network::{Conditions, IpFamily, Network, NetworkKind};
use crate::scenario::{NatKind, NatPair, NatPortMapping, PUBLIC, Scenario, UnsolicitedInput};
use crate::shaping;
use crate::site::insert;
use crate::topology::{LinkSpec, NodeSpec, Topology};

/// Indices of the machine in the middle, and of the first router.
const NET: usize = 0;
const R1: usize = 1;
/// Number of routers: one for the first hosts, one for the second hosts, and one that reports outer
/// endpoints.
const ROUTERS: usize = 3;
/// First port of the first and of the second hosts; each run uses the next port.
const PORTS: [u16; 2] = [20_000, 30_000];
/// Number of ports of a mapping.
const SPAN: u16 = 1_000;

/// Two hosts.
#[derive(Clone, Debug)]
pub struct HostPair {
    /// Indices of the hosts in the topology.
    pub hosts: [usize; 2],
    pub names: [String; 2],
    /// True if the second host refuses direct links.
    pub off: bool,
    /// Mapped NATs that the hosts are behind, as indices in `NatNetwork::nats`.
    mapped: [Option<usize>; 2],
}

/// A NAT in the network.
#[derive(Clone, Debug)]
struct PlacedNat {
    node: usize,
    outside: usize,
    /// Hosts directly behind the NAT, each with 0 or 1 for the first or second host of its cell.
    hosts: Vec<(usize, usize)>,
    rules: NatKind,
}

/// The planned network.
#[derive(Debug)]
pub struct NatNetwork {
    /// Machines and links.
    pub topology: Topology,
    /// Conditions of each link. Links of the machine in the middle have the scenario's conditions.
    pub conditions: Vec<Conditions>,
    /// One entry per cell.
    pub pairs: Vec<HostPair>,
    nats: Vec<PlacedNat>,
    /// Text for the end of every node's configuration.
    extra: String,
}

impl NatNetwork {
    /// Plans the network.
    ///
    /// # Errors
    /// A cell names a NAT that does not exist.
    pub fn plan(scenario: &Scenario, cells: &[NatPair]) -> Result<NatNetwork> {
        let topology = Topology { nodes: Vec::new(), links: Vec::new() };
        let (conditions, pairs, nats) = (Vec::new(), Vec::new(), Vec::new());
        let extra = scenario.node_config.clone();
        let mut ground = NatNetwork { topology, conditions, pairs, nats, extra };
        ground.machine("net".into());
        for number in 1..=ROUTERS as u32 {
            let spec = NodeSpec::new(format!("r{number}"), Address::new(number, 0));
            ground.topology.nodes.push(spec);
            ground.topology.links.push(LinkSpec { a: number as usize, b: NET });
        }
        for (number, cell) in cells.iter().enumerate() {
            ground.add(scenario, number, cell)?;
        }
        let far = scenario.links.conditions();
        let of = |link: &LinkSpec| if link.b == NET { far } else { Conditions::default() };
        ground.conditions = ground.topology.links.iter().map(of).collect();
        Ok(ground)
    }

    fn machine(&mut self, name: String) -> usize {
        self.topology.nodes.push(NodeSpec { name, address: Address::new(0, 0), plain: true });
        self.topology.nodes.len() - 1
    }

    /// Adds a NAT of this kind, and the NATs that it is behind.
    fn translator(&mut self, scenario: &Scenario, name: &str) -> Result<usize> {
        let rules = scenario.nats.iter().find(|nat| nat.name == name);
        let rules = rules.with_context(|| format!("there is no [[nat]] {name:?}"))?.clone();
        let outside = match &rules.behind {
            Some(outer) => {
                let outer = self.translator(scenario, outer)?;
                self.nats[outer].node
            }
            None => NET,
        };
        let node = self.machine(format!("n{}", self.nats.len() + 1));
        self.topology.links.push(LinkSpec { a: node, b: outside });
        self.nats.push(PlacedNat { node, outside, hosts: Vec::new(), rules });
        Ok(self.nats.len() - 1)
    }

    fn add(&mut self, scenario: &Scenario, number: usize, cell: &NatPair) -> Result<()> {
        let names = ["a", "b"].map(|side| format!("{side}{}", number + 1));
        let mut shared = None;
        let (mut hosts, mut mapped) = ([0; 2], [None; 2]);
        for side in 0..2 {
            let nat = match (cell.hosts[side].as_str(), shared) {
                (PUBLIC, _) => None,
                (_, Some(nat)) if cell.same => Some(nat),
                (name, _) => Some(self.translator(scenario, name)?),
            };
            shared = nat;
            let host = self.topology.nodes.len();
            let address = Address::new(side as u32 + 1, number as u16 + 1);
            self.topology.nodes.push(NodeSpec::new(names[side].clone(), address));
            let behind = nat.map_or(NET, |nat| self.nats[nat].node);
            self.topology.links.push(LinkSpec { a: host, b: behind });
            if let Some(nat) = nat {
                self.nats[nat].hosts.push((host, side));
                mapped[side] = Some(nat).filter(|nat| self.nats[*nat].rules.mapped);
            }
            hosts[side] = host;
        }
        self.pairs.push(HostPair { hosts, names, off: cell.off, mapped });
        Ok(())
    }

    /// Indices of all hosts.
    pub fn hosts(&self) -> Vec<usize> {
        self.pairs.iter().flat_map(|pair| pair.hosts).collect()
    }

    /// Makes the machines and links.
    pub fn build(&self, family: IpFamily) -> Result<Network> {
        ensure!(family == IpFamily::Ipv4, "NATs need family = \"ipv4\"");
        Network::build_each(
            self.topology.clone(),
            NetworkKind::Namespaces.over(family),
            &self.conditions,
        )
    }

    /// The link of a machine towards the middle, and the machine at its other end.
    fn outward(&self, node: usize) -> Result<(usize, usize)> {
        let links = &self.topology.links;
        let link =
            links.iter().position(|link| link.a == node).context("a machine without a link")?;
        Ok((link, links[link].b))
    }

    /// The machine's own address on its link towards the middle.
    fn address(&self, network: &Network, node: usize) -> Result<SocketAddr> {
        let (link, beside) = self.outward(node)?;
        Ok(network.endpoint(link, beside))
    }

    /// Sets routes and rules, and writes files, before the nodes run.
    pub fn prepare(&self, network: &Network, folder: &Path) -> Result<()> {
        network.forward_ip(NET)?;
        for node in 1..self.topology.nodes.len() {
            network.default_route(node, self.outward(node)?.1)?;
        }
        for nat in &self.nats {
            network.forward_ip(nat.node)?;
            let space = network.namespace(nat.node).context("no namespace")?;
            shaping::nft(space, &[&self.rules(network, nat)?])?;
        }
        for router in R1..R1 + ROUTERS {
            self.write_router(network, folder, router)?;
        }
        self.write_hosts(network, folder, 0)
    }

    /// The nftables rules of a NAT.
    fn rules(&self, network: &Network, nat: &PlacedNat) -> Result<String> {
        let out = network.interface(nat.node, nat.outside);
        let ports = match nat.rules.ports {
            NatPortMapping::Preserving => "",
            NatPortMapping::Random => " fully-random",
        };
        let mut rules = format!(
            "add table ip nat\n\
             add chain ip nat in {{ type nat hook prerouting priority dstnat; }}\n\
             add chain ip nat out {{ type nat hook postrouting priority srcnat; }}\n\
             add rule ip nat out oifname \"{out}\" masquerade{ports}\n\
             add table ip walls\n\
             add chain ip walls through {{ type filter hook forward priority filter; }}\n\
             add rule ip walls through ct status dnat accept\n\
             add rule ip walls through iifname \"{out}\" ct state new drop\n"
        );
        if nat.rules.input == UnsolicitedInput::Drop {
            writeln!(
                rules,
                "add chain ip walls own {{ type filter hook input priority filter; }}\n\
                 add rule ip walls own ct state new drop"
            )?;
        }
        let outer = self.address(network, nat.node)?.ip();
        for &(host, side) in nat.hosts.iter().filter(|_| nat.rules.mapped) {
            let inner = self.address(network, host)?.ip();
            let (first, last) = (PORTS[side], PORTS[side] + SPAN);
            // Without hairpin, only packets from outside are mapped.
            let from =
                if nat.rules.hairpin { String::new() } else { format!("iifname \"{out}\" ") };
            writeln!(
                rules,
                "add rule ip nat in {from}ip daddr {outer} udp dport {first}-{last} dnat to {inner}"
            )?;
        }
        if nat.rules.hairpin {
            writeln!(rules, "add rule ip nat out ct status dnat oifname != \"{out}\" masquerade")?;
        }
        Ok(rules)
    }

    fn write_router(&self, network: &Network, folder: &Path, router: usize) -> Result<()> {
        let name = &self.topology.nodes[router].name;
        let at = self.address(network, router)?;
        let endpoint = format!("endpoint = \"{at}\"\n");
        insert(&folder.join("hosts.toml"), &format!("name = \"{name}\"\n"), &endpoint)?;
        let file = folder.join(name).join("node.toml");
        let mut text = std::fs::read_to_string(&file)?;
        for other in (R1..R1 + ROUTERS).filter(|other| *other != router) {
            let (name, at) = (&self.topology.nodes[other].name, self.address(network, other)?);
            writeln!(text, "\n[[link]]\npeer = \"{name}\"\nendpoint = \"{at}\"")?;
        }
        let own = self.topology.nodes[router].address.router;
        for host in self.hosts() {
            let NodeSpec { name, address, .. } = &self.topology.nodes[host];
            if address.router == own {
                writeln!(text, "\n[[link]]\npeer = \"{name}\"")?;
            }
        }
        Ok(std::fs::write(file, text)?)
    }

    /// Writes the configurations of the hosts for a run, counted from 0.
    pub fn write_hosts(&self, network: &Network, folder: &Path, run: u32) -> Result<()> {
        let run = u16::try_from(run).ok().filter(|run| *run < SPAN).context("too many runs")?;
        for pair in &self.pairs {
            for (side, first) in PORTS.into_iter().enumerate() {
                let NodeSpec { name, address, .. } = &self.topology.nodes[pair.hosts[side]];
                let (port, router) = (first + run, R1 + side);
                let at = self.address(network, router)?;
                let mode = if pair.off && side == 1 { "off" } else { "on-demand" };
                let mut text = format!(
                    "[node]\nname = \"{name}\"\naddress = \"{address}\"\nkey_file = \"node.key\"\n\
                     network_secret_file = \"network.key\"\nhosts_file = \"../hosts.toml\"\n\
                     listen = [\"0.0.0.0:{port}\"]\ncontrol_socket = \"control.sock\"\n\n\
                     [[link]]\npeer = \"{}\"\nendpoint = \"{at}\"\n\n[direct]\nmode = \"{mode}\"\n",
                    self.topology.nodes[router].name
                );
                if let Some(nat) = pair.mapped[side] {
                    let outer = self.address(network, self.nats[nat].node)?.ip();
                    writeln!(text, "endpoint = \"{outer}:{port}\"")?;
                }
                write!(text, "\n{}", self.extra)?;
                std::fs::write(folder.join(name).join("node.toml"), text)?;
            }
        }
        Ok(())
    }
}
