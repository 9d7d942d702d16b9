//! A packet's headers, parsed and checked once.

use core::net::{Ipv4Addr, Ipv6Addr};

use shoal_wire::DropReason;

pub(crate) const TCP: u8 = 6;
pub(crate) const UDP: u8 = 17;
pub(crate) const ICMP: u8 = 1;
pub(crate) const ICMPV6: u8 = 58;

pub(crate) const IPV4_LEN: usize = 20;
pub(crate) const IPV6_LEN: usize = 40;

/// Extension headers that are followed; real packets have none or one.
const EXTENSIONS_MAX: usize = 4;
/// Bytes of extension headers; most networks drop longer chains (RFC 9098 section 6).
const EXTENSION_BYTES_MAX: usize = 256;

/// A packet with sound headers: addresses of hosts, lengths that agree, no fragment.
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
    /// Where that protocol's header starts.
    pub payload_at: usize,
}

impl Packet {
    /// Reads the headers at the front of `bytes`; what lies behind the packet is ignored.
    ///
    /// Errors: `ip_malformed`, `ip_multicast`, `ip_fragment`, `ip_extension_headers`.
    pub fn parse(bytes: &[u8]) -> Result<Packet, DropReason> {
        parse(bytes, false)
    }

    /// Reads the headers at the front of what an ICMP error quotes: the packet may be longer than
    /// what is there. A routing header is refused, since kernels take its last segment for the
    /// destination (RFC 8754 section 5.4).
    pub(crate) fn parse_quoted(bytes: &[u8]) -> Result<Packet, DropReason> {
        parse(bytes, true)
    }

    /// A number that packets of one flow share, in one direction; `bytes` are what
    /// [`Packet::parse`] was given.
    pub fn flow(&self, bytes: &[u8]) -> u32 {
        let address = |a: Ipv6Addr| a.to_bits() as u64;
        let ports = bytes.get(self.payload_at..self.payload_at + 4).unwrap_or_default();
        let ports = ports.iter().fold(0u64, |sum, b| sum << 8 | u64::from(*b));
        let seen = address(self.source) ^ address(self.destination).rotate_left(17) ^ ports << 13;
        // Fibonacci hashing: the values only have to spread.
        (seen.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32
    }

    /// Where the checksum of TCP or UDP stands, counted from that header, if the header is whole.
    pub(crate) fn sum_offset(&self) -> Option<usize> {
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
    // More fragments, or an offset.
    if u16::from_be_bytes([head[6], head[7]]) & 0x3fff != 0 {
        return Err(DropReason::IpFragment);
    }
    Ok(Packet {
        source: source.to_ipv6_mapped(),
        destination: destination.to_ipv6_mapped(),
        len,
        v6: false,
        protocol: head[9],
        payload_at: head_len,
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
    let (protocol, payload_at) = skip_extensions(&bytes[..len.min(bytes.len())], head[6], quoted)?;
    Ok(Packet { source, destination, len, v6: true, protocol, payload_at })
}

/// Hop-by-hop options, routing and destination options are stepped over.
fn skip_extensions(packet: &[u8], first: u8, quoted: bool) -> Result<(u8, usize), DropReason> {
    let (mut next, mut at) = (first, IPV6_LEN);
    for _ in 0..=EXTENSIONS_MAX {
        match next {
            44 => return Err(DropReason::IpFragment),
            43 if quoted => return Err(DropReason::IpMalformed),
            0 | 43 | 60 => {}
            _ => return Ok((next, at)),
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
