//! NATs, and pairs of hosts behind them.

use std::collections::BTreeSet;

use serde::Deserialize;

use super::{ExperimentKind, Scenario};

/// Name of the position behind no NAT.
pub const PUBLIC: &str = "public";
/// Limit of cells: each has two hosts and up to four NATs in one network.
const CELLS_MAX: usize = 16;

/// Mapping of flows to outer ports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NatPortMapping {
    /// The inner port while it is free: the host has one endpoint for all peers.
    #[default]
    Preserving,
    /// A random port for each far endpoint.
    Random,
}

/// Handling of packets from outside that belong to no flow from inside.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum UnsolicitedInput {
    /// Dropped without a trace.
    #[default]
    Drop,
    /// Delivered to the NAT's own programs, and remembered as a flow. A flow from inside that would
    /// look the same gets another port.
    Accept,
}

/// A kind of NAT: a namespace with `masquerade`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NatKind {
    /// Name for `[[cell]]`.
    pub name: String,
    /// Kind of the NAT that each NAT of this kind is behind.
    pub behind: Option<String>,
    #[serde(default)]
    pub ports: NatPortMapping,
    #[serde(default)]
    pub input: UnsolicitedInput,
    /// True if each host behind the NAT has its own outer port, and announces it.
    #[serde(default)]
    pub mapped: bool,
    /// True if packets from inside to such an outer port come back in.
    #[serde(default)]
    pub hairpin: bool,
}

/// Two hosts, and their NATs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NatPair {
    /// A `[[nat]]` or `public` for each host.
    pub hosts: [String; 2],
    /// True if both hosts are behind one NAT.
    #[serde(default)]
    pub same: bool,
    /// True if the hosts can have a direct link. Otherwise routers relay, and the hosts state the
    /// reason.
    #[serde(default = "super::yes")]
    pub direct: bool,
    /// True if the second host refuses direct links: the pair then uses routers only.
    #[serde(default)]
    pub off: bool,
    /// True if the cell is shown, but not counted among those that can have a direct link.
    #[serde(default)]
    pub apart: bool,
}

impl NatPair {
    /// Name of the cell's case.
    pub fn name(&self) -> String {
        let [a, b] = &self.hosts;
        match (self.same, self.off) {
            (true, _) => format!("{a}, the same"),
            (_, true) => format!("{a} - {b}, routers only"),
            _ => format!("{a} - {b}"),
        }
    }

    /// True if a direct link is expected, and the cell counts in the sum of all cells.
    pub fn counts(&self) -> bool {
        self.direct && !self.off && !self.apart
    }
}

/// Checks NATs and cells. An error has the section, its number, the key, and the reason.
pub(super) fn check(s: &Scenario) -> Result<(), (&'static str, usize, &'static str, String)> {
    let mut names = BTreeSet::from([PUBLIC]);
    for (i, nat) in s.nats.iter().enumerate() {
        let bad = |key, text: &str| Err(("nat", i, key, text.to_owned()));
        if !shoal_daemon::membership::hosts::is_name(&nat.name) {
            return bad("name", shoal_daemon::membership::hosts::NAME_RULE);
        }
        let outer = s.nats[..i].iter().find(|outer| Some(&outer.name) == nat.behind.as_ref());
        if nat.behind.is_some() && outer.is_none_or(|outer| outer.behind.is_some()) {
            return bad("behind", "expected a [[nat]] above that is behind none");
        }
        if nat.behind.is_some() && nat.mapped {
            return bad("mapped", "a translator behind another has no port outside");
        }
        if nat.hairpin && !nat.mapped {
            return bad("hairpin", "expected mapped = true beside it");
        }
        if !names.insert(&nat.name) {
            return bad("name", "expected another name: this one exists, or is \"public\"");
        }
    }
    let is_kind = s.kind == ExperimentKind::Translators;
    if is_kind == s.cells.is_empty() || (!is_kind && !s.nats.is_empty()) {
        let text = "expected with kind = \"translators\", and only there";
        return Err(("cell", 0, "hosts", text.into()));
    }
    if s.cells.len() > CELLS_MAX {
        return Err(("cell", CELLS_MAX, "hosts", format!("expected at most {CELLS_MAX} cells")));
    }
    let mut cells = BTreeSet::new();
    for (i, cell) in s.cells.iter().enumerate() {
        let bad = |key, text: String| Err(("cell", i, key, text));
        if let Some(name) = cell.hosts.iter().find(|name| !names.contains(name.as_str())) {
            return bad("hosts", format!("there is no [[nat]] {name:?}"));
        }
        if cell.same && (cell.hosts[0] != cell.hosts[1] || cell.hosts[0] == PUBLIC) {
            return bad("same", "expected the same [[nat]] for both hosts".into());
        }
        if !cells.insert(cell.name()) {
            return bad("hosts", format!("{:?} is defined twice", cell.name()));
        }
    }
    Ok(())
}
