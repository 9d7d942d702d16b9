//! Default ports of nodes.

use std::net::UdpSocket;
use std::process::Stdio;

use shoal_e2e::{LoopbackNet, shoal, text};

/// Removes the `listen` line from a node's configuration.
fn forget_port(net: &LoopbackNet, name: &str) {
    let old = std::fs::read_to_string(net.config(name)).unwrap();
    let lines: Vec<&str> = old.lines().filter(|line| !line.starts_with("listen")).collect();
    std::fs::write(net.config(name), lines.join("\n") + "\n").unwrap();
}

/// The port that follows from a node's key. All commands must print the same one.
fn own_port(net: &LoopbackNet, name: &str) -> u16 {
    let key = net.dir(name).join("node.key");
    let said = shoal(&["pubkey", "--port", key.to_str().unwrap()]).output().unwrap();
    let port: u16 = text(&said).0.trim().parse().unwrap();
    let check = net.ask(name, &["check"]).unwrap();
    assert_eq!(check["check"]["listen"][0], format!("0.0.0.0:{port}"));
    port
}

#[test]
fn a_node_without_a_port_gets_one_by_its_key() {
    let mut net = LoopbackNet::new(&["r1", "h1", "h2"]);
    ["h1", "h2"].iter().for_each(|name| forget_port(&net, name));
    let ports = ["h1", "h2"].map(|name| own_port(&net, name));
    assert_ne!(ports[0], ports[1]);
    assert!(!ports.contains(&7_400));
    // A program uses h2's port.
    let _program = UdpSocket::bind(("0.0.0.0", ports[1])).unwrap();
    net.start_all();
    let status = ["h1", "h2"].map(|name| net.ask(name, &["status"]).unwrap()["status"].clone());
    assert_eq!(status[0]["listen"][0], format!("0.0.0.0:{}", ports[0]));
    assert_ne!(status[1]["listen"][0], format!("0.0.0.0:{}", ports[1]));
    let warned =
        |n: usize| status[n]["warnings"].to_string().contains("belongs to another program");
    assert!(!warned(0) && warned(1), "{status:?}");
}

#[test]
fn a_command_without_a_daemon_leaves_the_daemon_its_port() {
    let mut net = LoopbackNet::new(&["r1", "h1", "h2"]);
    net.start("r1");
    net.start("h2");
    let file = net.folder("out").join("file");
    std::fs::write(&file, shoal_e2e::bytes(1, 100_000)).unwrap();
    // Nobody receives yet, so the command waits.
    let words = ["send", "--wait", "60", file.to_str().unwrap(), "h2"];
    let mut sender = net.command("h1", &words).stderr(Stdio::piped()).spawn().unwrap();
    net.until(|net| net.ask("r1", &["status"]).unwrap()["status"]["links_up"] == 2);
    net.start("h1");
    assert!(sender.try_wait().unwrap().is_none(), "the command must run all the time");
    let listens = net.ask("h1", &["status"]).unwrap()["status"]["listen"][0].to_string();
    assert!(listens.contains(":20401"), "{listens}");
    sender.kill().unwrap();
    sender.wait().unwrap();
}
