//! Numbered UDP datagrams between the virtual interfaces of two hosts, at a steady rate.

use std::net::{IpAddr, Ipv6Addr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::sys::socket::{setsockopt, sockopt};

use crate::network::Network;

/// Time between two portions.
const PORTION: Duration = Duration::from_millis(1);
/// How long a read waits before its thread looks whether it should end.
const NAP: Duration = Duration::from_millis(50);
/// How long datagrams are waited for that are on the way at the end.
const LAST: Duration = Duration::from_millis(700);
/// Buffers at both ends, in bytes: 300 ms of 200 Mbit/s.
const BUFFER: usize = 8 << 20;
/// Longest datagram, and more.
const DATAGRAM_MAX: usize = 2_048;
/// What every datagram repeats behind its number. An observer of the network must never see it.
pub const PATTERN: [u8; 16] = *b"In clear no more";
/// Length of the number.
const NUMBER_LEN: usize = 8;

/// What has arrived.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Datagrams.
    pub count: u64,
    /// Of those, how many came after one with a higher number.
    pub disordered: u64,
    /// Payload bytes.
    pub bytes: u64,
    /// Longest time between two arrivals.
    pub gap: Duration,
    next: u64,
    last: Option<Instant>,
}

impl Seen {
    /// Takes in a datagram; those of others are passed over.
    fn take(&mut self, now: Instant, datagram: &[u8]) {
        let Some((number, rest)) = datagram.split_first_chunk::<NUMBER_LEN>() else { return };
        if !PATTERN.starts_with(&rest[..rest.len().min(PATTERN.len())]) {
            return;
        }
        let number = u64::from_be_bytes(*number);
        (self.count, self.bytes) = (self.count + 1, self.bytes + datagram.len() as u64);
        self.disordered += u64::from(number < self.next);
        self.next = self.next.max(number + 1);
        let silence = self.last.replace(now).map_or(Duration::ZERO, |last| now - last);
        self.gap = self.gap.max(silence);
    }
}

/// A flow; ends when dropped.
#[derive(Debug)]
pub struct UdpFlow {
    seen: Arc<Mutex<Seen>>,
    sent: Arc<AtomicU64>,
    is_over: Arc<AtomicBool>,
    is_unread: Arc<AtomicBool>,
    began: Instant,
}

impl UdpFlow {
    /// Starts one from `from` to the address `far` of `to`: datagrams of `payload` bytes, `mbit`
    /// Mbit/s of them.
    ///
    /// # Errors
    /// Without namespaces, or without a route.
    pub fn start(
        network: &Network,
        (from, to): (usize, usize),
        far: IpAddr,
        mbit: f64,
        payload: u16,
    ) -> Result<UdpFlow> {
        let spaces = network.namespace(from).zip(network.namespace(to));
        let (near, there) = spaces.context("UDP flows need namespaces: root")?;
        let any = (Ipv6Addr::UNSPECIFIED, 0);
        let input = there.enter(|| Ok(UdpSocket::bind(any)?))?;
        input.set_read_timeout(Some(NAP))?;
        let at = (far, input.local_addr()?.port());
        let out = near.enter(|| {
            let socket = UdpSocket::bind(any)?;
            socket.connect(at).with_context(|| format!("UDP to {far}"))?;
            Ok(socket)
        })?;
        setsockopt(&input, sockopt::RcvBufForce, &BUFFER)?;
        setsockopt(&out, sockopt::SndBufForce, &BUFFER)?;
        let flow = UdpFlow {
            seen: Arc::default(),
            sent: Arc::default(),
            is_over: Arc::default(),
            is_unread: Arc::default(),
            began: Instant::now(),
        };
        let (seen, is_unread) = (flow.seen.clone(), flow.is_unread.clone());
        let thread = || std::thread::Builder::new();
        thread().name("udp in".into()).spawn(move || take(&input, &seen, &is_unread))?;
        let (sent, is_over) = (flow.sent.clone(), flow.is_over.clone());
        thread()
            .name("udp out".into())
            .spawn(move || pour(&out, (mbit, payload.into()), &sent, &is_over))?;
        Ok(flow)
    }

    /// What has arrived so far.
    pub fn seen(&self) -> Seen {
        *self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stops it, and waits for what is on the way: what arrived, how many were sent, and for how
    /// many seconds.
    pub fn finish(self) -> (Seen, u64, f64) {
        let seconds = self.began.elapsed().as_secs_f64();
        self.is_over.store(true, Relaxed);
        std::thread::sleep(LAST);
        (self.seen(), self.sent.load(Relaxed), seconds)
    }
}

impl Drop for UdpFlow {
    fn drop(&mut self) {
        self.is_over.store(true, Relaxed);
        self.is_unread.store(true, Relaxed);
    }
}

fn take(input: &UdpSocket, seen: &Mutex<Seen>, is_unread: &AtomicBool) {
    let mut datagram = [0; DATAGRAM_MAX];
    while !is_unread.load(Relaxed) {
        // An error is a timeout, or says that a sender is gone.
        let Ok(len) = input.recv(&mut datagram) else { continue };
        let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.take(Instant::now(), &datagram[..len]);
    }
}

fn pour(out: &UdpSocket, (mbit, len): (f64, usize), sent: &AtomicU64, is_over: &AtomicBool) {
    let mut datagram: Vec<u8> = [0; NUMBER_LEN].into_iter().chain(PATTERN.repeat(128)).collect();
    datagram.truncate(len);
    let per_s = mbit * 1e6 / 8.0 / len as f64;
    let (began, mut number) = (Instant::now(), 0u64);
    while !is_over.load(Relaxed) {
        let due = (began.elapsed().as_secs_f64() * per_s) as u64;
        while number < due && !is_over.load(Relaxed) {
            datagram[..NUMBER_LEN].copy_from_slice(&number.to_be_bytes());
            // One that the interface does not take is lost.
            let _ = out.send(&datagram);
            number += 1;
            sent.store(number, Relaxed);
        }
        std::thread::sleep(PORTION);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_late_is_disorder_and_what_is_missing_is_none() {
        let start = Instant::now();
        let mut seen = Seen::default();
        let datagram = |number: u64| [&number.to_be_bytes()[..], &PATTERN].concat();
        for (ms, number) in [(0, 0), (10, 2), (50, 1), (60, 3), (61, 7)] {
            seen.take(start + Duration::from_millis(ms), &datagram(number));
        }
        seen.take(start + Duration::from_secs(1), b"something of another program");
        assert_eq!((seen.count, seen.disordered, seen.bytes), (5, 1, 5 * 24));
        assert_eq!(seen.gap, Duration::from_millis(40));
    }
}
