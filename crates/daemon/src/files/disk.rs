//! One thread per transfer that reads or writes the file and hashes it.
//!
//! ```text
//! worker -- Read{index, buffer}  --> source thread: pread, hash in order --> Read, Hashed
//! worker -- Write{index, buffer} --> sink thread: pwrite, hash in order  --> Written, Hashed
//! ```
//!
//! The hash is BLAKE3 of the whole file, computed strictly in order. A chunk that arrives in order
//! is hashed from memory. Chunks that were skipped (resume) or arrived out of order are read again
//! while no request waits, usually from the page cache. Files are read and written by position, and
//! never mapped. A file that shrinks meanwhile therefore causes an error and no signal.
//!
//! Invariant: the worker never waits for a disk. It owns a bounded number of buffers, and so bounds
//! the queues. Each buffer comes back.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::Builder;
use std::time::Duration;

use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};

use shoal_crypto::Hasher;

use crate::files::holes::Holes;
use crate::worker::wake::WakingOutlet;

/// Most requests that wait for one file: more than the chunk buffers of one transfer.
pub const QUEUE: usize = 4_096;
/// A source that is not read for this long is hashed to its end: the receiver already has the rest.
const IDLE: Duration = Duration::from_millis(50);
/// Existing chunks that a sink may hash for each chunk that it writes. This bounds the reads that a
/// sender causes by the bytes that it sends.
const EARNED: u32 = 16;
/// Stack of a disk thread in bytes: it holds no large values.
const STACK: usize = 128 << 10;

/// A request to a disk thread.
#[derive(Debug)]
pub enum DiskRequest {
    /// Reads the first `len` bytes of chunk `index` into `buffer`.
    Read {
        index: u32,
        /// Filled from its first byte on.
        buffer: Box<[u8]>,
        /// Bytes of the chunk. The last chunk may be shorter than the buffer.
        len: usize,
    },
    /// Writes the first `len` bytes of `buffer` as chunk `index`.
    Write { index: u32, buffer: Box<[u8]>, len: usize },
    /// Requests the hash as soon as the file is complete (sink) or was read to its end (source).
    Hash,
}

/// An answer of a disk thread.
#[derive(Debug)]
pub enum DiskReply {
    /// The chunk is in the buffer.
    Read {
        index: u32,
        /// The buffer of the request.
        buffer: Box<[u8]>,
    },
    /// The chunk is in the file.
    Written {
        index: u32,
        /// The buffer of the request.
        buffer: Box<[u8]>,
    },
    /// BLAKE3 of the whole file.
    Hashed([u8; 32]),
    /// The file has become unusable. No further answer follows.
    Failed(FileFailure),
}

/// Reason why a file has become unusable.
#[derive(Debug)]
pub enum FileFailure {
    /// The source is shorter than offered, or was changed since.
    Changed,
    /// An error of the disk.
    Disk(io::Error),
}

impl FileFailure {
    /// The reason, for the person at this end.
    pub fn words(&self) -> String {
        match self {
            FileFailure::Changed => "the file changed while it was being sent".into(),
            FileFailure::Disk(e) => match e.raw_os_error() {
                Some(libc::ENOSPC) => "no space left on the device".into(),
                Some(libc::EDQUOT) => "the disk quota is used up".into(),
                Some(libc::EFBIG) => {
                    "the file system or a limit allows no file of that size".into()
                }
                _ => e.to_string(),
            },
        }
    }
}

/// The file of one transfer, and its division into chunks.
#[derive(Debug)]
pub struct DiskJob {
    /// Open for reading (source), or for reading and writing (sink).
    pub file: File,
    /// Bytes of the whole file.
    pub size: u64,
    /// Bytes of every chunk but the last.
    pub chunk: usize,
    /// Half-open ranges of chunks. For a sink: existing chunks, which are hashed in step with
    /// writes, and completely once the hash is requested. For a source: all chunks if the receiver
    /// already has them, so that none will be read for it.
    pub have: Vec<(u32, u32)>,
    /// True for a file that is read and sent.
    pub source: bool,
}

/// The worker's handle of a disk thread. Dropping it ends the thread after the current task.
#[derive(Debug)]
pub struct DiskThread {
    requests: SyncSender<DiskRequest>,
}

impl DiskThread {
    /// Starts the thread. `wrap` converts its answers for the channel `answers`.
    pub fn start<A: Send + 'static>(
        job: DiskJob,
        answers: WakingOutlet<A>,
        wrap: impl Fn(DiskReply) -> A + Send + 'static,
    ) -> io::Result<DiskThread> {
        let (requests, incoming) = sync_channel(QUEUE);
        let name = if job.source { "shoal-read" } else { "shoal-write" };
        Builder::new().name(name.into()).stack_size(STACK).spawn(move || {
            let work = DiskWorker::new(job);
            let answer = |a| answers.send(wrap(a)).map_err(|_| DiskThreadEnd::Gone);
            if let Err(DiskThreadEnd::Failed(failure)) =
                work.and_then(|mut w| w.serve(&incoming, &answer))
            {
                let _gone = answer(DiskReply::Failed(failure));
            }
        })?;
        Ok(DiskThread { requests })
    }

    /// Queues a request. Returns it if the thread has ended or its queue is full.
    pub fn ask(&self, request: DiskRequest) -> Result<(), DiskRequest> {
        self.requests.try_send(request).map_err(|e| match e {
            std::sync::mpsc::TrySendError::Full(r) => r,
            std::sync::mpsc::TrySendError::Disconnected(r) => r,
        })
    }
}

/// Reason why a disk thread ends.
enum DiskThreadEnd {
    /// The worker is gone, or needs nothing more.
    Gone,
    /// The file failed.
    Failed(FileFailure),
}

impl From<io::Error> for DiskThreadEnd {
    fn from(error: io::Error) -> DiskThreadEnd {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => DiskThreadEnd::Failed(FileFailure::Changed),
            _ => DiskThreadEnd::Failed(FileFailure::Disk(error)),
        }
    }
}

struct DiskWorker {
    job: DiskJob,
    chunks: u32,
    /// Time of the last change in seconds and nanoseconds, when the job began.
    modified: (i64, i64),
    present: Vec<bool>,
    /// Chunks hashed so far: the hash covers exactly these, from the first on.
    hashed: u32,
    /// Existing chunks that a sink may hash before its hash is requested.
    earned: u32,
    /// End of the chunks of a source that were read.
    passed: u32,
    hasher: Hasher,
    scratch: Vec<u8>,
    hash_wanted: bool,
    holes: Holes,
}

impl DiskWorker {
    fn new(job: DiskJob) -> Result<DiskWorker, DiskThreadEnd> {
        let meta = job.file.metadata()?;
        if job.source && meta.len() != job.size {
            return Err(DiskThreadEnd::Failed(FileFailure::Changed));
        }
        let chunks = u32::try_from(job.size.div_ceil(job.chunk.max(1) as u64)).map_err(|_| {
            DiskThreadEnd::Failed(FileFailure::Disk(io::Error::from_raw_os_error(libc::EFBIG)))
        })?;
        let mut present = vec![job.source; chunks as usize];
        for &(from, to) in &job.have {
            let (from, to) = (from.min(chunks) as usize, to.min(chunks) as usize);
            present.get_mut(from..to).unwrap_or_default().fill(true);
        }
        // Advice only. Pipes and some file systems refuse it, without harm.
        let _refused = posix_fadvise(&job.file, 0, 0, PosixFadviseAdvice::POSIX_FADV_SEQUENTIAL);
        let modified = (meta.mtime(), meta.mtime_nsec());
        let whole = job.source && job.have.first() == Some(&(0, chunks));
        let passed = if whole { chunks } else { 0 };
        let hasher = Hasher::new();
        let scratch = Vec::new();
        Ok(DiskWorker {
            job,
            chunks,
            modified,
            present,
            hashed: 0,
            earned: 0,
            passed,
            hasher,
            scratch,
            hash_wanted: false,
            holes: Holes::new(meta.len()),
        })
    }

    /// Runs until the end. Requests come first; waiting chunks are hashed in between.
    fn serve(
        &mut self,
        requests: &Receiver<DiskRequest>,
        answer: &impl Fn(DiskReply) -> Result<(), DiskThreadEnd>,
    ) -> Result<(), DiskThreadEnd> {
        loop {
            let wait = if self.behind() {
                Duration::ZERO
            } else if self.hash_wanted {
                IDLE
            } else {
                Duration::MAX
            };
            match requests.recv_timeout(wait) {
                Ok(request) => self.handle(request, answer)?,
                Err(RecvTimeoutError::Disconnected) => return Err(DiskThreadEnd::Gone),
                Err(RecvTimeoutError::Timeout) if self.behind() => self.hash_next()?,
                // No more reads come: the rest of the source is read only for the hash.
                Err(RecvTimeoutError::Timeout) => self.passed = self.chunks,
            }
            if self.hash_wanted && self.hashed == self.chunks {
                self.hash_wanted = false;
                self.check_unchanged()?;
                answer(DiskReply::Hashed(self.hasher.finalize()))?;
            }
        }
    }

    /// True if the next chunk can be hashed now. A source's chunk is hashed no sooner than it is
    /// read for sending: reading it twice would cost more than waiting.
    fn behind(&self) -> bool {
        let there = self.present.get(self.hashed as usize).is_some_and(|p| *p);
        let due = match self.job.source {
            true => self.hash_wanted && self.hashed < self.passed,
            false => self.hash_wanted || self.earned > 0,
        };
        there && due
    }

    fn handle(
        &mut self,
        request: DiskRequest,
        answer: &impl Fn(DiskReply) -> Result<(), DiskThreadEnd>,
    ) -> Result<(), DiskThreadEnd> {
        match request {
            DiskRequest::Read { index, mut buffer, len } => {
                let len = len.min(buffer.len());
                self.job.file.read_exact_at(&mut buffer[..len], self.offset(index))?;
                self.passed = self.passed.max(index.saturating_add(1));
                if index == self.hashed {
                    self.hasher.update(&buffer[..len]);
                    self.hashed += 1;
                }
                answer(DiskReply::Read { index, buffer })
            }
            DiskRequest::Write { index, buffer, len } => {
                let len = len.min(buffer.len());
                let at = self.offset(index);
                self.holes.write(&self.job.file, &buffer[..len], at)?;
                if let Some(present) = self.present.get_mut(index as usize) {
                    *present = true;
                }
                self.earned = self.earned.saturating_add(EARNED);
                if index == self.hashed {
                    self.hasher.update(&buffer[..len]);
                    self.hashed += 1;
                }
                answer(DiskReply::Written { index, buffer })?;
                // Each written chunk allows one waiting chunk to be hashed, so that a busy disk
                // leaves no long hashing for the end.
                if self.behind() { self.hash_next() } else { Ok(()) }
            }
            DiskRequest::Hash => {
                self.hash_wanted = true;
                Ok(())
            }
        }
    }

    fn hash_next(&mut self) -> Result<(), DiskThreadEnd> {
        let at = self.offset(self.hashed);
        let len = (self.job.size - at).min(self.job.chunk as u64) as usize;
        self.scratch.resize(self.job.chunk, 0);
        self.job.file.read_exact_at(&mut self.scratch[..len], at)?;
        self.hasher.update(&self.scratch[..len]);
        self.hashed += 1;
        self.earned = self.earned.saturating_sub(1);
        Ok(())
    }

    fn offset(&self, index: u32) -> u64 {
        u64::from(index) * self.job.chunk as u64
    }

    fn check_unchanged(&self) -> Result<(), DiskThreadEnd> {
        let meta = self.job.file.metadata()?;
        let same =
            meta.len() == self.job.size && (meta.mtime(), meta.mtime_nsec()) == self.modified;
        if self.job.source && !same {
            Err(DiskThreadEnd::Failed(FileFailure::Changed))
        } else {
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests;
