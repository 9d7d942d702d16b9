//! A traffic counter of a link, cheap to read.

use std::fs::File;
use std::io::{Read, Seek};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use crate::forward::ForwarderCounters;

/// A counter of one direction of a link.
#[derive(Debug)]
pub struct LinkCounter(LinkCounterSource);

#[derive(Debug)]
enum LinkCounterSource {
    Interface { table: File, interface: String },
    Forwarder { counters: Arc<[ForwarderCounters; 2]>, end: usize },
}

impl LinkCounter {
    /// An interface; `table` is the open net/dev file of its namespace.
    pub(super) fn interface(table: File, interface: String) -> LinkCounter {
        LinkCounter(LinkCounterSource::Interface { table, interface })
    }

    /// The direction of a forwarder towards `end`.
    pub(super) fn forwarder(counters: Arc<[ForwarderCounters; 2]>, end: usize) -> LinkCounter {
        LinkCounter(LinkCounterSource::Forwarder { counters, end })
    }

    /// Bytes carried since the start.
    pub fn bytes(&mut self) -> u64 {
        self.counts().0
    }

    /// Bytes and packets since the start.
    pub fn counts(&mut self) -> (u64, u64) {
        match &mut self.0 {
            LinkCounterSource::Interface { table, interface } => {
                let mut text = String::new();
                // If the table can't be read, the link is gone, and both counts are 0.
                let _ = table.rewind().and_then(|()| table.read_to_string(&mut text));
                let named = |l: &str| Some(l.trim().strip_prefix(&*interface)?.to_owned());
                let line = text.lines().filter_map(named).find(|l| l.starts_with(':'));
                let line = line.unwrap_or_default();
                let mut fields = line[1.min(line.len())..].split_whitespace().flat_map(str::parse);
                (fields.next().unwrap_or(0), fields.next().unwrap_or(0))
            }
            LinkCounterSource::Forwarder { counters, end } => {
                let c = &counters[*end];
                (c.delivered_bytes.load(Relaxed), c.sent.load(Relaxed))
            }
        }
    }
}
