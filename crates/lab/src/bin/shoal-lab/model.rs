//! `shoal-lab model`: what mixes cost TCP, as a paper says, as its formulas give, and as runs show.

use std::fs;

use anyhow::{Context, Result};
use shoal_cli::failure::{self, Failure};
use shoal_cli::options::Common;
use shoal_cli::output;
use shoal_lab::html;
use shoal_model::{Report, Runs, render};

use crate::args::Model;

/// Prints the report, or one figure of it, and writes its page if asked to.
pub fn run(common: &Common, args: &Model) -> Result<()> {
    let runs = Runs { seconds: args.seconds, seeds: args.seeds, ..Runs::default() };
    let report = match args.figure {
        Some(number) => Report::one(number, &runs),
        None => Report::all(&runs),
    };
    let report = report.map_err(|why| Failure::of(failure::FAILED, why.to_string()))?;
    if let Some(file) = &args.out {
        fs::write(file, html::model(&report)).with_context(|| file.display().to_string())?;
    }
    if common.json {
        return Ok(output::json("model", &report)?);
    }
    output::line(render(&report).trim_end_matches('\n'))?;
    if let Some(file) = &args.out {
        eprintln!("report: {}", file.display());
    }
    Ok(())
}
