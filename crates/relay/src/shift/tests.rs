//! Two ends under one virtual clock, on a network that loses, delays and blocks messages.

mod moves;

use core::time::Duration;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;

use proptest::prelude::*;
use shoal_crypto::{Rng, Secret};
use shoal_session::Endpoints;
use shoal_wire::{DropReason, PathToken, ShiftAnnouncement, ShiftStage, ShiftStep, Time};

use super::link::{ShiftOutcome, ShiftState};
use super::schedule::{ShiftRole, ShiftSchedule};

const SECOND: Duration = Duration::from_secs(1);
const STEP: Duration = Duration::from_millis(5);

fn place(end: u8, interval: Duration) -> ShiftAnnouncement {
    let interval_ms = u32::try_from(interval.as_millis()).unwrap();
    ShiftAnnouncement { prefix: [0x20, 1, 0x0d, 0xb8, 0, 0, 0, end], port: 7_400, interval_ms }
}

fn key(number: u8) -> Arc<Secret<32>> {
    Arc::new(Secret::new([number; 32]))
}

fn secret(number: u8) -> [u8; 32] {
    [number; 32]
}

/// A message between the ends.
#[derive(Clone, Copy, PartialEq)]
enum ShiftMessage {
    Data,
    Step(ShiftStep),
    Place(ShiftAnnouncement),
    Challenge(PathToken),
    Answer(PathToken),
}

impl ShiftMessage {
    fn is_call(self) -> bool {
        matches!(self, ShiftMessage::Step(ShiftStep { stage: ShiftStage::Call, .. }))
    }
}

/// A message in transit: sender, arrival time, addresses, content.
struct ShiftDelivery {
    by: usize,
    at: Time,
    ends: Endpoints,
    what: ShiftMessage,
}

struct ShiftRig {
    ends: [ShiftState; 2],
    /// Advance of each end's clock.
    ahead: [Duration; 2],
    now: Time,
    began: Time,
    rng: Rng,
    /// One in this many messages is lost. Zero loses none.
    loses: u64,
    delay: Duration,
    /// True if no message of this end passes between shifting addresses.
    blocked: [bool; 2],
    /// True if each end has a stateful firewall: it admits a message only if one left in reverse
    /// direction.
    walls: bool,
    opened: BTreeSet<Endpoints>,
    /// A prefix of one end, and the prefix that others see instead.
    translated: Option<([u8; 8], [u8; 8])>,
    /// Prefixes from and to which all messages are lost.
    gone: Vec<[u8; 8]>,
    /// Data frames that arrived at an address that is not accepted, or from an unknown source.
    missed: u64,
    arrived: u64,
    sent: Vec<ShiftDelivery>,
    /// Every address pair of data, in the order of first use.
    used: [Vec<Endpoints>; 2],
}

impl ShiftRig {
    fn new(interval: Duration) -> ShiftRig {
        let end = |end: u8| ShiftState::new(place(end, interval), end == 0, key(40 + end));
        let mut pair = ShiftRig {
            ends: [end(0), end(1)],
            ahead: [Duration::ZERO; 2],
            now: Time::from_millis(50_000),
            began: Time::from_millis(50_000),
            rng: Rng::new([3; 32]),
            loses: 0,
            delay: Duration::from_millis(20),
            blocked: [false; 2],
            walls: false,
            opened: BTreeSet::new(),
            translated: None,
            gone: Vec::new(),
            missed: 0,
            arrived: 0,
            sent: Vec::new(),
            used: [Vec::new(), Vec::new()],
        };
        pair.session(1, Duration::ZERO);
        for end in 0..2 {
            let told = pair.ends[1 - end].poll_tell();
            pair.ends[end].told(pair.now, told);
        }
        pair
    }

    fn clock(&self, end: usize) -> Time {
        self.now + self.ahead[end]
    }

    /// Makes both ends agree on a session. The second end knows it this much later.
    fn session(&mut self, number: u8, later: Duration) {
        for end in 0..2 {
            let now = self.clock(end);
            let since = if end == 0 { now } else { now + later };
            self.ends[end].session(now, &secret(number), since);
        }
    }

    fn send(&mut self, by: usize, ends: Endpoints, what: ShiftMessage) {
        // Random losses spare data, since the test counts lost data.
        self.opened.insert(ends);
        let all = self.loses > 0 && what != ShiftMessage::Data;
        let lost = all && self.rng.u64().is_multiple_of(self.loses);
        if !lost && !self.blocked[by] {
            self.sent.push(ShiftDelivery { by, at: self.now + self.delay, ends, what });
        }
    }

    /// Sends over the link itself: between fixed endpoints if it does not shift.
    fn say(&mut self, by: usize, what: ShiftMessage) {
        let fixed = Endpoints::from(place(9, SECOND).endpoint(9));
        self.send(by, self.ends[by].place().unwrap_or(fixed), what);
    }

    fn turn(&mut self) {
        self.now = self.now + STEP;
        for by in 0..2 {
            let now = self.clock(by);
            self.ends[by].handle_timeout(now);
            while let Some((ends, step)) = self.ends[by].poll_step(now) {
                self.send(by, ends, ShiftMessage::Step(step));
            }
            if let Some(place) = self.ends[by].poll_tell() {
                self.say(by, ShiftMessage::Place(place));
            }
            if self.ends[by].poll_tell_again() {
                self.say(by, ShiftMessage::Place(self.ends[by].own()));
            }
            for ends in self.ends[by].poll_opens(now) {
                self.send(by, ends, ShiftMessage::Place(self.ends[by].own()));
            }
            let token = self.rng.array();
            let (asks, token) = self.ends[by].poll_ask(now, token).unwrap_or_default();
            for ends in asks {
                self.send(by, ends, ShiftMessage::Challenge(token));
            }
            if let Some(at) = self.ends[by].place() {
                if self.used[by].last() != Some(&at) {
                    self.used[by].push(at);
                }
                self.send(by, at, ShiftMessage::Data);
            }
        }
        let (now, mut due) = (self.now, Vec::new());
        self.sent.retain_mut(|sent| {
            let here = sent.at <= now;
            if here {
                due.push((sent.by, sent.ends, sent.what));
            }
            !here
        });
        for (by, ends, what) in due {
            self.arrive(1 - by, ends, what);
        }
    }

    fn arrive(&mut self, end: usize, ends: Endpoints, what: ShiftMessage) {
        let now = self.clock(end);
        let mut accepted = Vec::new();
        self.ends[end].accepted(now, &mut accepted);
        let split = |at| ShiftAnnouncement::split(at).expect("a shifting address");
        let own = |id: &u64| split(ends.remote).1 == *id;
        let Some(source) = ends.local else { return self.take(end, what) };
        let Some((source, here)) = self.pass(source, ends.remote) else {
            self.missed += u64::from(what == ShiftMessage::Data);
            return;
        };
        let ends = Endpoints { local: Some(source), remote: here };
        let back = Endpoints { local: Some(ends.remote), remote: source };
        let gone = [ends.remote, source].iter().any(|at| self.gone.contains(&split(*at).0));
        if gone || self.walls && !self.opened.contains(&back) {
            self.missed += u64::from(what == ShiftMessage::Data);
            return;
        }
        let known = self.ends[end].knows(now, source)
            || self.ends[end].roamed(now, source).is_some()
            || self.ends[end].has_left(now, source);
        if !(known && accepted.iter().any(own)) {
            self.missed += u64::from(what == ShiftMessage::Data);
            return;
        }
        self.ends[end].came(&back);
        self.take(end, what);
    }

    /// Source and destination of a message behind the translator of prefixes. None if it does not
    /// pass.
    fn pass(&self, from: SocketAddr, to: SocketAddr) -> Option<(SocketAddr, SocketAddr)> {
        let Some((inside, outside)) = self.translated else { return Some((from, to)) };
        let split = |at| ShiftAnnouncement::split(at).expect("a shifting address");
        let under =
            |prefix, at| ShiftAnnouncement { prefix, ..place(0, SECOND) }.endpoint(split(at).1);
        let from = if split(from).0 == inside { under(outside, from) } else { from };
        let goes_in = split(to).0 == outside;
        let passes = split(to).0 != inside && !(goes_in && self.gone.contains(&outside));
        passes.then_some((from, if goes_in { under(inside, to) } else { to }))
    }

    fn take(&mut self, end: usize, what: ShiftMessage) {
        let now = self.clock(end);
        match what {
            ShiftMessage::Data => self.arrived += 1,
            // As in the relay, a refused step is dropped.
            ShiftMessage::Step(step) => _ = self.ends[end].handle(now, &step),
            ShiftMessage::Place(place) => self.ends[end].told(now, Some(place)),
            ShiftMessage::Challenge(token) => self.say(end, ShiftMessage::Answer(token)),
            ShiftMessage::Answer(token) => drop(self.ends[end].answered(now, token)),
        }
    }

    fn run(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.turn();
        }
    }

    fn shifting(&self) -> [bool; 2] {
        [0, 1].map(|end| self.ends[end].view().shifting)
    }
}

#[test]
fn both_ends_shift_with_each_epoch_and_lose_nothing() {
    let mut pair = ShiftRig::new(SECOND);
    pair.run(60 * SECOND);
    assert_eq!(pair.shifting(), [true; 2]);
    assert!(pair.arrived > 20_000 && pair.missed == 0, "{} of {}", pair.missed, pair.arrived);
    for end in 0..2 {
        let used = &pair.used[end];
        assert!((54..=66).contains(&used.len()), "{}", used.len());
        let different: BTreeSet<_> = used.iter().collect();
        assert_eq!(different.len(), used.len(), "an address came twice");
        let view = pair.ends[end].view();
        assert_eq!((view.failed, view.last.1, view.agreed), (0, ShiftOutcome::Moved, true));
    }
}

#[test]
fn a_link_shifts_as_soon_as_both_ends_know_how_and_not_with_the_next_epoch() {
    let mut pair = ShiftRig::new(3_600 * SECOND);
    let due = pair.ends[0].poll_timeout(pair.now);
    assert!(due.is_some_and(|at| at <= pair.now), "{due:?}");
    pair.run(SECOND);
    assert_eq!(pair.shifting(), [true; 2]);
}

#[test]
fn a_place_of_which_the_neighbour_did_not_hear_is_told_again() {
    for deaf in 0..2 {
        let mut pair = ShiftRig::new(SECOND);
        pair.ends[deaf] = ShiftState::new(place(deaf as u8, SECOND), deaf == 0, key(9));
        pair.ends[deaf].session(pair.now, &secret(1), pair.now);
        pair.ends[1 - deaf].poll_tell();
        pair.run(15 * SECOND);
        assert_eq!(pair.shifting(), [true; 2], "{deaf}");
    }
}

#[test]
fn steps_that_get_lost_are_repeated() {
    let mut pair = ShiftRig::new(SECOND);
    pair.loses = 4;
    pair.run(120 * SECOND);
    assert!(pair.missed == 0 && pair.ends[0].view().made > 100, "{}", pair.missed);
}

#[test]
fn firewalls_that_let_in_only_answers_are_opened_from_both_sides() {
    for (interval, loses) in [(SECOND, 0), (SECOND, 6), (60 * SECOND, 0)] {
        let mut pair = ShiftRig::new(interval);
        (pair.walls, pair.loses) = (true, loses);
        pair.run(120 * SECOND);
        assert_eq!((pair.missed, pair.shifting()), (0, [true; 2]), "{interval:?} {loses}");
        let view = pair.ends[0].view();
        let shifts = 120 / interval.as_secs();
        assert!(view.made >= shifts * 9 / 10 && (loses > 0 || view.failed == 0), "{view:?}");
    }
}

#[test]
fn an_end_that_gets_its_calls_makes_none() {
    let mut pair = ShiftRig::new(SECOND);
    for _ in 0..60_000 / STEP.as_millis() {
        let before = pair.sent.len();
        pair.turn();
        let new = pair.sent[before.min(pair.sent.len())..].iter();
        assert!(!new.clone().any(|sent| { sent.by == 1 && sent.what.is_call() }));
    }
    assert!(pair.ends[0].view().made > 50);
}

#[test]
fn clocks_that_drift_or_learn_of_the_session_late_lose_nothing() {
    for (ahead, later) in [(0, 300), (200, 0), (0, 0)] {
        let mut pair = ShiftRig::new(SECOND);
        pair.ahead[0] = Duration::from_millis(ahead);
        pair.session(2, Duration::from_millis(later));
        for _ in 0..60 {
            pair.run(SECOND);
            // 100 ppm, the drift between two bad clocks.
            pair.ahead[1] += Duration::from_micros(100);
        }
        assert_eq!((pair.missed, pair.shifting()), (0, [true; 2]), "{ahead} {later}");
    }
}

#[test]
fn a_new_session_leads_to_its_own_addresses_when_the_epoch_ends() {
    let mut pair = ShiftRig::new(30 * SECOND);
    // After the longest first epoch, and before the end of the shortest second one.
    pair.run(38 * SECOND);
    let before = pair.used[0].len();
    for number in 2..6 {
        pair.session(number, Duration::from_millis(20));
        pair.run(SECOND);
    }
    assert_eq!(pair.used[0].len(), before, "the epoch is not over");
    pair.run(180 * SECOND);
    assert_eq!((pair.missed, pair.shifting()), (0, [true; 2]));
    assert!((before + 4..=before + 8).contains(&pair.used[0].len()), "{}", pair.used[0].len());
}

#[test]
fn where_one_way_is_blocked_both_ends_fall_back_and_say_so() {
    for blocked in 0..2 {
        let mut pair = ShiftRig::new(SECOND);
        pair.run(5 * SECOND);
        assert_eq!(pair.shifting(), [true; 2]);
        pair.blocked[blocked] = true;
        pair.run(3 * SECOND);
        assert_eq!(pair.shifting(), [false; 2], "{blocked}");
        let made = pair.ends[0].view().made;
        pair.run(4 * SECOND);
        assert_eq!(pair.ends[0].view().made, made, "it pauses");
        assert!(pair.ends.iter().any(|end| end.view().last.1 == ShiftOutcome::Failed));
        pair.blocked[blocked] = false;
        pair.run(30 * SECOND);
        assert_eq!((pair.shifting(), pair.missed), ([true; 2], 0));
    }
}

#[test]
fn an_end_that_never_could_shift_does_not_begin() {
    let mut pair = ShiftRig::new(SECOND);
    pair.blocked[1] = true;
    pair.run(120 * SECOND);
    assert_eq!(pair.used, [Vec::new(), Vec::new()], "no data used shifting addresses");
    let view = pair.ends[0].view();
    assert!(view.made == 0 && (2..12).contains(&view.failed), "{view:?}");
}

#[test]
fn an_end_that_starts_anew_is_met_at_the_fixed_endpoint_and_shifts_again() {
    let mut pair = ShiftRig::new(SECOND);
    pair.run(5 * SECOND);
    for end in 0..2 {
        pair.ends[end] = ShiftState::new(place(end as u8, SECOND), end == 0, key(50 + end as u8));
        let (told, now) = (Some(place(1 - end as u8, SECOND)), pair.clock(end));
        // The other end keeps running, and a handshake proves the fixed endpoint to it.
        pair.ends[1 - end].fall(now);
        pair.session(10 + end as u8, Duration::from_millis(20));
        pair.ends[end].told(now, told);
        pair.sent.clear();
        pair.run(4 * SECOND);
        assert_eq!((pair.shifting(), pair.missed), ([true; 2], 0), "{end}");
    }
}

/// One end loses the link and shifts again at once. The other end's data still uses the former
/// addresses.
#[test]
fn an_end_that_fell_back_alone_takes_in_what_the_other_still_sends() {
    let mut pair = ShiftRig::new(3_600 * SECOND);
    pair.run(SECOND);
    for number in 2..12 {
        pair.session(number, Duration::ZERO);
        pair.run(120 * SECOND / 100);
    }
    assert_eq!(pair.shifting(), [true; 2]);
    let now = pair.clock(0);
    pair.ends[0].fall(now);
    pair.run(SECOND);
    assert_eq!((pair.shifting(), pair.missed), ([true; 2], 0));
}

#[test]
fn old_addresses_and_those_of_others_are_not_taken_in() {
    let mut pair = ShiftRig::new(SECOND);
    pair.run(2 * SECOND);
    let old = pair.ends[1].place().expect("it shifts");
    let id = |ends: Endpoints| match ends.local.map(|local| local.ip()) {
        Some(std::net::IpAddr::V6(ip)) => u128::from(ip) as u64,
        other => panic!("{other:?}"),
    };
    let takes = |pair: &ShiftRig, id: u64| {
        let mut accepted = Vec::new();
        pair.ends[1].accepted(pair.clock(1), &mut accepted);
        assert!(accepted.len() <= 12, "{}", accepted.len());
        accepted.contains(&id)
    };
    assert!(takes(&pair, id(old)) && !takes(&pair, id(old) ^ 1));
    pair.run(3 * SECOND);
    assert!(!takes(&pair, id(old)));
    let now = pair.clock(0);
    assert!(!pair.ends[0].knows(now, old.local.unwrap()));
    let current = pair.ends[1].place().and_then(|ends| ends.local).unwrap();
    assert!(pair.ends[0].knows(now, current));
    let mut elsewhere = current;
    elsewhere.set_port(7_401);
    assert!(!pair.ends[0].knows(now, elsewhere));
    assert!(!pair.ends[0].knows(now, "10.0.0.1:7400".parse().unwrap()));
}

#[test]
fn steps_that_are_not_the_neighbours_to_take_are_refused() {
    let mut pair = ShiftRig::new(SECOND);
    pair.run(5 * SECOND);
    let now = pair.clock(1);
    let schedule = ShiftSchedule::new(&secret(1));
    let (tag, at) = (schedule.tag(), schedule.epoch(pair.began, now, SECOND));
    // The schedule of a link between two other nodes.
    let others = ShiftSchedule::new(&secret(9)).tag();
    let step = |stage, tag, epoch| ShiftStep { stage, tag, epoch, token: [0; 8], echo: [0; 8] };
    let bad = Err(DropReason::BadShift);
    for (end, step) in [
        (0, step(ShiftStage::Call, tag, at + 3)),
        (0, step(ShiftStage::Call, [0; 4], at)),
        (0, step(ShiftStage::Answer, others, at + 1)),
        (1, step(ShiftStage::Call, others, at + 1)),
        (1, step(ShiftStage::Done, others, at + 1)),
        (0, step(ShiftStage::Done, tag, at)),
        (0, step(ShiftStage::Answer, tag, at + 4)),
        (1, step(ShiftStage::Answer, tag, at)),
        (1, step(ShiftStage::Call, [0; 4], at)),
        (1, step(ShiftStage::Call, tag, at + 3)),
        (1, step(ShiftStage::Call, tag, at - 3)),
        (1, step(ShiftStage::Done, tag, at + 2)),
    ] {
        assert_eq!(pair.ends[end].handle(now, &step), bad, "{end} {step:?}");
    }
    assert_eq!(pair.shifting(), [true; 2]);
}

#[test]
fn the_longer_interval_counts_and_a_neighbour_that_stops_is_met_at_the_fixed_endpoint() {
    let mut pair = ShiftRig::new(SECOND);
    let now = pair.now;
    pair.ends[1] = ShiftState::new(place(1, 2 * SECOND), false, key(60));
    pair.session(2, Duration::ZERO);
    pair.ends[0].told(now, Some(place(1, 2 * SECOND)));
    pair.ends[1].told(now, Some(place(0, SECOND)));
    pair.run(20 * SECOND);
    assert_eq!(pair.ends[0].view().interval, 2 * SECOND);
    assert!((8..=12).contains(&pair.used[0].len()), "{}", pair.used[0].len());
    pair.ends[0].told(pair.now, None);
    assert!(pair.ends[0].place().is_none() && !pair.ends[0].view().agreed);
}

#[test]
fn an_epoch_with_the_address_of_a_machine_behind_an_end_is_left_out() {
    for (end, of) in [(0, ShiftRole::Leading), (1, ShiftRole::Following)] {
        let mut pair = ShiftRig::new(SECOND);
        let machine = ShiftSchedule::new(&secret(1)).identifier(of, 3, 0);
        pair.ends[end].leave_out([machine].into());
        let (began, taken) = (pair.now, place(end as u8, SECOND).endpoint(machine));
        while pair.now < began + SECOND * 20 {
            pair.turn();
            let mut accepted = Vec::new();
            pair.ends[end].accepted(pair.clock(end), &mut accepted);
            assert!(!accepted.contains(&machine));
        }
        assert!(pair.used[end].iter().all(|ends| ends.local != Some(taken)));
        assert_eq!(pair.missed, 0);
        let view = pair.ends[end].view();
        assert!(
            view.failed >= 1 && view.shifting && view.last.1 == ShiftOutcome::Moved,
            "{view:?}"
        );
        assert!(pair.used[end].len() > 8, "{} addresses", pair.used[end].len());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12.min(ProptestConfig::default().cases)))]

    /// At any loss and any times of sessions, data arrives at accepted addresses. No address is
    /// used for longer than 1.75 epochs.
    #[test]
    fn no_data_misses(
        seed: [u8; 32], loses in 2..8u64, delay_ms in 1..90u64, skew_ms in 0..100u64,
        sessions in proptest::collection::vec(500..9_000u64, 0..6),
    ) {
        let mut pair = ShiftRig::new(SECOND);
        pair.rng = Rng::new(seed);
        (pair.loses, pair.delay) = (loses, Duration::from_millis(delay_ms));
        for (number, wait_ms) in (2..).zip(sessions) {
            pair.run(Duration::from_millis(wait_ms));
            pair.session(number, Duration::from_millis(skew_ms));
        }
        pair.run(20 * SECOND);
        prop_assert_eq!(pair.missed, 0);
        // If every second step is lost, shifts fail and pause, and perhaps none succeeds.
        let least = match loses {
            2 => 0,
            3 => 1,
            _ => 15,
        };
        prop_assert!(pair.ends[0].view().made >= least, "{:?}", pair.ends[0].view());
    }
}

#[test]
fn an_hour_of_silence_draws_eight_calls_and_a_pause() {
    let mut pair = ShiftRig::new(3_600 * SECOND);
    pair.blocked = [true; 2];
    let mut calls = 0;
    for _ in 0..25_000 {
        pair.now = pair.now + STEP;
        pair.ends[0].handle_timeout(pair.now);
        calls += std::iter::from_fn(|| pair.ends[0].poll_step(pair.now)).count();
    }
    // Two attempts of 8 s, then others after pauses of 10, 20 and 40 s.
    assert_eq!((calls, pair.ends[0].view().failed), (40, 5), "{:?}", pair.ends[0].view());
}

#[test]
fn a_link_that_comes_back_shifts_soon_however_long_it_was_down() {
    let mut pair = ShiftRig::new(SECOND);
    pair.run(5 * SECOND);
    pair.blocked = [true; 2];
    for end in &mut pair.ends {
        end.fall(pair.now);
    }
    pair.run(1_300 * SECOND);
    let failed = pair.ends[0].view().failed;
    assert!(failed >= 8, "{failed}");
    // The pause has its maximum length.
    pair.blocked = [false; 2];
    pair.session(2, Duration::ZERO);
    pair.run(20 * SECOND);
    assert_eq!(pair.shifting(), [false; 2]);
    for end in &mut pair.ends {
        end.back(pair.now);
    }
    pair.run(12 * SECOND);
    assert_eq!(pair.shifting(), [true; 2]);
}

#[test]
fn a_neighbour_that_names_one_prefix_after_the_other_draws_few_calls() {
    let mut pair = ShiftRig::new(SECOND);
    pair.blocked = [true; 2];
    let (mut calls, mut said) = (0, 0);
    for round in 0..12_000_u64 {
        pair.now = pair.now + STEP;
        if round % 100 == 0 {
            said += 1;
            let there = (said % 3 > 0).then(|| place(7 + (said % 3) as u8, SECOND));
            pair.ends[0].told(pair.now, there);
        }
        pair.ends[0].handle_timeout(pair.now);
        calls += std::iter::from_fn(|| pair.ends[0].poll_step(pair.now)).count();
    }
    // One or two attempts in ten seconds.
    assert!((1..=128).contains(&calls) && said == 120, "{calls} calls, {said} said");
}
