//! Shares of several transfers over one bottleneck.

use crate::net;
use std::time::Duration;

use crate::net::{EmulatedNet, LinkStage, MS, NewRival, Rival, jain};
use shoal_transfer::TransferId;

/// `n` pairs of hosts, each with an access link of its own, over one shared bottleneck.
fn dumbbell(n: u32, bottleneck: LinkStage, seed: u64) -> EmulatedNet {
    let access = LinkStage { delay_ns: 20_000, ..LinkStage::default() };
    let mut stages = vec![bottleneck];
    stages.extend((0..3 * n).map(|_| access.clone()));
    let mut net = EmulatedNet::new(2 * n as usize, stages, seed);
    for i in 0..n {
        let at = 1 + 3 * i as usize;
        net.routes.insert((i, n + i), vec![at, 0, at + 1]);
        net.routes.insert((n + i, i), vec![at + 2]);
    }
    net
}

/// Bytes that each transfer gained in `time`.
fn gained(net: &mut EmulatedNet, ids: &[(u32, TransferId)], time: Duration) -> Vec<f64> {
    let before: Vec<u64> = ids.iter().map(|&(host, id)| net.bytes_done(host, id)).collect();
    net.run_for(time);
    let after = ids.iter().map(|&(host, id)| net.bytes_done(host, id));
    after.zip(before).map(|(a, b)| (a - b) as f64).collect()
}

fn fairness(n: u32, apart_s: f64, bottleneck: LinkStage, seed: u64) -> (f64, f64) {
    let mbit = bottleneck.rate * 8.0 / 1e6;
    let mut net = dumbbell(n, bottleneck, seed);
    let mut ids = Vec::new();
    for i in 0..n {
        ids.push((i, net.offer(i, n + i, 20_000_000_000)));
        if i + 1 < n {
            net.run_for(Duration::from_secs_f64(apart_s));
        }
    }
    net.run_for(Duration::from_secs(3));
    let rates = gained(&mut net, &ids, Duration::from_secs(2));
    let used = rates.iter().sum::<f64>() * 8.0 / 2e6 / (mbit * net::SHARE);
    let index = jain(&rates);
    let rates: Vec<u64> = rates.iter().map(|r| (r * 8.0 / 2e6) as u64).collect();
    let peak = net.stages[0].peak * 1e3;
    println!(
        "{n} transfers {apart_s} s apart, {mbit} Mbit/s: Jain {index:.3}, used {used:.3}, \
         peak {peak:.1} ms, {rates:?}"
    );
    (index, used)
}

#[test]
fn two_started_together() {
    let (index, _) = fairness(2, 0.0, LinkStage::shaped(1000.0), 11);
    assert!(index > 0.95);
}

#[test]
fn two_started_apart() {
    let (index, _) = fairness(2, 2.0, LinkStage::shaped(1000.0), 12);
    assert!(index > 0.95);
}

#[test]
fn three_started_apart_on_a_lossy_path() {
    let (index, _) = fairness(3, 1.0, LinkStage::shaped(300.0).delay_ms(5.0).loss(0.02), 13);
    assert!(index > 0.95);
}

#[test]
fn ten_started_apart() {
    let (index, _) = fairness(10, 0.3, LinkStage::shaped(1000.0), 14);
    assert!(index > 0.95);
}

#[test]
fn five_on_a_slow_link() {
    let (index, _) = fairness(5, 0.5, LinkStage::shaped(50.0), 15);
    assert!(index > 0.95);
}

/// As in the lab: hosts that share only a line of 100 Mbit/s, with 5 ms of delay and 20 ms of
/// queue.
fn on_a_slow_line(n: u32, apart_s: f64, seed: u64) {
    let line = LinkStage::line(100.0).delay_ms(5.0);
    let mut net = dumbbell(n, line, seed);
    let mut ids = Vec::new();
    for i in 0..n {
        ids.push((i, net.offer(i, n + i, 20_000_000_000)));
        if i + 1 < n {
            net.run_for(Duration::from_secs_f64(apart_s));
        }
    }
    net.run_for(Duration::from_secs(3));
    net.stages[0].waits.clear();
    let index = jain(&gained(&mut net, &ids, Duration::from_secs(8)));
    let (mean, most) = net.stages[0].wait_ms();
    println!(
        "{n} transfers {apart_s} s apart: Jain {index:.3}, queue {mean:.1} ms, 99% below {most:.1}"
    );
    assert!(index > 0.95);
    // A sender that takes the queue's first losses for the path's own keeps the queue full.
    assert!(mean < 10.0, "{mean}");
}

#[test]
fn ten_at_once_on_a_slow_line() {
    on_a_slow_line(10, 0.0, 16);
}

#[test]
fn five_started_apart_on_a_slow_line() {
    on_a_slow_line(5, 1.3, 17);
}

/// Hosts and routers stall while ten transfers start. Some senders take a full queue for the path,
/// and its loss for the path's own. They would crowd out the others.
#[test]
fn a_full_queue_is_noticed_by_those_who_know_nothing_else() {
    let mut indices = Vec::new();
    for seed in [40, 41, 42] {
        let mut net = dumbbell(10, LinkStage::line(100.0).delay_ms(5.0), seed);
        (net.stall_every_ns, net.stall_ns) = (2 * MS, 10 * MS);
        let mut ids = Vec::new();
        for i in 0..10 {
            ids.push((i, net.offer(i, 10 + i, 20_000_000_000)));
            net.run_for(Duration::from_millis(100));
        }
        net.run_for(Duration::from_secs(3));
        net.stages[0].waits.clear();
        indices.push(jain(&gained(&mut net, &ids, Duration::from_secs(8))));
        let (mean, most) = net.stages[0].wait_ms();
        println!("ten among stalls: queue {mean:.1} ms, 99% below {most:.1}");
        assert!(mean < 10.0, "{mean}");
    }
    println!("ten among stalls: Jain {indices:.3?}");
    assert!(indices.iter().sum::<f64>() / indices.len() as f64 > 0.93);
}

/// A transfer and a TCP connection on one line; returns each one's part of an equal share.
fn beside(rival: NewRival, seed: u64) -> (f64, f64) {
    let mut net = dumbbell(1, LinkStage::line(200.0).delay_ms(10.0), seed);
    let ids = [(0, net.offer(0, 1, 20_000_000_000))];
    net.add_rival(rival(net.now));
    net.run_for(Duration::from_secs(5));
    let tcp = net.rival_done(0);
    let file = gained(&mut net, &ids, Duration::from_secs(20))[0];
    let equal = 200e6 / 8.0 / 2.0 * 20.0 * net::SHARE;
    (file / equal, (net.rival_done(0) - tcp) / equal)
}

#[test]
fn neither_starves_beside_tcp() {
    let rivals: [(&str, NewRival); 2] = [("bbr", Rival::bbr), ("cubic", Rival::cubic)];
    for (name, rival) in rivals {
        let (file, tcp) = beside(rival, 18);
        println!("beside {name}: file {file:.2}, tcp {tcp:.2}");
        assert!(file > 0.3 && tcp > 0.5, "{name} {file} {tcp}");
    }
}

/// A route that grows longer looks like a queue that others keep.
#[test]
fn a_longer_route_leaves_no_queue() {
    let mut net = dumbbell(1, LinkStage::line(200.0).delay_ms(5.0), 19);
    let ids = [(0, net.offer(0, 1, 20_000_000_000))];
    net.run_for(Duration::from_secs(3));
    net.stages[0].delay_ns += 20 * MS;
    net.run_for(Duration::from_secs(4));
    net.stages[0].waits.clear();
    let used = gained(&mut net, &ids, Duration::from_secs(4))[0] / 4.0 / (25e6 * net::SHARE);
    let (early, most) = net.stages[0].wait_ms();
    println!("longer route: used {used:.3}, queue {early:.1} ms, 99% below {most:.1}");
    assert!(used > 0.9 && early < 8.0, "{used} {early}");
    net.run_for(Duration::from_secs(10));
    net.stages[0].waits.clear();
    net.run_for(Duration::from_secs(4));
    let (late, most) = net.stages[0].wait_ms();
    println!("and later: queue {late:.1} ms, 99% below {most:.1}");
    assert!(late < 4.0 && most < 8.0, "{late} {most}");
}
