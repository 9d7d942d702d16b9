//! Control messages between neighbours, the start and end of sessions, and timers.

use shoal_crypto::Ciphers;
use shoal_link::{LinkTransition, Priority};
use shoal_routing::{LinkPolicy, RouteChange};
use shoal_session::{
    Endpoint, Endpoints, HandshakeTask, HandshakeTaskResult, PeerId, SessionEvent,
};
use shoal_wire::{
    CONTROL_GOODBYE, CONTROL_REPORT, ControlMessage, ControlMessages, ControlWriter, DropReason,
    LinkId, LinkKind, SizeClass, Time, link,
};
use std::collections::BTreeMap;
use std::net::SocketAddr;

use crate::batch::OutgoingRun;
use crate::{FrameSink, LinkView, Relay, SendError, SendPath};

/// An event for the node's owner.
#[derive(Clone, Debug)]
pub enum RelayEvent {
    /// A neighbour receives our frames (again).
    LinkUp(LinkId),
    /// A link went down.
    LinkDown(LinkId),
    /// A session was agreed.
    Established(LinkId),
    /// This node's public address changed, or a different neighbour observed it.
    Seen,
    /// A probe arrived from the other end of a direct link. That host is now called at its source.
    Met(LinkId),
    /// Full frames to a neighbour now go in parts, because the path does not carry them, or go
    /// whole again.
    Width(LinkId),
    /// Two nodes use this neighbour's key, or this node's own key, as the neighbour reports.
    Twins(LinkId),
    /// This neighbour says that this node's membership has ended.
    Removed(LinkId),
    /// A route changed.
    Route(RouteChange),
}

/// Maximum number of rounds of draining after one call. Each output causes only a few more, such as
/// a hello and a dump when a link comes up. The limit is never reached in practice, and any rest is
/// due at once.
const ROUNDS_MAX: usize = 64;
/// Offset of a control body in its frame.
const BODY_AT: usize = link::BODY_AT;

impl<C: Ciphers> Relay<C> {
    /// Handles the body of a control frame.
    pub(crate) fn handle_control(&mut self, now: Time, from: LinkId, body: &[u8]) {
        for message in ControlMessages::new(body) {
            let outcome = match message.and_then(|(kind, body)| ControlMessage::parse(kind, body)) {
                Ok(ControlMessage::Report(report)) => {
                    self.handle_report(now, from, &report);
                    Ok(())
                }
                Ok(ControlMessage::PathChallenge(token)) => {
                    self.handle_path_challenge(from, token);
                    Ok(())
                }
                Ok(ControlMessage::PathResponse(token)) => {
                    self.handle_path_response(now, from, token)
                }
                Ok(ControlMessage::Goodbye) => {
                    self.handle_goodbye(now, from);
                    Ok(())
                }
                Ok(ControlMessage::Routing(message)) => self.handle_routing(now, from, message),
                Ok(ControlMessage::List(message)) => self.lists.take_list(from, message),
                Ok(ControlMessage::Chain(message)) => self.lists.take_chain(from, message),
                Ok(ControlMessage::Secret(message)) => self.lists.take_secret(from, message),
                Ok(ControlMessage::Clock(unix_ms)) => self.hear_clock(now, from, unix_ms),
                Ok(ControlMessage::Twin) => self.hear_of_twin(now, from),
                Ok(ControlMessage::Seen(at)) => self.hear_seen(now, from, at),
                Ok(ControlMessage::Cover(ends)) => self.hear_cover(now, from, ends),
                Ok(ControlMessage::ShiftPlace(place)) => self.hear_shift_place(now, from, place),
                Ok(ControlMessage::ShiftStep(step)) => self.hear_shift_step(now, from, &step),
                Ok(ControlMessage::ShiftProbe(probe)) => self.hear_shift_probe(now, from, &probe),
                Err(_) => Err(DropReason::Malformed),
            };
            if let Err(reason) = outcome {
                self.own.counters.drop(reason, 1);
            }
        }
    }

    pub fn view(&self, link: LinkId) -> Option<LinkView> {
        self.neighbours.get(link).map(|neighbour| self.with_shift(neighbour.view(link)))
    }

    fn handle_report(&mut self, now: Time, from: LinkId, report: &shoal_wire::LaneReport) {
        let Some(neighbour) = self.neighbours.get_mut(from) else { return };
        let change = neighbour.liveness.handle_report(now, report);
        let progress = neighbour.liveness.last_progress() == Some(now);
        let rtt = neighbour.liveness.stats().rtt;
        let verdict = neighbour.trial.reported(now, report, rtt, progress);
        self.judge_width(now, from, report);
        self.neighbours.reschedule(from);
        self.follow(now, from, verdict);
        self.transition(now, from, change);
    }

    fn handle_routing(
        &mut self,
        now: Time,
        from: LinkId,
        message: shoal_wire::RoutingMessage,
    ) -> Result<(), DropReason> {
        let neighbour = self.neighbours.get_mut(from).ok_or(DropReason::UnknownPeer)?;
        let routing = self.routing.as_mut().ok_or(DropReason::NotAllowed)?;
        if !neighbour.address.is_router() {
            return Err(DropReason::NotAllowed);
        }
        // Queries and tables count as traffic, so a silent router is detected in every cycle.
        neighbour.liveness.received(now, 0, (0, 0), true);
        self.neighbours.reschedule(from);
        routing.handle_message(now, from, message)
    }

    fn transition(&mut self, now: Time, link: LinkId, change: Option<LinkTransition>) {
        let (Some(change), Some(neighbour)) = (change, self.neighbours.get_mut(link)) else {
            return;
        };
        let is_up = change == LinkTransition::Up;
        neighbour.up_since = is_up.then_some(now);
        if let (Some(routing), true) = (&mut self.routing, neighbour.address.is_router()) {
            if is_up {
                routing.link_up(now, link, neighbour.address.router);
            } else {
                routing.link_down(now, link);
            }
        }
        self.set_calls(now, link);
        if is_up {
            self.shift_back(now, link);
        } else {
            self.shift_lost(now, link);
            let Some(neighbour) = self.neighbours.get_mut(link) else { return };
            // Cells queued for a dead neighbour must not leave as a burst later.
            let lost = neighbour.egress.clear();
            neighbour.width.end_doubt();
            let verdict = neighbour.trial.lost(now);
            self.own.counters.drop_out(DropReason::NoRoute, lost as u64);
            self.follow(now, link, verdict);
            // The neighbour may have lost its keys, which a handshake finds out. No handshake is
            // sent if the keys are only too old: an idle or absent host calls when it needs the
            // link.
            let called = self.neighbours.get(link).is_some_and(|neighbour| neighbour.called);
            if called || self.sessions.is_live(now, PeerId::from(link)) {
                self.sessions.reconnect(now, PeerId::from(link));
            }
        }
        self.event(if is_up { RelayEvent::LinkUp(link) } else { RelayEvent::LinkDown(link) });
    }

    /// Ends the session with a neighbour that stops. If this node calls the neighbour, it calls
    /// again soon and often, since the neighbour may only restart.
    fn handle_goodbye(&mut self, now: Time, link: LinkId) {
        let Some(called) = self.neighbours.get(link).map(|n| n.called) else { return };
        self.sessions.end(now, PeerId::from(link), called);
        self.lose_session(now, link);
    }

    /// Handles the loss of the session with a neighbour.
    fn lose_session(&mut self, now: Time, link: LinkId) {
        let Some(neighbour) = self.neighbours.get_mut(link) else { return };
        neighbour.established = false;
        neighbour.width.end_doubt();
        if neighbour.cover.is_some() {
            let lost = neighbour.egress.clear();
            self.own.counters.drop_out(DropReason::NoRoute, lost as u64);
        }
        let change = neighbour.liveness.session_lost(now, neighbour.called);
        self.neighbours.reschedule(link);
        // Also needed if the link was never up.
        self.shift_lost(now, link);
        self.transition(now, link, change);
        self.set_calls(now, link);
    }

    /// Tells all neighbours that this node stops. The relay must not be used afterwards.
    pub fn say_goodbye(&mut self, now: Time, sink: &mut impl FrameSink) {
        let there = self.neighbours.iter().filter(|(_, neighbour)| neighbour.established);
        for link in there.map(|(link, _)| link).collect::<Vec<_>>() {
            self.send_control(now, link, &[(CONTROL_GOODBYE, &[])], sink);
            self.send_last_slot(now, link, sink);
        }
        self.refresh();
    }

    /// Removes a neighbour with its session and routes. Its id becomes invalid.
    pub fn remove_link(&mut self, now: Time, link: LinkId) {
        if self.neighbours.get(link).is_some_and(|n| n.up_since.is_some()) {
            self.transition(now, link, Some(LinkTransition::Down));
        }
        if let Some(gone) = self.neighbours.remove(link) {
            self.own.counters.drop_out(DropReason::NoRoute, gone.egress.backlog() as u64);
        }
        self.blocked.retain(|&blocked| blocked != link);
        self.own.links.set_gate(link, true, false);
        self.sessions.remove_peer(PeerId::from(link));
        self.end_probes(link);
        self.count_held_back(link);
        self.shifts.remove(link);
        self.refresh();
    }

    /// Changes the endpoint at which a neighbour is called. With `None` the known endpoint stays,
    /// and this node waits for a call.
    ///
    /// Until a handshake is answered at the new endpoint, only handshakes go there. A link that is
    /// up stays at its old endpoint until then.
    pub fn set_endpoint(&mut self, now: Time, link: LinkId, endpoint: Option<SocketAddr>) {
        let endpoint = endpoint.map(Endpoints::from);
        if self.set_fallback(now, link, endpoint) {
            return;
        }
        let Some(neighbour) = self.neighbours.get_mut(link) else { return };
        neighbour.called = endpoint.is_some() || neighbour.address.is_router();
        let peer = PeerId::from(link);
        if !core::mem::take(&mut neighbour.places).is_empty() {
            self.sessions.set_calls(peer, Vec::new());
        }
        self.sessions.set_home(peer, endpoint);
        match endpoint {
            Some(_) if self.sessions.is_live(now, peer) => {
                self.call_home(now, link);
            }
            Some(_) => {
                self.shift_lost(now, link);
                if let Some(neighbour) = self.neighbours.get_mut(link) {
                    neighbour.endpoint = endpoint;
                }
                self.sessions.set_endpoint(peer, endpoint);
                self.sessions.connect(now, peer);
            }
            None => {}
        }
        self.refresh();
    }

    /// Calls a neighbour at its configured endpoint, if that differs from the one in use. Returns
    /// true if it called. The link moves when the call is answered.
    pub fn call_home(&mut self, now: Time, link: LinkId) -> bool {
        let home = self.sessions.home(PeerId::from(link));
        let is_there = |home: &Endpoints| {
            self.fixed_endpoint(link).is_some_and(|endpoint| endpoint.is_same_place(home))
        };
        let calls = home.is_some_and(|home| !is_there(&home));
        if calls {
            self.sessions.call_home(now, PeerId::from(link));
        }
        calls
    }

    /// Frees memory that a burst of traffic needed. Call this in quiet times, since the next batch
    /// allocates it again.
    pub fn rest(&mut self) {
        self.own.rest();
        (self.kept, self.scratch) = Default::default();
        for neighbour in self.neighbours.iter_mut() {
            neighbour.egress.rest();
        }
        self.refresh();
    }

    /// Sets whether the path to a neighbour is fixed as narrow, so that full frames always go in
    /// parts. Otherwise handshakes and probes detect the width.
    pub fn set_small_path(&mut self, link: LinkId, always: bool) {
        let Some(neighbour) = self.neighbours.get_mut(link) else { return };
        self.sessions.set_small_path(PeerId::from(link), always);
        neighbour.width.fix(always);
        self.refresh();
    }

    /// Replaces the policies of links and the pinned next hops: see
    /// [`shoal_routing::Routing::set_policies`].
    pub fn set_policies(
        &mut self,
        now: Time,
        links: BTreeMap<u32, LinkPolicy>,
        pins: BTreeMap<u32, u32>,
    ) {
        if let Some(routing) = &mut self.routing {
            routing.set_policies(now, links, pins);
        }
        self.refresh();
    }

    /// Handles all timers that are due.
    pub fn handle_timeout(&mut self, now: Time, sink: &mut impl FrameSink) {
        self.fill_slots(now, sink);
        if self.retry_at.is_some_and(|at| at <= now) {
            self.handle_writable(now, sink);
        }
        self.release(now, sink);
        self.drive_mirrors(now, sink);
        self.drive_probes(now, sink);
        self.drive_shifts(now);
        if self.sessions.poll_timeout().is_some_and(|(at, _)| at <= now) {
            self.sessions.handle_timeout(now);
        }
        if let Some(routing) = &mut self.routing
            && routing.poll_timeout().is_some_and(|(at, _)| at <= now)
        {
            routing.handle_timeout(now);
        }
        // Collects them first: an alarm that is due again at once must not prolong this call.
        let due: Vec<LinkId> = core::iter::from_fn(|| self.neighbours.pop_alarm(now)).collect();
        for link in due {
            self.handle_alarm(now, link, sink);
        }
        self.drive(now, sink);
    }

    fn handle_alarm(&mut self, now: Time, link: LinkId, sink: &mut impl FrameSink) {
        let Some(neighbour) = self.neighbours.get_mut(link) else { return };
        let change = neighbour.liveness.handle_timeout(now);
        let report = neighbour.liveness.poll_report(now);
        let keepalive = neighbour.liveness.poll_keepalive(now) && report.is_none();
        if neighbour.liveness.poll_reconnect(now) {
            self.call_again(now, PeerId::from(link));
        }
        self.transition(now, link, change);
        let doubts = self.probe_width(now, link, report.is_some(), sink);
        if let Some(report) = report {
            self.send_control(now, link, &[(CONTROL_REPORT, &report.to_bytes())], sink);
        }
        if keepalive || doubts {
            self.send_quiet(now, link, LinkKind::Keepalive, &[], sink);
        }
        self.neighbours.reschedule(link);
    }

    /// Time and reason of the next call of [`Self::handle_timeout`].
    pub fn poll_timeout(&self) -> Option<(Time, &'static str)> {
        [
            self.slots.next().map(|at| (at, "slot")),
            self.retry_at.map(|at| (at, "egress retry")),
            self.own.poll_timeout(),
            self.sessions.poll_timeout(),
            self.routing.as_ref().and_then(|routing| routing.poll_timeout()),
            self.neighbours.next_alarm().map(|at| (at, "neighbour")),
            (!self.paths.is_empty()).then_some((Time::ZERO, "path challenge")),
            self.order_due(),
            self.mirrors_due(),
            self.probes_due(),
            self.shifts.due(),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Takes the next handshake job. Run it on any thread and pass the result to
    /// [`Self::handle_done`].
    pub fn poll_job(&mut self) -> Option<HandshakeTask<Endpoints, C>> {
        self.sessions.poll_job()
    }

    /// Handles the result of a job.
    pub fn handle_done(
        &mut self,
        now: Time,
        done: HandshakeTaskResult<Endpoints>,
        sink: &mut impl FrameSink,
    ) {
        self.sessions.handle_done(now, done);
        self.drive(now, sink);
    }

    /// Sets the wall-clock time of sessions and routing, in milliseconds since 1970.
    pub fn set_unix_time(&mut self, now: Time, unix_ms: u64) {
        self.wall = (now, unix_ms);
        self.sessions.set_unix_time(now, unix_ms);
        if let Some(routing) = &mut self.routing {
            routing.set_unix_s(now, unix_ms / 1_000);
        }
        self.set_meeting_clock(now);
    }

    /// Drops the keys of all links and calls every neighbour again: see
    /// [`shoal_session::Sessions::rekey_all`].
    pub fn rekey_all(&mut self, now: Time, fresh: &[u8; 32], sink: &mut impl FrameSink) {
        self.sessions.rekey_all(now, fresh);
        self.drive(now, sink);
    }

    /// Takes the oldest event.
    pub fn poll_event(&mut self) -> Option<RelayEvent> {
        self.events.pop_front()
    }

    pub(crate) fn event(&mut self, event: RelayEvent) {
        if self.events.len() >= self.config.events_max {
            self.events.pop_front();
        }
        self.events.push_back(event);
    }

    /// Handles the outputs of sessions, routing and other parts until none is left.
    pub(crate) fn drive(&mut self, now: Time, sink: &mut impl FrameSink) {
        for _ in 0..ROUNDS_MAX {
            let mut silent = true;
            self.follow_heard(now);
            while let Some(event) = self.sessions.poll_event() {
                silent = false;
                self.handle_session(now, event, sink);
            }
            silent &= !self.send_handshakes(now, sink);
            silent &= !self.send_routing(now, sink);
            silent &= !self.send_paths(now, sink);
            silent &= !self.tell_covers(now, sink);
            silent &= !self.tell_seen(now, sink);
            silent &= !self.send_shifts(now, sink);
            if silent {
                break;
            }
        }
        self.refresh();
    }

    fn handle_session(&mut self, now: Time, event: SessionEvent, sink: &mut impl FrameSink) {
        match event {
            SessionEvent::Established { peer, initiator, suite, level, .. } => {
                let link = LinkId::from(peer);
                let before = self.fixed_endpoint(link);
                let to = self.sessions.endpoint(peer).or(before);
                let (from, shifting) = self.shift_session(now, link, to);
                let Some(neighbour) = self.neighbours.get_mut(link) else { return };
                neighbour.endpoint = from;
                let is_there = |to: Endpoints| from.is_some_and(|from| from.is_same_place(&to));
                let asks = if shifting || initiator && to.is_some_and(is_there) {
                    neighbour.trial.end()
                } else if initiator {
                    // The call reached an address of the schedule, which proves nothing about this
                    // endpoint.
                    false
                } else {
                    neighbour.trial.called(now, from, before, self.rng.array())
                };
                neighbour.established = true;
                neighbour.notices.removed = None;
                (neighbour.keys, neighbour.level) = (Some((now, suite)), level);
                let narrow = self.sessions.is_small_path(peer);
                neighbour.width.session_established(now, narrow);
                neighbour.liveness.session_established(now);
                if asks {
                    self.list_path(link);
                }
                self.note_place(link, to.filter(|_| initiator));
                // The first report confirms the new key to the neighbour.
                self.handle_alarm(now, link, sink);
                self.note_call(now, link, sink);
                self.list_seen(link);
                self.end_probes(link);
                self.event(RelayEvent::Established(link));
            }
            SessionEvent::OtherProcess { peer, back } => {
                self.note_process(now, LinkId::from(peer), back, sink);
            }
            SessionEvent::NeedKeepalive { peer } => {
                self.send_quiet(now, LinkId::from(peer), LinkKind::Keepalive, &[], sink);
            }
            SessionEvent::Expired { peer } => self.lose_session(now, LinkId::from(peer)),
            SessionEvent::Failed { peer } => self.call_again(now, peer),
            SessionEvent::Removed { peer, removal } => {
                self.note_removal(now, LinkId::from(peer), removal);
            }
            // A neighbour is never a hidden host.
            SessionEvent::NeedCircuit { .. } => {}
        }
    }

    /// Calls a neighbour again if this node is its caller. A router keeps calling its neighbours, a
    /// host its uplinks. The sessions limit the rate of attempts.
    fn call_again(&mut self, now: Time, peer: PeerId) {
        if self.neighbours.get(LinkId::from(peer)).is_some_and(|n| n.called) {
            // `connect` won't do: it would count a session that only this node remembers.
            self.sessions.reconnect(now, peer);
        }
    }

    fn send_handshakes(&mut self, now: Time, sink: &mut impl FrameSink) -> bool {
        let mut frame = [0; SizeClass::Full.frame_len()];
        let mut sent = false;
        while let Some((peer, to, len)) = self.sessions.poll_transmit(now, &mut frame) {
            sent = true;
            let link = peer.map(LinkId::from);
            if self.schedule_handshake(link, &to, &frame[..len]) {
                continue;
            }
            let path = SendPath { link, ends: to };
            let outcome = self.own.send_outside(sink, path, (&frame[..len], &[0], len));
            self.own.counters.traffic.frames_out += outcome.sent as u64;
            self.own.counters.traffic.handshakes_out += outcome.sent as u64;
            self.own.counters.traffic.bytes_out += (outcome.sent * len) as u64;
            if let (Some(SendError::TooLong), Some(peer)) = (outcome.stop, peer) {
                self.sessions.handle_too_long(peer, to, &frame[..len]);
            } else if let Some(stop) = outcome.stop {
                // Timers repeat handshakes.
                self.own.counters.drop(stop.reason(), 1);
            }
        }
        sent
    }

    fn send_routing(&mut self, now: Time, sink: &mut impl FrameSink) -> bool {
        let mut sent = false;
        let mut body = Vec::new();
        while let Some((link, message)) = self.routing.as_mut().and_then(|r| r.poll_transmit()) {
            sent = true;
            body.clear();
            message.encode(&mut body);
            self.send_control(now, link, &[(message.kind(), &body)], sink);
            if let Some(neighbour) = self.neighbours.get_mut(link) {
                neighbour.liveness.sent(now, 0, true);
                self.neighbours.reschedule(link);
            }
        }
        while let Some(change) = self.routing.as_mut().and_then(|r| r.poll_event()) {
            sent = true;
            self.event(RelayEvent::Route(change));
        }
        sent
    }

    pub(crate) fn send_control(
        &mut self,
        now: Time,
        link: LinkId,
        messages: &[(u8, &[u8])],
        sink: &mut impl FrameSink,
    ) {
        let mut body = [0; SizeClass::Full.link_body_len()];
        let mut writer = ControlWriter::new(&mut body);
        let fits = messages.iter().all(|(kind, message)| writer.push(*kind, message));
        debug_assert!(fits, "every message is shorter than a frame");
        let Some(class) = writer.finish() else { return };
        self.send_quiet(now, link, LinkKind::Control, &body[..class.link_body_len()], sink);
    }

    /// Sends a frame that does not request a report.
    fn send_quiet(
        &mut self,
        now: Time,
        link: LinkId,
        kind: LinkKind,
        body: &[u8],
        sink: &mut impl FrameSink,
    ) {
        let class = SizeClass::for_link_body(body.len()).unwrap_or(SizeClass::Full);
        let mut frame = [0; SizeClass::Full.frame_len()];
        frame[link::KIND_AT] = kind as u8;
        frame[BODY_AT..BODY_AT + body.len()].copy_from_slice(body);
        let frame = &mut frame[..class.frame_len()];
        self.dispatch(
            now,
            (link, Priority::Control),
            OutgoingRun { buf: frame, offsets: &[0], class },
            sink,
        );
    }
}
