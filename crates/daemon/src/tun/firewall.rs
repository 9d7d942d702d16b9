//! The firewall's table of flows, shared by all workers behind one lock. Each packet takes the lock
//! once.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use shoal_directory::Firewall;
use shoal_node::SharedFlowTable;

/// The table. Clones share it.
#[derive(Clone, Default)]
pub struct SharedFlows(Arc<FlowLock>);

#[derive(Default)]
struct FlowLock {
    machine: Mutex<Option<Firewall>>,
    epoch: AtomicU64,
}

impl SharedFlowTable for SharedFlows {
    fn epoch(&self) -> u64 {
        self.0.epoch.load(Ordering::Acquire)
    }

    fn ask<T>(&self, ask: impl FnOnce(&mut Option<Firewall>) -> T) -> T {
        ask(&mut self.0.machine.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn change(&self, change: impl FnOnce(&mut Option<Firewall>)) {
        self.ask(|machine| {
            change(machine);
            if machine.is_some() {
                self.0.epoch.fetch_add(1, Ordering::AcqRel);
            }
        });
    }
}
