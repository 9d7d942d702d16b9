//! The section `[anonymity]`: one preset for circuits, mixes and cover.

use serde::Deserialize;
pub use shoal_directory::Preset;

use super::NodeConfig;
use super::circuits::CircuitPolicy;
use super::direct::DirectMode;
use super::error::{ConfigError, ConfigSource};
use super::section::{ReferenceValue, optional_section};

/// Presets other than "fast" promise circuits over at least this many relays.
pub const RELAYS_MIN: u8 = 3;

impl ReferenceValue for Preset {
    fn shown(&self) -> String {
        format!("{:?}", self.as_str())
    }
}

/// Policy for loops: cells that a host sends along its own circuits and back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LoopPolicy {
    /// Sends loops if the list gives this host a tier of Poisson cover.
    #[default]
    Auto,
    /// Always.
    On,
    /// Never.
    Off,
}

impl ReferenceValue for LoopPolicy {
    fn shown(&self) -> String {
        format!("{:?}", format!("{self:?}").to_lowercase())
    }
}

/// Reaction of a host that requires cover while its link is not covered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CoverLossPolicy {
    /// Sends no packets.
    #[default]
    Stop,
    /// Sends packets without cover.
    Send,
}

impl ReferenceValue for CoverLossPolicy {
    fn shown(&self) -> String {
        format!("{:?}", format!("{self:?}").to_lowercase())
    }
}

optional_section! {
    /// Hides this host by one word for circuits, mixes and cover. docs/start/choose.md says from
    /// whom, and at what price. Routers ignore this section: circuits begin at hosts.
    pub struct Anonymity {
        /// "fast": what the network's list requires, and no more. "balanced": hosts are reached
        /// over circuits only, the network's mixes are used whatever delay they add, and direct
        /// links are off. "hidden": as "balanced", and the node starts only if the list gives this
        /// host a tier of cover. Keys about circuits and direct links that ask for less are errors.
        /// If the network's list has a preset, too, the stricter of the two counts.
        preset: Preset = Preset::Fast, reload no;
        /// Policy for loops: cells that go along this host's circuits and back at random times.
        /// Missing or late ones reveal relays that drop or hold cells. "on", "off", or "auto": on
        /// if the list gives this host a tier of cover with the schedule "poisson".
        loops: LoopPolicy = LoopPolicy::Auto, reload no;
        /// Behaviour of a host with the preset "hidden" while its link is not covered. "stop": the
        /// host sends no packets, and lost frames never end its schedule. "send": cover ends when
        /// the path can't carry it, and packets leave without cover.
        without_cover: CoverLossPolicy = CoverLossPolicy::Stop, reload no;
        /// Behaviour of a host while the network can't hold the preset that its list asks for.
        /// false: the host sends no packets. true: it sends with the relays and the cover that
        /// there are, and hides less than the preset says.
        as_far_as_possible: bool = false, reload no;
    }
}

impl Anonymity {
    /// Refuses keys of the file that ask for less than the preset.
    pub(super) fn check_values(
        &self,
        config: &NodeConfig,
        source: &ConfigSource<'_>,
    ) -> Result<(), ConfigError> {
        let NodeConfig { circuits, direct, .. } = config;
        if self.preset == Preset::Fast || config.is_router() {
            return Ok(());
        }
        let is_off = circuits.policy == CircuitPolicy::Off && source.has("circuits.policy");
        let fewer = circuits.relays < RELAYS_MIN;
        let asks_direct = !matches!(direct.mode, DirectMode::Off | DirectMode::Auto);
        for (section, key, is_weaker, means) in [
            ("circuits", "policy", is_off, "circuits are required with every host"),
            (
                "circuits",
                "peers",
                circuits.peers.is_some(),
                "circuits are required with every host",
            ),
            ("circuits", "relays", fewer, "circuits lead over 3 relays or more"),
            (
                "circuits",
                "max_added_ms",
                circuits.max_added_ms.is_some(),
                "the network's mixes are used whatever they add",
            ),
            ("direct", "mode", asks_direct, "there are no direct links"),
        ] {
            if is_weaker {
                let preset = self.preset.as_str();
                let text = format!(
                    "asks for less than [anonymity] preset = {preset:?}, with which {means}: take \
                     one of the two out"
                );
                return Err(source.wrong(section, None, key, text));
            }
        }
        Ok(())
    }
}

impl NodeConfig {
    /// Applies the preset of a host: all but "fast" require circuits.
    pub(super) fn with_preset(mut self) -> NodeConfig {
        if self.anonymity.preset != Preset::Fast && !self.is_router() {
            self.circuits.policy = CircuitPolicy::Require;
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn parse(address: &str, more: &str) -> Result<NodeConfig, String> {
        let text = format!(
            "[node]\nname = \"a\"\naddress = {address:?}\nkey_file = \"key\"\n\
             network_secret_file = \"secret\"\n{more}"
        );
        NodeConfig::parse(Path::new("node.toml"), &text).map_err(|error| error.to_string())
    }

    #[test]
    fn a_preset_sets_what_the_file_does_not() {
        let of = |more: &str| {
            let config = parse("1.1", more).unwrap();
            (config.circuits.policy, config.direct.mode, config.circuits.max_added_ms)
        };
        let none = (CircuitPolicy::Off, DirectMode::Off, None);
        assert_eq!(
            (of(""), of("[anonymity]"), of("[anonymity]\npreset = \"fast\"")),
            (none, none, none)
        );
        for preset in ["balanced", "hidden"] {
            let preset = format!("[anonymity]\npreset = {preset:?}\n");
            assert_eq!(of(&preset), (CircuitPolicy::Require, DirectMode::Off, None));
            let same = "[circuits]\npolicy = \"require\"\nrelays = 4\n[direct]\nmode = \"off\"\n";
            assert_eq!(of(&(preset.clone() + same)).0, CircuitPolicy::Require);
            let router = parse("1.0", &preset).unwrap();
            assert_eq!(router.circuits.policy, CircuitPolicy::Off, "circuits begin at hosts");
        }
        let fast = "[anonymity]\npreset = \"fast\"\n[direct]\nmode = \"on-demand\"\n";
        assert_eq!(of(fast).1, DirectMode::OnDemand);
        for preset in ["fast", "balanced", "hidden"] {
            let auto = format!("[anonymity]\npreset = {preset:?}\n[direct]\nmode = \"auto\"\n");
            assert_eq!(of(&auto).1, DirectMode::Auto, "{preset}");
        }
    }

    #[test]
    fn keys_that_ask_for_less_are_named_with_the_preset() {
        for (more, key, words) in [
            ("[circuits]\npolicy = \"off\"", "circuits.policy", "circuits are required with every"),
            ("[circuits]\npeers = [\"bob\"]", "circuits.peers", "circuits are required with every"),
            ("[circuits]\nrelays = 2", "circuits.relays", "circuits lead over 3 relays or more"),
            ("[circuits]\nmax_added_ms = 0", "circuits.max_added_ms", "whatever they add"),
            ("[circuits]\nmax_added_ms = 5000", "circuits.max_added_ms", "whatever they add"),
            ("[direct]\nmode = \"on-demand\"", "direct.mode", "there are no direct links"),
            ("[direct]\nmode = \"proactive\"", "direct.mode", "there are no direct links"),
        ] {
            let said = parse("1.1", &format!("{more}\n[anonymity]\npreset = \"balanced\"\n"));
            let said = said.expect_err(more);
            let head = format!("node.toml:7: {key}: asks for less than [anonymity] preset = \"bal");
            assert!(said.starts_with(&head) && said.contains(words), "{said}");
            assert!(parse("1.1", more).is_ok(), "{more}");
        }
        let said = parse("1.1", "[anonymity]\npreset = \"most\"\n").unwrap_err();
        assert!(said.contains("anonymity.preset") && said.contains("`hidden`"), "{said}");
        let said = parse("1.1", "[anonymity]\nmode = \"fast\"\n").unwrap_err();
        assert!(said.contains("unknown field `mode`"), "{said}");
    }
}
