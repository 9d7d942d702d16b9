//! The section of circuits.

use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;
use shoal_directory::CircuitMode;

use super::Config;
use super::error::{ConfigError, Source};
use super::section::{Shown, section};

/// The greatest `max_added_ms`: what five relays with the longest mix add.
const ADDED_MAX_MS: u32 = 5_000;

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
        /// What the relays of a circuit may add in the mean, one way, in milliseconds, 0 to 5000:
        /// the first of the network's mixes that adds no more is used, and none where all add more,
        /// or this is 0. When absent, the first of all, as by other hosts: relays can tell a host
        /// that takes another from these.
        max_added_ms: Option<u32>, optional 40, reload no;
        /// Where this host keeps its guard and the relays that it stays with, so that a restart
        /// does not choose anew. Its user must be allowed to write there.
        guard_file: PathBuf = "circuits.guard".into(), reload no;
        /// Where this host keeps the keys of hosts that speak with it over circuits though the list
        /// does not require it, so that it does not call them in the clear after a restart; when
        /// absent, circuits.met in the folder of guard_file.
        met_file: Option<PathBuf>, optional "circuits.met".into(), reload no;
    }
}

impl Default for Circuits {
    fn default() -> Circuits {
        Circuits {
            policy: CircuitPolicy::Off,
            peers: None,
            relays: 3,
            max_added_ms: None,
            guard_file: "circuits.guard".into(),
            met_file: None,
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

    /// What the relays of a circuit may add in the mean, one way.
    pub fn max_added(&self) -> Option<Duration> {
        self.max_added_ms.map(|ms| Duration::from_millis(ms.into()))
    }

    /// Where the keys of hosts are kept that were met over circuits.
    pub fn met_file(&self) -> PathBuf {
        let beside = || self.guard_file.with_file_name("circuits.met");
        self.met_file.clone().unwrap_or_else(beside)
    }

    pub(super) fn check_values(
        &self,
        config: &Config,
        source: &Source<'_>,
    ) -> Result<(), ConfigError> {
        if let Some(ms) = self.max_added_ms.filter(|ms| *ms > ADDED_MAX_MS) {
            let text = format!("expected 0 to {ADDED_MAX_MS}, found {ms}: no five relays add more");
            return Err(source.wrong("circuits", None, "max_added_ms", text));
        }
        if self.met_file() == self.guard_file {
            let text = "is guard_file, too: expected another file";
            return Err(source.wrong("circuits", None, "met_file", text));
        }
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
