//! `shoal-lab model`: cost of mixes for TCP. Compares the figures of a paper, the paper's formulas,
//! and simulated runs.

use std::fs;

use anyhow::{Context, Result};
use shoal_cli::failure::{self, ExitError};
use shoal_cli::options::CommonOptions;
use shoal_cli::output;
use shoal_lab::html;
use shoal_model::{ModelReport, RunParameters, render};

use crate::args::Model;

/// Prints the report, or one figure of it, and writes its page if requested.
pub fn run(common: &CommonOptions, args: &Model) -> Result<()> {
    let runs =
        RunParameters { seconds: args.seconds, seeds: args.seeds, ..RunParameters::default() };
    let report = match args.figure {
        Some(number) => ModelReport::one(number, &runs),
        None => ModelReport::all(&runs),
    };
    let report = report.map_err(|why| ExitError::of(failure::FAILED, why.to_string()))?;
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
