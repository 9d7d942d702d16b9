use std::time::{Duration, Instant};

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use serde_json::json;
use shoal_daemon::control::api::CircuitTotals;

use super::super::rates::NodeSample;
use super::*;

/// A node with two links after `seconds`, in which it has moved ten megabytes per second.
fn sample(start: Instant, seconds: u64) -> NodeSample {
    let traffic = |share: u64| {
        let n = seconds * share;
        json!({ "frames_in": n * 7_000, "frames_out": n * 10, "bytes_in": n * 10_000_000,
                "bytes_out": n * 2_000 })
    };
    let status = json!({
        "name": "r1", "address": "1.0", "role": "router", "version": "0", "pid": 1,
        "uptime_s": seconds, "public_key": "", "listen": [], "links": 2, "links_up": 1,
        "routes": 1, "host_sessions": 0, "transfers": 0,
        "offloads": { "gso": true, "gro": true, "aes": true, "receive_buffer": 1,
                      "send_buffer": 1 },
        "traffic": traffic(1), "drops": [["replay", seconds * 3]], "cpu_s": seconds as f64 / 4.0,
        "memory_bytes": 12_000_000, "warnings": []
    });
    let peer = |name: &str, state: &str, share: u64, rtt_us: u64| {
        json!({ "name": name, "address": "2.0", "endpoint": null, "state": state,
                "last_heard_ms": 1, "session_age_s": 1.0, "suite": null, "lanes": 1,
                "rtt_us": rtt_us, "loss": 0.25, "cost": 7, "traffic": traffic(share),
                "egress_cells": 3, "small_path": false })
    };
    let peers = json!([peer("alice", "up", 1, 150), peer("bob", "silent", 0, 9_000)]);
    NodeSample {
        at: start + Duration::from_secs(seconds),
        unix_ms: 1,
        status: serde_json::from_value(status).unwrap(),
        peers: serde_json::from_value(peers).unwrap(),
    }
}

fn rates() -> NodeRates {
    let start = Instant::now();
    NodeRates::between(&sample(start, 10), &sample(start, 12))
}

fn screen(view: &TopView, width: u16, height: u16) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| view.draw(frame)).unwrap();
    let cells = terminal.backend().buffer().content().chunks(usize::from(width));
    cells.map(|row| row.iter().map(ratatui::buffer::Cell::symbol).collect()).collect()
}

fn names(view: &TopView) -> Vec<&str> {
    view.links().iter().map(|link| link.name.as_str()).collect()
}

#[test]
fn circuits_have_a_line_once_there_were_any() {
    let start = Instant::now();
    let [before, after] = [10, 12].map(|seconds| {
        let mut sample = sample(start, seconds);
        let (cells, dropped) = (seconds * 1_234, seconds);
        sample.status.circuits = CircuitTotals {
            own: 2,
            open: 8,
            built: 12,
            failed: 1,
            cells,
            dropped,
            ..CircuitTotals::default()
        };
        sample
    });
    let mut rates = NodeRates::between(&before, &after);
    let line = "circuits: 2 own, at most 8 here; 12 built, 1 failed; 1234 cells/s, 1 dropped/s";
    assert_eq!(rates.circuits().as_deref(), Some(line));
    assert!(rates.text().contains(line));
    let mut view = TopView::new(false);
    view.take(rates.clone());
    assert!(screen(&view, 80, 20)[2].starts_with(line));
    rates.circuits = Default::default();
    assert!(rates.circuits().is_none() && !rates.text().contains("circuits"));
    view.take(rates);
    assert!(!screen(&view, 80, 20).concat().contains("circuits"));
}

#[test]
fn rates_are_differences_over_time() {
    let rates = rates();
    assert_eq!(rates.total.bytes_in, 10_000_000.0);
    assert_eq!(rates.total.frames_out, 10.0);
    assert_eq!(rates.cpu, 0.25);
    assert_eq!(rates.drops, [("replay".to_string(), 3.0)]);
    assert_eq!(rates.peers[0].flow, Some(rates.total));
    // A restart in between gives no negative rate.
    let start = Instant::now();
    let mut later = sample(start, 1);
    later.at = start + Duration::from_secs(13);
    let restarted = NodeRates::between(&sample(start, 12), &later);
    assert_eq!((restarted.total.bytes_in, restarted.cpu), (0.0, 0.0));
    assert!(restarted.drops.is_empty());
}

#[test]
fn the_screen_shows_the_node_its_links_and_its_drops() {
    let mut view = TopView::new(true);
    assert!(screen(&view, 100, 20)[0].starts_with("asking the node"));
    view.take(rates());
    let rows = screen(&view, 100, 20);
    assert!(rows[0].starts_with("r1 (1.0)  up 12 s  cpu 25.0%  memory 12.0 MB"), "{}", rows[0]);
    assert!(rows[1].starts_with("drops: replay 3/s"), "{}", rows[1]);
    assert!(rows[2].contains("in 10.0 MB/s"), "{}", rows[2]);
    let alice = rows.iter().find(|row| row.starts_with("alice")).expect("a row for alice");
    for part in ["up", "10.0 MB/s", "2.0 kB/s", "7010", "0.15 ms", "25.0%"] {
        assert!(alice.contains(part), "{part} in {alice}");
    }
    assert!(rows[19].contains("q quit"));
    // The usual terminal has room for every column, names first; a narrower one loses the last
    // ones.
    let last = |width| -> (String, String) {
        let rows = screen(&view, width, 12);
        let find = |start: &str| rows.iter().find(|row| row.starts_with(start)).unwrap().clone();
        (find("link"), find("alice"))
    };
    let (heading, alice) = last(80);
    assert!(heading.ends_with("  loss  cost  queue") && alice.ends_with("25.0%     7      3"));
    let (heading, alice) = last(41);
    assert!(heading.trim_end().ends_with("out") && alice.trim_end().ends_with("2.0 kB/s"));
    // Drawing stays inside a terminal of any size.
    for (width, height) in [(1, 1), (10, 3), (300, 2)] {
        screen(&view, width, height);
    }
}

#[test]
fn keys_sort_reverse_scroll_and_pause() {
    let mut view = TopView::new(false);
    view.take(rates());
    assert_eq!(names(&view), ["alice", "bob"]);
    view.key(KeyCode::Char('r'));
    assert_eq!(names(&view), ["bob", "alice"]);
    view.key(KeyCode::Char('r'));
    for _ in 0..5 {
        view.key(KeyCode::Char('s'));
    }
    assert_eq!(names(&view), ["bob", "alice"], "by round trip, the longest above");
    view.key(KeyCode::Char('p'));
    let start = Instant::now();
    view.take(NodeRates::between(&sample(start, 10), &sample(start, 20)));
    assert!(screen(&view, 100, 20)[0].contains("up 12 s"), "a paused screen stays");
    view.key(KeyCode::Char(' '));
    view.take(NodeRates::between(&sample(start, 10), &sample(start, 20)));
    assert!(screen(&view, 100, 20)[0].contains("up 20 s"));
    for _ in 0..9 {
        view.key(KeyCode::Down);
    }
    assert_eq!(view.scroll, 1, "the last link stays in sight");
}
