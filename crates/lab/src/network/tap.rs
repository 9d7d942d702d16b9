//! A counter of what a link carries, cheap enough to read often.

use std::fs::File;
use std::io::{Read, Seek};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use crate::forward::Counters;

/// A counter of one direction of a link.
#[derive(Debug)]
pub struct Tap(Source);

#[derive(Debug)]
enum Source {
    Interface { table: File, interface: String },
    Forwarder { counters: Arc<[Counters; 2]>, end: usize },
}

impl Tap {
    /// An interface, by the open table of its namespace.
    pub(super) fn interface(table: File, interface: String) -> Tap {
        Tap(Source::Interface { table, interface })
    }

    /// The direction of a forwarder towards `end`.
    pub(super) fn forwarder(counters: Arc<[Counters; 2]>, end: usize) -> Tap {
        Tap(Source::Forwarder { counters, end })
    }

    /// Bytes carried since the start.
    pub fn bytes(&mut self) -> u64 {
        self.counts().0
    }

    /// Bytes and packets since the start.
    pub fn counts(&mut self) -> (u64, u64) {
        match &mut self.0 {
            Source::Interface { table, interface } => {
                let mut text = String::new();
                // If the table can't be read, the link is gone, and the count stays.
                let _ = table.rewind().and_then(|()| table.read_to_string(&mut text));
                let named = |l: &str| Some(l.trim().strip_prefix(&*interface)?.to_owned());
                let line = text.lines().filter_map(named).find(|l| l.starts_with(':'));
                let line = line.unwrap_or_default();
                let mut fields = line[1.min(line.len())..].split_whitespace().flat_map(str::parse);
                (fields.next().unwrap_or(0), fields.next().unwrap_or(0))
            }
            Source::Forwarder { counters, end } => {
                let c = &counters[*end];
                (c.delivered_bytes.load(Relaxed), c.sent.load(Relaxed))
            }
        }
    }
}
