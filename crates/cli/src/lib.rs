//! The commands of `shoal`: a person's work with a node, from making its key to sending files.
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
//! joining invite registrar how machines join it
//! moved                    commands of `shoal-lab`
//! ```
//!
//! The crate is a library for `shoal-lab`, which starts itself as a node, a sender or a receiver by
//! the [`commands`] of this crate. Options, tables, exit codes, completions and manuals serve both
//! programs.
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
mod confirm;
mod cover;
mod credit;
pub mod failure;
mod hidden;
mod inbox;
pub mod interrupt;
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
mod reference;
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
use args::ShoalCommand;
use command_line::CommandLine;
use options::CommonOptions;
use shoal_daemon::config::Experiment;

/// Commands of `shoal` that the lab's networks run.
pub mod commands {
    pub use crate::args::{ReceiveArgs, SendArgs};
    pub use crate::receive::run as receive;
    pub use crate::run::run as node;
    pub use crate::send::run as send;
}

impl CommandLine for Args {
    const NAME: &str = "shoal";

    fn run(self, common: &CommonOptions) -> Result<()> {
        match self.verb.unwrap_or(ShoalCommand::Status) {
            ShoalCommand::Run => run::run(common, Experiment::default()),
            ShoalCommand::Check(verb) => check::run(common, &verb),
            ShoalCommand::Genkey(verb) => keys::genkey(common, &verb),
            ShoalCommand::Pubkey(verb) => keys::pubkey(common, &verb),
            ShoalCommand::Status => node::status(common),
            ShoalCommand::Peers => node::peers(common),
            ShoalCommand::Routes => node::routes(common),
            ShoalCommand::Netcheck => netcheck::netcheck(common),
            ShoalCommand::Hosts => node::hosts(common),
            ShoalCommand::Circuits(verb) => circuits::run(common, &verb),
            ShoalCommand::Hidden(verb) => hidden::run(common, &verb),
            ShoalCommand::Metrics => node::metrics(common),
            ShoalCommand::Reload => node::reload(common),
            ShoalCommand::Monitor => monitor::run(common),
            ShoalCommand::Top(verb) => top::run(common, &verb),
            ShoalCommand::Ping(verb) => ping::run(common, &verb),
            ShoalCommand::Send(verb) => send::run(common, &verb),
            ShoalCommand::Receive(verb) => receive::run(common, &verb),
            ShoalCommand::Attribution(verb) => attribution::run(common, &verb),
            ShoalCommand::Authority(verb) => authority::run(common, &verb),
            ShoalCommand::Network(verb) => joining::network(common, &verb),
            ShoalCommand::Invite(verb) => invite::run(common, &verb),
            ShoalCommand::Up(verb) => joining::up(common, &verb),
            ShoalCommand::Down(verb) => joining::down(common, &verb),
            ShoalCommand::Rekey(verb) => joining::rekey(common, &verb),
            ShoalCommand::Leave(verb) => joining::leave(common, &verb),
            ShoalCommand::Registrar(verb) => registrar::run(common, &verb),
            ShoalCommand::Completions(verb) => manual::completions::<Args>(&verb),
            ShoalCommand::Man(verb) => manual::man::<Args>(&verb),
            ShoalCommand::Reference(verb) => reference::print::<Args>(&verb),
            ShoalCommand::Demo(words) => moved::run(common, Some("demo"), &words),
            ShoalCommand::Lab(words) => moved::run(common, None, &words),
            ShoalCommand::Bench(words) => moved::run(common, Some("bench"), &words),
            ShoalCommand::Sim(words) => moved::run(common, Some("sim"), &words),
        }
    }
}
