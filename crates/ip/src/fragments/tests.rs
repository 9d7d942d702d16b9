use proptest::prelude::*;

use super::*;
use crate::Packet;

const HOST: u32 = 7;
const ALONE: Result<FragmentAction, DropReason> = Err(DropReason::IpFragmentAlone);
const BAD: Result<FragmentAction, DropReason> = Err(DropReason::IpFragment);
const DENIED: Result<FragmentAction, DropReason> = Err(DropReason::PolicyDenied);
const UDP: u8 = 17;
const TCP: u8 = 6;

/// The bytes `at..at + len` of datagram `id`.
fn packet(v6: bool, id: u32, protocol: u8, at: u16, len: u16, more: bool) -> Vec<u8> {
    let mut bytes = if v6 {
        let mut head = vec![0x60, 0, 0, 0, 0, 0, 44, 64];
        head[4..6].copy_from_slice(&(8 + len).to_be_bytes());
        head.extend([&[0xfd], &[0; 14][..], &[1, 0xfd], &[0; 14], &[2]].concat());
        head.extend([protocol, 0]);
        head.extend((at | u16::from(more)).to_be_bytes());
        head.extend(id.to_be_bytes());
        head
    } else {
        let mut head =
            vec![0x45, 0, 0, 0, 0, 0, 0, 0, 64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
        head[2..4].copy_from_slice(&(20 + len).to_be_bytes());
        head[4..6].copy_from_slice(&(id as u16).to_be_bytes());
        head[6..8].copy_from_slice(&((u16::from(more) << 13) | (at / 8)).to_be_bytes());
        head
    };
    bytes.extend((0..len).map(|i| at.wrapping_add(i) as u8));
    bytes
}

/// Handles a fragment; the first fragments have port 0x0203, which is permitted.
fn take(
    all: &mut Fragments,
    ms: u64,
    bytes: &[u8],
    first: Result<(), DropReason>,
) -> Result<FragmentAction, DropReason> {
    let packet = Packet::parse(bytes)?;
    all.take(Time::from_millis(ms), HOST, (&packet, bytes), || first)
}

fn drops(all: &mut Fragments, ms: u64) -> u64 {
    all.take_drops(Time::from_millis(ms)).map(|(_, n)| n).sum()
}

#[test]
fn later_fragments_follow_the_first_one() {
    for v6 in [false, true] {
        let part = |id, at, more| packet(v6, id, UDP, at, 80, more);
        let mut all = Fragments::default();
        for (id, verdict, then) in [
            (1, Ok(()), [Ok(FragmentAction::Release), Ok(FragmentAction::Pass)]),
            (2, Err(DropReason::PolicyDenied), [DENIED, DENIED]),
        ] {
            assert_eq!(take(&mut all, 1, &part(id, 0, true), verdict), then[0]);
            assert_eq!(take(&mut all, 2, &part(id, 160, false), Ok(())), then[1]);
            assert_eq!(take(&mut all, 3, &part(id, 80, true), Ok(())), then[1]);
        }
        assert!(all.is_empty(), "the whole datagram has arrived");
        // The identification is reused.
        assert_eq!(take(&mut all, 4, &part(2, 0, true), Ok(())), Ok(FragmentAction::Release));
        assert_eq!(drops(&mut all, 4), 0);
    }
}

#[test]
fn what_comes_before_the_first_waits_for_it() {
    for v6 in [false, true] {
        let part = |id, at, more| packet(v6, id, UDP, at, 80, more);
        let mut all = Fragments::default();
        for id in [1, 2] {
            assert_eq!(take(&mut all, 1, &part(id, 160, false), Ok(())), Ok(FragmentAction::Wait));
            assert_eq!(take(&mut all, 2, &part(id, 80, true), Ok(())), Ok(FragmentAction::Wait));
        }
        assert_eq!(take(&mut all, 500, &part(1, 0, true), Ok(())), Ok(FragmentAction::Release));
        let released: Vec<_> = all.take_released().collect();
        assert_eq!(released, [part(1, 160, false), part(1, 80, true)].map(Into::into));
        let denied = Err(DropReason::PolicyDenied);
        assert_eq!(take(&mut all, 500, &part(2, 0, true), denied), DENIED);
        assert_eq!((drops(&mut all, 500), all.take_released().count()), (2, 0));
        // Fragments without a first one are dropped after a while.
        assert_eq!(take(&mut all, 600, &part(3, 80, true), Ok(())), Ok(FragmentAction::Wait));
        assert_eq!((drops(&mut all, 1_599), drops(&mut all, 1_600)), (0, 1));
        assert!(all.is_empty() && all.bytes == 0);
    }
}

#[test]
fn a_verdict_holds_for_a_while() {
    let part = |id, at| packet(false, id, UDP, at, 80, true);
    let mut all = Fragments::default();
    assert_eq!(take(&mut all, 0, &part(1, 0), Ok(())), Ok(FragmentAction::Release));
    assert_eq!(take(&mut all, 14_999, &part(1, 80), Ok(())), Ok(FragmentAction::Pass));
    assert_eq!(take(&mut all, 15_000, &part(1, 160), Ok(())), Ok(FragmentAction::Wait));
    // An identification that is reused after a silence belongs to another datagram.
    assert_eq!(take(&mut all, 20_000, &part(2, 0), Ok(())), Ok(FragmentAction::Release));
    assert_eq!(take(&mut all, 20_999, &part(2, 0), Ok(())), BAD);
    assert_eq!(take(&mut all, 21_000, &part(2, 80), Ok(())), BAD, "the datagram is refused");
    assert_eq!(take(&mut all, 22_000, &part(2, 0), Ok(())), Ok(FragmentAction::Release));
}

#[test]
fn other_datagrams_of_the_same_number_are_others() {
    let mut all = Fragments::default();
    let first = packet(false, 1, UDP, 0, 80, true);
    assert_eq!(take(&mut all, 1, &first, Ok(())), Ok(FragmentAction::Release));
    let (at, more) = (80, false);
    let tcp = packet(false, 1, TCP, at, 80, more);
    assert_eq!(take(&mut all, 1, &tcp, Ok(())), Ok(FragmentAction::Wait), "another protocol");
    let mut other = packet(false, 1, UDP, at, 80, more);
    other[15] = 9;
    assert_eq!(take(&mut all, 1, &other, Ok(())), Ok(FragmentAction::Wait), "another source");
    let bytes = packet(false, 1, UDP, at, 80, more);
    let parsed = Packet::parse(&bytes).unwrap();
    let of_other = all.take(Time::ZERO, 8, (&parsed, &bytes), || Ok(()));
    assert_eq!(of_other, Ok(FragmentAction::Wait), "another host");
    // The protocol does not identify an IPv6 datagram (RFC 8200 section 4.5).
    let first = packet(true, 1, UDP, 0, 80, true);
    assert_eq!(take(&mut all, 1, &first, Ok(())), Ok(FragmentAction::Release));
    let tcp = packet(true, 1, TCP, at, 80, more);
    assert_eq!(take(&mut all, 1, &tcp, Ok(())), Ok(FragmentAction::Pass));
}

#[test]
fn tiny_and_contradictory_fragments_are_refused() {
    for v6 in [false, true] {
        let parse = |protocol, at, len, more| {
            let bytes = packet(v6, 1, protocol, at, len, more);
            Packet::parse(&bytes).map(drop)
        };
        let tiny = Err(DropReason::IpFragment);
        assert_eq!(parse(TCP, 0, 16, true), tiny, "RFC 1858");
        assert_eq!(parse(TCP, 8, 80, true), tiny, "RFC 3128");
        assert_eq!(parse(TCP, 16, 80, false), tiny);
        assert_eq!(parse(TCP, 0, 24, true), Ok(()));
        assert_eq!(parse(TCP, 24, 1, false), Ok(()));
        assert_eq!(parse(UDP, 0, 8, true), Ok(()));
        assert_eq!(parse(UDP, 8, 8, true), Ok(()));
        let malformed = Err(DropReason::IpMalformed);
        assert_eq!(parse(UDP, 0, 81, true), malformed, "no multiple of 8");
        assert_eq!(parse(UDP, 80, 0, true), malformed, "empty");
        assert_eq!(parse(UDP, 80, 0, false), malformed, "empty");
        assert_eq!(parse(UDP, 65_528, 7, false), if v6 { Ok(()) } else { malformed });
        assert_eq!(parse(UDP, 65_512, 24, false), malformed, "behind the longest datagram");
    }
    // A packet whose fragment header makes it no fragment is a whole packet (RFC 6946).
    let bytes = packet(true, 1, UDP, 0, 80, false);
    let packet = Packet::parse(&bytes).unwrap();
    assert_eq!((packet.fragment, packet.payload_at, packet.protocol), (None, 48, UDP));
}

#[test]
fn a_host_has_a_bounded_share() {
    let mut all = Fragments::default();
    let later = |id| packet(true, id, UDP, 80, 1_200, true);
    let room = WAITING_MAX.0 / later(0).len();
    for id in 0..2_000 {
        let taken = take(&mut all, 1, &later(id), Ok(()));
        match (id as usize) < room {
            true => assert_eq!(taken, Ok(FragmentAction::Wait), "{id}"),
            false => assert!([Ok(FragmentAction::Wait), ALONE].contains(&taken), "{id}"),
        }
        assert!(all.bytes <= WAITING_MAX.0 && all.len() <= DATAGRAMS_MAX.0);
    }
    // Another host has room, and the newest datagrams are kept.
    let first = packet(true, 1_999, UDP, 0, 80, true);
    let parsed = Packet::parse(&first).unwrap();
    let other = all.take(Time::from_millis(1), 8, (&parsed, &first), || Ok(()));
    assert_eq!(other, Ok(FragmentAction::Release));
    for host in 0..100 {
        for id in 0..100 {
            let bytes = later(id);
            let parsed = Packet::parse(&bytes).unwrap();
            let _ = all.take(Time::from_millis(2), 100 + host, (&parsed, &bytes), || Ok(()));
            assert!(all.bytes <= WAITING_MAX.1 && all.len() <= DATAGRAMS_MAX.1);
        }
    }
    let largest = all.by_size.last().unwrap().0;
    assert!(largest <= 101, "the host with most datagrams lost some: {largest}");
    for ms in 0..300 {
        all.take_drops(Time::from_millis(20_000 + ms)).for_each(drop);
    }
    assert!(all.is_empty() && all.bytes == 0 && all.shares.is_empty() && all.by_size.is_empty());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    /// No byte passes twice, and none before the first fragment, in any order of fragments.
    #[test]
    fn no_byte_passes_twice(
        v6 in any::<bool>(),
        parts in prop::collection::vec((0u16..24, 1u16..6, any::<bool>()), 1..40),
        may in any::<bool>(),
    ) {
        let mut all = Fragments::default();
        let (mut passed, mut began) = (vec![false; 400], false);
        for (at, len, more) in parts {
            let bytes = packet(v6, 1, UDP, at * 8, len * 8, more);
            let packet = Packet::parse(&bytes).unwrap();
            let verdict = if may { Ok(()) } else { Err(DropReason::PolicyDenied) };
            let taken = take(&mut all, 1, &bytes, verdict);
            let mut out = Vec::new();
            match taken {
                Ok(FragmentAction::Release) => {
                    began = true;
                    out.push(bytes.clone());
                    out.extend(all.take_released().map(Vec::from));
                }
                Ok(FragmentAction::Pass) => out.push(bytes.clone()),
                _ => {}
            }
            prop_assert!(packet.fragment.is_none() || out.is_empty() || may && began);
            let mut ends = false;
            for one in out {
                let Some(part) = Packet::parse(&one).unwrap().fragment else { continue };
                ends |= all.is_empty();
                for seen in &mut passed[usize::from(part.at)..usize::from(part.end)] {
                    prop_assert!(!core::mem::replace(seen, true));
                }
            }
            // The whole datagram has arrived: its identification may be reused.
            if ends {
                (passed, began) = (vec![false; 400], false);
            }
        }
    }

    /// Fragments of a datagram in any order: all pass.
    #[test]
    fn any_order_passes(
        v6 in any::<bool>(),
        order in Just((0u16..48).collect::<Vec<_>>()).prop_shuffle(),
    ) {
        let mut all = Fragments::default();
        let mut passed = 0;
        for nth in order {
            let bytes = packet(v6, 1, UDP, nth * 1_240, 1_240, nth < 47);
            match take(&mut all, 1, &bytes, Ok(())).unwrap() {
                FragmentAction::Release => passed += 1 + all.take_released().count(),
                FragmentAction::Pass => passed += 1,
                FragmentAction::Wait => {}
            }
        }
        prop_assert_eq!(passed, 48);
        prop_assert!(all.is_empty());
    }
}
