//! Questions to a running node: status, peers, routes, hosts, metrics, reload.

use anyhow::Result;
use shoal_daemon::control::api::{
    Behind, Command, HopPeer, HopStatus, Host, Interface, Mandate, Peer, Reply, Route, Secret,
    Status, WorkerTraffic,
};
use shoal_daemon::control::hints;
use shoal_daemon::membership::expiry;

use crate::options::Common;
use crate::output::{self, Paint, Table, paint, plain};
use crate::target::{ask, connect, unexpected};
use crate::units::{Bytes, span_s, thousands, utc};
use crate::{cover, failure};

/// `shoal status`.
pub fn status(common: &Common) -> Result<()> {
    match ask(common, Command::Status)? {
        Reply::Status(status) if common.json => Ok(output::json("status", &status)?),
        Reply::Status(status) => print_status(&status),
        other => Err(unexpected(&other)),
    }
}

/// What each worker did.
fn workers(s: &Status) -> String {
    let sum = |of: fn(&WorkerTraffic) -> u64| {
        let each: Vec<String> = s.workers.iter().map(|w| thousands(of(w))).collect();
        each.join(" + ")
    };
    let (count, cells) = (s.workers.len(), sum(|w| w.cells_transit));
    let mut text = format!("{count}, passed on {cells} cells");
    if s.interface.as_ref().is_some_and(|i| i.queues > 1) {
        let packets = sum(|w| w.packets_read + w.packets_written);
        text.push_str(&format!(", served programs with {packets} packets"));
    }
    text
}

/// Drops in one line, by name, then a line with a hint for each `recent` one that has a hint.
fn dropped(drops: &[(String, u64)], recent: &[String]) -> Vec<String> {
    let mut drops: Vec<&(String, u64)> = drops.iter().collect();
    drops.sort();
    let all: u64 = drops.iter().map(|drop| drop.1).sum();
    let each = |drop: &&(String, u64)| format!("{} {}", drop.0, thousands(drop.1));
    let each = drops.iter().map(each).collect::<Vec<_>>().join(", ");
    let each = if each.is_empty() { each } else { format!(" ({each})") };
    let mut lines = vec![format!("{}{each}", thousands(all))];
    for (reason, _) in drops.into_iter().filter(|(reason, _)| recent.contains(reason)) {
        lines.extend(hints::hint_of(reason).map(|hint| format!("{reason}: {hint}")));
    }
    lines
}

fn print_status(s: &Status) -> Result<()> {
    let line = |name: &str, text: String| {
        output::line(&format!("  {} {text}", paint(Paint::Dim, &format!("{name:<11}"))))
    };
    let up = if s.links_up == 0 { Paint::Bad } else { Paint::Good };
    output::line(&format!("{} {} at {}", s.role, paint(Paint::Bold, &s.name), s.address))?;
    line("running", format!("{}, process {}, {}", span_s(s.uptime_s), s.pid, s.version))?;
    line("public key", s.public_key.clone())?;
    line("listens on", s.listen.join(", "))?;
    let more = if s.links_up < s.links { " (see `shoal peers`)" } else { "" };
    line("links", paint(up, &format!("{} of {} up{more}", s.links_up, s.links)))?;
    line("routes", s.routes.to_string())?;
    line("sessions", format!("{} with hosts, {} transfers", s.host_sessions, s.transfers))?;
    let moved = |frames, bytes| format!("{} frames, {}", thousands(frames), Bytes(bytes));
    line("received", moved(s.traffic.frames_in, s.traffic.bytes_in))?;
    line("sent", moved(s.traffic.frames_out, s.traffic.bytes_out))?;
    if !s.workers.is_empty() {
        line("workers", workers(s))?;
    }
    for (nth, text) in dropped(&s.drops, &s.drops_recent).into_iter().enumerate() {
        line(if nth == 0 { "dropped" } else { "" }, text)?;
    }
    let on = |on: bool| if on { "on" } else { "off" };
    let o = &s.offloads;
    line("offloads", format!("GSO {}, GRO {}, AES {}", on(o.gso), on(o.gro), on(o.aes)))?;
    line(
        "suites",
        format!("{} (processor with {})", s.ciphers.suites.join(", "), s.ciphers.processor),
    )?;
    s.interface.iter().flat_map(interface).try_for_each(|(name, text)| line(name, text))?;
    if let Some(a) = &s.authority {
        let state = a.state.replace('_', " ");
        let from = if a.from_neighbour { ", from a neighbour" } else { "" };
        let text = format!(
            "list {} ({state}{from}), signed {} ago",
            a.list_version,
            span_s(a.list_age_s as f64)
        );
        line("authority", format!("{text}, {} members", a.members))?;
        for mandate in &a.mandates {
            line("mandate", admitted(mandate))?;
        }
        a.secret.iter().try_for_each(|secret| line("secret", rotation(secret)))?;
        if let Some(why) = &a.refused {
            line("refused", paint(Paint::Bad, why))?;
        }
    }
    if let Some(d) = &s.direct {
        let (links, up) = (d.links, thousands(d.up));
        let text = format!("{links} now, {up} came up, {} failed", thousands(d.failed));
        line("direct", text)?;
    }
    for (nth, text) in s.cover.iter().flat_map(cover::lines).enumerate() {
        line(if nth == 0 { "cover" } else { "" }, text)?;
    }
    s.hop.iter().try_for_each(|hop| line("hop", addresses(hop)))?;
    line("buffers", format!("{} receive, {} send", Bytes(o.receive_buffer), Bytes(o.send_buffer)))?;
    line("uses", format!("{:.1} s of CPU, {} of memory", s.cpu_s, Bytes(s.memory_bytes)))?;
    for warning in &s.warnings {
        line("warning", paint(Paint::Bad, warning))?;
    }
    Ok(())
}

/// The interface, and networks behind nodes, as lines with their names.
fn interface(i: &Interface) -> Vec<(&'static str, String)> {
    let on = |on: bool| if on { "on" } else { "off" };
    let (tcp, udp) = (on(i.tcp_offload), on(i.udp_offload));
    let offloads = format!("TCP offload {tcp}, UDP offload {udp}");
    let ipv4 = i.ipv4.as_ref().map_or_else(String::new, |ipv4| format!(" and {ipv4}"));
    let state = match i.state.as_str() {
        "" | "up" => String::new(),
        other => paint(Paint::Bad, &format!(" ({other})")),
    };
    let mut lines =
        vec![("interface", format!("{}{state} at {}{ipv4}, {offloads}", i.name, i.address))];
    lines.extend(i.serves.iter().map(|prefix| ("behind it", prefix.clone())));
    let reached = |behind: &Behind| format!("{} behind {}", behind.prefix, behind.host);
    lines.extend(i.reaches.iter().map(|behind| ("reaches", reached(behind))));
    lines
}

/// How far a change of the network's secret is, in one line.
fn rotation(s: &Secret) -> String {
    let Secret { neighbours_have: have, neighbours, .. } = s;
    let here = |has: bool, which: &str| match has {
        true => format!("this node has {which}, {have} of {neighbours} neighbours do"),
        false => paint(Paint::Bad, &format!("this node does not have {which}")),
    };
    match s.state.as_str() {
        "announced" => format!("another is announced: {}", here(s.has_newest, "it")),
        "switched" => {
            let until = utc(s.old_until_unix_s);
            let here = here(s.has_current, "the new one");
            format!("switched, the old one counts until {until}: {here}")
        }
        _ => format!("settled: {}", here(s.has_current, "it")),
    }
}

/// How many addresses that hop are in use, and what drops frames to others.
fn addresses(hop: &HopStatus) -> String {
    let filter = match hop.filter.as_str() {
        "counting" => "the kernel drops and counts what comes to others",
        "plain" => "the kernel drops what comes to others",
        _ => "the node drops what comes to others",
    };
    let place = hop.interface.as_ref().map_or(String::new(), |name| format!(" on {name}"));
    let HopStatus { mode, prefix, addresses, .. } = hop;
    format!("{mode}{place}, {addresses} addresses of {prefix} in use, {filter}")
}

/// A mandate in one line.
fn admitted(m: &Mandate) -> String {
    let (admitted, most, members) = (m.admitted, m.most, m.members);
    let text = format!("{}: {admitted} of {most} keys admitted, {members} members", m.name);
    match m.frozen_at {
        None => text,
        Some(at) => format!("{text}, {}", paint(Paint::Bad, &format!("frozen from step {at} on"))),
    }
}

/// `shoal peers`.
pub fn peers(common: &Common) -> Result<()> {
    match ask(common, Command::Peers)? {
        Reply::Peers(peers) if common.json => Ok(output::json("peers", &peers)?),
        Reply::Peers(peers) => print_peers(&peers),
        other => Err(unexpected(&other)),
    }
}

fn print_peers(peers: &[Peer]) -> Result<()> {
    let mut table = Table::new(&[
        "neighbour",
        "address",
        "state",
        "endpoint",
        ">heard",
        ">rtt",
        ">loss",
        ">cost",
        ">queue",
        "cipher",
        "path",
        "direct",
        "cover",
        "hop",
    ]);
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".into());
    for p in peers {
        let how = match p.state.as_str() {
            "up" => Paint::Good,
            "silent" => Paint::Bad,
            _ => Paint::Dim,
        };
        let heard = p.last_heard_ms.map(|ms| format!("{} ago", span_s(ms as f64 / 1e3)));
        table.row(vec![
            (Paint::Bold, p.name.clone()),
            (Paint::Plain, p.address.clone()),
            (how, p.state.clone()),
            (Paint::Plain, or_dash(p.endpoint.clone())),
            (Paint::Plain, or_dash(heard)),
            (Paint::Plain, or_dash(p.rtt_us.map(|us| format!("{:.2} ms", us as f64 / 1e3)))),
            (Paint::Plain, or_dash(p.loss.map(|l| format!("{:.1}%", l * 100.0)))),
            (Paint::Plain, or_dash(p.cost.map(|c| c.to_string()))),
            (Paint::Plain, p.egress_cells.to_string()),
            (Paint::Plain, or_dash(p.suite.clone())),
            (Paint::Plain, if p.small_path { "small" } else { "full" }.into()),
            (Paint::Plain, or_dash(p.direct.as_ref().map(|d| format!("{}: {}", d.level, d.why)))),
            (covered(p), or_dash(p.cover.as_ref().map(cover::link))),
            (hops(p), or_dash(p.hop.as_ref().map(hop))),
        ]);
    }
    table.print()?;
    for (state, hint) in [("connecting", CONNECTING), ("waiting", WAITING)] {
        if peers.iter().any(|peer| peer.state == state && !meets(peer)) {
            output::line(hint)?;
        }
    }
    if peers.iter().any(|peer| peer.state == "connecting" && meets(peer)) {
        output::line(MEETING)?;
    }
    Ok(())
}

/// Whether both ends of a link meet at addresses that follow from the time.
fn meets(peer: &Peer) -> bool {
    peer.hop.as_ref().is_some_and(|hop| hop.rendezvous)
}

/// Whether a link's addresses hop, and how the last hop ended; never which they are.
fn hop(hop: &HopPeer) -> String {
    let every = span_s(hop.interval_s);
    let last = match (hop.last.as_str(), hop.last_s) {
        (how, Some(s)) => format!(", last {how} {} ago", span_s(s)),
        (_, None) => String::new(),
    };
    let failed = if hop.failed > 0 { format!(", {} failed", hop.failed) } else { String::new() };
    match hop.state.as_str() {
        "unknown" if hop.rendezvous && hop.made == 0 => "none yet: both ends have not met".into(),
        "unknown" => "none: there is no session with it".into(),
        "alone" => "the neighbour's addresses don't hop".into(),
        "fixed" => format!("fixed for now (every {every} wanted{failed}{last})"),
        _ => format!("every {every}{failed}{last}"),
    }
}

/// How to show hops: those that are wanted and not made protect nobody.
fn hops(peer: &Peer) -> Paint {
    match peer.hop.as_ref().map(|hop| hop.state.as_str()) {
        Some("alone" | "fixed") => Paint::Bad,
        _ => Paint::Plain,
    }
}

/// How to show a link's schedule: one that ends, or has ended, protects nobody.
fn covered(peer: &Peer) -> Paint {
    match peer.cover.as_ref().map(|cover| cover.state.as_str()) {
        Some("ending" | "off") => Paint::Bad,
        _ => Paint::Plain,
    }
}

/// What to check when a neighbour doesn't answer: nodes don't answer callers they don't know.
const CONNECTING: &str = "\
connecting: no answer. Does that node run, and does no firewall there or on the way keep UDP from
the port beside its name? Has it a [[link]] with this node and the same network secret, and has each
end the other's public key? A member that was away while the network's secret changed gets the new
one by `shoal network fetch`.";
/// The same where both ends meet at addresses that follow from the time.
const MEETING: &str = "\
connecting: no answer where both ends are to meet. Those addresses follow from the time of day: are
the clocks of both nodes right to within ten minutes? Does that node run, has it a [[link]] with
this one's [hop] prefix and port as its `rendezvous`, and do routers bring both prefixes there?";
const WAITING: &str = "\
waiting: has no endpoint here, so that node must call this one. Does it run, with a [[link]] that
has this node's endpoint?";

/// `shoal routes`.
pub fn routes(common: &Common) -> Result<()> {
    match ask(common, Command::Routes)? {
        Reply::Routes(routes) if common.json => Ok(output::json("routes", &routes)?),
        Reply::Routes(routes) if routes.is_empty() => no_routes(common),
        Reply::Routes(routes) => print_routes(&routes),
        other => Err(unexpected(&other)),
    }
}

/// Explains an empty table: hosts have no routes of their own.
fn no_routes(common: &Common) -> Result<()> {
    let text = match ask(common, Command::Status)? {
        Reply::Status(status) if status.role == "host" => {
            let up = if status.links_up == 0 { "no link to it is up" } else { "the link is up" };
            format!("this is a host: all it sends goes through its router, which has routes; {up}")
        }
        _ => "no routes: no other router is known".into(),
    };
    Ok(output::line(&text)?)
}

fn print_routes(routes: &[Route]) -> Result<()> {
    let mut table =
        Table::new(&[">router", "name", "next hop", ">cost", ">stands for", "alternatives"]);
    for r in routes {
        let hop = match &r.next_hop {
            Some(hop) => (Paint::Plain, hop.clone()),
            None => (Paint::Bad, "unreachable".into()),
        };
        let mut row = plain([r.router.to_string(), r.name.clone().unwrap_or_else(|| "-".into())]);
        row.push(hop);
        let others = r.alternatives.iter().map(|hop| format!("{} ({})", hop.peer, hop.cost));
        let others = others.collect::<Vec<_>>().join(", ");
        row.extend(plain([r.cost.to_string(), span_s(r.age_s), others]));
        table.row(row);
    }
    Ok(table.print()?)
}

/// `shoal hosts`.
pub fn hosts(common: &Common) -> Result<()> {
    let mut connection = connect(common)?;
    let mut hosts: Vec<Host> = Vec::new();
    loop {
        let skip = hosts.len() as u32;
        let reply = connection.call(Command::Hosts { skip }, &[]).map_err(failure::call)?;
        let Reply::Hosts(part) = reply else { return Err(unexpected(&reply)) };
        let last = part.hosts.is_empty();
        hosts.extend(part.hosts);
        if last || hosts.len() >= part.total as usize {
            break;
        }
    }
    if common.json { Ok(output::json("hosts", &hosts)?) } else { print_hosts(&hosts) }
}

fn print_hosts(hosts: &[Host]) -> Result<()> {
    let now = shoal_daemon::worker::clock::unix_ms() / 1_000;
    let memberships: Vec<String> = hosts.iter().map(|host| membership(host, now)).collect();
    let mut heads = vec!["name", "address", "online", ">heard", "interface"];
    // Where registrars make no members, and nothing ends soon, there is nothing to say.
    let says = memberships.iter().any(|text| !text.is_empty());
    heads.extend(says.then_some("member"));
    heads.push("path");
    let mut table = Table::new(&heads);
    for (host, membership) in hosts.iter().zip(memberships) {
        let online = match host.online {
            Some(true) => (Paint::Good, "yes".into()),
            Some(false) => (Paint::Bad, "no".into()),
            None => (Paint::Dim, "?".into()),
        };
        let heard = match host.last_heard_ms {
            _ if host.this_node => "this node".into(),
            Some(ms) => format!("{} ago", span_s(ms as f64 / 1e3)),
            None => "-".into(),
        };
        let at = [&host.interface[..], &host.prefixes].concat();
        let at = if at.is_empty() { "-".into() } else { at.join(", ") };
        let mut row = vec![(Paint::Bold, host.name.clone())];
        row.extend(plain([host.address.clone()]));
        row.push(online);
        // What is away travels on no path.
        let path = host.path.as_ref().filter(|_| host.online != Some(false));
        let path = match (path, &host.why) {
            (None, _) => "-".into(),
            (Some(path), None) => path.clone(),
            (Some(path), Some(why)) => format!("{path} ({why})"),
        };
        row.extend(plain([heard, at]));
        row.extend(says.then_some((Paint::Plain, membership)));
        row.extend(plain([path]));
        table.row(row);
    }
    Ok(table.print()?)
}

/// By whose word a host is a member, if not by the authority's, and when that ends, if soon.
fn membership(host: &Host, now: u64) -> String {
    let by = host.mandate.as_ref().map(|mandate| format!("by {mandate}"));
    let ends = host.expires_unix_s.filter(|ends| expiry::is_near(*ends, now));
    let ends = ends.map(|ends| format!("ends in {}", span_s(ends.saturating_sub(now) as f64)));
    by.into_iter().chain(ends).collect::<Vec<_>>().join(", ")
}

/// `shoal metrics`.
pub fn metrics(common: &Common) -> Result<()> {
    match ask(common, Command::Metrics)? {
        Reply::Metrics(text) if common.json => Ok(output::json("metrics", &text)?),
        Reply::Metrics(text) => Ok(output::line(text.trim_end())?),
        other => Err(unexpected(&other)),
    }
}

/// `shoal reload`.
pub fn reload(common: &Common) -> Result<()> {
    match ask(common, Command::Reload)? {
        Reply::Reloaded { applied, needs_restart } if common.json => {
            let lists = serde_json::json!({ "applied": applied, "needs_restart": needs_restart });
            Ok(output::json("reload", &lists)?)
        }
        Reply::Reloaded { applied, needs_restart } => {
            let list = |keys: &[String]| {
                if keys.is_empty() { "nothing".into() } else { keys.join(", ") }
            };
            output::line(&format!("applied: {}", list(&applied)))?;
            if !needs_restart.is_empty() {
                output::line(&format!("waits for a restart: {}", list(&needs_restart)))?;
            }
            Ok(())
        }
        other => Err(unexpected(&other)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hops_of_a_link_without_a_session_blame_no_neighbour() {
        let says = |state: &str, rendezvous: bool| {
            let interval_s = 1.0;
            hop(&HopPeer { state: state.into(), rendezvous, interval_s, ..HopPeer::default() })
        };
        assert_eq!(says("unknown", false), "none: there is no session with it");
        assert_eq!(says("unknown", true), "none yet: both ends have not met");
        for rendezvous in [false, true] {
            assert_eq!(says("alone", rendezvous), "the neighbour's addresses don't hop");
        }
        assert!(says("fixed", false).starts_with("fixed for now (every 1 s wanted"));
    }

    #[test]
    fn drops_stand_by_name_with_what_they_mean() {
        let drops = [("no_route", 2), ("bad_handshake", 1_234), ("queue_full", 1)];
        let drops: Vec<_> = drops.map(|(name, n)| (name.to_string(), n)).into();
        let recent = ["bad_handshake", "no_route", "queue_full"].map(String::from);
        let lines = dropped(&drops, &recent);
        assert_eq!(lines[0], "1,237 (bad_handshake 1,234, no_route 2, queue_full 1)");
        assert!(lines[1].starts_with("bad_handshake: another network's secret"), "{lines:?}");
        assert!(lines[2].starts_with("no_route: "), "{lines:?}");
        assert_eq!(lines.len(), 3);
        // Drops that have stopped are counted, but have no hint.
        assert_eq!(dropped(&drops, &recent[..1])[1..], lines[1..2]);
        assert_eq!(dropped(&[], &[]), ["0"]);
    }
}
