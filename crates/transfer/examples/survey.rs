//! The control law on paths of 100 to 1,000 Mbit/s, in a few seconds: for trying another value of a
//! constant (docs/design/transfer.md).
//!
//! ```console
//! cargo run --release -p shoal-transfer --example survey
//! ```

#[path = "../tests/net/mod.rs"]
mod net;

use std::time::Duration;

use net::{EmulatedNet, LinkStage, MS, NewRival, Rival, SHARE, jain};
use shoal_transfer::TransferId;

/// Stalls of hosts and routers: mean interval and greatest length, in milliseconds.
type Stalls = (u64, u64);

/// `n` pairs of hosts, each with an access link of its own, over one shared line.
fn dumbbell(n: u32, line: LinkStage, seed: u64) -> EmulatedNet {
    let access = LinkStage { delay_ns: 20_000, ..LinkStage::default() };
    let mut stages = vec![line];
    stages.extend((0..3 * n).map(|_| access.clone()));
    let mut net = EmulatedNet::new(2 * n as usize, stages, seed);
    for i in 0..n {
        let at = 1 + 3 * i as usize;
        net.routes.insert((i, n + i), vec![at, 0, at + 1]);
        net.routes.insert((n + i, i), vec![at + 2]);
    }
    net
}

/// Bytes per second that each transfer gains in the next `seconds`.
fn gained(net: &mut EmulatedNet, ids: &[(u32, TransferId)], seconds: f64) -> Vec<f64> {
    let before: Vec<_> = ids.iter().map(|&(host, id)| net.bytes_done(host, id)).collect();
    net.run_for(Duration::from_secs_f64(seconds));
    let after = ids.iter().map(|&(host, id)| net.bytes_done(host, id));
    after.zip(before).map(|(a, b)| (a - b) as f64 / seconds).collect()
}

/// One transfer: its use of the path's capacity, and the queue.
fn one(name: &str, stage: LinkStage, stalls: Stalls, seconds: f64) {
    let possible = stage.rate * SHARE * (1.0 - stage.loss);
    let mut net = EmulatedNet::pair(vec![stage], 7);
    (net.stall_every_ns, net.stall_ns) = (stalls.0 * MS, stalls.1 * MS);
    let ids = [(0, net.offer(0, 1, 20_000_000_000))];
    let full = (1..=30).filter(|_| gained(&mut net, &ids, 0.1)[0] > 0.9 * possible).min();
    let start_ms = net.stages[0].peak * 1e3;
    net.stages[0].waits.clear();
    let used = gained(&mut net, &ids, seconds)[0] / possible;
    let (mean, most) = net.stages[0].wait_ms();
    let full_s = full.map(|tenths| f64::from(tenths) / 10.0);
    println!(
        "{name}: used {used:.3}, queue {mean:.1}, 99% below {most:.1}, at first {start_ms:.0} ms, \
         full after {full_s:?} s"
    );
}

/// Several transfers on a line of 100 Mbit/s that start `apart_s` apart, once for each seed.
fn several(n: u32, apart_s: f64, stalls: Stalls, seeds: &[u64]) {
    for &seed in seeds {
        let mut net = dumbbell(n, LinkStage::line(100.0).delay_ms(5.0), seed);
        (net.stall_every_ns, net.stall_ns) = (stalls.0 * MS, stalls.1 * MS);
        let mut ids = Vec::new();
        for i in 0..n {
            ids.push((i, net.offer(i, n + i, 20_000_000_000)));
            net.run_for(Duration::from_secs_f64(apart_s));
        }
        net.run_for(Duration::from_secs(3));
        net.stages[0].waits.clear();
        let index = jain(&gained(&mut net, &ids, 5.0));
        let (mean, _) = net.stages[0].wait_ms();
        println!(
            "{n} transfers {apart_s} s apart, stalls {stalls:?}: Jain {index:.3}, {mean:.1} ms"
        );
    }
}

/// A transfer beside a TCP connection on a line of 100 Mbit/s.
fn beside(name: &str, rival: NewRival) {
    let mut net = dumbbell(1, LinkStage::line(100.0).delay_ms(10.0), 18);
    let ids = [(0, net.offer(0, 1, 20_000_000_000))];
    net.add_rival(rival(net.now));
    net.run_for(Duration::from_secs(5));
    let file = gained(&mut net, &ids, 15.0)[0] / (100e6 / 8.0 / 2.0 * SHARE);
    println!("beside {name}: {file:.2} of an equal part");
}

/// A route that grows longer by 20 ms.
fn longer_route() {
    let mut net = dumbbell(1, LinkStage::line(100.0).delay_ms(5.0), 19);
    let ids = [(0, net.offer(0, 1, 20_000_000_000))];
    net.run_for(Duration::from_secs(3));
    net.stages[0].delay_ns += 20 * MS;
    net.run_for(Duration::from_secs(4));
    net.stages[0].waits.clear();
    let used = gained(&mut net, &ids, 3.0)[0] / (12.5e6 * SHARE);
    println!("longer route: used {used:.3}, queue {:.1} ms", net.stages[0].wait_ms().0);
}

fn main() {
    let line = |mbit, ms| LinkStage::line(mbit).delay_ms(ms);
    let policer = LinkStage { police: true, ..LinkStage::shaped(100.0).delay_ms(5.0) };
    let marking = LinkStage { mark_above: 12_500.0, ..line(100.0, 5.0) };
    one("200 Mbit/s", line(200.0, 5.0), (0, 0), 3.0);
    one("1 Gbit/s", LinkStage::shaped(1000.0), (0, 0), 0.7);
    one("200 Mbit/s, a busy machine", line(200.0, 5.0), (10, 6), 4.0);
    one("200 ms, 1% loss", line(100.0, 100.0).loss(0.01), (0, 0), 6.0);
    one("40 ms, 20% loss", line(100.0, 20.0).loss(0.2), (0, 0), 5.0);
    one("a policer", policer, (0, 0), 4.0);
    one("a marking router", marking, (0, 0), 4.0);
    several(10, 0.3, (0, 0), &[16]);
    several(10, 0.1, (2, 10), &[40, 41]);
    several(4, 0.0, (0, 0), &[16]);
    beside("BBR", Rival::bbr);
    beside("cubic", Rival::cubic);
    longer_route();
}
