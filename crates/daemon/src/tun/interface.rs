//! The virtual interface, by which programs exchange IP packets with other hosts. Packets pass
//! through its queues (`node/queue.rs`), one for each worker.
//!
//! Addresses, MTU and link state are set by netlink before the node drops its privileges. One
//! thread maintains them afterwards (`upkeep.rs`). The interface ends with the process.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use anyhow::{Context, bail};
use shoal_crypto::PublicKey;
use shoal_ip::{AddressGate, Prefix, overlay_address};
use shoal_node::{InterfaceQueue, TunOffloads, TunQueue};

use crate::config::{self, NodeConfig};
use crate::control::api;
use crate::control::journal;
use crate::membership::hosts::ListedHost;
use crate::net::receive::InterfaceNumber;
use crate::tun::changes::ChangeWatcher;
use crate::tun::consent;
use crate::tun::device::{DeviceSetting, Tun};
use crate::tun::dns;
use crate::tun::firewall::SharedFlows;
use crate::tun::kernel_routes::{self, InterfaceRoute, KernelRoutes, RouteRequest};
use crate::tun::names::NodeNames;
use crate::tun::shift_inside::InsideMachines;
use crate::tun::source_rules;
use crate::tun::subnets::{self, Ipv4Network, SubnetPlan, Surroundings};
use crate::tun::upkeep::{self, InterfaceSettings, InterfaceView, Upkeep, is_ipv6_off};

/// The open interface.
pub struct VirtualInterface {
    /// Queues that no worker has taken yet, in the workers' order.
    kept: Vec<InterfaceQueue<Tun, SharedFlows>>,
    /// Addresses of the hosts that packets may go to and come from, by the last list of hosts.
    gate: Arc<AddressGate>,
    /// Queues that the kernel gave, and queues requested.
    queues: u8,
    wanted: u8,
    offloads: TunOffloads,
    name: String,
    prefix: Prefix,
    address: Ipv6Addr,
    ipv4: Option<Ipv4Network>,
    /// The IPv4 address in the list that the interface did not take.
    declined: Option<Ipv4Addr>,
    /// Networks behind this node and others.
    plan: SubnetPlan,
    /// Kernel entries for machines behind gateways with addresses of the shifting prefix.
    inside: Option<InsideMachines>,
    /// Thread that reports changes by other programs.
    changes: Option<ChangeWatcher>,
    /// Thread that maintains the interface and the kernel's routes to networks behind others.
    routes: KernelRoutes,
    /// The interface's number, which the thread updates.
    index: Arc<AtomicU32>,
    view: InterfaceView,
    /// Names that the DNS responder answers with, if there is a responder.
    dns: Option<dns::DnsNames>,
    /// Settings that lead programs to the responder, undone with the interface.
    registration: Option<dns::Registration>,
}

impl VirtualInterface {
    /// Creates the interface with one queue for each worker, and sets it up. `key` is this node's
    /// key, `prefix` the network's prefix, and `ipv4` this node's IPv4 address, if it has one.
    ///
    /// Errors: a message that says what to do.
    pub fn open(
        config: &config::InterfaceConfig,
        workers: u8,
        prefix: Prefix,
        key: &PublicKey,
        ipv4: Option<Ipv4Addr>,
    ) -> anyhow::Result<VirtualInterface> {
        check_ipv6(ipv4)?;
        let address = overlay_address(&prefix, key);
        let name = config.name.as_str();
        let (tuns, attachment) =
            Tun::open(&DeviceSetting::interface(name), config.offload, workers)?;
        let offloads = tuns[0].offloads();
        let mut addresses = vec![(IpAddr::from(address), prefix.bits)];
        let ipv4 = ipv4.map(|address| Ipv4Network { address, bits: config.ipv4_bits });
        addresses.extend(ipv4.map(|ipv4| (ipv4.address.into(), ipv4.bits)));
        let net =
            ipv4.and_then(|ipv4| shoal_directory::Prefix::around(ipv4.address.into(), ipv4.bits));
        let is_named = net.is_some_and(|net| consent::is_named(config, &net));
        let ipv4_metric = if is_named { 0 } else { kernel_routes::METRIC };
        let settings =
            InterfaceSettings { name: name.into(), mtu: config.mtu, addresses, ipv4_metric };
        let index = set_up(&settings)?;
        let upkeep = Upkeep::new(settings, attachment, index);
        let (index, view) = (upkeep.shared_index(), upkeep.view());
        let routes = kernel_routes::start(upkeep)?;
        let TunOffloads { tcp, udp } = offloads;
        tracing::info!(
            name = config.name.as_str(),
            mtu = config.mtu,
            tcp_offload = tcp,
            udp_offload = udp,
            queues = tuns.len(),
            "interface up"
        );
        let own = [Some(address), ipv4.map(|ipv4| ipv4.address.to_ipv6_mapped())];
        let own = own.into_iter().flatten().collect();
        let gate = Arc::new(AddressGate::new(own, config.mtu as usize));
        let flows = SharedFlows::default();
        let queue = |tun| InterfaceQueue::new(tun, Arc::clone(&gate), flows.clone());
        let kept: Vec<_> = tuns.into_iter().map(queue).collect();
        Ok(VirtualInterface {
            queues: kept.len() as u8,
            wanted: workers,
            kept,
            gate,
            offloads,
            name: config.name.as_str().into(),
            prefix,
            address,
            ipv4,
            declined: None,
            plan: SubnetPlan::default(),
            inside: None,
            changes: None,
            routes,
            index,
            view,
            dns: None,
            registration: None,
        })
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// The kernel's number of the interface, which changes if the interface is created anew.
    pub fn number(&self) -> InterfaceNumber {
        Arc::clone(&self.index)
    }

    /// Prefixes that the kernel routes into the interface, without the overlay's own.
    pub fn inside(&self) -> impl Iterator<Item = (IpAddr, u8)> + '_ {
        let ipv4 = self.ipv4.map(|ipv4| (IpAddr::from(ipv4.address), ipv4.bits));
        let reached = self.plan.reached.iter().map(|(prefix, _)| (prefix.ip(), prefix.bits()));
        ipv4.into_iter().chain(reached)
    }

    /// Networks behind this node.
    pub fn served(&self) -> impl Iterator<Item = (IpAddr, u8)> + '_ {
        self.plan.served.iter().map(|prefix| (prefix.ip(), prefix.bits()))
    }

    /// This node's IPv4 address at the interface, if it has one.
    pub fn ipv4(&self) -> Option<Ipv4Addr> {
        self.ipv4.map(|ipv4| ipv4.address)
    }

    /// Notes that the interface does not take the IPv4 address of the list.
    pub fn decline(&mut self, address: Ipv4Addr) {
        self.declined = Some(address);
    }

    /// The IPv4 address that the list had for this node at the start.
    pub fn listed_ipv4(&self) -> Option<Ipv4Addr> {
        self.ipv4().or(self.declined)
    }

    /// The network's prefix at the start.
    pub fn prefix(&self) -> Prefix {
        self.prefix
    }

    /// State for `shoal status`.
    pub fn status(&self) -> api::InterfaceStatus {
        let TunOffloads { tcp, udp } = self.offloads;
        api::InterfaceStatus {
            name: self.name.clone(),
            state: self.view.get().0.as_str().into(),
            address: self.address.to_string(),
            ipv4: self.ipv4().map(|ipv4| ipv4.to_string()),
            tcp_offload: tcp,
            udp_offload: udp,
            queues: self.queues(),
            serves: self.plan.served.iter().map(ToString::to_string).collect(),
            reaches: self.plan.reached.iter().map(behind).collect(),
        }
    }

    /// Warnings for the operator: missing queues, and faults of networks behind hosts.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = self.plan.warnings.clone();
        if self.queues < self.wanted {
            warnings.push(format!(
                "[data] workers = {}, but the kernel gave the interface {} queue: the first worker \
                 alone serves programs",
                self.wanted, self.queues
            ));
        }
        warnings.extend(subnets::not_forwarded(&self.plan.served));
        warnings.extend(self.routes.faults());
        warnings.extend(self.view.get().1);
        warnings.extend(self.inside.as_ref().and_then(subnets::not_proxied));
        warnings
    }

    /// Number of queues.
    pub fn queues(&self) -> u8 {
        self.queues
    }

    /// Takes the next worker's queue.
    pub fn take_queue(&mut self) -> Option<InterfaceQueue<Tun, SharedFlows>> {
        (!self.kept.is_empty()).then(|| self.kept.remove(0))
    }

    /// Makes the thread drop all privileges but the one that it needs.
    pub fn seal(&self) -> anyhow::Result<()> {
        self.routes.seal()
    }

    /// Starts the thread that reports other programs' changes, with the caller's privileges.
    pub fn watch(&mut self) -> anyhow::Result<()> {
        let changes = ChangeWatcher::watch(Arc::clone(&self.index), self.routes.bell());
        self.changes = Some(changes.context("[interface]")?);
        Ok(())
    }

    /// Restores the interface at once, even if the thread rests.
    pub fn put_right(&self) {
        self.view.ask();
        self.routes.bell()();
    }

    /// Sets the names for the DNS responder, which change with each list of hosts.
    pub fn set_dns(&mut self, dns: dns::DnsNames, registration: Option<dns::Registration>) {
        (self.dns, self.registration) = (Some(dns), registration);
    }

    /// The networks of hosts' own addresses.
    pub fn networks(&self) -> Vec<shoal_directory::Prefix> {
        let ipv6 = shoal_directory::Prefix::around(self.prefix.address.into(), self.prefix.bits);
        let ipv4 =
            self.ipv4.and_then(|own| shoal_directory::Prefix::around(own.address.into(), own.bits));
        ipv6.into_iter().chain(ipv4).collect()
    }

    /// Applies the hosts of the list and the networks behind them. Returns the new gate.
    ///
    /// Errors: two hosts have one address (chance one in 2^80). The gate then has all others.
    pub fn set_hosts(
        &mut self,
        config: &NodeConfig,
        names: &NodeNames,
    ) -> (Arc<AddressGate>, anyhow::Result<()>) {
        let mut gate = (*self.gate).clone();
        gate.clear();
        self.set_prefixes(config, names, &mut gate);
        if let Some(dns) = &self.dns {
            let hosts = names.hosts();
            let named = hosts.iter().filter(|host| hosts.holds_name(host));
            let has_ipv6 = self.has_ipv6();
            let entries = named.map(|host| (&*host.name, self.reached_by(host, has_ipv6)));
            dns.set(dns::NameTable::new(entries, self.networks()));
        }
        let mut clash = None;
        for host in names.hosts().iter() {
            let Some(id) = names.host_id(&host.name) else { continue };
            for address in self.addresses_of(host) {
                let address = match address {
                    IpAddr::V4(ipv4) => ipv4.to_ipv6_mapped(),
                    IpAddr::V6(address) => address,
                };
                if gate.add(id.bits(), address).is_err() {
                    clash = Some((host.name.clone(), address));
                }
            }
        }
        self.gate = Arc::new(gate);
        let result = match clash {
            None => Ok(()),
            Some((name, address)) => Err(anyhow::anyhow!(
                "host {name:?}: its address {address} is another host's too: give it a new key"
            )),
        };
        (Arc::clone(&self.gate), result)
    }

    /// Addresses at which programs reach a host. IPv6 comes first, if the interface may have such
    /// an address. IPv4 follows if the kernel routes that address into the interface. Packets to
    /// any other IPv4 address would leave unprotected, past the network.
    pub fn reached_at(&self, host: &ListedHost) -> Vec<IpAddr> {
        self.reached_by(host, self.has_ipv6())
    }

    /// True if the kernel lets the interface have an IPv6 address. Reads a file, so ask once for a
    /// list of hosts.
    fn has_ipv6(&self) -> bool {
        !is_ipv6_off(&self.name)
    }

    fn reached_by(&self, host: &ListedHost, has_ipv6: bool) -> Vec<IpAddr> {
        let mut addresses = self.addresses_of(host);
        addresses.retain(|address| match address {
            IpAddr::V4(ipv4) => self.ipv4.is_some_and(|own| own.holds(*ipv4)),
            IpAddr::V6(_) => has_ipv6,
        });
        addresses
    }

    /// Addresses that a host may send from: IPv6, then IPv4 if it has one. None if it has no
    /// interface.
    fn addresses_of(&self, host: &ListedHost) -> Vec<IpAddr> {
        if !host.interface {
            return Vec::new();
        }
        let address = overlay_address(&self.prefix, &host.key);
        [Some(address.into()), host.ipv4.map(IpAddr::from)].into_iter().flatten().collect()
    }

    fn set_prefixes(&mut self, config: &NodeConfig, names: &NodeNames, gate: &mut AddressGate) {
        let Some(section) = &config.interface else { return };
        let around = Surroundings::look(config, names.hosts(), &self.prefix);
        let plan = subnets::plan(section, &config.node.name, names.hosts(), &self.prefix, &around);
        let hosts = plan.reached.iter().map(|(prefix, name)| (prefix, names.host_id(name)));
        let hosts = hosts.filter_map(|(prefix, id)| Some((prefix, Some(id?.bits()))));
        for (prefix, host) in hosts.chain(plan.served.iter().map(|prefix| (prefix, None))) {
            let (address, bits) = subnets::mapped(prefix);
            // Neither the list nor the plan has a prefix twice.
            let _known = gate.add_prefix(host, address, bits);
        }
        let other = self.ipv4.is_none().then(|| around.source(&plan.served)).flatten();
        let route = |(prefix, _): &(shoal_directory::Prefix, String)| InterfaceRoute {
            prefix: *prefix,
            source: other.filter(|_| prefix.ip().is_ipv4()),
            is_inside: around.is_inside(prefix),
        };
        self.inside = subnets::inside(config, &plan);
        let inside = self.inside.clone();
        self.routes.set(RouteRequest { routes: plan.reached.iter().map(route).collect(), inside });
        let new = plan.warnings.iter().filter(|text| !self.plan.warnings.contains(text));
        let faults: Vec<String> = new.cloned().collect();
        if !faults.is_empty() {
            let what = format!("[interface]: {} prefixes are not in force", faults.len());
            tracing::warn!("{}", journal::unnamed(&what, journal::STATUS, &faults));
        }
        self.plan = plan;
    }
}

fn behind((prefix, host): &(shoal_directory::Prefix, String)) -> api::HostNetwork {
    api::HostNetwork { prefix: prefix.to_string(), host: host.clone() }
}

/// Checks that a new interface can have an address: IPv6, or this node's IPv4 address if it has
/// one. Returns a warning if only IPv4 works.
///
/// # Errors
/// The interface can have no address. The text says what to do.
pub fn check_ipv6(ipv4: Option<Ipv4Addr>) -> anyhow::Result<Option<String>> {
    if !is_ipv6_off("default") {
        return Ok(None);
    }
    if ipv4.is_some() {
        return Ok(Some(IPV4_ALONE.into()));
    }
    bail!(
        "[interface]: IPv6 is turned off for new interfaces, and this node has no IPv4 address in \
         the network: set net.ipv6.conf.default.disable_ipv6 = 0 with sysctl, or give the node an \
         IPv4 address in the list of hosts"
    )
}

const IPV4_ALONE: &str = "[interface]: IPv6 is turned off for new interfaces, so programs reach \
                          hosts by IPv4 alone: set net.ipv6.conf.default.disable_ipv6 = 0 with \
                          sysctl for IPv6";

/// Sets addresses, MTU and state by netlink. Returns the interface's number.
fn set_up(settings: &InterfaceSettings) -> anyhow::Result<u32> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("[interface]: can't start the runtime for netlink")?;
    runtime.block_on(async {
        let (connection, handle, _) =
            rtnetlink::new_connection().context("[interface]: can't open a netlink socket")?;
        let served = tokio::spawn(connection);
        let index = upkeep::set_up(&handle, settings).await?;
        source_rules::add(&handle, index, &settings.addresses).await;
        served.abort();
        Ok(index)
    })
}
