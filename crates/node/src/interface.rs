//! The virtual interface: any program speaks IP with other hosts of the network.
//!
//! ```text
//! programs -> TUN -> Gate -> cells -> edge      edge -> Gate -> Merge -> TUN -> programs
//! ```
//!
//! Addresses, MTU and the link's state are set by netlink before privileges are dropped; nothing of
//! it outlives the process.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::BorrowedFd;
use std::time::Duration;

use anyhow::Context;
use rtnetlink::LinkUnspec;
use rtnetlink::packet_route::link::LinkAttribute;
use shoal_crypto::{NetworkSecret, PublicKey};
use shoal_edge::{Arrival, Edge, HostId, Out};
use shoal_ip::{Brake, Gate, Merge, Prefix, READ_MAX, REPLY_MAX, Split, Told, VNET_LEN};
use shoal_ip::{complain, mark, overlay_address, overlay_prefix};
use shoal_wire::{DropReason, Time, ip};

use crate::api;
use crate::authority::Rights;
use crate::config::{self, Config};
use crate::dns;
use crate::firewall::Wall;
use crate::hosts::Host;
use crate::kernel_routes::{KernelRoutes, Route};
use crate::names::Names;
use crate::subnets::{self, Plan, Surroundings};
use crate::tun::{Tun, TunOffloads};

/// Segments in one super-frame of the kernel: what one send of the relay holds.
const SEGMENTS_MAX: u32 = 44;
/// Packets and super-frames that may wait in the kernel: 10 ms of 1,300-byte datagrams at 1 Gbit/s,
/// since a busy machine keeps a thread waiting for longer than the default of 500 lasts.
const QUEUE_PACKETS: u32 = 1_000;
/// Cells per turn of the worker: what arrives from the network must not wait for programs, and a
/// queue that one turn empties counts as none.
const CELLS_MAX: usize = 16 * SEGMENTS_MAX as usize;
/// The device was never found empty for so long, five round trips of a direct link under load: more
/// comes in than goes out, and its queue stands.
const STANDING: Duration = Duration::from_millis(5);

/// The open interface.
pub struct Interface {
    tun: Tun,
    gate: Gate,
    merge: Merge,
    name: String,
    prefix: Prefix,
    address: Ipv6Addr,
    ipv4: Option<Ipv4Addr>,
    /// Networks behind this node and others.
    plan: Plan,
    /// Tells the kernel of them; none where no others' are accepted.
    routes: Option<KernelRoutes>,
    read: Vec<u8>,
    reply: [u8; REPLY_MAX],
    drops: Vec<(DropReason, u64)>,
    /// With an authority: which packets of other hosts pass to programs.
    firewall: Option<Wall>,
    /// With a responder: the names that it answers with.
    dns: Option<dns::Names>,
    /// Tells this host's flows of a queue here.
    brake: Brake,
    /// Tells arriving flows of a queue on their way.
    arriving: Brake,
    /// When the device was first found to hold something, since it was last empty.
    busy_since: Option<Time>,
    /// Where the last packet went: whether its way is free decides about reading on.
    last: Option<HostId>,
    /// Arrivals that go no further, by their place in the batch.
    dropped: Vec<usize>,
}

impl Interface {
    /// Makes the interface and sets it up, for the node with this key and, if it has one, IPv4
    /// address.
    ///
    /// Errors: what to do about it.
    pub fn open(
        config: &config::Interface,
        secret: &NetworkSecret,
        key: &PublicKey,
        ipv4: Option<Ipv4Addr>,
    ) -> anyhow::Result<Interface> {
        let prefix = overlay_prefix(secret);
        let address = overlay_address(&prefix, key);
        let tun = Tun::open(&config.name, config.offload)?;
        let mut addresses = vec![(IpAddr::from(address), prefix.bits)];
        addresses.extend(ipv4.map(|ipv4| (ipv4.into(), config.ipv4_bits)));
        let index = set_up(&config.name, &addresses, config.mtu)?;
        let routes = match config.accept_prefixes.is_empty() {
            true => None,
            false => Some(KernelRoutes::start(index)?),
        };
        let TunOffloads { tcp, udp } = tun.offloads();
        tracing::info!(
            name = config.name,
            mtu = config.mtu,
            tcp_offload = tcp,
            udp_offload = udp,
            "interface up"
        );
        Ok(Interface {
            gate: Gate::new(
                [Some(address), ipv4.map(|ipv4| ipv4.to_ipv6_mapped())]
                    .into_iter()
                    .flatten()
                    .collect(),
                config.mtu as usize,
            ),
            merge: Merge::new(tcp, udp),
            tun,
            name: config.name.clone(),
            prefix,
            address,
            ipv4,
            plan: Plan::default(),
            routes,
            read: vec![0; READ_MAX],
            reply: [0; REPLY_MAX],
            drops: Vec::new(),
            firewall: None,
            dns: None,
            brake: Brake::default(),
            arriving: Brake::default(),
            busy_since: None,
            last: None,
            dropped: Vec::new(),
        })
    }

    /// What it is called.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What the status says about it.
    pub fn status(&self) -> api::Interface {
        let TunOffloads { tcp, udp } = self.tun.offloads();
        api::Interface {
            name: self.name.clone(),
            address: self.address.to_string(),
            ipv4: self.ipv4.map(|ipv4| ipv4.to_string()),
            tcp_offload: tcp,
            udp_offload: udp,
            serves: self.plan.served.iter().map(ToString::to_string).collect(),
            reaches: self.plan.reached.iter().map(behind).collect(),
        }
    }

    /// What the operator should know about networks behind hosts.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = self.plan.warnings.clone();
        warnings.extend(subnets::not_forwarded(&self.plan.served));
        warnings.extend(self.routes.iter().flat_map(KernelRoutes::faults));
        warnings
    }

    /// Becomes readable when a program has sent something.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.tun.fd()
    }

    /// Answers names through `dns` from the next list of hosts on.
    pub fn set_dns(&mut self, dns: dns::Names) {
        self.dns = Some(dns);
    }

    /// Puts the hosts of the list into force, and the networks behind them.
    ///
    /// Errors: two have one address (which takes a chance of one in 2^80); all others are in force.
    pub fn set_hosts(&mut self, config: &Config, names: &Names) -> anyhow::Result<()> {
        self.gate.clear();
        self.set_prefixes(config, names);
        if let Some(dns) = &self.dns {
            let address = |host: &Host| overlay_address(&self.prefix, &host.key).into();
            let book = names.hosts().iter();
            let book = book.map(|host| (host.name.to_ascii_lowercase(), vec![address(host)]));
            dns.set(book.collect());
        }
        let mut clash = None;
        for host in names.hosts().iter() {
            let Some(id) = names.host_id(&host.name) else { continue };
            let address = overlay_address(&self.prefix, &host.key);
            let ipv4 = host.ipv4.map(|ipv4| ipv4.to_ipv6_mapped());
            for address in [Some(address), ipv4].into_iter().flatten() {
                if self.gate.add(id.0, address).is_err() {
                    clash = Some((host.name.clone(), address));
                }
            }
        }
        match clash {
            None => Ok(()),
            Some((name, address)) => anyhow::bail!(
                "host {name:?}: its address {address} is another host's too: give it a new key"
            ),
        }
    }

    fn set_prefixes(&mut self, config: &Config, names: &Names) {
        let Some(section) = &config.interface else { return };
        let around = Surroundings::look(config, names.hosts());
        let plan = subnets::plan(section, &config.node.name, names.hosts(), &self.prefix, &around);
        let hosts = plan.reached.iter().map(|(prefix, name)| (prefix, names.host_id(name)));
        let hosts = hosts.filter_map(|(prefix, id)| Some((prefix, Some(id?.0))));
        for (prefix, host) in hosts.chain(plan.served.iter().map(|prefix| (prefix, None))) {
            let (address, bits) = subnets::mapped(prefix);
            // Neither list nor plan has one twice.
            let _known = self.gate.add_prefix(host, address, bits);
        }
        if let Some(routes) = &self.routes {
            let other = self.ipv4.is_none().then(|| around.source(&plan.served)).flatten();
            let route = |(prefix, _): &(shoal_directory::Prefix, String)| Route {
                prefix: *prefix,
                source: other.filter(|_| prefix.ip().is_ipv4()),
            };
            routes.set(plan.reached.iter().map(route).collect());
        }
        for warning in plan.warnings.iter().filter(|text| !self.plan.warnings.contains(text)) {
            tracing::warn!("{warning}");
        }
        self.plan = plan;
    }

    /// Puts into force what hosts may begin; from then on everything else is refused.
    pub fn set_rights(&mut self, rights: &Rights) {
        self.firewall.get_or_insert_default().set_rights(rights);
    }

    /// Forgets a host's flows: its number may be given to another.
    pub fn forget(&mut self, host: HostId) {
        if let Some(wall) = &mut self.firewall {
            wall.forget(host);
        }
    }

    /// Flows that the firewall remembers, if there is one.
    pub fn flows(&self) -> Option<usize> {
        self.firewall.as_ref().map(Wall::flows)
    }

    /// Where the last packet went, if any did.
    pub fn last(&self) -> Option<HostId> {
        self.last
    }

    /// Writes what arrived to the interface, flows joined.
    pub fn deliver(&mut self, now: Time, arrivals: &[Arrival], buf: &mut [u8]) {
        self.dropped.clear();
        if arrivals.iter().any(|arrival| arrival.congested) {
            self.slow_down(now, arrivals, buf);
        }
        let Interface { tun, gate, merge, drops, dropped, firewall, .. } = self;
        let buf = &*buf;
        let mut refused = 0;
        let mut write = |head: &[u8], pieces: &[shoal_ip::Piece]| {
            if tun.write(head, buf, pieces).is_err() {
                refused += pieces.len() as u64;
            }
        };
        for (i, arrival) in arrivals.iter().enumerate() {
            if dropped.contains(&i) {
                continue;
            }
            let plain = &buf[arrival.at as usize..(arrival.at + arrival.len) as usize];
            let bytes = &plain[ip::PACKET_AT..];
            let passed = gate.inbound(arrival.host.0, bytes).and_then(|packet| {
                let wall = firewall.as_mut();
                wall.map_or(Ok(()), |wall| wall.inbound(now, arrival.host, &packet, bytes))?;
                Ok(packet)
            });
            match passed {
                Ok(packet) => {
                    let at = arrival.at + ip::PACKET_AT as u32;
                    merge.push(buf, at, &packet, plain[ip::FLAGS_AT], &mut write);
                }
                Err(reason) => drops.push((reason, 1)),
            }
        }
        merge.finish(&mut write);
        if refused > 0 {
            drops.push((DropReason::InterfaceRefused, refused));
        }
    }

    /// Hands the marks of cells on to the packets in them.
    fn slow_down(&mut self, now: Time, arrivals: &[Arrival], buf: &mut [u8]) {
        for (i, arrival) in arrivals.iter().enumerate().filter(|(_, a)| a.congested) {
            let plain = arrival.at as usize + ip::PACKET_AT..(arrival.at + arrival.len) as usize;
            // What the gate refuses is counted where it is delivered.
            let Ok(packet) = self.gate.inbound(arrival.host.0, &buf[plain.clone()]) else {
                continue;
            };
            match self.arriving.tell(now, &packet, &buf[plain.clone()]) {
                Told::Nothing => {}
                Told::Mark => mark(&mut buf[plain]),
                Told::Drop => {
                    self.drops.push((DropReason::IpCongested, 1));
                    self.dropped.push(i);
                }
            }
        }
    }

    /// Takes in what programs sent, a bounded part of it; [`Edge::drive`] sends the rest of it.
    /// While the way of the last one is full they stay where they are: that queue is bounded, and
    /// its sender notices at once.
    pub fn read(&mut self, now: Time, edge: &mut Edge, out: &mut impl Out) {
        let mut cells = 0;
        while cells < CELLS_MAX {
            let to = self.last.and_then(|host| edge.address_of(host));
            if to.is_some_and(|to| out.is_congested(to)) {
                return;
            }
            let len = match self.tun.read(&mut self.read) {
                Ok(len) => len,
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(_) => {
                    self.busy_since = None;
                    return;
                }
            };
            let since = *self.busy_since.get_or_insert(now);
            let read = &self.read[..len];
            cells += 1;
            match self.gate.outbound(read) {
                Ok((host, mut split)) => {
                    let host = HostId(host);
                    if let Some(wall) = &mut self.firewall
                        && let Err(reason) = wall.outbound(now, host, &read[VNET_LEN..])
                    {
                        self.drops.push((reason, 1));
                        continue;
                    }
                    let stands = now.since(since) >= STANDING;
                    let first = match &mut self.brake {
                        brake if stands => slow_down(brake, now, &mut split, read),
                        _ => 0,
                    };
                    if first > 0 {
                        self.drops.push((DropReason::IpCongested, 1));
                    }
                    for i in first..split.count() {
                        let write = |plain: &mut [u8]| split.write(i, plain);
                        edge.send_packet(now, host, split.cell_len(i), out, write);
                    }
                    self.last = Some(host);
                    cells += split.count() - 1;
                }
                Err(refusal) => {
                    self.drops.push((refusal.reason, 1));
                    let Some((complaint, packet)) = refusal.complaint else { continue };
                    let told = complain(complaint, &packet, &read[VNET_LEN..], &mut self.reply);
                    // A program that is not told waits for its own timer.
                    let _ = told.map(|len| self.tun.write(&self.reply[..len], &[], &[]));
                }
            }
        }
    }

    /// Nothing waits in the device: [`Self::read`], which may have taken the last of it, was not
    /// told.
    pub fn note_empty(&mut self) {
        self.busy_since = None;
    }

    /// Drops since the last call.
    pub fn take_drops(&mut self) -> impl Iterator<Item = (DropReason, u64)> + '_ {
        self.drops.drain(..)
    }
}

fn behind((prefix, host): &(shoal_directory::Prefix, String)) -> api::Behind {
    api::Behind { prefix: prefix.to_string(), host: host.clone() }
}

/// Tells the flow of `split` that a queue stands; returns how many of its packets go no further.
fn slow_down(brake: &mut Brake, now: Time, split: &mut Split<'_>, read: &[u8]) -> usize {
    match brake.tell(now, split.packet(), &read[VNET_LEN..]) {
        Told::Nothing => 0,
        Told::Mark => {
            split.mark();
            0
        }
        // The first: what follows it tells the receiver at once that it is missing.
        Told::Drop => 1,
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
        served.abort();
        Ok(index)
    })
}
