//! `shoal check --shift-probe`: checks whether the network lets addresses that shift through.

use anyhow::Result;
use serde::Serialize;
use shoal_daemon::config::NodeSetup;
use shoal_daemon::control::api::{Command, ControlReply, ShiftProbeResult};

use crate::failure::{self, ExitError};
use crate::options::CommonOptions;
use crate::output;
use crate::target::{ask, unexpected};

#[derive(Serialize)]
struct ShiftProbeReport {
    /// `routed` or `segment`.
    mode: String,
    prefix: String,
    port: u16,
    neighbours: Vec<ShiftProbeResult>,
}

/// Prints what the network must let through, and has the running node probe its neighbours.
///
/// Errors: the prefix can't be used with a neighbour, or the node doesn't run.
pub fn probe(common: &CommonOptions, setup: &NodeSetup) -> Result<()> {
    let config = &setup.config;
    let Some((prefix, port)) = config.shift_prefix().zip(config.shift_port()) else {
        let text = "addresses of this node don't shift: its file has no [shift]";
        return Err(ExitError::of(failure::CONFIG, text));
    };
    let prefix = format!("{}/64", prefix.address());
    let mode = match ask(common, Command::Status)? {
        ControlReply::Status(status) => status.shift.map(|shift| shift.mode).unwrap_or_default(),
        other => return Err(unexpected(&other)),
    };
    let neighbours = match ask(common, Command::ShiftProbe)? {
        ControlReply::ShiftProbes(found) => found,
        other => return Err(unexpected(&other)),
    };
    let probed = ShiftProbeReport { mode, prefix, port, neighbours };
    if common.json {
        output::json("shift_probe", &probed)?;
    } else {
        probed.lines().iter().try_for_each(|line| output::line(line))?;
    }
    match probed.fault() {
        None => Ok(()),
        Some(text) => Err(ExitError::of(failure::FAILED, text)),
    }
}

impl ShiftProbeReport {
    /// Number of neighbours with which the prefix fails or is not tested yet, in words.
    fn fault(&self) -> Option<String> {
        let count = |is: fn(&str) -> bool| {
            self.neighbours.iter().filter(|found| is(&found.outcome)).count()
        };
        let closed = count(|outcome| !["open", "moved"].contains(&outcome));
        let unknown = count(|outcome| outcome == "moved");
        match (closed, unknown) {
            (0, 0) => None,
            (0, unknown) => Some(format!("no result is known yet with {unknown} neighbours")),
            (closed, _) => Some(format!("the prefix can't be used with {closed} neighbours")),
        }
    }

    fn lines(&self) -> Vec<String> {
        let ShiftProbeReport { mode, prefix, port, neighbours } = self;
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
            format!("addresses shift under {prefix}, UDP port {port}. What that needs:"),
            way,
            format!("  firewalls pass UDP to and from port {port} of every address of the prefix"),
            "  source filters (BCP 38, RA guard, clouds) pass packets from the prefix".into(),
        ];
        if neighbours.is_empty() {
            lines.push("no [[link]] of this node has `shift`: no neighbour was probed".into());
        }
        lines.extend(
            neighbours
                .iter()
                .map(|found| format!("{}: {}", found.peer, words(found, mode == "segment"))),
        );
        lines
    }
}

fn words(found: &ShiftProbeResult, on_segment: bool) -> &'static str {
    match found.outcome.as_str() {
        "open" => "ok: packets to and from addresses of the prefix get through",
        "not_routed" if on_segment => {
            "packets from the address get through, but none to it arrive: the address isn't on the \
             interface (see `shoal status`), or a neighbour table is full"
        }
        "closed" if on_segment => {
            "no packets get through, neither to the address nor from it: the address isn't on the \
             interface (see `shoal status`), or a neighbour table is full"
        }
        "not_routed" => {
            "packets from the prefix get through, but none to it arrive: the router before this \
             node does not route it here, or a firewall drops packets to addresses other than \
             the node's own"
        }
        "filtered" => {
            "packets to the prefix arrive, but none from it get through: a source filter \
             on the way out drops them"
        }
        "closed" => {
            "no packets get through, neither to the prefix nor from it: the router before this \
             node does not know it, or filters and firewalls drop them"
        }
        "moved" => {
            "no result yet: the prefix changed during the probe, and the \
             neighbour may have sent to the former one. Repeat the probe"
        }
        "silent" => "the neighbour did not answer the probe: is it of an older version?",
        "down" => "no session with the neighbour: see `shoal peers`",
        "alone" => {
            "the neighbour's addresses don't shift: it needs [shift], and `shift` in its [[link]]"
        }
        _ => "this program is older than the node, and does not know its answer",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_outcome_has_words_of_its_own() {
        let outcomes = "open not_routed filtered closed moved silent down alone ?".split(' ');
        let outcomes: Vec<&str> = outcomes.collect();
        let found = |outcome: &str| ShiftProbeResult { peer: "r2".into(), outcome: outcome.into() };
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
            ShiftProbeReport { mode, prefix, port: 7_400, neighbours }.fault()
        };
        assert_eq!(fault(&["open"]), None);
        assert!(fault(&["open", "moved"]).is_some_and(|said| said.contains("known yet")));
        assert!(fault(&["closed", "moved"]).is_some_and(|said| said.contains("used with 1")));
        let neighbours = vec![found("not_routed")];
        let (mode, prefix) = ("routed".into(), "2001:db8::/64".into());
        let probed = ShiftProbeReport { mode, prefix, port: 7_400, neighbours };
        let lines = probed.lines();
        assert!(lines[1].contains("ip -6 route add 2001:db8::/64"), "{lines:?}");
        let on_segment = ShiftProbeReport { mode: "segment".into(), ..probed };
        assert!(on_segment.lines()[1].contains("gc_thresh3"));
        assert!(on_segment.lines()[4].contains("neighbour table"), "{:?}", on_segment.lines());
        assert!(lines[4].starts_with("r2: packets from the prefix get through"), "{lines:?}");
    }
}
