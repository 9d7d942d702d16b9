//! Sending runs of equal frames: one system call with UDP_SEGMENT where the path can do it, one
//! call for many messages where it can't.
//!
//! A destination whose device refuses segmentation (EIO, EINVAL, EMSGSIZE) is remembered and gets
//! its frames one message each for a while; all others keep their offload.

#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::time::Duration;

use shoal_wire::Time;
use socket2::SockAddr;

use crate::net::socket::{drain_errors, is_crowded};

/// Most segments per message: UDP_MAX_SEGMENTS of older kernels.
const SEGMENTS: usize = 64;
/// Most bytes per message: the longest UDP payload over IPv4.
const BYTES: usize = 65_507;
/// Most messages per call without segmentation.
const MESSAGES: usize = 64;
/// Most destinations remembered as refusing segmentation; the oldest is forgotten first.
const REFUSING: usize = 256;
/// How long a refusal is believed: devices and paths change.
const REFUSAL: Duration = Duration::from_secs(600);

/// What became of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The kernel took all of it.
    Sent,
    /// No room: the socket's buffer (EAGAIN: a wake-up will come) or the queue below (ENOBUFS:
    /// none will).
    Full {
        /// Epoll will say when there is room again.
        wakes: bool,
    },
    /// The kernel refused, and would again.
    Failed(i32),
}

/// What has been sent, since the start.
#[derive(Clone, Copy, Debug, Default)]
pub struct SendCounters {
    /// System calls.
    pub calls: u64,
    /// Frames the kernel took.
    pub frames: u64,
    /// Bytes of UDP payload the kernel took.
    pub bytes: u64,
    /// Times the queue below was full (ENOBUFS).
    pub no_buffers: u64,
    /// Times the socket's buffer was full (EAGAIN).
    pub would_block: u64,
    /// Calls refused for another reason.
    pub failed: u64,
    /// Times a destination refused segmentation.
    pub refused_gso: u64,
}

impl SendCounters {
    /// The sum of both.
    pub fn plus(&self, other: &SendCounters) -> SendCounters {
        SendCounters {
            calls: self.calls + other.calls,
            frames: self.frames + other.frames,
            bytes: self.bytes + other.bytes,
            no_buffers: self.no_buffers + other.no_buffers,
            would_block: self.would_block + other.would_block,
            failed: self.failed + other.failed,
            refused_gso: self.refused_gso + other.refused_gso,
        }
    }
}

/// Sends on one socket.
pub struct Sender {
    gso: bool,
    refusing: BTreeMap<SocketAddr, Time>,
    counters: SendCounters,
}

/// One UDP_SEGMENT control message, as the kernel reads it.
#[repr(C, align(8))]
struct SegmentNote {
    header: libc::cmsghdr,
    size: u16,
    pad: [u8; 6],
}

impl Sender {
    /// `gso`: the socket knows UDP_SEGMENT.
    pub fn new(gso: bool) -> Sender {
        Sender { gso, refusing: BTreeMap::new(), counters: SendCounters::default() }
    }

    /// What was sent so far.
    pub fn counters(&self) -> SendCounters {
        self.counters
    }

    /// How many destinations currently refuse segmentation.
    pub fn refusing(&self) -> usize {
        self.refusing.len()
    }

    /// Sends the frames of `len` bytes at `offsets` of `buf`, in this order. Returns how many
    /// leading frames the kernel took, and what became of the rest.
    pub fn send(
        &mut self,
        fd: RawFd,
        now: Time,
        to: SocketAddr,
        frames: Frames<'_>,
    ) -> (usize, Outcome) {
        let address = SockAddr::from(to);
        let per_message = (BYTES / frames.len.max(1)).clamp(1, SEGMENTS);
        let (mut sent, mut refused) = (0, false);
        while sent < frames.offsets.len() {
            let rest = frames.offsets.len() - sent;
            let together = self.gso && rest > 1 && !self.refuses(now, to);
            let count = rest.min(if together { per_message } else { MESSAGES });
            let run = Frames { offsets: &frames.offsets[sent..sent + count], ..frames };
            let outcome = if together {
                self.send_segmented(fd, &address, run).map(|()| count)
            } else {
                self.send_each(fd, &address, run)
            };
            match outcome {
                Ok(taken) => {
                    sent += taken;
                    self.counters.frames += taken as u64;
                    self.counters.bytes += (taken * frames.len) as u64;
                }
                Err(libc::EIO | libc::EINVAL | libc::EMSGSIZE) if together => {
                    self.note_refusal(now, to);
                    refused = true;
                }
                Err(errno) => {
                    if errno == libc::EMSGSIZE && refused {
                        // It was the length, not the segmentation.
                        self.refusing.remove(&to);
                    }
                    return (sent, self.outcome(errno));
                }
            }
        }
        (sent, Outcome::Sent)
    }

    fn outcome(&mut self, errno: i32) -> Outcome {
        match errno {
            libc::ENOBUFS | libc::ENOMEM => {
                self.counters.no_buffers += 1;
                Outcome::Full { wakes: false }
            }
            libc::EAGAIN => {
                self.counters.would_block += 1;
                Outcome::Full { wakes: true }
            }
            _ => {
                self.counters.failed += 1;
                Outcome::Failed(errno)
            }
        }
    }

    fn refuses(&mut self, now: Time, to: SocketAddr) -> bool {
        if self.refusing.is_empty() {
            return false;
        }
        match self.refusing.get(&to) {
            Some(&until) if now < until => true,
            Some(_) => {
                self.refusing.remove(&to);
                false
            }
            None => false,
        }
    }

    fn note_refusal(&mut self, now: Time, to: SocketAddr) {
        self.counters.refused_gso += 1;
        if self.refusing.len() >= REFUSING {
            let oldest = self.refusing.iter().min_by_key(|(_, until)| **until).map(|(a, _)| *a);
            if let Some(oldest) = oldest {
                self.refusing.remove(&oldest);
            }
        }
        self.refusing.insert(to, now + REFUSAL);
    }

    fn send_segmented(&mut self, fd: RawFd, to: &SockAddr, run: Frames<'_>) -> Result<(), i32> {
        let mut note = SegmentNote {
            header: libc::cmsghdr {
                cmsg_len: (size_of::<libc::cmsghdr>() + size_of::<u16>()) as _,
                cmsg_level: libc::SOL_UDP,
                cmsg_type: libc::UDP_SEGMENT,
            },
            size: u16::try_from(run.len).map_err(|_| libc::EINVAL)?,
            pad: [0; 6],
        };
        let mut parts = EMPTY;
        let used = run.gather(&mut parts);
        let mut message = header(to, &mut parts[..used]);
        message.msg_control = (&raw mut note).cast();
        message.msg_controllen = size_of::<SegmentNote>() as _;
        past_errors(fd, || {
            self.counters.calls += 1;
            // SAFETY: name, parts and control point to `to`, `run` and `note`, which outlive the
            // call and are valid for the lengths beside them; sendmsg only reads them.
            result(unsafe { libc::sendmsg(fd, &raw const message, libc::MSG_DONTWAIT) } as isize)
        })?;
        Ok(())
    }

    /// One message per frame; returns how many the kernel took, at least one.
    fn send_each(&mut self, fd: RawFd, to: &SockAddr, run: Frames<'_>) -> Result<usize, i32> {
        let count = run.offsets.len().min(MESSAGES);
        let mut parts = EMPTY;
        for (part, &offset) in parts.iter_mut().zip(run.offsets) {
            *part = run.piece(offset as usize, run.len);
        }
        // SAFETY: an all-zero mmsghdr is valid: null pointers with zero lengths.
        let mut headers: [libc::mmsghdr; MESSAGES] = unsafe { std::mem::zeroed() };
        for (slot, part) in headers.iter_mut().zip(parts.chunks_exact_mut(1)).take(count) {
            slot.msg_hdr = header(to, part);
        }
        past_errors(fd, || {
            self.counters.calls += 1;
            // SAFETY: the first `count` headers point to `to`, `parts` and `run`, which outlive
            // the call and are valid for the lengths beside them; the kernel writes msg_len only.
            result(unsafe {
                libc::sendmmsg(
                    fd,
                    headers.as_mut_ptr(),
                    count as libc::c_uint,
                    libc::MSG_DONTWAIT as _,
                )
            } as isize)
        })
    }
}

/// Frames of equal length, wherever they lie in a buffer.
#[derive(Clone, Copy)]
pub struct Frames<'a> {
    /// The buffer.
    pub buffer: &'a [u8],
    /// Where each frame starts.
    pub offsets: &'a [u32],
    /// Length of each.
    pub len: usize,
}

const EMPTY: [libc::iovec; MESSAGES] =
    [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; MESSAGES];

impl Frames<'_> {
    /// Bytes that the kernel will only read.
    fn piece(&self, start: usize, len: usize) -> libc::iovec {
        let bytes = &self.buffer[start..start + len];
        libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: len }
    }

    /// One piece per stretch of adjacent frames: the fewer pieces, the faster the kernel copies.
    fn gather(&self, parts: &mut [libc::iovec]) -> usize {
        let mut used = 0;
        let mut offsets = self.offsets.iter().map(|&o| o as usize).peekable();
        while let (Some(start), true) = (offsets.next(), used < parts.len()) {
            let mut end = start + self.len;
            while offsets.next_if_eq(&end).is_some() {
                end += self.len;
            }
            parts[used] = self.piece(start, end - start);
            used += 1;
        }
        used
    }
}

fn header(to: &SockAddr, parts: &mut [libc::iovec]) -> libc::msghdr {
    // SAFETY: an all-zero msghdr is valid: null pointers with zero lengths.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_name = to.as_ptr().cast_mut().cast();
    message.msg_namelen = to.len();
    message.msg_iov = parts.as_mut_ptr();
    message.msg_iovlen = parts.len() as _;
    message
}

fn result(returned: isize) -> Result<usize, i32> {
    usize::try_from(returned)
        .map_err(|_| io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO))
}

/// Calls of one send before it counts as "no room": more errors than that only come up while
/// somebody pours them over the socket.
const TRIES: usize = 8;

/// With IP_RECVERR a send first reports an error that an ICMP message left behind, about whatever
/// destination it names, and sends nothing. Anybody can forge such messages, so no error is
/// believed while the socket's queue has some, or is not told of any for want of room: they are
/// read, and the send is tried again. An error counts when it comes twice in a row with nothing in
/// the queue and room for more, or with this kernel's own word that the frame is too long.
fn past_errors(fd: RawFd, mut send: impl FnMut() -> Result<usize, i32>) -> Result<usize, i32> {
    let mut before = None;
    for _ in 0..TRIES {
        let errno = match send() {
            Err(libc::EINTR) => continue,
            Err(errno @ (libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM)) => return Err(errno),
            Err(errno) => errno,
            sent => return sent,
        };
        let found = drain_errors(fd);
        let own_word = found.too_long && errno == libc::EMSGSIZE;
        if found.foreign > 0 || (!own_word && is_crowded(fd)) {
            before = None;
        } else if own_word || before == Some(errno) {
            return Err(errno);
        } else {
            before = Some(errno);
        }
    }
    Err(libc::ENOBUFS)
}
