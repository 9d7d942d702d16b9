//! Frames between a newcomer and a registrar (docs/design/wire/join.md).
//!
//! ```text
//! at the door  192 or 576 bytes, see `door`
//! later        192 or 576 bytes: R 16 | counter 4, message, zeroes | tag 16
//!              AES-256-GCM, key kdf(key of the direction, "seal", R), nonce 0
//! ```
//!
//! R is random. The receiver finds a frame's visit by the source address, and tries the keys of the
//! few visits from there. So nothing in a frame is in the clear.

use shoal_crypto::{AeadKey, Secret, Suite, kdf};
use shoal_session::noise::Split;
use shoal_session::replay::{ReplayError, ReplayWindow};
use shoal_wire::{DropReason, SizeClass, TAG_LEN, shake};

use crate::words::Words;

/// Length of a frame with a short message, in bytes.
pub const SMALL_LEN: usize = 192;
/// Length of a frame with a longer message, in bytes. With IPv6 and UDP headers it takes 624 bytes,
/// the smallest packet size that links support.
pub const LARGE_LEN: usize = SizeClass::Medium.frame_len();
const LEAD_LEN: usize = shake::LEAD_LEN;
const COUNTER_LEN: usize = 4;
/// Longest message in bytes.
pub const MESSAGE_MAX: usize = LARGE_LEN - LEAD_LEN - COUNTER_LEN - TAG_LEN;
const SMALL_MAX: usize = SMALL_LEN - LEAD_LEN - COUNTER_LEN - TAG_LEN;
/// Size of the replay window in frames: more than are in flight at once.
const WINDOW: u32 = 1_024;

/// The prologue of the handshake, which both ends mix in before the first message.
pub(crate) fn prologue(lead: &[u8; LEAD_LEN]) -> Vec<u8> {
    [b"shoal join ".as_slice(), &[shoal_wire::VERSION], lead].concat()
}

/// True if a [`Channel`] may have sealed a frame of this length.
pub(crate) fn is_sealed_len(len: usize) -> bool {
    len == SMALL_LEN || len == LARGE_LEN
}

/// The keys that follow from a handshake, and the replay window.
pub(crate) struct Channel {
    seal: Secret<32>,
    open: Secret<32>,
    counter: u32,
    window: ReplayWindow,
    binding: [u8; 32],
}

impl Channel {
    pub(crate) fn new(split: Split, is_initiator: bool) -> Channel {
        let binding = kdf(split.forth.expose(), "shoal join binding 1", &[split.back.expose()]);
        let Split { forth, back } = split;
        let (seal, open) = if is_initiator { (forth, back) } else { (back, forth) };
        Channel { seal, open, counter: 0, window: ReplayWindow::new(WINDOW), binding }
    }

    /// A value derived from the handshake's keys: unique to this handshake and known to its two
    /// ends only.
    pub(crate) fn binding(&self) -> &[u8; 32] {
        &self.binding
    }

    /// Words that people at both ends can compare.
    pub(crate) fn words(&self) -> Words {
        Words::of(&self.binding)
    }

    /// Seals a message of at most [`MESSAGE_MAX`] bytes with the random bytes `lead`; `None` when
    /// the counter is exhausted.
    pub(crate) fn seal(&mut self, lead: [u8; LEAD_LEN], message: &[u8]) -> Option<Vec<u8>> {
        debug_assert!(message.len() <= MESSAGE_MAX, "messages are made to fit");
        let counter = self.counter;
        self.counter = counter.checked_add(1)?;
        let len = if message.len() <= SMALL_MAX { SMALL_LEN } else { LARGE_LEN };
        let mut frame = vec![0; len];
        let body = LEAD_LEN + COUNTER_LEN;
        frame[..LEAD_LEN].copy_from_slice(&lead);
        frame[LEAD_LEN..body].copy_from_slice(&counter.to_be_bytes());
        frame.get_mut(body..body + message.len())?.copy_from_slice(message);
        let (sealed, tag) = frame[LEAD_LEN..].split_last_chunk_mut::<TAG_LEN>()?;
        frame_key(&self.seal, &lead).seal(0, &[], sealed, tag);
        Some(frame)
    }

    /// Opens a frame. Returns the message and the zeroes behind it.
    ///
    /// # Errors
    ///
    /// `bad_size`, `bad_tag` (sealed with other keys), `replayed`, `too_old`.
    pub(crate) fn open(&mut self, frame: &[u8]) -> Result<Vec<u8>, DropReason> {
        if !is_sealed_len(frame.len()) {
            return Err(DropReason::BadSize);
        }
        let (lead, sealed) = frame.split_first_chunk().ok_or(DropReason::BadSize)?;
        let mut body = sealed.to_vec();
        let key = frame_key(&self.open, lead);
        key.open(0, &[], &mut body).map_err(|_| DropReason::BadTag)?;
        body.truncate(body.len() - TAG_LEN);
        let counter = body.first_chunk().ok_or(DropReason::BadSize)?;
        let counter = u32::from_be_bytes(*counter);
        self.window.check(counter).map_err(|refused| match refused {
            ReplayError::Seen => DropReason::Replayed,
            ReplayError::Old => DropReason::TooOld,
        })?;
        self.window.accept(counter);
        body.drain(..COUNTER_LEN);
        Ok(body)
    }
}

fn frame_key(key: &Secret<32>, lead: &[u8; LEAD_LEN]) -> AeadKey {
    let key = Secret::new(kdf(key.expose(), "seal", &[lead]));
    AeadKey::new(Suite::Aes256Gcm, key.expose())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (Channel, Channel) {
        let split = || Split { forth: Secret::new([1; 32]), back: Secret::new([2; 32]) };
        (Channel::new(split(), true), Channel::new(split(), false))
    }

    #[test]
    fn both_ends_open_what_the_other_sealed_once() {
        let (mut a, mut b) = pair();
        assert_eq!((a.binding(), a.words()), (b.binding(), b.words()));
        for len in [0, 1, SMALL_MAX, SMALL_MAX + 1, MESSAGE_MAX] {
            let message = vec![7; len];
            let frame = a.seal([len as u8; 16], &message).unwrap();
            assert_eq!(frame.len(), if len <= SMALL_MAX { SMALL_LEN } else { LARGE_LEN });
            let opened = b.open(&frame).unwrap();
            assert!(opened.starts_with(&message) && opened[len..].iter().all(|&b| b == 0));
            assert_eq!(b.open(&frame), Err(DropReason::Replayed));
            assert_eq!(a.open(&frame), Err(DropReason::BadTag), "a frame of this end itself");
        }
    }

    #[test]
    fn changed_cut_and_old_frames_do_not_open() {
        let (mut a, mut b) = pair();
        let frame = a.seal([9; 16], b"message").unwrap();
        for at in 0..frame.len() {
            let mut wrong = frame.clone();
            wrong[at] ^= 1;
            assert_eq!(b.open(&wrong), Err(DropReason::BadTag));
            assert_eq!(b.open(&frame[..at]), Err(DropReason::BadSize));
        }
        assert!(b.open(&frame).is_ok(), "rejected frames leave the replay window unchanged");
        for _ in 0..3 * WINDOW {
            b.open(&a.seal([3; 16], &[]).unwrap()).unwrap();
        }
        a.counter = 1;
        assert_eq!(b.open(&a.seal([4; 16], &[]).unwrap()), Err(DropReason::TooOld));
        a.counter = u32::MAX;
        assert!(a.seal([5; 16], &[]).is_none(), "no counter is used twice");
    }
}
