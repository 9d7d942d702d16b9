//! Files that are sent and received: who asked, which descriptors, the threads that touch disks.
//! Reading and writing may live here; pacing and what to send again is `shoal-transfer`'s.

pub mod disk;
mod holes;
pub mod reading;
pub(crate) mod transfers;
