//! Packets of other hosts that share cells: a member writes any plaintext into a cell.

use std::collections::BTreeMap;
use std::net::Ipv6Addr;

use shoal_crypto::Rng;
use shoal_directory::Access;

use super::*;
use crate::support::{TestFlowTable, TestTun};

const BOB: HostId = HostId::from_bits(4);
const CAROL: HostId = HostId::from_bits(5);
const NOW: Time = Time::from_millis(1_000);
const UDP: u8 = 17;
const ICMPV6: u8 = 58;
/// The fragment header of IPv6.
const FRAGMENT: u8 = 44;

type Queue = InterfaceQueue<TestTun, TestFlowTable>;

fn address(last: u16) -> Ipv6Addr {
    Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, last)
}

/// A queue of host 1, which knows hosts 2 (Bob) and 3 (Carol).
fn queue() -> Queue {
    let mut gate = AddressGate::new(vec![address(1)], 1_374);
    gate.add(BOB.bits(), address(2)).expect("a new address");
    gate.add(CAROL.bits(), address(3)).expect("a new address");
    InterfaceQueue::new(TestTun::default(), Arc::new(gate), TestFlowTable::default())
}

/// An IPv6 packet between two of the hosts.
fn packet(from: u16, to: u16, protocol: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0x60, 0, 0, 0, 0, body.len() as u8, protocol, 64];
    bytes.extend([address(from).octets(), address(to).octets()].concat());
    bytes.extend(body);
    bytes
}

/// A UDP datagram from port 53 of host `from`, without data.
fn datagram(from: u16, to: u16, port: u8) -> Vec<u8> {
    packet(from, to, UDP, &[0, 53, 0, port, 0, 8, 0, 0])
}

/// Delivers packets of Bob that share cells.
fn deliver(queue: &mut Queue, packets: &[Vec<u8>]) {
    let (mut buf, mut arrivals) = (Vec::<u8>::new(), Vec::new());
    for bytes in packets {
        let (at, len) = (buf.len() as u32, (ip::PACKET_AT + bytes.len()) as u32);
        arrivals.push(PacketArrival { host: BOB, at, len, congested: false });
        buf.extend([4, 0]);
        buf.extend(bytes);
    }
    queue.deliver(NOW, &arrivals, &mut buf);
}

/// All drops so far, including fragments whose first one never came.
fn drops(queue: &mut Queue) -> BTreeMap<&'static str, u64> {
    let mut all = BTreeMap::new();
    for (reason, n) in queue.take_drops(NOW + Duration::from_secs(60)) {
        *all.entry(reason.label()).or_default() += n;
    }
    all
}

#[test]
fn each_packet_of_a_cell_is_judged_by_itself() {
    let mut queue = queue();
    queue.firewall.set_rights(&BTreeMap::from([(BOB, Arc::new(Access::default()))]));
    let question = packet(1, 2, UDP, &[0, 9, 0, 53, 0, 8, 0, 0]);
    let parsed = Packet::parse(&question).expect("sound headers");
    queue.firewall.outbound(NOW, BOB, &parsed, &question).expect("room for a flow");
    let mut other_version = datagram(2, 1, 9);
    other_version[0] = 0x70;
    let mut v4 = vec![0x45, 0, 0, 28, 0, 0, 0, 0, 64, UDP, 0, 0, 10, 0, 0, 2, 10, 0, 0, 1];
    v4.extend([0, 53, 0, 9, 0, 8, 0, 0]);
    let later_fragment = [UDP, 0, 0, 185, 0, 0, 0, 7, 0, 53, 0, 9, 0, 8, 0, 0];
    let packets = [
        datagram(2, 1, 9),
        datagram(2, 1, 10),
        datagram(3, 1, 9),
        datagram(2, 3, 9),
        datagram(1, 1, 9),
        other_version,
        v4,
        packet(2, 1, FRAGMENT, &later_fragment),
        packet(2, 1, ICMPV6, &[1, 0, 0, 0, 0, 0, 0, 0]),
        datagram(2, 1, 9)[..47].to_vec(),
        datagram(2, 1, 9),
    ];
    deliver(&mut queue, &packets);
    assert_eq!(queue.counters().written, 2);
    let given: Vec<_> = queue.device.given.iter().map(|write| &write[VNET_LEN..]).collect();
    assert_eq!(given, [&packets[0][..], &packets[10][..]]);
    let expected = [
        ("ip_fragment_alone", 1),
        ("ip_malformed", 2),
        ("ip_no_host", 1),
        ("ip_spoofed_source", 2),
        ("ip_stray_error", 1),
        ("ip_to_self", 1),
        ("policy_denied", 1),
    ];
    assert_eq!(drops(&mut queue), BTreeMap::from(expected));
}

#[test]
fn thousands_of_packets_refused_for_one_reason_take_one_entry() {
    let mut queue = queue();
    deliver(&mut queue, &vec![datagram(3, 1, 9); 5_000]);
    assert_eq!(queue.drops, [(DropReason::IpSpoofedSource, 5_000)]);
}

/// Packets with headers changed at random. Each is written or counted under a reason.
#[test]
fn no_packet_of_a_cell_vanishes() {
    let mut random = Rng::new([3; 32]);
    for round in 0..200 {
        let mut queue = queue();
        if round % 2 == 0 {
            let rights = Arc::new(Access::everything());
            queue.firewall.set_rights(&BTreeMap::from([(BOB, rights)]));
        }
        let packets: Vec<Vec<u8>> = (0..62).map(|_| changed_packet(&mut random)).collect();
        deliver(&mut queue, &packets);
        let written = queue.counters().written;
        assert_eq!(written, queue.device.given.len() as u64);
        let dropped: u64 = drops(&mut queue).values().sum();
        // A fragment that waited is written with its first one, or dropped in the end.
        assert_eq!(written + dropped, packets.len() as u64, "round {round}");
    }
}

/// A packet of Bob, whole or a fragment, with up to two changed bytes.
fn changed_packet(random: &mut Rng) -> Vec<u8> {
    let mut below = |n: u64| random.below(n) as usize;
    let (port, at, id) = (below(4) as u8, below(3) as u8, below(4) as u8);
    let more = u8::from(below(2) == 0);
    let fragment = [UDP, 0, 0, at << 3 | more, 0, 0, 0, id, 0, 53, 0, port, 0, 8, 0, 0];
    let mut bytes = match below(3) {
        0 => packet(2, 1, FRAGMENT, &fragment),
        1 => packet(2, 1, ICMPV6, &[128, 0, 0, 0, 0, 1, 0, port]),
        _ => datagram(2, 1, port),
    };
    for _ in 0..below(3) {
        let at = below(bytes.len() as u64);
        bytes[at] = below(256) as u8;
    }
    bytes
}
