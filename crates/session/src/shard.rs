//! The data path of sessions: the lanes that one worker holds, of all sessions.
//!
//! [`crate::Sessions`] makes sessions and ends them. Keys, counters and windows of a lane have one
//! holder, who gets them when the session is made and keeps them to its end: nothing is shared,
//! nothing moves, and no lock is taken. The first worker's shard stands inside `Sessions`; with one
//! worker there is no other.
//!
//! ```text
//!            Order: keys, which session seals, the end
//! Sessions ----------------------------------------------> SessionShard, one per worker
//!          <----------------------------------------------
//!            Note: what was opened and sealed, once per batch
//! ```
//!
//! Who holds what follows from the lane's number alone. Opening is dealt out in turn, sealing in
//! blocks, so that with as many lanes as the square of the workers every worker seals on lanes that
//! any worker of the next node opens. Below the level `encrypt` each lane has a plain twin, which
//! stands behind the encrypted lanes and has the same holders.
//!
//! The way of a frame, many at a time:
//!
//! 1. The tags of all frames are the samples; one AES run masks all indexes.
//! 2. Each index names a session and lane; frames of one lane that stand together are a run.
//! 3. Per run one AES run masks the counters; then window check, AEAD, window mark, one by one.
//! 4. What the run tells of the session (confirmed, heard, due for new keys) is noted once.

use core::ops::Range;
use core::time::Duration;

use shoal_crypto::{Aead, Ciphers, MaskKey, Secret, Standard, Suite};
use shoal_wire::{DropReason, Id, Level, Time};

use crate::config::{Config, Opening, PeerId, Role};
use crate::frames::{Scratch, fits, open_run, seal_run};
use crate::keys::{Lane, Terms};
use crate::slots::Index;

/// The worker that opens what comes on a lane.
pub(crate) fn opener(lane: u8, workers: u8) -> u8 {
    lane % workers.max(1)
}

/// The lanes, of so many, that a worker seals on.
pub(crate) fn seal_lanes(worker: u8, lanes: u8, workers: u8) -> Range<u8> {
    let (lanes, workers) = (u16::from(lanes), u16::from(workers.max(1)));
    let first = |worker: u16| (worker * lanes).div_ceil(workers).min(lanes) as u8;
    first(worker.into())..first(u16::from(worker) + 1)
}

/// The worker that seals on a lane of so many.
pub(crate) fn sealer(lane: u8, lanes: u8, workers: u8) -> u8 {
    (u16::from(lane) * u16::from(workers.max(1)) / u16::from(lanes.max(1))) as u8
}

/// What [`crate::Sessions`] has to tell a worker.
pub enum Order<A> {
    /// Another index mask key is handed out from now on; the one before still counts.
    Masks {
        /// Its number.
        epoch: u32,
        /// The key.
        key: Box<MaskKey>,
    },
    /// A session was made.
    Install(Install<A>),
    /// What is sealed for a peer is sealed under this session from now on.
    Seal {
        /// The peer.
        peer: PeerId,
        /// The session.
        index: Index,
    },
    /// A session was idle: expanded keys are forgotten until they are used again.
    Cool {
        /// The session.
        index: Index,
    },
    /// A session is over.
    Retire {
        /// The session.
        index: Index,
    },
}

/// One worker's part of a new session.
pub struct Install<A>(Box<Part<A>>);

struct Part<A> {
    index: Index,
    /// Grows with every session that this shard was given.
    serial: u64,
    epoch: u32,
    peer: PeerId,
    role: Role,
    suite: Suite,
    level: Level,
    created: Time,
    peer_index: u32,
    peer_mask: Secret<32>,
    lanes: Vec<Lane<A>>,
    peer_mask_hot: Option<Box<MaskKey>>,
    note: Note,
}

/// How many of a session's lanes are encrypted; the others are their plain twins.
fn encrypted(lanes: usize, level: Level) -> u8 {
    let lanes = lanes as u8;
    if level == Level::Encrypt { lanes } else { lanes / 2 }
}

impl<A> Part<A> {
    /// Whether it is the session of this index, and the peer is the one that it was made with.
    fn seals_for(&self, peer: PeerId, index: Index) -> bool {
        self.index == index && self.peer == peer
    }

    /// Lanes of the session that are encrypted, whoever holds them.
    fn encrypted(&self) -> u8 {
        encrypted(self.lanes.len(), self.level)
    }
}

impl<A: Aead> Install<A> {
    /// Takes the worker's lanes out of those of a session.
    pub(crate) fn new(
        now: Time,
        index: Index,
        terms: &Terms,
        lanes: &mut [Lane<A>],
        (worker, workers): (u8, u8),
    ) -> Install<A> {
        let encrypted = encrypted(lanes.len(), terms.level);
        let seals = seal_lanes(worker, encrypted, workers);
        let twins = (0..encrypted).cycle();
        let lanes = twins.zip(lanes).map(|(number, lane)| Lane {
            tx: lane.tx.take_if(|_| seals.contains(&number)),
            rx: lane.rx.take_if(|_| opener(number, workers) == worker),
        });
        Install(Box::new(Part {
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
            note: Note { index, opened: false, sealed: false, spent: 0 },
        }))
    }
}

/// What a worker did with one session since it last told.
#[derive(Clone, Copy, Debug)]
pub struct Note {
    pub(crate) index: Index,
    pub(crate) opened: bool,
    pub(crate) sealed: bool,
    /// The highest counter that is still free on a lane that it seals on.
    pub(crate) spent: u32,
}

impl Note {
    fn told(&mut self) {
        (self.opened, self.sealed) = (false, false);
    }
}

/// See the module's documentation. `C` is what seals frames.
pub struct SessionShard<C: Ciphers = Standard> {
    role: Role,
    worker: u8,
    workers: u8,
    reject_after: Duration,
    /// Index mask keys, the newest first; at most two.
    masks: Vec<(u32, Box<MaskKey>)>,
    parts: Vec<Option<Box<Part<C::Aead>>>>,
    /// By the peer's number: the session that seals.
    current: Vec<Option<Index>>,
    /// The last session's number, see [`Part`].
    serial: u64,
    /// Sessions with something to tell, each once.
    told: Vec<Index>,
    scratch: Scratch,
}

impl<C: Ciphers> SessionShard<C> {
    /// The part of `worker`, from 0 on, of the sessions that a machine of this configuration makes.
    pub fn new(config: &Config, worker: u8) -> SessionShard<C> {
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

    fn part(&mut self, index: Index) -> Option<&mut Part<C::Aead>> {
        let part = self.parts.get_mut(index.slot())?.as_deref_mut();
        part.filter(|part| part.index == index)
    }

    /// Goes on from a counter that is given, for recorded frames.
    #[cfg(test)]
    pub(crate) fn set_counter(&mut self, index: Index, lane: u8, counter: u32) {
        let lane = self.part(index).unwrap().lanes.get_mut(usize::from(lane)).unwrap();
        lane.tx.as_mut().unwrap().counter = counter;
    }

    /// Takes in an order; they must come in the order in which they were given.
    pub fn handle_order(&mut self, order: Order<C::Aead>) {
        match order {
            Order::Masks { epoch, key } => {
                self.masks.insert(0, (epoch, key));
                self.masks.truncate(2);
            }
            Order::Install(Install(mut part)) => {
                self.serial += 1;
                part.serial = self.serial;
                let at = part.index.slot();
                if self.parts.len() <= at {
                    self.parts.resize_with(at + 1, || None);
                }
                self.parts[at] = Some(part);
            }
            Order::Seal { peer, index } => {
                let at = peer.number();
                if self.current.len() <= at {
                    self.current.resize(at + 1, None);
                }
                self.current[at] = Some(index);
            }
            Order::Cool { index } => {
                if let Some(part) = self.part(index) {
                    part.peer_mask_hot = None;
                    part.lanes.iter_mut().for_each(Lane::cool);
                }
            }
            Order::Retire { index } => {
                let Some(peer) = self.part(index).map(|part| part.peer) else { return };
                self.parts[index.slot()] = None;
                self.told.retain(|told| *told != index);
                if let Some(current) = self.current.get_mut(peer.number()) {
                    current.take_if(|current| *current == index);
                }
            }
        }
    }

    /// Opens frames of equal length `len` at `offsets` of `buf`, in place, and pushes one result
    /// per offset: the plaintext then stands from 8 bytes after the offset to 16 before the end.
    ///
    /// For host pairs the 15 bytes before each offset must be the routed header that came with the
    /// frame. Frames of a session over a circuit are `circuit_required`.
    pub fn open_batch(
        &mut self,
        now: Time,
        buf: &mut [u8],
        offsets: &[u32],
        len: usize,
        out: &mut Vec<Opening>,
    ) {
        self.open_as(self.role, now, buf, offsets, len, out);
    }

    /// Opens what came over a circuit as [`SessionShard::open_batch`] does. Frames of other
    /// sessions are `circuit_required`.
    pub fn open_units(
        &mut self,
        now: Time,
        buf: &mut [u8],
        offsets: &[u32],
        len: usize,
        out: &mut Vec<Opening>,
    ) {
        self.open_as(Role::Onion, now, buf, offsets, len, out);
    }

    fn open_as(
        &mut self,
        role: Role,
        now: Time,
        buf: &mut [u8],
        offsets: &[u32],
        len: usize,
        out: &mut Vec<Opening>,
    ) {
        if !fits(role, buf, offsets, len) {
            out.extend(offsets.iter().map(|_| Opening::Drop(DropReason::BadSize)));
            return;
        }
        let mut keys = self.masks.iter().map(|(epoch, key)| (*epoch, &**key));
        let Some(newest) = keys.next() else {
            out.extend(offsets.iter().map(|_| Opening::Handshake));
            return;
        };
        let parts = &self.parts;
        let knows = |index: Index, lane: u8, epoch| {
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
                None => out.extend((at..end).map(|_| Opening::Handshake)),
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
        (role, (index, lane)): (Role, (Index, u8)),
        buf: &mut [u8],
        offsets: &[u32],
        len: usize,
        masks: &mut [[u8; 16]],
        out: &mut Vec<Opening>,
    ) {
        let (reject_after, workers) = (self.reject_after, self.workers);
        let refused = |opening| offsets.iter().map(move |_| opening);
        let Some(part) = self.part(index).filter(|p| now.since(p.created) < reject_after) else {
            return out.extend(refused(Opening::Drop(DropReason::KeyExpired)));
        };
        if part.role != role {
            return out.extend(refused(Opening::Drop(DropReason::CircuitRequired)));
        }
        let (peer, suite, serial) = (part.peer, part.suite, part.serial);
        let Some(rx) = part.lanes[usize::from(lane)].rx.as_mut() else {
            // A twin has the holder of its lane.
            let number = lane % part.encrypted().max(1);
            return out.extend(refused(Opening::Worker(opener(number, workers))));
        };
        let first = out.len();
        if !open_run((role, suite), (peer, lane), rx, buf, offsets, len, masks, out) {
            return;
        }
        if !core::mem::replace(&mut part.note.opened, true) && !part.note.sealed {
            self.told.push(index);
        }
        if self.current(peer).is_some_and(|current| serial < current.serial) {
            // An older session's newest frame says nothing of where the peer is now.
            for opening in &mut out[first..] {
                if let Opening::Data(opened) = opening {
                    opened.newest = false;
                }
            }
        }
    }

    fn current(&self, peer: PeerId) -> Option<&Part<C::Aead>> {
        let index = self.current.get(peer.number()).copied().flatten()?;
        self.parts.get(index.slot())?.as_deref().filter(|part| part.seals_for(peer, index))
    }

    /// Encrypted lanes of the live session with the peer; 0 without one.
    pub fn lanes(&self, now: Time, peer: PeerId) -> u8 {
        let live = |part: &&Part<C::Aead>| now.since(part.created) < self.reject_after;
        self.current(peer).filter(live).map_or(0, Part::encrypted)
    }

    /// The first lane of the live session with the peer that is not encrypted, if there is one. So
    /// much is added to the number of an encrypted lane for that of its plain twin.
    pub fn plain_from(&self, now: Time, peer: PeerId) -> Option<u8> {
        let live = |part: &&Part<C::Aead>| now.since(part.created) < self.reject_after;
        let part = self.current(peer).filter(live)?;
        (part.level != Level::Encrypt).then(|| part.encrypted())
    }

    /// The lanes of the live session with the peer on which this worker seals; none when there is
    /// no such session or it has too few lanes.
    pub fn seal_lanes(&self, now: Time, peer: PeerId) -> Range<u8> {
        seal_lanes(self.worker, self.lanes(now, peer), self.workers)
    }

    /// The worker that seals on a lane of the live session with the peer.
    pub fn sealer(&self, now: Time, peer: PeerId, lane: u8) -> u8 {
        sealer(lane, self.lanes(now, peer), self.workers)
    }

    /// The number of this worker.
    pub fn worker(&self) -> u8 {
        self.worker
    }

    /// Seals frames of equal length `len` at `offsets` of `buf`, in place, for one lane of a peer.
    /// The plaintext must stand from 8 bytes after each offset to 16 before the end; header and tag
    /// are written around it. For host pairs the routed header must stand in the 15 bytes before.
    ///
    /// # Errors
    ///
    /// Nothing was changed: [`DropReason::NoSession`] (then [`crate::Sessions::connect`]),
    /// [`DropReason::KeyExpired`], [`DropReason::NotAllowed`] for a lane that the session doesn't
    /// have or that another worker seals on, [`DropReason::CircuitRequired`] for a session over a
    /// circuit, [`DropReason::BadSize`].
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

    /// Seals what leaves over a circuit as [`SessionShard::seal_batch`] does, on the one lane of
    /// such a session.
    ///
    /// # Errors
    ///
    /// Those of [`SessionShard::seal_batch`]; [`DropReason::CircuitRequired`] for a session that
    /// was not made over a circuit.
    pub fn seal_units(
        &mut self,
        now: Time,
        peer: PeerId,
        buf: &mut [u8],
        offsets: &[u32],
        len: usize,
    ) -> Result<(), DropReason> {
        self.seal_as(Role::Onion, now, (peer, 0), buf, offsets, len)
    }

    fn seal_as(
        &mut self,
        role: Role,
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

    /// Seals under this session, and notes nothing of it. Returns the lane's highest counter that
    /// is still free.
    pub(crate) fn seal_under(
        &mut self,
        role: Role,
        now: Time,
        (peer, index, lane): (PeerId, Index, u8),
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
        let raw = Index::with_lane(part.peer_index, lane);
        seal_run((role, part.suite), (raw, mask), tx, buf, offsets, len, &mut self.scratch)?;
        Ok(tx.counter)
    }

    /// Passes `tell` a note of each session that was used since the last time. A note that `tell`
    /// refuses is kept and told with what comes later. Says whether everything was told.
    pub fn tell(&mut self, mut tell: impl FnMut(Note) -> bool) -> bool {
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

    /// The next session that was used since it was last told.
    pub(crate) fn poll_note(&mut self) -> Option<Note> {
        // What one note brings about may end another session that was used: nothing is told of it.
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
                // The first worker sends reports and handshakes: it can always seal.
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
