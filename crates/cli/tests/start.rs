//! What `shoal check` finds before a start would, and which options a command takes.

#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "starts real processes")]

mod common;

use std::fs;
use std::net::UdpSocket;
use std::path::Path;

use common::{Net, shoal, text};

fn edit(file: &Path, from: &str, to: &str) {
    let text = fs::read_to_string(file).unwrap();
    assert!(text.contains(from), "{from:?} is not in {text}");
    fs::write(file, text.replacen(from, to, 1)).unwrap();
}

/// What `check` and `run` say about one configuration; both must end with the same code.
fn both(net: &Net) -> String {
    let config = net.config("r1");
    let said = ["check", "run"].map(|verb| {
        let output = shoal(&[verb, "-c", config.to_str().unwrap()]).output().unwrap();
        assert!(!output.status.success(), "{verb} found nothing: {:?}", text(&output));
        text(&output).1
    });
    let [checked, ran] = said;
    let reason = ran.lines().find(|line| line.starts_with("shoal: ")).unwrap_or(&ran);
    let reason = reason.trim_start_matches("shoal: ").to_owned();
    assert!(checked.contains(&reason), "check said {checked:?}, run said {reason:?}");
    reason
}

#[test]
fn check_finds_what_run_refuses() {
    let net = Net::new(&["r1"]);
    let config = net.config("r1");
    let whole = fs::read_to_string(&config).unwrap();
    let cases: [(&str, &str, &str); 4] = [
        ("[node]\n", "[node]\nuser = \"no-such-user\"\n", "useradd"),
        ("[node]\n", "[node]\ncontrol_group = \"no-such-group\"\n", "groupadd"),
        ("\"control.sock\"", "\"no/such/control.sock\"", "mkdir -p"),
        ("\"control.sock\"", "\"node.key\"", "is no socket"),
    ];
    for (from, to, hint) in cases {
        edit(&config, from, to);
        let reason = both(&net);
        assert!(reason.contains(hint), "{reason}");
        fs::write(&config, &whole).unwrap();
    }
    // A port that another program has.
    let listen = whole.split("listen = [\"").nth(1).unwrap().split('"').next().unwrap();
    let taken = UdpSocket::bind(listen).unwrap();
    assert!(both(&net).contains("another program uses this port"));
    drop(taken);
    let output = shoal(&["check", "-c", config.to_str().unwrap()]).output().unwrap();
    assert!(output.status.success(), "{:?}", text(&output));
}

#[test]
fn a_running_nodes_own_things_are_no_fault() {
    let mut net = Net::new(&["r1"]);
    net.start("r1");
    let config = net.config("r1");
    let output = shoal(&["check", "-c", config.to_str().unwrap()]).output().unwrap();
    assert!(output.status.success(), "{:?}", text(&output));
}

#[test]
fn the_configuration_here_is_meant_if_none_is_named() {
    let mut net = Net::new(&["r1"]);
    net.start("r1");
    for verb in ["check", "status", "peers"] {
        let output = shoal(&[verb]).current_dir(net.dir("r1")).output().unwrap();
        assert!(output.status.success(), "{verb}: {:?}", text(&output));
    }
    let elsewhere = net.folder("elsewhere");
    let output = shoal(&["run"]).current_dir(&elsewhere).output().unwrap();
    let said = text(&output).1;
    if !Path::new("/etc/shoal/node.toml").exists() {
        assert!(!output.status.success() && said.contains("/etc/shoal/node.toml"), "{said}");
    }
    // What is named counts more than what lies here.
    let output = shoal(&["status", "-c", "other.toml"]).current_dir(net.dir("r1")).output();
    assert!(!output.unwrap().status.success());
    // Another user's file would name whose socket is asked.
    if nix::unistd::geteuid().is_root() {
        std::os::unix::fs::lchown(net.config("r1"), Some(65_534), None).unwrap();
        let output = shoal(&["status"]).current_dir(net.dir("r1")).output().unwrap();
        assert!(!output.status.success(), "{:?}", text(&output));
    }
}

#[test]
fn options_that_mean_nothing_are_refused() {
    for words in [
        &["demo", "-c", "node.toml"][..],
        &["genkey", "--socket", "x"],
        &["completions", "bash", "--json"],
        &["check", "--socket", "x"],
        &["run", "--json"],
        &["--json", "run"],
    ] {
        let output = shoal(words).output().unwrap();
        let said = text(&output).1;
        assert_eq!(output.status.code(), Some(2), "{words:?}: {said}");
        assert!(said.contains("means nothing to this command"), "{words:?}: {said}");
    }
}
