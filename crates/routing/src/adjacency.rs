//! One link to a neighbour router: the instances of both ends, what was advertised, what waits.

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use shoal_wire::{Instances, Time};

use crate::budget::Budgets;
use crate::estimate::Estimate;

/// Updates sent and not yet acknowledged, at most: a full dump of 1,000 routes takes 67.
pub const WINDOW: usize = 16;
/// Least time between two new instances of the far end that are taken: each costs us a full dump.
pub(crate) const INSTANCE_GAP: Duration = Duration::from_millis(50);

/// What was advertised last to the neighbour about one destination.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Advertised {
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
    /// Our instance of this link; never 0.
    pub(crate) instance: u32,
    /// The far end's instance; 0 until heard.
    pub(crate) peer: u32,
    /// Whether the far end has heard our instance.
    pub(crate) heard: bool,
    /// When the far end's instance last changed.
    pub(crate) peer_since: Time,
    /// Offers taken from this link.
    pub(crate) routes: usize,
    /// Number of the newest update taken in.
    pub(crate) newest_update: u32,
    /// Whether a full dump was asked for, or granted, since the query cycle began.
    pub(crate) dump_asked: bool,
    pub(crate) dump_granted: bool,
    /// Query cycles until all routes are asked for again; 0 for never.
    pub(crate) ask_again: u8,
    pub(crate) advertised: BTreeMap<u32, Advertised>,
    /// Destinations whose state here may differ from what was advertised.
    pub(crate) changed: BTreeSet<u32>,
    pub(crate) unacked: VecDeque<Unacked>,
    /// Number of the last update sent.
    pub(crate) number: u32,
    /// Losses in a row: doubles the wait for acknowledgements.
    pub(crate) losses: u32,
    /// Smoothed time from an update to its acknowledgement.
    rtt: Duration,
    /// Time before which no update leaves.
    pub(crate) flush_after: Time,
    /// Allowances of the far end. Kept while the link is down.
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
            peer_since: now,
            routes: 0,
            newest_update: 0,
            dump_asked: false,
            dump_granted: false,
            ask_again: 0,
            advertised: BTreeMap::new(),
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

    /// True when a message with these instances belongs to the present instances of both ends.
    pub(crate) fn is_current(&self, of: Instances) -> bool {
        self.peer != 0 && of.from == self.peer && of.to == self.instance
    }

    /// Whether routes may be sent: both ends know each other's instance.
    pub(crate) fn is_ready(&self) -> bool {
        self.heard && self.peer != 0
    }

    /// Starts over with a new instance of the far end, which knows nothing advertised before.
    pub(crate) fn begin_instance(&mut self, peer: u32, now: Time) {
        self.peer = peer;
        self.heard = false;
        self.peer_since = now;
        self.newest_update = 0;
        self.advertised.clear();
        self.changed.clear();
        self.unacked.clear();
        self.losses = 0;
    }

    /// Forgets which advertisements arrived, not that they were sent: the far end may still hold
    /// such a route, and must then be sent its retraction.
    pub(crate) fn doubt_all(&mut self) {
        for (router, advertised) in &mut self.advertised {
            advertised.last = None;
            advertised.proved = 0;
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
