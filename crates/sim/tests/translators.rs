//! Networks whose hosts stand behind translators of addresses.

use shoal_sim::{Depends, Options, Outcome, Ports, Translator, run};

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
