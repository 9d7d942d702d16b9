//! Who may reach whom, as the authority writes it (docs/authority.md section 4).
//!
//! ```toml
//! [[allow]]
//! from = "staff"            # a group, or "*" for every member
//! to = "servers"
//! proto = "tcp"             # tcp, udp, icmp, ping, files or any
//! ports = [22, "8000-8080"] # tcp and udp only; absent means all
//! ```
//!
//! Rules `[[circuits]]` and the network's `[[mix]]` and `[[cover]]` stand beside these: see
//! `circuits.rs`, `mixes.rs` and `cover.rs`.
//!
//! Members that share a group may do everything with each other; between others nothing is allowed
//! but what a rule allows.

use core::fmt;
use std::collections::BTreeSet;

use serde::Deserialize;
use toml::Spanned;

use crate::access::{Access, PortRange};
use crate::circuits::{CircuitMode, CircuitRules, CircuitText, Party};
use crate::cover::{TierText, Tiers};
use crate::mixes::{MixText, Mixes};
use crate::{EntryError, Member, is_name};

/// Most rules of one policy, of each kind.
pub const RULES_MAX: usize = 1_024;
/// Most entries in the ports of one rule.
const PORTS_MAX: usize = 64;

/// What is wrong with a policy, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyError {
    /// The line, counted from 1.
    pub line: usize,
    /// What was expected, and what was found.
    pub message: String,
}

impl fmt::Display for PolicyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.message)
    }
}

impl std::error::Error for PolicyError {}

/// A policy, read and checked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    rules: Vec<Rule>,
    circuits: CircuitRules,
    mixes: Mixes,
    tiers: Tiers,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Rule {
    from: Side,
    to: Side,
    what: What,
}

/// Whom a rule is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Everybody,
    Group(String),
}

impl Side {
    /// Whether it is about a member with these groups, which ascend.
    pub(crate) fn holds(&self, groups: &[String]) -> bool {
        match self {
            Side::Everybody => true,
            Side::Group(group) => groups.binary_search(group).is_ok(),
        }
    }

    /// The group, if it is about one.
    pub(crate) fn group(&self) -> Option<&str> {
        match self {
            Side::Everybody => None,
            Side::Group(name) => Some(name),
        }
    }
}

/// What a rule allows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum What {
    Everything,
    Ping,
    Files,
    Icmp,
    Tcp(Vec<PortRange>),
    Udp(Vec<PortRange>),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    allow: Vec<Spanned<Entry>>,
    #[serde(default)]
    circuits: Vec<CircuitText>,
    #[serde(default)]
    mix: Vec<MixText>,
    #[serde(default)]
    cover: Vec<TierText>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    from: Spanned<String>,
    to: Spanned<String>,
    proto: Spanned<String>,
    ports: Option<Spanned<Vec<Spanned<Port>>>>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Port {
    Number(i64),
    Text(String),
}

/// A fault at a byte offset of the text.
pub(crate) type Fault = (usize, String);

impl Policy {
    /// Reads a policy. The empty text is one: within groups everything, between them nothing.
    pub fn parse(text: &str) -> Result<Policy, PolicyError> {
        let at = |offset: usize, message: String| {
            let before = &text.as_bytes()[..offset.min(text.len())];
            let line = 1 + before.iter().filter(|byte| **byte == b'\n').count();
            PolicyError { line, message }
        };
        let file: File = toml::from_str(text).map_err(|error| {
            at(error.span().map_or(0, |span| span.start), error.message().trim().to_owned())
        })?;
        if let Some(first) = file.allow.get(RULES_MAX) {
            let text = format!("expected at most {RULES_MAX} rules, found {}", file.allow.len());
            return Err(at(first.span().start, text));
        }
        let rules = file.allow.into_iter().map(|entry| rule(entry.into_inner()));
        let rules = rules.collect::<Result<_, _>>().map_err(|(offset, text)| at(offset, text))?;
        let entry = |error: EntryError| at(error.offset, error.message);
        let circuits = CircuitRules::check(file.circuits).map_err(entry)?;
        let mixes = Mixes::check(file.mix).map_err(entry)?;
        let tiers = Tiers::check(file.cover).map_err(entry)?;
        Ok(Policy { rules, circuits, mixes, tiers })
    }

    /// Groups that rules name.
    pub fn groups(&self) -> BTreeSet<&str> {
        let sides = self.rules.iter().flat_map(|rule| [&rule.from, &rule.to]);
        sides.filter_map(Side::group).chain(self.circuits.groups()).collect()
    }

    /// Members that rules name.
    pub fn members(&self) -> BTreeSet<&str> {
        self.circuits.members()
    }

    /// How many rules there are.
    pub fn len(&self) -> usize {
        self.rules.len() + self.circuits.len()
    }

    /// True when there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether two members speak over circuits; off where one of them is a router.
    pub fn circuits(&self, a: &Member, b: &Member) -> CircuitMode {
        if a.address.is_router() || b.address.is_router() {
            return CircuitMode::Off;
        }
        self.circuits.mode(party(a), party(b))
    }

    /// What relays may do with the cells of circuits.
    pub fn mixes(&self) -> &Mixes {
        &self.mixes
    }

    /// Schedules of links between hosts and their routers.
    pub fn tiers(&self) -> &Tiers {
        &self.tiers
    }

    /// What `from` may begin with `to`.
    pub fn access(&self, from: &Member, to: &Member) -> Access {
        let is_in = |member: &Member, group: &String| member.groups.binary_search(group).is_ok();
        if from.groups.iter().any(|group| is_in(to, group)) {
            return Access::everything();
        }
        let fits = |side: &Side, member: &Member| side.holds(&member.groups);
        let mut access = Access::default();
        for rule in self.rules.iter().filter(|r| fits(&r.from, from) && fits(&r.to, to)) {
            access.allow(&rule.what);
        }
        access
    }
}

fn party(member: &Member) -> Party<'_> {
    Party { name: &member.name, groups: &member.groups }
}

fn rule(entry: Entry) -> Result<Rule, Fault> {
    let (proto_at, proto) = (entry.proto.span().start, entry.proto.into_inner());
    if let Some(ports) = entry.ports.as_ref().filter(|_| proto != "tcp" && proto != "udp") {
        return Err((ports.span().start, format!("{proto:?} has no ports")));
    }
    let ports = match entry.ports {
        None => vec![PortRange::ALL],
        Some(list) => ports(list)?,
    };
    let what = match proto.as_str() {
        "any" => What::Everything,
        "ping" => What::Ping,
        "files" => What::Files,
        "icmp" => What::Icmp,
        "tcp" => What::Tcp(ports),
        "udp" => What::Udp(ports),
        other => {
            let text = format!("proto {other:?}: expected tcp, udp, icmp, ping, files or any");
            return Err((proto_at, text));
        }
    };
    Ok(Rule { from: side(entry.from)?, to: side(entry.to)?, what })
}

/// Whom `text` names.
pub(crate) fn side(text: Spanned<String>) -> Result<Side, Fault> {
    let at = text.span().start;
    match text.into_inner() {
        star if star == "*" => Ok(Side::Everybody),
        name if is_name(&name) => Ok(Side::Group(name)),
        other => Err((at, format!("{other:?}: expected the name of a group, or \"*\" for all"))),
    }
}

fn ports(list: Spanned<Vec<Spanned<Port>>>) -> Result<Vec<PortRange>, Fault> {
    let at = list.span().start;
    let list = list.into_inner();
    if list.is_empty() || list.len() > PORTS_MAX {
        return Err((at, format!("expected 1 to {PORTS_MAX} ports or ranges")));
    }
    list.into_iter()
        .map(|port| {
            let at = port.span().start;
            let wrong = || (at, "expected a port (22) or a range (\"8000-8080\")".to_owned());
            let number = |text: &str| text.trim().parse::<u16>().ok();
            let (first, last) = match port.into_inner() {
                Port::Number(n) => {
                    let n = u16::try_from(n).map_err(|_| wrong())?;
                    (n, n)
                }
                Port::Text(text) => {
                    let (first, last) = text.split_once('-').unwrap_or((&text, &text));
                    (number(first).ok_or_else(wrong)?, number(last).ok_or_else(wrong)?)
                }
            };
            if first > last {
                return Err((at, format!("{first}-{last}: the first port is the greater one")));
            }
            Ok(PortRange { first, last })
        })
        .collect()
}

#[cfg(test)]
mod tests;
