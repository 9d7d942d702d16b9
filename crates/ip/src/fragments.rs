//! Fragments of received datagrams: the firewall judges the first one, and the others follow its
//! verdict.
//!
//! ```text
//! first fragment -> judged by its ports -> passes, with those that waited; or is refused
//! later fragment -> first one known? -> as that one; else it waits for it
//! ```
//!
//! Datagrams are not reassembled; the kernel does that. A fragment that overlaps another one is
//! refused, with all further fragments of its datagram (RFC 5722). Otherwise a later fragment could
//! overwrite the ports by which the first one passed. Linux sends fragments in order; size classes,
//! mixes and several paths may change the order.
//!
//! IPv4 identifications repeat after 65,536 datagrams. A datagram is therefore forgotten when all
//! of it has passed. A first fragment also starts a new datagram if the old one was silent for
//! [`FRAGMENT_WAIT`].
//!
//! Invariant: datagrams and waiting bytes are bounded, per host and in total. A host with too many
//! datagrams loses its oldest one. When the table is full, the host with the most datagrams loses
//! its oldest one.

use core::net::Ipv6Addr;
use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};

use shoal_wire::{DropReason, Time};

use crate::Packet;

/// Time for which later fragments wait for the first one.
pub const FRAGMENT_WAIT: Duration = Duration::from_secs(1);
/// Lifetime of the verdict on a first fragment.
const KEEP: Duration = Duration::from_secs(15);
/// Maximum number of datagrams, per host and in total.
const DATAGRAMS_MAX: (usize, usize) = (512, 4_096);
/// Maximum number of waiting bytes, per host and in total. The longest datagram fits twice.
const WAITING_MAX: (usize, usize) = (128 << 10, 1 << 20);
/// Maximum number of separate pieces per datagram; the longest datagram has 47 full fragments.
const PIECES_MAX: usize = 32;
/// Protocol in the key of an IPv6 datagram, which is identified by addresses and identification
/// only (RFC 8200).
const IPV6: u8 = 44;

/// Fate of a fragment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FragmentAction {
    /// The fragment passes.
    Pass,
    /// The fragment passes, followed by all of [`Fragments::take_released`].
    Release,
    /// A copy of the fragment waits for the first one.
    Wait,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct DatagramKey {
    host: u32,
    id: u32,
    protocol: u8,
    source: Ipv6Addr,
    destination: Ipv6Addr,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FragmentVerdict {
    /// The first fragment is missing.
    Unknown,
    Passes,
    Refused(DropReason),
}

/// Expiry and sequence number: the order in which a host's datagrams are forgotten.
type Due = (Time, u64);

#[derive(Debug)]
struct Datagram {
    verdict: FragmentVerdict,
    due: Due,
    heard: Time,
    pieces: ReceivedRanges,
    waiting: Vec<Box<[u8]>>,
}

/// A host's share of the table.
#[derive(Debug, Default)]
struct HostFragments {
    due: BTreeMap<Due, DatagramKey>,
    /// Waiting bytes.
    bytes: usize,
}

#[derive(Debug, Default)]
pub struct Fragments {
    datagrams: BTreeMap<DatagramKey, Datagram>,
    shares: BTreeMap<u32, HostFragments>,
    /// Number of datagrams and host, sorted.
    by_size: BTreeSet<(usize, u32)>,
    /// Waiting bytes of all hosts.
    bytes: usize,
    /// Number of datagrams so far.
    begun: u64,
    /// The other host whose datagrams were checked last, in turn.
    looked: u32,
    released: Vec<Box<[u8]>>,
    /// Waiting fragments that were dropped.
    drops: Vec<(DropReason, u64)>,
}

impl Fragments {
    /// Handles a fragment of `host` in `bytes`. `judge` is called for a first fragment, and for a
    /// whole packet.
    ///
    /// Errors: the reason why the fragment is dropped.
    pub fn take(
        &mut self,
        now: Time,
        host: u32,
        (packet, bytes): (&Packet, &[u8]),
        judge: impl FnOnce() -> Result<(), DropReason>,
    ) -> Result<FragmentAction, DropReason> {
        let Some(fragment) = packet.fragment else { return judge().map(|()| FragmentAction::Pass) };
        self.forget_old(now, host);
        let protocol = if packet.v6 { IPV6 } else { packet.protocol };
        let Packet { source, destination, .. } = *packet;
        let key = DatagramKey { host, id: fragment.id, protocol, source, destination };
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
            FragmentVerdict::Refused(reason) => self.finish(&key, Err(reason)),
            FragmentVerdict::Passes => self.finish(&key, Ok(FragmentAction::Pass)),
            FragmentVerdict::Unknown if is_first => match judge() {
                Ok(()) => {
                    self.permit(now, &key);
                    self.finish(&key, Ok(FragmentAction::Release))
                }
                Err(reason) => {
                    self.refuse(now, &key, reason);
                    self.finish(&key, Err(reason))
                }
            },
            FragmentVerdict::Unknown => self.wait(&key, &bytes[..packet.len]),
        }
    }

    /// Returns the fragments that waited for the first one that passed last, in order of arrival.
    pub fn take_released(&mut self) -> impl Iterator<Item = Box<[u8]>> + '_ {
        self.released.drain(..)
    }

    /// Removes expired datagrams, and returns the drops of waiting fragments since the last call.
    pub fn take_drops(&mut self, now: Time) -> impl Iterator<Item = (DropReason, u64)> + '_ {
        if !self.datagrams.is_empty() {
            self.forget_old(now, self.looked);
        }
        self.drops.drain(..)
    }

    /// Number of known datagrams.
    pub fn len(&self) -> usize {
        self.datagrams.len()
    }

    pub fn is_empty(&self) -> bool {
        self.datagrams.is_empty()
    }

    /// Forgets a datagram if all of it has arrived.
    fn finish(
        &mut self,
        key: &DatagramKey,
        passage: Result<FragmentAction, DropReason>,
    ) -> Result<FragmentAction, DropReason> {
        if self.datagrams.get(key).is_some_and(|datagram| datagram.pieces.is_all()) {
            self.forget(key);
        }
        passage
    }

    fn begin(&mut self, now: Time, key: DatagramKey) {
        let full = |shares: &BTreeMap<u32, HostFragments>| {
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
            verdict: FragmentVerdict::Unknown,
            due,
            heard: now,
            pieces: ReceivedRanges::default(),
            waiting: Vec::new(),
        };
        self.datagrams.insert(key, datagram);
        self.resize(key.host, |share| share.due.insert(due, key));
    }

    /// Sets the verdict on a datagram, and returns the fragments that waited for it.
    fn decide(&mut self, now: Time, key: &DatagramKey, verdict: FragmentVerdict) -> Vec<Box<[u8]>> {
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

    fn permit(&mut self, now: Time, key: &DatagramKey) {
        let waiting = self.decide(now, key, FragmentVerdict::Passes);
        self.released.extend(waiting);
    }

    fn refuse(&mut self, now: Time, key: &DatagramKey, reason: DropReason) {
        let waiting = self.decide(now, key, FragmentVerdict::Refused(reason));
        self.count(reason, waiting.len());
    }

    /// Stores a fragment until the first one arrives, if there is room.
    fn wait(&mut self, key: &DatagramKey, bytes: &[u8]) -> Result<FragmentAction, DropReason> {
        let (share, datagram) = (self.shares.get_mut(&key.host), self.datagrams.get_mut(key));
        let room = share.zip(datagram).filter(|(share, _)| {
            let fits = share.bytes + bytes.len() <= WAITING_MAX.0;
            fits && self.bytes + bytes.len() <= WAITING_MAX.1
        });
        let (share, datagram) = room.ok_or(DropReason::IpFragmentAlone)?;
        share.bytes += bytes.len();
        self.bytes += bytes.len();
        datagram.waiting.push(bytes.into());
        Ok(FragmentAction::Wait)
    }

    /// Removes expired datagrams of this host and of another one, in turn.
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

    /// Removes a host's datagram with the earliest expiry.
    fn forget_first(&mut self, host: u32) {
        let first = self.shares.get(&host).and_then(|share| share.due.first_key_value());
        if let Some((_, key)) = first {
            let key = *key;
            self.forget(&key);
        }
    }

    fn forget(&mut self, key: &DatagramKey) {
        let Some(datagram) = self.datagrams.remove(key) else { return };
        let bytes: usize = datagram.waiting.iter().map(|fragment| fragment.len()).sum();
        self.bytes -= bytes;
        self.resize(key.host, |share| {
            share.due.remove(&datagram.due);
            share.bytes -= bytes;
        });
        self.count(DropReason::IpFragmentAlone, datagram.waiting.len());
    }

    fn resize<T>(&mut self, host: u32, change: impl FnOnce(&mut HostFragments) -> T) {
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
        match self.drops.iter_mut().find(|(known, _)| *known == reason) {
            Some((_, n)) => *n += more as u64,
            None if more > 0 => self.drops.push((reason, more as u64)),
            None => {}
        }
    }
}

/// The received bytes of a datagram: pieces in order that neither touch nor overlap.
#[derive(Debug)]
struct ReceivedRanges {
    pieces: [(u16, u16); PIECES_MAX],
    count: usize,
    /// Length of the datagram, known after the last fragment.
    len: Option<u16>,
}

impl Default for ReceivedRanges {
    fn default() -> ReceivedRanges {
        ReceivedRanges { pieces: [(0, 0); PIECES_MAX], count: 0, len: None }
    }
}

impl ReceivedRanges {
    /// Adds the bytes from `at` to `end`. Returns false if some of them were received before, if
    /// they contradict the datagram's length, or if there are too many pieces.
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

    /// True if every byte of the datagram was received.
    fn is_all(&self) -> bool {
        self.len.is_some_and(|len| self.pieces[..self.count] == [(0, len)])
    }
}

#[cfg(test)]
mod tests;
