//! One link to a neighbour router: its life at both ends, what was told on it, what waits.

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use shoal_wire::{Instances, Time};

use crate::budget::Budgets;
use crate::estimate::Estimate;

/// Updates sent and not yet acknowledged, at most: a full dump of 1,000 routes takes 67.
pub const WINDOW: usize = 16;
/// Lives of the far end are believed no faster than this: each costs us a full dump.
pub(crate) const LIFE_GAP: Duration = Duration::from_millis(50);

/// What the neighbour was told last about one destination.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Told {
    /// Sequence number and metric; `None` if it is not known whether it arrived.
    pub(crate) last: Option<(u64, u32)>,
    /// Sequence number whose proof the neighbour acknowledged and still keeps; 0 for none.
    pub(crate) proved: u64,
}

/// An update on its way.
#[derive(Debug)]
pub(crate) struct Unacked {
    pub(crate) number: u32,
    pub(crate) at: Time,
    /// Destinations in it, each with the sequence number whose proof went along, or 0.
    pub(crate) entries: Vec<(u32, u64)>,
}

/// A link that is up.
#[derive(Debug)]
pub(crate) struct Adjacency {
    pub(crate) neighbour: u32,
    pub(crate) estimate: Estimate,
    /// Our number for this life of the link; never 0.
    pub(crate) instance: u32,
    /// The far end's; 0 until heard.
    pub(crate) peer: u32,
    /// Whether the far end has heard our number.
    pub(crate) heard: bool,
    /// When the far end's number last changed.
    pub(crate) life_at: Time,
    /// Offers taken from this link.
    pub(crate) routes: usize,
    /// Number of the newest update taken in.
    pub(crate) newest_update: u32,
    /// Whether a full dump was asked for since the cycle began; also one granted per cycle.
    pub(crate) dump_asked: bool,
    pub(crate) dump_granted: bool,
    /// Ends of query cycles until all routes are asked for again; 0 for never.
    pub(crate) ask_again: u8,
    pub(crate) told: BTreeMap<u32, Told>,
    /// Destinations whose state here may differ from what was told.
    pub(crate) changed: BTreeSet<u32>,
    pub(crate) unacked: VecDeque<Unacked>,
    /// Number of the last update sent.
    pub(crate) number: u32,
    /// Losses in a row: doubles the wait for acknowledgements.
    pub(crate) losses: u32,
    /// Smoothed time from an update to its acknowledgement.
    rtt: Duration,
    /// No update leaves before.
    pub(crate) flush_after: Time,
    /// What the far end may still cause. Kept while the link is down.
    pub(crate) budgets: Budgets,
}

impl Adjacency {
    pub(crate) fn new(
        neighbour: u32,
        instance: u32,
        default_cost: u32,
        budgets: Budgets,
        now: Time,
    ) -> Adjacency {
        Adjacency {
            neighbour,
            estimate: Estimate::new(default_cost),
            instance,
            peer: 0,
            heard: false,
            life_at: now,
            routes: 0,
            newest_update: 0,
            dump_asked: false,
            dump_granted: false,
            ask_again: 0,
            told: BTreeMap::new(),
            changed: BTreeSet::new(),
            unacked: VecDeque::new(),
            number: 0,
            losses: 0,
            rtt: Duration::ZERO,
            flush_after: Time::ZERO,
            budgets,
        }
    }

    pub(crate) fn instances(&self) -> Instances {
        Instances { from: self.instance, to: self.peer }
    }

    /// True when the sender of `told` means the present life of the link at both ends.
    pub(crate) fn is_current(&self, told: Instances) -> bool {
        self.peer != 0 && told.from == self.peer && told.to == self.instance
    }

    /// Whether routes may be sent: both ends know each other's number.
    pub(crate) fn is_ready(&self) -> bool {
        self.heard && self.peer != 0
    }

    /// Starts over with a far end that has a new number: nothing it was told counts any more.
    pub(crate) fn begin_life(&mut self, peer: u32, now: Time) {
        self.peer = peer;
        self.heard = false;
        self.life_at = now;
        self.newest_update = 0;
        self.told.clear();
        self.changed.clear();
        self.unacked.clear();
        self.losses = 0;
    }

    /// Makes everything count as in doubt. What was told is remembered, since the far end may
    /// still hold it and must then hear of its end.
    pub(crate) fn doubt_all(&mut self) {
        for (router, told) in &mut self.told {
            told.last = None;
            told.proved = 0;
            self.changed.insert(*router);
        }
        self.unacked.clear();
        self.losses = 0;
    }

    /// Notes that an update sent at `sent_at` was acknowledged at `now`.
    pub(crate) fn acknowledged(&mut self, sent_at: Time, now: Time) {
        let sample = now.since(sent_at);
        self.rtt = if self.rtt.is_zero() { sample } else { (self.rtt * 7 + sample) / 8 };
        self.losses = 0;
    }

    /// How long to wait for an acknowledgement.
    pub(crate) fn patience(&self, base: Duration) -> Duration {
        base.max(self.rtt * 2) * (1 << self.losses.min(4))
    }
}
