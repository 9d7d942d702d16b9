//! The sending end of one file.

use core::time::Duration;
use std::collections::VecDeque;

use shoal_wire::transfer::{
    CHUNK_BITMAP_LEN, CHUNK_SEGMENTS, CancelReason, FileAcceptance, FileOffer, Nack,
    SEGMENT_HEADER_LEN, Segment, TransferMessage,
};
use shoal_wire::{DropReason, Time};

use crate::chunk_set::ChunkSet;
use crate::pacer::BURST_MAX;
use crate::pacing::SenderPace;
use crate::pool::ChunkPool;
use crate::ticks::{TICK_NS, stamp, ticks, unwrap_past};
use crate::types::{
    FileProgress, FileTransferEvent, MixDelay, OfferInfo, PeerKey, TransferFailure, TransferId,
};
use crate::window::{AckSummary, SendWindow};

/// Chunks requested ahead of their turn: 6 MB, 10 ms of disk at 5 Gbit/s.
const READ_AHEAD: u32 = 24;
/// First wait before an offer is repeated; doubles up to [`OFFER_WAIT_MAX`].
const OFFER_WAIT: Duration = Duration::from_millis(250);
const OFFER_WAIT_MAX: Duration = Duration::from_secs(2);
/// Shortest and longest time between two probes.
const PROBE_WAIT: Duration = Duration::from_millis(1);
const PROBE_WAIT_MAX: Duration = Duration::from_millis(100);
/// Time between two probes while the receiver has everything and an end still hashes: probe and
/// NACK keep both ends from timing out.
const ALIVE: Duration = Duration::from_secs(1);
/// Wait before the hash is repeated; doubles up to [`FIN_WAIT_MAX`].
const FIN_WAIT: Duration = Duration::from_millis(20);
const FIN_WAIT_MAX: Duration = Duration::from_millis(500);
/// Reordering that is always allowed for, in ticks (100 us in all).
const SLACK_MIN: u32 = 25;
/// Wait before a full egress is tried again, unless the shell polls sooner.
const BLOCKED_WAIT: Duration = Duration::from_micros(200);
/// Losses per copy that is allowed at the end of a file.
const COPIES_PER_LOSS: u64 = 40;
/// Most offers without progress to a receiver that forgot the transfer.
const REOFFERS_MAX: u32 = 8;

/// Segments of one file that leave together for one peer.
#[derive(Clone, Debug)]
pub struct SegmentBurst {
    pub peer: PeerKey,
    /// Number of segments, 1 to 44.
    pub count: usize,
    /// Bytes of end-to-end plaintext of each segment, kind byte first.
    pub plain_len: usize,
    pub(crate) slot: usize,
    pub(crate) port: u16,
    pub(crate) tick: u64,
    pub(crate) segments: [u32; BURST_MAX],
}

#[derive(Debug, PartialEq)]
enum SendState {
    Offered { next: Time, wait: Duration, deadline: Time },
    Sending,
}

/// One file that is being sent.
pub(crate) struct FileSender {
    pub(crate) id: TransferId,
    pub(crate) peer: PeerKey,
    pub(crate) port: u16,
    nonce: u32,
    info: OfferInfo,
    segments: u32,
    state: SendState,
    parts: Vec<bool>,
    /// True if the file is empty and the receiver has it.
    there: bool,
    done: ChunkSet,
    window: SendWindow,
    /// Lowest unconfirmed chunk.
    base: u32,
    /// Next chunk to read.
    next_read: u32,
    /// Next segment that was never sent.
    next_new: u32,
    limit: u32,
    pacing: SenderPace,
    probe_at: Time,
    probe_wait: Duration,
    hash: Option<[u8; 32]>,
    fin_at: Time,
    fin_wait: Duration,
    reoffers: u32,
    idle_timeout: Duration,
    offer_timeout: Duration,
    confirmed: u64,
    copies: u64,
    stats: FileProgress,
    /// Time before which a full egress is not tried again.
    retry_at: Time,
}

/// Parameters of a new transfer.
pub(crate) struct TransferPlan {
    pub(crate) id: TransferId,
    pub(crate) peer: PeerKey,
    pub(crate) port: u16,
    pub(crate) nonce: u32,
    pub(crate) info: OfferInfo,
}

impl FileSender {
    pub(crate) fn new(plan: TransferPlan, config: &crate::TransferConfig, now: Time) -> FileSender {
        let chunks = plan.info.chunks();
        FileSender {
            id: plan.id,
            peer: plan.peer,
            port: plan.port,
            nonce: plan.nonce,
            segments: plan.info.segments(),
            state: SendState::Offered {
                next: now,
                wait: OFFER_WAIT,
                deadline: now + config.offer_timeout,
            },
            parts: Vec::new(),
            there: false,
            done: ChunkSet::new(chunks),
            window: SendWindow::new(crate::config::ring_len(config.sender_memory)),
            base: 0,
            next_read: 0,
            next_new: 0,
            limit: 0,
            pacing: SenderPace::new(now, config),
            probe_at: Time::FAR,
            probe_wait: PROBE_WAIT,
            hash: None,
            fin_at: Time::FAR,
            fin_wait: FIN_WAIT,
            reoffers: 0,
            idle_timeout: config.idle_timeout,
            offer_timeout: config.offer_timeout,
            confirmed: 0,
            copies: 0,
            retry_at: Time::ZERO,
            stats: FileProgress { bytes_total: plan.info.size, ..FileProgress::default() },
            info: plan.info,
        }
    }

    pub(crate) fn progress(&self, now: Time) -> FileProgress {
        let len = self.info.segment.get() as u64;
        let done = self.stats.bytes_resumed + self.confirmed * len;
        FileProgress {
            bytes_done: if self.is_confirmed() { self.info.size } else { done.min(self.info.size) },
            sent_segments: self.pacing.sent(),
            rate: (self.pacing.rate(now) * len as f64) as u64,
            rtt: self.pacing.rtt(),
            queue: self.pacing.queue(),
            ..self.stats
        }
    }

    /// Sets the delay that mixes on the path to the receiver add.
    pub(crate) fn set_added(&mut self, added: MixDelay) {
        self.pacing.set_added(added);
    }

    fn sending(&self) -> bool {
        self.state == SendState::Sending
    }

    /// True if every segment is at the receiver.
    fn is_confirmed(&self) -> bool {
        self.sending() && self.done.is_full()
    }

    /// Handles a part of the receiver's acceptance. True if it was the last one missing.
    pub(crate) fn accept(
        &mut self,
        now: Time,
        accept: &FileAcceptance,
    ) -> Result<bool, DropReason> {
        if accept.nonce != self.nonce {
            return Err(DropReason::UnknownFlow);
        }
        self.pacing.hear(now);
        if self.sending() {
            return Ok(false);
        }
        if self.parts.len() != usize::from(accept.parts) {
            self.parts = vec![false; usize::from(accept.parts)];
        }
        self.parts[usize::from(accept.part)] = true;
        self.there |= self.info.size == 0 && !accept.have.is_empty();
        for &(first, count) in &accept.have {
            self.done.insert_range(first, count);
        }
        if self.parts.iter().any(|there| !there) {
            return Ok(false);
        }
        let have = self.done.ranges();
        let bytes = |(first, count): (u32, u32)| {
            let end = self.info.chunk_span(first + count).0.min(self.info.size);
            end - self.info.chunk_span(first).0
        };
        self.stats.bytes_resumed = have.map(bytes).sum();
        self.state = SendState::Sending;
        self.base = self.done.next_gap(0);
        (self.next_read, self.next_new) = (self.base, self.base * CHUNK_SEGMENTS as u32);
        // Any receiver has room for two chunks; NACKs raise the limit.
        self.limit = self.next_new + 2 * CHUNK_SEGMENTS as u32;
        self.pacing.start(now);
        self.probe_at = if self.is_confirmed() { now + ALIVE } else { now };
        Ok(true)
    }

    /// True if the receiver accepted the file and had all of it.
    pub(crate) fn is_there(&self) -> bool {
        self.there || (self.info.size > 0 && self.stats.bytes_resumed == self.info.size)
    }

    /// Nonce that answers to the offer must carry.
    pub(crate) fn nonce(&self) -> u32 {
        self.nonce
    }

    /// Offers the file again, since the receiver forgot the transfer (it was restarted). False
    /// after too many offers.
    pub(crate) fn offer_again(&mut self, now: Time, pool: &mut ChunkPool) -> bool {
        if !self.sending() {
            return true;
        }
        self.reoffers += 1;
        if self.reoffers > REOFFERS_MAX {
            return false;
        }
        self.release(pool);
        self.parts.clear();
        self.done = ChunkSet::new(self.done.chunks());
        self.pacing.restart(now);
        self.confirmed = 0;
        (self.probe_at, self.fin_at) = (Time::FAR, Time::FAR);
        let deadline = now + self.offer_timeout;
        self.state = SendState::Offered { next: now, wait: OFFER_WAIT, deadline };
        true
    }

    /// Returns every buffer to the pool.
    pub(crate) fn release(&mut self, pool: &mut ChunkPool) {
        for buffer in self.window.drain() {
            pool.put(buffer);
        }
    }

    /// Requests the next chunks from the shell; at most `share` are held at once.
    pub(crate) fn request_reads(
        &mut self,
        share: usize,
        pool: &mut ChunkPool,
        events: &mut VecDeque<FileTransferEvent>,
    ) {
        if !self.sending() {
            return;
        }
        let per = CHUNK_SEGMENTS as u32;
        let ahead = (self.next_new / per).saturating_add(READ_AHEAD);
        loop {
            let index = self.done.next_gap(self.next_read);
            let beyond = index >= self.done.chunks()
                || index >= ahead
                || index * per >= self.limit
                || index - self.base >= self.window.len() as u32;
            if beyond || self.window.held() >= share {
                return;
            }
            let segments = (self.segments - index * per).min(per);
            if !self.window.open(index, segments) {
                return;
            }
            self.next_read = index + 1;
            let (offset, len) = self.info.chunk_span(index);
            events.push_back(FileTransferEvent::Read {
                id: self.id,
                index,
                offset,
                len,
                buffer: pool.take(),
            });
        }
    }

    pub(crate) fn chunk_read(&mut self, index: u32, mut data: Box<[u8]>, pool: &mut ChunkPool) {
        // The last segment travels whole, so old bytes of a recycled buffer are zeroed.
        let (_, len) = self.info.chunk_span(index);
        let end = len.next_multiple_of(self.info.segment.get()).min(data.len());
        if let Some(rest) = data.get_mut(len..end) {
            rest.fill(0);
        }
        if let Err(data) = self.window.fill(index, data) {
            pool.put(data);
        }
    }

    pub(crate) fn source_hash(&mut self, now: Time, hash: [u8; 32]) {
        if self.sending() {
            self.hash = Some(hash);
            (self.fin_at, self.fin_wait) = (now, FIN_WAIT);
        }
    }

    /// The next segment that was never sent, if the receiver has room and its chunk is read.
    fn fresh(&self) -> Option<u32> {
        let segment = self.next_new;
        (segment < self.segments && segment < self.limit && self.window.ready(segment))
            .then_some(segment)
    }

    fn step_fresh(&mut self) {
        self.next_new += 1;
        if self.next_new.is_multiple_of(CHUNK_SEGMENTS as u32) {
            let chunk = self.done.next_gap(self.next_new / CHUNK_SEGMENTS as u32);
            self.next_new = (chunk * CHUNK_SEGMENTS as u32).min(self.segments);
        }
    }

    fn has_content(&self) -> bool {
        self.pacing.room() > 0
            && (self.window.has_resend() || self.fresh().is_some() || self.window.has_copy())
    }

    /// True if a burst may leave now.
    pub(crate) fn may_send(&mut self, now: Time) -> bool {
        if !self.sending() {
            return false;
        }
        if self.is_confirmed() {
            return now >= self.probe_at;
        }
        self.pacing.refill(now);
        let paced = self.has_content() && self.pacing.allowed(now) > 0;
        paced || (!self.has_content() && now >= self.probe_at)
    }

    /// Notes that the egress has no room for this peer.
    pub(crate) fn blocked(&mut self, now: Time) {
        self.retry_at = now + BLOCKED_WAIT;
    }

    /// The burst that [`FileSender::may_send`] announced; at most `max` segments.
    pub(crate) fn burst(&mut self, now: Time, max: usize, slot: usize) -> Option<SegmentBurst> {
        let tick = ticks(now);
        let mut burst = SegmentBurst {
            peer: self.peer,
            count: 0,
            slot,
            port: self.port,
            tick,
            plain_len: SEGMENT_HEADER_LEN + self.info.segment.get(),
            segments: [Segment::PROBE; BURST_MAX],
        };
        let most = self.pacing.allowed(now).min(max).min(BURST_MAX);
        while burst.count < most {
            let again = self.window.pop_resend();
            let Some(segment) = again.or_else(|| self.fresh()).or_else(|| self.window.pop_copy())
            else {
                break;
            };
            if segment < self.next_new {
                self.stats.retransmitted_bytes += self.info.segment.get() as u64;
            } else {
                self.step_fresh();
            }
            if again.is_some() {
                self.plan_copy(segment);
            }
            self.window.mark_sent(segment, tick as u32);
            burst.segments[burst.count] = segment;
            burst.count += 1;
        }
        let data = burst.count;
        let last = self.next_new >= self.segments && !self.window.has_resend();
        if (data == 0 && now >= self.probe_at) || (data > 0 && last && data < max.min(BURST_MAX)) {
            burst.count += 1;
        }
        if burst.count == 0 {
            return None;
        }
        if data == 0 {
            let most = PROBE_WAIT_MAX.max(self.pacing.rtt() + self.pacing.added().hold);
            self.probe_wait = (self.probe_wait * 3 / 2).min(most);
        }
        self.probe_at = now + if self.is_confirmed() { ALIVE } else { self.probe_wait };
        self.pacing.left(tick, data, burst.count);
        Some(burst)
    }

    /// Sends a lost segment twice at the end of a file, where each loss costs an idle round trip.
    /// Copies are at most 1 of [`COPIES_PER_LOSS`] losses.
    fn plan_copy(&mut self, segment: u32) {
        let ended = self.next_new >= self.segments;
        if ended && self.copies < self.stats.lost_segments / COPIES_PER_LOSS {
            self.copies += 1;
            self.window.push_copy(segment);
        }
    }

    /// Writes one segment of a burst into `out`: kind byte, header, file bytes.
    pub(crate) fn write(&self, burst: &SegmentBurst, segment: u32, out: &mut [u8]) {
        let header = Segment { port: burst.port, sent: stamp(burst.tick), segment };
        let (head, body) = out.split_at_mut(SEGMENT_HEADER_LEN);
        head.copy_from_slice(&header.to_bytes());
        let len = self.info.segment.get();
        let at = segment as usize % CHUNK_SEGMENTS * len;
        let data = if segment == Segment::PROBE { None } else { self.window.data(segment) };
        let (body, padding) = body.split_at_mut(len);
        match data.and_then(|data| data.get(at..at + len)) {
            Some(data) => body.copy_from_slice(data),
            None => body.fill(0),
        }
        padding.fill(0);
    }

    /// Handles a NACK: arrivals, losses, and the state of the path.
    pub(crate) fn nack(
        &mut self,
        now: Time,
        nack: &Nack<'_>,
        pool: &mut ChunkPool,
    ) -> Result<(), DropReason> {
        let chunks = nack.bitmap.len() / CHUNK_BITMAP_LEN;
        if !self.sending() {
            return Err(DropReason::UnknownFlow);
        }
        if nack.floor > self.segments || chunks > self.info.segment.nack_chunks() {
            return Err(DropReason::Malformed);
        }
        self.limit = self.limit.max(nack.limit.min(self.segments));
        let echo = unwrap_past(ticks(now), nack.echo);
        let summary = self.take_bitmaps(nack, echo, pool);
        self.stats.lost_segments += summary.lost;
        if self.pacing.nack(now, nack) {
            self.stats.nacks += 1;
            self.stats.duplicate_segments = u64::from(nack.duplicates);
        }
        if summary.lost > 0 || summary.confirmed > 0 {
            self.reoffers = 0;
            // Segments in mixes aren't lost before the hold is over: an earlier probe is useless.
            self.probe_wait = PROBE_WAIT.max(self.pacing.rtt() / 4 + self.pacing.added().hold);
            self.probe_at = self.probe_at.min(now + self.probe_wait);
        }
        if self.is_confirmed() && summary.confirmed > 0 {
            self.probe_at = now + ALIVE;
            if self.hash.is_some() {
                (self.fin_at, self.fin_wait) = (now + FIN_WAIT, FIN_WAIT);
            }
        }
        Ok(())
    }

    fn take_bitmaps(&mut self, nack: &Nack<'_>, echo: u64, pool: &mut ChunkPool) -> AckSummary {
        let held = (self.pacing.added().hold.as_nanos() as u64 / TICK_NS) as u32;
        let slack = (nack.reorder.get() + nack.reorder.get() / 4).max(held + SLACK_MIN);
        let mut summary = AckSummary::default();
        let whole = [0xff; CHUNK_BITMAP_LEN];
        let floor = nack.floor / CHUNK_SEGMENTS as u32;
        let floor = if nack.floor == self.segments { self.done.chunks() } else { floor };
        for chunk in self.base..floor {
            summary.confirmed += self.window.take_bitmap(chunk, &whole, 0, 0).confirmed;
            self.finish_chunk(chunk, pool);
        }
        let (bitmaps, _) = nack.bitmap.as_chunks::<CHUNK_BITMAP_LEN>();
        // A bitmap that is not full ends at the last segment that arrived.
        let none = [0; CHUNK_BITMAP_LEN];
        let full = bitmaps.len() == self.info.segment.nack_chunks();
        let sent = self.next_new.div_ceil(CHUNK_SEGMENTS as u32);
        let told_to = nack.first.saturating_add(bitmaps.len() as u32);
        let end = if full { told_to } else { told_to.max(sent) }.min(self.done.chunks());
        let bitmaps = bitmaps.iter().chain(core::iter::repeat(&none));
        for (chunk, bitmap) in (nack.first..end).zip(bitmaps) {
            let part = self.window.take_bitmap(chunk, bitmap, echo as u32, slack);
            summary.lost += part.lost;
            summary.confirmed += part.confirmed;
            if part.confirmed > 0 && self.window.is_confirmed(chunk) {
                self.finish_chunk(chunk, pool);
            }
        }
        self.base = self.done.next_gap(self.base);
        self.confirmed += summary.confirmed;
        summary
    }

    fn finish_chunk(&mut self, chunk: u32, pool: &mut ChunkPool) {
        self.done.insert(chunk);
        if let Some(buffer) = self.window.close(chunk) {
            pool.put(buffer);
        }
        let at = self.next_new / CHUNK_SEGMENTS as u32;
        if at == chunk {
            self.next_new = ((chunk + 1) * CHUNK_SEGMENTS as u32 - 1).min(self.segments);
            self.step_fresh();
        }
    }

    /// Writes the next message that is due.
    pub(crate) fn message(&mut self, now: Time, out: &mut [u8]) -> Option<usize> {
        if let SendState::Offered { next, wait, deadline } = self.state {
            if now < next {
                return None;
            }
            let (next, wait) = (now + wait, (wait * 2).min(OFFER_WAIT_MAX));
            self.state = SendState::Offered { next, wait, deadline };
            return self.offer().encode(out);
        }
        if let Some(cadence) = self.pacing.take_cadence() {
            let interval_us = u32::try_from(cadence.as_micros()).unwrap_or(u32::MAX);
            return TransferMessage::Cadence { port: self.port, interval_us }.encode(out);
        }
        let hash = self.hash.filter(|_| now >= self.fin_at)?;
        self.fin_at = now + self.fin_wait.max(self.pacing.rtt() + self.pacing.added().hold);
        self.fin_wait = (self.fin_wait * 2).min(FIN_WAIT_MAX);
        TransferMessage::Fin { port: self.port, nonce: self.nonce, hash }.encode(out)
    }

    fn offer(&self) -> TransferMessage<'_> {
        TransferMessage::Offer(FileOffer {
            port: self.port,
            nonce: self.nonce,
            size: self.info.size,
            modified_ns: self.info.modified_ns,
            file_id: self.info.file_id,
            executable: self.info.executable,
            segment: self.info.segment,
            name: &self.info.name,
        })
    }

    /// Failure of the transfer for lack of answers, if its time is over.
    pub(crate) fn expired(&self, now: Time) -> Option<TransferFailure> {
        let over = match self.state {
            SendState::Offered { deadline, .. } => now >= deadline,
            SendState::Sending => now.since(self.pacing.heard()) >= self.idle_timeout,
        };
        over.then_some(TransferFailure::Local(CancelReason::Timeout))
    }

    /// Time of the next action, and its name.
    pub(crate) fn next(&self) -> (Time, &'static str) {
        if let SendState::Offered { next, deadline, .. } = self.state {
            return (next.min(deadline), "offer");
        }
        if self.pacing.has_cadence() {
            return (Time::ZERO, "cadence");
        }
        let mut next = (self.pacing.heard() + self.idle_timeout, "transfer idle");
        if self.hash.is_some() && self.fin_at < next.0 {
            next = (self.fin_at, "fin");
        }
        let send = if !self.is_confirmed() && self.has_content() {
            (self.pacing.next(), "segments")
        } else {
            (self.probe_at, "probe")
        };
        let send = (send.0.max(self.retry_at), send.1);
        if send.0 < next.0 { send } else { next }
    }
}
