//! Handshakes of the two hosts on the control lane: what came of one so far at an end of a circuit.

use core::time::Duration;

use shoal_wire::Time;
use shoal_wire::leg::Part;

/// How long the first half of a handshake waits for the second.
const WAIT: Duration = Duration::from_secs(10);

struct Half {
    number: u8,
    second: bool,
    len: u16,
    bytes: Box<[u8]>,
    /// The number of the cell that it came in.
    cell: u64,
    until: Time,
}

/// A handshake that came whole.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Whole {
    pub(crate) number: u8,
    pub(crate) bytes: Box<[u8]>,
    /// The numbers of the two cells that it came in, by half.
    pub(crate) cells: [u64; 2],
}

/// What came of the newest handshake: one half at most.
#[derive(Default)]
pub(crate) struct Inbox(Option<Box<Half>>);

impl Inbox {
    /// Takes a half in, which came in cell `cell`: the handshake, if that was the other half of the
    /// one that is here. A half of another handshake replaces what is here.
    pub(crate) fn take(&mut self, now: Time, part: &Part<'_>, cell: u64) -> Option<Whole> {
        self.forget_old(now);
        let Part { number, second, len, bytes } = *part;
        let fits = |half: &Half| {
            (half.number, half.len, half.second) == (number, len, !second) && half.cell != cell
        };
        match self.0.take_if(|half| fits(half)) {
            Some(half) => {
                let mut whole = vec![0; len.into()].into_boxed_slice();
                whole[Part::range(len, second)].copy_from_slice(bytes);
                whole[Part::range(len, !second)].copy_from_slice(&half.bytes);
                let cells = if second { [half.cell, cell] } else { [cell, half.cell] };
                Some(Whole { number, bytes: whole, cells })
            }
            None => {
                let (bytes, until) = (bytes.into(), now + WAIT);
                self.0 = Some(Box::new(Half { number, second, len, bytes, cell, until }));
                None
            }
        }
    }

    /// Forgets a half whose other half did not come in time.
    pub(crate) fn forget_old(&mut self, now: Time) {
        self.0.take_if(|half| half.until <= now);
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_come_together_in_any_order() {
        let whole = [5_u8; 169].map(|byte| byte + 1);
        let [one, two] = Part::both(4, &whole).unwrap();
        let mut inbox = Inbox::default();
        let now = Time::ZERO;
        assert_eq!(inbox.take(now, &two, 8), None);
        assert_eq!(inbox.take(now, &two, 9), None, "the other half is missing still");
        let done = inbox.take(now, &one, 7).unwrap();
        assert_eq!((&done.bytes[..], done.cells, done.number), (&whole[..], [7, 9], 4));
        assert!(inbox.is_empty());
    }

    #[test]
    fn halves_of_two_handshakes_stay_apart_and_old_ones_go() {
        let [one, _] = Part::both(4, &[1; 100]).unwrap();
        let [_, other] = Part::both(5, &[2; 100]).unwrap();
        let [_, two] = Part::both(4, &[1; 100]).unwrap();
        let mut inbox = Inbox::default();
        assert_eq!(inbox.take(Time::ZERO, &one, 1), None);
        assert_eq!(inbox.take(Time::ZERO, &other, 2), None, "it replaces the other one");
        assert_eq!(inbox.take(Time::ZERO, &two, 3), None);
        assert!(inbox.take(Time::ZERO + WAIT, &one, 4).is_none(), "too late");
        assert!(inbox.take(Time::ZERO + WAIT, &two, 5).is_some());
        assert_eq!(inbox.take(Time::ZERO, &one, 6), None);
        inbox.forget_old(Time::ZERO + WAIT);
        assert!(inbox.is_empty());
    }
}
