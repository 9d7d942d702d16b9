//! Queries of a running node: status, peers, routes, hosts, metrics, reload.

use anyhow::Result;
use shoal_daemon::control::api::{
    CircuitTotals, Command, ControlReply, HiddenCount, HostNetwork, InterfaceStatus,
    LinkShiftStatus, MandateStatus, MemberStatus, NeighbourStatus, PresetStatus, RemovedStatus,
    RouteStatus, SecretProgress, ShiftStatus, Status, WorkerTraffic,
};
use shoal_daemon::control::hints;
use shoal_daemon::membership::expiry;

use crate::options::CommonOptions;
use crate::output::{self, CellStyle, TextTable, paint, plain};
use crate::target::{ask, connect, unexpected};
use crate::units::{Bytes, counted, day, span_s, thousands, utc};
use crate::{cover, failure};

pub fn status(common: &CommonOptions) -> Result<()> {
    match ask(common, Command::Status)? {
        ControlReply::Status(status) if common.json => Ok(output::json("status", &status)?),
        ControlReply::Status(status) => print_status(&status),
        other => Err(unexpected(&other)),
    }
}

/// Work of each worker, in one line.
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

/// Drops in one line, by name, then a line for each `recent` reason that has a hint.
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

/// Advice about links that are down.
fn links_hint(s: &Status) -> &'static str {
    let by_registrar = s.authority.as_ref().is_some_and(|authority| authority.by_registrar);
    match s.links_up {
        up if up >= s.links => "",
        0 if by_registrar && s.role == "host" => {
            " (see `shoal peers`; `shoal up --another-router` leaves a router that does not answer)"
        }
        _ => " (see `shoal peers`)",
    }
}

fn print_status(s: &Status) -> Result<()> {
    let line = |name: &str, text: String| {
        output::line(&format!("  {} {text}", paint(CellStyle::Dim, &format!("{name:<11}"))))
    };
    let up = if s.links_up == 0 { CellStyle::Bad } else { CellStyle::Good };
    output::line(&format!("{} {} at {}", s.role, paint(CellStyle::Bold, &s.name), s.address))?;
    line("running", format!("{}, process {}, {}", span_s(s.uptime_s), s.pid, s.version))?;
    line("public key", s.public_key.clone())?;
    line("listens on", s.listen.join(", "))?;
    line("links", paint(up, &format!("{} of {} up{}", s.links_up, s.links, links_hint(s))))?;
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
        if let Some(removed) = &a.removed {
            line("removed", paint(CellStyle::Bad, &gone(removed)))?;
        }
        for mandate in &a.mandates {
            line("mandate", admitted(mandate))?;
        }
        a.secret.iter().try_for_each(|secret| line("secret", rotation(secret)))?;
        if let Some(why) = &a.refused {
            line("refused", paint(CellStyle::Bad, why))?;
        }
    }
    if let Some(d) = &s.direct {
        let (links, up) = (d.links, thousands(d.up));
        let text = format!("{links} now, {up} came up, {} failed", thousands(d.failed));
        line("direct", text)?;
    }
    s.preset.iter().try_for_each(|preset| line("preset", self::preset(preset)))?;
    circuits(s).map_or(Ok(()), |text| line("circuits", text))?;
    s.hidden.as_ref().map_or(Ok(()), |count| line("hidden", hidden(count)))?;
    for (nth, text) in s.cover.iter().flat_map(cover::lines).enumerate() {
        line(if nth == 0 { "cover" } else { "" }, text)?;
    }
    s.shift.iter().try_for_each(|shift| line("shift", addresses(shift)))?;
    line("buffers", format!("{} receive, {} send", Bytes(o.receive_buffer), Bytes(o.send_buffer)))?;
    line("uses", format!("{:.1} s of CPU, {} of memory", s.cpu_s, Bytes(s.memory_bytes)))?;
    for warning in &s.warnings {
        line("warning", paint(CellStyle::Bad, warning))?;
    }
    Ok(())
}
/// The preset that a host follows, who asks for it, and if the network holds it.
fn preset(preset: &PresetStatus) -> String {
    let PresetStatus { level, by, missing, is_closed, as_far_as_possible } = preset;
    let by = match by.as_str() {
        "list" => "the network's list asks for it",
        "file" => "this host's file asks for it",
        _ => "this host's file and the network's list ask for it",
    };
    let state = match (missing.is_empty(), is_closed, as_far_as_possible) {
        (true, ..) => String::new(),
        (false, true, _) => paint(CellStyle::Bad, ": no packets leave, see the warnings"),
        (false, false, true) => paint(CellStyle::Bad, ": as far as possible, see the warnings"),
        (false, false, false) => paint(CellStyle::Bad, ": see the warnings"),
    };
    format!("{level}, {by}{state}")
}

/// Hosts for which the preset's promises hold, in one line.
fn hidden(count: &HiddenCount) -> String {
    let HiddenCount { hosts, held } = count;
    let text = format!("{held} of {hosts} hosts as the preset promises");
    match held == hosts {
        true => text,
        false => paint(CellStyle::Bad, &format!("{text}; `shoal hidden` says why")),
    }
}

/// Hosts that are reached only over circuits, in one line; none if there are none.
fn circuits(s: &Status) -> Option<String> {
    let CircuitTotals { bound, met, met_since_unix_s, .. } = s.circuits;
    let hosts = |count: u64| counted(count as usize, "host");
    let first = met_since_unix_s.map_or(String::new(), |at| format!(" since {}", day(at)));
    let met = (met > 0).then(|| {
        format!(
            "{} bound{first}, because met so (`shoal circuits forget HOST` ends that)",
            hosts(met)
        )
    });
    let bound = (bound > 0).then(|| format!("{} reached over circuits only", hosts(bound)));
    let said: Vec<String> = bound.into_iter().chain(met).collect();
    (!said.is_empty()).then(|| said.join(", "))
}

/// The interface, and networks behind nodes, as lines with their names.
fn interface(i: &InterfaceStatus) -> Vec<(&'static str, String)> {
    let on = |on: bool| if on { "on" } else { "off" };
    let (tcp, udp) = (on(i.tcp_offload), on(i.udp_offload));
    let offloads = format!("TCP offload {tcp}, UDP offload {udp}");
    let ipv4 = i.ipv4.as_ref().map_or_else(String::new, |ipv4| format!(" and {ipv4}"));
    let state = match i.state.as_str() {
        "" | "up" => String::new(),
        other => paint(CellStyle::Bad, &format!(" ({other})")),
    };
    let mut lines =
        vec![("interface", format!("{}{state} at {}{ipv4}, {offloads}", i.name, i.address))];
    lines.extend(i.serves.iter().map(|prefix| ("behind it", prefix.clone())));
    let reached = |behind: &HostNetwork| format!("{} behind {}", behind.prefix, behind.host);
    lines.extend(i.reaches.iter().map(|behind| ("reaches", reached(behind))));
    lines
}

/// Progress of a change of the network's secret, in one line.
fn rotation(s: &SecretProgress) -> String {
    let SecretProgress { neighbours_have: have, neighbours, .. } = s;
    let here = |has: bool, which: &str| match has {
        true => format!("this node has {which}, {have} of {neighbours} neighbours do"),
        false => paint(CellStyle::Bad, &format!("this node does not have {which}")),
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

/// Addresses in use, and the filter that drops frames to other addresses.
fn addresses(shift: &ShiftStatus) -> String {
    let filter = match shift.filter.as_str() {
        "counting" => "the kernel drops and counts frames to other addresses",
        "plain" => "the kernel drops frames to other addresses",
        _ => "the node drops frames to other addresses",
    };
    let place = shift.interface.as_ref().map_or(String::new(), |name| format!(" on {name}"));
    let ShiftStatus { mode, prefix, addresses, .. } = shift;
    format!("{mode}{place}, {addresses} addresses of {prefix} in use, {filter}")
}

/// A removal of the node in one line: when, and whose word it is.
fn gone(removed: &RemovedStatus) -> String {
    let on = removed.on.as_deref().map_or(String::new(), |on| format!("on {on}, "));
    match &removed.said_by {
        None => format!("{on}signed by the {}", removed.by),
        Some(neighbour) => format!("{on}by the {}, as {neighbour} says", removed.by),
    }
}

/// A mandate in one line.
fn admitted(m: &MandateStatus) -> String {
    let (admitted, most, members) = (m.admitted, m.most, m.members);
    let text = format!("{}: {admitted} of {most} keys admitted, {members} members", m.name);
    match m.frozen_at {
        None => text,
        Some(at) => {
            format!("{text}, {}", paint(CellStyle::Bad, &format!("frozen from step {at} on")))
        }
    }
}

pub fn peers(common: &CommonOptions) -> Result<()> {
    match ask(common, Command::Peers)? {
        ControlReply::Peers(peers) if common.json => Ok(output::json("peers", &peers)?),
        ControlReply::Peers(peers) => print_peers(&peers),
        other => Err(unexpected(&other)),
    }
}

fn print_peers(peers: &[NeighbourStatus]) -> Result<()> {
    let mut table = TextTable::new(&[
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
        "shift",
    ]);
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".into());
    for p in peers {
        let how = match p.state.as_str() {
            "up" => CellStyle::Good,
            "silent" => CellStyle::Bad,
            _ => CellStyle::Dim,
        };
        let heard = p.last_heard_ms.map(|ms| format!("{} ago", span_s(ms as f64 / 1e3)));
        table.row(vec![
            (CellStyle::Bold, p.name.clone()),
            (CellStyle::Plain, p.address.clone()),
            (how, p.state.clone()),
            (CellStyle::Plain, or_dash(p.endpoint.clone())),
            (CellStyle::Plain, or_dash(heard)),
            (CellStyle::Plain, or_dash(p.rtt_us.map(|us| format!("{:.2} ms", us as f64 / 1e3)))),
            (CellStyle::Plain, or_dash(p.loss.map(|l| format!("{:.1}%", l * 100.0)))),
            (CellStyle::Plain, or_dash(p.cost.map(|c| c.to_string()))),
            (CellStyle::Plain, p.egress_cells.to_string()),
            (CellStyle::Plain, or_dash(p.suite.clone())),
            (CellStyle::Plain, if p.small_path { "small" } else { "full" }.into()),
            (
                CellStyle::Plain,
                or_dash(p.direct.as_ref().map(|d| format!("{}: {}", d.level, d.why))),
            ),
            (covered(p), or_dash(p.cover.as_ref().map(cover::link))),
            (shifts(p), or_dash(p.shift.as_ref().map(shift))),
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

/// True if both ends of a link meet at addresses that follow from the time.
fn meets(peer: &NeighbourStatus) -> bool {
    peer.shift.as_ref().is_some_and(|shift| shift.rendezvous)
}

/// State of a link's shifts, and the end of the last one; never the addresses.
fn shift(shift: &LinkShiftStatus) -> String {
    let every = span_s(shift.interval_s);
    let last = match (shift.last.as_str(), shift.last_s) {
        (how, Some(s)) => format!(", last {how} {} ago", span_s(s)),
        (_, None) => String::new(),
    };
    let failed =
        if shift.failed > 0 { format!(", {} failed", shift.failed) } else { String::new() };
    match shift.state.as_str() {
        "unknown" if shift.rendezvous && shift.made == 0 => "no session: no meeting yet".into(),
        "unknown" => "no session".into(),
        "alone" => "the neighbour's addresses don't shift".into(),
        "fixed" => format!("fixed for now (every {every} wanted{failed}{last})"),
        _ => format!("every {every}{failed}{last}"),
    }
}

/// Colour of a link's shifts: shifts that are wanted but not made protect nobody.
fn shifts(peer: &NeighbourStatus) -> CellStyle {
    match peer.shift.as_ref().map(|shift| shift.state.as_str()) {
        Some("alone" | "fixed") => CellStyle::Bad,
        _ => CellStyle::Plain,
    }
}

/// Colour of a link's schedule: one that ends, or has ended, protects nobody.
fn covered(peer: &NeighbourStatus) -> CellStyle {
    match peer.cover.as_ref().map(|cover| cover.state.as_str()) {
        Some("ending" | "off") => CellStyle::Bad,
        _ => CellStyle::Plain,
    }
}

/// Checks for a neighbour that doesn't answer: nodes don't answer unknown callers.
const CONNECTING: &str = "\
connecting: no answer. Check that the neighbour runs, and that no firewall there or on the path
blocks UDP to the port beside its name. Check that it has a [[link]] with this node and the same
network secret, and that each end has the other's public key. A member that was away while the
network's secret changed gets the new one by `shoal network fetch`. A removed machine is told so
once an hour, if it has the network's secret.";
/// Checks for ends that meet at addresses that follow from the time.
const MEETING: &str = "\
connecting: no answer at the addresses where both ends meet, which follow from the time of day.
Check that the clocks of both nodes are right to within ten minutes, and that the neighbour runs.
Check that its [[link]] has this node's [shift] prefix and port as `rendezvous`, and that routers
route both prefixes to their nodes.";
const WAITING: &str = "\
waiting: this node knows no endpoint of the neighbour, so the neighbour must call. Check that it
runs, with a [[link]] that has this node's endpoint.";

pub fn routes(common: &CommonOptions) -> Result<()> {
    match ask(common, Command::Routes)? {
        ControlReply::Routes(routes) if common.json => Ok(output::json("routes", &routes)?),
        ControlReply::Routes(routes) if routes.is_empty() => no_routes(common),
        ControlReply::Routes(routes) => print_routes(&routes),
        other => Err(unexpected(&other)),
    }
}

/// Explains an empty table: hosts have no routes of their own.
fn no_routes(common: &CommonOptions) -> Result<()> {
    let text = match ask(common, Command::Status)? {
        ControlReply::Status(status) if status.role == "host" => {
            let up = if status.links_up == 0 { "no link to it is up" } else { "the link is up" };
            format!("this is a host: its router has the routes, and forwards all its traffic; {up}")
        }
        _ => "no routes: no other router is known".into(),
    };
    Ok(output::line(&text)?)
}

fn print_routes(routes: &[RouteStatus]) -> Result<()> {
    let mut table =
        TextTable::new(&[">router", "name", "next hop", ">cost", ">age", "alternatives"]);
    for r in routes {
        let hop = match &r.next_hop {
            Some(hop) => (CellStyle::Plain, hop.clone()),
            None => (CellStyle::Bad, "unreachable".into()),
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

pub fn hosts(common: &CommonOptions) -> Result<()> {
    let mut connection = connect(common)?;
    let mut hosts: Vec<MemberStatus> = Vec::new();
    loop {
        let skip = hosts.len() as u32;
        let reply = connection.call(Command::Hosts { skip }, &[]).map_err(failure::call)?;
        let ControlReply::Hosts(part) = reply else { return Err(unexpected(&reply)) };
        let last = part.hosts.is_empty();
        hosts.extend(part.hosts);
        if last || hosts.len() >= part.total as usize {
            break;
        }
    }
    if common.json { Ok(output::json("hosts", &hosts)?) } else { print_hosts(&hosts) }
}

fn print_hosts(hosts: &[MemberStatus]) -> Result<()> {
    let now = shoal_daemon::worker::clock::unix_ms() / 1_000;
    let memberships: Vec<String> = hosts.iter().map(|host| membership(host, now)).collect();
    let mut heads = vec!["name", "address", "online", ">heard", "interface"];
    // Without registrars' members and without near ends the column would be empty.
    let says = memberships.iter().any(|text| !text.is_empty());
    heads.extend(says.then_some("member"));
    heads.push("path");
    let mut table = TextTable::new(&heads);
    for (host, membership) in hosts.iter().zip(memberships) {
        let online = match host.online {
            Some(true) => (CellStyle::Good, "yes".into()),
            Some(false) => (CellStyle::Bad, "no".into()),
            None => (CellStyle::Dim, "?".into()),
        };
        let heard = match host.last_heard_ms {
            _ if host.this_node => "this node".into(),
            Some(ms) => format!("{} ago", span_s(ms as f64 / 1e3)),
            None => "-".into(),
        };
        let at = [&host.interface[..], &host.prefixes].concat();
        let at = if at.is_empty() { "-".into() } else { at.join(", ") };
        let mut row = vec![(CellStyle::Bold, host.name.clone())];
        row.extend(plain([host.address.clone()]));
        row.push(online);
        // A host that is away has no path.
        let path = host.path.as_ref().filter(|_| host.online != Some(false));
        let path = match (path, &host.why) {
            (None, _) => "-".into(),
            (Some(path), None) => path.clone(),
            (Some(path), Some(why)) => format!("{path} ({why})"),
        };
        row.extend(plain([heard, at]));
        row.extend(says.then_some((CellStyle::Plain, membership)));
        row.extend(plain([path]));
        table.row(row);
    }
    Ok(table.print()?)
}

/// Mandate by which a host is a member, if any, and the end of the membership, if it is near.
fn membership(host: &MemberStatus, now: u64) -> String {
    let by = host.mandate.as_ref().map(|mandate| format!("by {mandate}"));
    let ends = host.expires_unix_s.filter(|ends| expiry::is_near(*ends, now));
    let ends = ends.map(|ends| format!("ends in {}", span_s(ends.saturating_sub(now) as f64)));
    by.into_iter().chain(ends).collect::<Vec<_>>().join(", ")
}

pub fn metrics(common: &CommonOptions) -> Result<()> {
    match ask(common, Command::Metrics)? {
        ControlReply::Metrics(text) if common.json => Ok(output::json("metrics", &text)?),
        ControlReply::Metrics(text) => Ok(output::line(text.trim_end())?),
        other => Err(unexpected(&other)),
    }
}

pub fn reload(common: &CommonOptions) -> Result<()> {
    match ask(common, Command::Reload)? {
        ControlReply::Reloaded { applied, needs_restart } if common.json => {
            let lists = serde_json::json!({ "applied": applied, "needs_restart": needs_restart });
            Ok(output::json("reload", &lists)?)
        }
        ControlReply::Reloaded { applied, needs_restart } => {
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
    fn shifts_of_a_link_without_a_session_blame_no_neighbour() {
        let says = |state: &str, rendezvous: bool| {
            let interval_s = 1.0;
            shift(&LinkShiftStatus {
                state: state.into(),
                rendezvous,
                interval_s,
                ..LinkShiftStatus::default()
            })
        };
        assert_eq!(says("unknown", false), "no session");
        assert_eq!(says("unknown", true), "no session: no meeting yet");
        for rendezvous in [false, true] {
            assert_eq!(says("alone", rendezvous), "the neighbour's addresses don't shift");
        }
        assert!(says("fixed", false).starts_with("fixed for now (every 1 s wanted"));
    }

    #[test]
    fn the_line_about_hidden_hosts_names_the_command_only_if_a_promise_is_broken() {
        assert_eq!(
            hidden(&HiddenCount { hosts: 4, held: 3 }),
            "3 of 4 hosts as the preset promises; `shoal hidden` says why"
        );
        assert!(hidden(&HiddenCount { hosts: 2, held: 2 }).ends_with("promises"));
    }

    #[test]
    fn a_removal_names_its_day_and_whose_word_it_is() {
        let said = |on: Option<&str>, said_by: Option<&str>| {
            gone(&RemovedStatus {
                by: "registrar".into(),
                on: on.map(String::from),
                said_by: said_by.map(String::from),
            })
        };
        let on = Some("2026-11-28");
        assert_eq!(said(on, Some("r1")), "on 2026-11-28, by the registrar, as r1 says");
        assert_eq!(said(on, None), "on 2026-11-28, signed by the registrar");
        assert_eq!(said(None, None), "signed by the registrar");
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
