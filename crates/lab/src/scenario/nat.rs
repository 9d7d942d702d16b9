//! Translators of addresses, and pairs of hosts that stand behind them.

use std::collections::BTreeSet;

use serde::Deserialize;

use super::{Kind, Scenario};

/// Where a host stands that stands behind no translator.
pub const PUBLIC: &str = "public";
/// Most cells: each has two hosts and up to four translators in one network.
const CELLS_MAX: usize = 16;

/// Which outer port a flow gets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ports {
    /// The inner one while it is free: all see the host at one endpoint.
    #[default]
    Preserving,
    /// Any, another for each far endpoint.
    Random,
}

/// What becomes of packets from outside that belong to nothing from inside.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Input {
    /// They leave no trace.
    #[default]
    Drop,
    /// The translator takes them for its own programs and remembers the flow. One from inside that
    /// would look the same gets another port.
    Accept,
}

/// A kind of translator: a namespace with `masquerade`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Nat {
    /// Its name in `[[cell]]`.
    pub name: String,
    /// The kind behind which each of these stands.
    pub behind: Option<String>,
    /// Ports of flows.
    #[serde(default)]
    pub ports: Ports,
    /// Packets that nobody asked for.
    #[serde(default)]
    pub input: Input,
    /// Hosts behind it have a port of its own outside, and say so.
    #[serde(default)]
    pub mapped: bool,
    /// Packets from inside to such a port come in again.
    #[serde(default)]
    pub hairpin: bool,
}

/// Two hosts, and where they stand.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cell {
    /// A `[[nat]]` or `public` for each of the two.
    pub hosts: [String; 2],
    /// Both are behind the same one.
    #[serde(default)]
    pub same: bool,
    /// Whether they can have a link of their own; else routers relay, and the hosts say why.
    #[serde(default = "super::yes")]
    pub direct: bool,
    /// The second host wants no direct links: what routers alone give.
    #[serde(default)]
    pub off: bool,
    /// Shown, and not counted among those that can be direct.
    #[serde(default)]
    pub apart: bool,
}

impl Cell {
    /// The name of its case.
    pub fn name(&self) -> String {
        let [a, b] = &self.hosts;
        match (self.same, self.off) {
            (true, _) => format!("{a}, the same"),
            (_, true) => format!("{a} - {b}, routers only"),
            _ => format!("{a} - {b}"),
        }
    }

    /// Whether a link is expected, as part of the sum of all cells.
    pub fn counts(&self) -> bool {
        self.direct && !self.off && !self.apart
    }
}

/// Checks translators and cells.
///
/// Errors: section, its number, key, and what is wrong.
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
            return bad("name", "expected another one: it is there already, or is \"public\"");
        }
    }
    let is_kind = s.kind == Kind::Translators;
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
            return bad("hosts", format!("{:?} is there twice", cell.name()));
        }
    }
    Ok(())
}
