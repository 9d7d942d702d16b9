//! Since when packets of a stream are missed.
//!
//! A number is missed from the moment at which a higher one came. So it is enough to note how far
//! the highest number had got at which time: one record for each millisecond, however many packets
//! come.

use std::collections::VecDeque;

use core::time::Duration;
use shoal_wire::{CircuitId, Time};

/// Packets that come within this time share a record, which has the time of the last of them: none
/// is given up too soon.
const GRAIN: Duration = Duration::from_millis(1);

/// All numbers below `number` that are missing are missed since `at`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Record {
    pub(crate) number: u64,
    pub(crate) at: Time,
    /// On which it came.
    pub(crate) circuit: CircuitId,
    /// When the first packet of the record came.
    since: Time,
}

/// Records of a stream, by ascending number; what the later ones tell runs out later.
#[derive(Default)]
pub(crate) struct Front(VecDeque<Record>);

impl Front {
    /// Notes a packet; `until` says when those are given up that a record tells of. Returns whether
    /// the first record is another now.
    #[inline]
    pub(crate) fn note(
        &mut self,
        now: Time,
        number: u64,
        circuit: CircuitId,
        until: impl Fn(&Record) -> Time,
    ) -> bool {
        let record = Record { number, at: now, circuit, since: now };
        let count = self.0.len();
        match self.0.back_mut() {
            Some(last) if last.circuit != circuit => return self.note_other(record, until),
            // One that came before tells more.
            Some(last) if number < last.number => return false,
            Some(last) if now < last.since + GRAIN => {
                *last = Record { since: last.since, ..record };
                return count == 1;
            }
            _ => self.0.push_back(record),
        }
        count == 0
    }

    /// Where two circuits bring packets, one may tell of fewer numbers and still count, since they
    /// are given up sooner.
    fn note_other(&mut self, record: Record, until: impl Fn(&Record) -> Time) -> bool {
        let place = self.0.iter().rposition(|known| known.number < record.number);
        let place = place.map_or(0, |before| before + 1);
        let over = until(&record);
        if self.0.get(place).is_some_and(|behind| until(behind) <= over) {
            return false;
        }
        let earlier = self.0.iter().take(place).rposition(|known| until(known) < over);
        let from = earlier.map_or(0, |earlier| earlier + 1);
        self.0.drain(from..place);
        self.0.insert(from, record);
        from == 0
    }

    /// The record that tells of the number `due`, the lowest that is missing. Those that tell of
    /// lower ones are forgotten.
    #[inline]
    pub(crate) fn of(&mut self, due: u64) -> Option<Record> {
        while self.0.front().is_some_and(|record| record.number <= due) {
            self.0.pop_front();
        }
        self.0.front().copied()
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }
}
