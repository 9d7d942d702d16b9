//! Networks whose wires sometimes carry no full frames while data flows.

use shoal_sim::{SimulationOptions, WireFaults, run};

#[test]
fn files_arrive_while_wires_are_narrow() {
    for (seed, workers) in [(1, 1), (2, 2), (3, 4)] {
        let faults = WireFaults { delay_us: 10_000, loss_ppm: 5_000, ..WireFaults::NONE };
        let options = SimulationOptions {
            workers,
            narrowings: 12,
            files: 8,
            file_bytes_max: 20_000_000,
            trouble_ms: 40_000,
            faults,
            ..SimulationOptions::calm(seed)
        };
        let outcome = run(options);
        assert!(outcome.is_ok(), "{outcome}");
        let at_once = |file: &shoal_sim::FileOutcome| file.finished && file.attempts == 1;
        assert!(outcome.files.iter().all(at_once), "{outcome}");
    }
}

#[test]
fn troubled_networks_with_narrow_wires_keep_all_rules() {
    for seed in 0..5 {
        let outcome = run(SimulationOptions::narrow(seed));
        assert!(outcome.is_ok(), "{outcome}");
    }
}
