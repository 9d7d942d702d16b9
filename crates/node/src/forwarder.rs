//! A worker that only forwards: a thread with sockets of its own on the node's ports, among which
//! the kernel spreads what arrives.
//!
//! Each turn: take in what other workers handed over, receive one batch per socket and run it to
//! completion, hand on what others must finish, tell the first worker what came and went. Nothing
//! in a turn blocks.

use std::time::Duration;

use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;
use shoal_relay::{Arrival, Forwarder};
use shoal_wire::{DropReason, Time};

use crate::clock::Clock;
use crate::ports::{Ports, sum_received, sum_sent};
use crate::receive::Receiver;
use crate::rings::{Kind, Message, Outbox, Told};
use crate::wake::Inbox;

/// How often counters are told while there is traffic.
const TELL_EVERY: Duration = Duration::from_millis(20);
/// How soon what the first worker had no room to hear is told again.
const TELL_AGAIN: Duration = Duration::from_millis(1);
/// Turns without looking at anything but the sockets while every receive comes back full.
const HURRIED_TURNS: u32 = 4;
/// Messages taken in per turn.
const TAKEN_MAX: usize = 64;

/// The thread's state.
pub struct Forwarding {
    number: u8,
    clock: Clock,
    forwarder: Forwarder,
    ports: Ports,
    receivers: Vec<Receiver>,
    inbox: Inbox<Message>,
    outbox: Outbox,
    overflows: u64,
    hurried: u32,
    told_at: Time,
    all_told: bool,
    stop: bool,
}

impl Forwarding {
    /// Ready to run as worker `number`.
    pub fn new(
        number: u8,
        clock: Clock,
        forwarder: Forwarder,
        (ports, receivers): (Ports, Vec<Receiver>),
        inbox: Inbox<Message>,
        outbox: Outbox,
    ) -> Forwarding {
        Forwarding {
            number,
            clock,
            forwarder,
            ports,
            receivers,
            inbox,
            outbox,
            overflows: 0,
            hurried: 0,
            told_at: Time::ZERO,
            all_told: true,
            stop: false,
        }
    }

    /// Runs until the first worker says stop.
    pub fn run(mut self) {
        while !self.stop {
            let Some((readable, errors, rung)) = self.wait() else { return };
            if self.inbox.bell().answer(rung) {
                self.take_in();
            }
            let mut more = false;
            for index in 0..self.receivers.len() {
                if readable & (1 << index) != 0 {
                    more |= self.receive(index, errors & (1 << index) != 0);
                }
            }
            self.hurried = if more { self.hurried + 1 } else { 0 };
            self.outbox.flush();
            self.tell();
        }
    }

    /// Which sockets have something, which of them errors, and whether the bell rang.
    fn wait(&self) -> Option<(u32, u32, bool)> {
        let all = (1u32 << self.receivers.len()) - 1;
        if self.hurried > 0 && !self.hurried.is_multiple_of(HURRIED_TURNS) {
            return Some((all, 0, false));
        }
        let sleep = match (self.hurried > 0, self.all_told, self.forwarder.has_counted()) {
            (true, _, _) => Some(Duration::ZERO),
            (_, false, _) => Some(TELL_AGAIN),
            (_, _, true) => Some(TELL_EVERY),
            _ => None,
        };
        let mut fds: Vec<PollFd<'_>> = (0..self.ports.count())
            .map(|index| PollFd::new(self.ports.poll_on(index).0, PollFlags::POLLIN))
            .collect();
        fds.push(PollFd::new(self.inbox.bell().fd(), PollFlags::POLLIN));
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
        let bell = 1 << self.ports.count();
        Some((readable & all, bits(PollFlags::POLLERR) & all, readable & bell != 0))
    }

    /// What other workers handed over.
    fn take_in(&mut self) {
        for _ in 0..TAKEN_MAX {
            match self.inbox.take() {
                None => return,
                Some(Message::Order(order)) => self.forwarder.handle_order(order),
                Some(Message::Parcel(mut parcel)) => {
                    let now = self.clock.now();
                    self.ports.set_now(now);
                    debug_assert_eq!(parcel.kind, Kind::Raw, "the rest is for the first worker");
                    let from = Arrival::Worker(parcel.by);
                    let (buffer, runs) = (&mut parcel.buffer, &parcel.runs);
                    let (ports, outbox) = (&mut self.ports, &mut self.outbox);
                    self.forwarder.handle_batch(now, buffer, runs, from, ports, outbox);
                    parcel.back();
                }
                Some(Message::Stop) => self.stop = true,
                // For the first worker only.
                Some(Message::Note(_) | Message::Told(..)) => {}
            }
        }
        self.inbox.bell().ring();
    }

    /// Receives one batch and runs it to completion; says whether more may wait.
    fn receive(&mut self, index: usize, errors: bool) -> bool {
        let receiver = &mut self.receivers[index];
        if errors {
            self.ports.drain_errors(index);
        }
        let full = match self.ports.receive(index, receiver) {
            Ok(full) => full,
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => return false,
            Err(_) => {
                self.ports.drain_errors(index);
                return true;
            }
        };
        let now = self.clock.now();
        self.ports.set_now(now);
        let (buffer, incoming) = receiver.batch();
        let (ports, outbox) = (&mut self.ports, &mut self.outbox);
        self.forwarder.handle_batch(now, buffer, incoming, Arrival::Socket, ports, outbox);
        full
    }

    /// Tells the first worker what came and went.
    fn tell(&mut self) {
        let outbox = &self.outbox;
        self.all_told = self.forwarder.tell(|note| outbox.try_tell(0, Message::Note(note)));
        let now = self.clock.now();
        if !self.forwarder.has_counted() || now.since(self.told_at) < TELL_EVERY {
            return;
        }
        let received = sum_received(&self.receivers);
        let lost = received.overflows - self.overflows;
        self.overflows = received.overflows;
        self.forwarder.count_drop(DropReason::ReceiveOverflow, lost);
        let counters = self.forwarder.take_counters();
        let told = Box::new(Told { counters, received, sent: sum_sent(&self.ports) });
        self.told_at = now;
        // Not lost where there is no room: told with what comes later.
        if !self.outbox.try_tell(0, Message::Told(self.number, told.clone())) {
            self.forwarder.put_back(&told.counters);
        }
    }
}
