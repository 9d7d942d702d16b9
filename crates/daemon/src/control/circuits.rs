//! State of the circuits that a node begins.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use shoal_edge::{HostId, OrderStats};
use shoal_onion::SetupFailure;
use shoal_onion::path::{NoRelays, PathWarning};
use shoal_onion::pool::{
    CircuitPool, CircuitProblem, HostView, LastFailure, LoopTotals, LoopVerdict, SetupCounts,
};
use shoal_wire::leg::ExtendRefusal;
use shoal_wire::{Address, NodeAddresses, Time};

use crate::config::NodeConfig;
use crate::control::api::{
    AvoidedRelay, BoundReason, CircuitStatus, CircuitTotals, CircuitsStatus, ControlReply,
    ErrorCode, HostCircuits, LoopCounters, ReorderCounters,
};
use crate::control::cover;
use crate::membership::circuits;
use crate::membership::hosts::{HostList, ListedHost};
use crate::worker::first::WorkerParts;

/// The number of open circuits is rounded up to a multiple of this, and updated every
/// [`COUNT_EVERY`]. So its readers do not learn when a circuit begins or ends.
const STEP: u64 = 8;
const COUNT_EVERY: Duration = Duration::from_secs(10);

/// The rounded number of open circuits.
#[derive(Debug, Default)]
pub struct RoundedCount {
    shown: u64,
    again: Time,
}

impl RoundedCount {
    /// Circuits that end here or go through here, rounded up, as counted at most ten seconds ago.
    pub fn get(&mut self, now: Time, open: usize) -> u64 {
        if now >= self.again {
            (self.shown, self.again) = ((open as u64).next_multiple_of(STEP), now + COUNT_EVERY);
        }
        self.shown
    }
}

/// Circuits of this node by host, and the routers that know both hosts.
pub fn view(parts: &WorkerParts, now: Time, open: u64) -> CircuitsStatus {
    let (order, cover) = (order(parts), cover::covered(parts));
    let Some(pool) = parts.node.pool() else {
        return CircuitsStatus { open, order, cover, ..CircuitsStatus::default() };
    };
    let listed = parts.names.hosts();
    let is_hidden =
        |name: &str| parts.names.host_id(name).is_some_and(|id| parts.node.edge.is_hidden(id));
    // Includes hosts that were met over circuits, whatever the policy says.
    let bound: BTreeMap<String, BoundReason> = listed
        .iter()
        .filter(|host| is_hidden(&host.name))
        .map(|host| (host.name.clone(), parts.circuits.bound_by(host).into()))
        .collect();
    let mut hosts: Vec<HostCircuits> =
        pool.views(now).iter().map(|view| to(parts, view, &bound)).collect();
    let shown: BTreeSet<&str> = hosts.iter().map(|to| to.host.as_str()).collect();
    let without = bound.iter().filter(|(name, _)| !shown.contains(name.as_str()));
    let without = none_yet(&parts.config, listed, without.collect());
    hosts.extend(without);
    let avoided = pool.avoided(now).into_iter().map(|avoided| AvoidedRelay {
        relay: name(parts, avoided.relay),
        failed: avoided.failed,
        needed: avoided.needed,
        for_s: avoided.left.as_secs_f64(),
    });
    let warnings = parts.circuits.warnings().chain(cover::warnings(parts)).collect();
    let (avoided, loops) = (avoided.collect(), loops(parts));
    CircuitsStatus { hosts, avoided, open, order, loops, cover, warnings }
}

/// Hosts that require circuits and have none yet, with the facts that circuits will not hide.
fn none_yet(
    config: &NodeConfig,
    listed: &HostList,
    bound: Vec<(&String, &BoundReason)>,
) -> Vec<HostCircuits> {
    let routers = circuits::routers(listed);
    // All hosts of one router have the same warnings.
    let mut said = BTreeMap::<u32, Vec<String>>::new();
    let hosts = bound.into_iter().map(|(name, bound)| {
        let at = listed.by_name(name).map(|host| host.address);
        let warnings = at.map(|at| {
            let of = said.entry(at.router);
            of.or_insert_with(|| circuits::unhidden(config, listed, &routers, at)).clone()
        });
        HostCircuits {
            host: name.clone(),
            required: true,
            bound: Some(bound.clone()),
            warnings: warnings.unwrap_or_default(),
            ..HostCircuits::default()
        }
    });
    hosts.collect()
}

/// Totals over all circuits; `open` is the rounded number of open ones.
pub fn totals(parts: &WorkerParts, open: u64) -> CircuitTotals {
    let pool = parts.node.pool();
    let SetupCounts { built, failed } = pool.map(CircuitPool::set_ups).unwrap_or_default();
    let (cells, dropped) = parts.node.circuits.cells();
    let WorkerParts { names, node, circuits, .. } = parts;
    let listed = names.hosts();
    let is_hidden = |id: HostId| node.edge.is_hidden(id);
    let bound = listed.iter().filter(|host| names.host_id(&host.name).is_some_and(is_hidden));
    let met = || circuits.required.only_met(listed, &circuits.met);
    CircuitTotals {
        own: pool.map_or(0, CircuitPool::len) as u64,
        open,
        built,
        failed,
        cells,
        dropped,
        bound: bound.count() as u64,
        met: met().count() as u64,
        met_since_unix_s: met().filter_map(|met| met.since).min().map(circuits::day_unix_s),
    }
}

/// Counters of the reordering of packets.
pub fn order(parts: &WorkerParts) -> ReorderCounters {
    let OrderStats { held, kept, given_up, late, overflowed, unordered, .. } =
        parts.node.edge.order_stats();
    ReorderCounters { held, kept, given_up, late, overflowed, unordered }
}

/// Results of loops; none where they are not sent.
pub fn loops(parts: &WorkerParts) -> Option<LoopCounters> {
    let pool = parts.node.pool().filter(|pool| pool.has_loops())?;
    let LoopTotals { back, late, lost, lossy, held } = pool.loop_totals();
    Some(LoopCounters { back, late, lost, lossy, held })
}

/// Fault that loops showed in a circuit, in words; `ago` is the time since then.
pub(crate) fn found(verdict: LoopVerdict, ago: Duration) -> String {
    let what = match verdict {
        LoopVerdict::Lossy => "lost more cells than the others",
        LoopVerdict::Held => "was later than its mixes may be, more often than the others",
    };
    let minutes = ago.as_secs() / 60;
    format!("a circuit {what}, {minutes} min ago, and was replaced: a relay may drop or hold cells")
}

/// Name of a node in the list, or else its address.
pub fn name(parts: &WorkerParts, at: Address) -> String {
    let host = parts.names.hosts().by_address(at);
    host.map_or_else(|| at.to_string(), |host| host.name.clone())
}

fn to(parts: &WorkerParts, view: &HostView, bound: &BTreeMap<String, BoundReason>) -> HostCircuits {
    let host = name(parts, view.to);
    let circuits = view.circuits.iter().map(|circuit| CircuitStatus {
        state: circuit.state.as_str().into(),
        relays: circuit.relays.iter().map(|at| name(parts, *at)).collect(),
        age_s: circuit.age.as_secs_f64(),
        ends_in_s: circuit.left.map(|left| left.as_secs_f64()),
        rtt_us: circuit.rtt.map(|rtt| rtt.as_micros() as u64),
        mixes: match circuit.mixes.iter().any(|mix| mix.holds()) {
            true => circuit.mixes.iter().map(ToString::to_string).collect(),
            false => Vec::new(),
        },
        added_us: circuit.added.as_micros() as u64,
    });
    let hosts = parts.names.hosts();
    let far = hosts.by_address(view.to).map(ListedHost::addresses);
    let far = far.unwrap_or(NodeAddresses::one(view.to));
    let addresses = [parts.config.addresses(hosts), far];
    HostCircuits {
        required: bound.contains_key(&host),
        bound: bound.get(&host).cloned(),
        circuits: circuits.collect(),
        known: known(addresses, view, &|at| name(parts, at)),
        warnings: view.warnings.iter().map(ToString::to_string).collect(),
        problem: view.problem.map(|problem| problem_words(parts, problem)),
        found: view.verdict.map(|(verdict, ago)| found(verdict, ago)),
        host,
    }
}

/// Reason why there is no circuit to a host.
pub fn problem(parts: &WorkerParts, now: Time, to: Address) -> Option<CircuitProblem> {
    parts.node.pool()?.views(now).iter().find(|view| view.to == to)?.problem
}

/// The host `id` and its address, if circuits lead there. Errors: the reason why none do.
pub fn with(
    parts: &WorkerParts,
    id: HostId,
    host: &str,
) -> Result<(HostId, Address), ControlReply> {
    let edge = &parts.node.edge;
    let text = match edge.address_of(id) {
        None => return Err(parts.names.unknown(host)),
        Some(_) if parts.node.pool().is_none() => {
            "no circuit begins at this node, which is a router: ask at a host".to_owned()
        }
        Some(to) if to.is_router() => format!("{host} is a router, and circuits lead to hosts"),
        Some(to) if edge.is_hidden(id) => return Ok((id, to)),
        Some(_) => format!(
            "there is no circuit to {host}: traffic with it goes outside circuits, and routers \
             on the way know both; `policy = \"require\"` under [circuits] in node.toml hides them"
        ),
    };
    Err(ControlReply::error(ErrorCode::BadRequest, text))
}

/// Reason why nothing reaches a host that requires circuits; none if there is a circuit.
pub fn missing(parts: &WorkerParts, now: Time, id: HostId) -> Option<String> {
    let WorkerParts { node, .. } = parts;
    let to = node.edge.address_of(id).filter(|_| node.edge.is_hidden(id))?;
    node.pool()?.in_use(to).is_none().then(|| missing_words(parts, now, to))
}

/// Message that there is no circuit to a host, with the reason and a command to run.
pub fn missing_words(parts: &WorkerParts, now: Time, to: Address) -> String {
    let why = problem(parts, now, to).map(|problem| problem_words(parts, problem));
    let why = why.unwrap_or_else(|| "none was built in time".into());
    let bound = met_words(parts, to).map_or(String::new(), |words| format!("; {words}"));
    format!("there is no circuit to {}: {why}; see `shoal circuits`{bound}", name(parts, to))
}

/// Message that nothing but an earlier meeting binds a host to circuits, if so.
pub fn met_words(parts: &WorkerParts, to: Address) -> Option<String> {
    let WorkerParts { names, node, circuits, .. } = parts;
    let host = names.hosts().by_address(to)?;
    let is_hidden = names.host_id(&host.name).is_some_and(|id| node.edge.is_hidden(id));
    let bound = is_hidden.then(|| BoundReason::from(circuits.bound_by(host)));
    bound.filter(BoundReason::is_met).map(|bound| bound.words(&host.name))
}

/// Reason why a host of a network that can't hold its preset has no circuits.
const CLOSED: &str = "the network has too few relays for its preset, so this host sends no \
                      packets: `shoal status` says how many";

/// Reason why there is no circuit, or no further one, in words.
pub(crate) fn problem_words(parts: &WorkerParts, problem: CircuitProblem) -> String {
    match problem {
        CircuitProblem::NoRelays if parts.circuits.is_closed => CLOSED.into(),
        problem => words(problem, &|at| name(parts, at)),
    }
}

fn words(problem: CircuitProblem, name: &dyn Fn(Address) -> String) -> String {
    match problem {
        CircuitProblem::NoRelays => NoRelays.to_string(),
        CircuitProblem::Cut { first, wait } => format!(
            "relay 1 ({}) did not answer, nor did anything else: does this host reach its router, \
             is its clock right, and do both have versions with circuits? {}",
            name(first),
            match wait.as_secs() {
                0 => "Another set-up begins at once".to_owned(),
                s => format!("The next set-up begins in {s} s"),
            }
        ),
        CircuitProblem::Failed { times, last, wait } => {
            let set_ups = match times {
                1 => "1 set-up".to_owned(),
                _ => format!("{times} set-ups in a row"),
            };
            let last = last.map_or(String::new(), |last| format!(", {}", last_words(last, name)));
            match wait.as_secs() {
                0 => format!("{set_ups} failed{last}; another begins at once"),
                s => format!("{set_ups} failed{last}; the next begins in {s} s"),
            }
        }
    }
}

/// Node at which the last set-up ended, and the reason.
fn last_words(last: LastFailure, name: &dyn Fn(Address) -> String) -> String {
    let LastFailure { hop, node, before, why } = last;
    let at = |hop: u8, node: Address| match node.is_router() {
        true => format!("the last at relay {hop} ({})", name(node)),
        false => format!("the last at {}", name(node)),
    };
    match (why, before) {
        (SetupFailure::Here, _) => "the last at this host: too many set-ups at once".into(),
        (SetupFailure::BadHandshake, _) => format!("{}: its handshake is wrong", at(hop, node)),
        (SetupFailure::Refused(ExtendRefusal::NotAllowed), Some(before)) => {
            format!("{}: by its list it may not go on to {}", at(hop - 1, before), name(node))
        }
        (SetupFailure::Refused(ExtendRefusal::Full), Some(before)) => {
            format!("{}: it is full", at(hop - 1, before))
        }
        // Relay 1 checks the clock of this host; every other hop checks that of the relay before
        // it.
        _ if hop == 1 => format!(
            "{}: it did not answer (does it run, and is this host's clock right?)",
            at(hop, node)
        ),
        _ if node.is_router() => format!("{}: it did not answer", at(hop, node)),
        _ => format!(
            "{}: it did not answer (does it run, in a version with circuits?)",
            at(hop, node)
        ),
    }
}

/// Routers that know one or both hosts, for the circuit in use or under construction.
fn known(
    addresses: [NodeAddresses; 2],
    view: &HostView,
    name: &dyn Fn(Address) -> String,
) -> Option<String> {
    let relays = &view.circuits.first()?.relays;
    let routers = |host: NodeAddresses| host.iter().map(|at| Address::new(at.router, 0));
    let [mut here, mut there] = addresses.map(|host| routers(host).collect::<BTreeSet<Address>>());
    here.extend(relays.first());
    there.extend(relays.last());
    let sure = &here & &there;
    // Behind the router of a small site, few other hosts come into question.
    if view.warnings.contains(&PathWarning::SmallSiteHere) {
        here.extend(relays.get(1));
    }
    if view.warnings.contains(&PathWarning::SmallSiteThere) {
        there.extend(relays.iter().nth_back(1));
    }
    let both = &here & &there;
    let guessed = &both - &sure;
    let host = name(view.to);
    let part = |all: BTreeSet<Address>, (one, many): (&str, &str), what: String| {
        let names: Vec<String> = all.iter().map(|at| name(*at)).collect();
        let verb = if names.len() == 1 { one } else { many };
        (!names.is_empty()).then(|| format!("{} {verb} {what}", names.join(" and ")))
    };
    let (know, tell) = (("knows", "know"), ("can guess", "can guess"));
    let few = "both hosts, since few hosts are behind their routers";
    let parts = [
        part(&here - &both, know, format!("this host and not {host}")),
        part(&there - &both, know, format!("{host} and not this host")),
        part(sure, know, "both".into()),
        part(guessed, tell, few.into()),
    ];
    let said: Vec<String> = parts.into_iter().flatten().collect();
    let end = match both.is_empty() {
        true => "; one of each side together know both, and so does an observer of both ends",
        false => "; an observer of both ends knows both, too",
    };
    Some(said.join(", ") + end)
}

#[cfg(test)]
mod tests {
    use shoal_onion::pool::{CircuitState, CircuitView};

    use super::*;

    #[test]
    fn the_count_tells_neither_one_circuit_nor_its_moment() {
        let mut count = RoundedCount::default();
        let at = |ms| Time::from_millis(ms);
        assert_eq!(count.get(at(1), 0), 0);
        assert_eq!(count.get(at(10_000), 9), 0, "not yet");
        assert_eq!(count.get(at(10_001), 9), 16);
        assert_eq!((count.get(at(20_001), 16), count.get(at(30_001), 17)), (16, 24));
    }

    #[test]
    fn what_no_circuit_will_hide_is_said_before_the_first_one() {
        let folder = tempfile::tempdir().unwrap();
        let host = |name: &str, address: &str, more: &str| {
            let mut seed = [0; 32];
            seed[..name.len()].copy_from_slice(name.as_bytes());
            let key = shoal_crypto::Identity::from_seed(seed).public();
            format!("[[host]]\nname = {name:?}\naddress = {address:?}\nkey = \"{key}\"\n{more}\n")
        };
        let relay = |name: &str, address: &str| host(name, address, "relay = true");
        let ends = host("r1", "1.0", "")
            + &host("alice", "1.1", "")
            + &host("carol", "1.2", "")
            + &host("r5", "5.0", "")
            + &host("bob", "5.1", "");
        let text = "[node]\nname = \"alice\"\naddress = \"1.1\"\nkey_file = \"key\"\n\
                    network_secret_file = \"secret\"\n";
        let config = NodeConfig::parse(&folder.path().join("node.toml"), text).unwrap();
        let said = |relays: &[(&str, &str)]| {
            let relays: String = relays.iter().map(|(name, at)| relay(name, at)).collect();
            let listed = HostList::parse(folder.path(), &(ends.clone() + &relays)).unwrap();
            let names = ["bob", "carol", "nobody"].map(String::from);
            let bound = BoundReason::default();
            let bound = names.iter().map(|name| (name, &bound)).collect();
            let all = none_yet(&config, &listed, bound);
            let is_none = |to: &HostCircuits| to.circuits.is_empty() && to.problem.is_none();
            assert!(all.iter().all(|to| to.required && is_none(to)), "{all:?}");
            let names: Vec<&str> = all.iter().map(|to| to.host.as_str()).collect();
            assert_eq!(names, ["bob", "carol", "nobody"]);
            assert!(all[2].warnings.is_empty(), "not in the list: {:?}", all[2]);
            [all[0].warnings.clone(), all[1].warnings.clone()]
        };
        let [bob, carol] = said(&[]);
        assert!(bob == [NoRelays.to_string()] && carol == bob, "{bob:?}");
        let [bob, _] = said(&[("r2", "2.0")]);
        assert!(bob.contains(&PathWarning::OneRelay.to_string()), "{bob:?}");
        let [bob, _] = said(&[("r2", "2.0"), ("r3", "3.0")]);
        assert!(bob.contains(&PathWarning::Short { asked: 3, have: 2 }.to_string()), "{bob:?}");
        let [bob, carol] = said(&[("r2", "2.0"), ("r3", "3.0"), ("r4", "4.0")]);
        assert!(bob.is_empty(), "three relays beside the own routers: {bob:?}");
        assert!(carol == [PathWarning::SameRouter.to_string()], "{carol:?}");
    }

    /// Summary of who knows host 1.1 and host 5.1 over these relays.
    fn said(relays: &[u32], warnings: &[PathWarning]) -> String {
        let name = |at: Address| match at.is_router() {
            true => format!("r{}", at.router),
            false => "bob".into(),
        };
        let circuit = CircuitView {
            state: CircuitState::InUse,
            relays: relays.iter().map(|n| Address::new(*n, 0)).collect(),
            age: Duration::ZERO,
            left: None,
            rtt: None,
            mixes: Vec::new(),
            added: Duration::ZERO,
        };
        let view = HostView {
            to: Address::new(5, 1),
            circuits: vec![circuit],
            warnings: warnings.to_vec(),
            problem: None,
            verdict: None,
        };
        let addresses = [Address::new(1, 1), view.to].map(NodeAddresses::one);
        known(addresses, &view, &name).expect("there is a circuit")
    }

    #[test]
    fn who_knows_both_hosts_is_named() {
        let [here, there] = [PathWarning::SmallSiteHere, PathWarning::SmallSiteThere];
        let together =
            "; one of each side together know both, and so does an observer of both ends";
        let watched = "; an observer of both ends knows both, too";
        let (us, them) = ("this host and not bob", "bob and not this host");
        let few = "can guess both hosts, since few hosts are behind their routers";
        for (relays, warnings, expected) in [
            (
                &[2, 3, 4][..],
                &[][..],
                format!("r1 and r2 know {us}, r4 and r5 know {them}{together}"),
            ),
            (&[1, 3, 4], &[here], format!("r1 and r3 know {us}, r4 and r5 know {them}{together}")),
            (
                &[1, 3, 5],
                &[here, there],
                format!("r1 knows {us}, r5 knows {them}, r3 {few}{watched}"),
            ),
            (&[1, 5], &[here, there], format!("r1 and r5 {few}{watched}")),
            (
                &[3],
                &[PathWarning::OneRelay],
                format!("r1 knows {us}, r5 knows {them}, r3 knows both{watched}"),
            ),
        ] {
            assert_eq!(said(relays, warnings), expected);
        }
    }

    #[test]
    fn a_problem_says_where_the_last_set_up_ended_and_why() {
        let name =
            |at: Address| if at.is_router() { format!("r{}", at.router) } else { "bob".into() };
        let [r2, r4, bob] = [Address::new(2, 0), Address::new(4, 0), Address::new(5, 1)];
        let wait = Duration::from_millis(6_200);
        let said = |times, (hop, before, node): (u8, Address, Address), why| {
            let before = (hop > 1).then_some(before);
            let last = Some(LastFailure { hop, node, before, why });
            words(CircuitProblem::Failed { times, last, wait }, &name)
        };
        let full = SetupFailure::Refused(ExtendRefusal::Full);
        let not_allowed = SetupFailure::Refused(ExtendRefusal::NotAllowed);
        for (hop, why, expected) in [
            ((2, r2, r4), SetupFailure::Silent, "at relay 2 (r4): it did not answer;"),
            (
                (1, r2, r2),
                SetupFailure::Silent,
                "at relay 1 (r2): it did not answer (does it run, and",
            ),
            ((2, r2, r4), full, "at relay 1 (r2): it is full;"),
            ((2, r2, r4), not_allowed, "at relay 1 (r2): by its list it may not go on to r4;"),
            ((1, r2, r2), SetupFailure::BadHandshake, "at relay 1 (r2): its handshake is wrong;"),
            (
                (4, r4, bob),
                SetupFailure::Silent,
                "at bob: it did not answer (does it run, in a version",
            ),
            ((1, r2, r2), SetupFailure::Here, "at this host: too many set-ups at once;"),
        ] {
            let said = said(3, hop, why);
            assert!(said.starts_with("3 set-ups in a row failed, the last at "), "{said}");
            assert!(said.contains(expected) && said.ends_with("the next begins in 6 s"), "{said}");
        }
        assert!(
            said(1, (1, r2, r2), SetupFailure::Silent).starts_with("1 set-up failed, the last at")
        );
        let soon = CircuitProblem::Failed { times: 1, last: None, wait: Duration::ZERO };
        assert_eq!(words(soon, &name), "1 set-up failed; another begins at once");
        let cut = words(CircuitProblem::Cut { first: r2, wait }, &name);
        assert!(cut.starts_with("relay 1 (r2) did not answer, nor did anything else"), "{cut}");
    }
}
