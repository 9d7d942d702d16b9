//! The secrets of a network that a node or a registrar knows while they change (docs/authority.md
//! section 7).

use shoal_crypto::{NetworkSecret, NetworkSecrets};

use crate::{SecretName, SecretNames};

/// Secrets that are kept at most: the list names no more than two.
pub const SECRETS_KEPT_MAX: usize = 2;

/// That of the own file, and those that are kept beside it.
#[derive(Debug)]
pub struct Known {
    own: NetworkSecret,
    kept: Vec<NetworkSecret>,
}

impl Known {
    /// `own` stands in the file that the configuration names; `kept` are at most
    /// [`SECRETS_KEPT_MAX`], further ones are left out.
    pub fn new(own: NetworkSecret, mut kept: Vec<NetworkSecret>) -> Known {
        kept.truncate(SECRETS_KEPT_MAX);
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
        if self.find(secret.name()).is_none() && self.kept.len() < SECRETS_KEPT_MAX {
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
pub(crate) fn counts(names: Option<&SecretNames>, name: SecretName, unix_s: u64) -> bool {
    names.is_some_and(|all| name == all.current || all.other(unix_s) == Some(name))
}
