//! Segmentation of one read of the interface into packets that fit a cell each.

use shoal_wire::{DropReason, EdgeKind, ip};

use crate::packet::{IPV4_LEN, Packet, TCP, UDP};
use crate::sum;
use crate::vnet::{GSO_NONE, GSO_TCPV4, GSO_TCPV6, GSO_UDP_L4, VNET_LEN, VirtioNetHeader};

/// TCP flags FIN and PSH: only the last packet of a super-frame keeps them.
const FIN_PSH: u8 = 0x09;
/// TCP flag CWR: only the first packet of a super-frame keeps it (RFC 3168 section 6.1.2).
const CWR: u8 = 0x80;

/// "Don't fragment", in the byte of IPv4 flags.
const DF: u8 = 0x40;
/// "More fragments", among flags and offset of IPv4.
const MORE: u16 = 0x2000;
/// Minimum payload of a fragment in bytes: it fits a path of 68 bytes, the minimum of IPv4.
const FRAGMENT_MIN: usize = 48;
/// The IPv4 option "no operation", and the bit of options that are copied to every fragment.
const NOP: u8 = 1;
const COPIED: u8 = 0x80;

/// One read of the interface: a packet, or a super-frame to segment.
#[derive(Clone, Copy, Debug)]
pub struct PacketSegmenter<'a> {
    bytes: &'a [u8],
    packet: Packet,
    /// Length of the headers repeated in every packet; of the whole packet if it is not segmented.
    head_len: usize,
    /// Payload per packet in bytes.
    size: usize,
    count: usize,
    sums: ChecksumMode,
    marked: bool,
}

/// Handling of the transport checksum.
#[derive(Clone, Copy, Debug)]
enum ChecksumMode {
    /// The checksum is complete: leave it.
    Whole,
    /// The checksum of TCP or UDP is partial: a flag in the cell tells the receiver.
    Partial,
    /// The checksum of another protocol is partial: complete it.
    Complete { start: usize, offset: usize },
    /// Each packet of a super-frame gets a partial checksum. `pseudo` is the sum of the
    /// pseudo-header without the length.
    Cut { pseudo: u32 },
    /// The packet is fragmented. A partial checksum is completed: its offset in the packet, and
    /// value.
    Fragments { whole: Option<(usize, u16)> },
}

impl<'a> PacketSegmenter<'a> {
    /// Parses the `virtio_net_hdr` and the packet's headers.
    ///
    /// Errors: as [`Packet::parse`], and `ip_too_big` if a packet is longer than `mtu`.
    pub fn new(read: &'a [u8], mtu: usize) -> Result<PacketSegmenter<'a>, DropReason> {
        let (vnet, bytes) = read.split_first_chunk::<VNET_LEN>().ok_or(DropReason::IpMalformed)?;
        let vnet = VirtioNetHeader::parse(vnet);
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

    /// The parsed headers.
    pub fn packet(&self) -> &Packet {
        &self.packet
    }

    /// Number of packets, at least one.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Length of packet `i` as end-to-end plaintext in bytes; equal for all but the last.
    pub fn cell_len(&self, i: usize) -> usize {
        ip::PACKET_AT + self.packet_len(i)
    }

    fn packet_len(&self, i: usize) -> usize {
        let (from, to) = self.payload(i);
        self.head_len + to - from
    }

    /// The range of packet `i`'s payload in the read.
    fn payload(&self, i: usize) -> (usize, usize) {
        let from = (self.head_len + i * self.size).min(self.bytes.len());
        let to = if i + 1 == self.count { self.bytes.len() } else { from + self.size };
        (from, to.min(self.bytes.len()))
    }

    /// The packet fragmented for a path of `mtu` bytes, as an IPv4 router would do. `None` for
    /// IPv6, "don't fragment" and super-frames.
    pub fn fragments(&self, mtu: usize) -> Option<PacketSegmenter<'a>> {
        let head_len = self.packet.payload_at;
        let size = mtu.saturating_sub(head_len) & !7;
        if self.packet.v6 || self.bytes[6] & DF != 0 || self.count != 1 || size < FRAGMENT_MIN {
            return None;
        }
        let partial = match self.sums {
            ChecksumMode::Whole => None,
            ChecksumMode::Partial => Some((head_len, self.packet.sum_offset()?)),
            ChecksumMode::Complete { start, offset } => Some((start, offset)),
            ChecksumMode::Cut { .. } | ChecksumMode::Fragments { .. } => return None,
        };
        let whole = partial.map(|(start, offset)| {
            // Zero means no checksum (RFC 768).
            let sum = !sum::fold(sum::add(&self.bytes[start..]));
            (start + offset, if sum == 0 { u16::MAX } else { sum })
        });
        if whole.is_some_and(|(at, _)| at + 2 > head_len + size) {
            return None;
        }
        let count = (self.bytes.len() - head_len).div_ceil(size);
        Some(PacketSegmenter {
            head_len,
            size,
            count,
            sums: ChecksumMode::Fragments { whole },
            ..*self
        })
    }

    /// Sets the congestion mark on every packet; only for flows that support it ([`crate::Aqm`]).
    pub fn mark(&mut self) {
        self.marked = true;
    }

    /// Writes packet `i` as a cell's end-to-end plaintext: kind, flags, packet, zeroes. `plain` has
    /// at least [`Self::cell_len`] bytes.
    pub fn write(&self, i: usize, plain: &mut [u8]) {
        let (from, to) = self.payload(i);
        let len = self.head_len + to - from;
        let (front, rest) = plain.split_at_mut(ip::PACKET_AT);
        front[0] = EdgeKind::Ip as u8;
        front[ip::FLAGS_AT] = match self.sums {
            ChecksumMode::Partial | ChecksumMode::Cut { .. } => ip::PARTIAL,
            ChecksumMode::Whole
            | ChecksumMode::Complete { .. }
            | ChecksumMode::Fragments { .. } => 0,
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
            ChecksumMode::Cut { pseudo } => self.renumber(i, len, pseudo, head),
            ChecksumMode::Complete { start, offset } => {
                let sum = !sum::fold(sum::add(&out[start..]));
                out[start + offset..start + offset + 2].copy_from_slice(&sum.to_be_bytes());
            }
            ChecksumMode::Fragments { whole } => {
                self.make_fragment(i, len, head);
                if let Some((at, sum)) = whole.filter(|_| i == 0) {
                    out[at..at + 2].copy_from_slice(&sum.to_be_bytes());
                }
            }
            ChecksumMode::Whole | ChecksumMode::Partial => {}
        }
    }

    /// Makes the header of fragment `i` from that of the packet, which may itself be a fragment.
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

/// Overwrites the IPv4 options that only a first fragment carries (RFC 791 section 3.2).
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

fn whole<'a>(
    bytes: &'a [u8],
    packet: Packet,
    vnet: &VirtioNetHeader,
) -> Result<PacketSegmenter<'a>, DropReason> {
    let (start, offset) = (usize::from(vnet.sum_start), usize::from(vnet.sum_offset));
    let sums = if !vnet.needs_sum() {
        ChecksumMode::Whole
    } else if packet.fragment.is_some() {
        // The checksum covers bytes of other fragments.
        return Err(DropReason::IpMalformed);
    } else if start == packet.payload_at && packet.sum_offset() == Some(offset) {
        ChecksumMode::Partial
    } else if start >= packet.payload_at && start + offset + 2 <= bytes.len() {
        // The checksum must not overwrite the validated IP headers.
        ChecksumMode::Complete { start, offset }
    } else {
        return Err(DropReason::IpMalformed);
    };
    Ok(PacketSegmenter {
        bytes,
        packet,
        head_len: bytes.len(),
        size: 0,
        count: 1,
        sums,
        marked: false,
    })
}

fn cut<'a>(
    bytes: &'a [u8],
    packet: Packet,
    vnet: &VirtioNetHeader,
) -> Result<PacketSegmenter<'a>, DropReason> {
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
    // A super-frame must have a partial checksum (virtio 1.2, section 5.1.6.2).
    if !vnet.needs_sum() || size == 0 || head_len >= bytes.len() {
        return Err(DropReason::IpMalformed);
    }
    let count = (bytes.len() - head_len).div_ceil(size);
    let pseudo = sum::pseudo(bytes, packet.v6, packet.protocol);
    Ok(PacketSegmenter {
        bytes,
        packet,
        head_len,
        size,
        count,
        sums: ChecksumMode::Cut { pseudo },
        marked: false,
    })
}
