//! Former members: the answer that tells one of them that its membership has ended.
//!
//! A router answers a request of a former member by "removed", sealed under the response key. Only
//! the holder of the former key that made the request can read it. The answer is as long as the
//! request, and each key gets one per hour. All other strangers get no byte, as before.

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use shoal_crypto::{Ciphers, NetworkSecret, PublicKey};
use shoal_wire::{DropReason, HandshakeReply, Removal, TAG_LEN, Time, shake};

use crate::config::{Endpoint, SessionEvent, SessionRole};
use crate::job::{AttemptId, RequestOrigin, ResponseJob};
use crate::noise::Responder;
use crate::peer::REPLIES_MAX;
use crate::sessions::Sessions;

/// Most former members that a machine knows: 2 MB.
pub const FORMER_MAX: usize = 16_384;
/// Least time between two answers to one key.
const TOLD_AGAIN: Duration = Duration::from_secs(3_600);
/// Most keys whose last answer is remembered. While all places are taken, no other key is told, so
/// nobody can shorten an hour by filling the table.
const TOLD_MAX: usize = 4_096;
/// Answers per second, and at once.
const TOLD_PER_S: u32 = 10;
const TOLD_BURST: u32 = 64;

/// A key whose membership ended before its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FormerPeer {
    pub key: PublicKey,
    pub removal: Removal,
}

/// Former members, by the X25519 half of their keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FormerKeys(BTreeMap<[u8; 32], FormerPeer>);

impl FormerKeys {
    /// Keeps the [`FORMER_MAX`] that were removed last, each with its last removal.
    pub fn new(all: impl IntoIterator<Item = FormerPeer>) -> FormerKeys {
        let mut by_half: BTreeMap<[u8; 32], FormerPeer> = BTreeMap::new();
        for peer in all {
            let known = by_half.entry(peer.key.dh).or_insert(peer);
            if known.removal.day < peer.removal.day {
                *known = peer;
            }
        }
        if by_half.len() > FORMER_MAX {
            let mut newest: Vec<FormerPeer> = by_half.into_values().collect();
            newest.sort_by_key(|peer| core::cmp::Reverse(peer.removal.day));
            newest.truncate(FORMER_MAX);
            by_half = newest.into_iter().map(|peer| (peer.key.dh, peer)).collect();
        }
        FormerKeys(by_half)
    }

    /// Number of keys.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn get(&self, half: &[u8; 32]) -> Option<&FormerPeer> {
        self.0.get(half)
    }
}

/// Keys that were told within the last hour, and the rate of all answers.
#[derive(Default)]
pub(crate) struct RemovedBudget {
    /// Keys and times of their last answers, oldest first.
    order: VecDeque<(Time, [u8; 32])>,
    told: BTreeSet<[u8; 32]>,
    /// Time at which the answers so far keep the rate.
    answer_at: Time,
}

impl RemovedBudget {
    /// True if this key may be told now. Counts the answer if so.
    fn may_tell(&mut self, now: Time, half: &[u8; 32]) -> bool {
        while let Some((_, old)) = self.order.pop_front_if(|(at, _)| *at + TOLD_AGAIN <= now) {
            self.told.remove(&old);
        }
        let every = Duration::from_secs(1) / TOLD_PER_S;
        let at = self.answer_at.max(now);
        let may = self.told.len() < TOLD_MAX && at < now + every * TOLD_BURST;
        if !may || !self.told.insert(*half) {
            return false;
        }
        self.answer_at = at + every;
        self.order.push_back((now, *half));
        true
    }
}

/// The sealed answer to a former member's request.
pub(crate) struct RemovedResult {
    peer: FormerPeer,
    frame: Vec<u8>,
    /// Network secret under which the request was sealed.
    secret: NetworkSecret,
}

/// Seals the answer to the request of a former member.
pub(crate) fn answer<E>(
    peer: FormerPeer,
    role: SessionRole,
    job: &ResponseJob<E>,
    responder: &Responder,
) -> Result<RemovedResult, DropReason> {
    let mut frame = vec![0; role.handshake_len()];
    let end = frame.len() - TAG_LEN;
    let body = &mut frame[shake::REPLY_AT..end];
    let written = HandshakeReply::Removed(peer.removal).write(body);
    written.map_err(|_| DropReason::BadHandshake)?;
    let key = responder.response_key();
    job.opener.seal_reply(&job.lead, &job.salt, Some(&key), &mut frame);
    Ok(RemovedResult { peer, frame, secret: job.opener.secret().clone() })
}

impl<E: Endpoint, C: Ciphers> Sessions<E, C> {
    /// Sets the former members to which requests between neighbours are answered by "removed", in
    /// place of those before. Peers of this machine are left out.
    pub fn set_former(&mut self, mut former: Arc<FormerKeys>) {
        let is_peer = |half: &[u8; 32]| self.peer_by_dh(half).is_some();
        if former.0.keys().any(is_peer) {
            Arc::make_mut(&mut former).0.retain(|half, _| !is_peer(half));
        }
        self.former = former;
    }

    /// A key that became a peer is no former one.
    pub(crate) fn forget_former(&mut self, half: &[u8; 32]) {
        if self.former.get(half).is_some() {
            Arc::make_mut(&mut self.former).0.remove(half);
        }
    }

    /// Notes the answer that this node's membership has ended. The handshake goes on, so that a
    /// peer that lies can delay nothing more than a silent one.
    pub(crate) fn take_removal(
        &mut self,
        id: AttemptId,
        salt: &[u8; shake::SALT_LEN],
        removal: Removal,
    ) -> Result<(), DropReason> {
        let dial = self.peers.get_mut(id.peer).and_then(|peer| peer.dial.as_mut());
        let dial = dial.ok_or(DropReason::UnexpectedReply)?;
        let attempt = dial.attempts.iter_mut().find(|attempt| attempt.number == id.number);
        let attempt = attempt.ok_or(DropReason::UnexpectedReply)?;
        if attempt.replies.contains(salt) {
            return Err(DropReason::ReplayedHandshake);
        }
        if attempt.replies.len() >= REPLIES_MAX {
            return Err(DropReason::HandshakeBudget);
        }
        attempt.replies.push(*salt);
        if !core::mem::replace(&mut dial.removed, true) {
            self.events.push_back(SessionEvent::Removed { peer: id.peer, removal });
        }
        Ok(())
    }

    /// Sends a former member its answer, if it may have one. Returns the reason for which its
    /// request is dropped in any case.
    pub(crate) fn tell_removed(
        &mut self,
        now: Time,
        asked: &RequestOrigin<E>,
        told: RemovedResult,
    ) -> DropReason {
        let RemovedResult { peer, frame, secret } = told;
        let half = peer.key.dh;
        let is_former = self.former.get(&half).is_some() && now >= self.loaded_until;
        if is_former && self.removed.may_tell(now, &half) {
            self.stats.removed_told += 1;
            let small = asked.small.then_some((&secret, &peer.key));
            self.push_frame(None, asked.from, frame, small);
        }
        DropReason::UnknownPeer
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use shoal_crypto::Identity;
    use shoal_wire::RemovalReason;

    fn at(second: u64) -> Time {
        Time::ZERO + Duration::from_secs(second)
    }

    fn half(n: u32) -> [u8; 32] {
        let mut half = [0; 32];
        half[..4].copy_from_slice(&n.to_be_bytes());
        half
    }

    fn former(n: u32, day: u32) -> FormerPeer {
        let key = PublicKey { dh: half(n), ..Identity::from_seed([1; 32]).public() };
        FormerPeer { key, removal: Removal { reason: RemovalReason::Registrar, day } }
    }

    #[test]
    fn a_key_is_told_once_an_hour() {
        let mut budget = RemovedBudget::default();
        assert!(budget.may_tell(at(10), &half(1)));
        assert!((10..3_610).step_by(7).all(|second| !budget.may_tell(at(second), &half(1))));
        assert!(budget.may_tell(at(3_000), &half(2)));
        assert!(budget.may_tell(at(3_610), &half(1)));
        assert!(!budget.may_tell(at(3_610), &half(2)));
    }

    #[test]
    fn all_keys_together_keep_a_rate() {
        let mut budget = RemovedBudget::default();
        let told = (0..1_000).filter(|n| budget.may_tell(at(1), &half(*n))).count();
        assert_eq!(told, TOLD_BURST as usize);
        let told = (1_000..2_000).filter(|n| budget.may_tell(at(2), &half(*n))).count();
        assert_eq!(told, TOLD_PER_S as usize);
    }

    #[test]
    fn a_full_table_tells_nobody_new_and_shortens_no_hour() {
        let mut budget = RemovedBudget::default();
        let second = |n: u32| at(u64::from(n / TOLD_PER_S));
        assert!((0..TOLD_MAX as u32).all(|n| budget.may_tell(second(n), &half(n))));
        assert!(!budget.may_tell(at(3_599), &half(9_999)));
        assert!(!budget.may_tell(at(3_599), &half(0)));
        assert_eq!((budget.order.len(), budget.told.len()), (TOLD_MAX, TOLD_MAX));
        assert!(budget.may_tell(at(3_600), &half(9_999)));
    }

    #[test]
    fn the_newest_removals_stay_and_each_key_has_its_last() {
        let many = (0..FORMER_MAX as u32 + 100).map(|n| former(n, n));
        let keys = FormerKeys::new(many.chain([former(50, 60_000), former(50, 3)]));
        assert_eq!(keys.len(), FORMER_MAX);
        assert_eq!(keys.get(&half(50)).map(|peer| peer.removal.day), Some(60_000));
        assert!(keys.get(&half(100)).is_none() && keys.get(&half(101)).is_some());
    }
}
