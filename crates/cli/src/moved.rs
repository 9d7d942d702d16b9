//! Commands that belong to `shoal-lab`.

use std::ffi::OsString;

use anyhow::Result;

use crate::failure::{self, ExitError};
use crate::options::CommonOptions;

#[derive(clap::Args, Debug)]
pub struct MovedArgs {
    /// All words behind the command's name, options too.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    words: Vec<OsString>,
}

/// Fails with the `shoal-lab` command to use. `verb` is none if the words begin with one.
pub fn run(common: &CommonOptions, verb: Option<&str>, moved: &MovedArgs) -> Result<()> {
    let words = moved.words.iter().map(|word| quoted(&word.to_string_lossy()));
    let json = common.json.then(|| "--json".to_string());
    let words: Vec<String> =
        verb.map(str::to_string).into_iter().chain(words).chain(json).collect();
    let words = words.join(" ");
    let text = format!(
        "the lab is a program of its own: shoal-lab {words}\n\
         in a checkout: cargo run --release -p shoal-lab -- {words}"
    );
    Err(ExitError::of(failure::USAGE, text.replace(" \n", "\n").trim_end()))
}

/// A word as a shell reads it.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,+@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_string();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_as_a_shell_reads_them() {
        assert_eq!(quoted("--rate=1gbit"), "--rate=1gbit");
        assert_eq!(quoted("80 ms"), "'80 ms'");
        assert_eq!(quoted("it's"), "'it'\\''s'");
        assert_eq!(quoted(""), "''");
    }
}
