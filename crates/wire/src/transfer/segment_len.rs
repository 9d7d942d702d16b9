//! Lengths of a file's segments.

use super::{
    CHUNK_BITMAP_LEN, CHUNK_SEGMENTS, NACK_FIXED_LEN, SEGMENT_HEADER_LEN, SEGMENT_LEN,
    TRANSFER_HEADER_LEN,
};
use crate::leg::{BODY_AT, CELL_LEN, RELAYS_MAX};
use crate::{ParseError, TAG_LEN};

/// Bytes of file in each segment of one transfer, as its offer says. The cells between the two
/// hosts limit it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SegmentLen(u16);

impl Default for SegmentLen {
    fn default() -> SegmentLen {
        SegmentLen::FULL
    }
}

impl SegmentLen {
    /// Segment that fills a full cell.
    pub const FULL: SegmentLen = SegmentLen(SEGMENT_LEN as u16);
    /// Segment that fills a unit of a circuit with the most relays.
    pub const MIN: SegmentLen = {
        let shortest = CELL_LEN - BODY_AT - TAG_LEN * RELAYS_MAX as usize - crate::edge::OVERHEAD;
        SegmentLen((shortest - SEGMENT_HEADER_LEN) as u16)
    };

    /// A length in bytes that an offer says.
    ///
    /// # Errors
    ///
    /// It is not between [`SegmentLen::MIN`] and [`SegmentLen::FULL`].
    pub const fn new(len: u16) -> Result<SegmentLen, ParseError> {
        match len >= SegmentLen::MIN.0 && len <= SegmentLen::FULL.0 {
            true => Ok(SegmentLen(len)),
            false => Err(ParseError::Invalid { what: "segment length" }),
        }
    }

    /// Segment that an end-to-end plaintext of `len` bytes holds after a segment's header.
    ///
    /// # Errors
    ///
    /// The plaintext is shorter or longer than that of any cell with segments.
    pub const fn in_plain(len: usize) -> Result<SegmentLen, ParseError> {
        SegmentLen::new(len.saturating_sub(SEGMENT_HEADER_LEN) as u16)
    }

    /// In bytes.
    pub const fn get(self) -> usize {
        self.0 as usize
    }

    /// Bytes of file in one chunk.
    pub const fn chunk_len(self) -> usize {
        CHUNK_SEGMENTS * self.get()
    }

    /// Most chunks that one NACK of the transfer covers. If segments are shorter than full, the
    /// NACK may return over a circuit with more tag places. Its limit then is that of the shortest
    /// segment, which fits any circuit.
    pub const fn nack_chunks(self) -> usize {
        let segment = if self.0 == SegmentLen::FULL.0 { self } else { SegmentLen::MIN };
        let message = segment.get() + SEGMENT_HEADER_LEN - TRANSFER_HEADER_LEN;
        (message - NACK_FIXED_LEN) / CHUNK_BITMAP_LEN
    }
}
