//! Frames made from docs/design/wire without this code: accepted, and reproduced.

#[path = "../../wire/tests/vectors/mod.rs"]
mod vectors;

use shoal_crypto::{Identity, NetworkSecret, NetworkSecrets, Secret, Suite};
use shoal_wire::{Address, DropReason, Level, Time};

use crate::config::{OpenResult, PeerId, SessionConfig, SessionRole};
use crate::keys::SessionTerms;
use crate::masks::IndexMasks;
use crate::noise::Split;
use crate::sessions::Sessions;
use crate::slots::SessionIndex;

pub(crate) fn vector(name: &str) -> Vec<u8> {
    vectors::vector("session", name)
}

/// Bytes of a vector file of another folder.
pub(crate) fn vector_of(folder: &str, name: &str) -> Vec<u8> {
    vectors::vector(folder, name)
}

fn machine(role: SessionRole, seed: u8) -> Sessions<Address> {
    let identity = Identity::from_seed([seed; 32]);
    let secret = NetworkSecret([1; 32]);
    Sessions::new(SessionConfig::new(role), identity, secret, [seed; 32], Time::ZERO, 0)
}

/// Properties of a vector's session.
#[derive(Clone, Copy)]
struct Made {
    role: SessionRole,
    suite: Suite,
    level: Level,
}

/// A machine with the session of the frame vectors, at its own index 05000007.
fn with_session(made: Made, initiator: bool) -> (Sessions<Address>, PeerId) {
    let Made { role, suite, level } = made;
    let mut sessions = machine(role, 1);
    sessions.masks = IndexMasks::with_key([12; 32]);
    sessions.slots.tell_masks(&sessions.masks);
    let peer = sessions.add_peer(Identity::from_seed([9; 32]).public()).unwrap();
    let mut index = sessions.slots.reserve().unwrap();
    while index.raw() != 7 {
        index = sessions.slots.reserve().unwrap();
    }
    while index.raw() != 0x0500_0007 {
        sessions.slots.release(index);
        index = sessions.slots.reserve().unwrap();
    }
    let split = Split { forth: Secret::new([14; 32]), back: Secret::new([15; 32]) };
    let terms = SessionTerms {
        role,
        peer,
        suite,
        lanes: 2,
        level,
        initiator,
        rekey_age: core::time::Duration::from_secs(120),
        small: false,
        epoch: 0,
        peer_index: 0x0500_0007,
        peer_mask: Secret::new([12; 32]),
        window: 2_048,
    };
    sessions.slots.fill(Time::ZERO, index, &split, &terms);
    sessions.promote(Time::ZERO, peer, index);
    (sessions, peer)
}

fn check(name: &str, made: Made, initiator: bool, lane: u8, counter: u32) {
    let role = made.role;
    let golden = vector(name);
    let off = if role == SessionRole::Edge { 15 } else { 0 };
    let len = golden.len() - off;
    let (mut receiver, peer) = with_session(made, !initiator);
    let mut frame = golden.clone();
    let mut out = Vec::new();
    receiver.open_batch(Time::ZERO, &mut frame, &[off as u32], len, &mut out);
    let opened = out[0].opened().unwrap();
    assert_eq!((opened.peer, opened.lane, opened.counter), (peer, lane, counter), "{name}");
    assert!(frame[off + 9..off + len - 16].iter().enumerate().all(|(i, b)| *b == i as u8));

    let (mut sender, peer) = with_session(made, initiator);
    let index = SessionIndex::split(0x0500_0007).0;
    sender.slots.own.set_counter(index, lane, counter);
    frame[off..off + 8].fill(0);
    frame[off + len - 16..].fill(0);
    sender.seal_batch(Time::ZERO, peer, lane, &mut frame, &[off as u32], len).unwrap();
    assert_eq!(frame, golden, "{name}");
}

#[test]
fn golden_frames_open_and_are_made_again() {
    let made = |role, suite| Made { role, suite, level: Level::Encrypt };
    let (link, edge) = (SessionRole::Link, SessionRole::Edge);
    check("frame-link", made(link, Suite::Aes256Gcm), true, 1, 5);
    check("frame-chacha", made(link, Suite::ChaCha20Poly1305), false, 0, 1 << 28);
    check("frame-aegis", made(link, Suite::Aegis256X4), true, 0, 77);
    check("frame-aegis-256", made(link, Suite::Aegis256), true, 0, 78);
    check("frame-aegis-256x2", made(link, Suite::Aegis256X2), true, 0, 79);
    check("frame-edge", made(edge, Suite::Aes256Gcm), true, 0, 0);
    check("frame-edge-aegis", made(edge, Suite::Aegis256X4), false, 1, 1);
}

#[test]
fn golden_frames_of_the_lower_levels() {
    let made = |suite, level| Made { role: SessionRole::Link, suite, level };
    let (aes, chacha) = (Suite::Aes256Gcm, Suite::ChaCha20Poly1305);
    check("frame-authenticate", made(aes, Level::Authenticate), true, 2, 7);
    check("frame-none", made(chacha, Level::None), false, 2, 8);
    check("frame-authenticate-aegis", made(Suite::Aegis256X4, Level::Authenticate), true, 2, 10);
    check("frame-none-aegis", made(Suite::Aegis256X4, Level::None), true, 2, 11);
    check("frame-none-control", made(aes, Level::None), true, 1, 9);
    let refused = |name, level| {
        let (mut receiver, _) = with_session(made(aes, level), false);
        let (mut frame, mut out) = (vector(name), Vec::new());
        let len = frame.len();
        receiver.open_batch(Time::ZERO, &mut frame, &[0], len, &mut out);
        assert_eq!(out[0], OpenResult::Drop(DropReason::BadTag), "{name}");
    };
    refused("bad-frame-authenticate", Level::Authenticate);
    refused("bad-frame-level", Level::Authenticate);
    refused("bad-frame-lane", Level::Authenticate);
    refused("frame-none-control", Level::Encrypt);
}

#[test]
fn golden_refusals() {
    let cases = [
        ("bad-version", Err(DropReason::BadVersion)),
        ("bad-padding", Err(DropReason::Malformed)),
        ("bad-date", Err(DropReason::WrongClock)),
        ("bad-shown", Ok(())),
        ("bad-role", Err(DropReason::BadHandshake)),
        ("bad-noise", Ok(())),
        ("bad-lead", Ok(())),
        ("bad-cookie", Err(DropReason::CookieRequired)),
        ("request", Ok(())),
    ];
    for (name, want) in cases {
        let mut responder = machine(SessionRole::Link, 2);
        let mut frame = vector(name);
        let result = responder.handle_handshake(Time::ZERO, Address::new(1, 1), &mut frame);
        assert_eq!(result, want, "{name}");
        let Some(job) = responder.poll_job() else {
            assert!(want.is_err());
            continue;
        };
        responder.handle_done(Time::ZERO, job.run());
        let late = match name {
            "request" => DropReason::UnknownPeer,
            "bad-shown" => DropReason::Malformed,
            _ => DropReason::BadHandshake,
        };
        assert_eq!(responder.drops()[late as usize], 1, "{name}");
        assert!(responder.poll_transmit(Time::ZERO, &mut [0; 1_440]).is_none());
    }
}

#[test]
fn the_secret_of_addresses_that_shift_is_that_of_the_document() {
    let split = Split { forth: Secret::new([14; 32]), back: Secret::new([15; 32]) };
    let made =
        crate::keys::shift_secret(SessionRole::Link, &split).map(|secret| secret.expose().to_vec());
    assert_eq!(made, Some(vector_of("shift", "secret")));
    assert!(crate::keys::shift_secret(SessionRole::Edge, &split).is_none());
}

#[test]
fn what_two_neighbours_share_before_they_meet_is_that_of_the_document() {
    let secrets = [1, 4].map(|n| NetworkSecret([n; 32]));
    let [first, other] = secrets.clone();
    for (own, far, secrets) in [
        (2, 3, NetworkSecrets { first: secrets[0].clone(), other: Some(secrets[1].clone()) }),
        (3, 2, NetworkSecrets { first, other: Some(other) }),
    ] {
        let mut machine = machine(SessionRole::Link, own);
        let far = Identity::from_seed([far; 32]).public();
        let peer = machine.add_peer(far).unwrap();
        machine.set_secrets(secrets);
        let (first, other) = machine.meeting_secrets(peer).unwrap();
        let both = [*first.expose(), *other.unwrap().expose()].concat();
        assert_eq!(both, vector_of("shift", "meeting"));
    }
    let mut hosts = machine(SessionRole::Edge, 2);
    let peer = hosts.add_peer(Identity::from_seed([3; 32]).public()).unwrap();
    let (first, other) = hosts.meeting_secrets(peer).unwrap();
    assert!(other.is_none() && first.expose()[..] != vector_of("shift", "meeting")[..32]);
}
