//! Sockets: batches of datagrams in and out, and where names of endpoints lead.
//! Addresses, errors of the kernel and segmentation offload may live here, and nothing of what a
//! datagram holds.

pub(crate) mod filter;
pub(crate) mod lookups;
pub(crate) mod mapping;
pub mod ports;
pub mod receive;
pub mod send;
pub mod socket;
