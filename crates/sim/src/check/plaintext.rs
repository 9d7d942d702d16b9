//! No frame contains eight consecutive bytes of any file.
//!
//! Files consist of four letters, so that each frame can be tested cheaply. Eight consecutive
//! letters always contain four letters at an offset that is a multiple of four, which `frames`
//! looks for. Noise has such four letters once in fifty thousand frames. Only then are the
//! neighbouring bytes tested. Eight consecutive letters, in noise once in 10^11 frames, are looked
//! up in the files.

use std::rc::Rc;

/// Number of consecutive bytes that reveal a payload.
pub(crate) const RUN: usize = 8;

/// Turns random bytes into letters.
pub(crate) fn make_letters(bytes: &mut [u8]) {
    bytes.iter_mut().for_each(|byte| *byte = *byte & 0x03 | 0x40);
}

fn is_letter(byte: u8) -> bool {
    byte & 0xfc == 0x40
}

/// True if all four bytes of a word are letters.
pub(crate) fn is_letters(word: u32) -> bool {
    word & 0xfcfc_fcfc == 0x4040_4040
}

/// Contents of all files, which must not be seen.
pub(crate) struct Payloads(Vec<Rc<[u8]>>);

impl Payloads {
    pub(crate) fn new<'a>(files: impl Iterator<Item = &'a Rc<[u8]>>) -> Payloads {
        Payloads(files.map(Rc::clone).collect())
    }

    /// Searches a frame for a payload.
    pub(crate) fn check(&self, frame: &[u8]) -> Result<(), String> {
        let mut at = 0;
        while at < frame.len() {
            let run = frame[at..].iter().take_while(|byte| is_letter(**byte)).count();
            if run >= RUN {
                self.look_up(&frame[at..at + run], at)?;
            }
            at += run + 1;
        }
        Ok(())
    }

    fn look_up(&self, run: &[u8], at: usize) -> Result<(), String> {
        for piece in run.windows(RUN) {
            for (file, content) in self.0.iter().enumerate() {
                if content.windows(RUN).any(|part| part == piece) {
                    let len = run.len();
                    return Err(format!("{len} letters of file {file} in the clear at {at}"));
                }
            }
        }
        Ok(())
    }

    /// A piece of a file, for a planted fault.
    pub(crate) fn piece(&self) -> &[u8] {
        let long = self.0.iter().find(|content| content.len() > 64);
        long.map_or(b"no file of more than sixty-four bytes", |content| &content[20..60])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::frames;

    #[test]
    fn eight_letters_of_a_file_are_found_at_every_place_and_seven_are_not() {
        let mut content: Vec<u8> = (0..500u32).map(|i| (i * i / 7) as u8).collect();
        make_letters(&mut content);
        let payloads = Payloads::new([Rc::from(content.as_slice())].iter());
        let noise: Vec<u8> = (0..1_440u32).map(|i| (i % 251) as u8 | 0x80).collect();
        assert_eq!(frames::check(&noise, &payloads), Ok(()));
        for at in 0..=noise.len() - RUN {
            let mut frame = noise.clone();
            frame[at..at + 7].copy_from_slice(&content[100..107]);
            assert_eq!(frames::check(&frame, &payloads), Ok(()));
            frame[at + 7] = content[107];
            assert!(frames::check(&frame, &payloads).is_err(), "not found at offset {at}");
        }
    }

    #[test]
    fn letters_that_stand_in_no_file_are_noise() {
        let payloads = Payloads::new([Rc::from(b"@@@@@@@@@@@@".as_slice())].iter());
        let mut frame = vec![0xff; 200];
        frame[40..52].copy_from_slice(b"ABCABCABCABC");
        assert_eq!(payloads.check(&frame), Ok(()));
        frame[40..52].copy_from_slice(b"A@@@@@@@@BCA");
        assert!(payloads.check(&frame).is_err());
    }
}
