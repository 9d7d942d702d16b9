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
use shoal_directory::{Handing, SecretName, SecretNames};
use shoal_wire::{Address, DropReason, SecretMessage, Time};
use zeroize::Zeroizing;

use crate::config::keys;
use crate::control::api;
use crate::membership::authority::{Authority, unix_s};
use crate::membership::known::{self, Known, counts};
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
    /// That of `network_secret_file`, and others that the list names, or named when the node
    /// started.
    known: Known,
    /// From the operator, and not named by the list yet.
    offered: Option<NetworkSecret>,
    /// Given to the thread that keeps it, or to be given to it.
    keeping: Option<NetworkSecret>,
    /// The thread has it.
    is_given: bool,
    /// Names of what the file has; none if the last write failed.
    saved: Option<Vec<SecretName>>,
    /// Under which handshakes begin, and which are taken beside it.
    in_force: NetworkSecrets,
    /// The node does not know of it yet.
    is_new: bool,
    handing: Option<Handing>,
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
        Secrets {
            in_force: own.clone().into(),
            saved: Some(kept.iter().map(NetworkSecret::name).collect()),
            known: Known::new(own, kept),
            offered: None,
            keeping: None,
            is_given: false,
            is_new: false,
            handing: pass_on.then(Handing::new),
            kept_fault,
            offered_fault: None,
        }
    }

    /// Compares what is known with the names of the list at this time; `may_hand` where neighbours
    /// are members in force.
    fn look(&mut self, now: Time, names: Option<&SecretNames>, unix_s: u64, may_hand: bool) {
        self.known.retain(names, unix_s);
        // While another is being kept the offer waits.
        if self.keeping.is_none()
            && let Some(offered) =
                self.offered.take_if(|offered| counts(names, offered.name(), unix_s))
            && self.known.find(offered.name()).is_none()
        {
            (self.keeping, self.is_given) = (Some(offered), false);
        }
        let in_force = self.known.chosen(names, unix_s);
        let same = |a: &NetworkSecrets, b: &NetworkSecrets| {
            a.first.name() == b.first.name()
                && a.other.as_ref().map(NetworkSecret::name)
                    == b.other.as_ref().map(NetworkSecret::name)
        };
        if !same(&in_force, &self.in_force) {
            (self.in_force, self.is_new) = (in_force, true);
        }
        let newest = names.filter(|_| may_hand).map(SecretNames::newest);
        let here = newest.and_then(|name| self.known.find(name)).cloned();
        if self.keeping.is_none()
            && let Some(handing) = &mut self.handing
        {
            handing.set(now, newest, here);
        }
    }

    /// The text of the file: all that is known beside the node's own, and what is to be kept.
    fn text(&self) -> Zeroizing<String> {
        known::text(self.known.kept().iter().chain(&self.keeping))
    }

    /// What the operator should know.
    pub(super) fn warnings(&self, names: Option<&SecretNames>) -> Vec<String> {
        let faults = [&self.kept_fault, &self.offered_fault];
        let mut all: Vec<String> = faults.into_iter().flatten().cloned().collect();
        let Some(names) = names else { return all };
        if self.known.find(names.current).is_none() {
            all.push(
                "the network's secret changed, and this node does not have the new one: others \
                 answer it no more once the old one is gone. Put the authority's network.key in \
                 the place of network.key here, or join anew: `shoal leave`, and `shoal up` with \
                 an invite"
                    .to_string(),
            );
        } else if self.known.find(names.newest()).is_none() {
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
        self.secrets.in_force.clone()
    }

    /// What the operator should know of the secrets.
    pub(super) fn secret_warnings(&self) -> Vec<String> {
        self.secrets.warnings(self.secret_names().as_ref())
    }

    /// Compares what is known with the list, and has the thread keep what it must.
    pub(crate) fn look_at_secrets(&mut self, now: Time) {
        let (names, unix_s) = (self.secret_names(), self.list_unix_s(now));
        let may_hand = self.is_member(now);
        self.secrets.look(now, names.as_ref(), unix_s, may_hand);
        let Some(watcher) = &self.watcher else { return };
        let secrets = &mut self.secrets;
        let kept: Vec<SecretName> =
            secrets.known.kept().iter().chain(&secrets.keeping).map(NetworkSecret::name).collect();
        let waits = secrets.keeping.is_some() && !secrets.is_given;
        let is_other = secrets.saved.as_ref() != Some(&kept);
        let is_due = waits || secrets.keeping.is_none() && is_other;
        if is_due && watcher.keep_secrets(secrets.text(), secrets.keeping.clone()) {
            (secrets.saved, secrets.is_given) = (Some(kept), true);
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
        let secrets = &mut self.secrets;
        if !is_written {
            secrets.saved = None;
        }
        // No look without a new one: a disk that fails is asked once a look, not without end.
        let Some(secret) = new else { return };
        (secrets.keeping, secrets.kept_fault) = (None, None);
        secrets.known.add(secret);
        self.look_at_secrets(now);
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
        (self.secrets.offered, self.secrets.offered_fault) = (offered, fault);
        self.look_at_secrets(now);
    }

    /// Whether a member in force is at this address.
    fn has(&self, now: Time, address: Address) -> bool {
        self.directory.members(now, unix_s()).any(|member| member.address == address)
    }

    /// How far the change of the secret is, for the status.
    pub(super) fn secret_status(&self, now: Time) -> Option<api::Secret> {
        let names = self.secret_names()?;
        let stage = names.stage(self.list_unix_s(now));
        let (have, neighbours) =
            self.secrets.handing.as_ref().map(Handing::neighbours).unwrap_or_default();
        Some(api::Secret {
            state: stage.word().to_string(),
            has_current: self.secrets.known.find(names.current).is_some(),
            has_newest: self.secrets.known.find(names.newest()).is_some(),
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
            .known
            .all()
            .any(|known| ct_eq(api::secret_proof(known).as_bytes(), proof.as_bytes()))
        {
            return Err("that program's secret of the network is none that this node knows");
        }
        let newest = secrets.known.find(names.newest());
        newest.ok_or("this node does not have the newest secret of the network yet")
    }

    /// When the secrets have something to do.
    pub(super) fn secret_timeout(&self) -> Option<Time> {
        self.secrets.handing.as_ref().and_then(Handing::poll_timeout)
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
        if std::mem::take(&mut authority.secrets.is_new) {
            node.set_secrets(authority.secrets());
            tracing::info!("other secrets of the network count");
        }
    }

    /// Takes in what neighbours say about the network's secret, and says what is due.
    fn pass_secret_on(&mut self, now: Time) {
        let Parts { node, ports, authority, .. } = &mut self.parts;
        let Some(authority) = authority else { return };
        let mut learnt = false;
        let Secrets { handing, keeping, is_given, .. } = &mut authority.secrets;
        let Some(handing) = handing else { return };
        while let Some((link, message)) = node.relay.poll_secret() {
            if !handing.is_up(link)
                && let Some(neighbour) = node.relay.view(link)
            {
                // Its message came before the event that the link is up.
                handing.link_up(now, link, neighbour.address);
            }
            match handing.handle_message(now, link, message) {
                Ok(None) => {}
                // Another is being kept: a neighbour gives this one again.
                Ok(Some(_)) if keeping.is_some() => {}
                Ok(Some(secret)) => {
                    (*keeping, *is_given, learnt) = (Some(secret), false, true);
                }
                Err(reason) => node.relay.count_drop(reason, 1),
            }
        }
        let mut due = Vec::new();
        while let Some((link, message)) = handing.poll_transmit(now) {
            due.push((link, message));
        }
        for (link, message) in due {
            // Links of members that a moment ago were removed end within half a second.
            let gives = matches!(message, SecretMessage::Give(_));
            if gives && !node.relay.view(link).is_some_and(|to| authority.has(now, to.address)) {
                node.relay.count_drop(DropReason::UnknownPeer, 1);
                continue;
            }
            node.relay.send_secret(now, link, &message, ports.at(now));
        }
        if learnt {
            authority.look_at_secrets(now);
        }
    }

    /// Notes that a neighbour hears us, or is lost.
    pub(crate) fn note_secret(&mut self, now: Time, link: shoal_wire::LinkId, up: bool) {
        let Parts { node, authority, .. } = &mut self.parts;
        let handing = authority.as_mut().and_then(|authority| authority.secrets.handing.as_mut());
        let Some(handing) = handing else { return };
        match node.relay.view(link) {
            Some(neighbour) if up => handing.link_up(now, link, neighbour.address),
            _ => handing.link_down(link),
        }
    }
}

#[cfg(test)]
mod tests;
