//! Numbered UDP datagrams between the virtual interfaces of two hosts, at a steady rate.

use std::net::{IpAddr, Ipv6Addr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::sys::socket::{setsockopt, sockopt};

use crate::network::Network;

/// Time between two bursts.
const PORTION: Duration = Duration::from_millis(1);
/// Longest wait of a read before its thread checks whether it should end.
const NAP: Duration = Duration::from_millis(50);
/// Wait at the end for datagrams in transit.
const LAST: Duration = Duration::from_millis(700);
/// Buffers at both ends, in bytes: 300 ms of 200 Mbit/s.
const BUFFER: usize = 8 << 20;
/// Buffer for a datagram: more than the longest.
const DATAGRAM_MAX: usize = 2_048;
/// Repeated content of every datagram after its head. An observer of the network must never see it.
pub const PATTERN: [u8; 16] = *b"In clear no more";
/// Length of the head: the number, and the time of sending in microseconds after the start of the
/// flow, four bytes each. The time wraps after 71 minutes, longer than any datagram takes.
const HEAD_LEN: usize = 8;
/// Width of a histogram step, and number of steps. The last step also counts all longer delays.
const STEP_US: u32 = 100;
const STEPS: usize = 20_000;
/// Limit of individually recorded datagrams: ten minutes of 150 Mbit/s.
const CAME_MAX: usize = 10_000_000;

/// Counters of received datagrams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReceivedCounters {
    /// Number of datagrams.
    pub count: u64,
    /// Number of datagrams that came after one with a higher number.
    pub disordered: u64,
    /// Payload bytes.
    pub bytes: u64,
    /// Longest time between two arrivals.
    pub gap: Duration,
    next: u64,
    last: Option<Instant>,
}

impl ReceivedCounters {
    /// Counts a datagram, and returns its number and time of sending. Foreign datagrams are
    /// ignored.
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

/// Histogram of delays from one interface to the other. One clock measures both ends: it is one
/// machine.
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

    /// The mean in milliseconds; NaN without datagrams.
    pub fn mean_ms(&self) -> f64 {
        self.sum_us as f64 / 1e3 / self.count as f64
    }

    /// The 99th percentile in milliseconds, to 0.1 ms; NaN without datagrams.
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

/// Bitmap of received datagrams, by number.
#[derive(Clone, Debug, Default)]
struct ReceivedBitmap(Vec<u64>);

impl ReceivedBitmap {
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

/// Result of a flow.
#[derive(Clone, Debug)]
pub struct UdpOutcome {
    /// Counters of received datagrams.
    pub seen: ReceivedCounters,
    /// Delays of received datagrams.
    pub delays: Delays,
    /// Number of datagrams sent.
    pub sent: u64,
    /// Duration in seconds.
    pub seconds: f64,
    /// Times at which missing datagrams were due to be sent, in seconds after `began`. Only the
    /// first ten million datagrams count.
    pub missing_s: Vec<f64>,
    pub began: Instant,
}

/// State of the receiver.
#[derive(Clone, Debug, Default)]
struct UdpReceiver {
    seen: ReceivedCounters,
    delays: Delays,
    came: ReceivedBitmap,
}

/// A running flow; ends when dropped.
#[derive(Debug)]
pub struct UdpFlow {
    taken: Arc<Mutex<UdpReceiver>>,
    per_s: f64,
    sent: Arc<AtomicU64>,
    is_over: Arc<AtomicBool>,
    is_unread: Arc<AtomicBool>,
    began: Instant,
}

impl UdpFlow {
    /// Starts a flow from `from` to the address `far` of `to`, with datagrams of `payload` bytes at
    /// `mbit` Mbit/s.
    ///
    /// # Errors
    /// Namespaces or a route are missing.
    pub fn start(
        network: &Network,
        (from, to): (usize, usize),
        far: IpAddr,
        mbit: f64,
        payload: u16,
    ) -> Result<UdpFlow> {
        let spaces = network.namespace(from).zip(network.namespace(to));
        let (near, there) = spaces.context("UDP flows need namespaces; run as root")?;
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

    /// Counters of the datagrams received so far.
    pub fn seen(&self) -> ReceivedCounters {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner).seen
    }

    /// Stops the flow, and waits for datagrams in transit.
    pub fn finish(self) -> UdpOutcome {
        let seconds = self.began.elapsed().as_secs_f64();
        self.is_over.store(true, Relaxed);
        std::thread::sleep(LAST);
        let UdpReceiver { seen, delays, came } =
            self.taken.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let sent = self.sent.load(Relaxed);
        let missing = (0..sent.min(CAME_MAX as u64)).filter(|number| !came.has(*number));
        let missing_s = missing.map(|number| (number + 1) as f64 / self.per_s).collect();
        UdpOutcome { seen, delays, sent, seconds, missing_s, began: self.began }
    }
}

impl Drop for UdpFlow {
    fn drop(&mut self) {
        self.is_over.store(true, Relaxed);
        self.is_unread.store(true, Relaxed);
    }
}

fn take(input: &UdpSocket, began: Instant, taken: &Mutex<UdpReceiver>, is_unread: &AtomicBool) {
    let mut datagram = [0; DATAGRAM_MAX];
    while !is_unread.load(Relaxed) {
        // An error is a timeout, or means that a sender is gone.
        let Ok(len) = input.recv(&mut datagram) else { continue };
        let now = Instant::now();
        let UdpReceiver { seen, delays, came } =
            &mut *taken.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((number, sent_us)) = seen.take(now, &datagram[..len]) {
            delays.take(micros(now - began).wrapping_sub(sent_us));
            came.take(number);
        }
    }
}

/// Time in microseconds, as in heads; wraps.
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
            // A datagram that the interface refuses is lost.
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
    fn late_datagrams_count_as_disorder_and_lost_ones_do_not() {
        let start = Instant::now();
        let mut seen = ReceivedCounters::default();
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
        let mut came = ReceivedBitmap::default();
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
        // A longer delay counts in the last step.
        let mut delays = Delays::default();
        delays.take(u32::MAX);
        assert_eq!(delays.p99_ms(), 2_000.0);
    }
}
