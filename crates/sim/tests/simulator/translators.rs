//! Networks whose hosts stand behind translators of addresses.

use shoal_sim::{Depends, Faults, Options, Outcome, Ports, Translator, run};

/// A calm network of six hosts: two behind an easy translator, one behind two of them, two behind a
/// hard one, one in public.
fn network(seed: u64, timeout_ms: u64) -> Options {
    let easy = Translator { timeout_ms, ..Translator::EASY };
    let hard = Translator { timeout_ms, ..Translator::HARD };
    let translators = vec![easy, easy, Translator { behind: Some(1), ..easy }, hard];
    let behind = vec![Some(0), Some(0), Some(2), Some(3), Some(3), None];
    Options { translators, behind, ..Options::calm(seed) }
}

fn kept(options: Options) -> Outcome {
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
    // Keepalives leave every 10 s.
    assert_eq!(kept(network(1, 30_000)).frames_refused, 0);
    assert!(kept(network(1, 2_000)).frames_refused > 0);
}

#[test]
fn a_run_replays() {
    let mut options = network(3, 30_000);
    options.translators[0].ports = Ports::Sequential;
    options.translators[1].mapping = Depends::Address;
    assert_eq!(kept(options.clone()).trace, kept(options).trace);
}

/// Where a host stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stands {
    Public,
    Easy,
    EasyTwice,
    Hard,
}

const ALL: [Stands; 4] = [Stands::Public, Stands::Easy, Stands::EasyTwice, Stands::Hard];

/// Two hosts of different routers, who want a link of their own. No file names an endpoint of
/// either.
fn pair(seed: u64, stands: [Stands; 2]) -> Options {
    let mut translators = vec![Translator::EASY];
    let behind = stands.map(|stands| {
        let before = translators.len() as u32;
        match stands {
            Stands::Public => return None,
            Stands::Easy => translators.push(Translator::EASY),
            Stands::Hard => translators.push(Translator::HARD),
            Stands::EasyTwice => {
                let inner = Translator { behind: Some(before), ..Translator::EASY };
                translators.extend([Translator::EASY, inner]);
            }
        }
        Some(translators.len() as u32 - 1)
    });
    alone(seed, translators, behind)
}

fn alone(seed: u64, translators: Vec<Translator>, behind: [Option<u32>; 2]) -> Options {
    let faults = Faults { delay_us: 10_000, ..Faults::NONE };
    Options {
        routers: 2,
        hosts: 2,
        direct_wires: 1,
        translators,
        behind: behind.to_vec(),
        faults,
        // The cut of the wire between the two.
        skip: vec![0],
        ..Options::calm(seed)
    }
}

/// How many of 20 seeds give a link at both ends. All pairs reach each other, and those without a
/// link say why.
fn direct(options: impl Fn(u64) -> Options) -> usize {
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
            let hard = [one, *other].contains(&Stands::Hard);
            let expected = one == Stands::Public || !hard;
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

#[test]
fn hosts_behind_one_translator_find_each_other_inside() {
    for rules in [Translator::EASY, Translator::HARD] {
        let links = direct(|seed| alone(seed, vec![rules], [Some(0), Some(0)]));
        assert!(links >= 18, "{rules:?}: {links}");
    }
}

#[test]
fn pairs_without_a_link_say_why() {
    let said = |stands| kept(pair(1, stands)).relayed;
    let both = said([Stands::Hard, Stands::Hard]);
    assert_eq!(
        both.into_iter().collect::<Vec<_>>(),
        ["both translators show a new endpoint to everybody, and neither keeps a port open"]
    );
    let one = said([Stands::Hard, Stands::Easy]);
    let words = "one translator shows new endpoints, the other lets them not in";
    assert_eq!(one.into_iter().collect::<Vec<_>>(), [words]);
}
