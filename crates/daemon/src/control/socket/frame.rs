//! Length-prefixed JSON with descriptors, for both ends.

use std::io::{self, IoSlice, Write};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;

use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::descriptors;
use crate::control::api::{MAX_DESCRIPTORS, MAX_FRAME};

/// Reason why a frame could not be read. The stream is unusable afterwards.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// The connection broke.
    #[error("the control connection broke: {0}")]
    Io(#[from] io::Error),
    /// The length is over [`MAX_FRAME`].
    #[error("a control frame of {0} bytes: at most {MAX_FRAME} are allowed")]
    TooLong(usize),
    /// The JSON is not what was expected.
    #[error("a control frame that can't be understood: {0}")]
    Json(#[from] serde_json::Error),
}

/// Reads one frame; none at the end of the stream. Blocks.
pub fn read_frame<T: DeserializeOwned>(
    socket: BorrowedFd<'_>,
) -> Result<Option<(T, Vec<OwnedFd>)>, FrameError> {
    let mut received = Vec::new();
    let mut head = [0; 4];
    if !fill(socket, &mut head, &mut received, true)? {
        return Ok(None);
    }
    let len = u32::from_be_bytes(head) as usize;
    if len > MAX_FRAME {
        return Err(FrameError::TooLong(len));
    }
    // Memory grows with the bytes that arrive, not with the announced length.
    let mut text = Vec::new();
    while text.len() < len {
        let at = text.len();
        text.resize(len.min(at + (64 << 10)), 0);
        fill(socket, &mut text[at..], &mut received, false)?;
    }
    Ok(Some((serde_json::from_slice(&text)?, received)))
}

/// Fills `buf`. False if the stream ended before the first byte and `may_end` is set.
fn fill(
    socket: BorrowedFd<'_>,
    buf: &mut [u8],
    received: &mut Vec<OwnedFd>,
    may_end: bool,
) -> io::Result<bool> {
    let mut at = 0;
    while at < buf.len() {
        match descriptors::receive(socket, &mut buf[at..], received) {
            Ok(0) if at == 0 && may_end => return Ok(false),
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(n) => at += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(true)
}

/// Writes one frame; the descriptors travel with its first byte. Blocks up to the stream's write
/// time-out.
pub fn write_frame<T: Serialize>(
    stream: &UnixStream,
    message: &T,
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    if descriptors.len() > MAX_DESCRIPTORS {
        return Err(io::Error::other("too many descriptors for one frame"));
    }
    let mut bytes = vec![0; 4];
    serde_json::to_writer(&mut bytes, message)?;
    let len = bytes.len() - 4;
    if len > MAX_FRAME {
        return Err(io::Error::other(format!("a control frame of {len} bytes is too long")));
    }
    bytes[..4].copy_from_slice(&(len as u32).to_be_bytes());
    let raw: Vec<RawFd> = descriptors.iter().map(|fd| fd.as_raw_fd()).collect();
    let rights = [ControlMessage::ScmRights(&raw)];
    let control: &[ControlMessage<'_>] = if raw.is_empty() { &[] } else { &rights };
    let sent = loop {
        let parts = [IoSlice::new(&bytes)];
        // A closed reader must be an error, not a signal that ends the process.
        let flags = MsgFlags::MSG_NOSIGNAL;
        match sendmsg::<()>(stream.as_raw_fd(), &parts, control, flags, None) {
            Err(nix::Error::EINTR) => {}
            result => break result?,
        }
    };
    let mut stream = stream;
    stream.write_all(&bytes[sent..])
}
