use super::*;

const NOW: Time = Time::from_millis(10_000);

fn at(text: &str) -> SocketAddr {
    text.parse().expect("an endpoint")
}

fn nat(rules: Translator) -> Nat {
    Nat::new(rules, at("198.51.100.1:0").ip(), [7; 32])
}

fn inner() -> [SocketAddr; 2] {
    [at("192.168.0.1:7400"), at("192.168.0.2:7400")]
}

fn far() -> [SocketAddr; 3] {
    [at("10.0.0.1:7400"), at("10.0.0.1:99"), at("10.0.0.2:7400")]
}

#[test]
fn mappings_depend_on_what_the_rules_say() {
    for (mapping, different) in
        [(Depends::Nothing, 1), (Depends::Address, 2), (Depends::AddressAndPort, 3)]
    {
        for ports in [Ports::Preserving, Ports::Sequential, Ports::Random] {
            let mut nat = nat(Translator { mapping, ports, ..Translator::EASY });
            let mut seen = far().map(|to| nat.go_out(NOW, inner()[0], to).expect("room")).to_vec();
            let again = far().map(|to| nat.go_out(NOW, inner()[0], to).expect("room"));
            assert_eq!(seen, again, "a mapping stays");
            seen.sort_unstable();
            seen.dedup();
            assert_eq!(seen.len(), different, "{mapping:?} {ports:?}");
        }
    }
}

#[test]
fn filters_let_in_what_the_rules_say() {
    // Spoken to: the first. Let in: each of the three, and one that nobody spoke to.
    let cases = [
        (Depends::Nothing, [true; 3]),
        (Depends::Address, [true, true, false]),
        (Depends::AddressAndPort, [true, false, false]),
    ];
    for (filtering, expected) in cases {
        let mut nat = nat(Translator { filtering, ..Translator::EASY });
        let port = nat.go_out(NOW, inner()[0], far()[0]).expect("room").port();
        let let_in = far().map(|from| nat.come_in(NOW, from, port));
        let wanted = expected.map(|may| if may { Ok(inner()[0]) } else { Err(Refused::Filtered) });
        assert_eq!(let_in, wanted, "{filtering:?}");
        assert_eq!(nat.come_in(NOW, far()[0], port ^ 1), Err(Refused::Unmapped));
    }
}

#[test]
fn ports_are_preserved_counted_or_drawn() {
    let of = |ports| {
        let mut nat = nat(Translator { ports, ..Translator::HARD });
        let first = nat.go_out(NOW, inner()[0], far()[0]).expect("room").port();
        (first, nat.go_out(NOW, inner()[1], far()[0]).expect("room").port())
    };
    let (first, second) = of(Ports::Preserving);
    assert_eq!(first, PORT);
    assert_ne!(second, PORT, "one is taken");
    let (first, second) = of(Ports::Sequential);
    assert_eq!(second, first + 1);
    let (first, second) = of(Ports::Random);
    assert!(first.abs_diff(second) > 1 && first != PORT, "{first} {second}");
}

#[test]
fn only_what_goes_out_keeps_a_mapping() {
    let mut nat = nat(Translator { timeout_ms: 30_000, ..Translator::EASY });
    let later = |ms| NOW + Duration::from_millis(ms);
    let port = nat.go_out(NOW, inner()[0], far()[0]).expect("room").port();
    assert!(nat.come_in(later(29_999), far()[0], port).is_ok());
    assert_eq!(nat.come_in(later(30_000), far()[0], port), Err(Refused::Unmapped));

    let port = nat.go_out(later(30_000), inner()[0], far()[0]).expect("room").port();
    assert!(nat.go_out(later(55_000), inner()[0], far()[2]).is_ok());
    // The mapping lives on, and the permission of who wasn't spoken to since does not.
    assert_eq!(nat.come_in(later(61_000), far()[0], port), Err(Refused::Filtered));
    assert!(nat.come_in(later(61_000), far()[2], port).is_ok());
    assert_eq!(nat.owner(later(61_000), port), Some(inner()[0]));
    assert_eq!(nat.owner(later(90_000), port), None);
}

#[test]
fn tables_have_bounds() {
    let mut nat = nat(Translator { ports: Ports::Random, ..Translator::EASY });
    let inner = |n: usize| SocketAddr::from(([192, 168, (n >> 8) as u8, n as u8], PORT));
    for n in 0..MAPPINGS_MAX {
        assert!(nat.go_out(NOW, inner(n), far()[0]).is_ok());
    }
    assert_eq!(nat.go_out(NOW, inner(MAPPINGS_MAX), far()[0]), Err(Refused::Full));
    for n in 0..2 * PERMITS_MAX as u16 {
        let to = SocketAddr::new(far()[0].ip(), 1_000 + n);
        let later = NOW + Duration::from_millis(n.into());
        let port = nat.go_out(later, inner(0), to).expect("a mapping").port();
        assert!(nat.come_in(later, to, port).is_ok(), "the newest is let in");
    }
    assert!(nat.mapped.values().all(|mapped| mapped.permits.len() <= PERMITS_MAX));
}

/// Node 0 is public; 1 and 2 stand behind an easy one; 3 behind one behind another.
fn network(hairpin: bool) -> Nats {
    let easy = Translator { hairpin, ..Translator::EASY };
    let second = Translator { behind: Some(1), ..easy };
    Nats::new(&[easy, easy, second], &[None, Some(0), Some(0), Some(2)], [3; 32])
}

/// Sends a frame; returns who gets it, and the source that it sees.
fn send(nats: &mut Nats, from: usize, to: SocketAddr) -> Result<(usize, SocketAddr), Refused> {
    let (source, next) = nats.leave(NOW, from, to)?;
    match next {
        Next::Node(node) => Ok((node, source)),
        Next::Door(door, port) => {
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
        // Nobody spoke to the other port.
        let stranger = SocketAddr::new(seen.ip(), seen.port() ^ 1);
        assert_eq!(send(&mut nats, 0, stranger), Err(Refused::Unmapped));
    }
    assert_eq!(nats.own(1), nats.own(3), "private addresses are those of others, too");
    assert_eq!(send(&mut nats, 1, at("192.168.0.77:7400")), Err(Refused::Nobody));
    assert_eq!(send(&mut nats, 0, at("10.0.0.9:7400")), Err(Refused::Nobody));
    assert_eq!(send(&mut nats, 0, at("10.0.0.0:7401")), Err(Refused::Nobody));
}

#[test]
fn two_behind_easy_ones_reach_each_other_once_both_have_sent() {
    let mut nats = network(false);
    let seen = [1, 3].map(|host| send(&mut nats, host, public(0)).expect("there").1);
    assert_eq!(send(&mut nats, 1, seen[1]), Err(Refused::Filtered));
    assert_eq!(send(&mut nats, 3, seen[0]), Ok((1, seen[1])), "the first one's frame let it in");
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
        assert_eq!(first, Err(if hairpin { Refused::Filtered } else { Refused::Hairpin }));
        let back = send(&mut nats, 2, seen[0]);
        let outer = hairpin.then_some((1, seen[1])).ok_or(Refused::Hairpin);
        assert_eq!(back, outer, "the source is the outer one (RFC 4787 section 6)");
    }
}

#[test]
fn two_behind_hard_ones_never_meet() {
    let hard = Translator::HARD;
    let mut nats = Nats::new(&[hard, hard], &[None, Some(0), Some(1)], [4; 32]);
    let seen = [1, 2].map(|host| send(&mut nats, host, public(0)).expect("there").1);
    for _ in 0..3 {
        assert_eq!(send(&mut nats, 1, seen[1]), Err(Refused::Filtered));
        assert_eq!(send(&mut nats, 2, seen[0]), Err(Refused::Filtered));
    }
}

#[test]
fn numbers_that_name_no_translator_say_none() {
    let looped = Translator { behind: Some(0), ..Translator::EASY };
    let nats = Nats::new(&[looped], &[Some(7), Some(0)], [1; 32]);
    assert_eq!(nats.own(0), public(0));
    assert_eq!(nats.nats[0].rules.behind, None);
}
