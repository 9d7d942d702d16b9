//! The network secrets that a node or registrar knows during a change of the secret
//! (docs/design/membership.md).

use shoal_crypto::{NetworkSecret, NetworkSecrets};

use crate::{SecretName, SecretNames};

/// Maximum number of stored secrets: the list names at most two.
pub const SECRETS_KEPT_MAX: usize = 2;

/// The secret of the node's own file, and the stored secrets.
#[derive(Debug)]
pub struct KnownSecrets {
    own: NetworkSecret,
    kept: Vec<NetworkSecret>,
}

impl KnownSecrets {
    /// `own` comes from the file named in the configuration. `kept` are the stored secrets; those
    /// beyond [`SECRETS_KEPT_MAX`] are dropped.
    pub fn new(own: NetworkSecret, mut kept: Vec<NetworkSecret>) -> KnownSecrets {
        kept.truncate(SECRETS_KEPT_MAX);
        KnownSecrets { own, kept }
    }

    /// The secret of the node's own file.
    pub fn own(&self) -> &NetworkSecret {
        &self.own
    }

    /// The stored secrets.
    pub fn kept(&self) -> &[NetworkSecret] {
        &self.kept
    }

    /// The secret with this name.
    pub fn find(&self, name: SecretName) -> Option<&NetworkSecret> {
        self.all().find(|secret| secret.name() == name)
    }

    /// All secrets, the own one last.
    pub fn all(&self) -> impl Iterator<Item = &NetworkSecret> {
        self.kept.iter().chain([&self.own])
    }

    /// Adds a stored secret, unless it is known or there is no room.
    pub fn add(&mut self, secret: NetworkSecret) {
        if self.find(secret.name()).is_none() && self.kept.len() < SECRETS_KEPT_MAX {
            self.kept.push(secret);
        }
    }

    /// Drops stored secrets that are not valid at `unix_s` by the list's names.
    pub fn retain(&mut self, names: Option<&SecretNames>, unix_s: u64) {
        self.kept.retain(|secret| counts(names, secret.name(), unix_s));
    }

    /// The secret for own handshakes, and the other one accepted at `unix_s`. If no known secret is
    /// in the list, the own one is used.
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

/// True if the list names this secret as valid at `unix_s`.
pub(crate) fn counts(names: Option<&SecretNames>, name: SecretName, unix_s: u64) -> bool {
    names.is_some_and(|all| name == all.current || all.other(unix_s) == Some(name))
}
