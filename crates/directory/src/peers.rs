//! Neighbours of a machine that passes something on: which links are up, when each is due, and how
//! the words to it are spaced.
//!
//! [`Exchange`](crate::Exchange), [`Chains`](crate::Chains) and [`Handing`](crate::Handing) say
//! what they have when a link comes up and when it changes, and again until the neighbour has it
//! too. What each knows of a neighbour beside that is its own.

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};

use shoal_wire::{LinkId, Time};

/// First gap between two words to a neighbour that does not have what is passed on.
const SAY_FIRST: Duration = Duration::from_millis(250);
/// Longest such gap, for a neighbour that refuses it, or has another list or no authority.
const SAY_MAX: Duration = Duration::from_secs(60);
/// Least time between two words: changes that come one by one are told together, and who asks
/// again and again is not answered more often.
const SAY_LEAST: Duration = Duration::from_millis(100);

/// When a node tells a neighbour what it has.
#[derive(Debug)]
pub(crate) struct Words {
    say_at: Option<Time>,
    said: Option<Time>,
    gap: Duration,
}

impl Words {
    /// The first is due now.
    pub(crate) fn new(now: Time) -> Words {
        Words { say_at: Some(now), said: None, gap: SAY_FIRST }
    }

    /// When the next one is due.
    pub(crate) fn due(&self) -> Option<Time> {
        self.say_at
    }

    /// Whether one is due at this time.
    pub(crate) fn is_due(&self, now: Time) -> bool {
        self.say_at.is_some_and(|at| at <= now)
    }

    /// Whether the neighbour was told anything yet.
    pub(crate) fn have_begun(&self) -> bool {
        self.said.is_some()
    }

    /// Something has changed: the next one is due then, if at all, and gaps grow from the first on.
    pub(crate) fn begin(&mut self, at: Option<Time>) {
        (self.say_at, self.gap) = (at, SAY_FIRST);
    }

    /// The earliest time for another one.
    pub(crate) fn earliest(&self, now: Time) -> Time {
        self.said.map_or(now, |said| said + SAY_LEAST).max(now)
    }

    /// The neighbour asks.
    pub(crate) fn answer(&mut self, now: Time) {
        let earliest = self.earliest(now);
        self.say_at = Some(self.say_at.map_or(earliest, |at| at.min(earliest)));
    }

    /// There is nothing more to tell.
    pub(crate) fn end(&mut self) {
        self.say_at = None;
    }

    /// One is said now. Another one follows after a gap if the neighbour may need it `again`.
    pub(crate) fn say(&mut self, now: Time, again: bool) {
        self.said = Some(now);
        self.say_at = again.then(|| now + self.gap);
        self.gap = (self.gap * 2).min(SAY_MAX);
    }
}

/// What a machine knows of one neighbour.
pub(crate) trait Peer {
    /// When it has something to be sent.
    fn due(&self) -> Option<Time>;
}

/// The neighbours whose links are up.
#[derive(Debug)]
pub(crate) struct Peers<P> {
    /// Each with the time for which it stands in `due`.
    up: BTreeMap<LinkId, (P, Option<Time>)>,
    due: BTreeSet<(Time, LinkId)>,
}

impl<P> Default for Peers<P> {
    fn default() -> Peers<P> {
        Peers { up: BTreeMap::new(), due: BTreeSet::new() }
    }
}

impl<P: Peer> Peers<P> {
    /// The link is up; the one that had its number, if any, was removed before.
    pub(crate) fn insert(&mut self, link: LinkId, peer: P) {
        self.up.insert(link, (peer, None));
        self.change(link, |_| {});
    }

    /// The link is down.
    pub(crate) fn remove(&mut self, link: LinkId) -> Option<P> {
        let (peer, alarm) = self.up.remove(&link)?;
        alarm.map(|at| self.due.remove(&(at, link)));
        Some(peer)
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.up.len()
    }

    /// Whether a link is up.
    pub(crate) fn is_up(&self, link: LinkId) -> bool {
        self.up.contains_key(&link)
    }

    /// The neighbour of a link.
    pub(crate) fn get(&self, link: LinkId) -> Option<&P> {
        self.up.get(&link).map(|(peer, _)| peer)
    }

    /// All of them.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (LinkId, &P)> {
        self.up.iter().map(|(&link, (peer, _))| (link, peer))
    }

    /// The links that are up, for changes to each.
    pub(crate) fn links(&self) -> Vec<LinkId> {
        self.up.keys().copied().collect()
    }

    /// Changes what is known of a neighbour, and when it is due.
    pub(crate) fn change<T>(
        &mut self,
        link: LinkId,
        change: impl FnOnce(&mut P) -> T,
    ) -> Option<T> {
        let (peer, alarm) = self.up.get_mut(&link)?;
        let out = change(peer);
        let due = peer.due();
        let old = core::mem::replace(alarm, due);
        if old != due {
            old.map(|at| self.due.remove(&(at, link)));
            due.map(|at| self.due.insert((at, link)));
        }
        Some(out)
    }

    /// When the first is due.
    pub(crate) fn first_due(&self) -> Option<Time> {
        self.due.first().map(|&(at, _)| at)
    }

    /// The first that is due at this time. One that has nothing to be sent after all must be moved
    /// behind it.
    pub(crate) fn next_due(&self, now: Time) -> Option<LinkId> {
        self.due.first().filter(|(at, _)| *at <= now).map(|&(_, link)| link)
    }
}
