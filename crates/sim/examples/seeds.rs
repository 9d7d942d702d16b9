//! Runs seeds FIRST to LAST and prints failures: `cargo run -p shoal-sim --example seeds 0 99`.
//!
//! An optional last argument selects the networks. With `circuits`, half of all pairs of hosts are
//! hidden. With `mixes`, relays mix, too. With `cover`, the links of hosts are covered. With
//! `shifts`, addresses shift; with `hour` and `day`, for that long.

use shoal_sim::SimulationOptions;

fn main() -> std::process::ExitCode {
    let numbers: Vec<u64> = std::env::args().skip(1).filter_map(|text| text.parse().ok()).collect();
    let first = numbers.first().copied().unwrap_or(0);
    let last = numbers.get(1).copied().unwrap_or(first);
    let chosen = match std::env::args().next_back().as_deref() {
        Some("circuits") => SimulationOptions::circuits,
        Some("mixes") => SimulationOptions::mixes,
        Some("cover") => SimulationOptions::cover,
        Some("shifts") => SimulationOptions::shifts,
        Some("day") => |seed| SimulationOptions::shifting(seed, 24),
        Some("hour") => |seed| SimulationOptions::shifting(seed, 1),
        _ => SimulationOptions::from_seed,
    };
    let mut failed = 0u32;
    for seed in first..=last {
        let log_len = if first == last { 2_000 } else { 50 };
        let outcome = shoal_sim::run(SimulationOptions { log_len, ..chosen(seed) });
        if !outcome.is_ok() || first == last {
            println!("{outcome}");
        }
        failed += u32::from(!outcome.is_ok());
    }
    println!("{failed} of {} seeds failed", last - first + 1);
    std::process::ExitCode::from(u8::from(failed > 0))
}
