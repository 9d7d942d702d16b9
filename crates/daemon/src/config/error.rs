//! Errors in files that the operator wrote, with their line and key.

use std::fmt;
use std::path::{Path, PathBuf};

use toml::de::{DeTable, DeValue};

use super::Expert;
use super::section::ConfigSection;

/// Fault in a file that the operator wrote.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    pub file: PathBuf,
    /// The line, counted from 1, where it is known.
    pub line: Option<usize>,
    /// The key with its section, such as `routing.queries`, where one is at fault.
    pub key: Option<String>,
    /// Sentence that says what was expected and what was found.
    pub message: String,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.file.display())?;
        if let Some(line) = self.line {
            write!(f, ":{line}")?;
        }
        f.write_str(": ")?;
        if let Some(key) = &self.key {
            write!(f, "{key}: ")?;
        }
        f.write_str(&self.message)
    }
}

impl std::error::Error for ConfigError {}

impl ConfigError {
    /// A file that can't be read at all.
    pub fn unreadable(file: &Path, error: &std::io::Error) -> ConfigError {
        let message = format!("can't be read: {error}");
        ConfigError { file: file.to_path_buf(), line: None, key: None, message }
    }
}

/// Text of a file, for finding the line of a key.
#[derive(Debug)]
pub struct ConfigSource<'a> {
    file: &'a Path,
    text: &'a str,
}

/// Key of the file: its path, and the bytes from its name to the end of its value.
struct KeySpan {
    path: String,
    start: usize,
    end: usize,
}

impl<'a> ConfigSource<'a> {
    /// Takes `text` as the content of `file`.
    pub fn new(file: &'a Path, text: &'a str) -> ConfigSource<'a> {
        ConfigSource { file, text }
    }

    /// Error for a parsed value that is not allowed. `index` counts from 0 among `[[section]]`.
    /// Keys above all sections have the section "".
    pub fn wrong(
        &self,
        section: &str,
        index: Option<usize>,
        key: &str,
        expected: impl Into<String>,
    ) -> ConfigError {
        let (place, shown) = match index {
            Some(i) => (format!("{section}[{i}].{key}"), format!("{section}.{key}")),
            None if section.is_empty() => (key.to_string(), key.to_string()),
            None => (format!("{section}.{key}"), format!("{section}.{key}")),
        };
        // Defaults are valid, so the key is in the file; otherwise the line of its section is
        // shown.
        let find = |path: &str| self.places().into_iter().find(|p| p.path == path);
        let section_path = place.trim_end_matches(key).trim_end_matches('.').to_string();
        let at = find(&place).or_else(|| find(&section_path));
        ConfigError {
            file: self.file.to_path_buf(),
            line: at.map(|p| self.line(p.start)),
            key: Some(shown),
            message: expected.into(),
        }
    }

    /// Error for input that the TOML reader or a type refused.
    pub fn syntax(&self, error: &toml::de::Error) -> ConfigError {
        let offset = error.span().map(|span| span.start);
        let key = offset.and_then(|at| {
            let around = |p: &KeySpan| p.start <= at && at <= p.end;
            self.places().into_iter().rfind(around).map(|p| strip_indices(&p.path))
        });
        ConfigError {
            file: self.file.to_path_buf(),
            line: offset.map(|at| self.line(at)),
            message: in_our_words(error.message().trim(), key.as_deref()),
            key,
        }
    }

    /// True if the file has the key at `path`, such as "circuits.policy".
    pub fn has(&self, path: &str) -> bool {
        self.places().iter().any(|place| place.path == path)
    }

    fn line(&self, offset: usize) -> usize {
        let before = &self.text.as_bytes()[..offset.min(self.text.len())];
        1 + before.iter().filter(|b| **b == b'\n').count()
    }

    /// Keys of the file; none if it isn't TOML.
    fn places(&self) -> Vec<KeySpan> {
        let mut places = Vec::new();
        if let Ok(table) = DeTable::parse(self.text) {
            walk(table.get_ref(), "", &mut places);
        }
        places
    }
}

/// Depth is bounded by the TOML reader's own recursion limit.
fn walk(table: &DeTable<'_>, prefix: &str, places: &mut Vec<KeySpan>) {
    for (key, value) in table.iter() {
        let name = key.get_ref();
        let path = if prefix.is_empty() { name.to_string() } else { format!("{prefix}.{name}") };
        let (start, end) = (key.span().start, value.span().end.max(key.span().end));
        places.push(KeySpan { path: path.clone(), start, end });
        match value.get_ref() {
            DeValue::Table(inner) => walk(inner, &path, places),
            DeValue::Array(items) => {
                for (i, item) in items.iter().enumerate() {
                    let Some(inner) = item.get_ref().as_table() else { continue };
                    let path = format!("{path}[{i}]");
                    let span = item.span();
                    places.push(KeySpan { path: path.clone(), start: span.start, end: span.end });
                    walk(inner, &path, places);
                }
            }
            _ => {}
        }
    }
}

/// Rewrites three messages of the TOML reader. A single value where a list belongs is shown as a
/// list. A key of `[expert]` in another section is named with `[expert]`, and a former name with
/// the present one.
fn in_our_words(message: &str, key: Option<&str>) -> String {
    let value = message.strip_prefix("invalid type: string ");
    let value = value.and_then(|text| text.strip_suffix(", expected a sequence"));
    let last = key.and_then(|key| key.rsplit('.').next());
    let unknown = key.filter(|_| message.starts_with("unknown field"));
    if let Some(renamed) = unknown.and_then(present_name) {
        return renamed.to_string();
    }
    match (value, last, unknown.and_then(expert)) {
        (Some(value), Some(key), _) => format!("expected a list: {key} = [{value}]"),
        (None, _, Some(name)) => format!("expected it as {name} in [expert]; {message}"),
        _ => message.to_string(),
    }
}

/// The present name of a key, by its former one.
fn present_name(key: &str) -> Option<&'static str> {
    match key {
        "hop" => Some("[hop] is called [shift]"),
        "link.hop" => Some("hop is called shift"),
        _ => None,
    }
}

/// The name in `[expert]` of a key that was found in another section.
fn expert(key: &str) -> Option<&'static str> {
    let (section, name) = key.rsplit_once('.').filter(|(section, _)| *section != "expert")?;
    let of_link = if section == "liveness" { "link_" } else { "" };
    let is = |known: &str| known == name || known.strip_prefix(of_link) == Some(name);
    Expert::section("expert").keys.iter().map(|key| key.name).find(|known| is(known))
}

/// `link[2].peer` becomes `link.peer`: the error's line tells which link.
fn strip_indices(path: &str) -> String {
    let mut text = String::with_capacity(path.len());
    let mut inside = false;
    for c in path.chars() {
        match c {
            '[' => inside = true,
            ']' => inside = false,
            c if !inside => text.push(c),
            _ => {}
        }
    }
    text
}
