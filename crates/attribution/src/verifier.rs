//! The receiver's machine: takes packets and stamp parts in any order, produces verdicts and
//! requests.
//!
//! Verification follows delivery: a packet may be used before its verdict. Each input passes the
//! cheapest tests first: form, flow, time, epoch, replay, the source's budget, room in the queue.
//! [`Verifier::work`] then tests encodings, curve and proof. Subgroup and pairing come last, once
//! for all signatures of a batch. Only the budget stops a source that wants to cause work, since
//! signatures that fail only at the pairing can be made without a credential.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use shoal_crypto::{Rng, hash};
use shoal_wire::{DropReason, Time};

use crate::flow::{FlowOutput, ReceivedFlow};
use crate::stamp::{FlowId, PartRequest, Seal, StampPart, packet_hash};
use crate::verify::GroupVerifier;
use crate::{Evidence, EvidenceRing, SIGNATURE_LEN, SignatureError};

/// Settings of a verifier.
#[derive(Clone, Debug)]
pub struct VerifierConfig {
    /// Maximum number of flows.
    pub flows_max: usize,
    /// Maximum number of seals waiting for verification, of all sources.
    pub queue_max: usize,
    /// Maximum number of seals waiting for verification, per source.
    pub queue_source_max: usize,
    /// Maximum number of signatures in a batch with one pairing equation.
    pub batch_max: usize,
    /// Burst of bad signatures after which a source is ignored.
    pub bad_burst: u32,
    /// Long-term rate of bad signatures allowed per source and second.
    pub bad_per_second: u32,
    /// Maximum difference between a stamp's time and the verifier's.
    pub time_slack: Duration,
    /// Time until an overtaken stamp part is requested; doubled for each repetition.
    pub reorder: Duration,
    /// Time until a stamp without any received part is requested: longer than a window stays open.
    pub patience: Duration,
    /// Number of requests for a part before its packets are given up.
    pub tries: u32,
    /// Maximum number of packets whose proof is stored for evidence.
    pub evidence_packets: usize,
    /// Unix time in milliseconds at `Time::ZERO`.
    pub unix_ms_at_zero: u64,
}

impl Default for VerifierConfig {
    fn default() -> VerifierConfig {
        VerifierConfig {
            flows_max: 1_024,
            queue_max: 256,
            queue_source_max: 64,
            batch_max: 64,
            bad_burst: 32,
            bad_per_second: 4,
            time_slack: Duration::from_secs(60),
            reorder: Duration::from_millis(20),
            patience: Duration::from_millis(200),
            tries: 5,
            evidence_packets: 65_536,
            unix_ms_at_zero: 0,
        }
    }
}

/// Reasons why an input is refused. Each is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
#[repr(u8)]
pub enum StampRefusal {
    #[error("the bytes can't be decoded")]
    Malformed,
    #[error("the flow is unknown or belongs to another source")]
    UnknownFlow,
    #[error("a repetition, or too old")]
    Replayed,
    #[error("the stamp's time is too far from this machine's")]
    Time,
    #[error("the epoch is not accepted")]
    Epoch,
    #[error("the source has sent too many bad signatures")]
    Budget,
    #[error("no room is left")]
    Full,
    /// The seal does not commit to the chunk.
    #[error("the chunk does not match its seal")]
    Forged,
    #[error("the signature is bad")]
    Signature,
}

impl StampRefusal {
    /// All refusals, in the order of their counters.
    pub const ALL: [StampRefusal; 9] = [
        StampRefusal::Malformed,
        StampRefusal::UnknownFlow,
        StampRefusal::Replayed,
        StampRefusal::Time,
        StampRefusal::Epoch,
        StampRefusal::Budget,
        StampRefusal::Full,
        StampRefusal::Forged,
        StampRefusal::Signature,
    ];

    /// The closest drop reason of the node.
    pub const fn reason(self) -> DropReason {
        match self {
            StampRefusal::Malformed => DropReason::Malformed,
            StampRefusal::UnknownFlow => DropReason::UnknownFlow,
            StampRefusal::Replayed => DropReason::Replayed,
            StampRefusal::Time | StampRefusal::Epoch => DropReason::TooOld,
            StampRefusal::Budget => DropReason::NotAllowed,
            StampRefusal::Full => DropReason::TableFull,
            StampRefusal::Forged | StampRefusal::Signature => DropReason::BadTag,
        }
    }
}

/// Findings of a verifier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VerifierEvent {
    /// A member of the group sent `count` packets from `first` on.
    Valid {
        flow: FlowId,
        first: u64,
        count: u64,
    },
    /// The packet differs from the stamped one.
    Forged {
        flow: FlowId,
        /// Number of the packet.
        seq: u64,
    },
    /// No stamp arrived for `count` packets from `first` on, despite requests.
    Unstamped {
        flow: FlowId,
        first: u64,
        count: u64,
    },
    Rejected {
        flow: FlowId,
        why: SignatureError,
    },
}

/// State and remaining budget of a source.
struct SourceBudget {
    flows: usize,
    queued: usize,
    /// Remaining bad signatures, in thousandths.
    budget: u64,
    refilled: Time,
}

struct QueuedSeal {
    source: u64,
    /// Generation of the flow.
    generation: u64,
    seal: Seal,
    bytes: Vec<u8>,
    /// Hash of `bytes`.
    hash: [u8; 32],
}

/// A removed flow.
struct RemovedFlow {
    /// Packets below this number get no verdict.
    base: u64,
    at: Time,
}

/// Verifies the stamped flows of many sources in one group.
pub struct Verifier {
    config: VerifierConfig,
    group: GroupVerifier,
    rng: Rng,
    flows: BTreeMap<FlowId, ReceivedFlow>,
    flows_made: u64,
    /// Removed flows whose stamps may still be recent enough.
    ended: BTreeMap<FlowId, RemovedFlow>,
    sources: BTreeMap<u64, SourceBudget>,
    queue: VecDeque<QueuedSeal>,
    events: VecDeque<VerifierEvent>,
    requests: VecDeque<(u64, PartRequest)>,
    evidence: EvidenceRing,
    refused: [u64; StampRefusal::ALL.len()],
}

impl Verifier {
    /// A verifier without flows. `seed` must be secret: it makes the coefficients of batches.
    pub fn new(config: VerifierConfig, group: GroupVerifier, seed: [u8; 32]) -> Verifier {
        Verifier {
            evidence: EvidenceRing::new(config.evidence_packets),
            config,
            group,
            rng: Rng::new(seed),
            flows: BTreeMap::new(),
            flows_made: 0,
            ended: BTreeMap::new(),
            sources: BTreeMap::new(),
            queue: VecDeque::new(),
            events: VecDeque::new(),
            requests: VecDeque::new(),
            refused: [0; StampRefusal::ALL.len()],
        }
    }

    /// Adds a stamped flow from `source`, a number that identifies the sender. A flow that was
    /// removed before continues at its end, so its packets and stamps can't be replayed.
    pub fn add_flow(&mut self, flow: FlowId, source: u64, now: Time) -> Result<(), StampRefusal> {
        if self.flows.contains_key(&flow) {
            return self.refuse(StampRefusal::Replayed);
        }
        if self.flows.len() >= self.config.flows_max {
            return self.refuse(StampRefusal::Full);
        }
        let base = self.ended.remove(&flow).map_or(0, |ended| ended.base);
        self.flows_made += 1;
        self.flows.insert(flow, ReceivedFlow::new(flow, source, self.flows_made, base));
        let budget = u64::from(self.config.bad_burst) * 1_000;
        let fresh = SourceBudget { flows: 0, queued: 0, budget, refilled: now };
        self.sources.entry(source).or_insert(fresh).flows += 1;
        Ok(())
    }

    /// Removes a flow, and remembers its end. Its evidence stays. The source's budget stays while
    /// it has other flows.
    pub fn remove_flow(&mut self, flow: &FlowId, now: Time) {
        let Some(gone) = self.flows.remove(flow) else { return };
        if let Some(source) = self.sources.get_mut(&gone.source) {
            source.flows -= 1;
            if source.flows == 0 && source.queued == 0 {
                self.sources.remove(&gone.source);
            }
        }
        // A stamp's time may be ahead of the verifier's by the slack, and is accepted for another
        // slack after it.
        let fresh = self.config.time_slack.saturating_mul(2);
        self.ended.retain(|_, ended| now.since(ended.at) <= fresh);
        if self.ended.len() >= self.config.flows_max
            && let Some(oldest) = self.ended.iter().min_by_key(|(_, ended)| ended.at)
        {
            let oldest = *oldest.0;
            self.ended.remove(&oldest);
        }
        self.ended.insert(*flow, RemovedFlow { base: gone.end(), at: now });
    }

    /// Sets the Unix time in milliseconds at [`Time::ZERO`], against which stamps are compared.
    /// Shells call this when the machine's clock was set.
    pub fn set_clock(&mut self, unix_ms_at_zero: u64) {
        self.config.unix_ms_at_zero = unix_ms_at_zero;
    }

    /// The group's verifier, for accepting and refusing epochs.
    pub fn group_mut(&mut self) -> &mut GroupVerifier {
        &mut self.group
    }

    /// Records a packet of a flow. After an error it gets no verdict.
    pub fn handle_packet(
        &mut self,
        flow: &FlowId,
        seq: u64,
        plaintext: &[u8],
        now: Time,
    ) -> Result<(), StampRefusal> {
        let hash = packet_hash(flow, seq, plaintext);
        let Some(state) = self.flows.get_mut(flow) else {
            return self.refuse(StampRefusal::UnknownFlow);
        };
        let mut sink = FlowOutput {
            events: &mut self.events,
            requests: &mut self.requests,
            evidence: &mut self.evidence,
        };
        let result = state.packet(seq, hash, &mut sink);
        state.arm(now, self.config.reorder, self.config.patience);
        result.or_else(|why| self.refuse(why))
    }

    /// Handles a stamp part. After an error nothing of it is stored.
    pub fn handle_part(
        &mut self,
        source: u64,
        bytes: &[u8],
        now: Time,
    ) -> Result<(), StampRefusal> {
        let Ok(part) = StampPart::decode(bytes) else {
            return self.refuse(StampRefusal::Malformed);
        };
        let result = match part {
            StampPart::Seal(seal) => self.handle_seal(source, *seal, bytes, now),
            StampPart::Chunk(chunk) => {
                let mut sink = FlowOutput {
                    events: &mut self.events,
                    requests: &mut self.requests,
                    evidence: &mut self.evidence,
                };
                match self.flows.get_mut(&chunk.flow).filter(|f| f.source == source) {
                    Some(flow) => flow.chunk(chunk, bytes.to_vec(), &mut sink),
                    None => Err(StampRefusal::UnknownFlow),
                }
            }
            // Requests are for a `Stamper`.
            StampPart::Request(_) => Err(StampRefusal::Malformed),
        };
        result.or_else(|why| self.refuse(why))
    }

    fn handle_seal(
        &mut self,
        from: u64,
        seal: Seal,
        bytes: &[u8],
        now: Time,
    ) -> Result<(), StampRefusal> {
        let flow = self.flows.get_mut(&seal.flow).filter(|f| f.source == from);
        let flow = flow.ok_or(StampRefusal::UnknownFlow)?;
        let time_ms = self.config.unix_ms_at_zero + now.0 / 1_000_000;
        if u128::from(seal.time_ms.abs_diff(time_ms)) > self.config.time_slack.as_millis() {
            return Err(StampRefusal::Time);
        }
        if !self.group.accepts_epoch(seal.epoch) {
            return Err(StampRefusal::Epoch);
        }
        let source = self.sources.get_mut(&from).ok_or(StampRefusal::UnknownFlow)?;
        source.refill(&self.config, now);
        // All queued seals may be bad: together they must not exceed the budget.
        if source.budget < 1_000 * (source.queued as u64 + 1) {
            return Err(StampRefusal::Budget);
        }
        if source.queued >= self.config.queue_source_max
            || self.queue.len() >= self.config.queue_max
        {
            return Err(StampRefusal::Full);
        }
        let hash = hash(bytes);
        flow.seal_arrives(&seal, hash)?;
        source.queued += 1;
        let generation = flow.generation;
        let bytes = bytes.to_vec();
        self.queue.push_back(QueuedSeal { source: from, generation, seal, bytes, hash });
        Ok(())
    }

    /// Verifies up to `signatures` waiting seals in one batch (under a millisecond each). Returns
    /// their number.
    pub fn work(&mut self, signatures: usize) -> usize {
        let count = signatures.min(self.config.batch_max).min(self.queue.len());
        let batch: Vec<QueuedSeal> = self.queue.drain(..count).collect();
        let mut verdicts = Vec::with_capacity(count);
        let mut candidates = Vec::with_capacity(count);
        for QueuedSeal { seal, bytes, .. } in &batch {
            let message = Seal::message(&bytes[..bytes.len() - SIGNATURE_LEN]);
            let result = self.group.check(seal.epoch, &message, &seal.signature);
            verdicts.push(result.map(|c| candidates.push(c)));
        }
        let rest = self.group.verify_batch(&candidates, &mut self.rng);
        for (verdict, rest) in verdicts.iter_mut().filter(|v| v.is_ok()).zip(rest) {
            *verdict = rest;
        }
        for (queued, verdict) in batch.into_iter().zip(verdicts) {
            self.conclude(queued, verdict);
        }
        count
    }

    fn conclude(&mut self, queued: QueuedSeal, verdict: Result<(), SignatureError>) {
        let QueuedSeal { source: from, generation, seal, bytes, hash } = queued;
        let id = seal.flow;
        if let Some(source) = self.sources.get_mut(&from) {
            source.queued -= 1;
            if verdict.is_err() {
                source.budget = source.budget.saturating_sub(1_000);
            }
            if source.flows == 0 && source.queued == 0 {
                self.sources.remove(&from);
            }
        }
        if let Err(why) = verdict {
            self.refused[StampRefusal::Signature as usize] += 1;
            self.events.push_back(VerifierEvent::Rejected { flow: id, why });
        }
        let flow = self.flows.get_mut(&id).filter(|flow| flow.generation == generation);
        let Some(flow) = flow else { return };
        let mut sink = FlowOutput {
            events: &mut self.events,
            requests: &mut self.requests,
            evidence: &mut self.evidence,
        };
        if let Err(why) = flow.seal_verdict((seal, bytes, hash), verdict.is_ok(), &mut sink) {
            self.refused[why as usize] += 1;
        }
    }

    /// Requests missing parts again, and gives packets up after enough requests.
    pub fn handle_timeout(&mut self, now: Time) {
        let config = &self.config;
        for flow in self.flows.values_mut() {
            let mut sink = FlowOutput {
                events: &mut self.events,
                requests: &mut self.requests,
                evidence: &mut self.evidence,
            };
            flow.recover(now, config.reorder, config.tries, &mut sink);
            flow.arm(now, config.reorder, config.patience);
        }
    }

    /// The next request for lost parts, and its destination.
    pub fn poll_transmit(&mut self) -> Option<(u64, Vec<u8>)> {
        self.requests.pop_front().map(|(source, request)| (source, request.encode()))
    }

    /// The next finding.
    pub fn poll_event(&mut self) -> Option<VerifierEvent> {
        self.events.pop_front()
    }

    /// Time and reason of the next call.
    pub fn poll_timeout(&self) -> Option<(Time, &'static str)> {
        if !self.requests.is_empty() || !self.events.is_empty() {
            return Some((Time::ZERO, "requests or events"));
        }
        if !self.queue.is_empty() {
            return Some((Time::ZERO, "signatures to verify"));
        }
        let at = self.flows.values().filter_map(ReceivedFlow::recover_at).min()?;
        Some((at, "missing stamp parts"))
    }

    /// The evidence for one packet, if still stored.
    pub fn evidence(&self, flow: &FlowId, seq: u64) -> Option<Evidence> {
        self.evidence.export(flow, seq)
    }

    /// All stored proofs.
    pub fn kept(&self) -> &EvidenceRing {
        &self.evidence
    }

    /// Replaces the stored proofs by those of an earlier run, within this verifier's bound.
    pub fn restore(&mut self, kept: EvidenceRing) {
        self.evidence = kept.bounded(self.config.evidence_packets);
    }

    /// Number of refusals for this reason.
    pub fn refused(&self, why: StampRefusal) -> u64 {
        self.refused[why as usize]
    }

    /// Number of packets of a flow that wait for their stamp.
    pub fn waiting(&self, flow: &FlowId) -> usize {
        self.flows.get(flow).map_or(0, ReceivedFlow::waiting)
    }

    /// Number of removed flows whose end is remembered.
    pub fn ended(&self) -> usize {
        self.ended.len()
    }

    /// Number of seals waiting for verification.
    pub fn queued(&self) -> usize {
        self.queue.len()
    }

    fn refuse(&mut self, why: StampRefusal) -> Result<(), StampRefusal> {
        self.refused[why as usize] += 1;
        Err(why)
    }
}

impl SourceBudget {
    fn refill(&mut self, config: &VerifierConfig, now: Time) {
        let gained = now.since(self.refilled).as_millis() as u64 * u64::from(config.bad_per_second);
        // An interval too short for a gain is left for the next call.
        if gained > 0 {
            self.budget = (self.budget + gained).min(u64::from(config.bad_burst) * 1_000);
            self.refilled = now;
        }
    }
}

impl core::fmt::Debug for Verifier {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Verifier({} flows, {} seals wait)", self.flows.len(), self.queue.len())
    }
}
