//! Path validation: the endpoint of a neighbour's frames changes only after the neighbour has
//! answered at the new one (docs/design/wire/session.md).
//!
//! ```text
//! newest frame from a new source -> challenge there -> answer -> the endpoint moves, on trial
//! handshake through an address, and a frame under its keys    -> the endpoint moves
//! ```
//!
//! Sources of datagrams can be forged. An attacker on a path can also make a copy of a frame arrive
//! from any address before the frame itself. Each such copy causes at most one small frame to that
//! address, a challenge. An attacker who also relays challenges and answers can direct a burst
//! there, once in a while (`trial.rs`).

use shoal_crypto::Ciphers;
use shoal_session::{Endpoint, Endpoints, PeerId};
use shoal_wire::{
    CONTROL_PATH_CHALLENGE, CONTROL_PATH_RESPONSE, ControlWriter, DropReason, LinkId, LinkKind,
    PathToken, SizeClass, Time, link,
};

use crate::batch::{OutgoingRun, seal};
use crate::trial::TrialVerdict;
use crate::{FrameSink, Relay};

impl<C: Ciphers> Relay<C> {
    /// Notes the source of a neighbour's newest authentic frame.
    pub(crate) fn note_source(&mut self, now: Time, peer: PeerId, from: Endpoints) {
        let link = LinkId::from(peer);
        self.shift_came(now, link, &from);
        let Some(neighbour) = self.neighbours.get_mut(link) else { return };
        // The neighbour is where its schedule says, or was there recently.
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
        let shifts = self.shifts.links.get(&link);
        let shifts = |at| shifts.is_some_and(|known| known.says_prefix(now, at));
        let verdict = neighbour.trial.advance(now, shifts);
        if listed {
            self.list_path(link);
        }
        self.follow(now, link, verdict);
    }

    /// Moves a neighbour's endpoint as the verdict says. If the neighbour is at its scheduled
    /// address under a different prefix, this moves the prefix.
    pub(crate) fn follow(&mut self, now: Time, link: LinkId, verdict: TrialVerdict) {
        if let TrialVerdict::Go(at) = verdict
            && self.shift_roamed(now, link, at)
        {
            return;
        }
        let Some(neighbour) = self.neighbours.get_mut(link) else { return };
        if let TrialVerdict::Go(at) | TrialVerdict::Fall(at) = verdict {
            neighbour.endpoint = Some(at);
        }
        if let TrialVerdict::Go(at) = verdict {
            self.sessions.set_endpoint(PeerId::from(link), Some(at));
            self.list_seen(link);
        }
    }

    pub(crate) fn list_path(&mut self, link: LinkId) {
        if !self.paths.contains(&link) {
            self.paths.push(link);
        }
    }

    /// Handles a neighbour's challenge. It tests whether this node receives frames at the endpoint
    /// to which it was sent.
    pub(crate) fn handle_path_challenge(&mut self, from: LinkId, token: PathToken) {
        if let Some(neighbour) = self.neighbours.get_mut(from) {
            neighbour.trial.answer(token);
            self.list_path(from);
        }
    }

    /// Handles the answer to a challenge: the neighbour is reachable at the challenged endpoint.
    pub(crate) fn handle_path_response(
        &mut self,
        now: Time,
        from: LinkId,
        token: PathToken,
    ) -> Result<(), DropReason> {
        if self.shift_answered(now, from, token) {
            return Ok(());
        }
        let neighbour = self.neighbours.get_mut(from).ok_or(DropReason::UnknownPeer)?;
        let shifts = self.shifts.links.get(&from);
        let shifts = |at| shifts.is_some_and(|known| known.says_prefix(now, at));
        let verdict = neighbour.trial.answered(now, token, shifts);
        let verdict = verdict.ok_or(DropReason::UnexpectedReply)?;
        self.follow(now, from, verdict);
        Ok(())
    }

    /// Sends challenges and answers that are due. Returns true if there were any.
    pub(crate) fn send_paths(&mut self, now: Time, sink: &mut impl FrameSink) -> bool {
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

    /// Sends a challenge, bypassing the egress, whose frames go to the link's endpoint. If the
    /// kernel has no room, the challenge is lost. The next frame from there causes another.
    fn send_challenge(
        &mut self,
        now: Time,
        link: LinkId,
        to: Endpoints,
        token: PathToken,
        sink: &mut impl FrameSink,
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

    /// Sends a message to an endpoint other than the link's, bypassing the egress. If the kernel
    /// has no room, the message is lost.
    pub(crate) fn send_beside(
        &mut self,
        now: Time,
        link: LinkId,
        to: Endpoints,
        (kind, message): (u8, &[u8]),
        sink: &mut impl FrameSink,
    ) {
        let covered = self.neighbours.get(link).is_some_and(|n| n.is_scheduled());
        let class = if covered { SizeClass::Full } else { SizeClass::Small };
        let mut frame = [0; SizeClass::Full.frame_len()];
        frame[link::KIND_AT] = LinkKind::Control as u8;
        let body = &mut frame[link::BODY_AT..link::BODY_AT + class.link_body_len()];
        let fits = ControlWriter::new(body).push(kind, message);
        debug_assert!(fits, "a message is shorter than a frame");
        let run = &mut OutgoingRun { buf: &mut frame, offsets: &[0], class };
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
