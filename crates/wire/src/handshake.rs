//! Content inside the seal of a handshake frame (docs/design/wire/session.md).

use crate::{Level, ParseError, Reader};

/// Offsets and lengths of handshake frames, counted from their first byte.
pub mod shake {
    use crate::{SizeClass, TAG_LEN};

    /// Length of the random bytes that open a request, and of the token that opens a reply.
    pub const LEAD_LEN: usize = 16;
    /// Random bytes after a reply's token.
    pub const SALT_LEN: usize = 16;
    /// Length of a handshake frame between neighbours.
    pub const LINK_LEN: usize = SizeClass::Full.frame_len();
    /// Length of a handshake between hosts: it fills the payload of a full cell.
    pub const EDGE_LEN: usize = SizeClass::Full.cell_len();
    /// Length of a cookie reply between neighbours.
    pub const LINK_COOKIE_LEN: usize = SizeClass::Small.frame_len();
    /// Length of a cookie reply between hosts: the payload of a small cell.
    pub const EDGE_COOKIE_LEN: usize = SizeClass::Small.cell_len();
    /// Start of the sealed body of a request.
    pub const REQUEST_AT: usize = LEAD_LEN;
    /// Start of the sealed body of a reply.
    pub const REPLY_AT: usize = LEAD_LEN + SALT_LEN;
    /// Length of a cookie.
    pub const COOKIE_LEN: usize = 12;
    /// Length of [`super::HandshakeRequest::shown_s`].
    pub const SHOWN_LEN: usize = 4;
    /// Length of the first Noise message: e, e1 and s with their tags, the payload with its tag.
    pub const FIRST_LEN: usize =
        32 + (1_184 + TAG_LEN) + (32 + TAG_LEN) + super::FirstPayload::LEN + TAG_LEN;
    /// Length of the second Noise message: e, ekem1 with its tag, the payload with its tag.
    pub const SECOND_LEN: usize = 32 + (1_088 + TAG_LEN) + super::SecondPayload::LEN + TAG_LEN;

    /// Parts of a handshake between neighbours on a path that is too narrow for full frames.
    pub const PARTS: usize = 3;
    /// Bytes of the handshake frame in each part.
    pub const PART_LEN: usize = LINK_LEN / PARTS;

    const _: () = assert!(PART_LEN * PARTS == LINK_LEN);
    const _: () = assert!(REQUEST_AT + 11 + PART_LEN + TAG_LEN <= SizeClass::Medium.frame_len());
    const _: () =
        assert!(REQUEST_AT + 2 + COOKIE_LEN + SHOWN_LEN + FIRST_LEN + TAG_LEN <= EDGE_LEN);
    const _: () = assert!(REPLY_AT + 2 + SECOND_LEN + TAG_LEN <= EDGE_LEN);
    const _: () = assert!(REPLY_AT + 2 + COOKIE_LEN + TAG_LEN <= EDGE_COOKIE_LEN);
}

const TYPE_REQUEST: u8 = 1;
const TYPE_RESPONSE: u8 = 2;
const TYPE_COOKIE: u8 = 3;
const TYPE_PART: u8 = 4;
const TYPE_REMOVED: u8 = 8;

/// Refuses padding that isn't zero: no later check covers it, so it could carry hidden bytes.
fn zero_rest(reader: Reader<'_>) -> Result<(), ParseError> {
    match reader.rest().iter().all(|&b| b == 0) {
        true => Ok(()),
        false => Err(ParseError::Invalid { what: "handshake padding" }),
    }
}

fn version(reader: &mut Reader<'_>) -> Result<(), ParseError> {
    match reader.u8("version")? {
        crate::VERSION => Ok(()),
        other => Err(ParseError::Unknown { what: "version", value: other.into() }),
    }
}

/// Copies `parts` one after the other to the start of `out` and zeroes the rest.
fn put(out: &mut [u8], parts: &[&[u8]]) -> Result<(), ParseError> {
    let need = parts.iter().map(|p| p.len()).sum();
    let have = out.len();
    let short = ParseError::TooShort { what: "handshake frame", need, have };
    let (head, rest) = out.split_at_mut_checked(need).ok_or(short)?;
    let mut at = 0;
    for part in parts {
        head[at..at + part.len()].copy_from_slice(part);
        at += part.len();
    }
    rest.fill(0);
    Ok(())
}

/// The opened body of a request.
///
/// ```text
///  0      1         2        14           18                    1368
/// +------+---------+--------+------------+---------------------+---------+
/// | 1    | version | cookie | shown time | first Noise message | zeroes  |
/// +------+---------+--------+------------+---------------------+---------+
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HandshakeRequest<'a> {
    /// The cookie from a cookie reply, or zeroes.
    pub cookie: [u8; shake::COOKIE_LEN],
    /// Seconds of the timestamp inside the Noise message. Any holder of the network's secret can
    /// read them here, so that old requests cost no public-key work.
    pub shown_s: u32,
    /// The first Noise message.
    pub noise: &'a [u8; shake::FIRST_LEN],
}

impl<'a> HandshakeRequest<'a> {
    /// Reads an opened body. The error `Unknown { what: "version", .. }` means another wire
    /// version.
    pub fn parse(body: &'a [u8]) -> Result<HandshakeRequest<'a>, ParseError> {
        let mut reader = Reader::new(body);
        let kind = reader.u8("handshake type")?;
        if kind != TYPE_REQUEST {
            return Err(ParseError::Unknown { what: "handshake type", value: kind.into() });
        }
        version(&mut reader)?;
        let cookie = reader.array("cookie")?;
        let shown_s = reader.u32("shown time")?;
        let noise = reader.bytes("first noise message", shake::FIRST_LEN)?;
        zero_rest(reader)?;
        let wrong = ParseError::Invalid { what: "first noise message" };
        Ok(HandshakeRequest { cookie, shown_s, noise: noise.try_into().map_err(|_| wrong)? })
    }

    /// Writes the body and fills the rest of `out` with zeroes.
    pub fn write(&self, out: &mut [u8]) -> Result<(), ParseError> {
        let shown = self.shown_s.to_be_bytes();
        put(out, &[&[TYPE_REQUEST, crate::VERSION], &self.cookie, &shown, self.noise])
    }
}

/// The opened body of a reply.
///
/// ```text
///  0      1         2
/// +------+---------+----------------------+---------+
/// | 2    | version | second Noise message | zeroes  |
/// +------+---------+----------------------+---------+
/// | 3    | version | cookie 12            | zeroes  |
/// +------+---------+----------------------+---------+
/// | 8    | version | reason 1 | day 4     | zeroes  |
/// +------+---------+----------------------+---------+
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandshakeReply<'a> {
    /// Second Noise message: the responder accepts.
    Response(&'a [u8; shake::SECOND_LEN]),
    /// The responder is under load: the initiator must ask again with this cookie.
    Cookie([u8; shake::COOKIE_LEN]),
    /// The initiator is a former member.
    Removed(Removal),
}

impl<'a> HandshakeReply<'a> {
    /// Reads an opened body.
    pub fn parse(body: &'a [u8]) -> Result<HandshakeReply<'a>, ParseError> {
        let mut reader = Reader::new(body);
        let kind = reader.u8("handshake type")?;
        version(&mut reader)?;
        let reply = match kind {
            TYPE_RESPONSE => {
                let noise = reader.bytes("second noise message", shake::SECOND_LEN)?;
                let wrong = ParseError::Invalid { what: "second noise message" };
                HandshakeReply::Response(noise.try_into().map_err(|_| wrong)?)
            }
            TYPE_COOKIE => HandshakeReply::Cookie(reader.array("cookie")?),
            TYPE_REMOVED => HandshakeReply::Removed(Removal {
                reason: RemovalReason::from_byte(reader.u8("removal reason")?)?,
                day: reader.u32("removal day")?,
            }),
            _ => return Err(ParseError::Unknown { what: "handshake type", value: kind.into() }),
        };
        zero_rest(reader)?;
        Ok(reply)
    }

    /// Writes the body and fills the rest of `out` with zeroes.
    pub fn write(&self, out: &mut [u8]) -> Result<(), ParseError> {
        match self {
            HandshakeReply::Response(noise) => {
                put(out, &[&[TYPE_RESPONSE, crate::VERSION], *noise])
            }
            HandshakeReply::Cookie(cookie) => put(out, &[&[TYPE_COOKIE, crate::VERSION], cookie]),
            HandshakeReply::Removed(Removal { reason, day }) => {
                let head = [TYPE_REMOVED, crate::VERSION, *reason as u8];
                put(out, &[&head[..], &day.to_be_bytes()])
            }
        }
    }
}

/// Reason why a former member is no member any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RemovalReason {
    /// A registrar removed the member.
    Registrar = 1,
    /// The authority's list has the member no more.
    Authority = 2,
}

impl RemovalReason {
    fn from_byte(byte: u8) -> Result<RemovalReason, ParseError> {
        match byte {
            1 => Ok(RemovalReason::Registrar),
            2 => Ok(RemovalReason::Authority),
            _ => Err(ParseError::Unknown { what: "removal reason", value: byte.into() }),
        }
    }
}

/// End of a membership before its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Removal {
    pub reason: RemovalReason,
    /// Days since 1970 of the supplement or list that ended the membership.
    pub day: u32,
}

/// The opened body of a part of a handshake frame.
///
/// ```text
///  0      1         2        10      11              491
/// +------+---------+--------+-------+---------------+---------+
/// | 4    | version | number | place | 480 bytes     | zeroes  |
/// +------+---------+--------+-------+---------------+---------+
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HandshakePart<'a> {
    /// Random; equal in all parts of a frame.
    pub number: u64,
    /// Position of the part, counted from 0.
    pub place: u8,
    /// Piece of the frame.
    pub bytes: &'a [u8; shake::PART_LEN],
}

impl<'a> HandshakePart<'a> {
    /// Reads an opened body.
    pub fn parse(body: &'a [u8]) -> Result<HandshakePart<'a>, ParseError> {
        let mut reader = Reader::new(body);
        let kind = reader.u8("handshake type")?;
        if kind != TYPE_PART {
            return Err(ParseError::Unknown { what: "handshake type", value: kind.into() });
        }
        version(&mut reader)?;
        let number = reader.u64("part number")?;
        let place = reader.u8("part place")?;
        if usize::from(place) >= shake::PARTS {
            return Err(ParseError::Invalid { what: "part place" });
        }
        let bytes = reader.bytes("part", shake::PART_LEN)?;
        zero_rest(reader)?;
        let wrong = ParseError::Invalid { what: "part" };
        Ok(HandshakePart { number, place, bytes: bytes.try_into().map_err(|_| wrong)? })
    }

    /// Writes the body and fills the rest of `out` with zeroes.
    pub fn write(&self, out: &mut [u8]) -> Result<(), ParseError> {
        let number = self.number.to_be_bytes();
        put(out, &[&[TYPE_PART, crate::VERSION], &number, &[self.place], self.bytes])
    }
}

/// Payload of the first Noise message: what the initiator offers.
///
/// ```text
///  0       4          36            44          52       53           54
/// +-------+----------+-------------+-----------+--------+------------+
/// | index | mask key | incarnation | timestamp | level, | processor, |
/// |       |          |             |           | suites | lanes      |
/// +-------+----------+-------------+-----------+--------+------------+
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct FirstPayload {
    /// Index (lane 0) by which the initiator will find the session.
    pub index: u32,
    /// The initiator's mask key, used for all indexes that it receives.
    pub mask_key: [u8; 32],
    /// Drawn at random when the initiator's process started.
    pub incarnation: u64,
    /// Grows with each request of one incarnation; close to Unix time in milliseconds.
    pub timestamp: u64,
    /// The weakest level that the initiator accepts (two upper bits of its byte).
    pub weakest: Level,
    /// Suites that the initiator accepts (six lower bits): bit n - 1 stands for suite n.
    pub suites: u8,
    /// The class of the initiator's processor, below 16 (upper half of its byte).
    pub processor: u8,
    /// Lanes that the initiator offers, 1 to 16 (lower half, minus one).
    pub lanes: u8,
}

impl FirstPayload {
    /// Length in bytes.
    pub const LEN: usize = 54;

    /// Reads and checks the payload.
    pub fn parse(bytes: &[u8]) -> Result<FirstPayload, ParseError> {
        let mut reader = Reader::new(bytes);
        let (index, mask_key) = (reader.u32("index")?, reader.array("mask key")?);
        let (incarnation, timestamp) = (reader.u64("incarnation")?, reader.u64("timestamp")?);
        let byte = reader.u8("level and suites")?;
        let (weakest, suites) = (Level::from_byte(byte >> 6)?, byte & 0x3f);
        let (processor, lanes) = processor_and_lanes(&mut reader)?;
        let payload = FirstPayload {
            index,
            mask_key,
            incarnation,
            timestamp,
            weakest,
            suites,
            processor,
            lanes,
        };
        reader.finish("first payload")?;
        Ok(payload)
    }

    /// The timestamp in seconds, as a request repeats it outside the Noise message.
    pub fn shown_s(&self) -> u32 {
        (self.timestamp / 1_000) as u32
    }

    /// Wire form.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut out = [0; Self::LEN];
        out[..4].copy_from_slice(&self.index.to_be_bytes());
        out[4..36].copy_from_slice(&self.mask_key);
        out[36..44].copy_from_slice(&self.incarnation.to_be_bytes());
        out[44..52].copy_from_slice(&self.timestamp.to_be_bytes());
        out[52] = (self.weakest as u8) << 6 | (self.suites & 0x3f);
        out[53] = self.processor << 4 | (self.lanes.wrapping_sub(1) & 0x0f);
        out
    }
}

impl core::fmt::Debug for FirstPayload {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("FirstPayload(hidden)")
    }
}

/// Payload of the second Noise message: what the responder chose.
///
/// ```text
///  0       4          36       37           38       39
/// +-------+----------+--------+------------+--------+
/// | index | mask key | level, | processor, | suites |
/// |       |          | suite  | lanes      | taken  |
/// +-------+----------+--------+------------+--------+
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct SecondPayload {
    /// Index (lane 0) by which the responder will find the session.
    pub index: u32,
    /// The responder's mask key, used for all indexes that it receives.
    pub mask_key: [u8; 32],
    /// The level of the session (upper half of its byte).
    pub level: Level,
    /// The suite of the session, below 16: 1 AES-256-GCM, 2 ChaCha20-Poly1305, 3 AEGIS-256X4,
    /// 4 AEGIS-256, 5 AEGIS-256X2.
    pub suite: u8,
    /// The class of the responder's processor, below 16 (upper half of its byte).
    pub processor: u8,
    /// Lanes of the session, 1 to the number that the initiator offered (lower half, minus one).
    pub lanes: u8,
    /// Suites that the responder accepts, so that the initiator can check the choice.
    pub suites: u8,
}

impl SecondPayload {
    /// Length in bytes.
    pub const LEN: usize = 39;

    /// Reads and checks the payload.
    pub fn parse(bytes: &[u8]) -> Result<SecondPayload, ParseError> {
        let mut reader = Reader::new(bytes);
        let (index, mask_key) = (reader.u32("index")?, reader.array("mask key")?);
        let byte = reader.u8("level and suite")?;
        let (level, suite) = (Level::from_byte(byte >> 4)?, byte & 0x0f);
        let (processor, lanes) = processor_and_lanes(&mut reader)?;
        let suites = reader.u8("suites")?;
        let payload = SecondPayload { index, mask_key, level, suite, processor, lanes, suites };
        reader.finish("second payload")?;
        Ok(payload)
    }

    /// Wire form.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut out = [0; Self::LEN];
        out[..4].copy_from_slice(&self.index.to_be_bytes());
        out[4..36].copy_from_slice(&self.mask_key);
        out[36] = (self.level as u8) << 4 | (self.suite & 0x0f);
        out[37] = self.processor << 4 | (self.lanes.wrapping_sub(1) & 0x0f);
        out[38] = self.suites;
        out
    }
}

impl core::fmt::Debug for SecondPayload {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("SecondPayload(hidden)")
    }
}

/// Reads a byte whose halves are a processor class and a number of lanes minus one.
fn processor_and_lanes(reader: &mut Reader<'_>) -> Result<(u8, u8), ParseError> {
    let byte = reader.u8("processor and lanes")?;
    Ok((byte >> 4, (byte & 0x0f) + 1))
}
