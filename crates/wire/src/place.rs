//! Endpoints as bytes, the control message `Seen` (docs/design/wire/frame.md), and the messages of
//! mirrors (section 8), which tell a node its public endpoint.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::{ParseError, Reader, SizeClass};

/// Length of an endpoint in bytes: family, address, port.
pub const PLACE_LEN: usize = 19;
/// Length of each frame to or from a mirror.
pub const MIRROR_LEN: usize = SizeClass::Small.frame_len();

/// Mapping behaviour of the translator in front of a host (RFC 4787 section 4.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Mapping {
    /// No peer, or only one, has reported the host's endpoint.
    #[default]
    Unknown = 0,
    /// All peers see the host at one endpoint: no translator, or endpoint-independent mapping.
    Easy = 1,
    /// Each peer sees the host at another endpoint.
    Hard = 2,
}

impl Mapping {
    /// Name for people.
    pub const fn name(self) -> &'static str {
        match self {
            Mapping::Unknown => "unknown",
            Mapping::Easy => "easy",
            Mapping::Hard => "hard",
        }
    }
}

/// True for addresses that many networks use independently (RFC 1918, 3927, 4193, 4291), and for
/// those that a provider's translator gives to customers (RFC 6598).
pub fn is_private(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => {
            let [a, b, ..] = ip.octets();
            ip.is_private() || ip.is_link_local() || (a == 100 && b & 0xc0 == 64)
        }
        IpAddr::V6(ip) => ip.is_unique_local() || ip.is_unicast_link_local(),
    }
}

const TYPE_MIRROR_REQUEST: u8 = 5;
const TYPE_MIRROR_ANSWER: u8 = 6;

/// An endpoint as bytes; 19 zeroes if there is none.
///
/// ```text
///  0        1         17     19
/// +--------+---------+------+
/// | family | address | port |    family: 0 none, 4 IPv4, 6 IPv6
/// +--------+---------+------+
/// ```
pub fn place_bytes(place: Option<SocketAddr>) -> [u8; PLACE_LEN] {
    let mut out = [0; PLACE_LEN];
    let Some(place) = place else { return out };
    match place.ip() {
        IpAddr::V4(ip) => {
            out[0] = 4;
            out[1..5].copy_from_slice(&ip.octets());
        }
        IpAddr::V6(ip) => {
            out[0] = 6;
            out[1..17].copy_from_slice(&ip.octets());
        }
    }
    out[17..].copy_from_slice(&place.port().to_be_bytes());
    out
}

/// Reads an endpoint. Refuses addresses that name no single machine (unspecified, multicast,
/// broadcast) and port 0.
pub fn read_place(reader: &mut Reader<'_>) -> Result<Option<SocketAddr>, ParseError> {
    let family = reader.u8("family")?;
    let address: [u8; 16] = reader.array("address")?;
    let port = reader.u16("port")?;
    let [a, b, c, d, rest @ ..] = address;
    let ip = match family {
        0 if address == [0; 16] && port == 0 => return Ok(None),
        4 if rest == [0; 12] => IpAddr::V4(Ipv4Addr::new(a, b, c, d)),
        6 => IpAddr::V6(Ipv6Addr::from(address)),
        _ => return Err(ParseError::Invalid { what: "endpoint" }),
    };
    let broadcast = ip == IpAddr::V4(Ipv4Addr::BROADCAST);
    if port == 0 || ip.is_unspecified() || ip.is_multicast() || broadcast {
        return Err(ParseError::Invalid { what: "endpoint" });
    }
    Ok(Some(SocketAddr::new(ip, port)))
}

/// Reads an endpoint; refuses its absence.
pub(crate) fn read_some_place(reader: &mut Reader<'_>) -> Result<SocketAddr, ParseError> {
    read_place(reader)?.ok_or(ParseError::Invalid { what: "endpoint" })
}

/// The opened body of a request to a mirror.
///
/// ```text
///  0      1         2            6
/// +------+---------+------------+--------+
/// | 5    | version | shown time | zeroes |
/// +------+---------+------------+--------+
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MirrorRequest {
    /// Lower four bytes of the asker's wall clock in seconds since 1970, so that old copies of a
    /// request get no answer.
    pub shown_s: u32,
}

/// The opened body of a mirror's answer.
///
/// ```text
///  0      1         2      21
/// +------+---------+------+--------+
/// | 6    | version | seen | zeroes |
/// +------+---------+------+--------+
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MirrorAnswer {
    /// Endpoint that the request came from.
    pub seen: SocketAddr,
}

/// Reads type and version.
fn head(reader: &mut Reader<'_>, kind: u8) -> Result<(), ParseError> {
    match reader.u8("mirror type")? {
        found if found == kind => {}
        found => return Err(ParseError::Unknown { what: "mirror type", value: found.into() }),
    }
    match reader.u8("version")? {
        crate::VERSION => Ok(()),
        other => Err(ParseError::Unknown { what: "version", value: other.into() }),
    }
}

/// Refuses padding that isn't zero: it could carry hidden bytes.
fn zero_rest(reader: &Reader<'_>) -> Result<(), ParseError> {
    match reader.rest().iter().all(|&byte| byte == 0) {
        true => Ok(()),
        false => Err(ParseError::Invalid { what: "mirror padding" }),
    }
}

impl MirrorRequest {
    /// Length without padding.
    pub const LEN: usize = 6;

    /// Reads an opened body. The error `Unknown { what: "version", .. }` means another wire
    /// version.
    pub fn parse(body: &[u8]) -> Result<MirrorRequest, ParseError> {
        let mut reader = Reader::new(body);
        head(&mut reader, TYPE_MIRROR_REQUEST)?;
        let shown_s = reader.u32("shown time")?;
        zero_rest(&reader)?;
        Ok(MirrorRequest { shown_s })
    }

    /// Wire form, without padding.
    pub fn to_bytes(self) -> [u8; Self::LEN] {
        let [a, b, c, d] = self.shown_s.to_be_bytes();
        [TYPE_MIRROR_REQUEST, crate::VERSION, a, b, c, d]
    }
}

impl MirrorAnswer {
    /// Length without padding.
    pub const LEN: usize = 2 + PLACE_LEN;

    /// Reads an opened body. The error `Unknown { what: "version", .. }` means another wire
    /// version.
    pub fn parse(body: &[u8]) -> Result<MirrorAnswer, ParseError> {
        let mut reader = Reader::new(body);
        head(&mut reader, TYPE_MIRROR_ANSWER)?;
        let seen = read_some_place(&mut reader)?;
        zero_rest(&reader)?;
        Ok(MirrorAnswer { seen })
    }

    /// Wire form, without padding.
    pub fn to_bytes(self) -> [u8; Self::LEN] {
        let mut out = [0; Self::LEN];
        out[..2].copy_from_slice(&[TYPE_MIRROR_ANSWER, crate::VERSION]);
        out[2..].copy_from_slice(&place_bytes(Some(self.seen)));
        out
    }
}
