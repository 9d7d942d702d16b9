//! Where two neighbours meet: whatever their clocks say, and whichever handshakes are answered, an
//! end takes in what answers its calls, and little else.

use core::time::Duration;

use shoal_crypto::Secret;
use shoal_relay::hop::{EPOCH, Rendezvous, is_reserved};
use shoal_session::Endpoints;
use shoal_wire::{HopPlace, Time};

/// Identifiers of two secrets with three epochs each by the wall clock, and as many by the base's
/// count; of the base, and of the one before.
const ACCEPTED_MAX: usize = 2 * (3 + 3) + 2;

/// Takes the next bytes of the input.
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
    let own = ends.local.and_then(HopPlace::split);
    own.is_some_and(|(_, identifier)| accepted.contains(&identifier))
}

fn check(end: &mut Rendezvous, now: Time) {
    let due = end.poll_timeout(now);
    assert!(now < due && due <= now + EPOCH, "it would be called without end, or too late");
    let calls = end.calls(now, None);
    assert!(!calls.is_empty() && calls.iter().all(|call| takes(end, now, call)));
    assert!(calls.iter().all(|call| end.knows(now, call.remote)));
    if let Some(base) = end.base(now, false) {
        assert!(end.has_base() && takes(end, now, &base));
        assert!(end.calls_beside(now, base).contains(&base));
    }
}

/// One byte says what comes next, and its bytes follow.
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
            // A handshake of the other end, if it is taken in: by both.
            2 => take(data).map(|[turn]| {
                let calls = ends[1 - at].calls(now, None);
                let call = calls[usize::from(turn) % calls.len()];
                let local = Some(call.remote);
                let back = call.local.map(|remote| Endpoints { local, remote });
                if let Some(back) = back.filter(|back| takes(&ends[at], now, back)) {
                    let _met = ends[at].met(now, &back);
                    assert!(ends[1 - at].met(now, &call), "it was its own call");
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
