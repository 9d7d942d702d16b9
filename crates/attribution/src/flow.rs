//! One flow at its receiver: which packets wait, which parts are there, what may be concluded.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use shoal_wire::Time;

use crate::stamp::{
    CHUNK_PACKETS, CHUNKS_MAX, Chunk, Digest, FlowId, Request, SEQ_MAX, Seal, WINDOW_MAX,
    chunk_packets, packet_digest,
};
use crate::verifier::{Event, Refusal};

/// Packets that may wait for their stamp: at 4 Gbit/s, what comes in 180 ms, which leaves time for
/// a few requests.
pub(crate) const PENDING_MAX: usize = 16 * WINDOW_MAX;
/// Windows of which parts are held.
const WINDOWS_MAX: usize = 64;
/// Chunks held before their seal has come, over all windows.
const LOOSE_MAX: usize = 4 * CHUNKS_MAX;
/// Seals of one window that may wait for verification: a bad one must not keep a good one out.
pub(crate) const CANDIDATES_MAX: usize = 2;

/// A window whose seal verified, as kept for evidence.
#[derive(Debug)]
pub(crate) struct Sealed {
    pub seal: Seal,
    pub bytes: Vec<u8>,
}

#[derive(Default)]
struct Window {
    /// Verified.
    sealed: Option<Arc<Sealed>>,
    /// Hashes of the seals in the verification queue.
    candidates: Vec<[u8; 32]>,
    /// Chunks by index; proved once `sealed` is there, since the others are thrown out then.
    chunks: BTreeMap<u8, Arc<(Chunk, Vec<u8>)>>,
}

/// A packet's place in the ring.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Slot {
    /// Not here yet.
    Empty,
    /// Here, by its hash, and without verdict.
    Waiting([u8; 32]),
    /// Had its verdict, or was given up.
    Done,
}

/// What proves one packet.
pub(crate) struct Proof {
    pub flow: FlowId,
    pub seq: u64,
    pub hash: [u8; 32],
    pub sealed: Arc<Sealed>,
    pub chunk: Option<Arc<(Chunk, Vec<u8>)>>,
}

/// Everything known of one flow.
pub(crate) struct Flow {
    id: FlowId,
    pub source: u64,
    /// Tells this flow from one of the same id that was removed.
    pub generation: u64,
    /// Packets from `base` on.
    pending: VecDeque<Slot>,
    base: u64,
    waiting: usize,
    windows: BTreeMap<u64, Window>,
    loose: usize,
    /// End of the last window whose seal verified.
    highest_sealed: u64,
    /// Packets below this were given up.
    given_up: u64,
    /// When to ask for what is missing, up to which packet, and how often it was asked.
    recover: Option<(Time, u64, u32)>,
    /// A window was sealed since [`Flow::arm`] last looked.
    sealed_since: bool,
}

impl Flow {
    /// A flow that waits for no packet below `base`.
    pub fn new(id: FlowId, source: u64, generation: u64, base: u64) -> Flow {
        Flow {
            id,
            source,
            generation,
            pending: VecDeque::new(),
            base,
            waiting: 0,
            windows: BTreeMap::new(),
            loose: 0,
            highest_sealed: 0,
            given_up: 0,
            recover: None,
            sealed_since: false,
        }
    }

    /// The base of this flow if it is removed and added again: above every packet that came.
    pub fn end(&self) -> u64 {
        self.highest_sealed.max(self.base + self.pending.len() as u64)
    }

    /// Packets without verdict.
    pub fn waiting(&self) -> usize {
        self.waiting
    }

    pub fn recover_at(&self) -> Option<Time> {
        self.recover.map(|(at, _, _)| at)
    }

    /// Notes a packet. If its chunk is proved already the verdict comes at once.
    pub fn packet(&mut self, seq: u64, hash: [u8; 32], out: &mut Sink<'_>) -> Result<(), Refusal> {
        if seq < self.base {
            return Err(Refusal::Replayed);
        }
        if seq > SEQ_MAX {
            return Err(Refusal::Full);
        }
        if seq - self.base >= PENDING_MAX as u64 {
            if self.waiting > 0 {
                return Err(Refusal::Full);
            }
            // After an outage that was longer than the ring.
            self.jump(seq - WINDOW_MAX as u64);
        }
        let at = (seq - self.base) as usize;
        if at >= self.pending.len() {
            self.pending.resize(at + 1, Slot::Empty);
        }
        if self.pending[at] != Slot::Empty {
            return Err(Refusal::Replayed);
        }
        if let Some((window, sealed)) = self.sealed_window(seq)
            && let Some((digest, salt, chunk)) = find(window, &sealed, seq)
        {
            self.pending[at] = Slot::Done;
            let valid = packet_digest(&salt, &hash) == digest;
            out.verdict(self.id, seq, valid);
            if valid {
                out.proof(Proof { flow: self.id, seq, hash, sealed, chunk });
            }
            return Ok(());
        }
        self.pending[at] = Slot::Waiting(hash);
        self.waiting += 1;
        Ok(())
    }

    /// Starts over at packet `base`. No packet waits.
    fn jump(&mut self, base: u64) {
        self.pending.clear();
        self.given_up = base;
        self.base = base;
        self.advance();
    }

    /// Takes the hash of a packet that waits, for its verdict.
    fn take(&mut self, seq: u64) -> Option<[u8; 32]> {
        let at = usize::try_from(seq.checked_sub(self.base)?).ok()?;
        let slot = self.pending.get_mut(at)?;
        let Slot::Waiting(hash) = *slot else { return None };
        *slot = Slot::Done;
        self.waiting -= 1;
        Some(hash)
    }

    /// The sealed window that covers a packet, even if unproved chunks of other windows claim it.
    fn sealed_window(&self, seq: u64) -> Option<(&Window, Arc<Sealed>)> {
        let before = self.windows.range(..=seq).rev();
        let mut near = before.take_while(|(first, _)| **first + WINDOW_MAX as u64 > seq);
        near.find_map(|(_, window)| {
            let sealed = window.sealed.clone()?;
            (seq < sealed.seal.end()).then_some((window, sealed))
        })
    }

    /// Whether a seal may go on to verification. `hash` tells it from others of its window.
    pub fn seal_arrives(&mut self, seal: &Seal, hash: [u8; 32]) -> Result<(), Refusal> {
        if self.overlaps_sealed(seal) || seal.end() <= self.base {
            return Err(Refusal::Replayed);
        }
        if seal.first > self.base + 2 * PENDING_MAX as u64 {
            return Err(Refusal::Full);
        }
        if let Some(window) = self.windows.get(&seal.first) {
            // Seals of large windows go out twice: one verdict is enough for both.
            if window.candidates.contains(&hash) {
                return Err(Refusal::Replayed);
            }
            if window.candidates.len() >= CANDIDATES_MAX {
                return Err(Refusal::Full);
            }
        }
        self.room_for(seal.first)?;
        self.windows.entry(seal.first).or_default().candidates.push(hash);
        Ok(())
    }

    /// Whether the seal covers packets of a sealed window, which would be sealed twice.
    fn overlaps_sealed(&self, seal: &Seal) -> bool {
        let before = self.windows.range(..seal.end()).rev();
        let mut near = before.take_while(|(f, _)| **f + WINDOW_MAX as u64 > seal.first);
        near.any(|(_, w)| w.sealed.as_ref().is_some_and(|s| s.seal.end() > seal.first))
    }

    /// Makes room for a window: if there are too many the oldest goes for a newer one.
    fn room_for(&mut self, first: u64) -> Result<(), Refusal> {
        if self.windows.contains_key(&first) || self.windows.len() < WINDOWS_MAX {
            return Ok(());
        }
        match self.windows.first_key_value() {
            Some((oldest, _)) if *oldest < first => self.drop_oldest(),
            _ => return Err(Refusal::Full),
        }
        Ok(())
    }

    fn drop_oldest(&mut self) {
        if let Some((_, window)) = self.windows.pop_first()
            && window.sealed.is_none()
        {
            self.loose -= window.chunks.len();
        }
    }

    /// A chunk comes in: it is proved, thrown out, or kept until its seal comes.
    pub fn chunk(
        &mut self,
        chunk: Chunk,
        bytes: Vec<u8>,
        out: &mut Sink<'_>,
    ) -> Result<(), Refusal> {
        if chunk.first + WINDOW_MAX as u64 <= self.base {
            return Err(Refusal::Replayed);
        }
        if chunk.first > self.base + 2 * PENDING_MAX as u64 {
            return Err(Refusal::Full);
        }
        self.room_for(chunk.first)?;
        let window = self.windows.entry(chunk.first).or_default();
        if window.chunks.contains_key(&chunk.index) {
            return Err(Refusal::Replayed);
        }
        match &window.sealed {
            Some(sealed) if !belongs(&sealed.seal, &chunk, &bytes) => return Err(Refusal::Forged),
            Some(_) => {}
            None if self.loose >= LOOSE_MAX => return Err(Refusal::Full),
            None => self.loose += 1,
        }
        let (first, index, proved) = (chunk.first, chunk.index, window.sealed.is_some());
        window.chunks.insert(index, Arc::new((chunk, bytes)));
        if proved {
            self.conclude(first, Some(index), out);
        }
        Ok(())
    }

    /// The verdict on a seal that [`Flow::seal_arrives`] let through. A good one may be refused all
    /// the same: another that covers some of its packets came first.
    pub fn seal_verdict(
        &mut self,
        queued: (Seal, Vec<u8>, [u8; 32]),
        good: bool,
        out: &mut Sink<'_>,
    ) -> Result<(), Refusal> {
        let (seal, bytes, hash) = queued;
        let overlaps = self.overlaps_sealed(&seal);
        let Some(window) = self.windows.get_mut(&seal.first) else { return Ok(()) };
        window.candidates.retain(|other| *other != hash);
        if !good {
            return Ok(());
        }
        if overlaps {
            return Err(Refusal::Replayed);
        }
        self.loose -= window.chunks.len();
        window.chunks.retain(|_, held| belongs(&seal, &held.0, &held.1));
        let first = seal.first;
        self.highest_sealed = self.highest_sealed.max(seal.end());
        self.sealed_since = true;
        window.sealed = Some(Arc::new(Sealed { seal, bytes }));
        let chunks: Vec<u8> = window.chunks.keys().copied().collect();
        self.conclude(first, None, out);
        for index in chunks {
            self.conclude(first, Some(index), out);
        }
        Ok(())
    }

    /// Gives the verdicts that a chunk, or the seal's own digests, allow.
    fn conclude(&mut self, first: u64, index: Option<u8>, out: &mut Sink<'_>) {
        let Some(window) = self.windows.get(&first) else { return };
        let Some(sealed) = window.sealed.clone() else { return };
        let chunk = index.and_then(|n| window.chunks.get(&n)).cloned();
        let (start, salt, digests) = match (&chunk, index) {
            (Some(held), Some(n)) => {
                (first + u64::from(n) * CHUNK_PACKETS as u64, held.0.salt, &held.0.digests)
            }
            _ => (tail_start(&sealed.seal), sealed.seal.salt, &sealed.seal.tail),
        };
        for (seq, digest) in (start..).zip(digests) {
            let Some(hash) = self.take(seq) else { continue };
            let valid = packet_digest(&salt, &hash) == *digest;
            out.verdict(self.id, seq, valid);
            if valid {
                let (sealed, chunk) = (sealed.clone(), chunk.clone());
                out.proof(Proof { flow: self.id, seq, hash, sealed, chunk });
            }
        }
        self.advance();
    }

    /// Drops the front of the ring up to the oldest packet that still waits.
    fn advance(&mut self) {
        if self.waiting == 0 {
            self.recover = None;
        }
        // A gap stays open for a late packet while its window is held.
        let keep = self.highest_sealed.saturating_sub(2 * WINDOW_MAX as u64).max(self.given_up);
        let waits = |slot: &Slot| matches!(slot, Slot::Waiting(_));
        while self.base < keep && self.pending.front().is_some_and(|slot| !waits(slot)) {
            self.pending.pop_front();
            self.base += 1;
        }
        if self.pending.is_empty() {
            self.base = self.base.max(keep);
        }
        let base = self.base;
        let stale = |first: &u64| *first + (WINDOW_MAX as u64) <= base;
        while self.windows.first_key_value().is_some_and(|(first, _)| stale(first)) {
            self.drop_oldest();
        }
    }

    /// Sets the timer of recovery if packets wait, unless it is set for an earlier time.
    pub fn arm(&mut self, now: Time, soon: core::time::Duration, late: core::time::Duration) {
        let set = self.recover.is_some();
        if self.waiting == 0 || (set && !self.sealed_since) {
            return;
        }
        self.sealed_since = false;
        // Below a sealed window's end a part was lost; above, the window may be open still.
        let lost = self.oldest().is_some_and(|seq| seq < self.highest_sealed);
        if lost && self.recover.is_none_or(|(at, _, tried)| tried == 0 && at > now + soon) {
            self.recover = Some((now + soon, self.highest_sealed, 0));
        } else if !set {
            let last = self.base + self.pending.len() as u64;
            self.recover = Some((now + late, last, 0));
        }
    }

    fn oldest(&self) -> Option<u64> {
        self.next_waiting(self.base)
    }

    /// Asks for what is missing, or after `tries` rounds gives the packets up.
    pub fn recover(
        &mut self,
        now: Time,
        pause: core::time::Duration,
        tries: u32,
        out: &mut Sink<'_>,
    ) {
        let Some((at, upto, tried)) = self.recover else { return };
        if at > now {
            return;
        }
        if self.oldest().is_none_or(|seq| seq >= upto) {
            self.recover = None;
            return;
        }
        if tried >= tries {
            self.give_up(upto, out);
            return;
        }
        self.ask(upto, out);
        self.recover = Some((now + pause * (1 << tried.min(6)), upto, tried + 1));
    }

    /// Requests the parts that cover packets below `upto`, one request for each window.
    fn ask(&mut self, upto: u64, out: &mut Sink<'_>) {
        let mut seq = self.base;
        let mut asked = 0;
        while let Some(next) = self.next_waiting(seq).filter(|n| *n < upto && asked < 8) {
            let held = self.windows.range(..=next).next_back();
            let (missing, beyond) = match held {
                Some((_, w)) if w.sealed.as_ref().is_some_and(|s| s.seal.end() > next) => {
                    self.missing_chunks(w, next)
                }
                Some((first, w)) if *first + WINDOW_MAX as u64 > next && w.sealed.is_none() => {
                    let have = w.chunks.keys().fold(0u64, |bits, n| bits | 1 << n);
                    (!have, self.next_window(next))
                }
                _ => (u64::MAX, self.next_window(next)),
            };
            if missing != 0 {
                out.request(self.source, Request { flow: self.id, seq: next, missing });
                asked += 1;
            }
            seq = beyond;
        }
    }

    fn next_waiting(&self, seq: u64) -> Option<u64> {
        let at = usize::try_from(seq.checked_sub(self.base)?).ok()?;
        let mut rest = self.pending.range(at.min(self.pending.len())..);
        let found = rest.position(|slot| matches!(slot, Slot::Waiting(_)))?;
        Some(seq + found as u64)
    }

    /// Where the next known window starts: what lies before it is asked for with one request.
    fn next_window(&self, seq: u64) -> u64 {
        self.windows.range(seq + 1..).next().map_or(u64::MAX, |(first, _)| *first)
    }

    /// Chunks of a sealed window that are not here though packets wait for them.
    fn missing_chunks(&self, window: &Window, seq: u64) -> (u64, u64) {
        let Some(sealed) = &window.sealed else { return (0, seq + 1) };
        let mut bits = 0;
        for n in 0..sealed.seal.chunks.len() {
            let start = sealed.seal.first + (n * CHUNK_PACKETS) as u64;
            let end = start + chunk_packets(usize::from(sealed.seal.count), n) as u64;
            let waited = self.next_waiting(start.max(self.base)).is_some_and(|s| s < end);
            if waited && !window.chunks.contains_key(&(n as u8)) {
                bits |= 1 << n;
            }
        }
        (bits, sealed.seal.end())
    }

    fn give_up(&mut self, upto: u64, out: &mut Sink<'_>) {
        let last = self.base + self.pending.len() as u64;
        for seq in self.base..last.min(upto) {
            if self.take(seq).is_some() {
                out.unstamped(self.id, seq);
            }
        }
        self.given_up = self.given_up.max(upto);
        self.recover = None;
        self.advance();
    }
}

/// Where the digests in the seal start.
fn tail_start(seal: &Seal) -> u64 {
    seal.first + (u64::from(seal.count) - seal.tail.len() as u64)
}

/// Whether the seal commits to the chunk.
pub(crate) fn belongs(seal: &Seal, chunk: &Chunk, bytes: &[u8]) -> bool {
    let index = usize::from(chunk.index);
    seal.chunks.get(index) == Some(&Chunk::hash(bytes))
        && chunk.digests.len() == chunk_packets(usize::from(seal.count), index)
}

type Found = (Digest, Digest, Option<Arc<(Chunk, Vec<u8>)>>);

/// Digest, salt and chunk of packet `seq`, which the window covers.
fn find(window: &Window, sealed: &Sealed, seq: u64) -> Option<Found> {
    let tail = tail_start(&sealed.seal);
    if seq >= tail && !sealed.seal.tail.is_empty() {
        let digest = sealed.seal.tail.get((seq - tail) as usize)?;
        return Some((*digest, sealed.seal.salt, None));
    }
    let at = (seq - sealed.seal.first) as usize;
    let held = window.chunks.get(&((at / CHUNK_PACKETS) as u8))?;
    let digest = held.0.digests.get(at % CHUNK_PACKETS)?;
    Some((*digest, held.0.salt, Some(held.clone())))
}

/// Where a flow puts what it concludes.
pub(crate) struct Sink<'a> {
    pub events: &'a mut VecDeque<Event>,
    pub requests: &'a mut VecDeque<(u64, Request)>,
    pub evidence: &'a mut crate::EvidenceRing,
}

impl Sink<'_> {
    fn verdict(&mut self, flow: FlowId, seq: u64, valid: bool) {
        if !valid {
            self.events.push_back(Event::Forged { flow, seq });
            return;
        }
        if let Some(Event::Valid { flow: last, first, count }) = self.events.back_mut()
            && *last == flow
            && *first + *count == seq
        {
            *count += 1;
            return;
        }
        self.events.push_back(Event::Valid { flow, first: seq, count: 1 });
    }

    fn unstamped(&mut self, flow: FlowId, seq: u64) {
        if let Some(Event::Unstamped { flow: last, first, count }) = self.events.back_mut()
            && *last == flow
            && *first + *count == seq
        {
            *count += 1;
            return;
        }
        self.events.push_back(Event::Unstamped { flow, first: seq, count: 1 });
    }

    fn proof(&mut self, proof: Proof) {
        self.evidence.keep(proof);
    }

    fn request(&mut self, source: u64, request: Request) {
        self.requests.push_back((source, request));
    }
}
