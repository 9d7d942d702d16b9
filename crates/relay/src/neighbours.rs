//! The table of neighbours, and which of them is the next hop.

use core::time::Duration;
use std::collections::BTreeSet;
use std::net::SocketAddr;

use shoal_crypto::{PublicKey, Suite};
use shoal_link::parts::Assembly;
use shoal_link::{Egress, EgressConfig, EgressStats, LinkStats, Liveness, LivenessConfig, Width};
use shoal_session::{Endpoints, PeerId, Table};
use shoal_wire::{Address, Level, LinkId, Time};

use crate::cover::{Cover, CoverView};
use crate::hop::HopView;
use crate::notices::Notices;
use crate::trial::Trial;

/// A neighbour as the configuration names it.
#[derive(Clone, Debug, PartialEq)]
pub struct LinkConfig {
    /// Who it is.
    pub key: PublicKey,
    /// Where it is in the overlay; host 0 makes it a router.
    pub address: Address,
    /// Where to call it; `None` waits for it to call.
    pub endpoint: Option<SocketAddr>,
}

/// One neighbour.
pub(crate) struct Neighbour {
    pub(crate) address: Address,
    pub(crate) endpoint: Option<Endpoints>,
    /// Places where the neighbour may be, if it has a name with several addresses.
    pub(crate) places: Vec<Endpoints>,
    /// What is under way about another endpoint that its frames come from.
    pub(crate) trial: Trial,
    pub(crate) liveness: Liveness,
    pub(crate) egress: Egress,
    /// How long cells wait before the egress.
    pub(crate) link_delay: Option<Duration>,
    /// When `liveness` or `width` wants to be called, as far as the timer set knows.
    pub(crate) alarm: Option<Time>,
    pub(crate) up_since: Option<Time>,
    pub(crate) established: bool,
    /// By which schedule its frames leave.
    pub(crate) cover: Option<Cover>,
    /// No cell leaves while its frames do not leave by a schedule.
    pub(crate) cover_required: bool,
    /// Since when the present keys are in use, and with which cipher.
    pub(crate) keys: Option<(Time, Suite)>,
    /// How well those keys protect cells of the two ends' own.
    pub(crate) level: Level,
    /// A direct link that ends: nothing more is sent over it.
    pub(crate) closing: bool,
    /// Whether the path to it carries full frames. Where it is narrow they go in parts.
    pub(crate) width: Width,
    /// Number of the last full frame that went in parts.
    pub(crate) parts_sent: u32,
    /// Full frames of which not all parts came.
    pub(crate) assembly: Assembly,
    /// What it says, and how it calls, for people.
    pub(crate) notices: Notices,
    /// Where it says that it sees this node.
    pub(crate) seen: Option<SocketAddr>,
    /// Whether we call it: a router, or whoever's endpoint is configured. Others call us.
    pub(crate) called: bool,
    /// It may have changed since the view was brought up to date.
    touched: bool,
}

/// What is known of a neighbour, for people.
#[derive(Clone, Copy, Debug)]
pub struct LinkView {
    /// Its id here.
    pub link: LinkId,
    /// Where it is in the overlay.
    pub address: Address,
    /// Where its datagrams come from.
    pub endpoint: Option<SocketAddr>,
    /// Which of this node's addresses its datagrams go to, as far as it was learnt.
    pub local: Option<SocketAddr>,
    /// A session is agreed.
    pub established: bool,
    /// Since when the present keys are in use, and with which cipher; of the last session if none
    /// is agreed.
    pub keys: Option<(Time, Suite)>,
    /// How well these keys protect cells without an end-to-end seal, on a direct link.
    pub level: Level,
    /// When a frame of its last opened.
    pub last_heard: Option<Time>,
    /// Since when it has been up; `None` while it is down.
    pub up_since: Option<Time>,
    /// The path to it carries no full frame: they go in parts.
    pub small: bool,
    /// This node calls it; others call this node.
    pub called: bool,
    /// What it says, and how it calls.
    pub notices: Notices,
    /// Where it says that it sees this node.
    pub seen: Option<SocketAddr>,
    /// Counters and times.
    pub stats: LinkStats,
    /// The queue towards it.
    pub egress: EgressStats,
    /// The backlog: cells that wait there now, since the link is slower than their sources.
    pub waiting: usize,
    /// Its schedule, on a covered link.
    pub cover: Option<CoverView>,
    /// What became of hops, where the link's addresses hop.
    pub hop: Option<HopView>,
}

/// All neighbours, their timers, and which of them may have changed.
#[derive(Default)]
pub(crate) struct Neighbours {
    all: Table<LinkId, Neighbour>,
    routers: Vec<LinkId>,
    alarms: BTreeSet<(Time, LinkId)>,
    /// Neighbours that were lent to be changed, and those that are gone.
    touched: Vec<LinkId>,
}

impl Neighbour {
    /// Whether this node's own cells may go to it past the routers: another host that hears us.
    pub(crate) fn is_direct(&self) -> bool {
        !self.address.is_router() && self.liveness.is_up() && self.established && !self.closing
    }

    /// The next time of its timers. On a covered link a probe of the path waits for a slot.
    fn due(&self) -> Option<Time> {
        let probe = self.width.poll_timeout().filter(|_| !self.is_scheduled());
        self.liveness.poll_timeout().map(|(at, _)| at).into_iter().chain(probe).min()
    }

    /// Where any worker may send its frames by itself; none if the relay must send them.
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
            trial: Trial::default(),
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
            width: Width::new(seed.rotate_left(32)),
            parts_sent: 0,
            assembly: Assembly::default(),
            notices: Notices::default(),
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

    /// The neighbour, to be changed.
    pub(crate) fn get_mut(&mut self, link: LinkId) -> Option<&mut Neighbour> {
        let neighbour = self.all.get_mut(link)?;
        if !core::mem::replace(&mut neighbour.touched, true) {
            self.touched.push(link);
        }
        Some(neighbour)
    }

    /// The neighbour, to be changed in what neither views nor timers show.
    pub(crate) fn get_quietly(&mut self, link: LinkId) -> Option<&mut Neighbour> {
        self.all.get_mut(link)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (LinkId, &Neighbour)> {
        self.all.iter()
    }

    /// All of them, to be changed.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Neighbour> {
        let touched = &mut self.touched;
        self.all.iter_mut().map(|(link, neighbour)| {
            if !core::mem::replace(&mut neighbour.touched, true) {
                touched.push(link);
            }
            neighbour
        })
    }

    /// Takes the list of those that may have changed; some may stand in it twice.
    pub(crate) fn take_touched(&mut self) -> Vec<LinkId> {
        for &link in &self.touched {
            if let Some(neighbour) = self.all.get_mut(link) {
                neighbour.touched = false;
            }
        }
        core::mem::take(&mut self.touched)
    }

    /// Takes back the list's memory.
    pub(crate) fn give_back(&mut self, mut touched: Vec<LinkId>) {
        touched.clear();
        self.touched = touched;
    }

    /// Whether nothing was touched since the list was taken.
    pub(crate) fn is_seen(&self) -> bool {
        self.touched.is_empty()
    }

    /// The router a host sends through: the first that is up, else the first.
    pub(crate) fn uplink(&self) -> Option<LinkId> {
        let is_up = |link: &&LinkId| self.get(**link).is_some_and(|n| n.liveness.is_up());
        self.routers.iter().find(is_up).or(self.routers.first()).copied()
    }

    /// Makes sure the timer set knows of the neighbour's next deadline. A deadline that moved
    /// later is left alone: it fires, finds nothing, and is set anew.
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

    /// The next neighbour whose deadline has come.
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
            hop: None,
        }
    }
}

/// How soon a send that the kernel had no room for is tried again. ENOBUFS has no wake-up; half a
/// millisecond is 62 kB at 1 Gbit/s, about one GSO send.
pub(crate) const RETRY_AFTER: Duration = Duration::from_micros(500);
