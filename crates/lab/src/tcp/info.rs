//! What the kernel counts of a TCP connection.
#![allow(unsafe_code)]

use std::net::TcpStream;
use std::os::fd::AsRawFd;

/// Where `struct tcp_info` of linux/tcp.h has its counters; libc's ends before the second.
const RETRANS_AT: usize = 100;
const DUPLICATES_AT: usize = 216;
const OUT_OF_ORDER_AT: usize = 224;
const LEN: usize = 232;

/// Counters of one end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Segments that this end sent again.
    pub resent: u32,
    /// Segments of this end that the other reported as duplicates: they were sent again in vain.
    pub duplicates: u32,
    /// Segments that came here before one that was sent earlier.
    pub disordered: u32,
}

impl Counts {
    /// What came after `before`.
    pub fn since(self, before: Counts) -> Counts {
        Counts {
            resent: self.resent.saturating_sub(before.resent),
            duplicates: self.duplicates.saturating_sub(before.duplicates),
            disordered: self.disordered.saturating_sub(before.disordered),
        }
    }
}

/// Reads the counters; None where the kernel is older than them (5.4) or the connection is gone.
pub fn counts(stream: &TcpStream) -> Option<Counts> {
    let mut info = [0u8; LEN];
    let mut len = LEN as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes, which the buffer has, and says how many.
    let failed = unsafe {
        let (at, len) = (info.as_mut_ptr().cast(), &raw mut len);
        libc::getsockopt(stream.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_INFO, at, len) != 0
    };
    let word = |at: usize| info[at..at + 4].try_into().map(u32::from_ne_bytes).ok();
    if failed || (len as usize) < LEN {
        return None;
    }
    let (resent, duplicates) = (word(RETRANS_AT)?, word(DUPLICATES_AT)?);
    Some(Counts { resent, duplicates, disordered: word(OUT_OF_ORDER_AT)? })
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
            assert_eq!(counts(end), Some(Counts::default()));
        }
    }
}
