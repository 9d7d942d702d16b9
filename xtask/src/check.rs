//! `cargo xtask check`: the checks while one works. They cover the crates that changed and those
//! that depend on them. Tests of unchanged shells are left to `cargo xtask ci`.

use std::collections::BTreeSet;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result};

use crate::layers::{MACHINES, Metadata, metadata};
use crate::{programs, tidy};

/// Most random cases of a property. The gate runs all of them.
const CASES: &str = "12";

/// Runs fmt, tidy, clippy and tests.
///
/// # Errors
/// If one of them fails.
pub fn run(mut arguments: impl Iterator<Item = String>) -> Result<()> {
    let since = match (arguments.next().as_deref(), arguments.next()) {
        (None, _) => upstream(),
        (Some("--since"), Some(commit)) => commit,
        _ => anyhow::bail!("expected nothing, or --since COMMIT"),
    };
    let began = Instant::now();
    let step = |name: &str| println!("== [{:3} s] {name}", began.elapsed().as_secs());
    let metadata = metadata()?;
    let changed = changed(&since)?;
    let affected = affected(&metadata, &changed);
    step("fmt");
    cargo(&["fmt", "--all", "--check"])?;
    step("tidy");
    tidy::run()?;
    if affected.is_empty() {
        println!("no crate changed since {since}");
        return Ok(());
    }
    let packages: Vec<&str> = affected.iter().flat_map(|name| ["-p", name]).collect();
    step(&format!("clippy: {}", names(&affected)));
    cargo(&[&["clippy", "--all-targets"], &packages[..], &["--", "-D", "warnings"]].concat())?;
    let tested: BTreeSet<&str> = affected
        .iter()
        .filter(|name| changed.contains(**name) || is_machine(name))
        .copied()
        .collect();
    step(&format!("test: {}", names(&tested)));
    let packages: Vec<&str> = tested.iter().flat_map(|name| ["-p", name]).collect();
    let mut tests = Command::new("cargo");
    tests.args(["test", "--quiet", "--lib", "--tests"]).args(&packages);
    programs::run(programs::build(tests)?, &[("PROPTEST_CASES", CASES)])?;
    let left: BTreeSet<&str> = affected.difference(&tested).copied().collect();
    step("done");
    if !left.is_empty() {
        println!("left to `cargo xtask ci`: tests of {}", names(&left));
    }
    Ok(())
}

/// The last common commit of the branch's upstream and this checkout. The last commit if there is
/// no upstream.
fn upstream() -> String {
    let base = Command::new("git").args(["merge-base", "HEAD", "@{upstream}"]).output();
    let base = base.ok().filter(|out| out.status.success());
    base.map_or("HEAD".into(), |out| String::from_utf8_lossy(&out.stdout).trim().to_owned())
}

/// Packages with files that differ from the commit.
fn changed(since: &str) -> Result<BTreeSet<String>> {
    let mut files = String::new();
    for arguments in
        [&["diff", "--name-only", since][..], &["ls-files", "--others", "--exclude-standard"]]
    {
        let out = Command::new("git").args(arguments).output().context("running git")?;
        let said = String::from_utf8_lossy(&out.stderr);
        anyhow::ensure!(out.status.success(), "git {}: {said}", arguments.join(" "));
        files.push_str(&String::from_utf8_lossy(&out.stdout));
    }
    Ok(files.lines().filter_map(package).collect())
}

/// The package that a file belongs to.
fn package(path: &str) -> Option<String> {
    match path.split_once('/')? {
        ("crates", rest) => rest.split_once('/').map(|(name, _)| format!("shoal-{name}")),
        ("xtask", _) => Some("xtask".to_owned()),
        _ => None,
    }
}

/// The changed packages and all packages that depend on them.
fn affected<'a>(metadata: &'a Metadata, changed: &BTreeSet<String>) -> BTreeSet<&'a str> {
    let names = metadata.packages.iter().map(|package| package.name.as_str());
    let mut all: BTreeSet<&str> = names.filter(|name| changed.contains(*name)).collect();
    loop {
        let above = metadata.packages.iter().filter(|package| {
            package.dependencies.iter().any(|used| all.contains(used.name.as_str()))
        });
        let above: Vec<&str> = above.map(|package| package.name.as_str()).collect();
        let before = all.len();
        all.extend(above);
        if all.len() == before {
            return all;
        }
    }
}

fn is_machine(package: &str) -> bool {
    package.strip_prefix("shoal-").is_some_and(|name| MACHINES.contains(&name))
}

fn names(packages: &BTreeSet<&str>) -> String {
    let names = packages.iter().map(|name| name.strip_prefix("shoal-").unwrap_or(name));
    names.collect::<Vec<_>>().join(" ")
}

fn cargo(arguments: &[&str]) -> Result<()> {
    let status = Command::new("cargo").args(arguments).status().context("running cargo")?;
    anyhow::ensure!(status.success(), "cargo {} failed ({status})", arguments.join(" "));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_belong_to_packages() {
        assert_eq!(package("crates/mix/src/lib.rs").as_deref(), Some("shoal-mix"));
        assert_eq!(package("xtask/src/main.rs").as_deref(), Some("xtask"));
        assert_eq!(package("docs/wire.md"), None);
        assert_eq!(package("README.md"), None);
    }

    #[test]
    fn what_stands_on_a_changed_crate_is_affected() {
        let metadata = metadata().unwrap();
        let affected = affected(&metadata, &BTreeSet::from(["shoal-mix".to_owned()]));
        for name in ["shoal-mix", "shoal-relay", "shoal-daemon", "shoal-e2e"] {
            assert!(affected.contains(name), "{name}");
        }
        assert!(!affected.contains("shoal-wire") && !affected.contains("shoal-ip"));
    }
}
