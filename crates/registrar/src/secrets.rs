//! The network's secret that newcomers get, while it changes (docs/authority.md section 7).
//!
//! The registrar's own file has one. Where the list names newer ones, the node beside the registrar
//! is asked for the newest, which is kept beside the ledger.

use std::path::PathBuf;

use shoal_crypto::{NetworkSecret, Secret};
use shoal_daemon::config::keys;
use shoal_daemon::membership::known::{Known, read_kept, text, write_kept};
use shoal_joining::{Desk, Disk};

use crate::config::Config;

/// What the registrar knows of them.
pub struct Secrets {
    known: Known,
    /// Keeps them.
    file: PathBuf,
}

impl Secrets {
    /// Reads the files.
    pub fn load(config: &Config) -> anyhow::Result<Secrets> {
        let own = keys::load_network_secret(&config.path(&config.network_secret_file), None)?;
        let file = config.path(&config.ledger_file).with_file_name("network.secrets");
        let (kept, fault) = read_kept(&file, None);
        if let Some(why) = fault {
            tracing::warn!("{why}");
        }
        Ok(Secrets { known: Known::new(own, kept), file })
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
    pub fn take<J: Disk>(&mut self, secret: NetworkSecret, desk: &mut Desk<J>) {
        let newest = desk.secret_names().map(|names| names.newest());
        if newest != Some(secret.name()) || self.known.find(secret.name()).is_some() {
            return;
        }
        self.known.add(secret);
        self.choose(desk);
        self.save();
    }

    /// Has newcomers get the secret that handshakes begin with; without it the one that goes, or
    /// that of the registrar's own file. The next one their neighbours give them.
    pub fn choose<J: Disk>(&mut self, desk: &mut Desk<J>) {
        let Some(names) = desk.secret_names() else {
            return desk.set_network_secret(self.own());
        };
        let before = self.known.kept().len();
        // The one that goes counts here until the list names it no more.
        self.known.retain(Some(&names), 0);
        desk.set_network_secret(Secret::new(self.known.chosen(Some(&names), 0).first.0));
        if self.known.kept().len() != before {
            self.save();
        }
    }

    fn save(&self) {
        if let Err(why) = write_kept(&self.file, &text(self.known.kept())) {
            tracing::warn!("{why}; let this registrar's user write beside its ledger_file");
        }
    }
}
