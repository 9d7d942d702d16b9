//! Segments and messages of a file transfer (docs/design/wire/transfer.md).
//!
//! Both travel under the end-to-end seal. A segment is file data after a header of ten bytes. All
//! else is a message in `[kind 1][length u16][message]`, followed by zeroes.

use crate::{EdgeKind, ParseError, Reader, SizeClass};

mod reason;
mod segment_len;

pub use reason::{CancelReason, RefuseReason};
pub use segment_len::SegmentLen;

/// Bytes of a segment's header, its kind byte included.
pub const SEGMENT_HEADER_LEN: usize = 10;
/// Bytes of file in one segment, which fills a full cell.
pub const SEGMENT_LEN: usize = SizeClass::Full.edge_len() - SEGMENT_HEADER_LEN;
/// Segments in one chunk, the unit of disk access, of resume and of the NACK's bitmap.
pub const CHUNK_SEGMENTS: usize = 192;
/// Bytes of file in one chunk.
pub const CHUNK_LEN: usize = CHUNK_SEGMENTS * SEGMENT_LEN;
/// Bytes of bitmap for one chunk.
pub const CHUNK_BITMAP_LEN: usize = CHUNK_SEGMENTS / 8;
/// Bytes before a transfer message: kind byte and length.
pub const TRANSFER_HEADER_LEN: usize = 3;
/// Longest transfer message in bytes.
pub const TRANSFER_MESSAGE_MAX: usize = SizeClass::Full.edge_len() - TRANSFER_HEADER_LEN;
/// Longest file name in bytes of UTF-8.
pub const NAME_LEN_MAX: usize = 400;
/// Bytes of a NACK before its bitmap.
pub const NACK_FIXED_LEN: usize = 48;
/// Most chunks that one NACK covers: 10,560 segments.
pub const NACK_CHUNKS_MAX: usize = SegmentLen::FULL.nack_chunks();
/// Most ranges in one [`FileAcceptance`], so that it fits the shortest cell.
pub const ACCEPT_RANGES_MAX: usize = 159;
/// Most parts an acceptance may have.
pub const ACCEPT_PARTS_MAX: u8 = 16;

const _: () = assert!(SEGMENT_LEN == 1_366 && CHUNK_LEN == 262_272);
const _: () = assert!(NACK_CHUNKS_MAX * CHUNK_SEGMENTS > 10_000);
const _: () = {
    let shortest = SegmentLen::MIN.get() + SEGMENT_HEADER_LEN - TRANSFER_HEADER_LEN;
    assert!(9 + ACCEPT_RANGES_MAX * 8 <= shortest);
    assert!(OFFER_FIXED_LEN + NAME_LEN_MAX <= shortest);
};

/// Bytes of an offer before its name.
const OFFER_FIXED_LEN: usize = 44;

/// A sender's clock as it is sent: units of 4 us, 24 bits, so it wraps after 67 s.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SenderClock(u32);

impl SenderClock {
    /// The bits that are sent.
    pub const MASK: u32 = 0xff_ffff;

    /// The low 24 bits of a count of 4 us units.
    pub const fn new(units: u32) -> SenderClock {
        SenderClock(units & Self::MASK)
    }

    /// The 24 bits.
    pub const fn get(self) -> u32 {
        self.0
    }

    /// Difference to `other` in 4 us units; negative if this time is earlier. Correct while the two
    /// are less than 33 s apart.
    pub const fn after(self, other: SenderClock) -> i32 {
        (self.0.wrapping_sub(other.0) << 8) as i32 >> 8
    }

    const fn to_bytes(self) -> [u8; 3] {
        let b = self.0.to_be_bytes();
        [b[1], b[2], b[3]]
    }

    const fn from_bytes(b: [u8; 3]) -> SenderClock {
        SenderClock(u32::from_be_bytes([0, b[0], b[1], b[2]]))
    }
}

/// Header of one segment.
///
/// ```text
///  0      1        3        6         10
/// +------+--------+--------+---------+-----------------+
/// | kind | port   | sent   | segment | 1,366 B of file |
/// +------+--------+--------+---------+-----------------+
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Names the transfer. The sender chooses it, unique among its transfers to this receiver.
    pub port: u16,
    /// The sender's clock when it sent this copy.
    pub sent: SenderClock,
    /// Number of the segment in the file; [`Segment::PROBE`] carries no data.
    pub segment: u32,
}

impl Segment {
    /// Segment number of a probe, which has no data: it only carries the clock to the receiver.
    pub const PROBE: u32 = u32::MAX;

    /// Header bytes, kind byte first.
    pub fn to_bytes(self) -> [u8; SEGMENT_HEADER_LEN] {
        let p = self.port.to_be_bytes();
        let t = self.sent.to_bytes();
        let s = self.segment.to_be_bytes();
        [EdgeKind::Segment as u8, p[0], p[1], t[0], t[1], t[2], s[0], s[1], s[2], s[3]]
    }

    /// Splits `body` (kind byte first) into header and file bytes. The file bytes are at least
    /// [`SegmentLen::MIN`]; the transfer's own length is not known here.
    #[inline]
    pub fn parse(body: &[u8]) -> Result<(Segment, &[u8]), ParseError> {
        let short = ParseError::TooShort {
            what: "segment",
            need: SEGMENT_HEADER_LEN + SegmentLen::MIN.get(),
            have: body.len(),
        };
        let (h, data) = body.split_first_chunk::<SEGMENT_HEADER_LEN>().ok_or(short)?;
        if data.len() < SegmentLen::MIN.get() {
            return Err(short);
        }
        if h[0] != EdgeKind::Segment as u8 {
            return Err(ParseError::Unknown { what: "edge kind", value: u32::from(h[0]) });
        }
        let segment = Segment {
            port: u16::from_be_bytes([h[1], h[2]]),
            sent: SenderClock::from_bytes([h[3], h[4], h[5]]),
            segment: u32::from_be_bytes([h[6], h[7], h[8], h[9]]),
        };
        Ok((segment, data))
    }
}

/// A file on offer.
#[derive(Clone, PartialEq, Eq)]
pub struct FileOffer<'a> {
    /// Names the transfer from here on.
    pub port: u16,
    /// Random: tells this offer from earlier ones with the same port.
    pub nonce: u32,
    /// Length in bytes.
    pub size: u64,
    /// Modification time, nanoseconds since 1970.
    pub modified_ns: i64,
    /// Equal in two offers if file and content are the same, as far as the sender knows. An
    /// interrupted transfer then resumes.
    pub file_id: [u8; 16],
    /// True if the file's owner may execute it.
    pub executable: bool,
    /// Bytes of file in each segment.
    pub segment: SegmentLen,
    /// Relative path, `/` between components.
    pub name: &'a str,
}

/// The receiver's acceptance, with the chunks that it already has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileAcceptance {
    /// From the offer.
    pub port: u16,
    /// From the offer.
    pub nonce: u32,
    /// Number of this part, counted from 0.
    pub part: u8,
    /// Number of parts, 1 to [`ACCEPT_PARTS_MAX`].
    pub parts: u8,
    /// Ranges of chunks that the receiver has: (first, count).
    pub have: Vec<(u32, u32)>,
}

/// The receiver's state: the bitmap asks for segments, the rest steers the sender's rate.
///
/// ```text
///  0      1      3        7       11      15     18     21        24      27        30
/// +------+------+--------+-------+-------+------+------+---------+-------+---------+
/// | type | port | number | floor | limit | echo | hold | arrived | delay | reorder |
/// +------+------+--------+-------+-------+------+------+---------+-------+---------+
///  30         34           38       42      46       48
/// +----------+------------+--------+-------+--------+--------------------+
/// | received | duplicates | marked | first | length | bitmap, LSB first  |
/// +----------+------------+--------+-------+--------+--------------------+
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nack<'a> {
    /// The transfer.
    pub port: u16,
    /// Grows by one with each NACK.
    pub number: u32,
    /// Every segment with a lower number has arrived.
    pub floor: u32,
    /// The receiver has room for segments with a lower number.
    pub limit: u32,
    /// The newest sender's clock seen in a segment.
    pub echo: SenderClock,
    /// Time from that segment's arrival to this NACK's departure.
    pub hold: SenderClock,
    /// The receiver's clock when that segment arrived.
    pub arrived: SenderClock,
    /// Smallest (arrival - sent) in the last NACK intervals. It contains the unknown difference of
    /// the two clocks, so only its changes have a meaning.
    pub delay: SenderClock,
    /// Largest delay of a recent segment behind the newest one, by the sender's clock.
    pub reorder: SenderClock,
    /// Segments that arrived, copies and probes included.
    pub received: u32,
    /// Segments that had arrived before.
    pub duplicates: u32,
    /// Segments that arrived with a congestion mark.
    pub marked: u32,
    /// Number of the bitmap's first chunk.
    pub first: u32,
    /// One bit per segment of whole chunks: 1 if it arrived, 0 also if it was never sent. If the
    /// bitmap has fewer than [`NACK_CHUNKS_MAX`] chunks, nothing after it has arrived.
    pub bitmap: &'a [u8],
}

/// End of a transfer that sends a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum TransferEnd {
    /// The end that has the file.
    Sender = 0,
    /// The end that gets it.
    Receiver = 1,
}

/// Messages of a transfer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TransferMessage<'a> {
    /// Sender: offers a file. Repeated until answered.
    Offer(FileOffer<'a>),
    /// Receiver: accepts. Repeated until segments come.
    Accept(FileAcceptance),
    /// Receiver: refuses the offer.
    Refuse {
        /// From the offer.
        port: u16,
        /// From the offer.
        nonce: u32,
        reason: RefuseReason,
    },
    /// Receiver: reports which segments arrived.
    Nack(Nack<'a>),
    /// Sender: sets how often it wants a NACK.
    Cadence {
        /// The transfer.
        port: u16,
        /// Time between NACKs in microseconds.
        interval_us: u32,
    },
    /// Sender: the file's BLAKE3. Repeated until the transfer ends.
    Fin {
        /// The transfer.
        port: u16,
        /// From the offer: tells this transfer from an earlier one on its port.
        nonce: u32,
        /// Hash of the whole file.
        hash: [u8; 32],
    },
    /// Receiver: the file is whole and has its name.
    Done {
        /// The transfer.
        port: u16,
        /// From the offer.
        nonce: u32,
    },
    /// Either end: ends the transfer.
    Cancel {
        /// The transfer.
        port: u16,
        /// End that sends the message.
        role: TransferEnd,
        reason: CancelReason,
    },
}

/// True if `name` may be sent: relative, `/` between components, none empty, `.` or `..`, no
/// control character, at most [`NAME_LEN_MAX`] bytes. The receiver checks again before it creates a
/// file.
pub fn name_is_sound(name: &str) -> bool {
    let part = |p: &str| !p.is_empty() && p != "." && p != "..";
    name.len() <= NAME_LEN_MAX && !name.chars().any(char::is_control) && name.split('/').all(part)
}

/// Writes into a caller's buffer and records if it was too small.
struct Writer<'a> {
    out: &'a mut [u8],
    at: usize,
}

impl Writer<'_> {
    fn put(&mut self, bytes: &[u8]) {
        if let Some(room) = self.out.get_mut(self.at..self.at + bytes.len()) {
            room.copy_from_slice(bytes);
        }
        self.at += bytes.len();
    }
}

impl<'a> TransferMessage<'a> {
    /// Writes `[kind][length][message]` at the start of `out` and returns the number of bytes. None
    /// if `out` is too small or a field exceeds its limit; the content of `out` is then undefined.
    pub fn encode(&self, out: &mut [u8]) -> Option<usize> {
        let room = out.len();
        let mut w = Writer { out, at: 0 };
        w.put(&[EdgeKind::Transfer as u8, 0, 0]);
        self.put(&mut w)?;
        let end = w.at;
        if end > room || end > SizeClass::Full.edge_len() {
            return None;
        }
        let len = u16::try_from(end - TRANSFER_HEADER_LEN).ok()?;
        w.at = 1;
        w.put(&len.to_be_bytes());
        Some(end)
    }

    fn put(&self, w: &mut Writer<'_>) -> Option<()> {
        match self {
            TransferMessage::Offer(offer) => return offer.put(w),
            TransferMessage::Accept(accept) => return accept.put(w),
            TransferMessage::Refuse { port, nonce, reason } => {
                w.put(&[3]);
                w.put(&port.to_be_bytes());
                w.put(&nonce.to_be_bytes());
                w.put(&[*reason as u8]);
            }
            TransferMessage::Nack(nack) => return nack.put(w),
            TransferMessage::Cadence { port, interval_us } => {
                w.put(&[5]);
                w.put(&port.to_be_bytes());
                w.put(&interval_us.to_be_bytes());
            }
            TransferMessage::Fin { port, nonce, hash } => {
                w.put(&[6]);
                w.put(&port.to_be_bytes());
                w.put(&nonce.to_be_bytes());
                w.put(hash);
            }
            TransferMessage::Done { port, nonce } => {
                w.put(&[7]);
                w.put(&port.to_be_bytes());
                w.put(&nonce.to_be_bytes());
            }
            TransferMessage::Cancel { port, role, reason } => {
                w.put(&[8]);
                w.put(&port.to_be_bytes());
                w.put(&[*role as u8, *reason as u8]);
            }
        }
        Some(())
    }

    /// Reads a message from an opened end-to-end plaintext, kind byte first. The padding after
    /// the message must be zero.
    pub fn parse(body: &'a [u8]) -> Result<TransferMessage<'a>, ParseError> {
        let mut outer = Reader::new(body);
        let kind = outer.u8("edge kind")?;
        if kind != EdgeKind::Transfer as u8 {
            return Err(ParseError::Unknown { what: "edge kind", value: u32::from(kind) });
        }
        let len = usize::from(outer.u16("transfer length")?);
        if len > TRANSFER_MESSAGE_MAX {
            let max = TRANSFER_MESSAGE_MAX;
            return Err(ParseError::TooLong { what: "transfer message", max, have: len });
        }
        let mut r = Reader::new(outer.bytes("transfer message", len)?);
        if outer.rest().iter().any(|b| *b != 0) {
            return Err(ParseError::Invalid { what: "transfer padding" });
        }
        let kind = r.u8("transfer type")?;
        let port = r.u16("port")?;
        let message = match kind {
            1 => TransferMessage::Offer(FileOffer::read(port, &mut r)?),
            2 => TransferMessage::Accept(FileAcceptance::read(port, &mut r)?),
            3 => TransferMessage::Refuse {
                port,
                nonce: r.u32("nonce")?,
                reason: RefuseReason::from_byte(r.u8("refuse reason")?)?,
            },
            4 => TransferMessage::Nack(Nack::read(port, &mut r)?),
            5 => TransferMessage::Cadence { port, interval_us: r.u32("interval")? },
            6 => TransferMessage::Fin { port, nonce: r.u32("nonce")?, hash: r.array("hash")? },
            7 => TransferMessage::Done { port, nonce: r.u32("nonce")? },
            8 => TransferMessage::Cancel {
                port,
                role: match r.u8("role")? {
                    0 => TransferEnd::Sender,
                    1 => TransferEnd::Receiver,
                    b => return Err(ParseError::Unknown { what: "role", value: u32::from(b) }),
                },
                reason: CancelReason::from_byte(r.u8("cancel reason")?)?,
            },
            b => return Err(ParseError::Unknown { what: "transfer type", value: u32::from(b) }),
        };
        r.finish("transfer message")?;
        Ok(message)
    }
}

// `Debug` hides the name: logs must not show what is sent.
impl core::fmt::Debug for FileOffer<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Offer(port {}, {} bytes)", self.port, self.size)
    }
}

impl<'a> FileOffer<'a> {
    fn put(&self, w: &mut Writer<'_>) -> Option<()> {
        if !name_is_sound(self.name) {
            return None;
        }
        w.put(&[1]);
        w.put(&self.port.to_be_bytes());
        w.put(&self.nonce.to_be_bytes());
        w.put(&self.size.to_be_bytes());
        w.put(&self.modified_ns.to_be_bytes());
        w.put(&self.file_id);
        let is_full = self.segment == SegmentLen::FULL;
        w.put(&[u8::from(self.executable) | u8::from(!is_full) << 1]);
        if !is_full {
            w.put(&(self.segment.get() as u16).to_be_bytes());
        }
        w.put(&(self.name.len() as u16).to_be_bytes());
        w.put(self.name.as_bytes());
        Some(())
    }

    fn read(port: u16, r: &mut Reader<'a>) -> Result<FileOffer<'a>, ParseError> {
        let nonce = r.u32("nonce")?;
        let size = r.u64("size")?;
        let modified_ns = i64::from_be_bytes(r.array("modification time")?);
        let file_id = r.array("file id")?;
        let mode = r.u8("mode")?;
        if mode > 3 {
            return Err(ParseError::Unknown { what: "mode", value: u32::from(mode) });
        }
        let executable = mode & 1 != 0;
        let segment = match mode & 2 {
            0 => SegmentLen::FULL,
            _ => match SegmentLen::new(r.u16("segment length")?)? {
                // The shorter form is mandatory for full segments.
                SegmentLen::FULL => return Err(ParseError::Invalid { what: "segment length" }),
                other => other,
            },
        };
        let len = usize::from(r.u16("name length")?);
        if len > NAME_LEN_MAX {
            return Err(ParseError::TooLong { what: "name", max: NAME_LEN_MAX, have: len });
        }
        let name = core::str::from_utf8(r.bytes("name", len)?)
            .ok()
            .filter(|name| name_is_sound(name))
            .ok_or(ParseError::Invalid { what: "name" })?;
        Ok(FileOffer { port, nonce, size, modified_ns, file_id, executable, segment, name })
    }
}

impl FileAcceptance {
    fn put(&self, w: &mut Writer<'_>) -> Option<()> {
        if self.have.len() > ACCEPT_RANGES_MAX || self.parts > ACCEPT_PARTS_MAX {
            return None;
        }
        w.put(&[2]);
        w.put(&self.port.to_be_bytes());
        w.put(&self.nonce.to_be_bytes());
        w.put(&[self.part, self.parts]);
        for (first, count) in &self.have {
            w.put(&first.to_be_bytes());
            w.put(&count.to_be_bytes());
        }
        Some(())
    }

    fn read(port: u16, r: &mut Reader<'_>) -> Result<FileAcceptance, ParseError> {
        let nonce = r.u32("nonce")?;
        let part = r.u8("part")?;
        let parts = r.u8("parts")?;
        if parts > ACCEPT_PARTS_MAX || part >= parts {
            return Err(ParseError::Invalid { what: "part" });
        }
        let have = r.rest().len() / 8;
        if have > ACCEPT_RANGES_MAX {
            return Err(ParseError::TooLong { what: "ranges", max: ACCEPT_RANGES_MAX, have });
        }
        let mut ranges = Vec::with_capacity(have);
        for _ in 0..have {
            let (first, count) = (r.u32("first chunk")?, r.u32("chunks")?);
            if count == 0 || first.checked_add(count).is_none() {
                return Err(ParseError::Invalid { what: "range" });
            }
            ranges.push((first, count));
        }
        Ok(FileAcceptance { port, nonce, part, parts, have: ranges })
    }
}

impl<'a> Nack<'a> {
    fn put(&self, w: &mut Writer<'_>) -> Option<()> {
        let len = self.bitmap.len();
        if len > NACK_CHUNKS_MAX * CHUNK_BITMAP_LEN || !len.is_multiple_of(CHUNK_BITMAP_LEN) {
            return None;
        }
        w.put(&[4]);
        w.put(&self.port.to_be_bytes());
        for field in [self.number, self.floor, self.limit] {
            w.put(&field.to_be_bytes());
        }
        for field in [self.echo, self.hold, self.arrived, self.delay, self.reorder] {
            w.put(&field.to_bytes());
        }
        for field in [self.received, self.duplicates, self.marked, self.first] {
            w.put(&field.to_be_bytes());
        }
        w.put(&(len as u16).to_be_bytes());
        w.put(self.bitmap);
        Some(())
    }

    fn read(port: u16, r: &mut Reader<'a>) -> Result<Nack<'a>, ParseError> {
        let number = r.u32("nack number")?;
        let floor = r.u32("floor")?;
        let limit = r.u32("limit")?;
        let echo = SenderClock::from_bytes(r.array("echo")?);
        let hold = SenderClock::from_bytes(r.array("hold")?);
        let arrived = SenderClock::from_bytes(r.array("arrived")?);
        let delay = SenderClock::from_bytes(r.array("delay")?);
        let reorder = SenderClock::from_bytes(r.array("reorder")?);
        let received = r.u32("received")?;
        let duplicates = r.u32("duplicates")?;
        let marked = r.u32("marked")?;
        let first = r.u32("first chunk")?;
        let len = usize::from(r.u16("bitmap length")?);
        if len > NACK_CHUNKS_MAX * CHUNK_BITMAP_LEN {
            let max = NACK_CHUNKS_MAX * CHUNK_BITMAP_LEN;
            return Err(ParseError::TooLong { what: "bitmap", max, have: len });
        }
        if !len.is_multiple_of(CHUNK_BITMAP_LEN) {
            return Err(ParseError::Invalid { what: "bitmap length" });
        }
        let bitmap = r.bytes("bitmap", len)?;
        Ok(Nack {
            port,
            number,
            floor,
            limit,
            echo,
            hold,
            arrived,
            delay,
            reorder,
            received,
            duplicates,
            marked,
            first,
            bitmap,
        })
    }
}
