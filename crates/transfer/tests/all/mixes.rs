//! Files over paths whose relays mix: each cell waits for a random time, and is overtaken.

use std::time::Duration;

use crate::net::{EmulatedNet, FileResult, LinkStage, SHARE, jain, one};

/// Three links, the middle one the narrowest, with `mixes` mixes, one behind each link.
fn path(mbit: f64, mixes: usize, loss: f64) -> Vec<LinkStage> {
    let wide = LinkStage::default();
    let links = [wide.clone(), LinkStage::line(mbit).delay_ms(1.0), wide];
    let link = |(at, link): (usize, LinkStage)| LinkStage { mixes: at < mixes, loss, ..link };
    links.into_iter().enumerate().map(link).collect()
}

/// Sends one file; returns its use of the narrowest link, and the mean queue there in milliseconds.
/// With `told` the sender knows of the mixes.
fn file(mbit: f64, mixes: usize, loss: f64, told: bool) -> (f64, f64, FileResult) {
    let mut net = EmulatedNet::pair(path(mbit, mixes, loss), 31);
    if told {
        net.tell_mixes();
    }
    let run = one(&mut net, (mbit * 1e6) as u64, 60.0);
    let used = run.rate / (mbit * 1e6 * SHARE * (1.0 - loss).powi(3));
    let (mean, most) = net.stages[1].wait_ms();
    println!(
        "{mbit} Mbit/s, {mixes} mixes, loss {loss}, told {told}: used {used:.3}, resent/lost \
         {:.3}, twice {} of {}, queue {mean:.1}, 99% below {most:.1} ms",
        run.resent, run.stats.duplicate_segments, run.stats.sent_segments
    );
    (used, mean, run)
}

#[test]
fn mixes_cost_a_file_little_of_its_rate() {
    for mbit in [10.0, 200.0, 1000.0] {
        let (plain, ..) = file(mbit, 0, 0.0, true);
        for (mixes, loss) in [(1, 0.0), (3, 0.0), (3, 0.01)] {
            let (used, queue_ms, run) = file(mbit, mixes, loss, true);
            assert!(used > plain * 0.93, "{used} in place of {plain}");
            assert!(queue_ms < 9.5, "{queue_ms}");
            let twice = run.stats.duplicate_segments as f64 / run.stats.sent_segments as f64;
            assert!(twice < 0.001, "{twice} were not lost but late");
        }
    }
}

/// Behaviour of a law that takes the variation of mixes for a queue.
#[test]
fn a_sender_that_knows_nothing_of_mixes_is_slow_and_sends_twice() {
    let (used, _, run) = file(10.0, 3, 0.0, false);
    assert!(used < 0.85, "{used}");
    assert!(run.stats.duplicate_segments > 50, "{}", run.stats.duplicate_segments);
}

/// The last segments of a file are sent again once they can't be in mixes.
#[test]
fn a_short_file_with_losses_ends_soon() {
    for seed in 0..10 {
        let mut net = EmulatedNet::pair(path(200.0, 3, 0.01), seed);
        net.tell_mixes();
        let run = one(&mut net, 1_000_000, 10.0);
        println!("1 MB, seed {seed}: {:.3} s, resent/lost {:.2}", run.seconds, run.resent);
        assert!(run.seconds < 1.0, "{}", run.seconds);
        assert!(run.stats.duplicate_segments < 8, "{}", run.stats.duplicate_segments);
    }
}

#[test]
fn two_behind_mixes_get_equal_parts() {
    for (mbit, mixes, apart_s) in
        [(200.0, 3, 0.0), (200.0, 3, 2.0), (200.0, 1, 1.0), (20.0, 3, 1.0)]
    {
        let one_way = path(mbit, mixes, 0.0);
        let mut net = EmulatedNet::new(4, [one_way.clone(), one_way].concat(), 32);
        for (from, to) in [(0, 1), (2, 3)] {
            net.routes.insert((from, to), vec![0, 1, 2]);
            net.routes.insert((to, from), vec![3, 4, 5]);
        }
        net.tell_mixes();
        let first = net.offer(0, 1, 20_000_000_000);
        net.run_for(Duration::from_secs_f64(apart_s));
        let second = net.offer(2, 3, 20_000_000_000);
        net.run_for(Duration::from_secs(5));
        net.stages[1].waits.clear();
        let done = |net: &EmulatedNet| [net.bytes_done(0, first), net.bytes_done(2, second)];
        let before = done(&net);
        net.run_for(Duration::from_secs(10));
        let after = done(&net);
        let rates = [0, 1].map(|i| (after[i] - before[i]) as f64 * 8.0 / 10.0 / 1e6);
        let used = rates.iter().sum::<f64>() / mbit / SHARE;
        let (mean, most) = net.stages[1].wait_ms();
        println!(
            "two at {mbit} Mbit/s, {mixes} mixes, {apart_s} s apart: Jain {:.3}, used {used:.3}, \
             queue {mean:.1}, 99% below {most:.1} ms",
            jain(&rates),
        );
        assert!(jain(&rates) > 0.95 && used > 0.95 && mean < 10.0);
    }
}
