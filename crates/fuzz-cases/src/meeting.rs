//! Rendezvous of two neighbours, with any clocks and any answered handshakes. Each end accepts the
//! answers to its own calls, and few other identifiers.

use core::time::Duration;

use shoal_crypto::Secret;
use shoal_relay::shift::{EPOCH, Rendezvous, is_reserved};
use shoal_session::Endpoints;
use shoal_wire::{ShiftAnnouncement, Time};

/// Maximum number of accepted identifiers. Two secrets have three epochs each by the wall clock,
/// and as many by the base's count. The present and the former base add one each.
const ACCEPTED_MAX: usize = 2 * (3 + 3) + 2;

fn take<const N: usize>(data: &mut &[u8]) -> Option<[u8; N]> {
    let (first, rest) = data.split_first_chunk()?;
    *data = rest;
    Some(*first)
}

fn secrets(first: u8, other: u8) -> (Secret<32>, Option<Secret<32>>) {
    let other = (first != other).then(|| Secret::new([other; 32]));
    (Secret::new([first; 32]), other)
}

fn takes(end: &Rendezvous, now: Time, ends: &Endpoints) -> bool {
    let mut accepted = Vec::new();
    end.accepted(now, &mut accepted);
    assert!(accepted.len() <= ACCEPTED_MAX);
    assert!(!accepted.iter().any(|identifier| is_reserved(*identifier)));
    let own = ends.local.and_then(ShiftAnnouncement::split);
    own.is_some_and(|(_, identifier)| accepted.contains(&identifier))
}

fn check(end: &mut Rendezvous, now: Time) {
    let due = end.poll_timeout(now);
    assert!(now < due && due <= now + EPOCH, "the timeout is past, or too late");
    let calls = end.calls(now, None);
    assert!(!calls.is_empty() && calls.iter().all(|call| takes(end, now, call)));
    assert!(calls.iter().all(|call| end.knows(now, call.remote)));
    if let Some(base) = end.base(now, false) {
        assert!(end.has_base() && takes(end, now, &base));
        assert!(end.calls_beside(now, base).contains(&base));
    }
}

/// Reads steps: one byte selects a step, and its arguments follow.
pub fn meeting(mut data: &[u8]) {
    let data = &mut data;
    let Some([first, other]) = take(data) else { return };
    let place = |node| ([0x20, 1, 0x0d, 0xb8, 0, 0, 0, node], 7_400);
    let (mut now, mut unix_ms) = (Time::from_millis(1_000), 1_800_000_000_000_u64);
    let end = |leads: bool, own, peer| {
        let places = (place(own), place(peer));
        Rendezvous::new(leads, places, &secrets(first, other), now, unix_ms)
    };
    let mut ends = [end(true, 1, 2), end(false, 2, 1)];
    while let Some([what]) = take(data) {
        let at = usize::from(what >> 7);
        let more = match what % 6 {
            0 => take(data).map(|seconds: [u8; 2]| {
                let passed = Duration::from_secs(u16::from_be_bytes(seconds).into());
                now = now + passed;
                unix_ms += passed.as_millis() as u64;
            }),
            1 => take(data).map(|seconds: [u8; 4]| {
                let set = unix_ms.saturating_add_signed(i64::from(i32::from_be_bytes(seconds)));
                let _other = ends[at].set_clock(now, set);
            }),
            // A handshake from the other end; if it is accepted, both ends have met.
            2 => take(data).map(|[turn]| {
                let calls = ends[1 - at].calls(now, None);
                let call = calls[usize::from(turn) % calls.len()];
                let local = Some(call.remote);
                let back = call.local.map(|remote| Endpoints { local, remote });
                if let Some(back) = back.filter(|back| takes(&ends[at], now, back)) {
                    let _met = ends[at].met(now, &back);
                    assert!(ends[1 - at].met(now, &call), "the call was its own");
                }
            }),
            3 => take(data).map(|[first, other]| ends[at].set_secrets(&secrets(first, other))),
            4 => take(data).map(|[node]| ends[at].move_to(now, place(node).0)),
            _ => take::<18>(data).map(|bytes| {
                let ip: [u8; 16] = std::array::from_fn(|at| bytes[at]);
                let port = u16::from_be_bytes([bytes[16], bytes[17]]);
                let remote = std::net::SocketAddr::from((ip, port));
                let known = ends[at].knows(now, remote);
                let met = ends[at].met(now, &Endpoints::from(remote));
                assert!(known || !met);
            }),
        };
        if more.is_none() {
            return;
        }
        ends.iter_mut().for_each(|end| check(end, now));
    }
}
