//! The thread of a worker after the first. It has sockets on the node's ports, among which the
//! kernel spreads arriving datagrams, and a queue of the interface, if there is one.
//!
//! Each turn handles other workers' messages, and receives one batch per socket and runs it to
//! completion. Then it sends programs' packets and due held cells, hands frames to other workers,
//! and reports to control. Nothing in a turn blocks.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;
use shoal_node::{Worker, WorkerMessage};

use crate::net::ports::NodeSockets;
use crate::net::receive::DatagramReceiver;
use crate::worker::clock::BootClock;
use crate::worker::ready::InterfacePause;
use crate::worker::shell::{Daemon, SocketCounters};
use crate::worker::wake::WakingInbox;

/// Turns that check only the sockets while every receive returns a full batch.
const HURRIED_TURNS: u32 = 4;
/// Maximum number of messages handled in one turn.
const TAKEN_MAX: usize = 64;

/// The thread's state.
pub struct ForwardingWorker {
    pub worker: Worker<Daemon>,
    pub ports: NodeSockets,
    /// Receive buffers, one per socket.
    pub receivers: Vec<DatagramReceiver>,
    /// Messages of other workers.
    pub inbox: WakingInbox<WorkerMessage<Daemon>>,
    pub clock: BootClock,
    /// True if the thread must end. The inbox's waker wakes it.
    pub stop: Arc<AtomicBool>,
    /// Successive turns in which every receive returned a full batch.
    pub hurried: u32,
    /// The pause for an interface that is gone.
    pub(super) absence: InterfacePause,
}

/// Result of a wait.
#[derive(Default)]
struct ForwarderReady {
    readable: u32,
    errors: u32,
    waker: bool,
    interface: bool,
    /// True if the interface was polled and no packet waits there.
    drained: bool,
}

impl ForwardingWorker {
    /// Runs until it is told to stop.
    pub fn run(mut self) {
        while !self.stop.load(Ordering::Acquire) {
            let Some(ready) = self.wait() else { return };
            if self.inbox.waker().answer(ready.waker) {
                self.take_in();
            }
            let mut more = false;
            for index in 0..self.receivers.len() {
                if ready.errors & (1 << index) != 0 {
                    self.ports.drain_errors(index);
                }
                if ready.readable & (1 << index) != 0 && !self.worker.is_full() {
                    more |= self.receive(index);
                }
            }
            if ready.drained {
                self.worker.note_no_packets();
            }
            if ready.interface {
                let now = self.clock.now();
                self.worker.handle_packets(now, self.ports.at(now));
            }
            let now = self.clock.now();
            self.worker.handle_timeout(now, self.ports.at(now));
            self.hurried = if more { self.hurried + 1 } else { 0 };
            let ForwardingWorker { worker, ports, receivers, clock, .. } = &mut self;
            worker.drive(clock.now(), || SocketCounters::of(ports, receivers));
        }
    }

    /// Waits. Returns the sockets with datagrams or errors, and whether the waker and the interface
    /// are ready.
    fn wait(&mut self) -> Option<ForwarderReady> {
        let all = (1u32 << self.receivers.len()) - 1;
        if self.hurried > 0 && !self.hurried.is_multiple_of(HURRIED_TURNS) {
            let readable = all;
            return Some(ForwarderReady { readable, interface: true, ..ForwarderReady::default() });
        }
        let (waits, full) = (self.worker.packets_wait(), self.worker.is_full());
        let due = self.worker.poll_timeout();
        let now = self.clock.now();
        let sleep = match due {
            _ if self.hurried > 0 => Some(Duration::ZERO),
            Some((at, _)) => Some(at.since(now)),
            None => None,
        };
        let absent = self.absence.left(now).filter(|_| self.worker.queue().is_some());
        let sleep = absent.map_or(sleep, |most| Some(sleep.map_or(most, |sleep| sleep.min(most))));
        let waits = waits || absent.is_some();
        let arrivals = if full { PollFlags::empty() } else { PollFlags::POLLIN };
        let mut fds: Vec<PollFd<'_>> = (0..self.ports.count())
            .map(|index| PollFd::new(self.ports.poll_on(index).0, arrivals))
            .collect();
        fds.push(PollFd::new(self.inbox.waker().fd(), PollFlags::POLLIN));
        if let Some(queue) = self.worker.queue().filter(|_| !waits) {
            fds.push(PollFd::new(queue.device().fd(), PollFlags::POLLIN));
        }
        match ppoll(&mut fds, sleep.map(TimeSpec::from), None) {
            Ok(_) | Err(nix::Error::EINTR) => {}
            Err(error) => {
                tracing::error!("waiting for the sockets failed: {error}");
                return None;
            }
        }
        let has = |fd: &PollFd<'_>, flag| fd.revents().is_some_and(|found| found.intersects(flag));
        let bits = |flag| {
            let set = fds.iter().enumerate().filter(|(_, fd)| has(fd, flag));
            set.fold(0u32, |bits, (at, _)| bits | 1 << at)
        };
        let readable = bits(PollFlags::POLLIN | PollFlags::POLLERR);
        let waker = 1 << self.ports.count();
        let gone = fds.get(self.ports.count() + 1).is_some_and(InterfacePause::is_told);
        let interface = readable & waker << 1 != 0 && !gone;
        let drained = fds.len() > self.ports.count() + 1 && !interface;
        if gone {
            self.absence.note(now);
        }
        Some(ForwarderReady {
            readable: readable & all,
            errors: bits(PollFlags::POLLERR) & all,
            waker: readable & waker != 0,
            interface,
            drained,
        })
    }

    /// Handles messages of other workers.
    fn take_in(&mut self) {
        for _ in 0..TAKEN_MAX {
            let Some(message) = self.inbox.take() else { return };
            let now = self.clock.now();
            self.worker.handle_message(now, self.ports.at(now), message);
        }
        self.inbox.waker().wake();
    }

    /// Receives one batch and runs it to completion. True if more may wait.
    fn receive(&mut self, index: usize) -> bool {
        let receiver = &mut self.receivers[index];
        let full = match self.ports.receive(index, receiver) {
            Ok(full) => full,
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => return false,
            Err(_) => return true,
        };
        let now = self.clock.now();
        for (reason, n) in receiver.take_drops() {
            self.worker.count_drop(reason, n);
        }
        let (buffer, incoming) = receiver.batch();
        self.worker.handle_datagrams(now, self.ports.at(now), buffer, incoming);
        full
    }
}
