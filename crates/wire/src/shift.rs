//! Messages between neighbours whose addresses change by a schedule (docs/design/wire/shift.md).

use core::net::{Ipv6Addr, SocketAddr, SocketAddrV6};
use core::time::Duration;

use crate::{ParseError, PathToken, Reader};

/// Prefix and port of a neighbour's addresses, and how often it changes them: control type 9.
///
/// ```text
///  0        8      10         14
/// +--------+------+----------+
/// | prefix | port | interval |    all zero: the sender's addresses do not shift
/// +--------+------+----------+
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ShiftAnnouncement {
    /// First 64 bits of each address.
    pub prefix: [u8; 8],
    /// UDP port, equal at each address.
    pub port: u16,
    /// Time for which each address is used, in milliseconds.
    pub interval_ms: u32,
}

/// `Debug` leaves out prefix and port: no log may say where a node is.
impl core::fmt::Debug for ShiftAnnouncement {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("ShiftAnnouncement")
            .field("interval_ms", &self.interval_ms)
            .finish_non_exhaustive()
    }
}

impl ShiftAnnouncement {
    /// Length of the body in bytes.
    pub const LEN: usize = 14;
    /// Shortest interval in milliseconds.
    pub const INTERVAL_MIN_MS: u32 = 1_000;
    /// Longest interval in milliseconds.
    pub const INTERVAL_MAX_MS: u32 = 3_600_000;

    /// True if a single machine on a network can have addresses under this prefix. False for the
    /// unspecified and loopback addresses, multicast and link-local ones.
    pub fn is_usable(prefix: [u8; 8]) -> bool {
        let link_local = prefix[0] == 0xfe && prefix[1] & 0xc0 == 0x80;
        prefix != [0; 8] && prefix[0] != 0xff && !link_local
    }

    /// Time for which each address is used.
    pub fn interval(&self) -> Duration {
        Duration::from_millis(self.interval_ms.into())
    }

    /// The prefix and the interface identifier of an IPv6 endpoint; none for IPv4.
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

    /// Wire form; `None` says that the sender's addresses do not change.
    pub fn to_bytes(place: Option<ShiftAnnouncement>) -> [u8; ShiftAnnouncement::LEN] {
        let mut out = [0; ShiftAnnouncement::LEN];
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
    pub fn parse(body: &[u8]) -> Result<Option<ShiftAnnouncement>, ParseError> {
        let mut reader = Reader::new(body);
        let prefix = reader.array("shift prefix")?;
        let (port, interval_ms) = (reader.u16("shift port")?, reader.u32("shift interval")?);
        reader.finish("shift place")?;
        if prefix == [0; 8] && port == 0 && interval_ms == 0 {
            return Ok(None);
        }
        let in_range = (Self::INTERVAL_MIN_MS..=Self::INTERVAL_MAX_MS).contains(&interval_ms);
        if !Self::is_usable(prefix) || port == 0 || !in_range {
            return Err(ParseError::Invalid { what: "shift place" });
        }
        Ok(Some(ShiftAnnouncement { prefix, port, interval_ms }))
    }
}

/// Stage of a change of address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ShiftStage {
    /// The leading end asks the other to change its address. From the other end: a packet that
    /// opens its firewall for the call.
    Call = 1,
    /// The other end got the call, and has not changed its address yet.
    Answer = 2,
    /// The leading end got the answer, and has changed its address.
    Done = 3,
}

/// One step of a change of address, sent between the two new addresses: control type 10.
///
/// ```text
///  0       1     5       9       17     25
/// +-------+-----+-------+-------+------+
/// | stage | tag | epoch | token | echo |
/// +-------+-----+-------+-------+------+
/// ```
///
/// A node that knows the schedule could forge a step without being at the address. Each call and
/// answer therefore brings a token to its destination address, and the next step returns it. Only a
/// step that returns the token makes an end change its address.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ShiftStep {
    pub stage: ShiftStage,
    /// Tag of the schedule that the addresses follow.
    pub tag: [u8; 4],
    /// Epoch of the addresses.
    pub epoch: u32,
    /// The receiver returns this; zero in the last stage, which needs no answer.
    pub token: PathToken,
    /// Token of the previous step; zero in the first stage.
    pub echo: PathToken,
}

/// `Debug` leaves out tokens and the schedule's tag.
impl core::fmt::Debug for ShiftStep {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("ShiftStep").field("stage", &self.stage).finish_non_exhaustive()
    }
}

impl ShiftStep {
    /// Length of the body in bytes.
    pub const LEN: usize = 25;

    /// Wire form.
    pub fn to_bytes(self) -> [u8; ShiftStep::LEN] {
        let mut out = [0; ShiftStep::LEN];
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
    pub fn parse(body: &[u8]) -> Result<ShiftStep, ParseError> {
        let mut reader = Reader::new(body);
        let stage = match reader.u8("shift stage")? {
            1 => ShiftStage::Call,
            2 => ShiftStage::Answer,
            3 => ShiftStage::Done,
            value => return Err(ParseError::Unknown { what: "shift stage", value: value.into() }),
        };
        let (tag, epoch) = (reader.array("shift tag")?, reader.u32("epoch")?);
        let (token, echo) = (reader.array("shift token")?, reader.array("shift echo")?);
        reader.finish("shift step")?;
        let unused = match stage {
            ShiftStage::Call => echo,
            ShiftStage::Answer => PathToken::default(),
            ShiftStage::Done => token,
        };
        if unused != PathToken::default() {
            return Err(ParseError::Invalid { what: "shift step" });
        }
        Ok(ShiftStep { stage, tag, epoch, token, echo })
    }
}

/// Kind of a probe message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ShiftProbeStage {
    /// The sender asks for `Come` at the address. All kinds but `Come` and `Leave` go by the link.
    Ask = 1,
    /// The receiver of `Ask` confirms it.
    Heard = 2,
    /// Goes to the address, from the fixed endpoint.
    Come = 3,
    /// Goes from the address, to the fixed endpoint.
    Leave = 4,
    /// The receiver of `Leave` confirms it.
    Left = 5,
}

/// Probe message, by which a node finds out if an address of its prefix can be used: control type
/// 11.
///
/// ```text
///  0       1            9
/// +-------+------------+
/// | stage | identifier |
/// +-------+------------+
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ShiftProbe {
    pub stage: ShiftProbeStage,
    /// The interface identifier of the address, under the asking node's prefix.
    pub identifier: u64,
}

/// `Debug` leaves out the identifier: no log may say where a node is.
impl core::fmt::Debug for ShiftProbe {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("ShiftProbe").field("stage", &self.stage).finish_non_exhaustive()
    }
}

impl ShiftProbe {
    /// Length of the body in bytes.
    pub const LEN: usize = 9;

    /// Wire form.
    pub fn to_bytes(self) -> [u8; ShiftProbe::LEN] {
        let mut out = [0; ShiftProbe::LEN];
        out[0] = self.stage as u8;
        out[1..].copy_from_slice(&self.identifier.to_be_bytes());
        out
    }

    /// From the wire form.
    pub fn parse(body: &[u8]) -> Result<ShiftProbe, ParseError> {
        let mut reader = Reader::new(body);
        let stage = match reader.u8("probe stage")? {
            1 => ShiftProbeStage::Ask,
            2 => ShiftProbeStage::Heard,
            3 => ShiftProbeStage::Come,
            4 => ShiftProbeStage::Leave,
            5 => ShiftProbeStage::Left,
            value => return Err(ParseError::Unknown { what: "probe stage", value: value.into() }),
        };
        let probe = ShiftProbe { stage, identifier: reader.u64("probe identifier")? };
        reader.finish("shift probe")?;
        Ok(probe)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_read_as_it_was_written_and_a_bad_one_is_refused() {
        let good = ShiftAnnouncement {
            prefix: [0x20, 1, 0x0d, 0xb8, 0, 1, 0, 2],
            port: 7_400,
            interval_ms: 10_000,
        };
        assert_eq!(
            ShiftAnnouncement::parse(&ShiftAnnouncement::to_bytes(Some(good))),
            Ok(Some(good))
        );
        assert_eq!(ShiftAnnouncement::parse(&ShiftAnnouncement::to_bytes(None)), Ok(None));
        let endpoint = good.endpoint(0x0003_0004_0005_0006);
        assert_eq!(endpoint.to_string(), "[2001:db8:1:2:3:4:5:6]:7400");
        assert_eq!(ShiftAnnouncement::split(endpoint), Some((good.prefix, 0x0003_0004_0005_0006)));
        assert_eq!(ShiftAnnouncement::split("192.0.2.1:7400".parse().unwrap()), None);
        let prefixes = [[0; 8], [0xff; 8], [0xfe, 0x80, 0, 0, 0, 0, 0, 0]];
        let bad = prefixes.map(|prefix| ShiftAnnouncement { prefix, ..good });
        let times =
            [0, 999, 3_600_001].map(|interval_ms| ShiftAnnouncement { interval_ms, ..good });
        for bad in bad.into_iter().chain(times).chain([ShiftAnnouncement { port: 0, ..good }]) {
            assert!(
                ShiftAnnouncement::parse(&ShiftAnnouncement::to_bytes(Some(bad))).is_err(),
                "{bad:?}"
            );
        }
        let bytes = ShiftAnnouncement::to_bytes(Some(good));
        assert!(ShiftAnnouncement::parse(&bytes[1..]).is_err());
        assert!(ShiftAnnouncement::parse(&[&bytes[..], &[0]].concat()).is_err());
        assert!(!format!("{good:?}").contains("7400"), "Debug must hide the port");
    }

    #[test]
    fn a_step_is_read_as_it_was_written_and_one_with_a_token_too_many_is_refused() {
        let (one, none) = ([9; 8], [0; 8]);
        let step = |stage, token, echo| ShiftStep {
            stage,
            tag: [1, 2, 3, 4],
            epoch: 0x0506_0708,
            token,
            echo,
        };
        for step in [
            step(ShiftStage::Call, one, none),
            step(ShiftStage::Answer, one, one),
            step(ShiftStage::Done, none, one),
        ] {
            assert_eq!(step.to_bytes()[1..9], [1, 2, 3, 4, 5, 6, 7, 8]);
            assert_eq!(ShiftStep::parse(&step.to_bytes()), Ok(step));
        }
        for step in [step(ShiftStage::Call, one, one), step(ShiftStage::Done, one, one)] {
            assert!(ShiftStep::parse(&step.to_bytes()).is_err());
        }
        let mut other = step(ShiftStage::Call, none, none).to_bytes();
        other[0] = 4;
        assert!(ShiftStep::parse(&other).is_err());
        assert!(ShiftStep::parse(&[1; 24]).is_err() && ShiftStep::parse(&[1; 26]).is_err());
    }
}
