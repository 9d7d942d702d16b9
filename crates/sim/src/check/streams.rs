//! The order of programs' packets behind mixes: a packet is delivered behind those sent before it,
//! unless these came later than a hold after it; and none waits for longer than a hold allows.
//!
//! When a packet comes, the seal of the two hosts is opened at the edge; when it is delivered, a
//! program is given it. Both are times of the receiving host's clock.

use core::time::Duration;
use std::collections::BTreeMap;

use shoal_wire::{EdgeKind, MixTime, Time, ip};

use crate::programs;

pub(crate) const ORDER: &str = "packets behind mixes arrive in order";
pub(crate) const HOLD: &str = "packets wait for others no longer than their hold";

/// What a node adds to a hold for lines, beside half of it.
const LINES: Duration = Duration::from_millis(5);
/// How long packets are held across a change of circuits on top, what counts as one arrival, and
/// how long a node waits that was away.
const MORE: Duration = Duration::from_millis(300 + 1 + 50);

/// So many packets before the first that comes of a flow a host waits for.
const BEFORE_FIRST: u32 = 48;

/// How long packets wait that others overtook.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Holds {
    /// The least that a host may wait. Zero where some circuits have no mixes.
    least: Duration,
    /// What it may wait on one circuit, and in all.
    most: Duration,
}

impl Holds {
    /// Those of circuits whose mixes are worth waiting so long, at least and at most.
    pub(crate) fn new(least: MixTime, most: MixTime) -> Holds {
        let told = |hold: MixTime| hold.duration() * 3 / 2 + LINES;
        // Where little is late a host waits for a quarter less.
        let of_least = |hold: MixTime| {
            if hold == MixTime::default() { Duration::ZERO } else { told(hold) * 3 / 4 }
        };
        Holds { least: of_least(least), most: told(most) }
    }

    /// For how long what happened to circuits shows in the order of packets.
    pub(crate) fn in_all(self) -> Duration {
        self.most + MORE
    }
}

/// The flow and number of the packet in what one host sealed for another, if it holds one.
pub(crate) fn label(plaintext: &[u8]) -> Option<(u32, u32)> {
    let packet = plaintext.get(ip::PACKET_AT + ip::NUMBER_LEN..)?;
    programs::label(packet).filter(|_| plaintext[0] == EdgeKind::Numbered as u8)
}

/// The packets of one flow at the host that receives them.
#[derive(Clone, Debug, Default)]
struct Stream {
    /// When those came that were not delivered yet.
    came: BTreeMap<u32, Time>,
    /// Those that came before all lower ones, and when: since then lower ones are missing.
    ahead: Vec<(u32, Time)>,
    /// The first that came.
    first: Option<u32>,
    /// The highest that was delivered.
    delivered: Option<u32>,
}

/// All flows that are sent over circuits.
#[derive(Debug)]
pub(crate) struct Streams {
    holds: Holds,
    streams: Vec<Stream>,
}

impl Streams {
    pub(crate) fn new(holds: Holds, flows: usize) -> Streams {
        Streams { holds, streams: vec![Stream::default(); flows] }
    }

    /// How long packets wait.
    pub(crate) fn holds(&self) -> Holds {
        self.holds
    }

    /// A packet came.
    pub(crate) fn comes(&mut self, flow: u32, number: u32, now: Time) {
        let Some(stream) = self.streams.get_mut(flow as usize) else { return };
        stream.came.entry(number).or_insert(now);
        stream.first.get_or_insert(number);
        if stream.ahead.last().is_none_or(|(last, _)| *last < number) {
            stream.ahead.push((number, now));
        }
    }

    /// A program is given a packet. Until `excused`, something else than holds may have changed
    /// when packets are delivered, and nothing is asked of it.
    pub(crate) fn delivered(
        &mut self,
        (flow, number): (u32, u32),
        now: Time,
        excused: Time,
    ) -> Result<(), (&'static str, String)> {
        let Holds { least, .. } = self.holds;
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

    /// A host of a flow lost what it knew.
    pub(crate) fn begin_anew(&mut self, flow: usize) {
        if let Some(stream) = self.streams.get_mut(flow) {
            *stream = Stream::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> MixTime {
        MixTime::from_duration(Duration::from_millis(ms)).unwrap()
    }

    /// Packets by their numbers: when each came, and when it was delivered, in ms.
    fn check(packets: &[(u32, u64, u64)]) -> Result<(), &'static str> {
        // Hosts wait for 150 to 200 ms.
        let mut streams = Streams::new(Holds::new(ms(130), ms(130)), 1);
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
        assert_eq!(check(&[first, (2, 3_000, 3_200), (1, 3_210, 3_210)]), Ok(()), "too late");
        assert_eq!(check(&[(2, 3_000, 3_000), (1, 3_100, 3_100)]), Err(ORDER), "its beginning");
        assert_eq!(check(&[(49, 3_000, 3_000), (1, 3_100, 3_100)]), Err(ORDER));
        assert_eq!(check(&[(50, 3_000, 3_000), (1, 3_100, 3_100)]), Ok(()), "a long burst");
        assert_eq!(check(&[first, (2, 3_000, 3_500)]), Ok(()));
        assert_eq!(check(&[first, (2, 3_000, 3_600)]), Err(HOLD));
    }
}
