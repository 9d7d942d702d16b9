//! A trial: one flow from a stamper to a verifier over a lossy network, for measurements.
//!
//! This module alone defines the cost of a stamped stream. `shoal attribution bench`, the criterion
//! rows and the test of the byte budget use it.

use std::time::Duration;

use shoal_crypto::Rng;
use shoal_wire::{SizeClass, Time};

use crate::{
    Error, FlowId, GroupVerifier, Pool, Signer, StampPart, StampRefusal, Stamper, StamperConfig,
    Verifier, VerifierConfig, VerifierEvent,
};

const FLOW: FlowId = FlowId(*b"a flow on trial.");
const SOURCE: u64 = 1;
const WITNESS: u64 = 0;
/// Maximum number of resending rounds before a trial fails: at 5% loss one in 10^20 needs more.
const ROUNDS_MAX: u32 = 20;

/// One sender and one receiver on one thread.
pub struct StampTrial {
    stamper: Stamper,
    pool: Pool,
    verifier: Verifier,
    window: usize,
    /// Plaintext of a window; `packet` is the length of a packet.
    data: Vec<u8>,
    packet: usize,
    loss: u64,
    dice: Rng,
    now: Time,
    sent: u64,
    request_bytes: u64,
    frame_bytes: u64,
}

impl StampTrial {
    /// A flow of packets of `packet` bytes, in windows of `window` packets. Packets, stamp parts
    /// and requests are lost with a probability of `loss` thousandths each. `group` must accept the
    /// signer's epoch.
    pub fn new(
        signer: Signer,
        group: GroupVerifier,
        window: usize,
        packet: usize,
        loss: u64,
    ) -> Result<StampTrial, Error> {
        let mut config = StamperConfig::new(FLOW);
        config.window_max = window;
        config.delay_max = Duration::from_secs(3_600);
        config.idle = Duration::from_secs(3_600);
        let settings = VerifierConfig { time_slack: Duration::MAX, ..VerifierConfig::default() };
        let mut dice = Rng::new([1; 32]);
        let mut verifier = Verifier::new(settings, group, dice.fork("verifier"));
        verifier.add_flow(FLOW, SOURCE, Time::ZERO).map_err(|_| Error::Full("the verifier"))?;
        let mut data = vec![0; packet * window];
        dice.fill(&mut data);
        Ok(StampTrial {
            stamper: Stamper::new(config, dice.fork("stamper"), Time::ZERO),
            pool: Pool::new(signer, 4, dice.fork("pool"), WITNESS, Time::ZERO),
            verifier,
            window,
            data,
            packet,
            loss,
            dice,
            now: Time::ZERO,
            sent: 0,
            request_bytes: 0,
            frame_bytes: 0,
        })
    }

    /// Stamps `windows` windows (up to 2) and verifies the packets that arrive, with one batch of
    /// signatures. Returns the number of verified packets. Errors if one that arrived was not
    /// verified.
    pub fn run(&mut self, windows: usize) -> Result<u64, Error> {
        let mut arrived = 0;
        for _ in 0..windows {
            self.pool.fill(WITNESS)?;
            arrived += self.send_window()?;
        }
        let mut valid = 0;
        for round in 0..ROUNDS_MAX {
            self.deliver();
            while let Some(event) = self.verifier.poll_event() {
                match event {
                    VerifierEvent::Valid { count, .. } => valid += count,
                    _ => return Err(Error::Proof("the verdict on a good packet")),
                }
            }
            if self.verifier.waiting(&FLOW) == 0 {
                break;
            }
            self.recover(round);
        }
        if valid == arrived { Ok(valid) } else { Err(Error::Proof("recovery")) }
    }

    /// Bytes of all stamp parts and requests so far, per packet sent.
    pub fn bytes_per_packet(&self) -> f64 {
        (self.stamper.bytes() + self.request_bytes) as f64 / self.sent.max(1) as f64
    }

    /// Like [`StampTrial::bytes_per_packet`], but counts frames: each part and request has a frame
    /// of its own, of the smallest class that fits.
    pub fn frame_bytes_per_packet(&self) -> f64 {
        self.frame_bytes as f64 / self.sent.max(1) as f64
    }

    fn send_window(&mut self) -> Result<u64, Error> {
        let mut arrived = 0;
        for packet in self.data.chunks(self.packet) {
            let seq = self.stamper.handle_packet(packet, &mut self.pool, WITNESS, self.now)?;
            if self.dice.below(1_000) >= self.loss {
                let taken = self.verifier.handle_packet(&FLOW, seq, packet, self.now);
                taken.map_err(|_: StampRefusal| Error::Full("the verifier"))?;
                arrived += 1;
            }
        }
        self.sent += self.window as u64;
        Ok(arrived)
    }

    /// Delivers the parts in flight and verifies.
    fn deliver(&mut self) {
        while let Some(part) = self.stamper.poll_transmit() {
            self.frame_bytes += frame_of(part.len());
            if self.dice.below(1_000) >= self.loss {
                // A second copy of a seal is refused as a replay.
                let _ = self.verifier.handle_part(SOURCE, &part, self.now);
            }
        }
        while self.verifier.work(64) > 0 {}
    }

    /// Advances time until the verifier requests missing parts, and delivers the requests.
    fn recover(&mut self, round: u32) {
        self.now = self.now + Duration::from_millis(10 << round.min(5));
        self.verifier.handle_timeout(self.now);
        while let Some((_, request)) = self.verifier.poll_transmit() {
            self.request_bytes += request.len() as u64;
            self.frame_bytes += frame_of(request.len());
            if let Ok(StampPart::Request(request)) = StampPart::decode(&request)
                && self.dice.below(1_000) >= self.loss
            {
                self.stamper.handle_request(&request);
            }
        }
    }
}

impl core::fmt::Debug for StampTrial {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Trial({} packets sent)", self.sent)
    }
}

/// Length in bytes of a part's frame: of the smallest size class that fits.
fn frame_of(part: usize) -> u64 {
    SizeClass::for_edge(part + 1).unwrap_or(SizeClass::Full).frame_len() as u64
}
