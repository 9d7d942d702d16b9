//! Leg cells: the cells of a circuit between two of its nodes, and what is said on their control
//! lane (docs/wire.md section 12).
//!
//! ```text
//! 0        4                  10                  10 + U           1400
//! +--------+------------------+-------------------+----------------+
//! | index  | counter, check   | host unit         | r tag places   |
//! +--------+------------------+-------------------+----------------+
//! ```

use core::ops::Range;

use crate::{Address, Mixing, ParseError, Reader, SizeClass, TAG_LEN, shake};

/// Length of a leg cell: it fills the payload of a full cell.
pub const CELL_LEN: usize = SizeClass::Full.cell_len();
/// Where the counter and the check stand, behind the index.
pub const COUNTER_AT: usize = 4;
/// Where the host unit starts.
pub const BODY_AT: usize = 10;
/// Where the sample of the masks stands. It is ciphertext, or filler, on every leg.
pub const SAMPLE_AT: usize = BODY_AT;
/// Relays of a circuit at most, and so tag places at most.
pub const RELAYS_MAX: u8 = 5;
/// Low bits of the counter that travel.
pub const COUNTER_BITS: u32 = 20;
/// Bits of the check.
pub const CHECK_BITS: u32 = 28;
/// The bit of an index's lane that says: control lane.
pub const CONTROL_LANE: u32 = 1 << 23;

/// How the payload of a circuit's cells is divided. Both hosts of a pair agree on it; every relay
/// of the circuit learns it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    tags: u8,
}

impl Shape {
    /// That of circuits of the most relays: its units are the shortest.
    pub const MOST: Shape = Shape { tags: RELAYS_MAX };

    /// A shape with `tags` tag places.
    ///
    /// # Errors
    ///
    /// `tags` is not 1 to [`RELAYS_MAX`].
    pub const fn new(tags: u8) -> Result<Shape, ParseError> {
        match tags {
            1..=RELAYS_MAX => Ok(Shape { tags }),
            _ => Err(ParseError::Invalid { what: "tag places" }),
        }
    }

    /// Tag places: how many relays a circuit of this shape may have.
    pub const fn tags(self) -> u8 {
        self.tags
    }

    /// Bytes of the host unit.
    pub const fn unit_len(self) -> usize {
        CELL_LEN - BODY_AT - TAG_LEN * self.tags as usize
    }

    /// Where the tag of `place` stands. Place 0 is that of a host behind as many relays as there
    /// are places: the last bytes of the unit, which only control cells use so.
    pub const fn tag_at(self, place: u8) -> usize {
        BODY_AT + self.unit_len() + TAG_LEN * place as usize - TAG_LEN
    }

    /// The place of the node that is `hop` legs from the origin, from 1 on: the first relay always
    /// has the last place, so that a place does not say how many nodes follow.
    pub const fn place(self, hop: u8) -> Option<u8> {
        match hop {
            0 => None,
            _ => (self.tags + 1).checked_sub(hop),
        }
    }

    /// Where the control cell's byte for the node at `place` stands: in front of all that the nodes
    /// behind it may read.
    pub const fn flag_at(self, place: u8) -> usize {
        BODY_AT + (self.tags - place) as usize
    }

    /// Bytes of a control message that the node at `place` can read.
    pub const fn message_len(self, place: u8) -> usize {
        self.tag_at(place) - self.flag_at(place) - 1
    }
}

/// What the control cell's byte for a node says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Flag {
    /// Forward: for a node behind this one. Backward: of a node behind this one.
    Pass = 0,
    /// Forward: for this node. Backward: of this node.
    Yours = 1,
}

impl Flag {
    /// From its byte.
    ///
    /// # Errors
    ///
    /// It is neither of them.
    pub const fn from_byte(byte: u8) -> Result<Flag, ParseError> {
        match byte {
            0 => Ok(Flag::Pass),
            1 => Ok(Flag::Yours),
            _ => Err(ParseError::Unknown { what: "control cell flag", value: byte as u32 }),
        }
    }
}

/// Length of the first Noise message of a hop's set-up.
pub const FIRST_LEN: usize = 32 + (1_184 + TAG_LEN) + Offer::LEN + TAG_LEN;
/// Length of the second.
pub const SECOND_LEN: usize = 32 + (1_088 + TAG_LEN) + Terms::LEN + TAG_LEN;

/// What the origin of a circuit says to a new hop, in the first Noise message.
#[derive(Clone, PartialEq, Eq)]
pub struct Offer {
    /// What the leg to the new hop is protected with.
    pub leg: [u8; 32],
    /// Bit n - 1: AEAD suite n is taken.
    pub suites: u8,
    /// The class of the origin's processor.
    pub processor: u8,
    /// How cells are divided.
    pub shape: Shape,
    /// The new hop's place.
    pub place: u8,
    /// For how long the circuit may be used, in units of ten seconds.
    pub lifetime: u8,
    /// How long cells wait: here, or on the way if the circuit ends here.
    pub mixing: Mixing,
}

impl Offer {
    /// Length in bytes.
    pub const LEN: usize = 37 + Mixing::LEN;

    /// Reads an offer.
    ///
    /// # Errors
    ///
    /// `bytes` are not [`Offer::LEN`], there are no such tag places, or not as many as `place`.
    pub fn parse(bytes: &[u8]) -> Result<Offer, ParseError> {
        let mut reader = Reader::new(bytes);
        let leg = reader.array("leg secret")?;
        let (suites, processor) = (reader.u8("suites")?, reader.u8("processor")?);
        let shape = Shape::new(reader.u8("tag places")?)?;
        let place = reader.u8("place")?;
        let lifetime = reader.u8("lifetime")?;
        let mixing = Mixing::read(&mut reader)?;
        if place > shape.tags() {
            return Err(ParseError::Invalid { what: "place" });
        }
        reader.finish("offer")?;
        Ok(Offer { leg, suites, processor, shape, place, lifetime, mixing })
    }

    /// Writes it.
    pub fn to_bytes(&self) -> [u8; Offer::LEN] {
        let mut out = [0; Offer::LEN];
        out[..32].copy_from_slice(&self.leg);
        let Offer { suites, processor, place, lifetime, .. } = *self;
        out[32..37].copy_from_slice(&[suites, processor, self.shape.tags(), place, lifetime]);
        out[37..].copy_from_slice(&self.mixing.to_bytes());
        out
    }
}

/// What the new hop answers, in the second Noise message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// The AEAD suite of the layer.
    pub suite: u8,
    /// The class of the hop's processor.
    pub processor: u8,
    /// The suites that the hop takes, so that the origin can check the choice.
    pub suites: u8,
}

impl Terms {
    /// Length in bytes.
    pub const LEN: usize = 3;

    /// Reads them.
    ///
    /// # Errors
    ///
    /// `bytes` are not [`Terms::LEN`].
    pub fn parse(bytes: &[u8]) -> Result<Terms, ParseError> {
        let mut reader = Reader::new(bytes);
        let [suite, processor, suites] = reader.array("terms")?;
        reader.finish("terms")?;
        Ok(Terms { suite, processor, suites })
    }

    /// Writes them.
    pub const fn to_bytes(self) -> [u8; Terms::LEN] {
        [self.suite, self.processor, self.suites]
    }
}

/// What a node is told so that it can send cells over a leg.
#[derive(Clone, PartialEq, Eq)]
pub struct Grant {
    /// Names the circuit at the node that receives, lane 0.
    pub index: u32,
    /// The key of cells to that node.
    pub key: [u8; 32],
}

impl Grant {
    /// Length in bytes.
    pub const LEN: usize = 36;

    /// Reads a grant.
    ///
    /// # Errors
    ///
    /// Fewer than [`Grant::LEN`] bytes are left.
    pub fn read(reader: &mut Reader<'_>) -> Result<Grant, ParseError> {
        Ok(Grant { index: reader.u32("index")?, key: reader.array("leg key")? })
    }

    /// Writes it.
    pub fn to_bytes(&self) -> [u8; Grant::LEN] {
        let mut out = [0; Grant::LEN];
        out[..4].copy_from_slice(&self.index.to_be_bytes());
        out[4..].copy_from_slice(&self.key);
        out
    }
}

/// Why a circuit was not extended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Refusal {
    /// The named node did not answer in time.
    Silent = 1,
    /// The named node is no relay that this one may go on to, and no host.
    NotAllowed = 2,
    /// Too many circuits here.
    Full = 3,
}

impl Refusal {
    const fn from_byte(byte: u8) -> Result<Refusal, ParseError> {
        match byte {
            1 => Ok(Refusal::Silent),
            2 => Ok(Refusal::NotAllowed),
            3 => Ok(Refusal::Full),
            _ => Err(ParseError::Unknown { what: "refusal", value: byte as u32 }),
        }
    }
}

/// Half of a handshake between the two hosts' session machines: a whole one fits no control cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part<'a> {
    /// Which handshake of the circuit it is of, modulo 256. An answer has its request's number.
    pub number: u8,
    /// Whether it is the second half.
    pub second: bool,
    /// Length of the whole handshake in bytes, at most [`shake::EDGE_LEN`].
    pub len: u16,
    /// The half itself: [`Part::range`] of the whole.
    pub bytes: &'a [u8],
}

impl<'a> Part<'a> {
    /// Which bytes of a handshake of `len` bytes a half holds.
    pub const fn range(len: u16, second: bool) -> Range<usize> {
        let (len, middle) = (len as usize, len.div_ceil(2) as usize);
        if second { middle..len } else { 0..middle }
    }

    /// Both halves of a handshake.
    ///
    /// # Errors
    ///
    /// It is empty, or longer than [`shake::EDGE_LEN`].
    pub fn both(number: u8, whole: &'a [u8]) -> Result<[Part<'a>; 2], ParseError> {
        let len = Part::check_len(whole.len())?;
        Ok([false, true].map(|second| {
            let bytes = &whole[Part::range(len, second)];
            Part { number, second, len, bytes }
        }))
    }

    fn check_len(len: usize) -> Result<u16, ParseError> {
        match len {
            1..=shake::EDGE_LEN => Ok(len as u16),
            _ => Err(ParseError::Invalid { what: "handshake length" }),
        }
    }

    fn read(reader: &mut Reader<'a>) -> Result<Part<'a>, ParseError> {
        let number = reader.u8("handshake number")?;
        let second = match reader.u8("handshake half")? {
            0 => false,
            1 => true,
            other => {
                return Err(ParseError::Unknown { what: "handshake half", value: other.into() });
            }
        };
        let len = Part::check_len(reader.u16("handshake length")?.into())?;
        let bytes = reader.bytes("handshake", Part::range(len, second).len())?;
        Ok(Part { number, second, len, bytes })
    }

    fn head(&self) -> [u8; 4] {
        let [high, low] = self.len.to_be_bytes();
        [self.number, self.second as u8, high, low]
    }
}

/// A message of the control lane, between the origin and one hop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message<'a> {
    /// To a relay: set up the next hop there.
    Extend {
        /// The next hop's overlay address.
        to: Address,
        /// The first Noise message for it.
        noise: &'a [u8; FIRST_LEN],
    },
    /// Of a relay: the next hop is there, and this is its second Noise message.
    Extended(&'a [u8; SECOND_LEN]),
    /// Of a relay: it is not.
    Refused(Refusal),
    /// To a hop: forget the circuit.
    Close,
    /// To a hop: answer with the same number.
    Echo(u64),
    /// Of a hop: the answer.
    Echoed(u64),
    /// Between the origin and the last hop: half of a handshake of theirs.
    Handshake(Part<'a>),
}

impl<'a> Message<'a> {
    /// Reads a message; the rest is padding, which only the two ends could have written.
    ///
    /// # Errors
    ///
    /// The type, a refusal or a half is none of those known, a length does not fit, or the message
    /// is cut off.
    pub fn parse(bytes: &'a [u8]) -> Result<Message<'a>, ParseError> {
        let mut reader = Reader::new(bytes);
        let wrong = |what| ParseError::Invalid { what };
        match reader.u8("control message type")? {
            1 => {
                let to = Address::from_bytes(reader.array("next hop")?);
                let noise = reader.bytes("first noise message", FIRST_LEN)?;
                let noise = noise.try_into().map_err(|_| wrong("first noise message"))?;
                Ok(Message::Extend { to, noise })
            }
            2 => {
                let noise = reader.bytes("second noise message", SECOND_LEN)?;
                Ok(Message::Extended(noise.try_into().map_err(|_| wrong("second noise message"))?))
            }
            3 => Ok(Message::Refused(Refusal::from_byte(reader.u8("refusal")?)?)),
            4 => Ok(Message::Close),
            5 => Ok(Message::Echo(reader.u64("echo")?)),
            6 => Ok(Message::Echoed(reader.u64("echo")?)),
            7 => Ok(Message::Handshake(Part::read(&mut reader)?)),
            other => Err(ParseError::Unknown { what: "control message type", value: other.into() }),
        }
    }

    /// Writes the message and zeroes behind it.
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
            Message::Extend { to, noise } => {
                address = to.to_bytes();
                (1, [&address, *noise])
            }
            Message::Extended(noise) => (2, [*noise, &[]]),
            Message::Refused(refusal) => {
                byte = [*refusal as u8];
                (3, [&byte, &[]])
            }
            Message::Close => (4, [&[], &[]]),
            Message::Echo(n) | Message::Echoed(n) => {
                number = n.to_be_bytes();
                (if matches!(self, Message::Echo(_)) { 5 } else { 6 }, [&number, &[]])
            }
            Message::Handshake(part) => {
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
    // The longest messages, to and of the fifth of five relays and the host behind it.
    let (shape, kind) = (Shape { tags: RELAYS_MAX }, size_of::<u8>());
    assert!(kind + Address::LEN + FIRST_LEN <= shape.message_len(1));
    assert!(kind + SECOND_LEN <= shape.message_len(0));
    assert!(kind + 4 + shake::EDGE_LEN.div_ceil(2) <= shape.message_len(0));
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MixTime, Strategy};

    #[test]
    fn a_cell_is_divided_without_a_gap() {
        for tags in 1..=RELAYS_MAX {
            let shape = Shape::new(tags).unwrap();
            assert_eq!(shape.tag_at(1), BODY_AT + shape.unit_len());
            assert_eq!(shape.tag_at(tags) + TAG_LEN, CELL_LEN);
            assert_eq!(shape.place(1), Some(tags), "the first relay has the last place");
            assert_eq!(shape.place(tags), Some(1));
            assert_eq!(shape.place(tags + 1), Some(0), "a host");
            assert_eq!(shape.place(tags + 2), None);
            assert_eq!(shape.flag_at(tags), BODY_AT);
        }
        assert!(Shape::new(0).is_err() && Shape::new(RELAYS_MAX + 1).is_err());
        assert_eq!([1, 3, 5].map(|r| Shape { tags: r }.unit_len()), [1_374, 1_342, 1_310]);
    }

    #[test]
    fn messages_come_back() {
        let messages = [
            Message::Extend { to: Address::new(2, 1), noise: &[7; FIRST_LEN] },
            Message::Extended(&[8; SECOND_LEN]),
            Message::Refused(Refusal::Silent),
            Message::Refused(Refusal::NotAllowed),
            Message::Refused(Refusal::Full),
            Message::Close,
            Message::Echo(u64::MAX - 1),
            Message::Echoed(9),
            Message::Handshake(Part { number: 7, second: false, len: 1_399, bytes: &[3; 700] }),
            Message::Handshake(Part { number: 8, second: true, len: 1_399, bytes: &[4; 699] }),
        ];
        for message in messages {
            let mut out = [0xff; 1_304];
            message.write(&mut out).unwrap();
            assert_eq!(Message::parse(&out), Ok(message));
            assert!(message.write(&mut []).is_err());
        }
        assert!(Message::parse(&[]).is_err() && Message::parse(&[9; 40]).is_err());
        assert!(Message::parse(&[3, 4]).is_err() && Message::parse(&[1; 40]).is_err());
    }

    #[test]
    fn halves_of_a_handshake_make_it_whole() {
        for len in [1, 2, 168, shake::EDGE_LEN] {
            let whole: Vec<u8> = (0..len).map(|n| n as u8).collect();
            let [one, two] = Part::both(3, &whole).unwrap();
            assert_eq!([one.bytes, two.bytes].concat(), whole);
        }
        assert!(Part::both(3, &[]).is_err() && Part::both(3, &[0; shake::EDGE_LEN + 1]).is_err());
        let parse = |head: [u8; 5]| {
            let bytes = [&head[..], &[9; 1_200]].concat();
            Message::parse(&bytes).map(|_| ())
        };
        assert!(parse([7, 1, 0, 5, 120]).is_ok());
        assert!(parse([7, 1, 2, 5, 120]).is_err(), "a third half");
        assert!(parse([7, 1, 0, 5, 121]).is_err(), "longer than a handshake");
        assert!(parse([7, 1, 0, 0, 0]).is_err(), "empty");
        assert!(Message::parse(&[7, 1, 0, 5, 120, 0]).is_err(), "cut off");
    }

    #[test]
    fn offers_come_back() {
        let shape = Shape::new(3).unwrap();
        let mixing = Mixing::Relay(Strategy::Timed { every: MixTime::MAX });
        let (suites, processor) = (7, 4);
        let offer =
            Offer { leg: [1; 32], suites, processor, shape, place: 2, lifetime: 60, mixing };
        let bytes = offer.to_bytes();
        assert!(Offer::parse(&bytes) == Ok(offer));
        for (at, byte) in [(34, 0), (34, 6), (35, 4), (37, 4)] {
            let mut bad = bytes;
            bad[at] = byte;
            assert!(Offer::parse(&bad).is_err(), "{at} {byte}");
        }
        assert!(Offer::parse(&bytes[1..]).is_err());
    }
}
