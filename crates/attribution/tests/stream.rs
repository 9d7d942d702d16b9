//! Stamper and verifier over a network that loses, reorders and lies, under a virtual clock.
mod common;

use std::collections::BTreeSet;
use std::time::Duration;

use common::World;
use shoal_attribution::*;
use shoal_crypto::Rng;
use shoal_wire::Time;

const FLOW: FlowId = FlowId(*b"flow of the test");
const SOURCE: u64 = 9;
const W: u64 = 1;

/// One sender, one receiver, and what the receiver found out.
struct Pair {
    world: World,
    pool: Pool,
    stamper: Stamper,
    verifier: Verifier,
    valid: BTreeSet<u64>,
    forged: Vec<u64>,
    unstamped: u64,
    rejected: Vec<Reject>,
    next: u64,
    now: Time,
    rng: Rng,
    request_bytes: u64,
}

fn packet(seq: u64) -> Vec<u8> {
    seq.to_be_bytes().repeat(20)
}

impl Pair {
    fn new(change: impl Fn(&mut StamperConfig, &mut VerifierConfig)) -> Pair {
        let mut world = World::new(2, 3);
        let signer = world.join("alice", 7);
        let mut sending = StamperConfig::new(FLOW);
        let mut receiving = VerifierConfig::default();
        change(&mut sending, &mut receiving);
        let mut group = GroupVerifier::new(&world.group);
        group.accept_epoch(7);
        let mut verifier = Verifier::new(receiving, group, [2; 32]);
        verifier.add_flow(FLOW, SOURCE, Time::ZERO).unwrap();
        Pair {
            pool: Pool::new(signer, 4, [1; 32], W, Time::ZERO),
            stamper: Stamper::new(sending, [3; 32], Time::ZERO),
            world,
            verifier,
            valid: BTreeSet::new(),
            forged: Vec::new(),
            unstamped: 0,
            rejected: Vec::new(),
            next: 0,
            now: Time::ZERO,
            rng: Rng::new([4; 32]),
            request_bytes: 0,
        }
    }

    fn send(&mut self, lost: bool) -> u64 {
        let seq = self.next;
        self.next += 1;
        let bytes = packet(seq);
        let got = self.stamper.handle_packet(&bytes, &mut self.pool, W, self.now).unwrap();
        assert_eq!(got, seq);
        if !lost {
            self.verifier.handle_packet(&FLOW, seq, &bytes, self.now).unwrap();
        }
        seq
    }

    /// Moves parts and requests, each lost with probability `loss` in a thousand.
    fn exchange(&mut self, loss: u64) {
        self.stamper.handle_timeout(&mut self.pool, W, self.now).unwrap();
        let mut parts = Vec::new();
        while let Some(part) = self.stamper.poll_transmit() {
            parts.push(part);
        }
        // Reordered by a shuffle.
        for n in (1..parts.len()).rev() {
            parts.swap(n, self.rng.below(n as u64 + 1) as usize);
        }
        for part in parts {
            if self.rng.below(1_000) >= loss {
                let _ = self.verifier.handle_part(SOURCE, &part, self.now);
            }
        }
        self.verifier.handle_timeout(self.now);
        while self.verifier.work(64) > 0 {}
        while let Some((source, request)) = self.verifier.poll_transmit() {
            assert_eq!(source, SOURCE);
            self.request_bytes += request.len() as u64;
            if self.rng.below(1_000) >= loss
                && let Ok(Part::Request(request)) = Part::decode(&request)
            {
                self.stamper.handle_request(&request);
            }
        }
        self.events();
    }

    fn events(&mut self) {
        while let Some(event) = self.verifier.poll_event() {
            match event {
                Event::Valid { first, count, .. } => {
                    for seq in first..first + count {
                        assert!(self.valid.insert(seq), "one verdict for each packet");
                    }
                }
                Event::Forged { seq, .. } => self.forged.push(seq),
                Event::Unstamped { count, .. } => self.unstamped += count,
                Event::Rejected { why, .. } => self.rejected.push(why),
            }
        }
    }

    fn pass(&mut self, time: Duration) {
        self.now = self.now + time;
    }

    /// Lets the network be until nothing is left to do.
    fn settle(&mut self, loss: u64) {
        for _ in 0..100 {
            self.pass(Duration::from_millis(20));
            self.exchange(loss);
        }
    }
}

#[test]
fn a_thin_flow_is_stamped_at_once() {
    let mut pair = Pair::new(|_, _| {});
    for _ in 0..5 {
        pair.send(false);
        pair.pass(Duration::from_millis(6));
        pair.exchange(0);
    }
    assert_eq!(pair.valid.len(), 5);
}

#[test]
fn a_fast_flow_survives_loss_and_reordering() {
    let mut pair = Pair::new(|_, _| {});
    let mut arrived = 0u64;
    for n in 0..20_000u64 {
        let lost = pair.rng.below(20) == 0;
        arrived += u64::from(!lost);
        pair.send(lost);
        if n % 100 == 0 {
            pair.pass(Duration::from_micros(280));
            pair.exchange(50);
        }
    }
    pair.settle(50);
    assert_eq!((pair.valid.len() as u64, pair.unstamped), (arrived, 0));
    assert!(pair.forged.is_empty() && pair.rejected.is_empty());
    let per_packet = (pair.stamper.bytes() + pair.request_bytes) as f64 / 20_000.0;
    assert!(per_packet < 20.0, "{per_packet} bytes for each packet");
}
