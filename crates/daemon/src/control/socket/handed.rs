//! A file from a program, which threads that may block examine and close.
//!
//! A descriptor may lead to a file system that its holder serves (FUSE), or to one that hangs
//! (NFS). Then fstat(2) and close(2) may block for any time, so the node's worker calls neither.

use std::fs::{File, Metadata};
use std::io;
use std::os::fd::OwnedFd;

/// Stack of a thread that closes a file.
const STACK: usize = 32 << 10;

/// A file from a program.
#[derive(Debug)]
pub struct HandedFile {
    /// None after the file was taken.
    file: Option<File>,
    seen: io::Result<Metadata>,
}

impl HandedFile {
    /// Examines a descriptor. Blocks on its file system.
    pub fn examine(descriptor: OwnedFd) -> HandedFile {
        let file = File::from(descriptor);
        let seen = file.metadata();
        HandedFile { file: Some(file), seen }
    }

    /// The file, for questions that only the kernel answers.
    pub fn file(&self) -> Option<&File> {
        self.file.as_ref()
    }

    /// Properties of the file at its arrival.
    pub fn seen(&self) -> &io::Result<Metadata> {
        &self.seen
    }

    /// The file, for a thread that may block on it.
    pub fn into_file(mut self) -> Option<File> {
        self.file.take()
    }
}

impl Drop for HandedFile {
    fn drop(&mut self) {
        let Some(file) = self.file.take() else { return };
        let thread = std::thread::Builder::new().name("control-close".into()).stack_size(STACK);
        // If no thread can be started, the file is closed here.
        let _closed_here = thread.spawn(move || drop(file));
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::*;

    #[test]
    fn a_file_is_examined_when_it_comes_and_closed_by_another_thread() {
        let mut file = tempfile::tempfile().unwrap();
        let handed = HandedFile::examine(file.try_clone().unwrap().into());
        file.write_all(b"grown").unwrap();
        assert_eq!(handed.seen().as_ref().unwrap().len(), 0, "nobody asks its file system again");
        let (mut reader, writer) = std::io::pipe().unwrap();
        let handed = HandedFile::examine(std::os::fd::OwnedFd::from(writer));
        assert!(!handed.seen().as_ref().unwrap().is_file());
        drop(handed);
        // The end of the pipe comes once the last writer is closed.
        assert_eq!(reader.read(&mut [0]).unwrap(), 0);
    }
}
