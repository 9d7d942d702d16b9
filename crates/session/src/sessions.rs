//! The machine: who the peers are, which sessions they have, what waits to be sent or done.

use core::marker::PhantomData;
use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use shoal_crypto::{
    Ciphers, Identity, NetworkSecret, NetworkSecrets, PublicKey, Rng, Secret, Standard,
};
use shoal_wire::{DropReason, Level, Time};

use crate::config::{Config, Endpoint, Event, PeerId, Role, Source, Stats, TableFull};
use crate::cookie::Cookies;
use crate::job::{Answer, AttemptId, Common, Finish, Job, Levels};
use crate::keys::Session;
use crate::masks::IndexMasks;
use crate::outer::{Lead, OuterSeal};
use crate::owners::Owners;
use crate::parts::{self, Parts};
use crate::peer::{Peer, Recheck};
use crate::races::{COPIES_OF_REQUEST, Races};
use crate::seen::Seen;
use crate::shard::{Note, Order};
use crate::slots::{Index, LANES_MAX, Slots};

/// Handshake frames that may wait to be sent.
pub(crate) const OUT_MAX: usize = 1_024;

/// How far timestamps may run ahead of a wall clock that was set back.
const SLACK_MS: u64 = 500;

/// A handshake frame that waits to be sent.
pub(crate) struct Out<E> {
    pub(crate) peer: Option<PeerId>,
    pub(crate) to: E,
    pub(crate) frame: Vec<u8>,
}

/// All sessions of one node in one use (links, or host pairs). See the crate's documentation for
/// how to drive it. `C` is what seals frames.
pub struct Sessions<E: Endpoint, C: Ciphers = Standard> {
    pub(crate) config: Config,
    pub(crate) common: Arc<Common>,
    pub(crate) rng: Rng,
    /// The latest time heard of, for what is polled without one.
    pub(crate) now: Time,
    /// When the machine was made.
    started: Time,
    /// Unix time in milliseconds minus machine time.
    unix_offset_ms: u64,
    pub(crate) incarnation: u64,
    last_timestamp: u64,
    pub(crate) masks: IndexMasks,
    pub(crate) cookies: Cookies,
    /// Until then requests need a cookie.
    pub(crate) loaded_until: Time,
    pub(crate) peers: Owners<PeerId, Box<Peer<E>>>,
    by_dh: BTreeMap<[u8; 32], PeerId>,
    pub(crate) levels: Arc<Levels>,
    pub(crate) slots: Slots<C>,
    /// The newest index mask key that the shards know.
    pub(crate) told_epoch: Option<u32>,
    pub(crate) tokens: BTreeMap<Lead, AttemptId>,
    pub(crate) leads: BTreeSet<Lead>,
    pub(crate) numbers: u64,
    pub(crate) starts: VecDeque<PeerId>,
    pub(crate) finishes: VecDeque<Finish>,
    pub(crate) answers: VecDeque<Answer<E>>,
    /// Jobs taken and not yet done, and how many of them are answers.
    pub(crate) running: usize,
    pub(crate) answering: usize,
    /// Answers that wait or are made: per source, and those to requests from before our start.
    pub(crate) sources: BTreeMap<Source, usize>,
    pub(crate) dated_before: usize,
    /// How often all keys were forgotten; answers that were begun before come to nothing.
    pub(crate) age: u32,
    /// Requests that were taken, and those that a cookie was asked of.
    pub(crate) taken: Seen,
    pub(crate) turned_away: Seen,
    pub(crate) races: Races<E>,
    pub(crate) out: VecDeque<Out<E>>,
    pub(crate) events: VecDeque<Event>,
    pub(crate) timers: BTreeSet<(Time, PeerId)>,
    pub(crate) stats: Stats,
    pub(crate) drops: [u64; DropReason::COUNT],
    pub(crate) parts: Parts<E>,
}

impl<E: Endpoint> Sessions<E> {
    /// A machine without peers. `seed` must be fresh randomness of the operating system, since
    /// ephemeral keys come from it; `unix_ms` is Unix time in milliseconds at `now`.
    pub fn new(
        config: Config,
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
    /// As [`Sessions::new`], with the ciphers that the type names.
    pub fn with_ciphers(
        config: Config,
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
        let common = Common::new(&config, identity, secret.into());
        // A handed-out mask key can serve a handshake in flight and then a whole session.
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
            peers: Owners::default(),
            by_dh: BTreeMap::new(),
            levels: Arc::default(),
            slots: Slots::new(
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
            taken: Seen::default(),
            turned_away: Seen::default(),
            races: Races::new(COPIES_OF_REQUEST),
            out: VecDeque::new(),
            events: VecDeque::new(),
            timers: BTreeSet::new(),
            stats: Stats::default(),
            drops: [0; DropReason::COUNT],
            parts: Parts::new(),
            config,
            rng,
        }
    }

    /// Has handshakes begin with the first of these secrets, and takes those under both. Sessions,
    /// and handshakes under way, stay as they are.
    pub fn set_secrets(&mut self, secrets: NetworkSecrets) {
        let identity = self.common.identity.clone();
        self.common = Arc::new(Common::new(&self.config, identity, secrets));
    }

    /// Allows sessions with the holder of `key`; a known key gives its peer.
    pub fn add_peer(&mut self, key: PublicKey) -> Result<PeerId, TableFull> {
        if let Some(&peer) = self.by_dh.get(&key.dh) {
            return Ok(peer);
        }
        let added = self.peers.add(self.config.max_peers, Box::new(Peer::new(key)));
        let peer = added.ok_or(TableFull)?;
        self.by_dh.insert(key.dh, peer);
        Ok(peer)
    }

    /// Ends all sessions with the peer and forgets it: its id names nobody from now on.
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

    /// Allows sessions with the peer down to this level, if the peer allows them too. This holds
    /// for handshakes to come; live sessions stay as they are. Those of host pairs are always
    /// encrypted.
    pub fn set_weakest(&mut self, peer: PeerId, weakest: Level) {
        let Some(key) = self.peer(peer).map(|p| p.key.dh) else { return };
        match weakest {
            weaker if weaker != Level::Encrypt && self.config.role == Role::Link => {
                Arc::make_mut(&mut self.levels).insert(key, weaker);
            }
            _ => {
                Arc::make_mut(&mut self.levels).remove(&key);
            }
        }
    }

    /// The weakest level that is taken with the peer.
    pub fn weakest(&self, peer: PeerId) -> Level {
        let key = self.peer(peer).map(|p| &p.key.dh);
        key.and_then(|key| self.levels.get(key)).copied().unwrap_or_default()
    }

    /// This node's key.
    pub fn own_key(&self) -> PublicKey {
        self.common.identity.public()
    }

    /// The peer's key.
    pub fn peer_key(&self, peer: PeerId) -> Option<&PublicKey> {
        self.peer(peer).map(|p| &p.key)
    }

    /// The peer that holds a key.
    pub fn peer_by_key(&self, key: &PublicKey) -> Option<PeerId> {
        self.by_dh.get(&key.dh).copied()
    }

    pub(crate) fn peer_by_dh(&self, dh: &[u8; 32]) -> Option<PeerId> {
        self.by_dh.get(dh).copied()
    }

    /// Sets where requests to the peer go. A handshake that is under way with a hidden peer ends
    /// where there is no circuit any more, and [`Event::NeedCircuit`] follows.
    pub fn set_endpoint(&mut self, peer: PeerId, endpoint: Option<E>) {
        let Some(found) = self.peer_mut(peer) else { return };
        found.endpoint = endpoint;
        if found.hidden && endpoint.is_none() && found.dial.is_some() {
            self.drop_dial(peer);
            self.begin(peer);
            self.refresh_timer(peer);
        }
    }

    /// As [`Self::set_endpoint`], for what a newest frame showed (see [`crate::Opened::newest`]).
    pub fn note_endpoint(&mut self, peer: PeerId, endpoint: E) {
        self.set_endpoint(peer, Some(endpoint));
    }

    /// Where requests to the peer go.
    pub fn endpoint(&self, peer: PeerId) -> Option<E> {
        self.peer(peer)?.endpoint
    }

    pub(crate) fn peer(&self, peer: PeerId) -> Option<&Peer<E>> {
        self.peers.get(peer).map(Box::as_ref)
    }

    pub(crate) fn peer_mut(&mut self, peer: PeerId) -> Option<&mut Peer<E>> {
        self.peers.get_mut(peer).map(Box::as_mut)
    }

    pub(crate) fn current(&self, peer: PeerId) -> Option<Index> {
        self.peer(peer)?.current
    }

    fn live_session(&self, now: Time, peer: PeerId) -> Option<&Session> {
        let session = self.slots.get(self.current(peer)?)?;
        (now.since(session.created) < self.config.reject_after).then_some(session)
    }

    /// Whether frames can be sealed for the peer now.
    pub fn is_live(&self, now: Time, peer: PeerId) -> bool {
        self.live_session(now, peer).is_some()
    }

    /// Encrypted lanes of the live session with the peer; 0 without one.
    pub fn lanes(&self, now: Time, peer: PeerId) -> u8 {
        self.slots.own.lanes(now, peer)
    }

    /// The first plain lane of the live session with the peer, as `SessionShard::plain_from`
    /// says.
    pub fn plain_from(&self, now: Time, peer: PeerId) -> Option<u8> {
        self.slots.own.plain_from(now, peer)
    }

    /// The next thing that another worker must know, and which worker. None may get lost or
    /// overtake another. With one worker there is none.
    pub fn poll_order(&mut self) -> Option<(u8, Order<C::Aead>)> {
        self.slots.poll_order()
    }

    /// Takes in what a shard opened and sealed.
    pub fn handle_note(&mut self, now: Time, note: &Note) {
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

    /// The peer whose frames another worker opened, if it opened any.
    pub fn heard(&self, note: &Note) -> Option<PeerId> {
        let session = self.slots.get(note.index).filter(|_| note.opened);
        session.map(|session| session.peer)
    }

    /// Sessions that live, replaced and unconfirmed ones included.
    pub fn session_count(&self) -> usize {
        self.slots.live()
    }

    /// What the addresses of both ends follow from if they hop, and since when there has been a
    /// session with it; none without a session, and between hosts.
    pub fn hop_secret(&self, peer: PeerId) -> Option<(&Secret<32>, Time)> {
        let session = self.slots.get(self.current(peer)?)?;
        Some((session.hop.as_ref()?, session.created))
    }

    /// Counters of handshakes.
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    /// What was dropped after the call that brought it had returned, by [`DropReason`] as index.
    /// What a call returned as an error is the caller's to count.
    pub fn drops(&self) -> &[u64; DropReason::COUNT] {
        &self.drops
    }

    /// Whether a frame outside of sessions that begins so may answer a request of this machine.
    pub fn awaits(&self, token: &Lead) -> bool {
        self.tokens.contains_key(token)
    }

    pub(crate) fn count_drop(&mut self, reason: DropReason) {
        self.drops[reason as usize] += 1;
    }

    /// Unix time in milliseconds at a time of the machine.
    fn unix_ms(&self, at: Time) -> u64 {
        self.unix_offset_ms.saturating_add(at.as_micros() / 1_000)
    }

    /// A timestamp for a request: Unix milliseconds, and always more than the last one.
    pub(crate) fn timestamp(&mut self) -> u64 {
        self.last_timestamp = self.unix_ms(self.now).max(self.last_timestamp + 1);
        self.last_timestamp
    }

    /// How far a time that a request shows is from our clock, and whether it is from before our
    /// start. The four bytes on the wire wrap; the nearest time is meant.
    pub(crate) fn date(&self, shown_s: u32) -> (Duration, bool) {
        let since = |at| shown_s.wrapping_sub((self.unix_ms(at) / 1_000) as u32).cast_signed();
        let off_s = since(self.now).unsigned_abs();
        (Duration::from_secs(off_s.into()), since(self.started) < 0)
    }

    /// Tells the machine what the wall clock says, which may have been set since the start. A clock
    /// that went back makes another incarnation, since timestamps must follow the clock and never
    /// repeat.
    pub fn set_unix_time(&mut self, now: Time, unix_ms: u64) {
        self.now = self.now.max(now);
        self.unix_offset_ms = unix_ms.saturating_sub(self.now.as_micros() / 1_000);
        if self.last_timestamp > unix_ms.saturating_add(SLACK_MS) {
            self.new_incarnation();
        }
    }

    /// Draws a new incarnation: to others, later requests come from another process.
    pub(crate) fn new_incarnation(&mut self) {
        self.incarnation = self.rng.u64();
        self.last_timestamp = 0;
    }

    pub(crate) fn push_out(&mut self, out: Out<E>) -> bool {
        if self.out.len() >= OUT_MAX {
            self.count_drop(DropReason::QueueFull);
            return false;
        }
        self.out.push_back(out);
        true
    }

    /// Queues a handshake frame for a peer, in parts under this secret if its path is small.
    pub(crate) fn push_handshake(
        &mut self,
        peer: PeerId,
        to: E,
        frame: Vec<u8>,
        small: Option<&NetworkSecret>,
    ) {
        let role = self.config.role;
        let small = small.filter(|_| role == Role::Link);
        let Some((secret, key)) = small.zip(self.peer(peer).map(|p| p.key)) else {
            self.push_out(Out { peer: Some(peer), to, frame });
            return;
        };
        let outer = OuterSeal::new(role.label(), secret, &key);
        for frame in parts::cut(&outer, &mut self.rng, &frame) {
            self.push_out(Out { peer: Some(peer), to, frame });
        }
    }

    /// Whether the path to the peer carries no full frame: its handshakes go in parts, and so must
    /// what its owner sends.
    pub fn is_small_path(&self, peer: PeerId) -> bool {
        self.peer(peer).is_some_and(|p| p.small || p.always_small)
    }

    /// Says that the path to the peer carries no full frame, whatever handshakes show; or that it
    /// is for them to find out.
    pub fn set_small_path(&mut self, peer: PeerId, always: bool) {
        if let Some(peer) = self.peer_mut(peer) {
            peer.always_small = always;
        }
    }

    /// Says what was learnt since the last handshake: whether the path to the peer carries no full
    /// frame. The next handshake begins accordingly.
    pub fn note_path(&mut self, peer: PeerId, small: bool) {
        if let Some(found) = self.peer_mut(peer) {
            (found.small, found.refused, found.recheck) = (small, small, Recheck::default());
            self.refresh_timer(peer);
        }
    }

    /// Takes back a full handshake frame that was too long to be sent: it goes in parts, under the
    /// secret of the newest request. The frame may be a response, of which nothing here says under
    /// what its request came. While two secrets count its parts may then be under one that the peer
    /// does not have; the peer asks again, and that is answered in parts under its own.
    pub fn handle_too_long(&mut self, peer: PeerId, to: E, frame: &[u8]) {
        let Some(found) = self.peer_mut(peer) else { return };
        (found.small, found.refused) = (true, true);
        let turn = found.dial.as_ref().map_or(1, |dial| dial.turn);
        if frame.len() == self.config.role.handshake_len() {
            let secret = self.common.secret_of_turn(turn).clone();
            self.push_handshake(peer, to, frame.to_vec(), Some(&secret));
        }
    }

    /// The next handshake frame to send: to whom, and how many bytes of `buf` it took. `buf` must
    /// hold a frame of the full class.
    pub fn poll_transmit(
        &mut self,
        now: Time,
        buf: &mut [u8],
    ) -> Option<(Option<PeerId>, E, usize)> {
        self.now = self.now.max(now);
        let Out { peer, to, frame } = self.out.pop_front()?;
        buf.get_mut(..frame.len())?.copy_from_slice(&frame);
        Some((peer, to, frame.len()))
    }

    /// The next thing to know.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// The next piece of handshake work, for whichever thread has time for it.
    pub fn poll_job(&mut self) -> Option<Job<E, C>> {
        let work = self.next_work()?;
        self.running += 1;
        let common = Arc::clone(&self.common);
        Some(Job { common, work, fresh: None, ciphers: PhantomData })
    }

    /// When to call next, and why. Jobs count as output only while none is running: when one is,
    /// its `handle_done` is the time to ask for the next.
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
