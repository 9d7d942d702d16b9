//! Data path of sessions: one worker's lanes of all sessions.
//!
//! [`crate::Sessions`] makes sessions and ends them. Keys, counters and window of a lane belong to
//! one worker, from the session's start to its end. Nothing is shared or moved, and no lock is
//! taken. The first worker's shard is inside `Sessions`; with one worker it is the only one.
//!
//! ```text
//!            Order: keys, which session seals, the end
//! Sessions ----------------------------------------------> SessionShard, one per worker
//!          <----------------------------------------------
//!            Note: what was opened and sealed, once per batch
//! ```
//!
//! A lane's number alone decides its workers. Lanes are dealt to the opening workers in turn, and
//! to the sealing workers in blocks. With W workers and W * W lanes, every worker seals on lanes
//! that any worker of the next node opens. Below the level `encrypt` each lane has a plain twin.
//! The twins follow the encrypted lanes, and have their workers.
//!
//! Steps for a batch of frames:
//!
//! 1. The tags of all frames are the samples; one AES run makes the masks of all indexes.
//! 2. Each index names a session and lane. Neighbouring frames of one lane are a run.
//! 3. Per run, one AES run makes the masks of the counters. Then, frame by frame: window check,
//!    AEAD, window mark.
//! 4. The effects of a run on its session (confirmed, heard, due for new keys) are noted once.

use core::ops::Range;
use core::time::Duration;

use shoal_crypto::{Aead, Ciphers, MaskKey, Secret, StandardCiphers, Suite};
use shoal_wire::{DropReason, Id, Level, Time};

use crate::config::{OpenResult, PeerId, SessionConfig, SessionRole};
use crate::frames::{Scratch, fits, open_run, seal_run};
use crate::keys::{Lane, SessionTerms};
use crate::slots::SessionIndex;

/// The worker that opens frames of a lane.
pub(crate) fn opener(lane: u8, workers: u8) -> u8 {
    lane % workers.max(1)
}

/// Lanes on which a worker seals, if a session has `lanes` lanes.
pub(crate) fn seal_lanes(worker: u8, lanes: u8, workers: u8) -> Range<u8> {
    let (lanes, workers) = (u16::from(lanes), u16::from(workers.max(1)));
    let first = |worker: u16| (worker * lanes).div_ceil(workers).min(lanes) as u8;
    first(worker.into())..first(u16::from(worker) + 1)
}

/// The worker that seals on a lane, if a session has `lanes` lanes.
pub(crate) fn sealer(lane: u8, lanes: u8, workers: u8) -> u8 {
    (u16::from(lane) * u16::from(workers.max(1)) / u16::from(lanes.max(1))) as u8
}

/// Order from [`crate::Sessions`] to a worker.
pub enum ShardOrder<A> {
    /// A new index mask key for later sessions. The previous one stays valid.
    Masks { epoch: u32, key: Box<MaskKey> },
    /// A new session.
    Install(SessionInstall<A>),
    /// From here on, frames for a peer are sealed under this session.
    Seal { peer: PeerId, index: SessionIndex },
    /// A session was idle: the worker must forget its expanded keys until their next use.
    Cool { index: SessionIndex },
    /// A session ended.
    Retire { index: SessionIndex },
}

/// One worker's part of a new session.
pub struct SessionInstall<A>(Box<ShardSession<A>>);

struct ShardSession<A> {
    index: SessionIndex,
    /// Grows with every session that this shard got.
    serial: u64,
    epoch: u32,
    peer: PeerId,
    role: SessionRole,
    suite: Suite,
    level: Level,
    created: Time,
    peer_index: u32,
    peer_mask: Secret<32>,
    lanes: Vec<Lane<A>>,
    peer_mask_hot: Option<Box<MaskKey>>,
    note: SessionUse,
}

/// Number of encrypted lanes of a session; the others are their plain twins.
fn encrypted(lanes: usize, level: Level) -> u8 {
    let lanes = lanes as u8;
    if level == Level::Encrypt { lanes } else { lanes / 2 }
}

impl<A> ShardSession<A> {
    /// True if this is the session of `index`, made with `peer`.
    fn seals_for(&self, peer: PeerId, index: SessionIndex) -> bool {
        self.index == index && self.peer == peer
    }

    /// Number of encrypted lanes of the session, whoever holds them.
    fn encrypted(&self) -> u8 {
        encrypted(self.lanes.len(), self.level)
    }
}

impl<A: Aead> SessionInstall<A> {
    /// Moves the worker's lanes out of a session's lanes.
    pub(crate) fn new(
        now: Time,
        index: SessionIndex,
        terms: &SessionTerms,
        lanes: &mut [Lane<A>],
        (worker, workers): (u8, u8),
    ) -> SessionInstall<A> {
        let encrypted = encrypted(lanes.len(), terms.level);
        let seals = seal_lanes(worker, encrypted, workers);
        let twins = (0..encrypted).cycle();
        let lanes = twins.zip(lanes).map(|(number, lane)| Lane {
            tx: lane.tx.take_if(|_| seals.contains(&number)),
            rx: lane.rx.take_if(|_| opener(number, workers) == worker),
        });
        SessionInstall(Box::new(ShardSession {
            index,
            serial: 0,
            epoch: terms.epoch,
            peer: terms.peer,
            role: terms.role,
            suite: terms.suite,
            level: terms.level,
            created: now,
            peer_index: terms.peer_index,
            peer_mask: terms.peer_mask.clone(),
            lanes: lanes.collect(),
            peer_mask_hot: None,
            note: SessionUse { index, opened: false, sealed: false, spent: 0 },
        }))
    }
}

/// A worker's use of one session since its last note.
#[derive(Clone, Copy, Debug)]
pub struct SessionUse {
    pub(crate) index: SessionIndex,
    pub(crate) opened: bool,
    pub(crate) sealed: bool,
    /// The highest next counter on the worker's lanes of the session.
    pub(crate) spent: u32,
}

impl SessionUse {
    fn told(&mut self) {
        (self.opened, self.sealed) = (false, false);
    }
}

/// One worker's lanes of all sessions. See the module's documentation. `C` seals frames.
pub struct SessionShard<C: Ciphers = StandardCiphers> {
    role: SessionRole,
    worker: u8,
    workers: u8,
    reject_after: Duration,
    /// Index mask keys, the newest first; at most two.
    masks: Vec<(u32, Box<MaskKey>)>,
    parts: Vec<Option<Box<ShardSession<C::Aead>>>>,
    /// The session that seals, by the peer's number.
    current: Vec<Option<SessionIndex>>,
    /// Serial number of the last session, see [`ShardSession`].
    serial: u64,
    /// Sessions with an unsent note, each once.
    told: Vec<SessionIndex>,
    scratch: Scratch,
}

impl<C: Ciphers> SessionShard<C> {
    /// The shard of `worker`, counted from 0, for the sessions of a machine with this
    /// configuration.
    pub fn new(config: &SessionConfig, worker: u8) -> SessionShard<C> {
        SessionShard {
            role: config.role,
            worker,
            workers: config.workers,
            reject_after: config.reject_after,
            masks: Vec::new(),
            parts: Vec::new(),
            current: Vec::new(),
            serial: 0,
            told: Vec::new(),
            scratch: Scratch::default(),
        }
    }

    fn part(&mut self, index: SessionIndex) -> Option<&mut ShardSession<C::Aead>> {
        let part = self.parts.get_mut(index.slot())?.as_deref_mut();
        part.filter(|part| part.index == index)
    }

    /// Sets the next counter, for recorded frames.
    #[cfg(test)]
    pub(crate) fn set_counter(&mut self, index: SessionIndex, lane: u8, counter: u32) {
        let lane = self.part(index).unwrap().lanes.get_mut(usize::from(lane)).unwrap();
        lane.tx.as_mut().unwrap().counter = counter;
    }

    /// Applies an order. Orders must be applied in the order in which they were given.
    pub fn handle_order(&mut self, order: ShardOrder<C::Aead>) {
        match order {
            ShardOrder::Masks { epoch, key } => {
                self.masks.insert(0, (epoch, key));
                self.masks.truncate(2);
            }
            ShardOrder::Install(SessionInstall(mut part)) => {
                self.serial += 1;
                part.serial = self.serial;
                let at = part.index.slot();
                if self.parts.len() <= at {
                    self.parts.resize_with(at + 1, || None);
                }
                self.parts[at] = Some(part);
            }
            ShardOrder::Seal { peer, index } => {
                let at = peer.number();
                if self.current.len() <= at {
                    self.current.resize(at + 1, None);
                }
                self.current[at] = Some(index);
            }
            ShardOrder::Cool { index } => {
                if let Some(part) = self.part(index) {
                    part.peer_mask_hot = None;
                    part.lanes.iter_mut().for_each(Lane::cool);
                }
            }
            ShardOrder::Retire { index } => {
                let Some(peer) = self.part(index).map(|part| part.peer) else { return };
                self.parts[index.slot()] = None;
                self.told.retain(|told| *told != index);
                if let Some(current) = self.current.get_mut(peer.number()) {
                    current.take_if(|current| *current == index);
                }
            }
        }
    }

    /// Opens frames of length `len` at `offsets` of `buf`, in place, and pushes one result per
    /// offset. The plaintext is then from 8 bytes after the offset to 16 before the end.
    ///
    /// For host pairs, the 15 bytes before each offset must be the frame's routed header. Frames of
    /// a session over a circuit are refused with `circuit_required`.
    pub fn open_batch(
        &mut self,
        now: Time,
        buf: &mut [u8],
        offsets: &[u32],
        len: usize,
        out: &mut Vec<OpenResult>,
    ) {
        self.open_as(self.role, now, buf, offsets, len, out);
    }

    /// Opens frames that came over a circuit, like [`SessionShard::open_batch`]. Frames of other
    /// sessions are refused with `circuit_required`.
    pub fn open_units(
        &mut self,
        now: Time,
        buf: &mut [u8],
        offsets: &[u32],
        len: usize,
        out: &mut Vec<OpenResult>,
    ) {
        self.open_as(SessionRole::Onion, now, buf, offsets, len, out);
    }

    fn open_as(
        &mut self,
        role: SessionRole,
        now: Time,
        buf: &mut [u8],
        offsets: &[u32],
        len: usize,
        out: &mut Vec<OpenResult>,
    ) {
        if !fits(role, buf, offsets, len) {
            out.extend(offsets.iter().map(|_| OpenResult::Drop(DropReason::BadSize)));
            return;
        }
        let mut keys = self.masks.iter().map(|(epoch, key)| (*epoch, &**key));
        let Some(newest) = keys.next() else {
            out.extend(offsets.iter().map(|_| OpenResult::Handshake));
            return;
        };
        let parts = &self.parts;
        let knows = |index: SessionIndex, lane: u8, epoch| {
            let part = parts.get(index.slot()).and_then(Option::as_deref);
            part.is_some_and(|part| {
                part.index == index && part.epoch == epoch && usize::from(lane) < part.lanes.len()
            })
        };
        self.scratch.find(buf, offsets, len, newest, keys.next(), knows);
        let mut scratch = core::mem::take(&mut self.scratch);
        let mut at = 0;
        while at < offsets.len() {
            let (end, whose) = scratch.run(at);
            match whose {
                None => out.extend((at..end).map(|_| OpenResult::Handshake)),
                Some(lane) => {
                    let masks = &mut scratch.samples[at..end];
                    self.open_run(now, (role, lane), buf, &offsets[at..end], len, masks, out);
                }
            }
            at = end;
        }
        self.scratch = scratch;
    }

    #[expect(clippy::too_many_arguments, reason = "the pieces of one run, split for the borrows")]
    fn open_run(
        &mut self,
        now: Time,
        (role, (index, lane)): (SessionRole, (SessionIndex, u8)),
        buf: &mut [u8],
        offsets: &[u32],
        len: usize,
        masks: &mut [[u8; 16]],
        out: &mut Vec<OpenResult>,
    ) {
        let (reject_after, workers) = (self.reject_after, self.workers);
        let refused = |opening| offsets.iter().map(move |_| opening);
        let Some(part) = self.part(index).filter(|p| now.since(p.created) < reject_after) else {
            return out.extend(refused(OpenResult::Drop(DropReason::KeyExpired)));
        };
        if part.role != role {
            return out.extend(refused(OpenResult::Drop(DropReason::CircuitRequired)));
        }
        let (peer, suite, serial) = (part.peer, part.suite, part.serial);
        let Some(rx) = part.lanes[usize::from(lane)].rx.as_mut() else {
            // A twin belongs to the worker of its lane.
            let number = lane % part.encrypted().max(1);
            return out.extend(refused(OpenResult::Worker(opener(number, workers))));
        };
        let first = out.len();
        if !open_run((role, suite), (peer, lane), rx, buf, offsets, len, masks, out) {
            return;
        }
        if !core::mem::replace(&mut part.note.opened, true) && !part.note.sealed {
            self.told.push(index);
        }
        if self.current(peer).is_some_and(|current| serial < current.serial) {
            // The newest frame of an older session does not show the peer's current endpoint.
            for opening in &mut out[first..] {
                if let OpenResult::Data(opened) = opening {
                    opened.newest = false;
                }
            }
        }
    }

    fn current(&self, peer: PeerId) -> Option<&ShardSession<C::Aead>> {
        let index = self.current.get(peer.number()).copied().flatten()?;
        self.parts.get(index.slot())?.as_deref().filter(|part| part.seals_for(peer, index))
    }

    /// Number of encrypted lanes of the live session with the peer; 0 without one.
    pub fn lanes(&self, now: Time, peer: PeerId) -> u8 {
        let live = |part: &&ShardSession<C::Aead>| now.since(part.created) < self.reject_after;
        self.current(peer).filter(live).map_or(0, ShardSession::encrypted)
    }

    /// The first unencrypted lane of the live session with the peer, if any. The number of a plain
    /// twin is that of its encrypted lane plus this value.
    pub fn plain_from(&self, now: Time, peer: PeerId) -> Option<u8> {
        let live = |part: &&ShardSession<C::Aead>| now.since(part.created) < self.reject_after;
        let part = self.current(peer).filter(live)?;
        (part.level != Level::Encrypt).then(|| part.encrypted())
    }

    /// Lanes of the live session with the peer on which this worker seals. Empty without such a
    /// session, or if it has too few lanes.
    pub fn seal_lanes(&self, now: Time, peer: PeerId) -> Range<u8> {
        seal_lanes(self.worker, self.lanes(now, peer), self.workers)
    }

    /// The worker that seals on a lane of the live session with the peer.
    pub fn sealer(&self, now: Time, peer: PeerId, lane: u8) -> u8 {
        sealer(lane, self.lanes(now, peer), self.workers)
    }

    /// Number of this worker.
    pub fn worker(&self) -> u8 {
        self.worker
    }

    /// Seals frames of length `len` at `offsets` of `buf`, in place, for one lane of a peer. The
    /// plaintext must be from 8 bytes after each offset to 16 before the end; header and tag are
    /// written around it. For host pairs, the 15 bytes before each offset must be the routed
    /// header.
    ///
    /// # Errors
    ///
    /// Nothing is changed in these cases: [`DropReason::NoSession`] (call
    /// [`crate::Sessions::connect`]), [`DropReason::KeyExpired`], [`DropReason::BadSize`].
    /// [`DropReason::NotAllowed`] for a lane that the session doesn't have or on which another
    /// worker seals. [`DropReason::CircuitRequired`] for a session over a circuit.
    pub fn seal_batch(
        &mut self,
        now: Time,
        peer: PeerId,
        lane: u8,
        buf: &mut [u8],
        offsets: &[u32],
        len: usize,
    ) -> Result<(), DropReason> {
        self.seal_as(self.role, now, (peer, lane), buf, offsets, len)
    }

    /// Seals frames that leave over a circuit, like [`SessionShard::seal_batch`], on the only lane
    /// of such a session.
    ///
    /// # Errors
    ///
    /// The errors of [`SessionShard::seal_batch`]. [`DropReason::CircuitRequired`] for a session
    /// that was not made over a circuit.
    pub fn seal_units(
        &mut self,
        now: Time,
        peer: PeerId,
        buf: &mut [u8],
        offsets: &[u32],
        len: usize,
    ) -> Result<(), DropReason> {
        self.seal_as(SessionRole::Onion, now, (peer, 0), buf, offsets, len)
    }

    fn seal_as(
        &mut self,
        role: SessionRole,
        now: Time,
        (peer, lane): (PeerId, u8),
        buf: &mut [u8],
        offsets: &[u32],
        len: usize,
    ) -> Result<(), DropReason> {
        let index = self.current.get(peer.number()).copied().flatten();
        let index = index.ok_or(DropReason::NoSession)?;
        let spent = self.seal_under(role, now, (peer, index, lane), buf, offsets, len)?;
        let Some(part) = self.part(index) else { return Ok(()) };
        part.note.spent = part.note.spent.max(spent);
        if !core::mem::replace(&mut part.note.sealed, true) && !part.note.opened {
            self.told.push(index);
        }
        Ok(())
    }

    /// Seals under this session without a note. Returns the lane's next counter.
    pub(crate) fn seal_under(
        &mut self,
        role: SessionRole,
        now: Time,
        (peer, index, lane): (PeerId, SessionIndex, u8),
        buf: &mut [u8],
        offsets: &[u32],
        len: usize,
    ) -> Result<u32, DropReason> {
        let reject_after = self.reject_after;
        let part = self.parts.get_mut(index.slot()).and_then(Option::as_deref_mut);
        let part = part.filter(|part| part.seals_for(peer, index)).ok_or(DropReason::NoSession)?;
        if now.since(part.created) >= reject_after {
            return Err(DropReason::KeyExpired);
        }
        if part.role != role {
            return Err(DropReason::CircuitRequired);
        }
        if !fits(role, buf, offsets, len) {
            return Err(DropReason::BadSize);
        }
        let tx = part.lanes.get_mut(usize::from(lane)).and_then(|lane| lane.tx.as_mut());
        let tx = tx.ok_or(DropReason::NotAllowed)?;
        let mask = &part.peer_mask;
        let mask = part.peer_mask_hot.get_or_insert_with(|| Box::new(MaskKey::new(mask.expose())));
        let raw = SessionIndex::with_lane(part.peer_index, lane);
        seal_run((role, part.suite), (raw, mask), tx, buf, offsets, len, &mut self.scratch)?;
        Ok(tx.counter)
    }

    /// Passes `tell` a note of each session that was used since the last call. A note that `tell`
    /// refuses is kept and merged with later use. Returns true if `tell` accepted all notes.
    pub fn tell(&mut self, mut tell: impl FnMut(SessionUse) -> bool) -> bool {
        let mut told = core::mem::take(&mut self.told);
        told.retain(|&index| {
            let Some(part) = self.part(index) else { return false };
            let kept = !tell(part.note);
            if !kept {
                part.note.told();
            }
            kept
        });
        self.told = told;
        self.told.is_empty()
    }

    /// The next note of a session that was used since its last note.
    pub(crate) fn poll_note(&mut self) -> Option<SessionUse> {
        // The effects of one note may end another session that was used. That session gets no note.
        while let Some(index) = self.told.pop() {
            if let Some(part) = self.part(index) {
                let note = part.note;
                part.note.told();
                return Some(note);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_lane_has_one_worker_that_seals_and_one_that_opens() {
        for workers in 1..=16 {
            for lanes in 0..=16 {
                let seals: Vec<u8> =
                    (0..workers).flat_map(|worker| seal_lanes(worker, lanes, workers)).collect();
                assert_eq!(seals, (0..lanes).collect::<Vec<_>>());
                // The first worker sends reports and handshakes, so it must always be able to seal.
                assert_eq!(seal_lanes(0, lanes, workers).is_empty(), lanes == 0);
                assert!((0..lanes).all(|lane| opener(lane, workers) < workers));
                let seals = |lane| seal_lanes(sealer(lane, lanes, workers), lanes, workers);
                assert!((0..lanes).all(|lane| seals(lane).contains(&lane)));
                let idle = (0..workers).any(|w| seal_lanes(w, lanes, workers).is_empty());
                assert_eq!(idle, lanes < workers, "{workers} workers, {lanes} lanes");
            }
        }
    }

    #[test]
    fn with_as_many_lanes_as_the_square_each_worker_reaches_all_of_the_next_node() {
        for workers in 1..=4 {
            for worker in 0..workers {
                let mut reached: Vec<u8> = seal_lanes(worker, workers * workers, workers)
                    .map(|l| opener(l, workers))
                    .collect();
                reached.sort_unstable();
                assert_eq!(reached, (0..workers).collect::<Vec<_>>());
            }
        }
    }
}
