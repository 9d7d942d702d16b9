//! The network of the cells: a machine in the middle that stands for the Internet, three routers,
//! and for each cell two hosts with their translators.
//!
//! ```text
//! host - translator - (translator) - net - r1, r2, r3
//! ```

use std::fmt::Write;
use std::net::SocketAddr;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use shoal_wire::Address;

use crate::network::{Conditions, Family, Kind, Network};
use crate::scenario::{Cell, Input, Nat, PUBLIC, Ports, Scenario};
use crate::shaping;
use crate::site::insert;
use crate::topology::{LinkSpec, NodeSpec, Topology};

/// The place of the machine in the middle, and of the first router.
const NET: usize = 0;
const R1: usize = 1;
/// Routers: of the first hosts, of the second ones, and one that tells where others are seen.
const ROUTERS: usize = 3;
/// The first port of the first and of the second hosts; each run takes the next one.
const PORTS: [u16; 2] = [20_000, 30_000];
/// Ports that a mapping holds.
const SPAN: u16 = 1_000;

/// Two hosts.
#[derive(Clone, Debug)]
pub struct Pair {
    /// Their places in the topology.
    pub hosts: [usize; 2],
    /// Their names.
    pub names: [String; 2],
    /// The second wants no direct links.
    pub off: bool,
    /// The mapped translators that they stand behind.
    mapped: [Option<usize>; 2],
}

/// A translator at its place.
#[derive(Clone, Debug)]
struct Placed {
    node: usize,
    outside: usize,
    /// Hosts directly behind it, and whether each is the first or second of its cell.
    hosts: Vec<(usize, usize)>,
    rules: Nat,
}

/// The network, planned.
#[derive(Debug)]
pub struct Ground {
    /// Machines and links.
    pub topology: Topology,
    /// What the links are like: those of the machine in the middle as the scenario says.
    pub conditions: Vec<Conditions>,
    /// One for each cell.
    pub pairs: Vec<Pair>,
    nats: Vec<Placed>,
    /// What every node's configuration says besides.
    extra: String,
}

impl Ground {
    /// Plans the network.
    ///
    /// # Errors
    /// A cell names a translator that is not there.
    pub fn plan(scenario: &Scenario, cells: &[Cell]) -> Result<Ground> {
        let topology = Topology { nodes: Vec::new(), links: Vec::new() };
        let (conditions, pairs, nats) = (Vec::new(), Vec::new(), Vec::new());
        let extra = scenario.node_config.clone();
        let mut ground = Ground { topology, conditions, pairs, nats, extra };
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

    /// Adds a translator of this kind, and those that it stands behind.
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
        self.nats.push(Placed { node, outside, hosts: Vec::new(), rules });
        Ok(self.nats.len() - 1)
    }

    fn add(&mut self, scenario: &Scenario, number: usize, cell: &Cell) -> Result<()> {
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
        self.pairs.push(Pair { hosts, names, off: cell.off, mapped });
        Ok(())
    }

    /// Places of all hosts.
    pub fn hosts(&self) -> Vec<usize> {
        self.pairs.iter().flat_map(|pair| pair.hosts).collect()
    }

    /// Makes its machines and links.
    pub fn build(&self, family: Family) -> Result<Network> {
        ensure!(family == Family::Ipv4, "translators of addresses are for IPv4");
        Network::build_each(self.topology.clone(), Kind::Namespaces.over(family), &self.conditions)
    }

    /// The link of a machine towards the middle, and the machine there.
    fn outward(&self, node: usize) -> Result<(usize, usize)> {
        let links = &self.topology.links;
        let link = links.iter().position(|link| link.a == node).context("a machine alone")?;
        Ok((link, links[link].b))
    }

    /// The address of the nearer end of a machine's link towards the middle.
    fn address(&self, network: &Network, node: usize) -> Result<SocketAddr> {
        let (link, beside) = self.outward(node)?;
        Ok(network.endpoint(link, beside))
    }

    /// Routes, rules and files, before the nodes run.
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

    /// The rules of a translator.
    fn rules(&self, network: &Network, nat: &Placed) -> Result<String> {
        let out = network.interface(nat.node, nat.outside);
        let ports = match nat.rules.ports {
            Ports::Preserving => "",
            Ports::Random => " fully-random",
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
        if nat.rules.input == Input::Drop {
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
            // Without hairpin only what comes from outside is led in.
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

    /// Writes what the hosts read at the start of a run, counted from 0.
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
