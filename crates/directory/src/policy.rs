//! The authority's policy: access between members (docs/guide/authority.md).
//!
//! ```toml
//! [[allow]]
//! from = "staff"            # a group, or "*" for every member
//! to = "servers"
//! proto = "tcp"             # tcp, udp, icmp, ping, files or any
//! ports = [22, "8000-8080"] # tcp and udp only; absent means all
//! ```
//!
//! The policy also has the rules `[[circuits]]` and the network's `[[mix]]` and `[[cover]]`: see
//! `circuits.rs`, `mixes.rs` and `cover.rs`.
//!
//! Members of a common group have all rights towards each other. Other members have only the rights
//! that rules allow.

use core::fmt;
use std::collections::BTreeSet;

use serde::Deserialize;
use toml::Spanned;

use crate::access::{Access, PortRange};
use crate::circuits::{CircuitMode, CircuitRules, CircuitText, RuleSubject};
use crate::cover::{TierText, Tiers};
use crate::mixes::{MixText, Mixes};
use crate::{EntryError, Member, is_name};

/// Maximum number of rules of a policy, of each kind.
pub const RULES_MAX: usize = 1_024;
/// Maximum number of port entries per rule.
const PORTS_MAX: usize = 64;

/// A fault in a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyError {
    /// Line, counted from 1.
    pub line: usize,
    /// The expected and the found value.
    pub message: String,
}

impl fmt::Display for PolicyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.message)
    }
}

impl std::error::Error for PolicyError {}

/// A checked policy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    rules: Vec<Rule>,
    circuits: CircuitRules,
    mixes: Mixes,
    tiers: Tiers,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Rule {
    from: RuleSide,
    to: RuleSide,
    what: AllowedTraffic,
}

/// The members on one side of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RuleSide {
    Everybody,
    Group(String),
}

impl RuleSide {
    /// True if the rule applies to a member with these sorted groups.
    pub(crate) fn holds(&self, groups: &[String]) -> bool {
        match self {
            RuleSide::Everybody => true,
            RuleSide::Group(group) => groups.binary_search(group).is_ok(),
        }
    }

    /// The group; `None` for everybody.
    pub(crate) fn group(&self) -> Option<&str> {
        match self {
            RuleSide::Everybody => None,
            RuleSide::Group(name) => Some(name),
        }
    }
}

/// Traffic that a rule allows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AllowedTraffic {
    Everything,
    Ping,
    Files,
    Icmp,
    Tcp(Vec<PortRange>),
    Udp(Vec<PortRange>),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PolicyFile {
    #[serde(default)]
    allow: Vec<Spanned<AllowEntry>>,
    #[serde(default)]
    circuits: Vec<CircuitText>,
    #[serde(default)]
    mix: Vec<MixText>,
    #[serde(default)]
    cover: Vec<TierText>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AllowEntry {
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

/// Byte offset and description of a fault.
pub(crate) type PolicyFault = (usize, String);

impl Policy {
    /// Parses a policy. The empty text is a policy: all rights within groups, none between them.
    pub fn parse(text: &str) -> Result<Policy, PolicyError> {
        let at = |offset: usize, message: String| {
            let before = &text.as_bytes()[..offset.min(text.len())];
            let line = 1 + before.iter().filter(|byte| **byte == b'\n').count();
            PolicyError { line, message }
        };
        let file: PolicyFile = toml::from_str(text).map_err(|error| {
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

    /// Groups named in rules.
    pub fn groups(&self) -> BTreeSet<&str> {
        let sides = self.rules.iter().flat_map(|rule| [&rule.from, &rule.to]);
        sides.filter_map(RuleSide::group).chain(self.circuits.groups()).collect()
    }

    /// Members named in rules.
    pub fn members(&self) -> BTreeSet<&str> {
        self.circuits.members()
    }

    /// Number of rules.
    pub fn len(&self) -> usize {
        self.rules.len() + self.circuits.len()
    }

    /// True if there are no rules.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Mode of circuits between two members; off if one of them is a router.
    pub fn circuits(&self, a: &Member, b: &Member) -> CircuitMode {
        if a.address.is_router() || b.address.is_router() {
            return CircuitMode::Off;
        }
        self.circuits.mode(party(a), party(b))
    }

    /// Strategies of relays for the cells of circuits.
    pub fn mixes(&self) -> &Mixes {
        &self.mixes
    }

    /// Schedules of links between hosts and their routers.
    pub fn tiers(&self) -> &Tiers {
        &self.tiers
    }

    /// Rights of `from` towards `to`.
    pub fn access(&self, from: &Member, to: &Member) -> Access {
        let is_in = |member: &Member, group: &String| member.groups.binary_search(group).is_ok();
        if from.groups.iter().any(|group| is_in(to, group)) {
            return Access::everything();
        }
        let fits = |side: &RuleSide, member: &Member| side.holds(&member.groups);
        let mut access = Access::default();
        for rule in self.rules.iter().filter(|r| fits(&r.from, from) && fits(&r.to, to)) {
            access.allow(&rule.what);
        }
        access
    }
}

fn party(member: &Member) -> RuleSubject<'_> {
    RuleSubject { name: &member.name, groups: &member.groups }
}

fn rule(entry: AllowEntry) -> Result<Rule, PolicyFault> {
    let (proto_at, proto) = (entry.proto.span().start, entry.proto.into_inner());
    if let Some(ports) = entry.ports.as_ref().filter(|_| proto != "tcp" && proto != "udp") {
        return Err((ports.span().start, format!("{proto:?} has no ports")));
    }
    let ports = match entry.ports {
        None => vec![PortRange::ALL],
        Some(list) => ports(list)?,
    };
    let what = match proto.as_str() {
        "any" => AllowedTraffic::Everything,
        "ping" => AllowedTraffic::Ping,
        "files" => AllowedTraffic::Files,
        "icmp" => AllowedTraffic::Icmp,
        "tcp" => AllowedTraffic::Tcp(ports),
        "udp" => AllowedTraffic::Udp(ports),
        other => {
            let text = format!("proto {other:?}: expected tcp, udp, icmp, ping, files or any");
            return Err((proto_at, text));
        }
    };
    Ok(Rule { from: side(entry.from)?, to: side(entry.to)?, what })
}

/// Parses one side of a rule.
pub(crate) fn side(text: Spanned<String>) -> Result<RuleSide, PolicyFault> {
    let at = text.span().start;
    match text.into_inner() {
        star if star == "*" => Ok(RuleSide::Everybody),
        name if is_name(&name) => Ok(RuleSide::Group(name)),
        other => Err((at, format!("{other:?}: expected the name of a group, or \"*\" for all"))),
    }
}

fn ports(list: Spanned<Vec<Spanned<Port>>>) -> Result<Vec<PortRange>, PolicyFault> {
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
                return Err((
                    at,
                    format!("{first}-{last}: the first port is greater than the last"),
                ));
            }
            Ok(PortRange { first, last })
        })
        .collect()
}

#[cfg(test)]
mod tests;
