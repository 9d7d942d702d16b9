//! The law that keeps one rate, on paths that lose, mark, queue and fall silent.

use std::time::Duration;

use crate::net::{EmulatedNet, LinkStage, SHARE};
use shoal_transfer::{LawChoice, TransferConfig};
use shoal_wire::transfer::SEGMENT_LEN;

/// 100 Mbit/s of file.
const RATE: u64 = 12_500_000;

fn pair(stage: LinkStage, rate: u64) -> EmulatedNet {
    let config = TransferConfig { law: LawChoice::Fixed { rate }, ..TransferConfig::default() };
    EmulatedNet::pair_with(vec![stage], 50, &config)
}

fn gigabit() -> LinkStage {
    LinkStage::line(1000.0).delay_ms(5.0)
}

/// File bytes that leave per second, as a share of the rate, in four seconds from 0.2 s on.
fn kept(net: &mut EmulatedNet) -> [f64; 4] {
    net.run_for(Duration::from_millis(200));
    [(); 4].map(|()| {
        let before = net.sent_data;
        net.run_for(Duration::from_secs(1));
        ((net.sent_data - before) * SEGMENT_LEN as u64) as f64 / RATE as f64
    })
}

#[test]
fn the_rate_is_held_and_the_file_arrives() {
    for loss in [0.0, 0.05] {
        let mut net = pair(gigabit().loss(loss), RATE);
        let id = net.offer(0, 1, 5 * RATE);
        let kept = kept(&mut net);
        net.run_until(5.0, |net| net.done(0, id));
        let (end, stats) = net.hosts[0].finished[&id];
        let seconds = (end - net.hosts[0].started[&id]) as f64 / 1e9;
        println!("loss {loss}: of the rate {kept:.4?}, {seconds:.3} s, {stats:?}");
        assert!(kept.iter().all(|kept| (kept - 1.0).abs() < 0.02), "{kept:?}");
        let least = 5.0 / (1.0 - loss);
        assert!((0.98 * least..1.02 * least + 0.1).contains(&seconds), "{seconds}");
        let again = stats.retransmitted_bytes as f64 / SEGMENT_LEN as f64;
        assert!(again <= net.lost_data as f64 * 1.05, "{again} of {}", net.lost_data);
        assert!(stats.rate.abs_diff(RATE) <= 1, "{}", stats.rate);
    }
}

/// Causes that slow the other law down: marks, a full queue, losses of a policer.
#[test]
fn neither_marks_nor_queues_nor_losses_lower_it() {
    let narrow = LinkStage::line(80.0 / SHARE).delay_ms(5.0);
    let marking = LinkStage { mark_above: -1.0, ..gigabit() };
    let policer = LinkStage { police: true, bucket: 20e3, ..narrow.clone() };
    for (name, stage) in [("narrow", narrow), ("marking", marking), ("policer", policer)] {
        let mut net = pair(stage, RATE);
        let id = net.offer(0, 1, 5 * RATE);
        let kept = kept(&mut net);
        println!("{name}: of the rate {kept:.4?}");
        assert!(kept.iter().all(|kept| (kept - 1.0).abs() < 0.02), "{name} {kept:?}");
        net.run_until(10.0, |net| net.done(0, id));
        assert!(net.hosts[0].finished.contains_key(&id), "{name}");
    }
}

#[test]
fn the_queue_is_shown() {
    let mut net = pair(LinkStage::line(80.0 / SHARE).delay_ms(5.0), RATE);
    let id = net.offer(0, 1, 100 * RATE);
    net.run_for(Duration::from_secs(1));
    let progress = net.hosts[0].transfers.progress(shoal_wire::Time(net.now), id).unwrap();
    // A full queue of 20 ms, and 5 ms each way.
    assert!((18..=21).contains(&progress.queue.as_millis()), "{progress:?}");
    assert!((28..=32).contains(&progress.rtt.as_millis()), "{progress:?}");
}

#[test]
fn the_bound_of_a_transfer_bounds_it() {
    let config = TransferConfig {
        law: LawChoice::Fixed { rate: 2 * RATE },
        rate_max: RATE,
        ..TransferConfig::default()
    };
    let mut net = EmulatedNet::pair_with(vec![gigabit()], 51, &config);
    net.offer(0, 1, 100 * RATE);
    let kept = kept(&mut net);
    assert!(kept.iter().all(|kept| (kept - 1.0).abs() < 0.02), "{kept:?}");
}

/// On a silent path the data that leaves is bounded; sending continues after an answer.
#[test]
fn a_silent_path_gets_no_more_than_a_window() {
    let mut net = pair(gigabit(), RATE);
    net.offer(0, 1, 100 * RATE);
    net.run_for(Duration::from_secs(1));
    net.stages[1].down = true;
    let before = net.sent_data;
    net.run_for(Duration::from_secs(3));
    let sent_s = ((net.sent_data - before) * SEGMENT_LEN as u64) as f64 / RATE as f64;
    assert!((0.05..0.12).contains(&sent_s), "{sent_s} s of the rate");
    net.stages[1].down = false;
    let kept = kept(&mut net);
    assert!(kept.iter().all(|kept| (kept - 1.0).abs() < 0.02), "{kept:?}");
}

/// A file of one segment a second is slow, but arrives whole.
#[test]
fn no_rate_is_too_small() {
    let mut net = pair(gigabit(), 0);
    let id = net.offer(0, 1, 5 * SEGMENT_LEN as u64);
    net.run_until(20.0, |net| net.done(0, id));
    assert!(net.hosts[0].finished.contains_key(&id), "{:?}", net.hosts[0].failed);
}
