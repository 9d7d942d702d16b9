//! The sending end of one file.

use core::time::Duration;
use std::collections::VecDeque;

use shoal_wire::transfer::{
    Accept, CHUNK_BITMAP_LEN, CHUNK_SEGMENTS, CancelReason, Nack, Offer, SEGMENT_HEADER_LEN,
    Segment, Transfer,
};
use shoal_wire::{DropReason, Time};

use crate::chunk_set::ChunkSet;
use crate::pacer::BURST_MAX;
use crate::pacing::Pacing;
use crate::pool::Pool;
use crate::ticks::{TICK_NS, stamp, ticks, unwrap_past};
use crate::types::{Added, Event, Failure, OfferInfo, PeerKey, Progress, TransferId};
use crate::window::{AckSummary, Window};

/// Chunks asked for before their turn: 6 MB, 10 ms of disk at 5 Gbit/s.
const READ_AHEAD: u32 = 24;
/// First wait before an offer is repeated; doubles up to [`OFFER_WAIT_MAX`].
const OFFER_WAIT: Duration = Duration::from_millis(250);
const OFFER_WAIT_MAX: Duration = Duration::from_secs(2);
/// Shortest time between two probes, and the longest.
const PROBE_WAIT: Duration = Duration::from_millis(1);
const PROBE_WAIT_MAX: Duration = Duration::from_millis(100);
/// Time between two probes when the receiver has everything and an end still hashes: probe and NACK
/// keep both ends from timing out.
const ALIVE: Duration = Duration::from_secs(1);
/// Wait before the hash is repeated; doubles up to [`FIN_WAIT_MAX`].
const FIN_WAIT: Duration = Duration::from_millis(20);
const FIN_WAIT_MAX: Duration = Duration::from_millis(500);
/// Reordering always allowed for, in ticks (100 us), before any was seen.
const SLACK_MIN: u32 = 25;
/// Wait before a full egress is asked again, unless the shell asks sooner.
const BLOCKED_WAIT: Duration = Duration::from_micros(200);
/// At the end of a file, one copy is allowed for this many losses.
const COPIES_PER_LOSS: u64 = 40;
/// Times a receiver may forget the transfer and be offered it again without any progress.
const REOFFERS_MAX: u32 = 8;

/// Segments of one file that leave together, to one peer.
#[derive(Clone, Debug)]
pub struct Burst {
    /// To whom.
    pub peer: PeerKey,
    /// How many segments, 1 to 44.
    pub count: usize,
    /// Bytes of end-to-end plaintext that each fills, kind byte first.
    pub plain_len: usize,
    pub(crate) slot: usize,
    pub(crate) port: u16,
    pub(crate) tick: u64,
    pub(crate) segments: [u32; BURST_MAX],
}

#[derive(Debug, PartialEq)]
enum State {
    Offered { next: Time, wait: Duration, deadline: Time },
    Sending,
}

/// One file on its way out.
pub(crate) struct Outgoing {
    pub(crate) id: TransferId,
    pub(crate) peer: PeerKey,
    pub(crate) port: u16,
    nonce: u32,
    info: OfferInfo,
    segments: u32,
    state: State,
    parts: Vec<bool>,
    /// The file is empty, and the receiver has it.
    there: bool,
    done: ChunkSet,
    window: Window,
    /// Lowest chunk that is not confirmed, next chunk to read, next segment that was never sent.
    base: u32,
    next_read: u32,
    next_new: u32,
    limit: u32,
    pacing: Pacing,
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
    stats: Progress,
    /// The egress had no room: not asked again before this.
    retry_at: Time,
}

/// What a new transfer is made of.
pub(crate) struct Plan {
    pub(crate) id: TransferId,
    pub(crate) peer: PeerKey,
    pub(crate) port: u16,
    pub(crate) nonce: u32,
    pub(crate) info: OfferInfo,
}

impl Outgoing {
    pub(crate) fn new(plan: Plan, config: &crate::Config, now: Time) -> Outgoing {
        let chunks = plan.info.chunks();
        Outgoing {
            id: plan.id,
            peer: plan.peer,
            port: plan.port,
            nonce: plan.nonce,
            segments: plan.info.segments(),
            state: State::Offered {
                next: now,
                wait: OFFER_WAIT,
                deadline: now + config.offer_timeout,
            },
            parts: Vec::new(),
            there: false,
            done: ChunkSet::new(chunks),
            window: Window::new(crate::config::ring_len(config.sender_memory)),
            base: 0,
            next_read: 0,
            next_new: 0,
            limit: 0,
            pacing: Pacing::new(now, config),
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
            stats: Progress { bytes_total: plan.info.size, ..Progress::default() },
            info: plan.info,
        }
    }

    pub(crate) fn progress(&self, now: Time) -> Progress {
        let len = self.info.segment.get() as u64;
        let done = self.stats.bytes_resumed + self.confirmed * len;
        Progress {
            bytes_done: if self.is_confirmed() { self.info.size } else { done.min(self.info.size) },
            sent_segments: self.pacing.sent(),
            rate: (self.pacing.rate(now) * len as f64) as u64,
            rtt: self.pacing.rtt(),
            queue: self.pacing.queue(),
            ..self.stats
        }
    }

    /// Mixes on the way to the receiver add so much from now on.
    pub(crate) fn set_added(&mut self, added: Added) {
        self.pacing.set_added(added);
    }

    fn sending(&self) -> bool {
        self.state == State::Sending
    }

    /// Every segment is at the receiver.
    fn is_confirmed(&self) -> bool {
        self.sending() && self.done.is_full()
    }

    /// A part of the receiver's acceptance. True when it was the last one missing.
    pub(crate) fn accept(&mut self, now: Time, accept: &Accept) -> Result<bool, DropReason> {
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
        self.state = State::Sending;
        self.base = self.done.next_gap(0);
        (self.next_read, self.next_new) = (self.base, self.base * CHUNK_SEGMENTS as u32);
        // Any receiver has room for two chunks; NACKs raise the limit.
        self.limit = self.next_new + 2 * CHUNK_SEGMENTS as u32;
        self.pacing.start(now);
        self.probe_at = if self.is_confirmed() { now + ALIVE } else { now };
        Ok(true)
    }

    /// Whether the receiver accepted with all of it there.
    pub(crate) fn is_there(&self) -> bool {
        self.there || (self.info.size > 0 && self.stats.bytes_resumed == self.info.size)
    }

    /// Nonce that answers to an offer must carry.
    pub(crate) fn nonce(&self) -> u32 {
        self.nonce
    }

    /// The receiver forgot the transfer (it was restarted): offers it again. False when that was
    /// tried too often.
    pub(crate) fn offer_again(&mut self, now: Time, pool: &mut Pool) -> bool {
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
        self.state = State::Offered { next: now, wait: OFFER_WAIT, deadline };
        true
    }

    /// Hands every buffer to the pool.
    pub(crate) fn release(&mut self, pool: &mut Pool) {
        for buffer in self.window.drain() {
            pool.put(buffer);
        }
    }

    /// Asks for the chunks that come next, at most `share` held at once.
    pub(crate) fn request_reads(
        &mut self,
        share: usize,
        pool: &mut Pool,
        events: &mut VecDeque<Event>,
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
            events.push_back(Event::Read { id: self.id, index, offset, len, buffer: pool.take() });
        }
    }

    pub(crate) fn chunk_read(&mut self, index: u32, mut data: Box<[u8]>, pool: &mut Pool) {
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

    /// The next segment that never left, if the receiver has room and its chunk is read.
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

    /// Whether a burst may leave now.
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

    /// The egress has no room for this peer now.
    pub(crate) fn blocked(&mut self, now: Time) {
        self.retry_at = now + BLOCKED_WAIT;
    }

    /// The burst that [`Outgoing::may_send`] announced; at most `max` segments.
    pub(crate) fn burst(&mut self, now: Time, max: usize, slot: usize) -> Option<Burst> {
        let tick = ticks(now);
        let mut burst = Burst {
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
    pub(crate) fn write(&self, burst: &Burst, segment: u32, out: &mut [u8]) {
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

    /// Takes a NACK: what arrived, what is lost, how the path is.
    pub(crate) fn nack(
        &mut self,
        now: Time,
        nack: &Nack<'_>,
        pool: &mut Pool,
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
            // What mixes hold isn't lost before its time is over: a probe sooner is in vain.
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

    fn take_bitmaps(&mut self, nack: &Nack<'_>, echo: u64, pool: &mut Pool) -> AckSummary {
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

    fn finish_chunk(&mut self, chunk: u32, pool: &mut Pool) {
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
        if let State::Offered { next, wait, deadline } = self.state {
            if now < next {
                return None;
            }
            let (next, wait) = (now + wait, (wait * 2).min(OFFER_WAIT_MAX));
            self.state = State::Offered { next, wait, deadline };
            return self.offer().encode(out);
        }
        if let Some(cadence) = self.pacing.take_cadence() {
            let interval_us = u32::try_from(cadence.as_micros()).unwrap_or(u32::MAX);
            return Transfer::Cadence { port: self.port, interval_us }.encode(out);
        }
        let hash = self.hash.filter(|_| now >= self.fin_at)?;
        self.fin_at = now + self.fin_wait.max(self.pacing.rtt() + self.pacing.added().hold);
        self.fin_wait = (self.fin_wait * 2).min(FIN_WAIT_MAX);
        Transfer::Fin { port: self.port, nonce: self.nonce, hash }.encode(out)
    }

    fn offer(&self) -> Transfer<'_> {
        Transfer::Offer(Offer {
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

    /// Why the transfer failed for lack of answers, if it did.
    pub(crate) fn expired(&self, now: Time) -> Option<Failure> {
        let over = match self.state {
            State::Offered { deadline, .. } => now >= deadline,
            State::Sending => now.since(self.pacing.heard()) >= self.idle_timeout,
        };
        over.then_some(Failure::Local(CancelReason::Timeout))
    }

    /// When something is due, and what.
    pub(crate) fn next(&self) -> (Time, &'static str) {
        if let State::Offered { next, deadline, .. } = self.state {
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
