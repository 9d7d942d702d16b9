//! The systemd unit that comes with the program, as it is and as its own comments change it.
//!
//! systemd reads it here; it is not started. A skip says so, and fails when SHOAL_REQUIRE_SYSTEMD
//! is set.

#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "starts real programs")]

use std::process::Command;

use shoal_lab::needs::{self, Need};

const UNIT: &str = include_str!("../../../dist/shoal.service");

/// With the lines that the comments say are needed for `[interface]` and `[names]`.
fn with_interface() -> String {
    let commented = |text: &str| format!("#   {text}\n");
    let mut devices = String::new();
    for line in ["DevicePolicy=closed", "DeviceAllow=/dev/net/tun rw"] {
        assert!(UNIT.contains(&commented(line)), "{line}");
        devices += &format!("{line}\n");
    }
    let mut text = UNIT.to_owned();
    for (old, new) in [
        ("PrivateDevices=yes\n", devices.as_str()),
        ("AF_INET AF_INET6 AF_UNIX\n", "AF_INET AF_INET6 AF_UNIX AF_NETLINK\n"),
        (
            "AmbientCapabilities=CAP_NET_ADMIN\n",
            "AmbientCapabilities=CAP_NET_ADMIN CAP_NET_BIND_SERVICE\n",
        ),
        ("#ExecStartPost=", "ExecStartPost="),
    ] {
        assert!(text.contains(old), "{old}");
        text = text.replace(old, new);
    }
    text
}

#[test]
fn systemd_has_nothing_to_say_about_the_unit() {
    if !needs::met(&[Need::Tool("systemd-analyze")], "SHOAL_REQUIRE_SYSTEMD") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in [("shoal", UNIT.to_owned()), ("shoal-interface", with_interface())] {
        let file = folder.path().join(format!("{name}.service"));
        // Programs must exist for systemd to be content.
        let text = text.replace("/usr/local/bin/shoal", env!("CARGO_BIN_EXE_shoal"));
        let text = text.replace("/usr/bin/resolvectl", "/usr/bin/true");
        std::fs::write(&file, text).unwrap();
        let mut verify = Command::new("systemd-analyze");
        let output = verify.args(["verify", "--man=no"]).arg(&file).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && !said.contains(name), "{said}");
    }
}

#[test]
fn what_the_node_calls_is_not_filtered() {
    // The control socket is given to a group of the user's; `@privileged` holds chown(2).
    let mut filters = UNIT.lines().filter_map(|line| line.strip_prefix("SystemCallFilter="));
    let last = filters.next_back().unwrap();
    assert!(last.split(' ').any(|word| word == "@chown"), "{last}");
    // Capabilities are given up; `@privileged` holds that call too.
    assert!(last.split(' ').any(|word| word == "capset"), "{last}");
}
