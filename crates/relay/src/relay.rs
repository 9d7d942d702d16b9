//! The way of a packet through a node. The functions stand in the order in which a packet meets
//! them:
//!
//! 1. [`Relay::handle_batch`]: datagrams of one `recvmmsg`, cut into frames of equal length
//! 2. `open`: unmask, replay check, decrypt, all in place, one call for the batch
//! 3. `sort`: control, for this node, or transit
//! 4. `steer`: hop limit, source check, next hop
//! 5. `dispatch`: mark; straight on if the egress is empty, else wait there
//! 6. `depart`: seal in place with the next link's key, one send for the run
//!
//! Cells of this node's own edge enter at 5 through [`Relay::send_cells`].

use std::collections::VecDeque;
use std::net::SocketAddr;

use shoal_crypto::{Ciphers, Identity, NetworkSecret, PublicKey, Rng, Standard};
use shoal_link::{Admission, EgressConfig, LivenessConfig, Priority};
use shoal_routing::Routing;
use shoal_session::{Opened, Opening, PeerId, Sessions};
use shoal_wire::{
    Address, DropReason, Level, LinkId, LinkKind, Mark, RoutedHeader, SizeClass, Time, link,
};

use crate::batch::{
    LastHop, Scratch, Tally, cut, forget_flows, frame_len, group, is_cell, priority, seal,
};
use crate::control::{Event, Lists};
use crate::neighbours::{Neighbours, RETRY_AFTER};
use crate::view::{Way, way};
use crate::workers::Workers;
use crate::{Counters, Incoming, LinkConfig, LinkView, RUN_MAX, Sink, Stop};

pub(crate) const MARK_AT: usize = link::ROUTED_AT + RoutedHeader::MARK_AT;
pub(crate) const HOP_LIMIT_AT: usize = link::ROUTED_AT + RoutedHeader::HOP_LIMIT_AT;

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
    /// Routing constants; used by routers only.
    pub routing: shoal_routing::Config,
    /// Events that may wait to be polled; one more and the oldest goes.
    pub events_max: usize,
}

/// A node among its neighbours. `C` is what it seals frames and checks proofs with.
pub struct Relay<C: Ciphers = Standard> {
    pub(crate) config: Config,
    pub(crate) sessions: Sessions<SocketAddr, C>,
    pub(crate) neighbours: Neighbours,
    pub(crate) routing: Option<Routing<C>>,
    pub(crate) counters: Counters,
    pub(crate) events: VecDeque<Event>,
    pub(crate) lists: Lists,
    /// Links whose egress holds cells, and when to try them.
    pub(crate) blocked: Vec<LinkId>,
    pub(crate) retry_at: Option<Time>,
    pub(crate) scratch: Scratch,
    pub(crate) rng: Rng,
    /// Links with a path challenge or an answer to be sent.
    pub(crate) paths: Vec<LinkId>,
    /// What other workers see may have changed.
    pub(crate) stale: bool,
    pub(crate) workers: Workers<C>,
    /// Links carry the authority's lists and nothing else.
    pub(crate) lists_only: bool,
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
    /// The same, with the ciphers that the type names.
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
        let seed = seeds.fork("sessions");
        let sessions =
            Sessions::with_ciphers(config.session.clone(), identity, secret, seed, now, unix_ms);
        Relay {
            config,
            sessions,
            neighbours: Neighbours::new(),
            routing,
            counters: Counters::default(),
            events: VecDeque::new(),
            lists: Lists::default(),
            blocked: Vec::new(),
            retry_at: None,
            scratch: Scratch::default(),
            rng: Rng::new(seeds.fork("paths")),
            paths: Vec::new(),
            stale: true,
            workers: Workers::default(),
            lists_only: false,
        }
    }

    /// Adds a neighbour and, where an endpoint is known, calls it.
    ///
    /// Errors: `table_full`, and nothing has changed.
    pub fn add_link(&mut self, now: Time, config: &LinkConfig) -> Result<LinkId, DropReason> {
        let peer = self.sessions.add_peer(config.key).map_err(|_| DropReason::TableFull)?;
        let (liveness, egress) = (self.config.liveness, self.config.egress);
        let seed = self.rng.u64();
        let link = self.neighbours.insert(now, peer, config, seed, liveness, egress);
        self.stale = true;
        if config.endpoint.is_some() {
            self.sessions.set_endpoint(peer, config.endpoint);
            self.sessions.set_home(peer, config.endpoint);
            self.sessions.connect(now, peer);
        }
        Ok(link)
    }

    /// Where this node is.
    pub fn address(&self) -> Address {
        self.config.address
    }

    /// What was dropped and what went through.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Counts drops that the shell saw, such as receive overflows.
    pub fn count_drop(&mut self, reason: DropReason, n: u64) {
        self.counters.drop(reason, n);
    }

    /// The neighbours.
    pub fn links(&self) -> impl Iterator<Item = LinkView> + '_ {
        self.neighbours.views()
    }

    /// Replaces the table of routers whose keys are known, as after a reload of the hosts file.
    pub fn set_origins(&mut self, now: Time, origins: impl IntoIterator<Item = (u32, PublicKey)>) {
        if let Some(routing) = &mut self.routing {
            routing.set_origins(now, origins);
        }
    }

    /// The routing machine, on routers.
    pub fn routing(&self) -> Option<&Routing<C>> {
        self.routing.as_ref()
    }

    /// The sessions with neighbours.
    pub fn sessions(&self) -> &Sessions<SocketAddr, C> {
        &self.sessions
    }

    /// Takes in one batch. `incoming` says where in `buf` datagrams lie; `local` gets the cells for
    /// this node: the buffer, the offsets of their frames, the frames' length. Frames of `buf` are
    /// overwritten.
    pub fn handle_batch(
        &mut self,
        now: Time,
        buf: &mut [u8],
        incoming: &[Incoming],
        sink: &mut impl Sink,
        local: &mut impl FnMut(&mut [u8], &[u32], usize),
    ) {
        let counted = self.handle_handed(now, buf, incoming, sink, local);
        self.counters.traffic.frames_in += counted.0;
        self.counters.traffic.bytes_in += counted.1;
    }

    /// The same for frames that another worker received and counted. Returns frames and bytes.
    pub fn handle_handed(
        &mut self,
        now: Time,
        buf: &mut [u8],
        incoming: &[Incoming],
        sink: &mut impl Sink,
        local: &mut impl FnMut(&mut [u8], &[u32], usize),
    ) -> (u64, u64) {
        let mut frames = core::mem::take(&mut self.scratch.frames);
        self.scratch.elsewhere.clear();
        self.scratch.heard.clear();
        let bytes = cut(incoming, &mut frames);
        let length_of = |frame: &(u32, u32)| frame_len(frame, incoming);
        for equal in frames.chunk_by(|a, b| length_of(a) == length_of(b)) {
            let len = length_of(&equal[0]) as usize;
            match SizeClass::of_frame(len) {
                Some(class) => self.open(now, buf, equal, incoming, class, sink, local),
                None => self.counters.drop_in(DropReason::BadSize, equal.len() as u64),
            }
        }
        let count = frames.len() as u64;
        self.scratch.frames = frames;
        self.drive(now, sink);
        (count, bytes)
    }

    #[allow(clippy::too_many_arguments, reason = "the parts of one batch")]
    fn open(
        &mut self,
        now: Time,
        buf: &mut [u8],
        frames: &[(u32, u32)],
        incoming: &[Incoming],
        class: SizeClass,
        sink: &mut impl Sink,
        local: &mut impl FnMut(&mut [u8], &[u32], usize),
    ) {
        let len = class.frame_len();
        let mut scratch = core::mem::take(&mut self.scratch);
        scratch.offsets.clear();
        scratch.offsets.extend(frames.iter().map(|&(at, _)| at));
        scratch.opened.clear();
        self.sessions.open_batch(now, buf, &scratch.offsets, len, &mut scratch.opened);
        self.sort(now, buf, frames, incoming, class, &mut scratch);
        self.pass_on(now, buf, class, &mut scratch, sink, local);
        self.pass_on_whole(now, incoming, &mut scratch, sink, local);
        // What `drive` may have used meanwhile is only capacity.
        self.scratch = scratch;
    }

    /// Hands what was sorted to the edge, to control, and to the links it leaves by.
    pub(crate) fn pass_on(
        &mut self,
        now: Time,
        buf: &mut [u8],
        class: SizeClass,
        scratch: &mut Scratch,
        sink: &mut impl Sink,
        local: &mut impl FnMut(&mut [u8], &[u32], usize),
    ) {
        self.bar(scratch);
        let len = class.frame_len();
        if !scratch.local.is_empty() {
            self.counters.traffic.cells_local += scratch.local.len() as u64;
            local(buf, &scratch.local, len);
            scratch.local.clear();
        }
        for &(from, at) in &scratch.control {
            let body = at as usize + link::BODY_AT..at as usize + len - shoal_wire::TAG_LEN;
            self.handle_control(now, from, &buf[body]);
        }
        scratch.control.clear();
        for group in &mut scratch.groups {
            self.counters.traffic.cells_transit += group.offsets.len() as u64;
            self.dispatch(now, group.link, group.priority, buf, &group.offsets, class, sink);
            group.offsets.clear();
        }
    }

    /// Sorts what was opened. Frames of one session in a row are accounted for together.
    fn sort(
        &mut self,
        now: Time,
        buf: &mut [u8],
        frames: &[(u32, u32)],
        incoming: &[Incoming],
        class: SizeClass,
        scratch: &mut Scratch,
    ) {
        let len = class.frame_len();
        let mut last_hop = None;
        let mut tally = Tally::default();
        let mut opened = core::mem::take(&mut scratch.opened);
        for (&(at, source), opening) in frames.iter().zip(opened.drain(..)) {
            let (from, start) = (&incoming[source as usize], at as usize);
            let Opened { peer, lane, level, counter, newest } = match opening {
                Opening::Data(opened) => opened,
                opening => {
                    let frame = &mut buf[start..start + len];
                    self.not_data(now, opening, (at, source), from, frame, scratch);
                    continue;
                }
            };
            if tally.peer != Some(peer) || tally.lane != lane {
                self.settle(now, &tally);
                let may_transit = self.may_transit(LinkId(peer.0));
                tally = Tally { peer: Some(peer), lane, may_transit, ..Tally::default() };
            }
            tally.frames += 1;
            tally.highest = if newest { counter } else { tally.highest };
            if newest && tally.source != Some(source) {
                tally.source = Some(source);
                scratch.heard.push(source);
                self.note_source(now, peer, from.from);
            }
            let link = LinkId(peer.0);
            match LinkKind::from_byte(buf[start + link::KIND_AT]) {
                Ok(kind) if level != Level::Encrypt && kind != LinkKind::Direct => {
                    self.counters.drop_in(DropReason::NotAllowed, 1);
                }
                Ok(kind @ (LinkKind::Cell | LinkKind::Direct)) => {
                    tally.traffic = true;
                    if from.congested {
                        buf[start + MARK_AT] = Mark::Congested as u8;
                    }
                    let (hop, frame) = ((tally.may_transit, &mut last_hop), &mut buf[start..]);
                    let outcome = match kind {
                        LinkKind::Direct => self.take_direct(link, at, level, frame, scratch),
                        _ => self.steer(link, at, frame, scratch, hop),
                    };
                    if let Err(reason) = outcome {
                        self.counters.drop_in(reason, 1);
                    }
                }
                Ok(kind) => {
                    tally.traffic |= kind == LinkKind::Part;
                    let (kind, frame) = ((kind, newest), &buf[start..start + len]);
                    self.take_link_frame(now, kind, (link, at), source, frame, scratch);
                }
                Err(_) => self.counters.drop_in(DropReason::Malformed, 1),
            }
        }
        scratch.opened = opened;
        self.settle(now, &tally);
    }

    fn settle(&mut self, now: Time, tally: &Tally) {
        let Some(peer) = tally.peer else { return };
        let link = LinkId(peer.0);
        if let Some(neighbour) = self.neighbours.get_mut(link) {
            neighbour.liveness.received(
                now,
                tally.frames,
                (tally.lane, tally.highest),
                tally.traffic,
            );
            self.neighbours.reschedule(link);
        }
    }

    /// Whether cells of this neighbour may be passed on. Those of a router only once both sides
    /// know each other's tables: one that has just restarted might send in a circle what it gets
    /// back.
    pub(crate) fn may_transit(&self, link: LinkId) -> bool {
        let is_host = self.neighbours.get(link).is_some_and(|n| !n.address.is_router());
        is_host || self.routing.as_ref().is_some_and(|routing| routing.is_adjacent(link))
    }

    /// Decides where a cell goes: to this node's edge, or into the group of its next hop.
    pub(crate) fn steer(
        &mut self,
        from: LinkId,
        at: u32,
        frame: &mut [u8],
        scratch: &mut Scratch,
        (may_transit, last_hop): (bool, &mut Option<LastHop>),
    ) -> Result<(), DropReason> {
        let header = RoutedHeader::parse(&frame[link::ROUTED_AT..])?;
        let (dst, priority) = (header.dst(), priority(header.class()));
        let sender = self.neighbours.get(from).ok_or(DropReason::UnknownPeer)?.address;
        let Way::Transit(hops) = way(&header, self.config.address, sender, may_transit)? else {
            scratch.local.push(at);
            return Ok(());
        };
        frame[HOP_LIMIT_AT] = hops;
        let link = match last_hop {
            Some(last) if last.dst == dst => last.link,
            _ => {
                let link = self.next_hop(dst).ok_or(DropReason::NoRoute)?;
                *last_hop = Some(LastHop { dst, link });
                link
            }
        };
        group(&mut scratch.groups, link, priority).push(at);
        Ok(())
    }

    /// The neighbour through which `dst` is reached.
    pub fn next_hop(&self, dst: Address) -> Option<LinkId> {
        match &self.routing {
            Some(_) if dst.router == self.config.address.router => self.neighbours.by_address(dst),
            Some(routing) => routing.table().next_hop(dst.router),
            None => self.direct(dst).or_else(|| self.neighbours.uplink()),
        }
    }

    /// Sends cells of this node's own edge. Each frame of `len` bytes at `offsets` holds its routed
    /// header and payload in place; all have the destination and class of the first.
    pub fn send_cells(
        &mut self,
        now: Time,
        buf: &mut [u8],
        offsets: &[u32],
        len: usize,
        sink: &mut impl Sink,
    ) {
        let (Some(&first), Some(class)) = (offsets.first(), SizeClass::of_frame(len)) else {
            return;
        };
        let n = offsets.len() as u64;
        let Ok(header) = RoutedHeader::parse(&buf[first as usize + link::ROUTED_AT..]) else {
            return self.counters.drop(DropReason::Malformed, n);
        };
        let Some(link) = self.next_hop(header.dst()) else {
            return self.counters.drop(DropReason::NoRoute, n);
        };
        self.send_as(now, (LinkKind::Cell, link, &header), buf, offsets, class, sink);
    }

    /// Full data frames towards `dst` that would not have to wait: 0 while anything waits there.
    pub fn room(&self, dst: Address) -> usize {
        let neighbour = self.next_hop(dst).and_then(|link| self.neighbours.get(link));
        match neighbour {
            Some(n) if n.egress.is_empty() && n.established => n.egress.room(),
            _ => 0,
        }
    }

    /// Whether so much waits on the way to `dst` that cells are marked.
    pub fn is_congested(&self, dst: Address) -> bool {
        let neighbour = self.next_hop(dst).and_then(|link| self.neighbours.get(link));
        neighbour.is_some_and(|n| n.egress.is_congested())
    }

    /// Marks when a queue grows; sends at once when nothing waits, else queues.
    #[allow(clippy::too_many_arguments, reason = "the parts of one run")]
    pub(crate) fn dispatch(
        &mut self,
        now: Time,
        link: LinkId,
        priority: Priority,
        buf: &mut [u8],
        offsets: &[u32],
        class: SizeClass,
        sink: &mut impl Sink,
    ) {
        self.counters.traffic.dispatched += offsets.len() as u64;
        let Some(neighbour) = self.neighbours.get_mut(link) else {
            return self.counters.drop_out(DropReason::NoRoute, offsets.len() as u64);
        };
        if neighbour.egress.is_congested() && priority == Priority::Data {
            self.counters.traffic.cells_marked += offsets.len() as u64;
            for &at in offsets {
                buf[at as usize + MARK_AT] = Mark::Congested as u8;
            }
        }
        for run in offsets.chunks(RUN_MAX) {
            let Some(neighbour) = self.neighbours.get_mut(link) else { return };
            if neighbour.egress.admission(priority) == Admission::Bypass {
                self.depart(now, link, buf, run, class, false, sink);
                continue;
            }
            for &at in run {
                let frame = &buf[at as usize..at as usize + class.frame_len()];
                if let Err(reason) = neighbour.egress.push(priority, class, frame) {
                    self.counters.drop_out(reason, 1);
                }
            }
        }
    }

    /// Seals a run (unless it was) and sends it. What the kernel has no room for goes back to the
    /// egress; says whether the link may send on.
    #[allow(clippy::too_many_arguments, reason = "the parts of one run")]
    pub(crate) fn depart(
        &mut self,
        now: Time,
        link: LinkId,
        buf: &mut [u8],
        offsets: &[u32],
        class: SizeClass,
        sealed: bool,
        sink: &mut impl Sink,
    ) -> bool {
        let n = offsets.len() as u64;
        let Some(neighbour) = self.neighbours.get_mut(link) else { return false };
        let Some(endpoint) = neighbour.endpoint else {
            self.counters.drop_out(DropReason::NoEndpoint, n);
            return true;
        };
        if neighbour.small && class == SizeClass::Full && !sealed {
            forget_flows(buf, offsets);
            return self.depart_cut(now, link, buf, offsets, sink);
        }
        let len = class.frame_len();
        let kind = buf[offsets.first().map_or(0, |&at| at as usize) + link::KIND_AT];
        let traffic = sealed || is_cell(kind) || kind == LinkKind::Part as u8;
        if !sealed
            && let Err(reason) = seal(&mut self.sessions, now, PeerId(link.0), buf, offsets, len)
        {
            self.counters.drop_out(reason, n);
            self.sessions.connect(now, PeerId(link.0));
            return true;
        }
        let to = neighbour.trial.place(endpoint, traffic, offsets.len() * len);
        let outcome = sink.send(to, buf, offsets, len);
        self.counters.traffic.frames_out += outcome.sent as u64;
        self.counters.traffic.bytes_out += (outcome.sent * len) as u64;
        if outcome.sent > 0 {
            neighbour.liveness.sent(now, outcome.sent as u64, traffic);
        }
        let rest = &offsets[outcome.sent..];
        match outcome.stop {
            None => {}
            Some(stop @ (Stop::Failed | Stop::TooLong)) => {
                neighbour.small |= stop == Stop::TooLong && class == SizeClass::Full;
                self.stale = true;
                self.counters.drop_out(DropReason::SendFailed, rest.len() as u64);
            }
            Some(Stop::Full) => {
                neighbour.egress.push_back_sealed(class, buf, rest);
                self.block(now, link);
            }
        }
        self.neighbours.reschedule(link);
        outcome.stop != Some(Stop::Full)
    }

    pub(crate) fn block(&mut self, now: Time, link: LinkId) {
        if !self.blocked.contains(&link) {
            self.blocked.push(link);
        }
        self.retry_at = Some(now + RETRY_AFTER);
    }

    /// Empties the egresses that were blocked, as far as the kernel takes it.
    pub fn handle_writable(&mut self, now: Time, sink: &mut impl Sink) {
        self.retry_at = None;
        for link in core::mem::take(&mut self.blocked) {
            self.flush(now, link, sink);
        }
    }

    fn flush(&mut self, now: Time, link: LinkId, sink: &mut impl Sink) {
        let mut run_buf = core::mem::take(&mut self.scratch.run);
        let mut offsets = core::mem::take(&mut self.scratch.stride);
        run_buf.resize(RUN_MAX * SizeClass::Full.frame_len(), 0);
        while let Some(neighbour) = self.neighbours.get_mut(link)
            && let Some(run) = neighbour.egress.take_run(&mut run_buf, RUN_MAX)
        {
            let len = run.class.frame_len() as u32;
            offsets.clear();
            offsets.extend((0..run.count as u32).map(|i| i * len));
            if !self.depart(now, link, &mut run_buf, &offsets, run.class, run.sealed, sink) {
                break;
            }
        }
        self.scratch.run = run_buf;
        self.scratch.stride = offsets;
    }
}
