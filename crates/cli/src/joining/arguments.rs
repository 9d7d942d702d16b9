//! Takes secrets out of this process's arguments, which every user of the machine can list.
//!
//! The kernel shows the arguments from this process's memory (proc(5), `cmdline`), and gives their
//! address (`arg_start` in `stat`). The arguments are overwritten there.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;

/// Index of `arg_start` among the fields of `stat` after the name, which ends with ")".
const ARG_START: usize = 48 - 3;
/// Byte that replaces each byte of an invite.
const HIDDEN: u8 = b'x';

/// Overwrites each argument that equals one of these words.
///
/// # Errors
///
/// The arguments are not at the address that the kernel gives, or can't be written.
pub fn hide(words: &[String]) -> io::Result<()> {
    let stat = fs::read_to_string("/proc/self/stat")?;
    let behind = stat.rsplit_once(')').map(|(_, behind)| behind);
    let start = behind.and_then(|text| text.split_whitespace().nth(ARG_START)?.parse::<u64>().ok());
    let start = start.filter(|start| *start != 0).ok_or(io::ErrorKind::NotFound)?;
    let memory = OpenOptions::new().write(true).open("/proc/self/mem")?;
    for (at, len) in places(&fs::read("/proc/self/cmdline")?, words) {
        memory.write_all_at(&vec![HIDDEN; len], start + at as u64)?;
    }
    let left = fs::read("/proc/self/cmdline")?;
    if places(&left, words).is_empty() { Ok(()) } else { Err(io::ErrorKind::Other.into()) }
}

/// Positions and lengths of the words in a command line, without the program's own name.
fn places(line: &[u8], words: &[String]) -> Vec<(usize, usize)> {
    let mut at = 0;
    let arguments = line.split(|byte| *byte == 0).map(|word| {
        let begins = at;
        at += word.len() + 1;
        (begins, word)
    });
    let is_one = |word: &[u8]| !word.is_empty() && words.iter().any(|w| w.as_bytes() == word);
    let found = arguments.skip(1).filter(|(_, word)| is_one(word));
    found.map(|(begins, word)| (begins, word.len())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_found_where_they_stand() {
        let words = ["SHOAL:1/AB".to_owned(), "CD".to_owned()];
        let line = b"shoal\0up\0SHOAL:1/AB\0CD\0--dir\0x\0";
        assert_eq!(places(line, &words), [(9, 10), (20, 2)]);
        assert_eq!(places(b"CD\0up\0\0", &words), []);
    }
}
