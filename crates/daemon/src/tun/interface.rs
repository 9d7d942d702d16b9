//! The virtual interface: any program speaks IP with other hosts of the network. Packets go through
//! its queues (`node/queue.rs`), of which each worker has one.
//!
//! Addresses, MTU and the link's state are set by netlink before privileges are dropped; nothing of
//! it outlives the process.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use anyhow::{Context, bail};
use rtnetlink::LinkUnspec;
use rtnetlink::packet_route::link::LinkAttribute;
use shoal_crypto::PublicKey;
use shoal_ip::{Gate, Prefix, overlay_address};
use shoal_node::{Device, Queue, TunOffloads};

use crate::config::{self, Config};
use crate::control::api;
use crate::control::journal;
use crate::membership::hosts::Host;
use crate::tun::device::{Asks, Tun};
use crate::tun::dns;
use crate::tun::firewall::SharedFlows;
use crate::tun::hop_inside::Inside;
use crate::tun::kernel_routes::{self, KernelRoutes, Route, Wanted};
use crate::tun::names::Names;
use crate::tun::source_rules;
use crate::tun::subnets::{self, Ipv4Network, Plan, Surroundings};

/// Segments in one super-frame of the kernel: what one send of the relay holds.
const SEGMENTS_MAX: u32 = 44;
/// Packets and super-frames that may wait in the kernel: 10 ms of 1,300-byte datagrams at 1 Gbit/s,
/// since a busy machine keeps a thread waiting for longer than the default of 500 lasts.
const QUEUE_PACKETS: u32 = 1_000;

/// The open interface.
pub struct Interface {
    /// Its queues by worker, until these take them.
    kept: Vec<Queue<Tun, SharedFlows>>,
    /// Who may be spoken with, by the last list of hosts.
    gate: Arc<Gate>,
    /// Queues that there are, and that were asked for.
    queues: u8,
    wanted: u8,
    offloads: TunOffloads,
    name: String,
    prefix: Prefix,
    address: Ipv6Addr,
    ipv4: Option<Ipv4Network>,
    /// Networks behind this node and others.
    plan: Plan,
    /// What machines behind this node need that have addresses of the prefix that hops.
    inside: Option<Inside>,
    /// Sets the kernel's routes to those behind others; none where no such network is accepted.
    routes: Option<KernelRoutes>,
    /// With a responder: the names that it answers with.
    dns: Option<dns::Names>,
    /// What the machine was told of the responder; taken back when the interface goes.
    registration: Option<dns::Registration>,
}

impl Interface {
    /// Makes the interface, with a queue per worker, and sets it up, for the node with this key
    /// in the network of this prefix and, if it has one, with this IPv4 address. It is to have
    /// machines `inside` the prefix that hops behind it, or not.
    ///
    /// Errors: what to do about it.
    pub fn open(
        config: &config::Interface,
        workers: u8,
        prefix: Prefix,
        key: &PublicKey,
        (ipv4, inside): (Option<Ipv4Addr>, bool),
    ) -> anyhow::Result<Interface> {
        check_ipv6()?;
        let address = overlay_address(&prefix, key);
        let tuns = Tun::open(&Asks::interface(config.name.as_str()), config.offload, workers)?;
        let offloads = tuns[0].offloads();
        let mut addresses = vec![(IpAddr::from(address), prefix.bits)];
        let ipv4 = ipv4.map(|address| Ipv4Network { address, bits: config.ipv4_bits });
        addresses.extend(ipv4.map(|ipv4| (ipv4.address.into(), ipv4.bits)));
        let index = set_up(config.name.as_str(), &addresses, config.mtu)?;
        let routes = match config.accept_prefixes.is_empty() && !inside {
            true => None,
            false => Some(kernel_routes::start(index)?),
        };
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
        let gate = Arc::new(Gate::new(own, config.mtu as usize));
        let flows = SharedFlows::default();
        let queue = |tun| Queue::new(tun, Arc::clone(&gate), flows.clone());
        let kept: Vec<_> = tuns.into_iter().map(queue).collect();
        Ok(Interface {
            queues: kept.len() as u8,
            wanted: workers,
            kept,
            gate,
            offloads,
            name: config.name.as_str().into(),
            prefix,
            address,
            ipv4,
            plan: Plan::default(),
            inside: None,
            routes,
            dns: None,
            registration: None,
        })
    }

    /// What it is called.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// This node's IPv4 address there, if it has one.
    pub fn ipv4(&self) -> Option<Ipv4Addr> {
        self.ipv4.map(|ipv4| ipv4.address)
    }

    /// The network's prefix with which it started.
    pub fn prefix(&self) -> Prefix {
        self.prefix
    }

    /// What the status says about it.
    pub fn status(&self) -> api::Interface {
        let TunOffloads { tcp, udp } = self.offloads;
        api::Interface {
            name: self.name.clone(),
            address: self.address.to_string(),
            ipv4: self.ipv4().map(|ipv4| ipv4.to_string()),
            tcp_offload: tcp,
            udp_offload: udp,
            queues: self.queues(),
            serves: self.plan.served.iter().map(ToString::to_string).collect(),
            reaches: self.plan.reached.iter().map(behind).collect(),
        }
    }

    /// What the operator should know: a queue that the kernel refused, networks behind hosts.
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
        let missing = self.routes.iter().flat_map(KernelRoutes::faults);
        warnings.extend(missing);
        warnings.extend(self.inside.as_ref().and_then(subnets::not_proxied));
        warnings
    }

    /// How many queues there are.
    pub fn queues(&self) -> u8 {
        self.queues
    }

    /// The next worker's queue, for it to keep.
    pub fn take_queue(&mut self) -> Option<Queue<Tun, SharedFlows>> {
        (!self.kept.is_empty()).then(|| self.kept.remove(0))
    }

    /// Gives up the rights of the thread that sets routes, but for the one that it needs.
    pub fn seal(&self) -> anyhow::Result<()> {
        self.routes.as_ref().map_or(Ok(()), KernelRoutes::seal)
    }

    /// Answers names through `dns` from the next list of hosts on.
    pub fn set_dns(&mut self, dns: dns::Names, registration: Option<dns::Registration>) {
        (self.dns, self.registration) = (Some(dns), registration);
    }

    /// The networks of hosts' own addresses.
    pub fn networks(&self) -> Vec<shoal_directory::Prefix> {
        let ipv6 = shoal_directory::Prefix::around(self.prefix.address.into(), self.prefix.bits);
        let ipv4 =
            self.ipv4.and_then(|own| shoal_directory::Prefix::around(own.address.into(), own.bits));
        ipv6.into_iter().chain(ipv4).collect()
    }

    /// Takes the hosts of the list and the networks behind them; says who may be spoken with now.
    ///
    /// Errors: two have one address (which takes a chance of one in 2^80); the gate has all others.
    pub fn set_hosts(&mut self, config: &Config, names: &Names) -> (Arc<Gate>, anyhow::Result<()>) {
        let mut gate = (*self.gate).clone();
        gate.clear();
        self.set_prefixes(config, names, &mut gate);
        if let Some(dns) = &self.dns {
            let hosts = names.hosts();
            let named = hosts.iter().filter(|host| hosts.holds_name(host));
            let entries = named.map(|host| (&*host.name, self.reached_at(host)));
            dns.set(dns::Book::new(entries, self.networks()));
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

    /// Where programs find a host: IPv6, then IPv4 if the kernel hands packets to that address to
    /// the interface. Packets to any other IPv4 address would leave unprotected, past the network.
    pub fn reached_at(&self, host: &Host) -> Vec<IpAddr> {
        let mut addresses = self.addresses_of(host);
        addresses.retain(|address| match address {
            IpAddr::V4(ipv4) => self.ipv4.is_some_and(|own| own.holds(*ipv4)),
            IpAddr::V6(_) => true,
        });
        addresses
    }

    /// Addresses that a host may send from: IPv6, then IPv4 if it has that. None where it has no
    /// interface.
    fn addresses_of(&self, host: &Host) -> Vec<IpAddr> {
        if !host.interface {
            return Vec::new();
        }
        let address = overlay_address(&self.prefix, &host.key);
        [Some(address.into()), host.ipv4.map(IpAddr::from)].into_iter().flatten().collect()
    }

    fn set_prefixes(&mut self, config: &Config, names: &Names, gate: &mut Gate) {
        let Some(section) = &config.interface else { return };
        let around = Surroundings::look(config, names.hosts());
        let plan = subnets::plan(section, &config.node.name, names.hosts(), &self.prefix, &around);
        let hosts = plan.reached.iter().map(|(prefix, name)| (prefix, names.host_id(name)));
        let hosts = hosts.filter_map(|(prefix, id)| Some((prefix, Some(id?.bits()))));
        for (prefix, host) in hosts.chain(plan.served.iter().map(|prefix| (prefix, None))) {
            let (address, bits) = subnets::mapped(prefix);
            // Neither list nor plan has a prefix twice.
            let _known = gate.add_prefix(host, address, bits);
        }
        if let Some(routes) = &self.routes {
            let other = self.ipv4.is_none().then(|| around.source(&plan.served)).flatten();
            let route = |(prefix, _): &(shoal_directory::Prefix, String)| Route {
                prefix: *prefix,
                source: other.filter(|_| prefix.ip().is_ipv4()),
                is_inside: around.is_inside(prefix),
            };
            self.inside = subnets::inside(config, &plan);
            let inside = self.inside.clone();
            routes.set(Wanted { routes: plan.reached.iter().map(route).collect(), inside });
        }
        let new = plan.warnings.iter().filter(|text| !self.plan.warnings.contains(text));
        let faults: Vec<String> = new.cloned().collect();
        if !faults.is_empty() {
            let what = format!("[interface]: {} prefixes are not in force", faults.len());
            tracing::warn!("{}", journal::unnamed(&what, journal::STATUS, &faults));
        }
        self.plan = plan;
    }
}

fn behind((prefix, host): &(shoal_directory::Prefix, String)) -> api::Behind {
    api::Behind { prefix: prefix.to_string(), host: host.clone() }
}

/// Whether an interface that is made here can have an IPv6 address.
///
/// Errors: what to do about it.
pub fn check_ipv6() -> anyhow::Result<()> {
    let set = std::fs::read_to_string("/proc/sys/net/ipv6/conf/default/disable_ipv6");
    match set.as_deref().map(str::trim_end) {
        Ok("0") => Ok(()),
        Ok(_) => bail!(
            "[interface]: IPv6 is turned off for new interfaces: set \
             net.ipv6.conf.default.disable_ipv6 = 0 with sysctl"
        ),
        // Without /proc IPv6 may be there all the same; if not, setting the address fails.
        Err(_) if !std::path::Path::new("/proc/sys/net").exists() => Ok(()),
        Err(_) => bail!("[interface]: this kernel has no IPv6, which every interface needs"),
    }
}

/// Address, MTU and state, by netlink; returns the interface's number.
fn set_up(name: &str, addresses: &[(IpAddr, u8)], mtu: u32) -> anyhow::Result<u32> {
    let index = nix::net::if_::if_nametoindex(name)
        .with_context(|| format!("[interface] name: {name:?} vanished"))?;
    // No link-local address: nobody on this link could answer to it. Kernels without IPv6 fail
    // below, with a reason.
    let _ = std::fs::write(format!("/proc/sys/net/ipv6/conf/{name}/addr_gen_mode"), "1");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("[interface]: can't start the runtime for netlink")?;
    runtime.block_on(async {
        let (connection, handle, _) =
            rtnetlink::new_connection().context("[interface]: can't open a netlink socket")?;
        let served = tokio::spawn(connection);
        let up = LinkUnspec::new_with_index(index)
            .mtu(mtu)
            .append_extra_attribute(LinkAttribute::GsoMaxSegs(SEGMENTS_MAX))
            .append_extra_attribute(LinkAttribute::TxQueueLen(QUEUE_PACKETS))
            .up()
            .build();
        let change = handle.link().set(up).execute().await;
        change.with_context(|| format!("[interface]: {name:?} can't be brought up"))?;
        for &(address, bits) in addresses {
            let added = handle.address().add(index, address, bits).execute().await;
            added.with_context(|| {
                format!(
                    "[interface]: {name:?} can't have the address {address}: is IPv6 turned off \
                     (net.ipv6.conf.all.disable_ipv6), or the address on another interface?"
                )
            })?;
        }
        source_rules::add(&handle, index, addresses).await;
        served.abort();
        Ok(index)
    })
}
