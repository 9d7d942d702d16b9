//! Stores a registrar's answer where this machine's node finds it: list, supplements, secret.
//!
//! A running node gets the supplements over its control socket, since it writes their file itself.
//! The node reads list and secret from the files stored here, without a restart.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{MetadataExt, lchown};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use shoal_crypto::{NetworkSecret, VerifyKey};
use shoal_daemon::config::{NodeConfig, keys};
use shoal_daemon::control::api::{Command, ControlReply};
use shoal_daemon::control::directory::submission;
use shoal_daemon::control::socket::{ConnectError, ControlConnection};
use shoal_daemon::membership::chains::{ChainFile, STEPS_MAX, chain_file};
use shoal_daemon::membership::known::read_kept;
use shoal_directory::{List, Supplement};
use shoal_joining::NewMembership;

use super::files::{sync, write, wrong};

/// Time for the node to accept, or to store, what it was given.
const PATIENCE: Duration = Duration::from_secs(10);
/// Interval between looks at the node.
const LOOK: Duration = Duration::from_millis(100);

/// Items that were stored.
pub struct StoredItems {
    /// True if the list is newer than the node's.
    pub list: bool,
    /// True if the node's file lacked some supplements.
    pub chain: bool,
    /// True if the node did not know the secret.
    pub secret: bool,
    /// True if the node runs, and has all of it.
    pub runs: bool,
}

/// Stores the list and the registrar's supplements where the node finds them.
///
/// # Errors
///
/// A file can't be written. The inner error says why a running node does not accept them.
pub fn store(config: &NodeConfig, joined: &NewMembership) -> Result<Result<StoredItems, String>> {
    // `renewal::contact` has found both sections.
    let authority = config.authority.as_ref().context("no [authority]")?;
    let list = authority.list_file.as_ref().context("no [authority] list_file")?;
    let files = [config.path(list), config.path(&authority.kept_file())];
    let version = |file: &PathBuf| version(file, &joined.authority);
    let here = files.iter().filter_map(version).max();
    let given = version_of(&joined.list, &joined.authority);
    let list = here < given;
    if list {
        put(&files[0], &joined.list, owner(&files[0])?)?;
    }
    let chains = config.path(&authority.chains_file());
    let chain = lacks(&chains, &joined.chain);
    let done = |runs| StoredItems { list, chain, secret: false, runs };
    let given = match ControlConnection::connect(&config.control_socket()) {
        Err(ConnectError::NotRunning(_)) => {
            put(&chains, &merged(&chains, &joined.chain), owner(&chains)?)?;
            return Ok(Ok(done(false)));
        }
        Err(error) => Err(error.to_string()),
        Ok(mut node) => has_list(&mut node, given).and_then(|()| give(&mut node, &joined.chain)),
    };
    let given = given.and_then(|()| kept(&chains, &joined.chain));
    Ok(given.map(|()| done(true)))
}

/// As [`store`], with the network's secret, if the node does not know it. The secret is put beside
/// the node's own, like an operator's next one: the node keeps it once its list names it.
pub fn store_all(
    config: &NodeConfig,
    joined: &NewMembership,
    user: Option<u32>,
) -> Result<Result<StoredItems, String>> {
    let authority = config.authority.as_ref().context("no [authority]")?;
    let secret = NetworkSecret(*joined.secret.expose());
    let own = config.path(&config.node.network_secret_file);
    let beside = keys::next_key_file(&own);
    let kept = config.path(&authority.secrets_file());
    let is_it = |known: &NetworkSecret| known.name() == secret.name();
    let in_file = |file: &Path| keys::load_network_secret(file, user).is_ok_and(|s| is_it(&s));
    let known = in_file(&own) || in_file(&beside) || read_kept(&kept, user).0.iter().any(is_it);
    if !known {
        put(&beside, keys::network_secret_text(&secret).as_bytes(), owner(&own)?)?;
    }
    let stored = store(config, joined)?;
    Ok(stored.map(|stored| StoredItems { secret: !known, ..stored }))
}

pub fn folder(file: &Path) -> PathBuf {
    match file.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder.to_path_buf(),
        _ => ".".into(),
    }
}

/// The path with `more` appended.
fn beside(file: &Path, more: &str) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(more);
    name.into()
}

/// User and group of a file, or of its folder if the file is missing.
pub fn owner(file: &Path) -> Result<(u32, u32)> {
    let meta = fs::metadata(file).or_else(|_| fs::metadata(folder(file)));
    meta.map(|meta| (meta.uid(), meta.gid())).map_err(|e| wrong(file, e))
}

/// Replaces `file` by `bytes`, whole or not at all, for its owner alone.
pub fn put(file: &Path, bytes: &[u8], owner: (u32, u32)) -> Result<()> {
    let part = beside(file, ".part");
    write(&part, bytes)?;
    if self::owner(&part)? != owner {
        lchown(&part, Some(owner.0), Some(owner.1)).map_err(|e| wrong(&part, e))?;
    }
    fs::rename(&part, file).map_err(|e| wrong(file, e))?;
    sync(&folder(file))
}

fn version(file: &Path, authority: &VerifyKey) -> Option<u64> {
    let list = crate::authority::folder::read(file, authority).ok()?;
    Some(list.content().version)
}

fn version_of(list: &[u8], authority: &VerifyKey) -> Option<u64> {
    List::open(authority, list).ok().map(|list| list.content().version)
}

/// True if the node's file lacks a step of this chain.
fn lacks(file: &Path, chain: &[Supplement]) -> bool {
    let (steps, _) = ChainFile::new(file.to_path_buf()).read();
    let has: BTreeSet<&[u8]> = steps.iter().map(Vec::as_slice).collect();
    chain.iter().any(|step| !has.contains(step.bytes()))
}

/// Content of the node's file, with these steps instead of the file's steps of their mandates.
pub fn merged(file: &Path, chain: &[Supplement]) -> Vec<u8> {
    let mandates: BTreeSet<_> = chain.iter().map(|step| step.step().mandate).collect();
    let (before, _) = ChainFile::new(file.to_path_buf()).read();
    let mut out = chain_file(chain);
    for step in before {
        if Supplement::peek(&step).is_ok_and(|(other, _)| !mandates.contains(&other)) {
            // The step's length was read from two bytes.
            out.extend_from_slice(&(step.len() as u16).to_be_bytes());
            out.extend_from_slice(&step);
        }
    }
    out
}

/// Polls `found` until it is true; returns false after [`PATIENCE`].
fn in_time(mut found: impl FnMut() -> Result<bool, String>) -> Result<bool, String> {
    let mut waited = Duration::ZERO;
    while !found()? {
        if waited >= PATIENCE {
            return Ok(false);
        }
        std::thread::sleep(LOOK);
        waited += LOOK;
    }
    Ok(true)
}

const ANOTHER: &str = "the node gave an unexpected answer: is it of another release?";

fn directory(
    node: &mut ControlConnection,
) -> Result<Box<shoal_daemon::control::api::DirectoryStatus>, String> {
    match node.call(Command::Directory, &[]).map_err(|e| e.to_string())? {
        ControlReply::Directory(has) => Ok(has),
        _ => Err(ANOTHER.into()),
    }
}

/// Waits until the node has this list, or a newer one.
fn has_list(node: &mut ControlConnection, version: Option<u64>) -> Result<(), String> {
    let Some(version) = version else { return Ok(()) };
    if in_time(|| Ok(directory(node)?.version >= version))? {
        return Ok(());
    }
    Err(format!("the node does not accept list version {version}; `shoal status` says why"))
}

/// Gives the node the steps that it lacks. The chain of the registrar that made another one comes
/// first in `chain`.
fn give(node: &mut ControlConnection, chain: &[Supplement]) -> Result<(), String> {
    let mut mandates: Vec<_> = Vec::new();
    for id in chain.iter().map(|step| step.step().mandate) {
        if !mandates.contains(&id) {
            mandates.push(id);
        }
    }
    mandates.into_iter().try_for_each(|id| {
        let own = chain.iter().filter(|step| step.step().mandate == id);
        give_one(node, &own.cloned().collect::<Vec<_>>())
    })
}

fn give_one(node: &mut ControlConnection, chain: &[Supplement]) -> Result<(), String> {
    let Some(first) = chain.first() else { return Ok(()) };
    let (id, has) = (first.step().mandate.to_string(), directory(node)?);
    let found = has.mandates.iter().find(|mandate| mandate.id == id);
    let has = found.ok_or("the node's list has no such mandate")?.steps;
    let lacks = usize::try_from(has).ok().and_then(|has| chain.get(has..)).unwrap_or_default();
    for some in lacks.chunks(STEPS_MAX) {
        match node.call(submission(some), &[]).map_err(|e| e.to_string())? {
            ControlReply::Supplements { .. } => {}
            _ => return Err(ANOTHER.into()),
        }
    }
    Ok(())
}

/// Waits until the node's file has the last step, so that the node's next start has it, too.
fn kept(file: &Path, chain: &[Supplement]) -> Result<(), String> {
    let Some(last) = chain.last() else { return Ok(()) };
    let has = || {
        let (steps, _) = ChainFile::new(file.to_path_buf()).read();
        Ok(steps.iter().any(|step| step == last.bytes()))
    };
    if in_time(has)? { Ok(()) } else { Err(format!("{} does not have it", file.display())) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use shoal_crypto::Identity;
    use shoal_directory::{MandateId, Step, StepEntry};

    #[test]
    fn a_lost_or_shorter_file_lacks_the_chain() {
        let key = Identity::from_seed([1; 32]);
        let step = |number| {
            let (mandate, previous) = (MandateId([1; 32]), [0; 32]);
            let entries = vec![StepEntry::remove(&key.public())];
            let step = Step { mandate, number, previous, issued_unix_s: 9, entries };
            step.sign(&key).unwrap()
        };
        let (chain, folder) = ([step(1), step(2)], tempfile::tempdir().unwrap());
        let file = folder.path().join("network.chains");
        assert!(lacks(&file, &chain) && !lacks(&file, &[]));
        fs::write(&file, chain_file(&chain[..1])).unwrap();
        assert!(lacks(&file, &chain) && !lacks(&file, &chain[..1]));
        fs::write(&file, merged(&file, &chain)).unwrap();
        assert!(!lacks(&file, &chain));
    }
}
