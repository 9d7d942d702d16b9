//! From a program's command line to its exit code: what `shoal` and `shoal-lab` do alike.

use std::process::ExitCode;

use anyhow::Result;
use clap::{CommandFactory, FromArgMatches};

use crate::failure::{self, Failure};
use crate::options::{self, Common};
use crate::output;

/// A program's command line and what it does.
pub trait CommandLine: CommandFactory + FromArgMatches {
    /// The program's name.
    const NAME: &str;

    /// Does what was asked for.
    ///
    /// # Errors
    /// Whatever keeps it from being done; a [`Failure`] says with which exit code.
    fn run(self, common: &Common) -> Result<()>;
}

/// Reads the command line, does what it asks for, and says what went wrong.
pub fn main<C: CommandLine>() -> ExitCode {
    let mut command = C::command();
    command.build();
    let matches = command.get_matches_mut();
    let line = C::from_arg_matches(&matches).unwrap_or_else(|e| e.format(&mut command).exit());
    output::set_colour(options::colour_given(&matches));
    let common = Common::given(&matches);
    match common.check(&command, &matches).and_then(|()| line.run(&common)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => report(C::NAME, &error, common.json),
    }
}

/// Says what went wrong on standard error, and as JSON on standard output if JSON was asked for.
fn report(program: &str, error: &anyhow::Error, json: bool) -> ExitCode {
    // The reader of a pipe is gone: there is nobody to report to.
    let pipe = |e: &std::io::Error| e.kind() == std::io::ErrorKind::BrokenPipe;
    if error.downcast_ref::<std::io::Error>().is_some_and(pipe) {
        return ExitCode::SUCCESS;
    }
    let failure = error.downcast_ref::<Failure>();
    let code = failure.map_or(failure::FAILED, |f| f.code);
    if json {
        let body = serde_json::json!({ "code": code, "message": format!("{error:#}") });
        let _ = output::json("error", &body);
    }
    if failure.is_none_or(|f| !f.said) {
        eprintln!("{program}: {}", output::message(&format!("{error:#}")));
    }
    ExitCode::from(code)
}
