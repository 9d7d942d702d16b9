//! State of the link to one neighbouring router: instances of both ends, advertised routes,
//! unacknowledged updates.

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use shoal_wire::{Instances, Time};

use crate::budget::Budgets;
use crate::estimate::Estimate;

/// Limit of unacknowledged updates per link. A full dump of 1,000 routes takes 67 updates.
pub const WINDOW: usize = 16;
/// Least time between two accepted new instances of the far end: each costs us a full dump.
pub(crate) const INSTANCE_GAP: Duration = Duration::from_millis(50);

/// The last advertisement to the neighbour for one destination.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Advertised {
    /// Sequence number and metric; `None` if its arrival is unknown.
    pub(crate) last: Option<(u64, u32)>,
    /// Sequence number of the proof that the neighbour acknowledged and still keeps; 0 for none.
    pub(crate) proved: u64,
}

/// An update that is not acknowledged yet.
#[derive(Debug)]
pub(crate) struct Unacked {
    pub(crate) number: u32,
    pub(crate) at: Time,
    /// Destinations in the update, each with the sequence number of the proof sent along, or 0.
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
    /// True if the far end has heard our instance.
    pub(crate) heard: bool,
    pub(crate) peer_since: Time,
    /// Number of offers accepted from this link.
    pub(crate) routes: usize,
    /// Number of the newest update accepted from the far end.
    pub(crate) newest_update: u32,
    /// True if we asked for a full dump in this query cycle.
    pub(crate) dump_asked: bool,
    pub(crate) dump_granted: bool,
    /// Query cycles until the request for all routes is repeated; 0 for never.
    pub(crate) ask_again: u8,
    pub(crate) advertised: BTreeMap<u32, Advertised>,
    /// Destinations that may have to be advertised again.
    pub(crate) changed: BTreeSet<u32>,
    pub(crate) unacked: VecDeque<Unacked>,
    /// Number of the last update sent.
    pub(crate) number: u32,
    /// Consecutive losses. Each of the first four doubles the wait for an acknowledgement.
    pub(crate) losses: u32,
    /// Smoothed time from an update to its acknowledgement.
    rtt: Duration,
    /// Time before which no update leaves.
    pub(crate) flush_after: Time,
    /// Allowances of the far end. Survive while the link is down.
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

    /// True if `of` names the current instances of both ends.
    pub(crate) fn is_current(&self, of: Instances) -> bool {
        self.peer != 0 && of.from == self.peer && of.to == self.instance
    }

    /// True if routes may be sent: both ends know each other's instance.
    pub(crate) fn is_ready(&self) -> bool {
        self.heard && self.peer != 0
    }

    /// Starts over with a new instance of the far end, which has no advertisement of ours.
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

    /// Marks the arrival of every advertisement as unknown. The entries stay: the far end may still
    /// hold such a route, and must then receive its retraction.
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

    /// Timeout of an acknowledgement.
    pub(crate) fn patience(&self, base: Duration) -> Duration {
        base.max(self.rtt * 2) * (1 << self.losses.min(4))
    }
}
