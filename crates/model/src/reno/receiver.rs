//! The receiving TCP: orders packets and acknowledges the next one awaited.

use std::collections::BTreeSet;

/// A receiver with an unlimited buffer, without selective acknowledgements.
#[derive(Default)]
pub(super) struct RenoReceiver {
    awaited: u64,
    /// Received packets behind the awaited one.
    early: BTreeSet<u64>,
}

impl RenoReceiver {
    /// Handles a data packet. Returns the acknowledgement: the number of the packet that is awaited
    /// next.
    pub(super) fn handle_data(&mut self, number: u64) -> u64 {
        if number >= self.awaited {
            self.early.insert(number);
        }
        while self.early.remove(&self.awaited) {
            self.awaited += 1;
        }
        self.awaited
    }

    /// True if this packet came before.
    pub(super) fn has(&self, number: u64) -> bool {
        number < self.awaited || self.early.contains(&number)
    }

    /// Packets delivered to the program.
    pub(super) fn delivered(&self) -> u64 {
        self.awaited
    }
}
