//! Offsets within frames: the routed header, and the end-to-end plaintext, which is sealed and
//! opened in place.

use shoal_wire::leg::{self, CellShape};
use shoal_wire::{
    Address, CongestionMark, DropReason, LinkId, LinkKind, RoutedHeader, SizeClass, TAG_LEN,
    TrafficClass, edge, link,
};
use zerocopy::IntoBytes;

/// Offset of a cell's payload in its frame.
pub(crate) const CELL_AT: usize = link::CELL_AT;
/// Offset of the end-to-end plaintext in its frame; it starts with the kind byte.
pub(crate) const PLAIN_AT: usize = CELL_AT + edge::KIND_AT;

/// Layout of a cell within its frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CellLayout {
    frame_len: u16,
    /// Offset of the part that the two hosts seal for each other; it starts with the session
    /// header.
    sealed_at: u16,
    /// Length of that part in bytes, session header and tag included.
    sealed_len: u16,
}

impl CellLayout {
    /// A cell that is routed by the hosts' addresses.
    pub(crate) const fn cell(class: SizeClass) -> CellLayout {
        CellLayout {
            frame_len: class.frame_len() as u16,
            sealed_at: CELL_AT as u16,
            sealed_len: class.cell_len() as u16,
        }
    }

    /// A host unit in a leg cell of this shape.
    pub(crate) const fn unit(shape: CellShape) -> CellLayout {
        CellLayout {
            frame_len: SizeClass::Full.frame_len() as u16,
            sealed_at: (CELL_AT + leg::BODY_AT) as u16,
            sealed_len: shape.unit_len() as u16,
        }
    }

    /// True for a host unit.
    pub(crate) const fn is_unit(self) -> bool {
        self.sealed_at as usize != CELL_AT
    }

    pub(crate) const fn frame_len(self) -> usize {
        self.frame_len as usize
    }

    /// Offset of the sealed part in the frame.
    pub(crate) const fn sealed_at(self) -> usize {
        self.sealed_at as usize
    }

    /// Length of the sealed part in bytes, session header and tag included.
    pub(crate) const fn sealed_len(self) -> usize {
        self.sealed_len as usize
    }

    /// Offset of the plaintext in the frame; it starts with the kind byte.
    pub(crate) const fn plain_at(self) -> usize {
        self.sealed_at() + edge::KIND_AT
    }

    /// Length of the plaintext in bytes, kind byte included.
    pub(crate) const fn plain_len(self) -> usize {
        self.sealed_len() - edge::OVERHEAD
    }
}

/// Cells for this host, in the buffer in which they arrived, all of one length. The link's seal is
/// open; the routed headers are still there.
pub struct InboundCells<'a> {
    pub buf: &'a mut [u8],
    /// Offset of each frame in `buf`.
    pub offsets: &'a [u32],
    /// Length of each frame in bytes.
    pub frame_len: usize,
    /// Link over which each cell came. Empty if the links are not known.
    pub from: &'a [LinkId],
    /// The worker that handed the cells off, if one did.
    pub by: Option<u8>,
}

impl<'a> InboundCells<'a> {
    /// Cells from unknown links.
    pub fn new(buf: &'a mut [u8], offsets: &'a [u32], frame_len: usize) -> InboundCells<'a> {
        InboundCells { buf, offsets, frame_len, from: &[], by: None }
    }

    /// Frame number `index`.
    pub(crate) fn frame(&mut self, index: usize) -> &mut [u8] {
        let at = self.offsets[index] as usize;
        &mut self.buf[at..at + self.frame_len]
    }
}

/// Writes the routed header of the frame that starts at `at`.
pub(crate) fn address_cell(
    buf: &mut [u8],
    at: usize,
    dst: Address,
    src: Address,
    class: TrafficClass,
) {
    let header = RoutedHeader::new(dst, src, class);
    let place = at + link::ROUTED_AT..at + link::CELL_AT;
    buf[place].copy_from_slice(header.as_bytes());
}

/// The end-to-end plaintext of the frame that starts at `at`.
pub(crate) fn plain(buf: &mut [u8], at: usize, form: CellLayout) -> &mut [u8] {
    let at = at + form.plain_at();
    &mut buf[at..at + form.plain_len()]
}

/// Overwrites the space of the end-to-end seal in cells for a direct link, so that no old bytes of
/// the buffer are sent. Its first byte carries the cell's flow number to the relay, which removes
/// it.
pub(crate) fn unseal(buf: &mut [u8], payloads: &[u32], cell_len: usize, flows: &[u8]) {
    for (i, &at) in payloads.iter().enumerate() {
        let cell = &mut buf[at as usize..at as usize + cell_len];
        cell[..edge::KIND_AT].fill(0);
        cell[cell_len - TAG_LEN..].fill(0);
        cell[0] = flows.get(i).copied().unwrap_or(0);
    }
}

/// True if the frame came over a direct link, without an end-to-end seal.
pub(crate) fn is_direct(buf: &[u8], at: u32) -> bool {
    buf[at as usize + link::KIND_AT] == LinkKind::Direct as u8
}

/// True if a router marked the frame because of congestion.
pub(crate) fn is_congested(frame: &[u8]) -> bool {
    frame[link::ROUTED_AT + RoutedHeader::MARK_AT] == CongestionMark::Congested as u8
}

/// The source address in the routed header of a frame.
pub(crate) fn source(frame: &[u8]) -> Result<Address, DropReason> {
    RoutedHeader::parse(&frame[link::ROUTED_AT..]).map(|header| header.src())
}
