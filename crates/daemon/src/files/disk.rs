//! One thread per transfer that reads or writes the file and hashes it.
//!
//! ```text
//! worker -- Read{index, buffer}  --> source thread: pread, hash in order --> Read, Hashed
//! worker -- Write{index, buffer} --> sink thread: pwrite, hash in order  --> Written, Hashed
//! ```
//!
//! The hash is BLAKE3 of the whole file, fed strictly in order. A chunk that comes in order is
//! hashed from memory; what was skipped (resume) or came out of order is read again, from the page
//! cache as a rule, while nothing else is asked for. Files are read and written by position, never
//! mapped: a file that shrinks meanwhile is an error and no signal.
//!
//! Invariant: the worker never waits for a disk. It owns the number of buffers, and so bounds the
//! queues; a buffer always comes back.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::Builder;
use std::time::Duration;

use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};

use shoal_crypto::Hasher;

use crate::files::holes::Holes;
use crate::worker::wake::Outlet;

/// Most requests that may wait for one file: more than the chunk buffers of one transfer.
pub const QUEUE: usize = 4_096;
/// A source that is not read for so long is hashed to its end: the receiver has the rest already.
const IDLE: Duration = Duration::from_millis(50);
/// Existing chunks that a sink may hash for each chunk that it writes: what a sender makes this
/// host read is bounded by what it sends.
const EARNED: u32 = 16;
/// Stack of a disk thread: it holds no large values.
const STACK: usize = 128 << 10;

/// What a disk thread is asked for.
#[derive(Debug)]
pub enum Request {
    /// Fill `buffer` with chunk `index` (its length says how many bytes).
    Read {
        /// Which chunk.
        index: u32,
        /// To be filled from its first byte on.
        buffer: Box<[u8]>,
        /// Bytes of the chunk: the last may be shorter than the buffer.
        len: usize,
    },
    /// Write the first `len` bytes of `buffer` as chunk `index`.
    Write {
        /// Which chunk.
        index: u32,
        /// The bytes.
        buffer: Box<[u8]>,
        /// How many of them.
        len: usize,
    },
    /// The hash is wanted as soon as the file is whole (sink) or was read to its end (source).
    Hash,
}

/// What a disk thread answers.
#[derive(Debug)]
pub enum Answer {
    /// The chunk is in the buffer.
    Read {
        /// Which chunk.
        index: u32,
        /// The buffer of the request.
        buffer: Box<[u8]>,
    },
    /// The chunk is in the file.
    Written {
        /// Which chunk.
        index: u32,
        /// The buffer of the request.
        buffer: Box<[u8]>,
    },
    /// BLAKE3 of the whole file.
    Hashed([u8; 32]),
    /// The file can't be used any more; nothing follows.
    Failed(Failure),
}

/// Why a file can't be used any more.
#[derive(Debug)]
pub enum Failure {
    /// The source is shorter, or was changed, since it was offered.
    Changed,
    /// The disk refused.
    Disk(io::Error),
}

impl Failure {
    /// What happened, in words for the person at this end.
    pub fn words(&self) -> String {
        match self {
            Failure::Changed => "the file changed while it was being sent".into(),
            Failure::Disk(e) => match e.raw_os_error() {
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

/// The file of one transfer, and the shape it is cut into.
#[derive(Debug)]
pub struct Job {
    /// Open for reading (source), or reading and writing (sink).
    pub file: File,
    /// Bytes of the whole file.
    pub size: u64,
    /// Bytes of every chunk but the last.
    pub chunk: usize,
    /// For a sink: chunks that are there already, as half-open ranges; they are hashed as chunks
    /// are written, and the rest when the hash is wanted. For a source: all chunks, where the
    /// receiver has them all and none will be read for it.
    pub have: Vec<(u32, u32)>,
    /// True for a file that is read and sent.
    pub source: bool,
}

/// The worker's handle to a disk thread; dropping it ends the thread after what it does now.
#[derive(Debug)]
pub struct Disk {
    requests: SyncSender<Request>,
}

impl Disk {
    /// Starts the thread. Its answers come through `answers`, each made into the worker's own type
    /// by `wrap`.
    pub fn start<A: Send + 'static>(
        job: Job,
        answers: Outlet<A>,
        wrap: impl Fn(Answer) -> A + Send + 'static,
    ) -> io::Result<Disk> {
        let (requests, incoming) = sync_channel(QUEUE);
        let name = if job.source { "shoal-read" } else { "shoal-write" };
        Builder::new().name(name.into()).stack_size(STACK).spawn(move || {
            let work = Work::new(job);
            let answer = |a| answers.send(wrap(a)).map_err(|_| Stop::Gone);
            if let Err(Stop::Failed(failure)) = work.and_then(|mut w| w.serve(&incoming, &answer)) {
                let _gone = answer(Answer::Failed(failure));
            }
        })?;
        Ok(Disk { requests })
    }

    /// Asks; gives the request back when the thread has ended or its queue is full.
    pub fn ask(&self, request: Request) -> Result<(), Request> {
        self.requests.try_send(request).map_err(|e| match e {
            std::sync::mpsc::TrySendError::Full(r) => r,
            std::sync::mpsc::TrySendError::Disconnected(r) => r,
        })
    }
}

/// Why a disk thread ends.
enum Stop {
    /// The worker is gone, or wants nothing more.
    Gone,
    /// The file failed.
    Failed(Failure),
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Stop {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => Stop::Failed(Failure::Changed),
            _ => Stop::Failed(Failure::Disk(error)),
        }
    }
}

struct Work {
    job: Job,
    chunks: u32,
    /// Time of last change in seconds and nanoseconds, when the job began.
    modified: (i64, i64),
    present: Vec<bool>,
    /// Chunks hashed so far: the hash covers exactly these, from the first on.
    hashed: u32,
    /// Chunks that a sink may hash before its hash is wanted.
    earned: u32,
    /// A source has been read up to here.
    passed: u32,
    hasher: Hasher,
    scratch: Vec<u8>,
    hash_wanted: bool,
    holes: Holes,
}

impl Work {
    fn new(job: Job) -> Result<Work, Stop> {
        let meta = job.file.metadata()?;
        if job.source && meta.len() != job.size {
            return Err(Stop::Failed(Failure::Changed));
        }
        let chunks = u32::try_from(job.size.div_ceil(job.chunk.max(1) as u64))
            .map_err(|_| Stop::Failed(Failure::Disk(io::Error::from_raw_os_error(libc::EFBIG))))?;
        let mut present = vec![job.source; chunks as usize];
        for &(from, to) in &job.have {
            let (from, to) = (from.min(chunks) as usize, to.min(chunks) as usize);
            present.get_mut(from..to).unwrap_or_default().fill(true);
        }
        // Advice only: refused on pipes and some file systems, and then nothing is lost.
        let _refused = posix_fadvise(&job.file, 0, 0, PosixFadviseAdvice::POSIX_FADV_SEQUENTIAL);
        let modified = (meta.mtime(), meta.mtime_nsec());
        let whole = job.source && job.have.first() == Some(&(0, chunks));
        let passed = if whole { chunks } else { 0 };
        let hasher = Hasher::new();
        let scratch = Vec::new();
        Ok(Work {
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

    /// Requests come first; chunks that wait to be hashed fill the time between them.
    fn serve(
        &mut self,
        requests: &Receiver<Request>,
        answer: &impl Fn(Answer) -> Result<(), Stop>,
    ) -> Result<(), Stop> {
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
                Err(RecvTimeoutError::Disconnected) => return Err(Stop::Gone),
                Err(RecvTimeoutError::Timeout) if self.behind() => self.hash_next()?,
                // No more reads come: what is left of the source is read for the hash alone.
                Err(RecvTimeoutError::Timeout) => self.passed = self.chunks,
            }
            if self.hash_wanted && self.hashed == self.chunks {
                self.hash_wanted = false;
                self.check_unchanged()?;
                answer(Answer::Hashed(self.hasher.finalize()))?;
            }
        }
    }

    /// Whether the next chunk can be hashed now. Those of a source are hashed no sooner than they
    /// are read for sending: reading them twice would cost more than waiting.
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
        request: Request,
        answer: &impl Fn(Answer) -> Result<(), Stop>,
    ) -> Result<(), Stop> {
        match request {
            Request::Read { index, mut buffer, len } => {
                let len = len.min(buffer.len());
                self.job.file.read_exact_at(&mut buffer[..len], self.offset(index))?;
                self.passed = self.passed.max(index.saturating_add(1));
                if index == self.hashed {
                    self.hasher.update(&buffer[..len]);
                    self.hashed += 1;
                }
                answer(Answer::Read { index, buffer })
            }
            Request::Write { index, buffer, len } => {
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
                answer(Answer::Written { index, buffer })?;
                // One waiting chunk is hashed per chunk written, so that a busy disk leaves no long
                // hashing for the end.
                if self.behind() { self.hash_next() } else { Ok(()) }
            }
            Request::Hash => {
                self.hash_wanted = true;
                Ok(())
            }
        }
    }

    fn hash_next(&mut self) -> Result<(), Stop> {
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

    fn check_unchanged(&self) -> Result<(), Stop> {
        let meta = self.job.file.metadata()?;
        let same =
            meta.len() == self.job.size && (meta.mtime(), meta.mtime_nsec()) == self.modified;
        if self.job.source && !same { Err(Stop::Failed(Failure::Changed)) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests;
