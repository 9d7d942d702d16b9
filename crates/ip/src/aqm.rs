//! Active queue management (AQM, RFC 7567): chooses the flows that get a congestion signal at a
//! standing queue, and the kind of signal.
//!
//! One flow at a time gets a signal. After the n-th signal in a row the next one waits for 50 ms /
//! sqrt(n), the control law of CoDel (RFC 8289). So a queue that persists causes more and more
//! signals. Signals to all flows at once would leave the line idle until the flows have found their
//! rates again.
//!
//! A flow that supports congestion marks (RFC 3168) gets a mark. Any other flow loses one packet. A
//! loss-based congestion control reacts to one lost packet as to many, so no flow gets two signals
//! within 50 ms. Packets with little payload (SYN, pure acknowledgements, short answers) are never
//! dropped.

use core::time::Duration;

use shoal_wire::Time;

use crate::packet::{Packet, TCP, UDP};
use crate::sum;

/// Number of slots for flows, chosen by hash. Flows in one slot count as one.
const FLOWS: usize = 256;
/// Minimum time between two signals to one flow. On most paths it has slowed down by then.
const GAP: Duration = Duration::from_millis(50);
/// Time from the first signal to the second.
const INTERVAL: Duration = Duration::from_millis(50);
/// Maximum of the count n: `INTERVAL` / sqrt(n) is then 1 ms, the shortest wait between signals.
const IN_A_ROW_MAX: u32 = 2_500;
/// Packets of up to this many bytes are never dropped.
const SPARED_MAX: usize = 256;
/// Values of the ECN field (RFC 3168): not capable of marks, and congestion experienced.
const NOT_CAPABLE: u8 = 0;
const MARK: u8 = 3;

/// Action for a packet that met a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AqmAction {
    /// Pass it unchanged.
    Pass,
    /// Mark it: [`mark`].
    Mark,
    /// Drop it, counted as `ip_congested`.
    Drop,
}

/// The control law: time and receiver of the next signal.
pub struct SignalSchedule {
    /// Time of the last signal to each slot.
    signalled: Box<[Time; FLOWS]>,
    /// Number of signals in a row; the law's n.
    in_a_row: u32,
    /// The earliest time of the next signal.
    next: Time,
    /// Time at which a packet last met the queue.
    met: Time,
}

impl Default for SignalSchedule {
    fn default() -> Self {
        let signalled = Box::new([Time::ZERO; FLOWS]);
        SignalSchedule { signalled, in_a_row: 0, next: Time::ZERO, met: Time::ZERO }
    }
}

impl SignalSchedule {
    /// Records that a packet met the queue.
    pub fn meet(&mut self, now: Time) {
        if now.since(self.met) > INTERVAL {
            // There was no queue for a while, so the last rate of signals was about sufficient.
            self.in_a_row /= 2;
        }
        self.met = now;
    }

    /// True if a packet of `flow` that met the queue gets a signal. `more` is the extra delay,
    /// beyond that of most paths, until a signal takes effect. The next signal waits for it too.
    pub fn signal(&mut self, now: Time, flow: u32, more: Duration) -> bool {
        let last = &mut self.signalled[flow as usize % FLOWS];
        if now < self.next || *last != Time::ZERO && now.since(*last) < GAP + more {
            return false;
        }
        *last = now;
        self.in_a_row = (self.in_a_row + 1).min(IN_A_ROW_MAX);
        self.next = now + (INTERVAL + more).div_f64(f64::from(self.in_a_row).sqrt());
        true
    }
}

/// Active queue management of one queue: decides which packets get a congestion signal.
#[derive(Default)]
pub struct Aqm {
    signals: SignalSchedule,
}

impl Aqm {
    /// Decides on the packet (or super-frame) at the front of `bytes`, which met a queue; `more` as
    /// in [`SignalSchedule::signal`].
    pub fn judge(&mut self, now: Time, packet: &Packet, bytes: &[u8], more: Duration) -> AqmAction {
        self.signals.meet(now);
        let verdict = match ecn(packet.v6, bytes) {
            NOT_CAPABLE if packet.len <= SPARED_MAX => return AqmAction::Pass,
            NOT_CAPABLE if !matches!(packet.protocol, TCP | UDP) => return AqmAction::Pass,
            NOT_CAPABLE => AqmAction::Drop,
            _ => AqmAction::Mark,
        };
        if self.signals.signal(now, packet.flow(bytes), more) { verdict } else { AqmAction::Pass }
    }
}

fn ecn(v6: bool, bytes: &[u8]) -> u8 {
    if v6 { bytes[1] >> 4 & MARK } else { bytes[1] & MARK }
}

/// Sets the congestion mark of the packet at the front of `bytes`, whose IP headers must be whole.
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

    fn judge(aqm: &mut Aqm, at_ms: u64, bytes: &[u8]) -> AqmAction {
        let packet = Packet::parse(bytes).expect("sound headers");
        aqm.judge(Time::ZERO + Duration::from_millis(at_ms), &packet, bytes, Duration::ZERO)
    }

    #[test]
    fn where_answers_take_longer_signals_are_as_much_rarer() {
        let (mut aqm, bytes) = (Aqm::default(), packet(true, 0, 1));
        let packet = Packet::parse(&bytes).expect("sound headers");
        let more = Duration::from_millis(80);
        let mut dropped = |at_ms| {
            let now = Time::from_millis(at_ms);
            aqm.judge(now, &packet, &bytes, more) == AqmAction::Drop
        };
        let at: Vec<u64> = (5..400).filter(|ms| dropped(*ms)).collect();
        assert_eq!(at, [5, 135, 265, 395]);
    }

    #[test]
    fn capable_flows_are_marked_and_lose_nothing() {
        for v6 in [true, false] {
            for ecn in 1..=3 {
                let mut aqm = Aqm::default();
                assert_eq!(judge(&mut aqm, 5, &packet(v6, ecn, 1)), AqmAction::Mark);
                for ms in 6..55 {
                    assert_eq!(judge(&mut aqm, ms, &packet(v6, ecn, 1)), AqmAction::Pass);
                }
                assert_eq!(judge(&mut aqm, 55, &packet(v6, ecn, 1)), AqmAction::Mark);
            }
        }
    }

    #[test]
    fn flows_without_ecn_lose_one_packet_per_interval() {
        let mut aqm = Aqm::default();
        let (one, other) = (packet(true, 0, 1), packet(true, 0, 2));
        assert_eq!(judge(&mut aqm, 5, &one), AqmAction::Drop);
        assert_eq!(judge(&mut aqm, 54, &one), AqmAction::Pass);
        assert_eq!(judge(&mut aqm, 54, &other), AqmAction::Pass);
        assert_eq!(judge(&mut aqm, 55, &other), AqmAction::Drop);
        // 50 ms / sqrt(2) later.
        assert_eq!(judge(&mut aqm, 90, &one), AqmAction::Pass);
        assert_eq!(judge(&mut aqm, 91, &other), AqmAction::Pass);
        assert_eq!(judge(&mut aqm, 91, &one), AqmAction::Drop);
    }

    /// Number of signals that each of `flows` flows gets from millisecond `from` to `to`. Each flow
    /// sends a packet per millisecond, and every packet meets the queue.
    fn stand(aqm: &mut Aqm, (from, to): (u64, u64), flows: u8) -> Vec<u32> {
        let mut counts = vec![0; usize::from(flows)];
        let mut last = vec![None; usize::from(flows)];
        for ms in from..to {
            for flow in 0..flows {
                let at = usize::from(flow);
                if judge(aqm, ms, &packet(true, 0, flow)) != AqmAction::Pass {
                    assert!(last[at].is_none_or(|last| ms - last >= 50), "flow {flow} at {ms}");
                    counts[at] += 1;
                    last[at] = Some(ms);
                }
            }
        }
        counts
    }

    #[test]
    fn signals_grow_more_frequent_and_go_to_each_flow_in_turn() {
        let mut aqm = Aqm::default();
        let first: u32 = stand(&mut aqm, (1, 200), 32).iter().sum();
        assert!((6..=8).contains(&first), "{first}");
        let second: u32 = stand(&mut aqm, (200, 1_000), 32).iter().sum();
        assert!((85..=110).contains(&second), "{second}");
        // A single flow gets at most one signal per 50 ms.
        let alone = stand(&mut Aqm::default(), (1, 1_000), 1);
        assert!((18..=20).contains(&alone[0]), "{alone:?}");
    }

    #[test]
    fn after_a_pause_signals_are_rarer() {
        let mut aqm = Aqm::default();
        stand(&mut aqm, (1, 1_000), 32);
        let before = aqm.signals.in_a_row;
        judge(&mut aqm, 1_100, &packet(true, 0, 1));
        assert_eq!(aqm.signals.in_a_row, before / 2 + 1);
        for s in 2..20 {
            judge(&mut aqm, s * 1_000, &packet(true, 0, 1));
        }
        assert!(aqm.signals.in_a_row <= 2, "{}", aqm.signals.in_a_row);
    }

    #[test]
    fn short_packets_and_pings_are_never_dropped() {
        let mut aqm = Aqm::default();
        let mut short = packet(false, 0, 1);
        short[2..4].copy_from_slice(&52u16.to_be_bytes());
        assert_eq!(judge(&mut aqm, 5, &short), AqmAction::Pass);
        let mut ping = packet(false, 0, 1);
        ping[9] = crate::packet::ICMP;
        assert_eq!(judge(&mut aqm, 5, &ping), AqmAction::Pass);
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
