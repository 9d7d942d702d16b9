//! `shoal circuits`: what is open, and what it hides from whom.

use std::collections::BTreeMap;

use anyhow::Result;
use shoal_daemon::control::api::{Avoided, Circuits, CircuitsTo, Command, Loops, Order, Reply};

use crate::args::Circuits as Args;
use crate::cover;
use crate::options::Common;
use crate::output::{self, Paint, Table, paint, plain};
use crate::target::{ask, unexpected};
use crate::units::span_s;

mod audit;

/// `shoal circuits`.
pub fn run(common: &Common, args: &Args) -> Result<()> {
    if let Some(host) = &args.audit {
        return audit::run(common, args, host);
    }
    match ask(common, Command::Circuits)? {
        Reply::Circuits(circuits) if common.json => Ok(output::json("circuits", &circuits)?),
        Reply::Circuits(circuits) => print(&circuits),
        other => Err(unexpected(&other)),
    }
}

fn print(circuits: &Circuits) -> Result<()> {
    for text in &circuits.warnings {
        output::line(&paint(Paint::Bad, text))?;
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
        output::line(&paint(Paint::Bad, &text))?;
    }
    if let Some(text) = waiting(&circuits.hosts) {
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

/// Which links are covered, and from whom that hides.
fn covered(circuits: &Circuits) -> Result<()> {
    let Some(cover) = &circuits.cover else { return Ok(()) };
    for text in cover::lines(cover) {
        output::line(&format!("cover: {text}"))?;
    }
    Ok(output::line(cover::FROM_WHOM)?)
}

/// What order cost, where packets waited for it.
fn order(order: &Order) -> Option<String> {
    let Order { held, given_up, late, overflowed, unordered, .. } = order;
    let early = overflowed + unordered;
    let room = match early {
        0 => String::new(),
        n => format!("; {n} times there was no room for all"),
    };
    (held + late + early > 0).then(|| {
        format!(
            "order: {held} packets waited here for those before them; {given_up} gaps were given \
             up, {late} packets came after that{room}"
        )
    })
}

/// What became of loops.
fn loops(loops: &Loops) -> String {
    let Loops { back, late, lost, lossy, held } = loops;
    format!(
        "loops: {back} came back, {late} late, {lost} did not; {lossy} circuits gave way for \
         losses, {held} for waits"
    )
}

/// How far a relay is left out of paths.
fn left_out(avoided: &Avoided) -> String {
    let Avoided { relay, failed, needed, for_s } = avoided;
    let left = span_s(*for_s);
    let what = match failed {
        true => format!("{relay} failed"),
        false => format!("{relay}, or a relay beside it, failed"),
    };
    match (failed, needed) {
        (_, true) => {
            format!("{what}: used all the same, no path that keeps the rules does without")
        }
        (true, false) => format!("{what}: avoided for {left} where others fit"),
        (false, false) => format!("{what}: not in the middle for {left} where others fit"),
    }
}

fn nothing(open: u64) -> String {
    let carried = match open {
        0 => String::new(),
        n => format!("; up to {n} of others end here or go through here"),
    };
    format!("this node begins no circuits: they are required with no host{carried}")
}

fn table(hosts: &[CircuitsTo]) -> Table {
    let heads = ["to", "state", "relays", ">age", ">ends in", ">round trip", ">mixes add"];
    let mut table = Table::new(&heads);
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".into());
    for to in hosts {
        if to.circuits.is_empty() {
            let mut row = vec![(Paint::Bold, to.host.clone()), (Paint::Dim, "none yet".into())];
            row.extend(plain(["-".into(), "-".into(), "-".into(), "-".into(), "-".into()]));
            table.row(row);
        }
        for circuit in &to.circuits {
            let how = match circuit.state.as_str() {
                "in use" => Paint::Good,
                "silent" => Paint::Bad,
                _ => Paint::Dim,
            };
            let rtt = circuit.rtt_us.map(milliseconds);
            let mut row = vec![(Paint::Bold, to.host.clone()), (how, circuit.state.clone())];
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

/// What relays on the way to a host do with cells: those of each circuit that mixes, each relay
/// once for the same.
fn mixes(to: &CircuitsTo) -> Option<String> {
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

/// Why nothing reaches a host, if that is for lack of a circuit.
pub fn missing(circuits: &Circuits, host: &str) -> Option<String> {
    let to = circuits.hosts.iter().find(|to| to.host == host)?;
    let carries = to.circuits.iter().any(|circuit| circuit.state == "in use");
    let why = to.problem.as_ref().filter(|_| !carries)?;
    Some(format!("there is no circuit to it: {why}; see `shoal circuits`"))
}

/// Whether circuits are required with a host and nothing is wrong, but none was needed yet.
fn waits(to: &CircuitsTo) -> bool {
    to.required && to.circuits.is_empty() && to.problem.is_none()
}

/// A host that has no circuit yet by its name, several by their number.
fn of_waiting(names: &[&str]) -> String {
    match names {
        [name] => name.to_string(),
        names => format!("{} hosts that have none yet", names.len()),
    }
}

/// What circuits to hosts that have none yet will not hide; each sentence once.
fn unhidden(hosts: &[CircuitsTo]) -> Vec<String> {
    let mut said = BTreeMap::<&str, Vec<&str>>::new();
    for to in hosts.iter().filter(|to| waits(to)) {
        for text in &to.warnings {
            said.entry(text).or_default().push(&to.host);
        }
    }
    said.into_iter().map(|(text, of)| format!("{}: not hidden: {text}", of_waiting(&of))).collect()
}

/// Why there is no circuit to hosts with which circuits are required, where nothing is wrong.
fn waiting(hosts: &[CircuitsTo]) -> Option<String> {
    let names: Vec<&str> = hosts.iter().filter(|to| waits(to)).map(|to| to.host.as_str()).collect();
    let first = names.first()?;
    let of = of_waiting(&names);
    Some(format!(
        "{of}: circuits are required; the first is built when something is sent (`shoal ping \
         {first}`)"
    ))
}

/// What a silent circuit is, and what happens next.
const SILENT: &str = "the silent circuit has stopped answering and none stands by: packets still \
                      go over it, and may be lost, until another is built or 5 s are over; then \
                      they wait for the next one";

/// What there is to say of a host's circuits, most urgent first.
fn words(to: &CircuitsTo) -> Vec<(Paint, String)> {
    let silent = to.circuits.iter().any(|circuit| circuit.state == "silent");
    let silent = silent.then(|| (Paint::Bad, SILENT.to_owned()));
    let problem = to.problem.iter().chain(&to.found).map(|text| (Paint::Bad, text.clone()));
    let warnings = to.warnings.iter().map(|text| (Paint::Bad, format!("not hidden: {text}")));
    let known = to.known.iter().map(|text| (Paint::Plain, text.clone()));
    let mixes = mixes(to).map(|text| (Paint::Plain, text));
    silent.into_iter().chain(problem).chain(warnings).chain(known).chain(mixes).collect()
}

#[cfg(test)]
mod tests {
    use shoal_daemon::control::api::Circuit;

    use super::*;

    #[test]
    fn required_hosts_without_circuits_have_a_reason() {
        let bob = CircuitsTo { host: "bob".into(), required: true, ..CircuitsTo::default() };
        let why =
            "circuits are required; the first is built when something is sent (`shoal ping bob`)";
        assert_eq!(waiting(std::slice::from_ref(&bob)), Some(format!("bob: {why}")));
        let problem = Some("no relay".into());
        let others = [
            CircuitsTo { problem, ..bob.clone() },
            CircuitsTo { circuits: vec![Circuit::default()], ..bob.clone() },
            CircuitsTo { required: false, ..bob.clone() },
        ];
        assert_eq!(waiting(&others), None);
        let said = waiting(&[others[0].clone(), bob.clone(), bob.clone()]);
        assert_eq!(said, Some(format!("2 hosts that have none yet: {why}")));
        let open = CircuitsTo { warnings: vec!["two routers".into()], ..bob };
        let carol = CircuitsTo { host: "carol".into(), ..open.clone() };
        assert_eq!(unhidden(std::slice::from_ref(&open)), ["bob: not hidden: two routers"]);
        let both = unhidden(&[open, carol, others[0].clone()]);
        assert_eq!(both, ["2 hosts that have none yet: not hidden: two routers"]);
    }

    #[test]
    fn mixes_of_all_circuits_are_said_once() {
        let circuit = |relays: &[&str], mixes: &[&str]| Circuit {
            relays: relays.iter().map(|relay| relay.to_string()).collect(),
            mixes: mixes.iter().map(|mix| mix.to_string()).collect(),
            ..Circuit::default()
        };
        let said = |circuits| mixes(&CircuitsTo { circuits, ..CircuitsTo::default() });
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
        let to = CircuitsTo {
            host: "bob".into(),
            known: Some("r1 knows this host".into()),
            warnings: vec!["two routers: nobody is hidden from them".into()],
            problem: Some("2 set-ups failed in a row".into()),
            ..CircuitsTo::default()
        };
        let said: Vec<String> = words(&to).into_iter().map(|(_, text)| text).collect();
        let warning = "not hidden: two routers: nobody is hidden from them";
        assert_eq!(said, ["2 set-ups failed in a row", warning, "r1 knows this host"]);
        let all = Circuits { hosts: vec![to.clone()], ..Circuits::default() };
        assert!(missing(&all, "bob").unwrap().contains("no circuit to it: 2 set-ups failed"));
        assert_eq!(missing(&all, "alice"), None);
        let silent = Circuit { state: "silent".into(), ..Circuit::default() };
        let silent = words(&CircuitsTo { circuits: vec![silent], ..to });
        assert!(silent[0].1.contains("stopped answering") && silent.len() == 4, "{silent:?}");
        let avoided =
            |failed, needed| left_out(&Avoided { relay: "r4".into(), failed, needed, for_s: 61.0 });
        assert!(avoided(true, false).starts_with("r4 failed: avoided for 1 min"));
        assert!(avoided(true, true).contains("used all the same"));
        assert!(avoided(false, false).contains("not in the middle for 1 min"));
        assert!(nothing(0).ends_with("required with no host"));
        assert!(nothing(16).ends_with("; up to 16 of others end here or go through here"));
    }
}
