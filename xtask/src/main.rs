//! The repository's own commands: `cargo xtask` lists them; `.ci/run` runs the same ones.

#![forbid(unsafe_code)]

use anyhow::Context;

mod dist;
mod fuzz;
mod layers;
mod named;
mod rules;
mod scan;
mod tidy;

#[cfg(test)]
mod tests;

const MENU: &str = "\
cargo xtask VERB

  tidy     check the repository's rules: layers, machine words, lengths, unsafe, documented
           dependencies, names in ARCHITECTURE.md; prints each breach and fails
  layers   print who depends on whom, as ARCHITECTURE.md has to show it
  dist     a release build: target/release/shoal, and its debug information in shoal.debug beside
           it, where debuggers, profilers and Rust's own backtraces look for it; needs objcopy
  bench    what bench/README.md lists: shaped files, then the unshaped chain; needs root
  fuzz [--minutes N] [--jobs N] [--bare] [--only NAME] [--minimise]
           search with every fuzz target, 10 minutes in all; --bare leaves the address sanitizer
           out, --minimise shrinks the corpora instead; needs nightly Rust and cargo-fuzz. What was
           found before is replayed by `cargo test`, without either
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
    // The manifest stands in xtask/, one level below the root that all paths count from. Cargo says
    // where it is: checkouts may share a folder of builds, and so this program.
    let here = std::env::var_os("CARGO_MANIFEST_DIR");
    let here = here.unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    let root = std::path::Path::new(&here).join("..");
    std::env::set_current_dir(root.canonicalize()?)?;
    match std::env::args().nth(1).as_deref() {
        Some("tidy") => tidy::run(),
        Some("layers") => {
            print!("{}", named::picture(&layers::metadata()?));
            Ok(())
        }
        Some("dist") => dist::run(),
        Some("bench") => ["bench/files.sh", "bench/chain.sh"].into_iter().try_for_each(script),
        Some("fuzz") => fuzz::run(&fuzz::Plan::parse(std::env::args().skip(2))?),
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
