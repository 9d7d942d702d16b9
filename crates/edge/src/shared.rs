//! Packets that share a cell.
//!
//! ```text
//! | 4 | flags | packet | 4 | flags | packet | ... | padding |
//! ```
//!
//! A packet ends where its IP header says. The sender of the cell chooses that header, so nothing
//! about it is trusted here: each packet found is checked like one that has a cell of its own.

use core::ops::Range;

use shoal_wire::{EdgeKind, ip};

use crate::units::used;

/// Length of the shortest packet in a cell, in bytes: kind, flags and the IPv4 header.
const PACKET_MIN: usize = ip::PACKET_AT + 20;

/// Positions of the packets in the plaintext of a cell, each with its kind and flags. They follow
/// each other without a gap, and the last one includes the padding. A rest that is too short for a
/// packet, or that begins with another kind, is padding.
pub(crate) fn cell_packets(plain: &[u8]) -> impl Iterator<Item = Range<usize>> {
    let mut at = 0;
    core::iter::from_fn(move || {
        let rest = plain.get(at..).filter(|rest| !rest.is_empty())?;
        let len = used(rest);
        let is_packet =
            |next: &&[u8]| len.min(next.len()) >= PACKET_MIN && next[0] == EdgeKind::Ip as u8;
        let end = match rest.get(len..).filter(is_packet) {
            Some(_) => at + len,
            None => plain.len(),
        };
        let packet = at..end;
        at = end;
        Some(packet)
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use shoal_wire::SizeClass;

    use super::*;

    /// Lengths of the packets found.
    fn lens(plain: &[u8]) -> Vec<usize> {
        cell_packets(plain).map(|packet| packet.len()).collect()
    }

    /// A packet of `len` bytes behind its kind and flags. All bytes behind the length are those of
    /// the kind, so that a wrong end looks like a packet.
    fn packet(v6: bool, len: usize) -> Vec<u8> {
        let mut bytes = vec![EdgeKind::Ip as u8; ip::PACKET_AT + len];
        let (first, at, said) = if v6 { (0x60, 4, len - 40) } else { (0x45, 2, len) };
        bytes[ip::PACKET_AT] = first;
        bytes[ip::PACKET_AT + at..][..2].copy_from_slice(&(said as u16).to_be_bytes());
        bytes
    }

    /// Bytes that resemble a cell: many kinds, versions and short lengths.
    fn cell() -> impl Strategy<Value = Vec<u8>> {
        let byte = prop_oneof![
            4 => Just(EdgeKind::Ip as u8),
            2 => Just(0u8),
            1 => Just(0x45u8),
            1 => Just(0x60u8),
            1 => 0u8..80,
            1 => any::<u8>(),
        ];
        let len = prop_oneof![
            Just(SizeClass::Small.edge_len()),
            Just(SizeClass::Medium.edge_len()),
            Just(SizeClass::Full.edge_len()),
            1usize..200,
        ];
        len.prop_flat_map(move |len| prop::collection::vec(byte.clone(), len))
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

        #[test]
        fn any_plaintext_is_cut_into_packets_without_gap_or_overlap(plain in cell()) {
            let all: Vec<_> = cell_packets(&plain).collect();
            prop_assert!(all.len() <= 1.max(plain.len() / PACKET_MIN));
            prop_assert_eq!(all.first().map(|first| first.start), Some(0));
            prop_assert_eq!(all.last().map(|last| last.end), Some(plain.len()));
            for pair in all.windows(2) {
                prop_assert_eq!(pair[0].end, pair[1].start);
                prop_assert_eq!(plain[pair[1].start], EdgeKind::Ip as u8);
                prop_assert!(pair.iter().all(|packet| packet.len() >= PACKET_MIN));
                // The header of a packet before another one says exactly this end.
                prop_assert_eq!(used(&plain[pair[0].start..]), pair[0].len());
            }
        }

        #[test]
        fn packets_put_into_a_cell_are_found_again(
            wanted in prop::collection::vec((any::<bool>(), 40usize..400), 1..40),
        ) {
            let mut plain = Vec::new();
            let mut sent = Vec::new();
            for (v6, len) in wanted {
                let next = packet(v6, len);
                if plain.len() + next.len() <= SizeClass::Full.edge_len() {
                    plain.extend_from_slice(&next);
                    sent.push(next.len());
                }
            }
            let padding = SizeClass::Full.edge_len() - plain.len();
            plain.resize(SizeClass::Full.edge_len(), 0);
            *sent.last_mut().expect("the first one fits") += padding;
            prop_assert_eq!(lens(&plain), sent);
        }
    }

    #[test]
    fn the_shortest_packets_fill_a_cell() {
        let one = packet(false, 20);
        let full = one.repeat(SizeClass::Full.edge_len() / one.len());
        assert_eq!(lens(&full), [22; 62]);
        // A packet that says less than its header ends the list.
        let mut short = full.clone();
        short[10 * 22 + 5] = 19;
        assert_eq!(lens(&short).len(), 11);
    }

    #[test]
    fn both_versions_share_a_cell_and_a_length_past_its_end_leaves_one_packet() {
        let mut plain = [packet(false, 20), packet(true, 40), packet(false, 30)].concat();
        assert_eq!(lens(&plain), [22, 42, 32]);
        plain[22 + ip::PACKET_AT + 5] = 33;
        assert_eq!(lens(&plain), [22, 74], "the second one says one byte more than there is");
        assert_eq!(lens(&[EdgeKind::Ip as u8]), [1]);
        assert_eq!(lens(&[]), [0; 0]);
    }
}
