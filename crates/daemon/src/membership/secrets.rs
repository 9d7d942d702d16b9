//! The network's secret while it changes: what the list says of it, what this node has, and how
//! neighbours hand it on (docs/authority.md section 7).
//!
//! ```text
//! network_secret_file, secrets_file, network.key.next, neighbours -> known secrets
//! the list's names + known secrets -> under which handshakes begin, and which are taken
//! ```
//!
//! Invariant: a secret counts only while the list names it. What comes from a neighbour, or the
//! operator, is written to the disk before it counts and neighbours are told that it is here. Where
//! it can't be written it counts all the same, since without it the node would reach nobody; the
//! status says so, and each look tries to write it again.

use std::path::PathBuf;

use shoal_crypto::{NetworkSecret, NetworkSecrets, ct_eq};
use shoal_directory::{Rotation, SecretNames, ToKeep};
use shoal_wire::Time;

use crate::config::keys;
use crate::control::api;
use crate::membership::authority::{Authority, unix_s};
use crate::membership::known;
use crate::worker::first::{Parts, Worker};

/// The files of one node's secrets.
#[derive(Clone, Debug)]
pub struct SecretFiles {
    /// What neighbours handed on, and what was found in `next`.
    pub kept: PathBuf,
    /// Where the operator puts the next secret.
    pub next: PathBuf,
}

impl SecretFiles {
    /// Puts these secrets in the place of those that were kept.
    ///
    /// Errors: what to do about it.
    pub(crate) fn write(&self, text: &str) -> Result<(), String> {
        known::write_kept(&self.kept, text).map_err(|why| {
            format!(
                "{why}; set [authority] secrets_file to a place that this node's user may write"
            )
        })
    }

    /// What the operator put there as the next secret; none once the file is gone.
    ///
    /// Errors: what to do about it.
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

/// What this node knows of the network's secrets.
#[derive(Debug)]
pub struct Secrets {
    rotation: Rotation,
    /// Why what was kept could not be read.
    kept_fault: Option<String>,
    /// Why what the operator offers can't be read.
    offered_fault: Option<String>,
}

impl Secrets {
    /// Without a list yet. `kept` can't be read where there is a `kept_fault`.
    pub(super) fn new(
        own: NetworkSecret,
        (kept, kept_fault): (Vec<NetworkSecret>, Option<String>),
        pass_on: bool,
    ) -> Secrets {
        let rotation = Rotation::new(own, kept, pass_on);
        Secrets { rotation, kept_fault, offered_fault: None }
    }

    /// What the operator should know.
    pub(super) fn warnings(&self, names: Option<&SecretNames>) -> Vec<String> {
        let faults = [&self.kept_fault, &self.offered_fault];
        let mut all: Vec<String> = faults.into_iter().flatten().cloned().collect();
        let Some(names) = names else { return all };
        if self.rotation.known().find(names.current).is_none() {
            all.push(
                "the network's secret changed, and this node does not have the new one: others \
                 answer it no more once the old one is gone. `shoal network fetch` gets it from \
                 the registrar; or put the authority's network.key beside network.key here, as \
                 network.key.next"
                    .to_string(),
            );
        } else if self.rotation.known().find(names.newest()).is_none() {
            all.push(
                "the network's next secret was announced, and no neighbour has given it to this \
                 node yet: it reaches nobody once the present one is gone"
                    .to_string(),
            );
        }
        all
    }
}

impl Authority {
    fn secret_names(&self) -> Option<SecretNames> {
        self.directory.list()?.content().secrets
    }

    /// The time by which the list's times count.
    fn list_unix_s(&self, now: Time) -> u64 {
        unix_s() + self.directory.behind_s(now, unix_s())
    }

    /// The secrets in force now.
    pub fn secrets(&self) -> NetworkSecrets {
        self.secrets.rotation.in_force().clone()
    }

    /// What the operator should know of the secrets.
    pub(super) fn secret_warnings(&self) -> Vec<String> {
        self.secrets.warnings(self.secret_names().as_ref())
    }

    /// Compares what is known with the list, and has the thread keep what it must.
    pub(crate) fn look_at_secrets(&mut self, now: Time) {
        let (names, unix_s) = (self.secret_names(), self.list_unix_s(now));
        let may_hand = self.is_member(now);
        let rotation = &mut self.secrets.rotation;
        rotation.look(now, names.as_ref(), unix_s, may_hand);
        let Some(watcher) = &self.watcher else { return };
        let Some(ToKeep { all, new }) = rotation.to_keep() else { return };
        if watcher.keep_secrets(known::text(&all), new) {
            rotation.note_given();
        }
    }

    /// The secrets are on the disk, or could not be written there: the status says so then, and the
    /// next look tries again. Which one was `new`, if any.
    pub(crate) fn take_kept_secret(
        &mut self,
        now: Time,
        new: Option<NetworkSecret>,
        is_written: bool,
    ) {
        let is_new = new.is_some();
        self.secrets.rotation.kept(new, is_written);
        // No look without a new one: a disk that fails is asked once a look, not without end.
        if is_new {
            self.secrets.kept_fault = None;
            self.look_at_secrets(now);
        }
    }

    /// The operator put a secret beside the node's, or took it away.
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

    /// How far the change of the secret is, for the status.
    pub(super) fn secret_status(&self, now: Time) -> Option<api::Secret> {
        let names = self.secret_names()?;
        let stage = names.stage(self.list_unix_s(now));
        let (have, neighbours) = self.secrets.rotation.neighbours();
        Some(api::Secret {
            state: stage.word().to_string(),
            has_current: self.secrets.rotation.known().find(names.current).is_some(),
            has_newest: self.secrets.rotation.known().find(names.newest()).is_some(),
            old_until_unix_s: stage.old_until_unix_s().unwrap_or(0),
            neighbours_have: have as u32,
            neighbours: neighbours as u32,
        })
    }

    /// The newest secret that the list names, for a program that shows that it knows another one.
    ///
    /// Errors: why there is none for it.
    pub(crate) fn secret_for(&self, proof: &str) -> Result<&NetworkSecret, &'static str> {
        let names = self.secret_names();
        let names = names.ok_or("the authority's list says nothing of the network's secret")?;
        let secrets = &self.secrets;
        if !secrets
            .rotation
            .known()
            .all()
            .any(|known| ct_eq(api::secret_proof(known).as_bytes(), proof.as_bytes()))
        {
            return Err("that program's secret of the network is none that this node knows");
        }
        let newest = secrets.rotation.known().find(names.newest());
        newest.ok_or("this node does not have the newest secret of the network yet")
    }

    /// When the secrets have something to do.
    pub(super) fn secret_timeout(&self) -> Option<Time> {
        self.secrets.rotation.poll_timeout()
    }
}

impl Worker {
    /// Takes in what neighbours say about lists, supplements and the secret, and says what is due.
    pub(crate) fn pass_all_on(&mut self, now: Time) {
        self.pass_lists_on(now);
        self.pass_steps_on(now);
        self.pass_secret_on(now);
        self.apply_secrets();
    }

    /// Has the node know which secrets count.
    fn apply_secrets(&mut self) {
        let Parts { node, authority, .. } = &mut self.parts;
        let Some(authority) = authority else { return };
        if let Some(secrets) = authority.secrets.rotation.take_new() {
            node.set_secrets(secrets);
            tracing::info!("other secrets of the network count");
        }
    }

    /// Takes in what neighbours say about the network's secret, and says what is due.
    fn pass_secret_on(&mut self, now: Time) {
        let Parts { node, ports, authority, .. } = &mut self.parts;
        let Some(authority) = authority else { return };
        let mut learnt = false;
        let rotation = &mut authority.secrets.rotation;
        while let Some((link, message)) = node.relay.poll_secret() {
            if !rotation.is_up(link)
                && let Some(neighbour) = node.relay.view(link)
            {
                // Its message came before the event that the link is up.
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
                directory.members(now, unix_s()).any(|member| Some(member.address) == address)
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

    /// Notes that a neighbour hears us, or is lost.
    pub(crate) fn note_secret(&mut self, now: Time, link: shoal_wire::LinkId, up: bool) {
        let Parts { node, authority, .. } = &mut self.parts;
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
