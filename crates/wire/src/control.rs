//! Framing of the messages between neighbours (docs/routing.md, "Messages").
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
    ChainMessage, HopPlace, HopProbe, HopStep, ListMessage, ParseError, Reader, RoutingMessage,
    SecretMessage, SizeClass,
};

/// Type byte that ends the sequence: all that follows is padding.
pub const CONTROL_END: u8 = 0;
/// Type byte of a [`Report`].
pub const CONTROL_REPORT: u8 = 1;
/// Type byte of a [`Control::PathChallenge`].
pub const CONTROL_PATH_CHALLENGE: u8 = 2;
/// Type byte of a [`Control::PathResponse`].
pub const CONTROL_PATH_RESPONSE: u8 = 3;
/// Type byte of a [`Control::Goodbye`].
pub const CONTROL_GOODBYE: u8 = 4;
/// Type byte of a [`Control::Clock`].
pub const CONTROL_CLOCK: u8 = 5;
/// Type byte of a [`Control::Twin`].
pub const CONTROL_TWIN: u8 = 6;
/// Type byte of a [`Control::Cover`].
pub const CONTROL_COVER: u8 = 7;
/// In place of the time at which a schedule ends: the sender keeps its own whatever is lost, and
/// asks its neighbour to do so, too.
pub const COVER_KEPT: u64 = u64::MAX;
/// Type byte of a [`Control::Seen`].
pub const CONTROL_SEEN: u8 = 8;
/// Type byte of a [`Control::HopPlace`].
pub const CONTROL_HOP_PLACE: u8 = 9;
/// Type byte of a [`Control::HopStep`].
pub const CONTROL_HOP_STEP: u8 = 10;
/// Type byte of a [`Control::HopProbe`].
pub const CONTROL_HOP_PROBE: u8 = 11;
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

    /// Appends one message if it fits whole; says whether it did. `kind` must not be
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

    /// Zeroes the rest up to the smallest size class that holds what was written, and returns that
    /// class. `None` if `out` is shorter than the class's link body.
    pub fn finish(self) -> Option<SizeClass> {
        let class = SizeClass::for_link_body(self.used)?;
        self.out.get_mut(self.used..class.link_body_len())?.fill(0);
        Some(class)
    }
}

/// What each side of a link tells the other about what arrived, every 100 ms while the link
/// carries traffic. Loss, silence, round trip and clock offset come from it.
///
/// ```text
///  0    1          9         13         17        25         33       37       45
/// +------+----------+---------+----------+---------+----------+--------+--------+
/// | lane | received | highest | interval | sent    | echoed   | hold   | full   |
/// +------+----------+---------+----------+---------+----------+--------+--------+
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Which lane this speaks of, 0 to 15.
    pub lane: u8,
    /// Frames opened on the lane in the life of the session.
    pub received: u64,
    /// Highest counter opened on the lane under the current key.
    pub highest: u32,
    /// Microseconds since the previous report about this lane; 0 in the first.
    pub interval_us: u32,
    /// The reporter's clock when this was sent, in microseconds.
    pub sent_us: u64,
    /// `sent_us` of the newest report that came from the other side; 0 if none did.
    pub echoed_us: u64,
    /// Microseconds between that report's arrival and this one's departure.
    pub hold_us: u32,
    /// Full frames among those received: they tell whether the path carries such.
    pub full: u64,
}

impl Report {
    /// Length of the body in bytes.
    pub const LEN: usize = 45;
    /// Highest lane number.
    pub const LANE_MAX: u8 = 15;

    /// Wire form.
    pub fn to_bytes(self) -> [u8; Report::LEN] {
        let mut b = [0; Report::LEN];
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
    pub fn parse(body: &[u8]) -> Result<Report, ParseError> {
        let mut r = Reader::new(body);
        let lane = r.u8("report lane")?;
        if lane > Report::LANE_MAX {
            return Err(ParseError::Invalid { what: "report lane" });
        }
        let report = Report {
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

/// What a path challenge holds and its answer repeats.
pub type PathToken = [u8; 8];

/// Any message between neighbours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Control {
    /// For the link layer.
    Report(Report),
    /// Asks for an answer, to find out whether the receiver is where this was sent.
    PathChallenge(PathToken),
    /// The answer.
    PathResponse(PathToken),
    /// The sender stops: its sessions are over.
    Goodbye,
    /// For the routing machine.
    Routing(RoutingMessage),
    /// For whoever holds the authority's list.
    List(ListMessage),
    /// For whoever holds the supplements of the list's mandates.
    Chain(ChainMessage),
    /// About the network's secret, whose body [`SecretMessage`] reads.
    Secret(SecretMessage),
    /// The sender's wall clock when this was sent, in milliseconds since 1970.
    Clock(u64),
    /// Tells the receiver that another node makes handshakes with the receiver's key.
    Twin,
    /// When the sender's schedule of this link ends, in seconds since 1970; 0 if it runs.
    Cover(u64),
    /// Where the sender sees the receiver: the endpoint that frames of this link come from.
    Seen(SocketAddr),
    /// Where the sender's addresses hop; none if they don't.
    HopPlace(Option<HopPlace>),
    /// A step of a hop.
    HopStep(HopStep),
    /// Asks whether addresses of a prefix can be used, or answers.
    HopProbe(HopProbe),
}

impl Control {
    /// Decodes one message that [`ControlMessages`] yielded.
    pub fn parse(kind: u8, body: &[u8]) -> Result<Control, ParseError> {
        const TOKEN: &str = "path token";
        let mut reader = Reader::new(body);
        let (what, message) = match kind {
            CONTROL_REPORT => return Report::parse(body).map(Control::Report),
            CONTROL_PATH_CHALLENGE => (TOKEN, Control::PathChallenge(reader.array(TOKEN)?)),
            CONTROL_PATH_RESPONSE => (TOKEN, Control::PathResponse(reader.array(TOKEN)?)),
            CONTROL_GOODBYE => ("goodbye", Control::Goodbye),
            CONTROL_CLOCK => ("clock", Control::Clock(reader.u64("clock")?)),
            CONTROL_TWIN => ("twin", Control::Twin),
            CONTROL_COVER => ("cover", Control::Cover(reader.u64("cover")?)),
            CONTROL_SEEN => ("seen", Control::Seen(read_some_place(&mut reader)?)),
            CONTROL_HOP_PLACE => return HopPlace::parse(body).map(Control::HopPlace),
            CONTROL_HOP_STEP => return HopStep::parse(body).map(Control::HopStep),
            CONTROL_HOP_PROBE => return HopProbe::parse(body).map(Control::HopProbe),
            kind if ListMessage::KINDS.contains(&kind) => {
                return ListMessage::parse(kind, body).map(Control::List);
            }
            kind if ChainMessage::KINDS.contains(&kind) => {
                return ChainMessage::parse(kind, body).map(Control::Chain);
            }
            kind if SecretMessage::KINDS.contains(&kind) => {
                return SecretMessage::parse(kind, body).map(Control::Secret);
            }
            _ => return RoutingMessage::parse(kind, body).map(Control::Routing),
        };
        reader.finish(what)?;
        Ok(message)
    }
}
