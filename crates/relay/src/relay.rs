//! The relay: the steps of forwarding that a worker's data path can't do. The data path
//! (`forward.rs`) sorts and sends a batch as in every worker. The relay does the rest, in the order
//! of the functions here:
//!
//! 1. [`Relay::handle_batch`]: datagrams of one `recvmmsg` go through the data path
//! 2. `finish`: handles notes of received and sent frames, cells that the data path may not send,
//!    handshakes, control and parts, all in place
//! 3. `dispatch`: marks cells; sends at once without a backlog, else queues in the egress
//! 4. `depart`: cuts frames into parts for a narrow path, chooses the endpoint of a link on trial,
//!    seals and sends
//! 5. `flush`: sends queued frames
//!
//! Cells of this node's own edge enter at step 1 through [`Relay::send_cells`]. Held cells
//! (`hold.rs`) leave the data path at their departure time and continue at step 2.

use std::collections::VecDeque;
use std::sync::Arc;

use shoal_crypto::{
    Aead, Ciphers, Identity, NetworkSecret, PlantedFault, PublicKey, Rng, Secret, StandardCiphers,
};
use shoal_link::{Admission, EgressConfig, LivenessConfig, Priority};
use shoal_mix::MixPool;
use shoal_routing::Routing;
use shoal_session::{EndpointRules, Endpoints, PeerId, Sessions};
use shoal_wire::{
    Address, CongestionMark, DropReason, LinkId, LinkKind, SizeClass, TAG_LEN, Time, link,
};

use crate::batch::{MARK_AT, OutgoingRun, forget_flows, peer_of};
use crate::control::RelayEvent;
use crate::cover::SlotQueue;
use crate::kept::{DeferredFrames, DeferringHandoff, lend};
use crate::lists::AuthorityInbox;
use crate::mirror::{AddressReports, Mirrors};
use crate::neighbours::{Neighbours, RETRY_AFTER};
use crate::probe::PunchAttempts;
use crate::shifts::ShiftLinks;
use crate::view::ForwardingView;
use crate::workers::WorkerOrders;
use crate::{
    ArrivalSource, CallContext, DropCounters, Forwarder, FrameSink, Handoff, HandoffFrame,
    HoldConfig, LinkConfig, LinkView, LocalCells, RUN_MAX, ReceivedRun,
};

#[derive(Clone, Debug)]
pub struct RelayConfig {
    /// Overlay address of this node. Host number 0 makes it a router.
    pub address: Address,
    /// Settings of sessions with neighbours.
    pub session: shoal_session::SessionConfig,
    /// Timers that detect silence.
    pub liveness: LivenessConfig,
    /// Limits of each egress.
    pub egress: EgressConfig,
    /// Settings of the hold stage, with limits per worker.
    pub hold: HoldConfig,
    /// Routing constants, used by routers only.
    pub routing: shoal_routing::Config,
    /// Maximum number of events that wait to be polled. Beyond that the oldest is dropped.
    pub events_max: usize,
}

/// Scratch memory, used again by every call.
#[derive(Default)]
pub(crate) struct RelayScratch {
    pub(crate) offsets: Vec<u32>,
    /// Frames from the egress or a hold, and their offsets.
    pub(crate) run: Vec<u8>,
    pub(crate) stride: Vec<u32>,
    /// Offsets of frames that return to the egress.
    pub(crate) back: Vec<u32>,
    /// Parts of full frames, and their offsets.
    pub(crate) cut: Vec<u8>,
    pub(crate) cut_at: Vec<u32>,
    /// Full frames reassembled from parts.
    pub(crate) whole: Vec<u8>,
    pub(crate) whole_frames: Vec<HandoffFrame>,
}

/// A node and its neighbours. `C` selects the ciphers for frames and proofs.
pub struct Relay<C: Ciphers = StandardCiphers> {
    pub(crate) config: RelayConfig,
    /// Address of this host at another router.
    pub(crate) second: Option<Address>,
    pub(crate) sessions: Sessions<Endpoints, C>,
    pub(crate) neighbours: Neighbours,
    pub(crate) routing: Option<Routing<C>>,
    /// The first worker's data path. The shard of its sessions is in `sessions`.
    pub(crate) own: Forwarder,
    /// Frames that the data path left to the relay.
    pub(crate) kept: DeferredFrames,
    pub(crate) events: VecDeque<RelayEvent>,
    pub(crate) lists: AuthorityInbox,
    /// Links whose egress holds cells, and the time of the next attempt.
    pub(crate) blocked: Vec<LinkId>,
    pub(crate) retry_at: Option<Time>,
    pub(crate) scratch: RelayScratch,
    pub(crate) rng: Rng,
    /// The seed of the other workers' hold pools.
    pub(crate) mix_seed: Secret<32>,
    /// Links with a path challenge or answer to send.
    pub(crate) paths: Vec<LinkId>,
    pub(crate) workers: WorkerOrders<C>,
    /// The next slots of covered links.
    pub(crate) slots: SlotQueue,
    /// Neighbours that must be told that slots have begun.
    pub(crate) covers_to_tell: Vec<LinkId>,
    /// Observations of this node's public address.
    pub(crate) mirrors: Mirrors,
    /// Hosts that must be told their public address.
    pub(crate) seen_to_tell: AddressReports,
    /// Attempts to find a path to hosts that can't be called.
    pub(crate) probes: PunchAttempts,
    /// Links whose addresses shift.
    pub(crate) shifts: ShiftLinks,
    /// Monotonic time of the last wall-clock reading, and that reading in ms since 1970.
    pub(crate) wall: (Time, u64),
    /// True if links carry only the authority's lists.
    pub(crate) lists_only: bool,
    /// Rules for the endpoints from and to which frames may go.
    pub(crate) rules: Arc<EndpointRules>,
    /// True if no cell may leave over a link without cover.
    pub(crate) cover_required: bool,
}

impl Relay {
    /// A node without neighbours. `origins` are the routers whose keys are known. `unix_ms` is the
    /// wall-clock time at `now`.
    pub fn new(
        config: RelayConfig,
        identity: Identity,
        secret: NetworkSecret,
        origins: impl IntoIterator<Item = (u32, PublicKey)>,
        seed: [u8; 32],
        now: Time,
        unix_ms: u64,
    ) -> Relay {
        Relay::with_ciphers(config, identity, secret, origins, seed, now, unix_ms)
    }
}

impl<C: Ciphers> Relay<C> {
    /// A node without neighbours, as [`Relay::new`], with the ciphers of `C`.
    pub fn with_ciphers(
        config: RelayConfig,
        identity: Identity,
        secret: NetworkSecret,
        origins: impl IntoIterator<Item = (u32, PublicKey)>,
        seed: [u8; 32],
        now: Time,
        unix_ms: u64,
    ) -> Relay<C> {
        let mut seeds = Rng::new(seed);
        let me = config.address;
        let routing = me.is_router().then(|| {
            Routing::with_ciphers(
                config.routing.clone(),
                me.router,
                identity.clone(),
                origins,
                seeds.fork("routing"),
                now,
                unix_ms / 1_000,
            )
        });
        let (mirror, net) = (me.is_router().then(|| identity.public()), secret.clone());
        let seed = seeds.fork("sessions");
        let sessions =
            Sessions::with_ciphers(config.session.clone(), identity, secret, seed, now, unix_ms);
        let paths = Rng::new(seeds.fork("paths"));
        let mix_seed = Secret::new(seeds.fork("mix"));
        let mirrors = Mirrors::new(net, mirror, seeds.fork("mirrors"), unix_ms);
        let mix = MixPool::flawed(config.hold.limits, *mix_seed.expose(), C::Aead::flaw());
        Relay {
            sessions,
            neighbours: Neighbours::default(),
            routing,
            own: Forwarder::new(Arc::new(ForwardingView::new(me)), mix),
            mix_seed,
            config,
            second: None,
            kept: DeferredFrames::default(),
            events: VecDeque::new(),
            lists: AuthorityInbox::default(),
            blocked: Vec::new(),
            retry_at: None,
            scratch: RelayScratch::default(),
            rng: paths,
            paths: Vec::new(),
            workers: WorkerOrders::default(),
            slots: SlotQueue::default(),
            covers_to_tell: Vec::new(),
            mirrors,
            seen_to_tell: AddressReports::default(),
            probes: PunchAttempts::default(),
            shifts: ShiftLinks::default(),
            wall: (now, unix_ms),
            lists_only: false,
            rules: Arc::default(),
            cover_required: false,
        }
    }

    /// Adds a neighbour and calls it if its endpoint is known.
    ///
    /// # Errors
    ///
    /// `table_full`: nothing has changed.
    pub fn add_link(&mut self, now: Time, config: &LinkConfig) -> Result<LinkId, DropReason> {
        let peer = self.sessions.add_peer(config.key).map_err(|_| DropReason::TableFull)?;
        let liveness = self.config.liveness;
        let way_out = (self.config.egress, self.config.hold.link_delay);
        let seed = self.rng.u64();
        let link = self.neighbours.insert(now, peer, config, seed, liveness, way_out);
        if let Some(neighbour) = self.neighbours.get_mut(link) {
            neighbour.cover_required = self.cover_required;
            neighbour.liveness.set_replaceable(self.second.is_some());
        }
        if let Some(endpoint) = config.endpoint.map(Endpoints::from) {
            self.sessions.set_endpoint(peer, Some(endpoint));
            self.sessions.set_home(peer, Some(endpoint));
            self.sessions.connect(now, peer);
        }
        self.refresh();
        Ok(link)
    }

    pub fn address(&self) -> Address {
        self.config.address
    }

    /// Counters of traffic and drops.
    pub fn counters(&self) -> &DropCounters {
        &self.own.counters
    }

    /// Counts drops outside of this crate, such as receive overflows.
    pub fn count_drop(&mut self, reason: DropReason, n: u64) {
        self.own.counters.drop(reason, n);
    }

    pub fn links(&self) -> impl Iterator<Item = LinkView> + '_ {
        self.neighbours.views().map(|view| self.with_shift(view))
    }

    /// Replaces the table of routers whose keys are known, for example after a reload of the hosts
    /// file.
    pub fn set_origins(&mut self, now: Time, origins: impl IntoIterator<Item = (u32, PublicKey)>) {
        if let Some(routing) = &mut self.routing {
            routing.set_origins(now, origins);
        }
        self.refresh();
    }

    /// The routing state, on routers.
    pub fn routing(&self) -> Option<&Routing<C>> {
        self.routing.as_ref()
    }

    pub fn sessions(&self) -> &Sessions<Endpoints, C> {
        &self.sessions
    }

    /// Handles one batch of datagrams. `incoming` gives their positions in `buf`. `local` gets the
    /// cells for this node and returns their number. Frames in `buf` are overwritten.
    pub fn handle_batch<S: FrameSink, H: Handoff>(
        &mut self,
        turn: &mut CallContext<'_, S, H>,
        buf: &mut [u8],
        incoming: &[ReceivedRun],
        arrival: ArrivalSource,
        local: &mut impl FnMut(&mut [u8], LocalCells<'_>, &mut H) -> u64,
    ) {
        let rest = self.take_stun(buf, incoming);
        let incoming = rest.as_deref().unwrap_or(incoming);
        let hand = &mut DeferringHandoff { kept: &mut self.kept, others: &mut *turn.hand };
        let here = &mut CallContext { now: turn.now, sink: &mut *turn.sink, hand };
        let shard = self.sessions.shard();
        self.own.handle_batch(shard, here, buf, incoming, arrival, Some(&mut lend(local)));
        self.finish(turn, buf);
        self.handle_whole(turn, local);
        self.drive(turn.now, turn.sink);
    }

    /// Sorts and sends opened frames, and finishes the frames that the data path leaves.
    pub(crate) fn sort_opened<S: FrameSink, H: Handoff>(
        &mut self,
        turn: &mut CallContext<'_, S, H>,
        buf: &mut [u8],
        frames: &[HandoffFrame],
        local: &mut impl FnMut(&mut [u8], LocalCells<'_>, &mut H) -> u64,
    ) {
        let hand = &mut DeferringHandoff { kept: &mut self.kept, others: &mut *turn.hand };
        let here = &mut CallContext { now: turn.now, sink: &mut *turn.sink, hand };
        self.own.handle_opened(self.sessions.shard(), here, buf, frames, &mut lend(local));
        self.finish(turn, buf);
    }

    /// Sends cells of this node's own edge.
    ///
    /// `kind` is [`LinkKind::Cell`] for cells with an end-to-end seal and [`LinkKind::Leg`] for
    /// cells of a circuit. For the direct link, `kind` is [`LinkKind::Direct`], and the plaintext
    /// is at the position of sealed bytes. Each frame of `len` bytes at `offsets` contains its
    /// routed header and payload. All frames have the destination and class of the first. The
    /// worker that owns the lane of the two hosts sends cells with an end-to-end seal.
    ///
    /// Cells without a route are counted as `no_route`.
    pub fn send_cells<S: FrameSink, H: Handoff>(
        &mut self,
        turn: &mut CallContext<'_, S, H>,
        kind: LinkKind,
        buf: &mut [u8],
        offsets: &[u32],
        len: usize,
    ) {
        let hand = &mut DeferringHandoff { kept: &mut self.kept, others: &mut *turn.hand };
        let here = &mut CallContext { now: turn.now, sink: &mut *turn.sink, hand };
        self.own.send_cells(self.sessions.shard(), here, kind, buf, offsets, len);
        self.finish(turn, buf);
        self.refresh();
    }

    /// Finishes the frames that the data path left in `buf`, and processes its notes.
    pub(crate) fn finish<S: FrameSink, H>(
        &mut self,
        turn: &mut CallContext<'_, S, H>,
        buf: &mut [u8],
    ) {
        let now = turn.now;
        self.settle(now);
        let mut kept = core::mem::take(&mut self.kept);
        self.take_back(now, buf, &kept.sealed);
        self.send_released(now, buf, &kept.released, turn.sink);
        for &(from, at, len) in &kept.unknown {
            let frame = &mut buf[at as usize..(at + len) as usize];
            let stray = self.handle_stray(now, from, frame, turn.sink);
            match stray.unwrap_or_else(|| self.sessions.handle_handshake(now, from, frame)) {
                Ok(()) => self.own.counters.traffic.handshakes_in += 1,
                Err(reason) => self.own.counters.drop_in(reason, 1),
            }
        }
        for opened in &kept.opened {
            let frame = &buf[opened.at as usize..(opened.at + opened.len) as usize];
            if let Err(reason) = self.take_opened(now, opened, frame) {
                self.own.counters.drop_in(reason, 1);
            }
        }
        kept.clear();
        self.kept = kept;
    }

    /// Processes the notes of the first worker's data path like those of the other workers.
    pub(crate) fn settle(&mut self, now: Time) {
        // Sessions first: the first frame of a new session activates it.
        self.sessions.take_notes(now);
        while let Some(note) = self.own.links.poll_note() {
            self.note_link(now, &note);
        }
    }

    /// Handles an opened frame that is not a cell.
    ///
    /// # Errors
    ///
    /// `unknown_peer`: the neighbour was removed meanwhile. `malformed`: the frame has an unknown
    /// kind, or one that the data path finishes.
    fn take_opened(
        &mut self,
        now: Time,
        at: &HandoffFrame,
        frame: &[u8],
    ) -> Result<(), DropReason> {
        let neighbour = self.neighbours.get_mut(at.link).ok_or(DropReason::UnknownPeer)?;
        match LinkKind::from_byte(frame[link::KIND_AT]).map_err(|_| DropReason::Malformed)? {
            // The data path leaves a cell only if its view lacks the neighbour.
            LinkKind::Cell | LinkKind::Direct | LinkKind::Leg => {
                return Err(DropReason::UnknownPeer);
            }
            // The data path finishes these kinds itself.
            LinkKind::SmallCell | LinkKind::MediumCell | LinkKind::Cover => {
                return Err(DropReason::Malformed);
            }
            LinkKind::Control => {
                self.own.counters.traffic.control_in += 1;
                self.handle_control(now, at.link, &frame[link::BODY_AT..frame.len() - TAG_LEN]);
            }
            LinkKind::Keepalive => {
                self.own.counters.traffic.keepalives_in += 1;
                neighbour.liveness.hurry_report(now);
                self.neighbours.reschedule(at.link);
            }
            LinkKind::Part => self.take_part(at, frame)?,
        }
        Ok(())
    }

    /// The neighbour through which this node's own cells reach `dst`.
    pub fn next_hop(&self, dst: Address) -> Option<LinkId> {
        self.known().origin_hop(dst)
    }

    /// Number of full data frames to `dst` that may be sent now: zero during a backlog. Held cells
    /// don't count.
    ///
    /// A held frame enters the egress only after its hold. A source that follows the backlog would
    /// therefore make the backlog oscillate. A link with a hold reports the free space of its
    /// egress instead.
    pub fn room(&self, dst: Address) -> usize {
        self.room_on(self.next_hop(dst))
    }

    pub(crate) fn room_on(&self, link: Option<LinkId>) -> usize {
        let neighbour = link.and_then(|link| self.neighbours.get(link));
        match neighbour.filter(|neighbour| neighbour.established) {
            Some(neighbour) if neighbour.link_delay.is_some() => neighbour.egress.space(),
            Some(neighbour) => neighbour.egress.room(),
            None => 0,
        }
    }

    /// True if the backlog on the link to `dst` is so long that cells are marked.
    pub fn is_marking(&self, dst: Address) -> bool {
        let neighbour = self.next_hop(dst).and_then(|link| self.neighbours.get(link));
        neighbour.is_some_and(|n| n.egress.is_marking())
    }

    /// Marks cells if the backlog is long. Sends them at once if none waits, else queues them.
    pub(crate) fn dispatch(
        &mut self,
        now: Time,
        (link, priority): (LinkId, Priority),
        mut run: OutgoingRun<'_>,
        sink: &mut impl FrameSink,
    ) {
        self.own.counters.traffic.dispatched += run.count();
        let Some(neighbour) = self.neighbours.get_mut(link) else {
            return self.own.counters.drop_out(DropReason::NoRoute, run.count());
        };
        if neighbour.is_shut() && run.is_traffic() {
            return self.own.counters.drop_out(DropReason::CoverRequired, run.count());
        }
        let covered = neighbour.egress.has_shares() && neighbour.is_scheduled() && run.is_traffic();
        if !covered && neighbour.egress.is_marking() && priority == Priority::Data {
            self.own.counters.traffic.cells_marked += run.count();
            for &at in run.offsets {
                run.buf[at as usize + MARK_AT] = CongestionMark::Congested as u8;
            }
        }
        if covered {
            return self.share(link, priority, run);
        }
        let all = run.offsets;
        for offsets in all.chunks(RUN_MAX) {
            let Some(neighbour) = self.neighbours.get_mut(link) else { return };
            let bypass = neighbour.egress.admission(priority) == Admission::Bypass;
            let beside = C::Aead::flaw() == Some(PlantedFault::CoverReports)
                && priority == Priority::Control;
            if bypass && (!neighbour.is_scheduled() || beside) {
                self.depart(now, link, &mut run.of(offsets), false, sink);
                continue;
            }
            let of_others = priority == Priority::Control && run.is_traffic();
            for &at in offsets {
                let egress = &mut neighbour.egress;
                let pushed = match of_others && !egress.has_room_for_control_cells() {
                    true => Err(egress.refuse()),
                    false => egress.push(priority, run.class, run.frame(at).bytes()),
                };
                if let Err(reason) = pushed {
                    self.own.counters.drop_out(reason, 1);
                }
            }
        }
    }

    /// Queues cells on a covered link for the turns of their peers, and marks them if there is a
    /// backlog.
    fn share(&mut self, link: LinkId, priority: Priority, run: OutgoingRun<'_>) {
        let me = self.addresses();
        let Some(neighbour) = self.neighbours.get_mut(link) else { return };
        let len = run.class.frame_len();
        for &at in run.offsets {
            let frame = &mut run.buf[at as usize..at as usize + len];
            let egress = &mut neighbour.egress;
            let pushed = match peer_of(frame, me) {
                Some(peer) => {
                    if priority == Priority::Data && egress.is_marking_of(peer) {
                        self.own.counters.traffic.cells_marked += 1;
                        frame[MARK_AT] = CongestionMark::Congested as u8;
                    }
                    egress.push_of(peer, priority, run.class, frame)
                }
                None => egress.push(priority, run.class, frame),
            };
            if let Err(reason) = pushed {
                self.own.counters.drop_out(reason, 1);
            }
        }
    }

    /// Seals a run unless it is sealed, and sends it. Frames for which the kernel has no room
    /// return to the egress. Returns true if more frames may follow.
    pub(crate) fn depart(
        &mut self,
        now: Time,
        link: LinkId,
        run: &mut OutgoingRun<'_>,
        sealed: bool,
        sink: &mut impl FrameSink,
    ) -> bool {
        let Some(neighbour) = self.neighbours.get_mut(link) else { return false };
        let Some(endpoint) = neighbour.endpoint else {
            self.own.counters.drop_out(DropReason::NoEndpoint, run.count());
            return true;
        };
        if neighbour.width.is_narrow() && run.class == SizeClass::Full && !sealed {
            forget_flows(run.buf, run.offsets);
            return self.depart_cut(now, link, run, sink);
        }
        let bytes = run.offsets.len() * run.class.frame_len();
        // The endpoint of a slot's frames must not depend on their contents.
        let cells = sealed || run.is_traffic() || neighbour.is_scheduled();
        let to = neighbour.trial.place(endpoint, cells, bytes);
        let hand = &mut DeferringHandoff { kept: &mut self.kept, others: &mut () };
        let here = &mut CallContext { now, sink, hand };
        let goes_on = self.own.depart(self.sessions.shard(), here, (link, to), run, sealed);
        let mut refused = core::mem::take(&mut self.kept.sealed);
        self.take_back(now, run.buf, &refused);
        refused.clear();
        self.kept.sealed = refused;
        self.settle(now);
        if goes_on.is_err() {
            self.sessions.connect(now, PeerId::from(link));
        }
        goes_on.unwrap_or(true)
    }

    /// Keeps the data path from sending on a link until the retry after [`RETRY_AFTER`]. Later
    /// frames therefore can't overtake waiting ones.
    pub(crate) fn block(&mut self, now: Time, link: LinkId) {
        if !self.blocked.contains(&link) {
            self.blocked.push(link);
        }
        self.own.links.set_gate(link, false, false);
        self.retry_at = Some(now + RETRY_AFTER);
    }

    /// Sends the frames of blocked egresses, as far as the kernel accepts them.
    pub fn handle_writable(&mut self, now: Time, sink: &mut impl FrameSink) {
        self.retry_at = None;
        for link in core::mem::take(&mut self.blocked) {
            self.flush(now, link, sink);
            if !self.blocked.contains(&link) {
                self.own.links.set_gate(link, true, false);
            }
        }
        self.refresh();
    }

    fn flush(&mut self, now: Time, link: LinkId, sink: &mut impl FrameSink) {
        let mut run_buf = core::mem::take(&mut self.scratch.run);
        let mut offsets = core::mem::take(&mut self.scratch.stride);
        run_buf.resize(RUN_MAX * SizeClass::Full.frame_len(), 0);
        while let Some(neighbour) = self.neighbours.get_mut(link)
            && !neighbour.is_scheduled()
            && let Some(next) = neighbour.egress.take_run(&mut run_buf, RUN_MAX)
        {
            let len = next.class.frame_len() as u32;
            offsets.clear();
            offsets.extend((0..next.count as u32).map(|i| i * len));
            let run = &mut OutgoingRun { buf: &mut run_buf, offsets: &offsets, class: next.class };
            if !self.depart(now, link, run, next.sealed, sink) {
                break;
            }
        }
        self.scratch.run = run_buf;
        self.scratch.stride = offsets;
    }
}
