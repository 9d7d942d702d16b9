//! The hops of one link: whatever the neighbour says and whenever, the machine keeps its promises.

use core::time::Duration;
use std::sync::Arc;

use shoal_crypto::Secret;
use shoal_relay::hop::{End, Hop, Schedule, is_reserved};
use shoal_session::Endpoints;
use shoal_wire::{HopPlace, HopStage, HopStep, PathToken, Time};

/// Identifiers of eight schedules with three epochs each, and of the addresses in use.
const ACCEPTED_MAX: usize = 8 * 3 + 3;
/// Steps that leave at most: four that wait, each between two prefixes of either end.
const STEPS_MAX: usize = 4 * 4;
/// What all challenges have in them.
const TOKEN: PathToken = [7; size_of::<PathToken>()];

/// Takes the next bytes of the input.
fn take<const N: usize>(data: &mut &[u8]) -> Option<[u8; N]> {
    let (first, rest) = data.split_first_chunk()?;
    *data = rest;
    Some(*first)
}

/// Has it send what it has to say. Returns the token of the last step in `token`, for the
/// neighbour to return.
fn check(hop: &mut Hop, now: Time, token: &mut PathToken) {
    hop.handle_timeout(now);
    let _told = (hop.poll_tell(), hop.poll_tell_again());
    let steps: Vec<_> = std::iter::from_fn(|| hop.poll_step(now)).take(STEPS_MAX + 1).collect();
    assert!(steps.len() <= STEPS_MAX);
    assert!(steps.iter().all(|(ends, _)| ends.local.is_some()));
    let brings = |step: &HopStep| step.stage != HopStage::Done;
    *token = steps.last().map(|(_, step)| *step).filter(brings).map_or(*token, |step| step.token);
    let beside = hop.poll_opens(now).into_iter();
    let mut beside = beside.chain(hop.poll_ask(now, TOKEN).into_iter().flat_map(|(ends, _)| ends));
    assert!(beside.all(|ends| ends.local.is_some()));
    assert!(hop.poll_timeout(now).is_none_or(|at| at > now), "it would be called without end");
    let mut accepted = Vec::new();
    hop.accepted(now, &mut accepted);
    assert!(accepted.len() <= ACCEPTED_MAX);
    assert!(!accepted.iter().any(|identifier| is_reserved(*identifier)));
    if let Some(place) = hop.place() {
        // Under its own prefix, or the former one.
        let local = place.local.and_then(HopPlace::split).map(|(_, identifier)| identifier);
        let own = |identifier: &u64| Some(*identifier) == local;
        assert!(accepted.iter().any(own), "frames to the address in use are taken in");
        assert!(hop.knows(now, place.remote));
        assert!(hop.view().agreed && hop.view().hopping);
    }
}

/// The neighbour is seen, and this end moves, under another prefix.
fn roam(hop: &mut Hop, now: Time, [prefix, secret, epoch, own]: [u8; 4]) {
    let under = |prefix: u8| [0x20, 1, 0x0d, 0xb8, 0, 0, 0, prefix];
    let seen = HopPlace { prefix: under(prefix), ..hop.own() };
    for end in [End::Leading, End::Following] {
        let remote = seen.endpoint(Schedule::new(&[secret; 32]).identifier(end, epoch.into(), 0));
        let known = hop.knows(now, remote);
        if let Some(prefix) = hop.roamed(now, remote) {
            assert!(!known && prefix == seen.prefix);
            hop.roam(prefix);
            assert!(hop.knows(now, remote) && hop.roamed(now, remote).is_none());
        }
    }
    hop.move_to(now, under(own));
    if let Some(ends) = hop.place() {
        let local = ends.local.and_then(HopPlace::split);
        let local = local.map(|(_, identifier)| hop.own().endpoint(identifier));
        let _follows = hop.came(&Endpoints { local, ..ends });
    }
}

/// One byte says what comes next, and its bytes follow.
pub fn moving(mut data: &[u8]) {
    let data = &mut data;
    let Some([first, seconds]) = take(data) else { return };
    let interval_ms = 1_000 * (1 + u32::from(seconds));
    let own = HopPlace { prefix: [0x20, 1, 0x0d, 0xb8, 0, 0, 0, 1], port: 7_400, interval_ms };
    let mut hop = Hop::new(own, first & 1 == 0, Arc::new(Secret::new([9; 32])));
    let (mut now, mut token) = (Time::from_millis(1_000), TOKEN);
    while let Some([what]) = take(data) {
        let more = match what % 8 {
            0 => take(data).map(|ms: [u8; 2]| {
                now = now + Duration::from_millis(u16::from_be_bytes(ms).into());
            }),
            1 => take(data).map(|[secret]| hop.session(now, &[secret; 32], now)),
            2 => take::<{ HopPlace::LEN }>(data).map(|body| {
                if let Ok(place) = HopPlace::parse(&body) {
                    hop.told(now, place);
                }
            }),
            3 => take::<{ HopStep::LEN }>(data).map(|body| {
                if let Ok(step) = HopStep::parse(&body) {
                    let _refused = hop.handle(now, &step);
                }
            }),
            4 => take(data).map(|[stage, secret, epoch]: [u8; 3]| {
                let stages = [HopStage::Call, HopStage::Answer, HopStage::Done];
                let stage = stages[usize::from(stage) % stages.len()];
                let tag = Schedule::new(&[secret; 32]).tag();
                let (epoch, hopping) = (epoch.into(), hop.place());
                let step = |echo| HopStep { stage, tag, epoch, token: TOKEN, echo };
                // Nobody was sent that.
                let _refused = hop.handle(now, &step(TOKEN));
                assert_eq!(hop.place(), hopping, "it moved for a step that proves nothing");
                let _refused = hop.handle(now, &step(token));
            }),
            5 => {
                hop.fall(now);
                Some(())
            }
            7 => take(data).map(|bytes| roam(&mut hop, now, bytes)),
            _ => {
                let place = HopPlace { prefix: [0x20, 1, 0x0d, 0xb8, 0, 0, 0, 2], ..own };
                hop.told(now, Some(place));
                let _followed = hop.answered(now, TOKEN);
                Some(())
            }
        };
        if more.is_none() {
            return;
        }
        check(&mut hop, now, &mut token);
    }
}
