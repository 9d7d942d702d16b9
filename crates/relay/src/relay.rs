//! The relay's own part of the way of a packet. As in every worker, the data path (`forward.rs`)
//! sorts and sends a batch. The relay does what the data path can't, in the order of the functions
//! here:
//!
//! 1. [`Relay::handle_batch`]: datagrams of one `recvmmsg` go through the data path
//! 2. `finish`: takes in notes of what came and went, cells that the data path may not send,
//!    handshakes, control and parts, all in the buffer where they lie
//! 3. `dispatch`: mark; straight on if there is no backlog, else wait in the egress
//! 4. `depart`: cut into parts for a small path, choose the place of a link on trial; seal and send
//! 5. `flush`: what waited leaves
//!
//! Cells of this node's own edge enter at 1 through [`Relay::send_cells`]. Cells that a hold keeps
//! (`hold.rs`) leave the data path when their time has come, and go on at 2.

use std::collections::VecDeque;
use std::sync::Arc;

use shoal_crypto::{
    Aead, Ciphers, Flaw, Identity, NetworkSecret, PublicKey, Rng, Secret, Standard,
};
use shoal_link::{Admission, EgressConfig, LivenessConfig, Priority};
use shoal_mix::Mix;
use shoal_routing::Routing;
use shoal_session::{EndpointRules, Endpoints, PeerId, Sessions};
use shoal_wire::{Address, DropReason, LinkId, LinkKind, Mark, SizeClass, TAG_LEN, Time, link};

use crate::batch::{MARK_AT, Run, forget_flows, peer_of};
use crate::control::Event;
use crate::cover::Slots;
use crate::hops::Hops;
use crate::kept::{Keeping, Kept, lend};
use crate::lists::Lists;
use crate::mirror::{Mirrors, SeenToTell};
use crate::neighbours::{Neighbours, RETRY_AFTER};
use crate::probe::Probes;
use crate::view::View;
use crate::workers::Workers;
use crate::{
    Arrival, Counters, Forwarder, Handed, Handoff, HoldConfig, Incoming, LinkConfig, LinkView,
    LocalCells, RUN_MAX, Sink, Turn,
};

/// What a relay is made of.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where this node is; host 0 makes it a router.
    pub address: Address,
    /// Sessions with neighbours.
    pub session: shoal_session::Config,
    /// How silence is noticed.
    pub liveness: LivenessConfig,
    /// Limits of each egress.
    pub egress: EgressConfig,
    /// What the hold stage does, and its limits per worker.
    pub hold: HoldConfig,
    /// Routing constants; used by routers only.
    pub routing: shoal_routing::Config,
    /// Events that may wait to be polled; one more and the oldest goes.
    pub events_max: usize,
}

/// Memory that every call uses again.
#[derive(Default)]
pub(crate) struct Scratch {
    pub(crate) offsets: Vec<u32>,
    /// What leaves the egress or a hold, and its offsets.
    pub(crate) run: Vec<u8>,
    pub(crate) stride: Vec<u32>,
    /// Offsets of what goes back to the egress.
    pub(crate) back: Vec<u32>,
    /// The parts of full frames that go out in parts, and their offsets.
    pub(crate) cut: Vec<u8>,
    pub(crate) cut_at: Vec<u32>,
    /// Full frames put together from parts.
    pub(crate) whole: Vec<u8>,
    pub(crate) whole_frames: Vec<Handed>,
}

/// A node among its neighbours. `C` is what it seals frames and checks proofs with.
pub struct Relay<C: Ciphers = Standard> {
    pub(crate) config: Config,
    pub(crate) sessions: Sessions<Endpoints, C>,
    pub(crate) neighbours: Neighbours,
    pub(crate) routing: Option<Routing<C>>,
    /// The first worker's data path. Its shard of the sessions stands in `sessions`.
    pub(crate) own: Forwarder,
    /// What the data path left to be finished.
    pub(crate) kept: Kept,
    pub(crate) events: VecDeque<Event>,
    pub(crate) lists: Lists,
    /// Links whose egress holds cells, and when to try them.
    pub(crate) blocked: Vec<LinkId>,
    pub(crate) retry_at: Option<Time>,
    pub(crate) scratch: Scratch,
    pub(crate) rng: Rng,
    /// What the other workers' pools of held cells are seeded from.
    pub(crate) mix_seed: Secret<32>,
    /// Links with a path challenge or an answer to be sent.
    pub(crate) paths: Vec<LinkId>,
    pub(crate) workers: Workers<C>,
    /// The next slots of covered links, and neighbours to be told that theirs have begun.
    pub(crate) slots: Slots,
    pub(crate) covers_to_tell: Vec<LinkId>,
    /// Where this node is seen, and hosts to be told where they are.
    pub(crate) mirrors: Mirrors,
    pub(crate) seen_to_tell: SeenToTell,
    /// Attempts to find a way to hosts that can't be called.
    pub(crate) probes: Probes,
    /// Links whose addresses hop.
    pub(crate) hops: Hops,
    /// Milliseconds since 1970, and when it was so late.
    pub(crate) wall: (Time, u64),
    /// Links carry the authority's lists and nothing else.
    pub(crate) lists_only: bool,
    /// Endpoints that frames may go to, and come from.
    pub(crate) rules: Arc<EndpointRules>,
    /// No cell leaves over a link without cover.
    pub(crate) cover_required: bool,
}

impl Relay {
    /// A node with no neighbours yet. `origins` are the routers whose keys are known; `unix_ms` is
    /// the wall clock that goes with `now`.
    pub fn new(
        config: Config,
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
    /// A node with no neighbours yet, as by [`Relay::new`], with the ciphers that the type names.
    pub fn with_ciphers(
        config: Config,
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
        let mix = Mix::flawed(config.hold.limits, *mix_seed.expose(), C::Aead::flaw());
        Relay {
            sessions,
            neighbours: Neighbours::default(),
            routing,
            own: Forwarder::new(Arc::new(View::new(me)), mix),
            mix_seed,
            config,
            kept: Kept::default(),
            events: VecDeque::new(),
            lists: Lists::default(),
            blocked: Vec::new(),
            retry_at: None,
            scratch: Scratch::default(),
            rng: paths,
            paths: Vec::new(),
            workers: Workers::default(),
            slots: Slots::default(),
            covers_to_tell: Vec::new(),
            mirrors,
            seen_to_tell: SeenToTell::default(),
            probes: Probes::default(),
            hops: Hops::default(),
            wall: (now, unix_ms),
            lists_only: false,
            rules: Arc::default(),
            cover_required: false,
        }
    }

    /// Adds a neighbour and, where an endpoint is known, calls it.
    ///
    /// Errors: `table_full`, and nothing has changed.
    pub fn add_link(&mut self, now: Time, config: &LinkConfig) -> Result<LinkId, DropReason> {
        let peer = self.sessions.add_peer(config.key).map_err(|_| DropReason::TableFull)?;
        let liveness = self.config.liveness;
        let way_out = (self.config.egress, self.config.hold.link_delay);
        let seed = self.rng.u64();
        let link = self.neighbours.insert(now, peer, config, seed, liveness, way_out);
        if let Some(neighbour) = self.neighbours.get_mut(link) {
            neighbour.cover_required = self.cover_required;
        }
        if let Some(endpoint) = config.endpoint.map(Endpoints::from) {
            self.sessions.set_endpoint(peer, Some(endpoint));
            self.sessions.set_home(peer, Some(endpoint));
            self.sessions.connect(now, peer);
        }
        self.refresh();
        Ok(link)
    }

    /// Where this node is.
    pub fn address(&self) -> Address {
        self.config.address
    }

    /// What was dropped and what went through.
    pub fn counters(&self) -> &Counters {
        &self.own.counters
    }

    /// Counts drops that the shell saw, such as receive overflows.
    pub fn count_drop(&mut self, reason: DropReason, n: u64) {
        self.own.counters.drop(reason, n);
    }

    /// The neighbours.
    pub fn links(&self) -> impl Iterator<Item = LinkView> + '_ {
        self.neighbours.views().map(|view| self.with_hop(view))
    }

    /// Replaces the table of routers whose keys are known, as after a reload of the hosts file.
    pub fn set_origins(&mut self, now: Time, origins: impl IntoIterator<Item = (u32, PublicKey)>) {
        if let Some(routing) = &mut self.routing {
            routing.set_origins(now, origins);
        }
        self.refresh();
    }

    /// The routing machine, on routers.
    pub fn routing(&self) -> Option<&Routing<C>> {
        self.routing.as_ref()
    }

    /// The sessions with neighbours.
    pub fn sessions(&self) -> &Sessions<Endpoints, C> {
        &self.sessions
    }

    /// Takes in one batch. `incoming` says where in `buf` datagrams lie; `local` gets the cells for
    /// this node, and returns how many they are. Frames of `buf` are overwritten.
    pub fn handle_batch<S: Sink, H: Handoff>(
        &mut self,
        turn: &mut Turn<'_, S, H>,
        buf: &mut [u8],
        incoming: &[Incoming],
        arrival: Arrival,
        local: &mut impl FnMut(&mut [u8], LocalCells<'_>, &mut H) -> u64,
    ) {
        let rest = self.take_stun(buf, incoming);
        let incoming = rest.as_deref().unwrap_or(incoming);
        let hand = &mut Keeping { kept: &mut self.kept, others: &mut *turn.hand };
        let here = &mut Turn { now: turn.now, sink: &mut *turn.sink, hand };
        let shard = self.sessions.shard();
        self.own.handle_batch(shard, here, buf, incoming, arrival, Some(&mut lend(local)));
        self.finish(turn, buf);
        self.handle_whole(turn, local);
        self.drive(turn.now, turn.sink);
    }

    /// Sorts and sends frames that are open already, and finishes what the data path leaves.
    pub(crate) fn sort_opened<S: Sink, H: Handoff>(
        &mut self,
        turn: &mut Turn<'_, S, H>,
        buf: &mut [u8],
        frames: &[Handed],
        local: &mut impl FnMut(&mut [u8], LocalCells<'_>, &mut H) -> u64,
    ) {
        let hand = &mut Keeping { kept: &mut self.kept, others: &mut *turn.hand };
        let here = &mut Turn { now: turn.now, sink: &mut *turn.sink, hand };
        self.own.handle_opened(self.sessions.shard(), here, buf, frames, &mut lend(local));
        self.finish(turn, buf);
    }

    /// Sends cells of this node's own edge: as [`LinkKind::Cell`] those with an end-to-end seal, as
    /// [`LinkKind::Direct`] those for the direct link, whose plaintext stands where a sealed one
    /// would, as [`LinkKind::Leg`] those of a circuit. Each frame of `len` bytes at `offsets` holds
    /// its routed header and payload in place; all have the destination and class of the first. The
    /// worker that holds the lane of their two hosts sends those with an end-to-end seal.
    ///
    /// Cells that no link leads to are counted as `no_route`.
    pub fn send_cells<S: Sink, H: Handoff>(
        &mut self,
        turn: &mut Turn<'_, S, H>,
        kind: LinkKind,
        buf: &mut [u8],
        offsets: &[u32],
        len: usize,
    ) {
        let hand = &mut Keeping { kept: &mut self.kept, others: &mut *turn.hand };
        let here = &mut Turn { now: turn.now, sink: &mut *turn.sink, hand };
        self.own.send_cells(self.sessions.shard(), here, kind, buf, offsets, len);
        self.finish(turn, buf);
        self.refresh();
    }

    /// Finishes what the data path left in `buf`, and takes in what it noted.
    pub(crate) fn finish<S: Sink, H>(&mut self, turn: &mut Turn<'_, S, H>, buf: &mut [u8]) {
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

    /// Takes in the notes of the first worker's data path, as those of the others.
    pub(crate) fn settle(&mut self, now: Time) {
        // Sessions first: the first frame of a new session puts that session in use.
        self.sessions.take_notes(now);
        while let Some(note) = self.own.links.poll_note() {
            self.note_link(now, &note);
        }
    }

    /// Takes an opened frame that is not a cell.
    ///
    /// Errors: `unknown_peer` if the neighbour that it came from was removed since, `malformed`.
    fn take_opened(&mut self, now: Time, at: &Handed, frame: &[u8]) -> Result<(), DropReason> {
        let neighbour = self.neighbours.get_mut(at.link).ok_or(DropReason::UnknownPeer)?;
        match LinkKind::from_byte(frame[link::KIND_AT]).map_err(|_| DropReason::Malformed)? {
            // The data path leaves a cell only where its view has no such neighbour.
            LinkKind::Cell | LinkKind::Direct | LinkKind::Leg => {
                return Err(DropReason::UnknownPeer);
            }
            // It finishes these itself.
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

    /// Full data frames towards `dst` that may be sent now, whatever a hold keeps: none while there
    /// is a backlog. After a hold, frames meet the backlog of a later time, and a source that stops
    /// and goes with it would make it swing: such a source is told what fits the egress.
    pub fn room(&self, dst: Address) -> usize {
        let neighbour = self.next_hop(dst).and_then(|link| self.neighbours.get(link));
        match neighbour.filter(|neighbour| neighbour.established) {
            Some(neighbour) if neighbour.link_delay.is_some() => neighbour.egress.space(),
            Some(neighbour) => neighbour.egress.room(),
            None => 0,
        }
    }

    /// Whether the backlog on the way to `dst` is so long that cells are marked.
    pub fn is_marking(&self, dst: Address) -> bool {
        let neighbour = self.next_hop(dst).and_then(|link| self.neighbours.get(link));
        neighbour.is_some_and(|n| n.egress.is_marking())
    }

    /// Marks cells while the backlog is long; sends at once when nothing waits, else queues.
    pub(crate) fn dispatch(
        &mut self,
        now: Time,
        (link, priority): (LinkId, Priority),
        mut run: Run<'_>,
        sink: &mut impl Sink,
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
                run.buf[at as usize + MARK_AT] = Mark::Congested as u8;
            }
        }
        if covered {
            return self.share(link, priority, run);
        }
        let all = run.offsets;
        for offsets in all.chunks(RUN_MAX) {
            let Some(neighbour) = self.neighbours.get_mut(link) else { return };
            let bypass = neighbour.egress.admission(priority) == Admission::Bypass;
            let beside =
                C::Aead::flaw() == Some(Flaw::CoverReports) && priority == Priority::Control;
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

    /// Has cells wait for turns of their peers on a covered link, marked where there is a backlog.
    fn share(&mut self, link: LinkId, priority: Priority, run: Run<'_>) {
        let me = self.address();
        let Some(neighbour) = self.neighbours.get_mut(link) else { return };
        let len = run.class.frame_len();
        for &at in run.offsets {
            let frame = &mut run.buf[at as usize..at as usize + len];
            let egress = &mut neighbour.egress;
            let pushed = match peer_of(frame, me) {
                Some(peer) => {
                    if priority == Priority::Data && egress.is_marking_of(peer) {
                        self.own.counters.traffic.cells_marked += 1;
                        frame[MARK_AT] = Mark::Congested as u8;
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

    /// Seals a run (unless it is sealed) and sends it. What the kernel has no room for goes back to
    /// the egress; says whether the link may send on.
    pub(crate) fn depart(
        &mut self,
        now: Time,
        link: LinkId,
        run: &mut Run<'_>,
        sealed: bool,
        sink: &mut impl Sink,
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
        // Where slots lead must not show what is in them.
        let cells = sealed || run.is_traffic() || neighbour.is_scheduled();
        let to = neighbour.trial.place(endpoint, cells, bytes);
        let hand = &mut Keeping { kept: &mut self.kept, others: &mut () };
        let here = &mut Turn { now, sink, hand };
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

    /// Has a link tried again after [`RETRY_AFTER`]; until then nothing passes what waits for it.
    pub(crate) fn block(&mut self, now: Time, link: LinkId) {
        if !self.blocked.contains(&link) {
            self.blocked.push(link);
        }
        self.own.links.set_gate(link, false, false);
        self.retry_at = Some(now + RETRY_AFTER);
    }

    /// Empties the egresses that were blocked, as far as the kernel takes it.
    pub fn handle_writable(&mut self, now: Time, sink: &mut impl Sink) {
        self.retry_at = None;
        for link in core::mem::take(&mut self.blocked) {
            self.flush(now, link, sink);
            if !self.blocked.contains(&link) {
                self.own.links.set_gate(link, true, false);
            }
        }
        self.refresh();
    }

    fn flush(&mut self, now: Time, link: LinkId, sink: &mut impl Sink) {
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
            let run = &mut Run { buf: &mut run_buf, offsets: &offsets, class: next.class };
            if !self.depart(now, link, run, next.sealed, sink) {
                break;
            }
        }
        self.scratch.run = run_buf;
        self.scratch.stride = offsets;
    }
}
