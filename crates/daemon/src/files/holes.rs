//! Writes chunks of arriving files. Long runs of zeroes become holes, which use no disk space.
//!
//! Disk images and databases are mostly zeroes. A hole reads as zeroes, so the content is the same.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use nix::fcntl::{FallocateFlags, fallocate};

/// Bytes of an aligned block that becomes a hole if all of it is zero. Smaller blocks would split
/// files into more extents than the saved space is worth.
const BLOCK: u64 = 32 << 10;

/// End of the bytes that an earlier transfer may have left in the file, and the file's length.
#[derive(Debug)]
pub struct Holes {
    old: u64,
    len: u64,
}

impl Holes {
    /// State for a file of `len` bytes.
    pub fn new(len: u64) -> Holes {
        Holes { old: len, len }
    }

    /// Writes `bytes` at `at`. Blocks of zeroes become holes if the file system supports them.
    ///
    /// # Errors
    /// An error of the disk.
    pub fn write(&mut self, file: &File, bytes: &[u8], at: u64) -> io::Result<()> {
        let (mut done, mut ends_in_hole) = (0, false);
        while done < bytes.len() {
            let from = at + done as u64;
            let (zero, len) = run(&bytes[done..], from);
            let part = &bytes[done..done + len];
            match zero {
                true => self.skip(file, part, from)?,
                false => file.write_all_at(part, from)?,
            }
            (done, ends_in_hole) = (done + len, zero);
        }
        let end = at + bytes.len() as u64;
        if end > self.len && ends_in_hole {
            file.set_len(end)?;
        }
        self.len = self.len.max(end);
        Ok(())
    }

    /// Makes a hole of a part that is all zeroes.
    fn skip(&self, file: &File, part: &[u8], from: u64) -> io::Result<()> {
        // Nothing was ever written behind the old end, and no chunk is written twice.
        if from >= self.old {
            return Ok(());
        }
        let how = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
        let place = i64::try_from(from).ok().zip(i64::try_from(part.len()).ok());
        let punched = place.is_some_and(|(at, len)| fallocate(file, how, at, len).is_ok());
        if punched { Ok(()) } else { file.write_all_at(part, from) }
    }
}

/// Length of the run of equal blocks at the front of `bytes`, and true if they are zeroes. `at` is
/// their position in the file. A partial block at either end counts as a block.
fn run(bytes: &[u8], at: u64) -> (bool, usize) {
    let mut end = 0;
    let mut alike = None;
    while end < bytes.len() {
        let from = at + end as u64;
        let len = ((BLOCK - from % BLOCK) as usize).min(bytes.len() - end);
        let zero = bytes[end..end + len].iter().all(|byte| *byte == 0);
        if alike.is_some_and(|alike| alike != zero) {
            break;
        }
        alike = Some(zero);
        end += len;
    }
    (alike == Some(true), end)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Seek, Write};
    use std::os::unix::fs::MetadataExt;

    use super::*;

    fn content(file: &mut File) -> Vec<u8> {
        let mut bytes = Vec::new();
        file.rewind().unwrap();
        file.read_to_end(&mut bytes).unwrap();
        bytes
    }

    #[test]
    fn zeroes_take_no_room_and_read_as_they_were() {
        const CHUNK: usize = 192 * 1_366;
        let mut bytes = vec![0; 40 * CHUNK + 17];
        bytes[3 * CHUNK + 5] = 1;
        bytes[20 * CHUNK..21 * CHUNK].fill(7);
        for order in [false, true] {
            let mut file = tempfile::tempfile().unwrap();
            let mut holes = Holes::new(0);
            let mut chunks: Vec<(usize, &[u8])> = bytes.chunks(CHUNK).enumerate().collect();
            if order {
                chunks.reverse();
            }
            for (i, chunk) in chunks {
                holes.write(&file, chunk, (i * CHUNK) as u64).unwrap();
            }
            assert!(content(&mut file) == bytes);
            let room = file.metadata().unwrap().blocks() * 512;
            assert!(room < 4 * CHUNK as u64, "{room} bytes on the disk");
        }
    }

    #[test]
    fn zeroes_replace_what_an_earlier_transfer_left() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[9; 200_000]).unwrap();
        let mut holes = Holes::new(200_000);
        holes.write(&file, &[0; 150_000], 10_000).unwrap();
        holes.write(&file, &[0; 150_000], 160_000).unwrap();
        let mut wanted = vec![9; 10_000];
        wanted.resize(310_000, 0);
        assert!(content(&mut file) == wanted);
    }

    #[test]
    fn runs_end_where_blocks_change() {
        let block = BLOCK as usize;
        let mut bytes = vec![0; 5 * block];
        bytes[2 * block] = 1;
        let at = BLOCK * 9;
        assert_eq!(run(&bytes, at), (true, 2 * block));
        assert_eq!(run(&bytes[2 * block..], at), (false, block));
        assert_eq!(run(&bytes[3 * block..], at), (true, 2 * block));
        assert_eq!(run(&bytes, at - 100), (true, 100 + block), "the next block has the byte");
        assert_eq!(run(&[], at), (false, 0));
    }
}
