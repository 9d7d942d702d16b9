//! Which flows are told to slow down where a queue stands, and how.
//!
//! One flow at a time is told, and the longer the queue stands the more often: after the n-th in
//! a row the next one waits for 50 ms / sqrt(n) (the control law of CoDel, RFC 8289). All flows at
//! once would all slow down at once, and the line would be idle until they have found their rates
//! again.
//!
//! A flow whose packets say that they can carry congestion marks (RFC 3168) gets one. Any other
//! flow loses one packet, which congestion controls that know only loss answer as they answer many,
//! so that no flow is told twice within 50 ms. What carries no payload to speak of (SYN, pure
//! acknowledgements, answers of a few bytes) is never the one that goes.

use core::time::Duration;

use shoal_wire::Time;

use crate::packet::{Packet, TCP, UDP};
use crate::sum;

/// Flows that are told apart; two that fall together share their losses.
const FLOWS: usize = 256;
/// A flow has heard of a loss and slowed down after this, on all but the longest paths.
const GAP: Duration = Duration::from_millis(50);
/// From the first one told to the second.
const INTERVAL: Duration = Duration::from_millis(50);
/// The law's interval ends at 1 ms.
const IN_A_ROW_MAX: u32 = 2_500;
/// Packets of up to this many bytes never go.
const SPARED_MAX: usize = 256;
/// The two bits of RFC 3168: not capable, and the mark.
const NOT_CAPABLE: u8 = 0;
const MARK: u8 = 3;

/// What is to be done with a packet that met a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// It goes as it is.
    Nothing,
    /// It gets a mark: [`mark`].
    Mark,
    /// It is dropped, as `ip_congested`.
    Drop,
}

/// Remembers which flows were told of late; one for each place where a queue may stand.
pub struct Brake {
    told: Box<[Time; FLOWS]>,
    /// How many were told in a row, and when the next one may be.
    in_a_row: u32,
    next: Time,
    /// When a packet last met the queue.
    met: Time,
}

impl Default for Brake {
    fn default() -> Self {
        let told = Box::new([Time::ZERO; FLOWS]);
        Brake { told, in_a_row: 0, next: Time::ZERO, met: Time::ZERO }
    }
}

impl Brake {
    /// Decides about a packet (or super-frame) at the front of `bytes` that met a queue.
    pub fn tell(&mut self, now: Time, packet: &Packet, bytes: &[u8]) -> Told {
        if now.since(self.met) > INTERVAL {
            // It was gone for a while: what was told then was about enough.
            self.in_a_row /= 2;
        }
        self.met = now;
        let told = match ecn(packet.v6, bytes) {
            NOT_CAPABLE if packet.len <= SPARED_MAX => return Told::Nothing,
            NOT_CAPABLE if !matches!(packet.protocol, TCP | UDP) => return Told::Nothing,
            NOT_CAPABLE => Told::Drop,
            _ => Told::Mark,
        };
        let last = &mut self.told[packet.flow(bytes) as usize % FLOWS];
        if now < self.next || *last != Time::ZERO && now.since(*last) < GAP {
            return Told::Nothing;
        }
        *last = now;
        self.in_a_row = (self.in_a_row + 1).min(IN_A_ROW_MAX);
        self.next = now + INTERVAL.div_f64(f64::from(self.in_a_row).sqrt());
        told
    }
}

/// The two bits of the packet at the front of `bytes`.
fn ecn(v6: bool, bytes: &[u8]) -> u8 {
    if v6 { bytes[1] >> 4 & MARK } else { bytes[1] & MARK }
}

/// Marks the packet at the front of `bytes`, whose IP headers are whole.
pub fn mark(bytes: &mut [u8]) {
    match bytes.first().map(|b| b >> 4) {
        Some(6) if bytes.len() >= 2 => bytes[1] |= MARK << 4,
        Some(4) => {
            let head = usize::from(bytes[0] & 15) * 4;
            if head >= crate::packet::IPV4_LEN && bytes.len() >= head {
                bytes[1] |= MARK;
                sum::set_ipv4(bytes, head);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(v6: bool, ecn: u8, port: u8) -> Vec<u8> {
        let mut bytes = vec![0; 600];
        if v6 {
            bytes[..8].copy_from_slice(&[0x60, ecn << 4, 0, 0, 2, 48, TCP, 64]);
            bytes[8] = 0xfd;
            bytes[24..26].copy_from_slice(&[0xfd, 1]);
        } else {
            bytes[..10].copy_from_slice(&[0x45, ecn, 2, 88, 0, 0, 0x40, 0, 64, TCP]);
            bytes[12..20].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
        }
        bytes[if v6 { 41 } else { 21 }] = port;
        bytes
    }

    fn told(brake: &mut Brake, at_ms: u64, bytes: &[u8]) -> Told {
        let packet = Packet::parse(bytes).expect("sound headers");
        brake.tell(Time::ZERO + Duration::from_millis(at_ms), &packet, bytes)
    }

    #[test]
    fn capable_flows_are_marked_and_lose_nothing() {
        for v6 in [true, false] {
            for ecn in 1..=3 {
                let mut brake = Brake::default();
                assert_eq!(told(&mut brake, 5, &packet(v6, ecn, 1)), Told::Mark);
                for ms in 6..55 {
                    assert_eq!(told(&mut brake, ms, &packet(v6, ecn, 1)), Told::Nothing);
                }
                assert_eq!(told(&mut brake, 55, &packet(v6, ecn, 1)), Told::Mark);
            }
        }
    }

    #[test]
    fn others_lose_one_packet_for_a_while_each() {
        let mut brake = Brake::default();
        let (one, other) = (packet(true, 0, 1), packet(true, 0, 2));
        assert_eq!(told(&mut brake, 5, &one), Told::Drop);
        assert_eq!(told(&mut brake, 54, &one), Told::Nothing);
        assert_eq!(told(&mut brake, 54, &other), Told::Nothing);
        assert_eq!(told(&mut brake, 55, &other), Told::Drop);
        // 50 ms / sqrt(2) later.
        assert_eq!(told(&mut brake, 90, &one), Told::Nothing);
        assert_eq!(told(&mut brake, 91, &other), Told::Nothing);
        assert_eq!(told(&mut brake, 91, &one), Told::Drop);
    }

    /// How often each of `flows` flows is told from `from` to `to`, where every packet of each
    /// millisecond meets the queue.
    fn stand(brake: &mut Brake, (from, to): (u64, u64), flows: u8) -> Vec<u32> {
        let mut counts = vec![0; usize::from(flows)];
        let mut last = vec![None; usize::from(flows)];
        for ms in from..to {
            for flow in 0..flows {
                let at = usize::from(flow);
                if told(brake, ms, &packet(true, 0, flow)) != Told::Nothing {
                    assert!(last[at].is_none_or(|last| ms - last >= 50), "flow {flow} at {ms}");
                    counts[at] += 1;
                    last[at] = Some(ms);
                }
            }
        }
        counts
    }

    #[test]
    fn the_longer_a_queue_stands_the_more_flows_are_told_each_in_its_turn() {
        let mut brake = Brake::default();
        let first: u32 = stand(&mut brake, (1, 200), 32).iter().sum();
        assert!((6..=8).contains(&first), "{first}");
        let second: u32 = stand(&mut brake, (200, 1_000), 32).iter().sum();
        assert!((85..=110).contains(&second), "{second}");
        // One alone hears no more than it can answer.
        let alone = stand(&mut Brake::default(), (1, 1_000), 1);
        assert!((18..=20).contains(&alone[0]), "{alone:?}");
    }

    #[test]
    fn after_a_pause_the_law_begins_lower() {
        let mut brake = Brake::default();
        stand(&mut brake, (1, 1_000), 32);
        let before = brake.in_a_row;
        told(&mut brake, 1_100, &packet(true, 0, 1));
        assert_eq!(brake.in_a_row, before / 2 + 1);
        for s in 2..20 {
            told(&mut brake, s * 1_000, &packet(true, 0, 1));
        }
        assert!(brake.in_a_row <= 2, "{}", brake.in_a_row);
    }

    #[test]
    fn acknowledgements_and_pings_are_spared() {
        let mut brake = Brake::default();
        let mut short = packet(false, 0, 1);
        short[2..4].copy_from_slice(&52u16.to_be_bytes());
        assert_eq!(told(&mut brake, 5, &short), Told::Nothing);
        let mut ping = packet(false, 0, 1);
        ping[9] = crate::packet::ICMP;
        assert_eq!(told(&mut brake, 5, &ping), Told::Nothing);
    }

    #[test]
    fn a_mark_changes_two_bits_and_keeps_the_checksum_right() {
        for v6 in [true, false] {
            let mut bytes = packet(v6, 2, 1);
            if !v6 {
                sum::set_ipv4(&mut bytes, 20);
            }
            let before = bytes.clone();
            mark(&mut bytes);
            assert_eq!(ecn(v6, &bytes), MARK);
            assert_eq!(bytes[0], before[0]);
            assert_eq!(bytes[1] ^ before[1], if v6 { 0x10 } else { 1 });
            if !v6 {
                assert_eq!(sum::fold(sum::add(&bytes[..20])), 0xffff);
                assert_eq!(bytes[12..], before[12..]);
            } else {
                assert_eq!(bytes[2..], before[2..]);
            }
        }
        mark(&mut []);
        mark(&mut [0x60]);
        mark(&mut [0x4f, 0]);
    }
}
