//! Rules on which hosts must use circuits, as in policies and hosts files.
//!
//! ```toml
//! [[circuits]]
//! between = ["staff", "*"]      # two groups, "*" for every member
//! mode = "require"              # or "off"
//!
//! [[circuits]]
//! members = ["alice", "bob"]    # two members by name: counts more than groups
//! mode = "off"
//! ```
//!
//! Rules hold in both directions, and for hosts only: a circuit ends at a host. A rule about a pair
//! of members takes precedence over rules about groups. Among rules of one kind the strictest
//! counts. Without a matching rule the mode is off.

use std::collections::BTreeSet;

use serde::Deserialize;
use toml::Spanned;

use crate::policy::{RuleSide, side};
use crate::{EntryError, RULES_MAX};

/// Use of circuits between two hosts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum CircuitMode {
    /// No circuits.
    #[default]
    Off,
    /// All traffic between the two hosts uses circuits. The stricter mode.
    Require,
}

impl CircuitMode {
    /// The mode as written in files.
    pub const fn as_str(self) -> &'static str {
        match self {
            CircuitMode::Off => "off",
            CircuitMode::Require => "require",
        }
    }
}

/// A rule as written in a file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CircuitText {
    between: Option<Spanned<Vec<Spanned<String>>>>,
    members: Option<Spanned<Vec<Spanned<String>>>>,
    mode: Spanned<String>,
}

/// A host's properties that rules refer to.
#[derive(Clone, Copy, Debug)]
pub struct RuleSubject<'a> {
    pub name: &'a str,
    /// The host's groups, sorted.
    pub groups: &'a [String],
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum RuleScope {
    Groups([RuleSide; 2]),
    Members([String; 2]),
}

/// Checked rules on circuits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CircuitRules {
    rules: Vec<(RuleScope, CircuitMode)>,
}

impl CircuitRules {
    /// Checks rules from a file.
    ///
    /// # Errors
    /// The first fault, with its rule, key and position in the file. Faults are: an unknown mode, a
    /// number of sides other than two, an invalid name, one member twice, or more than
    /// [`RULES_MAX`] rules.
    pub fn check(texts: Vec<CircuitText>) -> Result<CircuitRules, EntryError> {
        if texts.len() > RULES_MAX {
            return Err(EntryError {
                index: RULES_MAX,
                key: "mode",
                offset: texts[RULES_MAX].mode.span().start,
                message: format!("expected at most {RULES_MAX} rules, found {}", texts.len()),
            });
        }
        let rules = texts.into_iter().enumerate().map(|(index, text)| {
            rule(text).map_err(|(key, offset, message)| EntryError { index, key, offset, message })
        });
        Ok(CircuitRules { rules: rules.collect::<Result<_, _>>()? })
    }

    /// The mode between two hosts, whichever begins.
    pub fn mode(&self, a: RuleSubject<'_>, b: RuleSubject<'_>) -> CircuitMode {
        let by_name = self.rules.iter().filter(|(pair, _)| match pair {
            RuleScope::Members([x, y]) => {
                (x == a.name && y == b.name) || (x == b.name && y == a.name)
            }
            RuleScope::Groups(_) => false,
        });
        let by_group = || {
            self.rules.iter().filter(|(pair, _)| match pair {
                RuleScope::Groups([x, y]) => {
                    (x.holds(a.groups) && y.holds(b.groups))
                        || (x.holds(b.groups) && y.holds(a.groups))
                }
                RuleScope::Members(_) => false,
            })
        };
        let strictest = by_name.map(|(_, mode)| *mode).max();
        strictest.or_else(|| by_group().map(|(_, mode)| *mode).max()).unwrap_or_default()
    }

    /// Number of rules.
    pub fn len(&self) -> usize {
        self.rules.len()
    }

    /// True if there are no rules.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// Groups named in rules.
    pub fn groups(&self) -> BTreeSet<&str> {
        let sides = self.rules.iter().filter_map(|(pair, _)| match pair {
            RuleScope::Groups(sides) => Some(sides),
            RuleScope::Members(_) => None,
        });
        sides.flatten().filter_map(RuleSide::group).collect()
    }

    /// Members named in rules.
    pub fn members(&self) -> BTreeSet<&str> {
        let pairs = self.rules.iter().filter_map(|(pair, _)| match pair {
            RuleScope::Members(names) => Some(names),
            RuleScope::Groups(_) => None,
        });
        pairs.flatten().map(String::as_str).collect()
    }
}

/// Checks one rule. Errors: the key at fault, its offset in bytes, and the reason.
fn rule(text: CircuitText) -> Result<(RuleScope, CircuitMode), (&'static str, usize, String)> {
    let CircuitText { between, members, mode } = text;
    let (at, mode) = (mode.span().start, mode.into_inner());
    let mode = match mode.as_str() {
        "off" => CircuitMode::Off,
        "require" => CircuitMode::Require,
        other => return Err(("mode", at, format!("{other:?}: expected \"off\" or \"require\""))),
    };
    let two = |key, list: Spanned<Vec<Spanned<String>>>| {
        let at = list.span().start;
        let two: Result<[_; 2], _> = list.into_inner().try_into();
        two.map_err(|found: Vec<_>| (key, at, format!("expected two names, found {}", found.len())))
    };
    match (between, members) {
        (Some(list), None) => {
            let [a, b] = two("between", list)?;
            let side = |text| side(text).map_err(|(at, message)| ("between", at, message));
            Ok((RuleScope::Groups([side(a)?, side(b)?]), mode))
        }
        (None, Some(list)) => {
            let [a, b] = two("members", list)?;
            let at = b.span().start;
            let (a, b) = (a.into_inner(), b.into_inner());
            for name in [&a, &b] {
                if !crate::is_name(name) {
                    return Err(("members", at, format!("{name:?}: expected a member's name")));
                }
            }
            if a == b {
                return Err(("members", at, format!("{a:?} is used twice: expected two members")));
            }
            Ok((RuleScope::Members([a, b]), mode))
        }
        _ => Err(("mode", at, "expected between = [two groups] or members = [two names]".into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(text: &str) -> Result<CircuitRules, EntryError> {
        #[derive(Deserialize)]
        struct File {
            circuits: Vec<CircuitText>,
        }
        let file: File = toml::from_str(text).unwrap();
        CircuitRules::check(file.circuits)
    }

    fn mode(rules: &CircuitRules, a: (&str, &[&str]), b: (&str, &[&str])) -> CircuitMode {
        let own = |groups: &[&str]| groups.iter().map(|g| g.to_string()).collect::<Vec<_>>();
        let (of_a, of_b) = (own(a.1), own(b.1));
        let (a, b) =
            (RuleSubject { name: a.0, groups: &of_a }, RuleSubject { name: b.0, groups: &of_b });
        let both = [rules.mode(a, b), rules.mode(b, a)];
        assert_eq!(both[0], both[1], "rules have no direction");
        both[0]
    }

    #[test]
    fn a_pair_counts_more_than_groups_and_the_stricter_more_than_the_other() {
        use CircuitMode::{Off, Require};
        let text = "\
            [[circuits]]\nbetween = [\"staff\", \"*\"]\nmode = \"require\"\n\
            [[circuits]]\nbetween = [\"*\", \"*\"]\nmode = \"off\"\n\
            [[circuits]]\nmembers = [\"alice\", \"bob\"]\nmode = \"off\"\n\
            [[circuits]]\nmembers = [\"carol\", \"dave\"]\nmode = \"require\"\n";
        let rules = rules(text).unwrap();
        let (alice, bob) = (("alice", &["staff"][..]), ("bob", &["staff"][..]));
        let (carol, dave) = (("carol", &["guests"][..]), ("dave", &[][..]));
        assert_eq!(mode(&rules, alice, carol), Require);
        assert_eq!(mode(&rules, alice, bob), Off, "by name");
        assert_eq!(mode(&rules, carol, dave), Require, "by name");
        assert_eq!(mode(&rules, carol, ("erin", &["guests"])), Off);
        assert_eq!(mode(&CircuitRules::default(), alice, bob), Off);
        assert_eq!(rules.groups().into_iter().collect::<Vec<_>>(), ["staff"]);
        assert_eq!(rules.members().len(), 4);
    }

    #[test]
    fn faults_name_the_rule_the_key_and_what_to_write() {
        let good = "[[circuits]]\nbetween = [\"a\", \"b\"]\nmode = \"off\"\n";
        for (text, key, words) in [
            ("between = [\"a\", \"b\"]\nmode = \"prefer\"", "mode", "\"off\" or \"require\""),
            ("between = [\"a\"]\nmode = \"off\"", "between", "two names, found 1"),
            ("between = [\"a\", \"b c\"]\nmode = \"off\"", "between", "name of a group"),
            ("members = [\"a\", \"*\"]\nmode = \"off\"", "members", "a member's name"),
            ("members = [\"a\", \"a\"]\nmode = \"off\"", "members", "is used twice"),
            ("mode = \"off\"", "mode", "expected between"),
            (
                "between = [\"a\", \"b\"]\nmembers = [\"a\", \"b\"]\nmode = \"off\"",
                "mode",
                "expected between",
            ),
        ] {
            let error = rules(&format!("{good}[[circuits]]\n{text}\n")).unwrap_err();
            assert_eq!((error.index, error.key), (1, key), "{error:?}");
            assert!(error.message.contains(words), "{error:?}");
            assert!(error.offset >= good.len());
        }
        let many = rules(&good.repeat(RULES_MAX + 1)).unwrap_err();
        assert!(many.message.contains("at most 1024"), "{many:?}");
    }
}
