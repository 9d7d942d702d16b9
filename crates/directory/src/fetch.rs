//! Transfer of one list to this node: received parts, requests and time limits.

use core::time::Duration;

use shoal_wire::{DropReason, LIST_PART_LEN, LinkId, ListInventory, ListMessage, Time};

/// Maximum number of parts requested at once.
const WINDOW: u32 = u64::BITS;
/// Time until missing parts are requested again: first and longest interval.
const ASK_AGAIN: Duration = Duration::from_millis(200);
const ASK_AGAIN_MAX: Duration = Duration::from_millis(1_600);
/// Time without a new part after which a transfer has failed.
const STILL: Duration = Duration::from_secs(5);
/// Time after which a slow transfer is abandoned for another neighbour that has a newer list too.
/// Each failure of the neighbour doubles this time, so that a slow link succeeds in the end.
const PATIENCE: Duration = Duration::from_secs(2);

/// Number of parts of a list of `len` bytes.
pub(crate) fn parts_of(len: usize) -> u32 {
    // `len` is at most 64 MiB: see `LIST_LEN_MAX`.
    len.div_ceil(LIST_PART_LEN) as u32
}

/// A running transfer.
#[derive(Debug)]
pub(crate) struct ListFetch {
    pub(crate) link: LinkId,
    /// The neighbour's claim about the list.
    pub(crate) of: ListInventory,
    pub(crate) began: Time,
    /// Parts below `first` and those in `have`; missing parts between are zero.
    bytes: Vec<u8>,
    first: u32,
    /// Bitmap of received parts from `first` on.
    have: u64,
    ask_at: Time,
    gap: Duration,
    /// Time of the last new part.
    moved: Time,
}

impl ListFetch {
    pub(crate) fn new(now: Time, link: LinkId, of: ListInventory) -> ListFetch {
        ListFetch {
            link,
            of,
            began: now,
            bytes: Vec::new(),
            first: 0,
            have: 0,
            ask_at: now,
            gap: ASK_AGAIN,
            moved: now,
        }
    }

    pub(crate) fn is_of_another(&self, have: &ListInventory) -> bool {
        (have.version, have.digest, have.len) != (self.of.version, self.of.digest, self.of.len)
    }

    /// Adds a part.
    ///
    /// Errors: the part was not requested, was received before, or has the wrong length.
    pub(crate) fn take(&mut self, now: Time, number: u32, bytes: &[u8]) -> Result<(), DropReason> {
        let len = self.of.len as usize;
        let place = number.checked_sub(self.first).filter(|place| *place < WINDOW);
        let place = place.filter(|place| self.have & (1 << place) == 0 && number < parts_of(len));
        let place = place.ok_or(DropReason::UnknownFlow)?;
        let from = number as usize * LIST_PART_LEN;
        let until = (from + LIST_PART_LEN).min(len);
        if bytes.len() != until - from {
            return Err(DropReason::Malformed);
        }
        if self.bytes.len() < until {
            self.bytes.resize(until, 0);
        }
        self.bytes[from..until].copy_from_slice(bytes);
        self.have |= 1 << place;
        (self.moved, self.gap) = (now, ASK_AGAIN);
        // Parts arrive in a row. Missing ones are requested again after a pause.
        self.ask_at = now + self.gap;
        if self.missing() == 0 {
            self.first += WINDOW.min(parts_of(len) - self.first);
            (self.have, self.ask_at) = (0, now);
        }
        Ok(())
    }

    /// Bitmap of missing parts from `first` on.
    fn missing(&self) -> u64 {
        let left = parts_of(self.of.len as usize) - self.first;
        let all = if left < WINDOW { (1 << left) - 1 } else { u64::MAX };
        all & !self.have
    }

    pub(crate) fn is_whole(&self) -> bool {
        self.missing() == 0
    }

    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// The request that is due, if any.
    pub(crate) fn ask(&mut self, now: Time) -> Option<ListMessage> {
        if self.ask_at > now || self.is_whole() {
            return None;
        }
        self.ask_at = now + self.gap;
        self.gap = (self.gap * 2).min(ASK_AGAIN_MAX);
        let (version, first) = (self.of.version, self.first);
        Some(ListMessage::Want { version, first, bits: self.missing() })
    }

    pub(crate) fn stands_still(&self, now: Time) -> bool {
        now >= self.moved + STILL
    }

    pub(crate) fn is_slow(&self, now: Time, failures: u32) -> bool {
        now >= self.slow_at(failures)
    }

    fn slow_at(&self, failures: u32) -> Time {
        self.began + PATIENCE * 2u32.pow(failures.min(5))
    }

    /// Time and reason of the next action.
    pub(crate) fn due(&self, failures: u32) -> (Time, &'static str) {
        let still = (self.moved + STILL, "transfer of a list has stalled");
        let slow = (self.slow_at(failures), "transfer of a list is slow");
        still.min(slow).min((self.ask_at, "parts of a list are missing"))
    }
}
