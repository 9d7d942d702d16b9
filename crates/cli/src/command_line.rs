//! From a program's command line to its exit code, for `shoal` and `shoal-lab`.

use std::process::ExitCode;

use anyhow::Result;
use clap::{CommandFactory, FromArgMatches};

use crate::failure::{self, ExitError};
use crate::options::{self, CommonOptions};
use crate::output;

/// A program's command line, and the action that it asks for.
pub trait CommandLine: CommandFactory + FromArgMatches {
    const NAME: &str;

    /// Runs the command.
    ///
    /// # Errors
    /// A [`ExitError`] has an exit code of its own; every other error exits with 1.
    fn run(self, common: &CommonOptions) -> Result<()>;
}

/// Parses the command line, runs the command, and reports a failure.
pub fn main<C: CommandLine>() -> ExitCode {
    let mut command = C::command();
    command.build();
    let matches = command.get_matches_mut();
    let line = C::from_arg_matches(&matches).unwrap_or_else(|e| e.format(&mut command).exit());
    output::set_colour(options::colour_given(&matches));
    let common = CommonOptions::given(&matches);
    match common.check(&command, &matches).and_then(|()| line.run(&common)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => report(C::NAME, &error, common.json),
    }
}

/// Reports a failure on standard error, and as JSON on standard output if JSON was requested.
fn report(program: &str, error: &anyhow::Error, json: bool) -> ExitCode {
    // The reader of a pipe is gone, so nobody reads a report.
    let pipe = |e: &std::io::Error| e.kind() == std::io::ErrorKind::BrokenPipe;
    if error.downcast_ref::<std::io::Error>().is_some_and(pipe) {
        return ExitCode::SUCCESS;
    }
    let failure = error.downcast_ref::<ExitError>();
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
