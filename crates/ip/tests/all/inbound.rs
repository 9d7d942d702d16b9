//! Packets from other hosts: source addresses and ICMP errors that pass.

use std::net::Ipv6Addr;

use proptest::prelude::*;
use shoal_ip::{AddressGate, Packet, QuotedPacket};
use shoal_wire::DropReason;

const BOB: u32 = 5;
const EVE: u32 = 6;
const STRAY: Result<(), DropReason> = Err(DropReason::IpStrayError);
const ICMP: u8 = 1;
const UDP: u8 = 17;
const ICMPV6: u8 = 58;

/// This host, a machine behind it, bob, a machine behind bob, eve, nobody.
const V4: [&str; 6] = ["10.9.0.1", "10.1.0.7", "10.9.0.5", "10.5.0.7", "10.9.0.6", "10.9.0.99"];
const V6: [&str; 6] = ["fd00::1", "fd01::7", "fd00::5", "fd05::7", "fd00::6", "fd00::99"];
const US: usize = 0;
const BEHIND_US: usize = 1;
const OF_BOB: usize = 2;
const BEHIND_BOB: usize = 3;
const OF_EVE: usize = 4;
const NOBODY: usize = 5;

fn address(v6: bool, who: usize) -> Ipv6Addr {
    match v6 {
        true => V6[who].parse().unwrap(),
        false => format!("::ffff:{}", V4[who]).parse().unwrap(),
    }
}

fn gate() -> AddressGate {
    let mut gate = AddressGate::new(vec![address(false, US), address(true, US)], 1_374);
    for v6 in [false, true] {
        gate.add(BOB, address(v6, OF_BOB)).unwrap();
        gate.add(EVE, address(v6, OF_EVE)).unwrap();
        let bits = if v6 { 32 } else { 112 };
        gate.add_prefix(None, address(v6, BEHIND_US), bits).unwrap();
        gate.add_prefix(Some(BOB), address(v6, BEHIND_BOB), bits).unwrap();
    }
    gate
}

fn packet((from, to): (Ipv6Addr, Ipv6Addr), protocol: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes = match (from.to_ipv4_mapped(), to.to_ipv4_mapped()) {
        (Some(from), Some(to)) => {
            let mut head = vec![0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, protocol, 0, 0];
            head[2..4].copy_from_slice(&((20 + body.len()) as u16).to_be_bytes());
            head.extend([from.octets(), to.octets()].concat());
            head
        }
        _ => {
            let mut head = vec![0x60, 0, 0, 0, 0, 0, protocol, 64];
            head[4..6].copy_from_slice(&(body.len() as u16).to_be_bytes());
            head.extend([from.octets(), to.octets()].concat());
            head
        }
    };
    bytes.extend(body);
    bytes
}

fn between(v6: bool, from: usize, to: usize, protocol: u8, body: &[u8]) -> Vec<u8> {
    packet((address(v6, from), address(v6, to)), protocol, body)
}

/// Source port 7, destination port 9.
const DATAGRAM: [u8; 8] = [0, 7, 0, 9, 5, 0, 0, 0];

/// An ICMP error from `from` to this host that quotes `quoted`.
fn error(v6: bool, from: usize, kind: u8, quoted: &[u8]) -> Vec<u8> {
    let protocol = if v6 { ICMPV6 } else { ICMP };
    let body = [&[kind, 0, 0, 0, 0, 0, 0, 0], quoted].concat();
    between(v6, from, US, protocol, &body)
}

/// ICMP type of "fragmentation needed" or "packet too big".
fn too_big(v6: bool) -> u8 {
    if v6 { 2 } else { 3 }
}

fn passes(host: u32, bytes: &[u8]) -> Result<(), DropReason> {
    gate().inbound(host, bytes).map(drop)
}

#[test]
fn an_error_is_about_our_packets_to_its_sender() {
    for v6 in [false, true] {
        let told = |host, from, ends: (usize, usize)| {
            let quoted = between(v6, ends.0, ends.1, UDP, &DATAGRAM);
            passes(host, &error(v6, from, too_big(v6), &quoted))
        };
        for ours in [US, BEHIND_US] {
            assert_eq!(told(BOB, OF_BOB, (ours, OF_BOB)), Ok(()));
            assert_eq!(told(BOB, OF_BOB, (ours, BEHIND_BOB)), Ok(()), "bob is its gateway");
            assert_eq!(told(BOB, BEHIND_BOB, (ours, OF_BOB)), Ok(()), "a router behind bob");
            assert_eq!(told(BOB, BEHIND_BOB, (ours, BEHIND_BOB)), Ok(()));
            assert_eq!(told(EVE, OF_EVE, (ours, OF_EVE)), Ok(()));
            assert_eq!(told(EVE, OF_EVE, (ours, OF_BOB)), STRAY, "she is not bob");
            assert_eq!(told(EVE, OF_EVE, (ours, BEHIND_BOB)), STRAY);
            assert_eq!(told(BOB, OF_BOB, (ours, OF_EVE)), STRAY);
            assert_eq!(told(BOB, OF_BOB, (ours, NOBODY)), STRAY);
            assert_eq!(told(BOB, OF_BOB, (ours, US)), STRAY);
        }
        for source in [OF_BOB, BEHIND_BOB, OF_EVE, NOBODY] {
            assert_eq!(told(BOB, OF_BOB, (source, OF_BOB)), STRAY, "we did not send that");
            assert_eq!(told(BOB, OF_BOB, (source, US)), STRAY);
        }
    }
}

#[test]
fn quotes_cut_short_or_malformed_are_refused() {
    for v6 in [false, true] {
        let quoted = between(v6, US, OF_BOB, UDP, &DATAGRAM);
        let of = |quoted: &[u8]| passes(BOB, &error(v6, OF_BOB, too_big(v6), quoted));
        assert_eq!(of(&quoted), Ok(()));
        for len in 0..quoted.len() {
            assert_eq!(of(&quoted[..len]), STRAY, "{len} bytes");
        }
        // The quoted packet was longer than its quote.
        let mut longer = quoted.clone();
        longer[if v6 { 4 } else { 2 }] = 5;
        assert_eq!(of(&longer), Ok(()));
        assert_eq!(of(&between(!v6, US, OF_BOB, UDP, &DATAGRAM)), STRAY, "another version");
        // An error about an error, and a redirect.
        let (protocol, kind) = if v6 { (ICMPV6, 1) } else { (ICMP, 3) };
        assert_eq!(of(&between(v6, US, OF_BOB, protocol, &[kind; 8])), STRAY);
        let redirect = error(v6, OF_BOB, if v6 { 137 } else { 5 }, &quoted);
        assert_eq!(passes(BOB, &redirect), if v6 { Ok(()) } else { STRAY });
        let echo = if v6 { 128 } else { 8 };
        assert_eq!(of(&between(v6, US, OF_BOB, protocol, &[echo; 8])), Ok(()));
    }
    // Fragments and routing headers. Later fragments have no ports.
    for (flags, passed) in [(0x2000u16, Ok(())), (1, STRAY), (0x2001, STRAY)] {
        let mut fragment = between(false, US, OF_BOB, UDP, &DATAGRAM);
        fragment[6..8].copy_from_slice(&flags.to_be_bytes());
        assert_eq!(passes(BOB, &error(false, OF_BOB, 3, &fragment)), passed, "{flags:#x}");
    }
    for (extension, low, passed) in
        [(0, 0, Ok(())), (60, 0, Ok(())), (43, 0, STRAY), (44, 1, Ok(())), (44, 8, STRAY)]
    {
        let body = [&[UDP, 0, 0, low, 0, 0, 0, 0], &DATAGRAM[..]].concat();
        let quoted = between(true, US, OF_BOB, extension, &body);
        assert_eq!(passes(BOB, &error(true, OF_BOB, 1, &quoted)), passed, "{extension}");
    }
    // IPv4-mapped addresses in IPv6 headers belong to nobody.
    for (from, to) in
        [(address(false, US), address(true, OF_BOB)), (address(true, US), address(false, OF_BOB))]
    {
        let quoted = packet((from, to), UDP, &DATAGRAM);
        assert_eq!(quoted[0], 0x60);
        assert_eq!(passes(BOB, &error(true, OF_BOB, 1, &quoted)), STRAY);
    }
}

#[test]
fn an_error_in_fragments_is_refused() {
    for (flags, passed) in [(0x2000u16, STRAY), (0, Ok(())), (1, Ok(()))] {
        let mut bytes = error(false, OF_BOB, 3, &between(false, US, OF_BOB, UDP, &DATAGRAM));
        bytes.resize(60, 0);
        bytes[3] = 60;
        bytes[6..8].copy_from_slice(&flags.to_be_bytes());
        // A later fragment has no type; its first one decides.
        assert_eq!(passes(BOB, &bytes), passed, "{flags:#x}");
    }
}

#[test]
fn a_quote_has_addresses_and_ports() {
    for v6 in [false, true] {
        let (source, destination) = (address(v6, US), address(v6, OF_BOB));
        let read = |protocol, body: &[u8]| {
            let quoted = between(v6, US, OF_BOB, protocol, body);
            let bytes = error(v6, OF_BOB, too_big(v6), &quoted);
            Packet::parse(&bytes).unwrap().quote(&bytes)
        };
        let quote = |protocol, ports| Ok(QuotedPacket { source, destination, protocol, ports });
        assert_eq!(read(UDP, &DATAGRAM), quote(UDP, (7, 9)));
        assert_eq!(read(6, &DATAGRAM), quote(6, (7, 9)));
        assert_eq!(read(132, &DATAGRAM), quote(132, (0, 0)));
        let (icmp, echo) = if v6 { (ICMPV6, 128) } else { (ICMP, 8) };
        assert_eq!(read(icmp, &[echo, 0, 0, 0, 1, 2, 0, 0]), quote(icmp, (258, 258)));
    }
}

#[test]
fn packets_that_are_no_errors_have_no_quote() {
    for v6 in [false, true] {
        let protocol = if v6 { ICMPV6 } else { ICMP };
        for kind in 0..=255u8 {
            let bytes = between(v6, OF_BOB, US, protocol, &[kind, 0, 0, 0, 0, 0, 0, 0]);
            let error = if v6 { kind < 128 } else { [3, 4, 5, 11, 12].contains(&kind) };
            assert_eq!(passes(BOB, &bytes), if error { STRAY } else { Ok(()) }, "type {kind}");
        }
    }
}

#[test]
fn no_embedded_form_of_an_address_passes_for_it() {
    let (us, bob) = (address(true, US), address(true, OF_BOB));
    let written = |front: &str, of: usize| -> Ipv6Addr {
        let ipv4: std::net::Ipv4Addr = V4[of].parse().unwrap();
        let [a, b, c, d] = ipv4.octets().map(u16::from);
        match front {
            "2002::" => format!("2002:{:x}:{:x}::1", a << 8 | b, c << 8 | d).parse().unwrap(),
            front => format!("{front}{ipv4}").parse().unwrap(),
        }
    };
    let of = |from, to| passes(BOB, &packet((from, to), UDP, &DATAGRAM));
    assert_eq!(of(bob, us), Ok(()));
    // Mapped (RFC 4291), compatible, translated (RFC 6052, 2765), 6to4, ISATAP.
    let fronts = ["::ffff:", "::", "64:ff9b::", "64:ff9b:1::", "::ffff:0:", "2002::"];
    for front in fronts.into_iter().chain(["fd00::5efe:", "fd00::200:5efe:"]) {
        let mapped = front == "::ffff:";
        for who in [US, OF_BOB, BEHIND_BOB, OF_EVE] {
            let reason = |other| if mapped { DropReason::IpMalformed } else { other };
            let source = of(written(front, who), us);
            assert_eq!(source, Err(reason(DropReason::IpSpoofedSource)), "{front}");
            let destination = of(bob, written(front, who));
            assert_eq!(destination, Err(reason(DropReason::IpNoHost)), "{front}");
        }
    }
}

/// Addresses of a quote, parsed by simple code of this test.
fn ends(quoted: &[u8]) -> Option<(Ipv6Addr, Ipv6Addr)> {
    let v4 = |at: usize| {
        let octets: [u8; 4] = quoted.get(at..at + 4)?.try_into().ok()?;
        Some(std::net::Ipv4Addr::from(octets).to_ipv6_mapped())
    };
    let v6 = |at: usize| {
        let octets: [u8; 16] = quoted.get(at..at + 16)?.try_into().ok()?;
        Some(Ipv6Addr::from(octets))
    };
    match quoted.first()? >> 4 {
        4 => Some((v4(12)?, v4(16)?)),
        6 => Some((v6(8)?, v6(24)?)),
        _ => None,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

    /// An error from eve that passes quotes a packet between her and this host, as a kernel would
    /// parse it.
    #[test]
    fn no_error_of_eve_names_others(
        v6 in any::<bool>(),
        (from, to) in (0usize..6, 0usize..6),
        kind in 0u8..20,
        protocol in prop::sample::select(vec![0u8, 1, 6, 17, 43, 44, 50, 58, 60]),
        body in prop::collection::vec(any::<u8>(), 0..60),
        noise in prop::collection::vec((0usize..100, any::<u8>()), 0..3),
        cut in 0usize..120,
    ) {
        let mut quoted = between(v6, from, to, protocol, &body);
        for (at, byte) in noise {
            let at = at % quoted.len();
            quoted[at] = byte;
        }
        quoted.truncate(cut.max(1));
        let bytes = error(v6, OF_EVE, kind, &quoted);
        let packet = Packet::parse(&bytes).unwrap();
        if gate().inbound(EVE, &bytes).is_ok() && packet.is_error(&bytes) {
            let (source, destination) = ends(&quoted).unwrap();
            let net = |who| address(v6, who).octets()[..if v6 { 4 } else { 14 }].to_vec();
            let behind_us = source.octets().starts_with(&net(BEHIND_US));
            prop_assert!(source == address(v6, US) || behind_us);
            prop_assert_eq!(destination, address(v6, OF_EVE));
        }
    }
}
