//! How long idle hosts are cut off when their router restarts.

#![allow(clippy::disallowed_methods, reason = "measures a real process")]

use std::time::{Duration, Instant};

use shoal_e2e::{Net, stalls};

/// Restarts the router; returns the time until both hosts are back.
fn outage(net: &mut Net) -> Duration {
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
        let mut net = Net::new(&["r1", "h1", "h2"]);
        net.start_all();
        // The links are idle: no reports are sent, only keepalives.
        std::thread::sleep(Duration::from_secs(4));
        let took = outage(&mut net);
        println!("hosts are back after {took:?}");
        let holds = took < Duration::from_secs(2);
        holds.then_some(()).ok_or(format!("hosts are back after {took:?}"))
    });
}
