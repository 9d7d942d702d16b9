//! Where a neighbour's frames go (docs/wire.md section 2). They go to another address only once the
//! neighbour has answered through it:
//!
//! ```text
//! newest frame from a new source -> challenge there -> answer -> the endpoint moves
//! handshake through an address, and a frame under its keys    -> the endpoint moves
//! ```
//!
//! Sources of datagrams can be forged, and whoever is on a path can have a frame arrive from
//! anywhere before it arrives from its sender. What they gain is one small frame to the address
//! that they name, for a frame that came in its name.

use core::time::Duration;
use std::net::SocketAddr;

use shoal_crypto::Ciphers;
use shoal_session::PeerId;
use shoal_wire::{
    CONTROL_PATH_CHALLENGE, CONTROL_PATH_RESPONSE, ControlWriter, DropReason, LinkId, LinkKind,
    PathToken, SizeClass, Time, link,
};

use crate::batch::seal;
use crate::{Relay, Sink};

/// How soon one address is challenged again while frames come from it.
const AGAIN: Duration = Duration::from_millis(250);
/// How soon another address is: a source that changes with every frame must not cost a frame each.
const ANOTHER: Duration = Duration::from_millis(20);
/// For how long an answer to a challenge counts: longer than any round trip.
const ANSWER_KEPT: Duration = Duration::from_secs(5);

/// An address that a neighbour's newest frames came from, and through which it has not answered.
#[derive(Debug)]
struct Candidate {
    at: SocketAddr,
    challenge: PathToken,
    since: Time,
    asked: Option<Time>,
}

/// What is under way about a neighbour's address. One candidate at a time: a newer frame from
/// elsewhere puts another in its place, and one from the endpoint itself ends it, so that a frame
/// that was overtaken on another lane moves nothing back.
#[derive(Debug, Default)]
pub(crate) struct Trial {
    candidate: Option<Candidate>,
    /// When a challenge last left.
    asked: Option<Time>,
    /// The candidate's challenge is to leave now.
    due: bool,
    /// The neighbour's newest challenge, to be answered now.
    answer: Option<PathToken>,
}

impl Trial {
    /// The endpoint is known by a handshake.
    pub(crate) fn end(&mut self) {
        self.candidate = None;
    }

    /// Takes note of where the newest frame came from, which is not the endpoint; says whether a
    /// challenge is to leave.
    fn note(&mut self, now: Time, from: SocketAddr, challenge: impl FnOnce() -> PathToken) -> bool {
        let same = |known: &mut Candidate| known.at == from && now < known.since + ANSWER_KEPT;
        let candidate = match self.candidate.take().and_then(|mut c| same(&mut c).then_some(c)) {
            Some(candidate) => candidate,
            None => Candidate { at: from, challenge: challenge(), since: now, asked: None },
        };
        let passed = |asked: Option<Time>, gap| asked.is_none_or(|at| at + gap <= now);
        let due = passed(candidate.asked, AGAIN) && passed(self.asked, ANOTHER);
        if due {
            self.asked = Some(now);
        }
        let asked = if due { Some(now) } else { candidate.asked };
        self.candidate = Some(Candidate { asked, ..candidate });
        self.due |= due;
        due
    }

    /// Takes the answer to a challenge; returns where the neighbour is.
    fn answered(&mut self, now: Time, token: PathToken) -> Option<SocketAddr> {
        let fits = |c: &mut Candidate| c.challenge == token && now < c.since + ANSWER_KEPT;
        self.candidate.take_if(fits).map(|candidate| candidate.at)
    }
}

impl<C: Ciphers> Relay<C> {
    /// Takes note of where a neighbour's newest authentic frame came from.
    pub(crate) fn note_source(&mut self, now: Time, peer: PeerId, from: SocketAddr) {
        let link = LinkId(peer.0);
        let Some(neighbour) = self.neighbours.get_mut(link) else { return };
        if neighbour.endpoint == Some(from) {
            return neighbour.trial.end();
        }
        let rng = &mut self.rng;
        if neighbour.trial.note(now, from, || rng.array()) {
            self.list_path(link);
        }
    }

    fn list_path(&mut self, link: LinkId) {
        if !self.paths.contains(&link) {
            self.paths.push(link);
        }
    }

    /// Takes a neighbour's challenge: it wants to know whether what it sends to where this came
    /// gets here. Of several at once only the last is answered.
    pub(crate) fn handle_path_challenge(&mut self, from: LinkId, token: PathToken) {
        if let Some(neighbour) = self.neighbours.get_mut(from) {
            neighbour.trial.answer = Some(token);
            self.list_path(from);
        }
    }

    /// Takes the answer to a challenge: the neighbour got it where it was sent.
    pub(crate) fn handle_path_response(
        &mut self,
        now: Time,
        from: LinkId,
        token: PathToken,
    ) -> Result<(), DropReason> {
        let neighbour = self.neighbours.get_mut(from).ok_or(DropReason::UnknownPeer)?;
        let at = neighbour.trial.answered(now, token).ok_or(DropReason::UnexpectedReply)?;
        neighbour.endpoint = Some(at);
        self.stale = true;
        self.sessions.set_endpoint(PeerId(from.0), Some(at));
        Ok(())
    }

    /// Sends challenges and answers that are due; says whether there were any.
    pub(crate) fn send_paths(&mut self, now: Time, sink: &mut impl Sink) -> bool {
        let listed = core::mem::take(&mut self.paths);
        for &link in &listed {
            let Some(neighbour) = self.neighbours.get_mut(link) else { continue };
            let answer = neighbour.trial.answer.take();
            let due = core::mem::take(&mut neighbour.trial.due);
            let candidate = neighbour.trial.candidate.as_ref().filter(|_| due);
            if let Some((to, token)) = candidate.map(|c| (c.at, c.challenge)) {
                self.send_challenge(now, link, to, token, sink);
            }
            if let Some(token) = answer {
                self.send_control(now, link, &[(CONTROL_PATH_RESPONSE, &token)], sink);
            }
        }
        !listed.is_empty()
    }

    /// Sends a challenge past the queue of the link, which leads to its endpoint. One that the
    /// kernel has no room for is lost; the next frame from there brings another.
    fn send_challenge(
        &mut self,
        now: Time,
        link: LinkId,
        to: SocketAddr,
        token: PathToken,
        sink: &mut impl Sink,
    ) {
        let class = SizeClass::Small;
        let mut frame = [0; SizeClass::Small.frame_len()];
        frame[link::KIND_AT] = LinkKind::Control as u8;
        let body = &mut frame[link::BODY_AT..link::BODY_AT + class.link_body_len()];
        let fits = ControlWriter::new(body).push(CONTROL_PATH_CHALLENGE, &token);
        debug_assert!(fits, "a challenge is shorter than a frame");
        self.counters.traffic.dispatched += 1;
        let len = class.frame_len();
        if let Err(reason) = seal(&mut self.sessions, now, PeerId(link.0), &mut frame, &[0], len) {
            return self.counters.drop_out(reason, 1);
        }
        let outcome = sink.send(to, &frame, &[0], len);
        self.counters.traffic.frames_out += outcome.sent as u64;
        self.counters.traffic.bytes_out += (outcome.sent * len) as u64;
        if outcome.sent == 0 {
            return self.counters.drop_out(DropReason::SendFailed, 1);
        }
        if let Some(neighbour) = self.neighbours.get_mut(link) {
            neighbour.liveness.sent(now, 1, false);
            self.neighbours.reschedule(link);
        }
    }
}
