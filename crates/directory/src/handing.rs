//! Handing the network's newest secret on from neighbour to neighbour (docs/authority.md section
//! 7).
//!
//! ```text
//! A, has it:  have(1) -->             give -->
//! B:                      <-- have(0)          <-- have(1), once it is kept
//! ```
//!
//! A node says of the newest secret that its list names whether it has it. To a neighbour that
//! names the same one and does not have it, it gives the secret. Links lead to members in force
//! only, and a node names a secret only once it has the list that does: so who was revoked in that
//! list, or before, is given nothing by anybody who could give it.
//!
//! Invariant: this machine believes nothing that a neighbour says. What is given counts only if the
//! list has its name.

use core::time::Duration;
use std::collections::BTreeMap;

use shoal_crypto::NetworkSecret;
use shoal_wire::{Address, DropReason, LinkId, SecretHave, SecretMessage, Time};

use crate::SecretName;
use crate::peers::{self, Peers, Words};

/// A neighbour that asks again sooner has a copy on its way.
const GIVE_LEAST: Duration = Duration::from_millis(200);
/// Copies that a neighbour may have at once, so that lost ones can be given again.
const COPIES: u32 = 4;
/// Time in which a neighbour earns one more.
const COPY_EVERY: Duration = Duration::from_secs(30);
/// Neighbours whose copies are counted: more than a list has members.
const NEIGHBOURS_MAX: usize = 65_536;

#[derive(Debug)]
struct Peer {
    neighbour: Address,
    /// Its newest word.
    heard: Option<SecretHave>,
    words: Words,
    /// It is to be given the secret.
    give: bool,
    gave: Option<Time>,
}

/// One node's part in handing the secret on.
#[derive(Debug, Default)]
pub struct Handing {
    /// What the list calls the newest secret; none if it names none.
    name: Option<SecretName>,
    /// That secret, once it is here and kept.
    secret: Option<NetworkSecret>,
    /// A secret that fits was given to the caller, who keeps it.
    keeping: bool,
    peers: Peers<Peer>,
    /// When a neighbour that had copies will have earned all of them anew.
    copies: BTreeMap<Address, Time>,
    given: u64,
}

impl Peer {
    fn new(now: Time, neighbour: Address) -> Peer {
        Peer { neighbour, heard: None, words: Words::new(now), give: false, gave: None }
    }

    fn has(&self, name: SecretName) -> bool {
        self.heard.is_some_and(|heard| heard.name == name && heard.has)
    }

    fn lacks(&self, name: SecretName) -> bool {
        self.heard.is_some_and(|heard| heard.name == name && !heard.has)
    }
}

impl peers::Peer for Peer {
    fn due(&self) -> Option<Time> {
        if self.give { Some(Time::ZERO) } else { self.words.due() }
    }
}

impl Handing {
    /// Without a list and without neighbours.
    pub fn new() -> Handing {
        Handing::default()
    }

    /// How many neighbours have the newest secret, and how many there are.
    pub fn neighbours(&self) -> (usize, usize) {
        let has = |name| self.peers.iter().filter(|(_, peer)| peer.has(name)).count();
        (self.name.map_or(0, has), self.peers.len())
    }

    /// Copies that were given away.
    pub fn given(&self) -> u64 {
        self.given
    }

    /// The list in force calls the newest secret this, and it is here, or is not. Neighbours are
    /// told.
    pub fn set(&mut self, now: Time, name: Option<SecretName>, secret: Option<NetworkSecret>) {
        let same = self.name == name && self.secret.is_some() == secret.is_some();
        if self.name != name {
            self.copies.clear();
        }
        (self.name, self.secret, self.keeping) = (name, secret, false);
        if same {
            return;
        }
        for link in self.peers.links() {
            self.peers.change(link, |peer| {
                peer.words.begin(name.map(|_| now));
                peer.give = false;
            });
            let lacks =
                name.is_some_and(|name| self.peers.get(link).is_some_and(|peer| peer.lacks(name)));
            if lacks {
                // One that had its copies asks again.
                let _ = self.offer(now, link);
            }
        }
    }

    /// The neighbour with this address hears us. It is a member in force.
    pub fn link_up(&mut self, now: Time, link: LinkId, neighbour: Address) {
        self.link_down(link);
        self.peers.insert(link, Peer::new(now, neighbour));
    }

    /// Whether a link is up.
    pub fn is_up(&self, link: LinkId) -> bool {
        self.peers.is_up(link)
    }

    /// A neighbour is lost.
    pub fn link_down(&mut self, link: LinkId) {
        self.peers.remove(link);
    }

    /// Takes in a message of a neighbour. A secret that the list names is given back: keep it, and
    /// call [`Handing::set`].
    ///
    /// Errors: why it has no effect. `list_budget` to one who asks for the secret again and again,
    /// `bad_secret` for one that the list does not name, `unknown_flow` where the link is not up or
    /// nobody asked.
    pub fn handle_message(
        &mut self,
        now: Time,
        link: LinkId,
        message: SecretMessage,
    ) -> Result<Option<NetworkSecret>, DropReason> {
        let peer = self.peers.get(link).ok_or(DropReason::UnknownFlow)?;
        match message {
            SecretMessage::Have(have) => self.hear(now, link, have).map(|()| None),
            SecretMessage::Give(secret) => {
                let secret = NetworkSecret(secret);
                let asked = self.secret.is_none() && !self.keeping && peer.words.have_begun();
                let name = self.name.filter(|_| asked).ok_or(DropReason::UnknownFlow)?;
                if secret.name() != name {
                    return Err(DropReason::BadSecret);
                }
                self.keeping = true;
                // Who gives it has it.
                let heard = SecretHave { ask: false, has: true, name };
                self.peers.change(link, |peer| peer.heard = Some(heard));
                Ok(Some(secret))
            }
        }
    }

    fn hear(&mut self, now: Time, link: LinkId, have: SecretHave) -> Result<(), DropReason> {
        let (name, here) = (self.name, self.secret.is_some());
        let lacks = self.peers.change(link, |peer| {
            peer.heard = Some(have);
            let Some(name) = name else { return false };
            if have.ask {
                // Answers are spaced out, whatever it asks.
                peer.words.answer(now);
            } else if here && peer.has(name) && peer.words.have_begun() {
                peer.words.end();
            }
            let waits = peer.gave.is_some_and(|at| now.since(at) < GIVE_LEAST);
            here && peer.lacks(name) && !peer.give && !waits
        });
        if lacks == Some(true) { self.offer(now, link) } else { Ok(()) }
    }

    /// Has a neighbour given the secret, if it did not have too many copies.
    fn offer(&mut self, now: Time, link: LinkId) -> Result<(), DropReason> {
        let Some(neighbour) = self.peers.get(link).map(|peer| peer.neighbour) else {
            return Ok(());
        };
        if self.secret.is_none() {
            return Ok(());
        }
        if self.copies.len() >= NEIGHBOURS_MAX {
            self.copies.retain(|_, whole_at| *whole_at > now);
        }
        let whole_at = self.copies.get(&neighbour).copied().unwrap_or(now).max(now) + COPY_EVERY;
        if whole_at > now + COPY_EVERY * COPIES || self.copies.len() >= NEIGHBOURS_MAX {
            return Err(DropReason::ListBudget);
        }
        self.copies.insert(neighbour, whole_at);
        self.peers.change(link, |peer| peer.give = true);
        Ok(())
    }

    /// When a poll has something to do.
    pub fn poll_timeout(&self) -> Option<Time> {
        self.peers.first_due()
    }

    /// The next message to send, and to whom.
    pub fn poll_transmit(&mut self, now: Time) -> Option<(LinkId, SecretMessage)> {
        // No copy of the secret is made unless a message is due.
        self.poll_timeout().filter(|at| *at <= now)?;
        let (name, secret) = (self.name, self.secret.clone());
        // Each turn without a message moves a neighbour behind `now`.
        while let Some(link) = self.peers.next_due(now) {
            let here = secret.is_some();
            let message = self.peers.change(link, |peer| {
                if core::mem::take(&mut peer.give) {
                    peer.gave = Some(now);
                    return secret.as_ref().map(|secret| SecretMessage::Give(secret.0));
                }
                let Some(name) = name else {
                    peer.words.end();
                    return None;
                };
                Some(SecretMessage::Have(peer.say(now, name, here)))
            });
            if let Some(message) = message.flatten() {
                self.given += u64::from(matches!(message, SecretMessage::Give(_)));
                return Some((link, message));
            }
        }
        None
    }
}

impl Peer {
    fn say(&mut self, now: Time, name: SecretName, here: bool) -> SecretHave {
        let ask = !self.has(name);
        self.words.say(now, ask || !here);
        SecretHave { ask, has: here, name }
    }
}
