//! Results of handshakes in the tables: a request that was answered, and a response that was read.

use shoal_crypto::{Ciphers, Secret};
use shoal_wire::{DropReason, Time};

use crate::config::{Endpoint, PeerId, SessionEvent, SessionRole};
use crate::job::{AttemptId, FinishResult, IndexGrant, RequestOrigin, ResponseResult};
use crate::keys::{Session, SessionTerms};
use crate::peer::{PathRecheck, UnconfirmedSession};
use crate::sessions::Sessions;
use crate::slots::SessionIndex;

impl<E: Endpoint, C: Ciphers> Sessions<E, C> {
    pub(crate) fn answered(
        &mut self,
        now: Time,
        RequestOrigin { from, name, small, .. }: RequestOrigin<E>,
        grant: IndexGrant,
        answered: ResponseResult,
    ) -> Result<(), DropReason> {
        let ResponseResult { said, suite, level, lanes, split, frame, secret, .. } = answered;
        let peer = self.peer_by_dh(&answered.peer).ok_or(DropReason::UnknownPeer)?;
        if level > self.weakest(peer) {
            // The level was allowed when the request came, but has been forbidden since.
            return Err(DropReason::BadVersion);
        }
        let own = self.common.identity.public();
        let rekey_age = self.rekey_age(false);
        let (role, window) = (from.role(self.config.role), self.config.window);
        self.check_role(now, peer, role)?;
        let alone = if self.config.even_waits(role) == 0 { 2 } else { 3 };
        let found = self.peer_mut(peer).ok_or(DropReason::UnknownPeer)?;
        if !found.records.is_fresh(said.incarnation, said.timestamp) {
            return Err(DropReason::ReplayedHandshake);
        }
        // Both ends began at once. The request of the smaller key counts, unless it gets no answer
        // within 0.9 s.
        let crossed = found.dial.as_ref().is_some_and(|dial| dial.sent <= alone);
        if crossed && own.dh < found.key.dh {
            return Err(DropReason::CrossedHandshake);
        }
        let (room, gone) = found.make_room(now, said.timestamp);
        if !room {
            return Err(DropReason::HandshakeBudget);
        }
        let (index, timestamp, incarnation) = (grant.index, said.timestamp, said.incarnation);
        found.next.push(UnconfirmedSession { index, since: now, timestamp, incarnation, name });
        let terms = SessionTerms {
            role,
            peer,
            suite,
            lanes,
            level,
            initiator: false,
            rekey_age,
            small,
            epoch: grant.epoch,
            peer_index: said.index,
            peer_mask: Secret::new(said.mask_key),
            window,
        };
        self.slots.fill(now, grant.index, &split, &terms);
        if let Some(index) = gone {
            self.slots.release(index);
        }
        self.note_reached(peer, grant.index, from);
        self.stats.responses_sent += 1;
        self.push_handshake(peer, from, frame, small.then_some(&secret));
        self.refresh_timer(peer);
        Ok(())
    }

    pub(crate) fn finished(
        &mut self,
        now: Time,
        (id, small): (AttemptId, bool),
        finished: FinishResult,
    ) {
        let AttemptId { peer, number } = id;
        let rekey_age = self.rekey_age(true);
        let window = self.config.window;
        let dial = self.peer_mut(peer).and_then(|p| p.dial.take_if(|d| d.has(number)));
        let Some(dial) = dial else {
            self.count_drop(DropReason::UnexpectedReply);
            return;
        };
        let mut made = None;
        for attempt in dial.attempts {
            let chosen = attempt.number == number;
            if chosen {
                made = Some((attempt.index, attempt.epoch, attempt.role));
            }
            self.forget(attempt, !chosen);
        }
        let Some((index, epoch, role)) = made else { return };
        let FinishResult { said, suite, split } = finished;
        let terms = SessionTerms {
            role,
            peer,
            suite,
            lanes: said.lanes,
            level: said.level,
            initiator: true,
            rekey_age,
            small,
            epoch,
            peer_index: said.index,
            peer_mask: Secret::new(said.mask_key),
            window,
        };
        self.slots.fill(now, index, &split, &terms);
        self.promote(now, peer, index);
    }

    /// Makes a session the one that seals. The previous one still opens frames. The endpoint
    /// becomes the target of the session's handshake, since the peer got the frame sent there.
    pub(crate) fn promote(&mut self, now: Time, peer: PeerId, index: SessionIndex) {
        let Some(session) = self.slots.get(index) else { return };
        let Session { initiator, suite, level, created, role, .. } = *session;
        let (new, small) = (!self.is_live(now, peer), session.small);
        if let Some(found) = self.peer_mut(peer) {
            found.hidden |= role == SessionRole::Onion;
            found.small = small;
            found.endpoint = found.take_reached(index).or(found.endpoint);
            if !small {
                (found.refused, found.recheck) = (false, PathRecheck::default());
            }
        }
        if small && initiator {
            self.plan_recheck(now, peer);
        }
        self.replace_current(now, peer, index, initiator, created);
        self.drop_others(peer);
        self.stats.established += 1;
        self.events.push_back(SessionEvent::Established { peer, initiator, suite, level, new });
        self.events.push_back(SessionEvent::NeedKeepalive { peer });
        self.refresh_timer(peer);
    }
}
