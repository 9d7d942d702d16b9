//! The sender's chunks: times at which segments left, and arrivals.

use std::collections::VecDeque;

use shoal_wire::transfer::{CHUNK_BITMAP_LEN, CHUNK_SEGMENTS};

const WORDS: usize = CHUNK_SEGMENTS / 64;

/// One chunk, from its reading to its confirmation.
struct SentChunk {
    chunk: u32,
    /// Number of segments: fewer than [`CHUNK_SEGMENTS`] in a file's last chunk.
    segments: u32,
    data: Option<Box<[u8]>>,
    acked: [u64; WORDS],
    sent: [u64; WORDS],
    queued: [u64; WORDS],
    /// Time at which each segment last left, in 4 us units (low 32 bits).
    left: [u32; CHUNK_SEGMENTS],
}

/// Ring of chunks, from the lowest unconfirmed one on.
pub(crate) struct SendWindow {
    slots: Vec<Option<Box<SentChunk>>>,
    #[expect(clippy::vec_box, reason = "the boxes move between here and the ring")]
    spare: Vec<Box<SentChunk>>,
    held: usize,
    resend: VecDeque<u32>,
    copies: VecDeque<u32>,
}

/// Changes by the bitmaps of a NACK.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AckSummary {
    /// Segments newly found lost.
    pub(crate) lost: u64,
    /// Segments newly confirmed.
    pub(crate) confirmed: u64,
}

impl SendWindow {
    pub(crate) fn new(ring_len: usize) -> SendWindow {
        let slots = (0..ring_len).map(|_| None).collect();
        SendWindow {
            slots,
            spare: Vec::new(),
            held: 0,
            resend: VecDeque::new(),
            copies: VecDeque::new(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Chunks that are read or being read.
    pub(crate) fn held(&self) -> usize {
        self.held
    }

    fn at(&self, chunk: u32) -> usize {
        chunk as usize & (self.slots.len() - 1)
    }

    fn get(&self, chunk: u32) -> Option<&SentChunk> {
        self.slots[self.at(chunk)].as_deref().filter(|slot| slot.chunk == chunk)
    }

    fn get_mut(&mut self, chunk: u32) -> Option<&mut SentChunk> {
        let at = self.at(chunk);
        self.slots[at].as_deref_mut().filter(|slot| slot.chunk == chunk)
    }

    /// Makes room for `chunk`, which is about to be read. False if its place is taken.
    pub(crate) fn open(&mut self, chunk: u32, segments: u32) -> bool {
        let at = self.at(chunk);
        if self.slots[at].is_some() {
            return false;
        }
        let mut slot = self.spare.pop().unwrap_or_else(|| {
            Box::new(SentChunk {
                chunk,
                segments,
                data: None,
                acked: [0; WORDS],
                sent: [0; WORDS],
                queued: [0; WORDS],
                left: [0; CHUNK_SEGMENTS],
            })
        });
        slot.chunk = chunk;
        slot.segments = segments;
        (slot.acked, slot.sent, slot.queued) = ([0; WORDS], [0; WORDS], [0; WORDS]);
        self.slots[at] = Some(slot);
        self.held += 1;
        true
    }

    /// Stores a chunk that was read. Returns the buffer if nobody waits for it.
    pub(crate) fn fill(&mut self, chunk: u32, data: Box<[u8]>) -> Result<(), Box<[u8]>> {
        match self.get_mut(chunk) {
            Some(slot) if slot.data.is_none() => {
                slot.data = Some(data);
                Ok(())
            }
            _ => Err(data),
        }
    }

    /// Drops a confirmed chunk; returns its buffer, if it was read.
    pub(crate) fn close(&mut self, chunk: u32) -> Option<Box<[u8]>> {
        self.get(chunk)?;
        let at = self.at(chunk);
        let mut slot = self.slots[at].take()?;
        self.held -= 1;
        let data = slot.data.take();
        if self.spare.len() < 8 {
            self.spare.push(slot);
        }
        data
    }

    /// File bytes of the chunk that holds `segment`, if it is read.
    pub(crate) fn data(&self, segment: u32) -> Option<&[u8]> {
        self.get(segment / CHUNK_SEGMENTS as u32)?.data.as_deref()
    }

    /// True if `segment` can leave: its chunk is read.
    pub(crate) fn ready(&self, segment: u32) -> bool {
        self.data(segment).is_some()
    }

    /// Remembers that `segment` leaves at `tick`.
    pub(crate) fn mark_sent(&mut self, segment: u32, tick: u32) {
        let (chunk, bit) = split(segment);
        if let Some(slot) = self.get_mut(chunk) {
            slot.sent[bit / 64] |= 1 << (bit % 64);
            slot.left[bit] = tick;
        }
    }

    /// The next segment to send again.
    pub(crate) fn pop_resend(&mut self) -> Option<u32> {
        while let Some(segment) = self.resend.pop_front() {
            let (chunk, bit) = split(segment);
            let Some(slot) = self.get_mut(chunk) else { continue };
            let mask = 1 << (bit % 64);
            let wanted = slot.queued[bit / 64] & !slot.acked[bit / 64] & mask != 0;
            slot.queued[bit / 64] &= !mask;
            if wanted {
                return Some(segment);
            }
        }
        None
    }

    /// Queues a copy of `segment`, to be sent when nothing else is left to send.
    pub(crate) fn push_copy(&mut self, segment: u32) {
        self.copies.push_back(segment);
    }

    /// The next copy that is still worth sending.
    pub(crate) fn pop_copy(&mut self) -> Option<u32> {
        while let Some(segment) = self.copies.pop_front() {
            let (chunk, bit) = split(segment);
            let open = |slot: &SentChunk| slot.acked[bit / 64] >> (bit % 64) & 1 == 0;
            if self.get(chunk).is_some_and(open) {
                return Some(segment);
            }
        }
        None
    }

    pub(crate) fn has_copy(&self) -> bool {
        !self.copies.is_empty()
    }

    pub(crate) fn has_resend(&self) -> bool {
        !self.resend.is_empty()
    }

    /// Applies one chunk's part of a NACK. A missing segment is lost if it left before `echo` less
    /// `slack` (4 us units).
    pub(crate) fn take_bitmap(
        &mut self,
        chunk: u32,
        bitmap: &[u8; CHUNK_BITMAP_LEN],
        echo: u32,
        slack: u32,
    ) -> AckSummary {
        let mut summary = AckSummary::default();
        let at = self.at(chunk);
        let Some(slot) = self.slots[at].as_deref_mut().filter(|slot| slot.chunk == chunk) else {
            return summary;
        };
        let (words, _) = bitmap.as_chunks::<8>();
        for (i, word) in words.iter().enumerate() {
            // Only segments that were sent can have arrived, even if the other end lies.
            let arrived = u64::from_le_bytes(*word) & slot.sent[i];
            summary.confirmed += u64::from((arrived & !slot.acked[i]).count_ones());
            slot.acked[i] |= arrived;
            let mut missing = slot.sent[i] & !slot.acked[i] & !slot.queued[i];
            while missing != 0 {
                let bit = missing.trailing_zeros();
                missing &= missing - 1;
                let left = slot.left[i * 64 + bit as usize];
                if echo.wrapping_sub(left).wrapping_sub(slack) as i32 > 0 {
                    slot.queued[i] |= 1 << bit;
                    self.resend.push_back(chunk * CHUNK_SEGMENTS as u32 + i as u32 * 64 + bit);
                    summary.lost += 1;
                }
            }
        }
        summary
    }

    /// True if all segments of `chunk` have arrived.
    pub(crate) fn is_confirmed(&self, chunk: u32) -> bool {
        self.get(chunk).is_some_and(|slot| {
            slot.acked.iter().map(|word| word.count_ones()).sum::<u32>() == slot.segments
        })
    }

    /// Takes all buffers out of the ring, for the pool.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = Box<[u8]>> + '_ {
        self.resend.clear();
        self.copies.clear();
        self.held = 0;
        self.slots.iter_mut().filter_map(|slot| slot.take()?.data.take())
    }
}

/// Chunk of a segment, and position in that chunk.
fn split(segment: u32) -> (u32, usize) {
    (segment / CHUNK_SEGMENTS as u32, segment as usize % CHUNK_SEGMENTS)
}
