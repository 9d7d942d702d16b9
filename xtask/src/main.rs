//! The repository's menu. `cargo xtask` lists the dishes; `.ci/run` orders the same ones.

#![forbid(unsafe_code)]

use anyhow::Context;

mod layers;
mod rules;
mod scan;
mod tidy;

#[cfg(test)]
mod tests;

const MENU: &str = "\
cargo xtask VERB

  tidy     check the repository's rules: layers, machine words, lengths, unsafe, documented
           dependencies; prints each breach and fails
  bench    what bench/README.md lists: shaped files, then the unshaped chain; needs root
  fuzz [MINUTES]
           search with every fuzz target, MINUTES in all (10); needs nightly Rust and cargo-fuzz.
           What was found before is replayed by `cargo test`, without either
";

fn main() -> std::process::ExitCode {
    match run() {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("xtask: {e:#}");
            std::process::ExitCode::FAILURE
        }
    }
}

fn run() -> anyhow::Result<()> {
    // The manifest stands in xtask/, one level below the root that all paths count from.
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    std::env::set_current_dir(root.canonicalize()?)?;
    match std::env::args().nth(1).as_deref() {
        Some("tidy") => tidy::run(),
        Some("bench") => ["bench/files.sh", "bench/chain.sh"].into_iter().try_for_each(script),
        Some("fuzz") => fuzz(std::env::args().nth(2).as_deref().unwrap_or("10")),
        None | Some("help" | "--help" | "-h") => {
            print!("{MENU}");
            Ok(())
        }
        Some(other) => anyhow::bail!("unknown verb `{other}`\n\n{MENU}"),
    }
}

/// Runs a script of the repository.
fn script(path: &str) -> anyhow::Result<()> {
    let status = std::process::Command::new(path).status().with_context(|| path.to_owned())?;
    anyhow::ensure!(status.success(), "{path} failed ({status})");
    Ok(())
}

/// Gives every fuzz target its share of the time, and stops at the first that finds something.
fn fuzz(minutes: &str) -> anyhow::Result<()> {
    let minutes: f64 = minutes.parse().context("MINUTES is a number")?;
    let mut targets = Vec::new();
    for entry in std::fs::read_dir("fuzz/fuzz_targets").context("fuzz/fuzz_targets")? {
        let path = entry?.path();
        targets.extend(path.file_stem().map(|name| name.to_string_lossy().into_owned()));
    }
    targets.sort();
    let seconds = (minutes * 60.0 / targets.len() as f64).ceil();
    for target in &targets {
        println!("fuzz: {target}, {seconds} s");
        let time = format!("-max_total_time={seconds}");
        let status = std::process::Command::new("cargo")
            .args(["+nightly", "fuzz", "run", target, "--", &time])
            .status()
            .context("running cargo fuzz")?;
        anyhow::ensure!(status.success(), "{target} found something, or cargo-fuzz is missing");
    }
    Ok(())
}
