//! At which level cells of a direct link are protected: what both ends' files ask for, what the
//! list says of both, and what the other end claims of itself.
//!
//! ```text
//! own groups   = those of the list and those of the file
//! their groups = those of the list and those that they claim
//! a common one, or one end that asks for it with the other -> encrypt
//! else                                    -> the stronger of both ends' weakest levels
//! ```
//!
//! What is added, by a list or by a claim, makes a link stronger, never weaker. So a host that
//! claims groups of others gains nothing.

use std::collections::BTreeMap;

use shoal_wire::{DirectMessage, Level, Time};

use crate::book::HostId;
use crate::direct::{Direct, DirectEvent};

/// The name of a security group, hashed, as it stands in messages.
pub type GroupHash = [u8; 8];

/// Why a direct link has its level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// Both ends are in one security group.
    SharedGroup,
    /// Both ends accept nothing weaker.
    Both,
    /// This end accepts nothing weaker.
    Ours,
    /// This end accepts nothing weaker with that host.
    Named,
    /// The other end accepts nothing weaker.
    Theirs,
}

impl Why {
    /// The reason in words.
    pub const fn words(self) -> &'static str {
        match self {
            Why::SharedGroup => "shared security group",
            Why::Both => "both ends ask for it",
            Why::Ours => "this end asks for it",
            Why::Named => "this end's encrypt_with has that host",
            Why::Theirs => "the other end asks for it",
        }
    }
}

/// The level of cells between two hosts. Each end gives the weakest level that it accepts and its
/// security groups. Both ends get equal results.
pub fn agree(ours: (Level, &[GroupHash]), theirs: (Level, &[GroupHash])) -> (Level, Why) {
    if ours.1.iter().any(|group| theirs.1.contains(group)) {
        return (Level::Encrypt, Why::SharedGroup);
    }
    let why = match ours.0.cmp(&theirs.0) {
        core::cmp::Ordering::Less => Why::Ours,
        core::cmp::Ordering::Equal => Why::Both,
        core::cmp::Ordering::Greater => Why::Theirs,
    };
    (ours.0.min(theirs.0), why)
}

/// What the list and this host's file say of another host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Security {
    /// Its security groups by the list.
    pub groups: Vec<GroupHash>,
    /// This host's file asks for encryption with it.
    pub encrypt: bool,
}

/// What is known of security groups, beside this host's own file.
#[derive(Debug, Default)]
pub(crate) struct Levels {
    /// This host's groups by the list.
    own: Vec<GroupHash>,
    hosts: BTreeMap<HostId, Security>,
    /// What hosts with which there were links said last: the weakest level that they take, and
    /// their groups.
    claims: BTreeMap<HostId, (Level, Vec<GroupHash>)>,
}

impl Levels {
    pub(crate) fn claim(&mut self, host: HostId, said: &DirectMessage) {
        self.claims.insert(host, (said.level, said.groups.clone()));
    }

    /// Forgets what a host said. What the list says of it stays until another list is said.
    pub(crate) fn forget(&mut self, host: HostId) {
        self.claims.remove(&host);
    }
}

impl Direct {
    /// Says what the list says of this host (`own`: its security groups) and of others; what was
    /// said before is forgotten. A link at another level than the new one ends, and is asked for
    /// anew.
    pub fn set_security(
        &mut self,
        now: Time,
        own: Vec<GroupHash>,
        hosts: BTreeMap<HostId, Security>,
    ) {
        (self.levels.own, self.levels.hosts) = (own, hosts);
        let claims = self.levels.claims.iter();
        let terms =
            claims.map(|(host, (level, groups))| (*host, self.agree(*host, *level, groups)));
        for (host, terms) in terms.collect::<Vec<_>>() {
            self.put_terms(now, host, terms);
        }
    }

    fn put_terms(&mut self, now: Time, host: HostId, terms: (Level, Why)) {
        match self.entries.get_mut(&host).filter(|entry| entry.has_link()) {
            None => {}
            Some(entry) if entry.terms.0 == terms.0 => entry.terms = terms,
            Some(_) => {
                self.tell(DirectEvent::Remove(host));
                self.wait(now, host);
            }
        }
    }

    /// The weakest level that this host takes with another, shared groups aside.
    pub(crate) fn weakest(&self, host: HostId) -> Level {
        match self.is_named(host) {
            true => Level::Encrypt,
            false => self.config.weakest,
        }
    }

    fn is_named(&self, host: HostId) -> bool {
        self.levels.hosts.get(&host).is_some_and(|security| security.encrypt)
    }

    /// The level with a host that said this.
    pub(crate) fn terms_with(&self, host: HostId, said: &DirectMessage) -> (Level, Why) {
        self.agree(host, said.level, &said.groups)
    }

    fn agree(&self, host: HostId, level: Level, claimed: &[GroupHash]) -> (Level, Why) {
        let ours = [&self.config.groups[..], &self.levels.own].concat();
        let listed = self.levels.hosts.get(&host).map_or(&[][..], |security| &security.groups);
        let theirs = [claimed, listed].concat();
        let named = self.is_named(host) && self.config.weakest != Level::Encrypt;
        match agree((self.weakest(host), &ours), (level, &theirs)) {
            (level, Why::Ours | Why::Both) if named => (level, Why::Named),
            terms => terms,
        }
    }
}
