//! Cache of flows that the firewall passed a moment ago. Most packets of such a flow need no
//! look-up in the firewall, so several threads can share one.
//!
//! Packets that begin or end a flow always go to the firewall. When rights change, the firewall's
//! owner increments the epoch, and cached flows of older epochs no longer count.

use core::time::Duration;

use shoal_wire::Time;

use crate::firewall::{Key, key};
use crate::{PacketKind, TcpSegment, Tuple};

/// Lifetime of a cached flow: much shorter than that of any flow in the firewall.
const HOLDS: Duration = Duration::from_millis(100);
/// Number of slots. Two flows in one slot displace each other.
const FLOWS: usize = 512;

/// Cache of one thread, for one direction.
#[derive(Clone, Debug)]
pub struct FlowCache(Box<[Option<CachedFlow>; FLOWS]>);

#[derive(Clone, Copy, Debug)]
struct CachedFlow {
    key: Key,
    epoch: u64,
    at: Time,
}

impl Default for FlowCache {
    fn default() -> FlowCache {
        FlowCache(Box::new([None; FLOWS]))
    }
}

impl FlowCache {
    /// True if a packet of the flow passed a moment ago in this epoch, and this packet neither
    /// begins nor ends a flow.
    pub fn passes(&self, now: Time, epoch: u64, member: u32, tuple: &Tuple) -> bool {
        let key = key(member, tuple);
        is_plain(tuple)
            && self.0[slot(&key)].is_some_and(|passed| {
                passed.key == key && passed.epoch == epoch && now.since(passed.at) < HOLDS
            })
    }

    /// Records that the firewall passed a packet. `epoch` must have been read before the firewall
    /// was asked.
    pub fn note(&mut self, now: Time, epoch: u64, member: u32, tuple: &Tuple) {
        if is_plain(tuple) {
            let key = key(member, tuple);
            self.0[slot(&key)] = Some(CachedFlow { key, epoch, at: now });
        }
    }
}

/// True if the packet neither begins nor ends a flow, by its headers.
fn is_plain(tuple: &Tuple) -> bool {
    matches!(tuple.opening, PacketKind::Udp | PacketKind::Tcp(TcpSegment::Goes))
}

fn slot(key: &Key) -> usize {
    key.hash() as usize % FLOWS
}

#[cfg(test)]
mod tests {
    use core::net::Ipv6Addr;

    use super::*;

    fn tuple(port: u16, opening: PacketKind) -> Tuple {
        let end = |host: u16, port| (Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, host), port);
        Tuple { protocol: 6, ours: end(1, 22), theirs: end(2, port), opening }
    }

    const DATA: PacketKind = PacketKind::Tcp(TcpSegment::Goes);

    #[test]
    fn what_passed_passes_again_for_a_while_in_its_epoch() {
        let (mut recent, at) = (FlowCache::default(), |ms: u64| Time::from_millis(1_000 + ms));
        let flow = tuple(40_000, DATA);
        assert!(!recent.passes(at(0), 1, 7, &flow));
        recent.note(at(0), 1, 7, &flow);
        assert!(recent.passes(at(99), 1, 7, &flow));
        assert!(!recent.passes(at(100), 1, 7, &flow), "the entry has expired");
        assert!(!recent.passes(at(1), 2, 7, &flow), "rights have changed");
        assert!(!recent.passes(at(1), 1, 8, &flow), "another member");
        assert!(!recent.passes(at(1), 1, 7, &tuple(40_001, DATA)), "another flow");
        let other_host = Tuple { theirs: (Ipv6Addr::LOCALHOST, 40_000), ..flow };
        assert!(!recent.passes(at(1), 1, 7, &other_host));
    }

    #[test]
    fn beginnings_and_ends_always_ask() {
        let (mut recent, now) = (FlowCache::default(), Time::from_millis(5));
        for opening in [
            PacketKind::Tcp(TcpSegment::Begins),
            PacketKind::Tcp(TcpSegment::Leaves),
            PacketKind::Tcp(TcpSegment::Resets),
            PacketKind::Question,
            PacketKind::Answer,
            PacketKind::Trouble,
            PacketKind::Other,
        ] {
            let packet = tuple(1, opening);
            recent.note(now, 1, 7, &packet);
            assert!(!recent.passes(now, 1, 7, &packet), "{opening:?}");
            assert!(!recent.passes(now, 1, 7, &tuple(1, DATA)), "{opening:?} says nothing of data");
            recent.note(now, 1, 7, &tuple(1, DATA));
            assert!(!recent.passes(now, 1, 7, &packet), "{opening:?}");
            recent = FlowCache::default();
        }
    }

    #[test]
    fn many_flows_are_known_at_once() {
        let (mut recent, now) = (FlowCache::default(), Time::from_millis(5));
        (0..100).for_each(|port| recent.note(now, 1, 7, &tuple(40_000 + port, DATA)));
        let known = (0..100).filter(|port| recent.passes(now, 1, 7, &tuple(40_000 + port, DATA)));
        assert!(known.count() > 80);
    }
}
