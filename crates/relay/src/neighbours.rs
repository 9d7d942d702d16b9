//! The table of neighbours, and the choice of the next hop.

use core::time::Duration;
use std::collections::BTreeSet;
use std::net::SocketAddr;

use shoal_crypto::{PublicKey, Suite};
use shoal_link::parts::FrameAssembly;
use shoal_link::{
    Egress, EgressConfig, EgressStats, LinkStats, Liveness, LivenessConfig, WidthDetector,
};
use shoal_session::{Endpoints, IdTable, PeerId};
use shoal_wire::{Address, Level, LinkId, Time};

use crate::cover::{CoverView, LinkCover};
use crate::notices::NeighbourWarnings;
use crate::shift::ShiftView;
use crate::trial::EndpointTrial;

/// A neighbour as the configuration names it.
#[derive(Clone, Debug, PartialEq)]
pub struct LinkConfig {
    pub key: PublicKey,
    /// Overlay address. Host number 0 makes it a router.
    pub address: Address,
    /// The endpoint to call. With `None` this node waits for a call.
    pub endpoint: Option<SocketAddr>,
}

/// One neighbour.
pub(crate) struct Neighbour {
    pub(crate) address: Address,
    pub(crate) endpoint: Option<Endpoints>,
    /// Candidate endpoints, if the neighbour's configured name has several addresses.
    pub(crate) places: Vec<Endpoints>,
    /// Trial of another endpoint from which its frames come.
    pub(crate) trial: EndpointTrial,
    pub(crate) liveness: Liveness,
    pub(crate) egress: Egress,
    /// Delay of cells before the egress.
    pub(crate) link_delay: Option<Duration>,
    /// The next deadline of `liveness` or `width` in the timer set.
    pub(crate) alarm: Option<Time>,
    pub(crate) up_since: Option<Time>,
    pub(crate) established: bool,
    /// The schedule of the link's frames, on a covered link.
    pub(crate) cover: Option<LinkCover>,
    /// True if cells may leave only by a schedule.
    pub(crate) cover_required: bool,
    /// Start and cipher suite of the current keys.
    pub(crate) keys: Option<(Time, Suite)>,
    /// Protection level of the two ends' own cells under these keys.
    pub(crate) level: Level,
    /// True while a direct link ends. Nothing more is sent over it.
    pub(crate) closing: bool,
    /// Detects whether the path carries full frames. On a narrow path they go in parts.
    pub(crate) width: WidthDetector,
    /// Number of the last full frame that was sent in parts.
    pub(crate) parts_sent: u32,
    /// Full frames that arrived incompletely.
    pub(crate) assembly: FrameAssembly,
    /// Warnings about the neighbour.
    pub(crate) notices: NeighbourWarnings,
    /// Our public address, as this neighbour reports it.
    pub(crate) seen: Option<SocketAddr>,
    /// True if this node calls the neighbour: a router, or a configured endpoint. Others call this
    /// node.
    pub(crate) called: bool,
    /// True if the neighbour may have changed since the last refresh of the view.
    touched: bool,
}

/// State of a neighbour, for status output.
#[derive(Clone, Copy, Debug)]
pub struct LinkView {
    pub link: LinkId,
    pub address: Address,
    /// Source endpoint of its datagrams.
    pub endpoint: Option<SocketAddr>,
    /// This node's address to which its datagrams go, if known.
    pub local: Option<SocketAddr>,
    /// True if a session is agreed.
    pub established: bool,
    /// Start and cipher suite of the current keys, or of the last session's if none is agreed.
    pub keys: Option<(Time, Suite)>,
    /// Protection level of cells without an end-to-end seal, on a direct link.
    pub level: Level,
    /// When one of its frames was last opened.
    pub last_heard: Option<Time>,
    /// When the link came up. `None` while it is down.
    pub up_since: Option<Time>,
    /// True if the path carries no full frames, so that they go in parts.
    pub small: bool,
    /// True if this node calls the neighbour, false if the neighbour calls.
    pub called: bool,
    /// Warnings about the neighbour.
    pub notices: NeighbourWarnings,
    /// Our public address, as this neighbour reports it.
    pub seen: Option<SocketAddr>,
    pub stats: LinkStats,
    /// Counters of the queue to the neighbour.
    pub egress: EgressStats,
    /// The backlog: cells that wait there because the link is slower than their sources.
    pub waiting: usize,
    /// The schedule, on a covered link.
    pub cover: Option<CoverView>,
    /// The state of address shifts, if the link's addresses shift.
    pub shift: Option<ShiftView>,
}

/// All neighbours with their timers, and a list of those that may have changed.
#[derive(Default)]
pub(crate) struct Neighbours {
    all: IdTable<LinkId, Neighbour>,
    routers: Vec<LinkId>,
    alarms: BTreeSet<(Time, LinkId)>,
    /// Neighbours that were borrowed mutably, and removed ones.
    touched: Vec<LinkId>,
}

impl Neighbour {
    /// True if this node's own cells may bypass the routers: the neighbour is a host and the link
    /// is up.
    pub(crate) fn is_direct(&self) -> bool {
        !self.address.is_router() && self.liveness.is_up() && self.established && !self.closing
    }

    /// The next deadline. On a covered link a probe of the path waits for a slot.
    fn due(&self) -> Option<Time> {
        let probe = self.width.poll_timeout().filter(|_| !self.is_scheduled());
        self.liveness.poll_timeout().map(|(at, _)| at).into_iter().chain(probe).min()
    }

    /// The endpoint to which any worker may send frames directly. None if only the relay may send
    /// them.
    pub(crate) fn shared_endpoint(&self) -> Option<Endpoints> {
        let shut = self.is_covered() || self.is_shut();
        let alone = self.width.is_narrow() || self.trial.is_limited() || shut;
        self.endpoint.filter(|_| !alone)
    }
}

impl Neighbours {
    pub(crate) fn insert(
        &mut self,
        now: Time,
        peer: PeerId,
        config: &LinkConfig,
        seed: u64,
        liveness: LivenessConfig,
        (egress, link_delay): (EgressConfig, Option<Duration>),
    ) -> LinkId {
        let link = LinkId::from(peer);
        let neighbour = Neighbour {
            address: config.address,
            endpoint: config.endpoint.map(Endpoints::from),
            places: Vec::new(),
            trial: EndpointTrial::default(),
            liveness: Liveness::new(liveness, seed, now),
            egress: Egress::new(egress),
            link_delay,
            alarm: None,
            up_since: None,
            established: false,
            cover: None,
            cover_required: false,
            keys: None,
            level: Level::Encrypt,
            closing: false,
            width: WidthDetector::new(seed.rotate_left(32)),
            parts_sent: 0,
            assembly: FrameAssembly::default(),
            notices: NeighbourWarnings::default(),
            seen: None,
            called: config.endpoint.is_some() || config.address.is_router(),
            touched: true,
        };
        self.all.put(link, neighbour);
        self.touched.push(link);
        if config.address.is_router() {
            self.routers.push(link);
        }
        link
    }

    pub(crate) fn remove(&mut self, link: LinkId) -> Option<Neighbour> {
        let gone = self.all.remove(link)?;
        if let Some(at) = gone.alarm {
            self.alarms.remove(&(at, link));
        }
        self.routers.retain(|&router| router != link);
        self.touched.push(link);
        Some(gone)
    }

    pub(crate) fn get(&self, link: LinkId) -> Option<&Neighbour> {
        self.all.get(link)
    }

    /// Borrows a neighbour mutably and marks it as touched.
    pub(crate) fn get_mut(&mut self, link: LinkId) -> Option<&mut Neighbour> {
        let neighbour = self.all.get_mut(link)?;
        if !core::mem::replace(&mut neighbour.touched, true) {
            self.touched.push(link);
        }
        Some(neighbour)
    }

    /// Borrows a neighbour mutably without marking it. The caller must change nothing that views or
    /// timers show.
    pub(crate) fn get_quietly(&mut self, link: LinkId) -> Option<&mut Neighbour> {
        self.all.get_mut(link)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (LinkId, &Neighbour)> {
        self.all.iter()
    }

    /// Borrows all neighbours mutably and marks them as touched.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Neighbour> {
        let touched = &mut self.touched;
        self.all.iter_mut().map(|(link, neighbour)| {
            if !core::mem::replace(&mut neighbour.touched, true) {
                touched.push(link);
            }
            neighbour
        })
    }

    /// Takes the list of touched neighbours. Duplicates are possible.
    pub(crate) fn take_touched(&mut self) -> Vec<LinkId> {
        for &link in &self.touched {
            if let Some(neighbour) = self.all.get_mut(link) {
                neighbour.touched = false;
            }
        }
        core::mem::take(&mut self.touched)
    }

    /// Returns the list's memory for reuse.
    pub(crate) fn give_back(&mut self, mut touched: Vec<LinkId>) {
        touched.clear();
        self.touched = touched;
    }

    /// True if no neighbour was touched since the list was taken.
    pub(crate) fn is_seen(&self) -> bool {
        self.touched.is_empty()
    }

    /// The router through which a host sends: the one in use while it is up, else the first that is
    /// up. If none is up, it stays the one in use, so that a change is told over a link that works.
    pub(crate) fn uplink(&self, in_use: Option<LinkId>) -> Option<LinkId> {
        let is_up = |link: &&LinkId| self.get(**link).is_some_and(|n| n.liveness.is_up());
        let in_use = in_use.filter(|link| self.routers.contains(link));
        let first_up = in_use.iter().chain(&self.routers).find(is_up);
        first_up.copied().or(in_use).or(self.routers.first().copied())
    }

    /// Links to routers.
    pub(crate) fn routers(&self) -> Vec<LinkId> {
        self.routers.clone()
    }

    /// Updates the timer set with the neighbour's next deadline. If the deadline moved later, the
    /// old timer stays. It fires without effect and is set anew.
    pub(crate) fn reschedule(&mut self, link: LinkId) {
        let Some(neighbour) = self.all.get_mut(link) else { return };
        let Some(due) = neighbour.due() else { return };
        if neighbour.alarm.is_some_and(|alarm| alarm <= due) {
            return;
        }
        if let Some(old) = neighbour.alarm.replace(due) {
            self.alarms.remove(&(old, link));
        }
        self.alarms.insert((due, link));
    }

    /// Takes the next neighbour whose deadline has come.
    pub(crate) fn pop_alarm(&mut self, now: Time) -> Option<LinkId> {
        let &(at, link) = self.alarms.first()?;
        if at > now {
            return None;
        }
        self.alarms.pop_first();
        if let Some(neighbour) = self.get_mut(link) {
            neighbour.alarm = None;
        }
        Some(link)
    }

    pub(crate) fn next_alarm(&self) -> Option<Time> {
        self.alarms.first().map(|&(at, _)| at)
    }

    pub(crate) fn views(&self) -> impl Iterator<Item = LinkView> + '_ {
        self.all.iter().map(|(link, neighbour)| neighbour.view(link))
    }
}

impl Neighbour {
    pub(crate) fn view(&self, link: LinkId) -> LinkView {
        LinkView {
            link,
            address: self.address,
            endpoint: self.endpoint.map(|ends| ends.remote),
            local: self.endpoint.and_then(|ends| ends.local),
            established: self.established,
            keys: self.keys,
            level: self.level,
            last_heard: self.liveness.last_heard(),
            up_since: self.up_since,
            small: self.width.is_narrow(),
            called: self.called,
            notices: self.notices,
            seen: self.seen,
            stats: self.liveness.stats(),
            egress: self.egress.stats(),
            waiting: self.egress.backlog(),
            cover: self.cover_view(),
            shift: None,
        }
    }
}

/// Delay before a send for which the kernel had no room is repeated. ENOBUFS has no wake-up. At 1
/// Gbit/s this delay is 62 kB, about one GSO send.
pub(crate) const RETRY_AFTER: Duration = Duration::from_micros(500);
