//! Runs seeds FIRST to LAST and prints what failed: `cargo run -p shoal-sim --example seeds 0 99`.
//! With `circuits` behind them, half of all pairs of hosts are hidden; with `mixes`, relays mix,
//! too; with `cover`, the links of hosts are covered; with `hops`, addresses hop, for an hour with
//! `hour` and for 24 with `day`.

use shoal_sim::Options;

fn main() -> std::process::ExitCode {
    let numbers: Vec<u64> = std::env::args().skip(1).filter_map(|text| text.parse().ok()).collect();
    let first = numbers.first().copied().unwrap_or(0);
    let last = numbers.get(1).copied().unwrap_or(first);
    let chosen = match std::env::args().next_back().as_deref() {
        Some("circuits") => Options::circuits,
        Some("mixes") => Options::mixes,
        Some("cover") => Options::cover,
        Some("hops") => Options::hops,
        Some("day") => |seed| Options::hopping(seed, 24),
        Some("hour") => |seed| Options::hopping(seed, 1),
        _ => Options::from_seed,
    };
    let mut failed = 0u32;
    for seed in first..=last {
        let log_len = if first == last { 2_000 } else { 50 };
        let outcome = shoal_sim::run(Options { log_len, ..chosen(seed) });
        if !outcome.is_ok() || first == last {
            println!("{outcome}");
        }
        failed += u32::from(!outcome.is_ok());
    }
    println!("{failed} of {} seeds failed", last - first + 1);
    std::process::ExitCode::from(u8::from(failed > 0))
}
