//! The data path of a worker: it opens each frame, decides where it goes, and sends it. All workers
//! run the same path, including the first.
//!
//! A worker finishes cells for this node. It also finishes cells that arrive and leave on its own
//! lanes, at once and over a link without a backlog. It hands over the rest ([`crate::Handoff`]):
//!
//! ```text
//!             +-> raw: another worker's lane, or no lane, like handshakes  (any worker)
//! datagrams --+-> opened: control, keepalives, parts                       (first worker)
//!             +-> released: the link has a backlog, or it goes in parts    (first worker)
//!             +-> sealed: the kernel has no room                           (first worker)
//!             +-> datagrams
//! ```
//!
//! The first worker hands over to itself: its frames stay in their buffer, and the [`crate::Relay`]
//! finishes them after the batch. Each link has a note of the frames received and sent. The relay
//! processes the notes once per batch. So liveness, reports, keys and endpoints don't depend on
//! which worker handled a frame.
//!
//! Functions are in the order in which a frame passes them.

use std::sync::Arc;

use shoal_crypto::Ciphers;
use shoal_link::Priority;
use shoal_mix::MixPool;
use shoal_session::{Endpoints, OpenResult, OpenedSessionFrame, PeerId, SessionShard};
use shoal_wire::{
    Address, CongestionMark, DropReason, Level, LinkId, LinkKind, RoutedHeader, SizeClass, Time,
    TrafficClass, link,
};

use crate::batch::{
    HOP_LIMIT_AT, LANES, MARK_AT, OutgoingRun, RouteCache, SendGroup, cut, frame_len, group,
    is_goodbye, is_traffic, priority, seal,
};
use crate::direct;
use crate::handoff::{hand_on, hand_over};
use crate::notes::{LinkNotes, WorkerNote};
use crate::view::{ForwardingDecision, ForwardingView, LinkFacts, way};
use crate::{
    ArrivalSource, CallContext, DropCounters, FrameAt, FrameSink, Handoff, HandoffFrame,
    HandoffKind, LocalCells, MixedCell, RUN_MAX, ReceivedRun, SendError, SendOutcome, SendPath,
};

/// An order of the first worker to another.
pub enum WorkerOrder<A> {
    /// A change of sessions and their keys.
    Keys(shoal_session::ShardOrder<A>),
    /// The new view of neighbours and routes.
    View(Arc<ForwardingView>),
    /// A change of a link's gate. A closed gate means a backlog, which no frame may overtake.
    Gate {
        link: LinkId,
        /// True if there is no backlog.
        open: bool,
        /// True if the backlog is so long that cells are marked. Then sources should read no more
        /// data for this link.
        marking: bool,
    },
}

/// Scratch memory, used again by every batch.
#[derive(Default)]
pub(crate) struct ForwarderScratch {
    frames: Vec<(u32, u32)>,
    pub(crate) offsets: Vec<u32>,
    /// Frames released from a hold.
    pub(crate) run: Vec<u8>,
    opened: Vec<OpenResult>,
    pub(crate) sorted: SortedBatch,
}

/// Frames of one length, sorted by destination.
#[derive(Default)]
pub(crate) struct SortedBatch {
    groups: Vec<SendGroup>,
    pub(crate) last: Option<RouteCache>,
    /// True if `local` takes cells for this node, and true if it takes leg cells.
    pub(crate) keeps: bool,
    pub(crate) keeps_legs: bool,
    /// Cells for this node, and the links on which they arrived.
    local: Vec<u32>,
    local_from: Vec<LinkId>,
    /// Shorter cells that arrived in full frames.
    pub(crate) wide: Vec<HandoffFrame>,
    /// Leg cells for this node; leg cells that leave again at once; those that leave later.
    legs: Vec<u32>,
    onward: Vec<u32>,
    mixed: Vec<MixedCell>,
}

/// Source of frames.
#[derive(Clone, Copy)]
struct BatchSource<'a> {
    incoming: &'a [ReceivedRun],
    arrival: ArrivalSource,
}

/// An opened frame.
pub(crate) struct OpenedFrame<'a> {
    pub(crate) link: LinkId,
    pub(crate) sender: Option<&'a LinkFacts>,
    pub(crate) at: u32,
    pub(crate) level: Level,
    pub(crate) newest: bool,
    pub(crate) congested: bool,
}

/// Consecutive frames of one session and lane.
#[derive(Default)]
struct LaneTally {
    of: Option<(LinkId, u8)>,
    sender: Option<LinkFacts>,
    frames: u64,
    /// Highest counter on the newest session. Counters of older sessions don't show how many frames
    /// were sent on this one.
    highest: Option<u32>,
    traffic: bool,
    /// Index of the batch's run that contains the newest frame.
    source: Option<u32>,
}

/// The data path of one worker. The worker's session shard is separate; the first worker's is part
/// of [`crate::Relay`].
pub struct Forwarder {
    pub(crate) view: Arc<ForwardingView>,
    pub(crate) counters: DropCounters,
    pub(crate) links: LinkNotes,
    /// Cells held for later departure.
    pub(crate) mix: MixPool,
    pub(crate) scratch: ForwarderScratch,
}

impl Forwarder {
    /// A data path with this view and this pool for held cells.
    pub(crate) fn new(view: Arc<ForwardingView>, mix: MixPool) -> Forwarder {
        Forwarder {
            view,
            counters: DropCounters::default(),
            links: LinkNotes::default(),
            mix,
            scratch: ForwarderScratch::default(),
        }
    }

    /// Handles an order. Orders must be handled in the order in which they were given.
    pub fn handle_order<C: Ciphers>(
        &mut self,
        shard: &mut SessionShard<C>,
        order: WorkerOrder<C::Aead>,
    ) {
        match order {
            WorkerOrder::Keys(order) => shard.handle_order(order),
            WorkerOrder::View(view) => {
                self.view = view;
                self.give_up_held();
            }
            WorkerOrder::Gate { link, open, marking } => {
                if !self.view.is_past(link) {
                    self.links.set_gate(link, open, marking);
                }
            }
        }
    }

    /// Counters since they were last taken.
    pub fn counters(&self) -> &DropCounters {
        &self.counters
    }

    /// Takes the counters since the last call.
    pub fn take_counters(&mut self) -> DropCounters {
        core::mem::take(&mut self.counters)
    }

    /// True if any counter changed since they were last taken.
    pub fn has_counted(&self) -> bool {
        self.counters != DropCounters::default()
    }

    /// Adds back counters that were taken and could not be delivered.
    pub fn put_back(&mut self, counters: &DropCounters) {
        self.counters.add(counters);
    }

    /// Counts drops outside of this crate, such as receive overflows.
    pub fn count_drop(&mut self, reason: DropReason, n: u64) {
        self.counters.drop(reason, n);
    }

    /// Passes notes on frames received and sent to `tell`. Notes that `tell` refuses are merged
    /// with later ones. Returns true if all were accepted.
    pub fn tell<C: Ciphers>(
        &mut self,
        shard: &mut SessionShard<C>,
        mut tell: impl FnMut(WorkerNote) -> bool,
    ) -> bool {
        // Sessions first: the first frame of a new session activates it.
        let all = shard.tell(|note| tell(WorkerNote::Session(note)));
        self.links.tell(|note| tell(WorkerNote::Link(*note))) && all
    }

    /// Frees memory that a burst of traffic needed.
    pub(crate) fn rest(&mut self) {
        self.scratch = ForwarderScratch::default();
        self.mix.rest();
    }

    /// Handles one batch, as [`crate::Relay::handle_batch`] does. `local` gets the cells for this
    /// node, and returns how many it did not pass on to the first worker. Without `local`, all of
    /// them go to the first worker.
    pub fn handle_batch<C: Ciphers, S: FrameSink, H: Handoff>(
        &mut self,
        shard: &mut SessionShard<C>,
        turn: &mut CallContext<'_, S, H>,
        buf: &mut [u8],
        incoming: &[ReceivedRun],
        arrival: ArrivalSource,
        mut local: Option<&mut impl FnMut(&mut [u8], LocalCells<'_>, &mut H) -> u64>,
    ) {
        let mut frames = core::mem::take(&mut self.scratch.frames);
        let bytes = cut(incoming, &mut frames);
        if arrival == ArrivalSource::Socket {
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
                    self.open(shard, turn, buf, equal, BatchSource { incoming, arrival }, class);
                    self.pass_on(shard, turn, buf, class, local.as_deref_mut());
                    self.sort_wide(shard, turn, buf, local.as_deref_mut());
                }
                None => self.hand_stun(shard.worker(), turn.hand, buf, equal, incoming),
            }
        }
        self.scratch.frames = frames;
    }

    /// Drops frames to addresses that are not in use, before any decryption.
    fn drop_stale(&mut self, incoming: &[ReceivedRun], frames: &mut Vec<(u32, u32)>) {
        let Some(accepted) = &self.view.accepted else { return };
        let mut last = None;
        let all = frames.len();
        frames.retain(|&(_, source)| {
            // Frames of one run have the same destination address.
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
        turn: &mut CallContext<'_, S, H>,
        buf: &mut [u8],
        frames: &[(u32, u32)],
        origin: BatchSource<'_>,
        class: SizeClass,
    ) {
        let mut scratch = core::mem::take(&mut self.scratch);
        scratch.offsets.clear();
        scratch.offsets.extend(frames.iter().map(|&(at, _)| at));
        scratch.opened.clear();
        let len = class.frame_len();
        shard.open_batch(turn.now, buf, &scratch.offsets, len, &mut scratch.opened);
        let mut tally = LaneTally::default();
        scratch.sorted.last = None;
        for (&(at, source), opening) in frames.iter().zip(scratch.opened.drain(..)) {
            let from = &origin.incoming[source as usize];
            let outcome = match opening {
                OpenResult::Data(opened) => {
                    let kind = buf[at as usize + link::KIND_AT];
                    self.count(&mut tally, &opened, kind, (source, class), origin.incoming);
                    let frame = OpenedFrame {
                        link: LinkId::from(opened.peer),
                        sender: tally.sender.as_ref(),
                        at,
                        level: opened.level,
                        newest: opened.newest,
                        congested: from.congested,
                    };
                    self.take(&frame, buf, class, &mut scratch.sorted, turn.hand)
                }
                OpenResult::Worker(worker) => {
                    let frame = FrameAt { buf: &*buf, at, len: len as u32 };
                    hand_on(turn.hand, HandoffKind::Raw { worker, from }, frame)
                }
                // The first worker knows all sessions, so no worker can open this frame.
                OpenResult::Handshake if origin.arrival == ArrivalSource::Worker(0) => {
                    Err(DropReason::UnknownIndex)
                }
                OpenResult::Handshake => {
                    let frame = FrameAt { buf: &*buf, at, len: len as u32 };
                    hand_on(turn.hand, HandoffKind::Unknown { from }, frame)
                }
                OpenResult::Drop(reason) => Err(reason),
            };
            if let Err(reason) = outcome {
                self.counters.drop_in(reason, 1);
            }
        }
        self.settle(&tally, class, origin.incoming);
        self.scratch = scratch;
    }

    /// Adds an opened frame to the tally of its session and lane.
    #[inline]
    fn count(
        &mut self,
        tally: &mut LaneTally,
        opened: &OpenedSessionFrame,
        kind: u8,
        (source, class): (u32, SizeClass),
        incoming: &[ReceivedRun],
    ) {
        let of = Some((LinkId::from(opened.peer), opened.lane));
        if tally.of != of {
            self.settle(tally, class, incoming);
            let sender = self.view.link(LinkId::from(opened.peer)).copied();
            *tally = LaneTally { of, sender, ..LaneTally::default() };
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
    fn settle(&mut self, tally: &LaneTally, class: SizeClass, incoming: &[ReceivedRun]) {
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

    /// Decides where an opened frame goes: to the group of its next hop, to this node, or to the
    /// first worker.
    pub(crate) fn take(
        &self,
        arrived: &OpenedFrame<'_>,
        buf: &mut [u8],
        class: SizeClass,
        sorted: &mut SortedBatch,
        hand: &mut impl Handoff,
    ) -> Result<(), DropReason> {
        let &OpenedFrame { link, sender, at, level, newest, congested } = arrived;
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
                    frame[MARK_AT] = CongestionMark::Congested as u8;
                }
                if let (Some(sender), Some(own)) = (sender, self.view.own()) {
                    let header = RoutedHeader::parse(&frame[link::ROUTED_AT..])?;
                    let goes = match kind {
                        LinkKind::Direct => direct::check(&header, own, sender.address)?,
                        LinkKind::Leg if !is_leg(&header, class) => {
                            return Err(DropReason::Malformed);
                        }
                        _ => way(&header, own, sender.address, sender.may_transit)?,
                    };
                    if let ForwardingDecision::On(hops) = goes {
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
                sorted.wide.push(HandoffFrame { link, at, len, congested });
                return Ok(());
            }
            LinkKind::SmallCell | LinkKind::MediumCell => return Err(DropReason::Malformed),
        }
        let frame = FrameAt { buf: &*buf, at, len: len as u32 };
        hand_on(hand, HandoffKind::Opened { link, congested }, frame)
    }

    /// The next hop to `dst`. Consecutive cells to one destination share a look-up.
    fn hop(&self, dst: Address, last: &mut Option<RouteCache>) -> Result<LinkId, DropReason> {
        if let Some(last) = last.as_ref().filter(|last| last.dst == dst) {
            return Ok(last.link);
        }
        let link = self.view.next_hop(dst).ok_or(DropReason::NoRoute)?;
        *last = Some(RouteCache { dst, link });
        Ok(link)
    }

    /// Passes cells for this node to `local`, and sends the sorted cells.
    pub(crate) fn pass_on<C: Ciphers, S: FrameSink, H: Handoff>(
        &mut self,
        shard: &mut SessionShard<C>,
        turn: &mut CallContext<'_, S, H>,
        buf: &mut [u8],
        class: SizeClass,
        local: Option<&mut impl FnMut(&mut [u8], LocalCells<'_>, &mut H) -> u64>,
    ) {
        let mut sorted = core::mem::take(&mut self.scratch.sorted);
        let is_local = !sorted.local.is_empty() || !sorted.legs.is_empty();
        if let Some(local) = local.filter(|_| is_local) {
            let SortedBatch { local: offsets, local_from: from, legs, onward, mixed, .. } =
                &mut sorted;
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
            let run = OutgoingRun { buf: &mut *buf, offsets: &group.offsets, class };
            self.dispatch(shard, turn, group.link, run);
            group.offsets.clear();
        }
        self.counters.traffic.cells_transit += all - own;
        self.counters.traffic.cells_origin += own;
        self.scratch.sorted = sorted;
    }

    /// Adds leg cells that leave again to the groups of cells in transit. Returns their number.
    fn sort_onward(&mut self, buf: &[u8], sorted: &mut SortedBatch) -> u64 {
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

    /// Seals and sends cells that have left the hold. If this worker may not send them, it hands
    /// them to the first worker.
    pub(crate) fn steer<C: Ciphers, S: FrameSink, H: Handoff>(
        &mut self,
        shard: &mut SessionShard<C>,
        turn: &mut CallContext<'_, S, H>,
        link: LinkId,
        mut run: OutgoingRun<'_>,
    ) {
        let all = run.offsets;
        for offsets in all.chunks(RUN_MAX) {
            let mut run = run.of(offsets);
            let Some(to) = self.endpoint(shard, turn.now, link) else {
                let taken = hand_over(HandoffKind::Released { link }, &run, turn.hand);
                self.lose(&offsets[taken..]);
                continue;
            };
            self.counters.traffic.dispatched += run.count();
            // `depart` has counted cells that could not be sealed. No caller needs to know.
            let _sealed = self.depart(shard, turn, (link, to), &mut run, false);
        }
    }

    /// Counts outgoing frames that another worker did not take.
    pub(crate) fn lose(&mut self, offsets: &[u32]) {
        self.counters.traffic.dispatched += offsets.len() as u64;
        self.counters.drop_out(DropReason::OtherWorker, offsets.len() as u64);
    }

    /// The endpoint of a link, if this worker may send to it by itself, at once.
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

    /// Seals a run unless it is sealed, and sends it. Returns true if more frames may follow.
    ///
    /// Frames for which the kernel has no room go to the first worker, and the link's gate closes.
    ///
    /// Errors: as of [`shoal_session::SessionShard::seal_batch`]. The run is counted as dropped.
    pub(crate) fn depart<C: Ciphers, S: FrameSink, H: Handoff>(
        &mut self,
        shard: &mut SessionShard<C>,
        turn: &mut CallContext<'_, S, H>,
        (link, to): (LinkId, Endpoints),
        run: &mut OutgoingRun<'_>,
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
            Some(SendError::Full) => {
                note.refused = true;
                let marking = self.links.is_marking(link);
                self.links.set_gate(link, false, marking);
                let what = HandoffKind::Sealed { link };
                let lost = rest.iter().filter(|&&at| !turn.hand.take(what, run.frame(at)));
                self.counters.drop_out(DropReason::OtherWorker, lost.count() as u64);
            }
            Some(stop @ (SendError::Failed | SendError::Inside | SendError::TooLong)) => {
                note.too_long |= stop == SendError::TooLong && run.class == SizeClass::Full;
                self.counters.drop_out(stop.reason(), rest.len() as u64);
            }
        }
        Ok(outcome.stop != Some(SendError::Full))
    }

    /// Sends sealed frames.
    pub(crate) fn transmit(
        &mut self,
        sink: &mut impl FrameSink,
        (link, ends): (LinkId, Endpoints),
        run: &OutgoingRun<'_>,
    ) -> SendOutcome {
        let len = run.class.frame_len();
        let path = SendPath { link: Some(link), ends };
        let outcome = self.send_outside(sink, path, (run.buf, run.offsets, len));
        self.counters.traffic.frames_out += outcome.sent as u64;
        self.counters.traffic.bytes_out += (outcome.sent * len) as u64;
        outcome
    }
}

/// True if a leg cell has the length and class that all leg cells have.
fn is_leg(header: &RoutedHeader, class: SizeClass) -> bool {
    class == SizeClass::Full && header.class() == TrafficClass::Bulk
}
