//! Frames under construction: routed header and end-to-end plaintext in the place where they leave.

use shoal_wire::{Address, RoutedHeader, SizeClass, TrafficClass, edge, link};
use zerocopy::IntoBytes;

/// Where a cell's payload starts in its frame.
pub(crate) const CELL_AT: usize = link::CELL_AT;
/// Where the end-to-end plaintext starts in its frame: the kind byte.
pub(crate) const PLAIN_AT: usize = CELL_AT + edge::KIND_AT;

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
pub(crate) fn plain(buf: &mut [u8], at: usize, class: SizeClass) -> &mut [u8] {
    &mut buf[at + PLAIN_AT..at + PLAIN_AT + class.edge_len()]
}
