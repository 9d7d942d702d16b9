//! Message by which two hosts agree on a direct link, and the levels of protection of such a link
//! (docs/design/wire/direct.md).

use core::net::SocketAddr;

use crate::meeting::Meeting;
use crate::place::{place_bytes, read_place};
use crate::{EdgeKind, ParseError, Reader};

/// Protection of the cells of a direct link. A weaker level compares as greater.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Level {
    /// Encrypted and authenticated: the only level of all other links and of host pairs.
    #[default]
    Encrypt = 0,
    /// Anyone who watches the wire can read cells. A changed or forged cell is dropped.
    Authenticate = 1,
    /// Anyone on the wire can read and change cells.
    None = 2,
}

impl Level {
    /// All levels, the strongest first.
    pub const ALL: [Level; 3] = [Level::Encrypt, Level::Authenticate, Level::None];

    /// From the byte on the wire.
    pub const fn from_byte(byte: u8) -> Result<Level, ParseError> {
        match byte {
            0 => Ok(Level::Encrypt),
            1 => Ok(Level::Authenticate),
            2 => Ok(Level::None),
            _ => Err(ParseError::Unknown { what: "level", value: byte as u32 }),
        }
    }

    /// Name for people and configurations.
    pub const fn name(self) -> &'static str {
        match self {
            Level::Encrypt => "encrypt",
            Level::Authenticate => "authenticate",
            Level::None => "none",
        }
    }
}

/// Purpose of a [`DirectMessage`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum DirectKind {
    /// Asks for a direct link. A host that does not want one sends no answer.
    Ask = 0,
    /// Accepts: this host wants the link too.
    Yes = 1,
    /// Ends the link: it is not used any more.
    End = 2,
    /// Tells private addresses to a host that is seen at the same public address.
    Near = 3,
}

/// End-to-end message between two hosts, about their direct link.
///
/// ```text
///  0      1      2       3      4        5         21     23      24
/// +------+------+-------+------+--------+---------+------+-------+----------------+
/// | kind | what | level | keep | family | address | port | count | groups, 8 each |
/// +------+------+-------+------+--------+---------+------+-------+----------------+
///  ...
/// +---------+---------+-------+------------------------------------------------+
/// | meeting | mapping | count | candidates: kind, family, address, port [20]   |
/// +---------+---------+-------+------------------------------------------------+
/// ```
///
/// Zeroes in place of the second row mean that the message has no meeting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectMessage {
    pub kind: DirectKind,
    /// The weakest level that the sender accepts.
    pub level: Level,
    /// True if the sender keeps the link while it is idle.
    pub keep: bool,
    /// Endpoint at which the sender can be called, if it has one.
    pub endpoint: Option<SocketAddr>,
    /// Hashed names of the sender's security groups.
    pub groups: Vec<[u8; 8]>,
    /// Endpoints at which the sender may be, if it can't be called.
    pub meeting: Option<Meeting>,
}

impl DirectMessage {
    /// Most groups, so that a message without a meeting fits a small cell.
    pub const GROUPS_MAX: usize = 13;
    /// The longest message in bytes, kind byte included.
    pub const LEN_MAX: usize = Self::SHORT_MAX + Meeting::LEN_MAX;
    /// The longest message without a meeting.
    const SHORT_MAX: usize = 24 + 8 * Self::GROUPS_MAX;

    /// Reads a plaintext whose kind byte is [`EdgeKind::Direct`].
    pub fn parse(body: &[u8]) -> Result<DirectMessage, ParseError> {
        let mut reader = Reader::new(body);
        reader.u8("kind")?;
        let kind = match reader.u8("direct message")? {
            0 => DirectKind::Ask,
            1 => DirectKind::Yes,
            2 => DirectKind::End,
            3 => DirectKind::Near,
            value => {
                return Err(ParseError::Unknown { what: "direct message", value: value.into() });
            }
        };
        let level = Level::from_byte(reader.u8("level")?)?;
        let keep = match reader.u8("keep")? {
            0 => false,
            1 => true,
            _ => return Err(ParseError::Invalid { what: "keep" }),
        };
        let endpoint = read_place(&mut reader)?;
        let count = usize::from(reader.u8("groups")?);
        if count > Self::GROUPS_MAX {
            let (what, max) = ("groups", Self::GROUPS_MAX);
            return Err(ParseError::TooLong { what, max, have: count });
        }
        let groups = (0..count).map(|_| reader.array("group")).collect::<Result<_, _>>()?;
        let is_zero = |reader: &Reader<'_>| reader.rest().iter().all(|&byte| byte == 0);
        let meeting = match is_zero(&reader) {
            true => None,
            false => Some(Meeting::parse(&mut reader)?),
        };
        if !is_zero(&reader) {
            return Err(ParseError::Invalid { what: "padding" });
        }
        Ok(DirectMessage { kind, level, keep, endpoint, groups, meeting })
    }

    /// Wire form, without padding. Groups beyond [`Self::GROUPS_MAX`] are left out.
    pub fn to_bytes(&self) -> Vec<u8> {
        let groups = &self.groups[..self.groups.len().min(Self::GROUPS_MAX)];
        let keep = u8::from(self.keep);
        let mut out = vec![EdgeKind::Direct as u8, self.kind as u8, self.level as u8, keep];
        out.extend_from_slice(&place_bytes(self.endpoint));
        out.push(groups.len() as u8);
        out.extend(groups.iter().flatten());
        if let Some(meeting) = &self.meeting {
            meeting.encode(&mut out);
        }
        out
    }
}

const _: () = assert!(DirectMessage::SHORT_MAX == crate::SizeClass::Small.edge_len());
const _: () = assert!(DirectMessage::LEN_MAX <= crate::SizeClass::Medium.edge_len());
