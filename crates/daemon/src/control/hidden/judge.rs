//! Judgement on the protection of one host: a pure function from facts to a report.
//!
//! ```text
//! facts -> promises (do they hold?) -> the first breach -> one command
//!       -> observers (who learns what?) -> pairs that together know both hosts
//! ```
//!
//! Presets promise what docs/start/choose.md says. A requirement of circuits promises that no
//! single router knows both hosts, whatever the preset.

use std::collections::BTreeSet;

use shoal_onion::path::PathWarning;

use crate::config::Preset;
use crate::control::api::{
    HiddenPromise, HiddenRemedy, HostProtection, MembershipSource, PathObserver, PromiseKind,
};
use crate::membership::cover::SET_MIN;

/// Relays that the presets `balanced` and `hidden` promise.
const RELAYS_MIN: usize = 3;

/// A router on the way to a host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RouterFacts {
    pub name: String,
    /// Party that vouches for it, in words.
    pub voucher: String,
    /// True if that party is a registrar.
    pub is_invited: bool,
    /// Operator, as the list names it, in small letters.
    pub family: Option<String>,
}

/// The circuit in use.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CircuitFacts {
    /// Relays in their order, at least one.
    pub relays: Vec<RouterFacts>,
    /// True if it has stopped answering.
    pub is_silent: bool,
    /// True if its relays delay cells.
    pub is_mixed: bool,
    /// Warnings about its path.
    pub warnings: Vec<PathWarning>,
}

/// Cover of the lines of both hosts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CoverFacts {
    /// Tier that the list gives this host.
    pub own: Option<String>,
    /// Reason why frames on this host's line don't leave by that schedule in both directions.
    pub fault: Option<String>,
    /// Tier that the list gives the other host.
    pub far: Option<String>,
    /// Hosts in the list that have this host's tier.
    pub set: usize,
}

/// Facts about the traffic with one host.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HostFacts {
    pub this_node: String,
    pub host: String,
    /// Preset in force at this host.
    pub preset: Preset,
    pub members: MembershipSource,
    /// True if nothing may leave for the host outside circuits.
    pub is_required: bool,
    pub circuit: Option<CircuitFacts>,
    /// Reason why there is no circuit.
    pub problem: Option<String>,
    /// True if that reason is this host's own line or router.
    pub is_cut: bool,
    /// Fault that loops last showed in a circuit.
    pub found: Option<String>,
    /// Routers of this host and of the other one. A host at two routers has two.
    pub own_routers: Vec<RouterFacts>,
    pub far_routers: Vec<RouterFacts>,
    /// True if a registrar admitted this host, or the other one. The authority can't change them.
    pub is_own_invited: bool,
    pub is_far_invited: bool,
    /// True if a direct link leads to the host.
    pub has_direct: bool,
    /// Cells that left outside circuits since circuits are required, and before.
    pub clear_cells: u64,
    pub clear_before: u64,
    pub cover: CoverFacts,
    /// True if the list names mixes.
    pub has_mixes: bool,
}

/// Report about the traffic with one host.
pub fn judge(facts: &HostFacts) -> HostProtection {
    let promises = promises(facts);
    let relays = facts.circuit.iter().flat_map(|circuit| &circuit.relays);
    let mut report = HostProtection {
        host: facts.host.clone(),
        relays: relays.map(|relay| relay.name.clone()).collect(),
        observers: observers(facts),
        colluding: colluding(facts),
        clear_cells: facts.clear_cells,
        clear_before: facts.clear_before,
        notes: notes(facts),
        remedy: None,
        promises,
    };
    let breach = report.promises.iter().filter(|promise| !promise.holds).map(|p| p.kind).min();
    report.remedy = match breach {
        Some(kind) => Some(remedy(kind, facts)),
        None => improvement(facts),
    };
    report
}

/// True if all promises hold, as [`judge`] finds; none if nothing is promised.
pub fn keeps_promises(facts: &HostFacts) -> Option<bool> {
    let promises = promises(facts);
    (!promises.is_empty()).then(|| promises.iter().all(|promise| promise.holds))
}

/// Adds the result of a test to a report. `remedy` counts if nothing before it is in breach.
pub fn add_test(report: &mut HostProtection, test: HiddenPromise, remedy: HiddenRemedy) {
    if report.holds() && !test.holds {
        report.remedy = Some(remedy);
    }
    report.promises.push(test);
}

/// True if the presets' promises about circuits count, not only a requirement of circuits.
fn is_preset(facts: &HostFacts) -> bool {
    facts.preset != Preset::Fast
}

fn promises(facts: &HostFacts) -> Vec<HiddenPromise> {
    if !facts.is_required && !is_preset(facts) {
        return Vec::new();
    }
    let mut all = Vec::new();
    let mut add = |kind, breach: Option<String>, kept: &str| {
        let (holds, why) = (breach.is_none(), breach.unwrap_or_else(|| kept.to_owned()));
        all.push(HiddenPromise { kind, holds, why });
    };
    let HostFacts { host, circuit, .. } = facts;
    add(PromiseKind::Circuit, no_circuit(facts), "a circuit is in use and answers");
    add(PromiseKind::CircuitsOnly, outside(facts), "nothing left outside circuits");
    let direct = || format!("a direct link with {host} shows both hosts to observers of the wire");
    add(PromiseKind::NoDirectLink, facts.has_direct.then(direct), "there is no direct link");
    if let Some(circuit) = circuit {
        if is_preset(facts) {
            let kept = format!("the circuit has {} relays", circuit.relays.len());
            add(PromiseKind::Relays, too_short(circuit), &kept);
        }
        let apart = "no single router knows both hosts";
        add(PromiseKind::Apart, not_apart(facts, circuit), apart);
        let kept = "no operator (family) runs routers near both hosts";
        add(PromiseKind::Families, related(facts, circuit), kept);
        if is_preset(facts) && facts.has_mixes {
            let plain = || "relays forward cells at once, though the list names mixes".to_owned();
            add(PromiseKind::Mixes, (!circuit.is_mixed).then(plain), "relays delay cells");
        }
    }
    if facts.preset == Preset::Hidden {
        add(PromiseKind::CoverHere, uncovered(facts), "frames on this host's line leave by tier");
        let kept = match facts.cover.own {
            Some(_) => format!("the list gives {host} the same tier"),
            None => format!("the list gives {host} a tier"),
        };
        add(PromiseKind::CoverThere, uncovered_there(facts), &kept);
    }
    all
}

fn no_circuit(facts: &HostFacts) -> Option<String> {
    match &facts.circuit {
        Some(circuit) if circuit.is_silent => {
            Some("the circuit in use has stopped answering".into())
        }
        Some(_) => None,
        None => Some(match &facts.problem {
            Some(why) => format!("there is no circuit: {why}"),
            None => "there is no circuit yet: nothing was sent".into(),
        }),
    }
}

fn outside(facts: &HostFacts) -> Option<String> {
    let HostFacts { host, is_required, clear_cells, .. } = facts;
    if !is_required {
        return Some(format!("traffic with {host} may leave outside circuits"));
    }
    let cells = |cells: &u64| format!("{cells} cells left for {host} outside circuits");
    Some(clear_cells).filter(|cells| **cells > 0).map(cells)
}

fn too_short(circuit: &CircuitFacts) -> Option<String> {
    let have = circuit.relays.len();
    (have < RELAYS_MIN).then(|| format!("the circuit has {have} of {RELAYS_MIN} relays"))
}

/// True if a single router knows both hosts or can guess them, by this warning.
fn knows_both(warning: &PathWarning) -> bool {
    use PathWarning::{FewRouters, OneRelay, SameRouter, SmallSiteHere, SmallSiteThere};
    matches!(warning, FewRouters(_) | OneRelay | SameRouter | SmallSiteHere | SmallSiteThere)
}

fn warned(circuit: &CircuitFacts, is_breach: impl Fn(&PathWarning) -> bool) -> Option<String> {
    circuit.warnings.iter().find(|warning| is_breach(warning)).map(ToString::to_string)
}

/// Reason why a single router knows both hosts or can guess them.
fn not_apart(facts: &HostFacts, circuit: &CircuitFacts) -> Option<String> {
    let [here, there] = sides(facts);
    let both = || {
        let name = here.intersection(&there).next()?;
        Some(format!("{name} is next to both hosts: it can tell who speaks with whom"))
    };
    warned(circuit, knows_both).or_else(both)
}

/// Reason why one operator may learn both hosts. Warnings are about the router at each end; hosts
/// at two routers have more.
fn related(facts: &HostFacts, circuit: &CircuitFacts) -> Option<String> {
    let near: Vec<_> = facts.own_routers.iter().chain(circuit.relays.first()).collect();
    let far: Vec<_> = facts.far_routers.iter().chain(circuit.relays.last()).collect();
    // Routers next to one host learn no more than one of them. A middle relay learns no host.
    let mut pairs = near.iter().flat_map(|a| far.iter().map(move |b| (*a, *b)));
    let is_related = |(a, b): &(&RouterFacts, &RouterFacts)| {
        a.name != b.name && a.family.is_some() && a.family == b.family
    };
    let families = |warning: &PathWarning| *warning == PathWarning::Families;
    warned(circuit, families).or_else(|| {
        let (a, b) = pairs.find(is_related)?;
        let (family, a, b) = (a.family.as_deref()?, &a.name, &b.name);
        Some(format!("one operator (family {family}) runs {a} and {b}, and may learn both hosts"))
    })
}

fn uncovered(facts: &HostFacts) -> Option<String> {
    match &facts.cover {
        CoverFacts { own: None, .. } => Some("the list gives this host no tier of cover".into()),
        CoverFacts { fault, .. } => fault.clone(),
    }
}

fn uncovered_there(facts: &HostFacts) -> Option<String> {
    let (host, CoverFacts { own, far, .. }) = (&facts.host, &facts.cover);
    match far {
        None => Some(format!("the list gives {host} no tier: its line shows when it speaks")),
        Some(far) if own.as_ref().is_some_and(|own| own != far) => {
            Some(format!("the list gives {host} another tier ({far}): the lines differ"))
        }
        Some(_) => None,
    }
}

/// Names of routers that know this host, and of those that know the other one. Relay 2 of a small
/// site counts as one that knows, since few other hosts come into question.
fn sides(facts: &HostFacts) -> [BTreeSet<&str>; 2] {
    let mut here: BTreeSet<&str> = facts.own_routers.iter().map(|r| r.name.as_str()).collect();
    let mut there: BTreeSet<&str> = facts.far_routers.iter().map(|r| r.name.as_str()).collect();
    let Some(circuit) = &facts.circuit else { return [here, there] };
    let names: Vec<&str> = circuit.relays.iter().map(|relay| relay.name.as_str()).collect();
    here.extend(names.first());
    there.extend(names.last());
    if circuit.warnings.contains(&PathWarning::SmallSiteHere) {
        here.extend(names.get(1));
    }
    if circuit.warnings.contains(&PathWarning::SmallSiteThere) {
        there.extend(names.iter().nth_back(1));
    }
    [here, there]
}

/// Pairs of routers of which one knows this host and the other one the other host.
fn colluding(facts: &HostFacts) -> Vec<[String; 2]> {
    if facts.circuit.is_none() {
        return Vec::new();
    }
    let [here, there] = sides(facts);
    let one_side = |mine: &BTreeSet<&str>, others: &BTreeSet<&str>| -> Vec<String> {
        mine.difference(others).map(|name| (*name).to_owned()).collect()
    };
    let others = one_side(&there, &here);
    let pairs = one_side(&here, &there).into_iter();
    pairs.flat_map(|a| others.iter().map(move |b| [a.clone(), b.clone()])).collect()
}

fn observers(facts: &HostFacts) -> Vec<PathObserver> {
    let mut all = match &facts.circuit {
        _ if !facts.is_required => in_the_clear(facts),
        Some(circuit) => on_circuit(facts, circuit),
        None => Vec::new(),
    };
    all.extend(on_wires(facts));
    all
}

fn router(place: &str, router: &RouterFacts, why: String) -> PathObserver {
    PathObserver {
        place: place.into(),
        node: Some(router.name.clone()),
        why,
        voucher: Some(router.voucher.clone()),
        ..PathObserver::default()
    }
}

fn on_circuit(facts: &HostFacts, circuit: &CircuitFacts) -> Vec<PathObserver> {
    let HostFacts { host, own_routers, far_routers, .. } = facts;
    let [here, there] = sides(facts);
    let is = |relay: Option<&RouterFacts>, name: &str| relay.is_some_and(|r| r.name == name);
    let (first, last) = (circuit.relays.first(), circuit.relays.last());
    let mut rows = Vec::new();
    for own in own_routers.iter().filter(|own| !is(first, &own.name)) {
        rows.push(router("own router", own, "this host is behind it".into()));
    }
    for (at, relay) in circuit.relays.iter().enumerate() {
        let why = match at {
            0 if own_routers.iter().any(|own| own.name == relay.name) => {
                "this host is behind it, and its circuits begin there"
            }
            0 => "this host's circuits begin there",
            at if at + 1 == circuit.relays.len() => "the circuit ends behind it",
            _ => "cells pass there between its neighbours on the circuit",
        };
        rows.push(router(&format!("relay {}", at + 1), relay, why.into()));
    }
    for far in far_routers.iter().filter(|far| !is(last, &far.name)) {
        rows.push(router("other router", far, format!("{host} is behind it")));
    }
    for row in &mut rows {
        let name = row.node.as_deref().unwrap_or_default();
        let knows = (here.contains(name), there.contains(name));
        row.knows_both = knows == (true, true);
        row.learns = match knows {
            (true, true) => "both hosts, at least by a guess".into(),
            (true, false) => format!("this host and the next relay, not {host}"),
            (false, true) => format!("{host} and the relay before, not this host"),
            (false, false) => "the nodes beside it, neither host".into(),
        };
    }
    rows
}

fn in_the_clear(facts: &HostFacts) -> Vec<PathObserver> {
    let HostFacts { host, own_routers, far_routers, .. } = facts;
    let why = "each cell outside circuits names both hosts";
    let is_own = |far: &&RouterFacts| own_routers.iter().any(|own| own.name == far.name);
    let own = own_routers.iter().map(|own| router("own router", own, why.into()));
    let far = far_routers.iter().filter(|far| !is_own(far));
    let far = far.map(|far| router("other router", far, why.into()));
    let mut rows: Vec<PathObserver> = own.chain(far).collect();
    if rows.len() > 1 {
        let place = "routers between".into();
        rows.push(PathObserver { place, why: why.into(), ..PathObserver::default() });
    }
    for row in &mut rows {
        (row.knows_both, row.learns) = (true, format!("this host and {host}"));
    }
    rows
}

fn on_wires(facts: &HostFacts) -> Vec<PathObserver> {
    let HostFacts { host, cover, .. } = facts;
    let wire = |place: &str, (knows_both, learns): (bool, String), why: String| PathObserver {
        place: place.into(),
        learns,
        knows_both,
        why,
        ..PathObserver::default()
    };
    let of_one = |learns: String| match facts.has_direct {
        true => (true, format!("this host and {host}, by the direct link")),
        false => (false, learns),
    };
    let own = cover.own.as_ref().filter(|_| cover.fault.is_none());
    let here = match own {
        Some(tier) => ("when this machine runs", format!("frames leave by tier {tier}")),
        None => ("when this host speaks, and how much", "the line is not covered".into()),
    };
    let there = match &cover.far {
        Some(tier) => {
            (format!("when {host} runs"), format!("the list gives it tier {tier}; {host} keeps it"))
        }
        None => (format!("when {host} speaks, and how much"), "the line is not covered".into()),
    };
    let is_blind = own.is_some() && own == cover.far.as_ref();
    let both = match is_blind {
        true => ((false, "not who speaks with whom".into()), "both lines are covered by one tier"),
        false => ((true, "the pair of hosts, within seconds".into()), "times on both lines"),
    };
    vec![
        wire("this host's wire", of_one(here.0.into()), here.1),
        wire("the other wire", of_one(there.0), there.1),
        wire("both wires together", both.0, both.1.into()),
    ]
}

/// Sentences about facts that no promise covers.
fn notes(facts: &HostFacts) -> Vec<String> {
    let mut notes = Vec::new();
    let HostFacts { host, circuit, cover, clear_before, .. } = facts;
    if !facts.is_required && !is_preset(facts) {
        notes.push(format!(
            "the preset \"fast\" promises nothing about who speaks with whom: routers on the way \
             see this host and {host}"
        ));
    }
    if let Some(circuit) = circuit {
        let relays: Vec<&RouterFacts> = circuit.relays.iter().collect();
        notes.extend(one_voucher(&relays, "relays of this circuit"));
        let is_other = |warning: &&PathWarning| {
            !knows_both(warning) && !matches!(warning, PathWarning::Families)
        };
        notes.extend(circuit.warnings.iter().filter(is_other).map(ToString::to_string));
    }
    notes.extend(facts.found.clone());
    if facts.is_required && *clear_before > 0 {
        notes.push(format!(
            "{clear_before} cells left for {host} outside circuits before circuits were required"
        ));
    }
    if is_preset(facts) && !facts.has_mixes {
        notes.push(
            "the list has no [[mix]]: relays forward cells at once, so an observer of a relay can \
             follow each cell"
                .into(),
        );
    }
    if cover.own.is_some() && cover.set < SET_MIN {
        notes.push(format!(
            "hosts of this tier in the list: {}. Fewer than {SET_MIN} are a small anonymity set \
             against observers of the wires",
            cover.set
        ));
    }
    notes
}

/// Sentence about one party that vouches for all these routers; none if several do.
pub fn one_voucher(routers: &[&RouterFacts], what: &str) -> Option<String> {
    let first = routers.first()?;
    let is_one = routers.len() > 1 && routers.iter().all(|router| router.voucher == first.voucher);
    is_one.then(|| match first.is_invited {
        true => format!("one {} invited all {what}: it could run them all", first.voucher),
        false => format!("one party ({}) vouches for all {what}", first.voucher),
    })
}

/// The command that mends a breach.
fn remedy(kind: PromiseKind, facts: &HostFacts) -> HiddenRemedy {
    let HostFacts { this_node, host, members, cover, .. } = facts;
    let is_listed = *members != MembershipSource::HostsFile;
    let remedy = |command: String, effect: &str| HiddenRemedy { command, effect: effect.into() };
    let circuit = facts.circuit.as_ref();
    match kind {
        PromiseKind::Circuit if circuit.is_none() && facts.is_cut => {
            remedy("shoal peers".into(), "shows whether this host's router answers")
        }
        PromiseKind::Circuit if facts.problem.is_none() || circuit.is_some() => {
            remedy(format!("shoal ping --hops {host}"), "builds a circuit, and shows where it ends")
        }
        PromiseKind::CircuitsOnly | PromiseKind::NoDirectLink => {
            remedy("shoal check".into(), "says which setting lets traffic leave outside circuits")
        }
        PromiseKind::Mixes | PromiseKind::Audit => remedy(
            format!("shoal circuits --audit {host} --rounds 200"),
            "shows which relay does not delay cells as agreed",
        ),
        PromiseKind::Echo => {
            remedy(format!("shoal ping --hops {host}"), "shows which hop does not answer")
        }
        PromiseKind::CoverHere if cover.own.is_some() => {
            remedy("shoal reload".into(), "restarts cover")
        }
        PromiseKind::CoverHere if facts.is_own_invited => preset_of_all(),
        PromiseKind::CoverThere if facts.is_far_invited => preset_of_all(),
        PromiseKind::CoverHere if is_listed => remedy(
            format!("shoal authority sign --dir DIR {this_node} --cover TIER"),
            "covers this host's line",
        ),
        PromiseKind::CoverThere if is_listed => remedy(
            format!("shoal authority sign --dir DIR {host} --cover TIER"),
            "covers the other host's line; take this host's tier",
        ),
        PromiseKind::CoverHere | PromiseKind::CoverThere => remedy(
            "shoal reload".into(),
            "takes a hosts file in which both hosts have the same cover = \"TIER\"",
        ),
        PromiseKind::Apart if is_shared(facts) && is_listed => move_away(facts),
        PromiseKind::Circuit | PromiseKind::Relays | PromiseKind::Apart | PromiseKind::Families => {
            another_relay(*members)
        }
    }
}

/// The command by which registrars give tiers to their hosts.
fn preset_of_all() -> HiddenRemedy {
    HiddenRemedy {
        command: "shoal network preset hidden --dir DIR".into(),
        effect: "makes a list by which registrars give all hosts one tier".into(),
    }
}

/// True if both hosts are behind one router.
fn is_shared(facts: &HostFacts) -> bool {
    let HostFacts { own_routers, far_routers, circuit, .. } = facts;
    let is_said = circuit.as_ref().is_some_and(|c| c.warnings.contains(&PathWarning::SameRouter));
    is_said || own_routers.iter().any(|own| far_routers.iter().any(|far| far.name == own.name))
}

/// The command that moves one of two hosts behind another router. Only the registrar moves hosts
/// that it admitted, on their own request.
fn move_away(facts: &HostFacts) -> HiddenRemedy {
    let HostFacts { this_node, host, .. } = facts;
    let sign = |name: &str| format!("shoal authority sign --dir DIR {name} --address ROUTER.HOST");
    let (command, effect) = match (facts.is_own_invited, facts.is_far_invited) {
        (_, false) => (sign(host), "moves the other host behind another router"),
        (true, true) => {
            ("shoal up --another-router".into(), "moves this host behind another router")
        }
        (false, true) => (sign(this_node), "moves this host behind another router"),
    };
    HiddenRemedy { command, effect: effect.into() }
}

/// The command that adds a relay of another operator.
fn another_relay(members: MembershipSource) -> HiddenRemedy {
    let (command, effect) = match members {
        MembershipSource::Registrar => (
            "shoal invite --router --family NAME",
            "invites a relay of another operator, beside those that the list has",
        ),
        MembershipSource::Authority => (
            "shoal authority sign --dir DIR ROUTER --relay --family NAME",
            "makes another operator's router a relay",
        ),
        MembershipSource::HostsFile => (
            "shoal reload",
            "takes a hosts file in which another operator's router has relay = true and a family",
        ),
    };
    HiddenRemedy { command: command.into(), effect: effect.into() }
}

/// The command that betters a host whose promises all hold; none if no command does.
fn improvement(facts: &HostFacts) -> Option<HiddenRemedy> {
    let relays: Vec<&RouterFacts> =
        facts.circuit.iter().flat_map(|circuit| &circuit.relays).collect();
    let is_invited = relays.first().is_some_and(|relay| relay.is_invited);
    if is_invited && one_voucher(&relays, "").is_some() {
        return Some(HiddenRemedy {
            command: "shoal authority sign --dir DIR ROUTER --relay --family NAME".into(),
            effect: "adds a relay for which the authority vouches, not the registrar".into(),
        });
    }
    None
}

#[cfg(test)]
mod tests;
