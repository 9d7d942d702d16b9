//! What the daemon lends a node: its sockets, the interface, and rings between threads.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use shoal_crypto::Standard;
use shoal_node::{Control, Message, PARCELS, Parcel, RING, Rings, Shell};

use crate::net::ports::{Ports, sum_received, sum_sent};
use crate::net::receive::{self, ReceiveCounters};
use crate::net::send::SendCounters;
use crate::tun::device::Tun;
use crate::tun::firewall::SharedFlows;
use crate::worker::wake::{Inbox, Outlet, Waker, channel};

/// The types of this shell.
pub struct Daemon;

/// The daemon's node.
pub type Node = Control<Daemon>;

impl Shell for Daemon {
    type Ciphers = Standard;
    type Sink = Ports;
    type Device = Tun;
    type Flows = SharedFlows;
    type Rings = Channels;
    type Sockets = SocketCounters;
}

/// What a worker's sockets did since the start.
#[derive(Clone, Copy, Debug, Default)]
pub struct SocketCounters {
    /// What they received.
    pub received: ReceiveCounters,
    /// What they sent.
    pub sent: SendCounters,
}

impl SocketCounters {
    /// The counters of these sockets.
    pub fn of(ports: &Ports, receivers: &[receive::Receiver]) -> SocketCounters {
        SocketCounters { received: sum_received(receivers), sent: sum_sent(ports) }
    }

    /// Sum over several workers.
    pub fn plus(&self, more: &SocketCounters) -> SocketCounters {
        let SocketCounters { received, sent } = more;
        SocketCounters { received: self.received.plus(received), sent: self.sent.plus(sent) }
    }
}

/// Bounded channels between threads: for messages, which wake their receiver, and for emptied
/// parcels, which go back without waking anybody.
pub struct Channels {
    /// By worker.
    outlets: Vec<Outlet<Message<Daemon>>>,
    homes: Vec<SyncSender<Box<Parcel>>>,
    empty: Receiver<Box<Parcel>>,
}

impl Channels {
    /// Channels between as many workers as there are wakers, and what each of them takes messages
    /// from.
    pub fn between(
        wakers: &[std::sync::Arc<Waker>],
    ) -> (Vec<Channels>, Vec<Inbox<Message<Daemon>>>) {
        let (outlets, inboxes): (Vec<_>, Vec<_>) =
            wakers.iter().map(|waker| channel(RING, waker)).unzip();
        let (homes, empties): (Vec<_>, Vec<_>) =
            wakers.iter().map(|_| sync_channel(PARCELS)).unzip();
        let of = |empty| Channels { outlets: outlets.clone(), homes: homes.clone(), empty };
        (empties.into_iter().map(of).collect(), inboxes)
    }
}

impl Rings<Daemon> for Channels {
    fn try_send(&mut self, to: u8, message: Message<Daemon>) -> Option<Message<Daemon>> {
        self.outlets[usize::from(to)].try_send(message).err()
    }

    fn send(&mut self, to: u8, message: Message<Daemon>) -> bool {
        self.outlets[usize::from(to)].send(message).is_ok()
    }

    fn give_back(&mut self, parcel: Box<Parcel>) {
        // A worker that is gone needs none.
        let _gone = self.homes[usize::from(parcel.by)].try_send(parcel);
    }

    fn take_back(&mut self) -> Option<Box<Parcel>> {
        self.empty.try_recv().ok()
    }
}
