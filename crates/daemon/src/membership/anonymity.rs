//! Presets: the stricter of the node's file and the network's list, and what the network lacks for
//! them (docs/start/choose.md).

use shoal_onion::path::{RelayCount, RelayNeeds};

use crate::config::{CoverLossPolicy, DirectMode, NodeConfig, Preset, RELAYS_MIN};
use crate::control::api::PresetStatus;
use crate::membership::circuits;
use crate::membership::cover;
use crate::membership::hosts::HostList;
use crate::worker::first::{FirstWorker, WorkerParts};

/// Numbers that messages write as words.
const WORDS: [&str; 10] =
    ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"];

/// The preset of the file, for messages.
fn of_file(config: &NodeConfig) -> String {
    format!("[anonymity] preset = {:?}", config.anonymity.preset.as_str())
}

/// Start of each message about the preset in force: the preset, and its source.
fn asked(config: &NodeConfig, hosts: &HostList) -> String {
    match config.anonymity.preset >= hosts.preset() {
        true => of_file(config),
        false => format!("the network's preset {:?}", hosts.preset().as_str()),
    }
}

/// The preset that a host follows: the stricter of its file and the network's list. Routers count
/// as "fast", which needs nothing.
pub fn in_force(config: &NodeConfig, hosts: &HostList) -> Preset {
    match config.is_router() {
        true => Preset::Fast,
        false => config.anonymity.preset.max(hosts.preset()),
    }
}

/// True if this node sends no packets without cover.
pub fn requires_cover(config: &NodeConfig, hosts: &HostList) -> bool {
    if in_force(config, hosts) != Preset::Hidden {
        return false;
    }
    let section = &config.anonymity;
    let by_file =
        section.preset == Preset::Hidden && section.without_cover == CoverLossPolicy::Stop;
    let may_lack = section.as_far_as_possible && cover::own(config, hosts).is_none();
    by_file || (hosts.preset() == Preset::Hidden && !may_lack)
}

/// Relays that the network lacks for circuits of a preset; none if it has enough, or if this node
/// knows no other node.
fn shortage(hosts: &HostList) -> Option<RelayNeeds> {
    let needs = RelayNeeds::of(&circuits::routers(hosts), RELAYS_MIN);
    // A node that is no member in force, or whose list is too old, knows only itself, and not what
    // the list says of it.
    let is_open = hosts.len() > 1 || needs.have.relays > 0;
    (is_open && needs.missing() > 0).then_some(needs)
}

/// True if nothing of this host leaves, since the network has too few relays for the preset of its
/// list, and the file does not allow less.
pub fn is_closed(config: &NodeConfig, hosts: &HostList) -> bool {
    let is_asked = hosts.preset() != Preset::Fast && !config.is_router();
    is_asked && !config.anonymity.as_far_as_possible && shortage(hosts).is_some()
}

/// Relays that a preset lacks in a network, with the command that adds some.
pub fn shortage_words(preset: Preset, needs: &RelayNeeds) -> String {
    let RelayNeeds { needed, have } = needs;
    let count = |count: &RelayCount| format!("{} of {}", count.relays, count.families);
    let missing = needs.missing();
    let word = missing.checked_sub(1).and_then(|at| WORDS.get(at));
    let more = word.map_or_else(|| missing.to_string(), |word| (*word).to_owned());
    format!(
        "{} needs {} relays of {} families, there are {}: invite {more} more with `shoal invite \
         --router --family NAME`",
        preset.as_str(),
        needed.relays,
        needed.families,
        count(have)
    )
}

/// Warnings about what the network lacks for a preset, and what follows for this host. The texts
/// name no other node. Routers report what the hosts of the network lack.
pub fn lacks(config: &NodeConfig, hosts: &HostList) -> Vec<String> {
    let preset = match config.is_router() {
        true => hosts.preset(),
        false => in_force(config, hosts),
    };
    if preset == Preset::Fast {
        return Vec::new();
    }
    let listed = hosts.preset() != Preset::Fast && !config.is_router();
    let relays = shortage(hosts).map(|needs| {
        let so = match (listed, config.anonymity.as_far_as_possible) {
            (false, _) => "",
            (true, false) => {
                ". Until then this host sends no packets; [anonymity] as_far_as_possible = true \
                 lets it send, and hides less"
            }
            (true, true) => {
                ". [anonymity] as_far_as_possible = true: this host sends all the same, and hides \
                 less than the preset says"
            }
        };
        shortage_words(preset, &needs) + so
    });
    relays.into_iter().collect()
}

/// The preset of a host for programs, and on a router that of the network; none for "fast". While
/// the list is too old, only the nodes that links lead to (`linked`) still have tiers of cover.
pub fn status(config: &NodeConfig, hosts: &HostList, linked: &HostList) -> Option<PresetStatus> {
    let lacks_cover = requires_cover(config, linked) && cover::own(config, linked).is_none();
    let may_lack = config.anonymity.as_far_as_possible && hosts.preset() != Preset::Fast;
    let preset = in_force(config, hosts).max(hosts.preset());
    let by = match config.anonymity.preset.cmp(&hosts.preset()) {
        _ if config.is_router() => "list",
        core::cmp::Ordering::Less => "list",
        core::cmp::Ordering::Equal => "file and list",
        core::cmp::Ordering::Greater => "file",
    };
    (preset != Preset::Fast).then(|| PresetStatus {
        level: preset.as_str().into(),
        by: by.into(),
        missing: lacks(config, hosts).into_iter().chain(unhidden(config, linked)).collect(),
        is_closed: is_closed(config, hosts) || lacks_cover,
        as_far_as_possible: may_lack,
    })
}

impl FirstWorker {
    /// Applies the preset in force to the links. Circuits and direct links follow it by their own.
    pub(crate) fn apply_preset(&mut self) {
        let WorkerParts { node, config, names, .. } = &mut self.parts;
        node.relay.set_cover_required(requires_cover(config, names.linked()));
    }
}

/// Reason why this node has no direct links with any host. None if it may have some.
pub fn direct_refusal(config: &NodeConfig, hosts: &HostList) -> Option<String> {
    let preset = in_force(config, hosts);
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
    if in_force(config, hosts) != Preset::Hidden || cover::own(config, hosts).is_some() {
        return None;
    }
    let asked = asked(config, hosts);
    let so = match requires_cover(config, hosts) {
        true => "this host sends no packets",
        false => "an observer of its line sees when it sends",
    };
    let or = match config.anonymity.preset == Preset::Hidden {
        true => ", or set preset to \"balanced\"",
        false => "; a registrar with the right to it gives its members a tier within a minute",
    };
    Some(format!(
        "{asked}: the network's list gives this host no tier of cover, so {so}: sign it with a \
         tier (`shoal authority sign --dir DIR NAME --cover TIER`; in a hosts file cover = \
         \"TIER\" in its [[host]]){or}"
    ))
}

/// Reason why a node does not start: its file asks for cover that the list does not give. A
/// preset of the list alone is no reason, since a node must run to learn of its tier.
pub fn start_fault(config: &NodeConfig, hosts: &HostList) -> Option<String> {
    unhidden(config, hosts).filter(|_| config.anonymity.preset == Preset::Hidden)
}

/// Warning about a missing tier that the list's preset asks for, and the file does not.
pub fn listed_fault(config: &NodeConfig, hosts: &HostList) -> Option<String> {
    unhidden(config, hosts).filter(|_| config.anonymity.preset != Preset::Hidden)
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
    if config.is_router() && config.anonymity.preset != Preset::Fast {
        let asked = of_file(config);
        return Some(format!("{asked}: this node is a router, and presets are for hosts"));
    }
    // A node that is no member in force, or whose list is too old, knows only itself.
    let is_open = hosts.len() > 1;
    let is_asked = in_force(config, hosts) != Preset::Fast;
    (is_asked && is_open && hosts.mixes().is_empty()).then(|| {
        let asked = asked(config, hosts);
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
    use shoal_directory::NetworkPreset;

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

    /// Hosts of a network whose list has this preset.
    fn listed(level: Preset, hosts: HostList) -> HostList {
        let tier = Some("home".to_owned()).filter(|_| level == Preset::Hidden);
        let preset = NetworkPreset { level, tier, router_tier: None };
        hosts.with_preset(Some(preset).filter(|_| level != Preset::Fast))
    }

    /// Five relays of three families, with `a` behind the first.
    fn five_relays(cover: &str) -> HostList {
        let key = |seed| Identity::from_seed([seed; 32]).public();
        let router = |n: u8| {
            let (address, family) = (format!("{n}.0"), ["x", "y", "z"][usize::from(n % 3)]);
            format!(
                "[[host]]\nname = \"r{n}\"\naddress = \"{address}\"\nkey = \"{}\"\n\
                 relay = true\nfamily = \"{family}\"\n",
                key(n)
            )
        };
        let routers: String = (1..=5).map(router).collect();
        let text = format!(
            "{routers}[[host]]\nname = \"a\"\naddress = \"1.1\"\nkey = \"{}\"\n{cover}\n\
             [[cover]]\nname = \"home\"\nmbit = 10\n",
            key(9)
        );
        HostList::parse(Path::new("hosts.toml"), &text).unwrap()
    }

    #[test]
    fn the_stricter_of_file_and_list_is_in_force() {
        for (at, file) in Preset::ALL.into_iter().enumerate() {
            for (other, level) in Preset::ALL.into_iter().enumerate() {
                let hosts = listed(level, hosts("", ""));
                let want = Preset::ALL[at.max(other)];
                assert_eq!(in_force(&config("1.1", file.as_str(), ""), &hosts), want);
                let router = config("1.0", file.as_str(), "");
                assert_eq!(in_force(&router, &hosts), Preset::Fast, "presets are for hosts");
            }
        }
        let hosts = listed(Preset::Balanced, hosts("", ""));
        let direct = config("1.1", "fast", "[direct]\nmode = \"proactive\"\n");
        let said = direct_refusal(&direct, &hosts).unwrap();
        assert_eq!(said, "the preset \"balanced\" has no direct links");
        let few = config("1.1", "fast", "[circuits]\nrelays = 1\nmax_added_ms = 0\n");
        assert_eq!(circuits::relays(&few, &hosts), RELAYS_MIN, "the list outranks the file");
        assert_eq!(circuits::max_added(&few, &hosts), None);
    }

    #[test]
    fn what_a_network_lacks_is_counted_and_closes_its_hosts() {
        let host = config("1.1", "fast", "");
        let few = listed(Preset::Hidden, hosts("cover = \"home\"", ""));
        let said = lacks(&host, &few).join("\n");
        let counted = "hidden needs 5 relays of 3 families, there are 0 of 0: invite five more \
                       with `shoal invite --router --family NAME`";
        assert!(said.starts_with(counted) && said.contains("sends no packets"), "{said}");
        assert!(is_closed(&host, &few));
        let router = config("1.0", "fast", "");
        assert_eq!(lacks(&router, &few), [counted], "the owner of the first router looks there");
        assert!(!is_closed(&router, &few));
        let status = status(&host, &few, &few).unwrap();
        assert_eq!((status.level.as_str(), status.by.as_str()), ("hidden", "list"));
        assert!(status.is_closed && status.missing.len() == 1, "{status:?}");
        let enough = listed(Preset::Hidden, five_relays("cover = \"home\""));
        assert_eq!((lacks(&host, &enough), is_closed(&host, &enough)), (Vec::new(), false));
        // The file's own preset closes nothing: each path says what it does not hide.
        let alone = hosts("", "");
        let balanced = config("1.1", "balanced", "");
        assert!(!is_closed(&balanced, &alone));
        assert!(lacks(&balanced, &alone)[0].ends_with("--router --family NAME`"));
        assert_eq!(lacks(&host, &listed(Preset::Fast, alone)), Vec::<String>::new());
    }

    #[test]
    fn a_host_sends_as_far_as_possible_only_if_its_file_says_so() {
        let config = |more: &str| {
            let text = format!(
                "[node]\nname = \"a\"\naddress = \"1.1\"\nkey_file = \"key\"\n\
                 network_secret_file = \"secret\"\n[anonymity]\n{more}\n"
            );
            NodeConfig::parse(Path::new("node.toml"), &text).unwrap()
        };
        let far = "as_far_as_possible = true";
        let without = listed(Preset::Hidden, hosts("", ""));
        let covered = listed(Preset::Hidden, hosts("cover = \"home\"", ""));
        assert!(requires_cover(&config(""), &without) && is_closed(&config(""), &without));
        assert!(!requires_cover(&config(far), &without) && !is_closed(&config(far), &without));
        assert!(requires_cover(&config(far), &covered), "cover that is there is kept");
        assert!(lacks(&config(far), &covered)[0].contains("as_far_as_possible = true: this host"));
        let laxer = config("without_cover = \"send\"");
        assert!(requires_cover(&laxer, &without), "a file is never laxer than the list");
        let both = config("preset = \"hidden\"\nas_far_as_possible = true");
        assert!(requires_cover(&both, &without), "the file's own preset stays strict");
        assert!(start_fault(&both, &without).is_some());
        assert_eq!(start_fault(&config(""), &without), None, "the tier comes to a node that runs");
        let said = listed_fault(&config(""), &without).unwrap();
        assert!(said.starts_with("the network's preset \"hidden\": the network's list gives"));
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
