//! The offending packet, whose front an ICMP error quotes.
//!
//! Kernels act on a quote: they lower the path MTU to its destination, and report the error to its
//! socket. So the quoted packet must be one that this host, or a machine behind it, can have sent
//! to the host that delivers the error. Short or malformed quotes are refused.

use core::net::Ipv6Addr;

use shoal_wire::DropReason;

use crate::Packet;
use crate::packet::{ICMP, ICMPV6, TCP, UDP};

/// Length of an ICMP header in bytes.
const ICMP_LEN: usize = 8;
/// Length of the quoted transport header in bytes, as every error has it (RFC 792): ports, or type
/// and identifier of an echo.
const TRANSPORT_LEN: usize = 8;

/// Protocol and type of an IPv4 redirect. IPv6 redirects come from link-local addresses, which the
/// gate refuses.
const REDIRECT: (u8, u8) = (ICMP, 5);

/// The addresses and ports of a quoted packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuotedPacket {
    /// Source address; IPv4 as `::ffff:a.b.c.d`.
    pub source: Ipv6Addr,
    /// Destination address, in the same form.
    pub destination: Ipv6Addr,
    /// Protocol after the IP headers.
    pub protocol: u8,
    /// Source and destination port, as in [`crate::TransportFields`].
    pub ports: (u16, u16),
}

impl Packet {
    /// True if the packet is an ICMP error; `bytes` are those given to [`Packet::parse`]. ICMPv6
    /// types below 128 are errors, undefined ones included (RFC 4443 section 2.1). A later fragment
    /// is no error: only the first one has the type.
    pub fn is_error(&self, bytes: &[u8]) -> bool {
        match self.protocol {
            ICMP | ICMPV6 if !self.is_later_fragment() => {
                bytes.get(self.payload_at).is_some_and(|kind| is_error(self.protocol, *kind))
            }
            _ => false,
        }
    }

    /// Parses the packet quoted in an ICMP error.
    ///
    /// Errors: `ip_stray_error`. The quoted packet has another IP version, unreadable addresses or
    /// ports, or is an error itself; or the error is a redirect. An overlay path is one hop for IP,
    /// so there is no better route to redirect to.
    pub fn quote(&self, bytes: &[u8]) -> Result<QuotedPacket, DropReason> {
        let body = bytes.get(self.payload_at..self.len).unwrap_or_default();
        let quoted = body.get(ICMP_LEN..).filter(|_| (self.protocol, body[0]) != REDIRECT);
        quoted.and_then(|quoted| read(quoted, self.v6)).ok_or(DropReason::IpStrayError)
    }
}

fn is_error(protocol: u8, kind: u8) -> bool {
    match protocol {
        ICMP => matches!(kind, 3 | 4 | 5 | 11 | 12),
        ICMPV6 => kind < 128,
        _ => false,
    }
}

fn read(quoted: &[u8], v6: bool) -> Option<QuotedPacket> {
    let packet = Packet::parse_quoted(quoted).ok().filter(|packet| packet.v6 == v6)?;
    if packet.is_later_fragment() {
        return None;
    }
    let Packet { source, destination, protocol, payload_at, .. } = packet;
    let transport = quoted.get(payload_at..)?.first_chunk::<TRANSPORT_LEN>()?;
    let port = |i: usize| u16::from_be_bytes([transport[i], transport[i + 1]]);
    let ports = match protocol {
        ICMP | ICMPV6 if is_error(protocol, transport[0]) => return None,
        ICMP | ICMPV6 => (port(4), port(4)),
        TCP | UDP => (port(0), port(2)),
        _ => (0, 0),
    };
    Some(QuotedPacket { source, destination, protocol, ports })
}
