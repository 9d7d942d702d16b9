//! ICMP errors for programs whose packet can't be sent, each as one write to the interface.

use core::net::Ipv6Addr;

use crate::packet::{ICMP, ICMPV6, IPV4_LEN, IPV6_LEN, Packet};
use crate::sum;
use crate::vnet::VNET_LEN;

/// Maximum length of an error with its `virtio_net_hdr`, in bytes (RFC 4443 section 2.4: at most
/// 1,280 bytes of packet).
pub const REPLY_MAX: usize = VNET_LEN + 1_280;
/// Length of an ICMP header in bytes.
const ICMP_LEN: usize = 8;
/// Maximum length of an IPv4 error in bytes (RFC 1812 section 4.3.2.3).
const IPV4_MAX: usize = 576;
/// "Don't fragment".
const DF: u8 = 0x40;

/// Reasons why a packet can't be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IcmpError {
    /// The packet is too long.
    TooBig {
        /// Maximum length in bytes.
        mtu: u16,
    },
    /// No host has the destination address.
    NoHost,
}

/// Writes the error for the packet at the front of `bytes` and returns its length. Returns `None`
/// if no error may be sent (RFC 4443 section 2.4, RFC 1122 section 3.2.2).
///
/// The error's source is the unreachable address. No router has an own address here, and Linux
/// accepts no external IPv4 packet with its own address as source.
pub fn complain(
    complaint: IcmpError,
    packet: &Packet,
    bytes: &[u8],
    out: &mut [u8; REPLY_MAX],
) -> Option<usize> {
    // Errors are never answered with errors. Of a fragmented datagram only the first fragment is
    // answered.
    if packet.is_error(bytes) || packet.is_later_fragment() {
        return None;
    }
    out.fill(0);
    let (_, reply) = out.split_first_chunk_mut::<VNET_LEN>()?;
    let len = if packet.v6 {
        complain_v6(complaint, packet, bytes, reply)
    } else {
        complain_v4(complaint, packet, bytes, reply)?
    };
    Some(VNET_LEN + len)
}

fn complain_v6(complaint: IcmpError, packet: &Packet, bytes: &[u8], out: &mut [u8]) -> usize {
    let quoted = packet.len.min(out.len() - IPV6_LEN - ICMP_LEN);
    let (head, icmp) = out.split_at_mut(IPV6_LEN);
    let octets = |address: Ipv6Addr| address.octets();
    head[0] = 0x60;
    head[4..6].copy_from_slice(&((ICMP_LEN + quoted) as u16).to_be_bytes());
    head[6] = ICMPV6;
    head[7] = 64;
    head[8..24].copy_from_slice(&octets(packet.destination));
    head[24..].copy_from_slice(&octets(packet.source));
    match complaint {
        IcmpError::TooBig { mtu } => {
            icmp[0] = 2;
            icmp[6..8].copy_from_slice(&mtu.to_be_bytes());
        }
        IcmpError::NoHost => icmp[..2].copy_from_slice(&[1, 3]),
    }
    icmp[ICMP_LEN..ICMP_LEN + quoted].copy_from_slice(&bytes[..quoted]);
    let covered = sum::pseudo(head, true, ICMPV6) + (ICMP_LEN + quoted) as u32;
    let sum = !sum::fold(covered + sum::add(&icmp[..ICMP_LEN + quoted]));
    icmp[2..4].copy_from_slice(&sum.to_be_bytes());
    IPV6_LEN + ICMP_LEN + quoted
}

fn complain_v4(
    complaint: IcmpError,
    packet: &Packet,
    bytes: &[u8],
    out: &mut [u8],
) -> Option<usize> {
    // An IPv4 packet without "don't fragment" gets no "fragmentation needed".
    let told = match complaint {
        IcmpError::TooBig { mtu } if bytes[6] & DF != 0 => (4, mtu),
        IcmpError::TooBig { .. } => return None,
        IcmpError::NoHost => (1, 0),
    };
    let quoted = packet.len.min(IPV4_MAX - IPV4_LEN - ICMP_LEN);
    let total = IPV4_LEN + ICMP_LEN + quoted;
    let (head, icmp) = out.split_at_mut(IPV4_LEN);
    head[0] = 0x45;
    head[2..4].copy_from_slice(&(total as u16).to_be_bytes());
    head[8] = 64;
    head[9] = ICMP;
    head[12..16].copy_from_slice(&bytes[16..20]);
    head[16..20].copy_from_slice(&bytes[12..16]);
    sum::set_ipv4(head, IPV4_LEN);
    icmp[..2].copy_from_slice(&[3, told.0]);
    icmp[6..8].copy_from_slice(&told.1.to_be_bytes());
    icmp[ICMP_LEN..ICMP_LEN + quoted].copy_from_slice(&bytes[..quoted]);
    let sum = !sum::fold(sum::add(&icmp[..ICMP_LEN + quoted]));
    icmp[2..4].copy_from_slice(&sum.to_be_bytes());
    Some(total)
}
