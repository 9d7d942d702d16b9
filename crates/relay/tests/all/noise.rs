//! All bytes on the wire look random: chi-square test over all frames of a length, by byte
//! position.

use core::time::Duration;
use std::collections::BTreeMap;

use crate::support::Net;
use shoal_relay::CallContext;
use shoal_wire::{Address, LinkKind, RoutedHeader, SizeClass, TrafficClass, link};
use zerocopy::IntoBytes;

const H1: usize = 0;
const R1: usize = 1;
const R2: usize = 2;
const H2: usize = 3;
/// Upper bound of chi-square. For uniform bytes the mean is 255 and the standard deviation 22.6.
/// Noise exceeds the bound at one in 10^9 positions.
const CHI_MAX: f64 = 450.0;

/// The byte position with the largest chi-square among frames of one length, and that value.
fn worst(frames: &[&[u8]]) -> (usize, f64) {
    let places = frames[0].len();
    let expected = frames.len() as f64 / 256.0;
    let chi = |at: usize| {
        let mut counts = [0u32; 256];
        frames.iter().for_each(|frame| counts[usize::from(frame[at])] += 1);
        counts.iter().map(|&n| (f64::from(n) - expected).powi(2) / expected).sum::<f64>()
    };
    (0..places).map(|at| (at, chi(at))).max_by(|a, b| a.1.total_cmp(&b.1)).unwrap()
}

/// Sends cells of zeros from h1 to h2.
fn send_zeros(net: &mut Net, class: SizeClass, n: usize) {
    let (src, dst) = (net.nodes[H1].relay.address(), net.nodes[H2].relay.address());
    let header = RoutedHeader::new(dst, src, TrafficClass::Bulk);
    let len = class.frame_len();
    let mut buf = vec![0; n * len];
    for frame in buf.chunks_mut(len) {
        frame[link::ROUTED_AT..link::CELL_AT].copy_from_slice(header.as_bytes());
    }
    let offsets: Vec<u32> = (0..n).map(|i| (i * len) as u32).collect();
    net.wire.from = Some(net.nodes[H1].at);
    let mut turn = CallContext { now: net.now, sink: &mut net.wire, hand: &mut () };
    net.nodes[H1].relay.send_cells(&mut turn, LinkKind::Cell, &mut buf, &offsets, len);
}

/// All frames on a chain of nodes from the first handshake on, with many handshakes and cells of
/// each length.
fn seen() -> Vec<Vec<u8>> {
    let addresses =
        [Address::new(1, 1), Address::new(1, 0), Address::new(2, 0), Address::new(2, 1)];
    let mut net = Net::with(&addresses, &[(H1, R1), (R1, R2), (H2, R2)], |config| {
        config.session.rekey_after = Duration::from_secs(2);
        config.session.reject_after = Duration::from_secs(5);
    });
    net.wire.seen = Some(Vec::new());
    net.run(Duration::from_secs(3));
    for _ in 0..600 {
        for class in [SizeClass::Small, SizeClass::Medium, SizeClass::Full] {
            send_zeros(&mut net, class, 2);
        }
        net.run(Duration::from_millis(100));
    }
    let handshakes: u64 =
        net.nodes.iter().map(|node| node.relay.counters().traffic.handshakes_out).sum();
    assert!(handshakes > 100, "{handshakes} handshake frames");
    assert!(net.nodes[H2].cells.len() > 3_000, "{} cells came", net.nodes[H2].cells.len());
    net.wire.seen.take().unwrap()
}

#[test]
fn every_byte_of_every_length_looks_random() {
    let frames = seen();
    let mut by_length = BTreeMap::<usize, Vec<&[u8]>>::new();
    frames.iter().for_each(|frame| by_length.entry(frame.len()).or_default().push(frame));
    let lengths: Vec<usize> = by_length.keys().copied().collect();
    assert_eq!(lengths, [192, 576, 1_440]);
    for (len, frames) in &by_length {
        assert!(frames.len() > 2_560, "ten per value and place: {} of {len}", frames.len());
        let (at, chi) = worst(frames);
        assert!(
            chi < CHI_MAX,
            "byte {at} of {} frames of {len}: chi-square {chi:.0}",
            frames.len()
        );
        // The test detects a byte that one frame in twenty has at one position.
        let mut marked: Vec<Vec<u8>> = frames.iter().map(|frame| frame.to_vec()).collect();
        marked.iter_mut().step_by(20).for_each(|frame| frame[77] = 0x17);
        let marked: Vec<&[u8]> = marked.iter().map(Vec::as_slice).collect();
        let (at, chi) = worst(&marked);
        assert!(at == 77 && chi > CHI_MAX, "{at}: {chi:.0}");
    }
}
