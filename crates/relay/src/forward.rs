//! The data path of a worker, the first like all others: how a frame is opened, which way it goes,
//! and how it leaves.
//!
//! A worker finishes alone what it can: a cell that came on a lane of its own and leaves at once,
//! on a lane of its own, through a link where nothing waits; and a cell for this node. Everything
//! else it hands over ([`crate::Handoff`]):
//!
//! ```text
//!             +-> raw: another worker's lane, or nobody's, as handshakes   (any worker)
//! datagrams --+-> opened: control, keepalives, parts                       (first worker)
//!             +-> released: the link has a backlog, or it goes in parts    (first worker)
//!             +-> sealed: the kernel has no room                           (first worker)
//!             +-> datagrams
//! ```
//!
//! The first worker hands over to itself: its frames stay where they lie, and the [`crate::Relay`]
//! finishes them after the batch. What came and went is noted per link. The relay takes in the
//! notes once per batch, so that liveness, reports, keys and endpoints don't depend on who did the
//! work.
//!
//! The functions stand in the order in which a frame meets them.

use std::sync::Arc;

use shoal_crypto::Ciphers;
use shoal_link::Priority;
use shoal_mix::Mix;
use shoal_session::{Endpoints, Opened, Opening, PeerId, SessionShard};
use shoal_wire::{
    Address, DropReason, Level, LinkId, LinkKind, Mark, RoutedHeader, SizeClass, Time,
    TrafficClass, link,
};

use crate::batch::{
    Group, HOP_LIMIT_AT, LANES, LastHop, MARK_AT, Run, cut, frame_len, group, is_goodbye,
    is_traffic, priority, seal,
};
use crate::direct;
use crate::notes::{Links, Note};
use crate::view::{Goes, LinkFacts, View, way};
use crate::{
    Arrival, Counters, FrameAt, Handed, Handoff, Incoming, LocalCells, MixedCell, Path, RUN_MAX,
    SendOutcome, Sink, Stop, Turn, Unfinished,
};

/// What the first worker tells another.
pub enum Order<A> {
    /// About sessions and their keys.
    Keys(shoal_session::Order<A>),
    /// Neighbours and routes from now on.
    View(Arc<View>),
    /// Whether a link has a backlog, which nothing may pass by.
    Gate {
        /// Which link.
        link: LinkId,
        /// There is no backlog.
        open: bool,
        /// The backlog is so long that cells are marked, and nothing more should be read for the
        /// link.
        marking: bool,
    },
}

/// Memory that every batch uses again.
#[derive(Default)]
pub(crate) struct Scratch {
    frames: Vec<(u32, u32)>,
    pub(crate) offsets: Vec<u32>,
    /// What leaves a hold.
    pub(crate) run: Vec<u8>,
    opened: Vec<Opening>,
    pub(crate) sorted: Sorted,
}

/// Frames of one length, sorted by where they go.
#[derive(Default)]
pub(crate) struct Sorted {
    groups: Vec<Group>,
    pub(crate) last: Option<LastHop>,
    /// Whether somebody takes cells for this node, and leg cells.
    pub(crate) keeps: bool,
    pub(crate) keeps_legs: bool,
    /// Cells for this node, and the links that they came on.
    local: Vec<u32>,
    local_from: Vec<LinkId>,
    /// Shorter cells that came in full frames.
    pub(crate) wide: Vec<Handed>,
    /// Leg cells for this node, and those that go on from here, at once or later.
    legs: Vec<u32>,
    onward: Vec<u32>,
    mixed: Vec<MixedCell>,
}

/// Where frames come from.
#[derive(Clone, Copy)]
struct Origin<'a> {
    incoming: &'a [Incoming],
    arrival: Arrival,
}

/// A frame that opened.
pub(crate) struct Arrived<'a> {
    pub(crate) link: LinkId,
    pub(crate) sender: Option<&'a LinkFacts>,
    pub(crate) at: u32,
    pub(crate) level: Level,
    pub(crate) newest: bool,
    pub(crate) congested: bool,
}

/// Frames of one session and lane in a row.
#[derive(Default)]
struct Tally {
    of: Option<(LinkId, u8)>,
    sender: Option<LinkFacts>,
    frames: u64,
    /// Highest counter on the newest session: counters of older sessions say nothing of how many
    /// frames were sent on this one.
    highest: Option<u32>,
    traffic: bool,
    /// Which of the batch's runs the newest frame is in.
    source: Option<u32>,
}

/// The data path of one worker. The worker's part of the sessions stands beside it, for the first
/// worker inside of [`crate::Relay`].
pub struct Forwarder {
    pub(crate) view: Arc<View>,
    pub(crate) counters: Counters,
    pub(crate) links: Links,
    /// Cells that wait.
    pub(crate) mix: Mix,
    pub(crate) scratch: Scratch,
}

impl Forwarder {
    /// A data path that knows what the view says, and a pool for cells that wait.
    pub(crate) fn new(view: Arc<View>, mix: Mix) -> Forwarder {
        Forwarder {
            view,
            counters: Counters::default(),
            links: Links::default(),
            mix,
            scratch: Scratch::default(),
        }
    }

    /// Takes in an order; they must come in the order in which they were given.
    pub fn handle_order<C: Ciphers>(&mut self, shard: &mut SessionShard<C>, order: Order<C::Aead>) {
        match order {
            Order::Keys(order) => shard.handle_order(order),
            Order::View(view) => {
                self.view = view;
                self.give_up_held();
            }
            Order::Gate { link, open, marking } => {
                if !self.view.is_past(link) {
                    self.links.set_gate(link, open, marking);
                }
            }
        }
    }

    /// What was counted since the counters were last taken.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Takes what was counted since the last call.
    pub fn take_counters(&mut self) -> Counters {
        core::mem::take(&mut self.counters)
    }

    /// Whether anything was counted since the counters were last taken.
    pub fn has_counted(&self) -> bool {
        self.counters != Counters::default()
    }

    /// Adds counters again that were taken and could not be told.
    pub fn put_back(&mut self, counters: &Counters) {
        self.counters.add(counters);
    }

    /// Counts drops that the shell saw, such as receive overflows.
    pub fn count_drop(&mut self, reason: DropReason, n: u64) {
        self.counters.drop(reason, n);
    }

    /// Tells what came and went since the last time. What `tell` refuses is kept and told with
    /// what comes later. Says whether everything was told.
    pub fn tell<C: Ciphers>(
        &mut self,
        shard: &mut SessionShard<C>,
        mut tell: impl FnMut(Note) -> bool,
    ) -> bool {
        // Sessions first: the first frame of a new session puts that session in use.
        let all = shard.tell(|note| tell(Note::Session(note)));
        self.links.tell(|note| tell(Note::Link(*note))) && all
    }

    /// Gives back memory that a burst of traffic took.
    pub(crate) fn rest(&mut self) {
        self.scratch = Scratch::default();
        self.mix.rest();
    }

    /// Takes in one batch, as [`crate::Relay::handle_batch`] does. `local` gets the cells for this
    /// node and says how many of them it did not hand on to the first worker; without `local` all
    /// of them go to the first worker.
    pub fn handle_batch<C: Ciphers, S: Sink, H: Handoff>(
        &mut self,
        shard: &mut SessionShard<C>,
        turn: &mut Turn<'_, S, H>,
        buf: &mut [u8],
        incoming: &[Incoming],
        arrival: Arrival,
        mut local: Option<&mut impl FnMut(&mut [u8], LocalCells<'_>, &mut H) -> u64>,
    ) {
        let mut frames = core::mem::take(&mut self.scratch.frames);
        let bytes = cut(incoming, &mut frames);
        if arrival == Arrival::Socket {
            self.counters.traffic.bytes_in += bytes;
            self.counters.traffic.frames_in += frames.len() as u64;
            self.drop_stale(incoming, &mut frames);
            self.drop_inside(incoming, &mut frames);
        }
        let len_of = |frame: &(u32, u32)| frame_len(frame, incoming);
        self.scratch.sorted.keeps = local.is_some();
        self.scratch.sorted.keeps_legs = local.is_some() && shard.worker() == 0;
        for equal in frames.chunk_by(|a, b| len_of(a) == len_of(b)) {
            match SizeClass::of_frame(len_of(&equal[0]) as usize) {
                Some(class) => {
                    self.open(shard, turn, buf, equal, Origin { incoming, arrival }, class);
                    self.pass_on(shard, turn, buf, class, local.as_deref_mut());
                    self.sort_wide(shard, turn, buf, local.as_deref_mut());
                }
                None => self.hand_stun(shard.worker(), turn.hand, buf, equal, incoming),
            }
        }
        self.scratch.frames = frames;
    }

    /// Drops frames to addresses that are not in use, before any key is touched.
    fn drop_stale(&mut self, incoming: &[Incoming], frames: &mut Vec<(u32, u32)>) {
        let Some(accepted) = &self.view.accepted else { return };
        let mut last = None;
        let all = frames.len();
        frames.retain(|&(_, source)| {
            // Frames of one run came to one address.
            let known = last.filter(|(of, _)| *of == source).map(|(_, takes)| takes);
            let takes =
                known.unwrap_or_else(|| accepted.takes(incoming[source as usize].from.local));
            last = Some((source, takes));
            takes
        });
        self.counters.drop_in(DropReason::StaleAddress, (all - frames.len()) as u64);
    }

    /// Opens frames of one length and sorts them.
    fn open<C: Ciphers, S, H: Handoff>(
        &mut self,
        shard: &mut SessionShard<C>,
        turn: &mut Turn<'_, S, H>,
        buf: &mut [u8],
        frames: &[(u32, u32)],
        origin: Origin<'_>,
        class: SizeClass,
    ) {
        let mut scratch = core::mem::take(&mut self.scratch);
        scratch.offsets.clear();
        scratch.offsets.extend(frames.iter().map(|&(at, _)| at));
        scratch.opened.clear();
        let len = class.frame_len();
        shard.open_batch(turn.now, buf, &scratch.offsets, len, &mut scratch.opened);
        let mut tally = Tally::default();
        scratch.sorted.last = None;
        for (&(at, source), opening) in frames.iter().zip(scratch.opened.drain(..)) {
            let from = &origin.incoming[source as usize];
            let outcome = match opening {
                Opening::Data(opened) => {
                    let kind = buf[at as usize + link::KIND_AT];
                    self.count(&mut tally, &opened, kind, (source, class), origin.incoming);
                    let frame = Arrived {
                        link: LinkId::from(opened.peer),
                        sender: tally.sender.as_ref(),
                        at,
                        level: opened.level,
                        newest: opened.newest,
                        congested: from.congested,
                    };
                    self.take(&frame, buf, class, &mut scratch.sorted, turn.hand)
                }
                Opening::Worker(worker) => {
                    let frame = FrameAt { buf: &*buf, at, len: len as u32 };
                    hand_on(turn.hand, Unfinished::Raw { worker, from }, frame)
                }
                // The first worker knows all sessions.
                Opening::Handshake if origin.arrival == Arrival::Worker(0) => {
                    Err(DropReason::UnknownIndex)
                }
                Opening::Handshake => {
                    let frame = FrameAt { buf: &*buf, at, len: len as u32 };
                    hand_on(turn.hand, Unfinished::Unknown { from }, frame)
                }
                Opening::Drop(reason) => Err(reason),
            };
            if let Err(reason) = outcome {
                self.counters.drop_in(reason, 1);
            }
        }
        self.settle(&tally, class, origin.incoming);
        self.scratch = scratch;
    }

    /// Counts a frame that opened with those before it of the same session and lane.
    #[inline]
    fn count(
        &mut self,
        tally: &mut Tally,
        opened: &Opened,
        kind: u8,
        (source, class): (u32, SizeClass),
        incoming: &[Incoming],
    ) {
        let of = Some((LinkId::from(opened.peer), opened.lane));
        if tally.of != of {
            self.settle(tally, class, incoming);
            let sender = self.view.link(LinkId::from(opened.peer)).copied();
            *tally = Tally { of, sender, ..Tally::default() };
        }
        tally.frames += 1;
        tally.traffic |= is_traffic(kind);
        self.counters.traffic.cover_in += u64::from(kind == LinkKind::Cover as u8);
        if opened.newest {
            tally.highest = Some(opened.counter);
            tally.source = Some(source);
        }
    }

    /// Adds a tally to the note of its link.
    fn settle(&mut self, tally: &Tally, class: SizeClass, incoming: &[Incoming]) {
        let Some((link, lane)) = tally.of else { return };
        let note = self.links.note(link);
        note.frames += tally.frames;
        note.full += if class == SizeClass::Full { tally.frames } else { 0 };
        note.traffic |= tally.traffic;
        if let Some(counter) = tally.highest {
            note.highest[usize::from(lane) % LANES] = counter;
        }
        if let Some(source) = tally.source {
            note.source = Some(incoming[source as usize].from);
        }
    }

    /// Decides where a frame that opened goes: into the group of its next hop, to this node, or to
    /// the first worker.
    pub(crate) fn take(
        &self,
        arrived: &Arrived<'_>,
        buf: &mut [u8],
        class: SizeClass,
        sorted: &mut Sorted,
        hand: &mut impl Handoff,
    ) -> Result<(), DropReason> {
        let &Arrived { link, sender, at, level, newest, congested } = arrived;
        let len = class.frame_len();
        let frame = &mut buf[at as usize..at as usize + len];
        let kind = LinkKind::from_byte(frame[link::KIND_AT]).map_err(|_| DropReason::Malformed)?;
        direct::check_level(kind, frame, level)?;
        match kind {
            LinkKind::Cell | LinkKind::Direct | LinkKind::Leg if self.view.lists_only => {
                return Err(DropReason::StaleList);
            }
            LinkKind::Cell | LinkKind::Direct | LinkKind::Leg => {
                if congested {
                    frame[MARK_AT] = Mark::Congested as u8;
                }
                if let (Some(sender), Some(me)) = (sender, self.view.me) {
                    let header = RoutedHeader::parse(&frame[link::ROUTED_AT..])?;
                    let goes = match kind {
                        LinkKind::Direct => direct::check(&header, me, sender.address)?,
                        LinkKind::Leg if !is_leg(&header, class) => {
                            return Err(DropReason::Malformed);
                        }
                        _ => way(&header, me, sender.address, sender.may_transit)?,
                    };
                    if let Goes::On(hops) = goes {
                        let hop = self.hop(header.dst(), &mut sorted.last)?;
                        group(&mut sorted.groups, hop, priority(header.class())).push(at);
                        frame[HOP_LIMIT_AT] = hops;
                        return Ok(());
                    }
                    if kind == LinkKind::Leg {
                        if sorted.keeps_legs {
                            sorted.legs.push(at);
                            return Ok(());
                        }
                    } else if sorted.keeps {
                        sorted.local.push(at);
                        sorted.local_from.push(link);
                        return Ok(());
                    }
                }
            }
            LinkKind::Control if !newest && is_goodbye(frame) => return Err(DropReason::TooOld),
            LinkKind::Control | LinkKind::Keepalive | LinkKind::Part => {}
            LinkKind::Cover => return Ok(()),
            LinkKind::SmallCell | LinkKind::MediumCell if class == SizeClass::Full => {
                let small = kind == LinkKind::SmallCell;
                let class = if small { SizeClass::Small } else { SizeClass::Medium };
                frame[link::KIND_AT] = LinkKind::Cell as u8;
                let len = class.frame_len() as u32;
                sorted.wide.push(Handed { link, at, len, congested });
                return Ok(());
            }
            LinkKind::SmallCell | LinkKind::MediumCell => return Err(DropReason::Malformed),
        }
        let frame = FrameAt { buf: &*buf, at, len: len as u32 };
        hand_on(hand, Unfinished::Opened { link, congested }, frame)
    }

    /// The next hop to `dst`, looked up once for cells in a row.
    fn hop(&self, dst: Address, last: &mut Option<LastHop>) -> Result<LinkId, DropReason> {
        if let Some(last) = last.as_ref().filter(|last| last.dst == dst) {
            return Ok(last.link);
        }
        let link = self.view.next_hop(dst).ok_or(DropReason::NoRoute)?;
        *last = Some(LastHop { dst, link });
        Ok(link)
    }

    /// Lends what is for this node, and sends on its way what was sorted.
    pub(crate) fn pass_on<C: Ciphers, S: Sink, H: Handoff>(
        &mut self,
        shard: &mut SessionShard<C>,
        turn: &mut Turn<'_, S, H>,
        buf: &mut [u8],
        class: SizeClass,
        local: Option<&mut impl FnMut(&mut [u8], LocalCells<'_>, &mut H) -> u64>,
    ) {
        let mut sorted = core::mem::take(&mut self.scratch.sorted);
        let is_local = !sorted.local.is_empty() || !sorted.legs.is_empty();
        if let Some(local) = local.filter(|_| is_local) {
            let Sorted { local: offsets, local_from: from, legs, onward, mixed, .. } = &mut sorted;
            let cells = LocalCells { offsets, from, legs, onward, mixed, len: class.frame_len() };
            self.counters.traffic.cells_local += local(buf, cells, turn.hand);
            sorted.local.clear();
            sorted.local_from.clear();
            sorted.legs.clear();
        }
        self.mix_cells(turn.now, buf, &sorted.mixed);
        sorted.mixed.clear();
        let own = self.sort_onward(buf, &mut sorted);
        let mut all = 0;
        for group in sorted.groups.iter_mut().filter(|group| !group.offsets.is_empty()) {
            all += group.offsets.len() as u64;
            let run = Run { buf: &mut *buf, offsets: &group.offsets, class };
            self.dispatch(shard, turn, group.link, run);
            group.offsets.clear();
        }
        self.counters.traffic.cells_transit += all - own;
        self.counters.traffic.cells_origin += own;
        self.scratch.sorted = sorted;
    }

    /// Puts leg cells that go on from here beside the cells in transit; says how many.
    fn sort_onward(&mut self, buf: &[u8], sorted: &mut Sorted) -> u64 {
        let mut count = 0;
        for at in sorted.onward.drain(..) {
            let header = RoutedHeader::parse(&buf[at as usize + link::ROUTED_AT..]);
            match header.and_then(|header| self.hop(header.dst(), &mut sorted.last)) {
                Ok(hop) => {
                    group(&mut sorted.groups, hop, Priority::Data).push(at);
                    count += 1;
                }
                Err(reason) => self.counters.drop(reason, 1),
            }
        }
        count
    }

    /// Seals and sends cells that are past the hold, or hands them to the first worker where this
    /// one may not.
    pub(crate) fn steer<C: Ciphers, S: Sink, H: Handoff>(
        &mut self,
        shard: &mut SessionShard<C>,
        turn: &mut Turn<'_, S, H>,
        link: LinkId,
        mut run: Run<'_>,
    ) {
        let all = run.offsets;
        for offsets in all.chunks(RUN_MAX) {
            let mut run = run.of(offsets);
            let Some(to) = self.endpoint(shard, turn.now, link) else {
                let taken = hand_over(Unfinished::Released { link }, &run, turn.hand);
                self.lose(&offsets[taken..]);
                continue;
            };
            self.counters.traffic.dispatched += run.count();
            // What could not be sealed is counted, and there is nobody to tell.
            let _sealed = self.depart(shard, turn, (link, to), &mut run, false);
        }
    }

    /// Counts frames that were to leave and that another worker did not take.
    pub(crate) fn lose(&mut self, offsets: &[u32]) {
        self.counters.traffic.dispatched += offsets.len() as u64;
        self.counters.drop_out(DropReason::OtherWorker, offsets.len() as u64);
    }

    /// Where a link's frames go, if this worker may send them by itself, at once.
    pub(crate) fn endpoint<C: Ciphers>(
        &self,
        shard: &SessionShard<C>,
        now: Time,
        link: LinkId,
    ) -> Option<Endpoints> {
        let to = self.view.link(link)?.endpoint.filter(|_| !self.links.is_closed(link))?;
        let lanes = shard.seal_lanes(now, PeerId::from(link));
        (!lanes.is_empty()).then_some(to)
    }

    /// Seals a run, unless it is sealed, and sends it. What the kernel has no room for goes to the
    /// first worker, and the link's gate closes. Says whether more may follow.
    ///
    /// Errors: as of [`shoal_session::SessionShard::seal_batch`]; the run is counted as dropped.
    pub(crate) fn depart<C: Ciphers, S: Sink, H: Handoff>(
        &mut self,
        shard: &mut SessionShard<C>,
        turn: &mut Turn<'_, S, H>,
        (link, to): (LinkId, Endpoints),
        run: &mut Run<'_>,
        sealed: bool,
    ) -> Result<bool, DropReason> {
        let traffic = sealed || run.is_traffic();
        if !sealed && let Err(reason) = seal(shard, turn.now, link, run) {
            self.counters.drop_out(reason, run.count());
            return Err(reason);
        }
        let outcome = self.transmit(turn.sink, (link, to), run);
        let note = self.links.note(link);
        match traffic {
            true => note.sent += outcome.sent as u64,
            false => note.sent_quietly += outcome.sent as u64,
        }
        note.sent_full += if run.class == SizeClass::Full { outcome.sent as u64 } else { 0 };
        let rest = &run.offsets[outcome.sent..];
        match outcome.stop {
            None => return Ok(true),
            Some(Stop::Full) => {
                note.refused = true;
                let marking = self.links.is_marking(link);
                self.links.set_gate(link, false, marking);
                let what = Unfinished::Sealed { link };
                let lost = rest.iter().filter(|&&at| !turn.hand.take(what, run.frame(at)));
                self.counters.drop_out(DropReason::OtherWorker, lost.count() as u64);
            }
            Some(stop @ (Stop::Failed | Stop::Inside | Stop::TooLong)) => {
                note.too_long |= stop == Stop::TooLong && run.class == SizeClass::Full;
                self.counters.drop_out(stop.reason(), rest.len() as u64);
            }
        }
        Ok(outcome.stop != Some(Stop::Full))
    }

    /// Sends frames that are sealed.
    pub(crate) fn transmit(
        &mut self,
        sink: &mut impl Sink,
        (link, ends): (LinkId, Endpoints),
        run: &Run<'_>,
    ) -> SendOutcome {
        let len = run.class.frame_len();
        let path = Path { link: Some(link), ends };
        let outcome = self.send_outside(sink, path, (run.buf, run.offsets, len));
        self.counters.traffic.frames_out += outcome.sent as u64;
        self.counters.traffic.bytes_out += (outcome.sent * len) as u64;
        outcome
    }
}

/// Whether a cell of a circuit looks as all of them do.
fn is_leg(header: &RoutedHeader, class: SizeClass) -> bool {
    class == SizeClass::Full && header.class() == TrafficClass::Bulk
}

/// Hands on a frame that came in. What is not taken is dropped.
pub(crate) fn hand_on(
    hand: &mut impl Handoff,
    what: Unfinished<'_>,
    frame: FrameAt<'_>,
) -> Result<(), DropReason> {
    hand.take(what, frame).then_some(()).ok_or(DropReason::OtherWorker)
}

/// Hands cells to another worker; says how many of them it took, from the first on.
pub(crate) fn hand_over(what: Unfinished<'_>, run: &Run<'_>, hand: &mut impl Handoff) -> usize {
    let took = |at: &&u32| hand.take(what, run.frame(**at));
    run.offsets.iter().take_while(took).count()
}
