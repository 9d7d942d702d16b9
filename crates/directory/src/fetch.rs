//! One list on its way here: which parts came, which are asked for, and how long that may take.

use core::time::Duration;

use shoal_wire::{DropReason, LIST_PART_LEN, LinkId, ListHave, ListMessage, Time};

/// Parts asked for at once.
const WINDOW: u32 = u64::BITS;
/// Wait before parts that did not come are asked for again: the first time, and the longest.
const ASK_AGAIN: Duration = Duration::from_millis(200);
const ASK_AGAIN_MAX: Duration = Duration::from_millis(1_600);
/// A transfer without a new part for so long has failed.
const STILL: Duration = Duration::from_secs(5);
/// A transfer that takes longer gives way to another neighbour that has such a list; doubled with
/// each failure of the neighbour, so that a slow line wins in the end.
const PATIENCE: Duration = Duration::from_secs(2);

/// How many parts a list of `len` bytes has.
pub(crate) fn parts_of(len: usize) -> u32 {
    // At most 64 MiB: see `LIST_LEN_MAX`.
    len.div_ceil(LIST_PART_LEN) as u32
}

/// A list that is being fetched.
#[derive(Debug)]
pub(crate) struct Fetch {
    pub(crate) link: LinkId,
    /// What its holder says of it.
    pub(crate) of: ListHave,
    pub(crate) began: Time,
    /// Parts below `first`, and those of `have`; what lies between is zero.
    bytes: Vec<u8>,
    first: u32,
    /// Parts from `first` on that came.
    have: u64,
    ask_at: Time,
    gap: Duration,
    /// When a new part came last.
    moved: Time,
}

impl Fetch {
    pub(crate) fn new(now: Time, link: LinkId, of: ListHave) -> Fetch {
        Fetch {
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

    pub(crate) fn is_of_another(&self, have: &ListHave) -> bool {
        (have.version, have.digest, have.len) != (self.of.version, self.of.digest, self.of.len)
    }

    /// Takes in a part.
    ///
    /// Errors: it was not asked for, came before, or has the wrong length.
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
        // Parts come in a row: the missing ones are asked for when no more do.
        self.ask_at = now + self.gap;
        if self.missing() == 0 {
            self.first += WINDOW.min(parts_of(len) - self.first);
            (self.have, self.ask_at) = (0, now);
        }
        Ok(())
    }

    /// Parts from `first` on that are still wanted.
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

    /// The question that is due, if one is.
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

    /// When something is to be done, and what.
    pub(crate) fn due(&self, failures: u32) -> (Time, &'static str) {
        let still = (self.moved + STILL, "transfer of a list stands still");
        let slow = (self.slow_at(failures), "transfer of a list is slow");
        still.min(slow).min((self.ask_at, "parts of a list are missing"))
    }
}
