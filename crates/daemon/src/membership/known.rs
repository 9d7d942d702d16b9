//! The secrets of a network that a node or a registrar knows while they change, and the file that
//! keeps them (docs/authority.md section 7).

use std::path::Path;

use shoal_crypto::{NetworkSecret, NetworkSecrets};
use shoal_directory::{SecretName, SecretNames};
use zeroize::Zeroizing;

use crate::config::keys;
use crate::membership::seen;

/// Secrets that are kept at most: the list names no more than two.
const KEPT_MAX: usize = 2;

/// That of the own file, and those that are kept beside it.
#[derive(Debug)]
pub struct Known {
    own: NetworkSecret,
    kept: Vec<NetworkSecret>,
}

impl Known {
    /// `own` stands in the file that the configuration names; `kept` as [`read_kept`] gives them.
    pub fn new(own: NetworkSecret, kept: Vec<NetworkSecret>) -> Known {
        Known { own, kept }
    }

    /// That of the own file.
    pub fn own(&self) -> &NetworkSecret {
        &self.own
    }

    /// Those that are kept.
    pub fn kept(&self) -> &[NetworkSecret] {
        &self.kept
    }

    /// The one with this name.
    pub fn find(&self, name: SecretName) -> Option<&NetworkSecret> {
        self.all().find(|secret| secret.name() == name)
    }

    /// All of them, the own one last.
    pub fn all(&self) -> impl Iterator<Item = &NetworkSecret> {
        self.kept.iter().chain([&self.own])
    }

    /// Takes in one that is to be kept, unless it is known or there is no room.
    pub fn add(&mut self, secret: NetworkSecret) {
        if self.find(secret.name()).is_none() && self.kept.len() < KEPT_MAX {
            self.kept.push(secret);
        }
    }

    /// Forgets what is kept and does not count at this time by the list's names.
    pub fn retain(&mut self, names: Option<&SecretNames>, unix_s: u64) {
        self.kept.retain(|secret| counts(names, secret.name(), unix_s));
    }

    /// What handshakes begin with at this time, and what is taken beside it. Without any secret
    /// that the list names it is the own one.
    pub fn chosen(&self, names: Option<&SecretNames>, unix_s: u64) -> NetworkSecrets {
        let Some(names) = names else { return self.own.clone().into() };
        let other = names.other(unix_s).and_then(|name| self.find(name)).cloned();
        match (self.find(names.current).cloned(), other) {
            (Some(first), other) => NetworkSecrets { first, other },
            (None, Some(other)) => other.into(),
            (None, None) => self.own.clone().into(),
        }
    }
}

/// Whether the list's names have this one, and it counts at this time.
pub(super) fn counts(names: Option<&SecretNames>, name: SecretName, unix_s: u64) -> bool {
    names.is_some_and(|all| name == all.current || all.other(unix_s) == Some(name))
}

/// The text of a file that keeps these.
pub fn text<'a>(secrets: impl IntoIterator<Item = &'a NetworkSecret>) -> Zeroizing<String> {
    let lines: Vec<_> = secrets.into_iter().map(keys::network_secret_text).collect();
    Zeroizing::new(lines.iter().map(|line| line.as_str()).collect())
}

/// The secrets that a node or a registrar kept in this file, and why they can't be read.
pub fn read_kept(file: &Path, user: Option<u32>) -> (Vec<NetworkSecret>, Option<String>) {
    if !file.exists() {
        return (Vec::new(), None);
    }
    match keys::load_network_secrets(file, user) {
        Ok(mut known) => {
            known.truncate(KEPT_MAX);
            (known, None)
        }
        Err(e) => {
            let lost = "a secret that was handed on is missing until it comes again";
            (Vec::new(), Some(format!("{e}: {lost}")))
        }
    }
}

/// Puts secrets in the place of those that were kept in this file.
///
/// Errors: what happened, without advice.
pub fn write_kept(file: &Path, text: &str) -> Result<(), String> {
    let kept = seen::replace(file, text.as_bytes());
    kept.map_err(|e| {
        let lost = "the network's secret that was handed on is gone after a restart";
        format!("{}: can't be written ({e}): {lost}", file.display())
    })
}
