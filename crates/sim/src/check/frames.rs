//! What an observer of the wires may see: frames of three lengths, and noise.

use shoal_wire::SizeClass;

use super::plaintext::{Payloads, is_letters};

pub(crate) const RULE: &str = "frames look like noise of three lengths, and strangers get none";
/// Equal bytes in a row that noise doesn't show: 2^-88 per place.
const RUN_MAX: usize = 12;

/// Whether a frame may hold letters of a file or too many equal bytes in a row, as noise does once
/// in thirty thousand frames.
fn stands_out(frame: &[u8]) -> bool {
    // Both questions in one pass, and no early end, so that the compiler looks at many words at
    // once. Twelve equal bytes in a row hold two words that follow each other, so that one of each
    // two words is asked.
    let (pairs, _) = frame.as_chunks::<8>();
    let look = |any, pair: &[u8; 8]| {
        let (words, _) = pair.as_chunks::<4>();
        let (one, other) = (u32::from_ne_bytes(words[0]), u32::from_ne_bytes(words[1]));
        any | (one == one.rotate_left(8)) | is_letters(one) | is_letters(other)
    };
    pairs.iter().fold(false, look)
}

/// Says what is wrong with a frame, if anything is.
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
        assert_eq!(check(&frame), Ok(()), "eleven may be chance");
    }
}
