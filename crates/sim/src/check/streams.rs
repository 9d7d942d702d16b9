//! Packets behind mixes are delivered in order: no packet is delivered before an earlier one,
//! unless that came more than a hold later. No packet waits for longer than a hold allows.
//!
//! A packet comes when the edge opens the seal of the two hosts. It is delivered when a program
//! gets it. Both times are by the receiving host's clock.

use core::time::Duration;
use std::collections::BTreeMap;

use shoal_wire::{EdgeKind, MixTime, Time, ip};

use crate::programs;

pub(crate) const ORDER: &str = "packets behind mixes arrive in order";
pub(crate) const HOLD: &str = "packets wait for others no longer than their hold";

/// Allowance that a node adds to a hold for the links, in addition to half of the hold.
const LINES: Duration = Duration::from_millis(5);
/// Further allowance. Packets are held 300 ms longer across a change of circuits. Packets within
/// 1 ms count as one arrival. A node that was busy waits 50 ms longer.
const MORE: Duration = Duration::from_millis(300 + 1 + 50);

/// Number of packets before the first one of a flow for which a host waits.
const BEFORE_FIRST: u32 = 48;

/// Time for which packets wait for earlier ones.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct HoldBounds {
    /// Shortest wait of a host. Zero if some circuits have no mixes.
    least: Duration,
    /// Longest wait on one circuit, and in all.
    most: Duration,
}

impl HoldBounds {
    /// The waits on circuits whose mixes have a hold between `least` and `most`.
    pub(crate) fn new(least: MixTime, most: MixTime) -> HoldBounds {
        let told = |hold: MixTime| hold.duration() * 3 / 2 + LINES;
        // A host waits a quarter less if packets are little late.
        let of_least = |hold: MixTime| {
            if hold == MixTime::default() { Duration::ZERO } else { told(hold) * 3 / 4 }
        };
        HoldBounds { least: of_least(least), most: told(most) }
    }

    /// Time for which events on circuits affect the order of packets.
    pub(crate) fn in_all(self) -> Duration {
        self.most + MORE
    }
}

/// Flow and number of the packet in a plaintext between two hosts, if it holds one.
pub(crate) fn label(plaintext: &[u8]) -> Option<(u32, u32)> {
    let packet = plaintext.get(ip::PACKET_AT + ip::NUMBER_LEN..)?;
    programs::label(packet).filter(|_| plaintext[0] == EdgeKind::Numbered as u8)
}

/// Packets of one flow at the receiving host.
#[derive(Clone, Debug, Default)]
struct FlowOrder {
    /// Arrival times of packets that are not delivered yet.
    came: BTreeMap<u32, Time>,
    /// Packets that came before all lower numbers, with the time since when lower ones are missing.
    ahead: Vec<(u32, Time)>,
    /// First packet that came.
    first: Option<u32>,
    /// Highest number that was delivered.
    delivered: Option<u32>,
}

/// All flows over circuits.
#[derive(Debug)]
pub(crate) struct FlowOrders {
    holds: HoldBounds,
    streams: Vec<FlowOrder>,
}

impl FlowOrders {
    pub(crate) fn new(holds: HoldBounds, flows: usize) -> FlowOrders {
        FlowOrders { holds, streams: vec![FlowOrder::default(); flows] }
    }

    pub(crate) fn holds(&self) -> HoldBounds {
        self.holds
    }

    /// Notes that a packet came.
    pub(crate) fn comes(&mut self, flow: u32, number: u32, now: Time) {
        let Some(stream) = self.streams.get_mut(flow as usize) else { return };
        stream.came.entry(number).or_insert(now);
        stream.first.get_or_insert(number);
        if stream.ahead.last().is_none_or(|(last, _)| *last < number) {
            stream.ahead.push((number, now));
        }
    }

    /// Checks the delivery of a packet to a program. No rule applies until `excused`: other causes
    /// than holds may have delayed packets.
    pub(crate) fn delivered(
        &mut self,
        (flow, number): (u32, u32),
        now: Time,
        excused: Time,
    ) -> Result<(), (&'static str, String)> {
        let HoldBounds { least, .. } = self.holds;
        let Some(stream) = self.streams.get_mut(flow as usize) else { return Ok(()) };
        let Some(came) = stream.came.remove(&number) else { return Ok(()) };
        let waited = now.since(came);
        if waited > self.holds.in_all() && now > excused {
            let seen = format!("packet {number} of flow {flow} waited for {waited:?}");
            return Err((HOLD, seen));
        }
        let is_late = stream.delivered.is_some_and(|highest| highest > number);
        stream.delivered = stream.delivered.max(Some(number));
        let ahead = stream.ahead.partition_point(|(other, _)| *other <= number);
        let missed = stream.ahead.get(ahead).map_or(came, |(_, at)| *at);
        let after = came.since(missed);
        let is_known = stream.first.is_none_or(|first| number + BEFORE_FIRST >= first);
        if is_late && is_known && after < least && now > excused {
            let seen = format!(
                "packet {number} of flow {flow} came {after:?} after a later one, and was \
                 delivered behind it, though hosts wait for {least:?}"
            );
            return Err((ORDER, seen));
        }
        Ok(())
    }

    /// Restarts a flow after one of its hosts lost its state.
    pub(crate) fn begin_anew(&mut self, flow: usize) {
        if let Some(stream) = self.streams.get_mut(flow) {
            *stream = FlowOrder::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> MixTime {
        MixTime::from_duration(Duration::from_millis(ms)).unwrap()
    }

    /// Checks packets, given as number, arrival and delivery in milliseconds.
    fn check(packets: &[(u32, u64, u64)]) -> Result<(), &'static str> {
        // Hosts wait for 150 to 200 ms.
        let mut streams = FlowOrders::new(HoldBounds::new(ms(130), ms(130)), 1);
        let mut all: Vec<_> = packets.iter().map(|&(n, came, _)| (came, true, n)).collect();
        all.extend(packets.iter().map(|&(n, _, delivered)| (delivered, false, n)));
        all.sort_by_key(|(at, comes, _)| (*at, !comes));
        all.into_iter().try_for_each(|(at, comes, n)| {
            let at = Time::from_millis(at);
            match comes {
                true => streams.comes(0, n, at),
                false => streams.delivered((0, n), at, Time::ZERO).map_err(|(rule, _)| rule)?,
            }
            Ok(())
        })
    }

    #[test]
    fn disorder_and_long_waits_are_seen() {
        let first = (0, 1_000, 1_000);
        assert_eq!(check(&[first, (1, 3_100, 3_100), (2, 3_000, 3_100)]), Ok(()));
        assert_eq!(check(&[first, (2, 3_000, 3_000), (1, 3_100, 3_100)]), Err(ORDER));
        assert_eq!(
            check(&[first, (2, 3_000, 3_200), (1, 3_210, 3_210)]),
            Ok(()),
            "an earlier packet that came too late"
        );
        assert_eq!(
            check(&[(2, 3_000, 3_000), (1, 3_100, 3_100)]),
            Err(ORDER),
            "the beginning of a flow"
        );
        assert_eq!(check(&[(49, 3_000, 3_000), (1, 3_100, 3_100)]), Err(ORDER));
        assert_eq!(
            check(&[(50, 3_000, 3_000), (1, 3_100, 3_100)]),
            Ok(()),
            "a beginning after a long burst"
        );
        assert_eq!(check(&[first, (2, 3_000, 3_500)]), Ok(()));
        assert_eq!(check(&[first, (2, 3_000, 3_600)]), Err(HOLD));
    }
}
