//! The binary `shoal-lab`: networks of nodes on this machine, real and simulated.
//!
//! Input: a command line. Outputs: tables for people, or JSON with a version field for programs;
//! report files; an exit code for the kind of failure.
//!
//! ```text
//! args         the command line
//! demo         a network, a file, a cut link
//! experiments  scenarios run, drawn and compared (run list report compare bench)
//! sim          networks under a virtual clock
//! model        cost of mixes for TCP
//! attack       anonymity with mixes and cover
//! ```
//!
//! The networks need no other program. Hidden commands act like `shoal run`, `send` and `receive`,
//! by the same functions. The lab starts this executable for each node (`shoal_lab::Executable`).

#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "a shell owns the system")]

mod args;
mod attack;
mod demo;
mod experiments;
mod model;
mod sim;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use shoal_cli::command_line::{self, CommandLine};
use shoal_cli::options::CommonOptions;
use shoal_cli::{commands, manual};
use shoal_daemon::config::Experiment;

use args::{LabArgs, LabCommand};

fn main() -> ExitCode {
    command_line::main::<LabArgs>()
}

impl CommandLine for LabArgs {
    const NAME: &str = "shoal-lab";

    fn run(self, common: &CommonOptions) -> Result<()> {
        match self.verb {
            LabCommand::Demo(verb) => demo::run(common, &verb),
            LabCommand::List => experiments::list(common),
            LabCommand::Run(verb) => experiments::run_scenario(common, &verb),
            LabCommand::Report(verb) => experiments::page(common, &verb),
            LabCommand::Compare(verb) => experiments::compare(common, &verb),
            LabCommand::Bench(verb) => experiments::bench(common, &verb),
            LabCommand::Sim(verb) => sim::run(common, &verb),
            LabCommand::Model(verb) => model::run(common, &verb),
            LabCommand::Attack(verb) => attack::run(common, &verb),
            LabCommand::Completions(verb) => manual::completions::<LabArgs>(&verb),
            LabCommand::Man(verb) => manual::man::<LabArgs>(&verb),
            LabCommand::Node(verb) => {
                let circuit_life = verb.circuit_life_ms.map(Duration::from_millis);
                commands::node(common, Experiment { circuit_life, any_order: verb.any_order })
            }
            LabCommand::Send(verb) => commands::send(common, &verb),
            LabCommand::Receive(verb) => commands::receive(common, &verb),
        }
    }
}
