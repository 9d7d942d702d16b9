//! `cargo xtask fuzz`: runs the fuzz targets for a given time, several at once.

use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

/// Options of the command line.
#[derive(Debug, PartialEq)]
pub struct FuzzOptions {
    /// Minutes in total, spread evenly over the targets. `jobs` targets run at a time.
    minutes: f64,
    jobs: usize,
    /// True to leave out the address sanitizer: about ten times as fast, and sufficient for safe
    /// code.
    bare: bool,
    /// True to shrink the corpora to inputs with the same coverage, instead of searching.
    minimise: bool,
    /// Part of the names of the targets to run.
    only: Option<String>,
}

impl FuzzOptions {
    /// Parses the arguments after `fuzz`.
    pub fn parse(args: impl IntoIterator<Item = String>) -> Result<FuzzOptions> {
        let mut plan =
            FuzzOptions { minutes: 10.0, jobs: 1, bare: false, minimise: false, only: None };
        let mut args = args.into_iter();
        while let Some(arg) = args.next() {
            let mut value = || args.next().with_context(|| format!("{arg} needs a value"));
            match arg.as_str() {
                "--minutes" => plan.minutes = value()?.parse().context("--minutes is a number")?,
                "--jobs" => plan.jobs = value()?.parse().context("--jobs is a number")?,
                "--only" => plan.only = Some(value()?),
                "--bare" => plan.bare = true,
                "--minimise" => plan.minimise = true,
                other => bail!("unknown option `{other}` of fuzz"),
            }
        }
        ensure!(plan.minutes > 0.0 && plan.minutes.is_finite(), "--minutes must be above zero");
        ensure!(plan.jobs > 0, "--jobs must be above zero");
        Ok(plan)
    }

    /// Duration of each of `targets` in whole seconds, at least one.
    fn seconds(&self, targets: usize) -> u64 {
        let seconds = self.minutes * 60.0 * self.jobs.min(targets) as f64 / targets as f64;
        seconds.ceil().max(1.0) as u64
    }

    fn command(&self, verb: &str, target: &str) -> Command {
        let mut command = Command::new("cargo");
        command.args(["+nightly", "fuzz", verb]);
        if self.bare {
            command.args(["-s", "none"]);
        }
        command.arg(target).stdin(Stdio::null());
        command
    }
}

/// Searches, or shrinks the corpora. After all targets have run, fails if one found something.
pub fn run(plan: &FuzzOptions) -> Result<()> {
    let mut targets = Vec::new();
    for entry in std::fs::read_dir("fuzz/fuzz_targets").context("fuzz/fuzz_targets")? {
        let path = entry?.path();
        targets.extend(path.file_stem().map(|name| name.to_string_lossy().into_owned()));
    }
    targets.retain(|name| plan.only.as_ref().is_none_or(|only| name.contains(only.as_str())));
    targets.sort();
    ensure!(!targets.is_empty(), "no fuzz target has such a name");
    let seconds = plan.seconds(targets.len());
    // A first build, so that jobs don't wait for each other's builds.
    let built = plan.command("build", &targets[0]).status().context("running cargo fuzz")?;
    ensure!(built.success(), "the build failed: cargo fuzz needs nightly Rust and cargo-fuzz");
    // All targets run equally long, so they are assigned to jobs in advance.
    let jobs = plan.jobs.min(targets.len());
    let found = std::thread::scope(|scope| {
        let deal = |job: usize| targets.iter().skip(job).step_by(jobs);
        let all = (0..jobs).map(|job| {
            scope.spawn(move || deal(job).filter(|target| !search(plan, target, seconds)).collect())
        });
        let all: Vec<_> = all.collect();
        let done = all.into_iter().map(|job| job.join().expect("a job doesn't panic"));
        done.collect::<Vec<Vec<&String>>>().concat()
    });
    ensure!(
        found.is_empty(),
        "targets with findings: {}",
        found.iter().map(|name| name.as_str()).collect::<Vec<_>>().join(", ")
    );
    Ok(())
}

fn search(plan: &FuzzOptions, target: &str, seconds: u64) -> bool {
    let mut command = if plan.minimise {
        println!("fuzz: minimising the corpus of {target}");
        plan.command("cmin", target)
    } else {
        println!("fuzz: {target}, {seconds} s");
        let mut command = plan.command("run", target);
        command.args(["--", &format!("-max_total_time={seconds}"), "-print_final_stats=1"]);
        command
    };
    command.status().is_ok_and(|status| status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<FuzzOptions> {
        FuzzOptions::parse(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn time_is_spread_over_targets_and_jobs() {
        assert_eq!(parse("--minutes 19").unwrap().seconds(19), 60);
        assert_eq!(parse("--minutes 19 --jobs 2").unwrap().seconds(19), 120);
        assert_eq!(parse("--minutes 1 --jobs 8").unwrap().seconds(2), 60);
        assert_eq!(parse("--minutes 0.01").unwrap().seconds(100), 1);
    }

    #[test]
    fn mistakes_are_refused() {
        for line in ["--minutes", "--minutes x", "--minutes 0", "--jobs 0", "--hours 3"] {
            assert!(parse(line).is_err(), "{line}");
        }
    }
}
