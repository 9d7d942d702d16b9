//! Offsets inside an opened frame, and the kind bytes (docs/design/wire/frame.md).

use crate::{ParseError, RoutedHeader, SessionHeader};

/// Offsets in a frame, counted from its first byte.
pub mod link {
    use super::*;

    /// Start of the link plaintext: its kind byte.
    pub const KIND_AT: usize = SessionHeader::LEN;
    /// Start of the body of the link plaintext.
    pub const BODY_AT: usize = KIND_AT + 1;
    /// Start of a cell's routed header.
    pub const ROUTED_AT: usize = BODY_AT;
    /// Start of a cell's payload.
    pub const CELL_AT: usize = ROUTED_AT + RoutedHeader::LEN;
    /// Bytes that a frame adds to a cell's payload: 40.
    pub const OVERHEAD: usize = CELL_AT + crate::TAG_LEN;

    /// Parts of a full frame on a path that is too narrow for full frames.
    pub const PARTS: usize = 3;
    /// Bytes of the full frame's plaintext in each part, its kind byte counted.
    pub const PART_LEN: usize = (crate::SizeClass::Full.link_body_len() + 1) / PARTS;
    /// Offset of the number of the frame that a part belongs to (4 bytes).
    pub const PART_NUMBER_AT: usize = BODY_AT;
    /// Offset of the part's position in its frame, counted from 0.
    pub const PART_PLACE_AT: usize = PART_NUMBER_AT + 4;
    /// Start of the part's piece of the frame.
    pub const PART_AT: usize = PART_PLACE_AT + 1;

    const _: () = assert!(OVERHEAD <= 40);
    const _: () = assert!(PART_LEN * PARTS == crate::SizeClass::Full.link_body_len() + 1);
    const _: () =
        assert!(PART_AT + PART_LEN + crate::TAG_LEN <= crate::SizeClass::Medium.frame_len());
}

/// Offsets in a cell's payload, counted from its first byte.
pub mod edge {
    use super::*;

    /// Start of the end-to-end plaintext: its kind byte.
    pub const KIND_AT: usize = SessionHeader::LEN;
    /// Bytes that the end-to-end seal adds: 24.
    pub const OVERHEAD: usize = KIND_AT + crate::TAG_LEN;

    const _: () = assert!(OVERHEAD <= 24);
}

/// Offsets in the end-to-end plaintext of an IP packet, and the fields before it (section 6).
pub mod ip {
    use core::time::Duration;

    use crate::{SizeClass, Time};

    /// Offset of the flags, counted from the kind byte.
    pub const FLAGS_AT: usize = 1;
    /// Start of the packet, counted from the kind byte.
    pub const PACKET_AT: usize = 2;
    /// Offset of the [`StreamNumber`] of a packet on a circuit, counted from the kind byte (4
    /// bytes). Flags and packet follow at their usual distance behind it.
    pub const NUMBER_AT: usize = 1;
    /// Bytes of stream and number.
    pub const NUMBER_LEN: usize = 4;
    /// Streams of a pair of hosts. Stream 0 has no order: its packets are delivered as they arrive.
    pub const STREAMS: usize = 1 << 12;
    /// Numbers of a stream. After the last one comes 0.
    pub const NUMBERS: u32 = 1 << 20;
    /// Longest packet in bytes.
    pub const PACKET_MAX: usize = SizeClass::Full.edge_len() - PACKET_AT;
    /// Flag: the TCP or UDP checksum holds only the sum of the pseudo-header.
    pub const PARTIAL: u8 = 1;
    /// Flag of a packet on a circuit: its stream sent nothing for at least [`BREAK`] before it, or
    /// never.
    pub const FIRST: u8 = 2;
    /// Shortest pause of a stream that [`FIRST`] reports, by the clocks of the hosts.
    pub const BREAK: Duration = Duration::from_millis(1_800);

    const _: () = assert!(PACKET_MAX == 1_374);

    /// The stream of a packet on a circuit (12 bits), and its number in the stream (20 bits).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct StreamNumber {
        /// Below [`STREAMS`].
        pub stream: u16,
        /// Below [`NUMBERS`].
        pub number: u32,
    }

    /// Time at which a packet on a circuit was sent, by its sender's clock. It is a count of the
    /// circuit's [`SendSteps`], modulo 64, in the six high bits of the flags.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct SendTime(u8);

    impl SendTime {
        const BITS: u32 = 6;
        const SHIFT: u32 = u8::BITS - SendTime::BITS;

        /// Reads the time from the flags of a packet.
        pub const fn from_flags(flags: u8) -> SendTime {
            SendTime(flags >> SendTime::SHIFT)
        }

        /// The six high bits of the flags.
        pub const fn to_flags(self) -> u8 {
            self.0 << SendTime::SHIFT
        }
    }

    /// Unit of a [`SendTime`] on a circuit. Both ends derive it from the delay of the circuit's
    /// mixes.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct SendSteps {
        /// A step is 2^bits nanoseconds.
        bits: u32,
    }

    impl SendSteps {
        /// Step of 1.0 ms; 64 of them, one round, take 67 ms.
        const SHORTEST_BITS: u32 = 20;
        /// Step of 2.1 s: longer than any circuit needs.
        const LONGEST_BITS: u32 = 31;

        /// Steps of a circuit whose packets wait at most `wait` for overtaken ones. They are the
        /// shortest for which three quarters of a round exceed `wait`.
        pub const fn of(wait: Duration) -> SendSteps {
            let mut steps = SendSteps { bits: SendSteps::SHORTEST_BITS };
            while steps.bits < SendSteps::LONGEST_BITS && steps.age_max() as u128 <= wait.as_nanos()
            {
                steps.bits += 1;
            }
            steps
        }

        /// Nanoseconds of one round: times that far apart look equal. A power of two.
        pub const fn round(self) -> u64 {
            1 << (self.bits + SendTime::BITS)
        }

        /// Longest delay between packets that these times can show, in nanoseconds.
        pub const fn age_max(self) -> u64 {
            self.round() / 4 * 3
        }

        /// The step that contains `now`.
        pub const fn at(self, now: Time) -> SendTime {
            SendTime((now.0 >> self.bits) as u8 & ((1 << SendTime::BITS) - 1))
        }

        /// Nanoseconds from the beginning of step `sent` to `now`, by the caller's clock: less than
        /// a round. The result is off by the difference of the two clocks.
        pub const fn ns_before(self, sent: SendTime, now: Time) -> u64 {
            now.0.wrapping_sub((sent.0 as u64) << self.bits) & (self.round() - 1)
        }
    }

    impl StreamNumber {
        /// From the wire form.
        pub const fn from_bytes(bytes: [u8; NUMBER_LEN]) -> StreamNumber {
            let both = u32::from_be_bytes(bytes);
            StreamNumber { stream: (both / NUMBERS) as u16, number: both % NUMBERS }
        }

        /// Wire form. Excess bits of a stream or number are left out.
        pub const fn to_bytes(self) -> [u8; NUMBER_LEN] {
            ((self.stream as u32).wrapping_mul(NUMBERS) + self.number % NUMBERS).to_be_bytes()
        }

        /// Distance of this number behind `other`, by the shorter way round; negative if it is
        /// before `other`.
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
    /// Padding only: keeps a link alive and addresses fresh.
    Keepalive = 0,
    /// A routed cell.
    Cell = 1,
    /// Messages between neighbours: reports, probes, routes. Padding is zero.
    Control = 2,
    /// A third of a full frame's plaintext.
    Part = 3,
    /// A cell between the two hosts of a direct link, without an end-to-end seal
    /// (docs/design/wire/direct.md).
    Direct = 4,
    /// A cell of a circuit between two of its nodes: a full frame of class bulk
    /// (docs/design/wire/circuits.md).
    Leg = 5,
    /// A small cell in a full frame of a covered link, then zeroes.
    SmallCell = 6,
    /// A medium cell in a full frame of a covered link, then zeroes.
    MediumCell = 7,
    /// Zeroes only: fills a slot of a covered link.
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
    /// Padding only.
    Keepalive = 0,
    /// One segment of a file.
    Segment = 1,
    /// One message about a file transfer.
    Transfer = 2,
    /// Echo request or reply between hosts.
    Echo = 3,
    /// One IP packet.
    Ip = 4,
    /// Message about a direct link of the two hosts.
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
