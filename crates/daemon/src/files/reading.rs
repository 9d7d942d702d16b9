//! Reads files that a person named, whole and without waiting.
//!
//! A read of a pipe could wait, a device never ends, and some devices act when they are opened.
//! Only regular files are therefore read, and only up to a generous length that the caller gives.

use std::fs::{File, FileType, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

/// Longest text that is read, in bytes: much longer than the largest list of hosts.
const TEXT_MAX: u64 = 64 << 20;

/// Opens a regular file for reading.
///
/// # Errors
/// The file can't be opened, or is not a regular one.
pub fn open(file: &Path) -> io::Result<File> {
    refuse_other(std::fs::metadata(file)?.file_type())?;
    let mut options = OpenOptions::new();
    // A pipe may have replaced the file since the check. Opening it must not block either.
    options.read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY);
    let opened = options.open(file)?;
    refuse_other(opened.metadata()?.file_type())?;
    Ok(opened)
}

/// The bytes of a regular file of at most `max` bytes.
///
/// # Errors
/// See [`open`]; or the file can't be read, or is longer.
pub fn read(file: &Path, max: u64) -> io::Result<Vec<u8>> {
    read_open(&open(file)?, max)
}

/// The bytes of an open file of at most `max` bytes.
///
/// # Errors
/// The file can't be read, or is longer.
pub fn read_open(file: &File, max: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(max.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > max {
        let most =
            if max >= 1 << 20 { format!("{} MiB", max >> 20) } else { format!("{max} bytes") };
        return Err(io::Error::other(format!("longer than {most}")));
    }
    Ok(bytes)
}

/// The text of a regular file.
///
/// # Errors
/// See [`open`]; or the file can't be read, is longer than 64 MiB, or is not UTF-8.
pub fn read_text(file: &Path) -> io::Result<String> {
    String::from_utf8(read(file, TEXT_MAX)?).map_err(|e| {
        let before = &e.as_bytes()[..e.utf8_error().valid_up_to()];
        let line = 1 + before.iter().filter(|byte| **byte == b'\n').count();
        io::Error::new(io::ErrorKind::InvalidData, format!("line {line} is no UTF-8"))
    })
}

fn refuse_other(kind: FileType) -> io::Result<()> {
    let what = match () {
        () if kind.is_file() => return Ok(()),
        () if kind.is_dir() => "a folder",
        () if kind.is_fifo() => "a pipe",
        () if kind.is_socket() => "a socket",
        () => "a device",
    };
    Err(io::Error::other(format!("is {what}; expected a regular file")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_regular_files_up_to_a_length_are_read_and_only_utf8_as_text() {
        let said = |file: &Path| read_text(file).expect_err("refused").to_string();
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(said(dir.path()), "is a folder; expected a regular file");
        assert_eq!(said(Path::new("/dev/zero")), "is a device; expected a regular file");
        let pipe = dir.path().join("pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::from_bits_truncate(0o600)).unwrap();
        assert_eq!(said(&pipe), "is a pipe; expected a regular file");
        let socket = dir.path().join("socket");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        assert_eq!(said(&socket), "is a socket; expected a regular file");
        let file = dir.path().join("text");
        std::fs::write(&file, b"[node]\nname = \"a\xff\"\n").unwrap();
        assert_eq!(said(&file), "line 2 is no UTF-8");
        std::fs::write(&file, "\u{feff}[node]\r\n").unwrap();
        assert_eq!(read_text(&file).unwrap(), "\u{feff}[node]\r\n");
        assert_eq!(read(&file, 11).unwrap().len(), 11);
        assert_eq!(read(&file, 10).unwrap_err().to_string(), "longer than 10 bytes");
        // The system reports length 0 for this file. The bytes read count.
        assert!(read(Path::new("/proc/self/status"), 10).is_err());
    }
}
