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
    match &args.dir {
        None => {
            let mut text = Vec::new();
            clap_mangen::Man::new(Args::command()).render(&mut text)?;
            std::io::stdout().lock().write_all(&text)?;
        }
        Some(dir) => {
            let failed = || format!("{}: manual pages can't be written", dir.display());
            std::fs::create_dir_all(dir).with_context(failed)?;
            clap_mangen::generate_to(Args::command(), dir).with_context(failed)?;
        }
    }
    Ok(())
}
