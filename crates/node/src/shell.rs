//! The interface to a node's shell: sockets, the interface's queues, rings between workers.

use shoal_crypto::Ciphers;
use shoal_ip::BufferSlice;
use shoal_relay::FrameSink;

use crate::firewall::SharedFlowTable;
use crate::queue::InterfaceQueue;
use crate::rings::{Parcel, WorkerMessage};

/// The types that a shell provides to a node.
pub trait Shell: Sized {
    /// The ciphers of the node.
    type Ciphers: Ciphers;
    /// Sends the node's frames.
    type Sink: FrameSink;
    /// One queue of the virtual interface.
    type TunQueue: TunQueue;
    /// The firewall's table of flows.
    type Flows: SharedFlowTable;
    /// A worker's connection to the other workers.
    type WorkerRings: WorkerRings<Self>;
    /// The shell's counters of a worker's sockets, for control.
    type Sockets: Clone + Default;
}

/// The super-frames that the interface and a node exchange. A super-frame is several packets of one
/// flow behind one header, which are cut later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TunOffloads {
    /// TCP super-frames, and partial checksums.
    pub tcp: bool,
    /// UDP super-frames (Linux 6.2).
    pub udp: bool,
}

/// A worker's queue of the interface.
pub type NodeQueue<S> = InterfaceQueue<<S as Shell>::TunQueue, <S as Shell>::Flows>;

/// One queue of the interface. Each packet or super-frame follows a `virtio_net_hdr`.
pub trait TunQueue {
    /// The super-frames that the queue reads and writes.
    fn offloads(&self) -> TunOffloads;
    /// Reads one packet or super-frame into `buf`. None if the queue is empty.
    fn read(&mut self, buf: &mut [u8]) -> Option<usize>;
    /// Writes one packet or super-frame: `head`, then pieces of `buf`. Returns true if it was
    /// accepted.
    fn write(&mut self, head: &[u8], buf: &[u8], pieces: &[BufferSlice]) -> bool;
}

/// A worker's connection to the others. Worker 0 is control. Messages from one worker to another
/// arrive once and in order.
pub trait WorkerRings<S: Shell> {
    /// Sends a message. Returns it if there is no room or the worker is gone. Parcels always have
    /// room ([`crate::RING`]).
    fn try_send(&mut self, to: u8, message: WorkerMessage<S>) -> Option<WorkerMessage<S>>;
    /// Sends a message that must not be lost, and waits until there is room. Returns false if the
    /// worker is gone.
    fn send(&mut self, to: u8, message: WorkerMessage<S>) -> bool;
    /// Returns a parcel to the worker that filled it. There is always room.
    fn give_back(&mut self, parcel: Box<Parcel>);
    /// Takes a returned parcel of this worker.
    fn take_back(&mut self) -> Option<Box<Parcel>>;
}
