//! The section of circuits.

use std::path::PathBuf;

use serde::Deserialize;
use shoal_directory::CircuitMode;

use super::Config;
use super::error::{ConfigError, Source};
use super::section::{Shown, section};

/// Whether this host asks for circuits by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CircuitPolicy {
    /// Circuits only where the network's list requires them.
    #[default]
    Off,
    /// Nothing leaves outside a circuit.
    Require,
}

impl From<CircuitPolicy> for CircuitMode {
    fn from(policy: CircuitPolicy) -> CircuitMode {
        match policy {
            CircuitPolicy::Off => CircuitMode::Off,
            CircuitPolicy::Require => CircuitMode::Require,
        }
    }
}

impl Shown for CircuitPolicy {
    fn shown(&self) -> String {
        format!("{:?}", CircuitMode::from(*self).as_str())
    }
}

section! {
    /// Circuits: what this host and another say to each other goes over relays that know two
    /// neighbours each; docs/circuits.md says what that hides from whom. A router begins none,
    /// whatever stands here; it carries them if the list calls it a relay.
    #[on = serde(default)]
    pub struct Circuits {
        /// "off", or "require": nothing that this host and another say to each other leaves outside
        /// a circuit. Where the list of the network requires circuits, "off" changes nothing.
        policy: CircuitPolicy = CircuitPolicy::Off, reload no;
        /// Hosts with which the policy holds, by name; when absent, with every host. It also holds
        /// with every host while the list has none of one of these names: it may have another now.
        peers: Option<Vec<String>>, optional vec!["bob".into()], reload no;
        /// Relays of each circuit that this host begins. One relay knows both hosts. More are
        /// slower; from two on, the first and the last know the pair if they work together.
        relays: u8 = 3, in 1 ..= 5, reload no;
        /// Where this host keeps its guard and the relays that it stays with, so that a restart
        /// does not choose anew. Its user must be allowed to write there.
        guard_file: PathBuf = "circuits.guard".into(), reload no;
    }
}

impl Default for Circuits {
    fn default() -> Circuits {
        Circuits {
            policy: CircuitPolicy::Off,
            peers: None,
            relays: 3,
            guard_file: "circuits.guard".into(),
        }
    }
}

impl Circuits {
    /// What this host asks for, as far as the host called `name` is concerned and all `peers` are
    /// in the list.
    pub fn mode(&self, name: &str) -> CircuitMode {
        match &self.peers {
            Some(peers) if !peers.iter().any(|peer| peer == name) => CircuitMode::Off,
            _ => self.policy.into(),
        }
    }

    pub(super) fn check_values(
        &self,
        config: &Config,
        source: &Source<'_>,
    ) -> Result<(), ConfigError> {
        let wrong = |text: String| Err(source.wrong("circuits", None, "peers", text));
        if self.peers.as_ref().is_some_and(Vec::is_empty) {
            return wrong("expected names; for all hosts take peers out".into());
        }
        for name in self.peers.iter().flatten() {
            if !crate::membership::hosts::is_name(name) {
                return wrong(format!("{name:?}: {}", crate::membership::hosts::NAME_RULE));
            }
            if *name == config.node.name {
                return wrong(format!("{name:?} is this node: expected other hosts"));
            }
        }
        Ok(())
    }
}
