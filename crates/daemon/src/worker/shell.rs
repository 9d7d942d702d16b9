//! The daemon's implementation of [`Shell`]: sockets, interface, and channels between threads.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use shoal_crypto::StandardCiphers;
use shoal_node::{Control, PARCELS, Parcel, RING, Shell, WorkerMessage, WorkerRings};

use crate::net::ports::{NodeSockets, sum_received, sum_sent};
use crate::net::receive::{self, ReceiveCounters};
use crate::net::send::SendCounters;
use crate::tun::device::Tun;
use crate::tun::firewall::SharedFlows;
use crate::worker::wake::{Waker, WakingInbox, WakingOutlet, channel};

/// The types of this shell.
pub struct Daemon;

pub type DaemonNode = Control<Daemon>;

impl Shell for Daemon {
    type Ciphers = StandardCiphers;
    type Sink = NodeSockets;
    type TunQueue = Tun;
    type Flows = SharedFlows;
    type WorkerRings = Channels;
    type Sockets = SocketCounters;
}

/// Counters of a worker's sockets since the start.
#[derive(Clone, Copy, Debug, Default)]
pub struct SocketCounters {
    pub received: ReceiveCounters,
    pub sent: SendCounters,
}

impl SocketCounters {
    pub fn of(ports: &NodeSockets, receivers: &[receive::DatagramReceiver]) -> SocketCounters {
        SocketCounters { received: sum_received(receivers), sent: sum_sent(ports) }
    }

    pub fn plus(&self, more: &SocketCounters) -> SocketCounters {
        let SocketCounters { received, sent } = more;
        SocketCounters { received: self.received.plus(received), sent: self.sent.plus(sent) }
    }
}

/// Bounded channels between threads. Messages wake their receiver; emptied parcels return without
/// waking anybody.
pub struct Channels {
    /// Channels by the receiving worker's number.
    outlets: Vec<WakingOutlet<WorkerMessage<Daemon>>>,
    homes: Vec<SyncSender<Box<Parcel>>>,
    empty: Receiver<Box<Parcel>>,
}

impl Channels {
    /// Creates channels between as many workers as there are wakers, and the workers' inboxes.
    pub fn between(
        wakers: &[std::sync::Arc<Waker>],
    ) -> (Vec<Channels>, Vec<WakingInbox<WorkerMessage<Daemon>>>) {
        let (outlets, inboxes): (Vec<_>, Vec<_>) =
            wakers.iter().map(|waker| channel(RING, waker)).unzip();
        let (homes, empties): (Vec<_>, Vec<_>) =
            wakers.iter().map(|_| sync_channel(PARCELS)).unzip();
        let of = |empty| Channels { outlets: outlets.clone(), homes: homes.clone(), empty };
        (empties.into_iter().map(of).collect(), inboxes)
    }
}

impl WorkerRings<Daemon> for Channels {
    fn try_send(
        &mut self,
        to: u8,
        message: WorkerMessage<Daemon>,
    ) -> Option<WorkerMessage<Daemon>> {
        self.outlets[usize::from(to)].try_send(message).err()
    }

    fn send(&mut self, to: u8, message: WorkerMessage<Daemon>) -> bool {
        self.outlets[usize::from(to)].send(message).is_ok()
    }

    fn give_back(&mut self, parcel: Box<Parcel>) {
        // A worker that has ended needs no parcels.
        let _gone = self.homes[usize::from(parcel.by)].try_send(parcel);
    }

    fn take_back(&mut self) -> Option<Box<Parcel>> {
        self.empty.try_recv().ok()
    }
}
