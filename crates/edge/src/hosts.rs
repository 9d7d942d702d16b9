//! Adding and removing hosts, and the memory of removed hosts that must stay hidden.

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use shoal_crypto::{Ciphers, PublicKey};
use shoal_wire::{Address, DropReason, Time};

use crate::book::{HostDirectory, HostId};
use crate::edge::Edge;

/// Time for which a forgotten host's circuits are refused. Its user can run the same command within
/// this time: the other host's next circuit would hide both hosts again.
pub const FORGOTTEN_FOR: Duration = Duration::from_secs(600);
/// Time for which the circuits of a host are refused that only the network's preset hid. A newer
/// list reaches all nodes within seconds.
pub const RELEASED_FOR: Duration = Duration::from_secs(30);

/// Another host, as the hosts file names it.
#[derive(Clone, Debug)]
pub struct HostConfig {
    pub key: PublicKey,
    pub address: Address,
}

/// Hosts outside the table that were met over circuits, in this run of the node or before. Without
/// this memory, an attacker who can withhold lists from a node could make it forget all hosts. The
/// node would then talk outside circuits with the hosts of the next list.
///
/// The Diffie-Hellman key identifies a host, as it does in sessions: handshakes prove it.
#[derive(Debug)]
pub(crate) struct MetHosts {
    /// Largest number of hosts: as many as the table of hosts holds, so that all of them may be
    /// removed.
    max: usize,
    /// Number of each host's removal, and the reverse map.
    by_key: BTreeMap<[u8; 32], u64>,
    by_age: BTreeMap<u64, [u8; 32]>,
    removals: u64,
    /// Hosts that were met and must still be written to disk.
    fresh: VecDeque<PublicKey>,
}

impl MetHosts {
    pub(crate) fn new(max: usize) -> MetHosts {
        let (by_key, by_age, fresh) = (BTreeMap::new(), BTreeMap::new(), VecDeque::new());
        MetHosts { max, by_key, by_age, removals: 0, fresh }
    }

    /// Queues a host that was met, to be written to disk.
    ///
    /// Errors: `table_full`; the host that waited longest is not written.
    pub(crate) fn tell(&mut self, key: PublicKey) -> Result<(), DropReason> {
        self.fresh.push_back(key);
        if self.fresh.len() > self.max {
            self.fresh.pop_front();
            return Err(DropReason::TableFull);
        }
        Ok(())
    }

    /// Remembers a host that is removed.
    ///
    /// Errors: `table_full`; the host that was removed first is forgotten.
    fn put(&mut self, key: &PublicKey) -> Result<(), DropReason> {
        self.take(key);
        self.removals += 1;
        self.by_key.insert(key.dh, self.removals);
        self.by_age.insert(self.removals, key.dh);
        if self.by_key.len() > self.max
            && let Some((_, oldest)) = self.by_age.pop_first()
        {
            self.by_key.remove(&oldest);
            return Err(DropReason::TableFull);
        }
        Ok(())
    }

    /// Forgets a host that is added again. Returns true if it was met before.
    fn take(&mut self, key: &PublicKey) -> bool {
        let removal = self.by_key.remove(&key.dh);
        removal.is_some_and(|removal| self.by_age.remove(&removal).is_some())
    }

    /// Forgets all hosts but those with these Diffie-Hellman keys.
    fn retain(&mut self, kept: &BTreeSet<[u8; 32]>) {
        self.by_key.retain(|key, _| kept.contains(key));
        self.by_age.retain(|_, key| kept.contains(key));
        self.fresh.retain(|fresh| kept.contains(&fresh.dh));
    }

    /// Forgets a host, whether it is in the table of hosts or not.
    fn forget(&mut self, key: &PublicKey) {
        self.take(key);
        self.fresh.retain(|fresh| fresh.dh != key.dh);
    }
}

impl<C: Ciphers> Edge<C> {
    /// Adds a host, or changes the address of a host with a known key. If there ever was a session
    /// with the host over a circuit, it is hidden at once, however often it was removed.
    ///
    /// Errors: `table_full`; nothing changes then.
    pub fn add_host(&mut self, host: &HostConfig) -> Result<HostId, DropReason> {
        let peer = match self.sessions.peer_by_key(&host.key) {
            Some(peer) => peer,
            None => self.sessions.add_peer(host.key).map_err(|_| DropReason::TableFull)?,
        };
        let id = self.book().put(peer, host.address);
        if self.met.take(&host.key) {
            self.hide_again(id);
        }
        self.aim(id);
        Ok(id)
    }

    /// Restores the hosts that were met over circuits before this node started, in the order in
    /// which they were met. They are hidden as soon as they are added, so call this first. Each
    /// host above the limit is counted as a drop, `table_full`.
    pub fn remember_met<'a>(&mut self, keys: impl IntoIterator<Item = &'a PublicKey>) {
        for key in keys {
            if let Err(reason) = self.met.put(key) {
                self.count(reason);
            }
        }
    }

    /// Takes the next host with which there was a first session over a circuit. Write it to disk,
    /// and pass it to [`Edge::remember_met`] after a restart.
    pub fn poll_met(&mut self) -> Option<PublicKey> {
        self.met.fresh.pop_front()
    }

    /// Forgets that these hosts were met over circuits. Those in the table are reached outside
    /// circuits from now on: their sessions over circuits end, and their circuits are refused for
    /// [`FORGOTTEN_FOR`]. Returns these hosts. Pass the policy to [`Edge::set_hidden`] again
    /// afterwards, since hosts that it names are shown, too.
    pub fn forget_met(&mut self, now: Time, keys: &[PublicKey]) -> Vec<HostId> {
        self.show_met(now + FORGOTTEN_FOR, keys)
    }

    /// Shows all hosts but `kept`, after the network's preset was lowered, and forgets that the
    /// others were met. Those that a stale list removed count, too. As [`Edge::forget_met`], but
    /// circuits are refused for [`RELEASED_FOR`] alone: the other host may want to stay hidden.
    pub fn release_hosts(&mut self, now: Time, kept: &[PublicKey]) -> Vec<HostId> {
        let kept: BTreeSet<[u8; 32]> = kept.iter().map(|key| key.dh).collect();
        self.met.retain(&kept);
        let key = |host| self.sessions.peer_key(self.own.book.peer(host)?).copied();
        let keys = self.circuits.ids().filter_map(key);
        let free: Vec<PublicKey> = keys.filter(|key| !kept.contains(&key.dh)).collect();
        self.show_met(now + RELEASED_FOR, &free)
    }

    fn show_met(&mut self, refused_until: Time, keys: &[PublicKey]) -> Vec<HostId> {
        let mut shown = Vec::new();
        for key in keys {
            self.met.forget(key);
            let Some(peer) = self.sessions.peer_by_key(key) else { continue };
            let Some(host) = self.own.book.of_peer(peer).filter(|host| self.is_hidden(*host))
            else {
                continue;
            };
            self.show(host);
            self.sessions.refuse_circuits(peer, refused_until);
            // Packets and messages that wait for a circuit can leave without one.
            self.circuits.ready.push(host);
            shown.push(host);
        }
        shown
    }

    /// The book of hosts, for a change. Other workers get the changed book after the orders about
    /// sessions that are already queued.
    pub(crate) fn book(&mut self) -> &mut HostDirectory {
        self.take_orders();
        self.book_stale = true;
        Arc::make_mut(&mut self.own.book)
    }

    /// Removes a host. Its session ends and its transfers fail. If it was met over a circuit, that
    /// is remembered; a drop is counted as `table_full` if another host is forgotten for it.
    pub fn remove_host(&mut self, now: Time, host: HostId) {
        let Some(peer) = self.own.book.peer(host) else { return };
        let met = self.sessions.peer_key(peer).filter(|_| self.circuits.is_met(host));
        if let Some(Err(reason)) = met.copied().map(|key| self.met.put(&key)) {
            self.count(reason);
        }
        self.heard.remove(host);
        self.clear.remove(host);
        self.listed.remove(&host);
        self.unsent.retain(|(to, _)| *to != host);
        self.echoes.retain(|(to, _)| *to != host);
        self.waiting.forget(host);
        self.circuits.forget(host);
        self.take_added(host);
        self.own.forget(host);
        self.end_direct(host);
        self.transfers.peer_lost(now, host.into());
        self.sessions.remove_peer(peer);
        self.book().remove(host);
    }
}

#[cfg(test)]
mod tests {
    use shoal_crypto::Identity;

    use super::*;

    #[test]
    fn the_oldest_of_too_many_is_forgotten_and_each_is_known_once() {
        let keys = [1, 2, 3, 4].map(|seed| Identity::from_seed([seed; 32]).public());
        let mut met = MetHosts::new(3);
        assert_eq!(keys[..3].iter().map(|key| met.put(key)).collect::<Vec<_>>(), [Ok(()); 3]);
        assert_eq!(met.put(&keys[0]), Ok(()), "now the newest");
        assert_eq!(met.put(&keys[3]), Err(DropReason::TableFull));
        assert_eq!(keys.map(|key| met.take(&key)), [true, false, true, true]);
        assert!(!met.take(&keys[0]) && met.by_key.is_empty() && met.by_age.is_empty());
        let told = keys.map(|key| met.tell(key));
        assert_eq!(told, [Ok(()), Ok(()), Ok(()), Err(DropReason::TableFull)]);
        assert!(met.fresh.iter().eq(&keys[1..]));
    }
}
