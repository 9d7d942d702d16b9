//! Tests which networks are in force, and the warnings about the others.

use std::path::Path;

use super::*;
use crate::config::LinkPeer;
use crate::membership::hosts::ListedHost;

const NODE: &str = "[node]\nname = \"h1\"\naddress = \"1.1\"\nkey_file = \"k\"\n\
                    network_secret_file = \"n\"\n";

fn prefix(text: &str) -> Prefix {
    text.parse().unwrap()
}

fn interface(text: &str) -> InterfaceConfig {
    let text = format!("{NODE}[interface]\n{text}");
    NodeConfig::parse(Path::new("node.toml"), &text).unwrap().interface.unwrap()
}

/// Hosts h1, h2, ... with these prefixes.
fn hosts(prefixes: &[&str]) -> HostList {
    let entry = |(i, prefixes): (usize, &&str)| {
        let n = i as u8 + 1;
        let key = shoal_crypto::Identity::generate([n; 32]).public();
        let head = format!("[[host]]\nname = \"h{n}\"\naddress = \"1.{n}\"\nkey = \"{key}\"\n");
        format!("{head}prefixes = {prefixes}\n")
    };
    let text: String = prefixes.iter().enumerate().map(entry).collect();
    HostList::parse(Path::new("hosts.toml"), &text).unwrap()
}

fn overlay() -> shoal_ip::Prefix {
    shoal_ip::Prefix { address: "fd77:1:2::".parse().unwrap(), bits: 48 }
}

fn planned(config: &str, list: &[&str], around: &Surroundings) -> SubnetPlan {
    plan(&interface(config), "h1", &hosts(list), &overlay(), around)
}

#[test]
fn only_what_is_granted_and_accepted_is_in_force() {
    let list = ["[\"10.1.0.0/16\"]", "[\"10.2.0.0/16\", \"192.0.2.0/24\"]", "[]"];
    let config =
        "prefixes = [\"10.1.7.0/24\", \"10.9.0.0/16\"]\naccept_prefixes = [\"10.0.0.0/8\"]\n";
    let plan = planned(config, &list, &Surroundings::default());
    assert_eq!(plan.served, [prefix("10.1.7.0/24")]);
    assert_eq!(plan.reached, [(prefix("10.2.0.0/16"), "h2".to_string())]);
    assert_eq!(plan.warnings.len(), 1);
    assert!(plan.warnings[0].contains("10.9.0.0/16 was not granted"), "{:?}", plan.warnings);
    assert_eq!(planned("", &list, &Surroundings::default()), SubnetPlan::default());
}

#[test]
fn what_would_cut_this_machine_off_is_not_routed() {
    let around = Surroundings {
        connected: vec![(prefix("10.3.1.0/24"), "10.3.1.5".parse().unwrap())],
        endpoints: vec!["192.0.2.1".parse().unwrap(), "10.3.1.1".parse().unwrap()],
        ..Surroundings::default()
    };
    let all = "accept_prefixes = [\"all\"]\n";
    let refused = |net: &str| {
        let plan = planned(all, &["[]", &format!("[\"{net}\"]")], &around);
        assert_eq!(plan.reached.is_empty(), plan.warnings.len() == 1, "{plan:?}");
        plan.warnings.first().cloned()
    };
    assert!(refused("192.0.0.0/8").unwrap().contains("endpoint, 192.0.2.1, lies in"));
    assert!(refused("10.3.1.0/24").unwrap().contains("this machine has the address 10.3.1.5"));
    assert!(refused("10.3.1.128/25").unwrap().contains("lies in 10.3.1.0/24"));
    assert!(refused("fd77::/16").unwrap().contains("own hosts"));
    assert!(refused("fd77:1:2:3::/64").unwrap().contains("own hosts"));
    // The kernel's own route to the neighbour is longer.
    assert_eq!(refused("10.3.0.0/16"), None);
    assert_eq!(refused("fd78::/16"), None);
}

#[test]
fn a_router_of_a_registrar_keeps_no_network_from_another_router() {
    let router = |name: &str, number: u8, by_registrar: bool| ListedHost {
        name: name.into(),
        address: shoal_wire::Address::new(number.into(), 0),
        second: None,
        key: shoal_crypto::Identity::from_seed([number; 32]).public(),
        endpoint: Some(([192, 0, 2, number], 7_400).into()),
        interface: false,
        ipv4: None,
        prefixes: Vec::new(),
        cover: None,
        security_groups: Vec::new(),
        carrier: Default::default(),
        by_registrar,
    };
    let hosts = HostList::from_checked([router("r2", 2, false), router("r3", 3, true)]);
    let counted = |address: &str| {
        let text = NODE.replace("1.1", address);
        let mut config = NodeConfig::parse(Path::new("node.toml"), &text).unwrap();
        config.links = ["r2", "r3"].map(LinkPeer::named).into();
        let around = Surroundings::look(&config, &hosts, &overlay());
        around.endpoints.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(counted("1.0"), ["192.0.2.2"]);
    assert_eq!(counted("3.1"), ["192.0.2.2", "192.0.2.3"], "a host needs its router");
}

#[test]
fn public_networks_and_those_of_other_routes_are_routed_where_the_file_names_them() {
    let route = crate::tun::consent::MachineRoute::of_test("10.20.0.0/16", "eth0");
    let around = Surroundings { routes: vec![route], ..Surroundings::default() };
    let reached = |accepted: &str, net: &str| {
        let config = format!("accept_prefixes = [\"{accepted}\"]\n");
        let plan = planned(&config, &["[]", &format!("[\"{net}\"]")], &around);
        assert_eq!(plan.reached.is_empty(), plan.warnings.len() == 1, "{plan:?}");
        plan.warnings.first().cloned()
    };
    for net in ["8.8.8.0/24", "2600::/16"] {
        assert!(reached("all", net).unwrap().contains("is public: name it"), "{net}");
        assert_eq!(reached(net, net), None);
    }
    let used = reached("all", "10.20.7.0/24").unwrap();
    assert!(used.contains("lies in 10.20.0.0/16") && used.contains("eth0"), "{used}");
    assert_eq!(reached("10.20.0.0/16", "10.20.7.0/24"), None);
    assert_eq!(reached("all", "10.21.0.0/16"), None);
}

#[test]
fn a_gateway_without_an_address_in_the_network_sends_from_one_behind_it() {
    let around = Surroundings {
        connected: vec![
            (prefix("192.0.2.0/24"), "192.0.2.9".parse().unwrap()),
            (prefix("10.1.0.0/16"), "10.1.0.1".parse().unwrap()),
        ],
        ..Surroundings::default()
    };
    let own = Some(Ipv4Addr::new(10, 1, 0, 1));
    assert_eq!(around.source(&[prefix("fd00::/8"), prefix("10.0.0.0/8")]), own);
    assert_eq!(around.source(&[prefix("10.2.0.0/16")]), None);
}

/// A part of the shifting prefix belongs to another host only if this machine's own file says so.
#[test]
fn machines_with_addresses_of_the_prefix_that_shifts_are_named_by_this_machine() {
    let around = Surroundings {
        connected: vec![(prefix("fd42::/64"), "fd42::a".parse().unwrap())],
        endpoints: vec!["fd42::b".parse().unwrap()],
        shift_prefix: Some(prefix("fd42::/64")),
        protected: vec![prefix("fd42::10")],
        routes: Vec::new(),
    };
    let planned = |accepted: &str, theirs: &str| {
        let list = ["[\"fd42::10\"]", &format!("[{theirs}]")];
        planned(&format!("accept_prefixes = [\"{accepted}\"]\n"), &list, &around)
    };
    let reached = |accepted: &str, theirs: &str| {
        let plan = planned(accepted, &format!("\"{theirs}\""));
        assert_eq!(plan.served, [prefix("fd42::10")]);
        assert_eq!(plan.reached.is_empty(), plan.warnings.len() == 1, "{plan:?}");
        plan.warnings.first().cloned()
    };
    assert_eq!(reached("fd42::20", "fd42::20"), None);
    assert_eq!(reached("fd42::/112", "fd42::100/120"), None);
    for loose in ["all", "fd42::/64", "fd42::/16"] {
        assert!(reached(loose, "fd42::20").unwrap().contains("name it in accept_prefixes"));
    }
    assert!(reached("fd42::/112", "fd42::/119").unwrap().contains("at least 120 bits"));
    assert!(reached("fd42::/112", "fd42::a").unwrap().contains("fd42::a is this machine's"));
    assert!(reached("fd42::/112", "fd42::/124").unwrap().contains("or behind it"));
    assert!(reached("fd42::/112", "fd42::b").unwrap().contains("endpoint, fd42::b"));
    // The prefix is outside the shifting one, so the usual rules hold.
    assert_eq!(reached("all", "fd43::/64"), None);
    let many = planned("fd42::/112", "\"fd42::100/120\", \"fd42::20\"");
    assert_eq!((many.reached.len(), many.warnings.len()), (1, 1), "{many:?}");
    assert!(many.warnings[0].contains("256 addresses"), "{many:?}");
}
