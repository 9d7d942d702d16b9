//! A super-frame that one kernel sends reaches the other kernel unchanged; bad input is refused.

use crate::packets::{Shape, addresses, cells, gate, merged, plain_sum, pseudo_header};
use proptest::prelude::*;
use shoal_ip::{AddressGate, IcmpError, Packet, PacketSegmenter, REPLY_MAX, VNET_LEN, complain};
use shoal_wire::DropReason;

const TCP6: Shape = Shape {
    v6: true,
    tcp: true,
    options: 12,
    payload: 3_000,
    size: 1_302,
    flags: 0x18,
    seq: 1_000,
    id: 0,
};

fn shapes() -> impl Strategy<Value = Shape> {
    (any::<(bool, bool, bool, u32, u16)>(), 0usize..=10, 1usize..65_000, 1u16..1_250).prop_map(
        |((v6, tcp, push, seq, id), options, payload, size)| Shape {
            v6,
            tcp,
            options: options * 4,
            // No more packets than `Merge` joins.
            payload: payload.min(usize::from(size) * 64),
            size,
            flags: if push { 0x18 } else { 0x10 },
            seq,
            id,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn split_then_merge_is_the_same_bytes(shape in shapes()) {
        let read = shape.read();
        let cells = cells(&read, shape.v6);
        prop_assert_eq!(cells.len(), shape.payload.div_ceil(usize::from(shape.size)));
        let writes = merged(&cells, true);
        prop_assert_eq!(writes.len(), 1);
        prop_assert_eq!(&writes[0], &read);
    }

    #[test]
    fn every_packet_stands_for_itself(shape in shapes()) {
        for (i, cell) in cells(&shape.read(), shape.v6).iter().enumerate() {
            let packet = &cell[2..];
            let parsed = Packet::parse(packet).unwrap();
            prop_assert_eq!(parsed.len, packet.len());
            if !shape.v6 {
                prop_assert_eq!(plain_sum(&packet[..20]), 0xffff);
            }
            // The checksum is right when completed as a kernel does.
            let (at, sum_at) = (shape.l4_at(), shape.l4_at() + shape.sum_offset());
            let mut whole = packet.to_vec();
            let sum = !plain_sum(&packet[at..]);
            whole[sum_at..sum_at + 2].copy_from_slice(&sum.to_be_bytes());
            let covered = [pseudo_header(&whole, at), whole[at..].to_vec()].concat();
            prop_assert_eq!(plain_sum(&covered), 0xffff);
            if shape.tcp {
                let seq = u32::from_be_bytes(packet[at + 4..at + 8].try_into().unwrap());
                prop_assert_eq!(seq, shape.seq.wrapping_add(i as u32 * u32::from(shape.size)));
            }
        }
    }

    #[test]
    fn no_read_panics(
        mut read in proptest::collection::vec(any::<u8>(), 0..200),
        plausible in any::<bool>(),
        v6 in any::<bool>(),
    ) {
        if plausible && read.len() > VNET_LEN + 40 {
            let sound = Shape { v6, ..TCP6 }.read();
            let keep = VNET_LEN + if v6 { 40 } else { 20 };
            read[VNET_LEN..keep].copy_from_slice(&sound[VNET_LEN..keep]);
            let rest = (read.len() - keep) as u16 + if v6 { 0 } else { 20 };
            let at = VNET_LEN + if v6 { 4 } else { 2 };
            read[at..at + 2].copy_from_slice(&rest.to_be_bytes());
        }
        let gate = gate(v6, 1_374);
        match gate.outbound(&read) {
            Ok((_, split)) => {
                let mut out = vec![];
                for i in 0..split.count() {
                    out.resize(split.cell_len(i), 0);
                    split.write(i, &mut out);
                    merged(&[out.clone(), out.clone()], true);
                }
            }
            Err(refusal) => {
                if let Some((complaint, packet)) = refusal.complaint {
                    let mut out = [0; REPLY_MAX];
                    complain(complaint, &packet, &read[VNET_LEN..], &mut out);
                }
            }
        }
        let arrived = [&[4, 1], &read[..]].concat();
        merged(&[arrived.clone(), arrived], true);
    }
}

#[test]
fn the_last_segment_alone_ends_and_the_first_alone_says_reduced() {
    let shape = Shape { flags: 0x99, ..TCP6 };
    let flags: Vec<u8> = cells(&shape.read(), true).iter().map(|c| c[2 + 40 + 13]).collect();
    assert_eq!(flags, [0x90, 0x10, 0x19]);
}

#[test]
fn a_checksum_is_never_completed_inside_the_ip_header() {
    // Found by fuzzing: a request to write the checksum over the IP version.
    for (start, offset) in [(0, 0), (0, 2), (4, 20), (39, 0)] {
        let mut read = Shape { payload: 1_000, ..TCP6 }.read();
        read[..VNET_LEN].fill(0);
        read[0] = 1;
        read[6..8].copy_from_slice(&u16::to_le_bytes(start));
        read[8..10].copy_from_slice(&u16::to_le_bytes(offset));
        assert_eq!(PacketSegmenter::new(&read, 1_374).unwrap_err(), DropReason::IpMalformed);
        read[6] = 40;
        assert!(PacketSegmenter::new(&read, 1_374).is_ok());
    }
}

#[test]
fn the_second_packet_of_three_byte_by_byte() {
    let shape = Shape { v6: false, options: 0, payload: 9, size: 4, id: 65_535, ..TCP6 };
    let cells = cells(&shape.read(), false);
    #[rustfmt::skip]
    let golden = [
        4, 1, // IP, checksum partial
        0x45, 0, 0, 44, 0, 0, 0x40, 0, 64, 6, 0x26, 0x04, 10, 99, 0, 1, 10, 99, 0, 2,
        0x30, 1, 0x14, 0x51, 0, 0, 0x03, 0xec, 0, 0, 0, 77, 0x50, 0x10, 0x01, 0xf4, 0x14, 0xe7,
        0, 0,         28, 35, 42, 49,
    ];
    assert_eq!(cells[1], golden);
}

#[test]
fn a_gap_another_flow_or_other_headers_are_not_joined_and_order_is_kept() {
    let four = Shape { payload: 4 * 1_302, flags: 0x10, ..TCP6 };
    let sound = cells(&four.read(), true);
    let change = |cell: usize, at: usize, to: u8| {
        let mut cells = sound.clone();
        cells[cell][2 + at] = to;
        merged(&cells, true).len()
    };
    assert_eq!(merged(&sound, true).len(), 1);
    // Sequence, acknowledgement, window, options, urgent pointer, hop limit, traffic class.
    for at in [44, 49, 55, 61, 59, 7, 1] {
        assert_eq!(change(2, at, 0x7e), 3, "byte {at} of the third packet");
    }
    // A reset is written alone, after the packets before it.
    let mut reset = sound.clone();
    reset[2][2 + 53] = 0x14;
    let writes = merged(&reset, true);
    assert_eq!(writes.iter().map(|w| w[VNET_LEN + 53]).collect::<Vec<_>>(), [0x10, 0x14, 0x10]);
    // Alternating packets of two flows: each flow is merged.
    let mut both = Vec::new();
    for cell in &sound {
        let mut other = cell.clone();
        other[2 + 41] = 9;
        both.extend([cell.clone(), other]);
    }
    assert_eq!(merged(&both, true).len(), 2);
    // Packets with a complete checksum are not merged, since the kernel must verify it.
    let whole: Vec<_> = sound.iter().map(|c| [&[4, 0], &c[2..]].concat()).collect();
    assert_eq!(merged(&whole, true).len(), 4);
    assert_eq!(merged(&whole, true)[0][..VNET_LEN], [0; VNET_LEN]);
}

#[test]
fn udp_is_joined_only_where_the_interface_takes_it() {
    let shape = Shape { tcp: false, options: 0, payload: 4_000, size: 1_000, ..TCP6 };
    let cells = cells(&shape.read(), true);
    assert_eq!(merged(&cells, true).len(), 1);
    assert_eq!(merged(&cells, false).len(), 4);
}

#[test]
fn what_leaves_and_what_arrives_is_checked() {
    let sound = Shape { payload: 100, ..TCP6 }.read();
    let (from, to) = addresses(true);
    let own = gate(true, 1_374);
    let refused = |gate: &AddressGate, read: &[u8]| gate.outbound(read).unwrap_err().reason;
    let with = |at: usize, bytes: &[u8]| {
        let mut read = sound.clone();
        read[VNET_LEN + at..VNET_LEN + at + bytes.len()].copy_from_slice(bytes);
        read
    };
    assert_eq!(refused(&own, &with(8, &to.octets())), DropReason::IpSpoofedSource);
    assert_eq!(refused(&own, &with(24, &from.octets())), DropReason::IpToSelf);
    assert_eq!(refused(&own, &with(39, &[9])), DropReason::IpNoHost);
    assert_eq!(refused(&own, &with(24, &[0xff, 2])), DropReason::IpMulticast);
    assert_eq!(refused(&own, &with(8, &[0xfe, 0x80])), DropReason::IpMulticast);
    // A fragment header in place of the TCP header, followed by another one or by 8 bytes of TCP.
    for (header, reason) in [
        ([44, 0, 0, 8, 0, 0, 0, 9], DropReason::IpExtensionHeaders),
        ([60, 0, 0, 8, 0, 0, 0, 9], DropReason::IpExtensionHeaders),
        ([6, 0, 0, 16, 0, 0, 0, 9], DropReason::IpFragment),
    ] {
        let mut read = with(6, &[44]);
        read[VNET_LEN + 40..VNET_LEN + 48].copy_from_slice(&header);
        read[0] = 0;
        assert_eq!(refused(&own, &read), reason, "{header:?}");
    }
    assert_eq!(refused(&own, &with(0, &[0x50])), DropReason::IpMalformed);
    assert_eq!(refused(&own, &sound[..60]), DropReason::IpMalformed);
    // Five empty hop-by-hop headers, and one of 264 bytes.
    let mut chain = with(6, &[0]);
    chain[VNET_LEN + 40..VNET_LEN + 90].fill(0);
    assert_eq!(refused(&own, &chain), DropReason::IpExtensionHeaders);
    let mut long = Shape { payload: 600, ..TCP6 }.read();
    long[VNET_LEN + 6] = 60;
    long[VNET_LEN + 40..VNET_LEN + 42].copy_from_slice(&[6, 32]);
    assert_eq!(refused(&own, &long), DropReason::IpExtensionHeaders);

    let mut there = AddressGate::new(vec![to], 1_374);
    there.add(3, from).unwrap();
    let packet = &sound[VNET_LEN..];
    assert!(there.inbound(3, packet).is_ok());
    assert_eq!(there.inbound(4, packet), Err(DropReason::IpSpoofedSource));
    assert_eq!(there.inbound(3, &with(39, &[9])[VNET_LEN..]), Err(DropReason::IpNoHost));
    assert_eq!(there.inbound(3, &with(8, &to.octets())[VNET_LEN..]), Err(DropReason::IpToSelf));
    assert!(there.add(9, from).is_err() && there.add(9, to).is_err() && there.add(3, from).is_ok());
}

/// A gateway may send packets with sources in its prefix, and no others.
#[test]
fn who_has_a_prefix_may_speak_for_it() {
    let (from, to) = addresses(false);
    let read = Shape { v6: false, ..TCP6 }.read();
    let packet = &read[VNET_LEN..];
    let gateway = "::ffff:192.0.2.1".parse().unwrap();
    let mut there = AddressGate::new(vec![gateway], 1_374);
    assert_eq!(there.inbound(3, packet), Err(DropReason::IpSpoofedSource));
    there.add_prefix(Some(3), from, 120).unwrap();
    assert_eq!(there.inbound(3, packet), Err(DropReason::IpNoHost), "nothing is behind this one");
    there.add_prefix(None, to, 128).unwrap();
    assert!(there.inbound(3, packet).is_ok());
    assert_eq!(there.inbound(4, packet), Err(DropReason::IpSpoofedSource));
    assert!(
        there.add_prefix(Some(4), from, 120).is_err() && there.add_prefix(None, to, 128).is_ok()
    );
    // A longer prefix within it belongs to another host: the longer one decides, in both
    // directions.
    there.add_prefix(Some(4), from, 127).unwrap();
    assert_eq!(there.inbound(3, packet), Err(DropReason::IpSpoofedSource));
    assert!(there.inbound(4, packet).is_ok());
    // A host's own address takes precedence over all prefixes.
    there.add(5, from).unwrap();
    assert!(there.inbound(5, packet).is_ok() && there.inbound(4, packet).is_err());

    let refused = |gate: &AddressGate, read: &[u8]| gate.outbound(read).unwrap_err().reason;
    let mut here = AddressGate::new(vec![gateway], 1_374);
    assert_eq!(refused(&here, &read), DropReason::IpSpoofedSource);
    here.add_prefix(None, from, 128).unwrap();
    assert_eq!(refused(&here, &read), DropReason::IpNoHost);
    here.add_prefix(Some(7), to, 112).unwrap();
    assert_eq!(here.outbound(&read).unwrap().0, 7);
    here.add_prefix(None, to, 113).unwrap();
    assert_eq!(refused(&here, &read), DropReason::IpToSelf);
    here.clear();
    assert_eq!(refused(&here, &read), DropReason::IpSpoofedSource);
}

#[test]
fn what_is_too_big_is_answered_with_what_fits() {
    for v6 in [true, false] {
        let shape = Shape { v6, payload: 1_300, size: 1_300, ..TCP6 };
        let read = shape.read();
        let refusal = gate(v6, 1_280).outbound(&read).unwrap_err();
        assert_eq!(refusal.reason, DropReason::IpTooBig);
        let (complaint, packet) = refusal.complaint.unwrap();
        assert_eq!(complaint, IcmpError::TooBig { mtu: 1_280 });
        let mut out = [0; REPLY_MAX];
        let len = complain(complaint, &packet, &read[VNET_LEN..], &mut out).unwrap();
        let reply = &out[VNET_LEN..len];
        let parsed = Packet::parse(reply).unwrap();
        assert_eq!((parsed.len, parsed.destination), (reply.len(), addresses(v6).0));
        let icmp = &reply[parsed.payload_at..];
        assert_eq!(icmp[..2], if v6 { [2, 0] } else { [3, 4] });
        assert_eq!(icmp[6..8], 1_280u16.to_be_bytes());
        assert_eq!(icmp[8..28], read[VNET_LEN..VNET_LEN + 20]);
        let covered = if v6 {
            [pseudo_header(reply, parsed.payload_at), icmp.to_vec()].concat()
        } else {
            icmp.to_vec()
        };
        assert_eq!(plain_sum(&covered), 0xffff);
        // An error is not answered with an error.
        assert_eq!(complain(complaint, &parsed, reply, &mut out.clone()), None);
    }
}

/// The fragments that `split` makes, as packets.
fn written(split: &PacketSegmenter<'_>) -> Vec<Vec<u8>> {
    (0..split.count())
        .map(|i| {
            let mut plain = vec![0xee; split.cell_len(i)];
            split.write(i, &mut plain);
            assert_eq!(plain[1], 0, "no checksum is left partial");
            plain.split_off(2)
        })
        .collect()
}

#[test]
fn a_packet_that_may_be_cut_becomes_fragments_with_a_whole_checksum() {
    let shape = Shape { v6: false, tcp: false, options: 0, payload: 1_300, size: 1_300, ..TCP6 };
    let mut read = shape.read();
    assert!(
        PacketSegmenter::new(&read, 1_374).unwrap().fragments(576).is_none(),
        "the packet has DF"
    );
    // A record route option, which only the first fragment carries, and a router alert.
    let options = [7, 3, 0, 1, 148, 4, 0, 0];
    read.splice(VNET_LEN + 20..VNET_LEN + 20, options);
    let ip = &mut read[VNET_LEN..];
    (ip[0], ip[6]) = (0x47, 0);
    ip[2..4].copy_from_slice(&1_336u16.to_be_bytes());
    read[6..8].copy_from_slice(&28u16.to_ne_bytes());
    let split = PacketSegmenter::new(&read, 1_374).unwrap();
    let parts = written(&split.fragments(576).unwrap());
    let parsed: Vec<Packet> = parts.iter().map(|part| Packet::parse(part).unwrap()).collect();
    let ends: Vec<_> = parsed.iter().map(|p| p.fragment.map(|f| (f.at, f.end, f.more))).collect();
    assert_eq!(ends, [Some((0, 544, true)), Some((544, 1_088, true)), Some((1_088, 1_308, false))]);
    assert!(parts.iter().all(|part| part.len() <= 576 && plain_sum(&part[..28]) == 0xffff));
    assert_eq!(parts.iter().map(|part| part[20]).collect::<Vec<_>>(), [7, 1, 1]);
    assert!(parts.iter().all(|part| part[24..28] == options[4..]), "every fragment has the alert");
    let whole: Vec<u8> = parts.iter().flat_map(|part| part[28..].to_vec()).collect();
    let mut all = parts[0][..28].to_vec();
    all.extend(&whole);
    let covered = [pseudo_header(&all, 28), whole.clone()].concat();
    assert_eq!(plain_sum(&covered), 0xffff);
    assert_eq!(whole[8..], read[VNET_LEN + 36..]);
    // A fragment is fragmented again: offsets count from its own.
    let mut again = vec![0; VNET_LEN];
    again.extend(&parts[1]);
    let split = PacketSegmenter::new(&again, 1_374).unwrap();
    let ends: Vec<_> = written(&split.fragments(300).unwrap())
        .iter()
        .map(|part| Packet::parse(part).unwrap().fragment.map(|f| (f.at, f.end, f.more)).unwrap())
        .collect();
    assert_eq!(ends, [(544, 816, true), (816, 1_088, true)]);
    // A kernel never asks for the checksum of a fragment.
    again[0] = 1;
    assert_eq!(PacketSegmenter::new(&again, 1_374).unwrap_err(), DropReason::IpMalformed);
}

#[test]
fn fragments_of_two_addresses_go_one_way() {
    let flow = |port: u8, cut: u16| {
        let mut read = Shape { v6: false, tcp: false, payload: 800, ..TCP6 }.read();
        let ip = &mut read[VNET_LEN..];
        ip[21] = port;
        ip[6..8].copy_from_slice(&cut.to_be_bytes());
        Packet::parse(ip).unwrap().flow(ip)
    };
    assert_eq!(flow(1, 0x2000), flow(2, 0x0064), "the first one has ports, the others have data");
    assert_ne!(flow(1, 0), flow(2, 0));
}
