//! Bytes as letters that people can read out and type: Crockford's base 32.
//!
//! It has no I, L, O and U. A reader takes I and L for 1, O for 0, and small letters for capitals,
//! so that none of these slips is a mistake. All letters are in the alphanumeric set of QR codes
//! (ISO/IEC 18004), which makes their codes smaller.

const LETTERS: &[u8; 32] = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ";
/// Bits of a letter.
const BITS: usize = 5;

/// How many letters `bytes` bytes take.
pub(crate) const fn letters(bytes: usize) -> usize {
    (bytes * 8).div_ceil(BITS)
}

/// How many whole bytes `letters` letters hold.
pub(crate) const fn bytes(letters: usize) -> usize {
    letters * BITS / 8
}

/// Writes `bytes` as letters; the bits behind the last byte are zero.
pub(crate) fn encode(bytes: &[u8], out: &mut String) {
    let (mut held, mut bits) = (0_u32, 0);
    let mut put = |value: u32| out.push(LETTERS[(value & 31) as usize].into());
    for &byte in bytes {
        held = held << 8 | u32::from(byte);
        bits += 8;
        while bits >= BITS {
            bits -= BITS;
            put(held >> bits);
        }
        // What was written is not needed again.
        held &= (1 << bits) - 1;
    }
    if bits > 0 {
        put(held << (BITS - bits));
    }
}

/// The value of a letter, if it is one.
pub(crate) fn value(letter: char) -> Option<u8> {
    let letter = match letter.to_ascii_uppercase() {
        'I' | 'L' => '1',
        'O' => '0',
        other => other,
    };
    LETTERS.iter().position(|&known| char::from(known) == letter).map(|at| at as u8)
}

/// The whole bytes that values of letters hold, and whether the bits behind them are zero.
pub(crate) fn join(values: &[u8]) -> (Vec<u8>, bool) {
    let mut out = Vec::with_capacity(bytes(values.len()));
    let (mut held, mut bits) = (0_u32, 0);
    for &value in values {
        held = held << BITS | u32::from(value & 31);
        bits += BITS;
        if bits >= 8 {
            bits -= 8;
            out.push((held >> bits) as u8);
            held &= (1 << bits) - 1;
        }
    }
    (out, held == 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn text(bytes: &[u8]) -> String {
        let mut out = String::new();
        encode(bytes, &mut out);
        out
    }

    fn values(text: &str) -> Vec<u8> {
        text.chars().map(|letter| value(letter).unwrap()).collect()
    }

    /// Made with another implementation: Python's `base64.b32encode`, letters exchanged.
    #[test]
    fn known_texts() {
        assert_eq!(text(b""), "");
        assert_eq!(text(b"f"), "CR");
        assert_eq!(text(b"fo"), "CSQG");
        assert_eq!(text(b"foobar"), "CSQPYRK1E8");
        assert_eq!(text(&[255; 5]), "ZZZZZZZZ");
    }

    #[test]
    fn slips_of_the_pen_are_no_mistakes() {
        assert_eq!(values("oOiIlLz"), [0, 0, 1, 1, 1, 1, 31]);
        assert!(['u', 'U', '-', 'é', '/', ' '].iter().all(|&c| value(c).is_none()));
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let text = text(&bytes);
            prop_assert_eq!(text.len(), letters(bytes.len()));
            prop_assert_eq!(super::bytes(text.len()), bytes.len());
            prop_assert_eq!(join(&values(&text)), (bytes, true));
        }
    }
}
