//! The session machine: its peers, their sessions, and the queues of output and work.

use core::marker::PhantomData;
use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use shoal_crypto::{
    Ciphers, Identity, NetworkSecret, NetworkSecrets, PublicKey, Rng, Secret, StandardCiphers,
};
use shoal_wire::{DropReason, Level, Time};

use crate::config::{
    Endpoint, HandshakeStats, PeerId, SessionConfig, SessionEvent, SessionRole, SourceKey,
    TableFull,
};
use crate::cookie::Cookies;
use crate::job::{AttemptId, FinishJob, HandshakeTask, JobContext, Levels, ResponseJob};
use crate::keys::Session;
use crate::masks::IndexMasks;
use crate::outer::{Lead, OuterSeal};
use crate::owners::IdAllocator;
use crate::parts::{self, HandshakeParts};
use crate::peer::{PathRecheck, PeerState};
use crate::races::{COPIES_OF_REQUEST, CopyRaces};
use crate::removed::{FormerKeys, RemovedBudget};
use crate::seen::HandshakeReplayCache;
use crate::shard::{SessionUse, ShardOrder};
use crate::slots::{LANES_MAX, SessionIndex, SessionSlots};

/// Handshake frames that may wait to be sent.
pub(crate) const OUT_MAX: usize = 1_024;

/// Most milliseconds by which timestamps may be ahead of a wall clock that was set back.
const SLACK_MS: u64 = 500;

/// A handshake frame that waits to be sent.
pub(crate) struct OutgoingHandshake<E> {
    pub(crate) peer: Option<PeerId>,
    pub(crate) to: E,
    pub(crate) frame: Vec<u8>,
}

/// All sessions of one node in one role (links, or host pairs). The crate's documentation says how
/// to drive it. `C` seals frames.
pub struct Sessions<E: Endpoint, C: Ciphers = StandardCiphers> {
    pub(crate) config: SessionConfig,
    pub(crate) common: Arc<JobContext>,
    pub(crate) rng: Rng,
    /// The latest time of any call, for polls without a time.
    pub(crate) now: Time,
    /// Time of the machine's creation.
    started: Time,
    /// Unix time in milliseconds minus machine time.
    unix_offset_ms: u64,
    pub(crate) incarnation: u64,
    last_timestamp: u64,
    pub(crate) masks: IndexMasks,
    pub(crate) cookies: Cookies,
    /// Until this time requests need a cookie.
    pub(crate) loaded_until: Time,
    pub(crate) peers: IdAllocator<PeerId, Box<PeerState<E>>>,
    by_dh: BTreeMap<[u8; 32], PeerId>,
    pub(crate) levels: Arc<Levels>,
    /// Former members, and the answers that told them.
    pub(crate) former: Arc<FormerKeys>,
    pub(crate) removed: RemovedBudget,
    pub(crate) slots: SessionSlots<C>,
    /// Newest index mask key that the shards have.
    pub(crate) told_epoch: Option<u32>,
    pub(crate) tokens: BTreeMap<Lead, AttemptId>,
    pub(crate) leads: BTreeSet<Lead>,
    pub(crate) numbers: u64,
    pub(crate) starts: VecDeque<PeerId>,
    pub(crate) finishes: VecDeque<FinishJob>,
    pub(crate) answers: VecDeque<ResponseJob<E>>,
    /// Jobs given out and not yet done, and the answers among them.
    pub(crate) running: usize,
    pub(crate) answering: usize,
    /// Answers that wait or are being made: per source, and for requests dated before this node's
    /// start.
    pub(crate) sources: BTreeMap<SourceKey, usize>,
    pub(crate) dated_before: usize,
    /// Number of times that all keys were forgotten. Answers that were begun before are discarded.
    pub(crate) age: u32,
    /// Requests that were accepted, and requests that were asked for a cookie.
    pub(crate) taken: HandshakeReplayCache,
    pub(crate) turned_away: HandshakeReplayCache,
    pub(crate) races: CopyRaces<E>,
    pub(crate) out: VecDeque<OutgoingHandshake<E>>,
    pub(crate) events: VecDeque<SessionEvent>,
    pub(crate) timers: BTreeSet<(Time, PeerId)>,
    pub(crate) stats: HandshakeStats,
    pub(crate) drops: [u64; DropReason::COUNT],
    pub(crate) parts: HandshakeParts<E>,
}

impl<E: Endpoint> Sessions<E> {
    /// A machine without peers. `seed` must be fresh randomness of the operating system, since
    /// ephemeral keys follow from it. `unix_ms` is Unix time in milliseconds at `now`.
    pub fn new(
        config: SessionConfig,
        identity: Identity,
        secret: NetworkSecret,
        seed: [u8; 32],
        now: Time,
        unix_ms: u64,
    ) -> Self {
        Sessions::with_ciphers(config, identity, secret, seed, now, unix_ms)
    }
}

impl<E: Endpoint, C: Ciphers> Sessions<E, C> {
    /// Like [`Sessions::new`], with the ciphers `C`.
    pub fn with_ciphers(
        config: SessionConfig,
        identity: Identity,
        secret: NetworkSecret,
        seed: [u8; 32],
        now: Time,
        unix_ms: u64,
    ) -> Self {
        let mut config = config;
        config.lanes = config.lanes.clamp(1, LANES_MAX);
        config.workers = config.workers.clamp(1, LANES_MAX);
        let mut rng = Rng::new(seed);
        let common = JobContext::new(&config, identity, secret.into());
        // A mask key may serve an open handshake and then a whole session.
        let keep = config.reject_after + config.reject_after;
        Sessions {
            common: Arc::new(common),
            now,
            started: now,
            unix_offset_ms: unix_ms.saturating_sub(now.as_micros() / 1_000),
            incarnation: rng.u64(),
            last_timestamp: 0,
            masks: IndexMasks::new(rng.fork("index masks"), now, keep),
            cookies: Cookies::new(rng.fork("cookies"), now),
            loaded_until: now,
            peers: IdAllocator::default(),
            by_dh: BTreeMap::new(),
            levels: Arc::default(),
            former: Arc::default(),
            removed: RemovedBudget::default(),
            slots: SessionSlots::new(
                config.max_peers.saturating_mul(4) + config.handshake_queue * 2 + 8,
                &config,
            ),
            told_epoch: None,
            tokens: BTreeMap::new(),
            leads: BTreeSet::new(),
            numbers: 0,
            starts: VecDeque::new(),
            finishes: VecDeque::new(),
            answers: VecDeque::new(),
            running: 0,
            answering: 0,
            sources: BTreeMap::new(),
            dated_before: 0,
            age: 0,
            taken: HandshakeReplayCache::default(),
            turned_away: HandshakeReplayCache::default(),
            races: CopyRaces::new(COPIES_OF_REQUEST),
            out: VecDeque::new(),
            events: VecDeque::new(),
            timers: BTreeSet::new(),
            stats: HandshakeStats::default(),
            drops: [0; DropReason::COUNT],
            parts: HandshakeParts::new(),
            config,
            rng,
        }
    }

    /// Sets the network's secrets. New handshakes begin with the first one; handshakes under both
    /// are accepted. Sessions and open handshakes are unchanged.
    pub fn set_secrets(&mut self, secrets: NetworkSecrets) {
        let identity = self.common.identity.clone();
        self.common = Arc::new(JobContext::new(&self.config, identity, secrets));
    }

    /// Allows sessions with the holder of `key`. Returns the existing peer if the key is known.
    pub fn add_peer(&mut self, key: PublicKey) -> Result<PeerId, TableFull> {
        if let Some(&peer) = self.by_dh.get(&key.dh) {
            return Ok(peer);
        }
        let added = self.peers.add(self.config.max_peers, Box::new(PeerState::new(key)));
        let peer = added.ok_or(TableFull)?;
        self.by_dh.insert(key.dh, peer);
        self.forget_former(&key.dh);
        Ok(peer)
    }

    /// Ends all sessions with the peer and forgets it. After that its id names nobody.
    pub fn remove_peer(&mut self, peer: PeerId) {
        self.drop_dial(peer);
        let Some(mut gone) = self.peers.remove(peer) else { return };
        for index in gone.take_sessions() {
            self.slots.release(index);
        }
        if let Some(at) = gone.deadline {
            self.timers.remove(&(at, peer));
        }
        self.by_dh.remove(&gone.key.dh);
        if self.levels.contains_key(&gone.key.dh) {
            Arc::make_mut(&mut self.levels).remove(&gone.key.dh);
        }
        self.out.retain(|out| out.peer != Some(peer));
        self.events.retain(|event| event.peer() != peer);
    }

    /// Allows sessions with the peer down to this level, if the peer allows them too. Applies to
    /// later handshakes; live sessions are unchanged. Sessions of host pairs are always encrypted.
    pub fn set_weakest(&mut self, peer: PeerId, weakest: Level) {
        let Some(key) = self.peer(peer).map(|p| p.key.dh) else { return };
        match weakest {
            weaker if weaker != Level::Encrypt && self.config.role == SessionRole::Link => {
                Arc::make_mut(&mut self.levels).insert(key, weaker);
            }
            _ => {
                Arc::make_mut(&mut self.levels).remove(&key);
            }
        }
    }

    /// The weakest level accepted from the peer.
    pub fn weakest(&self, peer: PeerId) -> Level {
        let key = self.peer(peer).map(|p| &p.key.dh);
        key.and_then(|key| self.levels.get(key)).copied().unwrap_or_default()
    }

    /// Public key of this node.
    pub fn own_key(&self) -> PublicKey {
        self.common.identity.public()
    }

    pub fn peer_key(&self, peer: PeerId) -> Option<&PublicKey> {
        self.peer(peer).map(|p| &p.key)
    }

    pub fn peer_by_key(&self, key: &PublicKey) -> Option<PeerId> {
        self.by_dh.get(&key.dh).copied()
    }

    pub(crate) fn peer_by_dh(&self, dh: &[u8; 32]) -> Option<PeerId> {
        self.by_dh.get(dh).copied()
    }

    /// Sets the target of requests to the peer. If a hidden peer loses its circuit, an open
    /// handshake with it ends, and [`SessionEvent::NeedCircuit`] follows.
    pub fn set_endpoint(&mut self, peer: PeerId, endpoint: Option<E>) {
        let Some(found) = self.peer_mut(peer) else { return };
        found.endpoint = endpoint;
        if found.hidden && endpoint.is_none() && found.dial.is_some() {
            self.drop_dial(peer);
            self.begin(peer);
            self.refresh_timer(peer);
        }
    }

    /// Like [`Self::set_endpoint`], for the source of a newest frame (see
    /// [`crate::OpenedSessionFrame::newest`]).
    pub fn note_endpoint(&mut self, peer: PeerId, endpoint: E) {
        self.set_endpoint(peer, Some(endpoint));
    }

    /// Target of requests to the peer.
    pub fn endpoint(&self, peer: PeerId) -> Option<E> {
        self.peer(peer)?.endpoint
    }

    pub(crate) fn peer(&self, peer: PeerId) -> Option<&PeerState<E>> {
        self.peers.get(peer).map(Box::as_ref)
    }

    pub(crate) fn peer_mut(&mut self, peer: PeerId) -> Option<&mut PeerState<E>> {
        self.peers.get_mut(peer).map(Box::as_mut)
    }

    pub(crate) fn current(&self, peer: PeerId) -> Option<SessionIndex> {
        self.peer(peer)?.current
    }

    fn live_session(&self, now: Time, peer: PeerId) -> Option<&Session> {
        let session = self.slots.get(self.current(peer)?)?;
        (now.since(session.created) < self.config.reject_after).then_some(session)
    }

    /// True if frames can be sealed for the peer.
    pub fn is_live(&self, now: Time, peer: PeerId) -> bool {
        self.live_session(now, peer).is_some()
    }

    /// Number of encrypted lanes of the live session with the peer; 0 without one.
    pub fn lanes(&self, now: Time, peer: PeerId) -> u8 {
        self.slots.own.lanes(now, peer)
    }

    /// First plain lane of the live session with the peer; see `SessionShard::plain_from`.
    pub fn plain_from(&self, now: Time, peer: PeerId) -> Option<u8> {
        self.slots.own.plain_from(now, peer)
    }

    /// The next order for another worker, and the worker's number. Orders must not get lost or
    /// overtake each other. With one worker there are none.
    pub fn poll_order(&mut self) -> Option<(u8, ShardOrder<C::Aead>)> {
        self.slots.poll_order()
    }

    /// Processes a note from a shard about opened and sealed frames.
    pub fn handle_note(&mut self, now: Time, note: &SessionUse) {
        self.now = self.now.max(now);
        let Some(session) = self.slots.get_mut(note.index) else { return };
        session.spent = session.spent.max(note.spent);
        session.warm = true;
        if note.sealed {
            self.note_sealed(now, note.index);
        }
        if note.opened {
            self.note_opened(now, note.index);
        }
    }

    /// The peer whose frames another worker opened; none if it only sealed.
    pub fn heard(&self, note: &SessionUse) -> Option<PeerId> {
        let session = self.slots.get(note.index).filter(|_| note.opened);
        session.map(|session| session.peer)
    }

    /// Number of live sessions, including replaced and unconfirmed ones.
    pub fn session_count(&self) -> usize {
        self.slots.live()
    }

    /// Secret from which the changing addresses of both ends follow, and the time at which its
    /// session was made. None without a session, and between hosts.
    pub fn shift_secret(&self, peer: PeerId) -> Option<(&Secret<32>, Time)> {
        let session = self.slots.get(self.current(peer)?)?;
        Some((session.shift.as_ref()?, session.created))
    }

    /// Counters of handshakes.
    pub fn stats(&self) -> &HandshakeStats {
        &self.stats
    }

    /// Drops after the call that brought the frame had returned, indexed by [`DropReason`]. The
    /// caller must count drops that a call returned as an error.
    pub fn drops(&self) -> &[u64; DropReason::COUNT] {
        &self.drops
    }

    /// True if a frame outside sessions that begins with `token` may answer a request of this
    /// machine.
    pub fn awaits(&self, token: &Lead) -> bool {
        self.tokens.contains_key(token)
    }

    pub(crate) fn count_drop(&mut self, reason: DropReason) {
        self.drops[reason as usize] += 1;
    }

    /// Unix time in milliseconds at a machine time.
    fn unix_ms(&self, at: Time) -> u64 {
        self.unix_offset_ms.saturating_add(at.as_micros() / 1_000)
    }

    /// A timestamp for a request: Unix milliseconds, and always greater than the last one.
    pub(crate) fn timestamp(&mut self) -> u64 {
        self.last_timestamp = self.unix_ms(self.now).max(self.last_timestamp + 1);
        self.last_timestamp
    }

    /// Distance of a request's shown time from this node's clock, and true if it is before this
    /// node's start. The four bytes on the wire wrap, so the nearest time counts.
    pub(crate) fn date(&self, shown_s: u32) -> (Duration, bool) {
        let since = |at| shown_s.wrapping_sub((self.unix_ms(at) / 1_000) as u32).cast_signed();
        let off_s = since(self.now).unsigned_abs();
        (Duration::from_secs(off_s.into()), since(self.started) < 0)
    }

    /// Sets the wall clock, which may have been changed since the start. If it went back, the
    /// machine draws a new incarnation, since timestamps must follow the clock and never repeat.
    pub fn set_unix_time(&mut self, now: Time, unix_ms: u64) {
        self.now = self.now.max(now);
        self.unix_offset_ms = unix_ms.saturating_sub(self.now.as_micros() / 1_000);
        if self.last_timestamp > unix_ms.saturating_add(SLACK_MS) {
            self.new_incarnation();
        }
    }

    /// Draws a new incarnation. To other nodes, later requests come from another process.
    pub(crate) fn new_incarnation(&mut self) {
        self.incarnation = self.rng.u64();
        self.last_timestamp = 0;
    }

    pub(crate) fn push_out(&mut self, out: OutgoingHandshake<E>) -> bool {
        if self.out.len() >= OUT_MAX {
            self.count_drop(DropReason::QueueFull);
            return false;
        }
        self.out.push_back(out);
        true
    }

    /// Queues a handshake frame for a peer. With a secret in `small`, the frame goes in parts under
    /// it.
    pub(crate) fn push_handshake(
        &mut self,
        peer: PeerId,
        to: E,
        frame: Vec<u8>,
        small: Option<&NetworkSecret>,
    ) {
        let key = self.peer(peer).map(|p| p.key);
        self.push_frame(Some(peer), to, frame, small.zip(key.as_ref()));
    }

    /// Queues a handshake frame. With a secret and the receiver's key in `small`, the frame goes in
    /// parts.
    pub(crate) fn push_frame(
        &mut self,
        peer: Option<PeerId>,
        to: E,
        frame: Vec<u8>,
        small: Option<(&NetworkSecret, &PublicKey)>,
    ) {
        let role = self.config.role;
        let Some((secret, key)) = small.filter(|_| role == SessionRole::Link) else {
            self.push_out(OutgoingHandshake { peer, to, frame });
            return;
        };
        let outer = OuterSeal::new(role.label(), secret, key);
        for frame in parts::cut(&outer, &mut self.rng, &frame) {
            self.push_out(OutgoingHandshake { peer, to, frame });
        }
    }

    /// True if the path to the peer carries no full frame. Its handshakes go in parts, and the
    /// owner's frames must too.
    pub fn is_small_path(&self, peer: PeerId) -> bool {
        self.peer(peer).is_some_and(|p| p.small || p.always_small)
    }

    /// Sets if the path to the peer never carries a full frame, whatever handshakes show. With
    /// false, handshakes find it out.
    pub fn set_small_path(&mut self, peer: PeerId, always: bool) {
        if let Some(peer) = self.peer_mut(peer) {
            peer.always_small = always;
        }
    }

    /// Records what was learnt since the last handshake: true if the path to the peer carries no
    /// full frame. The next handshake begins accordingly.
    pub fn note_path(&mut self, peer: PeerId, small: bool) {
        if let Some(found) = self.peer_mut(peer) {
            (found.small, found.refused, found.recheck) = (small, small, PathRecheck::default());
            self.refresh_timer(peer);
        }
    }

    /// Takes back a full handshake frame that was too long to be sent, and queues it in parts under
    /// the secret of the newest request. The frame may be a response, whose request may have used
    /// the other of two secrets. The peer then can't open the parts. It asks again in parts, and is
    /// answered under its own secret.
    pub fn handle_too_long(&mut self, peer: PeerId, to: E, frame: &[u8]) {
        let Some(found) = self.peer_mut(peer) else { return };
        (found.small, found.refused) = (true, true);
        let turn = found.dial.as_ref().map_or(1, |dial| dial.turn);
        if frame.len() == self.config.role.handshake_len() {
            let secret = self.common.secret_of_turn(turn).clone();
            self.push_handshake(peer, to, frame.to_vec(), Some(&secret));
        }
    }

    /// The next handshake frame to send: its peer, its target, and the number of bytes written to
    /// `buf`. `buf` must hold a frame of the full class.
    pub fn poll_transmit(
        &mut self,
        now: Time,
        buf: &mut [u8],
    ) -> Option<(Option<PeerId>, E, usize)> {
        self.now = self.now.max(now);
        let OutgoingHandshake { peer, to, frame } = self.out.pop_front()?;
        buf.get_mut(..frame.len())?.copy_from_slice(&frame);
        Some((peer, to, frame.len()))
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<SessionEvent> {
        self.events.pop_front()
    }

    /// The next piece of handshake work, for any thread that has time.
    pub fn poll_job(&mut self) -> Option<HandshakeTask<E, C>> {
        let work = self.next_work()?;
        self.running += 1;
        let common = Arc::clone(&self.common);
        Some(HandshakeTask { common, work, fresh: None, ciphers: PhantomData })
    }

    /// Time and reason of the next call. Waiting jobs count only while none is running: otherwise
    /// the next job is requested at `handle_done`.
    pub fn poll_timeout(&self) -> Option<(Time, &'static str)> {
        let work = self.starts.len() + self.finishes.len() + self.answers.len();
        if self.slots.has_orders() {
            Some((Time::ZERO, "order for a worker"))
        } else if !self.out.is_empty() {
            Some((Time::ZERO, "handshake frame to send"))
        } else if !self.events.is_empty() {
            Some((Time::ZERO, "session event"))
        } else if work > 0 && self.running == 0 {
            Some((Time::ZERO, "handshake job"))
        } else {
            self.timers.first().map(|&(at, _)| (at, "session timer"))
        }
    }
}

impl<E: Endpoint, C: Ciphers> core::fmt::Debug for Sessions<E, C> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Sessions")
            .field("role", &self.config.role)
            .field("peers", &self.by_dh.len())
            .field("sessions", &self.slots.live())
            .finish_non_exhaustive()
    }
}
