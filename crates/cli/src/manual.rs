//! Completion scripts and manual pages of a program, for its commands `completions` and `man`.

use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Command;
use clap_complete::Shell;

use crate::command_line::CommandLine;

#[derive(clap::Args, Debug)]
pub struct Completions {
    #[allow(missing_docs, reason = "a doc comment would be a help text, and the name needs none")]
    pub shell: Shell,
}

#[derive(clap::Args, Debug)]
pub struct Man {
    /// Folder for all pages: one for the program, and one for each command.
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
}

/// Prints a completion script for the program with these commands.
///
/// # Errors
/// Standard output can't be written.
pub fn completions<C: CommandLine>(args: &Completions) -> Result<()> {
    // The buffer turns a closed pipe into an error here; the library would panic.
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut shown::<C>(), C::NAME, &mut text);
    std::io::stdout().lock().write_all(&text)?;
    Ok(())
}

/// The commands without hidden ones, which the library would also complete.
fn shown<C: CommandLine>() -> Command {
    let all = C::command();
    let verbs = all.get_subcommands().filter(|verb| !verb.is_hide_set());
    let bare = Command::new(C::NAME).version(env!("CARGO_PKG_VERSION"));
    bare.args(all.get_arguments().cloned()).subcommands(verbs.cloned())
}

/// Prints or writes manual pages of the program with these commands.
///
/// # Errors
/// A page can't be written.
pub fn man<C: CommandLine>(args: &Man) -> Result<()> {
    let mut command = C::command().disable_help_subcommand(true);
    command.build();
    let Some(dir) = &args.dir else {
        std::io::stdout().lock().write_all(page(command)?.as_bytes())?;
        return Ok(());
    };
    let failed = || format!("{}: manual pages can't be written", dir.display());
    std::fs::create_dir_all(dir).with_context(failed)?;
    let mut left = vec![command];
    while let Some(command) = left.pop() {
        left.extend(command.get_subcommands().filter(|verb| !verb.is_hide_set()).cloned());
        let name = clap_mangen::Man::new(command.clone()).get_filename();
        std::fs::write(dir.join(name), page(command)?).with_context(failed)?;
    }
    Ok(())
}

fn page(mut command: Command) -> Result<String> {
    let usage = command.render_usage().to_string();
    let mut roff = Vec::new();
    clap_mangen::Man::new(command).render(&mut roff)?;
    Ok(laid_out(&with_usage(&String::from_utf8(roff)?, &usage)))
}

/// Replaces a page's synopsis by the usage of `--help`. The library's synopsis shows neither
/// repeated arguments nor values of options.
fn with_usage(page: &str, usage: &str) -> String {
    let Some((head, rest)) = page.split_once(SYNOPSIS) else { return page.to_string() };
    let end = rest.find(".SH").unwrap_or(rest.len());
    let usage = usage.trim_start_matches("Usage: ").replace('-', "\\-");
    let lines: Vec<&str> = usage.lines().map(str::trim).collect();
    format!("{head}{SYNOPSIS}{}\n{}", lines.join("\n.br\n"), &rest[end..])
}

const SYNOPSIS: &str = ".SH SYNOPSIS\n";

/// Gives examples and notes, the last part of a page, their own headings instead of EXTRA. Indented
/// lines stay as they are, since examples would be justified like prose.
fn laid_out(page: &str) -> String {
    let Some((head, tail)) = page.split_once(".SH EXTRA\n") else { return page.to_string() };
    let mut out = head.to_string();
    let (mut heading, mut as_is) = ("", false);
    let mut lines = tail.lines();
    for line in lines.by_ref().take_while(|line| !line.starts_with(".SH")) {
        let indented = line.starts_with(' ');
        if indented != as_is {
            out += if indented { ".nf\n" } else { ".fi\n" };
            as_is = indented;
        }
        let section = match line {
            "Example:" | "Examples:" => "EXAMPLES",
            "Exit codes:" => "EXIT STATUS",
            line if indented || line.is_empty() => heading,
            _ => "NOTES",
        };
        if section != heading {
            out += &format!(".SH {section:?}\n");
            heading = section;
        }
        if !line.ends_with(':') || heading == "NOTES" {
            out += &format!("{line}\n");
        }
    }
    if as_is {
        out += ".fi\n";
    }
    // Only the version follows; `take_while` has consumed its heading.
    if let Some(version) = lines.next() {
        out += &format!(".SH VERSION\n{version}\n");
    }
    out
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::args::Args;

    fn named(path: &[&str]) -> String {
        let mut command = Args::command();
        command.build();
        let found = path.iter().fold(&command, |at, name| at.find_subcommand(name).unwrap());
        page(found.clone()).unwrap()
    }

    #[test]
    fn the_synopsis_is_the_usage_that_help_prints() {
        let synopsis = |path: &[&str]| {
            let page = named(path);
            let rest = page.split(SYNOPSIS).nth(1).unwrap();
            rest.split(".SH").next().unwrap().trim().replace("\\-", "-")
        };
        assert_eq!(synopsis(&["send"]), "shoal send [OPTIONS] <FILE>... <HOST>");
        assert_eq!(synopsis(&[]), "shoal [OPTIONS] [COMMAND]");
        let list = "shoal authority list [OPTIONS] [FILE | --dir <DIR>]";
        assert_eq!(synopsis(&["authority", "list"]), list);
    }

    #[test]
    fn examples_notes_and_exit_codes_have_their_headings_and_lines() {
        let page = named(&[]);
        assert!(!page.contains("EXTRA"));
        assert!(page.contains(".SH \"EXAMPLES\"\n.nf\n  shoal network create home "), "{page}");
        assert!(page.contains("to bob\n.fi\n\n.SH \"EXIT STATUS\"\n.nf\n  0  done\n"), "{page}");
        assert!(page.contains("  130  stopped by Ctrl\\-C\n.fi\n.SH VERSION\nv"), "{page}");
        let page = named(&["send"]);
        assert!(page.contains(".fi\n\n.SH \"NOTES\"\nAn interrupted transfer resumes"), "{page}");
        assert_eq!(page.matches(".SH \"EXAMPLES\"").count(), 1, "{page}");
        for line in page.lines().filter(|line| line.starts_with('.')) {
            let known =
                [".SH", ".TH", ".TP", ".nf", ".fi", ".ie", ".el", ".RS", ".RE", ".IP", ".br"];
            assert!(known.iter().any(|macro_| line.starts_with(macro_)), "{line}");
        }
        assert!(!named(&["peers"]).contains(".nf"));
    }

    #[test]
    fn hidden_commands_are_not_completed() {
        let command = shown::<Args>();
        assert!(
            command.find_subcommand("send").is_some_and(|send| send.get_arguments().count() > 5)
        );
        assert!(Args::command().find_subcommand("demo").is_some());
        assert!(command.find_subcommand("demo").is_none());
    }
}
