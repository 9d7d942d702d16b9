//! Where a neighbour's frames go (docs/wire.md section 2). They go to another address only once the
//! neighbour has answered through it:
//!
//! ```text
//! newest frame from a new source -> challenge there -> answer -> the endpoint moves, on trial
//! handshake through an address, and a frame under its keys    -> the endpoint moves
//! ```
//!
//! Sources of datagrams can be forged, and an attacker on a path can have a copy of a frame arrive
//! from any address before the frame itself. Each such copy has at most one small frame sent to
//! that address, a challenge. An attacker who also carries challenges to the neighbour, and brings
//! the answers, has a burst sent there, once in a while (`trial.rs`).

use shoal_crypto::Ciphers;
use shoal_session::{Endpoint, Endpoints, PeerId};
use shoal_wire::{
    CONTROL_PATH_CHALLENGE, CONTROL_PATH_RESPONSE, ControlWriter, DropReason, LinkId, LinkKind,
    PathToken, SizeClass, Time, link,
};

use crate::batch::{Run, seal};
use crate::trial::Verdict;
use crate::{Relay, Sink};

impl<C: Ciphers> Relay<C> {
    /// Takes note of where a neighbour's newest authentic frame came from.
    pub(crate) fn note_source(&mut self, now: Time, peer: PeerId, from: Endpoints) {
        let link = LinkId::from(peer);
        self.hop_came(now, link, &from);
        let Some(neighbour) = self.neighbours.get_mut(link) else { return };
        // It is where its schedule says, or was.
        let is_there = |at: Endpoints| at.is_same_place(&from);
        let scheduled =
            !neighbour.endpoint.is_some_and(is_there) && self.is_scheduled_source(now, link, &from);
        let said = !scheduled && self.is_where_it_said(now, link, from);
        let Some(neighbour) = self.neighbours.get_mut(link) else { return };
        let from = neighbour.endpoint.filter(|_| scheduled).unwrap_or(from);
        if said {
            neighbour.trial.announced();
        }
        let rng = &mut self.rng;
        let former = neighbour.endpoint.filter(|_| !said);
        let listed = neighbour.trial.note(now, from, former, || rng.array());
        let hops = self.hops.links.get(&link);
        let hops = |at| hops.is_some_and(|known| known.says_prefix(now, at));
        let verdict = neighbour.trial.advance(now, hops);
        if listed {
            self.list_path(link);
        }
        self.follow(now, link, verdict);
    }

    /// Moves a neighbour's endpoint as the verdict says, or its prefix if it is where its schedule
    /// leads under another one.
    pub(crate) fn follow(&mut self, now: Time, link: LinkId, verdict: Verdict) {
        if let Verdict::Go(at) = verdict
            && self.hop_roamed(now, link, at)
        {
            return;
        }
        let Some(neighbour) = self.neighbours.get_mut(link) else { return };
        if let Verdict::Go(at) | Verdict::Fall(at) = verdict {
            neighbour.endpoint = Some(at);
        }
        if let Verdict::Go(at) = verdict {
            self.sessions.set_endpoint(PeerId::from(link), Some(at));
            self.list_seen(link);
        }
    }

    pub(crate) fn list_path(&mut self, link: LinkId) {
        if !self.paths.contains(&link) {
            self.paths.push(link);
        }
    }

    /// Takes a neighbour's challenge, by which it asks whether this node gets what is sent to the
    /// endpoint that the challenge was sent to.
    pub(crate) fn handle_path_challenge(&mut self, from: LinkId, token: PathToken) {
        if let Some(neighbour) = self.neighbours.get_mut(from) {
            neighbour.trial.answer(token);
            self.list_path(from);
        }
    }

    /// Takes the answer to a challenge: the neighbour is reached where the challenge was sent.
    pub(crate) fn handle_path_response(
        &mut self,
        now: Time,
        from: LinkId,
        token: PathToken,
    ) -> Result<(), DropReason> {
        if self.hop_answered(now, from, token) {
            return Ok(());
        }
        let neighbour = self.neighbours.get_mut(from).ok_or(DropReason::UnknownPeer)?;
        let hops = self.hops.links.get(&from);
        let hops = |at| hops.is_some_and(|known| known.says_prefix(now, at));
        let verdict = neighbour.trial.answered(now, token, hops);
        let verdict = verdict.ok_or(DropReason::UnexpectedReply)?;
        self.follow(now, from, verdict);
        Ok(())
    }

    /// Sends challenges and answers that are due; says whether there were any.
    pub(crate) fn send_paths(&mut self, now: Time, sink: &mut impl Sink) -> bool {
        let listed = core::mem::take(&mut self.paths);
        for &link in &listed {
            let Some(neighbour) = self.neighbours.get_mut(link) else { continue };
            let (due, answers) = (neighbour.trial.take_due(), neighbour.trial.take_answers());
            for (to, token) in due.into_iter().flatten() {
                self.send_challenge(now, link, to, token, sink);
            }
            let answers = answers.iter().map(|token| (CONTROL_PATH_RESPONSE, &token[..]));
            let answers = answers.collect::<Vec<_>>();
            if !answers.is_empty() {
                self.send_control(now, link, &answers, sink);
            }
        }
        !listed.is_empty()
    }

    /// Sends a challenge past the link's egress, which leads to the link's endpoint. One that the
    /// kernel has no room for is lost; the next frame from there brings another.
    fn send_challenge(
        &mut self,
        now: Time,
        link: LinkId,
        to: Endpoints,
        token: PathToken,
        sink: &mut impl Sink,
    ) {
        let neighbour = self.neighbours.get(link);
        let covered = neighbour.is_some_and(|neighbour| neighbour.is_scheduled());
        let at_home = |link: LinkId| {
            let endpoint = self.neighbours.get(link).and_then(|neighbour| neighbour.endpoint);
            endpoint.is_some_and(|endpoint| endpoint.is_same_place(&to))
        };
        if covered && at_home(link) {
            return self.send_control(now, link, &[(CONTROL_PATH_CHALLENGE, &token)], sink);
        }
        self.send_beside(now, link, to, (CONTROL_PATH_CHALLENGE, &token), sink);
    }

    /// Sends a message past the link's egress, to another place than the link's. One that the
    /// kernel has no room for is lost.
    pub(crate) fn send_beside(
        &mut self,
        now: Time,
        link: LinkId,
        to: Endpoints,
        (kind, message): (u8, &[u8]),
        sink: &mut impl Sink,
    ) {
        let covered = self.neighbours.get(link).is_some_and(|n| n.is_scheduled());
        let class = if covered { SizeClass::Full } else { SizeClass::Small };
        let mut frame = [0; SizeClass::Full.frame_len()];
        frame[link::KIND_AT] = LinkKind::Control as u8;
        let body = &mut frame[link::BODY_AT..link::BODY_AT + class.link_body_len()];
        let fits = ControlWriter::new(body).push(kind, message);
        debug_assert!(fits, "such a message is shorter than a frame");
        let run = &mut Run { buf: &mut frame, offsets: &[0], class };
        self.own.counters.traffic.dispatched += 1;
        if let Err(reason) = seal(self.sessions.shard(), now, link, run) {
            return self.own.counters.drop_out(reason, 1);
        }
        let outcome = self.own.transmit(sink, (link, to), run);
        if let Some(neighbour) = self.neighbours.get_quietly(link) {
            neighbour.liveness.sent_beside(outcome.sent as u64);
        }
        self.settle(now);
        if let Some(stop) = outcome.stop {
            self.own.counters.drop_out(stop.reason(), 1);
        }
    }
}
