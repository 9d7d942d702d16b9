//! `shoal-lab demo`: the network of the first paper on this machine.

use anyhow::Result;
use shoal_cli::failure::{self, Failure};
use shoal_cli::options::Common;
use shoal_cli::output;
use shoal_lab::demo::{self, Options, Shape};
use shoal_lab::{Family, Kind};

use crate::args::{Demo, Links, Topology};

/// Runs the demo and prints its table.
pub fn run(common: &Common, args: &Demo) -> Result<()> {
    let options = Options {
        kind: match args.links {
            Links::Auto => None,
            Links::Namespaces => Some(Kind::Namespaces),
            Links::Loopback => Some(Kind::Loopback),
        },
        family: if args.ipv6 { Family::Ipv6 } else { Family::Ipv4 },
        shape: match args.topology {
            Topology::Paper => Shape::Paper,
            Topology::Chain => Shape::Chain,
        },
        size: args.size.0,
        rate: args.rate.0,
        loss: args.loss,
        cut: !args.no_cut,
        observe: args.observe,
        capture: args.capture.clone(),
        keep: args.keep,
        quiet: args.quiet,
        ..Options::default()
    };
    let report = demo::run(&options).map_err(|e| Failure::of(failure::FAILED, format!("{e:#}")))?;
    if common.json {
        output::json("demo", &report)?;
    } else {
        output::line(report.to_string().trim_end_matches('\n'))?;
    }
    if report.hash_agrees {
        return Ok(());
    }
    Err(Failure::of(failure::FAILED, "the file that arrived is not the file that was sent"))
}
