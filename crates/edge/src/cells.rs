//! Frames in buffers: offsets of the routed header and of the end-to-end plaintext, which is sealed
//! and opened in place.

use shoal_wire::leg::{self, Shape};
use shoal_wire::{
    Address, DropReason, LinkId, LinkKind, Mark, RoutedHeader, SizeClass, TAG_LEN, TrafficClass,
    edge, link,
};
use zerocopy::IntoBytes;

/// Where a cell's payload starts in its frame.
pub(crate) const CELL_AT: usize = link::CELL_AT;
/// Where the end-to-end plaintext starts in its frame: the kind byte.
pub(crate) const PLAIN_AT: usize = CELL_AT + edge::KIND_AT;

/// How a cell stands in its frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Form {
    frame_len: u16,
    /// Where what the host pair seals starts, session header first,
    sealed_at: u16,
    /// and how long it is.
    sealed_len: u16,
}

impl Form {
    /// A cell that is routed by the hosts' addresses.
    pub(crate) const fn cell(class: SizeClass) -> Form {
        Form {
            frame_len: class.frame_len() as u16,
            sealed_at: CELL_AT as u16,
            sealed_len: class.cell_len() as u16,
        }
    }

    /// A host unit in a leg cell of this shape.
    pub(crate) const fn unit(shape: Shape) -> Form {
        Form {
            frame_len: SizeClass::Full.frame_len() as u16,
            sealed_at: (CELL_AT + leg::BODY_AT) as u16,
            sealed_len: shape.unit_len() as u16,
        }
    }

    /// Whether it is a host unit.
    pub(crate) const fn is_unit(self) -> bool {
        self.sealed_at as usize != CELL_AT
    }

    /// Bytes of the frame.
    pub(crate) const fn frame_len(self) -> usize {
        self.frame_len as usize
    }

    /// Where what is sealed starts in the frame.
    pub(crate) const fn sealed_at(self) -> usize {
        self.sealed_at as usize
    }

    /// Bytes that are sealed, session header and tag included.
    pub(crate) const fn sealed_len(self) -> usize {
        self.sealed_len as usize
    }

    /// Where the plaintext starts in the frame: its kind byte.
    pub(crate) const fn plain_at(self) -> usize {
        self.sealed_at() + edge::KIND_AT
    }

    /// Bytes of the plaintext, kind byte included.
    pub(crate) const fn plain_len(self) -> usize {
        self.sealed_len() - edge::OVERHEAD
    }
}

/// Cells for this host in the buffer in which they arrived, all of one length. The link's seal is
/// open; the routed headers are in place.
pub struct Cells<'a> {
    /// The buffer.
    pub buf: &'a mut [u8],
    /// Where their frames start.
    pub offsets: &'a [u32],
    /// Bytes of each frame.
    pub frame_len: usize,
    /// The link that each came over; empty where that is not known.
    pub from: &'a [LinkId],
    /// The worker that handed the cells off, if one did.
    pub by: Option<u8>,
}

impl<'a> Cells<'a> {
    /// Cells whose links are not known.
    pub fn new(buf: &'a mut [u8], offsets: &'a [u32], frame_len: usize) -> Cells<'a> {
        Cells { buf, offsets, frame_len, from: &[], by: None }
    }

    /// The frame of one of them.
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
pub(crate) fn plain(buf: &mut [u8], at: usize, form: Form) -> &mut [u8] {
    let at = at + form.plain_at();
    &mut buf[at..at + form.plain_len()]
}

/// Overwrites the space of the end-to-end seals of direct cells, so that old bytes of the buffer
/// don't leave. It holds each cell's flow number for the relay, which removes it.
pub(crate) fn unseal(buf: &mut [u8], payloads: &[u32], cell_len: usize, flows: &[u8]) {
    for (i, &at) in payloads.iter().enumerate() {
        let cell = &mut buf[at as usize..at as usize + cell_len];
        cell[..edge::KIND_AT].fill(0);
        cell[cell_len - TAG_LEN..].fill(0);
        cell[0] = flows.get(i).copied().unwrap_or(0);
    }
}

/// Whether a frame came over the link with its host, without an end-to-end seal.
pub(crate) fn is_direct(buf: &[u8], at: u32) -> bool {
    buf[at as usize + link::KIND_AT] == LinkKind::Direct as u8
}

/// Whether a frame met congestion on its way.
pub(crate) fn is_congested(frame: &[u8]) -> bool {
    frame[link::ROUTED_AT + RoutedHeader::MARK_AT] == Mark::Congested as u8
}

/// The source address in the routed header of a frame.
pub(crate) fn source(frame: &[u8]) -> Result<Address, DropReason> {
    RoutedHeader::parse(&frame[link::ROUTED_AT..]).map(|header| header.src())
}
