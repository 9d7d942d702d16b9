//! Speed on emulated paths: the rows of the speed tables, each with its result.

use crate::net;
use std::time::Duration;

use crate::net::{EmulatedNet, LinkStage, MS, one, share};

fn report(name: &str, run: &net::FileResult, share: f64) {
    println!(
        "{name}: share {share:.4} of the path, {:.1} Mbit/s, resent/lost {:.3}, {:.3} s, \
         peak queue {:.1} ms, {:?}",
        run.rate / 1e6,
        run.resent,
        run.seconds,
        run.peak_ms,
        run.stats
    );
}

fn gigabit() -> Vec<LinkStage> {
    vec![LinkStage::shaped(1000.0); 3]
}

#[test]
fn three_gigabit_hops() {
    let mut net = EmulatedNet::pair(gigabit(), 1);
    let run = one(&mut net, 500_000_000, 10.0);
    let used = share(&run, 1000.0, 1.0);
    report("3 x 1 Gbit/s", &run, used);
    assert!(run.rate > 0.905e9, "{}", run.rate);
}

#[test]
fn three_gigabit_hops_on_a_busy_machine() {
    for (every, length, least) in [(20, 6, 0.90), (10, 6, 0.88), (20, 20, 0.5)] {
        let mut used = Vec::new();
        for seed in 0..2 {
            let mut net = EmulatedNet::pair(gigabit(), 20 + seed);
            (net.stall_every_ns, net.stall_ns) = (every * MS, length * MS);
            let run = one(&mut net, 150_000_000, 10.0);
            used.push(share(&run, 1000.0, 1.0));
        }
        println!("3 x 1 Gbit/s, stalls of up to {length} ms every {every} ms: share {used:.3?}");
        assert!(used.iter().all(|used| *used > least));
    }
}

#[test]
fn one_percent_on_every_link() {
    let mut net = EmulatedNet::pair(gigabit().into_iter().map(|s| s.loss(0.01)).collect(), 3);
    let run = one(&mut net, 200_000_000, 10.0);
    let used = share(&run, 1000.0, 0.99f64.powi(3));
    report("1% per link", &run, used);
    assert!(run.rate > 0.8e9, "{}", run.rate);
    assert!((0.95..1.05).contains(&run.resent));
}

#[test]
fn twenty_percent_over_the_path() {
    let mut net = EmulatedNet::pair(gigabit().into_iter().map(|s| s.loss(0.0717)).collect(), 4);
    let run = one(&mut net, 200_000_000, 10.0);
    let used = share(&run, 1000.0, 0.8);
    report("20% over the path", &run, used);
    assert!(run.rate > 0.72e9, "{}", run.rate);
    assert!((0.95..1.05).contains(&run.resent));
}

/// A line is cut during a transfer, and the detour is one link longer.
#[test]
fn a_cut_line_and_a_detour_that_loses_more() {
    for (every, length, least) in [(0, 0, 0.93), (10, 6, 0.75)] {
        let link = LinkStage::shaped(1000.0).loss(0.0717);
        let mut net = EmulatedNet::pair(vec![link.clone(); 3], 8);
        (net.stall_every_ns, net.stall_ns) = (every * MS, length * MS);
        let id = net.offer(0, 1, 20_000_000_000);
        net.run_for(Duration::from_millis(2_000));
        for at in [1, 4] {
            net.stages[at].down = true;
        }
        net.run_for(Duration::from_millis(500));
        for at in [1, 4] {
            // Two links instead of one.
            let twice = 1.0 - (1.0 - link.loss) * (1.0 - link.loss);
            net.stages[at] = LinkStage { loss: twice, delay_ns: 2 * link.delay_ns, ..link.clone() };
        }
        let before = net.bytes_done(0, id);
        net.run_for(Duration::from_secs(4));
        let rate = (net.bytes_done(0, id) - before) as f64 * 8.0 / 4.0;
        let used = rate / (1e9 * net::SHARE * (1.0 - link.loss).powi(4));
        println!("after a cut, stalls of up to {length} ms: share {used:.3} of the detour");
        assert!(used > least, "{used}");
    }
}

#[test]
fn twenty_percent_at_80_ms() {
    let stages = vec![LinkStage::shaped(300.0).delay_ms(40.0).loss(0.2)];
    let mut net = EmulatedNet::pair(stages, 5);
    let run = one(&mut net, 200_000_000, 30.0);
    let used = share(&run, 300.0, 0.8);
    report("20%, 80 ms", &run, used);
    assert!(used > 0.8, "{used}");
    assert!((0.95..1.05).contains(&run.resent));
}

#[test]
fn one_percent_at_200_ms() {
    let stages = vec![LinkStage::shaped(300.0).delay_ms(100.0).loss(0.01)];
    let mut net = EmulatedNet::pair(stages, 6);
    let id = net.offer(0, 1, 400_000_000);
    let possible = 300e6 * net::SHARE * 0.99 / 8.0;
    let (mut last, mut started) = (0, None);
    for tenth in 1..=20 {
        net.run_for(Duration::from_millis(100));
        let done = net.bytes_done(0, id);
        if (done - last) as f64 * 10.0 > possible * 0.9 {
            started = started.or(Some(tenth));
        }
        last = done;
    }
    net.run_for(Duration::from_secs(8));
    let used = (net.bytes_done(0, id) - last) as f64 / 8.0 / possible;
    println!(
        "1%, 200 ms: share {used:.4} after startup, which took {started:?} tenths of a second"
    );
    assert!(used > 0.93, "{used}");
    // The offer and its acceptance take the first two of these tenths.
    assert!(started.is_some_and(|tenths| tenths <= 17));
}

#[test]
fn the_queue_of_a_full_line_is_short() {
    for (mbit, delay_ms, least, most) in [(1000.0, 0.05, 0.99, 4.0), (200.0, 5.0, 0.98, 6.5)] {
        let mut net = EmulatedNet::pair(vec![LinkStage::line(mbit).delay_ms(delay_ms)], 7);
        let id = net.offer(0, 1, 20_000_000_000);
        net.run_for(Duration::from_millis(1_500));
        net.stages[0].waits.clear();
        let before = net.bytes_done(0, id);
        net.run_for(Duration::from_secs(4));
        let rate = (net.bytes_done(0, id) - before) as f64 * 8.0 / 4.0;
        let used = rate / (mbit * 1e6 * net::SHARE);
        let (mean, above) = net.stages[0].wait_ms();
        println!("{mbit} Mbit/s: used {used:.3}, queue {mean:.1} ms, 99% below {above:.1}");
        assert!(used > least && above < most, "{used} {above}");
    }
}
