//! What two hosts agree on before they speak without routers: how well their traffic is sealed
//! (docs/wire.md section 11), and the message by which they agree (section 6).

use core::net::SocketAddr;

use crate::meeting::Meeting;
use crate::place::{place_bytes, read_place};
use crate::{EdgeKind, ParseError, Reader};

/// How the cells of a direct link are protected. A weaker level compares as greater.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Level {
    /// Encrypted and authenticated: the only level of every other link and of host pairs.
    #[default]
    Encrypt = 0,
    /// Readable by whoever watches the wire; a changed or forged cell is dropped.
    Authenticate = 1,
    /// Readable and changeable by whoever is on the wire.
    None = 2,
}

impl Level {
    /// All of them, the strongest first.
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

/// What a [`DirectMessage`] is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum DirectKind {
    /// Asks for a direct link. A host that wants none does not answer.
    Ask = 0,
    /// The answer: this host wants the link too.
    Yes = 1,
    /// The link is not used any more and ends.
    End = 2,
    /// Private addresses, for a host that is seen at the same address.
    Near = 3,
}

/// Between two hosts, end to end: about a direct link of the two.
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
/// Zeroes in the place of the second row say that there is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectMessage {
    /// What it is for.
    pub kind: DirectKind,
    /// The weakest level that the sender takes.
    pub level: Level,
    /// The sender keeps the link when it is idle.
    pub keep: bool,
    /// Where the sender can be called, if anywhere.
    pub endpoint: Option<SocketAddr>,
    /// Names of the sender's security groups, hashed.
    pub groups: Vec<[u8; 8]>,
    /// Where the sender may be, if it can't be called.
    pub meeting: Option<Meeting>,
}

impl DirectMessage {
    /// Groups at most: a message without a meeting fits a small cell.
    pub const GROUPS_MAX: usize = 13;
    /// The longest message in bytes, kind byte included.
    pub const LEN_MAX: usize = Self::SHORT_MAX + Meeting::LEN_MAX;
    /// The longest without a meeting.
    const SHORT_MAX: usize = 24 + 8 * Self::GROUPS_MAX;

    /// Reads a plaintext whose kind byte said that it is one.
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
