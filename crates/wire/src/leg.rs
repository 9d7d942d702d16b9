//! Leg cells, which are a circuit's cells between two of its nodes, and the messages on their
//! control lane (docs/design/wire/circuits.md).
//!
//! ```text
//! 0        4                  10                  10 + U           1400
//! +--------+------------------+-------------------+----------------+
//! | index  | counter, check   | host unit         | r tag places   |
//! +--------+------------------+-------------------+----------------+
//! ```

use core::ops::Range;

use crate::{Address, HopDelay, ParseError, Reader, SizeClass, TAG_LEN, shake};

/// Length of a leg cell, which fills the payload of a full cell.
pub const CELL_LEN: usize = SizeClass::Full.cell_len();
/// Start of the counter and the check.
pub const COUNTER_AT: usize = 4;
/// Start of the host unit.
pub const BODY_AT: usize = 10;
/// Start of the sample from which the masks follow. It is ciphertext, or filler, on every leg.
pub const SAMPLE_AT: usize = BODY_AT;
/// Most relays of a circuit, and thus most tag places.
pub const RELAYS_MAX: u8 = 5;
/// Low bits of the counter that are sent.
pub const COUNTER_BITS: u32 = 20;
/// Bits of the check.
pub const CHECK_BITS: u32 = 28;
/// Bit of an index that says: control lane.
pub const CONTROL_LANE: u32 = 1 << 23;

/// Division of the payload of a circuit's cells. Both hosts of a pair agree on it; each relay of
/// the circuit learns it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CellShape {
    tags: u8,
}

impl CellShape {
    /// The shape for circuits of the most relays, with the shortest units.
    pub const MOST: CellShape = CellShape { tags: RELAYS_MAX };

    /// A shape with `tags` tag places.
    ///
    /// # Errors
    ///
    /// `tags` is not 1 to [`RELAYS_MAX`].
    pub const fn new(tags: u8) -> Result<CellShape, ParseError> {
        match tags {
            1..=RELAYS_MAX => Ok(CellShape { tags }),
            _ => Err(ParseError::Invalid { what: "tag places" }),
        }
    }

    /// Tag places: most relays of a circuit of this shape.
    pub const fn tags(self) -> u8 {
        self.tags
    }

    /// Bytes of the host unit.
    pub const fn unit_len(self) -> usize {
        CELL_LEN - BODY_AT - TAG_LEN * self.tags as usize
    }

    /// Start of the tag of `place`. Place 0 belongs to a host behind as many relays as there are
    /// places. Its tag is the end of the unit, and only control cells have it.
    pub const fn tag_at(self, place: u8) -> usize {
        BODY_AT + self.unit_len() + TAG_LEN * place as usize - TAG_LEN
    }

    /// The place of the node that is `hop` legs from the origin, counted from 1. The first relay
    /// always has the last place, so that a place does not tell how many nodes follow.
    pub const fn place(self, hop: u8) -> Option<u8> {
        match hop {
            0 => None,
            _ => (self.tags + 1).checked_sub(hop),
        }
    }

    /// Offset of the control cell's flag for the node at `place`. It comes before all bytes that
    /// the nodes behind that node may read.
    pub const fn flag_at(self, place: u8) -> usize {
        BODY_AT + (self.tags - place) as usize
    }

    /// Bytes of a control message that the node at `place` can read.
    pub const fn message_len(self, place: u8) -> usize {
        self.tag_at(place) - self.flag_at(place) - 1
    }
}

/// The control cell's flag for a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum LayerFlag {
    /// Forward: for a node behind this one. Backward: from a node behind this one.
    Pass = 0,
    /// Forward: for this node. Backward: from this node.
    Yours = 1,
}

impl LayerFlag {
    /// From its byte.
    ///
    /// # Errors
    ///
    /// The byte is neither 0 nor 1.
    pub const fn from_byte(byte: u8) -> Result<LayerFlag, ParseError> {
        match byte {
            0 => Ok(LayerFlag::Pass),
            1 => Ok(LayerFlag::Yours),
            _ => Err(ParseError::Unknown { what: "control cell flag", value: byte as u32 }),
        }
    }
}

/// Length of the first Noise message of a hop's set-up.
pub const FIRST_LEN: usize = 32 + (1_184 + TAG_LEN) + HopOffer::LEN + TAG_LEN;
/// Length of the second Noise message.
pub const SECOND_LEN: usize = 32 + (1_088 + TAG_LEN) + HopTerms::LEN + TAG_LEN;

/// Offer of a circuit's origin to a new hop, in the first Noise message.
#[derive(Clone, PartialEq, Eq)]
pub struct HopOffer {
    /// Secret from which the keys of the leg to the new hop follow.
    pub leg: [u8; 32],
    /// AEAD suites that the origin accepts: bit n - 1 stands for suite n.
    pub suites: u8,
    /// The class of the origin's processor.
    pub processor: u8,
    pub shape: CellShape,
    /// The new hop's tag place.
    pub place: u8,
    /// Lifetime of the circuit in units of ten seconds.
    pub lifetime: u8,
    /// For a relay, the strategy of its mix; for the destination, the delay on the way.
    pub mixing: HopDelay,
}

impl HopOffer {
    /// Length in bytes.
    pub const LEN: usize = 37 + HopDelay::LEN;

    /// Reads an offer.
    ///
    /// # Errors
    ///
    /// `bytes` are not [`HopOffer::LEN`] long, the number of tag places is impossible, or `place`
    /// exceeds it.
    pub fn parse(bytes: &[u8]) -> Result<HopOffer, ParseError> {
        let mut reader = Reader::new(bytes);
        let leg = reader.array("leg secret")?;
        let (suites, processor) = (reader.u8("suites")?, reader.u8("processor")?);
        let shape = CellShape::new(reader.u8("tag places")?)?;
        let place = reader.u8("place")?;
        let lifetime = reader.u8("lifetime")?;
        let mixing = HopDelay::read(&mut reader)?;
        if place > shape.tags() {
            return Err(ParseError::Invalid { what: "place" });
        }
        reader.finish("offer")?;
        Ok(HopOffer { leg, suites, processor, shape, place, lifetime, mixing })
    }

    pub fn to_bytes(&self) -> [u8; HopOffer::LEN] {
        let mut out = [0; HopOffer::LEN];
        out[..32].copy_from_slice(&self.leg);
        let HopOffer { suites, processor, place, lifetime, .. } = *self;
        out[32..37].copy_from_slice(&[suites, processor, self.shape.tags(), place, lifetime]);
        out[37..].copy_from_slice(&self.mixing.to_bytes());
        out
    }
}

/// The new hop's answer, in the second Noise message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HopTerms {
    /// The AEAD suite of the layer.
    pub suite: u8,
    /// The class of the hop's processor.
    pub processor: u8,
    /// The suites that the hop accepts, so that the origin can check the choice.
    pub suites: u8,
}

impl HopTerms {
    /// Length in bytes.
    pub const LEN: usize = 3;

    /// Reads the answer.
    ///
    /// # Errors
    ///
    /// `bytes` are not [`HopTerms::LEN`] long.
    pub fn parse(bytes: &[u8]) -> Result<HopTerms, ParseError> {
        let mut reader = Reader::new(bytes);
        let [suite, processor, suites] = reader.array("terms")?;
        reader.finish("terms")?;
        Ok(HopTerms { suite, processor, suites })
    }

    pub const fn to_bytes(self) -> [u8; HopTerms::LEN] {
        [self.suite, self.processor, self.suites]
    }
}

/// Index and key that a node needs to send cells over a leg.
#[derive(Clone, PartialEq, Eq)]
pub struct LegGrant {
    /// Names the circuit at the node that receives, lane 0.
    pub index: u32,
    /// Key for cells to that node.
    pub key: [u8; 32],
}

impl LegGrant {
    /// Length in bytes.
    pub const LEN: usize = 36;

    /// Reads a grant.
    ///
    /// # Errors
    ///
    /// Fewer than [`LegGrant::LEN`] bytes are left.
    pub fn read(reader: &mut Reader<'_>) -> Result<LegGrant, ParseError> {
        Ok(LegGrant { index: reader.u32("index")?, key: reader.array("leg key")? })
    }

    pub fn to_bytes(&self) -> [u8; LegGrant::LEN] {
        let mut out = [0; LegGrant::LEN];
        out[..4].copy_from_slice(&self.index.to_be_bytes());
        out[4..].copy_from_slice(&self.key);
        out
    }
}

/// Reason why a circuit was not extended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ExtendRefusal {
    /// The named node did not answer in time.
    Silent = 1,
    /// The named node may not be the next hop: it is neither a relay that this one may use nor a
    /// host.
    NotAllowed = 2,
    /// The refusing node has too many circuits.
    Full = 3,
}

impl ExtendRefusal {
    const fn from_byte(byte: u8) -> Result<ExtendRefusal, ParseError> {
        match byte {
            1 => Ok(ExtendRefusal::Silent),
            2 => Ok(ExtendRefusal::NotAllowed),
            3 => Ok(ExtendRefusal::Full),
            _ => Err(ParseError::Unknown { what: "refusal", value: byte as u32 }),
        }
    }
}

/// Half of a handshake between the two hosts' session machines: a whole one does not fit a control
/// cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HandshakeHalf<'a> {
    /// Number of the handshake on the circuit, modulo 256. An answer has its request's number.
    pub number: u8,
    /// True for the second half.
    pub second: bool,
    /// Length of the whole handshake in bytes, at most [`shake::EDGE_LEN`].
    pub len: u16,
    /// Bytes [`HandshakeHalf::range`] of the whole.
    pub bytes: &'a [u8],
}

impl<'a> HandshakeHalf<'a> {
    /// Range of a half in a handshake of `len` bytes.
    pub const fn range(len: u16, second: bool) -> Range<usize> {
        let (len, middle) = (len as usize, len.div_ceil(2) as usize);
        if second { middle..len } else { 0..middle }
    }

    /// Both halves of a handshake.
    ///
    /// # Errors
    ///
    /// The handshake is empty or longer than [`shake::EDGE_LEN`].
    pub fn both(number: u8, whole: &'a [u8]) -> Result<[HandshakeHalf<'a>; 2], ParseError> {
        let len = HandshakeHalf::check_len(whole.len())?;
        Ok([false, true].map(|second| {
            let bytes = &whole[HandshakeHalf::range(len, second)];
            HandshakeHalf { number, second, len, bytes }
        }))
    }

    fn check_len(len: usize) -> Result<u16, ParseError> {
        match len {
            1..=shake::EDGE_LEN => Ok(len as u16),
            _ => Err(ParseError::Invalid { what: "handshake length" }),
        }
    }

    fn read(reader: &mut Reader<'a>) -> Result<HandshakeHalf<'a>, ParseError> {
        let number = reader.u8("handshake number")?;
        let second = match reader.u8("handshake half")? {
            0 => false,
            1 => true,
            other => {
                return Err(ParseError::Unknown { what: "handshake half", value: other.into() });
            }
        };
        let len = HandshakeHalf::check_len(reader.u16("handshake length")?.into())?;
        let bytes = reader.bytes("handshake", HandshakeHalf::range(len, second).len())?;
        Ok(HandshakeHalf { number, second, len, bytes })
    }

    fn head(&self) -> [u8; 4] {
        let [high, low] = self.len.to_be_bytes();
        [self.number, self.second as u8, high, low]
    }
}

/// Message of the control lane, between the origin and one hop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LegMessage<'a> {
    /// To a relay: extend the circuit by this hop.
    Extend {
        /// The next hop's overlay address.
        to: Address,
        /// First Noise message for the next hop.
        noise: &'a [u8; FIRST_LEN],
    },
    /// From a relay: the circuit is extended. Holds the next hop's second Noise message.
    Extended(&'a [u8; SECOND_LEN]),
    /// From a relay: the circuit was not extended.
    Refused(ExtendRefusal),
    /// To a hop: forget the circuit.
    Close,
    /// To a hop: answer with the same number.
    Echo(u64),
    /// From a hop: the answer to an echo.
    Echoed(u64),
    /// Between the origin and the last hop: half of a handshake between the two hosts.
    Handshake(HandshakeHalf<'a>),
}

impl<'a> LegMessage<'a> {
    /// Reads a message and ignores the padding after it, which only the two ends can have written.
    ///
    /// # Errors
    ///
    /// An unknown type, refusal or half, a wrong length, or a truncated message.
    pub fn parse(bytes: &'a [u8]) -> Result<LegMessage<'a>, ParseError> {
        let mut reader = Reader::new(bytes);
        let wrong = |what| ParseError::Invalid { what };
        match reader.u8("control message type")? {
            1 => {
                let to = Address::from_bytes(reader.array("next hop")?);
                let noise = reader.bytes("first noise message", FIRST_LEN)?;
                let noise = noise.try_into().map_err(|_| wrong("first noise message"))?;
                Ok(LegMessage::Extend { to, noise })
            }
            2 => {
                let noise = reader.bytes("second noise message", SECOND_LEN)?;
                Ok(LegMessage::Extended(
                    noise.try_into().map_err(|_| wrong("second noise message"))?,
                ))
            }
            3 => Ok(LegMessage::Refused(ExtendRefusal::from_byte(reader.u8("refusal")?)?)),
            4 => Ok(LegMessage::Close),
            5 => Ok(LegMessage::Echo(reader.u64("echo")?)),
            6 => Ok(LegMessage::Echoed(reader.u64("echo")?)),
            7 => Ok(LegMessage::Handshake(HandshakeHalf::read(&mut reader)?)),
            other => Err(ParseError::Unknown { what: "control message type", value: other.into() }),
        }
    }

    /// Writes the message and fills the rest of `out` with zeroes.
    ///
    /// # Errors
    ///
    /// `out` is too short.
    pub fn write(&self, out: &mut [u8]) -> Result<(), ParseError> {
        let address;
        let number;
        let byte;
        let head;
        let (kind, parts): (u8, [&[u8]; 2]) = match self {
            LegMessage::Extend { to, noise } => {
                address = to.to_bytes();
                (1, [&address, *noise])
            }
            LegMessage::Extended(noise) => (2, [*noise, &[]]),
            LegMessage::Refused(refusal) => {
                byte = [*refusal as u8];
                (3, [&byte, &[]])
            }
            LegMessage::Close => (4, [&[], &[]]),
            LegMessage::Echo(n) | LegMessage::Echoed(n) => {
                number = n.to_be_bytes();
                (if matches!(self, LegMessage::Echo(_)) { 5 } else { 6 }, [&number, &[]])
            }
            LegMessage::Handshake(part) => {
                head = part.head();
                (7, [&head, part.bytes])
            }
        };
        let need = 1 + parts[0].len() + parts[1].len();
        let have = out.len();
        let short = ParseError::TooShort { what: "control message", need, have };
        let (head, rest) = out.split_at_mut_checked(need).ok_or(short)?;
        head[0] = kind;
        head[1..=parts[0].len()].copy_from_slice(parts[0]);
        head[1 + parts[0].len()..].copy_from_slice(parts[1]);
        rest.fill(0);
        Ok(())
    }
}

const _: () = {
    // The longest messages, to and from the fifth relay and the host behind it.
    let (shape, kind) = (CellShape { tags: RELAYS_MAX }, size_of::<u8>());
    assert!(kind + Address::LEN + FIRST_LEN <= shape.message_len(1));
    assert!(kind + SECOND_LEN <= shape.message_len(0));
    assert!(kind + 4 + shake::EDGE_LEN.div_ceil(2) <= shape.message_len(0));
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MixStrategy, MixTime};

    #[test]
    fn a_cell_is_divided_without_a_gap() {
        for tags in 1..=RELAYS_MAX {
            let shape = CellShape::new(tags).unwrap();
            assert_eq!(shape.tag_at(1), BODY_AT + shape.unit_len());
            assert_eq!(shape.tag_at(tags) + TAG_LEN, CELL_LEN);
            assert_eq!(shape.place(1), Some(tags), "the first relay has the last place");
            assert_eq!(shape.place(tags), Some(1));
            assert_eq!(shape.place(tags + 1), Some(0), "a host");
            assert_eq!(shape.place(tags + 2), None);
            assert_eq!(shape.flag_at(tags), BODY_AT);
        }
        assert!(CellShape::new(0).is_err() && CellShape::new(RELAYS_MAX + 1).is_err());
        assert_eq!([1, 3, 5].map(|r| CellShape { tags: r }.unit_len()), [1_374, 1_342, 1_310]);
    }

    #[test]
    fn messages_come_back() {
        let messages = [
            LegMessage::Extend { to: Address::new(2, 1), noise: &[7; FIRST_LEN] },
            LegMessage::Extended(&[8; SECOND_LEN]),
            LegMessage::Refused(ExtendRefusal::Silent),
            LegMessage::Refused(ExtendRefusal::NotAllowed),
            LegMessage::Refused(ExtendRefusal::Full),
            LegMessage::Close,
            LegMessage::Echo(u64::MAX - 1),
            LegMessage::Echoed(9),
            LegMessage::Handshake(HandshakeHalf {
                number: 7,
                second: false,
                len: 1_399,
                bytes: &[3; 700],
            }),
            LegMessage::Handshake(HandshakeHalf {
                number: 8,
                second: true,
                len: 1_399,
                bytes: &[4; 699],
            }),
        ];
        for message in messages {
            let mut out = [0xff; 1_304];
            message.write(&mut out).unwrap();
            assert_eq!(LegMessage::parse(&out), Ok(message));
            assert!(message.write(&mut []).is_err());
        }
        assert!(LegMessage::parse(&[]).is_err() && LegMessage::parse(&[9; 40]).is_err());
        assert!(LegMessage::parse(&[3, 4]).is_err() && LegMessage::parse(&[1; 40]).is_err());
    }

    #[test]
    fn halves_of_a_handshake_make_it_whole() {
        for len in [1, 2, 168, shake::EDGE_LEN] {
            let whole: Vec<u8> = (0..len).map(|n| n as u8).collect();
            let [one, two] = HandshakeHalf::both(3, &whole).unwrap();
            assert_eq!([one.bytes, two.bytes].concat(), whole);
        }
        assert!(
            HandshakeHalf::both(3, &[]).is_err()
                && HandshakeHalf::both(3, &[0; shake::EDGE_LEN + 1]).is_err()
        );
        let parse = |head: [u8; 5]| {
            let bytes = [&head[..], &[9; 1_200]].concat();
            LegMessage::parse(&bytes).map(|_| ())
        };
        assert!(parse([7, 1, 0, 5, 120]).is_ok());
        assert!(parse([7, 1, 2, 5, 120]).is_err(), "a third half");
        assert!(parse([7, 1, 0, 5, 121]).is_err(), "longer than a handshake");
        assert!(parse([7, 1, 0, 0, 0]).is_err(), "empty");
        assert!(LegMessage::parse(&[7, 1, 0, 5, 120, 0]).is_err(), "cut off");
    }

    #[test]
    fn offers_come_back() {
        let shape = CellShape::new(3).unwrap();
        let mixing = HopDelay::Relay(MixStrategy::Timed { every: MixTime::MAX });
        let (suites, processor) = (7, 4);
        let offer =
            HopOffer { leg: [1; 32], suites, processor, shape, place: 2, lifetime: 60, mixing };
        let bytes = offer.to_bytes();
        assert!(HopOffer::parse(&bytes) == Ok(offer));
        for (at, byte) in [(34, 0), (34, 6), (35, 4), (37, 4)] {
            let mut bad = bytes;
            bad[at] = byte;
            assert!(HopOffer::parse(&bad).is_err(), "{at} {byte}");
        }
        assert!(HopOffer::parse(&bytes[1..]).is_err());
    }
}
