//! Effects of time and use on sessions: retries, rekeying, retirement, cooling, expiry.

use core::time::Duration;

use shoal_crypto::Ciphers;
use shoal_wire::Time;

use crate::config::{Endpoint, PeerId, SessionEvent, SessionRole};
use crate::keys::Session;
use crate::peer::{KeepaliveRetry, OLD_MAX, UnconfirmedSession};
use crate::sessions::Sessions;
use crate::slots::SessionIndex;

/// Time for which an answered request may stay unconfirmed.
pub(crate) const NEXT_KEEP: Duration = Duration::from_secs(60);
/// Time for which replaced keys still open frames: longer than any frame travels outside a mix.
const OLD_KEEP: Duration = Duration::from_secs(15);
/// Extra time before the responder asks for new keys itself.
const RESPONDER_LATER: Duration = Duration::from_secs(20);
/// Idle time after which a session drops its expanded keys.
const COOL_AFTER: Duration = Duration::from_secs(15);
/// First wait before another keepalive is requested; each later wait doubles.
const NUDGE_FIRST: Duration = Duration::from_secs(1);
/// Keepalives requested by an initiator that hears nothing: 31 seconds in all.
const NUDGES_INITIATOR: u8 = 5;
/// Requests of a handshake that only tests if full frames pass.
const LOOKS: u8 = 4;
/// Keepalives that a responder repeats.
const NUDGES_RESPONDER: u8 = 2;

impl<E: Endpoint, C: Ciphers> Sessions<E, C> {
    /// Age at which a session asks for new keys. It is random, so that no period tells an observer
    /// which frames are handshakes.
    pub(crate) fn rekey_age(&mut self, initiator: bool) -> Duration {
        let (most, spread) = match initiator {
            true => (self.config.rekey_after, self.config.rekey_after / 6),
            // The responder never asks before the initiator does.
            false => (self.config.rekey_after + RESPONDER_LATER, RESPONDER_LATER / 2),
        };
        most - spread * self.rng.below(1 << 16) as u32 / (1 << 16)
    }

    fn rekey_due(&self, now: Time, session: &Session) -> bool {
        now >= session.rekey_at || session.spent >= self.config.rekey_frames
    }

    /// Records that frames of this session opened.
    pub(crate) fn note_opened(&mut self, now: Time, index: SessionIndex) {
        let Some(session) = self.slots.get_mut(index) else { return };
        let (peer, first) = (session.peer, !session.heard);
        session.used = now;
        session.heard = true;
        session.unanswered = None;
        let Some(found) = self.peer_mut(peer) else { return };
        if found.current != Some(index) {
            let Some(next) = found.next.iter().find(|n| n.index == index) else { return };
            let (name, incarnation, timestamp) = (next.name, next.incarnation, next.timestamp);
            self.races.end(&name);
            self.note_process(peer, incarnation, timestamp);
            self.promote(now, peer, index);
        } else if first {
            // The other end has the new keys, and seals nothing more under the old ones.
            found.nudge = None;
            for old in &mut found.old {
                old.1 = old.1.min(now + OLD_KEEP);
            }
            self.refresh_timer(peer);
        }
        self.note_used(now, peer, index);
    }

    /// Records that frames were sealed under this session.
    pub(crate) fn note_sealed(&mut self, now: Time, index: SessionIndex) {
        let (role, silence) = (self.config.role, self.config.silence);
        let Some(session) = self.slots.get_mut(index) else { return };
        // Between neighbours, the last report before a pause gets no answer. It must not count as
        // unanswered when frames follow the pause.
        let paused = role == SessionRole::Link && now.since(session.used) >= silence;
        session.used = now;
        session.unanswered = session.unanswered.filter(|_| !paused).or(Some(now));
        let peer = session.peer;
        self.note_used(now, peer, index);
    }

    fn note_used(&mut self, now: Time, peer: PeerId, index: SessionIndex) {
        let Some(found) = self.peer_mut(peer) else { return };
        let (cold, may_dial) = (found.cool_at.is_none(), found.dial.is_none());
        let may_dial = may_dial && found.dial_again <= now;
        if cold {
            found.cool_at = Some(now + COOL_AFTER);
            self.refresh_timer(peer);
        }
        let stale = |s: &Session| {
            self.rekey_due(now, s)
                || s.unanswered.is_some_and(|since| since + self.config.silence <= now)
        };
        if may_dial && self.slots.get(index).is_some_and(stale) {
            self.reconnect(now, peer);
        }
    }

    /// Makes `index` the session that seals.
    pub(crate) fn replace_current(
        &mut self,
        now: Time,
        peer: PeerId,
        index: SessionIndex,
        initiator: bool,
        created: Time,
    ) {
        let reject_after = self.config.reject_after;
        let Some(found) = self.peers.get_mut(peer) else {
            return;
        };
        let mut gone = Vec::new();
        if let Some(before) = found.current.replace(index) {
            // The responder still seals under the old keys until it hears the new ones.
            let until = match (initiator, self.slots.get(before)) {
                (true, Some(session)) => session.created + reject_after,
                _ => now + OLD_KEEP,
            };
            found.old.push((before, until));
        }
        if found.old.len() > OLD_MAX {
            gone.push(found.old.remove(0).0);
        }
        let slots = &self.slots;
        found.next.retain(|next| {
            // A session that was answered later may belong to an open handshake.
            let other = next.index;
            let later = slots.get(other).is_some_and(|s| s.created > created);
            if !later && other != index {
                gone.push(other);
            }
            later && other != index
        });
        let left = if initiator { NUDGES_INITIATOR } else { NUDGES_RESPONDER };
        found.nudge = Some(KeepaliveRetry { at: now + NUDGE_FIRST, wait: NUDGE_FIRST, left });
        found.resume_at = None;
        for index in gone {
            self.slots.release(index);
        }
        self.slots.appoint(peer, index);
        self.drop_dial(peer);
    }

    /// Puts the peer's next deadline into the machine's timers.
    pub(crate) fn refresh_timer(&mut self, peer: PeerId) {
        let deadline = self.deadline(peer);
        let Some(found) = self.peers.get_mut(peer) else {
            return;
        };
        if found.deadline == deadline {
            return;
        }
        if let Some(at) = core::mem::replace(&mut found.deadline, deadline) {
            self.timers.remove(&(at, peer));
        }
        if let Some(at) = deadline {
            self.timers.insert((at, peer));
        }
    }

    fn deadline(&self, peer: PeerId) -> Option<Time> {
        let found = self.peer(peer)?;
        let current = found.current.and_then(|index| self.slots.get(index));
        let end = current.map(|s| s.created + self.config.reject_after);
        let rekey = current
            .filter(|_| self.config.keep_idle && found.dial.is_none())
            .map(|s| s.rekey_at.max(found.dial_again));
        let retry = found.dial.as_ref().and_then(|dial| dial.retry_at);
        let nudge = found.nudge.map(|nudge| nudge.at);
        let next = found.next.iter().map(UnconfirmedSession::until);
        let kept = found.old.iter().map(|old| old.1).chain(next);
        [end, rekey, retry, nudge, found.cool_at, found.resume_at, found.recheck.at]
            .into_iter()
            .flatten()
            .chain(kept)
            .min()
    }

    /// Does all work that is due at `now`.
    pub fn handle_timeout(&mut self, now: Time) {
        self.now = self.now.max(now);
        let due: Vec<PeerId> = self.timers.iter().take_while(|t| t.0 <= now).map(|t| t.1).collect();
        for peer in due {
            self.retire(now, peer);
            self.retry(now, peer);
            self.resume(now, peer);
            self.nudge(now, peer);
            self.cool(now, peer);
            self.rekey_idle(now, peer);
            self.recheck(now, peer);
            self.refresh_timer(peer);
        }
    }

    fn retire(&mut self, now: Time, peer: PeerId) {
        let reject_after = self.config.reject_after;
        let Some(found) = self.peers.get_mut(peer) else {
            return;
        };
        let mut gone = Vec::new();
        gone.extend(found.old.extract_if(.., |old| old.1 <= now).map(|old| old.0));
        gone.extend(found.next.extract_if(.., |next| next.until() <= now).map(|next| next.index));
        let over = |index: &mut SessionIndex| {
            self.slots.get(*index).is_none_or(|s| s.created + reject_after <= now)
        };
        if let Some(index) = found.current.take_if(over) {
            found.nudge = None;
            found.cool_at = None;
            gone.push(index);
            self.events.push_back(SessionEvent::Expired { peer });
        }
        for index in gone {
            self.slots.release(index);
        }
    }

    fn retry(&mut self, now: Time, peer: PeerId) {
        let attempts = self.config.attempts;
        let Some(dial) = self.peer_mut(peer).and_then(|p| p.dial.as_mut()) else { return };
        if dial.retry_at.is_none_or(|at| at > now) {
            return;
        }
        if dial.look && dial.sent >= LOOKS {
            self.drop_dial(peer);
            self.plan_recheck(now, peer);
        } else if dial.sent >= attempts {
            self.fail_dial(now, peer);
        } else {
            dial.retry_at = None;
            self.starts.push_back(peer);
        }
    }

    /// Begins this node's handshake, which waited for the peer's handshake without result.
    fn resume(&mut self, now: Time, peer: PeerId) {
        let due = |at: &mut Time| *at <= now;
        if self.peer_mut(peer).is_some_and(|p| p.resume_at.take_if(due).is_some()) {
            self.begin(peer);
        }
    }

    fn nudge(&mut self, now: Time, peer: PeerId) {
        let Some(found) = self.peer_mut(peer) else { return };
        let Some(KeepaliveRetry { wait, left, .. }) = found.nudge.filter(|nudge| nudge.at <= now)
        else {
            return;
        };
        if left == 0 {
            found.nudge = None;
            let unheard = |s: &Session| s.initiator && !s.heard;
            if self.current(peer).and_then(|i| self.slots.get(i)).is_some_and(unheard) {
                self.reconnect(now, peer);
            }
            return;
        }
        found.nudge = Some(KeepaliveRetry { at: now + wait * 2, wait: wait * 2, left: left - 1 });
        self.events.push_back(SessionEvent::NeedKeepalive { peer });
    }

    fn cool(&mut self, now: Time, peer: PeerId) {
        let Some(found) = self.peers.get_mut(peer) else {
            return;
        };
        if found.cool_at.is_none_or(|at| at > now) {
            return;
        }
        found.cool_at = None;
        let used = |index| self.slots.get(index).map(|s| s.used);
        if let Some(used) = found.current.and_then(used).filter(|u| *u + COOL_AFTER > now) {
            found.cool_at = Some(used + COOL_AFTER);
            return;
        }
        let next = found.next.iter().map(|next| next.index);
        let kept = found.old.iter().map(|old| old.0).chain(next);
        for index in kept.chain(found.current) {
            self.slots.cool(index);
        }
    }

    fn rekey_idle(&mut self, now: Time, peer: PeerId) {
        if !self.config.keep_idle {
            return;
        }
        let Some(session) = self.current(peer).and_then(|index| self.slots.get(index)) else {
            return;
        };
        let due = session.rekey_at <= now;
        let Some(found) = self.peer_mut(peer) else { return };
        if due && found.dial.is_none() && found.dial_again <= now {
            // Even if this fails, the next attempt must wait: the timer must move on.
            found.dial_again = now + NUDGE_FIRST;
            self.reconnect(now, peer);
        }
    }

    /// Tests again if the path carries full frames, by a new handshake. Live keys stay in use
    /// meanwhile. An open handshake will show it too.
    fn recheck(&mut self, now: Time, peer: PeerId) {
        let due = |at: &mut Time| *at <= now;
        let Some(found) = self.peer_mut(peer) else { return };
        if found.recheck.at.take_if(due).is_some()
            && found.dial.is_none()
            && self.is_live(now, peer)
        {
            self.reconnect(now, peer);
            if let Some(dial) = self.peer_mut(peer).and_then(|p| p.dial.as_mut()) {
                dial.look = true;
            }
        }
    }

    /// Plans the next test of a path that seems small, unless that is certain for another reason
    /// than lost requests.
    pub(crate) fn plan_recheck(&mut self, now: Time, peer: PeerId) {
        let (first, last) = (self.config.retry_first, self.config.rekey_after);
        if let Some(found) = self.peer_mut(peer).filter(|p| !p.refused && !p.always_small) {
            found.recheck = found.recheck.next(now, first, last);
        }
    }
}
