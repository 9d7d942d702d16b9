use std::net::SocketAddr;

use super::*;
use crate::support::{TestRing, TestShell};

fn run(port: u16) -> ReceivedRun {
    let from = SocketAddr::from(([10, 0, 0, 1], port)).into();
    ReceivedRun { from, offset: 0, len: 192, stride: 192, congested: false }
}

#[test]
fn a_flood_of_unknown_frames_leaves_room_for_the_others() {
    let inbox = TestRing::default();
    let mut outbox = Outbox::<TestShell>::new(1, inbox.clone());
    for round in 0..3 {
        let mut taken = 0;
        while outbox.raw(0, ParcelKind::Unknown, &run(1), &[0; 1_440]) {
            taken += 1;
        }
        assert_eq!(taken, 46 * UNKNOWN, "round {round}");
        assert!(outbox.hand(0, ParcelKind::Opened, LinkId::from_bits(0), false, &[0; 192]));
        outbox.flush();
        while let Some(WorkerMessage::Parcel(parcel)) = inbox.take() {
            outbox.give_back(parcel);
        }
    }
}

#[test]
fn frames_arrive_as_they_were_and_a_full_ring_says_so() {
    let inbox = TestRing::default();
    let mut outbox = Outbox::<TestShell>::new(0, inbox.clone());
    assert!(!outbox.raw(0, ParcelKind::Raw, &run(1), &[0; 192]), "no worker hands to itself");
    let mut taken = 0u64;
    while outbox.raw(1, ParcelKind::Raw, &run((taken / 100) as u16), &[taken as u8; 192]) {
        taken += 1;
    }
    // A parcel has room for 345 small frames.
    assert_eq!(taken, 345 * PARCELS as u64);
    outbox.flush();
    let mut seen = 0u64;
    while let Some(WorkerMessage::Parcel(parcel)) = inbox.take() {
        assert_eq!((parcel.by, parcel.kind), (0, ParcelKind::Raw));
        for run in &parcel.runs {
            for at in (run.offset..run.offset + run.len).step_by(192) {
                assert_eq!(run.from.remote.port(), (seen / 100) as u16);
                let frame = &parcel.buffer[at as usize..at as usize + 192];
                assert!(frame.iter().all(|&b| b == seen as u8));
                seen += 1;
            }
        }
        outbox.give_back(parcel);
    }
    assert_eq!(seen, taken);
    assert!(outbox.raw(1, ParcelKind::Raw, &run(1), &[0; 1_440]), "parcels come back");
    assert_eq!(outbox.made, PARCELS);
}
#[test]
fn an_outbox_is_laden_then_full_then_empty_until_its_parcels_come_back() {
    let inbox = TestRing::default();
    let mut outbox = Outbox::<TestShell>::new(1, inbox.clone());
    let mut seen = Vec::new();
    for _ in 0..PARCELS {
        assert!(outbox.read(&[0; READ_MAX]), "one read fills a parcel");
        outbox.flush();
        seen.push((outbox.is_laden(), outbox.is_full()));
    }
    assert_eq!(seen.iter().filter(|(laden, _)| !laden).count(), PARCELS / 4 - 1);
    assert_eq!(seen.iter().filter(|(_, full)| *full).count(), PARCELS / 2 + 1);
    assert!(!outbox.plain(HostId::from_bits(3), &[0; 192]), "none is left");
    while let Some(WorkerMessage::Parcel(parcel)) = inbox.take() {
        assert_eq!((parcel.kind, parcel.reads.len()), (ParcelKind::Read, 1));
        outbox.give_back(parcel);
    }
    assert!(!outbox.is_laden() && !outbox.is_full());
    assert!(outbox.plain(HostId::from_bits(3), &[0; 192]));
    let link = LinkId::from_bits(9);
    assert!(outbox.cell(0, Some(link), &[1; 192]) && !outbox.cell(1, Some(link), &[1; 192]));
    outbox.flush();
    let mut taken = 0;
    while let Some(WorkerMessage::Parcel(parcel)) = inbox.take() {
        let links = parcel.frames.iter().map(|frame| frame.link).collect::<Vec<_>>();
        match parcel.kind {
            ParcelKind::Plain => assert_eq!(parcel.plain, [(HostId::from_bits(3), 0..192)]),
            ParcelKind::Opened => assert_eq!(links, [link]),
            kind => panic!("{kind:?}"),
        }
        assert_eq!((parcel.plain.len() + links.len(), parcel.reads.len()), (1, 0));
        taken += 1;
    }
    assert_eq!(taken, 2);
}
