//! Replays the transcript in docs/attribution.md.

use std::path::Path;
use std::process::Command;

/// A command of the transcript and what it prints, error output included.
struct Step {
    command: String,
    output: Vec<String>,
}

fn steps(text: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    let mut inside = false;
    for line in text.lines() {
        if line.starts_with("```") {
            inside = line == "```console";
        } else if let Some(command) = line.strip_prefix("$ ").filter(|_| inside) {
            steps.push(Step { command: command.to_owned(), output: Vec::new() });
        } else if let Some(step) = steps.last_mut().filter(|_| inside) {
            step.output.push(line.to_owned());
        }
    }
    steps
}

/// Whether `line` is `pattern` with something in the place of each `[..]`.
fn matches(pattern: &str, line: &str) -> bool {
    let mut rest = line;
    for (n, piece) in pattern.split("[..]").enumerate() {
        match rest.find(piece) {
            Some(at) if n > 0 || at == 0 => rest = &rest[at + piece.len()..],
            _ => return false,
        }
    }
    rest.is_empty() || pattern.ends_with("[..]")
}

#[test]
fn the_transcript_in_the_docs_is_true() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/attribution.md");
    let text = std::fs::read_to_string(page).expect("the page");
    let program = Path::new(env!("CARGO_BIN_EXE_shoal"));
    let folder = tempfile::tempdir().expect("a folder");
    let old = std::env::var("PATH").unwrap_or_default();
    let path = format!("{}:{old}", program.parent().expect("a folder").display());
    let steps = steps(&text);
    assert!(steps.len() > 20, "the page has lost its transcript");
    for step in steps {
        let result = Command::new("sh")
            .args(["-c", &format!("umask 022; {{ {}; }} 2>&1", step.command)])
            .current_dir(folder.path())
            .env("PATH", &path)
            .output()
            .expect("a shell");
        let printed = String::from_utf8_lossy(&result.stdout);
        let lines: Vec<&str> = printed.lines().collect();
        let same = lines.len() == step.output.len()
            && step.output.iter().zip(&lines).all(|(pattern, line)| matches(pattern, line));
        assert!(same, "$ {}\nprinted\n{printed}\nnot\n{}", step.command, step.output.join("\n"));
    }
}
