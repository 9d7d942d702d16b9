//! A worker that only forwards: the lanes that it holds, of all links, and a view of the routes.
//!
//! What it can finish alone it finishes: a cell that came on a lane of its own and leaves at once,
//! on a lane of its own, through a link where nothing waits. Everything else it hands over, to the
//! worker whose lane it is or to the first one, which runs the [`crate::Relay`]:
//!
//! ```text
//!             +-> raw: another worker's lane, a handshake, nobody knows    (any worker)
//! datagrams --+-> opened: control, for this node, a link that waits        (first worker)
//!             +-> sealed: the kernel has no room                           (first worker)
//!             +-> datagrams
//! ```
//!
//! Once per batch it tells the first worker what came and went, so that liveness, reports, keys and
//! endpoints are as exact as if that one had done it.

use std::net::SocketAddr;
use std::sync::Arc;

use shoal_crypto::{Ciphers, Standard};
use shoal_session::{Opened, Opening, PeerId, SessionShard};
use shoal_wire::{
    Address, DropReason, LinkId, LinkKind, Mark, RoutedHeader, SizeClass, Time, link,
};

use crate::batch::{
    Group, LANES, LastHop, cut, forget_flows, frame_len, group, is_cell, is_goodbye, lane_of,
    priority,
};
use crate::direct::check;
use crate::relay::{HOP_LIMIT_AT, MARK_AT};
use crate::view::{View, Way, way};
use crate::{Counters, Incoming, RUN_MAX, Sink, Stop};

/// Takes what a worker can't finish. Each says whether it was taken; what was not is dropped.
pub trait Hand {
    /// A frame as it came from `from`, untouched, for `worker`.
    fn raw(&mut self, worker: u8, from: &Incoming, frame: &[u8]) -> bool;
    /// The same for the first worker: no session that this one knows. Anybody can send such frames,
    /// so they must not take the room of others.
    fn unknown(&mut self, from: &Incoming, frame: &[u8]) -> bool;
    /// A frame that opened, for the first worker. `congested` as in [`Incoming`].
    fn opened(&mut self, link: LinkId, congested: bool, frame: &[u8]) -> bool;
    /// A cell that is to leave over `link`, for `worker` to send.
    fn leaving(&mut self, worker: u8, link: LinkId, frame: &[u8]) -> bool;
    /// A sealed frame that the kernel had no room for, for the first worker.
    fn sealed(&mut self, link: LinkId, frame: &[u8]) -> bool;
}

/// How frames reached a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// From its own socket.
    Socket,
    /// From this worker, who could not open them.
    Worker(u8),
}

/// What the first worker tells another.
pub enum Order<A> {
    /// Of sessions.
    Keys(shoal_session::Order<A>),
    /// Neighbours and routes from now on.
    View(Arc<View>),
    /// Whether something waits to leave over a link, so that nothing may pass it by.
    Gate {
        /// Which link.
        link: LinkId,
        /// Nothing waits.
        open: bool,
        /// So much waits that nothing more should be read for it.
        full: bool,
    },
}

/// What a worker tells the first one, once per batch.
#[derive(Clone, Copy, Debug)]
pub enum Note {
    /// Of a session.
    Session(shoal_session::Note),
    /// Of a link.
    Link(LinkNote),
}

/// What came and went over one link since it was last told.
#[derive(Clone, Copy, Debug)]
pub struct LinkNote {
    pub(crate) link: LinkId,
    /// Frames that opened, and the highest counter per lane.
    pub(crate) frames: u64,
    pub(crate) highest: [u32; LANES],
    /// Some of them were neither reports nor keepalives.
    pub(crate) traffic: bool,
    /// Where the newest of them came from.
    pub(crate) source: Option<SocketAddr>,
    /// Frames that left.
    pub(crate) sent: u64,
    /// The kernel had no room.
    pub(crate) refused: bool,
    /// The device takes no full frames.
    pub(crate) too_long: bool,
}

/// A link as this worker sees it.
struct Link {
    note: LinkNote,
    /// It stands in the list of links to tell of.
    listed: bool,
    closed: bool,
    full: bool,
}

/// Memory that every batch uses again.
#[derive(Default)]
pub(crate) struct Scratch {
    frames: Vec<(u32, u32)>,
    pub(crate) offsets: Vec<u32>,
    opened: Vec<Opening>,
    groups: Vec<Group>,
    /// Cells for this node, and the links that they came on.
    local: Vec<u32>,
    local_from: Vec<LinkId>,
}

/// Cells for this node in a batch's buffer, opened at the link.
#[derive(Clone, Copy, Debug)]
pub struct LocalCells<'a> {
    /// Where their frames start.
    pub offsets: &'a [u32],
    /// The neighbour that each came from.
    pub from: &'a [LinkId],
    /// Bytes of each frame.
    pub len: usize,
}

/// See the module's documentation. `C` is what it seals frames with.
pub struct Forwarder<C: Ciphers = Standard> {
    pub(crate) shard: SessionShard<C>,
    pub(crate) view: Arc<View>,
    links: Vec<Link>,
    listed: Vec<LinkId>,
    pub(crate) counters: Counters,
    pub(crate) scratch: Scratch,
}

impl<C: Ciphers> Forwarder<C> {
    /// Worker `worker`, from 1 on, of the relay that is made of `config`.
    pub fn new(config: &crate::Config, worker: u8) -> Forwarder<C> {
        Forwarder {
            shard: SessionShard::new(&config.session, worker),
            view: Arc::default(),
            links: Vec::new(),
            listed: Vec::new(),
            counters: Counters::default(),
            scratch: Scratch::default(),
        }
    }

    /// Takes in an order; they must come in the order in which they were given.
    pub fn handle_order(&mut self, order: Order<C::Aead>) {
        match order {
            Order::Keys(order) => self.shard.handle_order(order),
            Order::View(view) => self.view = view,
            Order::Gate { link, open, full } => {
                let link = self.link(link);
                (link.closed, link.full) = (!open, full);
            }
        }
    }

    /// Takes what was counted since the last call.
    pub fn take_counters(&mut self) -> Counters {
        core::mem::take(&mut self.counters)
    }

    /// Whether anything was counted since it was last taken.
    pub fn has_counted(&self) -> bool {
        self.counters != Counters::default()
    }

    /// Takes back what was taken and could not be told.
    pub fn put_back(&mut self, counters: &Counters) {
        self.counters.add(counters);
    }

    /// Counts drops that the shell saw, such as receive overflows.
    pub fn count_drop(&mut self, reason: DropReason, n: u64) {
        self.counters.drop(reason, n);
    }

    fn link(&mut self, link: LinkId) -> &mut Link {
        let at = link.0 as usize;
        let fresh = |at: usize| Link {
            note: LinkNote::new(LinkId(at as u32)),
            listed: false,
            closed: false,
            full: false,
        };
        for next in self.links.len()..=at {
            self.links.push(fresh(next));
        }
        &mut self.links[at]
    }

    /// The link's note, to be told.
    fn note(&mut self, link: LinkId) -> &mut LinkNote {
        if !core::mem::replace(&mut self.link(link).listed, true) {
            self.listed.push(link);
        }
        &mut self.link(link).note
    }

    /// Takes in one batch, as [`crate::Relay::handle_batch`] does. Cells for this node go to the
    /// first worker.
    pub fn handle_batch<H: Hand>(
        &mut self,
        now: Time,
        buf: &mut [u8],
        incoming: &[Incoming],
        arrival: Arrival,
        sink: &mut impl Sink,
        hand: &mut H,
    ) {
        let none = None::<&mut fn(&mut [u8], LocalCells<'_>, &mut H) -> u64>;
        self.handle_batch_with(now, buf, incoming, arrival, sink, hand, none);
    }

    /// The same; `local` gets the cells for this node, and says how many of them it did not hand on
    /// to the first worker.
    #[allow(clippy::too_many_arguments, reason = "the parts of one batch")]
    pub fn handle_batch_with<H: Hand>(
        &mut self,
        now: Time,
        buf: &mut [u8],
        incoming: &[Incoming],
        arrival: Arrival,
        sink: &mut impl Sink,
        hand: &mut H,
        mut local: Option<&mut impl FnMut(&mut [u8], LocalCells<'_>, &mut H) -> u64>,
    ) {
        let mut frames = core::mem::take(&mut self.scratch.frames);
        let bytes = cut(incoming, &mut frames);
        if arrival == Arrival::Socket {
            self.counters.traffic.bytes_in += bytes;
            self.counters.traffic.frames_in += frames.len() as u64;
        }
        let len_of = |frame: &(u32, u32)| frame_len(frame, incoming);
        for equal in frames.chunk_by(|a, b| len_of(a) == len_of(b)) {
            match SizeClass::of_frame(len_of(&equal[0]) as usize) {
                Some(class) => {
                    let from = (incoming, arrival, local.is_some());
                    self.open(now, buf, equal, from, class, sink, hand);
                    if let Some(local) = local.as_deref_mut() {
                        self.pass_local(buf, class, hand, local);
                    }
                }
                None => self.counters.drop_in(DropReason::BadSize, equal.len() as u64),
            }
        }
        self.scratch.frames = frames;
    }

    #[allow(clippy::too_many_arguments, reason = "the parts of one batch")]
    fn open(
        &mut self,
        now: Time,
        buf: &mut [u8],
        frames: &[(u32, u32)],
        (incoming, arrival, keeps): (&[Incoming], Arrival, bool),
        class: SizeClass,
        sink: &mut impl Sink,
        hand: &mut impl Hand,
    ) {
        let len = class.frame_len();
        let mut scratch = core::mem::take(&mut self.scratch);
        scratch.offsets.clear();
        scratch.offsets.extend(frames.iter().map(|&(at, _)| at));
        scratch.opened.clear();
        self.shard.open_batch(now, buf, &scratch.offsets, len, &mut scratch.opened);
        let mut last = None;
        for (&(at, source), opening) in frames.iter().zip(scratch.opened.drain(..)) {
            let (from, start) = (&incoming[source as usize], at as usize);
            let frame = &mut buf[start..start + len];
            let outcome = match opening {
                Opening::Data(opened) => {
                    let sorted = (&mut scratch.groups, &mut last);
                    let kept = (&mut scratch.local, &mut scratch.local_from);
                    let kept = keeps.then_some(kept);
                    self.take(opened, from, at, frame, sorted, kept, hand)
                }
                Opening::Handshake if arrival != Arrival::Worker(0) => {
                    hand.unknown(from, frame).then_some(()).ok_or(DropReason::OtherWorker)
                }
                Opening::Handshake => Err(DropReason::UnknownIndex),
                Opening::Worker(worker) => {
                    hand.raw(worker, from, frame).then_some(()).ok_or(DropReason::OtherWorker)
                }
                Opening::Drop(reason) => Err(reason),
            };
            if let Err(reason) = outcome {
                self.counters.drop_in(reason, 1);
            }
        }
        for group in scratch.groups.iter_mut().filter(|group| !group.offsets.is_empty()) {
            self.counters.traffic.cells_transit += group.offsets.len() as u64;
            self.dispatch(now, group.link, None, buf, &group.offsets, class, sink, hand);
            group.offsets.clear();
        }
        self.scratch = scratch;
    }

    fn pass_local<H: Hand>(
        &mut self,
        buf: &mut [u8],
        class: SizeClass,
        hand: &mut H,
        local: &mut impl FnMut(&mut [u8], LocalCells<'_>, &mut H) -> u64,
    ) {
        let Scratch { local: offsets, local_from: from, .. } = &mut self.scratch;
        if !offsets.is_empty() {
            let cells = LocalCells { offsets, from, len: class.frame_len() };
            self.counters.traffic.cells_local += local(buf, cells, hand);
            offsets.clear();
            from.clear();
        }
    }

    /// Accounts for a frame that opened, and puts it into the group of its next hop or hands it
    /// over.
    #[allow(clippy::too_many_arguments, reason = "the parts of one frame")]
    fn take(
        &mut self,
        opened: Opened,
        from: &Incoming,
        at: u32,
        frame: &mut [u8],
        (groups, last): (&mut Vec<Group>, &mut Option<LastHop>),
        kept: Option<(&mut Vec<u32>, &mut Vec<LinkId>)>,
        hand: &mut impl Hand,
    ) -> Result<(), DropReason> {
        let link = LinkId(opened.peer.0);
        let kind = frame[link::KIND_AT];
        let note = self.note(link);
        note.frames += 1;
        note.traffic |= is_cell(kind) || kind == LinkKind::Part as u8;
        let is_cell = kind == LinkKind::Cell as u8;
        if opened.newest {
            // A counter of older keys says nothing of how many were sent under these.
            note.highest[usize::from(opened.lane) % LANES] = opened.counter;
            note.source = Some(from.from);
        }
        let direct = kind == LinkKind::Direct as u8 && kept.is_some();
        let sender = self.view.link(link).filter(|_| is_cell || direct).copied();
        if let (Some(sender), Some(me)) = (sender, self.view.me) {
            let header = RoutedHeader::parse(&frame[link::ROUTED_AT..])?;
            let way = match direct {
                true => check(&header, me, sender.address).map(|()| Way::Local)?,
                false => way(&header, me, sender.address, sender.may_transit)?,
            };
            if from.congested && (kept.is_some() || way != Way::Local) {
                frame[MARK_AT] = Mark::Congested as u8;
            }
            match (way, kept) {
                (Way::Transit(hops), _) => {
                    let hop = self.hop(header.dst(), last)?;
                    group(groups, hop, priority(header.class())).push(at);
                    frame[HOP_LIMIT_AT] = hops;
                    return Ok(());
                }
                (Way::Local, Some((local, local_from))) => {
                    local.push(at);
                    local_from.push(link);
                    return Ok(());
                }
                (Way::Local, None) => {}
            }
        }
        if !opened.newest && kind == LinkKind::Control as u8 && is_goodbye(frame) {
            return Err(DropReason::TooOld);
        }
        let taken = hand.opened(link, from.congested, frame);
        taken.then_some(()).ok_or(DropReason::OtherWorker)
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

    /// Where a link's frames go, if this worker may send them by itself, at once.
    pub(crate) fn endpoint(&mut self, now: Time, link: LinkId) -> Option<SocketAddr> {
        let closed = self.link(link).closed;
        let lanes = self.shard.seal_lanes(now, PeerId(link.0));
        self.view.link(link)?.endpoint.filter(|_| !closed && !lanes.is_empty())
    }

    /// Whether so much waits for this link that no more should be read for it.
    pub(crate) fn is_full(&self, link: LinkId) -> bool {
        self.links.get(link.0 as usize).is_some_and(|link| link.full)
    }

    /// Seals and sends frames, on the lane that is given or else each on one of this worker's.
    #[allow(clippy::too_many_arguments, reason = "the parts of one run")]
    pub(crate) fn dispatch(
        &mut self,
        now: Time,
        link: LinkId,
        lane: Option<u8>,
        buf: &mut [u8],
        offsets: &[u32],
        class: SizeClass,
        sink: &mut impl Sink,
        hand: &mut impl Hand,
    ) {
        let len = class.frame_len();
        let frame = |at: &u32| *at as usize..*at as usize + len;
        for run in offsets.chunks(RUN_MAX) {
            let Some(endpoint) = self.endpoint(now, link) else {
                self.hand_over(0, link, buf, run, len, hand);
                continue;
            };
            self.counters.traffic.dispatched += run.len() as u64;
            if let Err(reason) = self.seal(now, PeerId(link.0), lane, buf, run, len) {
                self.counters.drop_out(reason, run.len() as u64);
                continue;
            }
            let outcome = sink.send(endpoint, buf, run, len);
            self.counters.traffic.frames_out += outcome.sent as u64;
            self.counters.traffic.bytes_out += (outcome.sent * len) as u64;
            self.note(link).sent += outcome.sent as u64;
            let rest = &run[outcome.sent..];
            match outcome.stop {
                None => {}
                Some(Stop::Full) => {
                    self.link(link).closed = true;
                    self.note(link).refused = true;
                    let refused = rest.iter().filter(|at| !hand.sealed(link, &buf[frame(at)]));
                    self.counters.drop_out(DropReason::OtherWorker, refused.count() as u64);
                }
                Some(stop @ (Stop::Failed | Stop::TooLong)) => {
                    self.note(link).too_long |= stop == Stop::TooLong && class == SizeClass::Full;
                    self.counters.drop_out(DropReason::SendFailed, rest.len() as u64);
                }
            }
        }
    }

    /// Hands frames that are to leave over `link` to another worker; what it doesn't take is
    /// dropped.
    pub(crate) fn hand_over(
        &mut self,
        worker: u8,
        link: LinkId,
        buf: &[u8],
        offsets: &[u32],
        len: usize,
        hand: &mut impl Hand,
    ) {
        let frame = |at: &u32| *at as usize..*at as usize + len;
        let refused = offsets.iter().filter(|at| !hand.leaving(worker, link, &buf[frame(at)]));
        let refused = refused.count() as u64;
        self.counters.traffic.dispatched += refused;
        self.counters.drop_out(DropReason::OtherWorker, refused);
    }

    /// Seals a run, on the lane that is given or else each pair's cells on the pair's.
    fn seal(
        &mut self,
        now: Time,
        peer: PeerId,
        lane: Option<u8>,
        buf: &mut [u8],
        run: &[u32],
        len: usize,
    ) -> Result<(), DropReason> {
        let lanes = match lane {
            Some(lane) => lane..lane + 1,
            None => self.shard.seal_lanes(now, peer),
        };
        let mut rest = run;
        while let Some(&first) = rest.first() {
            let lane = lane_of(buf, first, &lanes);
            let same = rest.iter().take_while(|&&at| lane_of(buf, at, &lanes) == lane).count();
            let (run, later) = rest.split_at(same);
            forget_flows(buf, run);
            self.shard.seal_batch(now, peer, lane, buf, run, len)?;
            rest = later;
        }
        Ok(())
    }

    /// Tells what came and went since the last time. What `tell` refuses is kept and told with
    /// what comes later. Says whether everything was told.
    pub fn tell(&mut self, mut tell: impl FnMut(Note) -> bool) -> bool {
        let mut all = true;
        // Sessions first: a new one's first frame makes it the one that counts.
        self.shard.tell(|note| {
            let told = tell(Note::Session(note));
            all &= told;
            told
        });
        let mut listed = core::mem::take(&mut self.listed);
        listed.retain(|&link| {
            let known = self.link(link);
            let told = tell(Note::Link(known.note));
            if told {
                known.note = LinkNote::new(link);
                known.listed = false;
            }
            !told
        });
        all &= listed.is_empty();
        self.listed = listed;
        all
    }
}

impl LinkNote {
    fn new(link: LinkId) -> LinkNote {
        LinkNote {
            link,
            frames: 0,
            highest: [0; LANES],
            traffic: false,
            source: None,
            sent: 0,
            refused: false,
            too_long: false,
        }
    }
}
