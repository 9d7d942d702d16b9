//! Sent and received files: the programs' requests, their descriptors, and the threads that use
//! disks.
//! This module reads and writes; `shoal-transfer` decides on pace and retransmission.

pub mod disk;
mod holes;
pub mod reading;
pub(crate) mod transfers;
