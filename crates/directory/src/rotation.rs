//! A node's network secrets during a change of the secret (docs/design/membership.md).
//!
//! ```text
//! own secret, kept ones, the operator's offer, neighbours -> known secrets
//! the list's names + known secrets -> under which handshakes begin, and which are taken
//! ```
//!
//! In: the names in the list, time, messages of neighbours, the operator's offer, results of
//! writes. Out: the secrets that count, secrets to write to disk, messages to neighbours.
//!
//! Invariant: a secret counts only while the list names it. A secret from a neighbour or the
//! operator is first passed to the caller for storing. Only then does it count, and only then are
//! neighbours told that this node has it.

use shoal_crypto::{NetworkSecret, NetworkSecrets};
use shoal_wire::{Address, DropReason, LinkId, SecretMessage, Time};

use crate::known::counts;
use crate::{KnownSecrets, SecretExchange, SecretName, SecretNames};

/// Secrets to write to disk.
#[derive(Debug)]
pub struct SecretsToStore {
    /// The whole content of the file.
    pub all: Vec<NetworkSecret>,
    /// The new secret among them, which counts once the write has finished or failed:
    /// [`SecretRotation::kept`].
    pub new: Option<NetworkSecret>,
}

#[derive(Debug)]
pub struct SecretRotation {
    /// The node's own secret, and others that the list names, or named when the node started.
    known: KnownSecrets,
    /// The operator's offer, if no list has named it yet.
    offered: Option<NetworkSecret>,
    /// A new secret that the caller is storing or must store.
    keeping: Option<NetworkSecret>,
    /// True if the caller has taken it for storing.
    is_given: bool,
    /// Names of the secrets on disk; `None` if the last write failed.
    saved: Option<Vec<SecretName>>,
    /// The secret for own handshakes, and the other accepted one.
    in_force: NetworkSecrets,
    /// True if the caller has not seen `in_force` yet.
    is_new: bool,
    handing: Option<SecretExchange>,
}

impl SecretRotation {
    /// A state without a list. `kept` are the secrets on disk. Neighbours get messages only if
    /// `pass_on`.
    pub fn new(own: NetworkSecret, kept: Vec<NetworkSecret>, pass_on: bool) -> SecretRotation {
        SecretRotation {
            in_force: own.clone().into(),
            saved: Some(kept.iter().map(NetworkSecret::name).collect()),
            known: KnownSecrets::new(own, kept),
            offered: None,
            keeping: None,
            is_given: false,
            is_new: false,
            handing: pass_on.then(SecretExchange::new),
        }
    }

    pub fn known(&self) -> &KnownSecrets {
        &self.known
    }

    /// The secrets that count now.
    pub fn in_force(&self) -> &NetworkSecrets {
        &self.in_force
    }

    /// The secrets that count, if they changed since the last call.
    pub fn take_new(&mut self) -> Option<NetworkSecrets> {
        core::mem::take(&mut self.is_new).then(|| self.in_force.clone())
    }

    /// Number of neighbours that have the newest secret, and of all neighbours.
    pub fn neighbours(&self) -> (usize, usize) {
        self.handing.as_ref().map(SecretExchange::neighbours).unwrap_or_default()
    }

    /// Sets or removes the operator's offer of the next secret.
    pub fn offer(&mut self, offered: Option<NetworkSecret>) {
        self.offered = offered;
    }

    /// True if the operator offers a secret that no list has named yet.
    pub fn is_offered(&self) -> bool {
        self.offered.is_some()
    }

    /// Updates the state by the names in the list at `unix_s`. `may_hand` must be true only if
    /// neighbours are members in force.
    pub fn look(&mut self, now: Time, names: Option<&SecretNames>, unix_s: u64, may_hand: bool) {
        self.known.retain(names, unix_s);
        // The offer waits while another secret is being stored.
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

    /// Names of the secrets that the file must have.
    fn wanted(&self) -> Vec<SecretName> {
        self.known.kept().iter().chain(&self.keeping).map(NetworkSecret::name).collect()
    }

    /// The secrets to write, if the file must change. Call [`SecretRotation::note_given`] when the
    /// write begins.
    pub fn to_keep(&self) -> Option<SecretsToStore> {
        let waits = self.keeping.is_some() && !self.is_given;
        let is_other = || self.saved.as_ref() != Some(&self.wanted());
        (waits || self.keeping.is_none() && is_other()).then(|| SecretsToStore {
            all: self.known.kept().iter().chain(&self.keeping).cloned().collect(),
            new: self.keeping.clone(),
        })
    }

    /// Records that the write asked for by [`SecretRotation::to_keep`] has begun.
    pub fn note_given(&mut self) {
        (self.saved, self.is_given) = (Some(self.wanted()), true);
    }

    /// Records the result of a write; `new` is the new secret in it, if any. The secret counts even
    /// if the write failed, since without it the node could reach nobody;
    /// [`SecretRotation::to_keep`] then asks again. Call [`SecretRotation::look`] afterwards.
    pub fn kept(&mut self, new: Option<NetworkSecret>, is_written: bool) {
        if !is_written {
            self.saved = None;
        }
        if let Some(secret) = new {
            self.keeping = None;
            self.known.add(secret);
        }
    }

    /// Adds a link to a neighbour, which must be a member in force.
    pub fn link_up(&mut self, now: Time, link: LinkId, neighbour: Address) {
        if let Some(handing) = &mut self.handing {
            handing.link_up(now, link, neighbour);
        }
    }

    /// True if the link is up.
    pub fn is_up(&self, link: LinkId) -> bool {
        self.handing.as_ref().is_some_and(|handing| handing.is_up(link))
    }

    /// Removes a link.
    pub fn link_down(&mut self, link: LinkId) {
        if let Some(handing) = &mut self.handing {
            handing.link_down(link);
        }
    }

    /// Handles a neighbour's message. Returns true if it brought a secret to store; then call
    /// [`SecretRotation::look`].
    ///
    /// # Errors
    ///
    /// As [`SecretExchange::handle_message`], or `not_allowed` if this node passes nothing on.
    pub fn handle_message(
        &mut self,
        now: Time,
        link: LinkId,
        message: SecretMessage,
    ) -> Result<bool, DropReason> {
        let handing = self.handing.as_mut().ok_or(DropReason::NotAllowed)?;
        match handing.handle_message(now, link, message)? {
            // Another secret is being stored; a neighbour will send this one again.
            Some(secret) if self.keeping.is_none() => {
                (self.keeping, self.is_given) = (Some(secret), false);
                Ok(true)
            }
            Some(_) | None => Ok(false),
        }
    }

    /// The next message to send, and its link. A link to a removed member ends a little later, so
    /// `is_member` must be true only for links to members in force. Other neighbours get no secret.
    ///
    /// # Errors
    ///
    /// `unknown_peer` for a secret that was withheld. More messages may follow.
    pub fn poll_transmit(
        &mut self,
        now: Time,
        is_member: impl Fn(LinkId) -> bool,
    ) -> Option<Result<(LinkId, SecretMessage), DropReason>> {
        let (link, message) = self.handing.as_mut()?.poll_transmit(now)?;
        if matches!(message, SecretMessage::Give(_)) && !is_member(link) {
            return Some(Err(DropReason::UnknownPeer));
        }
        Some(Ok((link, message)))
    }

    /// Time of the next poll.
    pub fn poll_timeout(&self) -> Option<Time> {
        self.handing.as_ref().and_then(SecretExchange::poll_timeout)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SecretChange;

    const NOW: Time = Time::from_millis(1);

    fn secret(n: u8) -> NetworkSecret {
        NetworkSecret([n; 32])
    }

    fn announced(next: u8) -> SecretNames {
        let change = SecretChange::Next(secret(next).name());
        SecretNames { current: secret(1).name(), change }
    }

    #[test]
    fn an_offer_waits_while_another_secret_is_kept() {
        let mut rotation = SecretRotation::new(secret(1), Vec::new(), false);
        (rotation.keeping, rotation.is_given) = (Some(secret(3)), true);
        rotation.offer(Some(secret(2)));
        rotation.look(NOW, Some(&announced(2)), 0, true);
        assert!(rotation.is_offered() && rotation.is_given);
        rotation.keeping = None;
        rotation.look(NOW, Some(&announced(2)), 0, true);
        assert!(!rotation.is_offered() && !rotation.is_given);
        assert_eq!(rotation.keeping.map(|keeping| keeping.0), Some([2; 32]));
    }

    #[test]
    fn a_secret_that_waits_is_to_be_kept_whatever_the_file_has() {
        let mut rotation = SecretRotation::new(secret(1), vec![secret(2)], false);
        rotation.known = KnownSecrets::new(secret(1), Vec::new());
        rotation.keeping = Some(secret(2));
        let to_keep = rotation.to_keep().unwrap();
        assert_eq!((to_keep.all.len(), to_keep.new.unwrap().0), (1, [2; 32]));
        rotation.note_given();
        assert!(rotation.to_keep().is_none(), "the write has begun");
    }

    #[test]
    fn what_could_not_be_written_counts_and_is_to_be_kept_again() {
        let mut rotation = SecretRotation::new(secret(1), Vec::new(), false);
        rotation.offer(Some(secret(2)));
        rotation.look(NOW, Some(&announced(2)), 0, true);
        assert!(rotation.in_force().other.is_none(), "the secret is not written yet");
        let new = rotation.to_keep().unwrap().new;
        rotation.note_given();
        rotation.kept(new, false);
        rotation.look(NOW, Some(&announced(2)), 0, true);
        assert_eq!(rotation.take_new().unwrap().other.unwrap().0, [2; 32]);
        assert!(rotation.take_new().is_none());
        let again = rotation.to_keep().unwrap();
        assert!(again.new.is_none() && again.all.len() == 1);
        rotation.note_given();
        rotation.kept(None, true);
        assert!(rotation.to_keep().is_none());
    }

    #[test]
    fn who_is_no_member_in_force_is_given_nothing() {
        let mut rotation = SecretRotation::new(secret(1), vec![secret(2)], true);
        rotation.look(NOW, Some(&announced(2)), 0, true);
        let link = LinkId::from_bits(0);
        rotation.link_up(NOW, link, Address::new(1, 1));
        let name = secret(2).name();
        let lacks = shoal_wire::SecretInventory { ask: false, has: false, name };
        for (is_member, given) in [(false, 0), (true, 1)] {
            let now = if is_member { NOW + core::time::Duration::from_secs(1) } else { NOW };
            rotation.handle_message(now, link, SecretMessage::Have(lacks)).unwrap();
            let (mut gives, mut refused) = (0, 0);
            while let Some(sent) = rotation.poll_transmit(now, |_| is_member) {
                match sent {
                    Ok((_, SecretMessage::Give(secret))) => gives += u32::from(secret == [2; 32]),
                    Ok(_) => {}
                    Err(reason) => refused += u32::from(reason == DropReason::UnknownPeer),
                }
            }
            assert_eq!((gives, refused), (given, 1 - given));
        }
    }
}
