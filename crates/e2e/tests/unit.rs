//! The systemd unit that comes with the program.
//!
//! systemd reads it here; it is not started. A skip says so, and fails when SHOAL_REQUIRE_SYSTEMD
//! is set.

#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "starts real programs")]

use std::process::Command;

use shoal_lab::needs::{self, Need};

const UNIT: &str = include_str!("../../../dist/shoal.service");
const REGISTRAR: &str = include_str!("../../../dist/shoal-registrar.service");

#[test]
fn systemd_has_nothing_to_say_about_the_unit() {
    if !needs::met(&[Need::Tool("systemd-analyze")], "SHOAL_REQUIRE_SYSTEMD") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for (name, unit) in [("shoal.service", UNIT), ("shoal-registrar.service", REGISTRAR)] {
        let file = folder.path().join(name);
        // systemd complains about programs that don't exist.
        let text = unit.replace("/usr/local/bin/shoal", shoal_e2e::program());
        let text = text.replace("/usr/bin/resolvectl", "/usr/bin/true");
        std::fs::write(&file, text).unwrap();
        let mut verify = Command::new("systemd-analyze");
        let output = verify.args(["verify", "--man=no"]).arg(&file).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && !said.contains("shoal"), "{said}");
    }
}

#[test]
fn the_registrar_has_no_right_on_packets() {
    let lines: Vec<_> = REGISTRAR.lines().collect();
    for line in ["CapabilityBoundingSet=", "AmbientCapabilities=", "PrivateDevices=yes"] {
        assert!(lines.contains(&line), "{line}");
    }
    assert!(!REGISTRAR.contains("AF_NETLINK") && !REGISTRAR.contains("DeviceAllow"));
}

#[test]
fn what_the_node_calls_is_not_filtered() {
    // The control socket is given to a group of the user's; `@privileged` holds chown(2).
    let mut filters = UNIT.lines().filter_map(|line| line.strip_prefix("SystemCallFilter="));
    let last = filters.next_back().unwrap();
    assert!(last.split(' ').any(|word| word == "@chown"), "{last}");
    // Capabilities are given up; `@privileged` holds that call too.
    assert!(last.split(' ').any(|word| word == "capset"), "{last}");
    // [hop] counts what its filter drops; `@privileged` holds that call too.
    assert!(last.split(' ').any(|word| word == "bpf"), "{last}");
}

#[test]
fn what_the_tutorial_configures_is_allowed() {
    let has = |key: &str, word: &str| {
        let mut lines = UNIT.lines().filter_map(|line| line.strip_prefix(key));
        lines.any(|values| values.split(' ').any(|value| value == word))
    };
    // [interface]
    assert!(has("DeviceAllow=", "/dev/net/tun") && !has("PrivateDevices=", "yes"));
    assert!(has("RestrictAddressFamilies=", "AF_NETLINK"));
    // [names] on port 53, and a filter that counts
    for capability in ["CAP_NET_ADMIN", "CAP_NET_BIND_SERVICE", "CAP_BPF"] {
        assert!(has("AmbientCapabilities=", capability), "{capability}");
        assert!(has("CapabilityBoundingSet=", capability), "{capability}");
    }
    assert_eq!(UNIT.lines().filter(|line| line.starts_with("ExecStartPost=-+")).count(), 2);
}

#[test]
fn what_resolved_is_told_are_the_defaults_and_the_unit_says_which() {
    let of = |section: &str, key: &str| {
        let text = include_str!("../../../shoal.example.toml");
        let at = text.find(&format!("[{section}]\n")).unwrap();
        let line = text[at..].lines().find(|line| line.contains(&format!("{key} = \""))).unwrap();
        line.split('"').nth(1).unwrap().to_owned()
    };
    let (name, listen) = (of("interface", "name"), of("names", "listen"));
    let domain = of("names", "domain");
    for told in [format!("dns {name} {listen}"), format!("domain {name} {domain}")] {
        let line = format!("ExecStartPost=-+/usr/bin/resolvectl {told}\n");
        assert!(UNIT.contains(&line), "{line}");
    }
    let comments = UNIT.lines().filter_map(|line| line.strip_prefix("# "));
    let comments = comments.collect::<Vec<_>>().join(" ");
    for said in ["`name` in [interface]", &name, "`listen`", &listen, "`domain`", &domain] {
        assert!(comments.contains(said), "the comments do not say {said}");
    }
}
