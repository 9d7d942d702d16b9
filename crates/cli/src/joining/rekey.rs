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
use std::os::unix::fs::{MetadataExt, lchown};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use clap::Args;
use nix::fcntl::{Flock, FlockArg};
use shoal_crypto::{Identity, VerifyKey};
use shoal_daemon::config::{Config, keys};
use shoal_daemon::control::api::{Command, Reply};
use shoal_daemon::control::socket::{ConnectError, Connection};
use shoal_daemon::membership::chains::{ChainFile, STEPS_MAX, chain_file};
use shoal_daemon::membership::{asking, renewal};
use shoal_daemon::privileges::find_user;
use shoal_directory::{List, Supplement};
use shoal_joining::{Contact, Event, Goal, Joined, Refusal};

use super::files::{sync, write, wrong};
use super::place::Place;
use super::start::{Service, has_units, restart, unit_user};
use super::up::{free_port, not_done};
use crate::failure::{self, Failure};
use crate::options::Common;
use crate::output;

/// Keys that are tried until the port that follows from one is free here.
const KEYS_TRIED: usize = 64;
/// How long the node may take to keep what it was given.
const KEEP: Duration = Duration::from_secs(10);
/// How often its file is looked at meanwhile.
const LOOK: Duration = Duration::from_millis(100);
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
    let file = place.node_toml();
    let config = Config::load(&file).map_err(|e| Failure::of(failure::CONFIG, e.to_string()))?;
    if config.registrar.is_none() {
        return Err(Failure::of(failure::CONFIG, BY_AUTHORITY));
    }
    let is_unit = has_units(&[(Service::Node, &place)]);
    let user = files_user(&config, is_unit)?;
    let contact = renewal::contact(&config, user);
    let contact = contact.map_err(|why| Failure::of(failure::CONFIG, why))?;
    let key = KeyFiles::open(&config, user)?;
    let new = key.next(config.node.listen.is_none())?;
    let joined = ask(key.old.clone(), contact, new.clone())?;
    let stored = store(&config, &joined)?;
    key.swap()?;
    let restarted = is_unit && restart(Service::Node);
    say(common, &place, &new, (stored, restarted))
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
            let entropy = keys::os_random().context("the operating system gave no randomness")?;
            let new = Identity::generate(entropy);
            if !own_port || free_port(&new)?.is_none() {
                put(&waiting, keys::identity_text(&new).as_bytes(), self.owner)?;
                return Ok(new);
            }
        }
        Err(Failure::of(failure::FAILED, "this machine has no free UDP port to listen at"))
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

fn folder(file: &Path) -> PathBuf {
    match file.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder.to_path_buf(),
        _ => ".".into(),
    }
}

/// The file with more behind its name.
fn beside(file: &Path, more: &str) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(more);
    name.into()
}

/// User and group of a file, or of its folder as long as there is none.
fn owner(file: &Path) -> Result<(u32, u32)> {
    let meta = fs::metadata(file).or_else(|_| fs::metadata(folder(file)));
    meta.map(|meta| (meta.uid(), meta.gid())).map_err(|e| wrong(file, e))
}

/// Puts `bytes` in the place of `file`, whole or not at all, for its owner alone.
fn put(file: &Path, bytes: &[u8], owner: (u32, u32)) -> Result<()> {
    let part = beside(file, ".part");
    write(&part, bytes)?;
    if self::owner(&part)? != owner {
        lchown(&part, Some(owner.0), Some(owner.1)).map_err(|e| wrong(&part, e))?;
    }
    fs::rename(&part, file).map_err(|e| wrong(file, e))?;
    sync(&folder(file))
}

fn ask(old: Identity, contact: Contact, new: Identity) -> Result<Joined> {
    let end = asking::ask(old, contact, Goal::Rekey(new), &mut |_| true);
    match end.context("the registrar can't be asked")? {
        Event::Joined(joined) => Ok(*joined),
        Event::Refused(Refusal::Adopted) => Err(Failure::of(failure::REFUSED, BY_AUTHORITY)),
        Event::Refused(Refusal::Key) => {
            let text = "the registrar has no member with this machine's key, or it was removed: \
                        join anew, with another invite";
            Err(Failure::of(failure::REFUSED, text))
        }
        other => Err(not_done(&other)),
    }
}

/// Stores the list and what the registrar signed where the node finds it at its next start: through
/// the node if it runs, since it writes its files itself. Whether it runs.
fn store(config: &Config, joined: &Joined) -> Result<bool> {
    // `renewal::contact` found both.
    let authority = config.authority.as_ref().context("no [authority]")?;
    let list = authority.list_file.as_ref().context("no [authority] list_file")?;
    let files = [config.path(list), config.path(&authority.kept_file())];
    let version = |file: &PathBuf| version(file, &joined.authority);
    if files.iter().filter_map(version).max() < version_of(&joined.list, &joined.authority) {
        put(&files[0], &joined.list, owner(&files[0])?)?;
    }
    let chains = config.path(&authority.chains_file());
    let given = match Connection::connect(&config.control_socket()) {
        Err(ConnectError::NotRunning(_)) => {
            put(&chains, &merged(&chains, &joined.chain), owner(&chains)?)?;
            return Ok(false);
        }
        Err(error) => Err(error.to_string()),
        Ok(mut node) => give(&mut node, &joined.chain),
    };
    let given = given.and_then(|()| kept(&chains, &joined.chain));
    given.map_err(|why| {
        let text = format!(
            "the registrar has signed the new key, and the node here does not take that ({why}): \
             stop the node, and repeat `shoal rekey`: it goes on with the same new key"
        );
        Failure::of(failure::FAILED, text)
    })?;
    Ok(true)
}

fn version(file: &Path, authority: &VerifyKey) -> Option<u64> {
    let list = crate::authority::folder::read(file, authority).ok()?;
    Some(list.content().version)
}

fn version_of(list: &[u8], authority: &VerifyKey) -> Option<u64> {
    List::open(authority, list).ok().map(|list| list.content().version)
}

/// The content of the node's file with this chain in the place of what it has of the mandate.
fn merged(file: &Path, chain: &[Supplement]) -> Vec<u8> {
    let mandate = chain.first().map(|step| step.step().mandate);
    let (before, _) = ChainFile::new(file.to_path_buf()).read();
    let mut out = chain_file(chain);
    for step in before {
        if Supplement::peek(&step).is_ok_and(|(other, _)| Some(other) != mandate) {
            // Its length was read from two bytes.
            out.extend_from_slice(&(step.len() as u16).to_be_bytes());
            out.extend_from_slice(&step);
        }
    }
    out
}

/// Gives the node what it lacks of the chain.
fn give(node: &mut Connection, chain: &[Supplement]) -> Result<(), String> {
    let another = "it gave an unexpected answer: is it of another release?";
    let Some(first) = chain.first() else { return Ok(()) };
    let id: String = first.step().mandate.0.iter().map(|byte| format!("{byte:02x}")).collect();
    let reply = node.call(Command::Directory, &[]).map_err(|e| e.to_string())?;
    let Reply::Directory(has) = reply else { return Err(another.into()) };
    let found = has.mandates.iter().find(|mandate| mandate.id == id);
    let has = found.ok_or("its list has no such mandate")?.steps;
    let lacks = usize::try_from(has).ok().and_then(|has| chain.get(has..)).unwrap_or_default();
    for some in lacks.chunks(STEPS_MAX) {
        let steps = some.iter().map(|step| STANDARD.encode(step.bytes())).collect();
        match node.call(Command::Supplements { steps }, &[]).map_err(|e| e.to_string())? {
            Reply::Supplements { .. } => {}
            _ => return Err(another.into()),
        }
    }
    Ok(())
}

/// Waits until the node's file has the last step, so that it starts with it.
fn kept(file: &Path, chain: &[Supplement]) -> Result<(), String> {
    let Some(last) = chain.last() else { return Ok(()) };
    let mut waited = Duration::ZERO;
    loop {
        let (steps, _) = ChainFile::new(file.to_path_buf()).read();
        if steps.iter().any(|step| step == last.bytes()) {
            return Ok(());
        }
        if waited >= KEEP {
            return Err(format!("{} does not have it", file.display()));
        }
        std::thread::sleep(LOOK);
        waited += LOOK;
    }
}

/// Removes a new key that waits for a registrar's answer.
pub fn forget(key_file: &Path) -> Result<()> {
    match fs::remove_file(keys::next_key_file(key_file)) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(wrong(key_file, e)),
        _ => Ok(()),
    }
}
