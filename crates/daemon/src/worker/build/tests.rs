//! A configuration without options means the state machines' own defaults, and options reach them.

use std::path::Path;

use super::*;

const NODE: &str = "[node]\nname = \"r1\"\naddress = \"1.0\"\nkey_file = \"k\"\n\
                    network_secret_file = \"n\"\nhosts_file = \"h\"\n";

fn config(more: &str) -> NodeConfig {
    NodeConfig::parse(Path::new("node.toml"), &format!("{NODE}{more}")).unwrap()
}

fn hosts() -> HostList {
    let entry = |n: u8| {
        let key = shoal_crypto::Identity::generate([n; 32]).public();
        format!("[[host]]\nname = \"r{n}\"\naddress = \"{n}.0\"\nkey = \"{key}\"\n")
    };
    let text: String = (1..=4).map(entry).collect();
    HostList::parse(Path::new("hosts.toml"), &text).unwrap()
}

fn same(a: &dyn std::fmt::Debug, b: &dyn std::fmt::Debug) {
    assert_eq!(format!("{a:#?}"), format!("{b:#?}"));
}

#[test]
fn defaults_are_the_machines_defaults() {
    let config = config("");
    let relay = relay_config(&config, &hosts());
    same(&relay.routing, &shoal_routing::Config::default());
    same(&relay.egress, &EgressConfig::default());
    same(&relay.hold, &shoal_relay::HoldConfig::default());
    same(&relay.session, &shoal_session::SessionConfig::new(SessionRole::Link));
    // The state machine's default leaves idle links silent. A node's hosts must stay reachable
    // behind firewalls.
    let keepalive = relay.liveness.keepalive;
    assert_eq!(keepalive, Some(Duration::from_secs(20)));
    same(&relay.liveness, &LivenessConfig { keepalive, adapt: true, ..LivenessConfig::default() });
    let edge = edge_config(&config);
    same(&edge.transfer, &shoal_transfer::TransferConfig::default());
    same(&edge.session, &shoal_session::SessionConfig::new(SessionRole::Edge));
}

#[test]
fn links_keys_become_policies_and_pins() {
    let config = config(
        "[[link]]\npeer = \"r2\"\ndefault_cost = 7\nimport = [\"r2\", \"r3\"]\npin = [\"r4\"]\n\
         [[link]]\npeer = \"r3\"\n",
    );
    let routing = relay_config(&config, &hosts()).routing;
    let policy = &routing.links[&2];
    assert_eq!(policy.default_cost, Some(7));
    assert_eq!(policy.import, Some([2, 3].into()));
    assert_eq!(routing.links.len(), 1);
    assert_eq!(routing.pins, [(4, 2)].into());
    assert_eq!(routing.check(), Ok(()));
}

#[test]
fn keepalives_can_be_turned_off() {
    let config = config("[liveness]\nkeepalive_ms = 0\n");
    assert_eq!(relay_config(&config, &hosts()).liveness.keepalive, None);
}
