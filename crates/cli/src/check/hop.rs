//! `shoal check --hop-probe`: what the network around a node must do for addresses that hop, and
//! whether it does.

use anyhow::Result;
use serde::Serialize;
use shoal_daemon::config::Setup;
use shoal_daemon::control::api::{Command, HopProbed, Reply};

use crate::failure::{self, Failure};
use crate::options::Common;
use crate::output;
use crate::target::{ask, unexpected};

/// What was found.
#[derive(Serialize)]
struct Probed {
    /// `routed` or `segment`.
    mode: String,
    prefix: String,
    port: u16,
    neighbours: Vec<HopProbed>,
}

/// Says what must be let through and asks the running node, which asks its neighbours.
///
/// Errors: with a neighbour the prefix can't be used, or the node doesn't run.
pub fn probe(common: &Common, setup: &Setup) -> Result<()> {
    let config = &setup.config;
    let Some((prefix, port)) = config.hop_prefix().zip(config.hop_port()) else {
        let text = "addresses of this node don't hop: its file has no [hop]";
        return Err(Failure::of(failure::CONFIG, text));
    };
    let prefix = format!("{}/64", prefix.address());
    let mode = match ask(common, Command::Status)? {
        Reply::Status(status) => status.hop.map(|hop| hop.mode).unwrap_or_default(),
        other => return Err(unexpected(&other)),
    };
    let neighbours = match ask(common, Command::HopProbe)? {
        Reply::HopProbes(found) => found,
        other => return Err(unexpected(&other)),
    };
    let probed = Probed { mode, prefix, port, neighbours };
    if common.json {
        output::json("hop_probe", &probed)?;
    } else {
        probed.lines().iter().try_for_each(|line| output::line(line))?;
    }
    match probed.fault() {
        None => Ok(()),
        Some(text) => Err(Failure::of(failure::FAILED, text)),
    }
}

impl Probed {
    /// What is not in order, or not known to be.
    fn fault(&self) -> Option<String> {
        let count = |is: fn(&str) -> bool| {
            self.neighbours.iter().filter(|found| is(&found.outcome)).count()
        };
        let closed = count(|outcome| !["open", "moved"].contains(&outcome));
        let unknown = count(|outcome| outcome == "moved");
        match (closed, unknown) {
            (0, 0) => None,
            (0, unknown) => Some(format!("with {unknown} neighbours nothing is known yet")),
            (closed, _) => Some(format!("the prefix can't be used with {closed} neighbours")),
        }
    }

    fn lines(&self) -> Vec<String> {
        let Probed { mode, prefix, port, neighbours } = self;
        let way = match mode.as_str() {
            "segment" => "  machines of the segment have room for an entry per address in use \
                 (net.ipv6.neigh.default.gc_thresh3), and its switches don't bind addresses to \
                 ports"
                .into(),
            _ => format!(
                "  the router before this node routes the prefix to it: `ip -6 route add {prefix} \
                 via ADDRESS-OF-THE-NODE`"
            ),
        };
        let mut lines = vec![
            format!("addresses hop under {prefix}, UDP port {port}. What that needs:"),
            way,
            format!("  firewalls let UDP to and from port {port} of every address of it through"),
            "  filters of sources (BCP 38, RA guard, clouds) let packets from it out".into(),
        ];
        if neighbours.is_empty() {
            lines.push("no [[link]] of this node has `hop`: nobody could be asked".into());
        }
        lines.extend(
            neighbours
                .iter()
                .map(|found| format!("{}: {}", found.peer, words(found, mode == "segment"))),
        );
        lines
    }
}

fn words(found: &HopProbed, on_segment: bool) -> &'static str {
    match found.outcome.as_str() {
        "open" => "in order: what is sent to an address of the prefix comes, and from there leaves",
        "not_routed" if on_segment => {
            "nothing comes to the address, though packets from it leave: the address isn't on the \
             interface (see `shoal status`), or a neighbour table is full"
        }
        "closed" if on_segment => {
            "nothing comes to the address, and nothing from it arrives: the address isn't on the \
             interface (see `shoal status`), or a neighbour table is full"
        }
        "not_routed" => {
            "nothing comes to the prefix, though packets from it leave: the router before this \
             node does not route it here, or a firewall drops what comes to other addresses than \
             the node's own"
        }
        "filtered" => {
            "nothing that is sent from the prefix arrives, though packets to it come: a filter of \
             sources on the way out drops it"
        }
        "closed" => {
            "nothing comes to the prefix, and nothing from it arrives: the router before this node \
             does not know it, or filters and firewalls drop all of it"
        }
        "moved" => {
            "nothing is known yet: the prefix became another one during the probe, and the \
             neighbour may have sent to the former. Ask again"
        }
        "silent" => "the neighbour did not answer the probe: is it of an older version?",
        "down" => "there is no session with it now: see `shoal peers`",
        "alone" => "its addresses don't hop: it needs [hop], and `hop` in its [[link]]",
        _ => "this program is older than the node, and does not know what it found",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_outcome_has_words_of_its_own() {
        let outcomes = "open not_routed filtered closed moved silent down alone ?".split(' ');
        let outcomes: Vec<&str> = outcomes.collect();
        let found = |outcome: &str| HopProbed { peer: "r2".into(), outcome: outcome.into() };
        let words: std::collections::BTreeSet<_> =
            outcomes.iter().map(|outcome| words(&found(outcome), false)).collect();
        assert_eq!(words.len(), outcomes.len());
        let missing = "the address isn't on the interface (see `shoal status`), or a neighbour \
                       table is full";
        for outcome in outcomes {
            let of_segment = super::words(&found(outcome), true).contains(missing);
            assert_eq!(of_segment, ["not_routed", "closed"].contains(&outcome), "{outcome}");
        }
        let fault = |outcomes: &[&str]| {
            let neighbours = outcomes.iter().map(|outcome| found(outcome)).collect();
            let (mode, prefix) = (String::new(), String::new());
            Probed { mode, prefix, port: 7_400, neighbours }.fault()
        };
        assert_eq!(fault(&["open"]), None);
        assert!(fault(&["open", "moved"]).is_some_and(|said| said.contains("known yet")));
        assert!(fault(&["closed", "moved"]).is_some_and(|said| said.contains("used with 1")));
        let neighbours = vec![found("not_routed")];
        let (mode, prefix) = ("routed".into(), "2001:db8::/64".into());
        let probed = Probed { mode, prefix, port: 7_400, neighbours };
        let lines = probed.lines();
        assert!(lines[1].contains("ip -6 route add 2001:db8::/64"), "{lines:?}");
        let on_segment = Probed { mode: "segment".into(), ..probed };
        assert!(on_segment.lines()[1].contains("gc_thresh3"));
        assert!(on_segment.lines()[4].contains("neighbour table"), "{:?}", on_segment.lines());
        assert!(lines[4].starts_with("r2: nothing comes to the prefix"), "{lines:?}");
    }
}
