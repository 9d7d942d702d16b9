//! Allowed dependencies between crates, checked with `cargo metadata`.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};
use serde::Deserialize;

use crate::tidy::RuleBreach;

/// `(crate, direct dependencies)`. A crate may also depend on the dependencies of those.
///
/// `routing` depends on `crypto` to check the signature of a route's origin, and `model` for its
/// seeded generator. `fuzz-cases` holds the code of the fuzz targets, so that ordinary tests can
/// replay it.
const PLAN: &[(&str, &[&str])] = &[
    ("wire", &[]),
    ("crypto", &["wire"]),
    ("session", &["crypto"]),
    ("link", &["session"]),
    ("transfer", &["crypto"]),
    ("ip", &["crypto"]),
    ("onion", &["session", "mix"]),
    ("attribution", &["crypto"]),
    ("directory", &["crypto"]),
    ("joining", &["session", "directory"]),
    ("portmap", &["wire"]),
    ("routing", &["crypto"]),
    ("mix", &["crypto"]),
    ("model", &["crypto"]),
    ("attack", &["link", "mix"]),
    ("relay", &["link", "routing", "mix"]),
    ("edge", &["session", "transfer", "attribution", "directory"]),
    ("node", &["relay", "onion", "edge", "ip", "directory"]),
    ("daemon", &["node", "joining", "portmap"]),
    ("registrar", &["daemon"]),
    ("fuzz-cases", &["daemon"]),
    ("sim", &["node", "model"]),
    ("cli", &["registrar", "attribution"]),
    ("lab", &["cli", "sim", "model", "attack"]),
    ("e2e", &["lab"]),
];

/// Crates that are pure values. `rules` lists words that their sources must not contain.
pub const MACHINES: &[&str] = &[
    "wire",
    "crypto",
    "session",
    "link",
    "routing",
    "mix",
    "onion",
    "relay",
    "transfer",
    "ip",
    "edge",
    "attribution",
    "directory",
    "joining",
    "portmap",
    "node",
    "model",
    "attack",
];

/// Crates that use the operating system and may contain `unsafe`.
pub const SHELLS: &[&str] = &["daemon", "registrar", "cli", "lab", "e2e"];

/// Packages that a machine must not depend on, because they use threads, sockets or a clock.
const SHELL_PACKAGES: &[&str] = &["tokio", "nix", "libc", "socket2", "signal-hook", "rtnetlink"];

/// The needed part of `cargo metadata --no-deps`.
#[derive(Debug, Deserialize)]
pub struct Metadata {
    pub packages: Vec<Package>,
}

#[derive(Debug, Deserialize)]
pub struct Package {
    pub name: String,
    pub manifest_path: String,
    /// Dependencies of all kinds.
    pub dependencies: Vec<Dependency>,
}

/// One dependency in a manifest.
#[derive(Debug, Deserialize)]
pub struct Dependency {
    pub name: String,
    /// None for a normal dependency, else `dev` or `build`.
    pub kind: Option<String>,
}

/// Reads the metadata of the workspace in the current directory.
pub fn metadata() -> Result<Metadata> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let out = std::process::Command::new(cargo)
        .args(["metadata", "--no-deps", "--format-version", "1", "--offline"])
        .output()
        .context("running cargo metadata")?;
    let text = String::from_utf8_lossy(&out.stderr).into_owned();
    anyhow::ensure!(out.status.success(), "cargo metadata failed: {text}");
    serde_json::from_slice(&out.stdout).context("reading cargo metadata's answer")
}

/// All allowed dependencies of each crate, direct and indirect.
fn allowed() -> BTreeMap<&'static str, BTreeSet<&'static str>> {
    let mut all = BTreeMap::new();
    // The table is ordered from the bottom up, so one pass is enough.
    for (name, direct) in PLAN {
        let mut set: BTreeSet<&str> = direct.iter().copied().collect();
        set.extend(direct.iter().filter_map(|d| all.get(d)).flatten());
        all.insert(*name, set);
    }
    all
}

/// Checks every package against the plan.
pub fn check(metadata: &Metadata) -> Vec<RuleBreach> {
    let allowed = allowed();
    let mut findings = Vec::new();
    for package in &metadata.packages {
        let mut report =
            |text| findings.push(RuleBreach::new("layers", &package.manifest_path, 0, text));
        let Some(name) = package.name.strip_prefix("shoal-") else {
            if package.name != "xtask" {
                report(format!("package {} is not called shoal-something", package.name));
            }
            continue;
        };
        let Some(may) = allowed.get(name) else {
            report(format!("crate {name} is missing in the plan (PLAN in xtask/src/layers.rs)"));
            continue;
        };
        for dependency in &package.dependencies {
            let test_only = dependency.kind.as_deref() == Some("dev");
            match dependency.name.strip_prefix("shoal-") {
                Some(other) if !may.contains(other) => {
                    report(format!("{name} must not depend on {other}"));
                }
                None if !test_only
                    && MACHINES.contains(&name)
                    && SHELL_PACKAGES.contains(&dependency.name.as_str()) =>
                {
                    report(format!("{name} is a machine and must not use {}", dependency.name));
                }
                _ => {}
            }
        }
    }
    findings
}
