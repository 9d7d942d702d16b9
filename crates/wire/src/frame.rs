//! Offsets inside an opened frame, and the kind bytes (docs/wire.md sections 3 and 6).

use crate::{ParseError, RoutedHeader, SessionHeader};

/// Offsets in a frame, counted from its first byte.
pub mod link {
    use super::*;

    /// Where the link plaintext starts: its kind byte.
    pub const KIND_AT: usize = SessionHeader::LEN;
    /// Where the body of the link plaintext starts.
    pub const BODY_AT: usize = KIND_AT + 1;
    /// Where the routed header of a cell starts.
    pub const ROUTED_AT: usize = BODY_AT;
    /// Where the payload of a cell starts.
    pub const CELL_AT: usize = ROUTED_AT + RoutedHeader::LEN;
    /// Bytes that a frame adds to a cell's payload: 40.
    pub const OVERHEAD: usize = CELL_AT + crate::TAG_LEN;

    /// Parts of a full frame on a path that carries none.
    pub const PARTS: usize = 3;
    /// Bytes of the full frame's plaintext, its kind byte included, in each part.
    pub const PART_LEN: usize = (crate::SizeClass::Full.link_body_len() + 1) / PARTS;
    /// Where a part says which frame it belongs to (4 bytes).
    pub const PART_NUMBER_AT: usize = BODY_AT;
    /// Where a part says which part it is, from 0.
    pub const PART_PLACE_AT: usize = PART_NUMBER_AT + 4;
    /// Where a part's bytes of the frame start.
    pub const PART_AT: usize = PART_PLACE_AT + 1;

    const _: () = assert!(OVERHEAD <= 40);
    const _: () = assert!(PART_LEN * PARTS == crate::SizeClass::Full.link_body_len() + 1);
    const _: () =
        assert!(PART_AT + PART_LEN + crate::TAG_LEN <= crate::SizeClass::Medium.frame_len());
}

/// Offsets in a cell's payload, counted from its first byte.
pub mod edge {
    use super::*;

    /// Where the end-to-end plaintext starts: its kind byte.
    pub const KIND_AT: usize = SessionHeader::LEN;
    /// Bytes that the end-to-end seal adds: 24.
    pub const OVERHEAD: usize = KIND_AT + crate::TAG_LEN;

    const _: () = assert!(OVERHEAD <= 24);
}

/// Offsets in the end-to-end plaintext of an IP packet, and what it says about it (section 6).
pub mod ip {
    use core::time::Duration;

    use crate::{SizeClass, Time};

    /// Where the flags stand, counted from the kind byte.
    pub const FLAGS_AT: usize = 1;
    /// Where the packet starts.
    pub const PACKET_AT: usize = 2;
    /// Where the [`StreamNumber`] of a packet on a circuit stands, behind its kind byte (4 bytes).
    /// The flags and the packet follow as far behind as without it.
    pub const NUMBER_AT: usize = 1;
    /// Bytes of stream and number.
    pub const NUMBER_LEN: usize = 4;
    /// Streams of a pair of hosts. Stream 0 has no order: its packets are delivered as they come.
    pub const STREAMS: usize = 1 << 12;
    /// Numbers of a stream; the one after the last is 0.
    pub const NUMBERS: u32 = 1 << 20;
    /// The longest packet.
    pub const PACKET_MAX: usize = SizeClass::Full.edge_len() - PACKET_AT;
    /// Flag: the TCP or UDP checksum holds only the sum of the pseudo-header.
    pub const PARTIAL: u8 = 1;
    /// Flag of a packet on a circuit: before it, its stream sent nothing for [`BREAK`] or ever.
    pub const FIRST: u8 = 2;
    /// So long at least, as hosts measure it.
    pub const BREAK: Duration = Duration::from_millis(1_800);

    const _: () = assert!(PACKET_MAX == 1_374);

    /// The stream of a packet on a circuit, and its number there: 12 and 20 bits on the wire.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct StreamNumber {
        /// Below [`STREAMS`].
        pub stream: u16,
        /// Below [`NUMBERS`].
        pub number: u32,
    }

    /// When a packet on a circuit was sent, by the clock of its sender: in the six high bits of its
    /// flags, in the [`SendSteps`] of the circuit.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct SendTime(u8);

    impl SendTime {
        const BITS: u32 = 6;
        const SHIFT: u32 = u8::BITS - SendTime::BITS;

        /// What the flags of a packet say.
        pub const fn from_flags(flags: u8) -> SendTime {
            SendTime(flags >> SendTime::SHIFT)
        }

        /// Its bits among the flags.
        pub const fn to_flags(self) -> u8 {
            self.0 << SendTime::SHIFT
        }
    }

    /// The steps in which times of sending are told on a circuit. Both ends know what its mixes
    /// add, and so how long they are.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct SendSteps {
        /// A step has 2 to the power of so many nanoseconds.
        bits: u32,
    }

    impl SendSteps {
        /// 1.0 ms: a round of them takes 67 ms.
        const SHORTEST_BITS: u32 = 20;
        /// 2.1 s: longer than any circuit needs.
        const LONGEST_BITS: u32 = 31;

        /// Those of a circuit whose packets wait so long for others: the shortest of which three
        /// quarters of a round take longer.
        pub const fn of(wait: Duration) -> SendSteps {
            let mut steps = SendSteps { bits: SendSteps::SHORTEST_BITS };
            while steps.bits < SendSteps::LONGEST_BITS && steps.age_max() as u128 <= wait.as_nanos()
            {
                steps.bits += 1;
            }
            steps
        }

        /// Times so far apart are the same: nanoseconds, a power of two.
        pub const fn round(self) -> u64 {
            1 << (self.bits + SendTime::BITS)
        }

        /// What packets may take longer than others so that these times show it, in nanoseconds.
        pub const fn age_max(self) -> u64 {
            self.round() / 4 * 3
        }

        /// The step in which `now` is.
        pub const fn at(self, now: Time) -> SendTime {
            SendTime((now.0 >> self.bits) as u8 & ((1 << SendTime::BITS) - 1))
        }

        /// How many nanoseconds after the beginning of a step `now` is, by the clock of whoever
        /// asks: less than a round, and off by as much as the two clocks differ.
        pub const fn ns_before(self, sent: SendTime, now: Time) -> u64 {
            now.0.wrapping_sub((sent.0 as u64) << self.bits) & (self.round() - 1)
        }
    }

    impl StreamNumber {
        /// From what stands on the wire.
        pub const fn from_bytes(bytes: [u8; NUMBER_LEN]) -> StreamNumber {
            let both = u32::from_be_bytes(bytes);
            StreamNumber { stream: (both / NUMBERS) as u16, number: both % NUMBERS }
        }

        /// What stands on the wire. Bits beyond those of a stream or a number are left out.
        pub const fn to_bytes(self) -> [u8; NUMBER_LEN] {
            ((self.stream as u32).wrapping_mul(NUMBERS) + self.number % NUMBERS).to_be_bytes()
        }

        /// How far behind `other` this number is, or, below 0, before it: the shorter way round.
        pub const fn ahead_of(self, other: u32) -> i32 {
            const SPARE: u32 = u32::BITS - NUMBERS.trailing_zeros();
            (self.number.wrapping_sub(other) << SPARE).cast_signed() >> SPARE
        }
    }
}

/// First byte of the link plaintext (section 3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum LinkKind {
    /// Nothing but padding: keeps a link alive and addresses fresh.
    Keepalive = 0,
    /// A routed cell.
    Cell = 1,
    /// Messages between neighbours: reports, probes, routes. Padding is zero.
    Control = 2,
    /// A third of a full frame's plaintext.
    Part = 3,
    /// A cell between the two hosts of a direct link, without an end-to-end seal (section 11).
    Direct = 4,
    /// A cell of a circuit between two of its nodes: a full frame of class bulk (section 12).
    Leg = 5,
    /// A small cell in a full frame of a covered link, and zeroes.
    SmallCell = 6,
    /// A medium cell in a full frame of a covered link, and zeroes.
    MediumCell = 7,
    /// Nothing but zeroes: fills a slot of a covered link.
    Cover = 8,
}

impl LinkKind {
    /// From the kind byte.
    pub const fn from_byte(byte: u8) -> Result<LinkKind, ParseError> {
        match byte {
            0 => Ok(LinkKind::Keepalive),
            1 => Ok(LinkKind::Cell),
            2 => Ok(LinkKind::Control),
            3 => Ok(LinkKind::Part),
            4 => Ok(LinkKind::Direct),
            5 => Ok(LinkKind::Leg),
            6 => Ok(LinkKind::SmallCell),
            7 => Ok(LinkKind::MediumCell),
            8 => Ok(LinkKind::Cover),
            _ => Err(ParseError::Unknown { what: "link kind", value: byte as u32 }),
        }
    }
}

/// First byte of the end-to-end plaintext (section 6).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum EdgeKind {
    /// Nothing but padding.
    Keepalive = 0,
    /// One segment of a file.
    Segment = 1,
    /// One message about a file transfer.
    Transfer = 2,
    /// Echo request or reply between hosts.
    Echo = 3,
    /// One IP packet.
    Ip = 4,
    /// About a direct link of the two hosts.
    Direct = 5,
    /// One IP packet on a circuit, with its stream and number.
    Numbered = 6,
}

impl EdgeKind {
    /// From the kind byte.
    pub const fn from_byte(byte: u8) -> Result<EdgeKind, ParseError> {
        match byte {
            0 => Ok(EdgeKind::Keepalive),
            1 => Ok(EdgeKind::Segment),
            2 => Ok(EdgeKind::Transfer),
            3 => Ok(EdgeKind::Echo),
            4 => Ok(EdgeKind::Ip),
            5 => Ok(EdgeKind::Direct),
            6 => Ok(EdgeKind::Numbered),
            _ => Err(ParseError::Unknown { what: "edge kind", value: byte as u32 }),
        }
    }
}
