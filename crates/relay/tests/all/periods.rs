//! The timing of an established link has no period by which an observer could recognise the
//! program.

use core::time::Duration;
use std::collections::BTreeMap;

use crate::support::{Net, PathRecorder};
use shoal_wire::Address;

const H1: usize = 0;
const R1: usize = 1;
const R2: usize = 2;

/// Departure times of frames between two nodes, in milliseconds.
fn departures(net: &mut Net, pair: [usize; 2], span: Duration) -> [Vec<u64>; 2] {
    let mut left = [Vec::new(), Vec::new()];
    let end = net.now + span;
    while net.now < end {
        for (i, &to) in [pair[1], pair[0]].iter().enumerate() {
            let (from, to) = (Some(net.nodes[pair[i]].at), net.nodes[to].at);
            net.watches[i] = Some(PathRecorder { from, to, seen: Vec::new(), at: Vec::new() });
        }
        net.step();
        for (left, watch) in left.iter_mut().zip(&mut net.watches) {
            let seen = watch.take().map_or(0, |watch| watch.seen.len());
            left.extend((seen > 0).then(|| net.now.as_micros() / 1_000));
        }
        net.now = net.now + Duration::from_millis(1);
    }
    left
}

/// Number of gaps of at least `least` ms, and the share of the most common one.
fn gaps(left: &[u64], least: u64) -> (usize, f64) {
    let mut counts = BTreeMap::new();
    let all = left.windows(2).map(|pair| pair[1] - pair[0]).filter(|gap| *gap >= least);
    let all: Vec<u64> = all.collect();
    for gap in &all {
        *counts.entry(*gap).or_insert(0u32) += 1;
    }
    let most = counts.values().max().copied().unwrap_or_default();
    (all.len(), f64::from(most) / all.len().max(1) as f64)
}

fn net() -> Net {
    let addresses = [Address::new(1, 1), Address::new(1, 0), Address::new(2, 0)];
    let mut net = Net::with(&addresses, &[(H1, R1), (R1, R2)], |config| {
        let host = !config.address.is_router();
        config.liveness.keepalive = host.then_some(Duration::from_secs(10));
        // Sessions don't expire, so only the timers of links are visible.
        config.session.rekey_after = Duration::from_secs(100_000);
        config.session.reject_after = Duration::from_secs(200_000);
        config.session.silence = Duration::from_secs(100_000);
    });
    net.run(Duration::from_secs(10));
    net
}

#[test]
fn an_idle_host_has_no_period() {
    let mut net = net();
    let [asked, answered] = departures(&mut net, [H1, R1], Duration::from_secs(1_200));
    let (count, share) = gaps(&asked, 1_000);
    println!("host: {count} gaps of a second or more, {:.0}% of them equal", share * 100.0);
    assert!(count > 80 && share <= 0.10, "{count} {share}");
    let delay = |at: &u64| answered.iter().find(|answer| *answer >= at).map(|answer| answer - at);
    let delays: Vec<u64> = asked.iter().filter_map(delay).collect();
    let mut different = delays.clone();
    different.sort_unstable();
    different.dedup();
    println!("answers after {} different numbers of milliseconds", different.len());
    assert!(different.len() >= 10, "{different:?}");
}

#[test]
fn a_link_of_routers_has_no_period() {
    let mut net = net();
    let both = departures(&mut net, [R1, R2], Duration::from_secs(600));
    for left in &both {
        let (count, share) = gaps(left, 1);
        println!("router: {count} gaps, {:.1}% of them equal", share * 100.0);
        assert!(count > 4_000 && share <= 0.10, "{count} {share}");
    }
}
