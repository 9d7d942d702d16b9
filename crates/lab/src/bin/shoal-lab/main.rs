//! The binary `shoal-lab`: networks of nodes on this machine, real and simulated.
//!
//! In: a command line. Out: tables for people, or JSON with a version field for programs; reports
//! as files; an exit code that says what kind of failure it was.
//!
//! ```text
//! args         the command line
//! demo         a network, a file, a cut link
//! experiments  scenarios run, drawn and compared (run list report compare bench)
//! sim          networks under a virtual clock
//! model        what mixes cost TCP
//! attack       what mixes and cover hide
//! ```
//!
//! Its networks need no other program: hidden commands do what `shoal run`, `send` and `receive`
//! do, by the same functions, and the lab starts this executable for each node
//! (`shoal_lab::Executable`).

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
use shoal_cli::options::Common;
use shoal_cli::{commands, manual};
use shoal_daemon::config::Experiment;

use args::{Args, Verb};

fn main() -> ExitCode {
    command_line::main::<Args>()
}

impl CommandLine for Args {
    const NAME: &str = "shoal-lab";

    fn run(self, common: &Common) -> Result<()> {
        match self.verb {
            Verb::Demo(verb) => demo::run(common, &verb),
            Verb::List => experiments::list(common),
            Verb::Run(verb) => experiments::run_scenario(common, &verb),
            Verb::Report(verb) => experiments::page(common, &verb),
            Verb::Compare(verb) => experiments::compare(common, &verb),
            Verb::Bench(verb) => experiments::bench(common, &verb),
            Verb::Sim(verb) => sim::run(common, &verb),
            Verb::Model(verb) => model::run(common, &verb),
            Verb::Attack(verb) => attack::run(common, &verb),
            Verb::Completions(verb) => manual::completions::<Args>(&verb),
            Verb::Man(verb) => manual::man::<Args>(&verb),
            Verb::Node(verb) => {
                let circuit_life = verb.circuit_life_ms.map(Duration::from_millis);
                commands::node(common, Experiment { circuit_life, any_order: verb.any_order })
            }
            Verb::Send(verb) => commands::send(common, &verb),
            Verb::Receive(verb) => commands::receive(common, &verb),
        }
    }
}
