//! Bytes as text: hex, base 64, and Crockford's base 32 for text that people read out and type.
//!
//! Each value has one spelling, up to the case of hex and the slips that base 32 allows. So a
//! reader refuses padding in the middle, and bits of the last letter that belong to no byte.

use std::sync::LazyLock;

use data_encoding::{BASE64, Encoding, HEXLOWER, HEXLOWER_PERMISSIVE, Specification};

/// Crockford's alphabet has no I, L, O and U. A reader takes I and L for 1, O for 0, and small
/// letters for capitals, so these slips do no harm. All letters are in the alphanumeric set of QR
/// codes (ISO/IEC 18004), which makes the codes smaller.
static BASE32: LazyLock<Encoding> = LazyLock::new(|| {
    let mut alphabet = Specification::new();
    alphabet.symbols = "0123456789ABCDEFGHJKMNPQRSTVWXYZ".into();
    alphabet.translate.from = "abcdefghjkmnpqrstvwxyzIiLlOo".into();
    alphabet.translate.to = "ABCDEFGHJKMNPQRSTVWXYZ111100".into();
    alphabet.encoding().expect("32 different letters, and none of them is translated")
});

/// Writes bytes as lower-case hex.
pub fn hex(bytes: &[u8]) -> String {
    HEXLOWER.encode(bytes)
}

/// Reads `N` bytes from `2 * N` hex digits of either case.
pub fn from_hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let mut out = [0; N];
    if text.len() != 2 * N {
        return None;
    }
    HEXLOWER_PERMISSIVE.decode_mut(text.as_bytes(), &mut out).ok()?;
    Some(out)
}

/// Writes bytes as base 64 with padding (RFC 4648 section 4).
pub fn base64(bytes: &[u8]) -> String {
    BASE64.encode(bytes)
}

/// Reads base 64 with padding.
pub fn from_base64(text: &str) -> Option<Vec<u8>> {
    // The library also reads several padded texts in a row.
    let is_one = !text.trim_end_matches('=').contains('=');
    if is_one { BASE64.decode(text.as_bytes()).ok() } else { None }
}

/// Number of base 32 letters for `bytes` bytes.
pub fn base32_len(bytes: usize) -> usize {
    BASE32.encode_len(bytes)
}

/// Appends bytes as base 32 letters. Unused bits of the last letter are zero.
pub fn append_base32(bytes: &[u8], out: &mut String) {
    BASE32.encode_append(bytes, out);
}

/// True if base 32 has this letter, or reads it as another one.
pub fn is_base32(letter: char) -> bool {
    // Two letters hold one byte; the second one leaves no unused bits.
    u8::try_from(letter).is_ok_and(|letter| BASE32.decode_mut(&[letter, b'0'], &mut [0]).is_ok())
}

/// Reads base 32 letters.
pub fn from_base32(letters: &str) -> Option<Vec<u8>> {
    BASE32.decode(letters.as_bytes()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn base32(bytes: &[u8]) -> String {
        let mut out = String::new();
        append_base32(bytes, &mut out);
        out
    }

    #[test]
    fn hex_has_two_digits_for_each_byte() {
        assert_eq!(hex(&[0, 0x0f, 0xa5]), "000fa5");
        assert_eq!(from_hex("000Fa5"), Some([0, 0x0f, 0xa5]));
        assert_eq!(from_hex(""), Some([]));
        for wrong in ["", "0", "000fa", "000fa50", "000fag", "+00fa5", " 00fa5", "00\u{e9}a5"] {
            assert_eq!(from_hex::<3>(wrong), None, "{wrong}");
        }
    }

    /// The texts are those of RFC 4648 section 10.
    #[test]
    fn base64_has_one_spelling() {
        for (bytes, text) in [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foobar", "Zm9vYmFy")] {
            assert_eq!(base64(bytes.as_bytes()), text);
            assert_eq!(from_base64(text).as_deref(), Some(bytes.as_bytes()));
        }
        let wrong =
            ["Zg", "Zg=", "Zh==", "Zg==\n", "Zm8=Zg==", "Zm8=Zm9v", "=", "====", "Zm9-", "é"];
        for wrong in wrong {
            assert_eq!(from_base64(wrong), None, "{wrong}");
        }
    }

    /// Expected texts come from another implementation: Python's `base64.b32encode`, letters
    /// exchanged.
    #[test]
    fn base32_has_crockfords_letters() {
        assert_eq!(base32(b""), "");
        assert_eq!(base32(b"f"), "CR");
        assert_eq!(base32(b"fo"), "CSQG");
        assert_eq!(base32(b"foobar"), "CSQPYRK1E8");
        assert_eq!(base32(&[255; 5]), "ZZZZZZZZ");
        // A length that no bytes have, and unused bits.
        assert_eq!(["C", "CRC", "CS"].map(from_base32), [None, None, None]);
    }

    #[test]
    fn letters_that_look_like_digits_are_read_as_digits() {
        assert_eq!(from_base32("oOiIlLzZ"), from_base32("001111ZZ"));
        assert!(from_base32("001111ZZ").is_some());
        for code in 0..=0x2ff_u32 {
            let letter = char::from_u32(code).unwrap();
            let is_letter = letter.is_ascii_alphanumeric() && !matches!(letter, 'u' | 'U');
            assert_eq!(is_base32(letter), is_letter, "{letter:?}");
        }
        assert!(!is_base32('\u{130}') && !is_base32('１'));
    }

    proptest! {
        #[test]
        fn encoded_bytes_are_read_back(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let letters = base32(&bytes);
            prop_assert_eq!(letters.len(), base32_len(bytes.len()));
            prop_assert_eq!(from_base32(&letters.to_lowercase()), Some(bytes.clone()));
            prop_assert_eq!(from_base64(&base64(&bytes)), Some(bytes));
        }
    }
}
