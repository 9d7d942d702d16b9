//! What a shell and the machine say to each other.

use core::fmt;
use core::time::Duration;

use shoal_wire::transfer::{CHUNK_SEGMENTS, CancelReason, RefuseReason, SegmentLen};

/// A host at the other end of a session, as the edge numbers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PeerKey(pub u32);

/// What mixes on the way to a host add to each cell's way, each way. Zero, as without mixes, says
/// that cells mostly keep their order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Added {
    /// In the mean.
    pub mean: Duration,
    /// The time within which all but one of 10,000 cells come; not below the mean.
    pub hold: Duration,
}

/// One transfer of this node; never used twice in the node's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TransferId(pub u64);

/// What a sender says about a file.
#[derive(Clone, PartialEq, Eq)]
pub struct OfferInfo {
    /// Relative path, `/` between components.
    pub name: String,
    /// Length in bytes; at most [`OfferInfo::SIZE_MAX`].
    pub size: u64,
    /// Modification time, nanoseconds since 1970.
    pub modified_ns: i64,
    /// Names the file's content: an offer with the id of an interrupted transfer resumes it.
    pub file_id: [u8; 16],
    /// The owner may execute it.
    pub executable: bool,
    /// Bytes of file in each segment: what the cells between the two hosts hold.
    pub segment: SegmentLen,
}

impl OfferInfo {
    /// The longest file that segment numbers of 32 bits reach, whatever the segments' length; the
    /// highest number is the probe's.
    pub const SIZE_MAX: u64 =
        (u32::MAX as u64 - CHUNK_SEGMENTS as u64) * SegmentLen::MIN.get() as u64;

    /// How many segments the file has.
    pub fn segments(&self) -> u32 {
        self.size.div_ceil(self.segment.get() as u64) as u32
    }

    /// Bytes of every chunk but the last.
    pub fn chunk_len(&self) -> usize {
        self.segment.chunk_len()
    }

    /// How many chunks the file has.
    pub fn chunks(&self) -> u32 {
        self.segments().div_ceil(CHUNK_SEGMENTS as u32)
    }

    /// Where chunk `index` starts in the file, and its length, both in bytes.
    pub fn chunk_span(&self, index: u32) -> (u64, usize) {
        let len = self.chunk_len() as u64;
        let offset = u64::from(index) * len;
        (offset, self.size.saturating_sub(offset).min(len) as usize)
    }
}

// The name stays out of logs: it says what travels.
impl fmt::Debug for OfferInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OfferInfo({} bytes)", self.size)
    }
}

/// Why a transfer failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The receiver refused the offer.
    Refused(RefuseReason),
    /// The other end gave up, and said why.
    Peer(CancelReason),
    /// This end gave up.
    Local(CancelReason),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Refused(reason) => write!(f, "{reason}"),
            Failure::Peer(reason) | Failure::Local(reason) => write!(f, "{reason}"),
        }
    }
}

impl std::error::Error for Failure {}

/// What a shell must do or may want to know. Chunk buffers have
/// [`crate::CHUNK_LEN`] bytes, of which shorter chunks fill the first.
pub enum Event {
    /// Sender: the receiver wants the file and has `resumed` bytes of it. May come again when the
    /// receiver was restarted; chunks are then read again as asked.
    Accepted {
        /// The transfer.
        id: TransferId,
        /// Bytes that need not travel.
        resumed: u64,
        /// The receiver has the whole file; also true of an empty one.
        whole: bool,
    },
    /// Sender: fill the first `len` bytes of `buffer` from `offset`, then call `chunk_read`.
    Read {
        /// The transfer.
        id: TransferId,
        /// The chunk.
        index: u32,
        /// Where it starts in the file.
        offset: u64,
        /// How many bytes it has.
        len: usize,
        /// To be filled and handed back.
        buffer: Box<[u8]>,
    },
    /// Both: hash the whole file, then call `source_hash` or `sink_hash`. A sender is asked when
    /// the transfer starts and may hash while it reads; a receiver when every chunk is written, and
    /// where all was there before the offer once the sender has told its hash.
    HashWanted {
        /// The transfer.
        id: TransferId,
    },
    /// Sender: the receiver has the file under its name.
    Finished {
        /// The transfer.
        id: TransferId,
        /// Final figures.
        stats: Progress,
    },
    /// Receiver: a file is on offer; answer with `accept` or `refuse`.
    Offered {
        /// The transfer.
        id: TransferId,
        /// Who offers.
        from: PeerKey,
        /// What.
        info: OfferInfo,
    },
    /// Receiver: write the first `len` bytes of `data` at `offset`, then call `chunk_written`.
    Write {
        /// The transfer.
        id: TransferId,
        /// The chunk.
        index: u32,
        /// Where it belongs in the file.
        offset: u64,
        /// How many bytes it has.
        len: usize,
        /// The bytes; handed back with `chunk_written`.
        data: Box<[u8]>,
    },
    /// Receiver: all is written and the hashes agree: give the file its name, then `confirm`.
    Complete {
        /// The transfer.
        id: TransferId,
        /// BLAKE3 of the file.
        hash: [u8; 32],
    },
    /// Both: it is over and the machine has forgotten it.
    Failed {
        /// The transfer.
        id: TransferId,
        /// Why.
        why: Failure,
    },
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Event::Accepted { id, resumed, whole } => {
                write!(f, "Accepted({id:?}, {resumed}, {whole})")
            }
            Event::Read { id, index, .. } => write!(f, "Read({id:?}, {index})"),
            Event::HashWanted { id } => write!(f, "HashWanted({id:?})"),
            Event::Finished { id, .. } => write!(f, "Finished({id:?})"),
            Event::Offered { id, .. } => write!(f, "Offered({id:?})"),
            Event::Write { id, index, .. } => write!(f, "Write({id:?}, {index})"),
            Event::Complete { id, .. } => write!(f, "Complete({id:?})"),
            Event::Failed { id, why } => write!(f, "Failed({id:?}, {why:?})"),
        }
    }
}

/// How far a transfer is. Figures that this end can't know are zero.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Progress {
    /// Bytes that the receiver has (at the sender: has confirmed), resumed ones included.
    pub bytes_done: u64,
    /// Length of the file in bytes.
    pub bytes_total: u64,
    /// Bytes that were there before this transfer.
    pub bytes_resumed: u64,
    /// Sender: its present rate in bytes of file per second.
    pub rate: u64,
    /// Sender: bytes sent again. Receiver: bytes that arrived twice.
    pub retransmitted_bytes: u64,
    /// Sender: segments found to be lost.
    pub lost_segments: u64,
    /// Sender: segments sent in all, copies included.
    pub sent_segments: u64,
    /// Sender: segments the receiver got twice.
    pub duplicate_segments: u64,
    /// Sender: smoothed round trip.
    pub rtt: Duration,
    /// Sender: queueing delay last seen.
    pub queue: Duration,
    /// NACKs received (sender) or sent (receiver).
    pub nacks: u64,
}
