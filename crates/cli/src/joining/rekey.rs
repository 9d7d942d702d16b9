//! `shoal rekey`: this machine is the same member with another key.
//!
//! ```text
//! KEY.next written --> registrar asked --> list and chain stored --> KEY.next renamed to KEY
//! ```
//!
//! Invariant: the new key is on the disk, whole, before anybody is told of it, and takes the old
//! one's place after the registrar signed it and the node can know. Whatever is broken off in
//! between goes on when the command is repeated: the registrar is asked the same by the same two
//! keys, and answers as the first time.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;
use nix::fcntl::{Flock, FlockArg};
use shoal_crypto::Identity;
use shoal_daemon::config::{Config, keys};
use shoal_daemon::membership::{asking, renewal};
use shoal_daemon::privileges::find_user;
use shoal_joining::{Contact, Event, Fault, Goal, Joined, Refusal};

use super::files::{sync, wrong};
use super::place::Place;
use super::ports::free_port;
use super::start::{Service, has_units, restart, unit_user};
use super::store::{folder, owner, put, store};
use super::up::{SILENT, not_done, unanswered};
use crate::failure::{self, Failure};
use crate::keys::random;
use crate::options::Common;
use crate::output;

/// Keys that are tried until the port that follows from one is free here.
const KEYS_TRIED: usize = 64;
/// Who else may give a member another key.
const BY_AUTHORITY: &str = "the authority itself has made this machine a member: ask who holds \
                            the authority's key to sign another key for it (`shoal genkey` here, \
                            `shoal authority sign` there)";

/// The arguments of `shoal rekey`.
#[derive(Args, Debug)]
pub struct Rekey {
    /// The node's folder, if not /etc/shoal.
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

/// Replaces the key.
pub fn rekey(common: &Common, args: &Rekey) -> Result<()> {
    let place = Place::of_node(args.dir.as_deref())?;
    let config = place.config()?;
    if config.registrar.is_none() {
        return Err(Failure::of(failure::CONFIG, BY_AUTHORITY));
    }
    let is_unit = has_units(&[(Service::Node, &place)]);
    let user = files_user(&config, is_unit)?;
    let contact = renewal::contact(&config, user);
    let contact = contact.map_err(|why| Failure::of(failure::CONFIG, why))?;
    let key = KeyFiles::open(&config, user)?;
    let new = key.next(config.node.listen.is_none())?;
    let joined = key.ask(contact, new.clone())?;
    let stored = store(&config, &joined)?.map_err(|why| {
        let text = format!(
            "the registrar has signed the new key, and the node here does not take that ({why}): \
             stop the node, and repeat `shoal rekey`: it goes on with the same new key"
        );
        Failure::of(failure::FAILED, text)
    })?;
    key.swap()?;
    let restarted = is_unit && restart(Service::Node);
    say(common, &place, &new, (stored.runs, restarted))
}

/// The user, besides root, whom a node's files may belong to.
pub fn files_user(config: &Config, is_unit: bool) -> Result<Option<u32>> {
    Ok(match &config.node.user {
        _ if is_unit => Some(unit_user(Service::Node)?.uid.as_raw()),
        Some(name) => Some(find_user(name)?.uid.as_raw()),
        None => None,
    })
}

fn say(
    common: &Common,
    place: &Place,
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
        "its name, overlay address and IPv4 address stay; its IPv6 address follows from the key, \
         so it changes with the node's next start: call this machine by its name",
    )?;
    let words = Service::Node.words(place).join(" ");
    match (runs, restarted) {
        (_, true) => output::line("the unit shoal was restarted with it"),
        (true, _) => output::line(
            "its node still runs with the old one, which nobody answers any more: restart it",
        ),
        _ => output::line(&format!("start the node with: shoal {words}")),
    }?;
    Ok(())
}

/// The key's file, and the one beside it in which the new key waits.
struct KeyFiles {
    file: PathBuf,
    old: Identity,
    owner: (u32, u32),
    user: Option<u32>,
    _lock: Flock<File>,
}

impl KeyFiles {
    /// Reads the key, and keeps other commands off.
    fn open(config: &Config, user: Option<u32>) -> Result<KeyFiles> {
        let named = config.path(&config.node.key_file);
        // A link stays where it is: what it leads to is replaced.
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

    /// The new key: that of a command that was broken off, or one that is made now. With
    /// `own_port` the node listens at the port that follows from it, so that must be free.
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
        Err(Failure::of(failure::FAILED, "this machine has no free UDP port to listen at"))
    }

    /// Asks for the new key. One that is refused for good does not wait any longer.
    fn ask(&self, contact: Contact, new: Identity) -> Result<Joined> {
        let mut silence = unanswered(&contact.endpoints);
        let end = asking::ask(self.old.clone(), contact, Goal::Rekey(new), &mut silence);
        match end.context("the registrar can't be asked")? {
            Event::Joined(joined) => Ok(*joined),
            other => {
                if is_unsigned(&other) {
                    forget(&self.file)?;
                }
                Err(refused(&other))
            }
        }
    }

    /// Puts the new key in the old one's place.
    fn swap(self) -> Result<()> {
        fs::rename(self.waiting(), &self.file).map_err(|e| wrong(&self.file, e))?;
        sync(&folder(&self.file))
    }
}

fn load(file: &Path, user: Option<u32>) -> Result<Identity> {
    let loaded = keys::load_identity_for(file, user);
    loaded.map_err(|e| Failure::of(failure::CONFIG, e.to_string()))
}

/// Why there is no new key.
fn refused(event: &Event) -> anyhow::Error {
    match event {
        Event::Refused(Refusal::Adopted) => Failure::of(failure::REFUSED, BY_AUTHORITY),
        Event::Refused(Refusal::Key) => {
            let text = "the registrar has no member with this machine's key, or it was removed: \
                        join anew, with another invite";
            Failure::of(failure::REFUSED, text)
        }
        Event::Failed(why @ Fault::Silent { welcomed: false }) => {
            Failure::of(failure::UNREACHABLE, format!("{why} {SILENT}"))
        }
        other => not_done(other),
    }
}

/// Whether an answer says that the new key was not signed, and will not be: what is refused for
/// another reason may have been signed when it was asked for before.
fn is_unsigned(event: &Event) -> bool {
    use Refusal::{Adopted, Ended, Full, Key, Soon};
    matches!(event, Event::Refused(Adopted | Ended | Full | Key | Soon))
}

/// Removes a new key that waits for a registrar's answer.
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
            assert!(!is_unsigned(&Event::Refused(why)), "{why}");
        }
        for why in [Refusal::Soon, Refusal::Adopted, Refusal::Key] {
            assert!(is_unsigned(&Event::Refused(why)), "{why}");
        }
        assert!(!is_unsigned(&Event::Failed(Fault::Silent { welcomed: true })));
    }
}
