use std::net::Ipv6Addr;

use super::*;
use crate::support::TestFlowTable;

const BOB: HostId = HostId::from_bits(4);
const DENIED: Result<(), DropReason> = Err(DropReason::PolicyDenied);

type Firewall = super::InterfaceFirewall<TestFlowTable>;

/// A firewall by which Bob may begin no flow.
fn firewall() -> Firewall {
    let firewall = Firewall::new(TestFlowTable::default());
    firewall.set_rights(&BTreeMap::from([(BOB, Arc::new(Access::default()))]));
    firewall
}

fn end(last: u16) -> Ipv6Addr {
    Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, last)
}

/// A packet from Bob to this host if `arrives`, else from this host to Bob.
fn packet(arrives: bool, extensions: &[u8], protocol: u8, body: &[u8]) -> Vec<u8> {
    let (from, to) = if arrives { (end(2), end(1)) } else { (end(1), end(2)) };
    let len = 8 * extensions.len() + body.len();
    let first = extensions.first().copied().unwrap_or(protocol);
    let mut bytes = vec![0x60, 0, 0, 0, 0, len as u8, first, 64];
    bytes.extend([from.octets(), to.octets()].concat());
    for at in 0..extensions.len() {
        let next = extensions.get(at + 1).copied().unwrap_or(protocol);
        bytes.extend([next, 0, 1, 4, 0, 0, 0, 0]);
    }
    bytes.extend(body);
    bytes
}

/// A TCP segment. The ports are this host's and Bob's.
fn tcp(arrives: bool, (ours, theirs): (u16, u16), flags: u8) -> Vec<u8> {
    let (from, to) = if arrives { (theirs, ours) } else { (ours, theirs) };
    let mut body = [from.to_be_bytes(), to.to_be_bytes()].concat();
    body.resize(20, 0);
    (body[12], body[13]) = (0x50, flags);
    packet(arrives, &[], TCP, &body)
}

fn inbound(firewall: &mut Firewall, ms: u64, bytes: &[u8]) -> Result<(), DropReason> {
    let packet = Packet::parse(bytes)?;
    firewall.inbound(Time::from_millis(ms), BOB, &packet, bytes)
}

fn outbound(firewall: &mut Firewall, ms: u64, bytes: &[u8]) -> Result<(), DropReason> {
    let packet = Packet::parse(bytes)?;
    firewall.outbound(Time::from_millis(ms), BOB, &packet, bytes)
}

#[test]
fn no_set_of_tcp_flags_begins_what_may_not_begin() {
    let mut firewall = firewall();
    for flags in 0..=255 {
        assert_eq!(
            inbound(&mut firewall, 1, &tcp(true, (22, 5_000), flags)),
            DENIED,
            "{flags:#04x}"
        );
    }
    assert_eq!(firewall.flows(), Some(0));
}

#[test]
fn only_a_syn_of_ours_begins_a_flow_that_bob_may_answer() {
    for flags in 0..=255 {
        let (mut firewall, ends) = (firewall(), (6_000, 80));
        assert_eq!(outbound(&mut firewall, 1, &tcp(false, ends, flags)), Ok(()));
        let calls = flags & (SYN | ACK | RST) == SYN;
        let answer = inbound(&mut firewall, 2, &tcp(true, ends, ACK));
        assert_eq!(answer, if calls { Ok(()) } else { DENIED }, "{flags:#04x}");
        assert_eq!(inbound(&mut firewall, 3, &tcp(true, (6_001, 80), flags)), DENIED);
    }
    // Whichever flags Bob answers with, he may begin no flow after this one.
    for flags in 0..=255 {
        let (mut firewall, ends) = (firewall(), (6_000, 80));
        assert_eq!(outbound(&mut firewall, 1, &tcp(false, ends, SYN)), Ok(()));
        assert_eq!(inbound(&mut firewall, 2, &tcp(true, ends, flags)), Ok(()), "{flags:#04x}");
        assert_eq!(outbound(&mut firewall, 3, &tcp(false, ends, RST)), Ok(()));
        assert_eq!(inbound(&mut firewall, 4, &tcp(true, ends, SYN)), DENIED, "{flags:#04x}");
        assert_eq!(inbound(&mut firewall, 60_000, &tcp(true, ends, flags)), DENIED);
    }
}

#[test]
fn extension_headers_hide_no_ports() {
    let datagram =
        |ours: u16| [&9u16.to_be_bytes()[..], &ours.to_be_bytes(), &[0, 8, 0, 0]].concat();
    for extensions in [&[0u8][..], &[60], &[43], &[0, 60, 43, 60], &[60, 60, 60, 60]] {
        let mut firewall = firewall();
        let hidden = packet(true, extensions, UDP, &datagram(53));
        assert_eq!(inbound(&mut firewall, 1, &hidden), DENIED, "{extensions:?}");
        let call = [&53u16.to_be_bytes()[..], &9u16.to_be_bytes(), &[0, 8, 0, 0]].concat();
        outbound(&mut firewall, 2, &packet(false, &[], UDP, &call)).unwrap();
        assert_eq!(inbound(&mut firewall, 3, &hidden), Ok(()), "a known flow");
        let other = packet(true, extensions, UDP, &datagram(54));
        assert_eq!(inbound(&mut firewall, 4, &other), DENIED);
    }
    let mut firewall = firewall();
    let refused = |firewall: &mut Firewall, extensions: &[u8]| {
        inbound(firewall, 1, &packet(true, extensions, UDP, &datagram(53)))
    };
    assert_eq!(refused(&mut firewall, &[60; 5]), Err(DropReason::IpExtensionHeaders));
    // IPv4 and IPv6 in IP, GRE, ESP, AH, no next header and SCTP are refused as protocols without
    // ports.
    for protocol in [4, 41, 47, 50, 51, 59, 132] {
        assert_eq!(inbound(&mut firewall, 1, &packet(true, &[], protocol, &[0; 20])), DENIED);
    }
    assert_eq!(firewall.flows(), Some(0));
}
