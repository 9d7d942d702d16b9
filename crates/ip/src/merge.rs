//! Packets of one batch that belong together become one super-frame for one write.
//!
//! The rules are those of Linux' generic receive offload (net/ipv4/tcp_offload.c, udp_offload.c):
//! one flow, headers equal except for lengths, numbers and checksums, consecutive sequence numbers,
//! equal sizes except for the last. Payloads are not copied: a write is a head made here and pieces
//! of the buffer in which the packets arrived.
//!
//! Order within a flow is kept: a packet that does not fit its flow's open super-frame is written
//! after it.

use shoal_wire::ip;

use crate::packet::{IPV4_LEN, IPV6_LEN, Packet, TCP, UDP};
use crate::sum;
use crate::vnet::{GSO_NONE, GSO_TCPV4, GSO_TCPV6, GSO_UDP_L4, NEEDS_CSUM, VNET_LEN, Vnet};

/// Super-frames that are open at once; the flows of one batch are few.
const OPEN_MAX: usize = 8;
/// Packets in one super-frame: UDP_MAX_SEGMENTS of older kernels. A batch brings fewer.
const PIECES_MAX: usize = 64;
/// Longest IP and TCP headers that are merged.
const HEAD_MAX: usize = IPV6_LEN + 60;
/// Longest packet, headers included.
const PACKET_MAX: usize = 65_535;

const ACK: u8 = 0x10;
const PSH: u8 = 0x08;
const FIN: u8 = 0x01;
const ECE: u8 = 0x40;

/// A part of the buffer in which packets arrived.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Piece {
    /// Where it starts.
    pub at: u32,
    /// Its bytes.
    pub len: u32,
}

/// Collects the packets of one batch.
pub struct Merge {
    open: Vec<Open>,
    tcp: bool,
    udp: bool,
}

/// A super-frame that may still grow.
struct Open {
    /// `virtio_net_hdr`, IP and TCP or UDP headers of the first packet.
    head: [u8; VNET_LEN + HEAD_MAX],
    head_len: usize,
    packet: Packet,
    /// Where the first packet starts in the buffer.
    first_at: u32,
    pieces: [Piece; PIECES_MAX],
    count: usize,
    size: usize,
    payload: usize,
    /// No packet may be added.
    last: bool,
}

/// The parsed headers of a packet that may be merged.
struct Candidate<'a> {
    bytes: &'a [u8],
    packet: Packet,
    at: u32,
    head_len: usize,
    payload: usize,
}

impl Merge {
    /// `tcp`, `udp`: the interface takes super-frames of them (of UDP since Linux 6.2).
    pub fn new(tcp: bool, udp: bool) -> Merge {
        Merge { open: Vec::with_capacity(OPEN_MAX), tcp, udp }
    }

    /// Takes in the packet at `at` of `buf`, whose headers are `packet` and whose cell had these
    /// flags. `write` gets what is to be written: a head, then pieces of `buf`.
    pub fn push(
        &mut self,
        buf: &[u8],
        at: u32,
        packet: &Packet,
        flags: u8,
        write: &mut impl FnMut(&[u8], &[Piece]),
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
        self.open.push(Open::new(&candidate));
    }

    /// The batch is over.
    pub fn finish(&mut self, write: &mut impl FnMut(&[u8], &[Piece])) {
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
    ) -> Option<Candidate<'a>> {
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
        Some(Candidate { bytes, packet: *packet, at, head_len, payload })
    }
}

/// Writes a packet as it is.
fn single(packet: &Packet, at: u32, partial: bool, write: &mut impl FnMut(&[u8], &[Piece])) {
    let vnet = match packet.sum_offset().filter(|_| partial) {
        Some(offset) => Vnet {
            flags: NEEDS_CSUM,
            gso: GSO_NONE,
            sum_start: packet.payload_at as u16,
            sum_offset: offset as u16,
            ..Vnet::default()
        },
        None => Vnet::default(),
    };
    write(&vnet.to_bytes(), &[Piece { at, len: packet.len as u32 }]);
}

impl Open {
    fn new(first: &Candidate<'_>) -> Open {
        let mut head = [0; VNET_LEN + HEAD_MAX];
        head[VNET_LEN..VNET_LEN + first.head_len].copy_from_slice(&first.bytes[..first.head_len]);
        let mut pieces = [Piece::default(); PIECES_MAX];
        pieces[0] = first.piece();
        Open {
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

    /// Addresses, protocol and, where both have them, ports.
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

    /// Adds a packet of the same flow if it follows on.
    fn append(&mut self, next: &Candidate<'_>) -> bool {
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

    /// Whether the headers are those that cutting the super-frame would give this packet.
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

    fn finish(mut self, write: &mut impl FnMut(&[u8], &[Piece])) {
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
        let about = Vnet {
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

impl Candidate<'_> {
    fn piece(&self) -> Piece {
        Piece { at: self.at + self.head_len as u32, len: self.payload as u32 }
    }

    /// Whether the packet has PSH or FIN, after which nothing is added.
    fn ends(&self) -> bool {
        let flags = self.packet.payload_at + 13;
        self.packet.protocol == TCP && self.bytes[flags] & (PSH | FIN) != 0
    }
}
