//! Rings between the workers of one node. The seed chooses the delay of each message; some delays
//! are long. A full ring accepts no notes for a while. Messages of different senders may overtake
//! each other; messages from one worker to another never do.

use core::time::Duration;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use shoal_crypto::{Ciphers, Rng};
use shoal_node::{Parcel, WorkerMessage, WorkerRings};
use shoal_relay::{ForwardingView, WorkerOrder};
use shoal_wire::Time;

use crate::plant::InjectedFault;
use crate::shell::SimulatedShell;

/// Longest delay of most messages, and (`SLOW`) of messages to a busy worker.
const SWIFT: Duration = Duration::from_micros(40);
const SLOW: Duration = Duration::from_millis(4);
/// One message in `SLOW_ONE_IN` is slow. After one note in `FULL_ONE_IN`, the ring is full for a
/// while.
const SLOW_ONE_IN: u64 = 60;
const FULL_ONE_IN: u64 = 40;
/// Time for which a ring is full.
const FULL: Duration = Duration::from_millis(3);
/// Number of parcels before a planted fault strikes.
const TWICE_AFTER: u32 = 20;

/// One direction between two workers.
struct SimulatedRing<C: Ciphers> {
    from: u8,
    to: u8,
    waiting: VecDeque<(Time, WorkerMessage<SimulatedShell<C>>)>,
    full_until: Time,
}

/// All rings of a node.
pub(crate) struct NodeRings<C: Ciphers> {
    now: Time,
    rng: Rng,
    rings: Vec<SimulatedRing<C>>,
    /// Returned parcels, by worker.
    empty: Vec<VecDeque<Box<Parcel>>>,
    plant: Option<InjectedFault>,
    /// Countdown of parcels until a planted fault delivers one twice.
    until_twice: u32,
    /// Worker that will get back one parcel more than it sent.
    twice: Option<u8>,
    /// Old view of the first worker, for a planted fault to send again.
    old_view: Option<Arc<ForwardingView>>,
}

/// One worker's end of the rings.
pub(crate) struct RingEnd<C: Ciphers> {
    worker: u8,
    bundle: Rc<RefCell<NodeRings<C>>>,
}

impl<C: Ciphers> NodeRings<C> {
    /// Rings between `workers` workers, and their ends. A single worker has none.
    pub(crate) fn new(
        workers: u8,
        seed: [u8; 32],
        plant: Option<InjectedFault>,
    ) -> (Rc<RefCell<NodeRings<C>>>, Vec<RingEnd<C>>) {
        let workers = if workers > 1 { workers } else { 0 };
        let of = |to| (0..workers).map(move |from| (from, to));
        let ring = |(from, to)| SimulatedRing {
            from,
            to,
            waiting: VecDeque::new(),
            full_until: Time::ZERO,
        };
        let bundle = Rc::new(RefCell::new(NodeRings {
            now: Time::ZERO,
            rng: Rng::new(seed),
            rings: (0..workers).flat_map(of).map(ring).collect(),
            empty: (0..workers).map(|_| VecDeque::new()).collect(),
            plant,
            until_twice: TWICE_AFTER,
            twice: None,
            old_view: None,
        }));
        let end = |worker| RingEnd { worker, bundle: Rc::clone(&bundle) };
        let ends = (0..workers).map(end).collect();
        (bundle, ends)
    }

    /// The time of what is sent from now on.
    pub(crate) fn set_now(&mut self, now: Time) {
        self.now = now;
    }

    /// Arrival time of the next message.
    pub(crate) fn due(&self) -> Option<Time> {
        self.rings.iter().filter_map(|ring| Some(ring.waiting.front()?.0)).min()
    }

    /// The next message that has arrived, and its receiver.
    pub(crate) fn take(&mut self) -> Option<(u8, WorkerMessage<SimulatedShell<C>>)> {
        let due = self.due().filter(|due| *due <= self.now)?;
        let first =
            |ring: &&mut SimulatedRing<C>| ring.waiting.front().is_some_and(|(at, _)| *at == due);
        let ring = self.rings.iter_mut().find(first)?;
        ring.waiting.pop_front().map(|(_, message)| (ring.to, message))
    }

    /// Messages in transit, with their receivers.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = (u8, &WorkerMessage<SimulatedShell<C>>)> {
        self.rings.iter().flat_map(|ring| ring.waiting.iter().map(|(_, said)| (ring.to, said)))
    }

    /// Plants a fault: gives worker 1 an old view again.
    pub(crate) fn tell_old_view(&mut self) {
        if let Some(view) = &self.old_view {
            let view = Arc::clone(view);
            self.push(0, 1, WorkerMessage::Order(WorkerOrder::View(view)));
        }
    }

    /// Applies a planted fault to a message.
    fn spoil(&mut self, from: u8, to: u8, message: &WorkerMessage<SimulatedShell<C>>) {
        match (self.plant, message) {
            (Some(InjectedFault::StaleOrder), WorkerMessage::Order(WorkerOrder::View(view))) => {
                self.old_view.get_or_insert_with(|| Arc::clone(view));
            }
            (Some(InjectedFault::RingTwice), WorkerMessage::Parcel(parcel))
                if parcel.coming(to) > 0 =>
            {
                self.until_twice = self.until_twice.saturating_sub(1);
                if self.until_twice == 0 && self.twice.is_none() {
                    self.twice = Some(from);
                    self.push(from, to, WorkerMessage::Parcel(parcel.clone()));
                }
            }
            _ => {}
        }
    }

    fn ring(&mut self, from: u8, to: u8) -> &mut SimulatedRing<C> {
        let found = self.rings.iter_mut().find(|ring| (ring.from, ring.to) == (from, to));
        found.expect("each worker has a ring to each")
    }

    fn push(&mut self, from: u8, to: u8, message: WorkerMessage<SimulatedShell<C>>) {
        let most = if self.rng.below(SLOW_ONE_IN) == 0 { SLOW } else { SWIFT };
        let at = self.now + Duration::from_nanos(self.rng.below(most.as_nanos() as u64));
        let ring = self.ring(from, to);
        let at = ring.waiting.back().map_or(at, |(last, _)| at.max(*last));
        ring.waiting.push_back((at, message));
    }
}

impl<C: Ciphers> WorkerRings<SimulatedShell<C>> for RingEnd<C> {
    fn try_send(
        &mut self,
        to: u8,
        message: WorkerMessage<SimulatedShell<C>>,
    ) -> Option<WorkerMessage<SimulatedShell<C>>> {
        let mut bundle = self.bundle.borrow_mut();
        if !matches!(message, WorkerMessage::Parcel(_)) {
            let (now, fills) = (bundle.now, bundle.rng.below(FULL_ONE_IN) == 0);
            let ring = bundle.ring(self.worker, to);
            if now < ring.full_until {
                return Some(message);
            }
            if fills {
                ring.full_until = now + FULL;
            }
        }
        bundle.spoil(self.worker, to, &message);
        bundle.push(self.worker, to, message);
        None
    }

    fn send(&mut self, to: u8, message: WorkerMessage<SimulatedShell<C>>) -> bool {
        let mut bundle = self.bundle.borrow_mut();
        bundle.spoil(self.worker, to, &message);
        bundle.push(self.worker, to, message);
        true
    }

    fn give_back(&mut self, parcel: Box<Parcel>) {
        let mut bundle = self.bundle.borrow_mut();
        if bundle.until_twice == 0 && bundle.twice == Some(parcel.by) {
            bundle.until_twice = u32::MAX;
            return;
        }
        bundle.empty[usize::from(parcel.by)].push_back(parcel);
    }

    fn take_back(&mut self) -> Option<Box<Parcel>> {
        self.bundle.borrow_mut().empty[usize::from(self.worker)].pop_front()
    }
}
