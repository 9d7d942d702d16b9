//! `shoal sim`: whole networks under a virtual clock, faults and all, from a seed.

use anyhow::Result;
use shoal_sim::Options;

use crate::args::{Common, Sim};
use crate::failure::{self, Failure};
use crate::output;

/// Runs seeds one after the other; fails if a rule was broken in any.
pub fn run(common: &Common, args: &Sim) -> Result<()> {
    let mut broken = Vec::new();
    for seed in args.seed..=args.seed.saturating_add(args.runs - 1) {
        let options = if args.calm { Options::calm(seed) } else { Options::from_seed(seed) };
        let outcome = shoal_sim::run(options);
        if common.json {
            output::json("sim", &outcome)?;
        } else {
            output::line(outcome.to_string().trim_end_matches('\n'))?;
        }
        if !outcome.is_ok() {
            broken.push(seed.to_string());
        }
    }
    match broken.len() {
        0 => Ok(()),
        n => {
            let text =
                format!("{n} of {} runs broke a rule: seeds {}", args.runs, broken.join(", "));
            Err(Failure::of(failure::FAILED, text))
        }
    }
}
