//! Levels below encryption: how they are agreed on, and what a lane of each level protects.

use crate::world::{Knobs, SMALL, World, link};
use shoal_session::{OpenResult, PeerId, SessionConfig, SessionEvent};
use shoal_wire::{DropReason, Level, Time};

/// Two nodes that accept these levels from each other, with a session.
fn pair(config: &SessionConfig, weakest: [Level; 2]) -> World {
    let mut world = World::new(2, config, Knobs::default());
    for (i, weakest) in weakest.into_iter().enumerate() {
        let peer = world.peer(i, 1 - i);
        world.nodes[i].sessions.set_weakest(peer, weakest);
    }
    world.connect(0, 1);
    world.run_ms(2_000);
    world
}

/// Level of the newest session, from this node's events.
fn level(world: &World, i: usize) -> Option<Level> {
    let of = |event: &SessionEvent| match event {
        SessionEvent::Established { level, .. } => Some(*level),
        _ => None,
    };
    world.nodes[i].events.iter().rev().find_map(of)
}

/// A frame of kind 4 and a known body, sealed on this lane.
fn frame(world: &mut World, i: usize, lane: u8) -> Result<Vec<u8>, DropReason> {
    let mut buf = vec![0x5a; SMALL];
    buf[8] = 4;
    let (peer, now): (PeerId, Time) = (world.peer(i, 1 - i), world.now);
    world.nodes[i].sessions.seal_batch(now, peer, lane, &mut buf, &[0], SMALL)?;
    Ok(buf)
}

fn open(world: &mut World, i: usize, frame: &[u8]) -> Result<Level, DropReason> {
    let (mut buf, mut out, now) = (frame.to_vec(), Vec::new(), world.now);
    world.nodes[i].sessions.open_batch(now, &mut buf, &[0], SMALL, &mut out);
    out[0].opened().map(|opened| {
        assert!(buf[9..SMALL - 16].iter().all(|&byte| byte == 0x5a));
        opened.level
    })
}

#[test]
fn the_stronger_of_both_ends_holds_whoever_calls() {
    for lanes in [1, 3, 16] {
        let mut config = link();
        config.lanes = lanes;
        for a in Level::ALL {
            for b in Level::ALL {
                let mut world = pair(&config, [a, b]);
                let agreed = a.min(b);
                assert_eq!((level(&world, 0), level(&world, 1)), (Some(agreed), Some(agreed)));
                for i in [0, 1] {
                    let (now, peer) = (world.now, world.peer(i, 1 - i));
                    let sessions = &world.nodes[i].sessions;
                    let encrypted = if agreed == Level::Encrypt { lanes } else { lanes.min(8) };
                    assert_eq!(sessions.lanes(now, peer), encrypted);
                    let plain = (agreed != Level::Encrypt).then_some(encrypted);
                    assert_eq!(sessions.plain_from(now, peer), plain);
                    for lane in 0..encrypted {
                        let frame = frame(&mut world, i, lane).unwrap();
                        assert_eq!(open(&mut world, 1 - i, &frame), Ok(Level::Encrypt));
                    }
                    let beyond = if plain.is_some() { 2 * encrypted } else { encrypted };
                    for lane in encrypted..beyond {
                        let frame = frame(&mut world, i, lane).unwrap();
                        assert_eq!(open(&mut world, 1 - i, &frame), Ok(agreed));
                    }
                    assert_eq!(frame(&mut world, i, beyond), Err(DropReason::NotAllowed));
                }
            }
        }
    }
}

#[test]
fn each_level_protects_what_it_says() {
    for agreed in [Level::Authenticate, Level::None] {
        let mut world = pair(&link(), [agreed; 2]);
        let contains = |frame: &[u8]| frame[8] == 4 && frame[9..176].iter().all(|&b| b == 0x5a);
        let encrypted = frame(&mut world, 0, 0).unwrap();
        assert!(!contains(&encrypted), "control stays encrypted");
        let mut changed = encrypted.clone();
        changed[60] ^= 1;
        assert_eq!(open(&mut world, 1, &changed), Err(DropReason::BadTag));
        let plain = frame(&mut world, 0, 1).unwrap();
        assert!(contains(&plain), "{agreed:?} hides nothing");
        let mut changed = plain.clone();
        changed[176] ^= 1;
        assert!(open(&mut world, 1, &changed).is_err(), "a forged tag");
        changed = plain.clone();
        changed[60] ^= 1;
        if agreed == Level::Authenticate {
            assert_eq!(open(&mut world, 1, &changed), Err(DropReason::BadTag));
            assert_eq!(open(&mut world, 1, &plain), Ok(agreed));
        } else {
            assert_eq!(open(&mut world, 1, &plain), Ok(agreed));
        }
        assert_eq!(open(&mut world, 1, &plain), Err(DropReason::Replayed));
        // Two frames with equal bodies differ in header and tag.
        let again = frame(&mut world, 0, 1).unwrap();
        assert!((0..8).any(|at| plain[at] != again[at]) && plain[176..] != again[176..]);
    }
}

#[test]
fn what_a_peer_chose_and_we_did_not_offer_makes_no_session() {
    let mut world = World::new(2, &link(), Knobs::default());
    let peers = [world.peer(0, 1), world.peer(1, 0)];
    world.nodes[0].sessions.set_weakest(peers[0], Level::None);
    world.nodes[1].sessions.set_weakest(peers[1], Level::None);
    world.knobs.delay_ms = 100;
    world.connect(0, 1);
    // The offer is withdrawn while the answer is on its way.
    world.run_ms(150);
    world.nodes[0].sessions.set_weakest(peers[0], Level::Encrypt);
    world.run_ms(100);
    assert_eq!((level(&world, 0), world.drops(0, DropReason::BadVersion)), (None, 1));
    // The next request offers nothing weaker than encryption, and gets it.
    world.run_ms(3_000);
    assert_eq!(level(&world, 0), Some(Level::Encrypt));
}

#[test]
fn new_keys_have_the_same_level() {
    let mut world = pair(&link(), [Level::None; 2]);
    let before = world.established(0);
    let (now, peer) = (world.now, world.peer(0, 1));
    world.nodes[0].sessions.reconnect(now, peer);
    world.drain(0);
    world.run_ms(1_000);
    assert!(world.established(0) > before);
    assert_eq!((level(&world, 0), level(&world, 1)), (Some(Level::None), Some(Level::None)));
}

/// Passes a frame to each worker and returns their results; changed bytes are restored.
fn arrive(world: &mut World, i: usize, frame: &[u8]) -> Vec<OpenResult> {
    let (now, node) = (world.now, &mut world.nodes[i]);
    let mut openings = Vec::new();
    node.sessions.open_batch(now, &mut frame.to_vec(), &[0], SMALL, &mut openings);
    for share in &mut node.shares {
        share.open_batch(now, &mut frame.to_vec(), &[0], SMALL, &mut openings);
    }
    openings
}

#[test]
fn a_plain_twin_has_the_holders_of_its_lane_and_is_opened_once_by_one_worker() {
    for workers in [1, 2, 4] {
        for agreed in [Level::Authenticate, Level::None] {
            let mut config = link();
            (config.lanes, config.workers) = (workers * workers, workers);
            let mut world = pair(&config, [agreed; 2]);
            let (now, peer) = (world.now, world.peer(0, 1));
            assert_eq!((level(&world, 0), level(&world, 1)), (Some(agreed), Some(agreed)));
            let encrypted = world.nodes[0].sessions.lanes(now, peer);
            assert_eq!(encrypted, (workers * workers).min(8));
            for lane in 0..encrypted {
                let [own, twin] = [lane, lane + encrypted].map(|lane| {
                    let node = &mut world.nodes[0];
                    let mut frame = vec![0x5a; SMALL];
                    let first = node.sessions.seal_batch(now, peer, lane, &mut frame, &[0], SMALL);
                    let others = node.shares.iter_mut();
                    let others = others
                        .map(|share| share.seal_batch(now, peer, lane, &mut frame, &[0], SMALL));
                    let sealed: Vec<bool> =
                        core::iter::once(first).chain(others).map(|r| r.is_ok()).collect();
                    let openings = arrive(&mut world, 1, &frame);
                    let opener = openings.iter().position(|o| matches!(o, OpenResult::Data(_)));
                    let opener = opener.expect("a worker opens the frame");
                    for (worker, opening) in openings.iter().enumerate() {
                        let other =
                            matches!(opening, OpenResult::Worker(to) if usize::from(*to) == opener);
                        assert!(worker == opener || other, "{opening:?}");
                    }
                    let again = arrive(&mut world, 1, &frame)[opener].opened();
                    assert_eq!(again.map(|o| o.lane), Err(DropReason::Replayed));
                    let level = openings[opener].opened().expect("the frame opens").level;
                    assert_eq!(level == agreed, lane >= encrypted);
                    (sealed, opener)
                });
                assert_eq!(own.0.iter().filter(|sealed| **sealed).count(), 1);
                assert_eq!(own, twin, "{workers} workers, lane {lane}");
            }
        }
    }
}
