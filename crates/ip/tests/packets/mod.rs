//! Super-frames as a kernel makes them, for tests.

use std::net::Ipv6Addr;

use shoal_ip::{AddressGate, BufferSlice, Packet, PacketMerger, READ_MAX, VNET_LEN};

/// The shape of a super-frame.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub v6: bool,
    pub tcp: bool,
    /// Bytes of TCP options, a multiple of 4.
    pub options: usize,
    pub payload: usize,
    pub size: u16,
    pub flags: u8,
    pub seq: u32,
    pub id: u16,
}

/// Addresses of sender and receiver.
pub fn addresses(v6: bool) -> (Ipv6Addr, Ipv6Addr) {
    if v6 {
        ("fd00::1".parse().unwrap(), "fd00::2".parse().unwrap())
    } else {
        ("::ffff:10.99.0.1".parse().unwrap(), "::ffff:10.99.0.2".parse().unwrap())
    }
}

/// Ones' complement sum, folded, in simple code.
pub fn plain_sum(bytes: &[u8]) -> u16 {
    let mut sum = 0u64;
    for pair in bytes.chunks(2) {
        sum += u64::from(pair[0]) << 8 | pair.get(1).map_or(0, |b| u64::from(*b));
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// The pseudo-header of TCP and UDP.
pub fn pseudo_header(packet: &[u8], at: usize) -> Vec<u8> {
    let v6 = packet[0] >> 4 == 6;
    let mut bytes = if v6 { packet[8..40].to_vec() } else { packet[12..20].to_vec() };
    let protocol = if v6 { packet[6] } else { packet[9] };
    bytes.extend([0, protocol]);
    bytes.extend(((packet.len() - at) as u16).to_be_bytes());
    bytes
}

impl Shape {
    pub fn head_len(&self) -> usize {
        self.l4_at() + if self.tcp { 20 + self.options } else { 8 }
    }

    pub fn l4_at(&self) -> usize {
        if self.v6 { 40 } else { 20 }
    }

    /// One read of the interface.
    pub fn read(&self) -> Vec<u8> {
        let total = self.head_len() + self.payload;
        let (from, to) = addresses(self.v6);
        let mut p = vec![0; total];
        if self.v6 {
            p[0] = 0x60;
            p[3] = 9;
            p[4..6].copy_from_slice(&((total - 40) as u16).to_be_bytes());
            p[6] = if self.tcp { 6 } else { 17 };
            p[7] = 64;
            p[8..24].copy_from_slice(&from.octets());
            p[24..40].copy_from_slice(&to.octets());
        } else {
            p[0] = 0x45;
            p[2..4].copy_from_slice(&(total as u16).to_be_bytes());
            p[4..6].copy_from_slice(&self.id.to_be_bytes());
            p[6] = 0x40;
            p[8] = 64;
            p[9] = if self.tcp { 6 } else { 17 };
            p[12..16].copy_from_slice(&from.octets()[12..]);
            p[16..20].copy_from_slice(&to.octets()[12..]);
            let sum = !plain_sum(&p[..20]);
            p[10..12].copy_from_slice(&sum.to_be_bytes());
        }
        let at = self.l4_at();
        p[at..at + 4].copy_from_slice(&[0x30, 1, 0x14, 0x51]);
        if self.tcp {
            p[at + 4..at + 8].copy_from_slice(&self.seq.to_be_bytes());
            p[at + 8..at + 12].copy_from_slice(&77u32.to_be_bytes());
            p[at + 12] = (((20 + self.options) / 4) << 4) as u8;
            p[at + 13] = self.flags;
            p[at + 14..at + 16].copy_from_slice(&500u16.to_be_bytes());
            p[at + 20..at + 20 + self.options].fill(1);
        } else {
            p[at + 4..at + 6].copy_from_slice(&((total - at) as u16).to_be_bytes());
        }
        let start = self.head_len();
        for (i, byte) in p[start..].iter_mut().enumerate() {
            *byte = (i * 7 + i / 256) as u8;
        }
        let sum_at = at + self.sum_offset();
        let sum = plain_sum(&pseudo_header(&p, at));
        p[sum_at..sum_at + 2].copy_from_slice(&sum.to_be_bytes());
        let mut read = self.vnet().to_vec();
        read.extend(p);
        read
    }

    pub fn sum_offset(&self) -> usize {
        if self.tcp { 16 } else { 6 }
    }

    fn vnet(&self) -> [u8; VNET_LEN] {
        let mut v = [0; VNET_LEN];
        v[0] = 1;
        if self.payload > usize::from(self.size) {
            v[1] = match (self.tcp, self.v6) {
                (true, false) => 1,
                (true, true) => 4,
                (false, _) => 5,
            };
            v[2..4].copy_from_slice(&(self.head_len() as u16).to_ne_bytes());
            v[4..6].copy_from_slice(&self.size.to_ne_bytes());
        }
        v[6..8].copy_from_slice(&(self.l4_at() as u16).to_ne_bytes());
        v[8..].copy_from_slice(&(self.sum_offset() as u16).to_ne_bytes());
        v
    }
}

/// A gate of the sender in [`addresses`], which knows the receiver as host 5.
pub fn gate(v6: bool, mtu: usize) -> AddressGate {
    let (from, to) = addresses(v6);
    let mut gate = AddressGate::new(vec![from], mtu);
    gate.add(5, to).unwrap();
    gate
}

/// The end-to-end plaintexts made from a read.
pub fn cells(read: &[u8], v6: bool) -> Vec<Vec<u8>> {
    let gate = gate(v6, 1_374);
    let (host, split) = gate.outbound(read).expect("a sound packet for host 5");
    assert_eq!(host, 5);
    (0..split.count())
        .map(|i| {
            let mut plain = vec![0xee; split.cell_len(i) + 3];
            split.write(i, &mut plain);
            assert_eq!(plain[split.cell_len(i)..], [0; 3], "bytes behind the cell are zero");
            plain.truncate(split.cell_len(i));
            plain
        })
        .collect()
}

/// The writes to the interface when these cells arrive in one batch.
pub fn merged(cells: &[Vec<u8>], udp: bool) -> Vec<Vec<u8>> {
    let mut writes = Vec::new();
    let buf: Vec<u8> = cells.concat();
    let mut write = |head: &[u8], pieces: &[BufferSlice]| {
        let mut bytes = head.to_vec();
        for piece in pieces {
            bytes.extend(&buf[piece.at as usize..(piece.at + piece.len) as usize]);
        }
        assert!(bytes.len() <= READ_MAX);
        writes.push(bytes);
    };
    let mut merge = PacketMerger::new(true, udp);
    let mut at = 0;
    for cell in cells {
        if let Ok(packet) = Packet::parse(&cell[2..]) {
            merge.push(&buf, at + 2, &packet, cell[1], &mut write);
        }
        at += cell.len() as u32;
    }
    merge.finish(&mut write);
    writes
}
