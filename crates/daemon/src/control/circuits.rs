//! What a node says of the circuits that it begins.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use shoal_edge::{HostId, OrderStats};
use shoal_onion::Failure;
use shoal_onion::path::{NoRelays, Warning};
use shoal_onion::pool::{HostView, LastFailure, LoopTotals, Pool, Problem, SetUps, Verdict};
use shoal_wire::leg::Refusal;
use shoal_wire::{Address, Time};

use crate::config::Config;
use crate::control::api::{
    Avoided, Circuit, CircuitTotals, Circuits, CircuitsTo, ErrorCode, Loops, Order, Reply,
};
use crate::control::cover;
use crate::membership::circuits;
use crate::membership::hosts::Hosts;
use crate::worker::first::Parts;

/// Circuits are counted in steps of so many, and every so often: who reads counters does not learn
/// when one begins or ends.
const STEP: u64 = 8;
const COUNT_EVERY: Duration = Duration::from_secs(10);

/// The number of open circuits as others may see it.
#[derive(Debug, Default)]
pub struct Count {
    shown: u64,
    again: Time,
}

impl Count {
    /// Circuits that end here or go through here, rounded up, as they were ten seconds ago or
    /// less.
    pub fn get(&mut self, now: Time, open: usize) -> u64 {
        if now >= self.again {
            (self.shown, self.again) = ((open as u64).next_multiple_of(STEP), now + COUNT_EVERY);
        }
        self.shown
    }
}

/// Its circuits by host, and whom relays know.
pub fn view(parts: &Parts, now: Time, open: u64) -> Circuits {
    let (order, cover) = (order(parts), cover::covered(parts));
    let Some(pool) = parts.node.pool() else {
        return Circuits { open, order, cover, ..Circuits::default() };
    };
    let listed = parts.names.hosts();
    let is_hidden =
        |name: &str| parts.names.host_id(name).is_some_and(|id| parts.node.edge.is_hidden(id));
    // Hosts that were met over circuits, too, whatever policy says.
    let required: BTreeSet<String> =
        listed.iter().filter(|host| is_hidden(&host.name)).map(|host| host.name.clone()).collect();
    let mut hosts: Vec<CircuitsTo> =
        pool.views(now).iter().map(|view| to(parts, view, &required)).collect();
    let is_shown = |name: &str| hosts.iter().any(|to| to.host == name);
    let without = required.iter().map(String::as_str).filter(|name| !is_shown(name));
    let without: Vec<&str> = without.collect();
    hosts.extend(none_yet(&parts.config, listed, &without));
    let avoided = pool.avoided(now).into_iter().map(|avoided| Avoided {
        relay: name(parts, avoided.relay),
        failed: avoided.failed,
        needed: avoided.needed,
        for_s: avoided.left.as_secs_f64(),
    });
    let warnings = parts.circuits.warnings().chain(cover::warnings(parts)).collect();
    let (avoided, loops) = (avoided.collect(), loops(parts));
    Circuits { hosts, avoided, open, order, loops, cover, warnings }
}

/// Hosts with which circuits are required and that have none yet, with what none will hide.
fn none_yet(config: &Config, listed: &Hosts, names: &[&str]) -> Vec<CircuitsTo> {
    let routers = circuits::routers(listed);
    // What can't be hidden is the same for all hosts of one router.
    let mut said = BTreeMap::<u32, Vec<String>>::new();
    let hosts = names.iter().map(|name| {
        let at = listed.by_name(name).map(|host| host.address);
        let warnings = at.map(|at| {
            let of = said.entry(at.router);
            of.or_insert_with(|| circuits::unhidden(config, &routers, at)).clone()
        });
        CircuitsTo {
            host: name.to_string(),
            required: true,
            warnings: warnings.unwrap_or_default(),
            ..CircuitsTo::default()
        }
    });
    hosts.collect()
}

/// All of them together; `open` is their number as others may see it.
pub fn totals(parts: &Parts, open: u64) -> CircuitTotals {
    let pool = parts.node.pool();
    let SetUps { built, failed } = pool.map(Pool::set_ups).unwrap_or_default();
    let (cells, dropped) = parts.node.circuits.cells();
    CircuitTotals { own: pool.map_or(0, Pool::len) as u64, open, built, failed, cells, dropped }
}

/// What was done for the order of packets.
pub fn order(parts: &Parts) -> Order {
    let OrderStats { held, kept, given_up, late, overflowed, unordered, .. } =
        parts.node.edge.order_stats();
    Order { held, kept, given_up, late, overflowed, unordered }
}

/// What became of loops; none where they are not sent.
pub fn loops(parts: &Parts) -> Option<Loops> {
    let pool = parts.node.pool().filter(|pool| pool.has_loops())?;
    let LoopTotals { back, late, lost, lossy, held } = pool.loop_totals();
    Some(Loops { back, late, lost, lossy, held })
}

/// What loops showed of a circuit so long ago, in words.
fn found(verdict: Verdict, ago: Duration) -> String {
    let what = match verdict {
        Verdict::Lossy => "lost more cells than the others",
        Verdict::Held => "was later than its mixes may be, more often than the others",
    };
    let minutes = ago.as_secs() / 60;
    format!("a circuit {what}, {minutes} min ago, and gave way: a relay may drop or hold cells")
}

/// What the list calls a node.
pub fn name(parts: &Parts, at: Address) -> String {
    let host = parts.names.hosts().by_address(at);
    host.map_or_else(|| at.to_string(), |host| host.name.clone())
}

fn to(parts: &Parts, view: &HostView, required: &BTreeSet<String>) -> CircuitsTo {
    let host = name(parts, view.to);
    let circuits = view.circuits.iter().map(|circuit| Circuit {
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
    CircuitsTo {
        required: required.contains(&host),
        circuits: circuits.collect(),
        known: known(parts.config.address(), view, &|at| name(parts, at)),
        warnings: view.warnings.iter().map(ToString::to_string).collect(),
        problem: view.problem.map(|problem| problem_words(parts, problem)),
        found: view.verdict.map(|(verdict, ago)| found(verdict, ago)),
        host,
    }
}

/// What keeps circuits to a host from being there.
pub fn problem(parts: &Parts, now: Time, to: Address) -> Option<Problem> {
    parts.node.pool()?.views(now).iter().find(|view| view.to == to)?.problem
}

/// A host that circuits lead to, and its address; where none do, why.
pub fn with(parts: &Parts, id: HostId, host: &str) -> Result<(HostId, Address), Reply> {
    let edge = &parts.node.edge;
    let text = match edge.address_of(id) {
        None => return Err(parts.names.unknown(host)),
        Some(_) if parts.node.pool().is_none() => {
            "no circuit begins at this node, which is a router: ask at a host".to_owned()
        }
        Some(to) if to.is_router() => format!("{host} is a router, and circuits lead to hosts"),
        Some(to) if edge.is_hidden(id) => return Ok((id, to)),
        Some(_) => format!(
            "there is no circuit to {host}: this node speaks with it outside circuits, and routers \
             on the way know both; `policy = \"require\"` under [circuits] in node.toml hides them"
        ),
    };
    Err(Reply::error(ErrorCode::BadRequest, text))
}

/// Why nothing reaches a host with which circuits are required; none where there is a circuit.
pub fn missing(parts: &Parts, now: Time, id: HostId) -> Option<String> {
    let Parts { node, .. } = parts;
    let to = node.edge.address_of(id).filter(|_| node.edge.is_hidden(id))?;
    node.pool()?.in_use(to).is_none().then(|| missing_words(parts, now, to))
}

/// Why there is no circuit to a host, and what to look at.
pub fn missing_words(parts: &Parts, now: Time, to: Address) -> String {
    let why = problem(parts, now, to).map(|problem| problem_words(parts, problem));
    let why = why.unwrap_or_else(|| "none was built in time".into());
    format!("there is no circuit to {}: {why}; see `shoal circuits`", name(parts, to))
}

fn problem_words(parts: &Parts, problem: Problem) -> String {
    words(problem, &|at| name(parts, at))
}

fn words(problem: Problem, name: &dyn Fn(Address) -> String) -> String {
    match problem {
        Problem::NoRelays => NoRelays.to_string(),
        Problem::Cut { first, wait } => format!(
            "relay 1 ({}) did not answer, nor did anything else: does this host reach its router, \
             is its clock right, and do both have versions with circuits? {}",
            name(first),
            match wait.as_secs() {
                0 => "Another set-up begins at once".to_owned(),
                s => format!("The next set-up begins in {s} s"),
            }
        ),
        Problem::Failed { times, last, wait } => {
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

/// Where the last set-up ended, and why.
fn last_words(last: LastFailure, name: &dyn Fn(Address) -> String) -> String {
    let LastFailure { hop, node, before, why } = last;
    let at = |hop: u8, node: Address| match node.is_router() {
        true => format!("the last at relay {hop} ({})", name(node)),
        false => format!("the last at {}", name(node)),
    };
    match (why, before) {
        (Failure::Here, _) => "the last at this host: it sets up as many as it may".into(),
        (Failure::BadHandshake, _) => format!("{}: its handshake is wrong", at(hop, node)),
        (Failure::Refused(Refusal::NotAllowed), Some(before)) => {
            format!("{}: by its list it may not go on to {}", at(hop - 1, before), name(node))
        }
        (Failure::Refused(Refusal::Full), Some(before)) => {
            format!("{}: it is full", at(hop - 1, before))
        }
        // It looks at this host's clock; the others look at that of the relay before them.
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

/// Which routers know what of the circuit in use, or of the one that is being set up.
fn known(from: Address, view: &HostView, name: &dyn Fn(Address) -> String) -> Option<String> {
    let relays = &view.circuits.first()?.relays;
    let router = |host: Address| Address::new(host.router, 0);
    let mut here: BTreeSet<Address> = [router(from), *relays.first()?].into();
    let mut there: BTreeSet<Address> = [router(view.to), *relays.last()?].into();
    let sure = &here & &there;
    // Behind the router of a small site hardly anybody else can be meant.
    if view.warnings.contains(&Warning::SmallSiteHere) {
        here.extend(relays.get(1));
    }
    if view.warnings.contains(&Warning::SmallSiteThere) {
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
    let (know, tell) = (("knows", "know"), ("can tell", "can tell"));
    let few = "who both hosts are, since few hosts are behind their routers";
    let parts = [
        part(&here - &both, know, format!("this host and not {host}")),
        part(&there - &both, know, format!("{host} and not this host")),
        part(sure, know, "both".into()),
        part(guessed, tell, few.into()),
    ];
    let said: Vec<String> = parts.into_iter().flatten().collect();
    let end = match both.is_empty() {
        true => "; one of each side together know both, and so does who watches both ends",
        false => "; who watches both ends knows both, too",
    };
    Some(said.join(", ") + end)
}

#[cfg(test)]
mod tests {
    use shoal_onion::pool::{CircuitState, CircuitView};

    use super::*;

    #[test]
    fn the_count_tells_neither_one_circuit_nor_its_moment() {
        let mut count = Count::default();
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
        let config = Config::parse(&folder.path().join("node.toml"), text).unwrap();
        let said = |relays: &[(&str, &str)]| {
            let relays: String = relays.iter().map(|(name, at)| relay(name, at)).collect();
            let listed = Hosts::parse(folder.path(), &(ends.clone() + &relays)).unwrap();
            let all = none_yet(&config, &listed, &["bob", "carol", "nobody"]);
            let is_none = |to: &CircuitsTo| to.circuits.is_empty() && to.problem.is_none();
            assert!(all.iter().all(|to| to.required && is_none(to)), "{all:?}");
            let names: Vec<&str> = all.iter().map(|to| to.host.as_str()).collect();
            assert_eq!(names, ["bob", "carol", "nobody"]);
            assert!(all[2].warnings.is_empty(), "not in the list: {:?}", all[2]);
            [all[0].warnings.clone(), all[1].warnings.clone()]
        };
        let [bob, carol] = said(&[]);
        assert!(bob == [NoRelays.to_string()] && carol == bob, "{bob:?}");
        let [bob, _] = said(&[("r2", "2.0")]);
        assert!(bob.contains(&Warning::OneRelay.to_string()), "{bob:?}");
        let [bob, _] = said(&[("r2", "2.0"), ("r3", "3.0")]);
        assert!(bob.contains(&Warning::Short { asked: 3, have: 2 }.to_string()), "{bob:?}");
        let [bob, carol] = said(&[("r2", "2.0"), ("r3", "3.0"), ("r4", "4.0")]);
        assert!(bob.is_empty(), "three relays beside the own routers: {bob:?}");
        assert!(carol == [Warning::SameRouter.to_string()], "{carol:?}");
    }

    /// Host 1.1 and host 5.1, over these relays.
    fn said(relays: &[u32], warnings: &[Warning]) -> String {
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
        known(Address::new(1, 1), &view, &name).expect("there is a circuit")
    }

    #[test]
    fn who_knows_both_hosts_is_named() {
        let [here, there] = [Warning::SmallSiteHere, Warning::SmallSiteThere];
        let together = "; one of each side together know both, and so does who watches both ends";
        let watched = "; who watches both ends knows both, too";
        let (us, them) = ("this host and not bob", "bob and not this host");
        let few = "can tell who both hosts are, since few hosts are behind their routers";
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
                &[Warning::OneRelay],
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
            words(Problem::Failed { times, last, wait }, &name)
        };
        let full = Failure::Refused(Refusal::Full);
        let not_allowed = Failure::Refused(Refusal::NotAllowed);
        for (hop, why, expected) in [
            ((2, r2, r4), Failure::Silent, "at relay 2 (r4): it did not answer;"),
            ((1, r2, r2), Failure::Silent, "at relay 1 (r2): it did not answer (does it run, and"),
            ((2, r2, r4), full, "at relay 1 (r2): it is full;"),
            ((2, r2, r4), not_allowed, "at relay 1 (r2): by its list it may not go on to r4;"),
            ((1, r2, r2), Failure::BadHandshake, "at relay 1 (r2): its handshake is wrong;"),
            ((4, r4, bob), Failure::Silent, "at bob: it did not answer (does it run, in a version"),
            ((1, r2, r2), Failure::Here, "at this host: it sets up as many as it may;"),
        ] {
            let said = said(3, hop, why);
            assert!(said.starts_with("3 set-ups in a row failed, the last at "), "{said}");
            assert!(said.contains(expected) && said.ends_with("the next begins in 6 s"), "{said}");
        }
        assert!(said(1, (1, r2, r2), Failure::Silent).starts_with("1 set-up failed, the last at"));
        let soon = Problem::Failed { times: 1, last: None, wait: Duration::ZERO };
        assert_eq!(words(soon, &name), "1 set-up failed; another begins at once");
        let cut = words(Problem::Cut { first: r2, wait }, &name);
        assert!(cut.starts_with("relay 1 (r2) did not answer, nor did anything else"), "{cut}");
    }
}
