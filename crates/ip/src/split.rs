//! One read of the interface, cut into packets that fit a cell each.

use shoal_wire::{DropReason, EdgeKind, ip};

use crate::packet::{IPV4_LEN, Packet, TCP, UDP};
use crate::sum;
use crate::vnet::{GSO_NONE, GSO_TCPV4, GSO_TCPV6, GSO_UDP_L4, VNET_LEN, Vnet};

/// TCP flags FIN and PSH: only the last packet of a super-frame keeps them.
const FIN_PSH: u8 = 0x09;
/// TCP flag CWR: only the first packet of a super-frame keeps it (RFC 3168 section 6.1.2).
const CWR: u8 = 0x80;

/// "Don't fragment", in the byte of IPv4 flags.
const DF: u8 = 0x40;
/// "More fragments", among flags and offset of IPv4.
const MORE: u16 = 0x2000;
/// Least bytes of a fragment that is made: a path of 68 bytes, the shortest of IPv4, has room.
const FRAGMENT_MIN: usize = 48;
/// The IPv4 option without meaning, and the bit of options that every fragment has.
const NOP: u8 = 1;
const COPIED: u8 = 0x80;

/// One read of the interface: a packet, or a super-frame to cut.
#[derive(Clone, Copy, Debug)]
pub struct Split<'a> {
    bytes: &'a [u8],
    packet: Packet,
    /// Bytes of the headers that every packet repeats; all of them if nothing is to be cut.
    head_len: usize,
    /// Payload per packet.
    size: usize,
    count: usize,
    sums: Sums,
    marked: bool,
}

/// What to do with the transport checksum.
#[derive(Clone, Copy, Debug)]
enum Sums {
    /// It is complete: leave it.
    Whole,
    /// It is partial, of TCP or UDP: a flag in the cell tells the receiver.
    Partial,
    /// It is partial, of another protocol: complete it here.
    Complete { start: usize, offset: usize },
    /// Each packet of a super-frame gets a partial one. `pseudo` is the pseudo-header's sum
    /// without the length.
    Cut { pseudo: u32 },
    /// The packet is cut into fragments. The checksum, if it was partial, is this one at this place
    /// of the packet.
    Fragments { whole: Option<(usize, u16)> },
}

impl<'a> Split<'a> {
    /// Reads what came before the packet and what its headers say.
    ///
    /// Errors: as [`Packet::parse`], and `ip_too_big` when a packet is longer than `mtu`.
    pub fn new(read: &'a [u8], mtu: usize) -> Result<Split<'a>, DropReason> {
        let (vnet, bytes) = read.split_first_chunk::<VNET_LEN>().ok_or(DropReason::IpMalformed)?;
        let vnet = Vnet::parse(vnet);
        let packet = Packet::parse(bytes)?;
        let bytes = &bytes[..packet.len];
        let split = match vnet.gso {
            GSO_NONE => whole(bytes, packet, &vnet)?,
            _ => cut(bytes, packet, &vnet)?,
        };
        if split.packet_len(0) > mtu.min(ip::PACKET_MAX) {
            return Err(DropReason::IpTooBig);
        }
        Ok(split)
    }

    /// What the headers say.
    pub fn packet(&self) -> &Packet {
        &self.packet
    }

    /// How many packets it makes, at least one.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Bytes of end-to-end plaintext that packet `i` needs; all but the last need the same.
    pub fn cell_len(&self, i: usize) -> usize {
        ip::PACKET_AT + self.packet_len(i)
    }

    fn packet_len(&self, i: usize) -> usize {
        let (from, to) = self.payload(i);
        self.head_len + to - from
    }

    /// Which bytes of the read are the payload of packet `i`.
    fn payload(&self, i: usize) -> (usize, usize) {
        let from = (self.head_len + i * self.size).min(self.bytes.len());
        let to = if i + 1 == self.count { self.bytes.len() } else { from + self.size };
        (from, to.min(self.bytes.len()))
    }

    /// The packet in fragments for a path of `mtu` bytes, as a router makes them of an IPv4 packet
    /// that allows it; none for any other packet, and for a super-frame.
    pub fn fragments(&self, mtu: usize) -> Option<Split<'a>> {
        let head_len = self.packet.payload_at;
        let size = mtu.saturating_sub(head_len) & !7;
        if self.packet.v6 || self.bytes[6] & DF != 0 || self.count != 1 || size < FRAGMENT_MIN {
            return None;
        }
        let partial = match self.sums {
            Sums::Whole => None,
            Sums::Partial => Some((head_len, self.packet.sum_offset()?)),
            Sums::Complete { start, offset } => Some((start, offset)),
            Sums::Cut { .. } | Sums::Fragments { .. } => return None,
        };
        let whole = partial.map(|(start, offset)| {
            // Zero stands for no checksum (RFC 768).
            let sum = !sum::fold(sum::add(&self.bytes[start..]));
            (start + offset, if sum == 0 { u16::MAX } else { sum })
        });
        if whole.is_some_and(|(at, _)| at + 2 > head_len + size) {
            return None;
        }
        let count = (self.bytes.len() - head_len).div_ceil(size);
        Some(Split { head_len, size, count, sums: Sums::Fragments { whole }, ..*self })
    }

    /// Makes every packet carry a congestion mark; only for flows that can ([`crate::Aqm`]).
    pub fn mark(&mut self) {
        self.marked = true;
    }

    /// Writes packet `i` as the end-to-end plaintext of a cell: kind, flags, packet, zeroes.
    /// `plain` has at least [`Self::cell_len`] bytes.
    pub fn write(&self, i: usize, plain: &mut [u8]) {
        let (from, to) = self.payload(i);
        let len = self.head_len + to - from;
        let (front, rest) = plain.split_at_mut(ip::PACKET_AT);
        front[0] = EdgeKind::Ip as u8;
        front[ip::FLAGS_AT] = match self.sums {
            Sums::Partial | Sums::Cut { .. } => ip::PARTIAL,
            Sums::Whole | Sums::Complete { .. } | Sums::Fragments { .. } => 0,
        };
        let (out, padding) = rest.split_at_mut(len);
        padding.fill(0);
        let (head, payload) = out.split_at_mut(self.head_len);
        head.copy_from_slice(&self.bytes[..self.head_len]);
        payload.copy_from_slice(&self.bytes[from..to]);
        if self.marked {
            crate::aqm::mark(head);
        }
        match self.sums {
            Sums::Cut { pseudo } => self.renumber(i, len, pseudo, head),
            Sums::Complete { start, offset } => {
                let sum = !sum::fold(sum::add(&out[start..]));
                out[start + offset..start + offset + 2].copy_from_slice(&sum.to_be_bytes());
            }
            Sums::Fragments { whole } => {
                self.make_fragment(i, len, head);
                if let Some((at, sum)) = whole.filter(|_| i == 0) {
                    out[at..at + 2].copy_from_slice(&sum.to_be_bytes());
                }
            }
            Sums::Whole | Sums::Partial => {}
        }
    }

    /// Makes the header of fragment `i` from that of the packet, which may be a fragment itself.
    fn make_fragment(&self, i: usize, len: usize, head: &mut [u8]) {
        let (before, follows) = self.packet.fragment.map_or((0, false), |f| (f.at, f.more));
        let more = if follows || i + 1 != self.count { MORE } else { 0 };
        let at = (usize::from(before) + i * self.size) / 8;
        head[2..4].copy_from_slice(&(len as u16).to_be_bytes());
        head[6..8].copy_from_slice(&(more | at as u16).to_be_bytes());
        if i > 0 {
            clear_options(&mut head[IPV4_LEN..]);
        }
        sum::set_ipv4(head, self.head_len);
    }

    /// Makes the headers of packet `i` from those of the super-frame.
    fn renumber(&self, i: usize, len: usize, pseudo: u32, head: &mut [u8]) {
        let at = self.packet.payload_at;
        if self.packet.v6 {
            head[4..6].copy_from_slice(&((len - 40) as u16).to_be_bytes());
        } else {
            let id = u16::from_be_bytes([head[4], head[5]]).wrapping_add(i as u16);
            head[2..4].copy_from_slice(&(len as u16).to_be_bytes());
            head[4..6].copy_from_slice(&id.to_be_bytes());
            sum::set_ipv4(head, at);
        }
        let own = (len - at) as u16;
        let sum = sum::fold(pseudo + u32::from(own)).to_be_bytes();
        let l4 = &mut head[at..];
        if self.packet.protocol == TCP {
            let seq = u32::from_be_bytes([l4[4], l4[5], l4[6], l4[7]]);
            let seq = seq.wrapping_add((i * self.size) as u32);
            l4[4..8].copy_from_slice(&seq.to_be_bytes());
            if i + 1 != self.count {
                l4[13] &= !FIN_PSH;
            }
            if i != 0 {
                l4[13] &= !CWR;
            }
            l4[16..18].copy_from_slice(&sum);
        } else {
            l4[4..6].copy_from_slice(&own.to_be_bytes());
            l4[6..8].copy_from_slice(&sum);
        }
    }
}

/// Overwrites the IPv4 options that only a first fragment has (RFC 791 section 3.2).
fn clear_options(options: &mut [u8]) {
    let mut at = 0;
    while let Some(&kind) = options.get(at).filter(|kind| **kind != 0) {
        let len = match options.get(at + 1) {
            Some(len) if kind != NOP => usize::from(*len).max(2),
            _ => 1,
        };
        let end = (at + len).min(options.len());
        if kind & COPIED == 0 {
            options[at..end].fill(NOP);
        }
        at = end;
    }
}

fn whole<'a>(bytes: &'a [u8], packet: Packet, vnet: &Vnet) -> Result<Split<'a>, DropReason> {
    let (start, offset) = (usize::from(vnet.sum_start), usize::from(vnet.sum_offset));
    let sums = if !vnet.needs_sum() {
        Sums::Whole
    } else if packet.fragment.is_some() {
        // The checksum covers bytes of other fragments.
        return Err(DropReason::IpMalformed);
    } else if start == packet.payload_at && packet.sum_offset() == Some(offset) {
        Sums::Partial
    } else if start >= packet.payload_at && start + offset + 2 <= bytes.len() {
        // The checksum must not overwrite the IP headers, which were checked.
        Sums::Complete { start, offset }
    } else {
        return Err(DropReason::IpMalformed);
    };
    Ok(Split { bytes, packet, head_len: bytes.len(), size: 0, count: 1, sums, marked: false })
}

fn cut<'a>(bytes: &'a [u8], packet: Packet, vnet: &Vnet) -> Result<Split<'a>, DropReason> {
    let at = packet.payload_at;
    if packet.fragment.is_some() {
        return Err(DropReason::IpMalformed);
    }
    let head_len = match (vnet.gso, packet.protocol, packet.v6) {
        (GSO_TCPV4, TCP, false) | (GSO_TCPV6, TCP, true) => {
            let head = bytes.get(at + 12).map_or(0, |b| usize::from(b >> 4) * 4);
            if head < 20 {
                return Err(DropReason::IpMalformed);
            }
            at + head
        }
        (GSO_UDP_L4, UDP, _) => at + 8,
        _ => return Err(DropReason::IpMalformed),
    };
    let size = usize::from(vnet.size);
    // A super-frame without a partial checksum can't be (virtio 1.2, section 5.1.6.2).
    if !vnet.needs_sum() || size == 0 || head_len >= bytes.len() {
        return Err(DropReason::IpMalformed);
    }
    let count = (bytes.len() - head_len).div_ceil(size);
    let pseudo = sum::pseudo(bytes, packet.v6, packet.protocol);
    Ok(Split { bytes, packet, head_len, size, count, sums: Sums::Cut { pseudo }, marked: false })
}
