//! A file arrives whole, or its sender learns of the failure: over all paths, sizes and failures.

use crate::net;
use std::time::Duration;

use crate::net::{CHUNK, EmulatedNet, LinkStage, MS, one};
use shoal_transfer::{
    CancelReason, ChunkSet, PeerKey, RefuseReason, SegmentLen, TransferConfig, TransferFailure,
    TransferId,
};
use shoal_wire::Time;

fn quick() -> Vec<LinkStage> {
    vec![LinkStage::shaped(1000.0)]
}

fn rough() -> Vec<LinkStage> {
    let mut stage = LinkStage::shaped(200.0).delay_ms(3.0).loss(0.1);
    (stage.jitter_ns, stage.reorder, stage.duplicate, stage.burst) = (500_000, true, 0.02, 4.0);
    vec![stage]
}

#[test]
fn sizes_around_every_edge() {
    for size in [0, 1, 1_365, 1_366, 1_367, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 5_000] {
        let run = one(&mut EmulatedNet::pair(quick(), size), size, 5.0);
        assert_eq!(run.stats.bytes_done, size, "{size}");
        assert!(run.seconds < 0.05, "{size}: {}", run.seconds);
        one(&mut EmulatedNet::pair(rough(), size + 1), size, 10.0);
    }
}

#[test]
fn shorter_segments_carry_files_of_all_sizes() {
    for len in [1_276, 1_308, 1_340] {
        let segment = SegmentLen::new(len).unwrap();
        let (len, chunk) = (u64::from(len), segment.chunk_len() as u64);
        for size in [0, 1, len - 1, len, len + 1, chunk - 1, chunk, chunk + 1, 3 * chunk + 5_000] {
            let mut net = EmulatedNet::pair(quick(), 5);
            net.segment = segment;
            let run = one(&mut net, size, 5.0);
            assert_eq!(run.stats.bytes_done, size, "{size}");
            let mut net = EmulatedNet::pair(rough(), 6);
            net.segment = segment;
            one(&mut net, size, 10.0);
        }
        // A window that takes several NACKs, with losses in all of it.
        let mut net =
            EmulatedNet::pair(vec![LinkStage::shaped(1_000.0).delay_ms(150.0).loss(0.02)], 3);
        (net.segment, net.nack_loss) = (segment, 0.1);
        let run = one(&mut net, 60_000_000, 60.0);
        assert!((0.9..1.1).contains(&run.resent), "{run:?}");
    }
}

#[test]
fn arrives_whole_over_rough_paths() {
    for seed in 0..6 {
        let mut net = EmulatedNet::pair(rough(), seed);
        net.nack_loss = 0.3;
        (net.stall_every_ns, net.stall_ns) = (30 * MS, 8 * MS);
        let run = one(&mut net, 5_000_000, 30.0);
        assert!(run.seconds < 5.0, "{run:?}");
    }
}

#[test]
fn retransmits_what_was_lost_also_with_lost_nacks() {
    let mut net = EmulatedNet::pair(vec![LinkStage::shaped(300.0).delay_ms(10.0).loss(0.2)], 3);
    net.nack_loss = 0.4;
    let run = one(&mut net, 40_000_000, 30.0);
    assert!((0.98..1.05).contains(&run.resent), "{run:?}");
}

#[test]
fn allows_for_reordering_once_it_was_seen() {
    let mut stage = LinkStage::shaped(300.0).delay_ms(5.0);
    (stage.jitter_ns, stage.reorder) = (2 * MS, true);
    let mut net = EmulatedNet::pair(vec![stage], 4);
    let run = one(&mut net, 40_000_000, 30.0);
    let spurious = run.stats.duplicate_segments as f64 / run.stats.sent_segments as f64;
    assert!(spurious < 0.02, "{run:?}");
}

#[test]
fn a_full_egress_doesnt_confuse_the_rate() {
    let mut net = EmulatedNet::pair(vec![LinkStage::shaped(500.0)], 5);
    // Room for 60 packets: far less than the target queue.
    net.hosts[0].egress = 60.0 * net::SEGMENT_WIRE;
    let run = one(&mut net, 100_000_000, 30.0);
    assert!(net::share(&run, 500.0, 1.0) > 0.9, "{run:?}");
}

#[test]
fn resumes_what_is_there() {
    let mut net = EmulatedNet::pair(quick(), 6);
    let size = 20 * CHUNK + 77;
    let mut have = ChunkSet::new(21);
    for chunk in [0, 1, 2, 7, 13, 20] {
        have.insert(chunk);
    }
    net.hosts[1].have = Some(have);
    one(&mut net, size, 5.0);
    assert_eq!(net.hosts[0].resumed, 5 * CHUNK + 77);
    assert!(net.sent_data <= 15 * 192);
    let mut net = EmulatedNet::pair(quick(), 7);
    let mut all = ChunkSet::new(21);
    all.insert_range(0, 21);
    net.hosts[1].have = Some(all);
    one(&mut net, size, 5.0);
    assert_eq!((net.hosts[0].resumed, net.sent_data), (size, 0));
}

#[test]
fn a_scattered_have_set_travels_in_parts() {
    let mut net = EmulatedNet::pair(quick(), 8);
    let chunks = 1_000;
    let mut have = ChunkSet::new(chunks);
    (0..chunks).filter(|n| n % 2 == 0).for_each(|n| {
        have.insert(n);
    });
    net.hosts[1].have = Some(have);
    one(&mut net, u64::from(chunks) * CHUNK, 20.0);
    assert_eq!(net.hosts[0].resumed, u64::from(chunks) / 2 * CHUNK);
    assert!(net.sent_data <= 500 * 192);
}

#[test]
fn a_restarted_receiver_is_offered_the_file_again() {
    let mut net = EmulatedNet::pair(quick(), 9);
    let id = net.offer(0, 1, 100 * CHUNK);
    net.run_for(Duration::from_millis(100));
    let done = net.hosts[1].written.values().next().unwrap().clone();
    assert!(done.count() > 5 && !done.is_full());
    net.hosts[1].transfers =
        shoal_transfer::Transfers::new(TransferConfig::default(), [99; 32], Time(net.now));
    net.hosts[1].have = Some(done);
    net.run_until(10.0, |net| net.done(0, id));
    assert!(net.hosts[0].finished.contains_key(&id), "{:?}", net.hosts[0].failed);
    assert!(net.hosts[0].resumed > 5 * CHUNK);
}

#[test]
fn a_restarted_sender_replaces_its_old_transfer() {
    let mut net = EmulatedNet::pair(quick(), 10);
    net.offer(0, 1, 100 * CHUNK);
    net.run_for(Duration::from_millis(50));
    net.hosts[0].transfers =
        shoal_transfer::Transfers::new(TransferConfig::default(), [98; 32], Time(net.now));
    net.hosts[0].sizes.clear();
    let id = net.offer(0, 1, 100 * CHUNK);
    net.run_until(10.0, |net| net.done(0, id));
    assert!(net.hosts[0].finished.contains_key(&id));
    let old = net.hosts[1].offered[0];
    assert_eq!(net.hosts[1].failed[&old], TransferFailure::Peer(CancelReason::Superseded));
    assert_eq!(net.hosts[1].transfers.counts(), (0, 0));
}

#[test]
fn of_a_file_sent_twice_the_newer_goes_on_and_the_older_hears_of_it() {
    for pause_ms in [0, 1, 50] {
        let mut net = EmulatedNet::pair(quick(), 11);
        let older = net.offer_again(0, 1, 100 * CHUNK, 3);
        net.run_for(Duration::from_millis(pause_ms));
        let newer = net.offer_again(0, 1, 100 * CHUNK, 3);
        let told = TransferFailure::Peer(CancelReason::Superseded);
        net.run_until(3.0, |net| net.done(0, older));
        assert_eq!(net.hosts[0].failed.get(&older), Some(&told), "after {pause_ms} ms");
        net.run_until(10.0, |net| net.done(0, newer));
        assert!(net.hosts[0].finished.contains_key(&newer), "after {pause_ms} ms");
        assert_eq!(net.hosts[1].transfers.counts(), (0, 0));
    }
}

fn sent_and_failed(net: &mut EmulatedNet, id: TransferId) -> TransferFailure {
    net.run_until(60.0, |net| net.done(0, id));
    net.hosts[0].failed[&id]
}

#[test]
fn refusals_reach_the_sender() {
    for &reason in RefuseReason::ALL {
        let mut net = EmulatedNet::pair(rough(), reason as u64);
        net.hosts[1].refuse = Some(reason);
        let id = net.offer(0, 1, 10_000);
        assert_eq!(sent_and_failed(&mut net, id), TransferFailure::Refused(reason));
        assert!(net.now < 1_000 * MS + 5_000 * MS);
    }
}

#[test]
fn either_end_can_cancel() {
    for end in 0..2u32 {
        let mut net = EmulatedNet::pair(rough(), 20);
        let id = net.offer(0, 1, 50 * CHUNK);
        net.run_for(Duration::from_millis(300));
        let theirs = net.hosts[1].offered[0];
        let now = Time(net.now);
        match end {
            0 => net.hosts[0].transfers.cancel(now, id, CancelReason::SourceChanged),
            _ => net.hosts[1].transfers.sink_failed(now, theirs, CancelReason::NoSpace),
        }
        net.run_for(Duration::from_secs(2));
        let (reason, failed) = match end {
            0 => (CancelReason::SourceChanged, (&net.hosts[0].failed, &net.hosts[1].failed)),
            _ => (CancelReason::NoSpace, (&net.hosts[1].failed, &net.hosts[0].failed)),
        };
        let (mine, other) = if end == 0 { (id, theirs) } else { (theirs, id) };
        assert_eq!(failed.0[&mine], TransferFailure::Local(reason));
        assert_eq!(failed.1[&other], TransferFailure::Peer(reason));
        assert_eq!(net.hosts[0].transfers.counts(), (0, 0));
        assert_eq!(net.hosts[1].transfers.counts(), (0, 0));
    }
}

#[test]
fn a_wrong_hash_fails_both_ends() {
    let mut net = EmulatedNet::pair(quick(), 21);
    net.hosts[1].bad_hash = true;
    let id = net.offer(0, 1, 3 * CHUNK);
    assert_eq!(sent_and_failed(&mut net, id), TransferFailure::Peer(CancelReason::HashMismatch));
    assert!(net.hosts[1].complete.is_empty());
}

#[test]
fn a_file_that_is_there_is_compared_and_no_byte_travels() {
    for size in [0, 5, 3 * CHUNK] {
        let mut net = EmulatedNet::pair(quick(), 30);
        net.hosts[1].compares = true;
        let id = net.offer(0, 1, size);
        net.run_until(5.0, |net| net.done(0, id));
        assert!(net.hosts[0].finished.contains_key(&id), "{:?}", net.hosts[0].failed);
        assert_eq!((net.hosts[0].resumed, net.sent_data), (size, 0));
        // Other content: both ends learn that the name is taken.
        net.hosts[1].bad_hash = true;
        let id = net.offer(0, 1, size);
        assert_eq!(sent_and_failed(&mut net, id), TransferFailure::Peer(CancelReason::Exists));
        let theirs = net.hosts[1].offered[1];
        assert_eq!(net.hosts[1].failed[&theirs], TransferFailure::Local(CancelReason::Exists));
        assert_eq!(net.sent_data, 0);
    }
}

#[test]
fn hashing_may_take_longer_than_silence_may() {
    for (slow, compares) in [(0, true), (0, false), (1, true), (1, false)] {
        let mut net = EmulatedNet::pair(quick(), 31);
        net.hosts[slow].hash_ns = 100_000 * MS;
        net.hosts[1].compares = compares;
        let id = net.offer(0, 1, 3 * CHUNK);
        net.run_until(120.0, |net| net.done(0, id));
        assert!(net.hosts[0].finished.contains_key(&id), "{:?}", net.hosts[0].failed);
        // Probes while the ends hash are few.
        assert!(net.sent_data < 3 * 192 + 200, "{}", net.sent_data);
    }
}

#[test]
fn what_is_there_is_hashed_only_once_the_sender_has_told_its_hash() {
    for compares in [true, false] {
        for size in [0, 3 * CHUNK] {
            let mut net = EmulatedNet::pair(quick(), 32);
            net.hosts[0].hash_ns = 1_000 * MS;
            net.hosts[1].compares = compares;
            let mut all = ChunkSet::new(size.div_ceil(CHUNK) as u32);
            all.insert_range(0, all.chunks());
            net.hosts[1].have = Some(all);
            let id = net.offer(0, 1, size);
            net.run_for(Duration::from_millis(900));
            assert_eq!(net.hosts[1].offered.len(), 1);
            assert_eq!(net.hosts[1].hashes_wanted, 0, "{compares} {size}");
            net.run_until(5.0, |net| net.done(0, id));
            assert!(net.hosts[0].finished.contains_key(&id), "{:?}", net.hosts[0].failed);
            assert_eq!((net.hosts[1].hashes_wanted, net.sent_data), (1, 0), "{compares} {size}");
        }
    }
}

#[test]
fn an_offer_without_data_ends_soon_and_one_peer_does_not_fill_the_table() {
    let config = TransferConfig::default();
    let mut transfers = shoal_transfer::Transfers::new(config.clone(), [1; 32], Time(0));
    let mut out = [0; 1_376];
    let mut offer = |transfers: &mut shoal_transfer::Transfers, peer, port: u16| {
        let offer = shoal_wire::transfer::FileOffer {
            port,
            nonce: 1,
            size: 10_000,
            modified_ns: 0,
            file_id: [(port >> 8) as u8, port as u8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
            executable: false,
            segment: SegmentLen::FULL,
            name: "name",
        };
        let len = shoal_wire::transfer::TransferMessage::Offer(offer).encode(&mut out).unwrap();
        transfers.handle_message(Time(0), PeerKey(peer), &out[..len], false)
    };
    let taken = (0..256).filter(|&port| offer(&mut transfers, 1, port).is_ok()).count();
    assert_eq!(taken, 64);
    assert!(offer(&mut transfers, 2, 0).is_ok(), "another peer finds a place");
    while let Some(event) = transfers.poll_event() {
        if let shoal_transfer::FileTransferEvent::Offered { id, info, .. } = event {
            transfers.accept(Time(0), id, &ChunkSet::new(info.chunks()));
        }
    }
    transfers.handle_timeout(Time(0) + config.first_timeout);
    assert_eq!(transfers.counts(), (0, 0));
}

#[test]
fn silence_ends_in_a_timeout() {
    let mut net = EmulatedNet::pair(quick(), 22);
    net.stages[0].down = true;
    let id = net.offer(0, 1, 3 * CHUNK);
    assert_eq!(sent_and_failed(&mut net, id), TransferFailure::Local(CancelReason::Timeout));

    let mut net = EmulatedNet::pair(quick(), 23);
    let id = net.offer(0, 1, 1_000 * CHUNK);
    net.run_for(Duration::from_millis(100));
    net.stages[0].down = true;
    let before = net.sent_data;
    // Both ends give up at the same time; either may report it first.
    let (here, there) = (
        TransferFailure::Local(CancelReason::Timeout),
        TransferFailure::Peer(CancelReason::Timeout),
    );
    let failure = sent_and_failed(&mut net, id);
    assert!(failure == here || failure == there, "{failure}");
    // Segments that were in flight when the path died, and then only probes.
    assert!(net.sent_data - before < 12_000, "{}", net.sent_data - before);
}

#[test]
fn goes_on_after_the_path_comes_back() {
    let mut net = EmulatedNet::pair(quick(), 24);
    let id = net.offer(0, 1, 400 * CHUNK);
    net.run_for(Duration::from_millis(200));
    net.stages[0].down = true;
    net.run_for(Duration::from_millis(700));
    let before = net.bytes_done(0, id);
    net.stages[0].down = false;
    net.run_for(Duration::from_millis(200));
    let gained = net.bytes_done(0, id) - before;
    assert!(gained > 10_000_000, "{gained}");
    net.run_until(20.0, |net| net.done(0, id));
    assert!(net.hosts[0].finished.contains_key(&id));
}

#[test]
fn a_lost_peer_fails_its_transfers_only() {
    let mut net = EmulatedNet::pair(quick(), 25);
    let id = net.offer(0, 1, 100 * CHUNK);
    net.run_for(Duration::from_millis(50));
    let now = Time(net.now);
    net.hosts[0].transfers.peer_lost(now, PeerKey(7));
    assert_eq!(net.hosts[0].transfers.counts(), (1, 0));
    net.hosts[0].transfers.peer_lost(now, PeerKey(1));
    net.run_for(Duration::from_millis(50));
    assert_eq!(net.hosts[0].failed[&id], TransferFailure::Local(CancelReason::PeerLost));
}

#[test]
fn a_slow_disk_is_waited_for() {
    let mut net = EmulatedNet::pair(quick(), 26);
    net.hosts[1].write_ns = 400 * MS;
    let run = one(&mut net, 300 * CHUNK, 30.0);
    // Nothing was sent without room at the receiver.
    assert_eq!((run.stats.duplicate_segments, net.hosts[1].drops), (0, 0), "{run:?}");
}

#[test]
fn both_directions_and_many_at_once() {
    let mut net = EmulatedNet::pair(quick(), 27);
    let ids: Vec<_> = (0..20)
        .map(|n| {
            let from = n % 2;
            (from, net.offer(from, 1 - from, 3_000_000 + u64::from(n) * 10_000))
        })
        .collect();
    net.run_until(20.0, |net| ids.iter().all(|&(host, id)| net.done(host, id)));
    for (host, id) in ids {
        let host = &net.hosts[host as usize];
        assert!(host.finished.contains_key(&id), "{id:?} {:?}", host.failed);
    }
    assert_eq!(net.hosts[0].transfers.counts(), (0, 0));
    assert_eq!(net.hosts[1].transfers.counts(), (0, 0));
}

#[test]
fn same_seed_same_run() {
    let run = || {
        let mut net = EmulatedNet::pair(rough(), 28);
        (net.stall_every_ns, net.stall_ns) = (30 * MS, 8 * MS);
        let run = one(&mut net, 3_000_000, 20.0);
        (format!("{run:?}"), net.now, net.sent_data)
    };
    assert_eq!(run(), run());
}

#[test]
fn a_policer_is_found_out() {
    let mut stage = LinkStage::shaped(200.0).delay_ms(5.0);
    stage.police = true;
    let mut net = EmulatedNet::pair(vec![stage], 29);
    let run = one(&mut net, 60_000_000, 60.0);
    let lost = net.lost_data as f64 / net.sent_data as f64;
    println!("policer: share {:.3}, lost {lost:.3}", net::share(&run, 200.0, 1.0));
    assert!(lost < 0.35, "{lost}");
}

#[test]
fn while_nothing_arrives_nacks_keep_no_beat() {
    let mut beats = Vec::new();
    for seed in 0..8 {
        let mut net = EmulatedNet::pair(quick(), 40 + seed);
        net.offer(0, 1, 400 * CHUNK);
        net.run_for(Duration::from_millis(100));
        // The path to the receiver dies; its NACKs still leave.
        net.stages[0].down = true;
        net.run_for(Duration::from_millis(300));
        let (mut said, mut at, mut gaps) = (net.hosts[1].messages, None, Vec::new());
        for _ in 0..8_000 {
            net.run_for(Duration::from_millis(1));
            if net.hosts[1].messages > said {
                said = net.hosts[1].messages;
                gaps.extend(at.map(|at| (net.now - at) / MS));
                at = Some(net.now);
            }
        }
        assert!(gaps.len() > 25 && gaps.iter().all(|gap| (149..=251).contains(gap)), "{gaps:?}");
        let mean = gaps.iter().sum::<u64>() / gaps.len() as u64;
        assert!((180..220).contains(&mean), "{mean}");
        let (least, most) = (gaps.iter().min(), gaps.iter().max());
        assert!(most.zip(least).is_some_and(|(most, least)| most - least > 60), "{gaps:?}");
        beats.push(gaps);
    }
    beats.dedup();
    assert_eq!(beats.len(), 8, "no two transfers alike");
}
