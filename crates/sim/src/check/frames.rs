//! What an observer of the wires may see: frames of three lengths, and noise.

use shoal_wire::SizeClass;

pub(crate) const RULE: &str = "frames look like noise of three lengths, and strangers get none";
/// Equal bytes in a row that noise doesn't show: 2^-88 per place.
const RUN_MAX: usize = 12;

/// Says what is wrong with a frame, if anything is.
pub(crate) fn check(frame: &[u8]) -> Result<(), String> {
    if SizeClass::of_frame(frame.len()).is_none() {
        return Err(format!("a frame of {} bytes", frame.len()));
    }
    // Twelve equal bytes in a row hold two words of four that are equal in themselves.
    let (words, _) = frame.as_chunks::<4>();
    let even = |word: &[u8; 4]| {
        let word = u32::from_ne_bytes(*word);
        word == word.rotate_left(8)
    };
    if !words.iter().fold(false, |any, word| any | even(word)) {
        return Ok(());
    }
    let equal = frame.chunk_by(|a, b| a == b).map(<[u8]>::len).max().unwrap_or(0);
    match equal {
        0..RUN_MAX => Ok(()),
        _ => Err(format!("{equal} equal bytes in a row")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_runs_are_seen() {
        let mut frame: Vec<u8> = (0..192u32).map(|i| (i * 37) as u8).collect();
        assert_eq!(check(&frame), Ok(()));
        assert!(check(&frame[1..]).is_err());
        for at in 50..54 {
            let mut frame = frame.clone();
            frame[at..at + RUN_MAX].fill(7);
            assert!(check(&frame).is_err());
        }
        frame[50..61].fill(0);
        assert_eq!(check(&frame), Ok(()), "eleven may be chance");
    }
}
