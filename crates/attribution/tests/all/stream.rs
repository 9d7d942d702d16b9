//! Stamper and verifier over a network that loses, reorders and lies, under a virtual clock.
use std::collections::BTreeSet;
use std::time::Duration;

use crate::common::World;
use shoal_attribution::*;
use shoal_crypto::Rng;
use shoal_wire::Time;

const FLOW: FlowId = FlowId(*b"flow of the test");
const SOURCE: u64 = 9;
const W: u64 = 1;

/// One sender, one receiver, and the receiver's findings.
struct Pair {
    pool: Pool,
    stamper: Stamper,
    verifier: Verifier,
    valid: BTreeSet<u64>,
    forged: Vec<u64>,
    unstamped: u64,
    rejected: Vec<SignatureError>,
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
                && let Ok(StampPart::Request(request)) = StampPart::decode(&request)
            {
                self.stamper.handle_request(&request);
            }
        }
        self.events();
    }

    fn events(&mut self) {
        while let Some(event) = self.verifier.poll_event() {
            match event {
                VerifierEvent::Valid { first, count, .. } => {
                    for seq in first..first + count {
                        assert!(self.valid.insert(seq), "one verdict for each packet");
                    }
                }
                VerifierEvent::Forged { seq, .. } => self.forged.push(seq),
                VerifierEvent::Unstamped { count, .. } => self.unstamped += count,
                VerifierEvent::Rejected { why, .. } => self.rejected.push(why),
            }
        }
    }

    fn pass(&mut self, time: Duration) {
        self.now = self.now + time;
    }

    /// Runs until nothing is left to do.
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

/// Sends one window and returns its parts: chunks in order, the seal last.
fn one_window(count: u64) -> (Pair, Vec<Vec<u8>>) {
    let mut pair = Pair::new(|sending, _| {
        sending.seal_twice_from = usize::MAX;
        sending.delay_max = Duration::from_secs(9);
        sending.idle = Duration::from_secs(9);
    });
    for _ in 0..count {
        pair.send(true);
    }
    pair.stamper.flush(&mut pair.pool, W, pair.now).unwrap();
    let parts = core::iter::from_fn(|| pair.stamper.poll_transmit()).collect();
    (pair, parts)
}

/// A fresh verifier for the same flow and group.
fn verifier() -> Verifier {
    Pair::new(|_, _| {}).verifier
}

#[test]
fn a_packet_needs_its_seal_and_its_chunk_and_nothing_else() {
    for count in [1, 56, 57, 82, 83, 200, 256, 300] {
        let (_, parts) = one_window(count);
        let (chunks, tail) = layout(count as usize);
        assert_eq!(parts.len(), chunks + 1);
        let seal = &parts[chunks];
        let sample = [0, 1, count / 2, count.saturating_sub(tail as u64 + 1), count - 1];
        for seq in sample.into_iter().filter(|s| *s < count) {
            let mut alone = verifier();
            alone.handle_packet(&FLOW, seq, &packet(seq), Time::ZERO).unwrap();
            alone.handle_part(SOURCE, seal, Time::ZERO).unwrap();
            assert_eq!(alone.work(9), 1);
            let chunk = seq as usize / CHUNK_PACKETS;
            let in_tail = seq as usize >= chunks * CHUNK_PACKETS;
            if !in_tail {
                assert_eq!(alone.poll_event(), None);
                alone.handle_part(SOURCE, &parts[chunk], Time::ZERO).unwrap();
            }
            let want = VerifierEvent::Valid { flow: FLOW, first: seq, count: 1 };
            assert_eq!(alone.poll_event(), Some(want), "{seq} of {count}");
        }
    }
}

#[test]
fn every_order_of_packet_chunk_and_seal_gives_the_verdict() {
    let (_, parts) = one_window(100);
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        let mut v = verifier();
        for step in order {
            match step {
                0 => v.handle_packet(&FLOW, 5, &packet(5), Time::ZERO).unwrap(),
                1 => v.handle_part(SOURCE, &parts[0], Time::ZERO).unwrap(),
                _ => v.handle_part(SOURCE, &parts[1], Time::ZERO).unwrap(),
            }
            v.work(1);
        }
        assert_eq!(v.poll_event(), Some(VerifierEvent::Valid { flow: FLOW, first: 5, count: 1 }));
        assert_eq!(v.handle_packet(&FLOW, 5, &packet(5), Time::ZERO), Err(StampRefusal::Replayed));
    }
}

#[test]
fn a_changed_packet_is_forged_and_its_neighbours_are_not() {
    let (_, parts) = one_window(100);
    let mut v = verifier();
    for seq in 0..100 {
        let bytes = if seq == 40 { packet(41) } else { packet(seq) };
        v.handle_packet(&FLOW, seq, &bytes, Time::ZERO).unwrap();
    }
    for part in &parts {
        v.handle_part(SOURCE, part, Time::ZERO).unwrap();
    }
    v.work(1);
    let events: Vec<VerifierEvent> = core::iter::from_fn(|| v.poll_event()).collect();
    let valid = |first, count| VerifierEvent::Valid { flow: FLOW, first, count };
    let forged = VerifierEvent::Forged { flow: FLOW, seq: 40 };
    // The tail's packets are first: their digests are in the seal.
    assert_eq!(events, [valid(82, 18), valid(0, 40), forged, valid(41, 41)]);
    assert_eq!(v.evidence(&FLOW, 40), None);
    assert!(v.evidence(&FLOW, 41).is_some());
}

#[test]
fn replays_and_stamps_of_elsewhere_are_refused() {
    let (_, parts) = one_window(100);
    let (chunk, seal) = (&parts[0], &parts[1]);
    let at = |v: &mut Verifier, part: &[u8], now| v.handle_part(SOURCE, part, now);
    let mut v = verifier();
    at(&mut v, seal, Time::ZERO).unwrap();
    v.work(1);
    at(&mut v, chunk, Time::ZERO).unwrap();
    assert_eq!(at(&mut v, seal, Time::ZERO), Err(StampRefusal::Replayed));
    assert_eq!(at(&mut v, chunk, Time::ZERO), Err(StampRefusal::Replayed));
    // Another sender, another time.
    let mut v = verifier();
    assert_eq!(v.handle_part(SOURCE + 1, seal, Time::ZERO), Err(StampRefusal::UnknownFlow));
    assert_eq!(at(&mut v, seal, Time::from_millis(61_000)), Err(StampRefusal::Time));
    // A changed flow or time in the stamp makes the signature invalid.
    let other = FlowId([1; 16]);
    v.add_flow(other, SOURCE, Time::ZERO).unwrap();
    for (field, value) in [(1, other.0[0]), (40, 99)] {
        let mut bytes = seal.clone();
        bytes[field] = value;
        if field == 1 {
            bytes[1..17].copy_from_slice(&other.0);
        }
        at(&mut v, &bytes, Time::ZERO).unwrap();
        v.work(1);
        assert!(matches!(
            v.poll_event(),
            Some(VerifierEvent::Rejected { why: SignatureError::Proof, .. })
        ));
    }
    // An epoch that is over.
    v.group_mut().refuse_epoch(7);
    assert_eq!(at(&mut v, seal, Time::ZERO), Err(StampRefusal::Epoch));
    assert_eq!(at(&mut v, &seal[1..], Time::ZERO), Err(StampRefusal::Malformed));
    assert_eq!(v.refused(StampRefusal::Malformed), 1);
}

#[test]
fn a_bad_seal_does_not_keep_the_good_one_out() {
    let (_, parts) = one_window(20);
    let mut v = verifier();
    let mut bad = parts[0].clone();
    bad[50] ^= 1;
    v.handle_packet(&FLOW, 3, &packet(3), Time::ZERO).unwrap();
    v.handle_part(SOURCE, &bad, Time::ZERO).unwrap();
    v.handle_part(SOURCE, &parts[0], Time::ZERO).unwrap();
    let mut third = bad.clone();
    third[50] ^= 2;
    assert_eq!(v.handle_part(SOURCE, &third, Time::ZERO), Err(StampRefusal::Full));
    assert_eq!(v.work(64), 2);
    assert!(matches!(v.poll_event(), Some(VerifierEvent::Rejected { .. })));
    assert!(matches!(v.poll_event(), Some(VerifierEvent::Valid { first: 3, .. })));
}

#[test]
fn a_flood_of_bad_stamps_costs_little_and_only_its_source() {
    let (_, parts) = one_window(20);
    let mut v = verifier();
    let good_flow = FlowId([2; 16]);
    v.add_flow(good_flow, 77, Time::ZERO).unwrap();
    let mut worked = 0;
    for n in 0..5_000u64 {
        let mut bad = parts[0].clone();
        // Windows across the whole flow, each with an invalid signature.
        bad[17..25].copy_from_slice(&(n * 20 % 60_000).to_be_bytes());
        bad[60] ^= 1;
        let _ = v.handle_part(SOURCE, &bad, Time::from_millis(n / 10));
        if n % 100 == 0 {
            worked += v.work(64);
        }
        assert!(v.queued() <= 32);
    }
    worked += v.work(64);
    // The burst, plus the refill of half a second.
    assert!(worked <= 32 + 2, "{worked} signatures were verified");
    assert!(v.refused(StampRefusal::Budget) > 4_000);
    // The source is accepted again after a while.
    assert_eq!(v.handle_part(SOURCE, &parts[0], Time::from_millis(20_000)), Ok(()));
}

#[test]
fn evidence_convinces_others_and_changed_evidence_does_not() {
    let mut world = World::new(2, 3);
    world.join("alice", 7);
    let (_, parts) = one_window(100);
    let mut v = verifier();
    for seq in 0..100 {
        v.handle_packet(&FLOW, seq, &packet(seq), Time::ZERO).unwrap();
    }
    parts.iter().for_each(|p| v.handle_part(SOURCE, p, Time::ZERO).unwrap());
    v.work(1);
    for seq in [0, 81, 82, 99] {
        let evidence = v.evidence(&FLOW, seq).unwrap();
        let bytes = evidence.encode();
        let evidence = Evidence::decode(&bytes).unwrap();
        let proved = evidence.verify(&world.verifier).unwrap();
        assert_eq!((proved.seq, proved.epoch, proved.flow), (seq, 7, FLOW));
        assert_eq!(world.open(&proved.checked, &[1, 2]).unwrap(), "alice");
        assert_eq!(evidence.is_about(&packet(seq)), Ok(true));
        assert_eq!(evidence.is_about(&packet(seq + 1)), Ok(false));
        let mut rng = Rng::new([seq as u8; 32]);
        for _ in 0..60 {
            let mut bad = bytes.clone();
            bad[rng.below(bytes.len() as u64) as usize] ^= 1 << rng.below(8);
            let accepted = Evidence::decode(&bad).is_ok_and(|e| e.verify(&world.verifier).is_ok());
            assert!(!accepted);
        }
    }
    assert_eq!(v.evidence(&FLOW, 100), None);
}

#[test]
fn kept_proofs_outlive_the_verifier_and_stay_within_their_bound() {
    let world = World::new(2, 3);
    let group = world.group.id();
    // Windows of 100 packets, with packet 40 lost; 5 of 8 windows fit the bound.
    let mut pair = Pair::new(|sending, receiving| {
        sending.window_max = 100;
        receiving.evidence_packets = 550;
    });
    let send = |pair: &mut Pair, windows: u32| {
        for _ in 0..windows {
            for n in 0..100 {
                pair.send(n == 40);
            }
            pair.settle(0);
        }
    };
    send(&mut pair, 4);
    let file = pair.verifier.kept().encode(group);
    // Another run with a new verifier restores the proofs of the first.
    let restored = EvidenceRing::decode(&file, group, 550).unwrap();
    let flow = StoredFlow { flow: FLOW, first: 0, last: 399, count: 396 };
    assert_eq!(restored.flows(), [flow]);
    pair.verifier.restore(restored);
    send(&mut pair, 4);
    let file = pair.verifier.kept().encode(group);
    let kept = EvidenceRing::decode(&file, group, 550).unwrap();
    assert_eq!(kept.flows(), [StoredFlow { first: 300, last: 799, count: 495, ..flow }]);
    for seq in 0..800 {
        let found = kept.export(&FLOW, seq);
        assert_eq!(found.is_some(), seq >= 300 && seq % 100 != 40, "{seq}");
        assert_eq!(found, pair.verifier.evidence(&FLOW, seq));
    }
    for seq in [300, 381, 382, 399, 799] {
        let evidence = kept.export(&FLOW, seq).unwrap();
        assert_eq!(evidence.verify(&world.verifier).unwrap().seq, seq);
        assert_eq!(evidence.is_about(&packet(seq)), Ok(true));
    }
    // A smaller bound keeps the newest; another group's file is refused.
    let fewer = EvidenceRing::decode(&file, group, 250).unwrap();
    assert_eq!(fewer.flows(), [StoredFlow { first: 600, last: 799, count: 198, ..flow }]);
    assert_eq!(fewer.bounded(100).flows()[0].count, 99);
    let other = World::seeded(2, 3, 2).group.id();
    assert_eq!(EvidenceRing::decode(&file, other, 550).err(), Some(Error::OtherGroup));
}

#[test]
fn the_same_window_is_kept_once() {
    let world = World::new(2, 3);
    let (_, parts) = one_window(100);
    let mut file = EvidenceRing::new(1_000).encode(world.group.id());
    for seqs in [0..50, 50..100, 0..100] {
        let mut v = verifier();
        v.restore(EvidenceRing::decode(&file, world.group.id(), 1_000).unwrap());
        for seq in seqs {
            v.handle_packet(&FLOW, seq, &packet(seq), Time::ZERO).unwrap();
        }
        parts.iter().for_each(|p| v.handle_part(SOURCE, p, Time::ZERO).unwrap());
        v.work(1);
        file = v.kept().encode(world.group.id());
    }
    let kept = EvidenceRing::decode(&file, world.group.id(), 100).unwrap();
    assert_eq!(kept.flows(), [StoredFlow { flow: FLOW, first: 0, last: 99, count: 100 }]);
}

#[test]
fn packets_without_stamps_are_asked_for_and_then_given_up() {
    let mut pair = Pair::new(|_, _| {});
    for _ in 0..300 {
        pair.send(false);
    }
    // Every part is lost; requests arrive, resends don't.
    for _ in 0..400 {
        pair.pass(Duration::from_millis(10));
        pair.exchange(1_000);
    }
    assert_eq!((pair.unstamped, pair.valid.len()), (300, 0));
    assert!(pair.request_bytes > 0);
    assert_eq!(pair.verifier.waiting(&FLOW), 0);
    // The flow continues.
    for _ in 0..300 {
        pair.send(false);
    }
    pair.settle(0);
    assert_eq!((pair.unstamped, pair.valid.len()), (300, 300));
}

#[test]
fn a_fork_stops_stamping_until_the_pool_is_seeded_anew() {
    let mut pair = Pair::new(|_, _| {});
    for _ in 0..50 {
        pair.send(false);
    }
    pair.pass(Duration::from_millis(60));
    let result = pair.stamper.handle_timeout(&mut pair.pool, W + 1, pair.now);
    assert_eq!(result, Err(Error::Forked));
    assert_eq!(pair.stamper.poll_transmit(), None);
    pair.pool.reseed([9; 32], W, pair.now);
    for _ in 0..50 {
        pair.send(false);
    }
    pair.settle(0);
    assert_eq!(pair.valid.len(), 100);
}

#[test]
fn the_same_inputs_give_the_same_bytes_and_output_is_announced() {
    let run = || {
        let mut pair = Pair::new(|_, _| {});
        let mut bytes = Vec::new();
        for _ in 0..200 {
            pair.send(false);
            pair.pass(Duration::from_micros(100));
            let due = pair.stamper.poll_timeout().map(|(at, _)| at);
            let part = pair.stamper.poll_transmit();
            assert_eq!(part.is_some(), due == Some(Time::ZERO));
            bytes.extend(part.into_iter().flatten());
        }
        pair.stamper.flush(&mut pair.pool, W, pair.now).unwrap();
        bytes.extend(core::iter::from_fn(|| pair.stamper.poll_transmit()).flatten());
        bytes
    };
    assert_eq!(run(), run());
}

#[test]
fn overhead_stays_within_its_budget() {
    for (window, most) in [(256, 19.0), (4_096, 17.5)] {
        let (pair, _) = one_window(window);
        let per_packet = pair.stamper.bytes() as f64 / window as f64;
        assert!(per_packet < most, "{per_packet} bytes at {window}");
    }
}

/// Resends, requests and second copies of seals count.
#[test]
fn overhead_with_losses_stays_within_its_budget() {
    let mut world = World::new(2, 3);
    let signer = world.join("alice", 7);
    for (window, loss, most) in
        [(256, 0, 19.0), (256, 50, 21.0), (4_096, 0, 17.5), (4_096, 50, 19.0)]
    {
        let group = world.verifier.clone();
        let mut trial = StampTrial::new(signer.clone(), group, window, 64, loss).unwrap();
        for _ in 0..(16 * 256usize).div_ceil(window) {
            trial.run(1).unwrap();
        }
        let per_packet = trial.bytes_per_packet();
        assert!(per_packet < most, "{per_packet} bytes at {window} and {loss} lost in 1,000");
    }
}
