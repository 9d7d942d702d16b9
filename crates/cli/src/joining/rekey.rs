//! `shoal rekey`: replaces this machine's key; the membership stays.
//!
//! ```text
//! KEY.next written --> registrar asked --> list and chain stored --> KEY.next renamed to KEY
//! ```
//!
//! Invariant: the new key is whole on the disk before anybody is told of it. It replaces the old
//! one after the registrar signed it and the node can know. A repeated command continues an
//! interrupted one: it asks with the same two keys, and the registrar repeats its answer.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;
use nix::fcntl::{Flock, FlockArg};
use shoal_crypto::Identity;
use shoal_daemon::config::{NodeConfig, keys};
use shoal_daemon::membership::{asking, renewal};
use shoal_daemon::privileges::find_user;
use shoal_joining::{Contact, JoinError, JoinEvent, JoinGoal, NewMembership, Refusal};

use super::files::{sync, wrong};
use super::place::ServiceFolders;
use super::ports::free_port;
use super::start::{Service, has_units, restart, unit_user};
use super::store::{folder, owner, put, store};
use super::up::{SILENT, not_done, unanswered};
use crate::failure::{self, ExitError};
use crate::keys::random;
use crate::options::CommonOptions;
use crate::output;

/// Keys to try until the port that follows from one is free here.
const KEYS_TRIED: usize = 64;
/// Advice for members that no registrar serves.
const BY_AUTHORITY: &str = "the authority itself made this machine a member: ask the owner of \
                            the authority's key to sign another key for it (`shoal genkey` here; \
                            there `shoal authority revoke --dir DIR NAME`, then `shoal authority \
                            sign --dir DIR NAME --key KEY --address ADDRESS`)";

#[derive(Args, Debug)]
pub struct RekeyArgs {
    /// The node's folder, if not /etc/shoal.
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

pub fn rekey(common: &CommonOptions, args: &RekeyArgs) -> Result<()> {
    let place = ServiceFolders::of_node(args.dir.as_deref())?;
    let config = place.config()?;
    if config.registrar.is_none() {
        return Err(ExitError::of(failure::CONFIG, BY_AUTHORITY));
    }
    let is_unit = has_units(&[(Service::Node, &place)]);
    let user = files_user(&config, is_unit)?;
    let contact = renewal::newest_contact(&config, user);
    let contact = contact.map_err(|why| ExitError::of(failure::CONFIG, why))?;
    let key = KeyFiles::open(&config, user)?;
    let new = key.next(config.node.listen.is_none())?;
    let joined = key.ask(contact, new.clone())?;
    let stored = store(&config, &joined)?.map_err(|why| {
        let text = format!(
            "the registrar has signed the new key, but the node here does not accept it ({why}): \
             stop the node, and repeat `shoal rekey`, which continues with the same new key"
        );
        ExitError::of(failure::FAILED, text)
    })?;
    key.swap()?;
    let restarted = is_unit && restart(Service::Node);
    say(common, &place, &new, (stored.runs, restarted))
}

/// User, besides root, to whom a node's files may belong.
pub fn files_user(config: &NodeConfig, is_unit: bool) -> Result<Option<u32>> {
    Ok(match &config.node.user {
        _ if is_unit => Some(unit_user(Service::Node)?.uid.as_raw()),
        Some(name) => Some(find_user(name)?.uid.as_raw()),
        None => None,
    })
}

fn say(
    common: &CommonOptions,
    place: &ServiceFolders,
    new: &Identity,
    (runs, restarted): (bool, bool),
) -> Result<()> {
    let public = new.public().to_string();
    let is_old = runs && !restarted;
    if common.json {
        let value = serde_json::json!({ "public_key": public, "restart_node": is_old });
        return Ok(output::json("rekey", &value)?);
    }
    output::line(&format!("this machine has a new key: {public}"))?;
    output::line(
        "name, overlay address and IPv4 address stay; the IPv6 address follows from the key, \
         so it changes with the node's next start: call this machine by its name",
    )?;
    let words = Service::Node.words(place).join(" ");
    match (runs, restarted) {
        (_, true) => output::line("the unit shoal was restarted with it"),
        (true, _) => output::line(
            "the node still runs with the old key, which other nodes don't answer: restart it",
        ),
        _ => output::line(&format!("start the node with: shoal {words}")),
    }?;
    Ok(())
}

/// The key's file, and the file beside it for the new key.
struct KeyFiles {
    file: PathBuf,
    old: Identity,
    owner: (u32, u32),
    user: Option<u32>,
    _lock: Flock<File>,
}

impl KeyFiles {
    /// Reads the key, and locks its folder against other commands.
    fn open(config: &NodeConfig, user: Option<u32>) -> Result<KeyFiles> {
        let named = config.path(&config.node.key_file);
        // A link stays in its place; its target is replaced.
        let file = fs::canonicalize(&named).map_err(|e| wrong(&named, e))?;
        let folder = folder(&file);
        let lock = File::open(&folder).map_err(|e| wrong(&folder, e))?;
        let lock = Flock::lock(lock, FlockArg::LockExclusiveNonblock)
            .map_err(|_| wrong(&folder, "another command replaces the key here"))?;
        let (old, owner) = (load(&file, user)?, owner(&file)?);
        Ok(KeyFiles { file, old, owner, user, _lock: lock })
    }

    fn waiting(&self) -> PathBuf {
        keys::next_key_file(&self.file)
    }

    /// The new key: that of an interrupted command, or one made here. With `own_port` the node
    /// listens at the port that follows from the key, so that port must be free.
    fn next(&self, own_port: bool) -> Result<Identity> {
        let waiting = self.waiting();
        if waiting.exists() {
            return load(&waiting, self.user);
        }
        for _ in 0..KEYS_TRIED {
            let new = Identity::generate(random()?);
            if !own_port || free_port(&new)?.is_none() {
                put(&waiting, keys::identity_text(&new).as_bytes(), self.owner)?;
                return Ok(new);
            }
        }
        Err(ExitError::of(failure::FAILED, "this machine has no free UDP port to listen at"))
    }

    /// Asks the registrar to sign the new key. A key that is refused for good is removed.
    fn ask(&self, contact: Contact, new: Identity) -> Result<NewMembership> {
        let mut silence = unanswered(&contact.endpoints);
        let end = asking::ask(self.old.clone(), contact, JoinGoal::Rekey(new), &mut silence);
        match end.context("the registrar can't be asked")? {
            JoinEvent::Joined(joined) => Ok(*joined),
            other => {
                if is_unsigned(&other) {
                    forget(&self.file)?;
                }
                Err(refused(&other))
            }
        }
    }

    /// Replaces the old key by the new one.
    fn swap(self) -> Result<()> {
        fs::rename(self.waiting(), &self.file).map_err(|e| wrong(&self.file, e))?;
        sync(&folder(&self.file))
    }
}

fn load(file: &Path, user: Option<u32>) -> Result<Identity> {
    let loaded = keys::load_identity_for(file, user);
    loaded.map_err(|e| ExitError::of(failure::CONFIG, e.to_string()))
}

/// Error for an answer without a new key.
fn refused(event: &JoinEvent) -> anyhow::Error {
    match event {
        JoinEvent::Refused(Refusal::Adopted) => ExitError::of(failure::REFUSED, BY_AUTHORITY),
        JoinEvent::Refused(Refusal::Key) => {
            let text = "the registrar has no member with this machine's key, or it was removed: \
                        join anew, with another invite";
            ExitError::of(failure::REFUSED, text)
        }
        JoinEvent::Failed(why @ JoinError::Silent { welcomed: false }) => {
            ExitError::of(failure::UNREACHABLE, format!("{why} {SILENT}"))
        }
        other => not_done(other),
    }
}

/// True if the answer says that the new key was not signed, and will not be. After other refusals
/// an earlier request may have been signed.
fn is_unsigned(event: &JoinEvent) -> bool {
    use Refusal::{Adopted, Ended, Full, Key, Soon};
    matches!(event, JoinEvent::Refused(Adopted | Ended | Full | Key | Soon))
}

/// Removes a new key that waits for the registrar's answer.
pub fn forget(key_file: &Path) -> Result<()> {
    match fs::remove_file(keys::next_key_file(key_file)) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(wrong(key_file, e)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_may_have_been_signed_waits() {
        for why in [Refusal::Registrar, Refusal::MandateEnded, Refusal::Replaced] {
            assert!(!is_unsigned(&JoinEvent::Refused(why)), "{why}");
        }
        for why in [Refusal::Soon, Refusal::Adopted, Refusal::Key] {
            assert!(is_unsigned(&JoinEvent::Refused(why)), "{why}");
        }
        assert!(!is_unsigned(&JoinEvent::Failed(JoinError::Silent { welcomed: true })));
    }
}
