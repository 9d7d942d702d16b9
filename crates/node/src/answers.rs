//! What a node says about itself.

use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use shoal_relay::LinkView;
use shoal_session::PeerId;
use shoal_wire::{DropReason, Time};

use crate::api::{NextHop, Offloads, Peer, Route, Status, Traffic, WorkerTraffic};
use crate::clock::process_cpu;
use crate::crew::Crew;
use crate::direct;
use crate::interface::Interface;
use crate::ports::{sum_received, sum_sent};
use crate::worker::Parts;

/// The node in short.
pub fn status(parts: &Parts, now: Time) -> Status {
    let relay = &parts.machines.relay;
    let (config, names) = (&parts.config, &parts.names);
    let me = names.hosts().by_name(&config.node.name);
    let views: Vec<_> = parts.machines.ports.views().collect();
    let drops = dropped(parts).filter(|(_, n)| *n > 0);
    let of_interface = parts.machines.interface.iter().flat_map(Interface::warnings);
    Status {
        name: config.node.name.clone(),
        address: config.address().to_string(),
        role: if config.is_router() { "router" } else { "host" }.into(),
        version: env!("CARGO_PKG_VERSION").into(),
        pid: std::process::id(),
        uptime_s: now.since(Time::ZERO).as_secs_f64(),
        public_key: me.map(|me| me.key.to_string()).unwrap_or_default(),
        listen: views.iter().map(|view| view.local.to_string()).collect(),
        links: relay.links().count() as u32,
        links_up: relay.links().filter(|link| link.up_since.is_some()).count() as u32,
        routes: relay.routing().map_or(0, |routing| routing.table().len()) as u32,
        host_sessions: host_sessions(parts, now),
        transfers: parts.files.count() as u32,
        offloads: Offloads {
            gso: views.iter().all(|view| view.offloads.gso),
            gro: views.iter().all(|view| view.offloads.gro),
            aes: aes(),
            receive_buffer: smallest(views.iter().map(|v| v.offloads.receive_buffer_bytes)),
            send_buffer: smallest(views.iter().map(|v| v.offloads.send_buffer_bytes)),
        },
        interface: parts.machines.interface.as_ref().map(Interface::status),
        authority: parts.authority.as_ref().map(|authority| authority.status(now)),
        direct: direct::status(parts),
        traffic: traffic(parts),
        workers: workers(parts),
        drops: drops.map(|(reason, n)| (reason.label().to_string(), n)).collect(),
        cpu_s: process_cpu().as_secs_f64(),
        memory_bytes: resident_bytes(),
        warnings: parts.warnings.iter().cloned().chain(of_interface).collect(),
    }
}

fn traffic(parts: &Parts) -> Traffic {
    let traffic = parts.machines.relay.counters().traffic;
    Traffic {
        frames_in: traffic.frames_in,
        frames_out: traffic.frames_out,
        bytes_in: traffic.bytes_in,
        bytes_out: traffic.bytes_out,
    }
}

/// What each worker did, if there are several.
fn workers(parts: &Parts) -> Vec<WorkerTraffic> {
    let Some(crew) = &parts.crew else { return Vec::new() };
    let first = crew.rest_of(parts.machines.relay.counters());
    let others = crew.told().iter().map(|told| told.counters.traffic);
    let row = |traffic: shoal_relay::Traffic| WorkerTraffic {
        frames_in: traffic.frames_in,
        frames_out: traffic.frames_out,
        cells_transit: traffic.cells_transit,
    };
    std::iter::once(first).chain(others).map(row).collect()
}

fn host_sessions(parts: &Parts, now: Time) -> u32 {
    let edge = &parts.machines.edge;
    let live = |host: &&crate::hosts::Host| {
        let id = edge.host_at(host.address);
        id.is_some_and(|id| edge.sessions().is_live(now, shoal_session::PeerId(id.0)))
    };
    parts.names.hosts().iter().filter(live).count() as u32
}

fn smallest(sizes: impl Iterator<Item = usize>) -> u64 {
    sizes.min().unwrap_or(0) as u64
}

fn aes() -> bool {
    #[cfg(target_arch = "x86_64")]
    return std::arch::is_x86_feature_detected!("aes");
    #[cfg(target_arch = "aarch64")]
    return std::arch::is_aarch64_feature_detected!("aes");
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    false
}

/// Second field of /proc/self/statm, in pages.
fn resident_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = text.split_ascii_whitespace().nth(1).and_then(|n| n.parse::<u64>().ok());
    let page = nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE).ok().flatten();
    pages.unwrap_or(0) * page.and_then(|p| u64::try_from(p).ok()).unwrap_or(4_096)
}

/// Every reason with its count. What a handshake turned out to be only after its public-key work
/// is counted by the sessions themselves.
fn dropped(parts: &Parts) -> impl Iterator<Item = (DropReason, u64)> + '_ {
    let (relay, edge) = (&parts.machines.relay, &parts.machines.edge);
    let later = [relay.sessions().drops(), edge.sessions().drops()];
    relay
        .counters()
        .drops()
        .map(move |(reason, n)| (reason, n + later[0][reason as usize] + later[1][reason as usize]))
}

/// Its neighbours.
pub fn peers(parts: &Parts, now: Time) -> Vec<Peer> {
    parts.machines.relay.links().map(|link| peer(parts, now, &link)).collect()
}

fn peer(parts: &Parts, now: Time, link: &LinkView) -> Peer {
    let relay = &parts.machines.relay;
    let state = match (link.up_since, link.established, link.endpoint) {
        (Some(_), _, _) => "up",
        (None, true, _) => "silent",
        (None, false, Some(_)) => "connecting",
        (None, false, None) => "waiting",
    };
    let stats = &link.stats;
    let known = stats.received > 0 || stats.sent > 0;
    let frames =
        Traffic { frames_in: stats.received, frames_out: stats.sent, ..Traffic::default() };
    let keys = link.keys.filter(|_| link.established);
    Peer {
        name: parts.names.link(link.link),
        address: link.address.to_string(),
        endpoint: link.endpoint.map(|endpoint| endpoint.to_string()),
        state: state.into(),
        last_heard_ms: link.last_heard.map(|at| now.since(at).as_millis() as u64),
        session_age_s: keys.map(|(since, _)| now.since(since).as_secs_f64()),
        suite: keys.map(|(_, used)| used.name().to_string()),
        lanes: u32::from(relay.sessions().lanes(now, PeerId(link.link.0)).max(1)),
        rtt_us: (!stats.rtt.is_zero()).then_some(stats.rtt.as_micros() as u64),
        loss: known.then(|| f64::from(stats.loss)),
        cost: relay.routing().and_then(|r| r.link_info(link.link)).map(|info| info.cost),
        traffic: parts.config.metrics.per_peer.then_some(frames),
        egress_cells: link.waiting as u32,
        small_path: link.small,
        direct: direct::peer(parts, link),
    }
}

/// Its routing table.
pub fn routes(parts: &Parts, now: Time) -> Vec<Route> {
    let Some(routing) = parts.machines.relay.routing() else { return Vec::new() };
    let row = |route: shoal_routing::RouteInfo| Route {
        router: route.router,
        name: parts.names.router(route.router),
        next_hop: Some(parts.names.link(route.next_hop)),
        cost: route.cost,
        age_s: now.since(route.since).as_secs_f64(),
        alternatives: routing
            .alternatives(route.router)
            .into_iter()
            .map(|(link, cost)| NextHop { peer: parts.names.link(link), cost })
            .collect(),
    };
    routing.routes().map(row).collect()
}

/// Its counters as Prometheus text. Names of neighbours only where the operator asked for them.
pub fn metrics(parts: &Parts, now: Time) -> String {
    let mut registry = Registry::with_prefix("shoal");
    let relay = &parts.machines.relay;
    let traffic = relay.counters().traffic;
    let others = parts.crew.as_ref().map_or(&[][..], Crew::told);
    let (received, sent) = others.iter().fold(
        (sum_received(&parts.receivers), sum_sent(&parts.machines.ports)),
        |(received, sent), told| (received.plus(&told.received), sent.plus(&told.sent)),
    );
    let refusing = parts.machines.ports.views().map(|view| view.refusing as u64).sum::<u64>();
    for (name, help, value) in [
        ("frames_received", "Frames received", traffic.frames_in),
        ("frames_sent", "Frames sent", traffic.frames_out),
        ("bytes_received", "Bytes of UDP payload received", traffic.bytes_in),
        ("bytes_sent", "Bytes of UDP payload sent", traffic.bytes_out),
        ("cells_transit", "Cells passed on between neighbours", traffic.cells_transit),
        ("cells_local", "Cells for this node", traffic.cells_local),
        ("cells_origin", "Cells that this node sent", traffic.cells_origin),
        ("cells_marked", "Cells that got a congestion mark here", traffic.cells_marked),
        ("receive_calls", "System calls that received", received.calls),
        ("receive_messages", "Messages received; one may hold many frames", received.messages),
        ("send_calls", "System calls that sent", sent.calls),
        ("send_no_buffers", "Sends that met a full queue below", sent.no_buffers),
        ("send_would_block", "Sends that met a full socket buffer", sent.would_block),
        ("send_failed", "Sends that the kernel refused", sent.failed),
        ("send_gso_refused", "Times a path refused segmentation", sent.refused_gso),
    ] {
        counter(&mut registry, name, help, value);
    }
    handshakes(&mut registry, parts);
    per_worker(&mut registry, parts);
    direct_links(&mut registry, parts);
    let drops = Family::<[(&str, &str); 1], Counter>::default();
    registry.register("dropped", "Drops by reason", drops.clone());
    for (reason, n) in dropped(parts) {
        drops.get_or_create(&[("reason", reason.label())]).inc_by(n);
    }
    let short = status(parts, now);
    for (name, help, value) in [
        ("links", "Configured neighbours", u64::from(short.links)),
        ("links_up", "Neighbours that answer", u64::from(short.links_up)),
        ("routes", "Destinations with a route", u64::from(short.routes)),
        ("host_sessions", "Live sessions with hosts", u64::from(short.host_sessions)),
        ("transfers", "Transfers going on", u64::from(short.transfers)),
        ("send_gso_refusing", "Paths that refuse segmentation now", refusing),
        ("resident_memory_bytes", "Resident memory", short.memory_bytes),
    ] {
        let gauge = Gauge::<i64>::default();
        gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
        registry.register(name, help, gauge);
    }
    counter(&mut registry, "cpu_milliseconds", "CPU time used", (short.cpu_s * 1e3) as u64);
    if parts.config.metrics.per_peer {
        per_peer(&mut registry, parts);
    }
    let mut text = String::new();
    // Writing to a String can't fail.
    let _written = encode(&mut text, &registry);
    text
}

fn handshakes(registry: &mut Registry, parts: &Parts) {
    let all = Family::<[(&str, &str); 2], Counter>::default();
    registry.register("handshakes", "Handshakes by use and outcome", all.clone());
    let uses = [
        ("link", parts.machines.relay.sessions().stats()),
        ("host", parts.machines.edge.sessions().stats()),
    ];
    for (of, stats) in uses {
        for (outcome, n) in [
            ("requested", stats.requests_sent),
            ("answered", stats.responses_sent),
            ("cookie_sent", stats.cookies_sent),
            ("cookie_taken", stats.cookies_taken),
            ("established", stats.established),
            ("failed", stats.failed),
            ("refused", stats.refused),
        ] {
            all.get_or_create(&[("with", of), ("outcome", outcome)]).inc_by(n);
        }
    }
}

fn direct_links(registry: &mut Registry, parts: &Parts) {
    let Some(direct) = direct::status(parts) else { return };
    let all = Family::<[(&str, &str); 1], Counter>::default();
    registry.register("direct_links", "Links with hosts past the routers, by event", all.clone());
    for (event, n) in [
        ("asked", direct.asked),
        ("agreed", direct.agreed),
        ("up", direct.up),
        ("lost", direct.lost),
        ("trimmed", direct.trimmed),
        ("failed", direct.failed),
        ("full", direct.full),
    ] {
        all.get_or_create(&[("event", event)]).inc_by(n);
    }
}

fn per_worker(registry: &mut Registry, parts: &Parts) {
    let cells = Family::<[(&str, String); 1], Counter>::default();
    let received = Family::<[(&str, String); 1], Counter>::default();
    for (number, worker) in workers(parts).into_iter().enumerate() {
        let label = [("worker", number.to_string())];
        cells.get_or_create(&label).inc_by(worker.cells_transit);
        received.get_or_create(&label).inc_by(worker.frames_in);
    }
    if parts.crew.is_some() {
        registry.register("worker_cells_transit", "Cells passed on, by worker", cells);
        registry.register("worker_frames_received", "Frames received, by worker", received);
    }
}

fn counter(registry: &mut Registry, name: &str, help: &str, value: u64) {
    let counter = Counter::<u64>::default();
    counter.inc_by(value);
    registry.register(name, help, counter);
}

fn per_peer(registry: &mut Registry, parts: &Parts) {
    type Labels = [(&'static str, String); 1];
    let sent = Family::<Labels, Counter>::default();
    let received = Family::<Labels, Counter>::default();
    let up = Family::<Labels, Gauge>::default();
    registry.register("peer_frames_sent", "Frames sent to a neighbour", sent.clone());
    registry.register("peer_frames_received", "Frames received from a neighbour", received.clone());
    registry.register("peer_up", "Whether a neighbour answers", up.clone());
    for link in parts.machines.relay.links() {
        let labels = [("peer", parts.names.link(link.link))];
        sent.get_or_create(&labels).inc_by(link.stats.sent);
        received.get_or_create(&labels).inc_by(link.stats.received);
        up.get_or_create(&labels).set(i64::from(link.up_since.is_some()));
    }
}
