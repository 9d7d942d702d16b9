//! Networks whose hosts are behind translators.

use shoal_sim::{
    NatDependence, NatRules, PortAssignment, SimulationOptions, SimulationOutcome, WireFaults, run,
};

/// A calm network of six hosts: two behind an easy translator, one behind two easy ones, two behind
/// a hard one, one public.
fn network(seed: u64, timeout_ms: u64) -> SimulationOptions {
    let easy = NatRules { timeout_ms, ..NatRules::EASY };
    let hard = NatRules { timeout_ms, ..NatRules::HARD };
    let translators = vec![easy, easy, NatRules { behind: Some(1), ..easy }, hard];
    let behind = vec![Some(0), Some(0), Some(2), Some(3), Some(3), None];
    SimulationOptions { translators, behind, ..SimulationOptions::calm(seed) }
}

fn kept(options: SimulationOptions) -> SimulationOutcome {
    let outcome = run(options);
    assert!(outcome.is_ok(), "{outcome}");
    outcome
}

#[test]
fn all_reach_each_other_through_routers() {
    for seed in 0..4 {
        let outcome = kept(network(seed, 30_000));
        assert_eq!((outcome.pings, outcome.pongs), (30, 30));
        assert_eq!(outcome.direct_links, 0);
    }
}

#[test]
fn translators_refuse_what_comes_after_a_mapping_has_ended() {
    // Keepalives are sent every 10 s.
    assert_eq!(kept(network(1, 30_000)).frames_refused, 0);
    assert!(kept(network(1, 2_000)).frames_refused > 0);
}

#[test]
fn a_run_replays() {
    let mut options = network(3, 30_000);
    options.translators[0].ports = PortAssignment::Sequential;
    options.translators[1].mapping = NatDependence::Address;
    assert_eq!(kept(options.clone()).trace, kept(options).trace);
}

/// Position of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HostPosition {
    Public,
    Easy,
    EasyTwice,
    Hard,
}

const ALL: [HostPosition; 4] =
    [HostPosition::Public, HostPosition::Easy, HostPosition::EasyTwice, HostPosition::Hard];

/// Two hosts at different routers that want a direct link. No file names an endpoint of either.
fn pair(seed: u64, stands: [HostPosition; 2]) -> SimulationOptions {
    let mut translators = vec![NatRules::EASY];
    let behind = stands.map(|stands| {
        let before = translators.len() as u32;
        match stands {
            HostPosition::Public => return None,
            HostPosition::Easy => translators.push(NatRules::EASY),
            HostPosition::Hard => translators.push(NatRules::HARD),
            HostPosition::EasyTwice => {
                let inner = NatRules { behind: Some(before), ..NatRules::EASY };
                translators.extend([NatRules::EASY, inner]);
            }
        }
        Some(translators.len() as u32 - 1)
    });
    alone(seed, translators, behind)
}

fn alone(seed: u64, translators: Vec<NatRules>, behind: [Option<u32>; 2]) -> SimulationOptions {
    let faults = WireFaults { delay_us: 10_000, ..WireFaults::NONE };
    SimulationOptions {
        routers: 2,
        hosts: 2,
        direct_wires: 1,
        translators,
        behind: behind.to_vec(),
        faults,
        // Leaves out the cut of the wire between the two hosts.
        skip: vec![0],
        ..SimulationOptions::calm(seed)
    }
}

/// Number of seeds out of 20 that give a link at both ends. All pairs must reach each other, and
/// those without a link must have a reason.
fn direct(options: impl Fn(u64) -> SimulationOptions) -> usize {
    let run = |seed| {
        let outcome = kept(options(seed));
        assert_eq!(outcome.direct_links == 0, !outcome.relayed.is_empty(), "{outcome}");
        outcome.direct_links >= 2
    };
    (0..20).filter(|&seed| run(seed)).count()
}

#[test]
fn hosts_behind_translators_find_each_other_as_far_as_that_can_be() {
    let (mut can, mut did) = (0, 0);
    for (number, one) in ALL.into_iter().enumerate() {
        for other in &ALL[number..] {
            let links = direct(|seed| pair(seed, [one, *other]));
            let hard = [one, *other].contains(&HostPosition::Hard);
            let expected = one == HostPosition::Public || !hard;
            println!("{one:?} - {other:?}: {links} of 20");
            match expected {
                true => (can, did) = (can + 20, did + links),
                false => assert_eq!(links, 0, "{one:?} {other:?}"),
            }
            assert!(!expected || links >= 18, "{one:?} {other:?}: {links}");
        }
    }
    assert!(did * 100 >= can * 99, "{did} of {can}");
}

/// On wires without faults no packet gets lost when links end and come again.
#[test]
fn links_between_translators_end_and_come_again_without_loss() {
    let easy = [HostPosition::Easy, HostPosition::Easy];
    let (mut links, mut bans) = (0, 0);
    for seed in 0..10 {
        let calm = SimulationOptions { flows: 2, trouble_ms: 25_000, ..pair(seed, easy) };
        let outcome = kept(SimulationOptions { direct_bans: 3, ..calm.clone() });
        assert_eq!(outcome.packets_there, kept(calm).packets_there, "{outcome}");
        links += outcome.direct_links;
        bans += outcome.faults.iter().filter(|fault| fault.contains(" Ban(")).count() as u64;
    }
    println!("{links} ends of links came up, {bans} bans");
    assert!(bans > 20 && links > 40, "{links} {bans}");
}

#[test]
fn hosts_behind_one_translator_find_each_other_inside() {
    for rules in [NatRules::EASY, NatRules::HARD] {
        let links = direct(|seed| alone(seed, vec![rules], [Some(0), Some(0)]));
        assert!(links >= 18, "{rules:?}: {links}");
    }
}

#[test]
fn pairs_without_a_link_say_why() {
    let said = |stands| kept(pair(1, stands)).relayed;
    let both = said([HostPosition::Hard, HostPosition::Hard]);
    assert_eq!(
        both.into_iter().collect::<Vec<_>>(),
        ["both translators show a new endpoint to each host, and neither forwards a port"]
    );
    let one = said([HostPosition::Hard, HostPosition::Easy]);
    let words = "one translator shows new endpoints, and the other blocks probes";
    assert_eq!(one.into_iter().collect::<Vec<_>>(), [words]);
}
