//! ICMP errors for programs whose packet can't be sent, as one write to the interface.

use core::net::Ipv6Addr;

use crate::packet::{ICMP, ICMPV6, IPV4_LEN, IPV6_LEN, Packet};
use crate::sum;
use crate::vnet::VNET_LEN;

/// The longest reply, `virtio_net_hdr` included (RFC 4443 section 2.4: no more than 1,280 bytes).
pub const REPLY_MAX: usize = VNET_LEN + 1_280;
/// Bytes of an ICMP header.
const ICMP_LEN: usize = 8;
/// Longest IPv4 error (RFC 1812 section 4.3.2.3).
const IPV4_MAX: usize = 576;
/// "Don't fragment".
const DF: u8 = 0x40;

/// Why a packet can't be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Complaint {
    /// It is longer than this many bytes.
    TooBig {
        /// What would fit.
        mtu: u16,
    },
    /// There is no such host.
    NoHost,
}

/// Writes the complaint about the packet at the front of `bytes`; returns its length, or nothing
/// where none may be sent (RFC 4443 section 2.4, RFC 1122 section 3.2.2).
///
/// Its source is the address that could not be reached: no router has an address of its own here,
/// and Linux accepts no IPv4 packet from outside whose source is its own address.
pub fn complain(
    complaint: Complaint,
    packet: &Packet,
    bytes: &[u8],
    out: &mut [u8; REPLY_MAX],
) -> Option<usize> {
    // Errors are never answered with errors, and of a datagram only the first fragment is.
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

fn complain_v6(complaint: Complaint, packet: &Packet, bytes: &[u8], out: &mut [u8]) -> usize {
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
        Complaint::TooBig { mtu } => {
            icmp[0] = 2;
            icmp[6..8].copy_from_slice(&mtu.to_be_bytes());
        }
        Complaint::NoHost => icmp[..2].copy_from_slice(&[1, 3]),
    }
    icmp[ICMP_LEN..ICMP_LEN + quoted].copy_from_slice(&bytes[..quoted]);
    let covered = sum::pseudo(head, true, ICMPV6) + (ICMP_LEN + quoted) as u32;
    let sum = !sum::fold(covered + sum::add(&icmp[..ICMP_LEN + quoted]));
    icmp[2..4].copy_from_slice(&sum.to_be_bytes());
    IPV6_LEN + ICMP_LEN + quoted
}

fn complain_v4(
    complaint: Complaint,
    packet: &Packet,
    bytes: &[u8],
    out: &mut [u8],
) -> Option<usize> {
    // An IPv4 packet without "don't fragment" gets no "fragmentation needed".
    let told = match complaint {
        Complaint::TooBig { mtu } if bytes[6] & DF != 0 => (4, mtu),
        Complaint::TooBig { .. } => return None,
        Complaint::NoHost => (1, 0),
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
