//! The thread of a worker after the first, with sockets of its own on the node's ports, among which
//! the kernel spreads what arrives, and a queue of its own of the interface, if there is one.
//!
//! Each turn: take in what other workers handed over, receive one batch per socket and run it to
//! completion, send what programs want sent and held cells whose time has come, hand on what others
//! must finish, tell control what came and went. Nothing in a turn blocks.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;
use shoal_node::{Message, Worker};

use crate::net::ports::Ports;
use crate::net::receive::Receiver;
use crate::worker::clock::Clock;
use crate::worker::ready::Absence;
use crate::worker::shell::{Daemon, SocketCounters};
use crate::worker::wake::Inbox;

/// Turns without looking at anything but the sockets while every receive comes back full.
const HURRIED_TURNS: u32 = 4;
/// Messages taken in per turn.
const TAKEN_MAX: usize = 64;

/// The thread's state.
pub struct Forwarding {
    /// The machine.
    pub worker: Worker<Daemon>,
    /// Its sockets.
    pub ports: Ports,
    /// Receive buffers, one per socket.
    pub receivers: Vec<Receiver>,
    /// What other workers handed over.
    pub inbox: Inbox<Message<Daemon>>,
    /// Time for the machine.
    pub clock: Clock,
    /// Says that the thread is to end; the inbox' waker wakes it.
    pub stop: Arc<AtomicBool>,
    /// Turns in a row that found every receive full.
    pub hurried: u32,
    /// The pause for an interface that is gone.
    pub(super) absence: Absence,
}

/// What a wait found.
#[derive(Default)]
struct Ready {
    readable: u32,
    errors: u32,
    waker: bool,
    interface: bool,
    /// The interface was polled, and nothing waits there.
    drained: bool,
}

impl Forwarding {
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
            let Forwarding { worker, ports, receivers, clock, .. } = &mut self;
            worker.drive(clock.now(), || SocketCounters::of(ports, receivers));
        }
    }

    /// Waits; says which sockets have datagrams or errors, and whether waker and interface have
    /// something.
    fn wait(&mut self) -> Option<Ready> {
        let all = (1u32 << self.receivers.len()) - 1;
        if self.hurried > 0 && !self.hurried.is_multiple_of(HURRIED_TURNS) {
            let readable = all;
            return Some(Ready { readable, interface: true, ..Ready::default() });
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
        let gone = fds.get(self.ports.count() + 1).is_some_and(Absence::is_told);
        let interface = readable & waker << 1 != 0 && !gone;
        let drained = fds.len() > self.ports.count() + 1 && !interface;
        if gone {
            self.absence.note(now);
        }
        Some(Ready {
            readable: readable & all,
            errors: bits(PollFlags::POLLERR) & all,
            waker: readable & waker != 0,
            interface,
            drained,
        })
    }

    /// What other workers handed over.
    fn take_in(&mut self) {
        for _ in 0..TAKEN_MAX {
            let Some(message) = self.inbox.take() else { return };
            let now = self.clock.now();
            self.worker.handle_message(now, self.ports.at(now), message);
        }
        self.inbox.waker().wake();
    }

    /// Receives one batch and runs it to completion; says whether more may wait.
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
