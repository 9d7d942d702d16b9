//! The network's secret that newcomers get, while it changes (docs/authority.md section 7).
//!
//! The registrar's own file has one. Where the list names newer ones, the node beside the registrar
//! is asked for the newest, which is kept beside the ledger.

use std::path::PathBuf;

use shoal_crypto::{NetworkSecret, Secret};
use shoal_daemon::config::keys;
use shoal_daemon::membership::secrets::{read_kept, write_kept};
use shoal_directory::{SecretName, SecretNames};
use shoal_joining::{Desk, Disk};

use crate::config::Config;

/// What the registrar knows of them.
pub struct Secrets {
    own: NetworkSecret,
    /// Others that the list names; two at most.
    known: Vec<NetworkSecret>,
    /// Keeps them.
    file: PathBuf,
}

impl Secrets {
    /// Reads the files.
    pub fn load(config: &Config) -> anyhow::Result<Secrets> {
        let own = keys::load_network_secret(&config.path(&config.network_secret_file), None)?;
        let file = config.path(&config.ledger_file).with_file_name("network.secrets");
        let (known, fault) = read_kept(&file, None);
        if let Some(why) = fault {
            tracing::warn!("{why}");
        }
        Ok(Secrets { own, known, file })
    }

    /// That of the registrar's own file.
    pub fn own(&self) -> Secret<32> {
        Secret::new(self.own.0)
    }

    fn find(&self, name: SecretName) -> Option<&NetworkSecret> {
        self.known.iter().chain([&self.own]).find(|secret| secret.name() == name)
    }

    /// A secret to ask the node with, if the list names a newer one that is not here.
    pub fn asks<J: Disk>(&self, desk: &Desk<J>) -> Option<NetworkSecret> {
        let names = desk.secret_names()?;
        let lacks = self.find(names.newest()).is_none();
        lacks.then(|| self.known.last().unwrap_or(&self.own).clone())
    }

    /// Takes in what the node gave, if the list names it.
    pub fn take<J: Disk>(&mut self, secret: NetworkSecret, desk: &mut Desk<J>) {
        let newest = desk.secret_names().map(|names| names.newest());
        if newest != Some(secret.name()) || self.find(secret.name()).is_some() {
            return;
        }
        self.known.push(secret);
        self.choose(desk);
        self.save();
    }

    /// Has newcomers get the secret that handshakes begin with; without it the one that goes, or
    /// that of the registrar's own file. The next one their neighbours give them.
    pub fn choose<J: Disk>(&mut self, desk: &mut Desk<J>) {
        let Some(names) = desk.secret_names() else {
            return desk.set_network_secret(self.own());
        };
        let others = self.known.len();
        self.known.retain(|secret| counts(&names, secret.name()));
        let first = self.find(names.current).or(names.other(0).and_then(|name| self.find(name)));
        let first = first.unwrap_or(&self.own).0;
        desk.set_network_secret(Secret::new(first));
        if self.known.len() != others {
            self.save();
        }
    }

    fn save(&self) {
        let lines: Vec<_> = self.known.iter().map(keys::network_secret_text).collect();
        let text = lines.iter().map(|line| line.as_str()).collect::<String>();
        let text = zeroize::Zeroizing::new(text);
        if let Err(why) = write_kept(&self.file, &text) {
            tracing::warn!("{why}; let this registrar's user write beside its ledger_file");
        }
    }
}

fn counts(names: &SecretNames, name: SecretName) -> bool {
    name == names.current || names.other(0) == Some(name)
}
