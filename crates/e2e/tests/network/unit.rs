//! The systemd unit that comes with the program.
//!
//! systemd only reads it here. A skipped test says so, and fails if SHOAL_REQUIRE_SYSTEMD is set.

use std::process::Command;

use shoal_lab::needs::{self, Requirement};

const UNIT: &str = include_str!("../../../../dist/shoal.service");
const REGISTRAR: &str = include_str!("../../../../dist/shoal-registrar.service");

#[test]
fn systemd_has_nothing_to_say_about_the_unit() {
    if !needs::met(&[Requirement::Tool("systemd-analyze")], "SHOAL_REQUIRE_SYSTEMD") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for (name, unit) in [("shoal.service", UNIT), ("shoal-registrar.service", REGISTRAR)] {
        let file = folder.path().join(name);
        // systemd complains about programs that don't exist.
        let text = unit.replace("/usr/local/bin/shoal", shoal_e2e::program());
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
fn the_unit_admits_the_system_calls_of_the_node() {
    // The node gives the control socket to the user's group; `@privileged` contains chown(2).
    let mut filters = UNIT.lines().filter_map(|line| line.strip_prefix("SystemCallFilter="));
    let last = filters.next_back().unwrap();
    assert!(last.split(' ').any(|word| word == "@chown"), "{last}");
    // The node drops capabilities; `@privileged` contains that call, too.
    assert!(last.split(' ').any(|word| word == "capset"), "{last}");
    // The filter of [shift] counts its drops; `@privileged` contains that call, too.
    assert!(last.split(' ').any(|word| word == "bpf"), "{last}");
}

#[test]
fn the_unit_admits_the_configuration_of_the_tutorial() {
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
    assert_eq!(UNIT.lines().filter(|line| line.starts_with("ExecStartPost=-+")).count(), 1);
}

#[test]
fn resolved_is_told_what_the_nodes_file_says() {
    if !needs::met(
        &[Requirement::Namespaces, Requirement::Tun, Requirement::Tool("ip")],
        "SHOAL_REQUIRE_NETNS",
    ) {
        return;
    }
    let line = UNIT.lines().find_map(|line| line.strip_prefix("ExecStartPost=-+")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name);
    let node = "[node]\nname = \"h1\"\naddress = \"1.1\"\nkey_file = \"node.key\"\n\
                network_secret_file = \"network.key\"\nhosts_file = \"hosts.toml\"\n";
    let told = |more: &str| {
        std::fs::write(file("node.toml"), format!("{node}{more}")).unwrap();
        let line = line.replace("/usr/local/bin/shoal", shoal_e2e::program());
        let line = line.replace("/etc/shoal/node.toml", file("node.toml").to_str().unwrap());
        // systemd-resolved is not here. Its folder is, and a program that records its arguments.
        let script = format!(
            "mount -t tmpfs none /run; mount -t sysfs none /sys; \
             mkdir -p /run/systemd/resolve /run/bin; \
             ip link add near7 type veth peer name far7; ip tuntap add shoal7 mode tun; \
             printf '#!/bin/sh\\necho \"$@\" >>/run/told\\n' >/run/bin/resolvectl; \
             chmod +x /run/bin/resolvectl; PATH=/run/bin:$PATH {line}; cat /run/told 2>/dev/null"
        );
        let mut shell = Command::new("unshare");
        let output = shell.args(["-mn", "sh", "-c", &script]).output().unwrap();
        let (out, err) = shoal_e2e::text(&output);
        println!("{out}{err}");
        out
    };
    let named = "[interface]\nname = \"shoal7\"\n[names]\nlisten = \"127.0.0.9:5353\"\n";
    assert_eq!(told(named), "dns shoal7 127.0.0.9:5353\ndomain shoal7 shoal\n");
    let domain = format!("{named}domain = \"lan\"\nsearch = false\n");
    assert_eq!(told(&domain), "dns shoal7 127.0.0.9:5353\ndomain shoal7 ~lan\n");
    assert_eq!(told(&format!("{named}resolved = false\n")), "");
    assert_eq!(told(""), "");
    // The names of an interface that no node owns are not changed.
    assert_eq!(told("[interface]\nname = \"near7\"\n[names]\n"), "");
}
