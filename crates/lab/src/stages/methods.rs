//! Methods to read and write a file, the paper's and current ones.
#![allow(unsafe_code)]

use std::fs::File;
use std::hint::black_box;
use std::io::{BufRead, BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::num::NonZeroUsize;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result};
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};
use shoal_crypto::quantile::median;

use super::{CHUNK_SEGMENTS, SEGMENT, all};
use crate::record::ReportTable;

/// Size of the file in bytes, as in the paper.
pub const BYTES: usize = 500_000_000;
/// Bytes per call in the paper.
const PIECE: usize = 1_024;
/// Bytes in a chunk.
const CHUNK: usize = SEGMENT * CHUNK_SEGMENTS;
/// Bytes read with one system call per byte: few, since that is slow.
const SINGLE_BYTES: usize = 5_000_000;
/// Number of runs of each method; the median is reported.
const RUNS: usize = 3;

/// Time per segment if files are accessed by chunks, in nanoseconds.
pub struct ChunkTimes {
    pub read: f64,
    /// Writing into a new file.
    pub write: f64,
}

/// Measures a file of 200 MB in `folder`.
pub fn chunk_times(folder: &Path) -> Result<ChunkTimes> {
    let (chunks, block) = (200_000_000 / CHUNK, vec![0x5a; CHUNK]);
    let path = folder.join("chunks");
    let write = median_s(|| write_at(&path, &block, chunks))?;
    let read = median_s(|| {
        let (file, mut block) = (File::open(&path)?, vec![0; CHUNK]);
        (0..chunks).try_for_each(|i| file.read_exact_at(&mut block, (i * CHUNK) as u64))?;
        Ok(())
    })?;
    std::fs::remove_file(&path)?;
    let segments = (chunks * CHUNK_SEGMENTS) as f64;
    Ok(ChunkTimes { read: read * 1e9 / segments, write: write * 1e9 / segments })
}

fn write_at(path: &Path, block: &[u8], chunks: usize) -> Result<()> {
    let file = File::create(path)?;
    (0..chunks).try_for_each(|i| file.write_all_at(block, (i * block.len()) as u64))?;
    Ok(())
}

fn median_s(mut work: impl FnMut() -> Result<()>) -> Result<f64> {
    let mut runs = Vec::new();
    for _ in 0..RUNS {
        crate::interrupt::check()?;
        let start = Instant::now();
        work()?;
        runs.push(start.elapsed().as_secs_f64());
    }
    median(&runs).context("no runs")
}

/// Both comparisons of the paper.
pub fn tables(folder: &Path) -> Result<Vec<ReportTable>> {
    let path = folder.join("source");
    write_at(&path, &vec![0x5a; 1_000_000], BYTES / 1_000_000)?;
    let file = || File::open(&path).context("the file that was just written");
    let mut rows = Vec::new();
    let mut add = |name: &str, seconds: f64| rows.push((name.to_owned(), vec![Some(seconds)]));
    let single = median_s(|| {
        let (mut file, mut byte) = (file()?, [0]);
        (0..SINGLE_BYTES).try_for_each(|_| file.read_exact(&mut byte))?;
        Ok(())
    })?;
    add("read, 1 byte a call (scaled up)", single * (BYTES / SINGLE_BYTES) as f64);
    add("fgetc: 1 byte from a buffer", median_s(|| by_bytes(file()?))?);
    add("fread: 1,024 from a buffer", median_s(|| by_pieces(BufReader::new(file()?), PIECE))?);
    add("read, 1,024 a call", median_s(|| by_pieces(file()?, PIECE))?);
    add("mmap", median_s(|| mapped_sum(&file()?))?);
    add("pread, a chunk a call (Shoal)", median_s(|| by_pieces(file()?, CHUNK))?);
    let read = ReportTable {
        mixed: false,
        title: "Reading 500 MB".into(),
        columns: vec!["way".into(), "seconds".into()],
        rows,
        unit: "s, of a file in the page cache".into(),
    };
    let target = folder.join("target");
    let mut rows = Vec::new();
    let mut add = |name: &str, seconds: f64| rows.push((name.to_owned(), vec![Some(seconds)]));
    let copy = |mut out: Box<dyn Write>, piece: usize| -> Result<()> {
        let (mut from, mut block) = (file()?, vec![0; piece]);
        loop {
            match from.read(&mut block)? {
                0 => return Ok(out.flush()?),
                n => out.write_all(&block[..n])?,
            }
        }
    };
    let fresh = || File::create(&target).context("the target");
    add("fwrite + read, 1,024", median_s(|| copy(Box::new(BufWriter::new(fresh()?)), PIECE))?);
    add("write + read, 1,024 a call", median_s(|| copy(Box::new(fresh()?), PIECE))?);
    add("mmap both", median_s(|| mapped_copy(&file()?, &target))?);
    add("pwrite + pread, a chunk a call (Shoal)", median_s(|| copy(Box::new(fresh()?), CHUNK))?);
    let write = ReportTable {
        mixed: false,
        title: "Reading and writing 500 MB".into(),
        columns: vec!["way".into(), "seconds".into()],
        rows,
        unit: "s, into a new file in the page cache; the paper's worst case is 4.5 s".into(),
    };
    Ok(vec![read, write])
}

fn by_bytes(file: File) -> Result<()> {
    let (mut reader, mut sum, mut count) = (BufReader::new(file), 0u64, 0);
    loop {
        let bytes = reader.fill_buf()?;
        if bytes.is_empty() {
            break;
        }
        let len = bytes.len();
        for byte in bytes {
            sum = black_box(sum + u64::from(*byte));
        }
        count += len;
        reader.consume(len);
    }
    all(count, BYTES)
}

fn by_pieces(mut from: impl Read, piece: usize) -> Result<()> {
    let (mut block, mut count) = (vec![0; piece], 0);
    loop {
        match from.read(&mut block)? {
            0 => return all(count, BYTES),
            n => count += n,
        }
        black_box(&block);
    }
}

/// A mapping of a whole file, unmapped when dropped.
struct FileMapping {
    at: std::ptr::NonNull<libc::c_void>,
    len: usize,
}

impl FileMapping {
    fn new(file: &File, len: usize, writable: bool) -> Result<FileMapping> {
        let size = NonZeroUsize::new(len).context("an empty file can't be mapped")?;
        let mut protection = ProtFlags::PROT_READ;
        protection.set(ProtFlags::PROT_WRITE, writable);
        // SAFETY: a new mapping at an address that the kernel chooses. Only this run uses the file,
        // and nobody shortens it while it is mapped.
        let at = unsafe { mmap(None, size, protection, MapFlags::MAP_SHARED, file, 0)? };
        Ok(FileMapping { at, len })
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: `len` bytes are mapped and readable as long as `self` lives.
        unsafe { std::slice::from_raw_parts(self.at.as_ptr().cast(), self.len) }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: `len` bytes are mapped, and all callers make the mapping writable; `self` is
        // borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.at.as_ptr().cast(), self.len) }
    }
}

impl Drop for FileMapping {
    fn drop(&mut self) {
        // SAFETY: the mapping belongs to this value, and nothing borrows from it any more.
        let _ = unsafe { munmap(self.at, self.len) };
    }
}

fn mapped_sum(file: &File) -> Result<()> {
    let mapping = FileMapping::new(file, BYTES, false)?;
    let mut block = [0; PIECE];
    for piece in mapping.bytes().chunks_exact(PIECE) {
        block.copy_from_slice(piece);
        black_box(&block);
    }
    Ok(())
}

fn mapped_copy(from: &File, target: &Path) -> Result<()> {
    let mut to = File::options().create(true).truncate(true).read(true).write(true).open(target)?;
    to.seek(SeekFrom::Start(BYTES as u64 - 1))?;
    to.write_all(&[0])?;
    let source = FileMapping::new(from, BYTES, false)?;
    let mut target = FileMapping::new(&to, BYTES, true)?;
    for (to, from) in target.bytes_mut().chunks_mut(PIECE).zip(source.bytes().chunks(PIECE)) {
        to.copy_from_slice(from);
    }
    Ok(())
}
