//! Ciphers, hashes and datagrams, one segment at a time.

use std::hint::black_box;
use std::io::IoSlice;
use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use cbc::cipher::block_padding::NoPadding;
use cbc::cipher::{BlockModeDecrypt, BlockModeEncrypt, KeyIvInit};
use nix::sys::socket::{ControlMessage, MsgFlags, SockaddrIn, recv, sendmsg, setsockopt, sockopt};
use shoal_crypto::quantile::median;
use shoal_crypto::{AeadKey, Hasher, Suite, SuiteSupport};

use super::{CHUNK_SEGMENTS, FRAME, ROUNDS, SEGMENT, median_ns};
use crate::record::ReportTable;

/// File bytes in a segment of the paper.
const PAPER_SEGMENT: usize = 1_024;
/// Number of buffers processed per round: together they fit the second-level cache.
const BUFFERS: usize = 256;
/// Number of datagrams in one GSO send.
const RUN: usize = 44;
/// Associated data of a frame, with the length that Shoal uses.
const AAD: [u8; 24] = [7; 24];

fn buffers(len: usize) -> Vec<Vec<u8>> {
    vec![vec![0x5a; len]; BUFFERS]
}

/// Nanoseconds to seal and to open `len` bytes.
fn aead(suite: Suite, len: usize) -> (f64, f64) {
    let key = AeadKey::new(suite, &[7; 32]);
    let mut seals = Vec::new();
    let mut opens = Vec::new();
    for round in 0..ROUNDS as u64 {
        let first = round * BUFFERS as u64;
        let mut all = buffers(len + 16);
        let start = Instant::now();
        for (i, buffer) in all.iter_mut().enumerate() {
            let (body, tag) = buffer.split_at_mut(len);
            let mut out = [0; 16];
            key.seal(first + i as u64, &AAD, body, &mut out);
            tag.copy_from_slice(&out);
        }
        seals.push(start.elapsed().as_nanos() as f64 / BUFFERS as f64);
        let start = Instant::now();
        for (i, buffer) in all.iter_mut().enumerate() {
            let opened = key.open(first + i as u64, &AAD, buffer);
            assert!(opened.is_ok(), "a sealed buffer opens");
        }
        opens.push(start.elapsed().as_nanos() as f64 / BUFFERS as f64);
    }
    let middle = |all: &[f64]| median(all).unwrap_or(f64::NAN);
    (middle(&seals), middle(&opens))
}

/// Nanoseconds to encrypt and to decrypt `len` bytes, a multiple of 8, by DES-CBC.
fn des_cbc(len: usize) -> (f64, f64) {
    let (key, iv) = ([0x13, 0x34, 0x57, 0x79, 0x9b, 0xbc, 0xdf, 0xf1], [7; 8]);
    let mut all = buffers(len);
    let encrypt = median_ns(BUFFERS, || {
        for buffer in &mut all {
            let cipher = cbc::Encryptor::<des::Des>::new(&key.into(), &iv.into());
            // The length is a multiple of the block length, so padding can't be missing.
            let _ = black_box(cipher.encrypt_padded::<NoPadding>(buffer, len));
        }
    });
    let decrypt = median_ns(BUFFERS, || {
        for buffer in &mut all {
            let cipher = cbc::Decryptor::<des::Des>::new(&key.into(), &iv.into());
            let _ = black_box(cipher.decrypt_padded::<NoPadding>(buffer));
        }
    });
    (encrypt, decrypt)
}

/// The paper's cipher and current ciphers.
pub fn table() -> ReportTable {
    let row =
        |name: &str, (forth, back): (f64, f64)| (name.to_owned(), vec![Some(forth), Some(back)]);
    let paper = |name: &str, forth: f64, back: f64| row(name, (forth, back));
    ReportTable {
        mixed: false,
        title: "Ciphers, for 1,024 bytes".into(),
        columns: vec!["cipher".into(), "encrypt".into(), "decrypt".into()],
        rows: vec![
            paper("paper: DES-CBC (OpenSSL, Atom D525)", 15_625.0, 15_429.0),
            paper("paper: DES-CBC, 4 threads", 6_374.0, 6_323.0),
            row("DES-CBC here, one thread", des_cbc(PAPER_SEGMENT)),
            row("ChaCha20-Poly1305", aead(Suite::ChaCha20Poly1305, PAPER_SEGMENT)),
            row("AES-256-GCM", aead(Suite::Aes256Gcm, PAPER_SEGMENT)),
            row("AEGIS-256", aead(Suite::Aegis256, PAPER_SEGMENT)),
            row("AEGIS-256X2", aead(Suite::Aegis256X2, PAPER_SEGMENT)),
            row("AEGIS-256X4", aead(Suite::Aegis256X4, PAPER_SEGMENT)),
        ],
        unit: "ns; all with a tag, except DES-CBC".into(),
    }
}

fn suite() -> Suite {
    let means = SuiteSupport::here();
    means.agree(means).expect("a machine has suites in common with itself")
}

/// Nanoseconds to seal one frame's body.
pub fn seal_ns() -> f64 {
    aead(suite(), FRAME - 40).0
}

/// Nanoseconds to open one frame's body.
pub fn open_ns() -> f64 {
    aead(suite(), FRAME - 40).1
}

/// Nanoseconds to hash one segment, as part of a chunk.
pub fn hash_ns() -> f64 {
    let chunk = vec![0x5a; SEGMENT * CHUNK_SEGMENTS];
    let mut hasher = Hasher::new();
    median_ns(CHUNK_SEGMENTS * 8, || (0..8).for_each(|_| hasher.update(black_box(&chunk))))
}

/// The kernel's time for one datagram of a run, in nanoseconds.
pub struct DatagramTimes {
    /// Sending, up to the receiver's queue.
    pub send: f64,
    /// Receiving from that queue.
    pub receive: f64,
}

/// Measures runs of full frames over the loopback.
pub fn udp() -> Result<DatagramTimes> {
    let (from, at) = (UdpSocket::bind("127.0.0.1:0")?, UdpSocket::bind("127.0.0.1:0")?);
    setsockopt(&at, sockopt::UdpGroSegment, &true)?;
    let std::net::SocketAddr::V4(to) = at.local_addr()? else {
        anyhow::bail!("an address of another family");
    };
    let (to, stride) = (SockaddrIn::from(to), FRAME as u16);
    let (bytes, mut buffer) = (vec![7; FRAME * RUN], vec![0; 1 << 16]);
    let (mut sends, mut receives) = (Vec::new(), Vec::new());
    for _ in 0..2_000 {
        let parts = [IoSlice::new(&bytes)];
        let split = [ControlMessage::UdpGsoSegments(&stride)];
        let start = Instant::now();
        sendmsg(from.as_raw_fd(), &parts, &split, MsgFlags::empty(), Some(&to))?;
        let middle = Instant::now();
        let mut left = FRAME * RUN;
        while left > 0 {
            let len = recv(at.as_raw_fd(), &mut buffer, MsgFlags::empty())?;
            ensure!(len > 0 && len <= left, "datagrams of another length");
            left -= len;
        }
        let end = Instant::now();
        sends.push(middle.duration_since(start).as_nanos() as f64 / RUN as f64);
        receives.push(end.duration_since(middle).as_nanos() as f64 / RUN as f64);
    }
    let middle = |all: &[f64]| median(all).context("no datagrams");
    Ok(DatagramTimes { send: middle(&sends)?, receive: middle(&receives)? })
}
