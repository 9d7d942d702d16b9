//! Handshakes between the two hosts on the control lane: the part that has come so far, at one end
//! of a circuit.

use core::time::Duration;

use shoal_wire::Time;
use shoal_wire::leg::HandshakeHalf;

/// Time for which the first half of a handshake waits for the second.
const WAIT: Duration = Duration::from_secs(10);

struct StoredHalf {
    number: u8,
    second: bool,
    len: u16,
    bytes: Box<[u8]>,
    /// Number of the cell that it came in.
    cell: u64,
    until: Time,
}

/// A complete handshake.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct CompleteHandshake {
    pub(crate) number: u8,
    pub(crate) bytes: Box<[u8]>,
    /// Numbers of the two cells that it came in, by half.
    pub(crate) cells: [u64; 2],
}

/// At most one half of the newest handshake.
#[derive(Default)]
pub(crate) struct Inbox(Option<Box<StoredHalf>>);

impl Inbox {
    /// Adds a half, which came in cell `cell`. Returns the handshake if it completes the stored
    /// half. A half of another handshake replaces the stored one.
    pub(crate) fn take(
        &mut self,
        now: Time,
        part: &HandshakeHalf<'_>,
        cell: u64,
    ) -> Option<CompleteHandshake> {
        self.forget_old(now);
        let HandshakeHalf { number, second, len, bytes } = *part;
        let fits = |half: &StoredHalf| {
            (half.number, half.len, half.second) == (number, len, !second) && half.cell != cell
        };
        match self.0.take_if(|half| fits(half)) {
            Some(half) => {
                let mut whole = vec![0; len.into()].into_boxed_slice();
                whole[HandshakeHalf::range(len, second)].copy_from_slice(bytes);
                whole[HandshakeHalf::range(len, !second)].copy_from_slice(&half.bytes);
                let cells = if second { [half.cell, cell] } else { [cell, half.cell] };
                Some(CompleteHandshake { number, bytes: whole, cells })
            }
            None => {
                let (bytes, until) = (bytes.into(), now + WAIT);
                self.0 = Some(Box::new(StoredHalf { number, second, len, bytes, cell, until }));
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
        let [one, two] = HandshakeHalf::both(4, &whole).unwrap();
        let mut inbox = Inbox::default();
        let now = Time::ZERO;
        assert_eq!(inbox.take(now, &two, 8), None);
        assert_eq!(inbox.take(now, &two, 9), None, "the other half is still missing");
        let done = inbox.take(now, &one, 7).unwrap();
        assert_eq!((&done.bytes[..], done.cells, done.number), (&whole[..], [7, 9], 4));
        assert!(inbox.is_empty());
    }

    #[test]
    fn halves_of_two_handshakes_stay_apart_and_old_ones_go() {
        let [one, _] = HandshakeHalf::both(4, &[1; 100]).unwrap();
        let [_, other] = HandshakeHalf::both(5, &[2; 100]).unwrap();
        let [_, two] = HandshakeHalf::both(4, &[1; 100]).unwrap();
        let mut inbox = Inbox::default();
        assert_eq!(inbox.take(Time::ZERO, &one, 1), None);
        assert_eq!(inbox.take(Time::ZERO, &other, 2), None, "the new half replaces the stored one");
        assert_eq!(inbox.take(Time::ZERO, &two, 3), None);
        assert!(inbox.take(Time::ZERO + WAIT, &one, 4).is_none(), "too late");
        assert!(inbox.take(Time::ZERO + WAIT, &two, 5).is_some());
        assert_eq!(inbox.take(Time::ZERO, &one, 6), None);
        inbox.forget_old(Time::ZERO + WAIT);
        assert!(inbox.is_empty());
    }
}
