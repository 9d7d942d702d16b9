//! Nodes whose wall clock is wrong, is set, or is set back while they run.
//!
//! A namespace has no wall clock of its own. A library stands between the node and the C library
//! instead (clock.c).

use std::fs;

use shoal_e2e::clock::ClockOffset;
use shoal_e2e::{LoopbackNet, shoal, text};

const DAY_S: i64 = 86_400;

fn start(offset: &ClockOffset, net: &mut LoopbackNet, name: &str) {
    net.start_with(name, &offset.env());
}

fn status(net: &LoopbackNet, name: &str) -> String {
    text(&net.command(name, &["status"]).output().unwrap()).0
}

fn log(net: &LoopbackNet, name: &str) -> String {
    fs::read_to_string(net.dir(name).join("log")).unwrap()
}

#[test]
fn a_wrong_clock_is_named_on_both_sides_with_the_difference() {
    for (ahead_s, here, there) in [(73_830, "behind", "ahead of"), (-73_830, "ahead of", "behind")]
    {
        let mut net = LoopbackNet::new(&["r1", "h1"]);
        let Some(offset) = ClockOffset::new(net.root()) else { return };
        offset.set(ahead_s);
        net.start("r1");
        start(&offset, &mut net, "h1");
        let at_h1 = format!("the clock of the neighbour \"r1\" is 20 h 30 min {here} this node's");
        let at_r1 = format!("the clock of the neighbour \"h1\" is 20 h 30 min {there} this node's");
        net.until(|net| status(net, "h1").contains(&at_h1) && status(net, "r1").contains(&at_r1));
        let said = format!("the clock of a neighbour is 20 h 30 min {there} this node's");
        net.until(|net| log(net, "r1").contains(&said));
        // Once the clock is right, neither side warns; no restart is needed.
        offset.set(0);
        net.until(|net| {
            ["r1", "h1"].iter().all(|name| !status(net, name).contains("the clock of"))
        });
        assert_eq!(net.ask("r1", &["status"]).unwrap()["status"]["links_up"], 1);
    }
}

#[test]
fn a_clock_that_is_days_ahead_is_refused_and_heals_when_it_is_right() {
    let mut net = LoopbackNet::new(&["r1", "h1"]);
    let Some(offset) = ClockOffset::new(net.root()) else { return };
    offset.set(2 * DAY_S);
    net.start("r1");
    start(&offset, &mut net, "h1");
    net.until(|net| status(net, "r1").contains("wrong_clock: the clock of this node or of the"));
    let up = |net: &LoopbackNet| net.ask("r1", &["status"]).unwrap()["status"]["links_up"] == 1;
    assert!(!up(&net));
    offset.set(0);
    net.until(up);
}

/// A network of one node, with an authority.
fn with_authority() -> LoopbackNet {
    let net = LoopbackNet::new(&["r1"]);
    let made = authority(&net, &["init"]);
    let config = made.split("\n\n").find(|part| part.contains("[authority]")).unwrap();
    let config = config.split("node.toml:\n").last().unwrap();
    net.configure("r1", &format!("\n{}\n", config.trim_end()));
    let key = net.dir("r1").join("node.key");
    let key = text(&shoal(&["pubkey", key.to_str().unwrap()]).output().unwrap()).0;
    authority(&net, &["sign", "r1", "--key", key.trim(), "--address", "1.0"]);
    publish(&net);
    net
}

fn authority(net: &LoopbackNet, words: &[&str]) -> String {
    let folder = net.root().join("authority");
    let mut command = shoal(&["authority", words[0], "--dir", folder.to_str().unwrap()]);
    let output = command.args(&words[1..]).output().unwrap();
    assert!(output.status.success(), "{words:?}: {}", text(&output).1);
    text(&output).0
}

fn publish(net: &LoopbackNet) {
    let (from, to) = ("authority/network.list", "r1/network.list");
    fs::copy(net.root().join(from), net.root().join(to)).unwrap();
}

fn list(net: &LoopbackNet) -> (String, u64) {
    let list = net.ask("r1", &["status"]).unwrap()["status"]["authority"].clone();
    (list["state"].as_str().unwrap().to_string(), list["list_version"].as_u64().unwrap())
}

#[test]
fn a_clock_that_was_far_ahead_and_is_set_right_opens_the_network_again() {
    let mut net = with_authority();
    let Some(offset) = ClockOffset::new(net.root()) else { return };
    offset.set(30 * DAY_S);
    start(&offset, &mut net, "r1");
    let (state, version) = list(&net);
    assert_eq!(state, "stale");
    offset.set(0);
    net.until(|net| list(net).0 == "fresh");
    // A clock that is set back is not followed: newer lists stay in force.
    offset.set(-5 * DAY_S);
    let behind = "behind the time by which lists and memberships end here";
    net.until(|net| status(net, "r1").contains(behind));
    authority(&net, &["renew"]);
    publish(&net);
    net.until(|net| list(net) == ("fresh".into(), version + 1));
    offset.set(0);
    net.until(|net| !status(net, "r1").contains(behind));
}
