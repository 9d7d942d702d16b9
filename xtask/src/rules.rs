//! Rules for the contents of source files.

use crate::layers::{MACHINES, SHELLS};
use crate::scan::{code_only, functions, is_word, line_of, words};
use crate::tidy::RuleBreach;

/// Largest number of lines of a function, from `fn` to the closing brace.
pub const FUNCTION_LINES_MAX: usize = 70;
/// Largest number of lines of a source file.
pub const FILE_LINES_MAX: usize = 600;
/// Largest number of characters of a line.
pub const LINE_CHARS_MAX: usize = 100;
/// Largest number of lines between an `unsafe` and the start of its reason above.
const SAFETY_REACH_LINES: usize = 12;

/// Words that a machine's code must not use, because they reach the operating system or depend on
/// an order that doesn't replay.
const MACHINE_WORDS: &[&str] = &[
    "UdpSocket",
    "TcpStream",
    "TcpListener",
    "UnixStream",
    "UnixListener",
    "UnixDatagram",
    "Instant",
    "SystemTime",
    "std::thread",
    "std::fs",
    "std::env",
    "std::process",
    "tokio",
    "Mutex",
    "RwLock",
    "Condvar",
    "mpsc",
    "HashMap",
    "HashSet",
    "RandomState",
    "getrandom",
    "thread_rng",
];

/// Markers of unfinished work, in pieces so that this file passes its own check.
const UNFINISHED: &[&str] =
    &[concat!("TO", "DO"), concat!("FIX", "ME"), concat!("X", "XX"), concat!("to", "do!")];

/// Macros of unfinished work, searched for in code.
const UNFINISHED_CODE: &[&str] = &[concat!("un", "implemented")];

/// Beginnings of paths that exist on one machine only.
const MACHINE_PATHS: &[&str] =
    &[concat!("/ho", "me/"), concat!("/Us", "ers/"), concat!("/ro", "ot/"), concat!("/wo", "rk/")];

/// Endings of type names without meaning.
const EMPTY_NAMES: &[&str] = &["Manager", "Handler", "Helper", "Util", "Utils"];

/// A file's position in the workspace.
struct SourceFile<'a> {
    path: &'a str,
    /// `session` for `crates/session/src/lib.rs`; None outside `crates/`.
    crate_name: Option<&'a str>,
    /// True for code that only tests, benchmarks or examples run.
    test: bool,
}

/// True for a file whose code only tests, benches or examples run.
pub fn is_test(path: &str) -> bool {
    ["/tests/", "/benches/", "/examples/"].iter().any(|folder| path.contains(folder))
        || path.ends_with("/tests.rs")
        || path.ends_with("_tests.rs")
}

impl<'a> SourceFile<'a> {
    fn of(path: &'a str) -> SourceFile<'a> {
        let mut parts = path.split('/');
        let crate_name = (parts.next() == Some("crates")).then(|| parts.next()).flatten();
        SourceFile { path, crate_name, test: is_test(path) }
    }

    fn finding(&self, rule: &'static str, line: usize, text: String) -> RuleBreach {
        RuleBreach::new(rule, self.path, line, text)
    }
}

/// Checks a text file of the repository.
pub fn check_text(path: &str, text: &str) -> Vec<RuleBreach> {
    let place = SourceFile::of(path);
    let mut found = Vec::new();
    for (i, line) in text.lines().enumerate() {
        for word in UNFINISHED.iter().filter(|w| words(line, w).next().is_some()) {
            found.push(place.finding("unfinished", i + 1, format!("{word}: finish it or file it")));
        }
        for start in MACHINE_PATHS.iter().filter(|p| names_a_home(line, p)) {
            found.push(place.finding("paths", i + 1, format!("a path of one machine: {start}...")));
        }
    }
    found
}

/// True if `line` contains a path that begins with `start` and a name.
fn names_a_home(line: &str, start: &str) -> bool {
    line.match_indices(start).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + start.len()..].chars().next();
        let path_goes_on = |c: char| c.is_alphanumeric() || "._-}$".contains(c);
        !before.is_some_and(path_goes_on) && after.is_some_and(|c| c.is_alphanumeric() || c == '.')
    })
}

/// Kinds of fenced blocks in doc comments that rustdoc does not compile.
const FENCES: &[&str] = &["text", "toml", "console"];

/// Checks a Rust source file.
pub fn check_rust(path: &str, text: &str) -> Vec<RuleBreach> {
    let place = SourceFile::of(path);
    let code = code_only(text);
    let mut found = lengths(&place, text, &code);
    for word in UNFINISHED_CODE {
        for at in words(&code, word) {
            found.push(place.finding("unfinished", line_of(&code, at), format!("{word}!")));
        }
    }
    found.extend(empty_names(&place, &code));
    found.extend(unsafe_code(&place, text, &code));
    found.extend(machine_words(&place, &code));
    found.extend(rust_examples(&place, text));
    found
}

/// Rust examples in doc comments that no test would run. Only crate `attribution` has
/// documentation tests: each crate with them costs the gate seconds, even if there are none.
fn rust_examples(place: &SourceFile, text: &str) -> Vec<RuleBreach> {
    if place.path.starts_with("crates/attribution/") {
        return Vec::new();
    }
    let fence = |line: &str| {
        let line = line.trim_start();
        let comment = line.strip_prefix("///").or(line.strip_prefix("//!"))?;
        comment.trim_start().strip_prefix("```").map(str::to_owned)
    };
    let mut open = false;
    let mut found = Vec::new();
    for (i, line) in text.lines().enumerate() {
        let Some(kind) = fence(line) else { continue };
        open = !open;
        if open && !FENCES.contains(&kind.trim()) {
            let say = "Rust example that no test runs: write `text`, or a test".to_owned();
            found.push(place.finding("examples", i + 1, say));
        }
    }
    found
}

fn lengths(place: &SourceFile, text: &str, code: &str) -> Vec<RuleBreach> {
    let mut found = Vec::new();
    let count = text.lines().count();
    if count > FILE_LINES_MAX {
        let say = format!("{count} lines; at most {FILE_LINES_MAX}");
        found.push(place.finding("file-length", 0, say));
    }
    for (i, line) in text.lines().enumerate() {
        let chars = line.chars().count();
        if chars > LINE_CHARS_MAX && !line.contains("https://") {
            let say = format!("{chars} characters; at most {LINE_CHARS_MAX}");
            found.push(place.finding("line-length", i + 1, say));
        }
    }
    for f in functions(code).iter().filter(|f| f.lines > FUNCTION_LINES_MAX) {
        let say = format!("fn {} has {} lines; at most {FUNCTION_LINES_MAX}", f.name, f.lines);
        found.push(place.finding("function-length", f.line, say));
    }
    found
}

fn empty_names(place: &SourceFile, code: &str) -> Vec<RuleBreach> {
    let types = ["struct", "enum", "trait", "type"];
    let found = types.iter().flat_map(|word| words(code, word).map(move |at| at + word.len()));
    let named = found.map(|at| {
        let rest = code[at..].trim_start();
        let end = rest.bytes().position(|b| !is_word(b)).unwrap_or(rest.len());
        (at, &rest[..end])
    });
    let empty = named.filter(|(_, name)| EMPTY_NAMES.iter().any(|end| name.ends_with(end)));
    empty
        .map(|(at, name)| {
            let say = format!("{name}: name what it is, a noun (docs/glossary.md)");
            place.finding("names", line_of(code, at), say)
        })
        .collect()
}

fn unsafe_code(place: &SourceFile, text: &str, code: &str) -> Vec<RuleBreach> {
    let shell = place.crate_name.is_some_and(|c| SHELLS.contains(&c));
    let allowed = shell || place.path.starts_with("crates/crypto/src/bls");
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    for at in words(code, "unsafe") {
        let line = line_of(code, at);
        if !allowed {
            found.push(place.finding("unsafe", line, "unsafe outside a shell".into()));
            continue;
        }
        let above = &lines[line.saturating_sub(SAFETY_REACH_LINES + 1)..line];
        if !above.iter().any(|l| l.contains("SAFETY:") || l.contains("# Safety")) {
            found.push(place.finding("unsafe", line, "unsafe without a SAFETY reason".into()));
        }
    }
    found
}

fn machine_words(place: &SourceFile, code: &str) -> Vec<RuleBreach> {
    let machine = place.crate_name.is_some_and(|c| MACHINES.contains(&c));
    if !machine || place.test {
        return Vec::new();
    }
    // Unit tests of a machine are exempt. They are at the end of a file.
    let code = &code[..code.find("#[cfg(test)]").unwrap_or(code.len())];
    let hits = MACHINE_WORDS.iter().flat_map(|w| words(code, w).map(move |at| (w, at)));
    hits.map(|(word, at)| {
        place.finding("machine", line_of(code, at), format!("a machine must not use {word}"))
    })
    .collect()
}
