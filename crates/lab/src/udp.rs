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
/// What every datagram repeats behind its head. An observer of the network must never see it.
pub const PATTERN: [u8; 16] = *b"In clear no more";
/// Length of the head: a number, and when it was sent in microseconds after the start of the flow,
/// four bytes each. The time begins again after 71 minutes, which no datagram takes.
const HEAD_LEN: usize = 8;
/// Width of a step of delays, and how many there are; longer ones count as the last.
const STEP_US: u32 = 100;
const STEPS: usize = 20_000;
/// Datagrams of which it is known one by one whether they came: ten minutes of 150 Mbit/s.
const CAME_MAX: usize = 10_000_000;

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
    /// Takes in a datagram, and says its number and when it was sent; those of others are passed
    /// over.
    fn take(&mut self, now: Instant, datagram: &[u8]) -> Option<(u32, u32)> {
        let (head, rest) = datagram.split_first_chunk::<HEAD_LEN>()?;
        if !PATTERN.starts_with(&rest[..rest.len().min(PATTERN.len())]) {
            return None;
        }
        let [n0, n1, n2, n3, t0, t1, t2, t3] = *head;
        let counted = u32::from_be_bytes([n0, n1, n2, n3]);
        let number = u64::from(counted);
        (self.count, self.bytes) = (self.count + 1, self.bytes + datagram.len() as u64);
        self.disordered += u64::from(number < self.next);
        self.next = self.next.max(number + 1);
        let silence = self.last.replace(now).map_or(Duration::ZERO, |last| now - last);
        self.gap = self.gap.max(silence);
        Some((counted, u32::from_be_bytes([t0, t1, t2, t3])))
    }
}

/// Times from one interface to the other. Both are read from one clock: the machine is one.
#[derive(Clone, Debug)]
pub struct Delays {
    steps: Vec<u64>,
    count: u64,
    sum_us: u64,
}

impl Default for Delays {
    fn default() -> Delays {
        Delays { steps: vec![0; STEPS], count: 0, sum_us: 0 }
    }
}

impl Delays {
    fn take(&mut self, us: u32) {
        self.steps[((us / STEP_US) as usize).min(STEPS - 1)] += 1;
        (self.count, self.sum_us) = (self.count + 1, self.sum_us + u64::from(us));
    }

    /// The mean in milliseconds; NaN without any.
    pub fn mean_ms(&self) -> f64 {
        self.sum_us as f64 / 1e3 / self.count as f64
    }

    /// What 99% of them do not exceed, in milliseconds to 0.1 ms; NaN without any.
    pub fn p99_ms(&self) -> f64 {
        let mut above = self.count / 100;
        let step = self.steps.iter().rposition(|count| {
            let is_it = *count > above;
            above = above.saturating_sub(*count);
            is_it
        });
        step.map_or(f64::NAN, |step| (step + 1) as f64 * f64::from(STEP_US) / 1e3)
    }
}

/// Which datagrams have come, by their numbers.
#[derive(Clone, Debug, Default)]
struct Came(Vec<u64>);

impl Came {
    fn take(&mut self, number: u32) {
        let (word, bit) = (number as usize / 64, number % 64);
        if word < CAME_MAX / 64 {
            if word >= self.0.len() {
                self.0.resize(word + 1, 0);
            }
            self.0[word] |= 1 << bit;
        }
    }

    fn has(&self, number: u64) -> bool {
        let word = self.0.get((number / 64) as usize).copied().unwrap_or(0);
        word >> (number % 64) & 1 == 1
    }
}

/// What became of a flow.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// What arrived.
    pub seen: Seen,
    /// How long that took.
    pub delays: Delays,
    /// Datagrams that were sent.
    pub sent: u64,
    /// For how many seconds.
    pub seconds: f64,
    /// When those that are missing were due to be sent, in seconds after `began`; of the first
    /// millions only.
    pub missing_s: Vec<f64>,
    /// When it began.
    pub began: Instant,
}

/// All that is known of what came.
#[derive(Clone, Debug, Default)]
struct Taken {
    seen: Seen,
    delays: Delays,
    came: Came,
}

/// A flow; ends when dropped.
#[derive(Debug)]
pub struct UdpFlow {
    taken: Arc<Mutex<Taken>>,
    per_s: f64,
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
            taken: Arc::default(),
            per_s: mbit * 1e6 / 8.0 / f64::from(payload),
            sent: Arc::default(),
            is_over: Arc::default(),
            is_unread: Arc::default(),
            began: Instant::now(),
        };
        let (began, taken, is_unread) = (flow.began, flow.taken.clone(), flow.is_unread.clone());
        let thread = || std::thread::Builder::new();
        thread().name("udp in".into()).spawn(move || take(&input, began, &taken, &is_unread))?;
        let (sent, is_over) = (flow.sent.clone(), flow.is_over.clone());
        thread()
            .name("udp out".into())
            .spawn(move || pour(&out, began, (mbit, payload.into()), &sent, &is_over))?;
        Ok(flow)
    }

    /// What has arrived so far.
    pub fn seen(&self) -> Seen {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner).seen
    }

    /// Stops it, and waits for what is on the way.
    pub fn finish(self) -> Outcome {
        let seconds = self.began.elapsed().as_secs_f64();
        self.is_over.store(true, Relaxed);
        std::thread::sleep(LAST);
        let Taken { seen, delays, came } =
            self.taken.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let sent = self.sent.load(Relaxed);
        let missing = (0..sent.min(CAME_MAX as u64)).filter(|number| !came.has(*number));
        let missing_s = missing.map(|number| (number + 1) as f64 / self.per_s).collect();
        Outcome { seen, delays, sent, seconds, missing_s, began: self.began }
    }
}

impl Drop for UdpFlow {
    fn drop(&mut self) {
        self.is_over.store(true, Relaxed);
        self.is_unread.store(true, Relaxed);
    }
}

fn take(input: &UdpSocket, began: Instant, taken: &Mutex<Taken>, is_unread: &AtomicBool) {
    let mut datagram = [0; DATAGRAM_MAX];
    while !is_unread.load(Relaxed) {
        // An error is a timeout, or says that a sender is gone.
        let Ok(len) = input.recv(&mut datagram) else { continue };
        let now = Instant::now();
        let Taken { seen, delays, came } =
            &mut *taken.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((number, sent_us)) = seen.take(now, &datagram[..len]) {
            delays.take(micros(now - began).wrapping_sub(sent_us));
            came.take(number);
        }
    }
}

/// As it stands in heads.
fn micros(time: Duration) -> u32 {
    time.as_micros() as u32
}

fn pour(
    out: &UdpSocket,
    began: Instant,
    (mbit, len): (f64, usize),
    sent: &AtomicU64,
    is_over: &AtomicBool,
) {
    let mut datagram: Vec<u8> = [0; HEAD_LEN].into_iter().chain(PATTERN.repeat(128)).collect();
    datagram.truncate(len);
    let per_s = mbit * 1e6 / 8.0 / len as f64;
    let mut number = 0u64;
    while !is_over.load(Relaxed) {
        let due = (began.elapsed().as_secs_f64() * per_s) as u64;
        while number < due && !is_over.load(Relaxed) {
            datagram[..4].copy_from_slice(&(number as u32).to_be_bytes());
            datagram[4..HEAD_LEN].copy_from_slice(&micros(began.elapsed()).to_be_bytes());
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
        let datagram = |number: u32| [&number.to_be_bytes()[..], &[0, 0, 0, 9], &PATTERN].concat();
        for (ms, number) in [(0, 0), (10, 2), (50, 1), (60, 3), (61, 7)] {
            let taken = seen.take(start + Duration::from_millis(ms), &datagram(number));
            assert_eq!(taken, Some((number, 9)));
        }
        let other = seen.take(start + Duration::from_secs(1), b"something of another program");
        assert_eq!(other, None);
        assert_eq!((seen.count, seen.disordered, seen.bytes), (5, 1, 5 * 24));
        assert_eq!(seen.gap, Duration::from_millis(40));
    }

    #[test]
    fn those_that_came_are_known_by_their_numbers() {
        let mut came = Came::default();
        [0, 63, 64, 1_000].into_iter().for_each(|number| came.take(number));
        let all: Vec<u64> = (0..2_000).filter(|number| came.has(*number)).collect();
        assert_eq!(all, [0, 63, 64, 1_000]);
        came.take(u32::MAX);
        assert!(!came.has(u32::MAX.into()) && came.0.len() < 100);
    }

    #[test]
    fn delays_have_a_mean_and_a_bound_of_almost_all() {
        let mut delays = Delays::default();
        assert!(delays.mean_ms().is_nan() && delays.p99_ms().is_nan());
        (0..1_000).for_each(|n| delays.take(n * 100 + 50));
        assert_eq!((delays.mean_ms(), delays.p99_ms()), (50.0, 99.0));
        // One that took longer than all steps counts as the last.
        let mut delays = Delays::default();
        delays.take(u32::MAX);
        assert_eq!(delays.p99_ms(), 2_000.0);
    }
}
