//! `shoal completions` and `shoal man`.

use std::io::Write;

use anyhow::{Context, Result};
use clap::CommandFactory;

use crate::args::{Args, Completions, Man};

/// Prints a completion script.
pub fn completions(args: &Completions) -> Result<()> {
    // Through a buffer, so that a closed pipe is an error here and no panic in there.
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut Args::command(), "shoal", &mut text);
    std::io::stdout().lock().write_all(&text)?;
    Ok(())
}

/// Prints or writes manual pages.
pub fn man(args: &Man) -> Result<()> {
    let mut command = Args::command().disable_help_subcommand(true);
    command.build();
    let Some(dir) = &args.dir else {
        std::io::stdout().lock().write_all(page(command)?.as_bytes())?;
        return Ok(());
    };
    let failed = || format!("{}: manual pages can't be written", dir.display());
    std::fs::create_dir_all(dir).with_context(failed)?;
    let mut left = vec![command];
    while let Some(command) = left.pop() {
        left.extend(command.get_subcommands().cloned());
        let name = clap_mangen::Man::new(command.clone()).get_filename();
        std::fs::write(dir.join(name), page(command)?).with_context(failed)?;
    }
    Ok(())
}

fn page(mut command: clap::Command) -> Result<String> {
    let usage = command.render_usage().to_string();
    let mut roff = Vec::new();
    clap_mangen::Man::new(command).render(&mut roff)?;
    Ok(laid_out(&with_usage(&String::from_utf8(roff)?, &usage)))
}

/// A page whose synopsis is what `--help` says: that of the library shows neither which arguments
/// may be repeated nor what belongs to an option.
fn with_usage(page: &str, usage: &str) -> String {
    let Some((head, rest)) = page.split_once(SYNOPSIS) else { return page.to_string() };
    let end = rest.find(".SH").unwrap_or(rest.len());
    let usage = usage.trim_start_matches("Usage: ").replace('-', "\\-");
    let lines: Vec<&str> = usage.lines().map(str::trim).collect();
    format!("{head}{SYNOPSIS}{}\n{}", lines.join("\n.br\n"), &rest[end..])
}

const SYNOPSIS: &str = ".SH SYNOPSIS\n";

/// A page whose last part, examples and notes, has headings instead of EXTRA, and whose indented
/// lines stay as they are: examples would be justified like prose.
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
    // Only the version stands behind it; `take_while` ate its heading.
    if let Some(version) = lines.next() {
        out += &format!(".SH VERSION\n{version}\n");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert!(page.contains(".SH \"EXAMPLES\"\n.nf\n  shoal demo   "), "{page}");
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
}
