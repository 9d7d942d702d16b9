//! The binary `shoal`: everything a person does with a node, from making its key to sending files.
//!
//! In: a command line. Out: tables for people, or JSON with a version field for programs; an exit
//! code that says what kind of failure it was.
//!
//! ```text
//! args      what may stand on the command line
//! keys check run           a node's files and its process
//! node monitor ping top    questions to a running node
//! send (sources)           files out
//! receive (inbox, credit)  files in
//! authority                who belongs to a network
//! demo lab sim             networks on this machine, real and simulated
//! ```
//!
//! Invariant: this crate holds no protocol. It speaks [`shoal_daemon::control::api`] to a node,
//! opens, syncs and renames the user's files, and prints.

#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

mod args;
mod attribution;
mod authority;
mod check;
mod chunks;
mod credit;
mod demo;
mod failure;
mod inbox;
mod interrupt;
mod keys;
mod lab;
mod manual;
mod monitor;
mod names;
mod node;
mod options;
mod output;
mod ping;
mod progress;
mod ration;
mod receive;
mod run;
mod send;
mod sim;
mod sources;
mod target;
mod top;
mod units;
mod unseen;

use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches};

use args::{Args, Verb};
use failure::Failure;
use options::Common;

fn main() -> ExitCode {
    let mut command = Args::command();
    command.build();
    let matches = command.get_matches_mut();
    let args = Args::from_arg_matches(&matches).unwrap_or_else(|e| e.format(&mut command).exit());
    output::set_colour(args.colour);
    let common = Common::given(&matches);
    if let Err(error) = common.check(&command, &matches) {
        return report(&error, common.json);
    }
    let result = match args.verb.unwrap_or(Verb::Status) {
        Verb::Run => run::run(&common),
        Verb::Check => check::run(&common),
        Verb::Genkey(verb) => keys::genkey(&common, &verb),
        Verb::Pubkey(verb) => keys::pubkey(&common, &verb),
        Verb::Status => node::status(&common),
        Verb::Peers => node::peers(&common),
        Verb::Routes => node::routes(&common),
        Verb::Hosts => node::hosts(&common),
        Verb::Metrics => node::metrics(&common),
        Verb::Reload => node::reload(&common),
        Verb::Monitor => monitor::run(&common),
        Verb::Top(verb) => top::run(&common, &verb),
        Verb::Ping(verb) => ping::run(&common, &verb),
        Verb::Send(verb) => send::run(&common, &verb),
        Verb::Receive(verb) => receive::run(&common, &verb),
        Verb::Demo(verb) => demo::run(&common, &verb),
        Verb::Sim(verb) => sim::run(&common, &verb),
        Verb::Lab(verb) => lab::run(&common, &verb),
        Verb::Attribution(verb) => attribution::run(&common, &verb),
        Verb::Authority(verb) => authority::run(&common, &verb),
        Verb::Completions(verb) => manual::completions(&verb),
        Verb::Man(verb) => manual::man(&verb),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => report(&error, common.json),
    }
}

/// Says what went wrong on standard error, and as JSON on standard output if JSON was asked for.
fn report(error: &anyhow::Error, json: bool) -> ExitCode {
    // The reader of a pipe left: nobody is there to be told.
    let pipe = |e: &std::io::Error| e.kind() == std::io::ErrorKind::BrokenPipe;
    if error.downcast_ref::<std::io::Error>().is_some_and(pipe) {
        return ExitCode::SUCCESS;
    }
    let failure = error.downcast_ref::<Failure>();
    let code = failure.map_or(failure::FAILED, |f| f.code);
    if failure.is_none_or(|f| !f.said) {
        if json {
            let body = serde_json::json!({ "code": code, "message": format!("{error:#}") });
            let _ = output::json("error", &body);
        }
        eprintln!("shoal: {}", output::message(&format!("{error:#}")));
    }
    ExitCode::from(code)
}
