//! Checks that ARCHITECTURE.md names only existing files, functions and crates, and shows the real
//! dependencies.
//!
//! Text in backticks is checked as follows:
//!
//! | in backticks | must be |
//! |---|---|
//! | `relay/forward.rs` | a file of the repository; `src/` and `crates/` may be left out |
//! | `relay/forward.rs: pass_on` | the same, and a declaration in that file |
//! | `pass_on`, `Handoff` | declared anywhere in the workspace, or a word of its code |
//!
//! Other text, such as commands and configuration keys, is ignored.

use std::collections::{BTreeMap, BTreeSet};

use crate::layers::{MACHINES, Metadata, SHELLS};
use crate::scan::{code_only, is_word};
use crate::tidy::RuleBreach;

pub const PAGE: &str = "ARCHITECTURE.md";
/// Keywords that declare a name.
const DECLARES: &[&str] =
    &["fn", "struct", "enum", "trait", "const", "static", "type", "mod", "macro_rules"];
/// First line of the diagram of dependencies, which `picture` prints.
const PICTURE: &str = "crate           stands on";

/// Files, declarations and words of the repository's code.
#[derive(Default)]
pub struct CodeIndex {
    /// Declared names of each Rust file.
    files: BTreeMap<String, BTreeSet<String>>,
    /// All words of code.
    words: BTreeSet<String>,
    /// Files that are not Rust.
    others: BTreeSet<String>,
}

impl CodeIndex {
    pub fn add(&mut self, path: &str, text: &str) {
        if !path.ends_with(".rs") {
            self.others.insert(path.to_owned());
            return;
        }
        let code = code_only(text);
        let all: Vec<&str> = code.split(|c: char| !c.is_ascii() || !is_word(c as u8)).collect();
        let all: Vec<&str> = all.into_iter().filter(|word| !word.is_empty()).collect();
        let declared = all.windows(2).filter(|pair| DECLARES.contains(&pair[0]));
        let declared = declared.map(|pair| pair[1].to_owned()).collect();
        self.files.insert(path.to_owned(), declared);
        self.words.extend(all.into_iter().map(str::to_owned));
    }

    /// The file that a page calls `short`.
    fn file(&self, short: &str) -> Option<&str> {
        let means = |path: &&String| {
            let without = path.strip_prefix("crates/").unwrap_or(path).replacen("/src/", "/", 1);
            path.as_str() == short || without == short
        };
        self.files.keys().chain(&self.others).find(means).map(String::as_str)
    }

    fn declares(&self, name: &str) -> bool {
        self.files.values().any(|declared| declared.contains(name))
    }
}

/// Checks the names in backticks in `page`, and its statements about crates.
pub fn check(page: &str, code: &CodeIndex, metadata: &Metadata) -> Vec<RuleBreach> {
    let crates = crates(metadata);
    let mut findings = Vec::new();
    let mut fenced = false;
    for (line, text) in (1..).zip(page.lines()) {
        if text.starts_with("```") {
            fenced = !fenced;
        } else if !fenced {
            let wrong = ticked(text).filter_map(|name| wrong(name, code, &crates));
            findings.extend(wrong.map(|text| RuleBreach::new("named", PAGE, line, text)));
        }
    }
    findings.extend(rows(page, &crates).into_iter().map(|t| RuleBreach::new("named", PAGE, 0, t)));
    let picture = picture(metadata);
    if !page.contains(&picture) {
        let text = format!("the picture of who depends on whom should be:\n{picture}");
        findings.push(RuleBreach::new("named", PAGE, 0, text));
    }
    findings
}

/// The texts in backticks in a line.
fn ticked(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

fn wrong(name: &str, code: &CodeIndex, crates: &BTreeMap<&str, BTreeSet<&str>>) -> Option<String> {
    if let Some((path, inside)) = name.split_once(": ") {
        let path = path.ends_with(".rs").then_some(path)?;
        let Some(path) = code.file(path) else { return Some(format!("no file is called {path}")) };
        let there = code.files.get(path).is_some_and(|declared| declared.contains(inside));
        return (!there).then(|| format!("{path} declares no {inside}"));
    }
    if name.ends_with(".rs") {
        return code.file(name).is_none().then(|| format!("no file is called {name}"));
    }
    let is_name = |name: &str| {
        name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
            && name.starts_with(|c: char| c.is_ascii_alphabetic())
    };
    let known = |name: &str| {
        // A snake_case name must be declared here. Other words, such as `IP_RECVERR`, may be a
        // library's.
        let shown = name.contains(|c: char| c.is_ascii_uppercase()) || !name.contains('_');
        code.declares(name) || crates.contains_key(name) || shown && code.words.contains(name)
    };
    (is_name(name) && !known(name)).then(|| format!("nothing in the code is called {name}"))
}

/// The workspace's crates and their dependencies on each other.
fn crates(metadata: &Metadata) -> BTreeMap<&str, BTreeSet<&str>> {
    let mut all = BTreeMap::new();
    for package in &metadata.packages {
        let Some(name) = package.name.strip_prefix("shoal-") else { continue };
        let used = package.dependencies.iter().filter(|d| d.kind.is_none());
        let used = used.filter_map(|d| d.name.strip_prefix("shoal-"));
        all.insert(name, used.collect());
    }
    all
}

/// Errors in the page's table of crates.
fn rows(page: &str, crates: &BTreeMap<&str, BTreeSet<&str>>) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut seen = BTreeSet::new();
    for row in page.lines().filter(|line| line.starts_with("| `")) {
        let mut cells = row.split('|').map(str::trim).skip(1);
        let name = cells.next().unwrap_or_default().trim_matches('`');
        let kind = cells.next().unwrap_or_default();
        let is = match name {
            _ if !crates.contains_key(name) => {
                wrong.push(format!("the table has a crate {name} that does not exist"));
                continue;
            }
            _ if MACHINES.contains(&name) => "machine",
            _ if SHELLS.contains(&name) => "shell",
            _ => "",
        };
        if kind != is {
            wrong.push(format!("the table calls {name} `{kind}`, the rules `{is}`"));
        }
        seen.insert(name);
    }
    let missing = crates.keys().filter(|name| !seen.contains(**name));
    wrong.extend(missing.map(|name| format!("the table has no row for the crate {name}")));
    wrong
}

/// The diagram of dependencies. Crates with the fewest indirect dependencies come first. Each line
/// lists the direct dependencies without those that another one already includes.
pub fn picture(metadata: &Metadata) -> String {
    let direct = crates(metadata);
    let mut below: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    // The number of rounds is the length of the longest possible chain of crates.
    for _ in 0..direct.len() {
        for (name, used) in &direct {
            let mut all = used.clone();
            all.extend(used.iter().filter_map(|u| below.get(u)).flatten());
            below.insert(name, all);
        }
    }
    let mut order: Vec<_> = direct.iter().collect();
    order.sort_by_key(|(name, _)| (below[*name].len(), **name));
    let mut out = format!("{PICTURE}\n");
    for (name, used) in order {
        let through = |one: &&&str| used.iter().any(|other| below[other].contains(**one));
        let own: Vec<&str> = used.iter().filter(|one| !through(one)).copied().collect();
        out.push_str(format!("{name:<16}{}", own.join(" ")).trim_end());
        out.push('\n');
    }
    out
}
