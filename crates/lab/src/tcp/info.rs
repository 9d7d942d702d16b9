//! Kernel counters of a TCP connection.
#![allow(unsafe_code)]

use std::net::TcpStream;
use std::os::fd::AsRawFd;

/// Offsets of the counters in `struct tcp_info` of linux/tcp.h; libc's struct ends before the
/// second.
const RETRANS_AT: usize = 100;
const DUPLICATES_AT: usize = 216;
const OUT_OF_ORDER_AT: usize = 224;
const LEN: usize = 232;

/// Counters of one end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpCounters {
    /// Segments that this end sent again.
    pub resent: u32,
    /// Segments of this end that the other end reported as duplicates: sent again in vain.
    pub duplicates: u32,
    /// Segments that arrived before an earlier segment.
    pub disordered: u32,
}

impl TcpCounters {
    /// Counts since `before`.
    pub fn since(self, before: TcpCounters) -> TcpCounters {
        TcpCounters {
            resent: self.resent.saturating_sub(before.resent),
            duplicates: self.duplicates.saturating_sub(before.duplicates),
            disordered: self.disordered.saturating_sub(before.disordered),
        }
    }
}

/// Reads the counters. `None` if the kernel is older than 5.4, or the connection is gone.
pub fn counts(stream: &TcpStream) -> Option<TcpCounters> {
    let mut info = [0u8; LEN];
    let mut len = LEN as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes, which fit the buffer, and returns their
    // number.
    let failed = unsafe {
        let (at, len) = (info.as_mut_ptr().cast(), &raw mut len);
        libc::getsockopt(stream.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_INFO, at, len) != 0
    };
    let word = |at: usize| info[at..at + 4].try_into().map(u32::from_ne_bytes).ok();
    if failed || (len as usize) < LEN {
        return None;
    }
    let (resent, duplicates) = (word(RETRANS_AT)?, word(DUPLICATES_AT)?);
    Some(TcpCounters { resent, duplicates, disordered: word(OUT_OF_ORDER_AT)? })
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_calm_connection_has_lost_and_reordered_nothing() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut far = listener.accept().unwrap().0;
        near.write_all(&[7; 1_000]).unwrap();
        far.read_exact(&mut [0; 1_000]).unwrap();
        for end in [&near, &far] {
            assert_eq!(counts(end), Some(TcpCounters::default()));
        }
    }
}
