//! `shoal up INVITE` on a machine that joined before: a member stays, a removed one joins anew.
//!
//! ```text
//! registrar asked with the old key -- granted --> newest list, supplements and secret stored
//!                                   \- refused --> new key asked --> files staged and checked
//!                                       --> marker written --> files settle, node.toml last
//! ```
//!
//! Invariants: a true member spends nothing. Nothing changes before the registrar has granted the
//! new key. Staged files replace others only once a marker shows that they are whole. Without the
//! marker a repeated command makes them again, with the same new key. Settings stay: `node.toml` is
//! edited, not written anew. Guard and met hosts stay, since another guard would be another chance
//! for an attacker.

use std::fmt::Display;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use shoal_crypto::{Identity, NetworkSecret};
use shoal_daemon::config::{NodeConfig, keys};
use shoal_daemon::control::socket::check_free;
use shoal_daemon::worker::clock::unix_ms;
use shoal_joining::{
    Contact, Invite, JoinError, JoinEvent, JoinGoal, NameRequest, NewMembership, Refusal,
};
use shoal_wire::Address;
use toml::Value;

use super::edit::edited;
use super::files::{Staging, WAITING, sync, wrong};
use super::place::ServiceFolders;
use super::ports::free_port;
use super::rekey::files_user;
use super::start::{Service, hand_over, has_units, is_active, restart, stop};
use super::store::{merged, owner, put, store_all};
use super::up::{already, ask_event, check_files, granted, not_done};
use crate::failure::{self, ExitError};
use crate::keys::random;
use crate::options::CommonOptions;
use crate::output;

/// Keys to try until the port that follows from one is free here.
const KEYS_TRIED: usize = 64;
const DAY_S: u64 = 86_400;

const ANEW: &str = "joined anew, and the old key is deleted (hosts that met it over circuits \
                    don't know the new one)";
const FOR_ROUTER: &str = "this invite is for a router, and this machine joined as a host: ask for \
                          an invite for a host, or run `shoal leave --force` before it joins as a \
                          router";
/// Files of a machine that joined anew, in the order in which they are moved to their places.
const FILES: [&str; 6] =
    ["network.chains", "door.key", "network.key", "network.list", "node.key", "node.toml"];

/// Answer to the old key.
enum OldKey {
    /// The machine is a member.
    Member(Box<NewMembership>),
    /// The key was removed, or is lost.
    Refused,
    /// The registrar can't say now.
    Unknown(String),
}

/// Makes sure that a machine which joined before is a member: with an invite the registrar is
/// asked. `name` is a wish for a machine that joins anew.
///
/// # Errors
///
/// The registrar refuses the invite, or a file can't be written.
pub fn rejoin(
    common: &CommonOptions,
    place: &ServiceFolders,
    invite: Option<Invite>,
    (name, max_staleness_s): (Option<&str>, u64),
) -> Result<()> {
    let config = place.config()?;
    let is_unit = has_units(&[(Service::Node, place)]);
    if finish(place)? {
        return said(common, place, is_unit, ANEW);
    }
    check_host(&config, invite.is_some())?;
    let has_invite = invite.is_some();
    let invite = invite.filter(|_| config.registrar.is_some());
    let Some(invite) = invite else {
        unchanged(place, already(place, &config, has_invite));
        return Ok(());
    };
    let user = files_user(&config, is_unit)?;
    let is_begun = place.dir.join(WAITING).join("node.key").exists();
    let contact = Contact::new(invite.clone(), Duration::from_secs(max_staleness_s));
    match ask_old(&config, user, &contact, is_begun)? {
        OldKey::Member(joined) => {
            if let Err(why) = store_all(&config, &joined, user)? {
                eprintln!("shoal: warning: the node here does not take the newest list: {why}");
            }
            let is_same =
                joined.member.name == config.node.name && joined.member.address == config.address();
            if is_same {
                unchanged(place, "this machine is a member already");
                return Ok(());
            }
            rename(place, &invite, &joined)?;
            if runs_without_unit(&config, is_unit) {
                eprintln!(
                    "shoal: warning: the node still runs under its old name and address: run \
                     `{}`, then `{}`",
                    place.down_words(),
                    place.up_words()
                );
            }
            said(common, place, is_unit, "the expired membership began anew")
        }
        OldKey::Unknown(why) => {
            eprintln!(
                "shoal: warning: the registrar can't say if this machine is still a member \
                 ({why}): nothing was changed; repeat the command later"
            );
            Ok(())
        }
        OldKey::Refused => {
            if keys::next_key_file(&config.path(&config.node.key_file)).exists() {
                let text = "the registrar refuses this machine's key, and `shoal rekey` was \
                            interrupted here: run that again";
                return Err(ExitError::of(failure::FAILED, text));
            }
            if runs_without_unit(&config, is_unit) {
                let text = format!(
                    "this machine was removed from the network, and its node still runs: stop it \
                     with `{}`, and repeat the command to join anew",
                    place.down_words()
                );
                return Err(ExitError::of(failure::FAILED, text));
            }
            join_anew(&config, place, (&invite, contact), (name, is_unit))?;
            said(common, place, is_unit, ANEW)
        }
    }
}

fn unchanged(place: &ServiceFolders, state: &str) {
    eprintln!("shoal: {state}; its files are in {}", place.dir.display());
}

/// True if the node runs as a process of its own. A unit's process is restarted by systemd.
pub(super) fn runs_without_unit(config: &NodeConfig, is_unit: bool) -> bool {
    !(is_unit && is_active(Service::Node)) && check_free(&config.control_socket()).is_err()
}

/// Asks with the key of the membership that may have ended. `is_begun`: an interrupted command has
/// made a new key.
fn ask_old(
    config: &NodeConfig,
    user: Option<u32>,
    contact: &Contact,
    is_begun: bool,
) -> Result<OldKey> {
    let file = config.path(&config.node.key_file);
    if !file.exists() {
        return Ok(OldKey::Refused);
    }
    let old = keys::load_identity_for(&file, user);
    let old = old.map_err(|e| ExitError::of(failure::CONFIG, e.to_string()))?;
    let wish = NameRequest { or_another: true, name: Some(config.node.name.clone()) };
    // A start must not depend on the registrar.
    match ask_event(old, contact.clone(), JoinGoal::Join(wish)) {
        Ok(event) => answered(event, is_begun),
        Err(why) => Ok(OldKey::Unknown(format!("{why:#}"))),
    }
}

/// The registrar's answer to the old key.
///
/// Errors: the invite is of no use to this machine.
fn answered(event: JoinEvent, is_begun: bool) -> Result<OldKey> {
    Ok(match event {
        JoinEvent::Joined(joined) => OldKey::Member(joined),
        JoinEvent::Refused(Refusal::Key) => OldKey::Refused,
        // The new key of an interrupted command may have spent the token.
        JoinEvent::Refused(Refusal::Spent | Refusal::Expired | Refusal::Withdrawn) if is_begun => {
            OldKey::Refused
        }
        JoinEvent::Refused(why @ (Refusal::Registrar | Refusal::MandateEnded)) => {
            OldKey::Unknown(why.to_string())
        }
        JoinEvent::Failed(JoinError::ForRouter) => {
            return Err(ExitError::of(failure::FAILED, FOR_ROUTER));
        }
        JoinEvent::Failed(why) => OldKey::Unknown(why.to_string()),
        other => return Err(not_done(&other)),
    })
}

/// Refuses an invite at a router that joined by one. A router joins anew only after `shoal leave`.
fn check_host(config: &NodeConfig, has_invite: bool) -> Result<()> {
    if !has_invite || config.registrar.is_none() || !config.is_router() {
        return Ok(());
    }
    let text = "this machine has joined as a router, and no invite changes that: if its membership \
                has ended, run `shoal leave --force`, then `shoal up INVITE --endpoint IP` again";
    Err(ExitError::of(failure::CONFIG, text))
}

/// Writes name and address of a membership that began anew into `node.toml`.
fn rename(place: &ServiceFolders, invite: &Invite, joined: &NewMembership) -> Result<()> {
    let staging = Staging::of(place)?;
    staging.check_room()?;
    let file = staging.path("node.toml");
    staging.write("node.toml", renewed_config(place, invite, joined)?.as_bytes())?;
    // The files that it names are not in the staging folder, so it alone is checked.
    checked(&file, NodeConfig::load(&file))?;
    staging.settle(&["node.toml"])
}

/// The result of a check of a staged file. Removes the file if the check failed.
pub(super) fn checked<T, E: Display>(file: &Path, result: Result<T, E>) -> Result<T> {
    result.map_err(|why| match fs::remove_file(file) {
        Ok(()) => ExitError::of(failure::CONFIG, why.to_string()),
        Err(error) => wrong(file, error),
    })
}

/// Joins with a new key, and puts the files in the places of the old ones.
fn join_anew(
    config: &NodeConfig,
    place: &ServiceFolders,
    (invite, contact): (&Invite, Contact),
    (name, is_unit): (Option<&str>, bool),
) -> Result<()> {
    check_places(config, place)?;
    // Nothing is spent, and no unit stopped, for a file that can't be edited.
    changed_config(place, invite, (&config.node.name, config.address(), 1))?;
    let staging = Staging::of(place)?;
    staging.check_room()?;
    let key = new_key(&staging, config.node.listen.is_none())?;
    let wish = NameRequest {
        or_another: name.is_none(),
        name: Some(name.unwrap_or(&config.node.name).to_owned()),
    };
    let joined = granted(ask_event(key, contact, JoinGoal::Join(wish))?)?;
    if is_unit {
        // A running node writes some of these files itself.
        stop(Service::Node);
    }
    let secret = NetworkSecret(*joined.secret.expose());
    staging.write("network.key", keys::network_secret_text(&secret).as_bytes())?;
    staging.write("door.key", keys::door_text(&invite.door).as_bytes())?;
    staging.write("network.list", &joined.list)?;
    if place.state.is_none() {
        let chains = place.dir.join("network.chains");
        staging.write("network.chains", &merged(&chains, &joined.chain))?;
    } else if let Some(authority) = &config.authority {
        let chains = config.path(&authority.chains_file());
        put(&chains, &merged(&chains, &joined.chain), owner(&chains)?)?;
    }
    staging.write("node.toml", renewed_config(place, invite, &joined)?.as_bytes())?;
    checked(&staging.path("node.toml"), check_files(&staging))?;
    staging.mark_ready()?;
    settle_staged(staging)
}

/// Moves those of the files that are staged to their places.
fn settle_staged(staging: Staging) -> Result<()> {
    let names: Vec<&str> = FILES.into_iter().filter(|name| staging.path(name).exists()).collect();
    staging.settle(&names)
}

/// The key to join with: that of an interrupted command, or a new one. With `own_port` the node
/// listens at the port that follows from the key, so that port must be free.
fn new_key(staging: &Staging, own_port: bool) -> Result<Identity> {
    let file = staging.path("node.key");
    if file.exists() {
        let loaded = keys::load_identity(&file);
        return loaded.map_err(|e| ExitError::of(failure::CONFIG, e.to_string()));
    }
    for _ in 0..KEYS_TRIED {
        let key = Identity::generate(random()?);
        if !own_port || free_port(&key)?.is_none() {
            staging.write("node.key", keys::identity_text(&key).as_bytes())?;
            return Ok(key);
        }
    }
    Err(ExitError::of(failure::FAILED, "this machine has no free UDP port to listen at"))
}

/// Refuses files at other places than those where `shoal up` puts them.
fn check_places(config: &NodeConfig, place: &ServiceFolders) -> Result<()> {
    let list = config.authority.as_ref().and_then(|section| section.list_file.clone());
    let door = config.registrar.as_ref().and_then(|section| section.door_file.clone());
    let files: [(&str, Option<PathBuf>); 4] = [
        ("node.key", Some(config.node.key_file.clone())),
        ("network.key", Some(config.node.network_secret_file.clone())),
        ("network.list", list),
        ("door.key", door),
    ];
    let chains = config.authority.as_ref().map(|section| section.chains_file());
    let chains = ("network.chains", chains.filter(|_| place.state.is_none()));
    for (name, file) in files.into_iter().chain([chains]) {
        let Some(file) = file.map(|file| config.path(&file)) else { continue };
        if std::path::absolute(&file).ok() != Some(place.dir.join(name)) {
            let text = format!(
                "{}: {} is not where `shoal up` puts it: run `shoal leave --force`, and `shoal up` \
                 again",
                config.file.display(),
                file.display()
            );
            return Err(ExitError::of(failure::CONFIG, text));
        }
    }
    Ok(())
}

/// The configuration with this membership.
fn renewed_config(
    place: &ServiceFolders,
    invite: &Invite,
    joined: &NewMembership,
) -> Result<String> {
    let member = &joined.member;
    let life_s = member.expires_unix_s.saturating_sub(unix_ms() / 1_000);
    let days = (life_s / 3 / DAY_S).clamp(1, 3_650) as i64;
    changed_config(place, invite, (&member.name, member.address, days))
}

/// The configuration with this name and address, the invite's registrar, and this number of days
/// before the end of a membership at which it is renewed.
///
/// # Errors
///
/// The file can't be read, or not be edited line by line.
fn changed_config(
    place: &ServiceFolders,
    invite: &Invite,
    (name, address, days): (&str, Address, i64),
) -> Result<String> {
    let file = place.node_toml();
    let text = read_own(&file)?;
    let endpoints = invite.endpoints.iter().map(|at| Value::String(at.to_string())).collect();
    let changes = [
        ("node", "name", Value::String(name.to_owned())),
        ("node", "address", Value::String(address.to_string())),
        ("registrar", "key", Value::String(invite.registrar.to_string())),
        ("registrar", "endpoints", Value::Array(endpoints)),
        ("registrar", "renew_days", Value::Integer(days)),
    ];
    edited(&text, &changes).map_err(|why| {
        let text = format!("{}: {why}, and repeat the command", file.display());
        ExitError::of(failure::CONFIG, text)
    })
}

/// Reads a file that is no link.
pub(super) fn read_own(file: &Path) -> Result<String> {
    let meta = fs::symlink_metadata(file).map_err(|e| wrong(file, e))?;
    if !meta.is_file() {
        let text = format!(
            "{}: is a link: replace it by the file itself, and repeat the command",
            file.display()
        );
        return Err(ExitError::of(failure::CONFIG, text));
    }
    fs::read_to_string(file).map_err(|e| wrong(file, e))
}

/// Moves the files of an interrupted command to their places. True if they were ready.
fn finish(place: &ServiceFolders) -> Result<bool> {
    if !Staging::is_ready(place)? {
        return Ok(false);
    }
    settle_staged(Staging::of(place)?)?;
    sync(&place.dir)?;
    Ok(true)
}

/// Gives the files to the unit's user, restarts the unit, and prints the new membership.
fn said(common: &CommonOptions, place: &ServiceFolders, is_unit: bool, what: &str) -> Result<()> {
    if is_unit {
        hand_over(Service::Node, place)?;
        restart(Service::Node);
    }
    let config = place.config()?;
    let (name, address) = (&config.node.name, config.address().to_string());
    if common.json {
        let value = serde_json::json!({ "name": name, "address": address, "anew": true,
            "config": place.node_toml() });
        return Ok(output::json("up", &value)?);
    }
    Ok(output::line(&format!("{what}: this machine is {name} at {address}"))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(error: &anyhow::Error) -> u8 {
        error.downcast_ref::<ExitError>().unwrap().code
    }

    #[test]
    fn a_router_by_invite_is_told_how_to_join_again() {
        let said = |address: &str, more: &str, has_invite: bool| {
            let text = format!(
                "[node]\nname = \"me\"\naddress = \"{address}\"\nkey_file = \"k\"\n\
                 network_secret_file = \"n\"\n{more}"
            );
            let config = NodeConfig::parse(Path::new("node.toml"), &text).unwrap();
            check_host(&config, has_invite).map_err(|e| (code(&e), e.to_string()))
        };
        let registrar = format!(
            "[registrar]\nkey = \"{}\"\ndoor_file = \"d\"\nendpoints = [\"192.0.2.1:7500\"]\n",
            Identity::from_seed([7; 32]).public()
        );
        let (code, text) = said("2.0", &registrar, true).unwrap_err();
        assert_eq!(code, failure::CONFIG);
        assert!(text.contains("shoal leave --force"), "{text}");
        // A start needs no invite. A host may join anew, and a network's first machine has joined
        // by none.
        for (address, more, has_invite) in [
            ("2.0", registrar.as_str(), false),
            ("1.7", registrar.as_str(), true),
            ("1.0", "", true),
        ] {
            assert_eq!(said(address, more, has_invite), Ok(()), "{address}");
        }
    }

    #[test]
    fn an_invite_for_a_router_is_refused_at_a_host_and_silence_is_not() {
        let error = answered(JoinEvent::Failed(JoinError::ForRouter), false).err().unwrap();
        assert_eq!(code(&error), failure::FAILED);
        assert!(error.to_string().contains("for a router"), "{error}");
        let silent = answered(JoinEvent::Failed(JoinError::Silent { welcomed: false }), false);
        assert!(matches!(silent, Ok(OldKey::Unknown(_))));
        let spent = |is_begun| answered(JoinEvent::Refused(Refusal::Spent), is_begun);
        assert!(spent(false).is_err());
        assert!(matches!(spent(true), Ok(OldKey::Refused)));
    }

    #[test]
    fn staged_files_without_the_marker_replace_no_others() {
        let folder = tempfile::tempdir().unwrap();
        let place = ServiceFolders::of_node(Some(folder.path())).unwrap();
        let now = || fs::read_to_string(place.node_toml()).unwrap();
        fs::write(place.node_toml(), "old").unwrap();
        let staging = Staging::of(&place).unwrap();
        staging.write("node.toml", b"cut").unwrap();
        drop(staging);
        assert!(!finish(&place).unwrap());
        assert_eq!(now(), "old");
        let staging = Staging::of(&place).unwrap();
        staging.write("node.toml", b"new").unwrap();
        staging.mark_ready().unwrap();
        drop(staging);
        assert!(finish(&place).unwrap());
        assert_eq!(now(), "new");
        assert!(!finish(&place).unwrap() && !place.dir.join(WAITING).exists());
    }

    #[test]
    fn a_linked_configuration_is_refused_with_the_remedy() {
        let folder = tempfile::tempdir().unwrap();
        let (file, link) = (folder.path().join("file"), folder.path().join("node.toml"));
        fs::write(&file, "[node]").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        assert_eq!(read_own(&file).unwrap(), "[node]");
        let said = read_own(&link).unwrap_err().to_string();
        assert!(said.contains("is a link: replace it by the file itself"), "{said}");
    }
}
