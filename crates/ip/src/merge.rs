//! Merging of consecutive packets of one flow in a batch into one super-frame, for a single write.
//!
//! The rules are those of Linux' generic receive offload (net/ipv4/tcp_offload.c, udp_offload.c).
//! Packets must be of one flow, with equal headers except for lengths, numbers and checksums. Their
//! sequence numbers must be consecutive, and their sizes equal except for the last. Payloads are
//! not copied: a write is a new header and pieces of the receive buffer.
//!
//! The order within a flow is preserved: a packet that does not fit its flow's open super-frame is
//! written after it.

use shoal_wire::ip;

use crate::packet::{IPV4_LEN, IPV6_LEN, Packet, TCP, UDP};
use crate::sum;
use crate::vnet::{
    GSO_NONE, GSO_TCPV4, GSO_TCPV6, GSO_UDP_L4, NEEDS_CSUM, VNET_LEN, VirtioNetHeader,
};

/// Maximum number of open super-frames; the flows of one batch are few.
const OPEN_MAX: usize = 8;
/// Maximum number of packets in a super-frame: UDP_MAX_SEGMENTS of older kernels.
const PIECES_MAX: usize = 64;
/// Maximum length of merged IP and TCP headers in bytes.
const HEAD_MAX: usize = IPV6_LEN + 60;
/// Maximum length of a packet in bytes, with headers.
const PACKET_MAX: usize = 65_535;

const ACK: u8 = 0x10;
const PSH: u8 = 0x08;
const FIN: u8 = 0x01;
const ECE: u8 = 0x40;

/// A part of the receive buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BufferSlice {
    /// Offset in bytes.
    pub at: u32,
    /// Length in bytes.
    pub len: u32,
}

/// Merges the packets of one batch.
pub struct PacketMerger {
    open: Vec<OpenSuperFrame>,
    tcp: bool,
    udp: bool,
}

/// A super-frame that may still grow.
struct OpenSuperFrame {
    /// `virtio_net_hdr`, IP and TCP or UDP headers of the first packet.
    head: [u8; VNET_LEN + HEAD_MAX],
    head_len: usize,
    packet: Packet,
    /// Offset of the first packet in the buffer.
    first_at: u32,
    pieces: [BufferSlice; PIECES_MAX],
    count: usize,
    size: usize,
    payload: usize,
    /// True if no further packet may be added.
    last: bool,
}

/// The parsed headers of a packet that may be merged.
struct MergeCandidate<'a> {
    bytes: &'a [u8],
    packet: Packet,
    at: u32,
    head_len: usize,
    payload: usize,
}

impl PacketMerger {
    /// `tcp`, `udp`: true if the interface accepts super-frames of the protocol (UDP since Linux
    /// 6.2).
    pub fn new(tcp: bool, udp: bool) -> PacketMerger {
        PacketMerger { open: Vec::with_capacity(OPEN_MAX), tcp, udp }
    }

    /// Adds the packet at `at` of `buf`, with headers `packet` and the `flags` of its cell. `write`
    /// gets each finished write: a header, then pieces of `buf`.
    pub fn push(
        &mut self,
        buf: &[u8],
        at: u32,
        packet: &Packet,
        flags: u8,
        write: &mut impl FnMut(&[u8], &[BufferSlice]),
    ) {
        let bytes = &buf[at as usize..at as usize + packet.len];
        let partial = flags & ip::PARTIAL != 0;
        let known = self.open.iter().position(|open| open.same_flow(packet, bytes));
        let Some(candidate) = self.candidate(bytes, packet, at, partial) else {
            if let Some(known) = known {
                self.open.remove(known).finish(write);
            }
            return single(packet, at, partial, write);
        };
        if let Some(known) = known {
            if self.open[known].append(&candidate) {
                return;
            }
            self.open.remove(known).finish(write);
        } else if self.open.len() == OPEN_MAX {
            self.open.remove(0).finish(write);
        }
        self.open.push(OpenSuperFrame::new(&candidate));
    }

    /// Ends the batch and writes all open super-frames.
    pub fn finish(&mut self, write: &mut impl FnMut(&[u8], &[BufferSlice])) {
        for open in self.open.drain(..) {
            open.finish(write);
        }
    }

    fn candidate<'a>(
        &self,
        bytes: &'a [u8],
        packet: &Packet,
        at: u32,
        partial: bool,
    ) -> Option<MergeCandidate<'a>> {
        let plain_len = if packet.v6 { IPV6_LEN } else { IPV4_LEN };
        if !partial || packet.payload_at != plain_len || packet.fragment.is_some() {
            return None;
        }
        let l4 = &bytes[plain_len..];
        let head_len = match packet.protocol {
            TCP if self.tcp && l4.len() > 20 => {
                let ordinary = l4[13] & !(PSH | FIN | ECE) == ACK;
                let head = usize::from(l4[12] >> 4) * 4;
                (ordinary && head >= 20).then_some(plain_len + head)?
            }
            UDP if self.udp && l4.len() > 8 => {
                let len = usize::from(u16::from_be_bytes([l4[4], l4[5]]));
                (len == l4.len()).then_some(plain_len + 8)?
            }
            _ => return None,
        };
        let payload = bytes.len().checked_sub(head_len).filter(|len| *len > 0)?;
        Some(MergeCandidate { bytes, packet: *packet, at, head_len, payload })
    }
}

/// Writes a single packet.
fn single(packet: &Packet, at: u32, partial: bool, write: &mut impl FnMut(&[u8], &[BufferSlice])) {
    let vnet = match packet.sum_offset().filter(|_| partial) {
        Some(offset) => VirtioNetHeader {
            flags: NEEDS_CSUM,
            gso: GSO_NONE,
            sum_start: packet.payload_at as u16,
            sum_offset: offset as u16,
            ..VirtioNetHeader::default()
        },
        None => VirtioNetHeader::default(),
    };
    write(&vnet.to_bytes(), &[BufferSlice { at, len: packet.len as u32 }]);
}

impl OpenSuperFrame {
    fn new(first: &MergeCandidate<'_>) -> OpenSuperFrame {
        let mut head = [0; VNET_LEN + HEAD_MAX];
        head[VNET_LEN..VNET_LEN + first.head_len].copy_from_slice(&first.bytes[..first.head_len]);
        let mut pieces = [BufferSlice::default(); PIECES_MAX];
        pieces[0] = first.piece();
        OpenSuperFrame {
            head,
            head_len: first.head_len,
            packet: first.packet,
            first_at: first.at,
            pieces,
            count: 1,
            size: first.payload,
            payload: first.payload,
            last: first.ends(),
        }
    }

    /// Compares addresses, protocol and, if both have them, ports.
    fn same_flow(&self, packet: &Packet, bytes: &[u8]) -> bool {
        let mine = &self.packet;
        let ports = |bytes: &[u8], at: usize| -> Option<[u8; 4]> {
            bytes.get(at..)?.first_chunk::<4>().copied()
        };
        mine.protocol == packet.protocol
            && mine.source == packet.source
            && mine.destination == packet.destination
            && ports(&self.head[VNET_LEN..], mine.payload_at) == ports(bytes, packet.payload_at)
    }

    /// Adds the next packet of the flow. Returns false if it does not fit.
    fn append(&mut self, next: &MergeCandidate<'_>) -> bool {
        let fits = !self.last
            && self.count < PIECES_MAX
            && next.payload <= self.size
            && self.head_len == next.head_len
            && self.head_len + self.payload + next.payload <= PACKET_MAX
            && self.follows(next.bytes);
        if !fits {
            return false;
        }
        self.pieces[self.count] = next.piece();
        self.count += 1;
        self.payload += next.payload;
        self.last = next.payload < self.size || next.ends();
        if self.packet.protocol == TCP {
            let at = VNET_LEN + self.packet.payload_at + 13;
            self.head[at] |= next.bytes[self.packet.payload_at + 13];
        }
        true
    }

    /// True if segmentation of the super-frame would give the next packet these headers.
    fn follows(&self, next: &[u8]) -> bool {
        let at = self.packet.payload_at;
        let head = &self.head[VNET_LEN..VNET_LEN + self.head_len];
        let same = |from: usize, to: usize| head[from..to] == next[from..to];
        let word = |bytes: &[u8], at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
        let network = if self.packet.v6 {
            same(0, 4) && same(6, 8)
        } else {
            let id = word(head, 4).wrapping_add(self.count as u16);
            same(0, 2) && same(6, 10) && word(next, 4) == id
        };
        if !network || self.packet.protocol == UDP {
            return network;
        }
        let number = |b: &[u8]| u32::from_be_bytes([b[at + 4], b[at + 5], b[at + 6], b[at + 7]]);
        let flags = |b: &[u8]| b[at + 13] & !(PSH | FIN);
        number(next) == number(head).wrapping_add(self.payload as u32)
            && same(at + 8, at + 13)
            && flags(head) == flags(next)
            && same(at + 14, at + 16)
            && same(at + 18, self.head_len)
    }

    fn finish(mut self, write: &mut impl FnMut(&[u8], &[BufferSlice])) {
        if self.count == 1 {
            return single(&self.packet, self.first_at, true, write);
        }
        let at = self.packet.payload_at;
        let total = self.head_len + self.payload;
        let (vnet, head) = self.head.split_at_mut(VNET_LEN);
        let (gso, offset) = match (self.packet.protocol, self.packet.v6) {
            (TCP, true) => (GSO_TCPV6, 16),
            (TCP, false) => (GSO_TCPV4, 16),
            _ => (GSO_UDP_L4, 6),
        };
        let about = VirtioNetHeader {
            flags: NEEDS_CSUM,
            gso,
            head_len: self.head_len as u16,
            size: self.size as u16,
            sum_start: at as u16,
            sum_offset: offset,
        };
        vnet.copy_from_slice(&about.to_bytes());
        if self.packet.v6 {
            head[4..6].copy_from_slice(&((total - IPV6_LEN) as u16).to_be_bytes());
        } else {
            head[2..4].copy_from_slice(&(total as u16).to_be_bytes());
            sum::set_ipv4(head, IPV4_LEN);
        }
        let len = (total - at) as u16;
        if self.packet.protocol == UDP {
            head[at + 4..at + 6].copy_from_slice(&len.to_be_bytes());
        }
        let pseudo = sum::pseudo(head, self.packet.v6, self.packet.protocol);
        let sum = sum::fold(pseudo + u32::from(len)).to_be_bytes();
        let sum_at = at + usize::from(offset);
        head[sum_at..sum_at + 2].copy_from_slice(&sum);
        write(&self.head[..VNET_LEN + self.head_len], &self.pieces[..self.count]);
    }
}

impl MergeCandidate<'_> {
    fn piece(&self) -> BufferSlice {
        BufferSlice { at: self.at + self.head_len as u32, len: self.payload as u32 }
    }

    /// True if the packet has PSH or FIN, which ends a super-frame.
    fn ends(&self) -> bool {
        let flags = self.packet.payload_at + 13;
        self.packet.protocol == TCP && self.bytes[flags] & (PSH | FIN) != 0
    }
}
