//! Fixed headers (docs/design/wire/frame.md). Each struct has the layout of its wire form:
//! big-endian types, no padding, length asserted at compile time.

use zerocopy::byteorder::big_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::{Address, DropReason};

/// Header of a sealed unit, at the link (section 2) and end to end (section 5). Both fields are
/// masked on the wire.
///
/// ```text
///  0               4               8
/// +---------------+---------------+
/// | index         | counter       |
/// +---------------+---------------+
/// ```
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct SessionHeader {
    /// Names the session and lane at the receiver, which chose it.
    pub index: U32,
    /// Counts the units sealed under one key, and is also the AEAD nonce.
    pub counter: U32,
}

impl SessionHeader {
    /// Length in bytes.
    pub const LEN: usize = 8;
}

const _: () = assert!(size_of::<SessionHeader>() == SessionHeader::LEN);

/// Priority of a cell at routers. Routers can't change it: the end-to-end seal covers this field of
/// the routed header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum TrafficClass {
    /// Files and other traffic that fills the path.
    #[default]
    Bulk = 0,
    /// Small and urgent: acknowledgements, handshakes, pings. Leaves before bulk cells.
    Control = 1,
}

/// Congestion mark of a cell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum CongestionMark {
    /// No congestion on the way so far.
    #[default]
    Clear = 0,
    /// A router, a full receive buffer or the network below (RFC 6040) had congestion.
    Congested = 1,
}

/// Everything that a router sees of a cell (section 4).
///
/// ```text
///  0          4       6          10      12      13     14          15
/// +----------+-------+----------+-------+-------+------+-----------+
/// | dst      | dst   | src      | src   | class | mark | hop limit |
/// | router   | host  | router   | host  |       |      |           |
/// +----------+-------+----------+-------+-------+------+-----------+
/// ```
///
/// The first [`RoutedHeader::IMMUTABLE`] bytes are associated data of the end-to-end seal.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RoutedHeader {
    dst_router: U32,
    dst_host: U16,
    src_router: U32,
    src_host: U16,
    class: u8,
    mark: u8,
    hop_limit: u8,
}

const _: () = assert!(size_of::<RoutedHeader>() == RoutedHeader::LEN);

impl RoutedHeader {
    /// Length in bytes.
    pub const LEN: usize = 15;
    /// Leading bytes that no router may change: destination, source, class.
    pub const IMMUTABLE: usize = 13;
    /// Offset of the traffic class.
    pub const CLASS_AT: usize = 12;
    /// Offset of the congestion mark.
    pub const MARK_AT: usize = 13;
    /// Offset of the hop limit.
    pub const HOP_LIMIT_AT: usize = 14;
    /// First hop limit of a cell: no Shoal network is wider.
    pub const HOP_LIMIT: u8 = 32;

    /// A new header: unmarked, with the full hop limit.
    pub const fn new(dst: Address, src: Address, class: TrafficClass) -> RoutedHeader {
        RoutedHeader {
            dst_router: U32::new(dst.router),
            dst_host: U16::new(dst.host),
            src_router: U32::new(src.router),
            src_host: U16::new(src.host),
            class: class as u8,
            mark: CongestionMark::Clear as u8,
            hop_limit: Self::HOP_LIMIT,
        }
    }

    /// Reads and checks the header at the start of `bytes`.
    pub fn parse(bytes: &[u8]) -> Result<RoutedHeader, DropReason> {
        let (header, _) =
            RoutedHeader::read_from_prefix(bytes).map_err(|_| DropReason::Malformed)?;
        if header.class > TrafficClass::Control as u8
            || header.mark > CongestionMark::Congested as u8
        {
            return Err(DropReason::Malformed);
        }
        Ok(header)
    }

    /// Destination address.
    pub fn dst(&self) -> Address {
        Address::new(self.dst_router.get(), self.dst_host.get())
    }

    /// Claimed source address. Only the end-to-end seal proves it.
    pub fn src(&self) -> Address {
        Address::new(self.src_router.get(), self.src_host.get())
    }

    pub fn class(&self) -> TrafficClass {
        if self.class == TrafficClass::Control as u8 {
            TrafficClass::Control
        } else {
            TrafficClass::Bulk
        }
    }

    pub fn mark(&self) -> CongestionMark {
        if self.mark == CongestionMark::Congested as u8 {
            CongestionMark::Congested
        } else {
            CongestionMark::Clear
        }
    }

    /// Number of hops that the cell may still take.
    pub fn hop_limit(&self) -> u8 {
        self.hop_limit
    }
}
