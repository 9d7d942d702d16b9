//! State of one flow at its receiver: waiting packets, received stamp parts, verdicts.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use shoal_wire::Time;

use crate::stamp::{
    CHUNK_PACKETS, CHUNKS_MAX, Digest, DigestChunk, FlowId, PartRequest, SEQ_MAX, Seal, WINDOW_MAX,
    chunk_packets, packet_digest,
};
use crate::verifier::{StampRefusal, VerifierEvent};

/// Maximum number of packets that wait for their stamp: 180 ms of packets at 4 Gbit/s, time enough
/// for a few requests.
pub(crate) const PENDING_MAX: usize = 16 * WINDOW_MAX;
/// Maximum number of windows with stored parts.
const WINDOWS_MAX: usize = 64;
/// Maximum number of chunks stored without a verified seal, over all windows.
const LOOSE_MAX: usize = 4 * CHUNKS_MAX;
/// Maximum number of seals of one window that wait for verification. More than one, so that a bad
/// seal does not keep out the good one.
pub(crate) const CANDIDATES_MAX: usize = 2;

/// A verified seal, as stored for evidence.
#[derive(Debug)]
pub(crate) struct VerifiedSeal {
    pub seal: Seal,
    pub bytes: Vec<u8>,
}

#[derive(Default)]
struct StampWindow {
    /// The verified seal.
    sealed: Option<Arc<VerifiedSeal>>,
    /// Hashes of the window's seals in the verification queue.
    candidates: Vec<[u8; 32]>,
    /// Chunks by index. When `sealed` is set, all of them are proved: others have been removed.
    chunks: BTreeMap<u8, Arc<(DigestChunk, Vec<u8>)>>,
}

/// State of a packet in the ring.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PacketState {
    /// Not received yet.
    Empty,
    /// Received, no verdict yet. Holds the packet's hash.
    Waiting([u8; 32]),
    /// Has its verdict, or was given up.
    Done,
}

/// Evidence that a sealed window covers one packet.
pub(crate) struct PacketProof {
    pub flow: FlowId,
    pub seq: u64,
    pub hash: [u8; 32],
    pub sealed: Arc<VerifiedSeal>,
    pub chunk: Option<Arc<(DigestChunk, Vec<u8>)>>,
}

/// State of one flow.
pub(crate) struct ReceivedFlow {
    id: FlowId,
    pub source: u64,
    /// Distinguishes this flow from a removed one with the same id.
    pub generation: u64,
    /// States of the packets from `base` on.
    pending: VecDeque<PacketState>,
    base: u64,
    waiting: usize,
    windows: BTreeMap<u64, StampWindow>,
    loose: usize,
    /// End of the highest window with a verified seal.
    highest_sealed: u64,
    /// Packets below this number were given up.
    given_up: u64,
    /// Time of the next request for missing parts, the end of the requested packet range, and the
    /// number of requests so far.
    recover: Option<(Time, u64, u32)>,
    /// True if a window was sealed since the last [`ReceivedFlow::arm`].
    sealed_since: bool,
}

impl ReceivedFlow {
    /// A flow that expects no packet below `base`.
    pub fn new(id: FlowId, source: u64, generation: u64, base: u64) -> ReceivedFlow {
        ReceivedFlow {
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

    /// The base for this flow if it is removed and added again: above every received packet.
    pub fn end(&self) -> u64 {
        self.highest_sealed.max(self.base + self.pending.len() as u64)
    }

    /// Number of packets without a verdict.
    pub fn waiting(&self) -> usize {
        self.waiting
    }

    pub fn recover_at(&self) -> Option<Time> {
        self.recover.map(|(at, _, _)| at)
    }

    /// Records a packet. If its chunk is already proved, the verdict follows at once.
    pub fn packet(
        &mut self,
        seq: u64,
        hash: [u8; 32],
        out: &mut FlowOutput<'_>,
    ) -> Result<(), StampRefusal> {
        if seq < self.base {
            return Err(StampRefusal::Replayed);
        }
        if seq > SEQ_MAX {
            return Err(StampRefusal::Full);
        }
        if seq - self.base >= PENDING_MAX as u64 {
            if self.waiting > 0 {
                return Err(StampRefusal::Full);
            }
            // The outage was longer than the ring.
            self.jump(seq - WINDOW_MAX as u64);
        }
        let at = (seq - self.base) as usize;
        if at >= self.pending.len() {
            self.pending.resize(at + 1, PacketState::Empty);
        }
        if self.pending[at] != PacketState::Empty {
            return Err(StampRefusal::Replayed);
        }
        if let Some((window, sealed)) = self.sealed_window(seq)
            && let Some((digest, salt, chunk)) = find(window, &sealed, seq)
        {
            self.pending[at] = PacketState::Done;
            let valid = packet_digest(&salt, &hash) == digest;
            out.verdict(self.id, seq, valid);
            if valid {
                out.proof(PacketProof { flow: self.id, seq, hash, sealed, chunk });
            }
            return Ok(());
        }
        self.pending[at] = PacketState::Waiting(hash);
        self.waiting += 1;
        Ok(())
    }

    /// Restarts at packet `base`. No packet may be waiting.
    fn jump(&mut self, base: u64) {
        self.pending.clear();
        self.given_up = base;
        self.base = base;
        self.advance();
    }

    /// Takes the hash of a waiting packet, for its verdict.
    fn take(&mut self, seq: u64) -> Option<[u8; 32]> {
        let at = usize::try_from(seq.checked_sub(self.base)?).ok()?;
        let slot = self.pending.get_mut(at)?;
        let PacketState::Waiting(hash) = *slot else { return None };
        *slot = PacketState::Done;
        self.waiting -= 1;
        Some(hash)
    }

    /// The sealed window that covers a packet, even if unproved chunks of other windows claim that
    /// packet too.
    fn sealed_window(&self, seq: u64) -> Option<(&StampWindow, Arc<VerifiedSeal>)> {
        let before = self.windows.range(..=seq).rev();
        let mut near = before.take_while(|(first, _)| **first + WINDOW_MAX as u64 > seq);
        near.find_map(|(_, window)| {
            let sealed = window.sealed.clone()?;
            (seq < sealed.seal.end()).then_some((window, sealed))
        })
    }

    /// Records a seal as waiting for verification, or refuses it. `hash` distinguishes the seals of
    /// one window.
    pub fn seal_arrives(&mut self, seal: &Seal, hash: [u8; 32]) -> Result<(), StampRefusal> {
        if self.overlaps_sealed(seal) || seal.end() <= self.base {
            return Err(StampRefusal::Replayed);
        }
        if seal.first > self.base + 2 * PENDING_MAX as u64 {
            return Err(StampRefusal::Full);
        }
        if let Some(window) = self.windows.get(&seal.first) {
            // Seals of large windows are sent twice; one verdict is enough for both.
            if window.candidates.contains(&hash) {
                return Err(StampRefusal::Replayed);
            }
            if window.candidates.len() >= CANDIDATES_MAX {
                return Err(StampRefusal::Full);
            }
        }
        self.room_for(seal.first)?;
        self.windows.entry(seal.first).or_default().candidates.push(hash);
        Ok(())
    }

    /// True if the seal covers packets of a sealed window, which would then be sealed twice.
    fn overlaps_sealed(&self, seal: &Seal) -> bool {
        let before = self.windows.range(..seal.end()).rev();
        let mut near = before.take_while(|(f, _)| **f + WINDOW_MAX as u64 > seal.first);
        near.any(|(_, w)| w.sealed.as_ref().is_some_and(|s| s.seal.end() > seal.first))
    }

    /// Makes room for a window: if the table is full, the oldest window is removed for a newer one.
    fn room_for(&mut self, first: u64) -> Result<(), StampRefusal> {
        if self.windows.contains_key(&first) || self.windows.len() < WINDOWS_MAX {
            return Ok(());
        }
        match self.windows.first_key_value() {
            Some((oldest, _)) if *oldest < first => self.drop_oldest(),
            _ => return Err(StampRefusal::Full),
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

    /// Handles a chunk: it is proved, refused, or stored until its seal arrives.
    pub fn chunk(
        &mut self,
        chunk: DigestChunk,
        bytes: Vec<u8>,
        out: &mut FlowOutput<'_>,
    ) -> Result<(), StampRefusal> {
        if chunk.first + WINDOW_MAX as u64 <= self.base {
            return Err(StampRefusal::Replayed);
        }
        if chunk.first > self.base + 2 * PENDING_MAX as u64 {
            return Err(StampRefusal::Full);
        }
        self.room_for(chunk.first)?;
        let window = self.windows.entry(chunk.first).or_default();
        if window.chunks.contains_key(&chunk.index) {
            return Err(StampRefusal::Replayed);
        }
        match &window.sealed {
            Some(sealed) if !belongs(&sealed.seal, &chunk, &bytes) => {
                return Err(StampRefusal::Forged);
            }
            Some(_) => {}
            None if self.loose >= LOOSE_MAX => return Err(StampRefusal::Full),
            None => self.loose += 1,
        }
        let (first, index, proved) = (chunk.first, chunk.index, window.sealed.is_some());
        window.chunks.insert(index, Arc::new((chunk, bytes)));
        if proved {
            self.conclude(first, Some(index), out);
        }
        Ok(())
    }

    /// Handles the verdict on a seal from [`ReceivedFlow::seal_arrives`]. A valid seal may still be
    /// refused, if an overlapping one was verified first.
    pub fn seal_verdict(
        &mut self,
        queued: (Seal, Vec<u8>, [u8; 32]),
        good: bool,
        out: &mut FlowOutput<'_>,
    ) -> Result<(), StampRefusal> {
        let (seal, bytes, hash) = queued;
        let overlaps = self.overlaps_sealed(&seal);
        let Some(window) = self.windows.get_mut(&seal.first) else { return Ok(()) };
        window.candidates.retain(|other| *other != hash);
        if !good {
            return Ok(());
        }
        if overlaps {
            return Err(StampRefusal::Replayed);
        }
        self.loose -= window.chunks.len();
        window.chunks.retain(|_, held| belongs(&seal, &held.0, &held.1));
        let first = seal.first;
        self.highest_sealed = self.highest_sealed.max(seal.end());
        self.sealed_since = true;
        window.sealed = Some(Arc::new(VerifiedSeal { seal, bytes }));
        let chunks: Vec<u8> = window.chunks.keys().copied().collect();
        self.conclude(first, None, out);
        for index in chunks {
            self.conclude(first, Some(index), out);
        }
        Ok(())
    }

    /// Gives the verdicts that follow from a chunk, or from the digests in the seal.
    fn conclude(&mut self, first: u64, index: Option<u8>, out: &mut FlowOutput<'_>) {
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
                out.proof(PacketProof { flow: self.id, seq, hash, sealed, chunk });
            }
        }
        self.advance();
    }

    /// Advances the ring to the oldest waiting packet.
    fn advance(&mut self) {
        if self.waiting == 0 {
            self.recover = None;
        }
        // A gap stays open for a late packet while its window is stored.
        let keep = self.highest_sealed.saturating_sub(2 * WINDOW_MAX as u64).max(self.given_up);
        let waits = |slot: &PacketState| matches!(slot, PacketState::Waiting(_));
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

    /// Sets the recovery timer if packets wait, unless it is set for an earlier time.
    pub fn arm(&mut self, now: Time, soon: core::time::Duration, late: core::time::Duration) {
        let set = self.recover.is_some();
        if self.waiting == 0 || (set && !self.sealed_since) {
            return;
        }
        self.sealed_since = false;
        // A part was lost if the oldest waiting packet is below the end of a sealed window. Above
        // that end, its window may still be open.
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

    /// Requests missing parts, or gives the packets up after `tries` requests.
    pub fn recover(
        &mut self,
        now: Time,
        pause: core::time::Duration,
        tries: u32,
        out: &mut FlowOutput<'_>,
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

    /// Requests the parts for packets below `upto`, one request per window.
    fn ask(&mut self, upto: u64, out: &mut FlowOutput<'_>) {
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
                out.request(self.source, PartRequest { flow: self.id, seq: next, missing });
                asked += 1;
            }
            seq = beyond;
        }
    }

    fn next_waiting(&self, seq: u64) -> Option<u64> {
        let at = usize::try_from(seq.checked_sub(self.base)?).ok()?;
        let mut rest = self.pending.range(at.min(self.pending.len())..);
        let found = rest.position(|slot| matches!(slot, PacketState::Waiting(_)))?;
        Some(seq + found as u64)
    }

    /// First packet of the next known window. All parts before it are requested together.
    fn next_window(&self, seq: u64) -> u64 {
        self.windows.range(seq + 1..).next().map_or(u64::MAX, |(first, _)| *first)
    }

    /// Bitmap of the chunks of a sealed window that waiting packets need, and the window's end.
    fn missing_chunks(&self, window: &StampWindow, seq: u64) -> (u64, u64) {
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

    fn give_up(&mut self, upto: u64, out: &mut FlowOutput<'_>) {
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

/// First packet whose digest is in the seal.
fn tail_start(seal: &Seal) -> u64 {
    seal.first + (u64::from(seal.count) - seal.tail.len() as u64)
}

/// True if the seal commits to the chunk.
pub(crate) fn belongs(seal: &Seal, chunk: &DigestChunk, bytes: &[u8]) -> bool {
    let index = usize::from(chunk.index);
    seal.chunks.get(index) == Some(&DigestChunk::hash(bytes))
        && chunk.digests.len() == chunk_packets(usize::from(seal.count), index)
}

type PacketDigest = (Digest, Digest, Option<Arc<(DigestChunk, Vec<u8>)>>);

/// Digest, salt and chunk for packet `seq`, which the window covers.
fn find(window: &StampWindow, sealed: &VerifiedSeal, seq: u64) -> Option<PacketDigest> {
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

/// Output of a flow: events, requests and proofs.
pub(crate) struct FlowOutput<'a> {
    pub events: &'a mut VecDeque<VerifierEvent>,
    pub requests: &'a mut VecDeque<(u64, PartRequest)>,
    pub evidence: &'a mut crate::EvidenceRing,
}

impl FlowOutput<'_> {
    fn verdict(&mut self, flow: FlowId, seq: u64, valid: bool) {
        if !valid {
            self.events.push_back(VerifierEvent::Forged { flow, seq });
            return;
        }
        if let Some(VerifierEvent::Valid { flow: last, first, count }) = self.events.back_mut()
            && *last == flow
            && *first + *count == seq
        {
            *count += 1;
            return;
        }
        self.events.push_back(VerifierEvent::Valid { flow, first: seq, count: 1 });
    }

    fn unstamped(&mut self, flow: FlowId, seq: u64) {
        if let Some(VerifierEvent::Unstamped { flow: last, first, count }) = self.events.back_mut()
            && *last == flow
            && *first + *count == seq
        {
            *count += 1;
            return;
        }
        self.events.push_back(VerifierEvent::Unstamped { flow, first: seq, count: 1 });
    }

    fn proof(&mut self, proof: PacketProof) {
        self.evidence.keep(proof);
    }

    fn request(&mut self, source: u64, request: PartRequest) {
        self.requests.push_back((source, request));
    }
}
