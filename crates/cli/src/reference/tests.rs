//! Tests of pages: generated ones, and the examples of those that people write.

use std::path::{Path, PathBuf};

use clap::{CommandFactory, FromArgMatches};
use shoal_crypto::Identity;
use shoal_daemon::config::NodeConfig;
use shoal_daemon::membership::hosts::HostList;
use shoal_directory::Policy;
use shoal_wire::DropReason;

use super::*;
use crate::args::Args;
use crate::options::CommonOptions;

/// Pages whose blocks of TOML are read. Tests that start nodes run the blocks of other pages.
const TOML_PAGES: [&str; 3] = ["start/choose.md", "guide/circuits.md", "guide/mixes-cover.md"];

/// A mix that a page names without stating it.
const SLOW_MIX: &str = "[[mix]]\nname = \"slow\"\nkind = \"stop-and-go\"\nmean_ms = 5\n";

/// The start of a configuration that a page leaves out.
const NODE: &str = "[node]\nname = \"alice\"\naddress = \"1.1\"\nkey_file = \"node.key\"\n\
                    network_secret_file = \"network.key\"\n";

fn docs(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(path)
}

fn read(path: &str) -> String {
    std::fs::read_to_string(docs(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// A fenced block: the text behind its first fence, and its lines.
struct PageBlock {
    kind: String,
    lines: String,
}

fn blocks_of(page: &str) -> Vec<PageBlock> {
    let (mut blocks, mut open) = (Vec::new(), None::<PageBlock>);
    for line in read(page).lines() {
        match (line.trim_start().strip_prefix("```"), &mut open) {
            (Some(kind), None) => {
                open = Some(PageBlock { kind: kind.to_owned(), lines: String::new() });
            }
            (Some(_), Some(_)) => blocks.extend(open.take()),
            (None, Some(block)) => block.lines += &format!("{line}\n"),
            (None, None) => {}
        }
    }
    assert!(open.is_none(), "{page}: the last block has no end");
    blocks
}

/// Words of a command line. Double quotes join words.
fn words(line: &str) -> Vec<String> {
    let (mut words, mut quoted) = (vec![String::new()], false);
    for c in line.chars() {
        match c {
            '"' => quoted = !quoted,
            c if c.is_whitespace() && !quoted => words.push(String::new()),
            c => words.last_mut().expect("the list begins with a word").push(c),
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

/// Calls of `shoal` in a block, without redirections. Replaces `KEY` by a key.
fn calls(block: &PageBlock) -> Vec<Vec<String>> {
    let is_console = block.kind == "console";
    if !is_console && !block.kind.starts_with("sh") {
        return Vec::new();
    }
    let key = Identity::from_seed([1; 32]).public().to_string();
    let text = block.lines.replace("\\\n", " ");
    let mut calls = Vec::new();
    for line in text.lines().map(str::trim) {
        // A prompt, as in `$ shoal` or `one# shoal`. Other lines of a console are output.
        let prompt = line.split_once(' ').filter(|(prompt, _)| prompt.ends_with(['$', '#']));
        let line = match prompt {
            Some((_, command)) if is_console => command,
            _ if is_console => continue,
            _ => line,
        };
        let line = line.split(" #").next().unwrap_or(line);
        for piece in line.split(['&', '|', ';']).map(words) {
            if piece.first().is_some_and(|program| program == "shoal") {
                let given = piece.into_iter().take_while(|word| !word.starts_with(['<', '>']));
                calls.push(given.map(|w| if w == "KEY" { key.clone() } else { w }).collect());
            }
        }
    }
    calls
}

/// Parses a command line as the program does. Runs nothing.
fn parse(words: &[String]) -> Result<(), String> {
    let mut command = Args::command();
    command.build();
    let matches = command.try_get_matches_from_mut(words).map_err(|e| e.to_string())?;
    Args::from_arg_matches(&matches).map_err(|e| e.to_string())?;
    CommonOptions::given(&matches).check(&command, &matches).map_err(|e| e.to_string())
}

/// Reads a block as the file that its tables belong to: a hosts file, a policy or a configuration.
fn check_toml(text: &str) -> Result<(), String> {
    let file = Path::new("page.toml");
    let has = |table: &str| text.lines().any(|line| line.trim_start().starts_with(table));
    if has("[[host]]") {
        let key = Identity::from_seed([1; 32]).public();
        let text = text.replace("\"...\"", &format!("\"{key}\"")) + SLOW_MIX;
        let read = HostList::parse(file, &text).map(|_| ());
        return read.map_err(|e| e.to_string());
    }
    if ["[[allow]]", "[[circuits]]", "[[mix]]", "[[cover]]"].into_iter().any(has) {
        return Policy::parse(text).map(|_| ()).map_err(|e| e.to_string());
    }
    // Only a router's file covers a link.
    let node = if has("[[link]]") { NODE.replace("1.1", "1.0") } else { NODE.to_owned() };
    let read = NodeConfig::parse(file, &(node + text)).map(|_| ());
    read.map_err(|e| e.to_string())
}

#[test]
fn the_pages_are_what_the_code_says() {
    for page in ReferencePage::value_variants() {
        let name = page.to_possible_value().expect("no page is hidden").get_name().to_owned();
        let found = std::fs::read_to_string(docs("reference").join(format!("{name}.md")));
        let is_same = found.is_ok_and(|found| found == text::<Args>(*page));
        assert!(is_same, "shoal reference {name} > docs/reference/{name}.md");
    }
}

#[test]
fn every_command_line_of_the_guide_is_one_of_the_program() {
    for folder in ["start", "guide"] {
        for entry in std::fs::read_dir(docs(folder)).unwrap() {
            let page = format!("{folder}/{}", entry.unwrap().file_name().to_string_lossy());
            for call in blocks_of(&page).iter().flat_map(calls) {
                parse(&call).unwrap_or_else(|e| panic!("{page}: {}\n{e}", call.join(" ")));
            }
        }
    }
    for page in ["guide/circuits.md", "guide/mixes-cover.md", "guide/operate.md"] {
        assert!(blocks_of(page).iter().any(|block| !calls(block).is_empty()), "{page}");
    }
    assert!(parse(&words("shoal circuits --audits bob")).is_err());
}

#[test]
fn settings_in_pages_are_read() {
    for page in TOML_PAGES {
        let blocks = blocks_of(page);
        let blocks: Vec<_> = blocks.iter().filter(|block| block.kind == "toml").collect();
        assert!(!blocks.is_empty(), "{page}");
        for block in blocks {
            check_toml(&block.lines).unwrap_or_else(|e| panic!("{page}: {}\n{e}", block.lines));
        }
    }
    assert!(check_toml("[anonymity]\nloop = \"on\"\n").is_err());
}

#[test]
fn alerts_name_metrics_and_reasons_that_exist() {
    let (page, metrics) = (read("guide/operate.md"), text::<Args>(ReferencePage::Metrics));
    let is_word = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    let named = page.split(|c| !is_word(c)).filter(|word| word.starts_with("shoal_"));
    let named: Vec<&str> = named.collect();
    assert!(named.len() > 5, "{named:?}");
    for name in named {
        assert!(metrics.contains(&format!("| `{name}` |")), "{name}");
    }
    let reasons = page.split("reason=~\"").skip(1).filter_map(|rest| rest.split('"').next());
    let reasons: Vec<&str> = reasons.flat_map(|list| list.split("\\|")).collect();
    assert!(reasons.len() > 2, "{reasons:?}");
    for reason in reasons {
        assert!(DropReason::ALL.iter().any(|known| known.label() == reason), "{reason}");
    }
}
