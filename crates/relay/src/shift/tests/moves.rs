//! Changes of an end's prefix.

use proptest::test_runner::RngSeed;

use super::*;
use crate::shift::PrefixChange;

const OTHER: [u8; 8] = [0x20, 1, 0x0d, 0xb8, 0, 9, 0, 1];

fn prefix(end: usize) -> [u8; 8] {
    place(end as u8, SECOND).prefix
}

/// The prefixes of an end's data: its own, and the neighbour's.
fn used(pair: &ShiftRig, end: usize) -> [[u8; 8]; 2] {
    let at = pair.ends[end].place().expect("it shifts");
    [at.local.unwrap(), at.remote].map(|at| ShiftAnnouncement::split(at).unwrap().0)
}

/// A pair of ends that use shifting addresses.
fn shifting(interval: Duration) -> ShiftRig {
    let mut pair = ShiftRig::new(interval);
    pair.run(5 * SECOND);
    assert_eq!(pair.shifting(), [true; 2]);
    pair
}

#[test]
fn data_leaves_from_the_former_prefix_until_the_neighbour_sends_to_the_new_one() {
    for end in 0..2 {
        let mut pair = shifting(3_600 * SECOND);
        pair.walls = true;
        pair.ends[end].move_to(pair.now, OTHER);
        assert_eq!(used(&pair, end), [prefix(end), prefix(1 - end)]);
        assert_eq!(pair.ends[end].own().prefix, OTHER);
        // The neighbour learns of the move after one trip. Its challenge arrives after another.
        pair.run(2 * pair.delay);
        assert_eq!(used(&pair, end), [prefix(end), prefix(1 - end)]);
        pair.run(4 * STEP);
        assert_eq!(used(&pair, end), [OTHER, prefix(1 - end)]);
        assert_eq!(used(&pair, 1 - end), [prefix(1 - end), prefix(end)]);
        pair.run(2 * pair.delay);
        assert_eq!(used(&pair, 1 - end), [prefix(1 - end), OTHER]);
        pair.gone = vec![prefix(end)];
        pair.sent
            .retain(|sent| ShiftAnnouncement::split(sent.ends.remote).unwrap().0 != prefix(end));
        pair.run(SECOND);
        assert_eq!(pair.missed, 0);
    }
}

#[test]
fn data_leaves_from_the_new_prefix_when_the_former_ones_time_is_over() {
    let mut pair = shifting(3_600 * SECOND);
    pair.gone = vec![OTHER];
    pair.ends[0].move_to(pair.now, OTHER);
    pair.run(29 * SECOND);
    assert_eq!((used(&pair, 0)[0], pair.missed), (prefix(0), 0));
    pair.run(2 * SECOND);
    assert_eq!(used(&pair, 0)[0], OTHER);
}

/// Times in ms at which an end announces its place, if nobody answers.
fn tells(pair: &mut ShiftRig, lasts: Duration) -> Vec<u128> {
    let (began, mut all) = (pair.now, Vec::new());
    while pair.now < began + lasts {
        pair.now = pair.now + STEP;
        pair.ends[0].handle_timeout(pair.now);
        if pair.ends[0].poll_tell().is_some() {
            let there = pair.ends[0].poll_opens(pair.now)[0].local.unwrap();
            assert_eq!(
                ShiftAnnouncement::split(there).unwrap().0,
                OTHER,
                "also from the new prefix"
            );
            all.push(pair.now.since(began).as_millis());
        }
    }
    all
}

#[test]
fn what_is_told_is_told_again_by_time_until_the_neighbour_is_seen_there() {
    let mut pair = shifting(3_600 * SECOND);
    pair.ends[0].move_to(pair.now, OTHER);
    assert_eq!(tells(&mut pair, 40 * SECOND), [5, 200, 1_000, 3_000, 10_000]);

    let mut pair = shifting(3_600 * SECOND);
    pair.ends[0].move_to(pair.now, OTHER);
    assert_eq!(tells(&mut pair, 2 * SECOND), [5, 200, 1_000]);
    let here = pair.ends[0].place().unwrap();
    let under = |prefix| ShiftAnnouncement { prefix, ..place(0, SECOND) };
    let id = ShiftAnnouncement::split(here.local.unwrap()).unwrap().1;
    let came = |prefix| Endpoints { local: Some(under(prefix).endpoint(id)), ..here };
    pair.ends[0].came(&came(prefix(0)));
    assert_eq!(used(&pair, 0)[0], prefix(0));
    pair.ends[0].came(&Endpoints { local: Some(under(OTHER).endpoint(id ^ 1)), ..here });
    assert_eq!(used(&pair, 0)[0], prefix(0), "other addresses there, unknown to firewalls");
    pair.ends[0].came(&came(OTHER));
    assert_eq!(used(&pair, 0)[0], OTHER);
    assert_eq!(tells(&mut pair, 20 * SECOND), [0; 0]);
}

/// An end whose neighbour announced the other prefix.
fn claimed() -> ShiftRig {
    let mut pair = shifting(3_600 * SECOND);
    let said = ShiftAnnouncement { prefix: OTHER, ..place(1, 3_600 * SECOND) };
    pair.ends[0].told(pair.now, Some(said));
    pair
}

#[test]
fn a_claim_lapses_after_a_minute() {
    let mut pair = claimed();
    let (began, now) = (pair.now, |s: u32| pair.now + SECOND * s);
    assert!(pair.ends[0].claims(now(59), OTHER) && !pair.ends[0].claims(now(60), OTHER));
    let (asked, token) = pair.ends[0].poll_ask(began, [7; 8]).unwrap();
    assert_eq!((ShiftAnnouncement::split(asked[0].remote).unwrap().0, token), (OTHER, [7; 8]));
    pair.ends[0].handle_timeout(began + 60 * SECOND);
    // The next shift from the fixed endpoint uses the neighbour's former prefix.
    pair.ends[0].fall(began + 60 * SECOND);
    assert_eq!(pair.ends[0].peer().unwrap().prefix, prefix(1));
    let mut pair = claimed();
    pair.ends[0].fall(pair.now + 59 * SECOND);
    assert_eq!(pair.ends[0].peer().unwrap().prefix, OTHER);
}

#[test]
fn a_place_that_is_said_again_counts_again() {
    let mut pair = claimed();
    let said = ShiftAnnouncement { prefix: OTHER, ..place(1, 3_600 * SECOND) };
    assert!(pair.ends[0].poll_ask(pair.now, [7; 8]).is_some());
    assert!(pair.ends[0].poll_ask(pair.now, [8; 8]).is_none(), "once");
    // The announcement is valid again after its expiry, and after the link moved elsewhere.
    pair.ends[0].handle_timeout(pair.now + 60 * SECOND);
    pair.now = pair.now + 60 * SECOND;
    pair.ends[0].told(pair.now, Some(said));
    assert!(pair.ends[0].claims(pair.now, OTHER));
    assert!(pair.ends[0].poll_ask(pair.now, [8; 8]).is_some());
    assert_eq!(pair.ends[0].answered(pair.now, [8; 8]), Some(PrefixChange::Moved));
    assert_eq!(used(&pair, 0)[1], OTHER);
    pair.ends[0].told(pair.now, Some(said));
    assert!(!pair.ends[0].claims(pair.now, OTHER), "already followed");
    pair.ends[0].roam(prefix(1));
    pair.ends[0].told(pair.now, Some(said));
    assert!(pair.ends[0].claims(pair.now, OTHER));
}

#[test]
fn an_answer_counts_once_in_time_and_for_the_addresses_in_use() {
    let mut pair = claimed();
    assert_eq!(pair.ends[0].answered(pair.now, [7; 8]), None, "nothing was asked");
    let (_, token) = pair.ends[0].poll_ask(pair.now, [7; 8]).unwrap();
    assert_eq!(pair.ends[0].answered(pair.now, [8; 8]), None);
    assert_eq!(pair.ends[0].answered(pair.now + 5 * SECOND, token), None, "too late");
    assert_eq!(pair.ends[0].answered(pair.now, token), Some(PrefixChange::Moved));
    assert_eq!(pair.ends[0].answered(pair.now, token), None);
    // An epoch ends meanwhile. Its last step is already in transit.
    let mut pair = shifting(SECOND);
    let schedule = ShiftSchedule::new(&secret(1));
    let next = schedule.epoch(pair.began, pair.now, SECOND) + 1;
    let next = pair.began + schedule.begins(next, SECOND);
    while pair.now < next {
        pair.turn();
    }
    pair.ends[0].told(pair.now, Some(ShiftAnnouncement { prefix: OTHER, ..place(1, SECOND) }));
    let (_, token) = pair.ends[0].poll_ask(pair.now, [7; 8]).unwrap();
    let before = pair.ends[0].place();
    while pair.ends[0].place() == before {
        pair.turn();
    }
    assert_eq!(pair.ends[0].answered(pair.now, token), Some(PrefixChange::Stayed));
    assert_eq!(used(&pair, 0)[1], prefix(1));
    assert!(pair.ends[0].poll_ask(pair.now, [9; 8]).is_some(), "another challenge");
}

fn is_strange(at: &Endpoints) -> bool {
    ShiftAnnouncement::split(at.remote).unwrap().0[5] == 7
}

/// The steps that a neighbour can forge with the schedule and the tokens it received. They cover
/// the stages that its end may send, for epochs around the current one.
fn forged(pair: &ShiftRig, victim: usize, tokens: &[PathToken], number: u8) -> Vec<ShiftStep> {
    let stages = match victim {
        0 => [ShiftStage::Call, ShiftStage::Answer],
        _ => [ShiftStage::Call, ShiftStage::Done],
    };
    let schedule = ShiftSchedule::new(&secret(1));
    let (tag, none) = (schedule.tag(), [0; 8]);
    let present = schedule.epoch(pair.began, pair.now, SECOND);
    let epochs = present.saturating_sub(1)..=present + 1;
    let all = epochs.flat_map(|epoch| stages.map(|stage| (epoch, stage)));
    let echoes = tokens.iter().chain([&none]);
    all.flat_map(|(epoch, stage)| {
        let step = move |echo: &PathToken| {
            let (token, echo) = match stage {
                ShiftStage::Call => ([number; 8], none),
                ShiftStage::Answer => ([number; 8], *echo),
                ShiftStage::Done => (none, *echo),
            };
            ShiftStep { stage, tag, epoch, token, echo }
        };
        echoes.clone().map(step)
    })
    .collect()
}

/// A member announces strangers' prefixes all the time, forges all steps, and makes the link fall
/// back.
#[test]
fn who_names_prefixes_and_forges_steps_has_no_data_and_few_frames_sent_there() {
    for victim in 0..2 {
        let mut pair = shifting(SECOND);
        let (began, mut strange, mut tokens) = (pair.now, 0, Vec::new());
        for round in 0..4_000_u64 {
            let named = [0x20, 1, 0x0d, 0xb8, 0, 7, 0, (round / 20 % 50) as u8];
            let named = ShiftAnnouncement { prefix: named, ..place(1 - victim as u8, SECOND) };
            if round % 1_000 == 500 {
                pair.ends[victim].fall(pair.now);
                // The neighbour may also revoke its announcement.
                pair.ends[victim].told(pair.now, None);
            }
            pair.ends[victim].told(pair.now, Some(named));
            for step in forged(&pair, victim, &tokens, round as u8) {
                let _refused = pair.ends[victim].handle(pair.now, &step);
            }
            pair.turn();
            let used = pair.ends[victim].place();
            assert!(!used.is_some_and(|used| is_strange(&used)), "{victim} after {round}");
            let (away, here): (Vec<_>, Vec<_>) = core::mem::take(&mut pair.sent)
                .into_iter()
                .partition(|sent| is_strange(&sent.ends));
            strange += away.len();
            let came = here.iter().filter(|sent| sent.by == victim);
            tokens.extend(came.filter_map(|sent| match sent.what {
                ShiftMessage::Step(step) => Some(step.token),
                _ => None,
            }));
            tokens.drain(..tokens.len().saturating_sub(4));
            pair.sent = here;
        }
        let most = 32 * (pair.now.since(began).as_secs() / 10 + 1);
        assert!(strange as u64 <= most && strange > 0, "{victim}: {strange} of {most}");
        assert!(!tokens.is_empty());
    }
}

#[test]
fn a_step_that_returns_no_token_moves_nobody() {
    for victim in 0..2 {
        let mut pair = ShiftRig::new(SECOND);
        pair.blocked[1 - victim] = true;
        pair.run(Duration::from_millis(300));
        let mut calls = forged(&pair, victim, &[], 1);
        calls.retain(|step| step.epoch == 0);
        for step in &calls {
            let _refused = pair.ends[victim].handle(pair.now, step);
        }
        let (_, sent) = pair.ends[victim].poll_step(pair.now).expect("a step");
        assert!(pair.ends[victim].place().is_none());
        for mut step in calls.into_iter().filter(|step| step.stage != ShiftStage::Call) {
            assert_eq!(pair.ends[victim].handle(pair.now, &step), Err(DropReason::BadShift));
            step.echo = sent.token;
            assert_eq!(pair.ends[victim].handle(pair.now, &step), Ok(PrefixChange::Stayed));
        }
        assert!(pair.ends[victim].place().is_some(), "the right token was returned");
    }
}

/// A member that was never reached at its announced place forges calls all the time.
#[test]
fn who_was_never_reached_has_few_frames_sent_where_it_says_to_be() {
    for victim in 0..2 {
        let mut pair = ShiftRig::new(SECOND);
        let named = [0x20, 1, 0x0d, 0xb8, 0, 7, 0, 1];
        let named = ShiftAnnouncement { prefix: named, ..place(1 - victim as u8, SECOND) };
        pair.ends[victim].told(pair.now, Some(named));
        let mut sent = 0;
        for round in 0..60_000 / STEP.as_millis() {
            for step in forged(&pair, victim, &[], round as u8) {
                let _refused = pair.ends[victim].handle(pair.now, &step);
            }
            pair.turn();
            sent += core::mem::take(&mut pair.sent)
                .iter()
                .filter(|sent| is_strange(&sent.ends))
                .count();
        }
        assert!((1..=32 * 7).contains(&sent), "{victim}: {sent}");
        assert!(pair.ends[victim].take_held_back() > 0);
        assert_eq!(pair.ends[victim].take_held_back(), 0, "each is counted once");
    }
}

/// When the next shift is due, the neighbour is reachable only at its new prefix. The steps find it
/// there.
#[test]
fn steps_that_come_back_from_the_place_that_it_named_lead_there() {
    for mover in 0..2 {
        let mut pair = shifting(SECOND);
        let other = 1 - mover;
        pair.gone.push(prefix(mover));
        pair.ends[mover].move_to(pair.now, OTHER);
        pair.ends[other].told(pair.now, Some(pair.ends[mover].own()));
        for _ in 0..3_000 / STEP.as_millis() {
            pair.turn();
            // Drops the answer to the challenge, which alone would also lead there.
            pair.sent.retain(|sent| !matches!(sent.what, ShiftMessage::Answer(_)));
        }
        let at = pair.ends[other].place().map(|at| ShiftAnnouncement::split(at.remote));
        assert_eq!(at.flatten().map(|(prefix, _)| prefix), Some(OTHER), "{mover}");
        assert_eq!([0, 1].map(|end| pair.ends[end].view().failed), [0; 2], "{mover}");
        assert_eq!([0, 1].map(|end| pair.ends[end].take_held_back()), [0; 2], "{mover}");
    }
}

/// Both ends fall back, one of them moves, and the other is told once.
fn moved_at_the_fixed_endpoint(mover: usize) -> ShiftRig {
    let mut pair = shifting(SECOND);
    (0..2).for_each(|end| pair.ends[end].fall(pair.now));
    pair.ends[mover].move_to(pair.now, OTHER);
    pair.ends[mover].poll_tell();
    pair.ends[1 - mover].told(pair.now, Some(pair.ends[mover].own()));
    pair
}

/// At first only the mover's former prefix works, and the link shifts there. Its announcement is
/// still valid later.
#[test]
fn a_neighbour_that_was_found_at_its_former_prefix_is_followed_before_that_is_gone() {
    for mover in 0..2 {
        let mut pair = moved_at_the_fixed_endpoint(mover);
        pair.gone = vec![OTHER];
        let run = |pair: &mut ShiftRig, time: Duration| {
            let end = pair.now + time;
            while pair.now < end {
                pair.turn();
                pair.sent.retain(|sent| !matches!(sent.what, ShiftMessage::Place(_)));
            }
        };
        while !pair.ends[1 - mover].view().shifting {
            run(&mut pair, STEP);
        }
        assert_eq!(used(&pair, 1 - mover)[1], prefix(mover));
        pair.gone.clear();
        run(&mut pair, 3 * SECOND);
        assert_eq!(used(&pair, 1 - mover)[1], OTHER, "{mover}");
        pair.gone = vec![prefix(mover)];
        run(&mut pair, 5 * SECOND);
        assert_eq!([0, 1].map(|end| pair.ends[end].view().failed), [0; 2], "{mover}");
    }
}

/// A neighbour is seen at a different prefix than announced, as behind a translator. After a fall,
/// it is found at either prefix, however long it was unreachable.
#[test]
fn a_neighbour_that_was_seen_elsewhere_than_where_it_says_is_found_at_either_place() {
    for (mover, gone_s) in [(0, 5), (1, 5), (0, 300), (1, 300)] {
        let mut pair = shifting(SECOND);
        let seen = [0x20, 1, 0x0d, 0xb8, 0, 9, 0, 9];
        pair.translated = Some((prefix(mover), seen));
        pair.ends[1 - mover].roam(seen);
        pair.run(3 * SECOND);
        assert_eq!(used(&pair, 1 - mover)[1], seen);
        pair.gone = vec![seen];
        pair.run(SECOND * gone_s);
        (0..2).for_each(|end| pair.ends[end].fall(pair.now));
        pair.gone.clear();
        (0..2).for_each(|end| pair.ends[end].back(pair.now));
        pair.run(25 * SECOND);
        assert_eq!(used(&pair, 1 - mover)[1], seen, "{mover} after {gone_s} s");
    }
    for mover in 0..2 {
        let mut pair = moved_at_the_fixed_endpoint(mover);
        let seen = [0x20, 1, 0x0d, 0xb8, 0, 9, 0, 9];
        pair.ends[1 - mover].roam(seen);
        pair.gone = vec![seen, prefix(mover)];
        pair.run(15 * SECOND);
        assert_eq!(used(&pair, 1 - mover)[1], OTHER, "{mover}");
    }
}

/// The neighbour proves its new prefix once and is then gone from there. Answers from its former
/// prefix must not keep data at the new one.
#[test]
fn a_place_that_was_left_is_forgotten_with_the_next_shift() {
    for mover in 0..2 {
        let mut pair = shifting(SECOND);
        pair.ends[mover].move_to(pair.now, OTHER);
        let goes_there = |pair: &ShiftRig| {
            pair.ends[1 - mover].place().is_some() && used(pair, 1 - mover)[1] == OTHER
        };
        while !goes_there(&pair) {
            pair.turn();
        }
        pair.gone = vec![OTHER];
        pair.run(2 * SECOND);
        for _ in 0..8_000 / STEP.as_millis() {
            pair.turn();
            assert!(!goes_there(&pair), "{mover}");
        }
    }
}

/// The leading end tries again after pauses, while the other end's calls keep its firewall open.
#[test]
fn a_firewall_that_lets_in_only_answers_is_open_however_long_no_shift_was_made() {
    for gone_s in [20, 60, 200] {
        let mut pair = ShiftRig::new(SECOND);
        (pair.walls, pair.gone) = (true, vec![prefix(0)]);
        pair.run(SECOND * gone_s);
        pair.gone.clear();
        let failed = pair.ends[0].view().failed;
        while !pair.ends[0].view().shifting && pair.ends[0].view().failed == failed {
            pair.turn();
        }
        assert_eq!(pair.ends[0].view().failed, failed, "the first shift after {gone_s} s");
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        rng_seed: RngSeed::Fixed(19),
        ..ProptestConfig::with_cases(100.min(ProptestConfig::default().cases))
    })]

    /// One or both ends move at random times, also with stateful firewalls. No data is lost, and
    /// both ends soon use the new prefixes. Control frames may be lost.
    #[test]
    fn no_data_misses_in_a_move(
        seed: [u8; 32], loses in prop_oneof![Just(0), 8..40u64], delay_ms in 1..90u64,
        skew_ms in 0..100u64, walls: bool,
        moves in proptest::collection::vec((0..2usize, 3_000..15_000u64), 1..5),
    ) {
        let mut pair = ShiftRig::new(SECOND);
        pair.rng = Rng::new(seed);
        (pair.delay, pair.walls, pair.loses) = (Duration::from_millis(delay_ms), walls, loses);
        pair.session(2, Duration::from_millis(skew_ms));
        pair.run(5 * SECOND);
        prop_assert_eq!(pair.shifting(), [true; 2]);
        let mut at = [prefix(0), prefix(1)];
        for (number, (end, wait_ms)) in (10..).zip(moves) {
            at[end] = [0x20, 1, 0x0d, 0xb8, 0, 9, end as u8, number];
            pair.ends[end].move_to(pair.now, at[end]);
            pair.run(Duration::from_millis(wait_ms));
        }
        pair.run(35 * SECOND);
        prop_assert_eq!(pair.missed, 0);
        prop_assert_eq!([used(&pair, 0), used(&pair, 1)], [at, [at[1], at[0]]]);
    }
}
