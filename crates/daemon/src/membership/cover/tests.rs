use std::path::Path;

use shoal_crypto::Identity;
use shoal_directory::{NetworkPreset, Preset};
use shoal_wire::CoverKind;

use super::*;

const TIERS: &str = "[[cover]]\nname = \"home\"\nmbit = 10\n\
                     [[cover]]\nname = \"small\"\nmbit = 2\nschedule = \"poisson\"\n";

/// A list with routers r1 (1.0) and r2 (2.0). Hosts alice (1.1) and bob (1.2) have tier "home",
/// dave (2.1) has the small one, and carol (1.3) has none.
fn hosts() -> HostList {
    let all = [
        ("r1", "1.0", ""),
        ("r2", "2.0", ""),
        ("alice", "1.1", "cover = \"home\""),
        ("bob", "1.2", "cover = \"home\""),
        ("carol", "1.3", ""),
        ("dave", "2.1", "cover = \"small\""),
    ];
    let entry = |(seed, (name, address, more)): (usize, (&str, &str, &str))| {
        let key = Identity::from_seed([seed as u8; 32]).public();
        format!("[[host]]\nname = {name:?}\naddress = {address:?}\nkey = \"{key}\"\n{more}\n")
    };
    let entries: String = all.into_iter().enumerate().map(entry).collect();
    HostList::parse(Path::new("hosts.toml"), &(entries + TIERS)).unwrap()
}

fn config(name: &str, address: &str, links: &[&str]) -> NodeConfig {
    let links: String = links.iter().map(|link| format!("[[link]]\npeer = {link}\n")).collect();
    let text = format!(
        "[node]\nname = {name:?}\naddress = {address:?}\nkey_file = \"key\"\n\
         network_secret_file = \"secret\"\n{links}"
    );
    NodeConfig::parse(Path::new("node.toml"), &text).unwrap()
}

fn tier(mbit: u16, kind: CoverKind) -> CoverTier {
    CoverTier::new(mbit, kind).unwrap()
}

#[test]
fn a_host_and_its_own_router_have_a_covered_link() {
    let hosts = hosts();
    let home = tier(10, CoverKind::Constant);
    let seen = |config: &NodeConfig| {
        let sets = sets(config, &hosts).into_iter();
        sets.map(|set| (set.tier, set.schedule, set.links, set.hosts)).collect::<Vec<_>>()
    };
    let router = config("r1", "1.0", &["\"r2\"", "\"alice\"", "\"bob\"", "\"carol\""]);
    assert_eq!(seen(&router), [("home".into(), home, 2, 2)]);
    assert_eq!(own(&router, &hosts), None);
    let host = config("alice", "1.1", &["\"r1\""]);
    assert_eq!((seen(&host), own(&host, &hosts)), (vec![("home".into(), home, 1, 2)], Some(home)));
    let host = config("carol", "1.3", &["\"r1\""]);
    assert_eq!((seen(&host), own(&host, &hosts)), (vec![], None));
    let node = |name| hosts.by_name(name).unwrap();
    let between = |one, other| hosts.cover_between(node(one), node(other));
    assert_eq!(between("r1", "dave"), None, "dave is a host of r2");
    assert_eq!(between("r2", "dave"), Some(tier(2, CoverKind::Poisson)));
    assert_eq!(between("dave", "r2"), between("r2", "dave"), "both ends say the same");
    assert_eq!((between("alice", "bob"), between("r1", "r2")), (None, None));
    let words = sets(&router, &hosts)[0].warning();
    assert!(words.starts_with("cover \"home\": hosts that have it in the list: 2."), "{words}");
}

#[test]
fn the_networks_preset_covers_links_between_routers_that_name_no_tier() {
    let preset = |router_tier: Option<&str>| NetworkPreset {
        level: Preset::Hidden,
        tier: Some("home".into()),
        router_tier: router_tier.map(Into::into),
    };
    let between = |preset, link: &str| {
        let hosts = hosts().with_preset(Some(preset));
        let link = config("r1", "1.0", &[link]).links[0].clone();
        of_link("r1", &link, &hosts).unwrap()
    };
    let (home, small) = (tier(10, CoverKind::Constant), tier(2, CoverKind::Poisson));
    assert_eq!(between(preset(Some("home")), "\"r2\""), Some(home));
    assert_eq!(between(preset(Some("home")), "\"r2\"\ncover = \"small\""), Some(small));
    assert_eq!(between(preset(None), "\"r2\""), None);
    assert_eq!(between(preset(Some("home")), "\"carol\""), None, "hosts have their own tier");
}

#[test]
fn a_day_costs_what_the_rate_says_and_headers() {
    let day = |mbit| bytes_per_day(tier(mbit, CoverKind::Constant));
    // 10 Mbit/s are 108 GB a day, and each 1,440 bytes carry 28 bytes of headers.
    assert_eq!(day(10), 110_100_000_000);
    assert!((109..=111).contains(&(day(2) * 5 / 1_000_000_000)));
    assert_eq!(day(10), bytes_per_day(tier(10, CoverKind::Poisson)));
}

#[test]
fn a_link_between_routers_has_the_tier_that_its_section_names() {
    let hosts = hosts();
    let link = |peer: &str, cover: &str| {
        let text = format!("{peer:?}\ncover = {cover:?}");
        config("r1", "1.0", &[&text]).links[0].clone()
    };
    let home = tier(10, CoverKind::Constant);
    assert_eq!(of_link("r1", &link("r2", "home"), &hosts).unwrap(), Some(home));
    let said = |peer, cover| of_link("r1", &link(peer, cover), &hosts).unwrap_err().to_string();
    assert!(said("alice", "home").contains("between two routers"));
    assert!(said("r2", "hom").contains("\"hom\""), "{}", said("r2", "hom"));
    let router = config("r1", "1.0", &["\"r2\"\ncover = \"home\"", "\"alice\""]);
    let sets: Vec<_> = sets(&router, &hosts).into_iter().map(|set| set.links).collect();
    assert_eq!(sets, [2]);
}
