//! The receiving end of one file.

use core::time::Duration;
use std::collections::VecDeque;

use shoal_wire::transfer::{
    ACCEPT_PARTS_MAX, ACCEPT_RANGES_MAX, CHUNK_BITMAP_LEN, CHUNK_SEGMENTS, CancelReason,
    FileAcceptance, NACK_CHUNKS_MAX, Nack, Segment, SenderClock, TransferMessage,
};
use shoal_wire::{DropReason, Jitter, Time};

use crate::chunk_set::ChunkSet;
use crate::pool::ChunkPool;
use crate::ticks::{stamp, ticks};
use crate::types::{
    FileProgress, FileTransferEvent, OfferInfo, PeerKey, TransferFailure, TransferId,
};

/// Interval of NACKs until the sender asks for another one.
const INTERVAL_FIRST: Duration = Duration::from_millis(2);
const INTERVAL_MIN: Duration = Duration::from_millis(1);
const INTERVAL_MAX: Duration = Duration::from_millis(200);
/// Shortest interval of answers to probes, which are otherwise answered at once.
const URGENT: Duration = Duration::from_micros(300);
/// Mean interval of NACKs while nothing arrives: the last ones may have been lost, and the sender
/// would time out. A constant interval would show an observer that a transfer waits, and which one.
const IDLE: Duration = Duration::from_millis(200);
/// Mean wait before an acceptance is repeated while no segment comes.
const ACCEPT_WAIT: Duration = Duration::from_millis(200);
/// Most messages for one NACK: 42,240 segments. Later segments have their turn in the next NACK.
const NACK_PARTS_MAX: u32 = 4;
/// Time for the shell to answer an offer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

const WORDS: usize = CHUNK_SEGMENTS / 64;
const PER: u32 = CHUNK_SEGMENTS as u32;

/// A chunk with some of its segments.
struct PartialChunk {
    chunk: u32,
    missing: u32,
    have: [u64; WORDS],
    data: Box<[u8]>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum ReceiveState {
    Offered { since: Time },
    Receiving,
}

/// Measurements of arrivals, for the next NACK.
#[derive(Debug, Default)]
struct ArrivalClock {
    newest: Option<SenderClock>,
    arrived: u64,
    delay: Option<SenderClock>,
    delay_before: Option<SenderClock>,
    reorder: u32,
    received: u32,
    duplicates: u32,
    marked: u32,
}

/// One file that is being received.
pub(crate) struct FileReceiver {
    pub(crate) id: TransferId,
    pub(crate) peer: PeerKey,
    pub(crate) port: u16,
    pub(crate) nonce: u32,
    pub(crate) info: OfferInfo,
    segments: u32,
    state: ReceiveState,
    have: Vec<(u32, u32)>,
    parts: u8,
    part: u8,
    accept_at: Time,
    complete: ChunkSet,
    slots: Vec<Option<PartialChunk>>,
    /// Only segments of chunks below this one are accepted.
    limit: u32,
    /// Number of chunks below `limit` that aren't on disk.
    undone: usize,
    top: u32,
    floor: u32,
    clock: ArrivalClock,
    fresh: bool,
    urgent: bool,
    nacked: Time,
    interval: Duration,
    /// Wait before the next NACK while nothing arrives.
    idle: Duration,
    jitter: Jitter,
    cursor: Option<u32>,
    turn: u32,
    number: u32,
    heard: Time,
    idle_timeout: Duration,
    /// Time by which the first byte must arrive.
    first_by: Time,
    /// True if only the hash of the existing file is wanted.
    compares: bool,
    source_hash: Option<[u8; 32]>,
    sink_hash: Option<[u8; 32]>,
    /// True if the shell was asked for its hash.
    hash_asked: bool,
    judged: bool,
    arrived_segments: u64,
    stats: FileProgress,
}

impl FileReceiver {
    pub(crate) fn new(
        id: TransferId,
        peer: PeerKey,
        port: u16,
        nonce: u32,
        info: OfferInfo,
        (now, mut jitter): (Time, Jitter),
    ) -> FileReceiver {
        FileReceiver {
            id,
            peer,
            port,
            nonce,
            segments: info.segments(),
            state: ReceiveState::Offered { since: now },
            have: Vec::new(),
            parts: 1,
            part: 0,
            accept_at: Time::FAR,
            complete: ChunkSet::new(info.chunks()),
            slots: Vec::new(),
            limit: 0,
            undone: 0,
            top: 0,
            floor: 0,
            clock: ArrivalClock::default(),
            fresh: false,
            urgent: false,
            nacked: now,
            interval: INTERVAL_FIRST,
            idle: jitter.around(IDLE),
            jitter,
            cursor: None,
            turn: 0,
            number: 0,
            heard: now,
            idle_timeout: Duration::MAX,
            first_by: Time::FAR,
            compares: false,
            source_hash: None,
            sink_hash: None,
            hash_asked: false,
            judged: false,
            arrived_segments: 0,
            stats: FileProgress { bytes_total: info.size, ..FileProgress::default() },
            info,
        }
    }

    pub(crate) fn is_receiving(&self) -> bool {
        self.state == ReceiveState::Receiving
    }

    pub(crate) fn progress(&self) -> FileProgress {
        let done =
            self.stats.bytes_resumed + self.arrived_segments * self.info.segment.get() as u64;
        FileProgress {
            bytes_done: if self.complete.is_full() && self.is_receiving() {
                self.info.size
            } else {
                done.min(self.info.size)
            },
            retransmitted_bytes: u64::from(self.clock.duplicates) * self.info.segment.get() as u64,
            duplicate_segments: u64::from(self.clock.duplicates),
            ..self.stats
        }
    }

    /// Accepts the offer: the shell wants the file and has the chunks in `have`.
    pub(crate) fn accept(&mut self, now: Time, have: &ChunkSet, config: &crate::TransferConfig) {
        if self.is_receiving() {
            return;
        }
        self.state = ReceiveState::Receiving;
        self.heard = now;
        self.idle_timeout = config.idle_timeout;
        self.first_by = now + config.first_timeout;
        self.slots.resize_with(crate::config::ring_len(config.receiver_memory), || None);
        if have.chunks() == self.complete.chunks() {
            let most = usize::from(ACCEPT_PARTS_MAX) * ACCEPT_RANGES_MAX;
            self.have = have.ranges().take(most).collect();
            self.complete = have.clone();
        }
        let bytes = |&(first, count): &(u32, u32)| {
            let end = self.info.chunk_span(first + count).0.min(self.info.size);
            end - self.info.chunk_span(first).0
        };
        if self.compares && self.info.size == 0 {
            // An empty file has no chunk: naming chunk 0 tells the sender that the file exists.
            self.have = vec![(0, 1)];
        }
        self.stats.bytes_resumed = self.complete.ranges().map(|range| bytes(&range)).sum();
        let parts = self.have.len().div_ceil(ACCEPT_RANGES_MAX).max(1);
        self.parts = u8::try_from(parts).unwrap_or(ACCEPT_PARTS_MAX);
        self.floor = self.complete.next_gap(0);
        self.repeat_accept(now);
    }

    /// Accepts a comparison: the shell has a file of that name and length, and only hashes are
    /// compared.
    pub(crate) fn compare(&mut self, now: Time, config: &crate::TransferConfig) {
        let mut all = ChunkSet::new(self.complete.chunks());
        all.insert_range(0, self.complete.chunks());
        self.compares = true;
        self.accept(now, &all, config);
    }

    /// True if the shell only compares.
    pub(crate) fn compares(&self) -> bool {
        self.compares
    }

    /// Repeats the acceptance: a repeated offer shows that it was lost.
    pub(crate) fn repeat_accept(&mut self, now: Time) {
        if self.is_receiving() && self.clock.received == 0 {
            (self.part, self.accept_at) = (0, now);
        }
    }

    /// Promises room for more chunks, at most `share` at once.
    pub(crate) fn extend(&mut self, share: usize) {
        let ring = self.slots.len() as u32;
        while self.is_receiving()
            && self.limit < self.complete.chunks()
            && self.undone < share
            && self.limit.saturating_sub(self.floor) < ring
        {
            self.undone += usize::from(!self.complete.contains(self.limit));
            self.limit += 1;
        }
    }

    /// Handles one segment.
    #[inline]
    pub(crate) fn segment(
        &mut self,
        now: Time,
        segment: Segment,
        data: &[u8],
        congested: bool,
        pool: &mut ChunkPool,
    ) -> Result<Option<FileTransferEvent>, DropReason> {
        if !self.is_receiving() {
            return Err(DropReason::NotAllowed);
        }
        let probe = segment.segment == Segment::PROBE;
        let len = self.info.segment.get();
        let data = data.get(..len).ok_or(DropReason::Malformed)?;
        if segment.segment >= self.segments && !probe {
            return Err(DropReason::Malformed);
        }
        let late = self.clock.arrival(ticks(now), segment.sent, congested);
        self.heard = now;
        self.fresh = true;
        self.accept_at = Time::FAR;
        if probe {
            self.urgent = true;
            return Ok(None);
        }
        let chunk = segment.segment / PER;
        if self.complete.contains(chunk) {
            self.clock.duplicates += 1;
            return Ok(None);
        }
        if chunk >= self.limit {
            return Err(DropReason::QueueFull);
        }
        let at = chunk as usize & (self.slots.len() - 1);
        let place = &mut self.slots[at];
        let slot = match place {
            Some(slot) if slot.chunk == chunk => slot,
            Some(_) => return Err(DropReason::QueueFull),
            None => {
                let missing = (self.segments - chunk * PER).min(PER);
                self.top = self.top.max(chunk + 1);
                place.insert(PartialChunk { chunk, missing, have: [0; WORDS], data: pool.take() })
            }
        };
        let bit = segment.segment as usize % CHUNK_SEGMENTS;
        let mask = 1u64 << (bit % 64);
        if slot.have[bit / 64] & mask != 0 {
            self.clock.duplicates += 1;
            return Ok(None);
        }
        slot.have[bit / 64] |= mask;
        slot.missing -= 1;
        slot.data[bit * len..][..len].copy_from_slice(data);
        self.arrived_segments += 1;
        self.clock.reorder = self.clock.reorder.max(late);
        if slot.missing > 0 {
            return Ok(None);
        }
        Ok(self.finish_chunk(at))
    }

    /// Hands the whole chunk at this position of the ring to the disk.
    fn finish_chunk(&mut self, at: usize) -> Option<FileTransferEvent> {
        let slot = self.slots[at].take()?;
        self.complete.insert(slot.chunk);
        self.floor = self.complete.next_gap(self.floor);
        if self.complete.is_full() {
            self.urgent = true;
        }
        let (offset, len) = self.info.chunk_span(slot.chunk);
        Some(FileTransferEvent::Write {
            id: self.id,
            index: slot.chunk,
            offset,
            len,
            data: slot.data,
        })
    }

    /// Notes that a chunk is on disk.
    pub(crate) fn written(&mut self) {
        self.undone = self.undone.saturating_sub(1);
    }

    /// True, once, when the shell must be asked for its hash. Everything is on disk then. Data from
    /// before the offer is hashed only after the sender's own hash has come. An offer costs its
    /// sender nothing, so it must not make the receiver read a file.
    pub(crate) fn wants_hash(&mut self) -> bool {
        let written = self.is_receiving() && self.complete.is_full() && self.undone == 0;
        let shown = self.arrived_segments > 0 || self.source_hash.is_some();
        written && shown && !core::mem::replace(&mut self.hash_asked, true)
    }

    pub(crate) fn fin(&mut self, now: Time, hash: [u8; 32]) -> Option<bool> {
        self.heard = now;
        self.source_hash = Some(hash);
        self.judge()
    }

    pub(crate) fn sink_hash(&mut self, hash: [u8; 32]) -> Option<bool> {
        self.sink_hash = Some(hash);
        self.judge()
    }

    /// True if the hashes agree, false if not; returned once, when both are known.
    fn judge(&mut self) -> Option<bool> {
        let same = self.source_hash? == self.sink_hash?;
        (!core::mem::replace(&mut self.judged, true)).then_some(same)
    }

    /// Sets the interval in which the sender wants NACKs.
    pub(crate) fn cadence(&mut self, interval_us: u32) {
        let wanted = Duration::from_micros(u64::from(interval_us));
        self.interval = wanted.clamp(INTERVAL_MIN, INTERVAL_MAX);
    }

    /// Returns every buffer to the pool.
    pub(crate) fn release(&mut self, pool: &mut ChunkPool) {
        for slot in self.slots.iter_mut().filter_map(Option::take) {
            pool.put(slot.data);
        }
    }

    /// Writes the next message that is due.
    pub(crate) fn message(&mut self, now: Time, out: &mut [u8]) -> Option<usize> {
        if !self.is_receiving() {
            return None;
        }
        if now >= self.accept_at {
            return self.accept_message(now, out);
        }
        if self.cursor.is_none() {
            if self.clock.newest.is_none() || now < self.nack_at() {
                return None;
            }
            self.start_nack(now);
        }
        self.nack_message(now, out)
    }

    fn accept_message(&mut self, now: Time, out: &mut [u8]) -> Option<usize> {
        let first = usize::from(self.part) * ACCEPT_RANGES_MAX;
        let have = self.have.iter().copied().skip(first).take(ACCEPT_RANGES_MAX).collect();
        let (part, parts) = (self.part, self.parts);
        self.part += 1;
        if self.part == self.parts {
            (self.part, self.accept_at) = (0, now + self.jitter.around(ACCEPT_WAIT));
        }
        let accept = FileAcceptance { port: self.port, nonce: self.nonce, part, parts, have };
        TransferMessage::Accept(accept).encode(out)
    }

    fn nack_at(&self) -> Time {
        let wait = match (self.urgent, self.fresh) {
            (true, _) => URGENT,
            (false, true) => self.interval,
            (false, false) => self.idle,
        };
        self.nacked + wait
    }

    fn start_nack(&mut self, now: Time) {
        self.nacked = now;
        self.idle = self.jitter.around(IDLE);
        (self.fresh, self.urgent) = (false, false);
        let span = self.top.saturating_sub(self.floor);
        let reach = NACK_PARTS_MAX * self.info.segment.nack_chunks() as u32;
        // One NACK covers a part of a wide window; the next one covers the following part.
        let on = span > reach && self.turn > self.floor && self.turn < self.top;
        let start = if on { self.turn } else { self.floor };
        self.turn = start + reach;
        self.cursor = Some(start);
    }

    fn nack_message(&mut self, now: Time, out: &mut [u8]) -> Option<usize> {
        let first = self.cursor?;
        let most = self.info.segment.nack_chunks() as u32;
        let count = self.top.saturating_sub(first).min(most);
        let mut bitmap = [0; NACK_CHUNKS_MAX * CHUNK_BITMAP_LEN];
        let (parts, _) = bitmap.as_chunks_mut::<CHUNK_BITMAP_LEN>();
        for (chunk, part) in (first..first + count).zip(parts) {
            self.chunk_bits(chunk, part);
        }
        let next = first + count;
        // A bitmap that is not full tells the sender that nothing beyond it has arrived.
        let full = count == most;
        let more = full && next < self.turn;
        self.cursor = more.then_some(next);
        self.number = self.number.wrapping_add(1);
        self.stats.nacks += 1;
        let clock = &self.clock;
        let least = clock.delay.or(clock.delay_before).unwrap_or_default();
        let hold = ticks(now).saturating_sub(clock.arrived).min(u64::from(SenderClock::MASK));
        let nack = Nack {
            port: self.port,
            number: self.number,
            floor: self.floor_segment(),
            limit: self.limit.saturating_mul(PER).min(self.segments),
            echo: clock.newest.unwrap_or_default(),
            hold: stamp(hold),
            arrived: stamp(clock.arrived),
            delay: least,
            reorder: SenderClock::new(clock.reorder),
            received: clock.received,
            duplicates: clock.duplicates,
            marked: clock.marked,
            first,
            bitmap: &bitmap[..count as usize * CHUNK_BITMAP_LEN],
        };
        let len = TransferMessage::Nack(nack).encode(out);
        if !more {
            self.clock.turn();
        }
        len
    }

    fn chunk_bits(&self, chunk: u32, part: &mut [u8; CHUNK_BITMAP_LEN]) {
        if self.complete.contains(chunk) {
            *part = [0xff; CHUNK_BITMAP_LEN];
            return;
        }
        let slot = self.slots[chunk as usize & (self.slots.len() - 1)].as_ref();
        if let Some(slot) = slot.filter(|slot| slot.chunk == chunk) {
            for (bytes, word) in part.as_chunks_mut::<8>().0.iter_mut().zip(slot.have) {
                *bytes = word.to_le_bytes();
            }
        }
    }

    fn floor_segment(&self) -> u32 {
        if self.complete.is_full() {
            return self.segments;
        }
        let slot = self.slots[self.floor as usize & (self.slots.len() - 1)].as_ref();
        let slot = slot.filter(|slot| slot.chunk == self.floor);
        let inside = slot.map_or(0, |slot| {
            let full = slot.have.iter().take_while(|&&word| word == u64::MAX).count();
            let rest = slot.have.get(full).map_or(0, |word| word.trailing_ones());
            full as u32 * 64 + rest
        });
        self.floor * PER + inside
    }

    /// Time at which the transfer fails unless a message comes. The time is short while no data has
    /// come: an offer without data takes a place that others want.
    fn deadline(&self) -> Time {
        let silent = self.heard + self.idle_timeout;
        let waits = self.arrived_segments == 0 && !self.complete.is_full();
        if waits { silent.min(self.first_by) } else { silent }
    }

    /// Failure of the transfer for lack of messages, if its time is over.
    pub(crate) fn expired(&self, now: Time) -> Option<TransferFailure> {
        let over = match self.state {
            ReceiveState::Offered { since } => now.since(since) >= ANSWER_TIMEOUT,
            ReceiveState::Receiving => now >= self.deadline(),
        };
        over.then_some(TransferFailure::Local(CancelReason::Timeout))
    }

    /// Time of the next action, and its name.
    pub(crate) fn next(&self) -> (Time, &'static str) {
        if let ReceiveState::Offered { since } = self.state {
            return (since + ANSWER_TIMEOUT, "offer unanswered");
        }
        if self.cursor.is_some() {
            return (Time::ZERO, "nack");
        }
        let mut next = (self.deadline(), "transfer idle");
        if self.accept_at < next.0 {
            next = (self.accept_at, "accept");
        }
        if self.clock.newest.is_some() && self.nack_at() < next.0 {
            next = (self.nack_at(), "nack");
        }
        next
    }

    /// Restarts the idle timeout while the shell works (writing, hashing, renaming).
    pub(crate) fn touch(&mut self, now: Time) {
        self.heard = now;
    }

    pub(crate) fn segment_events(
        &mut self,
        now: Time,
        events: &mut VecDeque<FileTransferEvent>,
        share: usize,
    ) {
        self.touch(now);
        self.extend(share);
        if self.wants_hash() {
            events.push_back(FileTransferEvent::HashWanted { id: self.id });
        }
    }
}

impl ArrivalClock {
    /// Records an arrival; returns by how many ticks it is older than the newest.
    #[inline]
    fn arrival(&mut self, tick: u64, sent: SenderClock, congested: bool) -> u32 {
        self.received = self.received.wrapping_add(1);
        self.marked = self.marked.wrapping_add(u32::from(congested));
        let arrived = stamp(tick);
        let delay = SenderClock::new(arrived.get().wrapping_sub(sent.get()));
        if self.delay.is_none_or(|least| delay.after(least) < 0) {
            self.delay = Some(delay);
        }
        match self.newest {
            Some(newest) if sent.after(newest) <= 0 => {
                newest.after(sent) as u32 & SenderClock::MASK
            }
            _ => {
                self.newest = Some(sent);
                self.arrived = tick;
                0
            }
        }
    }

    /// Begins the next interval of measurements after a NACK, and keeps the last one.
    fn turn(&mut self) {
        if self.delay.is_some() {
            self.delay_before = self.delay.take();
        }
        self.reorder -= self.reorder / 16;
    }
}
