//! Framing of the messages between neighbours (docs/design/wire/frame.md).
//!
//! ```text
//! control body = message* padding
//!  0      1         3
//! +------+---------+-----------------+
//! | type | len     | body, len bytes | ...   type 0 ends the sequence; the rest is zero
//! +------+---------+-----------------+
//! ```

use core::net::SocketAddr;

use crate::place::read_some_place;
use crate::{
    ChainMessage, ListMessage, ParseError, Reader, RoutingMessage, SecretMessage,
    ShiftAnnouncement, ShiftProbe, ShiftStep, SizeClass,
};

/// Type byte that ends the sequence: all that follows is padding.
pub const CONTROL_END: u8 = 0;
/// Type byte of a [`LaneReport`].
pub const CONTROL_REPORT: u8 = 1;
/// Type byte of a [`ControlMessage::PathChallenge`].
pub const CONTROL_PATH_CHALLENGE: u8 = 2;
/// Type byte of a [`ControlMessage::PathResponse`].
pub const CONTROL_PATH_RESPONSE: u8 = 3;
/// Type byte of a [`ControlMessage::Goodbye`].
pub const CONTROL_GOODBYE: u8 = 4;
/// Type byte of a [`ControlMessage::Clock`].
pub const CONTROL_CLOCK: u8 = 5;
/// Type byte of a [`ControlMessage::Twin`].
pub const CONTROL_TWIN: u8 = 6;
/// Type byte of a [`ControlMessage::Cover`].
pub const CONTROL_COVER: u8 = 7;
/// Value in place of the time at which a schedule ends: it has no end. The sender continues its
/// schedule whatever is lost, and asks its neighbour to do so too.
pub const COVER_KEPT: u64 = u64::MAX;
/// Type byte of a [`ControlMessage::Seen`].
pub const CONTROL_SEEN: u8 = 8;
/// Type byte of a [`ControlMessage::ShiftPlace`].
pub const CONTROL_SHIFT_PLACE: u8 = 9;
/// Type byte of a [`ControlMessage::ShiftStep`].
pub const CONTROL_SHIFT_STEP: u8 = 10;
/// Type byte of a [`ControlMessage::ShiftProbe`].
pub const CONTROL_SHIFT_PROBE: u8 = 11;
/// Bytes in front of each message: type and length.
pub const CONTROL_HEAD_LEN: usize = 3;
/// Longest body of one message, in bytes: it fills a full frame by itself.
pub const CONTROL_BODY_MAX: usize = SizeClass::Full.link_body_len() - CONTROL_HEAD_LEN;

/// Reads the messages of one control body, as (type, body). Ends after the first error.
#[derive(Clone, Debug)]
pub struct ControlMessages<'a> {
    reader: Reader<'a>,
    done: bool,
}

impl<'a> ControlMessages<'a> {
    /// Starts at the first message of an opened control body, padding included.
    pub fn new(body: &'a [u8]) -> Self {
        ControlMessages { reader: Reader::new(body), done: false }
    }

    fn read(&mut self) -> Result<Option<(u8, &'a [u8])>, ParseError> {
        if self.reader.rest().is_empty() {
            return Ok(None);
        }
        let kind = self.reader.u8("control type")?;
        if kind == CONTROL_END {
            return Ok(None);
        }
        let len = self.reader.u16("control length")?;
        let body = self.reader.bytes("control body", usize::from(len))?;
        Ok(Some((kind, body)))
    }
}

impl<'a> Iterator for ControlMessages<'a> {
    type Item = Result<(u8, &'a [u8]), ParseError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.done {
            return None;
        }
        let item = self.read().transpose();
        self.done = !matches!(item, Some(Ok(_)));
        item
    }
}

/// Packs messages into memory that the caller lends: as many as fit.
#[derive(Debug)]
pub struct ControlWriter<'a> {
    out: &'a mut [u8],
    used: usize,
}

impl<'a> ControlWriter<'a> {
    /// Writes from the start of `out`, which may be as long as a full frame's link body.
    pub fn new(out: &'a mut [u8]) -> Self {
        ControlWriter { out, used: 0 }
    }

    /// Bytes written so far.
    pub fn used(&self) -> usize {
        self.used
    }

    /// Appends one message if it fits whole, and returns true if it did. `kind` must not be
    /// [`CONTROL_END`].
    pub fn push(&mut self, kind: u8, body: &[u8]) -> bool {
        debug_assert_ne!(kind, CONTROL_END);
        let Ok(len) = u16::try_from(body.len()) else { return false };
        let end = self.used + CONTROL_HEAD_LEN + body.len();
        let Some(space) = self.out.get_mut(self.used..end) else { return false };
        space[0] = kind;
        space[1..CONTROL_HEAD_LEN].copy_from_slice(&len.to_be_bytes());
        space[CONTROL_HEAD_LEN..].copy_from_slice(body);
        self.used = end;
        true
    }

    /// Zeroes the rest up to the smallest size class that holds the messages, and returns that
    /// class. None if `out` is shorter than the class's link body.
    pub fn finish(self) -> Option<SizeClass> {
        let class = SizeClass::for_link_body(self.used)?;
        self.out.get_mut(self.used..class.link_body_len())?.fill(0);
        Some(class)
    }
}

/// Report about the frames that arrived. Each side of a link sends one every 30 ms, on average,
/// while the link carries traffic. The receiver derives loss, silence, round trip and clock offset
/// from it.
///
/// ```text
///  0    1          9         13         17        25         33       37       45
/// +------+----------+---------+----------+---------+----------+--------+--------+
/// | lane | received | highest | interval | sent    | echoed   | hold   | full   |
/// +------+----------+---------+----------+---------+----------+--------+--------+
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaneReport {
    /// Lane of the report, 0 to 15.
    pub lane: u8,
    /// Frames opened on the lane since the session began.
    pub received: u64,
    /// Highest counter opened on the lane under the current key.
    pub highest: u32,
    /// Microseconds since the previous report about this lane; 0 in the first.
    pub interval_us: u32,
    /// The reporter's clock when this was sent, in microseconds.
    pub sent_us: u64,
    /// `sent_us` of the newest report from the other side; 0 if none came.
    pub echoed_us: u64,
    /// Microseconds from that report's arrival to this one's departure.
    pub hold_us: u32,
    /// Full frames among those received. A count above 0 shows that the path carries full frames.
    pub full: u64,
}

impl LaneReport {
    /// Length of the body in bytes.
    pub const LEN: usize = 45;
    /// Highest lane number.
    pub const LANE_MAX: u8 = 15;

    /// Wire form.
    pub fn to_bytes(self) -> [u8; LaneReport::LEN] {
        let mut b = [0; LaneReport::LEN];
        b[0] = self.lane;
        b[1..9].copy_from_slice(&self.received.to_be_bytes());
        b[9..13].copy_from_slice(&self.highest.to_be_bytes());
        b[13..17].copy_from_slice(&self.interval_us.to_be_bytes());
        b[17..25].copy_from_slice(&self.sent_us.to_be_bytes());
        b[25..33].copy_from_slice(&self.echoed_us.to_be_bytes());
        b[33..37].copy_from_slice(&self.hold_us.to_be_bytes());
        b[37..45].copy_from_slice(&self.full.to_be_bytes());
        b
    }

    /// From the wire form.
    pub fn parse(body: &[u8]) -> Result<LaneReport, ParseError> {
        let mut r = Reader::new(body);
        let lane = r.u8("report lane")?;
        if lane > LaneReport::LANE_MAX {
            return Err(ParseError::Invalid { what: "report lane" });
        }
        let report = LaneReport {
            lane,
            received: r.u64("report received")?,
            highest: r.u32("report highest")?,
            interval_us: r.u32("report interval")?,
            sent_us: r.u64("report sent")?,
            echoed_us: r.u64("report echoed")?,
            hold_us: r.u32("report hold")?,
            full: r.u64("report full frames")?,
        };
        r.finish("report")?;
        Ok(report)
    }
}

/// Random bytes of a path challenge, which the answer repeats.
pub type PathToken = [u8; 8];

/// Any message between neighbours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ControlMessage {
    Report(LaneReport),
    /// Asks for an answer, to find out whether the receiver is at the endpoint this was sent to.
    PathChallenge(PathToken),
    /// Answer to a path challenge.
    PathResponse(PathToken),
    /// The sender stops, and its sessions end.
    Goodbye,
    Routing(RoutingMessage),
    List(ListMessage),
    /// Message about supplements of the list's mandates.
    Chain(ChainMessage),
    /// Message about the network's secret.
    Secret(SecretMessage),
    /// The sender's wall clock when this was sent, in milliseconds since 1970.
    Clock(u64),
    /// Warns the receiver that another node makes handshakes with the receiver's key.
    Twin,
    /// Time at which the sender's schedule of this link ends, in seconds since 1970; 0 while it
    /// runs.
    Cover(u64),
    /// Endpoint at which the sender sees the receiver: the source of this link's frames.
    Seen(SocketAddr),
    /// Prefix, port and interval of the sender's changing addresses; none if its addresses do not
    /// change.
    ShiftPlace(Option<ShiftAnnouncement>),
    /// Step of a change of address.
    ShiftStep(ShiftStep),
    /// Probe of an address under a prefix, or the answer.
    ShiftProbe(ShiftProbe),
}

impl ControlMessage {
    /// Decodes one message that [`ControlMessages`] yielded.
    pub fn parse(kind: u8, body: &[u8]) -> Result<ControlMessage, ParseError> {
        const TOKEN: &str = "path token";
        let mut reader = Reader::new(body);
        let (what, message) = match kind {
            CONTROL_REPORT => return LaneReport::parse(body).map(ControlMessage::Report),
            CONTROL_PATH_CHALLENGE => (TOKEN, ControlMessage::PathChallenge(reader.array(TOKEN)?)),
            CONTROL_PATH_RESPONSE => (TOKEN, ControlMessage::PathResponse(reader.array(TOKEN)?)),
            CONTROL_GOODBYE => ("goodbye", ControlMessage::Goodbye),
            CONTROL_CLOCK => ("clock", ControlMessage::Clock(reader.u64("clock")?)),
            CONTROL_TWIN => ("twin", ControlMessage::Twin),
            CONTROL_COVER => ("cover", ControlMessage::Cover(reader.u64("cover")?)),
            CONTROL_SEEN => ("seen", ControlMessage::Seen(read_some_place(&mut reader)?)),
            CONTROL_SHIFT_PLACE => {
                return ShiftAnnouncement::parse(body).map(ControlMessage::ShiftPlace);
            }
            CONTROL_SHIFT_STEP => return ShiftStep::parse(body).map(ControlMessage::ShiftStep),
            CONTROL_SHIFT_PROBE => return ShiftProbe::parse(body).map(ControlMessage::ShiftProbe),
            kind if ListMessage::KINDS.contains(&kind) => {
                return ListMessage::parse(kind, body).map(ControlMessage::List);
            }
            kind if ChainMessage::KINDS.contains(&kind) => {
                return ChainMessage::parse(kind, body).map(ControlMessage::Chain);
            }
            kind if SecretMessage::KINDS.contains(&kind) => {
                return SecretMessage::parse(kind, body).map(ControlMessage::Secret);
            }
            _ => return RoutingMessage::parse(kind, body).map(ControlMessage::Routing),
        };
        reader.finish(what)?;
        Ok(message)
    }
}
