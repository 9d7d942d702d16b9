//! Protection level of the cells of a direct link. It follows from both ends' files, from the list,
//! and from the groups that the other end claims.
//!
//! ```text
//! own groups   = groups in the list + groups in the file
//! their groups = groups in the list + groups that they claim
//! common group, or one end requires encryption with the other -> encrypt
//! else                           -> the stronger of both ends' weakest accepted levels
//! ```
//!
//! An entry of a list or a claim can only make a link stronger. A host that claims groups of others
//! therefore gains nothing.

use std::collections::BTreeMap;

use shoal_wire::{DirectMessage, Level, Time};

use crate::book::HostId;
use crate::direct::{DirectEvent, DirectMachine};

/// Hash of a security group's name, as messages carry it.
pub type GroupHash = [u8; 8];

/// Reason for the level of a direct link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LevelReason {
    /// Both ends are in one security group.
    SharedGroup,
    /// Both ends accept nothing weaker.
    Both,
    /// Only this end accepts nothing weaker.
    Ours,
    /// This end's `encrypt_with` names the other host.
    Named,
    /// Only the other end accepts nothing weaker.
    Theirs,
}

impl LevelReason {
    /// The reason in words.
    pub const fn words(self) -> &'static str {
        match self {
            LevelReason::SharedGroup => "shared security group",
            LevelReason::Both => "both ends ask for it",
            LevelReason::Ours => "this end asks for it",
            LevelReason::Named => "this end's encrypt_with names that host",
            LevelReason::Theirs => "the other end asks for it",
        }
    }
}

/// The level of cells between two hosts. Each end passes the weakest level that it accepts and its
/// security groups. Both ends get the same result.
pub fn agree(ours: (Level, &[GroupHash]), theirs: (Level, &[GroupHash])) -> (Level, LevelReason) {
    if ours.1.iter().any(|group| theirs.1.contains(group)) {
        return (Level::Encrypt, LevelReason::SharedGroup);
    }
    let why = match ours.0.cmp(&theirs.0) {
        core::cmp::Ordering::Less => LevelReason::Ours,
        core::cmp::Ordering::Equal => LevelReason::Both,
        core::cmp::Ordering::Greater => LevelReason::Theirs,
    };
    (ours.0.min(theirs.0), why)
}

/// Security settings for another host, from the list and from this host's file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostSecurity {
    /// The host's security groups in the list.
    pub groups: Vec<GroupHash>,
    /// True if this host's file requires encryption with the host.
    pub encrypt: bool,
}

/// Security groups and levels of all hosts, except this host's own file.
#[derive(Debug, Default)]
pub(crate) struct SecuritySettings {
    /// This host's groups in the list.
    own: Vec<GroupHash>,
    hosts: BTreeMap<HostId, HostSecurity>,
    /// Latest claim of each host with a link: the weakest level that it accepts, and its groups.
    claims: BTreeMap<HostId, (Level, Vec<GroupHash>)>,
}

impl SecuritySettings {
    pub(crate) fn claim(&mut self, host: HostId, said: &DirectMessage) {
        self.claims.insert(host, (said.level, said.groups.clone()));
    }

    /// Forgets a host's claim. Its settings from the list stay until the next list.
    pub(crate) fn forget(&mut self, host: HostId) {
        self.claims.remove(&host);
    }
}

impl DirectMachine {
    /// Replaces the settings from the list: this host's security groups (`own`) and those of other
    /// hosts. A link whose level changes ends and may be requested again.
    pub fn set_security(
        &mut self,
        now: Time,
        own: Vec<GroupHash>,
        hosts: BTreeMap<HostId, HostSecurity>,
    ) {
        (self.levels.own, self.levels.hosts) = (own, hosts);
        let claims = self.levels.claims.iter();
        let terms =
            claims.map(|(host, (level, groups))| (*host, self.agree(*host, *level, groups)));
        for (host, terms) in terms.collect::<Vec<_>>() {
            self.put_terms(now, host, terms);
        }
    }

    fn put_terms(&mut self, now: Time, host: HostId, terms: (Level, LevelReason)) {
        match self.entries.get_mut(&host).filter(|entry| entry.has_link()) {
            None => {}
            Some(entry) if entry.terms.0 == terms.0 => entry.terms = terms,
            Some(_) => {
                self.tell(DirectEvent::Remove(host));
                self.wait(now, host);
            }
        }
    }

    /// The weakest level that this host accepts with another one, regardless of shared groups.
    pub(crate) fn weakest(&self, host: HostId) -> Level {
        match self.is_named(host) {
            true => Level::Encrypt,
            false => self.config.weakest,
        }
    }

    fn is_named(&self, host: HostId) -> bool {
        self.levels.hosts.get(&host).is_some_and(|security| security.encrypt)
    }

    /// Level with the host that sent this message, and its reason.
    pub(crate) fn terms_with(&self, host: HostId, said: &DirectMessage) -> (Level, LevelReason) {
        self.agree(host, said.level, &said.groups)
    }

    fn agree(&self, host: HostId, level: Level, claimed: &[GroupHash]) -> (Level, LevelReason) {
        let ours = [&self.config.groups[..], &self.levels.own].concat();
        let listed = self.levels.hosts.get(&host).map_or(&[][..], |security| &security.groups);
        let theirs = [claimed, listed].concat();
        let named = self.is_named(host) && self.config.weakest != Level::Encrypt;
        match agree((self.weakest(host), &ours), (level, &theirs)) {
            (level, LevelReason::Ours | LevelReason::Both) if named => (level, LevelReason::Named),
            terms => terms,
        }
    }
}
