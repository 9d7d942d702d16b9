//! Audits of simulated circuits, with and without cover, by fixed seeds.

use shoal_crypto::Rng;

use super::*;

/// Treatment of cells by a relay.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Relaying {
    AsAgreed,
    AtOnce,
    /// For times that it draws itself.
    Random,
    /// For this multiple of the agreed times.
    Times(f64),
    /// For this many milliseconds more.
    Longer(f64),
}

use Relaying::{AsAgreed, AtOnce, Longer, Random, Times};

/// A circuit over three relays. Lines take 1 ms from hop to hop and back.
#[derive(Clone, Copy, Debug)]
struct Circuit {
    /// Mean of the mixes in milliseconds; none draws more than five times as much.
    mean: f64,
    /// Times between two turns of a peer on the lines of this host and of the other one, and
    /// between relays 2 and 3.
    own: Option<f64>,
    far: Option<f64>,
    middle: Option<f64>,
    /// True if each echo waits for processors, mostly some milliseconds.
    is_busy: bool,
    rounds: usize,
    relays: [Relaying; 3],
}

const PLAIN: Circuit = Circuit {
    mean: 5.0,
    own: None,
    far: None,
    middle: None,
    is_busy: false,
    rounds: 20,
    relays: [AsAgreed; 3],
};
/// Turns at 10 Mbit/s, and at 2 Mbit/s.
const TURNS_10: Option<f64> = Some(18.43);
const TURNS_2: Option<f64> = Some(92.16);

struct Dice(Rng);

impl Dice {
    fn uniform(&mut self) -> f64 {
        ((self.0.u64() >> 11) as f64 + 0.5) / (1_u64 << 53) as f64
    }

    fn exponential(&mut self, mean: f64) -> f64 {
        let drawn = -mean * self.uniform().ln();
        if drawn > 5.0 * mean { self.exponential(mean) } else { drawn }
    }

    /// Time of the first turn from `now` on. A turn is somewhere in the first half of a slot.
    fn turn(&mut self, now: f64, period: Option<f64>, phase: f64) -> f64 {
        let Some(period) = period else { return now };
        let begin = ((now - phase) / period).ceil() * period + phase;
        begin + self.uniform() * period / 32.0
    }
}

fn us(ms: f64) -> u64 {
    (ms * 1e3).round() as u64
}

/// Answers of all rounds. Phases of turns are fixed for the circuit, as on real lines.
fn rounds(circuit: &Circuit, seed: u8) -> Vec<Vec<HopAnswer>> {
    let mut dice = Dice(Rng::new([seed; 32]));
    let phases = [(); 6].map(|()| dice.uniform() * 200.0);
    let mut now = 1_000.0;
    let mut round = || {
        let hops = (0..4).map(|hop| {
            let answer = answer(circuit, hop, &mut now, &phases, &mut dice);
            now += 50.0;
            answer
        });
        hops.collect()
    };
    (0..circuit.rounds).map(|_| round()).collect()
}

/// One echo, which leaves at `now`. Its answer comes at the new `now`.
fn answer(
    circuit: &Circuit,
    hop: usize,
    now: &mut f64,
    phases: &[f64; 6],
    dice: &mut Dice,
) -> HopAnswer {
    let began = *now;
    let mut agreed = vec![[0.0; 2]; hop + 1];
    let mut held = [0.0; 2];
    for (relay, how) in circuit.relays.iter().enumerate().take(hop + 1) {
        for way in (0..2).filter(|way| *way == 1 || relay < hop) {
            let delay = dice.exponential(circuit.mean);
            agreed[relay][way] = delay;
            held[way] += match how {
                AsAgreed => delay,
                AtOnce => 0.0,
                Random => dice.exponential(circuit.mean),
                Times(factor) => factor * delay,
                Longer(ms) => delay + ms,
            };
            // Cells leave in quanta.
            held[way] += (dice.uniform() - 0.5) * 0.25;
        }
    }
    let is_far = hop == 3;
    let (far, middle) = (circuit.far.filter(|_| is_far), circuit.middle.filter(|_| hop > 1));
    let mut at = dice.turn(began, circuit.own, phases[0]) + (hop + 1) as f64 + held[0];
    at = dice.turn(at, middle, phases[1]);
    at = dice.turn(at, far, phases[2]);
    at = dice.turn(at, far, phases[3]);
    at = dice.turn(at, middle, phases[4]) + held[1];
    if circuit.is_busy {
        let times = 1.0 + (dice.uniform() * 5.0).floor();
        at += -2.5 * dice.uniform().ln() * times;
    }
    *now = dice.turn(at, circuit.own, phases[5]);
    let delays: Vec<_> = agreed.iter().map(|both| both.map(us)).collect();
    let periods = circuit.own.into_iter().chain(far).chain(circuit.middle);
    let turns = circuit.own.into_iter().chain(far).map(|period| us(2.0 * period));
    HopAnswer {
        node: format!("r{}", hop + 1),
        rtt_us: Some(us(*now - began)),
        mixed_us: Some(delays.iter().flatten().sum()),
        turns_us: turns.sum(),
        delays_us: delays.into_iter().map(Some).collect(),
        periods_us: periods.map(us).collect(),
    }
}

fn verdicts(rounds: &[Vec<HopAnswer>]) -> Vec<AuditVerdict> {
    audit(rounds).iter().map(|hop| hop.verdict).collect()
}

/// Number of audits, by seeds from 0, that accuse each relay.
fn accused(circuit: &Circuit, seeds: u8) -> [usize; 3] {
    let mut counts = [0; 3];
    for seed in 0..seeds {
        let audited = audit(&rounds(circuit, seed));
        for (count, hop) in counts.iter_mut().zip(&audited) {
            *count += usize::from(hop.is_accused());
        }
    }
    counts
}

/// Circuits with and without cover whose mixes are long enough to be judged.
fn judged() -> [Circuit; 5] {
    let long = Circuit { rounds: 100, ..PLAIN };
    [
        PLAIN,
        Circuit { is_busy: true, ..long },
        Circuit { mean: 20.0, own: TURNS_10, far: TURNS_10, ..long },
        Circuit { mean: 100.0, own: TURNS_2, far: TURNS_2, ..long },
        Circuit { mean: 20.0, own: TURNS_10, middle: Some(3.7), is_busy: true, ..long },
    ]
}

/// Bound: at most one audit of 250 accuses an honest relay. Longer runs show one of 1,000.
#[test]
fn honest_relays_are_not_accused_with_and_without_cover() {
    let short = [
        Circuit { is_busy: true, ..PLAIN },
        Circuit { own: TURNS_10, far: TURNS_10, ..PLAIN },
        Circuit { own: TURNS_10, far: TURNS_10, rounds: 100, ..PLAIN },
        Circuit { own: TURNS_2, far: TURNS_2, rounds: 60, ..PLAIN },
        Circuit { own: Some(3.69), far: Some(3.69), is_busy: true, ..PLAIN },
    ];
    for circuit in judged().iter().chain(&short) {
        let wrong: usize = accused(circuit, 50).iter().sum();
        assert_eq!(wrong, 0, "{circuit:?}");
    }
}

#[test]
fn without_the_periods_of_turns_honest_relays_would_be_accused() {
    let circuit = Circuit { own: TURNS_2, far: TURNS_2, rounds: 60, ..PLAIN };
    let mut wrong = 0;
    for seed in 0..20 {
        let mut rounds = rounds(&circuit, seed);
        rounds.iter_mut().flatten().for_each(|hop| hop.periods_us.clear());
        wrong += usize::from(audit(&rounds).iter().any(HopAudit::is_accused));
    }
    assert!(wrong >= 10, "{wrong} of 20");
}

/// Bound: nine of ten audits find such a relay, and no other relay is accused for it.
#[test]
fn a_relay_that_holds_cells_shorter_or_longer_is_accused_and_nobody_else() {
    for circuit in judged() {
        for how in [AtOnce, Times(2.0), Times(0.4)] {
            for relay in 0..3 {
                let mut relays = [AsAgreed; 3];
                relays[relay] = how;
                let counts = accused(&Circuit { relays, ..circuit }, 10);
                assert!(counts[relay] >= 9, "{how:?} at {relay}: {counts:?}, {circuit:?}");
                let others: usize = counts.iter().sum::<usize>() - counts[relay];
                assert_eq!(others, 0, "{how:?} at {relay}: {counts:?}, {circuit:?}");
            }
        }
    }
}

#[test]
fn a_relay_that_draws_its_own_delays_is_found_by_enough_rounds() {
    for circuit in judged() {
        let relays = [AsAgreed, Random, AsAgreed];
        let counts = accused(&Circuit { relays, rounds: 150, ..circuit }, 10);
        assert!(counts[1] >= 9 && counts[0] + counts[2] == 0, "{counts:?}, {circuit:?}");
    }
}

#[test]
fn several_relays_are_judged_each_by_its_own_part() {
    use AuditVerdict::{AsAgreed as Agreed, Host, NotAsAgreed};
    assert_eq!(verdicts(&rounds(&PLAIN, 1)), [Agreed, Agreed, Agreed, Host]);
    let two = Circuit { relays: [AtOnce, AsAgreed, Times(2.0)], ..PLAIN };
    assert_eq!(verdicts(&rounds(&two, 1)), [NotAsAgreed, Agreed, NotAsAgreed, Host]);
    let audited = audit(&rounds(&two, 1));
    let share = |kept: Option<KeptShare>| kept.unwrap().share;
    assert!(share(audited[0].there).abs() < 0.1 && share(audited[0].back).abs() < 0.1);
    assert!((share(audited[2].there) - 2.0).abs() < 0.1, "{audited:?}");
}

#[test]
fn a_hold_that_no_line_explains_is_accused() {
    let longer = |ms| Circuit { relays: [AsAgreed, Longer(ms), AsAgreed], ..PLAIN };
    let said = verdicts(&rounds(&longer(900.0), 1));
    assert_eq!(said[1], AuditVerdict::Late, "{said:?}");
    // A satellite is no relay that cheats.
    let said = verdicts(&rounds(&longer(300.0), 1));
    assert_eq!(said[..3], [AuditVerdict::AsAgreed; 3]);
}

#[test]
fn short_mixes_beside_turns_can_not_be_judged() {
    use AuditVerdict::{Busy, TooShort};
    let covered = Circuit { own: TURNS_2, far: TURNS_2, rounds: 60, ..PLAIN };
    let said = verdicts(&rounds(&covered, 1));
    assert_eq!(said[..3], [TooShort; 3]);
    let tiny = Circuit { mean: 0.2, ..PLAIN };
    assert_eq!(verdicts(&rounds(&tiny, 1))[..3], [TooShort; 3]);
    let busy = Circuit { is_busy: true, ..PLAIN };
    let said = verdicts(&rounds(&busy, 1));
    assert!(said[..3].iter().all(|verdict| *verdict == Busy), "{said:?}");
}

#[test]
fn stalls_make_no_accusation_and_hide_no_cheat() {
    let stall = |rounds: &mut Vec<Vec<HopAnswer>>| {
        for (round, hops) in (0..).zip(rounds) {
            let late = if round % 3 == 0 { 10_000 + round * 3_000 } else { 0 };
            hops.iter_mut().for_each(|hop| hop.rtt_us = hop.rtt_us.map(|us| us + late));
        }
    };
    let mut honest = rounds(&Circuit { rounds: 60, ..PLAIN }, 2);
    stall(&mut honest);
    assert!(!audit(&honest).iter().any(HopAudit::is_accused));
    let mut cheat =
        rounds(&Circuit { rounds: 60, relays: [AtOnce, AsAgreed, AsAgreed], ..PLAIN }, 2);
    stall(&mut cheat);
    assert_eq!(verdicts(&cheat)[0], AuditVerdict::NotAsAgreed);
}

#[test]
fn what_can_not_be_known_is_said_to_be_unknown() {
    use AuditVerdict::{AsAgreed as Agreed, Silent, Unknown, Unmixed};
    let mut timed = rounds(&PLAIN, 3);
    for hop in timed.iter_mut().flatten().filter(|hop| hop.delays_us.len() > 1) {
        hop.delays_us[1] = None;
        hop.mixed_us = None;
    }
    let said = verdicts(&timed);
    assert_eq!((said[1], said[0] == AuditVerdict::NotAsAgreed), (Unknown, false), "{said:?}");
    let mut plain = rounds(&Circuit { relays: [AtOnce; 3], ..PLAIN }, 3);
    for hop in plain.iter_mut().flatten() {
        hop.delays_us.iter_mut().for_each(|delays| *delays = Some([0, 0]));
        hop.mixed_us = Some(0);
    }
    assert_eq!(verdicts(&plain)[..3], [Unmixed; 3]);
    assert_eq!(verdicts(&rounds(&Circuit { rounds: 2, ..PLAIN }, 3)), [Silent; 4]);
    // A relay that answers no echo is judged by the echoes behind it.
    let mut mute = rounds(&PLAIN, 3);
    mute.iter_mut().for_each(|round| round[0].rtt_us = None);
    assert_eq!(verdicts(&mute)[..2], [Silent, Agreed]);
    assert!(audit(&[]).is_empty());
}
