//! Questions before a command that shows more of this host's traffic, or changes more, than its
//! user may expect.

use std::io::{self, BufRead, IsTerminal, Write};

use anyhow::{Context, Result};

use crate::failure::{self, ExitError};
use crate::output;

/// Longest answer that is read, in bytes.
const ANSWER_MAX: u64 = 64;

/// True if a user can be asked: both ends of the question are a terminal.
pub fn can_ask() -> bool {
    io::stdin().is_terminal() && io::stderr().is_terminal()
}

/// True if the user answers `question` by yes.
pub fn is_yes(question: &str) -> Result<bool> {
    let (input, mut out) = (io::stdin().lock(), io::stderr().lock());
    answer(question, input, &mut out).context("can't read the answer")
}

fn answer(question: &str, input: impl BufRead, out: &mut impl Write) -> io::Result<bool> {
    write!(out, "shoal: {} [y/N] ", output::message(question))?;
    out.flush()?;
    let mut answer = String::new();
    input.take(ANSWER_MAX).read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

/// Goes on if the command line has `--yes`, or if the user agrees to `what`, which ends in a full
/// stop.
///
/// # Errors
///
/// A [`ExitError`]: the user does not agree, or can't be asked.
pub fn confirm(what: &str, yes: bool) -> Result<()> {
    if yes {
        return Ok(());
    }
    if !can_ask() {
        let text = format!("{what} This command asks for a confirmation: add --yes");
        return Err(ExitError::of(failure::USAGE, text));
    }
    match is_yes(&format!("{what} Go on?"))? {
        true => Ok(()),
        false => Err(ExitError::of(failure::FAILED, "nothing was changed")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_yes_is_yes() {
        let ask = |text: &str| {
            let mut out = Vec::new();
            let yes = answer("Sure?", text.as_bytes(), &mut out).unwrap();
            assert_eq!(String::from_utf8(out).unwrap(), "shoal: Sure? [y/N] ");
            yes
        };
        assert_eq!(["y\n", "Y\n", " yes \n", "y"].map(ask), [true; 4]);
        let long = "y".repeat(1_000);
        assert_eq!(["", "\n", "n\n", "no\n", "yeah\n", &long].map(ask), [false; 6]);
    }

    #[test]
    fn without_a_terminal_the_option_decides() {
        confirm("Routers see it.", true).unwrap();
        if !can_ask() {
            let said = confirm("Routers see it.", false).unwrap_err();
            let failure = said.downcast_ref::<ExitError>().unwrap();
            assert_eq!(failure.code, failure::USAGE);
            assert!(said.to_string().ends_with("add --yes"), "{said}");
        }
    }
}
