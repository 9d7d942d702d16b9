//! The network's secret for newcomers, also while it changes (docs/design/membership.md).
//!
//! The registrar's own file has one. If the list names a newer one, the registrar asks the node
//! beside it for the newest, and keeps that beside the ledger. A write that fails is repeated until
//! it succeeds. Newcomers get the secret meanwhile, and a registrar that restarts before asks the
//! node again.

use std::path::PathBuf;

use shoal_crypto::{NetworkSecret, Secret};
use shoal_daemon::config::keys;
use shoal_daemon::membership::known::{read_kept, text, write_kept};
use shoal_directory::KnownSecrets;
use shoal_joining::{Desk, Disk};
use shoal_wire::Time;

use crate::again::WriteRetry;
use crate::config::RegistrarConfig;

/// Secrets of the network that the registrar knows.
pub struct SecretKeeper {
    known: KnownSecrets,
    /// File that keeps the secrets.
    file: PathBuf,
    again: WriteRetry,
}

impl SecretKeeper {
    /// Reads the secrets from their files.
    pub fn load(config: &RegistrarConfig) -> anyhow::Result<SecretKeeper> {
        let own = keys::load_network_secret(&config.path(&config.network_secret_file), None)?;
        let file = config.path(&config.ledger_file).with_file_name("network.secrets");
        Ok(SecretKeeper::of(own, file))
    }

    /// Adds the secrets that this file keeps to the registrar's own.
    fn of(own: NetworkSecret, file: PathBuf) -> SecretKeeper {
        let (kept, fault) = read_kept(&file, None);
        if let Some(why) = fault {
            tracing::warn!("{why}");
        }
        SecretKeeper { known: KnownSecrets::new(own, kept), file, again: WriteRetry::default() }
    }

    /// The secret of the registrar's own file.
    pub fn own(&self) -> Secret<32> {
        Secret::new(self.known.own().0)
    }

    /// A known secret to ask the node with, if the list names a newer one that is missing here.
    pub fn asks<J: Disk>(&self, desk: &Desk<J>) -> Option<NetworkSecret> {
        let names = desk.secret_names()?;
        let lacks = self.known.find(names.newest()).is_none();
        lacks.then(|| self.known.kept().last().unwrap_or(self.known.own()).clone())
    }

    /// Accepts a secret from the node, if the list names it.
    pub fn take<J: Disk>(&mut self, secret: NetworkSecret, desk: &mut Desk<J>, now: Time) {
        let newest = desk.secret_names().map(|names| names.newest());
        if newest != Some(secret.name()) || self.known.find(secret.name()).is_some() {
            return;
        }
        self.known.add(secret);
        self.choose(desk, now);
        self.save(now);
    }

    /// Chooses the secret for newcomers: the one that handshakes begin with. If it is missing, the
    /// one that it replaces, or that of the registrar's own file. Neighbours give newcomers the
    /// next one.
    pub fn choose<J: Disk>(&mut self, desk: &mut Desk<J>, now: Time) {
        let Some(names) = desk.secret_names() else {
            return desk.set_network_secret(self.own());
        };
        let before = self.known.kept().len();
        // The replaced secret counts here until the list stops naming it.
        self.known.retain(Some(&names), 0);
        desk.set_network_secret(Secret::new(self.known.chosen(Some(&names), 0).first.0));
        if self.known.kept().len() != before {
            self.save(now);
        }
    }

    /// Time at which [`SecretKeeper::handle_timeout`] has work.
    pub fn poll_timeout(&self) -> Option<Time> {
        self.again.poll_timeout()
    }

    /// Repeats a write that failed, if it is time.
    pub fn handle_timeout(&mut self, now: Time) {
        if self.again.is_due(now) {
            self.save(now);
        }
    }

    /// Reason why the secrets are not on the disk, in words for the owner.
    pub fn fault(&self) -> Option<&str> {
        self.again.fault()
    }

    fn save(&mut self, now: Time) {
        let written = write_kept(&self.file, &text(self.known.kept())).map_err(|why| {
            format!(
                "{why}; make room there, and let this registrar's user write beside its \
                 ledger_file: the registrar tries again, once a minute at least"
            )
        });
        self.again.note(now, "the network's secret", written);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::again::MOST;

    #[test]
    fn a_write_that_fails_is_tried_again_and_later_each_time() {
        let folder = tempfile::tempdir().unwrap();
        // The folder does not exist yet.
        let file = folder.path().join("state").join("network.secrets");
        let mut secrets = SecretKeeper::of(NetworkSecret([1; 32]), file.clone());
        secrets.known.add(NetworkSecret([2; 32]));
        let mut now = Time::from_millis(7);
        assert_eq!((secrets.poll_timeout(), secrets.fault()), (None, None));
        secrets.save(now);
        for seconds in [1, 2, 4, 8, 16, 32, 60, 60] {
            assert!(secrets.fault().unwrap().contains("tries again"), "{:?}", secrets.fault());
            assert_eq!(secrets.poll_timeout(), Some(now + Duration::from_secs(seconds)));
            secrets.handle_timeout(now);
            assert!(secrets.poll_timeout() > Some(now), "not before its time");
            now = now + Duration::from_secs(seconds);
            secrets.handle_timeout(now);
        }
        std::fs::create_dir(folder.path().join("state")).unwrap();
        secrets.handle_timeout(now + Duration::from_secs(59));
        assert!(!file.exists());
        secrets.handle_timeout(now + MOST);
        assert_eq!((secrets.poll_timeout(), secrets.fault()), (None, None));
        let again = SecretKeeper::of(NetworkSecret([1; 32]), file);
        assert!(again.known.find(NetworkSecret([2; 32]).name()).is_some());
    }
}
