//! Checks of file names from the network.

use shoal_crypto::encoding::hex;
use shoal_daemon::control::api::MAX_FILE_NAME;

/// Longest part of a path that file systems take, in bytes.
const MAX_PART: usize = 255;
/// Most folders in a name.
const MAX_DEPTH: usize = 32;
/// Ending of the name of an incomplete file.
pub const PART: &str = ".shoal-part";
/// Ending of the name of a record of arrived chunks.
pub const STATE: &str = ".shoal-state";

/// Splits a name into parts, each fit to be created beneath the receive folder, or says why not.
///
/// Refused are paths that leave the folder (absolute, `..`), and names that a file system can't
/// hold. Refused are also characters that deceive a reader (they move the cursor or override the
/// direction of text). A hidden first part is refused, since nobody expects a `.profile` in the
/// home folder.
pub fn parts(name: &str) -> Result<Vec<&str>, &'static str> {
    if name.is_empty() {
        return Err("the name is empty");
    }
    if name.len() > MAX_FILE_NAME {
        return Err("the name is too long");
    }
    if name.starts_with('/') {
        return Err("the name is absolute");
    }
    if name.starts_with('.') {
        return Err("the name is hidden (begins with a dot)");
    }
    let turns = |c: char| crate::unseen::turns(c) && !crate::unseen::is_mark(c);
    if name.chars().any(|c| c.is_control() || turns(c)) {
        return Err("the name holds control characters");
    }
    let parts: Vec<&str> = name.split('/').collect();
    if parts.len() > MAX_DEPTH {
        return Err("the name has too many folders");
    }
    for part in &parts {
        match *part {
            "" => return Err("the name has an empty part"),
            "." | ".." => return Err("the name has a part '.' or '..'"),
            part if part.len() > MAX_PART => return Err("a part of the name is too long"),
            part if is_own(part) => return Err("the name is one that shoal itself uses"),
            _ => {}
        }
    }
    Ok(parts)
}

/// True if `shoal receive` uses such a name for an incomplete file or its record.
pub fn is_own(part: &str) -> bool {
    // A record is written under its name with a tilde, and then renamed.
    let name = part.strip_suffix('~').unwrap_or(part);
    part.starts_with('.') && (name.ends_with(PART) || name.ends_with(STATE))
}

/// Name beside `file` for the part or the state of its transfer from the host `from`; short enough
/// for any file system. Each sender has another one.
pub fn beside(file: &str, from: &str, end: &str) -> String {
    const ROOM: usize = 180;
    // No file name holds a zero byte.
    let hash = shoal_crypto::hash(format!("{file}\0{from}").as_bytes());
    format!(".{}-{}{end}", cut(file, ROOM), hex(&hash[..8]))
}

/// `report.pdf` with a number: `report.1.pdf`. A name that would be too long for a file system
/// loses characters before the number.
pub fn numbered(file: &str, n: u32) -> String {
    /// Longest ending of a name that stays behind the number.
    const ENDING_MAX: usize = 64;
    let (stem, end) = match file.rsplit_once('.') {
        Some((stem, end)) if !stem.is_empty() && end.len() <= ENDING_MAX => (stem, Some(end)),
        _ => (file, None),
    };
    let tail = end.map_or(format!(".{n}"), |end| format!(".{n}.{end}"));
    format!("{}{tail}", cut(stem, MAX_PART - tail.len()))
}

/// The front of a text, of at most `most` bytes.
fn cut(text: &str, most: usize) -> &str {
    let mut end = text.len().min(most);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn ordinary_names_pass() {
        for name in [
            "a",
            "a b.txt",
            "photos/2026/ä.jpg",
            "dir/.gitignore",
            "a..b",
            "x\\y",
            "می\u{200c}خواهم",
            "\u{5e9}\u{5dc}\u{200e} (1).txt",
            "\u{200f}\u{62f}\u{644}\u{61c}.pdf",
        ] {
            assert!(parts(name).is_ok(), "{name}");
        }
    }

    #[test]
    fn names_that_leave_hide_or_deceive_are_refused() {
        let long = "x".repeat(256);
        let deep = "d/".repeat(40) + "f";
        for name in [
            "",
            "/etc/passwd",
            "..",
            "../x",
            "a/../b",
            "a/..",
            "a//b",
            "a/",
            "./a",
            ".profile",
            ".ssh/authorized_keys",
            "a\0b",
            "a\nb",
            "a\x1b[2J",
            "dir/.x.shoal-part",
            "dir/.x.shoal-state",
            "dir/.x.shoal-state~",
            "gpj.\u{202e}exe",
            "gpj.\u{202b}exe",
            "a\u{2066}b",
            "a\u{2028}b",
            &long,
            &deep,
        ] {
            assert!(parts(name).is_err(), "{name:?}");
        }
    }

    #[test]
    fn numbers_stand_before_the_ending() {
        assert_eq!(numbered("report.pdf", 1), "report.1.pdf");
        assert_eq!(numbered("README", 2), "README.2");
        assert_eq!(numbered(".hidden", 2), ".hidden.2");
        for file in ["n".repeat(255), "é".repeat(127) + "x", "a.".to_owned() + &"b".repeat(253)] {
            let name = numbered(&file, 9_999);
            assert!(name.len() <= 255 && name.ends_with(".9999"), "{name}");
        }
        let name = numbered(&("n".repeat(250) + ".pdf"), 12);
        assert_eq!((name.len(), &name[246..]), (255, "nn.12.pdf"));
    }

    proptest! {
        #[test]
        fn what_passes_stays_beneath(name in "[a-c./\\\\\u{0}-\u{20}é]{0,40}") {
            if let Ok(parts) = parts(&name) {
                prop_assert_eq!(parts.join("/"), name.as_str());
                for part in parts {
                    prop_assert!(!part.is_empty() && part != "." && part != "..");
                    prop_assert!(!part.contains('/') && !part.contains('\0'));
                }
            }
        }

        #[test]
        fn names_beside_fit_and_belong_to_one_sender(file in "[^/\0]{1,255}") {
            for end in [PART, STATE] {
                let names = ["alice", "bob"].map(|from| beside(&file, from, end));
                prop_assert!(names.iter().all(|name| name.len() < 255 && is_own(name)));
                prop_assert_ne!(&names[0], &names[1]);
            }
        }
    }
}
