//! Sockets: batches of datagrams in and out, and the resolution of named endpoints.
//! Code here handles addresses, errors of the kernel and segmentation offload, but never the
//! content of a datagram.

pub(crate) mod filter;
pub(crate) mod lookups;
pub(crate) mod mapping;
pub mod ports;
pub mod receive;
pub mod resolve;
pub mod send;
pub mod socket;
