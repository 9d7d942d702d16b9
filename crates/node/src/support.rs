//! A shell for this crate's tests: one ring, and nothing to send with.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use shoal_crypto::Standard;
use shoal_directory::Firewall;
use shoal_ip::Piece;
use shoal_relay::{Path, SendOutcome, Sink};

use crate::{Device, Flows, Message, Parcel, Rings, Shell, TunOffloads};

/// The shell's types.
pub(crate) struct Alone;

impl Shell for Alone {
    type Ciphers = Standard;
    type Sink = Nowhere;
    type Device = Nowhere;
    type Flows = Table;
    type Rings = Ring;
    type Sockets = ();
}

/// Takes all and gives nothing.
pub(crate) struct Nowhere;

impl Sink for Nowhere {
    fn send(&mut self, _: Path, _: &[u8], offsets: &[u32], _: usize) -> SendOutcome {
        SendOutcome { sent: offsets.len(), stop: None }
    }
}

impl Device for Nowhere {
    fn offloads(&self) -> TunOffloads {
        TunOffloads { tcp: false, udp: false }
    }

    fn read(&mut self, _: &mut [u8]) -> Option<usize> {
        None
    }

    fn write(&mut self, _: &[u8], _: &[u8], _: &[Piece]) -> bool {
        true
    }
}

/// One ring for all messages, and the parcels that came back.
#[derive(Clone, Default)]
pub(crate) struct Ring {
    messages: Rc<RefCell<VecDeque<Message<Alone>>>>,
    empty: Rc<RefCell<VecDeque<Box<Parcel>>>>,
}

impl Ring {
    /// The oldest message.
    pub(crate) fn take(&self) -> Option<Message<Alone>> {
        self.messages.borrow_mut().pop_front()
    }
}

impl Rings<Alone> for Ring {
    fn try_send(&mut self, _: u8, message: Message<Alone>) -> Option<Message<Alone>> {
        self.messages.borrow_mut().push_back(message);
        None
    }

    fn send(&mut self, to: u8, message: Message<Alone>) -> bool {
        self.try_send(to, message).is_none()
    }

    fn give_back(&mut self, parcel: Box<Parcel>) {
        self.empty.borrow_mut().push_back(parcel);
    }

    fn take_back(&mut self) -> Option<Box<Parcel>> {
        self.empty.borrow_mut().pop_front()
    }
}

/// A table of flows for one thread.
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
