//! `shoal leave`: this machine is a member no more.

use std::fs;
use std::io;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;
use shoal_daemon::config::{Config, keys};
use shoal_daemon::control::socket::Connection;
use shoal_daemon::membership::{asking, renewal};
use shoal_joining::{Event, Goal};

use super::files::{sync, wrong};
use super::place::Place;
use super::rekey::{files_user, forget};
use super::start::{Service, disable, has_units};
use super::up::not_done;
use crate::failure::{self, Failure};
use crate::options::Common;
use crate::output;

/// The arguments of `shoal leave`.
#[derive(Args, Debug)]
pub struct Leave {
    /// The node's folder, if not /etc/shoal.
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Remove the files here even if the registrar does not answer: then others take this machine
    /// for a member until the membership ends.
    #[arg(long)]
    force: bool,
}

/// Ends the membership, and removes what `shoal up` has written.
pub fn leave(common: &Common, args: &Leave) -> Result<()> {
    let place = Place::of_node(args.dir.as_deref())?;
    let file = place.node_toml();
    let config = Config::load(&file).map_err(|e| Failure::of(failure::CONFIG, e.to_string()))?;
    let is_unit = has_units(&[(Service::Node, &place)]);
    let told = tell(&config, is_unit, args.force)?;
    let stopped = is_unit && disable(Service::Node);
    remove(&config)?;
    let runs = !stopped && Connection::connect(&config.control_socket()).is_ok();
    if common.json {
        let value = serde_json::json!({ "told": told, "node_runs": runs });
        return Ok(output::json("leave", &value)?);
    }
    output::line("this machine is a member no more, and its key is gone")?;
    if runs {
        output::line("its node still runs, and reaches nobody any more: stop it")?;
    }
    Ok(())
}

/// Tells the registrar; whether it said yes.
fn tell(config: &Config, is_unit: bool, force: bool) -> Result<bool> {
    let user = files_user(config, is_unit)?;
    let contact = renewal::contact(config, user);
    let contact = contact.map_err(|why| Failure::of(failure::CONFIG, why))?;
    let identity = keys::load_identity_for(&config.path(&config.node.key_file), user)
        .map_err(|e| Failure::of(failure::CONFIG, e.to_string()))?;
    let end = asking::ask(identity, contact, Goal::Leave, &mut |_| true);
    let error = match end.context("the registrar can't be asked") {
        Ok(Event::Left) => return Ok(true),
        Ok(other) => not_done(&other),
        Err(error) => error,
    };
    if force {
        eprintln!("shoal: warning: {error:#}");
        return Ok(false);
    }
    let text = format!(
        "{error:#}; --force removes the files here all the same (the registrar's owner can end the \
         membership with `shoal registrar remove`)"
    );
    let code = error.downcast_ref::<Failure>().map_or(failure::FAILED, |failure| failure.code);
    Err(Failure::of(code, text))
}

/// Removes the node's files, its configuration last: until then the command can be repeated.
fn remove(config: &Config) -> Result<()> {
    let secret = config.node.network_secret_file.clone();
    let next_secret = keys::next_key_file(&secret);
    let mut files = vec![next_secret, config.node.key_file.clone(), secret, "node.toml".into()];
    if let Some(authority) = &config.authority {
        let state = [
            authority.seen_file.clone(),
            authority.kept_file(),
            authority.chains_file(),
            authority.secrets_file(),
        ];
        files.splice(0..0, authority.list_file.iter().cloned().chain(state));
    }
    files.splice(0..0, [config.circuits.guard_file.clone(), config.circuits.met_file()]);
    forget(&config.path(&config.node.key_file))?;
    if let Some(door) = config.registrar.as_ref().and_then(|section| section.door_file.clone()) {
        // As long as the command may be repeated, the registrar can be asked.
        files.insert(files.len() - 3, door);
    }
    for file in files.iter().map(|file| config.path(file)) {
        match fs::remove_file(&file) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(wrong(&file, e)),
            _ => {}
        }
    }
    let folder = config.path(&PathBuf::from("node.toml"));
    folder.parent().map_or(Ok(()), sync)
}
