//! Time until two hosts reach each other and have a direct link, if each wire loses frames.
//! Measured over many seeds, in virtual time.

use shoal_sim::{CallTimes, NatRules, SimulationOptions, WireFaults, run};

/// Two hosts at different routers, each behind a translator, 10 ms from all other nodes. Three
/// wires connect them through the routers, and one directly.
fn pair(seed: u64, loss_ppm: u32) -> SimulationOptions {
    SimulationOptions {
        routers: 2,
        hosts: 2,
        files: 0,
        direct_wires: 1,
        translators: vec![NatRules::EASY; 2],
        behind: vec![Some(0), Some(1)],
        faults: WireFaults { loss_ppm, delay_us: 10_000, ..WireFaults::NONE },
        // Leaves out the cut of the wire between the two hosts.
        skip: vec![0],
        // By this time both hosts know their public addresses.
        call_ms: 12_000,
        trouble_ms: 60_000,
        calm_ms: 1_000,
        log_len: 0,
        ..SimulationOptions::calm(seed)
    }
}

/// Results of the calls for this many seeds.
fn calls(seeds: u64, options: impl Fn(u64) -> SimulationOptions) -> Vec<CallTimes> {
    let call = |seed| {
        let outcome = run(options(seed));
        assert!(outcome.is_ok(), "{outcome}");
        outcome.called.expect("the options ask for a call")
    };
    (0..seeds).map(call).collect()
}

/// Times in ascending order; missing results come last.
fn times(all: &[CallTimes], of: impl Fn(&CallTimes) -> Option<f64>) -> Vec<f64> {
    let mut times: Vec<f64> =
        all.iter().map(|called| of(called).unwrap_or(f64::INFINITY)).collect();
    times.sort_by(f64::total_cmp);
    times
}

/// The value that this many of a thousand do not exceed.
fn most(times: &[f64], per_mille: usize) -> f64 {
    times[(times.len() * per_mille).div_ceil(1_000) - 1]
}

fn words(times: &[f64]) -> String {
    let of = |per_mille| format!("{:.0}", most(times, per_mille));
    let (within, all) = (times.iter().filter(|time| **time <= 1_000.0).count(), times.len());
    let all_of = [500, 950, 990, 999, 1_000].map(of).join(", ");
    format!("{all_of}; {:.2}% within 1 s", within as f64 * 100.0 / all as f64)
}

/// Prints and returns the times of first answers, and the times from the session to the direct
/// link.
fn figures(name: &str, all: &[CallTimes]) -> (Vec<f64>, Vec<f64>) {
    let answers = times(all, |called| called.answer_ms);
    let links = times(all, |called| Some(called.direct_ms? - called.session_ms?));
    println!("{name}: ms of 50%, 95%, 99%, 99.9%, all");
    println!("  session       {}", words(&times(all, |called| called.session_ms)));
    println!("  first answer  {}", words(&answers));
    println!("  direct link   {}", words(&links));
    (answers, links)
}

/// Number of runs per case: SHOAL_LOSSES_SEEDS, by default 200.
fn seeds() -> u64 {
    std::env::var("SHOAL_LOSSES_SEEDS").map_or(200, |seeds| seeds.parse().expect("a number"))
}

/// Losses on each wire in ppm, and the longest time until the first answer of the worst run in
/// milliseconds. The first case loses one of 20 frames per wire, so one of seven on the path over
/// the routers. In the second, each wire is as bad as two such wires: one of four frames is lost
/// over the routers.
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

/// The calling host has just been started, so that the link with its router must come up first.
#[test]
fn a_host_that_starts_is_answered_soon_though_frames_are_lost() {
    for (ppm, worst) in LOSSES {
        let all = calls(seeds(), |seed| SimulationOptions { call_anew: true, ..pair(seed, ppm) });
        let (answers, _) = figures(&format!("{ppm} ppm, started anew"), &all);
        assert!(most(&answers, 500) <= 3_000.0 && most(&answers, 950) <= 6_000.0);
        assert!(most(&answers, 1_000) <= worst, "the worst is bounded, too");
    }
}
