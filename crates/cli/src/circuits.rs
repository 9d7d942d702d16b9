//! `shoal circuits`: open circuits, and what they hide from whom.

use std::collections::BTreeMap;

use anyhow::Result;
use shoal_daemon::control::api::{
    AvoidedRelay, BoundReason, CircuitsStatus, Command, ControlReply, HostCircuits, LoopCounters,
    ReorderCounters,
};

use crate::args::{CircuitsArgs as Args, CircuitsCommand};
use crate::cover;
use crate::failure::{self, ExitError};
use crate::options::CommonOptions;
use crate::output::{self, CellStyle, TextTable, paint, plain};
use crate::target::{ask, unexpected};
use crate::units::span_s;

pub mod audit;
mod forget;

pub use forget::ForgetArgs;

/// Most hosts with a line of their own about an earlier meeting.
const BOUND_LINES: usize = 4;

pub fn run(common: &CommonOptions, args: &Args) -> Result<()> {
    match (&args.verb, &args.audit) {
        (Some(_), Some(_)) => {
            let text = "--audit means nothing to this command";
            return Err(ExitError::of(failure::USAGE, text));
        }
        (Some(CircuitsCommand::Forget(args)), None) => return forget::run(common, args),
        (None, _) => {}
    }
    if let Some(host) = &args.audit {
        return audit::run(common, args, host);
    }
    match ask(common, Command::Circuits)? {
        ControlReply::Circuits(circuits) if common.json => Ok(output::json("circuits", &circuits)?),
        ControlReply::Circuits(circuits) => print(&circuits),
        other => Err(unexpected(&other)),
    }
}

fn print(circuits: &CircuitsStatus) -> Result<()> {
    for text in &circuits.warnings {
        output::line(&paint(CellStyle::Bad, text))?;
    }
    if circuits.hosts.is_empty() {
        output::line(&nothing(circuits.open))?;
        return covered(circuits);
    }
    table(&circuits.hosts).print()?;
    for to in circuits.hosts.iter().filter(|to| !waits(to)) {
        for (how, text) in words(to) {
            output::line(&paint(how, &format!("{}: {text}", to.host)))?;
        }
    }
    for text in unhidden(&circuits.hosts) {
        output::line(&paint(CellStyle::Bad, &text))?;
    }
    if let Some(text) = waiting(&circuits.hosts) {
        output::line(&text)?;
    }
    for text in bound(&circuits.hosts) {
        output::line(&text)?;
    }
    for avoided in &circuits.avoided {
        output::line(&left_out(avoided))?;
    }
    if let Some(text) = order(&circuits.order) {
        output::line(&text)?;
    }
    if let Some(text) = circuits.loops.as_ref().map(loops) {
        output::line(&text)?;
    }
    covered(circuits)
}

/// Prints the covered links, and from whom cover hides traffic.
fn covered(circuits: &CircuitsStatus) -> Result<()> {
    let Some(cover) = &circuits.cover else { return Ok(()) };
    for text in cover::lines(cover) {
        output::line(&format!("cover: {text}"))?;
    }
    Ok(output::line(cover::FROM_WHOM)?)
}

/// Packets that waited for earlier ones, and packets out of order; none if there were none.
fn order(order: &ReorderCounters) -> Option<String> {
    let ReorderCounters { held, given_up, late, overflowed, unordered, .. } = order;
    let early = overflowed + unordered;
    let room = match early {
        0 => String::new(),
        n => format!("; {n} times there was no room for all"),
    };
    (held + late + early > 0).then(|| {
        format!(
            "order: {held} packets waited here for earlier ones; {given_up} gaps were given \
             up, {late} packets came later{room}"
        )
    })
}

/// Results of loops, in words.
fn loops(loops: &LoopCounters) -> String {
    let LoopCounters { back, late, lost, lossy, held } = loops;
    format!(
        "loops: {back} came back, {late} late, {lost} were lost; {lossy} circuits were replaced \
         for losses, {held} for delays"
    )
}

/// Reason why a relay is avoided, and for how long.
fn left_out(avoided: &AvoidedRelay) -> String {
    let AvoidedRelay { relay, failed, needed, for_s } = avoided;
    let left = span_s(*for_s);
    let what = match failed {
        true => format!("{relay} failed"),
        false => format!("{relay}, or a relay beside it, failed"),
    };
    match (failed, needed) {
        (_, true) => {
            format!("{what}: still used: no other path satisfies the rules")
        }
        (true, false) => format!("{what}: avoided for {left} if other relays fit"),
        (false, false) => format!("{what}: not in the middle for {left} if other relays fit"),
    }
}

fn nothing(open: u64) -> String {
    let carried = match open {
        0 => String::new(),
        n => format!("; up to {n} circuits of others end here or pass through"),
    };
    format!("this node begins no circuits: they are required with no host{carried}")
}

fn table(hosts: &[HostCircuits]) -> TextTable {
    let heads = ["to", "state", "relays", ">age", ">ends in", ">round trip", ">mixes add"];
    let mut table = TextTable::new(&heads);
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".into());
    for to in hosts {
        if to.circuits.is_empty() {
            let mut row =
                vec![(CellStyle::Bold, to.host.clone()), (CellStyle::Dim, "none yet".into())];
            row.extend(plain(["-".into(), "-".into(), "-".into(), "-".into(), "-".into()]));
            table.row(row);
        }
        for circuit in &to.circuits {
            let how = match circuit.state.as_str() {
                "in use" => CellStyle::Good,
                "silent" => CellStyle::Bad,
                _ => CellStyle::Dim,
            };
            let rtt = circuit.rtt_us.map(milliseconds);
            let mut row = vec![(CellStyle::Bold, to.host.clone()), (how, circuit.state.clone())];
            row.extend(plain([
                circuit.relays.join(" "),
                span_s(circuit.age_s),
                or_dash(circuit.ends_in_s.map(span_s)),
                or_dash(rtt),
                or_dash((circuit.added_us > 0).then(|| milliseconds(circuit.added_us))),
            ]));
            table.row(row);
        }
    }
    table
}

fn milliseconds(us: u64) -> String {
    format!("{:.2} ms", us as f64 / 1e3)
}

/// Mixes on the circuits to a host, in words. Each relay is named once for the same mix.
fn mixes(to: &HostCircuits) -> Option<String> {
    let mut said: Vec<String> = Vec::new();
    for circuit in &to.circuits {
        for (relay, mix) in circuit.relays.iter().zip(&circuit.mixes) {
            let text = format!("{relay}: {mix}");
            if !said.contains(&text) {
                said.push(text);
            }
        }
    }
    (!said.is_empty()).then(|| format!("cells wait at relays ({})", said.join("; ")))
}

/// Reason why nothing reaches a host, if a circuit is missing.
pub fn missing(circuits: &CircuitsStatus, host: &str) -> Option<String> {
    let to = circuits.hosts.iter().find(|to| to.host == host)?;
    let carries = to.circuits.iter().any(|circuit| circuit.state == "in use");
    let why = to.problem.as_ref().filter(|_| !carries)?;
    let bound = to.bound.as_ref().filter(|bound| bound.is_met());
    let bound = bound.map_or(String::new(), |bound| format!("; {}", bound.words(&to.host)));
    Some(format!("there is no circuit to it: {why}; see `shoal circuits`{bound}"))
}

/// True if circuits are required with a host and nothing is wrong, but none was needed yet.
fn waits(to: &HostCircuits) -> bool {
    to.required && to.circuits.is_empty() && to.problem.is_none()
}

/// A host without a circuit by its name; several by their number.
fn of_waiting(names: &[&str]) -> String {
    match names {
        [name] => name.to_string(),
        names => format!("{} hosts without a circuit", names.len()),
    }
}

/// Warnings about circuits to hosts that have none yet; each sentence once.
fn unhidden(hosts: &[HostCircuits]) -> Vec<String> {
    let mut said = BTreeMap::<&str, Vec<&str>>::new();
    for to in hosts.iter().filter(|to| waits(to)) {
        for text in &to.warnings {
            said.entry(text).or_default().push(&to.host);
        }
    }
    said.into_iter().map(|(text, of)| format!("{}: not hidden: {text}", of_waiting(&of))).collect()
}

/// The line about hosts that require circuits and have none yet, although nothing is wrong.
fn waiting(hosts: &[HostCircuits]) -> Option<String> {
    let names: Vec<&str> = hosts.iter().filter(|to| waits(to)).map(|to| to.host.as_str()).collect();
    let first = names.first()?;
    let of = of_waiting(&names);
    Some(format!(
        "{of}: circuits are required; the first is built when something is sent (`shoal ping \
         {first}`)"
    ))
}

/// Lines about hosts that are bound to circuits only because they were met so.
fn bound(hosts: &[HostCircuits]) -> Vec<String> {
    let met = hosts.iter().filter_map(|to| {
        let bound = to.bound.as_ref().filter(|bound| bound.is_met())?;
        Some((to.host.as_str(), bound.since.as_deref()))
    });
    met_lines(&met.collect::<Vec<_>>())
}

/// Lines about hosts that were met over circuits, each with its day: a line for each, or one for
/// many.
pub fn met_lines(met: &[(&str, Option<&str>)]) -> Vec<String> {
    if met.len() > BOUND_LINES {
        let first = met.iter().filter_map(|(_, since)| *since).min();
        let first = first.map_or(String::new(), |day| format!(", the first since {day}"));
        return vec![format!(
            "{} hosts are bound to circuits{first}, because they were met so: `shoal circuits \
             forget HOST` ends that",
            met.len()
        )];
    }
    let line = |(host, since): &(&str, Option<&str>)| {
        let (by, since) = (BoundReason::MET.into(), since.map(String::from));
        format!("{host}: {}", BoundReason { by, since }.words(host))
    };
    met.iter().map(line).collect()
}

/// Reason why a host is bound to circuits, if nothing but an earlier meeting binds it.
pub fn met<'a>(circuits: &'a CircuitsStatus, host: &str) -> Option<&'a BoundReason> {
    let to = circuits.hosts.iter().find(|to| to.host.eq_ignore_ascii_case(host))?;
    to.bound.as_ref().filter(|bound| bound.is_met())
}

/// Explains the state `silent`.
const SILENT: &str = "the silent circuit has stopped answering, and there is no standby: packets \
                      still use it, and may be lost, until another one is built, at most for 5 s; \
                      then they wait for the next one";

/// Lines about a host's circuits, most urgent first.
fn words(to: &HostCircuits) -> Vec<(CellStyle, String)> {
    let silent = to.circuits.iter().any(|circuit| circuit.state == "silent");
    let silent = silent.then(|| (CellStyle::Bad, SILENT.to_owned()));
    let problem = to.problem.iter().chain(&to.found).map(|text| (CellStyle::Bad, text.clone()));
    let warnings = to.warnings.iter().map(|text| (CellStyle::Bad, format!("not hidden: {text}")));
    let known = to.known.iter().map(|text| (CellStyle::Plain, text.clone()));
    let mixes = mixes(to).map(|text| (CellStyle::Plain, text));
    silent.into_iter().chain(problem).chain(warnings).chain(known).chain(mixes).collect()
}

#[cfg(test)]
mod tests {
    use shoal_daemon::control::api::CircuitStatus;

    use super::*;

    #[test]
    fn required_hosts_without_circuits_have_a_reason() {
        let bob = HostCircuits { host: "bob".into(), required: true, ..HostCircuits::default() };
        let why =
            "circuits are required; the first is built when something is sent (`shoal ping bob`)";
        assert_eq!(waiting(std::slice::from_ref(&bob)), Some(format!("bob: {why}")));
        let problem = Some("no relay".into());
        let others = [
            HostCircuits { problem, ..bob.clone() },
            HostCircuits { circuits: vec![CircuitStatus::default()], ..bob.clone() },
            HostCircuits { required: false, ..bob.clone() },
        ];
        assert_eq!(waiting(&others), None);
        let said = waiting(&[others[0].clone(), bob.clone(), bob.clone()]);
        assert_eq!(said, Some(format!("2 hosts without a circuit: {why}")));
        let open = HostCircuits { warnings: vec!["two routers".into()], ..bob };
        let carol = HostCircuits { host: "carol".into(), ..open.clone() };
        assert_eq!(unhidden(std::slice::from_ref(&open)), ["bob: not hidden: two routers"]);
        let both = unhidden(&[open, carol, others[0].clone()]);
        assert_eq!(both, ["2 hosts without a circuit: not hidden: two routers"]);
    }

    #[test]
    fn hosts_that_were_met_are_told_with_the_command_that_ends_it() {
        let to = |host: &str, by: &str, since: Option<&str>| HostCircuits {
            host: host.into(),
            problem: Some("no relay".into()),
            bound: Some(BoundReason { by: by.into(), since: since.map(String::from) }),
            ..HostCircuits::default()
        };
        let day = "2026-11-28";
        let mut hosts = vec![
            to("bob", BoundReason::MET, Some(day)),
            to("carol", BoundReason::LIST, None),
            to("dave", BoundReason::MET, None),
        ];
        let why = "because it was met so: `shoal circuits forget";
        let lines = [
            format!("bob: bound to circuits since {day}, {why} bob` ends that"),
            format!("dave: bound to circuits, {why} dave` ends that"),
        ];
        assert_eq!(bound(&hosts), lines);
        let all = CircuitsStatus { hosts: hosts.clone(), ..CircuitsStatus::default() };
        assert!(missing(&all, "bob").unwrap().ends_with(&lines[0]["bob: ".len()..]));
        assert!(missing(&all, "carol").unwrap().ends_with("see `shoal circuits`"));
        assert_eq!(met(&all, "BOB").map(|bound| bound.since.as_deref()), Some(Some(day)));
        assert_eq!((met(&all, "carol"), met(&all, "erin")), (None, None));
        hosts.extend(["e", "f", "g"].map(|name| to(name, BoundReason::MET, Some("2026-12-01"))));
        let one = bound(&hosts);
        assert_eq!(one.len(), 1);
        assert!(
            one[0].starts_with(&format!("5 hosts are bound to circuits, the first since {day}"))
        );
    }

    #[test]
    fn mixes_of_all_circuits_are_said_once() {
        let circuit = |relays: &[&str], mixes: &[&str]| CircuitStatus {
            relays: relays.iter().map(|relay| relay.to_string()).collect(),
            mixes: mixes.iter().map(|mix| mix.to_string()).collect(),
            ..CircuitStatus::default()
        };
        let said = |circuits| mixes(&HostCircuits { circuits, ..HostCircuits::default() });
        let plain = || circuit(&["r1", "r2"], &[]);
        assert_eq!(said(vec![plain(), plain()]), None);
        let slow = circuit(&["r1", "r2"], &["stop-and-go 5 ms", "timed 2 ms"]);
        let standby = circuit(&["r1", "r3"], &["stop-and-go 5 ms", "timed 9 ms"]);
        let changed = circuit(&["r1", "r2"], &["stop-and-go 5 ms", "timed 4 ms"]);
        assert_eq!(
            said(vec![plain(), slow, standby, changed]).unwrap(),
            "cells wait at relays (r1: stop-and-go 5 ms; r2: timed 2 ms; r3: timed 9 ms; r2: \
             timed 4 ms)"
        );
    }

    #[test]
    fn faults_come_before_warnings_and_what_is_known() {
        let to = HostCircuits {
            host: "bob".into(),
            known: Some("r1 knows this host".into()),
            warnings: vec!["two routers: nobody is hidden from them".into()],
            problem: Some("2 set-ups failed in a row".into()),
            ..HostCircuits::default()
        };
        let said: Vec<String> = words(&to).into_iter().map(|(_, text)| text).collect();
        let warning = "not hidden: two routers: nobody is hidden from them";
        assert_eq!(said, ["2 set-ups failed in a row", warning, "r1 knows this host"]);
        let all = CircuitsStatus { hosts: vec![to.clone()], ..CircuitsStatus::default() };
        assert!(missing(&all, "bob").unwrap().contains("no circuit to it: 2 set-ups failed"));
        assert_eq!(missing(&all, "alice"), None);
        assert_eq!(met(&all, "bob"), None);
        let silent = CircuitStatus { state: "silent".into(), ..CircuitStatus::default() };
        let silent = words(&HostCircuits { circuits: vec![silent], ..to });
        assert!(silent[0].1.contains("stopped answering") && silent.len() == 4, "{silent:?}");
        let avoided = |failed, needed| {
            left_out(&AvoidedRelay { relay: "r4".into(), failed, needed, for_s: 61.0 })
        };
        assert!(avoided(true, false).starts_with("r4 failed: avoided for 1 min"));
        assert!(avoided(true, true).contains("still used"));
        assert!(avoided(false, false).contains("not in the middle for 1 min"));
        assert!(nothing(0).ends_with("required with no host"));
        assert!(nothing(16).ends_with("; up to 16 circuits of others end here or pass through"));
    }
}
