//! Neighbours in an exchange: links that are up, due times, and the rate of announcements.
//!
//! [`Exchange`](crate::Exchange), [`Chains`](crate::Chains) and [`Handing`](crate::Handing)
//! announce what they have when a link comes up and when it changes. They repeat it until the
//! neighbour has it too. Further state of a neighbour is theirs.

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};

use shoal_wire::{LinkId, Time};

/// First interval between two announcements to a neighbour that lacks the announced state.
const SAY_FIRST: Duration = Duration::from_millis(250);
/// Longest interval, for a neighbour that refuses it, has another list or has no authority.
const SAY_MAX: Duration = Duration::from_secs(60);
/// Minimum time between two announcements: close changes are announced together, and repeated
/// requests get no more answers.
const SAY_LEAST: Duration = Duration::from_millis(100);

/// Schedule of announcements to one neighbour.
#[derive(Debug)]
pub(crate) struct AnnouncementTimer {
    say_at: Option<Time>,
    said: Option<Time>,
    gap: Duration,
}

impl AnnouncementTimer {
    /// The first announcement is due now.
    pub(crate) fn new(now: Time) -> AnnouncementTimer {
        AnnouncementTimer { say_at: Some(now), said: None, gap: SAY_FIRST }
    }

    /// Time of the next announcement.
    pub(crate) fn due(&self) -> Option<Time> {
        self.say_at
    }

    /// True if an announcement is due at `now`.
    pub(crate) fn is_due(&self, now: Time) -> bool {
        self.say_at.is_some_and(|at| at <= now)
    }

    /// True if the neighbour got an announcement.
    pub(crate) fn have_begun(&self) -> bool {
        self.said.is_some()
    }

    /// Restarts the schedule after a change: the next announcement is due at `at`, if at all, and
    /// intervals grow from the first one again.
    pub(crate) fn begin(&mut self, at: Option<Time>) {
        (self.say_at, self.gap) = (at, SAY_FIRST);
    }

    /// The earliest time for another announcement.
    pub(crate) fn earliest(&self, now: Time) -> Time {
        self.said.map_or(now, |said| said + SAY_LEAST).max(now)
    }

    /// Schedules an answer to the neighbour's request.
    pub(crate) fn answer(&mut self, now: Time) {
        let earliest = self.earliest(now);
        self.say_at = Some(self.say_at.map_or(earliest, |at| at.min(earliest)));
    }

    /// Ends the schedule.
    pub(crate) fn end(&mut self) {
        self.say_at = None;
    }

    /// Records an announcement. If the neighbour may need it `again`, another one follows after an
    /// interval.
    pub(crate) fn say(&mut self, now: Time, again: bool) {
        self.said = Some(now);
        self.say_at = again.then(|| now + self.gap);
        self.gap = (self.gap * 2).min(SAY_MAX);
    }
}

/// State of one neighbour.
pub(crate) trait ExchangePeer {
    /// Time at which a message to the neighbour is due.
    fn due(&self) -> Option<Time>;
}

/// The neighbours whose links are up.
#[derive(Debug)]
pub(crate) struct PeerSchedule<P> {
    /// State of each link, and its time in `due`.
    up: BTreeMap<LinkId, (P, Option<Time>)>,
    due: BTreeSet<(Time, LinkId)>,
}

impl<P> Default for PeerSchedule<P> {
    fn default() -> PeerSchedule<P> {
        PeerSchedule { up: BTreeMap::new(), due: BTreeSet::new() }
    }
}

impl<P: ExchangePeer> PeerSchedule<P> {
    /// Adds a link. A former link with this id must have been removed.
    pub(crate) fn insert(&mut self, link: LinkId, peer: P) {
        self.up.insert(link, (peer, None));
        self.change(link, |_| {});
    }

    /// Removes a link.
    pub(crate) fn remove(&mut self, link: LinkId) -> Option<P> {
        let (peer, alarm) = self.up.remove(&link)?;
        alarm.map(|at| self.due.remove(&(at, link)));
        Some(peer)
    }

    /// Number of links.
    pub(crate) fn len(&self) -> usize {
        self.up.len()
    }

    /// True if the link is up.
    pub(crate) fn is_up(&self, link: LinkId) -> bool {
        self.up.contains_key(&link)
    }

    /// The neighbour of a link.
    pub(crate) fn get(&self, link: LinkId) -> Option<&P> {
        self.up.get(&link).map(|(peer, _)| peer)
    }

    /// All links and neighbours.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (LinkId, &P)> {
        self.up.iter().map(|(&link, (peer, _))| (link, peer))
    }

    /// Ids of all links, for changes to each.
    pub(crate) fn links(&self) -> Vec<LinkId> {
        self.up.keys().copied().collect()
    }

    /// Changes the state of a neighbour, and updates its due time.
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

    /// The earliest due time.
    pub(crate) fn first_due(&self) -> Option<Time> {
        self.due.first().map(|&(at, _)| at)
    }

    /// The first link due at `now`. If it has nothing to send, the caller must move its due time
    /// past `now`.
    pub(crate) fn next_due(&self, now: Time) -> Option<LinkId> {
        self.due.first().filter(|(at, _)| *at <= now).map(|&(_, link)| link)
    }
}
