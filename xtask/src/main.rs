//! The repository's own commands. `cargo xtask` lists them; `.ci/run` uses them.

#![forbid(unsafe_code)]
#![allow(clippy::disallowed_methods, reason = "a program for people: it has a clock and threads")]

use anyhow::Context;

mod book;
mod check;
mod ci;
mod dist;
mod fuzz;
mod layers;
mod named;
mod names;
mod pages;
mod programs;
mod prose;
mod rules;
mod scan;
mod tidy;

#[cfg(test)]
mod tests;

const MENU: &str = "\
cargo xtask COMMAND

  check [--since COMMIT]
           run fmt, tidy, clippy and tests for the crates that differ from COMMIT (by default the
           upstream's) and for those that depend on them; tests leave out unchanged shells
  ci       run all checks that must pass before a change lands; about half an hour on two processors
  tidy     check the repository's rules: layers, machine words, lengths, unsafe, first words of
           comments, links, dependencies, names in ARCHITECTURE.md; print each breach and fail
  layers   print the diagram of dependencies for ARCHITECTURE.md
  names    print the names that several types have
  words [FOLDER ...]
           print the lengths of sentences and the number of refused first words, by crate; then
           list long sentences and refused first words in the folders
  book     build the pages as an mdBook, target/book; needs mdbook
  dist     build a release: target/release/shoal, and its debug information in shoal.debug, where
           debuggers, profilers and Rust's own backtraces look for it; needs objcopy
  bench    run the benchmarks of bench/README.md: shaped files, then the unshaped chain; needs root
  fuzz [--minutes N] [--jobs N] [--bare] [--only NAME] [--minimise]
           search with every fuzz target, 10 minutes in total; --bare omits the address sanitizer,
           --minimise shrinks the corpora instead; needs nightly Rust and cargo-fuzz. Earlier
           findings are replayed by `cargo test`, which needs neither
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
    // The manifest is in xtask/, one level below the root of all paths. Cargo passes its folder at
    // run time, since checkouts may share build outputs and therefore this program.
    let here = std::env::var_os("CARGO_MANIFEST_DIR");
    let here = here.unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    let root = std::path::Path::new(&here).join("..");
    std::env::set_current_dir(root.canonicalize()?)?;
    match std::env::args().nth(1).as_deref() {
        Some("check") => check::run(std::env::args().skip(2)),
        Some("ci") => ci::run(),
        Some("tidy") => tidy::run(),
        Some("layers") => {
            print!("{}", named::picture(&layers::metadata()?));
            Ok(())
        }
        Some("names") => {
            print!("{}", names::report(&tidy::texts()?));
            Ok(())
        }
        Some("words") => {
            let below: Vec<String> = std::env::args().skip(2).collect();
            print!("{}", prose::report(&tidy::texts()?, &below));
            Ok(())
        }
        Some("book") => book::run(),
        Some("dist") => dist::run(),
        Some("bench") => ["bench/files.sh", "bench/chain.sh"].into_iter().try_for_each(script),
        Some("fuzz") => fuzz::run(&fuzz::FuzzOptions::parse(std::env::args().skip(2))?),
        None | Some("help" | "--help" | "-h") => {
            print!("{MENU}");
            Ok(())
        }
        Some(other) => anyhow::bail!("unknown command `{other}`\n\n{MENU}"),
    }
}

/// Runs a script of the repository.
fn script(path: &str) -> anyhow::Result<()> {
    let status = std::process::Command::new(path).status().with_context(|| path.to_owned())?;
    anyhow::ensure!(status.success(), "{path} failed ({status})");
    Ok(())
}
