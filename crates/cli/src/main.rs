//! The binary `shoal`.

use std::process::ExitCode;

fn main() -> ExitCode {
    shoal_cli::command_line::main::<shoal_cli::Args>()
}
