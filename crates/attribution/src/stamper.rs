//! The sender's machine: takes packets, produces stamp parts.

use std::collections::VecDeque;
use std::time::Duration;

use shoal_crypto::Rng;
use shoal_wire::Time;

use crate::stamp::{
    CHUNK_PACKETS, Digest, DigestChunk, FlowId, PartRequest, Seal, WINDOW_MAX, layout,
    packet_digest, packet_hash,
};
use crate::{Error, Pool, SIGNATURE_LEN, Signature};

/// Settings of a stamper.
#[derive(Clone, Debug)]
pub struct StamperConfig {
    /// The flow.
    pub flow: FlowId,
    /// Maximum number of packets in a window, at most [`WINDOW_MAX`].
    pub window_max: usize,
    /// Maximum time from a window's first packet until it is closed.
    pub delay_max: Duration,
    /// Pause of the flow after which a window is closed: a thin flow waits no longer.
    pub idle: Duration,
    /// Minimum time between two windows, unless they are full: bounds the signing work.
    pub interval_min: Duration,
    /// Number of closed windows whose parts are stored for resending.
    pub windows_kept: usize,
    /// Number of packets from which on a window's seal is sent twice, since all of them depend on
    /// it.
    pub seal_twice_from: usize,
    /// Unix time in milliseconds at `Time::ZERO`.
    pub unix_ms_at_zero: u64,
}

impl StamperConfig {
    /// Default values: windows of up to 4,096 packets, closed after 50 ms or a pause of 2 ms.
    pub fn new(flow: FlowId) -> StamperConfig {
        StamperConfig {
            flow,
            window_max: WINDOW_MAX,
            delay_max: Duration::from_millis(50),
            idle: Duration::from_millis(2),
            interval_min: Duration::from_millis(5),
            windows_kept: 32,
            seal_twice_from: 1_024,
            unix_ms_at_zero: 0,
        }
    }
}

/// Maximum number of resends of one part.
const RESENDS_MAX: u8 = 8;

struct SentWindow {
    first: u64,
    count: usize,
    seal: Vec<u8>,
    chunks: Vec<Vec<u8>>,
    resends: Vec<u8>,
}

/// Stamps one flow. Packets are numbered without gaps, in the order of [`Stamper::handle_packet`]
/// calls.
pub struct Stamper {
    config: StamperConfig,
    rng: Rng,
    /// Number of the window's first packet.
    first: u64,
    /// Number of packets in the window so far.
    count: usize,
    opened: Time,
    last: Time,
    closed: Option<Time>,
    salt: Digest,
    open_chunk: Vec<Digest>,
    chunks: Vec<Vec<u8>>,
    sent: VecDeque<SentWindow>,
    out: VecDeque<Vec<u8>>,
    bytes: u64,
}

impl Stamper {
    /// A stamper for a flow whose first packet is number 0. `seed` makes the salts.
    pub fn new(mut config: StamperConfig, seed: [u8; 32], now: Time) -> Stamper {
        config.window_max = config.window_max.clamp(1, WINDOW_MAX);
        let mut rng = Rng::new(seed);
        let salt = rng.array();
        Stamper {
            config,
            rng,
            first: 0,
            count: 0,
            opened: now,
            last: now,
            closed: None,
            salt,
            open_chunk: Vec::with_capacity(CHUNK_PACKETS),
            chunks: Vec::new(),
            sent: VecDeque::new(),
            out: VecDeque::new(),
            bytes: 0,
        }
    }

    /// Adds the next packet and returns its number. A full window is closed with a signature from
    /// `pool`. On an error the packet stays in the window, and closing is tried again.
    pub fn handle_packet(
        &mut self,
        plaintext: &[u8],
        pool: &mut Pool,
        witness: u64,
        now: Time,
    ) -> Result<u64, Error> {
        if self.count >= self.config.window_max {
            self.close(pool, witness, now)?;
        }
        let seq = self.first + self.count as u64;
        if self.count == 0 {
            self.opened = now;
        }
        self.last = now;
        let hash = packet_hash(&self.config.flow, seq, plaintext);
        self.open_chunk.push(packet_digest(&self.salt, &hash));
        self.count += 1;
        if self.open_chunk.len() == CHUNK_PACKETS {
            self.end_chunk();
        }
        if self.count >= self.config.window_max {
            self.close(pool, witness, now)?;
        }
        Ok(seq)
    }

    /// Closes the window if it is due.
    pub fn handle_timeout(
        &mut self,
        pool: &mut Pool,
        witness: u64,
        now: Time,
    ) -> Result<(), Error> {
        if self.deadline().is_some_and(|at| at <= now) {
            self.close(pool, witness, now)?;
        }
        Ok(())
    }

    /// Closes the window now, unless it is empty.
    pub fn flush(&mut self, pool: &mut Pool, witness: u64, now: Time) -> Result<(), Error> {
        if self.count > 0 { self.close(pool, witness, now) } else { Ok(()) }
    }

    /// Resends missing parts and returns their number. The number is zero for a window that is open
    /// or no longer stored, or whose parts were resent too often.
    pub fn handle_request(&mut self, request: &PartRequest) -> usize {
        if request.flow != self.config.flow {
            return 0;
        }
        let covers =
            |s: &&mut SentWindow| (s.first..s.first + s.count as u64).contains(&request.seq);
        let Some(sent) = self.sent.iter_mut().find(covers) else { return 0 };
        let mut parts = 0;
        for n in 0..=sent.chunks.len() {
            let is_seal = n == sent.chunks.len();
            let bit = if is_seal { PartRequest::SEAL } else { 1 << n };
            if request.missing & bit == 0 || sent.resends[n] >= RESENDS_MAX {
                continue;
            }
            sent.resends[n] += 1;
            let bytes = if is_seal { &sent.seal } else { &sent.chunks[n] };
            self.bytes += bytes.len() as u64;
            self.out.push_back(bytes.clone());
            parts += 1;
        }
        parts
    }

    /// The next part to send to the flow's receiver.
    pub fn poll_transmit(&mut self) -> Option<Vec<u8>> {
        self.out.pop_front()
    }

    /// Time and reason of the next call.
    pub fn poll_timeout(&self) -> Option<(Time, &'static str)> {
        if !self.out.is_empty() {
            return Some((Time::ZERO, "stamp parts to send"));
        }
        Some((self.deadline()?, "window to close"))
    }

    /// Sets the Unix time in milliseconds at [`Time::ZERO`], used in stamps. Shells call this when
    /// the machine's clock was set.
    pub fn set_clock(&mut self, unix_ms_at_zero: u64) {
        self.config.unix_ms_at_zero = unix_ms_at_zero;
    }

    /// Bytes of all parts sent so far, resends included.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    fn deadline(&self) -> Option<Time> {
        if self.count == 0 {
            return None;
        }
        let due = (self.opened + self.config.delay_max).min(self.last + self.config.idle);
        Some(self.closed.map_or(due, |closed| due.max(closed + self.config.interval_min)))
    }

    /// Sends the chunk. Its salt becomes known, so later packets must not use it.
    fn end_chunk(&mut self) {
        let chunk = DigestChunk {
            flow: self.config.flow,
            first: self.first,
            index: self.chunks.len() as u8,
            salt: self.salt,
            digests: core::mem::take(&mut self.open_chunk),
        };
        self.open_chunk.reserve(CHUNK_PACKETS);
        self.salt = self.rng.array();
        let bytes = chunk.encode();
        self.send(bytes.clone());
        self.chunks.push(bytes);
    }

    fn close(&mut self, pool: &mut Pool, witness: u64, now: Time) -> Result<(), Error> {
        // Nothing changes if signing won't work.
        pool.guard(witness)?;
        let (chunks, _) = layout(self.count);
        if chunks > self.chunks.len() {
            self.end_chunk();
        }
        let mut seal = Seal {
            flow: self.config.flow,
            first: self.first,
            count: self.count as u16,
            epoch: pool.signer().epoch(),
            time_ms: self.config.unix_ms_at_zero + now.0 / 1_000_000,
            salt: self.salt,
            chunks: self.chunks.iter().map(|c| DigestChunk::hash(c)).collect(),
            tail: self.open_chunk.clone(),
            signature: Signature([0; SIGNATURE_LEN]),
        };
        seal.signature = pool.sign(&Seal::message(&seal.signed_bytes()), witness)?;
        let bytes = seal.encode();
        self.send(bytes.clone());
        if self.count >= self.config.seal_twice_from {
            self.send(bytes.clone());
        }
        let chunks = core::mem::take(&mut self.chunks);
        let resends = vec![0; chunks.len() + 1];
        let (first, count) = (self.first, self.count);
        self.sent.push_back(SentWindow { first, count, seal: bytes, chunks, resends });
        if self.sent.len() > self.config.windows_kept {
            self.sent.pop_front();
        }
        self.first += self.count as u64;
        self.count = 0;
        self.open_chunk.clear();
        self.salt = self.rng.array();
        self.closed = Some(now);
        Ok(())
    }

    fn send(&mut self, part: Vec<u8>) {
        self.bytes += part.len() as u64;
        self.out.push_back(part);
    }
}

impl core::fmt::Debug for Stamper {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Stamper({} packets in the window)", self.count)
    }
}
