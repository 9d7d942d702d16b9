//! What a node asks of its shell: sockets, the interface's queue, rings between workers.

use shoal_crypto::Ciphers;
use shoal_ip::Piece;
use shoal_relay::Sink;

use crate::firewall::Flows;
use crate::rings::{Message, Parcel};

/// The types that a shell lends a node.
pub trait Shell: Sized {
    /// The ciphers that the node seals with.
    type Ciphers: Ciphers;
    /// Takes the frames that the node sends.
    type Sink: Sink;
    /// One queue of the interface.
    type Device: Device;
    /// The firewall's table of flows.
    type Flows: Flows;
    /// A worker's way to the others.
    type Rings: Rings<Self>;
    /// What the shell counts of a worker's sockets, for control to know.
    type Sockets: Clone + Default;
}

/// Which super-frames the interface and a node take from each other. A super-frame is several
/// packets of one flow behind one header, which are cut later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TunOffloads {
    /// Super-frames of TCP, and partial checksums.
    pub tcp: bool,
    /// Super-frames of UDP (Linux 6.2).
    pub udp: bool,
}

/// One queue of the interface. Packets and super-frames stand behind a `virtio_net_hdr`.
pub trait Device {
    /// Which super-frames it takes and gives.
    fn offloads(&self) -> TunOffloads;
    /// Reads one packet or super-frame into `buf`; none when none waits.
    fn read(&mut self, buf: &mut [u8]) -> Option<usize>;
    /// Writes one packet or super-frame: `head`, then pieces of `buf`. Says whether it was taken.
    fn write(&mut self, head: &[u8], buf: &[u8], pieces: &[Piece]) -> bool;
}

/// A worker's way to the others; worker 0 is control. Messages from one worker to another arrive
/// once, in the order in which they were sent.
pub trait Rings<S: Shell> {
    /// Sends a message if there is room and the worker is there; gives it back otherwise. There is
    /// always room for parcels ([`crate::RING`]).
    fn try_send(&mut self, to: u8, message: Message<S>) -> Option<Message<S>>;
    /// Sends a message that may not get lost: where there is no room, this waits until there is.
    /// False when the worker is gone.
    fn send(&mut self, to: u8, message: Message<S>) -> bool;
    /// Gives a parcel back to the worker that filled it. There is always room.
    fn give_back(&mut self, parcel: Box<Parcel>);
    /// A parcel of this worker's own that came back.
    fn take_back(&mut self) -> Option<Box<Parcel>>;
}
