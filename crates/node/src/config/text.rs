//! Files that people write, read whole.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// Longest file that is read, in bytes: the largest list of hosts is well below it.
const MAX_LEN: u64 = 64 << 20;

/// The text of `file`, which may be a pipe.
///
/// # Errors
/// It can't be read, is longer than 64 MiB (a device never ends), or is no UTF-8.
pub fn read_text(file: &Path) -> io::Result<String> {
    let mut bytes = Vec::new();
    File::open(file)?.take(MAX_LEN + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_LEN {
        return Err(io::Error::other(format!("longer than {} MiB", MAX_LEN >> 20)));
    }
    String::from_utf8(bytes).map_err(|e| {
        let before = &e.as_bytes()[..e.utf8_error().valid_up_to()];
        let line = 1 + before.iter().filter(|byte| **byte == b'\n').count();
        io::Error::new(io::ErrorKind::InvalidData, format!("line {line} is no UTF-8"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_never_ends_and_what_is_no_text_is_refused() {
        let said = |file: &Path| read_text(file).expect_err("refused").to_string();
        assert_eq!(said(Path::new("/dev/zero")), "longer than 64 MiB");
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), b"[node]\nname = \"a\xff\"\n").unwrap();
        assert_eq!(said(file.path()), "line 2 is no UTF-8");
        std::fs::write(file.path(), "\u{feff}[node]\r\n").unwrap();
        assert_eq!(read_text(file.path()).unwrap(), "\u{feff}[node]\r\n");
    }
}
