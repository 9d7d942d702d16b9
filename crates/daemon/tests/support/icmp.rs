//! Forges ICMP errors as anybody in the network can. The forger needs only an address and port from
//! which a node sends, and chooses the quoted destination freely.

use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use socket2::{Domain, Protocol, Socket, Type};

/// Content of a forged error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForgedError {
    /// A path carries 576 bytes, or 1,280 over IPv6.
    TooLong,
    /// Nobody listens on the port.
    PortUnreachable,
    /// There is no such host, or no route to it.
    HostUnreachable,
    /// A firewall refuses.
    Prohibited,
    /// The host does not know the protocol (over IPv6: the header).
    BadProtocol,
}

pub const LIES: [ForgedError; 5] = [
    ForgedError::TooLong,
    ForgedError::PortUnreachable,
    ForgedError::HostUnreachable,
    ForgedError::Prohibited,
    ForgedError::BadProtocol,
];

/// A socket for forged errors.
pub struct Forger(Socket);

impl Forger {
    /// None without CAP_NET_RAW. Standard error then says so; the test fails if namespaces are
    /// required.
    pub fn new(ipv6: bool) -> Option<Forger> {
        let (domain, protocol) = match ipv6 {
            true => (Domain::IPV6, Protocol::ICMPV6),
            false => (Domain::IPV4, Protocol::ICMPV4),
        };
        match Socket::new(domain, Type::RAW, Some(protocol)) {
            Ok(socket) => Some(Forger(socket)),
            Err(e) => {
                let required = std::env::var_os("SHOAL_REQUIRE_NETNS").is_some();
                assert!(!required, "forging ICMP: {e}");
                // `eprintln` would not do: its output is hidden if a test passes.
                let said = format!("SKIPPED: needs root to forge ICMP ({e})\n");
                let _written = std::io::stderr().write_all(said.as_bytes());
                None
            }
        }
    }

    /// Tells the node at `victim` that its packet to `quoted` met the error `lie`.
    pub fn send(&self, victim: SocketAddr, quoted: SocketAddr, lie: ForgedError) {
        let message = match (victim.ip(), quoted.ip()) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                ipv4(lie, (from, victim.port()), (to, quoted.port()))
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                ipv6(lie, (from, victim.port()), (to, quoted.port()))
            }
            _ => panic!("two families"),
        };
        let to = SocketAddr::new(victim.ip(), 0);
        self.0.send_to(&message, &to.into()).expect("a raw socket sends");
    }
}

fn udp_header(from: u16, to: u16) -> [u8; 8] {
    let mut header = [0; 8];
    header[..2].copy_from_slice(&from.to_be_bytes());
    header[2..4].copy_from_slice(&to.to_be_bytes());
    header[4..6].copy_from_slice(&1_448u16.to_be_bytes());
    header
}

fn ipv4(lie: ForgedError, from: (Ipv4Addr, u16), to: (Ipv4Addr, u16)) -> Vec<u8> {
    let code = match lie {
        ForgedError::TooLong => 4,
        ForgedError::PortUnreachable => 3,
        ForgedError::HostUnreachable => 1,
        ForgedError::Prohibited => 13,
        ForgedError::BadProtocol => 2,
    };
    let mut message = vec![3, code, 0, 0, 0, 0];
    message.extend(576u16.to_be_bytes());
    // The quoted header: version and length, total length, DF, TTL 60, UDP.
    message.extend([0x45, 2, 0x05, 0xbc, 0, 0, 0x40, 0, 60, 17, 0, 0]);
    message.extend(from.0.octets());
    message.extend(to.0.octets());
    message.extend(udp_header(from.1, to.1));
    let words = message.chunks(2).map(|w| u32::from(u16::from_be_bytes([w[0], w[1]])));
    let sum: u32 = words.sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = (sum & 0xffff) + (sum >> 16);
    message[2..4].copy_from_slice(&(!(sum as u16)).to_be_bytes());
    message
}

/// The kernel fills in the checksum.
fn ipv6(lie: ForgedError, from: (Ipv6Addr, u16), to: (Ipv6Addr, u16)) -> Vec<u8> {
    let (kind, code) = match lie {
        ForgedError::TooLong => (2, 0),
        ForgedError::PortUnreachable => (1, 4),
        ForgedError::HostUnreachable => (1, 3),
        ForgedError::Prohibited => (1, 1),
        ForgedError::BadProtocol => (4, 1),
    };
    let mut message = vec![kind, code, 0, 0];
    message.extend(1_280u32.to_be_bytes());
    message.extend([0x60, 0, 0, 0, 0x05, 0xa8, 17, 60]);
    message.extend(from.0.octets());
    message.extend(to.0.octets());
    message.extend(udp_header(from.1, to.1));
    message
}
