//! The Internet checksum (RFC 1071).

/// Sum of `bytes` as big-endian 16-bit words, not folded; exact for up to 64 kB.
pub(crate) fn add(bytes: &[u8]) -> u32 {
    let (words, rest) = bytes.as_chunks::<2>();
    let sum: u32 = words.iter().map(|w| u32::from(u16::from_be_bytes(*w))).sum();
    sum + rest.first().map_or(0, |last| u32::from(*last) << 8)
}

/// Folds a sum to 16 bits.
pub(crate) fn fold(mut sum: u32) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// Sum of the TCP or UDP pseudo-header without the length, not folded.
pub(crate) fn pseudo(packet: &[u8], v6: bool, protocol: u8) -> u32 {
    let addresses = if v6 { &packet[8..40] } else { &packet[12..20] };
    add(addresses) + u32::from(protocol)
}

/// Writes the checksum of an IPv4 header of `len` bytes.
pub(crate) fn set_ipv4(packet: &mut [u8], len: usize) {
    packet[10..12].fill(0);
    let sum = !fold(add(&packet[..len]));
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
}
