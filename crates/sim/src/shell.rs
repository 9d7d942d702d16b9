//! What the simulator lends a node: its wires, interfaces that programs are played on, a table of
//! flows for one thread, and rings that the seed delays.

use core::marker::PhantomData;
use std::cell::RefCell;
use std::rc::Rc;

use shoal_crypto::Ciphers;
use shoal_directory::Firewall;
use shoal_node::{Flows, Shell};

use crate::programs::Tap;
use crate::rings::End;
use crate::wires::Wires;

/// The types of this shell.
pub(crate) struct Played<C>(PhantomData<C>);

impl<C: Ciphers> Shell for Played<C> {
    type Ciphers = C;
    type Sink = Wires;
    type Device = Tap;
    type Flows = Table;
    type Rings = End<C>;
    type Sockets = ();
}

/// The firewall's table of one node.
#[derive(Clone, Default)]
pub(crate) struct Table(Rc<RefCell<(Option<Firewall>, u64)>>);

impl Flows for Table {
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
