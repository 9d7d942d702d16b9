//! `shoal registrar door --new`: replaces the door's secret, when invites are in wrong hands.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;
use shoal_daemon::config::keys;
use shoal_joining::DoorSecret;
use shoal_registrar::RegistrarConfig;

use crate::failure::{self, ExitError};
use crate::joining::store;
use crate::options::CommonOptions;
use crate::output;

#[derive(Args, Debug)]
pub struct DoorArgs {
    /// Make another secret for the door. The secret counts from the registrar's next start, and
    /// earlier invites are void then. Members keep the secret that they have.
    #[arg(long, required = true)]
    new: bool,
}

pub fn door(common: &CommonOptions, _args: &DoorArgs) -> Result<()> {
    let file = common.config.clone().unwrap_or_else(|| PathBuf::from(super::CONFIG));
    let config = super::load(&file)?;
    renew(&config).map_err(|e| ExitError::of(failure::FAILED, format!("{e:#}")))?;
    let text = "the door's new secret counts from the registrar's next start on: restart it \
                (`systemctl restart shoal-registrar`, or `shoal registrar run` again). All invites \
                given out before are void then: give out new ones with `shoal invite`. Members \
                need not do anything";
    match common.json {
        true => Ok(output::json("registrar", &serde_json::json!({ "done": text }))?),
        false => Ok(output::line(text)?),
    }
}

/// Replaces the secret in force, which is kept beside the new one for members.
fn renew(config: &RegistrarConfig) -> Result<()> {
    let file = config.path(&config.door_file);
    let at = |path: &Path| path.display().to_string();
    let owner = store::owner(&file)?;
    let before = config.doors_before();
    let Some(free) = before.iter().position(|path| !path.exists()) else {
        let oldest = before.last().map(|path| at(path)).unwrap_or_default();
        anyhow::bail!(
            "the registrar keeps {} former door secrets for members who know them, and no more: \
             once all members who joined by the oldest have left, remove {oldest} and repeat",
            before.len()
        );
    };
    let mut random = [0; 16];
    random.copy_from_slice(&keys::os_random().context("the system gives no random bytes")?[..16]);
    let text = keys::door_text(&DoorSecret::new(random));
    // The newest former secret comes first, so each moves one number on.
    for number in (0..free).rev() {
        fs::rename(&before[number], &before[number + 1]).with_context(|| at(&before[number]))?;
    }
    // An interruption between these two steps leaves the former secret there twice.
    fs::hard_link(&file, &before[0]).with_context(|| at(&before[0]))?;
    store::put(&file, text.as_bytes(), owner)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn the_secrets_of_before_stay_for_members_and_one_more_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let text = |n: u8| keys::door_text(&DoorSecret::new([n; 16])).to_string();
        let key = shoal_crypto::SigningKey::from_seed([1; 32]).public();
        let toml = format!(
            "key_file = \"registrar.key\"\ndoor_file = \"door.key\"\n\
             network_secret_file = \"network.key\"\nauthority = \"{key}\"\n\
             list_file = \"network.list\"\nledger_file = \"ledger\"\nlisten = [\"0.0.0.0:7500\"]\n\
             endpoints = [\"192.0.2.1:7500\"]\ncontrol_socket = \"control.sock\"\n"
        );
        let file = folder.path().join("registrar.toml");
        fs::write(&file, toml).unwrap();
        let read = |name: &str| fs::read_to_string(folder.path().join(name)).unwrap();
        fs::write(folder.path().join("door.key"), text(1)).unwrap();
        let config = RegistrarConfig::load(&file).unwrap();
        renew(&config).unwrap();
        let second = read("door.key");
        assert!(second != text(1) && read("door.key.1") == text(1));
        let mode = fs::metadata(folder.path().join("door.key")).unwrap().mode();
        assert_eq!(mode & 0o777, 0o600);
        renew(&config).unwrap();
        renew(&config).unwrap();
        assert_eq!((read("door.key.2"), read("door.key.3")), (second, text(1)));
        let newest = read("door.key");
        let said = renew(&config).unwrap_err().to_string();
        assert!(said.contains("door.key.3") && read("door.key") == newest, "{said}");
    }
}
