//! System calls for descriptors and groups that have no safe wrapper.

#![allow(unsafe_code)]

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;

use crate::control::api::MAX_DESCRIPTORS;

/// Size in words of the control buffer: the head of one message and [`MAX_DESCRIPTORS`]
/// descriptors. Words, because heads must be aligned.
const ROOM: usize = 4 + MAX_DESCRIPTORS * size_of::<RawFd>() / size_of::<u64>();

/// Receives up to `buf.len()` bytes and the descriptors that came with them. More than
/// [`MAX_DESCRIPTORS`] at once are an error; then all of them are closed.
pub(super) fn receive(
    socket: BorrowedFd<'_>,
    buf: &mut [u8],
    descriptors: &mut Vec<OwnedFd>,
) -> io::Result<usize> {
    let mut space = [0u64; ROOM];
    let mut part = libc::iovec { iov_base: buf.as_mut_ptr().cast(), iov_len: buf.len() };
    // SAFETY: a msghdr is plain data, for which all zeroes is a value.
    let mut message: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
    message.msg_iov = &mut part;
    message.msg_iovlen = 1;
    message.msg_control = space.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&space) as _;
    // SAFETY: the message describes `buf` and `space`, which outlive the call.
    let len = unsafe { libc::recvmsg(socket.as_raw_fd(), &mut message, libc::MSG_CMSG_CLOEXEC) };
    let len = usize::try_from(len).map_err(|_| io::Error::last_os_error())?;
    take(&message, descriptors);
    // The kernel closes descriptors that did not fit; the others belong to this process.
    let truncated = message.msg_flags & libc::MSG_CTRUNC != 0;
    if truncated || descriptors.len() > MAX_DESCRIPTORS {
        descriptors.clear();
        return Err(io::Error::other("too many descriptors"));
    }
    Ok(len)
}

/// Takes ownership of every descriptor that came with `message`, whether or not all of them fit.
fn take(message: &libc::msghdr, descriptors: &mut Vec<OwnedFd>) {
    // SAFETY: recvmsg(2) has filled in the message, whose control buffer is aligned and alive; this
    // looks at it within the length that the kernel wrote.
    let mut control = unsafe { libc::CMSG_FIRSTHDR(message) };
    // SAFETY: as above; the pointer is null or at a head within the buffer.
    while let Some(head) = unsafe { control.as_ref() } {
        if head.cmsg_level == libc::SOL_SOCKET && head.cmsg_type == libc::SCM_RIGHTS {
            // SAFETY: only computes a length.
            let start = unsafe { libc::CMSG_LEN(0) } as usize;
            let count = head.cmsg_len.saturating_sub(start) / size_of::<RawFd>();
            // SAFETY: the data of this head are as many numbers as its length says.
            let first = unsafe { libc::CMSG_DATA(control) }.cast::<RawFd>();
            for i in 0..count {
                // SAFETY: within the data; the kernel has just made this descriptor for this
                // process, and nobody else knows its number.
                let fd = unsafe { OwnedFd::from_raw_fd(first.add(i).read_unaligned()) };
                descriptors.push(fd);
            }
        }
        // SAFETY: as for the first head.
        control = unsafe { libc::CMSG_NXTHDR(message, control) };
    }
}

/// Supplementary groups of the process at the other end, as of its connect(2).
pub(super) fn peer_groups(stream: &UnixStream) -> Vec<libc::gid_t> {
    let mut groups = vec![0 as libc::gid_t; 256];
    // A process may have up to 65,536 groups: one retry with the length that the kernel reports.
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
