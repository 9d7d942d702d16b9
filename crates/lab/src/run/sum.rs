//! The figures of a run.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Result;
use shoal_daemon::control::api;

use super::flows::{self, ActiveFlow};
use super::live::LiveRun;
use crate::emulator::WAIT_STEP;
use crate::figures::{figure, jain, metric};
use crate::record::Figure;
use crate::scenario::{FlowKind, STARTUP_S};
use crate::shifts;
use crate::site::RunningNetwork;

/// Length of a file's ending in seconds: fewer segments are in flight then.
const ENDING_S: f64 = 0.3;
/// Seconds after the last start from which flows are compared.
const SETTLED_S: f64 = 3.0;
/// Time over which a rate counts as reached, in seconds.
const WINDOW_S: f64 = 0.2;

/// Computes figures, curves and drops of a run whose traffic has ended.
pub fn up(live: &mut LiveRun<'_>, gap: Option<Duration>, before: &Drops) -> Result<()> {
    let mut all = vec![figure("idle", "", live.record.idle)];
    for i in 0..live.flows.len() {
        of_flow(live, i, &mut all)?;
        all.append(&mut live.flows[i].figures);
    }
    if live.flows.iter().any(|f| f.spec.kind == FlowKind::Flood) {
        all.push(figure("links_lost", "", live.links_lost as f64));
    }
    all.extend(live.rotations.as_ref().map(|r| figure("rotations", "", r.count as f64)));
    if let Some((made, failed)) = shifts::counts(&live.site, live.conditions)? {
        all.extend([figure("shifts", "", made as f64), figure("shifts_failed", "", failed as f64)]);
    }
    together(live, &mut all);
    all.extend(tcp_sum(live));
    resent(live, &mut all)?;
    if let (Some(gap), Some(first)) = (gap, first_file(live)) {
        all.push(figure("gap_ms", first, gap.as_secs_f64() * 1e3));
    }
    all.extend(live.reroute_ms.map(|ms| figure("reroute_ms", "", ms)));
    queues(live, &mut all);
    memory(live, &mut all);
    for node in &live.record.nodes {
        all.push(figure("cpu_s", &node.name, node.cpu_s));
    }
    late(&live.site, &mut all);
    drops(live, before, &mut all)?;
    live.record.times = live.curves.times.iter().map(|t| super::curves::round(*t)).collect();
    live.record.curves = live.curves.draw(&live.flows, &live.site);
    live.record.figures = all;
    Ok(())
}

fn first_file(live: &LiveRun<'_>) -> Option<String> {
    let mut files = live.flows.iter().filter(|f| f.spec.kind == FlowKind::File);
    files.next().map(|f| f.spec.name.clone())
}

/// Payload bits per second that the flow's path can carry alone; `None` if the path has no limited
/// rate.
fn capacity(live: &LiveRun<'_>, flow: &ActiveFlow) -> Option<f64> {
    let topology = live.site.network().topology();
    let path = topology.path(flow.from, flow.to, |_| true)?;
    let links = || path.iter().map(|&(link, _)| &live.conditions[link]);
    let rate = links().map(|c| c.rate.map(|r| r.0)).min_by_key(|r| r.unwrap_or(u64::MAX))??;
    let family = live.site.network().family();
    let survival: f64 = links().map(|c| 1.0 - c.loss.share).product();
    let payload = match flow.spec.kind {
        FlowKind::File => flow.segment_bytes / family.packet_bytes() as f64,
        _ => family.tcp_share(),
    };
    Some(rate as f64 * survival * payload)
}

fn of_flow(live: &LiveRun<'_>, i: usize, all: &mut Vec<Figure>) -> Result<()> {
    let flow = &live.flows[i];
    let name = flow.spec.name.as_str();
    let capacity = capacity(live, flow);
    let arrived =
        |from: f64, to: f64| live.curves.arrived_at(i, to) - live.curves.arrived_at(i, from);
    match flow.spec.kind {
        FlowKind::Tcp => {
            let start = flow.spec.start_s + flow.spec.settle_s;
            let end = flow.ended.unwrap_or(live.record.seconds);
            if end > start {
                let rate = arrived(start, end) * 8.0 / (end - start);
                all.push(figure("tcp_mbit", name, rate / 1e6));
            }
        }
        FlowKind::File if flow.spec.again => {
            all.push(figure("files", name, flow.files as f64));
            all.push(figure("broken", name, flow.broken as f64));
            // The time in which all flows run.
            let last = live.flows.iter().map(|f| f.spec.start_s).fold(0.0, f64::max);
            let (from, to) = (last + STARTUP_S, live.record.seconds);
            if to > from {
                all.push(figure("rate_mbit", name, arrived(from, to) * 8e-6 / (to - from)));
            }
        }
        FlowKind::File => {
            let (Some(start), Some(end)) = (flow.accepted, flow.done) else { return Ok(()) };
            let rate = flow.spec.size_mb * 8e6 / (end - start);
            all.push(figure("rate_mbit", name, rate / 1e6));
            if let Some(returned) = live.returned.get(&flow.to) {
                let frames = live.frames_out(flow.to)?.saturating_sub(*returned);
                let segments = flow.spec.size_mb * 1e6 / flow.segment_bytes;
                all.push(figure("return_per_million", name, frames as f64 / segments * 1e6));
            }
            let Some(capacity) = capacity else { return Ok(()) };
            all.push(figure("share", name, rate / capacity));
            let (from, to) = (start + STARTUP_S, end - ENDING_S);
            if to - from > 0.5 {
                let steady = arrived(from, to) * 8.0 / (to - from);
                all.push(figure("steady_share", name, steady / capacity));
            }
            let reached = |t: &&f64| {
                **t > start && arrived(**t - WINDOW_S, **t) * 8.0 / WINDOW_S >= 0.9 * capacity
            };
            if let Some(t) = live.curves.times.iter().find(reached) {
                all.push(figure("startup_s", name, (t - WINDOW_S / 2.0 - start).max(0.0)));
            }
        }
        FlowKind::Flood | FlowKind::Udp | FlowKind::Ping | FlowKind::Shape => {}
    }
    Ok(())
}

/// Figures of the fairness between flows.
fn together(live: &LiveRun<'_>, all: &mut Vec<Figure>) {
    let is_payload = |f: &ActiveFlow| f.spec.kind != FlowKind::Flood;
    let flows: Vec<usize> = (0..live.flows.len()).filter(|i| is_payload(&live.flows[*i])).collect();
    if flows.len() < 2 {
        return;
    }
    let begin = |i: &usize| live.flows[*i].accepted.unwrap_or(live.flows[*i].spec.start_s);
    let end = |i: &usize| live.flows[*i].done.or(live.flows[*i].ended).unwrap_or(f64::MAX);
    let from = flows.iter().map(begin).fold(0.0, f64::max) + SETTLED_S;
    let to = flows.iter().map(end).fold(live.record.seconds, f64::min) - ENDING_S;
    if to - from < 1.0 {
        return;
    }
    let mut shares = Vec::new();
    for &i in &flows {
        let bytes = live.curves.arrived_at(i, to) - live.curves.arrived_at(i, from);
        let Some(capacity) = capacity(live, &live.flows[i]) else { continue };
        let share = bytes * 8.0 / (to - from) / (capacity / sharers(live, i, &flows));
        all.push(figure("fair_share", &live.flows[i].spec.name, share));
        shares.push(share);
    }
    all.extend(jain(&shares).map(|value| figure("jain", "", value)));
}

/// Rate of all TCP flows together, from the start-up of the last to the end of the first. `None`
/// with fewer than two concurrent flows.
fn tcp_sum(live: &LiveRun<'_>) -> Option<Figure> {
    let flows = live.flows.iter().enumerate().filter(|(_, flow)| flow.spec.kind == FlowKind::Tcp);
    let flows: Vec<(usize, &ActiveFlow)> = flows.collect();
    let settled = |flow: &ActiveFlow| flow.spec.start_s + flow.spec.settle_s;
    let from = flows.iter().map(|(_, flow)| settled(flow)).fold(0.0, f64::max);
    let ends = flows.iter().filter_map(|(_, flow)| flow.ended);
    let to = ends.fold(live.record.seconds, f64::min);
    let bytes = |(i, _): &(usize, &ActiveFlow)| {
        live.curves.arrived_at(*i, to) - live.curves.arrived_at(*i, from)
    };
    let sum: f64 = flows.iter().map(bytes).sum();
    let is_one = flows.len() > 1 && to > from;
    is_one.then(|| figure("tcp_sum_mbit", "", sum * 8e-6 / (to - from)))
}

/// The number of `flows` on the most shared link of flow `i`'s path.
fn sharers(live: &LiveRun<'_>, i: usize, flows: &[usize]) -> f64 {
    let topology = live.site.network().topology();
    let way = |i: usize| {
        let flow = &live.flows[i];
        topology.path(flow.from, flow.to, |_| true).unwrap_or_default()
    };
    let ways: Vec<_> = flows.iter().map(|&j| way(j)).collect();
    let on = |step: &(usize, usize)| ways.iter().filter(|w| w.contains(step)).count();
    way(i).iter().map(on).max().unwrap_or(1) as f64
}

/// File bytes sent again per file byte lost, over all files and links. The direction with more
/// bytes counts as the files' direction of a link.
fn resent(live: &LiveRun<'_>, all: &mut Vec<Figure>) -> Result<()> {
    let network = live.site.network();
    let mut lost = 0;
    for (link, l) in network.topology().links.iter().enumerate() {
        let ways = [network.arrived(link, l.a)?, network.arrived(link, l.b)?];
        lost += ways.iter().max_by_key(|w| w.bytes).map_or(0, |w| w.lost);
    }
    let resent: u64 = live.flows.iter().map(|f| f.resent).sum();
    // With fewer losses, a few lost reports would dominate.
    if lost >= 1_000 {
        let segment_bytes = live.flows.first().map_or(f64::NAN, |f| f.segment_bytes);
        let ratio = resent as f64 / (lost as f64 * segment_bytes);
        all.push(figure("resent_over_lost", "", ratio));
    }
    Ok(())
}

/// Waits in the queues of emulated links, after the first file's start-up.
fn queues(live: &LiveRun<'_>, all: &mut Vec<Figure>) {
    let waits = live.curves.waits();
    for (i, (name, _, samples)) in live.curves.queues.iter().enumerate() {
        let before = live.waits_before.as_ref().map(|b| &b[i]);
        let count = |(step, n): (usize, &u64)| n - before.map_or(0, |b| b[step]);
        let counts: Vec<u64> = waits[i].iter().enumerate().map(count).collect();
        let total: u64 = counts.iter().sum();
        // A direction with only answers has no relevant queue.
        if total < 1_000 {
            continue;
        }
        let ms = |step: usize| (step + 1) as f64 * WAIT_STEP as f64 / 1e6;
        let mut above = total / 100;
        let step = counts.iter().rposition(|count| {
            let is_it = *count > above;
            above = above.saturating_sub(*count);
            is_it
        });
        let sum: f64 = counts.iter().enumerate().map(|(i, n)| ms(i) * *n as f64).sum();
        all.push(figure("queue_ms", name, ms(step.unwrap_or(0))));
        all.push(figure("queue_mean_ms", name, sum / total as f64));
        all.push(figure("queue_max_ms", name, samples.iter().copied().fold(0.0, f64::max)));
    }
}

fn memory(live: &LiveRun<'_>, all: &mut Vec<Figure>) {
    let topology = live.site.network().topology();
    for (node, values) in live.curves.memory.iter().enumerate() {
        let name = &topology.nodes[node].name;
        let most = values.iter().copied().fold(0.0, f64::max);
        if most == 0.0 {
            continue;
        }
        all.push(figure("memory_mb", name, most / 1e6));
        let part = values.len() / 8;
        if part > 0 {
            let most = |from: usize| values[from..from + part].iter().copied().fold(0.0, f64::max);
            let early = most(values.len() / 4);
            if early > 0.0 {
                all.push(figure("memory_growth", name, most(values.len() - part) / early));
            }
        }
    }
}

/// Share of cells that left the mixes of each node late.
fn late(site: &RunningNetwork, all: &mut Vec<Figure>) {
    for (node, spec) in site.network().topology().nodes.iter().enumerate() {
        if site.process(node).is_none() {
            continue;
        }
        if let Ok(api::ControlReply::Metrics(text)) = site.ask(node, api::Command::Metrics) {
            all.extend(late_share(&text).map(|share| figure("late_share", &spec.name, share)));
        }
    }
}

/// Share of cells that left a mix at least half a millisecond late, from a node's metrics.
fn late_share(metrics: &str) -> Option<f64> {
    let released = metric(metrics, "shoal_cells_released_total ").filter(|cells| *cells > 0.0)?;
    Some(metric(metrics, r#"shoal_cells_late_total{by="0.5ms"} "#)? / released)
}

/// Number of drops by node and reason.
pub type Drops = BTreeMap<(String, String), u64>;

/// Drops of every node so far.
pub fn drops_at(site: &RunningNetwork) -> Drops {
    let mut drops = Drops::new();
    for (node, spec) in site.network().topology().nodes.iter().enumerate() {
        if site.process(node).is_none() {
            continue;
        }
        // A starting node doesn't answer.
        let Ok(api::ControlReply::Status(status)) = site.ask(node, api::Command::Status) else {
            continue;
        };
        for (reason, count) in status.drops {
            drops.insert((spec.name.clone(), reason), count);
        }
    }
    drops
}

fn drops(live: &mut LiveRun<'_>, before: &Drops, all: &mut Vec<Figure>) -> Result<()> {
    // Within this time, nodes read and count the rest of their sockets' contents.
    std::thread::sleep(Duration::from_millis(300));
    let after = drops_at(&live.site);
    for (key, count) in after {
        let fresh = count.saturating_sub(before.get(&key).copied().unwrap_or(0));
        if fresh > 0 {
            live.record.drops.push((key.0, key.1, fresh));
        }
    }
    let network = live.site.network();
    let topology = network.topology();
    for flood in live.flows.iter().filter(|f| f.spec.kind == FlowKind::Flood) {
        let (sent, seconds) = flood.flooded;
        all.push(figure("flood_per_s", &flood.spec.name, sent as f64 / seconds.max(1e-3)));
        let handshakes = flows::handshakes_s(&live.site, flood.to) - flood.handshakes_before_s;
        let share = handshakes / seconds.max(1e-3);
        all.push(figure("handshake_cpu", &flood.spec.name, share));
        let Some(link) = topology.link_between(flood.from, flood.to) else { continue };
        let arrived = network.arrived(link, flood.to)?.packets;
        let target = &topology.nodes[flood.to].name;
        let at_target = live.record.drops.iter().filter(|(node, _, _)| node == target);
        let dropped: u64 = at_target.map(|(_, _, count)| count).sum();
        all.push(figure("explained", &flood.spec.name, dropped as f64 / arrived.max(1) as f64));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::late_share;

    #[test]
    fn the_share_of_late_cells_is_read_where_cells_were_held() {
        let text = |released| {
            format!(
                "shoal_cells_released_total {released}\nshoal_cells_late_total{{by=\"0.5ms\"}} 3\n\
                 shoal_cells_late_total{{by=\"2ms\"}} 1\n"
            )
        };
        assert_eq!(late_share(&text(400)), Some(0.0075));
        assert_eq!(late_share(&text(0)), None);
        assert_eq!(late_share(""), None);
    }
}
