//! Which flows are told to slow down where a queue stands, and how.
//!
//! A flow whose packets say that they can carry congestion marks (RFC 3168) gets one on every
//! packet that met the queue; it slows down once per round trip, however many there are.
//!
//! Any other flow loses one packet, and no second one for a while: congestion controls that know
//! only loss answer one loss as they answer many. What carries no payload to speak of (SYN, pure
//! acknowledgements, answers of a few bytes) is never the one that goes.

use core::net::Ipv6Addr;
use core::time::Duration;

use shoal_wire::Time;

use crate::packet::{Packet, TCP, UDP};
use crate::sum;

/// Flows that are told apart; two that fall together share their losses.
const FLOWS: usize = 256;
/// A flow has heard of a loss and slowed down after this, on all but the longest paths.
const GAP: Duration = Duration::from_millis(50);
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

/// Remembers which flows were told of late.
pub struct Brake {
    told: Box<[Time; FLOWS]>,
}

impl Default for Brake {
    fn default() -> Self {
        Brake { told: Box::new([Time::ZERO; FLOWS]) }
    }
}

impl Brake {
    /// Decides about a packet (or super-frame) at the front of `bytes` that met a queue.
    pub fn tell(&mut self, now: Time, packet: &Packet, bytes: &[u8]) -> Told {
        if ecn(packet.v6, bytes) != NOT_CAPABLE {
            return Told::Mark;
        }
        if packet.len <= SPARED_MAX || !matches!(packet.protocol, TCP | UDP) {
            return Told::Nothing;
        }
        let last = &mut self.told[flow(packet, bytes) % FLOWS];
        if *last != Time::ZERO && now.since(*last) < GAP {
            return Told::Nothing;
        }
        *last = now;
        Told::Drop
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

/// A number that packets of one flow share.
fn flow(packet: &Packet, bytes: &[u8]) -> usize {
    let address = |a: Ipv6Addr| a.to_bits() as u64;
    let ports = bytes.get(packet.payload_at..packet.payload_at + 4).unwrap_or_default();
    let ports = ports.iter().fold(0u64, |sum, b| sum << 8 | u64::from(*b));
    let seen = address(packet.source) ^ address(packet.destination).rotate_left(17) ^ ports << 13;
    // Fibonacci hashing: it only has to spread.
    (seen.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize
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
    fn capable_flows_are_marked_each_time_and_lose_nothing() {
        let mut brake = Brake::default();
        for v6 in [true, false] {
            for ecn in 1..=3 {
                assert_eq!(told(&mut brake, 5, &packet(v6, ecn, 1)), Told::Mark);
                assert_eq!(told(&mut brake, 5, &packet(v6, ecn, 1)), Told::Mark);
            }
        }
    }

    #[test]
    fn others_lose_one_packet_for_a_while_each() {
        let mut brake = Brake::default();
        let (one, other) = (packet(true, 0, 1), packet(true, 0, 2));
        assert_eq!(told(&mut brake, 5, &one), Told::Drop);
        assert_eq!(told(&mut brake, 6, &one), Told::Nothing);
        assert_eq!(told(&mut brake, 6, &other), Told::Drop);
        assert_eq!(told(&mut brake, 54, &one), Told::Nothing);
        assert_eq!(told(&mut brake, 55, &one), Told::Drop);
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
