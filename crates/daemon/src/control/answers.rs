//! Answers about the node itself: status, peers and routes.

use shoal_crypto::Processor;
use shoal_node::{InterfaceQueue, QueueCounters};
use shoal_relay::LinkView;
use shoal_relay::shift::{ShiftOutcome, ShiftView};
use shoal_session::PeerId;
use shoal_wire::{DropReason, Time};

use crate::control::api::{
    FrameTraffic, LinkShiftStatus, NeighbourStatus, NextHop, OffloadStatus, RouteStatus,
    ShiftStatus, Status, SuiteStatus, WorkerTraffic,
};
use crate::control::{circuits, cover, hidden};
use crate::membership::{anonymity, removed};
use crate::tun::interface::VirtualInterface;
use crate::worker::clock::{process_cpu, unix_ms};
use crate::worker::direct;
use crate::worker::first::WorkerParts;
use crate::worker::notices;
use crate::worker::shifting::KernelShifts;

/// Summary of the node. `circuits` is the rounded number of open circuits.
pub fn status(parts: &WorkerParts, circuits: u64, now: Time) -> Status {
    let relay = &parts.node.relay;
    let (config, names) = (&parts.config, &parts.names);
    let me = names.hosts().by_name(&config.node.name);
    let views: Vec<_> = parts.ports.views().collect();
    let drops: Vec<_> = dropped(parts).filter(|(_, n)| *n > 0).collect();
    let label = |reason: DropReason| reason.label().to_string();
    let recent = drops.iter().filter(|(reason, n)| parts.journal.is_recent(now, *reason, *n));
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
        offloads: OffloadStatus {
            gso: views.iter().all(|view| view.offloads.gso),
            gro: views.iter().all(|view| view.offloads.gro),
            aes: means.processor != Processor::Plain,
            receive_buffer: smallest(views.iter().map(|v| v.offloads.receive_buffer_bytes)),
            send_buffer: smallest(views.iter().map(|v| v.offloads.send_buffer_bytes)),
        },
        ciphers: SuiteStatus {
            processor: means.processor.name().into(),
            suites: means.by_cost().into_iter().map(|suite| suite.name().into()).collect(),
        },
        interface: parts.interface.as_ref().map(VirtualInterface::status),
        authority: removed::authority_status(parts, now),
        direct: direct::status(parts),
        circuits: circuits::totals(parts, circuits),
        hidden: hidden::count(parts, now),
        cover: cover::covered(parts),
        preset: anonymity::status(config, names.hosts(), names.linked()),
        shift: shift_status(parts),
        traffic: traffic(parts),
        workers: workers(parts),
        drops_recent: recent.map(|(reason, _)| label(*reason)).collect(),
        drops: drops.iter().map(|(reason, n)| (label(*reason), *n)).collect(),
        cpu_s: process_cpu().as_secs_f64(),
        memory_bytes: resident_bytes(),
        log_lines_lost: parts.log.queue.lost(),
        warnings: warnings(parts, now),
    }
}

/// Warnings about the whole node, in the order in which people should read them.
fn warnings(parts: &WorkerParts, now: Time) -> Vec<String> {
    let of_members = parts.authority.iter().flat_map(|authority| authority.warnings(now));
    let of_interface = parts.interface.iter().flat_map(VirtualInterface::warnings);
    let both = parts.authority.as_ref().zip(parts.interface.as_ref());
    let readdressed = both.and_then(|(authority, interface)| authority.readdressed(interface));
    let all = parts.warnings.iter().cloned();
    all.chain(parts.log.warning())
        .chain(of_members)
        .chain(notices::warnings(parts, now))
        .chain(of_interface)
        .chain(parts.names.nameless().iter().cloned())
        .chain(readdressed)
        .chain(parts.circuits.faults())
        .chain(parts.circuits.warnings())
        .chain(cover::warnings(parts))
        .chain(parts.shifting.iter().flat_map(KernelShifts::warnings))
        .collect()
}

fn shift_status(parts: &WorkerParts) -> Option<ShiftStatus> {
    let used = parts.node.relay.accepted().map_or(0, |accepted| accepted.identifiers().len());
    parts.shifting.as_ref().map(|shifting| shifting.status(used))
}

fn traffic(parts: &WorkerParts) -> FrameTraffic {
    let traffic = parts.node.relay.counters().traffic;
    FrameTraffic {
        frames_in: traffic.frames_in,
        frames_out: traffic.frames_out,
        bytes_in: traffic.bytes_in,
        bytes_out: traffic.bytes_out,
    }
}

/// Work of each worker, if there are several.
pub(crate) fn workers(parts: &WorkerParts) -> Vec<WorkerTraffic> {
    if parts.workers.is_none() {
        return Vec::new();
    }
    let own = parts.node.queue().map(InterfaceQueue::counters);
    let first = (parts.node.own_traffic(), own.unwrap_or_default());
    let others = parts.node.others().iter().map(|told| (told.counters.traffic, told.packets));
    let row = |(traffic, packets): (shoal_relay::TrafficCounters, QueueCounters)| WorkerTraffic {
        frames_in: traffic.frames_in,
        frames_out: traffic.frames_out,
        cells_transit: traffic.cells_transit,
        packets_read: packets.read,
        packets_written: packets.written,
    };
    std::iter::once(first).chain(others).map(row).collect()
}

fn host_sessions(parts: &WorkerParts, now: Time) -> u32 {
    let edge = &parts.node.edge;
    let live = |host: &&crate::membership::hosts::ListedHost| {
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

/// Drops of every reason. The sessions count those that only a handshake's public-key work reveals,
/// and the kernel those of its filter. This sum includes them.
pub(crate) fn dropped(parts: &WorkerParts) -> impl Iterator<Item = (DropReason, u64)> + '_ {
    let (relay, edge) = (&parts.node.relay, &parts.node.edge);
    let later = [relay.sessions().drops(), edge.sessions().drops()];
    let kernel = parts.shifting.as_ref().map(|shifting| shifting.filter.dropped());
    let of_kernel = move |reason| {
        let found = kernel.iter().flatten().find(|(known, _)| *known == reason);
        found.map_or(0, |(_, n)| *n)
    };
    relay.counters().drops().map(move |(reason, n)| {
        let later = later[0][reason as usize] + later[1][reason as usize];
        (reason, n + later + of_kernel(reason))
    })
}

/// The node's neighbours, and hosts with which it wants a direct link and has none.
pub fn peers(parts: &WorkerParts, now: Time) -> Vec<NeighbourStatus> {
    let links = parts.node.relay.links().map(|link| peer(parts, now, &link));
    links.chain(direct::relayed(parts)).collect()
}

fn peer(parts: &WorkerParts, now: Time, link: &LinkView) -> NeighbourStatus {
    let relay = &parts.node.relay;
    let state = match (link.up_since, link.established, link.endpoint) {
        (Some(_), _, _) => "up",
        (None, true, _) => "silent",
        (None, false, Some(_)) => "connecting",
        (None, false, None) if link.shift.is_some_and(|shift| shift.meets) => "connecting",
        (None, false, None) => "waiting",
    };
    let stats = &link.stats;
    let known = stats.received > 0 || stats.sent > 0;
    let frames = FrameTraffic {
        frames_in: stats.received,
        frames_out: stats.sent,
        ..FrameTraffic::default()
    };
    let keys = link.keys.filter(|_| link.established);
    NeighbourStatus {
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
        shift: link.shift.as_ref().map(|view| shift(view, link.established, now)),
    }
}

/// Without a session, a neighbour can't have said whether its addresses shift.
fn shift(view: &ShiftView, established: bool, now: Time) -> LinkShiftStatus {
    let state = match (view.agreed, view.shifting) {
        (false, _) if !established => "unknown",
        (false, _) => "alone",
        (true, false) => "fixed",
        (true, true) => "shifting",
    };
    let (at, outcome) = view.last;
    let (last, ended) = match outcome {
        ShiftOutcome::None => ("none", false),
        ShiftOutcome::Moved => ("moved", true),
        ShiftOutcome::Failed => ("failed", true),
    };
    LinkShiftStatus {
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
pub fn routes(parts: &WorkerParts, now: Time) -> Vec<RouteStatus> {
    let Some(routing) = parts.node.relay.routing() else { return Vec::new() };
    let row = |route: shoal_routing::RouteInfo| RouteStatus {
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
        let mut view = ShiftView {
            interval: std::time::Duration::from_secs(1),
            agreed: false,
            shifting: false,
            made: 0,
            failed: 0,
            last: (Time::ZERO, ShiftOutcome::None),
            meets: false,
            begins_by: Time::ZERO,
        };
        let state = |view: &ShiftView, established| shift(view, established, Time::ZERO).state;
        assert_eq!([state(&view, false), state(&view, true)], ["unknown", "alone"]);
        view.agreed = true;
        assert_eq!([state(&view, false), state(&view, true)], ["fixed", "fixed"]);
    }
}
