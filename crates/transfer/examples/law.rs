//! The control law on emulated paths under a virtual clock. Prints shares of transfers, length of
//! the queue, use of the path, and rate of the receiver's messages.
//!
//! ```console
//! cargo run --release -p shoal-transfer --example law [one | fair | beside [SEEDS]]
//! ```

#[path = "../tests/net/mod.rs"]
mod net;

use std::time::Duration;

use net::{EmulatedNet, LinkStage, MS, NewRival, Rival, SHARE, jain};
use shoal_transfer::TransferId;

/// Transfers that share a line.
struct LawCase {
    transfers: u32,
    apart_s: f64,
    mbit: f64,
    delay_ms: f64,
    loss: f64,
    /// Stalls of hosts and routers: mean interval and greatest length, in milliseconds.
    stalls: (u64, u64),
}

/// `n` pairs of hosts, each with an access link of its own, over one shared line.
fn dumbbell(case: &LawCase, seed: u64) -> EmulatedNet {
    let access = LinkStage { delay_ns: 20_000, ..LinkStage::default() };
    let line = LinkStage::line(case.mbit).delay_ms(case.delay_ms).loss(case.loss);
    let n = case.transfers;
    let mut stages = vec![line.clone()];
    stages.extend((0..2 * n).map(|_| access.clone()));
    stages.push(line);
    stages.extend((0..2 * n).map(|_| access.clone()));
    let mut net = EmulatedNet::new(2 * n as usize, stages, seed);
    let back = 2 * n as usize + 1;
    for i in 0..n {
        let at = 1 + 2 * i as usize;
        net.routes.insert((i, n + i), vec![at, 0, at + 1]);
        net.routes.insert((n + i, i), vec![back + at, back, back + at + 1]);
    }
    (net.stall_every_ns, net.stall_ns) = (case.stalls.0 * MS, case.stalls.1 * MS);
    net
}

fn done(net: &EmulatedNet, ids: &[(u32, TransferId)]) -> Vec<f64> {
    ids.iter().map(|&(host, id)| net.bytes_done(host, id) as f64).collect()
}

fn run(case: &LawCase, seed: u64) {
    let mut net = dumbbell(case, seed);
    let mut ids = Vec::new();
    for i in 0..case.transfers {
        ids.push((i, net.offer(i, case.transfers + i, 20_000_000_000)));
        if i + 1 < case.transfers {
            net.run_for(Duration::from_secs_f64(case.apart_s));
        }
    }
    let possible = case.mbit * 1e6 / 8.0 * SHARE * (1.0 - case.loss);
    let (mut last, mut started) = (done(&net, &ids), None);
    let early_ms = net.stages[0].peak * 1e3;
    for tenth in 1..=30 {
        net.run_for(Duration::from_millis(100));
        let now = done(&net, &ids);
        let rate = (now.iter().sum::<f64>() - last.iter().sum::<f64>()) * 10.0;
        if rate > possible * 0.9 {
            started = started.or(Some(f64::from(tenth) / 10.0));
        }
        last = now;
        if tenth == 15 {
            net.stages[0].waits.clear();
        }
    }
    let start_ms = early_ms.max(net.stages[0].peak * 1e3);
    let first = done(&net, &ids);
    let said: u64 = net.hosts.iter().map(|h| h.messages).sum();
    let sent = net.sent_data;
    let mut worst: f64 = 1.0;
    let mut before = first.clone();
    for _ in 0..8 {
        net.run_for(Duration::from_secs(1));
        let now = done(&net, &ids);
        let rates: Vec<f64> = now.iter().zip(&before).map(|(a, b)| a - b).collect();
        worst = worst.min(jain(&rates));
        before = now;
    }
    let rates: Vec<f64> = before.iter().zip(&first).map(|(a, b)| (a - b) / 8.0).collect();
    let used = rates.iter().sum::<f64>() / possible;
    let (mean, most) = net.stages[0].wait_ms();
    let said: u64 = net.hosts.iter().map(|h| h.messages).sum::<u64>() - said;
    let said = said as f64 * 1e6 / (net.sent_data - sent) as f64;
    println!(
        "{:2} x {:4} Mbit/s {:3} ms {:2}% stalls {:2}/{:2} apart {:.1}: jain {:.3} \
         worst {worst:.3} used {used:.3} queue {mean:.1} p99 {most:.1} start {start_ms:.1} ms \
         {started:?} s messages {said:.0}",
        case.transfers,
        case.mbit,
        case.delay_ms,
        case.loss * 100.0,
        case.stalls.0,
        case.stalls.1,
        case.apart_s,
        jain(&rates),
    );
}

/// Transfers beside a TCP connection. Prints each one's part of an equal share, over 5 s at a time.
fn beside(name: &str, rival: NewRival, case: &LawCase, seed: u64) {
    let mut net = dumbbell(case, seed);
    let mut ids = Vec::new();
    for i in 0..case.transfers {
        ids.push((i, net.offer(i, case.transfers + i, 20_000_000_000)));
    }
    net.run_for(Duration::from_secs_f64(case.apart_s));
    net.add_rival(rival(net.now));
    let equal = case.mbit * 1e6 / 8.0 / f64::from(case.transfers + 1) * 5.0;
    let mut parts = String::new();
    let mut sums = (0.0, 0.0, 0.0);
    for _ in 0..6 {
        net.stages[0].waits.clear();
        let (files, tcp) = (done(&net, &ids), net.rival_done(0));
        net.run_for(Duration::from_secs(5));
        let files: f64 = done(&net, &ids).iter().zip(files).map(|(a, b)| a - b).sum();
        let files = files / SHARE / f64::from(case.transfers) / equal;
        let tcp = (net.rival_done(0) - tcp) * 1_514.0 / 1_448.0 / equal;
        let (mean, _) = net.stages[0].wait_ms();
        parts += &format!(" {files:.2}/{tcp:.2}/{mean:.0}");
        sums = (sums.0 + files / 6.0, sums.1 + tcp / 6.0, sums.2 + mean / 6.0);
    }
    println!(
        "{} x beside {name} {:4} Mbit/s {:3} ms stalls {:2}/{:2} apart {:.1}: file {:.2} tcp {:.2} \
         queue {:.1} ms;{parts}",
        case.transfers,
        case.mbit,
        case.delay_ms,
        case.stalls.0,
        case.stalls.1,
        case.apart_s,
        sums.0,
        sums.1,
        sums.2,
    );
}

fn main() {
    let which = std::env::args().nth(1).unwrap_or_default();
    let seeds = std::env::args().nth(2).and_then(|n| n.parse().ok()).unwrap_or(4);
    let c = |transfers, apart_s, mbit, delay_ms, loss, stalls| LawCase {
        transfers,
        apart_s,
        mbit,
        delay_ms,
        loss,
        stalls,
    };
    let all = [
        ("one", c(1, 0.0, 1000.0, 0.05, 0.0, (0, 0))),
        ("one", c(1, 0.0, 1000.0, 0.05, 0.0, (10, 6))),
        ("one", c(1, 0.0, 1000.0, 0.05, 0.0, (20, 20))),
        ("one", c(1, 0.0, 1000.0, 0.05, 0.2, (2, 4))),
        ("one", c(1, 0.0, 1000.0, 0.05, 0.2, (10, 6))),
        ("one", c(1, 0.0, 1000.0, 0.05, 0.2, (20, 20))),
        ("one", c(1, 0.0, 200.0, 0.05, 0.0, (0, 0))),
        ("one", c(1, 0.0, 200.0, 5.0, 0.0, (0, 0))),
        ("one", c(1, 0.0, 200.0, 5.0, 0.0, (10, 6))),
        ("one", c(1, 0.0, 200.0, 0.05, 0.2, (0, 0))),
        ("one", c(1, 0.0, 200.0, 40.0, 0.2, (0, 0))),
        ("one", c(1, 0.0, 200.0, 100.0, 0.01, (0, 0))),
        ("one", c(1, 0.0, 50.0, 5.0, 0.0, (0, 0))),
        ("fair", c(2, 0.0, 100.0, 5.0, 0.0, (0, 0))),
        ("fair", c(4, 0.0, 100.0, 5.0, 0.0, (0, 0))),
        ("fair", c(10, 0.0, 100.0, 5.0, 0.0, (0, 0))),
        ("fair", c(10, 0.0, 100.0, 5.0, 0.0, (10, 6))),
        ("fair", c(10, 0.0, 100.0, 5.0, 0.0, (1, 6))),
        ("fair", c(10, 0.1, 100.0, 5.0, 0.0, (1, 10))),
        ("fair", c(5, 1.3, 100.0, 5.0, 0.0, (0, 0))),
        ("fair", c(5, 1.3, 100.0, 5.0, 0.0, (10, 6))),
        ("fair", c(10, 0.3, 100.0, 5.0, 0.0, (10, 6))),
        ("fair", c(10, 0.5, 100.0, 5.0, 0.0, (20, 4))),
        ("fair", c(7, 0.4, 60.0, 10.0, 0.0, (20, 4))),
        ("fair", c(10, 0.3, 1000.0, 0.05, 0.0, (0, 0))),
        ("fair", c(2, 2.0, 1000.0, 0.05, 0.0, (0, 0))),
        ("fair", c(3, 1.0, 300.0, 5.0, 0.02, (0, 0))),
    ];
    let tcp: [(&str, NewRival); 2] = [("bbr", Rival::bbr), ("cubic", Rival::cubic)];
    let lines = [
        c(1, 0.0, 200.0, 10.0, 0.0, (0, 0)),
        c(1, 0.0, 200.0, 10.0, 0.0, (10, 6)),
        c(1, 2.0, 200.0, 10.0, 0.0, (0, 0)),
        c(1, 0.0, 50.0, 20.0, 0.0, (0, 0)),
        c(1, 0.0, 200.0, 2.0, 0.0, (0, 0)),
        c(2, 0.0, 200.0, 10.0, 0.0, (0, 0)),
    ];
    for (name, rival) in tcp {
        for line in lines.iter().filter(|_| "beside".starts_with(&which)) {
            beside(name, rival, line, 40);
        }
    }
    for (name, case) in all {
        if !name.starts_with(&which) {
            continue;
        }
        // Without random events all seeds give one result.
        let seeds = if case.loss == 0.0 && case.stalls.0 == 0 { 1 } else { seeds };
        for seed in 0..seeds {
            run(&case, seed + 40);
        }
    }
}
