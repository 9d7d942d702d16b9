//! `struct virtio_net_hdr`, which a TUN device with IFF_VNET_HDR puts before every packet
//! (linux/virtio_net.h; native byte order).
//!
//! ```text
//!  0       1          2         4          6            8             10
//! +-------+----------+---------+----------+------------+-------------+
//! | flags | gso_type | hdr_len | gso_size | csum_start | csum_offset |
//! +-------+----------+---------+----------+------------+-------------+
//! ```

/// Length of the header in bytes.
pub const VNET_LEN: usize = 10;
/// Maximum length of a read in bytes: the header and the longest packet.
pub const READ_MAX: usize = VNET_LEN + 65_535;

pub(crate) const NEEDS_CSUM: u8 = 1;
pub(crate) const GSO_NONE: u8 = 0;
pub(crate) const GSO_TCPV4: u8 = 1;
pub(crate) const GSO_TCPV6: u8 = 4;
pub(crate) const GSO_UDP_L4: u8 = 5;
/// Set with the TCP types if the first segment has CWR.
const GSO_ECN: u8 = 0x80;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct VirtioNetHeader {
    pub(crate) flags: u8,
    pub(crate) gso: u8,
    pub(crate) head_len: u16,
    pub(crate) size: u16,
    pub(crate) sum_start: u16,
    pub(crate) sum_offset: u16,
}

impl VirtioNetHeader {
    pub(crate) fn parse(bytes: &[u8; VNET_LEN]) -> VirtioNetHeader {
        let word = |at: usize| u16::from_ne_bytes([bytes[at], bytes[at + 1]]);
        VirtioNetHeader {
            flags: bytes[0],
            gso: bytes[1] & !GSO_ECN,
            head_len: word(2),
            size: word(4),
            sum_start: word(6),
            sum_offset: word(8),
        }
    }

    pub(crate) fn to_bytes(self) -> [u8; VNET_LEN] {
        let mut out = [0; VNET_LEN];
        out[0] = self.flags;
        out[1] = self.gso;
        out[2..4].copy_from_slice(&self.head_len.to_ne_bytes());
        out[4..6].copy_from_slice(&self.size.to_ne_bytes());
        out[6..8].copy_from_slice(&self.sum_start.to_ne_bytes());
        out[8..].copy_from_slice(&self.sum_offset.to_ne_bytes());
        out
    }

    pub(crate) fn needs_sum(&self) -> bool {
        self.flags & NEEDS_CSUM != 0
    }
}
