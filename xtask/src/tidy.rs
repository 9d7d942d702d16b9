//! The repository's rules as a program: `cargo xtask tidy` prints each breach and fails.

use std::fmt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use serde::Deserialize;

use crate::{layers, named, rules};

/// Where exceptions stand, each with its reason.
const ALLOW_FILE: &str = "xtask/tidy-allow.toml";

/// One breach of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The rule's name, as the list of exceptions spells it.
    pub rule: &'static str,
    /// The file, from the repository's root.
    pub path: String,
    /// The line, counted from 1; 0 when it is about the whole file.
    pub line: usize,
    /// What is wrong.
    pub text: String,
}

impl Finding {
    /// A finding about `path`, which may be absolute inside the current directory.
    pub fn new(rule: &'static str, path: &str, line: usize, text: String) -> Finding {
        let here = std::env::current_dir().unwrap_or_default();
        let path = Path::new(path);
        let path = path.strip_prefix(&here).unwrap_or(path).display().to_string();
        Finding { rule, path, line, text }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: [{}] {}", self.path, self.line, self.rule, self.text)
    }
}

/// The list of exceptions.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AllowList {
    /// Its entries.
    #[serde(default)]
    pub allow: Vec<Exception>,
}

/// One exception. It covers every finding of its rule in its file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Exception {
    /// The rule it lifts.
    pub rule: String,
    /// The file it is for.
    pub path: String,
    /// Why.
    pub reason: String,
}

/// Runs all checks on the repository in the current directory.
///
/// # Errors
/// When a rule is broken (after printing each breach), or when the repository can't be read.
pub fn run() -> Result<()> {
    let metadata = layers::metadata()?;
    let files = repository_files()?;
    let mut findings = layers::check(&metadata);
    for package in &metadata.packages {
        findings.extend(workspace_lints(&package.manifest_path)?);
    }
    let mut code = named::Code::default();
    for path in &files {
        let Ok(text) = std::fs::read_to_string(path) else {
            continue; // binary, or removed in the working copy
        };
        // Programs that Shoal was measured against are copies, and stay unchanged.
        if path.starts_with("bench/peers/") || path == "Cargo.lock" {
            continue;
        }
        code.add(path, &text);
        findings.extend(rules::check_text(path, &text));
        if path.ends_with(".rs") {
            findings.extend(rules::check_rust(path, &text));
        }
    }
    findings.extend(documented_dependencies()?);
    let page = std::fs::read_to_string(named::PAGE).context(named::PAGE)?;
    findings.extend(named::check(&page, &code, &metadata));
    let list = match std::fs::read_to_string(ALLOW_FILE) {
        Ok(text) => toml::from_str(&text).context(ALLOW_FILE)?,
        Err(_) => AllowList::default(),
    };
    let left = without_exceptions(findings, &list);
    for finding in &left {
        println!("{finding}");
    }
    anyhow::ensure!(left.is_empty(), "{} breaches of the repository's rules", left.len());
    println!("tidy: {} files, no breach, {} exceptions", files.len(), list.allow.len());
    Ok(())
}

/// Takes the excused findings out; an exception without a reason or without use is a finding too.
pub fn without_exceptions(findings: Vec<Finding>, list: &AllowList) -> Vec<Finding> {
    let covers = |e: &Exception, f: &Finding| e.rule == f.rule && e.path == f.path;
    let mut left: Vec<Finding> =
        findings.iter().filter(|f| !list.allow.iter().any(|e| covers(e, f))).cloned().collect();
    for e in &list.allow {
        let mut report = |text| left.push(Finding::new("exceptions", ALLOW_FILE, 0, text));
        if e.reason.trim().len() < 10 {
            report(format!("the exception for {} in {} needs a reason", e.rule, e.path));
        }
        if !findings.iter().any(|f| covers(e, f)) {
            report(format!("nothing needs the exception for {} in {}", e.rule, e.path));
        }
    }
    left
}

/// Tracked and new files, without what git ignores.
fn repository_files() -> Result<Vec<String>> {
    let out = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard"])
        .output()
        .context("running git ls-files")?;
    anyhow::ensure!(out.status.success(), "git ls-files failed");
    let text = String::from_utf8(out.stdout).context("a file name that is not UTF-8")?;
    Ok(text.lines().map(str::to_owned).collect())
}

/// Checks that every crate takes the workspace's lints, which clippy enforces.
fn workspace_lints(manifest: &str) -> Result<Vec<Finding>> {
    let text = std::fs::read_to_string(manifest).with_context(|| manifest.to_owned())?;
    let table: toml::Table = toml::from_str(&text).with_context(|| manifest.to_owned())?;
    let on = table.get("lints").and_then(|l| l.get("workspace")).and_then(|w| w.as_bool());
    let finding =
        || Finding::new("lints", manifest, 0, "needs `[lints] workspace = true`".to_owned());
    Ok(if on == Some(true) { Vec::new() } else { vec![finding()] })
}

/// Each outside package that the workspace uses has a line in docs/dependencies.md.
fn documented_dependencies() -> Result<Vec<Finding>> {
    const PAGE: &str = "docs/dependencies.md";
    let page = std::fs::read_to_string(PAGE).unwrap_or_default();
    let manifest = std::fs::read_to_string("Cargo.toml").context("Cargo.toml")?;
    Ok(undocumented(&manifest, &page)?
        .into_iter()
        .map(|name| Finding::new("dependencies", PAGE, 0, format!("no line for `{name}`")))
        .collect())
}

/// Names of outside packages in `[workspace.dependencies]` that `page` has no `` `name` `` for.
pub fn undocumented(manifest: &str, page: &str) -> Result<Vec<String>> {
    let table: toml::Table = toml::from_str(manifest).context("Cargo.toml")?;
    let all = table.get("workspace").and_then(|w| w.get("dependencies")).and_then(|d| d.as_table());
    let all = all.context("Cargo.toml has no [workspace.dependencies]")?;
    let outside = all.iter().filter(|(_, v)| v.get("path").is_none()).map(|(name, _)| name);
    Ok(outside.filter(|name| !page.contains(&format!("`{name}`"))).cloned().collect())
}
