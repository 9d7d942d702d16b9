//! Checks that the network's list gives a host what its preset needs (docs/start/choose.md).

use crate::config::{DirectMode, NodeConfig, Preset};
use crate::membership::cover;
use crate::membership::hosts::HostList;

/// Start of each message about a preset.
fn asked(config: &NodeConfig) -> String {
    format!("[anonymity] preset = {:?}", config.anonymity.preset.as_str())
}

/// The preset that a host follows. Routers count as "fast", which needs nothing.
pub fn in_force(config: &NodeConfig) -> Preset {
    if config.is_router() { Preset::Fast } else { config.anonymity.preset }
}

/// Reason why this node has no direct links with any host. None if it may have some.
pub fn direct_refusal(config: &NodeConfig, hosts: &HostList) -> Option<String> {
    let preset = in_force(config);
    match config.direct.mode {
        _ if config.is_router() => Some("routers have no direct links".into()),
        DirectMode::Off => Some("this host wants no direct links".into()),
        _ if preset != Preset::Fast => {
            Some(format!("the preset {:?} has no direct links", preset.as_str()))
        }
        _ if cover::own(config, hosts).is_some() => {
            Some("covered hosts have no direct links".into())
        }
        DirectMode::Auto if config.shift.is_some() => {
            Some("hosts with [shift] have direct links only if their mode is not \"auto\"".into())
        }
        DirectMode::Auto | DirectMode::OnDemand | DirectMode::Proactive => None,
    }
}

/// Warning to a router whose file asks for direct links.
pub fn direct_without_effect(config: &NodeConfig) -> Option<String> {
    let mode = config.direct.mode;
    (config.is_router() && mode != DirectMode::Off).then(|| {
        format!(
            "[direct] mode = {:?}: this node is a router, and direct links join two hosts",
            mode.as_str()
        )
    })
}

/// Warning for a host with preset "hidden" to which the list gives no tier of cover. The text names
/// no other node.
pub fn unhidden(config: &NodeConfig, hosts: &HostList) -> Option<String> {
    if in_force(config) != Preset::Hidden {
        return None;
    }
    let asked = asked(config);
    let so = match config.requires_cover() {
        true => "this host sends no packets",
        false => "an observer of its line sees when it sends",
    };
    cover::own(config, hosts).is_none().then(|| {
        format!(
            "{asked}: the network's list gives this host no tier of cover, so {so}: sign it with a \
             tier (`shoal authority sign --dir DIR NAME --cover TIER`; in a hosts file cover = \
             \"TIER\" in its [[host]]), or set preset to \"balanced\""
        )
    })
}

/// The facts about a host's traffic that become visible when its preset is lowered, and to whom;
/// none if the preset is not lowered.
pub fn lowered(from: Preset, to: Preset) -> Option<&'static str> {
    match (from, to) {
        (Preset::Hidden, Preset::Balanced) => {
            Some("an observer of this host's line sees when it sends")
        }
        (Preset::Hidden, Preset::Fast) => Some(
            "an observer of this host's line sees when it sends, routers see with whom it speaks, \
             and direct links show that to observers, too",
        ),
        (Preset::Balanced, Preset::Fast) => Some(
            "routers see with whom this host speaks, and direct links show that to observers, too",
        ),
        _ => None,
    }
}

/// Warning about a preset without effect: on a router, or in a network without mixes. The text
/// names no other node.
pub fn without_effect(config: &NodeConfig, hosts: &HostList) -> Option<String> {
    let asked = asked(config);
    if config.is_router() && config.anonymity.preset != Preset::Fast {
        return Some(format!("{asked}: this node is a router, and presets are for hosts"));
    }
    // A node that is no member in force, or whose list is too old, knows only itself.
    let is_open = hosts.len() > 1;
    (in_force(config) != Preset::Fast && is_open && hosts.mixes().is_empty()).then(|| {
        format!(
            "{asked}: the network's list has no [[mix]]: relays forward cells at once, so an \
             observer of a relay can follow each cell"
        )
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use shoal_crypto::Identity;

    use super::*;

    fn config(address: &str, preset: &str, link: &str) -> NodeConfig {
        let text = format!(
            "[node]\nname = \"a\"\naddress = {address:?}\nkey_file = \"key\"\n\
             network_secret_file = \"secret\"\nlisten = [\"[::]:7400\"]\n\
             [anonymity]\npreset = {preset:?}\n[[link]]\npeer = \"r1\"\n{link}"
        );
        NodeConfig::parse(Path::new("node.toml"), &text).unwrap()
    }

    fn hosts(cover: &str, more: &str) -> HostList {
        let key = |seed| Identity::from_seed([seed; 32]).public();
        let text = format!(
            "[[host]]\nname = \"r1\"\naddress = \"1.0\"\nkey = \"{}\"\n\
             [[host]]\nname = \"a\"\naddress = \"1.1\"\nkey = \"{}\"\n{cover}\n\
             [[cover]]\nname = \"home\"\nmbit = 10\n{more}",
            key(1),
            key(2)
        );
        HostList::parse(Path::new("hosts.toml"), &text).unwrap()
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
    fn only_a_lower_preset_shows_more() {
        let all = [Preset::Fast, Preset::Balanced, Preset::Hidden];
        for (from, &of) in all.iter().enumerate() {
            let shown = all.map(|to| lowered(of, to).is_some());
            assert_eq!(shown, [from > 0, from > 1, false], "{of:?}");
        }
        let [balanced, fast] =
            [Preset::Balanced, Preset::Fast].map(|to| lowered(Preset::Hidden, to).unwrap());
        assert!(fast.starts_with(balanced), "the lowest preset shows all of it");
    }

    #[test]
    fn direct_links_need_the_preset_fast_and_a_mode_that_fits_the_rest_of_the_file() {
        let direct = |mode: &str| format!("[direct]\nmode = {mode:?}\n");
        let plain = hosts("", "");
        let why = |address: &str, preset: &str, more: &str, hosts: &HostList| {
            direct_refusal(&config(address, preset, more), hosts).unwrap_or_default()
        };
        for mode in ["auto", "on-demand", "proactive"] {
            assert_eq!(why("1.1", "fast", &direct(mode), &plain), "", "{mode}");
            let covered = why("1.1", "fast", &direct(mode), &hosts("cover = \"home\"", ""));
            assert_eq!(covered, "covered hosts have no direct links");
            assert_eq!(why("1.0", "fast", &direct(mode), &plain), "routers have no direct links");
        }
        for preset in ["balanced", "hidden"] {
            let said = format!("the preset {preset:?} has no direct links");
            assert_eq!(why("1.1", preset, &direct("auto"), &plain), said);
        }
        for mode in ["", "off"].map(direct) {
            let mode = mode.replace("mode = \"\"", "");
            assert_eq!(why("1.1", "fast", &mode, &plain), "this host wants no direct links");
        }
        let shift = "[shift]\nprefix = \"2001:db8:1:2::/64\"\n";
        assert!(why("1.1", "fast", &(direct("auto") + shift), &plain).contains("[shift]"));
        assert_eq!(why("1.1", "fast", &(direct("on-demand") + shift), &plain), "");
        let router = config("1.0", "fast", &direct("auto"));
        let said = direct_without_effect(&router).unwrap();
        assert!(said.starts_with("[direct] mode = \"auto\": this node is a router"), "{said}");
        assert_eq!(direct_without_effect(&config("1.1", "fast", &direct("auto"))), None);
    }

    #[test]
    fn a_preset_without_effect_is_reported() {
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
