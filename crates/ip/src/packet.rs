//! A packet's headers, parsed and checked once.

use core::net::{Ipv4Addr, Ipv6Addr};

use shoal_wire::DropReason;

pub(crate) const TCP: u8 = 6;
pub(crate) const UDP: u8 = 17;
pub(crate) const ICMP: u8 = 1;
pub(crate) const ICMPV6: u8 = 58;

pub(crate) const IPV4_LEN: usize = 20;
pub(crate) const IPV6_LEN: usize = 40;

/// Protocol number of the fragment header of IPv6.
const FRAGMENT: u8 = 44;
/// Bytes of the fragment header of IPv6.
const FRAGMENT_LEN: usize = 8;
/// Least bytes of a first fragment behind its IP headers: a TCP header without options, or what
/// ports and types of other protocols take (RFC 1858, RFC 7112).
const FIRST_MIN: (usize, usize) = (20, 8);
/// Longest datagram behind its IP headers, and longest datagram of IPv4 with them.
const DATAGRAM_MAX: usize = 65_535;

/// Extension headers that are followed; real packets have none or one.
const EXTENSIONS_MAX: usize = 4;
/// Bytes of extension headers; most networks drop longer chains (RFC 9098 section 6).
const EXTENSION_BYTES_MAX: usize = 256;

/// The part of a datagram that a fragment holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fragment {
    /// Number of the datagram; IPv4 has 16 bits of it.
    pub id: u32,
    /// First byte of the datagram that the fragment holds; 0 in the fragment with the ports.
    pub at: u16,
    /// Byte behind the last one that it holds.
    pub end: u16,
    /// True if more fragments follow behind `end`.
    pub more: bool,
}

/// A packet with sound headers: addresses of hosts, lengths that agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Who sent it; IPv4 as `::ffff:a.b.c.d`.
    pub source: Ipv6Addr,
    /// Who it is for, in the same form.
    pub destination: Ipv6Addr,
    /// Bytes in all.
    pub len: usize,
    /// Whether it is IPv6.
    pub v6: bool,
    /// Protocol after the IP headers.
    pub protocol: u8,
    /// Start of that protocol's header; in a later fragment, start of its data.
    pub payload_at: usize,
    /// The part of a datagram that the packet is, unless it is a whole one.
    pub fragment: Option<Fragment>,
}

impl Packet {
    /// Reads the headers at the front of `bytes`; what lies behind the packet is ignored.
    ///
    /// Errors: `ip_malformed`, `ip_multicast`, `ip_extension_headers`; `ip_fragment` for a first
    /// fragment without a whole transport header, and for a later one that would overwrite that.
    pub fn parse(bytes: &[u8]) -> Result<Packet, DropReason> {
        parse(bytes, false)
    }

    /// Reads the headers at the front of what an ICMP error quotes: the packet may be longer than
    /// what is there. A routing header is refused, since kernels take its last segment for the
    /// destination (RFC 8754 section 5.4).
    pub(crate) fn parse_quoted(bytes: &[u8]) -> Result<Packet, DropReason> {
        parse(bytes, true)
    }

    /// True for a fragment without the transport header of its datagram.
    pub fn is_later_fragment(&self) -> bool {
        self.fragment.is_some_and(|fragment| fragment.at > 0)
    }

    /// Bytes of the packet in which ports can stand. Fragments have none: the fragments of a
    /// datagram go the same way, and only the first one has ports.
    pub(crate) fn ports<'a>(&self, bytes: &'a [u8]) -> Option<&'a [u8; 4]> {
        let body = bytes.get(self.payload_at..).filter(|_| self.fragment.is_none())?;
        body.first_chunk::<4>()
    }

    /// A number that packets of one flow share, in one direction, and the fragments between two
    /// addresses; `bytes` are what [`Packet::parse`] was given.
    pub fn flow(&self, bytes: &[u8]) -> u32 {
        let address = |a: Ipv6Addr| a.to_bits() as u64;
        let ports = self.ports(bytes).map_or(&[][..], |ports| ports);
        let ports = ports.iter().fold(0u64, |sum, b| sum << 8 | u64::from(*b));
        let seen = address(self.source) ^ address(self.destination).rotate_left(17) ^ ports << 13;
        // Fibonacci hashing: the values only have to spread.
        (seen.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32
    }

    /// Offset of the checksum of TCP or UDP from that header, if the packet has all that the
    /// checksum covers.
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
    // More fragments, or an offset.
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
    // An IPv4-mapped address would pass for the IPv4 address in it.
    let nobody =
        |a: Ipv6Addr| a.is_unspecified() || a.is_loopback() || a.to_ipv4_mapped().is_some();
    if nobody(source) || nobody(destination) || source.is_multicast() {
        return Err(DropReason::IpMalformed);
    }
    let there = &bytes[..len.min(bytes.len())];
    let (protocol, payload_at, fragment) = skip_extensions(there, head[6], len, quoted)?;
    Ok(Packet { source, destination, len, v6: true, protocol, payload_at, fragment })
}

/// Steps over hop-by-hop options, routing, destination options and a fragment header. Finds the
/// protocol behind them, where that starts, and the part that a fragment is. `len` is the packet's,
/// of which `packet` may be the front.
///
/// Fragments have no extension header behind the fragment header: their first fragments would not
/// tell which byte of the datagram a port stands at.
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
                // A datagram in one fragment stands for itself (RFC 6946).
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
    /// The fragment that holds `len` bytes from `at` on of a datagram of `protocol`.
    ///
    /// Errors: `ip_malformed` where length and place contradict each other; `ip_fragment` for one
    /// that is too short or overwrites the transport header.
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
