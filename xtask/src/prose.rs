//! Rules for prose: comments and messages in code, and sentences in pages.
//!
//! `tidy` refuses comments and messages that begin with a pronoun or a question word, because the
//! reader must then search for the noun. `words` measures sentences.

use std::collections::BTreeMap;

use crate::scan::{is_word, literal_end};
use crate::tidy::RuleBreach;

/// Refused first words, in lower case.
const REFUSED: &[&str] = &[
    "of",
    "those",
    "these",
    "they",
    "it",
    "its",
    "what",
    "where",
    "who",
    "whose",
    "so",
    "which",
    "the same",
    "as before",
];
/// Smallest number of words of a string literal that counts as a message.
const MESSAGE_WORDS_MIN: usize = 3;
/// Longest sentence in words that does not count as long.
const LONG_SENTENCE_WORDS: usize = 25;

/// One comment or message.
#[derive(Debug, PartialEq, Eq)]
pub struct ProseText {
    /// First line, counted from 1.
    pub line: usize,
    /// True for a comment, false for a message.
    pub comment: bool,
    /// The words without comment marks.
    pub words: String,
}

/// All comments and messages of a Rust source, in order.
pub fn texts(source: &str) -> Vec<ProseText> {
    let bytes = source.as_bytes();
    let (mut found, mut at) = (Vec::<ProseText>::new(), 0);
    let (mut line, mut counted) = (1, 0);
    // Line after the last comment, and its mark. Adjacent lines with one mark form one comment.
    let mut last: Option<(usize, &str)> = None;
    while at < bytes.len() {
        let end = literal_end(bytes, at);
        if end == at {
            at += 1;
            continue;
        }
        line += bytes[counted..at].iter().filter(|&&b| b == b'\n').count();
        counted = at;
        let literal = &source[at..end];
        if literal.starts_with("//") {
            let mark = ["///", "//!", "//"].into_iter().find(|m| literal.starts_with(m));
            let mark = mark.unwrap_or("//");
            let words = literal[mark.len()..].trim();
            match found.last_mut() {
                Some(text) if text.comment && last == Some((line, mark)) => {
                    text.words.push('\n');
                    text.words.push_str(words);
                }
                _ => found.push(ProseText { line, comment: true, words: words.to_owned() }),
            }
            last = Some((line + 1, mark));
        // Byte strings are for machines.
        } else if literal.contains('"') && !literal.starts_with('b') {
            let words = literal.trim_start_matches(|c| c != '"').trim_matches(['#', '"']);
            if words.split_whitespace().filter(|w| is_plain(w)).count() >= MESSAGE_WORDS_MIN {
                found.push(ProseText { line, comment: false, words: words.to_owned() });
            }
        }
        at = end;
    }
    found
}

fn is_plain(word: &str) -> bool {
    let word = word.trim_matches(|c: char| !c.is_ascii_alphabetic());
    !word.is_empty() && word.bytes().all(is_word)
}

/// The refused first word of a text, if there is one.
fn refused(words: &str) -> Option<&'static str> {
    let lower = words.get(..24.min(words.len())).unwrap_or_default().to_ascii_lowercase();
    REFUSED.iter().copied().find(|start| {
        lower
            .strip_prefix(start)
            .is_some_and(|rest| rest.starts_with(|c: char| c.is_whitespace() || ",:;.".contains(c)))
    })
}

/// Comments and messages of a Rust source that begin with a refused word.
pub fn check(path: &str, source: &str) -> Vec<RuleBreach> {
    let wrong = texts(source).into_iter().filter_map(|text| {
        let start = refused(&text.words)?;
        let kind = if text.comment { "comment" } else { "message" };
        let say = format!("a {kind} begins with `{start}`: begin with the noun");
        Some(RuleBreach::new("openings", path, text.line, say))
    });
    wrong.collect()
}

/// A sentence and its number of words.
struct Sentence {
    /// First line of its comment; 0 in a page.
    line: usize,
    text: String,
    words: usize,
}

/// Sentences in the comments of a Rust source, or in another text.
fn sentences(path: &str, text: &str) -> Vec<Sentence> {
    let blocks: Vec<(usize, String)> = if path.ends_with(".rs") {
        let comments = texts(text).into_iter().filter(|text| text.comment);
        let blocks =
            |text: ProseText| paragraphs(&text.words).into_iter().map(move |b| (text.line, b));
        comments.flat_map(blocks).collect()
    } else {
        paragraphs(text).into_iter().map(|block| (0, block)).collect()
    };
    let mut found = Vec::new();
    for (line, block) in blocks {
        for text in block.split_inclusive(['.', '!', '?']).fold(Vec::new(), joined) {
            let is_word = |word: &&str| word.chars().any(char::is_alphanumeric);
            let words = text.split_whitespace().filter(is_word).count();
            if words > 1 {
                found.push(Sentence { line, text, words });
            }
        }
    }
    found
}

/// Joins pieces that were split at a full stop within a word (`1.4`, `wire.md`) or after an
/// abbreviation.
fn joined(mut done: Vec<String>, piece: &str) -> Vec<String> {
    match done.last_mut() {
        Some(last) if !piece.starts_with(char::is_whitespace) => last.push_str(piece),
        Some(last) if last.ends_with("e.g.") || last.ends_with("i.e.") => last.push_str(piece),
        _ => done.push(piece.to_owned()),
    }
    done
}

/// Paragraphs, list items and table cells, without code blocks and headings.
fn paragraphs(text: &str) -> Vec<String> {
    let (mut blocks, mut fenced) = (vec![String::new()], false);
    for line in text.lines() {
        let line = line.trim();
        if line.starts_with("```") {
            fenced = !fenced;
        }
        let between = ["```", "#", "|--", "|:-"].iter().any(|mark| line.starts_with(mark));
        if fenced || line.is_empty() || between {
            blocks.push(String::new());
        } else if line.starts_with('|') {
            blocks.extend(line.split('|').map(str::to_owned));
            blocks.push(String::new());
        } else {
            if line.starts_with("- ") || line.starts_with("* ") || numbered(line) {
                blocks.push(String::new());
            }
            let block = blocks.last_mut().expect("there is always a block");
            block.push_str(line);
            block.push(' ');
        }
    }
    blocks.retain(|block| !block.trim().is_empty());
    blocks
}

fn numbered(line: &str) -> bool {
    line.split_once(". ")
        .is_some_and(|(n, _)| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
}

/// The figures of one room: a crate, a folder, or the whole repository.
#[derive(Default)]
struct RoomFigures {
    /// Number of comments and messages with a refused first word.
    refused: usize,
    /// Number of words in each sentence.
    lengths: Vec<usize>,
}

/// A table of rooms: refused first words, sentences, median of their words, share of long ones.
/// Below it, each refused first word and each long sentence in the folders `below`.
pub fn report(files: &[(String, String)], below: &[String]) -> String {
    let mut rooms = BTreeMap::<String, RoomFigures>::new();
    let mut details = String::new();
    for (path, text) in files {
        let sentences = sentences(path, text);
        let refused = if path.ends_with(".rs") { check(path, text) } else { Vec::new() };
        for room in [room(path), "all".to_owned()] {
            let measure = rooms.entry(room).or_default();
            measure.lengths.extend(sentences.iter().map(|s| s.words));
            measure.refused += refused.len();
        }
        if below.iter().any(|folder| path.starts_with(folder.as_str())) {
            refused.iter().for_each(|finding| details += &format!("{finding}\n"));
            for s in sentences.iter().filter(|s| s.words > LONG_SENTENCE_WORDS) {
                details += &format!("{path}:{}: {} words: {}\n", s.line, s.words, s.text.trim());
            }
        }
    }
    let mut out =
        format!("{:<14}{:>8}{:>11}{:>8}{:>7}\n", "room", "refused", "sentences", "median", "long");
    for (room, mut measure) in rooms {
        measure.lengths.sort_unstable();
        let (all, median) = (measure.lengths.len(), measure.lengths.get(measure.lengths.len() / 2));
        let long = measure.lengths.iter().filter(|&&n| n > LONG_SENTENCE_WORDS).count();
        let share = 100.0 * long as f64 / all.max(1) as f64;
        let median = median.copied().unwrap_or_default();
        out += &format!("{room:<14}{:>8}{all:>11}{median:>8}{share:>6.1}%\n", measure.refused);
    }
    out + &details
}

/// The crate or the folder of a file.
fn room(path: &str) -> String {
    let mut parts = path.split('/');
    match (parts.next(), parts.next()) {
        (Some("crates"), Some(name)) => name.to_owned(),
        (Some(first), Some(_)) => format!("{first}/"),
        _ => "(root)".to_owned(),
    }
}
