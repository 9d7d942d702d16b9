//! Kernel and processor features in use, and the work of one of several workers.

use serde::{Deserialize, Serialize};

/// Offloads and buffers of the kernel that are in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct OffloadStatus {
    /// UDP segmentation: many frames leave with one call.
    pub gso: bool,
    /// UDP receive coalescing: many frames arrive with one call.
    pub gro: bool,
    /// AES instructions of the processor.
    pub aes: bool,
    /// Receive buffer of the sockets in bytes as granted.
    pub receive_buffer: u64,
    /// Send buffer of the sockets in bytes as granted.
    pub send_buffer: u64,
}

/// The processor, and the suites that sessions may have.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SuiteStatus {
    /// Class of the processor, by its AES instructions.
    pub processor: String,
    /// Names of the suites, the fastest on this processor first.
    pub suites: Vec<String>,
}

/// Work of one of several workers since the start.
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

/// Counters of frames and bytes, both directions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FrameTraffic {
    /// Frames received and opened.
    pub frames_in: u64,
    /// Frames sent.
    pub frames_out: u64,
    /// Bytes of UDP payload received.
    pub bytes_in: u64,
    /// Bytes of UDP payload sent.
    pub bytes_out: u64,
}
