//! Shifts of addresses on one link, with any messages of the neighbour at any time.

use core::time::Duration;
use std::sync::Arc;

use shoal_crypto::Secret;
use shoal_relay::shift::{ShiftRole, ShiftSchedule, ShiftState, is_reserved};
use shoal_session::Endpoints;
use shoal_wire::{PathToken, ShiftAnnouncement, ShiftStage, ShiftStep, Time};

/// Maximum number of accepted identifiers: eight schedules with three epochs each, and the
/// addresses in use.
const ACCEPTED_MAX: usize = 8 * 3 + 3;
/// Maximum number of steps sent at a time: four waiting ones, each between two prefixes of either
/// end.
const STEPS_MAX: usize = 4 * 4;
/// The token of all challenges.
const TOKEN: PathToken = [7; size_of::<PathToken>()];

fn take<const N: usize>(data: &mut &[u8]) -> Option<[u8; N]> {
    let (first, rest) = data.split_first_chunk()?;
    *data = rest;
    Some(*first)
}

/// Takes and checks all output. Sets `token` to the token of the last step, for the neighbour to
/// return.
fn check(shift: &mut ShiftState, now: Time, token: &mut PathToken) {
    shift.handle_timeout(now);
    let _told = (shift.poll_tell(), shift.poll_tell_again());
    let steps: Vec<_> = std::iter::from_fn(|| shift.poll_step(now)).take(STEPS_MAX + 1).collect();
    assert!(steps.len() <= STEPS_MAX);
    assert!(steps.iter().all(|(ends, _)| ends.local.is_some()));
    let brings = |step: &ShiftStep| step.stage != ShiftStage::Done;
    *token = steps.last().map(|(_, step)| *step).filter(brings).map_or(*token, |step| step.token);
    let beside = shift.poll_opens(now).into_iter();
    let mut beside =
        beside.chain(shift.poll_ask(now, TOKEN).into_iter().flat_map(|(ends, _)| ends));
    assert!(beside.all(|ends| ends.local.is_some()));
    assert!(shift.poll_timeout(now).is_none_or(|at| at > now), "the timeout is past");
    let mut accepted = Vec::new();
    shift.accepted(now, &mut accepted);
    assert!(accepted.len() <= ACCEPTED_MAX);
    assert!(!accepted.iter().any(|identifier| is_reserved(*identifier)));
    if let Some(place) = shift.place() {
        // The address has the own prefix or the former one.
        let local =
            place.local.and_then(ShiftAnnouncement::split).map(|(_, identifier)| identifier);
        let own = |identifier: &u64| Some(*identifier) == local;
        assert!(accepted.iter().any(own), "frames to the address in use are taken in");
        assert!(shift.knows(now, place.remote));
        assert!(shift.view().agreed && shift.view().shifting);
    }
}

/// The neighbour appears under another prefix, and this end moves to one.
fn roam(shift: &mut ShiftState, now: Time, [prefix, secret, epoch, own]: [u8; 4]) {
    let under = |prefix: u8| [0x20, 1, 0x0d, 0xb8, 0, 0, 0, prefix];
    let seen = ShiftAnnouncement { prefix: under(prefix), ..shift.own() };
    for end in [ShiftRole::Leading, ShiftRole::Following] {
        let remote =
            seen.endpoint(ShiftSchedule::new(&[secret; 32]).identifier(end, epoch.into(), 0));
        let known = shift.knows(now, remote);
        if let Some(prefix) = shift.roamed(now, remote) {
            assert!(!known && prefix == seen.prefix);
            shift.roam(prefix);
            assert!(shift.knows(now, remote) && shift.roamed(now, remote).is_none());
        }
    }
    shift.move_to(now, under(own));
    if let Some(ends) = shift.place() {
        let local = ends.local.and_then(ShiftAnnouncement::split);
        let local = local.map(|(_, identifier)| shift.own().endpoint(identifier));
        let _follows = shift.came(&Endpoints { local, ..ends });
    }
}

/// Reads steps: one byte selects a step, and its arguments follow.
pub fn moving(mut data: &[u8]) {
    let data = &mut data;
    let Some([first, seconds]) = take(data) else { return };
    let interval_ms = 1_000 * (1 + u32::from(seconds));
    let own =
        ShiftAnnouncement { prefix: [0x20, 1, 0x0d, 0xb8, 0, 0, 0, 1], port: 7_400, interval_ms };
    let mut shift = ShiftState::new(own, first & 1 == 0, Arc::new(Secret::new([9; 32])));
    let (mut now, mut token) = (Time::from_millis(1_000), TOKEN);
    while let Some([what]) = take(data) {
        let more = match what % 8 {
            0 => take(data).map(|ms: [u8; 2]| {
                now = now + Duration::from_millis(u16::from_be_bytes(ms).into());
            }),
            1 => take(data).map(|[secret]| shift.session(now, &[secret; 32], now)),
            2 => take::<{ ShiftAnnouncement::LEN }>(data).map(|body| {
                if let Ok(place) = ShiftAnnouncement::parse(&body) {
                    shift.told(now, place);
                }
            }),
            3 => take::<{ ShiftStep::LEN }>(data).map(|body| {
                if let Ok(step) = ShiftStep::parse(&body) {
                    let _refused = shift.handle(now, &step);
                }
            }),
            4 => take(data).map(|[stage, secret, epoch]: [u8; 3]| {
                let stages = [ShiftStage::Call, ShiftStage::Answer, ShiftStage::Done];
                let stage = stages[usize::from(stage) % stages.len()];
                let tag = ShiftSchedule::new(&[secret; 32]).tag();
                let (epoch, shifting) = (epoch.into(), shift.place());
                let step = |echo| ShiftStep { stage, tag, epoch, token: TOKEN, echo };
                // This token was never sent.
                let _refused = shift.handle(now, &step(TOKEN));
                assert_eq!(shift.place(), shifting, "a step without proof moved it");
                let _refused = shift.handle(now, &step(token));
            }),
            5 => {
                shift.fall(now);
                Some(())
            }
            7 => take(data).map(|bytes| roam(&mut shift, now, bytes)),
            _ => {
                let place = ShiftAnnouncement { prefix: [0x20, 1, 0x0d, 0xb8, 0, 0, 0, 2], ..own };
                shift.told(now, Some(place));
                let _followed = shift.answered(now, TOKEN);
                Some(())
            }
        };
        if more.is_none() {
            return;
        }
        check(&mut shift, now, &mut token);
    }
}
