//! What a person does with a node, from making its key to sending files: the commands of `shoal`.
//!
//! In: a command line. Out: tables for people, or JSON with a version field for programs; an exit
//! code that says what kind of failure it was.
//!
//! ```text
//! args      the command line; command_line reads it and runs the command
//! keys check run           a node's files and its process
//! node monitor ping top    questions to a running node
//! send (sources)           files out
//! receive (inbox, credit)  files in
//! authority                who belongs to a network
//! joining invite registrar how machines come into it
//! moved                    what `shoal-lab` does
//! ```
//!
//! It is a library because `shoal-lab` needs no other program: it starts itself as a node, a sender
//! or a receiver, by the [`commands`] of this crate. Options, tables, exit codes, completions and
//! manuals are here for both programs.
//!
//! Invariant: this crate holds no protocol. It speaks [`shoal_daemon::control::api`] to a node,
//! opens, syncs and renames the user's files, and prints.

#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

mod args;
mod attribution;
mod authority;
mod check;
mod chunks;
mod circuits;
pub mod command_line;
mod cover;
mod credit;
pub mod failure;
mod inbox;
mod interrupt;
mod invite;
mod joining;
mod keys;
pub mod manual;
mod mixes;
mod monitor;
mod moved;
mod names;
mod netcheck;
mod node;
pub mod options;
pub mod output;
mod ping;
mod progress;
mod qr;
mod ration;
mod receive;
mod registrar;
mod run;
mod send;
mod sources;
mod target;
mod top;
pub mod units;
mod unseen;

use anyhow::Result;

pub use args::Args;
use args::Verb;
use command_line::CommandLine;
use options::Common;
use shoal_daemon::config::Experiment;

/// The commands of `shoal` that networks of the lab run.
pub mod commands {
    pub use crate::args::{Receive, Send};
    pub use crate::receive::run as receive;
    pub use crate::run::run as node;
    pub use crate::send::run as send;
}

impl CommandLine for Args {
    const NAME: &str = "shoal";

    fn run(self, common: &Common) -> Result<()> {
        match self.verb.unwrap_or(Verb::Status) {
            Verb::Run => run::run(common, Experiment::default()),
            Verb::Check(verb) => check::run(common, &verb),
            Verb::Genkey(verb) => keys::genkey(common, &verb),
            Verb::Pubkey(verb) => keys::pubkey(common, &verb),
            Verb::Status => node::status(common),
            Verb::Peers => node::peers(common),
            Verb::Routes => node::routes(common),
            Verb::Netcheck => netcheck::netcheck(common),
            Verb::Hosts => node::hosts(common),
            Verb::Circuits(verb) => circuits::run(common, &verb),
            Verb::Metrics => node::metrics(common),
            Verb::Reload => node::reload(common),
            Verb::Monitor => monitor::run(common),
            Verb::Top(verb) => top::run(common, &verb),
            Verb::Ping(verb) => ping::run(common, &verb),
            Verb::Send(verb) => send::run(common, &verb),
            Verb::Receive(verb) => receive::run(common, &verb),
            Verb::Attribution(verb) => attribution::run(common, &verb),
            Verb::Authority(verb) => authority::run(common, &verb),
            Verb::Network(verb) => joining::network(common, &verb),
            Verb::Invite(verb) => invite::run(common, &verb),
            Verb::Up(verb) => joining::up(common, &verb),
            Verb::Rekey(verb) => joining::rekey(common, &verb),
            Verb::Leave(verb) => joining::leave(common, &verb),
            Verb::Registrar(verb) => registrar::run(common, &verb),
            Verb::Completions(verb) => manual::completions::<Args>(&verb),
            Verb::Man(verb) => manual::man::<Args>(&verb),
            Verb::Demo(words) => moved::run(common, Some("demo"), &words),
            Verb::Lab(words) => moved::run(common, None, &words),
            Verb::Bench(words) => moved::run(common, Some("bench"), &words),
            Verb::Sim(words) => moved::run(common, Some("sim"), &words),
        }
    }
}
