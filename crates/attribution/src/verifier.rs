//! The receiver's machine: packets and stamp parts in any order in, verdicts and requests out.
//!
//! Verification runs behind delivery: a packet may be used before its verdict. What comes in is
//! refused by the cheapest test that refuses it: form, flow, time, epoch, replay, the source's
//! budget, room in the queue; then, in [`Verifier::work`], encodings, curve, the proof; last the
//! subgroup and the pairing, shared by all signatures of a batch. Only the budget stops a source
//! that wants to cause work: signatures that fail at the pairing alone can be made without a
//! credential.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use shoal_crypto::{Rng, hash};
use shoal_wire::{DropReason, Time};

use crate::flow::{Flow, Sink};
use crate::stamp::{FlowId, Part, Request, Seal, packet_hash};
use crate::verify::GroupVerifier;
use crate::{Evidence, EvidenceRing, Reject, SIGNATURE_LEN};

/// Bounds of a verifier.
#[derive(Clone, Debug)]
pub struct VerifierConfig {
    /// Most flows at a time.
    pub flows_max: usize,
    /// Seals that wait for verification, of all sources.
    pub queue_max: usize,
    /// Seals that wait for verification, of one source.
    pub queue_source_max: usize,
    /// Most signatures that share a pairing.
    pub batch_max: usize,
    /// Bad signatures a source may send at once before it is ignored.
    pub bad_burst: u32,
    /// Bad signatures a source may send each second in the long run.
    pub bad_per_second: u32,
    /// How far a stamp's time may be from the verifier's.
    pub time_slack: Duration,
    /// Wait before an overtaken stamp part is asked for; doubled for each repetition.
    pub reorder: Duration,
    /// Wait before a stamp of which nothing came is asked for: longer than a window stays open.
    pub patience: Duration,
    /// Requests for the same parts before the packets are given up.
    pub tries: u32,
    /// Packets whose proof is kept for evidence.
    pub evidence_packets: usize,
    /// The Unix time in milliseconds at `Time::ZERO`.
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

/// Why something went no further; each is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
#[repr(u8)]
pub enum Refusal {
    /// Not decodable.
    #[error("it can't be decoded")]
    Malformed,
    /// Of a flow that is not this source's, or of none.
    #[error("it is of a flow that is not this source's, or of none")]
    UnknownFlow,
    /// Here before, or too old to matter.
    #[error("it was here before, or is too old")]
    Replayed,
    /// Its time is too far from ours.
    #[error("its time is too far from this machine's")]
    Time,
    /// Its epoch is not accepted.
    #[error("it is of another epoch")]
    Epoch,
    /// The source has sent too many bad signatures.
    #[error("its source has sent too many bad signatures")]
    Budget,
    /// No room.
    #[error("there is no room for it")]
    Full,
    /// Not what the seal commits to.
    #[error("it is not what the seal speaks of")]
    Forged,
    /// The signature is bad.
    #[error("its signature is bad")]
    Signature,
}

impl Refusal {
    /// Every refusal, in the order of its counters.
    pub const ALL: [Refusal; 9] = [
        Refusal::Malformed,
        Refusal::UnknownFlow,
        Refusal::Replayed,
        Refusal::Time,
        Refusal::Epoch,
        Refusal::Budget,
        Refusal::Full,
        Refusal::Forged,
        Refusal::Signature,
    ];

    /// The node's counter that comes nearest.
    pub const fn reason(self) -> DropReason {
        match self {
            Refusal::Malformed => DropReason::Malformed,
            Refusal::UnknownFlow => DropReason::UnknownFlow,
            Refusal::Replayed => DropReason::Replayed,
            Refusal::Time | Refusal::Epoch => DropReason::TooOld,
            Refusal::Budget => DropReason::NotAllowed,
            Refusal::Full => DropReason::TableFull,
            Refusal::Forged | Refusal::Signature => DropReason::BadTag,
        }
    }
}

/// What a verifier found out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// `count` packets from `first` on were sent by a member of the group.
    Valid {
        /// The flow.
        flow: FlowId,
        /// Number of the first.
        first: u64,
        /// How many.
        count: u64,
    },
    /// This packet is not the one that was stamped.
    Forged {
        /// The flow.
        flow: FlowId,
        /// The packet.
        seq: u64,
    },
    /// No stamp came for `count` packets from `first` on, though it was asked for.
    Unstamped {
        /// The flow.
        flow: FlowId,
        /// Number of the first.
        first: u64,
        /// How many.
        count: u64,
    },
    /// A stamp's signature is bad.
    Rejected {
        /// The flow.
        flow: FlowId,
        /// Why.
        why: Reject,
    },
}

/// What one source may still cost.
struct Source {
    flows: usize,
    queued: usize,
    /// Bad signatures left, in thousandths.
    budget: u64,
    refilled: Time,
}

struct Queued {
    source: u64,
    /// Of its flow.
    generation: u64,
    seal: Seal,
    bytes: Vec<u8>,
    /// Of the bytes.
    hash: [u8; 32],
}

/// A flow that was removed.
struct Ended {
    /// Its packets below this number get no verdict any more.
    base: u64,
    at: Time,
}

/// Verifies the stamped flows of many sources in one group.
pub struct Verifier {
    config: VerifierConfig,
    group: GroupVerifier,
    rng: Rng,
    flows: BTreeMap<FlowId, Flow>,
    flows_made: u64,
    /// Flows that were removed so recently that their stamps are not too old yet.
    ended: BTreeMap<FlowId, Ended>,
    sources: BTreeMap<u64, Source>,
    queue: VecDeque<Queued>,
    events: VecDeque<Event>,
    requests: VecDeque<(u64, Request)>,
    evidence: EvidenceRing,
    refused: [u64; Refusal::ALL.len()],
}

impl Verifier {
    /// A verifier with no flows. Nobody may know `seed`: it makes the coefficients of batches.
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
            refused: [0; Refusal::ALL.len()],
        }
    }

    /// Expects a stamped flow from `source`, which is any number that names the sending party. A
    /// flow that was removed goes on where it was, so that its packets and stamps can't be played
    /// again.
    pub fn add_flow(&mut self, flow: FlowId, source: u64, now: Time) -> Result<(), Refusal> {
        if self.flows.contains_key(&flow) {
            return self.refuse(Refusal::Replayed);
        }
        if self.flows.len() >= self.config.flows_max {
            return self.refuse(Refusal::Full);
        }
        let base = self.ended.remove(&flow).map_or(0, |ended| ended.base);
        self.flows_made += 1;
        self.flows.insert(flow, Flow::new(flow, source, self.flows_made, base));
        let budget = u64::from(self.config.bad_burst) * 1_000;
        let fresh = Source { flows: 0, queued: 0, budget, refilled: now };
        self.sources.entry(source).or_insert(fresh).flows += 1;
        Ok(())
    }

    /// Forgets a flow but for its end; its evidence stays. The source's budget is kept while it has
    /// other flows.
    pub fn remove_flow(&mut self, flow: &FlowId, now: Time) {
        let Some(gone) = self.flows.remove(flow) else { return };
        if let Some(source) = self.sources.get_mut(&gone.source) {
            source.flows -= 1;
            if source.flows == 0 && source.queued == 0 {
                self.sources.remove(&gone.source);
            }
        }
        // A stamp's time may be ahead of ours by the slack, and it is good for the slack after it.
        let fresh = self.config.time_slack.saturating_mul(2);
        self.ended.retain(|_, ended| now.since(ended.at) <= fresh);
        if self.ended.len() >= self.config.flows_max
            && let Some(oldest) = self.ended.iter().min_by_key(|(_, ended)| ended.at)
        {
            let oldest = *oldest.0;
            self.ended.remove(&oldest);
        }
        self.ended.insert(*flow, Ended { base: gone.end(), at: now });
    }

    /// Corrects the Unix time in milliseconds that belongs to [`Time::ZERO`], by which stamps are
    /// too old or too new: shells call it when the machine's clock was set.
    pub fn set_clock(&mut self, unix_ms_at_zero: u64) {
        self.config.unix_ms_at_zero = unix_ms_at_zero;
    }

    /// The group, for accepting and refusing epochs.
    pub fn group_mut(&mut self) -> &mut GroupVerifier {
        &mut self.group
    }

    /// Notes a packet of a flow. On an error it will get no verdict.
    pub fn handle_packet(
        &mut self,
        flow: &FlowId,
        seq: u64,
        plaintext: &[u8],
        now: Time,
    ) -> Result<(), Refusal> {
        let hash = packet_hash(flow, seq, plaintext);
        let Some(state) = self.flows.get_mut(flow) else {
            return self.refuse(Refusal::UnknownFlow);
        };
        let mut sink = Sink {
            events: &mut self.events,
            requests: &mut self.requests,
            evidence: &mut self.evidence,
        };
        let result = state.packet(seq, hash, &mut sink);
        state.arm(now, self.config.reorder, self.config.patience);
        result.or_else(|why| self.refuse(why))
    }

    /// Takes a stamp part. On an error nothing is kept of it.
    pub fn handle_part(&mut self, source: u64, bytes: &[u8], now: Time) -> Result<(), Refusal> {
        let Ok(part) = Part::decode(bytes) else { return self.refuse(Refusal::Malformed) };
        let result = match part {
            Part::Seal(seal) => self.handle_seal(source, *seal, bytes, now),
            Part::Chunk(chunk) => {
                let mut sink = Sink {
                    events: &mut self.events,
                    requests: &mut self.requests,
                    evidence: &mut self.evidence,
                };
                match self.flows.get_mut(&chunk.flow).filter(|f| f.source == source) {
                    Some(flow) => flow.chunk(chunk, bytes.to_vec(), &mut sink),
                    None => Err(Refusal::UnknownFlow),
                }
            }
            // Requests go to a Stamper.
            Part::Request(_) => Err(Refusal::Malformed),
        };
        result.or_else(|why| self.refuse(why))
    }

    fn handle_seal(
        &mut self,
        from: u64,
        seal: Seal,
        bytes: &[u8],
        now: Time,
    ) -> Result<(), Refusal> {
        let flow = self.flows.get_mut(&seal.flow).filter(|f| f.source == from);
        let flow = flow.ok_or(Refusal::UnknownFlow)?;
        let time_ms = self.config.unix_ms_at_zero + now.0 / 1_000_000;
        if u128::from(seal.time_ms.abs_diff(time_ms)) > self.config.time_slack.as_millis() {
            return Err(Refusal::Time);
        }
        if !self.group.accepts_epoch(seal.epoch) {
            return Err(Refusal::Epoch);
        }
        let source = self.sources.get_mut(&from).ok_or(Refusal::UnknownFlow)?;
        source.refill(&self.config, now);
        // Seals in the queue may all be bad: together they may not overdraw the budget.
        if source.budget < 1_000 * (source.queued as u64 + 1) {
            return Err(Refusal::Budget);
        }
        if source.queued >= self.config.queue_source_max
            || self.queue.len() >= self.config.queue_max
        {
            return Err(Refusal::Full);
        }
        let hash = hash(bytes);
        flow.seal_arrives(&seal, hash)?;
        source.queued += 1;
        let generation = flow.generation;
        let bytes = bytes.to_vec();
        self.queue.push_back(Queued { source: from, generation, seal, bytes, hash });
        Ok(())
    }

    /// Verifies up to `signatures` of the waiting seals, in one batch (under a millisecond each).
    /// Returns how many it took.
    pub fn work(&mut self, signatures: usize) -> usize {
        let count = signatures.min(self.config.batch_max).min(self.queue.len());
        let batch: Vec<Queued> = self.queue.drain(..count).collect();
        let mut verdicts = Vec::with_capacity(count);
        let mut candidates = Vec::with_capacity(count);
        for Queued { seal, bytes, .. } in &batch {
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

    fn conclude(&mut self, queued: Queued, verdict: Result<(), Reject>) {
        let Queued { source: from, generation, seal, bytes, hash } = queued;
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
            self.refused[Refusal::Signature as usize] += 1;
            self.events.push_back(Event::Rejected { flow: id, why });
        }
        let flow = self.flows.get_mut(&id).filter(|flow| flow.generation == generation);
        let Some(flow) = flow else { return };
        let mut sink = Sink {
            events: &mut self.events,
            requests: &mut self.requests,
            evidence: &mut self.evidence,
        };
        if let Err(why) = flow.seal_verdict((seal, bytes, hash), verdict.is_ok(), &mut sink) {
            self.refused[why as usize] += 1;
        }
    }

    /// Asks again for what is missing, and gives up what was asked for often enough.
    pub fn handle_timeout(&mut self, now: Time) {
        let config = &self.config;
        for flow in self.flows.values_mut() {
            let mut sink = Sink {
                events: &mut self.events,
                requests: &mut self.requests,
                evidence: &mut self.evidence,
            };
            flow.recover(now, config.reorder, config.tries, &mut sink);
            flow.arm(now, config.reorder, config.patience);
        }
    }

    /// The next request for lost parts, and the source it goes to.
    pub fn poll_transmit(&mut self) -> Option<(u64, Vec<u8>)> {
        self.requests.pop_front().map(|(source, request)| (source, request.encode()))
    }

    /// The next finding.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// When to come back, and why.
    pub fn poll_timeout(&self) -> Option<(Time, &'static str)> {
        if !self.requests.is_empty() || !self.events.is_empty() {
            return Some((Time::ZERO, "requests or events"));
        }
        if !self.queue.is_empty() {
            return Some((Time::ZERO, "signatures to verify"));
        }
        let at = self.flows.values().filter_map(Flow::recover_at).min()?;
        Some((at, "missing stamp parts"))
    }

    /// The proof of one packet, if it is still kept.
    pub fn evidence(&self, flow: &FlowId, seq: u64) -> Option<Evidence> {
        self.evidence.export(flow, seq)
    }

    /// All proofs that are kept.
    pub fn kept(&self) -> &EvidenceRing {
        &self.evidence
    }

    /// Goes on with the proofs of an earlier run, in the place of those kept so far, and within
    /// this verifier's bound.
    pub fn restore(&mut self, kept: EvidenceRing) {
        self.evidence = kept.bounded(self.config.evidence_packets);
    }

    /// How often something was refused for this reason.
    pub fn refused(&self, why: Refusal) -> u64 {
        self.refused[why as usize]
    }

    /// Packets of a flow that wait for their stamp.
    pub fn waiting(&self, flow: &FlowId) -> usize {
        self.flows.get(flow).map_or(0, Flow::waiting)
    }

    /// Removed flows whose end is remembered.
    pub fn ended(&self) -> usize {
        self.ended.len()
    }

    /// Seals that wait for verification.
    pub fn queued(&self) -> usize {
        self.queue.len()
    }

    fn refuse(&mut self, why: Refusal) -> Result<(), Refusal> {
        self.refused[why as usize] += 1;
        Err(why)
    }
}

impl Source {
    fn refill(&mut self, config: &VerifierConfig, now: Time) {
        let gained = now.since(self.refilled).as_millis() as u64 * u64::from(config.bad_per_second);
        // Time too short for a gain is left to the next call.
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
