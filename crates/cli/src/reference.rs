//! Pages of docs/reference that follow from the code.

use std::io::Write;

use anyhow::Result;
use clap::{Command, ValueEnum};

use crate::command_line::CommandLine;

/// Arguments of `shoal reference`.
#[derive(clap::Args, Debug)]
pub struct ReferenceArgs {
    /// Page to print, as Markdown.
    page: ReferencePage,
}

/// A generated page.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum ReferencePage {
    /// Keys of node.toml.
    Config,
    /// Commands and their options.
    Commands,
    /// Reasons of drops.
    Counters,
    /// Metrics of a node.
    Metrics,
}

/// Prints a page.
///
/// # Errors
/// Standard output can't be written.
pub fn print<C: CommandLine>(args: &ReferenceArgs) -> Result<()> {
    std::io::stdout().lock().write_all(text::<C>(args.page).as_bytes())?;
    Ok(())
}

fn text<C: CommandLine>(page: ReferencePage) -> String {
    match page {
        ReferencePage::Config => shoal_daemon::config::reference_page(),
        ReferencePage::Commands => commands::<C>(),
        ReferencePage::Counters => shoal_daemon::control::counters::page(),
        ReferencePage::Metrics => shoal_daemon::control::metric_reference::page(),
    }
}

/// The help of each command that is not hidden.
fn commands<C: CommandLine>() -> String {
    let mut page = format!("# Commands of {}\n\nThe output of `--help`, by command.\n", C::NAME);
    let mut all = C::command().term_width(100).disable_help_subcommand(true);
    all.build();
    describe(&all, C::NAME, &mut page);
    page
}

fn describe(command: &Command, name: &str, page: &mut String) {
    let help = command.clone().render_long_help().to_string();
    let lines: Vec<&str> = help.lines().map(str::trim_end).collect();
    *page += &format!("\n## {name}\n\n```text\n{}\n```\n", lines.join("\n").trim_end());
    for verb in command.get_subcommands().filter(|verb| !verb.is_hide_set()) {
        describe(verb, &format!("{name} {}", verb.get_name()), page);
    }
}

#[cfg(test)]
mod tests;
