//! A node's memory after a burst of traffic.

use std::process::Stdio;
use std::time::{Duration, Instant};

use shoal_e2e::LoopbackNet;

/// Memory that a node may keep after a burst: receive buffers, and pages that the allocator can't
/// return.
const KEPT_MAX: u64 = 10_000_000;
/// Enough files to use all memory for chunks.
const FILES: u8 = 120;
/// Longest time until the memory is returned.
const PATIENCE: Duration = Duration::from_secs(15);

fn memory(net: &LoopbackNet, name: &str) -> u64 {
    net.ask(name, &["status"]).unwrap()["status"]["memory_bytes"].as_u64().unwrap()
}

#[test]
fn what_a_burst_took_comes_back() {
    let mut net = LoopbackNet::new(&["r1", "h1", "h2"]);
    net.start_all();
    let before = ["h1", "h2"].map(|name| memory(&net, name));
    let (inbox, files) = (net.folder("in"), net.folder("out"));
    for n in 0..FILES {
        std::fs::write(files.join(format!("f{n}")), shoal_e2e::bytes(n, 3_000_000)).unwrap();
    }
    let count = FILES.to_string();
    let words = ["receive", "--count", &count, "--from", "h1", "--dir", inbox.to_str().unwrap()];
    let receiver = net.command("h2", &words).stderr(Stdio::null()).spawn().unwrap();
    let words = ["send", "--wait", "10", "--parallel", "16", files.to_str().unwrap(), "h2"];
    let mut sender = net.command("h1", &words).stderr(Stdio::null()).spawn().unwrap();
    let mut most = [0; 2];
    let began = Instant::now();
    while sender.try_wait().unwrap().is_none() {
        for (most, name) in most.iter_mut().zip(["h1", "h2"]) {
            *most = memory(&net, name).max(*most);
        }
        assert!(began.elapsed() < Duration::from_secs(120), "the files don't pass");
        std::thread::sleep(Duration::from_millis(50));
    }
    for (most, name) in most.iter_mut().zip(["h1", "h2"]) {
        *most = memory(&net, name).max(*most);
    }
    assert!(sender.wait().unwrap().success());
    assert!(shoal_e2e::end_of(receiver, "receive").status.success());
    assert!(most[0] > before[0] + KEPT_MAX, "no burst: {before:?}, then {most:?}");
    let ended = Instant::now();
    loop {
        let after = ["h1", "h2"].map(|name| memory(&net, name));
        if after.iter().zip(&before).all(|(after, before)| *after < before + KEPT_MAX) {
            return;
        }
        assert!(
            ended.elapsed() < PATIENCE,
            "h1 and h2 held {before:?} bytes, {most:?} in the burst, and hold {after:?} still"
        );
        std::thread::sleep(Duration::from_millis(200));
    }
}
