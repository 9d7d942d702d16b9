//! Set-up work on another thread, and what keeps a flood of it off.

use shoal_session::outer::OuterSeal;

use super::*;
use crate::{Done, Job, setup};

impl World {
    /// Hands over what is on the wire, and keeps what nodes want to be worked on.
    fn step(&mut self) -> Vec<Seen> {
        self.collect_cells();
        let wire = core::mem::take(&mut self.wire);
        for seen in &wire {
            self.hand(seen);
        }
        wire
    }

    fn jobs(&mut self, at: Address) -> Vec<Job> {
        let node = self.node(at);
        core::iter::from_fn(|| node.poll_job()).collect()
    }

    fn done(&mut self, at: Address, done: Done) -> Result<(), DropReason> {
        let now = self.now;
        self.node(at).handle_done(now, done)
    }

    /// Has the first messages of all circuits of A made, and drops what else they wait for.
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
    // The circuit ends while its hop works: what comes of it finds nobody.
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
    // One reply for each, and of one length.
    let replies = world.step();
    assert_eq!(replies.len(), asked);
    assert!(replies.iter().all(|seen| (seen.from, seen.to) == (relay(1), A)));
    let again = world.step();
    assert_eq!(again.len(), asked, "each is sent again, once");
    assert_eq!(world.jobs(relay(1)).len(), 20);
    let leads = again.iter().map(|seen| &seen.cell[..16]).collect::<BTreeSet<_>>();
    assert_eq!(leads.len(), asked);
    // A copy that somebody else sends shows a cookie that is not his.
    for seen in again {
        let copy = Seen { from: relay(2), ..seen };
        assert_eq!(world.hand(&copy), Some(DropReason::ReplayedHandshake));
    }
    assert_eq!(world.step().len(), 0);
    assert_eq!(ids.len(), 20);
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
    let copy = Seen { from: relay(2), ..shows.clone() };
    assert_eq!(world.hand(&copy), Some(DropReason::CookieRequired));
    assert_eq!(world.hand(&shows), None);
}

/// Whoever carries the create cell can answer it with cookies as the new hop could.
#[test]
fn cookies_without_end_are_not_followed() {
    let mut world = World::new();
    world.creates(&relays(1), 1);
    let key = world.node(A).nodes_of_test()[&relay(1)];
    let outer = OuterSeal::new(setup::ROLE, &NetworkSecret([7; 32]), &key);
    for n in 1..=3 {
        world.collect_cells();
        let create = world.wire.pop().unwrap();
        let lead = create.cell[..16].try_into().unwrap();
        let cell = setup::write_cookie(&outer, &lead, &[n; 12], &mut Rng::new([n; 32]));
        let forged = Seen { from: relay(1), to: A, cell };
        let refused = (n == 3).then_some(DropReason::HandshakeBudget);
        assert_eq!(world.hand(&forged), refused);
    }
    assert!(world.step().is_empty());
}

#[test]
fn set_ups_through_a_loaded_relay_come_to_their_end() {
    let mut world = World::new();
    let ids = world.creates(&relays(3), 30);
    world.step();
    world.run();
    let built = |id| world.events.contains(&(A, Event::Built(id)));
    assert!(ids.into_iter().all(built));
    assert!(count(&world, relay(1), DropReason::CookieRequired) >= 14);
    no_nonce_twice();
}

#[test]
fn whoever_asks_in_the_name_of_another_uses_half_of_his_share_at_most() {
    let mut world = World::new();
    for _ in 0..30 {
        world.creates(&relays(1), 1);
        world.collect_cells();
        let create = world.wire.pop().unwrap();
        world.hand(&Seen { from: B, ..create });
        for job in world.jobs(relay(1)) {
            world.done(relay(1), job.run()).unwrap();
        }
    }
    assert_eq!(count(&world, relay(1), DropReason::CookieRequired), 13);
    // B itself shows its cookie.
    world.wire.clear();
    world.collect_cells();
    world.wire.clear();
    world.drops.clear();
    let shape = Shape::new(1).unwrap();
    let path = [relay(1), A];
    let id = world.node(B).build(Time::ZERO, &path, shape, Duration::from_secs(60)).unwrap();
    world.run();
    assert!(world.events.contains(&(B, Event::Built(id))));
}

#[test]
fn so_much_work_waits_and_no_more() {
    let mut world = World::new();
    for n in 0..100 {
        world.creates(&relays(1), 1);
        world.collect_cells();
        let create = world.wire.pop().unwrap();
        let from = Address::new(20 + n / 10, 1);
        let seen = Seen { from, ..create };
        if world.hand(&seen) == Some(DropReason::CookieRequired) {
            world.collect_cells();
            // The cookie goes to whom the cell named.
            assert_eq!(world.wire.pop().map(|seen| seen.to), Some(from));
        }
    }
    assert_eq!(world.jobs(relay(1)).len(), 16, "nobody shows a cookie");
    let mut world = World::new();
    world.creates(&relays(1), 64);
    let shape = Shape::new(1).unwrap();
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
    assert!(world.events.contains(&(A, Event::Ended(id))));
    assert_eq!(world.done(A, job.run()), Err(DropReason::UnexpectedReply));
}
