//! Handshakes on paths that carry no full frame: each is sent as three medium frames.
//!
//! ```text
//! | R 16 | sealed: type, version, number 8, place 1, 480 bytes of the handshake frame | tag 16 |
//! ```
//!
//! A part is sealed like a request, under a key that follows from the network's secret, the
//! receiver's public key and R. Strangers can't make one, and get no answer to one. Parts are
//! joined before the handshake itself is checked. Incomplete handshakes are therefore limited, in
//! all and per source.
//!
//! A replayed part is recognized by its hash, and displaces no waiting part. An attacker's copy of
//! a part may arrive before the part itself. For one second, a copy from another source is
//! therefore accepted too, and joined with the parts of that source.

use std::collections::VecDeque;

use shoal_crypto::Rng;
use shoal_wire::{DropReason, HandshakePart, SizeClass, TAG_LEN, shake};

use crate::config::{Endpoint, SessionRole};
use crate::outer::{Lead, OuterSeal, OuterSeals};
use crate::races::{COPIES_OF_PART, CopyRaces};
use crate::seen::{self, HandshakeDigest, HandshakeReplayCache};

/// Most incomplete handshake frames, in all: 92 kB.
const WAITING_MAX: usize = 64;
/// Most incomplete handshake frames of one source address, on all its ports: enough for one
/// handshake with its repetitions.
const WAITING_PER_SOURCE: usize = 4;
const PART_FRAME: usize = SizeClass::Medium.frame_len();

/// The parts of one frame that have come.
struct PartialHandshake<E> {
    from: E,
    number: u64,
    have: u8,
    frame: Vec<u8>,
}

/// Incomplete handshake frames.
pub(crate) struct HandshakeParts<E> {
    waiting: VecDeque<PartialHandshake<E>>,
    /// Parts that have come before.
    pub(crate) seen: HandshakeReplayCache,
    pub(crate) races: CopyRaces<E>,
}

impl<E: Endpoint> HandshakeParts<E> {
    pub(crate) fn new() -> HandshakeParts<E> {
        let races = CopyRaces::new(COPIES_OF_PART);
        HandshakeParts { waiting: VecDeque::new(), seen: HandshakeReplayCache::default(), races }
    }

    /// Adds an opened part. Returns the frame once it is complete, and true if another frame was
    /// dropped to make room.
    pub(crate) fn take(&mut self, from: E, part: &HandshakePart<'_>) -> (Option<Vec<u8>>, bool) {
        let same = |w: &PartialHandshake<E>| w.from.is_same_place(&from) && w.number == part.number;
        let mut gave_up = false;
        let at = match self.waiting.iter().position(same) {
            Some(at) => at,
            None => {
                gave_up = self.make_room(from);
                let frame = vec![0; shake::LINK_LEN];
                self.waiting.push_back(PartialHandshake {
                    from,
                    number: part.number,
                    have: 0,
                    frame,
                });
                self.waiting.len() - 1
            }
        };
        let waiting = &mut self.waiting[at];
        let place = usize::from(part.place);
        waiting.frame[place * shake::PART_LEN..][..shake::PART_LEN].copy_from_slice(part.bytes);
        waiting.have |= 1 << place;
        if waiting.have.count_ones() as usize != shake::PARTS {
            return (None, gave_up);
        }
        (self.waiting.remove(at).map(|whole| whole.frame), gave_up)
    }

    fn make_room(&mut self, from: E) -> bool {
        let own = |w: &PartialHandshake<E>| w.from.source() == from.source();
        let oldest = match self.waiting.iter().filter(|w| own(w)).count() >= WAITING_PER_SOURCE {
            true => self.waiting.iter().position(own),
            false => (self.waiting.len() >= WAITING_MAX).then_some(0),
        };
        oldest.and_then(|at| self.waiting.remove(at)).is_some()
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.waiting.len()
    }
}

/// True if a frame of this length may be a part.
pub(crate) fn may_be_part(role: SessionRole, len: usize) -> bool {
    role == SessionRole::Link && len == PART_FRAME
}

/// Cuts a handshake frame, and seals its parts for the responder of `outer`.
pub(crate) fn cut(outer: &OuterSeal, rng: &mut Rng, frame: &[u8]) -> Vec<Vec<u8>> {
    let number = rng.u64();
    let pieces = frame.as_chunks::<{ shake::PART_LEN }>().0.iter().zip(0u8..);
    let seal = |(bytes, place)| {
        let mut part = vec![0; PART_FRAME];
        let body = &mut part[shake::REQUEST_AT..PART_FRAME - TAG_LEN];
        let fits = HandshakePart { number, place, bytes }.write(body);
        debug_assert!(fits.is_ok(), "a part is shorter than a medium frame");
        let lead: Lead = rng.array();
        outer.seal_part(&lead, &mut part);
        part
    };
    pieces.map(seal).collect()
}

/// Opens a part in place. Also returns the hash by which a replay of it is recognized.
pub(crate) fn open<'a>(
    outer: &OuterSeals,
    frame: &'a mut [u8],
) -> Result<(HandshakeDigest, HandshakePart<'a>), DropReason> {
    let (lead, body) = outer.open_part(frame)?;
    let part = HandshakePart::parse(body).map_err(crate::shake::parse_reason)?;
    Ok((seen::name(&lead, body), part))
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::net::SocketAddr;
    use shoal_crypto::{Identity, NetworkSecret};

    fn from(n: u32) -> SocketAddr {
        SocketAddr::from((n.to_be_bytes(), 1))
    }

    fn part(number: u64, place: u8, bytes: &[u8; shake::PART_LEN]) -> HandshakePart<'_> {
        HandshakePart { number, place, bytes }
    }

    #[test]
    fn parts_in_any_order_and_twice_make_the_frame_once() {
        let key = Identity::from_seed([1; 32]).public();
        let secret = NetworkSecret([2; 32]);
        let seal = OuterSeal::new(SessionRole::Link.label(), &secret, &key);
        let outer = OuterSeals::new(SessionRole::Link.label(), &secret.into(), &key);
        let mut rng = Rng::new([3; 32]);
        let mut frame = vec![0; shake::LINK_LEN];
        rng.fill(&mut frame);
        let cut = cut(&seal, &mut rng, &frame);
        assert!(cut.len() == shake::PARTS && cut.iter().all(|p| p.len() == PART_FRAME));
        for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0], [0, 2, 1]] {
            let mut parts = HandshakeParts::new();
            let mut whole = Vec::new();
            for at in order.into_iter().flat_map(|at| [at, at]).take(5) {
                let mut sealed = cut[at].clone();
                let (_, part) = open(&outer, &mut sealed).unwrap();
                whole.extend(parts.take(from(0), &part).0);
            }
            assert_eq!(whole, [frame.clone()]);
            assert_eq!(parts.len(), 0);
        }
        let other =
            OuterSeals::new(SessionRole::Link.label(), &NetworkSecret([9; 32]).into(), &key);
        let refused = open(&other, &mut cut[0].clone()).map(|_| ());
        assert_eq!(refused, Err(DropReason::BadHandshake));
    }

    #[test]
    fn what_waits_is_bounded_in_all_and_per_source() {
        let bytes = [5; shake::PART_LEN];
        let mut parts = HandshakeParts::new();
        for n in 0..1_000u64 {
            // One host with many ports.
            let from = SocketAddr::from(([10, 0, 0, 1], n as u16));
            parts.take(from, &part(n, 0, &bytes));
        }
        assert_eq!(parts.len(), WAITING_PER_SOURCE);
        for n in 0..1_000u32 {
            parts.take(from(n), &part(7, 0, &bytes));
        }
        assert_eq!(parts.len(), WAITING_MAX);
        assert!(parts.take(from(999), &part(7, 1, &bytes)).0.is_none());
        assert!(parts.take(from(999), &part(7, 2, &bytes)).0.is_some());
    }
}
