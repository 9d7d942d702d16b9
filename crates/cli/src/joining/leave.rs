//! `shoal leave`: ends this machine's membership.

use std::fs;
use std::io;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;
use shoal_daemon::config::{NodeConfig, keys};
use shoal_daemon::control::socket::ControlConnection;
use shoal_daemon::membership::{asking, renewal};
use shoal_joining::{JoinError, JoinEvent, JoinGoal};
use shoal_registrar::RegistrarConfig;

use super::files::{REGISTRAR_FILES, sync, wrong};
use super::place::ServiceFolders;
use super::rekey::{files_user, forget};
use super::start::{Service, disable, has_units};
use super::up::{SILENT, not_done, unanswered};
use crate::failure::{self, ExitError};
use crate::options::CommonOptions;
use crate::output;

#[derive(Args, Debug)]
pub struct LeaveArgs {
    /// The node's folder, if not /etc/shoal.
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Remove the files here even if the registrar does not answer. Other nodes then regard this
    /// machine as a member until the membership ends.
    #[arg(long)]
    force: bool,
}

/// Ends the membership, and removes what `shoal up` has written.
pub fn leave(common: &CommonOptions, args: &LeaveArgs) -> Result<()> {
    let place = ServiceFolders::of_node(args.dir.as_deref())?;
    let config = place.config()?;
    let is_unit = has_units(&[(Service::Node, &place)]);
    let told = tell(&config, is_unit, args.force)?;
    let stopped = is_unit && disable(Service::Node);
    let had_registrar = has_second(&place, &config);
    if had_registrar {
        let _stopped = is_unit && disable(Service::Registrar);
        remove_registrar(&place)?;
    }
    let missing = remove(&config)?;
    let runs = !stopped && ControlConnection::connect(&config.control_socket()).is_ok();
    if common.json {
        let value = serde_json::json!({ "told": told, "node_runs": runs, "missing": missing });
        return Ok(output::json("leave", &value)?);
    }
    missing.iter().for_each(|file| eprintln!("shoal: {}: was missing", file.display()));
    output::line("this machine has left the network, and its key is deleted")?;
    if had_registrar {
        output::line(
            "the registrar here ends, too, and its files are deleted: stop it if it runs. Machines \
             that it let in must join anew",
        )?;
    }
    if runs {
        output::line("the node still runs, but reaches nobody: stop it")?;
    }
    Ok(())
}

/// Tells the registrar. Returns false if it did not agree and `force` is given.
fn tell(config: &NodeConfig, is_unit: bool, force: bool) -> Result<bool> {
    let Err(error) = ask(config, is_unit) else { return Ok(true) };
    if force {
        eprintln!("shoal: warning: {error:#}");
        return Ok(false);
    }
    let text = format!(
        "{error:#}; --force removes the files here nevertheless (the registrar's owner can end the \
         membership with `shoal registrar remove`)"
    );
    let code = error.downcast_ref::<ExitError>().map_or(failure::FAILED, |failure| failure.code);
    Err(ExitError::of(code, text))
}

/// Asks the registrar to end the membership.
fn ask(config: &NodeConfig, is_unit: bool) -> Result<()> {
    let wrong = |why: String| ExitError::of(failure::CONFIG, why);
    let door = config.registrar.as_ref().and_then(|section| section.door_file.clone());
    for file in [Some(config.node.key_file.clone()), door].into_iter().flatten() {
        let file = config.path(&file);
        if !file.exists() {
            let file = file.display();
            return Err(wrong(format!("{file}: is missing, so the registrar can't be told")));
        }
    }
    let user = files_user(config, is_unit)?;
    let contact = renewal::newest_contact(config, user).map_err(wrong)?;
    let identity = keys::load_identity_for(&config.path(&config.node.key_file), user);
    let identity = identity.map_err(|e| wrong(e.to_string()))?;
    let mut silence = unanswered(&contact.endpoints);
    let end = asking::ask(identity, contact, JoinGoal::Leave, &mut silence);
    match end.context("the registrar can't be asked")? {
        JoinEvent::Left => Ok(()),
        JoinEvent::Failed(why @ JoinError::Silent { welcomed: false }) => {
            let text = format!("{why} {SILENT}, as after a `shoal leave` that was interrupted");
            Err(ExitError::of(failure::UNREACHABLE, text))
        }
        other => Err(not_done(&other)),
    }
}

/// True if this machine got a registrar of its own by the invite that made it a member.
fn has_second(place: &ServiceFolders, config: &NodeConfig) -> bool {
    let own = config.authority.as_ref().and_then(|authority| authority.key.as_ref());
    let file = place.registrar().registrar_toml();
    let beside = RegistrarConfig::load(&file).ok().filter(|_| config.registrar.is_some());
    beside.is_some_and(|beside| {
        // The registrar of the network's first machine names the authority's folder.
        beside.authority_folder.is_none() && beside.authority().ok() == own.map(|key| key.0)
    })
}

/// Removes the files of the registrar here, its configuration last. A new registrar could not
/// continue a ledger of another key.
fn remove_registrar(place: &ServiceFolders) -> Result<()> {
    let own = place.registrar();
    for name in REGISTRAR_FILES.iter().rev() {
        for path in [own.dir.join(own.state_file(name)), own.dir.join(name)] {
            match fs::remove_file(&path) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(wrong(&path, e)),
                _ => {}
            }
        }
    }
    sync(&own.dir)
}

/// Removes the node's files, its configuration last: until then the command can be repeated.
/// Returns the missing files among those that every member has.
fn remove(config: &NodeConfig) -> Result<Vec<PathBuf>> {
    let secret = config.node.network_secret_file.clone();
    let next_secret = keys::next_key_file(&secret);
    let key = config.node.key_file.clone();
    let mut needed = vec![key.clone(), secret.clone()];
    let mut files = vec![next_secret, key, secret, "node.toml".into()];
    if let Some(authority) = &config.authority {
        let state = [
            authority.seen_file.clone(),
            authority.kept_file(),
            authority.chains_file(),
            authority.secrets_file(),
            authority.ledger_end_file(),
        ];
        files.splice(0..0, authority.list_file.iter().cloned().chain(state));
    }
    files.splice(0..0, [config.circuits.guard_file.clone(), config.circuits.met_file()]);
    forget(&config.path(&config.node.key_file))?;
    if let Some(door) = config.registrar.as_ref().and_then(|section| section.door_file.clone()) {
        needed.push(door.clone());
        // While the command may be repeated, the registrar can be asked.
        files.insert(files.len() - 3, door);
    }
    let mut missing = Vec::new();
    for file in &files {
        let path = config.path(file);
        match fs::remove_file(&path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(wrong(&path, e)),
            Err(_) if needed.contains(file) => missing.push(path),
            _ => {}
        }
    }
    let folder = config.path(&PathBuf::from("node.toml"));
    folder.parent().map_or(Ok(()), sync)?;
    Ok(missing)
}

#[cfg(test)]
mod tests {
    use super::*;
    use shoal_crypto::{Identity, SigningKey};
    use shoal_joining::DoorSecret;
    use std::path::Path;

    use crate::joining::files::{NodeToml, write};

    fn node(dir: &Path) {
        let (key, authority) = (Identity::from_seed([1; 32]), SigningKey::from_seed([2; 32]));
        let endpoint = "192.0.2.1:7500".parse().unwrap();
        let toml = NodeToml {
            name: "bob",
            address: "1.7".into(),
            listen: Vec::new(),
            socket: "control.sock".into(),
            registrar_group: None,
            is_router: false,
            interface: None,
            resolv_conf: false,
            authority: authority.public().to_string(),
            seen_file: "network.seen".into(),
            max_staleness_s: 7_776_000,
            as_far_as_possible: false,
            direct: None,
            guard_file: None,
            registrar: Some((key.public().to_string(), &[endpoint], 30)),
        };
        write(&dir.join("node.toml"), toml.text().as_bytes()).unwrap();
        write(&dir.join("node.key"), keys::identity_text(&key).as_bytes()).unwrap();
        let door = DoorSecret::new([3; 16]);
        write(&dir.join("door.key"), keys::door_text(&door).as_bytes()).unwrap();
        write(&dir.join("network.list"), b"list").unwrap();
    }

    #[test]
    fn force_removes_what_is_there_whatever_is_lost() {
        for lost in ["door.key", "node.key"] {
            let folder = tempfile::tempdir().unwrap();
            let dir = folder.path();
            node(dir);
            fs::remove_file(dir.join(lost)).unwrap();
            let place = ServiceFolders::of_node(Some(dir)).unwrap();
            let config = place.config().unwrap();
            let said = tell(&config, false, false).unwrap_err().to_string();
            assert!(said.contains(lost) && said.contains("is missing"), "{said}");
            assert!(said.contains("--force") && !said.contains("make one with"), "{said}");
            assert!(!tell(&config, false, true).unwrap());
            let missing = remove(&config).unwrap();
            // The network's secret was never there.
            let missing: Vec<_> = missing.iter().filter_map(|file| file.file_name()).collect();
            assert_eq!(missing.len(), 2, "{missing:?}");
            assert!(missing.contains(&lost.as_ref()) && missing.contains(&"network.key".as_ref()));
            assert_eq!(fs::read_dir(dir).unwrap().count(), 0);
        }
    }
}
