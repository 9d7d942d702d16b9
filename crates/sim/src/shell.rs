//! The shell that the simulator gives a node: wires, simulated interfaces, a single-threaded table
//! of flows, and rings with delays from the seed.

use core::marker::PhantomData;
use std::cell::RefCell;
use std::rc::Rc;

use shoal_crypto::Ciphers;
use shoal_directory::Firewall;
use shoal_node::{SharedFlowTable, Shell};

use crate::programs::SimulatedInterface;
use crate::rings::RingEnd;
use crate::wires::Wires;

pub(crate) struct SimulatedShell<C>(PhantomData<C>);

impl<C: Ciphers> Shell for SimulatedShell<C> {
    type Ciphers = C;
    type Sink = Wires;
    type TunQueue = SimulatedInterface;
    type Flows = FirewallTable;
    type WorkerRings = RingEnd<C>;
    type Sockets = ();
}

/// Firewall table of one node.
#[derive(Clone, Default)]
pub(crate) struct FirewallTable(Rc<RefCell<(Option<Firewall>, u64)>>);

impl SharedFlowTable for FirewallTable {
    fn epoch(&self) -> u64 {
        self.0.borrow().1
    }

    fn ask<T>(&self, ask: impl FnOnce(&mut Option<Firewall>) -> T) -> T {
        ask(&mut self.0.borrow_mut().0)
    }

    fn change(&self, change: impl FnOnce(&mut Option<Firewall>)) {
        self.ask(change);
        self.0.borrow_mut().1 += 1;
    }
}
