//! What neighbours tell each other of addresses that hop (docs/wire.md section 3).

use core::net::{Ipv6Addr, SocketAddr, SocketAddrV6};
use core::time::Duration;

use crate::{ParseError, PathToken, Reader};

/// Where a neighbour's addresses are, and how often it changes them: control type 9.
///
/// ```text
///  0        8      10         14
/// +--------+------+----------+
/// | prefix | port | interval |    all zero: the sender's addresses do not hop
/// +--------+------+----------+
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct HopPlace {
    /// The first 64 bits of each address.
    pub prefix: [u8; 8],
    /// The UDP port, the same at each address.
    pub port: u16,
    /// How long an address is used, in milliseconds.
    pub interval_ms: u32,
}

/// It names where a node is, which no log may.
impl core::fmt::Debug for HopPlace {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("HopPlace").field("interval_ms", &self.interval_ms).finish_non_exhaustive()
    }
}

impl HopPlace {
    /// Length of the body in bytes.
    pub const LEN: usize = 14;
    /// Shortest interval in milliseconds.
    pub const INTERVAL_MIN_MS: u32 = 1_000;
    /// Longest interval in milliseconds.
    pub const INTERVAL_MAX_MS: u32 = 3_600_000;

    /// Whether addresses under this prefix can be those of one machine on a network: not the
    /// unspecified or loopback one, no group's, none that only one segment knows.
    pub fn is_usable(prefix: [u8; 8]) -> bool {
        let link_local = prefix[0] == 0xfe && prefix[1] & 0xc0 == 0x80;
        prefix != [0; 8] && prefix[0] != 0xff && !link_local
    }

    /// How long an address is used.
    pub fn interval(&self) -> Duration {
        Duration::from_millis(self.interval_ms.into())
    }

    /// The prefix and the interface identifier of an endpoint; none of one that is not IPv6.
    pub fn split(at: SocketAddr) -> Option<([u8; 8], u64)> {
        let SocketAddr::V6(v6) = at else { return None };
        let [a, b, c, d, e, f, g, h, identifier @ ..] = v6.ip().octets();
        Some(([a, b, c, d, e, f, g, h], u64::from_be_bytes(identifier)))
    }

    /// The endpoint with this interface identifier.
    pub fn endpoint(&self, identifier: u64) -> SocketAddr {
        let mut octets = [0; 16];
        octets[..8].copy_from_slice(&self.prefix);
        octets[8..].copy_from_slice(&identifier.to_be_bytes());
        SocketAddr::V6(SocketAddrV6::new(Ipv6Addr::from(octets), self.port, 0, 0))
    }

    /// Wire form; of none, that the sender's addresses do not hop.
    pub fn to_bytes(place: Option<HopPlace>) -> [u8; HopPlace::LEN] {
        let mut out = [0; HopPlace::LEN];
        if let Some(place) = place {
            out[..8].copy_from_slice(&place.prefix);
            out[8..10].copy_from_slice(&place.port.to_be_bytes());
            out[10..].copy_from_slice(&place.interval_ms.to_be_bytes());
        }
        out
    }

    /// From the wire form.
    ///
    /// Errors: a prefix that no single machine can have, port 0, an interval out of its range.
    pub fn parse(body: &[u8]) -> Result<Option<HopPlace>, ParseError> {
        let mut reader = Reader::new(body);
        let prefix = reader.array("hop prefix")?;
        let (port, interval_ms) = (reader.u16("hop port")?, reader.u32("hop interval")?);
        reader.finish("hop place")?;
        if prefix == [0; 8] && port == 0 && interval_ms == 0 {
            return Ok(None);
        }
        let in_range = (Self::INTERVAL_MIN_MS..=Self::INTERVAL_MAX_MS).contains(&interval_ms);
        if !Self::is_usable(prefix) || port == 0 || !in_range {
            return Err(ParseError::Invalid { what: "hop place" });
        }
        Ok(Some(HopPlace { prefix, port, interval_ms }))
    }
}

/// How far a hop is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum HopStage {
    /// The end that leads asks the other to hop; or the other one opens its firewall for that.
    Call = 1,
    /// The other end got that, and has not moved.
    Answer = 2,
    /// The end that leads got the answer, and has moved.
    Done = 3,
}

/// One step of a hop, sent between the two new addresses: control type 10.
///
/// ```text
///  0       1     5       9       17     25
/// +-------+-----+-------+-------+------+
/// | stage | tag | epoch | token | echo |
/// +-------+-----+-------+-------+------+
/// ```
///
/// Who knows the schedule could say any of it without being there. So a call and an answer bring a
/// token to the address to which they go, and the next step, which alone has an end move, returns
/// it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct HopStep {
    /// How far it is.
    pub stage: HopStage,
    /// Of which schedule the addresses are.
    pub tag: [u8; 4],
    /// Their epoch.
    pub epoch: u32,
    /// To be returned by who gets this; zero in the last stage, which nothing follows.
    pub token: PathToken,
    /// The token of the step before; zero in the first stage.
    pub echo: PathToken,
}

/// Tokens and the schedule's tag are left out.
impl core::fmt::Debug for HopStep {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("HopStep").field("stage", &self.stage).finish_non_exhaustive()
    }
}

impl HopStep {
    /// Length of the body in bytes.
    pub const LEN: usize = 25;

    /// Wire form.
    pub fn to_bytes(self) -> [u8; HopStep::LEN] {
        let mut out = [0; HopStep::LEN];
        out[0] = self.stage as u8;
        out[1..5].copy_from_slice(&self.tag);
        out[5..9].copy_from_slice(&self.epoch.to_be_bytes());
        out[9..17].copy_from_slice(&self.token);
        out[17..].copy_from_slice(&self.echo);
        out
    }

    /// From the wire form.
    ///
    /// Errors: an unknown stage, another length, a call that returns a token, a last step that
    /// brings one.
    pub fn parse(body: &[u8]) -> Result<HopStep, ParseError> {
        let mut reader = Reader::new(body);
        let stage = match reader.u8("hop stage")? {
            1 => HopStage::Call,
            2 => HopStage::Answer,
            3 => HopStage::Done,
            value => return Err(ParseError::Unknown { what: "hop stage", value: value.into() }),
        };
        let (tag, epoch) = (reader.array("hop tag")?, reader.u32("epoch")?);
        let (token, echo) = (reader.array("hop token")?, reader.array("hop echo")?);
        reader.finish("hop step")?;
        let unused = match stage {
            HopStage::Call => echo,
            HopStage::Answer => PathToken::default(),
            HopStage::Done => token,
        };
        if unused != PathToken::default() {
            return Err(ParseError::Invalid { what: "hop step" });
        }
        Ok(HopStep { stage, tag, epoch, token, echo })
    }
}

/// What a message of a probe says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ProbeStage {
    /// The sender asks to be sent `Come` at the address. As all but `Come` and `Leave`, it goes by
    /// the link, wherever that is now.
    Ask = 1,
    /// The receiver of `Ask` got it.
    Heard = 2,
    /// Sent to the address, from the fixed endpoint.
    Come = 3,
    /// Sent from the address, to the fixed endpoint.
    Leave = 4,
    /// The receiver of `Leave` got it.
    Left = 5,
}

/// A message of a probe, by which a node finds out whether an address of its prefix can be used:
/// control type 11.
///
/// ```text
///  0       1            9
/// +-------+------------+
/// | stage | identifier |
/// +-------+------------+
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct HopProbe {
    /// What it says.
    pub stage: ProbeStage,
    /// The interface identifier of the address, under the asking node's prefix.
    pub identifier: u64,
}

/// It names where a node is, which no log may.
impl core::fmt::Debug for HopProbe {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("HopProbe").field("stage", &self.stage).finish_non_exhaustive()
    }
}

impl HopProbe {
    /// Length of the body in bytes.
    pub const LEN: usize = 9;

    /// Wire form.
    pub fn to_bytes(self) -> [u8; HopProbe::LEN] {
        let mut out = [0; HopProbe::LEN];
        out[0] = self.stage as u8;
        out[1..].copy_from_slice(&self.identifier.to_be_bytes());
        out
    }

    /// From the wire form.
    pub fn parse(body: &[u8]) -> Result<HopProbe, ParseError> {
        let mut reader = Reader::new(body);
        let stage = match reader.u8("probe stage")? {
            1 => ProbeStage::Ask,
            2 => ProbeStage::Heard,
            3 => ProbeStage::Come,
            4 => ProbeStage::Leave,
            5 => ProbeStage::Left,
            value => return Err(ParseError::Unknown { what: "probe stage", value: value.into() }),
        };
        let probe = HopProbe { stage, identifier: reader.u64("probe identifier")? };
        reader.finish("hop probe")?;
        Ok(probe)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_read_as_it_was_written_and_a_bad_one_is_refused() {
        let good = HopPlace {
            prefix: [0x20, 1, 0x0d, 0xb8, 0, 1, 0, 2],
            port: 7_400,
            interval_ms: 10_000,
        };
        assert_eq!(HopPlace::parse(&HopPlace::to_bytes(Some(good))), Ok(Some(good)));
        assert_eq!(HopPlace::parse(&HopPlace::to_bytes(None)), Ok(None));
        let endpoint = good.endpoint(0x0003_0004_0005_0006);
        assert_eq!(endpoint.to_string(), "[2001:db8:1:2:3:4:5:6]:7400");
        assert_eq!(HopPlace::split(endpoint), Some((good.prefix, 0x0003_0004_0005_0006)));
        assert_eq!(HopPlace::split("192.0.2.1:7400".parse().unwrap()), None);
        let prefixes = [[0; 8], [0xff; 8], [0xfe, 0x80, 0, 0, 0, 0, 0, 0]];
        let bad = prefixes.map(|prefix| HopPlace { prefix, ..good });
        let times = [0, 999, 3_600_001].map(|interval_ms| HopPlace { interval_ms, ..good });
        for bad in bad.into_iter().chain(times).chain([HopPlace { port: 0, ..good }]) {
            assert!(HopPlace::parse(&HopPlace::to_bytes(Some(bad))).is_err(), "{bad:?}");
        }
        let bytes = HopPlace::to_bytes(Some(good));
        assert!(HopPlace::parse(&bytes[1..]).is_err());
        assert!(HopPlace::parse(&[&bytes[..], &[0]].concat()).is_err());
        assert!(!format!("{good:?}").contains("7400"), "it names no place");
    }

    #[test]
    fn a_step_is_read_as_it_was_written_and_one_with_a_token_too_many_is_refused() {
        let (one, none) = ([9; 8], [0; 8]);
        let step = |stage, token, echo| HopStep {
            stage,
            tag: [1, 2, 3, 4],
            epoch: 0x0506_0708,
            token,
            echo,
        };
        for step in [
            step(HopStage::Call, one, none),
            step(HopStage::Answer, one, one),
            step(HopStage::Done, none, one),
        ] {
            assert_eq!(step.to_bytes()[1..9], [1, 2, 3, 4, 5, 6, 7, 8]);
            assert_eq!(HopStep::parse(&step.to_bytes()), Ok(step));
        }
        for step in [step(HopStage::Call, one, one), step(HopStage::Done, one, one)] {
            assert!(HopStep::parse(&step.to_bytes()).is_err());
        }
        let mut other = step(HopStage::Call, none, none).to_bytes();
        other[0] = 4;
        assert!(HopStep::parse(&other).is_err());
        assert!(HopStep::parse(&[1; 24]).is_err() && HopStep::parse(&[1; 26]).is_err());
    }
}
