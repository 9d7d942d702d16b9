//! The first worker's side of several: threads, orders, what they hand over.

use std::thread::JoinHandle;

use anyhow::Context;
use shoal_relay::Counters;
use shoal_wire::Time;

use crate::clock::Clock;
use crate::forwarder::Forwarding;
use crate::machines::Machines;
use crate::ports::Ports;
use crate::receive::Receiver;
use crate::rings::{Message, Outbox, RING, Told};
use crate::wake::{Bell, Inbox, channel};
use std::sync::Arc;

/// Messages taken in per turn.
const TAKEN_MAX: usize = 256;

/// The other workers.
pub struct Crew {
    threads: Vec<JoinHandle<()>>,
    inbox: Inbox<Message>,
    outbox: Outbox,
    /// What each has counted and its sockets did since the start; the first one is worker 1.
    told: Vec<Told>,
    broken: bool,
}

impl Crew {
    /// Starts a thread per pair of sockets and receive buffers, if there are any. `bell` wakes the
    /// first worker.
    pub fn start(
        clock: Clock,
        machines: &Machines,
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
        let outbox = Outbox::new(0, outlets.clone());
        let mut threads = Vec::new();
        for ((number, sockets), inbox) in (1u8..).zip(sockets).zip(inboxes) {
            let forwarder = machines.relay.forwarder(number);
            let outbox = Outbox::new(number, outlets.clone());
            let worker = Forwarding::new(number, clock, forwarder, sockets, inbox, outbox);
            let thread = std::thread::Builder::new()
                .name(format!("shoal-worker-{number}"))
                .spawn(move || worker.run())
                .with_context(|| format!("can't start worker {number}"))?;
            threads.push(thread);
        }
        Ok(Some(Crew { threads, inbox, outbox, told, broken: false }))
    }

    /// Hands on what of the last batch others open.
    pub fn hand_on(
        &mut self,
        machines: &mut Machines,
        buffer: &[u8],
        incoming: &[shoal_relay::Incoming],
    ) {
        let lost = self.outbox.hand_on(buffer, incoming, machines.relay.elsewhere());
        machines.relay.count_lost(lost);
    }

    /// Takes in what the others handed over; says whether more may wait.
    pub fn take_in(&mut self, now: Time, machines: &mut Machines) -> bool {
        for _ in 0..TAKEN_MAX {
            match self.inbox.take() {
                None => return false,
                Some(Message::Parcel(mut parcel)) => {
                    if machines.handle_parcel(now, &mut parcel) {
                        self.hand_on(machines, &parcel.buffer, &parcel.runs);
                    }
                    parcel.back();
                }
                Some(Message::Note(note)) => machines.handle_note(now, &note),
                Some(Message::Told(worker, told)) => {
                    machines.relay.add_counters(&told.counters);
                    if let Some(known) = self.told.get_mut(usize::from(worker).wrapping_sub(1)) {
                        known.counters.add(&told.counters);
                        (known.received, known.sent) = (told.received, told.sent);
                    }
                }
                // For the others only.
                Some(Message::Order(_) | Message::Stop) => {}
            }
        }
        true
    }

    /// Gives the orders that are due, then the frames. To be called at the end of every turn.
    pub fn give_orders(&mut self, machines: &mut Machines) {
        while let Some((worker, order)) = machines.relay.poll_order() {
            self.broken |= !self.outbox.tell(worker, Message::Order(order));
        }
        self.outbox.flush();
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
        for worker in 1..=self.threads.len() as u8 {
            let _gone = self.outbox.tell(worker, Message::Stop);
        }
        for thread in self.threads.drain(..) {
            let _panicked = thread.join();
        }
    }
}
