//! The first worker's side of several: threads, orders, what they hand over.

use std::sync::Arc;
use std::thread::JoinHandle;

use anyhow::Context;
use shoal_relay::Counters;
use shoal_wire::Time;

use crate::net::ports::Ports;
use crate::net::receive::Receiver;
use crate::tun::interface::Interface;
use crate::worker::clock::Clock;
use crate::worker::forwarder::Forwarding;
use crate::worker::machines::Machines;
use crate::worker::rings::{Message, Outbox, RING, Told};
use crate::worker::wake::{Bell, Inbox, Outlet, channel};

/// Messages taken in per turn.
const TAKEN_MAX: usize = 256;

/// The other workers.
pub struct Crew {
    threads: Vec<JoinHandle<()>>,
    inbox: Inbox<Message>,
    /// To each of them.
    outlets: Vec<Outlet<Message>>,
    /// What each has counted and its sockets did since the start; the first one is worker 1.
    told: Vec<Told>,
    broken: bool,
}

impl Crew {
    /// Starts a thread per pair of sockets and receive buffers, if there are any. `bell` wakes the
    /// first worker.
    pub fn start(
        clock: Clock,
        machines: &mut Machines,
        sockets: Vec<(Ports, Vec<Receiver>)>,
        bell: &Arc<Bell>,
    ) -> anyhow::Result<Option<Crew>> {
        if sockets.is_empty() {
            return Ok(None);
        }
        let (to_first, inbox) = channel(RING, bell);
        let (mut outlets, mut inboxes) = (vec![to_first], Vec::new());
        for _ in &sockets {
            let bell = Bell::new().context("can't make an event descriptor")?;
            let (outlet, inbox) = channel(RING, &bell);
            outlets.push(outlet);
            inboxes.push(inbox);
        }
        let told = vec![Told::default(); sockets.len()];
        machines.outbox = Some(Outbox::new(0, outlets.clone()));
        let mut threads = Vec::new();
        let queues = machines.interface.as_mut().map(Interface::take_more).unwrap_or_default();
        let mut queues = queues.into_iter();
        for ((number, sockets), inbox) in (1u8..).zip(sockets).zip(inboxes) {
            let forwarder = machines.relay.forwarder(number);
            let outbox = Outbox::new(number, outlets.clone());
            let mut worker = Forwarding::new(number, clock, forwarder, sockets, inbox, outbox);
            if let Some(queue) = queues.next() {
                worker.serve(machines.edge.worker(number), queue);
            }
            let thread = std::thread::Builder::new()
                .name(format!("shoal-worker-{number}"))
                .spawn(move || worker.run())
                .with_context(|| format!("can't start worker {number}"))?;
            threads.push(thread);
        }
        outlets.remove(0);
        Ok(Some(Crew { threads, inbox, outlets, told, broken: false }))
    }

    /// Takes in what the others handed over; says whether more may wait.
    pub fn take_in(&mut self, now: Time, machines: &mut Machines) -> bool {
        for _ in 0..TAKEN_MAX {
            match self.inbox.take() {
                None => return false,
                Some(Message::Parcel(mut parcel)) => {
                    machines.handle_parcel(now, &mut parcel);
                    parcel.back();
                }
                Some(Message::Note(note)) => machines.handle_note(now, &note),
                Some(Message::HostNote(note)) => machines.handle_host_note(now, &note),
                Some(Message::Told(worker, told)) => {
                    machines.relay.add_counters(&told.counters);
                    if let Some(known) = self.told.get_mut(usize::from(worker).wrapping_sub(1)) {
                        known.counters.add(&told.counters);
                        (known.received, known.sent) = (told.received, told.sent);
                        known.packets = told.packets;
                    }
                }
                // For the others only.
                Some(
                    Message::Order(_) | Message::HostOrder(_) | Message::Gate(_) | Message::Stop,
                ) => {}
            }
        }
        true
    }

    /// Gives the orders that are due, then the frames. To be called at the end of every turn.
    pub fn give_orders(&mut self, machines: &mut Machines) {
        let Machines { relay, edge, interface, outbox, .. } = machines;
        let Some(outbox) = outbox else { return };
        // The gate first: whoever is off the list passes no more, even where its keys are left.
        if let Some(gate) = interface.as_mut().and_then(Interface::poll_gate) {
            for worker in 1..=self.threads.len() as u8 {
                self.broken |= !outbox.tell(worker, Message::Gate(Arc::clone(&gate)));
            }
        }
        while let Some((worker, order)) = edge.poll_order() {
            self.broken |= !outbox.tell(worker, Message::HostOrder(order));
        }
        while let Some((worker, order)) = relay.poll_order() {
            self.broken |= !outbox.tell(worker, Message::Order(order));
        }
        outbox.flush();
    }

    /// One of them is gone, and what it held with it.
    pub fn is_broken(&self) -> bool {
        self.broken || self.threads.iter().any(JoinHandle::is_finished)
    }

    /// What each of the others has done, from worker 1 on.
    pub fn told(&self) -> &[Told] {
        &self.told
    }

    /// What the first worker has done alone.
    pub fn rest_of(&self, all: &Counters) -> shoal_relay::Traffic {
        let mut rest = all.traffic;
        for Told { counters, .. } in &self.told {
            rest.frames_in -= counters.traffic.frames_in;
            rest.frames_out -= counters.traffic.frames_out;
            rest.cells_transit -= counters.traffic.cells_transit;
        }
        rest
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        for outlet in self.outlets.drain(..) {
            let _gone = outlet.send(Message::Stop);
        }
        for thread in self.threads.drain(..) {
            let _panicked = thread.join();
        }
    }
}
