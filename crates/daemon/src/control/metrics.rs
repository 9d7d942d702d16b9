//! Counters of a node as OpenMetrics text. docs/reference/metrics.md lists every metric.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use shoal_node::InterfaceQueue;
use shoal_relay::{LATE, TrafficCounters};
use shoal_wire::Time;

use crate::control::api::Status;
use crate::control::{answers, circuits};
use crate::membership::authority::AuthorityState;
use crate::worker::direct;
use crate::worker::first::WorkerParts;
use crate::worker::shell::SocketCounters;

/// Time for which a text is reused, as a multiple of the time that it took to make.
const KEPT_FACTOR: u32 = 20;
/// Longest time for which a text is reused.
const KEPT_MAX: Duration = Duration::from_secs(1);

/// The last text. Frequent requests get it again, so that making texts takes at most a twentieth of
/// the worker's time.
#[derive(Default)]
pub struct MetricsCache {
    text: String,
    until: Option<Time>,
}

impl MetricsCache {
    /// The text at `now`: the last one, or a new one by `make`, which also returns its time of
    /// completion.
    pub fn get(&mut self, now: Time, make: impl FnOnce() -> (String, Time)) -> String {
        if self.until.is_none_or(|until| now >= until) {
            let (text, done) = make();
            self.until = Some(done + (done.since(now) * KEPT_FACTOR).min(KEPT_MAX));
            self.text = text;
        }
        self.text.clone()
    }
}

/// The node's counters as OpenMetrics text. Neighbours appear by name only if the operator asked
/// for that. `circuits` is the rounded number of open circuits.
pub fn metrics(parts: &WorkerParts, circuits: u64, now: Time) -> String {
    let mut registry = Registry::with_prefix("shoal");
    let relay = &parts.node.relay;
    let traffic = relay.counters().traffic;
    let own = SocketCounters::of(&parts.ports, &parts.receivers);
    let others = parts.node.others().iter().map(|told| &told.sockets);
    let SocketCounters { received, sent } = others.fold(own, |sum, more| sum.plus(more));
    let short = answers::status(parts, circuits, now);
    let refusing = parts.ports.views().map(|view| view.refusing as u64).sum::<u64>();
    for (name, help, value) in [
        ("frames_received", "Frames received", traffic.frames_in),
        ("frames_sent", "Frames sent", traffic.frames_out),
        ("bytes_received", "Bytes of UDP payload received", traffic.bytes_in),
        ("bytes_sent", "Bytes of UDP payload sent", traffic.bytes_out),
        ("cells_transit", "Cells passed on between neighbours", traffic.cells_transit),
        ("cells_local", "Cells for this node", traffic.cells_local),
        ("cells_origin", "Cells that this node sent", traffic.cells_origin),
        ("cells_marked", "Cells that got a congestion mark here", traffic.cells_marked),
        ("cells_held", "Cells that waited in a hold", traffic.cells_held),
        ("cells_released", "Cells that a hold released", traffic.cells_released),
        ("receive_calls", "System calls that received", received.calls),
        ("receive_messages", "Messages received; one may hold many frames", received.messages),
        ("send_calls", "System calls that sent", sent.calls),
        ("send_no_buffers", "Sends that met a full queue of the device", sent.no_buffers),
        ("send_would_block", "Sends that met a full socket buffer", sent.would_block),
        ("send_failed", "Sends that the kernel refused", sent.failed),
        ("send_gso_refused", "Times a path refused segmentation", sent.refused_gso),
        ("send_bad_source", "Times the kernel refused a source address", sent.bad_source),
        ("log_lines_lost", "Lines that standard error did not take", short.log_lines_lost),
    ] {
        counter(&mut registry, name, help, value);
    }
    late(&mut registry, &traffic);
    authority(&mut registry, &short);
    for add in [handshakes, lists, per_worker, direct_links, order, loops, covered] {
        add(&mut registry, parts);
    }
    let drops = Family::<[(&str, &str); 1], Counter>::default();
    registry.register("dropped", "Drops by reason", drops.clone());
    for (reason, n) in answers::dropped(parts) {
        drops.get_or_create(&[("reason", reason.label())]).inc_by(n);
    }
    for (name, help, value) in [
        ("links", "Configured neighbours", u64::from(short.links)),
        ("links_up", "Neighbours that answer", u64::from(short.links_up)),
        ("routes", "Destinations with a route", u64::from(short.routes)),
        ("host_sessions", "Live sessions with hosts", u64::from(short.host_sessions)),
        ("transfers", "Transfers going on", u64::from(short.transfers)),
        ("circuits_open", "Circuits here, in steps of 8 and every 10 s", circuits),
        ("send_gso_refusing", "Paths that refuse segmentation now", refusing),
        ("resident_memory_bytes", "Resident memory", short.memory_bytes),
    ] {
        gauge(&mut registry, name, help, value);
    }
    let firewall = parts.node.queue().map(InterfaceQueue::firewall);
    if let Some((flows, displaced)) = firewall.and_then(|f| f.flows().zip(f.displaced())) {
        let help = "Flows that the inbound firewall remembers";
        gauge(&mut registry, "firewall_flows", help, flows as u64);
        let help = "Flows that made room for others before their time";
        counter(&mut registry, "firewall_flows_displaced", help, displaced);
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

fn late(registry: &mut Registry, traffic: &TrafficCounters) {
    let all = Family::<[(&str, String); 1], Counter>::default();
    let help = "Cells that left a hold later than this after their time";
    registry.register("cells_late", help, all.clone());
    for (limit, n) in LATE.iter().zip(traffic.cells_late) {
        let by = format!("{}ms", limit.as_secs_f64() * 1e3);
        all.get_or_create(&[("by", by)]).inc_by(n);
    }
}

fn handshakes(registry: &mut Registry, parts: &WorkerParts) {
    let all = Family::<[(&str, &str); 2], Counter>::default();
    registry.register("handshakes", "Handshakes by use and outcome", all.clone());
    let uses = [
        ("link", parts.node.relay.sessions().stats()),
        ("host", parts.node.edge.sessions().stats()),
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
            ("removed_told", stats.removed_told),
        ] {
            all.get_or_create(&[("with", of), ("outcome", outcome)]).inc_by(n);
        }
    }
}

fn direct_links(registry: &mut Registry, parts: &WorkerParts) {
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

fn order(registry: &mut Registry, parts: &WorkerParts) {
    let all = Family::<[(&str, &str); 1], Counter>::default();
    let help = "Packets from circuits by what was done for their order";
    registry.register("order", help, all.clone());
    let order = circuits::order(parts);
    for (what, n) in [
        ("held", order.held),
        ("kept", order.kept),
        ("given_up", order.given_up),
        ("late", order.late),
        ("overflowed", order.overflowed),
        ("unordered", order.unordered),
    ] {
        all.get_or_create(&[("what", what)]).inc_by(n);
    }
}

fn loops(registry: &mut Registry, parts: &WorkerParts) {
    let Some(loops) = circuits::loops(parts) else { return };
    let all = Family::<[(&str, &str); 1], Counter>::default();
    let help = "Loops along this host's circuits, and circuits replaced for their results";
    registry.register("loops", help, all.clone());
    for (what, n) in [
        ("back", loops.back),
        ("late", loops.late),
        ("lost", loops.lost),
        ("lossy", loops.lossy),
        ("held", loops.held),
    ] {
        all.get_or_create(&[("outcome", what)]).inc_by(n);
    }
}

/// Totals over all links: cover hides the traffic of each single link.
fn covered(registry: &mut Registry, parts: &WorkerParts) {
    let (frames, skipped) = parts.journal.cover.totals();
    let help = "Frames that left in slots of covered links";
    counter(registry, "cover_frames", help, frames);
    let help = "Slots of covered links that were never used";
    counter(registry, "cover_skipped", help, skipped);
}

fn per_worker(registry: &mut Registry, parts: &WorkerParts) {
    let cells = Family::<[(&str, String); 1], Counter>::default();
    let received = Family::<[(&str, String); 1], Counter>::default();
    let read = Family::<[(&str, String); 1], Counter>::default();
    let written = Family::<[(&str, String); 1], Counter>::default();
    for (number, worker) in answers::workers(parts).into_iter().enumerate() {
        let label = [("worker", number.to_string())];
        cells.get_or_create(&label).inc_by(worker.cells_transit);
        received.get_or_create(&label).inc_by(worker.frames_in);
        read.get_or_create(&label).inc_by(worker.packets_read);
        written.get_or_create(&label).inc_by(worker.packets_written);
    }
    if parts.workers.is_some() {
        registry.register("worker_cells_transit", "Cells passed on, by worker", cells);
        registry.register("worker_frames_received", "Frames received, by worker", received);
        let help = "Programs' packets sent, by worker";
        registry.register("worker_packets_sent", help, read);
        let help = "Packets written for programs, by worker";
        registry.register("worker_packets_written", help, written);
    }
}

/// Gauges of the authority's list.
fn authority(registry: &mut Registry, short: &Status) {
    let Some(authority) = &short.authority else { return };
    for (name, help, value) in [
        ("authority_list_version", "Version of the list in force", authority.list_version),
        ("authority_list_age_seconds", "Since the list was signed", authority.list_age_s),
        (
            "authority_max_staleness_seconds",
            "Age from which on nobody is a member",
            authority.max_staleness_s,
        ),
        ("authority_members", "Members in force", authority.members.into()),
        (
            "authority_in_force",
            "The list is fresh and this node one of its members",
            u64::from(authority.state == "fresh"),
        ),
    ] {
        gauge(registry, name, help, value);
    }
    let help = "Lists that were refused";
    counter(registry, "authority_lists_refused", help, authority.refusals);
}

/// Counters of lists and supplements that neighbours exchange.
fn lists(registry: &mut Registry, parts: &WorkerParts) {
    let Some(stats) = parts.authority.as_ref().map(AuthorityState::exchange_stats) else { return };
    let all = Family::<[(&str, &str); 1], Counter>::default();
    let help = "Lists, and parts of them, between neighbours, by event";
    registry.register("authority_exchange", help, all.clone());
    for (event, n) in [
        ("taken", stats.taken),
        ("refused", stats.refused),
        ("given_up", stats.given_up),
        ("parts_sent", stats.parts_sent),
        ("parts_received", stats.parts_received),
        ("twins", stats.twins),
    ] {
        all.get_or_create(&[("event", event)]).inc_by(n);
    }
    let Some(stats) = parts.authority.as_ref().map(AuthorityState::chain_stats) else { return };
    let all = Family::<[(&str, &str); 1], Counter>::default();
    let help = "Registrars' supplements between neighbours, by event";
    registry.register("authority_supplements", help, all.clone());
    for (event, n) in [
        ("taken", stats.taken),
        ("refused", stats.refused),
        ("given_up", stats.given_up),
        ("steps_sent", stats.steps_sent),
    ] {
        all.get_or_create(&[("event", event)]).inc_by(n);
    }
}

fn gauge(registry: &mut Registry, name: &str, help: &str, value: u64) {
    let gauge = Gauge::<i64>::default();
    gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
    registry.register(name, help, gauge);
}

fn counter(registry: &mut Registry, name: &str, help: &str, value: u64) {
    let counter = Counter::<u64>::default();
    counter.inc_by(value);
    registry.register(name, help, counter);
}

fn per_peer(registry: &mut Registry, parts: &WorkerParts) {
    type Labels = [(&'static str, String); 1];
    let sent = Family::<Labels, Counter>::default();
    let received = Family::<Labels, Counter>::default();
    let up = Family::<Labels, Gauge>::default();
    let rtt = Family::<Labels, Gauge<f64, AtomicU64>>::default();
    let loss = Family::<Labels, Gauge<f64, AtomicU64>>::default();
    let waiting = Family::<Labels, Gauge>::default();
    registry.register("peer_frames_sent", "Frames sent to a neighbour", sent.clone());
    registry.register("peer_frames_received", "Frames received from a neighbour", received.clone());
    registry.register("peer_up", "Whether a neighbour answers", up.clone());
    registry.register("peer_rtt_seconds", "Smoothed round trip to a neighbour", rtt.clone());
    registry.register("peer_loss_ratio", "Smoothed loss towards a neighbour", loss.clone());
    registry.register("peer_waiting_cells", "Cells waiting for a neighbour", waiting.clone());
    for link in parts.node.relay.links() {
        let labels = [("peer", parts.names.link(link.link))];
        sent.get_or_create(&labels).inc_by(link.stats.sent);
        received.get_or_create(&labels).inc_by(link.stats.received);
        up.get_or_create(&labels).set(i64::from(link.up_since.is_some()));
        loss.get_or_create(&labels).set(link.stats.loss.into());
        waiting.get_or_create(&labels).set(i64::try_from(link.waiting).unwrap_or(i64::MAX));
        if !link.stats.rtt.is_zero() {
            rtt.get_or_create(&labels).set(link.stats.rtt.as_secs_f64());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_that_ask_without_a_pause_cost_a_twentieth() {
        let (mut kept, mut now, mut spent) = (MetricsCache::default(), Time::ZERO, Duration::ZERO);
        let took = Duration::from_millis(2);
        // The node takes 100 us for each request, for a second.
        while now < Time::ZERO + Duration::from_secs(1) {
            let before = spent;
            kept.get(now, || {
                spent += took;
                (String::new(), now + took)
            });
            now = now + (spent - before) + Duration::from_micros(100);
        }
        assert!(spent <= Duration::from_millis(55), "{spent:?} of a second");
    }

    #[test]
    fn a_text_is_never_old() {
        let mut kept = MetricsCache::default();
        let slow = |text: &str, at: Time| (text.to_owned(), at + Duration::from_secs(3));
        assert_eq!(kept.get(Time::ZERO, || slow("one", Time::ZERO)), "one");
        let next = Time::ZERO + Duration::from_millis(3_900);
        assert_eq!(kept.get(next, || slow("two", next)), "one");
        let next = Time::ZERO + Duration::from_millis(4_000);
        assert_eq!(kept.get(next, || slow("two", next)), "two");
    }
}
