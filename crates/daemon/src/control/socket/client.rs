//! The program's end of the control socket.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::{Gid, Group};

use super::frame::{FrameError, read_frame, write_frame};
use crate::control::api::{
    Command, CommandFrame, ControlEvent, ControlReply, ErrorReply, NodeFrame, NodeFrameBody,
    PROTOCOL,
};

/// Time for which the node may read one frame, and answer (on top of a ping's time-out).
const PATIENCE: Duration = Duration::from_secs(30);
/// Time for the answer to [`Command::Stop`]: a node that doesn't give it in time hangs.
const STOP_PATIENCE: Duration = Duration::from_secs(10);
/// Most events kept while an answer is waited for; a node sends far fewer in that time.
const MAX_EVENTS: usize = 65_536;

/// Reason why no connection was made.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    #[error(
        "no node answers at {0}; start one with `shoal run -c node.toml`, or name its control \
         socket with --socket or its configuration with -c"
    )]
    NotRunning(PathBuf),
    /// The socket exists, but does not admit this user.
    #[error("{0}: permission denied: {hint}", hint = way_in(.0))]
    Denied(PathBuf),
    #[error("{0}: {1}")]
    Io(PathBuf, io::Error),
}

/// Advice for this user on the right to command the node at `socket`.
fn way_in(socket: &Path) -> String {
    let group = std::fs::metadata(socket).ok().filter(|meta| meta.mode() & 0o060 == 0o060);
    let group = group.and_then(|meta| Group::from_gid(Gid::from_raw(meta.gid())).ok().flatten());
    // An unreadable folder hides the socket: the text then assumes no group.
    group_words(group.map(|group| group.name).filter(|name| name != "root").as_deref())
}

fn group_words(group: Option<&str>) -> String {
    match group {
        Some(group) => format!(
            "only root, the node's user and members of the group {group} may command this node; \
             `sudo usermod -aG {group} USER` makes a user one from the next login on"
        ),
        None => "only root and the node's user may command this node: repeat with sudo; or set \
                 control_group in [node] of its node.toml to a group that you are in, and restart \
                 it"
        .into(),
    }
}

/// Reason why a command brought no result.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The node answered with an error.
    #[error("{}", .0.message)]
    Node(ErrorReply),
    /// The node closed the connection, most likely because it stopped.
    #[error("the node closed the connection; it may have stopped (see its log)")]
    Closed,
    /// The node didn't answer in time.
    #[error("the node gave no answer within {} s", .0.as_secs())]
    TimedOut(Duration),
    /// This program read too slowly.
    #[error("this program was too slow for the node's events; {0} were lost")]
    TooSlow(u64),
    /// The node speaks another protocol.
    #[error(
        "the node speaks control protocol {0}, this program speaks {PROTOCOL}: use the `shoal` of \
         the same release"
    )]
    Protocol(u32),
    /// The stream broke, or held no valid frame.
    #[error(transparent)]
    Frame(#[from] FrameError),
}

/// A connection to a node. Calls block.
#[derive(Debug)]
pub struct ControlConnection {
    stream: UnixStream,
    next_id: u64,
    events: VecDeque<ControlEvent>,
}

impl ControlConnection {
    /// Connects to the control socket at `path`.
    pub fn connect(path: &Path) -> Result<ControlConnection, ConnectError> {
        let stream = UnixStream::connect(path).map_err(|e| match e.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
                ConnectError::NotRunning(path.to_path_buf())
            }
            io::ErrorKind::PermissionDenied => ConnectError::Denied(path.to_path_buf()),
            _ => ConnectError::Io(path.to_path_buf(), e),
        })?;
        ControlConnection::from_stream(stream).map_err(|e| ConnectError::Io(path.to_path_buf(), e))
    }

    /// Takes over a connected stream, such as one half of a socket pair.
    pub fn from_stream(stream: UnixStream) -> io::Result<ControlConnection> {
        stream.set_write_timeout(Some(PATIENCE))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(ControlConnection { stream, next_id: 1, events: VecDeque::new() })
    }

    /// Sends a command and waits for its answer; an error answer is [`CallError::Node`]. Events
    /// that come in between are kept for [`ControlConnection::event`].
    pub fn call(
        &mut self,
        command: Command,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<ControlReply, CallError> {
        let patience = match &command {
            Command::Ping { timeout_ms, .. } | Command::Hops { timeout_ms, .. } => {
                PATIENCE + Duration::from_millis(u64::from(*timeout_ms))
            }
            Command::Stop => STOP_PATIENCE,
            _ => PATIENCE,
        };
        let id = self.next_id;
        self.next_id += 1;
        let message = CommandFrame { protocol: PROTOCOL, id, command };
        if let Err(e) = write_frame(&self.stream, &message, descriptors) {
            // The node may have sent a reason before it closed.
            return match self.read() {
                Ok(Some(NodeFrameBody::Reply { reply: ControlReply::Error(error), .. })) => {
                    Err(CallError::Node(error))
                }
                _ if e.kind() == io::ErrorKind::BrokenPipe => Err(CallError::Closed),
                _ => Err(CallError::Frame(FrameError::Io(e))),
            };
        }
        let deadline = Instant::now() + patience;
        loop {
            if !self.readable(Some(deadline))? {
                return Err(CallError::TimedOut(patience));
            }
            match self.read()?.ok_or(CallError::Closed)? {
                NodeFrameBody::Reply { id: found, reply } if found == id || found == 0 => {
                    return match reply {
                        ControlReply::Error(error) => Err(CallError::Node(error)),
                        reply => Ok(reply),
                    };
                }
                // The answer to an earlier command that was given up.
                NodeFrameBody::Reply { .. } => {}
                NodeFrameBody::Event(ControlEvent::TooSlow { missed }) => {
                    return Err(CallError::TooSlow(missed));
                }
                NodeFrameBody::Event(_) if self.events.len() >= MAX_EVENTS => {
                    return Err(CallError::TooSlow(MAX_EVENTS as u64));
                }
                NodeFrameBody::Event(event) => self.events.push_back(event),
            }
        }
    }

    /// The next event; none after `wait` (without `wait`, blocks until an event comes).
    pub fn event(&mut self, wait: Option<Duration>) -> Result<Option<ControlEvent>, CallError> {
        if let Some(event) = self.events.pop_front() {
            return Ok(Some(event));
        }
        let deadline = wait.map(|wait| Instant::now() + wait);
        loop {
            if !self.readable(deadline)? {
                return Ok(None);
            }
            match self.read()?.ok_or(CallError::Closed)? {
                NodeFrameBody::Event(ControlEvent::TooSlow { missed }) => {
                    return Err(CallError::TooSlow(missed));
                }
                NodeFrameBody::Event(event) => return Ok(Some(event)),
                NodeFrameBody::Reply { .. } => {}
            }
        }
    }

    /// True if [`ControlConnection::event`] has an event without reading.
    pub fn has_event(&self) -> bool {
        !self.events.is_empty()
    }

    fn read(&mut self) -> Result<Option<NodeFrameBody>, CallError> {
        let frame: Option<(NodeFrame, _)> = match read_frame(self.stream.as_fd()) {
            // A node that stops before it has read everything resets the connection.
            Err(FrameError::Io(e)) if e.kind() == io::ErrorKind::ConnectionReset => None,
            frame => frame?,
        };
        match frame {
            None => Ok(None),
            Some((message, _)) if message.protocol == PROTOCOL => Ok(Some(message.body)),
            Some((message, _)) => Err(CallError::Protocol(message.protocol)),
        }
    }

    fn readable(&self, deadline: Option<Instant>) -> Result<bool, CallError> {
        loop {
            let timeout = match deadline {
                None => PollTimeout::NONE,
                Some(at) => {
                    // Rounded up, so that the last millisecond is not spent spinning.
                    let left = at.saturating_duration_since(Instant::now());
                    let ms = left.as_nanos().div_ceil(1_000_000);
                    PollTimeout::try_from(ms).unwrap_or(PollTimeout::MAX)
                }
            };
            let mut fds = [PollFd::new(self.stream.as_fd(), PollFlags::POLLIN)];
            match poll(&mut fds, timeout) {
                Ok(0) if deadline.is_some_and(|at| Instant::now() >= at) => return Ok(false),
                Ok(0) | Err(nix::Error::EINTR) => {}
                Ok(_) => return Ok(true),
                Err(e) => return Err(CallError::Frame(FrameError::Io(e.into()))),
            }
        }
    }
}

/// Allows waiting on several descriptors at once; see [`ControlConnection::has_event`] first.
impl AsFd for ControlConnection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_may_not_command_a_node_is_told_how_to_get_in() {
        assert!(group_words(Some("shoal")).contains("usermod -aG shoal USER"));
        assert!(group_words(None).contains("control_group"));
        let said = ConnectError::Denied("/nowhere/control.sock".into()).to_string();
        assert!(said.contains("/nowhere/control.sock: permission denied"), "{said}");
    }
}
