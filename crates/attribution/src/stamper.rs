//! The sender's machine: packets in, stamp parts out.

use std::collections::VecDeque;
use std::time::Duration;

use shoal_crypto::Rng;
use shoal_wire::Time;

use crate::stamp::{
    CHUNK_PACKETS, Chunk, Digest, FlowId, Request, Seal, WINDOW_MAX, layout, packet_digest,
    packet_hash,
};
use crate::{Error, Pool, SIGNATURE_LEN, Signature};

/// How a flow is stamped.
#[derive(Clone, Debug)]
pub struct StamperConfig {
    /// The flow.
    pub flow: FlowId,
    /// Packets after which a window is closed, at most [`WINDOW_MAX`].
    pub window_max: usize,
    /// A window is closed this long after its first packet, however fast the flow is.
    pub delay_max: Duration,
    /// A window is closed when the flow pauses for this long: a thin flow waits no longer.
    pub idle: Duration,
    /// At least this long between two windows, unless they are full: bounds the signing work.
    pub interval_min: Duration,
    /// Closed windows whose parts are kept for resending.
    pub windows_kept: usize,
    /// Windows of this many packets or more send their seal twice: all of them depend on it.
    pub seal_twice_from: usize,
    /// The Unix time in milliseconds at `Time::ZERO`.
    pub unix_ms_at_zero: u64,
}

impl StamperConfig {
    /// Reasonable values: windows of up to 4,096 packets, closed after 50 ms or a pause of 2 ms.
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

/// Resends of one part that a window's sender makes at most.
const RESENDS_MAX: u8 = 8;

struct Sent {
    first: u64,
    count: usize,
    seal: Vec<u8>,
    chunks: Vec<Vec<u8>>,
    resends: Vec<u8>,
}

/// Stamps one flow. Its packets are numbered without gaps, in the order in which they come here.
pub struct Stamper {
    config: StamperConfig,
    rng: Rng,
    /// Number of the window's first packet.
    first: u64,
    /// Packets in the window so far.
    count: usize,
    opened: Time,
    last: Time,
    closed: Option<Time>,
    salt: Digest,
    open_chunk: Vec<Digest>,
    chunks: Vec<Vec<u8>>,
    sent: VecDeque<Sent>,
    out: VecDeque<Vec<u8>>,
    bytes: u64,
}

impl Stamper {
    /// A flow whose first packet is number 0. `seed` makes the salts.
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

    /// Takes the next packet and says its number. A full window is closed with a signature from
    /// `pool`; on an error the packet is in the window, and closing is tried again.
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

    /// Closes the window if its time has come.
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

    /// Closes the window now, if there is a packet in it.
    pub fn flush(&mut self, pool: &mut Pool, witness: u64, now: Time) -> Result<(), Error> {
        if self.count > 0 { self.close(pool, witness, now) } else { Ok(()) }
    }

    /// Resends what the receiver misses. Returns how many parts: none for windows that are not
    /// closed, not kept, or have had their share of resends.
    pub fn handle_request(&mut self, request: &Request) -> usize {
        if request.flow != self.config.flow {
            return 0;
        }
        let covers = |s: &&mut Sent| (s.first..s.first + s.count as u64).contains(&request.seq);
        let Some(sent) = self.sent.iter_mut().find(covers) else { return 0 };
        let mut parts = 0;
        for n in 0..=sent.chunks.len() {
            let is_seal = n == sent.chunks.len();
            let bit = if is_seal { Request::SEAL } else { 1 << n };
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

    /// When to come back, and why.
    pub fn poll_timeout(&self) -> Option<(Time, &'static str)> {
        if !self.out.is_empty() {
            return Some((Time::ZERO, "stamp parts to send"));
        }
        Some((self.deadline()?, "window to close"))
    }

    /// Corrects the Unix time in milliseconds that belongs to [`Time::ZERO`] and goes into stamps:
    /// shells call it when the machine's clock was set.
    pub fn set_clock(&mut self, unix_ms_at_zero: u64) {
        self.config.unix_ms_at_zero = unix_ms_at_zero;
    }

    /// Bytes of all parts made so far, resends included.
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

    /// Sends the chunk. Its salt goes out with it, so that later packets must not use that salt.
    fn end_chunk(&mut self) {
        let chunk = Chunk {
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
        // Nothing is changed if signing won't work.
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
            chunks: self.chunks.iter().map(|c| Chunk::hash(c)).collect(),
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
        self.sent.push_back(Sent { first, count, seal: bytes, chunks, resends });
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
