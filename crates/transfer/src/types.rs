//! Values that a shell and the machine exchange.

use core::fmt;
use core::time::Duration;

use shoal_wire::transfer::{CHUNK_SEGMENTS, CancelReason, RefuseReason, SegmentLen};

/// A host at the other end of a session, by the edge's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PeerKey(pub u32);

/// Delay that mixes on the path to a host add to each cell, in each direction. Zero, as without
/// mixes, means that cells mostly keep their order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MixDelay {
    /// Mean delay.
    pub mean: Duration,
    /// Time within which all but one of 10,000 cells arrive; at least the mean.
    pub hold: Duration,
}

/// Id of a transfer of this node; never used twice in the node's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TransferId(pub u64);

/// A sender's description of a file.
#[derive(Clone, PartialEq, Eq)]
pub struct OfferInfo {
    /// Relative path, `/` between components.
    pub name: String,
    /// Length in bytes; at most [`OfferInfo::SIZE_MAX`].
    pub size: u64,
    /// Modification time, nanoseconds since 1970.
    pub modified_ns: i64,
    /// Id of the file's content: an offer with the id of an interrupted transfer resumes it.
    pub file_id: [u8; 16],
    /// True if the owner may execute the file.
    pub executable: bool,
    /// Bytes of file in each segment: the room in cells between the two hosts.
    pub segment: SegmentLen,
}

impl OfferInfo {
    /// Longest file that segment numbers of 32 bits reach, for every segment length. The highest
    /// number is the probe's.
    pub const SIZE_MAX: u64 =
        (u32::MAX as u64 - CHUNK_SEGMENTS as u64) * SegmentLen::MIN.get() as u64;

    /// Number of segments in the file.
    pub fn segments(&self) -> u32 {
        self.size.div_ceil(self.segment.get() as u64) as u32
    }

    /// Bytes of every chunk except the last.
    pub fn chunk_len(&self) -> usize {
        self.segment.chunk_len()
    }

    /// Number of chunks in the file.
    pub fn chunks(&self) -> u32 {
        self.segments().div_ceil(CHUNK_SEGMENTS as u32)
    }

    /// Offset of chunk `index` in the file, and its length, both in bytes.
    pub fn chunk_span(&self, index: u32) -> (u64, usize) {
        let len = self.chunk_len() as u64;
        let offset = u64::from(index) * len;
        (offset, self.size.saturating_sub(offset).min(len) as usize)
    }
}

// The name stays out of logs, since it tells what is sent.
impl fmt::Debug for OfferInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OfferInfo({} bytes)", self.size)
    }
}

/// Reason for the failure of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransferFailure {
    /// The receiver refused the offer.
    Refused(RefuseReason),
    /// The other end gave up for this reason.
    Peer(CancelReason),
    /// This end gave up for this reason.
    Local(CancelReason),
}

impl fmt::Display for TransferFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TransferFailure::Refused(reason) => write!(f, "{reason}"),
            TransferFailure::Peer(reason) | TransferFailure::Local(reason) => write!(f, "{reason}"),
        }
    }
}

impl std::error::Error for TransferFailure {}

/// Actions for a shell, and information. Chunk buffers have [`crate::CHUNK_LEN`] bytes; shorter
/// chunks fill the first ones.
pub enum FileTransferEvent {
    /// Sender: the receiver wants the file and has `resumed` bytes of it. The event may come again
    /// after a restart of the receiver; chunks are then read again on request.
    Accepted {
        id: TransferId,
        /// Bytes that need not travel.
        resumed: u64,
        /// True if the receiver has the whole file; also for an empty one.
        whole: bool,
    },
    /// Sender: fill the first `len` bytes of `buffer` from `offset`, then call `chunk_read`.
    Read {
        id: TransferId,
        /// Number of the chunk.
        index: u32,
        /// Offset of the chunk in the file, in bytes.
        offset: u64,
        /// Bytes of the chunk.
        len: usize,
        /// Buffer to fill and hand back.
        buffer: Box<[u8]>,
    },
    /// Both: hash the whole file, then call `source_hash` or `sink_hash`. A sender is asked when
    /// the transfer starts, and may hash while it reads. A receiver is asked when every chunk is
    /// written. If it had all chunks before the offer, it is asked once the sender has sent its
    /// hash.
    HashWanted { id: TransferId },
    /// Sender: the receiver has the file under its name.
    Finished {
        id: TransferId,
        /// Final figures.
        stats: FileProgress,
    },
    /// Receiver: a file is on offer; answer with `accept` or `refuse`.
    Offered {
        id: TransferId,
        /// Host that offers the file.
        from: PeerKey,
        info: OfferInfo,
    },
    /// Receiver: write the first `len` bytes of `data` at `offset`, then call `chunk_written`.
    Write {
        id: TransferId,
        /// Number of the chunk.
        index: u32,
        /// Offset of the chunk in the file, in bytes.
        offset: u64,
        /// Bytes of the chunk.
        len: usize,
        /// Buffer with the bytes; handed back with `chunk_written`.
        data: Box<[u8]>,
    },
    /// Receiver: all is written and the hashes agree: give the file its name, then `confirm`.
    Complete {
        id: TransferId,
        /// BLAKE3 of the file.
        hash: [u8; 32],
    },
    /// Both: the transfer is over, and the machine has forgotten it.
    Failed { id: TransferId, why: TransferFailure },
}

impl fmt::Debug for FileTransferEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FileTransferEvent::Accepted { id, resumed, whole } => {
                write!(f, "Accepted({id:?}, {resumed}, {whole})")
            }
            FileTransferEvent::Read { id, index, .. } => write!(f, "Read({id:?}, {index})"),
            FileTransferEvent::HashWanted { id } => write!(f, "HashWanted({id:?})"),
            FileTransferEvent::Finished { id, .. } => write!(f, "Finished({id:?})"),
            FileTransferEvent::Offered { id, .. } => write!(f, "Offered({id:?})"),
            FileTransferEvent::Write { id, index, .. } => write!(f, "Write({id:?}, {index})"),
            FileTransferEvent::Complete { id, .. } => write!(f, "Complete({id:?})"),
            FileTransferEvent::Failed { id, why } => write!(f, "Failed({id:?}, {why:?})"),
        }
    }
}

/// Progress of a transfer. Figures that this end can't know are zero.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct FileProgress {
    /// Bytes that the receiver has, or at the sender, has confirmed; includes resumed ones.
    pub bytes_done: u64,
    /// Length of the file in bytes.
    pub bytes_total: u64,
    /// Bytes that the receiver had before this transfer.
    pub bytes_resumed: u64,
    /// Sender: present rate in bytes of file per second.
    pub rate: u64,
    /// Sender: bytes sent again. Receiver: bytes that arrived twice.
    pub retransmitted_bytes: u64,
    /// Sender: segments found to be lost.
    pub lost_segments: u64,
    /// Sender: segments sent in all, copies included.
    pub sent_segments: u64,
    /// Sender: segments that the receiver got twice.
    pub duplicate_segments: u64,
    /// Sender: smoothed round trip.
    pub rtt: Duration,
    /// Sender: queueing delay in the last report.
    pub queue: Duration,
    /// NACKs received (sender) or sent (receiver).
    pub nacks: u64,
}
