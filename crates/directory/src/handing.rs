//! Distribution of the newest network secret between neighbours (docs/design/membership.md).
//!
//! ```text
//! A, has it:  have(1) -->             give -->
//! B:                      <-- have(0)          <-- have(1), once it is kept
//! ```
//!
//! A node tells its neighbours whether it has the newest secret that its list names. A node that
//! has the secret gives it to a neighbour that names the same one and lacks it. Links lead to
//! members in force only, and a node names a secret only after it has the list that does. So a
//! member revoked in that list or an earlier one gets the secret from no node that has it.
//!
//! Invariant: neighbours' claims are not trusted. A received secret counts only if the list has its
//! name.

use core::time::Duration;
use std::collections::BTreeMap;

use shoal_crypto::NetworkSecret;
use shoal_wire::{Address, DropReason, LinkId, SecretInventory, SecretMessage, Time};

use crate::SecretName;
use crate::peers::{self, AnnouncementTimer, PeerSchedule};

/// Minimum time between two copies for a neighbour: a request within this time gets no second copy.
const GIVE_LEAST: Duration = Duration::from_millis(200);
/// Maximum burst of copies per neighbour, so that lost ones can be repeated.
const COPIES: u32 = 4;
/// Time in which a neighbour may get one more copy.
const COPY_EVERY: Duration = Duration::from_secs(30);
/// Maximum number of neighbours with a count of copies: more than a list has members.
const NEIGHBOURS_MAX: usize = 65_536;

#[derive(Debug)]
struct SecretPeer {
    neighbour: Address,
    /// The neighbour's newest `have`.
    heard: Option<SecretInventory>,
    words: AnnouncementTimer,
    /// True if the secret must be sent to the neighbour.
    give: bool,
    gave: Option<Time>,
}

/// Distribution of the secret by one node.
#[derive(Debug, Default)]
pub struct SecretExchange {
    /// Name of the newest secret in the list; `None` if the list names none.
    name: Option<SecretName>,
    /// The secret of that name, once it is stored at this node.
    secret: Option<NetworkSecret>,
    /// True while the caller stores a received secret.
    keeping: bool,
    peers: PeerSchedule<SecretPeer>,
    /// For each neighbour that got copies, the time at which it may get a full burst again.
    copies: BTreeMap<Address, Time>,
    given: u64,
}

impl SecretPeer {
    fn new(now: Time, neighbour: Address) -> SecretPeer {
        SecretPeer {
            neighbour,
            heard: None,
            words: AnnouncementTimer::new(now),
            give: false,
            gave: None,
        }
    }

    fn has(&self, name: SecretName) -> bool {
        self.heard.is_some_and(|heard| heard.name == name && heard.has)
    }

    fn lacks(&self, name: SecretName) -> bool {
        self.heard.is_some_and(|heard| heard.name == name && !heard.has)
    }
}

impl peers::ExchangePeer for SecretPeer {
    fn due(&self) -> Option<Time> {
        if self.give { Some(Time::ZERO) } else { self.words.due() }
    }
}

impl SecretExchange {
    /// A distribution without a list and without neighbours.
    pub fn new() -> SecretExchange {
        SecretExchange::default()
    }

    /// Number of neighbours that have the newest secret, and of all neighbours.
    pub fn neighbours(&self) -> (usize, usize) {
        let has = |name| self.peers.iter().filter(|(_, peer)| peer.has(name)).count();
        (self.name.map_or(0, has), self.peers.len())
    }

    /// Number of copies sent.
    pub fn given(&self) -> u64 {
        self.given
    }

    /// Sets the name of the newest secret by the list in force, and the secret if this node has it.
    /// Tells the neighbours.
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
                // A neighbour over its limit asks again later.
                let _ = self.offer(now, link);
            }
        }
    }

    /// Adds a link to a neighbour, which must be a member in force.
    pub fn link_up(&mut self, now: Time, link: LinkId, neighbour: Address) {
        self.link_down(link);
        self.peers.insert(link, SecretPeer::new(now, neighbour));
    }

    /// True if the link is up.
    pub fn is_up(&self, link: LinkId) -> bool {
        self.peers.is_up(link)
    }

    /// Removes a link.
    pub fn link_down(&mut self, link: LinkId) {
        self.peers.remove(link);
    }

    /// Handles a neighbour's message. Returns a secret that the list names: store it, then call
    /// [`SecretExchange::set`].
    ///
    /// Errors: the reason why the message is dropped. `list_budget` if the neighbour asks too
    /// often. `bad_secret` if the list does not name the secret. `unknown_flow` if the link is not
    /// up or the secret was not requested.
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
                // The sender has the secret.
                let heard = SecretInventory { ask: false, has: true, name };
                self.peers.change(link, |peer| peer.heard = Some(heard));
                Ok(Some(secret))
            }
        }
    }

    fn hear(&mut self, now: Time, link: LinkId, have: SecretInventory) -> Result<(), DropReason> {
        let (name, here) = (self.name, self.secret.is_some());
        let lacks = self.peers.change(link, |peer| {
            peer.heard = Some(have);
            let Some(name) = name else { return false };
            if have.ask {
                // Answers are rate-limited.
                peer.words.answer(now);
            } else if here && peer.has(name) && peer.words.have_begun() {
                peer.words.end();
            }
            let waits = peer.gave.is_some_and(|at| now.since(at) < GIVE_LEAST);
            here && peer.lacks(name) && !peer.give && !waits
        });
        if lacks == Some(true) { self.offer(now, link) } else { Ok(()) }
    }

    /// Marks the secret for sending to a neighbour, within its limit of copies.
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

    /// Time of the next poll.
    pub fn poll_timeout(&self) -> Option<Time> {
        self.peers.first_due()
    }

    /// The next message to send, and its link.
    pub fn poll_transmit(&mut self, now: Time) -> Option<(LinkId, SecretMessage)> {
        // The secret is copied only if a message is due.
        self.poll_timeout().filter(|at| *at <= now)?;
        let (name, secret) = (self.name, self.secret.clone());
        // Each iteration without a message moves the neighbour's due time past `now`.
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

impl SecretPeer {
    fn say(&mut self, now: Time, name: SecretName, here: bool) -> SecretInventory {
        let ask = !self.has(name);
        self.words.say(now, ask || !here);
        SecretInventory { ask, has: here, name }
    }
}
