//! Hosts that come and go, and which of them are hidden when they come again.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use shoal_crypto::{Ciphers, PublicKey};
use shoal_session::Via;
use shoal_wire::{Address, DropReason, Time};

use crate::book::{Book, HostId};
use crate::edge::Edge;

/// Another host, as the hosts file names it.
#[derive(Clone, Debug)]
pub struct HostConfig {
    /// Its public key.
    pub key: PublicKey,
    /// Its address.
    pub address: Address,
}

/// Hosts that were met over circuits, now or before this node started, and are not in the table.
/// Without this memory, who can keep lists from a node could have it forget all hosts, and speak in
/// the clear with those of the next list.
///
/// They are known by the key that proves who a handshake is with, as sessions know peers.
#[derive(Debug)]
pub(crate) struct Met {
    /// How many there may be: as many as the table of hosts holds, so that it may be emptied.
    max: usize,
    /// When each was removed, counted in removals, and the other way round.
    by_key: BTreeMap<[u8; 32], u64>,
    by_age: BTreeMap<u64, [u8; 32]>,
    removals: u64,
    /// Hosts that were met and are yet to be written down.
    fresh: VecDeque<PublicKey>,
}

impl Met {
    pub(crate) fn new(max: usize) -> Met {
        let (by_key, by_age, fresh) = (BTreeMap::new(), BTreeMap::new(), VecDeque::new());
        Met { max, by_key, by_age, removals: 0, fresh }
    }

    /// Has a host that was met written down.
    ///
    /// Errors: `table_full`; the one that waited longest is not written down.
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
    /// Errors: `table_full`; the one that was removed first is forgotten.
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

    /// Whether a host that comes was met before; it is forgotten here.
    fn take(&mut self, key: &PublicKey) -> bool {
        let removal = self.by_key.remove(&key.dh);
        removal.is_some_and(|removal| self.by_age.remove(&removal).is_some())
    }
}

impl<C: Ciphers> Edge<C> {
    /// Adds a host, or moves it to another address if its key is known. One with which there was a
    /// session over a circuit is hidden at once, however often it was removed.
    ///
    /// Errors: `table_full`, and nothing has changed.
    pub fn add_host(&mut self, host: &HostConfig) -> Result<HostId, DropReason> {
        let peer = match self.sessions.peer_by_key(&host.key) {
            Some(peer) => peer,
            None => self.sessions.add_peer(host.key).map_err(|_| DropReason::TableFull)?,
        };
        let id = self.book().put(peer, host.address);
        if self.met.take(&host.key) {
            self.hide_again(id);
        }
        if !self.is_hidden(id) {
            self.sessions.set_endpoint(peer, Some(Via::Routed(host.address)));
        }
        Ok(id)
    }

    /// Remembers hosts that were met over circuits before this node started, the one that was met
    /// first at the front: they are hidden as soon as they are added. To be called before that. A
    /// drop is counted as `table_full` for each that is one too many.
    pub fn remember_met<'a>(&mut self, keys: impl IntoIterator<Item = &'a PublicKey>) {
        for key in keys {
            if let Err(reason) = self.met.put(key) {
                self.count(reason);
            }
        }
    }

    /// The next host with which there was, for the first time, a session over a circuit: to be
    /// written down, and given to [`Edge::remember_met`] after a restart.
    pub fn poll_met(&mut self) -> Option<PublicKey> {
        self.met.fresh.pop_front()
    }

    /// The book of hosts, to be changed. Other workers get the new one, behind the orders about
    /// sessions that are queued already.
    pub(crate) fn book(&mut self) -> &mut Book {
        self.take_orders();
        self.book_stale = true;
        Arc::make_mut(&mut self.own.book)
    }

    /// Forgets a host: its session, and its transfers fail. What stays is that it was met over a
    /// circuit; a drop is counted as `table_full` where another is forgotten for that.
    pub fn remove_host(&mut self, now: Time, host: HostId) {
        let Some(peer) = self.own.book.peer(host) else { return };
        let met = self.sessions.peer_key(peer).filter(|_| self.circuits.is_met(host));
        if let Some(Err(reason)) = met.copied().map(|key| self.met.put(&key)) {
            self.count(reason);
        }
        self.heard.remove(host);
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
        let mut met = Met::new(3);
        assert_eq!(keys[..3].iter().map(|key| met.put(key)).collect::<Vec<_>>(), [Ok(()); 3]);
        assert_eq!(met.put(&keys[0]), Ok(()), "the newest now");
        assert_eq!(met.put(&keys[3]), Err(DropReason::TableFull));
        assert_eq!(keys.map(|key| met.take(&key)), [true, false, true, true]);
        assert!(!met.take(&keys[0]) && met.by_key.is_empty() && met.by_age.is_empty());
        let told = keys.map(|key| met.tell(key));
        assert_eq!(told, [Ok(()), Ok(()), Ok(()), Err(DropReason::TableFull)]);
        assert!(met.fresh.iter().eq(&keys[1..]));
    }
}
