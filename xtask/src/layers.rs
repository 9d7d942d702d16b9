//! Which crate may depend on which: a table, checked against `cargo metadata`.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};
use serde::Deserialize;

use crate::tidy::Finding;

/// `(crate, what it may depend on directly)`. It may also depend on whatever those may depend on.
///
/// `routing` stands on `crypto` because it checks the signature of a route's origin; `model` does
/// because it draws from the seeded generator there. `fuzz-cases` is what the fuzz targets run, so
/// that ordinary tests can replay it.
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

/// Crates that are pure values; see `rules` for what their sources must not name.
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

/// Crates that own the operating system, and may contain `unsafe`.
pub const SHELLS: &[&str] = &["daemon", "registrar", "cli", "lab", "e2e"];

/// Packages that a machine must not depend on, because they own threads, sockets or a clock.
const SHELL_PACKAGES: &[&str] = &["tokio", "nix", "libc", "socket2", "signal-hook", "rtnetlink"];

/// What the rule needs from `cargo metadata --no-deps`.
#[derive(Debug, Deserialize)]
pub struct Metadata {
    /// The workspace's packages.
    pub packages: Vec<Package>,
}

/// One package of the workspace.
#[derive(Debug, Deserialize)]
pub struct Package {
    /// Package name.
    pub name: String,
    /// Where its manifest is.
    pub manifest_path: String,
    /// Everything it names as a dependency, of whatever kind.
    pub dependencies: Vec<Dependency>,
}

/// One line of a manifest's dependencies.
#[derive(Debug, Deserialize)]
pub struct Dependency {
    /// Package name.
    pub name: String,
    /// None for a normal dependency, or `dev` or `build`.
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

/// Everything each crate may depend on, closed under "whatever those may depend on".
fn allowed() -> BTreeMap<&'static str, BTreeSet<&'static str>> {
    let mut all = BTreeMap::new();
    // The table is ordered from the foundation up, so one pass closes it.
    for (name, direct) in PLAN {
        let mut set: BTreeSet<&str> = direct.iter().copied().collect();
        set.extend(direct.iter().filter_map(|d| all.get(d)).flatten());
        all.insert(*name, set);
    }
    all
}

/// Checks every package against the plan.
pub fn check(metadata: &Metadata) -> Vec<Finding> {
    let allowed = allowed();
    let mut findings = Vec::new();
    for package in &metadata.packages {
        let mut report =
            |text| findings.push(Finding::new("layers", &package.manifest_path, 0, text));
        let Some(name) = package.name.strip_prefix("shoal-") else {
            if package.name != "xtask" {
                report(format!("package {} is not called shoal-something", package.name));
            }
            continue;
        };
        let Some(may) = allowed.get(name) else {
            report(format!("crate {name} has no place in the plan (xtask/src/layers.rs)"));
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
