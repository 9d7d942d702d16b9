//! Set-up work on another thread, and the limits that keep a flood of it off.

use shoal_crypto::{Processor, SuiteSupport, Suites};
use shoal_crypto::{Secret, StandardCiphers};
use shoal_session::outer::{OuterSeal, OuterSeals};

use super::*;
use crate::setup::{Bond, Cookie};
use crate::{SetupJob, SetupJobResult, setup};

impl World {
    /// Delivers all cells on the wire, and leaves the nodes' jobs undone.
    fn step(&mut self) -> Vec<CarriedCell> {
        self.collect_cells();
        let wire = core::mem::take(&mut self.wire);
        for seen in &wire {
            self.hand(seen);
        }
        wire
    }

    fn jobs(&mut self, at: Address) -> Vec<SetupJob<WatchedCiphers>> {
        let node = self.node(at);
        core::iter::from_fn(|| node.poll_job()).collect()
    }

    fn done(&mut self, at: Address, done: SetupJobResult) -> Result<(), DropReason> {
        let now = self.now;
        self.node(at).handle_done(now, done)
    }

    /// Makes the first messages of all circuits of A, and drops their further jobs.
    fn creates(&mut self, path: &[Address], count: usize) -> Vec<CircuitId> {
        let ids = (0..count).map(|_| self.begin(path, 3)).collect();
        for job in self.jobs(A) {
            self.done(A, job.run()).unwrap();
        }
        ids
    }
}

fn count(world: &World, at: Address, reason: DropReason) -> usize {
    world.drops.iter().filter(|drop| **drop == (at, reason)).count()
}

#[test]
fn public_key_work_is_left_to_another_thread() {
    let mut world = World::new();
    let id = world.begin(&relays(1), 1);
    assert!(world.step().is_empty(), "nothing is sent before its work is done");
    let job = world.jobs(A).remove(0);
    assert_eq!(format!("{job:?}"), "Job(begin)");
    world.done(A, job.run()).unwrap();
    assert_eq!(world.step().len(), 1);
    assert_eq!((world.node(relay(1)).len(), world.step().len()), (0, 0));
    let job = world.jobs(relay(1)).remove(0);
    assert_eq!(format!("{job:?}"), "Job(answer)");
    let done = job.run();
    // The circuit ends while its hop works, so the result belongs to no circuit.
    world.node(A).close(id);
    world.done(relay(1), done).unwrap();
    assert_eq!((world.step().len(), world.node(relay(1)).len()), (1, 1));
    assert_eq!(world.drops, [(A, DropReason::UnknownCircuit)]);
    let _ = world.begin(&relays(1), 1);
    let job = world.jobs(A).remove(0);
    world.pass(Duration::from_secs(11));
    assert_eq!(world.done(A, job.run()), Err(DropReason::UnexpectedReply));
    assert_eq!(world.circuits(), 0);
}

#[test]
fn fresh_randomness_reaches_what_is_drawn() {
    let drawn = |fresh: Option<u8>| {
        let mut world = World::new();
        world.begin(&relays(1), 1);
        let mut job = world.jobs(A).remove(0);
        if let Some(fresh) = fresh {
            job.freshen(&[fresh; 32]);
        }
        world.done(A, job.run()).unwrap();
        world.step().remove(0).cell[..16].to_vec()
    };
    assert_eq!(drawn(None), drawn(None), "the leading bytes come from the seed");
    assert!(drawn(Some(1)) != drawn(None) && drawn(Some(1)) != drawn(Some(2)));
}

#[test]
fn under_load_a_create_cell_must_show_that_answers_reach_its_sender() {
    let mut world = World::new();
    let ids = world.creates(&relays(1), 20);
    assert_eq!(world.step().len(), 20);
    let asked = count(&world, relay(1), DropReason::CookieRequired);
    assert_eq!(asked, 4, "sixteen wait");
    // One reply for each, all of one length.
    let replies = world.step();
    assert_eq!(replies.len(), asked);
    assert!(replies.iter().all(|seen| (seen.from, seen.to) == (relay(1), A)));
    let again = world.step();
    assert_eq!(again.len(), asked, "each is sent again, once");
    assert_eq!(world.jobs(relay(1)).len(), 20);
    let leads = again.iter().map(|seen| &seen.cell[..16]).collect::<BTreeSet<_>>();
    assert_eq!(leads.len(), asked);
    for seen in again {
        let copy = CarriedCell { from: relay(2), ..seen };
        assert_eq!(world.hand(&copy), Some(DropReason::ReplayedHandshake));
    }
    assert_eq!(world.step().len(), 0);
    assert_eq!(ids.len(), 20);
}

/// Bond between two nodes of the world.
fn bond(own: Address, other: Address) -> Bond {
    Bond::new(identity(own).dh(), &identity(other).public().dh).unwrap()
}

/// Outer seal of set-ups with a node, as all members of the network know it.
fn outer(responder: Address) -> OuterSeal {
    OuterSeal::new(setup::ROLE, &NetworkSecret([7; 32]), &identity(responder).public())
}

/// Seals with which that node opens create cells.
fn outers(responder: Address) -> OuterSeals {
    OuterSeals::new(setup::ROLE, &NetworkSecret([7; 32]).into(), &identity(responder).public())
}

#[test]
fn a_cookie_that_is_shown_must_be_the_right_one() {
    let mut world = World::new();
    world.creates(&relays(1), 17);
    world.step();
    world.step();
    world.collect_cells();
    let shows = world.wire.pop().unwrap();
    // The load is over.
    for job in world.jobs(relay(1)) {
        world.done(relay(1), job.run()).unwrap();
    }
    world.now = world.now + Duration::from_secs(5);
    let copy = CarriedCell { from: relay(2), ..shows.clone() };
    assert_eq!(world.hand(&copy), Some(DropReason::BadHandshake));
    let opened = setup::CreateCell::open(&outers(relay(1)), &mut shows.cell.clone()[..]);
    let (create, _) = opened.unwrap();
    assert!(!create.shows(&bond(A, relay(1)), A, &Cookie::default()));
    assert!(!create.shows(&bond(A, relay(1)), A, &[7; 12]));
    assert_eq!(world.hand(&shows), None);
}

/// A relay that answers with cookies again and again is not obeyed. Other nodes' cookies are never
/// obeyed, though all nodes that carry the create cell can read the asker.
#[test]
fn cookies_without_end_are_not_followed() {
    let mut world = World::new();
    world.creates(&relays(1), 1);
    for n in 1..=3 {
        world.collect_cells();
        let create = world.wire.pop().unwrap();
        let lead = create.cell[..16].try_into().unwrap();
        let forged = |by: Address| {
            let (seals, mut rng) = ((&outer(relay(1)), &bond(by, A)), Rng::new([n; 32]));
            let cell = setup::write_cookie(seals, &lead, &[n; 12], &mut rng);
            CarriedCell { from: relay(1), to: A, cell }
        };
        assert_eq!(world.hand(&forged(relay(2))), Some(DropReason::BadHandshake));
        let refused = (n == 3).then_some(DropReason::HandshakeBudget);
        assert_eq!(world.hand(&forged(relay(1))), refused);
    }
    assert!(world.step().is_empty());
}

/// The origin makes the leg secret, so its accomplices know it too. With all bytes of a leg and its
/// secret, they must not learn how that leg protects other circuits' cells.
#[test]
fn who_knows_the_leg_secret_reads_no_grant() {
    let (leg, lead) = (Secret::new([21; 32]), [6; 16]);
    let grant = shoal_wire::leg::LegGrant { index: 5, key: [3; 32] };
    let offer = |leg: &Secret<32>| shoal_wire::leg::HopOffer {
        leg: *leg.expose(),
        suites: Suites::ALL.bits(),
        processor: Processor::Aes as u8,
        shape: CellShape::new(3).unwrap(),
        place: 2,
        lifetime: 6,
        mixing: shoal_wire::HopDelay::default(),
    };
    let responder = identity(relay(2));
    let means = SuiteSupport { processor: Processor::Aes, suites: Suites::ALL };
    let ephemeral = Secret::new([4; 32]);
    let (_, noise) =
        setup::begin::<StandardCiphers>(&responder.public().dh, &offer(&leg), &ephemeral).unwrap();
    let (outer, own) = (outer(relay(2)), bond(relay(1), relay(2)));
    let sides = setup::LegSetup { outer: &outer, bond: &own, leg: &leg };
    let shown = (relay(1), &Cookie::default(), 77);
    let create = setup::write_create(&sides, &lead, shown, &grant, &noise);
    let answer = |bond: Bond| {
        let opened = setup::CreateCell::open(&outers(relay(2)), &mut create.clone()[..]);
        let (create, _) = opened.unwrap();
        create.answer::<StandardCiphers>(responder.dh(), bond, means, &ephemeral)
    };
    assert_eq!(answer(bond(A, relay(2))).err(), Some(DropReason::BadHandshake));
    let answer = answer(bond(relay(2), relay(1))).unwrap();
    assert_eq!((answer.back.index, answer.back.key), (grant.index, grant.key));
    let created = answer.write(&outer, &grant, &mut Rng::new([1; 32]));
    let others = bond(A, relay(2));
    let origin = setup::LegSetup { outer: &outer, bond: &others, leg: &leg };
    assert!(setup::open_reply(&origin, &lead, &mut created.clone()).is_err());
    assert!(setup::open_reply(&sides, &lead, &mut created.clone()).is_ok());
}

#[test]
fn set_ups_through_a_loaded_relay_come_to_their_end() {
    let mut world = World::new();
    let ids = world.creates(&relays(3), 30);
    world.step();
    world.run();
    let built = |id| world.events.contains(&(A, OnionEvent::Built(id)));
    assert!(ids.into_iter().all(built));
    assert!(count(&world, relay(1), DropReason::CookieRequired) >= 14);
    no_nonce_twice();
}

#[test]
fn nobody_asks_in_the_name_of_another() {
    let mut world = World::new();
    for _ in 0..30 {
        world.creates(&relays(1), 1);
        world.collect_cells();
        let create = world.wire.pop().unwrap();
        assert_eq!(
            world.hand(&CarriedCell { from: B, ..create.clone() }),
            Some(DropReason::BadHandshake)
        );
        let stranger = CarriedCell { from: Address::new(77, 1), ..create };
        assert_eq!(world.hand(&stranger), Some(DropReason::UnknownPeer));
    }
    assert!(world.jobs(relay(1)).is_empty());
    // The share of B is unused.
    world.wire.clear();
    let shape = CellShape::new(1).unwrap();
    for _ in 0..32 {
        let path = [relay(1), A];
        let id = world.node(B).build(Time::ZERO, &path, shape, Duration::from_secs(60)).unwrap();
        world.run();
        assert!(world.events.contains(&(B, OnionEvent::Built(id))));
    }
}

#[test]
fn so_much_work_waits_and_no_more() {
    let mut world = World::new();
    for _ in 0..30 {
        world.creates(&relays(1), 1);
        world.collect_cells();
        let create = world.wire.pop().unwrap();
        if world.hand(&create) == Some(DropReason::CookieRequired) {
            world.collect_cells();
            // The cookie goes to the node that the cell named.
            assert_eq!(world.wire.pop().map(|seen| seen.to), Some(A));
        }
    }
    assert_eq!(world.jobs(relay(1)).len(), 16, "nobody shows a cookie");
    let mut world = World::new();
    world.creates(&relays(1), 64);
    let shape = CellShape::new(1).unwrap();
    for _ in 0..64 {
        world.begin(&relays(1), 1);
    }
    let more = world.node(A).build(Time::ZERO, &relays(1), shape, Duration::from_secs(60));
    assert_eq!(more, Err(DropReason::HandshakeBudget));
}

#[test]
fn a_machine_that_exists_twice_forgets_all_circuits() {
    let mut world = World::new();
    let id = world.built(&relays(3), 3);
    world.creates(&relays(3), 1);
    world.step();
    let answer = world.jobs(relay(1)).remove(0).run();
    world.begin(&relays(3), 3);
    let job = world.jobs(A).remove(0);
    let now = world.now;
    for at in [A, relay(1)] {
        world.node(at).forget_all(now, &[9; 32]);
    }
    assert_eq!(world.done(relay(1), answer), Err(DropReason::UnexpectedReply));
    assert_eq!(world.circuits(), 3, "two relays and the destination know one still");
    assert!(world.run().is_empty(), "nobody is told, since that would seal");
    assert!(world.events.contains(&(A, OnionEvent::Ended(id))));
    assert_eq!(world.done(A, job.run()), Err(DropReason::UnexpectedReply));
}
