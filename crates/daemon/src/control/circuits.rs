//! What a node says of the circuits that it begins.

use std::collections::BTreeSet;
use std::time::Duration;

use shoal_edge::HostId;
use shoal_onion::path::NoRelays;
use shoal_onion::pool::{HostView, Pool, Problem, SetUps};
use shoal_wire::{Address, Time};

use crate::control::api::{
    Avoided, Circuit, CircuitTotals, Circuits, CircuitsTo, ErrorCode, Reply,
};
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
    let Some(pool) = parts.node.pool() else { return Circuits { open, ..Circuits::default() } };
    let required = &parts.circuits.hidden;
    let mut hosts: Vec<CircuitsTo> =
        pool.views(now).iter().map(|view| to(parts, view, required)).collect();
    let without = required.iter().filter(|name| !hosts.iter().any(|to| to.host == **name));
    let without: Vec<CircuitsTo> = without
        .map(|name| CircuitsTo { host: name.clone(), required: true, ..CircuitsTo::default() })
        .collect();
    hosts.extend(without);
    let avoided = pool.avoided(now);
    let avoided =
        avoided.map(|(at, left)| Avoided { relay: name(parts, at), for_s: left.as_secs_f64() });
    let warnings = parts.circuits.warning().into_iter().collect();
    Circuits { hosts, avoided: avoided.collect(), open, warnings }
}

/// All of them together; `open` is their number as others may see it.
pub fn totals(parts: &Parts, open: u64) -> CircuitTotals {
    let pool = parts.node.pool();
    let SetUps { built, failed } = pool.map(Pool::set_ups).unwrap_or_default();
    let (cells, dropped) = parts.node.circuits.cells();
    CircuitTotals { own: pool.map_or(0, Pool::len) as u64, open, built, failed, cells, dropped }
}

/// What the list calls a node.
pub fn name(parts: &Parts, at: Address) -> String {
    let host = parts.names.hosts().by_address(at);
    host.map_or_else(|| at.to_string(), |host| host.name.clone())
}

fn to(parts: &Parts, view: &HostView, required: &BTreeSet<String>) -> CircuitsTo {
    let host = name(parts, view.to);
    let circuits = view.circuits.iter().map(|circuit| Circuit {
        state: circuit.role.as_str().into(),
        relays: circuit.relays.iter().map(|at| name(parts, *at)).collect(),
        age_s: circuit.age.as_secs_f64(),
        ends_in_s: circuit.left.map(|left| left.as_secs_f64()),
        rtt_us: circuit.rtt.map(|rtt| rtt.as_micros() as u64),
    });
    let first = view.circuits.first();
    CircuitsTo {
        required: required.contains(&host),
        circuits: circuits.collect(),
        known: first.and_then(|first| known(parts, &first.relays, view.to)),
        warnings: view.warnings.iter().map(ToString::to_string).collect(),
        problem: view.problem.map(|problem| problem_words(problem, &host)),
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

/// The problem, and what to look at.
pub fn problem_words(problem: Problem, host: &str) -> String {
    match problem {
        Problem::NoRelays => NoRelays.to_string(),
        Problem::Failed(n, wait) => format!(
            "{n} set-ups failed in a row, the next in {} s: do the relays and {host} run, and does \
             the host have a version with circuits?",
            wait.as_secs()
        ),
    }
}

/// Who knows what, where neither side's routers know both hosts.
fn known(parts: &Parts, relays: &[Address], to: Address) -> Option<String> {
    let router = |host: Address| Address::new(host.router, 0);
    let here: BTreeSet<Address> = [router(parts.config.address()), *relays.first()?].into();
    let there: BTreeSet<Address> = [router(to), *relays.last()?].into();
    if !here.is_disjoint(&there) {
        return None;
    }
    let host = name(parts, to);
    let words = |side: &BTreeSet<Address>| {
        let names: Vec<String> = side.iter().map(|at| name(parts, *at)).collect();
        let verb = if names.len() == 1 { "knows" } else { "know" };
        (names.join(" and "), verb)
    };
    let ((first, verb), (last, verb_there)) = (words(&here), words(&there));
    Some(format!(
        "{first} {verb} this host and not {host}, {last} {verb_there} {host} and not this host; \
         one of each side together know both, and so does who watches both ends"
    ))
}

#[cfg(test)]
mod tests {
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
}
