//! How soon two hosts reach each other, and have a link of their own, where every wire loses
//! frames: over many seeds, in virtual time.

use shoal_sim::{Called, Faults, Options, Translator, run};

/// Two hosts of different routers behind a translator each, 10 ms from everybody. Three wires are
/// between them over their routers, and one past these.
fn pair(seed: u64, loss_ppm: u32) -> Options {
    Options {
        routers: 2,
        hosts: 2,
        files: 0,
        direct_wires: 1,
        translators: vec![Translator::EASY; 2],
        behind: vec![Some(0), Some(1)],
        faults: Faults { loss_ppm, delay_us: 10_000, ..Faults::NONE },
        // The cut of the wire between the two.
        skip: vec![0],
        // By then both know where they are seen.
        call_ms: 12_000,
        trouble_ms: 60_000,
        calm_ms: 1_000,
        log_len: 0,
        ..Options::calm(seed)
    }
}

/// What came of the calls of so many seeds.
fn calls(seeds: u64, options: impl Fn(u64) -> Options) -> Vec<Called> {
    let call = |seed| {
        let outcome = run(options(seed));
        assert!(outcome.is_ok(), "{outcome}");
        outcome.called.expect("the options ask for a call")
    };
    (0..seeds).map(call).collect()
}

/// Sorted, what never came last.
fn times(all: &[Called], of: impl Fn(&Called) -> Option<f64>) -> Vec<f64> {
    let mut times: Vec<f64> =
        all.iter().map(|called| of(called).unwrap_or(f64::INFINITY)).collect();
    times.sort_by(f64::total_cmp);
    times
}

/// What so many of a thousand do not exceed.
fn most(times: &[f64], per_mille: usize) -> f64 {
    times[(times.len() * per_mille).div_ceil(1_000) - 1]
}

fn words(times: &[f64]) -> String {
    let of = |per_mille| format!("{:.0}", most(times, per_mille));
    let (within, all) = (times.iter().filter(|time| **time <= 1_000.0).count(), times.len());
    let all_of = [500, 950, 990, 999, 1_000].map(of).join(", ");
    format!("{all_of}; {:.2}% within 1 s", within as f64 * 100.0 / all as f64)
}

/// Prints and returns the times of first answers, and of links since the session.
fn figures(name: &str, all: &[Called]) -> (Vec<f64>, Vec<f64>) {
    let answers = times(all, |called| called.answer_ms);
    let links = times(all, |called| Some(called.direct_ms? - called.session_ms?));
    println!("{name}: ms of 50%, 95%, 99%, 99.9%, all");
    println!("  session       {}", words(&times(all, |called| called.session_ms)));
    println!("  first answer  {}", words(&answers));
    println!("  direct link   {}", words(&links));
    (answers, links)
}

/// Runs of each case: SHOAL_LOSSES_SEEDS, or few.
fn seeds() -> u64 {
    std::env::var("SHOAL_LOSSES_SEEDS").map_or(200, |seeds| seeds.parse().expect("a number"))
}

/// One of 20 frames is lost on each wire, or on each of two wires that stand for one here, so that
/// one of seven, or of four, is on its way over the routers.
/// Behind each how long the first answer of the worst run may take, in milliseconds.
const LOSSES: [(u32, f64); 2] = [(50_000, 10_000.0), (97_500, 30_000.0)];

#[test]
fn a_host_is_answered_soon_and_has_a_link_soon_though_frames_are_lost() {
    for (ppm, worst) in LOSSES {
        let all = calls(seeds(), |seed| pair(seed, ppm));
        let (answers, links) = figures(&format!("{ppm} ppm"), &all);
        assert!(most(&answers, 950) <= 2_000.0 && most(&answers, 999) <= 10_000.0);
        assert!(most(&answers, 1_000) <= worst, "the worst is bounded, too");
        assert!(most(&links, 950) <= 1_000.0 && most(&links, 990) <= 5_000.0);
    }
}

/// The host has just been started: the link with its router comes first.
#[test]
fn a_host_that_starts_is_answered_soon_though_frames_are_lost() {
    for (ppm, worst) in LOSSES {
        let all = calls(seeds(), |seed| Options { call_anew: true, ..pair(seed, ppm) });
        let (answers, _) = figures(&format!("{ppm} ppm, started anew"), &all);
        assert!(most(&answers, 500) <= 3_000.0 && most(&answers, 950) <= 6_000.0);
        assert!(most(&answers, 1_000) <= worst, "the worst is bounded, too");
    }
}
