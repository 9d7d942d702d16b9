//! The network's secret while it changes: its names in the list, the secrets that this node has,
//! and their transfer between neighbours (docs/design/membership.md).
//!
//! ```text
//! network_secret_file, secrets_file, network.key.next, neighbours -> known secrets
//! the list's names + known secrets -> secrets for own handshakes, and those accepted from others
//! ```
//!
//! Invariant: a secret counts only while the list names it. A secret from a neighbour or the
//! operator is written to the disk before it counts and before neighbours learn that it is here. If
//! it can't be written, it counts anyway, since without it the node would reach nobody. The status
//! then shows the fault, and each check tries to write it again.

use std::path::PathBuf;

use shoal_crypto::{NetworkSecret, NetworkSecrets, ct_eq};
use shoal_directory::{SecretNames, SecretRotation, SecretsToStore};
use shoal_wire::Time;

use crate::config::keys;
use crate::control::api;
use crate::membership::authority::{AuthorityState, unix_s};
use crate::membership::known;
use crate::worker::first::{FirstWorker, WorkerParts};

/// The files of one node's secrets.
#[derive(Clone, Debug)]
pub struct SecretFiles {
    /// Secrets from neighbours and from `next`.
    pub kept: PathBuf,
    /// File in which the operator puts the next secret.
    pub next: PathBuf,
}

impl SecretFiles {
    /// Replaces the stored secrets.
    ///
    /// Errors: a message that says what to do.
    pub(crate) fn write(&self, text: &str) -> Result<(), String> {
        known::write_kept(&self.kept, text).map_err(|why| {
            format!(
                "{why}; set [authority] secrets_file to a place that this node's user may write"
            )
        })
    }

    /// The operator's next secret; none if the file is absent.
    ///
    /// Errors: a message that says what to do.
    pub(crate) fn read_next(&self) -> Result<Option<NetworkSecret>, String> {
        match keys::load_network_secret(&self.next, None) {
            Ok(secret) => Ok(Some(secret)),
            Err(_) if matches!(self.next.try_exists(), Ok(false)) => Ok(None),
            Err(e) => Err(format!(
                "{e} (this node's user must own the file, since it is read while the node runs)"
            )),
        }
    }
}

/// Secrets of the network that this node knows.
#[derive(Debug)]
pub struct SecretStore {
    rotation: SecretRotation,
    /// Reason why the stored secrets could not be read.
    kept_fault: Option<String>,
    /// Reason why the operator's next secret can't be read.
    offered_fault: Option<String>,
}

impl SecretStore {
    /// Begins without a list. `kept_fault` is the reason if `kept` can't be read.
    pub(super) fn new(
        own: NetworkSecret,
        (kept, kept_fault): (Vec<NetworkSecret>, Option<String>),
        pass_on: bool,
    ) -> SecretStore {
        let rotation = SecretRotation::new(own, kept, pass_on);
        SecretStore { rotation, kept_fault, offered_fault: None }
    }

    /// Warnings for the operator.
    pub(super) fn warnings(&self, names: Option<&SecretNames>) -> Vec<String> {
        let faults = [&self.kept_fault, &self.offered_fault];
        let mut all: Vec<String> = faults.into_iter().flatten().cloned().collect();
        let Some(names) = names else { return all };
        if self.rotation.known().find(names.current).is_none() {
            all.push(
                "the network's secret changed, and this node does not have the new one: other \
                 nodes stop answering when the old one ends. `shoal network fetch` gets it from \
                 the registrar; or put the authority's network.key beside network.key here, as \
                 network.key.next"
                    .to_string(),
            );
        } else if self.rotation.known().find(names.newest()).is_none() {
            all.push(
                "the network's next secret was announced, and no neighbour has sent it yet: \
                 without it this node reaches nobody when the present one ends"
                    .to_string(),
            );
        }
        all
    }
}

impl AuthorityState {
    fn secret_names(&self) -> Option<SecretNames> {
        self.directory.list()?.content().secrets
    }

    /// The time, in seconds since 1970, by which the list's times are judged.
    fn list_unix_s(&self, now: Time) -> u64 {
        unix_s() + self.directory.behind_s(now, unix_s())
    }

    /// The secrets in force.
    pub fn secrets(&self) -> NetworkSecrets {
        self.secrets.rotation.in_force().clone()
    }

    /// Warnings for the operator about the secrets.
    pub(super) fn secret_warnings(&self) -> Vec<String> {
        self.secrets.warnings(self.secret_names().as_ref())
    }

    /// Compares the known secrets with the list, and asks the thread to store those needed.
    pub(crate) fn look_at_secrets(&mut self, now: Time) {
        let (names, unix_s) = (self.secret_names(), self.list_unix_s(now));
        let may_hand = self.is_member(now);
        let rotation = &mut self.secrets.rotation;
        rotation.look(now, names.as_ref(), unix_s, may_hand);
        let Some(watcher) = &self.watcher else { return };
        let Some(SecretsToStore { all, new }) = rotation.to_keep() else { return };
        if watcher.keep_secrets(known::text(&all), new) {
            rotation.note_given();
        }
    }

    /// Handles the result of writing the secrets. If it failed, the status shows it, and the next
    /// check tries again. `new` is the secret that was not stored before, if any.
    pub(crate) fn take_kept_secret(
        &mut self,
        now: Time,
        new: Option<NetworkSecret>,
        is_written: bool,
    ) {
        let is_new = new.is_some();
        self.secrets.rotation.kept(new, is_written);
        // Without a new secret no check follows: a failing disk must not be retried without pause.
        if is_new {
            self.secrets.kept_fault = None;
            self.look_at_secrets(now);
        }
    }

    /// Handles the operator's next secret, or its removal.
    pub(crate) fn take_offered_secret(
        &mut self,
        now: Time,
        read: Result<Option<NetworkSecret>, String>,
    ) {
        let (offered, fault) = match read {
            Ok(offered) => (offered, None),
            Err(why) => (None, Some(why)),
        };
        self.secrets.offered_fault = fault;
        self.secrets.rotation.offer(offered);
        self.look_at_secrets(now);
    }

    /// Progress of a change of the secret, for the status.
    pub(super) fn secret_status(&self, now: Time) -> Option<api::SecretProgress> {
        let names = self.secret_names()?;
        let stage = names.stage(self.list_unix_s(now));
        let (have, neighbours) = self.secrets.rotation.neighbours();
        Some(api::SecretProgress {
            state: stage.word().to_string(),
            has_current: self.secrets.rotation.known().find(names.current).is_some(),
            has_newest: self.secrets.rotation.known().find(names.newest()).is_some(),
            old_until_unix_s: stage.old_until_unix_s().unwrap_or(0),
            neighbours_have: have as u32,
            neighbours: neighbours as u32,
        })
    }

    /// The newest secret that the list names, for a program that proves that it knows any known
    /// one.
    ///
    /// Errors: the reason for the refusal.
    pub(crate) fn secret_for(&self, proof: &str) -> Result<&NetworkSecret, &'static str> {
        let names = self.secret_names();
        let names = names.ok_or("the authority's list does not name the network's secret")?;
        let secrets = &self.secrets;
        if !secrets
            .rotation
            .known()
            .all()
            .any(|known| ct_eq(api::secret_proof(known).as_bytes(), proof.as_bytes()))
        {
            return Err("this node does not know that program's secret of the network");
        }
        let newest = secrets.rotation.known().find(names.newest());
        newest.ok_or("this node does not have the newest secret of the network yet")
    }

    /// Time at which the secrets have work.
    pub(super) fn secret_timeout(&self) -> Option<Time> {
        self.secrets.rotation.poll_timeout()
    }
}

impl FirstWorker {
    /// Handles neighbours' messages about lists, supplements and the secret, and sends those due.
    pub(crate) fn pass_all_on(&mut self, now: Time) {
        self.pass_lists_on(now);
        self.pass_steps_on(now);
        self.pass_secret_on(now);
        self.apply_secrets();
    }

    /// Gives the node the secrets that count.
    fn apply_secrets(&mut self) {
        let WorkerParts { node, authority, .. } = &mut self.parts;
        let Some(authority) = authority else { return };
        if let Some(secrets) = authority.secrets.rotation.take_new() {
            node.set_secrets(secrets);
            tracing::info!("the network's secrets in use have changed");
        }
    }

    /// Handles neighbours' messages about the network's secret, and sends those that are due.
    fn pass_secret_on(&mut self, now: Time) {
        let WorkerParts { node, ports, authority, .. } = &mut self.parts;
        let Some(authority) = authority else { return };
        let mut learnt = false;
        let rotation = &mut authority.secrets.rotation;
        while let Some((link, message)) = node.relay.poll_secret() {
            if !rotation.is_up(link)
                && let Some(neighbour) = node.relay.view(link)
            {
                // The message arrived before the event that the link is up.
                rotation.link_up(now, link, neighbour.address);
            }
            match rotation.handle_message(now, link, message) {
                Ok(is_new) => learnt |= is_new,
                Err(reason) => node.relay.count_drop(reason, 1),
            }
        }
        let directory = &authority.directory;
        loop {
            let is_member = |link| {
                let address = node.relay.view(link).map(|to| to.address);
                directory
                    .members(now, unix_s())
                    .any(|member| address.is_some_and(|at| member.addresses().has(at)))
            };
            match rotation.poll_transmit(now, is_member) {
                None => break,
                Some(Err(reason)) => node.relay.count_drop(reason, 1),
                Some(Ok((link, message))) => {
                    node.relay.send_secret(now, link, &message, ports.at(now));
                }
            }
        }
        if learnt {
            authority.look_at_secrets(now);
        }
    }

    /// Notes that the link to a neighbour is up or down.
    pub(crate) fn note_secret(&mut self, now: Time, link: shoal_wire::LinkId, up: bool) {
        let WorkerParts { node, authority, .. } = &mut self.parts;
        let Some(authority) = authority else { return };
        let rotation = &mut authority.secrets.rotation;
        match node.relay.view(link) {
            Some(neighbour) if up => rotation.link_up(now, link, neighbour.address),
            _ => rotation.link_down(link),
        }
    }
}

#[cfg(test)]
mod tests;
