//! Checks of a scenario: names exist, numbers are in range.

use std::collections::BTreeSet;

use shoal_daemon::config::{ConfigError, ConfigSource};
use shoal_wire::{Address, CoverTier};

use super::{
    BaseTopology, CircuitUse, EventAction, ExperimentKind, FlowKind, LinkSettings, MixKind,
    Scenario, ScenarioCase, ScenarioEvent, ScenarioFlow,
};
use crate::topology::{LinkSpec, NodeSpec, Topology};

/// Limit of a run's length, in seconds: a day.
const SECONDS_MAX: f64 = 86_400.0;
/// Limit of a file's size in millions of bytes.
const SIZE_MAX_MB: f64 = 100_000.0;
/// Limit of a delay in milliseconds.
const DELAY_MAX_MS: f64 = 2_000.0;

/// The network of a scenario, without invalid nodes and links.
pub fn topology(s: &Scenario) -> Topology {
    let mut topology = match s.topology {
        BaseTopology::None => Topology { nodes: Vec::new(), links: Vec::new() },
        BaseTopology::Paper => Topology::paper(),
        BaseTopology::Chain => Topology::chain(),
        BaseTopology::Pairs => Topology::pairs(s.pairs),
        BaseTopology::Sites => Topology::sites(s.pairs),
    };
    for node in &s.nodes {
        let name = node.name.clone();
        let Some(text) = &node.address else {
            topology.nodes.push(NodeSpec { name, address: Address::new(0, 0), plain: true });
            continue;
        };
        if let Ok(address) = text.parse() {
            topology.nodes.push(NodeSpec { name, address, plain: false });
        }
    }
    for link in &s.link {
        let ends = link.between.each_ref().map(|name| topology.find(name));
        if let [Some(a), Some(b)] = ends
            && a != b
            && topology.link_between(a, b).is_none()
        {
            topology.links.push(LinkSpec { a, b });
        }
    }
    topology
}

pub fn check(s: &Scenario, source: &ConfigSource<'_>) -> Result<(), ConfigError> {
    let bad = |key: &str, text: String| Err(source.wrong("", None, key, text));
    if !(0.1..=SECONDS_MAX).contains(&s.limit_s) {
        return bad("limit_s", format!("expected 0.1 to {SECONDS_MAX} seconds"));
    }
    if s.duration_s.is_some_and(|d| !(0.1..=SECONDS_MAX).contains(&d)) {
        return bad("duration_s", format!("expected 0.1 to {SECONDS_MAX} seconds"));
    }
    if s.observe_s.is_some_and(|o| !(0.1..=60.0).contains(&o)) {
        return bad("observe_s", "expected 0.1 to 60 seconds".into());
    }
    if !(20..=60_000).contains(&s.sample_ms) {
        return bad("sample_ms", "expected 20 to 60000".into());
    }
    if !(1..=100).contains(&s.repeat) {
        return bad("repeat", "expected 1 to 100".into());
    }
    if !s.udp_mbit.is_finite() || !(0.1..=100_000.0).contains(&s.udp_mbit) {
        return bad("udp_mbit", "expected 0.1 to 100000".into());
    }
    if s.payloads.iter().any(|payload| !(16..=1_326).contains(payload)) {
        return bad("payloads", "expected 16 to 1326, the payload of one packet".into());
    }
    if s.levels.iter().any(|l| !["encrypt", "authenticate", "none"].contains(&l.as_str())) {
        return bad("levels", "expected \"encrypt\", \"authenticate\" or \"none\"".into());
    }
    if !(1..=20).contains(&s.pairs) {
        return bad("pairs", "expected 1 to 20".into());
    }
    line(source, "links", None, &s.links)?;
    nodes(s, source)?;
    let topology = topology(s);
    for (i, link) in s.link.iter().enumerate() {
        ends(source, "link", i, "between", &link.between, &topology)?;
        line(source, "link", Some(i), &link.line)?;
    }
    let is_router =
        |name: &&String| topology.routers().any(|router| topology.nodes[router].name == **name);
    if let Some(name) = s.relays.iter().find(|name| !is_router(name)) {
        return bad("relays", format!("{name:?} is no router"));
    }
    super::nat::check(s)
        .map_err(|(section, i, key, text)| source.wrong(section, Some(i), key, text))?;
    super::moving::check(s).map_err(|(key, text)| source.wrong("moving", None, key, text))?;
    flows(s, source, &topology)?;
    attack(s).map_err(|(key, text)| source.wrong("attack", None, key, text))?;
    for (i, event) in s.events.iter().enumerate() {
        self::event(s, source, i, event, &topology)?;
    }
    cases(s, source, &topology)?;
    for (i, plot) in s.plots.iter().enumerate() {
        plot.check(s).map_err(|(key, text)| source.wrong("plot", Some(i), &key, text))?;
    }
    holds(s, source)
}

fn line(
    source: &ConfigSource<'_>,
    section: &str,
    index: Option<usize>,
    line: &LinkSettings,
) -> Result<(), ConfigError> {
    let check = |key: &str, value: Option<f64>, low: f64, high: f64| match value {
        Some(v) if !(low..=high).contains(&v) => {
            Err(source.wrong(section, index, key, format!("{v}: expected {low} to {high}")))
        }
        _ => Ok(()),
    };
    check("loss", line.loss, 0.0, 1.0)?;
    check("burst", line.burst, 1.0, 1_000.0)?;
    check("delay_ms", line.delay_ms, 0.0, DELAY_MAX_MS)?;
    check("jitter_ms", line.jitter_ms, 0.0, DELAY_MAX_MS)?;
    check("queue_ms", line.queue_ms, 0.1, DELAY_MAX_MS)?;
    check("shift_s", line.shift_s.map(f64::from), 0.0, 3_600.0)
}

fn nodes(s: &Scenario, source: &ConfigSource<'_>) -> Result<(), ConfigError> {
    let mut names = BTreeSet::new();
    for (i, node) in s.nodes.iter().enumerate() {
        let bad = |key: &str, text: String| Err(source.wrong("node", Some(i), key, text));
        // Interfaces are named `to_NAME`, with at most 15 bytes.
        if !shoal_daemon::membership::hosts::is_name(&node.name) || node.name.len() > 12 {
            return bad("name", "expected 1 to 12 letters, digits, '-', '_' or '.'".into());
        }
        if !names.insert(&node.name) {
            return bad("name", format!("{:?} is defined twice", node.name));
        }
        if let Some(text) = &node.address
            && let Err(e) = text.parse::<Address>()
        {
            return bad("address", e.to_string());
        }
    }
    if s.kind == ExperimentKind::Programs
        && !["h1", "h2"].iter().all(|n| topology(s).find(n).is_some())
    {
        let text = "programs run between nodes called h1 and h2";
        return Err(source.wrong("", None, "topology", text));
    }
    if s.kind == ExperimentKind::Network && topology(s).nodes.len() < 2 {
        let text = "expected a topology (\"paper\", \"chain\", \"pairs\", \"sites\"), or two \
                    [[node]] at least";
        return Err(source.wrong("", None, "topology", text));
    }
    Ok(())
}

fn ends(
    source: &ConfigSource<'_>,
    section: &str,
    index: usize,
    key: &str,
    names: &[String; 2],
    topology: &Topology,
) -> Result<(), ConfigError> {
    let bad = |text: String| Err(source.wrong(section, Some(index), key, text));
    for name in names {
        if topology.find(name).is_none() {
            return bad(format!("there is no node {name:?}"));
        }
    }
    let [a, b] = names.each_ref().map(|n| topology.find(n).unwrap_or(0));
    if topology.link_between(a, b).is_none() {
        return bad(format!("there is no link between {:?} and {:?}", names[0], names[1]));
    }
    Ok(())
}

fn flows(s: &Scenario, source: &ConfigSource<'_>, topology: &Topology) -> Result<(), ConfigError> {
    let mut names = BTreeSet::new();
    for (i, flow) in s.flows.iter().enumerate() {
        let bad = |key: &str, text: String| Err(source.wrong("flow", Some(i), key, text));
        if !shoal_daemon::membership::hosts::is_name(&flow.name) {
            return bad("name", shoal_daemon::membership::hosts::NAME_RULE.into());
        }
        if !names.insert(&flow.name) {
            return bad("name", format!("{:?} is defined twice", flow.name));
        }
        for (key, name) in [("from", &flow.from), ("to", &flow.to)] {
            let Some(node) = topology.find(name) else {
                return bad(key, format!("there is no node {name:?}"));
            };
            let spec = &topology.nodes[node];
            let is_host = !spec.plain && !spec.address.is_router();
            if (flow.kind == FlowKind::File || flow.needs_interface()) && !is_host {
                return bad(key, format!("{name:?} is no host: files go from host to host"));
            }
        }
        if flow.from == flow.to {
            return bad("to", "a flow has two ends".into());
        }
        if !(0.001..=SIZE_MAX_MB).contains(&flow.size_mb) {
            return bad("size_mb", format!("expected 0.001 to {SIZE_MAX_MB}"));
        }
        if !(0.0..=SECONDS_MAX).contains(&flow.start_s) {
            return bad("start_s", format!("expected 0 to {SECONDS_MAX}"));
        }
        if !(0.0..flow.seconds.unwrap_or(SECONDS_MAX)).contains(&flow.settle_s)
            && flow.kind == FlowKind::Tcp
        {
            return bad("settle_s", "expected 0 or more, and less than `seconds`".into());
        }
        of_kind(s, flow).or_else(|(key, text)| bad(key, text.into()))?;
    }
    Ok(())
}

fn of_kind(s: &Scenario, flow: &ScenarioFlow) -> Result<(), (&'static str, &'static str)> {
    if flow.again && s.duration_s.is_none() {
        return Err(("again", "without duration_s it would never end"));
    }
    if flow.mbit.is_some_and(|mbit| !(0.1..=100_000.0).contains(&mbit)) {
        return Err(("mbit", "expected 0.1 to 100000"));
    }
    if flow.kind == FlowKind::Udp && flow.mbit.is_none() {
        return Err(("mbit", "expected the rate of UDP"));
    }
    if !(16..=1_452).contains(&flow.payload) {
        return Err(("payload", "expected 16 to 1452"));
    }
    if flow.kind == FlowKind::Ping && flow.seconds.is_none() {
        return Err(("seconds", "expected the duration of the pings"));
    }
    if (flow.kind == FlowKind::Shape) != flow.shape.is_some() {
        return Err(("shape", "expected with kind = \"shape\", and only there"));
    }
    if flow.kind == FlowKind::Shape && flow.seconds.is_none_or(|s| !(1.0..=600.0).contains(&s)) {
        return Err(("seconds", "expected the program's run time, 1 to 600"));
    }
    if flow.kind == FlowKind::Flood {
        if !(1..=2_000_000).contains(&flow.packets_per_s) {
            return Err(("packets_per_s", "expected 1 to 2000000"));
        }
        if flow.flood.is_empty() {
            return Err((
                "flood",
                "expected some of \"malformed\", \"handshakes\", \"replays\", or \"creates\"",
            ));
        }
    }
    Ok(())
}

/// Checks the attacker: it needs pairs of hosts, and enough time.
fn attack(s: &Scenario) -> Result<(), (&'static str, &'static str)> {
    let Some(attack) = &s.attack else { return Ok(()) };
    let longest = attack.seconds.iter().copied().max().unwrap_or(0);
    let fits = attack.seconds.iter().all(|seconds| (1..=600).contains(seconds));
    let end = attack.from_s + f64::from(longest);
    if attack.seconds.is_empty() || !fits || s.duration_s.is_none_or(|duration| duration < end) {
        return Err((
            "seconds",
            "expected 1 to 600 each, and duration_s at least from_s plus the longest",
        ));
    }
    if !(0.0..=600.0).contains(&attack.from_s) {
        return Err(("from_s", "expected 0 to 600"));
    }
    let is_pair = |flow: &ScenarioFlow| flow.kind == FlowKind::File || flow.needs_interface();
    if s.flows.len() < 2 || !s.flows.iter().all(is_pair) {
        return Err(("seconds", "expected at least two flows, between different hosts"));
    }
    let mut hosts: Vec<&String> = s.flows.iter().flat_map(|flow| [&flow.from, &flow.to]).collect();
    hosts.sort_unstable();
    if hosts.windows(2).any(|pair| pair[0] == pair[1]) {
        return Err(("seconds", "expected flows that have no host in common"));
    }
    if attack.cross.iter().any(|name| hosts.binary_search(&name).is_ok()) {
        return Err(("cross", "expected hosts that no flow uses"));
    }
    if s.cases.iter().any(|case| case.attack.cross) && attack.cross.len() < 2 {
        // One of the two may be behind the router of an attacked host.
        return Err(("cross", "expected at least two hosts, behind different routers"));
    }
    Ok(())
}

fn event(
    s: &Scenario,
    source: &ConfigSource<'_>,
    i: usize,
    event: &ScenarioEvent,
    topology: &Topology,
) -> Result<(), ConfigError> {
    let bad = |key: &str, text: &str| Err(source.wrong("event", Some(i), key, text));
    match (event.at_s, event.at_share) {
        (Some(at), None) if (0.0..=SECONDS_MAX).contains(&at) => {}
        (None, Some(at)) if (0.0..=1.0).contains(&at) => {}
        _ => return bad("at_s", "expected one of at_s (seconds) and at_share (0 to 1)"),
    }
    if event.every_s.is_some_and(|e| !(0.1..=SECONDS_MAX).contains(&e)) {
        return bad("every_s", "expected 0.1 or more seconds");
    }
    if event.every_s.is_some() && s.duration_s.is_none() {
        return bad("every_s", "without duration_s it would never end");
    }
    if event.case.as_ref().is_some_and(|name| !s.all_cases().iter().any(|c| c.name == *name)) {
        return bad("case", "there is no such case");
    }
    if let Some(names) = &event.link {
        ends(source, "event", i, "link", names, topology)?;
    }
    match event.deed {
        EventAction::Kill if event.node.is_none() => {
            let hidden = |case: &ScenarioCase| !case.events || case.circuits == CircuitUse::Require;
            if !s.all_cases().iter().all(hidden) {
                return bad("node", "expected the name of a node, or circuits in all cases");
            }
        }
        EventAction::Kill | EventAction::Start => {
            let node = event.node.as_ref().and_then(|n| topology.find(n));
            if node.is_none_or(|n| topology.nodes[n].plain) {
                return bad("node", "expected the name of a node");
            }
        }
        EventAction::Restore | EventAction::Loss if event.link.is_none() => {
            return bad("link", "expected the names of a link's ends");
        }
        EventAction::Loss if event.loss.is_none_or(|l| !(0.0..=1.0).contains(&l)) => {
            return bad("loss", "expected 0 to 1");
        }
        _ => {}
    }
    Ok(())
}

/// Checks a case's settings of circuits. The settings need `circuits = "require"`, and times that
/// mixes accept.
fn over_circuits(case: &ScenarioCase) -> Result<(), (&'static str, &'static str)> {
    let is_off = case.circuits == CircuitUse::Off;
    let is_name =
        |name: &String| name.bytes().all(|b| b.is_ascii_lowercase() || b"_0123456789".contains(&b));
    if !case.kernel.keys().all(|name| !name.is_empty() && is_name(name)) {
        return Err(("kernel", "expected names without the prefix net.ipv4., such as tcp_sack"));
    }
    if case.circuit_relays.is_some_and(|relays| is_off || !(1..=5).contains(&relays)) {
        return Err(("circuit_relays", "expected 1 to 5, with circuits = \"require\""));
    }
    let Some(mix) = &case.mix else { return Ok(()) };
    if is_off {
        return Err(("mix", "expected circuits = \"require\" beside it"));
    }
    let is_time = |ms: &f64| (0.1..=1_000.0).contains(ms);
    let times = [mix.mean_ms, mix.most_ms, mix.every_ms];
    let fits = match mix.kind {
        MixKind::StopAndGo => mix.mean_ms.is_some() && mix.every_ms.is_none(),
        MixKind::Timed => mix.every_ms.is_some() && mix.mean_ms.or(mix.most_ms).is_none(),
    };
    if !fits || !times.iter().flatten().all(is_time) {
        return Err((
            "mix",
            "expected kind = \"stop-and-go\" with mean_ms (and most_ms), or \"timed\" with \
             every_ms, each 0.1 to 1000",
        ));
    }
    if mix.most_ms.zip(mix.mean_ms).is_some_and(|(most, mean)| most < mean) {
        return Err(("mix", "expected a most_ms that is mean_ms or more"));
    }
    Ok(())
}

fn cases(s: &Scenario, source: &ConfigSource<'_>, topology: &Topology) -> Result<(), ConfigError> {
    for (i, case) in s.cases.iter().enumerate() {
        if let Some(names) = &case.link {
            ends(source, "case", i, "link", names, topology)?;
        }
        line(source, "case", Some(i), &case.links)?;
        if case.circuit_life_s.is_some_and(|life| !(1.0..=600.0).contains(&life)) {
            return Err(source.wrong("case", Some(i), "circuit_life_s", "expected 1 to 600"));
        }
        if case.cover.is_some_and(|cover| cover.tier().is_none()) {
            let text = format!("expected mbit = 1 to {}", CoverTier::MBIT_MAX);
            return Err(source.wrong("case", Some(i), "cover", text));
        }
        over_circuits(case).map_err(|(key, text)| source.wrong("case", Some(i), key, text))?;
        for name in case.flows.iter().flatten() {
            if !s.flows.iter().any(|f| f.name == *name) {
                let text = format!("there is no flow {name:?}");
                return Err(source.wrong("case", Some(i), "flows", text));
            }
        }
    }
    if let Some(sweep) = &s.sweep {
        let bad = |key: &str, text: String| Err(source.wrong("sweep", None, key, text));
        if sweep.link.iter().any(|n| topology.find(n).is_none()) {
            return bad("link", "there is no such link".into());
        }
        if sweep.loss.is_empty() || sweep.loss.iter().any(|l| !(0.0..=1.0).contains(l)) {
            return bad("loss", "expected shares from 0 to 1".into());
        }
        let high = DELAY_MAX_MS * 2.0;
        if sweep.rtt_ms.is_empty() || sweep.rtt_ms.iter().any(|r| !(0.0..=high).contains(r)) {
            return bad("rtt_ms", format!("expected milliseconds from 0 to {high}"));
        }
    }
    Ok(())
}

fn holds(s: &Scenario, source: &ConfigSource<'_>) -> Result<(), ConfigError> {
    let cases = s.case_names();
    let known = |name: &Option<String>| name.as_ref().is_none_or(|name| cases.contains(name));
    for (i, hold) in s.holds.iter().enumerate() {
        let bad = |key: &str, text: String| Err(source.wrong("hold", Some(i), key, text));
        if hold.at_least.is_none() && hold.at_most.is_none() {
            return bad("at_least", "expected at_least or at_most".into());
        }
        if hold.against.is_some() && hold.minus.is_some() {
            return bad("minus", "a comparison divides or subtracts: leave out one of both".into());
        }
        for (key, name) in
            [("case", &hold.case), ("against", &hold.against), ("minus", &hold.minus)]
        {
            // The cases of programs are known only at run time; a wrong name fails there.
            if s.kind != ExperimentKind::Programs && !known(name) {
                return bad(key, format!("there is no case {:?}", name.as_deref().unwrap_or("")));
            }
        }
        if matches!(
            s.kind,
            ExperimentKind::Network | ExperimentKind::Translators | ExperimentKind::Moving
        ) && !crate::figures::is_known(&hold.figure)
        {
            let text = format!("{:?}: expected one of {}", hold.figure, crate::figures::names());
            return bad("figure", text);
        }
    }
    Ok(())
}
