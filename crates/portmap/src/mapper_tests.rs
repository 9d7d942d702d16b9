//! A mapper and a translator under a virtual clock.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::Duration;

use crate::{GrantedMapping, IgnoredAnswer, Mapper, MappingError, MappingProtocol};
use shoal_wire::Time;

const NONCE: [u8; 12] = [7; 12];
const OUTER: [u8; 4] = [203, 0, 113, 9];

fn inner() -> SocketAddrV4 {
    "192.168.1.7:7400".parse().unwrap()
}

/// A translator's treatment of requests.
#[derive(Clone, Copy, PartialEq)]
enum Translator {
    Pcp,
    /// Answers that PCP is unsupported, as RFC 6886 demands.
    NatPmp,
    /// Drops requests of an unknown protocol.
    SilentNatPmp,
    Silent,
    Refuses,
}

fn answer(translator: Translator, request: &[u8], lifetime_s: u32) -> Option<Vec<u8>> {
    let pcp = request[0] == 2;
    let mut out = request.to_vec();
    out[1] |= 0x80;
    match (translator, pcp) {
        (Translator::Silent, _) | (Translator::SilentNatPmp, true) => None,
        (Translator::NatPmp, true) => Some(vec![0, 0x81, 0, 1, 0, 0, 0, 9]),
        (Translator::Refuses, true) => {
            out[3] = 2;
            out[4..8].fill(0);
            Some(out)
        }
        _ if pcp => {
            let wanted = u32::from_be_bytes(request[4..8].try_into().unwrap());
            out[4..8].copy_from_slice(&wanted.min(lifetime_s).to_be_bytes());
            out[8..24].fill(0);
            if request[42..44] == [0, 0] {
                out[42..44].copy_from_slice(&40_000_u16.to_be_bytes());
                out[56..60].copy_from_slice(&OUTER);
            }
            Some(out)
        }
        _ if request.len() == 2 => Some([&[0, 0x80, 0, 0, 0, 0, 0, 9][..], &OUTER].concat()),
        _ => {
            let wanted = u32::from_be_bytes(request[8..12].try_into().unwrap());
            let port: u16 = if wanted == 0 { 0 } else { 40_000 };
            let mut out = vec![0, 0x81, 0, 0, 0, 0, 0, 9];
            out.extend(&request[4..6]);
            out.extend(port.to_be_bytes());
            out.extend(wanted.min(lifetime_s).to_be_bytes());
            Some(out)
        }
    }
}

struct MapperRig {
    now: Time,
    mapper: Mapper,
    translator: Translator,
    lifetime_s: u32,
    requests: usize,
}

impl MapperRig {
    fn new(translator: Translator) -> MapperRig {
        let now = Time::from_millis(1_000);
        let mapper = Mapper::new(inner(), NONCE, now);
        MapperRig { now, mapper, translator, lifetime_s: 3_600, requests: 0 }
    }

    /// Sends all requests, and handles the answers.
    fn drain(&mut self) {
        while let Some(request) = self.mapper.poll_transmit() {
            self.requests += 1;
            if let Some(bytes) = answer(self.translator, &request, self.lifetime_s) {
                self.mapper.handle_datagram(self.now, &bytes).unwrap();
            }
        }
    }

    fn run(&mut self, seconds: u64) {
        let until = self.now + Duration::from_secs(seconds);
        let mut turns = 0;
        while let Some(next) = self.mapper.poll_timeout().filter(|next| *next <= until) {
            self.now = next.max(self.now);
            self.mapper.handle_timeout(self.now);
            self.drain();
            turns += 1;
            assert!(turns < 20_000, "the mapper never rests");
        }
        self.now = until;
    }

    fn mapped(&self) -> Option<(SocketAddrV4, MappingProtocol)> {
        self.mapper.mapped().map(|mapped| (mapped.at, mapped.via))
    }
}

fn outer() -> SocketAddrV4 {
    SocketAddrV4::new(Ipv4Addr::from(OUTER), 40_000)
}

#[test]
fn each_kind_of_translator_is_asked_in_its_way() {
    let cases = [
        (Translator::Pcp, Some(MappingProtocol::Pcp), 0, 1),
        (Translator::NatPmp, Some(MappingProtocol::NatPmp), 0, 3),
        (Translator::SilentNatPmp, Some(MappingProtocol::NatPmp), 4, 5),
        (Translator::Silent, None, 30, 3 + 2 * 5),
    ];
    for (translator, via, seconds, requests) in cases {
        let mut world = MapperRig::new(translator);
        world.run(seconds);
        assert_eq!(world.mapped(), via.map(|via| (outer(), via)), "{via:?}");
        assert_eq!(world.requests, requests, "{via:?}");
    }
}

#[test]
fn a_port_is_kept_open_and_given_back() {
    for translator in [Translator::Pcp, Translator::NatPmp] {
        let mut world = MapperRig::new(translator);
        world.run(86_400);
        assert_eq!(world.mapped().unwrap().0, outer());
        // 3,600 s are granted, and the lifetime is renewed after half of that.
        let asked = world.mapper.stats().asked;
        assert!((47..=50).contains(&asked), "{asked}");
        world.mapper.end(world.now);
        world.drain();
        assert!(world.mapper.is_ended() && world.mapper.mapped().is_none());
        assert_eq!(world.mapper.poll_timeout(), None);
    }
}

#[test]
fn a_translator_that_falls_silent_is_told_from_one_that_is_there() {
    let mut world = MapperRig::new(Translator::Pcp);
    world.run(10);
    world.translator = Translator::Silent;
    world.run(3_000);
    assert!(world.mapped().is_some(), "the mapping holds until its end");
    world.run(700);
    assert_eq!((world.mapped(), world.mapper.fault()), (None, Some(MappingError::Silent)));
    let asked = world.requests;
    world.run(3_000);
    assert!(world.requests - asked <= 13 * 10, "a rest after each try");
    world.translator = Translator::NatPmp;
    world.run(400);
    assert_eq!(world.mapped(), Some((outer(), MappingProtocol::NatPmp)));
    // A port that could not be given back is forgotten nevertheless.
    world.translator = Translator::Silent;
    world.mapper.end(world.now);
    world.run(1);
    assert!(world.mapper.is_ended());
}

#[test]
fn a_refusal_is_told_and_not_repeated_at_once() {
    let mut world = MapperRig::new(Translator::Refuses);
    world.run(299);
    assert_eq!((world.mapper.fault(), world.requests), (Some(MappingError::Pcp(2)), 1));
    assert!(MappingError::Pcp(2).to_string().contains("PCP, code 2"));
    world.translator = Translator::Pcp;
    world.run(2);
    assert!(world.mapped().is_some() && world.mapper.fault().is_none());
}

#[test]
fn what_nobody_asked_for_has_no_effect_and_is_counted() {
    let mut world = MapperRig::new(Translator::Silent);
    let mapper = &mut world.mapper;
    mapper.handle_timeout(world.now);
    let request = mapper.poll_transmit().unwrap();
    let good = answer(Translator::Pcp, &request, 3_600).unwrap();
    let change = |at: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[at] ^= byte;
        bytes
    };
    // Another nonce, another port, another version; too short a life; NAT-PMP before it is asked.
    let address = [&[0, 0x80, 0, 0, 0, 0, 0, 9][..], &OUTER].concat();
    let mut brief = good.clone();
    brief[4..8].copy_from_slice(&9_u32.to_be_bytes());
    for bytes in [change(30, 1), change(41, 1), brief, address] {
        assert_eq!(
            mapper.handle_datagram(world.now, &bytes),
            Err(IgnoredAnswer::Unasked),
            "{bytes:?}"
        );
    }
    for bytes in [change(0, 1), good[..59].to_vec(), Vec::new(), vec![0; 2_000]] {
        assert_eq!(
            mapper.handle_datagram(world.now, &bytes),
            Err(IgnoredAnswer::Malformed),
            "{bytes:?}"
        );
    }
    assert_eq!(mapper.mapped(), None);
    assert_eq!(mapper.handle_datagram(world.now, &good), Ok(()));
    // A repeated answer, and one that moves the port, have no effect.
    for bytes in [good.clone(), change(43, 1)] {
        assert_eq!(mapper.handle_datagram(world.now, &bytes), Err(IgnoredAnswer::Unasked));
    }
    let stats = mapper.stats();
    assert_eq!((stats.answered, stats.unasked, stats.malformed), (1, 6, 4));
    let ends = world.now + Duration::from_secs(3_600);
    let mapped = GrantedMapping { at: outer(), via: MappingProtocol::Pcp, ends };
    assert!(mapper.mapped() == Some(mapped) && !mapped.is_private());
    assert!(GrantedMapping { at: "100.64.0.1:7".parse().unwrap(), ..mapped }.is_private());
}

/// In any order of datagrams each request has at most one answer, and few requests are sent.
#[test]
fn noise_changes_nothing_for_long() {
    let mut world = MapperRig::new(Translator::Silent);
    let mut state = 1_u64;
    let mut draw = move || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u8
    };
    for _ in 0..20_000 {
        let len = usize::from(draw() % 70);
        let mut bytes: Vec<u8> = (0..len).map(|_| draw()).collect();
        if let Some(first) = bytes.first_mut() {
            *first = [0, 2][usize::from(draw() % 2)];
        }
        let _ = world.mapper.handle_datagram(world.now, &bytes);
        world.now = world.now + Duration::from_millis(100);
        world.mapper.handle_timeout(world.now);
        let mut sent = 0;
        while world.mapper.poll_transmit().is_some() {
            sent += 1;
        }
        assert!(sent <= 2);
    }
    let stats = world.mapper.stats();
    assert_eq!(stats.answered + stats.malformed + stats.unasked, 20_000);
}
