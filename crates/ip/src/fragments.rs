//! Fragments of datagrams that arrive: the first one is judged, and the others follow it.
//!
//! ```text
//! first fragment -> judged by its ports -> passes, with those that waited; or is refused
//! later fragment -> first one known? -> as that one; else it waits for it
//! ```
//!
//! Nothing is put together here: the kernel does that. Bytes that overlap are refused with all that
//! is still to come of their datagram (RFC 5722), so that no second fragment writes over the ports
//! by which the first one passed. Linux sends fragments in order; size classes, mixes and several
//! ways may change it.
//!
//! A number of IPv4 comes again after 65,536 datagrams. A datagram is therefore forgotten when all
//! of it has passed, and a first fragment begins anew what was silent for [`FRAGMENT_WAIT`].
//!
//! Invariant: datagrams and waiting bytes are bounded per host and in all. Where a host has too
//! many, its own oldest datagram makes room; where all have, the oldest of the host with most.

use core::net::Ipv6Addr;
use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};

use shoal_wire::{DropReason, Time};

use crate::Packet;

/// Time for which later fragments wait for the first one.
pub const FRAGMENT_WAIT: Duration = Duration::from_secs(1);
/// Time for which the verdict on a first fragment holds.
const KEEP: Duration = Duration::from_secs(15);
/// Datagrams of one host, and of all.
const DATAGRAMS_MAX: (usize, usize) = (512, 4_096);
/// Bytes that wait, of one host and of all. The longest datagram fits twice.
const WAITING_MAX: (usize, usize) = (128 << 10, 1 << 20);
/// Separate pieces of a datagram that are known at once; 47 full fragments make the longest one.
const PIECES_MAX: usize = 32;
/// Protocol in the key of an IPv6 datagram: its addresses and number alone name it (RFC 8200).
const IPV6: u8 = 44;

/// Fate of a fragment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passage {
    /// The fragment passes.
    Pass,
    /// The fragment passes, and after it all of [`Fragments::take_released`].
    Release,
    /// A copy of the fragment waits for the first one.
    Wait,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    host: u32,
    id: u32,
    protocol: u8,
    source: Ipv6Addr,
    destination: Ipv6Addr,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// The first fragment has not come.
    Unknown,
    Passes,
    Refused(DropReason),
}

/// The order in which datagrams of a host are forgotten: by time, then by number.
type Due = (Time, u64);

#[derive(Debug)]
struct Datagram {
    verdict: Verdict,
    due: Due,
    heard: Time,
    pieces: Pieces,
    waiting: Vec<Box<[u8]>>,
}

/// Share of the table that one host uses.
#[derive(Debug, Default)]
struct Share {
    due: BTreeMap<Due, Key>,
    /// Bytes that wait.
    bytes: usize,
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub struct Fragments {
    datagrams: BTreeMap<Key, Datagram>,
    shares: BTreeMap<u32, Share>,
    /// Hosts by how many datagrams they have.
    by_size: BTreeSet<(usize, u32)>,
    /// Bytes that wait, of all hosts.
    bytes: usize,
    /// Datagrams begun so far.
    begun: u64,
    /// The host whose datagrams were looked at last, in turn.
    looked: u32,
    released: Vec<Box<[u8]>>,
    /// Waiting fragments that were dropped.
    drops: Vec<(DropReason, u64)>,
}

impl Fragments {
    /// Takes in a fragment of `host`; `bytes` hold it. `judge` is asked about a first fragment. A
    /// whole packet passes as `judge` says.
    ///
    /// Errors: the reason to count if the fragment goes no further.
    pub fn take(
        &mut self,
        now: Time,
        host: u32,
        (packet, bytes): (&Packet, &[u8]),
        judge: impl FnOnce() -> Result<(), DropReason>,
    ) -> Result<Passage, DropReason> {
        let Some(fragment) = packet.fragment else { return judge().map(|()| Passage::Pass) };
        self.forget_old(now, host);
        let protocol = if packet.v6 { IPV6 } else { packet.protocol };
        let Packet { source, destination, .. } = *packet;
        let key = Key { host, id: fragment.id, protocol, source, destination };
        let is_first = fragment.at == 0;
        let silent = |datagram: &Datagram| now.since(datagram.heard) >= FRAGMENT_WAIT;
        if is_first && self.datagrams.get(&key).is_some_and(silent) {
            self.forget(&key);
        }
        if !self.datagrams.contains_key(&key) {
            self.begin(now, key);
        }
        let datagram = self.datagrams.get_mut(&key).expect("begun above, if it was not there");
        datagram.heard = now;
        if !datagram.pieces.add(fragment.at, fragment.end, fragment.more) {
            self.refuse(now, &key, DropReason::IpFragment);
            return Err(DropReason::IpFragment);
        }
        match datagram.verdict {
            Verdict::Refused(reason) => self.finish(&key, Err(reason)),
            Verdict::Passes => self.finish(&key, Ok(Passage::Pass)),
            Verdict::Unknown if is_first => match judge() {
                Ok(()) => {
                    self.permit(now, &key);
                    self.finish(&key, Ok(Passage::Release))
                }
                Err(reason) => {
                    self.refuse(now, &key, reason);
                    self.finish(&key, Err(reason))
                }
            },
            Verdict::Unknown => self.wait(&key, &bytes[..packet.len]),
        }
    }

    /// Takes the fragments that waited for the first one that passed last, in the order in which
    /// they came.
    pub fn take_released(&mut self) -> impl Iterator<Item = Box<[u8]>> + '_ {
        self.released.drain(..)
    }

    /// Forgets what is over, and takes the drops of fragments that waited, since the last call.
    pub fn take_drops(&mut self, now: Time) -> impl Iterator<Item = (DropReason, u64)> + '_ {
        if !self.datagrams.is_empty() {
            self.forget_old(now, self.looked);
        }
        self.drops.drain(..)
    }

    /// Datagrams that are known.
    pub fn len(&self) -> usize {
        self.datagrams.len()
    }

    /// True when no datagram is known.
    pub fn is_empty(&self) -> bool {
        self.datagrams.is_empty()
    }

    /// Forgets a datagram all of which came.
    fn finish(
        &mut self,
        key: &Key,
        passage: Result<Passage, DropReason>,
    ) -> Result<Passage, DropReason> {
        if self.datagrams.get(key).is_some_and(|datagram| datagram.pieces.is_all()) {
            self.forget(key);
        }
        passage
    }

    fn begin(&mut self, now: Time, key: Key) {
        let full = |shares: &BTreeMap<u32, Share>| {
            shares.get(&key.host).is_some_and(|share| share.due.len() >= DATAGRAMS_MAX.0)
        };
        if full(&self.shares) {
            self.forget_first(key.host);
        } else if self.datagrams.len() >= DATAGRAMS_MAX.1
            && let Some((_, most)) = self.by_size.last().copied()
        {
            self.forget_first(most);
        }
        self.begun += 1;
        let due = (now + FRAGMENT_WAIT, self.begun);
        let datagram = Datagram {
            verdict: Verdict::Unknown,
            due,
            heard: now,
            pieces: Pieces::default(),
            waiting: Vec::new(),
        };
        self.datagrams.insert(key, datagram);
        self.resize(key.host, |share| share.due.insert(due, key));
    }

    /// Has the verdict of a datagram hold, and takes the fragments that waited for it.
    fn decide(&mut self, now: Time, key: &Key, verdict: Verdict) -> Vec<Box<[u8]>> {
        let Some(datagram) = self.datagrams.get_mut(key) else { return Vec::new() };
        datagram.verdict = verdict;
        let before = datagram.due;
        let due = (now + KEEP, before.1);
        datagram.due = due;
        let waiting = core::mem::take(&mut datagram.waiting);
        let bytes: usize = waiting.iter().map(|fragment| fragment.len()).sum();
        self.bytes -= bytes;
        self.resize(key.host, |share| {
            share.due.remove(&before);
            share.due.insert(due, *key);
            share.bytes -= bytes;
        });
        waiting
    }

    fn permit(&mut self, now: Time, key: &Key) {
        let waiting = self.decide(now, key, Verdict::Passes);
        self.released.extend(waiting);
    }

    fn refuse(&mut self, now: Time, key: &Key, reason: DropReason) {
        let waiting = self.decide(now, key, Verdict::Refused(reason));
        self.count(reason, waiting.len());
    }

    /// Keeps a fragment until the first one comes, if there is room.
    fn wait(&mut self, key: &Key, bytes: &[u8]) -> Result<Passage, DropReason> {
        let (share, datagram) = (self.shares.get_mut(&key.host), self.datagrams.get_mut(key));
        let room = share.zip(datagram).filter(|(share, _)| {
            let fits = share.bytes + bytes.len() <= WAITING_MAX.0;
            fits && self.bytes + bytes.len() <= WAITING_MAX.1
        });
        let (share, datagram) = room.ok_or(DropReason::IpFragmentAlone)?;
        share.bytes += bytes.len();
        self.bytes += bytes.len();
        datagram.waiting.push(bytes.into());
        Ok(Passage::Wait)
    }

    /// Forgets datagrams of this host and of another one, each in its turn, whose time is over.
    fn forget_old(&mut self, now: Time, host: u32) {
        let next = self.looked.wrapping_add(1);
        let next = self.shares.range(next..).next().or(self.shares.iter().next());
        self.looked = next.map_or(0, |(host, _)| *host);
        for host in [host, self.looked] {
            while let Some(share) = self.shares.get(&host)
                && share.due.first_key_value().is_some_and(|((at, _), _)| *at <= now)
            {
                self.forget_first(host);
            }
        }
    }

    /// Forgets the datagram of a host whose time is over first.
    fn forget_first(&mut self, host: u32) {
        let first = self.shares.get(&host).and_then(|share| share.due.first_key_value());
        if let Some((_, key)) = first {
            let key = *key;
            self.forget(&key);
        }
    }

    fn forget(&mut self, key: &Key) {
        let Some(datagram) = self.datagrams.remove(key) else { return };
        let bytes: usize = datagram.waiting.iter().map(|fragment| fragment.len()).sum();
        self.bytes -= bytes;
        self.resize(key.host, |share| {
            share.due.remove(&datagram.due);
            share.bytes -= bytes;
        });
        self.count(DropReason::IpFragmentAlone, datagram.waiting.len());
    }

    fn resize<T>(&mut self, host: u32, change: impl FnOnce(&mut Share) -> T) {
        let share = self.shares.entry(host).or_default();
        self.by_size.remove(&(share.due.len(), host));
        change(share);
        if share.due.is_empty() {
            self.shares.remove(&host);
        } else {
            self.by_size.insert((share.due.len(), host));
        }
    }

    fn count(&mut self, reason: DropReason, more: usize) {
        if more > 0 {
            self.drops.push((reason, more as u64));
        }
    }
}

/// The bytes of a datagram that came: pieces in order that neither touch nor overlap.
#[derive(Debug)]
struct Pieces {
    pieces: [(u16, u16); PIECES_MAX],
    count: usize,
    /// Length of the datagram, once the last fragment came.
    len: Option<u16>,
}

impl Default for Pieces {
    fn default() -> Pieces {
        Pieces { pieces: [(0, 0); PIECES_MAX], count: 0, len: None }
    }
}

impl Pieces {
    /// Adds the bytes from `at` to `end`; false if some of them came before, if they contradict the
    /// datagram's length, or if there are too many pieces.
    fn add(&mut self, at: u16, end: u16, more: bool) -> bool {
        let last = self.pieces[..self.count].last().map_or(0, |piece| piece.1);
        let fits = match (more, self.len) {
            (true, None) => true,
            (true, Some(len)) => end < len,
            (false, None) => end > last,
            (false, Some(_)) => false,
        };
        let i = self.pieces[..self.count].partition_point(|piece| piece.1 <= at);
        let next = self.pieces[..self.count].get(i).copied();
        if !fits || next.is_some_and(|piece| piece.0 < end) {
            return false;
        }
        let joins_before = i > 0 && self.pieces[i - 1].1 == at;
        let joins_next = next.is_some_and(|piece| piece.0 == end);
        match (joins_before, joins_next) {
            (true, true) => {
                self.pieces[i - 1].1 = self.pieces[i].1;
                self.pieces.copy_within(i + 1..self.count, i);
                self.count -= 1;
            }
            (true, false) => self.pieces[i - 1].1 = end,
            (false, true) => self.pieces[i].0 = at,
            (false, false) if self.count == PIECES_MAX => return false,
            (false, false) => {
                self.pieces.copy_within(i..self.count, i + 1);
                self.pieces[i] = (at, end);
                self.count += 1;
            }
        }
        if !more {
            self.len = Some(end);
        }
        true
    }

    /// True if every byte of the datagram came.
    fn is_all(&self) -> bool {
        self.len.is_some_and(|len| self.pieces[..self.count] == [(0, len)])
    }
}

#[cfg(test)]
mod tests;
