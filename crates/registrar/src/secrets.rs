//! The network's secret that newcomers get, while it changes (docs/authority.md section 7).
//!
//! The registrar's own file has one. Where the list names newer ones, the node beside the registrar
//! is asked for the newest, which is kept beside the ledger. A write that fails is tried again
//! until it succeeds: newcomers get the secret meanwhile, and a registrar that is restarted before
//! that asks the node once more.

use std::path::PathBuf;

use shoal_crypto::{NetworkSecret, Secret};
use shoal_daemon::config::keys;
use shoal_daemon::membership::known::{read_kept, text, write_kept};
use shoal_directory::Known;
use shoal_joining::{Desk, Disk};
use shoal_wire::Time;

use crate::again::Again;
use crate::config::Config;

/// What the registrar knows of them.
pub struct Secrets {
    known: Known,
    /// Keeps them.
    file: PathBuf,
    again: Again,
}

impl Secrets {
    /// Reads the files.
    pub fn load(config: &Config) -> anyhow::Result<Secrets> {
        let own = keys::load_network_secret(&config.path(&config.network_secret_file), None)?;
        let file = config.path(&config.ledger_file).with_file_name("network.secrets");
        Ok(Secrets::of(own, file))
    }

    /// With the secrets that this file keeps.
    fn of(own: NetworkSecret, file: PathBuf) -> Secrets {
        let (kept, fault) = read_kept(&file, None);
        if let Some(why) = fault {
            tracing::warn!("{why}");
        }
        Secrets { known: Known::new(own, kept), file, again: Again::default() }
    }

    /// That of the registrar's own file.
    pub fn own(&self) -> Secret<32> {
        Secret::new(self.known.own().0)
    }

    /// A secret to ask the node with, if the list names a newer one that is not here.
    pub fn asks<J: Disk>(&self, desk: &Desk<J>) -> Option<NetworkSecret> {
        let names = desk.secret_names()?;
        let lacks = self.known.find(names.newest()).is_none();
        lacks.then(|| self.known.kept().last().unwrap_or(self.known.own()).clone())
    }

    /// Takes in what the node gave, if the list names it.
    pub fn take<J: Disk>(&mut self, secret: NetworkSecret, desk: &mut Desk<J>, now: Time) {
        let newest = desk.secret_names().map(|names| names.newest());
        if newest != Some(secret.name()) || self.known.find(secret.name()).is_some() {
            return;
        }
        self.known.add(secret);
        self.choose(desk, now);
        self.save(now);
    }

    /// Has newcomers get the secret that handshakes begin with; without it the one that goes, or
    /// that of the registrar's own file. The next one their neighbours give them.
    pub fn choose<J: Disk>(&mut self, desk: &mut Desk<J>, now: Time) {
        let Some(names) = desk.secret_names() else {
            return desk.set_network_secret(self.own());
        };
        let before = self.known.kept().len();
        // The one that goes counts here until the list names it no more.
        self.known.retain(Some(&names), 0);
        desk.set_network_secret(Secret::new(self.known.chosen(Some(&names), 0).first.0));
        if self.known.kept().len() != before {
            self.save(now);
        }
    }

    /// When [`Secrets::handle_timeout`] has something to do.
    pub fn poll_timeout(&self) -> Option<Time> {
        self.again.poll_timeout()
    }

    /// Tries a write that failed again, if it is time.
    pub fn handle_timeout(&mut self, now: Time) {
        if self.again.is_due(now) {
            self.save(now);
        }
    }

    /// Why what is known is not on the disk, in words for the owner.
    pub fn fault(&self) -> Option<&str> {
        self.again.fault()
    }

    fn save(&mut self, now: Time) {
        let written = write_kept(&self.file, &text(self.known.kept())).map_err(|why| {
            format!(
                "{why}; make room there, and let this registrar's user write beside its \
                 ledger_file: it tries again, once a minute at least"
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
        // There is no such folder yet.
        let file = folder.path().join("state").join("network.secrets");
        let mut secrets = Secrets::of(NetworkSecret([1; 32]), file.clone());
        secrets.known.add(NetworkSecret([2; 32]));
        let mut now = Time::from_millis(7);
        assert_eq!((secrets.poll_timeout(), secrets.fault()), (None, None));
        secrets.save(now);
        for seconds in [1, 2, 4, 8, 16, 32, 60, 60] {
            assert!(secrets.fault().unwrap().contains("it tries again"), "{:?}", secrets.fault());
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
        let again = Secrets::of(NetworkSecret([1; 32]), file);
        assert!(again.known.find(NetworkSecret([2; 32]).name()).is_some());
    }
}
