//! One node's secrets of the network while they change (docs/authority.md section 7).
//!
//! ```text
//! own secret, kept ones, the operator's offer, neighbours -> known secrets
//! the list's names + known secrets -> under which handshakes begin, and which are taken
//! ```
//!
//! In: the list's names, time, messages of neighbours, what the operator offers, what became of
//! writes. Out: which secrets count, what is to be written to the disk, messages to neighbours.
//!
//! Invariant: a secret counts only while the list names it. What comes from a neighbour, or the
//! operator, is given to the caller to be written before it counts and neighbours are told that it
//! is here.

use shoal_crypto::{NetworkSecret, NetworkSecrets};
use shoal_wire::{Address, DropReason, LinkId, SecretMessage, Time};

use crate::known::counts;
use crate::{Handing, Known, SecretName, SecretNames};

/// What is to be written to the disk.
#[derive(Debug)]
pub struct ToKeep {
    /// All that the file is to have.
    pub all: Vec<NetworkSecret>,
    /// The one of them that counts once it is written, or can't be: [`Rotation::kept`].
    pub new: Option<NetworkSecret>,
}

/// See the module's documentation.
#[derive(Debug)]
pub struct Rotation {
    /// The node's own, and others that the list names, or named when the node started.
    known: Known,
    /// From the operator, and not named by the list yet.
    offered: Option<NetworkSecret>,
    /// Given to the caller to be kept, or to be given to it.
    keeping: Option<NetworkSecret>,
    /// The caller has it.
    is_given: bool,
    /// Names of what the disk has; none if the last write failed.
    saved: Option<Vec<SecretName>>,
    /// Under which handshakes begin, and which are taken beside it.
    in_force: NetworkSecrets,
    /// The caller does not know of it yet.
    is_new: bool,
    handing: Option<Handing>,
}

impl Rotation {
    /// Without a list yet; `kept` is what the disk has. Neighbours are told nothing unless
    /// `pass_on`.
    pub fn new(own: NetworkSecret, kept: Vec<NetworkSecret>, pass_on: bool) -> Rotation {
        Rotation {
            in_force: own.clone().into(),
            saved: Some(kept.iter().map(NetworkSecret::name).collect()),
            known: Known::new(own, kept),
            offered: None,
            keeping: None,
            is_given: false,
            is_new: false,
            handing: pass_on.then(Handing::new),
        }
    }

    /// What is known.
    pub fn known(&self) -> &Known {
        &self.known
    }

    /// The secrets that count now.
    pub fn in_force(&self) -> &NetworkSecrets {
        &self.in_force
    }

    /// The secrets that count, if others do than at the last call.
    pub fn take_new(&mut self) -> Option<NetworkSecrets> {
        core::mem::take(&mut self.is_new).then(|| self.in_force.clone())
    }

    /// How many neighbours have the newest secret, and how many there are.
    pub fn neighbours(&self) -> (usize, usize) {
        self.handing.as_ref().map(Handing::neighbours).unwrap_or_default()
    }

    /// What the operator offers as the next secret, or offers no more.
    pub fn offer(&mut self, offered: Option<NetworkSecret>) {
        self.offered = offered;
    }

    /// Whether the operator offers one that no list named yet.
    pub fn is_offered(&self) -> bool {
        self.offered.is_some()
    }

    /// Compares what is known with the names of the list at this time; `may_hand` where neighbours
    /// are members in force.
    pub fn look(&mut self, now: Time, names: Option<&SecretNames>, unix_s: u64, may_hand: bool) {
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

    /// What the file is to have, by name.
    fn wanted(&self) -> Vec<SecretName> {
        self.known.kept().iter().chain(&self.keeping).map(NetworkSecret::name).collect()
    }

    /// What is to be written now, if anything is; call [`Rotation::note_given`] once somebody
    /// writes it.
    pub fn to_keep(&self) -> Option<ToKeep> {
        let waits = self.keeping.is_some() && !self.is_given;
        let is_other = || self.saved.as_ref() != Some(&self.wanted());
        (waits || self.keeping.is_none() && is_other()).then(|| ToKeep {
            all: self.known.kept().iter().chain(&self.keeping).cloned().collect(),
            new: self.keeping.clone(),
        })
    }

    /// What [`Rotation::to_keep`] said is being written.
    pub fn note_given(&mut self) {
        (self.saved, self.is_given) = (Some(self.wanted()), true);
    }

    /// The secrets are on the disk, or could not be written there: they count all the same, since
    /// without them the node would reach nobody, and [`Rotation::to_keep`] has them again. Which
    /// one was `new`, if any; with one look again.
    pub fn kept(&mut self, new: Option<NetworkSecret>, is_written: bool) {
        if !is_written {
            self.saved = None;
        }
        if let Some(secret) = new {
            self.keeping = None;
            self.known.add(secret);
        }
    }

    /// The neighbour with this address hears us. It is a member in force.
    pub fn link_up(&mut self, now: Time, link: LinkId, neighbour: Address) {
        if let Some(handing) = &mut self.handing {
            handing.link_up(now, link, neighbour);
        }
    }

    /// Whether a link is up.
    pub fn is_up(&self, link: LinkId) -> bool {
        self.handing.as_ref().is_some_and(|handing| handing.is_up(link))
    }

    /// A neighbour is lost.
    pub fn link_down(&mut self, link: LinkId) {
        if let Some(handing) = &mut self.handing {
            handing.link_down(link);
        }
    }

    /// Takes in a message of a neighbour; whether a secret came that is to be kept: look again.
    ///
    /// # Errors
    ///
    /// Why it has no effect: as [`Handing::handle_message`] has it, or `not_allowed` where nothing
    /// is passed on.
    pub fn handle_message(
        &mut self,
        now: Time,
        link: LinkId,
        message: SecretMessage,
    ) -> Result<bool, DropReason> {
        let handing = self.handing.as_mut().ok_or(DropReason::NotAllowed)?;
        match handing.handle_message(now, link, message)? {
            // Another is being kept: a neighbour gives this one again.
            Some(secret) if self.keeping.is_none() => {
                (self.keeping, self.is_given) = (Some(secret), false);
                Ok(true)
            }
            Some(_) | None => Ok(false),
        }
    }

    /// The next message to send, and to whom. Links of members that a moment ago were removed end a
    /// little later: `is_member` says of a link whether its neighbour is one in force, and who is
    /// none is given no secret.
    ///
    /// # Errors
    ///
    /// `unknown_peer` in the place of such a message. There may be more.
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

    /// When a poll has something to do.
    pub fn poll_timeout(&self) -> Option<Time> {
        self.handing.as_ref().and_then(Handing::poll_timeout)
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
        let mut rotation = Rotation::new(secret(1), Vec::new(), false);
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
        let mut rotation = Rotation::new(secret(1), vec![secret(2)], false);
        rotation.known = Known::new(secret(1), Vec::new());
        rotation.keeping = Some(secret(2));
        let to_keep = rotation.to_keep().unwrap();
        assert_eq!((to_keep.all.len(), to_keep.new.unwrap().0), (1, [2; 32]));
        rotation.note_given();
        assert!(rotation.to_keep().is_none(), "it is on its way");
    }

    #[test]
    fn what_could_not_be_written_counts_and_is_to_be_kept_again() {
        let mut rotation = Rotation::new(secret(1), Vec::new(), false);
        rotation.offer(Some(secret(2)));
        rotation.look(NOW, Some(&announced(2)), 0, true);
        assert!(rotation.in_force().other.is_none(), "it is not written yet");
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
        let mut rotation = Rotation::new(secret(1), vec![secret(2)], true);
        rotation.look(NOW, Some(&announced(2)), 0, true);
        let link = LinkId::from_bits(0);
        rotation.link_up(NOW, link, Address::new(1, 1));
        let name = secret(2).name();
        let lacks = shoal_wire::SecretHave { ask: false, has: false, name };
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
