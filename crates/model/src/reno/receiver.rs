//! The receiving TCP: puts packets in order and says which one it awaits.

use std::collections::BTreeSet;

/// A receiver with an endless buffer, without selective acknowledgements.
#[derive(Default)]
pub(super) struct Receiver {
    awaited: u64,
    /// Packets behind the awaited one.
    early: BTreeSet<u64>,
}

impl Receiver {
    /// Takes a data packet and returns the acknowledgement: the packet that is awaited now.
    pub(super) fn handle_data(&mut self, number: u64) -> u64 {
        if number >= self.awaited {
            self.early.insert(number);
        }
        while self.early.remove(&self.awaited) {
            self.awaited += 1;
        }
        self.awaited
    }

    /// Whether this packet came before.
    pub(super) fn has(&self, number: u64) -> bool {
        number < self.awaited || self.early.contains(&number)
    }

    /// Packets that reached the program.
    pub(super) fn delivered(&self) -> u64 {
        self.awaited
    }
}
