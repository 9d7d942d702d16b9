//! The section `[circuits]`.

use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;
use shoal_directory::CircuitMode;

use super::NodeConfig;
use super::error::{ConfigError, ConfigSource};
use super::section::{ReferenceValue, section};

/// Greatest `max_added_ms`: five relays with the longest mix add this much.
const ADDED_MAX_MS: u32 = 5_000;

/// Policy of this host for circuits, beside the list's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CircuitPolicy {
    /// Uses circuits only where the network's list requires them.
    #[default]
    Off,
    /// Sends nothing to another host outside a circuit.
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

impl ReferenceValue for CircuitPolicy {
    fn shown(&self) -> String {
        format!("{:?}", CircuitMode::from(*self).as_str())
    }
}

section! {
    /// Circuits: traffic between this host and another goes over relays. Each relay knows only its
    /// two neighbours; docs/start/choose.md says what that hides from whom. Routers begin no
    /// circuits, whatever this section says. A router carries circuits if the list calls it a
    /// relay.
    #[on = serde(default)]
    pub struct CircuitsConfig {
        /// "off", or "require": all traffic between this host and others goes over circuits. Where
        /// the network's list requires circuits, "off" changes nothing.
        policy: CircuitPolicy = CircuitPolicy::Off, reload no;
        /// Names of the hosts with which the policy holds; when absent, with every host. If the
        /// list lacks one of these names, the policy holds with every host: the missing one may
        /// have a new name.
        peers: Option<Vec<String>>, optional vec!["bob".into()], reload no;
        /// Number of relays in each circuit that this host begins. A single relay knows both hosts.
        /// With two or more, the first and the last know the pair only if they cooperate. More
        /// relays are slower.
        relays: u8 = 3, in 1 ..= 5, reload no;
        /// Limit in milliseconds, 0 to 5000, for the mean delay that the relays of a circuit add,
        /// one way. The first of the network's mixes within the limit is used; none if all add
        /// more, or for 0. When absent, the list's first mix is used, as by other hosts. Relays can
        /// tell a host with another mix from the rest.
        max_added_ms: Option<u32>, optional 40, reload no;
        /// File in which this host keeps its guard and the relays that it stays with. A restart
        /// then chooses no others. The node's user must be allowed to write there.
        guard_file: PathBuf = "circuits.guard".into(), reload no;
        /// File with the keys of hosts that use circuits with this host although the list does not
        /// require them, and the day on which each first did. The node never calls such a host in
        /// the clear, even after a restart; `shoal circuits forget HOST` ends that. When absent,
        /// circuits.met in the folder of guard_file.
        met_file: Option<PathBuf>, optional "circuits.met".into(), reload no;
    }
}

impl Default for CircuitsConfig {
    fn default() -> CircuitsConfig {
        CircuitsConfig {
            policy: CircuitPolicy::Off,
            peers: None,
            relays: 3,
            max_added_ms: None,
            guard_file: "circuits.guard".into(),
            met_file: None,
        }
    }
}

impl CircuitsConfig {
    /// Mode that this file asks for with the host called `name`. Valid while the list has all
    /// `peers`.
    pub fn mode(&self, name: &str) -> CircuitMode {
        match &self.peers {
            Some(peers) if !peers.iter().any(|peer| peer == name) => CircuitMode::Off,
            _ => self.policy.into(),
        }
    }

    /// Limit for the mean delay that the relays of a circuit add, one way.
    pub fn max_added(&self) -> Option<Duration> {
        self.max_added_ms.map(|ms| Duration::from_millis(ms.into()))
    }

    /// File with the keys of hosts that were met over circuits.
    pub fn met_file(&self) -> PathBuf {
        let beside = || self.guard_file.with_file_name("circuits.met");
        self.met_file.clone().unwrap_or_else(beside)
    }

    pub(super) fn check_values(
        &self,
        config: &NodeConfig,
        source: &ConfigSource<'_>,
    ) -> Result<(), ConfigError> {
        if let Some(ms) = self.max_added_ms.filter(|ms| *ms > ADDED_MAX_MS) {
            let text = format!("expected 0 to {ADDED_MAX_MS}, found {ms}: five relays add less");
            return Err(source.wrong("circuits", None, "max_added_ms", text));
        }
        if self.met_file() == self.guard_file {
            let text = "is guard_file, too: expected another file";
            return Err(source.wrong("circuits", None, "met_file", text));
        }
        let wrong = |text: String| Err(source.wrong("circuits", None, "peers", text));
        if self.peers.as_ref().is_some_and(Vec::is_empty) {
            return wrong("expected names; for all hosts, remove peers".into());
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
