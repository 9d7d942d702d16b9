//! Time without traffic for idle hosts when their router restarts.

use std::time::{Duration, Instant};

use shoal_e2e::{LoopbackNet, stalls};

/// Restarts the router. Returns the time until both hosts are back.
fn outage(net: &mut LoopbackNet) -> Duration {
    let began = Instant::now();
    net.end("r1", "-TERM");
    net.start("r1");
    net.until(|net| {
        let Some(status) = net.ask("r1", &["status"]) else { return false };
        status["status"]["links_up"] == 2
    });
    began.elapsed()
}

#[test]
fn hosts_that_are_idle_are_back_soon_after_a_router_starts_again() {
    stalls::check("the router's restart", || {
        let mut net = LoopbackNet::new(&["r1", "h1", "h2"]);
        net.start_all();
        // The links are idle: no reports are sent, only keepalives.
        std::thread::sleep(Duration::from_secs(4));
        let took = outage(&mut net);
        println!("hosts are back after {took:?}");
        let holds = took < Duration::from_secs(2);
        holds.then_some(()).ok_or(format!("hosts are back after {took:?}"))
    });
}

/// Copies the node `of` to the folder `copy`: its key, and its configuration with another port.
fn copied(net: &LoopbackNet, of: &str, copy: &str) {
    let folder = net.folder(copy);
    std::fs::copy(net.dir(of).join("node.key"), folder.join("node.key")).unwrap();
    let config = std::fs::read_to_string(net.config(of)).unwrap();
    std::fs::write(net.config(copy), config.replace(":20401\"", ":20409\"")).unwrap();
}

/// True for the status and for the log of a node if they warn of two nodes with one key.
fn warns(net: &LoopbackNet, name: &str) -> [bool; 2] {
    let status = net.ask(name, &["status"]).unwrap_or_default();
    let log = std::fs::read_to_string(net.dir(name).join("log")).unwrap();
    [status.to_string(), log].map(|said| said.contains("end each other's sessions"))
}

#[test]
fn a_copied_machine_is_spoken_of_within_seconds_and_one_that_moves_is_not() {
    stalls::check("a machine that was copied", || {
        let mut net = LoopbackNet::new(&["r1", "h1", "h2"]);
        net.start_all();
        copied(&net, "h1", "copy");
        // Killed, and started again elsewhere, twice: still one node.
        for name in ["copy", "h1"] {
            let before = if name == "copy" { "h1" } else { "copy" };
            net.end(before, "-KILL");
            net.start(name);
            std::thread::sleep(Duration::from_secs(2));
        }
        for name in ["r1", "h1"] {
            assert_eq!(warns(&net, name), [false; 2], "{name} speaks of two nodes");
        }
        // The link of h1 is idle when the copy starts.
        std::thread::sleep(Duration::from_secs(3));
        let began = Instant::now();
        net.start("copy");
        let all = |net: &LoopbackNet| ["r1", "h1", "copy"].map(|name| warns(net, name));
        while all(&net) != [[true; 2]; 3] && began.elapsed() < Duration::from_secs(20) {
            std::thread::sleep(Duration::from_millis(100));
        }
        let (said, took) = (all(&net), began.elapsed());
        println!("status and log of r1, h1 and the copy: {said:?} after {took:?}");
        let holds = said == [[true; 2]; 3] && took < Duration::from_secs(5);
        holds.then_some(()).ok_or(format!("{said:?} after {took:?}"))
    });
}
