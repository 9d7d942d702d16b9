//! Whether the network's list lets a host have what its preset stands for (docs/cover.md).

use crate::config::{Config, Preset};
use crate::membership::cover;
use crate::membership::hosts::Hosts;

/// How a message about a preset begins.
fn asked(config: &Config) -> String {
    format!("[anonymity] preset = {:?}", config.anonymity.preset.as_str())
}

/// The preset of a host; none that asks for anything on a router.
fn preset(config: &Config) -> Preset {
    if config.is_router() { Preset::Fast } else { config.anonymity.preset }
}

/// Why `config`'s host can't be hidden though its preset is "hidden", in words without names: it
/// has no tier of cover in the list.
pub fn unhidden(config: &Config, hosts: &Hosts) -> Option<String> {
    if preset(config) != Preset::Hidden {
        return None;
    }
    let asked = asked(config);
    let so = match config.requires_cover() {
        true => "the host sends no packets",
        false => "the host's line shows when it speaks",
    };
    cover::own(config, hosts).is_none().then(|| {
        format!(
            "{asked}: the network's list gives this host no tier of cover, so {so}: have it \
             signed (`shoal authority sign NAME --cover TIER`; in a hosts \
             file cover = \"TIER\" of its [[host]]), or set preset to \"balanced\""
        )
    })
}

/// What of the preset has no effect, in words without names.
pub fn without_effect(config: &Config, hosts: &Hosts) -> Option<String> {
    let asked = asked(config);
    if config.is_router() && config.anonymity.preset != Preset::Fast {
        return Some(format!("{asked}: this node is a router, and presets are for hosts"));
    }
    // A node that is no member in force, or whose list is too old, knows itself alone.
    let is_open = hosts.len() > 1;
    (preset(config) != Preset::Fast && is_open && hosts.mixes().is_empty()).then(|| {
        format!(
            "{asked}: the network's list has no [[mix]]: relays pass cells on at once, so that who \
             watches them can follow each"
        )
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use shoal_crypto::Identity;

    use super::*;

    fn config(address: &str, preset: &str, link: &str) -> Config {
        let text = format!(
            "[node]\nname = \"a\"\naddress = {address:?}\nkey_file = \"key\"\n\
             network_secret_file = \"secret\"\n[anonymity]\npreset = {preset:?}\n[[link]]\n\
             peer = \"r1\"\n{link}"
        );
        Config::parse(Path::new("node.toml"), &text).unwrap()
    }

    fn hosts(cover: &str, more: &str) -> Hosts {
        let key = |seed| Identity::from_seed([seed; 32]).public();
        let text = format!(
            "[[host]]\nname = \"r1\"\naddress = \"1.0\"\nkey = \"{}\"\n\
             [[host]]\nname = \"a\"\naddress = \"1.1\"\nkey = \"{}\"\n{cover}\n\
             [[cover]]\nname = \"home\"\nmbit = 10\n{more}",
            key(1),
            key(2)
        );
        Hosts::parse(Path::new("hosts.toml"), &text).unwrap()
    }

    #[test]
    fn hidden_needs_a_tier() {
        let covered = hosts("cover = \"home\"", "");
        assert_eq!(unhidden(&config("1.1", "hidden", ""), &covered), None);
        let said = unhidden(&config("1.1", "hidden", ""), &hosts("", "")).unwrap();
        assert!(said.starts_with("[anonymity] preset = \"hidden\": the network's list gives"));
        let in_parts = config("1.1", "hidden", "mtu = 1280\n");
        assert_eq!(unhidden(&in_parts, &covered), None, "frames leave in parts, in slots");
        for preset in ["fast", "balanced"] {
            assert_eq!(unhidden(&config("1.1", preset, "mtu = 1280\n"), &hosts("", "")), None);
        }
        assert_eq!(unhidden(&config("1.0", "hidden", ""), &hosts("", "")), None, "a router");
    }

    #[test]
    fn a_preset_that_changes_nothing_is_said() {
        let mix = "[[mix]]\nname = \"slow\"\nkind = \"timed\"\nevery_ms = 10\n";
        let said = |address, preset, mix| {
            without_effect(&config(address, preset, ""), &hosts("", mix)).unwrap_or_default()
        };
        assert_eq!(said("1.1", "fast", ""), "");
        assert_eq!(said("1.1", "balanced", mix), "");
        assert!(said("1.1", "balanced", "").contains("the network's list has no [[mix]]"));
        assert!(said("1.0", "hidden", mix).ends_with("is a router, and presets are for hosts"));
        assert_eq!(said("1.0", "fast", ""), "");
    }
}
