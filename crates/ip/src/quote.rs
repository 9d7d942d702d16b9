//! The front of the packet that caused an ICMP error, which the error quotes.
//!
//! Kernels act on a quote: they lower the path MTU to its destination and report the error to its
//! socket. So the quoted packet must be one that this host, or a machine behind it, can have sent
//! to the host that delivers the error. Quotes that are cut short or malformed are refused.

use core::net::Ipv6Addr;

use shoal_wire::DropReason;

use crate::Packet;
use crate::packet::{ICMP, ICMPV6, TCP, UDP};

/// Bytes of an ICMP header.
const ICMP_LEN: usize = 8;
/// Bytes of the quoted packet's transport header that every error holds (RFC 792): ports, or the
/// type and identifier of an echo.
const TRANSPORT_LEN: usize = 8;

/// Protocol and type of an IPv4 redirect. Those of IPv6 come from link-local addresses, which the
/// gate refuses.
const REDIRECT: (u8, u8) = (ICMP, 5);

/// The packet that an error quotes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quote {
    /// Who sent it; IPv4 as `::ffff:a.b.c.d`.
    pub source: Ipv6Addr,
    /// Who it was for, in the same form.
    pub destination: Ipv6Addr,
    /// Protocol after the IP headers.
    pub protocol: u8,
    /// Source and destination, as in [`crate::Transport`].
    pub ports: (u16, u16),
}

impl Packet {
    /// Whether it is an ICMP error; `bytes` are what [`Packet::parse`] was given. Types of ICMPv6
    /// below 128 are errors, those that nobody has defined among them (RFC 4443 section 2.1). A
    /// later fragment is none: only the first one has the type.
    pub fn is_error(&self, bytes: &[u8]) -> bool {
        match self.protocol {
            ICMP | ICMPV6 if !self.is_later_fragment() => {
                bytes.get(self.payload_at).is_some_and(|kind| is_error(self.protocol, *kind))
            }
            _ => false,
        }
    }

    /// Reads what an ICMP error quotes.
    ///
    /// Errors: `ip_stray_error` where it quotes no packet of its own version whose addresses and
    /// ports can be read, or one that is an error itself; and for redirects, since an overlay path
    /// is one hop and nobody on it knows of a better one.
    pub fn quote(&self, bytes: &[u8]) -> Result<Quote, DropReason> {
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

fn read(quoted: &[u8], v6: bool) -> Option<Quote> {
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
    Some(Quote { source, destination, protocol, ports })
}
