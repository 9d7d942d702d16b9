//! Builds a node's sockets and state machine from its checked files.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use shoal_crypto::{PublicKey, Rng};
use shoal_edge::{Edge, HostConfig};
use shoal_link::{EgressConfig, LivenessConfig};
use shoal_node::Seeds;
use shoal_onion::path::Vanguards;
use shoal_onion::pool::CircuitPool;
use shoal_routing::LinkPolicy;
use shoal_session::SessionRole;
use shoal_wire::Time;

use crate::config::{ListenAddresses, NodeConfig, NodeSetup};
use crate::membership::anonymity;
use crate::membership::circuits;
use crate::membership::hosts::{HostList, ListedHost};
use crate::membership::levels;
use crate::net::ports::NodeSockets;
use crate::net::receive::DatagramReceiver;
use crate::net::socket::SocketConfig;
use crate::tun::interface::VirtualInterface;
use crate::tun::names::NodeNames;
use crate::worker::clock::{BootClock, unix_ms};
use crate::worker::direct;
use crate::worker::endpoints;
use crate::worker::links;
use crate::worker::shell::DaemonNode;
use crate::worker::shifting::KernelShifts;

/// Maximum number of waiting relay and edge events. The worker takes them after every batch.
const EVENTS_MAX: usize = 1_024;
/// Maximum number of echo requests that wait for an answer.
const ECHO_MAX: usize = 256;

/// Opens the sockets. The third value is a warning for the operator.
pub fn open_ports(
    setup: &NodeSetup,
) -> anyhow::Result<(NodeSockets, Vec<DatagramReceiver>, Option<String>)> {
    let (config, listen) = (&setup.config, setup.listen.addresses());
    let sockets = socket_config(config);
    let open = |listen: &[SocketAddr]| NodeSockets::open(listen, &sockets, config.data.gso);
    let own = match &setup.listen {
        ListenAddresses::At(_) => false,
        ListenAddresses::Own(_) | ListenAddresses::AnyPort(_) => true,
    };
    let opened = match open(&listen) {
        // A machine without IPv6 listens only by IPv4.
        Err(error) if own && !is_taken(&error) => {
            let four: Vec<_> = listen.iter().copied().filter(SocketAddr::is_ipv4).collect();
            if four.is_empty() || four == listen { Err(error) } else { open(&four) }
        }
        opened => opened,
    };
    let error = match opened {
        Ok((ports, receivers)) => return Ok((ports, receivers, None)),
        Err(error) if own && is_taken(&error) => error,
        Err(error) => return Err(error),
    };
    let any: Vec<_> = listen.iter().map(|at| SocketAddr::new(at.ip(), 0)).collect();
    let Ok((ports, receivers)) = open(&any) else { return Err(error) };
    let warning = "the port that follows from this node's key (`shoal pubkey --port` prints it) \
                   belongs to another program: others can't call this node there until it is \
                   free; or choose one by [node] listen";
    Ok((ports, receivers, Some(warning.into())))
}

fn is_taken(error: &anyhow::Error) -> bool {
    let errno = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::raw_os_error);
    errno == Some(libc::EADDRINUSE)
}

fn socket_config(config: &NodeConfig) -> SocketConfig {
    SocketConfig {
        receive_buffer_bytes: config.data.receive_buffer_kib as usize * 1_024,
        send_buffer_bytes: config.data.send_buffer_kib as usize * 1_024,
        gro: config.data.gro,
        ecn: config.node.ecn,
        reuse_port: false,
        // A host that moves between networks may still have an address in the old one. Only the
        // kernel knows which address has a way out.
        own_source: config.address().is_router(),
        shift: config.shift_prefix().map(|prefix| prefix.0),
    }
}

/// Opens the sockets of the workers after the first, on the same ports.
pub fn open_more_ports(
    config: &NodeConfig,
    ports: &NodeSockets,
) -> anyhow::Result<Vec<(NodeSockets, Vec<DatagramReceiver>)>> {
    let sockets = socket_config(config);
    (1..config.data.workers).map(|_| ports.open_beside(&sockets, config.data.gso)).collect()
}

/// The prefix of this node's shifting addresses, and their port.
fn shift_place(config: &NodeConfig) -> Option<([u8; 8], u16)> {
    config.shift_prefix().map(|prefix| prefix.0).zip(config.shift_port())
}

/// Creates the node with every neighbour and host in its files, with the stored relays and with the
/// hosts met over circuits. Addresses shift only if `shifts` shows that the kernel is ready.
pub fn build(
    setup: NodeSetup,
    (kept, met): (Vanguards, Vec<PublicKey>),
    interface: &mut Option<VirtualInterface>,
    (seed, shifts): ([u8; 32], Option<&KernelShifts>),
    clock: BootClock,
) -> anyhow::Result<(DaemonNode, NodeNames, NodeConfig)> {
    let (now, unix_ms) = (clock.now(), unix_ms());
    let (overlay, secrets) = (setup.overlay(), setup.secrets.clone());
    let NodeSetup { config, hosts, linked, identity, experiment, .. } = setup;
    let pool = shoal_onion::pool::PoolConfig {
        address: config.address(),
        relays: circuits::relays(&config, &hosts),
        circuits_max: shoal_onion::CircuitLimits::HOST.own,
        max_added: circuits::max_added(&config, &hosts),
    };
    let cover_required = anonymity::requires_cover(&config, &hosts);
    let mut seeds = Rng::new(seed);
    let (relay, edge) = (seeds.fork("relay"), seeds.fork("edge"));
    let pool_seed = seeds.fork("pool");
    let seeds = Seeds { relay, edge, circuits: seeds.fork("circuits") };
    let mut edge_config =
        shoal_edge::EdgeConfig { direct: direct::config(&config, &hosts), ..edge_config(&config) };
    // A worker without a queue of the interface has no packets to seal.
    edge_config.session.workers = interface.as_ref().map_or(1, VirtualInterface::queues);
    let origins = origins(&hosts);
    let node_config =
        shoal_node::NodeSettings { relay: relay_config(&config, &hosts), edge: edge_config };
    let queue = interface.as_mut().and_then(VirtualInterface::take_queue);
    let first = secrets.first.clone();
    let mut node =
        DaemonNode::new(node_config, identity, first, origins, queue, &seeds, now, unix_ms);
    node.set_secrets(secrets);
    if !config.is_router() {
        let mut pool = CircuitPool::new(pool, kept, pool_seed, now, unix_ms)?;
        experiment.circuit_life.into_iter().for_each(|life| pool.set_life(life));
        node.set_pool(pool);
    }
    if experiment.any_order {
        node.edge.keep_any_order();
    }
    node.edge.remember_met(&met);
    let mut names = NodeNames::new(hosts, overlay);
    add_hosts(now, &config, &mut node.edge, &mut names)?;
    set_interface_hosts(&config, &names, (&mut node, interface))?;
    node.set_second(config.addresses(names.hosts()).second);
    node.relay.set_lists_only(now, linked.is_some());
    node.relay.set_cover_required(cover_required);
    node.relay.set_shift_place(shifts.and_then(|_| shift_place(&config)));
    node.relay.set_staying(shifts.map_or(Vec::new(), KernelShifts::staying));
    node.relay.set_protected(config.protected().map(|machine| machine.identifier()).collect());
    names.set_linked(linked);
    for link in &config.links {
        let wanted = links::wanted(&config.node.name, link, names.linked())?;
        links::add(now, &link.peer, &wanted, &mut node, &mut names)?;
    }
    Ok((node, names, config))
}

/// Applies another list of hosts. New hosts become reachable. Removed ones stop being so, and their
/// sessions and transfers end. Links are changed by [`links::LinkPlan`].
///
/// Errors: the list is longer than the tables. Hosts that did not fit can't be reached.
pub fn replace_hosts(
    now: Time,
    config: &NodeConfig,
    hosts: HostList,
    (node, interface): (&mut DaemonNode, &mut Option<VirtualInterface>),
    names: &mut NodeNames,
) -> anyhow::Result<()> {
    for gone in names.hosts().iter().filter(|old| hosts.by_key(&old.key).is_none()) {
        if let Some(id) = names.host_id(&gone.name) {
            node.remove_host(now, id);
        }
    }
    let moved = |old: &&ListedHost| hosts.by_key(&old.key).is_some_and(|new| new != *old);
    for moved in names.hosts().iter().filter(moved) {
        if let Some(id) = names.host_id(&moved.name) {
            node.edge.end_direct(id);
        }
    }
    node.relay.set_origins(now, origins(&hosts));
    names.replace_hosts(hosts);
    node.set_second(config.addresses(names.hosts()).second);
    add_hosts(now, config, &mut node.edge, names)?;
    set_interface_hosts(config, names, (node, interface))
}

/// Applies the list of hosts to the interface.
///
/// Errors: two hosts have one address.
fn set_interface_hosts(
    config: &NodeConfig,
    names: &NodeNames,
    (node, interface): (&mut DaemonNode, &mut Option<VirtualInterface>),
) -> anyhow::Result<()> {
    let taken = interface.as_mut().map(|interface| interface.set_hosts(config, names));
    node.set_endpoint_rules(endpoints::rules(config, names, interface.as_ref()));
    let Some((gate, clash)) = taken else { return Ok(()) };
    node.set_gate(gate);
    clash
}

/// The routers whose keys are known.
fn origins(hosts: &HostList) -> Vec<(u32, PublicKey)> {
    let routers = hosts.iter().filter(|host| host.address.is_router());
    routers.map(|host| (host.address.router, host.key)).collect()
}

fn add_hosts(
    now: Time,
    config: &NodeConfig,
    edge: &mut Edge,
    names: &mut NodeNames,
) -> anyhow::Result<()> {
    let others: Vec<_> =
        names.hosts().iter().filter(|host| host.name != config.node.name).cloned().collect();
    for host in others {
        let id = edge
            .add_host(&HostConfig { key: host.key, address: host.address })
            .map_err(|reason| anyhow::anyhow!("host {:?}: {}", host.name, reason.label()))?;
        edge.set_second(id, host.second);
        edge.set_listed(id, host.endpoint);
        names.add_host(id, &host.name);
    }
    let security = names.hosts().iter().filter_map(|host| {
        let id = names.host_id(&host.name)?;
        Some((id, levels::of(config, host, names.overlay())))
    });
    edge.set_security(now, levels::own(config, names.hosts()), security.collect());
    names.warn_of_nameless();
    Ok(())
}

fn session_config(config: &NodeConfig, role: SessionRole) -> shoal_session::SessionConfig {
    let NodeConfig { session: config, expert, .. } = config;
    shoal_session::SessionConfig {
        means: config.means(),
        lanes: config.lanes,
        rekey_after: Duration::from_secs(config.rekey_after_s),
        rekey_frames: u32::try_from(config.rekey_after_frames).unwrap_or(u32::MAX),
        reject_after: Duration::from_secs(config.reject_after_s),
        handshake_queue: config.handshake_queue as usize,
        retry_first: Duration::from_millis(expert.handshake_retry_ms),
        retry_max: Duration::from_millis(expert.handshake_retry_max_ms),
        attempts: expert.handshake_attempts,
        ..shoal_session::SessionConfig::new(role)
    }
}

fn relay_config(config: &NodeConfig, hosts: &HostList) -> shoal_relay::RelayConfig {
    let mut routing = routing_config(config);
    (routing.links, routing.pins) = link_policies(config, hosts);
    let liveness = LivenessConfig {
        report_interval: Duration::from_millis(config.expert.report_ms),
        dead_after: Duration::from_millis(config.expert.silence_ms),
        active_for: Duration::from_millis(config.expert.active_ms),
        keepalive: Some(config.liveness.keepalive_ms)
            .filter(|ms| *ms > 0)
            .map(Duration::from_millis),
        adapt: config.liveness.adapt,
        retry: Duration::from_millis(config.expert.link_retry_ms),
    };
    let egress = EgressConfig {
        data_frames_max: config.egress.data_cells as usize,
        control_frames_max: config.egress.control_cells as usize,
        mark_frames: config.egress.mark_cells as usize,
    };
    let link_delay = Some(Duration::from_millis(config.expert.hold_ms)).filter(|d| !d.is_zero());
    shoal_relay::RelayConfig {
        address: config.address(),
        session: shoal_session::SessionConfig {
            workers: config.data.workers,
            ..session_config(config, SessionRole::Link)
        },
        liveness,
        egress,
        hold: shoal_relay::HoldConfig { link_delay, ..Default::default() },
        routing,
        events_max: EVENTS_MAX,
    }
}

fn routing_config(config: &NodeConfig) -> shoal_routing::Config {
    let NodeConfig { routing: config, expert, .. } = config;
    let ms = Duration::from_millis;
    shoal_routing::Config {
        cycle: ms(expert.cycle_ms),
        queries: config.queries,
        default_cost: config.default_cost,
        add_on_cost: config.add_on_cost,
        smoothing_percent: config.smoothing_percent,
        hysteresis_percent: config.hysteresis_percent,
        update_gap: ms(expert.update_gap_ms),
        retransmit: ms(expert.retransmit_ms),
        request_gap: ms(expert.request_gap_ms),
        seqno_gap: ms(expert.seqno_gap_ms),
        proof_validity: Duration::from_secs(expert.proof_validity_s),
        proof_refresh: Duration::from_secs(expert.proof_refresh_s),
        max_routes_per_link: config.import_limit as usize,
        links: BTreeMap::new(),
        pins: BTreeMap::new(),
    }
}

/// Settings of `[[link]]` sections: policies by neighbour, and first hops by destination. The setup
/// has checked the names; an unknown one has no effect.
pub fn link_policies(
    config: &NodeConfig,
    hosts: &HostList,
) -> (BTreeMap<u32, LinkPolicy>, BTreeMap<u32, u32>) {
    let (mut policies, mut pinned) = (BTreeMap::new(), BTreeMap::new());
    let router = |name: &String| hosts.by_name(name).filter(|host| host.address.is_router());
    let number = |name: &String| router(name).map(|host| host.address.router);
    for link in &config.links {
        let Some(neighbour) = number(&link.peer) else { continue };
        let import = link.import.as_ref().map(|names| names.iter().filter_map(number).collect());
        if link.default_cost.is_some() || import.is_some() {
            let policy = LinkPolicy { default_cost: link.default_cost, import };
            policies.insert(neighbour, policy);
        }
        let pins = link.pin.iter().filter_map(number).map(|router| (router, neighbour));
        pinned.extend(pins);
    }
    (policies, pinned)
}

fn edge_config(config: &NodeConfig) -> shoal_edge::EdgeConfig {
    let transfer = &config.transfer;
    let defaults = shoal_transfer::TransferConfig::default();
    let transfers = shoal_transfer::TransferConfig {
        transfers_max: transfer.max_transfers as usize,
        sender_memory: transfer.sender_memory_mib as usize * (1 << 20),
        receiver_memory: transfer.receiver_memory_mib as usize * (1 << 20),
        offer_timeout: Duration::from_secs(transfer.offer_s),
        idle_timeout: Duration::from_secs(transfer.silence_s),
        first_timeout: defaults.first_timeout,
        law: defaults.law,
        queue_target: Duration::from_micros(transfer.target_delay_us),
        rate_max: match transfer.max_rate_mbit {
            0 => defaults.rate_max,
            mbit => u64::from(mbit) * 125_000,
        },
    };
    shoal_edge::EdgeConfig {
        address: config.address(),
        session: session_config(config, SessionRole::Edge),
        transfer: transfers,
        echo_max: ECHO_MAX,
        ip: config.interface.is_some(),
        direct: None,
        events_max: EVENTS_MAX,
    }
}

#[cfg(test)]
mod tests;
