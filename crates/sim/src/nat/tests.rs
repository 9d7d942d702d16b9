use super::*;

const NOW: Time = Time::from_millis(10_000);

fn at(text: &str) -> SocketAddr {
    text.parse().expect("an endpoint")
}

fn nat(rules: NatRules) -> NatDevice {
    NatDevice::new(rules, at("198.51.100.1:0").ip(), [7; 32])
}

fn inner() -> [SocketAddr; 2] {
    [at("192.168.0.1:7400"), at("192.168.0.2:7400")]
}

fn far() -> [SocketAddr; 3] {
    [at("10.0.0.1:7400"), at("10.0.0.1:99"), at("10.0.0.2:7400")]
}

#[test]
fn mappings_depend_on_what_the_rules_say() {
    for (mapping, different) in [
        (NatDependence::Nothing, 1),
        (NatDependence::Address, 2),
        (NatDependence::AddressAndPort, 3),
    ] {
        for ports in
            [PortAssignment::Preserving, PortAssignment::Sequential, PortAssignment::Random]
        {
            let mut nat = nat(NatRules { mapping, ports, ..NatRules::EASY });
            let mut seen = far().map(|to| nat.go_out(NOW, inner()[0], to).expect("room")).to_vec();
            let again = far().map(|to| nat.go_out(NOW, inner()[0], to).expect("room"));
            assert_eq!(seen, again, "a mapping persists");
            seen.sort_unstable();
            seen.dedup();
            assert_eq!(seen.len(), different, "{mapping:?} {ports:?}");
        }
    }
}

#[test]
fn filters_let_in_what_the_rules_say() {
    // First, the remote endpoints that were called. Then for each of the three, and for one that
    // was not called: true if it is let in.
    let cases = [
        (NatDependence::Nothing, [true; 3]),
        (NatDependence::Address, [true, true, false]),
        (NatDependence::AddressAndPort, [true, false, false]),
    ];
    for (filtering, expected) in cases {
        let mut nat = nat(NatRules { filtering, ..NatRules::EASY });
        let port = nat.go_out(NOW, inner()[0], far()[0]).expect("room").port();
        let let_in = far().map(|from| nat.come_in(NOW, from, port));
        let wanted =
            expected.map(|may| if may { Ok(inner()[0]) } else { Err(NatRefusal::Filtered) });
        assert_eq!(let_in, wanted, "{filtering:?}");
        assert_eq!(nat.come_in(NOW, far()[0], port ^ 1), Err(NatRefusal::Unmapped));
    }
}

#[test]
fn ports_are_preserved_counted_or_drawn() {
    let of = |ports| {
        let mut nat = nat(NatRules { ports, ..NatRules::HARD });
        let first = nat.go_out(NOW, inner()[0], far()[0]).expect("room").port();
        (first, nat.go_out(NOW, inner()[1], far()[0]).expect("room").port())
    };
    let (first, second) = of(PortAssignment::Preserving);
    assert_eq!(first, PORT);
    assert_ne!(second, PORT, "the preserved port is taken");
    let (first, second) = of(PortAssignment::Sequential);
    assert_eq!(second, first + 1);
    let (first, second) = of(PortAssignment::Random);
    assert!(first.abs_diff(second) > 1 && first != PORT, "{first} {second}");
}

#[test]
fn only_what_goes_out_keeps_a_mapping() {
    let mut nat = nat(NatRules { timeout_ms: 30_000, ..NatRules::EASY });
    let later = |ms| NOW + Duration::from_millis(ms);
    let port = nat.go_out(NOW, inner()[0], far()[0]).expect("room").port();
    assert!(nat.come_in(later(29_999), far()[0], port).is_ok());
    assert_eq!(nat.come_in(later(30_000), far()[0], port), Err(NatRefusal::Unmapped));

    let port = nat.go_out(later(30_000), inner()[0], far()[0]).expect("room").port();
    assert!(nat.go_out(later(55_000), inner()[0], far()[2]).is_ok());
    // The mapping is still valid. The permission of an endpoint that was not called since has
    // expired.
    assert_eq!(nat.come_in(later(61_000), far()[0], port), Err(NatRefusal::Filtered));
    assert!(nat.come_in(later(61_000), far()[2], port).is_ok());
    assert_eq!(nat.owner(later(61_000), port), Some(inner()[0]));
    assert_eq!(nat.owner(later(90_000), port), None);
}

#[test]
fn tables_have_bounds() {
    let mut nat = nat(NatRules { ports: PortAssignment::Random, ..NatRules::EASY });
    let inner = |n: usize| SocketAddr::from(([192, 168, (n >> 8) as u8, n as u8], PORT));
    for n in 0..MAPPINGS_MAX {
        assert!(nat.go_out(NOW, inner(n), far()[0]).is_ok());
    }
    assert_eq!(nat.go_out(NOW, inner(MAPPINGS_MAX), far()[0]), Err(NatRefusal::Full));
    for n in 0..2 * PERMITS_MAX as u16 {
        let to = SocketAddr::new(far()[0].ip(), 1_000 + n);
        let later = NOW + Duration::from_millis(n.into());
        let port = nat.go_out(later, inner(0), to).expect("a mapping").port();
        assert!(nat.come_in(later, to, port).is_ok(), "the newest endpoint is let in");
    }
    assert!(nat.mapped.values().all(|mapped| mapped.permits.len() <= PERMITS_MAX));
}

/// Node 0 is public. Nodes 1 and 2 are behind an easy translator, node 3 behind two of them in a
/// row.
fn network(hairpin: bool) -> NatDevices {
    let easy = NatRules { hairpin, ..NatRules::EASY };
    let second = NatRules { behind: Some(1), ..easy };
    NatDevices::new(&[easy, easy, second], &[None, Some(0), Some(0), Some(2)], [3; 32])
}

/// Sends a frame. Returns the receiver and the source that it sees.
fn send(
    nats: &mut NatDevices,
    from: usize,
    to: SocketAddr,
) -> Result<(usize, SocketAddr), NatRefusal> {
    let (source, next) = nats.leave(NOW, from, to)?;
    match next {
        NextStop::Node(node) => Ok((node, source)),
        NextStop::Door(door, port) => {
            let owner = nats.owner(NOW, door, port);
            let node = nats.enter(NOW, source, door, port)?;
            assert_eq!(owner, Some(node));
            Ok((node, source))
        }
    }
}

#[test]
fn frames_find_their_way_out_and_back_through_one_and_two() {
    let mut nats = network(false);
    for host in [1, 2, 3] {
        assert_eq!(nats.own(host).ip().to_string().split_at(10).0, "192.168.0.");
        let (node, seen) = send(&mut nats, host, public(0)).expect("there");
        assert_eq!(node, 0);
        assert!(seen.ip().to_string().starts_with("198.51.100."), "{seen}");
        assert_eq!(send(&mut nats, 0, seen), Ok((host, public(0))));
        // No frame was sent to the other port.
        let stranger = SocketAddr::new(seen.ip(), seen.port() ^ 1);
        assert_eq!(send(&mut nats, 0, stranger), Err(NatRefusal::Unmapped));
    }
    assert_eq!(nats.own(1), nats.own(3), "several hosts have one private address");
    assert_eq!(send(&mut nats, 1, at("192.168.0.77:7400")), Err(NatRefusal::Nobody));
    assert_eq!(send(&mut nats, 0, at("10.0.0.9:7400")), Err(NatRefusal::Nobody));
    assert_eq!(send(&mut nats, 0, at("10.0.0.0:7401")), Err(NatRefusal::Nobody));
}

#[test]
fn two_behind_easy_ones_reach_each_other_once_both_have_sent() {
    let mut nats = network(false);
    let seen = [1, 3].map(|host| send(&mut nats, host, public(0)).expect("there").1);
    assert_eq!(send(&mut nats, 1, seen[1]), Err(NatRefusal::Filtered));
    assert_eq!(
        send(&mut nats, 3, seen[0]),
        Ok((1, seen[1])),
        "let in after a frame of the first host"
    );
    assert_eq!(send(&mut nats, 1, seen[1]), Ok((3, seen[0])));
}

#[test]
fn who_shares_a_translator_meets_inside_or_by_hairpin() {
    for hairpin in [false, true] {
        let mut nats = network(hairpin);
        let own = [1, 2].map(|host| nats.own(host));
        assert_eq!(send(&mut nats, 1, own[1]), Ok((2, own[0])));
        let seen = [1, 2].map(|host| send(&mut nats, host, public(0)).expect("there").1);
        let first = send(&mut nats, 1, seen[1]);
        assert_eq!(first, Err(if hairpin { NatRefusal::Filtered } else { NatRefusal::Hairpin }));
        let back = send(&mut nats, 2, seen[0]);
        let outer = hairpin.then_some((1, seen[1])).ok_or(NatRefusal::Hairpin);
        assert_eq!(back, outer, "the source is the outer one (RFC 4787 section 6)");
    }
}

#[test]
fn two_behind_hard_ones_never_meet() {
    let hard = NatRules::HARD;
    let mut nats = NatDevices::new(&[hard, hard], &[None, Some(0), Some(1)], [4; 32]);
    let seen = [1, 2].map(|host| send(&mut nats, host, public(0)).expect("there").1);
    for _ in 0..3 {
        assert_eq!(send(&mut nats, 1, seen[1]), Err(NatRefusal::Filtered));
        assert_eq!(send(&mut nats, 2, seen[0]), Err(NatRefusal::Filtered));
    }
}

#[test]
fn numbers_that_name_no_translator_say_none() {
    let looped = NatRules { behind: Some(0), ..NatRules::EASY };
    let nats = NatDevices::new(&[looped], &[Some(7), Some(0)], [1; 32]);
    assert_eq!(nats.own(0), public(0));
    assert_eq!(nats.nats[0].rules.behind, None);
}
