//! Flows that a firewall let pass a moment ago. Their packets mostly need not ask it again, so that
//! several threads can share one firewall.
//!
//! Packets that begin or end a flow always ask. When rights change, the firewall's owner counts one
//! epoch further, and flows that passed in an older epoch ask again.

use core::time::Duration;

use shoal_wire::Time;

use crate::firewall::{Key, key};
use crate::{Opening, Segment, Tuple};

/// Time for which a flow passes without asking: much shorter than any flow is remembered.
const HOLDS: Duration = Duration::from_millis(100);
/// Flows that are known at once; two that fall together ask in turn.
const FLOWS: usize = 512;

/// One direction's flows, as one thread sees them.
#[derive(Clone, Debug)]
pub struct Recent(Box<[Option<Passed>; FLOWS]>);

#[derive(Clone, Copy, Debug)]
struct Passed {
    key: Key,
    epoch: u64,
    at: Time,
}

impl Default for Recent {
    fn default() -> Recent {
        Recent(Box::new([None; FLOWS]))
    }
}

impl Recent {
    /// Whether a packet of the flow passed a moment ago in this epoch, and this one begins and ends
    /// nothing.
    pub fn passes(&self, now: Time, epoch: u64, member: u32, tuple: &Tuple) -> bool {
        let key = key(member, tuple);
        is_plain(tuple)
            && self.0[slot(&key)].is_some_and(|passed| {
                passed.key == key && passed.epoch == epoch && now.since(passed.at) < HOLDS
            })
    }

    /// Notes that the firewall let a packet pass; `epoch` was read before the firewall was asked.
    pub fn note(&mut self, now: Time, epoch: u64, member: u32, tuple: &Tuple) {
        if is_plain(tuple) {
            let key = key(member, tuple);
            self.0[slot(&key)] = Some(Passed { key, epoch, at: now });
        }
    }
}

/// Whether the packet neither begins nor ends a flow, as far as its headers tell.
fn is_plain(tuple: &Tuple) -> bool {
    matches!(tuple.opening, Opening::Udp | Opening::Tcp(Segment::Goes))
}

fn slot(key: &Key) -> usize {
    key.hash() as usize % FLOWS
}

#[cfg(test)]
mod tests {
    use core::net::Ipv6Addr;

    use super::*;

    fn tuple(port: u16, opening: Opening) -> Tuple {
        let end = |host: u16, port| (Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, host), port);
        Tuple { protocol: 6, ours: end(1, 22), theirs: end(2, port), opening }
    }

    const DATA: Opening = Opening::Tcp(Segment::Goes);

    #[test]
    fn what_passed_passes_again_for_a_while_in_its_epoch() {
        let (mut recent, at) = (Recent::default(), |ms: u64| Time::from_millis(1_000 + ms));
        let flow = tuple(40_000, DATA);
        assert!(!recent.passes(at(0), 1, 7, &flow));
        recent.note(at(0), 1, 7, &flow);
        assert!(recent.passes(at(99), 1, 7, &flow));
        assert!(!recent.passes(at(100), 1, 7, &flow), "it asks again");
        assert!(!recent.passes(at(1), 2, 7, &flow), "rights have changed");
        assert!(!recent.passes(at(1), 1, 8, &flow), "another member");
        assert!(!recent.passes(at(1), 1, 7, &tuple(40_001, DATA)), "another flow");
        let other_host = Tuple { theirs: (Ipv6Addr::LOCALHOST, 40_000), ..flow };
        assert!(!recent.passes(at(1), 1, 7, &other_host));
    }

    #[test]
    fn beginnings_and_ends_always_ask() {
        let (mut recent, now) = (Recent::default(), Time::from_millis(5));
        for opening in [
            Opening::Tcp(Segment::Begins),
            Opening::Tcp(Segment::Leaves),
            Opening::Tcp(Segment::Resets),
            Opening::Question,
            Opening::Answer,
            Opening::Trouble,
            Opening::Other,
        ] {
            let packet = tuple(1, opening);
            recent.note(now, 1, 7, &packet);
            assert!(!recent.passes(now, 1, 7, &packet), "{opening:?}");
            assert!(!recent.passes(now, 1, 7, &tuple(1, DATA)), "{opening:?} says nothing of data");
            recent.note(now, 1, 7, &tuple(1, DATA));
            assert!(!recent.passes(now, 1, 7, &packet), "{opening:?}");
            recent = Recent::default();
        }
    }

    #[test]
    fn many_flows_are_known_at_once() {
        let (mut recent, now) = (Recent::default(), Time::from_millis(5));
        (0..100).for_each(|port| recent.note(now, 1, 7, &tuple(40_000 + port, DATA)));
        let known = (0..100).filter(|port| recent.passes(now, 1, 7, &tuple(40_000 + port, DATA)));
        assert!(known.count() > 80);
    }
}
