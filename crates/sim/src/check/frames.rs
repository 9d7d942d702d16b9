//! An observer of the wires sees frames of three lengths that look like noise.

use shoal_wire::SizeClass;

use super::plaintext::{Payloads, is_letters};

pub(crate) const RULE: &str = "frames look like noise of three lengths, and strangers get none";
/// Run of equal bytes that counts as a violation. In noise it has a probability of 2^-88 per
/// position.
const RUN_MAX: usize = 12;

/// True if a frame may contain letters of a file or a long run of equal bytes. Noise does so once
/// in thirty thousand frames.
fn stands_out(frame: &[u8]) -> bool {
    // Both tests run in one pass without an early end, so that the compiler can use vector
    // instructions. A run of twelve equal bytes contains two adjacent aligned words, so one word of
    // each pair is tested.
    let (pairs, _) = frame.as_chunks::<8>();
    let look = |any, pair: &[u8; 8]| {
        let (words, _) = pair.as_chunks::<4>();
        let (one, other) = (u32::from_ne_bytes(words[0]), u32::from_ne_bytes(words[1]));
        any | (one == one.rotate_left(8)) | is_letters(one) | is_letters(other)
    };
    pairs.iter().fold(false, look)
}

/// Checks one frame.
pub(crate) fn check(frame: &[u8], payloads: &Payloads) -> Result<(), String> {
    if SizeClass::of_frame(frame.len()).is_none() {
        return Err(format!("a frame of {} bytes", frame.len()));
    }
    if !stands_out(frame) {
        return Ok(());
    }
    let equal = frame.chunk_by(|a, b| a == b).map(<[u8]>::len).max().unwrap_or(0);
    match equal {
        0..RUN_MAX => payloads.check(frame),
        _ => Err(format!("{equal} equal bytes in a row")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_runs_are_seen() {
        let nothing = Payloads::new([].iter());
        let check = |frame: &[u8]| super::check(frame, &nothing);
        let mut frame: Vec<u8> = (0..192u32).map(|i| (i * 37) as u8).collect();
        assert_eq!(check(&frame), Ok(()));
        assert!(check(&frame[1..]).is_err());
        for at in 50..58 {
            let mut frame = frame.clone();
            frame[at..at + RUN_MAX].fill(7);
            assert!(check(&frame).is_err());
        }
        frame[50..61].fill(0);
        assert_eq!(check(&frame), Ok(()), "eleven equal bytes are allowed");
    }
}
