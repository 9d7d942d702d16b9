//! The system calls behind descriptors and groups that have no safe form.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;

use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg};

use crate::api::MAX_DESCRIPTORS;

/// Receives up to `buf.len()` bytes and the descriptors that came with them. More descriptors than
/// [`MAX_DESCRIPTORS`] at once are an error, and all of them are closed.
pub(super) fn receive(
    socket: BorrowedFd<'_>,
    buf: &mut [u8],
    descriptors: &mut Vec<OwnedFd>,
) -> io::Result<usize> {
    let mut space = nix::cmsg_space!([std::os::fd::RawFd; MAX_DESCRIPTORS]);
    let mut parts = [io::IoSliceMut::new(buf)];
    let flags = MsgFlags::MSG_CMSG_CLOEXEC;
    let message = recvmsg::<()>(socket.as_raw_fd(), &mut parts, Some(&mut space), flags)?;
    let truncated = message.flags.contains(MsgFlags::MSG_CTRUNC);
    for control in message.cmsgs()? {
        if let ControlMessageOwned::ScmRights(raw) = control {
            // SAFETY: the kernel has just made these descriptors for this process, and nobody else
            // knows their numbers.
            descriptors.extend(raw.into_iter().map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }));
        }
    }
    if truncated || descriptors.len() > MAX_DESCRIPTORS {
        descriptors.clear();
        return Err(io::Error::other("too many descriptors"));
    }
    Ok(message.bytes)
}

/// Supplementary groups of the process at the other end, as they were when it connected.
pub(super) fn peer_groups(stream: &UnixStream) -> Vec<libc::gid_t> {
    let mut groups = vec![0 as libc::gid_t; 256];
    // A process may have up to 65,536 groups; one retry with the length that the kernel tells.
    for _ in 0..2 {
        let mut len = (groups.len() * size_of::<libc::gid_t>()) as libc::socklen_t;
        // SAFETY: pointer and length describe `groups`, which outlives the call.
        let result = unsafe {
            libc::getsockopt(
                stream.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERGROUPS,
                groups.as_mut_ptr().cast(),
                &mut len,
            )
        };
        let count = len as usize / size_of::<libc::gid_t>();
        if result == 0 {
            groups.truncate(count);
            return groups;
        }
        if io::Error::last_os_error().raw_os_error() != Some(libc::ERANGE) {
            break;
        }
        groups.resize(count, 0);
    }
    Vec::new()
}
