//! Parsing and validation of a packet's headers.

use core::net::{Ipv4Addr, Ipv6Addr};

use shoal_wire::DropReason;

pub(crate) const TCP: u8 = 6;
pub(crate) const UDP: u8 = 17;
pub(crate) const ICMP: u8 = 1;
pub(crate) const ICMPV6: u8 = 58;

pub(crate) const IPV4_LEN: usize = 20;
pub(crate) const IPV6_LEN: usize = 40;

/// Protocol number of the IPv6 fragment header.
const FRAGMENT: u8 = 44;
/// Length of the IPv6 fragment header in bytes.
const FRAGMENT_LEN: usize = 8;
/// Minimum payload of a first fragment in bytes, for TCP and for other protocols. TCP needs a
/// header without options, others their ports or types (RFC 1858, RFC 7112).
const FIRST_MIN: (usize, usize) = (20, 8);
/// Maximum length of a datagram in bytes: for IPv6 after its IP headers, for IPv4 including them.
const DATAGRAM_MAX: usize = 65_535;

/// Maximum number of extension headers; real packets have none or one.
const EXTENSIONS_MAX: usize = 4;
/// Maximum length of extension headers in bytes; most networks drop longer chains (RFC 9098 section
/// 6).
const EXTENSION_BYTES_MAX: usize = 256;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fragment {
    /// Identification of the datagram; 16 bits in IPv4.
    pub id: u32,
    /// Offset of the fragment in the datagram; 0 in the fragment with the ports.
    pub at: u16,
    /// Offset behind the last byte of the fragment.
    pub end: u16,
    /// True if more fragments follow.
    pub more: bool,
}

/// A packet with valid headers: addresses of hosts, consistent lengths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Source address; IPv4 as `::ffff:a.b.c.d`.
    pub source: Ipv6Addr,
    /// Destination address, in the same form.
    pub destination: Ipv6Addr,
    /// Total length in bytes.
    pub len: usize,
    /// True for IPv6.
    pub v6: bool,
    /// Protocol after the IP headers.
    pub protocol: u8,
    /// Offset of that protocol's header; in a later fragment, of its data.
    pub payload_at: usize,
    /// Position of the fragment; `None` for a whole datagram.
    pub fragment: Option<Fragment>,
}

impl Packet {
    /// Parses the headers at the front of `bytes`. Bytes behind the packet are ignored.
    ///
    /// Errors: `ip_malformed`, `ip_multicast`, `ip_extension_headers`; `ip_fragment` for a first
    /// fragment without a whole transport header, or a later one that would overwrite it.
    pub fn parse(bytes: &[u8]) -> Result<Packet, DropReason> {
        parse(bytes, false)
    }

    /// Parses the headers of a packet quoted in an ICMP error, which may be cut short. A routing
    /// header is refused, since kernels take its last segment as the destination (RFC 8754 section
    /// 5.4).
    pub(crate) fn parse_quoted(bytes: &[u8]) -> Result<Packet, DropReason> {
        parse(bytes, true)
    }

    /// True for a fragment without the transport header of its datagram.
    pub fn is_later_fragment(&self) -> bool {
        self.fragment.is_some_and(|fragment| fragment.at > 0)
    }

    /// The four bytes of the ports. Fragments have none: all fragments of a datagram take one path,
    /// and only the first has ports.
    pub(crate) fn ports<'a>(&self, bytes: &'a [u8]) -> Option<&'a [u8; 4]> {
        let body = bytes.get(self.payload_at..).filter(|_| self.fragment.is_none())?;
        body.first_chunk::<4>()
    }

    /// A hash common to the packets of one flow in one direction, and to the fragments between two
    /// addresses. `bytes` are those given to [`Packet::parse`].
    pub fn flow(&self, bytes: &[u8]) -> u32 {
        let address = |a: Ipv6Addr| a.to_bits() as u64;
        let ports = self.ports(bytes).map_or(&[][..], |ports| ports);
        let ports = ports.iter().fold(0u64, |sum, b| sum << 8 | u64::from(*b));
        let seen = address(self.source) ^ address(self.destination).rotate_left(17) ^ ports << 13;
        // Fibonacci hashing: the values only need to spread.
        (seen.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32
    }

    /// Offset of the TCP or UDP checksum in that header, if the packet holds all bytes that it
    /// covers.
    pub(crate) fn sum_offset(&self) -> Option<usize> {
        if self.fragment.is_some() {
            return None;
        }
        let (offset, head) = match self.protocol {
            TCP => (16, 20),
            UDP => (6, 8),
            _ => return None,
        };
        (self.len - self.payload_at >= head).then_some(offset)
    }
}

fn parse(bytes: &[u8], quoted: bool) -> Result<Packet, DropReason> {
    match bytes.first().map(|b| b >> 4) {
        Some(4) => parse_v4(bytes, quoted),
        Some(6) => parse_v6(bytes, quoted),
        _ => Err(DropReason::IpMalformed),
    }
}

fn parse_v4(bytes: &[u8], quoted: bool) -> Result<Packet, DropReason> {
    let head = bytes.first_chunk::<IPV4_LEN>().ok_or(DropReason::IpMalformed)?;
    let head_len = usize::from(head[0] & 15) * 4;
    let len = usize::from(u16::from_be_bytes([head[2], head[3]]));
    if head_len < IPV4_LEN || len < head_len || len > bytes.len() && !quoted {
        return Err(DropReason::IpMalformed);
    }
    let address = |at: usize| Ipv4Addr::new(head[at], head[at + 1], head[at + 2], head[at + 3]);
    let (source, destination) = (address(12), address(16));
    if destination.is_multicast() || destination.is_broadcast() || destination.is_link_local() {
        return Err(DropReason::IpMulticast);
    }
    if source.is_link_local() {
        return Err(DropReason::IpMulticast);
    }
    let nobody = |a: Ipv4Addr| a.is_unspecified() || a.is_loopback();
    if nobody(source) || nobody(destination) || source.is_multicast() || source.is_broadcast() {
        return Err(DropReason::IpMalformed);
    }
    let cut = u16::from_be_bytes([head[6], head[7]]);
    let id = u32::from(u16::from_be_bytes([head[4], head[5]]));
    // The bit "more fragments", or an offset.
    let fragment = match cut & 0x3fff {
        0 => None,
        _ => Some(Fragment::new(id, cut << 3, cut & 0x2000 != 0, len - head_len, head[9])?),
    };
    if fragment.is_some_and(|fragment| usize::from(fragment.end) + head_len > DATAGRAM_MAX) {
        return Err(DropReason::IpMalformed);
    }
    Ok(Packet {
        source: source.to_ipv6_mapped(),
        destination: destination.to_ipv6_mapped(),
        len,
        v6: false,
        protocol: head[9],
        payload_at: head_len,
        fragment,
    })
}

fn parse_v6(bytes: &[u8], quoted: bool) -> Result<Packet, DropReason> {
    let head = bytes.first_chunk::<IPV6_LEN>().ok_or(DropReason::IpMalformed)?;
    let len = IPV6_LEN + usize::from(u16::from_be_bytes([head[4], head[5]]));
    if len > bytes.len() && !quoted {
        return Err(DropReason::IpMalformed);
    }
    let address = |at: usize| {
        let mut octets = [0; 16];
        octets.copy_from_slice(&head[at..at + 16]);
        Ipv6Addr::from(octets)
    };
    let (source, destination) = (address(8), address(24));
    if destination.is_multicast() || destination.is_unicast_link_local() {
        return Err(DropReason::IpMulticast);
    }
    if source.is_unicast_link_local() {
        return Err(DropReason::IpMulticast);
    }
    // An IPv4-mapped address would be taken for the IPv4 address in it.
    let nobody =
        |a: Ipv6Addr| a.is_unspecified() || a.is_loopback() || a.to_ipv4_mapped().is_some();
    if nobody(source) || nobody(destination) || source.is_multicast() {
        return Err(DropReason::IpMalformed);
    }
    let there = &bytes[..len.min(bytes.len())];
    let (protocol, payload_at, fragment) = skip_extensions(there, head[6], len, quoted)?;
    Ok(Packet { source, destination, len, v6: true, protocol, payload_at, fragment })
}

/// Skips hop-by-hop options, routing, destination options and a fragment header. Returns the
/// protocol behind them, its offset, and the fragment's position. `len` is the packet's length;
/// `packet` may hold only its front.
///
/// An extension header after a fragment header is refused: it would hide the position of the ports
/// in the datagram.
fn skip_extensions(
    packet: &[u8],
    first: u8,
    len: usize,
    quoted: bool,
) -> Result<(u8, usize, Option<Fragment>), DropReason> {
    let (mut next, mut at) = (first, IPV6_LEN);
    for _ in 0..=EXTENSIONS_MAX {
        match next {
            FRAGMENT => {
                let body = packet.get(at..).and_then(|rest| rest.first_chunk::<FRAGMENT_LEN>());
                let &[protocol, _, high, low, id @ ..] = body.ok_or(DropReason::IpMalformed)?;
                (next, at) = (protocol, at + FRAGMENT_LEN);
                let cut = u16::from_be_bytes([high, low]);
                // A single fragment that holds the whole datagram is handled as a whole packet (RFC
                // 6946).
                if cut & 0xfff9 == 0 {
                    continue;
                }
                let (id, more) = (u32::from_be_bytes(id), cut & 1 != 0);
                let fragment = Fragment::new(id, cut & 0xfff8, more, len - at, protocol)?;
                return match protocol {
                    0 | 43 | FRAGMENT | 60 => Err(DropReason::IpExtensionHeaders),
                    _ => Ok((protocol, at, Some(fragment))),
                };
            }
            43 if quoted => return Err(DropReason::IpMalformed),
            0 | 43 | 60 => {}
            _ => return Ok((next, at, None)),
        }
        let field = |i: usize| packet.get(at + i).copied().ok_or(DropReason::IpMalformed);
        (next, at) = (field(0)?, at + 8 + 8 * usize::from(field(1)?));
        if at > packet.len() {
            return Err(DropReason::IpMalformed);
        }
        if at - IPV6_LEN > EXTENSION_BYTES_MAX {
            return Err(DropReason::IpExtensionHeaders);
        }
    }
    Err(DropReason::IpExtensionHeaders)
}

impl Fragment {
    /// A fragment with `len` bytes from offset `at` of a datagram of `protocol`.
    ///
    /// Errors: `ip_malformed` if length and offset are inconsistent; `ip_fragment` if the fragment
    /// is too short or overwrites the transport header.
    fn new(id: u32, at: u16, more: bool, len: usize, protocol: u8) -> Result<Fragment, DropReason> {
        let end = usize::from(at) + len;
        if len == 0 || more && !len.is_multiple_of(8) || end > DATAGRAM_MAX {
            return Err(DropReason::IpMalformed);
        }
        let least = if protocol == TCP { FIRST_MIN.0 } else { FIRST_MIN.1 };
        let of_header = if at == 0 { len } else { usize::from(at) };
        if of_header < least {
            return Err(DropReason::IpFragment);
        }
        Ok(Fragment { id, at, end: end as u16, more })
    }
}
