//! What a node says about itself.

use shoal_crypto::Processor;
use shoal_node::{Queue, QueueCounters};
use shoal_relay::LinkView;
use shoal_relay::hop::{HopView, Outcome};
use shoal_session::PeerId;
use shoal_wire::{DropReason, Time};

use crate::control::api::{
    HopPeer, HopStatus, NextHop, Offloads, Peer, Route, Status, SuitesHere, Traffic, WorkerTraffic,
};
use crate::control::{circuits, cover};
use crate::tun::interface::Interface;
use crate::worker::clock::{process_cpu, unix_ms};
use crate::worker::direct;
use crate::worker::first::Parts;
use crate::worker::hopping::Hopping;
use crate::worker::notices;

/// The node in short; `circuits` is their number as others may see it.
pub fn status(parts: &Parts, circuits: u64, now: Time) -> Status {
    let relay = &parts.node.relay;
    let (config, names) = (&parts.config, &parts.names);
    let me = names.hosts().by_name(&config.node.name);
    let views: Vec<_> = parts.ports.views().collect();
    let drops: Vec<_> = dropped(parts).filter(|(_, n)| *n > 0).collect();
    let label = |reason: DropReason| reason.label().to_string();
    let recent = drops.iter().filter(|(reason, n)| parts.journal.is_recent(now, *reason, *n));
    let of_neighbours = notices::warnings(parts, now);
    let of_members = parts.authority.iter().flat_map(|authority| authority.warnings(now));
    let of_interface = parts.interface.iter().flat_map(Interface::warnings);
    let both = parts.authority.as_ref().zip(parts.interface.as_ref());
    let readdressed = both.and_then(|(authority, interface)| authority.readdressed(interface));
    let means = config.session.means();
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
            aes: means.processor != Processor::Plain,
            receive_buffer: smallest(views.iter().map(|v| v.offloads.receive_buffer_bytes)),
            send_buffer: smallest(views.iter().map(|v| v.offloads.send_buffer_bytes)),
        },
        ciphers: SuitesHere {
            processor: means.processor.name().into(),
            suites: means.by_cost().into_iter().map(|suite| suite.name().into()).collect(),
        },
        interface: parts.interface.as_ref().map(Interface::status),
        authority: parts.authority.as_ref().map(|authority| authority.status(now)),
        direct: direct::status(parts),
        circuits: circuits::totals(parts, circuits),
        cover: cover::covered(parts),
        hop: hop_status(parts),
        traffic: traffic(parts),
        workers: workers(parts),
        drops_recent: recent.map(|(reason, _)| label(*reason)).collect(),
        drops: drops.iter().map(|(reason, n)| (label(*reason), *n)).collect(),
        cpu_s: process_cpu().as_secs_f64(),
        memory_bytes: resident_bytes(),
        log_lines_lost: parts.log.queue.lost(),
        warnings: parts
            .warnings
            .iter()
            .cloned()
            .chain(parts.log.warning())
            .chain(of_members)
            .chain(of_neighbours)
            .chain(of_interface)
            .chain(names.nameless().iter().cloned())
            .chain(readdressed)
            .chain(parts.circuits.faults())
            .chain(parts.circuits.warnings())
            .chain(cover::warnings(parts))
            .chain(parts.hopping.iter().flat_map(Hopping::warnings))
            .collect(),
    }
}

fn hop_status(parts: &Parts) -> Option<HopStatus> {
    let used = parts.node.relay.accepted().map_or(0, |accepted| accepted.identifiers().len());
    parts.hopping.as_ref().map(|hopping| hopping.status(used))
}

fn traffic(parts: &Parts) -> Traffic {
    let traffic = parts.node.relay.counters().traffic;
    Traffic {
        frames_in: traffic.frames_in,
        frames_out: traffic.frames_out,
        bytes_in: traffic.bytes_in,
        bytes_out: traffic.bytes_out,
    }
}

/// What each worker did, if there are several.
pub(crate) fn workers(parts: &Parts) -> Vec<WorkerTraffic> {
    if parts.workers.is_none() {
        return Vec::new();
    }
    let own = parts.node.queue().map(Queue::counters);
    let first = (parts.node.own_traffic(), own.unwrap_or_default());
    let others = parts.node.others().iter().map(|told| (told.counters.traffic, told.packets));
    let row = |(traffic, packets): (shoal_relay::Traffic, QueueCounters)| WorkerTraffic {
        frames_in: traffic.frames_in,
        frames_out: traffic.frames_out,
        cells_transit: traffic.cells_transit,
        packets_read: packets.read,
        packets_written: packets.written,
    };
    std::iter::once(first).chain(others).map(row).collect()
}

fn host_sessions(parts: &Parts, now: Time) -> u32 {
    let edge = &parts.node.edge;
    let live = |host: &&crate::membership::hosts::Host| {
        let id = edge.host_at(host.address);
        id.is_some_and(|id| edge.is_live(now, id))
    };
    parts.names.hosts().iter().filter(live).count() as u32
}

fn smallest(sizes: impl Iterator<Item = usize>) -> u64 {
    sizes.min().unwrap_or(0) as u64
}

/// Second field of /proc/self/statm, in pages.
fn resident_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = text.split_ascii_whitespace().nth(1).and_then(|n| n.parse::<u64>().ok());
    let page = nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE).ok().flatten();
    pages.unwrap_or(0) * page.and_then(|p| u64::try_from(p).ok()).unwrap_or(4_096)
}

/// Every reason with its count. The sessions count the drops that only a handshake's public-key
/// work reveals, and the kernel those of its filter; they are added here.
pub(crate) fn dropped(parts: &Parts) -> impl Iterator<Item = (DropReason, u64)> + '_ {
    let (relay, edge) = (&parts.node.relay, &parts.node.edge);
    let later = [relay.sessions().drops(), edge.sessions().drops()];
    let kernel = parts.hopping.as_ref().map(|hopping| hopping.filter.dropped());
    let of_kernel = move |reason| {
        let found = kernel.iter().flatten().find(|(known, _)| *known == reason);
        found.map_or(0, |(_, n)| *n)
    };
    relay.counters().drops().map(move |(reason, n)| {
        let later = later[0][reason as usize] + later[1][reason as usize];
        (reason, n + later + of_kernel(reason))
    })
}

/// The node's neighbours, and the hosts with which it wants a direct link and has none.
pub fn peers(parts: &Parts, now: Time) -> Vec<Peer> {
    let links = parts.node.relay.links().map(|link| peer(parts, now, &link));
    links.chain(direct::relayed(parts)).collect()
}

fn peer(parts: &Parts, now: Time, link: &LinkView) -> Peer {
    let relay = &parts.node.relay;
    let state = match (link.up_since, link.established, link.endpoint) {
        (Some(_), _, _) => "up",
        (None, true, _) => "silent",
        (None, false, Some(_)) => "connecting",
        (None, false, None) if link.hop.is_some_and(|hop| hop.meets) => "connecting",
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
        lanes: u32::from(relay.sessions().lanes(now, PeerId::from(link.link)).max(1)),
        rtt_us: (!stats.rtt.is_zero()).then_some(stats.rtt.as_micros() as u64),
        loss: known.then(|| f64::from(stats.loss)),
        cost: relay.routing().and_then(|r| r.link_info(link.link)).map(|info| info.cost),
        traffic: parts.config.metrics.per_peer.then_some(frames),
        egress_cells: link.waiting as u32,
        small_path: link.small,
        clock_ahead_s: notices::clock_ahead_ms(&link.notices, now, unix_ms())
            .map(|ms| ms as f64 / 1e3),
        direct: direct::peer(parts, link),
        cover: link.cover.as_ref().map(cover::shown),
        hop: link.hop.as_ref().map(|view| hop(view, link.established, now)),
    }
}

/// Before there is a session a neighbour can't have said whether its addresses hop.
fn hop(view: &HopView, established: bool, now: Time) -> HopPeer {
    let state = match (view.agreed, view.hopping) {
        (false, _) if !established => "unknown",
        (false, _) => "alone",
        (true, false) => "fixed",
        (true, true) => "hopping",
    };
    let (at, outcome) = view.last;
    let (last, ended) = match outcome {
        Outcome::None => ("none", false),
        Outcome::Moved => ("moved", true),
        Outcome::Failed => ("failed", true),
    };
    HopPeer {
        interval_s: view.interval.as_secs_f64(),
        state: state.into(),
        last: last.into(),
        last_s: ended.then(|| now.since(at).as_secs_f64()),
        made: view.made,
        failed: view.failed,
        rendezvous: view.meets,
    }
}

/// The node's routing table.
pub fn routes(parts: &Parts, now: Time) -> Vec<Route> {
    let Some(routing) = parts.node.relay.routing() else { return Vec::new() };
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_neighbour_without_a_session_is_not_said_to_stay() {
        let mut view = HopView {
            interval: std::time::Duration::from_secs(1),
            agreed: false,
            hopping: false,
            made: 0,
            failed: 0,
            last: (Time::ZERO, Outcome::None),
            meets: false,
            begins_by: Time::ZERO,
        };
        let state = |view: &HopView, established| hop(view, established, Time::ZERO).state;
        assert_eq!([state(&view, false), state(&view, true)], ["unknown", "alone"]);
        view.agreed = true;
        assert_eq!([state(&view, false), state(&view, true)], ["fixed", "fixed"]);
    }
}
