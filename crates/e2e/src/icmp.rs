//! ICMP messages that root on a member's machine can send.

use std::net::{IpAddr, SocketAddr};

use socket2::{Domain, Protocol, Socket, Type};

/// UDP's number in an IP header.
pub const UDP: u8 = 17;

/// A packet as an error quotes it: an IP header and eight bytes after it.
pub fn quote(from: IpAddr, to: IpAddr, protocol: u8, transport: [u8; 8]) -> Vec<u8> {
    let mut bytes = match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let mut head = vec![0x45, 0, 0x05, 0x50, 0, 0, 0x40, 0, 64, protocol, 0, 0];
            head.extend([from.octets(), to.octets()].concat());
            head
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let mut head = vec![0x60, 0, 0, 0, 0x05, 0x28, protocol, 64];
            head.extend([from.octets(), to.octets()].concat());
            head
        }
        _ => unreachable!("one family"),
    };
    bytes.extend(transport);
    bytes
}

/// An echo reply as an error quotes it. No socket sent it, but kernels act on such errors.
pub fn echo(from: IpAddr, to: IpAddr) -> Vec<u8> {
    let (protocol, kind) = if from.is_ipv6() { (58, 129) } else { (1, 0) };
    quote(from, to, protocol, [kind, 0, 0, 0, 0, 7, 0, 1])
}

/// A UDP datagram as an error quotes it.
pub fn datagram(from: SocketAddr, to: SocketAddr) -> Vec<u8> {
    let ([a, b], [c, d]) = (from.port().to_be_bytes(), to.port().to_be_bytes());
    quote(from.ip(), to.ip(), UDP, [a, b, c, d, 0x05, 0x28, 0, 0])
}

/// An ICMP error of this type and code that quotes a packet and carries an MTU.
pub fn error((kind, code): (u8, u8), mtu: u16, quoted: &[u8]) -> Vec<u8> {
    let [high, low] = mtu.to_be_bytes();
    let mut bytes = vec![kind, code, 0, 0, 0, 0, high, low];
    bytes.extend(quoted);
    let mut sum = 0u32;
    for pair in bytes.chunks(2) {
        sum += u32::from(pair[0]) << 8 | pair.get(1).map_or(0, |b| u32::from(*b));
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    bytes[2..4].copy_from_slice(&(!sum as u16).to_be_bytes());
    bytes
}

/// A router's error about a packet that is too long for its next link, with the least MTU.
pub fn too_big(v6: bool, quoted: &[u8]) -> Vec<u8> {
    if v6 { error((2, 0), 1_280, quoted) } else { error((3, 4), 68, quoted) }
}

/// A host's error about a port without a listener.
pub fn port_unreachable(v6: bool, quoted: &[u8]) -> Vec<u8> {
    error(if v6 { (1, 4) } else { (3, 3) }, 0, quoted)
}

/// Sends ICMP messages from the caller's namespace. The kernel adds ICMPv6 checksums.
pub fn send(from: IpAddr, to: IpAddr, messages: &[Vec<u8>]) {
    let (domain, protocol) = match to.is_ipv6() {
        true => (Domain::IPV6, Protocol::ICMPV6),
        false => (Domain::IPV4, Protocol::ICMPV4),
    };
    let socket = Socket::new(domain, Type::RAW, Some(protocol)).unwrap();
    socket.bind(&SocketAddr::new(from, 0).into()).unwrap();
    for message in messages {
        socket.send_to(message, &SocketAddr::new(to, 0).into()).unwrap();
    }
}
