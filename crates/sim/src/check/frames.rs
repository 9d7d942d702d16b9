//! What an observer of the wires may see: frames of three lengths, and noise.

use shoal_wire::SizeClass;

/// Stands in every simulated file, so that it would stand in a frame that is not sealed.
pub(crate) const MARKER: &[u8; 8] = b"SHOALTXT";
/// Equal bytes in a row that noise doesn't show: 2^-88 per place.
const RUN_MAX: usize = 12;

/// Says what is wrong with a frame, if anything is.
pub(crate) fn check(frame: &[u8]) -> Result<(), String> {
    if SizeClass::of_frame(frame.len()).is_none() {
        return Err(format!("a frame of {} bytes", frame.len()));
    }
    let (mut run, mut last) = (0, None);
    for (at, &byte) in frame.iter().enumerate() {
        run = if last == Some(byte) { run + 1 } else { 1 };
        last = Some(byte);
        if run >= RUN_MAX {
            return Err(format!("{run} equal bytes up to {at}"));
        }
        if byte == MARKER[0] && frame[at..].starts_with(MARKER) {
            return Err(format!("plaintext of a file at {at}"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_runs_and_plaintext_are_seen() {
        let mut frame: Vec<u8> = (0..192u32).map(|i| (i * 37) as u8).collect();
        assert_eq!(check(&frame), Ok(()));
        assert!(check(&frame[1..]).is_err());
        frame[50..58].copy_from_slice(MARKER);
        assert!(check(&frame).is_err());
        frame[50..70].fill(0);
        assert!(check(&frame).is_err());
    }
}
