//! Stream numbers of flows, for circuits that may reorder packets.

use shoal_crypto::{MaskKey, kdf};
use shoal_wire::ip::STREAMS;

use crate::packet::{ICMP, ICMPV6, Packet, TCP, UDP};

/// The secret key that assigns flows to streams. Without it, nobody can choose addresses and ports
/// such that two flows share a stream and wait for each other's losses.
#[derive(Debug)]
pub struct StreamKey(MaskKey);

impl StreamKey {
    pub fn new(seed: &[u8; 32]) -> StreamKey {
        StreamKey(MaskKey::new(&kdf(seed, "streams of flows", &[])))
    }
}

impl Packet {
    /// The stream of the packet's flow; `bytes` are those given to [`Packet::parse`]. Fragments of
    /// one protocol between two addresses share a stream. ICMP has stream 0: its order does not
    /// matter.
    pub fn stream(&self, key: &StreamKey, bytes: &[u8]) -> u16 {
        if matches!(self.protocol, ICMP | ICMPV6) {
            return 0;
        }
        let ports = match self.protocol {
            TCP | UDP => self.ports(bytes),
            _ => None,
        };
        let ports = u32::from_be_bytes(*ports.unwrap_or(&[0; 4]));
        let about = u128::from(self.protocol) << 32 | u128::from(ports);
        // All inputs have one length, so chained blocks act as a random function.
        let blocks = [self.source.to_bits(), self.destination.to_bits(), about];
        let chained = blocks.iter().fold(0, |before: u128, block| {
            u128::from_be_bytes(key.0.mask(&(before ^ block).to_be_bytes()))
        });
        1 + (chained % (STREAMS as u128 - 1)) as u16
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn packet(protocol: u8, ends: [u8; 2], ports: [u16; 2]) -> Vec<u8> {
        let mut bytes = vec![0; 60];
        bytes[..8].copy_from_slice(&[0x60, 0, 0, 0, 0, 20, protocol, 64]);
        (bytes[8], bytes[23], bytes[24], bytes[39]) = (0xfd, ends[0], 0xfd, ends[1]);
        bytes[40..42].copy_from_slice(&ports[0].to_be_bytes());
        bytes[42..44].copy_from_slice(&ports[1].to_be_bytes());
        bytes
    }

    fn stream(seed: u8, bytes: &[u8]) -> u16 {
        let packet = Packet::parse(bytes).expect("sound headers");
        packet.stream(&StreamKey::new(&[seed; 32]), bytes)
    }

    #[test]
    fn a_flow_has_one_stream_and_others_have_others() {
        let tcp = packet(TCP, [1, 2], [4_000, 443]);
        let mut later = tcp.clone();
        later[44..].fill(9);
        assert_eq!(stream(7, &tcp), stream(7, &later));
        let others = [
            packet(UDP, [1, 2], [4_000, 443]),
            packet(TCP, [2, 1], [4_000, 443]),
            packet(TCP, [1, 3], [4_000, 443]),
            packet(TCP, [1, 2], [4_001, 443]),
            packet(TCP, [1, 2], [443, 4_000]),
            packet(47, [1, 2], [0, 0]),
        ];
        let all: BTreeSet<u16> = others.iter().chain([&tcp]).map(|p| stream(7, p)).collect();
        assert_eq!(all.len(), 7);
        assert_ne!(stream(7, &tcp), stream(8, &tcp), "another host's key");
    }

    #[test]
    fn icmp_has_no_stream_and_what_has_no_ports_has_one() {
        for protocol in [ICMP, ICMPV6] {
            assert_eq!(stream(7, &packet(protocol, [1, 2], [1, 1])), 0);
        }
        let tunnel = |bytes| stream(7, &packet(47, [1, 2], bytes));
        assert_eq!(tunnel([1, 2]), tunnel([3, 4]));
    }

    #[test]
    fn streams_are_taken_evenly() {
        let mut counts = vec![0u32; STREAMS];
        for port in 0..40_950 {
            counts[usize::from(stream(7, &packet(TCP, [1, 2], [port, 80])))] += 1;
        }
        assert_eq!(counts[0], 0);
        // Ten each on average; in a fair draw fewer than one in a hundred thousand exceeds 28.
        assert!(counts[1..].iter().all(|n| *n <= 28), "{:?}", counts.iter().max());
        let squares: f64 = counts[1..].iter().map(|n| (f64::from(*n) - 10.0).powi(2)).sum();
        // Chi squared with 4,094 degrees of freedom: mean 4,094, standard deviation 90.
        assert!((squares / 10.0 - 4_094.0).abs() < 400.0, "{squares}");
    }
}
