//! One of several workers, as the status shows it.

use serde::{Deserialize, Serialize};

/// What one of several workers did since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WorkerTraffic {
    /// Frames that its sockets received.
    pub frames_in: u64,
    /// Frames that it sent.
    pub frames_out: u64,
    /// Cells that it passed on between neighbours.
    pub cells_transit: u64,
    /// Packets of programs that it sent from its queue of the interface.
    #[serde(default)]
    pub packets_read: u64,
    /// Packets of other hosts that it wrote into its queue of the interface.
    #[serde(default)]
    pub packets_written: u64,
}
