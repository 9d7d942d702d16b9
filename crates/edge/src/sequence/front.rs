//! Times since when packets of a stream are missed.
//!
//! A number is missed from the moment at which a higher one came. The record is therefore the
//! highest number that had come by a certain time: one record per millisecond, for any number of
//! packets.

use std::collections::VecDeque;

use core::time::Duration;
use shoal_wire::{CircuitId, Time};

/// Packets that come within this time share a record with the time of the last of them. No packet
/// is therefore given up too soon.
const GRAIN: Duration = Duration::from_millis(1);

/// All missing numbers below `number` are missed since `at`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MissingSince {
    pub(crate) number: u64,
    pub(crate) at: Time,
    /// Circuit on which packet `number` came.
    pub(crate) circuit: CircuitId,
    /// Time at which the first packet of the record came.
    since: Time,
}

/// Records of a stream, by ascending number. The deadlines ascend, too.
#[derive(Default)]
pub(crate) struct MissingRecords(VecDeque<MissingSince>);

impl MissingRecords {
    /// Notes a packet. `until` returns the time at which the missing packets of a record are given
    /// up. Returns true if the first record changed.
    #[inline]
    pub(crate) fn note(
        &mut self,
        now: Time,
        number: u64,
        circuit: CircuitId,
        until: impl Fn(&MissingSince) -> Time,
    ) -> bool {
        let record = MissingSince { number, at: now, circuit, since: now };
        let count = self.0.len();
        match self.0.back_mut() {
            Some(last) if last.circuit != circuit => return self.note_other(record, until),
            // An earlier packet with a higher number already covers these numbers.
            Some(last) if number < last.number => return false,
            Some(last) if now < last.since + GRAIN => {
                *last = MissingSince { since: last.since, ..record };
                return count == 1;
            }
            _ => self.0.push_back(record),
        }
        count == 0
    }

    /// Notes a packet that came on another circuit than the last one. It may cover fewer numbers
    /// than a later record and still count, if its deadline is earlier.
    fn note_other(&mut self, record: MissingSince, until: impl Fn(&MissingSince) -> Time) -> bool {
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

    /// The record that covers `due`, the lowest missing number. Records that cover only lower
    /// numbers are removed.
    #[inline]
    pub(crate) fn of(&mut self, due: u64) -> Option<MissingSince> {
        while self.0.front().is_some_and(|record| record.number <= due) {
            self.0.pop_front();
        }
        self.0.front().copied()
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }
}
