//! `shoal-lab demo`: the network of the first paper on this machine.

use anyhow::Result;
use shoal_cli::failure::{self, ExitError};
use shoal_cli::options::CommonOptions;
use shoal_cli::output;
use shoal_lab::demo::{self, DemoNetwork, DemoOptions};
use shoal_lab::{IpFamily, NetworkKind};

use crate::args::{Demo, DemoLinks, DemoTopology};

/// Runs the demo and prints its table.
pub fn run(common: &CommonOptions, args: &Demo) -> Result<()> {
    let options = DemoOptions {
        kind: match args.links {
            DemoLinks::Auto => None,
            DemoLinks::Namespaces => Some(NetworkKind::Namespaces),
            DemoLinks::Loopback => Some(NetworkKind::Loopback),
        },
        family: if args.ipv6 { IpFamily::Ipv6 } else { IpFamily::Ipv4 },
        shape: match args.topology {
            DemoTopology::Paper => DemoNetwork::Paper,
            DemoTopology::Chain => DemoNetwork::Chain,
        },
        size: args.size.0,
        rate: args.rate.0,
        loss: args.loss,
        cut: !args.no_cut,
        observe: args.observe,
        capture: args.capture.clone(),
        keep: args.keep,
        quiet: args.quiet,
        ..DemoOptions::default()
    };
    let report =
        demo::run(&options).map_err(|e| ExitError::of(failure::FAILED, format!("{e:#}")))?;
    if common.json {
        output::json("demo", &report)?;
    } else {
        output::line(report.to_string().trim_end_matches('\n'))?;
    }
    if report.hash_agrees {
        return Ok(());
    }
    Err(ExitError::of(failure::FAILED, "the received file differs from the sent file"))
}
