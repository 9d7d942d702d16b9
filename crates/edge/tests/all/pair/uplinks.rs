//! Two hosts at two routers each, which follow each other.

use super::*;

impl Pair {
    /// Two hosts at two routers each.
    fn at_two_routers() -> Pair {
        let mut pair = Pair::new();
        pair.a.edge.set_second(pair.a.peer, Some(B2));
        pair.b.edge.set_second(pair.b.peer, Some(A2));
        pair.path.homes = Some([A, B]);
        pair
    }

    /// Addresses to which the hosts send echo requests, the first host's last.
    fn targets(&mut self) -> Vec<Address> {
        let mut seen = Vec::new();
        for host in [&mut self.b, &mut self.a] {
            host.edge.ping(host.peer, 1, 1).expect("room");
            host.work(self.now, &mut self.path);
            seen.extend(self.path.cells.drain(..).map(|(to, _)| to));
        }
        seen
    }
}

#[test]
fn a_host_is_followed_to_its_other_address_and_to_no_third_one() {
    let mut pair = Pair::at_two_routers();
    pair.a.edge.ping(pair.a.peer, 7, 0).expect("room");
    pair.run(Duration::from_millis(50));
    assert_eq!(pair.targets(), [A, B]);
    // Without traffic of its own, the host tells others of its new address at once.
    pair.path.homes = Some([A2, B]);
    pair.a.edge.handle_move(pair.now, A);
    pair.run(Duration::from_millis(5));
    assert_eq!(pair.targets(), [A2, B]);
    pair.path.homes = Some([Address::new(9, 9), B]);
    pair.a.edge.ping(pair.a.peer, 7, 1).expect("room");
    pair.run(Duration::from_millis(5));
    assert_eq!(pair.targets(), [A2, B]);
    assert_eq!(pair.b.drops, [(DropReason::BadSource, 1)]);
    assert!(pair.a.drops.is_empty(), "{:?}", pair.a.drops);
}

#[test]
fn two_hosts_that_lose_their_routers_at_once_find_each_other() {
    let mut pair = Pair::at_two_routers();
    pair.a.edge.ping(pair.a.peer, 7, 0).expect("room");
    pair.run(Duration::from_millis(50));
    pair.path.homes = Some([A2, B2]);
    pair.a.edge.handle_move(pair.now, A);
    pair.b.edge.handle_move(pair.now, B);
    let mut lost = 0;
    pair.run_with(Duration::from_millis(5), |to, _| {
        let passes = [A2, B2].contains(&to);
        lost += u32::from(!passes);
        passes
    });
    assert_eq!(lost, 2, "each host says its address to both addresses of the other");
    assert_eq!(pair.targets(), [A2, B2]);
}

#[test]
fn a_lost_announcement_is_repeated_twice() {
    let mut pair = Pair::at_two_routers();
    pair.a.edge.ping(pair.a.peer, 7, 0).expect("room");
    pair.run(Duration::from_millis(50));
    pair.path.homes = Some([A2, B]);
    pair.a.edge.handle_move(pair.now, A);
    let mut said = 0;
    pair.run_with(Duration::from_millis(900), |_, _| {
        said += 1;
        false
    });
    assert_eq!(said, 6);
}

#[test]
fn a_new_second_address_is_used_only_when_its_host_is_there() {
    let mut pair = Pair::at_two_routers();
    pair.a.edge.ping(pair.a.peer, 7, 0).expect("room");
    pair.run(Duration::from_millis(50));
    pair.path.homes = Some([A2, B]);
    pair.a.edge.handle_move(pair.now, A);
    pair.run(Duration::from_millis(5));
    assert_eq!(pair.targets(), [A2, B]);
    pair.b.edge.set_second(pair.b.peer, Some(Address::new(9, 9)));
    assert_eq!(pair.targets(), [A, B]);
}

#[test]
fn a_host_that_moved_says_its_address_when_a_direct_link_ends() {
    let mut pair = Pair::at_two_routers();
    pair.a.edge.ping(pair.a.peer, 7, 0).expect("room");
    pair.run(Duration::from_millis(50));
    pair.path.homes = Some([A2, B]);
    pair.a.edge.handle_move(pair.now, A);
    pair.run(Duration::from_secs(1));
    // A sealed cell on a direct link has the first address.
    pair.path.homes = Some([A, B]);
    pair.a.edge.ping(pair.a.peer, 7, 1).expect("room");
    pair.run(Duration::from_millis(5));
    assert_eq!(pair.targets(), [A, B]);
    pair.path.homes = Some([A2, B]);
    pair.a.edge.direct_changed(pair.now, pair.a.peer, false);
    pair.run(Duration::from_millis(5));
    assert_eq!(pair.targets(), [A2, B]);
}

#[test]
fn a_handshake_tries_both_addresses() {
    let mut pair = Pair::at_two_routers();
    pair.path.homes = Some([A, B2]);
    pair.a.edge.ping(pair.a.peer, 7, 0).expect("room");
    pair.run_with(Duration::from_millis(600), |to, _| to != B);
    assert_eq!(pair.a.echoes, [(7, 0)]);
    assert_eq!(pair.targets(), [A, B2]);
}
