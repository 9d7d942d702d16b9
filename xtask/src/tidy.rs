//! `cargo xtask tidy`: checks the repository's rules, prints each breach and fails.

use std::fmt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use serde::Deserialize;

use crate::{layers, named, names, pages, prose, rules};

/// List of exceptions with their reasons.
const ALLOW_FILE: &str = "xtask/tidy-allow.toml";

/// A breach of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleBreach {
    /// Name of the rule, as in the list of exceptions.
    pub rule: &'static str,
    /// Path from the repository's root.
    pub path: String,
    /// Line, counted from 1; 0 for the whole file.
    pub line: usize,
    /// Description of the breach.
    pub text: String,
}

impl RuleBreach {
    /// A finding about `path`, which may be absolute within the current directory.
    pub fn new(rule: &'static str, path: &str, line: usize, text: String) -> RuleBreach {
        let here = std::env::current_dir().unwrap_or_default();
        let path = Path::new(path);
        let path = path.strip_prefix(&here).unwrap_or(path).display().to_string();
        RuleBreach { rule, path, line, text }
    }
}

impl fmt::Display for RuleBreach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: [{}] {}", self.path, self.line, self.rule, self.text)
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AllowList {
    #[serde(default)]
    pub allow: Vec<Exception>,
}

/// An exception. It covers every finding of its rule in its file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Exception {
    pub rule: String,
    pub path: String,
    pub reason: String,
}

/// Runs all checks on the repository in the current directory.
///
/// # Errors
/// If a rule is broken, after printing each breach, or if the repository can't be read.
pub fn run() -> Result<()> {
    let metadata = layers::metadata()?;
    let files = texts()?;
    let mut findings = layers::check(&metadata);
    for package in &metadata.packages {
        findings.extend(workspace_lints(&package.manifest_path)?);
    }
    let mut code = named::CodeIndex::default();
    for (path, text) in &files {
        code.add(path, text);
        findings.extend(rules::check_text(path, text));
        if path.ends_with(".rs") {
            findings.extend(rules::check_rust(path, text));
            findings.extend(prose::check(path, text));
        }
    }
    findings.extend(pages::check(&files));
    let shared = std::fs::read_to_string(names::LIST).context(names::LIST)?;
    findings.extend(names::check(&files, &toml::from_str(&shared).context(names::LIST)?));
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

/// Removes findings with an exception. Reports each exception without a reason or without a
/// finding.
pub fn without_exceptions(findings: Vec<RuleBreach>, list: &AllowList) -> Vec<RuleBreach> {
    let covers = |e: &Exception, f: &RuleBreach| e.rule == f.rule && e.path == f.path;
    let mut left: Vec<RuleBreach> =
        findings.iter().filter(|f| !list.allow.iter().any(|e| covers(e, f))).cloned().collect();
    for e in &list.allow {
        let mut report = |text| left.push(RuleBreach::new("exceptions", ALLOW_FILE, 0, text));
        if e.reason.trim().len() < 10 {
            report(format!("the exception for {} in {} needs a reason", e.rule, e.path));
        }
        if !findings.iter().any(|f| covers(e, f)) {
            report(format!("nothing needs the exception for {} in {}", e.rule, e.path));
        }
    }
    left
}

/// Path and text of each file that the project wrote.
///
/// # Errors
/// If git can't list the files.
pub fn texts() -> Result<Vec<(String, String)>> {
    let mut files = repository_files()?;
    // Programs that Shoal is compared with are unchanged copies.
    files.retain(|path| !path.starts_with("bench/peers/") && path != "Cargo.lock");
    // A file without text is binary or was removed in the working copy.
    let text = |path: String| Some((std::fs::read_to_string(&path).ok()?, path));
    Ok(files.into_iter().filter_map(text).map(|(text, path)| (path, text)).collect())
}

/// Tracked and new files, without those that git ignores.
fn repository_files() -> Result<Vec<String>> {
    let out = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard"])
        .output()
        .context("running git ls-files")?;
    anyhow::ensure!(out.status.success(), "git ls-files failed");
    let text = String::from_utf8(out.stdout).context("a file name that is not UTF-8")?;
    Ok(text.lines().map(str::to_owned).collect())
}

/// Checks that a crate uses the workspace's lints, which clippy enforces.
fn workspace_lints(manifest: &str) -> Result<Vec<RuleBreach>> {
    let text = std::fs::read_to_string(manifest).with_context(|| manifest.to_owned())?;
    let table: toml::Table = toml::from_str(&text).with_context(|| manifest.to_owned())?;
    let on = table.get("lints").and_then(|l| l.get("workspace")).and_then(|w| w.as_bool());
    let finding =
        || RuleBreach::new("lints", manifest, 0, "needs `[lints] workspace = true`".to_owned());
    Ok(if on == Some(true) { Vec::new() } else { vec![finding()] })
}

/// Checks that each external package has a line in docs/dependencies.md.
fn documented_dependencies() -> Result<Vec<RuleBreach>> {
    const PAGE: &str = "docs/dependencies.md";
    let page = std::fs::read_to_string(PAGE).unwrap_or_default();
    let manifest = std::fs::read_to_string("Cargo.toml").context("Cargo.toml")?;
    Ok(undocumented(&manifest, &page)?
        .into_iter()
        .map(|name| RuleBreach::new("dependencies", PAGE, 0, format!("no line for `{name}`")))
        .collect())
}

/// External packages in `[workspace.dependencies]` whose names in backticks are missing in `page`.
pub fn undocumented(manifest: &str, page: &str) -> Result<Vec<String>> {
    let table: toml::Table = toml::from_str(manifest).context("Cargo.toml")?;
    let all = table.get("workspace").and_then(|w| w.get("dependencies")).and_then(|d| d.as_table());
    let all = all.context("Cargo.toml has no [workspace.dependencies]")?;
    let outside = all.iter().filter(|(_, v)| v.get("path").is_none()).map(|(name, _)| name);
    Ok(outside.filter(|name| !page.contains(&format!("`{name}`"))).cloned().collect())
}
