//! Reads of an interface and packets from other hosts: split packets merge into the same bytes.

use core::net::Ipv6Addr;

use shoal_ip::{
    AddressGate, BufferSlice, Packet, PacketMerger, PacketSegmenter, REPLY_MAX, VNET_LEN, complain,
};
use shoal_wire::ip;

/// MTU of a path, for fragmentation.
const FRAGMENT_MTU: usize = 576;
/// Maximum number of checked packets per read: a segment size of one byte makes thousands.
const CUT_MAX: usize = 64;

/// A read of an interface, and packets that other hosts send.
pub fn packets(data: &[u8]) {
    outbound(data);
    let Ok(split) = PacketSegmenter::new(data, ip::PACKET_MAX) else { return };
    let count = split.count().min(CUT_MAX);
    let mut buf = Vec::new();
    let mut arrived = Vec::new();
    for i in 0..count {
        let at = buf.len();
        buf.resize(at + split.cell_len(i), 0xee);
        split.write(i, &mut buf[at..]);
        arrived.push(at);
    }
    let mut merge = PacketMerger::new(true, true);
    let mut written = 0;
    let mut write = |head: &[u8], pieces: &[BufferSlice]| {
        let total: usize = pieces.iter().map(|piece| piece.len as usize).sum();
        assert!(head.len() + total <= VNET_LEN + 65_535);
        written += pieces.len();
    };
    for &at in &arrived {
        let packet = Packet::parse(&buf[at + ip::PACKET_AT..]).expect("split packets are valid");
        let flags = buf[at + ip::FLAGS_AT];
        merge.push(&buf, (at + ip::PACKET_AT) as u32, &packet, flags, &mut write);
    }
    merge.finish(&mut write);
    assert_eq!(written, count, "each packet is written once");
    if let Some(parts) = split.fragments(FRAGMENT_MTU) {
        for i in 0..parts.count() {
            buf.resize(parts.cell_len(i), 0);
            parts.write(i, &mut buf);
            let packet = Packet::parse(&buf[ip::PACKET_AT..]).expect("split packets are valid");
            assert!(packet.len <= FRAGMENT_MTU);
            assert!(parts.count() == 1 || packet.fragment.is_some());
        }
    }
}

fn outbound(data: &[u8]) {
    let Some(bytes) = data.get(VNET_LEN..) else { return };
    let Ok(packet) = Packet::parse(bytes) else { return };
    let mut gate = AddressGate::new(vec![packet.source], 1_280);
    let told = match gate.outbound(data) {
        Ok(_) => return,
        Err(refusal) => refusal.complaint,
    };
    if let Some((complaint, packet)) = told {
        let mut out = [0; REPLY_MAX];
        if let Some(len) = complain(complaint, &packet, bytes, &mut out) {
            let reply = Packet::parse(&out[VNET_LEN..len]).expect("a complaint is a sound packet");
            assert_eq!(reply.destination, packet.source);
        }
    }
    let _ = packet.quote(bytes);
    let _ = gate.add(1, Ipv6Addr::LOCALHOST);
    let _ = gate.inbound(1, bytes);
}
